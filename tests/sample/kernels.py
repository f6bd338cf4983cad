"""Fused kernels of the sample data's `tile:xla`: the graphs, their tile configurations, and what a tile costs.

The machine and its constants are those of `sample.runtimes`. The last node is the kernel's output. Bounds count
blocks of its dimensions from major to minor; a block has 1 element, 8 in the second minor-most and 128 in the
minor-most dimension (as in the public files). A kernel with a Convolution also splits the kernel tensor
(`kernel_bounds`), so that its contraction takes several steps; the bound of its output features equals that of the
output tile. Then

seconds = launch + first tile's input / bandwidth + steps x (step + tile overhead).

step = max(compute, DMA) where two input and two output tiles fit the vector memory (double buffering). Where only
one fits, step = compute + DMA. Where not even one fits, DMA is slowed by the excess.

Every step loads its input again: for a Convolution with the halo; of an operand smaller than the output, all of
it. The output and the other operands of a Convolution count once per output tile. DMA = bytes / bandwidth x
(1 + 1 kB / contiguous bytes).

Compute is tile FLOPs / (peak x c / ceil128(c) x rows / (rows + 128)) for c contracted input features on the
matrix units. Other kernels compute one vector FLOP per operation and element, two where an operand of the
output's size lies in another layout.

Microseconds of a copy of 64 x 1024 float32 in 64, 8 and 1 tiles:

>>> feat = np.zeros((2, 140))
>>> feat[:, 13], feat[:, 21], feat[:, 22], feat[:, 134] = 1, 64, 1024, 1
>>> bounds = np.zeros((3, 24))
>>> bounds[:, 8:10] = [[1, 1], [1, 8], [8, 8]]
>>> (simulate_tile(feat, [63, 27], [[1, 0]], bounds) * 1e6).round(2)
array([15.27,  3.87,  2.95])
"""
import numpy as np
import pandas as pd

from kit import pad
from kit.data import OPCODE_NAMES
from kit.pad import DIMENSIONS, LANES, LAYOUT, SUBLANES
from sample.programs import CONVOLUTION_DIMENSIONS, FORWARD, GROUP_COUNTS, KERNEL_OUTPUT, OUTPUT_BATCH, Program
from sample.runtimes import CONVOLUTION, FREE, HBM_BYTES, PEAK_FLOPS, TRANSPOSE_SHARE, Tensors, rounded_up

PARAMETER, FUSION = map(OPCODE_NAMES.index, ("parameter", "fusion"))
KERNEL_BOUNDS, OUTPUT_BOUNDS = 0, 8          # in config_feat: first of six bounds, then their sum and product
VMEM_BYTES = 16 * 2**20          # on-chip vector memory, from public descriptions of that TPU generation
VECTOR_FLOPS = 2 * 8 * 128 * 0.94e9          # 1/s: two operations per lane and cycle
RUN_BYTES = 1024                 # contiguous bytes at which a DMA reaches half of the bandwidth; invented
TILE_SECONDS = 0.2e-6            # overhead per step; copy kernels of the public tile files lose 0.15-0.2 us per step
LAUNCH_SECONDS = 1e-6            # overhead per kernel; the smallest public tile kernels take about 1 us

MAP_OPS = ("add", "multiply", "subtract", "maximum", "exponential", "tanh", "logistic", "divide")
MAX_STEPS = 4096                 # per configuration; slower ones are not offered


def simulate_tile(node_feat, node_opcode, edge_index, config_feat):
    """Noise-free seconds (k,) of one fused kernel under tile configurations (k, 24)."""
    return _tile_cost(Tensors(node_feat, node_opcode, edge_index), config_feat)[2]


def _tile_cost(tensors, config_feat):
    """Steps (k,), bytes that a step holds (k,), seconds (k,)."""
    out, bounds = len(tensors.opcode) - 1, np.asarray(config_feat, dtype=np.float64)
    order, tile, tiles = _tiling(tensors, out, bounds[:, OUTPUT_BOUNDS:OUTPUT_BOUNDS + 6])
    elements, width, size = tile.prod(1), tensors.width, tensors.size
    inner = [v for v, op in enumerate(tensors.opcode) if op == PARAMETER and v not in tensors.operands[out]]
    inner = inner or tensors.operands[out]                  # not a fusion
    # bytes of each operand that one output tile needs
    share = {v: np.minimum(tensors.padded[v, tensors.pair[v]], elements * max(1, size[v] / size[out]) * width[v])
             for v in inner}
    if CONVOLUTION in tensors.opcode:
        k_steps, load, once, compute = _convolution_step(tensors, bounds, dict(zip(order, tile.T)), share)
    else:
        k_steps, load, once, compute = 1.0, sum(share.values()), 0.0, _vector_step(tensors, elements, inner)
    store = elements * width[out]
    whole = tile[:, -1] >= tensors.dims[out, order[-1]]
    run = width[out] * tile[:, -1] * (np.where(whole, tile[:, -2], SUBLANES) if len(order) > 1 else 1)
    dma = (load + (store + once) / k_steps) / HBM_BYTES * (1 + RUN_BYTES / run)
    held = load + store + once
    step = np.where(2 * held <= VMEM_BYTES, np.maximum(compute, dma),
                    compute + dma * np.maximum(1, held / VMEM_BYTES))
    steps = tiles * k_steps
    return steps, held, LAUNCH_SECONDS + load / HBM_BYTES + steps * (step + TILE_SECONDS)


