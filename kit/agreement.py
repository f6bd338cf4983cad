"""Where the layouts given to two nodes meet, and how far they agree there: disagreement makes the compiler copy.

A configuration may give a configurable node a layout for its output, for its input and for its kernel. Where a given
layout differs from the layout that a neighbour delivers, wants or has by default, the compiler inserts a copy of
that tensor. Neighbours may be several edges apart, because many operations pass a layout on.

There are two steps. `find_meetings` lists the pairs of configurable nodes whose layouts meet. `agreement_tables`
computes the disagreements once per graph: one table over nodes and their codes, one over pairs and the codes of both
nodes. Features of this kind carried the boosted trees of the 11th place.
"""
from typing import NamedTuple

import numpy as np

from kit.data import OPCODE_NAMES
from kit.pad import (
    DIMENSIONS,
    ELEMENT_TYPE,
    LANES,
    LAYOUT,
    SHAPE,
    SUBLANES,
    TYPE_BYTES,
    repad_layout,
    tensor_rank,
)

CONVOLUTION, DOT, TRANSPOSE = map(OPCODE_NAMES.index, ("convolution", "dot", "transpose"))
REACH = 12                       # edges within a pair; 6 to 10 in public U-Nets, mostly 1 to 6 in sample data
MAX_WALKS = 1 << 20              # walks followed at once, 70 MB; the largest public graph at hand needs 2,000
MAX_PAIR_ROWS = 1 << 22          # 50,000 pairs with 9 codes per node, 200 MB; public graphs have some thousand pairs
MEMORY_TILE = LANES, SUBLANES    # of the minor-most dimension and of the next one
BALANCE = 256                    # multiply-adds per byte with which arithmetic takes as long as memory; accelerators
#                                  have some hundred. Only the order of magnitude matters: a model learns its own factor


class Meetings(NamedTuple):
    """The p pairs of configurable nodes whose layouts meet, sorted."""
    ends: np.ndarray             # (p, 2) int64; positions in node_config_ids: producer, then consumer or other producer
    joins: np.ndarray            # (p,) bool; True: two producers whose outputs are operands of one operation
    hops: np.ndarray             # (p,) int64; edges between the two nodes, through the place where their layouts meet
    names: np.ndarray            # (p, 2, 6) int64; in that place, the name of each output dimension of either node


class OwnColumns:
    """Columns of `Agreement.own`: one code of one configurable node."""
    GIVEN = slice(0, 3)          # 1 if the code gives a layout: for the output, for the input, for the kernel
    DISAGREE = slice(3, 7)       # 0 to 1: output with the node's default, input and kernel each with the default of
    #                              the best-fitting operand, output with the defaults of consumers of equal shape
    BY_SIZE = slice(7, 11)       # DISAGREE times log(1 + elements of the tensor) / 10
    GROWTH = slice(11, 14)       # log2(memory under the given layout / memory under the default layout), both padded
    #                              to tiles of 8 x 128: output, largest operand, smallest operand
    COUNT = 14


class PairColumns:
    """Columns of `Agreement.rows`: one pair of configurable nodes, under one code each."""
    DISAGREE = slice(0, 5)       # 0 to 1: the producer's output with the consumer's input, with its kernel, with the
    #                              better of the two, with the consumer's output, with the other producer's output
    BY_SIZE = slice(5, 10)       # DISAGREE times log(1 + elements of the producer's output) / 10
    NEARNESS = slice(10, 12)     # 1 / edges between the two nodes: of producer and consumer, of two producers; else 0
    COUNT = 12


