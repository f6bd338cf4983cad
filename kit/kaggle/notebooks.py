"""Notebooks on Kaggle's machines: push one, ask how it stands, fetch what it wrote."""
import json
import re
import tempfile
from pathlib import Path

from kit.files import replace_file
from kit.kaggle.archives import fetch_file
from kit.kaggle.client import KaggleError, ask_kaggle


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
        "status": "queued", "running", "complete", "error", "cancel_requested" or "cancel_acknowledged", or a word
        that is new there; "reason": Kaggle's words for an error, or None.

    Raises
    ------
    KaggleError
        What `ask_kaggle` raises.
    """
    return ask_kaggle("status", notebook, timeout, {"notebook": notebook}, client)


def notebook_output(notebook, folder, only="", most=None, timeout=60.0, client=None):
    """Fetch what the latest run of a notebook wrote, and its log.

    Parameters
    ----------
    notebook : str
        "owner/name".
    folder : str or Path
        Gets the files under the names they have there, and the log as NAME.log.
    only : str
        Regular expression that the names must contain; default all.
    most : int, optional
        Bytes that a file may have.
    timeout : float
        Seconds for the list, and without a byte of a file.
    client : dict, optional
        As in `ask_kaggle`.

    Returns
    -------
    dict
        "files": list of Path; "log": Path, of plain text, whose last lines say why a run failed; "names": of all
        files there, fetched or not.

    Raises
    ------
    KaggleError
        "damaged" if a name would leave the folder or a file is larger than `most`; else what `ask_kaggle` and
        `fetch_file` raise.
    """
    found = ask_kaggle("output", notebook, timeout, {"notebook": notebook}, client)
    folder, files = Path(folder), []
    patience = {name: value for name, value in (client or {}).items() if name in ("retries", "pause")}
    for name, url in found["files"]:
        if re.search(only, name):
            if not name.isprintable() or name.startswith("/") or "\\" in name or ":" in name or ".." in name.split("/"):
                raise KaggleError("damaged", f"{notebook}: output {name!r} would leave the folder {folder}; rename it")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as store:
                part = fetch_file(lambda url=url: url, Path(store, Path(name).name), timeout, most=most, **patience)
                files.append(part.replace(folder / name))
    try:
        text = "".join(line["data"] for line in json.loads(found["log"]))      # [{stream_name, time, data}]
    except (ValueError, TypeError, KeyError, RecursionError):
        text = found["log"]
    log = folder / f"{notebook.split('/')[1]}.log"
    replace_file(log, text.encode("utf-8", "replace").decode())         # a log may be cut inside a letter
    return {"files": files, "log": log, "names": [name for name, _ in found["files"]]}
