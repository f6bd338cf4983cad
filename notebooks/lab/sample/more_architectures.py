"""More networks of the xla collections, which the sample data has where asked: U-Nets, detectors, recurrent networks.

As in `architectures.py`, each function grows a network of about `nodes` nodes and returns a `Program`. Seven of ten
train; the others have no backward pass. `change` makes a relative.
"""
from functools import partial

from lab.sample.architectures import MATRIX, chain_rule, other_depth, other_mode, other_size
from lab.sample.programs import ACTIVATION, WEIGHT, Program

NARROW = (16, 24, 32, 48, 64)                    # channels of a U-Net at full size, and of a detector's first layer
SERIES, HIDDEN = (16, 32, 64, 96, 128, 256), (64, 96, 128, 192, 256, 384)       # recurrent: batch sizes, hidden units
SHORT = (4, 6, 8, 12, 16)                        # images per step of the large programs
PER_CONVOLUTION, PER_STEP = (5, 11), (13, 33)    # nodes of a layer or step: without and with a backward pass
ANCHORS = 3                                      # boxes per place of a detector


def u_net(rng, nodes, change=None):
    """Encoder and decoder with skip connections; one block is one convolution at each size."""
    return _UNet(rng, nodes, change).grow()


def detector(rng, nodes, change=None):
    """A backbone of several sizes with shared heads: classes and boxes; one block is one convolution at each size."""
    return _Detector(rng, nodes, change).grow()


def recurrent_net(rng, nodes, change=None):
    """A recurrent cell with gates, unrolled: all steps share its weights; one block is one step."""
    return _Recurrent(rng, nodes, change).grow()


class _Images:
    """What networks of images share: the drawn sizes and chains of convolutions."""

    def __init__(self, rng, nodes, change, sizes):
        self.p = p = Program(rng, rng.choice(["f32", "bf16"]))
        p.train = other_mode(change, rng.random() < 0.7)
        self.batch = int(other_size(change, "batch", SHORT, rng.choice(SHORT)))
        self.width = int(other_size(change, "width", NARROW, rng.choice(NARROW)))
        self.size, self.bias, self.tied = int(rng.choice(sizes)), rng.random() < 0.25, rng.random() < 0.3
        self.levels = 1 if nodes < 120 else int(rng.choice([1, 2, 2]))
        self.per_convolution = PER_CONVOLUTION[p.train]
        self.depth = other_depth(change)

    def convolution(self, x, features, taps, stride, group, linear=False, w=None):
        """One layer; see `Program.conv_layer`."""
        return self.p.conv_layer(x, features, taps, stride, group, self.bias and not linear, self.tied, linear, w)

    def convolutions(self, x, features, group):
        """As many 3 x 3 layers as a block has -> output, function from its gradient to that of `x`."""
        backwards = []
        for _ in range(self.blocks):
            x, back = self.convolution(x, features, 3, 1, group)
            backwards.append(back)
        return x, partial(chain_rule, backwards)

    def named(self, kind):
        """The whole program."""
        mode = "train" if self.p.train else "inference"
        return self.p.finish(f"{kind}_{mode}_batch_{self.batch}_{self.p.dtype}", self.blocks)


