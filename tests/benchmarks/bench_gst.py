"""One training step on a graph of 21,918 nodes, not pruned: on the whole graph, or with gradients of one segment.

The graph is the real test program if kit.data.find_data_root finds the data set, else a random graph of the same
size. Runtimes are random, because the runtimes of test files are placeholders.
"""
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import torch

from kit.data import DataError, LayoutGraph, find_data_root, npz_paths, read_layout
from kit.losses import pairwise_hinge_loss
from kit.models import LayoutGNN, LayoutGNNSettings, SegmentGNN, SegmentGNNSettings

REAL = "3a0c5517a87df8d82fd637b83298a3ba"                # in the test split of layout:nlp:default
SIZES = ((256, 8), (64, 16))                             # width, configurations per step; whole graph: 5 and 3 GB
PLAIN = LayoutGNNSettings(config_attention=False)


def large_graph():
    """The real graph, or a random one with the same number of nodes, edges, groups, configurations."""
    rng = np.random.default_rng(0)
    try:
        path = next((p for p in npz_paths(find_data_root(), "layout:nlp:default", "test") if p.stem == REAL), None)
    except DataError:
        path = None
    if path:
        graph = read_layout(path)
    else:
        n, m, nc, g, k, c = 21_918, 36_000, 848, 26, 9, 1001
        ends = rng.integers(1, n, m)
        edges = np.stack([ends, np.maximum(0, ends - rng.geometric(0.02, m))], axis=1)
        node_feat = rng.random((n, 140), dtype=np.float32)
        node_feat[:, 134:] = 0
        graph = LayoutGraph("drawn", node_feat, rng.integers(1, 121, n), edges, np.sort(rng.permutation(n)[:nc]),
                            np.array([0]), rng.integers(0, k, (c, g)).astype(np.uint8), np.arange(nc) % g,
                            rng.integers(-1, 6, (nc, k, 18)).astype(np.int8), np.zeros(c, np.int64))
    return graph._replace(config_runtime=rng.integers(10 ** 6, 10 ** 7, len(graph.config_codes)))


def training_step(device, width, configs, nodes=None, margin=0, settings=PLAIN):
    """(step, configurations per step): forward, hinge loss, backward, AdamW; `nodes` per segment, None: whole graph."""
    graph, rng = large_graph(), np.random.default_rng(0)
    settings = replace(settings, width=width)
    model = LayoutGNN(settings)
    if nodes:
        model = SegmentGNN(SegmentGNNSettings(**asdict(settings), segment_nodes=nodes, margin=margin))
    model.to(device)
    model.fit_scale([graph])
    tensors, runtime = model.prepare(graph), torch.tensor(graph.config_runtime, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()

    def step():
        index = torch.as_tensor(rng.choice(len(runtime), configs, replace=False), device=device)
        optimizer.zero_grad()
        pairwise_hinge_loss(model(tensors, index), runtime[index]).backward()
        optimizer.step()
    return step, configs


def named(width, configs, nodes, margin):
    what = f"one segment of {nodes:,} nodes{' and a margin' * margin}" if nodes else "full graph"
    return f"{what}, width {width}, {configs} configurations"


CASES = {named(width, configs, *way): partial(training_step, width=width, configs=configs, nodes=way[0], margin=way[1])
         for width, configs in SIZES for way in ((None, 0), (2000, 0), (2000, 1), (1000, 0), (1000, 1))}
