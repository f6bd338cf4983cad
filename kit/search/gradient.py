"""Search a differentiable cost model by its gradient: codes become weights over values, and the walks are noisy.

A relaxed cost takes (k, g, v) weights instead of (k, g) codes. The weights of a coordinate sum to 1; one-hot weights
stand for a code. Values that a coordinate does not have get weight 0.
"""
from copy import deepcopy

import numpy as np
import torch
import torch.nn.functional as F

from kit.checks import check_whole
from kit.search.budgets import Measured

WALKS = 64                 # side by side
RATE = 1.0                 # step size, in logits
HEAT = 0.03                # the variance of the first noise is 2 * RATE * HEAT; on random landscapes 0 to 0.1 was alike


def on_codes(relaxed, dims, device="cpu"):
    """Turn a relaxed cost into a `model` for strategies: (k, g) int64 codes -> (k,) float64 costs, both arrays.

    `relaxed`: (k, g, v) float32 weights -> (k,) costs, both tensors. `dims` (g,): the number of values of each
    coordinate; v is the largest of them.

    >>> on_codes(lambda weights: weights[:, :, 1].sum(dim=1), [2, 3])(np.array([[1, 0], [1, 1], [0, 2]])).tolist()
    [1.0, 2.0, 0.0]
    """
    def model(points):
        with torch.no_grad():
            codes = torch.as_tensor(np.asarray(points, np.int64), device=device)
            return relaxed(F.one_hot(codes, int(max(dims))).float()).double().cpu().numpy()
    return model


def relaxed_token_cost(model, tensors):
    """The relaxed cost of a graph under a ConfigTokenModel, with tables computed once; exact on one-hot weights.

    `tensors` is `model.prepare(graph)`. The result maps (k, g, v) weights to (k,) costs, differentiable in the weights;
    v is at most the codes of the graph's groups.
    """
    frozen = deepcopy(model).eval().requires_grad_(False)
    tables = frozen.tables(tensors)
    return lambda weights: frozen.cost(tensors, tables, weights)


def gradient_search(objective, dims, budget, rng, *, relaxed, queries=10_000, device="cpu"):
    """Langevin walks downhill on a relaxed cost; the best codes on their way are measured.

    `relaxed`: (k, g, v) float32 weights on `device` -> (k,) costs, both tensors; differentiable. Each of 64 walks has
    logits, and their softmax is the weights. A step goes against the gradient by the weights, scaled to a root mean
    square of 1, plus noise from `rng` that cools down to none. Then the relaxed cost of the likeliest codes is asked.
    Half of the `queries`, at least 2, are these; the others are gradients. Points are measured in the order of their
    relaxed costs; they are fewer than the budget if walks pass the same points. Other arguments and errors are those of
    `random_search`.

    Welling and Teh, Bayesian Learning via Stochastic Gradient Langevin Dynamics, ICML 2011. Kivinen and Warmuth,
    Exponentiated Gradient versus Gradient Descent, 1997: why the gradient is by the weights.
    """
    check_whole(locals(), queries=2)                             # one query for a gradient, one for a code
    measured = Measured(objective, dims, budget)
    proposed = Measured(on_codes(relaxed, dims, device), dims, queries // 2)
    dims = torch.as_tensor(measured.dims, device=device)
    absent = torch.arange(int(dims.max()), device=device) >= dims[:, None]                       # (g, v)
    walks = min(WALKS, queries // 2)
    steps = queries // 2 // walks

    def noise():
        return torch.as_tensor(rng.standard_normal((walks, *absent.shape)), dtype=torch.float32, device=device)
    logits = noise()
    for step in range(steps):
        weights = logits.masked_fill(absent, -torch.inf).softmax(dim=2).requires_grad_()
        slope, = torch.autograd.grad(relaxed(weights).sum(), weights)
        slope = slope.masked_fill(absent, 0)
        slope = slope - slope.sum(dim=2, keepdim=True) / dims[:, None]                           # weights sum to 1
        slope = slope.masked_fill(absent, 0)
        size = slope.square().mean(dim=(1, 2), keepdim=True).sqrt().clamp(min=1e-30)
        logits = logits - RATE * slope / size + (2 * RATE * HEAT * (1 - step / steps)) ** 0.5 * noise()
        proposed(logits.masked_fill(absent, -torch.inf).argmax(dim=2).cpu().numpy())
    measured(proposed.best_first())
    return measured.result(steps * walks + len(proposed.trace))
