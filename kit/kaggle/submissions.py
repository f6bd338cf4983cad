"""Submit a file once, and wait for its score."""
import hashlib
import time
from contextlib import suppress

from kit.checks import as_path, check_number, check_whole
from kit.kaggle.client import COMPETITION, TRANSIENT, KaggleError, ask_kaggle, failure, retries_of
from kit.kaggle.uploads import upload_file
from kit.submit import submission_problems


def submit(path, message, competition=COMPETITION, data_root=None, sample=None, again=False, timeout=600.0,
           client=None, partial=False):
    """Check a submission, then submit it, once.

    Kaggle's description of the submission contains the first 12 digits of the file's sha256. A file that is found
    there is not submitted again, even if the answer to the earlier call was lost. Every step before the last is
    retried. The last step spends a submission, so it is retried only if Kaggle says that it was not taken.

    Parameters
    ----------
    path : str or Path
        The CSV. It is only read.
    message : str
        The description that Kaggle shows for the submission.
    competition : str
    data_root, sample : str or Path, optional
        As in `check_submission`.
    again : bool
        Submit a file even if it was submitted before.
    timeout : float
        Seconds for everything.
    client : dict, optional
        As in `download`.
    partial : bool
        Submit a file that lacks rows of the competition, too.

    Returns
    -------
    dict
        "ref": number of the submission. "remaining": how many submissions are left now, None if Kaggle does not say.
        "repeated": whether the file was submitted before.

    Raises
    ------
    KaggleError
        "invalid", before anything is sent, if the check finds a problem; other failures have their own `kind`.
    """
    path = as_path(path)
    missing, others = submission_problems(path, data_root, sample)
    problems = others if partial else missing + others
    if problems:
        more = f"; and {len(problems) - 3} more" if problems[3:] else ""
        cure = "; to submit an incomplete file all the same, pass partial=True" if missing and not partial else ""
        raise KaggleError("invalid", f"{path} is not valid, nothing was sent: {'; '.join(problems[:3])}{more}{cure}")
    mark = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    try:
        done = _submit(path.resolve(), f"{message} [{mark}]", f"[{mark}]", competition, again, timeout, client)
    except KaggleError as fault:
        raise KaggleError(fault.kind, f"{fault}. The file is kept: {path}") from None
    left = "" if done["remaining"] is None else f", {done['remaining']} left today"
    how = "was submitted before" if done["repeated"] else "submitted"
    print(f"{path.name}: {how} as {done['ref']}{left}", flush=True)
    return done


def _submit(path, description, mark, competition, again, timeout, client):
    """Submit a file, unless it was submitted before -> as `submit`."""
    end = time.monotonic() + timeout

    def ask(call, safe=True, **words):
        left = end - time.monotonic()
        return ask_kaggle(call, competition, left, {"competition": competition, **words}, client, safe)

    def marked():
        """The submissions of this file that Kaggle did not reject, newest first."""
        listed = ask("list_submissions")
        return [s["ref"] for s in listed if mark in s["description"] and s["status"] != "error"]
    before, left = marked(), None
    with suppress(KaggleError):                  # Kaggle does not say
        limits = ask("ask_for_limits")
        left = limits["left"] if any(limits.values()) else None          # all 0: in no team yet
    if before and not again:
        return {"ref": before[0], "remaining": left, "repeated": True}
    if left == 0:
        raise failure("limit", f"{limits['today']} today, {limits['total']} in total", competition)
    token = upload_file(path, lambda: ask("start_upload", path=str(path)), competition, end, **retries_of(client))
    kind, ref = "refused", 0
    try:
        made = ask("create_submission", safe=False, token=token, message=description)
        ref, words = made["ref"], made["words"]
    except KaggleError as fault:
        if fault.kind not in ("host", "server"):
            raise
        kind, words = "unsure", fault.words
    if not ref:                                  # Kaggle says "success" of submissions that it does not count, too
        try:
            ref = next((found for found in marked() if found not in before), 0)
        except KaggleError:
            kind = "unsure"
    if not ref:
        raise failure(kind, words, competition)
    return {"ref": ref, "remaining": left and left - 1, "repeated": False}


def wait_for_score(ref, competition=COMPETITION, timeout=900.0, every=15.0, client=None):
    """Wait until Kaggle has scored a submission.

    Parameters
    ----------
    ref : int
        The "ref" that `submit` returns.
    competition : str
    timeout : float
        Seconds to wait. Without a score by then, the result is "pending" and the call may be repeated. 0 asks once.
    every : float
        Seconds between two requests.
    client : dict, optional
        As in `download`.

    Returns
    -------
    dict
        "ref"; "status": "complete" or "pending"; "public" and "private": the scores, None if Kaggle shows none.

    Raises
    ------
    KaggleError
        "scoring" with Kaggle's reason if the submission cannot be scored; "missing" if Kaggle does not list it; other
        failures have their own `kind`. After the first answer, a lost connection is no failure: waiting goes on.
    ValueError
        If `ref`, `timeout` or `every` is no number of at least 0.
    """
    check_whole(locals(), ref=0)
    check_number(locals(), "a number of at least 0", "timeout", "every")
    end, said, seen = time.monotonic() + timeout, None, False
    while True:
        try:
            listed = ask_kaggle("list_submissions", competition, 60.0, {"competition": competition}, client)
            found = [one for one in listed if one["ref"] == ref]
        except KaggleError as fault:
            if fault.kind not in TRANSIENT or not seen or time.monotonic() > end:
                raise
            found = [{"status": "pending", "public": None, "private": None}]
        if not found:
            raise KaggleError("missing", f"submission {ref} is not among the latest 50 of {competition}: look at "
                              f"https://www.kaggle.com/competitions/{competition}/submissions")
        now, seen = found[0], True
        if now["status"] == "error":
            raise KaggleError("scoring", f"Kaggle could not score submission {ref}: {now['reason'] or 'no reason'}")
        if now["status"] == "complete" or time.monotonic() >= end:
            scores = {name: float(now[name]) if now[name] else None for name in ("public", "private")}
            return {"ref": ref, "status": now["status"], **scores}
        if said != now["status"]:
            said = now["status"]
            print(f"submission {ref}: {said}; waiting for at most {timeout:.0f} s", flush=True)
        time.sleep(min(every, max(end - time.monotonic(), 0)))
