"""Counts of digits are what a slow loop counts, and ridge regression on them learns what digits decide.

Frequency is what a slow loop counts, too.
"""
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from scipy.stats import kendalltau
from sklearn.linear_model import RidgeCV

import kit.baselines
from kit.baselines import digit_counts, fit_digit_ridge, frequency
from kit.data import LayoutGraph, dense_configs
from kit.metrics import default_tile_score
from kit.noise import noise_ceiling
from kit.prune import config_ids

OPCODES = (26, 34, 75)           # convolution, dot, reshape


def made_up(rng, c=120, nc=6, groups=4, codes=3, opcodes=OPCODES):
    """A graph whose runtime is decided by the first output digit of each node."""
    node_group = np.append(np.arange(groups), rng.integers(0, groups, nc - groups))
    graph = LayoutGraph("made up", np.zeros((nc + 2, 140), np.float32), np.append([1, 1], rng.choice(opcodes, nc)),
                        np.zeros((0, 2), np.int64), np.arange(2, nc + 2), np.array([0, nc + 2]),
                        rng.integers(0, codes, (c, groups), dtype=np.uint8), node_group,
                        rng.integers(-1, 6, (nc, codes, 18), dtype=np.int8), np.ones(c, np.int64))
    cost = dense_configs(graph, np.arange(c))[:, :, 0].sum(axis=1) + 10
    return graph._replace(config_runtime=1000 * cost + rng.integers(0, 10, c))


def slow_counts(graph):
    dense = dense_configs(graph, np.arange(len(graph.config_runtime)))
    counts = np.zeros((len(dense), 3, 18, 7))
    for j, nodes in enumerate(dense):
        for node, digits in zip(graph.node_config_ids, nodes):
            for place, digit in enumerate(digits):
                if graph.node_opcode[node] in OPCODES:
                    counts[j, OPCODES.index(graph.node_opcode[node]), place, digit + 1] += 1
    return counts.reshape(len(dense), -1)


@pytest.mark.parametrize("opcodes", [OPCODES, (34,), (26, 75), (1, 30, 34, 76)])
def test_digit_counts_are_those_of_a_slow_loop(opcodes):
    rng = np.random.default_rng(0)
    for _ in range(5):
        graph = made_up(rng, c=9, opcodes=opcodes)
        assert (digit_counts(graph) == slow_counts(graph)).all()


def test_without_configurable_nodes_all_counts_are_zero():
    graph = made_up(np.random.default_rng(2))._replace(
        node_config_ids=np.zeros(0, np.int64), node_group=np.zeros(0, np.int64),
        code_rows=np.zeros((0, 1, 18), np.int8), config_codes=np.zeros((120, 0), np.uint8))
    assert digit_counts(graph).shape == (120, 378) and not digit_counts(graph).any()


def test_ridge_ranks_configurations_of_a_graph_that_it_never_saw():
    rng = np.random.default_rng(3)
    cost = fit_digit_ridge([made_up(rng, opcodes=(34,)) for _ in range(40)])
    graphs = [made_up(rng, opcodes=(34,)) for _ in range(9)]
    assert [cost(g).shape for g in graphs] == [(120,)] * 9
    taus = [kendalltau(cost(g), g.config_runtime).statistic for g in graphs]
    assert min(taus) > 0 and np.mean(taus) > 0.5


def test_a_graph_weighs_the_same_however_often_its_configurations_are_listed():
    one = made_up(np.random.default_rng(5))
    opposite = one._replace(config_runtime=one.config_runtime.max() - one.config_runtime + 1)
    often = opposite._replace(config_codes=np.tile(one.config_codes, (3, 1)),
                              config_runtime=np.tile(opposite.config_runtime, 3))
    assert np.ptp(fit_digit_ridge([one])(one)) > 0.1
    for graphs in ([one, opposite], [one, often]):
        assert np.ptp(fit_digit_ridge(graphs)(one)) < 1e-9, "what one says the other denies"
    assert np.ptp(fit_digit_ridge([one, opposite, opposite])(one)) > 0.1


