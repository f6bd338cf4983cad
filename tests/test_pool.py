"""Jobs in several processes: the same results as in one, errors and deaths reported, no process left behind."""
import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing import resource_tracker
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from training import GRAPHS, SHORT, TINY, VALID, GivenData, step_of_a_run

import lab.training.members as members_of_a_run
from kit.models import LayoutGNN
from kit.predict import predict
from kit.recipes import Recipe
from kit.train_parts import check_device, find_device, pool
from kit.train_parts.pool import default_workers, run_jobs
from lab.training import load_model, train_recipes

SHARED = {"a": 10, "b": 20}
JOBS = [("a", 1), ("a", 2), ("b", 3), ("b", 4), ("b", 5)]


def add(job, data, report):
    report(f"adds {job}")
    return os.getpid(), torch.get_num_threads(), job + data


def fail(job, data, report):
    if job == 2:
        raise ValueError("two is not allowed")
    time.sleep(60)


def die(job, data, report):
    os.kill(os.getpid(), signal.SIGKILL)


def blocked(job, data, report):
    return signal.pthread_sigmask(signal.SIG_BLOCK, [])


def children():
    """Processes that this one started, but for the tracker that multiprocessing keeps for the next ones."""
    return [one for one in psutil.Process().children(recursive=True) if "resource_tracker" not in str(one.cmdline())]


def test_processes_are_deaf_to_ctrl_c_from_their_start_and_this_one_is_not():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    resource_tracker._resource_tracker._stop()                   # as in a process that has started none
    assert all(signal.SIGINT in found for found in run_jobs(blocked, JOBS, SHARED, 2))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_jobs_give_their_results_in_order_from_any_number_of_processes():
    lines, before = [], children()
    found = run_jobs(add, JOBS, SHARED, 2, lines.append)
    assert [value for _, _, value in found] == [11, 12, 23, 24, 25] and sorted(lines) == [
        f"adds {number}" for number in range(1, 6)]
    assert len({pid for pid, _, _ in found}) == 2 and os.getpid() not in {pid for pid, _, _ in found}
    assert {threads for _, threads, _ in found} == {1}
    alone = run_jobs(add, JOBS, SHARED, 1, lines.append)
    assert [value for _, _, value in alone] == [11, 12, 23, 24, 25] and {pid for pid, _, _ in alone} == {os.getpid()}
    assert run_jobs(add, [], {}, 2) == [] and children() == before


MODULE = """def double(job, data, report):
    return 2 * job + data
class Number(int):
    pass
"""
# scripts as beginners write them: without `if __name__ == "__main__"`
PLAIN = {
    "nothing": "", "a comment on __main__": "# __main__\n",
    "a function": "def double(job, data, report):\n    return 2 * job + data\n",
    "the class of a job": "class Number(int):\n    pass\n",
}
SCRIPT = """print("begins", flush=True)
from mine import Number, double
{own}
from kit.train_parts.pool import run_jobs
print(run_jobs(double, [("a", Number(1)), ("a", Number(2))], {{"a": 10}}, 2))
"""


def ran(folder, project, script):
    """What a script says that defines or imports its jobs, and the error that ends it."""
    (folder / "mine.py").write_text(MODULE)
    (folder / "plain.py").write_text(script)
    done = subprocess.run([sys.executable, "plain.py"], cwd=folder, text=True, capture_output=True, timeout=100,
                          env=os.environ | {"PYTHONPATH": str(project)})
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("kind", PLAIN)
def test_a_script_whose_processes_need_nothing_of_it_runs_once(tmp_path, project, kind):
    status, said, errors = ran(tmp_path, project, SCRIPT.format(own=PLAIN[kind]))
    if kind in ("nothing", "a comment on __main__"):
        assert (status, said, errors) == (0, ["begins", "[12, 14]"], "")
        return
    assert status == 1 and "".join(said).count("begins") in (2, 3)           # each process runs it, and they end
    assert errors.endswith('RuntimeError: a job needs a function or class of this script, so each process runs the '
                           'script from its start; put all but definitions below `if __name__ == "__main__":`\n')


@pytest.mark.parametrize("kind", PLAIN)
def test_a_script_with_its_own_functions_runs_them_below_a_guard(tmp_path, project, kind):
    before, call, after = SCRIPT.format(own=PLAIN[kind]).partition("print(run_jobs")
    status, said, errors = ran(tmp_path, project, f"{before}if __name__ == '__main__':\n    {call}{after}")
    assert (status, said[-1], errors) == (0, "[12, 14]", "")


