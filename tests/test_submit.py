"""Rows, the file, its checks and the ledger, on a drawn data root and on the real files."""
import hashlib
import io
import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from sample import write_sample

import kit.data
import kit.submit
from kit.data import DataError, npz_paths, own_files
from kit.files import file_sha256
from kit.metrics import tile_score
from kit.prepare import prepare
from kit.submit import check_submission, read_submission, submission_problems, top_configs, write_submission
from lab.season.ledger import list_runs, record_leaderboard, record_run

REAL = Path(__file__).resolve().parents[2] / "shared/tpugraphs"
# ID -> configurations of the drawn data root
GRAPHS = {"tile:xla:aa": 7, "tile:xla:bb": 3, "layout:xla:random:u.4x4": 4, "layout:nlp:default:aa": 2}


def write_npz(path, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


@pytest.fixture
def root(tmp_path):
    for name, c in GRAPHS.items():
        write_npz(tmp_path / "npz" / f"{name.replace(':', '/').rpartition('/')[0]}/test/{name.split(':')[-1]}.npz",
                  config_runtime=np.zeros(c, np.int64), config_feat=np.zeros((c, 24), np.float32))
    return tmp_path / "npz"


@pytest.fixture
def good(tmp_path):
    rng = np.random.default_rng(0)
    return write_submission({name: rng.random(c) for name, c in GRAPHS.items()}, tmp_path / "good.csv")


def edited(path, *changes):
    """A copy of a text file with (old, new) applied; every old must be there."""
    data = path.read_bytes()
    for old, new in changes:
        assert old.encode() in data
        data = data.replace(old.encode(), new.encode(), 1)
    copy = path.with_name("edited.csv")
    copy.write_bytes(data)
    return copy


def csv_of(tmp_path, *rows):
    path = tmp_path / "rows.csv"
    path.write_text("ID,TopConfigs\n" + "".join(row + "\n" for row in rows))
    return path


def test_the_fastest_come_first():
    cost = np.random.default_rng(0).permutation(50)
    assert (top_configs(cost, "layout:nlp:random") == np.argsort(cost)).all()
    assert (top_configs(cost, "tile:xla") == np.argsort(cost)[:5]).all()
    assert top_configs(cost, "tile:xla").dtype == np.int64
    assert top_configs([2.0, -np.inf, np.inf], "tile:xla").tolist() == [1, 0, 2]


def test_ties_are_broken_always_alike_and_not_by_index():
    firsts = [top_configs(np.zeros(c), "tile:xla") for c in range(20, 1020)]
    assert all((first == top_configs(np.zeros(c), "tile:xla")).all() for c, first in zip(range(20, 1020), firsts))
    default_tried = np.mean([0 in first for first in firsts])
    by_chance = np.mean([5 / c for c in range(20, 1020)])
    assert default_tried == pytest.approx(by_chance, abs=0.02)
    order = top_configs(np.repeat([1, 0], 50), "layout:xla:random")
    assert set(order[:50]) == set(range(50, 100)) and (np.diff(order[:50]) < 0).any()


@pytest.mark.parametrize("cost, collection, message", [
    ([1.0], "tile:nlp", "no collection 'tile:nlp'; there are tile:xla, layout:xla:random"),
    ([1.0, np.nan], "tile:xla", "cost has 1 NaN among 2 values"),
    ([], "tile:xla", r"cost has shape \(0,\)"),
    ([[1.0]], "tile:xla", r"cost has shape \(1, 1\)"),
    (["a"], "tile:xla", "dtype <U1")])
def test_costs_that_cannot_be_ranked_are_refused(cost, collection, message):
    with pytest.raises(ValueError, match=message):
        top_configs(cost, collection)


def test_a_submission_is_exactly_these_bytes(tmp_path):
    costs = {"layout:nlp:default:b": [2, 1], "tile:xla:z": range(9, 0, -1), "layout:xla:random:a": [1, 3, 2],
             "layout:nlp:default:a": [1, 2], "tile:xla:a": [2, 1]}
    path = write_submission(costs, tmp_path / "new" / "s.csv")
    assert path.read_bytes() == (b"ID,TopConfigs\ntile:xla:a,1;0\ntile:xla:z,8;7;6;5;4\nlayout:xla:random:a,0;2;1\n"
                                 b"layout:nlp:default:a,0;1\nlayout:nlp:default:b,1;0\n")
    again = write_submission(dict(reversed(costs.items())), tmp_path / "s2.csv")
    assert again.read_bytes() == path.read_bytes()
    assert [p.name for p in path.parent.iterdir()] == ["s.csv"]


def test_what_is_written_is_read_back(good):
    read = read_submission(good)
    assert {name: len(indices) for name, indices in read.items()} == {**GRAPHS, "tile:xla:aa": 5}
    assert all(indices.dtype == np.int64 for indices in read.values())


def test_a_failed_write_leaves_the_old_file(good):
    before = good.read_bytes()
    for costs, message in (({"tile:xla:a": [1.0, np.nan]}, "tile:xla:a: cost has 1 NaN"),
                           ({"tile:xla:a,b": [1.0]}, "ID 'tile:xla:a,b' is not COLLECTION:STEM"),
                           ({"layout:xla:a": [1.0]}, "ID 'layout:xla:a' is not"),
                           ({}, "no costs to write")):
        with pytest.raises(ValueError, match=message):
            write_submission(costs, good)
    (good.parent / "folder").mkdir()
    with pytest.raises(OSError):
        write_submission({"tile:xla:a": [1.0]}, good.parent / "folder")
    assert good.read_bytes() == before and not list(good.parent.glob(".*"))


def test_a_valid_submission_has_no_problems(good, root):
    assert check_submission(good) == []
    assert check_submission(good, root) == [] == check_submission(good, root.parent)
    assert check_submission(good, sample=good) == [] == check_submission(good, root, good)


CHANGES = [
    (("ID,TopConfigs", "id,TopConfigs"), "line 1: is 'id,TopConfigs'; expected the header ID,TopConfigs"),
    (("ID,", "\ufeffID,"), "line 1: starts with a byte order mark; write plain UTF-8"),
    (("s\n", "s\r\n"), "line 1: has a carriage return; end lines with a line feed alone"),
    (("\ntile", "\n\ntile"), "line 2: is blank"),
    (("ID,TopConfigs", '"ID","TopConfigs"'), "line 1: has quotation marks; write none"),
    (("tile:xla:bb,", '"tile:xla:bb",'), "line 3: has quotation marks; write none"),
    (("bb,", 'bb,"'), "line 3: has quotation marks; write none"),
    (("ID,TopConfigs", "ID, topconfigs"), "line 1: is 'ID, topconfigs'; expected the header ID,TopConfigs"),
    (("ID,TopConfigs", "TopConfigs,ID"), "line 1: is 'TopConfigs,ID'; expected the header ID,TopConfigs"),
    (("xla:bb", 'xla:"bb'), "line 3: ID 'tile:xla:\"bb' is not COLLECTION:STEM"),
    (("bb,", "bb,0,"), "line 3: has 3 fields; expected ID,TopConfigs"),
    (("tile:xla:bb", "tile:xla:aa"), "line 3: tile:xla:aa occurs again; it is on line 2 already"),
    (("tile:xla:bb", "tile:nlp:bb"), "line 3: ID 'tile:nlp:bb' is not COLLECTION:STEM with one of tile:xla,"),
    (("bb,", "bb, "), "is not integers joined by ';'"),
    (("bb,", "bb,1.0;"), "is not integers joined by ';'"),
    (("bb,", "bb,-0;"), "is not integers joined by ';'"),
    (("bb,", "bb,0012;"), "is not integers joined by ';'"),
    (("bb,", "bb,\u0661;"), "is not integers joined by ';'"),
    (("bb,", "bb,99999999999999999999;"), "is not integers joined by ';'"),
]


READABLE = "byte order mark", "carriage return", "quotation marks", "is blank", "'id,", "'ID,"


@pytest.mark.parametrize("change, problem", CHANGES)
def test_a_fault_of_form_is_told_with_its_line(good, root, change, problem):
    path = edited(good, change)
    assert any(problem in word for word in check_submission(path, root))
    assert any(problem in word for word in check_submission(path))
    if any(word in problem for word in READABLE):                            # no submission should have it; it is read
        assert {name: len(indices) for name, indices in read_submission(path).items()} == {**GRAPHS, "tile:xla:aa": 5}
        return
    with pytest.raises(DataError, match="edited.csv: line "):
        read_submission(path)


@pytest.mark.parametrize("row, problem", [
    ("tile:xla:aa,0;1;2;3", "names 4 indices; expected 5 of the graph's 7 configurations"),
    ("tile:xla:aa,0;1;2;3;4;5", "names 6 indices; expected 5 of the graph's 7 configurations"),
    ("tile:xla:aa,0;1;2;3;7", "names index 7; expected 0..6"),
    ("tile:xla:aa,0;1;2;3;-1", "names index -1; expected 0..6"),
    ("tile:xla:aa,0;1;2;3;3", "names index 3 more than once"),
    ("tile:xla:bb,0;1", "names 2 indices; expected 3 of the graph's 3 configurations"),
    ("tile:xla:bb,0;1;2;3;4", "names 5 indices; expected 3 of the graph's 3 configurations"),
    ("layout:xla:random:u.4x4,0;1;2", "names 3 indices; expected 4 of the graph's 4 configurations"),
    ("layout:xla:random:u.4x4,0;1;2;2", "names index 2 more than once"),
    ("layout:xla:random:u.4x4,0;1;2;4", "names index 4; expected 0..3")])
def test_a_fault_of_indices_is_told_with_its_row(tmp_path, root, row, problem):
    name = row.split(",")[0]
    assert f"line 2: {name} {problem}" in check_submission(csv_of(tmp_path, row), root)


@pytest.mark.parametrize("row, problem", [
    ("layout:xla:random:a,0;1;3", "names index 3; expected 0..2"),
    ("layout:xla:random:a,1;0;0", "names index 0 more than once"),
    ("tile:xla:a,0;-1", "names index -1; expected 0.."),
    ("tile:xla:a,0;0", "names index 0 more than once"),
    ("tile:xla:a,9;8;7;6;5;4", "names 6 indices; only the first 5 count, name no more")])
def test_some_faults_need_no_data_to_be_seen(tmp_path, row, problem):
    assert check_submission(csv_of(tmp_path, row)) == [f"line 2: {row.split(',')[0]} {problem}"]


def test_the_sample_decides_which_rows_there_are_and_files_how_long(tmp_path, root):
    sample = csv_of(tmp_path, "tile:xla:elsewhere,0;1;2;3;4", "layout:xla:random:u.4x4,0;1;2",
                    "layout:nlp:random:away,0;1;2", "tile:xla:bb,0;1;2;3;4").rename(tmp_path / "sample.csv")
    rows = {"tile:xla:elsewhere": "0;1;2", "layout:xla:random:u.4x4": "3;0;1;2", "tile:xla:bb": "2;0;1",
            "layout:nlp:random:away": "3;2;1;0"}
    def problems(**changes):
        named = {**rows, **changes}
        return check_submission(csv_of(tmp_path, *(f"{k},{v}" for k, v in named.items() if v)), root, sample)
    assert problems() == []
    assert problems(**{"layout:nlp:random:away": "1;0"}) == [
        "line 5: layout:nlp:random:away names 2 indices; the sample names 3"]
    assert problems(**{"layout:xla:random:u.4x4": "0;1;2"}) == [
        "line 3: layout:xla:random:u.4x4 names 3 indices; expected 4 of the graph's 4 configurations"]
    assert problems(**{"tile:xla:elsewhere": ""}) == [
        f"tile:xla: 1 missing ID, in the sample {sample}: tile:xla:elsewhere"]
    assert problems(**{"tile:xla:aa": "0;1;2;3;4"}) == [
        f"tile:xla: 1 unknown ID, not in the sample {sample}: tile:xla:aa"]


@pytest.mark.parametrize("damage", ["text", "cut", "no array", "rank", "pickle"])
def test_a_damaged_test_file_is_told_and_the_others_are_still_checked(tmp_path, root, good, damage):
    path = root / "tile/xla/test/aa.npz"
    if damage == "text":
        path.write_text("not an archive")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    elif damage == "no array":
        write_npz(path, config_feat=np.zeros(3))
    elif damage == "rank":
        write_npz(path, config_runtime=np.zeros((7, 1), np.int64))
    else:
        buffer = io.BytesIO()
        np.save(buffer, np.array([{}], dtype=object), allow_pickle=True)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config_runtime.npy", buffer.getvalue())
    problems = check_submission(edited(good, ("u.4x4,", "u.4x4,0;")), root)
    assert problems[0].startswith("tile:xla:aa: the number of its configurations is unknown (")
    assert problems[1].startswith("line 4: layout:xla:random:u.4x4 names 5 indices") and len(problems) == 3


def test_places_that_are_not_there_are_told(tmp_path, good):
    assert "no.csv cannot be read" in check_submission(tmp_path / "no.csv")[0]
    assert "nowhere does not exist" in check_submission(good, tmp_path / "nowhere")[0]
    (tmp_path / "empty/tile").mkdir(parents=True)
    assert check_submission(good, tmp_path / "empty") == [f"no test file under {tmp_path / 'empty'}"]
    assert "sample" in check_submission(good, sample=tmp_path / "no.csv")[0]


def test_only_headers_are_read(root, good):
    path = root / "layout/nlp/default/test/aa.npz"
    write_npz(path, config_runtime=np.zeros(2, np.int64), node_config_feat=np.random.default_rng(0).random(9000))
    with zipfile.ZipFile(path) as archive:
        middle = archive.getinfo("node_config_feat.npy").header_offset + 5000
    data = bytearray(path.read_bytes())
    data[middle:middle + 100] = bytes(100)      # numpy.load would fail on the big array
    path.write_bytes(data)
    with pytest.raises(zipfile.BadZipFile), np.load(path) as file:
        file["node_config_feat"]
    assert check_submission(good, root) == []


needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real TpuGraphs files are not at ../shared/tpugraphs")


@needs_real
def test_the_competition_s_own_sample_is_well_formed_but_too_short_for_the_graph_with_1001_configurations():
    sample = REAL / "sample_submission.csv"
    assert len(read_submission(sample)) == 894
    assert check_submission(sample, sample=sample) == []
    problems = check_submission(sample, REAL, sample)
    assert len(problems) == 1
    assert problems[0].endswith("layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba names 1000 indices; "
                                "expected 1001 of the graph's 1001 configurations")


@needs_real
def test_a_submission_for_the_real_test_files_is_valid(tmp_path):
    costs = {}
    for path in sorted(REAL.glob("npz/**/test/*.npz")):
        with np.load(path) as file:
            name = ":".join([*path.relative_to(REAL / "npz").parts[:-2], path.stem])
            costs[name] = np.random.default_rng(0).random(len(file["config_runtime"]))
    path = write_submission(costs, tmp_path / "s.csv")
    # six of them are not the competition's: their answers are known
    problems = check_submission(path, REAL)
    assert len(costs) == 16 and [" ".join(word.split()[1:4]) for word in problems] == [
        "16 missing ID,", "16 missing ID,", "7 missing ID,", "7 missing ID,", "838 missing ID,", "1 unknown ID,",
        "1 unknown ID,", "4 unknown ID,"]
    assert submission_problems(path, REAL) == (problems[:5], problems[5:])


# --- what is required, whatever is at hand

WANTED = {"tile:xla": 844, "layout:xla:random": 8, "layout:xla:default": 8, "layout:nlp:random": 17,
          "layout:nlp:default": 17}


def hashed(number):
    return hashlib.md5(str(number).encode()).hexdigest()


def rows_of(graphs):
    return {f"{collection}:{hashed(i)}": np.arange(6) for collection, count in graphs.items() for i in range(count)}


def competition_root(folder, graphs, extra=()):
    """A data root with the first test files of each collection, and of more names."""
    for name in [*rows_of(graphs), *extra]:
        collection, _, stem = name.rpartition(":")
        write_npz(folder.joinpath(*collection.split(":"), "test", f"{stem}.npz"), config_runtime=np.zeros(6, np.int64))
    return folder


@pytest.mark.parametrize("graphs", [{"tile:xla": 10, "layout:xla:random": 2}, {"layout:nlp:default": 17},
                                    {**WANTED, "layout:nlp:random": 16}], ids=str)
def test_a_part_of_the_test_files_gives_no_complete_submission(tmp_path, graphs):
    few = {name: min(count, 12) for name, count in graphs.items()}
    root = competition_root(tmp_path / "npz", few)
    path = write_submission(rows_of(graphs), tmp_path / "s.csv")
    short = {name: count - graphs.get(name, 0) for name, count in WANTED.items() if count > graphs.get(name, 0)}
    expected = [f"{name}: {count} missing ID, of the competition's {WANTED[name]} test graphs"
                for name, count in short.items()]
    assert check_submission(path, root) == check_submission(path) == expected
    assert submission_problems(path, root) == submission_problems(path) == (expected, [])


def test_a_complete_submission_is_valid_beside_a_part_of_the_data(tmp_path):
    root = competition_root(tmp_path / "npz", {"tile:xla": 3})
    path = write_submission(rows_of(WANTED), tmp_path / "s.csv")
    assert check_submission(path, root) == check_submission(path) == []
    more = write_submission(rows_of(WANTED) | {f"layout:xla:random:{hashed(99)}": [1.0]}, tmp_path / "more.csv")
    assert check_submission(more, root) == ["layout:xla:random: has 9 rows; the competition has 8 test graphs"]
    root = competition_root(tmp_path / "npz", {"layout:xla:random": 8})
    assert check_submission(more, root) == [
        f"layout:xla:random: 1 unknown ID, not in the test files at hand: layout:xla:random:{hashed(99)}"]


@pytest.mark.parametrize("root, sample", [
    ("data", "data/sample_submission.csv"),                                  # as `download` leaves it
    ("slug/npz_all/npz", "slug/sample_submission.csv"), ("slug", "slug/sample_submission.csv"),       # as on Kaggle
    ("npz_all/npz", "npz_all/sample_submission.csv"), ("npz", "sample_submission.csv.zip")])
def test_the_sample_beside_the_data_says_what_is_required(tmp_path, root, sample, monkeypatch):
    folder = tmp_path / root / ("npz_all/npz" if root == "slug" else "")
    competition_root(folder, {"tile:xla": 2})
    all_rows = write_submission(rows_of({"tile:xla": 5}), tmp_path / "all.csv")
    place = tmp_path / sample
    if sample.endswith(".zip"):
        with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(all_rows, "sample_submission.csv")
    else:
        shutil.copy(all_rows, place)
    assert check_submission(all_rows, tmp_path / root) == []
    two = write_submission(rows_of({"tile:xla": 2}), tmp_path / "two.csv")
    assert check_submission(two, tmp_path / root)[0].startswith(f"tile:xla: 3 missing ID, in the sample {place}: ")
    place.write_text("torn")
    first, *others = check_submission(two, tmp_path / root)
    assert first == "tile:xla: 842 missing ID, of the competition's 844 test graphs"
    assert others[4] == f"sample {place}: line 1: is 'torn'; expected the header ID,TopConfigs"
    place.unlink()
    monkeypatch.setattr(kit.data, "_KAGGLE_INPUT", tmp_path / "input")
    for kind in ("", "competitions"):
        mount = tmp_path / "input" / kind / "predict-ai-model-runtime"
        mount.mkdir(parents=True)
        shutil.copy(all_rows, mount / "sample_submission.csv")
        assert check_submission(all_rows, tmp_path / root) == check_submission(all_rows) == []


def test_sample_data_and_names_of_one_s_own_are_complete_as_they_are(tmp_path, root, good):
    write_sample(tmp_path / "sample")
    npz = tmp_path / "sample" / "npz"
    costs = {}
    for path in npz.glob("**/test/*.npz"):
        with np.load(path) as file:
            costs[":".join([*path.relative_to(npz).parts[:-2], path.stem])] = np.zeros(len(file["config_runtime"]))
    path = write_submission(costs, tmp_path / "s.csv")
    assert check_submission(path, npz) == [] == check_submission(good, root)
    costs.popitem()
    assert "1 missing ID" in check_submission(write_submission(costs, path), npz)[0]


def write_kernel(path):
    """A whole tile file of 6 configurations."""
    write_npz(path, node_feat=np.zeros((2, 140), np.float32), node_opcode=np.ones(2, np.int64),
              edge_index=np.array([[1, 0]]), config_feat=np.zeros((6, 24), np.float32),
              config_runtime=np.zeros(6, np.int64), config_runtime_normalizers=np.ones(6, np.int64))


def test_a_prepared_folder_takes_the_sample_along(tmp_path):
    root = tmp_path / "slug" / "npz_all" / "npz"
    write_kernel(root / "tile/xla/test" / f"{hashed(0)}.npz")
    sample = write_submission(rows_of({"tile:xla": 3}), tmp_path / "slug" / "sample_submission.csv")
    prepare(root, tmp_path / "prepared", progress=False)
    for folder in (root, tmp_path / "prepared"):
        assert check_submission(sample, folder) == []


STRANGERS = [hashed(0) + "-Copy1", hashed(0) + " (1)", "sample"]


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_copy_of_a_test_file_is_named_and_gets_no_row(tmp_path, stranger):
    graphs = {"tile:xla": 2, "layout:nlp:random": 1}
    root = competition_root(tmp_path / "npz", graphs, [f"tile:xla:{stranger}", f"layout:nlp:random:{stranger}"])
    for collection in ("tile:xla", "layout:nlp:random"):
        with pytest.warns(UserWarning, match="left out 1 files whose names no test file") as said:
            found = npz_paths(root, collection, "test")
        assert [path.stem for path in found] == sorted(map(hashed, range(graphs.get(collection, 0))))
        assert stranger in str(said[0].message)
    prepared = prepare(root, tmp_path / "prepared", progress=False)
    reasons = dict(prepared.catalogue.select("name", "reason").iter_rows())
    assert reasons[stranger] == "its name is none of the data set's test files; if it is a copy, delete it"
    rows = rows_of(WANTED)
    path = write_submission(rows, tmp_path / "s.csv")
    path.write_text(path.read_text() + f"tile:xla:{stranger},0;1;2;3;4\n")
    assert any("tile:xla: 1 unknown ID, which no test file" in w or "is not COLLECTION:STEM" in w
               for w in check_submission(path, root))


def test_a_copy_among_sample_data_is_a_stranger_too(tmp_path):
    npz = write_sample(tmp_path / "sample", hidden=True)
    before = npz_paths(npz, "tile:xla", "test")
    shutil.copy(before[0], before[0].with_name(before[0].stem + "-Copy1.npz"))
    with pytest.warns(UserWarning, match="-Copy1.npz"):
        assert npz_paths(npz, "tile:xla", "test") == before


@pytest.mark.parametrize("stranger", [hashed(0) + "-Copy1", hashed(0).upper(), hashed(0) + " (1)",
                                      "Copy of " + hashed(0)])
@pytest.mark.parametrize("others", [{}, {"tile:xla": 1}])
def test_a_copy_that_lies_alone_is_a_stranger_and_data_of_ones_own_are_not(tmp_path, stranger, others):
    root = competition_root(tmp_path / "npz", others, [f"layout:xla:random:{stranger}", "layout:nlp:random:mine"])
    with pytest.warns(UserWarning, match="left out 1 files"):
        assert npz_paths(root, "layout:xla:random", "test") == []
    mine = [[path.stem for path in paths] for paths in own_files(root, "layout:nlp:random", "test")]
    assert mine == ([[], ["mine"]] if others else [["mine"], []])


# --- other ways of writing a table

def zipped(data, *names):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, data)
    return file.getvalue()


