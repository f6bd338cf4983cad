"""Pictures of training and of scores."""
import numpy as np

from kit.data import COLLECTIONS
from lab.plots.style import (
    MARKS,
    MODELS,
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


def scores_with_intervals(rows, ceilings=None, ax=None, title=""):
    """Draw the score of each model on each collection with its interval, beside the noise ceiling.

    `rows`: (collection, model, score, low, high); where the ends of the interval are NaN, no interval is drawn.
    `ceilings`: {collection: noise ceiling}; NaN or absent: no mark.
    """
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


def per_graph_scores(scores, ceilings=None, ax=None, title="", most=30):
    """Draw the score of each model on each graph, with its range over several seeds, beside the noise ceiling.

    `scores`: {model: {graph: one score, or one score per seed}}; the graphs are sorted by the mean of the first model.
    `ceilings`: {graph: noise ceiling}. Of more than `most` graphs, an evenly spaced choice is drawn.
    """
    models = list(scores)
    every = sorted({g for model in models for g in scores[model]})
    every.sort(key=lambda g: np.nan_to_num(np.mean(scores[models[0]].get(g, np.nan)), nan=-np.inf))
    graphs = spaced(every, most)
    ax = new_axes(ax, height=max(1.9, 1.2 + 0.2 * len(graphs)))         # the legend needs 1.9
    styles = model_styles(models)
    for model in models:
        values = [np.atleast_1d(scores[model].get(g, np.nan)) for g in graphs]
        style, y = styles[model], range(len(graphs))
        ax.hlines(y, [v.min() for v in values], [v.max() for v in values], color=style["color"], linewidth=1)
        ax.plot([v.mean() for v in values], y, linestyle="", markersize=5, alpha=0.85, label=model, **style)
    row_marks(ax, [(ceilings or {}).get(g, np.nan) for g in graphs], "noise ceiling")
    name_rows(ax, [shortened(g) for g in graphs], top_first=False)
    shown = "graph" if len(graphs) == len(every) else f"graph ({len(graphs)} of {len(every)})"
    several = any(np.size(score) > 1 for own in scores.values() for score in own.values())
    return dress(ax, title, "score (1 is perfect" + "; lines: range over seeds)" * several + ")" * (not several), shown,
                 grid="x")


def ensemble_gain(members, ensembles, weights=None, ax=None, title=""):
    """Draw the scores of ensembles beside the scores of their members.

    `members`: {collection: score of each member}. `ensembles`: {way to combine: {collection: score}}. `weights`:
    {collection: weight of each member} of the mean that is drawn of the members' scores; None: equal weights.
    """
    collections = list(members)
    ax = new_axes(ax, height=1.2 + 0.45 * len(collections))
    points = [(score, y) for y, c in enumerate(collections) for score in members[c]]
    if points:
        ax.plot(*zip(*points), linestyle="", marker="|", markersize=11, color=QUIET, label="score of one member")
        means = [np.average(members[c], weights=weights and weights[c]) if len(members[c]) else np.nan
                 for c in collections]
        label = "mean of these scores,\nweighted as the ensemble" if weights else "mean of these scores"
        ax.plot(means, range(len(collections)), linestyle="", marker="o", markersize=5, color=QUIET, label=label)
    for place, (way, scores) in enumerate(ensembles.items()):
        y = np.arange(len(collections)) - 0.18 * (place + 1) / max(1, len(ensembles))       # above its members
        style = {"color": MODELS["ensemble"][0], "marker": MARKS[(place + 1) % len(MARKS)]}     # members have the first
        ax.plot([scores.get(c, np.nan) for c in collections], y, linestyle="", markersize=6, label=way,
                markerfacecolor=("white", style["color"])[place % 2], **style)
    name_rows(ax, collections)
    return dress(ax, title, "score (1 is perfect)", "collection", grid="x")


def rank_agreement(table, ax=None, title=""):
    """Draw how alike pairs of models order the configurations: a cell with a number per pair and collection.

    `table`: {pair of models: {collection: Kendall's tau between their costs}}; a collection without a pair has a grey
    cell.
    """
    found = dict.fromkeys(c for by_collection in table.values() for c in by_collection)
    columns = [*filter(found.__contains__, COLLECTIONS), *(c for c in found if c not in COLLECTIONS)]
    ax = new_axes(ax, height=1.3 + 0.27 * len(table))
    if table:
        values = np.array([[own.get(c, np.nan) for c in columns] for own in table.values()], dtype=float)
        ax.imshow(values, cmap="Blues", vmin=0, vmax=1.6, aspect="auto", interpolation="none")      # dark text on all
        ax.set_facecolor("0.88")                 # of an empty cell
        ax.update_datalim([(-0.5, -0.5), (len(columns) - 0.5, len(table) - 0.5)])
        for y, x in np.argwhere(np.isfinite(values)):
            ax.text(x, y, f"{values[y, x]:.2f}", ha="center", va="center", fontsize="small")
    ax.set_xticks(range(len(columns)), [*map(literal, columns)], fontsize="small")
    name_rows(ax, list(table))
    ax.set_ylim(max(len(table), 1) - 0.5, -0.5)
    dress(ax, title, "collection", "two models")
    ax.grid(False)
    return ax


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
