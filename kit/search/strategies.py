"""Find a fast configuration with few measurements: every strategy on one interface.

`strategy(objective, dims, budget, rng)` returns a SearchResult; kit/search/budgets.py says what an objective is. A cost
model is an objective too, only cheap, so every strategy can search it: `guided` measures what such a search proposes,
and `explore_then_droplet`, the one to start with, goes on from there.
"""
import numpy as np

from kit.search.budgets import Measured
from kit.search.descent import Beliefs, descend, kicked, order_flags, point_inside

# Defaults without a source were the best of a few on random landscapes: 8 to 26 coordinates of 2 to 9 values, costs
# that add up over coordinates and pairs of them.


def random_search(objective, dims, budget, rng, *, repeats=1):
    """Measure points drawn uniformly, without replacement.

    Parameters
    ----------
    objective : callable
        (k, g) int64 codes -> (k,) costs; lower is faster, np.inf for an invalid point.
    dims : sequence of int, shape (g,)
        How many values each coordinate has.
    budget : int
        Measurements, repeats included; fewer are made where the space has fewer points.
    rng : numpy.random.Generator
        Equal states give equal searches.
    repeats : int
        Measurements of each point; its cost is their mean.

    Returns
    -------
    SearchResult

    Raises
    ------
    ValueError
        If a coordinate has no value, the budget is below `repeats`, or the objective gives something else than one
        cost a point.

    Examples
    --------
    >>> found = random_search(lambda points: points.sum(axis=1), [2, 3, 1], 100, np.random.default_rng(0))
    >>> found.best.tolist(), found.best_cost, found.measurements
    ([0, 0, 0], 0.0, 6)
    """
    measured = Measured(objective, dims, budget, repeats)
    measured(measured.unseen(rng, measured.left))
    return measured.result()


def annealing(objective, dims, budget, rng, *, repeats=1, chains=1, hot=0.3, cold=0.03):
    """Simulated annealing: walks that change one coordinate at a time and take fewer and fewer steps up.

    Parameters
    ----------
    objective, dims, budget, rng, repeats
        As in `random_search`.
    chains : int
        Walks side by side, each with one point in a batch. One long walk goes further than several short ones.
    hot, cold : float
        First and last temperature, in mean changes of the cost by one step; geometric in between.

    Returns
    -------
    SearchResult

    Raises
    ------
    ValueError
        As `random_search`.

    References
    ----------
    Kirkpatrick, Gelatt and Vecchi, Optimization by Simulated Annealing, Science 220, 1983.

    Examples
    --------
    >>> annealing(lambda points: points.sum(axis=1), [5, 5, 5], 60, np.random.default_rng(0)).best.tolist()
    [0, 0, 0]
    """
    measured = Measured(objective, dims, budget, repeats)
    here = measured.unseen(rng, min(chains, measured.left))
    cost, walk, free = measured(here), np.arange(len(here)), np.flatnonzero(measured.dims > 1)
    change, steps, stale, patience = 0.0, 0, 0, 10 * measured.dims.sum()
    while measured.left:
        there, before = here.copy(), len(measured.points)
        which = rng.choice(free, len(here))
        there[walk, which] += rng.integers(1, measured.dims[which])
        there[walk, which] %= measured.dims[which]
        if stale > patience:                           # all around is known: elsewhere
            there[0] = measured.unseen(rng, 1)[0]
        new = measured(there)
        valid = np.isfinite(new) & np.isfinite(cost)
        up = np.where(new < np.inf, 0.0, np.inf)       # from an invalid point any valid one is better
        up[valid] = new[valid] - cost[valid]
        change, steps = change + np.abs(up[valid]).sum(), steps + valid.sum()
        heat = change / max(steps, 1) * hot * (cold / hot) ** (len(measured.trace) / budget)
        accept = up <= rng.exponential(size=len(up)) * heat              # a step up of h: probability exp(-h / heat)
        accept[0] |= stale > patience
        here[accept], cost[accept] = there[accept], new[accept]
        stale = stale + 1 if len(measured.points) == before else 0
    return measured.result()


