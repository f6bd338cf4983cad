"""How certain a score is: bootstrap intervals, and the ceiling that measurement noise puts on every model."""
import math
from typing import NamedTuple

import numpy as np
from scipy.stats import kendalltau

from kit.checks import as_numbers, check_callable, check_number, check_whole, checked_rng, expect

_EM_STEPS = 50           # in simulations, fewer steps leave noise in the truths, more steps change nothing
_BINS_PER_SIGMA = 4      # resolution of the grid of possible true log runtimes
_ROUNDING = 1e-12        # relative noise below this comes from float64 arithmetic, not from measurement


class NoiseCeiling(NamedTuple):
    """Best expected score on a graph; NaN and the reason if the data do not allow an estimate."""
    mean: float
    low: float               # 2.5% and 97.5% quantile of single evaluations (one measurement per row)
    high: float
    sigma: float             # relative noise of one measurement, 0.001 = 0.1%
    repeats: int             # measurements beyond the first of each configuration; sigma is estimated from them
    reason: str              # why there is no ceiling; "" if there is one


def bootstrap_interval(values, confidence=0.95, draws=2000, rng=None, families=None):
    """Percentile bootstrap interval of the mean over graphs, or over seeds and graphs.

    To compare two models on the same graphs, pass the differences `a - b`: the models differ if the interval excludes
    0. With few graphs the interval is too narrow: for 7 normal values, the 95% interval covers the true mean in 86% of
    cases.

    Parameters
    ----------
    values : ndarray, shape (graphs,) or (seeds, graphs)
        Scores. With two axes, seeds and graphs are both resampled, independently of each other.
    confidence : float
        Share of the bootstrap means that lie within the interval.
    draws : int
        Number of bootstrap samples.
    rng : numpy.random.Generator
        None: a new one with seed 0.
    families : sequence of str, optional
        Of each graph. The graphs of a family are then resampled together (block bootstrap), because their scores are
        alike. None: each graph is a family of its own.

    Returns
    -------
    (float, float)
        Lower and upper end; both NaN for a single graph or family, because one says nothing about others.

    Raises
    ------
    ValueError
        If `values` is empty, has another number of axes, or holds a value that is not finite, or `confidence` is
        outside 0 to 1, `draws` below 1, `rng` no generator, or there is not one family per graph.

    References
    ----------
    Efron, Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. For one axis, scipy.stats.bootstrap gives
    the same interval, but it cannot resample both the rows and the columns of a table.

    Examples
    --------
    >>> bootstrap_interval([0.5, 0.5, 0.5])
    (0.5, 0.5)
    """
    check_number(locals(), "a share, 0 to 1", "confidence")
    check_whole(locals(), draws=1)
    rng = checked_rng(rng, seed=0)
    values = as_numbers("values", values, ("seeds", "graphs") if np.ndim(values) == 2 else ("graphs",))
    expect(values.size, "values", values.tolist(), "at least one score")
    table = np.atleast_2d(values)                                         # (seeds, graphs)
    if families is None:
        blocks = np.arange(table.shape[1])
    else:
        expect(len(families) == table.shape[1], "families", list(families), f"one of each of {table.shape[1]} graphs")
        blocks = np.unique(families, return_inverse=True)[1].reshape(-1)
    size = np.bincount(blocks)                                            # (families,)
    if len(size) == 1:
        return math.nan, math.nan
    sums = np.stack([np.bincount(blocks, own) for own in table])          # (seeds, families)
    seeds, drawn = (rng.integers(n, size=(draws, n)) for n in sums.shape)
    means = sums[seeds[:, :, None], drawn[:, None, :]].mean(axis=1).sum(axis=1) / size[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def noise_ceiling(runtime, config_id, score=None, draws=50, rng=None, sigma=None):
    """Expected score of a model that knows the true mean runtime of every configuration; no model can expect more.

    The estimate uses the repeated measurements in one file. It assumes that measurements of a configuration are
    independent, that the relative noise is the same everywhere, and that configurations are exchangeable. In
    simulations with 150-3,000 configurations the error is at most 0.03 if true runtimes spread by more than one sigma.
    If they spread by a third of sigma, the estimate is 0.03-0.07 too high. So treat a low ceiling as an upper bound.

    Parameters
    ----------
    runtime : ndarray, shape (c,)
        Measured, in ns, or for tiles the normalised ratio; > 0.
    config_id : ndarray of int, shape (c,)
        Rows of the same configuration have the same ID.
    score : callable
        (cost, runtime) -> float, like the scores of `kit.metrics`; None: Kendall's tau-b.
    draws : int
        Number of simulated evaluations.
    rng : numpy.random.Generator
        None: a new one with seed 0.
    sigma : float
        Relative noise of a measurement, assumed normal; for files without repeats. None: estimated from repeats.

    Returns
    -------
    NoiseCeiling
        Its scores are NaN, and it has a reason, if no configuration is measured twice and `sigma` is None.

    Raises
    ------
    ValueError
        If the shapes differ, a runtime is not finite and > 0, an ID is no integer, or another argument is not as above.

    References
    ----------
    Kiefer, Wolfowitz, Consistency of the maximum likelihood estimator, Ann. Math. Stat. 27 (1956): how the distribution
    of the true runtimes is estimated. Here EM fits it and stops early.

    Examples
    --------
    >>> noise_ceiling([100, 200, 300], [0, 1, 2]).reason
    'no configuration is measured twice: pass sigma'
    """
    score = (lambda cost, runtime: kendalltau(cost, runtime).statistic) if score is None else score
    check_callable(locals(), "score")
    check_whole(locals(), draws=1)
    check_number(locals(), "a number of at least 0", *["sigma"] * (sigma is not None))
    runtime = as_numbers("runtime", runtime, ("c",))
    if not len(runtime) or runtime.min() <= 0:
        raise ValueError(f"runtime goes down to {min(runtime.tolist(), default='nothing')}; expected finite values > 0")
    config_id, rng = as_numbers("config_id", config_id, runtime.shape, "iu"), checked_rng(rng, seed=0)
    config = np.unique(config_id, return_inverse=True)[1].reshape(-1)
    count = np.bincount(config)
    repeats = len(runtime) - len(count)
    if sigma is None and repeats == 0:
        return NoiseCeiling(*[math.nan] * 4, 0, "no configuration is measured twice: pass sigma")
    # log runtimes around their mean: near 0 the grid of truths is exact
    centre = np.log(runtime).mean()
    log_runtime = np.log(runtime) - centre
    log_mean = np.bincount(config, log_runtime) / count
    residual = log_runtime - log_mean[config]
    noise = float(np.sqrt((residual ** 2).sum() / repeats)) if sigma is None else float(sigma)
    # errors to draw from: residuals of repeated configurations, widened because their own mean is subtracted
    pool = (residual * np.sqrt(count / np.maximum(count - 1, 1))[config])[count[config] > 1]
    posterior = _truth_posterior(log_mean, count, noise) if noise > _ROUNDING else None
    scores = np.empty(draws)
    for draw in range(draws):
        truth, error = log_mean, 0.0
        if posterior is not None:
            truth = _draw_truths(*posterior, noise, rng)
            error = rng.choice(pool, len(config)) if sigma is None else rng.normal(0, noise, len(config))
        scores[draw] = score(np.exp(centre + truth)[config], np.exp(centre + truth[config] + error))
    low, high = np.quantile(scores, [0.025, 0.975])
    reason = "the score of the truth itself is nan: too few different configurations" if np.isnan(low) else ""
    return NoiseCeiling(float(scores.mean()), float(low), float(high), noise, repeats, reason)


def _truth_posterior(log_mean, count, sigma):
    """Possible true log runtimes of each configuration, and their cumulative weights, both (configs, bins).

    Means of few measurements spread more than the truths, because they contain noise. EM finds the maximum-likelihood
    spread of the truths; it stops early. Shrinking all means towards one centre fails on real graphs, because their
    runtimes form a few narrow modes that are far apart.
    """
    step = sigma / _BINS_PER_SIGMA
    reach = np.arange(-4 * _BINS_PER_SIGMA, 4 * _BINS_PER_SIGMA + 1)
    bins = np.rint(log_mean / step).astype(np.int64)[:, None] + reach
    support, at = np.unique(bins, return_inverse=True)
    at = at.reshape(bins.shape)
    likelihood = -count[:, None] / 2 * ((bins * step - log_mean[:, None]) / sigma) ** 2
    likelihood = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    weight = np.ones(len(support))
    for _ in range(_EM_STEPS):
        posterior = likelihood * weight[at]
        posterior /= posterior.sum(axis=1, keepdims=True)
        weight = np.bincount(at.ravel(), posterior.ravel())
    return bins * step, posterior.cumsum(axis=1)


def _draw_truths(bins, cumulative, sigma, rng):
    """Draw one true log runtime per configuration (configs,), uniform within its bin."""
    pick = (cumulative < rng.random((len(bins), 1)) * cumulative[:, -1:]).sum(axis=1)
    return bins[np.arange(len(bins)), pick] + (rng.random(len(bins)) - 0.5) * sigma / _BINS_PER_SIGMA
