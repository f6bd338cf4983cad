"""What a model has to beat: ridge regression on counts of configured digits, and the compiler's default tile."""
import numpy as np
from sklearn.linear_model import RidgeCV

CONFIGURABLE = (26, 34, 75)              # convolution, dot, reshape: the only configurable opcodes in the data set
PENALTIES = tuple(10.0 ** p for p in range(-2, 6))


def digit_counts(graph):
    """Count, configuration by configuration, how many nodes of each opcode have each digit in each place.

    Parameters
    ----------
    graph : LayoutGraph

    Returns
    -------
    ndarray, shape (c, 3 * 18 * 7), float64
        For convolution, dot and reshape, 18 places and the digits -1..5.
    """
    nc, codes, places = graph.code_rows.shape
    slot = np.searchsorted(CONFIGURABLE, graph.node_opcode[graph.node_config_ids]).clip(max=2)      # (nc,)
    # one table row per (group, code), summed over the group's nodes; then one look-up per (configuration, group)
    groups = graph.config_codes.shape[1]
    table = np.zeros((groups, codes, 3, places, 7))
    node, code, place = np.ogrid[:nc, :codes, :places]
    np.add.at(table, (graph.node_group[node], code, slot[node], place, graph.code_rows + 1), 1)
    table = table.reshape(groups, codes, -1)
    return sum((table[g, graph.config_codes[:, g]] for g in range(groups)),
               start=np.zeros((len(graph.config_runtime), table.shape[-1])))


def fit_digit_ridge(graphs):
    """Fit ridge regression from `digit_counts` to the rank of the runtime within its graph.

    Parameters
    ----------
    graphs : sequence of LayoutGraph
        Training graphs; every graph weighs the same. The penalty is chosen by leave-one-out error.

    Returns
    -------
    callable
        LayoutGraph -> cost (c,), lower is faster.
    """
    features = np.concatenate([digit_counts(g) - digit_counts(g).mean(axis=0) for g in graphs])
    ranks = np.concatenate([np.unique(g.config_runtime, return_inverse=True)[1] / len(g.config_runtime) for g in graphs])
    weights = np.concatenate([np.full(len(g.config_runtime), 1 / len(g.config_runtime)) for g in graphs])
    ridge = RidgeCV(PENALTIES).fit(features, ranks, weights / weights.mean())
    return lambda graph: ridge.predict(digit_counts(graph))


def default_tile_score(graph):
    """Score of running each kernel as the compiler would.

    Parameters
    ----------
    graph : TileGraph

    Returns
    -------
    float
        2 - 1 / (fastest normalised runtime): by definition the default's own normalised runtime is 1.
    """
    return 2 - 1 / (graph.config_runtime / graph.config_runtime_normalizers).min()
