"""Pictures of searches: how far from the best the found configuration is, per budget of measurements."""
import numpy as np

from lab.plots.style import QUIET, collection_style, dress, model_styles, new_axes

_LINEAR_BELOW = 1e-3       # slowdown; the scale is linear below and logarithmic above


def regret_curves(regret, budgets, guided=(), noise=None, bands=None, ax=None, title=""):
    """Draw how much slower than the best the found configuration is, against the number of measurements.

    `regret`: {strategy: slowdown (runs, budgets) of the best configuration measured, 0.1 = 10%}; NaN: not run with
    this budget. Strategies in `guided` (by a model) have filled marks on a solid line, others hollow marks on a dashed
    line. `noise`: relative noise of one measurement, a grey line; smaller differences cannot be measured. `bands`: the
    strategies whose quartiles are drawn; None: all. A strategy looks the same with a model and without.
    """
    ax, budgets, places = new_axes(ax, height=4.5, width=9.0), np.asarray(budgets, dtype=float), {True: 0, False: 0}
    styles = model_styles([*dict.fromkeys(name.removeprefix("model, ") for name in regret)])
    for name, runs in regret.items():
        runs = np.asarray(runs, dtype=float).reshape(-1, len(budgets))
        known = np.isfinite(runs).all(axis=0) & (len(runs) > 0)
        place, solid = places[name in guided], name in guided
        places[solid] += 1
        if known.any():
            low, middle, high = np.quantile(runs[:, known], (0.25, 0.5, 0.75), axis=0)
            style = styles[name.removeprefix("model, ")]
            if bands is None or name in bands:
                ax.fill_between(budgets[known], low, high, color=style["color"], alpha=0.15, linewidth=0)
            ax.plot(budgets[known], middle, linestyle="-" if solid else "--", linewidth=2 if solid else 1.2, label=name,
                    markersize=max(9 - 1.5 * place, 4),                    # under an equal curve the first still shows
                    markerfacecolor=style["color"] if solid else "white", **style)
    if noise is not None and np.isfinite(noise) and regret:
        ax.axhline(noise, color=QUIET, linewidth=1, linestyle=":", label="noise of a file's measurement")
    ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=_LINEAR_BELOW)
    ax.set_ylim(bottom=0)
    ax.set_xticks(budgets, [f"{b:g}" for b in budgets])
    ax.minorticks_off()
    high = ax.get_ylim()[1]
    ax.set_yticks([y for y in (0, 0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1000) if y <= max(high, 0.001)])
    ax.yaxis.set_major_formatter(lambda y, _: f"{100 * y:g}%")
    return dress(ax, title, "measurements", "slower than the best known\n(median; shaded: quartiles)")


def speed_up_curves(rows, ax=None, title=""):
    """Draw how much faster than the compiler's default searches end, against the number of measurements.

    `rows`: as from `lab.studies.search_tables.speed_up_rows`, of one kind of "measured". Searches with a model are
    solid lines with their interval shaded, random ones dashed. The grey band is the gain of 10 to 20% that the paper of
    the data set reports for an autotuner on production models.
    """
    ax = new_axes(ax, height=4.5, width=9.0)
    if rows:
        ax.axhspan(1.1, 1.2, color="0.9", label="autotuner on production\nmodels (paper)")
    budgets = sorted({row["budget"] for row in rows})
    for collection, search in dict.fromkeys((row["collection"], row["search"]) for row in rows):
        own = [row for row in rows if (row["collection"], row["search"]) == (collection, search)]
        names = "budget", "speed-up", "low", "high"
        x, y, low, high = np.array([[row[name] for row in own] for name in names], float)
        style, solid = collection_style(collection), search != "random"
        if solid:
            ax.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
        ax.plot(x, y, linestyle="-" if solid else "--", linewidth=2 if solid else 1.2, label=f"{collection}, {search}",
                markerfacecolor=style["color"] if solid else "white", **style)
    ax.set_xscale("log")
    ax.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    ax.minorticks_off()
    return dress(ax, title, "measurements", "runtime of the compiler's default\n/ runtime of the best measured")