FORMS = {
    "wide": lambda data: data.decode().encode("utf-16"),
    "crlf": lambda data: data.replace(b"\n", b"\r\n"), "cr": lambda data: data.replace(b"\n", b"\r"),
    "quotes": lambda data: re.sub(rb"[^,\n]+", rb'"\g<0>"', data), "blank line at the end": lambda data: data + b"\n",
    "header": lambda data: data.replace(b"ID,Top", b"Id, top"),
    "mark": lambda data: b"\xef\xbb\xbf" + data, "zip": lambda data: zipped(data, "sample_submission.csv"),
    "zip in a folder": lambda data: zipped(data, "a/", "a/b.csv", "__MACOSX/a/._b.csv"),
}


@pytest.mark.parametrize("form", [*FORMS, "plain", "quoted"])
def test_names_in_the_sample_count_besides_those_of_32_hex_digits(tmp_path, form):
    asked = ["layout:xla:random:mine", f"layout:xla:random:{hashed(1)}", f"layout:nlp:random:{hashed(2)}"]
    here = [f"layout:xla:random:{name}" for name in ("mine", hashed(0), hashed(1), "mine-Copy1")]
    root = competition_root(tmp_path / "slug" / "npz", {"tile:xla": 1}, here)
    data = "ID,TopConfigs\n" + "".join(f"{name},0;1\n" for name in asked)
    data = (data.replace("layout", '"layout').replace(",0", '",0') if form == "quoted" else data).encode()
    (tmp_path / "slug" / "sample_submission.csv").write_bytes(FORMS.get(form, bytes)(data))
    own, strangers = ({path.stem for path in paths} for paths in own_files(root, "layout:xla:random", "test"))
    assert own == {"mine", hashed(0), hashed(1)} and strangers == {"mine-Copy1"}


