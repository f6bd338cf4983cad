"""What comes back from a notebook on Kaggle's machines is not trusted: named, counted, measured and read first.

Only predictions and records of trainings, under the names that a job should leave, are fetched at all; nothing is
unpickled, and a file takes its place once it has passed.
"""
import hashlib
import json
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from kit.data import DataError, NpzFile, npz_paths
from kit.files import whole_file
from kit.kaggle.client import SECRET, KaggleError
from kit.kaggle.notebooks import notebook_output
from kit.run import UNQUOTED, load_costs

RESULTS = "results"              # the folder of a run in a pushed notebook, below Kaggle's working directory
FILE_MOST = 1 << 28              # bytes of one file of predictions, also unpacked; the public test split takes 20 MB
RECORD_MOST = 1 << 20            # bytes of a record of a training
FILES_MOST = 200                 # files of one notebook
LOG_LINES = 12                   # of a failed notebook that are told
NOTHING = r"(?!)"                # fetch no file, only names and log


def collect_predictions(job, out, root, client=None):
    """Fetch, check and put in place what a finished notebook predicted, and the records of its trainings.

    Parameters
    ----------
    job : dict
        "ref", "collection", "first_seed", "seeds".
    out : str or Path
        The folder of the run; gets predictions/, baselines/ and checkpoints/*.json.
    root : str or Path
        The data set here, to check predictions by.
    client : dict, optional
        As in `ask_kaggle`.

    Returns
    -------
    dict
        What changes in the job: "state": "fetched", "files": {name below `out`: sha256}; or "state": "failed",
        "reason", "log".

    Raises
    ------
    KaggleError
        If Kaggle cannot be asked.
    """
    stem, seeds = job["collection"].replace(":", "_"), r"\d{1,4}"
    if job["seeds"] is not None:
        seeds = "|".join(str(job["first_seed"] + number) for number in range(job["seeds"]))
    only = (rf"\A{RESULTS}/(?:predictions/{stem}/[a-z][a-z0-9-]{{0,30}}_seed(?:{seeds})|"
            rf"baselines/{stem}/[a-z][a-z0-9-]{{0,30}}_seed(?:{seeds}|0))\.(?:valid|test)\.npz\Z|"
            rf"\A{RESULTS}/checkpoints/[a-z][a-z0-9_+-]{{0,150}}\.json\Z")
    try:
        names, log = look_into(job["ref"], client)
        chosen = {name for name in names if re.search(only, name)}
        seen = {re.search(r"_seed(\d+)", name)[1] for name in chosen
                if name.startswith(f"{RESULTS}/predictions/") and name.endswith(".test.npz")}
        if len(seen) < (job["seeds"] or 1) or len(chosen) > FILES_MOST:
            return {"state": "failed", "log": log, "reason": f"it left {len(chosen)} files, predictions of "
                    f"{len(seen)} seeds; expected {job['seeds'] or 'one or more'} seeds and at most {FILES_MOST} files"}
        return {"state": "fetched", "files": _fetch(job, only, out, root, client)}
    except KaggleError as fault:
        if fault.kind not in ("damaged", "missing", "forbidden", "refused"):
            raise
        return {"state": "failed", "reason": str(fault)}


def look_into(ref, client=None):
    """(names of all files, last lines of the log) of a notebook's latest run; nothing of it is kept."""
    with tempfile.TemporaryDirectory() as folder:
        done = notebook_output(ref, folder, NOTHING, client=client)
        return done["names"], tail(done["log"].read_text("utf-8"))


def _fetch(job, only, out, root, client):
    """Put files in place, all of them or none -> {name below `out`: sha256}."""
    store = Path(out, ".run")
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store) as folder:
        files = list(dict.fromkeys(notebook_output(job["ref"], folder, only, FILE_MOST, client=client)["files"]))
        for file in files:
            if file.suffix == ".json":
                check_record(file)
            else:
                check_predictions(file, job["collection"], root)
        kept = {file.relative_to(Path(folder, RESULTS)).as_posix(): file_digest(file) for file in files}
        for name, file in zip(kept, files):
            with whole_file(Path(out, name)) as part:        # a folder of `out` may lie on another disk
                shutil.copyfile(file, part)
    return kept


