"""Train every model of the recipe "full" on the GPU that is at hand, and check its ranking against the CPU's.

    python tests/benchmarks/gpu.py [--device cuda] [--size full] [--minutes 8] [--out gpu.json]

Run this script first whenever a GPU is at hand. It takes at most about 8 minutes. Each model is trained in float32,
bfloat16 and float16, on three generated programs at once: one of the size of the largest public program, and two of
middle size. The tile model is trained on generated kernels. For each model and precision, the script

- times training steps on each program and notes the peak memory, as `run.py --only recipes` does;
- trains for 300 steps, or for as many steps as the time allows. Halfway, training stops and resumes from its
  checkpoint;
- ranks configurations that training did not see, and scores their order (Kendall's tau);
- ranks configurations with the same weights on the CPU in float32, and compares costs and order.

With two GPUs, two models are then trained side by side, one per GPU. With one GPU the script says that this was not
tried.

Runtimes are those of the tests' generated programs, without noise: a formula that a model can learn
(`tests/sample/runtimes.py`, `tests/sample/kernels.py`). Weights that were not trained score a tau between -.5 and .5 on
them. On a CPU, 100 steps of the GNN of `random` on a generated program of 288 nodes took it from -.18 to .98.

The JSON file is replaced after each model, so a run that is killed keeps what it measured. The exit status is 1 if a
check failed. `--device cpu --size tiny` tries the script itself without a GPU, on small programs and narrow networks.

Copy `kit`, `tests/sample` and `tests/benchmarks` to the machine; no part of the kit is installed. Beside PyTorch and
NumPy the script needs the packages below. If the machine has no network, download the wheels elsewhere and carry them
there (`--python-version` and `--platform` of `pip download` choose those of another machine):

    pip download --only-binary=:all: -d wheels pandas polars scipy scikit-learn filelock psutil
    pip install --no-index --find-links wheels pandas polars scipy scikit-learn filelock psutil
"""
import argparse
import copy
import gc
import itertools
import statistics
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE), str(HERE.parent)]
from bench_recipes import LARGEST, MODELS, sized_program, step_on  # noqa: E402
from run import MIB, timed  # noqa: E402
from sample import LayoutSimulator  # noqa: E402
from sample.kernels import simulate_tile, tile_kernel  # noqa: E402

from kit import train_parts  # noqa: E402
from kit.data import TileGraph, dense_configs, target  # noqa: E402
from kit.files import write_json  # noqa: E402
from kit.metrics import kendall_tau  # noqa: E402
from kit.predict import PRECISIONS, predict  # noqa: E402
from kit.prune import drop_duplicate_configs, prune  # noqa: E402
from kit.recipes import recipes_for  # noqa: E402
from kit.train import train  # noqa: E402
from kit.train_parts.pool import run_jobs  # noqa: E402

MODELS = MODELS | {"tile model": ("tile:xla", "tile")}
PAIR = "GNN, random"             # the model that is trained side by side with another
WEIGHTS = {"GNN, random": 6, "GNN, default": 3, "token model": 1, "tile model": 2, "side by side": 1}    # of time
TRAINING = 0.5                   # share of a model's time; the rest is for timing, ranking and the CPU
HELD_OUT = 0.2                   # share of a program's configurations that training does not see
FALLS = 0.8                      # the loss at the end, as a share of the loss at the start, at most
OVERFLOWS = 0.25                 # share of steps that float16 may skip
# what the CPU's ranking in float32 may differ by: the largest difference of two costs as a share of the spread (the
# standard deviation) of all costs, at most; tau between the two orders, at least. On a CPU, bfloat16 differed by .005
# to .05 and float16 by .001 to .005
TOLERANCE = {"float32": (0.005, 0.995), "bfloat16": (0.2, 0.93), "float16": (0.05, 0.97)}


class Size(NamedTuple):
    """How much to generate and to train."""
    programs: tuple              # (nodes, configurable nodes) before pruning
    configs: int                 # per program or kernel
    kernels: int
    steps: int                   # of each training, if the time allows
    judged: int                  # loss and tau are judged after this many steps; fewer teach too little
    timed: int                   # steps that are timed per program
    checked: int                 # held-out configurations per program that the CPU ranks as well
    learned: float               # tau on held-out configurations, at least; the mean over programs
    # of all models; None: those of the recipe
    width: int | None = None
    learning_rate: float | None = None
    threads: int | None = None   # of PyTorch on the CPU; None: as PyTorch chooses