@pytest.mark.parametrize("damage", [b"", b"PK\3\4 half a zip", b"\xff\xfe\0", b"no table"])
def test_a_sample_that_cannot_be_read_leaves_the_choice_to_the_names_and_is_a_problem(tmp_path, damage):
    root = competition_root(tmp_path / "npz", {"tile:xla": 1}, [f"tile:xla:{hashed(0)}-Copy1"])
    (root / "sample_submission.csv").write_bytes(damage)
    assert [path.stem for path in own_files(root, "tile:xla", "test")[0]] == [hashed(0)]
    written = write_submission(rows_of(WANTED), tmp_path / "s.csv")
    assert any("sample" in words for words in check_submission(written, root))


@pytest.mark.parametrize("form", FORMS)
def test_a_sample_is_read_in_whatever_form_it_comes(tmp_path, root, good, form):
    sample = tmp_path / "sample.csv"
    sample.write_bytes(FORMS[form](good.read_bytes()))
    assert check_submission(good, root, sample) == check_submission(good, sample=sample) == []
    read, plain = read_submission(sample), read_submission(good)
    assert list(read) == list(plain) and all(np.array_equal(read[name], plain[name]) for name in plain)


@pytest.mark.parametrize("form", FORMS)
def test_a_submission_is_plain_utf_8_with_line_feeds_or_zipped_under_its_name(tmp_path, root, good, form):
    packed = form.startswith("zip")
    path = tmp_path / f"submission.csv{'.zip' * packed}"
    path.write_bytes(FORMS[form](good.read_bytes()))
    assert len(check_submission(path, root)) == (0 if packed else 1)
    if packed:
        word, = check_submission(path.rename(tmp_path / "submission.csv"), root)
        assert word.endswith("is packed, which its name does not say; call it submission.csv.zip, or unpack it")


