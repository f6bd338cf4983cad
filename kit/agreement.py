"""Where the layouts given to two nodes meet, and how far they agree there: disagreement makes the compiler copy.

A configuration may give a configurable node a layout for its output, for its input and for its kernel. Where a given
layout differs from the layout that a neighbour delivers, wants or has by default, the compiler inserts a copy of
that tensor. Neighbours may be several edges apart, because many operations pass a layout on.

There are two steps. `find_meetings` lists the pairs of configurable nodes whose layouts meet. `agreement_tables`
computes the disagreements once per graph: one table over nodes and their codes, one over pairs and the codes of both
nodes. Features of this kind carried the boosted trees of the 11th place. Beside them, the tables hold how many bytes
each code and each copy moves.
"""
from typing import NamedTuple

import numpy as np

from kit.data import OPCODE_NAMES, Meetings
from kit.pad import (
    DIMENSIONS,
    ELEMENT_TYPE,
    KERNEL_INPUT,
    KERNEL_SPATIAL,
    LANES,
    LAYOUT,
    OUTPUT_FEATURE,
    SHAPE,
    SUBLANES,
    TYPE_BYTES,
    WINDOW_PRODUCT,
    WINDOW_SIZE,
    repad_layout,
    tensor_rank,
)

CONVOLUTION, DOT, TRANSPOSE = map(OPCODE_NAMES.index, ("convolution", "dot", "transpose"))
# the compiler lets these operations pass a layout on although their sizes change (XLA, layout_assignment.cc)
RESIZING = tuple(map(OPCODE_NAMES.index, ("concatenate", "dynamic-slice", "dynamic-update-slice", "pad",
                                          "reduce-window", "select-and-scatter", "slice")))
INPUT_BATCH, KERNEL_OUTPUT, OUTPUT_BATCH = 93, 100, 105
REACH = 12                       # edges within a pair; 6 to 10 in public U-Nets
MAX_WALKS = 1 << 20              # walks followed at once, 70 MB; the largest public graph at hand needs 2,000
MAX_PAIR_ROWS = 1 << 22          # 50,000 pairs with 9 codes per node, 200 MB; public graphs have some thousand pairs
MEMORY_TILE = LANES, SUBLANES    # of the minor-most dimension and of the next one
BALANCE = 256                    # multiply-adds per byte with which arithmetic takes as long as memory; accelerators
#                                  have some hundred. Only the order of magnitude matters: a model learns its own factor


BYTES, MOVED = 6, 3              # columns of Agreement.bytes and Agreement.moved


class OwnColumns:
    """Columns of `Agreement.own`: one code of one configurable node."""
    GIVEN = slice(0, 3)          # 1 if the code gives a layout: for the output, for the input, for the kernel
    DISAGREE = slice(3, 7)       # 0 to 1: output with the node's default, input and kernel each with the default of
    #                              the best-fitting operand, output with the defaults of consumers of equal shape
    BY_SIZE = slice(7, 11)       # DISAGREE times log(1 + elements of the tensor) / 10
    GROWTH = slice(11, 14)       # log2(memory under the given layout / memory under the default layout), both padded
    #                              to tiles of 8 x 128: output, largest operand, smallest operand
    PLAIN = slice(0, 14)         # the columns above, which do not ask which operand is the kernel
    OPERANDS = slice(14, 18)     # the same for the first operand and the kernel: disagreement of both, GROWTH of both
    ROOF = 18                    # log2(time of arithmetic / time of memory), -8 to 8; 0 for other than matrix products
    MET = slice(19, 21)          # 1 if a configurable node delivers the first operand, the kernel
    COUNT = 21


