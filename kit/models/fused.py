"""The layers of `LayoutGNN`, each as one step of autograd that keeps only its input.

A plain network writes about sixty intermediate (n, k, width) tensors to memory, reads them back, and keeps most of
them for the backward pass. Here a block of nodes goes through all steps of a layer at once, and the backward pass
computes the intermediate values again.

Under autocast the input has a half type. All tensors in memory and all matrix products then have this type;
statistics, sums and element-wise steps are float32.
"""
import random
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from kit.models.layers import add_product, aggregate, fresh

CPU_BLOCK, GPU_BLOCK = 1 << 18, 1 << 24      # values of x per block: 1 MiB, so that a shared cache holds many; 64 MiB
MOST_THREADS = 8                 # more would wait for Python's lock: an operation on a block takes about 0.1 ms
NORM_EPS = 1e-5                  # of nn.InstanceNorm1d


class SageLayer(torch.autograd.Function):
    """Instance norm over the nodes, then GraphSAGE: one matrix for the node, one for each of `messages`.

    forward(x (n, k, width), norm, messages, how, bias, own, *neighbours) -> x, (n, k, out). x is returned for a
    shortcut, so that the shortcut's gradient is added while the gradient of x is written.
    """

    @staticmethod
    def forward(ctx, x, norm, messages, how, bias, own, *neighbours):
        ctx.set_materialize_grads(False)
        ctx.norm, ctx.messages = norm_of(x) if norm else None, messages
        ctx.save_for_backward(x, own, *neighbours)
        low, low_bias = [w.T.to(x.dtype) for w in (own, *neighbours)], bias.to(x.dtype)
        # the mean is linear, so it may come after the projection, whose output is never wider than its input
        out, *projected = [fresh(x, *x.shape[:2], len(own)) for _ in low]

        def work(s):
            y = normed(x, s, ctx.norm).flatten(0, 1).to(x.dtype)
            torch.addmm(low_bias, y, low[0], out=out[s].flatten(0, 1))
            for one, target, w in zip(messages, projected, low[1:]):
                if s.start < one.reach:
                    torch.mm(y, w, out=target[s].flatten(0, 1))
        over_nodes(work, x)
        for one, each in zip(messages, projected):
            if how == "sparse":
                add_product(out.flatten(1), one.matrix, each.flatten(1))
            else:
                out += aggregate(one, each, how)
        return x, out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_shortcut, grad):
        x, *weights = ctx.saved_tensors
        if grad is None:
            return grad_shortcut, *[None] * (4 + len(weights))
        low, grad_x, grad = [w.to(x.dtype) for w in weights], fresh(x, *x.shape), grad.contiguous()
        grads, reaches = [grad, *(fresh(grad, *grad.shape) for _ in ctx.messages)], [len(x)]
        for one, each in zip(ctx.messages, grads[1:]):
            add_product(each.flatten(1), one.transposed, grad.flatten(1), keep=0)
            reaches.append(one.reach)

        def work(s):
            y = normed(x, s, ctx.norm)
            rows, to_rows = y.flatten(0, 1).to(x.dtype), grad_x[s].flatten(0, 1)
            grad_weights = [torch.zeros_like(w, dtype=y.dtype) for w in weights]
            for reach, w, each, grad_w in zip(reaches, low, grads, grad_weights):
                if s.start < reach:
                    add_matmul(grad_w, each[s].flatten(0, 1).T, rows)
                    torch.addmm(to_rows, each[s].flatten(0, 1), w, beta=int(each is not grad), out=to_rows)
            sums = [grad[s].sum((0, 1), dtype=y.dtype), *grad_weights]
            return sums if ctx.norm is None else [*sums, grad_x[s].sum(0, dtype=y.dtype), y.mul_(grad_x[s]).sum(0)]
        sums = added_up(over_nodes(work, x))
        count = 1 + len(weights)
        norm_backward(grad_x, x, ctx.norm, *sums[count:], other=grad_shortcut)
        return grad_x, None, None, None, *sums[:count]


