"""The published baselines against dense twins that loop over configurations, and the laws that every model obeys."""
import dataclasses
import functools

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
    read_only,
    ready,
    relabelled_nodes,
    reordered_edges,
    some_configs,
)

from kit.data import dense_configs, npz_paths, read_layout
from kit.losses import list_mle_loss, pairwise_hinge_loss
from kit.prune import prune
from kit.train import TrainSettings, predict, train
from lab.studies.published import (
    BaselineSettings,
    EarlyJoinSAGE,
    LateJoinSAGE,
    LayoutGCN,
    LayoutSAGE,
    LayoutSAGESettings,
    ResidualGCN,
    TileMLP,
)

TINY_TILE = BaselineSettings(width=8, opcode_width=3)
TILES = {"MLP": TileMLP, "early SAGE": EarlyJoinSAGE, "late SAGE": LateJoinSAGE, "residual GCN": ResidualGCN}
LAYOUTS = {"GCN": (LayoutGCN, BaselineSettings(width=8, opcode_width=3, layers=2)),
           "SAGE": (LayoutSAGE, LayoutSAGESettings(width=8, opcode_width=3))}
ALL = {**{name: (network, TINY_TILE, drawn_tile) for name, network in TILES.items()},
       **{f"layout {name}": (*both, drawn_neighbours) for name, both in LAYOUTS.items()}}
each_tile = pytest.mark.parametrize("network", TILES.values(), ids=TILES)
each_layout = pytest.mark.parametrize("network, settings", LAYOUTS.values(), ids=LAYOUTS)
each_model = pytest.mark.parametrize("network, settings, drawn", ALL.values(), ids=ALL)


def to_unit_range(x, seen):
    """Column by column: 0 at the smallest value seen, 1 at the largest, 0 where only one was seen."""
    out = np.zeros(x.shape)
    for column in range(x.shape[1]):
        low, high = min(seen[:, column].astype(float)), max(seen[:, column].astype(float))
        if high > low:
            out[:, column] = (x[:, column] - low) / (high - low)
    return torch.tensor(out, dtype=torch.float32)


def standardised(x, seen):
    out = np.zeros(x.shape)
    for column in range(x.shape[1]):
        values = seen[:, column].astype(float)
        if values.std() > 1e-6:
            out[:, column] = (x[:, column] - values.mean()) / values.std()
    return torch.tensor(out, dtype=torch.float32)


def stacked(graphs, name):
    return np.concatenate([getattr(g, name) for g in graphs])


def adjacency(edge_index, n):
    """Dense; entry [v, u] counts the edges that send from u to v, row [u, v] of edge_index being one."""
    dense = torch.zeros(n, n)
    for u, v in edge_index.tolist():
        dense[v, u] += 1
    return dense


def leaky(x):
    return torch.where(x > 0, x, 0.2 * x)


def to_norm_one(x):
    return torch.stack([row / row.norm().clamp(min=1e-12) for row in x])


def through(layers, x):
    """A perceptron, linear layer by linear layer."""
    linears = [layer for layer in layers if hasattr(layer, "weight")]
    for layer in linears[:-1]:
        x = leaky(x @ layer.weight.T + (0 if layer.bias is None else layer.bias))
    last = linears[-1]
    return x @ last.weight.T + (0 if last.bias is None else last.bias)


def slow_tile_costs(model, graph, index, fitted_on):
    numbers = to_unit_range(graph.node_feat, stacked(fitted_on, "node_feat"))
    configs = to_unit_range(graph.config_feat, stacked(fitted_on, "config_feat"))
    n, out = len(numbers), []
    one_way = adjacency(graph.edge_index, n)
    nodes = torch.cat([model.opcode.weight[torch.tensor(graph.node_opcode)], numbers], dim=1)
    kind = type(model).__name__
    for j in index:
        config = configs[j]
        x = torch.cat([nodes, config.expand(n, -1)], dim=1) if kind in ("EarlyJoinSAGE", "ResidualGCN") else nodes
        if "SAGE" in kind:
            for block in model.blocks:
                sums = one_way @ x + one_way.T @ x
                x = to_norm_one(leaky(torch.cat([sums, x], dim=1) @ block.weight.T + block.bias))
        if kind == "ResidualGCN":
            looped = one_way + torch.eye(n)
            mean = torch.diag(1 / looped.sum(dim=1)) @ looped
            x = through(model.enter, x)
            for block in model.blocks:
                y = leaky(x)
                x = x + through(block, mean @ y + mean.T @ y + y)
            x = leaky(x)
        pooled = x.sum(dim=0)
        if kind in ("TileMLP", "LateJoinSAGE"):
            pooled = torch.cat([pooled, config])
        out.append(through(model.head, pooled))
    return torch.cat(out)


