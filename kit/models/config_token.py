"""The config-token model: encode the graph once, each (group, code) once, and score configurations by look-ups.

The configurations of a file differ only in the codes of a few groups of nodes. So the network never computes a value
per node and configuration. It makes three tables for all configurations: a term for each configurable node and code,
a term for each pair of configurable neighbours and both codes, and a vector (token) for each group and code. The cost
of a configuration is the sum of its terms, plus a small network of the sum of its tokens, for effects that do not add
up. Terms are weighted by the bytes of tensors, because the time of a copy grows with its bytes, and by the arithmetic
of convolutions and dots. With `bytes`, they are also weighted by the bytes that a code's own layouts take and that a
copy between two layouts moves: a factor that a network would otherwise have to learn from the sizes.
"""
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from kit.agreement import BYTES, MOVED, REACH, OwnColumns, PairColumns, agreement_tables
from kit.checks import check_choice, check_graph, check_number, check_whole
from kit.models.layers import Network


class TokenTensors(NamedTuple):
    """A layout graph as `ConfigTokenModel` wants it; p pairs of configurable neighbours, q pairs of groups."""
    numeric: torch.Tensor        # (n, 134) float32, standardised
    opcode: torch.Tensor         # (n,) int64
    layout: torch.Tensor         # (n, 6) int64, digits + 2
    messages: tuple              # Messages, one for each direction
    ids: torch.Tensor            # (nc,) int64; the configurable nodes
    code_rows: torch.Tensor      # (nc, k, 18) int64, digits + 2
    share: torch.Tensor          # (nc, 3) float32; bytes of the node's tensor and of its largest operand, arithmetic:
    #                              each as a share of the bytes of the graph's largest tensor
    node_group: torch.Tensor     # (nc,) int64
    bytes: torch.Tensor          # (nc, k, 6) float32; this and the next six: see agreement_tables
    own: torch.Tensor            # (nc, k, 14 or 21) float32
    pairs: torch.Tensor          # (p, 2) int64; positions in ids
    pair: torch.Tensor           # (p, k, k) int32
    row_pair: torch.Tensor       # (r,) int64
    rows: torch.Tensor           # (r, 12 or 22) float32
    moved: torch.Tensor          # (r, 3) float32
    pair_slot: torch.Tensor      # (p,) int64 in 0..q-1
    slot_groups: torch.Tensor    # (q, 2) int64; producer's group, consumer's group
    config_codes: torch.Tensor   # (c, g) uint8, int32 if codes pass 255


@dataclass(frozen=True)
class ConfigTokenSettings:
    """Small, because there are few graphs."""
    width: int = 64
    graph_blocks: int = 1                # GraphSAGE blocks over the program
    token_width: int = 64
    opcode_width: int = 8
    digit_width: int = 4
    features: bool = True                # False: no node features are read but opcode and agreement
    digits: bool = True                  # False: a code is read only through its agreement, not its digits
    agreement: bool = True               # False: a code is read only through its digits, and there are no pair terms
    pairs: bool = True                   # False: no pair terms
    bytes: bool = True                   # False: nothing is read but whether layouts agree and how tensors grow, not
    #                                      how many bytes a code or a copy moves
    reach: int = REACH                   # the most edges between two nodes with a pair term
    mix: str = "pool"                    # effects that do not add up: "pool", a network of the sum of all tokens; or
    #                                      "none"
    dropout: float = 0.1
    seed: int = 0                        # of the initial weights

    def __post_init__(self):
        check_whole(vars(self), width=1, graph_blocks=0, token_width=1, opcode_width=1, digit_width=1, reach=0, seed=0)
        check_number(vars(self), "at least 0 and less than 1", "dropout")
        flags = dict.fromkeys(("features", "digits", "agreement", "pairs", "bytes"), (True, False))
        check_choice(vars(self), mix=("none", "pool"), **flags)
        if not (self.digits or self.agreement):
            raise ValueError("neither digits nor agreement: codes could not be told apart")


