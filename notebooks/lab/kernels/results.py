"""Results of races over many layers as tables: one search against another, and sums over the layers of a network."""
import numpy as np
import pandas as pd

from kit.noise import bootstrap_interval
from lab.kernels.bench import PYTORCH
from lab.kernels.networks import multiplications, network_layers
from lab.kernels.searches import CARRIED, RANDOM, RIVAL, UNTUNED, finished_races, layer_of

TIE = 0.05                       # identical schedules differ by 1 to 3% in turns; a tenth, by 7% and more between runs
UNSTEADY = 1.2                   # of upper over lower quartile: the rounds say little
ENTRY, RUN = ["strategy", "measurements"], ["kernel", "seed", "race"]
LAYER_SEED = ["kernel", "seed", "cpu", "threads", "tvm"]            # what races of the same winners have in common
NEWEST = "explore then droplet, newest form"
# of our search in the stored table, the newest first; notebooks/kernels.md says how they differ
FORMS = (CARRIED, *(f"{CARRIED}, {form}" for form in ("confirmed, restarted", "confirmed", "doubting", "trusted")))


def race_table(folder):
    """The races in a folder as a table: a row per kernel, strategy, number of measurements, and seed.

    "seconds" are of the search until that measurement, "ms" is the median of the rounds after the search, "low" and
    "high" are their quartiles, inf if the kernel exceeded the lab's limit, "schedule" the winner's codes. "cpu" names
    the threads, too, if there are several. Of several races of a kernel and seed, the one with the most starts counts,
    and of equal ones the one with the most entries.
    """
    races = sorted(finished_races(folder), key=lambda race: (race["starts"], len(race["entries"])))
    rows = []
    for race in {layer_of(race): race for race in races}.values():
        threads = race["machine"]["threads"]
        for entry in race["entries"]:
            low, middle, high = 1e3 * quartiles(entry["again"])
            rows.append({"kernel": race["kernel"], "strategy": entry["strategy"],
                         "measurements": entry["measurements"], "seed": race["seed"], "race": race["race"],
                         "seconds": round(entry["seconds"], 1), "ms": round(middle, 5), "low": round(low, 5),
                         "high": round(high, 5), "rounds": len(entry["again"]),
                         "schedule": " ".join(map(str, entry["schedule"] or ())), **race["machine"],
                         "cpu": race["machine"]["cpu"] + f", {threads} threads" * (threads > 1)})
    return pd.DataFrame(rows)


def quartiles(seconds):
    """The quartiles (3,); inf where a kernel exceeded the lab's limit."""
    with np.errstate(invalid="ignore"):                      # between two of inf, the difference is not a number
        return np.nan_to_num(np.quantile(seconds, (0.25, 0.5, 0.75)), nan=np.inf, posinf=np.inf)


def read_races(path):
    """A stored table of `race_table`; numbers that are not known are NaN or NA, other empty cells are texts.

    The stored table has two more columns. "needed" is how many measurements the search made until one was within 5% of
    the lowest that any search of this kernel and seed saw; one more than it made if none was, 0 without a search.
    "seen" is the "ms" of the winner in its search.
    """
    unknown = {name: [""] for name in ("seconds", "seen", "needed")}
    return pd.read_csv(path, keep_default_na=False, na_values=unknown, dtype={"needed": "Int64", "race": str})


def complete_races(races, entries):
    """The races that have all `entries`, (strategy, measurements): only in these can more than two be compared."""
    runs = ["cpu", *RUN]
    has = races.pivot_table("ms", runs, ENTRY).reindex(columns=list(entries)).notna().all(axis=1)
    return races[has.loc[pd.MultiIndex.from_frame(races[runs])].to_numpy()].reset_index(drop=True)


def newest_against(races, other):
    """The races that have the entry `other`, each layer with the newest form of our search in them, named NEWEST.

    The newest form is the first of FORMS that the machine has measured on the layer. Its other forms are left out.
    """
    races = complete_races(races, [other])
    age = races["strategy"].map({form: age for age, form in enumerate(FORMS)})
    newest = age.groupby([races["cpu"], races["kernel"]]).transform("min")
    named = races.assign(strategy=races["strategy"].where(age.isna(), NEWEST))
    return named[age.isna() | (age == newest)].reset_index(drop=True)


def compare_newest(races, pairs):
    """`compare_searches` of pairs of entries, with the newest form of our search that raced the second one, as NEWEST.

    Parameters
    ----------
    races : DataFrame
        As of `race_table`.
    pairs : list of ((str, int), (str, int))
        Strategy and number of measurements, twice; PyTorch and untuned kernels have 0 measurements.

    Returns
    -------
    DataFrame
    """
    return pd.DataFrame([row for one, other in pairs
                         for row in compare_searches(newest_against(races, other), one, other)])


