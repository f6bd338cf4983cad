"""What a search has measured, what it may still measure, and what it reports.

An objective maps (k, g) int64 codes to (k,) costs. A lower cost is faster; np.inf marks an invalid configuration. Each
row is one measurement and counts against the budget. A cost model has the same form; its rows are queries, which are
cheap and are counted apart.
"""
from math import prod
from typing import NamedTuple

import numpy as np

from kit.checks import as_numbers, check_callable, check_whole, expect

ALIKE = 0.01               # measurements of a point that differ by a smaller share than this are alike
MOST_VALUES = 4096         # of a coordinate: droplet tries each one, and its process holds a square table of them


class SearchResult(NamedTuple):
    """What a search found and what it spent; p points with g coordinates each."""
    best: np.ndarray          # (g,) int64; the point with the lowest mean; with `confirm`, of those that are confirmed
    best_cost: float          # its mean, which flatters a noisy winner; np.inf if no point was valid
    trace: np.ndarray         # (measurements,) lowest mean so far; np.inf before a valid point. It rises when the best
    #                           point is measured again and was slower, and may end below `best_cost` if the last points
    #                           could not be confirmed
    measurements: int         # rows asked of the objective
    queries: int              # rows asked of the model
    points: np.ndarray        # (p, g) int64, in the order measured, all different
    costs: np.ndarray         # (p,) mean over the measurements of each point


class Measured:
    """Measures each point once, and never more than the budget; arguments as of `random_search`.

    With `confirm` above 1, the best point is measured again until it `is_confirmed`.
    """

    def __init__(self, objective, dims, budget, confirm=1):
        self.dims = as_numbers("dims", dims, ("g",), "iu", 1, MOST_VALUES)
        expect(len(self.dims), "dims", self.dims, "the number of values of at least one coordinate")
        check_callable(locals(), "objective")
        check_whole(locals(), confirm=1, budget=1)
        self.objective, self.budget, self.confirmed = objective, budget, confirm
        self.size = prod(map(int, self.dims))          # Python integers: 9 ** 26 exceeds int64
        self.number, self.points, self.costs, self.samples, self.trace = {}, [], [], [], []

    @property
    def left(self):
        """Number of new points that can still be measured."""
        return min(self.budget - len(self.trace), self.size - len(self.points))

    def __call__(self, points):
        """Costs of `points` (k, g): known points are looked up, new ones measured; np.inf beyond the budget."""
        points = np.asarray(points, np.int64).reshape(-1, len(self.dims))
        keys, new, left = [point.tobytes() for point in points], [], self.left
        for key, point in zip(keys, points):
            if key not in self.number and len(new) < left:
                self.number[key] = len(self.points) + len(new)
                new.append(point.copy())
        if new:
            self._measure(new)
        return np.array([self.costs[self.number[key]] if key in self.number else np.inf for key in keys])

    def _measure(self, new):
        """Ask the objective for new points."""
        costs, best = self._asked(np.array(new)), self.trace[-1] if self.trace else np.inf
        self.trace += np.minimum.accumulate(np.minimum(costs, best)).tolist()
        self.points += new
        self.costs += costs.tolist()
        self.samples += [[cost] for cost in costs.tolist()]
        if self.confirmed > 1:                         # else nothing to do, and thousands of costs to look through
            self._confirm()

    def _confirm(self):
        """Measure the best point again until it was confirmed; another may be the best then, and be measured again."""
        while len(self.trace) < self.budget:
            best = int(np.argmin(self.costs))
            if self.costs[best] == np.inf or is_confirmed(self.samples[best], self.confirmed):
                return
            self.samples[best] += self._asked(self.points[best][None]).tolist()
            self.costs[best] = float(np.mean(self.samples[best]))
            self.trace.append(min(self.costs))

    def _asked(self, asked):
        """The objective's costs (k,) of `asked` (k, g), checked."""
        costs = np.asarray(self.objective(asked))
        if costs.dtype.kind not in "iufb":
            raise ValueError(f"the objective gave {costs!r:.80}; expected one number per point, np.inf for an invalid "
                             "one")
        costs = costs.astype(np.float64)
        if costs.shape != (len(asked),) or np.isnan(costs).any() or (costs == -np.inf).any():
            raise ValueError(f"the objective gave shape {costs.shape}, {np.isnan(costs).sum()} NaN and "
                             f"{(costs == -np.inf).sum()} -inf for {len(asked)} points; expected one cost per point, "
                             "np.inf for an invalid one")
        return costs

    def knows(self, point):
        """Whether `point` (g,) was measured."""
        return np.asarray(point, np.int64).tobytes() in self.number

    def best_first(self):
        """The measured points (p, g), the lowest cost first."""
        return np.array(self.points, np.int64).reshape(-1, len(self.dims))[np.argsort(self.costs, kind="stable")]

    def unseen(self, rng, k):
        """Up to `k` different points that were not measured, drawn uniformly; (k, g)."""
        k, drawn = min(k, self.size - len(self.points)), {}
        if self.size <= 4 * (k + len(self.points)):    # in a larger space at least 3 of 4 draws are new
            space = np.stack(np.unravel_index(rng.permutation(self.size), self.dims), axis=1)
            drawn = dict(enumerate([point for point in space if not self.knows(point)][:k]))
        while len(drawn) < k:
            for point in rng.integers(self.dims, size=(k - len(drawn), len(self.dims))):
                if not self.knows(point):
                    drawn[point.tobytes()] = point
        return np.array(list(drawn.values()), np.int64).reshape(-1, len(self.dims))

    def result(self, queries=0):
        """Everything measured, as a SearchResult."""
        points, costs = np.array(self.points, np.int64), np.array(self.costs)
        best = int(costs.argmin())
        if self.confirmed > 1:                         # else all are, and thousands of samples would be looked through
            best = lowest_confirmed(self.samples, self.confirmed)
        return SearchResult(points[best], float(costs[best]), np.array(self.trace), len(self.trace), queries, points,
                            costs)


def is_confirmed(costs, confirm):
    """Whether a point was measured often enough, so that it is not the best by luck.

    `costs` are its measurements. It is confirmed if there are `confirm` of them, or if two or more are alike: they
    differ by less than 1%.
    """
    if len(costs) >= confirm:
        return True
    return bool(len(costs) > 1 and np.isfinite(costs).all() and np.ptp(costs) / (abs(np.mean(costs)) or 1.0) < ALIKE)


def lowest_confirmed(samples, confirm):
    """The index of the point with the lowest mean of the confirmed ones; if none is, of those measured most often."""
    costs = np.array([np.mean(same) for same in samples])
    sure = np.array([is_confirmed(same, confirm) for same in samples]) & np.isfinite(costs)
    if not sure.any():                                 # one that failed when it was measured again confirms nothing
        often = np.array([len(same) for same in samples]) * np.isfinite(costs)
        sure = often == often.max()
    return int(np.where(sure, costs, np.inf).argmin())
