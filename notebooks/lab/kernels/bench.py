"""Compile and time kernels on this machine's CPU, each in its own process: a crash ends nothing else.

TVM runs in a child process only. That child has loaded TVM and forks one process per candidate. The candidates of a
batch are compiled on all cores and then timed one after another, while nothing else runs.
"""
import ctypes
import gc
import importlib.util
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import numpy as np
import torch

from kit.search import lowest_confirmed
from kit.train_parts import processor_name
from kit.train_parts.pool import default_workers
from lab.kernels.definitions import kernel_function, kernel_inputs, kernel_result
from lab.kernels.schedules import schedule_kernel

INSTALL = "pip install -r notebooks/requirements-kernels.txt"
CHILD = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); pickle.load(sys.stdin.buffer)()"
REPEAT_SECONDS, TRIAL_SECONDS = 1e-3, 0.03      # per repeat and per measurement, at least one run each
HOPELESS, GLANCE_SECONDS = 1.3, 4e-3            # so many times slower than the best so far: measured for 4 ms alone
MOST_REPEATS = 30
ARGUMENTS = 0, 1, 8, 9                          # so many in a call put the stack at each of its four alignments
BATCH = 16                                      # candidates compiled before the first of them is timed, at most
CLOSE_ENOUGH = 1e-3                             # for float32 sums of products of standard normal numbers
PYTORCH = "PyTorch"                             # the job that measures PyTorch's own kernel


def has_tvm():
    """Whether TVM and cloudpickle are installed."""
    return all(importlib.util.find_spec(name) for name in ("tvm", "cloudpickle"))


class Trials(NamedTuple):
    """The p measurements of a search, in order."""
    seconds: np.ndarray      # (p,) of the kernel; np.inf for a failed trial
    elapsed: np.ndarray      # (p,) seconds since the start of the search
    jobs: list               # what was measured: codes, a scheduled module as JSON, or None for no schedule

    def first(self, count):
        """The first `count` trials."""
        return Trials(*(field[:count] for field in self))

    def winner(self, confirm=1):
        """(job, seconds): the lowest mean of a job's trials, chosen as a search with `confirm` chooses its result."""
        samples = {}
        for job, seconds in zip(self.jobs, self.seconds):
            samples.setdefault(job, []).append(seconds)
        best = list(samples)[lowest_confirmed(list(samples.values()), confirm)]
        return best, float(np.mean(samples[best]))


class NoScheduleRan(RuntimeError):
    """Every schedule of a search failed: it did not compile, crashed, exceeded a limit or computed a wrong result."""


class KernelLab:
    """Measures schedules of one kernel; called with codes, it is an objective for kit.search."""
    # A measurement takes about 30 ms. It is the mean over the four alignments of the stack, of the shortest of up to 7
    # repeats at each. A kernel of more than 7.5 ms runs at fewer alignments, drawn at random; one of more than 30 ms
    # runs once. Caches are not flushed between repeats. A first run is compared with NumPy's result. A schedule that
    # does not compile, crashes, exceeds a limit (seconds per candidate compiled and per measurement) or computes a
    # wrong result costs np.inf.

    def __init__(self, kernel, threads=1, build_limit=15.0, run_limit=10.0):
        self.kernel = kernel
        self.child = TvmChild(_serve_kernel, threads, kernel, build_limit, run_limit)
        self.child.hear()
        self.begin()

    def begin(self):
        """Forget the trials, because a search begins; `tried_since` takes the time that is returned."""
        self.trials, self.fault = [], ""                # (time when known, seconds, codes); why the last one failed
        return time.perf_counter()

    def __call__(self, points):
        """Seconds (k,) of the schedules `points` (k, g)."""
        return np.array([took for took, _ in self.try_jobs([tuple(map(int, point)) for point in points])])

    def try_jobs(self, jobs):
        """As `measure`, noting in `trials` when each result was known: one batch of the child after the other."""
        answers = []
        for i in range(0, len(jobs), BATCH):
            best = min((took for _, took, _ in self.trials), default=np.inf)
            part, known = self.child.ask(jobs[i:i + BATCH], 1, best)[0], time.perf_counter()
            self.trials += [(known, took, job) for job, (took, _) in zip(jobs[i:], part)]
            self.fault = next((fault for _, fault in part if fault), self.fault)
            answers += part
        return answers

    def tried_since(self, start):
        """The trials so far as Trials of a search that began at `start`; NoScheduleRan if all of them failed."""
        if all(took == np.inf for _, took, _ in self.trials):
            raise NoScheduleRan(f"none of {len(self.trials)} schedules of {self.kernel.name} ran: {self.fault}")
        known, seconds, jobs = zip(*self.trials)
        return Trials(np.array(seconds), np.array(known) - start, list(jobs))

    def measure(self, jobs):
        """[(seconds, fault or "")] of jobs; a job is codes, a scheduled module as JSON, None, or PYTORCH."""
        return self.child.ask(jobs, 1, np.inf)[0] if len(jobs) else []

    def measure_rounds(self, jobs, rounds):
        """Seconds (rounds, k): each job once per round, so that a drift of the machine affects all alike."""
        return np.array([[took for took, _ in answers] for answers in self.child.ask(jobs, rounds, np.inf)])

    def close(self):
        """End the child."""
        self.child.close()


