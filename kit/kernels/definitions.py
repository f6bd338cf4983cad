"""Kernels of neural networks to tune on one's own CPU: what they compute, and the space of their schedules.

A schedule is one small code per choice (sketch, tile sizes, loop order, unrolling, threads), so that every search of
kit/search/strategies.py runs on it. Needs TVM for `kernel_function` alone; kit/kernels/schedules.py applies a schedule.
"""
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

EPSILON = 1e-5                   # of layer norm, PyTorch's default
SKETCHES = ("tile first", "tile first, written once", "tile first, packed",
            "reduction first", "reduction first, written once", "reduction first, packed")
ROW_SKETCHES = ("row by row", "stage by stage")
VECTOR_LANES = (4, 128)          # float32 numbers that a vector loop may span: a quarter to eight AVX-512 registers


class Kernel(NamedTuple):
    """One computation on float32 tensors of fixed shape, row-major, images as height x width x channels."""
    name: str
    kind: str                # "matmul", "conv2d", "depthwise", "softmax" or "layer norm"
    sizes: tuple             # (batch,) rows, columns, depth | height, width, channels, (features,) taps | rows, columns


class Choice(NamedTuple):
    """One coordinate of a space of schedules."""
    name: str
    values: tuple
    ordered: bool            # neighbouring values are alike, as tile sizes are


KERNELS = MappingProxyType({name: Kernel(name, kind, sizes) for name, kind, sizes in (
    ("matmul 512x512x512", "matmul", (512, 512, 512)),
    ("matmul 64x1024x1024", "matmul", (64, 1024, 1024)),
    ("batch matmul 12x128x128x64", "matmul", (12, 128, 128, 64)),             # scores of 12 attention heads
    ("conv2d 3x3 56x56x64", "conv2d", (56, 56, 64, 64, 3)),                   # two layers of a ResNet
    ("conv2d 3x3 14x14x256", "conv2d", (14, 14, 256, 256, 3)),
    ("depthwise 3x3 112x112x64", "depthwise", (112, 112, 64, 3)),             # of a MobileNet
    ("layer norm 512x768", "layer norm", (512, 768)),                         # 512 tokens of a small transformer
    ("softmax 512x768", "softmax", (512, 768)))})


def input_shapes(kernel):
    """Shapes of what a kernel is given: two factors; an image and its taps; or a matrix, for layer norm gain and bias.

    Parameters
    ----------
    kernel : Kernel

    Returns
    -------
    tuple of tuple of int

    Examples
    --------
    >>> input_shapes(KERNELS["depthwise 3x3 112x112x64"])
    ((112, 112, 64), (3, 3, 64))
    """
    kind, sizes = kernel.kind, kernel.sizes
    if kind == "matmul":
        *batch, rows, columns, depth = sizes
        return (*batch, rows, depth), (*batch, depth, columns)
    if kind in ("conv2d", "depthwise"):
        return sizes[:3], (sizes[-1], sizes[-1], *sizes[2:-1])
    return (sizes, sizes[1:], sizes[1:]) if kind == "layer norm" else (sizes,)


def kernel_inputs(kernel, rng):
    """Random tensors for a kernel, standard normal.

    Parameters
    ----------
    kernel : Kernel
    rng : numpy.random.Generator

    Returns
    -------
    list of ndarray, float32
    """
    return [rng.standard_normal(shape, dtype=np.float32) for shape in input_shapes(kernel)]


