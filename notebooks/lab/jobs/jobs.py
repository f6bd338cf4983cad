"""Training on Kaggle's machines: push one notebook per job, watch them, fetch checked results.

A file notes the state of each job before and after every request, so that an interrupted call resumes. Each push has
its own name: if the answer to a push is lost, asking Kaggle for this name tells whether the push arrived. A job is
"planned", "pushing", "running", "complete" (its results are still on Kaggle), "fetched" or "failed". A session that
ends before its models are trained is followed by another one, see `lab.jobs.sessions`.
"""
import hashlib
import json
import re
import time
from pathlib import Path

import numpy as np

from kit.files import write_json
from kit.kaggle import TRANSIENT, KaggleError, notebook_status, push_notebook
from lab.jobs.results import collect_results, printable
from lab.jobs.sessions import NONE_YET, look_at_session, next_name, says_to_be_continued, session_ended
from lab.run import Folder, step_of

AT_ONCE = 2                      # notebooks with a GPU that Kaggle runs at the same time per account
ROUNDS = 10                      # the watch ends after this many rounds in a row without an answer from Kaggle
STATES = ("planned", "pushing", "running", "complete", "fetched", "failed")
_FULL = re.compile(r"session count", re.I)       # "Maximum batch GPU session count of 2 reached."
_NO_HOURS = re.compile(r"quota", re.I)           # "Maximum weekly GPU quota of 30.00 hours reached."
_NEW = {"state": "planned", "attempt": 1, "section": None, "reason": None, "log": [], "told": False,
        **NONE_YET}


def plan_jobs(collections, seeds=None, groups=1, first_seed=0):
    """One job per collection and group of seeds: dicts of "collection", "first_seed", "seeds"; no seed twice."""
    # seeds: per model; None leaves the number to the notebooks, and then there is one group
    if groups < 1 or (groups > 1 and groups > (seeds or 0)):
        raise ValueError(f"{groups} seed groups and {'no number of' if seeds is None else seeds} seeds; expected at "
                         "least one group, and at least one seed per group: set the number with -p seeds=N")
    sizes = [None] if seeds is None else [len(part) for part in np.array_split(range(seeds), groups)]
    firsts = [first_seed + sum(sizes[:number]) if number else first_seed for number in range(groups)]
    return [{"collection": name, "first_seed": first, "seeds": size}
            for name in collections for first, size in zip(firsts, sizes)]


