"""The cost of codes under a config-token model, whose tables are computed once per program."""
from copy import deepcopy

import numpy as np
import torch
import torch.nn.functional as F

from kit.precision import own_precision


def on_codes(relaxed, dims, device="cpu"):
    """Turn a relaxed cost into a `model` for strategies: (k, g) int64 codes -> (k,) float64 costs, both arrays.

    `relaxed`: (k, g, v) float32 weights -> (k,) costs, both tensors. `dims` (g,): the number of values of each
    coordinate; v is the largest of them.

    >>> on_codes(lambda weights: weights[:, :, 1].sum(dim=1), [2, 3])(np.array([[1, 0], [1, 1], [0, 2]])).tolist()
    [1.0, 2.0, 0.0]
    """
    @own_precision()
    def model(points):
        with torch.no_grad():
            codes = torch.as_tensor(np.asarray(points, np.int64), device=device)
            return relaxed(F.one_hot(codes, int(max(dims))).float()).double().cpu().numpy()
    return model


@own_precision()
def relaxed_token_cost(model, tensors):
    """The relaxed cost of a graph under a ConfigTokenModel, with tables computed once; exact on one-hot weights.

    `tensors` is `model.prepare(graph)`. The result maps (k, g, v) weights to (k,) costs, differentiable in the weights;
    v is at most the codes of the graph's groups.
    """
    frozen = deepcopy(model).eval().requires_grad_(False)
    tables = frozen.tables(tensors)
    return own_precision()(lambda weights: frozen.cost(tensors, tables, weights))
