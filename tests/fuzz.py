"""Feed every reader with broken and odd files: python tests/fuzz.py --inputs 10000 --seed 0

Files are drawn small, then truncated, bit-flipped, renamed, retyped, reshaped, filled with huge or negative values,
given headers that lie, or blown up; some stay whole but odd: no edges, one configuration, 65,537 codes. "store" is a
result of a run, which must not be taken for fit once it has changed.
A reader may answer with the error that it documents, which names the file and, where an npz file can be opened, the
array, or with a result that agrees with a second, plain way of reading. Anything else, more than `SECONDS` or more than
`MEGABYTES` is foreign, is printed, and makes the exit status 1. The same seed gives the same inputs.
"""
import argparse
import faulthandler
import io
import json
import resource
import signal
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))
import torch
from test_data import grouped_digits, mutated, npy, numbered_digits, patched, tile_arrays, zipped
from test_own_program import every_option, small_network
from test_proto import drawn_layout_file, drawn_tile_file

from kit.data import CATALOGUE, COLLECTIONS, SPLITS, DataError, dense_configs, read_layout, read_tile
from kit.factored import read_graph
from kit.kaggle import KaggleError
from kit.kaggle.downloads import unpack
from kit.prepare import COLUMNS, Source, open_prepared, prepare_file, prepared_path
from kit.programs.hlo import hlo_messages
from kit.programs.own import program_from_hlo
from kit.proto import read_layout_pb, read_tile_pb
from kit.submit import check_submission, read_submission
from kit.training.checkpoints import CheckpointError, load_checkpoint, save_checkpoint
from lab.run import Store, load_costs
from lab.run.ledger import list_runs, record_leaderboard
from lab.run.season import read_season

SECONDS = 20                     # of CPU time; the slowest whole file takes a tenth
MEGABYTES = 512                  # that the process may grow by at one input
VALUES = (0, 1, -1, 5, 6, 7, 120, 121, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -2**31,
          -2**63, 2**64, 1e38, 3.5e38, 0.5, 5e-324, -0.0, np.nan, np.inf, -np.inf)
TYPES = ("bool", "i1", "u1", "i2", "u2", "f2", "i4", "u4", ">i4", "f4", ">f4", "i8", "u8", "f8", ">f8", "g", "c8",
         "c16", "S3", "U3", "O", "M8[s]", "m8[s]", "i4,f4")
WORDS = ("", "x", "\0", "é", "../x", "a b", "convolution", "dot", "reshape", "fusion", "tuple", "-1", "9" * 30, "1e9")
EVERYTHING = [(collection, split) for collection in COLLECTIONS for split in SPLITS]


class Reader(NamedTuple):
    """What is fed: `write(path, rng)` draws an input, `read(path)` raises AssertionError if a result is not whole."""
    suffix: str
    write: Callable
    read: Callable
    errors: tuple = (DataError,)             # that it documents
    memory: int = 1                          # times MEGABYTES
    arrays: tuple = ()                       # one of which an error names, unless the archive cannot be opened at all


class TooSlow(BaseException):
    """Not an Exception, so that no reader takes it for a fault of its file."""


def pick(rng, values):
    return values[rng.integers(len(values))]


# --- npz


def drawn_layout(rng):
    n, m, c, nc = pick(rng, (1, 2, 9, 30)), pick(rng, (0, 1, 20)), pick(rng, (1, 2, 40)), pick(rng, (0, 1, 3, 9))
    nc = min(n, nc)
    digits = grouped_digits(rng, c, (1,) * nc, int(pick(rng, (1, 2, 5)))) if nc else np.zeros((c, 0, 18))
    if rng.random() < 0.003 and nc:
        c, nc, digits = 65537, 1, numbered_digits(rng.permutation(65537)[:, None])
    return {"node_feat": rng.normal(0, 1e6, (n, 140)).astype(np.float32),
            "node_opcode": rng.integers(0, 121, n, dtype=np.uint8), "edge_index": rng.integers(0, n, (m, 2)),
            "node_config_ids": rng.permutation(n)[:nc], "node_splits": np.array([[0, n]]),
            "node_config_feat": digits.astype(pick(rng, ("i1", "f4"))),
            "config_runtime": rng.integers(1, 1 << 40, c) * (rng.random() < 0.8)}


