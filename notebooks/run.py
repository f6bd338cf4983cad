"""Run the notebooks in order through papermill: from data, or sample data, to submission.csv.

Without --data-root the data set is taken from the usual places (`kit.data.find_data_root`); where there is
none, sample data is written to data/sample-SIZE, once. --out is submissions/sample-SIZE by default, or
submissions/data-HASH of the data root, so that the same command finds its earlier work: a step is not run
again while its notebook, parameters, data, the kit and the steps before it are the same.

Exit status: 0 done, 1 a notebook failed, 2 wrong call or data root, 3 done, but a data file was unreadable,
a notebook on Kaggle failed or the submission has a problem, 130 interrupted.
"""
import argparse
import ast
import errno
import hashlib
import io
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote

INTERRUPTED = "\ninterrupted; run the same command again to continue"
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # the imports below take seconds, and Ctrl-C in them would show where
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, f"{INTERRUPTED}\n".encode()), os._exit(130)))

import nbformat  # noqa: E402
import pandas as pd  # noqa: E402
import papermill  # noqa: E402
from ipykernel.kernelspec import get_kernel_dict  # noqa: E402

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))                # a clone runs without installing kit
from kit.data import COLLECTIONS, SPLITS, DataError, find_data_root, npz_paths  # noqa: E402
from kit.files import put_in_place, remove_leftovers, replace_file, unwritable_named  # noqa: E402
from kit.kaggle_client import KaggleError  # noqa: E402
from kit.remote import plan_jobs  # noqa: E402
from kit.report import write_report  # noqa: E402
from kit.workflow import open_data, wanted  # noqa: E402

OPTIONS = {"data_root": "--data-root", "out_dir": "--out", "collections": "--collections", "size": "--size"}
LOCK = Path(".run", "lock")
AFTER = "07"                                    # notebooks from here on use the models; the submission is written
THERE, HERE = ("03", "04"), ("05", "06")        # notebooks that --on kaggle runs there, and after them here
COMBINES = "05"
STUDIES = "10"                                  # notebooks from here on compare models, for hours: only by --only
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


