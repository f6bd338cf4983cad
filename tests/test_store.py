"""A store: equal inputs have one name and others another; a file is whole, or is noticed, kept and made again."""
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from kit.models import TileModel, TileModelSettings
from lab.run import Store
from lab.run.store import content_of, digest_of, read_kept

ARRAYS = {"tile:xla:a": np.arange(6.0), "tile:xla:é b": np.array([], np.int64), "whole": np.array(3)}


@dataclass
class Inner:
    rate: float = 0.1


@dataclass
class Other:
    rate: float = 0.1


@dataclass
class Settings:
    inner: object
    steps: int = 3


# values of which no two say the same
DIFFERENT = [
    None, True, 1, 1.0, "1", "", [], [[]], [1, 2], [2, 1], [1, [2]], {}, {"a": 1}, {"b": 1}, {"a": None}, {1: "a"},
    {"1": "a"}, {"a": 1, "b": 2}, [{"a": 1}, {"b": 2}], Inner(), Inner(0.2), Other(), Settings(Inner()),
    Settings(Other()), Settings(Inner(), 4), np.array(3), np.array([3]), np.array([[3]]), np.array([3], np.int32),
    np.array([3.0]), np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2), np.arange(6), np.arange(6)[::-1],
    np.array(["a"]), TileModelSettings(width=8), TileModel(TileModelSettings(width=8)),
    TileModel(TileModelSettings(width=8, seed=1))]


TABLE = np.arange(6).reshape(2, 3)
SAME = [([1, [2]], (1, (2,))), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (3, np.array([3])[0]), (0.5, np.float64(0.5)),
        (TABLE, np.asfortranarray(TABLE)), (TABLE, TABLE.T.copy().T), (np.array([0, 2, 4]), np.arange(6)[::2]),
        (TABLE, torch.from_numpy(TABLE.copy())), (Settings([1]), Settings((1,))),
        (TileModel(TileModelSettings(width=8)), TileModel(TileModelSettings(width=8)))]


def test_values_that_say_the_same_have_one_digest_and_others_another():
    for one, other in SAME:
        assert digest_of(one) == digest_of(other) and digest_of({"deep": [one]}) == digest_of({"deep": [other]}), one
    assert len({*map(digest_of, DIFFERENT)}) == len(DIFFERENT)


@pytest.mark.parametrize("odd", [object(), {1, 2}, torch.nn.Linear(2, 2), Settings])
def test_no_result_is_named_after_what_is_not_known_to_be_the_same(odd):
    with pytest.raises(TypeError, match="no result is named after a "):
        digest_of({"deep": [odd]})


def test_a_name_is_the_same_in_each_process():
    inputs = 'dict([("b", [1, None, "é"]), ("a", np.arange(6.0).reshape(2, 3).T)][::{step}])'
    code = f"import numpy as np\nfrom lab.run import Store\nprint(Store('x').name('k', {inputs}))"
    said = [subprocess.run([sys.executable, "-c", code.format(step=step)], check=True, capture_output=True, text=True,
                           env={**os.environ, "PYTHONHASHSEED": "1" if step == 1 else "2"}).stdout for step in (1, -1)]
    assert said[0] == said[1] == Store("x").name("k", {"a": np.arange(6.0).reshape(2, 3).T, "b": (1, None, "é")}) + "\n"


def test_a_result_is_made_once_and_read_as_it_was(tmp_path):
    store, calls = Store(tmp_path / "store"), []
    for _ in range(2):
        found = store.made("a-1", lambda: calls.append(1) or ARRAYS)
        assert {name: (array.dtype, array.tolist()) for name, array in found.items()} == {
            name: (array.dtype, array.tolist()) for name, array in ARRAYS.items()}
    assert calls == [1] and [path.name for path in tmp_path.glob("store/*")] == ["a-1.npz"]
    name = store.keep("costs", ARRAYS)
    assert store.keep("costs", dict(reversed(ARRAYS.items()))) == name != store.keep("costs", ARRAYS | {"whole": [3]})
    assert content_of(store.read(name)) == content_of(ARRAYS)


