"""What a step trains on: which graphs, which of their configurations, and how many of these fit into memory.

Each draw is seeded by (seed, step, place); a place is the position of a graph within the step. So it does not matter
which process computes a place, nor in which order.
"""
import copy
from typing import NamedTuple

import numpy as np
import torch

from kit.data import target
from kit.predict import autocast_to


class Task(NamedTuple):
    """A training graph, ready for draws."""
    tensors: object          # what the model prepared
    runtime: torch.Tensor    # (c,) int64 or float64
    most: int                # configurations per step


class Draw(NamedTuple):
    """What one place of a step computes."""
    task: Task
    index: torch.Tensor      # (k,) configurations
    seed: int                # for dropout


def make_tasks(model, graphs, loss, settings, device):
    """Prepare training graphs -> one Task per graph; ValueError if two configurations exceed the memory budget."""
    s, tasks = settings, []
    trial = copy.deepcopy(model).train() if s.memory_budget else None      # a copy, as a trial may change a model
    for graph in graphs:
        task = Task(model.prepare(graph), torch.tensor(target(graph), device=device), s.configs_per_step)
        tasks.append(task if trial is None else task._replace(most=_fitting(trial, task, loss, s, graph.graph_id)))
    # costs of a transductive model depend on how many configurations are scored together, so training and prediction
    # use one number for graphs of any size
    least = min(task.most for task in tasks)
    return [task._replace(most=least) for task in tasks] if model.transductive else tasks


def _fitting(model, task, loss, settings, name):
    """How many configurations of a graph a step may take within the memory budget."""
    s = settings
    if hasattr(model, "largest"):                        # a step draws segments; any segment must fit
        task = task._replace(tensors=model.largest(task.tensors))
    size = coefficients(lambda k: saved_bytes(model, task, k, loss, s))
    k = np.arange(2, s.configs_per_step + 1)
    fits = k[np.polynomial.polynomial.polyval(k, size) <= s.memory_budget]
    if not len(fits):
        least = round(np.polynomial.polynomial.polyval(2, size))
        raise ValueError(f"{name}: a step with 2 configurations holds {least:,} bytes for the backward pass, "
                         f"memory_budget is {s.memory_budget:,}; raise it to that at least, prune the graph further "
                         "or train on segments of it")
    return int(fits[-1])


def coefficients(size):
    """(a, b, c) in size(k) = a + b k + c k^2, from three trials; activations grow with k, pairs of them with k^2."""
    two, four, eight = size(2), size(4), size(8)
    c = ((eight - four) / 4 - (four - two) / 2) / 6
    b = (four - two) / 2 - 6 * c
    return two - 2 * b - 4 * c, b, c


def saved_bytes(model, task, k, loss, settings):
    """Bytes that the forward pass for `k` configurations keeps for the backward pass, not counting the weights."""
    kept = {}

    def note(tensor):
        if tensor.layout == torch.strided:               # sparse tensors belong to the graph
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()                           # the same memory; detached, to avoid a reference cycle

    # a graph may have fewer than `k` configurations; then they repeat
    index = torch.arange(k, device=task.runtime.device) % len(task.runtime)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        cost, runtime = costs_of(model, Draw(task, index, 0), settings.precision), task.runtime[index]
        loss(cost, runtime)
    for p in model.parameters():
        kept.pop(p.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def costs_of(model, draw, precision):
    """Costs of the drawn configurations, in float32 or better; dropout follows the seed of the draw."""
    device = draw.task.runtime.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), autocast_to(precision, device):
        torch.default_generator.manual_seed(draw.seed)           # torch.manual_seed takes 0.3 ms for all devices
        if device.type == "cuda":
            torch.cuda.manual_seed(draw.seed)
        cost = model(draw.task.tensors, draw.index)
    return cost.float() if cost.dtype in (torch.bfloat16, torch.float16) else cost


def draw_step(tasks, step, settings):
    """What each place of a step computes -> one Draw per place."""
    drawn = []
    for place in range(settings.graphs_per_step):
        task = tasks[nth_graph(step * settings.graphs_per_step + place, len(tasks), settings.seed)]
        rng = np.random.default_rng([settings.seed, step, place])
        seed, k = int(rng.integers(2 ** 62)), min(task.most, len(task.runtime))
        index = rng.choice(len(task.runtime), k, replace=False)
        drawn.append(Draw(task, torch.as_tensor(index, device=task.runtime.device), seed))
    return drawn


def nth_graph(place, count, seed):
    """The graph at a place of an endless sequence; each pass over all graphs has a new random order."""
    return int(np.random.default_rng([seed, place // count, 1]).permutation(count)[place % count])
