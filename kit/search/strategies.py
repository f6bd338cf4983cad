"""Search strategies on one interface: random, annealing, genetic, guided by a cost model, Optuna.

`strategy(objective, dims, budget, rng)` returns a SearchResult; kit/search/budgets.py says what an objective is. A cost
model has the same form, so every strategy can search it. `guided` measures what such a search proposes. Start with
`explore_then_droplet` (kit/search/droplet_search.py), which continues from such proposals.

Own code rather than scipy.optimize: scipy's dual annealing and differential evolution move in a box of real numbers,
and neither measures each code once within an exact budget.
"""
import numpy as np

from kit.checks import check_number, check_whole, checked_rng
from kit.search.budgets import Measured

# Defaults without a source were the best of a few on random landscapes: 8 to 26 coordinates with 2 to 9 values, costs
# that add up over coordinates and over pairs of coordinates.


def random_search(objective, dims, budget, rng, *, repeats=1):
    """Measure points drawn uniformly, without replacement.

    Parameters
    ----------
    objective : callable
        (k, g) int64 codes -> (k,) costs; lower is faster, np.inf for an invalid point.
    dims : sequence of int, shape (g,)
        Number of values of each coordinate.
    budget : int
        Number of measurements, repeats included; fewer are made if the space has fewer points.
    rng : numpy.random.Generator
        The same state gives the same search.
    repeats : int
        Measurements per point; its cost is their mean.

    Returns
    -------
    SearchResult

    Raises
    ------
    ValueError
        If a coordinate has no value or more than 4,096, the budget is below `repeats`, the objective does not give
        one cost per point, or an argument is not as above. All strategies raise this error.

    Examples
    --------
    >>> found = random_search(lambda points: points.sum(axis=1), [2, 3, 1], 100, np.random.default_rng(0))
    >>> found.best.tolist(), found.best_cost, found.measurements
    ([0, 0, 0], 0.0, 6)
    """
    measured, rng = Measured(objective, dims, budget, repeats), checked_rng(rng)
    measured(measured.unseen(rng, measured.left))
    return measured.result()


def annealing(objective, dims, budget, rng, *, repeats=1, chains=1, hot=0.3, cold=0.03):
    """Simulated annealing: walks that change one coordinate at a time and accept fewer and fewer slower points.

    Source: Kirkpatrick, Gelatt and Vecchi, Optimization by Simulated Annealing, Science 220, 1983.

    Parameters
    ----------
    objective, dims, budget, rng, repeats
        As in `random_search`.
    chains : int
        Number of walks side by side; each adds one point to a batch. One long walk gets further than several short
        ones.
    hot, cold : float
        First and last temperature, relative to the mean change of cost per step; between them it falls geometrically.

    Returns
    -------
    SearchResult

    Examples
    --------
    >>> annealing(lambda points: points.sum(axis=1), [5, 5, 5], 60, np.random.default_rng(0)).best.tolist()
    [0, 0, 0]
    """
    measured, rng = Measured(objective, dims, budget, repeats), checked_rng(rng)
    check_whole(locals(), chains=1)
    check_number(locals(), "a number above 0", "hot", "cold")
    here = measured.unseen(rng, min(chains, measured.left))
    cost, walk, free = measured(here), np.arange(len(here)), np.flatnonzero(measured.dims > 1)
    change, steps, stale, patience = 0.0, 0, 0, 10 * measured.dims.sum()
    while measured.left:
        there, before = here.copy(), len(measured.points)
        which = rng.choice(free, len(here))
        there[walk, which] += rng.integers(1, measured.dims[which])
        there[walk, which] %= measured.dims[which]
        if stale > patience:                           # all points around are known: continue elsewhere
            there[0] = measured.unseen(rng, 1)[0]
        new = measured(there)
        valid = np.isfinite(new) & np.isfinite(cost)
        up = np.where(new < np.inf, 0.0, np.inf)       # any valid point is better than an invalid one
        up[valid] = new[valid] - cost[valid]
        change, steps = change + np.abs(up[valid]).sum(), steps + valid.sum()
        heat = change / max(steps, 1) * hot * (cold / hot) ** (len(measured.trace) / budget)
        accept = up <= rng.exponential(size=len(up)) * heat      # a rise h passes with probability exp(-h / heat)
        accept[0] |= stale > patience
        here[accept], cost[accept] = there[accept], new[accept]
        stale = stale + 1 if len(measured.points) == before else 0
    return measured.result()


