"""Work on tensors of nodes, (n, k, width), a few nodes at a time, and instance norm made of it.

A step on a whole such tensor reads and writes memory; on a block of nodes it stays in a core's cache. Threads take
whole blocks, so that they meet once for all steps and not once for each; how many there are changes no result. Half
types are computed with in float32.
"""
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import torch

CPU_BLOCK, GPU_BLOCK = 1 << 18, 1 << 24      # values of x in a block: 1 MiB, of which a shared cache holds many; 64 MiB
MOST_THREADS = 8                 # more would wait for Python's lock: an operation on a block takes some 0.1 ms
NORM_EPS = 1e-5                  # of nn.InstanceNorm1d


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
            for place in todo:   # whoever is free takes the next block
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
                one.result()     # raises what went wrong there
    finally:
        torch.set_num_threads(threads)
    return results


def added_up(results):
    """Sums over the blocks of the first, second, ... tensor of each result; into those of the first."""
    for result in results[1:]:
        for total, tensor in zip(results[0], result):
            total += tensor
    return results[0]


def precise(x):
    """The type to compute in: float32 for a half type."""
    return torch.promote_types(x.dtype, torch.float32)


def zeros(x, *shape):
    """Zeros to sum values of x up in."""
    return torch.zeros(shape, dtype=precise(x), device=x.device)


def biased_matmul(bias, a, b):
    """bias + a @ b, multiplied in the type of b."""
    return torch.addmm(bias, a, b) if a.dtype == b.dtype else (a.to(b.dtype) @ b).to(a.dtype).add_(bias)


def add_matmul(onto, a, b):
    """onto + a @ b, in place, multiplied in the type of b."""
    return onto.addmm_(a, b) if onto.dtype == b.dtype else onto.add_(a.to(b.dtype) @ b)


def norm_of(x):
    """Instance norm over the nodes of x (n, k, width) as x * factor + shift -> factor, shift, each (k, width)."""
    def of_block(s):
        mean = x[s].mean(0, dtype=precise(x))
        return len(x[s]), mean, (x[s] - mean).square_().sum(0)

    def merged(one, other):      # Chan et al. 1983; a sum of squares less the square of a sum would cancel
        (n, mean, squares), (m, other_mean, other_squares) = one, other
        step = other_mean - mean
        squares = (squares + other_squares).addcmul_(step, step, value=n * m / (n + m))
        return n + m, mean.add(step, alpha=m / (n + m)), squares
    n, mean, squares = reduce(merged, over_nodes(of_block, x))
    factor = torch.rsqrt(squares / n + NORM_EPS)
    return factor, -mean * factor


def normed(x, s, norm):
    """Nodes `s` of x in the type to compute in, through `norm` if given."""
    block = x[s].to(precise(x))
    return block if norm is None else torch.addcmul(norm[1], block, norm[0])


def norm_backward(grad, x, norm, total=None, inner=None, other=None):
    """Turn a gradient of the normed x into one of x, in place, and add `other` that reached x elsewhere."""
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