@pytest.mark.parametrize("data, word", [
    (zipped(b"x", "a.csv", "b.csv"), "is a zip of 2 files; expected one CSV"),
    (zipped(b"x", "a.csv")[:-30], "cannot be read"), (b"ID,TopConfigs\n\xff", "cannot be read as UTF-8 text"),
    (zipped(bytes(3000), "a.csv"), "holds more than"), (b"ID,TopConfigs\n" * 300, "holds more than")], ids=range(5))
def test_what_is_no_submission_is_named(tmp_path, monkeypatch, data, word):
    monkeypatch.setattr(kit.submit, "_MOST_BYTES", 2000)
    path = tmp_path / "s.zip"
    path.write_bytes(data)
    with pytest.raises(DataError, match=re.escape(f"{path}") + ".*" + re.escape(word)):
        read_submission(path)
    assert word in check_submission(path)[0]


@needs_real
def test_a_model_that_knows_nothing_gains_nothing_from_the_file_order():
    # the compiler's default, first in a raw file, is better than chance: breaking ties by index would show it
    gains = []
    for path in sorted(REAL.glob("npz/tile/xla/train/*.npz")):
        with np.load(path) as file:
            ratio = file["config_runtime"] / file["config_runtime_normalizers"]
        gains.append(tile_score(np.arange(len(ratio)), ratio, k=1) - tile_score(np.zeros(len(ratio)), ratio, k=1))
    assert np.mean(gains) > 0.5


