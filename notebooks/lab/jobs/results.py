"""Results that come back from Kaggle's machines are not trusted: their names, sizes and contents are checked.

A pushed notebook leaves the folder of a run. What it published for its collection is fetched: the section of its step,
the costs that the section names, and the records of the trainings. Nothing is unpickled. No file is put in its place
before all of them have passed the checks.
"""
import os
import re
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from kit.data import COLLECTIONS, SPLITS, DataError, NpzFile, npz_paths
from kit.kaggle import SECRET, KaggleError, notebook_output
from lab.run import Folder, Prediction, copy_whole, read_kept, read_record, step_of

RESULTS = "results"              # the folder of a run in a pushed notebook, below Kaggle's working directory
FILE_MOST = 1 << 28              # bytes of one file, also unpacked; the costs of the public test split take 20 MB
FILES_MOST = 400                 # files of costs per notebook
TRAINED = r"[a-z][A-Za-z0-9_+-]{0,200}-[0-9a-f]{16}"             # name of a training in the store
_SECTION_MOST = 1 << 24          # bytes of what a step published
_RECORD_MOST = 1 << 20           # bytes of a record of a training
_COSTS = re.compile(r"costs-[0-9a-f]{16}")
_MEMBER = re.compile(r"[a-z][a-z0-9-]{0,30}_seed(\d{1,4})")
_TRAINED = re.compile(TRAINED)
_LOG_LINES = 12                  # of a failed notebook that are shown


def collect_results(job, out, root, client=None):
    """Fetch and check what a finished notebook predicted -> what changes in the job, "fetched" or "failed"."""
    # out: folder of the run, whose store gets the files; root: the data set, to check by
    try:
        return {"state": "fetched", "section": _fetch(job, Path(out), root, client)}
    except KaggleError as fault:
        if fault.kind not in ("damaged", "missing", "forbidden", "refused"):
            raise
        return {"state": "failed", "reason": str(fault)}


def _fetch(job, out, root, client):
    """Put the costs and the records of trainings into the store, all or none -> the section of the job."""
    (out / ".run").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out / ".run") as folder:
        there = Path(folder, RESULTS)
        get_files(job["ref"], folder, [f"steps/{step_of(job['collection'])}.json"], _SECTION_MOST, client)
        section = _published(job, there, root)
        costs = {one["file"]: one["split"] for one in section["costs"]}
        names = [*(f"store/{name}.npz" for name in costs),
                 *(f"store/{name}.json" for name in section["used"] if _TRAINED.fullmatch(name))]
        files = get_files(job["ref"], folder, names, FILE_MOST, client)
        for name, split in costs.items():
            check_costs(there / "store" / f"{name}.npz", job["collection"], split, root)
        for file in files:
            if file.suffix == ".json":
                _check_record(file)
        for file in files:
            put_in_store(file, out)
    return section


def get_files(ref, folder, names, most, client=None):
    """Fetch these files of a run's folder, of those that the notebook left -> their paths in `folder`."""
    only = "|".join(map(re.escape, names))
    found = notebook_output(ref, folder, rf"\A{RESULTS}/(?:{only})\Z", most, client=client)["files"] if names else ()
    return list(dict.fromkeys(found))


def put_in_store(file, out):
    """Put a fetched file into the store of a run, where a file of the same name is left as it is."""
    place = Path(out, "store", file.name)
    if not place.exists():
        copy_whole(file, place)


def _published(job, there, root):
    """What a notebook published for the collection of its job; KaggleError if this cannot be used here."""
    step, folder = step_of(job["collection"]), Folder(there, root)
    folder.store.report = lambda line: None              # the error below says more
    try:
        section = folder.record(step)["sections"][job["collection"]]
        good = is_section(section, job)
    except (KeyError, TypeError, AttributeError, ValueError):
        good = False
    if not good:
        raise KaggleError("damaged", f"steps/{step}.json: is not there, is damaged, or says nothing of "
                          f"{job['collection']}")
    seeds = {int(_MEMBER.fullmatch(one["member"])[1]) for one in section["costs"]
             if one["split"] == "test" and not one["baseline"]}
    expected = _seeds(job) or seeds
    if seeds != expected or not seeds:
        raise KaggleError("damaged", f"the notebook left predictions of {len(seeds & expected)} seeds; expected "
                          f"{job['seeds'] or 'one or more'}, and no others")
    try:
        return folder.section(step, job["collection"])
    except DataError as fault:
        raise KaggleError("damaged", printable(str(fault).replace(f"{there}{os.sep}", ""))) from None


def is_section(section, job):
    """Whether a section has the form of what a notebook of training publishes for a job's collection."""
    known = {f"{c} {split}" for c in COLLECTIONS for split in SPLITS}
    own = {f"{job['collection']} {split}" for split in SPLITS}
    texts = [section["code"], *section["data"].values(), *section["used"]]
    return (isinstance(section["settings"], dict) and section["read"] == {} and len(section["costs"]) <= FILES_MOST
            and own <= section["data"].keys() <= known and all(isinstance(text, str) for text in texts)
            and all(_is_prediction(one, job) for one in section["costs"]))


