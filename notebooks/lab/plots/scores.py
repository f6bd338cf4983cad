"""Pictures of training and of scores."""
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from lab.plots.style import (
    QUIET,
    dress,
    literal,
    model_styles,
    name_rows,
    new_axes,
    row_marks,
    series_style,
    shortened,
    spaced,
)


def learning_curve(histories, ax=None, title=""):
    """Draw validation scores against seconds of training: a thin line per seed, a thick line for their mean.

    `histories`: {model: one history of `kit.train.train` per seed}. A mark is at the step whose weights were kept. All
    steps of a training count as equally long.
    """
    ax, styles = new_axes(ax), model_styles([*histories])
    for label, seeds in histories.items():
        style, by_step = styles[label], {}
        for history in seeds:
            seconds = [history["seconds"] * step / max(history["step"][-1], 1) for step in history["step"]]
            for step, *point in zip(history["step"], seconds, history["score"]):
                by_step.setdefault(step, []).append(point)
            if len(seeds) > 1:
                ax.plot(seconds, history["score"], color=style["color"], linewidth=0.7, alpha=0.6)
            kept = [i for i, step in enumerate(history["step"]) if step == history["best_step"]]
            ax.plot([seconds[i] for i in kept], [history["score"][i] for i in kept], linestyle="", markersize=5,
                    **style)
        means = [np.mean(by_step[step], axis=0) for step in sorted(by_step) if len(by_step[step]) == len(seeds)]
        ax.plot(*np.reshape(means, (-1, 2)).T, color=style["color"], linewidth=2,
                label=f"{label} ({len(seeds)} seed{'s' * (len(seeds) > 1)})")
    return dress(ax, title, "seconds of training (mark: weights kept; thin: one seed)", "validation score")