def one_run(folder, csv, run="a", **changes):
    entry = {"data": "sample data", "parameters": {"steps": np.int64(3), "seeds": np.arange(2), "root": Path("x")},
             "validation": {"tile:xla": {"score": np.float64(0.9), "low": float("nan"), "high": 0.95, "graphs": 4}}}
    return record_run(folder, run, csv, **{**entry, **changes})


def test_an_entry_says_what_a_run_was(tmp_path, good):
    path = one_run(tmp_path / "ledger", good)
    record = json.loads(path.read_text())
    assert record["parameters"] == {"steps": 3, "seeds": [0, 1], "root": "x"}
    assert record["validation"]["tile:xla"] == {"score": 0.9, "low": None, "high": 0.95, "graphs": 4}
    assert record["leaderboard"] == {"public": None, "private": None}
    assert record["sha256"] == hashlib.sha256(good.read_bytes()).hexdigest()
    before = path.read_bytes()
    assert one_run(tmp_path / "ledger", good).read_bytes() == before


class Repository:
    """A git repository with one commit of some files."""

    def __init__(self, folder, *names):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init")
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("x")
            self.git("add", name)
        self.git("commit", "--allow-empty", "-m", "x")
        self.head = self.git("rev-parse", "HEAD").strip()

    def git(self, *words):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=self.folder, check=True,
                              capture_output=True, text=True).stdout


