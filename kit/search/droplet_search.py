"""Droplet Search, which is coordinate descent on codes, and explore-then-droplet, the search to start with."""
from itertools import islice

import numpy as np

from kit.checks import check_callable, check_whole, checked_rng
from kit.search.budgets import Measured
from kit.search.gaussian_process import GaussianProcess
from kit.search.strategies import genetic

PROPOSALS_WEIGHED = 16     # of the model's best points that were not measured yet
EXPLORED, PROPOSED = 12, 8 # points measured first: random ones, or with a model its proposals; at most a quarter of all
WANDER = 8                 # one point in 8 is random: without a good model, the first points may all be poor
DIFFERENT = 3              # coordinates in which the first proposals of a doubtful model differ: its best are alike
JUMPS = 64                 # points that differ from the best in up to three coordinates, drawn before each decision


def droplet(objective, dims, budget, rng, *, start=None, ordered=False, batch=16):
    """Droplet Search: coordinate descent with speculation and a stop rule.

    The neighbours of the best point differ from it in one coordinate. Changes that helped before are tried first. The
    rest of a batch, at least a quarter, is speculation: steps of 2, 3, 4... along ordered coordinates that helped, and
    the 2, 3, 4... most helpful changes made together. The search ends when neither neighbours nor speculation are left
    to measure.

    Source: Canesche et al., The Droplet Search Algorithm for Kernel Scheduling, ACM TACO 2024. There each point is
    measured several times, and a t-test decides whether it is faster. There all coordinates are ordered, and a
    neighbour may move several up, or several down, at once; here speculation makes such moves.

    Parameters
    ----------
    objective, dims, budget, rng
        As in `random_search`.
    start : sequence of int, shape (g,), optional
        None: drawn at random. The published search starts at the untuned configuration, all 0.
    ordered : bool or sequence of bool, shape (g,)
        True where a coordinate's values are ordered, as tile sizes are: then a neighbour is one step up or down.
        False: codes are categories, and every other value is a neighbour.
    batch : int
        Points measured before the next decision; the published search takes 16, or the number of CPU threads. Smaller
        batches need fewer measurements.

    Returns
    -------
    SearchResult
        `measurements` may be fewer than the budget.

    Raises
    ------
    ValueError
        As `random_search`, and if `start` is outside the space or `ordered` does not fit.

    Examples
    --------
    >>> found = droplet(lambda points: abs(points - 6).sum(axis=1), [9, 9], 81, np.random.default_rng(0), batch=4,
    ...                 start=[0, 0], ordered=True)
    >>> found.best.tolist(), found.measurements
    ([6, 6], 34)
    """
    measured, rng = Measured(objective, dims, budget), checked_rng(rng)
    check_whole(locals(), batch=1)
    start = rng.integers(measured.dims) if start is None else _point_inside(start, measured.dims)
    _descend(measured, start, _order_flags(ordered, measured.dims), rng, batch)
    return measured.result()


