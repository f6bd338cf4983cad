"""Sample data: the official format, whole or not at all, and runtimes that follow the written formulae."""
import hashlib
import math
import re
import shutil

import numpy as np
import pytest

from kit.data import OPCODE_NAMES
from lab.sample import write as sample
from lab.sample.runtimes import LayoutSimulator
from lab.sample.write import write_sample

PROGRAM = ("node_feat", "node_opcode", "edge_index", "node_config_ids")
LAYOUTS = [f"layout/{source}/{search}" for source in ("xla", "nlp") for search in ("random", "default")]


def load(path):
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def files(root, collection, split="*"):
    return sorted((root / "npz" / collection).glob(f"{split}/*.npz"))


def simulated(arrays, rows, parts=False):
    """Seconds of configurations (k, nc, 18) of the program in these arrays."""
    return LayoutSimulator(*(arrays[k] for k in PROGRAM))(rows, parts)


# The second implementation: one configuration, one node, one operand at a time; layouts as (minor, second) tuples.

WIDTHS = dict(zip(range(2, 21), (0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 0, 0, 0)))
ELEMENTWISE = {1, 2, 20, 25, 32, 37, 50, 57, 58, 59, 60, 81, 83, 94, 95, 96, 107}
CONCATENATE, SLICE = OPCODE_NAMES.index("concatenate"), OPCODE_NAMES.index("slice")
PEAK, BANDWIDTH = 61.5e12, 450e9


class Tensor:
    def __init__(self, row):
        self.dims = [int(d) for d in row[21:27] if d]
        self.width = sum(width for column, width in WIDTHS.items() if row[column])
        self.layout = [int(d) for d in row[134:134 + len(self.dims)]]
        self.default = tuple(self.layout[:2])
        self.row = row

    def bytes(self, pair):
        total = self.width
        for d, size in enumerate(self.dims):
            unit = 128 if pair[:1] == (d,) else 8 if pair[1:] == (d,) else 1
            total *= math.ceil(size / unit) * unit
        return total

    def size(self):
        return math.prod(self.dims)


def operand_lists(arrays):
    lists = [[] for _ in arrays["node_feat"]]
    for v, u in sorted(arrays["edge_index"].tolist()):
        lists[v].append(u)
    return lists


def first_and_kernel(arrays, nodes, operands, v):
    a, b = operands[v][0], operands[v][-1]
    if arrays["node_opcode"][v] == 34:
        if nodes[b].dims[0] == nodes[v].dims[0] != nodes[a].dims[0]:
            a, b = b, a
    elif arrays["node_opcode"][v] == 26:
        row, taps = nodes[v].row, []
        while len(taps) < 4 and row[37 + len(taps)]:
            taps.append(int(row[37 + len(taps)]))
        a_fits, b_fits = (all(nodes[u].dims[int(row[101 + i])] == t for i, t in enumerate(taps)) for u in (a, b))
        if a_fits and not b_fits:
            a, b = b, a
    return a, b


