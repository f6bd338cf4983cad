"""The networks. Each turns (graph, chosen configurations) into one cost per configuration; lower is faster.

A model is a module with what `kit.train` relies on. Methods: `fit_scale(graphs)` stores feature statistics inside
the model, `prepare(graph)` turns a graph's arrays into tensors once, `forward(tensors, index)` gives the costs of
the configurations in `index`, shape (k,), and `configs_within(tensors, budget)` says how many fit into a memory
budget. Attributes: `settings`, a frozen dataclass; `fitted`, whether there are statistics; `transductive`, whether a
cost depends on the other configurations in the call. A transductive model has a buffer `set_size`, too: how many
were scored together in training.
"""
from kit.models.config_token import ConfigTokenModel, ConfigTokenSettings
from kit.models.layers import Sage, SparseMean, fastest_aggregation, mean_messages
from kit.models.layout_gnn import LayoutGNN, LayoutGNNSettings, node_alone
from kit.models.segments import SegmentSettings, SegmentTraining
from kit.models.tile import TileModel, TileModelSettings

__all__ = [
    "ConfigTokenModel", "ConfigTokenSettings", "LayoutGNN", "LayoutGNNSettings", "Sage", "SegmentSettings",
    "SegmentTraining", "SparseMean", "TileModel", "TileModelSettings", "fastest_aggregation", "mean_messages",
    "node_alone",
]
