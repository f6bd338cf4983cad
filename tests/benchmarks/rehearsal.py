"""Rehearse a layout collection at its full size, and write the table of README.md beside this file.

    python tests/benchmarks/rehearsal.py [--size full] [--folder DIR] [--threads 1] [--print-only]

The script generates a data set with the official counts of layout:xla:random. File sizes run from the smallest files
of that collection to the largest files of the whole data set. Then the kit prepares the files, once with one process
and once with two, opens them, prunes them, does two training steps of each layout model, predicts, and writes and
checks the submission. Inflating all files, and reading them without preparing, are the yardsticks. Every step is a
process of its own with at most `LIMIT` bytes of address space. Runtimes are random, so no score is given. --folder
keeps the generated files: a later call with the same folder uses them and shows the time that their generation took.
"""
import argparse
import json
import os
import resource
import shutil
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
sys.path[:0] = [str(HERE.parents[1]), str(HERE), str(HERE.parent), str(HERE.parents[1] / "notebooks")]
from generated import write_program  # noqa: E402
from run import machine, resident, write_page  # noqa: E402

from kit.data import SPLITS, npz_paths, read_layout  # noqa: E402
from kit.features import config_features  # noqa: E402
from kit.files import replace_file  # noqa: E402
from kit.kaggle.downloads import FILES  # noqa: E402
from kit.prepare import open_prepared, prepare  # noqa: E402
from kit.prune import drop_duplicate_configs, prune  # noqa: E402
from kit.recipes import recipes_for  # noqa: E402
from kit.submit import check_submission, write_submission  # noqa: E402
from kit.train import predict, train  # noqa: E402
from kit.train_parts import load_checkpoint, save_checkpoint  # noqa: E402
from lab.predictions import load_costs  # noqa: E402

COLLECTION = "layout:xla:random"
LIMIT = 8 << 30                  # bytes of address space of each process
ARRAY = 100_040 * 364 * 72       # bytes of the largest configuration array of the public files, in float32
GIB = 1 << 30


class Size(NamedTuple):
    """Number of files per split; smallest and largest number of nodes, configurable nodes and configurations."""
    files: tuple
    nodes: tuple
    configurable: tuple
    configs: tuple
    tested: int                  # configurations per test program