def test_of_many_configurations_an_even_share_of_each_graph_is_used(monkeypatch):
    rng = np.random.default_rng(6)
    graphs, seen = [made_up(rng, c=c) for c in (100, 10, 33)], []
    monkeypatch.setattr(kit.baselines, "RIDGE_ROWS", 60)
    monkeypatch.setattr(kit.baselines, "digit_counts", lambda graph: (seen.append(graph), digit_counts(graph))[1])
    fit_digit_ridge(graphs)
    assert [g.config_runtime.tolist() for g in seen] == [
        graphs[0].config_runtime[::5].tolist(), graphs[1].config_runtime.tolist(),
        graphs[2].config_runtime[[33 * i // 20 for i in range(20)]].tolist()]
    assert all((g.config_codes[:1] == whole.config_codes[:1]).all() for g, whole in zip(seen, graphs))


def test_the_cost_is_that_of_scikit_learn_on_the_counts(monkeypatch):
    rng, fitted = np.random.default_rng(8), []

    class Ridge(RidgeCV):
        def fit(self, *args):
            fitted.append(self)
            return super().fit(*args)
    monkeypatch.setattr(kit.baselines, "RidgeCV", Ridge)
    cost = fit_digit_ridge([made_up(rng) for _ in range(3)])
    for graph in (made_up(rng), made_up(rng, c=1, groups=1), made_up(rng, opcodes=(1,))):
        assert cost(graph) == pytest.approx(fitted[0].predict(slow_counts(graph)), abs=1e-12)


def test_a_file_of_many_configurations_takes_little_memory():
    """100,000 configurations of 400 configurable nodes; as counts they would take 300 MB, as digits 3 GB."""
    graph = made_up(np.random.default_rng(9), c=100, nc=400, groups=20, opcodes=(34,))
    codes = np.random.default_rng(10).integers(0, 3, (100_000, 20), dtype=np.uint8)
    graph = graph._replace(config_codes=codes, config_runtime=10**9 + codes @ np.arange(20) + 17)
    tracemalloc.start()
    try:
        cost = fit_digit_ridge([graph])
        fitting = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        tau = kendalltau(cost(graph), graph.config_runtime).statistic
        predicting = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.reset_peak()
        noise_ceiling(graph.config_runtime, config_ids(graph), draws=2)
        ceiling = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert tau > 0.9
    assert fitting < 500e6 and predicting < 20e6 and ceiling < 300e6, (fitting, predicting, ceiling)


def test_ridge_needs_a_graph():
    with pytest.raises(ValueError, match="^ridge regression needs at least one training graph$"):
        fit_digit_ridge([])


def test_the_score_of_the_default_tile_is_one_minus_its_slowdown():
    rng = np.random.default_rng(7)
    normalizers = rng.integers(1000, 1100, 50)
    runtime = np.rint(normalizers * rng.uniform(0.8, 3, 50)).astype(np.int64)
    runtime[13] = normalizers[13]                                   # the default itself
    measured = runtime / normalizers
    assert default_tile_score(measured) == pytest.approx(1 - (measured[13] / measured.min() - 1))
    assert default_tile_score(measured[13:14]) == 1.0


# --- frequency


def slow_frequency(graph):
    rows = [tuple(row) for row in graph.config_codes.tolist()]
    distinct = set(rows)
    counts = [Counter(row[g] for row in distinct) for g in range(len(rows[0]))]
    return [-sum(math.log(count[code] / len(distinct)) for count, code in zip(counts, row)) for row in rows]


@pytest.mark.parametrize("groups, codes", [(1, 1), (1, 4), (4, 3)])
def test_frequency_is_that_of_a_slow_loop_and_reads_no_runtime(groups, codes):
    rng = np.random.default_rng(9)
    for _ in range(5):
        graph = made_up(rng, c=40, groups=groups, codes=codes)
        cost = frequency(graph)
        assert cost == pytest.approx(slow_frequency(graph)) and cost.shape == (40,)
        assert (frequency(graph._replace(config_runtime=np.zeros(40, np.int64))) == cost).all()
        again = np.tile(graph.config_codes, (3, 1))                      # measured three times
        more = frequency(graph._replace(config_codes=again, config_runtime=np.ones(120, np.int64)))
        assert more == pytest.approx(np.tile(cost, 3))
