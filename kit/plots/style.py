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


def name_rows(ax, names, top_first=True):
    """Make the y axis a list of names, one row per name."""
    ax.set_yticks(range(len(names)), [*map(literal, names)], fontsize="small")
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
