"""What Graph Segment Training remembers: a table of what each segment pooled to when it was last computed."""
import hashlib

import numpy as np
import torch
from torch import nn


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