class TvmChild:
    """A process that runs `work(line, *args)` with TVM on `threads`, and the other end of its connection `line`."""

    def __init__(self, work, threads, *args):
        if not has_tvm():
            raise ImportError(f"kernels need TVM, which the kit does not install: {INSTALL}")
        import cloudpickle
        self.line, theirs = multiprocessing.Pipe()
        number = theirs.fileno()

        def job():                                      # sent by value, so it may be defined in a notebook
            _end_with_parent()
            work(multiprocessing.connection.Connection(number), *args)
        self.said = tempfile.TemporaryFile()
        few = {"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": "1",
               "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}   # it asks for GPUs, after which no forked process may use them
        self.process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                        stderr=self.said, pass_fds=[number], env={**os.environ, **few},
                                        start_new_session=True)       # an interrupt reaches only this process
        theirs.close()
        with suppress(BrokenPipeError), self.process.stdin as stdin:      # if the child ended, `hear` says why
            stdin.write(pickle.dumps(sys.path) + cloudpickle.dumps(job))

    def hear(self):
        """Receive the next answer."""
        try:
            return self.line.recv()
        except (EOFError, ConnectionResetError) as fault:
            words = self.close().strip().splitlines()[-1:] or ["it said nothing"]
            raise RuntimeError(f"the process with TVM ended by itself: {words[0]}") from fault

    def ask(self, *request):
        """Send a request and receive its answer."""
        with suppress(BrokenPipeError):
            self.line.send(request)
        return self.hear()

    def close(self):
        """End the child and all processes that it started -> what it wrote to stderr."""
        if self.said.closed:
            return ""
        self.line.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)
        with suppress(ProcessLookupError, PermissionError):         # of its candidates, too, if it ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with self.said as said:
            said.seek(0)
            return said.read().decode(errors="replace")


def _end_with_parent():
    """Let the system kill this process when its parent has ended, for whatever reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)      # 1 is PR_SET_PDEATHSIG


def tvm_version():
    """The version of TVM, "" if it is not installed."""
    try:
        return version("apache-tvm") if has_tvm() else ""
    except PackageNotFoundError:                        # one's own build, under another name
        return "unknown"


def kernel_target(threads):
    """TVM's target for the CPU of this machine."""
    import tvm
    return tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": threads})


def this_machine(threads):
    """What a row of a table says about the machine."""
    return {"cpu": processor_name(), "threads": threads, "tvm": tvm_version(),
            "torch": torch.__version__, "date": date.today().isoformat()}


