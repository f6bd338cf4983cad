"""The record of a run is plain data and says what happened."""
import json
import platform
from dataclasses import asdict, replace

import numpy as np
import psutil
import pytest
import torch
from training import GRAPHS, SHORT, TINY, VALID, interrupted_loss, tau

from kit.files import plain
from kit.models import LayoutGNN
from kit.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model, its history and the file that was written."""
    path, model = tmp_path_factory.mktemp("record") / "new" / "run.json", LayoutGNN(TINY)
    settings = replace(SHORT, graphs_per_step=2)
    history = train(model, GRAPHS, settings, valid=VALID, score=tau, record=path)
    return model, settings, history, path


def test_the_record_says_what_was_run_and_with_what(run):
    model, settings, history, path = run
    record = history["record"]
    assert json.loads(path.read_text()) == record
    assert record["settings"] == asdict(settings) and record["settings"]["seed"] == 0
    assert record["model"] == "LayoutGNN" and record["model_settings"] == asdict(TINY)
    assert record["loss"] == "pairwise_hinge_loss" and record["graphs"] == 3
    assert record["parameters"] == sum(p.numel() for p in model.parameters())
    assert record["versions"]["torch"] == str(torch.__version__)
    assert record["versions"]["numpy"] == np.__version__ and record["versions"]["python"] == platform.python_version()
    assert set(record["versions"]) == {"python", "torch", "numpy", "kit"} and record["device"]
    assert record["curve"] == {name: history[name] for name in ("step", "loss", "score")}
    assert record["seconds"] == history["seconds"] and record["best_step"] == history["best_step"]


def test_configurations_seen_are_counted_graph_by_graph(run):
    # each pass of 3 graphs takes 6 + 6 + 4 configurations; 12 steps of 2 graphs are 8 passes
    assert run[2]["configs"] == run[2]["record"]["configs_seen"] == 8 * 16
    assert run[2]["record"]["configs_per_step"] == {"least": 4, "most": 6}


def test_peak_memory_is_what_the_process_once_held(run):
    assert 10 ** 7 < run[2]["record"]["peak_memory"] < 2 ** 40
    now, block = psutil.Process().memory_info().rss, np.ones(2 ** 24)
    del block
    peak = train(LayoutGNN(TINY), GRAPHS, replace(SHORT, steps=1))["record"]["peak_memory"]
    assert peak > now + 0.9 * 2 ** 27


def test_a_resumed_run_counts_what_went_before(tmp_path):
    loss = interrupted_loss(10)
    with pytest.raises(KeyboardInterrupt):
        train(LayoutGNN(TINY), GRAPHS, SHORT, loss, checkpoint=tmp_path / "m.pt")
    record = train(LayoutGNN(TINY), GRAPHS, SHORT, loss, checkpoint=tmp_path / "m.pt")["record"]
    assert record["configs_seen"] == train(LayoutGNN(TINY), GRAPHS, SHORT)["record"]["configs_seen"] == 4 * 16
    assert record["curve"]["step"] == [4, 8, 12]


def test_numbers_that_json_does_not_know_become_plain():
    nan, inf = float("nan"), float("inf")
    given = {"a": np.float32(0.5), 3: (np.int64(2), nan), "b": np.array([1.0, inf]), "c": None, "d": True, "e": range}
    assert plain(given) == {"a": 0.5, "3": [2, None], "b": [1.0, None], "c": None, "d": True, "e": "<class 'range'>"}
    record = train(LayoutGNN(TINY), GRAPHS, SHORT)["record"]          # without validation graphs all scores are NaN
    assert json.loads(json.dumps(record, allow_nan=False)) == record and record["curve"]["score"] == [None] * 3
