"""Execute notebooks: one run per folder, a kernel of this Python, progress; finished steps are not repeated."""
import hashlib
import io
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import nbformat
import papermill
from ipykernel.kernelspec import get_kernel_dict
from traitlets.config import Config

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = str(PROJECT), str(PROJECT / "notebooks")         # a clone runs without installing
from kit.data import DataError  # noqa: E402
from kit.files import file_sha256, locked, remove_leftovers, replace_file, unwritable_named  # noqa: E402
from lab.run import UNFINISHED as RECORDS  # noqa: E402
from lab.run import Folder  # noqa: E402
from lab.run.code import OURS, all_sources, text_digest  # noqa: E402
from lab.season.ledger import read_entry  # noqa: E402

LOCK = Path(".run", "lock")
LIMITS = ("hours", "minutes")              # parameters that end a step early, and change no result
UNFINISHED = "unfinished"                       # in place of the key of a step, while it runs
IMPORT = re.compile(r"^[ \t]*(?:import[ \t]+([\w.,\t ]+)|from[ \t]+([\w.]+)[ \t]+import\b)", re.MULTILINE)
# what a notebook needs from other notebooks of the same run; one that is not named here needs all before it
NEEDS = {"00": (), "01": (), "02": (), "03": (), "04": (), "05": ("03", "04"), "06": ("05",), "07": ("03", "04"),
         "08": (), "09": (), "10": (), "11": (), "13": ()}
MEASURES = "08"                                 # measures kernels, which its time may end
# what a step measures, or uses if installed
PACKAGES = {MEASURES: ("apache-tvm", "torch"), "09": ("jax", "jaxlib", "flatbuffers")}
FIRST = ("03", "04", "05", "06", "07")          # start first: the way to the submission, and the longest notebook
SUBMITS = "06"                                  # the others start once this one is done
# ipykernel's launcher, silent about what its event loops log: a kernel that ends may log its own closed sockets
KERNEL = """import logging, os, sys
for name in ("tornado", "asyncio"):
    logging.getLogger(name).setLevel(logging.CRITICAL + 1)
if sys.path[0] == "":
    del sys.path[0]
os.chdir({project!r})
from ipykernel import kernelapp
kernelapp.launch_new_instance()"""


@contextmanager
def connection():
    """How to talk to a kernel: on Linux by files, because two kernels that start at once can be given the same port."""
    with tempfile.TemporaryDirectory(prefix="kit-", ignore_cleanup_errors=True) as folder:
        place = os.path.join(folder, "kernel")
        by_files = sys.platform == "linux" and len(os.fsencode(place)) < 100          # a socket's path has at most 107
        yield Config({"KernelManager": {"transport": "ipc", "ip": place}} if by_files else {})


class RunError(Exception):
    """The run cannot start or continue: the reason, the cure, and the exit status."""

    def __init__(self, message, status=2):
        super().__init__(message)
        self.status = status


def show(path):
    """A path as a user would type it: relative if it lies below the working directory."""
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else str(path)


