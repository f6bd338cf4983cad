"""Write known networks as HLO files for notebook 09, each from the framework that is named with it.

    python notebooks/lab/studies/known_networks.py FOLDER [NAME ...]

| NAME | network | framework | what to install |
|---|---|---|---|
| bert | BERT base: the encoder, 12 layers, batch 8, 128 tokens | JAX | jax |
| mobilenet | MobileNetV2, batch 32, 224 x 224 | TensorFlow | tensorflow-cpu |
| alexnet | AlexNet, batch 32, 224 x 224 | PyTorch | torchax, jax |

Without a NAME, all networks are written whose framework is installed; the others are named. Each function below shows
the one line that turns a program of its framework into HLO. The programs are saved before the compiler optimises them.
"""
import argparse
import sys
from contextlib import contextmanager
from pathlib import Path


def bert():
    """The encoder of BERT base in JAX -> HLO module, bytes."""
    import jax
    import jax.numpy as jnp

    width, heads, layers, batch, tokens = 768, 12, 12, 8, 128

    def normed(x):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-12)

    def layer(x, w):
        q, k, v = ((x @ w[name]).reshape(batch, tokens, heads, -1) for name in ("query", "key", "value"))
        share = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5)
        x = normed(x + jnp.einsum("bhqk,bkhd->bqhd", share, v).reshape(batch, tokens, width) @ w["output"])
        return normed(x + jax.nn.gelu(x @ w["wide"]) @ w["narrow"])

    def encoder(x, weights):
        for w in weights:
            x = layer(x, w)
        return x

    square = jax.ShapeDtypeStruct((width, width), "float32")
    weights = {**dict.fromkeys(("query", "key", "value", "output"), square),
               "wide": jax.ShapeDtypeStruct((width, 4 * width), "float32"),
               "narrow": jax.ShapeDtypeStruct((4 * width, width), "float32")}
    x = jax.ShapeDtypeStruct((batch, tokens, width), "float32")
    return jax.jit(encoder).lower(x, [weights] * layers).compiler_ir("hlo").as_serialized_hlo_module_proto()


def mobilenet():
    """MobileNetV2 of Keras in TensorFlow -> HLO module, bytes."""
    import tensorflow as tf

    network = tf.keras.applications.MobileNetV2(weights=None)

    @tf.function(jit_compile=True)
    def mobilenet_v2(image):
        return network(image, training=False)

    return mobilenet_v2.experimental_get_compiler_ir(tf.zeros((32, 224, 224, 3)))(stage="hlo_serialized")


@contextmanager
def named_tensors_forgiven():
    """Let torchax 0.0.13 run with PyTorch 2.13, which no longer has the operations on named tensors.

    torchax names these operations in a table of data types, and asks PyTorch for each of them. Here they get a name
    that nothing else has. Older versions of PyTorch have the operations, and nothing changes.
    """
    from torch._ops import OpOverloadPacket
    original = OpOverloadPacket.__getattr__

    def forgiving(packet, name):
        try:
            return original(packet, name)
        except AttributeError:
            if "dimname" in name.lower() or "names" in name:
                return f"{packet}.{name}"
            raise
    OpOverloadPacket.__getattr__ = forgiving
    try:
        yield
    finally:
        OpOverloadPacket.__getattr__ = original


@named_tensors_forgiven()
def alexnet():
    """AlexNet in PyTorch, by way of torchax, which runs PyTorch on JAX -> HLO module, bytes."""
    import jax
    import torch
    import torchax
    from torch import nn

    def convolution(*sizes, **more):
        return nn.Sequential(nn.Conv2d(*sizes, **more), nn.ReLU())

    network = nn.Sequential(
        convolution(3, 64, 11, stride=4, padding=2), nn.MaxPool2d(3, 2), convolution(64, 192, 5, padding=2),
        nn.MaxPool2d(3, 2), convolution(192, 384, 3, padding=1), convolution(384, 256, 3, padding=1),
        convolution(256, 256, 3, padding=1), nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(9216, 4096), nn.ReLU(),
        nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)).eval()
    with torch.no_grad():
        weights, function = torchax.extract_jax(network)
    image = jax.ShapeDtypeStruct((32, 3, 224, 224), "float32")
    return jax.jit(function).lower(weights, (image,)).compiler_ir("hlo").as_serialized_hlo_module_proto()


NETWORKS = {"bert": bert, "mobilenet": mobilenet, "alexnet": alexnet}


def main():
    """Write the networks that are asked for; say which could not be written, and why."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    args = parser.parse_args()
    if unknown := set(args.names) - set(NETWORKS):
        parser.error(f"{', '.join(sorted(unknown))}: no such network; there are {', '.join(NETWORKS)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for name in args.names or NETWORKS:
        path = args.folder / f"{name}.hlo.pb"
        try:
            data = NETWORKS[name]()
        except (ImportError, AttributeError) as fault:         # not installed, or not in a version that fits
            print(f"{name}: left out; {type(fault).__name__}: {fault}")
            continue
        partial = path.with_name(f".{path.name}.part")
        partial.write_bytes(data)
        partial.replace(path)
        written += 1
        print(f"{path}: {len(data) / 1024:.0f} KiB")
    sys.exit(0 if written else "nothing was written: no framework is installed in a version that fits")


if __name__ == "__main__":
    main()
