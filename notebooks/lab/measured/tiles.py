"""Stored measurements of TVM kernels as files of `tile:xla`: how loops of a layer are cut, and how long it takes.

A file holds random schedules of a layer, measured on one core. Those that take more than four times the fastest are
left out, because a compiler would not propose them. The layers of a network are in one split. `config_feat` has the
official form, three groups of six numbers with their sums and products, and a meaning of its own:

    kernel_bounds     the innermost tile: elements of each dimension of the output, then terms of each sum
    output_bounds     the larger tile, which holds several of these
    input_bounds      the other choices of the schedule as numbers from 1: sketch, two loop orders, threads, unrolling,
                      padding

Random schedules have no default, so the normalizer is the median runtime of the file. JAX writes the layer as HLO.
"""
import hashlib

import numpy as np
import pandas as pd

from kit.files import whole_file, write_json
from kit.hlo import parse_hlo, program_arrays, write_sequences
from lab.kernels.carried import MEASURED, definition
from lab.kernels.definitions import image_padding, input_shapes
from lab.kernels.networks import network_layers
from lab.kernels.schedules import choice_columns, kernel_tiles, schedule_choices, schedule_space

CPU = "AMD EPYC (family 25, model 17)"           # as the table of stored measurements calls it
NETWORKS = {"train": ("alexnet", "vgg16", "resnet18", "mobilenet_v2", "bert"),
            "valid": ("unet", "googlenet", "densenet121", "efficientnet_b0"),
            "test": ("squeezenet1_1", "vit_b_32")}
OTHERS = "sketch", "outer order", "middle order", "threads", "unroll", "padding"
SLOWEST = 4                                      # times the fastest schedule
CUT = "matmul", "conv2d", "depthwise"            # kinds of layers whose loops are cut into tiles


def measured_layers():
    """[(split, network, kernel, codes (c, g), nanoseconds (c,))] of the layers whose loops are cut."""
    stored = pd.read_csv(MEASURED, keep_default_na=False).query("cpu == @CPU and threads == 1")
    parts, found, seen = dict(list(stored.groupby(["kernel", "definition"]))), [], set()
    for split, networks in NETWORKS.items():
        for network in networks:
            for kernel, _ in network_layers(network):
                part = parts.get((kernel.name, definition(kernel)))
                if part is not None and kernel.kind in CUT and kernel.name not in seen:
                    seen.add(kernel.name)                      # a layer of two networks belongs to the first
                    microseconds = part["us"].to_numpy(float)      # infinite for a schedule that failed
                    kept = microseconds <= SLOWEST * microseconds.min()
                    codes = np.array([[*map(int, text.split())] for text in part["codes"][kept]])
                    found.append((split, network, kernel, codes, np.rint(1e3 * microseconds[kept]).astype(np.int64)))
    return found


def tile_numbers(kernel, codes):
    """`config_feat` (c, 24) float32 of schedules (c, g)."""
    table, chosen = np.zeros((len(codes), 24), np.float32), choice_columns(kernel, codes)
    values = {choice.name: choice.values for choice in schedule_space(kernel)}
    inner, outer, others = [], [], []
    for place, code in enumerate(codes):
        tile, tiles, terms = kernel_tiles(kernel, schedule_choices(kernel, code))
        inner.append([*map(int, tile), *map(int, terms)])
        outer.append([int(size * count) for size, count in zip(tile, tiles)])
        others.append([1 + values[name].index(chosen[name][place]) if name in values else 1 for name in OTHERS])
    for first, lists in ((0, inner), (8, outer), (16, others)):
        write_sequences(table, range(len(codes)), lists, first, 6, "sum product")
    return table


def layer_hlo(kernel):
    """A layer as an HLO module, as JAX writes it."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    def layer(x, w):
        if kernel.kind == "matmul":
            return jnp.matmul(x, w)
        channels, padding = kernel.sizes[2], image_padding(kernel)
        groups = channels if kernel.kind == "depthwise" else 1
        taps = w.reshape(*w.shape[:2], -1, kernel.sizes[-2] if groups == 1 else channels)
        return lax.conv_general_dilated(x[None], taps, (kernel.stride,) * 2, [(padding, padding)] * 2,
                                        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups)
    given = [jax.ShapeDtypeStruct(shape, "float32") for shape in input_shapes(kernel)]
    return jax.jit(layer).lower(*given).compiler_ir("hlo").as_serialized_hlo_module_proto()


def write_tiles(out):
    """Write a file per layer, and a row about it for `write_catalogue` -> [path]."""
    paths = []
    for split, network, kernel, codes, runtime in measured_layers():
        module = parse_hlo(layer_hlo(kernel), "Module", kernel.name)
        node_feat, node_opcode, edge_index, _ = program_arrays(module, kernel.name)
        name = f"{network}_{hashlib.sha256(kernel.name.encode()).hexdigest()[:16]}"       # as in the data set
        path = out / "npz" / "tile" / "xla" / split / f"{name}.npz"
        with whole_file(path) as part, open(part, "wb") as file:
            np.savez_compressed(
                file, node_feat=node_feat, node_opcode=node_opcode.astype(np.uint8), edge_index=edge_index,
                config_feat=tile_numbers(kernel, codes), config_runtime=runtime,
                config_runtime_normalizers=np.full(len(runtime), int(np.median(runtime)), np.int64))
        write_json(out / "rows" / name / "tiles.json", {
            "collection": "tile:xla", "split": split, "program": name, "family": network, "layer": kernel.name,
            "nodes": len(node_opcode), "rows": len(runtime), "different": len(np.unique(codes, axis=0)),
            "slowest": round(runtime.max() / runtime.min(), 3), "machine": CPU, "device": "cpu", "threads": 1})
        paths.append(path)
    return paths
