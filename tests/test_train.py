"""The training loop: it learns, resumes bit for bit, refuses what it must, and predicts in bounded memory."""
import dataclasses
import functools
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from scipy.stats import kendalltau
from torch import nn

import kit.train
from kit.data import LayoutGraph, TileGraph
from kit.losses import list_mle_loss, pairwise_hinge_loss
from kit.model import LayoutGNN, LayoutGNNSettings, TileModel, TileModelSettings
from kit.train import (
    TrainSettings,
    load_checkpoint,
    nth_graph,
    predict,
    save_checkpoint,
    schedule,
    target,
    train,
    train_step,
)

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
    return kendalltau(cost, runtime)[0]


def trained(checkpoint=None, graphs=GRAPHS, settings=SHORT, model=TINY, valid=VALID, score=tau, **more):
    """A fresh model after training -> weights, history without the seconds."""
    model = LayoutGNN(model)
    history = train(model, graphs, settings, valid=valid, score=score, checkpoint=checkpoint, **more)
    assert history.pop("seconds") > 0
    return model.state_dict(), history


@functools.cache
def uninterrupted():
    return trained()


def same(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


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


# learning

@pytest.mark.parametrize("loss", [pairwise_hinge_loss, list_mle_loss])
@pytest.mark.parametrize("attention", [True, False])
def test_the_layout_network_learns_a_small_program_by_heart(attention, loss):
    model = LayoutGNN(dataclasses.replace(TINY, width=16, config_attention=attention, dropout=0.0))
    graph = GRAPHS[0]
    untrained = dataclasses.replace(SHORT, steps=0)
    train(model, [graph], untrained, loss)
    before = tau(predict(model, graph), graph.config_runtime)
    train(model, [graph], TrainSettings(steps=150, configs_per_step=20, learning_rate=1e-2), loss)
    assert tau(predict(model, graph), graph.config_runtime) > max(0.95, before + 0.2)


def test_the_tile_network_learns_a_small_kernel_by_heart():
    model, graph = TileModel(TileModelSettings(width=16, dropout=0.0)), drawn_tile()
    train(model, [graph], TrainSettings(steps=150, configs_per_step=20, learning_rate=1e-2))
    assert tau(predict(model, graph), target(graph)) > 0.95


def test_the_loss_falls():
    history = trained(settings=dataclasses.replace(SHORT, steps=120, validate_every=40))[1]
    assert history["loss"][-1] < 0.8 * history["loss"][0]


def test_training_twice_gives_the_same_and_another_seed_something_else():
    assert same(trained()[0], uninterrupted()[0])
    assert not same(trained(settings=dataclasses.replace(SHORT, seed=1))[0], uninterrupted()[0])


def test_training_and_predicting_leave_the_global_generators_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()      # noqa: NPY002
    trained()
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[2]
    assert np.array_equal(np.random.get_state()[1], before[1])                             # noqa: NPY002


def test_the_state_of_the_global_generators_does_not_matter():
    with torch.random.fork_rng():
        torch.manual_seed(123)
        assert same(trained()[0], uninterrupted()[0])


# resuming

@pytest.mark.parametrize("seconds", [0, 10 ** 6], ids=["saved at each step", "saved at validations"])
@pytest.mark.parametrize("step", [1, 2, 5, 9, 12])
def test_a_run_interrupted_in_any_step_ends_as_if_it_never_was(step, seconds, tmp_path, monkeypatch):
    monkeypatch.setattr(kit.train, "CHECKPOINT_SECONDS", seconds - 1e-9)
    loss = interrupted_loss(step)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "m.pt", loss=loss)
    weights, history = trained(tmp_path / "m.pt", loss=loss)
    assert same(weights, uninterrupted()[0]) and history == uninterrupted()[1]
    done = step - 1 if seconds == 0 else (step - 1) // 4 * 4
    assert loss.calls == step + 12 - done


@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_run_interrupted_while_it_reports_ends_as_if_it_never_was(line, tmp_path):
    lines = []

    def report(text):
        lines.append(text)
        if len(lines) == line:
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "m.pt", report=report)
    weights, history = trained(tmp_path / "m.pt", report=report)
    assert same(weights, uninterrupted()[0]) and history == uninterrupted()[1]
    assert [int(text.split()[1]) for text in lines] == [4, 8, 12]
    assert re.fullmatch(r"step      4 of 12  loss \d\.\d{4}  validation -?\d\.\d{4}  \d+ s", lines[0])


