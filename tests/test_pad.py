"""The 0 -> -1 repair touches what it can prove and nothing else."""
import numpy as np
import pytest

from kit import hlo, pad
from kit.data import read_layout, read_tile
from kit.pad import pad_batch, repad_layout, tensor_rank

OTHERS = np.r_[0:134]            # all columns but the layout's


@pytest.mark.parametrize("name, field", [
    ("SHAPE", "shape.dimensions"), ("DIMENSIONS", "dimensions"), ("WINDOW_SIZE", "window.dimensions.size"),
    ("WINDOW_STRIDE", "window.dimensions.stride"), ("KERNEL_SPATIAL", "convolution.kernel_spatial"),
    ("LAYOUT", "shape.layout.minor_to_major"), ("PARAMETER_NUMBER", "parameter_number"),
    ("KERNEL_INPUT", "convolution.kernel_in"), ("OUTPUT_FEATURE", "convolution.output_feature")])
def test_columns_have_the_name_of_the_field_that_they_are_extracted_from(name, field):
    columns = getattr(pad, name)
    if isinstance(columns, slice):
        assert hlo.NODE_SEQUENCES[columns.start][::2] == (columns.stop - columns.start, field)
    else:
        assert hlo.NODE_SCALARS[columns] == field


def feat(*rows):
    """node_feat of nodes given as (sizes, layout digits)."""
    node_feat = np.random.default_rng(0).normal(size=(len(rows), 140)).astype(np.float32)
    node_feat[:, 21:27], node_feat[:, 134:140] = 0, 0
    for row, (sizes, digits) in zip(node_feat, rows):
        row[21:21 + len(sizes)], row[134:134 + len(digits)] = sizes, digits
    return node_feat


def slow_repad(node_feat):
    out, repaired = node_feat.copy(), 0
    for row in out:
        rank = 0
        for size in row[21:27]:
            rank += size != 0
        if sorted(row[134:134 + rank].tolist()) == list(range(rank)):
            repaired += 1
            for place in range(rank, 6):
                row[134 + place] = -1
    return out, repaired / len(out)


def random_feat(rng, n=200):
    """Mostly right rows, some with a broken layout."""
    rows = []
    for _ in range(n):
        rank = rng.integers(0, 7)
        digits = rng.permutation(rank) if rng.random() < 0.8 else rng.integers(-1, 6, 6)
        rows.append((rng.integers(1, 1000, rank), digits))
    return feat(*rows)


@pytest.mark.parametrize("sizes, digits, repaired", [
    ([8, 128], [1, 0], [1, 0, -1, -1, -1, -1]),
    ([8], [0], [0, -1, -1, -1, -1, -1]),
    ([], [], [-1] * 6),
    ([2, 3, 4, 5, 6, 7], [5, 4, 3, 2, 1, 0], [5, 4, 3, 2, 1, 0]),
    ([8, 128], [1, 0, 4], [1, 0, -1, -1, -1, -1]),
])
def test_a_right_layout_gets_minus_one_past_its_rank(sizes, digits, repaired):
    out, share = repad_layout(feat((sizes, digits)))
    assert out[0, 134:].tolist() == repaired and share == 1.0
    assert tensor_rank(out).tolist() == [len(sizes)]


@pytest.mark.parametrize("sizes, digits", [([8, 128], [0, 0]), ([8, 128], [1, 2]), ([8, 128], [1, -1]), ([8], [1]),
                                           ([8, 128], [0.5, 0]), ([8, 128], [1, np.nan])])
def test_a_layout_that_is_no_permutation_stays_as_it_is(sizes, digits):
    node_feat = feat((sizes, digits), ([8], [0]))
    out, share = repad_layout(node_feat)
    assert np.array_equal(out[0], node_feat[0], equal_nan=True) and share == 0.5
    assert out[1, 134:].tolist() == [0, -1, -1, -1, -1, -1]


def test_the_repair_is_that_of_a_slow_loop_and_doing_it_twice_changes_nothing():
    rng = np.random.default_rng(1)
    for _ in range(5):
        node_feat = random_feat(rng)
        before = node_feat.copy()
        out, share = repad_layout(node_feat)
        slow, slow_share = slow_repad(node_feat)
        assert np.array_equal(out, slow) and share == pytest.approx(slow_share) and 0.5 < share < 1
        assert np.array_equal(repad_layout(out)[0], out) and repad_layout(out)[1] == share
        assert np.array_equal(node_feat, before) and np.array_equal(out[:, OTHERS], before[:, OTHERS])
        assert out.dtype == np.float32


def test_the_rank_is_the_number_of_sizes():
    node_feat = random_feat(np.random.default_rng(2))
    assert tensor_rank(node_feat).tolist() == [sum(x != 0 for x in row[21:27]) for row in node_feat]
    assert tensor_rank(node_feat).dtype == np.int64


def test_no_node_needs_no_repair():
    out, share = repad_layout(np.zeros((0, 140), np.float32))
    assert out.shape == (0, 140) and share == 1.0


def test_every_node_of_the_real_files_is_repaired(real_data):
    paths = sorted((real_data / "npz").glob("*/**/*.npz"))
    assert paths
    for path in paths:
        graph = read_tile(path) if "tile" in path.parts else read_layout(path)
        assert repad_layout(graph.node_feat)[1] == 1.0, path


@pytest.mark.parametrize("trailing", [(), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool])
def test_a_batch_holds_every_array_and_the_fill(trailing, dtype):
    rng = np.random.default_rng(3)
    for _ in range(10):
        arrays = [rng.integers(0, 2, (rng.integers(0, 6), *trailing)).astype(dtype)
                  for _ in range(rng.integers(1, 5))]
        batch, mask = pad_batch(arrays, fill=1)
        assert batch.dtype == dtype and mask.dtype == bool
        assert batch.shape == (len(arrays), max(map(len, arrays)), *trailing) and mask.shape == batch.shape[:2]
        for row, real, array in zip(batch, mask, arrays):
            assert real.tolist() == [True] * len(array) + [False] * (len(row) - len(array))
            assert np.array_equal(row[:len(array)], array) and (row[len(array):] == 1).all()


@pytest.mark.parametrize("arrays, found", [
    ([], r"\[\]"),
    ([np.zeros(3), np.zeros(3, np.float32)], r"\[\"\(dtype\('float32'\), \(\)\)\", \"\(dtype\('float64'\), \(\)\)\"\]"),
    ([np.zeros((2, 3)), np.zeros((2, 4))], r"\[\"\(dtype\('float64'\), \(3,\)\)\", .*"),
])
def test_arrays_that_do_not_stack_are_refused(arrays, found):
    with pytest.raises(ValueError, match=f"^arrays of one dtype and one trailing shape are needed, got {found}$"):
        pad_batch(arrays)
