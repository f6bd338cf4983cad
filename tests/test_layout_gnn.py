"""The layout network against its slow dense twin, and what every model's costs must not depend on."""
import dataclasses
import random

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
    node_alone,
)
from kit.models.layout_gnn import reference_configs
from kit.pad import repad_layout
from kit.prune import prune

TINY = LayoutGNNSettings(width=8, opcode_width=3, digit_width=2, squeeze=2)
ALONE = dataclasses.replace(TINY, config_attention=False)
AGREES = dataclasses.replace(ALONE, agreement=True)
REFERS = dataclasses.replace(TINY, config_attention="reference", reference_configs=3, reinject=True, pool="mean+max")
LAYOUT = pytest.mark.parametrize("settings", [TINY, ALONE, AGREES, REFERS],
                                 ids=["attention", "no attention", "agreement", "references"])


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
    s, many = model.settings, len(index)
    if s.config_attention == "reference":
        index = [*index, *reference_configs(graph, s.reference_configs)]
    def norm(x):                                                   # (c, n, F): over the nodes
        return nn.InstanceNorm1d(x.shape[2])(x.swapaxes(1, 2)).swapaxes(1, 2) if s.node_norm else x
    def finish(x, block):
        end = model.ends[block]
        if s.squeeze:
            x = x * end.excite(end.squeeze(x).relu()).sigmoid()
        if s.config_attention is True:
            x = torch.cat([x, x * (x / end.temperature).softmax(dim=0)], dim=2)
        if s.config_attention == "reference":
            score = (x / end.temperature).exp()
            x = torch.cat([x, x * score / (score + score[many:].sum(dim=0))], dim=2)
        return x
    def again(x, block):
        if s.reinject:
            x[:, graph.node_config_ids] += digits[:, graph.node_config_ids] @ model.again[block - 1].weight.T
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
        x = F.gelu(finish(norm(again(linear(x), block)), block))
    for block, sage in enumerate(model.sages, start=s.linear_blocks):
        h = norm(x)
        update = sage.own(h)
        ways = [graph.edge_index, graph.edge_index[:, ::-1]]
        for weights, edges in zip(sage.neighbours, ways[:2 if s.both_directions else 1], strict=True):
            update = update + weights(torch.stack([slow_neighbours(one, edges) for one in h]))
        x = F.gelu(x + finish(again(update, block), block))
    pooled = torch.cat([x.mean(dim=1), x.amax(dim=1)], dim=1) if s.pool == "mean+max" else x.mean(dim=1)
    return model.head(pooled).ravel()[:many]


@pytest.mark.parametrize("config_attention", [False, True])
@pytest.mark.parametrize("both_directions", [False, True])
@pytest.mark.parametrize("node_norm", [False, True])
def test_the_layout_network_is_its_slow_dense_twin(config_attention, both_directions, node_norm):
    settings = dataclasses.replace(TINY, config_attention=config_attention, both_directions=both_directions,
                                   node_norm=node_norm)
    graphs = [drawn_layout(0), drawn_layout(1, n=8, m=0, c=3)]
    model = ready(LayoutGNN(settings), *graphs)
    for graph in graphs:
        for index in ([2, 0], [1, 1, 2]):
            slow = slow_layout_costs(model, graph, index, graphs)
            assert torch.allclose(costs(model, graph, index), slow, **NEAR)
            assert node_norm is False or len(index) == 3 or abs(slow[0] - slow[1]) > 1e-4


@pytest.mark.parametrize("change", [dict(config_attention="reference"),
                                    dict(config_attention="reference", pool="mean+max"), dict(reinject=True),
                                    dict(reinject=True, linear_blocks=3, graph_blocks=0), dict(pool="mean+max"),
                                    dict(squeeze=0), dict(squeeze=0, config_attention=False)], ids=str)
