"""Results of races over many layers as tables: one search against another, and sums over the layers of a network."""
import numpy as np
import pandas as pd

from kit.noise import bootstrap_interval
from lab.kernels.measure import PYTORCH
from lab.kernels.networks import multiplications, network_layers
from lab.kernels.searches import CARRIED, RANDOM, RIVAL, UNTUNED, finished_races, finished_searches, layer_of

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
    "high" are their quartiles, inf if the kernel exceeded the lab's limit, "schedule" the winner's codes. "needed" is
    how many measurements the search made until one was within 5% of the lowest that any search of this kernel and seed
    saw; one more than it made if none was, 0 without a search, and empty if the search's file is gone. "seen" is the
    "ms" of the winner in its search, the mean if it was measured several times there, and NaN for untuned kernels,
    PyTorch and searches whose file is gone. "cpu" names the threads, too, if there are several. A race is left out if
    another one of the kernel and seed has all its entries and more starts, or as many starts and more entries.
    """
    races = sorted(finished_races(folder), key=lambda race: (race.get("starts", 1), len(race["entries"])))
    searches, tables = finished_searches(folder), []
    needed, seen = _needed(searches), _seen(searches)
    for race in races:
        rows, threads = [], race["machine"]["threads"]
        for entry in race["entries"]:
            low, middle, high = 1e3 * quartiles(entry["again"])
            search, asked = (*layer_of(race), entry["strategy"]), entry["measurements"]
            rows.append({"kernel": race["kernel"], "strategy": entry["strategy"],
                         "measurements": asked, "seed": race["seed"], "race": race.get("race", ""),
                         "seconds": round(entry["seconds"], 1), "ms": round(middle, 5), "low": round(low, 5),
                         "high": round(high, 5), "rounds": len(entry["again"]),
                         "needed": needed.get(search) if asked else 0,
                         "seen": round(1e3 * seen.get((*search, asked), np.nan), 5),
                         "schedule": " ".join(map(str, entry["schedule"] or ())), **race["machine"],
                         "cpu": race["machine"]["cpu"] + f", {threads} threads" * (threads > 1)})
        tables.append(pd.DataFrame(rows).astype({"needed": "Int64"}))
    return merged_races(*tables)


def _needed(searches):
    """{(*layer, strategy): "needed" of `race_table`}; of several searches the longest counts."""
    found, lowest = {}, {}
    for one in searches:
        key = layer_of(one)
        lowest[key] = min(lowest.get(key, np.inf), *one["seconds"])
        found[(*key, one["strategy"])] = max(found.get((*key, one["strategy"]), []), one["seconds"], key=len)
    return {key: measurements_needed(seconds, lowest[key[:-1]]) for key, seconds in found.items()}


def _seen(searches):
    """{(*layer, strategy, count): seconds of the winner of so many measurements, in its search}.

    A search whose trials do not say what was measured, as those of MetaSchedule, measures nothing twice.
    """
    found = {}
    for one in sorted(searches, key=lambda one: len(one["seconds"])):
        for count, winner in one["winners"].items():
            first = one["seconds"][:int(count)]
            same = [took for took, codes in zip(first, one.get("codes", ())) if codes == winner] or [min(first)]
            found[(*layer_of(one), one["strategy"], int(count))] = float(np.mean(same))
    return found


def quartiles(seconds):
    """The quartiles (3,); inf where a kernel exceeded the lab's limit."""
    with np.errstate(invalid="ignore"):                      # between two of inf, the difference is not a number
        return np.nan_to_num(np.quantile(seconds, (0.25, 0.5, 0.75)), nan=np.inf, posinf=np.inf)


def measurements_needed(seconds, best, within=0.05):
    """How many of `seconds` (c,), in their order, until one is within 5% of `best`; c + 1 if none is."""
    good = np.flatnonzero(np.asarray(seconds) <= (1 + within) * best)
    return int(good[0]) + 1 if len(good) else len(seconds) + 1


