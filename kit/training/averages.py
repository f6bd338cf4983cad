"""The mean of the weights over training steps, which often ranks better than the weights of any one of them."""
from contextlib import contextmanager

import torch


class WeightAverage:
    """Follow a model's parameters and keep their mean; buffers, such as feature statistics, are none of it.

    Parameters
    ----------
    model : Module
        Its parameters are read by `update` and exchanged by `swapped_in`.
    kind : str
        "none": nothing is kept. "ema": an exponential moving average. "swa": the plain mean of all steps from `first`
        on.
    first : int
        Step that "swa" begins with.
    decay : float
        Of "ema": a step's weights count `decay` times as much in the next one. Early on it is (1 + t) / (10 + t)
        after t steps, as in TensorFlow's ExponentialMovingAverage, so that the initial weights are forgotten.

    References
    ----------
    Izmailov et al., Averaging weights leads to wider optima and better generalization, UAI 2018 ("swa").
    """

    def __init__(self, model, kind, first=0, decay=0.999):
        self.parameters, self.kind, self.first, self.decay = list(model.parameters()), kind, first, decay
        self.mean = [] if kind == "none" else [p.detach().clone() for p in self.parameters]
        self.count = 0

    @torch.no_grad()
    def update(self, step):
        """Take in the weights after a step."""
        if self.kind == "none" or (self.kind == "swa" and step < self.first):
            return
        kept = {"ema": min(self.decay, (1 + self.count) / (10 + self.count)),
                "swa": self.count / (self.count + 1)}[self.kind]
        for mean, p in zip(self.mean, self.parameters):
            mean.lerp_(p, 1 - kept)
        self.count += 1

    @contextmanager
    def swapped_in(self):
        """The model with the mean of its weights; before the first update, as it is."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def swap(self):
        """Exchange the model's weights and their mean."""
        for place, p in enumerate(self.parameters) if self.count and self.mean else ():
            p.data, self.mean[place] = self.mean[place], p.data

    def state_dict(self):
        """What a checkpoint holds of it."""
        return {"mean": self.mean, "count": self.count}

    @torch.no_grad()
    def load_state_dict(self, state):
        """Take over what `state_dict` gave."""
        self.count = state["count"]
        for mean, saved in zip(self.mean, state["mean"], strict=True):
            mean.copy_(saved)