def test_a_technique_is_its_slow_dense_twin_and_makes_a_difference(change):
    graphs = [drawn_layout(0), drawn_neighbours(1, c=3, g=6)]
    model = ready(LayoutGNN(dataclasses.replace(TINY, **change)), *graphs)
    plain = ready(LayoutGNN(TINY), *graphs)
    for graph in graphs:
        for index in ([2, 0], [1, 1, 2]):
            slow = slow_layout_costs(model, graph, index, graphs)
            assert torch.allclose(costs(model, graph, index), slow, **NEAR)
            assert not torch.allclose(slow, slow_layout_costs(plain, graph, index, graphs), **NEAR)


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


def test_agreement_adds_two_linear_layers_and_changes_nothing_without_them():
    plain, agreeing = (dict(LayoutGNN(s).named_parameters()) for s in (ALONE, AGREES))
    assert {name: p.shape for name, p in agreeing.items() if name not in plain} == {
        "own.weight": (8, 14), "pair.weight": (8, 24)}
    assert not node_alone(AGREES).agreement
    graph = drawn_neighbours(3)
    model = ready(LayoutGNN(AGREES), graph)
    blind = ready(LayoutGNN(ALONE), graph)
    blind.load_state_dict({name: value for name, value in model.state_dict().items() if name in blind.state_dict()})
    assert not torch.allclose(costs(model, graph), costs(blind, graph), **NEAR)
    with torch.no_grad():
        model.own.weight.zero_(), model.pair.weight.zero_()
    assert torch.equal(costs(model, graph), costs(blind, graph))


@pytest.mark.parametrize("blocks", [(1, 0), (1, 1), (3, 3)])
def test_any_number_of_blocks_is_its_slow_dense_twin(blocks):
    graph = drawn_layout(2)
    model = ready(LayoutGNN(dataclasses.replace(TINY, linear_blocks=blocks[0], graph_blocks=blocks[1])), graph)
    assert torch.allclose(costs(model, graph), slow_layout_costs(model, graph, range(7), [graph]), **NEAR)


def test_more_than_256_codes_are_told_apart():
    graph = drawn_layout(3, k=300, c=9, codes=np.uint16)
    graph.config_codes[0], graph.config_codes[1] = 299, 43          # 43 = 299 - 256
    model = ready(LayoutGNN(TINY), graph)
    assert torch.allclose(costs(model, graph), slow_layout_costs(model, graph, range(9), [graph]), **NEAR)


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


@LAYOUT
def test_costs_follow_the_configurations(settings):
    graph = drawn_layout(5)
    model, order = ready(LayoutGNN(settings), graph), [3, 0, 6, 5, 1, 2, 4]
    shuffled = graph._replace(config_codes=graph.config_codes[order], config_runtime=graph.config_runtime[order])
    assert torch.allclose(costs(model, shuffled), costs(model, graph)[order], **NEAR)
    assert torch.allclose(costs(model, graph, order), costs(model, graph)[order], **NEAR)


def test_only_attention_to_all_makes_a_cost_depend_on_its_company():
    graph = drawn_layout(7)
    for attention in (True, False, "reference"):
        model = ready(LayoutGNN(dataclasses.replace(TINY, config_attention=attention)), graph)
        together, apart = costs(model, graph, [0, 1, 2])[0], costs(model, graph, [0, 4])[0]
        assert torch.allclose(together, apart, **NEAR) == (attention is not True)
        assert model.transductive == (attention is True)


@LAYOUT
@pytest.mark.parametrize("without", [dict(nc=0, g=0, k=1), dict(nc=0, g=0, k=1, m=0), dict(k=1)],
                         ids=["configurable nodes", "configurable nodes and edges", "a second code"])
def test_a_graph_without_a_choice_has_one_cost(settings, without):
    graph = drawn_neighbours(9, **without)
    found = costs(ready(LayoutGNN(settings), graph), graph)
    assert found.isfinite().all() and torch.allclose(found, found[:1].expand(7), **NEAR)


