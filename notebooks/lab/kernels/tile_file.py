"""Measured schedules as files of the `tile` collection, which the kit's reader, tile model and searches can use.

Nodes, opcodes and edges follow the data set's format as far as it is defined for a kernel. The 24 numbers of a
configuration keep their places (three times six bounds with their sum and product) and describe the schedule.
"""
import numpy as np

from kit.data import TileGraph
from kit.files import whole_file
from kit.pad import IS_ROOT
from kit.predict import predict
from lab.kernels.definitions import image_padding, input_shapes, kernel_axes
from lab.kernels.schedules import kernel_tiles, schedule_choices, schedule_space
from lab.sample import Program

DRAWN = 256                      # random schedules that tell how large each number gets
NHWC = (0, 3, 1, 2, 0, 0, 2, 3, 0, 1, 0, 0, 0, 3)       # columns 93-106: batch, features and space of the three tensors


def kernel_graph(kernel):
    """A kernel as HLO operations {node_feat, node_opcode, edge_index}; columns without a meaning here are 0."""
    p, (spatial, _) = Program(np.random.default_rng(0), bare=True), kernel_axes(kernel)
    shapes = input_shapes(kernel)
    if kernel.kind in ("conv2d", "depthwise"):
        taps, groups = kernel.sizes[-1], kernel.sizes[2] if kernel.kind == "depthwise" else 1
        shapes = (1, *shapes[0]), (*shapes[1][:2], kernel.sizes[2] // groups, spatial[-1])
    x, *others = [p.add("parameter", shape, columns={30: i}) for i, shape in enumerate(shapes)]

    def reduced(u):
        return p.add("reduce", spatial[:1], [u, p.add("constant")], columns={31: 1})

    if kernel.kind == "matmul":
        last = p.add("dot", spatial, [x, *others])
    elif kernel.kind in ("conv2d", "depthwise"):
        window = p.window([taps] * 2, [kernel.stride] * 2, *[[image_padding(kernel)] * 2] * 2)
        last = p.add("convolution", (1, *spatial), [x, *others], columns=window | {93: NHWC, 107: [groups, 1]})
    elif kernel.kind == "softmax":
        powers = p.each("exponential", p.each("subtract", x, p.spread(spatial, reduced(x), [0])))
        last = p.each("divide", powers, p.spread(spatial, reduced(powers), [0]))
    else:
        apart = p.each("subtract", x, p.spread(spatial, reduced(x), [0]))
        scale = p.spread(spatial, p.each("rsqrt", reduced(p.each("multiply", x))), [0])
        scaled = p.each("multiply", p.each("multiply", apart, scale), p.spread(spatial, others[0], [1]))
        last = p.each("add", scaled, p.spread(spatial, others[1], [1]))
    p.rows[last][IS_ROOT] = 1
    return {name: array for name, array in p.arrays().items() if name in ("node_feat", "node_opcode", "edge_index")}


def schedule_features(kernel, codes):
    """The 24 numbers (c, 24) of schedules `codes` (c, g): kernel, output and input bounds with sums and products."""
    space, rows = schedule_space(kernel), []
    # six bounds each: codes of the other choices, counted from 1; the larger tile; the innermost tile and its terms
    others = [i for i, choice in enumerate(space) if not choice.name.startswith(("tile", "terms", "rows", "lanes"))]
    for code in codes:
        choices = schedule_choices(kernel, code)
        if kernel.kind in ("softmax", "layer norm"):
            output = [choices["rows"], choices["lanes of output"]]
            inner = [value for name, value in choices.items() if name.startswith("lanes") and name[9:] != "output"]
        else:
            tile, tiles, terms = kernel_tiles(kernel, choices)
            output, inner = [size * count for size, count in zip(tile, tiles)], [*tile, *terms]
        row = []
        for bounds in ([int(code[i]) + 1 for i in others], output, inner):
            row += [*bounds, *[0] * (6 - len(bounds)), sum(bounds), np.prod(bounds)]
        rows.append(row)
    return np.array(rows, dtype=np.float32).reshape(-1, 24)


def write_kernel_tile(path, kernel, codes, seconds, untuned):
    """Write schedules with a finite time as a `tile` file -> their number; `untuned` seconds are the normaliser.

    A kernel that exceeds the lab's limit without a schedule has `untuned` inf; then its slowest schedule stands there.
    """
    seconds = np.asarray(seconds, np.float64)
    kept = np.isfinite(seconds)
    if not kept.any():
        raise ValueError(f"{kernel.name}: none of {len(seconds)} schedules has a runtime; a tile file needs one")
    normaliser = untuned if np.isfinite(untuned) else seconds[kept].max()
    with whole_file(path) as part, open(part, "wb") as file:
        np.savez_compressed(
            file, **kernel_graph(kernel), config_feat=schedule_features(kernel, np.asarray(codes)[kept]),
            config_runtime=np.rint(1e9 * seconds[kept]).astype(np.int64),
            config_runtime_normalizers=np.full(kept.sum(), round(1e9 * normaliser), np.int64))
    return int(kept.sum())


def kernel_cost(model, kernel):
    """A tile model's cost of a kernel's schedules: a `model` for kit.search, (k, g) codes -> (k,) costs."""
    dims = [len(choice.values) for choice in schedule_space(kernel)]
    drawn = np.random.default_rng(0).integers(dims, size=(DRAWN, len(dims)))
    # the model divides by the largest numbers in a file: one more row holds those of the whole space
    largest = schedule_features(kernel, drawn).max(axis=0, keepdims=True)
    graph = {name: array.astype(np.int64) if array.dtype == np.uint8 else array
             for name, array in kernel_graph(kernel).items()}

    def cost(points):
        features = np.concatenate([schedule_features(kernel, points), largest])
        ones = np.ones(len(features), np.int64)
        return predict(model, TileGraph(kernel.name, **graph, config_feat=features, config_runtime=ones,
                                        config_runtime_normalizers=ones))[:-1]
    return cost
