"""The tests' own data set: the official format with its quirks, and runtimes in which disagreement costs a copy."""
import numpy as np
import pytest
from sample import LayoutSimulator, write_sample

PROGRAM = ("node_feat", "node_opcode", "edge_index", "node_config_ids")


def load(path):
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def simulated(arrays, rows, parts=False):
    """Seconds of configurations (k, nc, 18) of the program in these arrays."""
    return LayoutSimulator(*(arrays[k] for k in PROGRAM))(rows, parts)


#   0 parameter -> 2 dot <- 1 parameter       2 -> 3 maximum -> 4 dot <- 1       all 1024 x 1024 float32
CHAIN = {"node_feat": np.zeros((5, 140)), "node_opcode": np.array([63, 63, 34, 57, 34]),
         "edge_index": np.array([[2, 0], [2, 1], [3, 2], [4, 1], [4, 3]]), "node_config_ids": np.array([2, 4])}
CHAIN["node_feat"][:, 13], CHAIN["node_feat"][:, 21:23], CHAIN["node_feat"][:, 134] = 1, 1024, 1
ONE_WAY = 4 * 1024 * 1024 / 450e9                                # seconds to move one of them


def chain_rows(*pairs):
    """(1, 2, 18): output, input, kernel of both Dots as "10", "01" or "" for the compiler's choice."""
    rows = np.full((1, 2, 18), -1)
    for i, pair in enumerate(pairs):
        if pair:
            rows[0, i // 3, 6 * (i % 3):6 * (i % 3) + 2] = [int(d) for d in pair]
    return rows


@pytest.mark.parametrize("pairs, moved", [
    (("", "", "", "", "", ""), 0),
    (("10", "10", "10", "10", "10", "10"), 0),                   # said aloud what the compiler does anyway
    (("01", "", "", "", "01", ""), 0),                           # turned, but both sides of the maximum agree ...
    (("01", "", "", "", "", ""), 4),                             # ... and here not: read and written at half speed
    (("", "01", "01", "", "01", "01"), 16),
])
def test_only_disagreement_is_copied(pairs, moved):
    # operand 1 of node 4 is the parameter: the earlier one is the first, so its second is the maximum
    first_last = (*pairs[:4], pairs[5], pairs[4])
    _, copies = simulated(CHAIN, chain_rows(*first_last), parts=True)
    np.testing.assert_allclose(copies, moved * ONE_WAY)


def arrays_of(folder, **options):
    root = write_sample(folder, **options)
    return {path.relative_to(root).as_posix(): load(path) for path in sorted(root.rglob("*.npz"))}


def alike(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def test_a_seed_gives_the_same_arrays_and_hidden_runtimes_are_placeholders(tmp_path):
    plain, again, hidden, other = (arrays_of(tmp_path / str(i), **options) for i, options in enumerate(
        ({}, {}, {"hidden": True}, {"seed": 1})))
    assert plain.keys() == again.keys() and all(alike(plain[name], again[name]) for name in plain)
    assert not any(alike(one, plain[name]) for name, one in other.items() if name in plain)
    assert len(plain) == len(hidden) and all((arrays["config_runtime"] > 0).all() for arrays in plain.values())
    for name, arrays in hidden.items():
        if "/test/" in name:
            assert not arrays["config_runtime"].any() and name not in plain and len(name.rpartition("/")[2]) == 36
            assert (arrays.get("config_runtime_normalizers", np.ones(1)) == 1).all()
        else:
            assert alike(arrays, plain[name])
    assert (tmp_path / "0" / "measured.csv").is_file() and not (tmp_path / "2" / "measured.csv").exists()


def test_files_have_the_keys_types_and_shapes_of_real_ones(tmp_path, real_data):
    for name, arrays in arrays_of(tmp_path).items():
        real = load(min((real_data / "npz" / name).parents[1].glob("*/*.npz")))
        form, expected = ({key: (one.dtype, one.ndim, key.endswith(("feat", "index")) and one.shape[-1])
                           for key, one in some.items()} for some in (arrays, real))
        assert form == expected, name