@LAYOUT
def test_a_graph_of_one_configurable_node_is_scored(settings):
    graph = drawn_layout(10, n=1, nc=1, g=1, m=0)
    assert costs(ready(LayoutGNN(settings), graph), graph).isfinite().all()


def test_a_cost_does_not_depend_on_a_graph_s_name_or_splits():
    graph = drawn_neighbours(6)
    model = ready(LayoutGNN(AGREES), graph)
    other = graph._replace(graph_id="other", node_splits=np.array([0, 3, 14]))
    assert torch.equal(costs(model, other), costs(model, graph))


@pytest.mark.parametrize("change, message", [
    (dict(width=0), "width is 0; expected a whole number of at least 1"),
    (dict(graph_blocks=1.0), "graph_blocks is 1.0; expected a whole number of at least 0"),
    (dict(linear_blocks=0), "linear_blocks is 0; expected a whole number of at least 1"),
    (dict(squeeze=True), "squeeze is True; expected a whole number of at least 0"),
    (dict(reference_configs=0), "reference_configs is 0; expected a whole number of at least 1"),
    (dict(width=7), "width is 7; attention over configurations doubles a half, so it must be even"),
    (dict(config_attention="together"), "config_attention is 'together'; expected True or False or 'reference'"),
    (dict(config_attention=1), "config_attention is 1; expected True or False or 'reference'"),
    (dict(pool="max"), "pool is 'max'; expected 'mean' or 'mean+max'"),
    (dict(reinject=None), "reinject is None; expected True or False"),
    (dict(aggregation="dense"), "aggregation is 'dense'; expected 'sparse' or 'scatter'"),
    (dict(dropout=1.0), "dropout is 1.0; expected at least 0 and less than 1"),
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
         "references": (LayoutGNN, REFERS, drawn_neighbours),
         "tokens": (ConfigTokenModel, ConfigTokenSettings(width=8, token_width=4), drawn_neighbours),
         "tile": (TileModel, TileModelSettings(width=8), drawn_tile)}
MODELS = pytest.mark.parametrize("network, settings, drawn", CASES.values(), ids=CASES)


@MODELS
def test_runtimes_are_not_read(network, settings, drawn):
    graph = drawn()
    model = ready(network(settings), graph)
    other = graph._replace(config_runtime=graph.config_runtime[::-1].copy())
    assert torch.equal(costs(model, other), costs(model, graph))


@MODELS
def test_padding_may_be_repaired_already(network, settings, drawn):
    graph = drawn()
    repaired, _ = repad_layout(graph.node_feat)
    assert (repaired != graph.node_feat).any()
    model = ready(network(settings), graph)
    assert torch.equal(costs(model, graph._replace(node_feat=repaired)), costs(model, graph))


@MODELS
def test_prepare_leaves_the_graph_alone(network, settings, drawn):
    graph = drawn()
    before = [np.copy(array) for array in graph[1:]]
    costs(ready(network(settings), graph), graph)
    assert all(np.array_equal(a, b) for a, b in zip(before, graph[1:], strict=True))


@MODELS
def test_a_seed_gives_the_same_weights_and_another_seed_others(network, settings, drawn):
    def weights(seed):
        return nn.utils.parameters_to_vector(network(dataclasses.replace(settings, seed=seed)).parameters())
    first = weights(0)
    torch.rand(3)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)


@MODELS
def test_building_and_scoring_leave_the_global_generators_alone(network, settings, drawn):
    graph = drawn()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()      # noqa: NPY002
    costs(ready(network(settings), graph), graph)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[2]
    assert np.array_equal(np.random.get_state()[1], before[1])                             # noqa: NPY002


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
def test_a_budget_holds_configurations_in_proportion_and_at_least_one(network, settings, drawn):
    graph = drawn()
    model = ready(network(settings), graph)
    tensors = model.prepare(graph)
    assert model.configs_within(tensors, 0) == 1
    twice = 2 * model.configs_within(tensors, 1 << 30)
    assert model.configs_within(tensors, 2 << 30) == pytest.approx(twice, abs=4)             # 3 references at most


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


