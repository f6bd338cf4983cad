"""Grow one program of the sample data: one method per HLO operation, one per layer of a network.

A `Program` holds what an official layout file holds: opcodes, the 140 node columns as far as an operation defines
them, edges without operand order, and the borders of HLO computations. It also holds the configurable nodes. Each has
the name of its group and, for each of its tensors, a pair of dimensions; either of the pair may become minor-most.

A layer method returns its output and a function from the gradient of the output to the gradient of the input. This
function appends the backward operations.

Source of column and opcode numbers: github.com/google-research-datasets/tpu_graphs, README.md and hlo_opcode.h.
"""
import numpy as np

from kit.data import OPCODE_NAMES
from kit.pad import DIMENSIONS, IS_ROOT, LAYOUT, PARAMETER_NUMBER, SHAPE, SHAPE_PRODUCT, SHAPE_SUM, WINDOW_SIZE

# columns that the sample data alone names; a list is named by its first column
TUPLE_SIZE, REVERSAL, CONVOLUTION_DIMENSIONS, KERNEL_OUTPUT, OUTPUT_BATCH, GROUP_COUNTS = 29, 85, 93, 100, 105, 107
TYPE_COLUMN = {"pred": 3, "f32": 13, "bf16": 15, "tuple": 18}
EMPTY_PRODUCTS = [28, 44, 52, 60, 68, 76, 84, 112, 116, 120, 124, 128, 132]      # the product of an empty list is 1
ACTIVATION, WEIGHT = (3, 0), (3, 2)      # features before batch, output before input features: as in public files
FORWARD = (0, 3, 1, 2, 0, 0, 2, 3, 0, 1, 0, 0, 0, 3)     # columns 93-106: dimensions of input, kernel, output
TO_INPUT = (0, 3, 1, 2, 0, 0, 3, 2, 0, 1, 0, 0, 0, 3)    # the kernel's two feature dimensions change places
TO_KERNEL = (3, 0, 1, 2, 0, 0, 0, 3, 1, 2, 0, 0, 2, 3)   # features of the input are a batch; its batch is summed over


