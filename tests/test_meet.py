"""Where layouts meet: a drawn program, a slow walk and networkx's paths, what must not change it, and real programs."""
import tracemalloc

import networkx
import numpy as np
import pytest
from drawn import (
    drawn_chains,
    drawn_layout,
    drawn_neighbours,
    every_node_its_own_group,
    relabelled_nodes,
    renamed_codes,
    renamed_groups,
    reordered_configurable_nodes,
    reordered_edges,
    slow_meetings,
)

from kit.agreement import REACH, TRANSPOSE, find_meetings
from kit.data import LayoutGraph, npz_paths, read_layout
from kit.prune import prune

#   0* ---> 1 ---> 2 ---> 3*          * configurable; all are (4, 8) but 2, which transposes, and what follows it
#           |      |                    7 has another shape
#   4* -----+      +----> 5 ---> 6*
#   |
#   +----> 7 ---> 8*
EDGES = np.array([[1, 0], [1, 4], [2, 1], [3, 2], [5, 2], [6, 5], [7, 4], [8, 7]])
SAME, TURNED = (0, 1, 2, 3, 4, 5), (1, 0, 2, 3, 4, 5)


def program(edges=EDGES, ids=(0, 3, 4, 6, 8), turned=(2, 3, 5, 6), dimensions=(1, 0), others=((7, (4, 4)),)):
    node_feat = np.zeros((9, 140), np.float32)
    node_feat[:, 21:23] = 4, 8
    node_feat[list(turned), 21:23] = 8, 4
    for node, shape in others:
        node_feat[node, 21:23] = shape
    node_feat[2, 31:31 + len(dimensions)] = dimensions
    node_opcode = np.full(9, 2)
    node_opcode[2] = TRANSPOSE
    return LayoutGraph("drawn", node_feat, node_opcode, np.array(edges), np.array(ids), np.array([0]),
                       np.zeros((1, len(ids)), np.uint8), np.arange(len(ids)), np.zeros((len(ids), 1, 18), np.int8),
                       np.array([1]))


def ways(graph, reach=REACH):
    """{(end, end, join): (hops, names, names)} of find_meetings; a pair that is there twice is an error."""
    found = find_meetings(graph, reach)
    keys = [(*ends, join) for ends, join in zip(found.ends.tolist(), found.joins.tolist())]
    assert len(set(keys)) == len(keys) == len(found.hops) == len(found.names)
    return {key: (hops, *map(tuple, named))
            for key, hops, named in zip(keys, found.hops.tolist(), found.names.tolist())}


def nodes(graph, found):
    ids = graph.node_config_ids.tolist()
    return {(ids[one], ids[other], join): way for (one, other, join), way in found.items()}


def assert_same(found, expected):
    assert all(map(np.array_equal, found, expected))


def test_a_drawn_program():
    graph = program()
    assert nodes(graph, ways(graph)) == {
        (0, 3, False): (3, TURNED, SAME), (0, 6, False): (4, TURNED, SAME),
        (4, 3, False): (3, TURNED, SAME), (4, 6, False): (4, TURNED, SAME),
        (0, 4, True): (2, SAME, SAME), (4, 0, True): (2, SAME, SAME)}            # in 1; 4 does not pass 7


def test_a_configurable_node_ends_a_way_and_begins_its_own():
    found = nodes(graph := program(ids=(0, 1, 3)), ways(graph))
    assert found == {(0, 1, False): (1, SAME, SAME), (1, 3, False): (2, TURNED, SAME)}


@pytest.mark.parametrize("change", [dict(dimensions=(0, 0)), dict(dimensions=(0, 1)), dict(dimensions=(1, 2)),
                                    dict(turned=(3, 5, 6)), dict(others=((2, (8, 5)),))], ids=str)
def test_a_transpose_whose_dimensions_do_not_fit_its_shapes_ends_a_way(change):
    found = nodes(graph := program(**change), ways(graph))
    assert (0, 3, False) not in found and (4, 6, False) not in found and (0, 4, True) in found


def test_two_transposes_undo_each_other():
    graph = program(edges=[[2, 0], [5, 2], [3, 5]], turned=(2,))
    graph.node_opcode[5] = TRANSPOSE
    graph.node_feat[5, 31:33] = 1, 0
    assert nodes(graph, ways(graph)) == {(0, 3, False): (3, SAME, SAME)}


