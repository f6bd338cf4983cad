"""Pruning keeps the neighbourhood that it promises and never touches a configuration."""
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from drawn import drawn_chains

from kit.agreement import find_meetings
from kit.data import LayoutGraph
from kit.prune import config_ids, drop_duplicate_configs, fewer_configs, hold_out_configs, k_hop_nodes, prune

#   0 -> 1 -> 2 -> 3      5 -> 6        configurable: 2
#        4 ---^
EDGES = np.array([[0, 1], [1, 2], [2, 3], [4, 2], [5, 6]])


def a_graph(edge_index, node_config_ids, n, codes=((0, 1), (1, 0), (0, 1)), runtime=None, splits=None):
    """A layout graph whose node i has the feature i everywhere; configurable nodes belong to groups in turn."""
    ids, codes = np.asarray(node_config_ids, dtype=np.int64), np.asarray(codes, dtype=np.uint8)
    c, g = codes.shape
    rng = np.random.default_rng(0)
    return LayoutGraph(
        "drawn", np.repeat(np.arange(n, dtype=np.float32)[:, None], 140, axis=1), np.arange(n) % 121,
        np.asarray(edge_index, dtype=np.int64).reshape(-1, 2), ids, np.array([0, n] if splits is None else splits),
        codes, np.arange(len(ids)) % max(g, 1),
        rng.integers(-1, 6, (len(ids), int(codes.max(initial=0)) + 1, 18), dtype=np.int8),
        np.arange(c) + 1 if runtime is None else np.asarray(runtime))


def random_graph(rng):
    n = int(rng.integers(3, 25))
    ids = rng.choice(n, rng.integers(1, min(n, 5)), replace=False)
    return a_graph(rng.integers(0, n, (rng.integers(0, 40), 2)), ids, n,
                   splits=np.sort(np.append(rng.integers(0, n + 1, 3), [0, n])))


@pytest.mark.parametrize("k, kept", [(0, [2]), (1, [1, 2, 3, 4]), (2, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])])
def test_k_hop_nodes_on_a_drawn_graph(k, kept):
    nodes = k_hop_nodes(EDGES, np.array([2]), k)
    assert nodes.tolist() == kept and nodes.dtype == np.int64


def test_k_hop_nodes_are_those_of_networkx():
    rng = np.random.default_rng(0)
    for _ in range(100):
        graph = random_graph(rng)
        net = nx.Graph(graph.edge_index.tolist())
        net.add_nodes_from(graph.node_config_ids.tolist())
        near = nx.multi_source_dijkstra_path_length(net, graph.node_config_ids.tolist())
        for k in range(5):
            expected = sorted(v for v, hops in near.items() if hops <= k)
            assert k_hop_nodes(graph.edge_index, graph.node_config_ids, k).tolist() == expected


@pytest.mark.parametrize("k", [-1, True, 1.5])
def test_hops_are_a_whole_number(k):
    with pytest.raises(ValueError, match=f"^k is {k}; expected a whole number of at least 0 hops$"):
        k_hop_nodes(np.array([[1, 0]]), np.array([0]), k)


def test_nothing_is_near_no_seed():
    assert k_hop_nodes(EDGES, np.array([], dtype=np.int64), 3).tolist() == []
    assert k_hop_nodes(np.zeros((0, 2), np.int64), np.array([4]), 3).tolist() == [4]


#   0 -> 1 -> 2 -> 4      configurable: 2; 1 - 3 and 3 - 4 join two of its neighbours
#        1 -> 3 -> 2 ; 3 -> 4
RING = np.array([[0, 1], [1, 2], [2, 4], [1, 3], [3, 2], [3, 4], [1, 2]])


@pytest.mark.parametrize("k, nodes, edges", [
    (0, [2], []), (1, [1, 2, 3, 4], [[0, 1], [1, 3], [2, 1], [0, 1]]), (2, [0, 1, 2, 3, 4], RING.tolist())])
