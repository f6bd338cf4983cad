"""Run the notebooks through papermill: from data to submission.csv.

Without --data-root, the data set is searched for in the usual places (`kit.data.find_data_root`). If it is not found,
the measured programs that come with the kit are read. The default of --out is submissions/measured for these, else
submissions/data-HASH with a hash of the data root. So the same command finds its earlier work. Prepared files lie in
data/ of the clone; if that cannot be written to, they go to data/ of --out. A finished step is not run again while its
notebook, its parameters, the data, the kit and the steps that it needs stay the same.

The notebooks that lead to the submission run first. Two notebooks run at the same time, on the data set one.

Exit status: 0 done; 1 a notebook failed; 2 wrong call or data root; 3 done, but a data file was unreadable, a notebook
on Kaggle failed, hours ended a training, minutes ended the measuring of kernels, or the submission has a problem;
130 interrupted (Ctrl-C); 143 terminated (SIGTERM). After 130 and 143, and if a step is to be continued, the same
command continues.
"""
import argparse
import errno
import os
import re
import signal
import sys
import time
from pathlib import Path
from shlex import quote
from typing import NamedTuple

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)                 # Ctrl-C while it imports ends it without a traceback
sys.path.insert(0, str(Path(__file__).resolve().parent))         # not Python's own doing with PYTHONSAFEPATH
from arguments import STUDIES, assignment, check, collected, dataset, folder, machine, select, share_out
from steps import MEASURES, PROJECT, RunError, digest, lock, run_steps, show, use_this_python

from kit.data import COLLECTIONS, SPLITS, DataError, own_files
from kit.files import as_text
from kit.kaggle import MACHINE, KaggleError, gpu_quota
from kit.prepare import is_prepared
from lab.data import MEASURED, Data, is_measured, locate_data, open_data, source_of, wanted
from lab.jobs import plan_jobs
from lab.run import Folder, unfinished
from lab.season import read_scores, write_report

AFTER = "07"                                    # notebooks from here on use the models; the submission is written
THERE, HERE = ("03", "04"), ("05", "06")        # notebooks that --on kaggle runs there, and after them here
COMBINES = "05"
SHOWN = ("collection", "model", "score", "low", "high", "lead", "lead low", "lead high", "ceiling",
         "graphs")                               # columns of the table of scores
UNWRITABLE = errno.EACCES, errno.EPERM, errno.EROFS
ENDED = {130: "\ninterrupted; run the same command again to continue",
         143: "\nterminated; run the same command again to continue"}         # exit status: sentence


class Terminated(KeyboardInterrupt):
    """SIGTERM: the run ends as after Ctrl-C, with an exit status of its own."""


def terminate(number, _):
    """End the run at the first SIGTERM; `timeout` sends two."""
    signal.signal(number, signal.SIG_IGN)
    raise Terminated


def parse(argv):
    """Command line -> namespace; `asked` is {parameter: Python value} of all -p."""
    parser = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds tile/ and layout/; or "
                        "measured: the measured programs that come with the kit")
    parser.add_argument("--out", metavar="DIR", help="folder of this run; default: named after the data")
    parser.add_argument("--only", metavar="03,04", help="only notebooks whose names start with these; notebooks from "
                        f"{STUDIES} on compare models and run only if named here")
    parser.add_argument("--collections", metavar="A,B", help=f"default: {','.join(COLLECTIONS)}")
    parser.add_argument("--size", choices=("tiny", "small"), help="of the work; tiny only tries the cells")
    parser.add_argument("-p", type=assignment, action="append", default=[], metavar="NAME=VALUE",
                        help="a parameter, for every notebook that declares it")
    parser.add_argument("--on", choices=("kaggle",), help="train on Kaggle: one private notebook with a GPU per "
                        "collection and group of seeds; then combine and check here")
    parser.add_argument("--owner", metavar="NAME", help="with --on kaggle: your Kaggle user name")
    parser.add_argument("--dataset", type=dataset, action="append", default=[], metavar="OWNER/SLUG",
                        help="with --on kaggle: a Kaggle Dataset that the notebooks get, such as prepared data; may "
                        "be repeated")
    parser.add_argument("--machine", metavar="NAME", help=f"with --on kaggle: the machine; default: {MACHINE}, which "
                        "has two T4; cpu: one without a GPU")
    parser.add_argument("--dry-run", action="store_true", help="with --on kaggle: only print each notebook, its "
                        "machine, its data and its hours; push and write nothing")
    parser.add_argument("--seed-groups", metavar="N", type=int, help="with --on kaggle: split the seeds of -p "
                        "seeds=... over N notebooks per collection; default: 1")
    parser.add_argument("--jobs", metavar="N", type=int, help="notebooks that run at the same time; default: 2 on "
                        "measured programs if there are two cores, else 1, because the data set takes memory")
    parser.add_argument("--clean", choices=("list", "delete"), help="list, or delete, the results in the store of "
                        "--out that its last runs do not need, such as models of earlier settings; nothing is run")
    args = parser.parse_args(argv)
    args.asked = collected(args.p)
    return args


