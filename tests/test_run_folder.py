"""The folder of a run: what changed is made again, what a user put there stays, what does not fit is refused."""
import hashlib
import json
import os
import shutil
import sys
from types import ModuleType

import numpy as np
import pytest
import state_machine
import torch
from run_folder import CHANGES, ENDED, FULL, World, digests, finished_world, in_process, invert, permute, program

import kit.recipes
from kit.files import file_sha256
from kit.training import Deadline
from lab.jobs import keep_fetched
from lab.run import Results, from_data, load_costs, record_leaderboard, steps_trained
from lab.run.provenance import ASIDE, MARK, read_mark, write_mark
from lab.run.weights import pack_weights

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


@pytest.mark.parametrize("kill", [100, 300])
def test_a_folder_that_was_moved_while_a_step_was_unfinished_is_finished_in_its_new_place(world, kill):
    shutil.rmtree(world.place / "out")
    world.run(kill=kill)
    left = [path.read_text() for path in (world.place / "out" / ".run").glob("*.written")]
    assert "checkpoints" in "".join(left) and str(world.place) not in "".join(left)
    (world.place / "out").rename(world.place / "moved")
    assert world.run(out="moved") == 0, world.said
    assert world.run() == 0 and submission(world) == submission(world, "moved")


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


def test_predictions_whose_name_leaves_no_room_for_a_mark_are_left_out_and_named(world):
    text, path = submission(world), world.place / "out" / "predictions" / "tile_xla" / f"{'x' * 246}.test.npz"
    path.write_bytes(b"mine")
    assert world.run() == 3 and submission(world) == text and f"unreadable, left out: {path}" in world.said
    assert path.read_bytes() == b"mine"


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


def save_own(world, name="mine_seed0", collection=LAYOUT[0], splits=("valid", "test"), change=lambda cost: -cost):
    """Predictions of one's own model, saved as the docstring of `Results` says -> their paths."""
    out, (root,) = world.place / "out", (world.place / "data").glob("prepared-*")
    results, folder, paths = Results(out, "my model", root), collection.replace(":", "_"), []
    for split in splits:
        costs = load_costs(out / f"predictions/{LAYOUT[1]}/token_seed0.{split}.npz")
        paths.append(results.save_costs(f"predictions/{folder}/{name}.{split}.npz", {
            key: change(cost) for key, cost in costs.items()}, from_data(root, [LAYOUT[0]], "train", split)))
    return paths


def test_predictions_of_a_model_of_ones_own_become_a_member(world):
    assert world.run(choose=False) == 0                      # where validation chooses, a model may have no weight
    text = submission(world)
    save_own(world, change=np.random.default_rng(0).permutation)
    assert world.run(choose=False) == 0 and world.said.count("finished before") == 2, world.said
    assert submission(world) != text and f"{LAYOUT[0]},mine," in (world.place / "out" / "scores.csv").read_text()
    assert world.run(choose=False) == 0 and world.said.count("finished before") == 4


def test_predictions_of_a_copy_of_the_folder_become_members(world):
    text = submission(world)
    shutil.copytree(world.place / "out", world.place / "far")
    assert world.run("--only", "03,04", out="far", first_seed=7) == 0
    for path in (world.place / "far" / "predictions").rglob("*seed7*"):
        shutil.copy(path, world.place / "out" / path.relative_to(world.place / "far"))
    assert world.run() == 0 and submission(world) != text
    assert {path.name for path in (world.place / "out" / "predictions" / "tile_xla").glob("*.npz")} == {
        f"tile_seed{seed}.{split}.npz" for seed in (0, 7) for split in ("valid", "test")}


@pytest.mark.parametrize("given, reason", [
    ({"splits": ("test",)}, "mine_seed0.test.npz: there are no predictions of this model for the other split"),
    ({"collection": "layout:nlp:default"}, "has costs of layout:nlp:random:"),
    ({"change": lambda cost: cost * np.where(np.arange(len(cost)), 1, np.nan)}, "has a cost that is not finite"),
    ({"change": lambda cost: cost[:-1]}, "costs of 2 graphs; the others have ")])
def test_predictions_that_cannot_be_combined_are_left_out_and_named(world, given, reason):
    text = submission(world)
    paths = save_own(world, **given)
    assert world.run() == 3 and submission(world) == text
    assert reason in world.said and all(str(path) in world.said for path in paths)
    for path in paths:
        path.unlink()
    assert world.run() == 0 and submission(world) == text