def genetic(objective, dims, budget, rng, *, repeats=1, population=None, mutation=1.5):
    """Genetic search: children mix two of the best points so far, coordinate by coordinate, and mutate.

    Parameters
    ----------
    objective, dims, budget, rng, repeats
        As in `random_search`.
    population : int, optional
        Random points first, and children in a batch; their parents are the best points of all time, half as many.
        None: 1% of the budget, at least 8.
    mutation : float
        How many coordinates of a child are drawn anew, on average.

    Returns
    -------
    SearchResult

    Raises
    ------
    ValueError
        As `random_search`.

    Examples
    --------
    >>> genetic(lambda points: points.sum(axis=1), [5, 5, 5], 60, np.random.default_rng(0)).best.tolist()
    [0, 0, 0]
    """
    measured = Measured(objective, dims, budget, repeats)
    g, population = len(measured.dims), max(8, budget // 100) if population is None else population
    pool = measured.unseen(rng, min(population, measured.left))
    cost = measured(pool)
    while measured.left:
        fittest = np.argsort(cost, kind="stable")[:max(1, population // 2)]
        mother, father = pool[fittest[rng.integers(len(fittest), size=(2, population))]]
        child = np.where(rng.random((population, g)) < 0.5, mother, father)
        mutant = rng.random((population, g)) < mutation / g
        child = np.where(mutant, rng.integers(measured.dims, size=(population, g)), child)
        child = list({point.tobytes(): point for point in child if not measured.knows(point)}.values())
        child = np.array(child) if child else measured.unseen(rng, 1)            # new blood
        pool, cost = np.concatenate([pool[fittest], child]), np.concatenate([cost[fittest], measured(child)])
    return measured.result()


def droplet(objective, dims, budget, rng, *, repeats=1, start=None, ordered=False, batch=16, p_value=0.05):
    """Droplet Search: coordinate descent with a statistical test, speculation and a stop rule.

    The neighbours of the best point differ in one coordinate. A neighbour becomes the best if its mean is lower and,
    where points have repeats, Welch's t-test agrees. Changes that helped before are tried first. Room in the batch,
    at least a quarter of it, goes to speculation: steps 2, 3, 4... along ordered coordinates that helped, and the
    2, 3, 4... changes that helped most made together. The search ends when neither is left to measure.

    Parameters
    ----------
    objective, dims, budget, rng, repeats
        As in `random_search`.
    start : sequence of int, shape (g,), optional
        None: drawn. As published it is the untuned configuration, all 0.
    ordered : bool or sequence of bool, shape (g,)
        True where a coordinate's values are ordered, as tile sizes are: its neighbours are one step up or down.
        False: codes are categories, and every other value is a neighbour.
    batch : int
        Points measured before the next decision; 16, or the CPU's threads, as published. The smaller, the fewer
        measurements are needed.
    p_value : float
        Of the t-test.

    Returns
    -------
    SearchResult
        Its `measurements` may be fewer than the budget.

    Raises
    ------
    ValueError
        As `random_search`, and if `start` is outside the space or `ordered` does not fit.

    References
    ----------
    Canesche et al., The Droplet Search Algorithm for Kernel Scheduling, ACM TACO 2024. There all coordinates are
    ordered, and a neighbour may move several of them up, or several down, at once; here such moves come from
    speculation.

    Examples
    --------
    >>> found = droplet(lambda points: abs(points - 6).sum(axis=1), [9, 9], 81, np.random.default_rng(0), batch=4,
    ...                 start=[0, 0], ordered=True)
    >>> found.best.tolist(), found.measurements
    ([6, 6], 34)
    """
    measured = Measured(objective, dims, budget, repeats)
    start = rng.integers(measured.dims) if start is None else point_inside(start, measured.dims)
    descend(measured, start, order_flags(ordered, measured.dims), rng, batch, p_value, None)
    return measured.result()


def guided(objective, dims, budget, rng, *, model, strategy=genetic, queries=10_000, repeats=1):
    """Search the whole space with a model as fitness, and measure only its best proposals.

    Parameters
    ----------
    objective, dims, budget, rng
        As in `random_search`.
    model : callable
        Cheap objective, (k, g) int64 codes -> (k,) costs on any scale.
    strategy : callable
        What searches the model: any of this module, `functools.partial` for its options.
    queries : int
        The model's budget.
    repeats : int
        As in `random_search`.

    Returns
    -------
    SearchResult
        Points in the order of the model's costs; its `queries` are those of the strategy.

    Raises
    ------
    ValueError
        As `random_search`.

    Examples
    --------
    >>> found = guided(lambda points: points.sum(axis=1), [9] * 6, 5, np.random.default_rng(0), queries=2000,
    ...                model=lambda points: (points * [1, 2, 3, 3, 2, 1]).sum(axis=1))
    >>> found.best_cost, found.measurements, found.queries
    (0.0, 5, 2000)
    """
    measured = Measured(objective, dims, budget, repeats)
    found = strategy(model, dims, queries, rng)
    measured(found.points[np.argsort(found.costs, kind="stable")])
    return measured.result(found.measurements + found.queries)


def explore_then_droplet(objective, dims, budget, rng, *, model=None, explore=None, strategy=genetic, queries=10_000,
                         repeats=1, ordered=False, batch=4, p_value=0.05):
    """The one to start with: measure a few promising points, then improve the best one coordinate at a time.

    Without a model the first points are random; with one, they are the best that a search of the whole space with
    the model as fitness proposes. Then as `droplet`, but what is measured next is chosen by a Gaussian process of
    all costs so far, of which the model is a part: what it gets wrong is learned on the way. It weighs the best 16
    proposals still left beside the neighbours. When a neighbourhood is spent, the best point with three coordinates
    drawn anew is the next start, until the budget is spent.

    Parameters
    ----------
    objective, dims, budget, rng
        As in `random_search`.
    model : callable, optional
        As in `guided`.
    explore : int, optional
        Points measured first; None: 8, or a quarter of the budget if that is less.
    strategy, queries
        What searches the model, and its budget; as in `guided`.
    repeats, ordered, batch, p_value
        As in `droplet`.

    Returns
    -------
    SearchResult

    Raises
    ------
    ValueError
        As `random_search`, and if `ordered` does not fit.

    References
    ----------
    Canesche et al., Explore as a Storm, Exploit as a Raindrop, arXiv:2406.20037.

    Examples
    --------
    >>> explore_then_droplet(lambda points: points.sum(axis=1), [5] * 5, 60, np.random.default_rng(0)).best.tolist()
    [0, 0, 0, 0, 0]
    """
    measured = Measured(objective, dims, budget, repeats)
    ordered = order_flags(ordered, measured.dims)
    points = budget // repeats
    explore = min(8, -(-points // 4)) if explore is None else min(max(explore, 1), points)
    searched, proposed = 0, ()
    if model is None:
        measured(measured.unseen(rng, explore))
    else:
        found = strategy(model, dims, queries, rng)
        proposed = found.points[np.argsort(found.costs, kind="stable")]
        measured(proposed[:explore])
        searched = found.measurements + found.queries
    beliefs = Beliefs(measured.dims, ordered, model, rng)
    start = measured.best_first()[0]
    while measured.left:
        descend(measured, start, ordered, rng, batch, p_value, beliefs, proposed)
        start = kicked(measured, rng) if measured.left else start
    return measured.result(searched + beliefs.queries)


def optuna_search(objective, dims, budget, rng, *, repeats=1, sampler=None):
    """Let Optuna choose what is measured, one point at a time; its TPE sampler unless told otherwise.

    Parameters
    ----------
    objective, dims, budget, rng, repeats
        As in `random_search`.
    sampler : optuna.samplers.BaseSampler, optional
        None: TPESampler, seeded from `rng`.

    Returns
    -------
    SearchResult

    Raises
    ------
    ImportError
        If Optuna is not installed.
    ValueError
        As `random_search`.

    Examples
    --------
    >>> optuna_search(lambda points: points.sum(axis=1), [5] * 5, 60, np.random.default_rng(0))  # doctest: +SKIP
    """
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
            if measured.knows(point):                  # it repeats itself: another point is its next
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                study.enqueue_trial(dict(zip(space, measured.unseen(rng, 1)[0].tolist())))
            else:
                study.tell(trial, measured([point])[0])
    finally:
        optuna.logging.set_verbosity(silent)
    return measured.result()
