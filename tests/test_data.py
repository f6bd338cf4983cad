"""Reading: the factored form is exact, and whatever is wrong with a file ends in one clear DataError."""
import io
import re
import struct
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import kit.data
from kit.data import DataError, dense_configs, find_data_root, npz_paths, read_layout, read_tile
from kit.prepare import prepare
from kit.prune import drop_duplicate_configs, prune


def program_arrays(rng, n=12, m=20):
    return {"node_feat": rng.normal(0, 1e6, (n, 140)).astype(np.float32),
            "node_opcode": rng.integers(0, 121, n, dtype=np.uint8),
            "edge_index": rng.integers(0, n, (m, 2))}


def layout_arrays(digits, rng=None):
    """A layout file with these digits (c, nc, 18)."""
    rng = rng or np.random.default_rng(0)
    c, nc, _ = digits.shape
    return program_arrays(rng, nc + 5) | {
        "node_config_ids": rng.permutation(nc + 5)[:nc], "node_splits": np.array([[0, 2, nc + 5]]),
        "node_config_feat": digits.astype(np.float32), "config_runtime": rng.integers(1, 1 << 40, c)}


def tile_arrays(rng, c=6):
    return program_arrays(rng) | {
        "config_feat": rng.normal(0, 9, (c, 24)).astype(np.float32), "config_runtime": rng.integers(1, 1 << 40, c),
        "config_runtime_normalizers": rng.integers(1, 1 << 40, c)}


def grouped_digits(rng, c, sizes, options):
    """(c, nc, 18) digits of groups of nodes, `sizes`, of which each takes one of `options` values at a time."""
    codes = rng.integers(0, options, (c, len(sizes)))
    rows = rng.integers(-1, 6, (sum(sizes), options, 18))
    node_group = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return rows[np.arange(sum(sizes)), codes[:, node_group]]


def numbered_digits(numbers):
    """Digits that differ wherever the numbers (c, nc) do."""
    return numbers[..., None] // 7 ** np.arange(18) % 7 - 1


def slow_groups(digits):
    """Group of each node: the first node whose column equals its own up to a one-to-one renaming of rows."""
    columns = [[row.tobytes() for row in digits[:, v]] for v in range(digits.shape[1])]
    first = []
    for v, column in enumerate(columns):
        for u in range(v + 1):
            if len(set(zip(columns[u], column))) == len(set(columns[u])) == len(set(column)):
                first.append(u)
                break
    return [sorted(set(first)).index(u) for u in first]


def slow_factored(digits):
    """Config_codes, node_group and code_rows of the digits (c, nc, 18), by comparing rows and columns one by one."""
    digits = digits.astype(int)
    group = slow_groups(digits)
    first = [group.index(g) for g in range(len(set(group)))]
    known = [sorted(set(map(tuple, digits[:, node].tolist()))) for node in first]
    codes = [[rows.index(tuple(config[node])) for rows, node in zip(known, first)] for config in digits.tolist()]
    code_rows = np.full((len(group), max(map(len, known), default=1), 18), -1)
    for config, own in zip(digits, codes):
        for node, row in enumerate(config):
            code_rows[node, own[group[node]]] = row
    return np.array(codes, int).reshape(len(codes), len(first)), np.array(group, int), code_rows


def assert_factored(graph, digits):
    """A graph has the factored form of the digits, in the smallest types."""
    for field, expected in zip((graph.config_codes, graph.node_group, graph.code_rows), slow_factored(digits)):
        assert field.shape == expected.shape and (field == expected).all()
    assert graph.config_codes.dtype == np.min_scalar_type(max(graph.code_rows.shape[1] - 1, 0))


def assert_holds(graph, arrays):
    """A layout graph says exactly what stands in the arrays of its file."""
    digits = arrays["node_config_feat"]
    c, nc, _ = digits.shape
    dense = dense_configs(graph, np.arange(c))
    assert dense.dtype == np.int8 and dense.shape == digits.shape and (dense == digits).all()
    for name in ("node_feat", "node_opcode", "edge_index", "node_config_ids"):
        assert np.array_equal(getattr(graph, name), arrays[name])
    assert np.array_equal(graph.node_splits, arrays["node_splits"].ravel())
    assert np.array_equal(graph.config_runtime, arrays["config_runtime"])
    g, k = graph.config_codes.shape[1], graph.code_rows.shape[1]
    assert graph.node_group.shape == (nc,) and graph.code_rows.shape == (nc, k, 18)
    assert graph.code_rows.dtype == np.int8 and np.unique(graph.node_group).tolist() == list(range(g))
    kinds = {"node_feat": np.float32, "node_opcode": np.int64, "edge_index": np.int64, "node_config_ids": np.int64,
             "node_splits": np.int64, "node_group": np.int64, "config_runtime": np.int64}
    assert {name: getattr(graph, name).dtype for name in kinds} == kinds


@pytest.fixture
def write(tmp_path):
    """Write arrays to an npz file and say where."""
    def writer(arrays, save=np.savez_compressed, name="graph"):
        save(tmp_path / f"{name}.npz", **arrays)
        return tmp_path / f"{name}.npz"
    return writer


