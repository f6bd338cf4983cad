"""Find the relatives of a program, and how their groups of configurable nodes line up.

Programs come in families: one network design with another batch size, width or depth. Programs of one family are
relatives. Files do not name the family, so relatives are found by their groups, which line up in the order of the
graph. The digits of an option name dimensions and not sizes, so relatives offer the same options. Batch and width
therefore do not matter for anything here. Depth matters little: a deeper network has more nodes per group, and mostly
the same options.

Two groups are alike if they have the same operations in the same shares, and the same options. Options are compared by
their rows of digits, because each file numbers its options and groups anew.
"""
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl

from kit.checks import check_number
from kit.factored import groups_of
from kit.pad import SHAPE_PRODUCT

LEAST_ALIKE = 0.25       # two groups that are less alike are not aligned
# A program is a relative if its similarity is at least this; set after the similarities of the real files were seen.
# Known relatives that differ in batch size, width or depth reach .80 to 1 in the real files; training and inference
# versions of a network at most .71. Strangers reach .68
NEAR = 0.75
MOST_RELATIVES = 5
PLACE = ("collection", "split", "name")      # of a file, in a catalogue


class Alignment(NamedTuple):
    """How the groups of two programs line up: p pairs of groups."""
    pairs: np.ndarray        # (p, 2) int64; places in the two lists of groups, both rising
    alike: np.ndarray        # (p,) float64 in (0, 1]; how much alike the two groups of a pair are
    similarity: float        # of the two programs, in [0, 1]; 1: all groups line up and are the same


class Relative(NamedTuple):
    """A program that is like another one, and how the groups of the other program (first) line up with its own."""
    graph: tuple             # LayoutGraph
    alignment: Alignment
    same: bool               # it has the same nodes, edges and features: other configurations of one program


