"""What is compared on what, training that is not repeated, paired differences."""
import shutil
from dataclasses import replace

import numpy as np
import pytest
from drawn import drawn_layout, rewrite

import lab.training.members
from kit.data import npz_paths
from kit.models import ConfigTokenModel, ConfigTokenSettings
from kit.noise import bootstrap_interval
from kit.predict import predict
from kit.prune import drop_duplicate_configs
from kit.recipes import Recipe
from kit.train import TrainSettings, train
from lab.run import Store
from lab.studies.compare import compared_programs, differences
from lab.training import rank_unseen

TINY = Recipe(ConfigTokenModel, ConfigTokenSettings(width=4, token_width=4), TrainSettings(3, 8, validate_every=3))


def test_both_sources_of_a_search_are_compared_and_test_programs_with_runtimes_are_ranked(tiny_hidden, tmp_path):
    root, sources = shutil.copytree(tiny_hidden / "npz", tmp_path / "npz"), ("layout:xla:random", "layout:nlp:random")
    known = npz_paths(root, sources[1], "test")[0]
    rewrite(known, config_runtime=np.arange(1, len(np.load(known)["config_runtime"]) + 1))
    found = compared_programs(root, ["tile:xla", *sources, "layout:nlp:default"], k_hops=1)
    assert list(found) == ["tile:xla", "layout:random", "layout:default"]
    taught, ranked = found["layout:random"]
    assert [g.graph_id for g in taught] == [p.stem for c in sources for p in npz_paths(root, c, "train")]
    assert [g.graph_id for g in ranked] == [*(p.stem for c in sources for p in npz_paths(root, c, "valid")), known.stem]
    assert len(drop_duplicate_configs(taught[0])[0].config_runtime) == len(taught[0].config_runtime)
    shutil.rmtree(root / "layout" / "nlp" / "default" / "valid")
    assert list(compared_programs(root, [*sources, "layout:nlp:default"])) == ["layout:random"]


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
