"""PyTorch's state while the kit computes: that of a new process, whatever the caller has set.

A caller may be within `torch.autocast` or `torch.inference_mode`, or may have set another default type or device.
PyTorch would use these for the kit's numbers, too, and a ranking would be wrong without a word.
"""
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def own_precision():
    """Within it, PyTorch has its own defaults: float32, the CPU, no autocast, no inference mode. A decorator, too.

    The default type belongs to all threads; everything else is changed for this thread alone.
    """
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        if dtype != torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, dtype)
        if torch.empty(0).device.type != "cpu":          # only then, because it slows each call of PyTorch down
            stack.enter_context(torch.device("cpu"))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if _autocasts():
            stack.enter_context(_no_autocast())
        yield


def _autocasts():
    """How many `torch.autocast` this thread is within."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


@contextmanager
def _no_autocast():
    """As outside of every `torch.autocast`, where each new one forgets the weights that it has rounded as it ends."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda")[:1 + torch.cuda.is_available()]:
            stack.enter_context(torch.autocast(kind, enabled=False))
        inside = _autocasts()
        for _ in range(inside):
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        try:
            yield
        finally:
            torch.clear_autocast_cache()                 # training has changed the weights
            for _ in range(inside):
                torch.autocast_increment_nesting()
