"""Measure a program into the two files that the data set would have of it: `random` and `default`.

`random` holds configurations drawn uniformly, so the number of groups that differ from the default hardly varies.
`default` holds all points of a genetic search that starts at the compiler's choice. In both, the default is measured
about 40 times and a tenth of the other configurations twice, so the noise can be read from the file. A program with few
configurations has its nodes untied. Files of the test split hold runtimes, too.

    npz/layout/SOURCE/{random,default}/SPLIT/PROGRAM.npz        the official format
    measured.csv                                                a row per file: machine, versions, noise
    rows/PROGRAM/                                               every measurement, from which the command goes on
"""
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from kit.checks import as_path, check_whole
from kit.data import dense_configs
from kit.files import whole_file, write_json
from kit.metrics import kendall_tau
from kit.programs import Measurements, measure, program_from_jax, with_configs
from lab.measured.programs import PROGRAMS, made

KINDS = "random", "default"
FEW = 2000                       # configurations of a space, below which nodes are untied
MUTATIONS = 2.0                  # groups per child of the genetic search that are drawn anew, in the mean
PARENTS = 12                     # the fastest so far
CLEAR = 0.02                     # difference of two runtimes that two passes should agree on


@dataclass(frozen=True)
class CollectSettings:
    """How many rows each file gets."""
    configs: int = 160           # different ones
    repeats: int = 16            # of these, measured twice
    defaults: int = 40           # measurements of the default
    generations: int = 5         # of the genetic search
    seed: int = 0

    def __post_init__(self):
        check_whole(vars(self), configs=1, repeats=0, defaults=1, generations=1, seed=0)


def collect(name, out, settings=None, measuring=None, bench=None, kinds=KINDS, progress=True):
    """Measure a program of PROGRAMS into files under `out`; goes on where a killed call ended -> [path of each file].

    `settings`: CollectSettings; `measuring` and `bench`: the settings of `kit.programs.measure`.
    """
    settings, out, paths = settings or CollectSettings(), as_path(out), []
    program, args = traced(name)
    recipe = PROGRAMS[name]
    for kind in kinds:
        folder = out / "rows" / name / kind
        steps = [folder] if kind == "random" else [folder / str(i) for i in range(settings.generations)]
        found = []
        for part in steps:
            codes = (drawn_codes(program.dims, settings, name) if kind == "random"
                     else next_codes(program.dims, found, settings, name))
            found.append(measure(program, args, codes, part, measuring, bench, progress))
        together = joined(found)
        paths.append(write_layout(out / "npz" / "layout" / recipe.source / kind / recipe.split / f"{name}.npz", program,
                                  together))
        write_json(folder.with_suffix(".json"), {
            "collection": f"layout:{recipe.source}:{kind}", "split": recipe.split, "program": name,
            "family": recipe.family, "tie": program.tie, **summary(program, together),
            **{key: value for key, value in together.about.items() if key not in ("program", "codes", "settings")}})
    write_catalogue(out)
    return paths


def traced(name):
    """A program of PROGRAMS, whose nodes are untied if it has few configurations -> (JaxProgram, its arguments)."""
    function, args = made(name)
    program = program_from_jax(function, *args)
    few = np.prod(program.dims.astype(float)) < FEW
    return (program_from_jax(function, *args, tie=False) if few else program), args


def drawn_codes(dims, settings, name):
    """The configurations (c, g) of `random`: drawn uniformly, some of them twice, the default many times."""
    rng = np.random.default_rng([settings.seed, zlib.crc32(name.encode())])
    codes, known = new_codes(settings.configs, lambda: rng.integers(dims), {tuple(0 * dims)}, dims), 0 * dims[None]
    return rng.permutation(np.concatenate([codes, codes[:settings.repeats],
                                           np.repeat(known, settings.defaults, axis=0)]))


