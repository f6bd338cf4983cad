"""Tensors for PyTorch and PyTorch Geometric hold what the arrays hold, also after PyTorch Geometric joined programs."""
import numpy as np
import pytest
import torch
from drawn import drawn_layout

from kit.data import dense_configs
from kit.datasets import LayoutDataset, as_tensors, geometric

GRAPHS = [drawn_layout(seed, n=n, nc=nc, c=c) for seed, (n, nc, c) in enumerate([(12, 5, 7), (9, 4, 30), (20, 9, 2)])]


def same(item, graph, configs, start=0):
    """Whether an item holds a graph, with its nodes counted from `start`, and configurations of it -> their numbers."""
    assert np.array_equal(item["node_feat"], graph.node_feat) and np.array_equal(item["node_opcode"], graph.node_opcode)
    assert np.array_equal(item["edge_index"].T.numpy()[:, ::-1] - start, graph.edge_index)
    assert np.array_equal(item["config_node_index"] - start, graph.node_config_ids)
    assert item["config_feat"].shape == (len(graph.node_config_ids), configs, 18)
    every = dense_configs(graph, np.arange(len(graph.config_codes)))
    for j in range(configs):
        found = item["config_feat"][:, j].numpy()
        assert any(np.array_equal(found, digits) and runtime == item["config_runtime"][0, j]
                   for digits, runtime in zip(every, graph.config_runtime))


def test_an_item_is_a_program_and_some_of_its_configurations():
    data = LayoutDataset(GRAPHS, configs=5)
    torch.manual_seed(0)
    for graph, item in zip(GRAPHS, torch.utils.data.DataLoader(data, batch_size=None)):
        same(item, graph, 5)
    assert len(data) == 3 and not torch.equal(data[1]["config_runtime"], data[1]["config_runtime"])
    with pytest.raises(ValueError, match="configs"):
        LayoutDataset(GRAPHS, configs=0)
    with pytest.raises(ValueError, match=r"graphs\[0\]"):
        LayoutDataset([None])


def test_chosen_configurations_come_in_their_order():
    item = as_tensors(GRAPHS[1], np.array([4, 4, 0]))
    assert item["config_runtime"][0].tolist() == GRAPHS[1].config_runtime[[4, 4, 0]].tolist()


def test_pytorch_geometric_joins_programs_of_any_size():
    loader = pytest.importorskip("torch_geometric.loader", reason="no PyTorch Geometric: pip install torch-geometric")
    batch, = loader.DataLoader([geometric(graph, np.arange(2)) for graph in GRAPHS], batch_size=3)
    starts = np.cumsum([0] + [len(graph.node_opcode) for graph in GRAPHS])
    edges = np.cumsum([0] + [len(graph.edge_index) for graph in GRAPHS])
    chosen = np.cumsum([0] + [len(graph.node_config_ids) for graph in GRAPHS])
    for g, graph in enumerate(GRAPHS):
        nodes, own = slice(starts[g], starts[g + 1]), slice(chosen[g], chosen[g + 1])
        same({"node_feat": batch.node_feat[nodes], "node_opcode": batch.node_opcode[nodes],
              "edge_index": batch.edge_index[:, edges[g]:edges[g + 1]], "config_feat": batch.config_feat[own],
              "config_node_index": batch.config_node_index[own], "config_runtime": batch.config_runtime[g:g + 1]},
             graph, 2, starts[g])
    assert batch.batch.tolist() == np.repeat(range(3), np.diff(starts)).tolist()
