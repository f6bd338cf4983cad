"""Checkpoints: what is saved comes back; damaged and hostile files are refused and not run."""
import dataclasses
import os
import pickle
import re

import pytest
import torch
from training import TINY, same, scripted, trained

from kit.models import LayoutGNN, TileModel
from kit.train_parts.checkpoints import load_checkpoint, save_checkpoint


class Hostile:
    """Unpickling it makes a folder."""
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def readers(path):
    """Both ways of reading a checkpoint."""
    return lambda: load_checkpoint(path, LayoutGNN(TINY)), lambda: trained(path)


@pytest.mark.parametrize("write", [torch.save, lambda thing, path: path.write_bytes(pickle.dumps(thing))],
                         ids=["zip", "pickle"])
def test_a_hostile_pickle_is_refused_and_not_run(write, tmp_path):
    path, trap = tmp_path / "m.pt", tmp_path / "trap"
    write({"model": LayoutGNN(TINY).state_dict(), "extra": Hostile(trap)}, path)
    for read in readers(path):
        with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: not a checkpoint, or a damaged one"):
            read()
    assert not trap.exists()
    pickle.loads(pickle.dumps(Hostile(trap)))
    assert trap.exists()                              # the trap does work


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_file_is_named_with_the_cure(share, tmp_path):
    path = tmp_path / "m.pt"
    trained(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:int(share * len(whole))])
    for read in readers(path):
        with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: not a checkpoint, or a damaged one \(\w+\); "
                                             "delete it and train anew, or fetch it again$"):
            read()


@pytest.mark.parametrize("thing", [{"weights": 1}, {"model": 3}, torch.zeros(3)])
def test_a_file_without_weights_is_refused(thing, tmp_path):
    torch.save(thing, tmp_path / "m.pt")
    for read in readers(tmp_path / "m.pt"):
        with pytest.raises(ValueError, match="not a checkpoint, or a damaged one"):
            read()


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.pt"):
        load_checkpoint(tmp_path / "none.pt", LayoutGNN(TINY))


def test_weights_of_another_network_are_refused(tmp_path):
    save_checkpoint(tmp_path / "m.pt", LayoutGNN(TINY))
    with pytest.raises(ValueError, match=r"m\.pt: holds the weights of another model than TileModelSettings\(width=64"):
        load_checkpoint(tmp_path / "m.pt", TileModel())


def test_what_is_saved_comes_back(tmp_path):
    model, other = LayoutGNN(TINY), LayoutGNN(dataclasses.replace(TINY, seed=1))
    save_checkpoint(tmp_path / "m.pt", model, note="x", numbers=[1, 2.5], table={"t": torch.arange(3)})
    extra = load_checkpoint(tmp_path / "m.pt", other)
    assert same(other.state_dict(), model.state_dict())
    assert extra["note"] == "x" and extra["numbers"] == [1, 2.5] and extra["table"]["t"].tolist() == [0, 1, 2]


def test_of_a_training_checkpoint_the_best_weights_are_loaded(tmp_path):
    best, history = trained(tmp_path / "m.pt", score=scripted([0.5, 0.9, 0.1]))
    model = LayoutGNN(TINY)
    extra = load_checkpoint(tmp_path / "m.pt", model)
    assert history["best_step"] == 8 and extra["step"] == 12
    assert same(model.state_dict(), best)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    save_checkpoint(tmp_path / "m.pt", LayoutGNN(TINY), note="old")
    def full(thing, path):
        path.write(b"half")
        raise OSError("no space left on device")
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(tmp_path / "m.pt", LayoutGNN(TINY), note="new")
    assert load_checkpoint(tmp_path / "m.pt", LayoutGNN(TINY))["note"] == "old"
