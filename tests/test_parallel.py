"""Several processes follow the curve of one; none hangs when one fails.

Starting processes takes seconds, so torchrun is run once for all cases, each of which it finds here.
"""
import dataclasses
import functools
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from training import GRAPHS, SHORT, TINY, VALID, interrupted_loss, trained

from kit.losses import pairwise_hinge_loss
from kit.models import LayoutGNN
from kit.train import train, train_parallel

# without instance norm: a bias before it has no gradient but rounding, which Adam makes steps of full length of
MODEL = dataclasses.replace(TINY, node_norm=False)
FOUR = dataclasses.replace(SHORT, graphs_per_step=4)
CASES = {
    "plain": FOUR,
    "loss across graphs": dataclasses.replace(FOUR, across_graphs=0.5),
    "ema": dataclasses.replace(FOUR, average="ema"),
    "memory budget": dataclasses.replace(FOUR, memory_budget=1 << 40, sampling="spread"),
    "as many graphs as processes": dataclasses.replace(FOUR, graphs_per_step=2),
}


def correlation(cost, runtime):
    """A score that rounding hardly changes; it parts ties, which Kendall's tau counts."""
    return float(np.corrcoef(cost, runtime)[0, 1])


def trained_so(checkpoint=None, **more):
    return trained(checkpoint, model=MODEL, score=correlation, **more)


def resumed(folder, name, at):
    """Settings "plain" until the loss of a step is interrupted, then its checkpoint lies in the folder."""
    with pytest.raises(KeyboardInterrupt):
        trained_so(folder / name, settings=FOUR, loss=interrupted_loss(at))


