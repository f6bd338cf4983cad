"""Write the tables and the picture of notebooks/kernels.md from the stored results.

    python notebooks/lab/studies/kernels/page_tables.py

Each table stands between two marks of the page, such as `<!-- losses -->` and `<!-- end losses -->`; the text around it
stays. The results are notebooks/kernels_networks.csv ("races" here, as of `race_table`) and kernels_libraries.csv
("libraries", as library_peak.py writes it, of one machine).
"""
from pathlib import Path

import numpy as np
import pandas as pd

from kit.checks import expect
from kit.files import replace_file
from lab.kernels.measure import PYTORCH
from lab.kernels.networks import known_layers, multiplications, network_layers, network_names
from lab.kernels.pictures import draw_networks
from lab.kernels.results import (
    ENTRY,
    FORMS,
    NEWEST,
    RUN,
    TIE,
    by_run,
    compare_networks,
    compare_newest,
    compare_searches,
    complete_races,
    entry_label,
    log_ratios,
    mean_ratio,
    newest_against,
    read_races,
    readable_ratios,
    stacked,
)
from lab.kernels.searches import DESCENT, OURS, RANDOM, RIVAL

NOTEBOOKS = Path(__file__).resolve().parents[3]
SORTS = ("convolution 1x1", "larger convolution", "depthwise convolution", "dense layer", "matmul of attention",
         "softmax and layer norm")
# what the search and its space were designed on: all layers of the faster machine, and these networks
DESIGNED_ON, DESIGN_CPU = ("alexnet", "squeezenet1_1", "resnet18", "bert", "vit_b_32"), "AMD EPYC (family 26, model 2)"
BASE, LONG = (PYTORCH, 0), (RIVAL, 3000)
CALLED = {"AMD EPYC (family 25, model 17)": "slower", "AMD EPYC (family 26, model 2)": "faster",
          NEWEST: "ours, newest form"}               # shorter names on the page


def page_tables(races, libraries):
    """{name of a table of kernels.md: the table}, with texts in all cells."""
    raced = complete_races(races, [(RANDOM, 100), (RIVAL, 300)])         # of machines for which our space is
    cpus = [*raced.groupby("cpu")["kernel"].nunique().sort_values(ascending=False).index]
    libraries = libraries[libraries["cpu"] == cpus[0]]
    machines, others = machine_rows(races), races[~races["cpu"].isin(cpus)]
    races = races[races["cpu"].isin(cpus)].sort_values("cpu", kind="stable")
    of_first = newest_against(races[races["cpu"] == cpus[0]], BASE)
    return {
        "machines": machines,
        "newest": readable_ratios(compare_newest(races, [
            *rivals_of(NEWEST), ((NEWEST, 100), (RANDOM, 300)), ((NEWEST, 100), (RIVAL, 100)), ((NEWEST, 100), BASE),
            *(((NEWEST, n), (OURS, n)) for n in (50, 100)), ((RANDOM, 100), (RIVAL, 300)), ((RANDOM, 100), BASE)])),
        "every form": readable_ratios(compare_searches(every_form(races, FORMS, "every form"),
                                                       rivals_of("every form"))),
        "networks": rounded(compare_networks(newest_against(races, (RIVAL, 300)), network_names(), (NEWEST, 100),
                                             (RIVAL, 300)).query("2 * layers >= of"), 2),
        "long": readable_ratios(compare_newest(races, [
            ((NEWEST, 100), (RIVAL, 1000)), ((NEWEST, 100), LONG), ((RANDOM, 100), LONG), ((RIVAL, 300), LONG),
            *(((DESCENT, 300), (RIVAL, n)) for n in (300, 1000, 3000))])),
        "saved": saved_rows(races),
        "luck": readable_ratios(winners_luck(races, [*FORMS[:3], RANDOM, RIVAL]).query("measurements == 100"),
                                "race over search"),
        "groups": group_rows(races[races["cpu"] == cpus[0]], {*races.loc[races["cpu"] == DESIGN_CPU, "kernel"]}),
        "losses": rounded(loss_rows(races), 2),
        "called": rounded(called_libraries(libraries), 0),
        "libraries": library_rows(races, libraries),
        "peak": flat(peak_shares(libraries, of_first, [(NEWEST, 100)])),
        "openblas": readable_ratios(matmul_ratios(libraries, of_first, [BASE, (NEWEST, 100), (RANDOM, 100)])),
        "gpu": rounded(others[["cpu", "kernel", "strategy", "measurements", "seconds", "ms", "low", "high"]], 4)}


