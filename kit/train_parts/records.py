"""The record of a training run, for a JSON file: what was trained, with what, and how long it took."""
import importlib.metadata
import platform
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from kit.files import plain


def run_record(model, settings, loss_name, tasks, history, device):
    """Describe a training run -> dict of plain data; numbers that are not finite are None."""
    most = [min(task.most, len(task.runtime)) for task in tasks]
    return plain({
        "settings": asdict(settings), "model": type(model).__name__, "model_settings": asdict(model.settings),
        "loss": loss_name, "parameters": sum(p.numel() for p in model.parameters()),
        "graphs": len(tasks), "configs_per_step": {"least": min(most), "most": max(most)},
        "configs_seen": history["configs"], "overflows": history["overflows"],
        "seconds": history["seconds"], "peak_memory": peak_memory(device),
        "device": device_name(device), "versions": versions(),
        "best_step": history["best_step"], "curve": {name: history[name] for name in ("step", "loss", "score")}})


def versions():
    """Versions of Python, of the libraries that compute, and of the kit (None if it is not installed)."""
    try:
        kit = importlib.metadata.version("tpugraphs-kit")
    except importlib.metadata.PackageNotFoundError:
        kit = None
    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__, "kit": kit}


def device_name(device):
    """The name of the GPU or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def processor_name():
    """The CPU of this machine; on Linux with family and model: "AMD EPYC" alone may be a machine of twice the speed."""
    about = cpu_fields()
    name = about.get("model name") or platform.processor() or platform.machine()
    return name + (f" (family {about['cpu family']}, model {about['model']})" if {"cpu family", "model"} <= about.keys()
                   else "")


def cpu_fields():
    """What Linux says of the first processor, {field: text}; nothing on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {field.strip(): text.strip() for field, _, text in (line.partition(":") for line in lines)}


def peak_memory(device):
    """The most bytes that this process ever held; on a GPU, that PyTorch allocated for this training; None: unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()           # Linux; in units of 1024 bytes
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    try:
        import resource
    except ImportError:                                                      # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
