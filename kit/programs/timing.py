"""A bench on which configurations of one JAX program are compiled and timed, in a process of their own.

The program travels as a file of `jax.export`, and numbers as bytes; nothing is pickled. The other process is pinned to
its cores. A configuration that crashes, hangs, takes too much memory or gives another result fails alone: the process
is started again, and the others go on.
"""
import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import psutil

from kit.checks import check_choice, check_number, check_whole
from kit.programs.layouts import configured
from kit.train_parts.records import processor_name

DEVICES = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}        # as JAX calls them
LOOK_SECONDS = 0.25              # how often the memory of the other process is looked at


@dataclass(frozen=True)
class BenchSettings:
    """Where and how long a program is compiled and run."""
    device: str = "cpu"                      # or "gpu", "tpu"
    threads: int = 1                         # of a CPU; each has a core
    seconds: float = 0.5                     # of a measurement, at most; it ends when five samples agree
    compile_limit: float = 120.0             # seconds
    run_limit: float = 30.0                  # seconds of a measurement with its warm-up
    memory_gib: float = 8.0                  # of the other process

    def __post_init__(self):
        check_choice(vars(self), device=tuple(DEVICES))
        check_whole(vars(self), threads=1)
        check_number(vars(self), "a number above 0", "seconds", "compile_limit", "run_limit", "memory_gib")


class BenchError(RuntimeError):
    """The program without layouts set does not run, so nothing can be compared with it."""


class Bench:
    """Times configurations of a JaxProgram with given arguments; a context manager."""
    module = "kit.programs.timing_child"

    def __init__(self, program, args, settings=None):
        self.program, self.settings = program, settings or BenchSettings()
        self.child, self.said, self.default = None, None, tuple(program.written.tolist())
        self.compiled, self.faults = set(), {}               # of the other process; {configuration: why it failed}
        listed, data = _as_bytes(program, args)
        self.folder = tempfile.TemporaryDirectory(prefix="kit_bench_")
        Path(self.folder.name, "inputs.json").write_text(json.dumps(listed))
        Path(self.folder.name, "inputs.bin").write_bytes(data)

    def __enter__(self):
        return self

    def __exit__(self, *fault):
        self.close()

    def compile(self, code):
        """Compile a configuration -> "", or why it failed."""
        code = tuple(map(int, code))
        if code in self.faults:
            return self.faults[code]
        if code not in self.compiled:
            self._start()
            path = Path(self.folder.name, f"{_name(code)}.export")
            if not path.exists():
                path.write_bytes(_exported(self.program, code, self.settings.device))
            answer = self._ask({"do": "compile", "name": _name(code)}, self.settings.compile_limit, "compiling")
            if "fault" in answer:
                self.faults[code] = answer["fault"]
                return answer["fault"]
            self.compiled.add(code)
        return ""

    def time(self, code):
        """Time a configuration -> {"ns", "median", "spread", "samples"}, see timing_child.py, or {"fault": why}."""
        code = tuple(map(int, code))
        if fault := self.compile(code):
            return {"fault": fault}
        request = {"do": "time", "name": _name(code), "seconds": self.settings.seconds}
        answer = self._ask(request, self.settings.run_limit, "running")
        if "fault" in answer:
            self.faults[code] = answer["fault"]
        return answer

    def forget(self):
        """Free the memory of all compiled configurations."""
        if self.child is not None:
            self._ask({"do": "forget"}, self.settings.run_limit, "forgetting")
        self.compiled = self.compiled & {self.default}
        for path in Path(self.folder.name).glob("*.export"):
            path.unlink()

    def time_default(self):
        """Nanoseconds of the program without layouts set; a BenchError if it does not run."""
        answer = self.time(self.default)
        if "fault" in answer:
            raise BenchError(f"{self.program.graph.graph_id}: without layouts set it fails on {self.settings.device} "
                             f"({answer['fault']}); mend the program, or raise the limits of BenchSettings")
        return answer["ns"]

    def restart(self):
        """End the other process; the next request starts a new one, which has compiled nothing."""
        if self.child is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
            self.child.stdin.close()
            self.child.stdout.close()
            self.said.close()
        self.child, self.compiled = None, set()

    def close(self):
        """End the other process and remove its files."""
        self.restart()
        self.folder.cleanup()

    def _start(self):
        if self.child is None:
            self.said = tempfile.TemporaryFile()
            self.child = subprocess.Popen(
                [sys.executable, "-m", self.module, self.folder.name], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self.said, env=_environment(self.settings), start_new_session=True)
            if self.settings.device == "cpu":
                _pin(self.child.pid, self.settings.threads)
            self.compile(self.default)                       # whose results the others must have
            self.time_default()

    def _ask(self, request, limit, doing):
        """Send a request -> the answer; {"fault": why} if the other process does not live to give it."""
        with suppress(BrokenPipeError):
            self.child.stdin.write(json.dumps(request).encode() + b"\n")
            self.child.stdin.flush()
        until = time.monotonic() + limit
        while not select.select([self.child.stdout], [], [], LOOK_SECONDS)[0]:
            if time.monotonic() > until:
                self.restart()
                return {"fault": f"{doing} took longer than {limit:g} s"}
            with suppress(psutil.Error):
                if psutil.Process(self.child.pid).memory_info().rss > self.settings.memory_gib * 2**30:
                    self.restart()
                    return {"fault": f"{doing} took more than {self.settings.memory_gib:g} GiB of memory"}
        line = self.child.stdout.readline()
        if not line.endswith(b"\n"):
            self.child.wait()
            self.said.seek(0)
            words = self.said.read().decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            fault = f"{doing} ended the process ({self.child.returncode}): {words[0]}"[:300]
            self.restart()
            return {"fault": fault}
        return json.loads(line)


