"""Predictions that come back from Kaggle's machines are not trusted: their names, sizes and contents are checked.

Only predictions and training records are fetched, and only if their names are as the job should write them. Nothing is
unpickled. A file is put in its place once it has passed the checks.
"""
import os
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from kit.data import DataError, NpzFile, npz_paths
from kit.files import file_sha256, whole_file
from kit.kaggle import SECRET, KaggleError, notebook_output
from lab.run import UNQUOTED, load_costs, read_record

MARK = ".made.json"

TRAIN = ("03_train_tile", "04_train_layout")     # the notebooks whose predictions are fetched
RESULTS = "results"              # the folder of a run in a pushed notebook, below Kaggle's working directory
FILE_MOST = 1 << 28              # bytes of one file of predictions, also unpacked; the public test split takes 20 MB
FILES_MOST = 400                 # files per notebook
_RECORD_MOST = 1 << 20           # bytes of a record of a training
_CHECKPOINT = rf"{RESULTS}/checkpoints/[a-z][a-z0-9_+-]{{0,150}}\.pt"
_LOG_LINES = 12                  # of a failed notebook that are shown
_NO_FILE = r"(?!)"               # a regular expression that nothing matches


def collect_predictions(job, out, root, client=None):
    """Fetch and check what a finished notebook predicted -> what changes in the job, "fetched" or "failed"."""
    # out: folder of the run, gets predictions/, baselines/ and checkpoints/*.json; root: the data set, to check by
    try:
        names, log = look_into(job["ref"], client)
        only = _expected_names(job)
        chosen = {name for name in names if re.search(only, name)}
        seen = {re.search(r"_seed(\d+)", name)[1] for name in chosen
                if name.startswith(f"{RESULTS}/predictions/") and name.endswith(".test.npz")}
        if len(seen) < (job["seeds"] or 1) or len(chosen) > FILES_MOST:
            return {"state": "failed", "log": log, "reason": f"the notebook left {len(chosen)} files, predictions of "
                    f"{len(seen)} seeds; expected {job['seeds'] or 'one or more'} seeds and at most {FILES_MOST} files"}
        return {"state": "fetched", "files": _fetch(job, only, out, root, client)}
    except KaggleError as fault:
        if fault.kind not in ("damaged", "missing", "forbidden", "refused"):
            raise
        return {"state": "failed", "reason": str(fault)}


def _expected_names(job):
    """A regular expression for the names of the files that a job should leave."""
    stem, seeds, word = job["collection"].replace(":", "_"), r"\d{1,4}", "[a-z][a-z0-9-]{0,30}"
    if job["seeds"] is not None:
        seeds = "|".join(str(job["first_seed"] + number) for number in range(job["seeds"]))
    return (rf"\A{RESULTS}/(?:predictions/{stem}/{word}_seed(?:{seeds})|baselines/{stem}/{word}_seed(?:{seeds}|0))"
            rf"\.(?:train|valid|test)\.npz(?:{re.escape(MARK)})?\Z|\A{RESULTS}/checkpoints/[a-z][a-z0-9_+-]{{0,150}}\.json\Z")


def look_into(ref, client=None):
    """(names of all files, last lines of the log) of a notebook's latest run; nothing is kept."""
    with tempfile.TemporaryDirectory() as folder:
        done = notebook_output(ref, folder, _NO_FILE, client=client)
        return done["names"], tail(done["log"].read_text("utf-8"))


def _fetch(job, only, out, root, client):
    """Put the files in place, all or none -> {name below `out`: sha256}."""
    store = Path(out, ".run")
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store) as folder:
        files = list(dict.fromkeys(notebook_output(job["ref"], folder, only, FILE_MOST, client=client)["files"]))
        there, files = Path(folder, RESULTS), [file for file in files if not file.name.endswith(MARK)]
        for file in files:
            if file.suffix == ".json":
                _check_record(file)
            else:
                check_predictions(file, job["collection"], root)
                _check_mark(file, there, root)
        kept = {file.relative_to(there).as_posix(): file_sha256(file) for file in files}
        for name, file in zip(kept, files):
            make_room(Path(out, name), out)
            with whole_file(Path(out, name)) as part:        # a folder of `out` may lie on another disk
                shutil.copyfile(file, part)
            mark = read_mark(file) or {"by": job["ref"], "made_from": {}}
            write_mark(Path(out, name), out, mark["by"], mark["made_from"])
    return kept


