"""Costs of every configuration of a graph, in bounded memory; what a graph is ranked by."""
from contextlib import nullcontext

import numpy as np
import torch

PRECISIONS = ("float32", "bfloat16", "float16")


def autocast_to(precision, device):
    """The context in which matrix products are computed in this precision; weights stay float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, getattr(torch, precision))


@torch.no_grad()
def predict(model, graph, budget=1 << 30, seed=0, passes=1, precision="float32", tensors=None):
    """Cost of every configuration of a graph, in bounded memory.

    Parameters
    ----------
    model : LayoutGNN, TileModel or any module with their methods
    graph : LayoutGraph or TileGraph
    budget : int
        Bytes that activations may take; configurations are scored in chunks of equal size that fit, at least one.
    seed : int
        Configurations are put into chunks in an order drawn from it, never in file order. A transductive model
        sees as many together as in training (fewer only if `budget` is too small), the last chunk filled up from
        the others.
    passes : int
        A transductive model scores every configuration this many times, in other company each time, and the costs
        are averaged. They are not standardised before: all are of the same weights, in the same unit. Other models
        need one pass.
    precision : str
        "float32", "bfloat16" or "float16", as in training.
    tensors : object, optional
        What `model.prepare(graph)` gave, where it is at hand.

    Returns
    -------
    ndarray, shape (c,), float64
        Lower is faster.

    Raises
    ------
    ValueError
        If the model was never trained, or gives a cost that is not finite, or there is no pass.
    """
    if passes < 1:
        raise ValueError(f"passes is {passes}; expected at least 1")
    if not model.fitted:
        raise ValueError("this model has no feature statistics; train it or load a checkpoint first")
    tensors, c = model.prepare(graph) if tensors is None else tensors, len(graph.config_runtime)
    size = min(c, model.configs_within(tensors, budget))
    if model.transductive:
        size = min(size, int(model.set_size))
    else:
        size = -(-c // -(-c // size))        # as many chunks, but of equal size, so that little is scored twice
    device = next(model.parameters()).device
    passes = passes if model.transductive and size < c else 1            # all in one chunk: no other company
    cost = np.zeros(c)
    training = model.training
    model.eval()
    try:
        for number in range(passes):
            order = np.random.default_rng([seed, number]).permutation(c)
            for start in range(0, c, size):
                chunk = order[np.arange(start, start + size) % c]
                with autocast_to(precision, device):
                    scored = model(tensors, torch.as_tensor(chunk, device=device))[:c - start]
                cost[chunk[:c - start]] += scored.double().cpu().numpy() / passes
    finally:
        model.train(training)
    if not np.isfinite(cost).all():
        raise ValueError(f"{graph.graph_id}: the model gives {(~np.isfinite(cost)).sum()} costs that are not finite")
    return cost
