"""Kernels: NumPy against slow loops, spaces, searches and tables; and, where TVM is installed, every sketch against
NumPy, candidates that crash or are late, and MetaSchedule."""
import json
import math
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import scipy.stats
import torch
from sample import write_sample
from torch.utils.flop_counter import FlopCounterMode

from kit.data import DataError
from kit.search import explore_then_droplet
from kit.train_parts import processor_name, records
from lab.kernels import bench as kernel_lab
from lab.kernels import carried as kernel_carried
from lab.kernels.bench import PYTORCH, KernelLab, Trials, has_tvm
from lab.kernels.carried import (
    _tile_columns,
    carried_cost,
    definition,
    fit_carried,
    fit_known,
    known_measurements,
    schedule_numbers,
    shared_iterations,
)
from lab.kernels.definitions import KERNELS, Kernel, input_shapes, kernel_axes, kernel_inputs, kernel_result
from lab.kernels.metaschedule import Tuner
from lab.kernels.networks import known_layers, multiplications, network_layers, network_names
from lab.kernels.pictures import draw_layers, draw_networks, draw_progress
from lab.kernels.pytorch import pytorch_calls
from lab.kernels.results import (
    FORMS,
    NEWEST,
    compare_newest,
    compare_searches,
    complete_races,
    network_summary,
    network_sums,
    newest_against,
    race_table,
    read_races,
    readable_ratios,
    search_progress,
    unsteady,
)
from lab.kernels.schedules import choice_columns, kernel_tiles, schedule_choices, schedule_space
from lab.kernels.searches import (
    CARRIED,
    OURS,
    RIVAL,
    SEARCHES,
    UNTUNED,
    SearchJob,
    finished_searches,
    measure_layers,
    run_race,
    run_search,
    search_path,
)

SMALL = {"matmul": Kernel("small matmul", "matmul", (8, 16, 12)),
         "batch matmul": Kernel("small batch matmul", "matmul", (2, 6, 16, 5)),
         "conv2d": Kernel("small conv2d", "conv2d", (6, 4, 5, 16, 3)),
         "conv2d, stride 2": Kernel("small strided conv2d", "conv2d", (9, 7, 3, 16, 3), 2),
         "conv2d, 1x1": Kernel("small 1x1 conv2d", "conv2d", (8, 8, 6, 12, 1), 2),
         "conv2d, no padding": Kernel("small unpadded conv2d", "conv2d", (7, 7, 4, 6, 3), 1, 0),
         "depthwise": Kernel("small depthwise", "depthwise", (5, 6, 16, 3)),
         "depthwise, stride 2": Kernel("small strided depthwise", "depthwise", (9, 9, 16, 5), 2),
         "dense": Kernel("small dense", "matmul", (1, 24, 20)),
         "100 columns": Kernel("small matmul of 100 columns", "matmul", (3, 100, 6)),
         "layer norm": Kernel("small layer norm", "layer norm", (6, 24)),
         "softmax": Kernel("small softmax", "softmax", (6, 24))}
each_kind = pytest.mark.parametrize("kernel", SMALL.values(), ids=SMALL)
needs_tvm = [pytest.mark.kernels, pytest.mark.skipif(
    not has_tvm(), reason="no TVM: pip install -r notebooks/requirements-kernels.txt")]


def dims_of(kernel):
    return [len(choice.values) for choice in schedule_space(kernel)]


