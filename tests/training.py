"""Graphs, models and runs that the tests of training, prediction and checkpoints share."""
import functools
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from kit.data import LayoutGraph, TileGraph, teaches
from kit.losses import pairwise_hinge_loss
from kit.models import LayoutGNN, LayoutGNNSettings, TileModelSettings
from kit.predict import predict
from kit.prune import drop_duplicate_configs
from kit.train import TrainSettings, grad_scaler, train, train_step
from kit.train_parts import load_checkpoint
from kit.train_parts.sampling import make_tasks
from lab.data import Data
from lab.run import Store
from lab.run.unfinished import earlier_stores

TINY = LayoutGNNSettings(width=8, opcode_width=3, digit_width=2, squeeze=2)
SHORT = TrainSettings(steps=12, configs_per_step=6, learning_rate=1e-2, validate_every=4)


def drawn_layout(seed=0, n=12, nc=6, g=3, k=4, c=20, m=18, name="drawn"):
    """A drawn program whose runtime is a sum over the codes of its groups."""
    rng = np.random.default_rng(seed)
    node_feat = np.zeros((n, 140), np.float32)
    node_feat[:, 37:80] = rng.integers(0, 50, (n, 43))
    codes = rng.integers(0, k, (c, g))
    runtime = 10 ** 6 + (rng.integers(0, 10 ** 5, (g, k))[np.arange(g), codes]).sum(axis=1)
    return LayoutGraph(name, node_feat, rng.integers(1, 121, n), rng.integers(0, n, (m, 2)), rng.permutation(n)[:nc],
                       np.array([0]), codes.astype(np.uint8), np.arange(nc) % g,
                       rng.integers(-1, 6, (nc, k, 18)).astype(np.int8), runtime)


def drawn_tile(seed=0, c=20):
    program = drawn_layout(seed)
    config_feat = np.random.default_rng(seed).integers(0, 100, (c, 24)).astype(np.float32)
    runtime = (1000 + 10 * config_feat[:, 0] + config_feat[:, 3]).astype(np.int64)
    return TileGraph("tile", *program[1:4], config_feat, runtime, np.full(c, 1000))


GRAPHS = (drawn_layout(0, name="a"), drawn_layout(1, c=15, name="b"), drawn_layout(2, c=4, name="c"))
VALID = (drawn_layout(3, name="v"), drawn_layout(4, name="w"))


def tau(cost, runtime):
    from scipy.stats import kendalltau  # takes seconds, and other processes import this file without need of it
    return kendalltau(cost, runtime)[0]


def trained(checkpoint=None, graphs=GRAPHS, settings=SHORT, model=TINY, valid=VALID, score=tau, **more):
    """A fresh model after training -> weights, history without what differs from run to run."""
    model = LayoutGNN(model)
    history = train(model, graphs, settings, valid=valid, score=score, checkpoint=checkpoint, **more)
    assert history.pop("seconds") > 0 and history.pop("record")
    return model.state_dict(), history


@functools.cache
def uninterrupted():
    return trained()


def same(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def stepped(model, graphs, settings, loss=pairwise_hinge_loss, step=0, optimizer=None):
    """One training step; by default with plain gradient descent at a rate of 1 -> its loss, its configurations."""
    device = torch.device("cpu")
    tasks = make_tasks(model, graphs, loss, settings, device)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1.0)
    settings = replace(settings, learning_rate=1.0, warmup=0.0)              # at its peak in step 0
    return train_step(model, tasks, loss, step, settings, optimizer, grad_scaler(settings.precision, device))


def interrupted_loss(at):
    """The default loss, that is interrupted in its call number `at`; .calls counts."""
    @functools.wraps(pairwise_hinge_loss)
    def loss(cost, runtime):
        loss.calls += 1
        if loss.calls == at:
            raise KeyboardInterrupt
        return pairwise_hinge_loss(cost, runtime)
    loss.calls = 0
    return loss


def scripted(values):
    """A score that gives these values, one for each validation of the two graphs."""
    calls = iter([v for v in values for _ in VALID])
    return lambda cost, runtime: next(calls)


