"""Hours before a push: the work of a step against a count by hand and against what PyTorch was asked to do."""
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drawn import drawn_layout, drawn_tile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kit.losses import pairwise_hinge_loss
from kit.models import LayoutGNN, without_edges
from kit.recipes import recipes_for

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "notebooks"))
import hours  # noqa: E402
from hours import (  # noqa: E402
    CARDS,
    Card,
    Work,
    planned_models,
    seconds_on,
    step_work,
    training_hours,
    usual_nodes,
)

RANDOM, DEFAULT = "layout:xla:random", "layout:xla:default"
class Asked(TorchDispatchMode):
    """What PyTorch is asked to compute: operations of dense products, bytes read and written, number of calls."""

    def __init__(self):
        super().__init__()
        self.operations, self.bytes, self.calls = 0, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        read, written = ([t for t in tree_leaves(some) if torch.is_tensor(t)] for some in ((args, kwargs), found))
        dense = [t for t in read if t.layout == torch.strided]
        same = {t.untyped_storage().data_ptr() for t in dense}
        new = [t for t in written if t.layout == torch.strided and t.untyped_storage().data_ptr() not in same]
        if name.startswith(("empty", "new_empty")) or not (new or func._schema.is_mutable):      # a view
            return found
        self.calls += 1
        # what is written in place, or to `out`, is among the arguments: written, and for all but `out` read, too
        self.bytes += sum(t.untyped_storage().nbytes() if t.numel() * t.element_size() > t.untyped_storage().nbytes()
                          else t.numel() * t.element_size() for t in [*dense, *new])
        if name in ("mm", "addmm", "addmm_") and len(dense) == len(read):
            one, other = [t for t in dense if t.dim() == 2][-3:][-2:] if "out" not in (kwargs or {}) else args[-2:]
            self.operations += 2 * one.shape[0] * one.shape[1] * other.shape[1]
        return found


def asked(model, graph, configs):
    """Count one forward and backward pass."""
    model.fit_scale([graph])
    tensors, index = model.train().prepare(graph), torch.arange(configs)
    runtime = torch.as_tensor(graph.config_runtime)[:configs]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)                     # else other threads work that are not watched
    try:
        with Asked() as count:
            pairwise_hinge_loss(model(tensors, index), runtime).backward()
    finally:
        torch.set_num_threads(threads)
    return count


@pytest.mark.parametrize("collection", [RANDOM, DEFAULT])
@pytest.mark.parametrize("alone", [False, True])
def test_the_work_of_the_recipe_s_networks_is_what_pytorch_is_asked_for(collection, alone):
    shape = replace(recipes_for(collection, "full")["gnn"].shape, width=64)
    shape = without_edges(shape) if alone else shape
    graph = drawn_layout(0, n=60, nc=12, c=64, m=400)
    count, work = asked(LayoutGNN(shape), graph, 64), step_work(shape, 60, 64)
    assert count.operations == pytest.approx(work.operations, rel=0.1)
    assert count.bytes == pytest.approx(work.bytes, rel=0.15)


def test_small_networks_are_asked_for_as_many_calls_as_the_estimate_has():
    for collection, name, graph in ((RANDOM, "token", drawn_layout(c=64)), ("tile:xla", "tile", drawn_tile(c=64))):
        recipe = recipes_for(collection, "full")[name]
        count = asked(recipe.network(recipe.shape), graph, 64)
        assert count.calls == pytest.approx(step_work(recipe.shape, 0, 0).launches, rel=0.15)
    assert step_work(recipe.shape, 40, 128, graphs=8).launches == 8 * step_work(recipe.shape, 40, 128).launches


def test_seconds_come_from_the_data_sheet():
    card = Card(operations=1e12, bandwidth=1e11)
    assert seconds_on(card, Work(1e12, 0, 0)) == 2.0                         # half of the peak is reached
    assert seconds_on(card, Work(0, 7e10, 0)) == pytest.approx(1.0)          # 70% of the bandwidth
    assert seconds_on(card, Work(1e12, 7e10, 0)) == pytest.approx(3.0)
    assert seconds_on(card, Work(0, 0, 100_000)) == pytest.approx(5.0)


def test_an_unknown_network_has_no_estimate(monkeypatch):
    assert step_work(object(), 10, 5) is None
    monkeypatch.setattr(hours, "step_work", lambda *_: None)
    assert training_hours([RANDOM], {}, "T4", 2) is None


def lanes(seconds, count):
    """When the last GPU is done: the next model goes to the GPU that is free first, second by second."""
    left, busy, now = list(seconds), [0] * count, 0
    while left or any(busy):
        for gpu in range(count):
            if not busy[gpu] and left:
                busy[gpu] = left.pop(0)
        now, busy = now + 1, [max(0, one - 1) for one in busy]
    return now


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("given", [{}, {"seeds": 3}, {"seeds": 1, "recipe": "full"}])
def test_each_gpu_trains_whole_models_one_after_another(monkeypatch, given, count):
    length = {"token": 3, "lightgbm": 1, "additive": 2, "gnn": 11}
    monkeypatch.setattr(hours, "step_work", lambda shape, *_: shape)
    models = [one.name for one in planned_models(RANDOM, given)]
    waits = [length[name] for name in models]
    monkeypatch.setattr(hours, "planned_models", lambda *_: [
        hours.Planned(name, wait, 3600, 1, 1) for name, wait in zip(models, waits)])
    monkeypatch.setattr(hours, "seconds_on", lambda card, wait: wait)
    expected = lanes(waits, count)
    assert training_hours([RANDOM], given, "T4", count) == pytest.approx(expected)


