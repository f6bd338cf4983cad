"""The data set's published baselines, rewritten: four networks for tiles, two for layouts.

Sources: google-research-datasets/tpu_graphs (arXiv:2308.13490); for `LayoutSAGE`, kaidic/GST (arXiv:2305.12322), here
on whole graphs. As published, features and digits are plain numbers, divided by their range or deviation over the
training graphs; columns that are constant there are 0. Linear layers over [node, configuration] are split, with the
same result: one part runs once per graph, the other once per configuration or table row.
"""
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from kit.data import OPCODES
from kit.models import Sage, SparseMean, mean_messages, rows_of

SLOPE = 0.2              # of TensorFlow's leaky ReLU
DIGIT_WEIGHT = 100       # both layout baselines multiply a configuration's digits by it


@dataclass(frozen=True)
class BaselineSettings:
    """Defaults: tiles, from the paper's sweep."""
    width: int = 64
    opcode_width: int = 64
    layers: int = 3              # of the graph network; linear layers of the MLP
    seed: int = 0                # of the initial weights


@dataclass(frozen=True)
class LayoutSAGESettings(BaselineSettings):
    """Defaults: the published `tpugraphs.yaml`."""
    width: int = 256
    opcode_width: int = 128
    dropout: float = 0.1


class BaselineTensors(NamedTuple):
    """A graph as the baselines want it; a layout graph has its configurable nodes first."""
    numeric: torch.Tensor        # (n, 140) float32, scaled
    opcode: torch.Tensor         # (n,) int64
    messages: object             # (n, n) sparse and symmetric; LayoutSAGE: Messages; TileMLP: None
    config: torch.Tensor         # (c, 24) float32, scaled; layout graph: (c, g) int32, codes
    digits: torch.Tensor = None  # (nc, codes, 18) float32, scaled
    node_group: torch.Tensor = None


