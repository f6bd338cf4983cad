"""Coordinate descent on codes, and the Gaussian process that tells it where to measure next."""
from itertools import islice

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

MOST_REMEMBERED = 300      # points that Beliefs fits: its solve then takes milliseconds, a kernel's trial 1 to 3 s
PROPOSALS_WEIGHED = 16     # of a model's best points not yet measured
REFERENCE_QUERIES = 256    # random points that tell the scale of a model's costs


def descend(measured, best, ordered, rng, batch, p_value, beliefs, proposed=()):
    """Droplet from `best` until the neighbourhood and speculation are spent, or the budget is."""
    cost, gain = measured(best[None])[0], {}           # direction -> change of the cost when last tried
    while measured.left:
        k = min(batch, measured.left)
        near = neighbours(best, measured.dims, ordered)
        near = {point: direction for point, direction in (near[i] for i in rng.permutation(len(near)))
                if not measured.knows(point)}
        far = [point for point in speculation(best, gain, measured.dims, ordered)
               if point not in near and not measured.knows(point)]
        if beliefs is None:
            room = max(k - len(near), k // 4)
            chosen = [*far[:room], *sorted(near, key=lambda point: gain.get(near[point], 0.0))][:k]
        else:
            unseen = (tuple(map(int, point)) for point in proposed if not measured.knows(point))
            # proposals are weighed beside these; where these are spent, a new start is worth more than a list
            local = [*near, *far]
            chosen = list(dict.fromkeys([*local, *islice(unseen, PROPOSALS_WEIGHED)])) if local else []
            order = np.argsort(beliefs.bound(np.array(chosen), measured), kind="stable") if chosen else []
            chosen = [chosen[i] for i in order[:k]]
        if not chosen:
            return
        for point, new in zip(chosen, measured(chosen)):
            if point in near:
                gain[near[point]] = new - cost if np.isfinite(new) else np.inf
        for point in map(np.array, chosen):
            best = point if measured.faster(point, best, p_value) else best
        cost = measured(best[None])[0]


def _step(point, direction, dims, ordered, step=1):
    """`point` after a step: a coordinate moved up or down if ordered, else set to a value; None if there is none."""
    i, to = direction
    to = int(point[i]) + step * to if ordered[i] else to
    if not 0 <= to < dims[i] or to == point[i]:
        return None
    return (*map(int, point[:i]), to, *map(int, point[i + 1:]))


def neighbours(point, dims, ordered):
    """[(neighbour, its direction)]; a direction is (coordinate, +-1) if ordered, else (coordinate, value)."""
    directions = [(i, to) for i, n in enumerate(dims) for to in ((-1, 1) if ordered[i] else range(n))]
    reached = [(_step(point, direction, dims, ordered), direction) for direction in directions]
    return [(there, direction) for there, direction in reached if there is not None]


def speculation(best, gain, dims, ordered):
    """Points two and more steps from `best`, along the directions that helped when last tried; most promising first."""
    helped = {}                                        # a coordinate's best direction alone
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


def kicked(measured, rng):
    """An unseen point near the best: three of its coordinates drawn anew, or anywhere if that finds none."""
    best, free = measured.best_first()[0], np.flatnonzero(measured.dims > 1)
    for _ in range(32):                                # a small space may be seen nearly whole
        point, which = best.copy(), rng.permutation(free)[:3]
        point[which] = rng.integers(measured.dims[which])
        if not measured.knows(point):
            return point
    return measured.unseen(rng, 1)[0]


def order_flags(ordered, dims):
    """(g,) bool."""
    flags = np.asarray(ordered)
    if flags.dtype != bool or flags.shape not in ((), dims.shape):
        raise ValueError(f"ordered is {ordered}; expected True or False, or one of them for each of {len(dims)} "
                         "coordinates")
    return np.broadcast_to(flags, dims.shape)


def point_inside(start, dims):
    """`start` as (g,) int64, checked."""
    point = np.asarray(start)
    if point.shape != dims.shape or point.dtype.kind not in "iu" or (point < 0).any() or (point >= dims).any():
        raise ValueError(f"start is {start}; expected one code of each coordinate, below {dims.tolist()}")
    return point.astype(np.int64)


class Beliefs:
    """A Gaussian process of the cost: learns from few measurements where the model is wrong.

    The kernel of two points adds up how alike they are, a steeper function of that for what is not additive, and
    the product of the model's costs, so that a model that measurements confirm has its say.

    Parameters
    ----------
    dims : ndarray, shape (g,)
    ordered : ndarray of bool, shape (g,)
        Where values nearer to each other are more alike.
    model : callable or None
        (k, g) int64 -> (k,) costs on any scale.
    rng : numpy.random.Generator
    """

    def __init__(self, dims, ordered, model, rng):
        self.dims, self.ordered, self.model, self.queries, self.known = dims, ordered, model, 0, np.zeros((0, 1))
        self.centre, self.scale = 0.0, 1.0
        if model is not None:
            reference = np.asarray(model(rng.integers(dims, size=(REFERENCE_QUERIES, len(dims)))), np.float64)
            reference, self.queries = reference[np.isfinite(reference)], REFERENCE_QUERIES
            if len(reference):
                self.centre, self.scale = reference.mean(), reference.std() or 1.0

    def opinion(self, points):
        """The model's standardised costs of `points`, 3 where it calls them invalid; (k, 1)."""
        if self.model is None:
            return np.zeros((len(points), 1))
        self.queries += len(points)
        cost = (np.asarray(self.model(points), np.float64)[:, None] - self.centre) / self.scale
        return np.where(cost < np.inf, cost, 3.0)

    def kernel(self, a, b, opinion_a, opinion_b):
        """Prior covariance of points `a` (j, g) and `b` (k, g); (j, k)."""
        apart = np.abs(a[:, None] - b) / np.maximum(self.dims - 1, 1)
        alike = np.where(self.ordered, 1 - apart, apart == 0).mean(axis=2)
        # weights: the best of a few on random landscapes, where a factor of 2 in any of them hardly mattered
        return alike + np.exp(4 * (alike - 1)) + 2 * opinion_a @ opinion_b.T

    def bound(self, points, measured):
        """A low but plausible cost of each of `points` (k, g): mean - deviation; lower is worth measuring first."""
        cost = np.array(measured.costs)
        self.known = np.concatenate([self.known, self.opinion(np.array(measured.points[len(self.known):], np.int64)
                                                             .reshape(-1, len(self.dims)))])
        valid = np.isfinite(cost)
        cost = np.where(valid, cost, cost[valid].max() if valid.any() else 0.0)
        few = np.sort(np.argsort(cost, kind="stable")[:MOST_REMEMBERED])
        cost, seen, opinion = cost[few], np.array(measured.points)[few], self.known[few]
        cost = ndtri(rankdata(cost) / (len(cost) + 1))
        theirs = self.opinion(points)
        cross = self.kernel(seen, points, opinion, theirs)
        noise = 0.05 * np.eye(len(seen))
        solved = np.linalg.solve(self.kernel(seen, seen, opinion, opinion) + noise, np.column_stack([cost, cross]))
        variance = 2 + 2 * theirs[:, 0] ** 2 - (cross * solved[:, 1:]).sum(axis=0)
        return cross.T @ solved[:, 0] - np.sqrt(np.maximum(variance, 0))