def test_which_edges_of_a_drawn_graph_remain(k, nodes, edges):
    pruned = prune(a_graph(RING, [2], 6), k)
    assert pruned.node_feat[:, 0].tolist() == nodes and pruned.edge_index.tolist() == edges
    assert pruned.edge_index.shape == (len(edges), 2)


def slow_edges(graph, k):
    """Edges that remain, in the numbers of the whole graph."""
    def hops(v):
        near = {int(s) for s in graph.node_config_ids}
        for step in range(k + 2):
            if v in near:
                return step
            near |= {int(b) for a, b in graph.edge_index if a in near} | {int(a) for a, b in graph.edge_index
                                                                        if b in near}
        return k + 2
    return [[u, v] for u, v in graph.edge_index.tolist()
            if max(hops(u), hops(v)) <= k and min(hops(u), hops(v)) < k]


def test_edges_and_numbers_after_pruning_are_those_of_a_slow_loop():
    rng = np.random.default_rng(1)
    for _ in range(40):
        graph, k = random_graph(rng), int(rng.integers(0, 4))
        pruned = prune(graph, k)
        number = pruned.node_feat[:, 0].astype(int)                   # in the whole graph
        assert number.tolist() == k_hop_nodes(graph.edge_index, graph.node_config_ids, k).tolist()
        assert number[pruned.edge_index].reshape(-1, 2).tolist() == slow_edges(graph, k)
        assert number[pruned.node_config_ids].tolist() == graph.node_config_ids.tolist()
        assert (pruned.node_opcode == graph.node_opcode[number]).all()
        part, computation = (np.searchsorted(s, v, side="right") for s, v in (
            (pruned.node_splits, np.arange(len(number))), (graph.node_splits, number)))
        assert (part == computation).all(), "every node stays in its computation"
        assert pruned.node_splits[-1] == len(number)


def test_pruning_leaves_configurations_untouched_and_the_input_too():
    graph = random_graph(np.random.default_rng(2))
    before = [np.copy(field) for field in graph]
    pruned = prune(graph, 1)
    for name in ("graph_id", "config_codes", "node_group", "code_rows", "config_runtime"):
        assert getattr(pruned, name) is getattr(graph, name)
    assert all((a == b).all() for a, b in zip(before, graph))
    assert pruned.node_feat.dtype == np.float32 and pruned.edge_index.dtype == np.int64


def test_a_graph_without_configurable_nodes_stays_whole():
    graph = a_graph(EDGES, [], 7, np.zeros((3, 0)))
    assert all(np.array_equal(a, b) for a, b in zip(prune(graph), graph, strict=True))


def test_pruning_keeps_the_meetings_of_the_whole_program():
    cut = 0
    for seed in range(10):
        graph = drawn_chains(seed, n=40)
        whole, pruned = find_meetings(graph), prune(graph)
        assert all(map(np.array_equal, whole, pruned.meetings)) and prune(pruned, 0).meetings is pruned.meetings
        cut += len(find_meetings(pruned).hops) < len(whole.hops)
        known = whole._replace(hops=whole.hops + 7)
        assert prune(graph._replace(meetings=known)).meetings is known
    assert cut > 2


def random_configs(rng, c):
    g = int(rng.integers(1, 4))
    return a_graph(EDGES, [2], 7, rng.integers(0, 3, (c, g)), rng.integers(1 << 50, (1 << 50) + 1000, c))


def test_equal_configurations_get_equal_numbers_by_first_appearance():
    graph = a_graph(EDGES, [2], 7, [[1, 0], [0, 1], [1, 0], [0, 0], [0, 1]])
    assert config_ids(graph).tolist() == [0, 1, 0, 2, 1]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_numbers_of_configurations_are_those_of_pandas(dtype):
    rng = np.random.default_rng(4)
    for c in (1, 2, 10, 100):
        graph = random_configs(rng, c)
        graph = graph._replace(config_codes=np.asfortranarray(graph.config_codes.astype(dtype)))
        groups = pd.DataFrame(graph.config_codes).groupby(list(range(graph.config_codes.shape[1])), sort=False)
        assert config_ids(graph).tolist() == groups.ngroup().tolist()


