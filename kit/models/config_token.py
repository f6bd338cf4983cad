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

from kit.agreement import OWN_FEATURES, PAIR_FEATURES, REACH, agreement_tables, find_meetings
from kit.data import OPCODES
from kit.models.layers import DIGIT_VALUES, NUMERIC, Sage, mean_messages, node_tensors
from kit.scale import fit_scaler


class TokenTensors(NamedTuple):
    """A layout graph as `ConfigTokenModel` wants it; p pairs of configurable neighbours, q pairs of groups."""
    numeric: torch.Tensor        # (n, 134) float32, standardised
    opcode: torch.Tensor         # (n,) int64
    layout: torch.Tensor         # (n, 6) int64, digits + 2
    messages: tuple              # Messages, one for each direction
    ids: torch.Tensor            # (nc,) int64; the configurable nodes
    code_rows: torch.Tensor      # (nc, k, 18) int64, digits + 2
    own: torch.Tensor            # (nc, k, 14) float32; see agreement_tables
    share: torch.Tensor          # (nc, 2) float32; size of a tensor and of its largest operand over the graph's largest
    node_group: torch.Tensor     # (nc,) int64
    pairs: torch.Tensor          # (p, 2) int64; positions in ids
    pair: torch.Tensor           # (p, k, k) int32, row_pair (r,) int64, rows (r, 12) float32; see agreement_tables
    row_pair: torch.Tensor
    rows: torch.Tensor
    pair_slot: torch.Tensor      # (p,) int64 in 0..q-1
    slot_groups: torch.Tensor    # (q, 2) int64; producer's group, consumer's group
    hops: torch.Tensor           # (g, g) uint8; edges between two groups, 0: the same, REACH + 1: farther; attention
    config_codes: torch.Tensor   # (c, g) uint8, int32 where codes pass 255