def merged_races(*tables):
    """Tables of races as one; a race replaces the earlier ones of its kernel, seed and machine that it covers.

    It covers those without an entry, a strategy with its number of measurements, that it does not have. Others stay
    beside it: the folder of another day's searches may be gone, and with it their winners.
    """
    tables = [table.assign(place=i) for i, table in enumerate(tables) if len(table)]       # an empty one has no types
    rows, covered = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(), []
    for _, same in rows.groupby(LAYER_SEED, sort=False) if len(rows) else ():
        races = [(part.index, {*zip(part["strategy"], part["measurements"])})
                 for _, part in same.groupby(["place", "race"], sort=False)]
        covered += [index for i, (index, entries) in enumerate(races)
                    if any(entries <= later for _, later in races[i + 1:])]
    rows = rows.drop(np.concatenate(covered)) if covered else rows
    return rows.drop(columns="place", errors="ignore").reset_index(drop=True)


def read_races(path):
    """A stored table of `race_table`; numbers that are not known are NaN or NA, other empty cells are texts."""
    unknown = {name: [""] for name in ("seconds", "seen", "needed")}
    return pd.read_csv(path, keep_default_na=False, na_values=unknown, dtype={"needed": "Int64", "race": str})


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


def newest_against(races, other):
    """The races that have the entry `other`, each layer with the newest form of our search in them, named NEWEST."""
    return newest_forms(complete_races(races, [other]), FORMS, NEWEST)


def compare_newest(races, pairs):
    """As `compare_searches`, with the newest form of our search that raced the second entry of a pair, as NEWEST."""
    return stacked(compare_searches(newest_against(races, other), [(one, other)]) for one, other in pairs)


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
        ms, seconds = by_run(part)
        for one, other in pairs:
            if one not in ms or other not in ms:
                continue
            log, layers = log_ratios(ms, one, other)
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
    """A table of ratios as people read it: texts in columns, without its index -> DataFrame.

    Its columns "ratio", "low" and "high" become one column `name`, as "0.976 (0.962 to 0.988)", and "time" becomes
    "search time", empty where it is not known.
    """
    text = [f"{ratio:.3f}" + f" ({low:.3f} to {high:.3f})" * bool(low <= high) for ratio, low, high in zip(
        table["ratio"], table["low"], table["high"])]
    shown = table.drop(columns=["low", "high"]).assign(ratio=text)
    if "time" in shown:
        shown["time"] = [f"{spent:.2f}" if spent == spent else "" for spent in shown["time"]]
    return shown.rename(columns={"ratio": name, "time": "search time"}).reset_index(drop=True)


def log_ratios(ms, one, other):
    """Logarithms of one entry's milliseconds over another's: of each race that has both, and means over a layer's."""
    log = np.log(ms[one] / ms[other]).dropna()
    return log, log.groupby("kernel").mean()


def _verdicts(ratio):
    """How many layers are faster, ties and slower, of their ratios."""
    return {"faster": int((ratio < 1 - TIE).sum()), "ties": int((abs(ratio - 1) <= TIE).sum()),
            "slower": int((ratio > 1 + TIE).sum())}


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


def network_summary(races, network, measurements, trials):
    """Say how long a network's layers take with our search's kernels, MetaSchedule's and PyTorch's, from a race_table.

    Only the layers count that were raced with so many `measurements` of our search and `trials` of MetaSchedule.
    """
    ours, rival = (CARRIED, measurements), (RIVAL, trials)
    entries = [ours, (RANDOM, measurements), rival, (PYTORCH, 0)]
    sums = network_sums(races, [network], entries)
    if sums.empty:
        return f"{network}: no layer has a race of all searches"
    row, = compare_networks(races, [network], ours, rival).to_dict("records")
    raced = complete_races(races, [ours, rival])["kernel"].unique()
    every = [(multiplications(*layer), layer[0].name in raced) for layer in network_layers(network)]
    share = sum(count for count, has in every if has) / sum(count for count, _ in every)
    times = ", ".join(f"{entry[0]} {sums[entry_label(entry)].iloc[0]:.3g} ms" for entry in entries)
    return (f"{network}: {row['layers']} of {row['of']} layers, with {int(100 * share)}% of the multiplications: "
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
