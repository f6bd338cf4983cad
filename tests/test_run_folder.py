"""The folder of a run: what changed is made again, what a user put there stays, what does not fit is refused."""
import os
import shutil

import numpy as np
import pytest
import state_machine
from run_folder import CHANGES, FULL, World, digests, finished_world, in_process, invert, permute

from kit.files import file_sha256
from kit.run.provenance import ASIDE, MARK

pytestmark = pytest.mark.long            # each test runs notebooks 03 to 06, most of them several times
TOKEN = "predictions/layout_nlp_random/token_seed0.test.npz"
LAYOUT = ("layout:nlp:random", "layout_nlp_random")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A finished run."""
    with in_process():
        return finished_world(tmp_path_factory.mktemp("worlds"))


@pytest.fixture
def world(template):
    """A copy of it that a test may change."""
    shutil.rmtree(template.parent / "world", ignore_errors=True)
    with in_process():
        yield World(template.parent / "world", template)


def test_a_finished_run_is_not_repeated(world):
    before = files(world, "**/*")
    assert world.run() == 0 and world.said.count("finished before") == 4
    changed = {*before.items()} - {*files(world, "**/*").items()}
    assert {name for name, _ in changed} <= {"report.html", f"report.html{MARK}", "problems/06_submit.jsonl"}


def files(world, *patterns):
    """{path: SHA-256} in the folder of the run."""
    found = [path for pattern in patterns for path in sorted((world.place / "out").glob(pattern)) if path.is_file()]
    return {path.relative_to(world.place / "out").as_posix(): file_sha256(path) for path in found}


def aside(world):
    """{SHA-256: paths} of what was moved aside."""
    return digests(world.place / "out" / ASIDE)


def submission(world, out="out"):
    return (world.place / out / "submission.csv").read_text()


def as_in_a_new_folder(world, *args, **settings):
    """Whether the submission is that of a new folder."""
    assert world.run(*args, out="new", **settings) == 0, world.said
    same = submission(world) == submission(world, "new")
    shutil.rmtree(world.place / "new")
    return same


@pytest.mark.parametrize("old_time", [True, False])
def test_training_data_of_the_same_size_and_other_content_are_trained_on_anew(world, old_time):
    before, trained = files(world, f"predictions/{LAYOUT[1]}/*.npz"), files(world, "checkpoints/*.pt")
    for path in world.sources(LAYOUT[0], "train"):
        stat = path.stat()
        invert(path)
        if old_time:
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert path.stat().st_size == stat.st_size
    assert world.run() == 0 and "04_train_layout    finished before" not in world.said
    after = files(world, f"predictions/{LAYOUT[1]}/*.npz")
    assert before.keys() == after.keys() and not {*before.values()} & {*after.values()}
    now = files(world, "checkpoints/*.pt")
    assert trained.items() <= now.items() and len(now) == len(trained) + 3      # the old trainings stay
    assert as_in_a_new_folder(world)


def test_a_fresh_submission_keeps_every_training(world):
    before = files(world, "checkpoints/*", "predictions/**/*", "ensemble/*", "scores.csv")
    was, text = files(world, "submission.csv")["submission.csv"], submission(world)
    assert world.run("--only", "06", "--fresh") == 0
    assert files(world, "checkpoints/*", "predictions/**/*", "ensemble/*", "scores.csv") == before
    assert submission(world) == text and was in aside(world)


def test_copies_of_a_user_stay_where_they_are(world):
    source, copies = world.place / "out" / "predictions" / LAYOUT[1], world.place / "out" / "my-best" / LAYOUT[1]
    shutil.copytree(source, copies)
    before = files(world, "my-best/**/*")
    assert len(before) == 8                              # two models, two splits, with what is written down about them
    assert world.run(*FULL, "--fresh", token_steps=4, first_seed=3) == 0
    assert files(world, "my-best/**/*") == before
    assert [*files(world, f"predictions/{LAYOUT[1]}/token*.test.npz")] == [TOKEN.replace("seed0", "seed3")]


@pytest.mark.parametrize("name, damage, again", [
    ("submission.csv", lambda data: b"\n".join(data.split(b"\n")[:2]) + b"\n", "06_submit"),
    ("scores.csv", lambda data: data.replace(b"0.", b"0.9", 1), "05_ensemble"),
    (TOKEN, lambda data: data[:100], "04_train_layout"), (f"{TOKEN}{MARK}", lambda data: data[:100], "04_train_layout"),
    ("ensemble/tile_xla.test.npz", lambda data: data[:-1], "05_ensemble")])
def test_a_changed_result_is_made_again_and_the_change_is_kept(world, name, damage, again):
    path = world.place / "out" / name
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    changed = file_sha256(path)
    text = submission(world) if name != "submission.csv" else whole.decode()
    assert world.run() == 0, world.said
    assert not any(again in line and "finished before" in line for line in world.said.splitlines())
    assert str(path) in world.said and changed in aside(world)
    assert path.read_bytes() == whole or name.endswith((".npz", MARK))       # npz: a zip with the time in it
    assert submission(world) == text


def test_predictions_for_other_test_data_are_refused_and_the_submission_stays(world):
    before = files(world, "submission.csv", "ensemble/*")
    permute(world.sources(LAYOUT[0], "test")[0])
    assert world.run("--only", "05,06") == 2
    last = world.said.splitlines()[-1]
    assert last.startswith("run.py: 05_ensemble needs the results of 04_train_layout, which do not fit: ")
    assert last.endswith("made from other data: layout:nlp:random test has changed since; run 04, too")
    assert files(world, "submission.csv", "ensemble/*") == before
    assert world.run() == 0 and as_in_a_new_folder(world) and files(world, "submission.csv") != before


@pytest.mark.parametrize("change", ["comment", "losses", *(
    pytest.param(name, marks=pytest.mark.long) for name in CHANGES if name not in ("comment", "losses"))])
def test_code_of_the_kit_that_changed_makes_results_again_and_words_do_not(world, change):
    text = submission(world)
    world.change_kit(change)
    assert world.run() == 0
    if change in ("comment", "docstring"):
        assert world.said.count("finished before") == 4
    else:
        assert "06_submit          finished before" not in world.said
        assert submission(world) != text or change == "hinge"         # three steps are few
        assert as_in_a_new_folder(world)


def test_a_narrower_run_keeps_the_wider_submission_and_says_so(world):
    was, wide = files(world, "submission.csv")["submission.csv"], submission(world)
    assert world.run(*FULL, "--collections", "tile:xla") == 0
    assert "rows, of layout:nlp:random, that the new one lacks; it is kept as " in world.said
    assert was in aside(world) and submission(world) == "".join(
        line for line in wide.splitlines(True) if not line.startswith("layout"))
    assert world.run() == 0 and submission(world) == wide


def test_fewer_seeds_move_the_other_seeds_aside(world):
    few = submission(world)
    assert world.run(seeds=2) == 0 and submission(world) != few
    places = [f"{kind}/{c}/*_seed1.*.npz" for kind in ("predictions", "baselines") for c in ("tile_xla", LAYOUT[1])]
    second = files(world, *places)
    assert len(second) == 7
    assert world.run(seeds=1) == 0 and submission(world) == few
    assert not files(world, *places)
    assert {*second.values()} <= aside(world).keys() and "is of an earlier run of this step" in world.said


def bring(world, marks=True, **settings):
    """Predictions of seed 7 that another machine made from the data that are there."""
    assert world.run("--only", "03,04", out="far", **{"first_seed": 7} | settings) == 0
    for path in (world.place / "far" / "predictions").rglob("*seed7*"):
        if path.parent.name in ("tile_xla", LAYOUT[1]) and (marks or path.suffix == ".npz"):
            shutil.copy(path, world.place / "out" / path.relative_to(world.place / "far"))
    shutil.rmtree(world.place / "far")


def test_predictions_of_another_machine_become_members(world):
    text = submission(world)
    bring(world)
    assert world.run() == 0, world.said
    assert submission(world) != text and "finished before" in world.said
    rows = (world.place / "out" / "scores.csv").read_text().splitlines()
    assert {row.split(",")[1] for row in rows if ',2,"valid, real files"' in row} == {"tile", "token", "gnn"}
    with_them = submission(world)
    shutil.rmtree(world.place / "out" / "predictions")
    assert world.run(seeds=2) == 0                       # another second seed: as many members
    assert {line.split(",")[0] for line in with_them.splitlines()} == {
        line.split(",")[0] for line in submission(world).splitlines()} and submission(world) != with_them


def test_predictions_without_what_they_were_made_from_are_left_out_and_named(world):
    text = submission(world)
    bring(world, marks=False)
    assert world.run() == 3 and submission(world) == text
    assert world.said.count("unreadable, left out: ") == 6 and "tile_seed7.test.npz: without a readable " in world.said


def test_predictions_from_other_data_are_left_out_and_named(world):
    text, path = submission(world), world.sources(LAYOUT[0], "train")[0]
    data = path.read_bytes()
    invert(path)
    bring(world)
    path.unlink()
    path.write_bytes(data)
    assert world.run() == 3
    assert "made from other data: layout:nlp:random train has changed since" in world.said
    assert "tile_seed7" not in "".join(line for line in world.said.splitlines() if "left out: " in line)
    rows = [[line for line in one.splitlines() if line.startswith("layout")] for one in (text, submission(world))]
    assert rows[0] == rows[1] and submission(world) != text              # the kernels have a member more


# --- random sequences, see tests/state_machine.py


@pytest.mark.parametrize("operations", [
    [["bring", 1], ["own_file", 413664189]],             # its file lies in problems/
    [["data", 6], ["kill", 3]]])
def test_a_sequence_ends_as_a_new_folder(template, operations):
    with in_process():
        end = state_machine.play(operations, template, template.parent / "world", {})
    assert "same submission" in end


def test_a_share_of_the_sequences_finds_nothing(tmp_path):
    said = []
    ends = state_machine.search(20, 1000, tmp_path, report=lambda text, **_: said.append(text), shorten=False)
    assert not ends["FAULT"] and ends.total() == 20, "\n".join(said)


def test_a_sequence_notices_what_is_gone_and_what_is_stale(template, monkeypatch):
    def fault(*operations):
        with in_process():
            return state_machine.fails(operations, template, template.parent / "world", {})
    own_file = next(["own_file", seed] for seed in range(99) if state_machine.NAMES[
        np.random.default_rng(seed).integers(len(state_machine.NAMES))] == "submission.csv")
    for place in ("steps.set_aside", "kit.run.provenance.set_aside", "kit.run.results.set_aside"):
        monkeypatch.setattr(place, lambda path, out: os.unlink(path) or path)
    assert "gone: file of the user" in fault(own_file)
    monkeypatch.undo()
    monkeypatch.setattr("steps.digest", lambda *parts: "the same")
    monkeypatch.setattr("steps.unfit", lambda *_: None)
    assert "another submission than that of a new folder" in fault(["run", 1], ["collections", 1])
