"""What is measured of the configurations of a program, and scores that count each configuration once.

A file of measured programs has its default in 40 of 216 rows. A rank that puts the default first, and all others at
random, has a mean Kendall's tau of about .28 there; with each configuration once, it has .01.
"""
import numpy as np

from kit.metrics import kendall_tau
from kit.prune import config_ids

REPEATED = 10            # a configuration with so many measurements is the compiler's default


def each_once(graph):
    """The runtime of each configuration in the first row that has it: its mean; NaN in the other rows. (c,) float64."""
    ids = config_ids(graph)
    first = np.unique(ids, return_index=True)[1]
    base = graph.config_runtime[first]                   # deviations from it are small, so that their sums are exact
    known = np.full(len(ids), np.nan)
    known[first] = base + np.bincount(ids, graph.config_runtime - base[ids]) / np.bincount(ids)
    return known


def distinct_tau(cost, known):
    """Kendall's tau among the rows whose runtime is known; (c,) each, `known` as of `each_once`.

    Pairs of equal costs count as half right (`kendall_tau`, strict).
    """
    chosen = ~np.isnan(known)
    return kendall_tau(np.asarray(cost)[chosen], known[chosen], strict=True)


def default_codes(graph):
    """The compiler's default (g,), int64: the configuration that a file, with its repeats, measures most often.

    None if no configuration was measured ten times, because then the file does not tell.
    """
    ids = config_ids(graph)
    repeats = np.bincount(ids)
    if repeats.max() < REPEATED:
        return None
    return graph.config_codes[np.argmax(ids == repeats.argmax())].astype(np.int64)


def deviations(graph):
    """By how many groups each configuration differs from the compiler's default, (c,); 0 if the file does not tell."""
    default = default_codes(graph)
    return np.zeros(len(graph.config_codes), int) if default is None else (graph.config_codes != default).sum(axis=1)


def equal_distance_tau(cost, runtime, distance):
    """Kendall's tau over the pairs of configurations with equal `distance`, whatever their runtimes; (c,) each.

    Pairs of equal runtimes do not count, and pairs of equal costs count as half right. NaN without any pair.
    """
    first, second = np.triu_indices(len(cost), 1)
    chosen = (distance[first] == distance[second]) & (runtime[first] != runtime[second])
    first, second = first[chosen], second[chosen]
    signs = np.sign(cost[first] - cost[second]) * np.sign(runtime[first] - runtime[second])
    return float(signs.mean()) if len(signs) else np.nan


def speed_up(cost, graph, tries):
    """The default's mean runtime / that of the fastest among the `tries` configurations that are ranked first.

    NaN if the file does not tell which configuration is the default. Ties go to the configuration that comes first.
    """
    default = default_codes(graph)
    if default is None:
        return np.nan
    known = each_once(graph)
    rows = np.flatnonzero(~np.isnan(known))
    chosen = rows[np.argsort(np.asarray(cost)[rows], kind="stable")[:tries]]
    return known[rows][(graph.config_codes[rows] == default).all(axis=1)][0] / known[chosen].min()
