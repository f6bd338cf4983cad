"""A team: processes that train one model together. A process's place in the team, its device, sums over the team."""
import os
import zlib
from typing import NamedTuple

import torch
import torch.distributed


class Team(NamedTuple):
    """The processes that train one model together, seen from one of them."""
    rank: int                # of this process, 0..size - 1; process 0 reports and writes
    size: int
    device: torch.device     # of this process


def join_team(device):
    """Meet the other processes, if there are any: those of torchrun, or those that have already met -> Team.

    The device "cuda" without a number means one GPU per process of the machine. A ValueError if the device does not
    exist, or cannot compute.
    """
    name, device, met = device, str(device), torch.distributed.is_available() and torch.distributed.is_initialized()
    several = met or (torch.distributed.is_available() and torch.distributed.is_torchelastic_launched())
    if device == "cuda" and several:
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    try:
        probe = torch.ones(1, device=device)
        probe.item()                     # fails on "meta", which has shapes but no numbers
        device = probe.device            # with a number: "cuda" has become the current GPU
    except (RuntimeError, TypeError, AssertionError, ImportError) as fault:      # PyTorch without CUDA asserts
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


def meet(rank, size, device, folder):
    """Start a team without torchrun: returns in all processes once each has called this with the same new folder."""
    torch.distributed.init_process_group("nccl" if str(device).startswith("cuda") else "gloo", rank=rank,
                                         world_size=size, init_method=f"file://{folder}/meeting")


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