def drawn_tile(rng):
    return tile_arrays(rng, int(pick(rng, (1, 2, 30))))


def odd_array(array, rng):
    value = pick(rng, VALUES)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            match rng.integers(8):
                case 0:
                    return array.astype(pick(rng, TYPES))
                case 1:
                    return np.full_like(array, value)
                case 2:
                    return pick(rng, (array.T, array[None], array[..., None], array.ravel(), array[()]))
                case 3:
                    return pick(rng, (array[:rng.integers(len(array) + 1)], array[..., :rng.integers(3)], array[:0]))
                case 4:
                    return np.concatenate([array, array])
                case 5:
                    return np.array(value)
                case 6:
                    return np.asfortranarray(array)
            array = array.copy() if rng.random() < 0.5 else array.astype(pick(rng, ("i8", "f8", "u8", "f4")))
            array.flat[rng.integers(max(array.size, 1))] = value
        except (OverflowError, ValueError, TypeError, IndexError):       # NumPy will not make this one
            pass
        return array


def encoded(array):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=True)
    return file.getvalue()


def write_npz(drawn, path, rng):
    arrays = drawn(rng)
    kind, name = rng.integers(13), pick(rng, list(arrays))           # from 9 on it mostly stays whole
    if kind in (0, 1):
        for one in {name, pick(rng, list(arrays))}:
            arrays[one] = odd_array(arrays[one], rng)
    parts = {f"{one}.npy": encoded(array) for one, array in arrays.items()}
    whole, member, other = arrays[name], f"{name}.npy", pick(rng, list(parts))
    match kind:
        case 2:
            del parts[member]
        case 3:
            parts[pick(rng, WORDS).replace("\0", "") + ".npy"] = parts.pop(member)
        case 4:
            parts[member], parts[other] = parts[other], parts[member]
        case 5:
            data, head = parts[member], 128 if rng.random() < 0.7 else len(parts[member])
            parts[member] = mutated(data[:head], rng) + data[head:]
        case 6:
            shape = tuple(int(pick(rng, (*whole.shape, 0, -1, 10**6, 2**31, 2**62))) for _ in whole.shape or (1,))
            parts[member] = npy(whole, shape=shape, descr=pick(rng, (whole.dtype.str, "<f8", "|O", "|V1000000000")))
        case 9 if rng.random() < 0.05:                   # 64 MB of zeros deflate a thousandfold
            row = max(whole.dtype.itemsize * int(np.prod(whole.shape[1:])), 1)
            parts[member] = encoded(np.zeros((2**26 // row, *whole.shape[1:]), whole.dtype))
    zipped(path, parts, pick(rng, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    if kind == 8:
        path.write_bytes(mutated(path.read_bytes(), rng))
    if kind == 6 and rng.random() < 0.5:
        patched(path, name, size=int(pick(rng, (0, 10**6, 2**31, 2**32 - 1))))
    if kind == 7:
        data = path.read_bytes()
        path.write_bytes(data[:rng.integers(len(data))])


def check_program(graph):
    n, edges = len(graph.node_feat), graph.edge_index
    assert n and graph.node_feat.shape == (n, 140) and np.isfinite(graph.node_feat).all()
    assert graph.node_opcode.shape == (n,) and 0 <= graph.node_opcode.min() <= graph.node_opcode.max() <= 120
    assert edges.shape[1:] == (2,) and edges.min(initial=0) >= 0 and edges.max(initial=0) < n


def check_layout(graph):
    check_program(graph)
    c, g = graph.config_codes.shape
    assert len(graph.config_runtime) == c and len(graph.node_group) == len(graph.node_config_ids)
    assert graph.node_group.max(initial=-1) == g - 1
    for start in range(0, c, 4096):
        index = np.arange(start, min(c, start + 4096))
        rows = dense_configs(graph, index)
        assert rows.shape == (len(index), len(graph.node_config_ids), 18) and rows.size == 0 or -1 <= rows.min() <= 5


def check_as_stored(graph, path):
    """Against NumPy's own reader."""
    with np.load(path, allow_pickle=False) as npz:
        for name in ("node_feat", "node_opcode", "edge_index", "node_config_ids", "config_runtime", "config_feat",
                     "config_runtime_normalizers"):
            if hasattr(graph, name):
                own = getattr(graph, name)
                assert np.array_equal(own, npz[name].astype(own.dtype)), name
        if hasattr(graph, "config_codes"):
            assert np.array_equal(dense_configs(graph, range(len(graph.config_codes))), npz["node_config_feat"])


def read_npz_layout(path):
    graph = read_layout(path)
    check_layout(graph)
    check_as_stored(graph, path)


def read_npz_tile(path):
    graph = read_tile(path)
    check_program(graph)
    c = len(graph.config_runtime)
    assert c and graph.config_feat.shape == (c, 24) and graph.config_runtime_normalizers.min() > 0
    check_as_stored(graph, path)


# --- prepared files


def drawn_prepared(drawn, collection, rng):
    """The arrays of the prepared form of a drawn source file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "drawn.npz")
        np.savez(path, **drawn(rng))
        source = Source(collection, "test", path, 0, 0)
        prepare_file(source, folder)
        with np.load(prepared_path(folder, *source.key)) as npz:
            return {name: npz[name] for name in npz.files if name != "about.json"}


def drawn_prepared_layout(rng):
    return drawn_prepared(drawn_layout, "layout:xla:random", rng)


def drawn_prepared_tile(rng):
    return drawn_prepared(drawn_tile, "tile:xla", rng)


def check_as_prepared(graph, path):
    """Against NumPy's own reader and plain decoding."""
    with np.load(path, allow_pickle=False) as npz:
        stored = {name: npz[name] for name in npz.files}
    if "node_rows" in stored:
        rows = stored["node_rows"].astype(np.float32)
        assert all(np.array_equal(own, rows[row]) for own, row in zip(graph.node_feat, stored["node_row"].tolist()))
    if "edge_steps" in stored:
        consumer = 0
        for edge, (step, back) in zip(graph.edge_index.tolist(), stored["edge_steps"].tolist()):
            consumer += step
            assert edge == [consumer, consumer - back]
    for name in graph._fields[1:]:
        if name in stored:
            assert np.array_equal(getattr(graph, name), stored[name].reshape(getattr(graph, name).shape)), name
    for name, value in graph.meetings._asdict().items() if getattr(graph, "meetings", None) else ():
        assert np.array_equal(value, stored[f"meetings_{name}"]), name
    assert not getattr(graph, "meetings", None) or graph.meetings.hops.min(initial=1) > 0


def read_prepared_layout(path):
    graph = read_graph(path, "layout:xla:random")
    check_layout(graph)
    check_as_prepared(graph, path)


def read_prepared_tile(path):
    graph = read_graph(path, "tile:xla")
    check_program(graph)
    check_as_prepared(graph, path)


def prepare_one(collection, path):
    """Prepare a file; what is prepared must be what the reader reads, and a reason is the reader's error."""
    source = Source(collection, "test", path, path.stat().st_size, 1)
    row = prepare_file(source, path.parent / "prepared")
    assert row.keys() <= COLUMNS.keys()
    if "reason" in row:
        raise DataError(f"{path}: {row['reason']}")
    pl.DataFrame([row], schema=COLUMNS)
    read, again = (read_graph(one, collection) for one in (path, prepared_path(path.parent / "prepared", *source.key)))
    assert all(one.tobytes() == other.tobytes() for one, other in zip(read, again) if isinstance(one, np.ndarray))


def write_catalogue(path, rng):
    rows = [{"collection": pick(rng, COLLECTIONS), "split": pick(rng, SPLITS), "name": f"n{i}", "nodes": i}
            for i in range(rng.integers(4))]
    table = pl.DataFrame(rows, schema=COLUMNS)
    if rng.random() < 0.3:
        table = pick(rng, (table.drop("noise"), table.rename({"noise": "x"}), table.head(0), pl.DataFrame(),
                           table.cast({"nodes": pl.String}), table.with_columns(split=pl.lit(None, pl.String))))
    table.write_parquet(path)
    if rng.random() < 0.7:
        path.write_bytes(mutated(path.read_bytes(), rng))


def read_catalogue(path):
    folder = path.with_suffix("")
    (folder / "tile").mkdir(parents=True)
    path.rename(folder / CATALOGUE)
    assert dict(open_prepared(folder).catalogue.schema) == COLUMNS


# --- protobufs


def odd_message(message, rng):
    """Change one field, somewhere down the message."""
    while True:
        given = [field for field, _ in message.ListFields()]
        field = pick(rng, given if given and rng.random() < 0.8 else list(message.DESCRIPTOR.fields))
        value = getattr(message, field.name)
        many = hasattr(value, "append") or hasattr(value, "add")
        if field.message_type and rng.random() < 0.85 and (not many or len(value)):
            message = value[rng.integers(len(value))] if many else value
            continue
        odd = {field.TYPE_BYTES: rng.bytes(rng.integers(9)), field.TYPE_STRING: pick(rng, WORDS),
               field.TYPE_BOOL: rng.random() < 0.5}.get(field.type, pick(rng, VALUES))
        try:
            match rng.integers(5) if many else 0:
                case 0:
                    message.ClearField(field.name)
                    if not many and not field.message_type and rng.random() < 0.8:
                        setattr(message, field.name, odd)
                case 1 if len(value):
                    del value[rng.integers(len(value))]
                case 2 if len(value):
                    value.extend([value[rng.integers(len(value))]] * int(pick(rng, (1, 2, 70))))
                case 3 if len(value) and not field.message_type:
                    value[rng.integers(len(value))] = odd
                case _:
                    value.extend([odd] * int(pick(rng, (1, 7)))) if not field.message_type else value.add()
        except (TypeError, ValueError):                  # the field cannot hold such a value
            pass
        return


def write_pb(kind, data, path, rng):
    if rng.random() < 0.4:
        path.write_bytes(mutated(data, rng) if rng.random() < 0.8 else data[:rng.integers(len(data))])
        return
    message = hlo_messages()[kind].FromString(data)
    for _ in range(rng.integers(1, 4)):
        odd_message(message, rng)
    path.write_bytes(message.SerializeToString())


def read_tiles(path):
    for graph in read_tile_pb(path):
        check_program(graph)
        assert graph.config_feat.shape == (len(graph.config_runtime), 24)


def read_program(path):
    program = program_from_hlo(path)
    check_layout(every_option(program))
    assert (0 <= program.written).all() and (program.written < program.dims).all()


# --- texts


def write_submission(path, rng):
    rows = [f"{pick(rng, COLLECTIONS)}:{rng.integers(99):x},{';'.join(map(str, rng.permutation(5)))}"
            for _ in range(rng.integers(6))]
    if rows and rng.random() < 0.5:
        place = rng.integers(len(rows))
        rows[place] = pick(rng, (rows[place] + pick(rng, WORDS), pick(rng, WORDS) + rows[place], rows[place] * 2,
                                 rows[place] + f";{pick(rng, VALUES)}", rows[place].replace(";", pick(rng, WORDS))))
    data = "\n".join(["ID,TopConfigs", *rows, ""]).encode()
    path.write_bytes(mutated(data, rng) if rng.random() < 0.5 else data)


def read_csv(path):
    problems = check_submission(path, sample=path)
    assert all(isinstance(problem, str) for problem in problems)
    for indices in read_submission(path).values():
        assert indices.dtype == np.int64 and len(indices)


def write_json(path, rng):
    entry = {"run": path.stem, "data": "sample data", "sha256": "0" * 64, "commit": None, "parameters": {"a": [1, 2.5]},
             "validation": {"tile:xla": {"score": 0.9, "low": 0.8}}, "leaderboard": {"public": None, "private": 0.5}}
    kind, place = rng.integers(4), entry
    if kind == 0:
        while True:
            key = pick(rng, list(place))
            if not (isinstance(place[key], dict) and rng.random() < 0.6):
                break
            place = place[key]
        if rng.random() < 0.3:
            del place[key]
        else:
            place[key] = pick(rng, (*VALUES, *WORDS, None, [], {}, [[]], {"score": "x"}, True))
    data = json.dumps(entry).encode()
    if kind == 1:
        data = mutated(data, rng)
    if kind == 2:
        data = pick(rng, (b"", b"[" * 100_000, b"null", b"[]", b"1", b'"x"', b"{}", rng.bytes(40), b"1" * 5000,
                          data[:rng.integers(len(data))]))
    path.write_bytes(data)


def read_ledger(path):
    season = read_season(path.parent)
    season.rows(), season.remarks(), season.points()
    rows = list_runs(path.parent)
    assert len(season.entries) + (season.problem is not None) == len(rows) <= 1
    record_leaderboard(path.parent, path.stem, public=0.5)
    assert list_runs(path.parent)[0]["public"] == 0.5


# --- checkpoints, predictions, archives


def network():
    model = torch.nn.Linear(3, 2)
    model.settings = "two of three"
    return model


def write_checkpoint(path, rng):
    model, kind = network(), rng.integers(3)
    extra = {"step": 3, "history": {"loss": [0.5]}, "best": model.state_dict()}
    if rng.random() < 0.5:
        del extra["best"]
    save_checkpoint(path, model, **extra)
    if kind == 0:
        data = path.read_bytes()
        path.write_bytes(mutated(data, rng) if rng.random() < 0.8 else data[:rng.integers(len(data))])
    if kind == 1:
        odd = pick(rng, (1, "x", None, [], {}, {1: 2}, {"weight": 1}, {"weight": torch.zeros(2, 3, dtype=torch.int8)},
                         {**model.state_dict(), "bias": torch.zeros(0)}, {**model.state_dict(), 3: 4}, Path("x"),
                         {**model.state_dict(), "bias": "x"}, {**model.state_dict(), "more": torch.zeros(1)}))
        whole = pick(rng, (odd, {"model": odd}, {"model": model.state_dict(), "best": odd}))
        torch.save(whole, path)


def read_weights(path):
    model = network()
    assert "model" not in load_checkpoint(path, model)
    assert model.weight.shape == (2, 3) and model.weight.dtype == torch.float32


def write_costs(path, rng):
    np.savez(path, **{"tile:xla:a": rng.normal(size=5), "tile:xla:b": rng.normal(size=0)})
    if rng.random() < 0.3:
        np.savez(path, **{"tile:xla:a": odd_array(rng.normal(size=5), rng)})
    if rng.random() < 0.7:
        path.write_bytes(mutated(path.read_bytes(), rng))


def read_costs(path):
    assert all(cost.ndim == 1 and cost.dtype.kind in "fiu" for cost in load_costs(path).values())


def write_kept(path, rng):
    """A result of a store; the name of the file becomes that of the result."""
    store = Store(path.parent / "store")
    name = store.keep("costs", {"tile:xla:a": rng.normal(size=5), "tile:xla:b": rng.normal(size=0)})
    path.write_bytes(mutated(store.path(name, ".npz").read_bytes(), rng))
    path.with_suffix(".name").write_text(name)


def read_kept(path):
    name, store = path.with_suffix(".name").read_text(), Store(path.parent / "store", report=lambda line: None)
    store.path(name, ".npz").write_bytes(path.read_bytes())
    found = store.find(name)
    if found is None:
        raise DataError(f"{path}: was changed")
    assert found.keys() == {"tile:xla:a", "tile:xla:b"} and found["tile:xla:a"].shape == (5,)


def write_archive(path, rng):
    good = f"npz/{pick(rng, COLLECTIONS).replace(':', '/')}/{pick(rng, SPLITS)}/"
    names = [pick(rng, (good + "a.npz", good + "../../b.npz", "/" + good + "c.npz", good + "d\0.npz", good + "é.npz",
                        good.replace("/", "\\") + "e.npz", good + "f" * 300 + ".npz", "npz_all.zip", "x/npz_all.zip",
                        "sample_submission.csv", good, good + "\n.npz", ".."))
             for _ in range(rng.integers(1, 4))]
    if rng.random() < 0.4:
        names = [good + f"{i}.npz" for i in range(3)]
    files = {name: pick(rng, (b"", b"12345", rng.bytes(2000), bytes(1 << pick(rng, (10, 16, 24))))) for name in names}
    if rng.random() < 0.5:
        with zipfile.ZipFile(path, "w", pick(rng, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            for name, data in files.items():
                if name.endswith("npz_all.zip"):
                    inner = io.BytesIO()
                    with zipfile.ZipFile(inner, "w") as nested:
                        nested.writestr(good + "g.npz", data[:4096])
                    data = mutated(inner.getvalue(), rng) if rng.random() < 0.5 else inner.getvalue()
                info = zipfile.ZipInfo(name)
                info.external_attr = int(pick(rng, (0, 0, 0o100644, 0o100644, 0o120777, 0o40755))) << 16
                archive.writestr(info, data)
    else:
        with tarfile.open(path, "w", format=int(pick(rng, (0, 1, 2)))) as archive:
            for name, data in files.items():
                info = tarfile.TarInfo(name[:90] if rng.random() < 0.5 else name)
                info.size, info.type = len(data), pick(rng, (*[b"0"] * 12, b"2", b"1", b"5", b"S", b"6"))
                info.linkname = "../../x"
                try:
                    archive.addfile(info, io.BytesIO(data))
                except ValueError:                       # this format has no place for such a name
                    pass
    if rng.random() < 0.4:
        path.write_bytes(mutated(path.read_bytes(), rng))


def read_archive(path):
    root = path.parent / "deep" / "er" / "data"
    before = {p for p in path.parent.rglob("*")}
    try:
        count = unpack(path, root, EVERYTHING)
        assert count >= len(list(root.rglob("*.npz")))
    finally:
        new = {p for p in path.parent.rglob("*") if p.is_file()} - before
        assert all(p.resolve().is_relative_to(root.resolve()) and not p.name.endswith(".part") for p in new), new


def readers():
    """{name: Reader}."""
    def npz(drawn, read, memory=1):
        arrays = {**drawn(np.random.default_rng(0)), "node_feat": 0, "edge_index": 0, "node_config_feat": 0}
        return Reader(".npz", lambda path, rng: write_npz(drawn, path, rng), read, memory=memory, arrays=tuple(arrays))

    def pb(kind, data, read):
        return Reader(".pb", lambda path, rng: write_pb(kind, data, path, rng), read)
    return {
        "read_layout": npz(drawn_layout, read_npz_layout), "read_tile": npz(drawn_tile, read_npz_tile),
        "prepared_layout": npz(drawn_prepared_layout, read_prepared_layout),
        "prepared_tile": npz(drawn_prepared_tile, read_prepared_tile),
        "prepare_layout": npz(drawn_layout, lambda path: prepare_one("layout:xla:random", path), memory=2),
        "prepare_tile": npz(drawn_tile, lambda path: prepare_one("tile:xla", path), memory=2),
        "catalogue": Reader(".parquet", write_catalogue, read_catalogue),
        "read_layout_pb": pb("Tuned", drawn_layout_file(), lambda path: check_layout(read_layout_pb(path))),
        "read_tile_pb": pb("TunedModules", drawn_tile_file(), read_tiles),
        "program_from_hlo": pb("Module", small_network().SerializeToString(), read_program),
        "submissions": Reader(".csv", write_submission, read_csv),
        "ledger": Reader(".json", write_json, read_ledger),
        "load_checkpoint": Reader(".pt", write_checkpoint, read_weights, (CheckpointError,)),
        "load_costs": Reader(".npz", write_costs, read_costs),
        "store": Reader(".npz", write_kept, read_kept),
        "unpack": Reader(".archive", write_archive, read_archive, (KaggleError,))}


def too_slow(*_):
    raise TooSlow(f"more than {SECONDS} s")


def names_the_fault(reader, path, words):
    """Whether an error says where to look: the file and, where the reader has arrays, which of them."""
    place = words.partition(f"{path}: ")[2]
    if reader.arrays and place.startswith("not a readable npz file"):
        return not opens(path)
    return path.stem in words and (not reader.arrays or place.startswith(tuple(f"{name} " for name in reader.arrays)))


def opens(path):
    """Whether the directory of an archive can be read, by Python's own reader."""
    try:
        with zipfile.ZipFile(path):
            return True
    except Exception:                        # of any kind, which is why the kit's reader has an error of its own
        return False


def resident(kind):
    """Memory of this process in MB: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))


def outcome(reader, path):
    """Feed one file -> (result, refused or foreign; what is wrong; s of CPU time; MB that the process grew by)."""
    Path("/proc/self/clear_refs").write_text("5")                # the peak of memory starts anew
    before, start = resident("VmRSS"), time.process_time()
    faulthandler.dump_traceback_later(900, exit=True)            # stuck without using the CPU
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)       # NumPy's, on what it cannot compute
            warnings.simplefilter("ignore", UserWarning)         # torch's, on odd weights
            reader.read(path)
        end, words = "result", ""
    except BaseException as fault:
        end, words = "refused", str(fault)
        if isinstance(fault, KeyboardInterrupt):
            raise
        # a JSONDecodeError is a ValueError, and so on: only the documented types themselves, and only with the place
        if type(fault) not in reader.errors or not names_the_fault(reader, path, words):
            end, words = "foreign", "".join(traceback.format_exception(fault)[-6:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
    grown = resident("VmHWM") - before
    if grown > reader.memory * MEGABYTES:
        end, words = "foreign", f"{words}\nthe process grew by {grown:.0f} MB"
    return end, words, time.process_time() - start, grown


def fuzz(subjects, inputs, seed, folder, report=print):
    """Feed `inputs` files, shared out evenly -> {reader: [results, refused, foreign, slowest, most MB]}."""
    table = {}
    signal.signal(signal.SIGPROF, too_slow)
    for number, (name, reader) in enumerate(subjects.items()):
        row = table[name] = [0, 0, 0, 0.0, 0.0]
        share = inputs // len(subjects) + (number < inputs % len(subjects))
        for i in range(share):
            # a folder of its own: what an earlier input left there must not matter
            with tempfile.TemporaryDirectory(dir=folder) as own:
                path = Path(own, f"drawn-{number}-{i}{reader.suffix}")
                reader.write(path, np.random.default_rng([seed, number, i]))
                end, words, seconds, grown = outcome(reader, path)
            row[("result", "refused", "foreign").index(end)] += 1
            row[3:] = max(row[3], seconds), max(row[4], grown)
            if end == "foreign" and row[2] <= 3:
                report(f"{name}, input {i} of seed {seed}: {words}")
    return table


def limit_memory(gigabytes=4):
    """Refuse what a reader would take beyond this, so that one that goes wild does not take the machine with it."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (gigabytes << 30), resource.getrlimit(resource.RLIMIT_AS)[1]))


def main(argv=None):
    """Print the table; 1 if anything was foreign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="readers, joined by commas")
    args = parser.parse_args(argv)
    if Path("/proc/self/statm").is_file():
        limit_memory()
    subjects = {name: reader for name, reader in readers().items() if not args.only or name in args.only.split(",")}
    # nothing here outlives the process, and waiting for the disk takes most of the time of a folder of a run
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        table = fuzz(subjects, args.inputs, args.seed, folder)
    print(f"{'reader':<18}{'inputs':>8}{'results':>9}{'refused':>9}{'foreign':>9}{'slowest, s':>12}{'most MB':>9}")
    for name, (results, refused, foreign, slowest, grown) in table.items():
        counts = f"{results + refused + foreign:>8}{results:>9}{refused:>9}{foreign:>9}"
        print(f"{name:<18}{counts}{slowest:>12.3f}{grown:>9.0f}")
    foreign = sum(row[2] for row in table.values())
    print(f"{sum(sum(row[:3]) for row in table.values())} inputs, {foreign} foreign")
    return 1 if foreign else 0


if __name__ == "__main__":
    sys.exit(main())
