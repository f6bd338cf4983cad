"""The look that all pictures share: colours, marks, axes, labels.

Colours are those of Okabe and Ito, which people with any colour vision can tell apart. Every colour comes with a mark
of its own. No function of this wing shows or saves a picture.
"""
import matplotlib.pyplot as plt
import numpy as np

from kit.data import COLLECTIONS

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")       # not as many as colours: their pairs repeat only after 63
STROKES = ("-", "--", ":")
QUIET = "0.6"                                # grey for context
MODELS = {                                   # colour and mark of each model; black is the noise ceiling
    "ensemble": ("#0072B2", "o"), "token": ("#D55E00", "s"), "gnn": ("#009E73", "^"), "ridge": ("#CC79A7", "D"),
    "frequency": ("#E69F00", "v"), "GNN without edges": ("#56B4E9", "P"),
    "tile": ("#332288", "<"), "compiler's default": ("#777777", ">"), "random": ("#999933", "d"),
    "by hand": ("#661100", "h"), "lightgbm": ("#A6761D", "p"), "additive": ("#AA4499", "8"),
    "count of deviations": ("#44AA99", "*"), "default first": ("#BBBBBB", "1"),
    "ridge on its own half": ("#117733", "H"),
}
_ALSO = {"recipe": "ensemble", "config-token model": "token", "ConfigTokenModel": "token", "GNN": "gnn",
         "LightGBM": "lightgbm", "BoostedTrees": "lightgbm", "tile model": "tile", "random five": "random",
         "random order": "random", "GNN-without-edges": "GNN without edges"}


def new_axes(ax=None, height=4.0, width=8.0):
    """`ax`, or new axes of this size in inches."""
    if ax is None:               # 8 inches are 800 pixels, the width of a README
        ax = plt.subplots(figsize=(width, height), dpi=100, layout="constrained")[1]
    return ax


def dress(ax, title, xlabel, ylabel, grid="both"):
    """Add labels, a light grid, and a legend to the right; write "nothing to show" if there is no data."""
    ax.set(xlabel=literal(xlabel), ylabel=literal(ylabel))
    ax.set_title(literal(title), loc="left", fontsize="medium")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis=grid, color="0.92")
    ax.set_axisbelow(True)
    handles, labels = ax.get_legend_handles_labels()
    if labels:
        ax.legend(handles, [*map(literal, labels)], loc="upper left", bbox_to_anchor=(1, 1), frameon=False,
                  fontsize="small")
    if not np.isfinite(ax.dataLim.get_points()).all():          # no point, or only NaN
        ax.text(0.5, 0.5, "nothing to show", transform=ax.transAxes, ha="center", color=QUIET)
    return ax


def series_style(place):
    """Colour and mark of the series number `place` of a picture."""
    return {"color": PALETTE[place % len(PALETTE)], "marker": MARKS[place % len(MARKS)]}


def collection_style(name):
    """Colour and mark of a collection, the same in every picture."""
    return series_style(COLLECTIONS.index(name) if name in COLLECTIONS else len(COLLECTIONS))


def model_styles(names):
    """Colour and mark of each model of a picture; those of `MODELS` look the same in every picture, as collections do.

    Other names get the colours and marks that no named model of the picture has, but never black.

    >>> model_styles(["token", "my model"])["token"]
    {'color': '#D55E00', 'marker': 's'}
    """
    styles = {n: dict(zip(("color", "marker"), MODELS[_ALSO.get(n, n)])) for n in names if _ALSO.get(n, n) in MODELS}
    styles |= {name: collection_style(name) for name in names if name in COLLECTIONS}
    taken = {value for style in styles.values() for value in style.values()}
    colours = [c for c in dict.fromkeys([*PALETTE[:-1], *(c for c, _ in MODELS.values())]) if c not in taken] or [QUIET]
    marks = [mark for mark in MARKS if mark not in taken] or MARKS
    for place, name in enumerate(name for name in names if name not in styles):
        styles[name] = {"color": colours[place % len(colours)], "marker": marks[place % len(marks)]}
    return styles


def name_rows(ax, names, top_first=True, size="small"):
    """Make the y axis a list of names, one row per name."""
    ax.set_yticks(range(len(names)), [*map(literal, names)], fontsize=size)
    bottom, top = -0.6, len(names) - 0.4
    ax.set_ylim(*((top, bottom) if top_first and names else (bottom, max(top, 0.4))))


def row_marks(ax, values, label):
    """A black bar in each row that has a value: a noise ceiling, or the noise of one measurement."""
    marks = [(value, y) for y, value in enumerate(values) if np.isfinite(value)]
    if marks:
        ax.plot(*zip(*marks), linestyle="", marker="|", markersize=12, markeredgewidth=2, color="black", label=label)


def literal(text):
    """A text that matplotlib shows letter by letter: two `$` in the name of a file enclose no formula.

    >>> literal("a$b$")
    'a\\\\$b\\\\$'
    """
    return str(text).replace("$", r"\$")


def spaced(names, most):
    """Choose at most `most` (at least 2) of a list, evenly spaced, with both ends.

    >>> spaced("abcdefg", 3)
    ['a', 'd', 'g']
    """
    names = list(names)
    if len(names) <= most:
        return names
    return [names[i] for i in np.linspace(0, len(names) - 1, most).round().astype(int)]


def shortened(name, most=30):
    """A name of at most `most` letters; the middle of a longer name is left out."""
    return name if len(name) <= most else f"{name[:most - 9]}…{name[-8:]}"