@each_kind
def test_numpy_and_each_call_of_pytorch_compute_the_same(kernel):
    inputs = kernel_inputs(kernel, np.random.default_rng(0))
    result = kernel_result(kernel, inputs)
    assert result.dtype == np.float32 and result.shape == kernel_axes(kernel)[0]
    for call, back in pytorch_calls(kernel, [torch.from_numpy(x) for x in inputs]):
        np.testing.assert_allclose(result, back(call()).numpy().reshape(result.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_space_has_several_sketches_distinct_values_and_tiles_that_fit(kernel):
    space, (spatial, reduced) = schedule_space(kernel), kernel_axes(kernel)
    assert space[0].name == "sketch" and len(space[0].values) >= 2
    assert len({choice.name for choice in space}) == len(space)
    for choice in space:
        assert len(set(choice.values)) == len(choice.values) > 1, choice.name
        assert not choice.ordered or list(choice.values) == sorted(choice.values), choice.name
    for code in np.random.default_rng(0).integers(dims_of(kernel), size=(50, len(space))):
        choices = schedule_choices(kernel, code)
        if "tile 0" in choices:
            tile, tiles, terms = kernel_tiles(kernel, choices)
            assert all(n % (size * count) == 0 for n, size, count in zip(spatial, tile, tiles))
            assert all(n % size == 0 for n, size in zip(reduced, terms))
            assert all(count <= choices[f"tiles {i}"] for i, count in enumerate(tiles))


def test_codes_outside_the_space_are_refused_by_name():
    with pytest.raises(ValueError, match=r"^small softmax: codes are \[0, 9\]; expected one per choice, below \["):
        schedule_choices(SMALL["softmax"], [0, 9])
    with pytest.raises(ValueError, match="codes are"):
        schedule_choices(SMALL["softmax"], [-1] + [0] * (len(schedule_space(SMALL["softmax"])) - 1))


@pytest.mark.parametrize("name", network_names())
def test_every_layer_of_a_known_network_has_a_name_of_its_own_and_a_space(name):
    layers = network_layers(name)
    assert len({kernel.name for kernel, _ in layers}) == len({kernel for kernel, _ in layers}) == len(layers)
    for kernel, count in layers:
        assert count > 0 and np.prod(dims_of(kernel), dtype=float) > 500, kernel.name
        assert set(schedule_choices(kernel, [0] * len(dims_of(kernel)))) >= {"sketch", "threads", "unroll"}


def test_an_unknown_network_is_named_with_those_that_are_known():
    with pytest.raises(ValueError, match="^network is 'lenet'; expected one of alexnet, vgg16, resnet18, resnet50, "):
        network_layers("lenet")
    assert len(network_names()) >= 10


@each_kind
def test_pytorch_counts_as_many_multiplications(kernel):
    tensors = [torch.empty(shape, device="meta") for shape in input_shapes(kernel)]
    (call, _), *_ = pytorch_calls(kernel, tensors)
    with FlopCounterMode(display=False) as counter:
        call()
    counted = 3 * counter.get_total_flops() // 2 or 3 * math.prod(kernel.sizes)      # it counts none of a softmax
    assert multiplications(kernel, 3) == counted


# without TVM

class DrawnLab(KernelLab):
    """In the place of KernelLab: a schedule takes as many milliseconds as its codes add up to, and 2 more."""
    asked, stop_at, failing = [], None, ()

    def __init__(self, kernel, threads=1):
        self.kernel, self.child = kernel, self
        self.begin()

    def ask(self, jobs, rounds, best):
        """What the child would answer."""
        self.asked.append((self.kernel.kind, rounds, len(jobs)))
        if len(self.asked) == self.stop_at:
            raise KeyboardInterrupt
        fails = self.kernel.kind in self.failing
        answer = [(np.inf, "compiling crashed") if fails else
                  (1e-3 * (2 + sum(job)) if isinstance(job, tuple) else 0.007, "") for job in jobs]
        return [answer for _ in range(rounds)]

    def close(self):
        """Nothing is open."""


class DrawnTuner:
    """In the place of MetaSchedule."""

    def __init__(self, threads):
        pass

    def tune(self, lab, trials, seed):
        """Trials of modules that all take as long."""
        start = lab.begin()
        lab.try_jobs([f"module {i}" for i in range(trials)])
        return lab.tried_since(start)

    def close(self):
        """Nothing is open."""


@pytest.fixture
def drawn_lab(monkeypatch):
    monkeypatch.setattr("lab.kernels.searches.KernelLab", DrawnLab)
    monkeypatch.setattr("lab.kernels.searches.Tuner", DrawnTuner)
    monkeypatch.setattr("lab.kernels.searches.known_cost", lambda kernel, threads: lambda points: points.sum(axis=1))
    for name, value in (("asked", []), ("stop_at", None), ("failing", ())):
        monkeypatch.setattr(DrawnLab, name, value)
    return DrawnLab


def test_searches_and_races_are_written_once_and_read_afterwards(tmp_path, drawn_lab):
    kernel = SMALL["batch matmul"]
    run_search(SearchJob(kernel, "random", 3), tmp_path)                  # shorter than the next: not in the race
    jobs = [SearchJob(kernel, search, 60) for search in SEARCHES]
    found = [run_search(job, tmp_path) for job in jobs]
    race = run_race(kernel, 0, 1, tmp_path, starts=2)
    entries = {(one["strategy"], one["measurements"]): one for one in race["entries"]}
    assert entries.keys() == {(name, count) for name in SEARCHES for count in (50, 60)} | {(UNTUNED, 0), (PYTORCH, 0)}
    assert len(entries) == len(race["entries"]) and entries[UNTUNED, 0]["again"] == [0.007] * 2
    for search, one in zip(SEARCHES, found):
        assert len(one["seconds"]) == 60 and sorted(one["elapsed"]) == one["elapsed"]
        for count in (50, 60):
            schedule = entries[search, count]["schedule"]
            assert schedule == (None if search == RIVAL else min(one["codes"][:count], key=sum))
            assert entries[search, count]["again"] == [1e-3 * (2 + sum(schedule)) if schedule else 0.007] * 10
            assert entries[search, count]["seconds"] == one["elapsed"][count - 1]
    asked = len(drawn_lab.asked)
    assert [run_search(job, tmp_path) for job in jobs] == found and run_race(kernel, 0, 1, tmp_path, starts=2) == race
    assert len(drawn_lab.asked) == asked
    table = race_table(tmp_path)
    assert len(table) == len(entries) and set(table["cpu"]) == {race["machine"]["cpu"]}
    longer = run_race(kernel, 0, 1, tmp_path, starts=3)
    assert {len(one["again"]) for one in longer["entries"]} == {3, 15} and len(race_table(tmp_path)) == len(entries)
    assert set(race_table(tmp_path)["race"]) == {longer["race"]} != {race["race"]}
    path = search_path(tmp_path, jobs[0])                                 # this search was made again, in another time
    path.write_text(json.dumps(found[0] | {"elapsed": [2 * known for known in found[0]["elapsed"]]}))
    assert run_race(kernel, 0, 1, tmp_path, starts=2)["race"] not in (race["race"], longer["race"])


def test_a_plan_that_was_interrupted_goes_on_and_repeats_nothing(tmp_path, drawn_lab, capsys):
    plan, raced = [[SearchJob(SMALL[kind], search, 3) for search in ("random", RIVAL)]
                   for kind in ("conv2d", "softmax", "matmul")], []
    drawn_lab.stop_at, drawn_lab.failing = 3, ("softmax",)
    with pytest.raises(KeyboardInterrupt):                                # while it races
        measure_layers(plan, tmp_path, starts=1)
    assert drawn_lab.asked == [("conv2d", 1, 3)] * 2 + [("conv2d", 5, 3)]
    again = partial(measure_layers, plan, tmp_path, starts=1, after=lambda: raced.append(1))
    assert again(minutes=0) == (0, ["small softmax", "small matmul"])     # one layer at least
    assert drawn_lab.asked[3:] == [("conv2d", 5, 3), ("conv2d", 1, 1)]
    assert again() == (2, []) and len(raced) == 2
    assert drawn_lab.asked[5:] == [("softmax", 1, 3)] * 2 + [("matmul", 1, 3)] * 2 + [
        ("matmul", 5, 3), ("matmul", 1, 1)]
    assert again() == (2, []) and len(raced) == 2                         # only what failed is tried again
    said = capsys.readouterr().out
    assert "note  small softmax: random: none of 3 schedules of small softmax ran: compiling crashed" in said
    assert f"small matmul: {RIVAL}: 7.000 ms, 3 measurements" in said and f"{PYTORCH}  7.000" in said


def test_a_file_that_is_no_search_is_named(tmp_path):
    (tmp_path / "spoiled.json").write_text('{"kernel": "softm')
    with pytest.raises(DataError, match="spoiled.json: neither a search nor a race of layers; move it away"):
        finished_searches(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="candidates are forked processes")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_while_a_candidate_of_a_race_is_measured_the_others_stand_still(monkeypatch):
    context, team = multiprocessing.get_context("fork"), []
    pids = context.Array("i", 3)

    def candidate(pipe, expected):
        while True:
            pipe.recv()
            others, until = [psutil.Process(pid) for pid in pids if pid != os.getpid()], time.monotonic() + 5
            while (moving := sum(other.status() != psutil.STATUS_STOPPED for other in others)) > expected:
                if time.monotonic() > until:                 # a busy machine stops a process some time after the signal
                    break
                time.sleep(0.01)
            pipe.send((float(moving), ""))
            expected = 0
    for place in range(3):
        ours, theirs = context.Pipe()
        process = context.Process(target=candidate, args=(theirs, 2 - place), daemon=True)
        process.start()
        pids[place] = process.pid
        team.append(kernel_lab._Candidate(process, ours, 0.0))
    monkeypatch.setattr(kernel_lab, "_compiled", lambda *about: team)
    answers = kernel_lab.time_batch(["a", "b", "c"], 3, np.inf, 1, 10)
    moving = [[seconds for seconds, fault in row] for row in answers]
    assert moving == [[2, 1, 0], [0] * 3, [0] * 3]           # before its first turn, a candidate only waits
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.skipif(sys.platform == "win32", reason="candidates are forked processes")
def test_a_candidate_that_died_while_it_waited_fails_alone_and_no_process_is_left(monkeypatch):
    context, team = multiprocessing.get_context("fork"), []

    def candidate(pipe):
        while True:
            pipe.recv()
            pipe.send((1.0, ""))
    for _ in range(3):
        ours, theirs = context.Pipe()
        process = context.Process(target=candidate, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        team.append(kernel_lab._Candidate(process, ours, 0.0))
    pids = [one.process.pid for one in team]
    team[1].process.kill()
    team[1].process.join()                                   # as multiprocessing does when it starts another process
    monkeypatch.setattr(kernel_lab, "_compiled", lambda *about: team)
    alive = (1.0, "")
    assert kernel_lab.time_batch(["a", "b", "c"], 2, np.inf, 1, 10) == [[alive, (np.inf, "running crashed"), alive]] * 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_without_tvm_one_sentence_says_what_to_install(monkeypatch, project):
    monkeypatch.setattr(kernel_lab, "has_tvm", lambda: False)
    with pytest.raises(ImportError, match="^kernels need TVM, which the kit does not install: pip install -r note"):
        KernelLab(SMALL["matmul"])
    assert (project / kernel_lab.INSTALL.split()[-1]).is_file()


# with TVM

@pytest.fixture(scope="module")
def labs():
    """{kind: KernelLab of the small kernel}, each started once."""
    opened = {}

    def lab(kind):
        if kind not in opened:
            opened[kind] = KernelLab(SMALL[kind])
        return opened[kind]
    yield lab
    for one in opened.values():
        one.close()


def tvm_test(test):
    for mark in needs_tvm:
        test = mark(test)
    return test


@tvm_test
@pytest.mark.parametrize("kind", SMALL)
def test_every_sketch_and_schedules_drawn_at_random_compute_what_numpy_does(kind, labs):
    dims = dims_of(SMALL[kind])
    codes = np.random.default_rng(0).integers(dims, size=(2 * dims[0] + 8, len(dims)))
    codes[:2 * dims[0], 0] = np.repeat(np.arange(dims[0]), 2)
    answers = labs(kind).measure([None, *map(tuple, codes)])
    assert [fault for _, fault in answers] == [""] * len(answers)
    assert all(0 < seconds < np.inf for seconds, _ in answers)


@tvm_test
@pytest.mark.parametrize("kind", ["conv2d", "softmax"])
def test_every_choice_changes_the_program(kind):
    def programs(line):
        from lab.kernels.schedules import schedule_kernel
        kernel, found = SMALL[kind], {}
        for i, choice in enumerate(schedule_space(kernel)):
            code = [int(other.name.startswith("tiles")) for other in schedule_space(kernel)]
            code[i] = 0
            texts = [schedule_kernel(kernel, code).script()]
            code[i] = len(choice.values) - 1
            found[choice.name] = texts + [schedule_kernel(kernel, code).script()]
        line.send(found)
    child = kernel_lab.TvmChild(programs, 1)
    found = child.hear()
    child.close()
    assert {name for name, (one, other) in found.items() if one == other} == set()


@tvm_test
def test_a_lab_is_an_objective_and_remembers_its_trials(labs):
    lab, kernel = labs("matmul"), SMALL["matmul"]
    lab.begin()
    result = explore_then_droplet(lab, dims_of(kernel), 12, np.random.default_rng(0))
    known, seconds, codes = zip(*lab.trials)
    assert result.measurements == len(lab.trials) == 12 and list(known) == sorted(known)
    assert result.best_cost == min(seconds) and tuple(result.best) == codes[int(np.argmin(seconds))]


def stack_pointer():
    return int(Path("/proc/self/syscall").read_text().split()[-2], 16)


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="only there is this file known")
def test_a_measurement_runs_at_each_alignment_of_the_stack():
    for _ in range(20):                          # calls of Python become shorter when they are repeated
        pointers = [kernel_lab._aligned(count, stack_pointer) for count in kernel_lab.ARGUMENTS]
    assert len({pointer % 64 for pointer in pointers}) == 4 and len({pointer % 16 for pointer in pointers}) == 1


@pytest.mark.parametrize("once", [1e-6, 2e-3, 0.008, 0.012, 0.1])
def test_a_time_is_the_mean_over_alignments_of_the_shortest_of_several_runs(once):
    rest, drawn = [], np.random.default_rng(0)

    def seconds(number, repeat):
        rest.append((number, [once * drawn.uniform(1, 2) for _ in range(repeat)]))
        return rest[-1][1]
    first = once * drawn.uniform(1, 2)
    found = kernel_lab._typical(kernel_lab._Timer(None, seconds), first, 0.03)
    if once > 0.03:
        assert not rest and found == first
        return
    assert found == pytest.approx(np.mean([min(took) for _, took in rest]))
    spent = sum(number * len(took) * first for number, took in rest)           # if all runs take as long as the first
    assert 0.015 < spent <= 0.033 and 1 <= len(rest) <= 4 and len({len(took) for _, took in rest}) == 1
    assert len(rest) == 4 or len(rest[0][1]) == 1


def misbehave(line, kernel):
    """In the child: four candidates, of which one crashes, one hangs, and one computes something else."""
    import tvm  # noqa: F401 - once, for all forked processes, whose limits are short
    inputs = kernel_inputs(kernel, np.random.default_rng(0))
    known, right = kernel_result(kernel, inputs), kernel_lab.schedule_kernel
    deeds = {"crash": lambda: os.abort(), "hang": lambda: time.sleep(60)}
    kernel_lab.schedule_kernel = lambda kernel, job: deeds[job[0]]() if job[0] in deeds else right(kernel, job)
    codes = (0,) * len(dims_of(kernel))
    line.send([kernel_lab.time_batch([("crash",), ("hang",), codes], 1, np.inf, 8.0, 15.0, kernel, inputs, known),
               kernel_lab.time_batch([codes], 1, np.inf, 30.0, 30.0, kernel, inputs, known + 1)])


@tvm_test
def test_a_candidate_that_crashes_hangs_or_is_wrong_costs_infinity_and_spoils_no_other():
    child = kernel_lab.TvmChild(misbehave, 1, SMALL["matmul"])
    ((crash, hang, fine),), ((wrong,),) = child.hear()
    child.close()
    assert crash == (np.inf, "compiling crashed")
    assert hang == (np.inf, "compiling took longer than its limit")
    assert fine[0] < np.inf and fine[1] == ""
    assert wrong == (np.inf, "the result is wrong by 1.0e+00")


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="only Linux tells the family of a CPU there")
def test_a_cpu_is_named_with_its_family_where_that_is_known(monkeypatch):
    text = Path("/proc/cpuinfo").read_text()
    told = [re.search(rf"^{key}\s*: (\d+)$", text, re.MULTILINE) for key in ("cpu family", "model")]
    name = processor_name()
    assert all(told) == ("(family" in name)
    if all(told):
        assert name.endswith(f" (family {told[0][1]}, model {told[1][1]})") and len(name) > 24
    monkeypatch.setattr(records, "cpu_fields", lambda: {"model name": "Some CPU"})
    assert processor_name() == "Some CPU"


def fail(line):
    raise OSError("no space left")


@tvm_test
def test_a_child_that_ends_is_named_with_its_last_words_and_leaves_no_process():
    child = kernel_lab.TvmChild(fail, 1)
    with pytest.raises(RuntimeError, match="^the process with TVM ended by itself: OSError: no space left$"):
        child.hear()
    assert child.process.poll() is not None


@tvm_test
def test_metaschedule_is_measured_by_the_same_lab_and_its_modules_can_be_measured_again(labs):
    with closing(Tuner()) as tuner:
        for kind in ("batch matmul", "softmax"):
            meta = tuner.tune(labs(kind), 8)
            assert len(meta.seconds) == len(meta.elapsed) == len(meta.jobs) >= 8 and (np.diff(meta.elapsed) >= 0).all()
            (seconds, fault), = labs(kind).measure([meta.jobs[int(meta.seconds.argmin())]])
            assert fault == "" and seconds < np.inf            # and the lab found its result to be this kernel's


@tvm_test
def test_every_search_runs_and_the_race_of_their_winners(tmp_path):
    kernel = SMALL["batch matmul"]
    for search in SEARCHES:
        found = run_search(SearchJob(kernel, search, 6), tmp_path)
        assert len(found["seconds"]) == 6
    race = run_race(kernel, 0, 1, tmp_path, starts=1)
    assert len(race["entries"]) == len(SEARCHES) + 2
    assert all(np.isfinite(one["again"]).all() and min(one["again"]) > 0 for one in race["entries"])


@tvm_test
def test_a_run_that_was_killed_or_whose_time_is_over_goes_on_and_measures_nothing_twice(tmp_path, project):
    """As a user would: run.py with notebook 08, killed when the first search is done; no time for a second layer."""
    command = [sys.executable, "notebooks/run.py", "--only", "08", "--out", str(tmp_path / "out"), "--data-root",
               str(write_sample(tmp_path / "sample")), "-p", "network=bert", "-p", "minutes=0",
               "-p", "budget=3", "-p", "trials=3", "-p", "threads=1"]

    def measured_files():
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / "kernels").glob("*.json")}

    log = tmp_path / "log.txt"
    with open(log, "w") as file:
        first = subprocess.Popen(command, cwd=project, stdout=file, stderr=file, start_new_session=True)
        while first.poll() is None and not measured_files():
            time.sleep(0.05)
        os.killpg(first.pid, signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL, log.read_text()
    before = measured_files()
    again = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=500)
    said = again.stdout + again.stderr
    layers = sorted(network_layers("bert"), key=lambda layer: -multiplications(*layer))
    left = f"{len(layers) - 1} kernels are unfinished ({layers[1][0].name}; "
    assert again.returncode == 3 and left in said, said
    assert before and before.items() <= measured_files().items() and len(measured_files()) == 4       # and a race
    table = pd.read_csv(tmp_path / "out" / "kernels_bert.csv")
    assert {*table["kernel"]} == {layers[0][0].name} and (table["ms"] > 0).all()
    assert f"bert: 1 of {len(layers)} layers" in said and (tmp_path / "out" / "report.html").is_file()


