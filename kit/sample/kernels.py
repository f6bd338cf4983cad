"""Fused kernels for the sample data's `tile:xla`: the graphs, their tile configurations, and what a tile costs.

The machine and its constants are those of `simulate`.
"""
import numpy as np

from kit.data import OPCODE_NAMES
from kit.pad import IS_ROOT, LANES, LAYOUT, PARAMETER_NUMBER, SUBLANES, WINDOW_STRIDE
from kit.sample.programs import Program
from kit.sample.runtimes import CONVOLUTION, FREE, HBM_BYTES, PEAK_FLOPS, TRANSPOSE_SHARE, Tensors, rounded_up

PARAMETER, FUSION = map(OPCODE_NAMES.index, ("parameter", "fusion"))
VMEM_BYTES = 16 * 2**20          # on-chip vector memory, as public descriptions of that generation have it
VECTOR_FLOPS = 2 * 8 * 128 * 0.94e9          # 1/s: two operations a lane and cycle
RUN_BYTES = 1024                 # contiguous bytes at which a DMA reaches half of the bandwidth; chosen
TILE_SECONDS = 0.2e-6            # of one step; copy kernels of the public tile files lose 0.15-0.2 us a step
LAUNCH_SECONDS = 1e-6            # of one kernel; the smallest public tile kernels take about 1 us

MAP_OPS = ("add", "multiply", "subtract", "maximum", "exponential", "tanh", "logistic", "divide")
MAX_STEPS = 4096                 # of one configuration: slower ones are not tried


def simulate_tile(node_feat, node_opcode, edge_index, config_feat):
    """Noise-free runtime of one fused kernel under tile configurations.

    The last node is the kernel's output. Bounds count blocks of its dimensions from major to minor, a block being
    1 element, 8 in the second minor-most and 128 in the minor-most dimension (as in the public files). A kernel
    with a Convolution also splits the kernel tensor (`kernel_bounds`), so that its contraction takes several steps;
    the bound of its output features follows the output tile. Then

    seconds = launch + first tile's input / bandwidth + steps x (step + tile overhead),

    step = max(compute, DMA) where two input and two output tiles fit the vector memory (double buffering), their
    sum where one does, and with the DMA slowed by the excess where not even that fits. Input is loaded anew for
    every step, a Convolution's with its halo; operands smaller than the output whole; output and the other operands
    of a Convolution count once an output tile. DMA = bytes / bandwidth x (1 + 1 kB / contiguous bytes). Compute is
    tile FLOPs / (peak x c / ceil128(c) x rows / (rows + 128)) for c contracted input features on the matrix units,
    else one vector FLOP per operation and element, twice that where an operand of the output's size lies in
    another layout.

    Parameters
    ----------
    node_feat : ndarray, shape (n, 140)
    node_opcode : ndarray, shape (n,)
    edge_index : ndarray, shape (m, 2)
    config_feat : ndarray, shape (k, 24)

    Returns
    -------
    ndarray, shape (k,), float64, seconds

    Examples
    --------
    A copy of 64 x 1024 float32 in 64, 8 and 1 tiles:

    >>> feat = np.zeros((2, 140))
    >>> feat[:, 13], feat[:, 21], feat[:, 22], feat[:, 134] = 1, 64, 1024, 1
    >>> bounds = np.zeros((3, 24))
    >>> bounds[:, 8:10] = [[1, 1], [1, 8], [8, 8]]
    >>> (simulate_tile(feat, [63, 27], [[1, 0]], bounds) * 1e6).round(2)
    array([15.27,  3.87,  2.95])
    """
    return _tile_cost(Tensors(node_feat, node_opcode, edge_index), config_feat)[2]


