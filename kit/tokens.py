"""The config-token model: encode the graph once, each (group, code) once, and a configuration as a few look-ups.

Configurations of a file differ only in the codes of a few groups of nodes. So the network never sees nodes x
configurations: it tabulates a term for each configurable node and code, a term for each pair of configurable
neighbours and both codes, and a vector for each group and code. The cost of a configuration is the sum of its
terms, plus a small network of the sum of its vectors for what is not additive. Tensor sizes weigh the terms, since
a copy costs what its bytes cost.
"""
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from kit.agree import OWN_FEATURES, PAIR_FEATURES, agreement_tables
from kit.data import OPCODES
from kit.layers import DIGIT_VALUES, NUMERIC, Sage, mean_messages, node_tensors
from kit.scale import fit_scaler


class TokenTensors(NamedTuple):
    """A layout graph as `ConfigTokenModel` wants it; p pairs of configurable neighbours, q pairs of groups."""
    numeric: torch.Tensor        # (n, 134) float32, standardised
    opcode: torch.Tensor         # (n,) int64
    layout: torch.Tensor         # (n, 6) int64, digits + 2
    messages: tuple              # Messages, one for each direction
    ids: torch.Tensor            # (nc,) int64; the configurable nodes
    code_rows: torch.Tensor      # (nc, k, 18) int64, digits + 2
    own: torch.Tensor            # (nc, k, 11) float32; see agreement_tables
    share: torch.Tensor          # (nc,) float32; the tensor's size over the graph's largest
    node_group: torch.Tensor     # (nc,) int64
    pairs: torch.Tensor          # (p, 2) int64; positions in ids
    pair: torch.Tensor           # (p, k, k, 8) float32; see agreement_tables
    pair_slot: torch.Tensor      # (p,) int64 in 0..q-1
    slot_groups: torch.Tensor    # (q, 2) int64; producer's group, consumer's group
    config_codes: torch.Tensor   # (c, g) uint8, int32 where codes pass 255


@dataclass(frozen=True)
class ConfigTokenSettings:
    """Small, because graphs are few."""
    width: int = 32
    graph_blocks: int = 1                # GraphSAGE over the program, once a graph
    token_width: int = 32
    opcode_width: int = 8
    digit_width: int = 4
    dropout: float = 0.1
    seed: int = 0                        # of the initial weights


