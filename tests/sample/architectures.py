"""The networks of the sample data: convolutional nets (xla) and transformers (nlp), forward and backward.

Widths, depths, batch and image sizes, element types and styles vary, so that test programs differ from training
programs. Neighbouring configurable nodes are rarely in one group, and mostly one elementwise operation stands between
them. So neither node alone shows whether the two layouts agree.
"""
import numpy as np

from kit.pad import DIMENSIONS
from sample.programs import ACTIVATION, Program

MATRIX = (1, 0)                                  # the pair of a (rows, columns) tensor
PLAIN, HEADED, CUBIC = (2, 1), (3, 1), (2, 0)    # of (batch, length, model), (b, l, heads, each), (model, h, e)
IMAGES, WIDTHS = (16, 24, 32, 48, 64, 96, 128), (32, 48, 64, 96, 128, 160)       # convolutional: batch sizes, widths
TEXTS, EACH = (4, 8, 16, 32), (32, 48, 64, 96, 128)                              # transformers: batch, width of a head


def convolutional_net(rng, nodes, resize=None):
    """A residual or plain image classifier of about `nodes` nodes with its backward pass, as a `Program`.

    `resize`: a generator that draws another batch size and width. Then it is a relative of the network that `rng` alone
    gives: all else stays the same.
    """
    p = Program(rng, rng.choice(["f32", "bf16"]))
    batch, size = rng.choice(IMAGES), rng.choice([24, 28, 32, 40, 48, 56])
    width, bias, tied = rng.choice(WIDTHS), rng.random() < 0.25, rng.random() < 0.3
    batch, width = other_size(resize, IMAGES, batch), other_size(resize, WIDTHS, width)
    residual, backwards, layer = rng.random() < 0.4, [], 0
    x = p.add("get-tuple-element", (batch, size, size, 4), [p.inputs])
    x, back = p.conv_layer(x, width, 3, 1, "stem", bias, tied)
    backwards.append(back)
    while len(p.rows) < 0.42 * nodes:
        if residual:
            inner, skip, block = width // 2, x, []
            for kind, features, taps in (("reduce", inner, 1), ("spatial", inner, 3), ("expand", width, 1)):
                x, back = p.conv_layer(x, features, taps, 1, kind, bias, tied, kind == "expand")
                block.append(back)
            x = p.each("add", skip, x)
            backwards.append(lambda grad, block=block: p.each("add", grad, chain_rule(block, grad)))
            layer += 2
        else:
            x, back = p.conv_layer(x, width, int(rng.choice([1, 3, 3, 5])), 1, f"layer{layer % 4}", bias, tied)
            backwards.append(back)
            layer += 1
        if layer % 4 == 0 and p.shapes[x][1] > 8:
            width = int(width * rng.choice([1, 1.5, 2]))
            if rng.random() < 0.3:
                x, back = p.pool_layer(x)
                backwards.append(back)
            x, back = p.conv_layer(x, width, 3, 2, "stride", bias, tied)
            backwards.append(back)
    images, flat = p.shapes[x], int(np.prod(p.shapes[x][1:]))
    x = p.reshape(x, (batch, flat), "reshape", (MATRIX, ACTIVATION))
    backwards.append(lambda grad: p.reshape(grad, images, "reshape/back", (ACTIVATION, MATRIX)))
    classes = int(rng.choice([10, 100, 200]))
    x, back = p.dense_layer(x, p.weight((flat, classes), MATRIX), (batch, classes), "head", (MATRIX,) * 3, True)
    chain_rule([*backwards, back], p.each("subtract", x, p.weight((batch, classes))))
    return p.finish(f"{'residual' if residual else 'plain'}_net_batch_{batch}_{p.dtype}")


def other_size(resize, choices, one):
    """One of the choices, or any other one that the generator `resize` draws."""
    return one if resize is None else resize.choice([choice for choice in choices if choice != one])


def transformer(rng, nodes, resize=None):
    """An encoder of about `nodes` nodes, in 4 of 5 cases with its backward pass, as a `Program`.

    `resize` as for `convolutional_net`; the width is that of a head.
    """
    return _Transformer(rng, nodes, resize).grow(nodes)


