"""How the runtimes of the sample data come about: a roofline model of one TPU v3 core, here for layouts.

The simulator is a function of the arrays in a file alone, so the noise-free runtime of *any* configuration can be
asked for, by a search or by a test. It is a plausible machine to learn from, not a measured one.

**Constants.** 61.5 TFLOP/s (two 128 x 128 matrix units at 940 MHz) and 450 GB/s of HBM: half of a two-core TPU v3
chip [1]_. Arrays lie in memory in tiles of 8 x 128 elements [2]_: the minor-most dimension is padded to 128, the
second to 8. Chosen: transposing gets half of the bandwidth, a turned output takes 1.5 times the compute.

**Layout.** All that counts of a layout is its pair (minor-most, second minor-most dimension). A configurable
Convolution, Dot or Reshape *wants* its operands in, and *delivers* its output in, the pairs that its row of 18
digits gives: 0-5 output, 6-11 input, 12-17 kernel; -1 is the compiler's choice, columns 134-139 of the tensor's own
node. Nodes of these opcodes that cannot be configured behave as if they had -1. Then seconds = own + copies, with

- own = sum over Convolution and Dot of max(t x FLOPs / (peak x fill), padded bytes of the three tensors / bandwidth),
  plus Reshape: padded bytes / bandwidth, or twice that if the last dimension is minor-most on one side only, plus
  the traffic of Reduce, ReduceWindow and SelectAndScatter, which no configuration changes; t = 1.5 where the output
  is turned (its last dimension is not minor-most); fill = c / ceil128(c) x f / ceil128(f) for contraction size c
  (window x input features) and f output features.
- copies = sum over the places where a tensor arrives in another pair than is wanted there: padded bytes / (bandwidth
  / 2), before + after where a Convolution, Dot or Reshape wants it, before only where an elementwise operation
  does, which transposes while it reads.

Layouts travel: an elementwise operation, a ReduceWindow or a SelectAndScatter delivers the layout of its *leader*,
the last operand of its own rank, and wants it of the others of that rank, except of masks (pred), which are computed
where they are used. A Transpose is a bitcast that renames the dimensions of the pair. Broadcast, Constant, Iota and
what is computed from them alone come in any layout for free. Everything else delivers its columns 134-139 and takes
its operands as they come. So time is made where two layouts meet, often those of two configurable nodes.

Edges carry no operand order. The kernel of a Convolution is the operand whose spatial sizes are the window's, the
first operand of a Dot the one whose leading size is the output's; where both or none fit, the later operand is the
kernel. A Dot whose three tensors have one rank is batched over all but the last two dimensions of its output.

References
----------
.. [1] Jouppi et al., A domain-specific supercomputer for training deep neural networks, CACM 63(7), 2020.
.. [2] OpenXLA documentation, "Tiled layout".
"""
import numpy as np

from kit.data import OPCODE_NAMES
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
    WINDOW_PRODUCT,
    WINDOW_SIZE,
)

PEAK_FLOPS = 61.5e12             # 1/s, bfloat16 [1]; float32 takes one pass as well, XLA's default precision
HBM_BYTES = 450e9                # 1/s [1]
TRANSPOSE_SHARE = 0.5            # of the bandwidth
TURNED_OUTPUT = 1.5              # times the compute
TYPE_BYTES = (0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 0, 0, 0)     # of columns 2-20
CONVOLUTION, DOT, RESHAPE, TRANSPOSE = map(OPCODE_NAMES.index, ("convolution", "dot", "reshape", "transpose"))
STREAMING = frozenset(map(OPCODE_NAMES.index, ("reduce", "reduce-window", "select-and-scatter")))
FREE = frozenset(map(OPCODE_NAMES.index, ("broadcast", "constant", "iota")))
FOLLOWING = frozenset(map(OPCODE_NAMES.index, (
    "abs", "add", "compare", "convert", "divide", "exponential", "log", "logistic", "maximum", "minimum", "multiply",
    "negate", "reduce-window", "reverse", "rsqrt", "select", "select-and-scatter", "sqrt", "subtract", "tanh")))
PAIRS = 36                                   # a layout pair as one number: 6 * minor-most + second


def simulate_layout(node_feat, node_opcode, edge_index, node_config_ids, config_rows, parts=False):
    """Noise-free runtime of a whole program under layout configurations.

    Parameters
    ----------
    node_feat : ndarray, shape (n, 140)
    node_opcode : ndarray, shape (n,)
    edge_index : ndarray, shape (m, 2)
        [u, v]: u consumes the output of v.
    node_config_ids : ndarray, shape (nc,)
    config_rows : ndarray, shape (k, nc, 18)
        Digits in -1..5.
    parts : bool
        Give the two summands instead of their sum.

    Returns
    -------
    ndarray, shape (k,), float64, seconds
        With `parts` the pair (own, copies): what each node costs by itself, and what disagreement costs.

    Raises
    ------
    ValueError
        If `config_rows` is not (k, nc, 18) or a digit lies outside -1..5.

    Examples
    --------
    A Dot that gets its first operand as the compiler left it, and one that wants it transposed:

    >>> feat = np.zeros((3, 140))
    >>> feat[:, 13], feat[:, 21:23], feat[:, 134] = 1, 1024, 1       # three float32 arrays of 1024 x 1024
    >>> rows = np.full((2, 1, 18), -1)
    >>> rows[1, 0, 6:8] = 0, 1
    >>> own, copies = simulate_layout(feat, [63, 63, 34], [[2, 0], [2, 1]], [2], rows, parts=True)
    >>> print((own * 1e6).round(1), (copies * 1e6).round(1))
    [34.9 34.9] [ 0.  37.3]
    """
    return layout_simulator(node_feat, node_opcode, edge_index, node_config_ids)(config_rows, parts)


