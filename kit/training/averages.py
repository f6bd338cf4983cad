"""The mean of the weights over many steps, which often ranks better than the weights of any single step.

"swa": Izmailov et al., Averaging weights leads to wider optima and better generalization, UAI 2018.
"""
from torch.optim.swa_utils import AveragedModel


def averaged_model(model, kind, decay):
    """An AveragedModel that follows a model: "swa", the plain mean, or "ema", a moving one; None for "none"."""
    def ema(mean, weights, count):           # count: how many weights are in the mean, with the initial ones
        # the weight of the mean so far; small at first, as in TensorFlow's ExponentialMovingAverage, so that the
        # initial weights are soon forgotten
        return weights + (mean - weights) * (count / (9 + count)).clamp(max=decay)
    if kind == "none":
        return None
    device = next(model.parameters()).device                 # of the count, too: no copy to a GPU per parameter
    average = AveragedModel(model, device, avg_fn=ema if kind == "ema" else None)
    if kind == "ema":
        average.update_parameters(model)     # the initial weights
    return average
