"""Weights travel: a run is published through the real client, and a bundle predicts from it, the same bytes as at home.

The notebook runs in Kaggle's folders, without network, without the kit and without training graphs.
"""
import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from kaggle_server import QUICK, TOKEN, USER, fails
from test_bundle import KERNEL, bundled

from kit.baselines import rank_by_relatives
from kit.data import DataError
from kit.kaggle import wait_for_dataset
from kit.prepare import open_prepared, prepare
from kit.recipes import recipes_for
from kit.submit import read_submission
from lab.run import Results, from_code, from_data, load_costs, note_settings, read_mark, read_split, training_graphs
from lab.run.members import Material, Member, train_members
from lab.run.weights import (
    LIST,
    combined_by,
    find_weights,
    lacking_checkpoints,
    open_ranked,
    pack_weights,
    predict_from_weights,
    read_weights,
)
from lab.sample import write_sample

PROJECT = Path(__file__).resolve().parents[1]
COLLECTIONS = ("tile:xla", "layout:xla:default")
REF = f"{USER}/tpugraphs-weights"


# names as test files of the competition have them; others would be left out
SAME, RELATIVE, ANOTHER = (hashlib.md5(name).hexdigest() for name in (b"same program", b"relative", b"another"))


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
    root = write_sample(folder / "sample", seed=0, size="tiny")
    shutil.copytree(root, folder / "data" / "npz")                    # without the truth: as if it were real
    add_relatives(folder / "data" / "npz")
    run = subprocess.run([sys.executable, PROJECT / "notebooks" / "run.py", "--data-root", folder / "data", "--out",
                          folder / "home", "--size", "tiny", "--collections", ",".join(COLLECTIONS), "--only",
                          "03,04,05,06", "-p", "partial=True"], cwd=folder,
                         env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, capture_output=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    return folder


def same_costs(found, expected):
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], cost) for name, cost in expected.items())


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
    published = command(monkeypatch, "weights", season / "home", REF, "--data-root", season / "data")
    said = capfd.readouterr().out
    assert published == 0, said
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
    assert {f"layout:xla:default:{name}" for name in (SAME, RELATIVE)} <= read_submission(made).keys()
    said = "".join(output.get("text", "") for cell in nbformat.read(empty / "out.ipynb", 4).cells
                   for output in cell.get("outputs", ()))
    # what a part of the competition's data lacks, and nothing else
    assert "tile:xla: 841 missing ID, of the competition's 844 test graphs" in said and "unknown ID" not in said
    out = made.parent
    assert not (out / "checkpoints").exists()
    predictions = sorted((season / "home" / "predictions").rglob("*.npz"))
    assert len(predictions) == 10 and {path.name.partition("_")[0] for path in predictions} == {
        "tile", "token", "gnn", "siblings", "popularity"}
    listed = read_weights(weights)
    for path in predictions:
        other = out / path.relative_to(season / "home")
        same_costs(load_costs(other), load_costs(path))
        mark = read_mark(other)["made_from"]
        assert mark["weights.json"] == listed.digest
        assert mark.get("weights") == read_mark(path)["made_from"].get("weights")
    entry, = (json.loads(path.read_text())["parameters"]["weights"] for path in out.parent.glob("*.json"))
    assert entry["weights"] == listed.digest and entry["trained"]["04_train_layout"]["seeds"] == 1