def test_a_job_in_this_process_has_one_thread_and_afterwards_there_are_as_many_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert [threads for _, threads, _ in run_jobs(add, JOBS, SHARED, 1, str)] == [1] * 5
        assert torch.get_num_threads() == 3
        with pytest.raises(ValueError, match="two is not allowed"):
            run_jobs(fail, [("a", 2)], SHARED, 1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def change(job, data, report):
    """The arrays as they arrived; then changes one of them, and waits until the other process has it, too."""
    found = {name: (array.copy(), array.flags.f_contiguous) for name, array in data.items()}
    data["C"][:] = -1
    time.sleep(0.5)
    return found


def test_arrays_arrive_as_they_are_and_a_change_stays_in_one_process():
    rng = np.random.default_rng(0)
    arrays = {"C": rng.random((40, 3)), "Fortran": np.asfortranarray(rng.random((40, 3))), "empty": np.zeros((0, 5)),
              "every other": np.arange(10)[::2], "odd": np.arange(7, dtype=np.int8), "text": np.array(["a", "bc"])}
    arrays["read-only"] = rng.random(9)
    arrays["read-only"].setflags(write=False)
    for shared in ({"a": arrays}, {"a": {"C": np.zeros(0)}}):
        kept = {name: array.copy() for name, array in shared["a"].items()}
        for found in run_jobs(change, [("a", 1), ("a", 2)], shared, 2):
            for name, (array, fortran) in found.items():
                np.testing.assert_array_equal(array, kept[name], strict=True)
                assert fortran == shared["a"][name].flags.f_contiguous or name == "every other"
        np.testing.assert_array_equal(shared["a"]["C"], kept["C"])


def test_no_room_for_the_arrays_is_one_sentence(monkeypatch):
    class Full:
        def __init__(self):
            self.file = tempfile.TemporaryFile()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, array):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(pool, "tempfile", SimpleNamespace(TemporaryFile=Full, gettempdir=lambda: "there"))
    with pytest.raises(OSError, match="need more room here; TMPDIR names another folder: 'there'"):
        run_jobs(add, JOBS, SHARED, 2)


@pytest.mark.long
@pytest.mark.parametrize("work, words", [
    (fail, "^ValueError: two is not allowed$"),
    (die, "^a training process ended with exit code -9; out of memory[?]$")])
def test_the_first_failure_ends_all_processes(work, words):
    before = children()
    with pytest.raises(RuntimeError, match=words):
        run_jobs(work, JOBS, SHARED, 2)
    assert children() == before


STARTER = """
import sys, time
sys.path[:0] = {paths!r}
from kit.train_parts.pool import run_jobs
from test_pool import wait
if __name__ == "__main__":
    run_jobs(wait, [("a", 1), ("a", 2)], {{"a": 0}}, 2, lambda line: print(line, flush=True))
"""


