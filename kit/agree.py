"""Where the configured layouts of neighbours agree: what the copies that a compiler inserts depend on.

A configured node may be given the layout of its output, its input and its kernel. A given layout that differs from
the layout its neighbour delivers, wants, or would have by default means a copy of that tensor. All of it is a table
over codes, computed once a graph: `own` for a node and its code, `pair` for two configurable neighbours and both
their codes. Features of this kind carried the 11th place's boosted trees.
"""
from typing import NamedTuple

import numpy as np

from kit.pad import LAYOUT, SHAPE, repad_layout

OWN_FEATURES = 11                # see agreement_tables
PAIR_FEATURES = 8
MAX_PAIR_ROWS = 1 << 24          # 200,000 pairs of 9 codes; public graphs have at most some thousand


class Agreement(NamedTuple):
    """Disagreements of a layout graph's codes; p pairs of configurable neighbours."""
    own: np.ndarray              # (nc, k, 11) float32
    share: np.ndarray            # (nc,) float32; the tensor's size over the graph's largest
    pairs: np.ndarray            # (p, 2) int64; positions in node_config_ids: producer, consumer
    pair: np.ndarray             # (p, k, k, 8) float32; code of the producer, code of the consumer


def agreement_tables(graph):
    """Tabulate in how many of the two minor-most dimensions configured layouts disagree with their surroundings.

    Parameters
    ----------
    graph : LayoutGraph

    Returns
    -------
    Agreement
        Features of `own`, three: whether an output, an input, a kernel layout is given. Four: the share of
        disagreeing dimensions of the output with the node's default, of the input and of the kernel with the
        default of the operand that fits best, of the output with the defaults of consumers of its shape on average.
        Then these four times a tenth of the logarithm of the tensor's size. Features of `pair`, four: the
        producer's output (its default if none is given) with the consumer's input, its kernel, the better of the
        two, and, between equal shapes, its output. Then these four times a tenth of the logarithm of the
        producer's size. What is not given disagrees with nothing. A pair is an edge between configurable nodes,
        or two edges with a node between that is not configurable and has the producer's shape.

    Raises
    ------
    ValueError
        If pairs times codes squared pass `MAX_PAIR_ROWS`; the message names the graph.
    """
    layout = repad_layout(graph.node_feat)[0][:, LAYOUT].astype(np.int8)[:, :2]           # (n, 2)
    shape = graph.node_feat[:, SHAPE]
    elements = np.maximum(shape, 1).prod(axis=1, dtype=np.float64)
    size = np.log1p(elements) / 10                                                        # (n,), about 0 to 2
    ids = graph.node_config_ids
    nc, k = graph.code_rows.shape[:2]
    given = graph.code_rows[:, :, (0, 6, 12)] >= 0                                        # (nc, k, 3)
    rows = graph.code_rows.reshape(nc, k, 3, 6)[..., :2]                                  # output, input, kernel
    place = np.full(len(layout), -1)
    place[ids] = np.arange(nc)

    own = np.zeros((nc, k, 4, 2), np.float32)
    own[:, :, 0, 0] = _differ(rows[:, :, 0], layout[ids][:, None]) * given[:, :, 0]
    own[:, :, 0, 1] = own[:, :, 0, 0] * size[ids, None]
    consumer, producer = graph.edge_index.T
    operand = place[consumer] >= 0
    u, v = place[consumer[operand]], producer[operand]
    differ = _differ(rows[u, :, 1:], layout[v][:, None, None])                            # (edges, k, 2)
    best = np.full((nc, k, 2), np.inf, np.float32)
    np.minimum.at(best, u, differ)
    # edges are not in the order of operands: of those that fit alike, the larger is the input, the smaller the kernel
    sign = np.array([1, -1], np.float32)
    most = np.full((nc, k, 2), -np.inf, np.float32)
    np.maximum.at(most, u, np.where(differ == best[u], size[v][:, None, None] * sign, -np.inf).astype(np.float32))
    own[:, :, 1:3, 0] = np.where(np.isfinite(best), best, 0) * given[:, :, 1:]
    own[:, :, 1:3, 1] = own[:, :, 1:3, 0] * np.where(np.isfinite(most), most * sign, 0)
    same = (shape[consumer] == shape[producer]).all(axis=1) & (place[producer] >= 0)
    v, u = place[producer[same]], consumer[same]
    count = np.maximum(np.bincount(v, minlength=nc), 1)[:, None]
    np.add.at(own[:, :, 3, 0], v, _differ(rows[v, :, 0], layout[u][:, None]) * given[v, :, 0])
    own[:, :, 3, 0] /= count
    own[:, :, 3, 1] = own[:, :, 3, 0] * size[ids, None]

    pairs = _configurable_pairs(graph.edge_index, place, shape)
    if len(pairs) * k * k > MAX_PAIR_ROWS:
        raise ValueError(f"{graph.graph_id}: {len(pairs)} pairs of neighbours with {k} codes each pass {MAX_PAIR_ROWS} "
                         "table rows; use a model without agreement features")
    v, u = pairs.T
    delivered = np.where(given[:, :, :1], rows[:, :, 0], layout[ids][:, None])            # (nc, k, 2)
    differ = _differ(delivered[v][:, :, None, None], rows[u][:, None]) * given[u][:, None]          # (p, k, k, 3)
    differ[..., 0] *= (shape[ids[v]] == shape[ids[u]]).all(axis=1)[:, None, None]
    pair = np.stack([differ[..., 1], differ[..., 2], np.where(given[u][:, None, :, 1:].all(axis=-1),
                     differ[..., 1:].min(axis=-1), differ[..., 1:].max(axis=-1)), differ[..., 0]], axis=-1)
    pair = np.concatenate([pair, pair * size[ids[v]][:, None, None, None]], axis=-1).astype(np.float32)
    own = np.concatenate([given, own[..., 0], own[..., 1]], axis=-1).astype(np.float32)
    return Agreement(own, (elements[ids] / elements.max()).astype(np.float32), pairs, pair)


def _differ(a, b):
    """Share of the two minor-most dimensions that differ; (..., 2), (..., 2) -> (...)."""
    return (a != b).mean(axis=-1, dtype=np.float32)


def _configurable_pairs(edge_index, place, shape):
    """Pairs (producer, consumer) of configurable nodes, next to each other or with one node between of the
    producer's shape; (p, 2) int64, positions among the configurable nodes."""
    consumer, producer = edge_index.T
    direct = (place[consumer] >= 0) & (place[producer] >= 0)
    pairs = [np.stack([place[producer[direct]], place[consumer[direct]]], axis=1)]
    enters = (place[producer] >= 0) & (place[consumer] < 0) & (shape[consumer] == shape[producer]).all(axis=1)
    leaves = (place[producer] < 0) & (place[consumer] >= 0)
    middle, by = producer[leaves], place[consumer[leaves]]
    order = np.argsort(middle, kind="stable")
    middle, by = middle[order], by[order]
    low, high = np.searchsorted(middle, consumer[enters]), np.searchsorted(middle, consumer[enters], side="right")
    counts = high - low
    start = np.repeat(place[producer[enters]], counts)
    offset = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(low, counts)
    pairs.append(np.stack([start, by[offset]], axis=1))
    return np.unique(np.concatenate(pairs), axis=0).reshape(-1, 2)
