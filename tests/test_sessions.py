"""Trainings that take several sessions: stopped by a deadline, taken over from an earlier session's output."""
import itertools
import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from run_folder import World, in_process
from training import GRAPHS, SHORT, TINY, VALID, GivenData, step_of_a_run

from kit.files import write_json
from kit.models import LayoutGNN
from kit.recipes import Recipe
from kit.train_parts import deadlines
from lab.run import Folder, steps_trained, unfinished
from lab.training import members, train_recipes

LAYOUT = "layout:xla:random"
RECIPE = Recipe(LayoutGNN, TINY, replace(SHORT, steps=4))       # validated, and so kept, after each step


def train_some(out, looks=None, seeds=3, lines=None, inputs=None, folds=None):
    """Train some members one after another, until a number of looks at the clock -> Predictions.

    `inputs`: a folder with the outputs of earlier sessions.
    """
    run, data = step_of_a_run(out, inputs=inputs), GivenData({LAYOUT: {"train": GRAPHS, "test": VALID}})
    heard = [] if lines is None else lines
    with patch.object(deadlines, "_BEGAN", 0), patch.object(deadlines, "now", itertools.count(1).__next__):
        return train_recipes(run, data, {LAYOUT: {"gnn": RECIPE}}, seeds, 0, folds, workers=1, report=heard.append,
                             hours=None if looks is None else (looks + 0.5) / 3600)


def finished(made):
    """The seeds of the members that are finished, from their predictions."""
    assert [(row.collection, row.split, row.kind) for row in made.rows] == [(LAYOUT, "test", "gnn")] * len(made.rows)
    assert [member.seed for member, _ in made.trained] == [row.seed for row in made.rows]
    return [row.seed for row in made.rows]


