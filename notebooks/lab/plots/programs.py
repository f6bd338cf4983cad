"""Pictures of the data: its graphs, operations, runtimes and configurations."""
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.ticker import LogLocator, NullFormatter

from lab.plots.style import (
    PALETTE,
    QUIET,
    STROKES,
    collection_style,
    dress,
    literal,
    name_rows,
    new_axes,
    row_marks,
    shortened,
    spaced,
)

_MARK_OF = (("convolution", "o"), ("dot", "s"), ("reshape", "^"))      # the configurable operations
_WIDE = 26.0                  # width of a drawn graph; a node is about 0.6 wide
_DARK = (0, 1, 2)             # colours of the palette on which white text is easier to read than black
_GROUPS = [*PALETTE[:-1], *(tuple(0.4 * part + 0.6 for part in to_rgb(colour)) for colour in PALETTE[:-1])]


def opcode_shares(counts, names, most=15, ax=None, title=""):
    """Draw the share of each of the most frequent operations in the nodes of each collection.

    `counts`: {collection: nodes with each opcode number}. `names`: `kit.data.OPCODE_NAMES`. `most` operations are
    drawn: those with the largest mean share over collections.
    """
    shares = {c: np.asarray(n) / np.sum(n) for c, n in counts.items() if np.sum(n)}
    mean = np.mean(list(shares.values()), axis=0) if shares else np.zeros(len(names))
    top = [i for i in np.argsort(-mean, kind="stable")[:most] if mean[i] > 0]
    ax = new_axes(ax, height=1.2 + 0.24 * len(top))
    for name, share in shares.items():
        ax.plot(100 * share[top], range(len(top)), linestyle="", markersize=6, alpha=0.8, label=name,
                **collection_style(name))
    ax.set_yticks(range(len(top)), [names[i] for i in top])
    ax.invert_yaxis()
    return dress(ax, title, "share of all nodes (%)", "operation")


def runtime_spread(graphs, most=8, ax=None, title=""):
    """Draw how much slower than the best configuration of each graph its other configurations are.

    `graphs`: rows of a catalogue as {column: value} with `collection`, `name`, `noise` and the five quantiles of the
    runtime (see `kit.prepare.COLUMNS`). A graph without runtimes, or with equal ones, is left out. Of more than `most`
    graphs per collection, an evenly spaced choice in the order of their medians is drawn. The thick line is the middle
    half of the configurations, the thin line goes on to the slowest one, and the mark is the median.
    """
    excess = {}
    for graph in graphs:
        if graph["shortest"] is not None and graph["shortest"] < graph["longest"]:
            others = np.array([graph[name] for name in ("quarter", "median", "three_quarters", "longest")])
            excess.setdefault(graph["collection"], []).append((others / graph["shortest"] - 1, graph))
    rows = [row for found in excess.values() for row in spaced(sorted(found, key=lambda row: row[0][1]), most)]
    least = min((x[x > 0].min() for x, _ in rows), default=0)              # 0 has no place on a logarithmic axis
    ax = new_axes(ax, height=1.3 + 0.2 * len(rows))
    for y, (x, graph) in enumerate(rows):
        collection = graph["collection"]
        style = collection_style(collection)
        quarter, median, three, longest = np.maximum(x, least)
        ax.hlines(y, quarter, longest, color=style["color"], linewidth=0.8)
        ax.hlines(y, quarter, three, color=style["color"], linewidth=4, alpha=0.5)
        label = collection if y == 0 or rows[y - 1][1]["collection"] != collection else None
        ax.plot(median, y, linestyle="", markersize=6, label=label, **style)
    row_marks(ax, [graph["noise"] or np.nan for _, graph in rows], "noise of one\nmeasurement,\nshare of runtime")
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(numticks=6))          # more labels would overlap
    ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    ax.xaxis.set_minor_formatter(NullFormatter())
    name_rows(ax, [shortened(graph["name"], 48) for _, graph in rows], size="x-small")
    return dress(ax, title, "slower than the graph's best configuration by", "graph")