def test_each_cut_and_each_changed_byte_is_noticed_kept_and_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)             # slow, and of no use here
    said, small = [], {"a": np.arange(3)}
    store = Store(tmp_path, report=said.append)
    path = store.path(store.keep("k", small), ".npz")
    whole = path.read_bytes()
    damaged = [whole[:size] for size in range(len(whole))]
    damaged += [whole[:i] + bytes([whole[i] ^ 255]) + whole[i + 1:] for i in range(len(whole))]
    for data in damaged:
        path.write_bytes(data)
        found = store.find(path.stem)
        if found is None:
            kept = path.with_name(f"{path.stem}.kept-1.npz")
            assert kept.read_bytes() == data and str(path) in said[-1] and kept.name in said[-1] and not path.exists()
            store.keep("k", small)
            kept.unlink()
        else:                                            # the archive has a time, and other bytes that change nothing
            assert len(data) == len(whole)
        assert content_of(store.read(path.stem)) == content_of(small)


def test_a_result_under_the_name_of_another_is_not_taken_for_it(tmp_path):
    store = Store(tmp_path, report=lambda line: None)
    names = [store.keep("k", {"a": np.arange(size)}) for size in (3, 4)]
    store.path(names[0], ".npz").replace(store.path(names[1], ".npz"))
    assert store.find(names[1]) is None
    store.made("k-0123456789abcdef", lambda: {"a": np.arange(3)})
    assert read_kept(store.path("k-0123456789abcdef", ".npz")) is None           # its name is no digest of it


def test_a_store_knows_what_a_run_needs_of_it(tmp_path):
    store = Store(tmp_path)
    named, kept = store.name("ranked", [1]), store.keep("costs", ARRAYS)
    assert store.used == {named, kept}           # what --clean leaves, whether or not it was read


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_file_with_pickled_objects_is_taken_for_a_damaged_one_and_nothing_is_run(tmp_path):
    lines, odd = [], np.empty(1, object)
    odd[0] = Hostile(tmp_path / "run")
    np.savez(tmp_path / "costs-0.npz", odd=odd)
    assert Store(tmp_path, report=lines.append).find("costs-0") is None
    assert len(lines) == 1 and not (tmp_path / "run").exists()


def test_other_stores_are_read_and_never_written(tmp_path):
    others = [tmp_path / "one", tmp_path / "two"]
    name = [Store(other).keep("k", ARRAYS) for other in others][0]
    (others[0] / f"{name}.npz").write_bytes(b"damaged")
    before = {path: path.read_bytes() for other in others for path in other.iterdir()}
    said = []
    store = Store(tmp_path / "mine", others, said.append)
    store.made(name, lambda: ARRAYS)
    assert content_of(store.read(name)) == content_of(ARRAYS) and len(said) == 1
    assert before == {path: path.read_bytes() for other in others for path in other.iterdir()}
    assert store.keep("k", {"a": np.arange(2)}) and len([*others[1].iterdir()]) == 1


# makes a result of 100 kB in forks, of which number N is killed before its change of files number N, until one survives
KILLED = """
import itertools, os, signal, sys
import numpy as np
from pathlib import Path
from lab.run import Store
def hook(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
    if (writes or event in ("os.rename", "os.mkdir", "os.remove")) and next(left) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
for number in itertools.count(1):
    folder, left = Path(sys.argv[1], str(number)), itertools.count(number, -1)
    folder.mkdir()
    if not (pid := os.fork()):
        sys.addaudithook(hook)
        Store(folder / "store").made("a-1", lambda: {"a": np.random.default_rng(0).random(12_500)})
        os._exit(0)
    if os.waitpid(pid, 0)[1] == 0:
        break
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks as Linux does")
def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_result_or_none(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=True)
    found = [Store(tmp_path / str(number) / "store", report=pytest.fail).find("a-1")
             for number in range(1, len([*tmp_path.glob("[0-9]*")]) + 1)]
    assert found[:2] == [None, None] and found[-1]["a"].tolist() == np.random.default_rng(0).random(12_500).tolist()