def _tile_cost(tensors, config_feat):
    """Steps (k,), bytes a step holds (k,), seconds (k,)."""
    out, bounds = len(tensors.opcode) - 1, np.asarray(config_feat, dtype=np.float64)
    order, tile, tiles = _tiling(tensors, out, bounds[:, 8:14])
    elements, width = tile.prod(1), tensors.width
    convolutions = [v for v, op in enumerate(tensors.opcode) if op == CONVOLUTION]
    inner = [v for v, op in enumerate(tensors.opcode) if op == PARAMETER and v not in tensors.operands[out]]
    inner = inner or tensors.operands[out]                  # not a fusion
    size = tensors.size
    share = {v: np.minimum(tensors.padded[v, tensors.pair[v]], elements * max(1, size[v] / size[out]) * width[v])
             for v in inner}
    if convolutions:
        hero = convolutions[0]
        data, kernel = tensors.roles(hero)
        numbers = tensors.feat[hero, 93:108].astype(int)    # columns 93-107
        k_order, k_tile, k_steps = _tiling(tensors, kernel, bounds[:, :6], free=numbers[7])
        along = dict(zip(order, tile.T))
        k_along = dict(zip(k_order, k_tile.T))
        features, contracted = along.pop(numbers[13]), k_along[numbers[6]]
        rows, halo, window = elements / features, along.pop(numbers[12]), np.ones(len(bounds))
        for i, dim in enumerate(sorted(along)):
            taps, stride = k_along[numbers[8 + i]], max(1, tensors.feat[hero, WINDOW_STRIDE][i])
            halo, window = halo * ((along[dim] - 1) * stride + taps), window * taps
        load = (halo * width[data] + window * features * width[kernel]) * contracted
        once = sum(share[v] for v in inner if v not in (data, kernel))
        fill = contracted / rounded_up(contracted, LANES) * rows / (rows + LANES)
        compute = 2 * elements * contracted * window / (PEAK_FLOPS * fill)
    else:
        k_steps, load, once = 1.0, sum(share.values()), 0.0
        inside = range(len(size) - 1) if tensors.opcode[out] == FUSION else range(len(size))
        work = sum(max(1, size[v] / size[out], *(size[u] / size[out] for u in tensors.operands[v])) for v in inside
                   if tensors.opcode[v] not in FREE | {PARAMETER})
        turned = any(size[v] == size[out] and tensors.pair[v] != tensors.pair[out] for v in inner)
        compute = elements * work / VECTOR_FLOPS / (TRANSPOSE_SHARE if turned else 1.0)
    store = elements * width[out]
    whole = tile[:, -1] >= tensors.dims[out, order[-1]]
    run = width[out] * tile[:, -1] * (np.where(whole, tile[:, -2], SUBLANES) if len(order) > 1 else 1)
    dma = (load + (store + once) / k_steps) / HBM_BYTES * (1 + RUN_BYTES / run)
    held = load + store + once
    step = np.where(2 * held <= VMEM_BYTES, np.maximum(compute, dma),
                    compute + dma * np.maximum(1, held / VMEM_BYTES))
    steps = tiles * k_steps
    return steps, held, LAUNCH_SECONDS + load / HBM_BYTES + steps * (step + TILE_SECONDS)


def _tiling(tensors, v, bounds, free=None):
    """Dimensions of v from major to minor, tile sizes (k, rank), number of tiles (k,) not counting along `free`."""
    order, blocks = tensors.blocks(v)
    bound = np.clip(bounds[:, :len(order)], 1, blocks)
    counted = [i for i, dim in enumerate(order) if dim != free]
    return order, bound * tensors.units(len(order)), np.ceil(blocks / bound)[:, counted].prod(1)