def test_predictions_of_another_number_of_configurations_are_left_out_and_named(world):
    bring(world, most_configs=30)
    assert world.run() == 3
    assert "token_seed7.valid.npz: has " in world.said and "tile_seed7.valid.npz" not in world.said


def test_two_files_with_the_same_beginning_are_two_members(world):
    path, text = world.place / "out" / TOKEN, submission(world)
    save_own(world, "token_seed0.of-yesterday")
    assert world.run() == 0 and submission(world) != text
    assert ',token,' in (world.place / "out" / "scores.csv").read_text() and path.is_file()
    rows = (world.place / "out" / "scores.csv").read_text().splitlines()
    assert any(row.startswith(f"{LAYOUT[0]},token,") and row.endswith(',2,"valid, real files"') for row in rows)


@pytest.mark.parametrize("name", ["predictions", "predictions/tile_xla", "ensemble"])
def test_a_folder_on_another_disk_is_treated_like_any_other(world, name):
    few = submission(world)
    shutil.move(world.place / "out" / name, world.place / "disk")
    (world.place / "out" / name).symlink_to(world.place / "disk")
    assert world.run() == 0 and world.said.count("finished before") == 4
    assert world.run(seeds=2) == 0 and submission(world) != few
    assert world.run(seeds=1) == 0 and submission(world) == few
    assert not [*(world.place / "disk").rglob("*_seed1.*")] and (world.place / "out" / name).is_symlink()


def test_a_file_that_a_parameter_names_is_read_again_when_it_changes(world):
    sample, rows = world.place / "sample_submission.csv", submission(world)
    sample.write_text(rows)
    assert world.run("--only", "06", sample_submission=sample) == 0
    sample.write_text(rows + "tile:xla:another,0;1;2;3;4\n")
    assert world.run("--only", "06", sample_submission=sample) == 3 and "1 missing ID" in world.said
    assert world.run("--only", "06", sample_submission=sample) == 3 and "finished before" in world.said


def test_a_partly_executed_notebook_that_the_user_worked_on_stays(world):
    part = world.place / "out" / "notebooks" / "05_ensemble.partial.ipynb"
    part.write_text("my work")
    assert world.run("--only", "05", how="mean_rank") == 0
    assert digests(world.place / "out" / ASIDE).keys() >= {hashlib.sha256(b"my work").hexdigest()}


def test_what_the_user_changes_after_a_step_was_killed_stays(world):
    out = world.place / "out"
    for kill in range(10, 90, 2):
        world.run("--only", "05", how="mean_rank", kill=kill)
        if '"unfinished"' in (out / ".run" / "05_ensemble.json").read_text():
            break
    assert world.run("--only", "06") == 2 and "which do not fit: it was not finished last time; run 05" in world.said
    book, settings = out / "notebooks" / "05_ensemble.ipynb", out / "settings" / "05_ensemble.json"
    book.write_text("my notes")
    settings.write_text("my settings")
    assert world.run(how="mean_rank") == 0, world.said
    assert {hashlib.sha256(text).hexdigest() for text in (b"my notes", b"my settings")} <= aside(world).keys()


def test_settings_that_the_user_put_there_stay(world):
    shutil.rmtree(world.place / "out" / ".run")
    (world.place / "out" / "settings" / "05_ensemble.json").write_text("my settings")
    assert world.run() == 0
    assert hashlib.sha256(b"my settings").hexdigest() in aside(world)


@pytest.mark.parametrize("name", ["ensemble", "predictions/tile_xla", "aside", "settings"])
def test_a_file_in_the_place_of_a_folder_is_one_sentence(world, name):
    path = world.place / "out" / name
    shutil.rmtree(path, ignore_errors=True)
    path.write_text("mine")
    assert name != "aside" or world.run(seeds=2) == 0    # then there is something to move there
    assert world.run(seeds=1 if name == "aside" else 2) in (1, 2)
    assert "cannot be written (" in world.said and "Traceback" not in world.said and path.read_text() == "mine"


