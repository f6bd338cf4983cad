"""Train in several processes from one, such as a notebook's: on a machine with two GPUs, one on each."""
import multiprocessing
import multiprocessing.connection
import os
import pickle
import sys
import tempfile
import threading
import traceback
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed
import torch.multiprocessing

from kit.checkpoint import load_checkpoint, save_checkpoint
from kit.processes import check_gpus
from kit.train import TrainSettings, train


def train_parallel(model, graphs, settings=None, processes=2, report=None, **as_for_train):
    """Train as `train` does, in several processes that this one starts and ends.

    The graphs of a step are shared out over them, so `graphs_per_step` must be a multiple of `processes`. In a script,
    call it below `if __name__ == "__main__":`, since each process imports the script anew.

    Parameters
    ----------
    model : LayoutGNN, TileModel or any module with their methods
        Gets the trained weights. Like `loss` and `score`, its class must stand in a module, not in a notebook's cell.
    graphs : sequence of LayoutGraph or TileGraph
        Each process gets a copy.
    settings : TrainSettings, optional
        With `device` "cuda" each process has a GPU of its own; on "cpu" they share the threads of this process.
    processes : int
    report : callable, optional
        Called in this process with one line of text at each validation.
    **as_for_train
        `loss`, `valid`, `score`, `checkpoint` and `record`, as for `train`.

    Returns
    -------
    dict
        As of `train`.

    Raises
    ------
    ValueError
        If there are fewer GPUs than processes, or something cannot be sent to another process.
    RuntimeError
        If a process fails, with its error; the others are ended.
    """
    s = settings or TrainSettings()
    if not (isinstance(processes, int) and processes >= 1):
        raise ValueError(f"processes is {processes!r}; expected a whole number of at least 1")
    check_gpus(s.device, processes)
    strays = [thing for thing in (work_in_team, type(model), *as_for_train.values())
              if getattr(thing, "__module__", "") == "__main__"]
    if strays and not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError(f"{strays[0].__name__} is defined in a notebook's cell, which other processes cannot import; "
                         "import it from a module, or use train")
    device = next(model.parameters()).device
    try:         # as bytes: PyTorch would let the processes share the weights and so train them twice at once
        job = pickle.dumps((model.to("cpu"), list(graphs), s, as_for_train))
    except (pickle.PicklingError, AttributeError, TypeError) as fault:
        raise ValueError(f"cannot be sent to another process: {fault}; define it at the top of a module") from fault
    finally:
        model.to(device)
    said = multiprocessing.get_context("spawn").SimpleQueue()      # not fork: CUDA does not survive it
    with tempfile.TemporaryDirectory() as folder:
        threads = max(1, torch.get_num_threads() // processes)
        team = torch.multiprocessing.spawn(work_in_team, (folder, processes, threads, said, job), processes, join=False)
        del job
        errors = []
        try:
            while not team.join(0 if errors else 0.1) and not errors:        # a last look: who fell silent fell first
                errors = heard(said, report)
        except torch.multiprocessing.ProcessExitedException as fault:
            errors += heard(said, report)
            if fault.exit_code != 1 or not errors:
                why = f" ({fault.signal_name}; out of memory?)" if fault.signal_name else "; see its output above"
                raise RuntimeError(f"process {fault.error_index} of {processes} ended with exit code "
                                   f"{fault.exit_code}{why}") from fault
        finally:
            for process in team.processes:
                process.kill()
                process.join()
        errors += heard(said, report)
        if errors:
            raise RuntimeError(errors[0][0]) from RuntimeError(errors[0][1])
        model.to(s.device)
        return load_checkpoint(Path(folder, "trained.pt"), model)["history"]


def heard(said, report):
    """Report the lines that the processes said -> their errors, a (message, traceback) each."""
    errors = []
    while not said.empty():
        error, text = said.get()
        if error:
            errors.append((error, text))
        elif report:
            report(text)
    return errors


def work_in_team(rank, folder, processes, threads, said, job):
    """What each process does: meet the others, train, and the first one leaves the weights in `folder`."""
    parent = multiprocessing.parent_process().sentinel
    threading.Thread(target=lambda: (multiprocessing.connection.wait([parent]), os._exit(1)), daemon=True).start()
    try:
        torch.set_num_threads(threads)
        model, graphs, settings, as_for_train = pickle.loads(job)
        cuda = torch.device(settings.device).type == "cuda"
        if cuda:
            settings = replace(settings, device=f"cuda:{rank}")
            torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{folder}/meeting",
                                             rank=rank, world_size=processes)
        history = train(model, graphs, settings, report=lambda line: said.put((None, line)), **as_for_train)
        if rank == 0:
            save_checkpoint(Path(folder, "trained.pt"), model, history=history)
        torch.distributed.destroy_process_group()
    except BaseException as fault:               # an interrupt, too, else the others would wait
        said.put((f"process {rank} of {processes}: {type(fault).__name__}: {fault}", traceback.format_exc()))
        sys.exit(1)
