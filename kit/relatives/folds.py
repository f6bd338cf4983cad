"""Split training programs into folds, so that every program can be ranked by a model that saw no relative of it.

Each fold is left out of the training of one model, and this model ranks it: the costs are *out-of-fold* predictions.
Programs of one family stay in one fold. Otherwise a model would rank a program after training on its relatives, and
its score would be too high.
"""
import hashlib
from collections import Counter

import numpy as np

from kit.checks import check_whole, checked_graphs
from kit.relatives.nearest import NEAR, align_groups, groups_of


def families(graphs):
    """Group training graphs into families that share nothing -> list of lists of graph_id, each name once.

    Layout graphs belong together if they have the same name, the same nodes, edges and features, or if one is a
    relative of the other (`nearest_relatives`), also by way of a third graph. So a program that two collections hold
    is in one family. Kernels belong together if they are kernels of the same program. Families and names come in the
    order of `graphs`.
    """
    graphs = checked_graphs("graphs", graphs)
    head = list(range(len(graphs)))              # points to an earlier member of the family; the first to itself

    def first(place):
        while head[place] != place:
            place = head[place]
        return place

    def join(one, other):
        low, high = sorted((first(one), first(other)))
        head[high] = low
    met, structures = {}, {}
    for place, graph in enumerate(graphs):
        if hasattr(graph, "config_feat"):
            join(met.setdefault(graph.graph_id.rsplit("_", 1)[0], place), place)         # a kernel is PROGRAM_HASH
            continue
        groups = groups_of(graph)
        # graphs with the same options have the similarity 1, so that one of them is enough to be compared
        options = tuple((group.opcodes.tobytes(), frozenset(row.tobytes() for row in group.rows)) for group in groups)
        for key in (graph.graph_id, _program(graph), *[options] * bool(groups)):
            join(met.setdefault(key, place), place)
        if groups:
            structures.setdefault(options, (place, groups))
    structures = list(structures.values())
    for number, (place, groups) in enumerate(structures):
        for other, others in structures[:number]:
            if first(place) != first(other) and _are_relatives(groups, others):
                join(place, other)
    found = {}
    for place, graph in enumerate(graphs):
        found.setdefault(first(place), {})[graph.graph_id] = None
    return [list(names) for names in found.values()]


def _program(graph):
    """A digest of the nodes, edges and features of a layout graph."""
    digest = hashlib.sha256()
    for array in (graph.node_opcode, graph.edge_index, graph.node_config_ids, graph.node_feat):
        digest.update(repr(array.shape).encode() + np.ascontiguousarray(array, np.float64).tobytes())
    return digest.digest()


def _are_relatives(groups, others):
    """Whether two programs are as near as `nearest_relatives` asks for."""
    if 2 * min(len(groups), len(others)) < NEAR * (len(groups) + len(others)):         # no pair is more alike than 1
        return False
    # sums of the same numbers in another order may differ by a rounding
    return align_groups(groups, others).similarity >= NEAR - 1e-9


def fold_numbers(graphs, folds):
    """Give each training graph the number of its fold.

    Parameters
    ----------
    graphs : sequence of LayoutGraph or TileGraph
        All graphs that one model is trained on. Graphs with the same name get the same fold.
    folds : int
        At least 2. With fewer families than folds, each family is a fold of its own.

    Returns
    -------
    dict of str to int
        {graph_id: number of the fold, from 0}. Every family is in one fold, and folds have about the same number of
        graphs. {} if all graphs are one family, because then nothing would be left to train on.

    Raises
    ------
    ValueError
        If `folds` is not a whole number of at least 2, or a graph is not whole.
    """
    check_whole(locals(), folds=2)
    own = families(graphs)
    if len(own) < 2:
        return {}
    copies = Counter(graph.graph_id for graph in graphs)
    sizes, found = [0] * min(folds, len(own)), {}
    # the largest families first, each to the fold that is smallest so far
    for family in sorted(own, key=lambda names: -sum(copies[name] for name in names)):
        fold = sizes.index(min(sizes))
        sizes[fold] += sum(copies[name] for name in family)
        found |= dict.fromkeys(family, fold)
    return found
