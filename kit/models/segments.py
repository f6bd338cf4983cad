"""Graph Segment Training: learn from graphs too large to train on whole, a segment with gradient a step.

A graph is cut into runs of nodes. A step computes one of them with gradient; the others come from a table of what
they gave when they were last computed. So a step's time and memory follow the segment's size, not the graph's.

As published, a segment ends at its borders: edges and layout agreements across them are left out. With a `margin`
it is computed together with its neighbours, and with the configurable nodes whose layouts meet those of its own, but
pooled over its own nodes only; on sample data that is what cutting costs. Instance norm standardises over the nodes
that are computed together instead of the graph's, in training and in scoring alike. Attention across
configurations works node by node, so cutting the graph changes nothing about it; but a row of the table was computed
beside the configurations of its own step, not beside those of the step that reads it. Attention to references has a
segment's own, chosen among what differs in it.

Letters: n nodes, k configurations in the call, c of the graph, j segments, width of what the wrapped model pools.
"""
import hashlib
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from kit.agreement import find_meetings
from kit.prune import k_hop_nodes


class HistoryTable(nn.Module):
    """What each visited (graph, configuration, segment) last pooled to, in at most `size` bytes; oldest first out.

    Finding the rows takes another 4 bytes for each configuration and segment of the graphs trained on.
    """

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.clear()

    def clear(self):
        """Forget all rows."""
        self.owner = np.empty((0, 3), np.int64)          # graph key, configuration, segment of each row
        self.rows = np.empty((0, 0), np.float16)
        self.used = self.next = 0                        # rows filled; where the next new one goes
        self.places = {}                                 # graph key: (c, j) int32, its rows; -1 where there is none

    def find(self, tensors, index):
        """Rows of the configurations `index` (k,) -> (k, j) int64, -1 where a segment was never computed."""
        return torch.from_numpy(self.places_of(tensors)[index.cpu().numpy()]).long()

    def places_of(self, tensors):
        """All rows of a graph, (c, j) int32."""
        if tensors.key not in self.places:
            place = np.full(tensors.shape, -1, np.int32)
            mine = np.flatnonzero(self.owner[:self.used, 0] == tensors.key)
            place[self.owner[mine, 1], self.owner[mine, 2]] = mine
            self.places[tensors.key] = place
        return self.places[tensors.key]

    def rows_at(self, row, width):
        """Values of the rows `row` (k, j) -> (k, j, width) float32; zeros where there is none."""
        if not self.used:
            return torch.zeros(*row.shape, width)
        return torch.from_numpy(self.rows[row.clamp(min=0).numpy()]).float() * (row >= 0)[..., None]

    def put(self, tensors, index, segment, values):
        """Write what a segment pooled to under the configurations `index` (k,); values (k, width)."""
        config, first = np.unique(index.cpu().numpy(), return_index=True)      # a row has one value
        values, place = values.half().cpu().numpy()[first], self.places_of(tensors)
        finite = np.isfinite(values).all(axis=1)         # a row that overflows float16 is never kept
        config, values = config[finite], values[finite]
        if not len(self.rows):
            self.make_room(values.shape[1])
        config, values = config[-len(self.rows):], values[-len(self.rows):]
        row = place[config, segment].astype(np.int64)
        known = row >= 0
        self.rows[row[known]] = values[known]
        row = (self.next + np.arange((~known).sum())) % len(self.rows)
        for key, c, j in self.owner[row[row < self.used]].tolist():            # evicted
            if key in self.places:
                self.places[key][c, j] = -1
        config, values = config[~known], values[~known]
        self.rows[row], self.owner[row] = values, np.stack([np.full_like(config, tensors.key), config,
                                                            np.full_like(config, segment)], axis=1)
        place[config, segment] = row
        self.next = int(self.next + len(row)) % len(self.rows)
        self.used = min(self.used + len(row), len(self.rows))

    def make_room(self, width, least=1):
        """Reserve as many rows as fit; untouched memory costs nothing."""
        rows = max(least, self.size // (2 * width + 8 * 3))
        self.owner, self.rows = np.empty((rows, 3), np.int64), np.empty((rows, width), np.float16)

    def get_extra_state(self):
        """All rows, the oldest first, as one (rows, 12 + width) int16 tensor: the bits of owner and values."""
        order = np.roll(np.arange(self.used), -self.next)
        bits = [np.ascontiguousarray(part[order]).view(np.int16) for part in (self.owner, self.rows)]
        return torch.from_numpy(np.concatenate(bits, axis=1))

    def set_extra_state(self, state):
        """Take over what `get_extra_state` gave."""
        self.clear()
        bits = state.cpu().numpy()
        if len(bits):
            self.make_room(bits.shape[1] - 12, len(bits))
            self.owner[:len(bits)] = np.ascontiguousarray(bits[:, :12]).view(np.int64)
            self.rows[:len(bits)] = np.ascontiguousarray(bits[:, 12:]).view(np.float16)
            self.used, self.next = len(bits), len(bits) % len(self.rows)


def graph_key(graph):
    """A number that tells a graph from any other of different content, whatever its name."""
    digest = hashlib.blake2b(digest_size=8)
    for field in (*graph[:-1], *(graph.meetings or ())):
        array = np.asarray(field)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return int.from_bytes(digest.digest(), "little", signed=True)


class SegmentTensors(NamedTuple):
    """A graph in segments."""
    key: int                     # of the graph's content, so that preparing it again finds its rows of the table
    shape: tuple                 # (c, j)
    parts: tuple                 # what the wrapped model prepared of each segment
    share: tuple                 # of the nodes, a segment each; sums to 1


@dataclass(frozen=True)
class SegmentSettings:
    """Defaults: the authors' released code for TpuGraphs."""
    segment_nodes: int = 1000            # at most; a graph's are of one size, the last may be smaller
    gradient_segments: int = 1           # a step
    keep: float = 0.5                    # probability that a row of the table counts in a step
    table_bytes: int = 1 << 28           # a row of width 256 takes 536; the oldest make room for new ones
    margin: int = 0                      # not published: hops around a segment that are computed with it
    head_only: bool = False              # train the head alone, on segments that are all fresh
    model: object = None                 # settings of the wrapped model; filled in

    def __post_init__(self):
        for name, low in dict(segment_nodes=1, gradient_segments=1, table_bytes=1, margin=0).items():
            if not (isinstance(getattr(self, name), (int, np.integer)) and getattr(self, name) >= low):
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected a whole number of at least {low}")
        if not 0 <= self.keep <= 1:
            raise ValueError(f"keep is {self.keep!r}; expected a probability, 0 to 1")


class SegmentTraining(nn.Module):
    """Wrap a model so that it trains on large graphs segment by segment; itself a model to train and predict with.

    In training, what a graph's segments pool to is a sum of w_i x share_i x pooled_i. A row of the table counts with
    w = 1 or, dropped, 0; a segment with gradient with w = p + (1 - p) x j / gradient_segments, where p is the
    probability that its row would have counted: `keep`, or 0 if that segment of that configuration was never
    computed. So w is 1 on average over draws, and mean pooling is right in expectation but for stale rows. A maximum
    is taken over the segments that count, and has no such law. Scoring computes all segments, one after another:
    the exact mean over them, weighted by their nodes, or their maximum.

    The table holds rows of visited (graph, configuration) pairs only, as float16, whose rounding of 2e-4 is small
    beside the 2% to 6% by which configurations of a public graph's segments of 1,000 nodes differ. It lives on the
    CPU and travels in the state dict as one integer tensor, so that a run resumed from a checkpoint ends like one
    never killed. Several processes keep a table each, and a checkpoint has the first one's.

    Parameters
    ----------
    model : LayoutGNN or any module with `pooled(tensors, index) -> (k, width)` and `head`
        Trained in place. To train the head alone it must be a module. With `settings.pool` "mean+max" the second
        half of the width is a maximum. With a margin its `prepare` is given a second argument: the (n,) bool nodes
        to pool.
    settings : SegmentSettings, optional

    References
    ----------
    Cao et al., Learning Large Graph Property Prediction via Graph Segment Training, arXiv:2305.12322. Their released
    code numbers the samples of a batch of several graphs by the configurations drawn for the last one.
    """

    def __init__(self, model, settings=None):
        super().__init__()
        self.model = model
        self.settings = replace(settings or SegmentSettings(), model=model.settings)
        self.table = HistoryTable(self.settings.table_bytes)
        self.freeze()

    def finetune_head(self):
        """From now on train the head alone, with every segment fresh: the last phase, a call of `train` of its own."""
        self.settings = replace(self.settings, head_only=True)
        self.freeze()

    def freeze(self):
        """Let parameters take gradients as the settings say."""
        self.model.requires_grad_(not self.settings.head_only)
        if self.settings.head_only:
            self.model.head.requires_grad_(True)

    def train(self, mode=True):
        """As for any module; a frozen trunk stays as it is in scoring, without dropout."""
        super().train(mode)
        if self.settings.head_only:
            self.model.eval()
            self.model.head.train(mode)
        return self

    @property
    def fitted(self):
        """Whether the wrapped model has feature statistics."""
        return self.model.fitted

    @property
    def transductive(self):
        """Whether a cost depends on the other configurations in the call."""
        return self.model.transductive

    @property
    def set_size(self):
        """How many configurations were scored together in training; transductive models only."""
        return self.model.set_size

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
            inside = np.isin(nodes, own)
            parts.append(self.model.prepare(subgraph(graph, nodes), *[inside] * (not inside.all())))
            share.append(len(own) / n)
        return SegmentTensors(key, (len(graph.config_runtime), len(parts)), tuple(parts), tuple(share))

    def with_margin(self, graph, own):
        """The nodes that a segment is computed with, `own` among them; sorted."""
        if not self.settings.margin:
            return own
        ends = graph.node_config_ids[graph.meetings.ends]                                  # (p, 2)
        partners = ends[np.isin(ends, own).any(axis=1)].ravel()
        return np.union1d(k_hop_nodes(graph.edge_index, own, self.settings.margin), partners)

    def configs_within(self, tensors, budget):
        """How many configurations one call without gradients may hold within `budget` bytes; at least 1."""
        return min(self.model.configs_within(part, budget) for part in tensors.parts)

    def forward(self, tensors, index):
        """Cost of the configurations `index` (k,) -> (k,)."""
        pooled = self.pooled(tensors, index)
        with torch.autocast(pooled.device.type, enabled=False):      # a half type would make different costs equal
            return self.model.head(pooled).squeeze(-1)

    def pooled(self, tensors, index):
        """What the graph holds under the configurations `index` (k,) -> (k, width)."""
        s, j = self.settings, len(tensors.parts)
        if not self.training or s.head_only or j <= s.gradient_segments:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not s.head_only):
                every = [self.model.pooled(part, index).float() for part in tensors.parts]
            return every[0] if j == 1 else self.merge(torch.stack(every, dim=1), tensors.share)

        # drawn on the CPU, so that all devices train alike, and before the trunk draws its own dropout
        drawn = torch.randperm(j)[:s.gradient_segments].tolist()
        row = self.table.find(tensors, index)                                              # (k, j)
        keep = s.keep * (row >= 0)
        weight = (torch.rand(len(index), j) < keep).float()                                # (k, j)
        weight[:, drawn] = (keep + (1 - keep) * j / len(drawn))[:, drawn]
        fresh = [self.model.pooled(tensors.parts[one], index).float() for one in drawn]
        pooled = self.table.rows_at(row, fresh[0].shape[1]).to(fresh[0]).unbind(dim=1)     # j x (k, width)
        by_segment = dict(zip(drawn, fresh))
        pooled = torch.stack([by_segment.get(one, stale) for one, stale in enumerate(pooled)], dim=1)
        for one, values in by_segment.items():
            self.table.put(tensors, index, one, values.detach())
        return self.merge(pooled, tensors.share, weight.to(pooled))

    def merge(self, pooled, share, weight=None):
        """Pool segments (k, j, width) into graphs (k, width); those of weight 0 do not count."""
        weights = pooled.new_tensor(share) if weight is None else pooled.new_tensor(share) * weight
        mean = (weights.unsqueeze(-1) * pooled).sum(dim=1)
        if getattr(self.settings.model, "pool", "mean") != "mean+max":
            return mean
        half = pooled.shape[-1] // 2
        highest = pooled[..., half:]
        if weight is not None:
            highest = highest.masked_fill(weight[..., None] == 0, -torch.inf)
        return torch.cat([mean[:, :half], highest.amax(dim=1)], dim=1)


