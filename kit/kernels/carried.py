"""Knowledge carried from layers that were measured to a new layer: boosted trees on what schedules have in common.

Codes of two layers do not mean the same, but tile sizes, vector widths and the loop order do. The trees learn from
these numbers how long a schedule takes relative to the others of its layer. `carried_cost` turns them into a `model`
for kit.search.
"""
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from kit.checks import expect
from kit.kernels.definitions import kernel_axes
from kit.kernels.schedules import SKETCHES, kernel_tiles, schedule_choices

KINDS = ("matmul", "conv2d", "depthwise", "softmax", "layer norm")
PADDINGS = ("on the fly", "each task", "before")
FAR = 3.0                        # log of the time relative to the layer's median, at most


def schedule_numbers(kernel, codes):
    """What schedules `codes` (c, g) of any kernel have in common, as numbers (c, w) float64; -1 where not defined."""
    return np.array([_numbers_of(kernel, schedule_choices(kernel, code)) for code in codes], float).reshape(
        len(codes), -1)


def _numbers_of(kernel, choices):
    """The numbers of one schedule; sizes as logarithms to the base 2."""
    spatial, reduced = kernel_axes(kernel)
    about = [kernel.kind == kind for kind in KINDS]
    sizes = [np.log2(np.prod(spatial[:-1])), np.log2(spatial[-1]), np.log2(np.prod(reduced)), np.log2(kernel.stride)]
    shared = [np.log2(1 + choices["unroll"]), choices["threads"] != "one"]
    if kernel.kind in ("softmax", "layer norm"):
        lanes = [np.log2(choices.get(f"lanes of {stage}", 0.5)) for stage in (
            "largest", "total", "powers", "squares", "output")]
        return [*about, *sizes, *shared, choices["sketch"] == "row by row", np.log2(choices["rows"]), *lanes,
                *[-1] * 21]
    tile, tiles, terms = kernel_tiles(kernel, choices)
    larger = [size * count for size, count in zip(tile, tiles)]
    sketch = SKETCHES.index(choices["sketch"])
    padding = [choices.get("padding") == name for name in PADDINGS]
    inner = [np.log2(tile[-1]), np.log2(np.prod(tile[:-1])), np.log2(tile[-2]), np.log2(np.prod(tile))]
    middle = [np.log2(larger[-1]), np.log2(np.prod(larger[:-1])), np.log2(np.prod(larger))]
    outer = [sizes[1] - middle[0], sizes[0] - middle[1]]
    summed = [np.log2(terms[-1]), np.log2(np.prod(terms)), sizes[2] - np.log2(np.prod(terms))]
    return [*about, *sizes, *shared, *[-1] * 7, sketch % 3 == 1, sketch % 3 == 2, sketch < 3,
            choices["outer order"] == "last first", choices["middle order"] == "last first",
            choices["threads"] == "all outer loops", *padding, *inner, *middle, *outer, *summed]


def fit_carried(measured, seed=0):
    """Trees that learned from `measured`, [(kernel, codes (c, g), seconds (c,))]: schedule_numbers -> relative time.

    The target is the logarithm of the time over the layer's median; a failed schedule counts as the slowest.
    """
    expect(len(measured), "measured", measured, "the measurements of at least one layer")
    rows = np.concatenate([schedule_numbers(kernel, codes) for kernel, codes, _ in measured])
    target = []
    for _, _, seconds in measured:
        log = np.log(np.asarray(seconds, float))
        log -= np.median(log[np.isfinite(log)])
        target.append(np.clip(np.where(np.isfinite(log), log, FAR), -FAR, FAR))
    trees = HistGradientBoostingRegressor(max_iter=300, learning_rate=0.06, min_samples_leaf=10, random_state=seed)
    return trees.fit(rows, np.concatenate(target))


def carried_cost(trees, kernel):
    """The trees' cost of a kernel's schedules: a `model` for kit.search, (k, g) codes -> (k,) costs."""
    return lambda points: trees.predict(schedule_numbers(kernel, np.asarray(points)))


def measurements_needed(seconds, best, within=0.05):
    """How many of `seconds` (c,), in their order, until one is within 5% of `best`; c + 1 if none is."""
    good = np.flatnonzero(np.asarray(seconds) <= (1 + within) * best)
    return int(good[0]) + 1 if len(good) else len(seconds) + 1