def test_merged_repeats_are_those_of_a_pandas_groupby():
    rng = np.random.default_rng(5)
    for c in (1, 2, 30, 200):
        graph = random_configs(rng, c)
        merged, repeats, spread = drop_duplicate_configs(graph)
        names = list(range(graph.config_codes.shape[1]))
        base = int(graph.config_runtime.min())                         # pandas sums in float64
        by = pd.DataFrame(graph.config_codes).assign(y=graph.config_runtime - base).groupby(names, sort=False).y
        assert merged.config_codes.tolist() == by.first().reset_index()[names].to_numpy().tolist()
        assert repeats.tolist() == by.size().tolist()
        # both means are exact up to rounding; a mean of .5 may go either way
        assert np.abs(merged.config_runtime - base - by.mean().to_numpy()).max() <= 0.5
        np.testing.assert_allclose(spread, (by.std() / (by.mean() + base)).to_numpy(), rtol=1e-9)
        assert merged.config_runtime.dtype == np.int64 and merged.config_codes.dtype == np.uint8
        assert np.isnan(spread[repeats == 1]).all() and not np.isnan(spread[repeats > 1]).any()


def test_repeats_of_a_drawn_graph_are_averaged_in_whole_ns():
    graph = a_graph(EDGES, [2], 7, [[0], [1], [0], [0]], [10, 7, 12, 12])
    merged, repeats, spread = drop_duplicate_configs(graph)
    assert merged.config_runtime.tolist() == [11, 7] and repeats.tolist() == [3, 1]
    assert spread[0] == pytest.approx(np.std([10, 12, 12], ddof=1) / (34 / 3)) and np.isnan(spread[1])


def test_placeholder_runtimes_have_no_spread():
    merged, repeats, spread = drop_duplicate_configs(a_graph(EDGES, [2], 7, [[0], [0]], [0, 0]))
    assert merged.config_runtime.tolist() == [0] and repeats.tolist() == [2] and np.isnan(spread).all()


def test_without_configurable_nodes_all_configurations_are_one():
    graph = a_graph(EDGES, [], 7, np.zeros((5, 0)), [1, 2, 3, 4, 5])
    merged, repeats, _ = drop_duplicate_configs(graph)
    assert merged.config_codes.shape == (1, 0) and repeats.tolist() == [5] and merged.config_runtime.tolist() == [3]


def test_held_out_configurations_are_a_partition():
    graph = a_graph(EDGES, [2], 7, np.arange(50)[:, None])
    for share, size in ((0, 0), (0.25, 12), (0.5, 25), (1, 50)):
        seen, held_out = hold_out_configs(graph, share, np.random.default_rng(0))
        assert len(held_out.config_runtime) == size
        both = np.concatenate([seen.config_codes[:, 0], held_out.config_codes[:, 0]])
        assert sorted(both) == list(range(50))
        for part in (seen, held_out):                                  # runtimes follow, order stays
            assert (part.config_runtime == part.config_codes[:, 0] + 1).all()
            assert (np.diff(part.config_runtime) > 0).all() and part.node_feat is graph.node_feat


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_between_0_and_1(share):
    with pytest.raises(ValueError, match=f"^share must be within 0 to 1, got {share}$"):
        hold_out_configs(SimpleNamespace(), share, np.random.default_rng(0))


def test_fewer_configurations_are_always_the_same_ones_in_their_order():
    graph = a_graph(EDGES, [2], 7, np.arange(20).reshape(10, 2) % 3)
    total = len(graph.config_runtime)
    assert fewer_configs(graph, total) is graph
    few, again = fewer_configs(graph, total - 2), fewer_configs(graph, total - 2)
    kept = np.sort(np.random.default_rng(0).permutation(total)[:total - 2])
    assert np.array_equal(few.config_codes, graph.config_codes[kept])
    assert np.array_equal(few.config_runtime, again.config_runtime) and len(few.config_runtime) == total - 2