class PairColumns:
    """Columns of `Agreement.rows`: one pair of configurable nodes, under one code each."""
    DISAGREE = slice(0, 5)       # 0 to 1: the producer's output with the consumer's input, with its kernel, with the
    #                              better of the two, with the consumer's output, with the other producer's output
    BY_SIZE = slice(5, 10)       # DISAGREE times log(1 + elements of the producer's output) / 10
    NEARNESS = slice(10, 12)     # 1 / edges between the two nodes: of producer and consumer, of two producers; else 0
    PLAIN = slice(0, 12)
    GROWTH = slice(12, 15)       # log2(memory of the producer's output / its memory under its default layout), where
    #                              layouts differ: as delivered, as the consumer's input, as its kernel; else 0
    ROLE = slice(15, 17)         # whether the producer's output arrives as the consumer's first operand, as its kernel
    SIZE = 17                    # log2(bytes of what arrives / bytes of the producer's output)
    RANK = slice(18, 20)         # of the producers in pairs with this consumer and ROLE: 1 / how many are at most as
    #                              far away; edges / 10 beyond those to the nearest one
    UNSET = slice(20, 22)        # 0 to 1: the producer's output with its default, if the consumer is not given the
    #                              layout of its first operand, of its kernel, and this is what the output arrives as
    COUNT = 22


class Agreement(NamedTuple):
    """Tables over the codes of a layout graph; p pairs of configurable nodes, r distinct rows of pair features."""
    own: np.ndarray              # (nc, k, 21) float32; see OwnColumns
    share: np.ndarray            # (nc,) float32; bytes of the node's tensor, padded to tiles of 8 x 128 in its default
    #                              layout, / those of the graph's largest tensor
    reads: np.ndarray            # (nc,) float32; the same for the node's largest operand
    work: np.ndarray             # (nc,) float32; arithmetic of a convolution or dot, as a share; see BALANCE
    bytes: np.ndarray            # (nc, k, 6) float32; as shares: output, first operand and kernel under this code;
    #                              what copies of first operand and kernel move, if no configurable node delivers them;
    #                              arithmetic, padded to a matrix unit of 128 x 128
    pairs: np.ndarray            # (p, 2) int64; positions in node_config_ids: producer, consumer
    pair: np.ndarray             # (p, k, k) int32 in 0..r-1; by the producer's code and the consumer's code
    row_pair: np.ndarray         # (r,) int64 in 0..p-1; a row belongs to one pair
    rows: np.ndarray             # (r, 22) float32; see PairColumns
    moved: np.ndarray            # (r, 3) float32; bytes that a copy reads and writes, as a share, if the consumer's
    #                              input is copied, if its kernel is, if the tensor is only read (two producers)


def find_meetings(graph, reach=REACH):
    """Find the pairs of configurable nodes whose layouts meet -> Meetings.

    The output of each configurable node is followed until another configurable node reads it. Its path leads through
    nodes that are not configurable and that have its shape, transpose it or resize it; it does not lead from a mask to
    what the mask selects, because a mask is computed where it is used. `graph` is the whole program,
    because pruning cuts such paths; `prune` calls this function before it cuts. `reach` is the largest number of edges
    between the two nodes of a pair; it is lowered if a step would follow more than `MAX_WALKS` walks. Each pair is
    found once, by its shortest path. Of equally short paths, the one whose names come first in order counts. A pair of
    two producers is listed in both orders.
    """
    read, visited, reach = _follow(graph, reach)
    ends, joins, hops, names, role, node = map(np.concatenate, zip(*read, _joins(visited, reach)))
    many = tensor_bytes(graph.node_feat)
    size = many[node] / many[graph.node_config_ids[ends[:, 0]]]
    order = np.lexsort((size, role, *names.reshape(-1, 12).T[::-1], hops, joins, ends[:, 1], ends[:, 0]))
    found = Meetings(*(column[order] for column in (ends, joins, hops, names, role, size)))
    once = np.ones(len(ends), bool)
    once[1:] = (found.ends[1:] != found.ends[:-1]).any(axis=1) | (found.joins[1:] != found.joins[:-1])
    return Meetings(*(column[once] for column in found))


