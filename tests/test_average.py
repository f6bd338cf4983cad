"""The mean of the weights against sums over the weights of every step."""
import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from training import GRAPHS, SHORT, TINY, VALID, interrupted_loss, same, tau, trained

from kit.losses import pairwise_hinge_loss
from kit.models import LayoutGNN
from kit.predict import predict
from kit.train import TrainSettings, schedule, train
from kit.training.checkpoints import read_checkpoint

EACH = replace(SHORT, validate_every=1, keep="last")


def flat(state):
    return torch.cat([state[name].double().flatten() for name in dict(LayoutGNN(TINY).named_parameters())])


@functools.cache
def weights_of_every_step(settings):
    """Raw weights after each step, from the checkpoints, and the weights that are kept at the end."""
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.pt")

        def look(line):
            seen.append(flat(read_checkpoint(path)["model"]))
        kept, _ = trained(path, settings=settings, report=look)
    assert len(seen) == settings.steps
    return seen, flat(kept)


@pytest.mark.parametrize("decay, expected", [(0.0, lambda t: 0.0), (0.3, lambda t: min(0.3, (1 + t) / (10 + t))),
                                             (0.999, lambda t: (1 + t) / (10 + t))])
def test_ema_is_the_sum_of_all_steps_weighted_by_their_age(decay, expected):
    seen, kept = weights_of_every_step(replace(EACH, average="ema", ema_decay=decay))
    seen = [flat(LayoutGNN(TINY).state_dict()), *seen]
    share = [np.prod([expected(later) for later in range(step, 12)]) * (1 - expected(step - 1) if step else 1)
             for step in range(13)]
    assert sum(share) == pytest.approx(1)
    assert torch.allclose(kept, sum(w * one for w, one in zip(share, seen)), atol=1e-6)


def test_swa_is_the_mean_of_the_last_quarter_at_one_learning_rate():
    settings = replace(EACH, average="swa")
    seen, kept = weights_of_every_step(settings)
    assert torch.allclose(kept, sum(seen[9:]) / 3, atol=1e-6)
    assert not torch.allclose(kept, seen[-1], atol=1e-5)
    rates = [schedule(step, settings) for step in range(12)]
    assert rates[9:] == [rates[9]] * 3 and rates[:10] == [schedule(step, SHORT) for step in range(10)]


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_averaging_does_not_touch_training(kind):
    seen, _ = weights_of_every_step(replace(EACH, average=kind))
    plain, last = weights_of_every_step(EACH)
    assert torch.equal(last, plain[-1])
    same_rate = 12 if kind == "ema" else 10
    assert all(torch.equal(a, b) for a, b in zip(seen[:same_rate], plain[:same_rate]))


@pytest.mark.parametrize("kind, first", [("ema", 0), ("swa", 9)])
def test_validation_scores_and_keeps_the_averaged_weights(kind, first, tmp_path):
    model, lines = LayoutGNN(TINY), []

    def look(line):
        saved = read_checkpoint(tmp_path / "m.pt")
        model.load_state_dict(saved["best"])
        assert saved["history"]["score"][-1] == np.mean([tau(predict(model, g), g.config_runtime) for g in VALID])
        lines.append(torch.equal(flat(saved["best"]), flat(saved["model"])))
    trained(tmp_path / "m.pt", settings=replace(EACH, average=kind), report=look)
    assert lines == [step <= first and kind == "swa" for step in range(12)]         # the mean of one step is that step


@pytest.mark.parametrize("kind", ["ema", "swa"])
@pytest.mark.parametrize("step", [5, 11])
def test_an_interrupted_run_goes_on_with_its_mean(kind, step, tmp_path, monkeypatch):
    monkeypatch.setattr("kit.train.CHECKPOINT_SECONDS", -1)
    settings = replace(SHORT, average=kind)
    loss = interrupted_loss(step)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "m.pt", settings=settings, loss=loss)
    weights, history = trained(tmp_path / "m.pt", settings=settings, loss=loss)
    whole, expected = trained(settings=settings)
    assert same(weights, whole) and history == expected and loss.calls == 13


def test_validating_the_mean_leaves_the_weights_alone():
    raw, at_validation = [], []

    def score(cost, runtime):
        at_validation.append(nn.utils.parameters_to_vector(model.parameters()).clone())
        return 0.0

    def loss(cost, runtime):
        raw.append(nn.utils.parameters_to_vector(model.parameters()).clone())
        return pairwise_hinge_loss(cost, runtime)
    model = LayoutGNN(TINY)
    train(model, GRAPHS, replace(EACH, average="ema"), loss, VALID[:1], score)
    assert len(raw) == 12 and all(torch.equal(a, b) for a, b in zip(raw[1:], at_validation))


def test_buffers_are_not_averaged():
    model = LayoutGNN(TINY)
    train(model, GRAPHS, TrainSettings(steps=3, configs_per_step=6, average="ema"))
    other = LayoutGNN(TINY)
    other.fit_scale(GRAPHS)
    assert torch.equal(model.node_scale, other.node_scale) and model.fitted
