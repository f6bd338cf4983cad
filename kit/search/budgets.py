"""What a search has measured and what it reports.

The objective is slow: (k, g) int64 codes -> (k,) costs, lower is faster, np.inf for an invalid configuration. Each of
its rows is one measurement and counts against the budget. A model of the same form is cheap: its rows are queries.
"""
from math import prod
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr


class SearchResult(NamedTuple):
    """What a search found, and what it took; p points of g coordinates."""
    best: np.ndarray          # (g,) int64; the point of the lowest mean
    best_cost: float          # mean of its repeats, which flatters a noisy best; np.inf if no point was valid
    trace: np.ndarray         # (measurements,) best_cost so far; np.inf before a valid point has all its repeats
    measurements: int         # rows asked of the objective
    queries: int              # rows asked of the model
    points: np.ndarray        # (p, g) int64, in the order measured, all different
    costs: np.ndarray         # (p,) mean of each one's repeats


class Measured:
    """Asks the objective for each point once, with its repeats, and never for more than the budget.

    Parameters
    ----------
    objective : callable
        (k, g) int64 -> (k,) costs.
    dims : sequence of int, shape (g,)
        How many values each coordinate has; codes are 0 to dims - 1.
    budget : int
        Measurements, repeats included.
    repeats : int
        Measurements of each point; its cost is their mean. They are asked in rounds, so that a drift of the machine
        hits all points of a batch alike.
    """

    def __init__(self, objective, dims, budget, repeats=1):
        self.dims = np.asarray(dims)
        if self.dims.ndim != 1 or not len(self.dims) or self.dims.dtype.kind not in "iu" or (self.dims < 1).any():
            raise ValueError(f"dims is {dims}; expected how many values, at least 1, each coordinate has")
        if not 1 <= repeats <= budget:
            raise ValueError(f"budget is {budget} and repeats is {repeats}; expected at least 1 repeat, and a budget "
                             "for the repeats of at least 1 point")
        self.objective, self.budget, self.repeats = objective, budget, repeats
        self.size = prod(map(int, self.dims))          # Python's int: 9 ** 26 passes int64
        self.number, self.points, self.costs, self.samples, self.trace = {}, [], [], [], []

    @property
    def left(self):
        """How many new points can still be measured."""
        return min((self.budget - len(self.trace)) // self.repeats, self.size - len(self.points))

    def __call__(self, points):
        """Costs of `points` (k, g): known ones are looked up, the others measured; np.inf beyond the budget."""
        points = np.asarray(points, np.int64).reshape(-1, len(self.dims))
        keys, new, left = [point.tobytes() for point in points], [], self.left
        for key, point in zip(keys, points):
            if key not in self.number and len(new) < left:
                self.number[key] = len(self.points) + len(new)
                new.append(point.copy())
        if new:
            asked = np.tile(new, (self.repeats, 1))
            costs = np.asarray(self.objective(asked), np.float64)
            if costs.shape != (len(asked),) or np.isnan(costs).any() or (costs == -np.inf).any():
                raise ValueError(f"the objective gave shape {costs.shape}, {np.isnan(costs).sum()} NaN and "
                                 f"{(costs == -np.inf).sum()} -inf for {len(asked)} points; expected one cost each, "
                                 "np.inf for an invalid point")
            samples = costs.reshape(self.repeats, -1).T
            means, best = samples.mean(axis=1), self.trace[-1] if self.trace else np.inf
            self.trace += [best] * (len(asked) - len(new)) + np.minimum.accumulate(np.minimum(means, best)).tolist()
            self.points += new
            self.costs += means.tolist()
            self.samples += list(samples)
        return np.array([self.costs[self.number[key]] if key in self.number else np.inf for key in keys])

    def knows(self, point):
        """Whether `point` (g,) was measured."""
        return np.asarray(point, np.int64).tobytes() in self.number

    def best_first(self):
        """The points (p, g) in the order of their costs."""
        return np.array(self.points, np.int64).reshape(-1, len(self.dims))[np.argsort(self.costs, kind="stable")]

    def faster(self, point, than, p_value):
        """Whether `point` has the lower mean and, where both have repeats, Welch's t-test agrees."""
        new, old = (self.samples[self.number[p.tobytes()]] for p in (point, than))
        if new.mean() >= old.mean():
            return False
        if self.repeats == 1 or np.isinf(old).any():
            return True
        one, other = new.var(ddof=1), old.var(ddof=1)                # times the same 1 / repeats
        if one + other == 0:
            return True
        t = (new.mean() - old.mean()) / np.sqrt((one + other) / self.repeats)
        freedom = (self.repeats - 1) * (one + other) ** 2 / (one ** 2 + other ** 2)
        return bool(2 * stdtr(freedom, t) <= p_value)

    def unseen(self, rng, k):
        """Up to `k` points that were not measured, all different, drawn uniformly; (k, g)."""
        k, drawn = min(k, self.size - len(self.points)), {}
        if self.size <= 4 * (k + len(self.points)):    # else at least 3 of 4 draws are new
            space = np.stack(np.unravel_index(rng.permutation(self.size), self.dims), axis=1)
            drawn = dict(enumerate([point for point in space if not self.knows(point)][:k]))
        while len(drawn) < k:
            for point in rng.integers(self.dims, size=(k - len(drawn), len(self.dims))):
                if not self.knows(point):
                    drawn[point.tobytes()] = point
        return np.array(list(drawn.values()), np.int64).reshape(-1, len(self.dims))

    def result(self, queries=0):
        """All of it, as a SearchResult."""
        points, costs = np.array(self.points, np.int64), np.array(self.costs)
        best = costs.argmin()
        return SearchResult(points[best], float(costs[best]), np.array(self.trace), len(self.trace), queries, points,
                            costs)
