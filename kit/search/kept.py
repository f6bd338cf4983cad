"""Search results on disk: a result is read if its file exists; otherwise the search runs and its result is written."""
import hashlib
from pathlib import Path

import numpy as np
import torch

from kit.data import DataError
from kit.run import load_costs, save_costs

SEARCH_FORM = 2            # raise it where a search or the simulator changes: results kept before are searched again


def kept(out, kind, names, size, about, search, report):
    """{strategy: (size,) float64}: read where it was kept, else `search()`, which is then kept."""
    path = Path(out, "checkpoints", "searches", f"{kind}-{fingerprint(about)[:16]}.npz")
    if path.is_file():
        try:
            found = load_costs(path)
        except DataError:
            found = {}
        if {name: (len(c), c.dtype) for name, c in found.items()} == dict.fromkeys(names, (size, np.float64)):
            return found
        report(f"note  {path} was half-written or damaged; it is searched again")
    found = {name: np.array(numbers, np.float64).ravel() for name, numbers in search().items()}
    save_costs(path, found)
    return found


def fingerprint(value):
    """Hex digest of plain values, arrays, tensors, models, and lists, tuples and dicts of them."""
    if isinstance(value, torch.nn.Module):
        value = [type(value).__name__, repr(value.settings), dict(value.state_dict())]
    if isinstance(value, dict):
        value = [list(value), list(value.values())]
    if isinstance(value, torch.Tensor):
        value = value.numpy(force=True)
    if isinstance(value, np.ndarray):
        return hashlib.sha256(f"{value.dtype} {value.shape} ".encode() + value.tobytes()).hexdigest()
    if isinstance(value, (list, tuple)):
        value = [fingerprint(one) for one in value]
    return hashlib.sha256(repr(value).encode()).hexdigest()