def slow_layout(arrays, rows):
    """(own, copies) in seconds of one configuration, rows (nc, 18)."""
    nodes, opcodes = [Tensor(row) for row in arrays["node_feat"]], arrays["node_opcode"].tolist()
    row_of = dict(zip(arrays["node_config_ids"].tolist(), rows))
    own, copies, operands_of = 0.0, 0.0, operand_lists(arrays)
    arrives = []                                       # pair of each output; None: whatever is wanted
    for v, node in enumerate(nodes):
        operands, pair = operands_of[v], node.default
        alike = [u for u in operands if len(nodes[u].dims) == len(node.dims)]
        if opcodes[v] in (26, 34, 75):
            row = row_of.get(v, [-1] * 18)
            a, b = first_and_kernel(arrays, nodes, operands_of, v)
            wanted = []
            for slot, u in ((0, v), (6, a), (12, b)):
                digits = tuple(int(d) for d in row[slot:slot + 2] if d >= 0)
                wanted.append(digits or nodes[u].default)
            pair = wanted[0]
            for u, want in {(a, wanted[1]), (b, wanted[2])} if a != b else {(a, wanted[1])}:
                if arrives[u] not in (None, want) and len(nodes[u].dims) > 1:
                    copies += (nodes[u].bytes(arrives[u]) + nodes[u].bytes(want)) / (BANDWIDTH / 2)
            ends = [p[:1] == (len(nodes[u].dims) - 1,) for p, u in zip(wanted, (v, a, b))]
            traffic = node.bytes(pair) + nodes[a].bytes(wanted[1])
            if opcodes[v] == 75:
                own += traffic / BANDWIDTH * (1 if ends[0] == ends[1] else 2)
            else:
                traffic += nodes[b].bytes(wanted[2])
                if opcodes[v] == 26:
                    contracted = int(node.row[44]) * nodes[b].dims[int(node.row[99])]
                    features = node.dims[int(node.row[106])]
                else:
                    same_rank = len(node.dims) == len(nodes[a].dims) == len(nodes[b].dims)
                    batch = math.prod(node.dims[:-2]) if same_rank else 1
                    contracted = math.sqrt(nodes[a].size() * nodes[b].size() / node.size() / batch)
                    features = node.dims[-1]
                fill = contracted / (128 * math.ceil(contracted / 128)) * features / (128 * math.ceil(features / 128))
                compute = 2 * node.size() * contracted / PEAK / fill
                own += max(compute * (1 if ends[0] else 1.5), traffic / BANDWIDTH)
        elif opcodes[v] in (13, 24, 48):
            pair = None
        elif opcodes[v] == 98:
            came = arrives[operands[0]]
            source = [int(d) for d in node.row[31:31 + len(node.dims)]]       # of the operand
            pair = came and tuple(source.index(d) for d in came)
        elif (opcodes[v] in ELEMENTWISE or opcodes[v] in (CONCATENATE, 72, 76, SLICE, 84)) and alike:
            fixed = [u for u in alike if arrives[u] is not None]
            pair = arrives[fixed[-1]] if fixed else None
            for u in fixed[:-1]:
                if arrives[u] != pair and not nodes[u].row[3] and len(nodes[u].dims) > 1:
                    copies += nodes[u].bytes(arrives[u]) / (BANDWIDTH / 2)
        if opcodes[v] in (CONCATENATE, 70, 72, 84):
            own += sum(nodes[u].bytes(nodes[u].default) for u in (v, *operands)) / BANDWIDTH
        elif opcodes[v] == SLICE:
            own += 2 * node.bytes(node.default) / BANDWIDTH
        arrives.append(pair)
    return own, copies


@pytest.mark.parametrize("collection", LAYOUTS)
def test_layout_runtimes_are_those_of_the_formulae_node_by_node(tiny_sample, collection):
    rng = np.random.default_rng(0)
    for path in files(tiny_sample, collection)[:4]:
        arrays = load(path)
        rows = arrays["node_config_feat"][:3].astype(int)
        mixed = arrays["node_config_feat"][rng.integers(90, size=rows.shape[1]), np.arange(rows.shape[1])].astype(int)
        rows = np.concatenate([rows, mixed[None]])                        # groups torn apart as well
        own, copies = simulated(arrays, rows, parts=True)
        expected = [slow_layout(arrays, row) for row in rows]
        np.testing.assert_allclose(np.stack([own, copies], 1), expected, rtol=1e-9)


def test_layout_runtimes_of_real_programs_are_those_of_the_formulae(real_data):
    for folder in ("xla/random/train", "xla/default/test", "nlp/random/test"):
        arrays = load(min((real_data / "npz" / "layout" / folder).glob("*.npz")))
        rows = arrays["node_config_feat"][:4].astype(int)
        found = np.stack(simulated(arrays, rows, parts=True), 1)
        np.testing.assert_allclose(found, [slow_layout(arrays, row) for row in rows], rtol=1e-9)
        assert (found > 0).all()


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


