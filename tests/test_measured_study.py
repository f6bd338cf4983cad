"""Measured programs as data of a run, and the study of models on families that they never saw."""
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from drawn import rewrite

from kit.data import COLLECTIONS, dense_configs, npz_paths, read_layout
from kit.models import BoostedTrees
from kit.prepare import open_prepared
from lab.baselines import COUNT, DEFAULT_FIRST, OWN_HALF, RIDGE
from lab.data import MEASURED, families_of, measured_table, open_data, source_of
from lab.measured import SEARCHES, SECOND
from lab.run import Run
from lab.run.store import Store
from lab.studies import machines
from lab.studies import new_families as study
from lab.studies.true_searches import speedups, steady

RANDOM = "layout:xla:random", "layout:nlp:random"


@pytest.fixture(scope="module")
def measured(tiny_sample, tmp_path_factory):
    """A folder as measure_programs.py writes it: the tiny sample's programs of two collections, with their families.
    """
    root, families = tmp_path_factory.mktemp("measured"), []
    for collection in RANDOM:
        for split in ("train", "valid", "test"):
            for path in npz_paths(tiny_sample, collection, split):
                place = root / "npz" / path.relative_to(tiny_sample / "npz")
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)
                families.append((path.stem, f"of {split}"))
    pl.DataFrame(families, ("program", "family"), orient="row").write_csv(root / "measured.csv")
    return root


def test_test_runtimes_of_measured_programs_are_scored(measured, tmp_path):
    run = Run("05_ensemble", measured, tmp_path / "out", collections=RANDOM[0])
    assert (run.source, run.scored) == ("measured programs", "test")
    assert run.data().truth(RANDOM[0]).keys() == {
        f"{RANDOM[0]}:{path.stem}" for path in npz_paths(measured, RANDOM[0], "test")}


def test_the_study_ranks_programs_of_families_that_no_model_has_seen(measured, tmp_path, capsys):
    study.main(["--data-root", str(measured), "--out", str(tmp_path), "--searches", "random", "--seeds", "2",
                "--models", "LightGBM;ridge"])
    table = pl.read_csv(tmp_path / "measured_study.csv")
    programs = {path.stem for c in RANDOM for split in ("valid", "test") for path in npz_paths(measured, c, split)}
    assert {*table["program"]} == programs
    assert {*table["family"]} == {"of valid", "of test"}
    seeds = dict(table.group_by("model").agg(pl.col("seed").n_unique()).iter_rows())
    assert seeds == {"LightGBM": 2, RIDGE: 1, COUNT: 1, DEFAULT_FIRST: 1, OWN_HALF: 3, study.NOISE: 1}
    count = table.filter(model=COUNT)
    assert count["at equal distance"].abs().max() == 0 and count["tau"].abs().max() > 0
    noise = table.filter(model=study.NOISE)
    assert (noise["tau"] > 0.5).all()
    lines = capsys.readouterr().out.splitlines()
    printed = {line.split(" | ")[0].strip("| "): line.split(" | ")[1] for line in lines if line.startswith("| ")}
    for name, rows in table.group_by("model"):
        assert printed[name[0]].startswith(f"{rows['tau'].mean():.3f} (")


def test_each_family_is_left_out_once(measured):
    ranked, families = [], families_of(measured / "npz")
    for taught, unseen in study.splits(measured / "npz", "random", 3):
        assert not {families[g.graph_id] for g in taught} & {families[g.graph_id] for g in unseen}
        assert len(taught) + len(unseen) == len(families)
        ranked += [g.graph_id for g in unseen]
    assert sorted(ranked) == sorted(families)


def test_a_familiar_operation_has_its_shapes_somewhere_in_training(measured):
    graphs = [read_layout(path) for path in npz_paths(measured, RANDOM[0], "train")]
    def operations(graph):
        found = []
        for node in graph.node_config_ids:
            read = sorted(tuple(graph.node_feat[v, 21:27]) for u, v in graph.edge_index if u == node)
            found.append((graph.node_opcode[node], tuple(graph.node_feat[node, 21:27]), *read))
        return found
    for graph in graphs[1:]:
        known = operations(graphs[0])
        slow = np.mean([any(one == other for other in known) for one in operations(graph)])
        assert study.familiar(graph, graphs[:1]) == pytest.approx(slow)
    assert study.familiar(graphs[0], graphs) == 1 and study.familiar(graphs[0], []) == 0


