"""Schedules of kernels: the space of choices, and a choice applied to TVM's loops (split, reorder, buffer, vectorise).

A schedule is one small code per choice (sketch, tile sizes, loop order, unrolling, threads), so that every search of
kit.search runs on it. Only `schedule_kernel` needs TVM.
"""
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np

from lab.kernels.definitions import image_padding, kernel_axes, kernel_function

SKETCHES = ("tile first", "tile first, written once", "tile first, packed",
            "reduction first", "reduction first, written once", "reduction first, packed")
ROW_SKETCHES = ("row by row", "stage by stage")
VECTOR_LANES = (4, 128)          # float32 numbers in a vector loop: from a quarter to eight AVX-512 registers
WIDEST = 64                      # float32 numbers in a vector loop of a sum or a copy: four AVX-512 registers
TILES = (1, 2, 4, 8, 16, 32)
MORE_TILES = (64, 128, 256, 512) # where only one dimension is cut: memory is fast where whole rows of weights are read
REGISTER = 16                    # float32 numbers in an AVX-512 register


class Choice(NamedTuple):
    """One coordinate of a space of schedules."""
    name: str
    values: tuple
    ordered: bool            # neighbouring values are alike, as tile sizes are


def schedule_space(kernel):
    """The choices that make up a schedule of a kernel; the numbers of their values are the `dims` of a search.

    For matmuls and convolutions the output is cut into tiles of tiles. The last dimension of the innermost tile is one
    vector loop, and the tile should fit the CPU's registers. Where many columns do not fill whole registers, as 1000
    columns do not, this tile may have one column, and the middle tile any size that divides: then LLVM cuts the loop
    over the columns of the middle tile into vectors and a remainder. A sketch says whether the loops over tiles or the
    outer loop of the sum come first. It also says whether a finished tile is written once from a buffer, or the weights
    of a tile are packed together beforehand. For softmax and layer norm the choices are the rows per task, stage by
    stage or row by row, and the vector width of each stage; sums are split over the lanes of a vector. A middle tile
    that does not divide the rest is made smaller, so a few codes mean the same schedule. A choice with one value is
    left out.
    """
    return tuple(choice for choice in _all_choices(kernel) if len(choice.values) > 1)


