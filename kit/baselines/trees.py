"""Boosted trees on where neighbours' layouts agree: the 11th place's idea in its simplest form, CPU only.

Trees want a row of fixed length whatever the program. So disagreements of producers, configured nodes and consumers
are added up over the program and divided by the most that any configuration could have: 1 is all that can go wrong.
"""
import numpy as np
from scipy.stats import rankdata
from sklearn.ensemble import HistGradientBoostingRegressor

from kit.agreement import PLACES, agreement_tables
from kit.baselines.ridge import CONFIGURABLE

TREE_ROWS = 20_000               # an even share of each graph; more gained .01 tau at most (sample data and alexnet)
# of a node: whether an output, an input, a kernel layout is given; four disagreements; these seven by size, below
DISAGREES = (False,) * 3 + (True,) * 4 + (True,) * 4 + (False,) * 3 + (True,) * 4


def agreement_sums(graph):
    """Describe each configuration by how much disagrees under it, as a share of the most that could.

    Parameters
    ----------
    graph : LayoutGraph

    Returns
    -------
    ndarray, shape (c, 69), float32
        For convolution, dot and reshape each 18 sums over nodes: the first 11 columns of `own` in
        `agreement_tables`, and the first 7 weighted by the node's share. Then 15 sums over pairs: the first 10
        columns of `rows`, and the first 5 weighted by the producer's share. Each is divided by the sum of its
        largest values, group by group and pair of groups by pair; 0 where that is 0. The compiler's default
        disagrees with nothing but itself, where two producers meet. A row does not depend on the other
        configurations.
    """
    tables, codes = agreement_tables(graph), graph.config_codes
    k, groups = graph.code_rows.shape[1], codes.shape[1]
    own = tables.own[..., :11]
    own = np.concatenate([own, own[..., :7] * tables.share[:, None, None]], axis=2)                    # (nc, k, 18)
    opcode = graph.node_opcode[graph.node_config_ids]
    by_opcode = np.stack([own * (opcode == o)[:, None, None] for o in CONFIGURABLE], axis=2)        # (nc, k, 3, 18)
    by_group = np.zeros((groups, k, len(CONFIGURABLE) * own.shape[2]))
    np.add.at(by_group, graph.node_group, by_opcode.reshape(len(own), *by_group.shape[1:]))

    share = tables.share[tables.pairs[:, 0]]
    rows = tables.rows[:, :2 * PLACES]
    rows = np.concatenate([rows, rows[:, :PLACES] * share[tables.row_pair, None]], axis=1)             # (r, 15)
    slots, slot = np.unique(graph.node_group[tables.pairs], axis=0, return_inverse=True)
    by_slot = np.zeros((len(slots), k, k, rows.shape[1]))
    for s, pair in zip(slot.reshape(-1), tables.pair):
        by_slot[s] += rows[pair]

    nodes, pairs = np.zeros((len(codes), by_group.shape[2])), np.zeros((len(codes), rows.shape[1]))
    for g in range(groups):
        nodes += by_group[g, codes[:, g]]
    for table, (producer, consumer) in zip(by_slot, slots.reshape(-1, 2)):
        pairs += table[codes[:, producer], codes[:, consumer]]
    most = np.concatenate([by_group.max(axis=1).sum(axis=0), by_slot.max(axis=(1, 2)).sum(axis=0)])
    sums = np.concatenate([nodes, pairs], axis=1)
    return np.divide(sums, most, out=np.zeros_like(sums), where=most > 0).astype(np.float32)


def fit_agreement_trees(graphs, seed=0, monotonic=False):
    """Fit boosted trees from `agreement_sums` to the rank of the runtime within its graph.

    Parameters
    ----------
    graphs : sequence of LayoutGraph
        Training graphs; every graph weighs the same. Of many configurations an even share of each graph is drawn,
        `TREE_ROWS` in all.
    seed : int
        Of what is drawn.
    monotonic : bool
        Let costs only rise with each disagreement. Trained on two real programs (alexnet, unet3d) this loses tau on
        other configurations of the same (alexnet .85 -> .68) and gains on a third program (unet_3d random -.18 ->
        .24, default .00 -> .13); trained on 20 sample programs it does little.

    Returns
    -------
    callable
        LayoutGraph -> cost (c,), lower is faster.

    Raises
    ------
    ValueError
        If there is no graph.
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
    rises = [*np.tile(DISAGREES, len(CONFIGURABLE)), *[True] * 3 * PLACES]
    # few leaves and many rows a leaf: configurations of a graph are many, graphs are few
    trees = HistGradientBoostingRegressor(max_iter=150, max_leaf_nodes=8, min_samples_leaf=50, random_state=seed,
                                          monotonic_cst=np.array(rises, int) if monotonic else None,
                                          early_stopping=False)
    trees.fit(np.concatenate(features), np.concatenate(ranks), weights / weights.mean())
    return lambda graph: trees.predict(agreement_sums(graph))
