"""One process or several: which one this is, its device, sums over all processes, and how to start them."""
import multiprocessing
import multiprocessing.connection
import os
import pickle
import sys
import tempfile
import threading
import traceback
import zlib
from typing import NamedTuple

import torch
import torch.distributed
import torch.multiprocessing


class Team(NamedTuple):
    """The processes that train one model together, seen from one of them."""
    rank: int                # of this process, 0..size - 1; process 0 reports and writes
    size: int
    device: torch.device     # of this process


def join_team(device):
    """Meet the other processes, if there are any: those of torchrun, or those that have already met.

    Parameters
    ----------
    device : str
        "cuda" without a number means one GPU per process of the machine.

    Returns
    -------
    Team

    Raises
    ------
    ValueError
        If the device does not exist, or cannot compute.
    """
    name, device, met = device, str(device), torch.distributed.is_available() and torch.distributed.is_initialized()
    several = met or (torch.distributed.is_available() and torch.distributed.is_torchelastic_launched())
    if device == "cuda" and several:
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    try:
        probe = torch.ones(1, device=device)
        probe.item()                     # fails on "meta", which has shapes but no numbers
        device = probe.device            # with a number: "cuda" has become the current GPU
    except (RuntimeError, AssertionError, ImportError) as fault:         # PyTorch without CUDA asserts
        gpus = torch.cuda.device_count()
        raise ValueError(f"device is {name!r}{f' ({device})' * (str(device) != name)}, and PyTorch {torch.__version__} "
                         f"cannot compute on it here: it sees {gpus or 'no'} GPU{'s' * (gpus != 1)}; pass 'cpu'"
                         f"{f' or cuda:0 to cuda:{gpus - 1}' if gpus else ''}") from fault
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if several and not met:
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if not several:
        return Team(0, 1, device)
    return Team(torch.distributed.get_rank(), torch.distributed.get_world_size(), device)


def check_gpus(device, processes):
    """ValueError if `device` is a GPU and there are fewer GPUs than processes."""
    gpus = torch.cuda.device_count()
    if str(device).startswith("cuda") and gpus < processes:
        raise ValueError(f"device is {device!r} and processes is {processes}, but PyTorch {torch.__version__} sees "
                         f"{gpus or 'no'} GPU{'s' * (gpus != 1)} here; pass "
                         + (f"processes={gpus}" if gpus else "device='cpu'"))


def add_up(tensor, team):
    """Sum a tensor over the processes, in place."""
    if team.size > 1:
        torch.distributed.all_reduce(tensor)
    return tensor


def add_up_gradients(parameters, team):
    """Sum gradients over the processes; a gradient that no process has stays None, so the optimiser skips it."""
    if team.size == 1:
        return
    there = [p.grad is not None for p in parameters]
    grads = [p.grad if has else torch.zeros_like(p) for p, has in zip(parameters, there)]
    # one message instead of hundreds: all gradients, then for each parameter how many processes have a gradient
    flat = torch.cat([*(g.flatten() for g in grads), grads[0].new_tensor(there)])
    *grads, there = add_up(flat, team).split([*(p.numel() for p in parameters), len(parameters)])
    for p, grad, has in zip(parameters, grads, there.tolist()):
        p.grad = grad.view_as(p).to(p) if has else None


def check_same(what, team):
    """ValueError unless all processes give the same text; else they might wait for each other forever."""
    if team.size > 1:
        number = zlib.crc32(what.encode())
        most = torch.tensor([number, -number], device=team.device)
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
        if most[0] != -most[1]:
            raise ValueError(f"{team.size} processes were given different settings, graphs, weights or checkpoints; "
                             "give each the same, and one file system")


def run_team(work, job, processes, device, report=None):
    """Call `work(device, report, *job)` in several processes that form a team -> what the first process returns."""
    job = _as_bytes(job)
    said = multiprocessing.get_context("spawn").SimpleQueue()        # spawn: CUDA does not survive a fork
    threads = max(1, torch.get_num_threads() // processes)
    with tempfile.TemporaryDirectory() as folder:
        team = torch.multiprocessing.spawn(_member, (folder, processes, threads, device, said, work, job), processes,
                                           join=False)
        del job
        errors, results = [], []
        try:
            # after an error a last look at exit codes: a process that died without a message failed first
            while not team.join(0 if errors else 0.1) and not errors:
                _listen(said, report, errors, results)
        except torch.multiprocessing.ProcessExitedException as fault:
            _listen(said, report, errors, results)
            if fault.exit_code != 1 or not errors:
                why = f" ({fault.signal_name}; out of memory?)" if fault.signal_name else "; see its output above"
                raise RuntimeError(f"process {fault.error_index} of {processes} ended with exit code "
                                   f"{fault.exit_code}{why}") from fault
        finally:
            for process in team.processes:
                process.kill()
                process.join()
        _listen(said, report, errors, results)
    if errors:
        raise RuntimeError(errors[0][0]) from RuntimeError(errors[0][1])
    return pickle.loads(results[0])


def _as_bytes(job):
    """Pickle a job; ValueError if other processes could not read it. As bytes, so that no memory is shared."""
    model, *_, more = job
    strays = [thing for thing in (type(model), *more.values()) if getattr(thing, "__module__", "") == "__main__"]
    if strays and not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError(f"{strays[0].__name__} is defined in a notebook's cell, which other processes cannot import; "
                         "import it from a module, or use train")
    try:
        return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as fault:
        raise ValueError(f"cannot be sent to another process: {fault}; define it at the top of a module") from fault


def _listen(said, report, errors, results):
    """Sort what the processes have said: lines are reported, errors and results added to the lists."""
    while not said.empty():
        kind, what = said.get()
        if kind != "line":
            {"error": errors, "result": results}[kind].append(what)
        elif report:
            report(what)


def _member(rank, folder, processes, threads, device, said, work, job):
    """What each process does: meet the others, then work."""
    parent = multiprocessing.parent_process().sentinel       # if the caller is killed, this process ends too
    threading.Thread(target=lambda: (multiprocessing.connection.wait([parent]), os._exit(1)), daemon=True).start()
    try:
        torch.set_num_threads(threads)
        cuda = torch.device(device).type == "cuda"
        if cuda:
            device = f"cuda:{rank}"
            torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{folder}/meeting",
                                             rank=rank, world_size=processes)
        result = work(device, lambda line: said.put(("line", line)), *pickle.loads(job))
        if rank == 0:
            said.put(("result", pickle.dumps(result)))
        torch.distributed.destroy_process_group()
    except BaseException as fault:               # an interrupt, too, else the others would wait
        said.put(("error", (f"process {rank} of {processes}: {type(fault).__name__}: {fault}", traceback.format_exc())))
        sys.exit(1)