def graph_scatter(points, xlabel, ylabel, ratios=(), ax=None, title=""):
    """Draw one dot per graph on logarithmic axes, coloured by collection.

    `points`: {collection: x and y (graphs, 2)}; a point with a value that is not > 0 is left out. `ratios`: (ratio,
    label) of lines y = ratio * x. The labels of the axes name the units.
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
            # a narrow range needs more labels than the powers of ten
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if stop < 100 * start else (1,), numticks=8))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
    return dress(ax, title, xlabel, ylabel)


def collection_lines(lines, xlabel, ylabel, ax=None, title=""):
    """Draw one line per collection and variant: the colour is the collection, the stroke is the variant.

    `lines`: {(collection, variant): x and y (2, points)}. The labels of the axes name the units.
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


def program_graph(graph, nodes, names, most=200, ax=None, title="", amounts=None, unit="", meetings=()):
    """Draw part of a layout graph from its inputs (left) to its outputs (right).

    `graph` is not pruned, because depths are counted along all edges. `nodes` (j,): the nodes to draw, such as
    `kit.prune.k_hop_nodes` returns; beyond `most` nodes the deepest are left out. `names`: `kit.data.OPCODE_NAMES`.
    Configurable nodes show the number of their group. The twelve groups with most nodes in the picture have a colour;
    or each configurable node is coloured by its value in `amounts` (nc,), such as `Explanation.by_node`, in `unit`.
    `meetings` (p, 2): pairs of positions in node_config_ids, such as `Meetings.ends`; a dotted line joins each pair.
    """
    depth = _depths(graph.edge_index, len(graph.node_feat), nodes)
    nodes = np.asarray(nodes)[np.argsort(depth[nodes], kind="stable")][:most]
    place = np.full(len(graph.node_feat), -1)
    place[nodes] = np.arange(len(nodes))
    edges = place[graph.edge_index]
    edges = edges[(edges >= 0).all(axis=1)]
    ax = new_axes(ax, height=4.8)
    group = np.full(len(graph.node_feat), -1)
    group[graph.node_config_ids] = graph.node_group
    group, opcode = group[nodes], np.asarray(names)[graph.node_opcode[nodes]]
    plain = group < 0
    xy = _positions(depth[nodes], edges, ~plain)
    ax.add_collection(LineCollection(xy[edges], colors="0.75", linewidths=0.8, zorder=1))
    ax.plot(*xy[plain].T, linestyle="", marker="o", markersize=4, color=QUIET, label="not configurable")
    met = place[graph.node_config_ids[np.asarray(meetings, dtype=int).reshape(-1, 2)]]
    met = met[(met >= 0).all(axis=1)]
    if len(met):
        look = {"linestyle": ":", "linewidth": 1.3}
        ax.add_collection(LineCollection(xy[met], colors="#882255", zorder=2, **look))
        ax.plot([], [], color="#882255", label="two layouts meet", **look)
    fill, dark = _group_fill(group) if amounts is None else _amount_fill(ax, graph, nodes, amounts, unit)
    for shape, marker in _MARK_OF:
        own = np.flatnonzero(~plain & (opcode == shape))
        if len(own):
            ax.scatter(*xy[own].T, s=110, marker=marker, c=[fill[v] for v in own], edgecolors="black", linewidths=0.7,
                       zorder=3)
            ax.plot([], [], linestyle="", marker=marker, color="white", markeredgecolor="black", label=shape)
        for node in own:
            ax.annotate(group[node], xy[node], (0, -1.5 * (marker == "^")), textcoords="offset points", ha="center",
                        va="center", fontsize=7, zorder=4, color="white" if dark[node] else "black")
    if any(isinstance(fill[v], str) and fill[v] == "white" for v in np.flatnonzero(~plain)):
        ax.plot([], [], linestyle="", marker="None", label="white: groups with\nfewest nodes")
    ax.set(xticks=[], yticks=[])
    ax.margins(0.03)
    ax.spines["left"].set_visible(False)
    said = f"inputs → outputs (depth in the program); {len(nodes)} nodes, {len(edges)} edges"
    return dress(ax, title, said, "(the height has no meaning)")