CHANGES = {"token": {"steps": 5}, "gnn": {"steps": 7, "configs_per_step": 9, "width": 32},
           "tile": {"steps": 3, "graphs_per_step": 5, "width": 16}}


def test_settings_of_the_notebooks_reach_the_plan():
    given = {"recipe": "quick", "changes": CHANGES, "seeds": 2}
    found = planned_models(DEFAULT, given)
    assert [one.name for one in found] == [
        name for name in ("token", "lightgbm", "additive", "gnn") for _ in range(2)]
    in_folds = [one.name for one in planned_models(DEFAULT, given | {"folds": 3})]
    assert [in_folds.count(name) for name in ("token", "lightgbm", "additive", "gnn")] == [6, 6, 6, 6]
    token, trees, additive, gnn = found[::2]
    assert (token.steps, token.configs, token.shape.width) == (5, 256, 64)
    assert (gnn.steps, gnn.configs, gnn.shape.width, gnn.shape.graph_blocks) == (7, 9, 32, 2)
    assert planned_models(DEFAULT, given | {"recipe": "full"})[::2] == [
        token._replace(configs=1024), trees, additive, gnn._replace(shape=replace(gnn.shape, config_attention=True))]
    assert planned_models(DEFAULT, given | {"models": "token,gnn"})[::2] == [token, gnn]
    tile, = planned_models("tile:xla", {"recipe": "full", "changes": CHANGES, "seeds": 1, "models": "token"})
    assert (tile.steps, tile.configs, tile.graphs, tile.shape.width) == (3, 128, 5, 16)
    assert [one.steps for one in planned_models(RANDOM, {"size": "tiny", "recipe": "short"})] == [20, 1, 1, 10]
    assert len(planned_models("tile:xla", {})) == recipes_for("tile:xla")["tile"].seeds
    assert len(planned_models("tile:xla", {"changes": {"tile": {"seeds": 4}}})) == 4
    assert planned_models(RANDOM, {"changes": {}, "seeds": None}) == planned_models(RANDOM, {})


def gnn_width(shape):
    """Width and linear blocks of a GNN; the token model's width depends on how many programs there are."""
    return (shape["width"], shape["linear_blocks"]) if "linear_blocks" in shape else (0, 0)


@pytest.mark.long
def test_the_plan_is_what_the_notebooks_train(tmp_path, tiny_sample):
    """The records of a run have the models, steps, configurations and settings of the plan."""
    changes = {"gnn": {"width": 8, "steps": 2, "configs_per_step": 5}, "token": {"steps": 3},
               "tile": {"steps": 4, "graphs_per_step": 2}}
    done = subprocess.run([sys.executable, PROJECT / "notebooks" / "run.py", "--data-root", tiny_sample, "--out", "out",
                           "--size", "tiny", "--only", "03,04", "--collections", f"tile:xla,{RANDOM}",
                           *(word for model, own in changes.items() for name, value in own.items()
                             for word in ("-p", f"{model}.{name}={value}"))],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    records = [json.loads(path.read_text()) for path in (tmp_path / "out" / "store").glob("*.json")]
    found = sorted((r["settings"]["steps"], r["settings"]["configs_per_step"], r["settings"]["graphs_per_step"],
                    gnn_width(r["model_settings"])) for r in records)
    planned = [one for c in ("tile:xla", RANDOM) for one in planned_models(c, {"size": "tiny", "changes": changes})]
    assert found == sorted((one.steps, one.configs, one.graphs, gnn_width(vars(one.shape))) for one in planned)


def test_the_tables_of_the_recipes_come_from_these_functions():
    page = (PROJECT / "notebooks" / "recipes.md").read_text()
    rows = {}
    for label, collection, nodes in (("GNN, `random`, 128 configurations", RANDOM, 1000),
                                     ("GNN, `default`, 64 configurations", DEFAULT, 1000)):
        recipe = recipes_for(collection, "full")["gnn"]
        times = [seconds_on(card, step_work(recipe.shape, nodes, recipe.settings.configs_per_step))
                 for card in CARDS.values()]
        rows[label] = [f"{1e3 * time:.0f} ms, {time * recipe.settings.steps / 3600:.1f} h" for time in times]
    for collection in ("tile:xla", RANDOM, DEFAULT, "layout:nlp:random", "layout:nlp:default"):
        rows[f"`{collection}`"] = [f"{training_hours([collection], {'recipe': 'full', 'seeds': 1}, card, count):.1f} h"
                                   for card, count in (("T4", 1), ("T4", 2), ("A100", 1), ("H200", 1))]
    for label, cells in rows.items():
        assert f"| {label} | {' | '.join(cells)} |" in page, f"| {label} | {' | '.join(cells)} |"
    for collection, nodes in (("tile:xla", 40), (RANDOM, 2257), ("layout:nlp:random", 905)):
        assert round(usual_nodes(collection)) == nodes and f"{nodes:,}" in page
    random, default = (recipes_for(collection, "full")["gnn"].shape for collection in (RANDOM, DEFAULT))
    for shape, passes, millions in ((random, 348, 3.3), (default, 610, 1.5)):
        out, work = shape.width // (2 if shape.config_attention else 1), step_work(shape, 1, 1)
        assert work.bytes == 4 * out * passes and round(work.operations / 1e6, 1) == millions
        assert f"{passes} times" in page and f"{millions} million" in page
    launches = [f"{count} per" for count in hours.LAUNCHES.values() if count]
    for number in ("50 microseconds", "16%", "14,105", "5,659", *launches):
        assert number in page, number
    assert not re.search("P100", page)