def next_codes(dims, found, settings, name):
    """The configurations (c, g) of a generation of `default`, children of the fastest of those `found` so far."""
    rng = np.random.default_rng([settings.seed, zlib.crc32(name.encode()), 1 + len(found)])
    points, cost = 0 * dims[None], np.ones(1)
    if found:
        together = joined(found)
        runtime, kept = together.runtime()
        points, place = np.unique(together.codes[kept], axis=0, return_inverse=True)
        cost = np.bincount(place.ravel(), runtime) / np.bincount(place.ravel())
    parents = points[np.argsort(cost, kind="stable")[:PARENTS]]

    def child():
        mother, father = parents[rng.integers(len(parents), size=2)]
        mixed = np.where(rng.random(len(dims)) < 0.5, mother, father)
        return np.where(rng.random(len(dims)) < MUTATIONS / len(dims), rng.integers(dims), mixed)
    known = {tuple(code) for one in found for code in one.codes} | {tuple(0 * dims)}
    count, again, defaults = (share(total, settings.generations, len(found)) for total in
                              (settings.configs, settings.repeats, settings.defaults))
    codes = new_codes(count, child, known, dims)
    return rng.permutation(np.concatenate([codes, codes[:again], np.zeros((defaults, len(dims)), np.int64)]))


def share(total, parts, place):
    """The size of a part when `total` things are shared out to `parts`: 7 to 3 is 3, 2, 2."""
    return total // parts + (place < total % parts)


def new_codes(count, draw, known, dims):
    """Up to `count` different configurations (k, g) that `draw()` gives and that are not `known`."""
    found = {}
    for _ in range(50 * count):
        if len(found) < count:
            code = draw()
            if tuple(code) not in known:
                found[tuple(code)] = code
    return np.array(list(found.values()), np.int64).reshape(-1, len(dims))


def joined(found):
    """Several Measurements of one program as one, in nanoseconds of the first one's default."""
    codes, faults, first = np.concatenate([one.codes for one in found]), {}, found[0].about["default_ns"]
    starts = np.cumsum([0] + [len(one.codes) for one in found])
    for start, one in zip(starts, found):
        faults |= {int(start) + place: fault for place, fault in one.faults.items()}
    passes = np.concatenate([one.passes * (first / one.about["default_ns"]) for one in found])
    return Measurements(codes, passes, faults, found[0].about)


def summary(program, measured):
    """What the catalogue says about a file, {column: value}."""
    runtime, kept = measured.runtime()
    codes, passes = measured.codes[kept], measured.passes[kept]
    default = ~codes.any(axis=1)
    usual = np.median(runtime[default])
    first, last = passes[:, 0], passes[:, -1]
    clear = abs(runtime[:, None] - runtime) > CLEAR * np.minimum(runtime[:, None], runtime)
    same = np.sign(first[:, None] - first) * np.sign(last[:, None] - last)
    return {"nodes": len(program.graph.node_feat), "configurable": len(program.equations),
            "groups": len(program.dims), "rows": len(runtime), "different": len(np.unique(codes, axis=0)),
            "failed": len(measured.faults), "default_ms": round(usual / 1e6, 3),
            "fastest": round(runtime.min() / usual, 3), "slowest": round(runtime.max() / usual, 3),
            "default_spread": round(float(np.std(runtime[default]) / usual), 4),
            "passes_tau": round(kendall_tau(first, last), 3),
            "passes_tau_clear": round(float(same[clear].mean()), 3) if clear.any() else None}


def write_layout(path, program, measured):
    """Write what was measured as a file of the official format -> its path."""
    runtime, kept = measured.runtime()
    graph = with_configs(program, measured.codes[kept])
    with whole_file(path) as part, open(part, "wb") as file:
        np.savez_compressed(
            file, node_feat=graph.node_feat, node_opcode=graph.node_opcode.astype(np.uint8),
            edge_index=graph.edge_index, node_config_ids=graph.node_config_ids, node_splits=graph.node_splits[None],
            node_config_feat=dense_configs(graph, range(len(kept))).astype(np.float32), config_runtime=runtime)
    return path


def write_catalogue(out):
    """Write what was measured here into `measured.csv` -> its path; rows of other files of the folder stay there."""
    path, rows = Path(out, "measured.csv"), []
    if path.exists():
        rows = pl.read_csv(path, infer_schema_length=None).to_dicts()
    rows += [json.loads(one.read_text()) for one in sorted(Path(out, "rows").glob("*/*.json"))]
    newest = {(row["collection"], row["program"]): row for row in rows}
    with whole_file(path) as part:
        pl.DataFrame([newest[key] for key in sorted(newest)], infer_schema_length=None).write_csv(part)
    return path
