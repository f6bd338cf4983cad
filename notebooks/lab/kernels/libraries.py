"""What PyTorch calls for each layer, and what libraries and schedules reach of a core's peak, from stored tables.

`libraries` is notebooks/kernels_libraries.csv, as tests/benchmarks/library_peak.py writes it, of one machine. `races`
are of the same machine, as of `race_table`.
"""
import numpy as np
import pandas as pd

from lab.kernels.network_results import ENTRY, RUN, SORTS, layer_sort, mean_ratio
from lab.kernels.networks import multiplications, network_layers, network_names


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
    table, kernels = libraries.pivot_table("ms", "kernel", "library"), _kernels()
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
    kernels, rows = _kernels(), []
    for name, single in (("several rows", False), ("one row", True)):
        for entry in entries:
            logs = over_library(libraries, races, entry, library)
            logs = logs[[(kernels[layer].sizes[-3] == 1) is single for layer in logs.index]]
            rows.append({"output": name, "one": entry[0], "other": library, **mean_ratio(logs)})
    return pd.DataFrame(rows)


def _kernels():
    """{name: kernel} of the layers of all known networks."""
    return {kernel.name: kernel for network in network_names() for kernel, _ in network_layers(network)}


def _calls(libraries):
    """PyTorch's rows, with the sort of the layer, the library that PyTorch called, and the routine within it."""
    calls, kernels = libraries[libraries["library"] == "PyTorch"], _kernels()
    sorts = [layer_sort(kernels[name]) for name in calls["kernel"]]
    called, _, routine = zip(*(text.partition(" ") for text in calls["backend"]))
    return calls.assign(sort=pd.Categorical(sorts, SORTS, ordered=True), called=called, routine=routine)