def test_a_join_may_meet_under_other_names():
    graph = program(edges=[[2, 0], [5, 2], [5, 6]])                              # 5 reads 0 transposed, and 6
    assert nodes(graph, ways(graph)) == {(0, 6, True): (3, TURNED, SAME), (6, 0, True): (3, SAME, TURNED)}


def test_the_shorter_of_two_ways_counts_and_of_two_alike_the_first_in_the_order_of_names():
    square = program(edges=[[1, 0], [2, 0], [3, 1], [3, 2], [6, 2], [5, 2], [6, 5]], turned=(),
                     others=[(node, (4, 4)) for node in range(9)])
    assert nodes(square, ways(square)) == {(0, 3, False): (2, SAME, SAME), (0, 6, False): (2, TURNED, SAME)}


def test_meetings_are_those_of_a_slow_walk():
    kinds = np.zeros(4, int)
    for seed in range(30):
        rng = np.random.default_rng([3, seed])
        n = int(rng.integers(2, 45))
        graph = drawn_chains(seed, n=n, nc=int(rng.integers(1, min(n, 12) + 1)), g=1)
        for reach in (REACH, int(rng.integers(1, 6))):
            expected = slow_meetings(graph, reach)
            assert ways(graph, reach) == expected
            kinds += [sum(not join for *_, join in expected), sum(join for *_, join in expected),
                      sum(one != other for _, one, other in expected.values()),
                      sum(hops > 3 for hops, *_ in expected.values())]
    assert (kinds > 20).all(), "pairs, joins, some under other names, some far apart"


@pytest.mark.parametrize("graph", [
    *(drawn_neighbours(seed) for seed in range(6)), *(drawn_layout(seed, m=30) for seed in range(3)),
    drawn_layout(4, m=0), drawn_layout(2, nc=0, g=0, k=1), drawn_layout(3, nc=0, g=0, k=1, m=0),
    drawn_layout(5, n=1, nc=1, g=1, m=3), drawn_neighbours(6, n=6)])
def test_a_graph_may_have_circles_and_lack_anything(graph):
    for reach in (0, 1, 2, REACH):
        assert ways(graph, reach) == slow_meetings(graph, reach)
    found = find_meetings(graph)
    assert found.ends.shape[1:] == (2,) and found.names.shape[1:] == (2, 6)
    assert [part.dtype for part in found] == [np.int64, bool, np.int64, np.int64]


def passages(graph):
    """networkx's graph of what can be walked, a node's output apart from its input: (node, "in"), (node, "out")."""
    net = networkx.DiGraph()
    shape, ids = graph.node_feat[:, 21:27], set(graph.node_config_ids.tolist())
    net.add_nodes_from((node, "out") for node in ids)
    for u, v in graph.edge_index.tolist():
        rank = np.count_nonzero(shape[u])
        moved = graph.node_opcode[u] == TRANSPOSE
        source = graph.node_feat[u, 31:31 + rank].astype(int) if moved else np.arange(rank)
        fits = rank == np.count_nonzero(shape[v]) and sorted(source) == list(range(rank)) and (
            shape[u, :rank] == shape[v, source]).all()
        if u in ids or fits:
            net.add_edge((v, "out"), (u, "in" if u in ids else "out"), source=source)
    return net


def test_a_pair_is_as_far_apart_as_networkx_says_and_named_by_one_of_its_shortest_ways():
    several = 0
    for seed in range(10):
        graph = drawn_chains(seed, n=40, nc=5, transposes=0.4)
        net, ids, found = passages(graph), graph.node_config_ids.tolist(), ways(graph, 99)
        for one, v in enumerate(ids):
            hops = networkx.single_source_shortest_path_length(net, (v, "out"))
            assert {ids[other]: way[0] for (a, other, join), way in found.items() if a == one and not join} == {
                node: hop for (node, side), hop in hops.items() if side == "in"}
        for (one, other, join), (_, names, _) in found.items():
            if not join:
                possible = set()
                for path in networkx.all_shortest_paths(net, (ids[one], "out"), (ids[other], "in")):
                    named = list(range(6))
                    for v, u in zip(path[:-1], path[1:-1]):
                        source = net.edges[v, u]["source"].tolist()
                        named = [source.index(d) if d in source else d for d in named]
                    possible.add(tuple(named))
                assert names in possible
                several += len(possible) > 1
    assert several


@pytest.mark.parametrize("change", [relabelled_nodes, reordered_edges, renamed_groups, renamed_codes,
                                    every_node_its_own_group])
def test_numbering_of_nodes_edges_groups_and_codes_changes_nothing(change):
    for seed in range(8):
        graph = drawn_chains(seed)
        assert_same(find_meetings(change(graph, np.random.default_rng(seed))), find_meetings(graph))