def commit_in_entry(monkeypatch, clone, ledger, csv):
    monkeypatch.setattr("lab.season.ledger.CLONE", clone)
    return json.loads(one_run(ledger, csv).read_text())["commit"]


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@needs_git
def test_an_entry_names_the_commit_of_the_kit_and_whether_files_differ(tmp_path, good, monkeypatch):
    clone, other = Repository(tmp_path / "clone", "kit/__init__.py"), Repository(tmp_path / "mine", "a.txt")
    for ledger in (tmp_path / "ledger", other.folder / "ledger"):            # whatever repository the ledger lies in
        assert commit_in_entry(monkeypatch, clone.folder, ledger, good) == clone.head
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    assert commit_in_entry(monkeypatch, clone.folder, tmp_path / "ledger", good) == clone.head
    (clone.folder / "kit/__init__.py").write_text("y")
    assert commit_in_entry(monkeypatch, clone.folder, tmp_path / "ledger", good) == clone.head + "-dirty"


def test_leaderboard_scores_stay_with_their_csv(tmp_path, good, capsys):
    ledger = tmp_path / "ledger"
    first = json.loads(one_run(ledger, good).read_text()) | {"why": "added by hand"}
    (ledger / "a.json").write_text(json.dumps(first))
    record_leaderboard(ledger, "a", public=0.5)
    record_leaderboard(ledger, "a", private=0.25)
    assert json.loads(one_run(ledger, good).read_text())["leaderboard"] == {"public": 0.5, "private": 0.25}
    other = csv_of(tmp_path, "tile:xla:a,0")
    assert json.loads(one_run(ledger, other).read_text())["leaderboard"] == {"public": None, "private": None}
    said, kept = capsys.readouterr().out, ledger / f"a-{file_sha256(good)[:8]}.json"
    assert said == (f"note  {ledger / 'a.json'} belongs to another CSV that has a leaderboard score; that entry is "
                    f"kept as {kept}\n")
    assert json.loads(kept.read_text()) == first | {"run": kept.stem, "leaderboard": {"public": 0.5, "private": 0.25}}
    assert json.loads(one_run(ledger, good).read_text()) == first | {"leaderboard": {"public": 0.5, "private": 0.25}}
    assert sorted(path.name for path in ledger.iterdir()) == ["a.json"]
    kept.write_text(json.dumps(first | {"sha256": "0" * 64}))
    with pytest.raises(ValueError, match="belongs to another CSV; give the folder of the run another name"):
        one_run(ledger, other)
    kept.unlink()
    for score in ("0.5", float("nan"), [0.5]):
        with pytest.raises(ValueError, match=r"public is .*; expected the number that the leaderboard shows"):
            record_leaderboard(ledger, "a", public=score)
    entry = one_run(ledger, good, "b")
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"why": "added by hand"}))
    again = json.loads(one_run(ledger, other, "b").read_text())
    assert again["leaderboard"]["public"] is None and again["why"] == "added by hand"
    with pytest.raises(ValueError, match="c.json: no such run; recorded runs: a, b"):
        record_leaderboard(ledger, "c", public=0.5)
    for results in ({"tile:nlp": {"score": 1.0}}, {"tile:xla": {"low": 1.0}}):
        with pytest.raises(ValueError, match="expected collections with a \"score\"; these are tile:xla"):
            one_run(ledger, good, validation=results)
    for name in ("", ".", "..", "../a", "a/b", "a\\b", "a\n"):
        with pytest.raises(ValueError, match="cannot be a file name"):
            one_run(ledger, good, name)


