"""The competition's scores; `score_for` gives the score function of a collection.

No score depends on the order of the rows: ties are counted, never broken by position. In a raw tile file the
compiler's default comes first, so a rule such as "lower index wins" would reveal the default. Confidence intervals
and the highest reachable scores are in `kit/noise.py`.
"""
import math
import warnings
from collections.abc import Mapping
from functools import partial
from numbers import Real

import numpy as np
from scipy.stats import kendalltau

# the five that the competition averages; repeated from kit/data.py, so that this file works alone
COLLECTIONS = ("tile:xla", "layout:xla:random", "layout:xla:default", "layout:nlp:random", "layout:nlp:default")


def _cost_and_runtime(cost, runtime):
    """Check both -> arrays (c,) without NaN; ValueError also for floats so large that distinct ns become equal."""
    cost, runtime = np.asarray(cost), np.asarray(runtime)
    if cost.ndim != 1 or cost.shape != runtime.shape:
        raise ValueError(f"cost has shape {cost.shape}, runtime {runtime.shape}; expected (c,) for both")
    for name, array in (("cost", cost), ("runtime", runtime)):
        if array.dtype.kind not in "iuf":
            raise ValueError(f"{name} has dtype {array.dtype}; expected integers or floats")
        if np.isnan(array).any():
            raise ValueError(f"{name} has {np.isnan(array).sum()} NaN among {array.size} values")
    if runtime.dtype.kind == "f" and runtime.size:
        exact = 2.0 ** (np.finfo(runtime.dtype).nmant + 1)     # 2^53 for float64, 2^24 for float32
        if np.abs(runtime).max() > exact:
            raise ValueError(f"runtime is {runtime.dtype} and reaches {np.abs(runtime).max():.6g}; above "
                             f"{exact:.6g} distinct ns merge into ties: pass int64")
    return cost, runtime