def weights(out):
    """{name of a checkpoint: its weights}."""
    return {path.name: torch.load(path, weights_only=True)["best"] for path in Path(out, "store").glob("*.pt")
            if ".kept-" not in path.name}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n][w], other[n][w]) for n in one for w in one[n])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run without a break."""
    out = tmp_path_factory.mktemp("whole")
    assert finished(train_some(out)) == [0, 1, 2]
    return out


def test_members_that_a_deadline_stops_are_named_and_the_next_run_finishes_them(whole, tmp_path, capsys):
    made = train_some(tmp_path, 7)                         # one before each member, one before each of 4 steps
    assert finished(made) == [0] and len(made.histories[LAYOUT]["gnn"]) == 1
    record = json.loads((tmp_path / "unfinished" / "step.json").read_text())
    assert record == {"step": "step", "unfinished": [
        {"name": f"{LAYOUT}, gnn, seed 1", "steps_done": 1, "steps": 4},
        {"name": f"{LAYOUT}, gnn, seed 2", "steps_done": 0, "steps": 4}]}
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"note  to be continued: the time is used up, and 2 models are unfinished ({LAYOUT}, gnn, seed 1 after step 1 "
        f"of 4; {LAYOUT}, gnn, seed 2); run the same again to continue")
    assert unfinished(tmp_path) == {"step": [f"{LAYOUT}, gnn, seed 1", f"{LAYOUT}, gnn, seed 2"]}
    assert sorted(map(steps_trained, (tmp_path / "store").glob("*.json"))) == [1, 4]
    made = train_some(tmp_path)
    assert finished(made) == [0, 1, 2] and len(made.histories[LAYOUT]["gnn"]) == 3
    assert unfinished(tmp_path) == {} and equal(weights(tmp_path), weights(whole))
    assert {steps_trained(path) for path in (tmp_path / "store").glob("*.json")} == {4}


def test_a_member_ranks_nothing_before_the_models_of_all_its_folds_are_finished(tmp_path):
    whole, parts = train_some(tmp_path / "whole", None, 1, folds=2), train_some(tmp_path / "parts", 7, 1, folds=2)
    assert parts.rows == parts.trained == [] and parts.histories == {}
    assert unfinished(tmp_path / "parts") == {"step": [f"{LAYOUT}, gnn, seed 0 fold 1"]}
    parts = train_some(tmp_path / "parts", None, 1, folds=2)
    assert [row.split for row in whole.rows] == ["test", "train"] and len(parts.trained) == 2
    assert all((row.costs[i] == other.costs[i]).all()
               for row, other in zip(whole.rows, parts.rows, strict=True) for i in row.costs)


def test_a_run_that_is_killed_at_a_checkpoint_is_resumed_and_ends_with_the_same_weights(whole, tmp_path):
    for kill in (0, 3, 6, 11):                   # each member writes a checkpoint four times
        written, out = [], tmp_path / str(kill)

        def write(*args, kill=kill, written=written):
            written.append(1)
            if len(written) > kill:
                raise KeyboardInterrupt
            write_json(*args)
        with patch.object(members, "write_json", write), pytest.raises(KeyboardInterrupt):
            train_some(out)
        assert finished(train_some(out)) == [0, 1, 2]
        assert equal(weights(out), weights(whole)) and not list(out.rglob("*kept*"))


@pytest.mark.parametrize("place", ["first/results", "notebooks/someone/first/results", "first"])
def test_a_session_goes_on_from_the_output_of_an_earlier_one_and_ends_with_the_same_weights(whole, tmp_path, place):
    inputs, lines = tmp_path / "input", []
    train_some(inputs / place, 7)
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    made = train_some(tmp_path / "out", lines=lines, inputs=inputs)
    assert finished(made) == [0, 1, 2] and equal(weights(tmp_path / "out"), weights(whole))
    assert not any("seed 0" in line for line in lines)           # it was finished; seed 1 had one step
    assert [sum(f"seed {seed}: step" in line for line in lines) for seed in (1, 2)] == [3, 4]
    assert {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()} == before


def test_of_several_earlier_sessions_the_one_that_came_furthest_counts(whole, tmp_path):
    for name, looks in (("a", 2), ("b", 4), ("c", 3)):
        train_some(tmp_path / "input" / name / "results", looks)
    # looks at the clock: one before the member, then one before its last step
    assert finished(train_some(tmp_path / "out", 1, 1, inputs=tmp_path / "input")) == []
    assert [steps_trained(path) for path in (tmp_path / "out" / "store").glob("*.json")] == [3]
    train_some(tmp_path / "out", inputs=tmp_path / "input")
    assert equal(weights(tmp_path / "out"), weights(whole))


def damaged(path, other):
    path.write_bytes(path.read_bytes()[:-100])


def of_another_training(path, other):
    path.write_bytes(other.read_bytes())


def without_record(path, other):
    path.with_suffix(".json").unlink()


@pytest.mark.parametrize("change, note", [(damaged, True), (of_another_training, True), (without_record, False)])
def test_a_checkpoint_of_an_earlier_session_that_cannot_be_used_is_named_and_trained_anew(whole, tmp_path, capsys,
                                                                                         change, note):
    inputs, lines = tmp_path / "input", []
    train_some(inputs / "first" / "results", 7)
    store = inputs / "first" / "results" / "store"
    change(*(next(store.glob(f"layout_xla_random-gnn-{seed}-*.pt")) for seed in (1, 0)))
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    capsys.readouterr()
    made = train_some(tmp_path / "out", lines=lines, inputs=inputs)
    assert finished(made) == [0, 1, 2] and equal(weights(tmp_path / "out"), weights(whole))
    said = [line for line in [*lines, *capsys.readouterr().out.splitlines()] if line.startswith("note  ")]
    assert len(said) == note and all("-gnn-1-" in line and "is damaged, or was changed" in line for line in said)
    assert {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()} == before


# --- the notebooks, in the folder of a run

class Clock:
    """Tells one second more at each look, for `find_deadline`."""
    def __init__(self):
        self.looks = 0

    def __call__(self):
        self.looks += 1
        return self.looks


@pytest.mark.long
def test_a_run_in_sessions_makes_the_same_files_as_a_run_without_a_break(tmp_path, monkeypatch):
    monkeypatch.setattr(deadlines, "_BEGAN", 0)
    with in_process():
        world = World(tmp_path)
        assert world.run(out="whole") == 0, world.said
        sessions_needed = 0
        for looks in (0, 4, 6, 3, 9, 11, 99):
            monkeypatch.setattr(deadlines, "now", Clock())
            status = world.run("--only", "03,04,05,06", "-p", f"hours={looks / 3600}")
            sessions_needed += 1
            if status == 0:
                break
            assert ("to be continued" in world.said) == (status == 3), world.said
        assert status == 0 and sessions_needed > 3, world.said
        for step in ("03_train_tile", "04_train_layout"):
            one, two = (Folder(tmp_path / name, tmp_path).record(step)["sections"] for name in ("whole", "out"))
            assert one == two and one            # results are named after what is in them
        one, two = ((tmp_path / name / "submission.csv").read_bytes() for name in ("out", "whole"))
        assert one == two
        assert world.run() == 0 and world.said.count("finished before") == 4     # the budget is no part of a key
        assert not any('"hours"' in path.read_text() for path in (tmp_path / "out" / "steps").glob("*.json"))
