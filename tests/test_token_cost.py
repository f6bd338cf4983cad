"""The cost of codes under a token model whose tables are computed once."""
import pytest
import torch

from kit.data import npz_paths, read_layout
from kit.models.config_token import ConfigTokenModel
from kit.search.token_cost import on_codes, relaxed_token_cost


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