def _follow(graph, reach):
    """Walk from each configurable node -> meetings with readers; (walks, hops, names) per hop; the reach in the end."""
    ids, n = graph.node_config_ids, len(graph.node_feat)
    place = np.full(n, -1)
    place[ids] = np.arange(len(ids))
    producer, consumer, role, renaming = _passages(graph)
    walks = np.stack([np.arange(len(ids)), ids], axis=1)                   # (w, 2): source, the node reached
    names = np.tile(np.arange(6), (len(ids), 1))                           # (w, 6): names of the source's dimensions
    read, visited, seen = [], [(walks, np.zeros(len(ids), np.int64), names)], np.zeros(0, np.int64)
    for hop in range(1, reach + 1):
        walk, edge = _matches(walks[:, 1], producer)
        source, node, name = walks[walk, 0], consumer[edge], names[walk]
        # a walk that reaches a configurable node ends in a meeting
        reader = place[node] >= 0
        own_names = np.broadcast_to(np.arange(6), name[reader].shape)
        read.append((np.stack([source[reader], place[node[reader]]], axis=1), np.zeros(reader.sum(), bool),
                     np.full(reader.sum(), hop), np.stack([name[reader], own_names], axis=1), role[edge[reader]],
                     walks[walk[reader], 1]))
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
    """Edges by producer: producer, consumer, role, (m,) each; new names of dimensions (m, 6), -1 where a path ends."""
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
    kept |= np.isin(graph.node_opcode[consumer], RESIZING) & (rank[producer] == rank[consumer])
    kept[np.flatnonzero(moved)[~whole]] = False
    mask = graph.node_feat[:, ELEMENT_TYPE][:, 1] > 0                      # a mask is computed where it is used
    kept &= mask[consumer] | ~mask[producer]
    return producer, consumer, operand_roles(graph, _depths(graph))[order], np.where(kept[:, None], renaming, -1)


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
    return (np.stack([walks[one, 0], walks[other, 0]], axis=1), np.ones(len(one), bool), hop[one] + hop[other],
            np.stack([names[one], names[other]], axis=1), np.zeros(len(one), np.int64), walks[one, 1])


def first_and_kernel(graph):
    """The first operand and the kernel of each configurable node, (2, nc) int64; -1 if it has no operand."""
    # of operands that may be either, which are alike in all that is read here, any one is taken
    place = np.full(len(graph.node_feat), -1)
    place[graph.node_config_ids] = np.arange(len(graph.node_config_ids))
    (consumer, producer), roles = graph.edge_index.T, operand_roles(graph)
    operands = np.full((2, len(graph.node_config_ids)), -1)
    for role, found in zip((1, 2), operands):
        found[place[consumer[roles & role > 0]]] = producer[roles & role > 0]
    return operands


def operand_roles(graph, depth=None):
    """What each edge carries: 1 the first operand of a configurable node, 2 its kernel, 3 either, 0 neither; (m,).

    With `depth` (n,), of operands that are alike in all else, the deepest is the kernel.
    """
    # edges do not keep operand order, so the shapes tell: a kernel has the sizes of the window and the features of the
    # output, a first operand has its batch. In a dot, sizes of the first operand come first in the output
    edges = np.flatnonzero(np.isin(graph.edge_index[:, 0], graph.node_config_ids))
    reader, operand = graph.edge_index[edges].T
    shapes, at = graph.node_feat[:, SHAPE], np.arange(len(edges))
    feat, shape, output, opcode = graph.node_feat[reader], shapes[operand], shapes[reader], graph.node_opcode[reader]

    def sizes(shapes, columns):
        return np.take_along_axis(shapes, feat[:, columns].astype(np.int64).clip(0, 5), axis=1)
    taps = feat[:, WINDOW_SIZE][:, :KERNEL_SPATIAL.stop - KERNEL_SPATIAL.start]
    window = ((sizes(shape, KERNEL_SPATIAL) == taps) | (taps == 0)).all(axis=1)
    features = sizes(shape, [KERNEL_OUTPUT]) == sizes(output, [OUTPUT_FEATURE])
    batch = sizes(shape, [INPUT_BATCH]) == sizes(output, [OUTPUT_BATCH])
    last = output[at, np.maximum((output != 0).sum(axis=1) - 1, 0)]
    fits = np.where(opcode == CONVOLUTION, window.astype(int) + features[:, 0] - batch[:, 0],
                    (opcode == DOT) * ((shape == last[:, None]).any(axis=1).astype(int)
                                       - (shape == output[:, :1]).any(axis=1)))
    # where shapes fit equally well, the smaller is the kernel
    depth = np.zeros(len(shapes)) if depth is None else depth
    bytes_read = tensor_bytes(graph.node_feat)[operand]
    keys = np.stack([depth[operand], *_layouts(graph)[operand].T, *shape.T, -bytes_read, fits, reader])
    order = np.lexsort(keys)
    keys = keys[:, order]
    new = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[:len(order)]
    begins = np.append(True, keys[-1, 1:] != keys[-1, :-1])[:len(order)]
    # the number of each operand's group of equals, and the first and the last such group of its reader
    group, node = new.cumsum(), begins.cumsum() - 1
    least, most = group[begins], group[np.append(begins[1:], True)[:len(order)]]
    roles = np.zeros(len(graph.edge_index), np.int64)
    roles[edges[order]] = (group == least[node]) + 2 * (group == most[node])
    return roles


