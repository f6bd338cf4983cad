"""Combine the costs of several models or seeds, after their scales are made equal: only the order is scored."""
from collections.abc import Mapping

import numpy as np
from scipy.stats import rankdata

from kit.checks import as_numbers, check_callable, check_number, check_whole, expect

# for `choose_weights`: weights of kinds of `kit.recipes` before a validation graph speaks, 1 for other kinds. Those of
# the layout models were chosen by leaving out families of measured training programs (notebooks/studies.md).
# "frequency" helps only where validation graphs say so
PRIOR = {"token": 10, "tile": 10, "lightgbm": 4, "additive": 10, "gnn": 4, "frequency": 0}


def _stacked_costs(costs, weights):
    """Checked float64 arrays: costs (models, c) and weights (models,)."""
    rows = [np.asarray(cost) for cost in (costs if np.iterable(costs) else [costs])]
    if not rows or any(row.ndim != 1 or row.shape != rows[0].shape or row.dtype.kind not in "iuf" for row in rows):
        shapes = ", ".join(str(row.shape) for row in rows) or "of nothing"
        raise ValueError(f"costs have shapes {shapes}; expected numbers (c,), the same for every model")
    stacked = np.stack(rows).astype(np.float64)
    nan = np.isnan(stacked).sum(axis=1)
    if nan.any():
        raise ValueError(f"costs of model {nan.argmax()} have {nan.max()} NaN among {stacked.shape[1]} values")
    weights = as_numbers("weights", np.ones(len(rows)) if weights is None else weights, (len(rows),), low=0)
    expect(weights.any(), "weights", weights.tolist(), "a value above 0")
    return stacked, weights


def mean_rank(costs, weights=None):
    """Mean rank of each configuration over models; the scale of a model's costs does not matter.

    Parameters
    ----------
    costs : sequence of ndarray, shape (models, c)
        Costs of one graph, one row per model; lower is faster. Infinite costs are ranked first or last.
    weights : sequence of float, shape (models,)
        None: all equal.

    Returns
    -------
    ndarray, shape (c,)
        The mean rank, as a cost: 1 (first for every model) to c. Equal costs of a model share their mean rank.

    Raises
    ------
    ValueError
        If there is no model, the lengths differ, a cost is NaN, or the weights are not one finite value >= 0 per model
        with a sum > 0.

    Examples
    --------
    >>> mean_rank([[0.1, 0.2, 0.3], [50.0, 70.0, 50.0]]).tolist()
    [1.25, 2.5, 2.25]
    """
    stacked, weights = _stacked_costs(costs, weights)
    return weights @ rankdata(stacked, axis=1) / weights.sum()       # equal weights: exact, so ties stay ties


def mean_zscore(costs, weights=None):
    """Mean standardised cost of each configuration over models; unlike ranks, it keeps the sizes of differences.

    Parameters
    ----------
    costs, weights
        As for `mean_rank`, but finite.

    Returns
    -------
    ndarray, shape (c,)
        The mean as a cost, in standard deviations; a model whose costs are all equal adds 0.

    Raises
    ------
    ValueError
        As `mean_rank`, and if a cost is infinite.

    Examples
    --------
    >>> mean_zscore([[1.0, 2.0, 3.0, 4.0], [7.0, 7.0, 7.0, 7.0]]).round(2).tolist()
    [-0.67, -0.22, 0.22, 0.67]
    """
    stacked, weights = _stacked_costs(costs, weights)
    if np.isinf(stacked).any():
        raise ValueError(f"costs have {np.isinf(stacked).sum()} infinite values; mean_rank takes them")
    # not scipy.stats.zscore: it makes equal costs nan, and very large costs overflow in its squares
    constant = stacked.min(axis=1) == stacked.max(axis=1)    # exactly: their mean may be off by a rounding
    stacked = np.where(constant[:, None], 0, stacked - stacked.mean(axis=1, keepdims=True))
    stacked /= np.where(constant, 1, np.abs(stacked).max(axis=1))[:, None]    # squares stay in range
    return weights @ (stacked / np.where(constant, 1, stacked.std(axis=1))[:, None]) / weights.sum()


