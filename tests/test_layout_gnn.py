"""The layout network against its slow dense twin, and what every model's costs must not depend on."""
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from drawn import (
    NEAR,
    WRITTEN_OTHERWISE,
    costs,
    drawn_layout,
    drawn_neighbours,
    drawn_tile,
    held,
    ready,
    slow_neighbours,
    slow_nodes,
    some_configs,
)
from torch import nn

from kit.agreement import agreement_tables
from kit.data import dense_configs, npz_paths, read_layout
from kit.models import (
    ConfigTokenModel,
    ConfigTokenSettings,
    LayoutGNN,
    LayoutGNNSettings,
    TileModel,
    TileModelSettings,
    without_edges,
)
from kit.pad import repad_layout
from kit.prune import prune

TINY = LayoutGNNSettings(width=8, opcode_width=3, digit_width=2, squeeze=2)
ALONE = dataclasses.replace(TINY, config_attention=False)
AGREES = dataclasses.replace(ALONE, agreement=True)
LAYOUT = pytest.mark.parametrize("settings", [TINY, ALONE, AGREES], ids=["attention", "no attention", "agreement"])


def slow_agreement(model, graph, one):
    """What agreement adds to the first layer of each node in configuration `one`, pair by pair -> (n, out)."""
    tables = agreement_tables(graph)
    codes = [graph.config_codes[one, group] for group in graph.node_group]
    as_producer, as_consumer = np.zeros((2, len(codes), 12), np.float32)
    for (v, u), table in zip(tables.pairs, tables.pair, strict=True):
        as_producer[v] += tables.rows[table[codes[v], codes[u]], :12]
        as_consumer[u] += tables.rows[table[codes[v], codes[u]], :12]
    added = torch.zeros(len(graph.node_feat), model.own.out_features)
    for place, node in enumerate(graph.node_config_ids):
        pairs = np.concatenate([as_producer[place], as_consumer[place]])
        added[node] = model.own.weight @ torch.tensor(tables.own[place, codes[place], :14]) + \
            model.pair.weight @ torch.tensor(pairs)
    return added


@torch.no_grad()
def slow_layout_costs(model, graph, index, fitted_on):
    """The published network over dense (c, n, features), with every configuration's input written out."""
    s = model.settings
    def norm(x):                                                   # (c, n, F): over the nodes
        return nn.InstanceNorm1d(x.shape[2])(x.swapaxes(1, 2)).swapaxes(1, 2) if s.node_norm else x
    def finish(x, block):
        end = model.ends[block]
        if s.squeeze:
            x = x * end.excite(end.squeeze(x).relu()).sigmoid()
        if s.config_attention:
            x = torch.cat([x, x * (x / end.temperature).softmax(dim=0)], dim=2)
        return x
    nodes = slow_nodes(model, graph, fitted_on)
    digits = np.full((len(index), len(nodes), 18), -2)
    digits[:, graph.node_config_ids] = dense_configs(graph, index)
    digits = model.digit(torch.tensor(digits) + 2).flatten(2)
    first = torch.cat([model.static.weight, model.config.weight], dim=1)
    x = torch.cat([nodes.expand(len(index), -1, -1), digits], dim=2) @ first.T + model.static.bias
    if s.agreement:
        x = x + torch.stack([slow_agreement(model, graph, one) for one in index])
    x = F.gelu(finish(norm(x), 0))
    for block, linear in enumerate(model.linears, start=1):
        x = F.gelu(finish(norm(linear(x)), block))
    for block, sage in enumerate(model.sages, start=s.linear_blocks):
        h = norm(x)
        update = sage.own(h)
        ways = [graph.edge_index, graph.edge_index[:, ::-1]]
        for weights, edges in zip(sage.neighbours, ways[:2 if s.both_directions else 1], strict=True):
            update = update + weights(torch.stack([slow_neighbours(one, edges) for one in h]))
        x = F.gelu(x + finish(update, block))
    return model.head(x.mean(dim=1)).ravel()


@pytest.mark.parametrize("config_attention", [False, True])
@pytest.mark.parametrize("both_directions", [False, True])
@pytest.mark.parametrize("node_norm, squeeze, blocks", [(False, 2, (2, 2)), (True, 2, (3, 1)), (True, 0, (1, 0))])
def test_the_layout_network_is_its_slow_dense_twin(config_attention, both_directions, node_norm, squeeze, blocks):
    settings = dataclasses.replace(TINY, config_attention=config_attention, both_directions=both_directions,
                                   node_norm=node_norm, squeeze=squeeze, linear_blocks=blocks[0],
                                   graph_blocks=blocks[1])
    graphs = [drawn_layout(0), drawn_layout(1, n=8, m=0, c=3), drawn_layout(3, k=300, c=9, codes=np.uint16)]
    graphs[2].config_codes[:3] = [[299], [43], [43]]                # codes that differ by 256
    model = ready(LayoutGNN(settings), *graphs)
    for graph in graphs:
        for index in ([2, 0], [1, 1, 2]):
            slow = slow_layout_costs(model, graph, index, graphs)
            assert torch.allclose(costs(model, graph, index), slow, **NEAR)
            assert node_norm is False or len(index) == 3 or abs(slow[0] - slow[1]) > 1e-4


