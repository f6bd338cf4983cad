"""What a step trains on: draws against laws and a slow twin, memory against a walk through the autograd graph."""
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from training import GRAPHS, SHORT, TINY, Net, drawn_layout, drawn_tile, trained

from kit.losses import list_mle_loss, pairwise_hinge_loss
from kit.models import ConfigTokenModel, ConfigTokenSettings, LayoutGNN, TileModel, TileModelSettings
from kit.predict import predict
from kit.train import TrainSettings, train
from kit.train_parts.sampling import Draw, costs_of, draw_step, make_tasks, nth_graph

CPU = torch.device("cpu")


def tasks_of(graphs, settings=SHORT, model=None, loss=pairwise_hinge_loss):
    return make_tasks(model or Net(), graphs, loss, settings, CPU)


def test_each_pass_shows_each_graph_once_in_a_new_order():
    for count in (1, 2, 5):
        passes = [[nth_graph(count * p + place, count, seed=3) for place in range(count)] for p in range(20)]
        assert all(sorted(one) == list(range(count)) for one in passes)
    assert len({tuple(one) for one in passes}) > 10
    assert [nth_graph(p, 5, 3) for p in range(100)] != [nth_graph(p, 5, 4) for p in range(100)]


# which configurations

def test_a_draw_depends_on_seed_step_and_place_alone():
    settings = replace(SHORT, graphs_per_step=3)
    tasks = tasks_of(GRAPHS)

    def drawn(step, settings=settings):
        return [(d.task.runtime.tolist(), d.index.tolist(), d.seed) for d in draw_step(tasks, step, settings)]
    assert drawn(5) == drawn(5) != drawn(6) != drawn(6, replace(settings, seed=1))
    seeds = [d[2] for step in range(50) for d in drawn(step)]
    assert len(set(seeds)) == 150


def test_each_configuration_is_drawn_as_often():
    tasks, count = tasks_of([drawn_layout(0, g=12, c=15)], TrainSettings(configs_per_step=5)), Counter()
    for step in range(3000):
        index = draw_step(tasks, step, SHORT)[0].index.tolist()
        assert len(set(index)) == 5
        count.update(index)
    assert set(count) == set(range(15)) and max(abs(n - 1000) for n in count.values()) < 120      # 4.6 sigma


# how many fit

def bytes_held(model, task, k, loss, precision="float32"):
    """Distinct memory that the autograd graph holds, found by walking it; without the weights."""
    index = torch.arange(k) % len(task.runtime)
    value = loss(costs_of(model.train(), Draw(task, index, 0), precision), task.runtime[index])
    kept, todo, seen = {}, [value.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [following for following, _ in node.next_functions]
        held = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        held += list(getattr(node, "saved_tensors", ()))
        for one in held:
            for tensor in one if isinstance(one, (tuple, list)) else [one]:
                if torch.is_tensor(tensor) and tensor.layout == torch.strided:
                    kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    for p in model.parameters():
        kept.pop(p.untyped_storage().data_ptr(), None)
    return sum(kept.values())


MODELS = {"gnn": (lambda: LayoutGNN(replace(TINY, config_attention=False)), drawn_layout(0, n=40, c=200)),
          "token": (lambda: ConfigTokenModel(ConfigTokenSettings(width=8, token_width=8)), drawn_layout(0, c=200)),
          "tile": (lambda: TileModel(TileModelSettings(width=8)), drawn_tile(0, c=200)),
          "net": (Net, drawn_layout(0, c=200))}


@pytest.mark.parametrize("name, loss", [*((name, pairwise_hinge_loss) for name in MODELS), ("net", list_mle_loss)])
def test_the_configurations_picked_fill_the_budget_and_one_more_would_not_fit(name, loss):
    make, graph = MODELS[name]
    model, settings = make(), TrainSettings(configs_per_step=150)
    if not model.fitted:
        model.fit_scale([graph])
    free = tasks_of([graph], settings, model, loss)[0]
    assert free.most == 150
    for k in (2, 17):
        budget = bytes_held(model, free, k, loss)
        for spare, most in ((0, k), (-1, k - 1), (bytes_held(model, free, k + 1, loss) - budget - 1, k)):
            if most >= 2:
                task = tasks_of([graph], replace(settings, memory_budget=budget + spare), model, loss)[0]
                assert task.most == most
    assert tasks_of([graph], replace(settings, memory_budget=1 << 40), model, loss)[0].most == 150


def test_a_large_graph_takes_fewer_configurations_than_a_small_one():
    graphs = [drawn_layout(0, n=12, c=50), drawn_layout(1, n=60, c=50), drawn_layout(2, n=12, c=3)]
    model = LayoutGNN(replace(TINY, config_attention=False))
    settings = TrainSettings(steps=6, configs_per_step=40, memory_budget=125_000)
    history = train(model, graphs, settings)
    small, large, few = (task.most for task in tasks_of(graphs, settings, model))
    assert 2 <= large < small < 40 and few > 3
    assert history["record"]["configs_per_step"] == {"least": 3, "most": small}
    assert history["configs"] == 2 * (small + large + 3)


def test_a_transductive_model_takes_the_same_number_of_every_graph():
    graphs = [drawn_layout(0, n=12, c=50), drawn_layout(1, n=60, c=50)]
    settings = TrainSettings(steps=2, configs_per_step=40, memory_budget=300_000)
    model, alone = LayoutGNN(TINY), LayoutGNN(TINY)
    train(model, graphs, settings)
    train(alone, graphs[1:], settings)
    assert 2 <= int(model.set_size) == int(alone.set_size) < 40
    assert train(model, graphs, settings)["configs"] == 2 * int(model.set_size)
    assert predict(model, graphs[0]).shape == (50,)


def test_a_graph_of_which_not_two_configurations_fit_is_named_with_the_least_budget():
    settings = replace(SHORT, memory_budget=100)
    with pytest.raises(ValueError) as error:
        trained(settings=settings)
    told = re.fullmatch(r"a: a step with 2 configurations holds ([\d,]+) bytes for the backward pass, memory_budget is "
                        r"100; raise it to that at least, prune the graph further or train on segments of it",
                        str(error.value))
    least = int(told[1].replace(",", ""))
    trained(graphs=GRAPHS[:1], settings=replace(settings, memory_budget=least))
    with pytest.raises(ValueError, match=f"holds {told[1]} bytes"):
        trained(graphs=GRAPHS[:1], settings=replace(settings, memory_budget=least - 1))


def test_measuring_changes_nothing():
    expected = trained()[0]
    measured = trained(settings=replace(SHORT, memory_budget=1 << 40))[0]
    assert all(torch.equal(measured[name], expected[name]) for name in expected)
