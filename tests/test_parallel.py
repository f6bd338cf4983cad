"""Several processes follow the curve of one; none hangs when one fails."""
import dataclasses
import functools
import os
import re
import signal

import numpy as np
import pytest
import torch
from training import GRAPHS, SHORT, TINY, VALID, interrupted_loss, trained

from kit.losses import pairwise_hinge_loss
from kit.models import LayoutGNN
from kit.train import train, train_parallel

# without instance norm: a bias before it has no gradient but rounding, which Adam makes steps of full length of
MODEL = dataclasses.replace(TINY, node_norm=False)
FOUR = dataclasses.replace(SHORT, graphs_per_step=4, average="swa", memory_budget=1 << 40)


def correlation(cost, runtime):
    """A score that rounding hardly changes; it parts ties, which Kendall's tau counts."""
    return float(np.corrcoef(cost, runtime)[0, 1])


@functools.cache
def alone():
    return trained(model=MODEL, score=correlation, settings=FOUR)


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
def test_processes_bring_weights_history_and_lines_back_and_one_process_goes_on(tmp_path):
    model, lines = LayoutGNN(MODEL), []
    history = train_parallel(model, GRAPHS, FOUR, 2, lines.append, valid=VALID, score=correlation,
                             record=tmp_path / "run.json", checkpoint=tmp_path / "m.pt")
    check_twin(model.state_dict(), history, *alone())
    assert [re.sub(" +", " ", line).split(" loss")[0] for line in lines] == [f"step {n} of 12" for n in (4, 8, 12)]
    assert history["record"]["processes"] == 2 and history["seconds"] > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.pt", "run.json"]
    loss = interrupted_loss(None)                        # 9 calls: three trials of a graph for the memory budget
    again = train(LayoutGNN(MODEL), GRAPHS, FOUR, loss, VALID, correlation, tmp_path / "m.pt")
    assert loss.calls == 9 and again["loss"] == history["loss"]


@pytest.mark.long
def test_a_run_of_one_process_goes_on_in_two(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "m.pt", model=MODEL, score=correlation, settings=FOUR, loss=interrupted_loss(30))
    model = LayoutGNN(MODEL)
    history = train_parallel(model, GRAPHS, FOUR, 2, valid=VALID, score=correlation, checkpoint=tmp_path / "m.pt")
    check_twin(model.state_dict(), history, *alone())


def dies(cost, runtime):
    """The default loss; process 1 of the team is killed in it."""
    if torch.distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return pairwise_hinge_loss(cost, runtime)


@pytest.mark.long
def test_a_process_that_is_killed_ends_all_and_leaves_the_model_as_it_was():
    model = LayoutGNN(MODEL)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    # not the error of process 0, which loses its connection
    with pytest.raises(RuntimeError, match=r"^a training process ended with exit code -9; out of memory\?$"):
        train_parallel(model, GRAPHS, FOUR, loss=dies)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_more_processes_than_gpus_and_what_cannot_be_sent_are_refused():
    gpus = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"^device is 'cuda' and processes is {gpus + 1}, but PyTorch .* sees "):
        train_parallel(LayoutGNN(MODEL), GRAPHS, dataclasses.replace(FOUR, device="cuda"), gpus + 1)
    with pytest.raises(ValueError, match="^processes is 0; expected a whole number of at least 1$"):
        train_parallel(LayoutGNN(MODEL), GRAPHS, FOUR, 0)
    with pytest.raises(ValueError, match="^cannot be sent to another process: .*lambda.*; define it at the top of a "
                                         "module$"):
        train_parallel(LayoutGNN(MODEL), GRAPHS, FOUR, loss=lambda cost, runtime: cost.sum())
