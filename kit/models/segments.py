"""Graph Segment Training: learn from graphs that are too large to train on whole, one segment with gradient per step.

A graph is cut into segments, runs of nodes. A step computes one segment with gradient. The pooled values of the others
come from a table of their last computed values. So a step's time and memory depend on the segment, not on the graph.

As published, a segment ends at its borders: edges and layout agreements across them are left out. With a `margin`, a
segment is computed together with its neighbours, and with the configurable nodes whose layouts meet those of its own
nodes, but only its own nodes are pooled.

Letters: n nodes, k configurations in the call, c of the graph, j segments, width of what the network pools.
"""
import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from kit.agreement import find_meetings
from kit.checks import check_whole, expect
from kit.models.layout_gnn import LayoutGNN, LayoutGNNSettings
from kit.prune import k_hop_nodes

KEEP = 0.5                       # probability that a row of the table counts in a step; the authors' code for TpuGraphs
TABLE_BYTES = 1 << 29            # a row of width 256 takes 862; when the table is full, the oldest rows go
ROW_BYTES = 350                  # of Python objects per row of the table, besides its values


class SegmentTensors(NamedTuple):
    """A graph in segments."""
    key: int                     # of the graph's content, so that preparing the graph again finds its rows of the table
    parts: tuple                 # what the network prepared of each segment
    share: tuple                 # each segment's share of the nodes; sums to 1


@dataclass(frozen=True)
class SegmentGNNSettings(LayoutGNNSettings):
    """The settings of a `LayoutGNN`, and the segments that it trains on."""
    segment_nodes: int = 1000            # at most; all segments of a graph have one size, the last may be smaller
    margin: int = 1                      # hops around a segment that are computed with it; 0: none, as published

    def __post_init__(self):
        super().__post_init__()
        check_whole(vars(self), segment_nodes=1, margin=0)


