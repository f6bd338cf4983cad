"""Building blocks of the networks: a base class, node features as tensors, message passing.

Activations are node-major, (n, k, width) for k configurations. So message passing is one sparse (n, n) x dense
(n, k * width) product, which on CPU is about twice as fast as gathering and summing edge by edge.
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

from kit.checks import checked_graphs, expect
from kit.data import OPCODES
from kit.pad import LAYOUT, repad_layout
from kit.precision import own_precision
from kit.scale import Scaler, fit_scaler, scale

NUMERIC = LAYOUT.start           # node_feat columns before the layout are read as numbers
DIGIT_VALUES = 8                 # -2 not configurable, -1 none, 0..5 an axis


class Network(nn.Module):
    """What the networks share: weights drawn from `settings.seed`, embeddings of a node, statistics of its features.

    A subclass makes its own layers in `_build(settings)`.
    """
    transductive = False
    tile = False                 # whether it ranks TileGraphs

    @own_precision()
    def __init__(self, settings, kind):
        super().__init__()
        settings = kind() if settings is None else settings
        expect(isinstance(settings, kind), "settings", settings, kind.__name__)
        self.settings = settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.opcode = nn.Embedding(OPCODES, settings.opcode_width)
            self.digit = nn.Embedding(DIGIT_VALUES, settings.digit_width)
            self._build(settings)
        self.register_buffer("node_scale", torch.zeros(2, NUMERIC, dtype=torch.float64))
        self.register_buffer("fitted", torch.tensor(False))

    @own_precision()
    def fit_scale(self, graphs):
        """Store the feature statistics of the training graphs."""
        graphs = checked_graphs("graphs", graphs, self.tile)
        self.node_scale.copy_(scale_buffer(g.node_feat[:, :NUMERIC] for g in graphs))
        self.fitted.fill_(True)

    @own_precision()
    def tensors_of(self, kind, node_feat, node_opcode, directions, **arrays):
        """Make a NamedTuple `kind` on this model's device: nodes, messages along each of `directions`, `arrays`."""
        device, found = self.node_scale.device, self.digit.weight.dtype
        expect(found == torch.float32, "the type of the weights", found, "torch.float32; call the model's float()")
        arrays |= dict(numeric=scaled(node_feat[:, :NUMERIC], self.node_scale), opcode=node_opcode,
                       layout=repad_layout(node_feat)[0][:, LAYOUT].astype(np.int64).clip(-1, 5) + 2)
        for name, array in arrays.items():       # torch has no big-endian numbers, no negative strides, no index uint16
            native = array.dtype.newbyteorder("=")
            native = np.int32 if native in (np.uint16, np.uint32) else native
            arrays[name] = torch.tensor(np.ascontiguousarray(array, native), device=device)
        return kind(messages=tuple(mean_messages(e, len(node_feat), device) for e in directions), **arrays)

    def node_input(self, tensors):
        """What the first layer reads of each node: numbers, embedded layout, embedded opcode."""
        return torch.cat([tensors.numeric, self.digit(tensors.layout).flatten(1), self.opcode(tensors.opcode)], dim=1)

    def _build_encoder(self, s, features=True):
        numbers = NUMERIC + 6 * s.digit_width if features else 0
        self.node = nn.Linear(numbers + s.opcode_width, s.width)
        self.sages = nn.ModuleList(Sage(s.width, s.width, 2, "sparse") for _ in range(s.graph_blocks))
        self.norms = nn.ModuleList(nn.LayerNorm(s.width) for _ in range(s.graph_blocks))

    def encode(self, tensors, features=True):
        """Nodes after the blocks of `_build_encoder`, (n, width); without `features` from their opcodes alone."""
        x = self.node(self.node_input(tensors) if features else self.opcode(tensors.opcode))
        for norm, sage in zip(self.norms, self.sages):
            x = x + F.gelu(sage(norm(x), tensors.messages))
        return x


