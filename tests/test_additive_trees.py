"""Additive trees: derivatives through the sum, terms that add up, and the best option of each group."""
from itertools import product

import numpy as np
import pytest
import torch
from drawn import drawn_program, some_configs
from scipy.stats import kendalltau
from training import trains_and_travels

from kit.data import npz_paths, read_layout
from kit.models import AdditiveTrees, AdditiveTreesSettings, best_configuration, explain, reasons
from kit.models.additive_trees import _Sum, _SumLoss
from kit.models.boosted_trees import PairLoss
from kit.option_features import option_features
from kit.predict import predict
from kit.prune import prune


def decided_by_options(seed, c=150, **sizes):
    """A program whose runtime is a sum over nodes: of growth in memory and of disagreements with the default."""
    graph = drawn_program(seed, c=c, **sizes)
    names, values = option_features(graph)
    costs = sum(values[..., names.index(name)] for name in ("padding_output", "differs_output", "differs_input"))
    codes = graph.config_codes[:, graph.node_group].astype(int)
    cost = costs[np.arange(len(costs)), codes].sum(axis=1)
    return graph._replace(config_runtime=(100_000 + 1000 * cost).astype(np.int64))


def fitted(graphs, **settings):
    model = AdditiveTrees(AdditiveTreesSettings(**dict(bags=1) | settings))
    model.fit_scale(graphs)
    return model


@pytest.fixture(scope="module")
def model():
    return fitted([decided_by_options(seed, c=80) for seed in range(25)], bags=2)


def test_trees_rank_configurations_of_programs_that_they_never_saw(model):
    unseen = [decided_by_options(seed) for seed in range(100, 108)]
    assert np.mean([kendalltau(predict(model, g), g.config_runtime).statistic for g in unseen]) > 0.7


def slow_counts(graph, one):
    """S: how many nodes of a configuration have each distinct row, (c, r), node by node."""
    _, values = option_features(graph)
    counts = np.zeros((len(graph.config_codes), len(one.rows)))
    for config, codes in enumerate(graph.config_codes):
        for place, group in enumerate(graph.node_group):
            row, = np.flatnonzero((one.rows == values[place, codes[group]]).all(axis=1))
            counts[config, row] += 1
    return counts


@pytest.mark.parametrize("sizes", [dict(), dict(n=20, nc=9, g=9), dict(k=1), dict(nc=0, g=0, k=1)])
def test_the_sum_counts_the_rows_of_each_configuration(sizes):
    graph = drawn_program(3, c=12, **sizes)
    one, rng = _Sum(graph), np.random.default_rng(0)
    counts, rows, configs = slow_counts(graph, one), rng.normal(size=len(one.rows)), rng.normal(size=12)
    assert one.forward(rows) == pytest.approx(counts @ rows, abs=1e-12)
    assert one.backward(configs) == pytest.approx(counts.T @ configs, abs=1e-12)
    assert (counts.sum(axis=1) == one.nodes).all() and len(np.unique(one.rows, axis=0)) == len(one.rows)


def test_the_loss_has_the_first_derivative_of_finite_differences_and_bounds_the_second():
    graphs = [decided_by_options(seed, c=10) for seed in (0, 1)]
    sums = [_Sum(graph) for graph in graphs]
    pairs, rng = PairLoss([graph.config_runtime for graph in graphs], 4, np.random.default_rng(0)), None
    loss, counts = _SumLoss(pairs, sums), [slow_counts(*both) for both in zip(graphs, sums)]
    rows = [len(one.rows) for one in sums]
    matrix = np.zeros((20, sum(rows)))                     # the rows of all programs, one below the other
    matrix[:10, :rows[0]], matrix[10:, rows[0]:] = counts

    def value(by_row):
        cost = matrix @ by_row
        return (pairs.weights * np.log1p(np.exp(cost[pairs.faster] - cost[pairs.slower]))).sum()
    rng = np.random.default_rng(1)
    at = rng.normal(size=sum(rows)) / 9
    first, second = loss(at, None)
    for i, step in enumerate(1e-4 * np.eye(sum(rows))):
        assert first[i] == pytest.approx((value(at + step) - value(at - step)) / 2e-4, abs=1e-3)
    # by its definition: the second derivative by the cost of each configuration, times the number of its nodes
    by_config = pairs(matrix @ at, None)[1] * np.repeat([one.nodes for one in sums], 10)
    assert second == pytest.approx(sum(by_config[c] * matrix[c] for c in range(20)), rel=1e-9)
    # whatever step the trees take, the loss along it curves at most so much as they expect; a pair counts for both
    # of its configurations, so the bound is twice the sum
    for _ in range(20):
        way = rng.normal(size=sum(rows))
        curve = (value(at + 1e-3 * way) - 2 * value(at) + value(at - 1e-3 * way)) / 1e-6
        assert curve <= 2 * (second * way ** 2).sum() * 1.001