class SegmentGNN(nn.Module):
    """A `LayoutGNN` that trains on large graphs segment by segment: what a recipe trains if it is asked for segments.

    In training, one segment of a graph has a gradient, and the graph pools to the sum of w_i x share_i x pooled_i over
    its segments. A row of the table has w = 1, or w = 0 if it is dropped. The segment with gradient has
    w = p + (1 - p) x j, where p is the probability that its row would have counted: `KEEP`, or 0 if the segment was
    never computed under this configuration. So w is 1 on average over draws, and the mean is right in expectation
    except for stale rows. Scoring computes all segments one after another: the exact mean over them, weighted by their
    nodes.

    Differences from the whole graph remain. Instance norm standardises over the nodes that are computed together. A row
    of the table was computed beside the configurations of an earlier step.

    Source: Cao et al., Learning Large Graph Property Prediction via Graph Segment Training, arXiv:2305.12322. Their
    released code numbers the samples of a batch of several graphs by the configurations drawn for the last graph.

    Parameters
    ----------
    settings : SegmentGNNSettings, optional

    Raises
    ------
    ValueError
        If `settings` are not SegmentGNNSettings.
    """

    def __init__(self, settings=None):
        super().__init__()
        self.settings = SegmentGNNSettings() if settings is None else settings
        expect(isinstance(self.settings, SegmentGNNSettings), "settings", settings, "SegmentGNNSettings")
        self.model = LayoutGNN(self.settings)
        self.table = HistoryTable(TABLE_BYTES)

    # what training and prediction ask of a model, as the wrapped model answers
    fitted = property(lambda self: self.model.fitted)
    transductive = property(lambda self: self.model.transductive)
    set_size = property(lambda self: self.model.set_size)              # of transductive models only

    def fit_scale(self, graphs):
        """Store the feature statistics of the training graphs."""
        self.model.fit_scale(graphs)

    def prepare(self, graph):
        """Cut a LayoutGraph into segments, none much smaller than the others, and turn each into tensors."""
        n, key = len(graph.node_feat), graph_key(graph)
        size = -(-n // -(-n // self.settings.segment_nodes))
        graph = graph._replace(meetings=graph.meetings or find_meetings(graph))
        parts, share = [], []
        for start in range(0, n, size):
            own = np.arange(start, min(start + size, n))
            nodes = self.with_margin(graph, own)
            counted = np.isin(nodes, own) if len(nodes) > len(own) else None
            parts.append(self.model.prepare(subgraph(graph, nodes), counted))
            share.append(len(own) / n)
        return SegmentTensors(key, tuple(parts), tuple(share))

    def with_margin(self, graph, own):
        """The nodes that a segment is computed with: `own`, neighbours, and nodes whose layouts meet; sorted."""
        if not self.settings.margin:
            return own
        ends = graph.node_config_ids[graph.meetings.ends]                                  # (p, 2)
        partners = ends[np.isin(ends, own).any(axis=1)].ravel()
        return np.union1d(k_hop_nodes(graph.edge_index, own, self.settings.margin), partners)

    def configs_within(self, tensors, budget):
        """How many configurations one call without gradients may hold within `budget` bytes; at least 1."""
        return min(self.model.configs_within(part, budget) for part in tensors.parts)

    def largest(self, tensors):
        """The tensors of a graph as long as this one whose segments all need as much memory as its largest."""
        most = min(tensors.parts, key=lambda part: self.model.configs_within(part, 1 << 40))
        return tensors._replace(parts=(most,) * len(tensors.parts))

    def forward(self, tensors, index):
        """Cost of the configurations `index` (k,) -> (k,)."""
        pooled = self.pooled(tensors, index)
        with torch.autocast(pooled.device.type, enabled=False):      # a half type would make different costs equal
            return self.model.head(pooled).squeeze(-1)

    def pooled(self, tensors, index):
        """Pool the graph under the configurations `index` (k,) -> (k, width)."""
        j = len(tensors.parts)
        if not self.training or j == 1:
            every = [self.model.pooled(part, index).float() for part in tensors.parts]
            return every[0] if j == 1 else weighted_mean(torch.stack(every, dim=1), tensors.share)

        # drawn on the CPU, so that all devices train alike, and before the network draws its own dropout
        drawn = int(torch.randperm(j)[0])
        rows = self.table.find(tensors, index)                                             # k lists of j
        keep = KEEP * torch.tensor([[row is not None for row in some] for some in rows])
        weight = (torch.rand(len(index), j) < keep).float()                                # (k, j)
        weight[:, drawn] = (keep + (1 - keep) * j)[:, drawn]
        fresh = self.model.pooled(tensors.parts[drawn], index).float()
        none = np.zeros(fresh.shape[1], np.float16)
        stale = torch.from_numpy(np.array([[none if row is None else row for row in some] for some in rows]))
        pooled = stale.to(fresh).unbind(dim=1)                                             # j x (k, width)
        pooled = torch.stack([*pooled[:drawn], fresh, *pooled[drawn + 1:]], dim=1)
        self.table.put(tensors, index, drawn, fresh.detach())
        return weighted_mean(pooled, tensors.share, weight.to(pooled))


def weighted_mean(pooled, share, weight=1):
    """Pool segments (k, j, width) into graphs (k, width); a segment of `weight` 0 does not count."""
    weights = pooled.new_tensor(share) * weight
    return (weights.unsqueeze(-1) * pooled).sum(dim=1)


class HistoryTable(nn.Module):
    """What each visited (graph, configuration, segment) last pooled to, in at most `size` bytes; oldest first out.

    Rows are float16: the rounding of 2e-4 is small beside the 2% to 6% by which configurations differ in segments of
    1,000 nodes of a public graph. The table lives on the CPU and is part of the state dict, so that a resumed run ends
    like a run that was never killed.
    """

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.rows = OrderedDict()                        # (graph key, configuration, segment): (width,) float16

    def find(self, tensors, index):
        """Rows of the configurations `index` (k,): k lists of j rows, None where a segment was never computed."""
        segments = range(len(tensors.parts))
        return [[self.rows.get((tensors.key, config, one)) for one in segments] for config in index.tolist()]

    def put(self, tensors, index, segment, values):
        """Write what a segment pooled to under the configurations `index` (k,); values (k, width)."""
        config, first = np.unique(index.cpu().numpy(), return_index=True)      # a configuration has one row
        for one, row in zip(config.tolist(), values.half().cpu().numpy()[first]):
            if np.isfinite(row).all():                   # a row that overflows float16 is not kept
                self.rows[tensors.key, one, segment] = row.copy()
        while len(self.rows) * (2 * values.shape[1] + ROW_BYTES) > self.size:
            self.rows.popitem(last=False)

    def get_extra_state(self):
        """All rows, the oldest first, as one (rows, 12 + width) int16 tensor: the bits of key and values."""
        keys = np.array(list(self.rows), np.int64).reshape(-1, 3)
        values = np.array(list(self.rows.values()), np.float16).reshape(len(keys), -1 if self.rows else 0)
        return torch.from_numpy(np.concatenate([keys.view(np.int16), values.view(np.int16)], axis=1))

    def set_extra_state(self, state):
        """Take over the rows that `get_extra_state` gave."""
        bits = state.cpu().numpy()
        keys, values = np.ascontiguousarray(bits[:, :12]).view(np.int64), np.ascontiguousarray(bits[:, 12:])
        self.rows = OrderedDict(zip(map(tuple, keys.tolist()), values.view(np.float16).copy()))


def graph_key(graph):
    """A number that differs between graphs of different content; the name counts as content."""
    digest = hashlib.blake2b(digest_size=8)
    for field in (*graph[:-1], *(graph.meetings or ())):
        array = np.asarray(field)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return int.from_bytes(digest.digest(), "little", signed=True)


def subgraph(graph, nodes):
    """The part of a LayoutGraph between the distinct, sorted `nodes` (n',), with every configuration."""
    kept = np.zeros(len(graph.node_feat), bool)
    kept[nodes] = True
    own = kept[graph.node_config_ids]                                               # (nc,)
    groups, node_group = np.unique(graph.node_group[own], return_inverse=True)
    meetings = graph.meetings or find_meetings(graph)
    both = own[meetings.ends].all(axis=1)                                           # (p,)
    meetings = type(meetings)(np.cumsum(own)[meetings.ends] - 1, *meetings[1:])
    return graph._replace(
        node_feat=graph.node_feat[nodes],
        node_opcode=graph.node_opcode[nodes],
        edge_index=np.searchsorted(nodes, graph.edge_index[kept[graph.edge_index].all(axis=1)]),
        node_config_ids=np.searchsorted(nodes, graph.node_config_ids[own]),
        node_splits=np.unique(np.searchsorted(nodes, graph.node_splits)),
        config_codes=graph.config_codes[:, groups],
        node_group=node_group,
        code_rows=graph.code_rows[own],
        meetings=type(meetings)(*(some[both] for some in meetings)))
