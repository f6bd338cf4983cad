"""How notebooks are executed: one run a folder, a kernel of this Python, progress, and what is finished stays so."""
import hashlib
import io
import json
import logging
import os
import re
import shutil
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
import papermill
from ipykernel.kernelspec import get_kernel_dict

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))                # a clone runs without installing kit
from kit.files import locked, put_in_place, remove_leftovers, replace_file  # noqa: E402

LOCK = Path(".run", "lock")
STILLBORN = "Kernel died before replying"       # nbclient's words, before the first cell
# ipykernel's launcher, without what its event loops log: a kernel that ends may log its own closed sockets
KERNEL = """import logging, sys
for name in ("tornado", "asyncio"):
    logging.getLogger(name).setLevel(logging.CRITICAL + 1)
if sys.path[0] == "":
    del sys.path[0]
from ipykernel import kernelapp
kernelapp.launch_new_instance()"""


class RunError(Exception):
    """The run cannot start or go on: why, what to do, and the exit status."""

    def __init__(self, message, status=2):
        super().__init__(message)
        self.status = status


def show(path):
    """A path as one would type it: relative where it lies below the working directory."""
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else str(path)


def digest(*parts):
    """Hex digest of what JSON can say."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def state(path):
    """What changes when a file does; nothing for a link to nowhere, which is left to the reader to report."""
    try:
        return path.stat().st_size, path.stat().st_mtime_ns
    except OSError:
        return ()


@contextmanager
def lock(folder):
    """Keep other runs out of `folder`."""
    with locked(folder / LOCK) as holder:
        if holder is not None:
            raise RunError(f"{show(folder)}: another run{holder} is writing here; wait for it or choose another --out")
        for path in remove_leftovers(folder):
            print(f"note  {show(path)} was half-written when a run was killed; it is made again", flush=True)
        yield


def use_this_python(folder):
    """Make the kernel "python3" this interpreter, with kit importable, whatever else is installed."""
    spec = get_kernel_dict(["--log-level=50"])  # silent: it calls Ctrl-C an error
    module = spec["argv"].index("-m")
    spec["argv"][module:module + 2] = "-c", KERNEL
    replace_file(folder / "kernels" / "python3" / "kernel.json", json.dumps(spec))
    for name, first in (("JUPYTER_PATH", folder), ("PYTHONPATH", PROJECT)):
        os.environ[name] = os.pathsep.join([str(first), *filter(None, [os.environ.get(name)])])
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")        # a debugger's warning per notebook


class LastLine(io.StringIO):
    """What the cells print; `text` is its last line."""
    text = ""

    def write(self, text):
        """Keep the last line."""
        self.text = ([line.strip() for line in text.splitlines() if line.strip()] or [self.text])[-1]


def partly(target):
    """What an executed notebook is called until it is finished."""
    return target.with_suffix(".partial.ipynb")


def execute(notebook, target, parameters, label):
    """Execute one notebook, showing progress; the file is called `target` once it is finished."""
    unfinished, failure, last, start = partly(target), [], LastLine(), time.monotonic()
    live = sys.stdout.isatty()                  # one line rewritten every second, else a line a minute

    def work():
        for tries in range(3):
            if tries:
                print(f"note  {notebook.stem}: its kernel died before the first cell; started again", flush=True)
            failure.clear()
            try:
                papermill.execute_notebook(str(notebook), str(unfinished), parameters, kernel_name="python3",
                                           cwd=str(PROJECT), progress_bar=False, stdout_file=last)
            except BaseException as error:
                failure.append(error)
            # two kernels that start at once can be given the same port
            if not (failure and STILLBORN in str(failure[0])):
                break

    logging.getLogger("papermill").setLevel(logging.CRITICAL + 1)       # what it logs of a failure is told below
    thread = threading.Thread(target=work, daemon=True)     # Ctrl-C comes to this loop, not to papermill
    thread.start()
    while thread.is_alive():
        line = f"{label} {time.monotonic() - start:6.0f} s  {last.text}"[:shutil.get_terminal_size().columns - 1]
        print("\r\033[K" + line if live else line.rstrip() + "\n", end="", flush=True)
        thread.join(1 if live else 60)
    if failure:
        text = "\n".join(getattr(failure[0], "traceback", [f"{type(failure[0]).__name__}: {failure[0]}"]))
        text = re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip().splitlines()[-12:]
        name, sentence = (getattr(failure[0], part, "") for part in ("ename", "evalue"))
        if STILLBORN in str(failure[0]):
            text.append(f"three times; {sys.executable} -m ipykernel_launcher may say why, or memory is short")
        if name == "KaggleError" or "cannot be written (" in sentence:      # the sentence says all, and what helps
            text = [f"{name}: {sentence}"]
        raise RunError("\n    ".join([f"{notebook.stem} failed after {time.monotonic() - start:.0f} s:", *text])
                       + f"\nthe partly executed notebook: {show(unfinished)}", status=1)
    put_in_place(unfinished, target)
    print("\r\033[K" * live + f"{label} {time.monotonic() - start:6.0f} s  done: {last.text}", flush=True)


def noted(marker):
    """What is noted of a finished step, or None; a note that is damaged is none, and is said to be that."""
    try:
        step = json.loads(marker.read_bytes())
        if [str(step["key"]), list(map(str, step["files"])), [[str(part) for part in pair] for pair in step["problems"]]
                ] == [step["key"], step["files"], step["problems"]]:
            return step
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    print(f"note  {show(marker)} was half-written or damaged; its step counts as not finished", flush=True)
    return None


def run_steps(notebooks, parameters, out, basis, fresh):
    """Run the notebooks in `parameters` that are not done yet; give back (path, reason) of bad files."""
    keys, problems, log = [], {}, out / "problems.jsonl"
    for notebook in notebooks:
        marker, target = out / ".run" / f"{notebook.stem}.json", out / "notebooks" / notebook.name
        step = noted(marker) or {"key": None, "problems": []}
        if notebook in parameters:
            label = f"[{list(parameters).index(notebook) + 1}/{len(parameters)}] {notebook.stem:<18}"
            cells = nbformat.read(notebook, 4).cells
            key = digest([[c.cell_type, c.source] for c in cells], parameters[notebook], basis, keys)
            if step["key"] == key and all((out / name).exists() for name in step["files"]) and not fresh:
                print(f"{label} finished before", flush=True)
            else:
                if not marker.is_file() and (target.is_file() or partly(target).is_file()):
                    print(f"note  {notebook.stem} was not finished last time; it runs again", flush=True)
                marker.unlink(missing_ok=True)
                log.unlink(missing_ok=True)     # what each step met is kept in its marker
                target.parent.mkdir(exist_ok=True)
                before = {p: state(p) for p in out.rglob("*")}      # not the time: clocks are set anew at times
                execute(notebook, target, parameters[notebook], label)
                met = map(json.loads, log.read_text().splitlines() if log.is_file() else [])
                written = {p for p in out.rglob("*") if p.is_file() and state(p) != before.get(p)}
                step = {"key": key, "problems": [[line["path"], line["reason"]] for line in met],
                        "files": sorted(str(p.relative_to(out)) for p in written - {log})}
                replace_file(marker, json.dumps(step, indent=1))
        keys.append(step["key"])
        problems.update(dict.fromkeys(map(tuple, step["problems"])))
    log.unlink(missing_ok=True)
    if problems:
        replace_file(log, "".join(json.dumps({"path": path, "reason": why}) + "\n" for path, why in problems))
    return list(problems)
