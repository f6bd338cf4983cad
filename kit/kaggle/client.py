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
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from kit.kaggle import child

COMPETITION = "predict-ai-model-runtime"
TRANSIENT = ("busy", "server", "host")           # kinds of failures that a later attempt may not have
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

    again = False                                # True: another attempt at the same download may succeed

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


def ask_kaggle(call, about, timeout, words=None, client=None):
    """Let the real client do one thing -> its answer; every failure is a KaggleError of a kind in SENTENCES."""
    # call: a method of child.Calls; words: what the method needs; about: the competition or notebook, for messages;
    # timeout: seconds for everything, retries included; client: see `download`
    settings = {"python": sys.executable, "retries": 3, "pause": 2.0, **(client or {})}
    lines, ended = _run_child(settings["python"], {"call": call, **settings, **(words or {})}, timeout)
    last = lines[-1] if lines else {}
    if "result" in last:
        return last["result"]
    step = next((line["step"] for line in reversed(lines) if "step" in line), "sign in")
    if "source" not in last:                     # it did not come to its last line
        kind = {"upload": "upload", "create submission": "unsure"}.get(step, "host")
        last = {"kind": "client", "words": f"exit status {ended}"} if ended is not None else {
            "kind": kind, "words": f"none within {timeout:g} s"}
    said = SECRET.sub("***", str(last.get("words", "")))[:300]
    kind = last.get("kind") or _kind_of(last["status"], said)
    if kind == "busy":
        said = f", Retry-After {last['wait']} s" if last.get("wait") else ""
    raise KaggleError(kind, SENTENCES[kind].format(words=said, step=step, about=about, source=last.get("source")))


def _run_child(python, request, timeout):
    """Run the child process -> (the lines that it wrote, its exit status or None where it did not end in time)."""
    given, ended, end, lines, rest = json.dumps(request).encode(), None, time.monotonic() + timeout, [], b""
    with tempfile.TemporaryDirectory() as folder:
        # a file of its own: a pipe would stay open while any process that the client starts is alive
        with open(Path(folder, "answers"), "wb") as answers, open(answers.name, "rb") as reader:
            process = subprocess.Popen([python, child.__file__], stdin=subprocess.PIPE, stdout=answers,
                                       stderr=subprocess.DEVNULL)
            try:
                while ended is None and time.monotonic() < end:
                    with suppress(subprocess.TimeoutExpired):
                        process.communicate(given, timeout=min(max(end - time.monotonic(), 0), 1))
                        ended = process.returncode
                    given, (*whole, rest) = None, (rest + reader.read()).split(b"\n")
                    lines += [json.loads(line) for line in whole]
                    for line in lines[len(lines) - len(whole):]:
                        if "say" in line:
                            print(line["say"], flush=True)
            finally:
                process.kill()
                process.wait()
    return lines, ended


def _kind_of(status, words):
    """The kind of an HTTP status; 0: no answer."""
    if 400 <= status < 500 and status != 429 and _USED_UP.search(words):
        return "limit"
    known = {0: "host", 401: "token", 403: "forbidden", 404: "missing", 429: "busy"}
    return known.get(status, "server" if status >= 500 else "refused")
