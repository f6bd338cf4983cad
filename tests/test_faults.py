"""Faults on the way, each of which kills or starves a real child process, and what the next run makes of it.

After every fault nothing finished is lost, nothing half-written is taken for whole, the next run says what it makes
again, and its result is, byte for byte, that of a run that met no fault.
"""
import contextlib
import ctypes
import errno
import functools
import itertools
import json
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
import traceback
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from disks import fill, mounted
from filelock import FileLock
from test_run import copy_programs, environment, write_notebook
from training import SHORT, TINY, in_child, trained

from kit.files import locked, remove_leftovers, replace_file, write_json
from kit.kaggle.downloads import unpack
from kit.models import LayoutGNN
from kit.submit import write_submission
from kit.train_parts.checkpoints import save_checkpoint
from lab.run import Store
from lab.season.ledger import record_run

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, limits and mounts of Linux")
DROP_BOUND, DAC_OVERRIDE = 24, 1         # prctl.h and capability.h: what lets root pass over permission bits
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir")            # audit events; and "open" for writing
STEMS = [f"{i:x}" for i in range(40)]


# --- what is done to files


def arrive(folder):
    """What there is before any fault: an archive, and results of an earlier run."""
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for i, split in enumerate(("train", "valid", "test")):
            archive.writestr(zipfile.ZipInfo(f"npz/tile/xla/{split}/{i}.npz"), np.random.default_rng(i).bytes(9000))
    for do in (submission, predictions, checkpoint, ledger, record):
        do(folder, seed=0)


def submission(folder, seed=1):
    rng = np.random.default_rng(seed)
    write_submission({f"layout:xla:random:{stem}": rng.normal(size=200) for stem in STEMS}, folder / "out" / "s.csv")


def predictions(folder, seed=1):
    rng = np.random.default_rng(seed)
    Store(folder / "out" / "store")._write("costs", {f"tile:xla:{stem}": rng.normal(size=200) for stem in STEMS})


def checkpoint(folder, seed=1):
    save_checkpoint(folder / "out" / "m.pt", LayoutGNN(replace(TINY, seed=seed)), step=seed)


def ledger(folder, seed=1):
    record_run(folder / "ledger", "run", folder / "all.zip", "sample data", {"seed": [seed] * 3000}, {})


def record(folder, seed=1):
    write_json(folder / "out" / "m.json", {"seed": [seed] * 3000})


def unpacking(folder):
    unpack(folder / "all.zip", folder / "data", [("tile:xla", split) for split in ("train", "valid", "test")])


def training(folder):
    weights, _ = trained(folder / "t.pt", settings=replace(SHORT, steps=40, validate_every=2))
    replace_file(folder / "weights", repr({name: value.tolist() for name, value in weights.items()}))


JOBS = (submission, predictions, checkpoint, ledger, record, unpacking)


# --- faults, for child processes


def forked(call, folder, before=lambda: None, kill_after=None):
    """Run call(folder) in a process of its own -> (exit status, negative for a signal; what it printed)."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.dup2(write, 1)
            os.dup2(write, 2)
            before()
            call(folder)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(write)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    with open(read, errors="replace") as file:
        said = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


def die_before(number):
    """From now on this process is killed before its file operation `number` that changes something."""
    left = itertools.count(number - 1, -1)

    def hook(event, args):
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if (event in CHANGES or writes) and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)


def no_file_beyond(size):
    """From now on writes past byte `size` of a file fail as on a full disk, but for the number of the error."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def obey_permission_bits():
    """Root without the right to pass over them, from the next program on."""
    ctypes.CDLL(None).prctl(DROP_BOUND, DAC_OVERRIDE, 0, 0, 0)


def tree(folder):
    """{relative path: bytes}, without the time of an entry of the ledger."""
    return {str(path.relative_to(folder)): re.sub(rb'"recorded": "[^"]*"', b"", path.read_bytes())
            for path in Path(folder).rglob("*") if path.is_file()}


