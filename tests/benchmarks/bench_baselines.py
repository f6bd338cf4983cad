"""Training steps of the published baselines and of the kit's networks, each with its default settings; AdamW.

Layout networks read one random program of 1,000 nodes, of which 200 are configurable, in 20 groups of 6 codes. Tile
networks read one random kernel of 60 nodes. A step takes 64 configurations. The default `LayoutGNN` has the first
place's attention over configurations.
"""
import torch
from bench_gnn import stepper
from generated import CONFIGS, drawn_graph, drawn_kernel

from kit.data import target
from kit.losses import list_mle_loss, pairwise_hinge_loss
from kit.models import ConfigTokenModel, LayoutGNN, TileModel
from lab.studies.published import EarlyJoinSAGE, LateJoinSAGE, LayoutGCN, LayoutSAGE, ResidualGCN, TileMLP


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
