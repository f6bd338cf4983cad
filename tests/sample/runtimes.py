"""Runtimes of the sample data: a roofline model of one TPU v3 core, here for layouts.

It describes a plausible machine, not a measured one. It reads nothing but the arrays in a file. A search or a test can
therefore ask for the noise-free runtime of *any* configuration.

**Constants.** 61.5 TFLOP/s (two 128 x 128 matrix units at 940 MHz) and 450 GB/s of HBM: half of a two-core TPU v3
chip (Jouppi et al., A domain-specific supercomputer for training deep neural networks, CACM 63(7), 2020). Arrays lie in
memory in tiles of 8 x 128 elements (OpenXLA documentation, "Tiled layout"): the minor-most dimension is padded to 128,
the second minor-most to 8. Two constants are invented: the share of a transpose and the time of a turned output.

**Layout.** Of a layout, the model uses the pair (minor-most, second minor-most dimension) alone. A configurable
Convolution, Dot or Reshape *wants* its operands in, and *delivers* its output in, the pairs in its row of 18 digits:
0-5 output, 6-11 input, 12-17 kernel. -1 stands for the compiler's choice, columns 134-139 of the tensor's own node.
Nodes of these opcodes that are not configurable behave as if all their digits were -1. Then seconds = own + copies:

- own = sum over Convolution and Dot of max(t x FLOPs / (peak x fill), padded bytes of the three tensors / bandwidth).
  t = 1.5 where the output is turned (its last dimension is not minor-most), otherwise 1. fill = c / ceil128(c) x
  f / ceil128(f) for contraction size c (window x input features) and f output features. A Reshape adds padded bytes /
  bandwidth, twice if the last dimension is minor-most on one side only. Reduce, ReduceWindow, SelectAndScatter and
  Concatenate add their traffic, and a Slice adds its output twice; no configuration changes this.
- copies = sum over the places where a tensor arrives in another pair than its reader wants: padded bytes /
  (bandwidth / 2). A Convolution, Dot or Reshape counts the bytes before and after. An elementwise operation
  transposes while it reads and counts the bytes before.

Layouts travel. An elementwise operation, a ReduceWindow, a SelectAndScatter, a Concatenate or a Slice delivers the
layout of its *leader*, the last operand of its own rank, and wants this layout of its other operands of that rank.
Masks (pred) are exempt: they are computed where they are used. A Transpose is a bitcast that renames the dimensions of
the pair. Broadcast, Constant and Iota come in any layout for free, as does everything computed from them alone. Every
other operation delivers its columns 134-139 and takes its operands as they come. So time is lost where two layouts
meet, often those of two configurable nodes.

Edges have no operand order. The kernel of a Convolution is the operand whose spatial sizes are those of the window;
the first operand of a Dot is the one whose leading size is that of the output. If both operands fit, or none, the
later one is the kernel. A Dot whose three tensors have one rank is batched over all but the last two dimensions of
its output.
"""
import numpy as np

from kit import pad
from kit.data import OPCODE_NAMES
from kit.pad import LANES, LAYOUT, SUBLANES
from sample.programs import TYPE_COLUMN

PEAK_FLOPS = 61.5e12             # 1/s, bfloat16 (Jouppi et al.); float32 as well, by XLA's default in one pass
HBM_BYTES = 450e9                # 1/s (Jouppi et al.)
TRANSPOSE_SHARE = 0.5            # of the bandwidth
TURNED_OUTPUT = 1.5              # times the compute
CONVOLUTION, DOT, RESHAPE, TRANSPOSE = map(OPCODE_NAMES.index, ("convolution", "dot", "reshape", "transpose"))
STREAMING = set(map(OPCODE_NAMES.index, ("reduce", "reduce-window", "select-and-scatter", "concatenate")))
SLICE = OPCODE_NAMES.index("slice")          # it reads no more than it writes
FREE = set(map(OPCODE_NAMES.index, ("broadcast", "constant", "iota")))
FOLLOWING = set(map(OPCODE_NAMES.index, (
    "abs", "add", "compare", "concatenate", "convert", "divide", "exponential", "log", "logistic", "maximum", "minimum",
    "multiply", "negate", "reduce-window", "reverse", "rsqrt", "select", "select-and-scatter", "slice", "sqrt",
    "subtract", "tanh")))
