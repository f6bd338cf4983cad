"""Training steps of the published baselines and of the kit's networks, each with its default settings; AdamW.

Layout networks read one random program of 1,000 nodes, of which 200 are configurable, in 20 groups of 6 codes. Tile
networks read one random kernel of 60 nodes. A step takes 64 configurations. The default `LayoutGNN` has the first
place's attention over configurations.
"""
import numpy as np
import torch
from bench_gnn import drawn_graph, stepper

from kit.baselines.published import EarlyJoinSAGE, LateJoinSAGE, LayoutGCN, LayoutSAGE, ResidualGCN, TileMLP
from kit.data import TileGraph, target
from kit.losses import list_mle_loss, pairwise_hinge_loss
from kit.models import ConfigTokenModel, LayoutGNN, TileModel

CONFIGS = 64


def drawn_kernel(n=60, m=90, c=CONFIGS):
    """A tile graph of random features and edges."""
    rng, program = np.random.default_rng(0), drawn_graph(n, m, nc=2, groups=2)
    return TileGraph("drawn", program.node_feat, program.node_opcode, program.edge_index,
                     rng.integers(0, 100, (c, 24)).astype(np.float32), rng.integers(100, 200, c), np.full(c, 150))


def case(network, loss, device="cpu"):
    """A training step of a network with its default settings."""
    tile = loss is list_mle_loss
    graph = drawn_kernel() if tile else drawn_graph(groups=20, codes=6, c=CONFIGS)
    model, runtime = network().to(device).train(), torch.tensor(target(graph), device=device)
    model.fit_scale([graph])
    tensors, index = model.prepare(graph), torch.arange(CONFIGS, device=device)
    return stepper(model, lambda: model(tensors, index), lambda cost: loss(cost, runtime)), CONFIGS


CASES = {f"{network.__name__} ({kind})": lambda device="cpu", network=network, loss=loss: case(network, loss, device)
         for kind, loss, networks in (
             ("tile", list_mle_loss, (TileModel, TileMLP, EarlyJoinSAGE, LateJoinSAGE, ResidualGCN)),
             ("layout", pairwise_hinge_loss, (LayoutGNN, ConfigTokenModel, LayoutGCN, LayoutSAGE)))
         for network in networks}
