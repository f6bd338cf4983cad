"""Search strategies on one interface: random, annealing, genetic, guided by a cost model.

`strategy(objective, dims, budget, rng)` returns a SearchResult; kit/search/budgets.py says what an objective is. A cost
model has the same form, so every strategy can search it. `guided` measures what such a search proposes. Start with
`explore_then_droplet` (kit/search/droplet_search.py), which continues from such proposals.

Own code rather than scipy.optimize: scipy's dual annealing and differential evolution move in a box of real numbers,
and neither measures each code once within an exact budget.
"""
import numpy as np

from kit.checks import checked_rng
from kit.search.budgets import Measured

# Numbers without a source were the best of a few on random landscapes: 8 to 26 coordinates with 2 to 9 values, costs
# that add up over coordinates and over pairs of coordinates.
HOT, COLD = 0.3, 0.03      # first and last temperature, relative to the mean change of cost per step
MUTATED = 1.5              # mean number of coordinates per child that are drawn at random


def random_search(objective, dims, budget, rng):
    """Measure points drawn uniformly, without replacement.

    Parameters
    ----------
    objective : callable
        (k, g) int64 codes -> (k,) costs; lower is faster, np.inf for an invalid point.
    dims : sequence of int, shape (g,)
        Number of values of each coordinate.
    budget : int
        Number of measurements; fewer are made if the space has fewer points.
    rng : numpy.random.Generator
        The same state gives the same search.

    Returns
    -------
    SearchResult

    Raises
    ------
    ValueError
        If a coordinate has no value or more than 4,096, the objective does not give one cost per point, or an argument
        is not as above. All strategies raise this error.

    Examples
    --------
    >>> found = random_search(lambda points: points.sum(axis=1), [2, 3, 1], 100, np.random.default_rng(0))
    >>> found.best.tolist(), found.best_cost, found.measurements
    ([0, 0, 0], 0.0, 6)
    """
    measured, rng = Measured(objective, dims, budget), checked_rng(rng)
    measured(measured.unseen(rng, measured.left))
    return measured.result()


def annealing(objective, dims, budget, rng):
    """Simulated annealing: a walk that changes one coordinate at a time and accepts fewer and fewer slower points.

    The temperature falls geometrically.

    Source: Kirkpatrick, Gelatt and Vecchi, Optimization by Simulated Annealing, Science 220, 1983.

    Parameters
    ----------
    objective, dims, budget, rng
        As in `random_search`.

    Returns
    -------
    SearchResult

    Examples
    --------
    >>> annealing(lambda points: points.sum(axis=1), [5, 5, 5], 60, np.random.default_rng(0)).best.tolist()
    [0, 0, 0]
    """
    measured, rng = Measured(objective, dims, budget), checked_rng(rng)
    here, free = measured.unseen(rng, 1)[0], np.flatnonzero(measured.dims > 1)
    cost, change, steps, stale, patience = measured(here)[0], 0.0, 0, 0, 10 * measured.dims.sum()
    while measured.left:
        there, before, lost = here.copy(), len(measured.points), stale > patience
        which = rng.choice(free)
        there[which] = (there[which] + rng.integers(1, measured.dims[which])) % measured.dims[which]
        if lost:                                       # all points around are known: continue elsewhere
            there = measured.unseen(rng, 1)[0]
        new = measured(there)[0]
        up = 0.0 if new < np.inf else np.inf           # any valid point is better than an invalid one
        if np.isfinite(new) and np.isfinite(cost):
            up = new - cost
            change, steps = change + abs(up), steps + 1
        heat = change / max(steps, 1) * HOT * (COLD / HOT) ** (len(measured.trace) / budget)
        accepted = up <= rng.exponential() * heat      # a rise h passes with probability exp(-h / heat)
        if accepted or lost:
            here, cost = there, new
        stale = stale + 1 if len(measured.points) == before else 0
    return measured.result()


def genetic(objective, dims, budget, rng):
    """Genetic search: each child mixes two of the best points so far, coordinate by coordinate, and mutates.

    The search starts from random points, 1% of the budget and at least 8. Each generation has as many children, and
    half as many of the best points so far are their parents.

    Parameters
    ----------
    objective, dims, budget, rng
        As in `random_search`.

    Returns
    -------
    SearchResult

    Examples
    --------
    >>> genetic(lambda points: points.sum(axis=1), [5, 5, 5], 60, np.random.default_rng(0)).best.tolist()
    [0, 0, 0]
    """
    measured, rng = Measured(objective, dims, budget), checked_rng(rng)
    g, population = len(measured.dims), max(8, budget // 100)
    pool = measured.unseen(rng, min(population, measured.left))
    cost = measured(pool)
    while measured.left:
        fittest = np.argsort(cost, kind="stable")[:population // 2]
        mother, father = pool[fittest[rng.integers(len(fittest), size=(2, population))]]
        child = np.where(rng.random((population, g)) < 0.5, mother, father)
        mutant = rng.random((population, g)) < MUTATED / g
        child = np.where(mutant, rng.integers(measured.dims, size=(population, g)), child)
        child = list({point.tobytes(): point for point in child if not measured.knows(point)}.values())
        child = np.array(child) if child else measured.unseen(rng, 1)            # all children are known
        pool, cost = np.concatenate([pool[fittest], child]), np.concatenate([cost[fittest], measured(child)])
    return measured.result()


def guided(objective, dims, budget, rng, *, model, strategy=genetic, queries=10_000):
    """Search the whole space with a model as fitness, and measure only the best proposals.

    `model`: (k, g) int64 codes -> (k,) costs on any scale. `strategy` searches the model with a budget of `queries`: it
    is any strategy of kit.search. All other arguments are those of `random_search`. The result has the points in the
    order of the model's costs. Its `queries` are the strategy's.

    >>> found = guided(lambda points: points.sum(axis=1), [9] * 6, 5, np.random.default_rng(0), queries=2000,
    ...                model=lambda points: (points * [1, 2, 3, 3, 2, 1]).sum(axis=1))
    >>> found.best_cost, found.measurements, found.queries
    (0.0, 5, 2000)
    """
    measured = Measured(objective, dims, budget)
    found = strategy(model, dims, queries, rng)
    measured(found.points[np.argsort(found.costs, kind="stable")])
    return measured.result(found.measurements + found.queries)
