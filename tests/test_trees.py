"""Sums of disagreements are what a slow loop adds up; trees on them rank programs that they never saw."""
import numpy as np
import pytest
from drawn import drawn_neighbours, some_configs
from scipy.stats import kendalltau

import lab.studies.trees
from kit.agreement import agreement_tables
from kit.data import npz_paths, read_layout
from lab.studies.trees import agreement_sums, fit_agreement_trees

OPCODES = (26, 34, 75)           # convolution, dot, reshape


def drawn_program(seed, **sizes):
    """Drawn neighbours of which most are configurable in the data set, too."""
    graph = drawn_neighbours(seed, **sizes)
    opcode = np.random.default_rng([seed, 2]).choice([*OPCODES, 7], len(graph.node_opcode))
    return graph._replace(node_opcode=opcode)


def slow_sums(graph):
    """Configuration by configuration and node by node; what could be at most by trying every code."""
    tables = agreement_tables(graph)
    codes, groups = graph.code_rows.shape[1], graph.config_codes.shape[1]

    def node(place, code):
        row = np.zeros((3, 18))
        opcode = graph.node_opcode[graph.node_config_ids[place]]
        if opcode in OPCODES:
            own = tables.own[place, code, :11].astype(float)
            row[OPCODES.index(opcode)] = [*own, *(own[:7] * tables.share[place])]
        return row.ravel()

    def pair(which, code_v, code_u):
        row = tables.rows[tables.pair[which, code_v, code_u]].astype(float)
        return np.array([*row[:10], *(row[:5] * tables.share[tables.pairs[which][0]])])
    places = range(len(graph.node_config_ids))
    ends = [tuple(graph.node_group[both]) for both in tables.pairs]
    most = np.zeros(69)
    for g in range(groups):
        most[:54] += np.max([sum((node(p, code) for p in places if graph.node_group[p] == g), np.zeros(54))
                             for code in range(codes)], axis=0)
    for v, u in set(ends):
        most[54:] += np.max([sum((pair(i, a, b) for i, end in enumerate(ends) if end == (v, u)), np.zeros(15))
                             for a in range(codes) for b in range(codes)], axis=0)
    rows = []
    for chosen in graph.config_codes:
        row = np.zeros(69)
        for p in places:
            row[:54] += node(p, chosen[graph.node_group[p]])
        for i, (v, u) in enumerate(ends):
            row[54:] += pair(i, chosen[v], chosen[u])
        rows.append([value / top if top > 0 else 0 for value, top in zip(row, most)])
    return np.array(rows)


@pytest.mark.parametrize("sizes", [dict(), dict(n=20, nc=9, g=9), dict(m=0), dict(nc=0, g=0, k=1), dict(k=1)],
                         ids=["groups", "single nodes", "no edges", "no configurable nodes", "one code"])
def test_sums_are_those_of_a_slow_loop(sizes):
    for seed in range(3):
        graph = drawn_program(seed, **sizes)
        assert agreement_sums(graph) == pytest.approx(slow_sums(graph), abs=1e-6)
    assert agreement_sums(drawn_program(0, c=5)).std(axis=0).max() > 0.1


def decided_by_agreement(seed, c=150):
    """A program whose runtime grows with its disagreements."""
    graph = drawn_program(seed, c=c)
    cost = agreement_sums(graph)[:, [3, 21, 39, 54, 55]].sum(axis=1)
    return graph._replace(config_runtime=(1000 + 1000 * cost).astype(np.int64))


@pytest.mark.parametrize("monotonic", [False, True])
def test_trees_rank_configurations_of_programs_that_they_never_saw(monotonic):
    cost = fit_agreement_trees([decided_by_agreement(seed, c=80) for seed in range(25)], monotonic=monotonic)
    unseen = [decided_by_agreement(seed) for seed in range(100, 108)]
    assert [cost(g).shape for g in unseen] == [(150,)] * 8
    assert np.mean([kendalltau(cost(g), g.config_runtime).statistic for g in unseen]) > 0.6


def test_monotonic_trees_never_like_a_disagreement(monkeypatch):
    rng = np.random.default_rng(0)
    graphs = [g._replace(config_runtime=g.config_runtime.max() + 1 - g.config_runtime)
              for g in map(decided_by_agreement, range(8))]            # the more disagrees, the faster
    rows = rng.random((200, 69)).astype(np.float32)
    worse = rows.copy()
    worse[:, [3, 8, 14, 21, 39, 54, 60]] += 0.5
    likes = {}
    for monotonic in (False, True):
        cost = fit_agreement_trees(graphs, monotonic=monotonic)
        with monkeypatch.context() as patch:
            patch.setattr(lab.studies.trees, "agreement_sums", lambda table: table)
            likes[monotonic] = (cost(worse) < cost(rows) - 1e-9).any()
    assert likes == {False: True, True: False}


def test_only_an_even_share_of_each_graph_is_read(monkeypatch):
    graphs, read = [drawn_program(seed, c=c) for seed, c in enumerate((300, 10, 120))], []
    monkeypatch.setattr(lab.studies.trees, "TREE_ROWS", 150)
    monkeypatch.setattr(lab.studies.trees, "agreement_sums",
                        lambda g: (read.append(g.config_codes), agreement_sums(g))[1])
    fit_agreement_trees(graphs)
    assert [len(codes) for codes in read] == [50, 10, 50]


def test_trees_rank_other_configurations_of_a_real_program(real_data):
    path, = [p for p in npz_paths(real_data / "npz", "layout:xla:default", "train") if "alexnet" in p.stem]
    graph = some_configs(read_layout(path), np.arange(0, 38_000, 20))
    half = [graph._replace(config_codes=graph.config_codes[part::2], config_runtime=graph.config_runtime[part::2])
            for part in (0, 1)]
    assert kendalltau(fit_agreement_trees(half[:1])(half[1]), half[1].config_runtime).statistic > 0.65