class _Transformer:
    """The drawn sizes of one transformer, and its two kinds of layer."""

    def __init__(self, rng, nodes, resize):
        self.p = Program(rng, rng.choice(["f32", "bf16"]))
        self.heads, self.each = int(rng.choice([6, 12])), int(rng.choice(EACH))
        self.batch, self.length = int(rng.choice(TEXTS)), int(rng.choice([64, 96, 128, 192, 256]))
        self.batch, self.each = int(other_size(resize, TEXTS, self.batch)), int(other_size(resize, EACH, self.each))
        self.model = self.heads * self.each
        self.wide = int(self.model * rng.choice([1, 2, 4]))
        self.flat, self.tied, self.bias = rng.random() < 0.5, rng.random() < 0.3, rng.random() < 0.25
        self.train, self.normed = nodes > 80 and rng.random() < 0.8, rng.random() < 0.5
        self.tokens = self.batch, self.length, self.model
        self.split = self.batch, self.length, self.heads, self.each
        self.joined = self.batch * self.length, self.model

    def project(self, x):
        """Tokens -> queries, keys or values of each head."""
        p = self.p
        y, back = p.dense_layer(x, p.weight((self.model, self.heads, self.each), CUBIC), self.split, "project",
                                (HEADED, PLAIN, CUBIC), self.tied)
        if self.bias:
            y = p.each("add", p.spread(self.split, p.weight((self.heads, self.each)), (2, 3)), y)
        return y, back

    def swap(self, u, shape):
        """Exchange positions and heads."""
        return self.p.add("transpose", shape, [u], minor=(3, 1, 2, 0), columns={DIMENSIONS.start: [0, 2, 1, 3]})

    def attention(self, x):
        """Self-attention with all its heads."""
        p, last = self.p, (3, 2)
        (q, back_q), (k, back_k), (v, back_v) = (self.project(x) for _ in range(3))
        square = self.batch, self.heads, self.length, self.length
        context = self.batch, self.heads, self.length, self.each
        scores = p.dot(square, q, k, "scores", (last, HEADED, HEADED))
        top = p.spread(square, p.reduce(scores, [3], p.scalar_max), (0, 1, 2))
        power = p.each("exponential", p.each("subtract", top, scores))
        chance = p.each("divide", p.spread(square, p.reduce(power, [3], p.scalar_add), (0, 1, 2)), power)
        mixed = p.dot(context, chance, v, "context", (last, last, HEADED))
        swapped, w = self.swap(mixed, self.split), p.weight((self.heads, self.each, self.model), PLAIN)
        y, back_out = p.dense_layer(swapped, w, self.tokens, "merge", (PLAIN, HEADED, PLAIN), self.tied)

        def backward(grad):
            grad = self.swap(back_out(grad), context)
            of_v = p.dot(context, chance, grad, "value/back", (last, last, last))
            of_chance = p.dot(square, v, grad, "chance/back", (last, HEADED, last))
            mean = p.spread(square, p.reduce(of_chance, [3], p.scalar_add), (0, 1, 2))
            of_scores = p.each("multiply", chance, p.each("subtract", mean, of_chance))
            of_q = p.dot(context, k, of_scores, "scores/back", (last, HEADED, last))
            of_k = p.dot(context, q, of_scores, "scores/back", (last, HEADED, last))
            of_q, of_k, of_v = (self.swap(u, self.split) for u in (of_q, of_k, of_v))
            return p.each("add", p.each("add", back_q(of_q), back_k(of_k)), back_v(of_v))

        return y, backward

    def feed_forward(self, x):
        """Two dense layers with a rectifier between them, on all positions at once if `flat`."""
        p, wide = self.p, self.wide
        shape, pair = (self.joined, MATRIX) if self.flat else (self.tokens, PLAIN)
        inner, pairs = (*shape[:-1], wide), (pair, pair, MATRIX)
        x = self.flatten(x)
        y, back_in = p.dense_layer(x, p.weight((self.model, wide), MATRIX), inner, "expand", pairs, self.tied)
        floor = p.spread(inner)
        z = p.each("maximum", floor, y)
        mask = p.each("compare", floor, z, dtype="pred") if self.train else None
        out, back_out = p.dense_layer(z, p.weight((wide, self.model), MATRIX), shape, "contract", pairs, self.tied)
        out = self.unflatten(out)

        def backward(grad):
            grad = p.each("select", mask, floor, back_out(self.flatten(grad)))
            return self.unflatten(back_in(grad))

        return out, backward

    def flatten(self, u):
        """With `flat`, batch and positions become one dimension."""
        return self.p.reshape(u, self.joined, "flatten", (MATRIX, PLAIN)) if self.flat else u

    def unflatten(self, u):
        """The inverse of `flatten`."""
        return self.p.reshape(u, self.tokens, "unflatten", (PLAIN, MATRIX)) if self.flat else u

    def grow(self, nodes):
        """Append layers until there are enough nodes, then the head and the backward pass."""
        p, classes = self.p, 2
        backwards, x = [], p.add("get-tuple-element", self.tokens, [p.inputs])
        while True:
            for layer in (self.attention, self.feed_forward):
                normal, back_norm = p.norm_layer(x) if self.normed else (x, lambda grad: grad)
                y, back = layer(normal)
                x = p.each("add", x, y)
                backwards.append(lambda grad, back=back, norm=back_norm: p.each("add", grad, norm(back(grad))))
            if len(p.rows) * (2 if self.train else 1) > 0.8 * nodes:
                break
        pooled = p.reduce(x, [1], p.scalar_add)
        logits, back = p.dense_layer(pooled, p.weight((self.model, classes), MATRIX), (self.batch, classes), "kernel",
                                     (MATRIX,) * 3, True)
        p.outputs.append(logits)
        if self.train:
            grad = back(p.each("subtract", logits, p.weight((self.batch, classes))))
            p.outputs.append(chain_rule(backwards, p.spread(self.tokens, grad, (0, 2))))
        return p.finish(f"transformer_{'train' if self.train else 'inference'}_batch_{self.batch}_{p.dtype}")


def chain_rule(backwards, grad):
    """Carry a gradient from the last layer to the first."""
    for back in backwards[::-1]:
        grad = back(grad)
    return grad
