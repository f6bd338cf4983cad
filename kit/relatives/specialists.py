"""A cost model for one program, trained on the configurations of its nearest relatives alone.

A relative has the same groups with the same options (`kit.relatives.nearest`), so what it measured of an option, or
of a pair of options, holds for the program, too. Many programs of a test split have a relative in the training split.
Several places of the competition ranked such programs by the relative alone.

A specialist may also start from the costs of another model, the *base*, such as a network that was trained on many
programs. The specialist then learns what the base gets wrong on the relatives, and corrects the base on the program.
"""
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata
from sklearn.ensemble import HistGradientBoostingRegressor

from kit.baselines import evenly_spaced, fit_centred
from kit.checks import check_callable, check_graph, check_number, check_whole, checked_graphs
from kit.data import teaches
from kit.ensemble import choose_weights, mean_zscore
from kit.metrics import kendall_tau
from kit.prune import drop_duplicate_configs
from kit.relatives.nearest import MOST_RELATIVES, NEAR, groups_of, nearest_relatives, stretched

SPECIALIST_ROWS = 20_000         # configurations of all relatives together, the same number of each
PAIR_COLUMNS = 400               # of a ridge regression; more columns take minutes on 20,000 configurations
FOLDS = 3                        # of the configurations of the same program
FEW_CONFIGS = 30                 # of all relatives together; with fewer, ridge regression on codes alone
BASE_SCALE = 10                  # of the base's ranks; ridge regression then hardly shrinks their coefficient
CORRECTED = 0.5                  # share of the corrected cost, beside the base; .25 to .75 gained (simulated runtimes)
LEAST_OPTION = 0.5               # an option that no relative has is read as the nearest one, if it is this much alike


class Specialist(NamedTuple):
    """What a program's relatives say of its c configurations."""
    cost: np.ndarray             # (c,) float64; lower is faster
    relatives: list              # graph_id of each relative, nearest first
    same: bool                   # the relatives are other configurations of the same program
    weights: dict                # {"codes", "pairs", "trees" or "base": its share in the cost}


class Rows(NamedTuple):
    """Configurations of one program as learners see them."""
    codes: np.ndarray            # (c, g) int64, from `common_codes`
    base: np.ndarray             # (c,) float64; their ranks by the base, in (0, 1]; 0 throughout without a base

    def part(self, chosen):
        """These configurations alone."""
        return Rows(self.codes[chosen], self.base[chosen])

    def blind(self):
        """The same without what the base says."""
        return self._replace(base=np.zeros_like(self.base))


