"""Search a differentiable cost model by its gradient: codes become weights over values, and the walks are noisy.

A relaxed cost takes (k, g, v) weights instead of (k, g) codes. The weights of a coordinate sum to 1, one-hot weights
are a code, and values that a coordinate does not have get weight 0.
"""
from copy import deepcopy

import numpy as np
import torch
import torch.nn.functional as F

from kit.search.budgets import Measured


def on_codes(relaxed, dims, device="cpu"):
    """Turn a relaxed cost into a `model` for the strategies of kit/search/strategies.py.

    Parameters
    ----------
    relaxed : callable
        (k, g, v) float32 weights -> (k,) costs, both torch tensors.
    dims : sequence of int, shape (g,)
        How many values each coordinate has; v is the largest of them.
    device : str or torch.device

    Returns
    -------
    callable
        (k, g) int64 codes -> (k,) float64 costs, both arrays.

    Examples
    --------
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

    Parameters
    ----------
    model : ConfigTokenModel
    tensors : TokenTensors
        `model.prepare(graph)`.

    Returns
    -------
    callable
        (k, g, v) weights -> (k,) costs; differentiable in the weights. v is at most the codes of the graph's groups.
    """
    frozen = deepcopy(model).eval().requires_grad_(False)
    tables = frozen.tables(tensors)
    return lambda weights: frozen.cost(tensors, tables, weights)


def gradient_search(objective, dims, budget, rng, *, relaxed, queries=10_000, walks=64, rate=1.0, heat=0.03,
                    repeats=1, device="cpu"):
    """Langevin walks downhill on a relaxed cost; the best codes on their way are measured.

    Each walk has logits; their softmax is the weights. A step goes against the gradient by the weights, scaled to a
    root mean square of 1, plus noise that cools down to none. After each step the relaxed cost of the likeliest codes
    is asked. Half of the queries are these, the other half are gradients.

    Parameters
    ----------
    objective, dims, budget, rng
        As in `random_search`. The noise comes from `rng` on every device.
    relaxed : callable
        (k, g, v) float32 weights -> (k,) costs, both torch tensors; differentiable.
    queries : int
        The most rows asked of `relaxed`.
    walks : int
        How many walks run side by side.
    rate : float
        Step size, in logits.
    heat : float
        Variance of the first step's noise is 2 * rate * heat; on random landscapes 0 to 0.1 did equally well.
    repeats : int
        As in `random_search`.
    device : str or torch.device
        Device of the weights.

    Returns
    -------
    SearchResult
        Points in the order of their relaxed costs; fewer than the budget if walks pass the same points.

    Raises
    ------
    ValueError
        As `random_search`, and if there are fewer than two queries.

    References
    ----------
    Welling and Teh, Bayesian Learning via Stochastic Gradient Langevin Dynamics, ICML 2011. Kivinen and Warmuth,
    Exponentiated Gradient versus Gradient Descent, 1997: why the gradient is by the weights.

    Examples
    --------
    >>> found = gradient_search(lambda points: points.sum(axis=1), [5] * 5, 3, np.random.default_rng(0), queries=640,
    ...                         relaxed=lambda weights: (weights * torch.arange(5.0)).sum(dim=(1, 2)))
    >>> found.best.tolist(), found.measurements
    ([0, 0, 0, 0, 0], 3)
    """
    if queries < 2:
        raise ValueError(f"queries is {queries}; expected at least 2, one for a gradient and one for a code")
    measured = Measured(objective, dims, budget, repeats)
    proposed = Measured(on_codes(relaxed, dims, device), dims, queries // 2)
    dims = torch.as_tensor(measured.dims, device=device)
    absent = torch.arange(int(dims.max()), device=device) >= dims[:, None]                       # (g, v)
    walks = min(walks, queries // 2)
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
        logits = logits - rate * slope / size + (2 * rate * heat * (1 - step / steps)) ** 0.5 * noise()
        proposed(logits.masked_fill(absent, -torch.inf).argmax(dim=2).cpu().numpy())
    measured(proposed.best_first())
    return measured.result(steps * walks + len(proposed.trace))
