"""Rows of tables against plain loops: scores, leads, searches; material and settings that 04 and 07 share."""
import numpy as np
import pytest

from kit.data import npz_paths, read_layout
from kit.metrics import kendall_tau
from kit.models.boosted_trees import BoostedTreesSettings
from kit.noise import bootstrap_interval, noise_ceiling
from kit.prune import config_ids, drop_duplicate_configs, hold_out_configs
from kit.recipes import recipes_for
from lab.run import lead_row, mean_ceiling, score_row, scores_of
from lab.run.members import VALID_CONFIGS, adapted, layout_material
from lab.studies.search_tables import row_speed_ups, speed_up_rows


def test_scores_of_seeds_have_a_row_per_seed_and_a_column_per_graph():
    rng = np.random.default_rng(0)
    known = {name: rng.random(9) for name in "abc"}
    costs = [{name: rng.random(9) for name in "cbax"} for _ in range(2)]
    found = scores_of(costs, known, kendall_tau)
    assert found.shape == (2, 3)
    for seed in range(2):
        for place, name in enumerate("abc"):
            assert found[seed, place] == kendall_tau(costs[seed][name], known[name])


def test_a_row_has_the_mean_its_interval_and_the_numbers_of_graphs_and_seeds():
    scores = [[0.5, 0.25, 0.75], [0.5, 0.5, 1.0]]
    low, high = bootstrap_interval(np.array(scores))
    assert score_row(scores) == pytest.approx({"score": 3.5 / 6, "low": low, "high": high, "graphs": 3, "seeds": 2})
    assert list(score_row(scores, [0.75, 1.0, 1.25])) == ["score", "low", "high", "ceiling", "graphs", "seeds"]
    assert score_row(scores, [0.75, 1.0, 1.25])["ceiling"] == 1.0
    lead = lead_row(np.array([1.0, 1.0, 1.0]), scores)
    low, high = bootstrap_interval(1 - np.array(scores))
    assert lead == pytest.approx({"lead": 1 - 3.5 / 6, "lead low": low, "lead high": high})


@pytest.fixture(scope="module")
def graphs(tiny_sample):
    return [read_layout(path) for path in npz_paths(tiny_sample, "layout:xla:random", "train")[:2]]


def test_the_mean_ceiling_is_that_of_each_graph(graphs):
    slow = [noise_ceiling(g.config_runtime, config_ids(g)).mean for g in graphs]
    assert mean_ceiling(graphs) == sum(slow) / 2


def test_layout_material_holds_out_a_share_of_each_graph_and_few_validation_configurations(graphs):
    distinct = [drop_duplicate_configs(g)[0] for g in graphs]
    material, held = layout_material(distinct, distinct, 0.25, {"valid": {}})
    for graph, seen, unseen, valid in zip(distinct, material.graphs, held, material.valid):
        of_seen, of_held, whole = (set(map(tuple, g.config_codes.tolist())) for g in (seen, unseen, graph))
        assert of_seen | of_held == whole and not of_seen & of_held and len(of_held) == len(whole) // 4
        assert len(valid.config_codes) == min(VALID_CONFIGS, len(whole))
        again = hold_out_configs(graph, 0.25, np.random.default_rng(0))[1]
        assert np.array_equal(unseen.config_runtime, again.config_runtime)
    assert (material.score, material.ranked, material.folds) == (kendall_tau, {"valid": {}}, {})


def test_an_adapted_recipe_changes_what_is_given_and_validates_four_times():
    one = recipes_for("layout:xla:random", "quick")["gnn"]
    found = adapted(one, "cpu", None, steps=40, configs_per_step=None).settings
    assert (found.steps, found.validate_every, found.precision) == (40, 10, one.settings.precision)
    assert found.configs_per_step == one.settings.configs_per_step and one.settings.steps != 40
    found = adapted(one, "cuda", "bfloat16", steps=2).settings
    assert (found.validate_every, found.device, found.precision) == (1, "cuda", "bfloat16")
    trees = adapted(recipes_for("layout:xla:random", "quick")["lightgbm"], rounds=7, leaves=None)
    assert (trees.shape.rounds, trees.shape.leaves) == (7, BoostedTreesSettings().leaves)


def test_gains_over_the_default_are_means_of_quotients():
    rows = [{"collection": "a", "rows of a": "new program", "budget": 5, "default": default, "random": 0.5,
             "searched with model": 0.25} for default in (0.5, np.nan, 1.0)]
    ups = row_speed_ups(rows)
    assert ups.keys() == {("a", "rows: new program", search, 5) for search in ("with model", "random")}
    assert ups["a", "rows: new program", "with model", 5] == pytest.approx([1.2, 1.6])
    first, second = speed_up_rows(ups)
    assert first["speed-up"] == pytest.approx(1.4) and 1.2 <= first["low"] <= first["high"] <= 1.6
    assert second["search"] == "random" and second["programs"] == 2
    assert np.isnan(speed_up_rows({("a", "b", "c", 5): np.ones(1)})[0]["low"])
