"""Measurements: each configuration's failure is its own, drift is divided out, a killed command loses nothing."""
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from kit.data import DataError
from kit.programs import BenchError, BenchSettings, MeasureSettings, measure, program_from_jax, timing_child
from kit.programs.measure import _Journal, _measure_block
from kit.programs.timing import DEVICES, Bench, _exported
from kit.programs.timing_child import LEAST, MOST, difference

jax = pytest.importorskip("jax", reason="no JAX: pip install '.[own]'")
jnp = jax.numpy

SHORT = BenchSettings(seconds=0.01, compile_limit=60, run_limit=60)
rng = np.random.default_rng(0)
GIVEN = tuple(rng.normal(size=size).astype(np.float32) for size in ((5, 7), (7, 11), (11, 3)))


def chain(a, b, c):
    return {"out": jnp.tanh(jnp.tanh(a @ b) @ c), "count": jnp.sum(a > 0)}


@pytest.fixture(scope="module")
def program():
    return program_from_jax(chain, *GIVEN, tie=False)


def test_a_bench_times_configurations_on_its_own_cores(program):
    with Bench(program, GIVEN, SHORT) as bench:
        for code in ([3, 4], [0, 0]):
            found = bench.time(code)
            assert 0 < found["ns"] <= found["median"] and LEAST <= found["samples"] <= MOST and found["spread"] >= 0
        process = psutil.Process(bench.child.pid)
        assert process.cpu_affinity() == [max(os.sched_getaffinity(0))]
        files = [path.suffix for path in os.scandir(bench.folder.name) if path.name.endswith(".pkl")]
        assert not files
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


class FailingBench(Bench):
    module = "failing_child"


@pytest.mark.parametrize("first, words", [
    (1, "compiling ended the process (-6)"), (2, "compiling took longer than 3 s"), (3, "ValueError: no such layout"),
    (4, "running ended the process (3): it said nothing"), (5, "running took longer than 3 s"),
    (6, "running took more than 1 GiB of memory"), (7, "result 0 is not the default's")])