class Agreement(NamedTuple):
    """Tables over the codes of a layout graph; p pairs of configurable nodes, r distinct rows of pair features."""
    own: np.ndarray              # (nc, k, 14) float32; see OwnColumns
    share: np.ndarray            # (nc,) float32; bytes of the node's tensor, padded to tiles of 8 x 128 in its default
    #                              layout, / those of the graph's largest tensor
    reads: np.ndarray            # (nc,) float32; the same for the node's largest operand
    work: np.ndarray             # (nc,) float32; arithmetic of a convolution or dot, as a share; see BALANCE
    pairs: np.ndarray            # (p, 2) int64; positions in node_config_ids: producer, consumer
    pair: np.ndarray             # (p, k, k) int32 in 0..r-1; by the producer's code and the consumer's code
    row_pair: np.ndarray         # (r,) int64 in 0..p-1; a row belongs to one pair
    rows: np.ndarray             # (r, 12) float32; see PairColumns


def find_meetings(graph, reach=REACH):
    """Find the pairs of configurable nodes whose layouts meet -> Meetings.

    The output of each configurable node is followed until another configurable node reads it. Its path leads through
    nodes that are not configurable and that have its shape, or are transposes of it. `graph` is the whole program,
    because pruning cuts such paths; `prune` calls this function before it cuts. `reach` is the largest number of edges
    between the two nodes of a pair; it is lowered if a step would follow more than `MAX_WALKS` walks. Each pair is
    found once, by its shortest path. Of equally short paths, the one whose names come first in order counts. A pair of
    two producers is listed in both orders.
    """
    read, visited, reach = _follow(graph, reach)
    ends, joins, hops, names = map(np.concatenate, zip(*read, _joins(visited, reach)))
    order = np.lexsort((*names.reshape(-1, 12).T[::-1], hops, joins, ends[:, 1], ends[:, 0]))
    ends, joins, hops, names = ends[order], joins[order], hops[order], names[order]
    once = np.ones(len(ends), bool)
    once[1:] = (ends[1:] != ends[:-1]).any(axis=1) | (joins[1:] != joins[:-1])
    return Meetings(ends[once], joins[once], hops[once], names[once])