def kernel_result(kernel, inputs):
    """What a kernel should compute, by NumPy: the oracle of every schedule.

    Parameters
    ----------
    kernel : Kernel
    inputs : list of ndarray
        As of `kernel_inputs`.

    Returns
    -------
    ndarray, float32
    """
    kind, x = kernel.kind, inputs[0]
    if kind == "matmul":
        return x @ inputs[1]
    if kind in ("conv2d", "depthwise"):
        taps = kernel.sizes[-1]
        around = np.pad(x, ((taps // 2, taps // 2), (taps // 2, taps // 2), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(around, (taps, taps), axis=(0, 1))
        return np.einsum("hwcab,abco->hwo" if kind == "conv2d" else "hwcab,abc->hwc", windows, inputs[1],
                         optimize=True)
    if kind == "softmax":
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
    apart = x - x.mean(axis=1, keepdims=True)
    return apart / np.sqrt((apart * apart).mean(axis=1, keepdims=True) + np.float32(EPSILON)) * inputs[1] + inputs[2]


def kernel_axes(kernel):
    """Sizes of the output's dimensions and of those that are summed over; of rows, the latter twice in a row.

    Parameters
    ----------
    kernel : Kernel

    Returns
    -------
    spatial, reduced : tuple of int

    Examples
    --------
    >>> kernel_axes(KERNELS["conv2d 3x3 56x56x64"])
    ((56, 56, 64), (3, 3, 64))
    """
    kind, sizes = kernel.kind, kernel.sizes
    if kind == "matmul":
        return sizes[:-1], sizes[-1:]
    if kind in ("conv2d", "depthwise"):
        *image, taps = sizes                                   # an odd number, padded by half of it: the size stays
        return (*image[:2], image[-1]), (taps, taps, *image[2:-1])
    return sizes, sizes[1:]


def divisors(n, low=1, high=None):
    """The divisors of `n` from `low` to `high`, ascending.

    Parameters
    ----------
    n : int
    low : int
    high : int, optional
        None: n.

    Returns
    -------
    tuple of int

    Examples
    --------
    >>> divisors(56, 2, 28)
    (2, 4, 7, 8, 14, 28)
    """
    return tuple(d for d in range(low, min(n, high or n) + 1) if n % d == 0)


def schedule_space(kernel):
    """The choices that make a schedule.

    Of a kernel of sums of products: the output is cut into tiles of tiles, and the innermost tile, whose last
    dimension is one vector loop, should fit the CPU's registers. A sketch says whether tiles or the outer part of the
    sum come first, and whether a tile is written from a buffer of its own once it is finished, or its weights are
    copied together before. Of softmax and layer norm: how many rows one task takes, stage by stage or row by row, and
    how wide each stage's vectors are; sums are split over lanes.

    Parameters
    ----------
    kernel : Kernel

    Returns
    -------
    tuple of Choice
        The number of values of each is the `dims` of kit/search/strategies.py. A middle tile that does not divide
        what is left is made smaller, so a few codes mean the same schedule.
    """
    spatial, reduced = kernel_axes(kernel)
    last = len(spatial) - 1
    if kernel.kind in ("softmax", "layer norm"):
        lanes = (1, *divisors(spatial[1], VECTOR_LANES[0], min(VECTOR_LANES[1], spatial[1] // 2)))
        stages = ("largest", "total", "powers") if kernel.kind == "softmax" else ("total", "squares")
        return (Choice("sketch", ROW_SKETCHES, False), Choice("threads", ("one", "rows"), False),
                Choice("rows", divisors(spatial[0], 1, 64), True),
                *(Choice(f"lanes of {stage}", lanes, True) for stage in (*stages, "output")),
                Choice("unroll", (0, 16, 64, 256), True))
    return (Choice("sketch", SKETCHES, False),
            Choice("outer order", ("as written", "last first"), False),
            Choice("middle order", ("as written", "last first"), False),
            Choice("threads", ("one", "first loop", "all outer loops"), False),
            Choice("unroll", (0, 16, 64, 512), True),
            *((Choice("padding", ("on the fly", "each task", "before"), False),) if kernel.kind != "matmul" else ()),
            *(Choice(f"tile {i}", divisors(n, 8, 64) if i == last else divisors(n, 1, 16), True)
              for i, n in enumerate(spatial)),
            *(Choice(f"tiles {i}", tuple(m for m in (1, 2, 4, 8, 16, 32) if m <= n // 2), True)
              for i, n in enumerate(spatial)),
            *(Choice(f"terms {i}", divisors(n, 1, 64), True) for i, n in enumerate(reduced)))


def schedule_choices(kernel, codes):
    """What the codes of a schedule mean.

    Parameters
    ----------
    kernel : Kernel
    codes : sequence of int, shape (g,)

    Returns
    -------
    dict of str to int or str
        {name of the choice: value}.

    Raises
    ------
    ValueError
        If they are not one code for each choice.

    Examples
    --------
    >>> schedule_choices(KERNELS["softmax 512x768"], [0, 1, 2, 0, 4, 1, 1, 0])["rows"]
    4
    """
    space = schedule_space(kernel)
    if len(codes) != len(space) or any(not 0 <= code < len(choice.values) for code, choice in zip(codes, space)):
        raise ValueError(f"{kernel.name}: codes are {list(map(int, codes))}; expected one of each choice, below "
                         f"{[len(choice.values) for choice in space]}")
    return {choice.name: choice.values[int(code)] for choice, code in zip(space, codes)}


def kernel_tiles(kernel, choices):
    """The tile sizes of a schedule of sums of products.

    Parameters
    ----------
    kernel : Kernel
    choices : dict
        Of `schedule_choices`.

    Returns
    -------
    tile, tiles : list of int
        Elements of the innermost tile along each dimension of the output, and how many of them the next one takes.
    terms : list of int
        Of each sum, done at once.
    """
    spatial, reduced = kernel_axes(kernel)
    tile = [choices[f"tile {i}"] for i in range(len(spatial))]
    tiles = [divisors(n // size, high=choices[f"tiles {i}"])[-1] for i, (n, size) in enumerate(zip(spatial, tile))]
    return tile, tiles, [choices[f"terms {i}"] for i in range(len(reduced))]


def kernel_function(kernel):
    """A kernel as TVM's function of tensors, not scheduled.

    Parameters
    ----------
    kernel : Kernel

    Returns
    -------
    tvm.tirx.PrimFunc
        Its arguments are those of `kernel_inputs` and the output. Blocks are called "out", "pad", "largest",
        "powers", "total" and "squares".
    """
    from tvm import te
    inputs = [te.placeholder(shape, "float32", name) for shape, name in zip(input_shapes(kernel), "xwb")]
    spatial, reduced = kernel_axes(kernel)
    over = [te.reduce_axis((0, n), f"r{i}") for i, n in enumerate(reduced)]
    x, *others = inputs
    if kernel.kind == "matmul":
        out = te.compute(spatial, lambda *i: te.sum(x(*i[:-1], *over) * others[0](*i[:-2], *over, i[-1]), over), "out")
    elif kernel.kind in ("conv2d", "depthwise"):
        high, wide, channels, *_, taps = kernel.sizes
        p = taps // 2
        pad = te.compute((high + 2 * p, wide + 2 * p, channels), lambda i, j, c: te.if_then_else(
            te.all(i >= p, i < high + p, j >= p, j < wide + p), x[i - p, j - p, c], 0.0), "pad")
        a, b, *c = over
        out = te.compute(spatial, lambda i, j, o: te.sum(
            pad(i + a, j + b, *(c or [o])) * others[0](a, b, *c, o), over), "out")
    elif kernel.kind == "softmax":
        again = te.reduce_axis((0, spatial[1]), "again")
        largest = te.compute(spatial[:1], lambda i: te.max(x[i, over[0]], over[0]), "largest")
        powers = te.compute(spatial, lambda i, j: te.exp(x[i, j] - largest[i]), "powers")
        total = te.compute(spatial[:1], lambda i: te.sum(powers[i, again], again), "total")
        out = te.compute(spatial, lambda i, j: powers[i, j] / total[i], "out")
    else:
        n, again = spatial[1], te.reduce_axis((0, spatial[1]), "again")
        total = te.compute(spatial[:1], lambda i: te.sum(x[i, over[0]], over[0]), "total")
        squares = te.compute(spatial[:1], lambda i: te.sum(x[i, again] * x[i, again], again), "squares")
        out = te.compute(spatial, lambda i, j: (x[i, j] - total[i] / n) * te.rsqrt(
            squares[i] / n - total[i] / n * (total[i] / n) + EPSILON) * others[0][j] + others[1][j], "out")
    return te.create_prim_func([*inputs, out])
