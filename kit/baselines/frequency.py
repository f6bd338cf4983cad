"""Frequency: rank the configurations of a program by how frequent their codes are in the program's own file.

The collections `default` come from a search that began at the compiler's choice. Such a search goes on from fast
configurations, so options that are good for a program are frequent in its file. This reads no runtime, so it needs no
training program. In the collections `random` every option is drawn evenly, and frequency says nothing there.
Source: the eleventh place of the competition, who used it for `default`, tells of it in the forum.
"""
import numpy as np

from kit.checks import check_graph
from kit.prune import config_ids


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