def test_pairs_follow_the_order_of_configurable_nodes():
    for seed in range(8):
        graph = drawn_chains(seed)
        other = reordered_configurable_nodes(graph, np.random.default_rng(seed))
        assert nodes(graph, ways(graph)) == nodes(other, ways(other))


def test_pairs_are_sorted_and_two_producers_meet_both_ways_round_in_the_same_distance():
    for seed in range(10):
        found = find_meetings(drawn_chains(seed, n=40, nc=10))
        keys = list(zip(*found.ends.T.tolist(), found.joins.tolist()))
        assert keys == sorted(keys) and found.hops.min() >= 1
        joins = {(one, other): hops for (one, other, join), hops in zip(keys, found.hops.tolist()) if join}
        assert joins == {(other, one): hops for (one, other), hops in joins.items()}
        assert min(joins.values(), default=2) >= 2


def test_a_smaller_reach_leaves_out_what_is_farther_and_nothing_else():
    farthest = set()
    for seed in range(4):
        graph = drawn_chains(seed, n=40, nc=6, transposes=0.1)
        whole = find_meetings(graph, 99)
        for reach in (0, 1, 2, 3, 5, 8):
            assert_same(find_meetings(graph, reach), (part[whole.hops <= reach] for part in whole))
        farthest.add(int(whole.hops.max()))
    assert max(farthest) > 5


def test_too_many_ways_leave_the_nearer_pairs_by_their_shortest_ways(monkeypatch):
    graph = drawn_chains(2, n=300, nc=40, transposes=0.1)
    whole, kept = find_meetings(graph), []
    for most in (10 ** 6, 60, 30, 25, 20, 15, 10, 3, 0):
        monkeypatch.setattr("kit.agreement.MAX_WALKS", most)
        found = find_meetings(graph)
        reach, within = (found.hops[found.joins == join].max(initial=0) for join in (False, True))
        assert_same(found, (part[whole.hops <= np.where(whole.joins, within, reach)] for part in whole))
        kept.append((int(reach), int(within)))
    assert kept == sorted(kept, reverse=True) and kept[0][0] == REACH and len(set(kept)) > 2
    assert kept[-1] == (1, 0), "what reads a configurable node's output itself is always found"


@pytest.fixture(scope="module")
def programs(real_data):
    """One graph of each real program, by name."""
    paths = [path for source in ("xla", "nlp") for search in ("default", "random") for split in ("train", "test")
             for path in npz_paths(real_data / "npz", f"layout:{source}:{search}", split)]
    graphs = {}
    for path in paths:
        graph = read_layout(path, configs=[0])
        graphs.setdefault(graph.node_feat.tobytes(), graph)
    return {graph.graph_id: graph for graph in graphs.values()}


def test_real_programs_meet_as_in_a_slow_walk_and_transposes_say_where_dimensions_go(programs):
    transposes = 0
    assert len(programs) > 5 and TRANSPOSE == 98
    for graph in programs.values():
        consumer, producer = graph.edge_index[graph.node_opcode[graph.edge_index[:, 0]] == TRANSPOSE].T
        for u, v in zip(consumer, producer):
            rank = np.count_nonzero(graph.node_feat[u, 21:27])
            source = graph.node_feat[u, 31:31 + rank].astype(int)
            assert (graph.node_feat[u, 21:21 + rank] == graph.node_feat[v, 21 + source]).all()
        transposes += len(consumer)
        if len(graph.node_feat) < 4000:
            assert ways(graph) == slow_meetings(graph) != {}
    assert transposes > 300


def test_convolutions_of_a_real_u_net_meet_six_to_ten_edges_apart_and_pruning_keeps_that(programs):
    graph = programs["unet3d"]
    found = find_meetings(graph)
    hops = found.hops[~found.joins]
    assert (len(hops), hops.min(), hops.max(), found.joins.sum()) == (72, 6, 9, 22)
    small = prune(graph)
    assert_same(small.meetings, found)
    assert len(find_meetings(small).hops) < len(found.hops), "the ways are cut"


def test_the_largest_real_program_takes_little_more_memory_than_its_nodes(programs):
    graph = max(programs.values(), key=lambda graph: len(graph.node_feat))
    assert len(graph.node_feat) == 21_918
    tracemalloc.start()
    found = find_meetings(graph)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (~found.joins).sum() > 1900 and peak < 2 * graph.node_feat.nbytes