def test_the_winner_of_a_search_that_confirms_was_measured_as_often_as_any():
    jobs, seconds = ["a", "b", "a", "c"], np.array([4.0, 3.0, 6.0, 2.0])
    tried = Trials(seconds, np.arange(4.0), jobs)
    assert [tried.first(n).winner(3)[0] for n in (1, 2, 3, 4)] == ["a", "b", "a", "a"]
    assert [tried.first(n).winner()[0] for n in (1, 2, 3, 4)] == ["a", "b", "b", "c"]
    assert tried.winner(3) == ("a", 5.0) and tried.winner() == ("c", 2.0)
    failed = Trials(np.array([1.0, 3.0, np.inf]), np.arange(3.0), ["a", "b", "a"])
    assert failed.winner(3) == ("b", 3.0) and failed.first(1).winner(3) == ("a", 1.0)
    assert Trials(np.array([np.inf]), np.zeros(1), ["a"]).winner(3) == ("a", np.inf)
    alike = Trials(np.array([4.0, 4.01, 3.0]), np.arange(3.0), ["a", "a", "b"])          # two are enough
    assert alike.winner(3) == ("a", 4.005)


def drawn_layers():
    """Layers of which a schedule takes longer the smaller its last tile is, and longer again if it is not unrolled."""
    layers = []
    for sizes in ((64, 64, 64), (32, 128, 64), (96, 64, 128), (64, 256, 32)):
        kernel = Kernel(f"drawn {sizes}", "matmul", sizes)
        codes = np.random.default_rng(0).integers(dims_of(kernel), size=(120, len(dims_of(kernel))))
        chosen = [schedule_choices(kernel, code) for code in codes]
        seconds = np.array([1e-6 * math.prod(sizes) / one["tile 1"] * (1 + (one["unroll"] == 0)) for one in chosen])
        layers.append((kernel, codes, np.where(np.arange(120) % 20 == 7, np.inf, seconds)))
    return layers