def assignment(text):
    """NAME=VALUE -> (name, Python value)."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):           # a word
        return name, value


def parse(argv):
    """Command line -> namespace; `p` holds (name, Python value)."""
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds tile/ and layout/")
    parser.add_argument("--out", metavar="DIR", help="folder of this run; default: named after the data")
    parser.add_argument("--only", metavar="03,04", help=f"only notebooks whose names start so; those from {STUDIES} "
                        "on compare models and run only when asked for")
    parser.add_argument("--collections", metavar="A,B", help=f"default: {','.join(COLLECTIONS)}")
    parser.add_argument("--size", choices=("tiny", "small"), help="of the sample data and of the work on it")
    parser.add_argument("-p", type=assignment, action="append", default=[], metavar="NAME=VALUE",
                        help="a parameter, for every notebook that declares it")
    parser.add_argument("--on", choices=("kaggle",), help="train there: one private notebook with a GPU for each "
                        "collection and group of seeds; then combine and check here")
    parser.add_argument("--owner", metavar="NAME", help="with --on kaggle: your name there")
    parser.add_argument("--seed-groups", metavar="N", type=int, help="with --on kaggle: share -p seeds=... out over N "
                        "notebooks a collection; default: 1")
    parser.add_argument("--fresh", action="store_true", help="run finished steps again, without checkpoints")
    return parser.parse_args(argv)


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


def taken(file):
    """Whether another process has locked an open file; if not, this one has it now, until it ends."""
    try:
        import fcntl
    except ImportError:                         # Windows
        import msvcrt
        file.seek(1 << 30)                      # what is locked cannot be read, so not where the text is
        lock_it = partial(msvcrt.locking, file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        lock_it = partial(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        lock_it()
    except OSError as fault:                    # ENOTSUP and the like: this file system has no locks
        return fault.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
    return False


@contextmanager
def lock(folder):
    """Keep other runs out of `folder`. The system holds the lock: however this process ends, it is free again."""
    path = folder / LOCK
    with unwritable_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+", errors="replace")
    with file:
        if taken(file):
            file.seek(0)
            holder = file.read()                # half-written, if that process is just starting
            raise RunError(f"{show(folder)}: another run{f' (process {holder})' * holder.isdigit()} is writing here; "
                           "wait for it or choose another --out")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        for path in remove_leftovers(folder):
            print(f"note  {show(path)} was half-written when a run was killed; it is made again", flush=True)
        yield


def select(only):
    """All notebooks in order, and those among them that were asked for."""
    notebooks = sorted((PROJECT / "notebooks").glob("[0-9]*.ipynb"))
    starts = [start.strip() for start in (only or "").split(",") if start.strip()] or [""]
    unknown = [start for start in starts if not any(n.stem.startswith(start) for n in notebooks)]
    if unknown:
        raise RunError(f"no notebook {', '.join(unknown)}; there are {', '.join(n.stem for n in notebooks)}")
    return notebooks, [n for n in notebooks if n.stem.startswith(tuple(starts)) and (only or n.stem < STUDIES)]


def share_out(notebooks, options, asked):
    """{notebook: those of the run's `options` and of the parameters `asked` for (-p) that it declares}."""
    known = {n: list(papermill.inspect_notebook(str(n))) for n in notebooks}
    for name in set(asked) & set(OPTIONS):
        raise RunError(f"-p {name}: use {OPTIONS[name]}")
    declared = list(dict.fromkeys(name for names in known.values() for name in names if name not in OPTIONS))
    unknown = [name for name in asked if name not in declared]
    if unknown:                                 # papermill would only warn
        raise RunError(f"{', '.join(n.stem for n in notebooks)}: no parameter {', '.join(unknown)}; "
                       f"{'it declares' if len(notebooks) == 1 else 'they declare'} {', '.join(declared)}")
    return {n: {k: v for k, v in {**options, **asked}.items() if k in known[n]} for n in notebooks}


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
        for _ in range(3):
            failure.clear()
            try:
                papermill.execute_notebook(str(notebook), str(unfinished), parameters, kernel_name="python3",
                                           cwd=str(PROJECT), progress_bar=False, stdout_file=last)
            except BaseException as error:
                failure.append(error)
            # before its first cell: two kernels that start at once can be given the same port
            if not (failure and "Kernel died before replying" in str(failure[0])):
                break

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


def check(asked, there):
    """Stop at values that would be missed only after hours of reading, or on Kaggle's machine (`there`)."""
    for name, least in (("seeds", 1), ("first_seed", 0)):
        if type(asked.get(name, least)) is not int or asked.get(name, least) < least:
            raise RunError(f"-p {name}={asked[name]}: expected a whole number of at least {least}")
    if "device" in asked and there:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", str(asked["device"])):
            raise RunError(f"-p device={asked['device']}: expected cpu or cuda, which is what machines there have")
    elif "device" in asked:
        from kit.processes import join_team
        try:
            join_team(asked["device"])
        except ValueError as fault:
            raise RunError(f"-p device={asked['device']}: {fault}") from None


def plan(args, collections, asked):
    """What --on kaggle trains, one job a notebook there; nothing without it."""
    if not args.on:
        if args.owner or args.seed_groups:
            raise RunError("--owner and --seed-groups go with --on kaggle")
        return []
    if not re.fullmatch(r"[A-Za-z0-9-]+", args.owner or ""):
        raise RunError("--on kaggle needs --owner NAME: your name there, as in kaggle.com/NAME")
    if args.only:
        raise RunError(f"--on kaggle runs {', '.join(THERE)} there and {', '.join(HERE)} here: leave --only out")
    try:
        groups = 1 if args.seed_groups is None else args.seed_groups
        return plan_jobs(collections, asked.get("seeds"), groups, asked.get("first_seed", 0))
    except ValueError as error:
        raise RunError(str(error)) from None


def fetch(planned, there, args, out, root, is_sample):
    """Have 03 and 04 run on Kaggle -> ([(notebook, why it failed)], {predictions fetched: sha256})."""
    from on_kaggle import train_on_kaggle
    try:
        jobs, failed = train_on_kaggle(planned, there, args.owner, out, root, is_sample, args.fresh)
    except KaggleError as error:
        raise RunError(f"{error}\nwhat was pushed runs on; the same command goes on from here", status=1) from None
    fetched = {name: sha for job in jobs.values() for name, sha in job["files"].items()}
    if not fetched:
        raise RunError("\n".join(f"{ref} {why}" for ref, why in failed), status=1)
    return failed, fetched


def run(args):
    """The whole run; gives back the exit status."""
    start, size, asked, collections = time.monotonic(), args.size or "small", dict(args.p), wanted(args.collections)
    notebooks, selected = select(",".join(THERE + HERE) if args.on else args.only)
    share_out(selected, {}, asked)              # wrong names stop here, before anything is written
    check(asked, args.on)
    planned = plan(args, collections, asked)
    if args.on and not args.data_root:
        try:
            find_data_root()
        except DataError as fault:
            raise RunError(f"{fault}; 05 and 06 need the data here too: give --data-root, or --data-root sample to "
                           "train on sample data there") from None
    root, is_sample = open_data(args.data_root, size, PROJECT / "data")
    root = root.resolve()
    name = f"data-{digest(str(root))[:8]}" if root.parent.parent != PROJECT / "data" else root.parent.name
    name += f"-{args.on}" if args.on else ""
    out = Path(args.out or PROJECT / "submissions" / name).expanduser().resolve()
    files = {c: [p for split in SPLITS for p in npz_paths(root, c, split)] for c in collections}
    missing = [c for c in collections if not files[c]]
    if missing == collections:
        raise RunError(f"{root}: no npz file of {', '.join(collections)}")
    options = {"data_root": str(root), "out_dir": str(out)}
    options |= {"collections": collections} if args.collections else {}
    options |= {"size": size} if args.size or is_sample else {}
    parameters = share_out(selected, options, asked)
    with lock(out):
        print(f"results: {show(out)}", *[f"no files, left out: {c}" for c in missing], sep="\n", flush=True)
        use_this_python(out / ".run")
        kit = [path.read_text() for path in sorted((PROJECT / "kit").glob("*.py"))]
        stats = [[str(p), *state(p)] for c in files for p in files[c]]
        if args.fresh:
            shutil.rmtree(out / "checkpoints", ignore_errors=True)
        stamp = out / "checkpoints" / "kit.txt"
        if stamp.is_file() and stamp.read_bytes() != digest(kit).encode():
            print("note  checkpoints here are of another version of the kit; --fresh trains anew", flush=True)
        elif not stamp.is_file():
            replace_file(stamp, digest(kit))
        failed, fetched = [], {}
        if args.on:
            there = {n: parameters.pop(n) for n in selected if n.stem.startswith(THERE)}
            planned = [job for job in planned if job["collection"] not in missing]
            failed, fetched = fetch(planned, there, args, out, root, is_sample)
        problems = run_steps(notebooks, parameters, out, digest(kit, stats, *[fetched] * bool(args.on)), args.fresh)
    print(f"finished in {time.monotonic() - start:.0f} s")
    scores, submission = out / "scores.csv", out / "submission.csv"
    if scores.is_file() and any(n.stem < STUDIES for n in selected):
        table = pd.read_csv(scores, dtype=str, keep_default_na=False)
        text = table.to_string(index=False) if len(table) else "none: no predictions, or no runtimes to judge them by"
        print(f"\nscores{' on sample data' if is_sample else ''}\n{text}\n")
    for path, reason in problems:
        kind = "submission" if path == str(submission) else "unreadable, left out"
        print(f"{kind}: {reason if path in reason else f'{path}: {reason}'}")
    for ref, reason in failed:
        print(f"left out: {ref} {reason}")
    last = [n for n in notebooks if n.stem < AFTER][-1:]       # writes the submission
    if any(n.stem.startswith(COMBINES) for n in selected) and not any(out.glob("ensemble/*.npz")):
        raise RunError(f"{show(out)}: no predictions to combine; {' and '.join(THERE)} make them", status=1)
    if not submission.is_file() and {*last} & {*selected}:
        raise RunError(f"{show(out)}: no notebook wrote submission.csv", status=1)
    if any(n.stem < STUDIES for n in selected):
        more = "path/to/npz_all" if is_sample else (f"{quote(str(root))} --out {quote(str(out))} --only 06 "
                                                    "-p submit_to_kaggle=True")
        print(f"report: {show(write_report(out, f'python notebooks/run.py --data-root {more}', problems + failed))}",
              flush=True)
    # without the notebook that writes it what lies there is of an earlier run
    print(show(submission if submission.is_file() and last and last[0] in selected else out), flush=True)
    return 3 if problems or failed else 0


def main(argv=None):
    """Run, and turn every way to end into an exit status."""
    try:
        return run(parse(argv))
    except (RunError, DataError, OSError) as error:     # OSError: nothing can be written there
        print(f"run.py: {error}", file=sys.stderr)
        return getattr(error, "status", 2)
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:       # deaf as shells make what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