def _depths(graph):
    """Edges on the longest path to each node, (n,) int64; -1 for nodes on and behind circles."""
    consumer, producer = graph.edge_index[np.argsort(graph.edge_index[:, 1], kind="stable")].T
    missing, depth = np.bincount(consumer, minlength=len(graph.node_feat)), np.full(len(graph.node_feat), -1)
    ready, level = np.flatnonzero(missing == 0), 0
    while len(ready):
        depth[ready] = level
        readers = consumer[_matches(ready, producer)[1]]
        np.subtract.at(missing, readers, 1)
        ready, level = np.unique(readers[missing[readers] == 0]), level + 1
    return depth


def _layouts(graph):
    """The two minor-most dimensions of each node's layout, (n, 2) int8; -1 where there is none."""
    return repad_layout(graph.node_feat)[0][:, LAYOUT].clip(-1, 5).astype(np.int8)[:, :2]


def tensor_bytes(node_feat):
    """Bytes of each node's output without padding, (n,) float64."""
    width = np.maximum(node_feat[:, ELEMENT_TYPE] @ np.array(TYPE_BYTES, np.float64), 1)
    return width * np.maximum(node_feat[:, SHAPE], 1).prod(axis=1, dtype=np.float64)


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
    default = _layouts(graph)
    elements = np.maximum(shape, 1).prod(axis=1, dtype=np.float64)
    program = _Program(ids, place, *graph.edge_index.T, default, shape, elements, np.log1p(elements) / 10,
                       given=graph.code_rows[:, :, ::6] >= 0,
                       rows=graph.code_rows.reshape(*graph.code_rows.shape[:2], 3, 6)[..., :2])
    size = tensor_bytes(graph.node_feat) * 2 ** _padding(shape, default)   # in memory
    size, unit = size / size.max(initial=1), size.max(initial=1)
    largest, smallest = _extreme_operands(program)
    # output, left and right operand of a product of matrices have M N, M K and K N elements, so their geometric mean
    # gives its M N K multiply-adds; the same holds for a convolution, up to the square root of its window
    work = np.sqrt(elements[ids] * elements[largest] * elements[smallest]) * (largest >= 0)
    work = work * np.isin(graph.node_opcode[ids], (CONVOLUTION, DOT)) / BALANCE / unit
    share, reads, work = (column.astype(np.float32) for column in (size[ids], size[largest] * (largest >= 0), work))
    pairs, pair, row_pair, rows, met, scale = _pair_tables(graph, program, reach)
    operands = first_and_kernel(graph)
    exact, moved_by_code = _exact_table(graph, program, operands, size, unit, met)
    own = np.concatenate([_own_table(program, (ids, largest, smallest)), exact], axis=2, dtype=np.float32)
    differ, (before, *after) = rows[:, PairColumns.DISAGREE] > 0, 2 ** rows[:, PairColumns.GROWTH].T
    unset, copied = rows[:, PairColumns.UNSET] > 0, (share[pairs[:, 0]] * scale)[row_pair, None]
    moved = copied * np.stack([*(differ[:, part] * (before + after[part]) + unset[:, part] * (before + 1)
                                 for part in range(2)), differ[:, 3:].any(axis=1) * before], axis=1)
    return Agreement(own, share, reads, work, moved_by_code, pairs, pair, row_pair, rows, moved.astype(np.float32))


