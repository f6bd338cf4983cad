"""Checkpoints: weights and plain data in one file, written whole or not at all, read without running pickled code."""
import io

import torch

from kit.files import whole_file


def save_checkpoint(path, model, **extra):
    """Write the weights of a model, together with plain data and tensors, all or nothing.

    Parameters
    ----------
    path : str or Path
    model : Module
    **extra
        Numbers, strings, lists, dicts and tensors.
    """
    file = io.BytesIO()              # on a full disk, torch.save would only say "unexpected pos"
    torch.save({"model": model.state_dict(), **extra}, file)
    with whole_file(path) as part:
        part.write_bytes(file.getbuffer())


def read_checkpoint(path):
    """Read a checkpoint; only plain data and tensors are loaded.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    dict
        The weights as "model", and everything else that was saved.

    Raises
    ------
    ValueError
        If the file is damaged or is no checkpoint.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        saved["model"].keys()
    except FileNotFoundError:
        raise
    except Exception as fault:               # torch.load raises a dozen types of errors
        raise ValueError(f"{path}: not a checkpoint, or a damaged one ({type(fault).__name__}); delete it and "
                         "train anew, or fetch it again") from fault
    return saved


def load_checkpoint(path, model):
    """Load weights into a model of the same settings; from a training checkpoint, the best weights.

    Parameters
    ----------
    path : str or Path
    model : Module

    Returns
    -------
    dict
        Everything else that was saved.

    Raises
    ------
    ValueError
        If the file is damaged, is no checkpoint, or does not fit the model.
    """
    saved = read_checkpoint(path)
    weights = saved.pop("model")
    try:
        model.load_state_dict(saved.get("best", weights))
    except (RuntimeError, TypeError, AttributeError) as fault:       # the last two: it is no dict of tensors
        raise ValueError(f"{path}: holds the weights of another model than {model.settings}") from fault
    return saved