def fresh(folder):
    """The folder as `arrive` leaves it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    arrive(folder)
    return tree(folder)


@functools.cache
def undisturbed(job, folder):
    """What the job leaves where nothing goes wrong."""
    fresh(folder)
    assert forked(job, folder)[0] == 0
    return tree(folder)


def survive(job, folder, before, faulted):
    """A fork meets a fault and the next one none: whole files all the way, and the result of an undisturbed run."""
    final, old = undisturbed(job, folder), fresh(folder)
    status, said = forked(job, folder, before)
    for name, data in tree(folder).items():
        if not any(part.startswith(".") for part in Path(name).parts):
            assert data in (old.get(name), final[name]), f"{name} is half-written"
    left = [name for name in tree(folder) if ".part" in name]
    again, words = forked(job, folder)
    assert again == 0, words
    if left and job is unpacking:                        # the others are cleared away by the whole run
        assert "was half-written; made again" in words, words
    remove_leftovers(folder)
    assert tree(folder) == final
    assert faulted(status), (status, said)
    return status


def killed_at_file_operations(job, folder):
    """Before each, or of many before the first, the second and some drawn ones."""
    def killed_before(number):
        return survive(job, folder, lambda: die_before(number), lambda status: status in (0, -signal.SIGKILL)) != 0
    assert next(number for number in itertools.count(1) if not killed_before(number)) > 3


def killed_training(folder, kills):
    """Killed at drawn moments, as often as it takes to see that many -> how often."""
    import scipy.stats  # noqa: F401  (of the score; here, that not every fork imports it)
    folder, rng = Path(folder), np.random.default_rng(0)
    (folder / "undisturbed").mkdir()
    start = time.monotonic()
    assert forked(training, folder / "undisturbed") == (0, "")
    seconds, final, killed = time.monotonic() - start, tree(folder / "undisturbed"), 0
    while killed < kills:
        shutil.rmtree(folder / "run", ignore_errors=True)
        (folder / "run").mkdir()
        for _ in range(4):
            status, said = forked(training, folder / "run", kill_after=rng.uniform(0, 0.7 * seconds))
            assert status in (0, -signal.SIGKILL), said
            killed += status != 0
        status, said = forked(training, folder / "run")
        assert status == 0, said
        assert tree(folder / "run")["weights"] == final["weights"]
    print(killed)


def in_a_child(call):
    """Run `call`, an expression of the names of this file, in a fresh process."""
    done = in_child(call, module="test_faults")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def every_job(check, folder):
    """All jobs in one process, as PyTorch takes seconds to import."""
    for job in JOBS:
        print(job.__name__, flush=True)
        check(job, Path(folder, job.__name__))


@pytest.mark.long
def test_a_process_killed_before_any_file_operation_leaves_whole_files(tmp_path):
    in_a_child(f"every_job(killed_at_file_operations, {str(tmp_path)!r})")


@pytest.mark.long
def test_a_training_killed_again_and_again_ends_with_the_same_weights(tmp_path):
    assert int(in_a_child(f"killed_training({str(tmp_path)!r}, 3)")) >= 3


def test_only_what_a_process_left_that_is_gone_is_removed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as alive:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        for name in (f".a.npz.{gone.pid}-1.part", f".mine.{gone.pid}.part", f"deep/er/.b.{gone.pid}-4711.part/c",
                     f".d.{alive.pid}-1.part", ".e.part", f"f.{gone.pid}.part", f".{gone.pid}.part",
                     f".a.npz.{gone.pid}x.part"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        before = tree(tmp_path)
        assert remove_leftovers(tmp_path, "b") == [] and remove_leftovers(tmp_path / "nowhere") == []
        assert remove_leftovers(tmp_path / "deep" / "er", "b") == [tmp_path / "deep" / "er" / "b"]
        assert remove_leftovers(tmp_path) == [tmp_path / "a.npz"] and remove_leftovers(tmp_path) == []
        alive.communicate(b"\n")
    assert before.keys() - tree(tmp_path).keys() == {f".a.npz.{gone.pid}-1.part", f"deep/er/.b.{gone.pid}-4711.part/c"}


def test_a_lock_is_one_thread_s_at_a_time_and_neither_a_full_disk_nor_one_without_locks_stops_its_holder(tmp_path,
                                                                                                        monkeypatch):
    path = tmp_path / "deeper" / "lock"

    def fault(number):
        def fail(*_):
            raise OSError(number, os.strerror(number))
        return fail

    def holder():
        with locked(path) as found:
            return found
    for number in range(2):
        with locked(path) as mine, ThreadPoolExecutor(1) as pool:
            assert mine is None and pool.submit(holder).result() == f" (process {os.getpid()})"
            assert path.with_name("lock.pid").read_text() == str(os.getpid())
            if number:
                path.unlink()
        assert holder() is None and not path.with_name("lock.pid").exists()
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", fault(errno.ENOSPC))
        assert holder() is None
    for number, words in ((errno.ENOTSUP, None), (errno.EROFS, "give a folder that can be written to")):
        monkeypatch.setattr(FileLock, "acquire", fault(number))
        with pytest.raises(OSError, match=words) if words else contextlib.nullcontext():
            assert holder() is None


# --- full disks


def on_a_full_disk(job, folder):
    """The job fails with one sentence on the file, what was there stays, and with room it ends as ever."""
    final, old = undisturbed(job, folder), fresh(folder)
    if os.path.ismount(folder.parent):
        filler = fill(folder.parent)
        status, said = forked(job, folder)
        filler.unlink()
        number = errno.ENOSPC
    else:
        status, said = forked(job, folder, lambda: no_file_beyond(300))
        number = errno.EFBIG
    last, = said.splitlines()[-1:]
    fits = os.strerror(number) in last or "would not fit" in last            # unpacking looks first
    assert status == 1 and fits and "make room" in last and str(folder) in last, said
    assert tree(folder) == old, "something half-written stays"
    status, said = forked(job, folder)
    assert status == 0 and tree(folder) == final, said


@pytest.mark.long
def test_on_a_full_disk_one_sentence_says_so_and_what_was_there_stays(tmp_path):
    with contextlib.ExitStack() as held:
        disk = tmp_path                      # where this process must not mount: a limit for the size of files
        with contextlib.suppress(pytest.skip.Exception):
            disk = held.enter_context(mounted("tmpfs", tmp_path / "disk", "-t", "tmpfs", "-o", "size=4m"))
        in_a_child(f"every_job(on_a_full_disk, {str(disk)!r})")


# --- whole runs


RUN = """
from pathlib import Path
from kit.data import npz_paths, read_tile
from kit.models import TileModel, TileModelSettings
from kit.train import TrainSettings, predict, train
from lab.predictions import Predictions
from lab.run import Run
import pandas as pd
run = Run("06_all", data_root, out_dir, collections="tile:xla")
graphs = {s: [read_tile(p) for p in npz_paths(data_root, "tile:xla", s)] for s in ("train", "test")}
model, settings = TileModel(TileModelSettings(width=8)), TrainSettings(steps, 8, validate_every=2, device=device)
checkpoint = run.store.path(run.store.name("tile", [settings, steps]), ".pt")
train(model, graphs["train"], settings, checkpoint=checkpoint, report=print)
costs = {f"tile:xla:{g.graph_id}": predict(model, g) for g in graphs["test"]}
made = Predictions(run.data())
made.put("tile:xla", "tile", 0, {"test": costs})
run.publish(made)
row = {"collection": "tile:xla", "model": "tile", "score": 0.5, "low": 0, "high": 1, "graphs": 1, "seeds": 1}
run.save_table("scores.csv", pd.DataFrame([row | {"split": "test"}]))
run.save_submission(run.costs("06_all", ["tile:xla"]))
"""
PARAMETERS = "data_root = None\nout_dir = None\nsize = 'small'\nsteps = 30\ndevice = 'cpu'"
SURROUNDINGS = """
import os, signal, sys
target = os.environ.get("DIE_BEFORE")
if target:                           # whichever process puts this file in its place is killed before it does
    sys.addaudithook(lambda event, args: event == "os.rename" and str(args[1]).endswith(target)
                     and os.kill(os.getpid(), signal.SIGKILL))
