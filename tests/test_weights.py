"""Weights travel: a run is published through the real client, and a bundle predicts from it, the same bytes as at home.

The notebook runs in Kaggle's folders, without network, without the kit and without training graphs.
"""
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from kaggle_server import QUICK, TOKEN, USER, fails
from run_folder import FULL, run_clone
from sample import write_sample
from test_bundle import KERNEL, bundled

from kit.data import DataError
from kit.prepare import open_prepared, prepare
from kit.submit import read_submission
from lab.packed_weights import (
    LIST,
    combined_by,
    find_weights,
    open_ranked,
    pack_weights,
    predict_from_weights,
    read_weights,
)
from lab.run import Folder, Run, Store
from lab.run.folder import COMBINES, step_of
from lab.run.store import read_kept
from lab.training import choose_recipes, correct_by_relatives, train_recipes

PROJECT = Path(__file__).resolve().parents[1]
COLLECTIONS = ("tile:xla", "layout:xla:default")
REF = f"{USER}/tpugraphs-weights"
SAME, RELATIVE = "5" * 32, "7" * 32              # test files are named after 32 hexadecimal digits


def add_relatives(root):
    """Put other configurations of a training program, and a relative of it, into the validation and the test split."""
    folder = root / "layout" / "xla" / "default"
    with np.load(sorted(folder.glob("train/*.npz"))[0]) as npz:
        arrays = {name: npz[name] for name in npz.files}
    for split, few in (("valid", slice(10, 40)), ("test", slice(30, 70))):
        part = {**arrays, **{name: arrays[name][few] for name in ("node_config_feat", "config_runtime")}}
        np.savez(folder / split / f"{SAME}.npz", **part)
        part["node_feat"] = part["node_feat"] + (np.arange(140) == 20)           # a constant, but another program
        np.savez(folder / split / f"{RELATIVE}.npz", **part)


@pytest.fixture(scope="module")
def season(tmp_path_factory):
    """(a folder with data, the folder `home` of a run of 03 to 06 on these data)."""
    folder = tmp_path_factory.mktemp("season")
    write_sample(folder / "data", hidden=True)
    add_relatives(folder / "data" / "npz")
    status, lines, errors = run_clone(PROJECT, "--data-root", folder / "data", "--out", folder / "home", "--size",
                                      "tiny", "--collections", ",".join(COLLECTIONS), *FULL, "-p", "partial=True",
                                      "-p", "seeds=1")
    assert status == 0, (lines[-20:], errors)
    return folder


def published(out):
    """{(collection, member, split): (file of its costs, checkpoint)} of a run; a file is named after what it holds."""
    return {(c, one["member"], one["split"]): (one["file"], one["model"]) for c in COLLECTIONS
            for one in Folder(out, out).record(step_of(c))["sections"].get(c, {"costs": ()})["costs"]
            if not one["baseline"]}


def costs_of(out, *key):
    """The costs of a prediction of a run."""
    return read_kept(Path(out, "store", f"{published(out)[key][0]}.npz"))


def command(monkeypatch, name, *args):
    """Run a command of notebooks/ in this process -> exit status."""
    monkeypatch.syspath_prepend(PROJECT / "notebooks")
    return importlib.import_module(name).main([str(word) for word in args])


def mounted(kaggle, folder):
    """Put the published Dataset where Kaggle shows it to notebooks -> that folder."""
    for name, data in kaggle.datasets[REF]["versions"][-1]["files"].items():
        path = folder / "input" / "datasets" / REF / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / "input" / "datasets" / REF


