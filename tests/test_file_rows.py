"""Searches among the rows of a file: only its rows are measured, each once; what is finished is kept."""
import itertools

import numpy as np
import pytest

from kit.data import LayoutGraph
from kit.search.file_rows import search_rows
from lab.data.truth import REPEATED, default_codes
from lab.run.store import Store
from lab.studies import search_tables
from lab.studies.search_tables import file_rows, search_space


def graph_of(codes):
    codes = np.array(codes, np.uint8)
    return LayoutGraph("drawn", *[None] * 5, codes, None, None, np.arange(1, len(codes) + 1))


def landscape(dims, seed):
    """All points of a space in random order, and their costs: of coordinates and of pairs of neighbours."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.array(list(itertools.product(*map(range, dims)))))
    alone, pairs = rng.normal(size=(len(dims), 9)), rng.normal(size=(len(dims), 9, 9))
    at = np.arange(len(dims))
    return codes, alone[at, codes].sum(axis=1) + pairs[at[1:], codes[:, :-1], codes[:, 1:]].sum(axis=1)


def test_the_default_is_what_is_measured_most_often_if_that_is_often():
    rows = [[0, 1]] * 3 + [[2, 0]] * REPEATED + [[1, 1]] * 4
    assert default_codes(graph_of(rows)).tolist() == [2, 0]
    assert default_codes(graph_of(rows[:-5])) is None
    assert search_space(graph_of(rows)).tolist() == [3, 2]


@pytest.mark.parametrize("modelled", [False, True])
@pytest.mark.parametrize("budget", [1, 7, 1000])
def test_only_rows_are_measured_each_once_and_never_more_than_the_budget(modelled, budget):
    codes, runtime = landscape([4, 3, 5, 2, 9], seed=1)
    codes, runtime = codes[:300], runtime[:300]
    found = search_rows(runtime, codes, budget, np.random.default_rng(0), cost=-runtime if modelled else None)
    rows = [codes.tolist().index(point) for point in found.points.tolist()]
    assert len(set(rows)) == len(rows) == found.measurements == min(budget, 300)
    assert found.costs.tolist() == runtime[rows].tolist() and found.best_cost == runtime[rows].min()
    assert found.queries == 300 * modelled


def test_a_model_that_is_right_is_believed_and_one_that_says_nothing_does_no_harm():
    better = 0
    for seed in range(10):
        codes, runtime = landscape([4, 3, 5, 2, 9], seed)
        right = search_rows(runtime, codes, 1, np.random.default_rng(seed), cost=7 * runtime + 3)
        assert right.best_cost == runtime.min()
        alike = search_rows(runtime, codes, 40, np.random.default_rng(seed), cost=np.zeros(len(codes)))
        better += alike.best_cost < np.median([np.random.default_rng(s).permutation(runtime)[:40].min()
                                               for s in range(50)])
    assert better >= 8                             # random choice would win half of the time


def test_repeated_rows_and_an_empty_budget_are_refused():
    with pytest.raises(ValueError, match="^2 rows hold 1 configurations; expected all different: merge the repeats$"):
        search_rows(np.array([1, 2]), np.zeros((2, 3)), 1, np.random.default_rng(0))
    with pytest.raises(ValueError, match="^budget is 0; expected a whole number of at least 1$"):
        search_rows(np.array([1, 2]), np.array([[0], [1]]), 0, np.random.default_rng(0))


def test_rows_of_a_table_are_means_of_plain_loops_and_are_kept(tmp_path, monkeypatch):
    codes, runtime = landscape([4, 3, 5], seed=2)
    runtime = np.rint(1000 * (runtime - runtime.min() + 1)).astype(int)
    graph = graph_of(codes)._replace(config_runtime=runtime)
    cost, store = np.random.default_rng(0).normal(size=len(codes)), Store(tmp_path / "store")
    first = file_rows(graph, cost, [3, 8, 100], 2, store)
    assert [row["budget"] for row in first] == [3, 8]                  # at most half of the rows
    for row in first:
        for name, by in (("searched", None), ("searched with model", cost)):
            found = [search_rows(runtime, codes, row["budget"], np.random.default_rng(seed), cost=by).best_cost
                     for seed in range(2)]
            assert row[name] == pytest.approx(np.mean(found) / runtime.min() - 1)
            assert row[f"{name}, worst"] == pytest.approx(max(found) / runtime.min() - 1)
        best = runtime[np.argsort(cost)[:row["budget"]]].min()
        assert row["model's best"] == pytest.approx(best / runtime.min() - 1)
    monkeypatch.setattr(search_tables, "search_rows", None)            # nothing is searched again
    assert file_rows(graph, cost, [3, 8, 100], 2, store) == first
    with pytest.raises(TypeError):
        file_rows(graph, -cost, [3, 8, 100], 2, store)
