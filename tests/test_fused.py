"""The fused layers against plain PyTorch, finite differences, and themselves cut into other blocks."""
import itertools
import sys
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kit.models.fused import BlockEnd, GatedBlock, SageLayer, kept, norm_of, normed, over_nodes
from kit.models.layers import mean_messages

DRAWN = np.array([[0, 1], [1, 2], [0, 2], [0, 2], [4, 4], [3, 2], [6, 5]])       # 7 nodes
TURNED = DRAWN[:, ::-1]
BLOCKS = pytest.mark.parametrize("values, threads", [(1 << 19, 1), (1, 1), (30, 2), (1, 3)],
                                 ids=["one block", "a node each", "two threads", "three threads"])


@pytest.fixture
def cut(monkeypatch):
    """cut(values, threads): blocks of at most so many values of x, dealt out to so many threads."""
    before = torch.get_num_threads()

    def set_both(values, threads):
        monkeypatch.setattr("kit.models.fused.CPU_BLOCK", values)
        torch.set_num_threads(threads)
    yield set_both
    torch.set_num_threads(before)


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


def messages_of(*ways, dtype=torch.float64):
    made = [mean_messages(edges, 7) for edges in ways]
    return tuple(m._replace(matrix=m.matrix.to(dtype), transposed=m.transposed.to(dtype)) for m in made)


def plain_norm(x):
    return nn.InstanceNorm1d(x.shape[2])(x.permute(1, 2, 0)).permute(2, 0, 1)


def plain_sage(x, norm, messages, bias, own, *neighbours):
    y = plain_norm(x) if norm else x
    out = y @ own.T + bias
    for one, weight in zip(messages, neighbours, strict=True):
        out = out + torch.einsum("uv,vkw->ukw", one.matrix.to_dense(), y) @ weight.T
    return out


def plain_end(x, shortcut, norm, temperature, squeeze, squeeze_bias, excite, excite_bias):
    x = plain_norm(x) if norm else x
    if squeeze is not None:
        x = x * torch.sigmoid((x @ squeeze.T + squeeze_bias).relu() @ excite.T + excite_bias)
    if temperature is not None:
        x = torch.cat([x, x * (x / temperature).softmax(dim=1)], dim=2)
    return F.gelu(x if shortcut is None else x + shortcut)


def gate_of(width, hidden, dtype=torch.float64):
    return [drawn(*shape, seed=seed, dtype=dtype) for seed, shape in
            enumerate([(hidden, width), (hidden,), (width, hidden), (width,)], start=5)]


@BLOCKS
def test_every_node_is_dealt_out_once_and_results_are_in_order(values, threads, cut):
    cut(values, threads)
    assert [node for part in over_nodes(lambda s: range(7)[s], torch.zeros(7, 2, 3)) for node in part] == list(range(7))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("bad", [0, 6])
def test_what_goes_wrong_in_a_block_is_raised_and_leaves_the_threads_as_they_were(bad, cut):
    cut(1, 2)
    with pytest.raises(ZeroDivisionError):
        over_nodes(lambda s: 1 / (s.start - bad), torch.zeros(7, 2, 3))
    assert torch.get_num_threads() == 2


@BLOCKS
def test_the_norm_is_instance_norm_and_does_not_cancel(values, threads, cut):
    cut(values, threads)
    x = drawn(7, 3, 5, dtype=torch.float32).detach() * 4 + 1000
    theirs = plain_norm(x.double())
    assert torch.allclose(normed(x, slice(None), norm_of(x)).double(), theirs, atol=2e-3)      # x has 24 bits
    assert torch.allclose(normed(x.double(), slice(None), norm_of(x.double())), theirs, atol=1e-9)


def assert_same_gradients(ours, theirs, inputs):
    """Two functions of `inputs` agree in their value and in the gradients of a weighted sum of it."""
    inputs, weight = [i for i in inputs if i is not None], drawn(*ours.shape, seed=9).detach()
    results = [[out, *torch.autograd.grad((out * weight).sum(), inputs)] for out in (ours, theirs)]
    assert all(torch.allclose(a, b) for a, b in zip(*results, strict=True))


@BLOCKS
@pytest.mark.parametrize("ways", [(), (DRAWN,), (DRAWN, TURNED)], ids=["linear", "one way", "both ways"])
@pytest.mark.parametrize("norm", [False, True])
def test_the_sage_layer_is_its_plain_twin(norm, ways, values, threads, cut):
    cut(values, threads)
    messages, x, bias = messages_of(*ways), drawn(7, 2, 3), drawn(4, seed=1)
    weights = [drawn(4, 3, seed=2 + way) for way in range(1 + len(ways))]
    same, out = SageLayer.apply(x, norm, messages, "sparse", bias, *weights)
    assert torch.equal(same, x)
    plain = plain_sage(x, norm, messages, bias, *weights)
    assert_same_gradients(torch.cat([out, 2 * same], dim=2), torch.cat([plain, 2 * x], dim=2), [x, bias, *weights])


