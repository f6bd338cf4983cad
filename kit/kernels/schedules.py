"""Schedules of kernels, applied by TVM: loops are cut, reordered, buffered, unrolled, vectorised and shared out."""
from kit.kernels.definitions import divisors, kernel_function, kernel_tiles, schedule_choices

WIDEST = 64                      # float32 numbers of a vector loop that copies; four AVX-512 registers


def schedule_kernel(kernel, codes):
    """Apply a schedule to a kernel.

    Parameters
    ----------
    kernel : Kernel
    codes : sequence of int, shape (g,)
        One for each choice of `schedule_space`.

    Returns
    -------
    tvm.IRModule

    Raises
    ------
    ValueError
        If they are not one code for each choice.
    """
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
    """The last loop of a block by vectors of `width`, which divides it."""
    s.vectorize(s.split(s.get_loops(block)[-1], [None, width])[1])


def _schedule_sums(s, kernel, choices):
    """Matmuls and convolutions: tiles of tiles, the innermost unrolled and vectorised."""
    tile, tiles, terms = kernel_tiles(kernel, choices)
    out = s.get_sblock("out")
    loops = s.get_loops(out)
    outer, middle, inner = zip(*(s.split(loop, [None, *sizes]) for loop, *sizes in zip(loops, tiles, tile)))
    sums, chunk = zip(*(s.split(loop, [None, size]) for loop, size in zip(loops[len(tile):], terms)))
    outer = outer[-1:] + outer[:-1] if choices["outer order"] == "last first" else outer
    middle = middle[-1:] + middle[:-1] if choices["middle order"] == "last first" else middle
    tile_first = choices["sketch"].startswith("tile first")
    s.reorder(*outer, *(middle + sums if tile_first else sums + middle), *chunk, *inner)
    task = outer[-1]
    if choices["threads"] == "all outer loops":
        task = s.fuse(*outer)
        s.parallel(task)
    elif choices["threads"] == "first loop":
        s.parallel(outer[0])
    if choices["sketch"].endswith("written once"):
        written = s.cache_write(out, 0, "local")
        s.reverse_compute_at(written, middle[-1] if tile_first else task)
        _vectorise(s, written, tile[-1])
    elif choices["sketch"].endswith("packed"):
        packed = s.cache_read(out, 1, "local")
        s.compute_at(packed, task if tile_first else sums[-1])
        _vectorise(s, packed, tile[-1])
    if kernel.kind != "matmul":
        pad = s.get_sblock("pad")
        if choices["padding"] == "on the fly":
            s.compute_inline(pad)
        else:
            if choices["padding"] == "each task":
                s.compute_at(pad, task)
            elif choices["threads"] != "one":
                s.parallel(s.get_loops(pad)[0])
            _vectorise(s, pad, divisors(int(s.get(s.get_loops(pad)[-1]).extent), high=WIDEST)[-1])
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
        s.compute_at(stage, rows if by_row else tasks)          # the last first: what needs it is already there
        if stage == "powers":
            _vectorise(s, s.get_sblock(stage), choices["lanes of powers"])
        elif stage in partial:
            s.compute_at(partial[stage], rows if by_row else tasks)
            lanes, *row, terms = s.get_loops(partial[stage])[2 if by_row else 1:]
            s.reorder(*row, terms, lanes)
            s.vectorize(lanes)
            s.decompose_reduction(partial[stage], terms)
    _vectorise(s, out, choices["lanes of output"])
