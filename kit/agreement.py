"""How far configured layouts agree where they meet: what the copies that a compiler inserts depend on.

A configured node may be given the layout of its output, its input and its kernel. A given layout that differs from
the layout its neighbour delivers, wants, or would have by default means a copy of that tensor. All of it is a table
over codes, computed once a graph: `own` for a node and its code, `pair` for two configurable nodes whose layouts
meet and both their codes. Features of this kind carried the 11th place's boosted trees.
"""
from typing import NamedTuple

import numpy as np

from kit.data import OPCODE_NAMES
from kit.pad import DIMENSIONS, LANES, LAYOUT, SHAPE, SUBLANES, repad_layout, tensor_rank

TRANSPOSE = OPCODE_NAMES.index("transpose")
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
    moved = graph.node_opcode[consumer] == TRANSPOSE
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


OWN_FEATURES = 14                # see agreement_tables
PAIR_FEATURES = 12
PLACES = 5                       # in which the layouts of a pair may disagree
MEMORY_TILE = LANES, SUBLANES    # of the minor-most dimension and of the next one
MAX_PAIR_ROWS = 1 << 22          # 50,000 pairs of 9 codes, 200 MB on the way; public graphs have some thousand


class Agreement(NamedTuple):
    """Disagreements of a layout graph's codes; p pairs of configurable nodes, r distinct rows of features."""
    own: np.ndarray              # (nc, k, 14) float32
    share: np.ndarray            # (nc,) float32; the tensor's size over the graph's largest
    reads: np.ndarray            # (nc,) float32; likewise of the largest operand
    pairs: np.ndarray            # (p, 2) int64; positions in node_config_ids: producer, consumer
    pair: np.ndarray             # (p, k, k) int32 in 0..r-1; code of the producer, code of the consumer
    row_pair: np.ndarray         # (r,) int64 in 0..p-1; a row belongs to one pair
    rows: np.ndarray             # (r, 12) float32


def agreement_tables(graph, reach=REACH):
    """Tabulate in how many of the two minor-most dimensions configured layouts disagree with their surroundings.

    Parameters
    ----------
    graph : LayoutGraph
    reach : int
        Pairs more edges apart are left out.

    Returns
    -------
    Agreement
        Features of `own`, three: whether an output, an input, a kernel layout is given. Four: the share of
        disagreeing dimensions of the output with the node's default, of the input and of the kernel with the
        default of the operand that fits best, of the output with the defaults of consumers of its shape on average.
        Then these four times a tenth of the logarithm of the tensor's size. Three: how much larger the given layout
        makes the output, the largest operand and the smallest in memory than its default does, where the minor-most
        dimension is padded to 128 and the next to 8, as a logarithm to base 2. Features of `rows`, five: the
        producer's output (its default if none is given) with the consumer's input, its kernel, the better of the
        two, and, if that has the shape of what it reads, its output; with the other producer's output where those
        two meet. Then these five times a tenth of the logarithm of the producer's size. Then how near the two are,
        1 / edges, as producer and consumer, and as two producers. What is not given disagrees with nothing, but for
        two defaults where they meet. Pairs are those of `find_meetings`, the nearer ones only where pairs times codes
        squared would pass `MAX_PAIR_ROWS`.
    """
    layout = repad_layout(graph.node_feat)[0][:, LAYOUT].clip(-1, 5).astype(np.int8)[:, :2]       # (n, 2)
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
    largest, smallest = _extreme_operands(place[consumer[operand]], producer[operand], elements, shape, layout, nc)
    grown = [np.where(given[:, :, part] & (tensor >= 0)[:, None],
                      _growth(shape[tensor][:, None], rows[:, :, part])
                      - _growth(shape[tensor], layout[tensor])[:, None], 0)
             for part, tensor in enumerate((ids, largest, smallest))]
    own = np.concatenate([given, own[..., 0], own[..., 1], np.stack(grown, axis=-1)], axis=-1).astype(np.float32)
    share = elements / elements.max()
    return Agreement(own, share[ids].astype(np.float32), (share[largest] * (largest >= 0)).astype(np.float32),
                     *_pair_tables(graph, reach, layout[ids], rows, given, shape[ids], size[ids]))


