"""Networks against slow dense twins, and what their costs must not depend on."""
import dataclasses
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kit.data import LayoutGraph, TileGraph, dense_configs, npz_paths, read_layout, read_tile
from kit.model import LayoutGNN, LayoutGNNSettings, TileModel, TileModelSettings, node_alone, tile_features
from kit.pad import repad_layout
from kit.prune import prune

TINY = LayoutGNNSettings(width=8, opcode_width=3, digit_width=2, squeeze=2)
BOTH = pytest.mark.parametrize("settings", [TINY, dataclasses.replace(TINY, config_attention=False)],
                               ids=["attention", "no attention"])
NEAR = dict(atol=2e-5, rtol=1e-4)        # float32 sums in another order


def drawn_features(rng, n):
    """(n, 140) with shapes, their layouts (padded with 0 as in the data) and some constant columns."""
    node_feat = np.zeros((n, 140), np.float32)
    node_feat[:, 37:80] = rng.integers(-2, 50, (n, 43))
    for row in node_feat:
        rank = rng.integers(0, 5)
        row[21:21 + rank] = rng.integers(1, 500, rank)
        row[134:134 + rank] = rng.permutation(rank)
    return node_feat


def drawn_layout(seed=0, n=12, nc=5, g=3, k=4, c=7, m=16, codes=np.uint8):
    rng = np.random.default_rng(seed)
    return LayoutGraph("drawn", drawn_features(rng, n), rng.integers(1, 121, n), rng.integers(0, n, (m, 2)),
                       rng.permutation(n)[:nc], np.array([0]), rng.integers(0, k, (c, g)).astype(codes),
                       np.concatenate([np.arange(g), rng.integers(0, max(g, 1), nc)])[:nc],
                       rng.integers(-1, 6, (nc, k, 18)).astype(np.int8), rng.integers(10 ** 6, 10 ** 7, c))


def drawn_tile(seed=0, n=9, c=6):
    rng = np.random.default_rng(seed)
    node_feat = drawn_features(rng, n)
    node_feat[-1, [0, 21, 22, 134, 135]] = 1, 20, 256, 1, 0
    node_feat[-1, 23:27] = 0
    config_feat = rng.integers(0, 100, (c, 24)).astype(np.float32)
    return TileGraph("drawn", node_feat, rng.integers(1, 121, n), rng.integers(0, n, (11, 2)), config_feat,
                     rng.integers(1, 100, c), rng.integers(1, 100, c))


def ready(model, *graphs):
    model.fit_scale(graphs)
    return model.eval()


@torch.no_grad()
def costs(model, graph, index=None):
    index = range(len(graph.config_runtime)) if index is None else index
    return model(model.prepare(graph), torch.tensor(list(index)))


def slow_nodes(model, graph, fitted_on):
    """What the first layer reads of each node: standardised numbers, embedded repaired layout, embedded opcode."""
    def squash(g):
        x = g.node_feat[:, :134].astype(float)
        return np.where(x < 0, -1, 1) * np.log(1 + abs(x))
    seen = np.concatenate([squash(g) for g in fitted_on])
    rows = []
    for row, opcode, numbers in zip(graph.node_feat, graph.node_opcode, squash(graph)):
        spread = seen.std(axis=0)
        numbers = np.where(spread > 1e-9, (numbers - seen.mean(axis=0)) / np.where(spread > 1e-9, spread, 1), 0)
        rank = sum(size != 0 for size in row[21:27])
        digits = [int(digit) if place < rank else -1 for place, digit in enumerate(row[134:140])]
        rows.append(torch.cat([torch.tensor(numbers, dtype=torch.float32),
                               *[model.digit.weight[digit + 2] for digit in digits], model.opcode.weight[opcode]]))
    return torch.stack(rows)


