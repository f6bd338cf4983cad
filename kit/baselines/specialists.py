"""A cost model for one program, trained on the configurations of its nearest relatives alone.

A relative has the same groups with the same options (`kit.baselines.siblings`), so what it measured of an option, or
of a pair of options, holds for the program, too. Many programs of a test split have a relative in the training split.
Several places of the competition ranked such programs by the relative alone.
"""
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata
from sklearn.ensemble import HistGradientBoostingRegressor

from kit.baselines.ridge import evenly_spaced, fit_centred
from kit.baselines.siblings import MOST_RELATIVES, NEAR, groups_of, nearest_relatives, stretched
from kit.checks import check_graph, check_number, check_whole, checked_graphs
from kit.data import teaches
from kit.ensemble import choose_weights, mean_zscore
from kit.metrics import kendall_tau
from kit.prune import drop_duplicate_configs

SPECIALIST_ROWS = 20_000         # configurations of all relatives together, the same number of each
PAIR_COLUMNS = 400               # of a ridge regression; more columns take minutes on 20,000 configurations
FOLDS = 3                        # of the configurations of the same program
FEW_CONFIGS = 30                 # of all relatives together; with fewer, ridge regression on codes alone
LEAST_OPTION = 0.5               # an option that no relative has is read as the nearest one, if it is this much alike


class Specialist(NamedTuple):
    """What a program's relatives say of its c configurations."""
    cost: np.ndarray             # (c,) float64; lower is faster
    relatives: list              # of Relative, nearest first
    weights: dict                # {"codes", "pairs" or "trees": its share in the cost}


