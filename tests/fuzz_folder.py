"""Inputs for tests/fuzz.py: the folder of a run in which one file is damaged, or replaced by another one."""
import atexit
import contextlib
import io
import json
import shutil
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from test_data import mutated, tile_arrays

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))
from steps import Step

from kit.data import DataError
from kit.files import file_sha256
from kit.prepare import prepare
from kit.submit import check_submission, read_submission
from kit.training import CheckpointError, load_checkpoint, save_checkpoint
from lab.run import Results, from_code, from_data, from_settings, noted_settings, read_scores, write_report
from lab.run.provenance import MARK, is_own, make_room, own_results, read_mark, unfit

STEP, CHECKPOINT = "03_train_tile", "checkpoints/tile_xla-tile-0-01234567.pt"
TEXTS = (b"", b"{", b"[" * 100_000, b"null", b"[]", b"1", b'"x"', b"{}", b"1" * 5000, b"\xff\xfe", b"\0" * 40)
VALUES = (None, 0, -1, 1e308, 10 ** 400, True, "", "x", "\0", "\ud800", "../x", "/etc/passwd", "a" * 300, [], {}, [[]],
          {"x": 1}, ["x"], "file " + "a" * 300, "0" * 64)


@lru_cache(1)
def whole():
    """A folder of a run and its data, small and made by the kit's own writers -> its path."""
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    rng, source, out = np.random.default_rng(0), place / "npz" / "tile" / "xla", place / "out"
    for split in ("train", "valid", "test"):
        (source / split).mkdir(parents=True)
        np.savez(source / split / "k.npz", **tile_arrays(rng))
    (place / "npz" / "layout").mkdir()
    prepare(place / "npz", place / "data", progress=False)
    results = Results(out, STEP, place / "data", {"steps": 3, "recipe": "short"})
    costs, made_from = {"tile:xla:k": rng.normal(size=6)}, from_data(place / "data", ["tile:xla"], "train", "test")
    made_from |= from_code("kit.train") | from_settings(steps=3)
    results.save(CHECKPOINT, lambda path: save_checkpoint(path, network(), step=3), made_from)
    record = {"settings": {"steps": 3}, "model": "TileModel", "parameters": 8, "graphs": 1, "configs_seen": 9,
              "seconds": 0.5, "peak_memory": 1 << 20, "curve": {"loss": [0.5, 0.4], "score": [None, 0.9]}}
    results.save(CHECKPOINT.replace(".pt", ".json"), lambda path: path.write_text(json.dumps(record)), made_from)
    for split in ("valid", "test"):
        results.save_costs(f"predictions/tile_xla/tile_seed0.{split}.npz", costs, made_from | {
            "weights": file_sha256(out / CHECKPOINT)})
    results.load_members("predictions", ["tile:xla"])
    results.save_costs("ensemble/tile_xla.test.npz", costs, results.from_read())
    row = {"collection": "tile:xla", "model": "ensemble", "score": 0.5, "low": 0.4, "high": 0.6, "graphs": 1,
           "seeds": 1, "split": "valid, real files"}
    results.save_table("scores.csv", pd.DataFrame([row]), results.from_read())
    results.load_costs(out / "ensemble" / "tile_xla.test.npz")
    results.save_submission(costs, results.from_read())
    book = {"cells": [{"cell_type": "markdown", "source": ["# A"]}, {"cell_type": "code", "source": [], "outputs": [
        {"data": {"image/png": "iVBORw0KGgo="}}]}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (out / "notebooks").mkdir()
    (out / "notebooks" / f"{STEP}.ipynb").write_text(json.dumps(book))
    names = {path.relative_to(out).as_posix(): file_sha256(path) for path in sorted(out.rglob("*"))
             if path.is_file() and path.parent.name != ".run"}
    note = {"key": "k", "problems": [["k.npz", "is damaged"]], "files": names}
    (out / ".run" / f"{STEP}.json").write_text(json.dumps(note))
    report(out)
    return place


def report(out):
    """The report, as at the end of a run."""
    make_room(out / "report.html", out)
    write_report(out, "the next command")


def network():
    """A small model."""
    model = torch.nn.Linear(3, 2)
    model.settings = "two of three"
    return model


def odd_json(data, rng):
    """JSON in which one value, name or item is another one."""
    try:
        tree = json.loads(data)
    except ValueError:
        return mutated(data, rng)
    place = tree
    while isinstance(place, (dict, list)) and place:
        key = [*place][rng.integers(len(place))] if isinstance(place, dict) else int(rng.integers(len(place)))
        if isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.7:
            place = place[key]
            continue
        value = VALUES[rng.integers(len(VALUES))]
        if isinstance(place, dict) and rng.random() < 0.3:
            place[str(value)] = place.pop(key)
        else:
            place[key] = value
        break
    return json.dumps(tree).encode()


def write_folder(path, rng):
    """Copy the folder to `path`, change one file in it, and note which one beside it."""
    shutil.copytree(whole() / "out", path)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    file = files[rng.integers(len(files))]
    data, kind = file.read_bytes(), rng.integers(6)
    if kind == 0:
        data = data[:rng.integers(len(data) + 1)]
    elif kind == 1:
        data = TEXTS[rng.integers(len(TEXTS))]
    elif kind == 2:
        data = files[rng.integers(len(files))].read_bytes()
    elif kind == 3 or file.suffix not in (".json", ".ipynb"):
        data = mutated(data, rng) if data else b"x"
    else:
        data = odd_json(data, rng)
    file.unlink() if kind == 5 and rng.random() < 0.2 else file.write_bytes(data)
    path.with_suffix(".txt").write_text(file.relative_to(path).as_posix())


def read_folder(out):
    """Read the folder by every reader; a result that changed must not be fit, nor what was made from it."""
    name, data_root, refused = out.with_suffix(".txt").read_text(), whole() / "data", []
    file, before = out / name, whole() / "out" / name
    data = file.read_bytes() if file.is_file() else None
    changed = data != before.read_bytes()
    results = [Path(str(mark).removesuffix(MARK)) for mark in sorted((whole() / "out").rglob(f"*{MARK}"))]
    results = [out / path.relative_to(whole() / "out") for path in results]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        fit = {path for path in results if unfit(path, out, data_root) is None}
        read = {path for path in results if (read_mark(out.parent / path) or {"made_from": {}})["made_from"].get(
            f"file {name}")}
        assert not (changed and {file} & {*results} & fit), "a changed result is fit"
        assert not (changed and file in results and read & fit), "what was made from a changed result is fit"
        for path in results:
            is_own(path, out)
        for step in (STEP, "run.py"):
            own_results(out, step)
        step = Step(whole() / f"{STEP}.ipynb", {}, out)
        fault = step.fault(data_root)
        assert not changed or fault or name.startswith((".run/", "report")) or name not in step.note["files"]
        step.brought()
        for call in (lambda: load_checkpoint(out / CHECKPOINT, network()), lambda: noted_settings(out),
                     lambda: read_scores(out / "scores.csv"), lambda: read_submission(out / "submission.csv"),
                     lambda: check_submission(out / "submission.csv", data_root),
                     lambda: Results(out, "05_ensemble", data_root).load_costs(out / "ensemble/tile_xla.test.npz"),
                     lambda: Results(out, "05_ensemble", data_root).load_members("predictions", ["tile:xla"]),
                     lambda: report(out), lambda: again(out, data_root)):
            try:
                call()
            except (DataError, CheckpointError, FileNotFoundError) as fault:
                assert out.name in str(fault), fault
                refused.append(fault)
    own = name.startswith((".run/", "settings/", "notebooks/", "report.html")) or name.endswith(MARK)
    if changed and data is not None and not own:
        assert data in [path.read_bytes() for path in out.rglob("*") if path.is_file()], said.getvalue()
    if refused:
        raise DataError(f"{out}: {refused[0]}")


def again(out, data_root):
    """Write the results again, as a step that runs again does."""
    results, costs = Results(out, STEP, data_root, {"steps": 4}), {"tile:xla:k": np.arange(6.0)}
    for path in own_results(whole() / "out", STEP):
        name = path.relative_to(whole() / "out").as_posix()
        if name == "submission.csv":
            results.save_submission(costs, {})
        elif name == "scores.csv":
            results.save_table(name, pd.DataFrame([{"collection": "tile:xla"}]), {})
        else:
            results.save_costs(name, costs, {})
    results.retire(["tile:xla"])