def slow_neighbours(x, edges):
    """Mean over the senders of each node, node by node; x (n, width)."""
    rows = []
    for node in range(len(x)):
        senders = [u for u, v in edges.tolist() if v == node]
        rows.append(torch.stack([x[u] for u in senders]).mean(0) if senders else torch.zeros_like(x[0]))
    return torch.stack(rows)


@torch.no_grad()
def slow_layout_costs(model, graph, index, fitted_on):
    """The published network over dense (c, n, features), with every configuration's input written out."""
    s = model.settings
    def norm(x):                                                   # (c, n, F): over the nodes
        return nn.InstanceNorm1d(x.shape[2])(x.swapaxes(1, 2)).swapaxes(1, 2) if s.node_norm else x
    def finish(x, block):
        gate = model.gates[block]
        x = x * gate.excite(gate.squeeze(x).relu()).sigmoid()
        if s.config_attention:
            x = torch.cat([x, x * (x / model.attend[block].temperature).softmax(dim=0)], dim=2)
        return x
    nodes = slow_nodes(model, graph, fitted_on)
    inputs = []
    for rows in dense_configs(graph, index):
        digits = np.full((len(nodes), 18), -2)
        digits[graph.node_config_ids] = rows
        inputs.append(torch.cat([nodes, model.digit(torch.tensor(digits) + 2).reshape(len(nodes), -1)], dim=1))
    first = torch.cat([model.static.weight, model.config.weight], dim=1)
    x = F.gelu(finish(norm(torch.stack(inputs) @ first.T + model.static.bias), 0))
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
    graph = prune(read_layout(path, configs=[0, 7, 20_000]))
    model = ready(LayoutGNN(TINY), graph)
    assert torch.allclose(costs(model, graph), slow_layout_costs(model, graph, range(3), [graph]), **NEAR)


def test_the_default_network_has_the_parameters_of_the_published_one():
    linear = (134 + 16 + 6 * 4 + 18 * 4) * 128 + 128 + 256 * 128 + 128
    sage = 2 * (256 * 128 + 128 + 256 * 128)
    gates, temperatures = 4 * (128 * 16 + 16 + 16 * 128 + 128), 4
    tables, head = 121 * 16 + 8 * 4, 256 + 1                       # it had 120 opcodes; there are 121
    assert sum(p.numel() for p in LayoutGNN().parameters()) == linear + sage + gates + temperatures + tables + head


def relabelled_nodes(graph, rng):
    order = rng.permutation(len(graph.node_feat))
    place = np.argsort(order)
    return graph._replace(node_feat=graph.node_feat[order], node_opcode=graph.node_opcode[order],
                          edge_index=place[graph.edge_index], node_config_ids=place[graph.node_config_ids])


def reordered_edges(graph, rng):
    return graph._replace(edge_index=rng.permutation(graph.edge_index))


def reordered_configurable_nodes(graph, rng):
    order = rng.permutation(len(graph.node_config_ids))
    return graph._replace(node_config_ids=graph.node_config_ids[order], node_group=graph.node_group[order],
                          code_rows=graph.code_rows[order])


def renamed_groups(graph, rng):
    order = rng.permutation(graph.config_codes.shape[1])
    return graph._replace(config_codes=graph.config_codes[:, order], node_group=np.argsort(order)[graph.node_group])


def renamed_codes(graph, rng):
    order = rng.permutation(graph.code_rows.shape[1])
    return graph._replace(config_codes=np.argsort(order).astype(np.uint8)[graph.config_codes],
                          code_rows=graph.code_rows[:, order])


def every_node_its_own_group(graph, rng):
    return graph._replace(config_codes=graph.config_codes[:, graph.node_group],
                          node_group=np.arange(len(graph.node_group)))


def read_only(graph, rng):
    graph = type(graph)(graph.graph_id, *[array.copy() for array in graph[1:]])
    for array in graph[1:]:
        array.flags.writeable = False
    return graph


@BOTH
@pytest.mark.parametrize("change", [relabelled_nodes, reordered_edges, reordered_configurable_nodes, renamed_groups,
                                    renamed_codes, every_node_its_own_group, read_only])
