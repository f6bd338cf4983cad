"""A prepared folder holds what the reader reads, in less space, and nothing stale, whatever happens on the way."""
import contextlib
import itertools
import os
import re
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


def test_a_prepared_folder_is_a_data_root(tiny_sample, prepared):
    path = npz_paths(tiny_sample, LAYOUT, "valid")[0]
    again = npz_paths(prepared.folder, LAYOUT, "valid")[0]
    assert_equal_graphs(read_layout(path), read_layout(again))
    assert open_prepared(prepared.folder).catalogue.equals(prepared.catalogue)


def test_the_catalogue_says_what_plain_counting_says(tiny_hidden, tmp_path):
    prepared = prepare(tiny_hidden, tmp_path / "here", progress=False)
    assert dict(prepared.catalogue.schema) == COLUMNS
    for row in prepared.catalogue.iter_rows(named=True):
        path = prepared_path(tiny_hidden / "npz", row["collection"], row["split"], row["name"])
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


# as a beginner writes it, without `if __name__ == "__main__"`
PLAIN = """import sys
from kit.prepare import prepare
print(len(prepare(*sys.argv[1:], processes=2, progress=False).catalogue), "rows")
"""
STARTS = {"script": ["plain.py"], "module": ["-m", "plain"], "folder": ["."],
          "runpy": ["-c", "import runpy; runpy.run_path('plain.py', run_name='__main__')"]}


@pytest.mark.parametrize("start", STARTS)
def test_a_script_prepares_in_several_processes_however_it_is_started(data, tmp_path, project, start):
    for name in ("plain.py", "__main__.py"):
        (tmp_path / name).write_text(PLAIN)
    done = subprocess.run([sys.executable, *STARTS[start], str(data), str(tmp_path / "made")], cwd=tmp_path, text=True,
                          capture_output=True, timeout=100, env=os.environ | {"PYTHONPATH": str(project)})
    assert (done.returncode, done.stderr) == (0, "") and re.fullmatch(r"\d+ rows\n", done.stdout), done.stdout
    assert {path.read_bytes() for path in (tmp_path / "made").rglob("*.parquet")}


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


@pytest.fixture
def inflated(monkeypatch):
    """The names of the graphs that are read from their sources from now on, in a list that grows."""
    names, describe = [], kit.prepare.describe
    monkeypatch.setattr(kit.prepare, "describe", lambda graph, collection: names.append(graph.graph_id) or
                        describe(graph, collection))
    return names


GOOD = ["g0", "g1", "g2", "t", "k_-0", "k_-1", "k_-2", "k_-3"]


def test_only_what_changed_is_read_again(data, tmp_path, inflated):
    folder = tmp_path / "here"

    def again(*expected, wanted=None):
        inflated.clear()
        prepared = quietly(data, folder, wanted)
        assert sorted(inflated) == sorted(expected)
        return prepared

    def at(name, base=folder, collection=LAYOUT, split="train"):
        return prepared_path(base, collection, split, name)
    again(*GOOD)
    first = results(folder)
    assert again().catalogue.height == 9 and results(folder) == first
    # a source
    write(data, LAYOUT, "train", "g0", layout_arrays(DIGITS["257 codes"]))
    assert again("g0").graph(LAYOUT, "train", "g0").config_codes.shape == (257, 1)
    write(data, LAYOUT, "train", "new", layout_arrays(DIGITS["tied groups"]))
    again("new")
    at("new", data).unlink()
    assert "new" not in again().catalogue["name"] and not at("new").exists()
    write(data, "layout:nlp:default", "train", "bad", layout_arrays(DIGITS["tied groups"]))
    assert again("bad").catalogue["reason"].drop_nulls().is_empty()
    at("g1", data).write_bytes(b"PK")
    assert again().catalogue.filter(name="g1")["reason"].item().startswith("not a readable npz file (Bad")
    assert not at("g1").exists()
    write(data, LAYOUT, "train", "g1", layout_arrays(DIGITS["groups of one option"]))
    again("g1")
    # a prepared file
    whole = results(folder)
    bytes_of = at("g0").read_bytes()
    flipped = bytearray(bytes_of)
    flipped[flipped.index(b"config_codes.npy") + 40] ^= 1
    for damaged in (bytes_of[:-30], flipped, b""):
        at("g0").write_bytes(damaged)
        again("g0")
    at("g0").rename(at("aside"))
    at("g1").rename(at("g0"))
    at("aside").rename(at("g1"))
    again("g0", "g1")
    at("g1").write_bytes(at("g1").read_bytes())                          # a copy
    again()
    assert results(folder) == whole


@pytest.mark.parametrize("damage", [None, b"", b"PAR1" + bytes(99) + b"PAR1", "another version"])
def test_without_a_catalogue_the_prepared_files_say_what_is_done(data, tmp_path, inflated, damage):
    whole = results(quietly(data, tmp_path / "here").folder)
    path = tmp_path / "here" / CATALOGUE
    table = pl.read_parquet(path)
    path.unlink()
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    elif damage:
        table.drop("noise").write_parquet(path)
    inflated.clear()
    assert results(quietly(data, tmp_path / "here").folder) == whole and inflated == []