def _all_choices(kernel):
    """The choices of a kernel, with those that have one value."""
    spatial, reduced = kernel_axes(kernel)
    last = len(spatial) - 1
    loose, widths = _leaves_a_remainder(spatial), divisors(spatial[last], 8, WIDEST)
    widths = (1, *widths) if loose and widths else widths
    tiles = TILES + MORE_TILES * (sum(n > 1 for n in spatial) == 1)
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
            *((Choice("padding", ("on the fly", "each task", "before"), False),) if _is_padded(kernel) else ()),
            *(Choice(f"tile {i}", i == last and widths or divisors(n, 1, 16), True) for i, n in enumerate(spatial)),
            *(Choice(f"tiles {i}", divisors(n, high=MORE_TILES[-1]) if loose else
                     tuple(m for m in tiles if m <= max(1, n // 2)), True) for i, n in enumerate(spatial)),
            *(Choice(f"terms {i}", divisors(n, 1, 64), True) for i, n in enumerate(reduced)))


def _leaves_a_remainder(spatial):
    """Whether there are several rows, and more columns than a vector loop holds that fill no whole registers."""
    *rows, columns = spatial
    return prod(rows) > 1 and columns > WIDEST and columns % REGISTER > 0


def schedule_choices(kernel, codes):
    """What the codes (g,) of a schedule mean: {name of the choice: value}; a ValueError if a code is not valid.

    >>> from lab.kernels import KERNELS
    >>> schedule_choices(KERNELS["softmax 512x768"], [0, 1, 2, 0, 4, 1, 1, 0])["rows"]
    4
    """
    space = schedule_space(kernel)
    if len(codes) != len(space) or any(not 0 <= code < len(choice.values) for code, choice in zip(codes, space)):
        raise ValueError(f"{kernel.name}: codes are {list(map(int, codes))}; expected one per choice, below "
                         f"{[len(choice.values) for choice in space]}")
    fixed = {choice.name: choice.values[0] for choice in _all_choices(kernel)}
    return fixed | {choice.name: choice.values[int(code)] for choice, code in zip(space, codes)}


def choice_columns(kernel, codes):
    """What the codes (c, g) of many schedules mean: {name of the choice: its values (c,)}."""
    fixed = {choice.name: np.full(len(codes), choice.values[0]) for choice in _all_choices(kernel)}
    space = schedule_space(kernel)
    return fixed | {choice.name: np.array(choice.values)[column]
                    for choice, column in zip(space, np.reshape(codes, (-1, len(space))).T.astype(int))}


def _is_padded(kernel):
    """Whether a kernel is a convolution with zeros around its image."""
    return kernel.kind in ("conv2d", "depthwise") and image_padding(kernel) > 0


def kernel_tiles(kernel, choices):
    """Per dimension: elements of the innermost tile, and tiles per larger tile; per sum: terms added at once."""
    spatial, reduced = kernel_axes(kernel)
    tile = [choices[f"tile {i}"] for i in range(len(spatial))]
    tiles = [largest_divisor(n // size, choices[f"tiles {i}"]) for i, (n, size) in enumerate(zip(spatial, tile))]
    return tile, tiles, [choices[f"terms {i}"] for i in range(len(reduced))]


def divisors(n, low=1, high=None):
    """The divisors of `n` from `low` to `high`, by default to `n`, ascending."""
    return tuple(d for d in range(low, min(n, high or n) + 1) if n % d == 0)


@cache
def largest_divisor(n, high):
    """The largest divisor of `n` up to `high`."""
    return divisors(n, high=high)[-1]


def schedule_kernel(kernel, codes):
    """Apply a schedule, one code per choice of `schedule_space`, to a kernel -> tvm.IRModule."""
    from tvm.s_tir import Schedule
    choices = schedule_choices(kernel, codes)
    s = Schedule(kernel_function(kernel))
    (_schedule_rows if kernel.kind in ("softmax", "layer norm") else _schedule_sums)(s, kernel, choices)
    if choices["unroll"]:
        root = s.get_sblock("root")
        s.annotate(root, "pragma_auto_unroll_max_step", choices["unroll"])
        s.annotate(root, "pragma_unroll_explicit", 1)
    return s.mod


def _vectorise(s, block, width):
    """Vectorise the last loop of a block by `width`, which divides it; 1 leaves the loop to LLVM."""
    if width > 1:
        s.vectorize(s.split(s.get_loops(block)[-1], [None, width])[1])


def _schedule_sums(s, kernel, choices):
    """Matmuls and convolutions: tiles of tiles, the innermost unrolled and vectorised."""
    tile, tiles, terms = kernel_tiles(kernel, choices)
    # cut every loop of the output into three, every sum into two, and order them
    out = s.get_sblock("out")
    loops = s.get_loops(out)
    outer, middle, inner = zip(*(s.split(loop, [None, *sizes]) for loop, *sizes in zip(loops, tiles, tile)))
    sums, chunk = zip(*(s.split(loop, [None, size]) for loop, size in zip(loops[len(tile):], terms)))
    outer = outer[-1:] + outer[:-1] if choices["outer order"] == "last first" else outer
    middle = middle[-1:] + middle[:-1] if choices["middle order"] == "last first" else middle
    tile_first = choices["sketch"].startswith("tile first")
    s.reorder(*outer, *(middle + sums if tile_first else sums + middle), *chunk, *inner)
    # threads share out the outer loops
    task = outer[-1]
    if choices["threads"] == "all outer loops":
        task = s.fuse(*outer)
        s.parallel(task)
    elif choices["threads"] == "first loop":
        s.parallel(outer[0])
    # buffers: of the finished tile, or of the tile's weights
    if choices["sketch"].endswith("written once"):
        written = s.cache_write(out, 0, "local")
        s.reverse_compute_at(written, middle[-1] if tile_first else task)
        _vectorise(s, written, tile[-1])
    elif choices["sketch"].endswith("packed"):
        packed = s.cache_read(out, 1, "local")
        s.compute_at(packed, task if tile_first else sums[-1])
        _vectorise(s, packed, tile[-1])
    # the padded image is computed inside the product, once per task, or beforehand
    if _is_padded(kernel):
        pad = s.get_sblock("pad")
        if choices["padding"] == "on the fly":
            s.compute_inline(pad)
        else:
            if choices["padding"] == "each task":
                s.compute_at(pad, task)
            elif choices["threads"] != "one":
                s.parallel(s.get_loops(pad)[0])
            _vectorise(s, pad, divisors(int(s.get(s.get_loops(pad)[-1]).extent), high=WIDEST)[-1])
    # the innermost tile stays in registers
    if tile[-1] > 1:
        s.vectorize(inner[-1])
    for loop in inner[:-1]:
        s.unroll(loop)
    s.decompose_reduction(out, sums[0])


def _schedule_rows(s, kernel, choices):
    """Softmax and layer norm: tasks of some rows, sums split over the lanes of a vector."""
    by_row = choices["sketch"] == "row by row"
    stages = ("largest", "total", "powers") if kernel.kind == "softmax" else ("total", "squares")
    partial = {}
    for stage in stages:
        lanes = choices[f"lanes of {stage}"]
        if lanes > 1 and stage != "powers":
            partial[stage] = s.rfactor(s.split(s.get_loops(stage)[-1], [None, lanes])[1], 1)
    out = s.get_sblock("out")
    tasks, rows = s.split(s.get_loops(out)[0], [None, choices["rows"]])
    if choices["threads"] == "rows":
        s.parallel(tasks)
    for stage in ("total", "powers", "largest") if kernel.kind == "softmax" else ("squares", "total"):
        s.compute_at(stage, rows if by_row else tasks)          # last stage first: its consumer is in place
        if stage == "powers":
            _vectorise(s, s.get_sblock(stage), choices["lanes of powers"])
        elif stage in partial:
            s.compute_at(partial[stage], rows if by_row else tasks)
            lanes, *row, terms = s.get_loops(partial[stage])[2 if by_row else 1:]
            s.reorder(*row, terms, lanes)
            s.vectorize(lanes)
            s.decompose_reduction(partial[stage], terms)
    _vectorise(s, out, choices["lanes of output"])