def stretched(rows, n):
    """Rows of options (k, n', 18) for a group of `n` nodes: (k, n, 18); nodes correspond by their relative places."""
    return rows[:, np.arange(n) * rows.shape[1] // n]


def group_similarity(a, b):
    """How much alike two Groups are, a float in [0, 1]: the share of operations times the share of options they share.

    Each operation has the share of the group's nodes that have it, and two groups share the smaller of the two shares.
    Two options are the same if all their digits are.
    """
    return _group_similarity(a, b, _Sets())


class _Sets:
    """Operations and options of Groups as sets; each is computed once."""

    def __init__(self):
        self.known = {}

    def _of(self, group, what, make):
        if (id(group), what) not in self.known:
            self.known[id(group), what] = group, make()          # the group is kept, so no other one gets its id
        return self.known[id(group), what][1]

    def operations(self, group):
        """{operation: number of nodes}."""
        return self._of(group, "operations", lambda: Counter(group.opcodes.tolist()))

    def options(self, group, n):
        """The options of the group, stretched to `n` nodes."""
        return self._of(group, n, lambda: frozenset(row.tobytes() for row in stretched(group.rows, n)))


def _group_similarity(a, b, sets):
    mine, other = sets.operations(a), sets.operations(b)
    # shares as whole numbers over a common denominator, so that equal shares add up to 1
    shared = sum(min(count * len(b.opcodes), other[op] * len(a.opcodes)) for op, count in mine.items() if op in other)
    if not shared:
        return 0.0                                               # options need not be compared
    operations = shared / (len(a.opcodes) * len(b.opcodes))
    n = max(len(a.opcodes), len(b.opcodes))
    first, second = sets.options(a, n), sets.options(b, n)
    return operations * len(first & second) / len(first | second)


def align_groups(first, second):
    """Line the groups of two programs up: the matching in order with the largest sum of similarities.

    It is a longest common subsequence whose letters may be more or less alike. Neither the numbers of the groups nor
    the numbers of their options matter.

    Parameters
    ----------
    first, second : list of Group
        From `groups_of`.

    Returns
    -------
    Alignment
        Its similarity is twice the sum over pairs of groups, divided by the number of groups of both programs; 0 if
        one of them has none.
    """
    return _align(first, second, _Sets())


def _align(first, second, sets):
    score = np.zeros((len(first), len(second)))
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            score[i, j] = _group_similarity(a, b, sets)
    pairs = _best_matching(score)
    alike = score[pairs[:, 0], pairs[:, 1]]
    return Alignment(pairs, alike, _similarity(alike, len(first) + len(second)))


def _similarity(alike, groups):
    """Of two programs with so many groups together, from how much alike the groups are that line up."""
    return float(min(2 * alike.sum() / groups, 1.0)) if groups else 0.0


def _best_matching(score):
    """The matching in order with the largest sum of `score` (a, b): places (p, 2); too small scores do not count."""
    score = np.where(score < LEAST_ALIKE, 0, score)
    best = np.zeros((len(score) + 1, score.shape[1] + 1))        # of the first i and the first j groups
    for i, j in np.ndindex(score.shape):
        best[i + 1, j + 1] = max(best[i, j + 1], best[i + 1, j], best[i, j] + score[i, j])
    pairs, i, j = [], *score.shape
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return np.array(pairs[::-1], np.int64).reshape(-1, 2)


def nearest_relatives(graph, graphs, most=MOST_RELATIVES, least=NEAR):
    """The programs among `graphs` that are most like `graph`, nearest first.

    Configurations and runtimes of `graph` are not read, except for which options its groups have. Among equally
    similar programs, the nearer one in tensor sizes comes first. If other configurations of the same program are among
    `graphs`, only these are returned.

    Parameters
    ----------
    graph : LayoutGraph
    graphs : sequence of LayoutGraph
        Pruned as `graph` is.
    most : int
        How many to return at most.
    least : float
        Least similarity, 0 to 1.

    Returns
    -------
    list of Relative
        Empty if no program is near enough.
    """
    own, sets, found = groups_of(graph), _Sets(), []
    for place, other in enumerate(graphs):
        count = len(np.unique(other.node_group))
        # most programs need not be aligned: if all groups of the program with fewer groups had an equal partner, this
        # would not be enough
        if _similarity(np.ones(min(len(own), count)), len(own) + count) < least:
            continue
        relative = Relative(other, _align(own, groups_of(other), sets), _same_program(graph, other))
        if len(relative.alignment.pairs) and relative.alignment.similarity >= least:
            key = not relative.same, -relative.alignment.similarity, _size_difference(graph, other), place
            found.append((key, relative))
    found = [relative for _, relative in sorted(found, key=lambda pair: pair[0])][:most]
    return [r for r in found if r.same] or found


def _same_program(a, b):
    """Whether two graphs have the same operations, edges, features and configurable nodes."""
    names = ("node_opcode", "edge_index", "node_config_ids", "node_feat")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def _size_difference(a, b):
    """How far apart the tensors of the configurable nodes of two graphs are in size, in powers of 2."""
    sizes = [np.log2(g.node_feat[g.node_config_ids, SHAPE_PRODUCT].clip(1)).mean() for g in (a, b)]
    return abs(sizes[0] - sizes[1])


def structural_relatives(catalogue, least=NEAR):
    """The nearest relative in training of each validation and test program, from the catalogue alone.

    The similarity is that of `align_groups`, but read off the digests in the column `structure`, which say whether two
    groups have operations in the same shares, and which options they share. Groups whose operations have different
    shares count as not alike. So a relative that is found here is one for `nearest_relatives`, too. No graph is read,
    and equal structures are compared once.

    Parameters
    ----------
    catalogue : polars.DataFrame
        `Prepared.catalogue`, or some of its rows.
    least : float
        Least similarity, 0 to 1.

    Returns
    -------
    polars.DataFrame
        One row per readable validation and test program of the layout collections: collection, split, name;
        `similarity` to the nearest training program of the collection; `relative`, the name of this program, null if it
        is not near enough. Among equally similar programs, the first.

    Raises
    ------
    ValueError
        If `least` is no share.
    """
    check_number(locals(), "a share, 0 to 1", "least")
    rows = []
    for _, part in catalogue.filter(pl.col("structure").is_not_null()).group_by("collection", maintain_order=True):
        taught, first = part.filter(pl.col("split") == "train"), {}
        for name, structure in taught.select("name", "structure").iter_rows():
            first.setdefault(tuple(structure), name)
        nearest = {}
        for *place, structure in part.filter(pl.col("split") != "train").select(*PLACE, "structure").iter_rows():
            own = tuple(structure)
            if own not in nearest:
                nearest[own] = _nearest_structure(own, first)
            similarity, name = nearest[own]
            rows.append((*place, similarity, name if similarity >= least else None))
    schema = {**dict.fromkeys(PLACE, pl.String), "similarity": pl.Float64, "relative": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _nearest_structure(own, structures):
    """(similarity, name) of the nearest of `structures`, {tuple of str: name}; (0, None) if nothing lines up."""
    best = 0.0, None
    for other, name in structures.items():
        similarity = _structures_alike(own, other)
        best = (similarity, name) if similarity > best[0] else best
    return best


def _structures_alike(first, second):
    """The similarity of two programs by their structures, tuples of str."""
    score = np.array([[_groups_alike(a, b) for b in second] for a in first]).reshape(len(first), len(second))
    pairs = _best_matching(score) if score.any() else np.zeros((0, 2), np.int64)
    return _similarity(score[pairs[:, 0], pairs[:, 1]], len(first) + len(second))


@lru_cache(1 << 18)
def _groups_alike(a, b):
    """The similarity of two groups by their digests, of operations and of options; see `group_similarity`."""
    (operations, *mine), (others, *theirs) = a.split(), b.split()
    return len({*mine} & {*theirs}) / len({*mine} | {*theirs}) if operations == others else 0.0
