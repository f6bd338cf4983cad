"""Write the layers of known networks to the table that `lab.kernels.network_layers` reads.

    python notebooks/lab/studies/kernels/trace_networks.py

It needs torchvision in the version that fits PyTorch: `pip install --no-deps torchvision==0.28.0` for PyTorch 2.13.
Every network runs once without numbers (PyTorch's device "meta"), and each layer notes the shape of its input. The
networks of torchvision read one image of 3 x 224 x 224, and so does the vision transformer. It, the U-Net (3 x 256 x
256, 32 channels at first) and the encoder of BERT base (128 tokens) are written here.
"""
import csv
from collections import Counter
from unittest.mock import patch

import torch
from torch import nn

from kit.files import whole_file
from lab.kernels.networks import TABLE

IMAGENET = ("alexnet", "vgg16", "resnet18", "resnet50", "densenet121", "squeezenet1_1", "mobilenet_v2",
            "efficientnet_b0", "googlenet")


class UNet(nn.Module):
    """Ronneberger et al., arXiv:1505.04597, with padded convolutions and half of the channels."""

    def __init__(self, channels=(3, 32, 64, 128, 256, 512)):
        super().__init__()
        pairs = list(zip(channels, channels[1:]))
        self.down = nn.ModuleList(self.block(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs[1:]))
        self.join = nn.ModuleList(self.block(2 * a, a) for a, _ in reversed(pairs[1:]))
        self.last = nn.Conv2d(channels[1], 1, 1)

    @staticmethod
    def block(a, b):
        """Two convolutions."""
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU())

    def forward(self, x):
        kept = []
        for place, down in enumerate(self.down):
            x = down(x if place == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1]):
            x = join(torch.cat([skip, up(x)], 1))
        return self.last(x)


class MatMul(nn.Module):
    """A product of two tensors as a module, so that a hook sees it."""

    def forward(self, a, b):
        return a @ b


class EncoderLayer(nn.Module):
    """One layer of the encoder of BERT base; Devlin et al., arXiv:1810.04805. `norm_first`: as in a ViT instead."""

    def __init__(self, width=768, heads=12, inner=3072, norm_first=False):
        super().__init__()
        self.heads, self.norm_first = heads, norm_first
        self.q, self.k, self.v, self.joined = (nn.Linear(width, width) for _ in range(4))
        self.scores, self.softmax, self.mixed = MatMul(), nn.Softmax(-1), MatMul()
        self.norm, self.last_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, inner), nn.Linear(inner, width)

    def attention(self, x):
        """(tokens, width) -> the same, mixed between tokens."""
        q, k, v = (one(x).unflatten(-1, (self.heads, -1)).transpose(0, 1) for one in (self.q, self.k, self.v))
        mixed = self.mixed(self.softmax(self.scores(q, k.transpose(1, 2))), v)
        return self.joined(mixed.transpose(0, 1).flatten(1))

    def dense(self, x):
        """(tokens, width) -> the same, each token alone."""
        return self.outer(nn.functional.gelu(self.inner(x)))

    def forward(self, x):
        if self.norm_first:
            x = x + self.attention(self.norm(x))
            return x + self.dense(self.last_norm(x))
        x = self.norm(x + self.attention(x))
        return self.last_norm(x + self.dense(x))


class VisionTransformer(nn.Module):
    """ViT-B/32; Dosovitskiy et al., arXiv:2010.11929. torchvision's own has one call for a whole attention."""

    def __init__(self, width=768, taps=32, classes=1000):
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, width, taps, taps), nn.Parameter(torch.zeros(1, width))
        self.layers = nn.Sequential(*(EncoderLayer(norm_first=True) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image):
        tokens = torch.cat([self.first, self.patches(image)[0].flatten(1).T])    # adding places is no layer
        return self.head(self.norm(self.layers(tokens))[:1])


def layer_row(module, inputs):
    """(kind, sizes, stride, padding) of a layer, for inputs of one example; a ValueError if the kit has no such kernel.

    An image of one pixel and a transposed convolution whose taps do not overlap are matmuls.
    """
    x = inputs[0]
    if isinstance(module, nn.Linear):
        return "matmul", (x.numel() // x.shape[-1], module.out_features, module.in_features), 1, 0
    if isinstance(module, MatMul):
        return "matmul", (*x.shape[:-1], inputs[1].shape[-1], x.shape[-1]), 1, 0
    if isinstance(module, (nn.Softmax, nn.LayerNorm)):
        kind = "softmax" if isinstance(module, nn.Softmax) else "layer norm"
        return kind, (x.numel() // x.shape[-1], x.shape[-1]), 1, 0
    _, channels, high, wide = x.shape
    taps, stride, padding, dilation = (set(pair) for pair in (
        module.kernel_size, module.stride, module.padding, module.dilation))
    features, depthwise = module.out_channels, module.groups == channels == module.out_channels
    if any(len(values) > 1 for values in (taps, stride, padding)) or dilation != {1} or not (
            depthwise or module.groups == 1) or isinstance(module, nn.ConvTranspose2d) and (taps, padding) != (
            stride, {0}):
        raise ValueError(f"no kernel for {module}; expected square taps, one stride, no dilation, and 1 group or as "
                         "many as channels")
    (taps,), (stride,), (padding,) = taps, stride, padding
    if isinstance(module, nn.ConvTranspose2d):
        return "matmul", (high * wide, taps * taps * features, channels), 1, 0
    if (high, wide, taps, padding) == (1, 1, 1, 0):
        return "matmul", (1, features, channels), 1, 0
    return (("depthwise", (high, wide, channels, taps)) if depthwise else
            ("conv2d", (high, wide, channels, features, taps))) + (stride, padding)


def traced_layers(network, x):
    """{(kind, sizes, stride, padding): count} of a network for the input `x`, in the order of the calls."""
    found = Counter()
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear, MatMul, nn.Softmax, nn.LayerNorm)):
            module.register_forward_hook(lambda module, inputs, _: found.update([layer_row(module, inputs)]))
    with torch.no_grad():
        network.eval()(x)
    return found


def known_networks():
    """{name: (network, its input)} on the device "meta"."""
    # torchvision declares its own operators to PyTorch, which fails where it was built for another PyTorch. No network
    # here uses these operators.
    with patch("torch.library.register_fake", lambda *_, **__: lambda function: function):
        from torchvision import models
    with torch.device("meta"):
        image = torch.empty(1, 3, 224, 224)
        more = {"googlenet": {"aux_logits": False, "init_weights": False}}
        found = {name: (models.get_model(name, weights=None, **more.get(name, {})), image) for name in IMAGENET}
        return found | {"unet": (UNet(), torch.empty(1, 3, 256, 256)),
                        "bert": (nn.Sequential(*(EncoderLayer() for _ in range(12))), torch.empty(128, 768)),
                        "vit_b_32": (VisionTransformer(), image)}


def main():
    """Trace all networks and write the table."""
    with whole_file(TABLE) as part, open(part, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["network", "kind", "sizes", "stride", "padding", "count"])
        for name, (network, x) in known_networks().items():
            found = traced_layers(network, x)
            table.writerows([name, kind, "x".join(map(str, sizes)), stride, padding, count]
                            for (kind, sizes, stride, padding), count in found.items())
            print(f"{name}: {len(found)} distinct layers of {found.total()}")


if __name__ == "__main__":
    main()