class _UNet(_Images):
    def __init__(self, rng, nodes, change):
        super().__init__(rng, nodes, change, (32, 40, 48, 64))
        spare = nodes / self.per_convolution - 2 * self.levels - 1
        self.blocks = max(1, round(spare / (2 * self.levels + 1))) if self.depth is None else self.depth

    def level(self, x, level):
        """The convolutions of one size, around all smaller sizes -> output, function from its gradient to that of x."""
        p, features = self.p, self.width * 2 ** level
        if level == self.levels:
            return self.convolutions(x, features, "bottom")
        skip, back_in = self.convolutions(x, features, "encode")
        y, back_down = self.convolution(skip, 2 * features, 3, 2, "down")
        y, back_inner = self.level(y, level + 1)
        y, back_up = p.up_layer(y, features, "up", self.tied)
        y, back_join = p.join([skip, y], 3)
        y, back_out = self.convolutions(y, features, "decode")

        def backward(grad):
            of_skip, of_up = back_join(back_out(grad))
            of_down = back_down(back_inner(back_up(of_up)))
            return back_in(p.each("add", of_skip, of_down))

        return y, backward

    def grow(self):
        p, classes = self.p, 4
        x = p.add("get-tuple-element", (self.batch, self.size, self.size, 4), [p.inputs])
        y, backward = self.level(x, 0)
        y, back = self.convolution(y, classes, 1, 1, "head", linear=True)
        if p.train:
            backward(back(p.each("subtract", y, p.weight(p.shapes[y]))))
        else:
            p.outputs.append(y)
        return self.named("u_net")


class _Detector(_Images):
    def __init__(self, rng, nodes, change):
        super().__init__(rng, nodes, change, (48, 64, 80, 96))
        self.scales = self.levels + 1
        self.classes, self.inner = int(rng.choice([8, 16, 24])), 2 * self.width
        spare = nodes / self.per_convolution - 5.5 * self.scales - 1
        self.blocks = max(1, round(spare / self.scales)) if self.depth is None else self.depth

    def head(self, x, features, group, w):
        """One number per place, anchor and feature, as rows: (batch, places x anchors, features)."""
        p, size = self.p, self.p.shapes[x][1]
        y, back = self.convolution(x, ANCHORS * features, 3, 1, group, linear=True, w=w)
        rows, images = (self.batch, size * size * ANCHORS, features), p.shapes[y]
        z = p.reshape(y, rows, "rows", ((2, 0), ACTIVATION))
        return z, lambda grad: back(p.reshape(grad, images, "rows/back", (ACTIVATION, (2, 0))))

    def scale(self, x, scale, weights):
        """One size of the backbone with its heads, and all smaller ones -> outputs, backward.

        Outputs are pairs (classes, boxes), one per size; `backward` takes a list of pairs of their gradients.
        """
        p, features = self.p, self.width * 2 ** (scale + 1)
        x, back_stride = self.convolution(x, features, 3, 2, "stride")
        x, back_block = self.convolutions(x, features, "block")
        side, back_side = self.convolution(x, self.inner, 1, 1, "side")
        tower, back_tower = self.convolution(side, self.inner, 3, 1, "tower", w=weights[0])
        classes, back_classes = self.head(tower, self.classes, "classes", weights[1])
        boxes, back_boxes = self.head(tower, 4, "boxes", weights[2])
        outputs = [(classes, boxes)]
        if scale + 1 < self.scales:
            more, back_more = self.scale(x, scale + 1, weights)
            outputs += more

        def backward(grads):
            of_classes, of_boxes = grads[0]
            grad = p.each("add", back_classes(of_classes), back_boxes(of_boxes))
            grad = back_side(back_tower(grad))
            if len(grads) > 1:
                grad = p.each("add", back_more(grads[1:]), grad)
            return back_stride(back_block(grad))

        return outputs, backward

    def grow(self):
        p = self.p
        x = p.add("get-tuple-element", (self.batch, self.size, self.size, 4), [p.inputs])
        x, back = self.convolution(x, self.width, 3, 1, "stem")
        weights = [p.share(p.weight((3, 3, self.inner, features), WEIGHT))
                   for features in (self.inner, ANCHORS * self.classes, ANCHORS * 4)]
        outputs, backward = self.scale(x, 0, weights)
        joined = [p.join(parts, 1) for parts in zip(*outputs)]
        if p.train:
            losses = [cut(p.each("subtract", y, p.weight(p.shapes[y]))) for y, cut in joined]
            back(backward(list(zip(*losses))))
            p.update_shared()
        else:
            p.outputs += [y for y, _ in joined]
        return self.named("detector")


