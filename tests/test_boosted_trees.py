"""Boosted trees learn which of two configurations is faster, keep to their constraints, and travel as a checkpoint."""
import numpy as np
import pytest
from drawn import drawn_program, some_configs
from scipy.stats import kendalltau
from training import trains_and_travels

import kit.models.boosted_trees
from kit.data import npz_paths, read_layout
from kit.features import config_features
from kit.models.boosted_trees import BoostedTrees, BoostedTreesSettings, PairLoss
from kit.predict import predict
from kit.train import TrainSettings, train


def decided_by_agreement(seed, c=150):
    """A program whose runtime grows with its disagreements."""
    graph = drawn_program(seed, c=c)
    table = config_features(graph)
    cost = sum(table[name].to_numpy() for name in ("differs_convolution_output", "differs_dot_output",
                                                   "meeting_differs_input", "meeting_differs_kernel"))
    return graph._replace(config_runtime=(1000 + 1000 * cost).astype(np.int64))


def fitted(graphs, **settings):
    model = BoostedTrees(BoostedTreesSettings(**settings))
    model.fit_scale(graphs)
    return model


def test_trees_rank_configurations_of_programs_that_they_never_saw():
    model = fitted([decided_by_agreement(seed, c=80) for seed in range(25)])
    unseen = [decided_by_agreement(seed) for seed in range(100, 108)]
    assert np.mean([kendalltau(predict(model, g), g.config_runtime).statistic for g in unseen]) > 0.6


def test_the_loss_has_the_derivatives_of_a_logistic_loss_over_pairs():
    rng = np.random.default_rng(0)
    runtimes = [rng.integers(1, 4, 6), np.array([5, 5, 5]), rng.integers(1, 9, 4)]       # no pair in the second
    loss, cost = PairLoss(runtimes, 3, np.random.default_rng(1)), rng.normal(size=13)
    assert {(a // 6 if a < 6 else 1 + (a - 6) // 3) for a in loss.faster} <= {0, 2, 3}
    runtime = np.concatenate(runtimes)
    assert (runtime[loss.faster] < runtime[loss.slower]).all()

    def value(cost):
        return (loss.weights * np.log1p(np.exp(cost[loss.faster] - cost[loss.slower]))).sum()
    first, second = loss(cost, None)
    for i, step in enumerate(1e-4 * np.eye(13)):
        assert first[i] == pytest.approx((value(cost + step) - value(cost - step)) / 2e-4, abs=1e-3)
        assert second[i] == pytest.approx((value(cost + step) - 2 * value(cost) + value(cost - step)) / 1e-8, abs=0.5)


def test_a_cost_never_falls_with_a_disagreement(monkeypatch):
    graphs = [g._replace(config_runtime=g.config_runtime.max() + 1 - g.config_runtime)
              for g in map(decided_by_agreement, range(8))]            # the more disagrees, the faster
    model, graph = fitted(graphs), decided_by_agreement(9)
    monkeypatch.setattr(kit.models.boosted_trees, "_standardised", lambda table: table.to_numpy())
    table = config_features(graph)
    costs = []
    for more in (0, 1):
        worse = table.with_columns(meeting_differs_input=table["meeting_differs_input"] + more)
        monkeypatch.setattr(kit.models.boosted_trees, "config_features", lambda graph, worse=worse: worse)
        costs.append(predict(model, graph))
    assert (costs[1] >= costs[0]).all()


def test_only_an_even_share_of_each_graph_is_read(monkeypatch):
    read = []
    monkeypatch.setattr(kit.models.boosted_trees, "config_features",
                        lambda g: (read.append(len(g.config_codes)), config_features(g))[1])
    fitted([drawn_program(seed, c=c) for seed, c in enumerate((300, 10, 120))], rows=150, rounds=2)
    assert read == [50, 10, 50]


def test_trees_train_and_travel_as_every_model_does(tmp_path):
    trains_and_travels(lambda **settings: BoostedTrees(BoostedTreesSettings(rounds=10, **settings)),
                       [decided_by_agreement(seed, c=60) for seed in range(4)], tmp_path)


def test_a_training_computes_the_costs_of_few_programs(monkeypatch):
    graphs, asked = [decided_by_agreement(seed, c=40) for seed in range(9)], []
    ask = BoostedTrees._ask
    monkeypatch.setattr(BoostedTrees, "_ask", lambda model, graph: (asked.append(graph.graph_id), ask(model, graph))[1])
    model = BoostedTrees(BoostedTreesSettings(rounds=2))
    train(model, graphs, TrainSettings(1, 16, graphs_per_step=2))
    assert 1 <= len(asked) <= 2
    asked.clear()
    predict(model, graphs[0])
    assert len(asked) == 1


@pytest.mark.parametrize("wrong", [dict(rounds=0), dict(leaves=1), dict(rate=0), dict(pairs=1.5), dict(rows=1)])
def test_a_wrong_setting_is_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BoostedTreesSettings(**wrong)


def test_trees_rank_other_configurations_of_a_real_program(real_data):
    path, = [p for p in npz_paths(real_data / "npz", "layout:xla:default", "train") if "alexnet" in p.stem]
    graph = some_configs(read_layout(path), np.arange(0, 38_000, 20))
    half = [graph._replace(config_codes=graph.config_codes[part::2], config_runtime=graph.config_runtime[part::2])
            for part in (0, 1)]
    assert kendalltau(predict(fitted(half[:1]), half[1]), half[1].config_runtime).statistic > 0.65
