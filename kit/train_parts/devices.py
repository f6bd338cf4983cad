"""The device to train on: whether PyTorch can compute there, and where there is a GPU."""
import torch

_ON_KAGGLE = "on Kaggle choose the accelerator GPU T4 x2 (--machine NvidiaTeslaT4)"


def check_device(device):
    """A device by name, such as "cpu" or "cuda" -> torch.device; a GPU becomes the current one.

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
    if probe.device.type == "cuda":      # with a number: "cuda" has become the current GPU
        torch.cuda.set_device(probe.device)
    return probe.device


def find_device(needs_gpu=False):
    """The device to train on: "cuda" where PyTorch sees a GPU, else "cpu"; prints the GPUs.

    A ValueError, which says what to choose instead, if PyTorch cannot compute on a GPU that it sees, or if it sees none
    and `needs_gpu`.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in reversed(range(count)):            # the first one stays the current one
        check_device(f"cuda:{number}")
    if count:
        names = ", ".join(torch.cuda.get_device_name(number) for number in range(count))
        print(f"GPUs: {names}; models trained at the same time: {count}", flush=True)
    elif needs_gpu:
        raise ValueError(f"a GPU was asked for, but PyTorch {torch.__version__} sees none here: {_ON_KAGGLE}, which "
                         "needs an account with a verified phone number and GPU hours that are left; or train without "
                         "a GPU, with device='cpu'")
    return "cuda" if count else "cpu"
