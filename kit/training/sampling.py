"""What a step trains on: which graphs, which of their configurations, and how many of them fit into memory.

Everything is drawn from (seed, step, place), where a place is a position among the graphs of a step. So it does not
matter which process computes a place, nor in which order.
"""
import copy
from typing import NamedTuple

import numpy as np
import torch

from kit.data import target
from kit.predict import autocast_to


class Task(NamedTuple):
    """A training graph, ready to be drawn from."""
    tensors: object          # what the model prepared
    runtime: torch.Tensor    # (c,) int64 or float64
    by_runtime: np.ndarray   # (c,) configurations, fastest first
    first: np.ndarray        # (u,) where each of the u distinct runtimes begins in by_runtime
    most: int                # configurations a step


class Draw(NamedTuple):
    """What one place of a step computes."""
    task: Task
    index: torch.Tensor      # (k,) configurations
    seed: int                # of dropout


def make_tasks(model, graphs, loss, settings, device):
    """Prepare training graphs and find how many configurations of each a step may take.

    Parameters
    ----------
    model : LayoutGNN, TileModel or any module with their methods
    graphs : sequence of LayoutGraph or TileGraph
    loss : callable
        (cost (k,), runtime (k,)) -> scalar Tensor.
    settings : TrainSettings
    device : torch.device

    Returns
    -------
    list of Task
        Of a transductive model all take as many configurations as fit for every graph: its costs depend on how many
        are scored together, so one number must hold in training, and later for graphs of any size.

    Raises
    ------
    ValueError
        If not even two configurations of a graph fit into the memory budget.
    """
    s, tasks = settings, []
    together = s.graphs_per_step if s.across_graphs else 1     # held at once, in however many processes: one curve
    trial = copy.deepcopy(model).train() if s.memory_budget else None      # what it remembers of a trial is forgotten
    for graph in graphs:
        order = np.argsort(target(graph), kind="stable")
        _, first = np.unique(target(graph)[order], return_index=True)
        task = Task(model.prepare(graph), torch.tensor(target(graph), device=device), order, first, s.configs_per_step)
        if s.memory_budget:
            size = coefficients(lambda k, task=task: saved_bytes(trial, task, k, loss, s))
            k = np.arange(2, s.configs_per_step + 1)
            fits = k[np.polynomial.polynomial.polyval(k, size) * together <= s.memory_budget]
            if not len(fits):
                least = together * round(np.polynomial.polynomial.polyval(2, size))
                raise ValueError(f"{graph.graph_id}: a step with 2 configurations holds {least:,} bytes for the "
                                 f"backward pass, memory_budget is {s.memory_budget:,}; raise it to that at least, "
                                 "prune the graph further or train on segments of it")
            task = task._replace(most=int(fits[-1]))
        tasks.append(task)
    if model.transductive:
        least = min(task.most for task in tasks)
        tasks = [task._replace(most=least) for task in tasks]
    return tasks


def coefficients(size):
    """(a, b, c) of size(k) = a + b k + c k^2, from three trials; activations are linear in k, pairs of them square."""
    two, four, eight = size(2), size(4), size(8)
    c = ((eight - four) / 4 - (four - two) / 2) / 6
    b = (four - two) / 2 - 6 * c
    return two - 2 * b - 4 * c, b, c


def saved_bytes(model, task, k, loss, settings):
    """Bytes that the forward pass of `k` configurations keeps for the backward pass, without the weights."""
    kept = {}

    def note(tensor):
        if tensor.layout == torch.strided:               # sparse ones belong to the graph
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()                           # the same memory; without its history, that would be a circle

    # as often as it takes: a graph may have less than `k` configurations
    index = torch.arange(k, device=task.runtime.device) % len(task.runtime)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        cost, runtime = costs_of(model, Draw(task, index, 0), settings.precision), task.runtime[index]
        value = [loss(cost, runtime)]
        if settings.across_graphs:                       # and once more over all graphs of a step
            value.append(loss(cost.repeat(settings.graphs_per_step), runtime.repeat(settings.graphs_per_step)))
    for p in model.parameters():
        kept.pop(p.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def costs_of(model, draw, precision):
    """Costs of what was drawn, with dropout from its seed; float32 or better."""
    device = draw.task.runtime.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), autocast_to(precision, device):
        torch.default_generator.manual_seed(draw.seed)           # torch.manual_seed seeds every device, in .3 ms
        if device.type == "cuda":
            torch.cuda.manual_seed(draw.seed)
        cost = model(draw.task.tensors, draw.index)
    return cost.float() if cost.dtype in (torch.bfloat16, torch.float16) else cost


def draw_step(tasks, step, settings):
    """What each place of a step computes, a Draw each."""
    drawn = []
    for place in range(settings.graphs_per_step):
        task = tasks[nth_graph(step * settings.graphs_per_step + place, len(tasks), settings.seed)]
        rng = np.random.default_rng([settings.seed, step, place])
        seed, k = int(rng.integers(2 ** 62)), min(task.most, len(task.runtime))
        index = (spread if settings.sampling == "spread" else uniform)(task, k, rng)
        drawn.append(Draw(task, torch.as_tensor(index, device=task.runtime.device), seed))
    return drawn


def uniform(task, k, rng):
    """`k` distinct configurations of a task, each set as likely as any other."""
    return rng.choice(len(task.runtime), k, replace=False)


def spread(task, k, rng):
    """Draw configurations that are spread evenly over the ranks of distinct runtimes.

    Each runtime is taken once before any is taken twice, so that ties, which teach nothing, are as few as can be.

    Parameters
    ----------
    task : Task
    k : int
        At most c.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray, shape (k,), int64
        Distinct, in random order.
    """
    count = np.diff(task.first, append=len(task.by_runtime))             # (u,) configurations of each runtime
    start, chosen, turn = rng.integers(count), [], 0
    while k:
        left = np.flatnonzero(count > turn)                              # runtimes with one not yet taken
        take = min(k, len(left))
        bounds = np.arange(take + 1) * len(left) // take                 # equal stretches, one of each
        some = left[rng.integers(bounds[:-1], bounds[1:])]
        chosen.append(task.by_runtime[task.first[some] + (start[some] + turn) % count[some]])
        k, turn = k - take, turn + 1
    return rng.permutation(np.concatenate(chosen))


def nth_graph(place, count, seed):
    """The graph at a place of an endless sequence in which each pass over the graphs is shuffled anew."""
    return int(np.random.default_rng([seed, place // count, 1]).permutation(count)[place % count])
