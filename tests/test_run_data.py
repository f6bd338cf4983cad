"""The data of a run: found and prepared, bad files reported and left out, changes noticed."""
import json
import re
import shutil

import numpy as np
import pytest
from drawn import arrays_of, rewrite

from kit.data import COLLECTIONS, SPLITS, DataError, content_digest, npz_paths, read_layout, read_tile, teaches
from kit.prepare import prepare
from kit.prune import prune
from lab import data
from lab.data import known_truth, left_out, locate_data, open_data, read_split, source_of, training_graphs, wanted
from lab.run import Prediction, Run
from lab.run.folder import data_digest

LAYOUTS = COLLECTIONS[1:]


@pytest.fixture
def root(tiny_sample, tmp_path):
    """The folder with tile/ and layout/ of a copy of the tiny sample, to be damaged; without what was prepared."""
    shutil.copytree(tiny_sample, tmp_path / "copy", ignore=shutil.ignore_patterns("prepared*"))
    return tmp_path / "copy" / "npz"


def test_collections_come_in_the_official_order():
    assert wanted() == list(COLLECTIONS)
    assert wanted(["layout:nlp:random", "tile:xla"]) == ["tile:xla", "layout:nlp:random"]
    assert wanted(" layout:nlp:random ,tile:xla,tile:xla") == ["tile:xla", "layout:nlp:random"]


@pytest.mark.parametrize("names", ["tile:xla,layout:xla,x", ["layout:xla", "tile:xla", "x"]])
def test_an_unknown_collection_is_answered_with_all_five(names):
    with pytest.raises(DataError) as error:
        wanted(names)
    assert str(error.value) == f"no collection layout:xla, x; there are {', '.join(COLLECTIONS)}"


def test_open_data_takes_what_is_given_prepares_it_and_says_which_it_is(root, tmp_path, capsys):
    place = open_data(str(root), collections="tile:xla", folder=tmp_path / "data")
    assert place.parent == tmp_path / "data" and re.fullmatch("prepared-[0-9a-f]{8}", place.name)
    assert capsys.readouterr().out == f"measured programs: {root}\nprepared: {place}\n"
    assert [p.name for p in place.iterdir() if p.is_dir()] == ["tile"]                 # only what was asked for
    assert open_data(root, folder=tmp_path / "data") == place and (place / "layout").is_dir()
    assert open_data(place) == place and source_of(place) == "measured programs"
    shutil.rmtree(place)
    (root.parent / "measured.csv").unlink()
    capsys.readouterr()
    assert open_data(root.parent, folder=tmp_path / "data") == place and source_of(place) == "real files"
    assert capsys.readouterr().out == f"data set: {root}\nprepared: {place}\n"


def test_what_is_measured_follows_the_table_beside_the_data_root_and_nothing_else(root, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "data" / "measured.csv").write_text("of other programs")     # beside the prepared folder
    table, digests = root.parent / "measured.csv", {}
    for there, source in ((True, "measured programs"), (False, "real files"), (True, "measured programs")):
        table.write_text("collection\n") if there else table.unlink()
        place = open_data(root, "tile:xla", tmp_path / "data")
        assert source_of(place) == source_of(root) == source_of(tmp_path / "link") == source
        assert bool(known_truth(place, "tile:xla")) == there
        monkeypatch.chdir(root)
        assert source_of(".") == source
        digests.setdefault(source, set()).add(data_digest(place, "tile:xla", "test"))
    assert [len(one) for one in digests.values()] == [1, 1] and len(set.union(*digests.values())) == 2


def test_the_table_of_measured_programs_beside_files_of_the_competition_is_refused(tiny_hidden, tmp_path):
    shutil.copytree(tiny_hidden / "npz", tmp_path / "npz")
    (tmp_path / "measured.csv").write_text("collection\n")
    with pytest.raises(DataError, match=f"^{tmp_path}/measured.csv: lies beside files of the competition, whose test"):
        open_data(tmp_path, folder=tmp_path / "data")


def test_other_collections_that_are_prepared_stay_up_to_date(root, tmp_path):
    """A model of one collection may be trained on others, so what it was made from must be known to have changed."""
    first, other = "layout:xla:random", "layout:nlp:random"
    place = open_data(root, [first, other], tmp_path / "data")
    before = data_digest(place, other, "train")
    path = npz_paths(root, other, "train")[0]
    rewrite(path, config_runtime=read_layout(path).config_runtime[::-1])
    open_data(root, first, tmp_path / "data")
    assert data_digest(place, other, "train") != before
    assert not (place / "tile").exists()                         # what nobody asked for is still not prepared


