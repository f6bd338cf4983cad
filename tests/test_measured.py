"""The measured set: known networks that compute the same under any layouts, in files that the kit reads."""
import subprocess
import sys
from collections import Counter
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from drawn import costs, ready

from kit.data import dense_configs, npz_paths, read_layout
from kit.models import ConfigTokenModel
from kit.programs import Bench, BenchSettings, Measurements, MeasureSettings, configured, program_from_jax
from lab.measured import PROGRAMS, CollectSettings, collect, made
from lab.measured import files as collecting
from lab.measured.layers import training
from lab.measured.programs import ProgramRecipe
from lab.measured.sequences import mlp

jax = pytest.importorskip("jax", reason="no JAX: pip install '.[own]'")

QUICK = BenchSettings(seconds=0.01)
SMALL = CollectSettings(configs=12, repeats=2, defaults=4, generations=3)


def firsts():
    """The programs, and `long` for all but the first of each family."""
    seen, found = set(), []
    for name, one in PROGRAMS.items():
        found.append(pytest.param(name, marks=pytest.mark.long if one.family in seen else ()))
        seen.add(one.family)
    return found


def test_there_are_many_families_in_three_splits():
    families = {}
    for one in PROGRAMS.values():
        families.setdefault(one.family, Counter())[one.split] += 1
    assert len(PROGRAMS) >= 32 and len(families) >= 10
    by_split = {split: {family for family, splits in families.items() if splits.keys() == {split}}
                for split in ("train", "valid", "test")}
    assert min(map(len, by_split.values())) >= 4
    related = [family for family, splits in families.items() if len(splits) > 1]
    assert len(related) == 4 and all(families[family]["train"] for family in related)
    assert {(one.source, one.split) for one in PROGRAMS.values()} == {
        (source, split) for source in ("xla", "nlp") for split in ("train", "valid", "test")}


@pytest.mark.parametrize("name", firsts())
def test_results_do_not_depend_on_layouts(name):
    function, args = made(name)
    program = program_from_jax(function, *args)
    assert program.graph.graph_id == name and len(program.dims) > 1
    code, found = np.random.default_rng(0).integers(program.dims, size=len(program.dims)), []
    for own in (0 * code, code):                 # without optimisation, which takes longer than the program
        run = configured(program, own).lower(*args).compile({"xla_backend_optimization_level": 0})
        found.append([np.asarray(one) for one in jax.tree.leaves(run(*args))])
    for default, own in zip(*found):
        assert own.shape == default.shape and own.dtype == default.dtype and np.isfinite(default).all()
        assert abs(own - default).max() <= 1e-3 * abs(default).max()


def traced(name, tie="shapes"):
    """A program of PROGRAMS by name."""
    function, args = made(name)
    return program_from_jax(function, *args, tie=tie)


def test_some_programs_are_large_and_weights_are_stored_either_way():
    sizes = {name: len(traced(name).graph.node_feat) for name in ("bert_deep", "gpt_b1", "mlp_b128")}
    assert sizes["bert_deep"] > 1000 and sizes["gpt_b1"] > 500 and sizes["mlp_b128"] < 50
    (_, (straight, _)), (_, (turned, _)) = made("mlp_b128"), made("mlp_turned")
    assert straight[0].shape == turned[0].shape[::-1] == (256, 512)


def test_a_training_step_descends():
    step, (weights, x) = mlp(np.random.default_rng(0), batch=8, width=16, layers=1, make=training)
    function = mlp(np.random.default_rng(0), batch=8, width=16, layers=1)[0]
    before, after = (float((function(w, x) ** 2).mean()) for w in (weights, step(weights, x)))
    assert after < before


def test_random_configurations_are_drawn_uniformly():
    dims, settings = np.array([9, 10, 3]), CollectSettings(configs=100, repeats=10, defaults=40)
    codes = collecting.drawn_codes(dims, settings, "a")
    counts = Counter(map(tuple, codes.tolist()))
    assert counts.pop((0, 0, 0)) == 40 and Counter(counts.values()) == {1: 90, 2: 10}
    assert (codes < dims).all() and (codes >= 0).all()
    assert not np.array_equal(codes, collecting.drawn_codes(dims, settings, "b"))
    shares = np.mean([np.unique(collecting.drawn_codes(dims, settings, str(i)), axis=0) for i in range(20)
                      if len(np.unique(collecting.drawn_codes(dims, settings, str(i)), axis=0)) == 101], axis=(0, 1))
    np.testing.assert_allclose(shares, (dims - 1) / 2, rtol=0.1)


def test_a_space_that_is_too_small_is_measured_whole():
    codes = collecting.drawn_codes(np.array([3, 2]), CollectSettings(), "a")
    assert {tuple(code) for code in codes.tolist()} == {(i, j) for i in range(3) for j in range(2)}


