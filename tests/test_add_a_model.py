"""Adding a layout model takes its own file, an entry in kit/recipes.py and a test: here all three are in one file."""
import ast
import doctest
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from training import GRAPHS, VALID, interrupted_loss, same, tau

import kit.models
import lab
from kit.metrics import kendall_tau
from kit.predict import predict
from kit.recipes import Recipe
from kit.train import TrainSettings, train
from kit.train_parts import load_checkpoint
from lab.run import Store
from lab.training import rank_unseen

# the file of the model

@dataclass(frozen=True)
class CodeTableSettings:
    """One learned number per group and code."""
    groups: int = 3
    codes: int = 4
    together: bool = False               # compare a configuration with the others of the call
    seed: int = 0


class CodeTable(nn.Module):
    """The cost is a sum over the codes of a configuration, divided by the nodes that the training graphs have."""

    def __init__(self, settings=None):
        super().__init__()
        self.settings = s = settings or CodeTableSettings()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(s.seed)
            self.table = nn.Embedding(s.groups * s.codes, 1)
        self.register_buffer("nodes", torch.tensor(0.0))
        self.register_buffer("fitted", torch.tensor(False))
        self.register_buffer("set_size", torch.tensor(1))

    @property
    def transductive(self):
        return self.settings.together

    def fit_scale(self, graphs):
        self.nodes.fill_(float(np.mean([len(g.node_feat) for g in graphs])))
        self.fitted.fill_(True)

    def prepare(self, graph):
        rows = graph.config_codes + self.settings.codes * np.arange(graph.config_codes.shape[1])
        return torch.tensor(rows, device=self.nodes.device)                             # (c, g)

    def configs_within(self, tensors, budget):
        return max(1, budget // (16 * tensors.shape[1]))

    def forward(self, tensors, index):
        cost = self.table(tensors[index]).sum(dim=(1, 2)) / self.nodes
        return cost - cost.mean() if self.settings.together else cost


# the entry among the recipes

RECIPES = {name: Recipe(CodeTable, CodeTableSettings(together=name == "together"),
                        TrainSettings(30, 8, validate_every=10, learning_rate=1.0)) for name in ("alone", "together")}

# the test

IN_EVERY_WAY = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def fitted(recipe, checkpoint=None, **more):
    """A new model after training -> the model, its history without the times."""
    model = recipe.network(recipe.shape)
    settings = replace(recipe.settings, **more.pop("settings", {}))
    history = train(model, GRAPHS, settings, valid=VALID, score=kendall_tau, checkpoint=checkpoint, **more)
    return model, {name: history[name] for name in ("step", "loss", "score", "best_step", "configs")}


@IN_EVERY_WAY
def test_it_trains_and_is_validated(recipe):
    model, history = fitted(recipe)
    assert history["step"] == [10, 20, 30] and history["loss"][-1] < history["loss"][0]
    at_best = history["score"][history["step"].index(history["best_step"])]
    assert at_best == max(history["score"])
    assert at_best == pytest.approx(np.mean([kendall_tau(predict(model, g), g.config_runtime) for g in VALID]))
    assert float(model.nodes) == 12 and int(model.set_size) == (8 if model.transductive else 1)


@IN_EVERY_WAY
def test_an_interrupted_run_resumes_from_its_checkpoint(recipe, tmp_path):
    path = tmp_path / "toy.pt"
    loss = interrupted_loss(17)
    with pytest.raises(KeyboardInterrupt):
        fitted(recipe, path, loss=loss)
    model, history = fitted(recipe, path, loss=loss)
    expected, whole = fitted(recipe)
    assert same(model.state_dict(), expected.state_dict()) and history == whole
    assert loss.calls == 17 + 30 - 10                    # resumed after the validation in step 10


@IN_EVERY_WAY
def test_a_checkpoint_predicts_as_the_trained_model(recipe, tmp_path):
    model, _ = fitted(recipe, tmp_path / "m.pt")
    other = recipe.network(recipe.shape)
    load_checkpoint(tmp_path / "m.pt", other)
    cost = predict(other, VALID[0])
    assert cost.shape == (20,) and np.array_equal(cost, predict(model, VALID[0]))


@IN_EVERY_WAY
@pytest.mark.parametrize("change", [dict(average="swa"), dict(graphs_per_step=3),
                                    dict(memory_budget=1 << 20), dict(precision="bfloat16")])
def test_every_way_of_training_takes_it(recipe, change):
    assert fitted(recipe, settings=change)[1]["configs"] > 0


def test_it_learns_what_it_can_express():
    recipe = RECIPES["alone"]
    model = recipe.network(recipe.shape)
    train(model, GRAPHS[:1], replace(recipe.settings, steps=100))
    assert tau(predict(model, GRAPHS[0]), GRAPHS[0].config_runtime) > 0.9


def test_its_recipe_ranks_unseen_programs(tmp_path):
    costs = rank_unseen(RECIPES["alone"], "toy", 0, GRAPHS, VALID, Store(tmp_path))
    assert {name: cost.shape for name, cost in costs.items()} == {"v": (20,), "w": (20,)}


def test_the_example_of_the_protocol_trains():
    names = {}
    for example in doctest.DocTestParser().get_examples(kit.models.__doc__):
        exec(example.source, names)
    model = names["MeanLayout"]()
    history = train(model, GRAPHS, TrainSettings(30, 8, validate_every=10, learning_rate=0.1))
    assert history["loss"][-1] < history["loss"][0] and len(set(predict(model, VALID[0]))) > 1


def test_the_loop_knows_no_model_by_name():
    folder, above = Path(kit.models.__file__).parents[1], Path(lab.__file__).parent
    models = {name for name in kit.models.__all__ if name[0].isupper()}
    for path in (folder / "train.py", folder / "predict.py", *(folder / "train_parts").glob("*.py"),
                 *(above / "run").glob("*.py"), *(above / "training").glob("*.py"), above / "studies" / "compare.py"):
        tree = ast.parse(path.read_text())
        # this one does nothing without torch-scatter, and nothing to networks other than the GNN
        tree.body = [node for node in tree.body if getattr(node, "name", "") != "with_fastest_messages"]
        named = {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(tree)}
        assert not models & named, f"{path.name}: {models & named}"