@pytest.mark.parametrize("config_attention", [False, True])
def test_agreement_is_its_slow_dense_twin(config_attention):
    settings = dataclasses.replace(AGREES, config_attention=config_attention)
    graphs = [drawn_neighbours(0), drawn_neighbours(1, c=3, g=6), drawn_layout(2, m=0)]
    assert [len(agreement_tables(g).pairs) > 2 for g in graphs] == [True, True, False]
    model = ready(LayoutGNN(settings), *graphs)
    for graph in graphs:
        for index in ([2, 0], [1, 1, 2]):
            slow = slow_layout_costs(model, graph, index, graphs)
            assert torch.allclose(costs(model, graph, index), slow, **NEAR)
            assert not torch.allclose(slow, slow_layout_costs(model, drawn_neighbours(9), index, graphs), **NEAR)


def test_a_real_file_is_its_slow_dense_twin(real_data):
    path, = [p for p in npz_paths(real_data / "npz", "layout:xla:default", "train") if "alexnet" in p.stem]
    graph = prune(some_configs(read_layout(path), [0, 7, 20_000]))
    for settings in (TINY, AGREES):
        model = ready(LayoutGNN(settings), graph)
        assert torch.allclose(costs(model, graph), slow_layout_costs(model, graph, range(3), [graph]), **NEAR)


def test_the_default_network_has_the_parameters_of_the_published_one():
    linear = (134 + 16 + 6 * 4 + 18 * 4) * 128 + 128 + 256 * 128 + 128
    sage = 2 * (256 * 128 + 128 + 256 * 128)
    gates, temperatures = 4 * (128 * 16 + 16 + 16 * 128 + 128), 4
    tables, head = 121 * 16 + 8 * 4, 256 + 1                       # it had 120 opcodes; there are 121
    assert sum(p.numel() for p in LayoutGNN().parameters()) == linear + sage + gates + temperatures + tables + head


@LAYOUT
@pytest.mark.parametrize("change", WRITTEN_OTHERWISE)
def test_costs_do_not_depend_on_how_a_graph_is_written(settings, change):
    graph = drawn_neighbours(4)
    other = change(graph, np.random.default_rng(0))
    model = ready(LayoutGNN(settings), graph)
    assert torch.allclose(costs(model, other), costs(model, graph), **NEAR)


def test_only_attention_makes_a_cost_depend_on_its_company():
    graph = drawn_layout(7)
    for attention in (True, False):
        model = ready(LayoutGNN(dataclasses.replace(TINY, config_attention=attention)), graph)
        together, apart = costs(model, graph, [0, 1, 2])[0], costs(model, graph, [0, 4])[0]
        assert torch.allclose(together, apart, **NEAR) == (not attention)
        assert model.transductive == attention


@LAYOUT
@pytest.mark.parametrize("without", [dict(nc=0, g=0, k=1), dict(nc=0, g=0, k=1, m=0), dict(k=1)],
                         ids=["configurable nodes", "configurable nodes and edges", "a second code"])
def test_a_graph_without_a_choice_has_one_cost(settings, without):
    graph = drawn_neighbours(9, **without)
    found = costs(ready(LayoutGNN(settings), graph), graph)
    assert found.isfinite().all() and torch.allclose(found, found[:1].expand(7), **NEAR)


@pytest.mark.parametrize("change, message", [
    (dict(width=0), "width is 0; expected a whole number of at least 1"),
    (dict(width=7), "width is 7; attention over configurations doubles a half, so it must be even"),
    (dict(config_attention="together"), "config_attention is 'together'; expected True or False"),
    (dict(aggregation="dense"), "aggregation is 'dense'; expected 'sparse' or 'scatter'"),
    (dict(dropout=float("nan")), "dropout is nan; expected at least 0 and less than 1")], ids=str)
def test_settings_that_mean_nothing_are_refused(change, message):
    with pytest.raises(ValueError) as error:
        LayoutGNNSettings(**change)
    assert str(error.value) == message
    assert LayoutGNNSettings(width=7, config_attention=False).width == 7


@LAYOUT
@pytest.mark.parametrize("training", [False, True])
def test_under_autocast_costs_are_float32_and_near_those_without(settings, training):
    graph = drawn_neighbours(8, n=40, m=80, nc=10)
    model = ready(LayoutGNN(dataclasses.replace(settings, width=16, dropout=0.0)), graph).train(training)
    exact = costs(model, graph)
    with torch.autocast("cpu", torch.bfloat16):
        near = model(model.prepare(graph), torch.arange(7))
    assert near.dtype == torch.float32 and (near - exact).abs().max() < 0.05
    assert not torch.equal(near, exact) and len(near.unique()) == 7
    near.sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


