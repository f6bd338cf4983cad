"""Unseen programs with their hidden runtimes, training that is not repeated, paired differences."""
from dataclasses import replace

import numpy as np
import pytest
from drawn import drawn_layout

import lab.studies.compare
from kit.data import COLLECTIONS, SPLITS, npz_paths, target
from kit.models import ConfigTokenModel, ConfigTokenSettings
from kit.noise import bootstrap_interval
from kit.predict import predict
from kit.recipes import Recipe
from kit.train import TrainSettings, train
from lab.run import Store
from lab.sample.write import write_sample
from lab.studies.compare import differences, rank_unseen, unseen_programs

TINY = Recipe(ConfigTokenModel, ConfigTokenSettings(width=4, token_width=4), TrainSettings(3, 8, validate_every=3))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_sample(tmp_path_factory.mktemp("compare") / "sample-tiny", size="tiny")


@pytest.mark.parametrize("collection", ["tile:xla", "layout:nlp:default"])
def test_unseen_programs_are_all_of_a_second_sample_with_what_its_test_files_hide(root, collection):
    found = unseen_programs(root, collection, True, size="tiny", seed=5)
    second = root.parent.with_name("sample-tiny-seed5")
    assert len(found) == sum(len(npz_paths(root, collection, split)) for split in SPLITS)
    for graph in found:
        path = next(p for split in SPLITS for p in npz_paths(second / "npz", collection, split)
                    if p.stem == graph.graph_id)
        hidden = second / "truth" / path.relative_to(second / "npz")
        with np.load(hidden if hidden.is_file() else path) as npz:
            runtime = npz["config_runtime"] / npz["config_runtime_normalizers"] if collection == "tile:xla" else (
                npz["config_runtime"])
        assert (target(graph) == runtime).all() and len(np.unique(runtime)) > 1


def test_of_the_data_set_the_validation_programs_are_unseen(root):
    for collection in COLLECTIONS:
        found = unseen_programs(root, collection, False)
        assert [g.graph_id for g in found] == [p.stem for p in npz_paths(root, collection, "valid")]


def test_costs_are_those_of_training_and_predicting_and_training_is_not_repeated(tmp_path, monkeypatch):
    graphs, unseen = [drawn_layout(0, c=20)], [drawn_layout(1, c=9)._replace(graph_id="unseen")]
    costs = rank_unseen(TINY, "drawn token", 3, graphs, unseen, Store(tmp_path))
    model = ConfigTokenModel(replace(TINY.shape, seed=3))
    train(model, graphs, replace(TINY.settings, seed=3, keep="last"))
    assert list(costs) == ["unseen"] and (costs["unseen"] == predict(model, unseen[0])).all()

    def never(*args, **more):
        raise AssertionError("trained again")
    monkeypatch.setattr(lab.run.members, "train", never)
    again = rank_unseen(TINY, "drawn token", 3, graphs, unseen, Store(tmp_path))
    assert (again["unseen"] == costs["unseen"]).all()
    for other in ({"seed": 4}, {"name": "other"}, {"recipe": TINY._replace(settings=TrainSettings(4, 8))}):
        with pytest.raises(AssertionError, match="trained again"):
            rank_unseen(**{"recipe": TINY, "name": "drawn token", "seed": 3, **other}, graphs=graphs, unseen=unseen,
                        store=Store(tmp_path))


def test_differences_are_paired_by_seed_and_graph():
    rng = np.random.default_rng(0)
    scores = {"a": rng.random((3, 8))}
    scores["b"] = scores["a"] + 0.1
    a, b = differences(scores, "a")
    assert (a["model"], a["score"], (a["low"], a["high"])) == ("a", scores["a"].mean(), bootstrap_interval(scores["a"]))
    assert "difference" not in a
    assert (b["difference"], b["from"], b["to"]) == pytest.approx((0.1, 0.1, 0.1))


def test_with_one_graph_the_interval_is_over_seeds():
    row = differences({"a": np.array([[0.1], [0.2], [0.6]])}, "a")[0]
    assert row["score"] == pytest.approx(0.3)
    assert (row["low"], row["high"]) == bootstrap_interval(np.array([0.1, 0.2, 0.6]))
    assert 0.1 <= row["low"] < 0.3 < row["high"] <= 0.6
