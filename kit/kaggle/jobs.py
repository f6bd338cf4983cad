"""Training shared out over notebooks on Kaggle's machines: push each once, watch them, fetch predictions, checked.

What is done is noted in a file before and after everything that is asked of Kaggle. A call that was interrupted goes
on from there, and a push whose answer was lost is asked for by its name before it is made again: each has a name of
its own, so that the name tells whether it arrived. A job is "planned", "pushing", "running", "complete" (its
predictions are still there), "fetched" or "failed".
"""
import hashlib
import json
import re
import time
from pathlib import Path

import numpy as np

from kit.files import replace_file
from kit.kaggle.client import KaggleError
from kit.kaggle.notebooks import notebook_status, push_notebook
from kit.kaggle.results import collect_predictions, file_digest, look_into, printable
from kit.kaggle.submissions import TRANSIENT

AT_ONCE = 2                      # notebooks with a GPU that Kaggle runs for an account
FULL = re.compile(r"session count", re.I)        # "Maximum batch GPU session count of 2 reached."
EVERY = 60.0                     # s between two looks
ROUNDS = 10                      # in a row that Kaggle may leave without an answer
STATES = ("planned", "pushing", "running", "complete", "fetched", "failed")


def plan_jobs(collections, seeds=None, groups=1, first_seed=0):
    """Share out collections and seeds.

    Parameters
    ----------
    collections : sequence of str
    seeds : int, optional
        Of each model. None: what the notebooks choose; then there can be but one group.
    groups : int
        Notebooks a collection; each trains its share of the seeds.
    first_seed : int

    Returns
    -------
    list of dict
        "collection", "first_seed", "seeds" of each notebook; no two of a collection share a seed.

    Raises
    ------
    ValueError
        If there are fewer seeds than groups.

    Examples
    --------
    >>> [(job["first_seed"], job["seeds"]) for job in plan_jobs(["tile:xla"], seeds=5, groups=2)]
    [(0, 3), (3, 2)]
    """
    if groups < 1 or (groups > 1 and groups > (seeds or 0)):
        raise ValueError(f"{groups} seed groups and {'no number of' if seeds is None else seeds} seeds; expected one "
                         "group or more, and a seed for each: say how many with -p seeds=N")
    sizes = [None] if groups == 1 and seeds is None else [len(part) for part in np.array_split(range(seeds), groups)]
    firsts = [first_seed + sum(sizes[:number]) if number else first_seed for number in range(groups)]
    return [{"collection": name, "first_seed": first, "seeds": size}
            for name in collections for first, size in zip(firsts, sizes)]


