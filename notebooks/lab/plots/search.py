"""Pictures of searches: how much faster than the compiler's default what they find is."""
import numpy as np

from lab.plots.style import QUIET, collection_style, dress, model_styles, new_axes


def speed_up_curves(rows, ax=None, title=""):
    """Draw how much faster than the compiler's default searches end, against the number of measurements.

    `rows`: as from `lab.studies.search_tables.speed_up_rows`, of one kind of "measured". Searches with a model are
    solid lines with their interval shaded, random ones dashed.
    """
    ax = new_axes(ax, height=4.5, width=9.0)
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


def speed_up_by_search(table, strategies, budget=30, ax=None, title=""):
    """Draw the speed-up over the compiler's default that searches reach on each program, with its 95% interval.

    `table`: a pandas DataFrame with a row per program, strategy and budget, as of `lab.studies.true_searches`.
    """
    chosen = table[table["budget"] == budget]
    order = chosen[chosen["strategy"] == strategies[-1]].sort_values("speedup")["program"].tolist()
    ax, styles = new_axes(ax, height=1.5 + 0.35 * len(order), width=9.0), model_styles(strategies)
    ax.axvline(1, color=QUIET, linewidth=1, linestyle=":")
    for number, name in enumerate(strategies):
        own = chosen[chosen["strategy"] == name].set_index("program").loc[order]
        y = np.arange(len(order)) + 0.22 * (number - (len(strategies) - 1) / 2)
        ax.hlines(y, own["low"], own["high"], color=styles[name]["color"], linewidth=1.5)
        ax.plot(own["speedup"], y, linestyle="none", label=name, **styles[name])
    ax.set_yticks(range(len(order)), order)
    return dress(ax, title, f"speed-up over the compiler's default with {budget} measurements", "program")