def test_costs_do_not_depend_on_how_a_graph_is_written(settings, change):
    graph = drawn_layout(4)
    other = change(graph, np.random.default_rng(0))
    model = ready(LayoutGNN(settings), graph)
    assert torch.allclose(costs(model, other), costs(model, graph), **NEAR)


@BOTH
def test_costs_follow_the_configurations(settings):
    graph = drawn_layout(5)
    model, order = ready(LayoutGNN(settings), graph), [3, 0, 6, 5, 1, 2, 4]
    shuffled = graph._replace(config_codes=graph.config_codes[order], config_runtime=graph.config_runtime[order])
    assert torch.allclose(costs(model, shuffled), costs(model, graph)[order], **NEAR)
    assert torch.allclose(costs(model, graph, order), costs(model, graph)[order], **NEAR)


def test_runtimes_are_not_read():
    for model, graph in ((LayoutGNN(TINY), drawn_layout(6)), (TileModel(), drawn_tile())):
        ready(model, graph)
        other = graph._replace(config_runtime=graph.config_runtime[::-1].copy())
        assert torch.equal(costs(model, other), costs(model, graph))


def test_only_attention_makes_a_cost_depend_on_its_company():
    graph = drawn_layout(7)
    for attention in (True, False):
        model = ready(LayoutGNN(dataclasses.replace(TINY, config_attention=attention)), graph)
        together, apart = costs(model, graph, [0, 1, 2])[0], costs(model, graph, [0, 4])[0]
        assert torch.allclose(together, apart, **NEAR) is not attention
        assert model.transductive is attention


def test_raw_and_repaired_padding_give_the_same_costs():
    graph = drawn_layout(8)
    repaired, _ = repad_layout(graph.node_feat)
    assert (repaired != graph.node_feat).any()
    model = ready(LayoutGNN(TINY), graph)
    assert torch.equal(costs(model, graph._replace(node_feat=repaired)), costs(model, graph))
    tile = drawn_tile()
    model = ready(TileModel(), tile)
    assert torch.equal(costs(model, tile._replace(node_feat=repad_layout(tile.node_feat)[0])), costs(model, tile))


def test_a_graph_without_configurable_nodes_or_edges_has_one_cost():
    graph = drawn_layout(9, nc=0, g=0, k=1, m=0)
    assert graph.config_codes.shape == (7, 0)
    for attention in (True, False):
        found = costs(ready(LayoutGNN(dataclasses.replace(TINY, config_attention=attention)), graph), graph)
        assert found.isfinite().all() and torch.allclose(found, found[:1].expand(7), **NEAR)


def test_a_graph_of_one_configurable_node_is_scored():
    graph = drawn_layout(10, n=1, nc=1, g=1, m=0)
    assert costs(ready(LayoutGNN(TINY), graph), graph).isfinite().all()


def test_prepare_leaves_the_graph_alone():
    for model, graph in ((LayoutGNN(TINY), drawn_layout(11)), (TileModel(), drawn_tile())):
        before = [np.copy(array) for array in graph[1:]]
        costs(ready(model, graph), graph)
        assert all(np.array_equal(a, b) for a, b in zip(before, graph[1:], strict=True))


MODELS = pytest.mark.parametrize("network, settings", [(LayoutGNN, TINY), (TileModel, TileModelSettings(width=8))])


@MODELS
def test_a_seed_gives_the_same_weights_and_another_seed_others(network, settings):
    def weights(seed):
        return nn.utils.parameters_to_vector(network(dataclasses.replace(settings, seed=seed)).parameters())
    first = weights(0)
    torch.rand(3)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)


@MODELS
def test_building_and_scoring_leave_the_global_generators_alone(network, settings):
    graph = drawn_layout() if network is LayoutGNN else drawn_tile()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()      # noqa: NPY002
    costs(ready(network(settings), graph), graph)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[2]
    assert np.array_equal(np.random.get_state()[1], before[1])                             # noqa: NPY002


