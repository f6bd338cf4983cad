"""The data of a run: found and prepared, bad files reported and left out, changes noticed."""
import json
import pickle
import re
import shutil

import numpy as np
import pytest
from drawn import arrays_of, rewrite
from scipy.stats import kendalltau

from kit.data import COLLECTIONS, SPLITS, DataError, content_digest, npz_paths, read_layout, read_tile, teaches
from kit.noise import noise_ceiling
from kit.prepare import prepare
from kit.prune import drawn_rows, prune
from lab.data import (
    Data,
    data_digest,
    graphs,
    left_out,
    locate_data,
    open_data,
    read_split,
    source,
    source_of,
    wanted,
)
from lab.predictions import Predictions
from lab.run import Run

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
    for there, said in ((True, "measured programs"), (False, "real files"), (True, "measured programs")):
        table.write_text("collection\n") if there else table.unlink()
        place = open_data(root, "tile:xla", tmp_path / "data")
        assert source_of(place) == source_of(root) == source_of(tmp_path / "link") == said
        assert bool(Data(place).runtimes("tile:xla", "test")) == there
        monkeypatch.chdir(root)
        assert source_of(".") == said
        digests.setdefault(said, set()).add(data_digest(place, "tile:xla", "test"))
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
    monkeypatch.setattr(source, "DRIVE", tmp_path)
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
    assert locate_data(folder=tmp_path) == (source.MEASURED, tmp_path / "measured")
    monkeypatch.setattr(source, "MEASURED", tmp_path / "nowhere")
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
    data = Data(root, collection, k_hops=1, problems=tmp_path / "problems.jsonl")
    assert data.teachers(collection) == [near] and data.taught == [collection]
    assert [g.graph_id for g in data.train[collection]] == [p.stem for p in npz_paths(root, near, "train")]
    out = capsys.readouterr().out
    assert f"{collection}: no training graph with two different configurations and runtimes\n" in out
    assert out.endswith(f"{collection} is trained on {len(data.train[collection])} graphs of {near}\n")

    spoil(root, near, how)
    data = Data(root, collection)
    assert data.teachers(collection) == far
    assert [g.graph_id for g in data.train[collection]] == [p.stem for c in far for p in npz_paths(root, c, "train")]
    assert all(len(g.config_runtime) == len(np.unique(g.config_codes, axis=0)) for g in data.train[collection])

    spoil(root, far[0], how)
    assert Data(root).teachers(collection) == far[1:]
    spoil(root, far[1], how)
    data = Data(root, LAYOUTS)
    assert data.teachers(collection) == data.train[collection] == data.taught == []


@pytest.mark.parametrize("collection", LAYOUTS)
def test_counterparts_come_in_the_documented_order(root, collection):
    (near,), far = COUNTERPARTS[collection]
    spoil(root, collection, "absent")
    assert Data(root).teachers(collection) == [near]
    spoil(root, near, "absent")
    assert Data(root).teachers(collection) == far


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


def predictions(run, collection):
    """Costs of one graph."""
    made = Predictions(run.data(collection))
    made.put(collection, "a", 0, {"test": {f"{collection}:a": np.arange(3.0)}}, trains_on=(collection,))
    return made


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
        run.publish(predictions(run, c))
    assert run.section("04_train_layout", c) is None
    run.publish(predictions(run, "tile:xla"))
    assert run.costs("04_train_layout", ["tile:xla", c]).keys() == {"tile:xla:a"}


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_runtimes_of_test_graphs_are_known_only_beside_the_table_of_measured_programs(root, tiny_hidden, collection):
    data, paths = Data(root, collection), npz_paths(root, collection, "test")
    truth = data.runtimes(collection, "test")
    assert list(truth) == [f"{collection}:{path.stem}" for path in paths]
    for path, found in zip(paths, truth.values()):
        with np.load(path) as npz:
            expected = npz["config_runtime"] / npz.get("config_runtime_normalizers", 1)
        assert found.tolist() == expected.tolist() and len(np.unique(found)) > 1
    assert data.scored == "test" and data.truth(collection).keys() == truth.keys()
    hidden = Data(tiny_hidden / "npz", collection)
    assert hidden.runtimes(collection, "test") == {} and hidden.scored == "valid"
    assert hidden.truth(collection).keys() == hidden.named(collection, "valid").keys()
    assert all(len(np.unique(runtime)) > 1 for runtime in hidden.truth(collection).values())