def test_trees_order_the_schedules_of_a_layer_that_they_did_not_see():
    *known, (kernel, codes, seconds) = drawn_layers()
    cost, valid = carried_cost(fit_carried(known), kernel)(codes), np.isfinite(seconds)
    assert scipy.stats.spearmanr(cost[valid], seconds[valid])[0] > 0.8


def test_on_several_threads_a_schedule_costs_what_the_busiest_thread_has_to_do():
    *known, (kernel, codes, _) = drawn_layers()
    trees = fit_carried(known)
    alone, shared = carried_cost(trees, kernel)(codes), shared_iterations(kernel, codes)
    for threads in (1, 2, 3):
        busiest = [max(len(range(first, n, threads)) for first in range(threads)) / n for n in shared]
        assert carried_cost(trees, kernel, threads)(codes) == pytest.approx(alone + np.log(busiest))
    assert set(shared) > {1, 2}


@tvm_test
@each_kind
def test_threads_share_out_the_iterations_that_the_program_says(kernel):
    from lab.kernels import schedule_kernel
    codes = np.random.default_rng(3).integers(dims_of(kernel), size=(20, len(dims_of(kernel))))
    for code, shared in zip(codes, shared_iterations(kernel, codes)):
        loops = re.findall(r"T\.parallel\((\d+)\)", schedule_kernel(kernel, code).script())
        # of two loops, the first one writes zeros around an image
        assert schedule_choices(kernel, code)["threads"] == "one" or int(loops[-1]) == shared
        assert loops or shared == 1


