"""Recurrent networks, recommenders, graph networks and plain ones; each a screen."""
import numpy as np

from lab.measured.layers import dense, inference, jax, jnp, lax, normal, relu


def mlp(rng, batch=128, width=512, layers=4, turned=False, make=inference):
    """Dense layers one after another."""
    def network(w, x):
        for _ in range(layers):
            x = relu(dense(w, x, width, turned))
        return dense(w, x, 10, turned)
    return make(network, rng, normal(rng, batch, 256))


def lstm(rng, batch=16, length=24, width=192, layers=2, turned=False, make=inference):
    """An LSTM: `scan` over the steps of a sequence, layer by layer."""
    def layer(w, x):
        across, along = (w(4 * width, n) for n in (x.shape[-1], width)) if turned else (
            w(n, 4 * width) for n in (x.shape[-1], width))

        def step(state, x):
            h, c = state
            gates = x @ across.T + h @ along.T if turned else x @ across + h @ along
            i, f, g, o = jnp.split(gates, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h
        zeros = jnp.zeros((batch, width))
        return lax.scan(step, (zeros, zeros), x)[1]

    def network(w, x):
        for _ in range(layers):
            x = layer(w, x)
        return dense(w, x[-1], 100, turned)
    return make(network, rng, normal(rng, length, batch, 128))


def gru(rng, batch=16, length=24, width=192, both=False, make=inference):
    """A GRU; `both`: one in each direction."""
    def layer(w, x, reverse):
        across, gates, new = w(x.shape[-1], 3 * width), w(width, 2 * width), w(width, width)

        def step(h, x):
            z, r = jnp.split(jax.nn.sigmoid(x[:, :2 * width] + h @ gates), 2, -1)
            h = (1 - z) * h + z * jnp.tanh(x[:, 2 * width:] + (r * h) @ new)
            return h, h
        return lax.scan(step, jnp.zeros((batch, width)), x @ across, reverse=reverse)[1]

    def network(w, x):
        x = jnp.concatenate([layer(w, x, reverse) for reverse in (False, True)[:1 + both]], -1)
        return dense(w, layer(w, x, False)[-1], 100)
    return make(network, rng, normal(rng, length, batch, 128))


def dlrm(rng, batch=256, tables=8, width=64, turned=False, make=inference):
    """A recommender: rows of tables, all products of pairs of them, and dense layers before and behind."""
    def network(w, numbers, rows):
        x = relu(dense(w, relu(dense(w, numbers, 256, turned)), width, turned))
        found = [w(1000, width)[rows[:, table]] for table in range(tables)]
        both = jnp.stack([x, *found], 1)
        pairs = jnp.einsum("bid,bjd->bij", both, both)
        first, second = np.triu_indices(tables + 1, 1)
        x = jnp.concatenate([x, pairs[:, first, second]], -1)
        for wide in (512, 256):
            x = relu(dense(w, x, wide, turned))
        return jax.nn.sigmoid(dense(w, x, 1, turned))
    return make(network, rng, normal(rng, batch, 16), rng.integers(1000, size=(batch, tables)).astype(np.int32))


def gcn(rng, nodes=1024, edges=4096, width=128, layers=3, make=inference):
    """A graph network: sums over neighbours, and dense layers."""
    def network(w, x, ends):
        for _ in range(layers):
            around = jax.ops.segment_sum(x[ends[1]], ends[0], nodes)
            x = relu(dense(w, x, width) + dense(w, around, width))
        return dense(w, x, 16)
    return make(network, rng, normal(rng, nodes, 64), rng.integers(nodes, size=(2, edges)).astype(np.int32))


def gat(rng, nodes=256, width=128, heads=4, layers=2, make=inference):
    """A graph attention network on a dense matrix of neighbours."""
    def network(w, x, near):
        for _ in range(layers):
            h = dense(w, x, width).reshape(nodes, heads, -1)
            to, back = (jnp.einsum("nhd,hd->hn", h, w(heads, width // heads)) for _ in range(2))
            scores = jnp.where(near > 0, jax.nn.leaky_relu(to[:, :, None] + back[:, None]), -1e9)
            x = relu(jnp.einsum("hnm,mhd->nhd", jax.nn.softmax(scores), h).reshape(nodes, width))
        return dense(w, x, 16)
    return make(network, rng, normal(rng, nodes, 64), (rng.random((nodes, nodes)) < 0.1).astype(np.float32))