def test_the_search_starts_at_the_default_and_follows_the_fastest():
    dims, settings = np.full(8, 9), CollectSettings(configs=60, generations=3, repeats=3, defaults=9)
    true, found = np.random.default_rng(0).random((8, 9)) + 0.5, []
    for generation in range(3):
        codes = collecting.next_codes(dims, found, settings, "a")
        np.testing.assert_array_equal(codes, collecting.next_codes(dims, found, settings, "a"))
        changed = (codes != 0).sum(axis=1)
        assert (changed == 0).sum() == 3 and len(np.unique(codes, axis=0)) == 21
        if generation == 0:
            assert changed.mean() < 3
        passes = np.take_along_axis(true.T, codes, 0).sum(axis=1)[:, None] * 1e6
        found.append(Measurements(codes, passes, {}, {"default_ns": true[:, 0].sum() * 1e6}))
    every = [tuple(code) for one in found for code in np.unique(one.codes, axis=0) if code.any()]
    assert len(every) == len(set(every)) == 60
    means = [one.passes[one.codes.any(axis=1)].mean() for one in found]
    assert means[2] < means[1] < means[0]


def test_rows_are_shared_out_whole():
    for total, parts in [(7, 3), (160, 5), (2, 5), (0, 4)]:
        assert sum(collecting.share(total, parts, place) for place in range(parts)) == total


def test_generations_are_joined_in_one_unit():
    about = [{"default_ns": 100.0}, {"default_ns": 200.0}]
    parts = [Measurements(np.array([[i], [2]]), np.array([[110.0], [np.nan]]) * (1 + i), {1: "no"}, about[i])
             for i in range(2)]
    together = collecting.joined(parts)
    assert together.codes.ravel().tolist() == [0, 2, 1, 2] and together.faults == {1: "no", 3: "no"}
    np.testing.assert_allclose(together.passes.ravel(), [110, np.nan, 110, np.nan])


def test_the_catalogue_counts_pairs_that_two_passes_order_alike():
    rng = np.random.default_rng(0)
    passes = 100 * (1 + rng.random((15, 1)) / 5) + rng.normal(size=(15, 2))
    codes = rng.integers(1, 9, size=(15, 2))
    codes[:4] = 0
    program = program_from_jax(lambda x: x @ x, np.ones((3, 3)))
    found = collecting.summary(program, Measurements(codes, passes, {}, {}))
    mean, agreed = np.rint(passes.mean(axis=1)), []
    for i, j in combinations(range(15), 2):
        if abs(mean[i] - mean[j]) > 0.02 * min(mean[i], mean[j]):
            agreed.append(1 if (passes[i, 0] < passes[j, 0]) == (passes[i, 1] < passes[j, 1]) else -1)
    assert found["passes_tau_clear"] == pytest.approx(np.mean(agreed), abs=1e-3)
    assert found["rows"] == 15 and found["failed"] == 0


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """A tiny program, measured."""
    out = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROGRAMS, "tiny", ProgramRecipe("mlp", "xla", "valid", lambda rng: mlp(rng, 4, 8, 2)))
        paths = collect("tiny", out, SMALL, MeasureSettings(passes=2), QUICK, progress=False)
        patch.setattr(Bench, "time", None)                          # a second call measures nothing
        assert collect("tiny", out, SMALL, MeasureSettings(passes=2), QUICK, progress=False) == paths
        program = traced("tiny", tie=False)
    return out, program


@pytest.mark.parametrize("kind", ["random", "default"])
def test_the_files_are_of_the_official_format(collected, kind):
    out, program = collected
    path, = npz_paths(out / "npz", f"layout:xla:{kind}", "valid")
    with np.load(path, allow_pickle=False) as npz:
        kinds = {name: npz[name].dtype.name for name in npz}
        assert len(npz["node_splits"]) == 1 and npz["node_config_feat"].shape[1:] == (3, 18)
    assert kinds == {"node_feat": "float32", "node_opcode": "uint8", "edge_index": "int64", "node_config_ids": "int64",
                     "node_splits": "int64", "node_config_feat": "float32", "config_runtime": "int64"}
    graph = read_layout(path)
    np.testing.assert_array_equal(graph.node_feat, program.graph.node_feat)
    np.testing.assert_array_equal(graph.node_config_ids, program.graph.node_config_ids)
    rows = dense_configs(graph, range(len(graph.config_runtime)))
    assert len(rows) == 18 and (rows == -1).all(axis=(1, 2)).sum() == 4 and (graph.config_runtime > 0).all()
    assert np.isfinite(costs(ready(ConfigTokenModel(), graph), graph).numpy()).all()


def test_the_catalogue_names_machine_and_versions(collected):
    table = pl.read_csv(collected[0] / "measured.csv")
    assert table["collection"].to_list() == ["layout:xla:default", "layout:xla:random"]
    assert table["different"].to_list() == [13, 13] and set(table["family"]) == {"mlp"}
    for column in ("machine", "threads", "flags", "jax", "jaxlib", "date", "device", "default_ms", "passes_tau"):
        assert table[column].null_count() == 0


def test_the_command_lists_programs_and_names_what_it_does_not_know(project):
    command = [sys.executable, project / "notebooks" / "measure_programs.py"]
    done = subprocess.run([*command, "--list"], capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == len(PROGRAMS)
    done = subprocess.run([*command, "--out", "x", "--programs", "bert_b2,nothing"], capture_output=True, text=True)
    assert done.returncode == 2 and "unknown: nothing; there are alexnet_b1, " in done.stderr
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "--out DIR is needed" in done.stderr
