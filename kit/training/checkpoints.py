"""Checkpoints: weights and plain data in one file, written whole or not at all, read without running pickled code."""
import io

import torch

from kit.files import whole_file


class CheckpointError(ValueError):
    """A checkpoint is damaged, or belongs to another training."""


def save_checkpoint(path, model, **extra):
    """Write the weights of a model, with plain data and tensors as `extra`, all or nothing."""
    file = io.BytesIO()              # on a full disk, torch.save would only say "unexpected pos"
    torch.save({"model": model.state_dict(), **extra}, file)
    with whole_file(path) as part:
        part.write_bytes(file.getbuffer())


def read_checkpoint(path):
    """Read a checkpoint -> {"model": the weights, and everything else that was saved}; only plain data and tensors.

    A CheckpointError if the file is damaged or is no checkpoint, a FileNotFoundError if there is none.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        saved["model"].keys()
    except FileNotFoundError:
        raise
    except Exception as fault:               # torch.load raises a dozen types of errors
        raise CheckpointError(f"{path}: not a checkpoint, or a damaged one ({type(fault).__name__}); delete it and "
                         "train anew, or fetch it again") from fault
    return saved


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