def table_of_terms(table, names, ax=None, title=""):
    """Draw what a model adds to the cost for each code of each group.

    `table` (g, k): one row per group, called `names`; NaN, hatched, where a group has fewer codes. Dark is slow.
    """
    table = np.asarray(table, dtype=float)
    ax = new_axes(ax, height=max(1.9, 1.2 + 0.2 * len(names)))
    if table.size:
        image = ax.imshow(table, cmap="Blues", aspect="auto", interpolation="none")
        ax.figure.colorbar(image, ax=ax, label="added to the cost (no unit)")
        ax.update_datalim([(-0.5, -0.5), (table.shape[1] - 0.5, len(names) - 0.5)])
    name_rows(ax, [shortened(name) for name in names])
    ax.set_ylim(max(len(names), 1) - 0.5, -0.5)
    ax.xaxis.get_major_locator().set_params(integer=True)
    dress(ax, title, "code", "group")
    ax.grid(False)
    ax.patch.set(facecolor="white", edgecolor="0.75", hatch="////")        # where a group has no such code
    return ax


def _group_fill(group):
    """Colour of each drawn node (j,) by the rank of its group, -1 for none; and whether the colour is dark."""
    by_size = np.argsort(-np.bincount(group[group >= 0], minlength=1), kind="stable").tolist()
    rank = [by_size.index(g) if g >= 0 else len(_GROUPS) for g in group]
    return [_GROUPS[r] if r < len(_GROUPS) else "white" for r in rank], [r in _DARK for r in rank]


def _amount_fill(ax, graph, nodes, amounts, unit):
    """Colour of each drawn node from blue, below 0, through white to red, above 0; adds the colour bar."""
    value = np.zeros(len(graph.node_feat))
    value[graph.node_config_ids] = amounts
    most = np.abs(value[nodes]).max(initial=0) or 1.0
    scale = ScalarMappable(Normalize(-most, most), "RdBu_r")
    ax.figure.colorbar(scale, ax=ax, orientation="horizontal", shrink=0.5, aspect=40, label=literal(unit))
    return list(scale.to_rgba(value[nodes])), np.abs(value[nodes]) > 0.6 * most


def _depths(edge_index, n, shown):
    """Longest path from an input to each node, in edges; in the part `shown`, ends move next to their neighbours."""
    depth = np.zeros(n, dtype=np.int64).tolist()
    # nodes are in topological order, as in every public file
    for u, v in edge_index[np.argsort(edge_index[:, 0], kind="stable")].tolist():
        depth[u] = max(depth[u], depth[v] + 1)
    depth = np.array(depth)
    edges = edge_index[np.isin(edge_index, shown).all(axis=1)]
    first_use, last_operand = np.full(n, n), np.full(n, -1)
    np.minimum.at(first_use, edges[:, 1], depth[edges[:, 0]])
    np.maximum.at(last_operand, edges[:, 0], depth[edges[:, 1]])
    starts, stops = (last_operand < 0) & (first_use < n), (last_operand >= 0) & (first_use == n)
    return np.where(starts, first_use - 1, np.where(stops, last_operand + 1, depth))


def _positions(depth, edges, large):
    """Positions (j, 2): x from depth, y from forces; edges attract, nodes repel, large nodes never touch."""
    if not len(depth):
        return np.empty((0, 2))
    level, size = np.unique(depth, return_inverse=True, return_counts=True)[1:]
    x = _WIDE * ((np.cumsum(size) - size / 2) / len(depth))[level.reshape(-1)]      # crowded depths get more room
    y = np.sin(np.arange(len(depth)))                            # any start that has no ties
    degree = np.maximum(np.bincount(edges.ravel(), minlength=len(depth)), 1)
    dx = x[:, None] - x
    for step in np.linspace(0.5, 0.02, 300):                     # constants chosen by eye on public graphs
        dy = y[:, None] - y
        force = 1.5 * (dy / (dx ** 2 + dy ** 2 + 0.05)).sum(axis=1) - 0.4 * y
        for u, v in (edges.T, edges.T[::-1]):
            pull = 2.5 * (y[v] - y[u]) / (1 + 0.3 * np.abs(dx[u, v]))
            force += np.bincount(u, pull, minlength=len(y)) / degree
        y = y + np.clip(step * force, -0.5, 0.5)
    for _ in range(60):
        dy, height = y[:, None] - y, np.ptp(y)
        touching = large & large[:, None] & (np.abs(dx) < 0.7) & (np.abs(dy) < 0.04 * height)
        y = y + 0.004 * height * (touching * np.sign(dy)).sum(axis=1)
    return np.column_stack([x, y])


