"""Why the config-token model or additive trees give a configuration its cost: the cost as a sum of named terms.

The cost of a configuration is a sum: one term for each configurable node and, in the config-token model alone, one for
each pair of configurable nodes whose layouts meet, and one rest, the small network of the summed tokens. So the terms
of a cost, or of the difference of two costs, can be read off the model's tables. The terms say what the model believes,
not what is true.
"""
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from kit.agreement import PairColumns
from kit.checks import check_graph, check_whole, expect
from kit.data import OPCODE_NAMES, row_words
from kit.models.additive_trees import AdditiveTrees, code_counts
from kit.models.config_token import ConfigTokenModel
from kit.pad import ELEMENT_TYPE, SHAPE, TYPE_BYTES
from kit.precision import own_precision


class Explanation(NamedTuple):
    """The terms of one cost, or of the difference of two costs; `cost` = `nodes` + `pairs` + `rest`, all summed."""
    cost: float                  # of the configuration; minus the cost of `against`, if there is one
    nodes: np.ndarray            # (nc,) float64; of each configurable node
    pairs: np.ndarray            # (p,) float64; of each pair of configurable nodes whose layouts meet
    rest: float                  # effects that do not add up: the network of the summed tokens
    ends: np.ndarray             # (p, 2) int64; positions in node_config_ids: producer, then consumer or other producer
    differ: np.ndarray           # (p,) float64, 0 to 1; how far the layouts of a pair disagree, for the configuration
    differ_against: np.ndarray   # (p,) the same for `against`; without it 0
    config: np.ndarray           # (g,) int64; the codes
    against: np.ndarray | None   # (g,) int64

    def by_group(self, graph):
        """Add up the terms over groups -> (g, g) float64: nodes on the diagonal, pairs above it."""
        table = np.zeros((len(self.config),) * 2)
        np.add.at(table, (graph.node_group, graph.node_group), self.nodes)
        low, high = np.sort(graph.node_group[self.ends], axis=1).T
        np.add.at(table, (low, high), self.pairs)
        return table

    def by_node(self):
        """Terms by configurable node, (nc,): its own, and half of each pair that it belongs to."""
        return self.nodes + np.bincount(self.ends.ravel(), np.repeat(self.pairs / 2, 2), len(self.nodes))


@own_precision()
def explain(model, graph, config, against=None, tensors=None):
    """Split the cost that a model gives to a configuration into its terms.

    Parameters
    ----------
    model : ConfigTokenModel or AdditiveTrees
        Trained. Additive trees have terms of nodes alone.
    graph : LayoutGraph
        Pruned as in training.
    config : array_like of int, shape (g,)
        The code of each group; it need not be one of the graph's configurations.
    against : array_like of int, shape (g,), optional
        Explain the difference to the cost of this configuration. None: the terms of the cost itself.
    tensors : optional
        `model.prepare(graph)`, if it is at hand.

    Returns
    -------
    Explanation
        Terms in float64. A cost has no unit; only differences between costs of one program mean something.

    Raises
    ------
    ValueError
        If an argument is of another kind, or a code is not one of its group's.
    """
    expect(isinstance(model, (AdditiveTrees, ConfigTokenModel)), "model", model, "a ConfigTokenModel or AdditiveTrees")
    check_graph(graph, tile=False, least=0)
    config = _checked_codes("config", config, graph)
    against = None if against is None else _checked_codes("against", against, graph)
    split = _additive_terms if isinstance(model, AdditiveTrees) else _token_terms
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()
            tensors = model.prepare(graph) if tensors is None else tensors
            ends, terms_of = split(model, graph, tensors)
            one = terms_of(config)
            nothing = _Terms(0.0, 0.0, 0.0, np.zeros(len(one.differ)))
            other = nothing if against is None else terms_of(against)
    finally:
        model.train(was_training)
    nodes, pairs, rest = one.nodes - other.nodes, one.pairs - other.pairs, one.rest - other.rest
    return Explanation(float(nodes.sum() + pairs.sum() + rest), nodes, pairs, rest, ends, one.differ, other.differ,
                       config, against)


def reasons(graph, explanation, most=10):
    """The largest terms of an Explanation in the program's words.

    Parameters
    ----------
    graph : LayoutGraph
        The graph that was explained. Node numbers are those of the graph that is given: numbers change with pruning.
    explanation : Explanation
    most : int
        Number of rows; equal terms of one group or pair of groups are added up first.

    Returns
    -------
    pandas.DataFrame
        One row a group or pair of groups, the largest absolute term first: `term` (as `cost`, no unit; above 0 is
        slower), `where` (operations, node numbers and shapes), `layouts` (as XLA writes them, minor dimension first),
        `copies` (operations whose layouts disagree: for the configuration, and for the one compared with) and `MiB` of
        the largest tensor among the operations.

    Raises
    ------
    ValueError
        If an argument is of another kind.
    """
    check_graph(graph, tile=False, least=0)
    expect(isinstance(explanation, Explanation), "explanation", explanation, "an Explanation")
    check_whole(locals(), most=1)
    table, rows = explanation.by_group(graph), []
    order = np.argsort(-np.abs(table), axis=None, kind="stable")
    for low, high in zip(*np.unravel_index(order[:most], table.shape)):
        if table[low, high]:
            rows.append({"term": table[low, high], **_words(graph, explanation, int(low), int(high))})
    return pd.DataFrame(rows, columns=["term", "where", "layouts", "copies", "MiB"])