def layer_ratios(races, one, other):
    """One entry's kernel time over another's, layer by layer -> DataFrame, a row per machine and layer, slowest first.

    `one` and `other` are (strategy, measurements). "ratio" is the geometric mean over the "runs", the races of the
    layer that have both; "one" and "other" are labels. `races` are as of `race_table`.
    """
    tables = []
    for cpu, part in races.groupby("cpu", sort=False):
        ms, _ = by_run(part)
        if {one, other} <= set(ms):
            log, layers = log_ratios(ms, one, other)
            tables.append(pd.DataFrame({"cpu": cpu, "one": entry_label(one), "other": entry_label(other),
                                        "layer": layers.index, "ratio": np.exp(layers.to_numpy()),
                                        "runs": log.groupby("kernel").size().to_numpy()}))
    found = pd.concat(tables) if tables else pd.DataFrame(columns=["cpu", "one", "other", "layer", "ratio", "runs"])
    return found.sort_values("ratio", ascending=False, ignore_index=True)


def every_form(races, forms, name):
    """Races that have one form of a search each: a race with several becomes one per form -> DataFrame.

    `forms` are strategies. Their rows get the strategy `name`, and the other rows of a race are repeated for each of
    its forms; "race" names the form, too. Races without a form are left out. `races` are as of `race_table`.
    """
    runs, parts = ["cpu", *RUN], []
    other = ~races["strategy"].isin(forms)
    raced = pd.MultiIndex.from_frame(races[runs])
    for form in forms:
        mine = (races["strategy"] == form).to_numpy()
        part = races[(mine | other) & raced.isin(raced[mine])]
        parts.append(part.assign(strategy=part["strategy"].replace(form, name), race=part["race"] + f", {form}"))
    return pd.concat(parts, ignore_index=True)


def measurements_saved(races, one, other):
    """How many measurements the strategy `one` needs relative to `other` -> dictionary.

    A search needs as many as until one was within 5% of the lowest that any search of the layer and seed saw ("needed"
    of `race_table`). A search without such a measurement counts as one more than it made. "ratio" is the geometric
    mean over layers of one's number over the other's, "low" and "high" its 95% interval by bootstrap over layers;
    "layers" counts these; a ValueError if no layer has both. "one" and "other" are the medians over "runs", a layer
    and seed each; "one never" and "other never" count the runs without such a measurement.
    """
    runs, made = ["cpu", *RUN], races.assign(needed=races["needed"].astype(float))
    made = made[made["strategy"].isin([one, other])]
    needed, most = (made.pivot_table(column, runs, "strategy", aggfunc="max").reindex(columns=[one, other])
                    for column in ("needed", "measurements"))
    both = needed.dropna()
    expect(len(both), "races", len(both), f"at least one race with {one} and {other}")
    log = np.log(both[one] / both[other]).groupby(["cpu", "kernel"]).mean()
    never = (both > most.loc[both.index]).sum()
    return {**mean_ratio(log), "runs": len(both), "one": float(both[one].median()),
            "other": float(both[other].median()), "one never": int(never[one]), "other never": int(never[other])}


def winners_luck(races, strategies):
    """The time of winners in races over the time that their searches saw -> DataFrame.

    A row per machine, strategy and number of measurements. "ratio" is the geometric mean over "layers", "low" and
    "high" its 95% interval by bootstrap over them: 1.04 says that the winner's time in its search was 4% too good.
    `races` are as of `race_table`; rows without "seen" are left out.
    """
    rows, known = [], races[races["seen"].notna() & races["strategy"].isin(strategies)]
    known = known.assign(log=np.log(known["ms"] / known["seen"]))
    for (cpu, strategy, count), part in known.groupby(["cpu", *ENTRY]):
        rows.append({"cpu": cpu, "strategy": strategy, "measurements": count,
                     **mean_ratio(part.groupby("kernel")["log"].mean())})
    return pd.DataFrame(rows, columns=["cpu", *ENTRY, "layers", "ratio", "low", "high"])


def layer_sort(kernel):
    """Which of SORTS a kernel is."""
    if kernel.kind == "conv2d":
        return SORTS[0 if kernel.sizes[-1] == 1 else 1]
    if kernel.kind == "matmul":
        return SORTS[4 if len(kernel.sizes) > 3 else 3]
    return SORTS[2 if kernel.kind == "depthwise" else 5]


def called_libraries(libraries):
    """What PyTorch calls: a row per sort of layers and library, with the number of layers and the kernels called."""
    calls = _calls(libraries)
    table = calls.groupby(["sort", "called"], observed=True).agg(
        layers=("kernel", "size"), kernels=("routine", lambda texts: ", ".join(sorted({*texts} - {""}))))
    return table.reset_index().rename(columns={"sort": "layers of PyTorch"})