def test_on_colab_the_prepared_data_live_on_a_mounted_drive(root, tmp_path, monkeypatch):
    (root.parent / "measured.csv").unlink()
    monkeypatch.setattr(data, "DRIVE", tmp_path)
    assert open_data(root, collections="tile:xla") == tmp_path / "tpugraphs-prepared"


def test_open_data_names_what_cannot_be_prepared(root, tmp_path, capsys):
    bad = npz_paths(root, "layout:nlp:random", "valid")[0]
    bad.write_bytes(b"PK")
    place = open_data(root, folder=tmp_path / "data")
    why = f"layout/nlp/random/valid/{bad.name}: not a readable npz file"
    assert f"left out: {why}" in capsys.readouterr().out
    assert bad.stem not in [g.graph_id for g in read_split(place, "layout:nlp:random", "valid")]
    (name, reason), = left_out(place, ["tile:xla", "layout:nlp:random"])
    assert why in f"{name}: {reason}" and left_out(place, ["tile:xla"]) == left_out(root, ["layout:nlp:random"]) == []


def test_measured_programs_are_never_used_in_place_of_data_that_was_asked_for(tmp_path, monkeypatch):
    for ask in (lambda: open_data(tmp_path / "absent", folder=tmp_path / "new"),
                lambda: (monkeypatch.setenv("TPUGRAPHS_ROOT", str(tmp_path / "absent")),
                         open_data(folder=tmp_path / "new"))):
        with pytest.raises(DataError, match=f"^(TPUGRAPHS_ROOT: )?{tmp_path}/absent does not exist; expected a"):
            ask()
    assert not (tmp_path / "new").exists()