# --- what a notebook or a run reads


RANDOM = "layout:xla:random"


@pytest.fixture
def asked(monkeypatch):
    """The (collection, split) of each split that is read."""
    found = []

    def read(data_root, collection, split, problems=None, k_hops=None):
        found.append((collection, split))
        return read_split(data_root, collection, split, problems, k_hops)
    monkeypatch.setattr(graphs, "read_split", read)
    return found


def test_each_split_is_read_once_when_it_is_first_asked_for(tiny_sample, asked):
    data = Data(tiny_sample / "npz", LAYOUTS, k_hops=1)
    assert asked == []
    assert data.train[RANDOM] is data.train[RANDOM] and asked == [(RANDOM, "train")]
    for _ in range(2):
        data.table()
        assert all(data.truth(c) for c in LAYOUTS) and data.ceilings(RANDOM)
        data.runtimes(RANDOM, "valid"), data.teachers(RANDOM), data.graphs([RANDOM]), data.named(RANDOM, "test")
    assert sorted(asked) == sorted((c, split) for c in LAYOUTS for split in SPLITS)


def test_a_collection_that_stands_in_is_read_once_for_all(root, asked):
    spoil(root, RANDOM, "absent")
    data = Data(root, LAYOUTS)
    assert data.train[RANDOM] == data.train["layout:xla:default"] and len(data.train[RANDOM]) > 1
    assert asked == [(RANDOM, "train"), ("layout:xla:default", "train")]


@pytest.mark.parametrize("collection", ["tile:xla", RANDOM])
def test_a_last_run_learns_from_validation_graphs_and_has_none_to_validate_with(tiny_sample, collection):
    usual, last = (Data(tiny_sample / "npz", collection, use_valid=use_valid) for use_valid in (False, True))
    valid = [graph.graph_id for graph in usual.valid[collection]]
    learned = [graph.graph_id for graph in usual.train[collection]]
    assert valid and not {*valid} & {*learned}
    assert last.valid[collection] == [] and last.runtimes(collection, "valid") == {}
    assert [graph.graph_id for graph in last.train[collection]] == learned + valid
    assert [graph.graph_id for graph in last.test[collection]] == [graph.graph_id for graph in usual.test[collection]]