def tile_kernel(rng, configs):
    """One fused kernel and tile configurations for it.

    Parameters
    ----------
    rng : numpy.random.Generator
    configs : int
        How many at most; fewer where fewer exist.

    Returns
    -------
    arrays : dict
        node_feat (n, 140), node_opcode (n,), edge_index (m, 2).
    config_feat : ndarray, shape (c, 24), float32
        Distinct rows, the compiler's default first: of those that leave room for double buffering in half of the
        vector memory, the one with the fewest steps.
    """
    p = Program(rng, rng.choice(["f32", "bf16"]), bare=True)
    parameters = []

    def parameter(shape, minor, dtype=None):
        parameters.append(p.add("parameter", shape, (), dtype, minor, {PARAMETER_NUMBER: len(parameters)}))
        return parameters[-1]

    kind = rng.choice(["convolution", "matmul", "map", "reduce", "copy"], p=[0.3, 0.15, 0.3, 0.15, 0.1])
    root = (_matrix_body if kind in ("convolution", "matmul") else _vector_body)(p, parameter, kind, rng)
    p.rows[root][IS_ROOT] = 1
    if kind != "copy":
        outer = [p.repeat(u) for u in parameters]
        shape = p.shapes[root]
        minor = p.rows[root][LAYOUT][:len(shape)]
        p.add("fusion", shape, [root, *outer], minor=minor, root=True)
    arrays = p.arrays()
    tensors = Tensors(arrays["node_feat"], arrays["node_opcode"], arrays["edge_index"])
    found = np.zeros((30 * configs, 24), dtype=np.float32)
    out = len(tensors.opcode) - 1
    order, blocks = tensors.blocks(out)
    found[:, 8:8 + len(order)] = _draw_bounds(rng, blocks, len(found))
    if root != out and kind in ("convolution", "matmul"):
        hero = tensors.opcode.index(CONVOLUTION)
        kernel = tensors.roles(hero)[1]
        k_order, k_blocks = tensors.blocks(kernel)
        found[:, :len(k_order)] = _draw_bounds(rng, k_blocks, len(found))
        features = [int(tensors.feat[hero, column]) for column in (100, 106)]
        found[:, k_order.index(features[0])] = found[:, 8 + order.index(features[1])]
        found[:, 6], found[:, 7] = found[:, :6].sum(1), found[:, :len(k_order)].prod(1)
    found[:, 14], found[:, 15] = found[:, 8:14].sum(1), found[:, 8:8 + len(order)].prod(1)
    found = found[np.sort(np.unique(found, axis=0, return_index=True)[1])]
    found = found[_tile_cost(tensors, found)[0] <= MAX_STEPS][:configs]
    steps, held, _ = _tile_cost(tensors, found)
    default = np.where(2 * held <= VMEM_BYTES / 2, steps, MAX_STEPS + held).argmin()
    found[[0, default]] = found[[default, 0]]
    return {key: arrays[key] for key in ("node_feat", "node_opcode", "edge_index")}, found


def _draw_bounds(rng, blocks, count):
    """(count, rank): each bound is ceil(blocks / j) for a j; the larger of two draws, as big tiles are worth trying."""
    choices = [np.unique(-(-int(b) // np.arange(1, int(b) + 1))) for b in blocks]
    return np.stack([rng.choice(c, (2, count)).max(0) for c in choices], axis=1)


def _matrix_body(p, parameter, kind, rng):
    if kind == "matmul":                       # XLA's convolution without a window
        rows, depth, features = (int(rng.choice([128, 256, 384, 512, 1024, 2048])) for _ in range(3))
        minor = (1, 0)
        x, w = parameter((rows, depth), minor), parameter((depth, features), minor)
        shape, columns = (rows, features), {93: [0, 1], 99: [0, 1], 105: [0, 1], 107: [1, 1]}
    else:
        batch, size = int(rng.choice([8, 16, 32, 64])), int(rng.choice([7, 14, 16, 24, 28, 32]))
        depth, features = (int(rng.choice([32, 64, 96, 128, 192, 256, 384, 512])) for _ in range(2))
        taps, minor = int(rng.choice([1, 3, 3, 5])), ((3, 0, 2, 1), (3, 2, 1, 0))[rng.integers(2)]
        x, w = parameter((batch, size, size, depth), minor), parameter((taps, taps, depth, features), (3, 2, 1, 0))
        around = [taps // 2] * 2
        shape = batch, size, size, features
        columns = p.window([taps] * 2, [1] * 2, around, around) | {
            93: [0, 3, 1, 2, 0, 0, 2, 3, 0, 1, 0, 0, 0, 3], 107: [1, 1]}
    y = p.add("convolution", shape, [x, w], minor=minor, columns=columns)
    if rng.random() < 0.6:
        bias = p.add("broadcast", shape, [parameter(shape[-1:], (0,))], minor=minor, columns={31: len(shape) - 1})
        y = p.add("add", shape, [y, bias], minor=minor)
    if rng.random() < 0.6:
        floor = p.add("broadcast", shape, [p.add("constant")], minor=minor)
        y = p.add("maximum", shape, [y, floor], minor=minor)
    return y


def _vector_body(p, parameter, kind, rng):
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
            other = p.add("broadcast", shape, [parameter(shape[-1:], (0,))], minor=minor, columns={31: rank - 1})
        y = p.add(rng.choice(MAP_OPS), shape, sorted({y, other}), minor=minor)
    if kind == "reduce":
        gone = int(rng.integers(rank))
        kept = [d for d in range(rank) if d != gone]
        shape = [shape[d] for d in kept]
        minor = [kept.index(d) for d in minor if d != gone]
        y = p.add("reduce", shape, [y, p.add("constant")], minor=minor, columns={31: gone})
    return y
