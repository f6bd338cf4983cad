"""Scores of several models and seeds on the same graphs, and the rows of tables that notebooks make of them."""
import numpy as np

from kit.noise import bootstrap_interval, noise_ceiling
from kit.prune import config_ids

SCORE_COLUMNS = ("collection", "model", "score", "low", "high", "graphs", "seeds", "split")     # of scores.csv


def scores_of(by_seed, known, score):
    """How well each seed of a model ranks the graphs whose runtimes are known.

    Parameters
    ----------
    by_seed : sequence of dict of str to ndarray, shape (c,)
        One {ID: cost} per seed.
    known : dict of str to ndarray, shape (c,)
        {ID: runtime}, in the order of the result's columns.
    score : callable
        (cost, runtime) -> float.

    Returns
    -------
    ndarray, shape (seeds, graphs)

    Examples
    --------
    >>> from kit.metrics import kendall_tau
    >>> scores_of([{"a": [1.0, 2.0]}, {"a": [2.0, 1.0]}], {"a": [10, 20]}, kendall_tau)
    array([[ 1.],
           [-1.]])
    """
    return np.array([[score(costs[name], runtime) for name, runtime in known.items()] for costs in by_seed])


def score_row(scores, ceilings=None):
    """Scores as a part of a row of a table: mean, 95% interval over graphs and seeds, how many there are.

    Parameters
    ----------
    scores : array_like, shape (seeds, graphs)
    ceilings : sequence of float, optional
        Of each graph; their mean comes before the numbers of graphs and seeds. NaN: unknown.

    Returns
    -------
    dict of str to float
        The keys "score", "low", "high", "graphs" and "seeds", and "ceiling" if `ceilings` are given.
    """
    scores = np.asarray(scores)
    low, high = bootstrap_interval(scores)
    ceiling = {} if ceilings is None else {"ceiling": np.mean(ceilings)}
    return {"score": scores.mean(), "low": low, "high": high, **ceiling, "graphs": scores.shape[1],
            "seeds": scores.shape[0]}


def lead_row(ours, scores):
    """How far a model `ours` leads other scores on the same graphs, as a part of a row: mean and 95% interval.

    Parameters
    ----------
    ours : ndarray, shape (graphs,)
    scores : array_like, shape (seeds, graphs)

    Returns
    -------
    dict of str to float
        The keys "lead", "lead low" and "lead high".
    """
    lead = ours - np.asarray(scores)
    low, high = bootstrap_interval(lead)
    return {"lead": lead.mean(), "lead low": low, "lead high": high}


def mean_ceiling(graphs):
    """The mean noise ceiling of layout graphs by the runtimes of their repeated configurations; NaN without repeats."""
    return np.mean([noise_ceiling(g.config_runtime, config_ids(g)).mean for g in graphs])
