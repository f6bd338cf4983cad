"""Pictures of races over many layers: layers, whole networks, the progress of searches, and their winning schedules."""
import numpy as np
import pandas as pd

from lab.kernels.measure import PYTORCH
from lab.kernels.network_results import ENTRY, RUN, SORTS, entry_label, network_sums
from lab.kernels.results import TIE
from lab.kernels.searches import OURS
from lab.plots import MARKS, PALETTE, QUIET, dress, name_rows, new_axes, row_marks


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

    `races` are of one machine. A row says how many of the network's distinct layers the sums are over.
    """
    sums = network_sums(races, networks, [base, *entries])
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


def draw_time_shares(shares, ax=None, title=""):
    """Draw `time_shares`: one bar per network, from 0 to 1, with its milliseconds at the end."""
    ax = new_axes(ax, height=1.5 + 0.35 * len(shares))
    start = np.zeros(len(shares))
    for place, sort in enumerate(SORTS):
        ax.barh(range(len(shares)), shares[sort], left=start, color=PALETTE[place], label=sort, height=0.7)
        start = start + shares[sort].to_numpy()
    for row, ms in enumerate(shares["ms"]):
        ax.text(1.01, row, f"{ms:.1f} ms", va="center", fontsize="small")
    name_rows(ax, [f"{name}: {layers} of {of} layers" for name, layers, of in
                   zip(shares["network"], shares["layers"], shares["of"])])
    ax.set_xlim(0, 1.13)
    return dress(ax, title, "share of the time of the measured layers", "", grid="x")


def draw_winning_choices(table, ax=None, title=""):
    """Draw `winning_choices`: a bar per value, with a black mark at the share of schedules drawn at random."""
    ax = new_axes(ax, height=1.5 + 0.25 * len(table))
    places = {choice: place for place, choice in enumerate(dict.fromkeys(table["choice"]))}
    for choice, place in places.items():
        rows = table["choice"] == choice
        ax.barh(np.flatnonzero(rows), table.loc[rows, "winners"], color=PALETTE[place], height=0.7)
    row_marks(ax, table["space"], "schedules drawn\nat random")
    name_rows(ax, [*(table["choice"] + ": " + table["value"])])
    return dress(ax, title, "share of the layers whose fastest schedule has this value", "", grid="x")


def draw_progress(progress, by="measurements", ax=None, title=""):
    """Draw `search_progress` of one machine: kernel time over measurements, or over the "seconds" of a search.

    The vertical lines are the intervals.
    """
    ax = new_axes(ax)
    for place, (strategy, rows) in enumerate(progress.groupby("strategy", sort=False)):
        ours = strategy.startswith(OURS)
        either_side = [rows["ratio"] - rows["low"], rows["high"] - rows["ratio"]]
        ax.errorbar(rows[by] * 1.02 ** place, rows["ratio"], either_side, color=PALETTE[place],
                    marker=MARKS[place], label=strategy, capsize=3, linewidth=2 if ours else 1.2,
                    linestyle="-" if ours else "--")
    ax.axhline(1, color=QUIET, linewidth=1)
    ax.set_xscale("log")
    named = sorted(set(progress["measurements"])) if by == "measurements" else (10, 30, 100, 300, 1000)
    ax.set_xticks(named, [f"{tick:g}" for tick in named])
    ax.set_xticks([], minor=True)
    return dress(ax, title, "measurements" if by == "measurements" else "seconds of search, mean over layers",
                 f"time over that of {progress['base'].iloc[0]}")