def segments(graph, size):
    """Cut a layout graph into runs of at most `size` nodes, for programs that are too large to train on whole.

    Parameters
    ----------
    graph : LayoutGraph
    size : int
        Nodes a segment. Nodes are stored in topological order, so that neighbours in number are mostly neighbours.

    Returns
    -------
    list of LayoutGraph
        In the order of the nodes, which are numbered anew; edges between segments are left out. A segment keeps
        the groups that one of its nodes belongs to, and every configuration with its runtime.

    Raises
    ------
    ValueError
        If `size` is not positive.

    References
    ----------
    Cao et al., Learning Large Graph Property Prediction via Graph Segment Training, arXiv:2305.12322.
    """
    if size < 1:
        raise ValueError(f"a segment needs at least one node, got size {size}")
    n, graph = len(graph.node_feat), graph._replace(meetings=graph.meetings or find_meetings(graph))
    return [subgraph(graph, np.arange(start, min(start + size, n))) for start in range(0, n, size)]


def subgraph(graph, nodes):
    """The part of a layout graph that some of its nodes make up.

    Parameters
    ----------
    graph : LayoutGraph
    nodes : ndarray, shape (n',), int
        Distinct and sorted; numbered anew in this order.

    Returns
    -------
    LayoutGraph
        With the edges between these nodes, the groups that one of them belongs to, and every configuration.
    """
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
