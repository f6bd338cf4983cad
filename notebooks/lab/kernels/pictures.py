"""Pictures of races over many layers: layers, whole networks, and the progress of searches."""
import numpy as np
import pandas as pd

from lab.kernels.bench import PYTORCH
from lab.kernels.results import ENTRY, RUN, TIE, entry_label, network_sums
from lab.kernels.searches import OURS
from lab.plots import MARKS, PALETTE, QUIET, dress, name_rows, new_axes


def draw_layers(races, entries, base=(PYTORCH, 0), ends=None, ax=None, title=""):
    """Draw the kernel time of entries relative to `base`, a row per layer, the layers where ours gains most at the top.

    `entries` and `base` are (strategy, measurements); of several races, the geometric mean is drawn. `ends`: only so
    many layers where the first entry gains most, and as many where it gains least; None: all.
    """
    logs = np.log(races.pivot_table("ms", RUN, ENTRY))
    entries = [entry for entry in entries if entry in logs]
    ratio = np.exp(logs[entries].sub(logs[base], axis=0).groupby("kernel").mean()).dropna(how="all")
    ratio = ratio.sort_values(entries[0], ascending=False)
    if ends is not None and len(ratio) > 2 * ends:
        ratio = pd.concat([ratio[:ends], ratio[-ends:]])
    ax = new_axes(ax, height=1.5 + 0.18 * len(ratio), width=10)
    ax.axvspan(1 - TIE, 1 + TIE, color="0.85", label=f"tie with {entry_label(base)}")
    ax.axvline(1, color=QUIET, linewidth=1)
    for place, entry in enumerate(entries):
        ax.plot(ratio[entry], range(len(ratio)), MARKS[place], color=PALETTE[place], label=entry_label(entry),
                markersize=6, markerfacecolor=PALETTE[place] if entry[0].startswith(OURS) else "white")
    ax.set_yticks(range(len(ratio)), ratio.index, fontsize="small")
    ax.set_ylim(-1, len(ratio))
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ticks = [tick for tick in (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10) if low <= tick <= high]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)
    return dress(ax, title, f"time over that of {entry_label(base)} (left is faster)", "", grid="x")


def draw_networks(races, networks, entries, base=(PYTORCH, 0), ax=None, title=""):
    """Draw the time of networks, summed as in `network_sums`, relative to `base`: a bar per network and entry.

    `races` are of one machine. A row says how many of the network's distinct layers the sums are over; networks of
    which less than half are measured are left out.
    """
    sums = network_sums(races, networks, [base, *entries]).query("2 * layers >= of")
    ax = new_axes(ax, height=1.5 + 0.2 * (1 + len(entries)) * len(sums))
    rows = np.arange(len(sums))
    for place, entry in enumerate(entries):
        ax.barh(rows + (place - (len(entries) - 1) / 2) * 0.8 / len(entries),
                sums[entry_label(entry)] / sums[entry_label(base)], height=0.7 / len(entries), color=PALETTE[place],
                label=entry_label(entry))
    ax.axvline(1, color="black", linewidth=1, label=entry_label(base))
    name_rows(ax, [f"{name}: {layers} of {of} layers" for name, layers, of in
                   zip(sums["network"], sums["layers"], sums["of"])])
    return dress(ax, title, f"time over that of {entry_label(base)} (left is faster)", "", grid="x")


def draw_progress(progress, ax=None, title=""):
    """Draw `search_progress` of one machine: kernel time over the "seconds" of a search.

    The vertical lines are the intervals.
    """
    ax = new_axes(ax)
    for place, (strategy, rows) in enumerate(progress.groupby("strategy", sort=False)):
        ours = strategy.startswith(OURS)
        either_side = [rows["ratio"] - rows["low"], rows["high"] - rows["ratio"]]
        ax.errorbar(rows["seconds"], rows["ratio"], either_side, color=PALETTE[place],
                    marker=MARKS[place], label=strategy, capsize=3, linewidth=2 if ours else 1.2,
                    linestyle="-" if ours else "--")
    ax.axhline(1, color=QUIET, linewidth=1)
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    named = [tick for tick in (5, 10, 20, 50, 100, 200, 500, 1000) if low <= tick <= high]
    ax.set_xticks(named, named)
    ax.set_xticks([], minor=True)
    return dress(ax, title, "seconds of search, mean over layers",
                 f"kernel time over that of {progress['base'].iloc[0]}")