def slow_layout_costs(model, graph, index, fitted_on):
    n, out = len(graph.node_feat), []
    one_way, opcodes = adjacency(graph.edge_index, n), model.opcode.weight[torch.tensor(graph.node_opcode)]
    seen = stacked(fitted_on, "node_feat")
    if isinstance(model, LayoutGCN):
        nodes = torch.cat([opcodes, to_unit_range(graph.node_feat, seen)], dim=1)
        every_digit = np.concatenate([g.code_rows.reshape(-1, 18) for g in fitted_on])
    else:
        norms = opcodes.norm(dim=1, keepdim=True)
        nodes = torch.cat([100 * opcodes / norms.clamp(min=1), standardised(graph.node_feat, seen)], dim=1)
    for rows in dense_configs(graph, index):
        digits = torch.zeros(n, 18)
        given = to_unit_range(rows, every_digit) if isinstance(model, LayoutGCN) else torch.tensor(rows).float()
        digits[graph.node_config_ids] = 100 * given
        if isinstance(model, LayoutGCN):
            looped = one_way + one_way.T + torch.eye(n)
            root = torch.diag(looped.sum(dim=1) ** -0.5)
            x = leaky(through(model.enter, torch.cat([nodes, digits], dim=1)))
            for block in model.blocks:
                x = x + leaky(through(block, root @ looped @ root @ torch.cat([x, digits], dim=1)))
            pooled = torch.cat([x.mean(dim=0), *to_norm_one([x.sum(dim=0), x[graph.node_config_ids].sum(dim=0)])])
            out.append(through(model.head, pooled))
        else:
            x = torch.cat([nodes, digits], dim=1) @ model.enter.weight.T + model.enter.bias
            x = to_norm_one(torch.where(x > 0, x, model.rectify.weight * x))
            for sage in model.sages:
                mean = one_way / one_way.sum(dim=1, keepdim=True).clamp(min=1)
                x = x @ sage.own.weight.T + sage.own.bias + mean @ x @ sage.neighbours[0].weight.T
            pooled, = to_norm_one([x.mean(dim=0) + x.max(dim=0).values])
            hidden, = to_norm_one([torch.relu(model.hidden.weight @ pooled + model.hidden.bias)])
            out.append(model.last.weight @ hidden + model.last.bias)
    return torch.cat(out)