@pytest.mark.long
def test_a_bundle_predicts_from_published_weights_the_submission_of_home(season, kaggle, tmp_path, monkeypatch, capfd):
    status = command(monkeypatch, "weights", season / "home", REF, "--data-root", season / "data")
    said = capfd.readouterr().out
    assert status == 0, said
    assert said.endswith(f" notebooks/bundle.py --only 05,06 --weights {REF} --owner {USER}\n")
    assert kaggle.datasets[REF]["isPrivate"]
    # Kaggle's machine: no training graphs at all
    weights = mounted(kaggle, tmp_path)
    root = tmp_path / "input" / "competitions" / "predict-ai-model-runtime" / "npz_all" / "npz"
    shutil.copytree(season / "data" / "npz", root, ignore=shutil.ignore_patterns("train"))
    place, = bundled(tmp_path, "--only", "05,06", "--weights", REF, "--owner", USER, "--collections",
                     ",".join(COLLECTIONS), "-p", "partial=True")
    about = json.loads((place / "kernel-metadata.json").read_text())
    assert about["dataset_sources"] == [REF] and not about["enable_internet"] and about["is_private"]
    book = place / about["code_file"]
    text = book.read_text()                      # of its cells, not of the kit inside, which would be another version
    book.write_text(text.replace("/kaggle/input/datasets", f"{tmp_path}/input/datasets"))
    spec, empty = tmp_path / "jupyter" / "kernels" / "alone", tmp_path / "empty"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps({
        "argv": [sys.executable, "-c", KERNEL, "-f", "{connection_file}"], "display_name": "alone",
        "language": "python"}))
    empty.mkdir()
    around = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TPUGRAPHS_ROOT") and "proxy" not in k
              and not k.startswith("KAGGLE")}
    around |= {"JUPYTER_PATH": str(tmp_path / "jupyter"), "HOME": str(empty), "OMP_NUM_THREADS": "1",
               "TPUGRAPHS_ROOT": str(root.parents[1])}
    done = subprocess.run([sys.executable, "-m", "papermill", "-k", "alone", book, "out.ipynb"], cwd=empty, env=around,
                          text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    top, made = sorted(empty.rglob("submission.csv"), key=lambda path: len(path.parts))
    assert top.parent == empty and top.read_bytes() == made.read_bytes()
    assert made.read_bytes() == (season / "home" / "submission.csv").read_bytes()
    assert {f"layout:xla:default:{SAME}", f"layout:xla:default:{RELATIVE}"} <= read_submission(made).keys()
    said = "".join(output.get("text", "") for cell in nbformat.read(empty / "out.ipynb", 4).cells
                   for output in cell.get("outputs", ()))
    assert all(word in said for word in ("missing ID, of the competition's", "not submitted")) and "unknown" not in said
    out = made.parent
    assert not list((out / "store").glob("*.pt"))
    here, there = published(season / "home"), published(out)
    assert here == there and len(here) == 12 and {member.partition("_")[0] for _, member, _ in here} == {
        "tile", "token", "lightgbm", "additive", "gnn", "frequency"}
    entry, = (json.loads(path.read_text())["parameters"] for path in out.parent.glob("*.json"))
    assert entry["04_train_layout"]["weights"] == read_weights(weights).digest
    assert entry["04_train_layout"]["seeds"] == 1


# --- the parts, on models that were trained for two steps


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(prepared folder, folder of a run that notebooks 03 and 04 might have left), with one seed of two networks."""
    folder = tmp_path_factory.mktemp("trained")
    write_sample(folder / "data", hidden=True)
    add_relatives(folder / "data" / "npz")
    root = prepare(folder / "data", folder / "prepared", COLLECTIONS, 1, False).folder
    for collection, kind, k_hops in zip(COLLECTIONS, ("tile", "token"), (None, 1)):
        run = Run(step_of(collection), root, folder / "run", collections=[collection], size="tiny")
        data = run.data(k_hops=k_hops)
        recipes = choose_recipes(data, run.scale, kind, {kind: {"steps": 2, "configs_per_step": 8}})
        made = train_recipes(run, data, recipes, seeds=1, report=lambda line: None)
        correct_by_relatives(run, made)
        run.publish(made, seeds=1)
    return root, folder / "run"


@pytest.fixture
def weights(trained, tmp_path):
    """The packed weights of `trained`, to be spoiled."""
    return pack_weights(trained[1], trained[0], tmp_path / "weights").folder


def without_training(root, folder):
    """The same prepared data, without training graphs."""
    shutil.copytree(root, folder, ignore=shutil.ignore_patterns("train"))
    return folder


def quiet(*args, **words):
    predict_from_weights(*args, **{"workers": 1, "report": lambda line: None, **words})


def test_predictions_from_weights_are_those_that_the_training_made(trained, weights, tmp_path):
    root, run = trained
    alone = without_training(root, tmp_path / "root")
    quiet(weights, alone, tmp_path / "new")
    here, there = published(run), published(tmp_path / "new")
    assert here == there and {member for _, member, _ in here} == {"tile_seed0", "token_seed0"}
    for c in COLLECTIONS:
        section = Folder(tmp_path / "new", alone).section(step_of(c), c)         # with other training graphs: none
        assert section["settings"]["weights"] == read_weights(weights).digest and section["settings"]["seeds"] == 1
    with pytest.raises(DataError, match="made from other data, tile:xla train has changed since"):
        Folder(tmp_path / "new", root).section("03_train_tile", "tile:xla")
    stored = {one["member"]: {name.rpartition(":")[2] for name in one["specialists"]}
              for one in Folder(tmp_path / "new").record("04_train_layout")["sections"]["layout:xla:default"]["costs"]}
    assert stored["token_seed0"] >= {SAME, RELATIVE}


def copied(run, folder):
    """A copy of a run, to be changed -> its folder."""
    return shutil.copytree(run, folder)


def change_section(out, step, collection, change):
    """Change what a step published, as the step would."""
    folder = Folder(out, out)
    record = folder.record(step)
    change(record["sections"].setdefault(collection, {"settings": {}}))
    folder.write_record(step, record)


@pytest.mark.parametrize("settings, words", [
    ({}, ""), ({"weights_from": "weights.json"}, "chooses them from validation graphs alone"),
    ({"predictions_from": "theirs", "how": "mean_rank", "choose": False}, "other people's predictions")])
def test_what_chose_an_ensemble_and_does_not_travel_is_said(trained, tmp_path, capsys, settings, words):
    out = copied(trained[1], tmp_path / "run")
    change_section(out, COMBINES, "tile:xla", lambda section: section.update(settings=settings))
    pack_weights(out, trained[0], tmp_path / "weights")
    said = capsys.readouterr().out
    assert words in said and said.count("note  ") == bool(words)
    assert combined_by(out) == {name: value for name, value in settings.items() if name in ("how", "choose")}


def test_predictions_without_their_checkpoint_travel_as_they_are(trained, tmp_path, capsys):
    root, out = trained[0], copied(trained[1], tmp_path / "run")
    path, = (out / "store").glob("tile*.pt")
    path.unlink()
    weights = pack_weights(out, root, tmp_path / "weights")
    said = capsys.readouterr().out
    assert said == f"note  {path} is not there, or no recipe has its network; its predictions travel as they are\n"
    assert len(weights.checkpoints) == 1
    quiet(weights.folder, root, tmp_path / "new")
    files = [{key: file for key, (file, _) in published(place).items()} for place in (trained[1], tmp_path / "new")]
    assert files[0] == files[1]


def test_a_checkpoint_that_is_damaged_is_not_published(trained, tmp_path):
    root, out = trained[0], copied(trained[1], tmp_path / "run")
    path, = (out / "store").glob("tile*.pt")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}: is damaged .*; delete it and run the step again"):
        pack_weights(out, root, tmp_path / "weights")


def rewrite(weights, change):
    """Change the list of a folder of weights, as somebody might who can write there."""
    about = json.loads((weights / LIST).read_text())
    change(about)
    (weights / LIST).write_text(json.dumps(about))


def of(about, network):
    """(name, entry) of the checkpoint of a network."""
    return next((name, one) for name, one in about["checkpoints"].items() if one["network"] == network)


def replaced(weights, network, write):
    """Put another file in the place of a checkpoint, and its SHA-256 into the list -> its path."""
    from kit.files import file_sha256
    name = of(json.loads((weights / LIST).read_text()), network)[0]
    path = weights / "store" / f"{name}.pt"
    write(path)
    rewrite(weights, lambda about: about["checkpoints"][name].update(sha256=file_sha256(path)))
    return path


class Bomb:
    """Would make a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


CHANGED = {
    "no checkpoint": (lambda path: path.write_bytes(b"not a checkpoint"), "not a checkpoint, or a damaged one"),
    "pickled code": (lambda path: torch.save({"model": Bomb(path.parents[2] / "boom")}, path), "not a checkpoint"),
    "other names": (lambda path: torch.save({"model": {"a": torch.zeros(3)}}, path), "the weights of another model")}


@pytest.mark.parametrize("what", CHANGED)
def test_a_checkpoint_that_holds_something_else_is_one_sentence(trained, weights, tmp_path, what):
    write, words = CHANGED[what]
    path = replaced(weights, "TileModel", write)
    with pytest.raises(DataError) as fault:
        quiet(weights, trained[0], tmp_path / "new")
    assert str(fault.value).startswith(f"{path}: ") and words in str(fault.value)
    assert str(fault.value).endswith("publish the weights again") and "\n" not in str(fault.value)
    assert not (tmp_path / "boom").exists() and not list((tmp_path / "new").rglob("*.npz"))


def _first(**more):
    return lambda about: about["collections"]["layout:xla:default"]["predictions"][0].update(more)


BROKEN = {
    "format": lambda about: about.update(format=1), "no members": lambda about: about.pop("collections"),
    "listed": lambda about: about.update(checkpoints=[]),
    "outside": lambda about: about["checkpoints"].update({"../../x": about["checkpoints"].popitem()[1]}),
    "collection": lambda about: about["collections"].update({"tile:gpu": about["collections"].pop("tile:xla")}),
    "train": _first(split="train"), "nothing": _first(model="", stored=""), "unknown": _first(model="another"),
    "place": _first(stored="costs-../../../../x")}


@pytest.mark.parametrize("network, code, words", [
    ("Resnet", None, "holds a network 'Resnet', and this kit has TileModel, ConfigTokenModel"),
    ("TileModel", "0" * 64, "was made by another version of the kit; bundle the notebook with the version that")])
def test_a_checkpoint_of_another_kit_names_the_file_and_the_cure(trained, weights, tmp_path, network, code, words):
    rewrite(weights, lambda about: of(about, "TileModel")[1].update(network=network, **{"code": code} if code else {}))
    with pytest.raises(DataError, match=f"tile.*[.]pt: {words}"):
        quiet(weights, trained[0], tmp_path / "new")


@pytest.mark.parametrize("what", BROKEN)
def test_a_list_that_is_none_is_one_sentence(weights, what):
    rewrite(weights, BROKEN[what])
    with pytest.raises(DataError, match=rf"^{re.escape(str(weights / LIST))}: (is no list of weights|has format 1)"):
        read_weights(weights)


def test_each_file_that_is_missing_or_changed_is_named(trained, weights, tmp_path):
    for path in [path for path in weights.rglob("*") if path.suffix in (".pt", ".npz")]:
        data = path.read_bytes()
        path.write_bytes(data[:len(data) // 4] + bytes(byte ^ 1 for byte in data[len(data) // 4:]))
        with pytest.raises(DataError, match=f"^{re.escape(str(path))}: is damaged, or not the file that weights.json"):
            read_weights(weights)
        path.unlink()
        with pytest.raises(DataError, match=f"^{re.escape(str(path))}: not there, but weights.json names it; publish"):
            read_weights(weights)
        path.write_bytes(data)
    assert read_weights(weights).folder == weights
    with pytest.raises(DataError, match="weights.json: not there; expected a folder that notebooks/weights.py"):
        read_weights(tmp_path)
    with pytest.raises(DataError, match=f"no {LIST} in /nowhere or {tmp_path}; add the Dataset with the weights to"):
        find_weights(["/nowhere", tmp_path])
    assert find_weights(["/nowhere", weights]) == weights
    with pytest.raises(DataError, match="has no predictions of layout:nlp:random"):
        quiet(weights, trained[0], tmp_path / "new", ["layout:nlp:random"])
    with pytest.raises(DataError, match="no predictions that can be used; notebooks 03 and 04 make them"):
        pack_weights(tmp_path / "empty", trained[0], tmp_path / "more")
    (weights / LIST).write_bytes(b"\xff")
    with pytest.raises(DataError, match="is no list of weights"):
        read_weights(weights)


def test_other_data_are_ranked_by_weights_and_refused_by_stored_costs(trained, weights, tmp_path, capsys):
    root, _ = trained
    shutil.copytree(root.parent / "data", tmp_path / "data")
    for folder in ("tile/xla/test", "layout/xla/default/test"):
        path = sorted((tmp_path / "data" / "npz" / folder).glob("*.npz"))[0]
        path.rename(path.with_name(f"{'a' * 32}.npz"))
    other = open_ranked(tmp_path / "data", [*COLLECTIONS], tmp_path / "prepared")
    assert {*open_prepared(other).catalogue["split"]} == {"valid", "test"}
    quiet(weights, other, tmp_path / "new", ["tile:xla"])
    said = capsys.readouterr().out
    assert "note  the test files of tile:xla are not those of the run that trained\n" in said
    assert f"tile:xla:{'a' * 32}" in costs_of(tmp_path / "new", "tile:xla", "tile_seed0", "test")
    stored, = (one["stored"] for one in read_weights(weights).collections["layout:xla:default"]["predictions"]
               if one["member"] == "token_seed0" and one["split"] == "test")
    stored = weights / "store" / f"{stored}.npz"
    with pytest.raises(DataError, match=f"^{re.escape(str(stored))}: holds costs of other graphs: the test files of "
                       "layout:xla:default in .* are not those of the run that trained; run the notebooks at home on "):
        quiet(weights, other, tmp_path / "new")


# --- through the real client


def publisher(monkeypatch):
    """`publish` of notebooks/weights.py."""
    monkeypatch.syspath_prepend(PROJECT / "notebooks")
    return importlib.import_module("weights").publish


def test_weights_are_published_once_and_again_only_if_they_changed(kaggle, trained, tmp_path, monkeypatch):
    publish, (root, run) = publisher(monkeypatch), trained
    shutil.copytree(run, tmp_path / "run")
    done = publish(tmp_path / "run", "tpugraphs-weights", root, client=QUICK)
    assert (done["ref"], done["version"], done["uploaded"]) == (REF, 1, True) and kaggle.datasets[REF]["isPrivate"]
    listed = read_weights(mounted(kaggle, tmp_path))
    assert f"2 checkpoints, 4 predictions, digest {listed.digest[:12]}" in kaggle.said()
    texts = b"".join(path.read_bytes() for path in listed.folder.rglob("*") if path.suffix == ".json")
    assert not any(word in texts for word in (TOKEN.encode(), str(tmp_path).encode(), str(Path.home()).encode()))
    again = publish(tmp_path / "run", REF, root, client=QUICK)
    assert (again["version"], again["uploaded"]) == (1, False)
    costs = costs_of(tmp_path / "run", "layout:xla:default", "token_seed0", "test")
    file = Store(tmp_path / "run" / "store").keep("costs", {name: cost * 2 for name, cost in costs.items()})
    change_section(tmp_path / "run", "04_train_layout", "layout:xla:default",
                   lambda section: section["costs"][-1].update(file=file))
    assert publish(tmp_path / "run", REF, root, client=QUICK)["version"] == 2


@pytest.mark.long
def test_checkpoints_that_were_trained_on_kaggle_are_fetched_and_checked_before_they_are_published(
        kaggle, trained, tmp_path, monkeypatch):
    publish, (root, run) = publisher(monkeypatch), trained
    out, files = copied(run, tmp_path / "run"), []
    left = sorted((out / "store").glob("*.pt"))
    for path in left:
        kaggle.files[f"/storage/{path.name}"] = path.read_bytes()
        files.append((f"results/store/{path.name}", f"/storage/{path.name}"))
        path.unlink()
    kaggle.files["/storage/other.pt"] = b"another"
    kaggle.kernels[f"{USER}/job"] = {"status": "COMPLETE", "log": "[]", "files": [
        *files, ("results/store/other.pt", "/storage/other.pt"), ("results/../../x.pt", "/storage/other.pt")]}
    jobs = {c: {"ref": f"{USER}/job", "state": "fetched", "attempt": 1, "log": [], "collection": c, "first_seed": 0,
                "seeds": 1, "section": Folder(run, root).section(step_of(c), c)} for c in COLLECTIONS}
    (out / ".run").mkdir(exist_ok=True)
    (out / ".run" / "kaggle.json").write_text(json.dumps(jobs))
    first, second = (f"/storage/{path.name}" for path in left)
    whole = kaggle.files[first]
    for data in (whole[:-100], kaggle.files[second]):            # damaged, or of another training
        kaggle.files[first] = data
        assert fails("damaged", publish, out, REF, root, client=QUICK) == (
            f"{USER}/job: {left[0].name} is damaged, or another checkpoint; fetch it again")
    kaggle.files[first] = whole
    assert publish(out, REF, root, client=QUICK)["uploaded"]
    assert "checkpoints are fetched from Kaggle" in kaggle.said() and "GET /storage/other.pt" not in kaggle.asked
    quiet(mounted(kaggle, tmp_path), root, tmp_path / "new")
    assert published(tmp_path / "new") == published(run)


@pytest.mark.parametrize("args, words", [
    (("--only", "03,05,06"), "--weights makes one notebook of 05,06: remove any other --only"),
    (("-p", "seeds=3"), "no parameter seeds")])
def test_a_bundle_from_weights_trains_nothing(tmp_path, monkeypatch, capsys, args, words):
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "bundle", "--weights", REF, *args) == 2
    assert words in capsys.readouterr().err and not list(tmp_path.iterdir())
