"""Pictures of training, of scores, and of numbers by collection: one function a picture, on `ax` if one is given.

No function shows or saves anything. Colours are Okabe and Ito's, which can be told apart with any colour vision,
and every colour comes with a mark of its own.
"""
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from kit.data import COLLECTIONS

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
STROKES = ("-", "--", ":")
QUIET = "0.6"                                # grey of what is context
DOTS_PER_INCH = 100                          # 8 inches are 800 pixels, a README's width


def new_axes(ax=None, height=4.0, width=8.0):
    """`ax`, or a new one of so many inches."""
    if ax is None:
        ax = plt.subplots(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")[1]
    return ax


def dress(ax, title, xlabel, ylabel, legend=True, grid="both"):
    """Labels, a light grid, and the legend right of the axes; says so where there is nothing to show."""
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.set_title(title, loc="left", fontsize="medium")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis=grid, color="0.92")
    ax.set_axisbelow(True)
    if legend and ax.get_legend_handles_labels()[1]:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")
    if not np.isfinite(ax.dataLim.get_points()).all():          # no point, or none that is a number
        ax.text(0.5, 0.5, "nothing to show", transform=ax.transAxes, ha="center", color=QUIET)
    return ax


def spaced(names, most):
    """Choose at most `most` of a list, evenly spaced, with both ends.

    Parameters
    ----------
    names : iterable
    most : int
        At least 2.

    Returns
    -------
    list

    Examples
    --------
    >>> spaced("abcdefg", 3)
    ['a', 'd', 'g']
    """
    names = list(names)
    if len(names) <= most:
        return names
    return [names[i] for i in np.linspace(0, len(names) - 1, most).round().astype(int)]


def shortened(name, most=30):
    """A name of at most `most` letters; what is left out is the middle."""
    return name if len(name) <= most else f"{name[:most - 9]}…{name[-8:]}"


def learning_curve(histories, value="score", ax=None, title=""):
    """Draw loss or validation score against steps: a thin line a seed, a thick one for their mean.

    Parameters
    ----------
    histories : dict of str to list of dict
        {model: one history of `kit.train.train` a seed}.
    value : str
        "score", with a dot at the step whose weights were kept, or "loss".
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
    """
    ax = new_axes(ax)
    for place, (label, seeds) in enumerate(histories.items()):
        colour = PALETTE[place % len(PALETTE)]
        by_step = {}
        for history in seeds:
            for step, y in zip(history["step"], history[value]):
                by_step.setdefault(step, []).append(y)
            if len(seeds) > 1:
                ax.plot(history["step"], history[value], color=colour, linewidth=0.7, alpha=0.6)
            kept = [i for i, step in enumerate(history["step"]) if step == history["best_step"]]
            if value == "score":
                ax.plot([history["step"][i] for i in kept], [history[value][i] for i in kept], linestyle="",
                        marker=MARKS[place % len(MARKS)], color=colour, markersize=5)
        steps = [step for step in sorted(by_step) if len(by_step[step]) == len(seeds)]      # reached by all
        count = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
        ax.plot(steps, [np.mean(by_step[step]) for step in steps], color=colour, linewidth=2,
                label=f"{label} ({count})")
    if value == "score":
        return dress(ax, title, "training step (mark: weights kept; thin: one seed)", "validation score")
    return dress(ax, title, "training step (thin: one seed)", f"training {value}")


def scores_with_intervals(rows, ceilings=None, ax=None, title=""):
    """Draw each model's score on each collection with its interval, beside what noise leaves to reach.

    Parameters
    ----------
    rows : sequence of (collection, model, score, low, high)
        `low` and `high` are the ends of an interval; NaN: none is drawn.
    ceilings : dict of str to float, optional
        {collection: noise ceiling}; NaN or absent: no mark.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
    """
    rows = list(rows)
    collections, models = (list(dict.fromkeys(row[i] for row in rows)) for i in (0, 1))
    ax = new_axes(ax, height=1.2 + len(collections) * (0.2 + 0.16 * len(models)))
    for place, model in enumerate(models):
        own = [row for row in rows if row[1] == model]
        y = [collections.index(row[0]) + 0.7 * ((place + 0.5) / len(models) - 0.5) for row in own]
        score, low, high = (np.array([row[i] for row in own], dtype=float) for i in (2, 3, 4))
        colour = PALETTE[place % len(PALETTE)]
        ax.hlines(y, low, high, color=colour, linewidth=1.5)
        ax.plot(score, y, linestyle="", marker=MARKS[place % len(MARKS)], color=colour, markersize=5, label=model)
    _ceiling_marks(ax, [(ceilings or {}).get(c, np.nan) for c in collections])
    _rows_of(ax, collections)
    return dress(ax, title, "score (1 is perfect; lines: intervals)", "collection", grid="x")


def per_graph_scores(scores, ceilings=None, ax=None, title="", most=30):
    """Draw the score of each model on each graph, with its range over seeds, beside what noise leaves to reach.

    Parameters
    ----------
    scores : dict of str to dict
        {model: {graph: score, or one score a seed}}, the model that matters first: graphs are sorted by its mean.
    ceilings : dict of str to float, optional
        {graph: noise ceiling}.
    ax : Axes, optional
    title : str
    most : int
        Graphs drawn; of more, an evenly spaced choice.

    Returns
    -------
    Axes
    """
    models = list(scores)
    every = sorted({g for model in models for g in scores[model]})
    every.sort(key=lambda g: np.nan_to_num(np.mean(scores[models[0]].get(g, np.nan)), nan=-np.inf))
    graphs = spaced(every, most)
    ax = new_axes(ax, height=max(1.9, 1.2 + 0.2 * len(graphs)))         # the legend needs the least
    for place, model in enumerate(models):
        values = [np.atleast_1d(scores[model].get(g, np.nan)) for g in graphs]
        colour = PALETTE[place % len(PALETTE)]
        ax.hlines(range(len(graphs)), [v.min() for v in values], [v.max() for v in values], color=colour, linewidth=1)
        ax.plot([v.mean() for v in values], range(len(graphs)), linestyle="", markersize=5,
                marker=MARKS[place % len(MARKS)], color=colour, alpha=0.85, label=model)
    _ceiling_marks(ax, [(ceilings or {}).get(g, np.nan) for g in graphs])
    _rows_of(ax, [shortened(g) for g in graphs], top_first=False)
    shown = "graph" if len(graphs) == len(every) else f"graph ({len(graphs)} of {len(every)})"
    return dress(ax, title, "score (1 is perfect; lines: range over seeds)", shown, grid="x")


