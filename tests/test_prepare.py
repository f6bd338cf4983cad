"""A prepared folder holds what the reader reads, in less space, and nothing stale, whatever happens on the way."""
import contextlib
import itertools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from disks import fill, mounted
from test_data import DIGITS, assert_factored, layout_arrays, npy, patched, tile_arrays, zipped

import kit.factored
import kit.prepare
from kit.agreement import find_meetings
from kit.data import (
    CATALOGUE,
    COLLECTIONS,
    OPCODES,
    SPLITS,
    DataError,
    content_digest,
    dense_configs,
    npz_paths,
    read_layout,
    read_tile,
    target,
)
from kit.factored import read_graph, structure_of
from kit.files import locked
from kit.prepare import COLUMNS, content_digests, open_prepared, prepare, prepared_path

LAYOUT = "layout:xla:random"
SENTENCE = "cannot be written ({}); make room, then run it again"


@pytest.fixture(scope="module")
def prepared(tiny_sample, tmp_path_factory):
    return prepare(tiny_sample, tmp_path_factory.mktemp("prepared") / "here", progress=False)


def tree(folder):
    """{relative path: bytes, or the place that a link leads to}."""
    return {str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
            for path in sorted(Path(folder).rglob("*")) if path.is_symlink() or path.is_file()}


def results(folder):
    """The files of a prepared folder, without the lock."""
    return {name: data for name, data in tree(folder).items() if not name.startswith(".prepare.lock")}