def library_groups(libraries):
    """{name of a group: its layers}: all, dense layers and matmuls, all others, and these by the library called."""
    calls = _calls(libraries)
    dense, rows = calls["sort"].isin(SORTS[3:5]), calls["sort"] == SORTS[5]
    groups = {"all": calls["kernel"].notna(), "dense layers and matmuls (MKL)": dense, "all others": ~dense}
    for sort, of_sort in (("convolutions", ~dense & ~rows & (calls["sort"] != SORTS[2])),
                          ("depthwise convolutions", calls["sort"] == SORTS[2]), (SORTS[5], rows)):
        for called in sorted({*calls.loc[of_sort, "called"]}):
            groups[f"{sort} ({called})"] = of_sort & (calls["called"] == called)
    return {name: {*calls.loc[chosen, "kernel"]} for name, chosen in groups.items()}


def peak_shares(libraries, races, entries, most=10):
    """Milliseconds, and the percentage of the core's fp32 peak, on matmuls -> DataFrame with columns of two levels.

    A row per layer: of those with more than one row of output, the `most` with the most multiplications. `entries` of
    the races are (strategy, measurements); their time is the mean over the races of a layer. "any search" is the lowest
    time of all. The peak is the median of `libraries`.
    """
    table, kernels = libraries.pivot_table("ms", "kernel", "library"), known_layers()
    ms = races.pivot_table("ms", "kernel", ENTRY)
    chosen = [name for name in table["NumPy"].dropna().index if kernels[name].sizes[-3] > 1 and name in ms.index]
    chosen = sorted(chosen, key=lambda name: -multiplications(kernels[name]))[:most]
    shown = {"PyTorch": table["PyTorch"], "NumPy": table["NumPy"], **{entry: ms[entry] for entry in entries}}
    shown["any search"] = races[races["measurements"] > 0].groupby("kernel")["ms"].min()
    flop = 2e-6 * pd.Series({name: multiplications(kernels[name]) for name in chosen})
    peak = libraries["peak"].median()
    columns = {name if isinstance(name, str) else name[0]: pd.DataFrame(
        {"ms": taken[chosen], "% of peak": 100 * flop / taken[chosen] / peak}) for name, taken in shown.items()}
    return pd.concat(columns, axis=1)


def over_library(libraries, races, entry, library="NumPy"):
    """An entry's time over that of a library, layer by layer -> Series of logarithms.

    Times of different runs are not compared: the ratio is that to PyTorch in the races, times PyTorch's to the library
    in the table. PyTorch itself is an entry, too.
    """
    table = np.log(libraries.pivot_table("ms", "kernel", "library"))
    logs = np.log(races.pivot_table("ms", RUN, ENTRY))
    ratio = (logs[entry] - logs["PyTorch", 0]).groupby("kernel").mean()
    return (ratio + table["PyTorch"] - table[library]).dropna()


def matmul_ratios(libraries, races, entries, library="NumPy"):
    """`over_library` of entries as mean ratios: a row per entry for matmuls of several rows and of a single row."""
    kernels, rows = known_layers(), []
    for name, single in (("several rows", False), ("one row", True)):
        for entry in entries:
            logs = over_library(libraries, races, entry, library)
            logs = logs[[(kernels[layer].sizes[-3] == 1) is single for layer in logs.index]]
            rows.append({"output": name, "one": entry[0], "other": library, **mean_ratio(logs)})
    return pd.DataFrame(rows)


def _calls(libraries):
    """PyTorch's rows, with the sort of the layer, the library that PyTorch called, and the routine within it."""
    calls, kernels = libraries[libraries["library"] == "PyTorch"], known_layers()
    sorts = [layer_sort(kernels[name]) for name in calls["kernel"]]
    called, _, routine = zip(*(text.partition(" ") for text in calls["backend"]))
    return calls.assign(sort=pd.Categorical(sorts, SORTS, ordered=True), called=called, routine=routine)


def rivals_of(search):
    """A search against random search with as many measurements, and against MetaSchedule with 300."""
    return [*(((search, n), (RANDOM, n)) for n in (50, 100, 300)), ((search, 100), (RIVAL, 300))]


def machine_rows(races):
    """A row per machine: how much is stored of it, and its best speed in one dense layer."""
    found = races.groupby("cpu", sort=False).agg(
        layers=("kernel", "nunique"), threads=("threads", "first"), PyTorch=("torch", "first"))
    found["races"] = races.drop_duplicates(["cpu", *RUN]).groupby("cpu").size()
    dense = races[races["kernel"] == "matmul 128x768x768"].groupby("cpu")["ms"].min()
    found["GFLOP/s in matmul 128x768x768"] = (2e-6 * 128 * 768 * 768 / dense).round().astype("Int64")
    return rounded(found.reset_index(), 0)


