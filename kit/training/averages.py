"""The mean of the weights over many steps, which often ranks better than the weights of any single step."""
from torch.optim.swa_utils import AveragedModel


def averaged_model(model, kind, decay):
    """A copy of a model that holds a mean of its weights; buffers, such as feature statistics, are copied as they are.

    Parameters
    ----------
    model : Module
    kind : str
        "none"; "swa", the plain mean over all updates; "ema", an exponential moving average that starts with the
        weights of now.
    decay : float
        For "ema", the weight of the mean so far in the next mean. In update t = 0, 1, ... it is at most
        (1 + t) / (10 + t), as in TensorFlow's ExponentialMovingAverage, so that the initial weights are soon forgotten.

    Returns
    -------
    AveragedModel or None
        None for "none". Call its `update_parameters(model)` after a step; its `module` is the averaged model.

    References
    ----------
    Izmailov et al., Averaging weights leads to wider optima and better generalization, UAI 2018 ("swa").
    """
    def ema(mean, weights, count):                       # count: of the weights in the mean, with the initial ones
        return weights + (mean - weights) * (count / (9 + count)).clamp(max=decay)
    if kind == "none":
        return None
    average = AveragedModel(model, avg_fn=ema if kind == "ema" else None)
    if kind == "ema":
        average.update_parameters(model)
    return average
