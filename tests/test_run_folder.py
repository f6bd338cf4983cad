"""The folder of a run: what changed is made again, what a user put there stays, what does not fit is refused."""
import json
import re
import shutil

import numpy as np
import pytest
import state_machine
import torch
from run_folder import COLLECTIONS, FULL, MOST_CONFIGS, World, digests, finished_world, in_process, permute, program

from kit.files import file_sha256
from kit.prune import drawn_rows
from kit.train_parts import Deadline
from lab.run import Folder, steps_trained
from lab.season import record_leaderboard

pytestmark = pytest.mark.long            # each test runs notebooks 03 to 06, most of them several times
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


def files(world, *patterns):
    """{path: SHA-256} in the folder of the run."""
    found = [path for pattern in patterns for path in sorted((world.place / "out").glob(pattern)) if path.is_file()]
    return {path.relative_to(world.place / "out").as_posix(): file_sha256(path) for path in found}


def there(world):
    """{SHA-256: paths} of all files in the folder of the run."""
    return digests(world.place / "out")


def costs(world, member="token_seed0", collection=LAYOUT[0], split="test", out="out"):
    """Path of the costs in the store that a member published."""
    folder = Folder(world.place / out, world.place / out)
    step = "03_train_tile" if collection == "tile:xla" else "04_train_layout"
    one, = (one for one in folder.record(step)["sections"][collection]["costs"]
            if (one["member"], one["split"]) == (member, split))
    return folder.store.path(one["file"], ".npz")


def run_again(world, step):
    """As if a step had not been finished."""
    (world.place / "out" / ".run" / f"{step}.json").unlink()


def submission(world, out="out"):
    return (world.place / out / "submission.csv").read_text()


def as_in_a_new_folder(world, *args, **settings):
    """Whether the submission is that of a new folder."""
    assert world.run(*args, out="new", **settings) == 0, world.said
    same = submission(world) == submission(world, "new")
    shutil.rmtree(world.place / "new")
    return same


@pytest.mark.parametrize("name, damage, again", [
    ("submission.csv", lambda data: b"\n".join(data.split(b"\n")[:2]) + b"\n", "06_submit"),
    ("steps/05_ensemble.json", lambda data: data.replace(b"mean_zscore", b"mean_rank", 1), "05_ensemble"),
    ("notebooks/04_train_layout.ipynb", lambda data: b"my notes", "04_train_layout"),
    ("costs", lambda data: data[:100], "04_train_layout")])
def test_a_changed_result_is_made_again_and_the_change_is_kept(world, name, damage, again):
    path = costs(world) if name == "costs" else world.place / "out" / name
    whole, text = path.read_bytes(), submission(world)
    path.write_bytes(damage(whole))
    changed = file_sha256(path)
    assert world.run() == 0, world.said
    assert not any(again in line and "finished before" in line for line in world.said.splitlines())
    assert str(path) in world.said and changed in there(world) and submission(world) == text
    assert world.run() == 0 and world.said.count("finished before") == 4


def test_predictions_for_other_test_data_are_refused_and_the_submission_stays(world):
    before = files(world, "submission.csv")
    permute(world.sources(LAYOUT[0], "test")[0])
    assert world.run("--only", "05,06") == 2
    last = world.said.splitlines()[-1]
    assert last.startswith("run.py: 05_ensemble needs the results of 04_train_layout, which do not fit: ")
    assert last.endswith("made from other data, layout:nlp:random test has changed since; run 04, too")
    assert files(world, "submission.csv") == before
    assert world.run() == 0 and as_in_a_new_folder(world) and files(world, "submission.csv") != before


@pytest.mark.parametrize("change", ["comment", "losses", "submit"])
def test_code_of_the_kit_that_changed_makes_results_again_and_words_do_not(world, change):
    text = submission(world)
    world.change_kit(change)
    assert world.run() == 0
    if change == "comment":
        assert world.said.count("finished before") == 4
    else:
        assert "06_submit          finished before" not in world.said and submission(world) != text
        assert change == "submit" or as_in_a_new_folder(world)


@pytest.mark.parametrize("happened", ["nothing", "removed", "changed", "a folder"])
def test_a_narrower_run_keeps_the_wider_submission_and_its_trainings(world, happened):
    wide, trained = submission(world), files(world, "store/*.pt")
    copy, = (world.place / "out" / "store").glob("submission-*.csv")
    if happened == "removed":
        copy.unlink()
    elif happened == "changed":
        copy.write_text("mine")
    elif happened == "a folder":
        copy.unlink()
        copy.mkdir()
    assert world.run(*FULL, "--collections", "tile:xla") == 0
    assert submission(world) == "".join(line for line in wide.splitlines(True) if not line.startswith("layout"))
    kept = [path.read_text() for path in (world.place / "out" / "store").glob("submission-*.csv") if path.is_file()]
    assert wide in kept and ("mine" in kept) == (happened == "changed")
    assert world.run() == 0 and submission(world) == wide and files(world, "store/*.pt") == trained