def clean(args):
    """Show or delete what the folder of a run does not need; gives back the exit status."""
    if not args.out or not Path(args.out, "steps").is_dir():
        raise RunError(f"--clean {args.clean} needs --out: the folder of a run")
    out = folder("--out", args.out)
    with lock(out):
        paths = Folder(out, out).unused()
        for path in paths:
            print(f"{path.stat().st_size / 1e6:9.2f} MB  {show(path)}")
            if args.clean == "delete":
                path.unlink()
    print(f"{len(paths)} results {'are deleted' if args.clean == 'delete' else 'can be deleted: --clean delete'}")
    return 0


def plan(args, collections, asked):
    """What --on kaggle trains, one job a notebook there; nothing without it."""
    if args.seed_groups is not None and args.seed_groups < 1:
        raise RunError(f"--seed-groups {args.seed_groups}: expected a whole number of at least 1")
    if not args.on:
        if args.owner or args.seed_groups or args.dataset or args.machine or args.dry_run:
            raise RunError("--owner, --dataset, --machine, --seed-groups and --dry-run need --on kaggle")
        return []
    if not re.fullmatch(r"[A-Za-z0-9-]+", args.owner or ""):
        raise RunError("--on kaggle needs --owner NAME: your Kaggle user name, as in kaggle.com/NAME")
    if args.only:
        raise RunError(f"--on kaggle runs {', '.join(THERE)} on Kaggle and {', '.join(HERE)} here: remove --only")
    machine(args.machine, asked.get("device"))
    try:
        groups = 1 if args.seed_groups is None else args.seed_groups
        return plan_jobs(collections, asked.get("seeds"), groups, asked.get("first_seed", 0))
    except ValueError as error:
        raise RunError(str(error)) from None


def fetch(planned, parameters, args, out, data):
    """Have 03 and 04 run on Kaggle, and publish their results in the folder of the run -> [(notebook, why it failed)].

    `parameters` loses these notebooks, because they do not run here.
    """
    from on_kaggle import train_on_kaggle
    there = {n: parameters.pop(n) for n in [*parameters] if n.stem.startswith(THERE)}
    planned = [job for job in planned if job["collection"] not in data.missing()]
    try:
        jobs, failed = train_on_kaggle(planned, there, args.owner, out, data.root, args.dataset,
                                       machine(args.machine, args.asked.get("device")))
    except KaggleError as error:
        raise RunError(f"{error}\npushed notebooks keep running; the same command resumes here", status=1) from None
    if not any(job["section"] for job in jobs.values()):
        raise RunError("\n".join(f"{ref} {why}" for ref, why in failed), status=1)
    return failed


def open_root(args, collections, out):
    """Find the data and prepare it -> (Data, a name for runs).

    Prepared files lie in data/ of the clone; where that cannot be written to, in data/ of --out.
    """
    if args.on:
        refuse_measured(args)
        expect_token(args)
    try:
        try:
            root = open_data(args.data_root, collections, PROJECT / "data")
        except OSError as fault:
            if fault.errno not in UNWRITABLE or not out:
                raise
            print(f"{show(PROJECT / 'data')}: cannot be written to; prepared files go to "
                  f"{show(out / 'data')}", flush=True)
            root = open_data(args.data_root, collections, out / "data")
    except RuntimeError as fault:                # a process that prepared files died
        raise RunError(str(fault), status=1) from fault
    return Data(root.resolve(), collections), run_name(root.resolve(), args)


def refuse_measured(args):
    """RunError if Kaggle would train on the data set, and 05 and 06 combine measured programs here."""
    if is_measured(locate_data(args.data_root, PROJECT / "data")[0]):
        raise RunError("--on kaggle trains on the data set, and 05 and 06 need it here, too: --data-root names its "
                       "folder. Measured programs train here, in minutes, without --on kaggle")


def expect_token(args):
    """RunError if Kaggle refuses the token or there is none; asked before a data set is prepared, which takes hours."""
    if not is_prepared(locate_data(args.data_root, PROJECT / "data")[1]):
        try:
            gpu_quota(client={"retries": 1})
        except KaggleError as fault:
            if fault.kind in ("credentials", "unreadable", "token"):
                raise RunError(str(fault), status=1) from None