def scale_buffer(arrays):
    """A scaler fitted on all rows of `arrays`, as a (2, columns) tensor for a buffer."""
    return torch.as_tensor(np.stack(fit_scaler(arrays)))


def scaled(array, buffer):
    """Standardise an array by a fitted `scale_buffer` -> float32 array."""
    return scale(array, Scaler(*buffer.cpu().numpy()))


def rows_of(table, chosen):
    """Row of each node's table (nc, codes, out) for each of its chosen codes (nc, k) -> (nc, k, out)."""
    nc, codes = table.shape[:2]
    return F.embedding(chosen + codes * torch.arange(nc, device=chosen.device)[:, None], table.flatten(0, 1))


class Messages(NamedTuple):
    """Mean over neighbours, as a sparse matrix and its transpose, and as sorted edges for torch-scatter."""
    matrix: torch.Tensor         # (n, n) sparse CSR; row = receiver, values 1 / number of senders
    transposed: torch.Tensor     # (n, n) sparse CSR, for the backward pass
    sender: torch.Tensor         # (m,) int64, ordered by receiver
    pointer: torch.Tensor        # (n + 1,) int64; where each receiver's senders begin
    reach: int                   # this node and all later ones send nothing


def mean_messages(edge_index, n, device="cpu"):
    """Prepare the mean over a node's senders; row [u, v] of `edge_index` (m, 2) sends from u to v -> Messages.

    Parallel edges count as often as they occur. A node without senders receives zeros.
    """
    sender, receiver = torch.tensor(np.ascontiguousarray(edge_index.T, np.int64), device=device)
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


class Sage(nn.Module):
    """GraphSAGE with mean aggregation: one weight matrix for the node, one for each direction of messages."""

    def __init__(self, width_in, width_out, directions, how):
        super().__init__()
        self.own = nn.Linear(width_in, width_out)
        self.neighbours = nn.ModuleList(nn.Linear(width_in, width_out, bias=False) for _ in range(directions))
        self.how = how

    def forward(self, x, messages):
        out = self.own(x)
        for linear, one in zip(self.neighbours, messages):
            # the mean is linear, so it may come after the projection, whose output is never wider than its input
            out = out + aggregate(one, linear(x), self.how)
        return out


def aggregate(messages, x, how="sparse"):
    """Average the senders of each node; x (n, ...). `how`: "sparse" (a product) or "scatter" (torch-scatter)."""
    flat = x.reshape(len(x), -1)
    if how == "scatter":
        from torch_scatter import segment_csr
        mean = segment_csr(flat[messages.sender], messages.pointer, reduce="mean")
    else:
        mean = SparseMean.apply(messages.matrix, messages.transposed, flat)
    return mean.reshape(x.shape)


def fastest_aggregation(messages, width, repeats=5):
    """Time both ways of message passing, forward and backward, on the given graph and device.

    `width` is the number of values per node: configurations per step times network width. Returns "sparse" or
    "scatter", for the settings of a model, and {way: its best seconds in `repeats` trials} of each way that could run.
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


class SparseMean(torch.autograd.Function):
    """matrix @ x with the transpose at hand, which autograd would otherwise build in every step."""

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


def fresh(like, *shape):
    """An empty tensor of the type of `like`; on CPU in memory that an earlier one no longer needs, if any fits."""
    # the first write to new memory takes several times as long as later writes; NumPy asks Linux for huge pages
    if like.device.type != "cpu":
        return like.new_empty(shape)
    size, spare = math.prod(shape) * like.element_size(), spare_memory()
    fits = [place for place, memory in enumerate(spare) if size <= len(memory) <= 2 * size]
    if not fits:
        spare.clear()                    # so that spare memory never adds up over graphs of many sizes
    memory = spare.pop(fits[0]) if fits else np.empty(size, np.uint8)
    array = memory[:size]
    weakref.finalize(array, spare.append, memory).atexit = False             # the tensor keeps the array alive
    return torch.from_numpy(array).view(like.dtype).view(shape)


@cache
def spare_memory():
    """Memory that tensors of `fresh` no longer need."""
    return []
