"""Pruning to the neighbourhood of the configurable nodes, and deduplication of configurations.

The first place trained on 1-hop neighbourhoods, without the edges between two neighbours of configurable nodes. This
keeps 16% of the nodes and 9% of the edges of the public layout graphs.

Letters: n nodes, m edges, c configurations, nc configurable nodes, g groups.
"""
import warnings

import numpy as np

try:
    from kit.checks import check_graph
except ModuleNotFoundError as fault:
    if fault.name != "kit":
        raise
    # pasted into a notebook without the kit: nothing is checked
    check_graph = globals().get("check_graph", lambda graph, tile, least: None)

_FAR = np.iinfo(np.int64).max    # hops to a node that is not reached


def k_hop_nodes(edge_index, seeds, k):
    """List the nodes that are at most `k` edges away from a seed; edges count in both directions.

    Parameters
    ----------
    edge_index : ndarray, shape (m, 2), int
    seeds : ndarray, shape (s,), int
    k : int

    Returns
    -------
    ndarray, int64, sorted

    Raises
    ------
    ValueError
        If an array does not hold node numbers, or `k` is not a whole number of at least 0.

    Examples
    --------
    >>> k_hop_nodes(np.array([[0, 1], [1, 2], [2, 3]]), np.array([0]), 2)
    array([0, 1, 2])
    """
    return np.flatnonzero(_hops(edge_index, seeds, k) < _FAR)


def prune(graph, k=1):
    """Cut a layout graph down to the `k`-hop neighbourhood of its configurable nodes.

    Parameters
    ----------
    graph : LayoutGraph
    k : int

    Returns
    -------
    LayoutGraph
        Edges between two nodes of the outermost ring, which are exactly `k` edges away from the nearest configurable
        node, are left out. Nodes keep their order and are renumbered. Configurations are unchanged. `meetings` are
        found in the whole graph, because pruning cuts paths between nodes. A graph without configurable nodes stays
        whole, because no model accepts a graph without nodes.

    Raises
    ------
    ValueError
        If `k` is not a whole number of at least 0, or `graph` is no LayoutGraph.
    """
    check_graph(graph, tile=False, least=0)
    if not len(graph.node_config_ids):
        return graph
    hops = np.full(len(graph.node_feat), _FAR)
    reached = _hops(graph.edge_index, graph.node_config_ids, k)
    hops[:len(reached)] = reached
    kept = np.flatnonzero(hops < _FAR)                     # (n',)
    ends = hops[graph.edge_index]                          # (m, 2)
    edges = (ends < _FAR).all(axis=1) & (ends < k).any(axis=1)
    return graph._replace(
        node_feat=graph.node_feat[kept],
        node_opcode=graph.node_opcode[kept],
        edge_index=np.searchsorted(kept, graph.edge_index[edges]),
        node_config_ids=np.searchsorted(kept, graph.node_config_ids),
        node_splits=np.searchsorted(kept, graph.node_splits),
        meetings=graph.meetings or _meetings(graph))


def _meetings(graph):
    """Where two layouts meet in the whole graph; None, with a warning, where this file is pasted without the kit."""
    try:
        from kit.agreement import find_meetings  # prepared files hold them
    except ModuleNotFoundError as fault:
        if fault.name != "kit":
            raise
        warnings.warn("the kit is not installed, so prune does not note where layouts meet; the token model needs "
                      "that", stacklevel=3)
        return None
    return find_meetings(graph)


