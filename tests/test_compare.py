"""What is compared on what, training that is not repeated, paired differences."""
import shutil
from dataclasses import replace

import numpy as np
import pytest
from drawn import drawn_layout

import lab.training.members
from kit.data import npz_paths, target
from kit.models import ConfigTokenModel, ConfigTokenSettings
from kit.noise import bootstrap_interval
from kit.predict import predict
from kit.prune import drop_duplicate_configs
from kit.recipes import Recipe
from kit.train import TrainSettings, train
from lab.data import Data, each_once
from lab.run import Store
from lab.studies.compare import compared_programs, differences
from lab.training import rank_unseen

TINY = Recipe(ConfigTokenModel, ConfigTokenSettings(width=4, token_width=4), TrainSettings(3, 8, validate_every=3))


@pytest.mark.parametrize("measured", [True, False])
def test_both_sources_of_a_search_are_compared_and_test_programs_with_runtimes_are_ranked(
        tiny_sample, tiny_hidden, tmp_path, measured):
    root, sources = tmp_path / "npz", ("layout:xla:random", "layout:nlp:random")
    shutil.copytree((tiny_sample if measured else tiny_hidden) / "npz", root)
    splits = ["valid", "test"] if measured else ["valid"]
    if measured:
        shutil.copy(tiny_sample / "measured.csv", tmp_path)
    found = compared_programs(Data(root, ["tile:xla", *sources, "layout:nlp:default"], k_hops=1))
    assert list(found) == ["tile:xla", "layout:random", "layout:default"]
    taught, ranked, truth, score, families, once = found["layout:random"]
    assert [g.graph_id for g in taught] == [p.stem for c in sources for p in npz_paths(root, c, "train")]
    names = [p.stem for c in sources for split in splits for p in npz_paths(root, c, split)]
    assert [g.graph_id for g in ranked] == [*truth] == names and len(families) == len(names)
    for g in ranked:
        known = each_once(g) if once else target(g)
        np.testing.assert_array_equal(truth[g.graph_id], known)
        assert score(-truth[g.graph_id], known) == pytest.approx(-1, abs=1e-3)
    assert len(drop_duplicate_configs(taught[0])[0].config_runtime) == len(taught[0].config_runtime)
    shutil.rmtree(root / "layout" / "nlp" / "default" / "valid")
    assert list(compared_programs(Data(root, [*sources, "layout:nlp:default"]))) == ["layout:random", *[
        "layout:default"] * once]


def test_costs_are_those_of_training_and_predicting_and_training_is_not_repeated(tmp_path, monkeypatch):
    graphs, unseen = [drawn_layout(0, c=20)], [drawn_layout(1, c=9)._replace(graph_id="unseen")]
    costs = rank_unseen(TINY, "drawn token", 3, graphs, unseen, Store(tmp_path))
    model = ConfigTokenModel(replace(TINY.shape, seed=3))
    train(model, graphs, replace(TINY.settings, seed=3, keep="last"))
    assert list(costs) == ["unseen"] and (costs["unseen"] == predict(model, unseen[0])).all()

    def never(*args, **more):
        raise AssertionError("trained again")
    monkeypatch.setattr(lab.training.members, "train", never)
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