def test_collections_may_be_trained_one_after_another(world):
    for collection in ("tile:xla", LAYOUT[0]):
        assert world.run("--only", "03,04", "--collections", collection, out="parts") == 0, world.said
    assert world.run("--only", "05,06", out="parts") == 0, world.said
    assert submission(world, "parts") == submission(world)


def test_with_one_worker_models_are_trained_and_corrected_in_the_process_of_the_notebook(world, monkeypatch):
    def refuse(*_):
        raise AssertionError("another process")
    monkeypatch.setattr("kit.train_parts.pool.multiprocessing.get_context", refuse)
    assert world.run("--only", "04", "--collections", LAYOUT[0], seeds=2) == 0, world.said


def test_a_run_without_anything_to_train_on_ends_with_one_sentence_and_the_submission_stays(world):
    before = submission(world)
    for path in [path for collection in COLLECTIONS for path in world.sources(collection, "train")]:
        path.unlink()
    assert world.run() == 1
    assert world.said.splitlines()[-1].endswith("out: no predictions to combine; 03 and 04 make them")
    assert submission(world) == before


def test_earlier_settings_train_nothing_again(world):
    few = submission(world)
    assert world.run(seeds=2) == 0 and submission(world) != few
    trained = files(world, "store/*.pt")
    assert world.run(seeds=1) == 0 and submission(world) == few and files(world, "store/*.pt") == trained


def bring(world, **settings):
    """A folder with the predictions of seed 7 of another machine, made from the data that are there."""
    assert world.run("--only", "03,04", out="far", **{"first_seed": 7} | settings) == 0, world.said
    far, place = Folder(world.place / "far", world.place / "far"), world.place / "brought"
    for step in ("03_train_tile", "04_train_layout"):
        for section in far.record(step)["sections"].values():
            for one in [one for one in section["costs"] if not one["baseline"]]:
                path = place / one["collection"].replace(":", "_") / f"{one['member']}.{one['split']}.npz"
                path.parent.mkdir(parents=True, exist_ok=True)
                np.savez(path, **far.store.read(one["file"]))
    shutil.rmtree(far.out)
    return place


def test_predictions_of_another_machine_become_members(world):
    text, place = submission(world), bring(world)
    assert world.run(choose=False, predictions_from=place) == 0, world.said
    assert submission(world) != text and world.said.count("finished before") == 2
    rows = (world.place / "out" / "scores.csv").read_text().splitlines()
    assert {row.split(",")[1] for row in rows if ',2,"valid, real files"' in row} == {
        "tile", "token", "lightgbm", "additive", "gnn"}
    assert world.run(choose=False, predictions_from=place) == 0 and world.said.count("finished before") == 4
    (place / "tile_xla" / "tile_seed7.test.npz").unlink()
    assert world.run(choose=False, predictions_from=place) == 3 and "tile_seed7: has predictions of" in world.said
    assert world.run() == 0 and submission(world) == text


def save_own(world, name="mine_seed0", collection=LAYOUT[0], splits=("valid", "test"), change=lambda cost: -cost):
    """Predictions of one's own model -> their folder."""
    folder = world.place / "brought" / collection.replace(":", "_")
    folder.mkdir(parents=True, exist_ok=True)
    for split in splits:
        with np.load(costs(world, split=split)) as npz:
            np.savez(folder / f"{name}.{split}.npz", **{key: change(npz[key]) for key in npz.files if ":" in key})
    return world.place / "brought"


REFUSED = {
    "alone": ({"splits": ("test",)}, "alone: has predictions of test, and not of other splits"),
    "token_seed0": ({}, "npz: this run has a model of the same name; rename the file"),
    "elsewhere": ({"collection": "tile:xla"}, "elsewhere.valid.npz: has costs of layout:nlp:random:"),
    "endless": ({"change": lambda cost: cost * np.where(np.arange(len(cost)), 1, np.nan)},
                "has a cost that is not finite"),
    "words": ({"change": lambda cost: cost.astype("U9")}, "expected one axis of costs"),
    "short": ({"change": lambda cost: cost[:-1]},
              f"configurations; expected all of them, or those of fewer_configs(graph, {MOST_CONFIGS})")}


def test_predictions_that_cannot_be_combined_are_left_out_and_named(world):
    text = submission(world)
    for name, (given, _) in REFUSED.items():
        place = save_own(world, name, **given)
    assert world.run(predictions_from=place) == 3 and submission(world) == text
    for name, (_, reason) in REFUSED.items():
        assert name in world.said and reason in world.said, (name, world.said)


