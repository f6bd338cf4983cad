"""The cost of every configuration of a graph, in bounded memory."""
from contextlib import nullcontext

import numpy as np
import torch

from kit.checks import as_numbers, check_choice, check_whole, expect
from kit.precision import own_precision

PRECISIONS = ("float32", "bfloat16", "float16")


def autocast_to(precision, device):
    """A context that computes matrix products in this precision; weights stay float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, getattr(torch, precision))


@own_precision()
@torch.no_grad()
def predict(model, graph, budget=None, seed=0, passes=1, precision="float32", tensors=None):
    """The cost of every configuration of a graph, in bounded memory.

    Parameters
    ----------
    model : Module
        As `kit.models` describes, trained.
    graph : LayoutGraph or TileGraph
    budget : int, optional
        Bytes for activations. Configurations are scored in chunks of equal size that fit into it, at least one each.
        None: 1 GiB; 128 MiB on a CPU, where small chunks are faster, unless the model is transductive.
    seed : int
        Seeds the random order of configurations in chunks. A transductive model sees as many configurations together
        as in training, or fewer if `budget` is too small. Configurations of other chunks fill up the last chunk.
    passes : int
        A transductive model scores every configuration this many times, each time together with other configurations.
        The costs are averaged without rescaling. Other models need one pass.
    precision : str
        "float32", "bfloat16" or "float16", as in training.
    tensors : object, optional
        The result of `model.prepare(graph)`, if it is already computed.

    Returns
    -------
    ndarray, shape (c,), float64
        Lower is faster.

    Raises
    ------
    ValueError
        If the model was never trained, a cost is not finite, the graph has no configuration or is of the wrong kind, or
        another argument is not as above.
    """
    check_whole(locals(), seed=0, passes=1, **{} if budget is None else {"budget": 0})
    check_choice(locals(), precision=PRECISIONS)
    expect(hasattr(model, "configs_within"), "model", model, "a model as kit.models describes")
    expect(hasattr(graph, "config_runtime"), "graph", graph, "a TileGraph or a LayoutGraph")
    c = len(as_numbers(f"{graph.graph_id}: config_runtime", graph.config_runtime, ("c",)))
    expect(c, f"{graph.graph_id}: the number of configurations", c, "at least 1")
    if not model.fitted:
        raise ValueError("this model has no feature statistics; train it or load a checkpoint first")
    tensors = model.prepare(graph) if tensors is None else tensors
    nodes = len(getattr(tensors, "opcode", graph.node_opcode))
    expect(nodes == len(graph.node_opcode), "tensors", f"of a graph with {nodes} nodes",
           f"model.prepare(graph), with the {len(graph.node_opcode)} nodes of {graph.graph_id}")
    device = next(model.parameters()).device
    if budget is None:
        budget = 1 << (27 if device.type == "cpu" and not model.transductive else 30)
    size = min(c, model.configs_within(tensors, budget))
    if model.transductive:
        size = min(size, int(model.set_size))
    else:
        size = -(-c // -(-c // size))        # chunks of equal size, so that few configurations are scored twice
    passes = passes if model.transductive and size < c else 1            # with a single chunk all passes are equal
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