@pytest.mark.parametrize("where", ["optimizer", "validation", "writing"])
def test_a_run_interrupted_at_a_bad_moment_ends_as_if_it_never_was(where, tmp_path, monkeypatch):
    place, name = {"optimizer": (torch.optim.AdamW, "step"), "validation": (kit.train, "predict"),
                   "writing": (torch, "save")}[where]
    done, calls = getattr(place, name), []

    @functools.wraps(done)
    def interrupted(*args, **more):
        calls.append(0)
        if where == "writing" and len(calls) == 2:
            Path(args[1]).write_bytes(b"half")
            raise KeyboardInterrupt
        out = done(*args, **more)
        if len(calls) == {"optimizer": 7, "validation": 3}.get(where):
            raise KeyboardInterrupt                   # the weights have changed, but the step is not yet counted
        return out
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(place, name, interrupted)
        trained(tmp_path / "m.pt")
    weights, history = trained(tmp_path / "m.pt")
    assert same(weights, uninterrupted()[0]) and history == uninterrupted()[1]


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


def in_child(call):
    """Run `call`, an expression of this file's names, in a fresh process."""
    here = Path(__file__).resolve()
    code = f"import sys; sys.path[:0] = {[str(here.parents[1]), str(here.parent)]!r}; import test_train as t; t.{call}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
                          # MALLOC_...: Linux gives each large block back at once, so that the peak is what is held
                          env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"})


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


def test_settings_may_be_numpy_numbers(tmp_path):
    settings = dataclasses.replace(SHORT, steps=np.int64(12), learning_rate=np.float64(1e-2), seed=np.int64(0))
    loss = interrupted_loss(10)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "m.pt", settings=settings, loss=loss)
    assert same(trained(tmp_path / "m.pt", loss=loss)[0], uninterrupted()[0]) and loss.calls == 14


def test_a_checkpoint_may_go_on_on_another_device(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "m.pt", loss=interrupted_loss(6))
    weights, _ = trained(tmp_path / "m.pt", settings=dataclasses.replace(SHORT, device="cpu:0"))
    assert same(weights, uninterrupted()[0])


def test_the_file_s_folder_is_made_and_holds_nothing_else(tmp_path):
    trained(tmp_path / "new" / "m.pt")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["m.pt"]


@pytest.mark.parametrize("change, said", [
    (dict(settings=dataclasses.replace(SHORT, steps=24)), "steps (steps 12, now 24)"),
    (dict(settings=dataclasses.replace(SHORT, seed=3, steps=13)), "steps, seed (steps 12, now 13)"),
    (dict(model=dataclasses.replace(TINY, dropout=0.1)), "model dropout (model dropout 0.2, now 0.1)"),
    (dict(loss=list_mle_loss), "loss (loss pairwise_hinge_loss, now list_mle_loss)"),
    (dict(loss=functools.partial(pairwise_hinge_loss, margin=0.01)),
     "loss (loss pairwise_hinge_loss, now functools.partial(<function pairwise_hinge_loss>, margin=0.01))"),
    (dict(graphs=GRAPHS[:1]), "graphs (graphs [['a', 12, 18, 20], ['b', 12, 18, 15], ['c', 12, 18, 4]], "
                              "now [['a', 12, 18, 20]])"),
    (dict(graphs=(GRAPHS[0]._replace(edge_index=GRAPHS[0].edge_index[1:]), *GRAPHS[1:])),
     "graphs (graphs [['a', 12, 18, 20], ['b', 12, 18, 15], ['c', 12, 18, 4]], "
     "now [['a', 12, 17, 20], ['b', 12, 18, 15], ['c', 12, 18, 4]])"),
    (dict(valid=VALID[:1]), "valid (valid [['v', 12, 18, 20], ['w', 12, 18, 20]], now [['v', 12, 18, 20]])"),
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


def test_a_loss_with_settings_is_known_by_them(tmp_path):
    loss = functools.partial(pairwise_hinge_loss, margin=0.01)
    first = trained(tmp_path / "m.pt", loss=loss)
    assert not same(first[0], uninterrupted()[0])
    assert same(trained(tmp_path / "m.pt", loss=functools.partial(pairwise_hinge_loss, margin=0.01))[0], first[0])


# damaged and hostile files

class Hostile:
    """Unpickling it makes a folder."""
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def readers(path):
    """Both ways of reading a checkpoint."""
    return lambda: load_checkpoint(path, LayoutGNN(TINY)), lambda: trained(path)


@pytest.mark.parametrize("write", [torch.save, lambda thing, path: path.write_bytes(pickle.dumps(thing))],
                         ids=["zip", "pickle"])
def test_a_hostile_pickle_is_refused_and_not_run(write, tmp_path):
    path, trap = tmp_path / "m.pt", tmp_path / "trap"
    write({"model": LayoutGNN(TINY).state_dict(), "extra": Hostile(trap)}, path)
    for read in readers(path):
        with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: not a checkpoint, or a damaged one"):
            read()
    assert not trap.exists()
    pickle.loads(pickle.dumps(Hostile(trap)))
    assert trap.exists()                              # the trap does work


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_named_with_the_cure(share, tmp_path):
    path = tmp_path / "m.pt"
    trained(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:int(share * len(whole))])
    for read in readers(path):
        with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: not a checkpoint, or a damaged one \(\w+\); "
                                             "delete it and train anew, or fetch it again$"):
            read()


