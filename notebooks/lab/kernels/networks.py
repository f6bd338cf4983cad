"""The layers of known networks as kernels to tune, from a table.

The networks of torchvision 0.28 were traced with one image of 3 x 224 x 224. The others are a U-Net (3 x 256 x 256,
padded convolutions, half of the published channels), the encoder of BERT base (128 tokens), and ViT-B/32.

Layers are convolutions, dense layers, matmuls of attention, softmax and layer norm, for one input (batch 1). Pooling
and operations on single numbers are left out, because compilers fuse them into these layers.
"""
import csv
from math import prod
from pathlib import Path

from kit.checks import expect
from lab.kernels.definitions import Kernel, kernel_axes

TABLE = Path(__file__).with_name("networks.csv")


def network_names():
    """Names of the networks in the table, in its order."""
    return list(dict.fromkeys(row["network"] for row in _rows()))


def network_layers(network):
    """The distinct layers of a known network, and how often the network has each.

    Parameters
    ----------
    network : str
        One of `network_names()`, such as "resnet18".

    Returns
    -------
    list of (Kernel, int)
        In the order of the network. Equal layers of different networks are equal kernels.

    Raises
    ------
    ValueError
        If there is no such network.

    Examples
    --------
    >>> kernel, count = network_layers("resnet18")[1]
    >>> kernel.name, count
    ('conv2d 3x3 56x56x64 to 64', 4)
    """
    known = network_names()
    expect(network in known, "network", network, f"one of {', '.join(known)}")
    return [(layer_kernel(row["kind"], tuple(map(int, row["sizes"].split("x"))), int(row["stride"]),
                          int(row["padding"])), int(row["count"])) for row in _rows() if row["network"] == network]


def known_layers():
    """{name: kernel} of the layers of all networks in the table."""
    return {kernel.name: kernel for network in network_names() for kernel, _ in network_layers(network)}


def multiplications(kernel, count=1):
    """How many multiplications `count` runs of a kernel take; of softmax and layer norm, the elements of the output.

    >>> multiplications(layer_kernel("conv2d", (56, 56, 64, 128, 3), 2, 1)) == 28 * 28 * 128 * (3 * 3 * 64)
    True
    """
    spatial, reduced = kernel_axes(kernel)
    return count * prod(spatial) * (1 if kernel.kind in ("softmax", "layer norm") else prod(reduced))


def layer_kernel(kind, sizes, stride=1, padding=0):
    """A layer as a Kernel whose name says all of it; arguments as the fields of Kernel."""
    if kind in ("conv2d", "depthwise"):
        *image, taps = sizes
        shape = "x".join(map(str, image[:3])) + (f" to {image[3]}" if kind == "conv2d" else "")
        more = (f" stride {stride}" if stride > 1 else "") + (f" padding {padding}" if padding != taps // 2 else "")
        return Kernel(f"{kind} {taps}x{taps} {shape}{more}", kind, sizes, stride, padding)
    name = "batch matmul" if kind == "matmul" and len(sizes) > 3 else kind
    return Kernel(f"{name} {'x'.join(map(str, sizes))}", kind, sizes)


def _rows():
    """The rows of the table, as dictionaries of texts."""
    with open(TABLE, newline="") as file:
        return list(csv.DictReader(file))
