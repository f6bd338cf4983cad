"""Knowledge carried from layers that were measured to a new layer: boosted trees on what schedules have in common.

Codes of two layers do not mean the same, but tile sizes, vector widths and the loop order do. The trees learn from
these numbers how long a schedule takes relative to the others of its layer. `carried_cost` turns them into a `model`
for kit.search, and `known_cost` does both with the measurements that the kit comes with.
"""
import hashlib
import json
from math import prod
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import ThreadpoolController

from kit.checks import expect
from lab.kernels.definitions import image_padding, kernel_axes
from lab.kernels.networks import network_layers, network_names
from lab.kernels.schedules import SKETCHES, choice_columns, largest_divisor, schedule_space
from lab.run import module_digest

MEASURED = Path(__file__).with_name("measured.csv.gz")       # random schedules; measure_networks.py adds to it
KINDS = ("matmul", "conv2d", "depthwise", "softmax", "layer norm")
ROW_KINDS = ("softmax", "layer norm")
PADDINGS = ("on the fly", "each task", "before")
FAR = 3.0                        # log of the time relative to the layer's median, at most
# where the definitions were when the first measurements were stored; a part of the key of all, so not to be renamed
CODE = ".".join(("kit", "kernels", "definitions"))
_FITTED = {}                     # digest of measurements -> the trees that learned from them


def schedule_numbers(kernel, codes):
    """What schedules `codes` (c, g) of any kernel have in common, as numbers (c, w) float64; -1 where not defined.

    Sizes are logarithms to the base 2.
    """
    columns = _numbers_of(kernel, choice_columns(kernel, codes))
    return np.stack([np.broadcast_to(np.asarray(column, float), len(codes)) for column in columns], axis=1)


def _numbers_of(kernel, choices):
    """The columns of numbers; `choices` hold a value per schedule, as of `choice_columns`."""
    spatial, reduced = kernel_axes(kernel)
    about = [kernel.kind == kind for kind in KINDS]
    sizes = [np.log2(np.prod(spatial[:-1])), np.log2(spatial[-1]), np.log2(np.prod(reduced)), np.log2(kernel.stride)]
    shared = [np.log2(1 + choices["unroll"]), choices["threads"] != "one"]
    if kernel.kind in ROW_KINDS:
        lanes = [np.log2(choices.get(f"lanes of {stage}", 0.5)) for stage in (
            "largest", "total", "powers", "squares", "output")]          # 0.5: no such stage, so the number is -1
        return [*about, *sizes, *shared, choices["sketch"] == "row by row", np.log2(choices["rows"]), *lanes,
                *[-1] * 21]
    tile, tiles, terms = _tile_columns(kernel, choices)
    larger = [size * count for size, count in zip(tile, tiles)]
    sketch = np.array([SKETCHES.index(name) for name in choices["sketch"]], int)
    padding = [choices.get("padding", "") == name for name in PADDINGS]
    inner = [np.log2(tile[-1]), np.log2(prod(tile[:-1])), np.log2(tile[-2]), np.log2(prod(tile))]
    middle = [np.log2(larger[-1]), np.log2(prod(larger[:-1])), np.log2(prod(larger))]
    outer = [sizes[1] - middle[0], sizes[0] - middle[1]]
    summed = [np.log2(terms[-1]), np.log2(prod(terms)), sizes[2] - np.log2(prod(terms))]
    return [*about, *sizes, *shared, *[-1] * 7, sketch % 3 == 1, sketch % 3 == 2, sketch < 3,
            choices["outer order"] == "last first", choices["middle order"] == "last first",
            choices["threads"] == "all outer loops", *padding, *inner, *middle, *outer, *summed]


def _tile_columns(kernel, choices):
    """As `kernel_tiles`, for many schedules at once."""
    spatial, reduced = kernel_axes(kernel)
    tile = [choices[f"tile {i}"] for i in range(len(spatial))]
    tiles = [np.array([largest_divisor(n // size, most) for size, most in zip(
        tile[i].tolist(), choices[f"tiles {i}"].tolist())], int) for i, n in enumerate(spatial)]
    return tile, tiles, [choices[f"terms {i}"] for i in range(len(reduced))]


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
    with ThreadpoolController().limit(limits=1):        # on busy cores, threads that wait for each other cost seconds
        return trees.fit(rows, np.concatenate(target))