# after pruning: 11,651, 2,942 and 1,034 nodes
SIZES = {"full": Size((LARGEST, (10_000, 800), (3_400, 280)), 1320, 16, 300, 100, 10, 64, 0.6),
         "tiny": Size(((150, 12), (100, 8)), 300, 4, 40, 40, 1, 24, 0.3, 16, 0.01, 1)}


class Part(NamedTuple):
    """One program or kernel: the configurations to train on, and those that are held out."""
    seen: object
    held: object


class Clock:
    """How much time is left; lines of progress say how much has passed."""

    def __init__(self, minutes):
        self.start, self.end = time.monotonic(), time.monotonic() + 60 * minutes

    def left(self):
        """Seconds."""
        return self.end - time.monotonic()

    def say(self, line):
        """Print a line of progress."""
        print(f"{time.monotonic() - self.start:4.0f} s  {line}", flush=True)


# --- what is trained on


def some_configs(graph, index):
    """The same program with some of its configurations."""
    names = {"config_codes", "config_feat", "config_runtime", "config_runtime_normalizers"} & set(graph._fields)
    return graph._replace(**{name: getattr(graph, name)[index] for name in names})


def parted(graph):
    """A random part of the configurations is held out -> Part."""
    order = np.random.default_rng(0).permutation(len(graph.config_runtime))
    cut = int(HELD_OUT * len(order))
    return Part(some_configs(graph, order[cut:]), some_configs(graph, order[:cut]))


def with_runtimes(graph):
    """A layout graph with simulated runtimes, in ns and without noise."""
    simulate = LayoutSimulator(graph.node_feat, graph.node_opcode, graph.edge_index, graph.node_config_ids)
    pieces = np.array_split(np.arange(len(graph.config_runtime)), 20)        # one piece at a time is in memory
    seconds = np.concatenate([simulate(dense_configs(graph, piece)) for piece in pieces if len(piece)])
    return graph._replace(config_runtime=np.rint(1e9 * seconds).astype(np.int64))


def layout_programs(size):
    """{name: [Part]} of the generated programs, pruned, each configuration once."""
    found = {}
    for seed, (nodes, configurable) in enumerate(size.programs):
        graph = with_runtimes(sized_program(nodes, configurable, size.configs, seed))
        graph = drop_duplicate_configs(prune(graph))[0]._replace(graph_id=f"generated {seed}")
        found[f"{len(graph.node_feat):,} nodes"] = [parted(graph)]
    return found


def tile_kernels(size):
    """{name: [Part]}: one entry for all generated kernels, because a step takes several."""
    parts, rng = [], np.random.default_rng(0)
    while len(parts) < size.kernels:
        arrays, rows = tile_kernel(rng, size.configs)
        if len(rows) < size.configs // 2:                        # a small kernel with few tiles
            continue
        runtime = np.rint(1e9 * simulate_tile(**arrays, config_feat=rows)).astype(np.int64)
        parts.append(parted(TileGraph(f"kernel {len(parts)}", arrays["node_feat"],
                                      arrays["node_opcode"].astype(np.int64), arrays["edge_index"].astype(np.int64),
                                      rows.astype(np.float32), runtime, np.full(len(rows), runtime[0]))))
    return {f"{len(parts)} kernels": parts}


# --- one model in one precision


def recipe_of(name, size):
    """A model's recipe for the whole data set, changed as the size says."""
    collection, short = MODELS[name]
    recipe = recipes_for(collection, "full")[short]
    if size.width:
        recipe = recipe._replace(shape=replace(recipe.shape, width=size.width))
    if size.learning_rate:
        recipe = recipe._replace(settings=replace(recipe.settings, learning_rate=size.learning_rate))
    return recipe


def step_times(programs, recipe, settings, size):
    """{program: seconds per training step and peak memory, or that it does not fit into memory}, for new models."""
    found = {}
    for name, parts in programs.items():
        try:
            step, configs = step_on([part.seen for part in parts], recipe, settings)
            one = timed(step, size.timed, settings.device)
            found[name] = {"step_seconds": statistics.median(one["seconds"]), "step_configs": configs,
                           "step_peak_memory": one["peak"]}
        except torch.cuda.OutOfMemoryError as fault:
            found[name] = {"out_of_memory": str(fault)}
        step = None                                              # it holds the model and the program
        free_memory(settings.device)
    return found


