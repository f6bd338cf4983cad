"""Checkpoints: weights and plain data in one file, written whole or not at all, read without running pickled code."""
import hashlib
import io

import torch

from kit.files import whole_file


class CheckpointError(ValueError):
    """A checkpoint is damaged, or belongs to another training."""


def save_checkpoint(path, model, **extra):
    """Write the weights of a model, with plain data and tensors as `extra` and a digest of all, all or nothing."""
    saved = {"model": model.state_dict(), **extra}
    file = io.BytesIO()              # on a full disk, torch.save would only say "unexpected pos"
    torch.save(saved | {"digest": _digest(saved)}, file)
    with whole_file(path) as part:
        part.write_bytes(file.getvalue())


def read_checkpoint(path):
    """Read a checkpoint -> {"model": the weights, and everything else that was saved}; only plain data and tensors.

    A CheckpointError if the file is damaged, is no checkpoint, or was changed after it was written; a FileNotFoundError
    if there is none. A checkpoint of an earlier version of the kit has no digest, and tells of no change.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        saved["model"].keys()
        written = saved.pop("digest", None)
    except FileNotFoundError:
        raise
    except Exception as fault:               # torch.load raises a dozen types of errors
        raise CheckpointError(f"{path}: not a checkpoint, or a damaged one ({type(fault).__name__}); delete it and "
                         "train anew, or fetch it again") from fault
    if written is not None and written != _digest(saved):
        raise CheckpointError(f"{path}: its weights were changed after it was written; delete it and train anew, or "
                              "fetch it again")
    return saved


def _digest(saved):
    """A digest of tensors and plain data."""
    digest = hashlib.sha256()

    def add(value):
        if isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype} {[*value.shape]}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(value, (dict, list, tuple)):
            digest.update(f"{len(value)} of".encode())
            for one in value.items() if isinstance(value, dict) else value:
                add(one)
        else:
            digest.update(repr(value).encode("utf-8", "backslashreplace"))
    add(saved)
    return digest.hexdigest()


def load_checkpoint(path, model):
    """Load weights into a model of the same settings -> everything else that was saved, as a dict.

    A training checkpoint gives its best weights. A CheckpointError as `read_checkpoint`, and if the weights do not fit.
    """
    saved = read_checkpoint(path)
    weights = saved.pop("model")
    try:
        model.load_state_dict(saved.get("best", weights))
    except (RuntimeError, TypeError, AttributeError) as fault:       # the last two: it is no dict of tensors
        raise CheckpointError(f"{path}: holds the weights of another model than {model.settings}") from fault
    return saved