def write(root, collection, split, name, arrays):
    path = prepared_path(root, collection, split, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    return path


def small(root):
    """A data set of nine files; one is not as it should be."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(("tied groups", "groups of one option", "every node its own group")):
        write(root, LAYOUT, ("train", "train", "valid")[number], f"g{number}", layout_arrays(DIGITS[name]))
    write(root, LAYOUT, "test", "t", layout_arrays(DIGITS["one configuration"]) | {"config_runtime": np.zeros(1, int)})
    write(root, "layout:nlp:default", "train", "bad", layout_arrays(DIGITS["tied groups"] * 2))
    for number, split in enumerate(("train", "train", "valid")):
        write(root, "tile:xla", split, f"k_-{number}", tile_arrays(rng, 6 + number))
    placeholders = {"config_runtime": np.zeros(5, int), "config_runtime_normalizers": np.ones(5, int)}
    write(root, "tile:xla", "test", "k_-3", tile_arrays(rng, 5) | placeholders)
    return root


@pytest.fixture
def data(tmp_path):
    return small(tmp_path / "data")


def quietly(root, folder, collections=None, processes=1):
    return prepare(root, folder, collections, processes, progress=False)


# --- the same graphs


def assert_equal_graphs(one, other):
    for name, value in one._asdict().items():
        if isinstance(value, np.ndarray):
            found = getattr(other, name)
            assert (found.dtype, found.shape) == (value.dtype, value.shape), name
            assert found.tobytes() == value.tobytes(), name


def assert_equals_its_source(path, collection, graph):
    """A prepared graph is that of the reader, which tests/test_data.py compares with NumPy's own."""
    read = read_tile(path) if collection == "tile:xla" else read_layout(path)
    assert graph.graph_id == path.stem
    assert_equal_graphs(read, graph)
    if collection != "tile:xla":
        for one, other in zip(find_meetings(read), graph.meetings):
            assert one.dtype == other.dtype and np.array_equal(one, other)


def test_prepared_arrays_are_those_of_the_reader_bit_for_bit(tiny_sample, prepared):
    for collection, split in itertools.product(COLLECTIONS, SPLITS):
        paths, graphs = npz_paths(tiny_sample, collection, split), list(prepared.graphs(collection, split))
        assert [g.graph_id for g in graphs] == [p.stem for p in paths] and paths
        for path, graph in zip(paths, graphs):
            assert_equals_its_source(path, collection, graph)
            if collection != "tile:xla":
                index = np.arange(len(graph.config_runtime))
                assert (dense_configs(graph, index) == np.load(path)["node_config_feat"]).all()


def test_every_real_file_is_prepared_exactly_and_in_a_third_of_its_space(real_data, tmp_path):
    prepared = quietly(real_data / "npz", tmp_path / "here")
    stored, taken = (prepared.catalogue[name].sum() for name in ("source_bytes", "prepared_bytes"))
    assert len(prepared.catalogue) > 30 and prepared.catalogue["reason"].null_count() == len(prepared.catalogue)
    assert taken == sum(path.stat().st_size for path in (tmp_path / "here").rglob("*.npz")) < stored / 3
    for row in prepared.catalogue.iter_rows(named=True):
        place = row["collection"], row["split"], row["name"]
        assert_equals_its_source(prepared_path(real_data / "npz", *place), row["collection"], prepared.graph(*place))


def odd_graphs():
    """Layout files with all that the prepared form treats specially."""
    rng = np.random.default_rng(0)
    for name, digits in DIGITS.items():
        yield name, layout_arrays(digits, rng)
    whole = layout_arrays(DIGITS["tied groups"], rng)
    yield "minus zero", whole | {"node_feat": np.where(rng.random((15, 140)) < 0.5, -0.0, 0).astype(np.float32)}
    yield "equal nodes", whole | {"node_feat": whole["node_feat"][[3] * 15]}
    yield "no edge", whole | {"edge_index": np.zeros((0, 2), int)}
    yield "edges far apart", whole | {"edge_index": np.array([[14, 0], [0, 14], [14, 14], [0, 0]])}
    yield "long runtimes", whole | {"config_runtime": np.arange(2**63 - 60, 2**63 - 1)[[0] * 60]}


@pytest.mark.parametrize("arrays", dict(odd_graphs()).values(), ids=dict(odd_graphs()))
def test_odd_graphs_are_prepared_exactly(tmp_path, arrays):
    path = write(tmp_path / "data", LAYOUT, "test", "odd", arrays)
    prepared = quietly(tmp_path / "data", tmp_path / "here")
    assert_equals_its_source(path, LAYOUT, prepared.graph(LAYOUT, "test", "odd"))
    again = read_layout(prepared_path(tmp_path / "here", LAYOUT, "test", "odd"))
    assert_equal_graphs(read_layout(path), again)
    assert_factored(again, arrays["node_config_feat"])


def test_odd_tile_files_are_prepared_exactly(tmp_path):
    rng = np.random.default_rng(0)
    for feature in (-0.0, 0.5, 2.0**24, 2.0**60, -3.0):
        arrays = tile_arrays(rng)
        arrays["config_feat"] = np.where(rng.random((6, 24)) < 0.5, feature, 1).astype(np.float32)
        path = write(tmp_path / "data", "tile:xla", "test", f"k{feature}", arrays)
        prepared = quietly(tmp_path / "data", tmp_path / "here")
        assert_equals_its_source(path, "tile:xla", prepared.graph("tile:xla", "test", path.stem))


def test_a_prepared_folder_is_a_data_root(tiny_sample, prepared):
    path = npz_paths(tiny_sample, LAYOUT, "valid")[0]
    again = npz_paths(prepared.folder, LAYOUT, "valid")[0]
    assert_equal_graphs(read_layout(path), read_layout(again))
    assert open_prepared(prepared.folder).catalogue.equals(prepared.catalogue)


def test_the_catalogue_says_what_plain_counting_says(tiny_sample, prepared):
    assert dict(prepared.catalogue.schema) == COLUMNS
    for row in prepared.catalogue.iter_rows(named=True):
        path = prepared_path(tiny_sample / "npz", row["collection"], row["split"], row["name"])
        arrays = dict(np.load(path))
        layout = "node_config_feat" in arrays
        configs = arrays["node_config_feat"] if layout else arrays["config_feat"]
        count = list(np.unique(configs.reshape(len(configs), -1), axis=0, return_counts=True)[1])
        expected = {"source_bytes": path.stat().st_size, "nodes": len(arrays["node_feat"]), "reason": None,
                    "edges": len(arrays["edge_index"]), "configs": len(configs), "distinct": len(count),
                    "repeats": max(count), "opcodes": [(arrays["node_opcode"] == i).sum() for i in range(121)],
                    "configurable": len(arrays["node_config_ids"]) if layout else None}
        if row["split"] == "test":
            expected |= dict.fromkeys(("shortest", "median", "longest", "noise", "ceiling"))
        else:
            runtime = arrays["config_runtime"] / arrays.get("config_runtime_normalizers", 1)
            expected |= {"shortest": runtime.min(), "median": np.median(runtime), "longest": runtime.max()}
        assert expected.items() <= row.items(), {name for name in expected if row[name] != expected[name]}
        if layout:
            graph = read_layout(path)
            assert row["groups"] == len(row["options"]) == len(set(graph.node_group.tolist()))
            assert row["options"] == [len({*codes}) for codes in graph.config_codes.T.tolist()]


def test_the_catalogue_compares_the_first_row_with_the_others(prepared):
    for row in prepared.catalogue.filter(pl.col("first_beats").is_not_null()).iter_rows(named=True):
        first, *others = target(prepared.graph(row["collection"], row["split"], row["name"])).tolist()
        beaten = [1 if first < other else 0.5 if first == other else 0 for other in others]
        assert row["first_beats"] == pytest.approx(sum(beaten) / len(beaten), abs=1e-12)
    measured = prepared.catalogue.filter(pl.col("split") != "test")
    assert measured["first_beats"].null_count() == 0 and measured["first_beats"].is_between(0, 1).all()


def test_the_catalogue_counts_the_nodes_of_each_group_and_the_configurable_operations(prepared):
    for row in prepared.catalogue.filter(pl.col("collection") != "tile:xla").iter_rows(named=True):
        graph = prepared.graph(row["collection"], row["split"], row["name"])
        assert row["group_nodes"] == [(graph.node_group == group).sum() for group in range(row["groups"])]
        assert row["structure"] == structure_of(graph) and len(row["structure"]) == row["groups"]
        chosen = [int(graph.node_opcode[node]) for node in graph.node_config_ids]
        assert row["configurable_opcodes"] == [chosen.count(opcode) for opcode in range(OPCODES)]


# --- all configurations


def slow_configurations(prepared):
    """The table of all configurations as a list of tuples, one row after another."""
    for row in prepared.catalogue.filter(pl.col("reason").is_null()).iter_rows(named=True):
        place = row["collection"], row["split"], row["name"]
        graph = prepared.graph(*place)
        configs = graph.config_feat if row["collection"] == "tile:xla" else graph.config_codes
        seen, runtime = {}, target(graph).tolist()
        for number, config in enumerate(map(tuple, configs.tolist())):
            seen.setdefault(config, len(seen))
            yield *place, number, seen[config], None if row["split"] == "test" else float(runtime[number])


@pytest.fixture
def read_files(monkeypatch):
    """Names of the prepared files that are read."""
    names, opened = [], kit.prepare.NpzFile

    def noted(path, *more):
        names.append(Path(path).stem)
        return opened(path, *more)
    for module in (kit.prepare, kit.factored):
        monkeypatch.setattr(module, "NpzFile", noted)
    return names


def test_all_configurations_are_those_of_a_plain_loop_and_files_are_read_as_needed(data, tmp_path, read_files):
    prepared = quietly(data, tmp_path / "here")
    table, rows = prepared.configurations(), list(slow_configurations(prepared))
    everything = [row[2] for row in prepared.catalogue.filter(pl.col("reason").is_null()).select(
        "collection", "split", "name").iter_rows()]
    col = pl.col
    median = float(np.median([row[5] for row in rows if row[5] is not None]))
    for query, expected, needed in (
            (table, rows, everything),
            (table.filter(col("collection") == "tile:xla"), [row for row in rows if row[0] == "tile:xla"],
             ["k_-0", "k_-1", "k_-2", "k_-3"]),
            (table.filter((col("split") == "valid") & (col("runtime") > median)),
             [row for row in rows if row[1] == "valid" and row[5] > median], ["k_-2", "g2"]),
            (table.filter(col("name").is_in(["g0", "g1"])).filter(col("same") == 0).filter(col("split") != "test"),
             [row for row in rows if row[2] in ("g0", "g1") and row[4] == 0], ["g0", "g1"]),
            (table.filter((col("name") == "g1") | (col("runtime") > median)),
             [row for row in rows if row[2] == "g1" or (row[5] or 0) > median], everything),
            (table.filter(col("name") == "nowhere"), [], []),
            (table.head(9), rows[:9], ["k_-0", "k_-1"]),
            (table.head(9).filter(col("config") > 4), [row for row in rows[:9] if row[3] > 4], ["k_-0", "k_-1"]),
            (table.head(9).filter(col("name") == "k_-1"), [row for row in rows[:9] if row[2] == "k_-1"], ["k_-1"]),
            (table.filter(col("config") > 4).head(3), [row for row in rows if row[3] > 4][:3], None),
            (table.filter(col("name") == col("name").max()), [row for row in rows if row[2] == "t"], None)):
        read_files.clear()
        found = query.collect()
        assert list(found.iter_rows()) == expected
        assert dict(found.schema) == dict(table.collect_schema())
        assert needed is None or read_files[:len(needed)] == needed == [*dict.fromkeys(read_files)]


def test_all_configurations_are_counted_projected_and_grouped_without_a_table_of_all(data, tmp_path, read_files):
    prepared = quietly(data, tmp_path / "here")
    table, rows = prepared.configurations(), list(slow_configurations(prepared))
    assert table.select(pl.len()).collect().item() == len(rows) == prepared.catalogue["configs"].sum()
    assert list(table.select("runtime", "name").tail(4).collect().iter_rows()) == [(r[5], r[2]) for r in rows[-4:]]
    read_files.clear()
    best = (table.filter(pl.col("split") == "train").group_by("collection", "name")
            .agg(pl.col("runtime").min(), pl.col("same").n_unique()).collect())
    assert sorted(read_files) == ["g0", "g1", "k_-0", "k_-1"]
    for collection, name, runtime, distinct in best.iter_rows():
        own = [row for row in rows if row[:3] == (collection, "train", name)]
        assert runtime == min(row[5] for row in own) and distinct == len({row[4] for row in own})
    assert len(best) == 4


def test_a_query_that_asks_only_for_runtimes_finds_those_of_the_whole_files(prepared, monkeypatch):
    whole = prepared.configurations().collect()
    monkeypatch.setattr(prepared, "graph", None)                 # no graph is read
    columns = ["collection", "split", "name", "config", "runtime"]
    assert prepared.configurations().select(columns).collect().equals(whole.select(columns))
    slow = prepared.configurations().filter(pl.col("runtime") > 2e6).select("name", "config").collect()
    assert slow.equals(whole.filter(pl.col("runtime") > 2e6).select("name", "config")) and 0 < len(slow) < len(whole)


def test_a_damaged_file_is_left_out_of_all_configurations(data, tmp_path, capsys):
    prepared = quietly(data, tmp_path / "here")
    path = prepared_path(prepared.folder, "tile:xla", "train", "k_-0")
    path.write_bytes(path.read_bytes()[:-100])
    assert "k_-0" not in prepared.configurations().collect()["name"]
    assert f"left out: {path}: not a readable npz file" in capsys.readouterr().out


# --- what changes


def in_child(call, *args, **more):
    """A process of its own that calls a function of this file."""
    code = (f"import sys; sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parent)]!r}; "
            f"import test_prepare; test_prepare.{call}(*{[str(arg) for arg in args]!r})")
    return subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            **more)