"""


class Clone:
    """A project with the real kit and run.py and a notebook that trains, predicts and writes a submission."""

    def __init__(self, folder, project, data):
        self.folder, self.out, self.data = folder, folder / "out", data
        copy_programs(project, folder / "notebooks")
        shutil.copytree(project / "kit", folder / "kit", ignore=shutil.ignore_patterns("__pycache__"))
        write_notebook(folder / "notebooks" / "06_all.ipynb", PARAMETERS, RUN)
        (folder / "child").mkdir()
        (folder / "child" / "sitecustomize.py").write_text(SURROUNDINGS)

    def command(self, *args):
        return [sys.executable, "notebooks/run.py", "--data-root", str(self.data), "--out", str(self.out), *args]

    def start(self, *args, preexec=None, **more):
        """The run as a process."""
        return subprocess.Popen(self.command(*args), cwd=self.folder, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, preexec_fn=preexec,
                                env=environment(PYTHONPATH=str(self.folder / "child"), OMP_NUM_THREADS="1", **more))

    def run(self, *args, **more):
        """-> exit status, lines, errors."""
        with self.start(*args, **more) as process:
            said, errors = process.communicate(timeout=300)
        return process.returncode, said.splitlines(), errors

    def run_here(self, *args):
        """The same in this process, without Jupyter, which is most of the time of a run."""
        from run_folder import run_clone  # child processes import this file, and need nothing of it
        return run_clone(self.folder, *self.command(*args)[2:])

    def results(self):
        """What a run is for; checkpoints hold seconds and executed notebooks times."""
        return {name: data for name, data in tree(self.out).items()
                if name in ("submission.csv", "scores.csv")
                or name.startswith("store") and name.endswith("z") and ".kept-" not in name}

    def finish(self, expected, *words):
        """The next run ends as an undisturbed one and says these words on the way."""
        status, lines, errors = self.run_here()
        assert (status, errors) == (0, ""), errors
        assert self.results() == expected
        assert not [name for name in tree(self.out) if ".part" in name]
        text = "\n".join(lines)
        assert all(word in text for word in words), text


@pytest.fixture
def clone(tmp_path, project, tiny_sample):
    return Clone(tmp_path / "clone", project, tiny_sample / "npz")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, project, tiny_sample):
    """A project whose run nothing disturbed."""
    undisturbed = Clone(tmp_path_factory.mktemp("undisturbed") / "clone", project, tiny_sample / "npz")
    status, lines, errors = undisturbed.run_here()
    assert (status, errors) == (0, "") and not any("note" in line for line in lines)
    return undisturbed


@pytest.fixture(scope="module")
def expected(finished):
    """Its results."""
    assert len(finished.results()) == 3
    return finished.results()


@pytest.mark.long
def test_a_run_killed_at_its_worst_moments_goes_on(clone, expected):
    before, words = "nothing", []
    for moment in ("submission.csv", "notebooks/06_all.ipynb", ".run/06_all.json"):
        status, lines, errors = clone.run(DIE_BEFORE=moment)
        text = "\n".join(lines)
        assert all(word in text for word in words), f"after a kill before {before}:\n{text}"
        if moment == "submission.csv":                       # the kernel writes it; the run outlives it and says so
            assert status == 1 and "06_all failed after" in errors and "Kernel died" in errors, errors
            assert not (clone.out / "submission.csv").exists()
        else:
            assert status == -signal.SIGKILL, errors
        assert json.loads((clone.out / ".run" / "06_all.json").read_text())["key"] == "unfinished"
        before, words = moment, ["06_all was not finished last time; it runs again"]
        words += ["was half-written when a run was killed; it is made again"]
    clone.finish(expected, *words)


DAMAGES = (b"", b'{"key": "', b"\xff\xfe", b"[]", b'{"key": 1, "problems": {}, "files": [2]}', b"[" * 10 ** 5)


@pytest.mark.long
def test_damaged_notes_locks_and_checkpoints_are_named_and_made_again(clone, finished, expected):
    shutil.copytree(finished.out, clone.out)
    saved, = (clone.out / "store").glob("*.npz")
    saved.write_bytes(saved.read_bytes()[:-500])
    for name in ("06_all.json", "lock", "lock.pid"):
        (clone.out / ".run" / name).write_bytes(b"[" * 10 ** 5)
    clone.finish(expected, "06_all.json was half-written or damaged; its step counts as not finished", "[1/1] 06_all")
    assert saved.is_file() and list(clone.out.glob(f"store/{saved.stem}.kept-1.npz"))
    for number, damage in enumerate(DAMAGES):
        (clone.folder / f"note-{number}").write_bytes(damage)
    code = "import sys; sys.path[:0] = ['notebooks']; import steps; [steps.noted(steps.Path(n)) for n in sys.argv[1:]]"
    names = [str(clone.folder / f"note-{number}") for number in range(len(DAMAGES))]
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=clone.folder, text=True, capture_output=True)
    assert done.stdout.splitlines() == [f"note  note-{number} was half-written or damaged; its step counts as not "
                                        "finished" for number in range(len(DAMAGES))], done.stderr


@pytest.mark.long
def test_two_runs_at_once_in_one_folder_end_with_one_result_and_one_refusal(clone, expected):
    with clone.start() as first:
        lock = clone.out / ".run" / "lock.pid"
        while not (lock.is_file() and lock.read_text()):
            assert first.poll() is None, first.communicate()[1]
            time.sleep(0.02)
        status, lines, errors = clone.run_here()
        assert status == 2 and "finished" not in "".join(lines)
        assert errors == (f"run.py: out: another run (process {first.pid}) is writing here; "
                          "wait for it or choose another --out\n")
        said, errors = first.communicate(timeout=300)
    assert (first.returncode, errors) == (0, "") and clone.results() == expected


@pytest.mark.long
def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(clone, expected):
    with mounted("tmpfs", clone.out, "-t", "tmpfs", "-o", "size=1m"):
        # what does not fit any more: the notebook that papermill saves, or the checkpoint that its kernel writes
        for room, place in ((40_000, ".run/06_all.ipynb"), (64_000, "store/tile-")):
            filler = fill(clone.out, room)
            status, lines, errors = clone.run()
            assert status == 1 and not clone.results() and (
                f"\n    OSError: [Errno {errno.ENOSPC}] cannot be written ({os.strerror(errno.ENOSPC)}); make room, "
                f"then run it again: '{clone.out / place}") in errors, errors
            filler.unlink()
            (clone.out / ".run" / "06_all.ipynb").unlink(missing_ok=True)
        clone.finish(expected)


@contextlib.contextmanager
def unwritable(folder):
    """A folder whose files and folders must only be read."""
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        yield
    finally:
        for path in paths:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


@pytest.mark.long
@pytest.mark.parametrize("prepared", [False, True])
def test_a_clone_that_must_not_be_written_to_is_enough(clone, expected, tmp_path, prepared):
    shutil.copytree(clone.data, tmp_path / "competition" / "npz")
    clone.data, first = tmp_path / "competition", clone.out
    if prepared:                                             # by whoever owns the clone
        assert clone.run_here()[0] == 0
        shutil.rmtree(first)
    before, clone.out = tree(clone.folder), tmp_path / "mine" / "out"
    with contextlib.ExitStack() as held:
        for place in clone.folder.glob("data/prepared-*"):       # the owner prepares it again
            held.enter_context(FileLock(place / ".prepare.lock"))
        held.enter_context(unwritable(clone.folder))
        status, lines, errors = clone.run(preexec=obey_permission_bits)
    assert (status, errors) == (0, "") and clone.results() == expected
    after = tree(clone.folder)
    assert {name for name in after if after[name] != before.get(name)} <= {
        name for name in after if name.endswith(".prepare.lock")}
    said = f"data: cannot be written to; prepared files go to {clone.out / 'data'}"
    assert (said in lines) != prepared and any((clone.out / "data").glob("prepared-*")) != prepared


@pytest.mark.long
@pytest.mark.parametrize("data", ["measured", None])
def test_without_out_a_clone_that_must_not_be_written_to_is_one_sentence_with_the_option(clone, data):
    given = str(clone.data) if data is None else data
    clone.command = lambda *args: [sys.executable, "notebooks/run.py", "--data-root", given, "--size", "tiny", *args]
    with unwritable(clone.folder):
        status, lines, errors = clone.run(preexec=obey_permission_bits)
    assert status == 2 and errors.count("\n") == 1 and errors.startswith("run.py: ")
    assert "cannot be written" in errors and errors.endswith("; --out DIR names a folder for the run and its data\n")


NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.long
def test_a_gpu_that_is_not_there_is_one_sentence(clone, project):
    sentence = (f"device is 'cuda', and PyTorch {torch.__version__} cannot compute on it here: it sees no GPUs; "
                "pass 'cpu'")
    status, lines, errors = clone.run("-p", "device=cuda", **NO_GPU)
    assert (status, lines, errors) == (2, [], f"run.py: -p device=cuda: {sentence}\n")
    for name in ("03_train_tile", "04_train_layout"):                    # and by hand
        code = "".join(cell.source + "\n" for cell in nbformat.read(project / "notebooks" / f"{name}.ipynb", 4).cells
                       if cell.cell_type == "code")
        code = code.replace('device = "cpu"', 'device = "cuda"')
        code = code.replace("data_root = None", f"data_root = {str(clone.data)!r}").replace('"small"', '"tiny"')
        done = subprocess.run([sys.executable, "-c", code], cwd=clone.folder, text=True, capture_output=True,
                              env={**os.environ, **NO_GPU, "MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join(
                                  map(str, (project, project / "notebooks")))})
        assert done.stderr.splitlines()[-1] == f"ValueError: {sentence}", done.stderr


def from_a_gpu(folder):
    """Train for a while as on a GPU, as far as a file tells: every tensor is stored as one of cuda:0."""
    torch.serialization._package_registry.insert(0, (0, lambda storage: "cuda:0", lambda storage, where: None))
    training_until(folder, 20)


def training_until(folder, step):
    def stop(line):
        if int(line.split()[1]) == step:
            os.kill(os.getpid(), signal.SIGKILL)
    trained(folder / "t.pt", settings=replace(SHORT, steps=40, validate_every=2), report=stop)


def resumed_without_its_gpu(folder):
    folder = Path(folder)
    (folder / "undisturbed").mkdir()
    assert forked(training, folder / "undisturbed")[0] == 0
    assert forked(from_a_gpu, folder)[0] == -signal.SIGKILL
    with zipfile.ZipFile(folder / "t.pt") as file:
        assert file.read("archive/data.pkl").count(b"cuda:0") and b"cpu" not in file.read("archive/data.pkl")
    status, said = forked(training, folder)
    assert status == 0, said
    assert (folder / "weights").read_bytes() == (folder / "undisturbed" / "weights").read_bytes()


@pytest.mark.long
def test_a_checkpoint_of_a_gpu_is_gone_on_from_on_a_cpu(tmp_path):
    in_a_child(f"resumed_without_its_gpu({str(tmp_path)!r})")
