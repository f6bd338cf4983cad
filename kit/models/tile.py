"""The tile network: encode a kernel's graph once, then rank its tile sizes against it."""
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from kit.checks import check_graph, check_number, check_whole
from kit.data import OPCODE_NAMES, TileGraph
from kit.models.layers import Network, scale_buffer, scaled
from kit.pad import SHAPE
from kit.precision import own_precision

TILE_FEATURES = 87               # columns of tile_features
PARAMETER = OPCODE_NAMES.index("parameter")


class TileTensors(NamedTuple):
    """A kernel as `TileModel` wants it."""
    numeric: torch.Tensor        # (n, 134) float32, standardised
    opcode: torch.Tensor         # (n,) int64
    layout: torch.Tensor         # (n, 6) int64, digits + 2
    messages: tuple              # Messages, one for each direction
    kernel: TileGraph            # whose tiles are described when they are asked for: all at once take much memory


@dataclass(frozen=True)
class TileModelSettings:
    """A small GraphSAGE over the kernel, joined late with the tile sizes."""
    width: int = 64
    graph_blocks: int = 2
    opcode_width: int = 16
    digit_width: int = 4
    dropout: float = 0.1
    seed: int = 0                        # of the initial weights

    def __post_init__(self):
        check_whole(vars(self), width=1, graph_blocks=0, opcode_width=1, digit_width=1, seed=0)
        check_number(vars(self), "at least 0 and less than 1", "dropout")


class TileModel(Network):
    """Rank the tile sizes of one kernel: encode the graph once, then score each configuration with this encoding.

    The mean and the maximum over the nodes are joined with an encoding of the configuration: its 24 numbers, how many
    tiles cover each dimension, the padding of the last tile, and how much of the parameters a tile needs at once.

    Parameters
    ----------
    settings : TileModelSettings, optional
    """
    tile = True

    @own_precision()
    def __init__(self, settings=None):
        super().__init__(settings, TileModelSettings)
        self.register_buffer("config_scale", torch.zeros(2, TILE_FEATURES, dtype=torch.float64))

    def _build(self, s):
        self._build_encoder(s)
        self.config = nn.Sequential(nn.Linear(TILE_FEATURES, s.width), nn.GELU(), nn.Linear(s.width, s.width))
        self.graph = nn.Linear(2 * s.width, s.width)
        self.head = nn.Sequential(nn.Linear(3 * s.width, s.width), nn.GELU(), nn.Dropout(s.dropout),
                                  nn.Linear(s.width, s.width), nn.GELU(), nn.Linear(s.width, 1))

    @own_precision()
    def fit_scale(self, graphs):
        """Store the feature statistics of the training kernels."""
        super().fit_scale(graphs)
        self.config_scale.copy_(scale_buffer(tile_features(g) for g in graphs))

    def prepare(self, graph):
        """Turn a TileGraph into tensors on this model's device; repairs the layout padding."""
        check_graph(graph, tile=True)
        return self.tensors_of(partial(TileTensors, kernel=graph), graph.node_feat, graph.node_opcode,
                               (graph.edge_index, graph.edge_index[:, ::-1]))

    def configs_within(self, tensors, budget):
        """How many configurations one call without gradients may hold within `budget` bytes; at least 1."""
        return max(1, int(budget // (4 * (10 * self.settings.width + TILE_FEATURES))))

    def forward(self, tensors, index):
        """Cost of the configurations `index` (k,) -> (k,)."""
        x = self.encode(tensors)                                                                  # (n, width)
        graph = self.graph(torch.cat([x.mean(dim=0), x.amax(dim=0)]))                             # (width,)
        config = torch.from_numpy(scaled(tile_features(tensors.kernel, index.cpu().numpy()), self.config_scale))
        config = self.config(config.to(x.device))                                                 # (k, width)
        graph = graph.expand_as(config)
        return self.head(torch.cat([config, graph, config * graph], dim=1)).squeeze(-1)


def tile_features(graph, index=slice(None)):
    """Describe the tiles `index` of a TileGraph -> (k, 87) float64: configuration features, counts and shares of tiles.
    """
    # a bound counts blocks of one dimension of a tensor, from major to minor; in the public files a block is 8 x 128
    # elements of the two minor-most dimensions. The largest bound in the file stands for the whole dimension, so it
    # need not be known which tensor is tiled or how large its blocks are
    described, totals = [graph.config_feat[index].astype(np.float64)], []
    for start in (0, 8, 16):             # first columns of kernel_bounds, output_bounds, input_bounds
        columns = _dimensions(graph, start)
        bounds = np.maximum(described[0][:, columns], 1)
        whole = np.maximum(graph.config_feat[:, columns].max(axis=0), 1).astype(np.float64)
        tiles = np.ceil(whole / bounds)
        # per dimension, the minor-most first: bound, number of tiles, padding of the last tile (a factor of at least 1)
        shape = np.zeros((3, len(bounds), 6))
        shape[:, :, :bounds.shape[1]] = bounds, tiles, tiles * bounds / whole
        described += [*shape]
        totals += [bounds.prod(axis=1), tiles.prod(axis=1)]
    # the share of an output tile in the output, and this share of all parameters and of the largest parameter, because
    # these have to fit into the chip's memory
    outputs = np.maximum(graph.config_feat[:, _dimensions(graph, 8)], 1).prod(axis=1, dtype=np.float64)
    share = totals[2] / outputs.max()
    sizes = graph.node_feat[:, SHAPE].astype(np.float64)
    sizes = np.where(sizes > 0, sizes, 1).prod(axis=1)
    sizes = sizes[graph.node_opcode == PARAMETER] if PARAMETER in graph.node_opcode else sizes
    return np.column_stack([*described, *totals, share, share * sizes.sum(), share * sizes.max()])


def _dimensions(graph, start):
    """Columns of `config_feat` with the bounds of a tensor that begin at column `start`, the minor-most first."""
    rank = int((graph.config_feat[:, start:start + 6].max(axis=0) > 0).sum())
    return np.arange(start, start + rank)[::-1]