def compare_searches(races, one, other):
    """Ratios of one entry's kernel time to another's, layer by layer -> [a row per machine that has both].

    "ratio" is the geometric mean over layers of one's time over the other's, "low" and "high" its 95% interval by
    bootstrap over layers (the mean over the races of a layer counts once). Only times of the same race are compared;
    "runs" counts the races. "faster", "ties" and "slower" count layers, with ties within 5%. "time" is the ratio of the
    search times, summed; NaN if one of them is not known.
    """
    rows = []
    for cpu, part in races.groupby("cpu", sort=False):
        ms, seconds = by_run(part)
        if one not in ms or other not in ms:
            continue
        log = np.log(ms[one] / ms[other]).dropna()
        if len(log):
            layers, spent = log.groupby("kernel").mean(), seconds.loc[log.index].sum(skipna=False)
            ratio = np.exp(layers)
            rows.append({"cpu": cpu, "one": entry_label(one), "other": entry_label(other),
                         "layers": len(layers), "runs": len(log), **mean_ratio(layers),
                         "faster": int((ratio < 1 - TIE).sum()),
                         "ties": int((abs(ratio - 1) <= TIE).sum()), "slower": int((ratio > 1 + TIE).sum()),
                         "time": spent[one] / spent[other] if spent[other] else np.nan})
    return rows


def readable_ratios(table):
    """A table of ratios as people read it: texts in columns, without its index -> DataFrame.

    Its columns "ratio", "low" and "high" become one column "kernel time", as "0.976 (0.962 to 0.988)", and "time"
    becomes "search time", empty where it is not known.
    """
    text = [f"{ratio:.3f}" + f" ({low:.3f} to {high:.3f})" * bool(low <= high) for ratio, low, high in zip(
        table["ratio"], table["low"], table["high"])]
    time = [f"{spent:.2f}" if spent == spent else "" for spent in table["time"]]
    return table.drop(columns=["low", "high"]).assign(ratio=text, time=time).rename(
        columns={"ratio": "kernel time", "time": "search time"})


def by_run(part):
    """Milliseconds of kernels and seconds of searches of one machine: a row per race, a column per entry."""
    ms = part.pivot_table("ms", RUN, ENTRY)
    seconds = part.pivot_table("seconds", RUN, ENTRY)
    return ms, seconds.reindex(index=ms.index, columns=ms.columns)         # without those that no race knows


def mean_ratio(logs):
    """The geometric mean of ratios with its 95% interval by bootstrap, of their logarithms (layers,), a Series."""
    low, high = np.exp(bootstrap_interval(logs.to_numpy()))
    return {"layers": len(logs), "ratio": float(np.exp(logs.mean())), "low": low, "high": high}


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


def network_summary(races, network, measurements, trials):
    """Say how long a network's layers take with our search's kernels, MetaSchedule's and PyTorch's, from a race_table.

    Only the layers count that were raced with so many `measurements` of our search and `trials` of MetaSchedule.
    """
    ours, rival = (CARRIED, measurements), (RIVAL, trials)
    entries = [ours, (RANDOM, measurements), rival, (PYTORCH, 0)]
    sums = network_sums(races, [network], entries)
    if sums.empty:
        return f"{network}: no layer has a race of all searches"
    layers = network_layers(network)
    row, = compare_searches(races[races["kernel"].isin([kernel.name for kernel, _ in layers])], ours, rival)
    raced = complete_races(races, [ours, rival])["kernel"].unique()
    every = [(multiplications(*layer), layer[0].name in raced) for layer in layers]
    share = sum(count for count, has in every if has) / sum(count for count, _ in every)
    times = ", ".join(f"{entry[0]} {sums[entry_label(entry)].iloc[0]:.3g} ms" for entry in entries)
    return (f"{network}: {row['layers']} of {len(layers)} layers, with {int(100 * share)}% of the multiplications: "
            f"{times}; our search against {RIVAL}: faster on {row['faster']} layers, a tie on {row['ties']}, slower on "
            f"{row['slower']}, in {row['time']:.2f} of its search time")


def unsteady(races):
    """Names of the layers whose tuned times in a `race_table` differ much between rounds: other programs ran."""
    shaken = (races["high"] > UNSTEADY * races["low"]) & (races["strategy"] != UNTUNED)
    return list(dict.fromkeys(races.loc[shaken, "kernel"]))


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
        ms, seconds = by_run(part)
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


def entry_label(entry):
    """An entry as text."""
    strategy, measurements = entry
    return f"{strategy}, {measurements}" if measurements else strategy