def _exact_table(graph, p, operands, size, unit, met):
    """The other columns of OwnColumns, (nc, k, 7), and Agreement.bytes, (nc, k, 6); `size`: bytes (n,) / `unit`."""
    usual = np.stack([size[node] * (node >= 0) for node in (p.ids, *operands)], axis=1)        # (nc, 3)
    differ = np.stack([_differ(p.rows[:, :, part], p.default[node][:, None]) * p.given[:, :, part]
                       * (node >= 0)[:, None] for part, node in enumerate(operands, 1)], axis=2)
    growth = np.stack([_growth(p, node, part) for part, node in enumerate((p.ids, *operands))], axis=2)
    # bytes that a node reads and writes, and that copies move of operands which no configurable node delivers
    traffic = usual[:, None] * 2 ** growth
    copied = (usual[:, None] + traffic)[..., 1:] * (differ > 0) * ~met[:, None]
    work = (_multiply_adds(graph, p, *operands) / BALANCE / unit)[:, None]
    roof = np.where(work > 0, np.log2(work + 1e-12) - np.log2(traffic.sum(axis=2) + 1e-12), 0).clip(-8, 8)
    whole = growth.shape[:2]
    own = [differ, growth[..., 1:], roof[..., None], np.broadcast_to(met[:, None], (*whole, 2))]
    moved = [traffic, copied, np.broadcast_to(work[:, None], (*whole, 1))]
    return np.concatenate(own, axis=2), np.concatenate(moved, axis=2).astype(np.float32)


def _own_table(p, tensors):
    """Plain features of each node and code, (nc, k, 14); `tensors`: output, largest and smallest operand per node."""
    own = np.zeros((*p.given.shape[:2], OwnColumns.PLAIN.stop), np.float32)
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
    for part, tensor in enumerate(tensors):
        own[..., OwnColumns.GROWTH.start + part] = _growth(p, tensor, part)
    return own


def _growth(p, tensor, part):
    """log2 of what the layout of each code's `part` makes of a tensor per node (nc,), by default 0 -> (nc, k)."""
    shape, default = p.shape[tensor][:, None], p.default[tensor][:, None]
    grown = _padding(shape, p.rows[:, :, part]) - _padding(shape, default)
    return np.where(p.given[:, :, part] & (tensor >= 0)[:, None], grown, 0)


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
    """The last four fields of Agreement but `moved`; which operands are delivered, (nc, 2); bytes, as Meetings.size."""
    met = _near_meetings(graph, reach, p.rows.shape[1])
    producer, consumer = met.ends.T
    role = met.role[:, None] & [1, 2] > 0                                                  # (pairs, 2)
    # the layout that each node delivers, under each of its codes
    delivered = np.where(p.given[:, :, :1], p.rows[:, :, 0], p.default[p.ids][:, None])    # (nc, k, 2)
    digits = _pair_differences(p, met, role, delivered)
    pair, row_pair, digits, growth = _distinct_rows(digits, _pair_growth(p, met, delivered))
    rows = np.empty((len(row_pair), PairColumns.COUNT), np.float32)
    places, apart = PairColumns.DISAGREE.stop, np.stack([~met.joins / met.hops, met.joins / met.hops], axis=1)
    rows[:, PairColumns.DISAGREE], rows[:, PairColumns.UNSET] = digits[:, :places] / 2, digits[:, places:] / 2
    rows[:, PairColumns.BY_SIZE] = rows[:, PairColumns.DISAGREE] * p.size[p.ids[producer[row_pair]], None]
    rows[:, PairColumns.NEARNESS] = apart[row_pair]
    rows[:, PairColumns.GROWTH] = growth
    rows[:, PairColumns.ROLE] = role[row_pair]
    rows[:, PairColumns.SIZE] = np.log2(met.size)[row_pair]
    rows[:, PairColumns.RANK] = _ranks(consumer, met.role, met.hops)[row_pair]
    delivers = np.zeros((len(p.ids), 2), bool)
    np.logical_or.at(delivers, consumer, role)
    return met.ends.copy(), pair, row_pair, rows, delivers, met.size


def _near_meetings(graph, reach, k):
    """The meetings of a graph within `reach` edges, or fewer if their rows for `k` codes would be too many."""
    met = graph.meetings or find_meetings(graph)
    near = met.hops <= next(h for h in range(min(reach, met.hops.max(initial=0)), -1, -1)
                            if (met.hops <= h).sum() * k * k <= MAX_PAIR_ROWS)
    return Meetings(*(column[near] for column in met))


