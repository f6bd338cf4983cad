"""Building blocks of the networks: message passing, and node features as tensors.

Activations are node-major, (n, k, width) for k configurations, so that message passing is one sparse (n, n) x
dense (n, k * width) product: on CPU about twice as fast as gathering and summing edge by edge.
"""
import math
import time
import warnings
import weakref
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from kit.pad import repad_layout
from kit.scale import Scaler, scale

NUMERIC = 134                    # node_feat columns before the 6 layout digits
DIGIT_VALUES = 8                 # -2 not configurable, -1 none, 0..5 an axis


class Messages(NamedTuple):
    """Mean over neighbours, as a sparse matrix and its transpose, or as sorted edges for torch-scatter."""
    matrix: torch.Tensor         # (n, n) sparse CSR; row = receiver, values 1 / number of senders
    transposed: torch.Tensor     # (n, n) sparse CSR, for the backward pass
    sender: torch.Tensor         # (m,) int64, ordered by receiver
    pointer: torch.Tensor        # (n + 1,) int64; where each receiver's senders begin
    reach: int                   # nodes from this one on send nothing


class SparseMean(torch.autograd.Function):
    """matrix @ x with the transpose at hand, which autograd would otherwise build anew in each step."""

    @staticmethod
    def forward(ctx, matrix, transposed, x):
        ctx.transposed = transposed
        return add_product(fresh(x, *x.shape), matrix, x, keep=0)

    @staticmethod
    def backward(ctx, grad):
        return None, None, add_product(fresh(grad, *grad.shape), ctx.transposed, grad.contiguous(), keep=0)


def add_product(onto, matrix, x, keep=1):
    """keep * onto + matrix @ x, in place; half types by way of float32, which every device can multiply."""
    if x.dtype == matrix.dtype:
        return torch.addmm(onto, matrix, x, beta=keep, out=onto)        # matrix @ x would copy its result
    product = add_product(fresh(matrix.values(), *onto.shape), matrix, x.to(matrix.dtype), keep=0)
    return onto.add_(product) if keep else onto.copy_(product)


@cache
def spare_memory():
    """Memory that tensors of `fresh` have left, to be used again."""
    return []


def fresh(like, *shape):
    """An empty tensor of the type of `like`, on CPU in memory that an earlier one has left if any fits."""
    # the first write to new memory takes several times as long as the next; NumPy asks Linux for huge pages
    if like.device.type != "cpu":
        return like.new_empty(shape)
    size, spare = math.prod(shape) * like.element_size(), spare_memory()
    fits = [place for place, memory in enumerate(spare) if size <= len(memory) <= 2 * size]
    if not fits:
        spare.clear()                    # so that it never adds up over graphs of many sizes
    memory = spare.pop(fits[0]) if fits else np.empty(size, np.uint8)
    array = memory[:size]
    weakref.finalize(array, spare.append, memory).atexit = False             # the tensor holds on to the array
    return torch.from_numpy(array).view(like.dtype).view(shape)


def mean_messages(edge_index, n, device="cpu"):
    """Prepare the mean over a node's senders; row [u, v] of `edge_index` sends from u to v.

    Parameters
    ----------
    edge_index : ndarray, shape (m, 2), int
    n : int
    device : str or torch.device

    Returns
    -------
    Messages
        Parallel edges count as often as they occur; a node without senders receives zeros.
    """
    sender, receiver = torch.as_tensor(edge_index.T.copy()).to(device)
    count = torch.bincount(receiver, minlength=n)
    weight = 1.0 / count[receiver].float()
    def csr(rows, columns):
        return torch.sparse_coo_tensor(torch.stack([rows, columns]), weight, (n, n)).coalesce().to_sparse_csr()
    with warnings.catch_warnings():          # PyTorch calls CSR "beta" on first use
        warnings.simplefilter("ignore")
        matrix, transposed = csr(receiver, sender), csr(sender, receiver)
    by_receiver = torch.argsort(receiver, stable=True)
    return Messages(matrix, transposed, sender[by_receiver], F.pad(count.cumsum(0), (1, 0)),
                    int(edge_index[:, 0].max(initial=-1)) + 1)


def aggregate(messages, x, how="sparse"):
    """Average each node's senders.

    Parameters
    ----------
    messages : Messages
    x : Tensor, shape (n, ...)
    how : str
        "sparse": one sparse x dense product. "scatter": torch-scatter, where that is installed.

    Returns
    -------
    Tensor, shape (n, ...)
    """
    flat = x.reshape(len(x), -1)
    if how == "scatter":
        from torch_scatter import segment_csr
        mean = segment_csr(flat[messages.sender], messages.pointer, reduce="mean")
    else:
        mean = SparseMean.apply(messages.matrix, messages.transposed, flat)
    return mean.reshape(x.shape)


def fastest_aggregation(messages, width, repeats=5):
    """Time both ways of passing messages, forward and backward, on the graph and device at hand.

    Parameters
    ----------
    messages : Messages
    width : int
        Values a node, that is configurations a step times network width.
    repeats : int

    Returns
    -------
    how : str
        "sparse" or "scatter"; for the settings of a model.
    seconds : dict
        The best time of each that could run.
    """
    seconds = {}
    x = torch.ones(len(messages.pointer) - 1, width, device=messages.pointer.device, requires_grad=True)
    for how in ("sparse", "scatter"):
        try:
            for _ in range(repeats):
                start = time.perf_counter()
                aggregate(messages, x, how).sum().backward()
                x.grad.sum().item()          # .item() waits for a GPU
                seconds[how] = min(seconds.get(how, np.inf), time.perf_counter() - start)
        except (ImportError, OSError):       # OSError: built for another PyTorch
            continue
    return min(seconds, key=seconds.get), seconds


class Sage(nn.Module):
    """GraphSAGE with mean aggregation, one weight matrix for the node and one for each direction."""

    def __init__(self, width_in, width_out, directions, how):
        super().__init__()
        self.own = nn.Linear(width_in, width_out)
        self.neighbours = nn.ModuleList(nn.Linear(width_in, width_out, bias=False) for _ in range(directions))
        self.how = how

    def forward(self, x, messages):
        out = self.own(x)
        for linear, one in zip(self.neighbours, messages):
            # the mean is linear, so it may come after the projection, which is never wider
            out = out + aggregate(one, linear(x), self.how)
        return out


def node_tensors(node_feat, node_opcode, node_scale):
    """Standardised features, opcodes and repaired layout digits + 2, on the device of `node_scale`."""
    mean, factor = node_scale.cpu().numpy()
    repaired, _ = repad_layout(node_feat)
    device = node_scale.device
    return (torch.as_tensor(scale(node_feat[:, :NUMERIC], Scaler(mean, factor)), device=device),
            torch.tensor(node_opcode, device=device),
            torch.as_tensor(repaired[:, NUMERIC:].astype(np.int64).clip(-1, 5) + 2, device=device))


def rows_of(table, chosen):
    """Row of each node's table (nc, codes, out) for each of its chosen codes (nc, k) -> (nc, k, out)."""
    nc, codes = table.shape[:2]
    return F.embedding(chosen + codes * torch.arange(nc, device=chosen.device)[:, None], table.flatten(0, 1))