RNG = np.random.default_rng(7)
DIGITS = {
    "tied groups": grouped_digits(RNG, 60, (1, 4, 2, 3), 5),
    "groups of one option": grouped_digits(RNG, 9, (2, 2), 1),
    "one configuration": grouped_digits(RNG, 1, (3, 2), 4),
    "one row everywhere": np.full((5, 4, 18), 2),
    "all default": np.full((5, 4, 18), -1),
    "every node its own group": grouped_digits(RNG, 80, (1,) * 9, 4),
    "no node is configurable": np.zeros((6, 0, 18)),
    "one configuration of no node": np.zeros((1, 0, 18)),
    "digits at the ends of the row": numbered_digits(np.array([[0], [1], [6], [7 ** 17], [7 ** 18 - 1]])),
    "256 codes": numbered_digits(RNG.permutation(256)[:, None] + np.array([0, 5])),
    "257 codes": numbered_digits(RNG.permutation(257)[:, None]),
}


@pytest.mark.parametrize("digits", DIGITS.values(), ids=DIGITS)
def test_the_factored_form_is_exact(write, digits):
    arrays = layout_arrays(digits)
    graph = read_layout(write(arrays))
    assert_holds(graph, arrays)
    assert_factored(graph, digits)
    assert graph.graph_id == "graph"


def drawn_digits(rng):
    """Digits (c, nc, 18) whose first configurations do not show everything."""
    sizes, c, late = tuple(rng.integers(1, 4, rng.integers(1, 5))), int(rng.integers(1, 60)), rng.random()
    nc, digits = sum(sizes), grouped_digits(rng, c, sizes, int(rng.integers(1, 4)))
    some = np.arange(c) >= late * c
    match rng.integers(5):
        case 0:                                          # new codes
            digits[some] = grouped_digits(rng, some.sum(), sizes, 2)
        case 1:                                          # a node leaves its group
            digits[some, rng.integers(nc)] = rng.integers(-1, 6, (some.sum(), 18))
        case 2:                                          # one configuration is like no other
            digits[int(late * c)] = rng.integers(-1, 6, (nc, 18))
        case 3:                                          # every node by itself, from the first configuration on
            digits = rng.integers(-1, 1, (c, nc, 18))
            digits[..., 2:] = 3
    return digits


def test_drawn_files_in_drawn_chunks_are_factored_as_by_comparing_one_by_one(write, monkeypatch):
    rng = np.random.default_rng(2)
    for _ in range(70):
        digits, dtype = drawn_digits(rng), np.dtype(rng.choice(["f4", "i1", "f8", ">f4", "f2", "i8"]))
        c, nc, _ = digits.shape
        stored = np.array(digits, dtype, order=rng.choice(["C", "C", "F"]))
        if dtype.kind == "f" and rng.random() < 0.3:     # a digit 0 may be stored as -0.0
            stored[(digits == 0) & (rng.random(digits.shape) < 0.01)] = -0.0
        monkeypatch.setattr(kit.data, "_CHUNK_BYTES", int(nc * 18 * dtype.itemsize * rng.integers(1, 9)))
        monkeypatch.setattr(kit.data, "_MAX_EXPECTED", int(rng.choice([1 << 20, 1 << 20, 20])))
        arrays = layout_arrays(digits, rng)
        graph = read_layout(write(arrays | {"node_config_feat": stored}, np.savez))
        assert_factored(graph, digits)
        assert_holds(graph, arrays)


@pytest.mark.parametrize("stored, shown", [([0.5], 0.5), ([9], 9.0), ([np.nan], np.nan), ([np.inf], np.inf),
                                           ([-1e300], -1e300), ([-2, 1], -2.0), ([7, 0], 7.0), ([0, 8 / 7], 8 / 7)])
@pytest.mark.parametrize("node", [0, 4])
def test_a_bad_digit_after_many_good_chunks_is_named(write, monkeypatch, stored, shown, node):
    digits = np.zeros((60, 5, 18))                       # nodes 0 and 1 change together; nodes 2 to 4 never change
    digits[::2, :2, 1] = 1                               # row keys 0 and 7: [7, 0] and [0, 1] have the same one
    digits[1::2, 4, 1] = 1
    bad = digits.copy()
    bad[31, node, :len(stored)] = stored
    monkeypatch.setattr(kit.data, "_CHUNK_BYTES", 5 * 5 * 18 * 8)
    path = write(layout_arrays(digits) | {"node_config_feat": bad})
    with pytest.raises(DataError) as error:
        read_layout(path)
    place = next(i for i, digit in enumerate(stored) if digit == shown or digit != digit)
    assert str(error.value) == (f"{path}: node_config_feat holds {shown} in configuration 31, node {node}, digit "
                                f"{place}; digits are integers in -1..5")


