"""Trainings that take several sessions: stopped by a deadline, taken over from an earlier session's output."""
import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from run_folder import World, in_process
from training import GRAPHS, SHORT, TINY, VALID

from kit.metrics import kendall_tau
from kit.models import LayoutGNN
from kit.prepare import prepare
from kit.recipes import Recipe
from kit.training import Deadline, deadlines
from lab.run import MARK, Results, from_data, read_mark, sessions, steps_trained, unfinished, write_mark
from lab.run.members import Material, Member, finished, train_members
from lab.sample import write_sample

RECIPE = Recipe(LayoutGNN, TINY, replace(SHORT, steps=4, validate_every=2))
RANKED = {"new": {g.graph_id: g for g in VALID}}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Prepared data; what the marks name."""
    folder = tmp_path_factory.mktemp("data")
    return prepare(write_sample(folder, size="tiny"), folder / "prepared", ["tile:xla"]).folder


def members_of(data, out, deadline=None, seeds=(0, 1, 2), lines=None, recipe=RECIPE, processes=1):
    """Train some members one after another."""
    materials = {("x",): Material(GRAPHS, VALID, kendall_tau, RANKED, from_data(data, ["tile:xla"], "train"))}
    members = [Member(("x",), "gnn", seed, recipe, ("new",)) for seed in seeds]
    heard = [] if lines is None else lines
    return train_members(members, materials, Results(out, "step", data), 1, processes, heard.append, deadline)


def ticking(seconds):
    """A deadline after this many looks at the clock."""
    return Deadline(seconds + 1, itertools.count(1).__next__)


def weights(out):
    """{name of a checkpoint: its weights}."""
    return {path.name: torch.load(path, weights_only=True)["best"] for path in Path(out, "checkpoints").glob("*.pt")}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n][w], other[n][w]) for n in one for w in one[n])


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The folder of a run without a break."""
    out = tmp_path_factory.mktemp("whole")
    members_of(data, out)
    return out


def test_members_that_a_deadline_stops_are_named_and_the_next_run_finishes_them(data, whole, tmp_path, capsys):
    trained = members_of(data, tmp_path, ticking(7))             # one before each member, one before each of 4 steps
    assert [result is not None for result in trained] == [True, False, False]
    assert finished("abc", trained) == (["a"], trained[:1])
    record = json.loads((tmp_path / "unfinished" / "step.json").read_text())
    assert record == {"step": "step", "unfinished": [
        {"name": "x, gnn, seed 1", "steps_done": 1, "steps": 4},
        {"name": "x, gnn, seed 2", "steps_done": 0, "steps": 4}]}
    assert capsys.readouterr().out.splitlines()[-1] == (
        "note  to be continued: the time is used up, and 2 models are unfinished (x, gnn, seed 1 after step 1 of 4; "
        "x, gnn, seed 2); run the same again to continue")
    assert unfinished(tmp_path) == {"step": ["x, gnn, seed 1", "x, gnn, seed 2"]}
    assert sorted(map(steps_trained, (tmp_path / "checkpoints").glob("*.pt"))) == [1, 4]
    trained = members_of(data, tmp_path)
    assert None not in trained and unfinished(tmp_path) == {} and equal(weights(tmp_path), weights(whole))
    assert {steps_trained(path) for path in (tmp_path / "checkpoints").glob("*.pt")} == {4}


def test_a_run_that_is_killed_leaves_marks_that_fit_or_none(data, whole, tmp_path, monkeypatch):
    for kill in range(6):
        out, marks = tmp_path / str(kill), []

        def write(*args, kill=kill, marks=marks):
            marks.append(1)
            if len(marks) > kill:
                raise KeyboardInterrupt
            write_mark(*args)
        with monkeypatch.context() as patched:
            patched.setattr(sessions, "write_mark", write)
            if kill < 6:
                with pytest.raises(KeyboardInterrupt):
                    members_of(data, out)
        for path in (out / "checkpoints").glob("*.pt"):
            mark = read_mark(path)
            assert mark is None or sessions.unfit(path, out, data) is None
        members_of(data, out)
        assert equal(weights(out), weights(whole)) and not list(out.glob("aside/*"))


def session(data, inputs, out, monkeypatch, **more):
    """A session on Kaggle, with folders of earlier ones."""
    monkeypatch.setattr(sessions, "INPUTS", inputs)
    lines = []
    return members_of(data, out, lines=lines, **more), lines


@pytest.mark.parametrize("place", ["first/results", "notebooks/someone/first/results", "first"])
def test_a_session_goes_on_from_the_output_of_an_earlier_one_and_ends_with_the_same_weights(data, whole, tmp_path,
                                                                                           place, monkeypatch, capsys):
    inputs = tmp_path / "input"
    members_of(data, inputs / place, ticking(7))
    before = sorted(path.read_bytes() for path in inputs.rglob("*") if path.is_file())
    trained, lines = session(data, inputs, tmp_path / "out", monkeypatch)
    assert None not in trained and equal(weights(tmp_path / "out"), weights(whole))
    assert not any("seed 0" in line for line in lines) and not any("seed 1: step      0" in line for line in lines)
    said = capsys.readouterr().out
    assert said.count("resumed from an earlier session, after 1 steps") == 1
    assert said.count("resumed from an earlier session, after 4 steps") == 1
    assert sorted(path.read_bytes() for path in inputs.rglob("*") if path.is_file()) == before