def combine(predictions, how=mean_rank, weights=None):
    """Combine the predictions of several models, graph by graph.

    Parameters
    ----------
    predictions : sequence of dict of str to ndarray
        One {ID: cost (c,)} per model, all with the same IDs.
    how : callable
        `mean_rank`, `mean_zscore`, or any (costs, weights) -> cost.
    weights : sequence of float, shape (models,)
        None: all equal.

    Returns
    -------
    dict of str to ndarray
        {ID: cost (c,)}, in the order of the first prediction.

    Raises
    ------
    ValueError
        If there is no prediction, the IDs differ, or the costs of a graph cannot be combined; the message names its ID.

    Examples
    --------
    >>> combine([{"tile:xla:a": [3.0, 1.0]}, {"tile:xla:a": [9.0, 2.0]}])
    {'tile:xla:a': array([2., 1.])}
    """
    if isinstance(predictions, Mapping) or not np.iterable(predictions):
        predictions = [predictions]
    predictions = list(predictions)
    if not predictions or not all(isinstance(prediction, Mapping) for prediction in predictions):
        raise ValueError(f"no prediction to combine, predictions is {predictions!r:.60}; expected one {{ID: cost}} per "
                         "model")
    for number, prediction in enumerate(predictions):
        lacking, extra = set(predictions[0]) - set(prediction), set(prediction) - set(predictions[0])
        if lacking or extra:
            raise ValueError(f"prediction {number} differs from prediction 0: "
                             + "; ".join(f"{word} {len(ids)} ID, the first {min(ids, key=str)}" for word, ids in
                                         (("it lacks", lacking), ("it alone has", extra)) if ids))
    check_callable(locals(), "how")
    combined = {}
    for name in predictions[0]:
        try:
            costs = [prediction[name] for prediction in predictions]
            combined[name] = as_numbers(f"result of {getattr(how, '__name__', how)}", how(costs, weights),
                                        (len(costs[0]),))
        except ValueError as fault:
            raise ValueError(f"{name}: {fault}") from fault
    return combined


