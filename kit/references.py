"""Configurations of a graph that all others can be compared with, whatever file or batch these stand in."""
import hashlib

import numpy as np

from kit.pad import repad_layout


def reference_configs(graph, count):
    """Draw configurations of a graph by what they are: neither their order nor their runtimes are looked at.

    Parameters
    ----------
    graph : LayoutGraph
    count : int
        At most so many, all distinct.

    Returns
    -------
    ndarray, shape (r,), int64
        The compiler's default (all digits -1) first, if the graph has it; then those whose content has the smallest
        hash. Of configurations that merely swap layouts between equal nodes one stands for all.
    """
    features, group, codes = repad_layout(graph.node_feat)[0], graph.node_group, graph.config_codes
    digests = np.zeros(graph.code_rows.shape[:2], np.uint64)                                 # (nc, k)
    for place, node in enumerate(graph.node_config_ids):
        about = features[node].tobytes() + np.int64(graph.node_opcode[node]).tobytes()
        for code, row in enumerate(graph.code_rows[place]):
            digests[place, code] = int.from_bytes(hashlib.blake2b(about + row.tobytes(), digest_size=8).digest(), "big")
    of_code = np.zeros((codes.shape[1], digests.shape[1]), np.uint64)                        # (g, k)
    np.add.at(of_code, group, digests)                                                       # in any order; wraps
    given = np.zeros(of_code.shape, bool)
    np.logical_or.at(given, group, (graph.code_rows >= 0).any(axis=2))
    content, changed = np.zeros(len(codes), np.uint64), np.zeros(len(codes), bool)
    for column, contents, gives in zip(codes.T, of_code, given):
        content += contents[column]
        changed |= gives[column]
    _, distinct = np.unique(content, return_index=True)                                      # by ascending hash
    return distinct[np.argsort(changed[distinct], kind="stable")][:count]