def test_torch_scatter_would_give_the_same(monkeypatch):
    scatter = types.ModuleType("torch_scatter")

    def segment_csr(source, pointer, reduce):
        assert reduce == "mean"
        return torch.stack([source[a:b].mean(0) if b > a else 0 * source[0]
                            for a, b in zip(pointer.tolist(), pointer.tolist()[1:])])
    scatter.segment_csr = segment_csr
    monkeypatch.setitem(sys.modules, "torch_scatter", scatter)
    inputs, results = (drawn(7, 2, 3), drawn(4), drawn(4, 3), drawn(4, 3, seed=1)), []
    for how in ("sparse", "scatter"):
        _, out = SageLayer.apply(inputs[0], True, messages_of(DRAWN), how, *inputs[1:])
        results.append([out, *torch.autograd.grad((out ** 2).sum(), inputs)])
    assert all(torch.allclose(a, b) for a, b in zip(*results, strict=True))


def drawn_end(norm, shortcut, gate, attends):
    """Inputs of a block's end, drawn, and whether it has a norm."""
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True) if attends else None
    shortcut = drawn(7, 4, 3 if temperature is None else 6, seed=1) if shortcut else None
    return (drawn(7, 4, 3), shortcut, temperature, *(gate_of(3, 2) if gate else [None] * 4)), norm


ENDS = pytest.mark.parametrize("end", list(itertools.product(*[[False, True]] * 4)))


@BLOCKS
@ENDS
def test_a_block_s_end_is_its_plain_twin(end, values, threads, cut):
    cut(values, threads)
    inputs, norm = drawn_end(*end)
    ours = GatedBlock.apply(*inputs[:2], norm, 0.0, *inputs[2:])
    assert_same_gradients(ours, plain_end(*inputs[:2], norm, *inputs[2:]), inputs)


@BLOCKS
def test_the_backward_pass_drops_what_the_forward_pass_dropped(values, threads, cut):
    cut(values, threads)
    x = drawn(7, 40, 30)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = GatedBlock.apply(x, None, False, 0.25, None, *[None] * 4)
        torch.manual_seed(0)
        again = GatedBlock.apply(x, None, False, 0.25, None, *[None] * 4)
        other = GatedBlock.apply(x, None, False, 0.25, None, *[None] * 4)
    assert torch.equal(out, again) and not torch.equal(out, other)
    mask = out / F.gelu(x)
    assert torch.allclose(mask, torch.where(mask > 0, 1 / 0.75, 0.0).double())
    assert 0.2 < (mask == 0).double().mean() < 0.3
    ours, = torch.autograd.grad((out ** 2).sum(), x)
    theirs, = torch.autograd.grad(((F.gelu(x) * mask.detach()) ** 2).sum(), x)
    assert torch.allclose(ours, theirs)


@pytest.mark.parametrize("dropout", [0.1, 0.2, 0.5])
def test_dropout_keeps_the_stated_share_and_the_mean(dropout):
    masks = torch.stack([kept(7, slice(start, start + 1), torch.empty(9_999), dropout) for start in range(150)])
    dropped = (masks == 0).float()
    assert abs(dropped.mean() - dropout) < 5 * (dropout * (1 - dropout) / masks.numel()) ** 0.5 + 1 / 256 / 20
    assert torch.allclose(masks[masks > 0], torch.tensor(1 / (1 - dropout)))
    correlation = torch.corrcoef(torch.cat([dropped[:10], dropped[:1].roll(1, 1), dropped[:1].roll(8, 1)]))
    assert (correlation - torch.eye(12)).abs().max() < 5 / 9_999 ** 0.5


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_types_stay_near_float32_and_give_weights_float32_gradients(half):
    x, shortcut = drawn(7, 60, 8, dtype=torch.float32), drawn(7, 60, 16, seed=1, dtype=torch.float32)
    bias = drawn(16, seed=2, dtype=torch.float32)
    weights, messages = [drawn(16, 8, seed=seed, dtype=torch.float32) for seed in (3, 4)], messages_of(
        DRAWN, dtype=torch.float32)
    parameters = [torch.tensor(0.5, requires_grad=True), *gate_of(16, 4, torch.float32)]
    results = []
    for dtype in (torch.float32, half):
        inputs = [x.detach().to(dtype).requires_grad_(), shortcut.detach().to(dtype).requires_grad_()]
        same, out = SageLayer.apply(inputs[0], True, messages, "sparse", bias, *weights)
        out = GatedBlock.apply(out, torch.cat([same, same, inputs[1]], dim=2), True, 0.0, *parameters)
        assert out.dtype == dtype
        grads = torch.autograd.grad(out.float().square().sum(), [*inputs, *weights, *parameters])
        assert [g.dtype for g in grads] == 2 * [dtype] + 7 * [torch.float32]
        results.append([out, *grads])
    for exact, near in zip(*results, strict=True):
        assert (near.float() - exact).norm() < 40 * torch.finfo(half).eps * exact.norm()     # 4% and 31%


def test_inference_mode_and_threads_go_together(cut):
    cut(1, 2)
    end, x = BlockEnd(4, 2, True), drawn(7, 3, 4, dtype=torch.float32)
    with torch.inference_mode():
        quick = end(x, norm=True)
    assert quick.is_inference() and torch.allclose(quick, end(x, norm=True))
