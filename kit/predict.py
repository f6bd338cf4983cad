"""Costs of every configuration of a graph, in bounded memory; what a graph is ranked by."""
import numpy as np
import torch


def target(graph):
    """What to rank the configurations of a graph by; lower is faster.

    Parameters
    ----------
    graph : LayoutGraph or TileGraph

    Returns
    -------
    ndarray, shape (c,)
        Runtime in ns (int64), for tiles divided by its normalizer (float64).
    """
    if hasattr(graph, "config_runtime_normalizers"):
        return graph.config_runtime / graph.config_runtime_normalizers
    return graph.config_runtime


def configs_of(graph):
    """What tells the configurations of a graph apart: (c, 24) features or (c, g) codes."""
    return graph.config_feat if hasattr(graph, "config_feat") else graph.config_codes


@torch.no_grad()
def predict(model, graph, budget=1 << 30, seed=0):
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

    Returns
    -------
    ndarray, shape (c,), float64
        Lower is faster.

    Raises
    ------
    ValueError
        If the model was never trained, or gives a cost that is not finite.
    """
    if not model.fitted:
        raise ValueError("this model has no feature statistics; train it or load a checkpoint first")
    tensors, c = model.prepare(graph), len(graph.config_runtime)
    size = min(c, model.configs_within(tensors, budget))
    if model.transductive:
        size = min(size, int(model.set_size))
    else:
        size = -(-c // -(-c // size))        # as many chunks, but of equal size, so that little is scored twice
    order = np.random.default_rng(seed).permutation(c)
    cost = np.empty(c)
    training = model.training
    model.eval()
    try:
        for start in range(0, c, size):
            chunk = order[np.arange(start, start + size) % c]
            cost[chunk[:c - start]] = model(tensors, torch.as_tensor(chunk))[:c - start].double().cpu().numpy()
    finally:
        model.train(training)
    if not np.isfinite(cost).all():
        raise ValueError(f"{graph.graph_id}: the model gives {(~np.isfinite(cost)).sum()} costs that are not finite")
    return cost