def job_name(job, text):
    """The notebook's name on Kaggle, at most 50 letters: collection, first seed, digest of `text` (all the rest)."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"tpugraphs-kit-{job['collection'].replace(':', '-')}-{job['first_seed']}-{digest}"


def read_jobs(path):
    """{name: job} of earlier calls, from the file that `watch_jobs` writes; empty where there is no file."""
    try:
        jobs = json.loads(Path(path).read_text("utf-8"))
        if all(job["state"] in STATES and job["ref"] for job in jobs.values()):
            return jobs
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise KaggleError("damaged", f"{path}: does not say what was pushed; look at https://www.kaggle.com/code for "
                      "notebooks that still run, then delete this file; all notebooks will be pushed again")


def renew(jobs, known, owner, out, root):
    """Set each planned job to its known state; a failed job that was reported gets a new name and attempt.

    The new attempt goes on from the checkpoints of the failed one, if there are any. Results that are gone, or that do
    not fit the data and the code that are here now, are fetched again.
    """
    # known: from `read_jobs`; owner: the account; out: folder of the run; root: the data set
    folder = Folder(out, root)
    for name, job in jobs.items():
        old = known.get(name, {})
        job.update({"ref": f"{owner}/{name}", **_NEW, **old})
        if job["state"] == "fetched" and (job["section"] is None or folder.section_fault(
                step_of(job["collection"]), job["collection"], job["section"])):
            job["state"] = "complete"
        if old and job["state"] == "failed" and job["told"]:
            job.update({**_NEW, **next_name(job), **{key: job[key] for key in ("after", "reached")}})


def watch_jobs(jobs, notebooks, out, root, path, known=None, every=60.0, client=None):
    """Push the planned jobs, a few at a time; watch until each is fetched or failed -> [(ref, why)] of the failed.

    Jobs that wait for GPU hours of the next week are among the failed ones; they stay planned.
    """
    # notebooks: {name: folder with the notebook and its kernel-metadata.json}; out: folder of the run; root: the data
    # set, to check results by; path: the file of states; known: jobs of other plans in that file; every: seconds
    def save():
        write_json(path, {**(known or {}), **jobs})

    start, answered, silent, no_hours = time.monotonic(), False, 0, []
    while True:
        try:
            for name, job in jobs.items():
                while _advance(job, notebooks[name], jobs, out, root, save, client, no_hours):
                    answered = True
                    print(f"{job['ref']}: {job['state']}" + (f": {job['reason']}" if job["reason"] else ""), flush=True)
            silent = 0
        except KaggleError as fault:
            silent += 1
            if fault.kind not in TRANSIENT or not answered or silent > ROUNDS:
                raise
            print(f"{fault}; the notebooks on Kaggle keep running", flush=True)
        states = [job["state"] for job in jobs.values()]
        if {*states} <= {"fetched", "failed", *["planned"] * len(no_hours)}:
            break
        line = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
        print(f"Kaggle {time.monotonic() - start:6.0f} s  {line}", flush=True)
        time.sleep(every)
    failed = [job for job in jobs.values() if job["state"] == "failed"]
    for job in failed:
        job["told"] = True
    save()
    waiting = ", ".join(job["ref"] for job in jobs.values() if job["state"] == "planned")
    return [(job["ref"], "\n    ".join([f"failed on Kaggle: {job['reason']}", *job["log"]])) for job in failed] + (
        [(waiting, f"not pushed: {no_hours[0]}; when there are GPU hours again, the same command goes on here")]
        if waiting else [])


def _advance(job, notebook, jobs, out, root, save, client, no_hours):
    """Take a job one state further, noted before and after -> whether its state changed.

    `no_hours`: gets Kaggle's words when the GPU quota is used up; then nothing more is pushed.
    """
    before, changes = job["state"], {}
    if before == "planned":
        if not no_hours and sum(other["state"] in ("pushing", "running") for other in jobs.values()) < AT_ONCE:
            changes = _push(job, notebook, save, client, no_hours)
    elif before == "pushing":                    # the answer to its push was lost
        changes = {"state": "planned" if _status(job, client)["status"] == "gone" else "running"}
    elif before == "running":
        changes = _look(job, client)
    elif before == "complete":
        names, log = look_at_session(job, client)
        changes = {} if says_to_be_continued(names) else collect_results(job, out, root, client)
        if changes.get("state", "failed") == "failed":
            changes = session_ended(job, names, log, changes.get("reason"), client, may_go_on=not changes)
    if changes:
        job.update(changes)
        save()
    return job["state"] != before


def _push(job, notebook, save, client, no_hours):
    """Push the notebook of a job -> what changes in the job."""
    job["state"] = "pushing"
    save()
    name = job["ref"].partition("/")[2]
    try:
        earlier = {"kernel_sources": job["after"]} if job["after"] else {}
        done = push_notebook(notebook, {"id": job["ref"], "title": name.replace("-", " "), **earlier}, client=client)
    except KaggleError as fault:
        if fault.kind in ("server", "host"):     # the push may have arrived: the job stays "pushing"
            raise
        if _FULL.search(str(fault)):
            return {"state": "planned"}
        if _NO_HOURS.search(str(fault)):
            no_hours.append(printable(fault))
            return {"state": "planned"}
        if fault.kind in ("refused", "invalid", "missing"):
            return {"state": "failed", "reason": str(fault)}
        job["state"] = "planned"
        save()
        raise
    left = [ref for ref in job["after"] if ref not in done["without"]]
    if left != job["after"]:
        print(f"{job['ref']}: Kaggle does not have the output of {', '.join(done['without'])}; its models "
              f"{'go on from an earlier session' if left else 'start again from the beginning'}", flush=True)
    return {"state": "running", "after": left}


def _look(job, client):
    """Ask Kaggle for the status of a running job -> what changes in the job."""
    now = _status(job, client)
    if now["status"] in ("queued", "running", "cancel_requested", "new_script"):
        return {}
    if now["status"] == "complete":
        return {"state": "complete"}
    if now["status"] == "gone":
        return {"state": "failed", "reason": f"the notebook is gone: {now['reason']}"}
    why = printable(now["reason"] or now["status"])[:300]
    if now["status"] not in ("error", "cancel_acknowledged"):
        why = f"its status is {why!r}, which the kit does not know; see https://www.kaggle.com/code/{job['ref']}"
    names, log = look_at_session(job, client)
    return session_ended(job, names, log, why, client, may_go_on=now["status"] == "error")


def _status(job, client):
    """Kaggle's status of a job; "gone" if Kaggle does not know its notebook."""
    try:
        return notebook_status(job["ref"], client=client)
    except KaggleError as fault:
        if fault.kind not in ("missing", "forbidden"):
            raise
        return {"status": "gone", "reason": str(fault)}