def free_memory(device):
    """Give back what PyTorch holds of the GPU's memory but does not use, also after a failure."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def train_in_two_sittings(parts, recipe, settings, size, seconds, report):
    """Train a model; halfway, a new process would find a checkpoint, and so does this one -> (model, history)."""
    graphs, valid = [part.seen for part in parts], [few_held(part, size) for part in parts]
    with tempfile.TemporaryDirectory() as folder:
        halfway = train_parts.Deadline(settings.steps // 2, itertools.count().__next__)     # counts steps, not seconds
        for deadline in (halfway, train_parts.Deadline(time.time() + seconds)):
            model = recipe.network(recipe.shape)
            history = train(model, graphs, settings, recipe.loss, valid, kendall_tau, Path(folder, "half.pt"), report,
                            deadline=deadline)
    return model, history


def few_held(part, size):
    """A program with as many of its held-out configurations as the CPU ranks."""
    return some_configs(part.held, np.arange(min(size.checked, len(part.held.config_runtime))))


def held_out_tau(model, parts, precision):
    """Kendall's tau on held-out configurations, the mean over kernels."""
    return float(np.mean([kendall_tau(predict(model, part.held, precision=precision), target(part.held))
                          for part in parts]))


def untrained_tau(programs, recipe, settings):
    """What weights that were not trained score, for comparison; the mean over programs."""
    model = recipe.network(recipe.shape).to(settings.device)
    model.fit_scale([part.seen for parts in programs.values() for part in parts])
    return float(np.mean([held_out_tau(model, parts, settings.precision) for parts in programs.values()]))


def ranking(model, parts, precision, size):
    """Score the ranking of a trained model, time it, and compare it with the CPU's."""
    device = next(model.parameters()).device
    tensors = [model.prepare(part.seen) for part in parts]
    one = timed(lambda: [predict(model, part.seen, precision=precision, tensors=ready)
                         for part, ready in zip(parts, tensors)], 1, device)
    ranked, seconds = sum(len(part.seen.config_runtime) for part in parts), one["seconds"][0]
    return {"tau": held_out_tau(model, parts, precision), "ranked_configs": ranked, "ranking_seconds": seconds,
            "ranked_per_second": ranked / seconds, "ranking_peak_memory": one["peak"],
            **against_cpu(model, parts, precision, size)}


def against_cpu(model, parts, precision, size):
    """Compare the costs on the model's device, in this precision, with the CPU's costs in float32."""
    on_cpu, pairs = copy.deepcopy(model).cpu(), []
    for part in parts:
        few = few_held(part, size)
        pairs.append((predict(model, few, precision=precision), predict(on_cpu, few)))
    spread = np.mean([reference.std() for _, reference in pairs])
    return {"cpu_difference": float(max(np.abs(cost - reference).max() for cost, reference in pairs) / spread),
            "cpu_tau": float(np.mean([kendall_tau(*pair) for pair in pairs]))}


