"""How long trainings will take on this machine: each kind of model first takes a few steps on a few programs."""
import math
import time
from dataclasses import replace

from kit.prune import fewer_configs
from kit.train import train

PROGRAMS = 3                     # small, middle, large; four times as many while they take too little time to tell
STEPS = 4, 40                    # the second where the first take too little
LEAST = 1.0                      # s


def minutes_ahead(members, data, workers):
    """One sentence on the minutes until models are trained.

    Parameters
    ----------
    members : sequence of lab.training.Member
    data : lab.data.Data
    workers : int
        Models trained at the same time.
    """
    timed, each = {}, {}
    for member in members:
        key = member.trains_on, member.kind
        if key not in timed:
            timed[key] = _minutes(member.recipe, data.graphs(member.trains_on))
        each[member.kind] = each.get(member.kind, 0.0) + timed[key]
    together = max(*timed.values(), sum(each.values()) / workers)
    return (f"about {together:.0f} min to train {len(members)} model{'s' * (len(members) > 1)}; one after another: "
            + ", ".join(f"{kind} {minutes:.1f} min" for kind, minutes in each.items()))


def _minutes(recipe, graphs):
    """Minutes to train one model: the programs are prepared, then the steps are taken."""
    number, start, some = PROGRAMS, 0.0, ()
    while start < LEAST and len(some) < len(graphs):
        some = _some(recipe, graphs, number)
        start, number = _seconds(recipe, some, 1), 4 * number
    for steps in STEPS:
        further = _seconds(recipe, some, steps) - start
        if further > LEAST or recipe.settings.steps < steps:
            break
    step = max(further, 0) / (steps - 1)
    return (max(start - step, 0) / len(some) * len(graphs) + step * recipe.settings.steps) / 60


def _some(recipe, graphs, number):
    """At most this many graphs, small to large; trees see as many rows of each as they would of all graphs."""
    by_size = sorted(graphs, key=lambda graph: len(graph.node_opcode))
    some = by_size[len(graphs) // (2 * number)::max(math.ceil(len(graphs) / number), 1)]
    rows = getattr(recipe.shape, "rows", None)
    return [fewer_configs(graph, max(rows // len(graphs), 2)) for graph in some] if rows else some


def _seconds(recipe, graphs, steps):
    """Seconds that this many steps take, from reading the graphs on."""
    start = time.monotonic()
    train(recipe.network(recipe.shape), graphs, replace(
        recipe.settings, steps=steps, validate_every=steps, average="none", keep="last"), recipe.loss)
    return time.monotonic() - start
