"""Ranking losses: pure functions of predicted costs and measured runtimes.

Runtimes are only compared, and keep their type: as float32, distinct int64 nanoseconds above 2**24 would become ties.
"""
import torch
import torch.nn.functional as F


def pairwise_hinge_loss(cost, runtime, margin=1.0):
    """The mean shortfall over pairs: the slower configuration should cost more by at least a margin.

    `cost` (k,) is float, `runtime` (k,) int64 or float64. Returns the mean of max(0, margin - (cost_i - cost_j)) over
    all pairs with runtime_i > runtime_j; 0 if there is none. `margin` is in units of the cost: the first place used 1,
    the second place 0.01.

    >>> pairwise_hinge_loss(torch.tensor([0.0, 0.5]), torch.tensor([10, 20]))
    tensor(0.5000)
    """
    slower = runtime[:, None] > runtime[None, :]                        # (k, k)
    hinge = F.relu(margin - (cost[:, None] - cost[None, :]))
    return (hinge * slower).sum() / slower.sum().clamp(min=1)


def standardised_hinge_loss(cost, runtime):
    """`pairwise_hinge_loss` of costs that were shifted and scaled to mean 0 and standard deviation 2.

    So neither the unit nor the spread of a program's costs matters, only their order and relative distances. `cost`
    (k,) is float, `runtime` (k,) int64 or float64. Equal costs stay equal.

    >>> runtime = torch.tensor([10, 20, 30])
    >>> [float(standardised_hinge_loss(scale * torch.tensor([0.0, 1.0, 2.0]), runtime)) for scale in (1, 256)]
    [0.0, 0.0]
    """
    centred = cost - cost.mean()
    deviation = centred.square().mean().clamp(min=1e-12).sqrt()          # no root of 0, whose slope is infinite
    return pairwise_hinge_loss(2 * centred / deviation, runtime)


def list_mle_loss(cost, runtime):
    """Negative log-likelihood of the measured order under the Plackett-Luce model, per configuration.

    `cost` (k,) is float, `runtime` (k,) int64 or float64; equal runtimes keep their order. Source: Xia et al., Listwise
    approach to learning to rank, ICML 2008.

    >>> list_mle_loss(torch.tensor([0.0, 0.0]), torch.tensor([10, 20]))      # log(2) / 2
    tensor(0.3466)
    """
    score = -cost[torch.argsort(runtime, stable=True)]                  # fastest first
    # for each configuration: log of the sum of exp(score) over it and all slower configurations
    remaining = torch.logcumsumexp(score.flip(0), dim=0).flip(0)
    return (remaining - score).mean()