def saved_rows(races):
    """`measurements_saved` of each machine: our search against random search, and with and without a model."""
    rows = []
    for cpu, part in races.groupby("cpu"):
        for one, other in (((NEWEST, 300), (RANDOM, 300)), ((NEWEST, 100), (OURS, 100))):
            both = complete_races(newest_against(part, other), [one, other])
            if len(both):
                rows.append({"cpu": cpu, "search": one[0], "against": other[0], "at most": one[1],
                             **measurements_saved(both, one[0], other[0])})
    return readable_ratios(pd.DataFrame(rows), "measurements")


def group_rows(races, designed):
    """Ratios of our search on some layers of a machine; `designed`: names of layers that it was designed on."""
    designed = designed.union(*({kernel.name for kernel, _ in network_layers(name)} for name in DESIGNED_ON))
    rows_alone = races["kernel"].str.startswith(("softmax", "layer norm"))
    median = races[races["strategy"] == PYTORCH].groupby("kernel")["ms"].median()
    groups = {"softmax and layer norm": rows_alone, "all but softmax and layer norm": ~rows_alone,
              "no part in the design": ~races["kernel"].isin(designed), "all others": races["kernel"].isin(designed),
              "at least 0.1 ms in PyTorch": races["kernel"].map(median) >= 0.1}
    return readable_ratios(stacked(
        compare_newest(races[of_group], [*rivals_of(NEWEST), ((NEWEST, 100), BASE)]).assign(**{"which layers": name})
        for name, of_group in groups.items()).drop(columns="cpu"))


def loss_rows(races):
    """Layers where our kernel with 100 measurements takes more than 5% longer, with the same after 300 measurements.

    "lowest of all forms" is of the form of our search that does best there, with 100 measurements.
    """
    def against(search, count):
        return stacked(layer_ratios(newest_against(races, other) if search == NEWEST else races, (search, count), other)
                       for other in ((RANDOM, 100), (RIVAL, 300))).set_index(["cpu", "other", "layer"])
    lost = against(NEWEST, 100).drop(columns="one").query(f"ratio > {1 + TIE}")
    lost["ratio with 300"] = against(NEWEST, 300)["ratio"]
    lost["lowest of all forms"] = stacked(against(form, 100) for form in FORMS).groupby(lost.index.names)["ratio"].min()
    return lost.sort_values("ratio", ascending=False).reset_index()


def library_rows(races, libraries):
    """Time over that of PyTorch by the library that PyTorch calls: a row per machine and group of layers."""
    pairs = [((search, 100), BASE) for search in (NEWEST, RANDOM)]
    found = readable_ratios(stacked(
        compare_newest(races[races["kernel"].isin(layers)], pairs).assign(**{"layers of PyTorch": name})
        for name, layers in library_groups(libraries).items()))
    return found.pivot_table("kernel time", ["cpu", "layers of PyTorch", "layers"], "one", aggfunc="first",
                             sort=False).reset_index()


def flat(table):
    """A table whose columns have two levels, as texts with one: milliseconds to three digits, percent to none."""
    named = {" ".join(column): table[column].map(("{:.3f}" if column[1] == "ms" else "{:.0f}").format)
             for column in table}
    return pd.DataFrame(named).rename_axis("layer").reset_index()


def rounded(table, digits):
    """A table as texts, with so many digits behind the point; empty where a number is not known."""
    def text(value):
        return "" if pd.isna(value) else f"{value:.{digits}f}" if isinstance(value, float) else str(value)
    return pd.DataFrame({column: [text(value) for value in table[column]] for column in table})


def as_markdown(table):
    """A table of texts in Markdown."""
    rows = [[*table.columns], ["---"] * len(table.columns), *table.astype(str).values.tolist()]
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    for name, short in CALLED.items():
        text = text.replace(name, short)
    return text


def main():
    """Write the tables into the page, and draw its picture."""
    page, libraries = NOTEBOOKS / "kernels.md", pd.read_csv(NOTEBOOKS / "kernels_libraries.csv")
    text, races = page.read_text("utf-8"), read_races(NOTEBOOKS / "kernels_networks.csv")
    for name, table in page_tables(races, libraries).items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end {name} -->\n")
        if not end:
            raise SystemExit(f"{page}: no lines <!-- {name} --> and <!-- end {name} --> to write a table between")
        text = before + begin + as_markdown(table) + end + after
    replace_file(page, text)
    entries = [(NEWEST, 100), (RANDOM, 100), (RIVAL, 300)]
    same = complete_races(newest_against(races[races["cpu"] == DESIGN_CPU], (RIVAL, 300)), [BASE, *entries])
    ax = draw_networks(same, network_names(), entries, BASE, title="faster machine: all searches beat PyTorch")
    ax.figure.savefig(NOTEBOOKS / "pictures" / "kernels_faster.png", dpi=100, bbox_inches="tight")
    print(page)


if __name__ == "__main__":
    main()
