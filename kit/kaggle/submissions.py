"""Data in, submissions out: nothing fails silently, nothing is spent twice.

Whatever goes wrong is one `KaggleError` whose `kind` is client, credentials, token, forbidden (wrong name, or rules
not accepted), missing, limit, busy, server, upload, unsure, host, refused, invalid, scoring, pending, damaged or
disk, and whose message says what helps.
"""
import hashlib
import time
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from kit.data import COLLECTIONS, SPLITS
from kit.files import locked
from kit.kaggle.archives import fetch_file, unpack
from kit.kaggle.client import KaggleError, ask_kaggle
from kit.kaggle.notebooks import push_notebook  # noqa: F401  (all that goes to Kaggle, in one place)
from kit.submit import check_submission

COMPETITION = "predict-ai-model-runtime"
MIRROR = "https://download.tensorflow.org/data/tpu_graphs/v0"     # google-research-datasets/tpu_graphs, README
FILES = MappingProxyType({                                        # train, valid, test; counted in the published files
    "tile:xla": (5709, 676, 844), "layout:xla:random": (69, 7, 8), "layout:xla:default": (61, 7, 8),
    "layout:nlp:random": (207, 20, 17), "layout:nlp:default": (198, 20, 17)})
TRANSIENT = ("busy", "server", "host")


def download(folder, collections=None, splits=SPLITS, source="kaggle", mirror=MIRROR, competition=COMPETITION,
             timeout=60.0, files=FILES, client=None):
    """Get the data set, or the part of it that is asked for and not there yet.

    Parameters
    ----------
    folder : str or Path
        Gets npz/tile and npz/layout, and .download/ until all is unpacked. A call that was stopped, cut or failed is
        repeated and goes on.
    collections : sequence of str, optional
        None: all five. "kaggle" sends one archive of about 6 GB whatever is asked for, "mirror" only what is.
    splits : sequence of str
        Of "train", "valid" and "test".
    source : str
        "kaggle", with an account that has accepted the competition's rules, or "mirror", without one.
    mirror : str
        Address of the folder with the mirror's tars.
    competition : str
        Its name in Kaggle's URLs.
    timeout : float
        Seconds without a byte, or for one of Kaggle's answers.
    files : dict of str to tuple of int
        How many files each split must have: {collection: (train, valid, test)}.
    client : dict, optional
        As in `ask_kaggle`; `retries` and `pause` hold for the files too.

    Returns
    -------
    Path
        The data root, `folder`/npz.

    Raises
    ------
    KaggleError
        Also where files are missing in the end: then kind "damaged"; what is there can be used. "busy" where
        another process is downloading the same there.
    ValueError
        If a collection, split or source is unknown.
    """
    collections = list(COLLECTIONS) if collections is None else list(collections)
    unknown = [name for name in [*collections, *splits, source]
               if name not in (*COLLECTIONS, *SPLITS, "kaggle", "mirror")]
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}; collections: {', '.join(COLLECTIONS)}; splits: "
                         f"{', '.join(SPLITS)}; sources: kaggle, mirror")
    root, store = Path(folder).expanduser() / "npz", Path(folder).expanduser() / ".download"
    root.mkdir(parents=True, exist_ok=True)
    patience = {name: value for name, value in (client or {}).items() if name in ("retries", "pause")}

    def lacking():
        there = {(c, s): len(list(root.joinpath(*c.split(":"), s).glob("[!.]*.npz")))
                 for c in collections for s in splits}
        return {(c, s): count for (c, s), count in there.items() if count < files[c][SPLITS.index(s)]}

    wanted = list(lacking())
    if source == "mirror":
        parts = [(f"npz_{c.replace(':', '_')}_{s}.tar", [(c, s)]) for c, s in wanted]
    else:
        parts = [(f"{competition}.zip", wanted)] if wanted else []
    for name, contents in parts:
        def locate(name=name):
            if source == "mirror":
                return f"{mirror.rstrip('/')}/{name}"
            return ask_kaggle("locate", competition, timeout, {"competition": competition}, client)

        lock = store / f"{name}.lock"
        with locked(lock) as holder:
            if holder is not None:
                raise KaggleError("busy", f"{store / name}: is being downloaded by another process{holder}; wait for "
                                  "it, then run it again")
            if lacking().keys() & {*contents}:                   # else another process was faster
                archive = fetch_file(locate, store / name, timeout, **patience)
                count = unpack(archive, root, contents)
                print(f"{name}: {count} files unpacked", flush=True)
                for path in (archive, archive.with_name(archive.name + ".json")):
                    path.unlink()
            with suppress(OSError):                              # Windows keeps it
                lock.unlink()
    with suppress(OSError):                                      # nothing was begun, or something is not finished
        store.rmdir()
    short = [f"{c} {s} has {count} of {files[c][SPLITS.index(s)]} files" for (c, s), count in lacking().items()]
    if short:
        raise KaggleError("damaged", f"{root}: {'; '.join(short)}. What is there can be used; the rest may be found at "
                          f"the other source ({'kaggle' if source == 'mirror' else 'mirror'})")
    return root