def _is_prediction(one, job):
    """Whether an entry of a section is one of a job's predictions."""
    member, seeds = _MEMBER.fullmatch(one["member"]), _seeds(job)
    allowed = seeds | {0} if one["baseline"] else seeds
    return bool(one.keys() == {*Prediction._fields, "file"} and one["costs"] is None and one["split"] in SPLITS
                and one["collection"] == job["collection"] and isinstance(one["baseline"], bool)
                and member and (not seeds or int(member[1]) in allowed)
                and _COSTS.fullmatch(one["file"]) and (one["model"] == "" or _TRAINED.fullmatch(one["model"]))
                and all(isinstance(name, str) for name in one["specialists"]))


def _seeds(job):
    """The seeds that a job was asked for; none if it was not told how many."""
    return {job["first_seed"] + number for number in range(job["seeds"] or 0)}


def check_costs(path, collection, split, root):
    """KaggleError unless a file holds what its name says: finite costs, as many as the programs here have configs."""
    try:
        fault = _fault(path, collection, split, root)
    except (DataError, zipfile.BadZipFile, NotImplementedError, OSError) as error:
        fault = error
    if fault:
        raise KaggleError("damaged", printable(f"{path.name}: {fault}"))


def _fault(path, collection, split, root):
    """What is wrong with a file of costs, or None."""
    if not path.is_file():
        return "is named by the notebook, which did not leave it"
    with zipfile.ZipFile(path) as archive:
        size = sum(info.file_size for info in archive.infolist())
    if size > FILE_MOST:
        return f"unpacks to {size >> 20} MiB, expected at most {FILE_MOST >> 20}"
    costs = read_kept(path)
    if costs is None:
        return "does not hold what its name says"
    splits = ("train", "valid") if split == "train" else (split,)        # with `use_valid`, both are trained on
    here = {f"{collection}:{p.stem}": p for one in splits for p in npz_paths(root, collection, one)}
    for about, cost in costs.items():
        if about not in here:
            return f"has costs of {about[:80]!r}, which is no {split} program of {collection} here"
        if cost.ndim != 1 or cost.dtype.kind not in "fiu" or not np.isfinite(cost).all():
            return f"{about} has something else than one axis of finite costs"
        count, a_part_will_do = _count(here[about]), split != "test" and collection != "tile:xla"   # see notebook 04
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
        if path.stat().st_size <= _RECORD_MOST:
            read_record(path)
            return
    except DataError:
        pass
    raise KaggleError("damaged", f"{path.name}: is no record of a training, or has more than {_RECORD_MOST >> 20} MiB")


def publish_jobs(jobs, out, root, asked):
    """Publish what jobs predicted as the steps of the run in `out` would; costs of all jobs of a collection together.

    `asked`: {step: its parameters}, which take the place of those of the single jobs.
    """
    folder, by_step = Folder(out, root), {}
    for job in jobs.values():
        if job["section"]:
            by_step.setdefault(step_of(job["collection"]), {}).setdefault(job["collection"], []).append(job)
    for step, collections in by_step.items():
        record = folder.record(step)
        record["sections"] |= {c: _together(some, asked.get(step, {})) for c, some in collections.items()}
        folder.write_record(step, record)


def _together(jobs, asked):
    """One section of those of several jobs of a collection; what two jobs predicted alike is taken once."""
    jobs = sorted(jobs, key=lambda job: job["first_seed"])
    sections = [job["section"] for job in jobs]
    there = {job["ref"]: {name: job[name] for name in ("first_seed", "seeds")} for job in jobs}
    costs = {(one["member"], one["split"]): one for section in sections[::-1] for one in section["costs"]}
    return {**sections[0], "settings": {**sections[0]["settings"], **asked, "on_kaggle": there},
            "data": {name: digest for section in sections for name, digest in section["data"].items()},
            "costs": [costs[key] for key in sorted(costs)],
            "used": sorted({name for section in sections for name in section["used"]})}


def fetch_checkpoints(jobs, out, names, client=None):
    """Fetch checkpoints of these names that jobs left on Kaggle, if the run does not have them -> the names fetched."""
    from kit.training import CheckpointError, read_checkpoint  # loads PyTorch
    fetched = []
    for job in jobs.values():
        used = (job.get("section") or {"used": ()})["used"]
        lacking = [name for name in names if name in used and not Path(out, "store", f"{name}.pt").is_file()]
        if job["state"] not in ("complete", "fetched") or not lacking:
            continue
        with tempfile.TemporaryDirectory(dir=Path(out, ".run")) as folder:
            for file in get_files(job["ref"], folder, [f"store/{name}.pt" for name in lacking], FILE_MOST, client):
                try:
                    whole = read_checkpoint(file).get("name") == file.name
                except CheckpointError:
                    whole = False
                if not whole:
                    raise KaggleError("damaged", f"{job['ref']}: {file.name} is damaged, or another checkpoint; fetch "
                                      "it again")
                put_in_store(file, out)
                fetched.append(file.stem)
    return fetched


def tail(text):
    """The last lines of a log that may hold anything: no escape sequences, no secrets, at most 200 letters each."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text[-100_000:])
    lines = [printable(SECRET.sub("***", line))[:200].rstrip() for line in text.splitlines()]
    return [line for line in lines if line][-_LOG_LINES:]


def printable(text):
    """The text without what moves a terminal's cursor."""
    return "".join(letter for letter in str(text) if letter.isprintable())
