"""The real Kaggle client, in a child process of its own with a time limit.

Imported here it could end the interpreter (it calls `exit` without credentials), print secrets, or wait for ever:
none of its calls has a timeout.
"""
import json
import re
import subprocess
import sys
import tempfile
from types import MappingProxyType

from kit.kaggle.child import CLIENT

# access tokens, JSON web tokens, keys, and what signs a URL
SECRET = re.compile(r"KGAT_\w+|eyJ[\w.-]{20,}|\b[0-9a-f]{32,}\b|(?<=\?)[^\s'\")]+")
USED_UP = re.compile(r"allowance|submission limit|daily limit|submissions? (remaining|left)", re.I)
KEYS = "https://www.kaggle.com/settings/api"
SENTENCES = MappingProxyType({
    "client": "the kaggle client cannot be used ({words}): pip install 'kaggle>=2.2.4' six, with Python "
              "3.11 or newer",
    "credentials": f"there are no Kaggle credentials: make a token at {KEYS}, then set the environment variable "
                   "KAGGLE_API_TOKEN or save it as ~/.kaggle/access_token (Colab: a secret; never as a notebook's "
                   "parameter, which is stored with it)",
    "token": "Kaggle does not accept the credentials in {source}: put a new token there, from " + KEYS + ", or remove "
             "them; an old token in KAGGLE_API_TOKEN or ~/.kaggle/access_token goes before a good key in kaggle.json",
    "forbidden": "Kaggle forbids access to {about} ({words}): check the name; for a competition accept its rules at "
                 "https://www.kaggle.com/competitions/{about}/rules, for a notebook log in as its owner",
    "limit": "Kaggle takes no more submissions now ({words}); the count starts anew at 0:00 UTC: run it again then",
    "missing": "Kaggle has no {about} ({words}): check the name",
    "busy": "Kaggle asks for fewer requests (HTTP 429{words}): wait some minutes, then run it again",
    "server": "Kaggle has a fault of its own ({words}) at \"{step}\": run it again later",
    "unsure": "Kaggle's answer to the submission was lost ({words}): it may count. See "
              "https://www.kaggle.com/competitions/{about}/submissions; submitting the same file again finds it there "
              "instead of spending another one",
    "upload": "the upload did not get through ({words}); nothing was submitted: run it again",
    "host": "no answer from Kaggle ({words}) at \"{step}\": check the internet connection (in a Kaggle notebook: "
            "Settings, Internet on), then run it again",
    "refused": "Kaggle refuses ({words})",
})


class KaggleError(RuntimeError):
    """Kaggle could not be used, or what came from there cannot.

    Parameters
    ----------
    kind : str
        A word to branch on, kept as an attribute: one of those in `SENTENCES`, or "invalid", "scoring", "pending",
        "damaged" or "disk".
    message : str
        What happened and what helps.
    """

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


def ask_kaggle(call, about, timeout, words=None, client=None):
    """Let the real client do one thing, in a child process.

    Parameters
    ----------
    call : str
        "submit", "score", "locate", "push", "status" or "output".
    about : str
        The competition or notebook, for messages.
    timeout : float
        Seconds for all of it, attempts included; then the child is ended.
    words : dict, optional
        What the call needs; plain values.
    client : dict, optional
        `python`: an interpreter that has the client, default this one; `retries`: 3; `pause`: 2 seconds before the
        first of them, doubling.

    Returns
    -------
    dict, list or str
        What the child answered.

    Raises
    ------
    KaggleError
        With one of the kinds in `SENTENCES`.
    """
    settings = {"python": sys.executable, "retries": 3, "pause": 2.0, **(client or {})}
    request, late = {"call": call, **settings, **(words or {})}, ""
    with tempfile.TemporaryFile() as answers:
        child = subprocess.Popen([settings["python"], "-c", CLIENT], stdin=subprocess.PIPE, stdout=answers,
                                 stderr=subprocess.DEVNULL)
        try:
            child.communicate(json.dumps(request).encode(), timeout=timeout)
        except subprocess.TimeoutExpired:
            late = f"none within {timeout:g} s"
        finally:
            child.kill()
            child.wait()
        answers.seek(0)
        told = [json.loads(line) for line in answers.read().splitlines(keepends=True) if line.endswith(b"\n")]
    last = told[-1] if told else {}
    if "result" in last:
        return last["result"]
    step = next((line["step"] for line in reversed(told) if "step" in line), "sign in")
    if late and "source" not in last:
        last = {"kind": {"upload": "upload", "create submission": "unsure"}.get(step, "host"), "words": late}
    elif "source" not in last:
        last = {"kind": "client", "words": f"it ended with status {child.returncode}"}
    said = SECRET.sub("***", str(last.get("words", "")))[:300]
    kind = last.get("kind") or _kind_of(last["status"], said)
    if kind == "busy":
        said = f", Retry-After {last['wait']} s" if last.get("wait") else ""
    raise KaggleError(kind, SENTENCES[kind].format(words=said, step=step, about=about, source=last.get("source")))


def _kind_of(status, words):
    """The kind of an HTTP status; 0: no answer."""
    if 400 <= status < 500 and status != 429 and USED_UP.search(words):
        return "limit"
    known = {0: "host", 401: "token", 403: "forbidden", 404: "missing", 429: "busy"}
    return known.get(status, "server" if status >= 500 else "refused")