def submit(path, message, competition=COMPETITION, data_root=None, sample=None, again=False, timeout=600.0,
           client=None):
    """Check a submission, then submit it, once.

    The first 12 digits of the file's sha256 go into Kaggle's description of it. A file that is found there, sent
    before or by a call whose answer was lost, is not sent again. What Kaggle refused for haste is tried again, and
    everything up to the upload; the last step, which counts, is not where Kaggle's answer leaves it open.

    Parameters
    ----------
    path : str or Path
        The CSV. It is only read.
    message : str
        Kaggle's description of it.
    competition : str
    data_root, sample : str or Path, optional
        As in `check_submission`.
    again : bool
        Submit even a file that was submitted before.
    timeout : float
        Seconds for all of it.
    client : dict, optional
        As in `ask_kaggle`.

    Returns
    -------
    dict
        "ref": number of the submission; "remaining": how many are left now, None where Kaggle does not say;
        "repeated": whether it was there before.

    Raises
    ------
    KaggleError
        "invalid", before anything is sent, if the check finds a problem; else what `ask_kaggle` raises.
    """
    path = Path(path)
    problems = check_submission(path, data_root, sample)
    if problems:
        more = f"; and {len(problems) - 3} more" if problems[3:] else ""
        raise KaggleError("invalid", f"{path} is not valid, nothing was sent: {'; '.join(problems[:3])}{more}")
    mark = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    words = {"competition": competition, "path": str(path.resolve()), "message": f"{message} [{mark}]",
             "mark": f"[{mark}]", "again": again}
    try:
        done = ask_kaggle("submit", competition, timeout, words, client)
    except KaggleError as fault:
        raise KaggleError(fault.kind, f"{fault}. The file stays: {path}") from None
    left = "" if done["remaining"] is None else f", {done['remaining']} left today"
    how = "was submitted before" if done["repeated"] else "submitted"
    print(f"{path.name}: {how} as {done['ref']}{left}", flush=True)
    return done


def wait_for_score(ref, competition=COMPETITION, timeout=900.0, every=15.0, client=None):
    """Watch a submission until Kaggle has scored it.

    Parameters
    ----------
    ref : int
        As `submit` gives it.
    competition : str
    timeout : float
        Seconds; then it is still pending, and may be asked for again at any time. 0 asks once.
    every : float
        Seconds between two questions.
    client : dict, optional
        As in `ask_kaggle`.

    Returns
    -------
    dict
        "ref", "status": "complete" or "pending", "public" and "private": scores, None where Kaggle shows none.

    Raises
    ------
    KaggleError
        "scoring" with Kaggle's reason if it cannot be scored; "missing" if there is no such submission; else what
        `ask_kaggle` raises, but a connection that is lost between two questions is only waited for.
    """
    end, said, seen = time.monotonic() + timeout, None, False
    while True:
        try:
            found = ask_kaggle("score", competition, 60.0, {"competition": competition, "ref": ref}, client)
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
            print(f"submission {ref}: {said}, for at most {timeout:.0f} s", flush=True)
        time.sleep(min(every, max(end - time.monotonic(), 0)))