def test_minus_zero_is_the_digit_0(write, monkeypatch):
    digits = np.zeros((60, 2, 18))
    digits[::3, 0, 4] = 2
    monkeypatch.setattr(kit.data, "_CHUNK_BYTES", 6 * 2 * 18 * 8)
    stored = digits.copy()
    stored[20, 1, 3] = -0.0
    graph = read_layout(write(layout_arrays(digits) | {"node_config_feat": stored}))
    assert_factored(graph, digits)


@pytest.mark.parametrize("save, dtype, order", [
    (np.savez, "f4", "C"), (np.savez_compressed, "f4", "F"), (np.savez_compressed, "i1", "C"), (np.savez, ">i4", "F"),
    (np.savez_compressed, "f8", "C"), (np.savez, "f2", "C")])
def test_every_number_type_order_and_compression_is_read(write, save, dtype, order):
    arrays = layout_arrays(DIGITS["tied groups"])
    expected = dict(arrays)
    arrays["node_config_feat"] = arrays["node_config_feat"].astype(dtype, order=order)
    arrays["edge_index"] = np.array(arrays["edge_index"], ">i4", order=order)
    arrays["node_feat"] = arrays["node_feat"].astype(">f8", order=order)
    assert_holds(read_layout(write(arrays, save)), expected)


def test_numbering_does_not_depend_on_the_order_of_configurations(write):
    arrays = layout_arrays(DIGITS["tied groups"])
    graph = read_layout(write(arrays))
    order = np.random.default_rng(0).permutation(60)
    shuffled = {name: arrays[name][order] for name in ("node_config_feat", "config_runtime")}
    again = read_layout(write(arrays | shuffled))
    assert np.array_equal(again.config_codes, graph.config_codes[order])
    assert np.array_equal(again.node_group, graph.node_group)
    assert np.array_equal(again.code_rows, graph.code_rows)


def test_a_tile_file_is_read_as_it_stands(write):
    arrays = tile_arrays(np.random.default_rng(0))
    path = write(arrays, name="a_kernel.-12")
    graph = read_tile(path)
    assert graph.graph_id == "a_kernel.-12"
    for name, array in arrays.items():
        found = getattr(graph, name)
        assert np.array_equal(found, array)
        assert found.dtype == (np.float32 if array.dtype.kind == "f" else np.int64)
    assert all(np.array_equal(a, b) for a, b in zip(graph[1:], read_tile(str(path))[1:]))


# --- two ways to pad axes

AXES = {"dimensions": range(31, 37), "input_spatial": range(95, 99), "kernel_spatial": range(101, 105),
        "layout": range(134, 140)}


def padded(kind, fill, seed=0):
    """The arrays of a file whose axes are drawn, and padded with `fill` where the number of axes ends."""
    rng = np.random.default_rng(seed)
    arrays = tile_arrays(rng) if kind == "tile" else layout_arrays(DIGITS["tied groups"], rng)
    for row in arrays["node_feat"]:
        for columns in AXES.values():
            rank = rng.integers(0, len(columns) + 1)
            row[columns] = fill
            row[columns[:rank]] = rng.permutation(rank)
    return arrays


@pytest.mark.parametrize("read, kind", [(read_tile, "tile"), (read_layout, "layout")])
@pytest.mark.parametrize("names, dtype", [([*AXES], np.float16), *(([name], np.float32) for name in AXES)], ids=str)
def test_a_file_that_pads_axes_with_minus_one_is_read_as_the_official_one(write, read, kind, names, dtype):
    official, other = padded(kind, 0), padded(kind, -1)
    mixed = {**official, "node_feat": official["node_feat"].copy()}
    for name in names:
        mixed["node_feat"][:, AXES[name]] = other["node_feat"][:, AXES[name]]
    for arrays in (official, mixed):
        arrays["node_feat"] = arrays["node_feat"].clip(-6e4, 6e4).astype(dtype)
    assert not np.array_equal(official["node_feat"], mixed["node_feat"])
    one, two = read(write(official, name="one")), read(write(mixed, name="two"))
    assert np.array_equal(one.node_feat, two.node_feat) and np.array_equal(one.node_feat, official["node_feat"])


def test_minus_one_stays_in_columns_that_hold_no_axes(write):
    arrays = padded("layout", -1)
    others = np.setdiff1d(np.arange(140), np.concatenate([*AXES.values()]))
    arrays["node_feat"][:, others] = -1
    assert (read_layout(write(arrays)).node_feat[:, others] == -1).all()


@pytest.mark.parametrize("fill", [0, -1])
def test_the_catalogue_notes_how_a_source_pads_and_the_prepared_graph_is_the_same(tmp_path, fill):
    root = tmp_path / "npz"
    for kind, place in (("tile", "tile/xla"), ("layout", "layout/nlp/random")):
        (root / place / "train").mkdir(parents=True)
        np.savez(root / place / "train" / "a.npz", **padded(kind, fill))
    found = prepare(root, tmp_path / "prepared", progress=False)
    assert found.catalogue["padding"].to_list() == [fill, fill]
    for collection, kind in (("tile:xla", "tile"), ("layout:nlp:random", "layout")):
        graph = found.graph(collection, "train", "a")
        assert np.array_equal(graph.node_feat, padded(kind, 0)["node_feat"])
    assert prepare(root, tmp_path / "prepared", progress=False).catalogue.equals(found.catalogue)


