"""Results of races over many layers as tables: one search against another, and sums over the layers of a network."""
import numpy as np
import pandas as pd

from kit.checks import expect
from kit.noise import bootstrap_interval
from lab.kernels.definitions import kernel_axes
from lab.kernels.networks import network_layers, network_names
from lab.kernels.results import TIE
from lab.kernels.schedules import schedule_choices, schedule_space

ENTRY, RUN = ["strategy", "measurements"], ["kernel", "seed", "race"]
SORTS = ("convolution 1x1", "larger convolution", "depthwise convolution", "dense layer", "matmul of attention",
         "softmax and layer norm")


def read_races(path):
    """A stored table of `race_table`; numbers that are not known are NaN or NA, other empty cells are texts."""
    unknown = {name: [""] for name in ("seconds", "seen", "needed")}
    return pd.read_csv(path, keep_default_na=False, na_values=unknown, dtype={"needed": "Int64", "race": str})


def compare_searches(races, pairs):
    """Ratios of one entry's kernel time to another's, layer by layer -> DataFrame, a row per machine and pair.

    Parameters
    ----------
    races : DataFrame
        As of `race_table`.
    pairs : list of ((str, int), (str, int))
        Strategy and number of measurements, twice; PyTorch and untuned kernels have 0 measurements.

    Returns
    -------
    DataFrame
        "ratio" is the geometric mean over layers of one's time over the other's, "low" and "high" its 95% interval by
        bootstrap over layers (the mean over the races of a layer counts once). Only times of the same race are
        compared; "runs" counts the races. "faster", "ties" and "slower" count layers, with ties within 5%. "time" is
        the ratio of the search times, summed; NaN if one of them is not known. Pairs that no race has are left out.
    """
    rows = []
    for cpu, part in races.groupby("cpu", sort=False):
        ms, seconds = _by_run(part)
        for one, other in pairs:
            if one not in ms or other not in ms:
                continue
            log, layers = _log_ratios(ms, one, other)
            if not len(log):
                continue
            spent = seconds.loc[log.index].sum(skipna=False)
            rows.append({"cpu": cpu, "one": entry_label(one), "other": entry_label(other), "runs": len(log),
                         **mean_ratio(layers), **_verdicts(np.exp(layers)),
                         "time": spent[one] / spent[other] if spent[other] else np.nan})
    return pd.DataFrame(rows, columns=["cpu", "one", "other", "layers", "runs", "ratio", "low", "high", "faster",
                                       "ties", "slower", "time"])


def stacked(tables):
    """Tables with the same columns as one; those without rows are left out, because their columns have no types."""
    tables = list(tables)
    return pd.concat([table for table in tables if len(table)] or tables[:1])


def readable_ratios(table, name="kernel time"):
    """A table of ratios as people read it, without its index -> Styler.

    Its columns "ratio", "low" and "high" become one column `name`, as "0.976 (0.962 to 0.988)", and "time" becomes
    "search time", empty where it is not known.
    """
    text = [f"{ratio:.3f} ({low:.3f} to {high:.3f})" for ratio, low, high in zip(
        table["ratio"], table["low"], table["high"])]
    shown = table.drop(columns=["low", "high"]).assign(ratio=text).rename(
        columns={"ratio": name, "time": "search time"})
    return shown.style.format(precision=3, na_rep="").hide()


def layer_ratios(races, one, other):
    """One entry's kernel time over another's, layer by layer -> DataFrame, a row per machine and layer, slowest first.

    `one` and `other` are (strategy, measurements). "ratio" is the geometric mean over the "runs", the races of the
    layer that have both; "one" and "other" are labels. `races` are as of `race_table`.
    """
    tables = []
    for cpu, part in races.groupby("cpu", sort=False):
        ms, _ = _by_run(part)
        if {one, other} <= set(ms):
            log, layers = _log_ratios(ms, one, other)
            tables.append(pd.DataFrame({"cpu": cpu, "one": entry_label(one), "other": entry_label(other),
                                        "layer": layers.index, "ratio": np.exp(layers.to_numpy()),
                                        "runs": log.groupby("kernel").size().to_numpy()}))
    found = pd.concat(tables) if tables else pd.DataFrame(columns=["cpu", "one", "other", "layer", "ratio", "runs"])
    return found.sort_values("ratio", ascending=False, ignore_index=True)


def _log_ratios(ms, one, other):
    """Logarithms of one entry's milliseconds over another's: of each race that has both, and means over a layer's."""
    log = np.log(ms[one] / ms[other]).dropna()
    return log, log.groupby("kernel").mean()