def test_of_several_earlier_sessions_the_one_that_came_furthest_counts(data, tmp_path, monkeypatch, capsys):
    inputs = tmp_path / "input"
    for name, steps in (("a", 2), ("b", 4), ("c", 3)):
        members_of(data, inputs / name / "results", ticking(steps))
    session(data, inputs, tmp_path / "out", monkeypatch, seeds=(0,))
    assert "resumed from an earlier session, after 3 steps" in capsys.readouterr().out


def damage(path):
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def other(changes):
    """Change what a mark says a checkpoint was made from, and make the mark whole again."""
    def change(path):
        mark = read_mark(path)
        write_mark(path, path.parents[1], mark["by"], {**mark["made_from"], **changes(mark["made_from"])})
    return change


def renamed(path):
    """A checkpoint, with its mark, of another name."""
    others = [one for one in path.parent.glob("*.pt") if one != path]
    shutil.copy(others[0], path)
    shutil.copy(f"{others[0]}{MARK}", f"{path}{MARK}")


@pytest.mark.parametrize("change, word", [
    (damage, "changed after step wrote it"), (lambda path: Path(f"{path}{MARK}").unlink(), "without a readable"),
    (lambda path: Path(f"{path}{MARK}").write_text("{}"), "without a readable"),
    (other(lambda made: {name: "0" for name in made if name.startswith("data")}), "made from other data"),
    (other(lambda made: {name: "0" for name in made if name.startswith("code")}), "made by other code"),
    (renamed, "its mark is of another file")])
def test_what_an_earlier_session_left_without_a_mark_that_fits_is_trained_anew(data, whole, tmp_path, monkeypatch,
                                                                              capsys, change, word):
    inputs = tmp_path / "input"
    members_of(data, inputs / "first" / "results", ticking(7))
    change(next(path for path in (inputs / "first" / "results" / "checkpoints").glob("*-1-*.pt")))
    trained, _ = session(data, inputs, tmp_path / "out", monkeypatch)
    said = capsys.readouterr().out
    assert said.count("note  a checkpoint of an earlier session is not used: ") == 1 and word in said
    assert None not in trained and equal(weights(tmp_path / "out"), weights(whole))


# --- several processes that train one model together

class Uneven:
    """A clock that tells one second more at each look, and is ahead in one process of a team; it notes its looks."""
    def __init__(self, folder, ahead):
        self.folder, self.ahead, self.looks = folder, ahead, 0       # ahead: {rank: seconds}

    def __call__(self):
        if not torch.distributed.is_initialized():                   # before the team has met
            return 0
        self.looks += 1
        rank = torch.distributed.get_rank()
        (self.folder / f"looks-{rank}").write_text(str(self.looks))
        return self.looks + self.ahead.get(rank, 0)


@pytest.mark.long
def test_a_team_stops_at_one_step_when_the_time_of_one_process_is_over_and_ends_with_the_same_weights(data, tmp_path):
    # neither a validation nor the end is after the steps at which the team stops: 1, then 1 + 2
    recipe = RECIPE._replace(settings=replace(RECIPE.settings, graphs_per_step=2))
    one, out = tmp_path / "one", tmp_path / "out"
    for ahead, steps, done in (({1: 5}, 1, 1), ({0: 3}, 2, 3)):
        deadline = Deadline(steps + 1 + max(ahead.values()), Uneven(tmp_path, ahead))
        assert members_of(data, out, deadline, (0,), recipe=recipe, processes=2) == [None]
        assert [(tmp_path / f"looks-{rank}").read_text() for rank in (0, 1)] == [str(steps + 1)] * 2
        path, = (out / "checkpoints").glob("*.pt")
        assert steps_trained(path) == torch.load(path, weights_only=True)["step"] == done
        assert unfinished(out) == {"step": ["x, gnn, seed 0"]}
    lines = []
    (left,), (whole,) = (members_of(data, folder, None, (0,), lines, recipe, 2) for folder in (out, one))
    assert [line.split(" of ")[0].split()[-1] for line in lines] == ["4", "2", "4"]          # validations of each
    assert equal(weights(out), weights(one)) and unfinished(out) == {}
    assert {**left.history, "seconds": 0, "record": 0} == {**whole.history, "seconds": 0, "record": 0}
    assert all(np.array_equal(left.costs["new"][i], whole.costs["new"][i]) for i in RANKED["new"])


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
            status = world.run("--only", "03,04,05,06", "-p", f"time_budget={looks / 3600}")
            sessions_needed += 1
            if status == 0:
                break
            assert ("to be continued" in world.said) == (status == 3), world.said
        assert status == 0 and sessions_needed > 3, world.said
        for path in (tmp_path / "whole").glob("predictions/*/*.npz"):
            name = path.relative_to(tmp_path / "whole")
            with np.load(path) as one, np.load(tmp_path / "out" / name) as two:
                assert one.files == two.files and all(np.array_equal(one[n], two[n]) for n in one.files)
        one, two = ((tmp_path / name / "submission.csv").read_bytes() for name in ("out", "whole"))
        assert one == two
        assert world.run() == 0 and world.said.count("finished before") == 4     # the budget is no part of a key
        settings = [path.read_text() for path in (tmp_path / "out" / "settings").glob("*.json")]
        assert settings and not any("time_budget" in text for text in settings)