CASES = {"layout": (LayoutGNN, TINY, drawn_neighbours), "agreement": (LayoutGNN, AGREES, drawn_neighbours),
         "tokens": (ConfigTokenModel, ConfigTokenSettings(width=8, token_width=4), drawn_neighbours),
         "tile": (TileModel, TileModelSettings(width=8), drawn_tile)}
MODELS = pytest.mark.parametrize("network, settings, drawn", CASES.values(), ids=CASES)


@MODELS
def test_padding_may_be_repaired_already(network, settings, drawn):
    graph = drawn()
    repaired, _ = repad_layout(graph.node_feat)
    assert (repaired != graph.node_feat).any()
    model = ready(network(settings), graph)
    assert torch.equal(costs(model, graph._replace(node_feat=repaired)), costs(model, graph))


@MODELS
def test_a_seed_gives_the_same_weights_and_another_seed_others(network, settings, drawn):
    def weights(seed):
        return nn.utils.parameters_to_vector(network(dataclasses.replace(settings, seed=seed)).parameters())
    first = weights(0)
    torch.rand(3)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)


@MODELS
def test_everything_a_prediction_needs_travels_in_the_state(network, settings, drawn):
    graph = drawn()
    model = ready(network(settings), graph)
    other = network(dataclasses.replace(settings, seed=5)).eval()
    assert model.fitted and not other.fitted
    other.load_state_dict(model.state_dict())
    assert other.fitted and torch.equal(costs(other, graph), costs(model, graph))


@MODELS
def test_every_parameter_learns(network, settings, drawn):
    graph = drawn()
    model = ready(network(settings), graph)
    found = model(model.prepare(graph), torch.arange(6))
    (found * torch.arange(6)).sum().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not silent


@MODELS
def test_dropout_works_in_training_alone(network, settings, drawn):
    graph = drawn()
    model = ready(network(dataclasses.replace(settings, dropout=0.5)), graph)
    assert torch.equal(costs(model, graph), costs(model, graph))
    model.train()
    with torch.random.fork_rng():
        assert not torch.equal(costs(model, graph), costs(model, graph))


@MODELS
def test_a_configuration_holds_no_more_bytes_than_its_budget_says(network, settings, drawn, monkeypatch):
    monkeypatch.setattr("kit.models.fused.CPU_BLOCK", 1 << 10)          # as small beside the graph as at real sizes
    graph = drawn(c=400)
    for wider in (1, 4):
        model = ready(network(dataclasses.replace(settings, width=wider * settings.width)), graph)
        tensors = model.prepare(graph)
        each = (held(model, tensors, 400) - held(model, tensors, 200)) / 200       # what all share cancels
        said = (1 << 40) / model.configs_within(tensors, 1 << 40)
        assert 0.3 * said < each <= 1.01 * said


def test_only_what_is_counted_is_pooled():
    graph = drawn_neighbours(13)
    model = ready(LayoutGNN(AGREES), graph)
    whole = model.pooled(model.prepare(graph), torch.arange(7))
    assert torch.equal(model.pooled(model.prepare(graph, np.ones(14, bool)), torch.arange(7)), whole)
    each = torch.stack([model.pooled(model.prepare(graph, np.arange(14) == node), torch.arange(7))
                        for node in range(14)])
    some = np.isin(np.arange(14), [0, 3, 4, 11])
    for counted in (some, ~some):
        expected = each[counted].mean(dim=0)
        assert torch.allclose(model.pooled(model.prepare(graph, counted), torch.arange(7)), expected, **NEAR)
    assert not torch.allclose(model.pooled(model.prepare(graph, some), torch.arange(7)), whole, **NEAR)


def test_a_gnn_without_edges_sees_each_node_but_no_edge():
    graph = drawn_layout(12)
    model = ready(LayoutGNN(without_edges(TINY)), graph)
    assert len(model.ends) == TINY.linear_blocks + TINY.graph_blocks and not model.transductive
    found = costs(model, graph)
    assert torch.allclose(costs(model, graph._replace(edge_index=graph.edge_index[:0])), found, **NEAR)
    # with no norm and no messages, a graph twice has the same mean over nodes
    n = len(graph.node_feat)
    twice = graph._replace(node_feat=np.tile(graph.node_feat, (2, 1)), node_opcode=np.tile(graph.node_opcode, 2),
                           node_config_ids=np.concatenate([graph.node_config_ids, graph.node_config_ids + n]),
                           node_group=np.tile(graph.node_group, 2), code_rows=np.tile(graph.code_rows, (2, 1, 1)))
    assert torch.allclose(costs(model, twice), found, **NEAR)
    assert found.std() > 1e-4
