"""The tile network against its slow twin; its features on drawn kernels."""
import numpy as np
import pytest
import torch
from drawn import NEAR, costs, drawn_tile, read_only, ready, slow_graph_blocks

from kit.data import TileGraph, npz_paths, read_tile
from kit.models.tile import TileModel, TileModelSettings, tile_features


@torch.no_grad()
def slow_tile_costs(model, graph, index, fitted_on):
    x = slow_graph_blocks(model, graph, fitted_on)
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


def kernel(bounds, start=8, sizes=((20, 256),), opcodes=(63,)):
    """A kernel with one configuration for each row of `bounds`, written from column `start` on."""
    node_feat = np.zeros((len(sizes), 140), np.float32)
    for node, size in enumerate(sizes):
        node_feat[node, 21:21 + len(size)] = size
    config_feat = np.zeros((len(bounds), 24), np.float32)
    config_feat[:, start:start + len(bounds[0])] = bounds
    runtime = np.arange(1, 1 + len(bounds))
    return TileGraph("k", node_feat, np.array(opcodes), np.zeros((0, 2), np.int64), config_feat, runtime, runtime)


def slow_tile_features(graph):
    """One configuration, one dimension at a time."""
    def elements_of(one):
        return np.prod([max(one[d], 1) for d in range(8, 14) if graph.config_feat[:, d].max() > 0])
    rows, largest = [], max(map(elements_of, graph.config_feat))
    for one in graph.config_feat.astype(float):
        row, totals, share = list(one), [], 1.0
        for start in (0, 8, 16):
            filled = [d for d in range(start, start + 6) if graph.config_feat[:, d].max() > 0]
            three, blocks, count = np.zeros((3, 6)), 1.0, 1.0
            for place, d in enumerate(reversed(filled)):
                bound, whole = max(one[d], 1), graph.config_feat[:, d].max()
                tiles = -(-whole // bound)
                three[:, place] = bound, tiles, tiles * bound / whole
                blocks, count = blocks * bound, count * tiles
            row += three.ravel().tolist()
            totals += [blocks, count]
            if start == 8:
                share = blocks / largest
        elements = [np.prod([float(d) for d in node[21:27] if d > 0]) for node in graph.node_feat]
        inputs = [e for e, op in zip(elements, graph.node_opcode) if op == 63] or elements
        rows.append([*row, *totals, share, share * sum(inputs), share * max(inputs)])
    return np.array(rows)


def test_tile_features_of_a_drawn_kernel():
    #  1000 x 4096 in blocks of 8 x 128: 125 x 32 of them; tiles of all, of 50 x 32, of 1 x 12
    graph = kernel([(125, 32), (50, 32), (1, 12)], sizes=((1000, 4096), (1000,), (7,)), opcodes=(63, 63, 2))
    found = tile_features(graph)
    assert found.shape == (3, 87) and (found[:, :24] == graph.config_feat).all()
    output = found[:, 24 + 18:24 + 36].reshape(3, 3, 6)
    assert output[:, 0, :2].tolist() == [[32, 125], [32, 50], [12, 1]]                  # minor-most first
    assert output[:, 1, :2].tolist() == [[1, 1], [1, 3], [3, 125]]
    assert output[:, 2, :2] == pytest.approx(np.array([[1, 1], [1, 150 / 125], [36 / 32, 1]]))
    assert not output[:, :, 2:].any() and not found[:, 24:42].any() and not found[:, 60:78].any()
    assert found[:, 78:84].tolist() == [[1, 1, 4000, 1, 1, 1], [1, 1, 1600, 3, 1, 1], [1, 1, 12, 375, 1, 1]]
    share = np.array([1, 1600 / 4000, 12 / 4000])
    assert found[:, 84:] == pytest.approx(share[:, None] * [1, 4_097_000, 4_096_000])


@pytest.mark.parametrize("graph", [
    kernel([(3, 1, 4), (1, 0, 2), (2, 1, 1)]),                                  # a bound that is not given
    kernel([(0, 0), (0, 0)]),                                                   # none at all, as for some copies
    kernel([(4, 8), (2, 8)], start=0, opcodes=(26,)), kernel([(6,), (4,)], start=16, sizes=((),)), drawn_tile(3)])
def test_tile_features_are_their_slow_twin(graph):
    assert tile_features(graph) == pytest.approx(slow_tile_features(graph))
    some = np.array([len(graph.config_feat) - 1, 0])
    assert np.array_equal(tile_features(graph, some), tile_features(graph)[some])      # shares are of the whole file


def test_tile_features_of_real_kernels_are_their_slow_twin(real_data):
    paths = npz_paths(real_data / "npz", "tile:xla", "train")
    assert paths
    for path in paths:
        graph = read_tile(path)
        found = tile_features(graph)
        assert np.isfinite(found).all() and found == pytest.approx(slow_tile_features(graph))
