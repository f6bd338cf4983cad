"""Ranking losses against double loops, explicit products and laws."""
import math

import numpy as np
import pytest
import torch

from kit.losses import list_mle_loss, pairwise_hinge_loss, standardised_hinge_loss

LOSSES = pytest.mark.parametrize("loss", [pairwise_hinge_loss, list_mle_loss, standardised_hinge_loss])


def drawn(seed, k=9, values=None):
    """Costs in float64 and int64 runtimes; few `values` make ties, None makes none."""
    rng = np.random.default_rng(seed)
    runtime = rng.permutation(k) if values is None else rng.integers(0, values, k)
    return torch.tensor(rng.normal(size=k)), torch.tensor(runtime + 10 ** 6)


def slow_hinge(cost, runtime, margin):
    pairs = [max(0.0, margin - (cost[i] - cost[j])) for i in range(len(cost)) for j in range(len(cost))
             if runtime[i] > runtime[j]]
    return sum(pairs) / len(pairs) if pairs else 0.0


def plackett_luce(cost, runtime):
    """Probability of the measured order: draw the fastest, then the fastest of the rest, and so on."""
    left, probability = sorted(range(len(cost)), key=lambda i: runtime[i]), 1.0
    while left:
        probability *= math.exp(-cost[left[0]]) / sum(math.exp(-cost[i]) for i in left)
        left.pop(0)
    return probability


@pytest.mark.parametrize("margin", [1.0, 0.01, 0.0])
@pytest.mark.parametrize("values", [None, 3, 1])
def test_hinge_is_the_mean_over_strictly_ordered_pairs(margin, values):
    for seed in range(5):
        cost, runtime = drawn(seed, values=values)
        assert float(pairwise_hinge_loss(cost, runtime, margin)) == pytest.approx(
            slow_hinge(cost.tolist(), runtime.tolist(), margin), abs=1e-12)


@pytest.mark.parametrize("values", [None, 3, 1])
def test_the_standardised_hinge_is_that_of_costs_on_one_scale(values):
    for seed in range(5):
        cost, runtime = drawn(seed, values=values)
        scaled = (2 * (cost.numpy() - cost.numpy().mean()) / cost.numpy().std()).tolist()
        expected = pytest.approx(slow_hinge(scaled, runtime.tolist(), 1.0), abs=1e-12)
        assert float(standardised_hinge_loss(cost, runtime)) == expected
        assert float(standardised_hinge_loss(1e6 * cost - 3, runtime)) == expected


def test_the_standardised_hinge_of_equal_costs_has_a_finite_slope():
    cost = torch.ones(4, requires_grad=True)
    value = standardised_hinge_loss(cost, torch.tensor([1, 2, 3, 4]))
    value.backward()
    assert float(value.detach()) == 1 and torch.isfinite(cost.grad).all()


@pytest.mark.parametrize("values", [None, 3, 1])
def test_list_mle_is_the_likelihood_of_the_measured_order(values):
    for seed in range(5):
        cost, runtime = drawn(seed, values=values)
        assert float(list_mle_loss(cost, runtime)) == pytest.approx(
            -math.log(plackett_luce(cost.tolist(), runtime.tolist())) / len(cost), abs=1e-12)


@LOSSES
@pytest.mark.parametrize("values", [None, 3])
def test_gradients_are_those_of_finite_differences(loss, values):
    cost, runtime = drawn(0, values=values)
    assert torch.autograd.gradcheck(lambda c: loss(c, runtime), cost.requires_grad_())


@LOSSES
def test_only_differences_of_costs_and_the_order_of_runtimes_matter(loss):
    cost, runtime = drawn(3)
    expected = pytest.approx(float(loss(cost, runtime)), abs=1e-12)
    assert float(loss(cost + 100, runtime)) == expected
    assert float(loss(cost, (runtime - 10 ** 6) ** 3)) == expected
    assert float(loss(cost, runtime.double() / 3)) == expected


@pytest.mark.parametrize("base", [2 ** 24, 2 ** 53, 2 ** 62])
@LOSSES
def test_runtimes_that_differ_by_one_ns_are_told_apart(loss, base):
    cost = torch.tensor([0.0, 3.0, 1.0])
    near, far = torch.tensor([base + 1, base, base + 2]), torch.tensor([1, 0, 2])
    assert torch.equal(loss(cost, near), loss(cost, far))
    assert loss(cost, near) > 1 > 0.5 > loss(cost.sort()[0], near.sort()[0])


@LOSSES
def test_one_configuration_has_no_loss(loss):
    cost = torch.tensor([2.0], requires_grad=True)
    value = loss(cost, torch.tensor([5]))
    value.backward()
    assert value == 0 and cost.grad == 0


@LOSSES
def test_huge_costs_stay_finite(loss):
    cost = torch.tensor([1e4, -1e4, 0.0], requires_grad=True)
    value = loss(cost, torch.tensor([1, 2, 3]))
    value.backward()
    assert value.isfinite() and cost.grad.isfinite().all()
