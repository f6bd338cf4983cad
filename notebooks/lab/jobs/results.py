"""What a notebook on Kaggle's machines left is fetched, checked by its digests, and put into the store of a run.

A pushed notebook leaves the folder of a run. What it published for its collection is fetched: the section of its step,
the costs that the section names, and the records of the trainings. Nothing is unpickled. No file is put in its place
before all of them have come whole.
"""
import os
import re
import tempfile
from pathlib import Path

from kit.data import DataError
from kit.files import copy_whole
from kit.kaggle import SECRET, KaggleError, notebook_output
from lab.run import Folder, read_kept, step_of

RESULTS = "results"              # the folder of a run in a pushed notebook, below Kaggle's working directory
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
        there, step = Path(folder, RESULTS), step_of(job["collection"])
        get_files(job["ref"], folder, [f"steps/{step}.json"], client)
        section = _published(job, step, there, root)
        costs = {one["file"] for one in section["costs"]}
        names = [*(f"store/{name}.npz" for name in costs), *(f"store/{name}.json" for name in section["used"])]
        files = get_files(job["ref"], folder, names, client)
        for name in costs:
            if read_kept(there / "store" / f"{name}.npz") is None:
                raise KaggleError("damaged", f"{name}.npz: the notebook did not leave it, or it is damaged")
        for file in files:
            put_in_store(file, out)
    return section


def get_files(ref, folder, names, client=None):
    """Fetch these files of a run's folder, of those that the notebook left -> their paths in `folder`."""
    only = "|".join(map(re.escape, names))
    return notebook_output(ref, folder, rf"\A{RESULTS}/(?:{only})\Z", client=client)["files"] if names else []


def put_in_store(file, out):
    """Put a fetched file into the store of a run, where a file of the same name is left as it is."""
    place = Path(out, "store", file.name)
    if not place.exists():
        copy_whole(file, place)


def _published(job, step, there, root):
    """What a notebook published for the collection of its job; KaggleError if this cannot be used here."""
    folder = Folder(there, root)
    folder.store.report = lambda line: None              # the error below says more
    try:
        section = folder.section(step, job["collection"])
    except DataError as fault:
        raise KaggleError("damaged", str(fault).replace(f"{there}{os.sep}", "")) from None
    if not section or not section["costs"]:
        raise KaggleError("damaged", f"steps/{step}.json: is not there, is damaged, or has no predictions for "
                          f"{job['collection']}")
    return section


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
    from kit.train_parts import CheckpointError, read_checkpoint  # loads PyTorch
    fetched = []
    for job in jobs.values():
        used = (job.get("section") or {"used": ()})["used"]
        lacking = [name for name in names if name in used and not Path(out, "store", f"{name}.pt").is_file()]
        if job["state"] not in ("complete", "fetched") or not lacking:
            continue
        with tempfile.TemporaryDirectory(dir=Path(out, ".run")) as folder:
            for file in get_files(job["ref"], folder, [f"store/{name}.pt" for name in lacking], client):
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
