"""What follows a session on Kaggle that ended before its models were trained: the next session, or a sentence.

A session leaves checkpoints, and beside each one a record that says how many steps are done. If these are more steps
than before, the next session gets the output as an input. Else another session would bring no more, so the job has
failed.
"""
import re
import tempfile
from pathlib import Path

from kit.kaggle import TRANSIENT, KaggleError, notebook_output
from lab.jobs.results import RESULTS, get_files, tail
from lab.run import UNFINISHED, steps_trained

NONE_YET = {"after": [], "reached": {}, "idle": 0, "session": 1}         # of a job before its first session
_TRAINING = re.compile(rf"{RESULTS}/store/([^/]+-[0-9a-f]{{16}})\.json")
_RECORD = re.compile(rf"{RESULTS}/{UNFINISHED}/0[34]_[a-z_]+\.json")
# words of a session that Kaggle ended, and of a notebook that ended itself by an error
_ENDED = re.compile(r"time.?out|timed out|time limit|run.?time limit|max\w* (run|time|session)|exceeded.* (time|sec)"
                    r"|disconnect|preempt|evict|interrupted|shut ?down|lost", re.I)
_THREW = re.compile(r"\bthrew\b|Traceback \(most recent call last\)|\b[A-Z]\w*(Error|Exception)\b|out of memory", re.I)


def look_at_session(job, client=None):
    """Names of all files that the latest session of a job left, and its log as text."""
    with tempfile.TemporaryDirectory() as folder:
        done = notebook_output(job["ref"], folder, r"(?!)", client=client)
        return done["names"], done["log"].read_text("utf-8")


def says_to_be_continued(names):
    """Whether a session left the record of trainings that its time budget ended."""
    return any(_RECORD.fullmatch(name) for name in names)


def session_ended(job, names, log, why=None, client=None, may_go_on=True):
    """What changes in a job whose session ended before its models were trained: "planned" again, or "failed".

    `why`: Kaggle's words if the session did not end by itself. `may_go_on`: False if somebody cancelled the session, or
    its predictions cannot be used; the next attempt then waits for the next command.
    """
    reached, lost = _reached(job, names, client)
    for name in lost:
        print(f"note  {job['ref']}: its output lost {name}; this model goes on from an earlier session, or starts "
              "again", flush=True)
    before = job["reached"]
    further = any(steps > before.get(name, 0) for name, steps in reached.items())
    covers = all(reached.get(name, -1) >= steps for name, steps in before.items())
    after = [job["ref"]] if covers and reached else [*job["after"], *[job["ref"]] * (further or not job["after"])]
    known = {"after": after if reached else job["after"],
             "reached": before | {name: max(steps, before.get(name, 0)) for name, steps in reached.items()}}
    cut = why is None or bool(_ENDED.search(why))
    threw = not cut and (_THREW.search(why) or _THREW.search("\n".join(tail(log))))
    if further and may_go_on and not threw:
        return _next(job, known, 0, f"{'to be continued' if why is None else f'was cut ({why})'}; the next session "
                     f"goes on from its checkpoints, {_words(known['reached'])}")
    if why is None:
        return {**known, "state": "failed", "log": tail(log), "reason": "the session made no progress, so another one "
                "would make none: give each session more hours with -p hours=HOURS, or shorten the recipe"}
    if cut and may_go_on and job["idle"] == 0:
        where = f"from the session before, {_words(before)}" if before else "from the beginning"
        return _next(job, known, 1, f"was cut ({why}) and left nothing new; the next session starts again {where}")
    again = ", a second time without progress" if job["idle"] else ""
    on = f"; the same command goes on from its checkpoints, {_words(known['reached'])}" if known["reached"] else ""
    return {**known, "state": "failed", "reason": f"{why}{again}{on}", "log": tail(log)}


def _next(job, known, idle, sentence):
    """The next session: a new name on Kaggle, because the output of the last one is an input."""
    print(f"{job['ref']}: {sentence}", flush=True)
    return {**known, "state": "planned", "idle": idle, "session": job["session"] + 1, **next_name(job)}


def next_name(job):
    """A new name on Kaggle for the next push of a job."""
    attempt, base = job["attempt"] + 1, job["ref"].removesuffix(f"-{job['attempt']}" if job["attempt"] > 1 else "")
    return {"attempt": attempt, "ref": f"{base}-{attempt}"}


def _words(reached):
    """Steps that checkpoints hold, as text."""
    count = len(reached)
    return f"{count} model{'s' * (count != 1)} with {sum(reached.values())} steps together"


def _reached(job, names, client):
    """Steps that the checkpoints of a session hold -> ({name: steps}, names of checkpoints that are lost)."""
    found, reached = [match[1] for name in names if (match := _TRAINING.fullmatch(name))], {}
    with tempfile.TemporaryDirectory() as folder:
        for name in found:
            try:
                get_files(job["ref"], folder, [f"store/{name}.json"], client)
            except KaggleError as fault:                 # the link to one file may have expired
                if fault.kind in TRANSIENT:
                    raise
            steps = steps_trained(Path(folder, RESULTS, "store", f"{name}.json"), None)
            if steps is not None and f"{RESULTS}/store/{name}.pt" in names:
                reached[name] = steps
    return reached, sorted({*found} - reached.keys())
