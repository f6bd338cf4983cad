"""The first place's layout network, and the techniques of other winners as its settings."""
import hashlib
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
from kit.pad import repad_layout


class LayoutTensors(NamedTuple):
    """A layout graph as `LayoutGNN` wants it: configurable nodes first, then the others."""
    numeric: torch.Tensor        # (n, 134) float32, standardised
    opcode: torch.Tensor         # (n,) int64
    layout: torch.Tensor         # (n, 6) int64, digits + 2
    messages: tuple              # Messages, one for each direction
    code_rows: torch.Tensor      # (nc, k, 18) int64, digits + 2
    node_group: torch.Tensor     # (nc,) int64
    config_codes: torch.Tensor   # (c, g) uint8, int32 if codes pass 255
    references: torch.Tensor     # (r, g) like config_codes; see reference_configs
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
    # what each configuration is compared with. True, as published: all configurations in the call, so that a cost
    # depends on them. "reference": the same few configurations of its graph in every call. False: none
    config_attention: bool | str = True
    reference_configs: int = 16          # at most; "reference" costs as much as scoring this many more
    reinject: bool = False               # each block reads the configured digits again (19th place; official baseline)
    both_directions: bool = False        # False: messages go only from consumers to producers
    node_norm: bool = True               # instance norm over the nodes
    agreement: bool = False              # not published: each node reads where its layouts disagree with its neighbours
    pool: str = "mean"                   # over nodes; "mean+max" gives the head both
    dropout: float = 0.2
    aggregation: str = "sparse"          # or "scatter"; see fastest_aggregation
    seed: int = 0                        # of the initial weights

    def __post_init__(self):
        check_whole(vars(self), width=1, linear_blocks=1, graph_blocks=0, opcode_width=1, digit_width=1, squeeze=0,
                    reference_configs=1, seed=0)
        flags = dict.fromkeys(("reinject", "both_directions", "node_norm", "agreement"), (True, False))
        check_choice(vars(self), config_attention=(True, False, "reference"), pool=("mean", "mean+max"),
                     aggregation=("sparse", "scatter"), **flags)
        check_number(vars(self), "at least 0 and less than 1", "dropout")
        if self.config_attention and self.width % 2:
            raise ValueError(f"width is {self.width}; attention over configurations doubles a half, so it must be even")