def in_team(folder):
    """What each process under torchrun does: every case, and leave what came of it."""
    rank, out = int(os.environ["RANK"]), {}
    for name, settings in CASES.items():
        loss = interrupted_loss(None)
        out[name] = [*trained_so(settings=settings, loss=loss), loss.calls]
    out["resumed"] = [*trained_so(folder / "one.pt", settings=FOUR)]
    resumed(folder, "two.pt", 12)                        # in step 6, as each process computes two losses of a step
    try:
        trained_so(settings=dataclasses.replace(FOUR, seed=rank))
    except ValueError as error:
        out["error"] = str(error)
    torch.save(out, folder / f"{rank}.out")
    trained_so(settings=FOUR, loss=interrupted_loss(5 if rank else None))         # the first one would wait for ever


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What both processes of torchrun left, their folder, and how torchrun ended."""
    here, folder = Path(__file__).resolve(), tmp_path_factory.mktemp("torchrun")
    resumed(folder, "one.pt", 24)                        # in step 6
    script = folder / "script.py"
    script.write_text(f"import sys; sys.path[:0] = {[str(here.parents[1]), str(here.parent)]!r}\n"
                      f"from test_parallel import *; in_team(Path({str(folder)!r}))\n")
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                           script], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert len(list(folder.glob("*.out"))) == 2, done.stderr[-4000:]
    return [torch.load(folder / f"{rank}.out", weights_only=True) for rank in (0, 1)], folder, done


@functools.cache
def alone(name):
    return trained_so(settings=CASES[name])


def check_twin(weights, history, expected, expected_history):
    assert list(weights) == list(expected)
    for name in weights:
        if name != "head.bias":                          # adds the same to all costs, so no loss depends on it
            assert torch.allclose(weights[name].double(), expected[name].double(), atol=1e-5), name
    for curve in ("loss", "score"):
        assert history[curve] == pytest.approx(expected_history[curve], abs=1e-5)
    for name in ("step", "best_step", "configs", "overflows"):
        assert history[name] == expected_history[name]


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_two_processes_of_torchrun_follow_the_curve_of_one(name, ran):
    for weights, history, _ in [out[name] for out in ran[0]]:
        check_twin(weights, history, *alone(name))


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_all_processes_end_with_the_same_weights(name, ran):
    (one, *_), (other, *_) = (out[name] for out in ran[0])
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.long
def test_processes_share_the_work(ran):
    assert [out["plain"][2] for out in ran[0]] == [24, 24]                 # losses of 12 steps of 4 graphs
    assert [out["as many graphs as processes"][2] for out in ran[0]] == [12, 12]


@pytest.mark.long
def test_a_run_of_one_process_goes_on_in_two(ran):
    for out in ran[0]:
        check_twin(*out["resumed"], *alone("plain"))


@pytest.mark.long
def test_a_run_of_two_processes_goes_on_in_one(ran):
    loss = interrupted_loss(None)
    check_twin(*trained_so(ran[1] / "two.pt", settings=FOUR, loss=loss), *alone("plain"))
    assert loss.calls == 4 * (12 - 4)                    # from the validation after step 4


@pytest.mark.long
def test_processes_that_were_given_different_settings_do_not_wait_for_each_other(ran):
    assert [out["error"] for out in ran[0]] == [
        "2 processes were given different settings, graphs, weights or checkpoints; give each the same, and one file "
        "system"] * 2


@pytest.mark.long
def test_torchrun_ends_all_when_one_fails(ran):
    assert ran[2].returncode != 0 and "KeyboardInterrupt" in ran[2].stderr


# started from a process such as a notebook's

def dies(cost, runtime):
    """The default loss; process 1 of the team is killed in it."""
    if torch.distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return pairwise_hinge_loss(cost, runtime)


@pytest.mark.long
def test_processes_bring_weights_history_and_lines_back(tmp_path):
    model, lines = LayoutGNN(MODEL), []
    history = train_parallel(model, GRAPHS, FOUR, 2, lines.append, valid=VALID, score=correlation,
                             record=tmp_path / "run.json", checkpoint=tmp_path / "m.pt")
    check_twin(model.state_dict(), history, *alone("plain"))
    assert [re.sub(" +", " ", line).split(" loss")[0] for line in lines] == [f"step {n} of 12" for n in (4, 8, 12)]
    assert history["record"]["processes"] == 2 and history["seconds"] > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.pt", "run.json"]
    loss = interrupted_loss(None)
    again = train(LayoutGNN(MODEL), GRAPHS, FOUR, loss, VALID, correlation, tmp_path / "m.pt")
    assert loss.calls == 0 and again["loss"] == history["loss"]


@pytest.mark.long
def test_a_process_that_is_killed_ends_all_and_leaves_the_model_as_it_was():
    model = LayoutGNN(MODEL)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    # not the error of process 0, which loses its connection
    with pytest.raises(RuntimeError, match=r"^a training process ended with exit code -9; out of memory\?$"):
        train_parallel(model, GRAPHS, FOUR, loss=dies)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


# what is refused before a process is started

@pytest.mark.parametrize("processes", [0, 1.5, "two"])
def test_a_number_of_processes_that_means_nothing_is_refused(processes):
    with pytest.raises(ValueError, match=f"^processes is {processes!r}; expected a whole number of at least 1$"):
        train_parallel(LayoutGNN(MODEL), GRAPHS, FOUR, processes)


def test_more_processes_than_gpus_are_refused():
    gpus = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"^device is 'cuda' and processes is {gpus + 1}, but PyTorch .* sees "
                                         f"{gpus or 'no'} GPUs? here; pass {'processes=' if gpus else 'device='}"):
        train_parallel(LayoutGNN(MODEL), GRAPHS, dataclasses.replace(FOUR, device="cuda"), gpus + 1)


def test_what_cannot_be_sent_to_another_process_is_named_with_the_cure():
    with pytest.raises(ValueError, match="^cannot be sent to another process: .*lambda.*; define it at the top of a "
                                         "module$"):
        train_parallel(LayoutGNN(MODEL), GRAPHS, FOUR, loss=lambda cost, runtime: cost.sum())


def test_what_stands_in_a_notebook_s_cell_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    cell = type("Pasted", (LayoutGNN,), {"__module__": "__main__"})
    with pytest.raises(ValueError, match="^Pasted is defined in a notebook's cell, which other processes cannot "
                                         "import; import it from a module, or use train$"):
        train_parallel(cell(MODEL), GRAPHS, FOUR)
