"""The published baselines against dense twins that loop over configurations, and the laws that every model obeys."""
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from drawn import (
    NEAR,
    costs,
    drawn_layout,
    drawn_neighbours,
    drawn_tile,
    ready,
    relabelled_nodes,
    some_configs,
)

from kit.data import dense_configs, npz_paths, read_layout
from kit.prune import prune
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
@pytest.mark.parametrize("layers", [1, 3])
def test_a_tile_baseline_is_its_dense_twin(network, layers):
    graphs = [drawn_tile(0), drawn_tile(1, n=4, c=3), drawn_tile(2)._replace(edge_index=np.zeros((0, 2), np.int64))]
    model = shaken(ready(network(dataclasses.replace(TINY_TILE, layers=layers)), *graphs))
    for graph in graphs:
        slow = slow_tile_costs(model, graph, [2, 0, 2, 1], graphs)
        assert torch.allclose(costs(model, graph, [2, 0, 2, 1]), slow, **NEAR)
        assert slow.std() > 1e-3


@each_layout
@pytest.mark.parametrize("layers", [1, 3])
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


@each_model
def test_a_graph_may_lack_edges_or_be_one_node(network, settings, drawn):
    graph = drawn(6)
    model = ready(network(settings), graph)
    assert costs(model, graph._replace(edge_index=np.zeros((0, 2), np.int64))).isfinite().all()
    single = drawn(7, n=1, nc=1, g=1, m=0) if drawn is drawn_neighbours else drawn(7, n=1)._replace(
        edge_index=np.zeros((0, 2), np.int64))
    assert costs(model, single).isfinite().all()


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


def test_the_opcode_embedding_of_graph_segment_training_has_norm_one_at_most():
    graph = relabelled_nodes(drawn_neighbours(), np.random.default_rng(0))
    model = ready(LayoutSAGE(), graph)
    costs(model, graph)
    norms = F.embedding(torch.tensor(graph.node_opcode), model.opcode.weight).norm(dim=1)
    assert norms.max() <= 1 + 1e-5 < model.opcode.weight.norm(dim=1).max()
