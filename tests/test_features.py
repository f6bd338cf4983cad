"""The table of features is what a slow loop over configurations, nodes and pairs adds up."""
import numpy as np
import polars as pl
import pytest
from drawn import drawn_neighbours, drawn_program

from kit.agreement import OwnColumns, PairColumns, agreement_tables
from kit.baselines import frequency
from kit.data import OPCODE_NAMES
from kit.features import KINDS, config_features, rising

ENDS = "input", "kernel", "better", "output", "joined"


def slow_row(graph, tables, chosen):
    """One row of the table by its documentation, {column: value}, for the code of each group."""
    row = {"kept": 0.0}
    for group, code in enumerate(chosen):
        given = any((graph.code_rows[p, code] >= 0).any() for p in np.flatnonzero(graph.node_group == group))
        row["kept"] += (not given) / len(chosen)

    def add(name, value):
        row[name] = row.get(name, 0) + float(value)
    for place, node in enumerate(graph.node_config_ids):
        kind, code = OPCODE_NAMES[graph.node_opcode[node]], chosen[graph.node_group[place]]
        own, share = tables.own[place, code], tables.share[place]
        for k, counts in ((k, k == kind) for k in KINDS):
            for i, tensor in enumerate(("output", "input", "kernel")):
                add(f"given_{k}_{tensor}", counts * own[OwnColumns.GIVEN][i])
                add(f"padding_{k}_{tensor}", counts * own[OwnColumns.GROWTH][i] * share)
            for i, where in enumerate(("output", "input", "kernel", "readers")):
                differs = own[OwnColumns.DISAGREE][i]
                add(f"differs_{k}_{where}", counts * differs)
                add(f"differs_{k}_{where}_log", counts * own[OwnColumns.BY_SIZE][i])
                add(f"differs_{k}_{where}_bytes", counts * differs * share)
            for i, what in enumerate(("output", "input", "kernel", "copied_input", "copied_kernel", "arithmetic")):
                add(f"bytes_{k}_{what}", counts * tables.bytes[place, code, i])
    for pair, (v, u) in enumerate(tables.pairs):
        place = tables.pair[pair, chosen[graph.node_group[v]], chosen[graph.node_group[u]]]
        values, share = tables.rows[place], tables.share[v]
        for i, end in enumerate(ENDS):
            differs = values[PairColumns.DISAGREE][i]
            add(f"meeting_differs_{end}", differs)
            add(f"meeting_differs_{end}_log", values[PairColumns.BY_SIZE][i])
            add(f"meeting_differs_{end}_bytes", differs * share)
            add(f"meeting_differs_{end}_nearest", differs * values[PairColumns.RANK][0])
        for i, what in enumerate(("input", "kernel", "read")):
            add(f"meeting_copied_{what}", tables.moved[place, i])
        for i, what in enumerate(("input", "kernel")):
            add(f"meeting_unset_{what}", values[PairColumns.UNSET][i] * share)
        for i, when in enumerate(("delivered", "input", "kernel")):
            add(f"meeting_padding_{when}", values[PairColumns.GROWTH][i] * share)
    return row


@pytest.mark.parametrize("sizes", [dict(), dict(n=20, nc=9, g=9), dict(m=0), dict(nc=0, g=0, k=1), dict(k=1)],
                         ids=["groups", "single nodes", "no edges", "no configurable nodes", "one code"])
def test_a_row_is_what_a_slow_loop_adds_up(sizes):
    for seed in range(3):
        graph = drawn_program(seed, **sizes)
        table, tables = config_features(graph), agreement_tables(graph)
        assert len(table) == len(graph.config_codes) and set(table.dtypes) == {pl.Float32}
        for row, chosen in zip(table.iter_rows(named=True), graph.config_codes):
            if len(graph.node_config_ids):
                slow = slow_row(graph, tables, chosen)
                assert {name: row[name] for name in slow} == pytest.approx(slow, rel=1e-4, abs=1e-5)
                assert row.keys() - slow.keys() - {name for name in row if name.startswith("meeting")} == {
                    "frequency", *(name for name in row if name.startswith("program"))}
    assert config_features(drawn_program(0, c=5)).select(pl.all().std()).to_numpy().max() > 0.1


def test_columns_of_the_program_and_the_frequency_of_codes():
    graph = drawn_program(1)
    table = config_features(graph)
    opcode = graph.node_opcode[graph.node_config_ids]
    for kind in KINDS:
        assert table[f"program_{kind}s"].to_list() == [(opcode == OPCODE_NAMES.index(kind)).sum()] * len(table)
    assert table["program_groups"][0] == graph.config_codes.shape[1]
    assert table["frequency"].to_numpy() == pytest.approx(frequency(graph), rel=1e-6)


def test_columns_that_a_cost_rises_with_are_never_negative():
    for seed in range(5):
        table = config_features(drawn_program(seed, c=200))
        chosen = [name for name, rises in zip(table.columns, rising(table.columns)) if rises]
        assert len(chosen) > 70 and table.select(chosen).to_numpy().min() >= 0


def test_features_want_a_layout_graph():
    with pytest.raises(ValueError, match="expected a LayoutGraph"):
        config_features(None)
    graph = drawn_neighbours(0)
    with pytest.raises(ValueError):
        config_features(graph._replace(config_codes=graph.config_codes[:0], config_runtime=graph.config_runtime[:0]))