def _verdicts(ratio):
    """How many layers are faster, ties and slower, of their ratios."""
    return {"faster": int((ratio < 1 - TIE).sum()), "ties": int((abs(ratio - 1) <= TIE).sum()),
            "slower": int((ratio > 1 + TIE).sum())}


def _by_run(part):
    """Milliseconds of kernels and seconds of searches of one machine: a row per race, a column per entry."""
    ms = part.pivot_table("ms", RUN, ENTRY)
    seconds = part.pivot_table("seconds", RUN, ENTRY)
    return ms, seconds.reindex(index=ms.index, columns=ms.columns)         # without those that no race knows


def mean_ratio(logs):
    """The geometric mean of ratios with its 95% interval by bootstrap, of their logarithms (layers,), a Series."""
    low, high = np.exp(bootstrap_interval(logs.to_numpy()))
    return {"layers": len(logs), "ratio": float(np.exp(logs.mean())), "low": low, "high": high}


def complete_races(races, entries):
    """The races that have all `entries`, (strategy, measurements): only in these can more than two be compared."""
    runs = ["cpu", *RUN]
    has = races.pivot_table("ms", runs, ENTRY).reindex(columns=list(entries)).notna().all(axis=1)
    return races[has.loc[pd.MultiIndex.from_frame(races[runs])].to_numpy()].reset_index(drop=True)


def newest_forms(races, forms, name):
    """Races in which each layer has one form of a search, the newest that its machine has measured -> DataFrame.

    `forms` are strategies, the newest first; `races` are as of `race_table`. Rows of the newest form of a machine and
    layer get the strategy `name`, rows of its other forms are left out.
    """
    age = races["strategy"].map({form: age for age, form in enumerate(forms)})
    newest = age.groupby([races["cpu"], races["kernel"]]).transform("min")
    named = races.assign(strategy=races["strategy"].where(age.isna(), name))
    return named[age.isna() | (age == newest)].reset_index(drop=True)


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


def network_sums(races, networks, entries):
    """Milliseconds of the layers of networks, summed with their counts -> DataFrame, a row per machine and network.

    `entries` are (strategy, measurements). Only layers count where every entry has a race with the first one; "layers"
    says how many of the network's distinct layers these are, "of" how many it has. A column per entry holds the sum
    over these layers of count x ms, with ms as of `_layer_times`. Networks without such a layer are left out.
    """
    rows = []
    for cpu, part in races.groupby("cpu", sort=False):
        full = _layer_times(part, entries)
        for network in networks:
            layers = network_layers(network)
            counts = {kernel.name: count for kernel, count in layers if kernel.name in full.index}
            if counts:
                weight = pd.Series(counts)
                sums = full.loc[weight.index].mul(weight, axis=0).sum()
                rows.append({"cpu": cpu, "network": network, "layers": len(counts), "of": len(layers),
                             **{entry_label(entry): sums[entry] for entry in entries}})
    return pd.DataFrame(rows, columns=["cpu", "network", "layers", "of", *map(entry_label, entries)])


def _layer_times(part, entries):
    """Milliseconds of entries on the layers of one machine: a row per layer that has all, a column per entry.

    The first entry's time is its mean over the races of the layer. Another entry's is that times the geometric mean of
    its ratios to the first entry, over the races that have both: times of different races are not compared.
    """
    first, ms = entries[0], part.pivot_table("ms", RUN, ENTRY)
    if not set(entries) <= set(ms):
        return pd.DataFrame(columns=list(entries))
    logs = np.log(ms[list(entries)])
    ratios = np.exp(logs.sub(logs[first], axis=0).groupby("kernel").mean())
    return ratios.mul(ms[first].groupby("kernel").mean(), axis=0).dropna()


def compare_networks(races, networks, one, other):
    """One entry against another over whole networks -> DataFrame, a row per machine and network.

    `one` and `other` are (strategy, measurements). "ratio" is one's time over the other's, summed as in `network_sums`
    over the "layers" of the network's "of" distinct layers that have both. "time" is the ratio of the search times,
    each layer once; NaN if one of them is not known. "faster", "ties" and "slower" count layers, with ties within 5%;
    "loses on" names the slower ones.
    """
    rows = []
    for cpu, part in races.groupby("cpu", sort=False):
        ms, seconds = _layer_times(part, [one, other]), part.pivot_table("seconds", RUN, ENTRY)
        seconds = seconds.reindex(columns=[one, other]).dropna().groupby("kernel").mean()
        for row in network_sums(part, networks, [one, other]).to_dict("records"):
            both = ms[ms.index.isin([kernel.name for kernel, _ in network_layers(row["network"])])]
            ratio, spent = both[one] / both[other], seconds.reindex(both.index).sum(skipna=False)
            rows.append({"cpu": cpu, "network": row["network"], "layers": row["layers"], "of": row["of"],
                         "ratio": row[entry_label(one)] / row[entry_label(other)],
                         "time": spent[one] / spent[other] if spent[other] else np.nan,
                         **_verdicts(ratio), "loses on": "; ".join(ratio[ratio > 1 + TIE].index)})
    return pd.DataFrame(rows, columns=["cpu", "network", "layers", "of", "ratio", "time", "faster", "ties", "slower",
                                       "loses on"])