class Plain(nn.Module):
    """Costs are one learned number a configuration; remembers what it was asked."""
    def __init__(self, c=100, transductive=False, fits=10 ** 9):
        super().__init__()
        self.cost = nn.Parameter(torch.arange(c, dtype=torch.float64))
        self.settings = TileModelSettings()
        self.register_buffer("fitted", torch.tensor(True))
        if transductive:
            self.register_buffer("set_size", torch.tensor(64))
        self.transductive, self.fits, self.asked = transductive, fits, []

    def prepare(self, graph):
        return graph.graph_id

    def configs_within(self, tensors, budget):
        return self.fits

    def forward(self, tensors, index):
        self.asked.append((tensors, index.tolist()))
        return self.cost[index]


class Net(nn.Module):
    """A dense network of the codes, so that every precision of matrix products is at hand on every device."""
    transductive = False

    def __init__(self, width=16, factor=1.0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(12, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, 1))
        self.settings = TileModelSettings(width=width)
        self.register_buffer("factor", torch.tensor(factor))
        self.register_buffer("fitted", torch.tensor(True))

    def prepare(self, graph):
        return nn.functional.one_hot(torch.tensor(graph.config_codes).long(), 4).flatten(1).float()

    def configs_within(self, tensors, budget):
        return max(1, budget // 10 ** 4)

    def forward(self, tensors, index):
        return self.factor * self.layers(tensors[index]).squeeze(-1)


def train_and_die(checkpoint, step):
    """For a child process: train until the loss of a step, then be killed."""
    @functools.wraps(pairwise_hinge_loss)
    def loss(cost, runtime):
        loss.calls += 1
        if loss.calls == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return pairwise_hinge_loss(cost, runtime)
    loss.calls = 0
    trained(checkpoint, loss=loss)


def in_child(call, module="training"):
    """Run `call`, an expression of the names of a file here, in a fresh process."""
    tests = Path(__file__).resolve().parent
    paths = [str(tests.parent), str(tests.parent / "notebooks"), str(tests)]
    code = f"import sys; sys.path[:0] = {paths!r}; from {module} import *; {call}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
                          # MALLOC_...: Linux gives each large block back at once, so that the peak is what is held
                          env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"})


class GivenData(Data):
    """Data of graphs that a test gives, {collection: {split: graphs}}, in place of files."""

    def __init__(self, given, use_valid=False, source="measured programs"):
        super().__init__(Path("no folder"), [*given], use_valid=use_valid)
        self.given, self.source = given, source
        self.scored = "valid" if source == "real files" else "test"

    def _read(self, collection, split):
        return list(self.given.get(collection, {}).get(split, ()))

    def _read_own(self, collection):
        graphs = [graph for split in ("train", "valid")[:1 + self.use_valid] for graph in self._read(collection, split)]
        graphs = [graph if hasattr(graph, "config_feat") else drop_duplicate_configs(graph)[0] for graph in graphs]
        return [graph for graph in graphs if teaches(graph)]


def step_of_a_run(folder, scale="short", inputs=None):
    """What training needs of a Run: the folder, its store, a step, the scale; `inputs`: outputs of earlier sessions."""
    store = Store(Path(folder, "store"), earlier_stores(inputs) if inputs else ())
    return SimpleNamespace(out=Path(folder), step="step", store=store, scale=scale)


def trains_and_travels(made, graphs, folder):
    """A model `made(**settings)` trains, is the same from its checkpoint and for the same seed, and for no other one.

    Its cost of a configuration does not depend on the others that are asked for.
    """
    model, again, *others = made(), made(), made(seed=1), made(seed=1)
    train(model, graphs, TrainSettings(1, 16), checkpoint=folder / "trees.pt")
    load_checkpoint(folder / "trees.pt", again)
    cost = predict(model, graphs[0])
    assert np.array_equal(predict(again, graphs[0]), cost) and len(np.unique(cost)) > 5
    for other in others:
        other.fit_scale(graphs)
    one, two = (predict(other, graphs[0]) for other in others)
    assert np.array_equal(one, two) and not np.array_equal(one, cost)
    index, every = torch.tensor([3, 0]), torch.arange(len(graphs[0].config_codes))
    assert torch.equal(model(model.prepare(graphs[0]), index), model(model.prepare(graphs[0]), every)[index])