class ConfigTokenModel(nn.Module):
    """Rank layout configurations by look-ups in tables that are computed once a graph.

    The cost of a configuration does not depend on the others scored with it.

    Parameters
    ----------
    settings : ConfigTokenSettings, optional
    """
    transductive = False

    def __init__(self, settings=None):
        super().__init__()
        self.settings = s = settings or ConfigTokenSettings()

        def network(width_in, width_out):
            return nn.Sequential(nn.GELU(), nn.Dropout(s.dropout), nn.Linear(width_in, s.width), nn.GELU(),
                                 nn.Linear(s.width, width_out))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(s.seed)
            self.opcode = nn.Embedding(OPCODES, s.opcode_width)
            self.digit = nn.Embedding(DIGIT_VALUES, s.digit_width)
            self.node = nn.Linear(NUMERIC + 6 * s.digit_width + s.opcode_width, s.width)
            self.sages = nn.ModuleList(Sage(s.width, s.width, 2, "sparse") for _ in range(s.graph_blocks))
            self.norms = nn.ModuleList(nn.LayerNorm(s.width) for _ in range(s.graph_blocks))
            # first layers are split by what they read, so that each part runs on its own small table
            self.context = nn.Linear(s.width, 3 * s.width)
            self.code = nn.Linear(18 * s.digit_width + OWN_FEATURES, s.width, bias=False)
            self.agree = nn.Linear(PAIR_FEATURES, s.width, bias=False)
            self.unary = network(s.width, 2 + s.token_width)
            self.binary = network(s.width, 2)
            self.pool = nn.Sequential(nn.LayerNorm(s.token_width), nn.Linear(s.token_width, 2 * s.width),
                                      network(2 * s.width, 1))
        self.register_buffer("node_scale", torch.zeros(2, NUMERIC, dtype=torch.float64))
        self.register_buffer("fitted", torch.tensor(False))

    def fit_scale(self, graphs):
        """Store the feature statistics of the training graphs."""
        self.node_scale.copy_(torch.as_tensor(np.stack(fit_scaler(g.node_feat[:, :NUMERIC] for g in graphs))))
        self.fitted.fill_(True)

    def prepare(self, graph):
        """Turn a LayoutGraph into tensors on this model's device; repairs the layout padding."""
        n, device = len(graph.node_feat), self.node_scale.device
        tables = agreement_tables(graph)
        codes = graph.config_codes
        slots, pair_slot = np.unique(graph.node_group[tables.pairs], axis=0, return_inverse=True)

        def tensor(array):
            return torch.tensor(array, device=device)
        return TokenTensors(
            *node_tensors(graph.node_feat, graph.node_opcode, self.node_scale),
            tuple(mean_messages(e, n, device) for e in (graph.edge_index, graph.edge_index[:, ::-1])),
            tensor(graph.node_config_ids), tensor(graph.code_rows.astype(np.int64) + 2), tensor(tables.own),
            tensor(tables.share), tensor(graph.node_group),
            tensor(tables.pairs), tensor(tables.pair), tensor(pair_slot.reshape(-1)), tensor(slots.reshape(-1, 2)),
            tensor(codes if codes.dtype == np.uint8 else codes.astype(np.int32)))

    def configs_within(self, tensors, budget):
        """How many configurations one call without gradients may hold within `budget` bytes; at least 1.

        The tables that all configurations share come on top.
        """
        s, integers = self.settings, 3 * tensors.config_codes.shape[1] + 4 * len(tensors.slot_groups)
        return max(1, int(budget // (8 * integers + 4 * (4 * s.token_width + 6 * s.width))))

    def tables(self, tensors):
        """All that configurations share: (g, k, 1 + token_width) and (q, k, k)."""
        t, s = tensors, self.settings
        x = self.node(torch.cat([t.numeric, self.digit(t.layout).flatten(1), self.opcode(t.opcode)], dim=1))
        for norm, sage in zip(self.norms, self.sages):
            x = x + F.gelu(sage(norm(x), t.messages))
        alone, giving, taking = self.context(x[t.ids]).split(s.width, dim=1)                     # (nc, width)
        k, groups = t.code_rows.shape[1], t.config_codes.shape[1]

        code = self.code(torch.cat([self.digit(t.code_rows).flatten(2), t.own], dim=2))          # (nc, k, width)
        plain, by_size, token = self.unary(alone[:, None] + code).split((1, 1, s.token_width), dim=2)
        unary = torch.cat([plain + by_size * t.share[:, None, None], token], dim=2)
        unary = unary.new_zeros(groups, k, 1 + s.token_width).index_add(0, t.node_group, unary)

        producer, consumer = t.pairs.T
        ends = giving[producer] + taking[consumer]                                               # (p, width)
        plain, by_size = self.binary(ends[:, None, None] + self.agree(t.pair)).unbind(-1)        # (p, k, k)
        binary = plain + by_size * t.share[producer][:, None, None]
        return unary, binary.new_zeros(len(t.slot_groups), k, k).index_add(0, t.pair_slot, binary)

    def forward(self, tensors, index):
        """Cost of the configurations `index` (j,) -> (j,)."""
        unary, binary = self.tables(tensors)
        codes = tensors.config_codes[index].long()                                               # (j, g)
        k, (first, second) = unary.shape[1], tensors.slot_groups.T
        rows = codes + k * torch.arange(codes.shape[1], device=codes.device)
        bags = torch.arange(len(codes), device=codes.device) * codes.shape[1]      # given, as there may be no group
        total = F.embedding_bag(rows.flatten(), unary.flatten(0, 1), bags, mode="sum")           # (j, 1 + token_width)
        slots = torch.arange(len(first), device=codes.device)
        cells = (slots * k + codes[:, first]) * k + codes[:, second]                             # (j, q)
        return total[:, 0] + self.pool(total[:, 1:]).squeeze(-1) + binary.flatten()[cells].sum(dim=1)