class Baseline(nn.Module):
    """What all baselines share; a cost does not depend on the other configurations in the call."""
    transductive = False
    early = True                 # True: every node reads the configuration; False: only the sum over nodes meets it
    like_keras = True            # initial weights

    def __init__(self, settings=None):
        super().__init__()
        self.settings = s = settings or self.defaults
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(s.seed)
            self.opcode = nn.Embedding(OPCODES, s.opcode_width)
            self._build(s, 140 + s.opcode_width + self.columns * self.early)
            if self.like_keras:
                for p in self.parameters():
                    nn.init.xavier_uniform_(p) if p.dim() > 1 else nn.init.zeros_(p)
                nn.init.uniform_(self.opcode.weight, -0.05, 0.05)
        for name, columns in (("node_scale", 140), ("config_scale", self.columns)):
            self.register_buffer(name, torch.zeros(2, columns, dtype=torch.float64))
        self.register_buffer("fitted", torch.tensor(False))

    def fit_scale(self, graphs):
        """Store the feature ranges of the training graphs."""
        self.node_scale.copy_(_smallest_and_range([g.node_feat for g in graphs]))
        self.config_scale.copy_(_smallest_and_range([_config_rows(g) for g in graphs]))
        self.fitted.fill_(True)

    def prepare(self, graph):
        """Turn a graph into tensors on this model's device."""
        n, device = len(graph.node_feat), self.node_scale.device
        first = getattr(graph, "node_config_ids", np.arange(0))
        order = np.concatenate([first, np.setdiff1d(np.arange(n), first)])
        config = [_scaled(_config_rows(graph), self.config_scale)]
        if hasattr(graph, "code_rows"):
            config = [torch.tensor(graph.config_codes.astype(np.int32), device=device),
                      DIGIT_WEIGHT * config[0].reshape(graph.code_rows.shape),
                      torch.tensor(graph.node_group, device=device)]
        return BaselineTensors(
            _scaled(graph.node_feat[order], self.node_scale), torch.tensor(graph.node_opcode[order], device=device),
            self._messages(np.argsort(order)[graph.edge_index], n, device), *config)

    def configs_within(self, tensors, budget):
        """How many configurations one call without gradients may hold within `budget` bytes; at least 1."""
        # at most five (n, width) tensors, and the sparse product may copy one; then the layers after the pooling
        s, n = self.settings, len(tensors.opcode) if self.early else 0
        return max(1, int(budget // (4 * (6 * n * s.width + 6 * s.width + 2 * s.opcode_width + 400))))

    def _static(self, tensors, weight=1):
        return torch.cat([weight * self.opcode(tensors.opcode), tensors.numeric], dim=1)  # (n, opcode_width + 140)


class TileBaseline(Baseline):
    """A tile baseline; published loss: ListMLE of cost / 10 and .02 squared error."""
    columns, defaults = 24, BaselineSettings()

    def forward(self, tensors, index):
        """Cost of the configurations `index` (k,) -> (k,)."""
        config = tensors.config[index]  # (k, 24)
        early, late = (config, config[:, :0]) if self.early else (config[:1, :0], config)
        x = self._nodes(self._static(tensors), early, tensors.messages)  # (n, k, width); joined late (n, 1, width)
        return self.head(torch.cat([x.sum(dim=0).expand(len(config), -1), late], dim=1)).squeeze(-1)


class TileMLP(TileBaseline):
    """A perceptron over sums of node features and opcode embeddings, and the configuration."""
    early = False

    def _build(self, s, columns):
        self.head = _perceptron(columns + 24, *[s.width] * (s.layers - 1), 1)

    def _messages(self, edge_index, n, device):
        return None

    def _nodes(self, static, config, matrix):
        return static[:, None]


class EarlyJoinSAGE(TileBaseline):
    """GraphSAGE that sums over neighbours in both directions; every node has the configuration's features."""

    def _build(self, s, columns):
        widths = [columns] + [s.width] * s.layers
        self.blocks = nn.ModuleList(nn.Linear(2 * a, b) for a, b in zip(widths, widths[1:]))
        self.head = _perceptron(s.width + 24 * (not self.early), s.width, s.width, 1)

    def _messages(self, edge_index, n, device):
        return _symmetric(edge_index, np.ones(len(edge_index)), np.zeros(n), device)

    def _nodes(self, static, config, matrix):
        first, widths = self.blocks[0], (static.shape[1], config.shape[1])
        near, near_config, own, own_config = first.weight.split(widths * 2, dim=1)
        x = _spread(matrix, static @ near.T) + static @ own.T + first.bias  # (n, width)
        # the configuration is the same at every node, so its sum over neighbours is it times their number
        degree = _spread(matrix, static.new_ones(len(static), 1, 1))
        x = x[:, None] + degree * (config @ near_config.T) + config @ own_config.T  # (n, k, width)
        x = _unit(F.leaky_relu(x, SLOPE))
        for block in self.blocks[1:]:
            x = _unit(F.leaky_relu(block(torch.cat([_spread(matrix, x), x], dim=-1)), SLOPE))
        return x


class LateJoinSAGE(EarlyJoinSAGE):
    """The same GraphSAGE over the kernel alone, whose sum over nodes meets the configuration."""
    early = False


class ResidualGCN(TileBaseline):
    """Graph convolutions with residual connections, published as EarlyJoinResGCN."""

    def _build(self, s, columns):
        self.enter = _perceptron(columns, s.width, s.width)
        self.blocks = nn.ModuleList(_perceptron(s.width, s.width, s.width) for _ in range(s.layers))
        self.head = _perceptron(s.width, s.width, 1)

    def _messages(self, edge_index, n, device):
        # M + transposed M + 1, where M is the adjacency matrix with self loops, divided by its row sums
        share = 1 / (1 + np.bincount(edge_index[:, 1], minlength=n))
        return _symmetric(edge_index, share[edge_index[:, 1]], 2 * share + 1, device)

    def _nodes(self, static, config, matrix):
        first = self.enter[0]
        x = F.linear(static, first.weight[:, :-24], first.bias)[:, None] + config @ first.weight[:, -24:].T
        x = self.enter[1:](x)
        for block in self.blocks:
            x = x + block(_spread(matrix, F.leaky_relu(x, SLOPE)))
        return F.leaky_relu(x, SLOPE)


class LayoutBaseline(Baseline):
    """A layout baseline; nodes that are not configurable have 18 zeros as digits."""
    columns = 18

    def forward(self, tensors, index):
        """Cost of the configurations `index` (k,) -> (k,)."""
        return self.head(self.pooled(tensors, index)).squeeze(-1)

    def _added(self, x, weight, tensors, index):
        """x (n, k or 1, width) plus weight (width, 18) times the digits of the configurable nodes, which come first."""
        nc, chosen = len(tensors.digits), tensors.config[index].long()[:, tensors.node_group].T  # (nc, k)
        configured = x[:nc] + rows_of(tensors.digits @ weight.T, chosen)
        return torch.cat([configured, x[nc:].expand(-1, len(index), -1)])


class LayoutGCN(LayoutBaseline):
    """Graph convolutions in which the configuration enters every layer; published loss: ListMLE."""
    defaults = BaselineSettings(width=32, opcode_width=32, layers=2)           # of the published `ResModel`

    def _build(self, s, columns):
        self.enter = _perceptron(columns, s.width, s.width)
        self.blocks = nn.ModuleList(_perceptron(s.width + 18, s.width, s.width) for _ in range(s.layers))
        self.head = _perceptron(3 * s.width, s.width, 1, bias=False)

    def _messages(self, edge_index, n, device):
        # both directions and self loops, divided by the roots of both ends' degrees (Kipf & Welling, arXiv:1609.02907)
        root = (1 + np.bincount(edge_index.ravel(), minlength=n)) ** -0.5
        return _symmetric(edge_index, root[edge_index].prod(axis=1), root ** 2, device)

    def pooled(self, tensors, index):
        """Mean, sum of unit norm, sum over configurable nodes of unit norm; (k, 3 * width)."""
        first, nc = self.enter[0], len(tensors.digits)
        x = F.linear(self._static(tensors), first.weight[:, :-18], first.bias)[:, None]
        x = F.leaky_relu(self.enter[1:](self._added(x, first.weight[:, -18:], tensors, index)), SLOPE)
        for block in self.blocks:
            first = block[0]
            y = self._added(x @ first.weight[:, :-18].T, first.weight[:, -18:], tensors, index)
            x = x + F.leaky_relu(block[1:](_spread(tensors.messages, y) + first.bias), SLOPE)
        return torch.cat([x.mean(dim=0), _unit(x.sum(dim=0)), _unit(x[:nc].sum(dim=0))], dim=1)


class LayoutSAGE(LayoutBaseline):
    """The GraphSAGE of Graph Segment Training; published loss: hinge with margin .1.

    As in the released code there is no activation between its GraphSAGE layers. The two linear layers before them
    are one layer here.
    """
    defaults, like_keras = LayoutSAGESettings(), False

    def _build(self, s, columns):
        self.opcode.max_norm = 1.0
        self.enter, self.rectify = nn.Linear(columns, s.width), nn.PReLU()
        self.sages = nn.ModuleList(Sage(s.width, s.width, 1, "sparse") for _ in range(s.layers))
        self.hidden, self.last = nn.Linear(s.width, s.width), nn.Linear(s.width, 1)

    def fit_scale(self, graphs):
        """Store mean and deviation of the features of the training graphs; digits are not scaled."""
        super().fit_scale(graphs)
        self.node_scale.copy_(_mean_and_deviation([g.node_feat for g in graphs]))
        self.config_scale.copy_(torch.tensor([[0.0], [1.0]]))

    def _messages(self, edge_index, n, device):
        return (mean_messages(edge_index, n, device),)

    def head(self, x):
        """Two layers, unit norm between them; (k, width) -> (k, 1)."""
        return self.last(_unit(F.relu(self.hidden(x))))

    def pooled(self, tensors, index):
        """Mean + max over the nodes, of unit norm; (k, width)."""
        x = F.linear(self._static(tensors, DIGIT_WEIGHT), self.enter.weight[:, :-18], self.enter.bias)[:, None]
        x = self._added(x, self.enter.weight[:, -18:], tensors, index)
        x = _unit(self.rectify(F.dropout(x, self.settings.dropout, self.training)))
        for sage in self.sages:
            x = sage(x, tensors.messages)
        return _unit(x.mean(dim=0) + x.amax(dim=0))


def _perceptron(*widths, bias=True):
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b, bias=bias), nn.LeakyReLU(SLOPE))]
    return nn.Sequential(*layers[:-1])


