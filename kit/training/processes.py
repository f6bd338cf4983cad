"""A team: processes that train one model together. A process's place in the team, its device, sums over the team."""
from typing import NamedTuple

import torch
import torch.distributed

_ON_KAGGLE = "on Kaggle choose the accelerator GPU T4 x2 (--machine NvidiaTeslaT4)"


class Team(NamedTuple):
    """The processes that train one model together, seen from one of them."""
    rank: int                # of this process, 0..size - 1; process 0 reports and writes
    size: int
    device: torch.device     # of this process


def join_team(device):
    """The team of this process: those that `train_parallel` started, or this process alone -> Team.

    A ValueError if the device does not exist, or cannot compute.
    """
    try:
        probe = torch.ones(1, device=str(device))
        # fails on "meta", which has shapes but no numbers, and on a GPU that this PyTorch is not built for, which
        # PyTorch calls available
        probe.item()
    except (RuntimeError, TypeError, AssertionError, ImportError) as fault:      # PyTorch without CUDA asserts
        gpus = torch.cuda.device_count()
        raise ValueError(f"device is {device!r}, and PyTorch {torch.__version__} cannot compute on it here: it sees "
                         f"{gpus or 'no'} GPU{'s' * (gpus != 1)}; pass 'cpu'"
                         f"{f' or cuda:0 to cuda:{gpus - 1}; {_ON_KAGGLE}' if gpus else ''}") from fault
    device = probe.device                # with a number: "cuda" has become the current GPU
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Team(torch.distributed.get_rank(), torch.distributed.get_world_size(), device)
    return Team(0, 1, device)


def find_device(needs_gpu=False):
    """The device to train on: "cuda" where PyTorch sees a GPU, else "cpu"; prints the GPUs.

    A ValueError, which says what to choose instead, if PyTorch cannot compute on a GPU that it sees, or if it sees none
    and `needs_gpu`.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in reversed(range(count)):            # the first one stays the current one
        join_team(f"cuda:{number}")
    if count:
        names = ", ".join(torch.cuda.get_device_name(number) for number in range(count))
        print(f"GPUs: {names}; models trained at the same time: {count}", flush=True)
    elif needs_gpu:
        raise ValueError(f"a GPU was asked for, but PyTorch {torch.__version__} sees none here: {_ON_KAGGLE}, which "
                         "needs an account with a verified phone number and GPU hours that are left; or train without "
                         "a GPU, with device='cpu'")
    return "cuda" if count else "cpu"


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