PAIRS = 36                                   # a layout pair as one number: 6 * minor-most + second minor-most


class LayoutSimulator:
    """Noise-free runtime of one program as a function of its layout configurations.

    It takes a file's node_feat (n, 140), node_opcode (n,), edge_index (m, 2) and node_config_ids (nc,). A Dot that gets
    its first operand as the compiler left it, and one that wants it transposed:

    >>> feat = np.zeros((3, 140))
    >>> feat[:, 13], feat[:, 21:23], feat[:, 134] = 1, 1024, 1       # three float32 arrays of 1024 x 1024
    >>> rows = np.full((2, 1, 18), -1)
    >>> rows[1, 0, 6:8] = 0, 1
    >>> own, copies = LayoutSimulator(feat, [63, 63, 34], [[2, 0], [2, 1]], [2])(rows, parts=True)
    >>> print((own * 1e6).round(1), (copies * 1e6).round(1))
    [34.9 34.9] [ 0.  37.3]
    """

    def __init__(self, node_feat, node_opcode, edge_index, node_config_ids):
        self.tensors = tensors = Tensors(node_feat, node_opcode, edge_index)
        opcode, padded, rank = tensors.opcode, tensors.padded, tensors.rank
        placed = [v for v, op in enumerate(opcode) if op in (CONVOLUTION, DOT, RESHAPE)]
        # The table of pairs has a column for the output, first operand and kernel of each placed node, then one for
        # the output of every node. `default` is a row of this table, `owner` the tensor of each of the first columns.
        self.owner = np.array([u for v in placed for u in (v, *tensors.roles(v))], dtype=int)
        self.default = np.concatenate([tensors.pair[self.owner], tensors.pair]).astype(np.uint8)
        self.meetings = self._find_meetings({v: 3 * i for i, v in enumerate(placed)})
        # which columns of the table a configuration sets, and from which tensor of which configurable node
        row_of = {v: k for k, v in enumerate(np.asarray(node_config_ids).tolist())}
        self.nc = len(row_of)
        self.chosen = np.array([3 * i + s for i, v in enumerate(placed) if v in row_of for s in range(3)], dtype=int)
        self.source = np.array([3 * row_of[v] + s for v in placed if v in row_of for s in range(3)], dtype=int)
        self.reshapes = np.array([opcode[v] == RESHAPE for v in placed], dtype=bool)
        self.used = np.tile([True, True, True], (len(placed), 1))
        self.used[self.reshapes, 2] = False                     # a Reshape has one operand
        self.compute = np.array([tensors.matrix_seconds(v) for v in placed])
        self.last = rank[self.owner] - 1
        moved = {v: (v, *tensors.operands[v]) for v, op in enumerate(opcode) if op in STREAMING}
        moved |= {v: (v, v) for v, op in enumerate(opcode) if op == SLICE}
        self.fixed = sum(padded[u, tensors.pair[u]] for tensor in moved.values() for u in tensor) / HBM_BYTES

    def _find_meetings(self, slot):
        """Where a tensor arrives and a pair is wanted: six arrays, one value per place.

        Column of the wanted pair and its renaming, column of the delivered pair and its renaming, tensor, whether a
        copy is written; `slot` has the first column of each placed node.
        """
        tensors, constant, as_is = self.tensors, len(self.owner), np.arange(PAIRS)
        opcode, rank, masks = tensors.opcode, tensors.rank.tolist(), tensors.feat[:, TYPE_COLUMN["pred"]] > 0
        delivered, meetings = {}, []                            # node -> (column, renaming); None: any layout

        def meet(wanted, names, u, writes):
            if delivered[u] and rank[u] > 1:
                meetings.append((wanted, names, *delivered[u], u, writes))

        for v, operands in enumerate(tensors.operands):
            same = [u for u in operands if rank[u] == rank[v]]
            if v in slot:
                first, kernel = tensors.roles(v)
                meet(slot[v] + 1, as_is, first, True)
                if kernel != first:
                    meet(slot[v] + 2, as_is, kernel, True)
                delivered[v] = slot[v], as_is
            elif opcode[v] in FREE:
                delivered[v] = None
            elif opcode[v] == TRANSPOSE and delivered[operands[0]]:
                column, names = delivered[operands[0]]
                delivered[v] = column, tensors.renaming(v)[names]
            elif opcode[v] in FOLLOWING and same:
                bound = [u for u in same if delivered[u]]
                delivered[v] = delivered[bound[-1]] if bound else None
                for u in bound[:-1]:
                    if not masks[u]:
                        meet(*delivered[v], u, False)
            else:
                delivered[v] = constant + v, as_is
        return [np.array(column) for column in zip(*meetings)]

    def __call__(self, config_rows, parts=False):
        """Seconds (k,) of configurations (k, nc, 18); with `parts`, the two summands (own, copies)."""
        rows = np.asarray(config_rows)
        if rows.ndim != 3 or rows.shape[1:] != (self.nc, 18):
            raise ValueError(f"config_rows has shape {rows.shape}; expected (k, {self.nc}, 18)")
        if rows.size and not -1 <= rows.min() <= rows.max() <= 5:
            raise ValueError(f"config_rows holds {rows.min()}..{rows.max()}; digits lie in -1..5")
        # the table of pairs, one row per configuration
        minor, second = (rows[:, :, i::6].reshape(len(rows), -1)[:, self.source].astype(np.int64) for i in (0, 1))
        asked = 6 * minor + np.where(second < 0, minor, second)        # of rank 1: its only dimension twice
        pairs = np.tile(self.default, (len(rows), 1))
        pairs[:, self.chosen] = np.where(minor < 0, self.default[self.chosen], asked)
        own, copies = self._own(pairs[:, :len(self.owner)]), self._copies(pairs)
        return (own, copies) if parts else own + copies

    def _own(self, pairs):
        """Seconds (k,) that the nodes take by themselves; pairs (k, 3 * placed nodes)."""
        k = len(pairs)
        traffic = (self.tensors.padded[self.owner, pairs].reshape(k, -1, 3) * self.used).sum(2) / HBM_BYTES
        # whether the last dimension is minor-most: of the output, the first operand, the kernel
        ends = (pairs // 6 == self.last).reshape(k, -1, 3)
        crossing = self.reshapes & (ends[:, :, 0] != ends[:, :, 1])
        turned = np.where(ends[:, :, 0] | self.reshapes, 1.0, TURNED_OUTPUT)
        seconds = np.maximum(traffic / np.where(crossing, TRANSPOSE_SHARE, 1.0), self.compute * turned)
        return seconds.sum(1) + self.fixed

    def _copies(self, pairs):
        """Seconds (k,) of the copies between layouts that disagree; pairs (k, columns of the table)."""
        if not self.meetings:
            return np.zeros(len(pairs))
        wanted, wanted_names, given, given_names, tensor, writes = self.meetings
        at, padded = np.arange(len(tensor)), self.tensors.padded
        after, before = wanted_names[at, pairs[:, wanted]], given_names[at, pairs[:, given]]       # (k, meetings)
        moved = (padded[tensor, before] + padded[tensor, after] * writes) * (before != after)
        return moved.sum(1) / (HBM_BYTES * TRANSPOSE_SHARE)


def rounded_up(value, multiple):
    """The next multiple."""
    return np.ceil(np.asarray(value) / multiple) * multiple


class Tensors:
    """The node arrays read as tensors: shapes, element sizes, layout pairs, operands."""

    def __init__(self, node_feat, node_opcode, edge_index):
        self.feat = np.asarray(node_feat, dtype=np.float64)
        self.opcode = np.asarray(node_opcode).tolist()
        self.dims = self.feat[:, pad.SHAPE].astype(np.int64)
        self.rank = (self.dims > 0).sum(1)
        self.width = self.feat[:, pad.ELEMENT_TYPE] @ np.array(pad.TYPE_BYTES)                  # bytes per element
        at_least = np.maximum(self.dims, 1)
        self.size = at_least.prod(1)
        minor, second = self.feat[:, LAYOUT][:, :2].astype(np.int64).T
        self.pair = 6 * minor + np.where(self.rank > 1, second, minor)
        # bytes (n, 36) that a tensor takes in memory in each layout pair
        lanes, sublanes = rounded_up(at_least, LANES) / at_least, rounded_up(at_least, SUBLANES) / at_least
        waste = lanes[:, :, None] * np.where(np.eye(6, dtype=bool), 1.0, sublanes[:, None, :])
        waste[self.rank == 0] = 1
        self.padded = (self.size * self.width)[:, None] * waste.reshape(-1, PAIRS)
        self.operands = [[] for _ in self.opcode]
        for v, u in sorted(np.asarray(edge_index).reshape(-1, 2).tolist()):
            self.operands[v].append(u)

    def roles(self, v):
        """(first operand, kernel) of node v; a node with one operand has it in both roles."""
        first, kernel = self.operands[v][0], self.operands[v][-1]
        if self.opcode[v] == DOT:
            lead = [self.dims[u, 0] == self.dims[v, 0] for u in (first, kernel)]
            return (kernel, first) if lead == [False, True] else (first, kernel)
        taps = [int(w) for w in self.feat[v, pad.WINDOW_SIZE] if w]
        spatial = self.feat[v, pad.KERNEL_SPATIAL][:len(taps)].astype(int)
        fits = [self.dims[u, spatial].tolist() == taps for u in (first, kernel)]
        return (kernel, first) if fits == [True, False] else (first, kernel)

    def matrix_seconds(self, v):
        """FLOPs of node v / (peak x fill); 0 for a Reshape."""
        if self.opcode[v] == RESHAPE:
            return 0.0
        first, kernel = self.roles(v)
        if self.opcode[v] == CONVOLUTION:
            contracted = self.feat[v, pad.WINDOW_PRODUCT] * self.dims[kernel, int(self.feat[v, pad.KERNEL_INPUT])]
            features = self.dims[v, int(self.feat[v, pad.OUTPUT_FEATURE])]
        else:
            shape = self.dims[v, :self.rank[v]]
            batched = self.rank[first] == self.rank[kernel] == self.rank[v]
            batch = self.size[v] / np.prod(shape[-2:]) if batched else 1
            contracted = np.sqrt(self.size[first] * self.size[kernel] / (self.size[v] * batch))
            features = shape[-1]
        fill = contracted / rounded_up(contracted, LANES) * features / rounded_up(features, LANES)
        return 2 * self.size[v] * contracted / (PEAK_FLOPS * fill)

    def renaming(self, v):
        """(36,) pairs of the operand of Transpose v -> pairs of its output."""
        rank = self.rank[v]
        to = np.arange(6)
        to[self.feat[v, pad.DIMENSIONS][:rank].astype(int)] = np.arange(rank)
        minor, second = np.divmod(np.arange(PAIRS), 6)
        return 6 * to[minor] + to[second]

    def blocks(self, v):
        """Dimensions of v from major to minor, and how many blocks of 1, 8 or 128 elements each has."""
        rank = self.rank[v]
        order = self.feat[v, LAYOUT][:rank].astype(int)[::-1]
        return order.tolist(), np.ceil(self.dims[v, order] / self.units(rank))

    def units(self, rank):
        """Elements per block in each dimension, from major to minor."""
        return np.array([1] * 4 + [SUBLANES, LANES])[6 - rank:]