def run_name(root, args):
    """The name of the folder of a run, after the folder where its data are prepared."""
    name = root.name.replace("prepared-", "data-") if root.parent == PROJECT / "data" else (
        root.parent.name if root.parent.parent == PROJECT / "data" else f"data-{digest(str(root))[:8]}")
    return "-".join([name, *[args.on] * bool(args.on), *[args.size] * (args.size == "tiny")])


def run_options(args, root, out, collections):
    """Parameters that each notebook of a run gets, if it declares them."""
    options = {"data_root": str(root), "out_dir": str(out)}
    options |= {"collections": collections} if args.collections else {}
    return options | ({"size": args.size} if args.size else {})


def dry_run(args, planned, selected, collections):
    """Print what --on kaggle would push; gives back the exit status."""
    from on_kaggle import show_push
    if args.data_root:
        refuse_measured(args)
    source, prepared = locate_data(args.data_root, PROJECT / "data")
    here = not is_measured(source)
    if not here:
        print("the data set is not here; without --dry-run this command needs it, for 05 and 06")
    missing = [c for c in collections if here and not any(own_files(source, c, split)[0] for split in SPLITS)]
    for name in missing:
        print(f"no files, left out: {name}")
    out = folder("--out", args.out or PROJECT / "submissions" / run_name(prepared.resolve(), args))
    given = share_out(selected, run_options(args, prepared, out, collections), args.asked)
    there = {n: own for n, own in given.items() if n.stem.startswith(THERE)}
    try:
        show_push([job for job in planned if job["collection"] not in missing], there, args.owner, out, prepared,
                  args.dataset, machine(args.machine, args.asked.get("device")))
    except KaggleError as error:
        raise RunError(str(error), status=1) from None
    return 0


def combined(folder):
    """Whether notebook 05 combined any predictions."""
    return any(section["costs"] for section in folder.sections("05_ensemble"))


def next_command(out, root, source):
    """What to type after a run: the rest of it, then submit it, or, after other data, run it on the data set."""
    command = f"{quote(show(sys.executable))} notebooks/run.py"
    if not (out / "submission.csv").is_file():
        return f"{command} --data-root {quote(source)} --out {quote(show(out))}"
    if is_measured(root):
        return f"{command} --data-root path/to/npz_all"
    return f"{command} --data-root {quote(source)} --out {quote(show(out))} --only 06 -p submit_to_kaggle=True"


def summarise(out, root, source, notebooks, selected, problems, failed, ledger=None):
    """Print scores and problems, write the report, and print the path of the submission last."""
    scores, submission = out / "scores.csv", out / "submission.csv"
    folder, judged = Folder(out, root), any(n.stem < STUDIES for n in selected)
    why = folder.results_fault(f"{COMBINES}_ensemble", COLLECTIONS)
    stale = [(str(scores), f"{scores}: {why}")] if scores.is_file() and why else []
    if stale:
        print(f"not of this run: {scores}: {why}")
    elif scores.is_file() and judged:
        try:
            table = read_scores(scores)
            shown = table[[name for name in table if name in SHOWN]].round(3)
            text = shown.to_string(index=False, na_rep="") if len(table) else (
                "none: no predictions, or no runtimes to score them by")
        except DataError as fault:
            text = f"none: {fault}"
        print(f"\nscores on {source_of(root)}\n{text}\n")
    for path, reason in problems:
        kind = "submission" if path == str(submission) else "not used"
        print(f"{kind}: {reason if path in reason else f'{path}: {reason}'}")
    for ref, reason in failed:
        print(f"left out: {ref} {reason}")
    last = [n for n in notebooks if n.stem < AFTER][-1:]       # writes the submission
    if any(n.stem.startswith(COMBINES) for n in selected) and not combined(folder):
        raise RunError(f"{show(out)}: no predictions to combine; {' and '.join(THERE)} make them", status=1)
    if not submission.is_file() and {*last} & {*selected}:
        raise RunError(f"{show(out)}: no notebook wrote submission.csv", status=1)
    if judged:
        page = folder.view("run", "report.html", lambda path: write_report(
            path, out, next_command(out, root, source), problems + failed + stale,
            f"Notebooks {', '.join(n.stem[:2] for n in selected)} on "
            f"{'measured programs' if source == 'measured' else source}", ledger, [n.stem for n in selected]))
        print(f"report: {show(page)}", flush=True)
    # without the notebook that writes it, the submission in this folder is of an earlier run
    print(show(submission if submission.is_file() and last and last[0] in selected else out), flush=True)


