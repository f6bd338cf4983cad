"""What a model has to beat: ridge regression on counts of configured digits, and the frequency of codes.

Frequency ranks the configurations of a program by how frequent their codes are in the program's own file. The
collections `default` come from a search that began at the compiler's choice. Such a search goes on from fast
configurations, so options that are good for a program are frequent in its file. This reads no runtime, so it needs no
training program. In the collections `random` every option is drawn evenly, and frequency says nothing there.
Source: the eleventh place of the competition, who used it for `default`, tells of it in the forum.
"""
import numpy as np
from sklearn.linear_model import RidgeCV

from kit.checks import check_graph
from kit.data import OPCODE_NAMES
from kit.prune import config_ids

# the only configurable opcodes in the data set
CONFIGURABLE = tuple(map(OPCODE_NAMES.index, ("convolution", "dot", "reshape")))
PENALTIES = tuple(10.0 ** p for p in range(-2, 6))
RIDGE_ROWS = 20_000                      # fitting takes 300 MB; a whole collection has a million configurations


def digit_counts(graph):
    """Per configuration, how many nodes of each configurable opcode have each digit in each place; (c, 3 * 18 * 7)."""
    return _added_up(graph, _digit_table(graph))


def _digit_table(graph):
    """The same per group and code, (groups, codes, 3 * 18 * 7); a configuration is one code per group."""
    nc, codes, places = graph.code_rows.shape
    opcode = graph.node_opcode[graph.node_config_ids]                                   # (nc,)
    slot, counted = np.searchsorted(CONFIGURABLE, opcode).clip(max=2), np.isin(opcode, CONFIGURABLE)
    groups = graph.config_codes.shape[1]
    table = np.zeros((groups, codes, 3, places, 7))
    node, code, place = np.ogrid[:nc, :codes, :places]
    np.add.at(table, (graph.node_group[node], code, slot[node], place, graph.code_rows + 1), counted[node])
    return table.reshape(groups, codes, 3 * places * 7)


def _added_up(graph, table):
    """Sum the rows of a table (groups, codes, ...) that the codes of each configuration name; (c, ...)."""
    total = np.zeros((len(graph.config_codes), *table.shape[2:]))
    for g, rows in enumerate(table):
        total += rows[graph.config_codes[:, g]]
    return total


def fit_digit_ridge(graphs):
    """Fit ridge regression from `digit_counts` to the rank of the runtime within its graph.

    Every LayoutGraph has the same weight. The penalty is chosen by leave-one-out error. At most `RIDGE_ROWS`
    configurations are used in all, the same number per graph. Returns a function from a LayoutGraph to its cost (c,);
    lower is faster. A ValueError if there is no graph.
    """
    if not graphs:
        raise ValueError("ridge regression needs at least one training graph")
    graphs = [evenly_spaced(g, max(RIDGE_ROWS // len(graphs), 1)) for g in graphs]
    ranks = [np.unique(g.config_runtime, return_inverse=True)[1] for g in graphs]
    ridge = fit_centred([digit_counts(g) for g in graphs], [rank / max(rank.max(), 1) for rank in ranks])
    # the cost is linear in the counts, so it is a sum of one term per group; counts take 3 kB per configuration
    return lambda graph: ridge.intercept_ + _added_up(graph, _digit_table(graph) @ ridge.coef_)


def fit_centred(features, targets):
    """Fit a RidgeCV from features (c, f) to targets (c,), one array each per graph, both centred within the graph.

    Every graph has the same weight. The penalty is chosen by leave-one-out error.
    """
    weights = np.concatenate([np.full(len(x), 1 / len(x)) for x in features])
    features, targets = (np.concatenate([x - x.mean(axis=0) for x in arrays]) for arrays in (features, targets))
    return RidgeCV(PENALTIES).fit(features, targets, weights / weights.mean())


def evenly_spaced(graph, most):
    """A layout graph with at most `most` of its configurations."""
    c = len(graph.config_runtime)
    index = np.arange(min(c, most)) * c // min(c, most)
    return graph._replace(config_codes=graph.config_codes[index], config_runtime=graph.config_runtime[index])


def frequency(graph):
    """Cost of each configuration: minus the sum, over groups, of the logarithm of the share of its code.

    Shares are counted over distinct configurations, because a default configuration is measured about 40 times.

    Parameters
    ----------
    graph : LayoutGraph
        Its runtimes are not read.

    Returns
    -------
    ndarray, shape (c,), float64
        Lower is expected to be faster.

    Raises
    ------
    ValueError
        If it is not a layout graph with configurations.
    """
    check_graph(graph, tile=False, least=1)
    _, first = np.unique(config_ids(graph), return_index=True)
    cost = np.zeros(len(graph.config_codes))
    for codes in graph.config_codes.T.astype(np.int64):
        cost -= np.log(np.bincount(codes[first])[codes] / len(first))        # a code of the file is there once at least
    return cost