SIZES = {"full": Size(FILES[COLLECTION], (372, 43_615), (26, 3143), (20, 100_040), 1000),
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


def sources(root):
    """{path: split} of the generated layout files, the largest programs first."""
    found = {path: split for split in SPLITS for path in npz_paths(root, COLLECTION, split)}
    return {path: found[path] for path in sorted(found, key=lambda path: path.stem)}


def pruned(root, split):
    """The graphs of a split from the prepared folder, as a training reads them."""
    for graph in open_prepared(root / "prepared").graphs(COLLECTION, split):
        small = prune(graph)
        yield drop_duplicate_configs(small)[0] if split == "train" else small


# --- the steps; each returns a description of its work, and numbers for the ratios


def generate(root, size):
    start, files = time.perf_counter(), plan(SIZES[size])
    for number, file in enumerate(files):
        path = root.joinpath(*COLLECTION.split(":"), file["split"], f"drawn_{number:02}.npz")
        if not path.is_file():
            write_program(path, np.random.default_rng([1, number]), **file)
            print(f"{number + 1} of {len(files)}: {file}, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    total = sum(72 * file["configurable"] * file["configs"] for file in files) / GIB
    stored = sum(path.stat().st_size for path in sources(root))
    return (f"{len(files)} files, {total:.1f} GiB of configurations, {stored / 1e6:,.0f} MB compressed",
            {})


def inflate(root, size):
    """What any reader must do at least: decompress every array."""
    spent = 0
    for path in sources(root):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as stream:
                    while block := stream.read(1 << 21):
                        spent += len(block)
    return f"decompress all arrays in pieces of 2 MiB, {spent / GIB:.1f} GiB", {"bytes": spent}


def read(root, size):
    spent, most = 0.0, (0, "")
    for path in sources(root):
        begin = time.perf_counter()
        graph = read_layout(path)
        seconds = time.perf_counter() - begin
        spent += seconds
        c, nc = len(graph.config_runtime), len(graph.node_config_ids)
        most = max(most, (seconds, f"{len(graph.node_feat):,} nodes, {nc:,} of them configurable, "
                                   f"{c:,} configurations"))
    return f"slowest file: {most[1]}, {most[0]:.1f} s", {"seconds": spent}


def prepare_all(root, folder, processes):
    shutil.rmtree(folder, ignore_errors=True)
    catalogue = prepare(root, folder, [COLLECTION], processes, progress=False).catalogue
    source, kept = catalogue["source_bytes"].sum(), catalogue["prepared_bytes"].sum()
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (1 << 20)
    return (f"{len(catalogue)} files, {source / 1e6:,.0f} MB -> {kept / 1e6:,.0f} MB, {source / kept:.0f} times smaller"
            + f"; most memory of a process: {most:.2f} GiB" * (processes > 1), {"bytes": [source, kept]})


def prepare_alone(root, size):
    return prepare_all(root, root / "prepared", 1)


def prepare_together(root, size):
    return prepare_all(root, root / "prepared-by-two", 2)


def load(root, size):
    prepared, count = open_prepared(root / "prepared"), 0
    start = time.perf_counter()
    for split in SPLITS:
        for graph in prepared.graphs(COLLECTION, split):
            count += len(graph.config_runtime)
    seconds = time.perf_counter() - start
    return f"all graphs of the collection, {count:,} configurations: {seconds:.2f} s", {"seconds": seconds}



def prune_all(root, size):
    spent, share, most, prepared = 0.0, [], (0, ""), open_prepared(root / "prepared")
    for split in SPLITS:
        for graph in prepared.graphs(COLLECTION, split):
            begin = time.perf_counter()
            small = drop_duplicate_configs(prune(graph))[0] if split == "train" else prune(graph)
            seconds = time.perf_counter() - begin
            spent += seconds
            most = max(most, (seconds, f"{len(graph.node_feat):,} nodes"))
            share.append(len(small.node_feat) / len(graph.node_feat))
    return (f"prune, merge repeats; median share of nodes kept: {np.median(share):.0%}; slowest file: {most[1]}, "
            f"{most[0]:.1f} s", {})


def two_steps(root, name):
    graphs, recipe = list(pruned(root, "train")), recipes_for(COLLECTION)[name]
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
            {})


def features(root, size):
    """The table of features of the file with the most configurations, on its prepared form."""
    most = max(pruned(root, "train"), key=lambda graph: len(graph.config_codes))
    table = config_features(most)
    return (f"{table.height:,} configurations, {len(most.node_config_ids):,} configurable nodes, {table.width} columns",
            {})


def trees(root, size):
    """LightGBM of the recipe, on all programs of the collection."""
    graphs, recipe = list(pruned(root, "train")), recipes_for(COLLECTION)["lightgbm"]
    recipe.network(recipe.shape).fit_scale(graphs)
    return f"{recipe.shape.rounds} trees on {recipe.shape.rows:,} configurations of {len(graphs)} programs", {}


def token_steps(root, size):
    return two_steps(root, "token")


def gnn_steps(root, size):
    return two_steps(root, "gnn")


def predictions(root, name):
    recipe, graphs = recipes_for(COLLECTION)[name], list(pruned(root, "test"))
    model = recipe.network(recipe.shape)
    load_checkpoint(root / f"{name}.pt", model)
    start = time.perf_counter()
    costs = {f"{COLLECTION}:{graph.graph_id}": predict(model, graph) for graph in graphs}
    with open(root / f"{name}.npz", "wb") as file:
        np.savez_compressed(file, **costs)
    seconds, count = time.perf_counter() - start, sum(len(graph.config_runtime) for graph in graphs)
    return (f"{len(graphs)} test programs, {count:,} configurations, {count / seconds:,.0f} per second",
            {})


def token_predictions(root, size):
    return predictions(root, "token")


def gnn_predictions(root, size):
    return predictions(root, "gnn")


def submission(root, size):
    costs = load_costs(root / "token.npz")
    problems = check_submission(write_submission(costs, root / "submission.csv"), root)
    if problems:
        raise SystemExit(f"the submission has problems: {problems[:3]}")
    return f"{len(costs)} rows written and checked, no problem", {}



STEPS = {"generate the data": generate, "inflate": inflate, "read": read,
         "prepare, one process": prepare_alone, "prepare, two processes": prepare_together, "load": load,
         "prune": prune_all, "features": features, "fit LightGBM": trees,
         "two training steps, token model": token_steps, "two training steps, GNN": gnn_steps,
         "predict, token model": token_predictions, "predict, GNN": gnn_predictions,
         "write and check the submission": submission}


def one_step(name, root, size, threads):
    """Run one step in this process -> its description, seconds, peak bytes, numbers for the ratios."""
    torch.set_num_threads(threads)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    step, note = STEPS[name], Path(root, f"generated-{size}.json")
    if step is generate and note.is_file():
        return json.loads(note.read_text())
    start, before = time.perf_counter(), time.process_time()         # without the start of this process
    words, numbers = step(Path(root), size)
    wall, children = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = time.process_time() - before + children.ru_utime + children.ru_stime
    found = {"words": words, "wall": wall, "cpu": cpu, "peak": resident("VmHWM"), **numbers}
    if step is generate:
        replace_file(note, json.dumps(found))
    return found


def ratios(found):
    """[(what, value)]: each compares two rows of the table."""
    inflating, reading, one, two, loading = (found[name] for name in (
        "inflate", "read", "prepare, one process", "prepare, two processes", "load"))
    source, kept = one["bytes"]
    faster = loading["seconds"] / reading["seconds"]
    return [("CPU time of reading / of inflating", reading["cpu"] / inflating["cpu"]),
            ("CPU time of preparing / of inflating", one["cpu"] / inflating["cpu"]),
            ("wall time of preparing with two processes / with one", two["wall"] / one["wall"]),
            ("wall time of loading all prepared graphs / of reading their sources", faster),
            ("bytes of the prepared files / of the sources", kept / source)]



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
    lines += ["", "| ratio of two rows above | value |", "|---|---|"]
    lines += [f"| {what} | {value:.3f} |" for what, value in ratios(found)]
    return lines


def main():
    """Run every step in a process of its own, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--folder", help="for the generated data; default: a temporary folder")
    parser.add_argument("--threads", type=int, default=1,
                        help="threads of PyTorch")
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