def learning_curves(histories, title=""):
    """Draw the learning curves of all models, with one picture for each set of collections that they learned from.

    `histories`: {what was learned from: {kind: one history of `kit.train.train` per training}}. Returns the axes.
    """
    rows = -(-len(histories) // 2)
    figure, axes = plt.subplots(max(rows, 1), 2, figsize=(8, 0.5 + 2.2 * max(rows, 1)), dpi=100, layout="constrained",
                                sharey=True, squeeze=False)
    axes = [*axes.flat]
    for ax, (name, own) in zip(axes, histories.items()):
        learning_curve(own, ax, name)
        ax.get_legend().remove()
        ax.set(xlabel="seconds of training", ylabel="validation score" if ax in axes[::2] else "")
        ax.title.set_fontsize("small")
    for ax in axes[len(histories):]:
        ax.set_axis_off()
    kinds = dict.fromkeys(kind for own in histories.values() for kind in own)
    marks = [Line2D([], [], label=literal(kind), **style) for kind, style in model_styles([*kinds]).items()]
    figure.legend(handles=marks, loc="outside lower center", ncols=max(len(marks), 1), frameon=False, fontsize="small")
    figure.suptitle(literal(title), x=0.01, ha="left", fontsize="medium")
    return axes[:len(histories)]


def scores_with_intervals(rows, ceilings=None, ax=None, title=""):
    """Draw the score of each model on each collection with its interval, beside the noise ceiling.

    `rows`: (collection, model, score, low, high), or a DataFrame of `lab.scores.score_table`; where the ends of the
    interval are NaN, no interval is drawn. `ceilings`: {collection: noise ceiling}; NaN or absent: no mark.
    """
    if hasattr(rows, "columns"):
        ceilings = rows.groupby("collection")["ceiling"].first().to_dict() if "ceiling" in rows else None
        rows = rows[["collection", "model", "score", "low", "high"]].itertuples(index=False)
    rows, bottom, blocks = list(rows), 0, {}
    collections, models = (list(dict.fromkeys(row[i] for row in rows)) for i in (0, 1))
    placed = []                                        # (place of the row, row); a block of rows per collection
    for c in collections:
        own = sorted((row for row in rows if row[0] == c), key=lambda row: models.index(row[1]))
        placed += list(enumerate(own, bottom))
        blocks[c] = bottom - 0.5, bottom + len(own) - 0.5
        bottom += len(own) + 1
    ax, styles = new_axes(ax, height=1.2 + 0.18 * bottom), model_styles(models)
    for low, high in list(blocks.values())[1::2]:
        ax.axhspan(low - 0.5, high + 0.5, color="0.96", zorder=0)
    for model in models:
        y, own = zip(*[(place, row) for place, row in placed if row[1] == model])
        score, low, high = (np.array([row[i] for row in own], dtype=float) for i in (2, 3, 4))
        style = styles[model]
        ax.hlines(y, low, high, color=style["color"], linewidth=1.5)
        ax.plot(score, y, linestyle="", markersize=5, label=model, **style)
    known = [c for c in collections if np.isfinite((ceilings or {}).get(c, np.nan))]
    for i, c in enumerate(known):
        ax.plot([ceilings[c]] * 2, blocks[c], color="black", linewidth=2, label="" if i else "noise ceiling")
    ax.set_yticks([np.mean(blocks[c]) for c in collections], [*map(literal, collections)], fontsize="small")
    ax.set_ylim(max(bottom, 1) - 0.5, -1.0)
    return dress(ax, title, "score (1 is perfect; lines: intervals)", "collection", grid="x")


def leads_with_intervals(rows, ax=None, title="", xlabel="lead in score", ylabel="collection"):
    """Draw differences between models with their intervals, beside a line at 0.

    `rows`: (collection, model, difference, low, high), or a DataFrame of `lab.scores.score_table` with leads.
    """
    if hasattr(rows, "columns"):
        rows = rows[["collection", "model", "lead", "lead low", "lead high"]].itertuples(index=False)
    ax = scores_with_intervals(rows, ax=ax, title=title)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.locator_params(axis="x", nbins=6)
    ax.set(xlabel=literal(xlabel), ylabel=literal(ylabel))
    return ax


def per_graph_scores(scores, ceilings=None, ax=None, title="", most=30):
    """Draw the score of each model on each graph, with its range over several seeds, beside the noise ceiling.

    `scores`: {model: {graph: one score, or one score per seed}}; the graphs are sorted by the mean of the first model.
    A graph is its ID or its name. The marks of a graph stand below each other, so that none hides another.
    `ceilings`: {graph: noise ceiling}. Of more than `most` graphs, an evenly spaced choice is drawn.
    """
    models = list(scores)
    every = sorted({g for model in models for g in scores[model]})
    every.sort(key=lambda g: np.nan_to_num(np.mean(scores[models[0]].get(g, np.nan)), nan=-np.inf))
    graphs = spaced(every, most)
    # the legend needs 1.9; a mark, 0.07
    ax = new_axes(ax, height=max(1.9, 1.2 + max(0.2, 0.07 * len(models)) * len(graphs)))
    styles = model_styles(models)
    for place, model in enumerate(models):
        values = [np.atleast_1d(scores[model].get(g, np.nan)) for g in graphs]
        style, y = styles[model], np.arange(len(graphs)) + 0.7 * (0.5 - (place + 0.5) / len(models))
        ax.hlines(y, [v.min() for v in values], [v.max() for v in values], color=style["color"], linewidth=1)
        ax.plot([v.mean() for v in values], y, linestyle="", markersize=5, alpha=0.85, label=model, **style)
    row_marks(ax, [(ceilings or {}).get(g, np.nan) for g in graphs], "noise ceiling")
    name_rows(ax, [shortened(g.rpartition(":")[2]) for g in graphs], top_first=False)
    shown = "graph" if len(graphs) == len(every) else f"graph ({len(graphs)} of {len(every)})"
    several = any(np.size(score) > 1 for own in scores.values() for score in own.values())
    return dress(ax, title, "score (1 is perfect" + "; lines: range over seeds)" * several + ")" * (not several), shown,
                 grid="x")


def rank_agreement(agreement, title=""):
    """Draw how alike the kinds of models order the configurations, with one square of numbers per collection.

    `agreement`: {collection: (kinds, matrix (k, k) of Kendall's tau between their costs)}; on the diagonal, between two
    seeds of a kind, or NaN. Returns the axes.
    """
    shown = {c: own for c, own in agreement.items() if len(own[0]) > 1}
    rows = -(-len(shown) // 2)
    figure, axes = plt.subplots(max(rows, 1), 2, figsize=(8, 0.4 + 2.6 * max(rows, 1)), dpi=100, layout="constrained",
                                squeeze=False)
    axes = [*axes.flat]
    for ax, (collection, (kinds, matrix)) in zip(axes, shown.items()):
        ax.imshow(matrix, cmap="Blues", vmin=0, vmax=1.6, interpolation="none")      # dark text on all
        for y, x in np.argwhere(np.isfinite(matrix)):
            ax.text(x, y, f"{matrix[y, x]:.2f}", ha="center", va="center", fontsize="small")
        ax.set_xticks(range(len(kinds)), [*map(literal, kinds)], fontsize="small", rotation=30, ha="right")
        ax.set_yticks(range(len(kinds)), [*map(literal, kinds)], fontsize="small")
        ax.set_title(literal(collection), loc="left", fontsize="small")
    for ax in axes[len(shown):]:
        ax.set_axis_off()
    figure.suptitle(literal(title), x=0.01, ha="left", fontsize="medium")
    return axes[:len(shown)]


def validation_against_leaderboard(points, ax=None, title=""):
    """Draw the leaderboard scores of submissions against their validation scores, in the order of the submissions.

    `points`: (label, validation, low, high, public, private) per submission; where the ends of the interval are NaN, no
    interval is drawn; a leaderboard score of None is not known yet. A line joins the submissions in order, and the
    label stands beside each one. On the dashed line, both scores are equal.
    """
    points, ax = list(points), new_axes(ax, height=4.5)
    for place, name in enumerate(("public", "private")):
        own = [(label, x, low, high, ends[place]) for label, x, low, high, *ends in points if ends[place] is not None]
        if not own:
            continue
        labels, x, low, high, y = zip(*own)
        style = series_style(place)
        ax.hlines(y, low, high, color=style["color"], linewidth=1, alpha=0.6)
        ax.plot(x, y, linestyle=("-", ":")[place], linewidth=0.8, markersize=7, markeredgecolor="white",
                label=f"{name} score", **style)
        for label, *at in zip(labels, x, y):
            ax.annotate(literal(label), at, xytext=(5, (6, -13)[place]), textcoords="offset points",
                        fontsize="small", color=style["color"])
    if ax.has_data():
        ax.axline((0, 0), slope=1, color=QUIET, linestyle="--", linewidth=1, label="equal", zorder=0)
        seen = np.array([[x, y] for _, x, _, _, *ends in points for y in ends if y is not None], dtype=float)
        ends = np.array([point[2:4] for point in points], dtype=float)
        for axis, values in (("x", np.append(seen[:, 0], ends[np.isfinite(ends)])), ("y", seen[:, 1])):
            room = max(0.1 * np.ptp(values), 0.01)
            ax.set(**{f"{axis}lim": (values.min() - room, values.max() + room)})
    return dress(ax, title, "validation: mean of the collections (lines: 95% intervals; numbers: order of submission)",
                 "leaderboard score")