def explore_then_droplet(objective, dims, budget, rng, *, model=None, strategy=genetic, queries=10_000,
                         doubt_model=False, confirm=1, stamina=None, ordered=False, batch=4):
    """The search to start with: measure a few promising points, then improve the best of them by coordinate descent.

    Without a model, the first 12 points are random. With a model, the first 8 points are the best that a search of the
    whole space with the model as fitness proposes. The first points are at most a quarter of the budget. Then follows
    `droplet`, but a Gaussian process of all costs so far chooses the next measurements. The 16 best proposals of the
    model that were not measured yet compete with the neighbours. So do 64 points that differ from the best in up to
    three coordinates: some choices pay only together. The model is part of the process, so measurements correct its
    errors. Without a model, one point in 8 is random, because all of the first points may lie in one poor region. When
    neither neighbours nor speculation are left, the search restarts: it draws three coordinates of the best point at
    random. It ends when the budget is spent.

    Source: Canesche et al., Explore as a Storm, Exploit as a Raindrop, arXiv:2406.20037.

    Parameters
    ----------
    objective, dims, budget, rng
        As in `random_search`.
    model : callable, optional
        As in `guided`.
    strategy, queries
        The strategy that searches the model, and its budget; as in `guided`.
    doubt_model : bool
        For a model that learned from other problems, so that its best points may all be poor. The first proposals then
        differ in at least three coordinates, as far as the proposals allow. One point in 8 is random, as without a
        model.
    confirm : int
        For noisy costs. Of many points that are nearly as fast, the one with the luckiest measurement seems best. So
        the best point is measured again, up to so many times in all, and its mean counts. Then another point may be
        the best, and is measured again. All of this counts as measurements. Two measurements are enough if they differ
        by less than 1%. The result is the best of the confirmed points. 1: no point is measured again.
    stamina : int, optional
        Measurements of one descent. Then the next descent begins at the best point that differs from the ends of the
        earlier ones in at least half of the coordinates. For spaces with several good regions and few coordinates: 64
        measurements are enough for the descent of a kernel. None: the only limit is the budget.
    ordered, batch
        As in `droplet`.

    Returns
    -------
    SearchResult
        `trace` may rise where the best point is measured again.

    Raises
    ------
    ValueError
        As `random_search`, and if `ordered` does not fit.

    Examples
    --------
    >>> explore_then_droplet(lambda points: points.sum(axis=1), [5] * 5, 60, np.random.default_rng(0)).best.tolist()
    [0, 0, 0, 0, 0]
    """
    measured, rng = Measured(objective, dims, budget, confirm), checked_rng(rng)
    ordered = _order_flags(ordered, measured.dims)
    stamina = budget if stamina is None else stamina
    check_whole(locals(), batch=1, queries=1, stamina=1)
    explore = min(EXPLORED if model is None else PROPOSED, -(-budget // 4))
    searched, proposed = 0, ()
    if model is None:
        measured(measured.unseen(rng, explore))
    else:
        check_callable(locals(), "model", "strategy")
        found = strategy(model, dims, queries, rng)
        proposed = found.points[np.argsort(found.costs, kind="stable")]
        measured(_different(proposed, explore) if doubt_model else proposed[:explore])
        searched = found.measurements + found.queries
    process = GaussianProcess(measured.dims, ordered, model, rng)
    start, wanders, ends = measured.best_first()[0], model is None or doubt_model, []
    while measured.left:
        until = len(measured.trace) + stamina
        best = _descend(measured, start, ordered, rng, batch, process, proposed, wanders, until)
        if len(measured.trace) < until:
            start = _kicked(measured, rng) if measured.left else start
        else:
            ends.append(best)                          # the proposals of the model lie near the first of them
            start, proposed = _elsewhere(measured, ends, rng), ()
    return measured.result(searched + process.queries)


def _descend(measured, best, ordered, rng, batch, process=None, proposed=(), wanders=False, until=np.inf):
    """Coordinate descent from `best` until nothing is left to measure or `until` measurements are made -> the best."""
    cost, gain = measured(best[None])[0], {}           # direction -> change of the cost when last tried
    while measured.left and len(measured.trace) < until:
        k = min(batch, measured.left)
        near = _neighbours(best, measured.dims, ordered)
        near = {point: direction for point, direction in (near[i] for i in rng.permutation(len(near)))
                if not measured.knows(point)}
        far = [point for point in _speculation(best, gain, measured.dims, ordered)
               if point not in near and not measured.knows(point)]
        if process is None:
            room = max(k - len(near), k // 4)
            chosen = [*far[:room], *sorted(near, key=lambda point: gain.get(near[point], 0.0))][:k]
        else:
            chosen = _most_promising([*near, *far], proposed, _jumps(best, measured.dims, rng), measured, process, k)
        if not chosen:
            break
        if wanders and len(measured.points) % WANDER < k:
            chosen[-1:] = map(tuple, measured.unseen(rng, 1).tolist())
        points = np.array([best, *chosen])
        costs = measured(points)
        for point, new in zip(chosen, costs[1:]):
            if point in near:
                gain[near[point]] = new - cost if np.isfinite(new) else np.inf
        best, cost = points[costs.argmin()], costs.min()
    return best


def _elsewhere(measured, ends, rng):
    """The best point that differs from all of `ends` in at least half of the coordinates; if none does, a new one."""
    far = np.count_nonzero(measured.dims > 1) / 2
    for point in measured.best_first():
        if ((point != ends).sum(axis=1) >= far).all():
            return point
    return measured.unseen(rng, 1)[0] if measured.left else ends[-1]


def _most_promising(local, proposed, jumps, measured, process, k):
    """The `k` points with the lowest bound among the local ones, the first of the proposed ones and the jumps."""
    if not local:                                      # a new start is worth more than the rest of the proposals
        return []
    proposed, jumps = ((tuple(map(int, point)) for point in points if not measured.knows(point))
                       for points in (proposed, jumps))
    points = list(dict.fromkeys([*local, *islice(proposed, PROPOSALS_WEIGHED), *jumps]))
    order = np.argsort(process.lower_bound(np.array(points), measured), kind="stable")
    return [points[i] for i in order[:k]]


def _different(points, count):
    """The first `count` of `points` (p, g) that differ from each earlier one in DIFFERENT coordinates, or in any."""
    chosen = points[:1]
    for point in points[1:]:
        if len(chosen) < count and ((point != chosen).sum(axis=1) >= DIFFERENT).all():
            chosen = np.vstack([chosen, point])
    rows = dict.fromkeys(map(tuple, np.concatenate([chosen, points]).tolist()))
    return np.array([*rows][:count])


def _jumps(best, dims, rng):
    """JUMPS points (k, g) that differ from `best` in up to three coordinates, drawn anew."""
    points, free = np.tile(best, (JUMPS, 1)), np.flatnonzero(dims > 1)
    for point in points:
        which = rng.permutation(free)[:rng.integers(2, 4)]
        point[which] = rng.integers(dims[which])
    return points


def _step(point, direction, dims, ordered, step=1):
    """`point` after a step: an ordered coordinate moves up or down, another is set to a value; None if impossible."""
    i, to = direction
    to = int(point[i]) + step * to if ordered[i] else to
    if not 0 <= to < dims[i] or to == point[i]:
        return None
    return (*map(int, point[:i]), to, *map(int, point[i + 1:]))


def _neighbours(point, dims, ordered):
    """[(neighbour, its direction)]; a direction is (coordinate, +-1) if ordered, else (coordinate, value)."""
    directions = [(i, to) for i, n in enumerate(dims) for to in ((-1, 1) if ordered[i] else range(n))]
    reached = [(_step(point, direction, dims, ordered), direction) for direction in directions]
    return [(there, direction) for there, direction in reached if there is not None]


def _speculation(best, gain, dims, ordered):
    """Points two or more steps from `best` along directions that helped when last tried, the most promising first."""
    helped = {}                                        # coordinate -> its most helpful direction
    for direction in sorted(gain, key=gain.get):
        if gain[direction] < 0 and _step(best, direction, dims, ordered) is not None:
            helped.setdefault(direction[0], direction)
    helped = list(helped.values())
    points, together = [], best
    for step in range(2, max(len(helped), int(dims.max())) + 1):
        further = [_step(best, direction, dims, ordered, step) for direction in helped if ordered[direction[0]]]
        points += [point for point in further if point is not None]
        if step <= len(helped):
            together = _step(_step(best, helped[0], dims, ordered) if step == 2 else together, helped[step - 1], dims,
                             ordered)
            points.append(together)
    return list(dict.fromkeys(points))


def _kicked(measured, rng):
    """A new point near the best: three coordinates are drawn anew; if that finds none, any new point."""
    best, free = measured.best_first()[0], np.flatnonzero(measured.dims > 1)
    for _ in range(32):                                # a small space may be measured nearly whole
        point, which = best.copy(), rng.permutation(free)[:3]
        point[which] = rng.integers(measured.dims[which])
        if not measured.knows(point):
            return point
    return measured.unseen(rng, 1)[0]


def _order_flags(ordered, dims):
    """`ordered` as (g,) bool, checked."""
    flags = np.asarray(ordered)
    if flags.dtype != bool or flags.shape not in ((), dims.shape):
        raise ValueError(f"ordered is {ordered}; expected True or False, or one of them for each of {len(dims)} "
                         "coordinates")
    return np.broadcast_to(flags, dims.shape)


def _point_inside(start, dims):
    """`start` as (g,) int64, checked."""
    point = np.asarray(start)
    if point.shape != dims.shape or point.dtype.kind not in "iu" or (point < 0).any() or (point >= dims).any():
        raise ValueError(f"start is {start}; expected one code per coordinate, below {dims.tolist()}")
    return point.astype(np.int64)