def shaken(model):
    """The model with biases that are not zero, as after training."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p += 0.3 * torch.randn(p.shape, generator=generator)
    return model


@each_tile
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_tile_baseline_is_its_dense_twin(network, layers):
    graphs = [drawn_tile(0), drawn_tile(1, n=4, c=3), drawn_tile(2)._replace(edge_index=np.zeros((0, 2), np.int64))]
    model = shaken(ready(network(dataclasses.replace(TINY_TILE, layers=layers)), *graphs))
    for graph in graphs:
        slow = slow_tile_costs(model, graph, [2, 0, 2, 1], graphs)
        assert torch.allclose(costs(model, graph, [2, 0, 2, 1]), slow, **NEAR)
        assert slow.std() > 1e-3


@each_layout
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_layout_baseline_is_its_dense_twin(network, settings, layers):
    graphs = [drawn_neighbours(0), drawn_neighbours(1, n=20, nc=9, g=9, c=5), drawn_layout(2, m=0, c=3)]
    model = shaken(ready(network(dataclasses.replace(settings, layers=layers)), *graphs))
    for graph in graphs:
        slow = slow_layout_costs(model, graph, [2, 0, 2, 1], graphs)
        assert torch.allclose(costs(model, graph, [2, 0, 2, 1]), slow, **NEAR)
        assert slow.std() > 1e-4


@each_layout
def test_a_real_file_is_its_dense_twin(network, settings, real_data):
    path, = [p for p in npz_paths(real_data / "npz", "layout:xla:default", "train") if "alexnet" in p.stem]
    graph = prune(some_configs(read_layout(path), [0, 7, 20_000]))
    model = ready(network(settings), graph)
    assert torch.allclose(costs(model, graph), slow_layout_costs(model, graph, range(3), [graph]), **NEAR)


@each_layout
def test_more_than_256_codes_are_told_apart(network, settings):
    graph = drawn_layout(3, k=300, c=9, codes=np.uint16)
    graph.config_codes[0], graph.config_codes[1] = 299, 43          # 43 = 299 - 256
    model = ready(network(settings), graph)
    assert torch.allclose(costs(model, graph), slow_layout_costs(model, graph, range(9), [graph]), **NEAR)


@pytest.mark.parametrize("network, count", [
    (TileMLP, lambda op, x: (op + x + 24) * 64 + 64 + 64 * 64 + 64),
    (EarlyJoinSAGE, lambda op, x: 2 * (op + x + 24) * 64 + 64 + 2 * (128 * 64 + 64) + 2 * (64 * 64 + 64)),
    (LateJoinSAGE, lambda op, x: 2 * (op + x) * 64 + 64 + 2 * (128 * 64 + 64) + (88 * 64 + 64) + 64 * 64 + 64),
    (ResidualGCN, lambda op, x: (op + x + 24) * 64 + 64 + 8 * (64 * 64 + 64)),
])
def test_a_default_tile_baseline_has_the_parameters_of_the_published_one(network, count):
    """As published: opcode embedding 64; 3 layers of width 64; 2 hidden layers of the MLP."""
    assert sum(p.numel() for p in network().parameters()) == 121 * 64 + count(64, 140) + 64 + 1


def test_the_default_layout_baselines_have_the_parameters_of_the_published_ones():
    gcn = (18 + 140 + 32) * 32 + 32 * 32 + 2 * ((18 + 32) * 32 + 32 * 32) + 6 * 32 + 96 * 32 + 32
    assert sum(p.numel() for p in LayoutGCN().parameters()) == 121 * 32 + gcn
    sage = (18 + 140 + 128) * 256 + 256 + 1 + 3 * (2 * 256 * 256 + 256) + 256 * 256 + 256 + 256 + 1
    assert sum(p.numel() for p in LayoutSAGE().parameters()) == 121 * 128 + sage


@each_layout
@pytest.mark.parametrize("change", WRITTEN_OTHERWISE)
def test_layout_costs_do_not_depend_on_how_a_graph_is_written(network, settings, change):
    graph = drawn_neighbours(4)
    model = ready(network(settings), graph)
    assert costs(model, graph).std() > 1e-4
    assert torch.allclose(costs(model, change(graph, np.random.default_rng(0))), costs(model, graph), **NEAR)


@each_tile
def test_tile_costs_do_not_depend_on_how_a_kernel_is_written(network):
    graph, order = drawn_tile(4), np.random.default_rng(0).permutation(9)
    model = ready(network(TINY_TILE), graph)
    moved = graph._replace(node_feat=graph.node_feat[order], node_opcode=graph.node_opcode[order],
                           edge_index=np.argsort(order)[graph.edge_index])
    for other in (moved, reordered_edges(graph, np.random.default_rng(0)), read_only(graph, None)):
        assert torch.allclose(costs(model, other), costs(model, graph), **NEAR)


@each_model
def test_costs_follow_the_configurations_and_not_their_company(network, settings, drawn):
    graph = drawn(5)
    model, order = ready(network(settings), graph), [3, 0, 5, 1, 2, 4]
    whole = costs(model, graph, range(6))
    assert not model.transductive
    assert torch.allclose(costs(model, graph, order), whole[order], **NEAR)
    assert torch.allclose(costs(model, graph, [4]), whole[[4]], **NEAR)
    assert torch.allclose(costs(model, graph, [1, 4, 4]), whole[[1, 4, 4]], **NEAR)


@each_model
def test_a_graph_may_lack_edges_or_be_one_node(network, settings, drawn):
    graph = drawn(6)
    model = ready(network(settings), graph)
    assert costs(model, graph._replace(edge_index=np.zeros((0, 2), np.int64))).isfinite().all()
    single = drawn(7, n=1, nc=1, g=1, m=0) if drawn is drawn_neighbours else drawn(7, n=1)._replace(
        edge_index=np.zeros((0, 2), np.int64))
    assert costs(model, single).isfinite().all()


@each_layout
def test_a_graph_without_configurable_nodes_has_one_cost(network, settings):
    model = ready(network(settings), drawn_neighbours(8))
    found = costs(model, drawn_neighbours(9, nc=0, g=0, k=1))
    assert found.isfinite().all() and torch.allclose(found, found[:1].expand(7), **NEAR)


def test_a_column_that_was_constant_in_training_does_not_matter():
    graph = drawn_layout(1)
    assert not graph.node_feat[:, 100].any()
    changed = graph._replace(node_feat=graph.node_feat.copy())
    changed.node_feat[:, 100] = np.arange(12) * 1e6
    for network, settings in LAYOUTS.values():
        model = ready(network(settings), graph)
        assert torch.equal(costs(model, changed), costs(model, graph))


@each_model
def test_chunks_do_not_change_costs(network, settings, drawn):
    graph = drawn(9, c=50)
    model, asked = ready(network(settings), graph), []
    whole = predict(model, graph)
    assert whole == pytest.approx(costs(model, graph).numpy(), abs=1e-5)
    model.register_forward_pre_hook(lambda _, args: asked.append(len(args[1])))
    assert predict(model, graph, 0) == pytest.approx(whole, abs=1e-5) and asked == [1] * 50
    asked.clear()
    assert predict(model, graph, 60_000, seed=3) == pytest.approx(whole, abs=1e-5) and 1 < len(asked) < 50


@each_model
@pytest.mark.parametrize("width", [8, 64])
def test_a_full_chunk_holds_what_its_budget_says(network, settings, drawn, width):
    graph = drawn(2, n=40, nc=20, g=9, c=3000) if drawn is drawn_neighbours else drawn(2, n=40, c=3000)
    model = ready(network(dataclasses.replace(settings, width=width)), graph)
    tensors = model.prepare(graph)
    shared, budget = held(model, tensors, 1), 2_000_000
    j = model.configs_within(tensors, budget)
    assert 1 < j < 3000
    assert 0.15 * budget < held(model, tensors, j) <= budget + shared


@each_model
def test_training_lowers_the_published_loss_and_ranks(network, settings, drawn):
    graph = drawn(3, c=40)
    place = graph.config_feat[:, 3] if drawn is drawn_tile else dense_configs(graph, range(40))[:, :, :6].sum((1, 2))
    graph = graph._replace(config_runtime=(1000 + 10 * np.argsort(np.argsort(place))).astype(np.int64))
    if drawn is drawn_tile:
        graph = graph._replace(config_runtime_normalizers=np.full(40, 1000))
    loss = functools.partial(pairwise_hinge_loss, margin=0.1) if network is LayoutSAGE else list_mle_loss
    model = network(dataclasses.replace(settings, width=16))
    history = train(model, [graph], TrainSettings(steps=120, configs_per_step=20, learning_rate=1e-2,
                                                  validate_every=30), loss)
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    cost = predict(model, graph)
    assert np.corrcoef(np.argsort(np.argsort(cost)), np.argsort(np.argsort(place)))[0, 1] > 0.7


@each_model
def test_a_seed_gives_the_same_weights_and_leaves_global_generators_alone(network, settings, drawn):
    def weights(seed):
        return torch.nn.utils.parameters_to_vector(network(dataclasses.replace(settings, seed=seed)).parameters())
    before = torch.get_rng_state()
    first = weights(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(weights(0), first) and not torch.equal(weights(1), first)


@each_model
def test_every_parameter_learns_and_all_that_a_prediction_needs_travels_in_the_state(network, settings, drawn):
    graph = drawn()
    model = ready(network(settings), graph)
    (model(model.prepare(graph), torch.arange(6)) * torch.arange(6)).sum().backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    other = network(dataclasses.replace(settings, seed=5)).eval()
    assert model.fitted and not other.fitted
    other.load_state_dict(model.state_dict())
    assert torch.equal(costs(other, graph), costs(model, graph))


@each_model
def test_gradients_are_those_of_the_dense_twin(network, settings, drawn):
    graph = drawn(1)
    model = shaken(ready(network(settings), graph))
    slow = slow_tile_costs if drawn is drawn_tile else slow_layout_costs
    fast = model(model.prepare(graph), torch.tensor([1, 3]))
    names, parameters = zip(*[(n, p) for n, p in model.named_parameters() if n != "opcode.weight"])
    found = torch.autograd.grad(fast.sum(), parameters)
    expected = torch.autograd.grad(slow(model, graph, [1, 3], [graph]).sum(), parameters)
    for name, a, b in zip(names, found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-3, rtol=1e-3), name


def test_dropout_works_in_training_alone():
    graph = drawn_neighbours()
    model = ready(LayoutSAGE(LayoutSAGESettings(width=8, opcode_width=3, dropout=0.5)), graph)
    assert torch.equal(costs(model, graph), costs(model, graph))
    assert not torch.equal(costs(model.train(), graph), costs(model, graph))


def test_the_opcode_embedding_of_graph_segment_training_has_norm_one_at_most():
    graph = relabelled_nodes(drawn_neighbours(), np.random.default_rng(0))
    model = ready(LayoutSAGE(), graph)
    costs(model, graph)
    norms = F.embedding(torch.tensor(graph.node_opcode), model.opcode.weight).norm(dim=1)
    assert norms.max() <= 1 + 1e-5 < model.opcode.weight.norm(dim=1).max()