def config_ids(graph):
    """Number the distinct configurations of a graph by their first appearance -> (c,) int64."""
    codes = np.ascontiguousarray(graph.config_feat if hasattr(graph, "config_feat") else graph.config_codes)
    if codes.shape[1] == 0:
        return np.zeros(len(codes), np.int64)
    whole = codes.view(np.dtype((np.void, codes.dtype.itemsize * codes.shape[1]))).ravel()
    _, first, label = np.unique(whole, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[label]


def drop_duplicate_configs(graph):
    """Merge the repeated measurements of each configuration, in O(c log c).

    Parameters
    ----------
    graph : LayoutGraph

    Returns
    -------
    graph : LayoutGraph
        Each configuration once, in order of first appearance, with the mean runtime rounded to whole ns.
    repeats : ndarray, shape (c',), int64
        How often each configuration was measured.
    spread : ndarray, shape (c',), float64
        Standard deviation of a configuration's runtimes (divisor: measurements - 1), divided by their mean. NaN if
        the configuration was measured once, or if the runtimes are the placeholder 0.

    Raises
    ------
    ValueError
        If `graph` is no LayoutGraph.
    """
    check_graph(graph, tile=False, least=0)
    label = config_ids(graph)
    first = np.unique(label, return_index=True)[1]
    repeats = np.bincount(label)
    # deviations from the first run are small numbers, so float64 sums are exact even for long runtimes
    base = graph.config_runtime[first]
    deviation = (graph.config_runtime - base[label]).astype(np.float64)
    shift = np.bincount(label, weights=deviation) / repeats
    mean = base + shift
    squares = np.bincount(label, weights=(deviation - shift[label]) ** 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.sqrt(squares / (repeats - 1)) / mean
    runtime = base + np.rint(shift).astype(np.int64)
    return graph._replace(config_codes=graph.config_codes[first], config_runtime=runtime), repeats, spread


def hold_out_configs(graph, share, rng):
    """Split the configurations of a graph at random -> graph of the seen ones, graph of the held-out ones.

    Deduplicate the graph first: otherwise a held-out configuration may also be among the seen ones. `share`, 0 to 1, is
    the part that is held out, rounded down to whole configurations. ValueError if it is outside 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must be within 0 to 1, got {share}")
    order = rng.permutation(len(graph.config_runtime))
    cut = int(share * len(order))
    return tuple(graph._replace(config_codes=graph.config_codes[part], config_runtime=graph.config_runtime[part])
                 for part in (np.sort(order[cut:]), np.sort(order[:cut])))


def drawn_rows(total, most):
    """At most `most` of the rows 0 to `total` - 1, drawn at random, in their order; always the same ones."""
    return np.sort(np.random.default_rng(0).permutation(total)[:most]) if total > most else np.arange(total)


def fewer_configs(graph, most):
    """A layout graph with at most `most` of its configurations, those of `drawn_rows`."""
    if len(graph.config_runtime) <= most:
        return graph
    kept = drawn_rows(len(graph.config_runtime), most)
    return graph._replace(config_codes=graph.config_codes[kept], config_runtime=graph.config_runtime[kept])


def _hops(edge_index, seeds, k):
    """Number of edges to the nearest seed, _FAR if it exceeds k; (largest node number + 1,) int64."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 0:
        raise ValueError(f"k is {k!r}; expected a whole number of at least 0 hops")
    edge_index, seeds = np.asarray(edge_index), np.asarray(seeds)
    for name, nodes, shape in (("edge_index", edge_index, ("m", 2)), ("seeds", seeds, ("s",))):
        fits = nodes.ndim == len(shape) and nodes.shape[1:] == shape[1:]
        if not fits or nodes.dtype.kind not in "iu" or nodes.min(initial=0) < 0:
            raise ValueError(f"{name} has shape {nodes.shape} and dtype {nodes.dtype}; expected numbers of nodes from "
                             f"0, {'(m, 2)' if len(shape) == 2 else '(s,)'}")
    size = max(edge_index.max(initial=-1), seeds.max(initial=-1)) + 1
    hops = np.full(size, _FAR)
    hops[seeds] = 0
    for step in range(1, min(k, size) + 1):
        touched = hops[edge_index] < step                  # (m, 2)
        ends = np.concatenate([edge_index[touched[:, 0], 1], edge_index[touched[:, 1], 0]])
        ends = ends[hops[ends] == _FAR]
        if not len(ends):                                  # everything that can be reached is reached
            break
        hops[ends] = step
    return hops
