"""Features of layout configurations as a table, for a model of one's own: one row per configuration.

Boosted trees and linear models need rows of the same length for every program. So what `kit.agreement` knows of each
node and of each pair of nodes is added up over the program, by the kind of operation. The 11th place of the competition
ranked with boosted trees on features of this kind alone.
"""
import numpy as np
import polars as pl

from kit.agreement import OwnColumns, PairColumns, agreement_tables
from kit.baselines import CONFIGURABLE, frequency
from kit.checks import check_graph
from kit.data import OPCODE_NAMES

KINDS = tuple(OPCODE_NAMES[opcode] for opcode in CONFIGURABLE)       # convolution, dot, reshape
TENSORS = "output", "input", "kernel"
ENDS = "input", "kernel", "better", "output", "joined"               # as PairColumns.DISAGREE
PROGRAM = "nodes", "configurable_nodes", "groups", *(f"{kind}s" for kind in KINDS)


def config_features(graph):
    """Features of each configuration of a layout graph.

    Parameters
    ----------
    graph : LayoutGraph
        Pruned or whole; its runtimes are not read.

    Returns
    -------
    polars.DataFrame
        c rows in the order of the file, float32 columns. Sums over nodes have the kind of operation in their names,
        sums over pairs of nodes whose layouts meet begin with "meeting". Of these sums, larger means slower or equal,
        but for "given" and "padding", which may go either way, as the columns without a sum do; see `rising`.

        - `given_KIND_TENSOR`: nodes whose output, input or kernel is given a layout; `kept`: the share of groups that
          are given none
        - `differs_KIND_WHERE`: layouts that differ from the default of the tensor, 0 to 1 each: of the output, of the
          input, of the kernel, of the output as `readers` have it; `..._log`: times log(1 + elements) / 10;
          `..._bytes`: times the bytes of the node's tensor
        - `padding_KIND_TENSOR`: log2 of the factor by which a given layout enlarges the tensor in memory, times bytes
        - `bytes_KIND_WHAT`: bytes of output, input and kernel as laid out; `copied_input` and `copied_kernel`: what
          copies of operands move; `arithmetic`: multiply-adds padded to a matrix unit
        - `meeting_differs_END`: pairs whose layouts differ, by where they meet; `..._log` and `..._bytes` as above;
          `..._nearest`: only of the nearest producer of an operand
        - `meeting_copied_WHAT`: bytes that a copy between the two moves, if the input is copied, the kernel, or both
          only read the tensor; `meeting_unset_WHAT`: the consumer is not given the layout of what it reads;
          `meeting_padding_WHEN`: padding of the tensor, as delivered and as read
        - `frequency`: `kit.baselines.frequency`; `program_WHAT`: of the program, equal in all rows

        Bytes are shares of the largest tensor of the program.

    Raises
    ------
    ValueError
        If it is not a layout graph with configurations.
    """
    check_graph(graph, tile=False, least=1)
    tables, codes = agreement_tables(graph), graph.config_codes.astype(np.int64)
    own_names, own = _own_features(graph, tables)
    pair_names, rows = _pair_features(tables)
    table = np.zeros((len(codes), len(own_names) + len(pair_names)), np.float32)
    by_group = np.zeros((codes.shape[1], *own.shape[1:]), np.float32)
    np.add.at(by_group, graph.node_group, own)
    for group, values in enumerate(by_group):
        table[:, :len(own_names)] += values[codes[:, group]]
    for (producer, consumer), values in _by_groups(graph, tables, rows):
        table[:, len(own_names):] += values[codes[:, producer], codes[:, consumer]]
    return pl.DataFrame(table, [*own_names, *pair_names], orient="row").with_columns(
        kept=pl.lit(_kept(graph)), frequency=pl.lit(frequency(graph).astype(np.float32)),
        **{f"program_{name}": pl.lit(value, pl.Float32) for name, value in zip(PROGRAM, _program(graph))})


def rising(columns):
    """Which columns a cost should never fall with: 1 for each of these, else 0; for monotonic trees."""
    return [int(not name.startswith(("given", "kept", "padding", "meeting_padding", "frequency", "program")))
            for name in columns]


def _own_features(graph, tables):
    """Names, and values per node and code, (nc, k, f) float32, in the column of the node's kind alone."""
    own, share, moved = tables.own, tables.share[:, None, None], tables.bytes
    differs = own[..., OwnColumns.DISAGREE]
    where = "output", "input", "kernel", "readers"
    parts = [("given", TENSORS, own[..., OwnColumns.GIVEN]), ("differs", where, differs),
             ("differs", [f"{name}_log" for name in where], own[..., OwnColumns.BY_SIZE]),
             ("differs", [f"{name}_bytes" for name in where], differs * share),
             ("padding", TENSORS, own[..., OwnColumns.GROWTH] * share),
             ("bytes", (*TENSORS, "copied_input", "copied_kernel", "arithmetic"), moved)]
    names, values = [], []
    opcode = graph.node_opcode[graph.node_config_ids]
    for kind, number in zip(KINDS, CONFIGURABLE):
        names += [f"{word}_{kind}_{what}" for word, whats, _ in parts for what in whats]
        values += [part * (opcode == number)[:, None, None] for *_, part in parts]
    return names, np.concatenate(values, axis=2, dtype=np.float32)


def _pair_features(tables):
    """Names, and values per row of pairs, (r, f) float32."""
    rows, share = tables.rows, tables.share[tables.pairs[tables.row_pair, 0], None]
    differs = rows[:, PairColumns.DISAGREE]
    parts = [("differs", ENDS, differs), ("differs", [f"{end}_log" for end in ENDS], rows[:, PairColumns.BY_SIZE]),
             ("differs", [f"{end}_bytes" for end in ENDS], differs * share),
             ("differs", [f"{end}_nearest" for end in ENDS], differs * rows[:, PairColumns.RANK][:, :1]),
             ("copied", ("input", "kernel", "read"), tables.moved),
             ("unset", TENSORS[1:], rows[:, PairColumns.UNSET] * share),
             ("padding", ("delivered", "input", "kernel"), rows[:, PairColumns.GROWTH] * share)]
    return ([f"meeting_{word}_{what}" for word, whats, _ in parts for what in whats],
            np.concatenate([part for *_, part in parts], axis=1, dtype=np.float32))


def _by_groups(graph, tables, rows):
    """Yield each two groups whose nodes meet, and the sum of their pairs' rows by both codes, (k, k, f)."""
    ends, slot = np.unique(graph.node_group[tables.pairs], axis=0, return_inverse=True)
    for number, groups in enumerate(ends):
        yield groups, sum(rows[tables.pair[pair]] for pair in np.flatnonzero(slot.reshape(-1) == number))


def _kept(graph):
    """Share of the groups of each configuration that are given no layout, (c,)."""
    given = np.zeros((graph.config_codes.shape[1], graph.code_rows.shape[1]), bool)
    np.logical_or.at(given, graph.node_group, (graph.code_rows >= 0).any(axis=2))
    kept = np.zeros(len(graph.config_codes), np.float32)
    for group, codes in enumerate(graph.config_codes.T):
        kept += ~given[group, codes] / np.float32(len(given))
    return kept


def _program(graph):
    """The values of the columns PROGRAM."""
    opcode = graph.node_opcode[graph.node_config_ids]
    return (len(graph.node_opcode), len(opcode), graph.config_codes.shape[1],
            *((opcode == o).sum() for o in CONFIGURABLE))
