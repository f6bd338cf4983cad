"""Sums of disagreements are what a slow loop adds up; trees on them rank programs that they never saw."""
import numpy as np
import pytest
from drawn import WRITTEN_OTHERWISE, drawn_layout, drawn_neighbours, some_configs
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


@pytest.mark.parametrize("change", WRITTEN_OTHERWISE)
def test_sums_do_not_depend_on_how_a_graph_is_written(change):
    graph = drawn_program(4)
    other = change(graph, np.random.default_rng(0))
    if change.__name__ == "every_node_its_own_group":        # more could go wrong than in tied groups
        assert (agreement_sums(other) <= agreement_sums(graph) + 1e-6).all()
    else:
        assert agreement_sums(other) == pytest.approx(agreement_sums(graph), abs=1e-6)


def test_a_row_does_not_depend_on_the_other_configurations_and_lies_between_0_and_1():
    graph = drawn_program(5, c=60)
    whole = agreement_sums(graph)
    part = graph._replace(config_codes=graph.config_codes[[7, 3]], config_runtime=graph.config_runtime[[7, 3]])
    assert (agreement_sums(part) == whole[[7, 3]]).all()
    assert whole.min() >= 0 and whole.max() <= 1 + 1e-6


def test_the_compiler_s_default_disagrees_with_nothing_of_its_own():
    graph = drawn_program(6)
    none = graph._replace(code_rows=np.concatenate([graph.code_rows, np.full((6, 1, 18), -1, np.int8)], axis=1),
                          config_codes=np.full((1, 3), 4, np.uint8), config_runtime=np.array([1]))
    where_defaults_meet = [54 + 4, 54 + 9, 54 + 14]
    assert not np.delete(agreement_sums(none), where_defaults_meet, axis=1).any() and agreement_sums(graph).any()


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


def test_the_same_seed_gives_the_same_costs(monkeypatch):
    monkeypatch.setattr(lab.studies.trees, "TREE_ROWS", 200)
    graphs, unseen = [decided_by_agreement(seed) for seed in range(4)], decided_by_agreement(9)
    first, again, other = (fit_agreement_trees(graphs, seed)(unseen) for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()


def test_trees_need_a_graph():
    with pytest.raises(ValueError, match="^boosted trees need at least one training graph$"):
        fit_agreement_trees([])


def test_more_than_256_codes_are_told_apart():
    graph = drawn_layout(3, k=300, c=4, codes=np.uint16)
    graph = graph._replace(node_opcode=np.full(12, 34))
    graph.config_codes[0], graph.config_codes[1] = 299, 43
    found = agreement_sums(graph)
    assert (found[0] != found[1]).any()


def test_trees_rank_other_configurations_of_a_real_program(real_data):
    path, = [p for p in npz_paths(real_data / "npz", "layout:xla:default", "train") if "alexnet" in p.stem]
    graph = some_configs(read_layout(path), np.arange(0, 38_000, 20))
    half = [graph._replace(config_codes=graph.config_codes[part::2], config_runtime=graph.config_runtime[part::2])
            for part in (0, 1)]
    assert kendalltau(fit_agreement_trees(half[:1])(half[1]), half[1].config_runtime).statistic > 0.65
