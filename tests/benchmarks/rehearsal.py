"""Rehearse a layout collection at its full size, and write the table of README.md beside this file.

    python tests/benchmarks/rehearsal.py [--size full] [--folder DIR] [--threads 1] [--print-only]

The script generates a data set with the official counts of layout:xla:random. File sizes run from the smallest files
of that collection to the largest files of the whole data set. Then the kit reads and prunes the files, does two
training steps of each layout model, predicts, and writes and checks the submission. Every step is a process of its
own with at most `LIMIT` bytes of address space. A step saves its graphs as plain arrays for the next step. Runtimes
are random, so no score is given. --folder keeps the generated files: a later call with the same folder uses them and
shows the time that their generation took. The last table extrapolates to the whole real data set.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]
from run import machine, resident, write_page  # noqa: E402

from kit.agreement import Meetings  # noqa: E402
from kit.data import SPLITS, LayoutGraph, npz_paths, read_layout, read_tile  # noqa: E402
from kit.files import replace_file, whole_file  # noqa: E402
from kit.kaggle.downloads import FILES  # noqa: E402
from kit.prune import drop_duplicate_configs, prune  # noqa: E402
from kit.recipes import recipes_for  # noqa: E402
from kit.run.workflow import load_costs, save_costs  # noqa: E402
from kit.sample.architectures import convolutional_net  # noqa: E402
from kit.sample.write import layout_options, write_sample  # noqa: E402
from kit.submit import check_submission, write_submission  # noqa: E402
from kit.train import predict, train  # noqa: E402
from kit.training import load_checkpoint, save_checkpoint  # noqa: E402

COLLECTION = "layout:xla:random"
LIMIT = 8 << 30                  # bytes of address space of each process
ARRAY = 100_040 * 364 * 72       # bytes of the largest configuration array of the public files, in float32
GIB = 1 << 30
# official counts: all layout files, layout files to rank (test split), tile kernels, rows of a submission
LAYOUTS = [files for name, files in FILES.items() if name != "tile:xla"]
LAYOUT_FILES, LAYOUT_TEST = sum(map(sum, LAYOUTS)), sum(test for _, _, test in LAYOUTS)
TILE_FILES, ROWS = sum(FILES["tile:xla"]), sum(files[2] for files in FILES.values())
LAYOUT_GIB = 4 * 99              # all configuration arrays: 99 GiB as bytes, and they are stored as float32


class Size(NamedTuple):
    """Number of files per split; smallest and largest number of nodes, configurable nodes and configurations."""
    files: tuple
    nodes: tuple
    configurable: tuple
    configs: tuple
    tested: int                  # configurations per test program


SIZES = {"full": Size((69, 7, 8), (372, 43_615), (26, 3143), (20, 100_040), 1000),
         "tiny": Size((3, 1, 2), (60, 400), (4, 12), (20, 150), 30)}


def plan(size):
    """[(split, nodes, configurable nodes, configurations)], spread evenly on a logarithmic scale, the largest first.

    A program with more nodes has more configurable nodes. The number of configurations is independent of the nodes, as
    in the public files, where no file has both the most nodes and the most configurations. A program whose array would
    be larger than the largest public array gets fewer configurations.
    """
    total = sum(size.files)
    nodes, configurable, configs = (np.rint(np.geomspace(high, low, total)).astype(int)
                                    for low, high in (size.nodes, size.configurable, size.configs))
    allowed = ARRAY // (72 * configurable)
    most = int(np.argmax(allowed >= configs[0]))                     # the largest that can have the most configurations
    order = np.random.default_rng(0).permutation(np.arange(1, total))
    configs = np.minimum(configs[np.insert(order, most, 0)], allowed)
    split = np.full(total, "train")
    others = np.setdiff1d(np.arange(1, total), most)                 # the validation and test programs cover all sizes
    split[others[np.linspace(0, len(others) - 1, sum(size.files[1:])).astype(int)]] = "valid"
    split[np.flatnonzero(split == "valid")[np.linspace(0, sum(size.files[1:]) - 1, size.files[2]).astype(int)]] = "test"
    configs[split == "test"] = size.tested
    return [dict(split=str(split[i]), nodes=int(nodes[i]), configurable=int(configurable[i]), configs=int(configs[i]))
            for i in range(total)]


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


def sources(root):
    """{path: split} of the generated layout files, the largest programs first."""
    found = {path: split for split in SPLITS for path in npz_paths(root, COLLECTION, split)}
    return {path: found[path] for path in sorted(found, key=lambda path: path.stem)}


def keep(root, kind, split, graph):
    """Save a graph for the next step."""
    arrays = {name: value for name, value in graph._asdict().items() if name not in ("graph_id", "meetings")}
    for name, value in graph.meetings._asdict().items() if graph.meetings else ():
        arrays[f"meetings {name}"] = value
    path = root / kind / split / f"{graph.graph_id}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def kept(root, kind, split):
    """The graphs that an earlier step saved."""
    for path in sorted((root / kind / split).glob("*.npz")):
        with np.load(path) as arrays:
            met = {name[9:]: arrays[name] for name in arrays if name.startswith("meetings")}
            plain = {name: arrays[name] for name in arrays if not name.startswith("meetings")}
            yield LayoutGraph(path.stem, **plain, meetings=Meetings(**met) if met else None)


# --- the steps; each returns a description of its work, and the numbers for the extrapolation


def generate(root, size):
    start, files = time.perf_counter(), plan(SIZES[size])
    for number, file in enumerate(files):
        path = root.joinpath(*COLLECTION.split(":"), file["split"], f"drawn_{number:02}.npz")
        if not path.is_file():
            write_program(path, np.random.default_rng([1, number]), **file)
            print(f"{number + 1} of {len(files)}: {file}, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    write_sample(root / "tiles", size="small" if size == "full" else "tiny")
    total = sum(72 * file["configurable"] * file["configs"] for file in files) / GIB
    stored = sum(path.stat().st_size for path in sources(root))
    return (f"{len(files)} files, {total:.1f} GiB of configurations, {stored / 1e6:,.0f} MB compressed",
            {"gib": total, "files": len(files)})


def read(root, size):
    spent, most = 0.0, (0, "")
    for path, split in sources(root).items():
        begin = time.perf_counter()
        graph = read_layout(path)
        seconds = time.perf_counter() - begin
        spent += seconds
        c, nc = len(graph.config_runtime), len(graph.node_config_ids)
        most = max(most, (seconds, f"{len(graph.node_feat):,} nodes, {nc:,} of them configurable, "
                                   f"{c:,} configurations"))
        keep(root, "read", split, graph)
    return f"slowest file: {most[1]}, {most[0]:.1f} s", {"seconds": spent}


def read_tiles(root, size):
    paths = [path for split in SPLITS for path in npz_paths(root / "tiles", "tile:xla", split)]
    start = time.perf_counter()
    for path in paths:
        read_tile(path)
    return f"{len(paths)} kernels of the sample data", {"seconds": time.perf_counter() - start, "files": len(paths)}


def prune_all(root, size):
    spent, share, most = 0.0, [], (0, "")
    for split in SPLITS:
        for graph in kept(root, "read", split):
            begin = time.perf_counter()
            small = prune(graph)
            small = drop_duplicate_configs(small)[0] if split == "train" else small
            seconds = time.perf_counter() - begin
            spent += seconds
            most = max(most, (seconds, f"{len(graph.node_feat):,} nodes"))
            share.append(len(small.node_feat) / len(graph.node_feat))
            keep(root, "pruned", split, small)
    return (f"prune, find where layouts meet, merge repeats; median share of nodes kept: {np.median(share):.0%}; "
            f"slowest file: {most[1]}, {most[0]:.1f} s", {"seconds": spent, "files": len(share)})


def two_steps(root, name):
    graphs, recipe = list(kept(root, "pruned", "train")), recipes_for(COLLECTION)[name]
    settings = replace(recipe.settings, steps=2, keep="last")
    largest = max(graphs, key=lambda graph: len(graph.node_feat))
    alone = train(recipe.network(recipe.shape), [largest], settings, recipe.loss)["seconds"]
    model, start = recipe.network(recipe.shape), time.perf_counter()
    seconds = train(model, graphs, settings, recipe.loss)["seconds"]
    ready = time.perf_counter() - start - seconds
    save_checkpoint(root / f"{name}.pt", model)
    return (f"two steps of {settings.configs_per_step} configurations, each step from one of {len(graphs)} programs: "
            f"{seconds:.2f} s, after {ready:.1f} s to prepare all programs; two steps on the largest, "
            f"{len(largest.node_feat):,} nodes after pruning: {alone:.2f} s",
            {"seconds": seconds, "steps": recipe.settings.steps})


def token_steps(root, size):
    return two_steps(root, "token")


def gnn_steps(root, size):
    return two_steps(root, "gnn")


def predictions(root, name):
    recipe, graphs = recipes_for(COLLECTION)[name], list(kept(root, "pruned", "test"))
    model = recipe.network(recipe.shape)
    load_checkpoint(root / f"{name}.pt", model)
    start = time.perf_counter()
    save_costs(root / f"{name}.npz", {f"{COLLECTION}:{graph.graph_id}": predict(model, graph) for graph in graphs})
    seconds, count = time.perf_counter() - start, sum(len(graph.config_runtime) for graph in graphs)
    return (f"{len(graphs)} test programs, {count:,} configurations, {count / seconds:,.0f} per second",
            {"seconds": seconds, "files": len(graphs)})


def token_predictions(root, size):
    return predictions(root, "token")


def gnn_predictions(root, size):
    return predictions(root, "gnn")


def submission(root, size):
    start, costs = time.perf_counter(), load_costs(root / "token.npz")
    problems = check_submission(write_submission(costs, root / "submission.csv"), root)
    if problems:
        raise SystemExit(f"the submission has problems: {problems[:3]}")
    return (f"{len(costs)} rows written and checked, no problem",
            {"seconds": time.perf_counter() - start, "files": len(costs)})


STEPS = {"generate the data": generate, "read": read, "read tile kernels": read_tiles, "prune": prune_all,
         "two training steps, token model": token_steps, "two training steps, GNN": gnn_steps,
         "predict, token model": token_predictions, "predict, GNN": gnn_predictions,
         "write and check the submission": submission}


def one_step(name, root, size, threads):
    """Run one step in this process -> its description, seconds, peak bytes, numbers for the extrapolation."""
    torch.set_num_threads(threads)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    start = time.perf_counter()
    note = Path(root, f"generated-{size}.json")
    if STEPS[name] is generate and note.is_file():
        return json.loads(note.read_text())
    words, numbers = STEPS[name](Path(root), size)
    found = {"words": words, "wall": time.perf_counter() - start, "cpu": time.process_time(),
             "peak": resident("VmHWM"), **numbers}
    if STEPS[name] is generate:
        replace_file(note, json.dumps(found))
    return found


def extrapolated(found):
    """[(work, scaled by, seconds)] for the whole real data set, each row from one measured step."""
    reading = found["read"]["seconds"] / found["generate the data"]["gib"] * LAYOUT_GIB
    tiles = found["read tile kernels"]["seconds"] / found["read tile kernels"]["files"] * TILE_FILES
    pruning = found["prune"]["seconds"] / found["prune"]["files"] * LAYOUT_FILES
    rows = [("read the layout files once", f"by bytes: {LAYOUT_GIB} GiB", reading),
            ("read the tile files once", f"by files: {TILE_FILES:,}", tiles),
            ("prune and merge", f"by files: {LAYOUT_FILES}", pruning)]
    for name in ("token model", "GNN"):
        step = found[f"two training steps, {name}"]
        rows.append((f"train one seed of the {name} in each of four collections",
                     f"by steps: 4 x {step['steps']:,} of the quick recipe", 4 * step["steps"] * step["seconds"] / 2))
        test = found[f"predict, {name}"]
        rows.append((f"predict the layout test files, {name}", f"by files: {LAYOUT_TEST}",
                     test["seconds"] / test["files"] * LAYOUT_TEST))
    last = found["write and check the submission"]
    return [*rows, ("write and check the submission", f"by rows: {ROWS}", last["seconds"] / last["files"] * ROWS)]


def spoken(seconds):
    """A time with its unit: "3.2 min"."""
    units = ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (0, "us"))
    unit, name = next((u, n) for u, n in units if seconds >= 2 * u)
    return f"{seconds / (unit or 1e-6):,.1f} {name}"


def tables(found, size, threads):
    """The markdown lines."""
    lines = [f"{machine(threads, 'cpu')}; generated files, random runtimes; the limit per "
             f"process is {LIMIT / GIB:.0f} GiB of address space.", "",
             "| step | what | wall time | CPU time | peak resident memory, GiB |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {step['words']} | {spoken(step['wall'])} | {spoken(step['cpu'])} "
              f"| {step['peak'] / GIB:.2f} |"
              for name, step in found.items()]
    lines += ["", "**Extrapolation, not measured**: the whole real data set on this machine. Each row scales one "
              "measured step of the table above.", "", "| the whole data set | scaled | time |", "|---|---|---|"]
    return lines + [f"| {what} | {how} | about {spoken(seconds)} |" for what, how, seconds in extrapolated(found)]


def main():
    """Run every step in a process of its own, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--folder", help="for the generated data; default: a temporary folder")
    parser.add_argument("--threads", type=int, default=1,
                        help="threads of PyTorch; reading uses one more thread to decompress")
    parser.add_argument("--print-only", action="store_true", help="leave README.md as it is")
    parser.add_argument("--step", help="run one step in this process and print JSON")
    args = parser.parse_args()
    if args.step:
        return print(json.dumps(one_step(args.step, args.folder, args.size, args.threads)))
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or temporary
        for name in STEPS:
            command = [sys.executable, __file__, "--step", name, "--folder", folder, "--size", args.size, "--threads",
                       str(args.threads)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "OMP_NUM_THREADS": str(args.threads)})
            if done.returncode:
                raise SystemExit(f"{name}: exit status {done.returncode}")
            found[name] = json.loads(done.stdout.splitlines()[-1])
            print(f"{name}: {found[name]['words']}; {found[name]['wall']:.1f} s, {found[name]['cpu']:.1f} s of CPU, "
                  f"{found[name]['peak'] / GIB:.2f} GiB", flush=True)
    lines = tables(found, args.size, args.threads)
    print("\n".join(lines))
    if not args.print_only:
        write_page("rehearsal", lines)
    return None


if __name__ == "__main__":
    main()