def _convolution_step(tensors, bounds, along, share):
    """Steps per output tile, bytes loaded per step and once, compute seconds; `along` {dimension: tile size (k,)}."""
    hero = tensors.opcode.index(CONVOLUTION)
    data, kernel = tensors.roles(hero)
    number = tensors.feat[hero].astype(int)
    k_order, k_tile, k_steps = _tiling(tensors, kernel, bounds[:, KERNEL_BOUNDS:KERNEL_BOUNDS + 6],
                                       free=number[KERNEL_OUTPUT])
    k_along, elements = dict(zip(k_order, k_tile.T)), np.prod(list(along.values()), axis=0)
    features, contracted = along.pop(number[pad.OUTPUT_FEATURE]), k_along[number[pad.KERNEL_INPUT]]
    rows, halo, window = elements / features, along.pop(number[OUTPUT_BATCH]), np.ones(len(bounds))
    for i, dim in enumerate(sorted(along)):                 # the spatial dimensions that are left
        taps, stride = k_along[number[pad.KERNEL_SPATIAL][i]], max(1, number[pad.WINDOW_STRIDE][i])
        halo, window = halo * ((along[dim] - 1) * stride + taps), window * taps
    load = (halo * tensors.width[data] + window * features * tensors.width[kernel]) * contracted
    once = sum(own for v, own in share.items() if v not in (data, kernel))
    fill = contracted / rounded_up(contracted, LANES) * rows / (rows + LANES)
    return k_steps, load, once, 2 * elements * contracted * window / (PEAK_FLOPS * fill)


def _vector_step(tensors, elements, inner):
    """Compute seconds (k,) of a tile of so many elements, for a kernel without a Convolution."""
    out, size = len(tensors.opcode) - 1, tensors.size
    inside = range(out if tensors.opcode[out] == FUSION else out + 1)
    work = sum(max(1, size[v] / size[out], *(size[u] / size[out] for u in tensors.operands[v])) for v in inside
               if tensors.opcode[v] not in FREE | {PARAMETER})
    turned = any(size[v] == size[out] and tensors.pair[v] != tensors.pair[out] for v in inner)
    return elements * work / VECTOR_FLOPS / (TRANSPOSE_SHARE if turned else 1.0)


def _tiling(tensors, v, bounds, free=None):
    """Dimensions of v from major to minor, tile sizes (k, rank), number of tiles (k,) not counting along `free`."""
    order, blocks = tensors.blocks(v)
    bound = np.clip(bounds[:, :len(order)], 1, blocks)
    counted = [i for i, dim in enumerate(order) if dim != free]
    return order, bound * tensors.units(len(order)), np.ceil(blocks / bound)[:, counted].prod(1)


def tile_kernel(rng, configs):
    """Draw one fused kernel -> {array name: array}, at most `configs` distinct config_feat (c, 24), default first."""
    p = Program(rng, rng.choice(["f32", "bf16"]), bare=True)
    parameters = []

    def parameter(shape, minor):
        parameters.append(p.add("parameter", shape, minor=minor, columns={pad.PARAMETER_NUMBER: len(parameters)}))
        return parameters[-1]

    kind = rng.choice(["convolution", "matmul", "map", "reduce", "copy"], p=[0.3, 0.15, 0.3, 0.15, 0.1])
    root = (_matrix_body if kind in ("convolution", "matmul") else _vector_body)(p, parameter, kind, rng)
    p.rows[root][pad.IS_ROOT] = 1
    if kind != "copy":
        outer = [p.repeat(u) for u in parameters]
        shape = p.shapes[root]
        p.add("fusion", shape, [root, *outer], minor=p.rows[root][LAYOUT][:len(shape)], root=True)
    arrays = p.arrays()
    arrays = {key: arrays[key] for key in ("node_feat", "node_opcode", "edge_index")}
    tensors = Tensors(*arrays.values())
    found = _draw_configs(rng, tensors, 30 * configs)
    found = found[_tile_cost(tensors, found)[0] <= MAX_STEPS][:configs]
    # the compiler's default: of the rows that double-buffer in half of the vector memory, the one with fewest steps
    steps, held, _ = _tile_cost(tensors, found)
    default = np.where(2 * held <= VMEM_BYTES / 2, steps, MAX_STEPS + held).argmin()
    found[[0, default]] = found[[default, 0]]
    return arrays, found


