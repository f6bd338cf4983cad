"""How long trainings take on a GPU: calculated before anything is pushed to Kaggle, from the work of one step.

Only the time to start an operation is measured. recipes.md beside this file lists the assumptions, and compares the
results with measurements on one card; its tables of times come from these functions.
"""
from typing import NamedTuple

from kit.models import (
    AdditiveTreesSettings,
    BoostedTreesSettings,
    ConfigTokenSettings,
    LayoutGNNSettings,
    TileModelSettings,
)
from kit.recipes import recipes_for


class Card(NamedTuple):
    """A GPU as its data sheet describes it, or shares of such numbers."""
    operations: float            # floating-point operations in float32, per second
    bandwidth: float             # of its memory, bytes per second


class Planned(NamedTuple):
    """One training that a notebook will do."""
    name: str                    # of the model in its recipe
    shape: object                # the network's settings
    steps: int
    configs: int                 # per program and step
    graphs: int                  # programs per step


class Work(NamedTuple):
    """One training step."""
    operations: float            # floating-point operations of matrix products
    bytes: float                 # read from the GPU's memory, and written
    launches: int                # operations of PyTorch that a small model spends its time on; else 0


CARDS = {"T4": Card(8.1e12, 320e9), "A100": Card(19.5e12, 1555e9), "H200": Card(67e12, 4.8e12)}     # A100 with 40 GB
REACHED = Card(0.5, 0.7)         # share of the data sheet's numbers that training is assumed to reach
LAUNCH = 50e-6                   # s to start one operation of PyTorch; 37 to 55 measured beside an H200
# nodes per program: Table 1 of the TpuGraphs paper (arXiv 2308.13490); the share that pruning keeps: the first place
NODES = {"tile:xla": 40, "layout:xla": 14_105, "layout:nlp": 5_659}
KEPT = 0.16
# counted by tests/test_hours.py. A block of the GNN reads and writes this many times as much as one output of a layer
# has; [norm over nodes][attention]; with squeeze-and-excite, and messages in both directions
PASSES = {"linear": ((44, 91), (64, 111)), "graph": ((92, 158), (110, 194))}
LAUNCHES = {ConfigTokenSettings: 171, TileModelSettings: 125,                # operations of PyTorch per program
            BoostedTreesSettings: 0, AdditiveTreesSettings: 0}               # on the CPU, in seconds


def step_work(shape, nodes, configs, graphs=1):
    """The work of one training step: forward, backward, without the optimiser -> Work; None for an unknown network.

    `shape`: the network's settings. `nodes`: of a program after pruning. `configs`: per program. `graphs`: programs.
    """
    if type(shape) in LAUNCHES:
        return Work(0.0, 0.0, LAUNCHES[type(shape)] * graphs)
    if type(shape) is not LayoutGNNSettings:
        return None
    s, cells, attends = shape, graphs * nodes * configs, bool(shape.config_attention)
    out = s.width // 2 if attends else s.width
    # multiplications per node and configuration: the linear layers but the first, which configurations share, and one
    # matrix for the node and for each direction in a graph block; squeeze and excite in each block
    layers = (s.linear_blocks - 1 + s.graph_blocks * (3 if s.both_directions else 2)) * s.width * out
    gates = (s.linear_blocks + s.graph_blocks) * 2 * out * max(1, out // s.squeeze) if s.squeeze else 0
    # a product is one multiplication and one addition, forward, and backward by input and by weight; gates are
    # computed again in the backward pass
    linear, graph = (PASSES[kind][s.node_norm][attends] for kind in ("linear", "graph"))
    passes = s.linear_blocks * linear + s.graph_blocks * graph
    return Work(2.0 * cells * (3 * layers + 4 * gates), 4.0 * cells * out * passes, 0)


def seconds_on(card, work):
    """Seconds that a GPU, from `CARDS`, takes for this work."""
    computing = work.operations / (REACHED.operations * card.operations)
    return max(computing + work.bytes / (REACHED.bandwidth * card.bandwidth), work.launches * LAUNCH)


def usual_nodes(collection):
    """Nodes of an average program after pruning; kernels are not pruned."""
    return NODES[collection] if collection in NODES else KEPT * NODES[collection.rpartition(":")[0]]


def planned_models(collection, parameters):
    """One `Planned` per model that notebook 03 or 04 trains for a collection, in the notebook's order.

    `parameters`: of the notebook, {name: value}; what is not given is as in the recipe.
    """
    chosen, changes, found = parameters.get("models"), parameters.get("changes") or {}, []
    chosen = chosen.split(",") if isinstance(chosen, str) else chosen
    scale = "tiny" if parameters.get("size") == "tiny" else parameters.get("recipe") or "quick"
    for name, recipe in recipes_for(collection, scale).items():
        recipe = recipe.changed(**changes.get(name, {}))
        one = Planned(name, recipe.shape, recipe.settings.steps, recipe.settings.configs_per_step,
                      recipe.settings.graphs_per_step)
        found += [one] * (parameters.get("seeds") or recipe.seeds) * (parameters.get("folds") or 1)
    return [one for one in found if chosen is None or one.name in chosen or one.name == "tile"]


def training_hours(collections, parameters, gpu, count):
    """Hours that notebook 03 or 04 trains for some collections; None if one of the networks is unknown here.

    `parameters`: as for `planned_models`. `gpu`: of `CARDS`; there are `count` of them. Each trains one model at a
    time, as `run_jobs` hands them out.
    """
    free = [0.0] * count                                         # when each GPU is free, in hours
    for collection in collections:
        for one in planned_models(collection, parameters):
            work = step_work(one.shape, usual_nodes(collection), one.configs, one.graphs)
            if work is None:
                return None
            free[free.index(min(free))] += one.steps * seconds_on(CARDS[gpu], work) / 3600
    return max(free)