def test_graphs_to_learn_from_have_each_configuration_once_and_graphs_to_rank_have_the_rows_of_their_files(
        root, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_CONFIGS", 40)
    for split in SPLITS:
        path = npz_paths(root, RANDOM, split)[0]
        with np.load(path) as npz:
            rows = np.r_[:len(npz["config_runtime"]), :30]                   # 30 configurations are there twice
            changed = {name: npz[name][rows] for name in ("node_config_feat", "config_runtime")}
        rewrite(path, **changed)
    data, stem = Data(root, RANDOM, k_hops=1), {split: npz_paths(root, RANDOM, split)[0].stem for split in SPLITS}
    learned, = (graph for graph in data.train[RANDOM] if graph.graph_id == stem["train"])
    assert len(learned.config_codes) == len(np.unique(learned.config_codes, axis=0))
    assert [len(data.named(RANDOM, split)) for split in SPLITS] == [5, 2, 2]
    for split in SPLITS:
        whole, = (g for g in read_split(root, RANDOM, split, k_hops=1) if g.graph_id == stem[split])
        ranked = data.named(RANDOM, split)[f"{RANDOM}:{stem[split]}"]
        rows = np.arange(len(whole.config_runtime)) if split == "test" else drawn_rows(len(whole.config_runtime), 40)
        assert (ranked.config_codes == whole.config_codes[rows]).all()
        assert (ranked.config_runtime == whole.config_runtime[rows]).all()
        known = data.runtimes(RANDOM, split)[f"{RANDOM}:{stem[split]}"]
        assert (known == ranked.config_runtime).all()


def test_a_ceiling_is_that_of_the_repeated_rows_of_a_file_and_tiles_have_none(tiny_sample):
    data = Data(tiny_sample / "npz", ["tile:xla", RANDOM], k_hops=1)
    assert data.ceilings("tile:xla") == {}
    found, repeated = data.ceilings(RANDOM), []
    for path in npz_paths(tiny_sample / "npz", RANDOM, "test"):
        with np.load(path) as npz:
            rows, runtime = [row.tobytes() for row in npz["node_config_feat"]], npz["config_runtime"]
        number = {row: place for place, row in enumerate(dict.fromkeys(rows))}
        ids = np.array([number[row] for row in rows])

        places = [np.flatnonzero(ids == i) for i in number.values()]

        def once(cost, measured, places=places):
            return kendalltau([cost[own[0]] for own in places], [measured[own].mean() for own in places]).statistic
        slow = noise_ceiling(runtime, ids, once, draws=20).mean
        assert found.pop(f"{RANDOM}:{path.stem}") == pytest.approx(slow, nan_ok=True)
        repeated.append(len(number) < len(rows))
    assert found == {} and any(repeated)


def test_a_table_says_what_is_learned_from_and_what_is_ranked(root):
    spoil(root, RANDOM, "absent")
    data = Data(root, ["tile:xla", RANDOM, "layout:nlp:default"], k_hops=1)
    table = data.table().set_index("collection")
    assert [*table.index] == data.collections and {*table["data"]} == {"measured programs"}
    for collection, near in (("tile:xla", "tile:xla"), (RANDOM, "layout:xla:default"),
                             ("layout:nlp:default", "layout:nlp:default")):
        row, taught = table.loc[collection], data.train[collection]
        assert row["learns from"] == near and row["graphs"] == len(taught) == len(npz_paths(root, near, "train"))
        assert row["configurations"] == sum(len(graph.config_runtime) for graph in taught)
        assert row["median nodes"] == np.median([len(graph.node_feat) for graph in taught])
        assert row["validation graphs"] == len(npz_paths(root, collection, "valid"))
        assert row["test graphs"] == len(npz_paths(root, collection, "test"))
    for collection in LAYOUTS:
        spoil(root, collection, "absent")
    row, = Data(root, RANDOM).table().to_dict("records")
    assert (row["learns from"], row["graphs"], row["test graphs"]) == ("", 0, 2) and np.isnan(row["median nodes"])


def test_what_was_read_is_sent_to_a_process_that_trains_and_the_rest_is_read_there(root):
    data = Data(root, RANDOM, k_hops=1)
    before = data.train[RANDOM], data.truth(RANDOM)
    sent = pickle.loads(pickle.dumps(data))
    valid = [graph.graph_id for graph in sent.valid[RANDOM]]
    assert valid == [path.stem for path in npz_paths(root, RANDOM, "valid")]
    shutil.rmtree(root)
    sent = pickle.loads(pickle.dumps(data))
    assert [*map(content_digest, sent.train[RANDOM])] == [*map(content_digest, before[0])]
    for name, runtime in sent.truth(RANDOM).items():
        np.testing.assert_array_equal(runtime, before[1][name])
    assert sent.teachers(RANDOM) == [RANDOM] and sent.graphs([RANDOM]) == sent.train[RANDOM]


def test_a_file_that_cannot_be_used_is_a_problem_of_the_run_whoever_asks_first(root, tmp_path):
    problems, damaged = tmp_path / "problems.jsonl", [npz_paths(root, RANDOM, split)[0] for split in SPLITS]
    for path in damaged:
        path.write_bytes(b"PK")
    data = Data(root, RANDOM, problems=problems)
    assert len(data.train[RANDOM]) == 2 and len(data.valid[RANDOM]) == len(data.test[RANDOM]) == 1
    assert [json.loads(line)["path"] for line in problems.read_text().splitlines()] == [*map(str, damaged)]


def test_collections_without_any_file_are_missing_and_those_with_damaged_files_alone_are_not(root, tmp_path):
    for collection in ("layout:nlp:random", "layout:nlp:default"):
        shutil.rmtree(root.joinpath(*collection.split(":")))
    only = root / "layout" / "nlp" / "default" / "train" / "a.npz"
    only.parent.mkdir(parents=True)
    only.write_bytes(b"PK")
    data = Data(open_data(root, folder=tmp_path / "data"))
    assert data.missing() == ["layout:nlp:random"]
    (name, _), = data.left_out()
    assert name == "layout/nlp/default/train/a.npz"