def test_a_bundle_has_no_measured_programs_and_says_that_no_data_is_there(tmp_path, monkeypatch):
    monkeypatch.delenv("TPUGRAPHS_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert locate_data(folder=tmp_path) == (data.MEASURED, tmp_path / "measured")
    monkeypatch.setattr(data, "MEASURED", tmp_path / "nowhere")
    with pytest.raises(DataError, match="no folder with tile/ or layout/ in it"):
        locate_data(folder=tmp_path)


def test_a_split_is_all_its_graphs_by_name(root):
    tiles = read_split(root, "tile:xla", "train")
    assert [g.graph_id for g in tiles] == [p.stem for p in npz_paths(root, "tile:xla", "train")]
    (path, *_), (graph, *_) = npz_paths(root, "layout:nlp:random", "valid"), read_split(root, "layout:nlp:random",
                                                                                       "valid", k_hops=1)
    expected = prune(read_layout(path), 1)
    assert all(np.array_equal(a, b) for a, b in zip(arrays_of(graph), arrays_of(expected), strict=True))
    assert len(graph.node_feat) < len(read_layout(path).node_feat)
    assert len(read_split(root, "tile:xla", "train", k_hops=1)) == len(tiles)


@pytest.mark.parametrize("collection", ["tile:xla", "layout:xla:random"])
def test_a_damaged_file_is_reported_and_the_others_go_on(root, collection, tmp_path, capsys):
    first, second, *others = npz_paths(root, collection, "train")
    first.write_bytes(first.read_bytes()[:-50])
    rewrite(second, node_opcode=np.zeros(3, np.int64))
    problems = tmp_path / "run" / "problems.jsonl"
    graphs = read_split(root, collection, "train", problems)
    assert [g.graph_id for g in graphs] == [p.stem for p in others] and others
    reported = [json.loads(line) for line in problems.read_text().splitlines()]
    assert [set(entry) for entry in reported] == [{"path", "reason"}] * 2
    assert [entry["path"] for entry in reported] == [str(first), str(second)]
    for path, entry in zip((first, second), reported):
        with pytest.raises(DataError) as error:
            (read_tile if collection == "tile:xla" else read_layout)(path)
        assert entry["reason"] == str(error.value)
    assert capsys.readouterr().out == "".join(f"left out: {entry['reason']}\n" for entry in reported)
    read_split(root, collection, "train")                                   # only printed
    assert len(problems.read_text().splitlines()) == 2


def with_own_names(root):
    """Give the test files names of their own, so that none of them is a stranger in the data set."""
    for path in [*root.rglob("test/*.npz")]:
        path.rename(path.with_name(f"own-{path.name}"))


@pytest.mark.parametrize("collection", ["tile:xla", "layout:xla:random"])
def test_a_test_file_is_no_file_to_learn_from_and_a_copy_of_one_no_row(root, collection, tmp_path):
    with_own_names(root)
    (test, *others), valid = (npz_paths(root, collection, split) for split in ("test", "valid"))
    rewrite(test, config_runtime=0 * np.load(test)["config_runtime"])
    shutil.copy(test, valid[0])
    assert len(read_split(root, collection, "valid", tmp_path / "problems.jsonl")) == len(valid) - 1
    copy = test.with_name(f"{test.stem} (1).npz")
    shutil.copy(test, copy)
    assert len(read_split(root, collection, "test", tmp_path / "problems.jsonl")) == len(others) + 1
    assert [json.loads(line)["reason"] for line in (tmp_path / "problems.jsonl").read_text().splitlines()] == [
        f"{valid[0]}: config_runtime is 0 throughout, the placeholder of test files; expected measured runtimes in "
        "valid",
        f"{copy}: its name cannot stand in a submission; expected no space, comma, colon, semicolon or quote; if "
        "it is a copy, delete it"]


@pytest.mark.parametrize("name, splits, words", [
    ("a:b", ("valid",), "its name holds a colon, which separates the collection from the name in predictions; rename"),
    ("a:b", ("test",), "its name cannot stand in a submission; expected no space, comma, colon, semicolon or quote"),
    ("a\udcffb", ("train", "valid", "test"), "its name is not UTF-8; rename the file")])
def test_a_file_whose_name_would_stop_a_later_step_is_left_out(root, tmp_path, capsys, name, splits, words):
    with_own_names(root)
    for split in splits:
        good = npz_paths(root, "layout:xla:random", split)
        try:
            shutil.copy(good[0], good[0].with_name(f"{name}.npz"))
        except OSError:
            pytest.skip("this file system has no such names")
        graphs = read_split(root, "layout:xla:random", split, tmp_path / "problems.jsonl")
        assert [g.graph_id for g in graphs] == [p.stem for p in good]
        shown = f"{good[0].parent / name}.npz".replace("\udcff", r"\udcff")
        (told,) = [json.loads(line) for line in (tmp_path / "problems.jsonl").read_text().splitlines()]
        assert told["path"] == shown and told["reason"].startswith(f"{shown}: {words}")
        assert capsys.readouterr().out == f"left out: {told['reason']}\n"          # which stdout can encode
        (tmp_path / "problems.jsonl").unlink()


COUNTERPARTS = {
    "layout:xla:random": [["layout:xla:default"], ["layout:nlp:random", "layout:nlp:default"]],
    "layout:xla:default": [["layout:xla:random"], ["layout:nlp:default", "layout:nlp:random"]],
    "layout:nlp:random": [["layout:nlp:default"], ["layout:xla:random", "layout:xla:default"]],
    "layout:nlp:default": [["layout:nlp:random"], ["layout:xla:default", "layout:xla:random"]],
}


def spoil(root, collection, how):
    """Leave nothing to learn from in the training files of a collection."""
    for path in npz_paths(root, collection, "train"):
        if how == "absent":
            path.unlink()
        else:
            with np.load(path) as npz:
                runtime = npz["config_runtime"]
            rewrite(path, config_runtime=np.full_like(runtime, 7))


@pytest.mark.parametrize("collection, how", [("layout:xla:random", "absent"), ("layout:nlp:default", "equal runtimes")])
def test_a_collection_without_anything_to_learn_is_trained_on_its_counterparts(root, collection, how, capsys, tmp_path):
    (near,), far = COUNTERPARTS[collection]
    spoil(root, collection, how)
    graphs, trained_on = training_graphs(root, collection, tmp_path / "problems.jsonl", k_hops=1)
    assert trained_on == [near]
    assert [g.graph_id for g in graphs] == [p.stem for p in npz_paths(root, near, "train")]
    out = capsys.readouterr().out
    assert f"{collection}: no training graph with two different configurations and runtimes\n" in out
    assert out.endswith(f"{collection} is therefore trained on {len(graphs)} graphs of {near}\n")

    spoil(root, near, how)
    graphs, trained_on = training_graphs(root, collection)
    assert trained_on == far
    assert [g.graph_id for g in graphs] == [p.stem for c in far for p in npz_paths(root, c, "train")]
    assert all(len(g.config_runtime) == len(np.unique(g.config_codes, axis=0)) for g in graphs)

    spoil(root, far[0], how)
    assert training_graphs(root, collection)[1] == far[1:]
    spoil(root, far[1], how)
    assert training_graphs(root, collection) == ([], [])


@pytest.mark.parametrize("collection", LAYOUTS)
def test_counterparts_come_in_the_documented_order(root, collection):
    (near,), far = COUNTERPARTS[collection]
    spoil(root, collection, "absent")
    assert training_graphs(root, collection)[1] == [near]
    spoil(root, near, "absent")
    assert training_graphs(root, collection)[1] == far


def test_what_teaches(root, tiny_hidden):
    tile = read_split(root, "tile:xla", "train")[0]
    ones = np.ones_like(tile.config_runtime)
    assert teaches(tile) is True
    assert not teaches(tile._replace(config_runtime=0 * ones))
    assert not teaches(tile._replace(config_runtime=tile.config_runtime_normalizers)), "all as fast as the default"
    assert not teaches(tile._replace(config_feat=np.ones_like(tile.config_feat)))
    assert not any(map(teaches, read_split(tiny_hidden, "tile:xla", "test")))
    assert not any(map(teaches, read_split(tiny_hidden, "layout:xla:random", "test"))), "placeholders teach nothing"


def test_the_content_of_a_graph_is_all_its_arrays_and_not_its_file(root):
    path = npz_paths(root, "layout:xla:random", "train")[0]
    graph, file = read_layout(path), path.read_bytes()
    rewrite(path)                                                        # the same arrays, without compression
    assert content_digest(read_layout(path)) == content_digest(graph) and path.read_bytes() != file
    others = [graph._replace(graph_id="other"), graph._replace(config_runtime=graph.config_runtime[::-1]),
              graph._replace(config_runtime=graph.config_runtime.astype(np.int32))]
    for name in ("node_feat", "node_opcode", "edge_index", "config_codes", "code_rows", "config_runtime"):
        array = getattr(graph, name).copy()
        array.flat[0] += 1
        others.append(graph._replace(**{name: array}))
    assert len({content_digest(one) for one in [graph, *others]}) == 10


def test_data_that_changed_in_content_alone_are_other_data_until_they_are_restored(root, tmp_path):
    def digests():
        place = open_data(root, folder=tmp_path)
        return {(c, split): data_digest(place, c, split) for c in COLLECTIONS for split in SPLITS}
    before, path = digests(), npz_paths(root, "layout:nlp:random", "train")[0]
    with np.load(path) as npz:
        runtime = npz["config_runtime"]
    rewrite(path, config_runtime=runtime[::-1])
    after = digests()
    assert [key for key in before if before[key] != after[key]] == [("layout:nlp:random", "train")]
    rewrite(path, config_runtime=runtime)                                # in another file than before
    assert digests() == before


@pytest.mark.parametrize("prepared", [False, True])
def test_results_of_data_that_changed_while_a_step_ran_are_refused(root, tmp_path, prepared):
    c = "layout:nlp:random"
    run = Run("04_train_layout", root, tmp_path / "out", collections=["tile:xla", c])
    path = npz_paths(run.root if prepared else root, c, "test")[0]
    with np.load(path) as npz:
        name = "config_codes" if prepared else "node_config_feat"
        changed = npz[name][::-1]
    rewrite(path, **{name: changed})
    if not prepared:
        prepare(root, run.root, progress=False)                          # what another run does meanwhile
    with pytest.raises(DataError, match=f"{c} test changed while 04_train_layout ran; run it again"):
        run.publish([Prediction(c, "a_seed0", "test", {f"{c}:a": np.arange(3.0)})], [c], [c])
    assert run.section("04_train_layout", c) is None
    run.publish([Prediction("tile:xla", "a_seed0", "test", {"tile:xla:a": np.arange(3.0)})], (), ["tile:xla"])
    assert run.costs("04_train_layout", ["tile:xla", c]).keys() == {"tile:xla:a"}


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_runtimes_of_test_graphs_are_known_only_beside_the_table_of_measured_programs(root, tiny_hidden, collection):
    truth, paths = known_truth(root, collection), npz_paths(root, collection, "test")
    assert list(truth) == [f"{collection}:{path.stem}" for path in paths]
    for path, found in zip(paths, truth.values()):
        with np.load(path) as npz:
            expected = npz["config_runtime"] / npz.get("config_runtime_normalizers", 1)
        assert found.tolist() == expected.tolist() and len(np.unique(found)) > 1
    assert known_truth(tiny_hidden / "npz", collection) == {}