READ_IN_LITTLE_MEMORY = """
import sys
from kit.data import read_layout
def peak():
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
graph = read_layout(sys.argv[1])
print(peak() - before, *graph.config_codes.shape)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
def test_memory_does_not_grow_with_the_dense_array(write, project):
    c, nc = 4_000, 232
    digits = grouped_digits(np.random.default_rng(0), 50, (29,) * 8, 6)
    arrays = layout_arrays(digits)
    arrays["config_runtime"] = np.arange(1, c + 1)
    del arrays["node_config_feat"]
    path = write(arrays)
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (c, nc, 18)})
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("node_config_feat.npy", "w") as member:
            member.write(head.getvalue())
            for _ in range(c // 50):
                member.write(digits.astype(np.float64))
    done = subprocess.run([sys.executable, "-c", READ_IN_LITTLE_MEMORY, path], cwd=project, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    megabytes, *shape = done.stdout.split()
    assert shape == [str(c), "8"]
    assert float(megabytes) < 60, "the array has 134 MB"


def npy(array, **header):
    """Bytes of an npy file whose header may lie about the array."""
    file = io.BytesIO()
    told = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape} | header
    np.lib.format.write_array_header_1_0(file, told)
    return file.getvalue() + array.tobytes()


def zipped(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def members(arrays):
    return {f"{name}.npy": npy(np.asarray(array)) for name, array in arrays.items()}


def patched(path, name, **fields):
    """Overwrite fields of a member's entries in the zip: flags, method or size (of the inflated member)."""
    data = bytearray(path.read_bytes())
    for start, signature, places in ((30, b"PK\3\4", {"flags": (6, "<H"), "method": (8, "<H"), "size": (22, "<I")}),
                                     (46, b"PK\1\2", {"flags": (8, "<H"), "method": (10, "<H"), "size": (24, "<I")})):
        at = [m.start() for m in re.finditer(re.escape(signature), bytes(data))
              if data[m.start() + start:].startswith(f"{name}.npy".encode())]
        for field, value in fields.items():
            struct.pack_into(places[field][1], data, at[0] + places[field][0], value)
    path.write_bytes(data)


@pytest.mark.parametrize("read", [read_layout, read_tile])
def test_what_is_no_archive_is_said_to_be_none(tmp_path, read):
    (tmp_path / "empty.npz").touch()
    (tmp_path / "text.npz").write_text("node_feat\n" * 100)
    (tmp_path / "folder.npz").mkdir()
    np.save(tmp_path / "lone.npy", np.zeros(3))
    for name, reason in (("empty.npz", "BadZipFile: File is not a zip file"),
                         ("text.npz", "BadZipFile: File is not a zip file"),
                         ("lone.npy", "BadZipFile: File is not a zip file"),
                         ("folder.npz", "IsADirectoryError: "), ("absent.npz", "FileNotFoundError: ")):
        with pytest.raises(DataError) as error:
            read(tmp_path / name)
        assert str(error.value).startswith(f"{tmp_path / name}: not a readable npz file ({reason}")
        assert str(error.value).endswith("; fetch the file again")


def test_a_file_cut_short_anywhere_is_refused(write):
    for arrays, read in ((layout_arrays(DIGITS["tied groups"]), read_layout),
                         (tile_arrays(np.random.default_rng(0)), read_tile)):
        path = write(arrays)
        data = path.read_bytes()
        for length in np.linspace(0, len(data) - 1, 40).astype(int):
            path.write_bytes(data[:length])
            with pytest.raises(DataError, match="not a readable npz file"):
                read(path)


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(write, tmp_path):
    trap = tmp_path / "it ran"
    bomb = np.array([Bomb(trap)] * 5, dtype=object)
    np.load(write({"bomb": bomb}), allow_pickle=True)["bomb"]
    assert trap.exists(), "the trap works"
    trap.unlink()
    for name in (layout := layout_arrays(DIGITS["tied groups"])):
        path = write(layout | {name: bomb})
        with pytest.raises(DataError) as error:
            read_layout(path)
        kinds = r"(integers( \(nanoseconds\))?|floats|integers or floats)"
        words = re.escape(f"{path}: {name} has dtype object, expected ") + kinds
        assert re.fullmatch(words, str(error.value))
    for name in (tile := tile_arrays(np.random.default_rng(0))):
        path = write(tile | {name: bomb})
        with pytest.raises(DataError, match=f"{name} has dtype object, expected (integers|floats)"):
            read_tile(path)
    assert not trap.exists()


LAYOUT = layout_arrays(DIGITS["tied groups"])         # 15 nodes, 10 of them configurable, 60 configurations
TILE = tile_arrays(np.random.default_rng(0))          # 12 nodes, 6 configurations


def changed(array, place, value, dtype=None):
    array = np.array(array, dtype)
    array[place] = value
    return array


def with_digit(value, dtype=np.float32):
    return {"node_config_feat": changed(LAYOUT["node_config_feat"], (41, 3, 17), value, dtype)}