def node_alone(settings):
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
        self.ends = nn.ModuleList(BlockEnd(out, s.squeeze, bool(s.config_attention)) for _ in range(blocks))
        self.head = nn.Linear(s.width * (2 if s.pool == "mean+max" else 1), 1)
        self.again = nn.ModuleList(nn.Linear(18 * s.digit_width, out, bias=False)
                                   for _ in range(blocks - 1 if s.reinject else 0))

    @property
    def transductive(self):
        """Whether a cost depends on the other configurations in the same call."""
        return self.settings.config_attention is True

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
        chosen = reference_configs(graph, s.reference_configs) if s.config_attention == "reference" else []
        arrays = dict(code_rows=graph.code_rows.astype(np.int64) + 2, node_group=graph.node_group,
                      config_codes=graph.config_codes, references=graph.config_codes[np.asarray(chosen, np.int64)])
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
        return max(1, int(budget // each) - len(tensors.references))

    def forward(self, tensors, index):
        """Cost of the configurations `index` (k,) -> (k,)."""
        pooled = self.pooled(tensors, index)
        with torch.autocast(pooled.device.type, enabled=False):      # a half type would make different costs equal
            return self.head(pooled).squeeze(-1)

    def pooled(self, tensors, index):
        """Last layer's nodes under the configurations `index` (k,), pooled over nodes -> (k, pooled width)."""
        s, k = self.settings, len(index)
        # references are computed like other configurations, as the last ones
        codes = torch.cat([tensors.config_codes[index], tensors.references]).long()               # (k, g)
        chosen = codes[:, tensors.node_group].T                                                   # (nc, k)
        comparing = dict(norm=s.node_norm, references=len(tensors.references))
        digits = self.digit(tensors.code_rows).flatten(2)                                         # (nc, codes, 18 * 4)
        x = self.ends[0](self.embed(tensors, chosen, digits), **comparing)                        # (n, k, width)
        for block, linear in enumerate(self.linears, start=1):
            _, x = SageLayer.apply(x, False, (), s.aggregation, linear.bias, linear.weight)
            x = self.ends[block](self.reinjected(block, x, chosen, digits), **comparing)
        comparing["norm"] = False                # in these blocks the norm comes before the messages
        for block, sage in enumerate(self.sages, start=s.linear_blocks):
            x, update = SageLayer.apply(x, s.node_norm, tensors.messages, s.aggregation, sage.own.bias,
                                        sage.own.weight, *[linear.weight for linear in sage.neighbours])
            x = self.ends[block](self.reinjected(block, update, chosen, digits), x,
                                 dropout=s.dropout if self.training else 0.0, **comparing)
        x = x if tensors.counted is None else x[tensors.counted]
        total = x.sum(dim=0, dtype=precise(x))[:k]
        mean = total / total.new_tensor(len(x))                    # x.mean would expand its gradient in memory
        return torch.cat([mean, x.amax(dim=0)[:k].to(mean.dtype)], dim=1) if s.pool == "mean+max" else mean

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

    def reinjected(self, block, x, chosen, digits):
        """With `reinject`, add a block's own linear layer over the configured digits to x."""
        if not self.settings.reinject:
            return x
        nc = len(chosen)
        return torch.cat([x[:nc] + rows_of(self.again[block - 1](digits), chosen), x[nc:]])

    def disagreements(self, tensors, chosen):
        """Sum each node's pair features as producer and as consumer; chosen (nc, k) codes -> (nc, k, 24)."""
        codes, (producer, consumer) = tensors.pair.shape[1], tensors.pairs.T
        slots = torch.arange(len(producer), device=chosen.device)[:, None]
        cells = (slots * codes + chosen[producer]) * codes + chosen[consumer]                     # (p, k)
        features = F.embedding(tensors.pair.flatten()[cells], tensors.rows)                       # (p, k, 12)
        zeros = features.new_zeros(*chosen.shape, features.shape[-1])
        return torch.cat([zeros.index_add(0, end, features) for end in (producer, consumer)], dim=-1)


def reference_configs(graph, count):
    """Choose at most `count` distinct configurations of a LayoutGraph by their content alone -> (r,) int64."""
    # the compiler's default (all digits -1) comes first, if the graph has it; then the configurations whose content
    # has the smallest hash, whatever their order and runtimes. Configurations that only swap layouts between equal
    # nodes have the same hash, and one of them is taken
    features, group, codes = repad_layout(graph.node_feat)[0], graph.node_group, graph.config_codes
    digests = np.zeros(graph.code_rows.shape[:2], np.uint64)                                 # (nc, k)
    for place, node in enumerate(graph.node_config_ids):
        about = features[node].tobytes() + np.int64(graph.node_opcode[node]).tobytes()
        for code, row in enumerate(graph.code_rows[place]):
            digests[place, code] = int.from_bytes(hashlib.blake2b(about + row.tobytes(), digest_size=8).digest(), "big")
    of_code = np.zeros((codes.shape[1], digests.shape[1]), np.uint64)                        # (g, k)
    np.add.at(of_code, group, digests)                                                       # in any order; wraps
    given = np.zeros(of_code.shape, bool)
    np.logical_or.at(given, group, (graph.code_rows >= 0).any(axis=2))
    content, changed = np.zeros(len(codes), np.uint64), np.zeros(len(codes), bool)
    for column, contents, gives in zip(codes.T, of_code, given):
        content += contents[column]
        changed |= gives[column]
    _, distinct = np.unique(content, return_index=True)                                      # by ascending hash
    return distinct[np.argsort(changed[distinct], kind="stable")][:count]
