"""The public names are in their homes, and they take sample data to a checked submission.

.ci/run runs this file a second time, against a wheel that is installed apart from the project.
"""
import importlib

import numpy as np
import pytest

HOMES = {
    "kit.data": "find_data_root npz_paths read_tile read_layout dense_configs COLLECTIONS DataError TileGraph "
                "LayoutGraph",
    "kit.prepare": "prepare open_prepared Prepared",
    "kit.prune": "k_hop_nodes prune drop_duplicate_configs",
    "kit.pad": "repad_layout tensor_rank pad_batch",
    "kit.metrics": "kendall_tau slowdown tile_score opa collection_score competition_score score_for",
    "kit.noise": "noise_ceiling bootstrap_interval",
    "kit.train": "train predict TrainSettings",
    "kit.models": "LayoutGNN ConfigTokenModel TileModel",
    "kit.recipes": "recipes_for",
    "kit.ensemble": "mean_rank mean_zscore combine choose_weights",
    "kit.submit": "top_configs write_submission read_submission check_submission",
    "kit.kaggle": "download submit wait_for_score push_notebook push_dataset gpu_quota KaggleError",
    "kit.search": "random_search annealing genetic droplet explore_then_droplet",
    "kit.hlo": "read_layout_pb read_tile_pb",
    "kit.programs": "program_from_hlo program_from_jax with_layouts tune",
}


@pytest.mark.parametrize("home", HOMES)
def test_public_names_are_at_home(home):
    module = importlib.import_module(home)
    assert [name for name in HOMES[home].split() if not hasattr(module, name)] == []


def test_public_names_go_from_sample_data_to_a_checked_submission(tmp_path):
    from sample import write_sample

    from kit.data import COLLECTIONS, npz_paths, read_layout, read_tile
    from kit.metrics import collection_score, score_for
    from kit.models import ConfigTokenModel, TileModel
    from kit.prepare import prepare
    from kit.prune import drop_duplicate_configs, prune
    from kit.submit import check_submission, write_submission
    from kit.train import TrainSettings, predict, train
    root, costs = write_sample(tmp_path / "data"), {}
    prepared = prepare(root, tmp_path / "prepared")
    for collection in COLLECTIONS:
        tile = collection == "tile:xla"
        graphs = {split: list(prepared.graphs(collection, split)) for split in ("train", "valid", "test")}
        first = (read_tile if tile else read_layout)(npz_paths(root, collection, "test")[0])
        assert np.array_equal(first.config_runtime, prepared.graph(collection, "test", first.graph_id).config_runtime)
        if not tile:
            graphs = {split: [prune(graph) for graph in graphs[split]] for split in graphs}
            graphs["train"] = [drop_duplicate_configs(graph)[0] for graph in graphs["train"]]
        model = TileModel() if tile else ConfigTokenModel()
        history = train(model, graphs["train"], TrainSettings(steps=2, configs_per_step=8), valid=graphs["valid"],
                        score=score_for(collection))
        assert np.isfinite(collection_score(history["score"]))
        costs.update({f"{collection}:{graph.graph_id}": predict(model, graph) for graph in graphs["test"]})
    path = write_submission(costs, tmp_path / "submission.csv")
    assert check_submission(path, root) == [] and len(path.read_text().splitlines()) == len(costs) + 1


@pytest.mark.parametrize("search", ["random_search", "annealing", "genetic", "droplet", "explore_then_droplet"])
def test_every_search_finds_the_only_fast_configuration_of_a_small_space(search):
    strategy = getattr(importlib.import_module("kit.search"), search)
    found = strategy(lambda points: 1.0 + abs(points - [1, 2]).sum(axis=1), (3, 4), 60, np.random.default_rng(0))
    assert (tuple(found.best), found.best_cost) == ((1, 2), 1.0) and len(found.trace) <= 60