def test_the_ledger_lists_every_run_even_a_damaged_one(tmp_path, good):
    ledger = tmp_path / "ledger"
    for run in ("c", "a"):
        one_run(ledger, good, run)
    for name, text in (("b", '{"sha256": '), ("d", '["sha256"]'), ("e", '{"sha256": 1}'), ("stranger", "{}")):
        (ledger / f"{name}.json").write_text(text)
    rows = list_runs(ledger)
    assert [row["run"] for row in rows] == list("abcde")
    assert [row["same_as"] for row in rows] == ["", "", "a", "", ""]
    assert rows[0]["tile:xla"] == 0.9 and rows[0]["layout:xla:random"] is None and rows[0]["data"] == "sample data"
    assert [bool(row["problem"]) for row in rows] == [False, True, False, True, True]
    assert rows[1]["problem"].startswith(f"{ledger / 'b.json'} is not a ledger entry (JSONDecodeError: ")
    with pytest.raises(ValueError, match="d.json is not a ledger entry"):
        record_leaderboard(ledger, "d", public=0.5)
    with pytest.raises(ValueError, match="e.json is not a ledger entry"):
        one_run(ledger, good, "e")
    assert len({tuple(row) for row in rows}) == 1
    assert list_runs(tmp_path / "nowhere") == []