def finish(process):
    said, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, ""), said + errors
    return said


def opened_below(root):
    """The names of the npz files below `root` that this process opens from now on, in a list that grows."""
    names = []

    def hook(event, args):
        if event == "open" and str(args[0]).startswith(str(root)) and str(args[0]).endswith(".npz"):
            names.append(Path(args[0]).stem)
    sys.addaudithook(hook)
    return names


def change_one_after_another(root, folder):
    """For a child process: which sources are opened, and which inflated, after each kind of change."""
    root, folder = small(Path(root)), Path(folder)
    opened, inflated, describe = opened_below(root), [], kit.prepare.describe
    kit.prepare.describe = lambda graph, collection: inflated.append(graph.graph_id) or describe(graph, collection)

    def again(now, whole=None, wanted=None):
        """Prepare; `now` must be opened, and `whole` of these inflated."""
        opened.clear(), inflated.clear()
        prepared = quietly(root, folder, wanted)
        assert sorted(opened) == sorted(now), (opened, now)
        assert sorted(inflated) == sorted(now if whole is None else whole), (inflated, now, whole)
        opened.clear()
        return prepared

    def at(name, base=folder, collection=LAYOUT, split="train"):
        return prepared_path(base, collection, split, name)
    good = ["g0", "g1", "g2", "t", "k_-0", "k_-1", "k_-2", "k_-3"]
    again([*good, "bad"], good)
    first = results(folder)
    assert again([]).catalogue.height == 9 and results(folder) == first
    # a source
    write(root, LAYOUT, "train", "g0", layout_arrays(DIGITS["257 codes"]))
    assert again(["g0"]).graph(LAYOUT, "train", "g0").config_codes.shape == (257, 1)
    write(root, LAYOUT, "train", "new", layout_arrays(DIGITS["tied groups"]))
    again(["new"])
    at("new", root).rename(at("newer", root))
    again(["newer"])
    assert not at("new").exists() and at("newer").exists()
    at("newer", root).unlink()
    assert "newer" not in again([]).catalogue["name"] and not at("newer").exists()
    before = at("g1").read_bytes()
    os.utime(at("g1", root), ns=(1, 1))
    assert again(["g1"], []).catalogue.filter(name="g1")["source_changed"].item() == at(
        "g1", root).stat().st_ctime_ns
    assert at("g1").read_bytes() == before
    write(root, "layout:nlp:default", "train", "bad", layout_arrays(DIGITS["tied groups"]))
    assert again(["bad"]).catalogue["reason"].drop_nulls().is_empty()
    at("g1", root).write_bytes(b"PK")
    assert again(["g1"], []).catalogue.filter(name="g1")["reason"].item().startswith("not a readable npz file (Bad")
    assert not at("g1").exists()
    again([])
    write(root, LAYOUT, "train", "g1", layout_arrays(DIGITS["groups of one option"]))
    again(["g1"])
    # a prepared file
    whole = results(folder)
    at("g0").write_bytes(at("g0").read_bytes()[:-30])
    again(["g0"])
    at("g0").write_bytes(b"PK" + at("g0").read_bytes())                  # which zipfile reads all the same
    again(["g0"], [])
    at("g0").unlink()
    again(["g0"])
    at("g0").rename(at("aside"))
    at("g1").rename(at("g0"))
    at("aside").rename(at("g1"))
    again(["g0", "g1"])
    assert results(folder) == whole
    # the catalogue
    good.append("bad")
    table = pl.read_parquet(folder / "catalogue.parquet")
    for damage in (None, b"", b"PAR1" + bytes(99) + b"PAR1", table.drop("noise"), table.cast({"nodes": pl.Int32})):
        (folder / CATALOGUE).unlink()
        if isinstance(damage, bytes):
            (folder / "catalogue.parquet").write_bytes(damage)
        elif damage is not None:
            damage.write_parquet(folder / "catalogue.parquet")
        again(good, [])
        assert results(folder) == whole
    table.with_columns(split=pl.lit("elsewhere")).write_parquet(folder / "catalogue.parquet")
    again(good, [])
    # files of another format, and of collections that are not asked for
    kit.prepare.FORMAT += 1
    again(["k_-0", "k_-1", "k_-2", "k_-3"], wanted=["tile:xla"])
    shutil.rmtree(root / "layout" / "nlp")
    at("k_-0", root, "tile:xla").unlink()
    assert at("bad", folder, "layout:nlp:default").exists() and at("k_-0", folder, "tile:xla").exists()
    again(["g0", "g1", "g2", "t"])
    assert not at("bad", folder, "layout:nlp:default").exists() and not at("k_-0", folder, "tile:xla").exists()