def check_predictions(path, collection, root):
    """Trust a file of predictions from elsewhere only after this.

    Parameters
    ----------
    path : str or Path
        NAME_seedK.SPLIT.npz.
    collection : str
        The one that it must be about.
    root : str or Path
        The data set here; the programs that it has are compared.

    Raises
    ------
    KaggleError
        "damaged" if it unpacks to more than FILE_MOST bytes, is no file of costs, is about something else, has a
        cost that is not finite, or another number of costs than the program has configurations.
    """
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
    costs = load_costs(path)
    here = {f"{collection}:{p.stem}": p for p in npz_paths(root, collection, Path(path).name.split(".")[-2])}
    if here and not costs.keys() & here.keys():
        return f"is about {len(costs)} programs, none of the {len(here)} that are here; was the same data used?"
    for about, cost in costs.items():
        owner, _, stem = about.rpartition(":")
        if owner != collection or not UNQUOTED.fullmatch(stem):
            return f"is about {about[:80]!r}, expected programs of {collection}"
        if not np.isfinite(cost).all():
            return f"{about} has a cost that is not finite"
        count = _count(here[about]) if about in here else None
        if count not in (None, len(cost)):
            return f"{about} has {len(cost)} costs, but {count} configurations"
    return None


def check_record(path):
    """Trust a record of a training from elsewhere only after this: `write_report` reads it.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    KaggleError
        "damaged" if it is no JSON of the form that `run_record` gives.
    """
    try:
        about = json.loads(Path(path).read_bytes()[:RECORD_MOST])
        counts = [about["parameters"], about["graphs"], about["settings"]["steps"], about["configs_seen"]]
        lists = [about["curve"]["loss"], about["curve"]["score"]]
        numbers = [value for one in lists for value in one if value is not None] + [about["seconds"]]
        good = (all(type(value) is int for value in [*counts, about["peak_memory"] or 0])
                and all(type(value) in (int, float) for value in numbers) and np.isfinite(numbers).all()
                and all(type(one) is list for one in lists) and type(about["model"]) is str)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        good = False
    if not good:
        raise KaggleError("damaged", f"{Path(path).name}: is no record of a training, or has more than "
                          f"{RECORD_MOST >> 20} MiB")


def keep_fetched(jobs, out):
    """Remove predictions of earlier plans for those collections of which there are new ones.

    Parameters
    ----------
    jobs : dict of str to dict
        {name: job}, after `watch_jobs`.
    out : str or Path
        The folder of the run.
    """
    kept = {Path(out, name) for job in jobs.values() for name in job["files"]}
    for stem in {path.parent.name for path in kept}:
        for kind in ("predictions", "baselines"):
            for path in Path(out, kind, stem).glob("*_seed*.npz"):
                if path not in kept:
                    path.unlink()


def tail(text):
    """The last lines of a log that may hold anything: no escapes, no secrets, not too long.

    Parameters
    ----------
    text : str

    Returns
    -------
    list of str
        At most LOG_LINES.

    Examples
    --------
    >>> tail("one\\n\\x1b[31mtwo\\x1b[0m" + chr(7) + " KGAT_0123\\n")
    ['one', 'two ***']
    """
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text[-100_000:])
    lines = [printable(SECRET.sub("***", line))[:200].rstrip() for line in text.splitlines()]
    return [line for line in lines if line][-LOG_LINES:]


def printable(text):
    """Without what moves a terminal's cursor."""
    return "".join(letter for letter in str(text) if letter.isprintable())


def _count(path):
    """How many configurations a file has, None where it does not say; the reader tells why."""
    try:
        with NpzFile(path) as npz:
            return npz.open("config_runtime", "iuf")[1][0]
    except (DataError, IndexError):
        return None


def file_digest(path):
    """Digest of a file, None where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