@dataclass(frozen=True)
class ConfigTokenSettings:
    """Small, because graphs are few."""
    width: int = 64
    graph_blocks: int = 1                # GraphSAGE over the program, once a graph
    token_width: int = 64
    opcode_width: int = 8
    digit_width: int = 4
    features: bool = True                # False: of a node its opcode and what agreement tells
    digits: bool = True                  # False: of a code what agreement tells
    agreement: bool = True               # False: of a code its digits, and no pair terms
    pairs: bool = True                   # False: no pair terms
    reach: int = REACH                   # edges between two nodes with a pair term, at most
    mix: str = "pool"                    # what is not additive: a network of the "pool" of all tokens, tokens that
    #                                      take "attention" to each other before they are pooled, or "none"
    heads: int = 4                       # of attention
    near: bool = True                    # attention knows how many edges two groups are apart
    dropout: float = 0.1
    seed: int = 0                        # of the initial weights

    def __post_init__(self):
        if self.mix not in ("none", "pool", "attention"):
            raise ValueError(f"mix is {self.mix!r}; expected 'none', 'pool' or 'attention'")
        if not (self.digits or self.agreement):
            raise ValueError("neither digits nor agreement: codes could not be told apart")
        if self.mix == "attention" and self.token_width % self.heads:
            raise ValueError(f"token_width is {self.token_width}; expected a multiple of {self.heads} heads")


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
        numbers = NUMERIC + 6 * s.digit_width if s.features else 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(s.seed)
            self.opcode = nn.Embedding(OPCODES, s.opcode_width)
            self.digit = nn.Embedding(DIGIT_VALUES, s.digit_width)
            self.node = nn.Linear(numbers + s.opcode_width, s.width)
            self.sages = nn.ModuleList(Sage(s.width, s.width, 2, "sparse") for _ in range(s.graph_blocks))
            self.norms = nn.ModuleList(nn.LayerNorm(s.width) for _ in range(s.graph_blocks))
            # first layers are split by what they read, so that each part runs on its own small table
            self.context = nn.Linear(s.width, 3 * s.width)
            self.code = nn.Linear(18 * s.digit_width * s.digits + OWN_FEATURES * s.agreement, s.width, bias=False)
            self.unary = network(s.width, 3 + s.token_width)
            if s.agreement and s.pairs:
                self.agree = nn.Linear(PAIR_FEATURES, s.width, bias=False)
                self.binary = network(s.width, 2)
            if s.mix == "attention":
                self.attention = GroupAttention(s.token_width, s.heads, s.near)
            if s.mix != "none":
                self.pool = nn.Sequential(nn.LayerNorm(s.token_width), nn.Linear(s.token_width, 2 * s.width),
                                          nn.LayerNorm(2 * s.width), nn.GELU(), nn.Dropout(s.dropout),
                                          nn.Linear(2 * s.width, s.width), nn.LayerNorm(s.width), nn.GELU(),
                                          nn.Linear(s.width, 1))
        self.register_buffer("node_scale", torch.zeros(2, NUMERIC, dtype=torch.float64))
        self.register_buffer("fitted", torch.tensor(False))

    def fit_scale(self, graphs):
        """Store the feature statistics of the training graphs."""
        self.node_scale.copy_(torch.as_tensor(np.stack(fit_scaler(g.node_feat[:, :NUMERIC] for g in graphs))))
        self.fitted.fill_(True)

    def prepare(self, graph):
        """Turn a LayoutGraph into tensors on this model's device; repairs the layout padding."""
        n, device = len(graph.node_feat), self.node_scale.device
        graph = graph._replace(meetings=graph.meetings or find_meetings(graph))              # both below read them
        tables = agreement_tables(graph, self.settings.reach if self.settings.pairs else 0)
        codes = graph.config_codes
        hops = group_hops(graph) if self.settings.mix == "attention" else np.zeros((0, 0), np.uint8)
        slots, pair_slot = np.unique(graph.node_group[tables.pairs], axis=0, return_inverse=True)

        def tensor(array):
            return torch.tensor(array, device=device)
        return TokenTensors(
            *node_tensors(graph.node_feat, graph.node_opcode, self.node_scale),
            tuple(mean_messages(e, n, device) for e in (graph.edge_index, graph.edge_index[:, ::-1])),
            tensor(graph.node_config_ids), tensor(graph.code_rows.astype(np.int64) + 2), tensor(tables.own),
            tensor(np.stack([tables.share, tables.reads], axis=1)), tensor(graph.node_group),
            *map(tensor, tables[3:]),
            tensor(pair_slot.reshape(-1)), tensor(slots.reshape(-1, 2)), tensor(hops),
            tensor(codes if codes.dtype == np.uint8 else codes.astype(np.int32)))

    def configs_within(self, tensors, budget):
        """How many configurations one call without gradients may hold within `budget` bytes; at least 1.

        The tables that all configurations share come on top.
        """
        s, groups = self.settings, tensors.config_codes.shape[1]
        each = 8 * (3 * groups + 4 * len(tensors.slot_groups)) + 4 * (4 * s.token_width + 6 * s.width)
        if s.mix == "attention":
            each += 4 * groups * (6 * s.token_width + s.heads * groups)
        return max(1, int(budget // each))

    def tables(self, tensors):
        """All that configurations share: (g, k, 1 + token_width) and (q, k, k)."""
        t, s = tensors, self.settings
        numbers = [t.numeric, self.digit(t.layout).flatten(1)] if s.features else []
        x = self.node(torch.cat([*numbers, self.opcode(t.opcode)], dim=1))
        for norm, sage in zip(self.norms, self.sages):
            x = x + F.gelu(sage(norm(x), t.messages))
        alone, giving, taking = self.context(x[t.ids]).split(s.width, dim=1)                     # (nc, width)
        k, groups = t.code_rows.shape[1], t.config_codes.shape[1]

        parts = [self.digit(t.code_rows).flatten(2)] * s.digits + [t.own] * s.agreement
        code = self.code(torch.cat(parts, dim=2))                                                # (nc, k, width)
        # against no code at all: what codes share would drown in the pool how they differ; float, as sums and
        # differences stay whole in half precision
        effect = self.unary(alone[:, None] + code).float() - self.unary(alone)[:, None].float()
        plain, by_size, token = effect.split((1, 2, s.token_width), dim=2)
        unary = torch.cat([plain + by_size @ t.share[:, :, None], token], dim=2)
        unary = unary.new_zeros(groups, k, 1 + s.token_width).index_add(0, t.node_group, unary)
        binary = unary.new_zeros(len(t.slot_groups), k, k)
        if s.agreement and s.pairs:
            producer, consumer = t.pairs[t.row_pair].T
            terms = self.binary(giving[producer] + taking[consumer] + self.agree(t.rows)).float()            # (r, 2)
            plain, by_size = terms.unbind(-1)
            binary = binary.index_add(0, t.pair_slot, (plain + by_size * t.share[producer, 0])[t.pair])
        return unary, binary

    def forward(self, tensors, index):
        """Cost of the configurations `index` (j,) -> (j,)."""
        unary, binary = self.tables(tensors)
        codes = tensors.config_codes[index].long()                                               # (j, g)
        k, (first, second) = unary.shape[1], tensors.slot_groups.T
        rows = codes + k * torch.arange(codes.shape[1], device=codes.device)
        if self.settings.mix == "attention":
            tokens = F.embedding(rows, unary.flatten(0, 1))                                  # (j, g, 1 + token_width)
            pooled = self.attention(tokens[..., 1:], tensors).sum(dim=1)
            cost = tokens[..., 0].sum(dim=1)
        else:
            bags = torch.arange(len(codes), device=codes.device) * codes.shape[1]      # given, as there may be no group
            total = F.embedding_bag(rows.flatten(), unary.flatten(0, 1), bags, mode="sum")       # (j, 1 + token_width)
            cost, pooled = total[:, 0], total[:, 1:]
        if self.settings.mix != "none":
            cost = cost + self.pool(pooled).squeeze(-1)
        slots = torch.arange(len(first), device=codes.device)
        cells = (slots * k + codes[:, first]) * k + codes[:, second]                             # (j, q)
        return cost + binary.flatten()[cells].sum(dim=1)


class GroupAttention(nn.Module):
    """Self-attention over the tokens of a configuration, biased by how many edges two groups are apart."""

    def __init__(self, width, heads, near):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, REACH + 2)) if near else None    # by hops; 0: itself, last: farther
        self.heads = heads

    def forward(self, x, tensors):
        """Tokens (j, g, width) -> (j, g, width)."""
        j, groups, width = x.shape
        read = self.read(self.norm(x)).view(j, groups, 3, self.heads, width // self.heads)
        query, key, value = read.permute(2, 0, 3, 1, 4)
        bias = None
        if self.bias is not None:
            bias = self.bias[:, tensors.hops.long()].expand(j, -1, -1, -1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return x + self.write(mixed.transpose(1, 2).reshape(j, groups, width))


def group_hops(graph):
    """Edges between the nearest nodes of two groups whose layouts meet, (g, g) uint8; REACH + 1 where none do."""
    met, groups = graph.meetings, graph.config_codes.shape[1]
    hops = np.full((groups, groups), REACH + 1, np.uint8)
    one, other = graph.node_group[met.ends].T
    for pair in ((one, other), (other, one)):
        np.minimum.at(hops, pair, np.minimum(met.hops, REACH + 1).astype(np.uint8))
    np.fill_diagonal(hops, 0)
    return hops