def job_name(job, text):
    """What the notebook of a job is called on Kaggle: by what it trains and a digest of the rest, at most 50 letters.

    Parameters
    ----------
    job : dict
        From `plan_jobs`.
    text : str
        All that tells this notebook from others: its cells, whose it is, and of which run.

    Returns
    -------
    str

    Examples
    --------
    >>> job_name({"collection": "layout:xla:default", "first_seed": 2}, "the cells")
    'tpugraphs-kit-layout-xla-default-2-6058c880'
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"tpugraphs-kit-{job['collection'].replace(':', '-')}-{job['first_seed']}-{digest}"


def read_jobs(path):
    """What is known of earlier pushes.

    Parameters
    ----------
    path : str or Path
        The file that `watch_jobs` keeps.

    Returns
    -------
    dict of str to dict
        {name: job}; empty where there is no file.

    Raises
    ------
    KaggleError
        "damaged" if it cannot be read: without it notebooks would be pushed, and paid for, again.
    """
    try:
        jobs = json.loads(Path(path).read_text("utf-8"))
        if all(job["state"] in STATES and isinstance(job["ref"], str) and type(job["attempt"]) is int
               and isinstance(job["files"], dict) and isinstance(job["log"], list)
               and isinstance(job.get("run", ""), str) for job in jobs.values()):
            return jobs
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise KaggleError("damaged", f"{path}: does not say what was pushed; look at https://www.kaggle.com/code for "
                      "what runs, then delete this file: everything is pushed anew")


def renew(jobs, known, owner, out, fresh=False):
    """Set each job to where it stands: known from an earlier call, or new.

    Parameters
    ----------
    jobs : dict of str to dict
        {name: job}, as planned; they get "ref", "state", "attempt", "files", "reason", "log" and "told".
    known : dict of str to dict
        From `read_jobs`. A job that failed, and was told of, is planned once more under another name; so is one
        whose predictions are gone, by fetching them again.
    owner : str
        The account's name on Kaggle.
    out : str or Path
        The folder of the run.
    fresh : bool
        Plan all of them once more.
    """
    for name, job in jobs.items():
        old = known.get(name, {})
        job.update({"ref": f"{owner}/{name}", "state": "planned", "attempt": 1, "files": {}, "reason": None, "log": [],
                    "told": False, **old})
        kept = [file_digest(Path(out, file)) == sha for file, sha in job["files"].items() if file.endswith(".npz")]
        if job["state"] == "fetched" and not all(kept):
            job["state"] = "complete"
        if old and ((job["state"] == "failed" and job["told"]) or fresh):
            attempt = job["attempt"] + 1
            job.update({"ref": f"{owner}/{name}-{attempt}", "state": "planned", "attempt": attempt, "files": {},
                        "reason": None, "log": [], "told": False})


def watch_jobs(jobs, notebooks, out, root, path, known=None, every=EVERY, client=None):
    """Push what is planned, a few at a time, and watch until each job is fetched or has failed.

    Parameters
    ----------
    jobs : dict of str to dict
        {name: job}, from `renew`; they change.
    notebooks : dict of str to Path
        {name: folder with the notebook and its kernel-metadata.json}.
    out : str or Path
        The folder of the run; gets predictions/ and baselines/.
    root : str or Path
        The data set here, to check predictions by.
    path : str or Path
        Where it is noted what is done.
    known : dict of str to dict, optional
        Jobs of other plans, which are kept in that file.
    every : float
        Seconds between two looks.
    client : dict, optional
        As in `ask_kaggle`.

    Returns
    -------
    list of (str, str)
        "owner/name" of each notebook that failed, why, and the last lines of its log.

    Raises
    ------
    KaggleError
        If Kaggle cannot be used, or does not answer for long. The same call goes on.
    """
    def save():
        replace_file(path, json.dumps({**(known or {}), **jobs}, indent=1) + "\n")

    start, answered, silent = time.monotonic(), False, 0
    while True:
        try:
            for name, job in jobs.items():
                while _advance(job, notebooks[name], jobs, out, root, save, client):
                    answered = True
                    _tell(job)
            silent = 0
        except KaggleError as fault:
            silent += 1
            if fault.kind not in TRANSIENT or not answered or silent > ROUNDS:
                raise
            print(f"{fault}; what runs there goes on", flush=True)
        states = [job["state"] for job in jobs.values()]
        if {*states} <= {"fetched", "failed"}:
            break
        line = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
        print(f"Kaggle {time.monotonic() - start:6.0f} s  {line}", flush=True)
        time.sleep(every)
    failed = [job for job in jobs.values() if job["state"] == "failed"]
    for job in failed:
        job["told"] = True
    save()
    return [(job["ref"], "\n    ".join([f"failed on Kaggle: {job['reason']}", *job["log"]])) for job in failed]


def _advance(job, notebook, jobs, out, root, save, client):
    """Take a job one state on, noted before and after -> whether it got there."""
    def enter(state, **more):
        job.update(state=state, **more)
        save()
        return True

    if job["state"] == "pushing":                # its answer was lost
        try:
            notebook_status(job["ref"], client=client)
        except KaggleError as fault:
            if fault.kind not in ("missing", "forbidden"):
                raise
            return enter("planned")
        return enter("running")
    if job["state"] == "planned":
        if sum(other["state"] in ("pushing", "running") for other in jobs.values()) >= AT_ONCE:
            return False
        enter("pushing")
        name = job["ref"].partition("/")[2]
        try:
            push_notebook(notebook, {"id": job["ref"], "title": name.replace("-", " ")}, client=client)
        except KaggleError as fault:
            if fault.kind in ("server", "host"):             # it may have arrived
                raise
            if FULL.search(str(fault)):
                enter("planned")
                return False
            if fault.kind in ("refused", "invalid", "missing"):
                return enter("failed", reason=str(fault))
            enter("planned")
            raise
        return enter("running")
    if job["state"] == "running":
        try:
            now = notebook_status(job["ref"], client=client)
        except KaggleError as fault:
            if fault.kind not in ("missing", "forbidden"):
                raise
            return enter("failed", reason=f"it is gone: {fault}")
        if now["status"] in ("queued", "running", "cancel_requested", "new_script"):
            return False
        if now["status"] == "complete":
            return enter("complete")
        why = printable(now["reason"] or now["status"])[:300]
        if now["status"] not in ("error", "cancel_acknowledged"):
            why = f"its status is {why!r}, which is not known here; look at https://www.kaggle.com/code/{job['ref']}"
        return enter("failed", reason=why, log=look_into(job["ref"], client)[1])
    if job["state"] == "complete":
        return enter(**collect_predictions(job, out, root, client))
    return False


def _tell(job):
    """A line about a job that changed."""
    print(f"{job['ref']}: {job['state']}" + (f": {job['reason']}" if job["reason"] else ""), flush=True)