def test_a_name_that_no_submission_can_hold_is_a_problem_that_can_be_printed(good, root, capsys):
    for stem in ("a:b", "a\udcffb"):
        shutil.copy(root / "tile/xla/test/aa.npz", root / f"tile/xla/test/{stem}.npz")
        shutil.copy(good, root / f"tile/xla/test/{stem}2.npz")                            # no npz file
    for problem in check_submission(good, root):
        print(problem)
    said = capsys.readouterr().out
    assert r"4 missing ID" in said and r"tile:xla:a\udcffb" in said
    for stem in ("a:b", "a\udcffb"):
        with pytest.raises(ValueError, match="is not COLLECTION:STEM"):
            write_submission({f"tile:xla:{stem}": [1.0]}, good)


def is_row(field, tile):
    """Slowly: each index is written as Python writes the number; no number twice; a layout row has 0 to n - 1."""
    parts = field.split(";")
    canonical = all(part and all(letter in "0123456789" for letter in part) and str(int(part)) == part
                    for part in parts)
    if not canonical:
        return False
    numbers = sorted(map(int, parts))
    return len({*numbers}) == len(numbers) and (len(numbers) <= 5 if tile else numbers == [*range(len(numbers))])


def test_without_data_an_index_is_exactly_a_decimal_number(tmp_path):
    rng = np.random.default_rng(0)
    letters = [*"0011223;;;;-+_. \t", "\u0661", "\uff11", "\u00b2", "10", "01", "-0"]
    fields = ["".join(rng.choice(letters, rng.integers(1, 8))) for _ in range(600)]
    fields += [";".join(map(str, rng.permutation(int(rng.integers(1, 8))))) for _ in range(100)]
    good = {True: 0, False: 0}
    for number, field in enumerate(fields):
        tile = bool(number % 2)
        expected = is_row(field, tile)
        found = check_submission(csv_of(tmp_path, f"{'tile:xla' if tile else 'layout:xla:random'}:a,{field}"))
        assert (found == []) == expected, (field, found)
        good[tile] += expected
    assert min(good.values()) > 30


def test_a_header_alone_is_no_submission(tmp_path):
    for path in (csv_of(tmp_path), edited(csv_of(tmp_path), ("TopConfigs\n", "TopConfigs"))):
        assert check_submission(path) == ["line 2: is missing; expected a row per graph after the header"]
        with pytest.raises(DataError, match="line 2: is missing"):
            read_submission(path)