@pytest.mark.parametrize("pool", ["mean", "mean+max"])
def test_only_what_is_counted_is_pooled(pool):
    graph = drawn_neighbours(13)
    model = ready(LayoutGNN(dataclasses.replace(AGREES, pool=pool)), graph)
    whole = model.pooled(model.prepare(graph), torch.arange(7))
    assert torch.equal(model.pooled(model.prepare(graph, np.ones(14, bool)), torch.arange(7)), whole)
    each = torch.stack([model.pooled(model.prepare(graph, np.arange(14) == node), torch.arange(7))
                        for node in range(14)])
    some = np.isin(np.arange(14), [0, 3, 4, 11])
    for counted in (some, ~some):
        mine = each[counted]                                                 # (n', k, width): of a node, mean = maximum
        expected = torch.cat([mine.mean(dim=0)[:, :8], mine.amax(dim=0)[:, 8:]], dim=1)
        assert torch.allclose(model.pooled(model.prepare(graph, counted), torch.arange(7)), expected, **NEAR)
    assert not torch.allclose(model.pooled(model.prepare(graph, some), torch.arange(7)), whole, **NEAR)


def test_node_alone_sees_each_node_but_no_edge():
    graph = drawn_layout(12)
    model = ready(LayoutGNN(node_alone(TINY)), graph)
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


def rows_by_node(graph, index):
    """The configured digits of each node, found by its features: the same however nodes are numbered."""
    order = np.lexsort(graph.node_feat[graph.node_config_ids].T)
    return dense_configs(graph, index)[:, order]


@pytest.mark.parametrize("change", WRITTEN_OTHERWISE)
def test_references_do_not_depend_on_how_a_graph_is_written(change):
    graph = drawn_layout(4, c=30)
    other = change(graph, np.random.default_rng(0))
    found, theirs = reference_configs(graph, 5), reference_configs(other, 5)
    assert np.array_equal(rows_by_node(other, theirs), rows_by_node(graph, found))


def test_references_do_not_depend_on_the_order_of_configurations_or_on_runtimes():
    graph, order = drawn_layout(5, c=30), np.random.default_rng(0).permutation(30)
    shuffled = graph._replace(config_codes=graph.config_codes[order], config_runtime=graph.config_runtime * 0)
    assert np.array_equal(dense_configs(shuffled, reference_configs(shuffled, 5)),
                          dense_configs(graph, reference_configs(graph, 5)))


def test_references_are_distinct_and_no_more_than_there_are():
    graph = drawn_layout(6, c=5, k=9)
    graph = graph._replace(config_codes=graph.config_codes[[0, 1, 2, 3, 4, 0, 1, 1]])
    found = reference_configs(graph, 16)
    rows = dense_configs(graph, found).reshape(len(found), -1)
    assert len(found) == len(np.unique(rows, axis=0)) == len(np.unique(graph.config_codes, axis=0))
    assert found.tolist()[:2] == reference_configs(graph, 2).tolist()


@pytest.mark.parametrize("place", range(7))
def test_the_default_is_the_first_reference_if_there_is_one(place):
    graph = drawn_neighbours(7)
    graph.code_rows[:, 2] = -1
    graph.code_rows[:, [0, 1, 3], 0] = 1
    graph.config_codes[graph.config_codes == 2] = 1
    assert place in reference_configs(graph, 7) and len(reference_configs(graph, 1)) == 1
    graph.config_codes[place] = 2
    assert reference_configs(graph, 3)[0] == place


def test_every_configuration_is_a_reference_about_as_often():
    drawn = np.concatenate([reference_configs(drawn_layout(seed, c=40, k=50), 4) for seed in range(200)])
    counts = np.bincount(drawn, minlength=40)                  # 20 each
    assert counts.sum() == 800 and counts.min() > 3 and counts.max() < 45
