"""Pictures of the data: one function a picture, on `ax` if one is given; see `kit.plots.scores`."""
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.ticker import LogLocator, NullFormatter

from kit.plots.scores import PALETTE, QUIET, collection_style, dress, new_axes, shortened, spaced

SHAPES = (("convolution", "o"), ("dot", "s"), ("reshape", "^"))      # all that can be configured
WIDE = 26.0                  # of a drawn graph, where a node is about 0.6 across
DARK = (0, 1, 2)             # colours of the palette on which white is easier to read than black


def opcode_shares(counts, names, most=15, ax=None, title=""):
    """Draw how large a share of a collection's nodes the most frequent operations have.

    Parameters
    ----------
    counts : dict of str to ndarray, shape (opcodes,)
        {collection: nodes with each opcode number}.
    names : sequence of str, length opcodes
        `kit.data.OPCODE_NAMES`.
    most : int
        Operations drawn: those with the largest mean share over the collections.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
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


def runtime_spread(runtimes, noise=None, most=8, points=300, rng=None, ax=None, title=""):
    """Draw how much slower than its best configuration each graph runs: all, the middle half, the median.

    Parameters
    ----------
    runtimes : dict of str to dict
        {collection: {graph: runtimes (c,), > 0}}, ns or for tiles the normalised ratio. A graph whose runtimes
        are all equal has no spread and is left out.
    noise : dict of str to dict, optional
        {collection: {graph: relative noise of one measurement}}.
    most : int
        Graphs drawn of a collection; of more, evenly spaced ones in the order of their medians.
    points : int
        Configurations drawn of a graph, at random; lines and medians are of all.
    rng : numpy.random.Generator
        None: a fresh one with seed 0.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
    """
    rng = np.random.default_rng(0) if rng is None else rng
    excess = {c: {g: _excess(r) for g, r in graphs.items() if np.ptp(r)} for c, graphs in runtimes.items()}
    rows = [(c, g) for c in excess for g in spaced(sorted(excess[c], key=lambda g: np.median(excess[c][g])), most)]
    ax = new_axes(ax, height=1.3 + 0.2 * len(rows))
    for y, (collection, graph) in enumerate(rows):
        x, style = excess[collection][graph], collection_style(collection)
        label = collection if y == 0 or rows[y - 1][0] != collection else None
        shown = rng.choice(x, min(len(x), points), replace=False)
        ax.plot(shown, y + rng.uniform(-0.3, 0.3, len(shown)), ",", color=style["color"], alpha=0.6)
        quarter, median, three = np.quantile(x, [0.25, 0.5, 0.75])
        ax.hlines(y, x.min(), x.max(), color=style["color"], linewidth=0.8)
        ax.hlines(y, quarter, three, color=style["color"], linewidth=4, alpha=0.5)
        ax.plot(median, y, linestyle="", markersize=6, label=label, **style)
    marks = [((noise or {}).get(c, {}).get(g, np.nan), y) for y, (c, g) in enumerate(rows)]
    marks = [(sigma, y) for sigma, y in marks if sigma > 0]      # NaN is not
    if marks:
        ax.plot(*zip(*marks), linestyle="", marker="|", markersize=12, markeredgewidth=2, color="black",
                label="noise of one\nmeasurement")
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(numticks=6))          # more labels than that overlap
    ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_yticks(range(len(rows)), [shortened(g) for _, g in rows], fontsize="small")
    ax.set_ylim(len(rows) - 0.4, -0.6)
    return dress(ax, title, "slower than the graph's best configuration by", "graph")


def group_options(groups, ax=None, title=""):
    """Draw the configurable nodes of each graph as one bar, cut into groups and coloured by their options.

    Parameters
    ----------
    groups : dict of str to (ndarray, ndarray), shapes (g,)
        {graph: nodes and options of each group}; a group's nodes always change together.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
        A colour bar stands in the same figure.
    """
    ax = new_axes(ax, height=1.6 + 0.3 * len(groups))
    largest = max([int(np.max(options)) for _, options in groups.values() if len(options)], default=1)
    top = max(2, min(largest, 9))                                # 9 in every public file seen; more share a colour
    colours = plt.get_cmap("cividis", top)
    for y, (nodes, options) in enumerate(groups.values()):
        order = np.lexsort((-np.asarray(nodes), -np.asarray(options)))
        width = 100 * np.asarray(nodes)[order] / max(1, np.sum(nodes))
        left, options = np.cumsum(width) - width, np.asarray(options)[order]
        ax.barh(np.full(len(width), y), width, left=left, height=0.75, edgecolor="white", linewidth=0.5,
                color=colours(np.minimum(options, top) - 1))
        ax.text(101, y, f"{np.sum(nodes)} nodes, {len(nodes)} group{'s' * (len(nodes) != 1)}", va="center",
                fontsize="small")
    ax.set_yticks(range(len(groups)), [shortened(g, 36) for g in groups], fontsize="small")
    ax.set(xlim=(0, 100), ylim=(max(len(groups), 1) - 0.4, -0.6))
    if groups:
        scale_of = plt.cm.ScalarMappable(plt.Normalize(0.5, top + 0.5), colours)
        bar = ax.figure.colorbar(scale_of, ax=ax, orientation="horizontal", shrink=0.5, aspect=40,
                                 ticks=range(1, top + 1), label="options of a group")
        bar.ax.set_xticklabels([f"{i}" + " or more" * (i == top < largest) for i in range(1, top + 1)])
    return dress(ax, title, "share of the configurable nodes (%)", "graph", grid="x")


def program_graph(graph, nodes, names, most=200, ax=None, title=""):
    """Draw part of a layout graph from its inputs (left) to its outputs (right).

    Configurable nodes carry the number of their group; the six groups with most nodes in the picture have a colour.

    Parameters
    ----------
    graph : LayoutGraph
        Whole: depths are counted along all edges.
    nodes : ndarray of int, shape (j,)
        The nodes to draw, as `kit.prune.k_hop_nodes` gives them.
    names : sequence of str
        `kit.data.OPCODE_NAMES`.
    most : int
        Nodes drawn at most, the shallowest first.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
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
    by_size = np.argsort(-np.bincount(group[~plain], minlength=1), kind="stable").tolist()
    ax.plot(*xy[plain].T, linestyle="", marker="o", markersize=4, color=QUIET, label="not configurable")
    for shape, marker in SHAPES:
        own = np.flatnonzero(~plain & (opcode == shape))
        rank = np.array([by_size.index(g) for g in group[own]], dtype=int)
        fill = [PALETTE[r] if r < len(PALETTE) - 1 else "white" for r in rank]
        if len(own):
            ax.scatter(*xy[own].T, s=110, marker=marker, c=fill, edgecolors="black", linewidths=0.7, zorder=3)
            ax.plot([], [], linestyle="", marker=marker, color="white", markeredgecolor="black", label=shape)
        for node, r in zip(own, rank):
            ax.annotate(group[node], xy[node], (0, -1.5 * (marker == "^")), textcoords="offset points", ha="center",
                        va="center", fontsize=7, zorder=4, color="white" if r in DARK else "black")
    ax.set(xticks=[], yticks=[])
    ax.margins(0.03)
    return dress(ax, title, "inputs → outputs (depth in the program)", f"{len(nodes)} nodes, {len(edges)} edges")


def _excess(runtime):
    """How much slower than the fastest the others are; equals of the fastest as little as the next slower one."""
    excess = np.sort(np.asarray(runtime) / np.min(runtime) - 1)[1:]
    return np.maximum(excess, excess[excess > 0].min())


def _depths(edge_index, n, shown):
    """Longest path from an input to each node, in edges; ends of what is `shown` move next to their neighbours."""
    depth = np.zeros(n, dtype=np.int64).tolist()
    # a node comes after all that it consumes, as in every public file
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
    """x by depth, y by forces: edges pull their ends together, nodes push, large ones never touch; (j, 2)."""
    if not len(depth):
        return np.empty((0, 2))
    level, size = np.unique(depth, return_inverse=True, return_counts=True)[1:]
    x = WIDE * ((np.cumsum(size) - size / 2) / len(depth))[level.reshape(-1)]      # crowded depths get room
    y = np.sin(np.arange(len(depth)))                            # any start without ties
    degree = np.maximum(np.bincount(edges.ravel(), minlength=len(depth)), 1)
    dx = x[:, None] - x
    for step in np.linspace(0.5, 0.02, 300):                     # these numbers: by eye, on public graphs
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
