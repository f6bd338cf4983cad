"""The mean of the weights against sums over the weights of every step."""
import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training import SHORT, TINY, VALID, interrupted_loss, same, tau, trained

from kit.models import LayoutGNN
from kit.predict import predict
from kit.train import schedule
from kit.train_parts.checkpoints import read_checkpoint

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


def test_swa_is_the_mean_of_the_last_quarter_at_one_learning_rate():
    settings = replace(EACH, average="swa")
    seen, kept = weights_of_every_step(settings)
    assert torch.allclose(kept, sum(seen[9:]) / 3, atol=1e-6)
    assert not torch.allclose(kept, seen[-1], atol=1e-5)
    rates = [schedule(step, settings) for step in range(12)]
    assert rates[9:] == [rates[9]] * 3 and rates[:10] == [schedule(step, SHORT) for step in range(10)]


def test_averaging_does_not_touch_training():
    seen, _ = weights_of_every_step(replace(EACH, average="swa"))
    plain, last = weights_of_every_step(EACH)
    assert torch.equal(last, plain[-1])
    assert all(torch.equal(a, b) for a, b in zip(seen[:10], plain[:10]))             # then the rates differ


def test_validation_scores_and_keeps_the_averaged_weights(tmp_path):
    model, lines = LayoutGNN(TINY), []

    def look(line):
        saved = read_checkpoint(tmp_path / "m.pt")
        model.load_state_dict(saved["best"])
        assert saved["history"]["score"][-1] == np.mean([tau(predict(model, g), g.config_runtime) for g in VALID])
        lines.append(torch.equal(flat(saved["best"]), flat(saved["model"])))
    trained(tmp_path / "m.pt", settings=replace(EACH, average="swa"), report=look)
    assert lines == [step <= 9 for step in range(12)]                               # the mean of one step is that step


def test_an_interrupted_run_goes_on_with_its_mean(tmp_path, monkeypatch):
    monkeypatch.setattr("kit.train.CHECKPOINT_SECONDS", -1)
    settings = replace(SHORT, average="swa")
    loss = interrupted_loss(11)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "m.pt", settings=settings, loss=loss)
    weights, history = trained(tmp_path / "m.pt", settings=settings, loss=loss)
    whole, expected = trained(settings=settings)
    assert same(weights, whole) and history == expected and loss.calls == 13
