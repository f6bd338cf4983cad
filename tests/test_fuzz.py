"""Broken and odd files end in a documented error or in a whole result; what does not is noticed."""
import json
import subprocess
import sys

import fuzz
import numpy as np
import pytest

from kit.data import DataError
from lab.run import load_costs


@pytest.mark.long
def test_a_share_of_the_inputs_meets_no_foreign_exception(project):
    done = subprocess.run([sys.executable, "tests/fuzz.py", "--inputs", "680", "--seed", "1"], cwd=project, text=True,
                          capture_output=True)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1]) == (0, "680 inputs, 0 foreign"), done.stdout[-3000:] + done.stderr[-3000:]
    for line in lines[1:-1]:
        name, inputs, results, refused, foreign, *_ = line.split()
        assert (inputs, foreign) == ("40", "0") and int(results) and int(refused), line
    assert [line.split()[0] for line in lines[1:-1]] == list(fuzz.readers())


def fed(tmp_path, read, errors=(DataError,)):
    """What the table says of three inputs that are read so, and what was printed."""
    reader, said = fuzz.Reader(".x", lambda path, rng: path.write_bytes(rng.bytes(8)), read, errors), []
    return fuzz.fuzz({"toy": reader}, 3, 0, tmp_path, said.append)["toy"], "\n".join(said)


def refuse(kind, words="{path}: is broken"):
    def read(path):
        raise kind(words.format(path=path))
    return read


def test_the_documented_error_that_names_the_file_and_a_result_are_no_fault(tmp_path):
    assert fed(tmp_path, refuse(DataError))[0][:3] == [0, 3, 0]
    assert fed(tmp_path, lambda path: None)[0][:3] == [3, 0, 0]


@pytest.mark.parametrize("read, words", [
    (refuse(KeyError), "KeyError"), (refuse(ValueError), "ValueError"), (refuse(MemoryError), "MemoryError"),
    (refuse(DataError, "a file is broken"), "a file is broken"), (refuse(SystemExit), "SystemExit"),
    (lambda path: json.loads("["), "JSONDecodeError")])
def test_every_other_exception_is_foreign(tmp_path, read, words):
    row, said = fed(tmp_path, read)
    assert row[:3] == [0, 0, 3] and words in said and "toy, input 2 of seed 0" in said


@pytest.mark.parametrize("words, foreign", [
    ("{path}: node_feat has no node", False), ("{path}: edge_index is missing; there are []", False),
    ("{path}: is broken", True), ("{path}: an array is broken", True), ("node_feat of another file", True),
    ("{path}: not a readable npz file (it is)", True)])
def test_an_error_of_an_archive_that_opens_must_name_an_array(tmp_path, words, foreign):
    whole = fuzz.readers()["read_layout"]
    reader = fuzz.Reader(".npz", lambda path, rng: np.savez(path, node_feat=np.zeros(3)), refuse(DataError, words),
                         arrays=whole.arrays)
    assert {"node_feat", "edge_index", "node_config_feat", "config_runtime"} <= set(whole.arrays)
    found = fuzz.fuzz({"toy": reader}, 2, 0, tmp_path, lambda text: None)["toy"][:3]
    assert found == ([0, 0, 2] if foreign else [0, 2, 0])


def test_an_archive_that_does_not_open_has_no_array_to_name(tmp_path):
    reader = fuzz.readers()["read_tile"]._replace(write=lambda path, rng: path.write_bytes(b"PK\3\4 and no more"))
    assert fuzz.fuzz({"toy": reader}, 2, 0, tmp_path)["toy"][:3] == [0, 2, 0]


def test_a_reader_that_does_not_end_is_foreign(tmp_path, monkeypatch):
    def read(path):
        while True:
            try:
                sum(range(1000))
            except Exception as fault:
                raise DataError(f"{path}: {fault}") from fault
    monkeypatch.setattr(fuzz, "SECONDS", 0.05)
    row, said = fed(tmp_path, read)
    assert row[:3] == [0, 0, 3] and "more than 0.05 s" in said


def test_a_reader_that_takes_the_memory_is_foreign(tmp_path, monkeypatch):
    before = np.ones(32 << 20)                                                       # an earlier peak of 256 MB
    del before
    held = []
    monkeypatch.setattr(fuzz, "MEGABYTES", 20)
    row, said = fed(tmp_path, lambda path: held.append(np.ones(8 << 20)))            # 64 MB
    assert row[:3] == [0, 0, 3] and said.count("the process grew by") == 3


def test_one_seed_gives_the_same_inputs_and_another_gives_others(tmp_path):
    def seen(seed):
        files = []
        for name, reader in fuzz.readers().items():
            toy = reader._replace(read=lambda path: files.append(path.read_bytes()))
            if name != "load_checkpoint":                    # a zip with a time in it
                fuzz.fuzz({name: toy}, 3, seed, tmp_path)
        return files
    first = seen(0)
    assert len(first) == 45 and sum(a != b for a, b in zip(first, seen(1))) > 40
    assert sum(a == b for a, b in zip(first, seen(0))) > 22                            # zips hold the time


def test_damaged_predictions_are_named(tmp_path):
    path = tmp_path / "token_seed0.valid.npz"
    path.write_bytes(b"PK\3\4 and no more")
    with pytest.raises(DataError, match=r"token_seed0\.valid\.npz: unreadable predictions \(BadZipFile"):
        load_costs(path)
    np.savez(path, **{"tile:xla:a": np.zeros((2, 2))})
    with pytest.raises(DataError, match=r"tile:xla:a has shape \(2, 2\) and dtype float64, expected one axis"):
        load_costs(path)
