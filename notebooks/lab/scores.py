"""Scores of several models and seeds on the same graphs, and the tables that notebooks make of them."""
from itertools import product

import numpy as np
import pandas as pd

from kit.ensemble import mean_zscore
from kit.metrics import default_tile_score, kendall_tau
from kit.noise import bootstrap_interval
from lab.data import deviations, distinct_tau, each_once, equal_distance_tau, speed_up, tau_ceiling

OTHERS = "tau of the file", "at equal distance", "first pick", "best of five"
SCORE_COLUMNS = ("collection", "model", "score", "low", "high", "graphs", "seeds", "split")     # of scores.csv


def score_table(predictions, data, against=None, score=None):
    """How well each kind of model ranks the graphs that it was not trained on.

    Parameters
    ----------
    predictions : lab.predictions.Predictions
    data : lab.data.Data
        Its `truth`. Of measured programs, each configuration counts once.
    against : str, optional
        A kind; the table then has its lead over each kind, with the interval.
    score : callable, optional
        (cost (c,), runtime (c,)) -> float, with the runtimes of `data.truth`; None: `data.score`.

    Returns
    -------
    DataFrame
        A row per collection and kind: mean score, its 95% interval over families of graphs and seeds, the lead, the
        noise ceiling, and how many graphs, families and seeds there are. In `tile:xla` of the data set, a row is the
        compiler's own choice. Layouts of measured programs have the means of `other_scores`, too.
    dict
        {collection: {kind: {ID: score of each seed}}}
    """
    rows, by_graph = [], {}
    for c in predictions.collections:
        costs = predictions.seeds(c, data.scored)                # {kind: [{ID: cost} of each seed]}
        known = {i: runtime for i, runtime in data.truth(c).items()
                 if all(i in own for seeds in costs.values() for own in seeds)}
        if not known or not costs:
            continue
        rule, ceilings, family_of = score or data.score(c), data.ceilings(c), data.families(c)
        families, more = [family_of[i] for i in known], {}
        scores = {kind: scores_of(seeds, known, rule) for kind, seeds in costs.items()}
        if c == "tile:xla" and data.source == "real files":      # the measured schedules were drawn: none is a default
            scores["compiler's default"] = np.array([[default_tile_score(runtime) for runtime in known.values()]])
        by_graph[c] = {kind: dict(zip(known, own.T)) for kind, own in scores.items()}
        if data.counts_once(c):
            more = {kind: other_scores(seeds, {i: data.named(c, data.scored)[i] for i in known})
                    for kind, seeds in costs.items()}
        for kind, own in scores.items():
            row = score_row(own, [ceilings.get(i, np.nan) for i in known], families)
            lead = lead_row(scores[against].mean(axis=0), own, families) if against in scores else {}
            rows.append({"collection": c, "model": kind, **{name: row.pop(name) for name in ("score", "low", "high")},
                         **lead, **row, **more.get(kind, {}), "split": f"{data.scored}, {data.source}"})
    return pd.DataFrame(rows, columns=None if rows else SCORE_COLUMNS), by_graph


def scores_of_rank(cost, graph):
    """What one rank of a measured program is worth, {name: value}.

    - "tau": Kendall's tau over distinct configurations, each with its mean runtime
    - "tau of the file": over its rows, as the competition counts them
    - "at equal distance": tau among configurations that differ from the default in equally many groups
    - "first pick", "best of five": the default's runtime / that of the fastest of the first, or of the first five
    """
    known, cost = each_once(graph), np.asarray(cost)
    once = ~np.isnan(known)
    return {"tau": distinct_tau(cost, known), "tau of the file": kendall_tau(cost, graph.config_runtime, strict=True),
            "at equal distance": equal_distance_tau(cost[once], known[once], deviations(graph)[once]),
            "first pick": speed_up(cost, graph, 1), "best of five": speed_up(cost, graph, 5)}


def other_scores(by_seed, graphs):
    """Means of `scores_of_rank` but for "tau", over seeds and graphs {ID: LayoutGraph}, geometric ones of the ratios.

    `by_seed`: {ID: cost (c,)} of each seed.
    """
    rows = [scores_of_rank(costs[i], graph) for costs in by_seed for i, graph in graphs.items()]
    arithmetic, geometric = (pd.DataFrame(rows)[[*names]].to_numpy() for names in (OTHERS[:2], OTHERS[2:]))
    return dict(zip(OTHERS, [*arithmetic.mean(axis=0), *np.exp(np.log(geometric).mean(axis=0))]))


def kind_scores(kinds, known, score):
    """{kind: mean score} of {kind: {ID: cost (c,)}} on graphs {ID: runtime (c,)}; NaN without a graph."""
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


def in_reverse(predictions, split="test"):
    """Lines that name each trained member that orders a graph against the mean of the others; no runtime is read.

    A training with bad luck may rank a program in reverse. Kinds that learn from no training graph are not asked.
    """
    lines = []
    for c in predictions.collections:
        learned = {row.member: row.costs for row in predictions.rows
                   if (row.collection, row.split, row.baseline) == (c, split, False) and row.trains_on}
        for member, own in learned.items():
            others = [costs for name, costs in learned.items() if name != member]
            against = {i: kendall_tau(cost, mean_zscore([costs[i] for costs in others]), strict=True)
                       for i, cost in own.items() if len(others) > 1}
            lines += [f"{i}: {member} orders it against the other members (tau {tau:.2f})"
                      for i, tau in against.items() if tau < 0]
    return lines


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


def score_row(scores, ceilings=None, families=None):
    """Scores as a part of a row of a table: mean, 95% interval over families of graphs and seeds, how many there are.

    Parameters
    ----------
    scores : array_like, shape (seeds, graphs)
    ceilings : sequence of float, optional
        Of each graph; their mean comes before the numbers of graphs and seeds. NaN: unknown.
    families : sequence of str, optional
        Of each graph. None: each graph is a family of its own.

    Returns
    -------
    dict of str to float
        The keys "score", "low", "high", "graphs" and "seeds", "ceiling" if `ceilings` are given, "families" if these
        are.
    """
    scores = np.asarray(scores)
    low, high = bootstrap_interval(scores, families=families)
    ceiling = {} if ceilings is None else {"ceiling": np.mean(ceilings)}
    number = {} if families is None else {"families": len({*families})}
    return {"score": scores.mean(), "low": low, "high": high, **ceiling, "graphs": scores.shape[1], **number,
            "seeds": scores.shape[0]}


def lead_row(ours, scores, families=None):
    """How far a model `ours` leads other scores on the same graphs, as a part of a row: mean and 95% interval.

    Parameters
    ----------
    ours : ndarray, shape (graphs,)
    scores : array_like, shape (seeds, graphs)
    families : sequence of str, optional
        As for `score_row`.

    Returns
    -------
    dict of str to float
        The keys "lead", "lead low" and "lead high".
    """
    lead = ours - np.asarray(scores)
    low, high = bootstrap_interval(lead, families=families)
    return {"lead": lead.mean(), "lead low": low, "lead high": high}


def mean_ceiling(graphs, once=False):
    """The mean noise ceiling of layout graphs, over all rows or each configuration `once`; NaN without repeats."""
    return np.mean([tau_ceiling(graph, once, draws=50) for graph in graphs])
