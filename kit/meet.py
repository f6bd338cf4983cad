"""Where the layouts that configurable nodes are given meet: what the copies that a compiler inserts depend on.

A layout travels. What a convolution writes is read by a bias, an activation and a residual sum, which all have its
shape and can work in any layout, before the next convolution reads it; a transpose need not move a byte, it renames
the dimensions. So two given layouts meet far apart, and it is there that they agree or cost a copy.
"""
from typing import NamedTuple

import numpy as np

from kit.pad import SHAPE, tensor_rank

TRANSPOSE_OPCODE = 98            # node_feat says which dimension comes from which in
DIMENSIONS = slice(31, 37)       # dimensions_0..5: for all 340 transposes of nine public graphs shapes follow them
REACH = 12                       # edges; pairs of public U-Nets are 6 to 10 apart, those of sample data mostly 1 to 6
MAX_WALKS = 1 << 20              # (node, source) at once, 70 MB; the largest public graph at hand has 2,000


class Meetings(NamedTuple):
    """Pairs of configurable nodes whose layouts meet; p of them, sorted."""
    ends: np.ndarray             # (p, 2) int64; positions in node_config_ids: producer, consumer or other producer
    joins: np.ndarray            # (p,) bool; both are producers whose outputs meet as operands of one operation
    hops: np.ndarray             # (p,) int64; edges between them, by way of where they meet
    names: np.ndarray            # (p, 2, 6) int64; what each dimension of the output of either end is called there


def find_meetings(graph, reach=REACH):
    """Follow the output of each configurable node through the program until another configurable node reads it.

    It is followed through nodes that are not configurable and have its shape, or are transposes of it.

    Parameters
    ----------
    graph : LayoutGraph
        The whole program: pruning cuts the ways. `prune` calls this before it cuts and keeps the result.
    reach : int
        Edges that a pair may be apart. Fewer, if ever more than `MAX_WALKS` ways are open.

    Returns
    -------
    Meetings
        Each pair once by its shortest way; where several alike come together, by that whose names come first in
        order. A pair of producers is in it both ways round.
    """
    ids, n = graph.node_config_ids, len(graph.node_feat)
    place = np.full(n, -1)
    place[ids] = np.arange(len(ids))
    producer, consumer, renaming = _passages(graph)
    walks = np.stack([np.arange(len(ids)), ids], axis=1)                   # source, node that it has reached
    names = np.tile(np.arange(6), (len(ids), 1))
    visited, arrived, seen = [], [], np.zeros(0, np.int64)
    for hop in range(1, reach + 1):
        walk, edge = matches(walks[:, 1], producer)
        source, node = walks[walk, 0], consumer[edge]
        read = place[node] >= 0
        arrived.append((np.stack([source[read], place[node[read]]], axis=1), hop, names[walk[read]]))
        on = ~read & (renaming[edge, 0] >= 0)
        key, name = source[on] * n + node[on], np.take_along_axis(renaming[edge[on]], names[walk[on]], axis=1)
        order = np.lexsort((*name.T[::-1], key))                           # of ways alike, the first in order
        key, first = np.unique(key[order], return_index=True)
        new = ~np.isin(key, seen)
        if new.sum() > MAX_WALKS:
            reach = hop
            break
        seen, names = np.concatenate([seen, key[new]]), name[order][first[new]]
        walks = np.stack([key[new] // n, key[new] % n], axis=1)
        visited.append((walks, np.full(len(walks), hop), names))
    ends, hops, names = (np.concatenate(some) for some in zip(
        (np.zeros((0, 2), np.int64), np.zeros(0, np.int64), np.zeros((0, 2, 6), np.int64)),
        *((pair, np.full(len(pair), hop), np.stack([own, np.tile(np.arange(6), (len(own), 1))], axis=1))
          for pair, hop, own in arrived)))
    both = _joins(visited, reach)
    joins = np.repeat([False, True], [len(ends), len(both[0])])
    ends, hops, names = (np.concatenate(some) for some in zip((ends, hops, names), both))
    order = np.lexsort((*names.reshape(-1, 12).T[::-1], hops, joins, ends[:, 1], ends[:, 0]))
    ends, joins, hops, names = ends[order], joins[order], hops[order], names[order]
    once = np.ones(len(ends), bool)
    once[1:] = (ends[1:] != ends[:-1]).any(axis=1) | (joins[1:] != joins[:-1])
    return Meetings(ends[once], joins[once], hops[once], names[once])


def matches(wanted, values):
    """Find each of `wanted` (a,) in sorted `values` (b,) -> all pairs of positions, (q,) and (q,)."""
    low, high = np.searchsorted(values, wanted), np.searchsorted(values, wanted, side="right")
    count = high - low
    return np.repeat(np.arange(len(wanted)), count), np.arange(count.sum()) + np.repeat(low - (count.cumsum() - count),
                                                                                       count)


def _passages(graph):
    """Edges by producer: (m,) producer, (m,) consumer, (m, 6) what a dimension is called after it, -1 if cut off."""
    order = np.argsort(graph.edge_index[:, 1], kind="stable")
    consumer, producer = graph.edge_index[order].T
    shape, rank = graph.node_feat[:, SHAPE], tensor_rank(graph.node_feat)
    renaming = np.tile(np.arange(6), (len(order), 1))
    moved = graph.node_opcode[consumer] == TRANSPOSE_OPCODE
    # dimension i of a transpose is dimension source[i] of its operand; past the rank each keeps its name
    source = graph.node_feat[consumer[moved], DIMENSIONS].astype(np.int64)
    source = np.where(np.arange(6) < rank[consumer[moved], None], source, np.arange(6))
    whole = (np.sort(source, axis=1) == np.arange(6)).all(axis=1)
    source[~whole] = np.arange(6)
    renaming[moved] = np.argsort(source, axis=1)
    kept = (np.take_along_axis(shape[producer], np.argsort(renaming, axis=1), axis=1) == shape[consumer]).all(axis=1)
    kept[np.flatnonzero(moved)[~whole]] = False
    return producer, consumer, np.where(kept[:, None], renaming, -1)


def _joins(visited, reach):
    """Pairs of sources that have reached one node: ends (q, 2), hops (q,), names (q, 2, 6)."""
    walks, hop, names = (np.concatenate(some) for some in zip(*visited)) if visited else (
        np.zeros((0, 2), np.int64), np.zeros(0, np.int64), np.zeros((0, 6), np.int64))
    order = np.argsort(walks[:, 1], kind="stable")
    walks, hop, names = walks[order], hop[order], names[order]
    for within in range(max(reach, 1), 0, -1):               # nearer ones only, where there are too many
        near = np.flatnonzero(hop < within)
        count = np.unique(walks[near, 1], return_counts=True)[1]
        if (count.astype(float) ** 2).sum() <= 4 * MAX_WALKS:
            break
    one, other = (near[i] for i in matches(walks[near, 1], walks[near, 1]))
    apart = (walks[one, 0] != walks[other, 0]) & (hop[one] + hop[other] <= within)
    one, other = one[apart], other[apart]
    return (np.stack([walks[one, 0], walks[other, 0]], axis=1), hop[one] + hop[other],
            np.stack([names[one], names[other]], axis=1))