def rank_by_relatives(graph, graphs, most=MOST_RELATIVES, least=NEAR, seed=0):
    """Rank the configurations of a program by a model that is trained on its nearest relatives alone.

    The model is a mix of ridge regression on codes, ridge regression on codes and pairs of codes, and boosted trees on
    codes. Cross-validation inside the relatives chooses the mix, by holding out one relative at a time. If `graphs`
    hold other configurations of the same program, only these are trained on, and thirds of them are held out. If there
    is one relative, and it is another program, the model is ridge regression on codes and pairs: held-out
    configurations of a program do not show what carries over to another one. Each relative has the same weight; the
    target is the rank of the runtime within its program.

    Parameters
    ----------
    graph : LayoutGraph
        Its runtimes are not read.
    graphs : sequence of LayoutGraph
        Training programs, pruned as `graph` is. Programs without an order to learn are left out.
    most, least
        As for `nearest_relatives`.
    seed : int
        Of the folds and of the trees.

    Returns
    -------
    Specialist or None
        None if no program is near enough.

    Raises
    ------
    ValueError
        If a graph is not whole, or another argument is out of range.
    """
    check_graph(graph, tile=False)
    check_whole(locals(), most=1, seed=0)
    check_number(locals(), "a share, 0 to 1", "least")
    graphs = [g for g in checked_graphs("graphs", graphs, tile=False) if teaches(g)]
    relatives = nearest_relatives(graph, graphs, most, least)
    relatives = [r._replace(graph=drop_duplicate_configs(r.graph)[0]) for r in relatives]
    relatives = [r._replace(graph=evenly_spaced(r.graph, SPECIALIST_ROWS // len(relatives))) for r in relatives]
    if not relatives:
        return None
    own, codes, sizes = common_codes(graph, relatives)
    runtimes = [r.graph.config_runtime for r in relatives]
    learners = {"codes": fit_codes, "pairs": fit_pairs, "trees": partial(fit_trees, seed=seed)}
    lone = len(relatives) == 1 and not relatives[0].same
    if sum(map(len, codes)) < FEW_CONFIGS:
        weights = {"codes": 1.0}
    else:
        weights = {"pairs": 1.0} if lone else _mix(learners, codes, runtimes, sizes, seed)
    costs = [learners[name](codes, runtimes, sizes)(own) for name in weights]
    return Specialist(mean_zscore(costs, list(weights.values())), relatives, weights)


def common_codes(graph, relatives):
    """Write the configurations of a program and of its relatives with one numbering of options.

    A column is a group of `graph`. Options are the same if their digits are. An option that no relative has becomes
    the nearest option of a relative, or -1 if none is near. A relative without a partner for a group has -1.

    Parameters
    ----------
    graph : LayoutGraph
    relatives : sequence of Relative
        From `nearest_relatives` of this graph.

    Returns
    -------
    own : ndarray, shape (c, g), int64
    codes : list of ndarray, shape (c', g), int64
        One per relative.
    sizes : ndarray, shape (g,), int64
        Numbers of options per group, over all programs.
    """
    groups = groups_of(graph)
    options = [{row.tobytes(): row for row in group.rows} for group in groups]         # in the order of their numbers
    codes = []
    for relative in relatives:
        others = groups_of(relative.graph)
        code = np.full((len(relative.graph.config_codes), len(groups)), -1)
        for mine, other in relative.alignment.pairs:
            rows = stretched(others[other].rows, len(groups[mine].opcodes))
            for row in rows:
                options[mine].setdefault(row.tobytes(), row)
            number = {key: place for place, key in enumerate(options[mine])}
            table = np.full(relative.graph.code_rows.shape[1], -1)
            table[others[other].codes] = [number[row.tobytes()] for row in rows]
            code[:, mine] = table[relative.graph.config_codes[:, others[other].number]]
        codes.append(code)
    own = np.empty((len(graph.config_codes), len(groups)), np.int64)
    for g, group in enumerate(groups):
        seen = np.unique(np.concatenate([code[:, g] for code in codes]))
        table = np.full(graph.code_rows.shape[1], -1)
        table[group.codes] = _nearest_seen(group.rows, np.stack(list(options[g].values())), seen[seen >= 0])
        own[:, g] = table[graph.config_codes[:, group.number]]
    return own, codes, np.array([len(one) for one in options])


def _nearest_seen(rows, options, seen):
    """For each option in `rows` (k, n, 18), which come first in `options`, the number of the nearest one in `seen`."""
    if not len(seen):
        return np.full(len(rows), -1)
    alike = options_alike(rows, options[seen])                                         # (k, s)
    alike[np.isin(np.arange(len(rows)), seen)[:, None] & (seen != np.arange(len(rows))[:, None])] = -1
    return np.where(alike.max(axis=1) >= LEAST_OPTION, seen[alike.argmax(axis=1)], -1)


def options_alike(first, second):
    """Share of equal digits of each pair of options: rows (k, n, 18) and (k', n, 18) -> (k, k') in [0, 1].

    Digits count that at least one of the two options gives (is not -1). Two options that give no digit are equal.
    """
    first, second = first[:, None], second[None]                                       # (k, 1, n, 18), (1, k', n, 18)
    given = ((first >= 0) | (second >= 0)).sum(axis=(2, 3))
    equal = ((first == second) & (first >= 0)).sum(axis=(2, 3))
    return np.where(given > 0, equal / np.maximum(given, 1), 1.0)


def _mix(learners, codes, runtimes, sizes, seed):
    """Choose the share of each learner by cross-validation -> {name: share > 0}."""
    if len(codes) > 1:
        folds = [([j for j in range(len(codes)) if j != i], i) for i in range(len(codes))]
        folds = [([codes[j] for j in train], [runtimes[j] for j in train], codes[i], runtimes[i])
                 for train, i in folds]
    else:
        part = np.random.default_rng(seed).permutation(len(codes[0])) % FOLDS
        folds = [([codes[0][part != f]], [runtimes[0][part != f]], codes[0][part == f], runtimes[0][part == f])
                 for f in range(FOLDS)]
    costs = {name: {str(f): mean_zscore([fit(train, known, sizes)(held)])
                    for f, (train, known, held, _) in enumerate(folds)} for name, fit in learners.items()}
    shares = choose_weights(costs, {str(f): runtime for f, (*_, runtime) in enumerate(folds)}, _tau)
    return {name: share for name, share in shares.items() if share}


def _tau(cost, runtime):
    """Kendall's tau without credit for ties; 0 where there is no order."""
    return float(np.nan_to_num(kendall_tau(cost, runtime, strict=True)))


def _ranks(runtimes):
    """The rank of each runtime within its program, in (0, 1], one array (c,) per program."""
    return [rankdata(runtime) / len(runtime) for runtime in runtimes]


def fit_codes(codes, runtimes, sizes, pairs=()):
    """Ridge regression on one column per group and option, and per combination of options of the groups in `pairs`.

    `codes`, `sizes`: from `common_codes`; `runtimes`: one array (c,) per program. Returns a function from codes (c, g)
    to their cost (c,).
    """
    ridge = fit_centred([_columns(code, sizes, pairs) for code in codes], _ranks(runtimes))
    return lambda code: np.concatenate([_columns(part, sizes, pairs) @ ridge.coef_ for part in
                                        np.array_split(code, len(code) // 10_000 + 1)])


def _columns(codes, sizes, pairs):
    """Zeros and ones (c, options of all groups + combinations of options of all pairs of groups)."""
    columns = [codes[:, [g]] == np.arange(size) for g, size in enumerate(sizes)]
    for g, h in pairs:
        both = np.where((codes[:, g] >= 0) & (codes[:, h] >= 0), codes[:, g] * sizes[h] + codes[:, h], -1)
        columns.append(both[:, None] == np.arange(sizes[g] * sizes[h]))
    return np.concatenate(columns, axis=1).astype(np.float64)


def fit_pairs(codes, runtimes, sizes):
    """Ridge regression on codes and on pairs of codes, of those pairs of groups that explain most; as `fit_codes`.

    A pair of groups is judged by what ridge regression on codes alone leaves: by the sum of squares between the
    combinations of its options, beyond what chance gives. At most `PAIR_COLUMNS` combinations are taken.
    """
    single = fit_codes(codes, runtimes, sizes)
    ranks = _ranks(runtimes)
    left = np.concatenate([rank - rank.mean() - cost + cost.mean() for rank, cost in
                           zip(ranks, map(single, codes))])
    whole, gains = np.concatenate(codes), {}
    for g, h in combinations(range(len(sizes)), 2):
        known = (whole[:, g] >= 0) & (whole[:, h] >= 0)
        cell = whole[known, g] * sizes[h] + whole[known, h]
        count, total = np.bincount(cell), np.bincount(cell, left[known])
        gains[g, h] = (total ** 2 / np.maximum(count, 1)).sum() - (count > 0).sum() * left.var()
    pairs, columns = [], 0
    for g, h in sorted(gains, key=lambda pair: (-gains[pair], pair)):
        if gains[g, h] > 0 and columns + sizes[g] * sizes[h] <= PAIR_COLUMNS:
            pairs.append((g, h))
            columns += sizes[g] * sizes[h]
    return fit_codes(codes, runtimes, sizes, pairs) if pairs else single


def fit_trees(codes, runtimes, sizes, seed=0):
    """Boosted trees on codes, as categories; as `fit_codes`."""
    weights = np.concatenate([np.full(len(code), 1 / len(code)) for code in codes])
    trees = HistGradientBoostingRegressor(max_iter=200, max_leaf_nodes=16, random_state=seed, early_stopping=False,
                                          categorical_features=np.ones(len(sizes), bool))
    trees.fit(_missing(np.concatenate(codes)), np.concatenate(_ranks(runtimes)), weights / weights.mean())
    return lambda code: trees.predict(_missing(code))


def _missing(codes):
    """Codes as floats, nan for -1."""
    return np.where(codes < 0, np.nan, codes)
