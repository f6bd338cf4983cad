"""The real Kaggle client, in a child process with a time limit.

Within this process, the client could end the interpreter (without credentials it calls `exit`), print secrets, or
wait for ever, because none of its calls has a timeout.
"""
import json
import re
import subprocess
import sys
import tempfile
import time
from types import MappingProxyType

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from kit.kaggle import child

COMPETITION = "predict-ai-model-runtime"
TRANSIENT = ("busy", "server", "host")           # kinds of failures that a later attempt may not have
WAIT_MOST = 60                   # s between two attempts, and that a server may ask for
BAR = MappingProxyType({"unit": "B", "unit_scale": True, "delay": 2, "mininterval": 10})         # of progress
# access tokens, JSON web tokens, keys, and the signature of a URL
SECRET = re.compile(r"KGAT_\w+|eyJ[\w.-]{20,}|\b[0-9a-f]{32,}\b|(?<=\?)[^\s'\")]+")
_USED_UP = re.compile(r"allowance|submission limit|daily limit|submissions? (remaining|left)", re.I)
_KEYS = "https://www.kaggle.com/settings/api"
SENTENCES = MappingProxyType({
    "client": "the kaggle client cannot be used ({words}): pip install 'kaggle>=2.2.4' six, with Python 3.11 or newer",
    "credentials": f"there are no Kaggle credentials: make a token at {_KEYS}, then set the environment variable "
                   "KAGGLE_API_TOKEN or save the token as ~/.kaggle/access_token (on Colab: as a secret; never as a "
                   "parameter of a notebook, because parameters are stored with it)",
    "unreadable": f"the Kaggle credentials cannot be used: {{words}}. A new token or kaggle.json is made at {_KEYS}",
    "token": f"Kaggle does not accept the credentials in {{source}}: put a new token there, from {_KEYS}, or remove "
             "them; an old token in KAGGLE_API_TOKEN or ~/.kaggle/access_token takes precedence over a good key in "
             "kaggle.json",
    "forbidden": "Kaggle forbids access to {about} ({words}): check the name; for a competition accept its rules at "
                 "https://www.kaggle.com/competitions/{about}/rules, for a notebook or a Dataset log in as its owner",
    "limit": "Kaggle takes no more submissions now ({words}); the count starts again at 0:00 UTC: retry then",
    "missing": "Kaggle has no {about} ({words}): check the name",
    "busy": "Kaggle asks for fewer requests (HTTP 429{words}): wait some minutes, then run it again",
    "server": "Kaggle has an internal error ({words}) at \"{step}\": run it again later",
    "unsure": "Kaggle's answer to the submission was lost ({words}), so the submission may count. See "
              "https://www.kaggle.com/competitions/{about}/submissions; if it is listed there, submit the same file "
              "again: this finds the submission and spends no second one",
    "upload": "the upload failed ({words}), so nothing was made of it on Kaggle: run it again",
    "host": "no answer from Kaggle ({words}) at \"{step}\": check the internet connection (in a Kaggle notebook: "
            "Settings, Internet on), then run it again",
    "refused": "Kaggle refuses ({words})",
})


class KaggleError(RuntimeError):
    """Kaggle could not be used, or its answer cannot be used.

    Parameters
    ----------
    kind : str
        A word to branch on, kept as an attribute: "client", "credentials", "unreadable" (a file of credentials),
        "token", "forbidden" (a wrong name, or rules not accepted), "limit", "missing", "busy", "server", "unsure",
        "upload", "host", "refused", "invalid", "scoring", "pending", "damaged" or "disk".
    message : str
        What happened and what to do.
    """

    again = False                                # True: another attempt may succeed
    words = ""                                   # Kaggle's own, in the message

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


def ask_kaggle(call, about, timeout, words=None, client=None, safe=True):
    """Let the real client do one thing -> its answer; every failure is a KaggleError of a kind in SENTENCES."""
    # call: a function of child.py, which names the step in messages; about: the competition or notebook, for messages;
    # timeout: seconds for everything, retries included; words: what the function needs; client: see `download`;
    # safe: whether it may be repeated: what is not safe may have arrived, and only 429 says that it was not taken
    settings, end = {"python": sys.executable, "retries": 3, "pause": 2.0, **(client or {})}, time.monotonic() + timeout

    def attempt():
        found = _run_child(settings["python"], {"call": call, **(words or {})}, end - time.monotonic(), timeout)
        if "result" in found:
            return found["result"]
        raise _error(found, call.replace("_", " "), about, safe)
    try:
        return retrying(settings["retries"], settings["pause"])(attempt)
    except KaggleError as fault:
        fault.again = False                      # nor by who downloads what is asked for here
        raise


def retrying(retries, pause):
    """Repeat what fails with a KaggleError that has `again` set; `pause`: seconds before the first retry, doubling."""
    return Retrying(retry=retry_if_exception(lambda fault: getattr(fault, "again", False)),
                    stop=stop_after_attempt(retries + 1), wait=wait_exponential(pause, max=WAIT_MOST), reraise=True)


def retries_of(client):
    """The arguments of `retrying`, and of what takes them along, among the settings of the client."""
    return {name: value for name, value in (client or {}).items() if name in ("retries", "pause")}


def failure(kind, words, about, step="", source=None):
    """The KaggleError of a kind in SENTENCES, without secrets."""
    said = SECRET.sub("***", str(words))[:300]
    error = KaggleError(kind, SENTENCES[kind].format(words=said, step=step, about=about, source=source))
    error.words = said
    return error


def _error(found, step, about, safe):
    """The KaggleError for what a child process tells of a failure."""
    status, wait, words = found.get("status", -1), found.get("wait") or "", found["words"]
    kind = found.get("kind") or _kind_of(status, words)
    if kind == "busy":
        words = f", Retry-After {wait} s" if wait else ""
    error = failure(kind, words, about, step, found.get("source"))
    may = status == 429 or safe and (status == 0 or status >= 500)
    error.again = may and not (wait.isdigit() and int(wait) > WAIT_MOST)
    return error


def _run_child(python, request, left, timeout):
    """Run the child process, at most for `left` of the `timeout` seconds -> what it answers."""
    with tempfile.TemporaryFile() as answer:     # a pipe would stay open while any process that it starts is alive
        try:
            done = subprocess.run([python, child.__file__], input=json.dumps(request).encode(), stdout=answer,
                                  stderr=subprocess.DEVNULL, timeout=max(left, 0))
        except subprocess.TimeoutExpired:
            return {"kind": "host", "words": f"none within {timeout:g} s"}
        answer.seek(0)
        try:
            return json.loads(answer.read())
        except ValueError:
            return {"kind": "client", "words": f"exit status {done.returncode}"}


def _kind_of(status, words):
    """The kind of an HTTP status; 0: no answer."""
    if 400 <= status < 500 and status != 429 and _USED_UP.search(words):
        return "limit"
    known = {0: "host", 401: "token", 403: "forbidden", 404: "missing", 429: "busy"}
    return known.get(status, "server" if status >= 500 else "refused")