def this_machine(settings):
    """What a table of measurements says about the machine and its software."""
    import jax
    import jaxlib
    return {"device": settings.device, "machine": _device_name(settings.device), "threads": settings.threads,
            "flags": _environment(settings)["XLA_FLAGS"], "jax": jax.__version__, "jaxlib": jaxlib.__version__,
            "python": platform.python_version(), "system": platform.platform(), "date": date.today().isoformat()}


def _as_bytes(program, args):
    """The arguments as one string of bytes, and what each part of it is."""
    import jax
    listed, data, given = [], b"", jax.tree.leaves(args)
    expected = [(aval.shape, aval.dtype) for aval in program.traced.in_avals]
    if [(jax.numpy.shape(x), jax.dtypes.result_type(x)) for x in given] != expected:
        raise ValueError(f"{program.graph.graph_id}: args are not of the shapes and types it was traced for")
    for x, (shape, dtype) in zip(given, expected):
        part = np.ascontiguousarray(np.asarray(x, dtype)).tobytes()
        listed.append({"shape": shape, "dtype": dtype.name, "start": len(data), "end": len(data) + len(part)})
        data += part
    return listed, data


def _name(code):
    return "-".join(map(str, code)) if any(code) else "default"


def _exported(program, code, device):
    """A configuration as bytes of `jax.export`: lists of arrays in, lists of arrays out."""
    import jax
    from jax import export
    own = configured(program, code)

    def flat(*args):
        return jax.tree.leaves(own(*jax.tree.unflatten(program.given, args)))
    allowed = [export.DisabledSafetyCheck.custom_call("LayoutConstraint")]
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in program.traced.in_avals]
    exported = export.export(jax.jit(flat), platforms=[DEVICES[device]], disabled_checks=allowed)
    return bytes(exported(*shapes).serialize())


def _environment(settings):
    """The environment of the other process."""
    flags = [os.environ.get("XLA_FLAGS", "")]
    if settings.device == "cpu" and settings.threads == 1:
        flags.append("--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    return {**os.environ, "XLA_FLAGS": " ".join(flags).strip(), "JAX_PLATFORMS": DEVICES[settings.device],
            "NPROC": str(settings.threads), "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _pin(process, threads):
    """Keep a process on the last cores that this one may use; the first ones do more of the system's own work."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process, sorted(os.sched_getaffinity(0))[-threads:])


def _device_name(device):
    """The name of the GPU or of the processor."""
    if device == "gpu":
        with suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                                  text=True, check=True, timeout=60).stdout.splitlines()[0]
    return processor_name()