class BlockEnd(nn.Module):
    """The weights of `GatedBlock`, which ends each block of the network; x (n, k, out) -> (n, k, width)."""

    def __init__(self, width, reduction, attends):
        super().__init__()
        hidden = max(1, width // reduction) if reduction else 0
        self.squeeze = nn.Linear(width, hidden) if reduction else None
        self.excite = nn.Linear(hidden, width) if reduction else None
        self.temperature = nn.Parameter(torch.tensor(0.5)) if attends else None

    def forward(self, x, shortcut=None, norm=False, dropout=0.0):
        gate = (None,) * 4
        if self.squeeze is not None:
            gate = self.squeeze.weight, self.squeeze.bias, self.excite.weight, self.excite.bias
        return GatedBlock.apply(x, shortcut, norm, dropout, self.temperature, *gate)


class GatedBlock(torch.autograd.Function):
    """Instance norm, squeeze-and-excite, attention, shortcut, GELU, dropout; all but GELU may be left out.

    forward(x (n, k, out), shortcut (n, k, width) or None, norm, dropout, temperature or None, then weight and bias of
    squeeze and of excite or four Nones) -> (n, k, width), width twice `out` with a temperature.
    """

    @staticmethod
    def forward(ctx, x, shortcut, norm, dropout, temperature, *gate):
        ctx.norm, ctx.dropout = norm_of(x) if norm else None, dropout
        ctx.seed = int(torch.randint(1 << 62, ())) if dropout else None      # masks are drawn again, not kept
        inputs = x, shortcut, temperature, *gate
        ctx.save_for_backward(*inputs)
        out = fresh(x, *x.shape[:2], x.shape[2] * (1 if temperature is None else 2))

        def work(s):
            after = F.gelu(GatedBlock.before_gelu(ctx, inputs, s)[-1])
            out[s] = after.mul_(kept(ctx.seed, s, after, dropout)) if dropout else after
        over_nodes(work, x)
        return out

    @staticmethod
    def before_gelu(ctx, inputs, s):
        """All steps up to GELU for the nodes `s`; returns the values that the backward pass needs, the sum last."""
        x, shortcut, temperature, squeeze, squeeze_bias, excite, excite_bias = inputs
        y = z = normed(x, s, ctx.norm)
        hidden = gate = None
        if squeeze is not None:
            hidden = biased_matmul(squeeze_bias, y.flatten(0, 1), squeeze.T.to(x.dtype)).relu_()
            gate = biased_matmul(excite_bias, hidden, excite.T.to(x.dtype)).sigmoid_().view_as(y)
            z = y * gate
        if temperature is None:
            return y, hidden, gate, z, None, None, z if shortcut is None else z + shortcut[s]
        score = z / temperature
        share = torch.softmax(score, dim=1)                  # over the configurations
        if shortcut is None:
            return y, hidden, gate, z, score, share, torch.cat([z, z * share], dim=2)
        both, old = torch.empty_like(shortcut[s], dtype=z.dtype), shortcut[s].to(z.dtype)
        torch.add(old[..., :z.shape[2]], z, out=both[..., :z.shape[2]])
        torch.addcmul(old[..., z.shape[2]:], z, share, out=both[..., z.shape[2]:])
        return y, hidden, gate, z, score, share, both

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        inputs = x, shortcut, temperature, squeeze, _, excite, _ = ctx.saved_tensors
        grad_x, grad_shortcut = fresh(x, *x.shape), None if shortcut is None else fresh(x, *shortcut.shape)

        def work(s):
            y, hidden, gate, z, score, share, both = GatedBlock.before_gelu(ctx, inputs, s)
            sums, grad_z = [], grad[s].to(z.dtype)
            if ctx.dropout:
                grad_z = kept(ctx.seed, s, both, ctx.dropout).mul_(grad_z)
            grad_z = torch.ops.aten.gelu_backward(grad_z, both)
            if shortcut is not None:
                grad_shortcut[s] = grad_z
            if temperature is not None:
                alone, weighted = grad_z.split(z.shape[2], dim=2)
                grad_score = torch.ops.aten._softmax_backward_data(weighted * z, share, 1, share.dtype)
                sums.append(torch.dot(grad_score.flatten(), score.flatten()) / -temperature)
                grad_z = torch.addcmul(alone, weighted, share).addcdiv_(grad_score, temperature)
            if squeeze is not None:
                grad_gate = torch.ops.aten.sigmoid_backward(grad_z * y, gate).flatten(0, 1)
                grad_hidden = add_matmul(torch.zeros_like(hidden), grad_gate, excite.to(x.dtype))
                grad_hidden = torch.ops.aten.threshold_backward(grad_hidden, hidden, 0)
                sums += [grad_hidden.T @ y.flatten(0, 1), grad_hidden.sum(0), grad_gate.T @ hidden, grad_gate.sum(0)]
                grad_z.mul_(gate)
                add_matmul(grad_z.flatten(0, 1), grad_hidden, squeeze.to(x.dtype))
            grad_x[s] = grad_z
            return sums if ctx.norm is None else [*sums, grad_z.sum(0), y.mul_(grad_z).sum(0)]
        sums = iter(added_up(over_nodes(work, x)))
        grads = [None if p is None else next(sums) for p in inputs[2:]]
        return norm_backward(grad_x, x, ctx.norm, *sums), grad_shortcut, None, None, *grads


def kept(seed, s, like, dropout):
    """Factors of dropout for nodes `s`: 0 or 1 / share kept; a draw of 64 bits is cut into eight of a byte."""
    draws = torch.empty(-(-like.numel() // 8), dtype=torch.int64, device=like.device)
    draws.random_(-1 << 63, None, generator=torch.Generator(like.device).manual_seed(seed + s.start))
    draws = draws.view(torch.int8)[:like.numel()].view_as(like)
    # how many of 256 values are dropped, rounded up or down at random per block: on average the exact share
    dropped = int(256 * dropout + random.Random(seed + s.start).random())
    # the comparison writes numbers: a detour by bool takes seven times as long
    return torch.ge(draws, dropped - 128, out=torch.empty_like(like)).mul_(1 / (1 - dropout))


def norm_of(x):
    """Instance norm over the nodes of x (n, k, width) as x * factor + shift -> factor, shift, each (k, width)."""
    def of_block(s):
        mean = x[s].mean(0, dtype=precise(x))
        return len(x[s]), mean, (x[s] - mean).square_().sum(0)

    def merged(one, other):      # Chan et al. 1983; a sum of squares minus the square of a sum loses digits
        (n, mean, squares), (m, other_mean, other_squares) = one, other
        step = other_mean - mean
        squares = (squares + other_squares).addcmul_(step, step, value=n * m / (n + m))
        return n + m, mean.add(step, alpha=m / (n + m)), squares
    n, mean, squares = reduce(merged, over_nodes(of_block, x))
    factor = torch.rsqrt(squares / n + NORM_EPS)
    return factor, -mean * factor


def normed(x, s, norm):
    """Nodes `s` of x in the type to compute in, normalised by `norm` if given."""
    block = x[s].to(precise(x))
    return block if norm is None else torch.addcmul(norm[1], block, norm[0])


def norm_backward(grad, x, norm, total=None, inner=None, other=None):
    """Turn a gradient by the normed x into one by x, in place, and add `other`, the gradient by other ways."""
    # total, inner (k, width): the gradient summed over nodes, alone and times the normed x
    if norm is not None:
        factor, shift = norm
        slope, offset = inner * factor.square() / -len(x), (total + inner * shift) * factor / -len(x)

    def work(s):
        one = grad[s]
        if norm is not None:
            one = torch.addcmul(offset, x[s].to(offset.dtype), slope).addcmul_(one, factor)
        grad[s] = one if other is None else one + other[s]
    if norm is not None or other is not None:
        over_nodes(work, x)
    return grad


def over_nodes(work, x):
    """Call `work(s)` for blocks `s`, slices of the nodes of x (n, ...), in several threads -> results in order."""
    n, threads = len(x), torch.get_num_threads()
    size = max(1, (GPU_BLOCK if x.is_cuda else CPU_BLOCK) * n // max(1, x.numel()))
    blocks = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    todo, results = iter(range(len(blocks))), [None] * len(blocks)
    inference = torch.is_inference_mode_enabled()

    def run(alone=True):         # gradients, inference, autocast and the number of threads are states of a thread
        if not alone:
            torch.set_num_threads(1)
        with torch.inference_mode(inference), torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            for place in todo:   # a thread that is free takes the next block
                results[place] = work(blocks[place])

    helpers = 0 if x.is_cuda else min(threads, MOST_THREADS, len(blocks)) - 1
    if helpers < 1:
        run()
        return results
    try:
        with ThreadPoolExecutor(helpers) as pool:
            helping = [pool.submit(run, alone=False) for _ in range(helpers)]
            run(alone=False)
            for one in helping:
                one.result()     # raises an error of that thread
    finally:
        torch.set_num_threads(threads)
    return results


def added_up(results):
    """Add up the first tensors of all results, the second ones and so on, in place in the first result."""
    for result in results[1:]:
        for total, tensor in zip(results[0], result):
            total += tensor
    return results[0]


def precise(x):
    """The type to compute in: float32 for a half type."""
    return torch.promote_types(x.dtype, torch.float32)


def biased_matmul(bias, a, b):
    """bias + a @ b, multiplied in the type of b."""
    return torch.addmm(bias, a, b) if a.dtype == b.dtype else (a.to(b.dtype) @ b).to(a.dtype).add_(bias)


def add_matmul(onto, a, b):
    """onto + a @ b, in place, multiplied in the type of b."""
    return onto.addmm_(a, b) if onto.dtype == b.dtype else onto.add_(a.to(b.dtype) @ b)
