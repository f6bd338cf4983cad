"""A folder as a private Kaggle Dataset, which notebooks on Kaggle find below /kaggle/input.

Thousands of small files are not sent one by one. Each subfolder becomes one zip without compression, and Kaggle unpacks
tile.zip to a folder tile/. So the Dataset has the same paths as the folder. The zips are made in a temporary folder.
Equal files give equal zips. A file in ~/.cache/tpugraphs-kit notes what has arrived, so that a later call resumes.
"""
import hashlib
import json
import os
import re
import tempfile
import time
import zipfile
from functools import partial
from pathlib import Path

from kit.checks import as_path
from kit.files import file_sha256, locked, unwritable_named, write_json
from kit.kaggle.client import TRANSIENT, KaggleError, ask_kaggle, retries_of
from kit.kaggle.downloads import mb
from kit.kaggle.uploads import upload_file

LIST = "uploaded-files.json"     # {path: [bytes, sha256]}. Kaggle unpacks a zip without a second file to no subfolder
ANSWER_WITHIN = 60.0             # s for one question to Kaggle, retries included
UPLOAD_LIVES = 6 * 24 * 3600     # s; the storage keeps an unfinished upload for a week
FILES_MOST = 999                 # directly in the folder; Kaggle takes 1,000 files, and the list is one of them
_ARCHIVES = re.compile(r".*\.(zip|tar|gz|tgz|bz2|xz|7z|rar)", re.I)           # Kaggle unpacks them
_NAME = re.compile(r"""[^\x00-\x1f\x7f\\:*?"<>|@&]+""")                       # Kaggle refuses names with @ and &
_NAME_OF_DATASET = re.compile(r"(?:[A-Za-z0-9_-]+/)?[a-z0-9]+(?:-[a-z0-9]+)*")
_ENDED = ("failed", "deleted")   # Kaggle does nothing more for such a version


def push_dataset(folder, dataset, title=None, timeout=7200.0, every=10.0, client=None):
    """Make a private Kaggle Dataset of a folder, or a new version of it, and wait until notebooks can use it.

    If the call is interrupted or fails, repeat it within six days: it resumes where the upload stopped. If the latest
    version has the same files, nothing is uploaded. The folder is only read.

    Parameters
    ----------
    folder : str or Path
        Prepared data, trained checkpoints, or other files. Files and folders whose names start with a dot are left
        out.
    dataset : str
        "owner/slug" or "slug": the name of the Dataset in Kaggle's URLs. The slug has 6 to 50 small letters, digits
        and single dashes. Without an owner, the account is the owner.
    title : str, optional
        6 to 50 characters. None: the slug with spaces. A Dataset that exists keeps its title.
    timeout : float
        Seconds for everything: the upload, and the processing by Kaggle.
    every : float
        Seconds between two requests for the status.
    client : dict, optional
        As in `download`.

    Returns
    -------
    dict
        "ref": "owner/slug", for the `dataset_sources` of a notebook. "url". "version": a number from 1. "uploaded":
        False if the latest version had the same files.

    Raises
    ------
    KaggleError
        "invalid", before anything is sent, if the slug, the title or a file cannot be used; "refused" if the Dataset
        is public or Kaggle cannot process the files; "pending" if it is not ready in time; "busy" if another process
        pushes to this Dataset; "upload" if the files do not arrive; other failures have their own `kind`.
    OSError
        If a file cannot be read, or a temporary one cannot be written.
    """
    end, folder = time.monotonic() + timeout, as_path(folder, "folder").expanduser().resolve()
    title = _checked_title(dataset, title)
    files = _files_below(folder)
    listed = json.dumps({name: [path.stat().st_size, file_sha256(path)] for name, path in files.items()})
    mark = f"[files {hashlib.sha256(listed.encode()).hexdigest()[:16]}]"
    now = _ask(dataset, client)
    known = Path.home() / ".cache" / "tpugraphs-kit" / f"{now['ref'].replace('/', '_')}.json"
    with locked(known.with_suffix(".lock")) as holder:
        if holder is not None:
            raise KaggleError("busy", f"{now['ref']}: another process{holder} pushes to this Dataset; wait for it, "
                              "then run it again")
        known.parent.chmod(0o700)                # private: who knows an address can upload to it
        uploaded = mark not in now["about"] or now["status"] in _ENDED
        if uploaded:
            now = _upload(files, listed, mark, title, now, known, end, every, client)
    now = _wait_until_ready(now, end, every, client)
    print(f"{now['ref']}: version {now['version']} is ready; notebooks see it at /kaggle/input/datasets/{now['ref']}",
          flush=True)
    return {"ref": now["ref"], "url": f"https://www.kaggle.com/datasets/{now['ref']}", "version": now["version"],
            "uploaded": uploaded}