def test_files_of_another_format_are_prepared_again(data, tmp_path, inflated, monkeypatch):
    quietly(data, tmp_path / "here")
    monkeypatch.setattr(kit.prepare, "FORMAT", kit.prepare.FORMAT + 1)
    inflated.clear()
    quietly(data, tmp_path / "here", ["tile:xla"])
    assert sorted(inflated) == ["k_-0", "k_-1", "k_-2", "k_-3"]


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
    return {"the data": (data, data, inside), "tile": (data, data / "tile", inside),
            "new in tile": (data, data / "tile" / "new" / "er", inside),
            "no layout yet": (data, data / "layout" / "nlp" / "random", inside),
            "link": (data, base / "link" / "new", inside), "links": (data, base / "links", inside),
            "a deeper link": (data, base / "deeper", inside), "a way back": (data, base / "x" / ".." / "data", inside),
            "notes": (data, base / "notes", r"holds other files \(thesis.txt\); prepare into a new folder"),
            "above": (data, base, r"holds other files \(data, deeper, done\); prepare into a new folder"),
            "file": (data, base / "file", "is a file; expected a folder for prepared files"),
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


def children(pid):
    import psutil
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def assert_gone(processes, seconds=60):
    import psutil
    left = psutil.wait_procs(processes, seconds)[1]
    assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE], "a child outlives its parent"


@pytest.mark.long
def test_killed_at_drawn_moments_it_ends_with_the_same_bytes_and_without_children(tiny_sample, tmp_path):
    data, rng, processes = tiny_sample / "npz", np.random.default_rng(0), 2
    seconds = float(finish(in_child("take_the_time", data, tmp_path / "whole", processes)).split()[1])
    whole, killed = results(tmp_path / "whole"), 0
    for moment in rng.permutation(np.linspace(0, 0.6 * seconds, 3)):
        process = in_child("take_the_time", data, tmp_path / "here", processes)
        assert process.stdout.readline() == "ready\n"
        time.sleep(moment)
        family = children(process.pid)
        process.kill()
        assert process.wait(60) in (0, -signal.SIGKILL), process.communicate()
        killed += process.returncode != 0
        assert_gone(family)
        process.communicate()
    quietly(data, tmp_path / "here")
    assert results(tmp_path / "here") == whole and killed >= 2


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
    try:
        quietly(Path(root), Path(folder), processes=2)
    except KeyboardInterrupt:
        sys.exit(130)


@pytest.mark.long
def test_ctrl_c_ends_all_processes_and_it_resumes(tiny_sample, tmp_path):
    data = tiny_sample / "npz"
    whole = results(quietly(data, tmp_path / "whole").folder)
    for delay in (None, 0, 0.03, 0.1, 0.3):          # after the first process is there; None: when a file is done
        process = in_child("stop_politely", data, tmp_path / "here", start_new_session=True)
        while not (children(process.pid) if delay is not None else any((tmp_path / "here").rglob("*.npz"))):
            time.sleep(0.002)
        time.sleep(delay or 0)
        family = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)                            # what a terminal does
        assert process.communicate(timeout=60)[1] == "" and process.returncode == 130, delay
        assert_gone(family)
    quietly(data, tmp_path / "here")
    assert results(tmp_path / "here") == whole


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
    "no node": (lambda a: {"node_row": a["node_row"][:0]}, f"node_row has 0 nodes, expected 1 to {MOST // 560}"),
    "code too large": (changed("config_codes", (3, 1), 5, np.uint8), "config_codes holds 5, expected at most 4"),
    "digit too large": (changed("code_rows", (0, 0, 0), 6, np.int8), "code_rows holds 6, expected at most 5"),
    "group too far": (changed("node_group", 3, 4), "node_group holds 4, expected at most 3"),
    "groups out of order": (lambda a: {"node_group": 3 - a["node_group"]},
                            "node_group does not number 4 groups by their first nodes"),
    "edge too far": (changed("edge_steps", (1, 0), 99), "edge_steps refers to node 112, but there are 15 nodes"),
    "edge too low": (changed("edge_steps", (1, 1), 99), "edge_steps refers to node -97"),
    "meeting too far": (changed("meetings_ends", (0, 1), 10), "meetings_ends holds 10, expected at most 9"),
    "no hop": (changed("meetings_hops", 0, 0), "meetings_hops holds 0, expected at least 1"),
    "no size": (changed("meetings_size", 0, 0), "meetings_size holds 0, expected at least 1e-30"),
    "hops missing": (lambda a: {"meetings_hops": None}, "meetings_hops is missing; there are"),
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
    ("node_row", (MOST // 560 + 1,), f"has {MOST // 560 + 1} nodes, expected 1 to {MOST // 560}"),
    ("code_rows", (10, MOST // 90, 18), f"takes {MOST // 90 * 180} bytes; at most {MOST} are read")])
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