def layout_simulator(node_feat, node_opcode, edge_index, node_config_ids):
    """Prepare `simulate_layout` for one program, for callers that ask many times.

    Parameters
    ----------
    node_feat : ndarray, shape (n, 140)
    node_opcode : ndarray, shape (n,)
    edge_index : ndarray, shape (m, 2)
    node_config_ids : ndarray, shape (nc,)

    Returns
    -------
    callable
        `run(config_rows, parts=False)` with the arguments and results of `simulate_layout`.
    """
    tensors = Tensors(node_feat, node_opcode, edge_index)
    n, opcode, rank, padded = len(tensors.opcode), tensors.opcode, tensors.rank.tolist(), tensors.padded
    placed = [v for v in range(n) if opcode[v] in (CONVOLUTION, DOT, RESHAPE)]
    slot = {v: 3 * i for i, v in enumerate(placed)}        # its three pairs; then one constant pair a node
    constant = 3 * len(placed)
    as_is, masks = np.arange(PAIRS), tensors.feat[:, ELEMENT_TYPE][:, 1] > 0            # pred
    delivered, meetings, default, owner = {}, [], [], []

    def meet(wanted, names, u, writes):
        if delivered[u] and rank[u] > 1:
            meetings.append((wanted, names, *delivered[u], u, writes))

    for v in range(n):
        operands = tensors.operands[v]
        same = [u for u in operands if rank[u] == rank[v]]
        if v in slot:
            first, second = tensors.roles(v)
            owner += (v, first, second)
            default += [tensors.pair[u] for u in (v, first, second)]
            meet(slot[v] + 1, as_is, first, True)
            if second != first:
                meet(slot[v] + 2, as_is, second, True)
            delivered[v] = slot[v], as_is
        elif opcode[v] in FREE:
            delivered[v] = None
        elif opcode[v] == TRANSPOSE and delivered[operands[0]]:
            pair, names = delivered[operands[0]]
            delivered[v] = pair, tensors.renaming(v)[names]
        elif opcode[v] in FOLLOWING and same:
            bound = [u for u in same if delivered[u]]
            delivered[v] = delivered[bound[-1]] if bound else None
            for u in bound[:-1]:
                if not masks[u]:
                    meet(*delivered[v], u, False)
        else:
            delivered[v] = constant + v, as_is

    row_of = {v: k for k, v in enumerate(np.asarray(node_config_ids).tolist())}
    chosen = np.array([3 * i + s for i, v in enumerate(placed) if v in row_of for s in range(3)], dtype=int)
    source = np.array([3 * row_of[v] + s for v in placed if v in row_of for s in range(3)], dtype=int)
    base = np.array(default + tensors.pair.tolist(), dtype=np.uint8)
    owner = np.array(owner, dtype=int)
    wanted, wanted_names, given, given_names, tensor, writes = map(np.array, zip(*meetings) if meetings else [()] * 6)
    reshapes = np.array([opcode[v] == RESHAPE for v in placed], dtype=bool)
    used = np.tile([True, True, True], (len(placed), 1))
    used[reshapes, 2] = False                               # a Reshape has one operand
    compute = np.array([tensors.matrix_seconds(v) for v in placed])
    last = np.array([rank[u] - 1 for u in owner])
    fixed = sum(padded[u, tensors.pair[u]] for v in range(n) if opcode[v] in STREAMING
                for u in (v, *tensors.operands[v])) / HBM_BYTES

    def run(config_rows, parts=False):
        rows = _checked_rows(config_rows, len(row_of))
        minor, second = (rows[:, :, i::6].reshape(len(rows), -1)[:, source].astype(np.int64) for i in (0, 1))
        asked = 6 * minor + np.where(second < 0, minor, second)        # of rank 1: its only dimension twice
        pairs = np.tile(base, (len(rows), 1))
        pairs[:, chosen] = np.where(minor < 0, base[chosen], asked)
        traffic = (padded[owner, pairs[:, :constant]].reshape(len(rows), -1, 3) * used).sum(2) / HBM_BYTES
        ends = (pairs[:, :constant] // 6 == last).reshape(len(rows), -1, 3)
        crossing = reshapes & (ends[:, :, 0] != ends[:, :, 1])
        turned = np.where(ends[:, :, 0] | reshapes, 1.0, TURNED_OUTPUT)
        own = np.maximum(traffic / np.where(crossing, TRANSPOSE_SHARE, 1.0), compute * turned).sum(1) + fixed
        copies = np.zeros(len(rows))
        if len(tensor):
            at = np.arange(len(tensor))
            after = wanted_names[at, pairs[:, wanted]]
            before = given_names[at, pairs[:, given]]
            moved = (padded[tensor, before] + padded[tensor, after] * writes) * (before != after)
            copies = moved.sum(1) / (HBM_BYTES * TRANSPOSE_SHARE)
        return (own, copies) if parts else own + copies

    return run


def _checked_rows(config_rows, nc):
    rows = np.asarray(config_rows)
    if rows.ndim != 3 or rows.shape[1:] != (nc, 18):
        raise ValueError(f"config_rows has shape {rows.shape}; expected (k, {nc}, 18)")
    if rows.size and not -1 <= rows.min() <= rows.max() <= 5:
        raise ValueError(f"config_rows holds {rows.min()}..{rows.max()}; digits lie in -1..5")
    return rows


def rounded_up(value, multiple):
    """The next multiple."""
    return np.ceil(np.asarray(value) / multiple) * multiple


class Tensors:
    """The node arrays read as tensors: shapes, element sizes, layout pairs, operands."""

    def __init__(self, node_feat, node_opcode, edge_index):
        self.feat = np.asarray(node_feat, dtype=np.float64)
        self.opcode = np.asarray(node_opcode).tolist()
        self.dims = self.feat[:, SHAPE].astype(np.int64)
        self.rank = (self.dims > 0).sum(1)
        self.width = self.feat[:, ELEMENT_TYPE] @ np.array(TYPE_BYTES)                  # bytes an element
        self.size = np.maximum(self.dims, 1).prod(1)
        minor, second = self.feat[:, LAYOUT][:, :2].astype(np.int64).T
        second = np.where(self.rank > 1, second, minor)
        self.pair = 6 * minor + second
        at_least = np.maximum(self.dims, 1)
        lanes, sublanes = rounded_up(at_least, LANES) / at_least, rounded_up(at_least, SUBLANES) / at_least
        waste = lanes[:, :, None] * np.where(np.eye(6, dtype=bool), 1.0, sublanes[:, None, :])
        waste[self.rank == 0] = 1
        self.padded = (self.size * self.width)[:, None] * waste.reshape(-1, PAIRS)      # (n, 36) bytes
        self.operands = [[] for _ in self.opcode]
        for v, u in np.asarray(edge_index).reshape(-1, 2).tolist():
            self.operands[v].append(u)
        for operands in self.operands:
            operands.sort()

    def shape(self, v):
        """Sizes of its dimensions."""
        return self.dims[v, :self.rank[v]].tolist()

    def roles(self, v):
        """(first operand, kernel) of node v; a node with one operand has it in both roles."""
        first, kernel = self.operands[v][0], self.operands[v][-1]
        if self.opcode[v] == DOT:
            lead = [self.dims[u, 0] == self.dims[v, 0] for u in (first, kernel)]
            return (kernel, first) if lead == [False, True] else (first, kernel)
        taps = [int(w) for w in self.feat[v, WINDOW_SIZE] if w]
        spatial = self.feat[v, KERNEL_SPATIAL][:len(taps)].astype(int)
        fits = [self.dims[u, spatial].tolist() == taps for u in (first, kernel)]
        return (kernel, first) if fits == [True, False] else (first, kernel)

    def matrix_seconds(self, v):
        """FLOPs of node v / (peak x fill); 0 for a Reshape."""
        if self.opcode[v] == RESHAPE:
            return 0.0
        first, kernel = self.roles(v)
        if self.opcode[v] == CONVOLUTION:
            contracted = self.feat[v, WINDOW_PRODUCT] * self.dims[kernel, int(self.feat[v, KERNEL_INPUT])]
            features = self.dims[v, int(self.feat[v, OUTPUT_FEATURE])]
        else:
            batched = self.rank[first] == self.rank[kernel] == self.rank[v]
            batch = self.size[v] / np.prod(self.shape(v)[-2:]) if batched else 1
            contracted = np.sqrt(self.size[first] * self.size[kernel] / (self.size[v] * batch))
            features = self.shape(v)[-1]
        fill = contracted / rounded_up(contracted, LANES) * features / rounded_up(features, LANES)
        return 2 * self.size[v] * contracted / (PEAK_FLOPS * fill)

    def renaming(self, v):
        """(36,) pairs of the operand of Transpose v -> pairs of its output."""
        rank = self.rank[v]
        to = np.arange(6)
        to[self.feat[v, DIMENSIONS][:rank].astype(int)] = np.arange(rank)
        minor, second = np.divmod(np.arange(PAIRS), 6)
        return 6 * to[minor] + to[second]

    def blocks(self, v):
        """Dimensions of v from major to minor, and how many blocks of 1, 8 or 128 elements each has."""
        rank = self.rank[v]
        order = self.feat[v, LAYOUT][:rank].astype(int)[::-1]
        return order.tolist(), np.ceil(self.dims[v, order] / self.units(rank))

    def units(self, rank):
        """Elements a block has in each dimension, from major to minor."""
        return np.array([1] * 4 + [SUBLANES, LANES])[6 - rank:]
