"""Results of a study of kernels: a table, a sentence and two pictures."""
import numpy as np
import pandas as pd

from lab.kernels.measure import PYTORCH
from lab.kernels.searches import CARRIED, OURS, RIVAL
from lab.plots import MARKS, PALETTE, QUIET, dress, new_axes

UNSTEADY = 1.2                   # of upper over lower quartile: the rounds say little
FARTHEST = 3.0                   # times MetaSchedule's time; what is slower is drawn there, with its number
TIE = 0.05                       # identical schedules differ by 1 to 3% in turns; a tenth, by 7% and more between runs


def study_table(studies):
    """The studies of several kernels, as `study_kernels` returns them, as one table: a row per kernel and strategy.

    "ms" is the median of the rounds after the search, "low" and "high" are their quartiles; inf if the kernel exceeded
    the lab's limit, as some untuned ones do. "ratio" is the median over rounds of the time over that of MetaSchedule's
    winner; "verdict" calls gaps of up to 5% a tie. "schedule" holds the codes of the winner, if it has some.
    """
    rows = []
    for study in studies:
        rival = np.array(study["found"][RIVAL]["again"])
        for name, one in study["found"].items():
            again = np.array(one["again"])
            ratio = float(np.median(again / rival))
            low, middle, high = 1e3 * quartiles(again)
            verdict = "tie" if abs(ratio - 1) <= TIE else "faster" if ratio < 1 else "slower"
            rows.append({"kernel": study["kernel"], "strategy": name, "measurements": one["measurements"],
                         "seconds": one["seconds"], "ms": middle, "low": low, "high": high, "ratio": ratio,
                         "verdict": "" if name == RIVAL else verdict, "rounds": len(again), **study["machine"],
                         "schedule": " ".join(map(str, one.get("schedule") or ()))})
    return pd.DataFrame(rows)


def quartiles(seconds):
    """The quartiles (3,); inf where a kernel exceeded the lab's limit."""
    with np.errstate(invalid="ignore"):                      # between two of inf, the difference is not a number
        return np.nan_to_num(np.quantile(seconds, (0.25, 0.5, 0.75)), nan=np.inf, posinf=np.inf)


def main_search(table):
    """Our search in a `study_table`: the one with a cost model of other layers, if it took part."""
    return CARRIED if CARRIED in set(table["strategy"]) else OURS


def study_summary(table):
    """Say how often our search is no slower than MetaSchedule's, and how long both took, from a `study_table`."""
    name = main_search(table)
    ours, rival = (table[table["strategy"] == search].set_index("kernel") for search in (name, RIVAL))
    good, quick = ours["verdict"] != "slower", ours["seconds"] < rival["seconds"]
    return (f"{name} with {ours['measurements'].max()} measurements against {RIVAL} with "
            f"{rival['measurements'].max()}: faster on {(ours['verdict'] == 'faster').sum()}, a tie on "
            f"{(ours['verdict'] == 'tie').sum()}, slower on {(~good).sum()} of {len(ours)} kernels; no slower and "
            f"found in less time on {(good & quick).sum()}; searches took {ours['seconds'].sum():.0f} s and "
            f"{rival['seconds'].sum():.0f} s")


def network_summary(table, counts):
    """Say how long the measured layers of a network take, each as often as `counts` {kernel: times} says."""
    ms = table.pivot_table("ms", "kernel", "strategy")
    sums = ms.mul(pd.Series(counts), axis=0).loc[ms.index].sum()
    return ", ".join(f"{name} {sums[name]:.3g} ms" for name in (main_search(table), RIVAL, PYTORCH) if name in sums)


def unsteady(table):
    """Names of the kernels whose tuned times in a `study_table` differ much between rounds: other programs ran."""
    tuned = table[table["strategy"] != "untuned"]
    return list(dict.fromkeys(tuned.loc[tuned["high"] > UNSTEADY * tuned["low"], "kernel"]))


def draw_study(table, ax=None, title=""):
    """Draw the time of each winner in a `study_table` relative to MetaSchedule's winner; the band marks ties.

    A winner that takes more than three times as long is drawn at three, with its number.
    """
    kernels = list(dict.fromkeys(table["kernel"]))
    ax = new_axes(ax, height=1.5 + 0.45 * len(kernels), width=10)
    tuned = [name for name in dict.fromkeys(table["strategy"]) if name not in ("untuned", RIVAL)]
    main = main_search(table)
    ax.axvspan(1 - TIE, 1 + TIE, color="0.85", label=f"tie with {RIVAL}")
    ax.axvline(1, color=QUIET, linewidth=1)
    for place, name in enumerate(tuned):
        ratio = table[table["strategy"] == name].set_index("kernel")["ratio"].reindex(kernels)
        rows = np.arange(len(kernels)) + 0.12 * (place - len(tuned) / 2 + 0.5)
        ax.plot(ratio.clip(upper=FARTHEST), rows, MARKS[place], markersize=6, color=PALETTE[place], label=name,
                markerfacecolor=PALETTE[place] if name == main else "white")
        for row, far in zip(rows, ratio):
            if far > FARTHEST:
                ax.annotate(f"{far:.0f} x" if far < np.inf else "exceeds the limit", (FARTHEST, row), (6, 0),
                            textcoords="offset points", va="center", fontsize="small", color=PALETTE[place])
    untuned = table[table["strategy"] == "untuned"].set_index("kernel")["ratio"]
    told = {name: f"{ratio:.0f} x" if ratio < np.inf else "exceeds the limit" for name, ratio in untuned.items()}
    ax.set_yticks(range(len(kernels)), [f"{name}\nuntuned: {told[name]}" for name in kernels])
    ax.invert_yaxis()
    return dress(ax, title, f"time over that of {RIVAL}'s kernel (left is faster)", "", grid="x")


def draw_curves(study, ax=None, title=""):
    """Draw the best kernel so far over the seconds of each search; `study` is of `study_kernels`."""
    ax = new_axes(ax)
    main = CARRIED if CARRIED in study["curves"] else OURS
    for place, (name, (known, best)) in enumerate(study["curves"].items()):
        ax.step(known, 1e3 * np.array(best), where="post", color=PALETTE[place], label=f"{name}, {len(best)}",
                linewidth=2 if name == main else 1.2, linestyle="-" if name == main else "--")
    least = 1e3 * min(min(best) for _, best in study["curves"].values())
    ax.set(xscale="log", ylim=(0.97 * least, 2 * least))
    low, high = ax.get_xlim()
    ticks = [place * step for place in 10.0 ** np.arange(-3, 6) for step in (1, 2, 5) if low <= place * step <= high]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)
    return dress(ax, title, "seconds of search, TVM's start not counted", "best kernel so far, ms")