def genetic(objective, dims, budget, rng, *, repeats=1, population=None, mutation=1.5):
    """Genetic search: each child mixes two of the best points so far, coordinate by coordinate, and mutates.

    Parameters
    ----------
    objective, dims, budget, rng, repeats
        As in `random_search`.
    population : int, optional
        Number of random points at the start, and of children per batch; half this number of best points so far are
        the parents. None: 1% of the budget, at least 8.
    mutation : float
        Mean number of coordinates per child that are drawn at random.

    Returns
    -------
    SearchResult

    Examples
    --------
    >>> genetic(lambda points: points.sum(axis=1), [5, 5, 5], 60, np.random.default_rng(0)).best.tolist()
    [0, 0, 0]
    """
    measured, rng = Measured(objective, dims, budget, repeats), checked_rng(rng)
    g, population = len(measured.dims), max(8, budget // 100) if population is None else population
    check_whole(locals(), population=1)
    check_number(locals(), "a number of at least 0", "mutation")
    pool = measured.unseen(rng, min(population, measured.left))
    cost = measured(pool)
    while measured.left:
        fittest = np.argsort(cost, kind="stable")[:max(1, population // 2)]
        mother, father = pool[fittest[rng.integers(len(fittest), size=(2, population))]]
        child = np.where(rng.random((population, g)) < 0.5, mother, father)
        mutant = rng.random((population, g)) < mutation / g
        child = np.where(mutant, rng.integers(measured.dims, size=(population, g)), child)
        child = list({point.tobytes(): point for point in child if not measured.knows(point)}.values())
        child = np.array(child) if child else measured.unseen(rng, 1)            # all children are known
        pool, cost = np.concatenate([pool[fittest], child]), np.concatenate([cost[fittest], measured(child)])
    return measured.result()


def guided(objective, dims, budget, rng, *, model, strategy=genetic, queries=10_000, repeats=1):
    """Search the whole space with a model as fitness, and measure only the best proposals.

    `model`: (k, g) int64 codes -> (k,) costs on any scale. `strategy` searches the model with a budget of `queries`: it
    is any strategy of kit.search, with `functools.partial` for its options. All other arguments are those of
    `random_search`. The result has the points in the order of the model's costs. Its `queries` are the strategy's.

    >>> found = guided(lambda points: points.sum(axis=1), [9] * 6, 5, np.random.default_rng(0), queries=2000,
    ...                model=lambda points: (points * [1, 2, 3, 3, 2, 1]).sum(axis=1))
    >>> found.best_cost, found.measurements, found.queries
    (0.0, 5, 2000)
    """
    measured = Measured(objective, dims, budget, repeats)
    found = strategy(model, dims, queries, rng)
    measured(found.points[np.argsort(found.costs, kind="stable")])
    return measured.result(found.measurements + found.queries)


def optuna_search(objective, dims, budget, rng, *, repeats=1, sampler=None):
    """Let Optuna choose the points, one at a time, by `sampler`, or by its TPE sampler seeded from `rng`."""
    try:
        import optuna
    except ImportError as fault:
        raise ImportError("optuna_search needs Optuna, which the kit does not install: pip install optuna") from fault
    measured, silent = Measured(objective, dims, budget, repeats), optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=sampler or optuna.samplers.TPESampler(seed=int(rng.integers(2**31))))
        space = {f"x{i}": optuna.distributions.CategoricalDistribution(tuple(range(n))) for i, n in enumerate(dims)}
        while measured.left:
            trial = study.ask(space)
            point = np.array([trial.params[name] for name in space])
            if measured.knows(point):                  # Optuna repeats itself: enqueue a new point instead
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                study.enqueue_trial(dict(zip(space, measured.unseen(rng, 1)[0].tolist())))
            else:
                study.tell(trial, measured([point])[0])
    finally:
        optuna.logging.set_verbosity(silent)
    return measured.result()