def _checked_codes(name, codes, graph):
    """Codes (g,) as int64; ValueError if they are not one code per group, of those that the group has."""
    found, counts = np.asarray(codes), code_counts(graph)
    fits = found.shape == counts.shape and found.dtype.kind in "iu" and (found >= 0).all() and (found < counts).all()
    expect(fits, name, codes, f"{len(counts)} codes, each at least 0 and below {counts.tolist()}")
    return found.astype(np.int64)


class _Terms(NamedTuple):
    nodes: np.ndarray            # (nc,) float64
    pairs: np.ndarray            # (p,) float64
    rest: float
    differ: np.ndarray           # (p,) float64


def _additive_terms(model, graph, tensors):
    """No pairs, (0, 2), and a function from a configuration (g,) to its terms under additive trees."""
    table, place, none = model.terms(tensors), np.arange(len(graph.node_group)), np.zeros(0)
    return np.zeros((0, 2), np.int64), lambda config: _Terms(table[place, config[graph.node_group]], none, 0.0, none)


def _token_terms(model, graph, tensors):
    """The pairs, (p, 2), and a function from a configuration (g,) to its terms under the config-token model."""
    unary, by_row = model.terms(tensors)

    def terms_of(config):
        codes = torch.as_tensor(config, device=unary.device)[tensors.node_group]
        chosen = unary[torch.arange(len(codes), device=codes.device), codes]
        rest = model.pool(chosen[:, 1:].sum(dim=0)[None]).item() if model.settings.mix == "pool" else 0.0
        pairs = differ = torch.zeros(len(tensors.pairs))
        if len(by_row):
            first, second = codes[tensors.pairs].T
            row = tensors.pair[torch.arange(len(first), device=first.device), first, second].long()
            pairs, differ = by_row[row], tensors.rows[row][:, PairColumns.DISAGREE].amax(dim=1)
        nodes, pairs, differ = (part.double().cpu().numpy() for part in (chosen[:, 0], pairs, differ))
        return _Terms(nodes, pairs, rest, differ)
    return tensors.pairs.cpu().numpy(), terms_of


def _words(graph, explanation, one, other):
    """Where a term comes from, in words, as a dict: of group `one`, or of the groups `one` and `other`."""
    group_of_ends = graph.node_group[explanation.ends]
    between = np.flatnonzero((np.sort(group_of_ends, axis=1) == (one, other)).all(axis=1))
    groups = [one] if one == other else group_of_ends[between[0]].tolist()              # the producer first
    layouts = [_layouts(graph, explanation.config, group) for group in groups]
    copies = f"{np.count_nonzero(explanation.differ[between])} of {len(between)}"
    if explanation.against is not None:
        before = [_layouts(graph, explanation.against, group) for group in groups]
        layouts = [now if now == old else f"{now} instead of {old}" for now, old in zip(layouts, before)]
        copies += f", instead of {np.count_nonzero(explanation.differ_against[between])}"
    return {"where": " -> ".join(_operations(graph, group) for group in groups), "layouts": " -> ".join(layouts),
            "copies": copies if len(between) else "", "MiB": max(_mebibytes(graph, group) for group in groups)}


def _operations(graph, group, most=3):
    """The operations of a group: opcode, node numbers, and the shape of the first."""
    nodes = graph.node_config_ids[graph.node_group == group]
    shape = graph.node_feat[nodes[0], SHAPE].astype(int)
    more = f" and {len(nodes) - most} more" * (len(nodes) > most)
    return (f"{OPCODE_NAMES[graph.node_opcode[nodes[0]]]} {', '.join(map(str, nodes[:most]))}{more} "
            f"[{','.join(map(str, shape[shape > 0]))}]")


def _layouts(graph, config, group):
    place = int(np.argmax(graph.node_group == group))
    return row_words(OPCODE_NAMES[graph.node_opcode[graph.node_config_ids[place]]],
                     graph.code_rows[place, config[group]])


def _mebibytes(graph, group):
    """Size of the largest output of a group's nodes, without padding."""
    feat = graph.node_feat[graph.node_config_ids[graph.node_group == group]]
    size = np.maximum(feat[:, SHAPE], 1).prod(axis=1, dtype=np.float64) * (feat[:, ELEMENT_TYPE] @ np.array(TYPE_BYTES))
    return float(size.max() / 2**20)