def test_trees_learn_once_from_the_same_measurements():
    *known, (kernel, codes, _) = drawn_layers()
    trees = fit_known(known)
    assert fit_known(drawn_layers()[:-1]) is trees and fit_known(known[:1]) is not trees
    assert np.array_equal(carried_cost(trees, kernel)(codes), carried_cost(fit_carried(known), kernel)(codes))


@each_kind
def test_columns_of_choices_and_tiles_hold_what_single_schedules_say(kernel):
    codes = np.random.default_rng(0).integers(dims_of(kernel), size=(30, len(dims_of(kernel))))
    columns = choice_columns(kernel, codes)
    each = [schedule_choices(kernel, code) for code in codes]
    assert {name: column.tolist() for name, column in columns.items()} == {
        name: [one[name] for one in each] for name in each[0]}
    assert schedule_numbers(kernel, codes[:0]).shape[0] == 0
    if kernel.kind not in ("softmax", "layer norm"):
        for together, apart in zip(_tile_columns(kernel, columns), zip(*(kernel_tiles(kernel, one) for one in each))):
            assert np.transpose(together).tolist() == list(map(list, apart))


def test_nothing_measured_on_a_layer_is_known_of_it_under_another_name():
    def computes(layer):
        image = layer.kind in ("conv2d", "depthwise")
        padding = layer.sizes[-1] // 2 if layer.padding is None else layer.padding
        return layer.kind, layer.sizes, (layer.stride, padding) if image else ()
    networks = {name: {computes(layer) for layer, _ in network_layers(name)} for name in network_names()}
    renamed = [layer._replace(name="mine") for layer, _ in network_layers("bert")]
    shared = 0
    for kernel in (*KERNELS.values(), *renamed):
        own = set().union(*(layers for layers in networks.values() if computes(kernel) in layers))
        shared += bool(own)
        found = known_measurements(kernel)
        known = {computes(layer) for layer, _, _ in found}
        assert known and computes(kernel) not in known and not known & own
        for layer, codes, seconds in found:
            assert ((codes >= 0) & (codes < dims_of(layer))).all()
            assert (seconds > 0).all() and len(codes) == len(seconds)
    assert shared >= 2 + len(renamed)


