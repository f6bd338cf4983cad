"""The networks. Each turns (graph, chosen configurations) into one cost per configuration; lower is faster.

A model is a module with what `kit.train` relies on. Methods: `fit_scale(graphs)` stores feature statistics inside
the model, `prepare(graph)` turns a graph's arrays into tensors once, `forward(tensors, index)` gives the costs of
the configurations in `index`, shape (k,), and `configs_within(tensors, budget)` says how many fit into a memory
budget. Attributes: `settings`, a frozen dataclass; `fitted`, whether there are statistics; `transductive`, whether a
cost depends on the other configurations in the call. A transductive model has a buffer `set_size`, too: how many
were scored together in training.
"""
# one place to import models from
from kit.layout_gnn import LayoutGNN, LayoutGNNSettings, LayoutTensors, node_alone  # noqa: F401
from kit.tile_model import TileModel, TileModelSettings, tile_features  # noqa: F401
from kit.tokens import ConfigTokenModel, ConfigTokenSettings  # noqa: F401