def two_layouts():
    """Draw what a layout is: one tensor in two orders in memory, and the copy where two operations disagree."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 2.7), dpi=100, layout="constrained",
                                         width_ratios=(1.1, 1))
    values, rows = np.array([list("abc"), list("def")]), np.array([[0] * 3, [4] * 3])
    left.text(0, 2.75, "one tensor, 2 x 3", va="bottom")
    for row in (0, 1):
        _boxes(left, 0, 1.6 - 0.9 * row, values[row], rows[row])
    for y, order, text in ((1.95, "C", "layout {1,0}: row after row"), (0.1, "F", "layout {0,1}: column after column")):
        _boxes(left, 4.3, y, values.ravel(order), rows.ravel(order))
        left.text(4.3, y + 1.0, text, va="bottom")
        left.annotate("", (4.1, y + 0.45), (2.9, 1.2 + 0.6 * (order == "C")),
                      arrowprops={"arrowstyle": "->", "color": QUIET})
    left.set(xlim=(-0.2, 10), ylim=(-0.2, 3.4))
    left.set_title("A layout is the order of a tensor in memory", loc="left", fontsize="medium")
    for y, parts, text in (
            (2.15, {0.0: ("conv", 0), 6.6: ("dot", 0)}, "both agree: no copy"),
            (0.25, {0.0: ("conv", 0), 3.3: ("copy", 1), 6.6: ("dot", 4)}, "they disagree: the compiler adds a copy")):
        for x, (name, colour) in parts.items():
            _boxes(right, x, y, [name], [colour], 1.9, 0.8)
        for start, end in zip([*parts], [*parts][1:]):
            right.annotate("", (end, y + 0.4), (start + 1.9, y + 0.4), arrowprops={"arrowstyle": "->"})
        right.text(0, y + 0.9, text, va="bottom")
    right.set(xlim=(-0.2, 8.8), ylim=(-0.2, 3.4))
    right.set_title("Two operations choose; a copy costs time", loc="left", fontsize="medium")
    for ax in (left, right):
        ax.axis("off")
    return figure


def _boxes(ax, x, y, texts, colours, width=0.9, height=0.9):
    """A row of boxes; `colours` are places in the palette."""
    for place, (text, colour) in enumerate(zip(texts, colours)):
        ax.add_patch(plt.Rectangle((x + place * width, y), width, height, color=PALETTE[colour], ec="white", lw=2))
        ax.text(x + (place + 0.5) * width, y + height / 2, text, color="white" if colour in _DARK else "black",
                ha="center", va="center", weight="bold")


def predicted_against_measured(cost, runtime, ax=None, title=""):
    """Draw one dot per configuration: its measured rank against its predicted rank; on the diagonal both agree.

    `cost` and `runtime`: (c,). Ranks, because only the order of the costs counts.
    """
    ax = new_axes(ax, height=4.2, width=5.0)
    ranks = [np.argsort(np.argsort(values, kind="stable")) + 1 for values in (cost, runtime)]
    ax.plot([1, len(ranks[0])], [1, len(ranks[0])], color=QUIET, linestyle="--", label="perfect order")
    ax.plot(*ranks, linestyle="", marker=".", markersize=4, color=PALETTE[0], alpha=0.6, label="a configuration")
    dress(ax, title, "predicted rank (1 is fastest)", "measured rank")
    ax.legend(loc="upper left", frameon=False, fontsize="small")
    return ax
