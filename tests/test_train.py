"""The training loop: it learns, resumes bit for bit and refuses what it must."""
import contextlib
import dataclasses
import functools
import pickle
import re
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from training import (
    GRAPHS,
    SHORT,
    TINY,
    VALID,
    Plain,
    drawn_tile,
    in_child,
    interrupted_loss,
    same,
    scripted,
    tau,
    trained,
    uninterrupted,
)

import kit.train
import kit.train_parts
from kit.data import target
from kit.losses import list_mle_loss, pairwise_hinge_loss
from kit.models import LayoutGNN, TileModel, TileModelSettings
from kit.predict import predict
from kit.train import TrainSettings, train
from kit.train_parts import Deadline, deadlines, find_deadline
from kit.train_parts.checkpoints import load_checkpoint, save_checkpoint

# learning

@pytest.mark.parametrize("attention, loss", [(True, pairwise_hinge_loss), (False, list_mle_loss)])
def test_the_layout_network_learns_a_small_program_by_heart(attention, loss):
    model = LayoutGNN(dataclasses.replace(TINY, width=16, config_attention=attention, dropout=0.0))
    graph = GRAPHS[0]
    untrained = dataclasses.replace(SHORT, steps=0)
    train(model, [graph], untrained, loss)
    before = tau(predict(model, graph), graph.config_runtime)
    train(model, [graph], TrainSettings(steps=50, configs_per_step=20, learning_rate=3e-2), loss)
    assert tau(predict(model, graph), graph.config_runtime) > max(0.95, before + 0.2)


def test_the_tile_network_learns_a_small_kernel_by_heart():
    model, graph = TileModel(TileModelSettings(width=16, dropout=0.0)), drawn_tile()
    train(model, [graph], TrainSettings(steps=50, configs_per_step=20, learning_rate=3e-2))
    assert tau(predict(model, graph), target(graph)) > 0.95


def test_seconds_count_what_happens_before_the_first_step(monkeypatch):
    now = [0.0]

    class Slow(LayoutGNN):
        def fit_scale(self, graphs):
            now[0] += 100                        # as trees that are fitted here
            super().fit_scale(graphs)
    monkeypatch.setattr(kit.train, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert train(Slow(TINY), GRAPHS, SHORT)["seconds"] == 100


def test_training_twice_gives_the_same_and_another_seed_something_else():
    assert same(trained()[0], uninterrupted()[0])
    assert not same(trained(settings=dataclasses.replace(SHORT, seed=1))[0], uninterrupted()[0])


@pytest.mark.parametrize("outside", [torch.no_grad, torch.inference_mode])
def test_training_learns_whatever_mode_of_gradients_the_caller_is_in(outside):
    model = LayoutGNN(TINY)
    with outside():
        train(model, GRAPHS, SHORT, valid=VALID, score=tau)
    assert same(model.state_dict(), uninterrupted()[0])


def test_the_state_of_the_global_generator_does_not_matter_and_is_left_alone():
    with torch.random.fork_rng():
        torch.manual_seed(123)
        before = torch.get_rng_state()
        assert same(trained()[0], uninterrupted()[0]) and torch.equal(torch.get_rng_state(), before)


# resuming

# a checkpoint is saved at each step, or at validations
@pytest.mark.parametrize("step, seconds", [(1, 0), (9, 0), (5, 10 ** 6), (12, 10 ** 6)])
def test_a_run_interrupted_in_any_step_ends_as_if_it_never_was(step, seconds, tmp_path, monkeypatch):
    monkeypatch.setattr(kit.train, "CHECKPOINT_SECONDS", seconds - 1e-9)
    loss = interrupted_loss(step)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "m.pt", loss=loss)
    weights, history = trained(tmp_path / "m.pt", loss=loss)
    assert same(weights, uninterrupted()[0]) and history == uninterrupted()[1]
    done = step - 1 if seconds == 0 else (step - 1) // 4 * 4
    assert loss.calls == step + 12 - done


def test_a_run_killed_in_the_middle_ends_as_if_it_never_was(tmp_path):
    child = in_child(f"train_and_die({str(tmp_path / 'm.pt')!r}, 10)")
    assert child.returncode == -signal.SIGKILL, child.stderr
    loss = interrupted_loss(None)
    weights, history = trained(tmp_path / "m.pt", loss=loss)
    assert loss.calls == 4                            # 8 of 12 steps came from the checkpoint
    assert same(weights, uninterrupted()[0]) and history == uninterrupted()[1]


def test_a_finished_run_is_not_run_again(tmp_path):
    trained(tmp_path / "m.pt")
    loss = interrupted_loss(1)
    weights, history = trained(tmp_path / "m.pt", loss=loss)
    assert loss.calls == 0 and same(weights, uninterrupted()[0]) and history == uninterrupted()[1]


def test_a_checkpoint_may_go_on_on_another_device(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "m.pt", loss=interrupted_loss(6))
    weights, _ = trained(tmp_path / "m.pt", settings=dataclasses.replace(SHORT, device="cpu:0"))
    assert same(weights, uninterrupted()[0])


