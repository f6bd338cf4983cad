"""Reference configurations: which, whatever way a graph is written."""
import numpy as np
import pytest
from drawn import WRITTEN_OTHERWISE, drawn_layout, drawn_neighbours

from kit.data import dense_configs
from kit.models.layout_gnn import reference_configs


def rows_by_node(graph, index):
    """The configured digits of each node, found by its features: the same however nodes are numbered."""
    order = np.lexsort(graph.node_feat[graph.node_config_ids].T)
    return dense_configs(graph, index)[:, order]


@pytest.mark.parametrize("change", WRITTEN_OTHERWISE)
def test_they_do_not_depend_on_how_a_graph_is_written(change):
    graph = drawn_layout(4, c=30)
    other = change(graph, np.random.default_rng(0))
    found, theirs = reference_configs(graph, 5), reference_configs(other, 5)
    assert np.array_equal(rows_by_node(other, theirs), rows_by_node(graph, found))


def test_they_do_not_depend_on_the_order_of_configurations_or_on_runtimes():
    graph, order = drawn_layout(5, c=30), np.random.default_rng(0).permutation(30)
    shuffled = graph._replace(config_codes=graph.config_codes[order], config_runtime=graph.config_runtime * 0)
    assert np.array_equal(dense_configs(shuffled, reference_configs(shuffled, 5)),
                          dense_configs(graph, reference_configs(graph, 5)))


def test_they_are_distinct_and_no_more_than_there_are():
    graph = drawn_layout(6, c=5, k=9)
    graph = graph._replace(config_codes=graph.config_codes[[0, 1, 2, 3, 4, 0, 1, 1]])
    found = reference_configs(graph, 16)
    rows = dense_configs(graph, found).reshape(len(found), -1)
    assert len(found) == len(np.unique(rows, axis=0)) == len(np.unique(graph.config_codes, axis=0))
    assert found.tolist()[:2] == reference_configs(graph, 2).tolist()


@pytest.mark.parametrize("place", range(7))
def test_the_default_comes_first_if_there_is_one(place):
    graph = drawn_neighbours(7)
    graph.code_rows[:, 2] = -1
    graph.code_rows[:, [0, 1, 3], 0] = 1
    graph.config_codes[graph.config_codes == 2] = 1
    assert place in reference_configs(graph, 7) and len(reference_configs(graph, 1)) == 1
    graph.config_codes[place] = 2
    assert reference_configs(graph, 3)[0] == place


def test_every_configuration_is_drawn_about_as_often():
    drawn = np.concatenate([reference_configs(drawn_layout(seed, c=40, k=50), 4) for seed in range(200)])
    counts = np.bincount(drawn, minlength=40)                  # 20 each
    assert counts.sum() == 800 and counts.min() > 3 and counts.max() < 45
