"""Notebooks on Kaggle's machines: push one, ask for its status, fetch what it wrote."""
import json
import re
import tempfile
from pathlib import Path

from kit.checks import as_path, check_number
from kit.files import replace_file
from kit.kaggle.client import KaggleError, ask_kaggle, retries_of
from kit.kaggle.downloads import fetch_file

MACHINE = "NvidiaTeslaT4"        # machine_shape in kernel-metadata.json; Kaggle has no machine with a single T4
# machine_shape -> (GPU, how many); only accounts that Kaggle chooses get an A100
GPUS = {MACHINE: ("T4", 2), "NvidiaTeslaA100": ("A100", 1)}


# reported: Kaggle answers a longer source or title with an error of the server, which names no reason
SOURCE_MOST = 1_000_000          # bytes as they are sent
TITLE_LEAST, TITLE_MOST = 5, 50


def check_notebook(name, text, title):
    """KaggleError if Kaggle would refuse a notebook or script, given its text, for its size or its title."""
    if not TITLE_LEAST <= len(title) <= TITLE_MOST:
        raise KaggleError("invalid", f"{name}: the title {title!r} has {len(title)} characters; Kaggle takes "
                          f"{TITLE_LEAST} to {TITLE_MOST}; nothing was sent")
    if (size := len(_as_sent(name, text).encode())) > SOURCE_MOST:
        raise KaggleError("invalid", f"{name}: has {size / 1e6:.2f} MB without its outputs, and Kaggle takes at most "
                          f"{SOURCE_MOST / 1e6:.0f} MB; nothing was sent: take fewer notebooks into it, or carry large "
                          "files as a Dataset")


def _as_sent(name, text):
    """The text of a notebook as the client sends it: without outputs, on one line."""
    if not name.endswith(".ipynb"):
        return text
    try:
        book = json.loads(text)
        for cell in book.get("cells", []):
            cell.update({"outputs": []} if cell.get("cell_type") == "code" else {})
            cell["source"] = "".join(cell.get("source", ""))
    except (ValueError, TypeError, AttributeError):
        raise KaggleError("invalid", f"{name}: is no notebook; nothing was sent") from None
    return json.dumps(book)


def push_notebook(notebook, metadata=None, timeout=120.0, client=None):
    """Save a notebook on Kaggle and let it run there.

    A push that may have arrived is never repeated, because every push starts a run and uses GPU quota.

    Parameters
    ----------
    notebook : str or Path
        An .ipynb or .py file, or a folder with the file and kernel-metadata.json.
    metadata : dict, optional
        The content of kernel-metadata.json; takes precedence over the file. An id without owner gets the account's
        name. code_file, language and kernel_type are derived from the notebook. machine_shape is the machine:
        "NvidiaTeslaT4" has two T4. With enable_gpu and no machine_shape, Kaggle chooses the GPU.
    timeout : float
        Seconds for everything.
    client : dict, optional
        As in `download`.

    Returns
    -------
    dict
        "ref": "owner/name", the notebook's name on Kaggle; "url"; "version"; "without": those of kernel_sources whose
        output Kaggle does not give to the notebook, which runs without them.

    Raises
    ------
    KaggleError
        "invalid", before anything is sent, if the file is missing, has more than 1 MB without outputs, or the title
        does not give the name in the id or is too long;
        "refused" if Kaggle accepts the notebook without its data; other failures have their own `kind`.
    """
    notebook = as_path(notebook, "notebook")
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
                          f"gives the name in the id (this one gives {slug!r}), with at least five letters: Kaggle "
                          "names a notebook by its title")
    check_notebook(code.name, code.read_text("utf-8", "replace"), title)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, code.name).write_bytes(code.read_bytes())
        words = {"folder": folder, "about": about}
        return ask_kaggle("push_the_notebook", about["id"], timeout, words, client, safe=False)


def gpu_quota(timeout=60.0, client=None):
    """Ask how many hours of GPU time the account has used this week.

    Parameters
    ----------
    timeout : float
        Seconds for everything.
    client : dict, optional
        As in `download`.

    Returns
    -------
    dict or None
        Hours: "used", "reserved" by notebooks that run, "allowed" per week, and "left", which is "allowed" minus
        "used". "renewed": when the next week begins, as text in UTC, or None. None instead of a dict if Kaggle does not
        say.

    Raises
    ------
    KaggleError
        "credentials" without a token; other failures have their own `kind`.
    ValueError
        If `timeout` is no number of at least 0.
    """
    check_number(locals(), "a number of at least 0", "timeout")
    found = ask_kaggle("ask_for_the_GPU_quota", "GPU quota", timeout, client=client)
    return {**found, "left": max(0.0, found["allowed"] - found["used"])} if found else None


def quota_line(hours=None, client=None):
    """One sentence about the GPU quota, with a warning if a plan takes more `hours` than are left; never an error."""
    try:
        found = gpu_quota(client={"retries": 1, **(client or {})})
    except KaggleError as fault:
        return f"GPU quota: not known, because {fault}"
    if found is None:
        return "GPU quota: not known; Kaggle does not say"
    words = f"GPU quota: {found['used']:.1f} of {found['allowed']:.1f} hours used this week, {found['left']:.1f} left"
    words += f", {found['reserved']:.1f} reserved by running notebooks" if found["reserved"] else ""
    words += f", renewed {found['renewed']} UTC" if found["renewed"] else ""
    return words + (f"; the plan takes more, about {hours:.1f}" if hours and hours > found["left"] else "")


def notebook_status(notebook, timeout=60.0, client=None):
    """The latest run of "owner/name" -> {"status": Kaggle's word in lower case, "reason": of an error, else None}."""
    return ask_kaggle("ask_for_the_status", notebook, timeout, {"notebook": notebook}, client)


def notebook_output(notebook, folder, only="", timeout=60.0, client=None):
    """The latest run's files and log NAME.log -> {"files": fetched, "log", "names": of all files, fetched or not}."""
    # only: regular expression that a file's name must match; timeout: as in `fetch_file`
    found = ask_kaggle("list_output", notebook, timeout, {"notebook": notebook}, client)
    folder, files = Path(folder), []
    for name, url in found["files"]:
        if re.search(only, name):
            if name.startswith("/") or "\\" in name or ":" in name or ".." in name.split("/"):
                raise KaggleError("damaged", f"{notebook}: output {name!r} would leave the folder {folder}; rename it")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as store:
                part = fetch_file(lambda url=url: url, Path(store, Path(name).name), timeout, **retries_of(client))
                files.append(part.replace(folder / name))
    try:
        text = "".join(line["data"] for line in json.loads(found["log"]))      # [{stream_name, time, data}]
    except (ValueError, TypeError, KeyError, RecursionError):
        text = found["log"]
    log = folder / f"{notebook.split('/')[1]}.log"
    replace_file(log, text.encode("utf-8", "replace").decode())         # a log may be cut inside a letter
    return {"files": files, "log": log, "names": [name for name, _ in found["files"]]}
