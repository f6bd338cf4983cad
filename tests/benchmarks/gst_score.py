"""Segment training beside training on whole graphs, at equal CPU time, on unseen generated programs. Prints a table.

    python tests/benchmarks/gst_score.py [--collections layout:xla:random] [--segments 250] [--steps 200] [--seeds 0,1]

Programs of 1,000 nodes or more are written with the generator of the sample data and are not pruned. Segments have a
margin. First, steps of both kinds of training take turns, and their times say how many steps of segment training take
as long as the steps of training on whole graphs. Then both kinds train, one seed after the other. All times are CPU
times of this process, because other work on a machine changes CPU time less than wall time. Memory is measured in a
process of its own that trains on the largest program.
"""
import argparse
import json
import subprocess
import sys
import time
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from run import resident

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notebooks"))

from kit.data import clone_folder
from kit.files import write_json
from kit.losses import pairwise_hinge_loss
from kit.metrics import kendall_tau
from kit.models import LayoutGNN, LayoutGNNSettings, SegmentGNN, SegmentGNNSettings
from kit.models.segments import subgraph
from kit.noise import bootstrap_interval
from kit.train import TrainSettings, predict, train
from kit.training.sampling import Task, saved_bytes
from lab.run import known_truth, read_split, training_graphs, wanted
from lab.sample.write import SAMPLE_SIZES, write_sample

NETWORK = dict(width=32, config_attention=False, both_directions=True, agreement=True, dropout=0.1)
WHOLE, CUT = "whole graphs", "segments with a margin"
ABOUT = "sample", "programs", "nodes", "least", "configs", "segments"            # options that change a training
MIB = 1 << 20


def network(way, segments, seed=0):
    """An untrained network that trains on whole graphs or on segments."""
    if way == WHOLE:
        return LayoutGNN(LayoutGNNSettings(seed=seed, **NETWORK))
    return SegmentGNN(SegmentGNNSettings(seed=seed, segment_nodes=segments, **NETWORK))


def stepper(model, graphs, configs):
    """A function that takes the next training step, each step on the next graph."""
    model.fit_scale(graphs)
    tasks = [(model.prepare(graph), torch.tensor(graph.config_runtime)) for graph in graphs]
    optimizer, rng, turn = torch.optim.AdamW(model.parameters(), lr=1e-3), np.random.default_rng(0), cycle(tasks)
    model.train()

    def step():
        tensors, runtime = next(turn)
        index = torch.as_tensor(rng.choice(len(runtime), min(configs, len(runtime)), replace=False))
        optimizer.zero_grad()
        pairwise_hinge_loss(model(tensors, index), runtime[index]).backward()
        optimizer.step()
    return step


def steps_per_step(graphs, args):
    """How many steps on segments take as long as one step on whole graphs: the median over passes over all graphs."""
    steppers = {way: stepper(network(way, args.segments), graphs, args.configs) for way in (WHOLE, CUT)}
    ratios = []
    for turn in range(1 + args.passes):
        seconds = {}
        for way, step in steppers.items():
            start = time.process_time()
            for _ in graphs:
                step()
            seconds[way] = time.process_time() - start
        ratios += [seconds[WHOLE] / seconds[CUT]] if turn else []             # the first pass warms up
    return float(np.median(ratios))


def taus(graphs, tests, truth, way, seed, steps, args):
    """Train once -> Kendall's tau per test program, CPU seconds of training."""
    model, start = network(way, args.segments, seed), time.process_time()
    train(model, graphs, TrainSettings(steps=steps, configs_per_step=args.configs, seed=seed, validate_every=steps,
                                       keep="last"))
    seconds = time.process_time() - start
    return [kendall_tau(predict(model, graph), truth[graph.graph_id]) for graph in tests], seconds


def kept(name, made_by, make, args):
    """The result of `make()`, or FOLDER/gst-scores/NAME.json if it is there: a stopped study goes on."""
    path = Path(args.folder or clone_folder() / "data") / "gst-scores" / f"{name}.json".replace(":", "_")
    if path.is_file():
        found = json.loads(path.read_text())
        if found["made by"] == made_by:
            return found["result"]
    result = make()
    write_json(path, {"made by": made_by, "result": result})
    return result


def printed(command):
    """The last line that a command prints, as JSON."""
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def memory(collection, way, args):
    """For the largest program: growth of this process during steps, and what a step keeps for its backward pass; bytes.

    The second number is that of the program's largest segment.
    """
    graphs, _, _ = programs(collection, args)
    largest = max(graphs, key=lambda graph: len(graph.node_feat))
    stepper(network(WHOLE, args.segments), [subgraph(largest, np.arange(50))], args.configs)()      # PyTorch warms up
    model = network(way, args.segments)
    step = stepper(model, [largest], args.configs)
    Path("/proc/self/clear_refs").write_text("5")                             # VmHWM starts anew
    before = resident("VmRSS")
    for _ in range(3 if way == WHOLE else 60):                                # so that every segment is drawn
        step()
    growth, tensors = resident("VmHWM") - before, model.prepare(largest)
    task = Task(tensors if way == WHOLE else model.largest(tensors), torch.tensor(largest.config_runtime), *[None] * 3)
    return [growth, saved_bytes(model, task, args.configs, pairwise_hinge_loss, TrainSettings())]


