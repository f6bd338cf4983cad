"""Data in, submissions out, notebooks on Kaggle's machines: nothing fails silently, nothing is spent twice.

Whatever goes wrong is one `KaggleError` whose `kind` is client, credentials, token, forbidden (wrong name, or rules
not accepted), missing, limit, busy, server, upload, unsure, host, refused, invalid, scoring, damaged or disk, and
whose message says what helps.
"""
import hashlib
import json
import re
import tempfile
import time
from pathlib import Path
from types import MappingProxyType

from kit.data import COLLECTIONS, SPLITS
from kit.kaggle_client import KaggleError, ask_kaggle
from kit.submit import check_submission, replace_file
from kit.unpack import fetch_file, unpack

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
        Also where files are missing in the end: then kind "damaged"; what is there can be used.
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

        archive = fetch_file(locate, store / name, timeout, **patience)
        count = unpack(archive, root, contents)
        print(f"{name}: {count} files unpacked", flush=True)
        for path in (archive, archive.with_name(archive.name + ".json")):
            path.unlink()
    if store.is_dir() and not any(store.iterdir()):
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


def push_notebook(notebook, metadata=None, timeout=120.0, client=None):
    """Save a notebook on Kaggle and let it run there.

    Never repeated where it may have arrived: every push is a run, and takes GPU quota.

    Parameters
    ----------
    notebook : str or Path
        An .ipynb or .py file, or a folder with it and kernel-metadata.json.
    metadata : dict, optional
        What kernel-metadata.json holds; needed unless `notebook` is a folder that has one, goes before it. An id
        without owner gets the account's name; code_file, language and kernel_type follow from the file.
    timeout : float
        Seconds.
    client : dict, optional
        As in `ask_kaggle`.

    Returns
    -------
    dict
        "ref": "owner/name", by which it is asked for; "url"; "version".

    Raises
    ------
    KaggleError
        "invalid", before anything is sent, if something is missing or the title would give another name than the
        id; "refused" where Kaggle takes it without its data; else what `ask_kaggle` raises.
    """
    notebook = Path(notebook)
    given = notebook / "kernel-metadata.json" if notebook.is_dir() else None
    about = {**(json.loads(given.read_text("utf-8")) if given and given.is_file() else {}), **(metadata or {})}
    code = notebook / about.get("code_file", "") if notebook.is_dir() else notebook
    if not code.is_file():
        raise KaggleError("invalid", f"{code}: no such file; expected a notebook, or a folder with "
                          "kernel-metadata.json whose code_file names one")
    kind = "notebook" if code.suffix == ".ipynb" else "script"
    about = {"language": "python", "kernel_type": kind, **about, "code_file": code.name}
    name, title = about.get("id", "").rpartition("/")[2], about.get("title", "")
    slug = re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")
    if len(name) < 5 or slug != name:
        raise KaggleError("invalid", f"{code.name}: id {about.get('id')!r} and title {title!r}; expected a title that "
                          f"gives the id's name (here {slug!r}) and five letters or more: Kaggle names by the title")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, code.name).write_bytes(code.read_bytes())
        Path(folder, "kernel-metadata.json").write_text(json.dumps(about), "utf-8")
        return ask_kaggle("push", about["id"], timeout, {"folder": folder}, client)


def notebook_status(notebook, timeout=60.0, client=None):
    """How the latest run of a notebook stands.

    Parameters
    ----------
    notebook : str
        "owner/name".
    timeout : float
        Seconds.
    client : dict, optional
        As in `ask_kaggle`.

    Returns
    -------
    dict
        "status": "queued", "running", "complete", "error", "cancel_requested" or "cancel_acknowledged"; "reason":
        Kaggle's words for an error, or None.

    Raises
    ------
    KaggleError
        What `ask_kaggle` raises.
    """
    return ask_kaggle("status", notebook, timeout, {"notebook": notebook}, client)


def notebook_output(notebook, folder, only="", timeout=60.0, client=None):
    """Fetch what the latest run of a notebook wrote, and its log.

    Parameters
    ----------
    notebook : str
        "owner/name".
    folder : str or Path
        Gets the files under the names they have there, and the log as NAME.log.
    only : str
        Regular expression that the names must contain; default all.
    timeout : float
        Seconds for the list, and without a byte of a file.
    client : dict, optional
        As in `ask_kaggle`.

    Returns
    -------
    dict
        "files": list of Path; "log": Path, of plain text, whose last lines say why a run failed.

    Raises
    ------
    KaggleError
        "damaged" if a name would leave the folder; else what `ask_kaggle` and `fetch_file` raise.
    """
    found = ask_kaggle("output", notebook, timeout, {"notebook": notebook}, client)
    folder, files = Path(folder), []
    patience = {name: value for name, value in (client or {}).items() if name in ("retries", "pause")}
    for name, url in found["files"]:
        if name.startswith("/") or "\\" in name or ":" in name or ".." in name.split("/"):
            raise KaggleError("damaged", f"{notebook}: output {name!r} would leave the folder {folder}; rename it")
        if re.search(only, name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as store:
                part = fetch_file(lambda url=url: url, Path(store, Path(name).name), timeout, **patience)
                files.append(part.replace(folder / name))
    try:
        text = "".join(line["data"] for line in json.loads(found["log"]))      # [{stream_name, time, data}]
    except (ValueError, TypeError, KeyError):
        text = found["log"]
    log = folder / f"{notebook.split('/')[1]}.log"
    replace_file(log, text)
    return {"files": files, "log": log}