def test_siblings_that_are_trained_on_are_read_again_when_they_change(world):
    other = "layout:nlp:default"
    for path in world.sources(LAYOUT[0]):
        target = world.data.joinpath(*other.split(":"), path.parent.name, path.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for path in world.sources(LAYOUT[0], "train"):
        path.unlink()
    assert world.run(*FULL, "--collections", LAYOUT[0], out="one") == 0, world.said      # none were prepared before
    paths = sorted((world.place / "one" / "predictions" / LAYOUT[1]).glob("*.npz"))
    before = [file_sha256(path) for path in paths]
    assert len(paths) == 4
    for path in world.sources(other, "train"):
        invert(path)
    assert world.run(*FULL, "--collections", LAYOUT[0], out="one") == 0, world.said
    assert not {*before} & {file_sha256(path) for path in paths}


def test_a_link_to_predictions_hides_no_older_seeds(world):
    few = submission(world)
    (world.place / "out" / "a-link").symlink_to("predictions")
    assert world.run(seeds=2) == 0 and world.run(seeds=1) == 0
    assert submission(world) == few and not files(world, "predictions/**/*_seed1.*")


def test_predictions_that_were_fetched_take_the_place_of_those_made_here(world, monkeypatch):
    assert world.run("--only", "03,04", out="far", first_seed=7) == 0
    far = world.place / "far"

    def fetch(planned, there, args, out, *_):
        found = {}
        for path in (far / "predictions").rglob("*.npz"):
            name, mark = path.relative_to(far).as_posix(), read_mark(path)
            shutil.copy(path, out / name)
            write_mark(out / name, out, mark["by"], mark["made_from"])
            found[name] = file_sha256(path)
        keep_fetched({"job": {"files": found}}, out)
        return [], found
    monkeypatch.setattr(program, "fetch", fetch)
    assert world.run("--on", "kaggle", "--owner", "me") == 0, world.said
    theirs = submission(world)
    assert not files(world, "predictions/**/*_seed0.*") and world.run("--only", "05,06") == 0, world.said
    assert submission(world) == theirs


def test_a_module_that_somebody_edits_is_other_code(world):
    path = world.kit / "models" / "config_token.py"
    text = path.read_text()
    path.unlink()
    path.write_text(f"{text}\ndef half(:\n")
    assert world.run("--only", "05,06") == 2
    said = "made by other code of kit.models.config_token, or of what that imports"
    assert said in world.said.splitlines()[-1]


def test_the_clone_is_no_folder_of_a_run(world):
    before = digests(world.place)
    assert world.run(out=".") == 2 and "is the clone, whose notebooks would be replaced" in world.said
    assert digests(world.place) == before


def test_a_submission_with_a_leaderboard_score_is_kept(world):
    assert world.run("--only", "06", "--fresh") == 0
    record_leaderboard(world.place, "out", public=0.7)
    was, entry = files(world, "submission.csv")["submission.csv"], json.loads((world.place / "out.json").read_bytes())
    assert world.run(seeds=2) == 0
    kept = world.place / f"out-{entry['sha256'][:8]}.json"
    assert f"out.json belongs to another CSV that has a leaderboard score; that entry is kept as {kept}" in world.said
    assert was in aside(world) and json.loads(kept.read_bytes()) == entry | {"run": kept.stem}
    now = json.loads((world.place / "out.json").read_bytes())
    assert now["leaderboard"] == {"public": None, "private": None} and now["sha256"] != entry["sha256"]
    assert now["made_from"]["data"] == entry["made_from"]["data"]
    assert now["made_from"]["weights"].keys() > entry["made_from"]["weights"].keys()


def test_a_loss_of_ones_own_that_changes_trains_anew(world, monkeypatch):
    def write(line):
        text = f"from kit.losses import pairwise_hinge_loss\n\n\ndef mine(*costs):\n{line}\n"
        (world.kit / "mine.py").write_text(text)
        monkeypatch.setitem(sys.modules, "kit.mine", ModuleType("kit.mine"))
        exec((world.kit / "mine.py").read_text(), vars(sys.modules["kit.mine"]))
        exec((world.kit / "recipes.py").read_text(), vars(kit.recipes))
    text = (world.kit / "recipes.py").read_text().replace("shape, token, loss,", "shape, token, mine,")
    (world.kit / "recipes.py").unlink()
    (world.kit / "recipes.py").write_text(text.replace("from kit.losses", "from kit.mine import mine\nfrom kit.losses"))
    write("    return pairwise_hinge_loss(*costs)")
    assert world.run() == 0
    before = files(world, TOKEN)
    write("    return -pairwise_hinge_loss(*costs)")
    assert world.run() == 0 and files(world, TOKEN) != before and as_in_a_new_folder(world)


def test_a_submission_of_weights_from_a_file_that_changed_is_refused(world):
    weights, out = world.place / "weights.json", world.place / "out"
    shutil.copy(out / "weights.json", weights)
    given = "-p", f"weights_from={weights}"
    assert world.run("--only", "05,06", *given) == 0 and world.run("--only", "06") == 0
    assert "06_submit          finished before" in world.said
    weights.write_text(weights.read_text().replace(str(next(iter(shares(weights)[LAYOUT[0]].values()))), "0.123", 1))
    before = files(world, "submission.csv", "ensemble/*")
    assert world.run("--only", "06") == 2 and f"made from {weights}, which has changed since; run 05" in world.said
    (out / ".run" / "05_ensemble.json").unlink()                         # as if 05 had been run by hand
    assert world.run("--only", "06", "--fresh") == 1 and f"made from {weights}, which has changed since" in world.said
    assert files(world, "ensemble/*").items() <= before.items()
    assert world.run("--only", "05,06", *given) == 0 and world.run("--only", "06") == 0
    weights.unlink()                                                     # nothing says that it changed
    assert world.run("--only", "06") == 0


def shares(path):
    return json.loads(path.read_text())


def test_a_narrower_run_keeps_the_weights_of_the_other_collections(world):
    path = world.place / "out" / "weights.json"
    before = shares(path)
    assert before.keys() == {"tile:xla", LAYOUT[0]}
    assert world.run("--only", "05", "--collections", "tile:xla", choose=False) == 0
    assert shares(path) == before and world.run("--only", "05") == 0 and shares(path) == before
    (world.place / "out" / "ensemble" / f"{LAYOUT[1]}.test.npz").unlink()
    was = file_sha256(path)
    assert world.run("--only", "05", "--collections", "tile:xla", "--fresh") == 0
    assert shares(path).keys() == {"tile:xla"} and was in aside(world)
    wide = world.run("--only", "05,06")
    assert wide == 0 and shares(path) == before


@pytest.mark.parametrize("damage", [lambda entry: entry.unlink(), lambda entry: entry.write_text(
    entry.read_text().replace(json.loads(entry.read_bytes())["sha256"], "0" * 64))])
def test_an_entry_of_the_ledger_that_is_gone_or_of_another_submission_is_written_again(world, damage):
    entry = world.place / "out.json"
    before = json.loads(entry.read_bytes())
    damage(entry)
    assert world.run("--only", "06") == 0 and "finished before" not in world.said
    now = json.loads(entry.read_bytes())
    assert {**now, "recorded": ""} == {**before, "recorded": ""}
    assert world.run("--only", "06") == 0 and "06_submit          finished before" in world.said


@pytest.mark.parametrize("mark", [True, False])
def test_a_checkpoint_whose_weights_somebody_edited_is_not_taken_for_trained(world, mark):
    text, out = submission(world), world.place / "out"
    path, = (out / "checkpoints").glob("layout_nlp_random-token-0-*.pt")
    saved = torch.load(path, weights_only=True)
    for tensor in [*saved["model"].values(), *saved["best"].values()]:
        tensor.copy_(tensor.flip(-1) if tensor.ndim else tensor)
    torch.save(saved, path)
    edited = file_sha256(path)
    if not mark:
        path.with_name(path.name + MARK).unlink()
    (out / ".run" / "04_train_layout.json").unlink()                     # so that 04 runs again
    assert world.run() == 0, world.said
    assert submission(world) == text and edited in aside(world) and str(path) in world.said


def test_a_prediction_without_its_record_after_a_kill_is_kept_and_does_not_disturb_a_smaller_run(world):
    text, orphan = submission(world), world.place / "out" / "predictions" / "tile_xla" / "tile_seed1.test.npz"
    assert world.run("--only", "03", seeds=2, kill=40) == ENDED
    written = world.place / "out" / ".run" / "03_train_tile.written"
    with open(written, "a") as file:                     # as a kill leaves it that falls between the two
        file.write(f"{orphan.relative_to(world.place / 'out')}\n")
    orphan.write_bytes(orphan.with_name("tile_seed0.test.npz").read_bytes())
    sha = file_sha256(orphan)
    assert world.run() == 0, world.said
    assert submission(world) == text and sha in digests(world.place / "out" / ASIDE)
    assert f"{orphan} was written when a run was killed, before its record; it is kept as " in world.said


@pytest.mark.parametrize("ends", [("", MARK), ("",)], ids=["with its mark", "alone"])
def test_a_checkpoint_of_earlier_code_under_the_name_of_a_new_one_is_kept_and_not_used(world, ends):
    old, = (world.place / "out" / "checkpoints").glob("layout_nlp_random-token-0-*.pt")
    world.change_kit("token")
    assert world.run(out="new") == 0, world.said
    text, name = submission(world, "new"), "layout_nlp_random-token-0-*.pt"
    new, = (world.place / "new" / "checkpoints").glob(name)
    place = world.place / "copied" / "checkpoints" / new.name
    place.parent.mkdir(parents=True)
    for end in ends:
        shutil.copy(f"{old}{end}", f"{place}{end}")
    assert world.run(out="copied") == 0, world.said
    assert submission(world, "copied") == text != submission(world)
    assert f"{place} was written as {old.name}, the checkpoint of another training; it is kept as " in world.said
    assert file_sha256(old) in digests(world.place / "copied" / ASIDE)


def test_a_training_record_that_somebody_edited_is_not_packed(world, capsys):
    out, (root,) = world.place / "out", (world.place / "data").glob("prepared-*")
    for number, marked in enumerate((True, False)):
        checkpoint, = (out / "checkpoints").glob("layout_nlp_random-token-0-*.pt")
        record = checkpoint.with_suffix(".json")
        text = record.read_text()
        assert pack_weights(out, root, world.place / f"whole{number}").checkpoints.keys() >= {f"{record.stem}.pt"}
        capsys.readouterr()
        record.write_text(text.replace('"width": ', '"width": 1'))
        if not marked:
            record.with_name(record.name + MARK).unlink()
        packed = pack_weights(out, root, world.place / f"packed{number}")
        assert f"{record.stem}.pt" not in packed.checkpoints and len(packed.checkpoints) == 2
        assert f"2 of 6 files of predictions travel as they are: {record} was changed after" in capsys.readouterr().out
        record.write_text(text)


def test_a_narrower_table_keeps_the_wider_one(world):
    was = file_sha256(world.place / "out" / "scores.csv")
    assert world.run("--only", "05", "--collections", "tile:xla") == 0
    assert "scores.csv had lines of layout:nlp:random, which the new one lacks; it is kept as " in world.said
    assert was in aside(world)
    assert world.run("--only", "06", "--fresh") == 0
    assert "the ledger gets no validation score of layout:nlp:random: scores.csv has none" in world.said
    assert [*json.loads((world.place / "out.json").read_text())["validation"]] == ["tile:xla"]
    assert world.run() == 0 and "the ledger gets no" not in world.said


def test_predictions_of_one_name_that_two_trainings_made_are_left_out(world):
    def bring(*splits):
        for path in (world.place / "far").glob("predictions/*/token*"):
            if path.name.split(".")[1] in splits:
                shutil.copy(path, world.place / "out" / path.relative_to(world.place / "far"))
    assert world.run("--only", "03,04", out="far", first_seed=7) == 0 and world.run() == 0
    alone = submission(world)
    bring("valid", "test")
    assert world.run() == 0 and "other weights" not in world.said
    assert world.run("--only", "04", out="far", first_seed=7, token_steps=6) == 0
    bring("test")
    assert world.run() == 3 and world.said.count("other weights made it than token_seed7") >= 2
    assert submission(world) == alone
    bring("valid")
    assert world.run() == 0 and "other weights" not in world.said


def test_scores_of_graphs_that_somebody_edited_do_not_come_to_the_ledger(world):
    assert world.run("--only", "06", "--fresh") == 0
    path, entry = world.place / "out" / "graph_scores.csv", (world.place / "out.json").read_bytes()
    lines = path.read_text().splitlines()
    assert lines[1].startswith("tile:xla,") and lines[2].startswith("tile:xla,")
    one, other = (line.rpartition(",") for line in lines[1:3])
    path.write_text("\n".join([lines[0], one[0] + "," + other[2], other[0] + "," + one[2], *lines[3:]]) + "\n")
    assert world.run("--only", "06") == 2 and "graph_scores.csv has changed" in world.said
    (world.place / "out" / ".run" / "05_ensemble.json").unlink()         # as if 05 had been run by hand
    assert world.run("--only", "06") == 1 and "graph_scores.csv: changed after 05_ensemble wrote it" in world.said
    assert (world.place / "out.json").read_bytes() == entry and world.run() == 0


def test_the_ledger_has_the_scores_of_what_is_submitted_alone(world):
    assert world.run("--only", "06", "--collections", "tile:xla") == 0
    assert json.loads((world.place / "out.json").read_text())["validation"].keys() == {"tile:xla"}


def test_a_submission_of_ensembles_that_were_combined_in_two_ways_says_so(world):
    assert world.run("--only", "05", "--collections", "tile:xla", how="mean_rank") == 0
    assert world.run("--only", "06") == 0
    assert "note  ensemble/layout_nlp_random.test.npz: of an earlier run, with other settings than the" in world.said
    assert world.run("--only", "05,06", how="mean_rank") == 0
    assert "with other settings" not in world.said
    weights = world.place / "out" / "weights.json"
    assert world.run("--only", "05,06", "-p", f"weights_from={weights}") == 0
    assert "with other settings" not in world.said


def test_the_ledger_has_the_settings_of_what_is_submitted_and_not_of_a_training_that_was_interrupted(world):
    before = json.loads((world.place / "out.json").read_text())["parameters"]
    assert world.run("--only", "03", steps=5, kill=60) == ENDED and "step      1 of 5" in world.said
    assert world.run("--only", "06", "-p", "message=again") == 0 and "done" in world.said
    assert json.loads((world.place / "out.json").read_text())["parameters"] == before
    assert world.run("--only", "03", steps=5) == 0
    assert json.loads((world.place / "out" / "settings" / "03_train_tile.json").read_text())["steps"] == 5


def test_files_and_folders_of_06_may_start_with_a_tilde(world, monkeypatch):
    (world.place / "home").mkdir()
    monkeypatch.setenv("HOME", str(world.place / "home"))
    monkeypatch.chdir(world.place)
    shutil.copy(world.place / "out" / "submission.csv", world.place / "home" / "sample.csv")
    assert world.run("--only", "06", "-p", "ledger=~/ledger", "-p", "sample_submission=~/sample.csv") == 0, world.said
    assert (world.place / "home" / "ledger" / "out.json").is_file() and not (world.place / "~").exists()


@pytest.mark.parametrize("name", ["a\nb", "x" * 252, "caf\udce9"])
def test_a_name_that_no_ledger_can_hold_is_refused_before_anything_is_written(world, name):
    assert world.run(out=name) == 2 and "give a shorter name" in world.said
    assert not (world.place / name).exists()


def test_searches_leave_a_training_alone_that_a_deadline_stopped(world, monkeypatch):
    def run():
        return world.run("--only", "04,07", "--collections", LAYOUT[0], "-p", "time_budget=5", "-p", "programs=1", "-p",
                         "queries=20", "-p", "budgets=[5]", token_steps=30)
    before, calls = files(world, "checkpoints/*"), iter(range(100))
    monkeypatch.setattr(Deadline, "passed", lambda deadline: next(calls) > 12)
    assert run() == 3
    stopped, = [world.place / "out" / name for name in files(world, "checkpoints/*token-0*.pt") if name not in before]
    assert 0 < steps_trained(stopped) < 30
    monkeypatch.undo()
    assert run() == 0 and "kept as" not in world.said and steps_trained(stopped) == 30
    assert run() == 0 and world.said.count("finished before") == 2


@pytest.mark.parametrize("text", ["", "{", '{"mine": 1}'])
def test_a_damaged_entry_of_the_ledger_is_one_sentence(world, text):
    (world.place / "out.json").write_text(text)
    assert world.run("--only", "06", "--fresh") == 1
    assert "DataError: " in world.said and "out.json is not a ledger entry" in world.said
    assert "; move it away or restore it" in world.said
    assert "Traceback" not in world.said and (world.place / "out.json").read_text() == text


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
    for place in ("steps.set_aside", "lab.run.provenance.set_aside", "lab.run.results.set_aside"):
        monkeypatch.setattr(place, lambda path, out: os.unlink(path) or path)
    assert "gone: file of the user" in fault(own_file)
    monkeypatch.undo()
    monkeypatch.setattr("steps.digest", lambda *parts: "the same")
    monkeypatch.setattr("steps.unfit", lambda *_: None)
    assert "another submission than that of a new folder" in fault(["run", 1], ["collections", 1])
