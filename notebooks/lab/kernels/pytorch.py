"""The same kernels by PyTorch: what a user has unsearched.

Its official package calls MKL for matmuls and dense layers. With one thread, it also calls MKL for 1x1 convolutions
with stride 1 and for a few small ones, and oneDNN for the other convolutions; softmax and layer norm are PyTorch's own
loops. notebooks/kernels_libraries.csv has what each layer calls.
"""
import time

import torch
from torch.nn import functional

from lab.kernels.definitions import EPSILON, image_padding


def pytorch_calls(kernel, inputs):
    """[(a function that runs the kernel, a function that brings its output into the kit's form)].

    `inputs` are tensors as of `kernel_inputs`. A layer has one or two usual forms: an image in either memory format,
    the weights of a dense layer in either order. Weights are brought into the form of a layer beforehand.
    """
    x, *others = inputs
    if kernel.kind == "matmul":
        calls = [lambda: torch.matmul(x, others[0])]
        if x.ndim == 2:
            weight = others[0].T.contiguous()
            calls.append(lambda: functional.linear(x, weight))
        return [(call, torch.Tensor.contiguous) for call in calls]
    if kernel.kind in ("softmax", "layer norm"):
        call = ((lambda: torch.softmax(x, 1)) if kernel.kind == "softmax" else
                (lambda: functional.layer_norm(x, x.shape[1:], *others, EPSILON)))
        return [(call, torch.Tensor.contiguous)]
    taps, channels = kernel.sizes[-1], kernel.sizes[2]
    order, groups = ((3, 2, 0, 1), 1) if kernel.kind == "conv2d" else ((2, 0, 1), channels)
    weight = others[0].permute(order).reshape(-1, channels // groups, taps, taps)

    def call(memory):
        image, taken = (tensor.contiguous(memory_format=memory) for tensor in (x.permute(2, 0, 1)[None], weight))
        return lambda: functional.conv2d(image, taken, None, kernel.stride, image_padding(kernel), 1, groups)
    return [(call(memory), lambda out: out[0].permute(1, 2, 0).contiguous())
            for memory in (torch.contiguous_format, torch.channels_last)]


@torch.inference_mode()
def run_seconds(call, number, repeat):
    """Mean seconds of `number` calls, [repeat of them]."""
    found = []
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(number):              # each output is freed at once, as in a program; kept ones cost new memory
            call()
        found.append((time.perf_counter() - start) / number)
    return found