@pytest.mark.parametrize("thing", [{"weights": 1}, {"model": 3}, [1, 2], torch.zeros(3)])
def test_a_file_without_weights_is_refused(thing, tmp_path):
    torch.save(thing, tmp_path / "m.pt")
    for read in readers(tmp_path / "m.pt"):
        with pytest.raises(ValueError, match="not a checkpoint, or a damaged one"):
            read()


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.pt"):
        load_checkpoint(tmp_path / "none.pt", LayoutGNN(TINY))


def test_weights_of_another_network_are_refused(tmp_path):
    save_checkpoint(tmp_path / "m.pt", LayoutGNN(TINY))
    with pytest.raises(ValueError, match=r"m\.pt: holds the weights of another model than TileModelSettings\(width=64"):
        load_checkpoint(tmp_path / "m.pt", TileModel())


def test_what_is_saved_comes_back(tmp_path):
    model, other = LayoutGNN(TINY), LayoutGNN(dataclasses.replace(TINY, seed=1))
    save_checkpoint(tmp_path / "m.pt", model, note="x", numbers=[1, 2.5], table={"t": torch.arange(3)})
    extra = load_checkpoint(tmp_path / "m.pt", other)
    assert same(other.state_dict(), model.state_dict())
    assert extra["note"] == "x" and extra["numbers"] == [1, 2.5] and extra["table"]["t"].tolist() == [0, 1, 2]


def test_of_a_training_checkpoint_the_best_weights_are_loaded(tmp_path):
    best, history = trained(tmp_path / "m.pt", score=scripted([0.5, 0.9, 0.1]))
    model = LayoutGNN(TINY)
    extra = load_checkpoint(tmp_path / "m.pt", model)
    assert history["best_step"] == 8 and extra["step"] == 12
    assert same(model.state_dict(), best)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    save_checkpoint(tmp_path / "m.pt", LayoutGNN(TINY), note="old")
    def full(thing, path):
        Path(path).write_bytes(b"half")
        raise OSError("no space left on device")
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(tmp_path / "m.pt", LayoutGNN(TINY), note="new")
    assert load_checkpoint(tmp_path / "m.pt", LayoutGNN(TINY))["note"] == "old"


# which weights are kept

def scripted(values):
    """A score that gives these values, one for each validation of the two graphs."""
    calls = iter([v for v in values for _ in VALID])
    return lambda cost, runtime: next(calls)


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
    ("best", [0.1, 0.9, 0.2], 8), ("best", [0.1, 0.2, 0.9], 12), ("best", [0.5, 0.5, 0.5], 4),
    ("best", [-0.3, -0.2, -0.4], 8), ("last", [0.9, 0.5, 0.1], 12),
    ("best", [NAN, 0.1, 0.2], 12), ("best", [0.3, NAN, 0.2], 4), ("best", [NAN, 0.3, NAN], 8),
    ("best", [NAN, NAN, NAN], 4), ("last", [NAN, NAN, NAN], 12)])
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
    with pytest.raises(ValueError, match="^none of the 2 training graphs has two different runtimes to rank$"):
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


def test_a_step_over_several_graphs_follows_their_mean_loss():
    model, settings = Plain(20), TrainSettings(configs_per_step=20, graphs_per_step=3, clip=1e9)
    data = [(g.graph_id, torch.tensor(g.config_runtime)) for g in GRAPHS]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.cost.detach().clone().requires_grad_()
    mean = sum(pairwise_hinge_loss(before[:len(r)], r) for _, r in data) / 3
    mean.backward()
    assert train_step(model, data, optimizer, pairwise_hinge_loss, 0, settings) == pytest.approx(mean.item())
    assert torch.allclose(model.cost, before - before.grad)