@MODELS
def test_everything_a_prediction_needs_travels_in_the_state(network, settings):
    graph = drawn_layout() if network is LayoutGNN else drawn_tile()
    model = ready(network(settings), graph)
    other = network(dataclasses.replace(settings, seed=5)).eval()
    assert model.fitted and not other.fitted
    other.load_state_dict(model.state_dict())
    assert other.fitted and torch.equal(costs(other, graph), costs(model, graph))


@MODELS
def test_every_parameter_learns(network, settings):
    graph = drawn_layout() if network is LayoutGNN else drawn_tile()
    model = ready(network(settings), graph)
    found = model(model.prepare(graph), torch.arange(6))
    (found * torch.arange(6)).sum().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not silent


@MODELS
def test_dropout_works_in_training_alone(network, settings):
    graph = drawn_layout() if network is LayoutGNN else drawn_tile()
    model = ready(network(dataclasses.replace(settings, dropout=0.5)), graph)
    assert torch.equal(costs(model, graph), costs(model, graph))
    model.train()
    with torch.random.fork_rng():
        assert not torch.equal(costs(model, graph), costs(model, graph))


@MODELS
def test_a_budget_holds_configurations_in_proportion_and_at_least_one(network, settings):
    graph = drawn_layout() if network is LayoutGNN else drawn_tile()
    model = ready(network(settings), graph)
    tensors = model.prepare(graph)
    assert model.configs_within(tensors, 0) == 1
    assert model.configs_within(tensors, 2 << 30) == pytest.approx(2 * model.configs_within(tensors, 1 << 30), abs=1)
    # no fewer bytes than what goes in and out of one layer
    assert model.configs_within(tensors, 1 << 30) * settings.width * 4 * 2 <= 1 << 30


def test_node_alone_sees_each_node_but_no_edge():
    graph = drawn_layout(12)
    model = ready(LayoutGNN(node_alone(TINY)), graph)
    assert len(model.gates) == TINY.linear_blocks + TINY.graph_blocks and not model.transductive
    found = costs(model, graph)
    assert torch.allclose(costs(model, graph._replace(edge_index=graph.edge_index[:0])), found, **NEAR)
    # with no norm and no messages, a graph twice has the same mean over nodes
    n = len(graph.node_feat)
    twice = graph._replace(node_feat=np.tile(graph.node_feat, (2, 1)), node_opcode=np.tile(graph.node_opcode, 2),
                           node_config_ids=np.concatenate([graph.node_config_ids, graph.node_config_ids + n]),
                           node_group=np.tile(graph.node_group, 2), code_rows=np.tile(graph.code_rows, (2, 1, 1)))
    assert torch.allclose(costs(model, twice), found, **NEAR)
    assert found.std() > 1e-4


@torch.no_grad()
def slow_tile_costs(model, graph, index, fitted_on):
    x = model.node(slow_nodes(model, graph, fitted_on))
    for norm, sage in zip(model.norms, model.sages):
        h = F.layer_norm(x, x.shape[1:], norm.weight, norm.bias)
        ways = zip(sage.neighbours, [graph.edge_index, graph.edge_index[:, ::-1]], strict=True)
        x = x + F.gelu(sage.own(h) + sum(weights(slow_neighbours(h, edges)) for weights, edges in ways))
    whole = model.graph(torch.cat([x.mean(dim=0), x.max(dim=0).values]))
    seen = np.concatenate([np.sign(f) * np.log1p(abs(f)) for f in map(tile_features, fitted_on)])
    out = []
    for one in index:
        f = tile_features(graph)[one]
        spread = seen.std(axis=0)
        f = np.where(spread > 1e-9, (np.sign(f) * np.log1p(abs(f)) - seen.mean(axis=0)) / np.maximum(spread, 1e-9), 0)
        config = model.config(torch.tensor(f, dtype=torch.float32))
        out.append(model.head(torch.cat([config, whole, config * whole])))
    return torch.cat(out)


