"""One step of the optimiser against sums by hand: losses, gradients, precision, learning rate."""
import numpy as np
import pytest
import torch
from training import GRAPHS, Plain, stepped

from kit.losses import pairwise_hinge_loss
from kit.step import schedule
from kit.train import TrainSettings


def test_a_step_over_several_graphs_follows_their_mean_loss():
    model, settings = Plain(20), TrainSettings(configs_per_step=20, graphs_per_step=3, clip=1e9)
    before = model.cost.detach().clone().requires_grad_()
    mean = sum(pairwise_hinge_loss(before[:len(r)], r) for r in (torch.tensor(g.config_runtime) for g in GRAPHS)) / 3
    mean.backward()
    loss, configs = stepped(model, GRAPHS, settings)
    assert loss == pytest.approx(mean.item()) and configs == 20 + 15 + 4
    assert torch.allclose(model.cost, before - before.grad)


def test_the_gradient_is_clipped_by_its_norm():
    model = Plain(20)
    before = model.cost.detach().clone()
    stepped(model, GRAPHS[:1], TrainSettings(clip=0.5), lambda cost, runtime: 1000 * cost.sum())
    assert (model.cost - before).norm().item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 7, 20, 1000])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.5, 1.0])
def test_the_learning_rate_rises_to_its_peak_once_and_falls(steps, warmup):
    rates = [schedule(step, TrainSettings(steps=steps, warmup=warmup)) for step in range(steps)]
    peak = int(np.argmax(rates))
    assert rates[peak] == 1 and min(rates) > 0
    assert peak == max(1, round(warmup * steps)) - 1
    assert (np.diff(rates[:peak + 1]) > 0).all() and (np.diff(rates[peak:]) <= 0).all()
    assert warmup > 0.5 or steps < 20 or rates[-1] < 0.03


def test_the_learning_rate_is_that_of_a_hand_count():
    settings = TrainSettings(steps=12, warmup=0.25)
    assert [schedule(step, settings) for step in (0, 1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert schedule(6, settings) == pytest.approx(0.75) and schedule(9, settings) == pytest.approx(0.25)


