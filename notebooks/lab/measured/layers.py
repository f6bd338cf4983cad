"""Layers of networks in plain JAX, and how a network becomes a function of its weights.

A network is a function `network(w, *inputs)`. Wherever it needs a weight, it calls `w(*shape)`. The first time, this
draws the weight; afterwards, the same call returns the weight from the list that the function takes.
"""
import numpy as np

try:
    import jax
    import jax.numpy as jnp
    from jax import lax
except ImportError:              # the programs can be listed without JAX
    jax = jnp = lax = None

ORDERS = {"NHWC": ("NHWC", "HWIO", "NHWC"), "NCHW": ("NCHW", "OIHW", "NCHW")}


def inference(network, rng, *inputs):
    """A network as a function (weights, *inputs) -> outputs, and its arguments."""
    made = []

    def draw(*shape):
        fan_in = np.prod(shape[:-1]) if len(shape) > 1 else 1
        made.append((rng.normal(size=shape) / fan_in ** 0.5).astype(np.float32))
        return jnp.asarray(made[-1])

    def function(weights, *inputs):
        left = iter(weights)
        return network(lambda *shape: next(left), *inputs)
    jax.eval_shape(lambda *inputs: network(draw, *inputs), *inputs)
    return function, (made, *inputs)


def training(network, rng, *inputs):
    """A step of gradient descent of a network as a function (weights, *inputs) -> weights, and its arguments."""
    function, args = inference(network, rng, *inputs)

    def step(weights, *inputs):
        slopes = jax.grad(lambda weights: (function(weights, *inputs) ** 2).mean())(weights)
        return [w - 0.01 * slope for w, slope in zip(weights, slopes)]
    return step, args


def normal(rng, *shape):
    """Numbers as inputs."""
    return rng.normal(size=shape).astype(np.float32)


def relu(x):
    """Numbers above 0, and 0 for all others."""
    return jax.nn.relu(x)


def gelu(x):
    """A smooth relu."""
    return jax.nn.gelu(x)


def dense(w, x, width, turned=False):
    """A fully connected layer; its weights are stored as (in, out), or `turned` as (out, in)."""
    return x @ w(width, x.shape[-1]).T if turned else x @ w(x.shape[-1], width)


def conv(w, x, width, taps=3, stride=1, order="NHWC", groups=1, padding="SAME"):
    """A convolution of images, in one of ORDERS."""
    given = x.shape[order.index("C")] // groups
    kernel = w(taps, taps, given, width) if order == "NHWC" else w(width, given, taps, taps)
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=ORDERS[order],
                                    feature_group_count=groups)


def pooled(x, taps=2, order="NHWC"):
    """Maxima of squares of an image."""
    window = tuple(taps if d in "HW" else 1 for d in order)
    return lax.reduce_window(x, -np.inf, lax.max, window, window, "SAME")


def flat(x, order="NHWC"):
    """The mean over an image's positions."""
    return x.mean((order.index("H"), order.index("W")))


def normed(w, x, axis=-1):
    """Layer norm along an axis, or batch norm along several, with scale and shift along the last of `w`."""
    mean = x.mean(axis, keepdims=True)
    wide = ((x - mean) ** 2).mean(axis, keepdims=True)
    return (x - mean) * lax.rsqrt(wide + 1e-5) * (1 + w(x.shape[-1])) + w(x.shape[-1])


def image_norm(w, x, order="NHWC"):
    """Batch norm of images in one of ORDERS."""
    axes = tuple(place for place, d in enumerate(order) if d != "C")
    shape = tuple(-1 if d == "C" else 1 for d in order)
    width, mean = x.shape[order.index("C")], x.mean(axes, keepdims=True)
    wide = ((x - mean) ** 2).mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(wide + 1e-5) * (1 + w(width).reshape(shape)) + w(width).reshape(shape)


def attention(w, x, heads, causal=False, turned=False, memory=None, keys=None):
    """Attention with `heads` queries and `keys` heads of keys and values, to itself or to a memory."""
    batch, length, width = x.shape
    memory, keys, size = x if memory is None else memory, keys or heads, width // heads
    q = dense(w, x, width, turned).reshape(batch, length, keys, heads // keys, size)
    k, v = (dense(w, memory, keys * size, turned).reshape(batch, -1, keys, size) for _ in "kv")
    scores = jnp.einsum("bqghd,bkgd->bghqk", q, k) / size ** 0.5
    if causal:
        scores = jnp.where(np.tri(length, k.shape[1], k.shape[1] - length, dtype=bool), scores, -1e9)
    mixed = jnp.einsum("bghqk,bkgd->bqghd", jax.nn.softmax(scores), v)
    return dense(w, mixed.reshape(batch, length, width), width, turned)