def _pair_differences(p, met, role, delivered):
    """How many of the two minor-most dimensions differ where pairs meet: seven int8 arrays, (pairs, k, k) each.

    The producer's output with the consumer's input, with its kernel, with the better of the two, with its output, with
    the other producer's output; with its own default, where it is an input and a kernel whose layout is not given.
    """
    (v, u), joins = met.ends.T, met.joins                                                  # v: producer
    # the layout that either node delivers, in the dimension names of the place where they meet; (pairs, k, 2) each
    first, other = ((np.pad(met.names[:, end], ((0, 0), (0, 1)), constant_values=-1)[
        np.arange(len(v))[:, None, None], delivered[node]]) for end, node in enumerate((v, u)))
    differ = (first[:, :, None, None] != p.rows[u][:, None]).sum(axis=-1, dtype=np.int8)  # (pairs, k, k, 3)
    differ *= p.given[u][:, None] & ~joins[:, None, None, None]
    better = np.where(p.given[u][:, None, :, 1:].all(axis=-1), differ[..., 1:].min(axis=-1),
                      differ[..., 1:].max(axis=-1))
    # outputs are compared where they have the same shape
    shape = p.shape[p.ids]
    like = (shape[v] == np.take_along_axis(shape[u], met.names[:, 0], axis=1)).all(axis=1)
    outputs = differ[..., 0] * like[:, None, None]
    joined = (first[:, :, None] != other[:, None]).sum(axis=-1, dtype=np.int8) * joins[:, None, None]
    # where the consumer is not given the layout of this operand, the compiler may keep the default
    changed = (delivered[v] != p.default[p.ids[v]][:, None]).sum(axis=-1, dtype=np.int8)
    unset = changed[:, :, None, None] * (~p.given[u][:, None, :, 1:] & role[:, None, None])
    return differ[..., 1], differ[..., 2], better, outputs, joined, unset[..., 0], unset[..., 1]


def _pair_growth(p, met, delivered):
    """log2 of how much more memory than by default a pair's tensor takes: as delivered, (pairs, k, 1), and as read.

    As read: as the consumer's input and as its kernel, (pairs, 1, k) each.
    """
    v, u = met.ends.T
    shape = p.shape[p.ids[v]]
    arriving = np.take_along_axis(shape, np.argsort(met.names[:, 0], axis=1), axis=1)
    usual = _padding(shape, p.default[p.ids[v]])[:, None]
    before = (_padding(shape[:, None], delivered[v]) - usual)[:, :, None]
    after = (_padding(arriving[:, None, None], p.rows[u][:, :, 1:]) - usual[:, :, None])[:, None]
    return before, after[..., 0], after[..., 1]


def _distinct_rows(digits, growths):
    """Each distinct row of a pair once -> Agreement.pair, Agreement.row_pair; digits (r, 7), growths (r, 3) of a row.

    `digits` as from `_pair_differences`, `growths` as from `_pair_growth`. A growth counts only where layouts differ,
    because the compiler then copies the tensor; elsewhere it is 0.
    """
    to_input, to_kernel, better, outputs, joined, *unset = digits
    differs = [to_input > 0, to_kernel > 0]
    copied = (better + outputs + joined > 0) | differs[0] | differs[1] | (unset[0] > 0) | (unset[1] > 0), *differs
    # a row is encoded as a number: its seven digits to the base of 3, the place of its growths, the number of its pair
    number, factor, levels = np.zeros(better.shape, np.int64), 1, []
    for digit in digits:
        number += factor * digit.astype(np.int64)
        factor *= 3
    for where, growth in zip(copied, growths):
        level, place = np.unique(np.round(growth, 3), return_inverse=True)
        level, place = np.concatenate([[0], level]), place.reshape(growth.shape) + 1
        number += factor * np.where(where, place, 0)
        factor *= len(level)
        levels.append(level)
    number += factor * np.arange(len(better))[:, None, None]
    kept, pair = np.unique(number, return_inverse=True)
    # and each number that is kept is decoded
    row_pair, number = np.divmod(kept, factor)
    found, number = number[:, None] // 3 ** np.arange(len(digits)) % 3, number // 3 ** len(digits)
    grown = np.empty((len(kept), len(levels)))
    for column, level in enumerate(levels):
        number, place = np.divmod(number, len(level))
        grown[:, column] = level[place]
    return pair.reshape(better.shape).astype(np.int32), row_pair, found, grown