def _pair_counts(cost, runtime):
    """Exact numbers of pairs: (concordant, discordant, cost differs, runtime differs, all)."""
    cost, runtime = _cost_and_runtime(cost, runtime)
    total = len(cost) * (len(cost) - 1) // 2
    ranks = [np.unique(x, return_inverse=True)[1].reshape(-1) for x in (cost, runtime)]
    keys = [*ranks, ranks[0] * len(cost) + ranks[1]]
    tied = [int((n * (n - 1) // 2).sum()) for n in (np.unique(x, return_counts=True)[1] for x in keys)]
    cost_differs, runtime_differs = total - tied[0], total - tied[1]
    both_differ = cost_differs - tied[1] + tied[2]
    surplus = 0                                              # concordant - discordant, an integer again
    if cost_differs and runtime_differs:
        surplus = round(kendalltau(*ranks).statistic * math.sqrt(cost_differs * runtime_differs))
    return (both_differ + surplus) // 2, (both_differ - surplus) // 2, cost_differs, runtime_differs, total


def kendall_tau(cost, runtime, strict=False):
    """Kendall's tau-b between predicted and measured order, the layout score of one graph.

    Parameters
    ----------
    cost : ndarray, shape (c,)
        Predicted; lower is faster. Infinities are ranked like any other value.
    runtime : ndarray, shape (c,)
        Measured, ns; int64 is exact at any size.
    strict : bool
        False: tau-b, as scipy.stats.kendalltau. True: a submission cannot contain ties, so this is its mean score if
        the ties of `cost` are broken at random. If costs tie, this score is closer to 0 than tau-b.

    Returns
    -------
    float
        -1 to 1. nan if tau is undefined: all runtimes are equal, or (unless strict) all costs are equal.

    Raises
    ------
    ValueError
        If the shapes differ, a value is NaN, or runtimes are floats too large to tell one ns from the next.

    References
    ----------
    scipy.stats.kendalltau does the counting. Kendall, The treatment of ties in ranking problems, Biometrika
    33 (1945).

    Examples
    --------
    >>> kendall_tau([1.0, 2.0, 3.0, 4.0], [10, 20, 40, 30])
    0.6666666666666666
    """
    concordant, discordant, cost_differs, runtime_differs, total = _pair_counts(cost, runtime)
    pairs = (total if strict else cost_differs) * runtime_differs
    return (concordant - discordant) / math.sqrt(pairs) if pairs else math.nan


def opa(cost, runtime):
    """Ordered pair accuracy: how often the slower of two configurations is predicted to be slower.

    Parameters
    ----------
    cost, runtime : ndarray, shape (c,)
        As in `kendall_tau`. Pairs of equal runtimes are left out; pairs of equal costs count as wrong.

    Returns
    -------
    float
        0 to 1; nan if all runtimes are equal. If there are ties, OPA differs from (tau + 1) / 2.

    Raises
    ------
    ValueError
        As `kendall_tau`.

    Examples
    --------
    >>> opa([1.0, 2.0, 2.0], [10, 20, 30])
    0.6666666666666666
    """
    concordant, _, _, runtime_differs, _ = _pair_counts(cost, runtime)
    return concordant / runtime_differs if runtime_differs else math.nan


def slowdown(cost, runtime, k=5):
    """How much slower the best of the first `k` ranked configurations is than the fastest configuration.

    Parameters
    ----------
    cost : ndarray, shape (c,)
        Predicted; lower is faster. If costs tie at rank k, the result is the mean over all ways to break the tie.
    runtime : ndarray, shape (c,)
        Measured; for tiles config_runtime / config_runtime_normalizers, a ratio > 0.
    k : int
        Number of configurations that may be tried; the competition uses 5.

    Returns
    -------
    float
        Runtime of the fastest of the k / runtime of the fastest of all - 1; 0.0 is perfect.

    Raises
    ------
    ValueError
        As `kendall_tau`, and if there is no configuration, a runtime is not finite and > 0, or k < 1.

    References
    ----------
    Phothilimthana et al., TpuGraphs, arXiv:2308.13490; the tile score is 1 - slowdown.

    Examples
    --------
    >>> slowdown([3.0, 1.0, 2.0], [1.0, 4.0, 1.5], k=2)
    0.5
    """
    cost, runtime = _cost_and_runtime(cost, runtime)
    if not isinstance(k, (int, np.integer)) or k < 1 or len(cost) == 0:
        raise ValueError(f"k = {k!r} of {len(cost)} configurations; expected k >= 1 and at least one configuration")
    if not (np.isfinite(runtime) & (runtime > 0)).all():
        raise ValueError(f"runtime goes down to {runtime.min()}; expected finite values > 0 (the test files "
                         "carry the placeholder 0 and cannot be scored)")
    k = min(int(k), len(cost))
    last = np.partition(cost, k - 1)[k - 1]
    surely, tied = runtime[cost < last], np.sort(runtime[cost == last])
    draws = k - len(surely)                                  # how many of the tied configurations are tried
    best = np.minimum(tied, surely.min()) if len(surely) else tied
    # missed[j]: probability that none of the j fastest tied configurations is drawn
    skipped = np.arange(len(tied))
    missed = np.r_[1.0, np.cumprod(np.maximum(len(tied) - draws - skipped, 0) / (len(tied) - skipped))]
    return float(((missed[:-1] - missed[1:]) * (best / runtime.min())).sum() - 1)


def tile_score(cost, runtime, k=5):
    """The competition's score of one tile kernel: 1 - slowdown. 1.0 is perfect; negative scores are possible.

    Parameters
    ----------
    cost, runtime : ndarray, shape (c,)
        As in `slowdown`.
    k : int
        Number of configurations that may be tried.

    Returns
    -------
    float
        1 - slowdown.

    Raises
    ------
    ValueError
        As `slowdown`.

    Examples
    --------
    >>> tile_score([3.0, 1.0, 2.0], [1.0, 4.0, 1.25], k=2)
    0.75
    """
    return 1 - slowdown(cost, runtime, k)


def default_tile_score(runtime):
    """Score of running a kernel with the compiler's default tile, a float.

    `runtime` (c,) is config_runtime / config_runtime_normalizers, a ratio > 0. The default's ratio is 1 by definition,
    so its score is 2 - 1 / (the smallest ratio).
    """
    return 2 - 1 / runtime.min()


def score_for(collection, strict=False):
    """The score function of a collection: `tile_score` for `tile:xla`, `kendall_tau` for the layout collections.

    Parameters
    ----------
    collection : str
        One of `COLLECTIONS`.
    strict : bool
        Passed to `kendall_tau`; `tile_score` always averages over the ways to break ties.

    Returns
    -------
    callable
        (cost (c,), runtime (c,)) -> float, higher is better.

    Raises
    ------
    ValueError
        If the collection is unknown; the message names the five.

    Examples
    --------
    >>> score_for("layout:nlp:random")([1.0, 2.0], [10, 20])
    1.0
    """
    if collection not in COLLECTIONS:
        raise ValueError(f"no collection {collection!r}; there are {', '.join(COLLECTIONS)}")
    if collection == "tile:xla":
        return tile_score
    return partial(kendall_tau, strict=True) if strict else kendall_tau


def program_slowdown(slowdowns):
    """Mean slowdown over the kernels of each program: in the official evaluation, each program counts once.

    `slowdowns`: {ID or file stem: slowdown}. A stem is the program's name, "_" and a hash. Returns {program: mean},
    sorted. Stems of test files hide the program, so there every kernel counts as a program of its own.

    >>> program_slowdown({"tile:xla:bert_32_a1": 0.25, "tile:xla:bert_32_-b2": 0.75})
    {'bert_32': 0.5}
    """
    kernels = {}
    for name, value in slowdowns.items():
        kernels.setdefault(name.rpartition(":")[2].rsplit("_", 1)[0], []).append(value)
    return {program: float(np.mean(kernels[program])) for program in sorted(kernels)}


def collection_score(scores):
    """Mean score over graphs; graphs without a score (nan) are left out, and a warning names them.

    Parameters
    ----------
    scores : dict of str to float, or sequence of float
        One score per graph.

    Returns
    -------
    float
        The mean over the graphs with a score; nan if there is none.

    Raises
    ------
    ValueError
        If there is no graph, or a score is infinite.

    Examples
    --------
    >>> collection_score({"unet_3d": 0.25, "resnet50": 0.75})
    0.5
    """
    scores = scores if np.iterable(scores) else [scores]
    named = dict(scores) if isinstance(scores, Mapping) else dict(enumerate(scores))
    values = np.array(list(named.values()))
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iuf" or np.isinf(values).any():
        raise ValueError(f"scores: expected one finite score per graph, at least one; found {named}")
    skipped = [str(name) for name, value in named.items() if math.isnan(value)]
    if skipped:
        warnings.warn(f"{len(skipped)} of {len(named)} graphs have no score and are left out: "
                      f"{', '.join(skipped)}", stacklevel=2)
    return float(np.mean(values[~np.isnan(values)])) if len(skipped) < len(named) else math.nan


def competition_score(collection_scores):
    """Mean of the five collection scores, the number on the leaderboard.

    Parameters
    ----------
    collection_scores : dict of str to float
        {collection: score} with exactly the five collections.

    Returns
    -------
    float
        At most 1.

    Raises
    ------
    ValueError
        If a collection is missing, unknown or without a finite score.

    Examples
    --------
    >>> competition_score({"tile:xla": 1.0, "layout:xla:random": 0.75, "layout:xla:default": 0.25,
    ...                    "layout:nlp:random": 1.0, "layout:nlp:default": 0.5})
    0.7
    """
    if not isinstance(collection_scores, Mapping):
        raise ValueError(f"collection_scores is {collection_scores!r}; expected {{collection: score}}")
    unknown = [str(name) for name in collection_scores if name not in COLLECTIONS]
    if unknown:
        raise ValueError(f"unknown collection {', '.join(unknown)}; the five are "
                         f"{', '.join(COLLECTIONS)}")
    values = {name: collection_scores.get(name, math.nan) for name in COLLECTIONS}
    missing = [name for name, value in values.items() if not isinstance(value, Real) or not math.isfinite(value)]
    if missing:
        raise ValueError(f"no score for {', '.join(missing)}; the competition averages all five collections")
    return float(np.mean(list(values.values())))