def test_only_what_changed_is_read_again(tmp_path):
    finish(in_child("change_one_after_another", tmp_path / "data", tmp_path / "here"))


def test_other_collections_stay(data, tmp_path):
    quietly(data, tmp_path / "here", ["tile:xla"])
    before = results(tmp_path / "here")
    found = quietly(data, tmp_path / "here", [LAYOUT])
    assert {*found.catalogue["collection"]} == {"tile:xla", LAYOUT}
    assert before.items() - {("catalogue.parquet", before["catalogue.parquet"])} <= results(tmp_path / "here").items()


def test_damage_that_only_reading_shows_is_named_with_its_cure(data, tmp_path, capsys):
    prepared = quietly(data, tmp_path / "here")
    path, before = prepared_path(prepared.folder, LAYOUT, "train", "g0"), results(prepared.folder)
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"config_codes.npy") + 40] ^= 1
    path.write_bytes(whole)
    assert [graph.graph_id for graph in prepared.graphs(LAYOUT, "train")] == ["g1"]
    said = capsys.readouterr().out
    assert said.startswith(f"left out: {path}: config_codes ")
    assert said.endswith("; delete the file and prepare again\n")
    path.write_bytes(b"no zip")
    with pytest.raises(DataError, match="not a readable npz file .*; delete the file and prepare again"):
        prepared.graph(LAYOUT, "train", "g0")
    path.unlink()
    with pytest.raises(DataError, match="not there; prepare it first"):
        prepared.graph(LAYOUT, "train", "g0")
    with pytest.raises(DataError, match="not there; it was left out: node_config_feat holds"):
        prepared.graph("layout:nlp:default", "train", "bad")
    assert len(list(quietly(data, prepared.folder).graphs(LAYOUT, "train"))) == 2 and results(prepared.folder) == before


def test_what_the_system_refuses_to_read_is_tried_again(data, tmp_path, monkeypatch):
    def refuse(source):
        if source.path.stem == "g0":
            raise PermissionError(13, "Permission denied", str(source.path))
        return opened(source)
    opened = kit.prepare._opened
    with monkeypatch.context() as refused:
        refused.setattr(kit.prepare, "_opened", refuse)
        found = quietly(data, tmp_path / "here")
        assert found.catalogue.filter(name="g0")["reason"].to_list() == ["Permission denied"]
        assert [graph.graph_id for graph in found.graphs(LAYOUT, "train")] == ["g1"]
    assert quietly(data, tmp_path / "here").catalogue.filter(name="g0")["reason"].to_list() == [None]


def test_a_reason_written_into_the_catalogue_by_hand_leaves_no_readable_file_out(data, tmp_path):
    folder = quietly(data, tmp_path / "here").folder
    before, catalogue = results(folder), folder / "catalogue.parquet"
    edited = pl.read_parquet(catalogue).with_columns(pl.col("reason").fill_null("not wanted"))
    catalogue.write_bytes(b"")
    edited.write_parquet(catalogue)
    assert results(quietly(data, folder).folder) == before


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything; the form of this fault above is tested")
def test_a_file_without_permission_has_its_reason(data, tmp_path):
    path = prepared_path(data, LAYOUT, "train", "g0")
    path.chmod(0)
    assert quietly(data, tmp_path / "here").catalogue.filter(name="g0")["reason"].to_list() == ["Permission denied"]
    path.chmod(0o644)
    assert quietly(data, tmp_path / "here").catalogue.filter(name="g0")["reason"].to_list() == [None]


# --- odd names


def test_odd_names_are_prepared_or_left_out_with_a_reason(tmp_path):
    data, arrays = tmp_path / "da[t]a", layout_arrays(DIGITS["groups of one option"])
    path = write(data, LAYOUT, "train", "plain", arrays)
    names = ["a:b$c", "new\nline", "a b,c;\"'", "é", "$(x)", "[1]*?", "-x", "a", "a-1", "n" * 221]
    for name in names:
        shutil.copy(path, path.with_name(f"{name}.npz"))
    os.symlink("plain.npz", path.with_name("link.npz"))
    left_out = {"nowhere": "is not a file, or a link to nowhere", "folder": "is not a file, or a link to nowhere",
                "pipe": "is not a file, or a link to nowhere",
                "n" * 222: "its name has 226 bytes, expected at most 225; rename the file",
                "not\\udcffutf": "its name is not UTF-8; rename the file"}
    os.symlink("nothing.npz", path.with_name("nowhere.npz"))
    path.with_name("folder.npz").mkdir()
    os.mkfifo(path.with_name("pipe.npz"))
    for name in (b"n" * 222, b"not\xffutf"):
        shutil.copy(path, os.fsdecode(os.fsencode(path.parent) + b"/" + name + b".npz"))
    folder = tmp_path / "he[r]e\udcff"
    for _ in range(2):
        prepared = quietly(data, folder)
        rows = {row["name"]: row["reason"] for row in prepared.catalogue.iter_rows(named=True)}
        assert rows == dict.fromkeys([*names, "plain", "link"]) | left_out
        order = [f"{row['name']}.npz" for row in prepared.catalogue.iter_rows(named=True)]
        assert order == sorted(order) and [graph.graph_id for graph in prepared.graphs(LAYOUT, "train")] == [
            name[:-4] for name in order if name[:-4] not in left_out]
        assert {*prepared.configurations().collect()["name"]} == rows.keys() - left_out.keys()
    (folder / "layout" / "xla" / "random" / "train" / "foreign\udcff.npz").touch()
    assert open_prepared(folder).catalogue.equals(prepared.catalogue)


# --- folders that are not to be touched


