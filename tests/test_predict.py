"""Prediction: each configuration gets its own cost, in bounded memory."""
import dataclasses
import threading

import numpy as np
import psutil
import pytest
import torch
from training import GRAPHS, SHORT, TINY, Net, Plain, drawn_layout, drawn_tile, in_child

from kit.models import LayoutGNN, TileModel, TileModelSettings
from kit.predict import predict
from kit.train import train


def graph_of(c):
    return GRAPHS[0]._replace(config_runtime=np.zeros(c, np.int64))


@pytest.mark.parametrize("transductive", [False, True])
@pytest.mark.parametrize("c, fits, together", [(1, 5, 5), (10, 3, 3), (10, 5, 5), (10, 99, 10), (100, 99, 64)])
def test_each_configuration_gets_its_own_cost(c, fits, together, transductive):
    model = Plain(transductive=transductive, fits=fits)
    assert predict(model, graph_of(c)).tolist() == list(range(c))
    sizes = {len(index) for _, index in model.asked}
    if transductive:
        assert sizes == {min(together, c)}            # all chunks as large as in training, the last filled up
    assert len(sizes) == 1 and max(sizes) <= fits
    assert len(model.asked) == -(-c // min(c, together if transductive else fits))
    assert all(len(set(index)) == len(index) for _, index in model.asked)
    assert transductive or sum(len(index) for _, index in model.asked) < c + len(model.asked)


def test_chunks_follow_the_seed_and_never_the_file():
    asked = []
    for seed in (0, 0, 1):
        model = Plain(transductive=True, fits=20)
        predict(model, graph_of(100), seed=seed)
        asked.append([index for _, index in model.asked])
    assert asked[0] == asked[1] != asked[2]
    for index in asked[0]:
        assert max(index) - min(index) > 50           # in file order it would be 19


def test_training_tells_a_transductive_model_how_many_it_saw_together():
    for k in (6, 9):
        model = LayoutGNN(TINY)
        train(model, GRAPHS, dataclasses.replace(SHORT, configs_per_step=k))
        assert int(model.set_size) == k


def test_chunks_do_not_change_the_costs_of_a_model_that_scores_each_alone():
    for model, graph in ((LayoutGNN(dataclasses.replace(TINY, config_attention=False)), GRAPHS[0]),
                         (TileModel(TileModelSettings(width=8)), drawn_tile())):
        train(model, [graph], SHORT)
        whole = predict(model, graph)
        assert whole.dtype == np.float64 and whole.shape == (20,)
        for budget in (0, 20_000, 50_000):
            assert np.allclose(predict(model, graph, budget), whole, atol=1e-5)
            assert np.allclose(predict(model, graph, budget, seed=9), whole, atol=1e-5)


def test_a_transductive_model_gives_the_same_costs_for_the_same_seed():
    model = LayoutGNN(TINY)
    train(model, GRAPHS[:1], SHORT)
    first = predict(model, GRAPHS[0])
    torch.rand(1)
    assert np.array_equal(predict(model, GRAPHS[0]), first)
    assert not np.allclose(predict(model, GRAPHS[0], seed=1), first)


def test_passes_are_the_mean_over_orders_of_chunks():
    model = LayoutGNN(TINY)
    train(model, GRAPHS[:1], SHORT)
    tensors, costs = model.eval().prepare(GRAPHS[0]), np.zeros(20)
    for number in range(3):
        order = np.random.default_rng([5, number]).permutation(20)
        for chunk, new in ((order[:6], 6), (order[6:12], 6), (order[12:18], 6), (np.r_[order[18:], order[:4]], 2)):
            for config, cost in list(zip(chunk, model(tensors, torch.tensor(chunk)).tolist()))[:new]:
                costs[config] += cost / 3
    assert np.allclose(predict(model, GRAPHS[0], seed=5, passes=3), costs, atol=1e-6)
    assert not np.allclose(predict(model, GRAPHS[0], seed=5), costs, atol=1e-4)


def test_passes_cost_nothing_where_company_does_not_matter():
    for model, c in ((Plain(), 100), (Plain(transductive=True), 64)):          # 64 are scored together anyway
        assert predict(model, graph_of(c), passes=9).tolist() == list(range(c))
        assert len(model.asked) == 1
    model = Plain(transductive=True)
    assert predict(model, graph_of(100), passes=9) == pytest.approx(range(100)) and len(model.asked) == 18
    with pytest.raises(ValueError, match="^passes is 0; expected a whole number of at least 1$"):
        predict(model, graph_of(100), passes=0)


def test_a_graph_prepared_before_is_not_prepared_again(monkeypatch):
    model = LayoutGNN(TINY)
    train(model, GRAPHS[:1], SHORT)
    tensors, expected = model.prepare(GRAPHS[0]), predict(model, GRAPHS[0])
    monkeypatch.setattr(LayoutGNN, "prepare", None)
    assert np.array_equal(predict(model, GRAPHS[0], tensors=tensors), expected)


def test_a_lower_precision_gives_nearly_the_same_costs():
    model = Net()
    expected = predict(model, GRAPHS[0])
    low = predict(model, GRAPHS[0], precision="bfloat16")
    assert np.allclose(low, expected, atol=0.02) and not np.array_equal(low, expected)
    assert model.layers[0].weight.dtype == torch.float32


@pytest.mark.parametrize("training", [True, False])
def test_predicting_uses_no_dropout_and_restores_the_mode(training):
    model = Plain().train(training)
    modes = []
    model.register_forward_hook(lambda *_: modes.append((model.training, torch.is_grad_enabled())))
    predict(model, graph_of(10))
    assert modes == [(False, False)] and model.training is training
    def stop(*_):
        raise KeyboardInterrupt
    model.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        predict(model, graph_of(10))
    assert model.training is training


def test_a_model_that_was_never_trained_predicts_nothing():
    with pytest.raises(ValueError, match="^this model has no feature statistics; train it or load a checkpoint first$"):
        predict(LayoutGNN(TINY), GRAPHS[0])


def test_costs_that_are_not_finite_are_an_error():
    model = Plain()
    with torch.no_grad():
        model.cost[[3, 5]] = torch.tensor([float("nan"), float("inf")], dtype=torch.float64)
    with pytest.raises(ValueError, match="^a: the model gives 2 costs that are not finite$"):
        predict(model, graph_of(10))


def memory_of_predicting(budget):
    """For a child process: bytes that one full chunk, preparing a graph, and predicting hold at most."""
    graph = drawn_layout(0, n=10_000, nc=1000, c=128, m=15_000)
    model = LayoutGNN(dataclasses.replace(TINY, config_attention=False, linear_blocks=1, graph_blocks=1)).eval()
    model.fit_scale([graph])
    tensors = model.prepare(graph)
    process = psutil.Process()

    def rise(work):
        """Bytes by which memory rises at most; the system's own peak would begin at that of the parent process."""
        before, held, done = process.memory_info().rss, [0], threading.Event()

        def watch():
            while not done.wait(0.001):
                held.append(process.memory_info().rss - before)
        watcher = threading.Thread(target=watch)
        watcher.start()
        work()
        done.set()
        watcher.join()
        return max(held)
    with torch.no_grad():
        model(tensors, torch.arange(1))
        chunk = rise(lambda: model(tensors, torch.arange(model.configs_within(tensors, budget))))
    tensors = None
    print(chunk, rise(lambda: model.prepare(graph)), *(rise(lambda limit=limit: predict(model, graph, limit))
                                                         for limit in (budget, 1 << 40)))


@pytest.mark.long
def test_a_graph_of_10_000_nodes_is_scored_in_the_memory_it_was_given():
    budget = 40 << 20                        # 5 chunks of 26
    child = in_child(f"memory_of_predicting({budget})", "test_predict")
    assert child.returncode == 0, child.stderr
    chunk, prepared, in_chunks, at_once = map(int, child.stdout.split())
    assert 0.5 * budget < chunk < 1.2 * budget
    assert in_chunks < budget + prepared < at_once


@pytest.mark.parametrize("transductive, most", [(False, 1 << 27), (True, 1 << 30)])
def test_by_itself_it_takes_128_mib_on_a_cpu_unless_costs_depend_on_the_chunk(transductive, most, monkeypatch):
    model, asked = Plain(transductive=transductive), []
    monkeypatch.setattr(Plain, "configs_within", lambda self, tensors, budget: asked.append(budget) or 4)
    predict(model, graph_of(10))
    predict(model, graph_of(10), 1 << 20)
    assert asked == [most, 1 << 20]