def test_predictions_of_other_graphs_than_most_have_are_left_out_and_named(world):
    for name in ("one", "other", "half"):
        place = save_own(world, name) / LAYOUT[0].replace(":", "_")
        with np.load(place / f"{name}.valid.npz") as npz:
            out_of_fold = {key: npz[key] for key in npz.files[:1 if name == "half" else None]}
        np.savez(place / f"{name}.train.npz", **out_of_fold)
    assert world.run(predictions_from=place.parent) == 3
    assert (f"{LAYOUT[0]}, train: half has {MOST_CONFIGS} costs of 1 graphs; the others have "
            f"{2 * MOST_CONFIGS} costs of 2 graphs") in world.said


def test_predictions_of_all_configurations_count_as_those_of_the_drawn_ones(world):
    place, before = save_own(world), submission(world)
    assert world.run(predictions_from=place) == 0 and submission(world) != before
    few, path = submission(world), place / LAYOUT[0].replace(":", "_") / "mine_seed0.valid.npz"
    with np.load(path) as npz:
        costs = {name: npz[name] for name in npz.files}
    for source in world.sources(LAYOUT[0], "valid"):
        name = f"{LAYOUT[0]}:{source.stem}"
        with np.load(source) as npz:
            whole = np.zeros(len(npz["config_runtime"]))
        whole[drawn_rows(len(whole), MOST_CONFIGS)] = costs[name]
        costs[name] = whole
    np.savez(path, **costs)
    assert world.run(predictions_from=place) == 0 and "05_ensemble        finished before" not in world.said
    assert submission(world) == few


def test_predictions_that_are_not_of_the_test_graphs_are_left_out_and_named(world):
    text, changes = submission(world), {
        "lacking": lambda own: dict([*own.items()][1:]),
        "foreign": lambda own: own | {f"{LAYOUT[0]}:other": np.ones(9)},
        "cut": lambda own: {name: cost[:-1] if i else cost for i, (name, cost) in enumerate(own.items())}}
    for name, change in changes.items():
        place = save_own(world, name)
        path = place / LAYOUT[0].replace(":", "_") / f"{name}.test.npz"
        with np.load(path) as npz:
            own = change({key: npz[key] for key in npz.files})
        np.savez(path, **own)
    assert world.run(predictions_from=place) == 3 and submission(world) == text
    for words in (r"lacking.test.npz: lacks 1 of 2 test graphs, such as layout",
                  "other; the data have no such test graph",
                  r"cut.test.npz: \S+ has \d+ costs, and its file \d+ configurations"):
        assert re.search(words, world.said), (words, world.said)
    assert all(f"{name}: has predictions of valid, and not of other splits" in world.said for name in changes)


def test_a_part_of_the_rows_is_never_called_a_submission_to_upload(world):
    assert world.run(how="mean_rank", partial=False) == 3 and "has problems, see above" in world.said, world.said
    assert world.run(how="mean_rank", partial=True) == 0 and "or upload" in world.said


def test_a_folder_without_predictions_is_named(world):
    text = submission(world)
    assert world.run(predictions_from=world.place / "nowhere") == 2 and "nowhere: expected a folder" in world.said
    (world.place / "brought" / LAYOUT[0]).mkdir(parents=True)                    # with ":" instead of "_"
    assert world.run(predictions_from=world.place / "brought") == 1
    assert "no COLLECTION/NAME.test.npz in it" in world.said and submission(world) == text


def test_a_file_that_a_parameter_names_is_read_again_when_it_changes(world):
    sample, rows = world.place / "sample_submission.csv", submission(world)
    sample.write_text(rows)
    assert world.run("--only", "06", sample_submission=sample, partial=False) == 0
    sample.write_text(rows + "tile:xla:another,0;1;2;3;4\n")
    assert world.run("--only", "06", sample_submission=sample, partial=False) == 3 and "1 missing ID" in world.said
    assert world.run("--only", "06", sample_submission=sample, partial=False) == 3 and "finished before" in world.said


def test_a_file_in_the_place_of_a_folder_is_one_sentence(world):
    path = world.place / "out" / "store"
    shutil.rmtree(path)
    path.write_text("mine")
    assert world.run(seeds=2) in (1, 2)
    assert "cannot be written (" in world.said and "Traceback" not in world.said and path.read_text() == "mine"


def test_the_clone_is_no_folder_of_a_run(world):
    before = digests(world.place)
    assert world.run(out=".") == 2 and "is the clone, whose notebooks would be replaced" in world.said
    assert digests(world.place) == before


