"""The study of searches by true measurements, on a machine whose times are known."""
import numpy as np
import polars as pl
import pytest
import torch
from test_tune import FakeBench, chain

from kit.programs import BenchSettings, program_from_jax
from kit.programs.tune import PROCESSES
from lab.studies import true_searches as study

pytest.importorskip("jax", reason="no JAX: pip install '.[own]'")

GIVEN = tuple(np.random.default_rng(0).normal(size=size).astype(np.float32) for size in ((5, 7), (7, 11), (11, 3)))
TITLES = [*study.strategies(None)]


class KnownBench(FakeBench):
    """A machine on which each option of each group has a known cost, without noise, and that counts what it times."""
    timed, noise = 0, 0.0

    def time(self, code):
        type(self).timed += tuple(code) != tuple(self.program.written)
        return super().time(code)

    def forget(self):
        pass


@pytest.fixture
def bench(monkeypatch):
    costs = 1 + np.random.default_rng(3).random((2, 10)) / 2
    costs[:, 0] = 1
    costs[0, 5], costs[1, 6] = 0.9, 0.8
    own = type("Known", (KnownBench,), {"costs": costs})
    program = program_from_jax(chain, *GIVEN, tie=False)
    monkeypatch.setattr(study, "Bench", own)
    monkeypatch.setattr(study, "traced", lambda name: (program, GIVEN))
    monkeypatch.setattr(study, "relaxed_token_cost", lambda model, tensors: lambda weights: (
        weights * torch.tensor(costs, dtype=torch.float32)[None, :, :weights.shape[2]]).sum(dim=(1, 2)))
    return own


class Model:
    """Stands for a network; the fixture knows the costs."""
    def prepare(self, graph):
        return None


def test_searches_end_with_the_fastest_and_a_killed_study_goes_on(bench, tmp_path, monkeypatch):
    rows = study.search_program("vgg_b1", [2, 60], [Model()], tmp_path, BenchSettings())
    table = pl.DataFrame(rows, study.COLUMNS, orient="row")
    assert table.shape == (len(TITLES) * 2, len(study.COLUMNS)) and (table["measurements"] <= table["budget"]).all()
    last = table.filter(budget=60)
    found = dict(zip(last["strategy"], last["speedup"]))
    assert found["explore-then-droplet, learned model"] == pytest.approx(1 / (0.9 * 0.8))
    assert found["droplet from the default"] == pytest.approx(1 / (0.9 * 0.8))
    guided = table.filter(strategy="random, the learned model's first", budget=2)["speedup"].item()
    assert guided == pytest.approx(1 / (0.9 * 0.8))                    # a model that knows the truth is believed
    assert (table["speedup"] >= 1 - 1e-9).all()                        # the default is always at hand

    before, journal = bench.timed, tmp_path / "vgg_b1.jsonl"
    assert study.search_program("vgg_b1", [2, 60], [Model()], tmp_path, BenchSettings()) == rows
    assert bench.timed == before                                       # all of it was read
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-PROCESSES]) + lines[-PROCESSES][:9])
    assert study.search_program("vgg_b1", [2, 60], [Model()], tmp_path, BenchSettings()) == rows
    assert bench.timed > before
    only = study.search_program("vgg_b1", [60], [Model()], tmp_path, BenchSettings(), ["random"])
    assert [row[2:4] for row in only] == [("random", 60)]


def test_the_table_is_of_geometric_means():
    rows = [(name, "f", strategy, budget, budget, value, value - 0.01, value + 0.01)
            for budget in (5, 30) for name, values in (("a", (1.0, 1.2)), ("b", (1.1, 1.5)))
            for strategy, value in zip(("random", "other"), values)]
    lines = study.speedups(pl.DataFrame(rows, study.COLUMNS, orient="row")).splitlines()
    assert len(lines) == 4 and lines[2].startswith("| random | 1.049 (") and lines[2].endswith("| 1 |")
    own, ahead = np.sqrt(1.2 * 1.5), np.sqrt(1.2 * 1.5 / 1.1)
    assert f"{own:.3f} (" in lines[3] and f"over random {ahead:.3f} (" in lines[3] and lines[3].endswith("| 2 |")


def test_a_program_whose_processes_disagree_is_left_out():
    rows = [(name, "f", "random", 5, 5, 1.1, 1.0, high) for name, high in (("a", 1.4), ("b", 1.6), ("b", 1.2))]
    kept, rough = study.steady(pl.DataFrame(rows, study.COLUMNS, orient="row"))
    assert kept["program"].to_list() == ["a"] and rough == ["b"]