def cases_of_folders(base):
    """{name: (data root, folder, words of the error)}; nothing in `base` may change."""
    data, inside = small(base / "data"), "prepared files would lie among the files of the data set"
    quietly(data, base / "done", ["tile:xla"])
    (base / "notes").mkdir()
    (base / "notes" / "thesis.txt").write_text("years of work")
    (base / "file").write_text("x")
    os.symlink(data / "layout", base / "link")
    for name in ("links", "deeper"):
        shutil.copytree(base / "done", base / name)
    os.symlink(data / "layout", base / "links" / "layout")
    (base / "deeper" / "layout" / "xla" / "random").mkdir(parents=True)
    os.symlink(data / "layout" / "xla" / "random" / "train", base / "deeper" / "layout" / "xla" / "random" / "train")
    (base / "elsewhere").mkdir()
    pl.DataFrame({"title": ["art"]}).write_parquet(base / "elsewhere" / "catalogue.parquet")
    return {"the data": (data, data, inside), "tile": (data, data / "tile", inside),
            "new in tile": (data, data / "tile" / "new" / "er", inside),
            "no layout yet": (data, data / "layout" / "nlp" / "random", inside),
            "link": (data, base / "link" / "new", inside), "links": (data, base / "links", inside),
            "a deeper link": (data, base / "deeper", inside), "a way back": (data, base / "x" / ".." / "data", inside),
            "notes": (data, base / "notes", r"holds other files \(thesis.txt\); prepare into a new folder"),
            "above": (data, base, r"holds other files \(data, deeper, done\); prepare into a new folder"),
            "file": (data, base / "file", "is a file; expected a folder for prepared files"),
            "elsewhere": (data, base / "elsewhere", "parquet: not a catalogue of prepared files; prepare into a new"),
            "prepared": (base / "done", base / "new", "is a prepared folder already; open it with `open_prepared`"),
            "itself": (base / "done", base / "done", "is a prepared folder already; open it with `open_prepared`"),
            "nothing": (base / "notes", base / "new", "no folder with tile/ or layout/ in it")}


def test_a_folder_that_holds_other_things_is_refused_and_not_touched(tmp_path):
    cases = cases_of_folders(tmp_path)
    before = tree(tmp_path), sorted(tmp_path.rglob("*"))
    for data, folder, words in cases.values():
        with pytest.raises(DataError, match=words):
            quietly(data, folder)
    with pytest.raises(DataError, match="no collection 'tile'; there are tile:xla, "):
        quietly(tmp_path / "data", tmp_path / "new", ["tile"])
    assert (tree(tmp_path), sorted(tmp_path.rglob("*"))) == before
    quietly(tmp_path / "data", tmp_path / "data" / "prepared")                       # beside tile/ and layout/


def test_a_folder_without_a_readable_catalogue_is_named(data, tmp_path):
    path = tmp_path / "here" / "catalogue.parquet"
    with pytest.raises(DataError, match=f"{path}: not there; expected a folder that `kit.prepare.prepare` has written"):
        open_prepared(tmp_path / "here")
    quietly(data, tmp_path / "here")
    table = pl.read_parquet(path)
    table.drop("noise").write_parquet(path)
    with pytest.raises(DataError, match="a catalogue of another version of the kit; delete it and prepare again"):
        open_prepared(tmp_path / "here")
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"not a readable catalogue \(.*\); delete it and prepare again"):
        open_prepared(tmp_path / "here")


def test_a_data_set_of_bad_files_alone_is_prepared_all_the_same(tmp_path):
    data = tmp_path / "data"
    write(data, LAYOUT, "test", "bad", {"nothing": np.zeros(3)})
    found = quietly(data, tmp_path / "here")
    assert found.catalogue["reason"][0].startswith("node_feat is missing; there are") and len(found.catalogue) == 1
    assert list(found.graphs(LAYOUT, "test")) == npz_paths(tmp_path / "here", LAYOUT, "test") == []
    assert found.configurations().collect().shape == (0, 6)


def test_a_part_of_a_folder_that_cannot_be_written_to_is_opened(data, tmp_path):
    folder = quietly(data, tmp_path / "here").folder
    shutil.rmtree(folder / "layout" / "xla" / "random")
    with mounted(str(folder), folder, "--bind"):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        found = open_prepared(folder)
        assert found.catalogue["name"].to_list() == ["k_-0", "k_-1", "k_-2", "k_-3", "bad"]
        assert len(list(found.graphs("tile:xla", "train"))) == 2 and list(found.graphs(LAYOUT, "train")) == []
        with pytest.raises(OSError, match="give a folder that can be written to"):
            quietly(data, folder)


# --- stopped on the way


