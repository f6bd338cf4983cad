"""Message passing against slow loops, dense matrices and torch-scatter; memory that is used again."""
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kit.models.layers import (
    NUMERIC,
    Sage,
    aggregate,
    fastest_aggregation,
    fresh,
    mean_messages,
    spare_memory,
)
from kit.models.tile import TileModel
from kit.scale import signed_log

#   0 -> 1 -> 2      4 -> 4       5: alone
#   0 => 2 (twice)   3 -> 2
DRAWN = np.array([[0, 1], [1, 2], [0, 2], [0, 2], [4, 4], [3, 2]])
NONE = np.zeros((0, 2), np.int64)
EDGES = pytest.mark.parametrize("edges", [DRAWN, DRAWN[::-1], DRAWN[:, ::-1], DRAWN[:1], NONE],
                                ids=["drawn", "reordered", "turned", "one edge", "no edges"])


def slow_mean(edges, x):
    out = 0 * x
    for node in range(len(x)):
        senders = [u for u, v in edges.tolist() if v == node]
        if senders:
            out[node] = sum(x[u] for u in senders) / len(senders)
    return out


def in_double(messages):
    return messages._replace(matrix=messages.matrix.double(), transposed=messages.transposed.double())


def drawn_x(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@EDGES
@pytest.mark.parametrize("shape", [(6,), (6, 3, 2)])
def test_sparse_mean_is_the_slow_mean(edges, shape):
    x = drawn_x(*shape)
    assert torch.allclose(aggregate(in_double(mean_messages(edges, 6)), x), slow_mean(edges, x), atol=1e-6)


@EDGES
def test_sparse_mean_of_large_graphs_is_that_of_a_dense_matrix(edges):
    rng = np.random.default_rng(0)
    edges = np.concatenate([edges, rng.integers(0, 300, (900, 2))])
    dense = torch.zeros(300, 300)
    dense.index_put_((torch.as_tensor(edges[:, 1].copy()), torch.as_tensor(edges[:, 0].copy())), torch.tensor(1.0),
                     accumulate=True)
    dense /= dense.sum(1, keepdim=True).clamp(min=1)
    x = drawn_x(300, 4, 5, dtype=torch.float32)
    assert torch.allclose(aggregate(mean_messages(edges, 300), x), torch.einsum("uv,vkw->ukw", dense, x), atol=1e-6)


@EDGES
def test_the_gradient_is_that_of_finite_differences_and_of_the_slow_mean(edges):
    messages, x = in_double(mean_messages(edges, 6)), drawn_x(6, 2, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: aggregate(messages, x), x)
    weight = drawn_x(6, 2, 2)
    ours = torch.autograd.grad((aggregate(messages, x) * weight).sum(), x)[0]
    theirs = torch.autograd.grad((slow_mean(edges, x) * weight).sum(), x)[0]
    assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.scatter
@EDGES
def test_torch_scatter_gives_the_same_means_and_gradients(edges):
    messages, x = in_double(mean_messages(edges, 6)), drawn_x(6, 3, 2).requires_grad_()
    assert torch.allclose(aggregate(messages, x, "scatter"), slow_mean(edges, x), atol=1e-6)
    weight = drawn_x(6, 3, 2)
    both = [torch.autograd.grad((aggregate(messages, x, how) * weight).sum(), x)[0] for how in ("sparse", "scatter")]
    assert torch.allclose(*both, atol=1e-6)


@pytest.mark.parametrize("fault", [ImportError, OSError])
def test_a_torch_scatter_that_does_not_load_is_passed_over(fault, monkeypatch):
    class Broken(types.ModuleType):
        def __getattr__(self, name):
            raise fault("undefined symbol")
    monkeypatch.setitem(sys.modules, "torch_scatter", Broken("torch_scatter"))
    how, seconds = fastest_aggregation(mean_messages(DRAWN, 6), width=8, repeats=1)
    assert how == "sparse" and list(seconds) == ["sparse"]


def test_a_faster_torch_scatter_is_chosen(monkeypatch):
    """A stand-in that says what torch-scatter says, through the same call; its time is not the point."""
    scatter = types.ModuleType("torch_scatter")

    def segment_csr(source, pointer, reduce):
        assert reduce == "mean"
        parts = [source[a:b].mean(0) if b > a else source.new_zeros(source.shape[1:])
                 for a, b in zip(pointer.tolist(), pointer.tolist()[1:])]
        return torch.stack(parts)
    scatter.segment_csr = segment_csr
    monkeypatch.setitem(sys.modules, "torch_scatter", scatter)
    messages, x = in_double(mean_messages(DRAWN, 6)), drawn_x(6, 3, 2)
    assert torch.allclose(aggregate(messages, x, "scatter"), slow_mean(DRAWN, x), atol=1e-6)
    clock = iter([0, 5, 0, 3])           # sparse takes 5 s, the stand-in 3
    monkeypatch.setattr("kit.models.layers.time.perf_counter", lambda: next(clock))
    assert fastest_aggregation(mean_messages(DRAWN, 6), width=8, repeats=1) == ("scatter", {"sparse": 5, "scatter": 3})


@pytest.mark.parametrize("directions", [1, 2])
def test_sage_projects_the_mean_of_the_neighbours(directions):
    sage, x = Sage(5, 3, directions, "sparse"), drawn_x(6, 2, 5, dtype=torch.float32)
    ways = [DRAWN, DRAWN[:, ::-1]][:directions]
    slow = sage.own(x) + sum(linear(slow_mean(edges, x)) for linear, edges in zip(sage.neighbours, ways))
    ours = sage(x, [mean_messages(edges, 6) for edges in ways])
    assert torch.allclose(ours, slow, atol=1e-6)


def test_node_tensors_are_scaled_numbers_opcodes_and_repaired_digits():
    node_feat = np.zeros((2, 140), np.float32)
    node_feat[0, [0, 21, 22, 30]] = 1, 8, 128, -2
    node_feat[0, 134:140] = 1, 0, 0, 0, 0, 0                          # rank 2, the rest is padding
    model = TileModel()
    model.node_scale[0], model.node_scale[1] = 0.5, 2.0
    tensors = model.tensors_of(SimpleNamespace, node_feat, np.array([3, 120]), (DRAWN[:0],),
                               wide=np.array([65_535], np.uint16))
    numeric, opcode, layout = tensors.numeric, tensors.opcode, tensors.layout
    assert tensors.wide.tolist() == [65_535] and len(tensors.messages) == 1
    assert numeric.dtype == torch.float32 and opcode.tolist() == [3, 120]
    assert np.allclose(numeric, (signed_log(node_feat[:, :NUMERIC]) - 0.5) * 2, atol=1e-6)
    assert layout.tolist() == [[3, 2, 1, 1, 1, 1], [1] * 6]           # digits + 2


@pytest.mark.parametrize("edges, reach", [(DRAWN, 5), (DRAWN[:, ::-1], 5), (DRAWN[:2], 2), (NONE, 0)])
def test_beyond_their_reach_nodes_send_nothing(edges, reach):
    messages = mean_messages(edges, 6)
    assert messages.reach == reach
    assert reach == 1 + max(messages.matrix.to_dense().any(0).nonzero().ravel().tolist(), default=-1)


def test_memory_is_used_again_once_its_tensor_is_gone_and_not_before():
    spare_memory().clear()
    like = torch.zeros(0)
    first = fresh(like, 3, 4)
    place, view = first.data_ptr(), first[1:]
    assert first.shape == (3, 4) and first.dtype == torch.float32
    del first
    assert spare_memory() == []                                       # a view is left
    del view
    smaller = fresh(like.bfloat16(), 4, 4)                            # 32 of 48 bytes
    assert smaller.data_ptr() == place and smaller.dtype == torch.bfloat16
    assert fresh(like, 3, 4).data_ptr() != place


def test_spare_memory_is_dropped_where_none_fits():
    spare_memory().clear()
    fresh(torch.zeros(0), 100)
    assert [len(memory) for memory in spare_memory()] == [400]
    kept = fresh(torch.zeros(0), 49)                                  # less than half
    assert spare_memory() == [] and kept.shape == (49,)
    del kept
    fresh(torch.zeros(0), 50)
    assert [len(memory) for memory in spare_memory()] == [200]
