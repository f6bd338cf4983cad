"""Programs and kernels that the benchmarks share: drawn at random, or generated as in the tests.

This file imports nothing beyond what `gpu.py` needs.
"""
import zipfile

import numpy as np
from sample.architectures import convolutional_net
from sample.write import layout_options

from kit.data import LayoutGraph, TileGraph
from kit.files import whole_file

NODES, EDGES, CONFIGURABLE, CONFIGS = 1000, 1600, 200, 64


def drawn_graph(n=NODES, m=EDGES, nc=CONFIGURABLE, c=CONFIGS, groups=26, codes=9):
    """A layout graph of random features and edges; 26 groups of 9 codes as in the real alexnet file."""
    rng = np.random.default_rng(0)
    node_feat = np.zeros((n, 140), np.float32)
    node_feat[:, 37:80] = rng.integers(-2, 50, (n, 43))
    node_feat[:, 21:25] = 2 ** rng.integers(3, 10, (n, 4))
    node_feat[:, 134:138] = rng.permuted(np.tile(np.arange(4), (n, 1)), axis=1)
    return LayoutGraph("drawn", node_feat, rng.integers(1, 121, n), rng.integers(0, n, (m, 2)),
                       np.sort(rng.permutation(n)[:nc]), np.array([0]),
                       rng.integers(0, codes, (c, groups)).astype(np.uint8), rng.integers(0, groups, nc),
                       rng.integers(-1, 6, (nc, codes, 18)).astype(np.int8), rng.integers(10 ** 6, 10 ** 7, c))


def drawn_kernel(n=60, m=90, c=CONFIGS):
    """A tile graph of random features and edges."""
    rng, program = np.random.default_rng(0), drawn_graph(n, m, nc=2, groups=2)
    return TileGraph("drawn", program.node_feat, program.node_opcode, program.edge_index,
                     rng.integers(0, 100, (c, 24)).astype(np.float32), rng.integers(100, 200, c), np.full(c, 150))


def write_program(path, rng, split, nodes, configurable, configs):
    """One file: the first nodes of a random program, some of its configurable nodes, random options and runtimes."""
    program = convolutional_net(rng, int(1.5 * nodes) + 100)
    arrays, able = program.arrays(), sorted(v for v in program.configurable if v < nodes)
    chosen = [able[i] for i in np.linspace(0, len(able) - 1, min(configurable, len(able))).astype(int)]
    # groups grow with the square root of the configurable nodes, as in real files: 848 nodes have 26 groups, 62 have 8,
    # 26 have 9
    parts = max(1, round(len(chosen) ** 0.5 / 9))
    program.configurable = {v: (f"{program.configurable[v][0]} {i * parts // len(chosen)}", program.configurable[v][1])
                            for i, v in enumerate(chosen)}
    group, options = layout_options(program, rng)
    codes = np.stack([rng.integers(len(option), size=configs) for option in options], axis=1)
    codes[rng.permutation(configs)[:min(40, configs // 3)]] = 0                  # the default, measured many times
    effects = [rng.lognormal(0, 0.3, len(option)) for option in options]
    runtime = sum(effect[codes[:, g]] for g, effect in enumerate(effects)) * rng.lognormal(0, 0.003, configs)
    edges = arrays["edge_index"]
    small = {"node_feat": arrays["node_feat"][:nodes], "node_opcode": arrays["node_opcode"][:nodes],
             "edge_index": edges[(edges < nodes).all(axis=1)], "node_config_ids": np.array(chosen),
             "node_splits": np.array([[0, nodes]]),
             "config_runtime": np.rint(1e6 * runtime).astype(np.int64) * (split != "test")}
    options = [option.astype("<f4") for option in options]
    # level 1 compresses 1.5 times as fast, and reading takes the same time
    with whole_file(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in small.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
        with archive.open("node_config_feat.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False,
                                                        "shape": (configs, len(chosen), 18)})
            step = max(1, (1 << 22) // (72 * len(chosen)))
            rows = np.empty((step, len(chosen), 18), "<f4")
            for start in range(0, configs, step):
                some = codes[start:start + step]
                for g, option in enumerate(options):
                    rows[:len(some), group == g] = option[some[:, g]]
                file.write(rows[:len(some)].data)