def test_the_gradient_is_clipped_by_its_norm():
    model = Plain(20)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.cost.detach().clone()
    train_step(model, [("a", torch.tensor(GRAPHS[0].config_runtime))], optimizer,
               lambda cost, runtime: 1000 * cost.sum(), 0, TrainSettings(clip=0.5))
    assert (model.cost - before).norm().item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("graphs_per_step", [1, 2])
def test_a_loss_that_is_not_finite_stops_training(graphs_per_step):
    model = LayoutGNN(TINY)
    bad = float("inf")
    settings = dataclasses.replace(SHORT, graphs_per_step=graphs_per_step)
    with pytest.raises(FloatingPointError, match="^the loss is inf at step 0, its gradient has norm .*; "
                                                 "lower the learning rate$"):
        train(model, GRAPHS, settings, lambda cost, runtime: cost.sum() * 0 + bad)
    with pytest.raises(FloatingPointError, match="^the loss is nan at step 0"):
        train(model, GRAPHS, settings, lambda cost, runtime: cost.sum() * NAN)


def test_a_gradient_that_is_not_finite_stops_training_before_it_spoils_the_weights():
    model = LayoutGNN(TINY)
    before = nn.utils.parameters_to_vector(model.parameters()).clone()
    with pytest.raises(FloatingPointError, match="^the loss is 0.0 at step 0, its gradient has norm nan"):
        train(model, GRAPHS, SHORT, lambda cost, runtime: (cost - cost.detach()).abs().sqrt().sum())
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)


# schedule and order

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


def test_each_pass_shows_each_graph_once_in_a_new_order():
    for count in (1, 2, 5):
        passes = [[nth_graph(count * p + place, count, seed=3) for place in range(count)] for p in range(20)]
        assert all(sorted(one) == list(range(count)) for one in passes)
    assert len({tuple(one) for one in passes}) > 10
    assert [nth_graph(p, 5, 3) for p in range(100)] != [nth_graph(p, 5, 4) for p in range(100)]


def test_a_validation_graph_of_one_configuration_does_not_decide_which_weights_are_kept():
    one = VALID[0]._replace(config_codes=np.zeros_like(VALID[0].config_codes))
    alone = train(LayoutGNN(TINY), GRAPHS, SHORT, valid=VALID, score=tau)
    assert alone["score"] == train(LayoutGNN(TINY), GRAPHS, SHORT, valid=[*VALID, one], score=tau)["score"]


def test_validation_takes_a_score():
    with pytest.raises(ValueError, match="^validation graphs without a score; pass score=kendall_tau or tile_score$"):
        train(LayoutGNN(TINY), GRAPHS, SHORT, valid=VALID)


@pytest.mark.parametrize("name, value, expected", [
    ("steps", -5, "a whole number of at least 0"), ("steps", "ten", "a whole number of at least 0"),
    ("configs_per_step", 1, "a whole number of at least 2"), ("validate_every", 0, "a whole number of at least 1"),
    ("learning_rate", np.nan, "a number above 0"), ("keep", "all", "'best' or 'last'")])
def test_settings_that_mean_nothing_are_refused(name, value, expected):
    with pytest.raises(ValueError) as error:
        TrainSettings(**{name: value})
    assert str(error.value) == f"{name} is {value!r}; expected {expected}"


# predicting

def graph_of(c):
    return GRAPHS[0]._replace(config_runtime=np.zeros(c, np.int64))


@pytest.mark.parametrize("transductive", [False, True])
@pytest.mark.parametrize("c, fits, together", [(1, 5, 5), (10, 1, 1), (10, 3, 3), (10, 5, 5), (10, 9, 9), (10, 10, 10),
                                               (10, 99, 10), (100, 64, 64), (100, 99, 64)])
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
    graph = drawn_layout(0, n=20_000, nc=2000, c=64, m=30_000)
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


def test_a_graph_of_20_000_nodes_is_scored_in_the_memory_it_was_given():
    budget = 80 << 20                        # 4 chunks of 16
    child = in_child(f"memory_of_predicting({budget})")
    assert child.returncode == 0, child.stderr
    chunk, prepared, in_chunks, at_once = map(int, child.stdout.split())
    assert 0.5 * budget < chunk < 1.2 * budget
    assert in_chunks < budget + prepared < at_once
