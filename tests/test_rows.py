"""What may be measured: any configuration of sample data as its files say, and of a file its rows alone."""
import itertools

import numpy as np
import pytest

from kit.data import LayoutGraph, npz_paths, read_layout
from kit.search.rows import search_rows
from lab.studies.search_spaces import REPEATED, default_codes, search_space, simulated_runtime

LAYOUTS = ("layout:xla:random", "layout:xla:default", "layout:nlp:random", "layout:nlp:default")


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


@pytest.mark.parametrize("collection", LAYOUTS)
def test_every_row_of_the_sample_data_takes_what_the_simulator_says_up_to_noise(tiny_sample, collection):
    for path in npz_paths(tiny_sample, collection, "train"):
        graph = read_layout(path)
        ratio = graph.config_runtime / simulated_runtime(graph)(graph.config_codes.astype(np.int64))
        assert abs(np.log(ratio)).max() < 0.03 and 0.001 < np.log(ratio).std() < 0.008      # 0.3 to 0.5% is written
        assert (graph.config_codes < search_space(graph)).all()


@pytest.mark.parametrize("collection", LAYOUTS)
def test_a_configuration_that_no_row_holds_has_a_runtime_too(tiny_sample, collection):
    graph = read_layout(npz_paths(tiny_sample, collection, "test")[0])
    points = np.random.default_rng(0).integers(search_space(graph), size=(50, graph.config_codes.shape[1]))
    assert len({*map(tuple, points.tolist())} - {*map(tuple, graph.config_codes.tolist())}) > 40
    runtime = simulated_runtime(graph)(points)
    assert runtime.shape == (50,) and (runtime > 0).all() and len(np.unique(runtime)) > 10


def test_both_searches_of_a_sample_program_have_one_default(tiny_sample):
    for source in ("xla", "nlp"):
        digits = []
        for search in ("random", "default"):
            graph = read_layout(npz_paths(tiny_sample, f"layout:{source}:{search}", "test")[0])
            codes = default_codes(graph)
            digits.append(graph.code_rows[np.arange(len(graph.node_group)), codes[graph.node_group]].tolist())
        assert digits[0] == digits[1]


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
