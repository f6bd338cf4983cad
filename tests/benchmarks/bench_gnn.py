"""Training steps of the first place's network: as published, and as `LayoutGNN`; hinge loss, AdamW.

A function in CASES returns (step, configs): `step` does one whole training step on `configs` configurations.
"""
import numpy as np
import torch
from generated import CONFIGS, drawn_graph

from kit.data import dense_configs
from kit.losses import pairwise_hinge_loss
from kit.models import LayoutGNN, LayoutGNNSettings

SMALL = LayoutGNNSettings(width=64, config_attention=False, both_directions=True, agreement=True)


def stepper(model, cost_of, loss):
    """A function that does one training step with the first place's optimiser."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)

    def step():
        optimizer.zero_grad()
        value = loss(cost_of())
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(value.detach())
    return step


def published(device="cpu"):
    """The first place's network in PyTorch Geometric; in float32, not in its mixed precision."""
    from published_gnn import PublishedGNN, published_hinge  # the other cases run without PyTorch Geometric
    graph = drawn_graph()
    x = torch.from_numpy(graph.node_feat).to(device)
    inputs = [torch.from_numpy(dense_configs(graph, np.arange(CONFIGS)).astype(np.int64)),
              (x[:, :134] - x[:, :134].mean(0)) / (x[:, :134].std(0) + 1e-5), x[:, 134:].long(),
              torch.from_numpy(graph.node_opcode), torch.from_numpy(graph.edge_index.T.copy()),
              torch.from_numpy(graph.node_config_ids)]
    inputs = [value.to(device) for value in inputs]
    model, runtime = PublishedGNN().to(device).train(), torch.from_numpy(graph.config_runtime).to(device)
    return stepper(model, lambda: model(*inputs), lambda cost: published_hinge(cost, runtime)), CONFIGS


def layout_gnn(settings=None, autocast=None, device="cpu", **graph_size):
    """A training step of `LayoutGNN`; `autocast` is the dtype of mixed precision, None for float32."""
    graph = drawn_graph(**graph_size)
    model, runtime = LayoutGNN(settings).to(device).train(), torch.from_numpy(graph.config_runtime).to(device)
    model.fit_scale([graph])
    tensors, index = model.prepare(graph), torch.arange(len(runtime), device=device)

    def cost_of():
        with torch.autocast(torch.device(device).type, autocast, enabled=autocast is not None):
            return model(tensors, index).float()
    return stepper(model, cost_of, lambda cost: pairwise_hinge_loss(cost, runtime)), len(runtime)


CASES = {
    "first place, as published (PyTorch Geometric)": published,
    "first place, LayoutGNN": lambda device="cpu": layout_gnn(device=device),
    "first place, LayoutGNN, bfloat16": lambda device="cpu": layout_gnn(autocast=torch.bfloat16, device=device),
    "small program, LayoutGNN (150 nodes, width 64)": lambda device="cpu": layout_gnn(
        SMALL, device=device, n=150, m=240, nc=30, c=32, groups=8, codes=4),
}