def ensemble_gain(members, ensembles, ax=None, title=""):
    """Draw what ensembles score beside the models that they are made of.

    Parameters
    ----------
    members : dict of str to sequence of float
        {collection: score of each member}.
    ensembles : dict of str to dict
        {way to combine: {collection: score}}.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
    """
    collections = list(members)
    ax = new_axes(ax, height=1.2 + 0.45 * len(collections))
    points = [(score, y) for y, c in enumerate(collections) for score in members[c]]
    if points:
        ax.plot(*zip(*points), linestyle="", marker="|", markersize=11, color=QUIET, label="one member")
        ax.plot([np.mean(members[c]) if len(members[c]) else np.nan for c in collections], range(len(collections)),
                linestyle="", marker="o", markersize=5, color=QUIET, label="mean of the members")
    for place, (way, scores) in enumerate(ensembles.items()):
        y = np.arange(len(collections)) - 0.18 * (place + 1) / max(1, len(ensembles))       # above its members
        ax.plot([scores.get(c, np.nan) for c in collections], y, linestyle="", markersize=6,
                marker=MARKS[(place + 1) % len(MARKS)], color=PALETTE[place % len(PALETTE)], label=way)
    _rows_of(ax, collections)
    return dress(ax, title, "score (1 is perfect)", "collection", grid="x")


def collection_style(name):
    """Colour and mark of a collection, the same in every picture."""
    place = COLLECTIONS.index(name) if name in COLLECTIONS else len(COLLECTIONS)
    return {"color": PALETTE[place], "marker": MARKS[place]}


def graph_scatter(points, xlabel, ylabel, ratios=(), ax=None, title=""):
    """Draw a dot a graph on logarithmic axes, coloured by collection.

    Parameters
    ----------
    points : dict of str to ndarray, shapes (graphs, 2)
        {collection: x and y}. What is not > 0 has no place on such axes and is left out.
    xlabel, ylabel : str
        With units.
    ratios : sequence of (float, str)
        Lines y = ratio * x, and what they mean.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
    """
    ax = new_axes(ax)
    drawn = []
    for name, xy in points.items():
        xy = np.asarray(xy, dtype=float).reshape(-1, 2)
        xy = xy[(np.isfinite(xy) & (xy > 0)).all(axis=1)]
        if len(xy):
            drawn.append(xy)
            ax.plot(*xy.T, linestyle="", markersize=6, alpha=0.7, label=f"{name} ({len(xy)})", **collection_style(name))
    ax.set(xscale="log", yscale="log")
    if drawn:
        low, high = np.min(np.vstack(drawn), axis=0), np.max(np.vstack(drawn), axis=0)
        ends = np.array([low[0] / 1.5, high[0] * 1.5])
        for place, (ratio, meaning) in enumerate(ratios):
            ax.plot(ends, ratio * ends, color=QUIET, linestyle=STROKES[place % len(STROKES)], linewidth=1,
                    label=meaning)
        ax.set_xlim(ends)
        ax.set_ylim(min([low[1], *(r * low[0] for r, _ in ratios)]) / 1.5,
                    max([high[1], *(r * high[0] for r, _ in ratios)]) * 1.5)
        for axis, (start, stop) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
            # in a narrow range powers of ten alone would be too few labels
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if stop < 100 * start else (1,), numticks=8))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
    return dress(ax, title, xlabel, ylabel)


def collection_lines(lines, xlabel, ylabel, ax=None, title=""):
    """Draw a line a collection and variant: colours tell collections, solid and dashed tell variants.

    Parameters
    ----------
    lines : dict of (str, str) to ndarray, shape (2, points)
        {(collection, variant): x and y}.
    xlabel, ylabel : str
        With units.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
    """
    ax = new_axes(ax)
    variants = list(dict.fromkeys(variant for _, variant in lines))
    for (name, variant), (x, y) in lines.items():
        place = variants.index(variant)
        ax.plot(x, y, linestyle=STROKES[place % len(STROKES)], markersize=5, label=None if place else name,
                **collection_style(name))
    for place, variant in enumerate(variants if len(variants) > 1 else ()):
        ax.plot([], [], color=QUIET, linestyle=STROKES[place % len(STROKES)], label=variant)
    return dress(ax, title, xlabel, ylabel)


def _ceiling_marks(ax, values):
    """A black bar a row, where there is a value."""
    y = np.flatnonzero(np.isfinite(np.asarray(values, dtype=float)))
    if len(y):
        ax.plot(np.asarray(values)[y], y, linestyle="", marker="|", markersize=12, markeredgewidth=2, color="black",
                label="noise ceiling")


def _rows_of(ax, names, top_first=True):
    ax.set_yticks(range(len(names)), names, fontsize="small")
    bottom, top = -0.6, len(names) - 0.4
    ax.set_ylim(*((top, bottom) if top_first and names else (bottom, max(top, 0.4))))
