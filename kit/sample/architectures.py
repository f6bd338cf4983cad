"""The programs of the sample data: convolutional nets (xla) and transformers (nlp), forward and backward.

Widths, depths, batch and image sizes, element types and styles vary, so that an unseen program is not a seen one.
Neighbours rarely share a group of configurable nodes, so that whether their layouts agree is not seen in either
alone; mostly one elementwise operation stands between them.
"""
import numpy as np

from kit.sample.programs import ACTIVATION, Program


def convolutional_net(rng, nodes):
    """A residual or plain image classifier with its backward pass.

    Parameters
    ----------
    rng : numpy.random.Generator
    nodes : int
        About how many.

    Returns
    -------
    Program
    """
    p = Program(rng, rng.choice(["f32", "bf16"]))
    batch, size = rng.choice([16, 24, 32, 48, 64, 96, 128]), rng.choice([24, 28, 32, 40, 48, 56])
    width, bias, tied = rng.choice([32, 48, 64, 96, 128, 160]), rng.random() < 0.25, rng.random() < 0.3
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
            backwards.append(lambda grad, block=block: p.each("add", grad, _chain_rule(block, grad)))
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
    x = p.reshape(x, (batch, flat), "reshape", ((1, 0), ACTIVATION))
    backwards.append(lambda grad: p.reshape(grad, images, "reshape/back", (ACTIVATION, (1, 0))))
    classes = int(rng.choice([10, 100, 200]))
    x, back = p.dense_layer(x, p.weight((flat, classes), (1, 0)), (batch, classes), "head",
                            ((1, 0), (1, 0), (1, 0)), True)
    _chain_rule([*backwards, back], p.each("subtract", x, p.weight((batch, classes))))
    return p.finish(f"{'residual' if residual else 'plain'}_net_batch_{batch}_{p.dtype}")


def transformer(rng, nodes):
    """An encoder of attention and feed-forward layers; four in five with the backward pass.

    Parameters
    ----------
    rng : numpy.random.Generator
    nodes : int
        About how many.

    Returns
    -------
    Program
    """
    p = Program(rng, rng.choice(["f32", "bf16"]))
    heads, each, classes = int(rng.choice([6, 12])), int(rng.choice([32, 48, 64, 96, 128])), 2
    batch, length = int(rng.choice([4, 8, 16, 32])), int(rng.choice([64, 96, 128, 192, 256]))
    model, wide = heads * each, int(heads * each * rng.choice([1, 2, 4]))
    flat, tied, bias = rng.random() < 0.5, rng.random() < 0.3, rng.random() < 0.25
    train, normed = nodes > 80 and rng.random() < 0.8, rng.random() < 0.5
    tokens, split, joined = (batch, length, model), (batch, length, heads, each), (batch * length, model)
    plain, headed, cubic = (2, 1), (3, 1), (2, 0)           # pairs of (b, s, d), (b, s, h, e), (d, h, e)
    backwards, x = [], p.add("get-tuple-element", tokens, [p.inputs])

    def attention(x):
        def project():
            y, back = p.dense_layer(x, p.weight((model, heads, each), cubic), split, "project",
                                    (headed, plain, cubic), tied)
            if bias:
                y = p.each("add", p.spread(split, p.weight((heads, each)), (2, 3)), y)
            return y, back

        def swap(u, shape):
            return p.add("transpose", shape, [u], minor=(3, 1, 2, 0), columns={31: [0, 2, 1, 3]})

        (q, back_q), (k, back_k), (v, back_v) = project(), project(), project()
        square, context = (batch, heads, length, length), (batch, heads, length, each)
        scores = p.dot(square, q, k, "scores", ((3, 2), headed, headed))
        top = p.spread(square, p.reduce(scores, [3], p.scalar_max), (0, 1, 2))
        power = p.each("exponential", p.each("subtract", top, scores))
        chance = p.each("divide", p.spread(square, p.reduce(power, [3], p.scalar_add), (0, 1, 2)), power)
        mixed = p.dot(context, chance, v, "context", ((3, 2), (3, 2), headed))
        y, back_out = p.dense_layer(swap(mixed, split), p.weight((heads, each, model), (2, 1)), tokens, "merge",
                                    (plain, headed, (2, 1)), tied)

        def backward(grad):
            grad = swap(back_out(grad), context)
            of_v = p.dot(context, chance, grad, "value/back", ((3, 2), (3, 2), (3, 2)))
            of_chance = p.dot(square, v, grad, "chance/back", ((3, 2), headed, (3, 2)))
            mean = p.spread(square, p.reduce(of_chance, [3], p.scalar_add), (0, 1, 2))
            of_scores = p.each("multiply", chance, p.each("subtract", mean, of_chance))
            of_q = p.dot(context, k, of_scores, "scores/back", ((3, 2), headed, (3, 2)))
            of_k = p.dot(context, q, of_scores, "scores/back", ((3, 2), headed, (3, 2)))
            of_q, of_k, of_v = (swap(u, split) for u in (of_q, of_k, of_v))
            return p.each("add", p.each("add", back_q(of_q), back_k(of_k)), back_v(of_v))

        return y, backward

    def feed_forward(x):
        shape, pair = (joined, (1, 0)) if flat else (tokens, plain)
        inner = (*shape[:-1], wide)
        if flat:
            x = p.reshape(x, joined, "flatten", ((1, 0), plain))
        y, back_in = p.dense_layer(x, p.weight((model, wide), (1, 0)), inner, "expand", (pair, pair, (1, 0)), tied)
        floor = p.spread(inner)
        z = p.each("maximum", floor, y)
        mask = p.each("compare", floor, z, dtype="pred") if train else None
        out, back_out = p.dense_layer(z, p.weight((wide, model), (1, 0)), shape, "contract",
                                      (pair, pair, (1, 0)), tied)
        if flat:
            out = p.reshape(out, tokens, "unflatten", (plain, (1, 0)))

        def backward(grad):
            grad = p.reshape(grad, joined, "flatten", ((1, 0), plain)) if flat else grad
            grad = back_in(p.each("select", mask, floor, back_out(grad)))
            return p.reshape(grad, tokens, "unflatten", (plain, (1, 0))) if flat else grad

        return out, backward

    while True:
        for layer in (attention, feed_forward):
            normal, back_norm = p.norm_layer(x) if normed else (x, lambda grad: grad)
            y, back = layer(normal)
            x = p.each("add", x, y)
            backwards.append(lambda grad, back=back, norm=back_norm: p.each("add", grad, norm(back(grad))))
        if len(p.rows) * (2 if train else 1) > 0.8 * nodes:
            break
    pooled = p.reduce(x, [1], p.scalar_add)
    logits, back = p.dense_layer(pooled, p.weight((model, classes), (1, 0)), (batch, classes), "kernel",
                                 ((1, 0), (1, 0), (1, 0)), True)
    p.outputs.append(logits)
    if train:
        grad = back(p.each("subtract", logits, p.weight((batch, classes))))
        p.outputs.append(_chain_rule(backwards, p.spread(tokens, grad, (0, 2))))
    return p.finish(f"transformer_{'train' if train else 'inference'}_batch_{batch}_{p.dtype}")


def _chain_rule(backwards, grad):
    for back in backwards[::-1]:
        grad = back(grad)
    return grad