def test_a_configuration_that_fails_fails_alone(program, first, words, monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    with FailingBench(program, GIVEN, SHORT) as bench:
        bench.time_default()
        bench.settings = replace(SHORT, compile_limit=60 if first > 2 else 3, run_limit=3 if first == 5 else 60,
                                 memory_gib=1)
        assert words in bench.time([first, 0])["fault"]
        bench.settings = SHORT
        assert words in bench.time([first, 0])["fault"]                  # without trying again
        assert "fault" not in bench.time([8, 0])


def test_a_program_that_does_not_run_is_named(program):
    with Bench(program, GIVEN, BenchSettings(compile_limit=1e-3)) as bench:
        with pytest.raises(BenchError, match="chain: without layouts set it fails on cpu .compiling took longer than"):
            bench.time_default()


def test_arguments_that_do_not_fit_are_refused(program):
    with pytest.raises(ValueError, match="chain: args are not of the shapes and types"):
        Bench(program, GIVEN[:2])


@pytest.mark.parametrize("settings, words", [
    (dict(device="npu"), "device is 'npu'; expected 'cpu' or 'gpu' or 'tpu'"), (dict(threads=0), "threads is 0"),
    (dict(memory_gib=0), "memory_gib is 0; expected a number above 0")])
def test_settings_are_checked(settings, words):
    with pytest.raises(ValueError, match=words):
        BenchSettings(**settings)


@pytest.mark.parametrize("own, known, words", [
    ([1.0, 2.0], [1.0, 2.001], ""), ([1.0, 2.0], [1.0, 2.01], "differs"), ([1e-3, 2.0], [0.0, 2.0], ""),
    ([np.nan, 1.0], [np.nan, 1.0], ""), ([np.nan, 1.0], [1.0, 1.0], "not finite"), ([np.inf], [np.inf], ""),
    ([], [], ""), ([0.0], [0.0], "")])
def test_results_are_compared_within_the_tolerance_of_their_type(own, known, words):
    assert words in difference([np.float32(own)], [np.float32(known)])
    assert bool(words) == bool(difference([np.float32(own)], [np.float32(known)]))
    assert difference([np.array([3])], [np.array([4])]) == "result 0 is not the default's"


def test_a_measurement_is_of_the_samples_that_nothing_disturbed(monkeypatch):
    took, rng = [], np.random.default_rng(0)

    class Clock:
        now = 0

        def perf_counter_ns(self):
            return self.now

        def perf_counter(self):
            return self.now / 1e9
    clock = Clock()

    def run():                              # 5 ms, and in 7 of 10 runs another process has the core for a while
        took.append(round(5e6 * (1 + 1e-3 * rng.random()) + (rng.random() < 0.7) * 1e7 * rng.random()))
        clock.now += took[-1]
    monkeypatch.setattr(timing_child, "time", clock)
    found = timing_child.timed(run, 10.0)
    assert 5e6 <= found["ns"] <= 5.01e6 and found["spread"] <= 0.005 and found["median"] > 5.1e6
    assert found["samples"] == len(took) - 1 < MOST
    assert timing_child.timed(run, 0.0)["samples"] == LEAST


class FakeBench:
    """A bench whose times are known, on a machine that becomes slower and slower, with sudden jumps."""

    def __init__(self, codes, speed):
        self.true, self.calls, self.speed = {tuple(code): 1e6 * (2 + i) for i, code in enumerate(codes)}, 0, speed

    def _now(self):
        self.calls += 1
        return self.speed(self.calls)

    def compile(self, code):
        return ""

    def time(self, code):
        ns = self.true[tuple(code)] * self._now()
        return {"ns": ns, "median": ns, "spread": 0.0, "samples": 5}

    def time_default(self):
        return 1e6 * self._now()

    def forget(self):
        pass


class Bar:
    def update(self, count):
        pass


@pytest.mark.parametrize("passes", [1, 3])
def test_drift_is_divided_out_and_jumps_are_measured_again(tmp_path, passes):
    codes = np.arange(30)[:, None]
    settings = MeasureSettings(passes=passes)

    def speed(call):
        return 1 + 0.003 * call + (call > 17) + 2 * (40 <= call < 46)
    bench, journal = FakeBench(codes, speed), _Journal(tmp_path / "rows.jsonl", {})
    base = journal.base(bench)
    _measure_block(bench, codes, journal.missing(30, passes), base, settings, journal, Bar())
    found = journal.measurements(codes, passes)
    true = np.array([*bench.true.values()]) * base / 1e6
    np.testing.assert_allclose(found.passes, np.repeat(true[:, None], passes, 1), rtol=0.02)
    assert journal.missing(30, passes) == [] and not found.faults
    orders = [[place for place, own in journal.rows if own == p] for p in range(passes)]
    assert all(sorted(order) == list(range(30)) for order in orders) and len({*map(tuple, orders)}) == passes


def test_what_never_settles_is_kept_with_its_drift(tmp_path):
    codes, journal = np.arange(3)[:, None], _Journal(tmp_path / "rows.jsonl", {})
    bench = FakeBench(codes, lambda call: 1.5 ** call)
    _measure_block(bench, codes, journal.missing(3, 1), 1e6, MeasureSettings(passes=1), journal, Bar())
    assert len(journal.rows) == 3 and all(row["drift"] > 0.03 for row in journal.rows.values())


SCRIPT = """
import sys
import numpy as np
sys.path[:0] = sys.argv[2:]
from test_measure import GIVEN, SHORT, chain
from kit.programs import MeasureSettings, measure, program_from_jax
program = program_from_jax(chain, *GIVEN, tie=False)
codes = np.random.default_rng(5).integers(program.dims, size=(24, 2))
measure(program, GIVEN, codes, sys.argv[1], MeasureSettings(passes=3, block=8), SHORT, progress=False)
"""


def test_a_command_that_is_killed_at_drawn_moments_loses_and_doubles_nothing(project, tmp_path):
    moments, before, cut = np.random.default_rng(6).uniform(0, 12, size=10), b"", 0
    path = tmp_path / "rows.jsonl"
    for moment in [*moments, None]:
        child = subprocess.Popen([sys.executable, "-c", SCRIPT, tmp_path, project, project / "tests"],
                                 start_new_session=True)
        if moment is None:
            assert child.wait() == 0
        else:
            end = time.monotonic() + moment + 2
            while time.monotonic() < end and child.poll() is None:
                time.sleep(0.01)
            child.send_signal(signal.SIGKILL)
            child.wait()
        after = path.read_bytes() if path.exists() else b""
        assert after.startswith(before[:before.rfind(b"\n") + 1])
        cut, before = cut + (after != before), after
        if moment is not None:                                   # as if the system had ended in the middle of a line
            with open(path, "ab") as file:
                file.write(b'{"place": 3, "pa')
            before += b'{"place": 3, "pa'
    about, *rows = [json.loads(line) for line in before.splitlines()]
    keys = [(row["place"], row["pass"]) for row in rows if "base" not in row]
    assert sorted(keys) == [(i, p) for i in range(24) for p in range(3)] and about["device"] == "cpu"
    assert len([row for row in rows if "base" in row]) == 1 and cut > 1


def test_a_folder_of_other_measurements_is_refused(program, tmp_path):
    codes = [[1, 2], [0, 0], [1, 2]]
    found = measure(program, GIVEN, codes, tmp_path, MeasureSettings(passes=1), SHORT, progress=False)
    runtime, places = found.runtime()
    assert places.tolist() == [0, 1, 2] and runtime.dtype == np.int64 and (runtime > 0).all()
    assert {"machine", "threads", "flags", "jax", "date", "default_ns"} <= found.about.keys()
    again = measure(program, GIVEN, codes, tmp_path, MeasureSettings(passes=1), SHORT, progress=False)
    np.testing.assert_array_equal(found.passes, again.passes)
    with pytest.raises(DataError, match="holds measurements with codes"):
        measure(program, GIVEN, codes[:2], tmp_path, MeasureSettings(passes=1), SHORT)
    with pytest.raises(DataError, match="holds measurements with settings"):
        measure(program, GIVEN, codes, tmp_path, bench=SHORT)
    (tmp_path / "rows.jsonl").write_text("{}\n[\n")
    with pytest.raises(DataError, match="is damaged"):
        measure(program, GIVEN, codes, tmp_path, bench=SHORT)


def test_failures_are_kept_as_such(program, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    monkeypatch.setattr(Bench, "module", "failing_child")
    found = measure(program, GIVEN, [[8, 1], [1, 1], [3, 0], [0, 0]], tmp_path, None, SHORT, progress=False)
    assert np.isfinite(found.passes).all(axis=1).tolist() == [True, False, False, True]
    assert found.faults.keys() == {1, 2} and "ended the process" in found.faults[1]
    assert found.runtime()[1].tolist() == [0, 3]


@pytest.mark.parametrize("device", ["cpu", "gpu", "tpu"])
def test_a_program_travels_to_each_device_with_its_layouts(program, device):
    export = pytest.importorskip("jax.export")
    plain, own = (export.deserialize(bytearray(_exported(program, code, device))) for code in ([0, 0], [3, 4]))
    assert own.platforms == (DEVICES[device],)
    assert "LayoutConstraint" in own.mlir_module() and "LayoutConstraint" not in plain.mlir_module()