def search_seconds(races, networks, searches):
    """How long searches take to start, and for each measurement -> DataFrame, a row per network and search.

    `searches` are (strategy, fewer, more), two numbers of measurements. "seconds" is the time up to `more`, "each" the
    seconds that each measurement after `fewer` adds. "start" is the rest, for the fit of a cost model and for what the
    first measurements take longer; below 0 if they take less. All three are means over the "layers" that have all
    these searches in one race; the races of a layer are averaged first. `races` are of one machine.
    """
    needed = dict.fromkeys((strategy, count) for strategy, *counts in searches for count in counts)
    seconds = _by_run(races)[1].reindex(columns=[*needed]).dropna().groupby("kernel").mean()
    rows = []
    for network in networks:
        of_network = seconds[seconds.index.isin([kernel.name for kernel, _ in network_layers(network)])]
        for strategy, fewer, more in searches if len(of_network) else ():
            spent = of_network.mean()
            each = (spent[strategy, more] - spent[strategy, fewer]) / (more - fewer)
            rows.append({"network": network, "layers": len(of_network), "search": entry_label((strategy, more)),
                         "seconds": spent[strategy, more], "start": spent[strategy, more] - more * each, "each": each})
    return pd.DataFrame(rows, columns=["network", "layers", "search", "seconds", "start", "each"])


def compare_seeds(races, networks, pairs):
    """Ratios of whole networks, each seed for itself -> DataFrame, a row per machine, pair and network.

    A pair is as in `compare_searches`. A ratio is one's time over the other's, summed as in `network_sums`. "seeds" is
    how many seeds have both in every layer of the network; networks with fewer than two such seeds are left out.
    "ratio" is the geometric mean over these seeds, "lowest" and "highest" are the ratios of one seed each.
    """
    rows = []
    for cpu, part in races.groupby("cpu", sort=False):
        for one, other in pairs:
            sums = stacked(network_sums(same, networks, [one, other]) for _, same in part.groupby("seed"))
            for network, seeds in sums[sums["layers"] == sums["of"]].groupby("network", sort=False):
                if len(seeds) > 1:
                    ratio = seeds[entry_label(one)] / seeds[entry_label(other)]
                    rows.append({"cpu": cpu, "one": entry_label(one), "other": entry_label(other), "network": network,
                                 "seeds": len(ratio), "ratio": np.exp(np.log(ratio).mean()), "lowest": ratio.min(),
                                 "highest": ratio.max()})
    return pd.DataFrame(rows, columns=["cpu", "one", "other", "network", "seeds", "ratio", "lowest", "highest"])


def search_progress(races, strategies, base):
    """Kernel and search time after each number of measurements -> DataFrame, a row per machine, strategy and number.

    Parameters
    ----------
    races : DataFrame
        As of `race_table`.
    strategies : sequence of str
        Searches to follow.
    base : (str, int)
        Strategy and number of measurements that the kernel times are relative to.

    Returns
    -------
    DataFrame
        Over the layers whose race has `base`, "ratio" is the geometric mean of the kernel time over that of `base`,
        "low" and "high" its 95% interval by bootstrap over layers, "seconds" the mean time of a search until then. Only
        times of one race are compared. Entries that lack one of these layers are left out, so every row is of the same
        layers. "base" is its label.
    """
    rows = []
    for cpu, part in races.groupby("cpu", sort=False):
        ms, seconds = _by_run(part)
        if base not in ms:
            continue
        within = ms[base].notna()
        logs = np.log(ms[within].div(ms.loc[within, base], axis=0)).groupby("kernel").mean()
        spent = seconds[within].groupby("kernel").mean()
        for strategy in strategies:
            for entry in sorted(entry for entry in logs if entry[0] == strategy and logs[entry].notna().all()):
                rows.append({"cpu": cpu, "strategy": strategy, "measurements": int(entry[1]),
                             **mean_ratio(logs[entry]), "seconds": spent[entry].mean(), "base": entry_label(base)})
    return pd.DataFrame(rows, columns=["cpu", "strategy", "measurements", "layers", "ratio", "low", "high", "seconds",
                                       "base"])


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