def rank_by_relatives(graph, graphs, base=None, most=MOST_RELATIVES, least=NEAR, seed=0):
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
    base : callable, optional
        LayoutGraph -> cost (c,): a model to start from. It is asked for the costs of `graph` and of its relatives.
        Half of the result is the base itself, the other half is the base as corrected on the relatives. For other
        configurations of the same program, the base is one more part of the mix instead: it may know them by heart.
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
    check_callable(locals(), *["base"] * (base is not None))
    graphs = [g for g in checked_graphs("graphs", graphs, tile=False) if teaches(g)]
    relatives = nearest_relatives(graph, graphs, most, least)
    relatives = [r._replace(graph=drop_duplicate_configs(r.graph)[0]) for r in relatives]
    relatives = [r._replace(graph=evenly_spaced(r.graph, SPECIALIST_ROWS // len(relatives))) for r in relatives]
    if not relatives:
        return None
    own, codes, sizes = common_codes(graph, relatives)
    rows = [_rows(r.graph, code, base) for r, code in zip(relatives, codes)]
    runtimes = [r.graph.config_runtime for r in relatives]
    learners, weights = _learners(rows, runtimes, sizes, relatives[0].same, base is not None, seed)
    own = _rows(graph, own, base)
    costs = [learners[name](rows, runtimes, sizes)(own) for name in weights]
    return Specialist(mean_zscore(costs, list(weights.values())), [r.graph.graph_id for r in relatives],
                      relatives[0].same, weights)


def _learners(rows, runtimes, sizes, same, based, seed):
    """The learners and their shares: {name: function as `fit_codes`}, {name: share}.

    `same`: the relatives are the program itself. `based`: there is a base.
    """
    learners = {"codes": fit_codes, "pairs": fit_pairs, "trees": partial(fit_trees, seed=seed)}
    known = {"base": _fit_base} if based else {}
    if sum(map(len, runtimes)) < FEW_CONFIGS:
        weights = {"codes": 1.0}
    elif same:
        learners = {name: partial(_fit_blind, fit) for name, fit in learners.items()} | known
        return learners, _mix(learners, rows, runtimes, sizes, seed)
    else:
        weights = _mix(learners, rows, runtimes, sizes, seed) if len(rows) > 1 else {"pairs": 1.0}
    if based:
        weights = {name: CORRECTED * share for name, share in weights.items()} | {"base": 1 - CORRECTED}
    return learners | known, weights


def _rows(graph, codes, base):
    """The Rows of a graph whose common codes are known."""
    return Rows(codes, np.zeros(len(codes)) if base is None else rankdata(base(graph)) / len(codes))


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


def _mix(learners, rows, runtimes, sizes, seed):
    """Choose the share of each learner by cross-validation -> {name: share > 0}."""
    if len(rows) > 1:
        folds = [([j for j in range(len(rows)) if j != i], i) for i in range(len(rows))]
        folds = [([rows[j] for j in train], [runtimes[j] for j in train], rows[i], runtimes[i]) for train, i in folds]
    else:
        fold = np.random.default_rng(seed).permutation(len(runtimes[0])) % FOLDS
        folds = [([rows[0].part(fold != f)], [runtimes[0][fold != f]], rows[0].part(fold == f), runtimes[0][fold == f])
                 for f in range(FOLDS)]
    costs = {name: {str(f): mean_zscore([fit(train, known, sizes)(held)])
                    for f, (train, known, held, _) in enumerate(folds)} for name, fit in learners.items()}
    # the folds alone decide, and the base has no share unless they give it one
    prior = {name: 0 if name == "base" and len(costs) > 1 else 1 for name in costs}
    known = {str(f): runtime for f, (*_, runtime) in enumerate(folds)}
    shares = choose_weights(costs, known, _tau, prior=prior, strength=0)
    return {name: share for name, share in shares.items() if share}


def _fit_base(rows, runtimes, sizes):
    """The base as it is; as `fit_codes`."""
    return lambda held: held.base


def _fit_blind(fit, rows, runtimes, sizes):
    """A learner that does not see the base; as `fit_codes`."""
    cost = fit([one.blind() for one in rows], runtimes, sizes)
    return lambda held: cost(held.blind())


def _tau(cost, runtime):
    """Kendall's tau without credit for ties; 0 where there is no order."""
    return float(np.nan_to_num(kendall_tau(cost, runtime, strict=True)))


def _ranks(runtimes):
    """The rank of each runtime within its program, in (0, 1], one array (c,) per program."""
    return [rankdata(runtime) / len(runtime) for runtime in runtimes]


def fit_codes(rows, runtimes, sizes, pairs=()):
    """Ridge regression on one column per group and option, and per combination of options of the groups in `pairs`.

    `rows`: a list of Rows; `runtimes`: one array (c,) per program; `sizes`: from `common_codes`. Returns a function
    from Rows to their cost (c,).
    """
    ridge = fit_centred([_columns(one, sizes, pairs) for one in rows], _ranks(runtimes))

    def cost(held):
        parts = np.array_split(np.arange(len(held.codes)), len(held.codes) // 10_000 + 1)
        return np.concatenate([_columns(held.part(part), sizes, pairs) @ ridge.coef_ for part in parts])
    return cost


def _columns(rows, sizes, pairs):
    """Zeros and ones (c, options of all groups + combinations of options of all pairs of groups), and the base."""
    codes = rows.codes
    columns = [codes[:, [g]] == np.arange(size) for g, size in enumerate(sizes)]
    for g, h in pairs:
        both = np.where((codes[:, g] >= 0) & (codes[:, h] >= 0), codes[:, g] * sizes[h] + codes[:, h], -1)
        columns.append(both[:, None] == np.arange(sizes[g] * sizes[h]))
    return np.concatenate([*columns, BASE_SCALE * rows.base[:, None]], axis=1)


def fit_pairs(rows, runtimes, sizes):
    """Ridge regression on codes and on pairs of codes, of those pairs of groups that explain most; as `fit_codes`.

    A pair of groups is judged by what ridge regression on codes alone leaves: by the sum of squares between the
    combinations of its options, beyond what chance gives. At most `PAIR_COLUMNS` combinations are taken.
    """
    single = fit_codes(rows, runtimes, sizes)
    left = [rank - cost for rank, cost in zip(_ranks(runtimes), map(single, rows))]
    left = np.concatenate([one - one.mean() for one in left])
    codes, gains = np.concatenate([one.codes for one in rows]), {}
    for g, h in combinations(range(len(sizes)), 2):
        known = (codes[:, g] >= 0) & (codes[:, h] >= 0)
        cell = codes[known, g] * sizes[h] + codes[known, h]
        count, total = np.bincount(cell), np.bincount(cell, left[known])
        gains[g, h] = (total ** 2 / np.maximum(count, 1)).sum() - (count > 0).sum() * left.var()
    pairs, columns = [], 0
    for g, h in sorted(gains, key=lambda pair: (-gains[pair], pair)):
        if gains[g, h] > 0 and columns + sizes[g] * sizes[h] <= PAIR_COLUMNS:
            pairs.append((g, h))
            columns += sizes[g] * sizes[h]
    return fit_codes(rows, runtimes, sizes, pairs) if pairs else single


def fit_trees(rows, runtimes, sizes, seed=0):
    """Boosted trees on codes, as categories, and on the base; as `fit_codes`."""
    weights = np.concatenate([np.full(len(runtime), 1 / len(runtime)) for runtime in runtimes])
    trees = HistGradientBoostingRegressor(max_iter=200, max_leaf_nodes=16, random_state=seed, early_stopping=False,
                                          categorical_features=np.arange(len(sizes) + 1) < len(sizes))
    trees.fit(np.concatenate([_tree_columns(one) for one in rows]), np.concatenate(_ranks(runtimes)),
              weights / weights.mean())
    return lambda held: trees.predict(_tree_columns(held))


def _tree_columns(rows):
    """Codes as floats, nan for -1, and the base; (c, g + 1)."""
    return np.column_stack([np.where(rows.codes < 0, np.nan, rows.codes), rows.base])
