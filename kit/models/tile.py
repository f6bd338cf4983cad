"""The tile network: encode a kernel's graph once, then rank its tile sizes against it."""
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from kit.data import OPCODE_NAMES, OPCODES
from kit.models.layers import DIGIT_VALUES, NUMERIC, Sage, mean_messages, node_tensors
from kit.pad import SHAPE
from kit.scale import Scaler, fit_scaler, scale

TILE_FEATURES = 87               # see tile_features
PARAMETER = OPCODE_NAMES.index("parameter")


class TileTensors(NamedTuple):
    """A kernel as `TileModel` wants it."""
    numeric: torch.Tensor        # (n, 134) float32, standardised
    opcode: torch.Tensor         # (n,) int64
    layout: torch.Tensor         # (n, 6) int64, digits + 2
    config: torch.Tensor         # (c, 87) float32, standardised
    messages: tuple              # Messages, one for each direction


@dataclass(frozen=True)
class TileModelSettings:
    """A small GraphSAGE over the kernel, joined late with the tile sizes."""
    width: int = 64
    graph_blocks: int = 2
    opcode_width: int = 16
    digit_width: int = 4
    dropout: float = 0.1
    aggregation: str = "sparse"          # or "scatter"; see fastest_aggregation
    seed: int = 0                        # of the initial weights


class TileModel(nn.Module):
    """Rank the tile sizes of one kernel: encode the graph once, then each configuration against it.

    Mean and max over the nodes join an encoding of the configuration: its 24 numbers, how many tiles cover each
    dimension, how much of the last tile is padding, and how much of the parameters a tile needs at once.

    Parameters
    ----------
    settings : TileModelSettings, optional
    """
    transductive = False

    def __init__(self, settings=None):
        super().__init__()
        self.settings = s = settings or TileModelSettings()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(s.seed)
            self.opcode = nn.Embedding(OPCODES, s.opcode_width)
            self.digit = nn.Embedding(DIGIT_VALUES, s.digit_width)
            self.node = nn.Linear(NUMERIC + 6 * s.digit_width + s.opcode_width, s.width)
            self.sages = nn.ModuleList(Sage(s.width, s.width, 2, s.aggregation) for _ in range(s.graph_blocks))
            self.norms = nn.ModuleList(nn.LayerNorm(s.width) for _ in range(s.graph_blocks))
            self.config = nn.Sequential(nn.Linear(TILE_FEATURES, s.width), nn.GELU(), nn.Linear(s.width, s.width))
            self.graph = nn.Linear(2 * s.width, s.width)
            self.head = nn.Sequential(nn.Linear(3 * s.width, s.width), nn.GELU(), nn.Dropout(s.dropout),
                                      nn.Linear(s.width, s.width), nn.GELU(), nn.Linear(s.width, 1))
        self.register_buffer("node_scale", torch.zeros(2, NUMERIC, dtype=torch.float64))
        self.register_buffer("config_scale", torch.zeros(2, TILE_FEATURES, dtype=torch.float64))
        self.register_buffer("fitted", torch.tensor(False))

    def fit_scale(self, graphs):
        """Store the feature statistics of the training kernels."""
        self.node_scale.copy_(torch.as_tensor(np.stack(fit_scaler(g.node_feat[:, :NUMERIC] for g in graphs))))
        self.config_scale.copy_(torch.as_tensor(np.stack(fit_scaler(tile_features(g) for g in graphs))))
        self.fitted.fill_(True)

    def prepare(self, graph):
        """Turn a TileGraph into tensors on this model's device; repairs the layout padding."""
        n, device = len(graph.node_feat), self.node_scale.device
        mean, factor = self.config_scale.cpu().numpy()
        return TileTensors(
            *node_tensors(graph.node_feat, graph.node_opcode, self.node_scale),
            torch.as_tensor(scale(tile_features(graph), Scaler(mean, factor)), device=device),
            tuple(mean_messages(e, n, device) for e in (graph.edge_index, graph.edge_index[:, ::-1])))

    def configs_within(self, tensors, budget):
        """How many configurations one call without gradients may hold within `budget` bytes; at least 1."""
        return max(1, int(budget // (4 * (10 * self.settings.width + TILE_FEATURES))))

    def forward(self, tensors, index):
        """Cost of the configurations `index` (k,) -> (k,)."""
        x = self.node(torch.cat([tensors.numeric, self.digit(tensors.layout).flatten(1),
                                 self.opcode(tensors.opcode)], dim=1))                            # (n, width)
        for norm, sage in zip(self.norms, self.sages):
            x = x + F.gelu(sage(norm(x), tensors.messages))
        graph = self.graph(torch.cat([x.mean(dim=0), x.amax(dim=0)]))                             # (width,)
        config = self.config(tensors.config[index])                                               # (k, width)
        graph = graph.expand_as(config)
        return self.head(torch.cat([config, graph, config * graph], dim=1)).squeeze(-1)


def tile_features(graph):
    """Numbers that describe each tile of a kernel.

    Bounds count blocks of a tensor's dimensions from major to minor (in the public files a block is 8 x 128 elements
    of the two minor-most dimensions). The largest bound in the file stands for the whole dimension: which tensor is
    tiled, the output or a reduction's input, and how large its blocks are does not have to be known.

    Parameters
    ----------
    graph : TileGraph

    Returns
    -------
    ndarray, shape (c, 87), float64
        The 24 configuration features. For the tiles of kernel, output and input, minor-most dimension first: the 6
        bounds, how many tiles cover each dimension, and the padding of the last of them, a factor of at least 1;
        all 0 past the rank. Blocks of a tile and number of tiles, for each of the three. Then the share of an
        output tile in the whole, and that share of the elements of all parameters and of the largest one: what has
        to fit into the chip's memory.
    """
    described, totals = [graph.config_feat.astype(np.float64)], []
    for start in (0, 8, 16):                               # kernel_bounds_0..5, output_bounds, input_bounds
        bounds = described[0][:, start:start + 6]
        rank = int((bounds.max(axis=0) > 0).sum())
        bounds = np.maximum(bounds[:, :rank][:, ::-1], 1)
        whole = bounds.max(axis=0)
        tiles = np.ceil(whole / bounds)
        shape = np.zeros((3, len(bounds), 6))
        shape[:, :, :rank] = bounds, tiles, tiles * bounds / whole
        described += [*shape]
        totals += [bounds.prod(axis=1), tiles.prod(axis=1)]
    share = totals[2] / totals[2].max()
    sizes = graph.node_feat[:, SHAPE].astype(np.float64)
    sizes = np.where(sizes > 0, sizes, 1).prod(axis=1)
    sizes = sizes[graph.node_opcode == PARAMETER] if PARAMETER in graph.node_opcode else sizes
    return np.column_stack([*described, *totals, share, share * sizes.sum(), share * sizes.max()])