def fetch_checkpoints(jobs, out, wanted, client=None):
    """Fetch the checkpoints that finished jobs left on Kaggle, if their SHA-256 is in `wanted` -> the names fetched."""
    store, fetched = Path(out, ".run"), []
    store.mkdir(parents=True, exist_ok=True)
    for job in jobs.values():
        lacking = {*wanted} - {file_sha256(path) for path in Path(out, "checkpoints").glob("*.pt")}
        if job["state"] not in ("complete", "fetched") or not lacking:
            continue
        with tempfile.TemporaryDirectory(dir=store) as folder:
            marks = notebook_output(job["ref"], folder, rf"\A{_CHECKPOINT}{re.escape(MARK)}\Z", _RECORD_MOST,
                                    client=client)["files"]
            paths = [Path(str(mark).removesuffix(MARK)) for mark in marks]
            paths = [path for path in paths if (read_mark(path) or {"sha256": ""})["sha256"] in lacking]
            names = "|".join(re.escape(path.relative_to(folder).as_posix()) for path in paths)
            for file in notebook_output(job["ref"], folder, rf"\A(?:{names})\Z", FILE_MOST,
                                        client=client)["files"] if names else ():
                mark, name = read_mark(file), file.relative_to(Path(folder, RESULTS)).as_posix()
                if file_sha256(file) != mark["sha256"]:
                    raise KaggleError("damaged", f"{job['ref']}: {printable(name)} is not the file that its mark "
                                      "names; fetch it again")
                make_room(Path(out, name), out)
                with whole_file(Path(out, name)) as part:
                    shutil.copyfile(file, part)
                write_mark(Path(out, name), out, mark["by"], mark["made_from"])
                fetched.append(name)
    return fetched


def _check_mark(path, there, root):
    """Raise KaggleError unless predictions come whole, with what they were made from, from the data that are here."""
    why = unfit(path, there, root, kinds=("data",))
    if why:
        raise KaggleError("damaged", printable(why.replace(f"{there}{os.sep}", "")))


def check_predictions(path, collection, root):
    """Raise KaggleError unless NAME_seedK.SPLIT.npz holds finite costs, as many as the programs here have configs."""
    try:
        fault = _fault(path, collection, root)
    except (DataError, zipfile.BadZipFile, NotImplementedError, OSError) as error:
        fault = error
    if fault:
        raise KaggleError("damaged", printable(f"{Path(path).name}: {fault}"))


def _fault(path, collection, root):
    """What is wrong with a file of predictions, or None."""
    with zipfile.ZipFile(path) as archive:
        size = sum(info.file_size for info in archive.infolist())
    if size > FILE_MOST:
        return f"unpacks to {size >> 20} MiB, expected at most {FILE_MOST >> 20}"
    costs, split = load_costs(path), Path(path).name.split(".")[-2]
    here = {f"{collection}:{p.stem}": p for p in npz_paths(root, collection, split)}
    if here and not costs.keys() & here.keys():
        return f"has costs of {len(costs)} programs, but none of the {len(here)} here; was the same data used?"
    for about, cost in costs.items():
        owner, _, stem = about.rpartition(":")
        if owner != collection or not UNQUOTED.fullmatch(stem):
            return f"has costs of {about[:80]!r}; expected programs of {collection}"
        if not np.isfinite(cost).all():
            return f"{about} has a cost that is not finite"
        count = _count(here[about]) if about in here else None
        a_part_will_do = split != "test" and collection != "tile:xla"           # see notebook 04
        if count is not None and (len(cost) > count or len(cost) < count and not a_part_will_do):
            return f"{about} has {len(cost)} costs, but {count} configurations"
    return None


def _count(path):
    """How many configurations a data file has; None if that cannot be read, which the reader reports."""
    try:
        with NpzFile(path) as npz:
            return npz.open("config_runtime", "iuf")[1][0]
    except (DataError, IndexError):
        return None


def _check_record(path):
    """Raise KaggleError unless a file is a record of a training, of a size that such a record has."""
    try:
        if Path(path).stat().st_size <= _RECORD_MOST:
            read_record(path)
            return
    except DataError:
        pass
    raise KaggleError("damaged", f"{Path(path).name}: is no record of a training, or has more than "
                      f"{_RECORD_MOST >> 20} MiB")


def keep_fetched(jobs, out):
    """Move aside the predictions of earlier plans in each collection for which `jobs` has new ones."""
    kept = {Path(out, name) for job in jobs.values() for name in job["files"]}
    stems = {path.parent.name for path in kept}
    for path in own_results(out, *TRAIN):
        if path not in kept and path.parent.name in stems and path.suffix == ".npz":
            print(f"note  {path} is of an earlier plan; it is kept as {set_aside(path, out)}")


def tail(text):
    """The last lines of a log that may hold anything: no escape sequences, no secrets, at most 200 letters each."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text[-100_000:])
    lines = [printable(SECRET.sub("***", line))[:200].rstrip() for line in text.splitlines()]
    return [line for line in lines if line][-_LOG_LINES:]


def printable(text):
    """The text without what moves a terminal's cursor."""
    return "".join(letter for letter in str(text) if letter.isprintable())