def test_the_stored_measurements_are_of_layers_as_they_are_defined_now():
    stored = pd.read_csv(kernel_carried.MEASURED, keep_default_na=False)
    now = {name: definition(kernel) for name, kernel in known_layers().items()}
    assert len(stored) and (stored["definition"] == stored["kernel"].map(now)).all()


def drawn_race(kernel="a", seed=0, **ms):
    entries = [{"strategy": name, "measurements": 0 if name == PYTORCH else 50, "seconds": 1.23,
                "schedule": [1, 0] if name == OURS else None,
                "again": [1e-3 * value, 3e-3 * value, 2e-3 * value]} for name, value in ms.items()]
    return {"kernel": kernel, "seed": seed, "starts": 3, "race": "00000012", "entries": entries,
            "machine": {"cpu": "a CPU", "threads": 1, "tvm": "0", "torch": "0", "date": "1970-01-01"}}


def test_a_table_holds_the_medians_of_the_longest_race_of_a_kernel_seed_and_machine(tmp_path):
    short, long, threads = drawn_race(random=9.0), drawn_race(**{OURS: 1.0, "random": 2.0}), drawn_race(random=1.0)
    threads["machine"]["threads"] = 4
    for name, race in (("z", short), ("a", long), ("b", drawn_race(seed=1, random=3.0)), ("c", threads)):
        (tmp_path / f"race_{name}.json").write_text(json.dumps(race))
    table = race_table(tmp_path).sort_values(["cpu", "seed", "ms"])
    assert (table["seconds"] == 1.2).all() and (table["rounds"] == 3).all()
    assert table[["cpu", "strategy", "seed", "ms", "low", "high", "schedule"]].values.tolist() == [
        ["a CPU", OURS, 0, 2.0, 1.5, 2.5, "1 0"], ["a CPU", "random", 0, 4.0, 3.0, 5.0, ""],
        ["a CPU", "random", 1, 6.0, 4.5, 7.5, ""], ["a CPU, 4 threads", "random", 0, 2.0, 1.5, 2.5, ""]]


def test_a_race_of_an_older_definition_of_a_layer_does_not_count(tmp_path):
    layer = dict((kernel.name, kernel) for kernel, _ in network_layers("bert"))["softmax 1536x128"]
    old, new = ({**drawn_race(layer.name, **ms), "definition": name} for name, ms in (
        ("other", {OURS: 1.0, "random": 2.0}), (definition(layer), {OURS: 4.0})))
    for name, race in (("a", old), ("b", new)):
        (tmp_path / f"race_{name}.json").write_text(json.dumps(race))
    assert race_table(tmp_path)["ms"].tolist() == [8.0]
    (tmp_path / "race_b.json").unlink()
    assert race_table(tmp_path).empty


def test_a_kernel_that_exceeds_the_limit_takes_infinity_and_spoils_no_other_number(tmp_path):
    race = drawn_race(untuned=1.0, random=9.0)
    for again in ([np.inf], [np.inf, np.inf, np.inf, 1.0], [np.inf, np.inf]):
        race["entries"][0]["again"] = again
        (tmp_path / "race_1.json").write_text(json.dumps(race))
        race_table(tmp_path).to_csv(tmp_path / "races.csv", index=False)
        stored = read_races(tmp_path / "races.csv")
        slow, fast = stored[["low", "ms", "high"]].values.tolist()
        assert set(stored["race"]) == {"00000012"}
        assert slow[1:] == [np.inf] * 2 and fast == [13.5, 18.0, 22.5]


RACES = pd.DataFrame([(kernel, strategy, count, seed, "1", "a CPU", ms, seconds) for seed in (0, 1)
    for kernel, strategy, count, ms, seconds in (
        ("matmul 128x768x768", "x", 50, 1.0 + seed, 10.0), ("matmul 128x768x768", "y", 50, 2.0 + 2 * seed, 20.0),
        ("layer norm 128x768", "x", 50, 3.0, 10.0), ("layer norm 128x768", "y", 50, 3.1, 40.0),
        ("softmax 1536x128", "x", 50, 1.0, 5.0))],
    columns=["kernel", "strategy", "measurements", "seed", "race", "cpu", "ms", "seconds"])