def _follow(graph, reach):
    """Walk from each configurable node -> meetings with readers; (walks, hops, names) per hop; the reach in the end."""
    ids, n = graph.node_config_ids, len(graph.node_feat)
    place = np.full(n, -1)
    place[ids] = np.arange(len(ids))
    producer, consumer, renaming = _passages(graph)
    walks = np.stack([np.arange(len(ids)), ids], axis=1)                   # (w, 2): source, the node reached
    names = np.tile(np.arange(6), (len(ids), 1))                           # (w, 6): names of the source's dimensions
    read, visited, seen = [], [(walks, np.zeros(len(ids), np.int64), names)], np.zeros(0, np.int64)
    for hop in range(1, reach + 1):
        walk, edge = _matches(walks[:, 1], producer)
        source, node, name = walks[walk, 0], consumer[edge], names[walk]
        # a walk that reaches a configurable node ends in a meeting
        reader = place[node] >= 0
        own_names = np.broadcast_to(np.arange(6), name[reader].shape)
        read.append(Meetings(np.stack([source[reader], place[node[reader]]], axis=1), np.zeros(reader.sum(), bool),
                             np.full(reader.sum(), hop), np.stack([name[reader], own_names], axis=1)))
        # the other walks go on; of equally short walks to a node, the one whose names come first is kept
        on = ~reader & (renaming[edge, 0] >= 0)
        key, name = source[on] * n + node[on], np.take_along_axis(renaming[edge[on]], name[on], axis=1)
        order = np.lexsort((*name.T[::-1], key))
        key, first = np.unique(key[order], return_index=True)
        new = ~np.isin(key, seen)
        if new.sum() > MAX_WALKS:
            return read, visited, hop
        seen, names = np.concatenate([seen, key[new]]), name[order][first[new]]
        walks = np.stack([key[new] // n, key[new] % n], axis=1)
        visited.append((walks, np.full(len(walks), hop), names))
    return read, visited, reach


def _matches(wanted, values):
    """Find each of `wanted` (a,) in sorted `values` (b,) -> all pairs of positions, (q,) and (q,)."""
    low, high = np.searchsorted(values, wanted), np.searchsorted(values, wanted, side="right")
    count = high - low
    start = np.repeat(low - (count.cumsum() - count), count)
    return np.repeat(np.arange(len(wanted)), count), np.arange(count.sum()) + start


def _passages(graph):
    """Edges by producer: (m,) producer, (m,) consumer, (m, 6) new name of each dimension, -1 where a path ends."""
    order = np.argsort(graph.edge_index[:, 1], kind="stable")
    consumer, producer = graph.edge_index[order].T
    shape, rank = graph.node_feat[:, SHAPE], tensor_rank(graph.node_feat)
    renaming = np.tile(np.arange(6), (len(order), 1))
    moved = graph.node_opcode[consumer] == TRANSPOSE
    # dimension i of a transpose is dimension source[i] of its operand; past the rank each dimension keeps its name
    source = graph.node_feat[consumer[moved], DIMENSIONS].astype(np.int64)
    source = np.where(np.arange(6) < rank[consumer[moved], None], source, np.arange(6))
    whole = (np.sort(source, axis=1) == np.arange(6)).all(axis=1)
    source[~whole] = np.arange(6)
    renaming[moved] = np.argsort(source, axis=1)
    kept = (np.take_along_axis(shape[producer], np.argsort(renaming, axis=1), axis=1) == shape[consumer]).all(axis=1)
    kept[np.flatnonzero(moved)[~whole]] = False
    return producer, consumer, np.where(kept[:, None], renaming, -1)


def _joins(visited, reach):
    """Meetings of two sources whose walks have visited the same node."""
    walks, hop, names = map(np.concatenate, zip(*visited))
    order = np.argsort(walks[:, 1], kind="stable")
    walks, hop, names = walks[order], hop[order], names[order]
    for within in range(max(reach, 1), 0, -1):               # if there are too many pairs, keep only the nearer ones
        near = np.flatnonzero(hop < within)
        count = np.unique(walks[near, 1], return_counts=True)[1]
        if (count.astype(float) ** 2).sum() <= 4 * MAX_WALKS:
            break
    one, other = (near[i] for i in _matches(walks[near, 1], walks[near, 1]))
    apart = (walks[one, 0] != walks[other, 0]) & (hop[one] + hop[other] <= within)
    one, other = one[apart], other[apart]
    return Meetings(np.stack([walks[one, 0], walks[other, 0]], axis=1), np.ones(len(one), bool), hop[one] + hop[other],
                    np.stack([names[one], names[other]], axis=1))


class _Program(NamedTuple):
    """A program in the form that the tables read; here a layout is its two minor-most dimensions."""
    ids: np.ndarray              # (nc,) int64
    place: np.ndarray            # (n,) int64; position in ids, -1 for the other nodes
    consumer: np.ndarray         # (m,) int64
    producer: np.ndarray         # (m,) int64
    default: np.ndarray          # (n, 2) int8; layout of each node
    shape: np.ndarray            # (n, 6)
    elements: np.ndarray         # (n,) float64
    size: np.ndarray             # (n,) float64; log(1 + elements) / 10, about 0 to 2
    given: np.ndarray            # (nc, k, 3) bool; whether a code gives a layout of output, input, kernel
    rows: np.ndarray             # (nc, k, 3, 2) int8; the layouts given


def agreement_tables(graph, reach=REACH):
    """Tabulate how far the layouts given to a LayoutGraph's nodes agree with their surroundings -> Agreement."""
    # only the two minor-most dimensions of a layout are compared. A layout that is not given counts as agreeing; only
    # in a pair, a producer whose output layout is not given is compared by its default
    ids, shape = graph.node_config_ids, graph.node_feat[:, SHAPE]
    place = np.full(len(shape), -1)
    place[ids] = np.arange(len(ids))
    default = repad_layout(graph.node_feat)[0][:, LAYOUT].clip(-1, 5).astype(np.int8)[:, :2]
    elements = np.maximum(shape, 1).prod(axis=1, dtype=np.float64)
    program = _Program(ids, place, *graph.edge_index.T, default, shape, elements, np.log1p(elements) / 10,
                       given=graph.code_rows[:, :, ::6] >= 0,
                       rows=graph.code_rows.reshape(*graph.code_rows.shape[:2], 3, 6)[..., :2])
    largest, smallest = _extreme_operands(program)
    width = np.maximum(graph.node_feat[:, ELEMENT_TYPE] @ np.array(TYPE_BYTES, np.float64), 1)
    size = width * elements * 2 ** _padding(shape, default)                # bytes in memory
    # output, left and right operand of a product of matrices have M N, M K and K N elements, so their geometric mean
    # gives its M N K multiply-adds; the same holds for a convolution, up to the square root of its window
    work = np.sqrt(elements[ids] * elements[largest] * elements[smallest]) * (largest >= 0)
    work = work * np.isin(graph.node_opcode[ids], (CONVOLUTION, DOT)) / BALANCE
    columns = (size[ids], size[largest] * (largest >= 0), work)
    return Agreement(_own_table(program, (ids, largest, smallest)),
                     *((column / size.max()).astype(np.float32) for column in columns),
                     *_pair_tables(graph, program, reach))


def _own_table(p, tensors):
    """Features of each node and code, (nc, k, 14); `tensors`: output, largest and smallest operand of each node."""
    own = np.zeros((*p.given.shape[:2], OwnColumns.COUNT), np.float32)
    disagree, size = own[..., OwnColumns.DISAGREE], np.zeros((*p.given.shape[:2], 4))
    own[..., OwnColumns.GIVEN] = p.given
    disagree[..., 0] = _differ(p.rows[:, :, 0], p.default[p.ids][:, None]) * p.given[:, :, 0]
    disagree[..., 1:3], size[..., 1:3] = _operand_disagreements(p)
    size[..., 0] = size[..., 3] = p.size[p.ids, None]
    # the output with the defaults of consumers that have its shape: the mean over these consumers
    same = (p.shape[p.consumer] == p.shape[p.producer]).all(axis=1) & (p.place[p.producer] >= 0)
    node, reader = p.place[p.producer[same]], p.consumer[same]
    np.add.at(disagree[..., 3], node, _differ(p.rows[node, :, 0], p.default[reader][:, None]) * p.given[node, :, 0])
    disagree[..., 3] /= np.maximum(np.bincount(node, minlength=len(own)), 1)[:, None]
    own[..., OwnColumns.BY_SIZE] = disagree * size
    growth = own[..., OwnColumns.GROWTH]
    for part, tensor in enumerate(tensors):
        shape, default = p.shape[tensor][:, None], p.default[tensor][:, None]
        grown = _padding(shape, p.rows[:, :, part]) - _padding(shape, default)
        growth[..., part] = np.where(p.given[:, :, part] & (tensor >= 0)[:, None], grown, 0)
    return own


def _operands(p):
    """Edges into configurable nodes: position of the node, (q,), and its operand, (q,)."""
    read = p.place[p.consumer] >= 0
    return p.place[p.consumer[read]], p.producer[read]


def _operand_disagreements(p):
    """Compare input and kernel layouts with the best-fitting operand -> disagreement, size; (nc, k, 2) each."""
    # edges do not keep operand order; of operands that fit equally well, the larger is taken as the input and the
    # smaller as the kernel
    node, operand = _operands(p)
    differ = _differ(p.rows[node, :, 1:], p.default[operand][:, None, None])              # (edges, k, 2)
    best = np.full((*p.given.shape[:2], 2), np.inf, np.float32)
    np.minimum.at(best, node, differ)
    sign = np.array([1, -1], np.float32)
    most = np.full(best.shape, -np.inf, np.float32)
    np.maximum.at(most, node, np.where(differ == best[node], p.size[operand][:, None, None] * sign, -np.inf)
                  .astype(np.float32))
    return (np.where(np.isfinite(best), best, 0) * p.given[:, :, 1:], np.where(np.isfinite(most), most * sign, 0))


def _pair_tables(graph, p, reach):
    """The last four fields of Agreement: the pairs."""
    met, k = graph.meetings or find_meetings(graph), p.rows.shape[1]
    near = met.hops <= next(h for h in range(min(reach, met.hops.max(initial=0)), -1, -1)
                            if (met.hops <= h).sum() * k * k <= MAX_PAIR_ROWS)
    (v, u), joins, hops = met.ends[near].T, met.joins[near], met.hops[near]               # v: producer
    # the layout that either node delivers, in the dimension names of the place where they meet; (pairs, k, 2) each
    delivered = np.where(p.given[:, :, :1], p.rows[:, :, 0], p.default[p.ids][:, None])
    first, other = ((np.pad(met.names[near, end], ((0, 0), (0, 1)), constant_values=-1)[
        np.arange(len(v))[:, None, None], delivered[node]]) for end, node in enumerate((v, u)))
    # how many of the two dimensions differ between the delivered layout and the consumer's output, input and kernel
    differ = (first[:, :, None, None] != p.rows[u][:, None]).sum(axis=-1, dtype=np.int8)  # (pairs, k, k, 3)
    differ *= p.given[u][:, None] & ~joins[:, None, None, None]
    better = np.where(p.given[u][:, None, :, 1:].all(axis=-1), differ[..., 1:].min(axis=-1),
                      differ[..., 1:].max(axis=-1))
    shape = p.shape[p.ids]
    like = (shape[v] == np.take_along_axis(shape[u], met.names[near, 0], axis=1)).all(axis=1)
    outputs = differ[..., 0] * like[:, None, None]
    joined = (first[:, :, None] != other[:, None]).sum(axis=-1, dtype=np.int8) * joins[:, None, None]
    # a pair has few distinct rows. So each row is encoded as a number in base 3, and each distinct number is kept once
    places = PairColumns.DISAGREE.stop
    number = 3 ** places * np.arange(len(v))[:, None, None]
    for place, digit in enumerate((differ[..., 1], differ[..., 2], better, outputs, joined)):
        number = number + 3 ** place * digit.astype(np.int64)
    kept, pair = np.unique(number, return_inverse=True)
    row_pair, number = np.divmod(kept, 3 ** places)
    rows = np.empty((len(kept), PairColumns.COUNT), np.float32)
    rows[:, PairColumns.DISAGREE] = number[:, None] // 3 ** np.arange(places) % 3 / 2
    rows[:, PairColumns.BY_SIZE] = rows[:, PairColumns.DISAGREE] * p.size[p.ids[v[row_pair]], None]
    rows[:, PairColumns.NEARNESS] = np.stack([~joins / hops, joins / hops], axis=1)[row_pair]
    return np.stack([v, u], axis=1), pair.reshape(len(v), k, k).astype(np.int32), row_pair, rows


def _extreme_operands(p):
    """The largest and the smallest operand of each configurable node, (nc,) and (nc,); -1 if it has no operand."""
    node, operand = _operands(p)
    # equal sizes are ordered by shape, then by layout, so that the order of the edges does not matter
    order = np.lexsort((*p.default[operand].T, *p.shape[operand].T, p.elements[operand], node))
    found = np.full((2, len(p.ids)), -1)
    found[0, node[order]] = operand[order]                                 # of several operands, the last one stays
    found[1, node[order[::-1]]] = operand[order[::-1]]
    return found


def _padding(shape, digits):
    """log2 of the factor by which padding enlarges `shape` (..., 6) under the layout `digits` (..., 2)."""
    shape = np.broadcast_to(shape, digits.shape[:-1] + shape.shape[-1:])
    size = np.take_along_axis(shape, digits.clip(0).astype(np.int64), axis=-1)
    size = np.where((digits < 0) | (size < 1), 1, size)
    return np.where(digits < 0, 0, np.log2(np.ceil(size / MEMORY_TILE) * MEMORY_TILE / size)).sum(axis=-1)


def _differ(a, b):
    """Share of the two minor-most dimensions that differ; (..., 2), (..., 2) -> (...)."""
    return (a != b).mean(axis=-1, dtype=np.float32)
