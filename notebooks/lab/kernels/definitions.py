"""Kernels of neural networks to tune: their shapes, their results by NumPy, their functions in TVM.

Only `kernel_function` needs TVM.
"""
from math import factorial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import scipy.special

EPSILON = 1e-5                   # of layer norm, PyTorch's default
TERMS = 7                        # of Taylor's polynomial of e**x: for |x| below 0.35 the next one is below 1e-8


class Kernel(NamedTuple):
    """One computation on float32 tensors of fixed shape, row-major, images as height x width x channels."""
    name: str
    kind: str                # "matmul", "conv2d", "depthwise", "softmax" or "layer norm"
    sizes: tuple             # (batch,) rows, columns, depth | height, width, channels, (features,) taps | rows, columns
    stride: int = 1          # of a convolution, in both directions
    padding: int | None = None     # zeros on each side of an image; None: half of the taps, rounded down


KERNELS = MappingProxyType({name: Kernel(name, kind, sizes) for name, kind, sizes in (
    ("matmul 512x512x512", "matmul", (512, 512, 512)),
    ("matmul 64x1024x1024", "matmul", (64, 1024, 1024)),
    ("batch matmul 12x128x128x64", "matmul", (12, 128, 128, 64)),             # scores of 12 attention heads
    ("conv2d 3x3 56x56x64", "conv2d", (56, 56, 64, 64, 3)),                   # two layers of a ResNet
    ("conv2d 3x3 14x14x256", "conv2d", (14, 14, 256, 256, 3)),
    ("depthwise 3x3 112x112x64", "depthwise", (112, 112, 64, 3)),             # of a MobileNet
    ("layer norm 512x768", "layer norm", (512, 768)),                         # 512 tokens of a small transformer
    ("softmax 512x768", "softmax", (512, 768)))})


def input_shapes(kernel):
    """Shapes of the inputs: two factors; an image and its taps; or a matrix, for layer norm also gain and bias."""
    kind, sizes = kernel.kind, kernel.sizes
    if kind == "matmul":
        *batch, rows, columns, depth = sizes
        return (*batch, rows, depth), (*batch, depth, columns)
    if kind in ("conv2d", "depthwise"):
        return sizes[:3], (sizes[-1], sizes[-1], *sizes[2:-1])
    return (sizes, sizes[1:], sizes[1:]) if kind == "layer norm" else (sizes,)


def kernel_inputs(kernel, rng):
    """Random inputs of a kernel, float32, standard normal."""
    return [rng.standard_normal(shape, dtype=np.float32) for shape in input_shapes(kernel)]


def kernel_result(kernel, inputs):
    """The output of a kernel by NumPy, float32: every schedule is checked against it."""
    kind, x = kernel.kind, inputs[0]
    if kind == "matmul":
        return x @ inputs[1]
    if kind in ("conv2d", "depthwise"):
        taps, p = kernel.sizes[-1], image_padding(kernel)
        around = np.pad(x, ((p, p), (p, p), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(around, (taps, taps), axis=(0, 1))
        windows = windows[::kernel.stride, ::kernel.stride]
        return np.einsum("hwcab,abco->hwo" if kind == "conv2d" else "hwcab,abc->hwc", windows, inputs[1],
                         optimize=True)
    if kind == "softmax":
        return scipy.special.softmax(x, axis=1)
    apart = x - x.mean(axis=1, keepdims=True)
    return apart / np.sqrt((apart * apart).mean(axis=1, keepdims=True) + np.float32(EPSILON)) * inputs[1] + inputs[2]


def image_padding(kernel):
    """Zeros on each side of a convolution's image."""
    return kernel.sizes[-1] // 2 if kernel.padding is None else kernel.padding


def kernel_axes(kernel):
    """Sizes of the output's dimensions, and of the dimensions summed over."""
    kind, sizes = kernel.kind, kernel.sizes
    if kind == "matmul":
        return sizes[:-1], sizes[-1:]
    if kind in ("conv2d", "depthwise"):
        *image, taps = sizes
        high, wide = ((n + 2 * image_padding(kernel) - taps) // kernel.stride + 1 for n in image[:2])
        return (high, wide, image[-1]), (taps, taps, *image[2:-1])
    return sizes, sizes[1:]


def kernel_function(kernel):
    """A kernel as a function of tensors in TVM, not scheduled; its arguments are the inputs and the output."""
    from tvm import te
    inputs = [te.placeholder(shape, "float32", name) for shape, name in zip(input_shapes(kernel), "xwb")]
    spatial, reduced = kernel_axes(kernel)
    over = [te.reduce_axis((0, n), f"r{i}") for i, n in enumerate(reduced)]
    x, *others = inputs
    if kernel.kind == "matmul":
        out = te.compute(spatial, lambda *i: te.sum(x(*i[:-1], *over) * others[0](*i[:-2], *over, i[-1]), over), "out")
    elif kernel.kind in ("conv2d", "depthwise"):
        high, wide, channels, *_ = kernel.sizes
        p, stride = image_padding(kernel), kernel.stride
        pad = te.compute((high + 2 * p, wide + 2 * p, channels), lambda i, j, c: te.if_then_else(
            te.all(i >= p, i < high + p, j >= p, j < wide + p), x[i - p, j - p, c], 0.0), "pad") if p else x
        a, b, *c = over
        out = te.compute(spatial, lambda i, j, o: te.sum(
            pad(i * stride + a, j * stride + b, *(c or [o])) * others[0](a, b, *c, o), over), "out")
    elif kernel.kind == "softmax":
        again = te.reduce_axis((0, spatial[1]), "again")
        largest = te.compute(spatial[:1], lambda i: te.max(x[i, over[0]], over[0]), "largest")
        powers = te.compute(spatial, lambda i, j: _exponential(x[i, j] - largest[i]), "powers")
        total = te.compute(spatial[:1], lambda i: te.sum(powers[i, again], again), "total")
        out = te.compute(spatial, lambda i, j: powers[i, j] / total[i], "out")
    else:
        n, again = spatial[1], te.reduce_axis((0, spatial[1]), "again")
        total = te.compute(spatial[:1], lambda i: te.sum(x[i, over[0]], over[0]), "total")
        squares = te.compute(spatial[:1], lambda i: te.sum(x[i, again] * x[i, again], again), "squares")
        out = te.compute(spatial, lambda i, j: (x[i, j] - total[i] / n) * te.rsqrt(
            squares[i] / n - total[i] / n * (total[i] / n) + EPSILON) * others[0][j] + others[1][j], "out")
    return te.create_prim_func([*inputs, out])


def _exponential(x):
    """e**x in TVM for x <= 0, float32, with a relative error below 5e-6: 2**n times Taylor's polynomial of the rest.

    TVM leaves `te.exp` to a function of the C library, which takes one number at a time; these steps are vector
    instructions. Below -87, where float32 loses digits, the result is that of -87, about 1e-38.
    """
    from tvm import te, tirx
    x = te.max(x, tirx.const(-87.0, "float32"))
    n = te.floor(x * np.float32(1 / np.log(2)) + np.float32(0.5))
    rest = x - n * np.float32(np.log(2))
    total = tirx.const(1 / factorial(TERMS), "float32")
    for k in range(TERMS - 1, -1, -1):
        total = total * rest + np.float32(1 / factorial(k))
    return total * tirx.reinterpret("float32", (n.astype("int32") + 127) << 23)