def test_test_labels_are_placeholders_and_the_truth_stands_beside(tiny_sample):
    for collection in ["tile/xla", *LAYOUTS]:
        for path in files(tiny_sample, collection):
            arrays, truth = load(path), tiny_sample / "truth" / path.relative_to(tiny_sample / "npz")
            assert truth.is_file() == (path.parent.name == "test")
            if truth.is_file():
                assert not arrays["config_runtime"].any()
                assert (arrays.get("config_runtime_normalizers", np.ones(1)) == 1).all()
                assert {k for k in arrays if k.startswith("config_runtime")} == set(load(truth))
                assert all((a > 0).all() and a.shape == arrays[k].shape for k, a in load(truth).items())
            else:
                assert (arrays["config_runtime"] > 0).all()
    assert "Sample data" in (tiny_sample / "README.txt").read_text()


def contents(folder):
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files if "prepared" not in p.parts}


def test_same_seed_same_bytes_and_progress_only_if_asked(tiny_sample, tmp_path, capsys):
    npz = write_sample(tmp_path / "again", seed=0, size="tiny")
    assert npz == tmp_path / "again/npz" and contents(npz.parent) == contents(tiny_sample)
    assert capsys.readouterr().out == ""
    other = contents(write_sample(tmp_path / "other", seed=1, size="tiny", progress=True))
    assert capsys.readouterr().out.splitlines() == [f"sample data: {split} written ({done} of 3)"
                                                    for done, split in enumerate(("train", "valid", "test"), 1)]
    assert not set(other.values()) & set(contents(npz).values())


def test_a_whole_sample_is_not_written_again(tiny_sample, tmp_path, monkeypatch, capsys):
    root = tmp_path / "copy"
    shutil.copytree(tiny_sample, root, ignore=shutil.ignore_patterns("prepared"))
    monkeypatch.setattr(sample, "_write_kernel", None)
    assert write_sample(root, size="tiny", progress=True) == root / "npz"
    assert capsys.readouterr().out == ""


def test_an_interrupted_write_leaves_nothing(tiny_sample, tmp_path, monkeypatch):
    root, calls, whole = tmp_path / "deep/sample", [], sample._write_program

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        whole(*args)

    with monkeypatch.context() as patch:
        patch.setattr(sample, "_write_program", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_sample(root, size="tiny")
    assert len(calls) == 4 and list(root.parent.iterdir()) == []
    write_sample(root, size="tiny")
    assert contents(root) == contents(tiny_sample) and list(root.parent.iterdir()) == [root]


def test_a_folder_with_other_content_is_refused(tiny_sample, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ValueError) as error:
        write_sample(tmp_path, size="tiny")
    assert str(error.value) == (f"{tmp_path} holds something else; expected Sample data, format 1, seed 0, size tiny, "
                                "40 files. Delete the folder or give another one.")
    with pytest.raises(ValueError, match="holds Sample data, format 1, seed 0, size tiny, 40 files.; expected Sample "
                                         "data, format 1, seed 5, size tiny"):
        write_sample(tiny_sample, seed=5, size="tiny")
    root = tmp_path / "partial"
    shutil.copytree(tiny_sample, root, ignore=shutil.ignore_patterns("prepared"))
    files(root, "tile/xla")[0].unlink()
    with pytest.raises(ValueError, match=re.escape("39 npz files; expected 40. Delete the folder to have it written")):
        write_sample(root, size="tiny")
    with pytest.raises(ValueError, match="size is 'huge'; expected 'tiny' or 'small'"):
        write_sample(tmp_path / "new", size="huge")
    assert not (tmp_path / "new").exists() and (tmp_path / "note.txt").read_text() == "mine"


# the sample data of a seed never change

def content_of(root):
    """A digest of all arrays below a folder, with their names, types and shapes."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.npz")):
        for key, array in sorted(load(path).items()):
            digest.update(f"{path.relative_to(root).as_posix()} {key} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("size, relatives, digest", [
    ("tiny", 0, "33b5bd367c03ef00"), ("tiny", 1, "a8433661785b9127"), ("small", 0, "25a7f07d37cf4c5a")])
def test_the_sample_data_that_all_published_numbers_rest_on_stay_as_they_are(tmp_path, size, relatives, digest):
    assert content_of(write_sample(tmp_path / "sample", size=size, relatives=relatives).parent) == digest