def _ranks(consumer, role, hops):
    """The columns PairColumns.RANK of each pair, (p, 2): an operand has the layout of one producer, the nearest."""
    order = np.lexsort((hops, role, consumer))
    place, sorted_hops = 4 * consumer[order] + role[order], hops[order]
    begin = np.searchsorted(place, place)                                  # of the pairs with this consumer and role
    upto = np.searchsorted(place * (1 << 20) + sorted_hops, place * (1 << 20) + sorted_hops, side="right")
    ranks = np.empty((len(order), 2))
    ranks[order] = np.stack([1 / (upto - begin), (sorted_hops - sorted_hops[begin]) / 10], axis=1)
    return ranks


def _extreme_operands(p):
    """The largest and the smallest operand of each configurable node, (nc,) and (nc,); -1 if it has no operand."""
    node, operand = _operands(p)
    # equal sizes are ordered by shape, then by layout, so that the order of the edges does not matter
    order = np.lexsort((*p.default[operand].T, *p.shape[operand].T, p.elements[operand], node))
    found = np.full((2, len(p.ids)), -1)
    found[0, node[order]] = operand[order]                                 # of several operands, the last one stays
    found[1, node[order[::-1]]] = operand[order[::-1]]
    return found


def _multiply_adds(graph, p, first, kernel):
    """Multiply-adds of each configurable convolution and dot, (nc,), padded to a matrix unit of 128 x 128; else 0."""
    feat, output, opcode = graph.node_feat[p.ids], p.shape[p.ids], graph.node_opcode[p.ids]
    rank, of_first, of_kernel = ((p.shape[node] > 0).sum(axis=1) for node in (p.ids, first, kernel))
    # a dot that sums over one dimension has so many batch dimensions, which come first and which its operands have
    leading = np.arange(6) < (of_first + of_kernel - rank - 2)[:, None]
    shared = [(output[:, :, None] == p.shape[node][:, None]).any(axis=2) | ~leading for node in (first, kernel)]
    batch = np.where(np.all(shared, axis=(0, 2)), np.where(leading, np.maximum(output, 1), 1).prod(axis=1), 1)
    summed = np.sqrt(p.elements[first] * p.elements[kernel] / (p.elements[p.ids] * batch))
    kept = output[np.arange(len(output)), np.maximum(rank - 1, 0)]
    # a convolution sums over window and input features
    columns = feat[:, [KERNEL_INPUT, OUTPUT_FEATURE]].astype(np.int64).clip(0, 5)
    convolution = opcode == CONVOLUTION
    window = feat[:, WINDOW_PRODUCT] * np.take_along_axis(p.shape[kernel], columns[:, :1], axis=1)[:, 0]
    summed = np.maximum(np.where(convolution, window, summed), 1)
    kept = np.maximum(np.where(convolution, np.take_along_axis(output, columns[:, 1:], axis=1)[:, 0], kept), 1)
    padded = np.ceil(summed / LANES) * LANES * np.ceil(kept / LANES) * LANES
    return p.elements[p.ids] / kept * padded * (first >= 0) * np.isin(opcode, (CONVOLUTION, DOT))


def _padding(shape, digits):
    """log2 of the factor by which padding enlarges `shape` (..., 6) under the layout `digits` (..., 2)."""
    shape = np.broadcast_to(shape, digits.shape[:-1] + shape.shape[-1:])
    size = np.take_along_axis(shape, digits.clip(0).astype(np.int64), axis=-1)
    size = np.where((digits < 0) | (size < 1), 1, size)
    return np.where(digits < 0, 0, np.log2(np.ceil(size / MEMORY_TILE) * MEMORY_TILE / size)).sum(axis=-1)


def _differ(a, b):
    """Share of the two minor-most dimensions that differ; (..., 2), (..., 2) -> (...)."""
    return (a != b).mean(axis=-1, dtype=np.float32)