def choose_weights(kinds, runtimes, score, rounds=10, prior=None, strength=0.05):
    """Choose a weight for each kind of model, by its scores on graphs whose runtimes are known, and by a prior.

    Greedy forward selection with replacement: start with the best of the prior's mix and each kind alone, then add the
    one of these (again) with which the mean does best. The best of all means gives the weights (Caruana et al.,
    Ensemble selection from libraries of models, ICML 2004, doi:10.1145/1015330.1015432). A mean is judged by its mean
    score minus a penalty: `strength` / (number of graphs) x the share of the weight that differs from the prior. So one
    graph must say much, and many graphs little, to move the weights; without a graph, the weights are the prior.

    Parameters
    ----------
    kinds : dict of str to dict of str to ndarray
        {kind: {ID: cost (c,)}} on one scale: combined over seeds by `mean_zscore` or `mean_rank`.
    runtimes : dict of str to ndarray
        {ID: measured runtime (c,)} of graphs that no model was trained on, or that each model ranked out of fold; {} if
        there are none. NaN for a configuration that `score` leaves out.
    score : callable
        (cost (c,), runtime (c,)) -> float, higher is better, such as `kit.metrics.kendall_tau`.
    rounds : int
        Number of terms in the last mean.
    prior : dict of str to float, optional
        {kind: weight >= 0}, relative to each other; a kind without a prior has 1. None, or 0 for all kinds: all equal.
    strength : float
        How much a single graph must gain in score to move the whole weight away from the prior. 0: the graphs alone
        decide. The default was chosen for Kendall's tau on simulated runtimes (notebooks/studies.md).

    Returns
    -------
    dict of str to float
        {kind: weight in [0, 1]}; the weights sum to 1.

    Raises
    ------
    ValueError
        If there is no kind or no round, a kind lacks an ID or has costs of another length, a score is not finite, or
        the prior of the kinds is not finite or negative.

    Examples
    --------
    >>> good, poor = {"a": np.array([1.0, 2.0, 4.0, 3.0])}, {"a": np.array([2.0, 1.0, 2.5, 5.0])}
    >>> def in_order(cost, runtime):
    ...     return float((np.argsort(cost) == np.argsort(runtime)).mean())
    >>> choose_weights({"good": good, "poor": poor}, {"a": np.array([1.0, 2.0, 3.0, 4.0])}, in_order)
    {'good': 0.5, 'poor': 0.5}
    >>> choose_weights({"good": good, "poor": poor}, {}, in_order, prior={"good": 3})
    {'good': 0.75, 'poor': 0.25}
    """
    check_whole(locals(), rounds=1)
    check_number(locals(), "a number of at least 0", "strength")
    check_callable(locals(), "score")
    kinds, runtimes = _checked_kinds(kinds, runtimes)
    expect(prior is None or isinstance(prior, Mapping), "prior", prior, "a dict {kind: weight} or None")
    start = as_numbers("prior", [(prior or {}).get(kind, 1) for kind in kinds], (len(kinds),), low=0).astype(float)
    start = start if start.any() else np.ones(len(kinds))
    start /= start.sum()
    added, best = np.zeros(len(kinds)), (-np.inf, start)
    for terms in range(1, rounds + 1) if runtimes else ():
        means = [(added + term) / terms for term in (start, *np.eye(len(kinds)))]
        moved = np.abs(np.array(means) - start).sum(axis=1) / 2                          # the share of the weight
        values = np.array([_mean_score(shares, kinds, runtimes, score) for shares in means])
        values -= strength / len(runtimes) * moved
        values = np.round(values, 12)            # values that differ by rounding alone are equal: the first is taken
        first = int(np.argmax(values))
        added = means[first] * terms
        best = max(best, (values[first], means[first]), key=lambda found: found[0])
    return dict(zip(kinds, best[1].tolist()))


def _checked_kinds(kinds, runtimes):
    """Checked copies of both arguments of `choose_weights`, each kind with the graphs of `runtimes` alone."""
    expect(isinstance(kinds, Mapping) and kinds, "kinds", kinds, "a dict with at least one entry")
    expect(isinstance(runtimes, Mapping), "runtimes", runtimes, "a dict")
    runtimes = {name: _checked_runtime(name, runtime) for name, runtime in runtimes.items()}
    checked = {}
    for kind, costs in kinds.items():
        expect(isinstance(costs, Mapping) and (costs or not runtimes), f"costs of {kind}", costs,
               "a dict with at least one entry")
        if lacking := runtimes.keys() - costs.keys():
            raise ValueError(f"{kind} has no costs of {len(lacking)} graphs, the first {min(lacking)}")
        checked[kind] = {name: as_numbers(f"{name}: costs of {kind}", costs[name], runtime.shape)
                         for name, runtime in runtimes.items()}
    return checked, runtimes


def _checked_runtime(name, runtime):
    """Runtimes as an array (c,); NaN stands for what `score` leaves out."""
    runtime = np.asarray(runtime)
    known = ~np.isnan(runtime) if runtime.ndim == 1 and runtime.dtype.kind == "f" else ...
    as_numbers(f"{name}: runtime", runtime[known], ("c",))
    return runtime


def _mean_score(shares, kinds, runtimes, score):
    """The mean score over graphs of the weighted sum of all kinds; ValueError if it is not finite."""
    mean = np.mean([score(sum(share * costs[name] for share, costs in zip(shares, kinds.values())), runtime)
                    for name, runtime in runtimes.items()])
    if not np.isfinite(mean):
        raise ValueError(f"the score of {dict(zip(kinds, shares.round(3).tolist()))} is {mean}; expected a finite one")
    return mean
