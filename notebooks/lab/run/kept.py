"""Search results on disk: a result is read if its file exists; otherwise the search runs and its result is written."""
import hashlib

import numpy as np
import torch

from kit.data import DataError
from lab.run import from_code

CODE = ("lab.studies.search_study", "lab.studies.search_spaces")   # with what they import: all that decides a result


def kept(results, kind, names, size, about, search, report):
    """{strategy: (size,) float64}: read where it was kept, else `search()`, which is then kept."""
    name = f"checkpoints/searches/{kind}-{fingerprint([about, *from_code(*CODE).values()])[:16]}.npz"
    if (results.out / name).is_file():
        try:
            found = results.load_costs(results.out / name)
        except DataError:
            found = {}
        if {name: (len(c), c.dtype) for name, c in found.items()} == dict.fromkeys(names, (size, np.float64)):
            return found
        report(f"note  {results.out / name} is not whole, or was changed; it is searched again")
    found = {name: np.array(numbers, np.float64).ravel() for name, numbers in search().items()}
    results.save_costs(name, found, from_code(*CODE))
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
