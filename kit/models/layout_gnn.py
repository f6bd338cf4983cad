"""The first place's layout network, and the techniques of other winners as its settings."""
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from kit.agreement import OwnColumns, PairColumns, agreement_tables
from kit.checks import check_choice, check_graph, check_number, check_whole
from kit.models.fused import BlockEnd, SageLayer, precise
from kit.models.layers import NUMERIC, Network, Sage, rows_of
from kit.precision import own_precision


class LayoutTensors(NamedTuple):
    """A layout graph as `LayoutGNN` wants it: configurable nodes first, then the others."""
    numeric: torch.Tensor        # (n, 134) float32, standardised
    opcode: torch.Tensor         # (n,) int64
    layout: torch.Tensor         # (n, 6) int64, digits + 2
    messages: tuple              # Messages, one for each direction
    code_rows: torch.Tensor      # (nc, k, 18) int64, digits + 2
    node_group: torch.Tensor     # (nc,) int64
    config_codes: torch.Tensor   # (c, g) uint8, int32 if codes pass 255
    own: torch.Tensor = None     # (nc, k, 14) float32; this and the next three with `agreement`: see agreement_tables
    pairs: torch.Tensor = None   # (p, 2) int64
    pair: torch.Tensor = None    # (p, k, k) int32
    rows: torch.Tensor = None    # (r, 12) float32
    counted: torch.Tensor = None # (n',) int64; the nodes that are pooled, None: all


@dataclass(frozen=True)
class LayoutGNNSettings:
    """Defaults: the first place's network for the `default` collections."""
    width: int = 256
    linear_blocks: int = 2
    graph_blocks: int = 2
    opcode_width: int = 16
    digit_width: int = 4
    squeeze: int = 8                     # squeeze-and-excite is this many times narrower inside; 0: leave it out
    config_attention: bool = True        # each configuration is compared with all others in the call, as published:
    #                                      a cost depends on them
    both_directions: bool = False        # False: messages go only from consumers to producers
    node_norm: bool = True               # instance norm over the nodes
    agreement: bool = False              # not published: each node reads where its layouts disagree with its neighbours
    dropout: float = 0.2
    aggregation: str = "sparse"          # or "scatter"; see fastest_aggregation
    seed: int = 0                        # of the initial weights

    def __post_init__(self):
        check_whole(vars(self), width=1, linear_blocks=1, graph_blocks=0, opcode_width=1, digit_width=1, squeeze=0,
                    seed=0)
        flags = dict.fromkeys(("config_attention", "both_directions", "node_norm", "agreement"), (True, False))
        check_choice(vars(self), aggregation=("sparse", "scatter"), **flags)
        check_number(vars(self), "at least 0 and less than 1", "dropout")
        if self.config_attention and self.width % 2:
            raise ValueError(f"width is {self.width}; attention over configurations doubles a half, so it must be even")


def without_edges(settings):
    """The same network without neighbours: no messages, norm over nodes or attention between configurations.

    Returns settings with a linear block for each GraphSAGE block. The nodes are still pooled.
    """
    return replace(settings, linear_blocks=settings.linear_blocks + settings.graph_blocks, graph_blocks=0,
                   config_attention=False, node_norm=False, agreement=False)