def _serve_kernel(line, kernel, build_limit, run_limit):
    """Work of the child: time a kernel's (jobs, rounds, best seconds so far) until the end."""
    import tvm  # noqa: F401 - once, for all forked processes
    inputs = kernel_inputs(kernel, np.random.default_rng(0))
    known = kernel_result(kernel, inputs)
    gc.freeze()                                         # a candidate's process does not copy all memory to collect it
    line.send("ready")
    while True:
        try:
            jobs, rounds, best = line.recv()
        except EOFError:
            return
        step, answers = len(jobs) if rounds > 1 else BATCH, [[] for _ in range(rounds)]
        for start in range(0, len(jobs), step):
            part = time_batch(jobs[start:start + step], rounds, best, build_limit, run_limit, kernel, inputs, known)
            for row, more in zip(answers, part):
                row += more
        line.send(answers)


def time_batch(jobs, rounds, best, build_limit, run_limit, *about):
    """[(seconds, fault)] of each job, for each round; each job runs in its own process.

    `best`: the lowest seconds so far, or inf; much slower candidates are measured for a shorter time.
    """
    team = _compiled(jobs, build_limit, *about)
    try:
        return [[_turn(one, best, run_limit, rounds > 1) for one in team] for _ in range(rounds)]
    finally:
        for one in team:
            one.process.kill()
            one.process.join()
            one.pipe.close()


def _turn(one, best, limit, again):
    """What a candidate measures in its turn; `again`: it may have another turn."""
    if one.answer is not None:
        return one.answer
    _signal(one.process, signal.SIGCONT)
    with suppress(BrokenPipeError):                     # it has ended since; `_heard` says so
        one.pipe.send(best)
    answer = _heard(one.pipe, limit, "running")
    if answer[0] == np.inf:
        one.answer = answer
    if again and answer[0] < np.inf:
        # until its next turn: the threads of a kernel that has ended look for work in a busy loop for a while, and
        # would take a core from the next candidate
        _signal(one.process, signal.SIGSTOP)
    else:
        one.process.kill()                              # its arrays may take much memory
        one.process.join()
    return answer


def _signal(process, number):
    """Send a signal to a candidate, unless it has ended."""
    if process.exitcode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


@dataclass
class _Candidate:
    """A job in its own process."""
    process: object
    pipe: object
    until: float             # when the limit for compiling is reached
    answer: tuple | None = None          # (inf, fault) as soon as it failed


def _compiled(jobs, limit, *about):
    """Candidates of the jobs, compiled or failed: as many side by side as there are cores, so no core waits."""
    team, busy = [], []
    while len(team) < len(jobs) or busy:
        while len(team) < len(jobs) and len(busy) < default_workers("cpu"):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(
                target=_time_one, args=(theirs, jobs[len(team)], *about), daemon=True)
            process.start()
            theirs.close()
            team.append(_Candidate(process, ours, time.perf_counter() + limit))
            busy.append(team[-1])
        patience = min(one.until for one in busy) - time.perf_counter()
        ready = multiprocessing.connection.wait([one.pipe for one in busy], max(patience, 0))
        for one in [one for one in busy if one.pipe in ready or one.until <= time.perf_counter()]:
            one.answer = _heard(one.pipe, 0, "compiling")
            if one.answer is not None:
                one.process.kill()                      # it must not disturb the measurements of the others
            busy.remove(one)
    return team


def _heard(pipe, seconds, doing):
    """What a candidate says within so many seconds; (inf, fault) if it says nothing or has ended."""
    try:
        return pipe.recv() if pipe.poll(seconds) else (np.inf, f"{doing} took longer than its limit")
    except (EOFError, ConnectionResetError):
        return np.inf, f"{doing} crashed"


