"""A team: processes that train one model together. A process's place in the team, its device, sums over the team."""
import re
from typing import NamedTuple

import torch
import torch.distributed

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")          # in torch.cuda.get_arch_list()
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
    check_architecture(device)
    try:
        probe = torch.ones(1, device=str(device))
        probe.item()                     # fails on "meta", which has shapes but no numbers
    except (RuntimeError, TypeError, AssertionError, ImportError) as fault:      # PyTorch without CUDA asserts
        gpus = torch.cuda.device_count()
        raise ValueError(f"device is {device!r}, and PyTorch {torch.__version__} cannot compute on it here: it sees "
                         f"{gpus or 'no'} GPU{'s' * (gpus != 1)}; pass 'cpu'"
                         f"{f' or cuda:0 to cuda:{gpus - 1}' if gpus else ''}") from fault
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
    if count:
        join_team("cuda")
        names = ", ".join(torch.cuda.get_device_name(number) for number in range(count))
        print(f"GPUs: {names}; models trained at the same time: {count}", flush=True)
    elif needs_gpu:
        raise ValueError(f"a GPU was asked for, but PyTorch {torch.__version__} sees none here: {_ON_KAGGLE}, which "
                         "needs an account with a verified phone number and GPU hours that are left; or train without "
                         "a GPU, with device='cpu'")
    return "cuda" if count else "cpu"


def check_architecture(device):
    """ValueError if this PyTorch has no code for a GPU that is there, with what to choose instead; "cuda": all GPUs.

    PyTorch calls such a GPU available, and fails at the first computation.
    """
    kind, _, number = str(device).partition(":")
    gpus, built = range(torch.cuda.device_count() if kind == "cuda" else 0), torch.cuda.get_arch_list()
    good = [gpu for gpu in gpus if _runs_on(torch.cuda.get_device_capability(gpu), built)]
    for gpu in gpus:
        if gpu not in good and number in ("", str(gpu)):
            name, sm = torch.cuda.get_device_name(gpu), "".join(map(str, torch.cuda.get_device_capability(gpu)))
            others = " or ".join([f"'cuda:{gpu}'" for gpu in good] + ["'cpu'"])
            raise ValueError(f"PyTorch {torch.__version__} cannot compute on {name} (sm_{sm}), because it is built for "
                             f"{', '.join(built)}: {_ON_KAGGLE}; elsewhere pass the device {others}, or install a "
                             f"PyTorch that is built for sm_{sm}")


def _runs_on(capability, built):
    """Whether code for one of the architectures `built` runs on a GPU of this capability (major, minor)."""
    known = [match.groups() for match in map(_ARCHITECTURE.fullmatch, built) if match]
    for kind, major, minor, only in known:
        one = int(major), int(minor)
        # machine code (sm) runs on later GPUs of the same major number; compute_ is compiled for any later GPU
        later = capability >= one and (kind == "compute" or capability[0] == one[0])
        if capability == one or later and only != "a":           # "a": for this architecture alone
            return True
    return not known                             # PyTorch for AMD has other names


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