class _Recurrent:
    """A cell with an update gate: h + gate x (candidate - h), for which one dot makes gate and candidate."""

    def __init__(self, rng, nodes, change):
        self.p = p = Program(rng, rng.choice(["f32", "bf16"]))
        p.train = other_mode(change, rng.random() < 0.7)
        self.batch = int(other_size(change, "batch", SERIES, rng.choice(SERIES)))
        self.hidden = int(other_size(change, "width", HIDDEN, rng.choice(HIDDEN)))
        self.features, self.tied = int(rng.choice([40, 64, 80, 160])), rng.random() < 0.3
        depth = other_depth(change)
        self.blocks = max(2, round((nodes - 15) / PER_STEP[p.train])) if depth is None else max(2, depth)

    def dot(self, x, w, group):
        """A dot with a weight, and its backward pass; the images of time need no gradient."""
        p = self.p
        return p.dense_layer(x, w, (self.batch, p.shapes[w][1]), group, (MATRIX,) * 3, self.tied)

    def gates(self, x, h, weights):
        """One step -> gate and candidate (both batch x hidden), function from their gradients to that of h."""
        p, hidden = self.p, self.hidden
        of_x, back_x = self.kernel_only(x, weights[0])
        of_h, back_h = self.dot(h, weights[1], "state")
        both = p.each("add", of_x, of_h)
        gate = p.each("logistic", p.cut(both, 1, 0, hidden))
        candidate = p.each("tanh", p.cut(both, 1, hidden, 2 * hidden))

        def backward(of_gate, of_candidate):
            one = p.spread((self.batch, hidden))
            rest = p.each("multiply", p.each("subtract", one, gate), gate)
            slope = p.each("subtract", one, p.each("multiply", candidate))
            parts = p.each("multiply", of_gate, rest), p.each("multiply", of_candidate, slope)
            grad, _ = p.join(parts, 1)
            back_x(grad)
            return back_h(grad)

        return gate, candidate, backward

    def kernel_only(self, x, w):
        """A dot with a weight whose input needs no gradient."""
        p = self.p
        y = p.dot((self.batch, p.shapes[w][1]), x, w, "input", (MATRIX,) * 3)
        return y, lambda grad: p.update(w, p.dot(p.shapes[w], x, grad, "input" if self.tied else "kernel",
                                                 (MATRIX,) * 3))

    def step(self, series, time, h, weights):
        """h -> the next h, function from its gradient to that of h."""
        p = self.p
        x = p.cut(series, 0, time, time + 1)
        x = p.reshape(x, (self.batch, self.features), "step", (MATRIX, (2, 1)))
        gate, candidate, back_gates = self.gates(x, h, weights)
        away = p.each("subtract", candidate, h)
        out = p.each("add", h, p.each("multiply", gate, away))

        def backward(grad):
            of_candidate = p.each("multiply", gate, grad)
            of_h = p.each("subtract", grad, of_candidate)
            return p.each("add", of_h, back_gates(p.each("multiply", away, grad), of_candidate))

        return out, backward

    def grow(self):
        p, classes = self.p, 32
        series = p.add("get-tuple-element", (self.blocks, self.batch, self.features), [p.inputs])
        weights = [p.share(p.weight((rows, 2 * self.hidden), MATRIX)) for rows in (self.features, self.hidden)]
        h, backwards = p.weight((self.batch, self.hidden)), []
        for time in range(self.blocks):
            h, back = self.step(series, time, h, weights)
            backwards.append(back)
        y, back = self.dot(h, p.weight((self.hidden, classes), MATRIX), "head")
        if p.train:
            p.outputs.append(chain_rule([*backwards, back], p.each("subtract", y, p.weight(p.shapes[y]))))
            p.update_shared()
        else:
            p.outputs.append(y)
        mode = "train" if p.train else "inference"
        return p.finish(f"recurrent_net_{mode}_batch_{self.batch}_{p.dtype}", self.blocks)
