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
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import scipy.stats
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from kit.search import explore_then_droplet
from lab.kernels import carried as kernel_carried
from lab.kernels import measure as kernel_lab
from lab.kernels import metaschedule
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
from lab.kernels.measure import (
    PYTORCH,
    KernelLab,
    NoScheduleRan,
    Trials,
    has_tvm,
    processor_name,
)
from lab.kernels.metaschedule import Tuner
from lab.kernels.networks import (
    known_layers,
    multiplications,
    network_layers,
    network_names,
)
from lab.kernels.pictures import draw_layers, draw_networks, draw_progress
from lab.kernels.pytorch import pytorch_calls
from lab.kernels.results import (
    FORMS,
    NEWEST,
    compare_networks,
    compare_newest,
    compare_searches,
    complete_races,
    measurements_needed,
    merged_races,
    network_summary,
    network_sums,
    newest_forms,
    race_table,
    read_races,
    readable_ratios,
    search_progress,
    stacked,
    unsteady,
)
from lab.kernels.schedules import choice_columns, kernel_tiles, schedule_choices, schedule_space
from lab.kernels.searches import (
    CARRIED,
    DESCENT,
    OUR_SPACE,
    OURS,
    RIVAL,
    SEARCHES,
    UNTUNED,
    SearchJob,
    jobs_left,
    measure_layers,
    run_race,
    run_search,
    search_path,
    starts_left,
)
from lab.kernels.traces import TraceSpace
from lab.sample import write_sample
from lab.studies.kernels.measure_networks import planned
from lab.studies.kernels.page_tables import (
    every_form,
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


def pytorch_result(kernel, inputs):
    x, *others = map(torch.tensor, inputs)
    if kernel.kind in ("conv2d", "depthwise"):
        taps, channels = kernel.sizes[-1], kernel.sizes[2]
        order, groups = ((3, 2, 0, 1), 1) if kernel.kind == "conv2d" else ((2, 0, 1), channels)
        weight = others[0].permute(order).reshape(-1, channels // groups, taps, taps)
        padding = taps // 2 if kernel.padding is None else kernel.padding
        return functional.conv2d(x.permute(2, 0, 1)[None], weight, None, kernel.stride, padding, 1,
                                 groups)[0].permute(1, 2, 0)
    return {"matmul": lambda: x @ others[0], "softmax": lambda: torch.softmax(x, 1),
            "layer norm": lambda: functional.layer_norm(x, x.shape[1:], *others)}[kernel.kind]()


@each_kind
def test_the_oracle_of_a_kernel_agrees_with_pytorch(kernel):
    inputs = kernel_inputs(kernel, np.random.default_rng(0))
    result = kernel_result(kernel, inputs)
    assert result.dtype == np.float32 and result.shape == kernel_axes(kernel)[0]
    np.testing.assert_allclose(result, pytorch_result(kernel, inputs), rtol=1e-4, atol=1e-5)


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


def measured(kernel, c=12):
    codes = np.random.default_rng(1).integers(dims_of(kernel), size=(c, len(dims_of(kernel))))
    return codes, np.linspace(1e-4, 2e-4, c)


# without TVM

def test_after_its_minutes_no_other_layer_begins_and_a_search_that_fails_is_told(tmp_path, monkeypatch):
    ran, raced, lines, after = [], [], [], []

    def search(job, folder):
        if job.strategy == "random" and job.kernel.kind != "conv2d" or job.kernel.kind == "softmax":
            raise NoScheduleRan("none of 9 schedules ran")
        ran.append(job)
        search_path(folder, job).touch()
        return {"seconds": [2e-3, 1e-3], "elapsed": [1.0, 2.0]}

    def race(kernel, seed, threads, folder, target, starts):
        raced.append(kernel.name)
        return {"entries": [{"strategy": "x", "measurements": 2, "again": [3e-3]}]}
    monkeypatch.setattr("lab.kernels.searches.run_search", search)
    monkeypatch.setattr("lab.kernels.searches.run_race", race)
    monkeypatch.setattr("lab.kernels.searches.starts_left", lambda kernel, *about: kernel.name not in raced)
    plan = [[SearchJob(SMALL[kind], search, 9) for search in (RIVAL, "random")] for kind in (
        "conv2d", "softmax", "matmul")]
    about = {"after": lambda: after.append(len(raced)), "report": lines.append}
    assert measure_layers(plan, tmp_path, minutes=0, **about) == (0, ["small softmax", "small matmul"])
    assert [len(part) for part in jobs_left(plan, tmp_path)] == [4, 2]
    assert measure_layers(plan, tmp_path, **about) == (3, [])
    assert raced == ["small conv2d", "small matmul"] and after == [1, 2]
    assert [job.kernel.name for job in ran] == ["small conv2d"] * 2 + ["small matmul"]     # nothing is repeated
    assert [line for line in lines if "small matmul" in line] == [
        "small matmul: MetaSchedule: 1.000 ms, 2 measurements, 2 s",
        "note  small matmul: random: none of 9 schedules ran", "small matmul: x 2 3.000"]


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


@tvm_test
def test_winners_are_measured_in_turns(labs):
    rounds = labs("matmul").measure_rounds([None, (0,) * len(dims_of(SMALL["matmul"])), (99,)], 3)
    assert rounds.shape == (3, 3) and np.isfinite(rounds[:, :2]).all() and np.isinf(rounds[:, 2]).all()


def misbehave(line, kernel):
    """In the child: four candidates, of which one crashes, one hangs, and one computes something else."""
    import tvm  # noqa: F401 - once, for all forked processes, whose limits are short
    inputs = kernel_inputs(kernel, np.random.default_rng(0))
    known, right = kernel_result(kernel, inputs), kernel_lab.schedule_kernel
    deeds = {"crash": lambda: os.abort(), "hang": lambda: time.sleep(60)}
    kernel_lab.schedule_kernel = lambda kernel, job: deeds[job[0]]() if job[0] in deeds else right(kernel, job)
    codes = (0,) * len(dims_of(kernel))
    line.send([kernel_lab.time_batch([("crash",), ("hang",), codes], 1, np.inf, 8.0, 15.0, kernel, inputs, known, None),
               kernel_lab.time_batch([codes], 1, np.inf, 30.0, 30.0, kernel, inputs, known + 1, None)])


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
    monkeypatch.setattr(kernel_lab, "cpu_fields", dict)
    assert processor_name() == name.partition(" (family")[0]


@tvm_test
def test_a_search_whose_schedules_all_fail_says_why_and_is_not_kept(tmp_path, monkeypatch):
    class WithoutTime(KernelLab):
        """No candidate has time to be compiled."""

        def __init__(self, *about):
            super().__init__(*about, build_limit=0.0)
    monkeypatch.setattr("lab.kernels.searches.KernelLab", WithoutTime)
    with pytest.raises(RuntimeError, match="^none of 3 schedules of small matmul ran: compiling took longer than its "):
        run_search(SearchJob(SMALL["matmul"], "random", 3), tmp_path)
    assert not list(tmp_path.iterdir())


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
        for kind, more in (("batch matmul", {}), ("softmax", {"descent": 4})):
            meta = tuner.tune(labs(kind), 8, **more)
            assert len(meta.seconds) == len(meta.elapsed) == len(meta.jobs) >= 8 and (np.diff(meta.elapsed) >= 0).all()
            (seconds, fault), = labs(kind).measure([meta.jobs[int(meta.seconds.argmin())]])
            assert fault == "" and seconds < np.inf            # and the lab found its result to be this kernel's


@tvm_test
def test_a_run_that_was_killed_or_whose_time_is_over_goes_on_and_measures_nothing_twice(tmp_path, project):
    """As a user would: run.py with notebook 08, killed when the first search is done; no time for a second layer."""
    command = [sys.executable, "notebooks/run.py", "--only", "08", "--out", str(tmp_path / "out"), "--data-root",
               str(write_sample(tmp_path / "sample", size="tiny")), "-p", "network=bert", "-p", "minutes=0",
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


def decide(line, kernels, gpu=False):
    """In the child: for each kernel, the space of each of MetaSchedule's sketches, and what random codes decide."""
    import tvm

    from lab.kernels.definitions import kernel_function
    metaschedule.without_other_intrinsics("cuda" if gpu else None)
    from tvm.s_tir import meta_schedule as ms
    target = tvm.target.Target("nvidia/nvidia-t4") if gpu else kernel_lab.kernel_target(1)
    contexts = [ms.TuneContext(tvm.IRModule({"main": kernel_function(kernel)}), target=target,
                               space_generator="post-order-apply", search_strategy="replay-trace", task_name="main")
                for kernel in kernels]
    rng = np.random.default_rng(0)
    line.send([[decided(TraceSpace(sketch.trace, context.mod, context), rng)
                for sketch in context.generate_design_space()] for context in contexts])


def decided(space, rng):
    """(are the decisions of a trace those of its codes, are they all, cuts of random codes, extents, the module)."""
    import tvm
    chosen = {step: decision for step, decision in space.decisions(space.start)}
    same = all(list(map(int, space.trace.decisions[step])) == decision if isinstance(decision, list) else
               int(space.trace.decisions[step]) == decision for step, decision in chosen.items())
    drawn = [[decision for _, decision in space.decisions(rng.integers(space.dims)) if isinstance(decision, list)]
             for _ in range(3)]
    return (same, len(chosen) == len(space.trace.decisions), drawn,
            [math.prod(decision) for decision in chosen.values() if isinstance(decision, list)],
            None if (module := space.scheduled(space.start)) is None else tvm.ir.save_json(module))


@tvm_test
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
def test_codes_of_a_trace_are_its_decisions_and_any_codes_cut_the_same_extents(gpu, labs):
    kinds = "conv2d", "softmax"
    child = kernel_lab.TvmChild(decide, 1, [SMALL[kind] for kind in kinds], gpu)
    found = dict(zip(kinds, child.hear()))
    child.close()
    for same, every, drawn, extents, _ in sum(found.values(), []):
        assert same and every and all([math.prod(cut) for cut in cuts] == extents for cuts in drawn)
    modules = {kind: [module for *_, module in sketches] for kind, sketches in found.items()}
    if gpu:                                              # of a convolution, it rejects nearly all codes
        assert modules["softmax"] and all("threadIdx.x" in module for module in modules["softmax"])
        return
    for kind in kinds:
        answers = labs(kind).measure([module for module in modules[kind] if module])
        assert answers and all(fault == "" for _, fault in answers)


def schedule_for_a_gpu(line, kernels):
    """In the child: TVM's default schedules for a GPU, lowered, without a GPU."""
    import tvm

    from lab.kernels.definitions import kernel_function
    target = tvm.target.Target("nvidia/nvidia-t4")
    line.send([kernel_lab._default_schedule(tvm.IRModule({"main": kernel_function(kernel)}), target).script()
               for kernel in kernels])


@tvm_test
def test_an_untuned_kernel_has_threads_on_a_gpu():
    child = kernel_lab.TvmChild(schedule_for_a_gpu, 1, [*SMALL.values()])
    scripts = child.hear()
    child.close()
    assert len(scripts) == len(SMALL) and all("threadIdx.x" in script for script in scripts)


def descend(line, kernel, free_rejects):
    """In the child: what a descent from three traces measures with a budget of 10, if most codes are rejected."""
    import tvm

    from lab.kernels import traces
    from lab.kernels.definitions import kernel_function
    metaschedule.without_other_intrinsics()
    from tvm.s_tir import meta_schedule as ms
    module = tvm.IRModule({"main": kernel_function(kernel)})
    context = ms.TuneContext(module, target=kernel_lab.kernel_target(1), space_generator="post-order-apply",
                             search_strategy="replay-trace", task_name="main")
    sketches, rng, asked, right = context.generate_design_space(), np.random.default_rng(0), [], TraceSpace.scheduled
    seen = []

    def fussy(space, codes):
        seen.append(tuple(codes))
        return right(space, codes) if np.random.default_rng(codes).random() < 0.5 else None

    def measure(jobs):
        asked.append(list(jobs))
        return rng.random(len(jobs)).tolist()
    TraceSpace.scheduled = fussy
    traces.descend_traces([sketch.trace for sketch in sketches], module, context, measure, 10, rng, free_rejects)
    line.send((asked, len(seen)))


@tvm_test
@pytest.mark.parametrize("free_rejects", [False, True])
def test_a_descent_keeps_to_its_budget_and_counts_rejected_codes_unless_they_are_free(free_rejects):
    child = kernel_lab.TvmChild(descend, 1, SMALL["conv2d"], free_rejects)
    asked, seen = child.hear()
    child.close()
    jobs = [job for batch in asked for job in batch]
    assert len(jobs) == len(set(jobs))
    assert (len(jobs) == 10 and seen > 10) if free_rejects else (len(jobs) < 10 and seen == 10)


def test_a_gpu_is_named_or_missed_and_takes_no_search_in_our_space(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="^the target is cuda, and this PyTorch sees no GPU: install .* leave the"):
        processor_name("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a {device.type} card")
    assert processor_name("cuda") == "a cuda card"
    with pytest.raises(ValueError, match="^the target is cuda, and the space of schedules of random; explore then "
                       "droplet is for CPUs; on a GPU, choose searches of MetaSchedule's space$"):
        planned(["bert"], [""], [0], [("random", 4), (OURS, 4), (RIVAL, 4)], 1, "cuda")
    with pytest.raises(ValueError, match="the space of schedules of random"):
        run_search(SearchJob(SMALL["matmul"], "random", 4, target="cuda"), tmp_path)
    assert not list(tmp_path.iterdir())
    assert all(job.target == "cuda" for jobs in planned(["bert"], [""], [0], [(RIVAL, 4)], 1, "cuda") for job in jobs)


class DrawnLab:
    """In the place of KernelLab: everything takes seven seconds."""

    def __init__(self, kernel, threads, target):
        self.seconds = 7.0

    def close(self):
        """Nothing is open."""

    def measure_rounds(self, jobs, rounds):
        return np.full((rounds, len(jobs)), self.seconds)

    def measure(self, jobs):
        return [(self.seconds, "")] * len(jobs)


@tvm_test
def test_searches_and_races_are_written_once_and_read_afterwards(tmp_path, monkeypatch):
    kernel = SMALL["batch matmul"]
    run_search(SearchJob(kernel, "random", 3), tmp_path)                  # shorter than the next: not in the race
    run_search(SearchJob(kernel, DESCENT, 3), tmp_path)                   # shorter, too, but it begins otherwise
    jobs = [SearchJob(kernel, search, 6) for search in SEARCHES]
    found = [run_search(job, tmp_path) for job in jobs]
    counts = {search: len(one["seconds"]) for search, one in zip(SEARCHES, found)}
    assert {counts[search] for search in set(SEARCHES) - {DESCENT}} == {6} and all(one["winners"] for one in found)
    assert 2 <= counts[DESCENT] <= 6                                      # it ends where no neighbour is better
    for one in found:                                                     # what is told is what was measured
        winner, = one["winners"].values()
        assert (winner in one["codes"]) if one["strategy"] in OUR_SPACE else isinstance(winner, str)
    assert starts_left(kernel, 0, 1, tmp_path) == 3
    race = run_race(kernel, 0, 1, tmp_path, rounds=2)
    assert [starts_left(kernel, 0, 1, tmp_path, starts=starts) for starts in (1, 3, 5)] == [0, 0, 2]
    entries = {(one["strategy"], one["measurements"]): one for one in race["entries"]}
    assert entries.keys() == {(name, 6) for name in SEARCHES} | {(DESCENT, 3), (UNTUNED, 0), (PYTORCH, 0)}
    assert len(entries) == len(race["entries"]) and np.isfinite([one["again"][0] for one in race["entries"]]).all()
    plain = found[SEARCHES.index("random")]
    assert tuple(entries["random", 6]["schedule"]) == tuple(plain["codes"][int(np.argmin(plain["seconds"]))])
    tried = Trials(np.array(found[0]["seconds"]), None, [*map(tuple, found[0]["codes"])])
    assert tuple(entries[OURS, 6]["schedule"]) == tried.winner(3)[0]
    monkeypatch.setattr("lab.kernels.searches.KernelLab", None)
    assert [run_search(job, tmp_path) for job in jobs] == found and run_race(kernel, 0, 1, tmp_path, rounds=2) == race
    table = race_table(tmp_path)
    assert len(table) == len(entries) and set(table["cpu"]) == {race["machine"]["cpu"]}
    monkeypatch.setattr("lab.kernels.searches.KernelLab", DrawnLab)          # the missing starts are run alone
    longer = run_race(kernel, 0, 1, tmp_path, rounds=2, starts=5)
    assert longer["starts"] == 5 and longer["race"] == race["race"] and len(longer["entries"]) == len(race["entries"])
    for one, before in zip(longer["entries"], race["entries"]):
        assert one == {**before, "again": before["again"] + [7.0] * (2 if one["strategy"] == "untuned" else 4)}
    monkeypatch.setattr("lab.kernels.searches.KernelLab", None)
    assert run_race(kernel, 0, 1, tmp_path, rounds=2) == longer
    built = []

    class CutLab(DrawnLab):
        """The second start is interrupted."""

        def measure_rounds(self, jobs, rounds):
            built.append(self)
            return super().measure_rounds(jobs, rounds) if len(built) < 2 else os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.setattr("lab.kernels.searches.KernelLab", CutLab)
    with pytest.raises(KeyboardInterrupt):
        run_race(kernel, 0, 1, tmp_path, rounds=2, starts=8)
    assert starts_left(kernel, 0, 1, tmp_path, starts=8) == 2                    # the first start is kept
    monkeypatch.setattr("lab.kernels.searches.KernelLab", None)
    path = search_path(tmp_path, jobs[0])                                 # this search was made again, in another time
    path.write_text(json.dumps(found[0] | {"elapsed": [2 * known for known in found[0]["elapsed"]]}))
    with pytest.raises(TypeError):
        run_race(kernel, 0, 1, tmp_path, rounds=2)


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


@tvm_test
def test_the_exponential_of_softmax_agrees_with_numpy():
    import tvm
    from tvm import te

    from lab.kernels.definitions import _exponential
    values = np.linspace(-110, 0, 5001, dtype=np.float32)
    x = te.placeholder(values.shape, "float32", "x")
    out = te.compute(values.shape, lambda i: _exponential(x[i]), "out")
    run = tvm.compile(tvm.IRModule({"main": te.create_prim_func([x, out])}), "llvm").jit()
    answer = tvm.runtime.tensor(np.zeros_like(values))
    run["main"](tvm.runtime.tensor(values), answer)
    known = np.exp(np.maximum(values, -87).astype(np.float64))
    np.testing.assert_allclose(answer.numpy(), known, rtol=5e-6)
    assert answer.numpy()[-1] == 1


@tvm_test
@pytest.mark.parametrize("kind", SMALL)
def test_pytorch_is_measured_by_the_lab_and_computes_what_numpy_does(kind, labs):
    (seconds, fault), = labs(kind).measure([PYTORCH])
    assert fault == "" and 0 < seconds < np.inf


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
    needed = measurements_needed(seconds[np.argsort(cost, kind="stable")], seconds.min(), 0.0)
    assert needed < measurements_needed(seconds, seconds.min(), 0.0) or needed == 1


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


def test_trees_learn_once_from_the_same_measurements(monkeypatch):
    monkeypatch.setattr(kernel_carried, "_FITTED", {})
    *known, (kernel, codes, seconds) = drawn_layers()
    trees = fit_known(known)
    assert fit_known(drawn_layers()[:-1]) is trees
    assert np.array_equal(carried_cost(trees, kernel)(codes), carried_cost(fit_carried(known), kernel)(codes))
    others = [known[:1], known[1:], [(kernel, codes, seconds)], [(kernel, codes, seconds[::-1])],
              [(known[0][0], codes, seconds)]]
    assert len({id(one) for one in [trees, *map(fit_known, others)]}) == 6
    assert len(kernel_carried._FITTED) == kernel_carried.MOST_FITTED and fit_known(known) is not trees


@each_kind
def test_schedules_of_every_kind_have_the_same_numbers(kernel):
    codes = measured(kernel)[0]
    numbers = schedule_numbers(kernel, codes)
    assert numbers.shape == (12, schedule_numbers(SMALL["softmax"], measured(SMALL["softmax"])[0]).shape[1])
    assert np.isfinite(numbers).all() and len(np.unique(numbers, axis=0)) > 6


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


@pytest.mark.parametrize("seconds, needed", [([9.0, 1.05, 1.0], 2), ([9.0, 8.0], 3), ([1.0], 1), ([], 1)])
def test_measurements_needed_are_counted_until_one_is_within_5_percent(seconds, needed):
    assert measurements_needed(seconds, 1.0) == needed


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
    return {"kernel": kernel, "seed": seed, "starts": 3, "entries": entries,
            "machine": {"cpu": "a CPU", "threads": 1, "tvm": "0", "torch": "0", "date": "1970-01-01"}}


def test_a_table_holds_the_medians_of_the_longest_race_of_a_kernel_and_seed(tmp_path):
    short, long = drawn_race(random=9.0), drawn_race(**{OURS: 1.0, "random": 2.0})
    for name, race in (("z", short), ("a", long), ("b", drawn_race(seed=1, random=3.0))):
        (tmp_path / f"race_{name}.json").write_text(json.dumps(race))
    table = race_table(tmp_path)
    assert table[["strategy", "seed", "ms", "low", "high"]].values.tolist() == [
        ["random", 1, 6.0, 4.5, 7.5], [OURS, 0, 2.0, 1.5, 2.5], ["random", 0, 4.0, 3.0, 5.0]]
    assert table["schedule"].tolist() == ["", "1 0", ""]


def test_a_race_of_an_older_definition_of_a_layer_does_not_count(tmp_path):
    layer = dict((kernel.name, kernel) for kernel, _ in network_layers("bert"))["softmax 1536x128"]
    old, new = ({**drawn_race(layer.name, **ms), "definition": name} for name, ms in (
        ("other", {OURS: 1.0, "random": 2.0}), (definition(layer), {OURS: 4.0})))
    for name, race in (("a", old), ("b", new)):
        (tmp_path / f"race_{name}.json").write_text(json.dumps(race))
    assert race_table(tmp_path)["ms"].tolist() == [8.0]
    (tmp_path / "race_b.json").unlink()
    assert race_table(tmp_path).empty


def test_a_longer_race_with_fewer_starts_replaces_no_other(tmp_path):
    for name, race in (("a", drawn_race(random=9.0)), ("b", {**drawn_race(**{OURS: 1.0, "random": 2.0}), "starts": 1})):
        (tmp_path / f"race_{name}.json").write_text(json.dumps({**race, "race": name}))
    assert race_table(tmp_path)[["race", "ms"]].values.tolist() == [["b", 2.0], ["b", 4.0], ["a", 18.0]]


def test_a_kernel_that_exceeds_the_limit_takes_infinity_and_spoils_no_other_number(tmp_path):
    race = drawn_race(untuned=1.0, random=9.0)
    for again in ([np.inf], [np.inf, np.inf, np.inf, 1.0], [np.inf, np.inf]):
        race["entries"][0]["again"] = again
        (tmp_path / "race_1.json").write_text(json.dumps(race))
        race_table(tmp_path).to_csv(tmp_path / "races.csv", index=False)
        slow, fast = read_races(tmp_path / "races.csv")[["low", "ms", "high"]].values.tolist()
        assert slow[1:] == [np.inf] * 2 and fast == [13.5, 18.0, 22.5]


def test_several_threads_make_another_machine(tmp_path):
    one, four = drawn_race(random=9.0), drawn_race(random=1.0)
    four["machine"]["threads"] = 4
    searches = [{"kernel": "a", "seed": 0, "machine": race["machine"], "strategy": "random", "seconds": [1.0, seconds],
                 "winners": {"50": "a module"}} for race, seconds in ((one, 0.9), (four, 0.1))]
    for name, found in zip(("race_1", "race_2", "x", "y"), (one, four, *searches)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    assert race_table(tmp_path).set_index("cpu")[["ms", "needed", "seen"]].to_dict("index") == {
        "a CPU": {"ms": 18.0, "needed": 2, "seen": 900}, "a CPU, 4 threads": {"ms": 2.0, "needed": 2, "seen": 100}}


def test_needed_counts_until_within_5_percent_of_the_lowest_that_any_search_saw(tmp_path):
    race = drawn_race(**{OURS: 1.0, "random": 2.0, PYTORCH: 3.0})
    searches = [{"kernel": "a", "seed": 0, "machine": race["machine"], "strategy": strategy, "seconds": seconds}
                for strategy, seconds in ((OURS, [5.0, 1.04, 1.0]), ("random", [5.0, 4.0]), ("random", [5.0]))]
    searches = [one | {"winners": {}} for one in searches]
    for name, found in zip(("race_1", "x", "y", "z"), (race, *searches)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    needed = dict(race_table(tmp_path)[["strategy", "needed"]].values)
    assert needed == {OURS: 2, "random": 3, PYTORCH: 0}


def test_a_table_says_what_the_search_saw_of_its_winner(tmp_path):
    """The mean of the winner's own trials where codes tell which these are; else the shortest trial."""
    race = drawn_race(**{OURS: 1.0, RIVAL: 2.0, PYTORCH: 3.0})
    about = {"kernel": "a", "seed": 0, "machine": race["machine"], "seconds": [5.0, 1.0, 2.0, 9.0]}
    searches = [about | {"strategy": OURS, "winners": {"50": [1, 0]}, "codes": [[0, 0], [1, 0], [1, 0], [1, 1]]},
                about | {"strategy": RIVAL, "winners": {"50": "a module"}},
                about | {"strategy": RIVAL, "seconds": [0.1], "winners": {"1": "a module"}}]
    for name, found in zip(("race_1", "x", "y", "z"), (race, *searches)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    seen = dict(race_table(tmp_path)[["strategy", "seen"]].values)
    assert seen[OURS] == 1500 and seen[RIVAL] == 1000 and np.isnan(seen[PYTORCH])
    (tmp_path / "x.json").unlink()                                        # what is not known is not 0
    lost = race_table(tmp_path).set_index("strategy")
    assert pd.isna(lost.loc[OURS, ["needed", "seen"]]).all() and lost.loc[PYTORCH, "needed"] == 0


def test_a_later_race_replaces_the_earlier_ones_that_it_covers_and_leaves_the_others():
    rows = {"kernel": ["a", "a", "b"], "strategy": ["x", "y", "x"], "measurements": 50, "seed": 0, "race": "1",
            "cpu": "c", "threads": 1, "tvm": "0"}
    old, again = pd.DataFrame(rows | {"ms": [1, 2, 3]}), pd.DataFrame(rows | {"ms": [4, 5, 6]}).iloc[:2]
    wider = pd.concat([again, again.iloc[:1].assign(strategy="z", ms=7)]).assign(race="2")
    same = ["kernel", "race", "ms"]
    assert merged_races(old, again)[same].values.tolist() == [["b", "1", 3], ["a", "1", 4], ["a", "1", 5]]
    assert merged_races(old, wider)[same].values.tolist() == [["b", "1", 3], *(["a", "2", ms] for ms in (4, 5, 7))]
    fewer = wider.iloc[1:].assign(race="3")                               # without x, so x and y of the old race stay
    assert merged_races(old, fewer)[same].values.tolist() == [*old[same].values.tolist(), ["a", "3", 5], ["a", "3", 7]]
    assert merged_races(wider, fewer)["race"].tolist() == ["2"] * 3 + ["3"] * 2
    assert merged_races(fewer, wider)["race"].tolist() == ["2"] * 3       # in this order it is covered
    assert len(merged_races(old, again.assign(cpu="another"))) == 5
    assert merged_races().empty and merged_races(old).equals(old)
    whole = old.astype({"measurements": int})
    pd.testing.assert_frame_equal(merged_races(whole, pd.DataFrame()), whole)          # whole numbers stay whole


RACES = pd.DataFrame([(kernel, strategy, count, seed, "1", "a CPU", ms, seconds) for seed in (0, 1)
    for kernel, strategy, count, ms, seconds in (
        ("matmul 128x768x768", "x", 50, 1.0 + seed, 10.0), ("matmul 128x768x768", "y", 50, 2.0 + 2 * seed, 20.0),
        ("layer norm 128x768", "x", 50, 3.0, 10.0), ("layer norm 128x768", "y", 50, 3.1, 40.0),
        ("softmax 1536x128", "x", 50, 1.0, 5.0))],
    columns=["kernel", "strategy", "measurements", "seed", "race", "cpu", "ms", "seconds"])


def test_searches_are_compared_by_the_geometric_mean_over_layers_that_have_both():
    row, = compare_searches(RACES, [(("x", 50), ("y", 50)), (("x", 50), ("z", 50))]).to_dict("records")
    assert row["ratio"] == pytest.approx(math.sqrt(0.5 * 3.0 / 3.1)) and row["low"] <= row["ratio"] <= row["high"]
    assert (row["one"], row["other"], row["layers"], row["runs"]) == ("x, 50", "y, 50", 2, 4)
    assert (row["faster"], row["ties"], row["slower"]) == (1, 1, 0)
    assert row["time"] == pytest.approx(40 / 120)


def test_ratios_are_shown_with_their_intervals_and_search_times_where_they_are_known():
    table = pd.DataFrame({"one": ["x", "y"], "ratio": [0.9, 1.23456], "low": [0.8, 1.0], "high": [1.0, 1.5],
                          "layers": [4, 5], "time": [0.21, np.nan]})
    shown = readable_ratios(table, "size")
    assert [*shown] == ["one", "size", "layers", "search time"] and shown.values.tolist() == [
        ["x", "0.900 (0.800 to 1.000)", 4, "0.21"], ["y", "1.235 (1.000 to 1.500)", 5, ""]]
    alone = readable_ratios(pd.DataFrame({"ratio": [0.5], "low": [np.nan], "high": [np.nan]}))
    assert alone.values.tolist() == [["0.500"]]


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
    pairs = [(("x", 50), ("y", 50)), (("z", 50), ("y", 50)), (("z", 50), ("x", 50))]
    before, (same, third) = compare_searches(RACES, pairs), compare_searches(races, pairs).to_dict("records")
    assert before.to_dict("records") == [same]               # no race has y and z
    assert third["ratio"] == pytest.approx(2) and (third["layers"], third["runs"], third["time"]) == (3, 6, 2)
    sums, = network_sums(races, ["bert"], [("x", 50), ("y", 50), ("z", 50)]).to_dict("records")
    old, = network_sums(RACES, ["bert"], [("x", 50), ("y", 50)]).to_dict("records")
    assert sums["layers"] == 2 and sums["z, 50"] == pytest.approx(2 * sums["x, 50"])
    assert sums["x, 50"] == pytest.approx(5.5 * old["x, 50"])             # the mean over both days
    row, = compare_networks(races, ["bert"], ("y", 50), ("x", 50)).to_dict("records")
    assert row == compare_networks(RACES, ["bert"], ("y", 50), ("x", 50)).to_dict("records")[0]


def test_complete_races_have_every_entry():
    other = RACES[RACES["strategy"] == "x"].assign(race="2")
    races = pd.concat([RACES, other])
    both = complete_races(races, [("x", 50), ("y", 50)])
    slow = [race for _, race in races.groupby(["kernel", "seed", "race"])
            if {("x", 50), ("y", 50)} <= {*zip(race["strategy"], race["measurements"])}]
    assert len(both) and sorted(both["ms"]) == sorted(pd.concat(slow)["ms"]) and set(both["race"]) == set(RACES["race"])
    assert complete_races(races, [("x", 50), ("no", 50)]).empty


def test_names_of_races_are_texts_and_tables_without_rows_leave_the_types_as_they_are(tmp_path):
    races = RACES.assign(race="00000012", seen=np.nan, needed=7)
    races.to_csv(tmp_path / "races.csv", index=False)
    found = read_races(tmp_path / "races.csv")
    assert set(found["race"]) == {"00000012"} and set(every_form(found, ["x"], "any")["race"]) == {"00000012, x"}
    pd.testing.assert_frame_equal(stacked([found[:0], found, found[:0]]), found)
    assert stacked([found[:0]] * 2).columns.equals(found.columns) and stacked([found[:0]] * 2).empty


def test_each_layer_has_the_newest_form_that_its_machine_has_measured():
    rows = [(cpu, kernel, form) for cpu, kernel, forms in (
        ("a CPU", "one", "new old random"), ("a CPU", "two", "old oldest random"), ("b CPU", "one", "oldest random"),
        ("b CPU", "two", "random")) for form in forms.split()]
    races = pd.DataFrame(rows, columns=["cpu", "kernel", "strategy"]).assign(ms=np.arange(len(rows)))
    slow = []
    for row in races.to_dict("records"):
        rivals = {form for cpu, kernel, form in rows if (cpu, kernel) == (row["cpu"], row["kernel"])}
        newest = next((form for form in ("new", "old", "oldest") if form in rivals), None)
        if row["strategy"] in ("random", newest):
            slow.append({**row, "strategy": "random" if row["strategy"] == "random" else "x"})
    shuffled = races.sample(frac=1, random_state=0).set_index(np.full(len(races), 7))     # no use of order or index
    found = newest_forms(shuffled, ["new", "old", "oldest"], "x").sort_values("ms", ignore_index=True)
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


def test_a_picture_of_many_layers_can_be_of_the_ends_alone():
    races = pd.concat([RACES.assign(kernel=f"layer {n}", ms=RACES["ms"].where(RACES["strategy"] != "x", 1.0 + n))
                       for n in range(6)])
    ax = draw_layers(races, [("x", 50)], base=("y", 50), ends=2)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["layer 5", "layer 4", "layer 1", "layer 0"]


def test_networks_are_compared_by_their_sums_and_their_search_times():
    row, = compare_networks(RACES, ["bert", "vgg16"], ("y", 50), ("x", 50)).to_dict("records")
    sums, = network_sums(RACES, ["bert"], [("x", 50), ("y", 50)]).to_dict("records")
    assert row["ratio"] == pytest.approx(sums["y, 50"] / sums["x, 50"]) and row["time"] == pytest.approx(60 / 20)
    assert [row[name] for name in ("cpu", "layers", "of", "faster", "ties", "slower", "loses on")] == [
        "a CPU", 2, 7, 0, 1, 1, "matmul 128x768x768"]
    none = compare_networks(RACES, ["bert"], ("x", 50), ("z", 50))
    assert none.empty and [*none] == [*row]


def test_a_search_time_that_is_not_known_leaves_the_kernel_times_alone(tmp_path):
    lost = RACES.assign(seconds=RACES["seconds"].where(RACES["strategy"] == "y"), seen=1.0, needed=pd.NA, schedule="")
    lost.to_csv(tmp_path / "races.csv", index=False)
    lost = read_races(tmp_path / "races.csv")                             # what is not known is not 0
    for compare in (compare_searches, lambda races, pairs: compare_networks(races, ["bert"], *pairs[0])):
        (before,), (after,) = (compare(races, [(("y", 50), ("x", 50))]).to_dict("records") for races in (RACES, lost))
        assert before.pop("time") == 3 and np.isnan(after.pop("time")) and before == after
    told = search_progress(lost, ["x", "y"], ("y", 50)).set_index("strategy")["seconds"]
    assert np.isnan(told["x"]) and told["y"] == 30


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
    known, = compare_searches(old, [((FORMS[2], 50), ("y", 50))]).to_dict("records")
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