def entry_label(entry):
    """An entry as text."""
    strategy, measurements = entry
    return f"{strategy}, {measurements}" if measurements else strategy


def time_shares(races, networks, entry):
    """Which sorts of layers take a network's time: a row per network with a measured layer, one column per sort.

    A cell is the share of the network's summed time with the kernels of `entry`. "ms" is the sum, "layers" and "of"
    are those of `network_sums`. `races` are of one machine.
    """
    ms = races.pivot_table("ms", "kernel", ENTRY)[entry].dropna()
    rows = []
    for network in networks:
        layers = network_layers(network)
        spent = [(layer_sort(kernel), count * ms[kernel.name]) for kernel, count in layers if kernel.name in ms.index]
        if spent:
            by_sort = pd.DataFrame(spent, columns=["sort", "ms"]).groupby("sort")["ms"].sum()
            rows.append({"network": network, **(by_sort / by_sort.sum()).reindex(SORTS, fill_value=0.0),
                         "ms": by_sort.sum(), "layers": len(spent), "of": len(layers)})
    return pd.DataFrame(rows, columns=["network", *SORTS, "ms", "layers", "of"])


def layer_sort(kernel):
    """Which of SORTS a kernel is."""
    if kernel.kind == "conv2d":
        return SORTS[0 if kernel.sizes[-1] == 1 else 1]
    if kernel.kind == "matmul":
        return SORTS[4 if len(kernel.sizes) > 3 else 3]
    return SORTS[2 if kernel.kind == "depthwise" else 5]


def winning_choices(races, entry):
    """What the fastest schedules have in common: how often each value of a choice is in the winners of `entry`.

    Parameters
    ----------
    races : DataFrame
        As of `race_table`.
    entry : (str, int)
        Strategy and number of measurements, of a search in the space of `schedule_space`.

    Returns
    -------
    DataFrame
        A row per choice and value of matmuls and convolutions. "winners" is the share of winners that have the value,
        "space" the share among schedules drawn at random from the same spaces, "layers" the number of layers that have
        the choice; each layer counts once.
    """
    kernels = {kernel.name: kernel for network in network_names() for kernel, _ in network_layers(network)}
    mine = races[(races["strategy"] == entry[0]) & (races["measurements"] == entry[1])]
    rows = []
    for name, schedule in zip(mine["kernel"], mine["schedule"]):
        if name in kernels and kernels[name].kind not in ("softmax", "layer norm"):
            rows += _values_taken(kernels[name], [*map(int, schedule.split())])
    if not rows:
        return pd.DataFrame(columns=["choice", "value", "winners", "space", "layers"])
    # values with one label, as of widths, add up within a schedule; seeds are averaged within a layer, then layers
    table, same = pd.DataFrame(rows), ["choice", "place", "value"]
    runs = table.groupby(["choice", "kernel"])["winners"].sum()
    layers = runs.groupby("choice").size()
    shares = table.groupby([*same, "kernel"])[["winners", "space"]].sum()
    shares = shares.div(runs.reindex(shares.index.droplevel(["place", "value"])).to_numpy(), axis=0)
    shares = shares.groupby(same).sum().reset_index(["place", "value"])
    shares[["winners", "space"]] = shares[["winners", "space"]].div(layers.loc[shares.index].to_numpy(), axis=0)
    return shares.assign(layers=layers).loc[list(dict.fromkeys(table["choice"]))].drop(columns="place").reset_index()


def _values_taken(kernel, codes):
    """For each value of the choices that are compared: whether a schedule has it, and its share in the space."""
    taken, rows = schedule_choices(kernel, codes), []
    last = f"tile {len(kernel_axes(kernel)[0]) - 1}"
    for choice in schedule_space(kernel):
        label = "vector width" if choice.name == last else choice.name
        if label in ("sketch", "padding", "unroll", "vector width"):
            for place, value in enumerate(choice.values):
                low = max(low for low in (1, 8, 16, 32, 64) if low <= value) if choice.name == last else place
                text = f"{low} to {2 * low - 1}" if choice.name == last and 1 < low < 64 else str(value)
                rows.append({"kernel": kernel.name, "choice": label, "place": low, "value": text,
                             "winners": float(value == taken[choice.name]), "space": 1 / len(choice.values)})
    return rows
