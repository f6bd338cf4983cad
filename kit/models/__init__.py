"""The networks. A model turns (graph, chosen configurations) into one cost per configuration; lower is faster.

A name of this package loads the file that defines it, and no other network. The models of LightGBM (`BoostedTrees`,
`AdditiveTrees`) are no networks, but have the same form.

Training, prediction and checkpoints accept any `torch.nn.Module` with the attributes and methods listed here. To add a
model, write its file, add it to `kit/recipes.py` and test it; `tests/test_add_a_model.py` does so with a small model.

- `settings`: a frozen dataclass; a checkpoint is resumed only with equal settings
- `fit_scale(graphs)`: stores feature statistics of the training graphs in buffers, so that they are saved with the
  weights; called once
- `fitted`: whether `fit_scale` was called; also a buffer
- `prepare(graph)`: a TileGraph or LayoutGraph -> tensors on the device of the model; called once per graph
- `forward(tensors, index)`: costs, shape (k,), of the configurations `index`, an int64 tensor of shape (k,)
- `configs_within(tensors, budget)`: how many configurations `forward` can take within `budget` bytes; at least 1
- `transductive`: whether the cost of a configuration depends on the others in `index`. If so, the model also has a
  buffer `set_size`: training stores there how many configurations it scored together, and `predict` scores as many

Examples
--------
A complete model: its cost is linear in the mean layout of the configurable nodes.

>>> from dataclasses import dataclass
>>> import numpy as np, torch
>>> from kit.data import dense_configs
>>> @dataclass(frozen=True)
... class MeanLayoutSettings:
...     digits: int = 18                     # per node; 6 for the output, 6 input, 6 kernel
>>> class MeanLayout(torch.nn.Module):
...     transductive = False
...     def __init__(self, settings=MeanLayoutSettings()):
...         super().__init__()
...         self.settings, self.linear = settings, torch.nn.Linear(settings.digits, 1)
...         self.register_buffer("fitted", torch.tensor(False))
...     def fit_scale(self, graphs):
...         self.fitted.fill_(True)          # digits need no scale
...     def prepare(self, graph):            # -> (c, 18)
...         means = [dense_configs(graph, [i])[0].mean(axis=0) for i in range(len(graph.config_codes))]
...         return torch.tensor(np.array(means), dtype=torch.float32, device=self.fitted.device)
...     def configs_within(self, tensors, budget):
...         return 1 + budget // (4 * 2 * self.settings.digits)
...     def forward(self, tensors, index):
...         return self.linear(tensors[index]).squeeze(-1)
>>> MeanLayout()(torch.zeros(5, 18), torch.tensor([0, 3])).shape
torch.Size([2])
"""
from typing import TYPE_CHECKING

from kit.lazy import lazy_names

if TYPE_CHECKING:                        # for editors, and for digests of code
    from kit.models.additive_trees import AdditiveTrees, AdditiveTreesSettings, best_configuration
    from kit.models.boosted_trees import BoostedTrees, BoostedTreesSettings
    from kit.models.config_token import ConfigTokenModel, ConfigTokenSettings
    from kit.models.explanation import Explanation, explain, reasons
    from kit.models.layers import Sage, SparseMean, fastest_aggregation, mean_messages, rows_of
    from kit.models.layout_gnn import LayoutGNN, LayoutGNNSettings, without_edges
    from kit.models.segments import SegmentGNN, SegmentGNNSettings
    from kit.models.tile import TileModel, TileModelSettings

__getattr__, __all__ = lazy_names(__name__, {
    "additive_trees": "AdditiveTrees AdditiveTreesSettings best_configuration",
    "boosted_trees": "BoostedTrees BoostedTreesSettings",
    "config_token": "ConfigTokenModel ConfigTokenSettings",
    "explanation": "Explanation explain reasons",
    "layers": "Sage SparseMean fastest_aggregation mean_messages rows_of",
    "layout_gnn": "LayoutGNN LayoutGNNSettings without_edges",
    "segments": "SegmentGNN SegmentGNNSettings",
    "tile": "TileModel TileModelSettings"})