def test_the_tile_network_is_its_slow_twin():
    graphs = [drawn_tile(0), drawn_tile(1, n=4, c=3)]
    model = ready(TileModel(TileModelSettings(width=8)), *graphs)
    for graph in graphs:
        assert torch.allclose(costs(model, graph, [2, 0]), slow_tile_costs(model, graph, [2, 0], graphs), **NEAR)


def test_a_tile_s_cost_does_not_depend_on_its_company_or_the_order_of_nodes():
    graph = drawn_tile(2)
    model = ready(TileModel(TileModelSettings(width=8)), graph)
    whole, order = costs(model, graph), np.random.default_rng(0).permutation(9)
    assert not model.transductive
    assert torch.allclose(costs(model, graph, [4]), whole[4], **NEAR)
    moved = graph._replace(node_feat=graph.node_feat[order], node_opcode=graph.node_opcode[order],
                           edge_index=np.argsort(order)[graph.edge_index])
    assert torch.allclose(costs(model, moved), whole, **NEAR)
    assert torch.equal(costs(model, read_only(graph, None)), whole)


def kernel(roots, size=(20, 256), layout=(1, 0), bounds=(8, 100), n=3):
    """n nodes, of which `roots` are marked; the last marked one, or the last, has the output's size and layout."""
    node_feat = np.zeros((n, 140), np.float32)
    node_feat[:, 21] = 7
    node_feat[roots, 0] = 1
    root = node_feat[roots[-1] if roots else -1]
    root[21:21 + len(size)], root[134:134 + len(layout)] = size, layout
    config_feat = np.zeros((1, 24), np.float32)
    config_feat[0, 8:8 + len(bounds)] = bounds
    return TileGraph("k", node_feat, np.ones(n, np.int64), np.zeros((0, 2), np.int64), config_feat,
                     np.array([5]), np.array([5]))


@pytest.mark.parametrize("graph, tiles, pad_8, pad_128", [
    # minor to major: dimension 1 (256 in tiles of 100), then dimension 0 (20 in tiles of 8)
    (kernel([1]), [3, 3], [104 / 100, 1], [128 / 100, 128 / 8]),
    (kernel([1], layout=(0, 1)), [3, 3], [1, 104 / 100], [128 / 8, 128 / 100]),
    (kernel([0, 1], bounds=(20, 256)), [1, 1], [1, 24 / 20], [1, 128 / 20]),         # the last root; one tile
    (kernel([], bounds=(1, 129)), [2, 20], [136 / 129, 8], [256 / 129, 128]),        # no root: the last node
    (kernel([1], bounds=(0, 100)), [3, 0], [104 / 100, 0], [128 / 100, 0]),          # no tile given
    (kernel([1], layout=(3, 3)), [3, 3], [104 / 100, 1], [128 / 100, 128 / 8]),      # no layout: row-major
    (kernel([1], size=(2, 9, 30), layout=(0, 2, 1), bounds=(2, 4, 16)), [1, 2, 3], [4, 1, 2], [64, 8, 32]),
    (kernel([1], size=(0,), layout=(), bounds=()), [], [], []),                      # a scalar
])
def test_tile_features_on_drawn_kernels(graph, tiles, pad_8, pad_128):
    found = tile_features(graph)
    assert found.shape == (1, 42) and (found[0, :24] == graph.config_feat[0]).all()
    for block, expected in zip(found[0, 24:].reshape(3, 6), (tiles, pad_8, pad_128)):
        assert block == pytest.approx(np.pad(expected, (0, 6 - len(expected))))


def test_tile_features_of_real_kernels_are_finite(real_data):
    paths = npz_paths(real_data / "npz", "tile:xla", "train")
    assert paths
    for path in paths:
        found = tile_features(read_tile(path))
        assert np.isfinite(found).all() and ((found[:, 30:] == 0) | (found[:, 30:] >= 1)).all()
