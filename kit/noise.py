"""How sure a score is: bootstrap intervals, and the ceiling that measurement noise puts on any model."""
import math
from typing import NamedTuple

import numpy as np
from scipy.stats import kendalltau

EM_STEPS = 50            # on simulated truths fewer leave noise in them, more add nothing but time
BINS_PER_SIGMA = 4       # grid of possible truths
ROUNDING = 1e-12         # relative noise below this is float64 arithmetic, not measurement


class NoiseCeiling(NamedTuple):
    """Best expected score on a graph; nan, and why, where the data cannot tell."""
    mean: float
    low: float               # 2.5% and 97.5% of single evaluations (one measurement of every row each)
    high: float
    sigma: float             # relative noise of one measurement, 0.001 = 0.1%
    repeats: int             # measurements beyond the first of their configuration: what sigma rests on
    reason: str              # why there is no ceiling; "" when there is one


def bootstrap_interval(values, statistic=np.mean, confidence=0.95, draws=2000, rng=None):
    """Percentile bootstrap interval of a statistic over graphs, or over seeds and graphs.

    To compare two models on the same graphs pass the differences, `a - b`: an interval that excludes 0 is a
    difference. With few graphs it is too narrow: 7 normal values cover their mean 86% of the time at 95%.

    Parameters
    ----------
    values : ndarray, shape (graphs,) or (seeds, graphs)
        Scores; with two axes, seeds and graphs are both redrawn, independently.
    statistic : callable
        Array of the shape of `values` -> float.
    confidence : float
        Share between the two ends.
    draws : int
        Bootstrap samples.
    rng : numpy.random.Generator
        None: a fresh one with seed 0.

    Returns
    -------
    (float, float)
        Low and high; both nan for a single graph, which says nothing about others.

    Raises
    ------
    ValueError
        If `values` has no graph, another number of axes, or values that are not finite.

    References
    ----------
    Efron, Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.

    Examples
    --------
    >>> bootstrap_interval([0.5, 0.5, 0.5])
    (0.5, 0.5)
    """
    values = np.asarray(values, dtype=float)
    if values.ndim not in (1, 2) or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"values has shape {values.shape} and {(~np.isfinite(values)).sum()} that are not "
                         "finite; expected finite (graphs,) or (seeds, graphs)")
    rng = np.random.default_rng(0) if rng is None else rng
    if values.shape[-1] == 1:
        return math.nan, math.nan
    sample = np.empty(draws)
    for draw in range(draws):
        resampled = values[..., rng.integers(values.shape[-1], size=values.shape[-1])]
        if values.ndim == 2:
            resampled = resampled[rng.integers(len(values), size=len(values))]
        sample[draw] = statistic(resampled)
    low, high = np.quantile(sample, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _truth_posterior(log_mean, count, sigma):
    """Possible true log runtimes of each configuration, and their cumulative weights, both (configs, bins).

    Maximum-likelihood deconvolution by EM, stopped early: means of few measurements are spread by noise, and
    this is the spread without it. Shrinking all towards one centre fails on real graphs, whose runtimes fall
    into a few narrow modes far apart.
    """
    step = sigma / BINS_PER_SIGMA
    bins = np.rint(log_mean / step).astype(np.int64)[:, None] + np.arange(-4 * BINS_PER_SIGMA,
                                                                          4 * BINS_PER_SIGMA + 1)
    support, at = np.unique(bins, return_inverse=True)
    at = at.reshape(bins.shape)
    likelihood = -count[:, None] / 2 * ((bins * step - log_mean[:, None]) / sigma) ** 2
    likelihood = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    weight = np.ones(len(support))
    for _ in range(EM_STEPS):
        posterior = likelihood * weight[at]
        posterior /= posterior.sum(axis=1, keepdims=True)
        weight = np.bincount(at.ravel(), posterior.ravel())
    return bins * step, posterior.cumsum(axis=1)


def noise_ceiling(runtime, config_id, score=None, draws=50, rng=None, sigma=None, distinct=False):
    """Expected score of a model that knows every configuration's true mean runtime: no model beats it.

    Estimated from the repeats in one file. Assumes that measurements of a configuration are independent with
    the same relative noise everywhere, and that configurations are exchangeable. Simulated with 150-3,000
    configurations it is off by at most 0.03 while the truths spread by more than one sigma; where they spread
    by a third of that it is 0.03-0.07 too high, so a low ceiling is an upper bound.

    Parameters
    ----------
    runtime : ndarray, shape (c,)
        Measured, ns, or for tiles the normalised ratio; > 0.
    config_id : ndarray of int, shape (c,)
        Equal where rows are the same configuration.
    score : callable
        (cost, runtime) -> float, like every score of `kit.metrics`; None: Kendall's tau-b.
    draws : int
        Simulated evaluations.
    rng : numpy.random.Generator
        None: a fresh one with seed 0.
    sigma : float
        Relative noise (normal) for a file without repeats; None: pooled from the repeats.
    distinct : bool
        False: score all rows. True: one row a configuration, its mean runtime, whose noise is sigma /
        sqrt(measurements).

    Returns
    -------
    NoiseCeiling
        All nan, and the reason, when no configuration repeats and `sigma` is None.

    Raises
    ------
    ValueError
        If the shapes differ or a runtime is not finite and > 0.

    References
    ----------
    Kiefer, Wolfowitz, Consistency of the maximum likelihood estimator, Ann. Math. Stat. 27 (1956), for the
    distribution of the truths, which is fitted by EM, stopped early.

    Examples
    --------
    >>> noise_ceiling([100, 200, 300], [0, 1, 2]).reason
    'no configuration is measured twice: pass sigma'
    """
    runtime, config_id = np.asarray(runtime), np.asarray(config_id)
    if runtime.ndim != 1 or runtime.shape != config_id.shape or len(runtime) == 0:
        raise ValueError(f"runtime has shape {runtime.shape}, config_id {config_id.shape}; "
                         "expected (c,) for both, c > 0")
    if not (np.isfinite(runtime) & (runtime > 0)).all():
        raise ValueError(f"runtime goes down to {runtime.min()}; expected finite values > 0")
    score = score or (lambda cost, runtime: kendalltau(cost, runtime).statistic)
    rng = np.random.default_rng(0) if rng is None else rng
    config = np.unique(config_id, return_inverse=True)[1].reshape(-1)
    count = np.bincount(config)
    log_runtime = np.log(runtime)
    centre = log_runtime.mean()                              # near 0 the grid below is exact
    log_mean = np.bincount(config, log_runtime - centre) / count
    repeats = len(runtime) - len(count)
    if sigma is None and repeats == 0:
        return NoiseCeiling(*[math.nan] * 4, 0, "no configuration is measured twice: pass sigma")
    residual = log_runtime - centre - log_mean[config]
    pool = (residual * np.sqrt(count / np.maximum(count - 1, 1))[config])[count[config] > 1]
    noise = float(np.sqrt((residual ** 2).sum() / repeats)) if sigma is None else float(sigma)
    posterior = _truth_posterior(log_mean, count, noise) if noise > ROUNDING else None
    scores = np.empty(draws)
    for draw in range(draws):
        truth, error = log_mean, 0.0
        if posterior is not None:
            bins, cumulative = posterior
            pick = (cumulative < rng.random((len(count), 1)) * cumulative[:, -1:]).sum(axis=1)
            truth = bins[np.arange(len(count)), pick]
            truth = truth + (rng.random(len(count)) - 0.5) * noise / BINS_PER_SIGMA   # anywhere in its bin
            size = len(config)
            error = rng.choice(pool, size) if sigma is None else rng.normal(0, noise, size)
        measured = np.exp(centre + truth[config] + error)
        if distinct:
            scores[draw] = score(np.exp(centre + truth), np.bincount(config, measured) / count)
        else:
            scores[draw] = score(np.exp(centre + truth)[config], measured)
    low, high = np.quantile(scores, [0.025, 0.975])
    reason = "the score of the truth itself is nan: too few different configurations" if np.isnan(low) else ""
    return NoiseCeiling(float(scores.mean()), float(low), float(high), noise, repeats, reason)