def digest(*parts):
    """Hex digest of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


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
    """Let Jupyter find the kernels below `folder`; they can import kit and lab, and read no personal settings.

    What a run shows must not depend on who runs it: a backend in the shell would take all pictures away, and Matplotlib
    and IPython read settings and start files in the home folder.
    """
    os.environ |= {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "MATPLOTLIBRC": os.devnull,
                   "IPYTHONDIR": str(Path(folder, "ipython").resolve())}
    os.environ.pop("PYTHONSTARTUP", None)        # IPython runs this file, too
    for name, first in (("JUPYTER_PATH", folder), ("PYTHONPATH", PROJECT / "notebooks"), ("PYTHONPATH", PROJECT)):
        os.environ[name] = os.pathsep.join([str(first), *filter(None, [os.environ.get(name)])])
    os.environ.setdefault("OMP_NUM_THREADS", "1")          # models are small, and several train side by side
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")        # a debugger's warning per notebook


class _Said(io.StringIO):
    """Takes what the cells print; `text` is the last line, `notes` are the lines that the user of the run must see."""
    text = _begun = ""

    def __init__(self):
        super().__init__()
        self.notes = []

    def write(self, text):
        """Keep the last line and the notes."""
        self.text = ([line.strip() for line in text.splitlines() if line.strip()] or [self.text])[-1]
        *lines, self._begun = (self._begun + text).split("\n")          # a line may come in parts
        self.notes += [line for line in lines if line.startswith("note  ")]


class Step:
    """One notebook of a run: its note on whether it is finished, and its execution in a thread."""

    def __init__(self, notebook, parameters, folder):
        self.notebook, self.parameters, self.folder, self.out = notebook, parameters, folder, folder.out
        self.stem, self.number = notebook.stem, notebook.stem[:2]
        self.marker, self.part = (self.out / ".run" / f"{self.stem}{end}" for end in (".json", ".ipynb"))
        self.log = self.out / "problems" / f"{self.stem}.jsonl"
        self.note = noted(self.marker) or {"key": None, "problems": []}
        self.kernel = f"kit-{digest(self.stem)[:8]}"
        self.label, self.failure, self.last, self.thread, self.started = "", None, _Said(), None, 0.0

    def published(self):
        """A digest of what this step published."""
        return digest(self.folder.record(self.stem)["sections"])

    def code(self):
        """A digest of the notebook's code, of the modules it imports, and of the tables beside it that it names."""
        cells = [cell.source for cell in nbformat.read(self.notebook, 4).cells if cell.cell_type == "code"]
        tables = [file_sha256(path) for path in sorted(self.notebook.parent.glob("*.csv"))
                  if any(path.name in cell for cell in cells)]
        tables += _own_modules([*cells, *all_sources().values()], self.notebook.parent)
        return digest(text_digest(*cells), *tables)

    def packages(self):
        """The versions of the packages that this step measures or uses; those that are not installed are left out."""
        found = {}
        for name in PACKAGES.get(self.number, ()):
            with suppress(PackageNotFoundError):
                found[name] = version(name)
        return found

    def files_named(self):
        """The files that parameters name, also those in folders: pairs of name and digest."""
        values = [value for name, value in (self.parameters or {}).items()
                  if isinstance(value, str) and name not in ("data_root", "out_dir")]
        places = [Path(PROJECT, os.path.expanduser(value)) for value in values]          # where notebooks are executed
        paths = [path for place in places for path in ([place] if place.is_file() else sorted(place.glob("*/*.npz")))]
        return [[str(path), file_sha256(path)] for path in paths]

    def fault(self, collections):
        """What is wrong with the results of this step, or None: they are there, whole, and of what is there now."""
        if self.note["key"] == UNFINISHED:
            return "it was not finished last time"
        if self.note.get("published") != self.published():
            return f"{show(self.out / 'steps' / self.stem)}.json has changed"
        return self.folder.fault(self.stem, collections) or self._unrecorded()

    def _unrecorded(self):
        """Why the ledger has no entry of the submission that this step wrote, or None."""
        csv = self.folder.record(self.stem)["views"].get("submission.csv")
        if self.number != SUBMITS or self.parameters is None or csv is None:
            return None
        if "ledger" not in papermill.inspect_notebook(str(self.notebook)):            # a notebook that keeps none
            return None
        ledger = os.path.join(PROJECT, os.path.expanduser(self.parameters.get("ledger") or self.out.parent))
        entry = Path(ledger, f"{self.out.name}.json")
        try:
            return None if read_entry(entry)["sha256"] == csv[-1] else f"{show(entry)} is of another submission"
        except DataError:
            return f"{show(entry)} is gone, or no entry of the ledger"

    def start(self, key):
        """Execute the notebook in a thread."""
        if self.note["key"] == UNFINISHED:
            print(f"note  {self.stem} was not finished last time; it runs again", flush=True)
        self.log.unlink(missing_ok=True)
        replace_file(self.marker, json.dumps({"key": UNFINISHED, "problems": []}))
        spec = get_kernel_dict(["--log-level=50"])      # silent: it calls Ctrl-C an error
        module = spec["argv"].index("-m")
        spec["argv"][module:module + 2] = "-c", KERNEL.format(project=str(PROJECT))
        replace_file(self.out / ".run" / "kernels" / self.kernel / "kernel.json", json.dumps(spec))
        self.note, self.started = {"key": key, "problems": []}, time.monotonic()
        self.thread = threading.Thread(target=self._execute, daemon=True)     # Ctrl-C comes to the main thread
        self.thread.start()

    def _execute(self):
        """Execute the notebook."""
        try:
            # papermill saves the notebook before and after each cell
            with unwritable_named(self.part), connection() as config:
                papermill.execute_notebook(str(self.notebook), str(self.part), self.parameters, kernel_name=self.kernel,
                                           progress_bar=False, stdout_file=self.last, config=config)
        except BaseException as error:
            self.failure = error

    def line(self, word=""):
        """The progress of this step."""
        return f"{self.label} {time.monotonic() - self.started:6.0f} s  {word}{self.last.text}".rstrip()

    def finish(self):
        """Put the executed notebook in place and note what the step met; RunError if it failed."""
        if self.failure:
            raise RunError(self._why(), status=1)
        self.folder.view(self.stem, f"notebooks/{self.notebook.name}", lambda path: shutil.copyfile(self.part, path))
        self.part.unlink()
        met = map(json.loads, self.log.read_text().splitlines() if self.log.is_file() else [])
        self.note |= {"problems": [[line["path"], line["reason"]] for line in met], "published": self.published()}
        if (self.out / RECORDS / f"{self.stem}.json").is_file():             # its time was over: it is to be continued
            self.note["key"] = UNFINISHED
        replace_file(self.marker, json.dumps(self.note, indent=1))

    def _why(self):
        """Why this step failed, and where the partly executed notebook is."""
        error = self.failure
        text = "\n".join(getattr(error, "traceback", [f"{type(error).__name__}: {error}"]))
        text = re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip().splitlines()[-12:]
        name, sentence = (getattr(error, part, "") for part in ("ename", "evalue"))
        # the sentence says the reason and the cure
        if name in ("KaggleError", "DataError", "CheckpointError") or "cannot be written (" in sentence:
            text = [f"{name}: {sentence}"]
        first = f"{self.stem} failed after {time.monotonic() - self.started:.0f} s:"
        return "\n    ".join([first, *text]) + f"\nthe partly executed notebook: {show(self.part)}"


