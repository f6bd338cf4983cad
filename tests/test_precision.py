"""Whatever a caller has set in PyTorch, the kit computes the same bytes, and what was set is set afterwards."""
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from training import GRAPHS, SHORT, TINY, VALID, Plain, drawn_tile, tau

from kit.metrics import kendall_tau
from kit.models import (
    AdditiveTrees,
    BoostedTrees,
    ConfigTokenModel,
    ConfigTokenSettings,
    LayoutGNN,
    SegmentGNN,
    SegmentGNNSettings,
    TileModel,
    TileModelSettings,
    explain,
)
from kit.predict import predict
from kit.search import guided, on_codes, relaxed_token_cost
from kit.train import train
from kit.train_parts import load_checkpoint

TOKEN = ConfigTokenSettings(width=8, token_width=8)
SMALL = TINY.__dict__ | {"segment_nodes": 6}


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def autocast_for_long():
    """With a model whose weights autocast has rounded, and remembers."""
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.float16):
        layer = torch.nn.Linear(2, 2)
        layer(torch.ones(2, 2))
        yield


STATES = {
    "autocast to bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast to float16": lambda: torch.autocast("cpu", torch.float16),
    "autocast within autocast": autocast_for_long,
    "no_grad": torch.no_grad, "inference_mode": torch.inference_mode,
    "float64": lambda: default_dtype(torch.float64), "bfloat16": lambda: default_dtype(torch.bfloat16),
    "float16": lambda: default_dtype(torch.float16),
    "default device": lambda: default_device("meta"), "device": lambda: torch.device("meta"),
}
MODELS = {
    "token": lambda: ConfigTokenModel(TOKEN), "gnn": lambda: LayoutGNN(TINY),
    "segments": lambda: SegmentGNN(SegmentGNNSettings(**SMALL)), "tile": lambda: TileModel(TileModelSettings(width=8)),
    "trees": BoostedTrees, "additive": AdditiveTrees,
}
each_state = pytest.mark.parametrize("state", STATES)


def state_of():
    """What PyTorch does with new numbers and products."""
    layer = torch.ones(2, 2, requires_grad=True)
    return (torch.get_default_dtype(), torch.ones(1).device, (layer @ torch.ones(2, 2)).dtype,
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
            torch.autocast_increment_nesting(), torch.autocast_decrement_nesting())


def results(name, precision, folder):
    """All that a model gives: weights, losses, scores, costs, terms of a cost, and what a search finds, as bytes."""
    graphs = [drawn_tile(seed) for seed in range(4)] if name == "tile" else [*GRAPHS, VALID[0]]
    model, path = MODELS[name](), folder / "model.ckpt"
    path.unlink(missing_ok=True)
    history = train(model, graphs[:3], replace(SHORT, precision=precision), valid=graphs[3:], score=tau,
                    checkpoint=path)
    found = [value.detach().double().numpy().tobytes() for value in model.state_dict().values()]
    found += [repr(history["loss"]), repr(history["score"]), predict(model, graphs[3], precision=precision).tobytes()]
    again = MODELS[name]()
    load_checkpoint(path, again)
    found.append(predict(again, graphs[3], tensors=again.prepare(graphs[3])).tobytes())
    if name == "token":
        graph, dims = graphs[3], [4, 4, 4]
        parts = explain(model, graph, graph.config_codes[0], graph.config_codes[1])
        cost = on_codes(relaxed_token_cost(model, model.prepare(graph)), dims)
        points = guided(cost, dims, 5, np.random.default_rng(0), model=cost, queries=50)
        found += [parts.nodes.tobytes(), parts.pairs.tobytes(), parts.rest, points.points.tobytes(), repr(points.costs)]
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    found = {}

    def of(*kind):
        if kind not in found:
            found[kind] = results(*kind, tmp_path_factory.mktemp("plain"))
        return found[kind]
    return of


@pytest.mark.parametrize("name", MODELS)
@each_state
def test_a_caller_s_state_changes_no_byte_and_is_there_afterwards(state, name, expected, tmp_path):
    usual = expected(name, "float32")
    with STATES[state]():
        before = state_of()
        assert results(name, "float32", tmp_path) == usual
        assert state_of() == before


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@each_state
def test_the_precision_that_is_asked_for_is_the_one_that_is_computed_with(state, precision, expected, tmp_path):
    usual = expected("token", precision)
    with STATES[state]():
        assert results("token", precision, tmp_path) == usual
    assert usual != expected("token", "float32")


@each_state
def test_the_state_is_there_after_an_error(state):
    with STATES[state]():
        before = state_of()
        with pytest.raises(ValueError, match="settings"):
            ConfigTokenModel(3)
        with pytest.raises(ValueError, match="no feature statistics"):
            predict(ConfigTokenModel(TOKEN), GRAPHS[0])
        assert state_of() == before


def test_a_model_that_was_rounded_before_by_autocast_is_used_as_it_is_afterwards():
    model = ConfigTokenModel(TOKEN)
    with torch.autocast("cpu", torch.bfloat16):
        model.fit_scale(GRAPHS)
        tensors, index = model.prepare(GRAPHS[0]), torch.arange(4)
        model(tensors, index)                            # autocast keeps its rounded weights
        train(model, GRAPHS, SHORT)
        model.eval()
        after = model(tensors, index)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(tensors, index), after)


@pytest.mark.parametrize("make, words", [
    (torch.inference_mode, "the weights cost of the model were made within torch.inference_mode, so they cannot be tr"),
    (lambda: torch.device("meta"), "the weights cost of the model were made on the device meta, so they cannot be tr")])
def test_weights_of_one_s_own_model_that_cannot_be_trained_are_named(make, words):
    with make():
        model = Plain()
        with pytest.raises(ValueError, match=words):
            train(model, GRAPHS, SHORT)


@pytest.mark.parametrize("cast, found", [("double", "float64"), ("half", "float16"), ("bfloat16", "bfloat16")])
def test_weights_of_another_type_are_named(cast, found):
    model = getattr(ConfigTokenModel(TOKEN), cast)()
    for call in (lambda: train(model, GRAPHS, SHORT), lambda: model.prepare(GRAPHS[0])):
        with pytest.raises(ValueError, match=f"type of the weights is torch.{found}; expected torch.float32; call the"):
            call()
    train(model.float(), GRAPHS, SHORT)
    assert np.isfinite(kendall_tau(predict(model, GRAPHS[0]), GRAPHS[0].config_runtime))
