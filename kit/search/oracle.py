"""What a search may measure: of sample data any configuration, of a file of measured programs only its rows.

Codes are those of the file: a configuration is one code per group, and a group has the codes that the file shows.
"""
import numpy as np

from kit.prune import config_ids
from kit.sample import layout_simulator
from kit.search.budgets import Measured
from kit.search.descent import Beliefs

CANDIDATES = 512           # rows weighed at a time, half of them the model's best: milliseconds, like descent's memory
BATCH, EXPLORED = 4, 8     # as in explore_then_droplet
REPEATED = 10              # the data set measures the default about 40 times a file; a file's part may hold fewer


def search_space(graph):
    """How many codes each group of a layout file has.

    Parameters
    ----------
    graph : LayoutGraph

    Returns
    -------
    ndarray, shape (g,), int64
        The `dims` of kit/search/strategies.py.
    """
    return graph.config_codes.max(axis=0).astype(np.int64) + 1


def simulated_runtime(graph):
    """The objective of a program of the sample data: the true runtime of any configuration, without noise.

    Parameters
    ----------
    graph : LayoutGraph
        Whole: of a pruned one the simulator would see less than there is.

    Returns
    -------
    callable
        (k, g) int codes -> (k,) float64, ns.
    """
    run = layout_simulator(graph.node_feat, graph.node_opcode, graph.edge_index, graph.node_config_ids)
    nodes = np.arange(len(graph.node_group))

    def runtime(points):
        return 1e9 * run(graph.code_rows[nodes, np.asarray(points)[:, graph.node_group]])
    return runtime


def default_codes(graph):
    """The compiler's default: the configuration that a file measures most often.

    Parameters
    ----------
    graph : LayoutGraph
        As it was read, with its repeats.

    Returns
    -------
    ndarray, shape (g,), int64, or None
        None: no configuration was measured ten times, so the file does not tell.
    """
    label = config_ids(graph)
    repeats = np.bincount(label)
    if repeats.max() < REPEATED:
        return None
    return graph.config_codes[np.argmax(label == repeats.argmax())].astype(np.int64)


def search_rows(runtime, codes, budget, rng, *, cost=None):
    """`explore_then_droplet` where only the rows of a file can be measured.

    The first rows are random or, with a model, its best. Then a Gaussian process of all runtimes so far, of which
    the model is a part, chooses four rows at a time among the model's best and random ones.

    Parameters
    ----------
    runtime : ndarray, shape (c,)
        Measured.
    codes : ndarray, shape (c, g)
        All different.
    budget : int
        Rows measured; fewer where there are fewer.
    rng : numpy.random.Generator
    cost : ndarray, shape (c,), optional
        The model's.

    Returns
    -------
    SearchResult
        Its `queries` are the rows that the model ranked.

    Raises
    ------
    ValueError
        If the budget is below 1, or a configuration stands in two rows.

    Examples
    --------
    >>> codes = np.stack(np.unravel_index(np.arange(60), (4, 3, 5)), axis=1)
    >>> search_rows(codes.sum(axis=1), codes, 25, np.random.default_rng(0)).best.tolist()
    [0, 0, 0]
    """
    codes, c = np.asarray(codes, np.int64), len(runtime)
    row_of = {row.tobytes(): i for i, row in enumerate(codes)}
    if len(row_of) < c:
        raise ValueError(f"{c} rows hold {len(row_of)} configurations; expected all different: merge the repeats")
    standard = None if cost is None else (cost - np.mean(cost)) / (np.std(cost) or 1.0)

    def looked_up(values):
        return lambda points: np.array([values[row_of[p.tobytes()]] if p.tobytes() in row_of else np.inf
                                        for p in points])
    measured = Measured(looked_up(runtime), codes.max(axis=0) + 1, min(budget, c))
    beliefs = Beliefs(measured.dims, np.zeros(codes.shape[1], bool),
                      None if standard is None else looked_up(standard), rng)
    unseen = rng.permutation(c) if cost is None else np.argsort(cost, kind="stable")
    chosen = np.arange(min(EXPLORED, -(-measured.budget // 4)))
    while True:
        measured(codes[unseen[chosen]])
        unseen = np.delete(unseen, chosen)
        if not measured.left or not len(unseen):
            return measured.result(0 if cost is None else c)
        half = min(CANDIDATES // 2, len(unseen))
        others = rng.permutation(np.arange(half, len(unseen)))[:CANDIDATES - half]
        candidates = np.concatenate([np.arange(half), others])
        order = np.argsort(beliefs.bound(codes[unseen[candidates]], measured), kind="stable")
        chosen = candidates[order[:min(BATCH, measured.left)]]