# --- the parts, on models that were trained for two steps


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(prepared folder, folder of a run that notebooks 03 and 04 might have left), with one seed of two networks."""
    folder = tmp_path_factory.mktemp("trained")
    root = write_sample(folder / "sample", seed=0, size="tiny")
    shutil.copytree(root, folder / "data" / "npz")
    add_relatives(folder / "data" / "npz")
    root = prepare(folder / "data", folder / "prepared", COLLECTIONS, 1, False).folder
    results, members, materials = Results(folder / "run", "04_train_layout", root, {"seeds": 1}), [], {}
    for collection, kind, k_hops in zip(COLLECTIONS, ("tile", "token"), (None, 1)):
        taught, _ = training_graphs(root, collection, None, k_hops)
        ranked = {split: {f"{collection}:{g.graph_id}": g for g in read_split(root, collection, split, None, k_hops)}
                  for split in ("valid", "test")}
        materials[collection,] = Material(taught, [], None, ranked, from_data(root, [collection], "train", "valid"))
        one = recipes_for(collection)[kind]
        one = one._replace(settings=replace(one.settings, steps=2, configs_per_step=8))
        members.append(Member((collection,), kind, 0, one, ("valid", "test"), rank_by_relatives if k_hops else None))
    for member, result in zip(members, train_members(members, materials, results, 1, report=lambda line: None)):
        collection, = member.trained_on
        for split, costs in result.costs.items():
            made_from = result.made_from | from_data(root, [collection], split)
            special = {i: one.cost for i, one in result.corrected.get(split, {}).items()}
            place = f"predictions/{collection.replace(':', '_')}"
            hops = {"k_hops": "1"} if special else {}
            results.save_costs(f"{place}/{member.kind}_seed0.{split}.npz", costs, made_from | hops)
            if special:
                results.save_costs(f"{place}/siblings_seed0.{split}.npz", costs | special,
                                   made_from | hops | {"specialists": "/".join(special)})
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
    quiet(weights, without_training(root, tmp_path / "root"), tmp_path / "new")
    paths = sorted((run / "predictions").rglob("*.npz"))
    assert {path.name.split(".")[0] for path in paths} == {"tile_seed0", "token_seed0", "siblings_seed0"}
    for path in paths:
        other = tmp_path / "new" / path.relative_to(run)
        same_costs(load_costs(other), load_costs(path))
        mark = read_mark(other)["made_from"]
        assert mark["weights"] == read_mark(path)["made_from"]["weights"]
        assert not any(source.startswith("data ") and source.endswith(" train") for source in mark)
        assert mark["weights.json"] == read_weights(weights).digest
    token, siblings = (load_costs(tmp_path / "new/predictions/layout_xla_default" / f"{name}_seed0.test.npz")
                       for name in ("token", "siblings"))
    differ = {name.rpartition(":")[2] for name in token if not np.array_equal(token[name], siblings[name])}
    assert {RELATIVE, SAME} <= differ


def test_a_folder_of_weights_has_checkpoints_marks_and_no_more_costs_than_it_needs(trained, weights):
    names = {path.relative_to(weights).as_posix() for path in weights.rglob("*") if path.is_file()}
    listed = read_weights(weights)
    assert len(listed.checkpoints) == 2 and len(listed.predictions) == 6
    assert names == {LIST, *(f"checkpoints/{name}{end}" for name in listed.checkpoints for end in ("", ".made.json")),
                     *(f"stored/layout_xla_default/siblings_seed0.{split}.npz" for split in ("valid", "test"))}
    stored = load_costs(weights / "stored/layout_xla_default/siblings_seed0.test.npz")
    assert {f"layout:xla:default:{name}" for name in (SAME, RELATIVE)} <= stored.keys()
    assert {about["network"] for about in listed.checkpoints.values()} == {"TileModel", "ConfigTokenModel"}
    assert {about["settings"]["width"] for about in listed.checkpoints.values()} == {64}
    assert listed.settings == {"04_train_layout": {"seeds": 1}}
    assert lacking_checkpoints(trained[1]) == set()


def test_predictions_of_a_training_are_kept_where_those_of_weights_take_their_place(trained, weights, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(trained[1], out)
    before = {path.relative_to(out): path.read_bytes() for path in out.glob("predictions/*/*.npz")}
    quiet(weights, trained[0], out)
    assert capsys.readouterr().out.count("is a result of 04_train_layout; it is kept as") == len(before) > 0
    kept = {Path(*path.parts[-3:]): path.read_bytes() for path in (out / "aside").rglob("*.npz")}
    assert kept == before
    quiet(weights, trained[0], out)
    assert "it is kept" not in capsys.readouterr().out


def test_weights_of_an_ensemble_that_do_not_travel_are_named(trained, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(trained[1], out)
    note_settings(out, "05_ensemble", {"how": "mean_zscore", "choose": True, "weights_from": None})
    pack_weights(out, trained[0], tmp_path / "usual")
    assert "note" not in capsys.readouterr().out and combined_by(out) == {}
    shutil.copy(next(out.glob("predictions/*/*.test.npz")), out / "predictions" / "tile_xla" / "tile_seed0.train.npz")
    pack_weights(out, trained[0], tmp_path / "folds")
    assert "chooses them from validation graphs alone" in capsys.readouterr().out
    note_settings(out, "05_ensemble", {"how": "mean_rank", "choose": False, "weights_from": None})
    pack_weights(out, trained[0], tmp_path / "prior")
    assert "note" not in capsys.readouterr().out and combined_by(out) == {"how": "mean_rank", "choose": False}
    note_settings(out, "05_ensemble", {"how": "mean_zscore", "choose": True, "weights_from": "weights.json"})
    pack_weights(out, trained[0], tmp_path / "earlier")
    assert "chooses them from validation graphs alone" in capsys.readouterr().out


def test_predictions_without_their_checkpoint_travel_as_they_are(trained, tmp_path, capsys):
    root, run = trained
    shutil.copytree(run, tmp_path / "run")
    path, = (tmp_path / "run" / "checkpoints").glob("tile*.pt")
    path.unlink()
    assert len(lacking_checkpoints(tmp_path / "run")) == 1
    foreign = {name: cost + 1 for name, cost in load_costs(run / "predictions/tile_xla/tile_seed0.test.npz").items()}
    Results(tmp_path / "run", "mine", root).save_costs("predictions/tile_xla/mine_seed0.test.npz", foreign, {})
    path = tmp_path / "run/predictions/layout_xla_default/token_seed0.valid.npz"
    made_from = {name: text for name, text in read_mark(path)["made_from"].items() if name != "k_hops"}
    Results(tmp_path / "run", "mine", root).save_costs(path.relative_to(tmp_path / "run"), load_costs(path), made_from)
    weights = pack_weights(tmp_path / "run", root, tmp_path / "weights")
    said = capsys.readouterr().out
    assert "2 of 6 files of predictions travel as they are: the checkpoint that made them is not in the folder" in said
    assert "1 of 6 files of predictions travel as they are: they do not say how the graphs were pruned" in said
    assert "mine_seed0.test.npz: there are no predictions of this model for the other split" in said
    assert len(weights.checkpoints) == 1
    quiet(weights.folder, root, tmp_path / "new")
    for name in ("tile_xla/tile_seed0.test", "layout_xla_default/token_seed0.valid"):
        same_costs(load_costs(tmp_path / f"new/predictions/{name}.npz"), load_costs(run / f"predictions/{name}.npz"))


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
    path = weights / "checkpoints" / name
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
    "other names": (lambda path: torch.save({"model": {"a": torch.zeros(3)}}, path), "the weights of another model"),
    "no tensors": (lambda path: torch.save({"model": {}, "best": [1]}, path), "no TileModel can be made"),
    "other shapes": (lambda path: torch.save({"model": {
        name: tensor[None] for name, tensor in torch.load(path, weights_only=True)["model"].items()}}, path),
        "holds the weights of another model than TileModelSettings"),
    "not a number": (lambda path: torch.save({"model": {
        name: tensor * torch.nan if tensor.is_floating_point() else tensor
        for name, tensor in torch.load(path, weights_only=True)["best"].items()}}, path), "costs that are not finite"),
    "never trained": (lambda path: torch.save({"model": {
        name: torch.zeros_like(tensor) for name, tensor in torch.load(path, weights_only=True)["best"].items()}}, path),
        "no feature statistics")}


@pytest.mark.parametrize("what", CHANGED)
def test_a_checkpoint_that_holds_something_else_is_one_sentence(trained, weights, tmp_path, what):
    write, words = CHANGED[what]
    path = replaced(weights, "TileModel", write)
    with pytest.raises(DataError) as fault:
        quiet(weights, trained[0], tmp_path / "new")
    assert str(fault.value).startswith(f"{path}: ") and words in str(fault.value)
    assert str(fault.value).endswith("publish the weights again") and "\n" not in str(fault.value)
    assert not (tmp_path / "boom").exists() and not list((tmp_path / "new").rglob("*.npz"))


def _network(name, **more):
    return lambda about: of(about, "TileModel")[1].update({"network": name, **more})


def _settings(**more):
    return lambda about: of(about, "TileModel")[1]["settings"].update(more)


LISTS = {
    "another network": (_network("Resnet"), "holds a network 'Resnet', and this kit has TileModel, ConfigTokenModel"),
    "the network of another": (
        _network("LayoutGNN", code=from_code("kit.predict", "kit.prune", "kit.models.layout_gnn")),
        "no LayoutGNN can be made with the settings in weights.json"),
    "huge": (_settings(width=50_000), "holds the weights of another model than TileModelSettings(width=50000"),
    "impossible": (_settings(width=-1), "no TileModel can be made"),
    "unknown setting": (_settings(height=3), "no TileModel can be made"),
    "another kit": (_network("TileModel", code={"code kit.predict": "0" * 64}),
                    "was made by another version of the kit; bundle the notebook with the version that trained")}


@pytest.mark.parametrize("what", LISTS)
def test_a_list_that_does_not_fit_its_checkpoint_names_the_file_and_the_cure(trained, weights, tmp_path, what):
    change, words = LISTS[what]
    rewrite(weights, change)
    name = next(name for name in json.loads((weights / LIST).read_text())["checkpoints"] if name.startswith("tile"))
    with pytest.raises(DataError) as fault:
        quiet(weights, trained[0], tmp_path / "new")
    assert str(fault.value).startswith(f"{weights / 'checkpoints' / name}: {words}") and "\n" not in str(fault.value)


BROKEN = {
    "format": lambda about: about.update(format=2), "no members": lambda about: about.pop("predictions"),
    "listed": lambda about: about.update(checkpoints=[]), "settings": lambda about: about.update(settings=3),
    "outside": lambda about: about["checkpoints"].update({"../../x.pt": about["checkpoints"].popitem()[1]}),
    "collection": lambda about: about["predictions"][0].update(collection="tile:gpu"),
    "train": lambda about: about["predictions"][0].update(split="train"),
    "member": lambda about: about["predictions"][0].update(member="../x"),
    "nothing": lambda about: about["predictions"][0].update(checkpoint=None, stored=None),
    "hops": lambda about: about["predictions"][0].update(k_hops=-1),
    "hash": lambda about: about["predictions"][0].update(stored="abc"),
    "number": lambda about: about["predictions"].insert(0, 3)}


@pytest.mark.parametrize("what", BROKEN)
def test_a_list_that_is_none_is_one_sentence(weights, what):
    rewrite(weights, BROKEN[what])
    with pytest.raises(DataError, match=rf"^{re.escape(str(weights / LIST))}: (is no list of weights|has format 2)"):
        read_weights(weights)


def test_each_file_that_is_missing_or_changed_is_named(trained, weights, tmp_path):
    for path in [path for path in weights.rglob("*") if path.suffix in (".pt", ".npz")]:
        data = path.read_bytes()
        path.write_bytes(data[:-1] + b"?")
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
        path.rename(path.with_name(f"{ANOTHER}.npz"))
    other = open_ranked(tmp_path / "data", [*COLLECTIONS], "tiny", tmp_path / "prepared")
    assert {*open_prepared(other).catalogue["split"]} == {"valid", "test"}
    quiet(weights, other, tmp_path / "new", ["tile:xla"])
    said = capsys.readouterr().out
    assert "note  tile_seed0: the test files of tile:xla are not those of the run that trained\n" in said
    assert f"tile:xla:{ANOTHER}" in load_costs(tmp_path / "new/predictions/tile_xla/tile_seed0.test.npz")
    stored = weights / "stored/layout_xla_default/siblings_seed0.test.npz"
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
    assert f"2 checkpoints, 6 files of predictions, digest {listed.digest[:12]}" in kaggle.said()
    texts = b"".join(path.read_bytes() for path in listed.folder.rglob("*") if path.suffix == ".json")
    assert not any(word in texts for word in (TOKEN.encode(), str(tmp_path).encode(), str(Path.home()).encode()))
    again = publish(tmp_path / "run", REF, root, client=QUICK)
    assert (again["version"], again["uploaded"]) == (1, False)
    path, = (tmp_path / "run" / "predictions").rglob("siblings_seed0.test.npz")
    costs = {name: cost * 2 for name, cost in load_costs(path).items()}
    Results(tmp_path / "run", "04_train_layout", root).save_costs(path.relative_to(tmp_path / "run"), costs,
                                                                  read_mark(path)["made_from"])
    assert publish(tmp_path / "run", REF, root, client=QUICK)["version"] == 2


@pytest.mark.long
def test_weights_that_do_not_become_ready_are_one_sentence(kaggle, trained, monkeypatch, tmp_path):
    publish, (root, run) = publisher(monkeypatch), trained
    kaggle.processing = ["BLOBS_RECEIVED"] * 999
    assert fails("pending", publish, run, REF, root, timeout=3, client=QUICK) == (
        f"{REF}: uploaded, but Kaggle still processes it (blobs_received); run it again, nothing is uploaded twice")
    kaggle.processing = []
    assert publish(run, REF, root, client=QUICK)["uploaded"] is False
    with pytest.raises(DataError, match="is no folder of a run, or has no predictions; run.py makes it"):
        publish(tmp_path / "nothing", REF, root, client=QUICK)


def test_a_notebook_waits_for_its_dataset_and_one_that_kaggle_hides_is_not_waited_for(kaggle):
    wait_for_dataset("other/hidden-dataset", client=QUICK)
    kaggle.datasets[REF] = {"isPrivate": True, "title": "", "description": "", "versions": [
        {"versionNumber": 1, "versionNotes": "", "files": {}}]}
    kaggle.processing = ["BLOBS_RECEIVED", "BLOBS_DECOMPRESSED"]
    wait_for_dataset(REF, every=0.01, client=QUICK)
    assert kaggle.processing == [] and kaggle.asked.count("GetDatasetStatus") == 3
    kaggle.processing = ["BLOBS_RECEIVED"] * 99
    assert "Kaggle still processes it (blobs_received)" in fails("pending", wait_for_dataset, REF, 0.5, 0.1, QUICK)
    kaggle.processing = ["FAILED", "FAILED"]
    assert "Kaggle could not process" in fails("refused", wait_for_dataset, REF, client=QUICK)


@pytest.mark.long
def test_checkpoints_that_were_trained_on_kaggle_are_fetched_and_checked_before_they_are_published(
        kaggle, trained, tmp_path, monkeypatch):
    publish, (root, run) = publisher(monkeypatch), trained
    shutil.copytree(run, tmp_path / "run")
    left = [path for path in sorted((tmp_path / "run" / "checkpoints").iterdir()) if ".pt" in path.name]
    files = []
    for path in left:
        kaggle.files[f"/storage/{path.name}"] = path.read_bytes()
        files.append((f"results/checkpoints/{path.name}", f"/storage/{path.name}"))
        path.unlink()
    kaggle.files["/storage/other.pt"] = b"another"
    kaggle.kernels[f"{USER}/job"] = {"status": "COMPLETE", "log": "[]", "files": [
        *files, ("results/checkpoints/other.pt", "/storage/other.pt"), ("results/../../x.pt", "/storage/other.pt")]}
    job = {"ref": f"{USER}/job", "state": "fetched", "attempt": 1, "files": {}, "log": []}
    (tmp_path / "run" / ".run" / "kaggle.json").write_text(json.dumps({"job": job}))
    name = next(path.name for path in left if path.suffix == ".pt")
    whole = kaggle.files[f"/storage/{name}"]
    kaggle.files[f"/storage/{name}"] = whole[:-1] + b"?"
    assert fails("damaged", publish, tmp_path / "run", REF, root, client=QUICK) == (
        f"{USER}/job: checkpoints/{name} is not the file that its mark names; fetch it again")
    kaggle.files[f"/storage/{name}"] = whole
    assert publish(tmp_path / "run", REF, root, client=QUICK)["uploaded"]
    assert "checkpoints are fetched from Kaggle" in kaggle.said() and "GET /storage/other.pt" not in kaggle.asked
    quiet(mounted(kaggle, tmp_path), root, tmp_path / "new")
    for path in sorted((run / "predictions").rglob("*.npz")):
        same_costs(load_costs(tmp_path / "new" / path.relative_to(run)), load_costs(path))
    assert lacking_checkpoints(tmp_path / "run") == set()


@pytest.mark.parametrize("args, words", [
    (("--only", "03,05,06"), "--weights makes one notebook of 05,06: remove --each, and any other --only"),
    (("--each",), "--weights makes one notebook of 05,06"), (("--only", "06"), "--weights makes one notebook of 05,06"),
    (("-p", "seeds=3"), "no parameter seeds")])
def test_a_bundle_from_weights_trains_nothing(tmp_path, monkeypatch, capsys, args, words):
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "bundle", "--weights", REF, *args) == 2
    assert words in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_bundle_from_weights_says_what_it_reads_and_how_long_it_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("--weights", REF, "--owner", USER, "--machine", "cpu")
    assert command(monkeypatch, "bundle", *words, "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{USER}/tpugraphs-kit-05-06"
    assert lines[2] == f"    data: competition predict-ai-model-runtime, Dataset {REF}" and not list(tmp_path.iterdir())
    assert command(monkeypatch, "bundle", *words, "--dataset", "a/prepared-data") == 0
    place = tmp_path / "bundle" / "tpugraphs-kit-05-06"
    about = json.loads((place / "kernel-metadata.json").read_text())
    assert about["dataset_sources"] == ["a/prepared-data", REF]
    cells = [cell.source for cell in nbformat.read(place / about["code_file"], 4).cells]
    assert not any("train_members(" in cell for cell in cells)
    about = f"## Predict from weights\nThe checkpoints of a finished run lie in the Kaggle Dataset `{REF}`"
    assert any(cell.startswith(about) for cell in cells)