def wait(job, data, report):
    report(str(os.getpid()))
    time.sleep(60)


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(tmp_path, project, how):
    paths = [str(project), str(project / "notebooks"), str(project / "tests")]
    (tmp_path / "start.py").write_text(STARTER.format(paths=paths))
    with subprocess.Popen([sys.executable, "-c", "import runpy, signal, sys\n"
                           "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                           "sys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')",
                           str(tmp_path / "start.py")], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as starter:
        pids = [int(starter.stdout.readline()) for _ in range(2)]
        starter.send_signal(how)
        errors = starter.communicate(timeout=60)[1]
    assert errors.count("KeyboardInterrupt") == (how == signal.SIGINT), errors
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert psutil.wait_procs(left, 30)[1] == []


RECIPE = Recipe(LayoutGNN, TINY, replace(SHORT, steps=2))
X, Y = "layout:xla:random", "layout:nlp:random"


def given(source="measured programs", **splits):
    """Data of two collections with the same graphs."""
    return GivenData({c: {"train": GRAPHS, "test": VALID, **splits} for c in (X, Y)}, source=source)


def without_costs(made):
    return [row._replace(costs=[*row.costs]) for row in made.rows]


def same_costs(made, others):
    return all(np.array_equal(one.costs[i], other.costs[i])
               for one, other in zip(made.rows, others.rows, strict=True) for i in one.costs)


def histories(made):
    return {key: {kind: [{**one, "seconds": 0, "record": 0} for one in own] for kind, own in kinds.items()}
            for key, kinds in made.histories.items()}


@pytest.mark.long
def test_members_are_the_same_whatever_the_number_of_processes_and_resume(tmp_path):
    data, recipes = given(valid=VALID), {c: {"gnn": RECIPE.changed(steps=4)} for c in (X, Y)}
    lines, found = [], {}
    for workers in (1, 2):
        found[workers] = train_recipes(step_of_a_run(tmp_path / str(workers)), data, recipes, 2, workers=workers,
                                       report=lines.append)
    one, two = found.values()
    assert without_costs(one) == without_costs(two) and same_costs(one, two) and histories(one) == histories(two)
    assert [(row.collection, row.split, row.member, row.trains_on) for row in one.rows] == [
        (c, split, f"gnn_seed{seed}", (c,)) for c in (X, Y) for seed in (0, 1) for split in ("valid", "test")]
    assert all([*row.costs] == [f"{row.collection}:{g.graph_id}" for g in VALID] for row in one.rows)
    assert len({tuple(seed[f"{X}:v"]) for seed in one.seeds(X, "test")["gnn"]}) == 2
    assert len(lines) == 2 * 4 * 4 and all(re.match(r"layout:(xla|nlp):random, gnn, seed [01]: step ", line)
                                           for line in lines)
    assert len(list((tmp_path / "2" / "store").glob("*.pt"))) == 4
    again = train_recipes(step_of_a_run(tmp_path / "2"), data, recipes, 2, workers=1, report=lines.append)
    assert len(lines) == 32 and same_costs(again, one)                   # all resumed, none trained


@pytest.mark.long
def test_on_real_files_it_is_first_said_how_many_models_are_trained_already_and_how_long_the_others_take(tmp_path):
    lines = []
    for first, seeds, scale in ((0, 1, "short"), (0, 2, "short"), (0, 2, "short"), (2, 1, "tiny")):
        train_recipes(step_of_a_run(tmp_path, scale), given("real files"), {X: {"gnn": RECIPE}}, seeds, first,
                      workers=1, report=lines.append)
    assert [line for line in lines if "already" in line or "about" in line] == [
        "0 of 1 models are trained already; timing a few steps of the others",
        "about 0 min to train 1 model; one after another: gnn 0.0 min",
        "1 of 2 models are trained already; timing a few steps of the others",
        "about 0 min to train 1 model; one after another: gnn 0.0 min",
        "2 of 2 models are trained already"]


def test_a_process_that_has_loaded_other_code_than_the_result_would_say_does_not_train(tmp_path, monkeypatch):
    job = members_of_a_run._job
    monkeypatch.setattr(members_of_a_run, "_job", lambda *args: job(*args)._replace(code="of yesterday"))
    with pytest.raises(RuntimeError, match="files of the kit changed after this run started; run it again"):
        train_recipes(step_of_a_run(tmp_path), given(), {X: {"gnn": RECIPE}}, 2, workers=1, report=str)
    assert not [*tmp_path.rglob("*.pt")]


def test_a_trained_model_can_be_asked_for(tmp_path):
    run, data = step_of_a_run(tmp_path), given()
    made = train_recipes(run, data, {c: {"gnn": RECIPE} for c in (X, Y)}, 2, 5, workers=1, report=str)
    for row in made.rows:
        model = load_model(run, made, "gnn", row.collection, row.seed)
        assert all(np.array_equal(predict(model, g), row.costs[f"{row.collection}:{g.graph_id}"]) for g in VALID)
    assert load_model(run, made, "gnn", Y).settings.seed == 5
    for kind, seed in (("token", None), ("gnn", 4)):
        with pytest.raises(ValueError, match=f"^no trained {kind} ranks {X}; there are {X}, gnn, seed 5; {X}, gnn, "):
            load_model(run, made, kind, X, seed)
    run.store.path(made.rows[0].model, ".pt").unlink()
    with pytest.raises(ValueError, match=f"{re.escape(made.rows[0].model)}.pt: is gone, or was damaged; train it ag"):
        load_model(run, made, "gnn", X)


def test_as_many_models_as_cores_or_gpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5}, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [default_workers(device) for device in ("cpu", "cuda", "cuda:1")] == [3, 2, 1]


# --- GPUs that are not here

T4, P100 = "Tesla T4", "Tesla P100-PCIE-16GB"


@pytest.fixture
def gpus(monkeypatch):
    """names -> PyTorch sees these GPUs, computes on the CPU in their place, and fails on a P100."""
    def pretend(names):
        ones = torch.ones

        def computed(*shape, device):
            if device.startswith("cuda") and names[int(device.partition(":")[2] or 0)] == P100:
                raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
            return ones(*shape)
        for name, value in {"is_available": lambda: bool(names), "device_count": lambda: len(names),
                            "get_device_name": lambda gpu: names[gpu], "set_device": lambda device: None}.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch, "ones", computed)
    return pretend


def test_both_gpus_of_a_machine_are_found_and_each_trains_a_model(gpus, capsys):
    gpus([T4, T4])
    assert find_device(needs_gpu=True) == "cuda" and default_workers("cuda") == 2
    assert capsys.readouterr().out == "GPUs: Tesla T4, Tesla T4; models trained at the same time: 2\n"
    gpus([])
    assert find_device() == "cpu" and capsys.readouterr().out == ""


def test_a_gpu_that_was_asked_for_and_did_not_come_is_one_sentence(gpus):
    gpus([])
    with pytest.raises(ValueError, match="^a GPU was asked for, but PyTorch .* sees none here: on Kaggle choose the "
                                         "accelerator GPU T4 x2 .* or train without a GPU, with device='cpu'$"):
        find_device(needs_gpu=True)


@pytest.mark.parametrize("names", [[P100], [T4, P100]])
def test_a_gpu_that_pytorch_is_not_built_for_is_one_sentence_with_what_to_choose(gpus, names):
    gpus(names)
    with pytest.raises(ValueError, match=f"^device is 'cuda:{len(names) - 1}', and PyTorch .* cannot compute on it "
                                         "here: .* pass 'cpu' or .*; on Kaggle choose the accelerator GPU T4 x2"):
        find_device()
    if len(names) == 2:
        assert check_device("cuda:0")