def _time_one(pipe, job, kernel, inputs, known):
    """Work of a forked process: compile, answer None when done, and measure whenever told to."""
    _end_with_parent()
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))    # a crash writes no core dump
    try:
        timer = partial(_pytorch_timer, kernel) if job == PYTORCH else partial(_tvm_timer, kernel, job)
        run = timer(inputs, known)
    except Exception as fault:
        pipe.send((np.inf, f"compiling failed: {type(fault).__name__}: {fault}"[:300]))
        return
    pipe.send(None)
    best = pipe.recv()
    apart = np.abs(run.result() - known).max()
    if not apart <= CLOSE_ENOUGH * max(1.0, np.abs(known).max()):
        pipe.send((np.inf, f"the result is wrong by {apart:.1e}"))
        return
    once = run.seconds(1, 1)[0]
    took = _typical(run, once, GLANCE_SECONDS)
    while True:
        pipe.send((_typical(run, once, TRIAL_SECONDS) if took <= HOPELESS * best else took, ""))
        best, once, took = pipe.recv(), run.seconds(1, 1)[0], 0.0


def _typical(run, once, seconds):
    """Seconds of a kernel: the shortest of several runs at each alignment of the stack, and the mean of these.

    The runs take so many seconds together. A kernel that takes longer does not run again: one run took `once` seconds.
    """
    if once >= seconds:
        return once
    number = int(max(1, REPEAT_SECONDS / once))
    repeat = int(np.clip(seconds / (number * once), 1, MOST_REPEATS))
    counts = np.random.default_rng().permutation(ARGUMENTS)[:repeat].tolist()
    return float(np.mean([min(_aligned(count, run.seconds, number, repeat // len(counts))) for count in counts]))


def _aligned(count, call, *args):
    """`call(*args)` at another alignment of the stack, for each `count` of ARGUMENTS of a call in between.

    Where the stack of a process begins is drawn in steps of 16 bytes, and forked processes inherit it. LLVM puts the
    registers that a kernel spills, of 32 or 64 bytes each, there without aligning them. So a kernel with spills may
    take 10 to 25% longer in one process than in another. The counts were found by reading the stack pointer in CPython
    3.10 to 3.13 on Linux, x86-64.
    """
    answers = []
    between = ctypes.CFUNCTYPE(None, *[ctypes.c_long] * count)
    between(lambda *_: answers.append(call(*args)))(*range(count))
    return answers[0]


class _Timer(NamedTuple):
    """A compiled kernel."""
    result: object           # () -> its output, after one run
    seconds: object          # (number, repeat) -> [mean seconds of a run] for each repeat


def _tvm_timer(kernel, job, inputs, known):
    """The timer of a schedule by TVM, compiled; `job` as of KernelLab.measure."""
    import tvm
    if job is None:
        module = tvm.IRModule({"main": kernel_function(kernel)})
    elif isinstance(job, str):
        module = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(tvm.ir.load_json(job))
    else:
        module = schedule_kernel(kernel, job)
    run = tvm.compile(module, kernel_target(int(os.environ["TVM_NUM_THREADS"]))).jit()
    main, tensors = run["main"], []                     # asked for here, because that makes the machine code

    def result():
        tensors[:] = [tvm.runtime.tensor(x) for x in (*inputs, np.full_like(known, np.nan))]
        main(*tensors)
        return tensors[-1].numpy()
    return _Timer(result, lambda number, repeat: run.time_evaluator(
        "main", tvm.cpu(), number=number, repeat=repeat)(*tensors).results)


def _pytorch_timer(kernel, inputs, known):
    """The timer of PyTorch's kernel; the fastest usual form of a layer is taken."""
    from lab.kernels.pytorch import pytorch_calls, run_seconds
    torch.set_num_threads(int(os.environ["TVM_NUM_THREADS"]))
    calls = pytorch_calls(kernel, [torch.from_numpy(x) for x in inputs])

    def result():                                       # chosen here, while no other candidate runs
        calls.sort(key=lambda both: min(run_seconds(both[0], 1, 5)))
        call, back = calls[0]
        return back(call()).numpy().reshape(known.shape)
    return _Timer(result, lambda number, repeat: run_seconds(calls[0][0], number, repeat))
