"""Steps of the recipe "full", and ranking, for one program after pruning; on a GPU: a CPU takes hours for it.

A function in CASES returns (step, configs): `step` does one step as `kit.train` does it, with the recipe's optimiser,
loss, precision and memory budget, on `configs` configurations. In a case of ranking, it ranks all configurations of a
program with the untrained model, as `kit.predict` does it.
"""
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from generated import drawn_graph, drawn_kernel, write_program

from kit import train, train_parts
from kit.data import read_layout
from kit.predict import predict
from kit.prune import prune
from kit.recipes import recipes_for

DEVICES = ("cuda",)                  # `run.py` measures this file on no other device
NODES = (1000, 2850)                 # after pruning; the pruned real files at hand have 73 to 2,850
LARGEST = 43_615, 3143               # nodes and configurable nodes of the largest public program, before pruning


def drawn_program(nodes, configs):
    """A program of random features: 1.6 edges and 0.2 configurable nodes for each node."""
    return drawn_graph(nodes, int(1.6 * nodes), nodes // 5, configs)


def sized_program(nodes, configurable, configs, seed=0):
    """A generated network with this many nodes, configurable nodes and configurations; not pruned."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{nodes}-nodes.npz")
        write_program(path, np.random.default_rng(seed), "train", nodes, configurable, configs)
        return read_layout(path)


def largest_program(configs):
    """A generated network of the size of the largest public program, pruned."""
    return prune(sized_program(*LARGEST, configs))


def full_step(collection, name, nodes=None, device="cuda", precision="float32"):
    """One step of a model of the recipe "full"; without `nodes`, for the largest program."""
    recipe = recipes_for(collection, "full")[name]
    settings = replace(recipe.settings, device=device, precision=precision)
    configs = settings.configs_per_step
    return step_on([drawn_kernel(c=configs) if name == "tile" else
                    drawn_program(nodes, configs) if nodes else largest_program(configs)], recipe, settings)


def step_on(graphs, recipe, settings):
    """One step of a recipe's new model on these graphs -> the step, and how many configurations it takes."""
    device = train_parts.check_device(settings.device)
    model = recipe.network(recipe.shape).to(device)
    model.fit_scale(graphs)
    tasks = train_parts.make_tasks(model, graphs, recipe.loss, settings, device)
    run = train._begin(model, settings, device)

    def step():
        train.train_step(model, tasks, recipe.loss, run.step, settings, run.optimizer, run.scaler)
        run.step += 1
    return step, sum(len(draw.index) for draw in train_parts.draw_step(tasks, 0, settings))


def rank_step(collection, name, nodes, device="cuda", precision="float32", configs=1000):
    """One ranking of all configurations of a program, without the transfer of the program to the GPU."""
    recipe = recipes_for(collection, "full")[name]
    graph = drawn_program(nodes, configs)
    model = recipe.network(recipe.shape).to(device)
    model.fit_scale([graph])
    tensors = model.prepare(graph)
    return lambda: predict(model, graph, precision=precision, tensors=tensors), configs


MODELS = {"GNN, random": ("layout:xla:random", "gnn"), "GNN, default": ("layout:xla:default", "gnn"),
          "token model": ("layout:xla:random", "token")}
CASES = {f"{label}, {nodes:,} nodes, {precision}": partial(full_step, *which, nodes, precision=precision)
         for label, which in MODELS.items() for nodes in NODES for precision in ("float32", "bfloat16", "float16")}
CASES |= {f"{label}, the largest program, {precision}": partial(full_step, *which, precision=precision)
          for label, which in MODELS.items() for precision in ("float32", "float16")}
CASES |= {f"ranking, {label}, {nodes:,} nodes, {precision}": partial(rank_step, *which, nodes, precision=precision)
          for label, which in MODELS.items() for nodes in NODES for precision in ("float32", "bfloat16")}
CASES |= {f"tile model, 8 kernels, {precision}": partial(full_step, "tile:xla", "tile", precision=precision)
          for precision in ("float32", "float16")}