def test_the_terms_add_up_to_the_cost_and_to_differences_of_costs(model):
    graph = decided_by_options(200, c=12)
    predicted, table = predict(model, graph), model.option_costs(graph)
    assert np.ptp(predicted) > 0
    for one, other in ((0, 1), (3, 3), (5, 2)):
        alone = explain(model, graph, graph.config_codes[one])
        assert alone.cost == pytest.approx(predicted[one], abs=1e-5)
        assert alone.cost == pytest.approx(sum(table[g, code] for g, code in enumerate(graph.config_codes[one])))
        apart = explain(model, graph, graph.config_codes[one], graph.config_codes[other])
        assert apart.cost == pytest.approx(predicted[one] - predicted[other], abs=1e-5)
        rows = reasons(graph, apart, most=100)
        assert rows["term"].sum() == pytest.approx(apart.cost, abs=1e-9) and apart.rest == 0 == len(apart.pairs)
        assert len(rows) <= (graph.config_codes[one] != graph.config_codes[other]).sum()


@pytest.mark.parametrize("sizes", [dict(), dict(nc=5, g=5, k=3)])
def test_the_best_configuration_is_that_of_brute_force(model, sizes):
    for seed in range(300, 305):
        graph = decided_by_options(seed, c=6, **sizes)
        groups, k = graph.config_codes.shape[1], graph.code_rows.shape[1]
        every = np.array(list(product(range(k), repeat=groups)), np.uint8)
        costs = predict(model, graph._replace(config_codes=every, config_runtime=np.ones(len(every), np.int64)))
        best = best_configuration(model, graph)
        assert best.shape == (groups,) and best.dtype == np.int64
        assert costs[(every == best).all(axis=1)] == pytest.approx(costs.min(), abs=1e-6)


def test_the_best_configuration_has_only_codes_that_a_group_has(model):
    for seed in range(8):
        graph = decided_by_options(seed)
        rows, codes = graph.code_rows.copy(), graph.config_codes.copy()
        rows[graph.node_group == 1, 2:], codes[:, 1] = -1, codes[:, 1] % 2
        fewer = graph._replace(code_rows=rows, config_codes=codes)
        assert best_configuration(model, fewer)[1] < 2
        none = fewer._replace(config_codes=codes[:0], config_runtime=graph.config_runtime[:0])
        assert np.array_equal(best_configuration(model, none), best_configuration(model, fewer))
    with pytest.raises(ValueError, match="model is None; expected AdditiveTrees"):
        best_configuration(None, graph)


def test_trees_train_and_travel_as_every_model_does(tmp_path):
    trains_and_travels(lambda **settings: AdditiveTrees(AdditiveTreesSettings(rounds=10, **settings)),
                       [decided_by_options(seed, c=60) for seed in range(4)], tmp_path)


def test_bags_are_averaged():
    graphs = [decided_by_options(seed, c=40) for seed in range(4)]
    alone, both = fitted(graphs, rounds=5), fitted(graphs, rounds=5, bags=2)
    texts = [bytes(model.trees.numpy()).split(b"\0") for model in (alone, both)]
    assert texts[1][0] == texts[0][0] != texts[1][1]
    other = AdditiveTrees()
    other.trees = torch.tensor(list(texts[1][1]), dtype=torch.uint8)
    mean = (alone.option_costs(graphs[0]) + other.option_costs(graphs[0])) / 2
    assert both.option_costs(graphs[0]) == pytest.approx(mean, abs=1e-12)


def test_nothing_to_learn_is_a_cost_of_nothing():
    graph = drawn_program(0, nc=0, g=0, k=1)
    assert not predict(fitted([graph]), graph).any() and best_configuration(fitted([graph]), graph).shape == (0,)


@pytest.mark.parametrize("wrong", [dict(rounds=0), dict(leaves=1), dict(rate=0), dict(pairs=1.5), dict(rows=1),
                                   dict(bags=0), dict(columns=0), dict(columns=1.5)])
def test_a_wrong_setting_is_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AdditiveTreesSettings(**wrong)


def test_trees_rank_other_configurations_of_a_real_program(real_data):
    path, = [p for p in npz_paths(real_data / "npz", "layout:xla:default", "train") if "alexnet" in p.stem]
    graph = prune(some_configs(read_layout(path), np.arange(0, 38_000, 20)))
    half = [graph._replace(config_codes=graph.config_codes[part::2], config_runtime=graph.config_runtime[part::2])
            for part in (0, 1)]
    assert kendalltau(predict(fitted(half[:1]), half[1]), half[1].config_runtime).statistic > 0.5
