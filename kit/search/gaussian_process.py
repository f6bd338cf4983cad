"""A Gaussian process of the cost over codes: it says which points to measure next.

Own code rather than scikit-learn's GaussianProcessRegressor, because its kernels compare numbers. Here codes may be
categories, and a cost model's prediction is part of the kernel. The only fit is one linear solve.
"""
import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

MOST_REMEMBERED = 300      # measured points in the solve, which then takes milliseconds; a kernel's trial takes seconds
REFERENCE_QUERIES = 256    # random points that tell the scale of a model's costs
INVALID = 3.0              # standardised cost of points that the model calls invalid
NOISE = 0.05               # variance of one measurement; the prior's is 2


class GaussianProcess:
    """Learns the cost from few measurements, with a cost model's help, and also where the model is wrong."""

    def __init__(self, dims, ordered, model, rng):
        self.dims, self.model = dims, model
        self.queries, self.centre, self.scale = 0, 0.0, 1.0
        self.tables = [_code_features(n, order) for n, order in zip(dims, ordered)]
        self.known_opinions = np.zeros((0, 1))         # of the measured points
        if model is not None:
            reference = np.asarray(model(rng.integers(dims, size=(REFERENCE_QUERIES, len(dims)))), np.float64)
            reference, self.queries = reference[np.isfinite(reference)], REFERENCE_QUERIES
            if len(reference):
                self.centre, self.scale = reference.mean(), reference.std() or 1.0

    def opinions(self, points):
        """The model's standardised costs of `points`; (k, 1)."""
        if self.model is None:
            return np.zeros((len(points), 1))
        self.queries += len(points)
        cost = (np.asarray(self.model(points), np.float64)[:, None] - self.centre) / self.scale
        return np.where(cost < np.inf, cost, INVALID)

    def kernel(self, a, b, opinions_a, opinions_b):
        """Prior covariance of points `a` (j, g) and `b` (k, g); (j, k)."""
        # the share of coordinates that are alike; a steeper function of this share, for costs that are not additive;
        # and the product of the model's costs, which counts for more as measurements confirm the model
        a, b = (np.concatenate([table[points[:, i]] for i, table in enumerate(self.tables)], axis=1)
                for points in (a, b))
        alike = a @ b.T / len(self.dims)
        # weights: the best of a few on random landscapes, where a factor of 2 in any of them hardly mattered
        return alike + np.exp(4 * (alike - 1)) + 2 * opinions_a @ opinions_b.T

    def lower_bound(self, points, measured):
        """Mean minus standard deviation of the cost of `points` (k, g); the lowest are worth measuring first."""
        # the model is asked once, about the points measured since the last call and about `points`
        new = np.array(measured.points[len(self.known_opinions):], np.int64).reshape(-1, len(self.dims))
        opinions = self.opinions(np.concatenate([new, points]))
        self.known_opinions = np.concatenate([self.known_opinions, opinions[:len(new)]])
        asked = opinions[len(new):]
        # an invalid point counts as the slowest valid one; only the fastest points are remembered
        cost = np.array(measured.costs)
        valid = np.isfinite(cost)
        cost = np.where(valid, cost, cost[valid].max() if valid.any() else 0.0)
        few = np.sort(np.argsort(cost, kind="stable")[:MOST_REMEMBERED])
        # ranks as normal quantiles: only the order of costs counts
        normal = ndtri(rankdata(cost[few]) / (len(few) + 1))
        seen, known = np.array([measured.points[i] for i in few]), self.known_opinions[few]
        # posterior mean and variance, in one solve for both
        cross = self.kernel(seen, points, known, asked)
        gram = self.kernel(seen, seen, known, known) + NOISE * np.eye(len(seen))
        solved = np.linalg.solve(gram, np.column_stack([normal, cross]))
        variance = 2 + 2 * asked[:, 0] ** 2 - (cross * solved[:, 1:]).sum(axis=0)
        return cross.T @ solved[:, 0] - np.sqrt(np.maximum(variance, 0))


def _code_features(n, ordered):
    """Features (n, w) of a coordinate's values: two rows have the product 1 if equal, 0 if as different as possible."""
    if n == 1 or not ordered:
        return np.eye(n)
    passed = np.tri(n, n - 1, -1)                      # steps counted from below; from above: 1 - passed
    return np.hstack([passed, 1 - passed]) / np.sqrt(n - 1)
