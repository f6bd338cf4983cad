"""The networks. Each turns (graph, chosen configurations) into one cost per configuration; lower is faster.

A model is a module with what `kit.train` relies on. Methods: `fit_scale(graphs)` stores feature statistics inside
the model, `prepare(graph)` turns a graph's arrays into tensors once, `forward(tensors, index)` gives the costs of
the configurations in `index`, shape (k,), and `configs_within(tensors, budget)` says how many fit into a memory
budget. Attributes: `settings`, a frozen dataclass; `fitted`, whether there are statistics; `transductive`, whether a
cost depends on the other configurations in the call. A transductive model has a buffer `set_size`, too: how many
were scored together in training.
"""
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from kit.agree import OWN_FEATURES, PAIR_FEATURES, agreement_tables
from kit.data import OPCODES
from kit.layers import (
    DIGIT_VALUES,
    NUMERIC,
    ConfigAttention,
    Sage,
    SqueezeExcite,
    instance_norm,
    mean_messages,
    node_tensors,
)
from kit.scale import fit_scaler
from kit.tile_model import TileModel, TileModelSettings, tile_features  # noqa: F401  (one place to import models from)
from kit.tokens import ConfigTokenModel, ConfigTokenSettings  # noqa: F401


class LayoutTensors(NamedTuple):
    """A layout graph as `LayoutGNN` wants it: configurable nodes first, then the others."""
    numeric: torch.Tensor        # (n, 134) float32, standardised
    opcode: torch.Tensor         # (n,) int64
    layout: torch.Tensor         # (n, 6) int64, digits + 2
    code_rows: torch.Tensor      # (nc, k, 18) int64, digits + 2
    node_group: torch.Tensor     # (nc,) int64
    config_codes: torch.Tensor   # (c, g) uint8, int32 where codes pass 255
    messages: tuple              # Messages, one for each direction
    own: torch.Tensor = None     # (nc, k, 11) float32; see agreement_tables
    pairs: torch.Tensor = None   # (p, 2) int64; configurable neighbours: producer, consumer
    pair: torch.Tensor = None    # (p, k, k, 8) float32; see agreement_tables


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
    agreement: bool = False              # not published: tell each node where its neighbours' layouts disagree
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
                   config_attention=False, node_norm=False, agreement=False)


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
            if s.agreement:
                self.own = nn.Linear(OWN_FEATURES, out, bias=False)
                self.pair = nn.Linear(2 * PAIR_FEATURES, out, bias=False)
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
        tables = agreement_tables(graph) if self.settings.agreement else None
        return LayoutTensors(
            *node_tensors(graph.node_feat[order], graph.node_opcode[order], self.node_scale),
            torch.as_tensor(graph.code_rows.astype(np.int64) + 2, device=device),
            torch.tensor(graph.node_group, device=device),
            torch.tensor(codes if codes.dtype == np.uint8 else codes.astype(np.int32), device=device),
            tuple(mean_messages(e, n, device) for e in directions),
            *([torch.tensor(t, device=device) for t in (tables.own, tables.pairs, tables.pair)] if tables else []))

    def configs_within(self, tensors, budget):
        """How many configurations one call without gradients may hold within `budget` bytes; at least 1."""
        # at the widest point seven (n, k, width) float32 tensors are alive, and the sparse product may copy one
        return max(1, int(budget // (len(tensors.opcode) * self.settings.width * 4 * 8)))

    def forward(self, tensors, index):
        """Cost of the configurations `index` (k,) -> (k,)."""
        return self.head(self.pooled(tensors, index)).squeeze(-1)

    def pooled(self, tensors, index):
        """What the graph holds under the configurations `index` (k,), averaged over its nodes -> (k, width)."""
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
        return x.mean(dim=0)

    def embed(self, tensors, index):
        """The first linear layer over (node features, digits), with all that configurations share done once."""
        static = self.static(torch.cat([tensors.numeric, self.digit(tensors.layout).flatten(1),
                                        self.opcode(tensors.opcode)], dim=1))                     # (n, out)
        table = self.config(self.digit(tensors.code_rows).flatten(2))                             # (nc, codes, out)
        nc, codes = table.shape[:2]
        if tensors.own is not None:
            table = table + self.own(tensors.own)
        chosen = tensors.config_codes[index].long()[:, tensors.node_group].T                      # (nc, k)
        rows = chosen + codes * torch.arange(nc, device=chosen.device)[:, None]
        configured = static[:nc, None] + F.embedding(rows, table.flatten(0, 1))                   # (nc, k, out)
        if tensors.own is not None:
            configured = configured + self.pair(self.disagreements(tensors, chosen))
        none = self.config(self.digit(torch.zeros(18, dtype=torch.long, device=chosen.device)).flatten())
        others = (static[nc:, None] + none).expand(-1, len(index), -1)
        return torch.cat([configured, others])

    def disagreements(self, tensors, chosen):
        """Sum each node's pair features as producer and as consumer; chosen (nc, k) codes -> (nc, k, 16)."""
        codes, (producer, consumer) = tensors.pair.shape[1], tensors.pairs.T
        slots = torch.arange(len(producer), device=chosen.device)[:, None]
        rows = (slots * codes + chosen[producer]) * codes + chosen[consumer]                      # (p, k)
        features = F.embedding(rows, tensors.pair.flatten(0, 2))                                  # (p, k, 8)
        zeros = features.new_zeros(*chosen.shape, features.shape[-1])
        return torch.cat([zeros.index_add(0, end, features) for end in (producer, consumer)], dim=-1)