def test_a_submission_with_a_leaderboard_score_is_kept(world):
    record_leaderboard(world.place, "out", public=0.7)
    was, entry = files(world, "submission.csv")["submission.csv"], json.loads((world.place / "out.json").read_bytes())
    assert world.run(seeds=2) == 0
    kept = world.place / f"out-{entry['sha256'][:8]}.json"
    assert f"out.json belongs to another CSV that has a leaderboard score; that entry is kept as {kept}" in world.said
    assert len(there(world)[was]) == 1 and json.loads(kept.read_bytes()) == entry | {"run": kept.stem}
    now = json.loads((world.place / "out.json").read_bytes())
    assert now["leaderboard"] == {"public": None, "private": None} and now["sha256"] != entry["sha256"]
    assert now["made_from"]["data"] == entry["made_from"]["data"]
    assert now["made_from"]["weights"].keys() > entry["made_from"]["weights"].keys()


def test_an_entry_of_the_ledger_that_is_gone_is_written_again(world):
    entry = world.place / "out.json"
    before = json.loads(entry.read_bytes())
    entry.unlink()
    assert world.run("--only", "06") == 0 and "finished before" not in world.said
    now = json.loads(entry.read_bytes())
    assert {**now, "recorded": ""} == {**before, "recorded": ""}
    assert world.run("--only", "06") == 0 and "06_submit          finished before" in world.said


def test_a_checkpoint_whose_weights_somebody_edited_is_not_taken_for_trained(world):
    text, out = submission(world), world.place / "out"
    path, = (out / "store").glob("layout_nlp_random-token-0-*.pt")
    saved = torch.load(path, weights_only=True)
    for tensor in [*saved["model"].values(), *saved["best"].values()]:
        tensor.copy_(tensor.flip(-1) if tensor.ndim else tensor)
    torch.save(saved, path)
    edited = file_sha256(path)
    run_again(world, "04_train_layout")
    assert world.run() == 0, world.said
    assert submission(world) == text and edited in there(world) and str(path) in world.said


@pytest.mark.parametrize("name", ["a\nb", "x" * 252])
def test_a_name_that_no_ledger_can_hold_is_refused_before_anything_is_written(world, name):
    assert world.run(out=name) == 2 and "give a shorter name" in world.said
    assert not (world.place / name).exists()


def test_a_training_that_a_deadline_stopped_goes_on(world, monkeypatch):
    def run():
        return world.run("--only", "04", "--collections", LAYOUT[0], "-p", "hours=5", **longer)
    longer = {"token.steps": 12}
    before, calls = files(world, "store/*"), iter(range(100))
    monkeypatch.setattr(Deadline, "passed", lambda deadline: next(calls) > 6)
    assert run() == 3
    stopped, = [world.place / "out" / name for name in files(world, "store/*token-0*.pt") if name not in before]
    assert 0 < steps_trained(stopped.with_suffix(".json")) < 12
    monkeypatch.undo()
    assert run() == 0 and "kept as" not in world.said and steps_trained(stopped.with_suffix(".json")) == 12
    assert run() == 0 and world.said.count("finished before") == 1
    assert world.run(**longer) == 0 and as_in_a_new_folder(world, **longer)


def test_a_damaged_entry_of_the_ledger_is_one_sentence(world):
    text = '{"mine": 1}'
    (world.place / "out.json").write_text(text)
    run_again(world, "06_submit")
    assert world.run("--only", "06") == 1
    assert "DataError: " in world.said and "out.json is not a ledger entry" in world.said
    assert "; move it away or restore it" in world.said
    assert "Traceback" not in world.said and (world.place / "out.json").read_text() == text


# --- random sequences, see tests/state_machine.py


def test_a_share_of_the_sequences_finds_nothing(tmp_path):
    said = []
    ends = state_machine.search(20, 1000, tmp_path, report=lambda text, **_: said.append(text), shorten=False)
    assert not ends["FAULT"] and ends.total() == 20, "\n".join(said)


def test_what_no_run_needs_is_listed_and_deleted_when_told(world):
    text, kept = submission(world), files(world, "store/*")
    assert world.run(seeds=2) == 0 and world.run() == 0
    more = files(world, "store/*").keys() - kept.keys()
    assert len(more) > 6 and program.main(["--clean", "list", "--out", str(world.place / "out")]) == 0
    assert more <= files(world, "store/*").keys()
    assert program.main(["--clean", "delete", "--out", str(world.place / "out")]) == 0
    left = files(world, "store/*").keys()
    assert kept.keys() - left <= {name for name in kept if "submission-" not in name} and not {
        name for name in more & left if "submission-" not in name}
    assert world.run() == 0 and world.said.count("finished before") == 4 and submission(world) == text
