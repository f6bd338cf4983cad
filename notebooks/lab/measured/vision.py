"""Networks for images: each one a screen, at sizes that take 3 to 30 ms on one core."""
from lab.measured.layers import (
    conv,
    dense,
    flat,
    gelu,
    image_norm,
    inference,
    jax,
    jnp,
    lax,
    normal,
    normed,
    pooled,
    relu,
)


def images(rng, batch, size, order="NHWC", channels=3):
    """A batch of images."""
    return normal(rng, *[{"N": batch, "C": channels}.get(d, size) for d in order])


def alexnet(rng, batch=1, size=96, order="NHWC", turned=False, make=inference):
    """AlexNet: few convolutions with large windows, then wide dense layers."""
    def network(w, x):
        x = pooled(relu(conv(w, x, 64, 11, 4, order)), 2, order)
        x = pooled(relu(conv(w, x, 192, 5, 1, order)), 2, order)
        for width in (384, 256, 256):
            x = relu(conv(w, x, width, 3, 1, order))
        x = x.reshape(batch, -1)
        for _ in range(2):
            x = relu(dense(w, x, 512, turned))
        return dense(w, x, 100, turned)
    return make(network, rng, images(rng, batch, size, order))


def vgg(rng, batch=1, size=48, order="NHWC", width=32, make=inference):
    """VGG: pairs of 3 x 3 convolutions, twice as wide after each pooling."""
    def network(w, x):
        for level in range(4):
            for _ in range(2):
                x = relu(conv(w, x, width << level, 3, 1, order))
            x = pooled(x, 2, order)
        return dense(w, relu(dense(w, x.reshape(batch, -1), 256)), 100)
    return make(network, rng, images(rng, batch, size, order))


def resnet(rng, batch=2, size=32, order="NHWC", width=32, blocks=(2, 2, 2), make=inference):
    """ResNet: each block adds to its input; the first block of a level halves the image."""
    def block(w, x, wide, stride):
        y = relu(image_norm(w, conv(w, x, wide, 3, stride, order), order))
        y = image_norm(w, conv(w, y, wide, 3, 1, order), order)
        if stride > 1 or x.shape != y.shape:
            x = image_norm(w, conv(w, x, wide, 1, stride, order), order)
        return relu(x + y)

    def network(w, x):
        x = relu(image_norm(w, conv(w, x, width, 3, 1, order), order))
        for level, count in enumerate(blocks):
            for place in range(count):
                x = block(w, x, width << level, 2 if level and not place else 1)
        return dense(w, flat(x, order), 100)
    return make(network, rng, images(rng, batch, size, order))


def mobilenet(rng, batch=2, size=48, order="NHWC", width=16, blocks=5, make=inference):
    """MobileNetV2: a wide 1 x 1 convolution, a depthwise one, a narrow 1 x 1 one, added to the input."""
    def network(w, x):
        x = relu(conv(w, x, width, 3, 2, order))
        for place in range(blocks):
            wide, stride = width << (place + 1) // 2, 1 + place % 2
            inner = x.shape[order.index("C")] * 4
            y = jnp.clip(image_norm(w, conv(w, x, inner, 1, 1, order), order), 0, 6)
            y = jnp.clip(image_norm(w, conv(w, y, inner, 3, stride, order, inner), order), 0, 6)
            y = image_norm(w, conv(w, y, wide, 1, 1, order), order)
            x = x + y if x.shape == y.shape else y
        return dense(w, flat(x, order), 100)
    return make(network, rng, images(rng, batch, size, order))


def unet(rng, batch=1, size=48, order="NHWC", width=24, levels=3, make=inference):
    """U-Net: down, and up again, with what was there on the way down."""
    def pair(w, x, wide):
        for _ in range(2):
            x = relu(conv(w, x, wide, 3, 1, order))
        return x

    def network(w, x):
        kept, channel = [], order.index("C")
        for level in range(levels):
            x = pair(w, x, width << level)
            kept.append(x)
            x = pooled(x, 2, order)
        x = pair(w, x, width << levels)
        for level in reversed(range(levels)):
            shape = [size >> level if d in "HW" else x.shape[place] for place, d in enumerate(order)]
            x = conv(w, jax.image.resize(x, shape, "nearest"), width << level, 2, 1, order)
            x = pair(w, jnp.concatenate([kept[level], x], channel), width << level)
        return conv(w, x, 2, 1, 1, order)
    return make(network, rng, images(rng, batch, size, order, 1))


def inception(rng, batch=2, size=32, order="NHWC", width=32, levels=3, make=inference):
    """Inception: four branches side by side, joined along the features."""
    def mixed(w, x, wide):
        a = relu(conv(w, x, wide, 1, 1, order))
        b = relu(conv(w, relu(conv(w, x, wide, 1, 1, order)), wide, 3, 1, order))
        c = relu(conv(w, relu(conv(w, x, wide // 2, 1, 1, order)), wide, 5, 1, order))
        d = relu(conv(w, x, wide, 1, 1, order))
        return jnp.concatenate([a, b, c, d], order.index("C"))

    def network(w, x):
        x = pooled(relu(conv(w, x, width, 3, 1, order)), 2, order)
        for level in range(levels):
            x = mixed(w, mixed(w, x, width << level >> 1), width << level >> 1)
            x = pooled(x, 2, order)
        return dense(w, flat(x, order), 100)
    return make(network, rng, images(rng, batch, size, order))


def convnext(rng, batch=1, size=64, width=48, make=inference):
    """ConvNeXt: depthwise 7 x 7 convolutions and dense layers per position."""
    def network(w, x):
        x = conv(w, x, width, 4, 4)
        for level, count in enumerate((2, 3, 2)):
            wide = width << level
            if level:
                x = conv(w, normed(w, x), wide, 2, 2)
            for _ in range(count):
                y = normed(w, conv(w, x, wide, 7, 1, "NHWC", wide))
                x = x + dense(w, gelu(dense(w, y, 4 * wide)), wide)
        return dense(w, normed(w, flat(x)), 100)
    return make(network, rng, images(rng, batch, size))


def dcgan(rng, batch=4, width=32, make=inference):
    """The generator of DCGAN: convolutions with a dilated input make an image of a vector."""
    def up(w, x, wide):
        kernel = w(4, 4, x.shape[-1], wide)
        return lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def network(w, z):
        x = relu(dense(w, z, 16 * 8 * width)).reshape(batch, 4, 4, 8 * width)
        for level in (4, 2, 1):
            x = relu(image_norm(w, up(w, x, level * width)))
        return jnp.tanh(up(w, x, 3))
    return make(network, rng, normal(rng, batch, 100))


def mixer(rng, batch=2, patches=64, width=128, layers=4, turned=False, make=inference):
    """MLP-Mixer: dense layers across patches and across features, in turns."""
    def network(w, x):
        x = dense(w, x, width, turned)
        for _ in range(layers):
            y = normed(w, x).swapaxes(1, 2)
            x = x + dense(w, gelu(dense(w, y, 2 * patches, turned)), patches, turned).swapaxes(1, 2)
            x = x + dense(w, gelu(dense(w, normed(w, x), 4 * width, turned)), width, turned)
        return dense(w, normed(w, x).mean(1), 100, turned)
    return make(network, rng, normal(rng, batch, patches, 192))


