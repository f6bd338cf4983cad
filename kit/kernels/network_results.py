"""Results of races over many layers: one search against another, sums over the layers of a network, a picture."""
import numpy as np
import pandas as pd

from kit.kernels.measure import PYTORCH
from kit.kernels.networks import network_layers
from kit.kernels.results import OURS, TIE
from kit.noise import bootstrap_interval
from kit.plots import MARKS, PALETTE, QUIET, dress, new_axes

ENTRY = ["strategy", "measurements"]


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
        bootstrap over layers (the mean over the seeds of a layer counts once). "faster", "ties" and "slower" count
        layers, with ties within 5%. "time" is the ratio of the search times, summed. Pairs that no layer has are left
        out.
    """
    rows = []
    for cpu, part in races.groupby("cpu", sort=False):
        ms, seconds = (part.pivot_table(values, ["kernel", "seed"], ENTRY) for values in ("ms", "seconds"))
        for one, other in pairs:
            if one not in ms or other not in ms:
                continue
            log = np.log(ms[one] / ms[other]).dropna()
            if not len(log):
                continue
            layers = log.groupby("kernel").mean()
            low, high = np.exp(bootstrap_interval(layers.to_numpy()))
            spent = seconds.loc[log.index].sum()
            ratio = np.exp(layers)
            rows.append({"cpu": cpu, "one": _label(one), "other": _label(other), "layers": len(layers),
                         "runs": len(log), "ratio": np.exp(layers.mean()), "low": low, "high": high,
                         "faster": int((ratio < 1 - TIE).sum()), "ties": int((abs(ratio - 1) <= TIE).sum()),
                         "slower": int((ratio > 1 + TIE).sum()),
                         "time": spent[one] / spent[other] if spent[other] else np.nan})
    return pd.DataFrame(rows)


def network_sums(races, networks, entries):
    """Milliseconds of the layers of networks, summed with their counts -> DataFrame, a row per machine and network.

    `entries` are (strategy, measurements). Only layers count that have a race with every entry; "layers" says how many
    of the network's distinct layers these are, "of" how many it has. A column per entry holds the sum over these layers
    of count x ms, with the mean over seeds per layer. Networks without such a layer are left out.
    """
    rows = []
    for cpu, part in races.groupby("cpu", sort=False):
        ms = part.pivot_table("ms", "kernel", ENTRY)
        if not set(entries) <= set(ms):
            continue
        full = ms[list(entries)].dropna()
        for network in networks:
            layers = network_layers(network)
            counts = {kernel.name: count for kernel, count in layers if kernel.name in full.index}
            if counts:
                weight = pd.Series(counts)
                sums = full.loc[weight.index].mul(weight, axis=0).sum()
                rows.append({"cpu": cpu, "network": network, "layers": len(counts), "of": len(layers),
                             **{_label(entry): sums[entry] for entry in entries}})
    return pd.DataFrame(rows)


def measurements_saved(races, one, other):
    """How many measurements the strategy `one` needs relative to `other` -> dictionary.

    A search needs as many as until one was within 5% of the lowest that any search of the layer and seed saw ("needed"
    of `race_table`). "ratio" is the geometric mean over layers of one's number over the other's, "low" and "high" its
    95% interval by bootstrap over layers; "layers" counts these, "one" and "other" are the mean numbers.
    """
    needed = races.pivot_table("needed", ["cpu", "kernel", "seed"], "strategy", aggfunc="max")
    both = needed[[one, other]].dropna()
    log = np.log(both[one] / both[other]).groupby(["cpu", "kernel"]).mean()
    low, high = np.exp(bootstrap_interval(log.to_numpy()))
    return {"layers": len(log), "ratio": float(np.exp(log.mean())), "low": low, "high": high,
            "one": float(both[one].mean()), "other": float(both[other].mean())}


def _label(entry):
    """An entry as text."""
    strategy, measurements = entry
    return f"{strategy}, {measurements}" if measurements else strategy


def draw_layers(races, entries, base=(PYTORCH, 0), ax=None, title=""):
    """Draw the kernel time of entries relative to `base`, a row per layer, the layers where ours gains most at the top.

    `entries` and `base` are (strategy, measurements); of several seeds, the geometric mean is drawn.
    """
    logs = np.log(races.pivot_table("ms", ["kernel", "seed"], ENTRY))
    entries = [entry for entry in entries if entry in logs]
    ratio = np.exp(logs[entries].sub(logs[base], axis=0).groupby("kernel").mean()).dropna(how="all")
    ratio = ratio.sort_values(entries[0], ascending=False)
    ax = new_axes(ax, height=1.5 + 0.25 * len(ratio), width=10)
    ax.axvspan(1 - TIE, 1 + TIE, color="0.92", label=f"tie with {_label(base)}")
    ax.axvline(1, color=QUIET, linewidth=1)
    for place, entry in enumerate(entries):
        ax.plot(ratio[entry], range(len(ratio)), MARKS[place], color=PALETTE[place], label=_label(entry), markersize=6,
                markerfacecolor=PALETTE[place] if entry[0] == OURS else "white")
    ax.set_yticks(range(len(ratio)), ratio.index, fontsize="small")
    ax.set_xscale("log")
    for axis in (ax.xaxis.set_major_formatter, ax.xaxis.set_minor_formatter):
        axis("{x:g}")
    return dress(ax, title, f"time over that of {_label(base)} (left is faster)", "", grid="x")