def run_case(case, programs, size, device, seconds, report):
    """Time, train, rank and check the model and precision of a case; what is found goes into the case at once."""
    recipe = recipe_of(case["model"], size)
    settings = replace(recipe.settings, device=device, precision=case["precision"], keep="last")
    rows = case["programs"] = step_times(programs, recipe, settings, size)
    fits = {program: programs[program] for program, row in rows.items() if "step_seconds" in row}
    if fits:
        mean = statistics.mean(rows[program]["step_seconds"] for program in fits)    # each program is as frequent
        steps = max(2, min(size.steps, int(TRAINING * seconds / mean)))
        report(f"{case['model']}, {case['precision']}: has {seconds:.0f} s; trains {steps} of {size.steps} steps, "
               f"{1000 * mean:.0f} ms each")
        settings = replace(settings, steps=steps, validate_every=max(1, steps // 10))
        case |= {"budget_seconds": seconds, "untrained_tau": untrained_tau(fits, recipe, settings)}
        parts = [part for some in fits.values() for part in some]
        model, history = train_in_two_sittings(parts, recipe, settings, size, seconds, report)
        case |= training_facts(history)
        for program, some in fits.items():
            rows[program] |= ranking(model, some, case["precision"], size)
    judge(case, size)


def training_facts(history):
    """What is worth keeping of a training, for the JSON file."""
    record = history["record"]
    return {"steps": record["settings"]["steps"] - history["unfinished"], "steps_planned": record["settings"]["steps"],
            "training_seconds": history["seconds"], "training_peak_memory": record["peak_memory"],
            "overflows": history["overflows"], "loss": history["loss"], "validation_tau": history["score"]}


# --- checks


def judge(case, size):
    """Add the failed checks to a case, and what could not be checked."""
    case["failures"] += [fault for program, row in case["programs"].items()
                         for fault in ranking_faults(program, row, case["precision"])]
    if case.get("steps", 0) >= size.judged:
        case["failures"] += training_faults(case, size)
    else:
        case["not_judged"] = f"{case.get('steps', 0)} steps are too few to judge the training; {size.judged} would do"


def ranking_faults(program, row, precision):
    """What is wrong with the ranking of one program."""
    if "out_of_memory" in row:
        return [f"{program}: out of memory"]
    difference, tau = TOLERANCE[precision]
    faults = []
    if not row["cpu_difference"] <= difference:
        faults.append(f"{program}: a cost differs from the CPU's by {row['cpu_difference']:.2g} of their spread; at "
                      f"most {difference} is allowed")
    if not row["cpu_tau"] >= tau:
        faults.append(f"{program}: tau with the CPU's order is {row['cpu_tau']:.3f}; expected at least {tau}")
    return faults


def training_faults(case, size):
    """What is wrong with a training that had enough steps."""
    faults, (first, *_, last) = [], case["loss"]
    tau = statistics.mean(row["tau"] for row in case["programs"].values() if "tau" in row)
    if not last <= FALLS * first:
        faults.append(f"the loss went from {first:.3f} to {last:.3f}; expected at most {FALLS} of the first")
    if not tau >= size.learned:
        faults.append(f"tau on held-out configurations is {tau:.3f}; expected at least {size.learned}")
    if case["overflows"] > OVERFLOWS * case["steps"]:
        faults.append(f"{case['overflows']} of {case['steps']} steps overflowed")
    return faults


# --- two models side by side


def train_alone(seed, data, report):
    """A job of `run_jobs`: train one model in this process, on its GPU -> (history, weights)."""
    recipe, settings, graphs = data
    model = recipe.network(recipe.shape)
    history = train(model, graphs, replace(settings, seed=seed), recipe.loss, report=report)
    return history, {name: value.cpu() for name, value in model.state_dict().items()}


def two_side_by_side(cases, programs, size, device, seconds, report):
    """Train two models side by side, each in a process with a GPU of its own, on the smallest program."""
    recipe, settings, program, parts = pair_task(programs, size, device)
    shared = {"all": (recipe, settings, [part.seen for part in parts])}
    found = run_jobs(train_alone, [("all", seed) for seed in range(len(cases))], shared, len(cases), report)
    for case, (history, weights) in zip(cases, found):
        model = recipe.network(recipe.shape).to(device)
        model.load_state_dict(weights)
        fill_pair(case, history, model, program, parts, size)


def pair_task(programs, size, device):
    """What is trained side by side: recipe, settings, name and parts of the smallest program."""
    recipe, (program, parts) = recipe_of(PAIR, size), list(programs.items())[-1]
    settings = replace(recipe.settings, device=device, steps=size.judged, keep="last",
                       validate_every=max(1, size.judged // 5))
    return recipe, settings, program, parts


def fill_pair(case, history, model, program, parts, size):
    """Note and check what other processes trained."""
    case |= training_facts(history)
    case["programs"] = {program: {"step_seconds": case["training_seconds"] / case["steps"],
                                  "step_peak_memory": case["training_peak_memory"],
                                  **ranking(model, parts, "float32", size)}}
    judge(case, size)


# --- the whole run


COLUMNS = {"ms per step": lambda row: f"{1000 * row['step_seconds']:,.1f}",
           "peak memory of a step, MiB": lambda row: f"{(row['step_peak_memory'] or 0) / MIB:,.0f}",
           "configurations ranked per second": lambda row: f"{row['ranked_per_second']:,.0f}",
           "tau": lambda row: f"{row['tau']:.3f}",
           "largest difference from the CPU": lambda row: f"{row['cpu_difference']:.1e}",
           "tau with the CPU's order": lambda row: f"{row['cpu_tau']:.4f}"}


def cell(row, written):
    """One cell of the table; empty where nothing was measured."""
    try:
        return written(row)
    except KeyError:
        return "out of memory" if "out_of_memory" in row else ""


def table(cases):
    """Markdown rows: one for each model, precision and program."""
    heads = ["model", "precision", "program", *COLUMNS]
    rows = [[case["model"], case["precision"], program, *[cell(row, written) for written in COLUMNS.values()]]
            for case in cases for program, row in case["programs"].items()]
    return [f"| {' | '.join(one)} |" for one in [heads, ["---"] * len(heads), *rows]]


def new_case(model, precision="float32"):
    """A case of the JSON file before anything is known of it."""
    return {"model": model, "precision": precision, "programs": {}, "failures": []}


def planned(programs, kernels, has_pair):
    """[(weight, cases, work)] in this order. Each model in float32 comes first, in case time runs out."""
    found = [(WEIGHTS[name], [new_case(name, precision)], run_case, kernels if name == "tile model" else programs)
             for precision in PRECISIONS for name in MODELS]
    if has_pair:
        pair = [new_case(f"{PAIR}, model {number} of two side by side") for number in (1, 2)]
        found.append((WEIGHTS["side by side"], pair, two_side_by_side, programs))
    return found


def attempt(work, cases, *rest):
    """Do the work of some cases; if it fails, the cases say so, and the run goes on: the others are worth having."""
    try:
        work(cases if work is two_side_by_side else cases[0], *rest)
    except Exception as fault:
        traceback.print_exc()
        for case in cases:
            case["failures"].append(f"{type(fault).__name__}: {fault}")


def run_all(found, size, device, clock, keep):
    """Run what is planned while time is left; `keep` is called after each case."""
    programs, kernels = layout_programs(size), tile_kernels(size)
    clock.say(f"generated: {', '.join([*programs, *kernels])}")
    has_pair = device == "cpu" or torch.cuda.device_count() > 1
    if not has_pair:
        found["not_tried"].append("two models side by side: there is one GPU here")
    plan = planned(programs, kernels, has_pair)
    for number, (weight, cases, work, data) in enumerate(plan):
        if clock.left() <= 0:
            found["not_tried"] += [f"{case['model']}, {case['precision']}: no time was left"
                                   for _, late, *_ in plan[number:] for case in late]
            break
        seconds = clock.left() * weight / sum(other for other, *_ in plan[number:])
        attempt(work, cases, data, size, device, seconds, clock.say)
        free_memory(device)
        found["cases"] += cases
        keep()
        for case in cases:
            clock.say(f"{case['model']}, {case['precision']}: {'; '.join(case['failures']) or 'all checks hold'}")


def lines_about(found):
    """What is printed at the end: the table, what was not tried or not judged, what failed."""
    lines = [f"{found['card']}, PyTorch {found['versions']['torch']}; size {found['size']}.", "",
             *table(found["cases"]), "", *[f"NOT TRIED: {line}" for line in found["not_tried"]]]
    for case in found["cases"]:
        name = f"{case['model']}, {case['precision']}"
        lines += [f"NOT JUDGED: {name}: {case['not_judged']}"] if "not_judged" in case else []
        lines += [f"FAILED: {name}: {fault}" for fault in case["failures"]]
    return lines


def main(argv=None):
    """Run everything, write the JSON file, print the table -> exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--out", default="gpu.json")
    args = parser.parse_args(argv)
    clock, size = Clock(args.minutes), SIZES[args.size]
    if size.threads:
        torch.set_num_threads(size.threads)
    try:
        device = train_parts.check_device(args.device)
    except ValueError as fault:
        raise SystemExit(str(fault)) from fault
    found = {"card": train_parts.device_name(device), "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda,
             "versions": train_parts.versions(), "size": args.size, "minutes": args.minutes, "finished": False,
             "cases": [], "not_tried": []}
    clock.say(f"{found['card']}, {found['gpus']} GPUs, PyTorch {found['versions']['torch']}")

    def keep():
        write_json(args.out, found | {"seconds": time.monotonic() - clock.start})
    run_all(found, size, args.device, clock, keep)
    found["finished"] = True
    keep()
    failed = sum(len(case["failures"]) for case in found["cases"])
    print("\n".join(["", *lines_about(found), f"{failed} checks failed; everything is in {args.out}"]))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