@pytest.mark.parametrize("change, said", [
    (dict(settings=dataclasses.replace(SHORT, seed=3, steps=13)), "steps, seed (steps 12, now 13)"),
    (dict(model=dataclasses.replace(TINY, dropout=0.1)), "model dropout (model dropout 0.2, now 0.1)"),
    (dict(loss=functools.partial(pairwise_hinge_loss, margin=0.01)),
     "loss (loss pairwise_hinge_loss, now functools.partial(<function pairwise_hinge_loss>, margin=0.01))"),
    (dict(graphs=GRAPHS[:1]), "graphs (graphs [['a', 12, 18, 20, '"),
    (dict(graphs=(GRAPHS[0]._replace(config_runtime=GRAPHS[0].config_runtime[::-1].copy()), *GRAPHS[1:])),
     "graphs (graphs [['a', 12, 18, 20, '"),
    (dict(valid=VALID[:1]), "valid (valid [['v', 12, 18, 20, '"),
])
def test_a_checkpoint_of_other_settings_is_refused(change, said, tmp_path):
    path = tmp_path / "m.pt"
    trained(path)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: written with other {said}')}.*; "
                                         "use another checkpoint or delete it$"):
        trained(path, **change)


def test_a_checkpoint_of_weights_alone_is_not_gone_on_from(tmp_path):
    save_checkpoint(tmp_path / "m.pt", LayoutGNN(TINY))
    with pytest.raises(ValueError, match=r"written with other steps, .* \(steps None, now 12\); use another"):
        trained(tmp_path / "m.pt")


# which weights are kept

@functools.cache
def weights_at(step):
    """Weights after a step, seen by a score that keeps the last."""
    model, seen = LayoutGNN(TINY), {}

    def look(cost, runtime):
        seen[len(seen)] = {name: value.clone() for name, value in model.state_dict().items()}
        return 0.0
    train(model, GRAPHS, SHORT, valid=VALID[:1], score=look)
    return seen[step // 4 - 1]


NAN = float("nan")


@pytest.mark.parametrize("keep, scores, step", [
    ("best", [0.1, 0.9, 0.2], 8), ("best", [0.5, 0.5, 0.5], 4), ("last", [0.9, 0.5, 0.1], 12),
    ("best", [NAN, 0.1, 0.2], 12), ("best", [NAN, NAN, NAN], 4)])
def test_the_weights_that_are_kept_are_those_of_the_best_validation(keep, scores, step):
    weights, history = trained(settings=dataclasses.replace(SHORT, keep=keep), score=scripted(scores))
    assert history["best_step"] == step and same(weights, weights_at(step))
    assert history["step"] == [4, 8, 12]
    assert history["score"] == pytest.approx(scores, nan_ok=True)


def test_without_validation_graphs_the_last_weights_are_kept():
    weights, history = trained(valid=(), score=None)
    assert history["best_step"] == 12 and same(weights, weights_at(12))
    assert np.isnan(history["score"]).all() and len(history["score"]) == 3


def test_the_last_step_is_always_validated():
    history = trained(settings=dataclasses.replace(SHORT, steps=10))[1]
    assert history["step"] == [4, 8, 10]


# what is trained on

def flat(graph):
    return graph._replace(config_runtime=np.full_like(graph.config_runtime, 7), graph_id="flat")


def test_graphs_with_nothing_to_rank_are_left_out():
    weights, history = trained(graphs=[flat(GRAPHS[0]), *GRAPHS], valid=[*VALID, flat(VALID[0])])
    assert same(weights, uninterrupted()[0]) and history == uninterrupted()[1]


def test_graphs_that_all_have_nothing_to_rank_are_an_error():
    with pytest.raises(ValueError, match="^none of the 2 training graphs has two configurations with different "
                                         "runtimes$"):
        train(LayoutGNN(TINY), [flat(GRAPHS[0]), flat(GRAPHS[1])])
    with pytest.raises(ValueError, match="^none of the 0 training graphs"):
        train(LayoutGNN(TINY), [])


def test_statistics_are_fitted_once_and_on_training_graphs_alone():
    model, other = LayoutGNN(TINY), LayoutGNN(TINY)
    train(model, GRAPHS, dataclasses.replace(SHORT, steps=0), valid=VALID, score=tau)
    other.fit_scale(GRAPHS)
    assert torch.equal(model.node_scale, other.node_scale)
    train(model, VALID, dataclasses.replace(SHORT, steps=1))
    assert torch.equal(model.node_scale, other.node_scale)


def test_layouts_are_ranked_in_ns_and_tiles_by_their_share_of_the_default():
    assert target(GRAPHS[0]) is GRAPHS[0].config_runtime
    assert target(drawn_tile()).tolist() == (drawn_tile().config_runtime / 1000).tolist()
    seen = []
    def loss(cost, runtime):
        seen.append(runtime)
        return cost.sum()
    train(LayoutGNN(TINY), [GRAPHS[0]._replace(config_runtime=2 ** 60 + np.arange(20))], SHORT, loss)
    assert all(r.dtype == torch.int64 and len(set(r.tolist())) == 6 and min(r.tolist()) >= 2 ** 60 for r in seen)
    seen.clear()
    train(TileModel(), [drawn_tile()], SHORT, loss)
    assert all(r.dtype == torch.float64 and set(r.tolist()) <= set(target(drawn_tile()).tolist()) for r in seen)


def test_a_step_takes_distinct_configurations_of_as_many_graphs_as_asked():
    model = Plain(20)
    train(model, GRAPHS, TrainSettings(steps=40, configs_per_step=6, graphs_per_step=3), valid=())
    assert len(model.asked) == 120
    for place in range(0, 120, 3):
        assert {name for name, _ in model.asked[place:place + 3]} == {"a", "b", "c"}
    for name, index in model.asked:
        c = {"a": 20, "b": 15, "c": 4}[name]
        assert len(index) == len(set(index)) == min(6, c) and max(index) < c
    assert {i for name, index in model.asked if name == "a" for i in index} == set(range(20))


def test_a_loss_that_is_not_finite_stops_training():
    settings = dataclasses.replace(SHORT, graphs_per_step=2)
    with pytest.raises(FloatingPointError, match="^the loss is inf at step 0, its gradient has norm .*; "
                                                 "lower the learning rate$"):
        train(LayoutGNN(TINY), GRAPHS, settings, lambda cost, runtime: cost.sum() * 0 + float("inf"))


def test_a_gradient_that_is_not_finite_stops_training_before_it_spoils_the_weights():
    model = LayoutGNN(TINY)
    before = nn.utils.parameters_to_vector(model.parameters()).clone()
    with pytest.raises(FloatingPointError, match="^the loss is 0.0 at step 0, its gradient has norm nan"):
        train(model, GRAPHS, SHORT, lambda cost, runtime: (cost - cost.detach()).abs().sqrt().sum())
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)


