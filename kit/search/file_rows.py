"""Search among the rows of a file: for a measured program, only these configurations have a runtime."""
import numpy as np

from kit.search.budgets import Measured
from kit.search.gaussian_process import GaussianProcess

CANDIDATES = 512           # rows weighed at a time, half of them the model's best; takes milliseconds
BATCH, EXPLORED = 4, 8     # as in explore_then_droplet


def search_rows(runtime, codes, budget, rng, *, cost=None):
    """Explore-then-droplet among rows: `runtime` (c,), `codes` (c, g) all different, a model's `cost` (c,) or None."""
    codes, c = np.asarray(codes, np.int64), len(runtime)
    row_of = {row.tobytes(): i for i, row in enumerate(codes)}
    if len(row_of) < c:
        raise ValueError(f"{c} rows hold {len(row_of)} configurations; expected all different: merge the repeats")
    standard = None if cost is None else (cost - np.mean(cost)) / (np.std(cost) or 1.0)

    def looked_up(values):
        return lambda points: np.array([values[row_of[p.tobytes()]] if p.tobytes() in row_of else np.inf
                                        for p in points])
    measured = Measured(looked_up(runtime), codes.max(axis=0) + 1, min(budget, c))
    process = GaussianProcess(measured.dims, np.zeros(codes.shape[1], bool),
                              None if standard is None else looked_up(standard), rng)
    # first the model's best rows, or random ones
    unseen = rng.permutation(c) if cost is None else np.argsort(cost, kind="stable")
    chosen = np.arange(min(EXPLORED, -(-measured.budget // 4)))
    while True:
        measured(codes[unseen[chosen]])
        unseen = np.delete(unseen, chosen)
        if not measured.left or not len(unseen):
            return measured.result(0 if cost is None else c)
        # then the process chooses among the best of the rows that are left and random ones
        half = min(CANDIDATES // 2, len(unseen))
        others = rng.permutation(np.arange(half, len(unseen)))[:CANDIDATES - half]
        candidates = np.concatenate([np.arange(half), others])
        order = np.argsort(process.lower_bound(codes[unseen[candidates]], measured), kind="stable")
        chosen = candidates[order[:min(BATCH, measured.left)]]