def wait_for_dataset(dataset, timeout=1800.0, every=10.0, client=None):
    """Wait until Kaggle has processed the latest version of "owner/slug", so that a pushed notebook finds its files.

    KaggleError: "pending" if it is not ready in time, "refused" if Kaggle could not process it. A Dataset of which
    Kaggle tells this account nothing is not waited for: Kaggle says at the push if the notebook may not read it.
    """
    end, now = time.monotonic() + timeout, _ask(dataset, client)
    if now["version"]:
        _wait_until_ready(now, end, every, client)


def _checked_title(dataset, title):
    """The title, or one made of the slug; KaggleError if Kaggle would refuse one of the two."""
    slug = str(dataset).rpartition("/")[2]
    if not _NAME_OF_DATASET.fullmatch(str(dataset)) or not 6 <= len(slug) <= 50:
        raise KaggleError("invalid", f"dataset {dataset!r}: expected \"owner/slug\" or \"slug\"; the slug has 6 to 50 "
                          "small letters, digits and single dashes")
    title = slug.replace("-", " ") if title is None else title
    if not 6 <= len(title) <= 50 or not title.isprintable():
        raise KaggleError("invalid", f"title {title!r} has {len(title)} characters; expected 6 to 50 on one line")
    return title


def _files_below(folder):
    """{path below the folder: path} of all files but hidden ones; KaggleError for a file that Kaggle would change."""
    def refuse(path, why):
        raise KaggleError("invalid", f"{path}: {why}; nothing was sent")

    files = {}
    if not folder.is_dir():
        refuse(folder, "no such folder")
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or name.as_posix() == LIST:
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            refuse(path, "is a link or a special file; expected files and folders")
        if not _NAME.fullmatch(path.name):
            refuse(path, "Kaggle refuses such a name; rename it")
        if _ARCHIVES.fullmatch(path.name):
            refuse(path, "Kaggle would unpack it; unpack it here, or push another folder")
        if path.is_file():
            files[name.as_posix()] = path
        else:
            os.scandir(path).close()             # an error, where rglob leaves out what it cannot read
    single = sum("/" not in name for name in files)
    if not files or single > FILES_MOST:
        refuse(folder, f"has {single} files directly in it, and {len(files)} in all; expected at least one file, and "
               f"at most {FILES_MOST} directly in it: put them into a folder")
    return files


def _upload(files, listed, mark, title, now, known, end, every, client):
    """Upload the files and make a version of them -> what is known about the Dataset."""
    # known: where the addresses of an unfinished upload are noted
    if now["version"] and not now["private"]:
        raise KaggleError("refused", f"{now['ref']} is public, and the kit publishes nothing; make it private on "
                          "Kaggle, or give another name; nothing was sent")
    if now["version"] and now["status"] not in _ENDED:
        _wait_until_ready(now, end, every, client)       # Kaggle takes no second version while it processes the first
    with tempfile.TemporaryDirectory() as store:
        with unwritable_named(store):
            paths = _pack(files, listed, Path(store))
        size = sum(path.stat().st_size for path in paths)
        print(f"{now['ref']}: {len(files)} files, {mb(size)}, are uploaded as {len(paths)} files", flush=True)
        try:
            tokens = _send(paths, mark, now["ref"], known, end, client)
            _create(tokens, mark, title, now, end, client)
        except KaggleError as fault:
            if fault.kind == "refused":                  # the next call uploads anew, in case the upload is the reason
                known.unlink(missing_ok=True)
                raise
            raise KaggleError(fault.kind, f"{fault}. What has arrived is not uploaded again") from None
    known.unlink(missing_ok=True)
    return {**now, "version": now["version"] + 1}