def _draw_configs(rng, tensors, count):
    """Draw `count` configurations -> the distinct ones, in the order drawn, (c, 24) float32."""
    found = np.zeros((count, 24), dtype=np.float32)
    order, blocks = tensors.blocks(len(tensors.opcode) - 1)
    output = found[:, OUTPUT_BOUNDS:]
    output[:, :len(order)] = _draw_bounds(rng, blocks, count)
    if CONVOLUTION in tensors.opcode:
        hero = tensors.opcode.index(CONVOLUTION)
        k_order, k_blocks = tensors.blocks(tensors.roles(hero)[1])
        found[:, :len(k_order)] = _draw_bounds(rng, k_blocks, count)
        features = tensors.feat[hero, [KERNEL_OUTPUT, pad.OUTPUT_FEATURE]].astype(int)
        found[:, k_order.index(features[0])] = output[:, order.index(features[1])]
        found[:, 6], found[:, 7] = found[:, :6].sum(1), found[:, :len(k_order)].prod(1)
    output[:, 6], output[:, 7] = output[:, :6].sum(1), output[:, :len(order)].prod(1)
    return found[~pd.DataFrame(found).duplicated()]


def _draw_bounds(rng, blocks, count):
    """(count, rank) bounds: each is ceil(blocks / j) for some j; the larger of two draws, to favour large tiles."""
    choices = [np.unique(-(-int(b) // np.arange(1, int(b) + 1))) for b in blocks]
    return np.stack([rng.choice(c, (2, count)).max(0) for c in choices], axis=1)


def _matrix_body(p, parameter, kind, rng):
    """A convolution or matrix product, often with bias and rectifier; returns its last node."""
    if kind == "matmul":                       # XLA's convolution without a window
        rows, depth, features = (int(rng.choice([128, 256, 384, 512, 1024, 2048])) for _ in range(3))
        minor = (1, 0)
        x, w = parameter((rows, depth), minor), parameter((depth, features), minor)
        shape, columns = (rows, features), {CONVOLUTION_DIMENSIONS: [0, 1], pad.KERNEL_INPUT: [0, 1],
                                            OUTPUT_BATCH: [0, 1], GROUP_COUNTS: [1, 1]}
    else:
        batch, size = int(rng.choice([8, 16, 32, 64])), int(rng.choice([7, 14, 16, 24, 28, 32]))
        depth, features = (int(rng.choice([32, 64, 96, 128, 192, 256, 384, 512])) for _ in range(2))
        taps, minor = int(rng.choice([1, 3, 3, 5])), ((3, 0, 2, 1), (3, 2, 1, 0))[rng.integers(2)]
        x, w = parameter((batch, size, size, depth), minor), parameter((taps, taps, depth, features), (3, 2, 1, 0))
        around = [taps // 2] * 2
        shape = batch, size, size, features
        columns = p.window([taps] * 2, [1] * 2, around, around) | {
            CONVOLUTION_DIMENSIONS: FORWARD, GROUP_COUNTS: [1, 1]}
    y = p.add("convolution", shape, [x, w], minor=minor, columns=columns)
    if rng.random() < 0.6:
        bias = p.add("broadcast", shape, [parameter(shape[-1:], (0,))], minor=minor,
                     columns={DIMENSIONS.start: len(shape) - 1})
        y = p.add("add", shape, [y, bias], minor=minor)
    if rng.random() < 0.6:
        floor = p.add("broadcast", shape, [p.add("constant")], minor=minor)
        y = p.add("maximum", shape, [y, floor], minor=minor)
    return y


def _vector_body(p, parameter, kind, rng):
    """A copy, or up to 15 elementwise operations and perhaps a reduction; returns its last node."""
    rank = int(rng.integers(2, 5))
    shape = [int(rng.choice([4, 8, 12, 16, 32])) for _ in range(rank - 2)]
    shape += [int(rng.choice([24, 64, 100, 128, 256, 384])), int(rng.choice([64, 128, 192, 256, 512, 1000]))]
    minor = list(range(rank))[::-1]
    if rank > 2 and rng.random() < 0.5:
        minor[1:] = minor[:0:-1]               # the first dimension second minor-most
    y = parameter(shape, minor)
    if kind == "copy":
        return p.add("copy", shape, [y], minor=[minor[1], minor[0], *minor[2:]])
    for _ in range(rng.integers(1, 16)):
        other = y
        if rng.random() < 0.25:
            other = parameter(shape, minor)
        elif rng.random() < 0.5:
            other = p.add("broadcast", shape, [parameter(shape[-1:], (0,))], minor=minor,
                          columns={DIMENSIONS.start: rank - 1})
        y = p.add(rng.choice(MAP_OPS), shape, sorted({y, other}), minor=minor)
    if kind == "reduce":
        gone = int(rng.integers(rank))
        kept = [d for d in range(rank) if d != gone]
        shape = [shape[d] for d in kept]
        minor = [kept.index(d) for d in minor if d != gone]
        y = p.add("reduce", shape, [y, p.add("constant")], minor=minor, columns={DIMENSIONS.start: gone})
    return y