def _config_rows(graph):
    return graph.code_rows.reshape(-1, 18) if hasattr(graph, "code_rows") else graph.config_feat


def _smallest_and_range(arrays):
    low, high = (np.array([f(a, axis=0) for a in arrays if len(a)], np.float64) for f in (np.min, np.max))
    return _offset_and_factor(low.min(axis=0), high.max(axis=0) - low.min(axis=0))


def _mean_and_deviation(arrays):
    rows = sum(map(len, arrays))
    mean = sum(a.sum(axis=0, dtype=np.float64) for a in arrays) / rows
    deviation = np.sqrt(sum(((a - mean) ** 2).sum(axis=0) for a in arrays) / rows)
    return _offset_and_factor(mean, np.where(deviation > 1e-6, deviation, 0))


def _offset_and_factor(offset, span):
    return torch.as_tensor(np.stack([offset, np.divide(1, span, out=np.zeros_like(span), where=span > 0)]))


def _scaled(x, scale):
    offset, factor = scale.cpu().numpy()
    return torch.as_tensor(((x - offset) * factor).astype(np.float32), device=scale.device)


def _symmetric(edge_index, weight, diagonal, device):
    """Sparse (n, n): `weight` (m,) at [u, v] and [v, u] of each edge plus `diagonal` (n,)."""
    n = len(diagonal)
    places = np.concatenate([edge_index, edge_index[:, ::-1], np.arange(n).repeat(2).reshape(n, 2)])
    values = np.concatenate([weight, weight, diagonal]).astype(np.float32)
    return torch.sparse_coo_tensor(places.T, values, (n, n), check_invariants=True).coalesce().to(device)


def _spread(matrix, x):
    """A symmetric matrix times x (n, ...)."""
    return SparseMean.apply(matrix, matrix, x.flatten(1)).reshape(x.shape)


def _unit(x):
    return F.normalize(x, dim=-1)