def _pack(files, listed, store):
    """Write one zip per subfolder, and the list of files, to `store` -> the paths of all files to upload."""
    paths, folders = [store / LIST], {}
    paths[0].write_text(listed, "utf-8")
    for name, path in files.items():
        top, _, inner = name.partition("/")
        if inner:
            folders.setdefault(top, {})[inner] = path
        else:
            paths.append(path)
    for top, members in folders.items():
        paths.append(store / f"{top}.zip")
        with zipfile.ZipFile(paths[-1], "w") as archive:
            for inner, path in members.items():
                info = zipfile.ZipInfo(inner)            # no time of change: equal zips
                info.external_attr = 0o644 << 16
                archive.writestr(info, path.read_bytes())
    return paths


def _send(paths, mark, ref, known, end, client):
    """Upload files, or the rest of an earlier upload of the same files -> their tokens."""
    try:
        noted = json.loads(known.read_text("utf-8"))
        fits = noted["mark"] == mark and time.time() - noted["begun"] < UPLOAD_LIVES
    except (OSError, ValueError, TypeError, KeyError):
        fits = False
    noted = noted if fits else {"mark": mark, "begun": time.time(), "slots": {}}

    def start(path):
        return ask_kaggle("start_upload", ref, end - time.monotonic(), {"path": str(path)}, client)
    return [upload_file(path, partial(start, path), ref, end, noted["slots"].setdefault(path.name, {}),
                        partial(write_json, known, noted), **retries_of(client)) for path in paths]


def _create(tokens, mark, title, now, end, client):
    """Make a version of uploaded files, once."""
    words = {"dataset": now["ref"], "tokens": tokens, "mark": mark, "title": title, "version": now["version"]}
    try:
        ask_kaggle("create_the_Dataset", now["ref"], end - time.monotonic(), words, client, safe=False)
    except KaggleError as fault:                         # it may have arrived
        if fault.kind not in ("host", "server") or mark not in _ask(now["ref"], client)["about"]:
            raise


def _wait_until_ready(now, end, every, client):
    """Ask until Kaggle has processed the version in `now` -> what is known then; KaggleError if processing failed."""
    wanted, said = now["version"], None
    while True:
        try:
            now = {**now, **_ask(now["ref"], client)}
        except KaggleError as fault:
            if fault.kind not in TRANSIENT or time.monotonic() > end:
                raise
        status = now["status"] if now["version"] >= wanted else "not listed yet"     # Kaggle needs some seconds
        if status in _ENDED:
            raise KaggleError("refused", f"Kaggle could not process {now['ref']}: its status is {status!r}; see "
                              f"https://www.kaggle.com/datasets/{now['ref']}")
        if status == "ready" and now["current"] >= wanted:
            return now
        if time.monotonic() >= end:
            raise KaggleError("pending", f"{now['ref']}: uploaded, but Kaggle still processes it ({status}); run it "
                              "again, nothing is uploaded twice")
        if status != said:
            said = status
            print(f"{now['ref']}: {said}; waiting for at most {end - time.monotonic():.0f} s", flush=True)
        time.sleep(min(every, max(end - time.monotonic(), 0)))


def _ask(dataset, client):
    """What Kaggle knows about a Dataset, as `child.look_for_the_Dataset` gives it."""
    return ask_kaggle("look_for_the_Dataset", dataset, ANSWER_WITHIN, {"dataset": dataset}, client)
