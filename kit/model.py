"""The networks. Each turns (graph, chosen configurations) into one cost per configuration; lower is faster.

A model has three methods that `kit.train` relies on: `fit_scale(graphs)` stores feature statistics inside the
model, `prepare(graph)` turns a graph's arrays into tensors once, and `forward(tensors, index)` gives the costs of
the configurations in `index`, shape (k,). `configs_within(tensors, budget)` says how many fit into a memory budget.
"""
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from kit.data import OPCODES
from kit.layers import NUMERIC, ConfigAttention, Sage, SqueezeExcite, instance_norm, mean_messages, node_tensors
from kit.scale import Scaler, fit_scaler, scale
from kit.tokens import ConfigTokenModel, ConfigTokenSettings  # noqa: F401  (one place to import a model from)

DIGIT_VALUES = 8                 # -2 not configurable, -1 none, 0..5 an axis
TILE_FEATURES = 42               # see tile_features


class LayoutTensors(NamedTuple):
    """A layout graph as `LayoutGNN` wants it: configurable nodes first, then the others."""
    numeric: torch.Tensor        # (n, 134) float32, standardised
    opcode: torch.Tensor         # (n,) int64
    layout: torch.Tensor         # (n, 6) int64, digits + 2
    code_rows: torch.Tensor      # (nc, k, 18) int64, digits + 2
    node_group: torch.Tensor     # (nc,) int64
    config_codes: torch.Tensor   # (c, g) uint8, int32 where codes pass 255
    messages: tuple              # Messages, one for each direction


class TileTensors(NamedTuple):
    """A kernel as `TileModel` wants it."""
    numeric: torch.Tensor        # (n, 134) float32, standardised
    opcode: torch.Tensor         # (n,) int64
    layout: torch.Tensor         # (n, 6) int64, digits + 2
    config: torch.Tensor         # (c, 42) float32, standardised
    messages: tuple              # Messages, one for each direction


@dataclass(frozen=True)
class LayoutGNNSettings:
    """Defaults: the first place's network for the `default` collections."""
    width: int = 256
    linear_blocks: int = 2
    graph_blocks: int = 2
    opcode_width: int = 16
    digit_width: int = 4
    squeeze: int = 8
    config_attention: bool = True        # scores then depend on which configurations are scored together
    both_directions: bool = False        # False: messages go from consumers to producers only
    node_norm: bool = True               # instance norm over the nodes
    dropout: float = 0.2
    aggregation: str = "sparse"          # or "scatter"; see fastest_aggregation
    seed: int = 0                        # of the initial weights


def node_alone(settings):
    """The same network blind to everything but each node itself: no messages, no norm over nodes, no attention.

    Parameters
    ----------
    settings : LayoutGNNSettings

    Returns
    -------
    LayoutGNNSettings
        With a linear block for each GraphSAGE block; configurations are still pooled over nodes.
    """
    return replace(settings, linear_blocks=settings.linear_blocks + settings.graph_blocks, graph_blocks=0,
                   config_attention=False, node_norm=False)


