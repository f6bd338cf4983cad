"""Scores of several models and seeds on the same graphs, and the tables that notebooks make of them."""
from itertools import product

import numpy as np
import pandas as pd

from kit.metrics import default_tile_score, kendall_tau, score_for
from kit.noise import bootstrap_interval, noise_ceiling
from kit.prune import config_ids

SCORE_COLUMNS = ("collection", "model", "score", "low", "high", "graphs", "seeds", "split")     # of scores.csv


def score_table(predictions, data, against=None, score=None):
    """How well each kind of model ranks the graphs that it was not trained on.

    Parameters
    ----------
    predictions : lab.predictions.Predictions
    data : lab.data.Data
        Its `scored` split, where the runtimes are known.
    against : str, optional
        A kind; the table then has its lead over each kind, with the interval.
    score : callable, optional
        (cost (c,), runtime (c,)) -> float; None: the competition's score of each collection.

    Returns
    -------
    DataFrame
        A row per collection and kind: mean score, its 95% interval over graphs and seeds, the lead, the noise ceiling,
        and how many graphs and seeds there are. In `tile:xla` of the data set, a row is the compiler's own choice.
    dict
        {collection: {kind: {ID: score of each seed}}}
    """
    rows, by_graph = [], {}
    for c in predictions.collections:
        costs = predictions.seeds(c, data.scored)                # {kind: [{ID: cost} of each seed]}
        known = {i: runtime for i, runtime in data.runtimes(c, data.scored).items()
                 if all(i in own for seeds in costs.values() for own in seeds)}
        if not known or not costs:
            continue
        rule, ceilings = score or score_for(c, strict=True), data.ceilings(c)
        scores = {kind: scores_of(seeds, known, rule) for kind, seeds in costs.items()}
        if c == "tile:xla" and data.source == "real files":      # the measured schedules were drawn: none is a default
            scores["compiler's default"] = np.array([[default_tile_score(runtime) for runtime in known.values()]])
        by_graph[c] = {kind: dict(zip(known, own.T)) for kind, own in scores.items()}
        for kind, own in scores.items():
            row = score_row(own, [ceilings.get(i, np.nan) for i in known])
            lead = lead_row(scores[against].mean(axis=0), own) if against in scores else {}
            rows.append({"collection": c, "model": kind, **{name: row.pop(name) for name in ("score", "low", "high")},
                         **lead, **row, "split": f"{data.scored}, {data.source}"})
    return pd.DataFrame(rows, columns=None if rows else SCORE_COLUMNS), by_graph


def kind_scores(kinds, known, collection):
    """{kind: mean score} of {kind: {ID: cost (c,)}} on graphs {ID: runtime (c,)}; NaN without a graph."""
    score = score_for(collection, strict=True)
    return {kind: np.mean([score(own[i], runtime) for i, runtime in known.items()]) if known else np.nan
            for kind, own in kinds.items()}


def rank_alikeness(predictions, data):
    """How alike the kinds of models order: {collection: (kinds, matrix of the mean Kendall's tau between two members)}.

    On validation graphs, or on test graphs where there are none. On the diagonal: two seeds; NaN with one.
    """
    found = {}
    for c in predictions.collections:
        members, kinds = predictions.members(c), predictions.kinds(c)
        split = "valid" if all("valid" in own for own in members.values()) else "test"
        matrix = np.full((len(kinds), len(kinds)), np.nan)
        for (y, ours), (x, others) in product(enumerate(kinds.values()), repeat=2):
            taus = [kendall_tau(cost, members[b][split][i]) for a in ours for b in others if a != b
                    for i, cost in members[a][split].items()]
            if taus:
                matrix[y, x] = np.nan_to_num(taus).mean()        # nan: all costs of a graph are equal
        found[c] = [*kinds], matrix
    return found


def side_by_side(table):
    """A table of `score_table` for readers: a row per kind, a column per collection, "score (low to high)"."""
    if not len(table):
        return table
    ends = table[["score", "low", "high"]].to_numpy(dtype=float)
    cells = [f"{mean:.3f}" + f" ({low:.3f} to {high:.3f})" * bool(low <= high) for mean, low, high in ends]
    shown = table.assign(cell=cells).pivot_table("cell", "model", "collection", "first", sort=False).fillna("")
    ceilings = table.groupby("collection", sort=False)["ceiling"].first().map("{:.3f}".format).replace("nan", "")
    return pd.concat([shown, pd.DataFrame([ceilings], index=["noise ceiling"])])


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
