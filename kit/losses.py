"""Ranking losses: pure functions of predicted costs and measured runtimes, of one graph's configurations or of several.

Runtimes are only ever compared, in the type they come in. float32 would merge distinct int64 nanoseconds beyond
2**24 into ties.
"""
import torch
import torch.nn.functional as F


def pairwise_hinge_loss(cost, runtime, margin=1.0):
    """Ask of each pair that the slower one is predicted slower by a margin.

    Parameters
    ----------
    cost : Tensor, shape (k,), float
    runtime : Tensor, shape (k,), int64 or float64
    margin : float
        In units of `cost`. The first place used 1, the second .01.

    Returns
    -------
    Tensor, shape ()
        Mean of max(0, margin - (cost_i - cost_j)) over all pairs with runtime_i > runtime_j; 0 without such pairs.

    Examples
    --------
    >>> pairwise_hinge_loss(torch.tensor([0.0, 0.5]), torch.tensor([10, 20]))
    tensor(0.5000)
    """
    slower = runtime[:, None] > runtime[None, :]                        # (k, k)
    hinge = F.relu(margin - (cost[:, None] - cost[None, :]))
    return (hinge * slower).sum() / slower.sum().clamp(min=1)


def list_mle_loss(cost, runtime):
    """Negative log-likelihood of the measured order under the Plackett-Luce model, per configuration.

    Parameters
    ----------
    cost : Tensor, shape (k,), float
    runtime : Tensor, shape (k,), int64 or float64
        Ties keep the order in which they come.

    Returns
    -------
    Tensor, shape ()

    References
    ----------
    Xia et al., Listwise approach to learning to rank, ICML 2008.

    Examples
    --------
    >>> list_mle_loss(torch.tensor([0.0, 0.0]), torch.tensor([10, 20]))      # log(2) / 2
    tensor(0.3466)
    """
    score = -cost[torch.argsort(runtime, stable=True)]                  # fastest first
    # log of the sum over a configuration and all slower ones
    remaining = torch.logcumsumexp(score.flip(0), dim=0).flip(0)
    return (remaining - score).mean()


def loss_across_graphs(costs, runtimes, loss=pairwise_hinge_loss, share=0.5):
    """Mix the mean loss inside each graph with the loss over all configurations of all graphs as if of one.

    Parameters
    ----------
    costs : sequence of Tensor, shape (k,), float
        One for each graph.
    runtimes : sequence of Tensor, shape (k,), int64 or float64
        Compared across graphs as they are, so all of one unit.
    loss : callable
        (cost (k,), runtime (k,)) -> scalar Tensor.
    share : float
        Of the loss over all, 0 to 1. The fifth place used the hinge and 0.5.

    Returns
    -------
    Tensor, shape ()

    Examples
    --------
    >>> costs, runtimes = [torch.tensor([0.0, 0.5]), torch.tensor([3.0])], [torch.tensor([10, 20]), torch.tensor([30])]
    >>> loss_across_graphs(costs, runtimes, share=0.5)       # (0.5 + 0) / 2 inside, 0.5 / 3 over all pairs
    tensor(0.2083)
    """
    inside = sum(loss(cost, runtime) for cost, runtime in zip(costs, runtimes)) / len(costs)
    return (1 - share) * inside + share * loss(torch.cat(list(costs)), torch.cat(list(runtimes)))