DAMAGE = {
    "node_feat lacks a column": ({"node_feat": np.zeros((15, 139), np.float32)},
                                 "node_feat has shape (15, 139), expected (None, 140)"),
    "no node": ({"node_feat": np.zeros((0, 140), np.float32)}, "node_feat has no node"),
    "NaN": ({"node_feat": changed(LAYOUT["node_feat"], (3, 4), np.nan)},
            "node_feat holds a value that is not finite"),
    "infinity": ({"node_feat": changed(LAYOUT["node_feat"], (3, 4), -np.inf)},
                 "node_feat holds a value that is not finite"),
    "text": ({"node_feat": np.full((15, 140), "1")}, "node_feat has dtype <U1, expected floats"),
    "an opcode too many": ({"node_opcode": np.ones(16, np.uint8)}, "node_opcode has shape (16,), expected (15,)"),
    "opcode out of range": ({"node_opcode": changed(LAYOUT["node_opcode"], 2, 121)},
                            "node_opcode holds 121, expected at most 120"),
    "opcode float": ({"node_opcode": np.ones(15)}, "node_opcode has dtype float64, expected integers"),
    "edge to a node too far": ({"edge_index": changed(LAYOUT["edge_index"], (2, 1), 15)},
                               "edge_index refers to node 15, but there are 15 nodes"),
    "edge to a negative node": ({"edge_index": changed(LAYOUT["edge_index"], (2, 0), -1)},
                                "edge_index refers to node -1"),
    "edges transposed": ({"edge_index": LAYOUT["edge_index"].T},
                         "edge_index has shape (2, 20), expected (None, 2)"),
    "configurable node twice": ({"node_config_ids": np.array([3] * 10)}, "node_config_ids names a node twice"),
    "configurable node too far": ({"node_config_ids": np.arange(6, 16)},
                                  "node_config_ids holds 15, expected at most 14"),
    "split too far": ({"node_splits": np.array([0, 16])}, "node_splits holds 16, expected at most 15"),
    "a runtime too few": ({"config_runtime": np.arange(1, 60)},
                          "node_config_feat has shape (60, 10, 18), expected (59, 10, 18)"),
    "no configuration": ({"config_runtime": np.arange(0), "node_config_feat": np.zeros((0, 10, 18))},
                         "config_runtime holds no configuration"),
    "negative runtime": ({"config_runtime": np.arange(-1, 59)}, "config_runtime holds -1, expected at least 0"),
    "runtimes half missing": ({"config_runtime": np.arange(60) // 2},
                              "config_runtime holds 2 zeros beside 58 measured runtimes"),
    "float runtime": ({"config_runtime": np.arange(60.0)}, "config_runtime has dtype float64, expected integers "
                      "(nanoseconds)"),
    "17 digits": ({"node_config_feat": np.zeros((60, 10, 17))},
                  "node_config_feat has shape (60, 10, 17), expected (60, 10, 18)"),
} | {f"digit {value} of {dtype}": (with_digit(value, dtype), f"node_config_feat holds {shown} in configuration 41, "
                                   "node 3, digit 17; digits are integers in -1..5")
     for value, dtype, shown in [(6, "f4", 6.0), (-2, "f4", -2.0), (np.nan, "f4", np.nan), (258, "i8", 258),
                                 (1 + 3e-16, "f8", 1 + 3e-16)]}
TILE_DAMAGE = {
    "23 features": ({"config_feat": np.zeros((6, 23))}, "config_feat has shape (6, 23), expected (None, 24)"),
    "no configuration": ({"config_feat": np.zeros((0, 24)), "config_runtime": np.arange(0),
                          "config_runtime_normalizers": np.arange(0)}, "config_feat holds no configuration"),
    "a runtime too many": ({"config_runtime": np.arange(7)}, "config_runtime has shape (7,), expected (6,)"),
    "normalizer 0": ({"config_runtime_normalizers": np.arange(6)},
                     "config_runtime_normalizers holds 0, expected at least 1"),
    "edge to a node too far": ({"edge_index": np.array([[0, 12]])},
                               "edge_index refers to node 12, but there are 12 nodes"),
}


@pytest.mark.parametrize("damage, message", DAMAGE.values(), ids=DAMAGE)
def test_a_layout_file_that_is_not_as_described_is_refused(write, damage, message):
    path = write(LAYOUT | damage)
    with pytest.raises(DataError) as error:
        read_layout(path)
    assert str(error.value) == f"{path}: {message}"


@pytest.mark.parametrize("damage, message", TILE_DAMAGE.values(), ids=TILE_DAMAGE)
def test_a_tile_file_that_is_not_as_described_is_refused(write, damage, message):
    path = write(TILE | damage)
    with pytest.raises(DataError) as error:
        read_tile(path)
    assert str(error.value) == f"{path}: {message}"


def test_a_missing_array_is_named_with_those_that_are_there(write):
    for arrays, read in ((LAYOUT, read_layout), (TILE, read_tile)):
        for name in arrays:
            path = write({other: array for other, array in arrays.items() if other != name})
            with pytest.raises(DataError) as error:
                read(path)
            there = [f"{other}.npy" for other in arrays if other != name]
            assert str(error.value) == f"{path}: {name} is missing; there are {there}"


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("name", LAYOUT)
def test_one_changed_bit_of_an_array_is_noticed(tmp_path, name, compression):
    path = zipped(tmp_path / "bit.npz", members(LAYOUT), compression)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(f"{name}.npy")
    data = bytearray(path.read_bytes())
    data[info.header_offset + 30 + len(info.filename) + info.compress_size * 3 // 4] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"{re.escape(str(path))}: {name} "):
        read_layout(path)


@pytest.mark.parametrize("name, told, message", [
    ("node_feat", {"shape": (16, 140)}, "node_feat of shape (16, 140) needs 8960 bytes, the file holds 8400"),
    ("node_feat", {"shape": (14, 140)}, "node_feat of shape (14, 140) needs 7840 bytes, the file holds 8400"),
    ("node_feat", {"shape": (1 << 60, 140)},
     f"node_feat of shape ({1 << 60}, 140) needs {140 << 62} bytes, the file holds 8400"),
    ("node_feat", {"shape": (-15, -140)}, "node_feat of shape (-15, -140) needs 8400 bytes, the file holds 8400"),
    ("node_splits", {"shape": (-1, -3)}, "node_splits of shape (-1, -3) needs 24 bytes, the file holds 24"),
    ("node_splits", {"descr": "<f8"}, "node_splits has dtype float64, expected integers"),
    ("node_config_feat", {"descr": "<f8"},
     "node_config_feat of shape (60, 10, 18) needs 86400 bytes, the file holds 43200"),
    ("config_runtime", {"shape": (1 << 70,)},
     f"config_runtime of shape ({1 << 70},) needs {1 << 73} bytes, the file holds 480"),
])
def test_a_header_that_lies_is_not_believed(tmp_path, name, told, message):
    path = zipped(tmp_path / "lie.npz", members(LAYOUT) | {f"{name}.npy": npy(LAYOUT[name], **told)})
    with pytest.raises(DataError) as error:
        read_layout(path)
    assert str(error.value) == f"{path}: {message}"


@pytest.mark.parametrize("name, rows, message", [
    ("node_feat", 1 << 18, "ends after 8400 of 146800640 bytes; fetch the file again"),
    ("node_feat", 1 << 19, "takes 293601280 bytes; at most 268435456 are read"),
    ("node_config_feat", None, "ends after 43200 of 86400 bytes; fetch the file again"),
])
def test_a_header_and_an_archive_that_lie_alike_cost_no_memory(tmp_path, name, rows, message):
    told = {"descr": "<f8"} if rows is None else {"shape": (rows, *LAYOUT[name].shape[1:])}
    lie = npy(LAYOUT[name], **told)
    path = zipped(tmp_path / "lie.npz", members(LAYOUT) | {f"{name}.npy": lie}, zipfile.ZIP_DEFLATED)
    shape, width = told.get("shape", LAYOUT[name].shape), 8 if rows is None else 4
    patched(path, name, size=int(np.prod(shape)) * width + len(lie) - LAYOUT[name].nbytes)
    with pytest.raises(DataError) as error:
        read_layout(path)
    assert str(error.value) == f"{path}: {name} {message}"


def test_a_fortran_ordered_array_past_the_limit_is_not_read(write, monkeypatch):
    path = write(LAYOUT | {"node_config_feat": np.asfortranarray(LAYOUT["node_config_feat"])})
    monkeypatch.setattr(kit.data, "_MAX_ARRAY_BYTES", 40_000)
    with pytest.raises(DataError, match="node_config_feat takes 43200 bytes; at most 40000 are read"):
        read_layout(path)


@pytest.mark.parametrize("header", [b"", b"{", b"(" * 900, b"\xff" * 50,
                                    b"{'descr': ('<f4',), 'fortran_order': False, 'shape': (15, 140)}\n"])
def test_a_header_of_nonsense_is_refused(tmp_path, header):
    data = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(15 * 140 * 4)
    path = zipped(tmp_path / "odd.npz", members(LAYOUT) | {"node_feat.npy": data})
    with pytest.raises(DataError, match=r": node_feat has no readable header \(.+\); fetch the file again$"):
        read_layout(path)


def mutated(data, rng):
    """Change a few bytes: overwrite, flip one bit, cut out, or repeat."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at, length = rng.integers(len(data)), rng.integers(1, 9)
        match rng.integers(4):
            case 0:
                data[at:at + length] = rng.bytes(length)
            case 1:
                data[at] ^= 1 << rng.integers(8)
            case 2:
                del data[at:at + length]
            case 3:
                data[at:at] = data[at:at + length]
    return bytes(data)


@pytest.mark.parametrize("arrays, read", [(LAYOUT, read_layout), (TILE, read_tile)], ids=["layout", "tile"])
def test_random_faults_with_a_right_checksum_still_end_in_a_data_error_or_a_whole_graph(tmp_path, arrays, read):
    intact, rng, refused = members(arrays), np.random.default_rng(0), 0
    for _ in range(400):
        name = rng.choice(list(intact))
        head = len(intact[name]) - arrays[name[:-4]].nbytes
        cut = head if rng.random() < 0.8 else len(intact[name])         # the header is where faults are subtle
        broken = mutated(intact[name][:cut], rng) + intact[name][cut:]
        path = zipped(tmp_path / "graph.npz", intact | {name: broken})
        try:
            graph = read(path)
        except DataError as error:
            assert str(error).startswith(f"{path}: ")
            refused += 1
        else:
            n, c = len(graph.node_feat), len(graph.config_runtime)
            assert graph.node_feat.shape == (n, 140) and graph.node_opcode.shape == (n,)
            assert graph.edge_index.shape[1:] == (2,) and graph.edge_index.max(initial=0) < n
            if read is read_layout:
                assert dense_configs(graph, np.arange(c)).shape == (c, len(graph.node_config_ids), 18)
            else:
                assert graph.config_feat.shape == (c, 24) and graph.config_runtime_normalizers.min() > 0
    assert 200 < refused < 400


def data_set(root, *folders):
    for folder in folders:
        (root / folder).mkdir(parents=True)
    return root


@pytest.mark.parametrize("place", ["", "npz", "npz_all", "npz_all/npz"])
@pytest.mark.parametrize("holds", [("tile",), ("layout",), ("tile", "layout")])
def test_a_data_root_is_found_from_the_folders_above_it(tmp_path, place, holds):
    data_set(tmp_path / place, *holds)
    assert find_data_root(tmp_path) == find_data_root(str(tmp_path)) == tmp_path / place


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """An empty home and working directory without a TPUGRAPHS_ROOT."""
    home, work = data_set(tmp_path, "home", "work") / "home", tmp_path / "work"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.delenv("TPUGRAPHS_ROOT", raising=False)
    monkeypatch.chdir(work)
    for mount in ("/kaggle/input", "/content"):
        if Path(mount).exists():
            pytest.skip(f"{mount} exists, so this machine has other places first")
    return tmp_path


def test_the_usual_places_are_searched_in_order_and_listed_when_all_are_empty(nowhere):
    slug, home = "predict-ai-model-runtime", nowhere / "home"
    places = [f"/kaggle/input/competitions/{slug}", f"/kaggle/input/{slug}",
              "/content/drive/MyDrive/tpugraphs-prepared", "/content/tpugraphs", "/content/drive/MyDrive/tpugraphs",
              f"{home}/data/tpugraphs", "data", "notebooks/lab/measured/cpu"]
    looked = [f"{place}{sub}" for place in places for sub in ("", "/npz", "/npz_all/npz", "/npz_all")]
    with pytest.raises(DataError) as error:
        find_data_root()
    assert str(error.value) == (f"no folder with tile/ or layout/ in it; looked at {', '.join(looked)}; "
                                "pass the data root or set TPUGRAPHS_ROOT; on Kaggle, add the competition with Add "
                                "Input")
    data_set(nowhere / "work" / "data" / "npz_all" / "npz", "tile")
    assert find_data_root() == Path("data/npz_all/npz")
    data_set(home / "data" / "tpugraphs" / "npz", "layout")
    assert find_data_root() == home / "data" / "tpugraphs" / "npz"


def test_in_a_clone_the_measured_programs_stand_in_for_data_that_nobody_named(nowhere, monkeypatch):
    clone = data_set(nowhere / "work", "kit", "notebooks", "docs")
    measured = data_set(clone / "notebooks" / "lab" / "measured" / "cpu" / "npz", "tile")
    assert find_data_root() == measured.relative_to(clone)
    for inside in ("notebooks", "docs"):
        monkeypatch.chdir(clone / inside)
        assert find_data_root() == measured
    for named in ({"explicit": clone / "data"}, {"TPUGRAPHS_ROOT": str(clone / "data")}):
        monkeypatch.setenv("TPUGRAPHS_ROOT", named.get("TPUGRAPHS_ROOT", ""))
        with pytest.raises(DataError, match=f"{re.escape(str(clone / 'data'))} does not exist; expected a folder with"):
            find_data_root(named.get("explicit"))
    monkeypatch.delenv("TPUGRAPHS_ROOT")
    data_set(clone / "data", "layout")
    assert find_data_root() == clone / "data"                    # any data set comes first


@pytest.mark.parametrize("mount", ["tpugraphs-prepared", "datasets/somebody/tpugraphs-prepared"])
def test_a_prepared_kaggle_dataset_comes_before_the_competitions_files(nowhere, monkeypatch, mount):
    monkeypatch.setattr(kit.data, "_KAGGLE_INPUT", nowhere / "input")
    data_set(nowhere / "input" / "predict-ai-model-runtime" / "npz_all" / "npz", "tile")
    assert find_data_root() == nowhere / "input" / "predict-ai-model-runtime" / "npz_all" / "npz"
    data_set(nowhere / "input" / mount, "layout")
    (nowhere / "input" / mount / "catalogue.parquet").touch()
    assert find_data_root() == nowhere / "input" / mount


def test_a_place_that_is_named_is_the_only_one(nowhere, monkeypatch):
    data_set(nowhere / "work" / "data", "tile")
    empty, full = data_set(nowhere, "empty") / "empty", data_set(nowhere / "full", "tile")
    with pytest.raises(DataError, match=re.escape(f"looked at {empty}, {empty / 'npz'}, {empty / 'npz_all/npz'}, ")):
        find_data_root(empty)
    monkeypatch.setenv("TPUGRAPHS_ROOT", str(empty))
    with pytest.raises(DataError, match=re.escape(f"looked at {empty}, ")):
        find_data_root()
    assert find_data_root(full) == full
    monkeypatch.setenv("TPUGRAPHS_ROOT", str(full))
    assert find_data_root() == full
    monkeypatch.setenv("TPUGRAPHS_ROOT", "")
    assert find_data_root() == Path("data")
    assert find_data_root("~/../full") == nowhere / "home" / ".." / "full"


def test_paths_are_the_finished_files_of_one_split_by_name(tmp_path):
    folder = tmp_path / "npz_all" / "npz" / "layout" / "nlp" / "random" / "train"
    folder.mkdir(parents=True)
    for name in ("b.npz", "a.x2.npz", "-1.npz", ".hidden.npz", "c.npz.part", "c.npz.tmp", "d.txt", "e.NPY"):
        (folder / name).touch()
    found = npz_paths(tmp_path, "layout:nlp:random", "train")
    assert found == [folder / name for name in ("-1.npz", "a.x2.npz", "b.npz")]
    assert npz_paths(tmp_path / "npz_all", "layout:nlp:random", "train") == found


def test_a_mistyped_name_is_answered_with_the_right_ones(tmp_path):
    with pytest.raises(DataError) as error:
        npz_paths(tmp_path, "layout:xla", "train")
    assert str(error.value) == ("no collection 'layout:xla'; there are tile:xla, layout:xla:random, "
                                "layout:xla:default, layout:nlp:random, layout:nlp:default")
    with pytest.raises(DataError) as error:
        npz_paths(tmp_path, "tile:xla", "validation")
    assert str(error.value) == "no split 'validation'; there are train, valid, test"


def test_real_layout_files_come_back_bit_for_bit(real_data):
    paths = sorted((real_data / "npz").glob("layout/**/*.npz"))
    assert paths
    for path in paths:
        with np.load(path) as npz:
            arrays = {name: npz[name] for name in npz.files}
        graph = read_layout(path)
        assert_holds(graph, arrays)
        assert graph.config_codes.nbytes + graph.code_rows.nbytes < arrays["node_config_feat"].nbytes / 50


def test_real_tile_files_are_read_as_they_stand(real_data):
    paths = sorted((real_data / "npz").glob("tile/**/*.npz"))
    assert paths
    for path in paths:
        graph = read_tile(path)
        with np.load(path) as npz:
            assert all(np.array_equal(getattr(graph, name), npz[name]) for name in npz.files)


def arrays_in(record):
    """(name, array) of a graph, also of the tuples in it."""
    for name, value in record._asdict().items():
        if hasattr(value, "_fields"):
            yield from arrays_in(value)
        elif isinstance(value, np.ndarray):
            yield name, value


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("integers, floats", [("u1", "<f2"), ("<i8", "<f4"), ("<u4", ">f4"), (">i8", "<f8")])
@pytest.mark.parametrize("kind", ["tile", "layout"])
def test_every_array_of_a_reader_can_be_written_to_whatever_the_file_holds(write, tmp_path, kind, floats, integers,
                                                                           order):
    rng = np.random.default_rng(0)
    digits = rng.integers(-1, 6, (5, 3, 18))
    arrays = tile_arrays(rng) if kind == "tile" else layout_arrays(digits, rng)
    arrays = {name: np.asarray(values.clip(-200, 200), floats if values.dtype.kind == "f" else integers, order=order)
              for name, values in arrays.items()}
    for name in arrays.keys() & {"config_runtime", "config_runtime_normalizers"}:
        arrays[name] = arrays[name].clip(1, 100)
    path = write(arrays)
    collection = "tile:xla" if kind == "tile" else "layout:xla:random"
    place = tmp_path / "root" / collection.replace(":", "/") / "train"
    place.mkdir(parents=True)
    path = path.rename(place / "a.npz")
    graph = (read_tile if kind == "tile" else read_layout)(path)
    graphs = [graph, prepare(tmp_path / "root", tmp_path / "prepared", progress=False).graph(collection, "train", "a")]
    if kind == "layout":
        graphs += [prune(graph), drop_duplicate_configs(graph)[0]]
        assert dense_configs(graph, [0, 1]).flags.writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for one in graphs:
            for name, array in arrays_in(one):
                assert array.flags.writeable, name
                torch.from_numpy(array) if array.dtype.kind in "bif" or array.dtype == np.uint8 else None
