"""Transformers: encoders, decoders and both; each a screen."""
import numpy as np

from lab.measured.layers import attention, dense, gelu, inference, jax, jnp, lax, normal, normed, relu


def bert(rng, batch=1, length=64, width=128, heads=4, layers=4, turned=False, make=inference):
    """BERT's encoder: attention and a wide layer, each added to its input and normed."""
    def network(w, x):
        for _ in range(layers):
            x = normed(w, x + attention(w, x, heads, turned=turned))
            x = normed(w, x + dense(w, gelu(dense(w, x, 4 * width, turned)), width, turned))
        return jnp.tanh(dense(w, x[:, 0], width, turned))
    return make(network, rng, normal(rng, batch, length, width))


def gpt(rng, batch=1, length=96, width=128, heads=4, layers=4, words=512, make=inference):
    """GPT: a decoder that sees only what came before; its table of words is used at both ends."""
    def network(w, text):
        table = w(words, width)
        x = table[text] + w(length, width)
        for _ in range(layers):
            x = x + attention(w, normed(w, x), heads, causal=True)
            x = x + dense(w, gelu(dense(w, normed(w, x), 4 * width)), width)
        return normed(w, x) @ table.T
    return make(network, rng, rng.integers(words, size=(batch, length)).astype(np.int32))


def gpt_scan(rng, batch=2, length=96, width=128, heads=4, layers=6, make=inference):
    """A decoder whose layers are one `scan` over stacked weights."""
    def network(w, x):
        shapes = [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)]
        stacked = [w(layers, *shape) for shape in shapes]

        def layer(x, own):
            left = iter([*own[:4]])
            x = x + attention(lambda *shape: next(left), x / (1 + abs(x)), heads, causal=True)
            return x + gelu(x @ own[4]) @ own[5], None
        return lax.scan(layer, x, stacked)[0]
    return make(network, rng, normal(rng, batch, length, width))


def t5(rng, batch=1, length=48, width=128, heads=4, layers=2, make=inference):
    """T5: an encoder, and a decoder that looks at it."""
    def network(w, x, y):
        for _ in range(layers):
            x = x + attention(w, normed(w, x), heads)
            x = x + dense(w, relu(dense(w, normed(w, x), 4 * width)), width)
        for _ in range(layers):
            y = y + attention(w, normed(w, y), heads, causal=True)
            y = y + attention(w, normed(w, y), heads, memory=x)
            y = y + dense(w, relu(dense(w, normed(w, y), 4 * width)), width)
        return normed(w, y)
    return make(network, rng, normal(rng, batch, length, width), normal(rng, batch, length, width))


def llama(rng, batch=1, length=64, width=128, heads=8, keys=2, layers=4, turned=True, make=inference):
    """Llama: fewer heads of keys than of queries, gated wide layers, weights as (out, in)."""
    def network(w, x):
        for _ in range(layers):
            x = x + attention(w, normed(w, x), heads, causal=True, turned=turned, keys=keys)
            y = normed(w, x)
            gate = jax.nn.silu(dense(w, y, 3 * width, turned))
            x = x + dense(w, gate * dense(w, y, 3 * width, turned), width, turned)
        return normed(w, x)
    return make(network, rng, normal(rng, batch, length, width))


def decoding(rng, batch=16, past=128, width=256, heads=8, layers=4, make=inference):
    """One step of a decoder for a batch of texts, with the keys and values of what came before."""
    def network(w, x, keys, values):
        for layer in range(layers):
            q, k, v = (dense(w, normed(w, x), width).reshape(batch, heads, -1) for _ in "qkv")
            k = jnp.concatenate([keys[layer], k[:, None]], 1)
            v = jnp.concatenate([values[layer], v[:, None]], 1)
            share = jax.nn.softmax(jnp.einsum("bhd,bkhd->bhk", q, k))
            x = x + dense(w, jnp.einsum("bhk,bkhd->bhd", share, v).reshape(batch, width), width)
            x = x + dense(w, gelu(dense(w, normed(w, x), 4 * width)), width)
        return x
    held = [normal(rng, layers, batch, past, heads, width // heads) for _ in range(2)]
    return make(network, rng, normal(rng, batch, width), *held)


def vit(rng, batch=2, size=64, patch=8, width=128, heads=4, layers=4, make=inference):
    """A vision transformer: patches of an image as words."""
    def network(w, x):
        count = size // patch
        x = x.reshape(batch, count, patch, count, patch, 3).swapaxes(2, 3).reshape(batch, count * count, -1)
        x = dense(w, x, width) + w(count * count, width)
        for _ in range(layers):
            x = x + attention(w, normed(w, x), heads)
            x = x + dense(w, gelu(dense(w, normed(w, x), 4 * width)), width)
        return dense(w, normed(w, x).mean(1), 100)
    return make(network, rng, normal(rng, batch, size, size, 3))


def performer(rng, batch=2, length=256, width=128, heads=4, layers=3, make=inference):
    """Linear attention: keys and values are multiplied first, so the cost does not grow with the square."""
    def mixed(w, x):
        q, k, v = (dense(w, x, width).reshape(batch, length, heads, -1) for _ in "qkv")
        q, k = jax.nn.softmax(q), jax.nn.softmax(k, 1)
        both = jnp.einsum("bkhd,bkhe->bhde", k, v)
        return dense(w, jnp.einsum("bqhd,bhde->bqhe", q, both).reshape(x.shape), width)

    def network(w, x):
        for _ in range(layers):
            x = x + mixed(w, normed(w, x))
            x = x + dense(w, gelu(dense(w, normed(w, x), 2 * width)), width)
        return normed(w, x)
    return make(network, rng, normal(rng, batch, length, width))