# settings and validation


@pytest.mark.parametrize("device", ["cuda:99", "meta"])
def test_a_device_that_is_not_there_is_named_with_the_cure(device):
    gpus = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"^device is '{device}', and PyTorch .* cannot compute on it here: it sees "
                                         f"{gpus or 'no'} GPUs?; pass 'cpu'"):
        trained(settings=dataclasses.replace(SHORT, device=device))


@pytest.mark.parametrize("name, value, expected", [
    ("configs_per_step", 1, "a whole number of at least 2"), ("learning_rate", np.nan, "a number above 0"),
    ("warmup", -0.1, "a share, 0 to 1"), ("memory_budget", 0, "a whole number of at least 1"),
    ("average", "mean", "'none' or 'swa'")])
def test_settings_that_mean_nothing_are_refused(name, value, expected):
    with pytest.raises(ValueError) as error:
        TrainSettings(**{name: value})
    assert str(error.value) == f"{name} is {value!r}; expected {expected}"


# a deadline

class Clock:
    """Tells one second more at each call."""
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return float(self.calls)


@pytest.mark.parametrize("sessions", [[13], [3, 4, 0, 2]])
def test_a_run_that_stops_at_deadlines_ends_as_if_it_never_did(sessions, tmp_path):
    done = 0
    for steps in sessions:
        weights, history = trained(tmp_path / "m.pt", deadline=Deadline(steps + 1, Clock()), record=tmp_path / "r.json")
        done = min(12, done + steps)
        assert history["unfinished"] == 12 - done and (tmp_path / "r.json").is_file() == (done == 12)
    loss = interrupted_loss(None)
    weights, history = trained(tmp_path / "m.pt", loss=loss, deadline=Deadline(99, Clock()), record=tmp_path / "r.json")
    assert loss.calls == 12 - done and (tmp_path / "r.json").is_file()
    assert same(weights, uninterrupted()[0]) and history == uninterrupted()[1]


def test_what_is_finished_needs_no_time(tmp_path):
    trained(tmp_path / "m.pt")
    weights, history = trained(tmp_path / "m.pt", deadline=Deadline(0, Clock()))
    assert history["unfinished"] == 0 and same(weights, uninterrupted()[0])


def test_each_checkpoint_is_written_within_what_the_caller_gives(tmp_path):
    seen, path = [], tmp_path / "m.pt"

    @contextlib.contextmanager
    def saving(step):
        before = path.read_bytes() if path.exists() else None
        yield
        seen.append((step, path.read_bytes() != before, load_checkpoint(path, LayoutGNN(TINY))["step"]))
    trained(path, saving=saving, deadline=Deadline(7, Clock()))
    trained(path, saving=saving)
    assert seen == [(4, True, 4), (6, True, 6), (8, True, 8), (12, True, 12)]


@pytest.mark.parametrize("hours, there, at", [(None, False, None), (2.5, False, 100 + 9000), (0, True, 100),
                                              (None, True, 100 + 8 * 3600)])
def test_a_session_on_kaggle_has_a_deadline_by_itself_and_others_only_a_given_one(monkeypatch, hours, there, at):
    monkeypatch.setattr(deadlines, "_BEGAN", 100)
    monkeypatch.setattr(deadlines, "Path", lambda path: SimpleNamespace(is_dir=lambda: there))
    found = find_deadline(hours)
    assert (found and found.at) == at and found == pickle.loads(pickle.dumps(found))