def test_searches_are_compared_by_the_geometric_mean_over_layers_that_have_both():
    row, = compare_searches(RACES, ("x", 50), ("y", 50))
    assert row["ratio"] == pytest.approx(math.sqrt(0.5 * 3.0 / 3.1)) and row["low"] <= row["ratio"] <= row["high"]
    assert (row["one"], row["other"], row["layers"], row["runs"]) == ("x, 50", "y, 50", 2, 4)
    assert (row["faster"], row["ties"], row["slower"]) == (1, 1, 0)
    assert row["time"] == pytest.approx(40 / 120) and compare_searches(RACES, ("x", 50), ("z", 50)) == []
    lost = RACES.assign(seconds=RACES["seconds"].where(RACES["strategy"] == "y"))
    lost, = compare_searches(lost, ("x", 50), ("y", 50))
    assert np.isnan(lost.pop("time")) and lost == {name: row[name] for name in lost}      # what is not known is not 0


def test_ratios_are_shown_with_their_intervals_and_search_times_where_they_are_known():
    table = pd.DataFrame({"one": ["x", "y"], "ratio": [0.9, 1.23456], "low": [0.8, 1.0], "high": [1.0, 1.5],
                          "layers": [4, 5], "time": [0.21, np.nan]})
    shown = readable_ratios(table)
    assert [*shown] == ["one", "kernel time", "layers", "search time"] and shown.values.tolist() == [
        ["x", "0.900 (0.800 to 1.000)", 4, "0.21"], ["y", "1.235 (1.000 to 1.500)", 5, ""]]
    alone = readable_ratios(pd.DataFrame({"ratio": [0.5], "low": [np.nan], "high": [np.nan], "time": [1.0]}))
    assert alone.values.tolist() == [["0.500", "1.00"]]


def test_the_sum_over_a_network_counts_each_layer_as_often_as_the_network_has_it():
    row, = network_sums(RACES, ["bert", "vgg16"], [("x", 50), ("y", 50)]).to_dict("records")
    assert (row["network"], row["layers"], row["of"]) == ("bert", 2, 7)
    counts = {kernel.name: count for kernel, count in network_layers("bert")}
    assert row["x, 50"] == pytest.approx(1.5 * counts["matmul 128x768x768"] + 3 * counts["layer norm 128x768"])
    assert row["y, 50"] == pytest.approx(3.0 * counts["matmul 128x768x768"] + 3.1 * counts["layer norm 128x768"])
    none = network_sums(RACES, ["bert"], [("z", 50)])
    assert none.empty and [*none] == ["cpu", "network", "layers", "of", "z, 50"]


def test_times_of_different_races_are_not_compared():
    slow = RACES[RACES["strategy"] == "x"].assign(race="2", ms=RACES["ms"] * 10, seconds=7.0)      # a slower day
    other = slow.assign(strategy="z", ms=slow["ms"] * 2, seconds=14.0)
    races = pd.concat([RACES, slow, other])
    assert compare_searches(races, ("x", 50), ("y", 50)) == compare_searches(RACES, ("x", 50), ("y", 50))
    assert compare_searches(races, ("z", 50), ("y", 50)) == []
    third, = compare_searches(races, ("z", 50), ("x", 50))
    assert third["ratio"] == pytest.approx(2) and (third["layers"], third["runs"], third["time"]) == (3, 6, 2)
    sums, = network_sums(races, ["bert"], [("x", 50), ("y", 50), ("z", 50)]).to_dict("records")
    old, = network_sums(RACES, ["bert"], [("x", 50), ("y", 50)]).to_dict("records")
    assert sums["layers"] == 2 and sums["z, 50"] == pytest.approx(2 * sums["x, 50"])
    assert sums["x, 50"] == pytest.approx(5.5 * old["x, 50"])             # the mean over both days


def test_complete_races_have_every_entry():
    other = RACES[RACES["strategy"] == "x"].assign(race="2")
    races = pd.concat([RACES, other])
    both = complete_races(races, [("x", 50), ("y", 50)])
    slow = [race for _, race in races.groupby(["kernel", "seed", "race"])
            if {("x", 50), ("y", 50)} <= {*zip(race["strategy"], race["measurements"])}]
    assert len(both) and sorted(both["ms"]) == sorted(pd.concat(slow)["ms"]) and set(both["race"]) == set(RACES["race"])
    assert complete_races(races, [("x", 50), ("no", 50)]).empty


def test_each_layer_has_the_newest_form_that_its_machine_has_measured():
    rows = [(cpu, kernel, form) for cpu, kernel, forms in (
        ("a CPU", "one", [*FORMS[:2], "random"]), ("a CPU", "two", [*FORMS[1:3], "random"]),
        ("b CPU", "one", [FORMS[2], "random"]), ("b CPU", "two", ["random"])) for form in forms]
    races = pd.DataFrame(rows, columns=["cpu", "kernel", "strategy"]).assign(
        ms=np.arange(len(rows)) + 1.0, measurements=50, seed=0, race="1")
    slow = []
    for row in races.to_dict("records"):
        rivals = {form for cpu, kernel, form in rows if (cpu, kernel) == (row["cpu"], row["kernel"])}
        newest = next((form for form in FORMS if form in rivals), None)
        if row["strategy"] in ("random", newest):
            slow.append({**row, "strategy": "random" if row["strategy"] == "random" else NEWEST})
    shuffled = races.sample(frac=1, random_state=0).set_index(np.full(len(races), 7))     # no use of order or index
    found = newest_against(shuffled, ("random", 50)).sort_values("ms", ignore_index=True)
    pd.testing.assert_frame_equal(found, pd.DataFrame(slow))


