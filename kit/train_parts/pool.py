"""Run jobs in several processes: the models of an ensemble side by side.

Each process computes with one PyTorch thread, so the results do not depend on the number of processes. Arrays that
jobs share are in memory once for all processes.
"""
import mmap
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import tempfile
import traceback
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing.reduction import recv_handle, send_handle

import torch

from kit.interrupts import deaf_children, follow_parent, without_script

_ALIGNED = 64                    # bytes; where an array may start in a file
_NAME = "kit job"                # of a process, + number
_RUNS_SCRIPT = 93                # exit code of such a process that runs the script and would start processes itself


def default_workers(device):
    """How many models to train at once on "cpu", "cuda" or one GPU "cuda:N": one per CPU core, or one per GPU."""
    if device == "cuda":
        return max(1, torch.cuda.device_count())
    if device != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread():
    """PyTorch computes with one thread: sums of several threads differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_jobs(work, jobs, shared, workers, report=print):
    """Call `work` for each job, each in a process of its own, several at the same time -> results in order.

    `work`: (job, data, report) -> result, a function of a module, because each process imports it. `jobs`: pairs of the
    key of the job's data in `shared`, and the job; put jobs that share data next to each other, because a process holds
    the data of one key at a time. `shared`: {key: data}, sent to a process when its next job needs them; their arrays
    are written to a temporary file without a name, which all processes map. With 1 of `workers` everything runs in this
    process. `report` is called in this process with each line that a job reports. Where the user's script defines
    `work`, or a class of jobs or data, each process runs the script, which then needs `if __name__ == "__main__"`.

    A ValueError if data or a job cannot be sent to another process. An OSError if the folder of temporary files has no
    room. A RuntimeError if a job fails, with its error, or if a process dies; the other processes are then ended.
    """
    workers = min(workers, len(jobs))
    if workers <= 1:
        with one_thread():
            return [work(job, shared[key], report) for key, job in jobs]
    here = multiprocessing.current_process()
    if here.name.startswith(_NAME) and getattr(here, "_inheriting", False):      # it is just starting
        sys.exit(_RUNS_SCRIPT)
    script = nullcontext if _needs_script(work, jobs, shared) else without_script
    context, results, left = multiprocessing.get_context("spawn"), {}, list(enumerate(jobs))[::-1]
    team, held = {}, {}                          # {pipe: process}, {pipe: key of the data that the process holds}
    written = {}                                 # {key: its data as `_written` gives them}
    try:
        for number in range(workers):
            ours, theirs = context.Pipe()
            team[ours] = context.Process(None, _serve, f"{_NAME} {number}", (theirs, work, number), daemon=True)
            with deaf_children(), script():      # one that is just starting would print an error
                team[ours].start()
            theirs.close()                       # so that the pipe ends when the process does
        for pipe, process in team.items():
            _hand_out(pipe, process, left, shared, held, written)
        while len(results) < len(jobs):
            for pipe in multiprocessing.connection.wait(team):
                kind, value = _heard(pipe, team[pipe])
                if kind == "line":
                    report(value)
                elif kind == "error":
                    _raise_if_died(team.values())            # what the dead process left undone may be the error
                    raise RuntimeError(value[0]) from RuntimeError(value[1])
                else:
                    results[value[0]] = value[1]
                    _hand_out(pipe, team[pipe], left, shared, held, written)
    finally:
        for process in team.values():
            process.kill()
            process.join()
        for file, _, _ in written.values():
            file.close()
    return [results[number] for number in range(len(jobs))]


def _needs_script(*things):
    """Whether a pickle of these things names something that the script defines; arrays are not looked at."""
    return b"__main__" in _as_bytes(things, buffer_callback=lambda array: None)


def _hand_out(pipe, process, left, shared, held, written):
    """Send the next job to a process, if one is left, and the job's data, unless the process holds them."""
    if not left:
        return
    number, (key, job) = left.pop()
    new = pipe not in held or held[pipe] != key
    held[pipe] = key
    if new and key not in written:
        written[key] = _written(shared[key])
    message = _as_bytes((number, job, new))
    try:
        pipe.send_bytes(message)
        if new:
            file, *rest = written[key]
            pipe.send_bytes(pickle.dumps(rest))
            send_handle(pipe, file.fileno(), process.pid)
    except ConnectionError:
        process.join()
        _raise_if_died([process])


def _written(data):
    """Data for other processes -> a file with the content of all arrays, where each starts and ends, and the rest."""
    arrays, places = [], []
    rest = _as_bytes(data, buffer_callback=arrays.append)
    file = tempfile.TemporaryFile()
    try:
        for array in arrays:
            start = -(-file.tell() // _ALIGNED) * _ALIGNED
            file.seek(start)
            file.write(array.raw())
            places.append((start, file.tell()))
        file.write(b"\0")                        # an empty file cannot be mapped
        file.flush()
    except OSError as fault:
        file.close()
        raise OSError(fault.errno, f"{fault.strerror}: arrays for several processes need more room here; TMPDIR names "
                      "another folder", tempfile.gettempdir()) from fault
    return file, places, rest


def _mapped(descriptor, places, rest):
    """The data of `_written`; what is changed in its arrays is changed in this process alone."""
    whole = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    os.close(descriptor)
    return pickle.loads(rest, buffers=[whole[start:end] for start, end in places])


def _as_bytes(thing, **options):
    """Pickle for another process. PyTorch's own way shares memory: all processes would train the same weights."""
    try:
        return pickle.dumps(thing, 5, **options)
    except (pickle.PicklingError, AttributeError, TypeError) as fault:
        raise ValueError(f"cannot be sent to another process: {fault}; define it at the top of a module") from fault


def _heard(pipe, process):
    """The next message of a process; RuntimeError if it died."""
    try:
        return pickle.loads(pipe.recv_bytes())
    except (EOFError, ConnectionResetError):
        process.join()
        _raise_if_died([process])


def _raise_if_died(processes):
    """RuntimeError if one of the processes has died."""
    for process in processes:
        process.join(0.1)                        # one that is just dying
        if process.exitcode == _RUNS_SCRIPT:
            raise RuntimeError("a job needs a function or class of this script, so each process runs the script from "
                               'its start; put all but definitions below `if __name__ == "__main__":`')
        if process.exitcode is not None:
            cause = "; out of memory?" if process.exitcode == -signal.SIGKILL else "; see its output above"
            raise RuntimeError(f"a training process ended with exit code {process.exitcode}{cause}")


def _serve(pipe, work, number):
    """What each process does: take jobs and answer with their results, until it is ended."""
    follow_parent()
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_device(number % torch.cuda.device_count())
    data = None

    def say(kind, value):
        pipe.send_bytes(pickle.dumps((kind, value)))
    while True:
        place, job, new = pickle.loads(pipe.recv_bytes())
        try:
            if new:
                data = None                              # free the memory before the next data come
                places, rest = pickle.loads(pipe.recv_bytes())
                data = _mapped(recv_handle(pipe), places, rest)
            say("done", (place, work(job, data, partial(say, "line"))))
        except Exception as fault:
            say("error", (f"{type(fault).__name__}: {fault}", traceback.format_exc()))