def test_two_machines_are_compared_on_the_same_configurations(measured, tmp_path):
    second = tmp_path / "second"
    shutil.copytree(measured, second)
    for path in second.rglob("*.npz"):                   # in another order, and twice as slow
        with np.load(path) as file:
            runtime, feat = file["config_runtime"], file["node_config_feat"]
        order = np.random.default_rng(0).permutation(len(runtime))
        rewrite(path, config_runtime=2 * runtime[order], node_config_feat=feat[order])
    table = machines.study(measured / "npz", second / "npz", 1, Store(tmp_path / "store"), "ridge")
    own = {model: part.sort("program")["tau"].to_numpy() for (model,), part in table.group_by("model")}
    assert own.keys() == {machines.SAME, machines.OTHER, machines.BOTH, machines.RUNTIMES, study.NOISE, OWN_HALF, COUNT,
                          DEFAULT_FIRST}
    next(second.rglob("train/*.npz")).unlink()
    part = machines.study(measured / "npz", second / "npz", 1, Store(tmp_path / "store"), "ridge")
    assert {*part["model"]} == {*table["model"], machines.ALL}
    assert own[machines.SAME] == pytest.approx(own[machines.OTHER], abs=0.02) and (own[machines.RUNTIMES] > 0.9).all()

    graph, elsewhere = (read_layout(next(root.rglob("valid/*.npz"))) for root in (second, measured))
    mine, theirs = (dense_configs(g, range(len(g.config_runtime))) for g in (graph, elsewhere))
    slow = [np.mean([r for one, r in zip(theirs, elsewhere.config_runtime) if (one == own).all()]) for own in mine]
    assert machines.runtimes_elsewhere(graph, elsewhere).tolist() == slow
    with pytest.raises(KeyError):
        machines.runtimes_elsewhere(graph, elsewhere._replace(config_codes=elsewhere.config_codes[:1],
                                                              config_runtime=elsewhere.config_runtime[:1]))


def test_the_programs_that_come_with_the_kit_are_those_of_their_catalogue(tmp_path):
    root = open_data("measured", folder=tmp_path)
    table, prepared = pl.read_csv(measured_table(root)), open_prepared(root).catalogue
    assert source_of(root) == "measured programs" and prepared["reason"].null_count() == len(prepared)
    assert sorted(table.select("collection", "split", "program").iter_rows()) == sorted(
        prepared.select("collection", "split", "name").iter_rows())
    for row in table.iter_rows(named=True):
        graph = open_prepared(root).graph(row["collection"], row["split"], row["program"])
        assert len(graph.node_feat) == row["nodes"] and len(graph.config_runtime) == row["rows"]
        if row["collection"] != "tile:xla":
            assert graph.config_codes.shape[1] == row["groups"]
            assert len(np.unique(graph.config_codes, axis=0)) == row["different"] >= 150
    assert {*table["collection"]} == {*COLLECTIONS}
    for _, part in table.group_by(pl.col("collection").str.split(":").list.first()):
        families = {split: {*rows["family"]} for (split,), rows in part.group_by("split")}
        assert families["train"] & (families["valid"] | families["test"]) <= {"gpt"}       # gpt_scan_b2
    drawn = table.filter(pl.col("collection").str.ends_with("random"))
    assert len(drawn) >= 32 and drawn["passes_tau_clear"].median() >= 0.85
    assert sum(path.stat().st_size for path in MEASURED.parents[1].rglob("cpu*/**/*") if path.is_file()) < 6e6


def test_weights_are_compared_on_training_programs_whose_family_was_left_out(tmp_path, monkeypatch):
    root = open_data("measured", collections=RANDOM, folder=tmp_path)
    families = dict(pl.read_csv(measured_table(root)).select("program", "family").iter_rows())
    ranked = []

    def rank(recipe, name, seed, taught, left, store):
        assert not {families[g.graph_id] for g in taught} & {families[g.graph_id] for g in left}
        ranked.extend((name.split(maxsplit=2)[2], seed, g.graph_id) for g in left)
        sign = -1 if recipe.network is BoostedTrees else 1
        return {g.graph_id: sign * g.config_runtime.astype(float) for g in left}
    monkeypatch.setattr(study, "rank_unseen", rank)
    lines = study.prior_table(root, "random", 2, None).splitlines()
    assert len(ranked) == len({*ranked}) == 4 * 2 * len(study.taught_programs(root, "random"))
    assert "| 10 : 0 : 0 : 0 | 1.000 (1.000 to 1.000) | 0.000 (0.000 to 0.000) |" in lines
    assert "| 0 : 0 : 10 : 0 | -1.000 (-1.000 to -1.000) | -2.000 (-2.000 to -2.000) |" in lines
    assert len(lines) == 2 + len(study.WEIGHTS)


def test_the_page_shows_what_searches_found_on_both_machines(project):
    page = (project / "notebooks" / "studies.md").read_text()
    for place in (SEARCHES, SECOND.parent / SEARCHES.name):
        kept, _ = steady(pl.read_csv(place))
        assert all(line in page for line in speedups(kept).splitlines())


def test_another_machine_measured_the_same_configurations():
    first, second = (pl.read_csv(measured_table(root)) for root in (MEASURED, SECOND))
    assert {*first["machine"]}.isdisjoint(second["machine"])
    assert len(second) == len(first.filter(pl.col("collection").is_in(RANDOM)))
    for row in second.iter_rows(named=True):
        place = Path(*row["collection"].split(":"), row["split"], f"{row['program']}.npz")
        mine, theirs = read_layout(SECOND / place), read_layout(MEASURED / place)
        assert len(mine.config_runtime) == row["rows"] and len(np.unique(mine.config_codes, axis=0)) >= 100
        np.testing.assert_array_equal(mine.node_feat, theirs.node_feat)
        assert (machines.runtimes_elsewhere(mine, theirs) > 0).all()