class LayoutGNN(nn.Module):
    """The first place's layout network: embed, two linear and two GraphSAGE blocks, mean pool, one cost.

    Each block has instance norm over nodes, squeeze-and-excite, optional attention across configurations and
    GELU; the GraphSAGE blocks are residual. Source: thanhhau097/google_fast_or_slow, the network as published.

    Parameters
    ----------
    settings : LayoutGNNSettings, optional
    """

    def __init__(self, settings=None):
        super().__init__()
        self.settings = s = settings or LayoutGNNSettings()
        out = s.width // 2 if s.config_attention else s.width
        directions = 2 if s.both_directions else 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(s.seed)
            self.opcode = nn.Embedding(OPCODES, s.opcode_width)
            self.digit = nn.Embedding(DIGIT_VALUES, s.digit_width)
            self.static = nn.Linear(NUMERIC + 6 * s.digit_width + s.opcode_width, out)
            self.config = nn.Linear(18 * s.digit_width, out, bias=False)
            self.linears = nn.ModuleList(nn.Linear(s.width, out) for _ in range(s.linear_blocks - 1))
            for linear in (self.static, self.config, *self.linears):
                nn.init.xavier_normal_(linear.weight)
            self.sages = nn.ModuleList(Sage(s.width, out, directions, s.aggregation) for _ in range(s.graph_blocks))
            blocks = s.linear_blocks + s.graph_blocks
            self.gates = nn.ModuleList(SqueezeExcite(out, s.squeeze) for _ in range(blocks))
            self.attend = nn.ModuleList(ConfigAttention() if s.config_attention else nn.Identity()
                                        for _ in range(blocks))
            self.head = nn.Linear(s.width, 1)
        self.register_buffer("node_scale", torch.zeros(2, NUMERIC, dtype=torch.float64))
        self.register_buffer("fitted", torch.tensor(False))
        self.register_buffer("set_size", torch.tensor(64))       # configurations scored together in training

    @property
    def transductive(self):
        """Whether a cost depends on the other configurations in the same call."""
        return self.settings.config_attention

    def fit_scale(self, graphs):
        """Store the feature statistics of the training graphs."""
        scaler = fit_scaler(g.node_feat[:, :NUMERIC] for g in graphs)
        self.node_scale.copy_(torch.as_tensor(np.stack(scaler)))
        self.fitted.fill_(True)

    def prepare(self, graph):
        """Turn a LayoutGraph into tensors on this model's device; repairs the layout padding."""
        n, device = len(graph.node_feat), self.node_scale.device
        rest = np.setdiff1d(np.arange(n), graph.node_config_ids)
        order = np.concatenate([graph.node_config_ids, rest])
        edges = np.argsort(order)[graph.edge_index]
        codes = graph.config_codes
        directions = (edges, edges[:, ::-1])[:2 if self.settings.both_directions else 1]
        return LayoutTensors(
            *node_tensors(graph.node_feat[order], graph.node_opcode[order], self.node_scale),
            torch.as_tensor(graph.code_rows.astype(np.int64) + 2, device=device),
            torch.tensor(graph.node_group, device=device),
            torch.tensor(codes if codes.dtype == np.uint8 else codes.astype(np.int32), device=device),
            tuple(mean_messages(e, n, device) for e in directions))

    def configs_within(self, tensors, budget):
        """How many configurations one call without gradients may hold within `budget` bytes; at least 1."""
        # at the widest point seven (n, k, width) float32 tensors are alive, and the sparse product may copy one
        return max(1, int(budget // (len(tensors.opcode) * self.settings.width * 4 * 8)))

    def forward(self, tensors, index):
        """Cost of the configurations `index` (k,) -> (k,)."""
        x = self.embed(tensors, index)                                        # (n, k, out)
        norm = instance_norm if self.settings.node_norm else nn.Identity()
        x = F.gelu(self.attend[0](self.gates[0](norm(x))))                    # (n, k, width)
        block = 1
        for linear in self.linears:
            x = F.gelu(self.attend[block](self.gates[block](norm(linear(x)))))
            block += 1
        for sage in self.sages:
            update = self.attend[block](self.gates[block](sage(norm(x), tensors.messages)))
            x = F.dropout(F.gelu(x + update), self.settings.dropout, self.training)
            block += 1
        return self.head(x.mean(dim=0)).squeeze(-1)

    def embed(self, tensors, index):
        """The first linear layer over (node features, digits), with all that configurations share done once."""
        static = self.static(torch.cat([tensors.numeric, self.digit(tensors.layout).flatten(1),
                                        self.opcode(tensors.opcode)], dim=1))                     # (n, out)
        table = self.config(self.digit(tensors.code_rows).flatten(2))                             # (nc, codes, out)
        nc, codes = table.shape[:2]
        chosen = tensors.config_codes[index].long()[:, tensors.node_group].T                      # (nc, k)
        rows = chosen + codes * torch.arange(nc, device=chosen.device)[:, None]
        configured = static[:nc, None] + F.embedding(rows, table.flatten(0, 1))                   # (nc, k, out)
        none = self.config(self.digit(torch.zeros(18, dtype=torch.long, device=chosen.device)).flatten())
        others = (static[nc:, None] + none).expand(-1, len(index), -1)
        return torch.cat([configured, others])


@dataclass(frozen=True)
class TileModelSettings:
    """A small GraphSAGE over the kernel, joined late with the tile sizes."""
    width: int = 64
    graph_blocks: int = 2
    opcode_width: int = 16
    digit_width: int = 4
    dropout: float = 0.1
    aggregation: str = "sparse"          # or "scatter"; see fastest_aggregation
    seed: int = 0                        # of the initial weights


class TileModel(nn.Module):
    """Rank the tile sizes of one kernel: encode the graph once, then each configuration against it.

    Mean and max over the nodes join an encoding of the configuration: its 24 numbers, how many tiles cover each
    output dimension, and the share of padding that 8 x 128 registers add, dimensions in minor-to-major order.

    Parameters
    ----------
    settings : TileModelSettings, optional
    """
    transductive = False

    def __init__(self, settings=None):
        super().__init__()
        self.settings = s = settings or TileModelSettings()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(s.seed)
            self.opcode = nn.Embedding(OPCODES, s.opcode_width)
            self.digit = nn.Embedding(DIGIT_VALUES, s.digit_width)
            self.node = nn.Linear(NUMERIC + 6 * s.digit_width + s.opcode_width, s.width)
            self.sages = nn.ModuleList(Sage(s.width, s.width, 2, s.aggregation) for _ in range(s.graph_blocks))
            self.norms = nn.ModuleList(nn.LayerNorm(s.width) for _ in range(s.graph_blocks))
            self.config = nn.Sequential(nn.Linear(TILE_FEATURES, s.width), nn.GELU(), nn.Linear(s.width, s.width))
            self.graph = nn.Linear(2 * s.width, s.width)
            self.head = nn.Sequential(nn.Linear(3 * s.width, s.width), nn.GELU(), nn.Dropout(s.dropout),
                                      nn.Linear(s.width, s.width), nn.GELU(), nn.Linear(s.width, 1))
        self.register_buffer("node_scale", torch.zeros(2, NUMERIC, dtype=torch.float64))
        self.register_buffer("config_scale", torch.zeros(2, TILE_FEATURES, dtype=torch.float64))
        self.register_buffer("fitted", torch.tensor(False))

    def fit_scale(self, graphs):
        """Store the feature statistics of the training kernels."""
        self.node_scale.copy_(torch.as_tensor(np.stack(fit_scaler(g.node_feat[:, :NUMERIC] for g in graphs))))
        self.config_scale.copy_(torch.as_tensor(np.stack(fit_scaler(tile_features(g) for g in graphs))))
        self.fitted.fill_(True)

    def prepare(self, graph):
        """Turn a TileGraph into tensors on this model's device; repairs the layout padding."""
        n, device = len(graph.node_feat), self.node_scale.device
        mean, factor = self.config_scale.cpu().numpy()
        return TileTensors(
            *node_tensors(graph.node_feat, graph.node_opcode, self.node_scale),
            torch.as_tensor(scale(tile_features(graph), Scaler(mean, factor)), device=device),
            tuple(mean_messages(e, n, device) for e in (graph.edge_index, graph.edge_index[:, ::-1])))

    def configs_within(self, tensors, budget):
        """How many configurations one call without gradients may hold within `budget` bytes; at least 1."""
        return max(1, int(budget // (self.settings.width * 4 * 10)))

    def forward(self, tensors, index):
        """Cost of the configurations `index` (k,) -> (k,)."""
        x = self.node(torch.cat([tensors.numeric, self.digit(tensors.layout).flatten(1),
                                 self.opcode(tensors.opcode)], dim=1))                            # (n, width)
        for norm, sage in zip(self.norms, self.sages):
            x = x + F.gelu(sage(norm(x), tensors.messages))
        graph = self.graph(torch.cat([x.mean(dim=0), x.amax(dim=0)]))                             # (width,)
        config = self.config(tensors.config[index])                                               # (k, width)
        graph = graph.expand_as(config)
        return self.head(torch.cat([config, graph, config * graph], dim=1)).squeeze(-1)


def tile_features(graph):
    """Numbers that describe each tile of a kernel.

    Parameters
    ----------
    graph : TileGraph

    Returns
    -------
    ndarray, shape (c, 42), float64
        The 24 configuration features; then for the 6 output dimensions, minor to major, how many tiles cover
        them, the padding of the tile to 8, and to 128 (a factor of at least 1); 0 past the rank.
    """
    roots = np.flatnonzero(graph.node_feat[:, 0])
    root = graph.node_feat[roots[-1] if len(roots) else -1]
    rank = int((root[21:27] != 0).sum())
    layout = root[134:134 + rank].astype(np.int64)
    if sorted(layout) != list(range(rank)):
        layout = np.arange(rank)[::-1]                     # row-major, XLA's default
    tile, size = graph.config_feat[:, 8:14][:, layout].astype(np.float64), root[21:27][layout]
    known = tile > 0
    tile = np.where(known, tile, 1)
    shape = np.zeros((3, len(tile), 6))
    shape[:, :, :rank] = np.where(known, [np.ceil(size / tile), np.ceil(tile / 8) * 8 / tile,
                                          np.ceil(tile / 128) * 128 / tile], 0)
    return np.concatenate([graph.config_feat, *shape], axis=1)