def run(args):
    """The whole run; gives back the exit status."""
    if args.clean:
        return clean(args)
    start, call = time.monotonic(), check_call(args)
    if args.dry_run:
        return dry_run(args, call.planned, call.selected, call.collections)
    data, name = open_root(args, call.collections, call.out)
    if data.missing() == call.collections:
        raise RunError(f"{data.root}: no npz file of {', '.join(call.collections)}")
    out = call.out or folder("--out", PROJECT / "submissions" / name)
    parameters = share_out(call.selected, run_options(args, data.root, out, call.collections), args.asked)
    with lock(out):
        print(f"results: {show(out)}", *[f"no files, left out: {c}" for c in data.missing()], sep="\n", flush=True)
        use_this_python(out / ".run")
        failed = fetch(call.planned, parameters, args, out, data) if args.on else []
        basis = digest([data.digest(c, split) for c in call.collections for split in SPLITS])
        problems = run_steps(call.notebooks, parameters, out, data.root, call.collections, basis,
                             notebooks_at_once(args, data), data.left_out())
    print(f"finished in {time.monotonic() - start:.0f} s")
    return report(args, call, parameters, Folder(out, data.root), problems, failed)


class Call(NamedTuple):
    """A checked command line."""
    notebooks: list          # all notebooks, in order
    selected: list           # those to run
    collections: list
    out: Path                # the folder of the run, or None
    planned: list            # what --on kaggle trains


def check_call(args):
    """Refuse what cannot run, before anything is read or written -> Call."""
    collections = wanted(args.collections)
    notebooks, selected = select(",".join(THERE + HERE) if args.on else args.only)
    share_out(selected, {}, args.asked)
    check(selected, args.asked, args.on)
    if args.jobs is not None and args.jobs < 1:
        raise RunError(f"--jobs {args.jobs}: expected a whole number of at least 1")
    if args.data_root and args.data_root != "measured":
        if not folder("--data-root", args.data_root, "the folder that holds tile/ and layout/").exists():
            raise RunError(f"--data-root {args.data_root} does not exist; expected a folder with tile/ or layout/ in "
                           "it, or measured; README.md has the command that downloads the data set")
    return Call(notebooks, selected, collections, folder_of_run(args.out), plan(args, collections, args.asked))


def folder_of_run(out):
    """The folder that --out names; None without --out."""
    if not out:
        return None
    out = folder("--out", out)
    shown = as_text(out.name)
    if len(shown) > 200 or shown != out.name or not shown.isprintable():
        raise RunError(f"--out {shown!a:.60}: the folder names the run; give a shorter name of letters in UTF-8")
    if out == PROJECT.resolve():
        raise RunError(f"--out {show(out)}: is the clone, whose notebooks would be replaced; name a folder in it, such "
                       "as submissions/my-run")
    return out


def notebooks_at_once(args, data):
    """How many notebooks run at the same time; two would share a GPU, or the memory that the data set takes."""
    alone = args.asked.get("device", "cpu") != "cpu" or not is_measured(data.root)
    return args.jobs or (1 if alone else min(2, os.cpu_count() or 1))


def report(args, call, parameters, done, problems, failed):
    """Print what came of a run, and write its page -> the exit status."""
    found = locate_data(args.data_root, PROJECT / "data")[0]                         # not where it is prepared
    source = "measured" if found == MEASURED else str(found)
    left = {step: names for step, names in unfinished(done.out).items() if step in {n.stem for n in parameters}}
    if all(step.startswith(MEASURES) for step in left) or combined(done):
        summarise(done.out, done.root, source, call.notebooks, call.selected, problems, failed,
                  args.asked.get("ledger") and PROJECT / Path(args.asked["ledger"]).expanduser())
    for step, names in left.items():
        named = f" ({'; '.join(names[:4])}{'; ...' * (len(names) > 4)})" if names else ""
        print(f"to be continued: {step}{named}; run the same command again", file=sys.stderr)
    return 3 if problems or failed or left else 0


def main(argv=None):
    """Run, and turn every way to end into an exit status."""
    try:
        args = parse(argv)
        return run(args)
    except (RunError, DataError, OSError) as error:     # OSError: nothing can be written there
        cure = "; --out DIR names a folder for the run and its data" if not args.out and (
            getattr(error, "errno", None) in UNWRITABLE) else ""
        print(f"run.py: {error}{cure}", file=sys.stderr)
        return getattr(error, "status", 2)
    except KeyboardInterrupt as end:
        status = 143 if isinstance(end, Terminated) else 130
        print(ENDED[status], file=sys.stderr)
        return status


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:       # a shell lets its background jobs ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, terminate)
    sys.exit(main())