def _own_modules(texts, folder):
    """Digests of the user's own modules, beside the kit or in `folder`, that some code imports, with what they import.

    Read by lines, because a cell may have commands of IPython. A package counts with all its modules.
    """
    found, todo = {}, [*texts]
    while todo:
        names = {re.split(r"\W", name.strip())[0] for match in IMPORT.finditer(todo.pop())
                 for name in (match[1] or match[2]).split(",")} - {"", *(package.__name__ for package in OURS)}
        for place in [place for name in names for place in (PROJECT / name, folder / name)]:
            for path in [place.with_suffix(".py"), *place.rglob("*.py")]:
                if path not in found and path.is_file():
                    text = path.read_text("utf-8", "replace")
                    todo.append(text)
                    found[path] = text_digest(text)
    return [found[path] for path in sorted(found)]


def noted(marker):
    """The note on a finished step, or None; a damaged note is reported and counts as None."""
    try:
        step = json.loads(marker.read_bytes())
        if all(isinstance(text, str) for text in [step["key"], *sum(step["problems"], [])]) and {
                len(pair) for pair in step["problems"]} <= {2}:
            return step
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    print(f"note  {show(marker)} was half-written or damaged; its step counts as not finished", flush=True)
    return None


def _needs(step, steps):
    """The steps whose results a step reads."""
    before = [other.number for other in steps if other.stem < step.stem]
    return [other for other in steps if other.number in NEEDS.get(step.number, before)]


def _ready(step, steps, left, running):
    """Whether a step can start: its needs are met, and it would not delay the submission."""
    unfinished = [*left, *running]
    delays = step.number not in FIRST and any(FIRST[0] <= other.number <= SUBMITS for other in unfinished)
    return not delays and not any(other in unfinished for other in _needs(step, steps))


def run_steps(notebooks, parameters, out, data_root, collections, basis, at_once=1, bad=()):
    """Run the notebooks in `parameters` that are not done yet -> (path, reason) of `bad` and other bad files."""
    logging.getLogger("papermill").setLevel(logging.CRITICAL + 1)       # a failure is reported by RunError
    folder = Folder(out, data_root)
    steps = [Step(notebook, parameters.get(notebook), folder) for notebook in notebooks]
    asked = [step for step in steps if step.notebook in parameters]
    for step in asked:
        for other in _needs(step, steps):
            if other not in asked and (why := folder.fault(other.stem, collections)):
                raise RunError(f"{step.stem} needs the results of {other.stem}, which do not fit: {why}; run "
                               f"{other.number}, too")

    def key(step):
        """A digest of all that a step depends on; what it needs is finished."""
        given = step.parameters and {name: one for name, one in step.parameters.items() if name not in LIMITS}
        return digest(step.code(), given, step.files_named(), basis,
                      [other.published() for other in _needs(step, steps)], step.packages())
    _work_off(sorted(asked, key=lambda step: (step.number not in FIRST, step.stem)), steps, key, collections, at_once)
    problems = dict.fromkeys([*bad, *(tuple(pair) for step in steps for pair in step.note["problems"])])
    log = out / "problems.jsonl"
    log.unlink(missing_ok=True)
    if problems:
        replace_file(log, "".join(json.dumps({"path": path, "reason": why}) + "\n" for path, why in problems))
    return list(problems)


def _work_off(left, steps, key, collections, at_once):
    """Execute the steps in `left` that were not finished with this `key`, `at_once` at the same time; show progress."""
    running, count, shown = [], len(left), {}
    live = sys.stdout.isatty()                  # one line, rewritten every second; else a line per minute and step
    while left or running:
        ready = [step for step in left if _ready(step, steps, left, running)]
        for step in ready[:at_once - len(running)]:
            left.remove(step)
            step.label = f"[{count - len(left)}/{count}] {step.stem:<18}"
            now = key(step)
            if step.note["key"] == now and not step.fault(collections):
                print(f"{step.label} finished before", flush=True)
            else:
                step.start(now)
                running.append(step)
        for step in [step for step in running if not step.thread.is_alive()]:
            for note in step.last.notes:
                print("\r\033[K" * live + note, flush=True)
            step.finish()
            running.remove(step)
            print("\r\033[K" * live + step.line("done: "), flush=True)
        if live and running:
            text = "  ".join(step.line() for step in running)
            print("\r\033[K" + text[:shutil.get_terminal_size().columns - 1], end="", flush=True)
        for step in running if not live else ():
            if time.monotonic() - shown.get(step, -60) >= 60:
                shown[step] = time.monotonic()
                print(step.line(), flush=True)
        if running:
            running[0].thread.join(1 if len(running) == 1 else 0.2)