def programs(collection, args):
    """Training graphs, test graphs, {name of a test graph: its true runtimes}; programs that are too small left out."""
    size = f"{args.programs} programs of {args.nodes} nodes"
    SAMPLE_SIZES[size] = SAMPLE_SIZES["small"]._replace(
        kernels=(0, 0, 0), graphs=(args.programs[0], 0, args.programs[1]), nodes=tuple(args.nodes), configs=(200, 300))
    root = write_sample(Path(args.folder or clone_folder() / "data") / f"sample-large-seed{args.sample}",
                        seed=args.sample, size=size)
    graphs, _ = training_graphs(root, collection)
    truth = {name.rsplit(":", 1)[1]: value for name, value in known_truth(root, collection).items()}
    large = [[g for g in some if len(g.node_feat) >= args.least]
             for some in (graphs, read_split(root, collection, "test"))]
    return *large, truth


def compare(collection, args):
    """Train on a collection both ways -> the lines of its table."""
    graphs, tests, truth = programs(collection, args)
    nodes = [len(g.node_feat) for g in (*graphs, *tests)]
    print(f"{collection}: {len(graphs)} training and {len(tests)} test programs of {min(nodes):,} to {max(nodes):,} "
          "nodes", flush=True)
    steps = {WHOLE: args.steps, CUT: round(args.steps * (args.ratio or steps_per_step(graphs, args)))}
    tau, seconds = {way: [] for way in steps}, dict.fromkeys(steps, 0.0)
    for seed in args.seeds:
        for way in list(steps)[::1 if seed % 2 else -1]:
            about = [NETWORK, steps[way], *(vars(args)[name] for name in ABOUT)]
            own, spent = kept(f"{collection} {way} {seed}", json.loads(json.dumps(about)), partial(
                taus, graphs, tests, truth, way, seed, steps[way], args), args)
            tau[way].append(own)
            seconds[way] += spent
            print(f"{collection}, seed {seed}, {way}: {steps[way]} steps, tau {np.mean(own):.3f}, {spent:.0f} s",
                  flush=True)
    command = [sys.executable, __file__, *sys.argv[1:], "--memory", collection]
    for way in steps:
        about = json.loads(json.dumps([NETWORK, *(vars(args)[name] for name in ABOUT)]))
        used = kept(f"{collection} {way} memory", about, partial(printed, [*command, way]), args)
        apart = np.array(tau[way]) - tau[WHOLE]
        ends, difference = bootstrap_interval(np.array(tau[way])), bootstrap_interval(apart)
        yield (f"| `{collection}` | {way} | {steps[way]:,} | {seconds[way] / len(args.seeds):.0f} s | "
               + "".join(f"{size / MIB:.0f} MiB | " for size in used)
               + f"{np.mean(tau[way]):.3f} ({ends[0]:.3f} to {ends[1]:.3f}) | "
               + ("|" if way == WHOLE else f"{apart.mean():+.3f} ({difference[0]:+.3f} to {difference[1]:+.3f}) |"))


def numbers(text):
    """Whole numbers, joined by commas."""
    return tuple(map(int, text.split(",")))


def main():
    """Train both ways on every collection and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collections", metavar="A,B", default="layout:xla:random,layout:nlp:random")
    parser.add_argument("--sample", type=int, default=200, help="seed of the generated programs")
    parser.add_argument("--programs", type=numbers, default=(12, 12), help="training and test programs per collection")
    parser.add_argument("--nodes", type=numbers, default=(1300, 2600), help="nodes of a program, approximately")
    parser.add_argument("--least", type=int, default=1000, help="smaller programs are left out")
    parser.add_argument("--steps", type=int, default=200, help="steps of training on whole graphs")
    parser.add_argument("--configs", type=int, default=16, help="configurations per step")
    parser.add_argument("--segments", type=int, default=250, help="nodes per segment")
    parser.add_argument("--ratio", type=float, help="steps on segments per step on whole graphs; default: measured")
    parser.add_argument("--seeds", type=numbers, default=(0, 1, 2), help="of the trainings, joined by commas")
    parser.add_argument("--passes", type=int, default=5, help="over all training programs, to time steps")
    parser.add_argument("--folder", help="where the generated programs are kept; default: data in the clone")
    parser.add_argument("--memory", nargs=2, metavar=("COLLECTION", "WAY"), help="measure memory in this process")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.memory:
        return print(memory(*args.memory, args))
    rows = [row for collection in wanted(args.collections) for row in compare(collection, args)]
    print("\n| collection | training on | steps | CPU time per training | memory of the process | kept for the "
          "backward pass | tau (95% interval) | difference (95% interval) |\n|---|---|---|---|---|---|---|---|")
    return print("\n".join(rows))


if __name__ == "__main__":
    main()