class LayoutGNN(Network):
    """The first place's layout network: embed, two linear and two GraphSAGE blocks, mean pool, one cost.

    Each block has instance norm over nodes, squeeze-and-excite, optional attention between configurations and
    GELU. The GraphSAGE blocks are residual. Source: thanhhau097/google_fast_or_slow, the network as published.

    Parameters
    ----------
    settings : LayoutGNNSettings, optional
    """

    @own_precision()
    def __init__(self, settings=None):
        super().__init__(settings, LayoutGNNSettings)
        self.register_buffer("set_size", torch.tensor(64))       # configurations scored together in training

    def _build(self, s):
        out = s.width // 2 if s.config_attention else s.width
        blocks, directions = s.linear_blocks + s.graph_blocks, 2 if s.both_directions else 1
        self.static = nn.Linear(NUMERIC + 6 * s.digit_width + s.opcode_width, out)
        self.config = nn.Linear(18 * s.digit_width, out, bias=False)
        if s.agreement:
            self.own = nn.Linear(OwnColumns.PLAIN.stop, out, bias=False)
            self.pair = nn.Linear(2 * PairColumns.PLAIN.stop, out, bias=False)
        self.linears = nn.ModuleList(nn.Linear(s.width, out) for _ in range(s.linear_blocks - 1))
        for linear in (self.static, self.config, *self.linears):
            nn.init.xavier_normal_(linear.weight)
        self.sages = nn.ModuleList(Sage(s.width, out, directions, s.aggregation) for _ in range(s.graph_blocks))
        self.ends = nn.ModuleList(BlockEnd(out, s.squeeze, s.config_attention) for _ in range(blocks))
        self.head = nn.Linear(s.width, 1)

    @property
    def transductive(self):
        """Whether a cost depends on the other configurations in the same call."""
        return self.settings.config_attention

    def prepare(self, graph, counted=None):
        """Turn a LayoutGraph into tensors on this model's device; repairs the layout padding.

        Only the nodes `counted` (n,) bool are pooled; None: all. A segment with a margin counts its own nodes.
        """
        check_graph(graph, tile=False, least=0)
        n, s = len(graph.node_feat), self.settings
        rest = np.setdiff1d(np.arange(n), graph.node_config_ids)
        rest = rest[np.argsort(~np.isin(rest, graph.edge_index[:, 0]), kind="stable")]       # who sends nothing: last
        order = np.concatenate([graph.node_config_ids, rest])
        edges = np.argsort(order)[graph.edge_index]
        arrays = dict(code_rows=graph.code_rows.astype(np.int64) + 2, node_group=graph.node_group,
                      config_codes=graph.config_codes)
        if s.agreement:
            tables = agreement_tables(graph)
            arrays |= dict(own=tables.own[..., OwnColumns.PLAIN], pairs=tables.pairs, pair=tables.pair,
                           rows=tables.rows[:, PairColumns.PLAIN])
        if counted is not None:
            arrays["counted"] = np.flatnonzero(counted[order])
        return self.tensors_of(LayoutTensors, graph.node_feat[order], graph.node_opcode[order],
                               (edges, edges[:, ::-1])[:2 if s.both_directions else 1], **arrays)

    def configs_within(self, tensors, budget):
        """How many configurations one call without gradients may hold within `budget` bytes; at least 1."""
        # five tensors of a layer hold all nodes: input, output, a product for each of two directions, one more;
        # about ten tensors hold one block of nodes, which has at least one node
        each = 4 * self.settings.width * (5 * len(tensors.opcode) + 10)
        return max(1, int(budget // each))

    def forward(self, tensors, index):
        """Cost of the configurations `index` (k,) -> (k,)."""
        pooled = self.pooled(tensors, index)
        with torch.autocast(pooled.device.type, enabled=False):      # a half type would make different costs equal
            return self.head(pooled).squeeze(-1)

    def pooled(self, tensors, index):
        """Last layer's nodes under the configurations `index` (k,), averaged over nodes -> (k, width)."""
        s = self.settings
        chosen = tensors.config_codes[index].long()[:, tensors.node_group].T                      # (nc, k)
        digits = self.digit(tensors.code_rows).flatten(2)                                         # (nc, codes, 18 * 4)
        x = self.ends[0](self.embed(tensors, chosen, digits), norm=s.node_norm)                   # (n, k, width)
        for block, linear in enumerate(self.linears, start=1):
            _, x = SageLayer.apply(x, False, (), s.aggregation, linear.bias, linear.weight)
            x = self.ends[block](x, norm=s.node_norm)
        for block, sage in enumerate(self.sages, start=s.linear_blocks):
            # here the norm comes before the messages
            x, update = SageLayer.apply(x, s.node_norm, tensors.messages, s.aggregation, sage.own.bias,
                                        sage.own.weight, *[linear.weight for linear in sage.neighbours])
            x = self.ends[block](update, x, dropout=s.dropout if self.training else 0.0)
        x = x if tensors.counted is None else x[tensors.counted]
        total = x.sum(dim=0, dtype=precise(x))
        return total / total.new_tensor(len(x))                    # x.mean would expand its gradient in memory

    def embed(self, tensors, chosen, digits):
        """The first linear layer over (node features, digits); the parts that configurations share are done once."""
        static = self.static(self.node_input(tensors))                                            # (n, out)
        table = self.config(digits)                                                               # (nc, codes, out)
        if tensors.own is not None:
            table = table + self.own(tensors.own)
        nc = len(table)
        configured = static[:nc, None] + rows_of(table, chosen)                                   # (nc, k, out)
        if tensors.own is not None:
            configured = configured + self.pair(self.disagreements(tensors, chosen))
        none = self.config(self.digit(torch.zeros(18, dtype=torch.long, device=chosen.device)).flatten())
        others = (static[nc:, None] + none).expand(-1, chosen.shape[1], -1)
        return torch.cat([configured, others])

    def disagreements(self, tensors, chosen):
        """Sum each node's pair features as producer and as consumer; chosen (nc, k) codes -> (nc, k, 24)."""
        codes, (producer, consumer) = tensors.pair.shape[1], tensors.pairs.T
        slots = torch.arange(len(producer), device=chosen.device)[:, None]
        cells = (slots * codes + chosen[producer]) * codes + chosen[consumer]                     # (p, k)
        features = F.embedding(tensors.pair.flatten()[cells], tensors.rows)                       # (p, k, 12)
        zeros = features.new_zeros(*chosen.shape, features.shape[-1])
        return torch.cat([zeros.index_add(0, end, features) for end in (producer, consumer)], dim=-1)
