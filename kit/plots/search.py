"""Pictures of searches: what is left to gain after so many measurements."""
import numpy as np

from kit.plots.scores import MARKS, PALETTE, QUIET, dress, new_axes

LEAST_SHOWN = 1e-3         # slowdown; a straight scale below, a logarithmic one above


def regret_curves(regret, budgets, guided=(), noise=None, bands=None, ax=None, title=""):
    """Draw how much slower than the best the found configuration is, against the measurements spent.

    Parameters
    ----------
    regret : dict of str to ndarray, shape (runs, budgets)
        {strategy: slowdown of the best measured, 0.1 = 10%}; NaN: not run with that budget.
    budgets : sequence of int
        Measurements.
    guided : collection of str
        Strategies that a model guides: filled marks on a solid line, the others hollow ones on a dashed line.
    noise : float, optional
        Relative noise of what a file measured, a grey line: there, what lies below could not be told apart.
    bands : collection of str, optional
        Strategies whose quartiles are drawn; None: of all.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
    """
    ax, budgets, places = new_axes(ax, height=4.5, width=9.0), np.asarray(budgets, dtype=float), {True: 0, False: 0}
    for name, runs in regret.items():
        runs = np.asarray(runs, dtype=float).reshape(-1, len(budgets))
        known = np.isfinite(runs).all(axis=0) & (len(runs) > 0)
        place, solid = places[name in guided], name in guided
        places[solid] += 1
        if known.any():
            low, middle, high = np.quantile(runs[:, known], (0.25, 0.5, 0.75), axis=0)
            colour = PALETTE[place % len(PALETTE)]
            if bands is None or name in bands:
                ax.fill_between(budgets[known], low, high, color=colour, alpha=0.15, linewidth=0)
            ax.plot(budgets[known], middle, color=colour, linestyle="-" if solid else "--",
                    markersize=max(9 - 1.5 * place, 4),                    # of equal curves the first still shows
                    linewidth=2 if solid else 1.2, marker=MARKS[place % len(MARKS)], label=name,
                    markerfacecolor=colour if solid else "white")
    if noise is not None and np.isfinite(noise) and regret:
        ax.axhline(noise, color=QUIET, linewidth=1, linestyle=":", label="noise of a file's measurement")
    ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=LEAST_SHOWN)
    ax.set_ylim(bottom=0)
    ax.set_xticks(budgets, [f"{b:g}" for b in budgets])
    ax.minorticks_off()
    ax.yaxis.set_major_formatter(lambda y, _: f"{100 * y:g}%")
    return dress(ax, title, "measurements", "slower than the best known\n(median; shaded: quartiles)")
