"""The tile network against its slow twin; its features on drawn kernels."""
import numpy as np
import pytest
import torch
from drawn import NEAR, costs, drawn_tile, read_only, ready, slow_graph_blocks

from kit.data import TileGraph, npz_paths, read_tile
from kit.tile_model import TileModel, TileModelSettings, tile_features


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