class Program:
    """A program under construction; each operation returns the number of its node.

    `dtype` is the element type of its tensors, "f32" or "bf16". A `bare` program starts without the reducing
    computations and the parameter tuple of a whole program.
    """

    def __init__(self, rng, dtype="f32", bare=False):
        self.rng, self.dtype = rng, dtype
        self.rows, self.opcodes, self.edges, self.shapes, self.outputs, self.splits = [], [], set(), [], [], [0]
        self.configurable = {}              # node -> (group name, pairs of its output, input and kernel)
        if bare:
            return
        self.scalar_max, self.scalar_add = (self._computation(op) for op in ("maximum", "add"))
        self.splits.append(len(self.rows))
        self.inputs = self.add("parameter", dtype="tuple")
        self.zero = self.add("constant")

    def add(self, op, shape=(), operands=(), dtype=None, minor=None, columns=None, root=False):
        """Append one operation.

        `minor` lists the dimensions from minor to major; None is the usual order, last dimension first. `columns`
        maps the first column of a list to its values. `root` marks the result of a computation.
        """
        row, rank = np.zeros(140, dtype=np.float32), len(shape)
        row[EMPTY_PRODUCTS] = 1
        row[IS_ROOT], row[TYPE_COLUMN[dtype or self.dtype]] = root, 1
        row[SHAPE][:rank] = shape
        row[SHAPE_SUM], row[SHAPE_PRODUCT] = sum(shape), np.prod(shape, dtype=np.float64)
        row[LAYOUT][:rank] = range(rank)[::-1] if minor is None else minor
        for first, values in (columns or {}).items():
            values = np.atleast_1d(values)
            row[first:first + len(values)] = values
        node = self._append(row, OPCODE_NAMES.index(op), tuple(shape))
        self.edges.update((node, u) for u in operands)
        return node

    def repeat(self, u):
        """A second node like `u`, without operands."""
        return self._append(self.rows[u].copy(), self.opcodes[u], self.shapes[u])

    def _append(self, row, opcode, shape):
        """Append one node and return its number."""
        self.rows.append(row)
        self.opcodes.append(opcode)
        self.shapes.append(shape)
        return len(self.rows) - 1

    def _computation(self, op):
        """A computation of two scalars, as Reduce calls it; returns its root."""
        left, right = (self.add("parameter", columns={PARAMETER_NUMBER: i}) for i in range(2))
        return self.add(op, (), (left, right), root=True)

    def arrays(self):
        """The arrays of an official layout file that do not depend on configurations, by name."""
        return {
            "node_feat": np.stack(self.rows), "node_opcode": np.array(self.opcodes, dtype=np.uint8),
            "edge_index": np.array(sorted(self.edges), dtype=np.int64).reshape(-1, 2),
            "node_config_ids": np.array(sorted(self.configurable), dtype=np.int64),
            "node_splits": np.array([[*self.splits, len(self.rows)]], dtype=np.int64),
        }

    # operations

    def weight(self, shape, pair=None):
        """A model parameter; 30% lie in memory with the two dimensions of `pair` swapped."""
        minor = None
        if pair:
            minor = list(pair if self.rng.random() < 0.7 else pair[::-1])
            minor += [d for d in range(len(shape))[::-1] if d not in pair]
        return self.add("get-tuple-element", shape, [self.inputs], minor=minor)

    def spread(self, shape, u=None, dims=()):
        """Broadcast of node `u` (None: a constant), whose dimensions become `dims`."""
        u = self.zero if u is None else u
        return self.add("broadcast", shape, [u], columns={DIMENSIONS.start: list(dims)} if dims else None)

    def each(self, op, *operands, dtype=None):
        """An elementwise operation."""
        return self.add(op, self.shapes[operands[-1]], operands, dtype)

    def reduce(self, u, dims, scalar):
        """Sum or maximum over `dims`, as the computation `scalar` says."""
        shape = [size for d, size in enumerate(self.shapes[u]) if d not in dims]
        return self.add("reduce", shape, [scalar, u, self.zero], columns={DIMENSIONS.start: list(dims)})

    def reshape(self, u, shape, group, pairs):
        """A configurable reshape; `pairs` of the output and of the input."""
        node = self.add("reshape", shape, [u])
        self.configurable[node] = group, pairs
        return node

    def dot(self, shape, left, right, group, pairs):
        """A configurable dot; `pairs` of the output, of `left`, of `right`."""
        node = self.add("dot", shape, [left, right])
        out, *inputs = pairs
        # edges have no order: the digits follow the operand roles that `sample.runtimes` infers
        if left > right and (self.shapes[left][0] != shape[0] or self.shapes[right][0] == shape[0]):
            inputs.reverse()
        self.configurable[node] = group, (out, *inputs)
        return node

    def window(self, size, stride, low, high, dilation=(1, 1), base=(1, 1), reverse=False):
        """Columns 37-92 of a window: six lists with their sums and products, then the reversal flags."""
        columns = {}
        for i, values in enumerate((size, stride, low, high, dilation, base)):
            first = WINDOW_SIZE.start + 8 * i
            columns |= {first: list(values), first + 6: [sum(values), int(np.prod(values))]}
        flags = len(size) * reverse
        return columns | {REVERSAL: [int(reverse)] * len(size), REVERSAL + 6: [flags, len(size) - flags]}

    def convolution(self, x, w, shape, numbers, window, group, pairs):
        """A configurable convolution; `numbers` are columns 93-106: the dimensions of input, kernel and output."""
        node = self.add("convolution", shape, [x, w], columns=window | {CONVOLUTION_DIMENSIONS: numbers,
                                                                        GROUP_COUNTS: [1, 1]})
        self.configurable[node] = group, pairs
        return node

    # layers: each returns its output and a function from the gradient of the output to the gradient of the input

    def update(self, w, grad):
        """One step of gradient descent; the new weight is a result of the program."""
        step = self.each("multiply", self.spread(self.shapes[grad]), grad)
        self.outputs.append(self.each("subtract", w, step))

    def conv_layer(self, x, features, taps, stride, group, bias, tied, linear=False):
        """Convolution, bias, rectifier unless `linear`; `tied`: the gradients are in the forward group."""
        batch, size, _, depth = self.shapes[x]
        after = -(-size // stride)
        low = max((after - 1) * stride + taps - size, 0) // 2
        high = (after - 1) * stride + taps - size - low
        w = self.weight((taps, taps, depth, features), WEIGHT)
        y = z = self.convolution(
            x, w, (batch, after, after, features), FORWARD,
            self.window([taps] * 2, [stride] * 2, [low] * 2, [high] * 2), group, (ACTIVATION, ACTIVATION, WEIGHT))
        if bias:
            z = self.each("add", self.spread(self.shapes[y], self.weight((features,)), (3,)), y)
        mask = None
        if not linear:
            floor = self.spread(self.shapes[y])
            z = self.each("maximum", floor, z)
            mask = self.each("compare", floor, z, dtype="pred")

        def backward(grad):
            if mask:
                grad = self.each("select", mask, floor, grad)
            self.update(w, self._kernel_gradient(x, grad, w, stride, group if tied else "kernel"))
            if self.opcodes[x] == OPCODE_NAMES.index("get-tuple-element"):
                return None                                # the images need no gradient
            return self._stretching(grad, w, self.shapes[x], stride, group if tied else group + "/input")

        return z, backward

    def _stretching(self, u, w, shape, stride, group):
        """The convolution from the small side of a strided convolution (s, s) to its large side, which has `shape`."""
        size, after, taps = shape[1], self.shapes[u][1], self.shapes[w][0]
        low = taps - 1 - max((after - 1) * stride + taps - size, 0) // 2
        high = size + taps - 2 - (after - 1) * stride - low
        window = self.window([taps] * 2, [1] * 2, [low] * 2, [high] * 2, base=[stride] * 2, reverse=True)
        return self.convolution(u, w, shape, TO_INPUT, window, group, (ACTIVATION, ACTIVATION, WEIGHT))

    def _kernel_gradient(self, large, small, w, stride, group):
        """The convolution of the two sides of a strided convolution that gives the gradient of its kernel."""
        size, after, taps = self.shapes[large][1], self.shapes[small][1], self.shapes[w][0]
        low = max((after - 1) * stride + taps - size, 0) // 2
        high = (after - 1) * stride + taps - size - low
        window = self.window([after] * 2, [1] * 2, [low] * 2, [high] * 2, dilation=[stride] * 2)
        return self.convolution(large, small, self.shapes[w], TO_KERNEL, window, group,
                                (WEIGHT, ACTIVATION, ACTIVATION))

    def pool_layer(self, x):
        """Maximum over 3 x 3 at stride 2, no padding."""
        batch, size, _, depth = self.shapes[x]
        shape = batch, (size - 3) // 2 + 1, (size - 3) // 2 + 1, depth
        window = self.window([1, 3, 3, 1], [1, 2, 2, 1], [0] * 4, [0] * 4, [1] * 4, [1] * 4)
        y = self.add("reduce-window", shape, [self.scalar_max, x, self.zero], columns=window)
        return y, lambda grad: self.add("select-and-scatter", self.shapes[x],
                                        [self.scalar_add, x, grad, self.zero], columns=window)

    def dense_layer(self, x, w, shape, group, pairs, tied):
        """A dot with a weight; `pairs` of output, input and weight."""
        out, of_x, of_w = pairs
        y = self.dot(shape, x, w, group, pairs)

        def backward(grad):
            self.update(w, self.dot(self.shapes[w], x, grad, group if tied else "kernel", (of_w, of_x, out)))
            return self.dot(self.shapes[x], grad, w, group if tied else group + "/input", (of_x, out, of_w))

        return y, backward

    def norm_layer(self, x):
        """x / root mean square of its last dimension; the gradient ignores the mean."""
        last = len(self.shapes[x]) - 1
        mean = self.reduce(self.each("multiply", x), [last], self.scalar_add)
        scale = self.spread(self.shapes[x], self.each("rsqrt", mean), range(last))
        return self.each("multiply", x, scale), lambda grad: self.each("multiply", grad, scale)

    def finish(self, name):
        """Append the root tuple of all results."""
        self.add("tuple", (), self.outputs, dtype="tuple", columns={TUPLE_SIZE: len(self.outputs)}, root=True)
        self.name = name
        return self
