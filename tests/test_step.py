"""One step of the optimiser against sums by hand: losses, gradients, precision, learning rate."""
import numpy as np
import pytest
import torch
from training import GRAPHS, Net, Plain, interrupted_loss, same, stepped, tau

from kit.losses import pairwise_hinge_loss
from kit.predict import predict
from kit.train import TrainSettings, schedule, train


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


def test_parameters_without_a_gradient_are_left_alone():
    model = Plain(20)
    model.spare = torch.nn.Parameter(torch.ones(3))
    stepped(model, GRAPHS, TrainSettings())
    assert model.spare.grad is None and model.spare.tolist() == [1, 1, 1]


# precision

def test_bfloat16_follows_float32_with_weights_in_float32():
    histories = {}
    for precision in ("float32", "bfloat16"):
        model = Net()
        settings = TrainSettings(steps=60, configs_per_step=16, learning_rate=1e-2, precision=precision)
        histories[precision] = train(model, GRAPHS[:1], settings)["loss"]
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert tau(predict(model, GRAPHS[0]), GRAPHS[0].config_runtime) > 0.8
    assert histories["bfloat16"] == pytest.approx(histories["float32"], rel=0.05)
    assert histories["bfloat16"] != histories["float32"]


def test_products_are_computed_in_the_precision_and_the_loss_is_not():
    model, seen = Net(), []
    model.layers[0].register_forward_hook(lambda layer, given, out: seen.append(out.dtype))

    def loss(cost, runtime):
        seen.append(cost.dtype)
        return pairwise_hinge_loss(cost, runtime)
    for precision in ("float32", "bfloat16", "float16"):
        stepped(model, GRAPHS, TrainSettings(precision=precision), loss)
    assert seen == [torch.float32, torch.float32, torch.bfloat16, torch.float32, torch.float16, torch.float32]


FLOAT16 = TrainSettings(steps=30, configs_per_step=16, learning_rate=1e-2, precision="float16", validate_every=10)


def test_a_step_that_overflows_float16_is_left_out_and_the_scale_halved():
    model = Net(factor=200.0)                        # times 65,536, a gradient beyond 65,504
    before = [p.detach().clone() for p in model.parameters()]
    assert stepped(model, GRAPHS[:1], FLOAT16)[0] is None
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before))
    history = train(model, GRAPHS[:1], FLOAT16)
    assert 0 < history["overflows"] < 30 and history["record"]["overflows"] == history["overflows"]
    assert np.isfinite(history["loss"]).all() and history["loss"][-1] < history["loss"][0]


@pytest.mark.parametrize("step", [2, 20])
def test_an_interrupted_float16_run_goes_on_with_its_scale(step, tmp_path, monkeypatch):
    monkeypatch.setattr("kit.train.CHECKPOINT_SECONDS", -1)
    loss, model, whole = interrupted_loss(step), Net(factor=200.0), Net(factor=200.0)
    with pytest.raises(KeyboardInterrupt):
        train(model, GRAPHS[:1], FLOAT16, loss, checkpoint=tmp_path / "m.pt")
    model = Net(factor=200.0)
    history = train(model, GRAPHS[:1], FLOAT16, loss, checkpoint=tmp_path / "m.pt")
    expected = train(whole, GRAPHS[:1], FLOAT16)
    assert same(model.state_dict(), whole.state_dict()) and loss.calls == 31
    assert history["loss"] == expected["loss"] and history["overflows"] == expected["overflows"] > 0


def test_a_loss_that_overflows_at_every_scale_stops_training():
    with pytest.raises(FloatingPointError, match="^the loss is nan at step 16, its gradient has norm nan, and float16 "
                                                 "overflows at every scale; pass precision='bfloat16' or 'float32'$"):
        train(Net(), GRAPHS[:1], FLOAT16, lambda cost, runtime: cost.sum() * float("nan"))


# learning rate

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