@contextlib.contextmanager
def no_file_beyond(size):
    """Writes past byte `size` of a file fail as on a full disk, but for the number of the error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_on_a_full_disk_one_sentence_says_so_and_it_resumes(data, tmp_path):
    random = np.random.default_rng(0).integers(-1, 6, (40, 30, 18))
    write(data, LAYOUT, "train", "large", layout_arrays(random))
    whole = results(quietly(data, tmp_path / "whole").folder)
    sizes = {name: len(content) for name, content in whole.items()}
    largest = max(size for name, size in sizes.items() if name.endswith(".npz"))
    for size, place in ((0, ".catalogue.unfinished"), (100, ".catalogue.unfinished"), (largest - 1, "layout")):
        with no_file_beyond(size), pytest.raises(OSError, match=re.escape(SENTENCE.format("File too large"))) as error:
            quietly(data, tmp_path / "here")
        assert error.value.filename.startswith(str(tmp_path / "here" / place))
        assert not (tmp_path / "here" / "catalogue.parquet").exists()
    quietly(data, tmp_path / "here")
    assert results(tmp_path / "here") == whole


def test_a_file_system_without_room_is_one_sentence_too(data, tmp_path):
    whole = results(quietly(data, tmp_path / "whole").folder)
    with mounted("tmpfs", tmp_path / "disk", "-t", "tmpfs", "-o", "size=1m") as disk:
        for room in (0, 8192, 20_000, 40_000):
            filler = fill(disk, room)
            with pytest.raises(OSError, match=re.escape(SENTENCE.format("No space left on device"))) as error:
                quietly(data, disk / "here")
            assert error.value.filename.startswith(str(disk / "here"))
            filler.unlink()
        quietly(data, disk / "here")
        assert results(disk / "here") == whole


def take_the_time(root, folder, processes):
    """For a child process: prepare, and print when the work starts and how long it took."""
    print("ready", flush=True)
    start = time.monotonic()
    quietly(Path(root), Path(folder), processes=int(processes))
    print(time.monotonic() - start)


def die_before(root, folder, *numbers):
    """For a child process: forks that prepare and are killed before these of their file operations."""
    for number in map(int, numbers):
        if not (pid := os.fork()):
            left = itertools.count(number - 1, -1)

            def hook(event, args, left=left):
                writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
                if (event in ("os.rename", "os.mkdir", "os.remove") or writes) and next(left) == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            sys.addaudithook(hook)
            quietly(Path(root), Path(folder))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        assert not (Path(folder) / "catalogue.parquet").exists()


@pytest.mark.long
def test_a_preparation_that_is_killed_again_and_again_ends_with_the_same_bytes(data, tmp_path):
    whole = results(quietly(data, tmp_path / "whole").folder)
    moments = np.random.default_rng(0).integers(3, 24, 4).tolist()
    finish(in_child("die_before", data, tmp_path / "here", 1, 2, *moments))
    quietly(data, tmp_path / "here")
    assert results(tmp_path / "here") == whole


def children(pid):
    import psutil
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def assert_gone(processes, seconds=10):
    import psutil
    left = psutil.wait_procs(processes, seconds)[1]
    assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE], "a child outlives its parent"


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_at_drawn_moments_it_ends_with_the_same_bytes_and_without_children(tiny_sample, tmp_path, processes):
    data, rng = tiny_sample / "npz", np.random.default_rng(processes)
    seconds = float(finish(in_child("take_the_time", data, tmp_path / "whole", processes)).split()[1])
    whole, killed = results(tmp_path / "whole"), 0
    for number, moment in enumerate(rng.permutation(np.linspace(0, seconds, 10))):
        process = in_child("take_the_time", data, tmp_path / "here", processes)
        assert process.stdout.readline() == "ready\n"
        time.sleep(moment)
        family = children(process.pid)
        process.kill()
        assert process.wait(60) in (0, -signal.SIGKILL), process.communicate()
        killed += process.returncode != 0
        assert_gone(family)
        process.communicate()
        if number % 3 == 2:
            quietly(data, tmp_path / "here")
            assert results(tmp_path / "here") == whole
            shutil.rmtree(tmp_path / "here")
    quietly(data, tmp_path / "here")
    assert results(tmp_path / "here") == whole and killed >= 5


def hold_on(root, folder, release):
    """For a child process: prepare, but wait at the first source until the file `release` is there."""
    def hook(event, args):
        if event == "open" and str(args[0]).startswith(str(root)) and str(args[0]).endswith(".npz"):
            Path(release).with_name("held").touch()
            while not Path(release).exists():
                time.sleep(0.01)
    sys.addaudithook(hook)
    quietly(Path(root), Path(folder))


@pytest.mark.long
def test_of_two_at_once_the_second_waits_and_then_reads_nothing(data, tmp_path, monkeypatch, capsys):
    whole = results(quietly(data, tmp_path / "whole").folder)
    first = in_child("hold_on", data, tmp_path / "here", tmp_path / "release")
    while not (tmp_path / "held").exists():
        assert first.poll() is None, first.communicate()
        time.sleep(0.02)

    def nap(seconds, sleep=time.sleep):
        (tmp_path / "release").touch()
        sleep(seconds)
    monkeypatch.setattr(kit.prepare.time, "sleep", nap)
    monkeypatch.setattr(kit.prepare, "_opened", None)                    # calling it would fail
    assert len(quietly(data, tmp_path / "here").catalogue) == 9
    words = f"another process prepares it (process {first.pid}); waiting"
    assert capsys.readouterr().out == f"{tmp_path / 'here'}: {words}\n"
    finish(first)
    assert results(tmp_path / "here") == whole


def stop_politely(root, folder):
    """For a child process: prepare with two processes; Ctrl-C ends it with status 130."""
    print("ready", flush=True)
    try:
        quietly(Path(root), Path(folder), processes=2)
        signal.signal(signal.SIGINT, signal.SIG_IGN)                     # what follows is Python's end alone
    except KeyboardInterrupt:
        sys.exit(130)


@pytest.mark.long
def test_ctrl_c_ends_all_processes_without_a_message_and_it_resumes(tiny_sample, tmp_path):
    data = tiny_sample / "npz"
    whole, stopped = results(quietly(data, tmp_path / "whole").folder), 0
    for moment in (0.1, 0.5, 1, 1.5, 2, "first file"):
        process = in_child("stop_politely", data, tmp_path / "here", start_new_session=True)
        assert process.stdout.readline() == "ready\n"
        while moment == "first file" and not any((tmp_path / "here").rglob("*.npz")):
            time.sleep(0.01)
        if moment != "first file":
            time.sleep(moment)
        family = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)                            # what a terminal does
        said, errors = process.communicate(timeout=60)
        assert process.returncode in (0, 130) and errors == said == "", errors
        stopped += process.returncode == 130
        assert_gone(family)
        if moment == "first file":
            quietly(data, tmp_path / "here")
            assert results(tmp_path / "here") == whole
        shutil.rmtree(tmp_path / "here", ignore_errors=True)
    assert stopped >= 3


def lose_a_process(root, folder):
    """For a child process: one of two processes is killed while it works.

    Not while it starts: there, Python 3.11's own pool may print an error beside ours. It counts its processes in one
    thread while another adds them.
    """
    def kill_one():
        while len(own := children(os.getpid())) < 2 or own[-1].cpu_times().user < 0.1:
            time.sleep(0.01)
        own[-1].kill()
    threading.Thread(target=kill_one).start()
    try:
        quietly(Path(root), Path(folder), processes=2)
    except RuntimeError as fault:
        print(fault)


def test_a_process_that_dies_while_another_starts_is_one_sentence(data, tmp_path, monkeypatch):
    def closed(*args):
        raise OSError("handle is closed")
    monkeypatch.setattr("kit.prepare.ProcessPoolExecutor.submit", closed)
    with pytest.raises(RuntimeError, match="^a process that prepared files died; out of memory. What is prepared"):
        quietly(data, tmp_path / "here", processes=2)


@pytest.mark.long
def test_a_process_that_dies_is_one_sentence(data, tmp_path):
    said = finish(in_child("lose_a_process", data, tmp_path / "here"))
    assert said == ("a process that prepared files died; out of memory? What is prepared stays: run it again, with "
                    "fewer `processes`\n")
    quietly(data, tmp_path / "here")


# --- prepared files that lie


def prepared_arrays(tmp_path, source):
    """{name: array} of the prepared form of a layout file."""
    write(tmp_path / "data", LAYOUT, "test", "x", source)
    quietly(tmp_path / "data", tmp_path / "prepared")
    with np.load(prepared_path(tmp_path / "prepared", LAYOUT, "test", "x")) as npz:
        return {name: npz[name] for name in npz.files if name != "about.json"}


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    source = layout_arrays(DIGITS["tied groups"])                        # 15 nodes, 10 configurable, 4 groups, 5 codes
    source["node_config_ids"] = np.arange(10)
    source["edge_index"] = np.array([[1, 0], [2, 1], [3, 11], [11, 2], [14, 5]])
    source["node_feat"][:, 21:] = 1
    return prepared_arrays(tmp_path_factory.mktemp("lies"), source)


def changed(name, place, value, dtype=np.int64):
    def change(arrays):
        array = arrays[name].astype(dtype)
        array[place] = value
        return {name: array}
    return change


MOST = 1 << 28
LIES = {
    "row too far": (changed("node_row", 3, 15), "node_row holds 15, expected at most 14"),
    "row negative": (changed("node_row", 3, -1), "node_row holds -1, expected at least 0"),
    "no row": (lambda a: {"node_rows": a["node_rows"][:0]}, "node_row holds 14, expected at most -1"),
    "no node": (lambda a: {"node_row": a["node_row"][:0]}, f"node_row has 0 nodes, expected 1 to {MOST // 560}"),
    "an opcode too few": (lambda a: {"node_opcode": a["node_opcode"][1:]},
                          "node_opcode has shape (14,), expected (15,)"),
    "code too large": (changed("config_codes", (3, 1), 5, np.uint8), "config_codes holds 5, expected at most 4"),
    "signed codes": (lambda a: {"config_codes": a["config_codes"].astype(np.int8)},
                     "config_codes has dtype int8, expected unsigned integers"),
    "no code": (lambda a: {"code_rows": a["code_rows"][:, :0]}, "config_codes holds 4, expected at most -1"),
    "a configuration too few": (lambda a: {"config_codes": a["config_codes"][1:]},
                                "config_codes has shape (59, 4), expected (60, None)"),
    "digit too large": (changed("code_rows", (0, 0, 0), 6, np.int8), "code_rows holds 6, expected at most 5"),
    "17 digits": (lambda a: {"code_rows": a["code_rows"][..., 1:]},
                  "code_rows has shape (10, 5, 17), expected (10, None, 18)"),
    "group too far": (changed("node_group", 3, 4), "node_group holds 4, expected at most 3"),
    "group negative": (changed("node_group", 3, -1), "node_group holds -1, expected at least 0"),
    "a group without nodes": (lambda a: {"node_group": np.minimum(a["node_group"], 2)},
                              "node_group does not number 4 groups by their first nodes"),
    "groups out of order": (lambda a: {"node_group": 3 - a["node_group"]},
                            "node_group does not number 4 groups by their first nodes"),
    "no group": (lambda a: {"config_codes": a["config_codes"][:, :0]}, "node_group holds 3, expected at most -1"),
    "edge too far": (changed("edge_steps", (1, 0), 99), "edge_steps refers to node 112, but there are 15 nodes"),
    "edge too low": (changed("edge_steps", (1, 1), 99), "edge_steps refers to node -97"),
    "edges overflow": (changed("edge_steps", slice(None), 2**63 - 1), "edge_steps refers to node -"),
    "edges overflow back": (changed("edge_steps", (slice(0, 4), 0), 2**62), "edge_steps refers to node -"),
    "edges past int64": (changed("edge_steps", (1, 0), 2**64 - 1, np.uint64),
                         f"edge_steps holds {2**64 - 1}, too large for int64"),
    "no type": (lambda a: {"edge_steps": a["edge_steps"].astype(float)},
                "edge_steps has dtype float64, expected integers"),
    "meeting too far": (changed("meetings_ends", (0, 1), 10), "meetings_ends holds 10, expected at most 9"),
    "meeting negative": (changed("meetings_ends", (0, 1), -1), "meetings_ends holds -1, expected at least 0"),
    "a meeting too few": (lambda a: {"meetings_ends": a["meetings_ends"][1:]}, "meetings_joins has shape"),
    "neither": (changed("meetings_joins", 0, 2, np.uint8), "meetings_joins holds 2, expected at most 1"),
    "no hop": (changed("meetings_hops", 0, 0), "meetings_hops holds 0, expected at least 1"),
    "no such dimension": (changed("meetings_names", (0, 0, 0), 6), "meetings_names holds 6, expected at most 5"),
    "no such role": (changed("meetings_role", 0, 4), "meetings_role holds 4, expected at most 3"),
    "no size": (changed("meetings_size", 0, 0), "meetings_size holds 0, expected at least 1e-30"),
    "hops missing": (lambda a: {"meetings_hops": None}, "meetings_hops is missing; there are"),
    "codes missing": (lambda a: {"config_codes": None}, "node_config_feat is missing; there are"),
    "rows missing": (lambda a: {"node_rows": None}, "node_feat is missing; there are"),
}


@pytest.mark.parametrize("lie, message", LIES.values(), ids=LIES)
def test_a_prepared_file_that_lies_is_refused(arrays, tmp_path, lie, message):
    own = {name: array for name, array in (arrays | lie(arrays)).items() if array is not None}
    np.savez(tmp_path / "x.npz", **own)
    with pytest.raises(DataError) as error:
        read_graph(tmp_path / "x.npz", LAYOUT)
    assert str(error.value).startswith(f"{tmp_path / 'x.npz'}: {message}")


def test_a_prepared_file_may_store_wider_integers(arrays, tmp_path):
    wide = {name: np.ascontiguousarray(array, np.int64) for name, array in arrays.items()
            if name not in ("node_rows", "config_codes", "code_rows", "meetings_joins")}
    np.savez(tmp_path / "narrow.npz", **arrays)
    np.savez(tmp_path / "wide.npz", **(arrays | wide))
    narrow, wide = (read_graph(tmp_path / f"{name}.npz", LAYOUT) for name in ("narrow", "wide"))
    assert_equal_graphs(narrow, wide)
    assert_equal_graphs(narrow.meetings, wide.meetings)


@pytest.mark.parametrize("name, shape, message", [
    ("node_row", (MOST // 8 + 1,), f"takes {MOST + 8} bytes; at most {MOST} are read"),
    ("node_row", (MOST // 560 + 1,), f"has {MOST // 560 + 1} nodes, expected 1 to {MOST // 560}"),
    ("config_runtime", (MOST,), f"takes {8 * MOST} bytes; at most {MOST} are read"),
    ("config_codes", (60, MOST // 30), f"takes {MOST // 30 * 60} bytes; at most {MOST} are read"),
    ("code_rows", (10, MOST // 90, 18), f"takes {MOST // 90 * 180} bytes; at most {MOST} are read"),
    ("meetings_ends", (MOST // 8, 2), f"takes {2 * MOST} bytes; at most {MOST} are read")])
def test_a_few_bytes_that_claim_to_be_gigabytes_are_refused(arrays, tmp_path, name, shape, message):
    dtype = np.int8 if name == "code_rows" else np.uint8
    size = int(np.prod(shape))
    lie = npy(np.zeros(min(size, 1 << 20), dtype), shape=shape)
    parts = {f"{own}.npy": npy(np.ascontiguousarray(array)) for own, array in arrays.items()} | {f"{name}.npy": lie}
    path = zipped(tmp_path / "x.npz", parts, zipfile.ZIP_DEFLATED)
    if size > 1 << 20:                                   # the directory of the archive lies alike
        patched(path, name, size=size + len(lie) - (1 << 20))
    with pytest.raises(DataError) as error:
        read_graph(path, LAYOUT)
    assert str(error.value) == f"{path}: {name} {message}"


def test_splits_may_be_prepared_one_after_another(tiny_sample, tmp_path):
    part = prepare(tiny_sample, tmp_path / "part", ["tile:xla"], 1, False, splits=("test",))
    assert {*part.catalogue["split"]} == {"test"} and not list((tmp_path / "part").rglob("train/*.npz"))
    whole = prepare(tiny_sample, tmp_path / "part", ["tile:xla"], 1, False)
    known = whole.catalogue.filter(split="test")
    assert known.equals(part.catalogue) and {*whole.catalogue["split"]} == {"train", "valid", "test"}
    again = prepare(tiny_sample, tmp_path / "part", ["tile:xla"], 1, False, splits=("valid",))
    assert again.catalogue.equals(whole.catalogue)                   # what is there of other splits stays
    with pytest.raises(DataError, match="no split 'tests'; there are train, valid, test"):
        prepare(tiny_sample, tmp_path / "more", ["tile:xla"], 1, False, splits=("tests",))


@pytest.mark.parametrize("collection", ["layout:nlp:random", "tile:xla"])
def test_a_prepared_file_that_was_edited_is_prepared_again_and_a_copied_one_is_not(tiny_sample, tmp_path, collection):
    first = prepare(tiny_sample, tmp_path / "prepared", [collection], progress=False)
    path = sorted((tmp_path / "prepared").joinpath(*collection.split(":"), "train").glob("*.npz"))[0]
    whole = path.read_bytes()
    graph = first.graph(collection, "train", path.stem)
    with np.load(path) as file:
        arrays = dict(file)
    name = next(name for name in arrays if "runtime" in name and "normal" not in name)
    np.savez(path, **arrays | {name: arrays[name][::-1]})                    # what the file says of itself stays
    assert content_digest(read_graph(path, collection, "train")) != content_digest(graph)
    prepare(tiny_sample, tmp_path / "prepared", [collection], progress=False)
    assert path.read_bytes() == whole
    (tmp_path / "prepared" / CATALOGUE).unlink()                   # then the prepared files say what is done
    np.savez(path, **arrays | {name: arrays[name][::-1]})
    prepare(tiny_sample, tmp_path / "prepared", [collection], progress=False)
    assert path.read_bytes() == whole
    os.utime(path, ns=(1, 1))
    number = path.stat().st_ino
    prepare(tiny_sample, tmp_path / "prepared", [collection], progress=False)
    assert path.stat().st_ino == number, "it was written again"


def test_an_edited_prepared_file_is_other_data_although_it_has_the_size_and_an_earlier_time(tiny_sample, tmp_path):
    folder = tmp_path / "prepared"
    prepare(tiny_sample, folder, ["tile:xla"], progress=False)
    path = sorted(folder.joinpath("tile", "xla", "train").glob("*.npz"))[0]
    known = content_digests(folder, "tile:xla", "train")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    values, rng, size = np.load(path)["config_runtime"], np.random.default_rng(0), path.stat().st_size
    old = members["config_runtime.npy"]
    for _ in range(1000):                                          # until it takes as many bytes
        members["config_runtime.npy"] = old.replace(values.tobytes(), rng.permutation(values).tobytes())
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        if path.stat().st_size == size and members["config_runtime.npy"] != old:
            break
    assert path.stat().st_size == size
    catalogue = (folder / CATALOGUE).read_bytes()                  # copied last, as some programs do
    (folder / CATALOGUE).unlink()
    time.sleep(0.01)
    (folder / CATALOGUE).write_bytes(catalogue)
    changed = content_digests(folder, "tile:xla", "train")
    assert [name for (name, one), (_, other) in zip(known, changed) if one != other] == [path.stem]


def test_a_prepared_file_that_changes_while_a_process_runs_is_other_data_and_put_back_the_same(tiny_sample, tmp_path):
    folder = tmp_path / "prepared"
    prepare(tiny_sample, folder, ["tile:xla"], progress=False)
    path, other = sorted(folder.joinpath("tile", "xla", "train").glob("*.npz"))[:2]
    known, data = content_digests(folder, "tile:xla", "train"), path.read_bytes()
    path.write_bytes(other.read_bytes())
    changed = content_digests(folder, "tile:xla", "train")
    assert changed[0] != known[0] and changed[1:] == known[1:]
    path.unlink()
    assert content_digests(folder, "tile:xla", "train") == known[1:]
    path.write_bytes(data)
    assert content_digests(folder, "tile:xla", "train") == known


def test_a_folder_that_is_complete_needs_no_lock_and_is_only_read(tiny_sample, tmp_path):
    """A second user of a shared folder, or one whose disk is mounted to be read, opens it with the same call."""
    folder = tmp_path / "prepared"
    first = prepare(tiny_sample / "npz", folder, ["tile:xla"], progress=False)
    before = tree(folder)
    with locked(folder / ".prepare.lock") as holder:         # somebody prepares, or a process hangs
        assert holder is None
        again = prepare(tiny_sample / "npz", folder, ["tile:xla"], progress=False)
    assert again.catalogue.equals(first.catalogue)
    assert {k: v for k, v in tree(folder).items() if ".lock" not in k} == {
        k: v for k, v in before.items() if ".lock" not in k}
