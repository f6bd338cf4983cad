"""Gradient search on relaxed codes: relaxed costs against the discrete ones, the search against brute force."""
import itertools

import numpy as np
import pytest
import torch

from kit.data import npz_paths, read_layout
from kit.models.config_token import ConfigTokenModel
from kit.search.gradient import gradient_search, on_codes, relaxed_token_cost

DIMS = [3, 1, 4, 2, 3]


def drawn_relaxed(seed, dims=DIMS):
    """Costs of single values and of pairs of neighbouring coordinates: (relaxed cost, cost of codes)."""
    rng = np.random.default_rng(seed)
    alone, pairs = rng.normal(size=(len(dims), max(dims))), rng.normal(size=(len(dims) - 1, max(dims), max(dims)))

    def relaxed(weights):
        one, two = (torch.as_tensor(a, dtype=weights.dtype) for a in (alone, pairs))
        both = torch.einsum("kgv,gvw,kgw->k", weights[:, :-1], two, weights[:, 1:])
        return torch.einsum("kgv,gv->k", weights, one) + both

    def cost(points):
        first, second = points[:, :-1], points[:, 1:]
        return alone[np.arange(len(dims)), points].sum(1) + pairs[np.arange(len(dims) - 1), first, second].sum(1)
    return relaxed, cost


def space(dims):
    return np.array(list(itertools.product(*map(range, dims))))


@pytest.mark.parametrize("seed", range(3))
def test_the_walks_find_the_best_code_of_a_small_space(seed):
    relaxed, cost = drawn_relaxed(seed)
    found = gradient_search(cost, DIMS, 5, np.random.default_rng(seed), relaxed=relaxed, queries=3000)
    assert found.best_cost == cost(space(DIMS)).min()
    assert cost(found.best[None]) == found.best_cost


def test_only_the_best_proposals_are_measured_and_queries_are_counted_apart():
    dims = [5, 1, 4, 2] * 4
    relaxed, cost = drawn_relaxed(1, dims)
    asked = {"relaxed": 0, "objective": []}

    def counted(weights):
        assert weights.sum(dim=2).numpy(force=True) == pytest.approx(1, abs=1e-5)
        assert not weights[:, np.arange(max(dims)) >= np.array(dims)[:, None]].any(), "a value that is not there"
        asked["relaxed"] += len(weights)
        return relaxed(weights)

    def objective(points):
        asked["objective"] += points.tolist()
        return -cost(points)
    found = gradient_search(objective, dims, 7, np.random.default_rng(1), relaxed=counted, queries=500)
    assert found.queries == asked["relaxed"] <= 500
    assert found.measurements == len(asked["objective"]) == 7
    order = cost(found.points)
    assert (np.diff(order) >= 0).all(), "the model's best first"
    assert found.best_cost == -order.max() == found.costs.min()


@pytest.mark.parametrize("queries", [2, 3, 9, 100])
def test_queries_are_never_more_than_allowed(queries):
    relaxed, cost = drawn_relaxed(2)
    found = gradient_search(cost, DIMS, 50, np.random.default_rng(0), relaxed=relaxed, queries=queries)
    assert 2 <= found.queries <= queries


def test_equal_seeds_walk_alike_and_noise_depends_on_the_seed():
    relaxed, cost = drawn_relaxed(3, [5] * 12)
    first, again, other = (gradient_search(cost, [5] * 12, 20, np.random.default_rng(seed), relaxed=relaxed,
                                           queries=800) for seed in (0, 0, 1))
    assert (first.points == again.points).all() and (first.trace == again.trace).all()
    assert first.points.tolist() != other.points.tolist()


def test_the_scale_of_a_relaxed_cost_does_not_matter():
    relaxed, cost = drawn_relaxed(4, [5] * 12)
    first, scaled = (gradient_search(cost, [5] * 12, 20, np.random.default_rng(0), queries=1600,
                                     relaxed=lambda weights, by=by: by * relaxed(weights)) for by in (1, 1024))
    assert first.points.tolist() == scaled.points.tolist()


def test_a_flat_cost_and_a_space_of_one_point_are_no_trouble():
    found = gradient_search(lambda points: points.sum(axis=1), [1, 1], 9, np.random.default_rng(0),
                            relaxed=lambda weights: weights.sum(dim=(1, 2)), queries=100)
    assert (found.best.tolist(), found.measurements) == ([0, 0], 1)


def test_too_few_queries_are_refused():
    relaxed, cost = drawn_relaxed(0)
    with pytest.raises(ValueError, match="queries is 1; expected a whole number of at least 2"):
        gradient_search(cost, DIMS, 9, np.random.default_rng(0), relaxed=relaxed, queries=1)


@pytest.fixture(scope="module")
def token_model(tiny_sample):
    graph = read_layout(npz_paths(tiny_sample, "layout:xla:random", "train")[0])
    model = ConfigTokenModel()
    model.fit_scale([graph])
    with torch.no_grad():
        for parameter in model.parameters():           # initial weights leave some parts near 0
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    return graph, model, model.prepare(graph)


def test_the_relaxed_cost_of_a_token_model_is_its_cost_on_codes(token_model):
    graph, model, tensors = token_model
    model.train()
    relaxed = relaxed_token_cost(model, tensors)
    assert model.training and all(module.training for module in model.modules()), "left as it was"
    model.eval()
    dims = graph.config_codes.max(axis=0).astype(int) + 1
    with torch.no_grad():
        expected = model(tensors, torch.arange(len(graph.config_codes))).numpy()
    assert expected.std() > 0
    assert on_codes(relaxed, dims)(graph.config_codes) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_token_model_s_space_is_searched_by_gradient(token_model):
    graph, model, tensors = token_model
    dims = graph.config_codes.max(axis=0).astype(int) + 1
    relaxed = relaxed_token_cost(model, tensors)
    cost = on_codes(relaxed, dims)
    found = gradient_search(cost, dims, 3, np.random.default_rng(0), relaxed=relaxed, queries=3000)
    drawn = np.random.default_rng(1).integers(dims, size=(1000, len(dims)))
    assert found.best_cost <= cost(drawn).min() * (1 + 1e-6)       # a large batch is summed in another order