def fit_known(known):
    """As `fit_carried`, but measurements that were learned from before, in this process, are not learned from again.

    The layers of a network leave out the same measurements, so there is one fit for most networks.
    """
    key = joblib.hash(known)
    if key not in _FITTED:
        _FITTED[key] = fit_carried(known)
    return _FITTED[key]


def carried_cost(trees, kernel, threads=1):
    """The trees' cost of a kernel's schedules: a `model` for kit.search, (k, g) codes -> (k,) costs.

    The trees learned from kernels on one thread. With `threads`, the cost is that of the thread with the most work.
    """
    pools = ThreadpoolController()

    def cost(points):
        with pools.limit(limits=1):                      # a search asks about few points at a time
            alone = trees.predict(schedule_numbers(kernel, points))
        shared = shared_iterations(kernel, points)
        return alone + np.log(np.ceil(shared / threads) / shared)
    return cost


def shared_iterations(kernel, codes):
    """How many iterations of a loop threads share out, in schedules `codes` (c, g) -> (c,); 1 without such a loop."""
    choices = choice_columns(kernel, codes)
    spatial, _ = kernel_axes(kernel)
    if kernel.kind in ROW_KINDS:
        return np.where(choices["threads"] == "rows", spatial[0] // choices["rows"], 1)
    tile, tiles, _ = _tile_columns(kernel, choices)
    outer = [n // (size * count) for n, size, count in zip(spatial, tile, tiles)]
    first = np.where(choices["outer order"] == "last first", outer[-1], outer[0])
    return np.select([choices["threads"] == "all outer loops", choices["threads"] == "first loop"],
                     [np.prod(outer, axis=0), first], 1)


def known_cost(kernel, threads=1):
    """The cost of a kernel's schedules by trees that learned from `known_measurements`, or None if there are none.

    It is the `model` of kit.search:
    `explore_then_droplet(..., model=known_cost(kernel, threads=threads), doubt_model=True, confirm=3, stamina=64)`.
    """
    known = known_measurements(kernel)
    return carried_cost(fit_known(known), kernel, threads) if known else None


def known_measurements(kernel):
    """The stored measurements of random schedules of other layers.

    Parameters
    ----------
    kernel : Kernel
        The layer to search next. Only layers of networks that do not have it are given, whatever its name there.

    Returns
    -------
    list of (Kernel, int array (c, g), float array (c,))
        Layer, codes and seconds, once per machine. Layers without a choice in common with the kernel's are left out, as
        softmax for a convolution, and measurements of another definition of a layer or of another space of schedules.
    """
    networks = [{_computes(layer): layer for layer, _ in network_layers(name)} for name in network_names()]
    left_out = set().union(*(own for own in networks if _computes(kernel) in own))
    layers = {layer.name: layer for own in networks for about, layer in own.items() if about not in left_out}
    rows = pd.read_csv(MEASURED, keep_default_na=False)
    found = []
    for (name, digest, *_), part in rows.groupby(["kernel", "definition", "cpu", "threads"], sort=False):
        alike = name in layers and (layers[name].kind in ROW_KINDS) == (kernel.kind in ROW_KINDS)
        if alike and digest == definition(layers[name]):
            found.append((layers[name], np.array([[*map(int, codes.split())] for codes in part["codes"]]),
                          part["us"].to_numpy(float) / 1e6))
    return found


def _computes(kernel):
    """What a kernel computes; a name, and an argument that its kind does not use, make no other layer."""
    images = kernel.kind in ("conv2d", "depthwise")
    return kernel.kind, kernel.sizes, (kernel.stride, image_padding(kernel)) if images else None


def definition(kernel):
    """Digest of what a kernel computes and of its space of schedules; measurements of another one do not count."""
    code = json.dumps([[CODE, module_digest(kernel_axes.__module__)]])
    about = repr([schedule_space(kernel), hashlib.sha256(code.encode()).hexdigest()])
    return hashlib.sha256(about.encode()).hexdigest()[:8]