class ConfigTokenModel(Network):
    """Rank layout configurations by look-ups in tables that are computed once per graph.

    The cost of a configuration does not depend on the other configurations in the call.

    Parameters
    ----------
    settings : ConfigTokenSettings, optional
    """

    def __init__(self, settings=None):
        super().__init__(settings, ConfigTokenSettings)

    def _build(self, s):
        def network(width_in, width_out):
            return nn.Sequential(nn.GELU(), nn.Dropout(s.dropout), nn.Linear(width_in, s.width), nn.GELU(),
                                 nn.Linear(s.width, width_out))
        self.exact = s.bytes and s.agreement
        self._build_encoder(s, features=s.features)
        # the first layers are split by what they read, so that each part runs on its own small table
        self.context = nn.Linear(s.width, 3 * s.width)
        read = 18 * s.digit_width * s.digits + _columns(OwnColumns, s) * s.agreement
        self.code = nn.Linear(read, s.width, bias=False)
        self.unary = network(s.width, 4 + BYTES * self.exact + s.token_width)
        if s.agreement and s.pairs:
            self.agree = nn.Linear(_columns(PairColumns, s), s.width, bias=False)
            self.binary = network(s.width, 2 + MOVED * self.exact)
        if s.mix == "pool":
            self.pool = nn.Sequential(nn.LayerNorm(s.token_width), nn.Linear(s.token_width, 2 * s.width),
                                      nn.LayerNorm(2 * s.width), nn.GELU(), nn.Dropout(s.dropout),
                                      nn.Linear(2 * s.width, s.width), nn.LayerNorm(s.width), nn.GELU(),
                                      nn.Linear(s.width, 1))

    def prepare(self, graph):
        """Turn a LayoutGraph into tensors on this model's device; repairs the layout padding."""
        check_graph(graph, tile=False, least=0)       # a program of one's own has no configurations yet
        tables = agreement_tables(graph, self.settings.reach if self.settings.pairs else 0)
        if not self.settings.bytes:
            tables = _without_bytes(tables)
        slots, pair_slot = np.unique(graph.node_group[tables.pairs], axis=0, return_inverse=True)
        return self.tensors_of(
            TokenTensors, graph.node_feat, graph.node_opcode, (graph.edge_index, graph.edge_index[:, ::-1]),
            ids=graph.node_config_ids, code_rows=graph.code_rows.astype(np.int64) + 2,
            share=np.stack([tables.share, tables.reads, tables.work], axis=1), node_group=graph.node_group,
            bytes=tables.bytes,
            own=tables.own, pairs=tables.pairs, pair=tables.pair, row_pair=tables.row_pair, rows=tables.rows,
            moved=tables.moved,
            pair_slot=pair_slot.reshape(-1), slot_groups=slots.reshape(-1, 2),
            config_codes=graph.config_codes)

    def configs_within(self, tensors, budget):
        """How many configurations one call without gradients may hold within `budget` bytes; at least 1.

        The tables that all configurations share are not counted.
        """
        s, groups = self.settings, tensors.config_codes.shape[1]
        each = 8 * (3 * groups + 4 * len(tensors.slot_groups)) + 4 * (4 * s.token_width + 6 * s.width)
        return max(1, int(budget // each))

    def forward(self, tensors, index):
        """Cost of the configurations `index` (j,) -> (j,)."""
        return self.cost(tensors, self.tables(tensors), tensors.config_codes[index].long())

    def tables(self, tensors):
        """The tables that all configurations share: (g, k, 1 + token_width) and (q, k, k)."""
        t = tensors
        unary, binary = self.terms(t)
        k, groups = t.code_rows.shape[1], t.config_codes.shape[1]
        by_group = unary.new_zeros(groups, k, unary.shape[2]).index_add(0, t.node_group, unary)
        by_slot = unary.new_zeros(len(t.slot_groups), k, k)
        if self.settings.agreement and self.settings.pairs:
            by_slot = by_slot.index_add(0, t.pair_slot, binary[t.pair])
        return by_group, by_slot

    def terms(self, tensors):
        """The terms before they are added up: of nodes, (nc, k, 1 + token_width), and of rows of pairs, (r,).

        The token of each node and code follows its term. Without pair terms, the second is (0,).
        """
        t, s = tensors, self.settings
        alone, giving, taking = self.context(self.encode(t, s.features)[t.ids]).split(s.width, dim=1)  # (nc, width)

        parts = [self.digit(t.code_rows).flatten(2)] * s.digits + [t.own] * s.agreement
        code = self.code(torch.cat(parts, dim=2))                                                # (nc, k, width)
        # subtract the value without a code, so that pooling sees the differences between codes; in float32, because
        # sums and differences lose too many digits in half precision
        given = self.unary(alone[:, None] + code).float()
        effect = given - self.unary(alone)[:, None].float()
        plain, by_size, _, token = effect.split((1, 3, BYTES * self.exact, s.token_width), dim=2)
        plain = plain + by_size @ t.share[:, :, None]
        if self.exact:           # not the difference, because the bytes themselves depend on the code
            plain = plain + (given[..., 4:4 + BYTES] * t.bytes).sum(dim=2, keepdim=True)
        unary = torch.cat([plain, token], dim=2)
        if not (s.agreement and s.pairs):
            return unary, unary.new_zeros(0)
        producer, consumer = t.pairs[t.row_pair].T
        terms = self.binary(giving[producer] + taking[consumer] + self.agree(t.rows)).float()            # (r, 2...)
        term = terms[:, 0] + terms[:, 1] * t.share[producer, 0]
        if self.exact:
            term = term + (terms[:, 2:] * t.moved).sum(dim=1)
        return unary, term

    def cost(self, tensors, tables, chosen):
        """Cost from `tables` of configurations given as codes (j, g) int64, or as weights of codes (j, g, v) -> (j,).

        Weights are differentiable; each row of v <= k weights sums to 1, and a one-hot row is a code.
        """
        look_up = _look_up_weights if chosen.is_floating_point() else _look_up_codes
        terms, pair_terms = look_up(*tables, tensors.slot_groups.T, chosen)
        cost = terms[:, 0]
        if self.settings.mix == "pool":
            cost = cost + self.pool(terms[:, 1:]).squeeze(-1)
        return cost + pair_terms


def _without_bytes(tables):
    """Agreement with the plain columns alone; rows that are then equal become one, which saves time."""
    _, first, place = np.unique(np.concatenate([tables.row_pair[:, None], tables.rows[:, PairColumns.PLAIN]], axis=1),
                                   axis=0, return_index=True, return_inverse=True)
    return tables._replace(own=tables.own[..., OwnColumns.PLAIN], row_pair=tables.row_pair[first],
                           rows=tables.rows[first, PairColumns.PLAIN], moved=tables.moved[first],
                           pair=place.reshape(-1)[tables.pair].reshape(tables.pair.shape).astype(np.int32))


def _columns(names, settings):
    """How many columns of OwnColumns or PairColumns a model with these settings reads."""
    return names.COUNT if settings.bytes else names.PLAIN.stop


def _look_up_codes(unary, binary, slots, codes):
    """The sum over groups of terms and tokens, (j, 1 + token_width); the sum of the pair terms, (j,)."""
    k, rows = unary.shape[1], codes + unary.shape[1] * torch.arange(codes.shape[1], device=codes.device)
    bags = torch.arange(len(codes), device=codes.device) * codes.shape[1]          # explicit: there may be no group
    terms = F.embedding_bag(rows.flatten(), unary.flatten(0, 1), bags, mode="sum")
    places = torch.arange(len(binary), device=codes.device)
    cells = (places * k + codes[:, slots[0]]) * k + codes[:, slots[1]]                               # (j, q)
    return terms, binary.flatten()[cells].sum(dim=1)


def _look_up_weights(unary, binary, slots, weights):
    """The same as `_look_up_codes` for weights (j, g, v): weighted means over codes."""
    v = weights.shape[2]
    terms = torch.einsum("jgv,gvt->jt", weights, unary[:, :v])
    given = torch.einsum("jqv,qvw->jqw", weights[:, slots[0]], binary[:, :v, :v])
    return terms, (given * weights[:, slots[1]]).sum(dim=(1, 2))
