"""Checkpoints: weights and plain data in one file, written whole or not at all, read without unpickling code."""
import io

import torch

from kit.files import whole_file


def save_checkpoint(path, model, **extra):
    """Write a model's weights and anything else that is plain data or tensors, all or nothing.

    Parameters
    ----------
    path : str or Path
    model : Module
    **extra
        Numbers, strings, lists, dicts and tensors.
    """
    file = io.BytesIO()              # on a full disk torch.save says "unexpected pos", and not why
    torch.save({"model": model.state_dict(), **extra}, file)
    with whole_file(path) as part:
        part.write_bytes(file.getbuffer())


def read_checkpoint(path):
    """Read what `save_checkpoint` wrote; nothing is unpickled but plain data and tensors.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    dict
        The weights as "model", and what else was saved.

    Raises
    ------
    ValueError
        If the file is damaged or holds anything else.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        saved["model"].keys()
    except FileNotFoundError:
        raise
    except Exception as fault:               # torch.load raises a dozen types
        raise ValueError(f"{path}: not a checkpoint, or a damaged one ({type(fault).__name__}); delete it and "
                         "train anew, or fetch it again") from fault
    return saved


def load_checkpoint(path, model):
    """Load weights into a model of the same settings; of a training checkpoint, the best ones.

    Parameters
    ----------
    path : str or Path
    model : Module

    Returns
    -------
    dict
        What else was saved.

    Raises
    ------
    ValueError
        If the file is damaged, holds anything but plain data, or does not fit the model.
    """
    saved = read_checkpoint(path)
    weights = saved.pop("model")
    try:
        model.load_state_dict(saved.get("best", weights))
    except (RuntimeError, TypeError, AttributeError) as fault:       # the latter two of what is no dict of tensors
        raise ValueError(f"{path}: holds the weights of another model than {model.settings}") from fault
    return saved