def test_progress_is_over_the_layers_whose_race_has_the_base_and_leaves_incomplete_entries_out():
    more = RACES[RACES["strategy"] == "x"].assign(measurements=100, ms=RACES["ms"] / 2, seconds=30.0)
    progress = search_progress(pd.concat([RACES, more]), ["x", "y", "z"], ("y", 50))
    found = progress[["strategy", "measurements", "layers"]].values.tolist()
    assert found == [["x", 50, 2], ["x", 100, 2], ["y", 50, 2]]
    half = (1 / 2 * 3.0 / 3.1) ** 0.5
    assert progress["ratio"].tolist() == pytest.approx([half, half / 2, 1])
    assert progress["seconds"].tolist() == [10, 30, 30]
    assert search_progress(RACES, ["x"], ("softmax", 1)).empty
    ax = draw_progress(progress, title="t")
    assert ax.get_legend_handles_labels()[1] == ["x", "y"] and ax.get_ylabel() == "kernel time over that of y, 50"


def test_a_picture_of_layers_has_a_row_per_layer():
    ax = draw_layers(RACES, [("x", 50)], base=("y", 50), title="t")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["layer norm 128x768", "matmul 128x768x768"]
    assert "x, 50" in ax.get_legend_handles_labels()[1]


def test_a_picture_of_networks_has_a_bar_per_network_and_search_if_half_of_the_layers_are_measured():
    one = RACES[RACES["kernel"] == "matmul 128x768x768"]
    for measured in (3, 4):
        races = pd.concat([one.assign(kernel=kernel.name) for kernel, _ in network_layers("bert")[:measured]])
        ax = draw_networks(races, ["bert", "vgg16"], [("x", 50)], base=("y", 50), title="t")
        assert [label.get_text() for label in ax.get_yticklabels()] == ["bert: 4 of 7 layers"] * (measured == 4)
        assert [bar.get_width() for bar in ax.patches] == [pytest.approx(0.5)] * (measured == 4)


def test_jobs_that_differ_in_anything_have_files_of_their_own(tmp_path):
    job = SearchJob(SMALL["matmul"], OURS, 50)
    others = [job._replace(kernel=SMALL["matmul"]._replace(stride=2)), job._replace(strategy="random"),
              job._replace(measurements=51), job._replace(seed=1), job._replace(threads=2)]
    assert len({search_path(tmp_path, one) for one in (job, *others)}) == 6


def test_a_kernel_with_another_space_of_schedules_has_another_definition(monkeypatch):
    known = [definition(kernel) for kernel in SMALL.values()]
    assert known == [definition(kernel) for kernel in SMALL.values()]
    monkeypatch.setattr("lab.kernels.schedules.TILES", (1, 2, 4))
    changed = [definition(kernel) != name for kernel, name in zip(SMALL.values(), known)]
    assert changed == [kernel.kind not in ("softmax", "layer norm") and name != "100 columns" and any(
        n >= 16 for n in kernel_axes(kernel)[0]) for name, kernel in SMALL.items()]


def test_the_newest_form_against_another_search_is_taken_from_races_with_both():
    old = RACES.assign(strategy=RACES["strategy"].replace("x", FORMS[2]))
    new = RACES.assign(strategy=RACES["strategy"].replace({"x": FORMS[0], "y": "z"}), race="2", ms=RACES["ms"] / 2)
    row, = compare_newest(pd.concat([old, new]), [((NEWEST, 50), ("y", 50))]).to_dict("records")
    known, = compare_searches(old, (FORMS[2], 50), ("y", 50))
    assert row == {**known, "one": f"{NEWEST}, 50"}          # the newer form raced only z


def test_a_summary_tells_the_sums_of_the_layers_that_all_searches_have():
    rows = [(kernel, strategy, count, 0, "1", "a CPU", ms, seconds) for kernel, times in (
        ("matmul 128x768x768", (1.0, 3.0, 2.0, 4.0)), ("layer norm 128x768", (1.0, 1.0, 1.0, 1.0)),
        ("softmax 1536x128", (5.0, 5.0))) for (strategy, count), ms, seconds in zip(
            ((CARRIED, 12), ("random", 12), (RIVAL, 36), (PYTORCH, 0)), times, (10.0, 10.0, 40.0, 0.0))]
    races = pd.DataFrame(rows, columns=RACES.columns)
    layers = network_layers("bert")
    counts, whole = {kernel.name: count for kernel, count in layers}, sum(multiplications(*layer) for layer in layers)
    dense, norm = counts["matmul 128x768x768"], counts["layer norm 128x768"]
    share = sum(multiplications(*layer) for layer in layers if layer[0].name in ("matmul 128x768x768",
                                                                                 "layer norm 128x768")) / whole
    assert network_summary(races, "bert", 12, 36) == (
        f"bert: 2 of 7 layers, with {int(100 * share)}% of the multiplications: {CARRIED} {dense + norm:.3g} ms, "
        f"random {3 * dense + norm:.3g} ms, {RIVAL} {2 * dense + norm:.3g} ms, PyTorch {4 * dense + norm:.3g} ms; "
        f"our search against {RIVAL}: faster on 1 layers, a tie on 1, slower on 0, in 0.25 of its search time")
    assert network_summary(races, "bert", 13, 36) == "bert: no layer has a race of all searches"


def test_layers_whose_times_differ_between_rounds_are_named():
    table = pd.DataFrame([("a", "random", 1.0, 1.1), ("a", UNTUNED, 1.0, 9.0), ("b", "random", 1.0, 1.3)],
                         columns=["kernel", "strategy", "low", "high"])
    assert unsteady(table) == ["b"]
