"""Boosted trees on how far the layouts of neighbours agree: the 11th place's idea in its simplest form, CPU only.

Trees need rows of the same length for every program. So the disagreements of all nodes and pairs are summed over
the program, and each sum is divided by the largest value that any configuration could reach.
"""
import numpy as np
from scipy.stats import rankdata
from sklearn.ensemble import HistGradientBoostingRegressor

from kit.agreement import OwnColumns, PairColumns, agreement_tables
from kit.baselines import CONFIGURABLE

TREE_ROWS = 20_000               # drawn from all graphs; more rows gained .01 tau at most (sample data and alexnet)


def agreement_sums(graph):
    """Sums of disagreements per configuration, (c, 69) float32: 18 for each configurable opcode, then 15 for pairs."""
    tables, codes = agreement_tables(graph), graph.config_codes
    k, groups = graph.code_rows.shape[1], codes.shape[1]
    # sums over the nodes of a group, one block of columns per opcode: (g, k, 3 * 18)
    own = _own_columns(tables.own, tables.share[:, None, None])
    opcode = graph.node_opcode[graph.node_config_ids]
    by_opcode = np.stack([own * (opcode == o)[:, None, None] for o in CONFIGURABLE], axis=2)        # (nc, k, 3, 18)
    by_group = np.zeros((groups, k, len(CONFIGURABLE) * own.shape[2]))
    np.add.at(by_group, graph.node_group, by_opcode.reshape(len(own), *by_group.shape[1:]))
    # sums over the pairs of nodes between two groups: (pairs of groups, k, k, 15)
    rows = _pair_columns(tables.rows, tables.share[tables.pairs[tables.row_pair, 0], None])
    slots, slot = np.unique(graph.node_group[tables.pairs], axis=0, return_inverse=True)
    by_slot = np.zeros((len(slots), k, k, rows.shape[1]))
    for s, pair in zip(slot.reshape(-1), tables.pair):
        by_slot[s] += rows[pair]
    # look both up for each configuration
    nodes, pairs = np.zeros((len(codes), by_group.shape[2])), np.zeros((len(codes), rows.shape[1]))
    for g in range(groups):
        nodes += by_group[g, codes[:, g]]
    for table, (producer, consumer) in zip(by_slot, slots.reshape(-1, 2)):
        pairs += table[codes[:, producer], codes[:, consumer]]
    # divide by the sum of the largest values per group and per pair of groups, so that a row does not depend on the
    # other configurations
    most = np.concatenate([by_group.max(axis=1).sum(axis=0), by_slot.max(axis=(1, 2)).sum(axis=0)])
    sums = np.concatenate([nodes, pairs], axis=1)
    return np.divide(sums, most, out=np.zeros_like(sums), where=most > 0).astype(np.float32)


def _own_columns(own, share):
    """The 18 columns that are added up over nodes; the last 7 are weighted by the node's `share`."""
    given, disagree, by_size = (own[..., c] for c in (OwnColumns.GIVEN, OwnColumns.DISAGREE, OwnColumns.BY_SIZE))
    return np.concatenate([given, disagree, by_size, given * share, disagree * share], axis=-1)


def _pair_columns(rows, share):
    """The 15 columns that are added up over pairs; the last 5 are weighted by the producer's `share`."""
    disagree, by_size = rows[..., PairColumns.DISAGREE], rows[..., PairColumns.BY_SIZE]
    return np.concatenate([disagree, by_size, disagree * share], axis=-1)


def fit_agreement_trees(graphs, seed=0, monotonic=False):
    """Fit boosted trees from `agreement_sums` to the rank of the runtime within its graph.

    Every LayoutGraph has the same weight. At most `TREE_ROWS` configurations are drawn in all, the same number per
    graph; `seed` seeds these draws and the trees. Returns a function from a LayoutGraph to its cost (c,); lower is
    faster. A ValueError if there is no graph.

    With `monotonic`, a cost never falls when a disagreement rises. Trained on two real programs (alexnet, unet3d), this
    loses tau on other configurations of the same programs (alexnet .85 -> .68) and gains tau on a third program
    (unet_3d random -.18 -> .24, default .00 -> .13). Trained on 20 sample programs, it changes little.
    """
    if not graphs:
        raise ValueError("boosted trees need at least one training graph")
    rng, features, ranks = np.random.default_rng(seed), [], []
    for graph in graphs:
        c = len(graph.config_runtime)
        drawn = rng.permutation(c)[:max(TREE_ROWS // len(graphs), 1)]
        features.append(agreement_sums(graph._replace(config_codes=graph.config_codes[drawn])))
        ranks.append(rankdata(graph.config_runtime)[drawn] / c)
    weights = np.concatenate([np.full(len(x), 1 / len(x)) for x in features])
    # 1 for the columns of `agreement_sums` that count disagreements, 0 for the others; (69,)
    own, pair = np.ones(OwnColumns.COUNT, int), np.ones(PairColumns.COUNT, int)
    own[OwnColumns.GIVEN] = 0
    rises = np.concatenate([np.tile(_own_columns(own, 1), len(CONFIGURABLE)), _pair_columns(pair, 1)])
    # few leaves and many rows per leaf, because graphs are few while configurations of a graph are many
    trees = HistGradientBoostingRegressor(max_iter=150, max_leaf_nodes=8, min_samples_leaf=50, random_state=seed,
                                          monotonic_cst=rises if monotonic else None, early_stopping=False)
    trees.fit(np.concatenate(features), np.concatenate(ranks), weights / weights.mean())
    return lambda graph: trees.predict(agreement_sums(graph))
