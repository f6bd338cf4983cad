"""Layout graphs for a network of one's own: a PyTorch Dataset, and PyTorch Geometric's Data."""
import numpy as np
import torch

from kit.checks import check_whole, checked_graphs
from kit.data import dense_configs


class LayoutDataset(torch.utils.data.Dataset):
    """One item per program: its arrays as tensors, and `configs` of its configurations, drawn anew each time.

    An item is a dict: `node_feat` (n, 140), `node_opcode` (n,), `edge_index` (2, m) from producer to consumer,
    `config_node_index` (nc,), `config_feat` (nc, configs, 18) and `config_runtime` (1, configs), float32 or int64.
    Programs differ in n, m and nc, so a DataLoader needs `batch_size=None`, or the Data of `geometric`.
    """

    def __init__(self, graphs, configs=64):
        check_whole(locals(), configs=1)
        self.graphs, self.configs = checked_graphs("graphs", graphs, tile=False), configs

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, place):
        graph = self.graphs[place]
        return as_tensors(graph, torch.randint(len(graph.config_codes), (self.configs,), device="cpu").numpy())


def as_tensors(graph, index):
    """The item of a LayoutDataset with the configurations `index`, (k,)."""
    arrays = {"node_feat": graph.node_feat, "node_opcode": graph.node_opcode, "edge_index": graph.edge_index.T[::-1],
              "config_node_index": graph.node_config_ids,
              "config_feat": dense_configs(graph, index).transpose(1, 0, 2).astype(np.float32),
              "config_runtime": graph.config_runtime[None, index]}
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def geometric(graph, index):
    """The same as a `torch_geometric.data.Data`, whose DataLoader joins programs of any size.

    The loader counts `edge_index` and `config_node_index` on from program to program. All programs of a batch need
    equally many configurations. PyTorch Geometric is optional: pip install torch-geometric.
    """
    from torch_geometric.data import Data
    return Data(num_nodes=len(graph.node_opcode), **as_tensors(graph, index))