def _pair_tables(graph, reach, default, rows, given, shape, size):
    """The last four of Agreement; of the configurable nodes all but the first."""
    met, k = graph.meetings or find_meetings(graph), rows.shape[1]
    near = met.hops <= next(h for h in range(min(reach, met.hops.max(initial=0)), -1, -1)
                            if (met.hops <= h).sum() * k * k <= MAX_PAIR_ROWS)
    (v, u), joins, hops = met.ends[near].T, met.joins[near], met.hops[near]
    delivered = np.where(given[:, :, :1], rows[:, :, 0], default[:, None])                # (nc, k, 2)
    first, other = ((np.pad(met.names[near, end], ((0, 0), (0, 1)), constant_values=-1)[
        np.arange(len(v))[:, None, None], delivered[node]]) for end, node in enumerate((v, u)))       # (p, k, 2)
    # 0, 1 or 2 dimensions; a join has only the last place, which others lack
    differ = (first[:, :, None, None] != rows[u][:, None]).sum(axis=-1, dtype=np.int8)    # (p, k, k, 3)
    differ *= given[u][:, None] & ~joins[:, None, None, None]
    both = np.where(given[u][:, None, :, 1:].all(axis=-1), differ[..., 1:].min(axis=-1), differ[..., 1:].max(axis=-1))
    like = (shape[v] == np.take_along_axis(shape[u], met.names[near, 0], axis=1)).all(axis=1)
    outputs = differ[..., 0] * like[:, None, None]
    meet = (first[:, :, None] != other[:, None]).sum(axis=-1, dtype=np.int8) * joins[:, None, None]
    # a pair has few distinct rows: numbered in base 3, then anew
    number = 3 ** PLACES * np.arange(len(v))[:, None, None]
    for place, some in enumerate((differ[..., 1], differ[..., 2], both, outputs, meet)):
        number = number + 3 ** place * some.astype(np.int64)
    kept, pair = np.unique(number, return_inverse=True)
    row_pair, number = np.divmod(kept, 3 ** PLACES)
    differ = number[:, None] // 3 ** np.arange(PLACES) % 3 / 2                            # (r, 5)
    nearness = np.stack([~joins / hops, joins / hops], axis=1)[row_pair]
    features = np.concatenate([differ, differ * size[v[row_pair], None], nearness], axis=1)
    return (np.stack([v, u], axis=1), pair.reshape(len(v), k, k).astype(np.int32), row_pair,
            features.astype(np.float32))


def _extreme_operands(consumer, producer, elements, shape, layout, nc):
    """The largest and the smallest operand of each configurable node; (nc,) and (nc,), -1 without any."""
    # of equal size: by shape, then by layout, so that the order of the edges does not matter
    order = np.lexsort((*layout[producer].T, *shape[producer].T, elements[producer], consumer))
    found = np.full((2, nc), -1)
    found[0, consumer[order]] = producer[order]                            # the last one stays
    found[1, consumer[order[::-1]]] = producer[order[::-1]]
    return found


def _growth(shape, digits):
    """log2 of how much padding the two minor-most dimensions, `digits` (..., 2), adds to `shape` (..., 6)."""
    shape = np.broadcast_to(shape, digits.shape[:-1] + shape.shape[-1:])
    size = np.take_along_axis(shape, digits.clip(0).astype(np.int64), axis=-1)
    size = np.where((digits < 0) | (size < 1), 1, size)
    return np.where(digits < 0, 0, np.log2(np.ceil(size / MEMORY_TILE) * MEMORY_TILE / size)).sum(axis=-1)


def _differ(a, b):
    """Share of the two minor-most dimensions that differ; (..., 2), (..., 2) -> (...)."""
    return (a != b).mean(axis=-1, dtype=np.float32)
