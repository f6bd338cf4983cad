"""Agreement tables against explicit loops, on a drawn program, and what must not change them."""
import math
import tracemalloc

import networkx
import numpy as np
import pytest
from drawn import (
    drawn_layout,
    drawn_neighbours,
    every_node_its_own_group,
    relabelled_nodes,
    renamed_codes,
    renamed_groups,
    reordered_configurable_nodes,
    reordered_edges,
)

from kit.agree import agreement_tables
from kit.data import LayoutGraph, npz_paths, read_layout
from kit.pad import repad_layout
from kit.prune import prune

#   0 ---v        /--> 5 ---> 6* ---> 7* ---> 8*           * configurable
#   1 ---> 2* ---+
#                 \--> 3 ---> 4*                           the output of 5 has another shape than that of 2
EDGES = np.array([[2, 0], [2, 1], [3, 2], [4, 3], [5, 2], [6, 5], [7, 6], [8, 7]])
CONFIGURABLE = np.array([2, 4, 6, 7, 8])
NODES = {0: ((8, 64), (1, 0)), 1: ((64, 128), (0, 1)), 2: ((8, 128), (1, 0)), 3: ((8, 128), (1, 0)),
         4: ((8, 128), (0, 1)), 5: ((8, 32), (1, 0)), 6: ((8, 32), (1, 0)), 7: ((8, 32), (1, 0)), 8: ((8,), (0,))}


def program(codes):
    """The drawn program; `codes` of configurable nodes: {node: [(output, input, kernel), ...]}, as many each."""
    node_feat = np.zeros((9, 140), np.float32)
    for node, (shape, layout) in NODES.items():
        node_feat[node, 21:21 + len(shape)], node_feat[node, 134:134 + len(layout)] = shape, layout
    code_rows = np.full((5, max(map(len, codes.values())), 18), -1, np.int8)
    for node, rows in codes.items():
        for code, layouts in enumerate(rows):
            for part, layout in enumerate(layouts):
                code_rows[list(CONFIGURABLE).index(node), code, 6 * part:6 * part + len(layout)] = layout
    return LayoutGraph("drawn", node_feat, np.ones(9, np.int64), EDGES, CONFIGURABLE, np.array([0]),
                       np.zeros((1, 5), np.uint8), np.arange(5), code_rows, np.array([1]))


def size(*shape):
    return math.log(1 + math.prod(shape)) / 10


def test_what_a_node_is_given_on_a_drawn_program():
    graph = program({2: [((), (), ()), ((0, 1), (1, 0), (0, 1)), ((1, 0), (2, 0), ()), ((), (2, 3), (2, 3))],
                     8: [((0,), (1,), ()), ((1, 0), (1, 0), (1, 0))]})
    out, left, right, seven = size(8, 128), size(8, 64), size(64, 128), size(8, 32)
    tables = agreement_tables(graph)
    expected = np.zeros((4, 11))                          # code 0: nothing given, so nothing disagrees
    expected[1] = [1, 1, 1, 1, 0, 0, 1, out, 0, 0, out]   # input fits 0, kernel fits 1; 3 alone has the output's shape
    expected[2] = [1, 1, 0, 0, 0.5, 0, 0, 0, left / 2, 0, 0]         # one dimension of 0 agrees, none of 1
    expected[3] = [0, 1, 1, 0, 1, 1, 0, 0, right, left, 0]           # neither fits: the larger is the input
    assert tables.own[0] == pytest.approx(expected)
    assert tables.own[4, 0] == pytest.approx([1, 1, 0, 0, 0.5, 0, 0, 0, seven / 2, 0, 0])
    assert tables.own[4, 1] == pytest.approx([1, 1, 1, 1, 0, 0, 0, size(8), 0, 0, 0])
    assert (tables.own[4, 2:] == 0).all()                 # codes that its group does not have
    assert tables.share == pytest.approx(np.array([8 * 128, 8 * 128, 8 * 32, 8 * 32, 8]) / (64 * 128))
    assert tables.own.dtype == tables.pair.dtype == tables.share.dtype == np.float32


def test_pairs_pass_one_node_of_the_same_shape_that_is_not_configurable():
    graph = program({2: [((), (), ())]})
    tables = agreement_tables(graph)
    assert CONFIGURABLE[tables.pairs].tolist() == [[2, 4], [6, 7], [7, 8]]        # not 2, 6 nor 6, 8
    assert tables.pairs.dtype == np.int64 and tables.pair.shape == (3, 1, 1, 8) and not tables.pair.any()
    longer = graph._replace(edge_index=np.array([[3, 2], [5, 3], [4, 5]]))        # two nodes between 2 and 4
    assert len(agreement_tables(longer).pairs) == 0


def test_what_a_pair_is_given_on_a_drawn_program():
    graph = program({2: [((), (1, 0), (1, 0)), ((0, 1), (), ())],
                     4: [((1, 0), (1, 0), ()), ((0, 1), (1, 2), (0, 1))],
                     7: [((0, 1), (), ()), ((0, 1), (0, 1), (0, 1))], 8: [((1, 0), (), (1, 0)), ((), (), ())]})
    pair, wide, narrow = agreement_tables(graph).pair, size(8, 128), size(8, 32)
    for found, expected, times in (
            (pair[0, 0, 0], [0, 0, 0, 0], wide),          # 2 delivers its default (1, 0)
            (pair[0, 1, 0], [1, 0, 1, 1], wide),          # no kernel is given, so the better of two is the input
            (pair[0, 0, 1], [0.5, 1, 0.5, 1], wide),
            (pair[0, 1, 1], [1, 0, 0, 0], wide),
            (pair[1, 0, 1], [1, 1, 1, 1], narrow),        # 6 is never given anything
            (pair[1, 1, 0], [0, 0, 0, 1], narrow),
            (pair[2, 1, 0], [0, 1, 1, 0], narrow),        # outputs of different shapes are not compared
            (pair[2, 0, 1], [0, 0, 0, 0], narrow)):
        assert found == pytest.approx(np.array([*expected, *(times * x for x in expected)]))


def slow_tables(graph):
    """The same, node by node, code by code and edge by edge, in Python numbers."""
    ids, edges = graph.node_config_ids.tolist(), graph.edge_index.tolist()
    shape = [tuple(row[21:27].tolist()) for row in graph.node_feat]
    default = [[digit if place < sum(d != 0 for d in dims) else -1 for place, digit in enumerate(row[134:136])]
               for row, dims in zip(graph.node_feat, shape)]

    def elements(node):
        return math.prod(max(d, 1) for d in shape[node])

    def differ(a, b):
        return sum(x != y for x, y in zip(a, b, strict=True)) / 2

    def layouts(place, code):                             # None: not given
        row = graph.code_rows[place, code].tolist()
        return [row[at:at + 2] if row[at] >= 0 else None for at in (0, 6, 12)]
    codes = range(graph.code_rows.shape[1])
    own = np.zeros((len(ids), len(codes), 11))
    for place, node in enumerate(ids):
        operands = [v for u, v in edges if u == node]
        consumers = [u for u, v in edges if v == node and shape[u] == shape[node]]
        for code in codes:
            output, *wanted = layouts(place, code)
            terms = [(differ(output, default[node]) if output else 0, elements(node))]
            for layout, choice in zip(wanted, (max, min)):
                fits = [differ(layout, default[v]) for v in operands] if layout else []
                best = [elements(v) for v, fit in zip(operands, fits) if fit == min(fits)]
                terms.append((min(fits, default=0), choice(best, default=0)))
            terms.append((np.mean([differ(output, default[u]) for u in consumers]) if output and consumers else 0,
                          elements(node)))
            own[place, code] = [*(layout is not None for layout in (output, *wanted)), *(d for d, _ in terms),
                                *(d * math.log(1 + many) / 10 for d, many in terms)]
    net = networkx.DiGraph((v, u) for u, v in edges)      # from producer to consumer
    net.add_nodes_from(ids)
    pairs = set()
    for v in ids:
        for u in net.successors(v):
            if u in ids:
                pairs.add((ids.index(v), ids.index(u)))
            elif shape[u] == shape[v]:
                pairs |= {(ids.index(v), ids.index(w)) for w in net.successors(u) if w in ids}
    pairs = sorted(pairs)
    pair = np.zeros((len(pairs), len(codes), len(codes), 8))
    for (v, u), table in zip(pairs, pair):
        for a in codes:
            for b in codes:
                delivered = layouts(v, a)[0] or default[ids[v]]
                output, *wanted = [layout and differ(delivered, layout) for layout in layouts(u, b)]
                fits = [fit for fit in wanted if fit is not None]
                four = [wanted[0] or 0, wanted[1] or 0, min(fits, default=0),
                        output or 0 if shape[ids[v]] == shape[ids[u]] else 0]
                table[a, b] = [*four, *(x * math.log(1 + elements(ids[v])) / 10 for x in four)]
    share = [elements(node) / max(map(elements, range(len(shape)))) for node in ids]
    return own, share, np.array(pairs, np.int64).reshape(-1, 2), pair


def assert_equal_tables(found, expected):
    assert found[2].tolist() == expected[2].tolist()
    for a, b in zip(found, expected, strict=True):
        assert a.shape == np.shape(b) and np.allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("seed", range(12))
def test_tables_are_those_of_explicit_loops(seed):
    rng = np.random.default_rng([7, seed])
    n = int(rng.integers(2, 25))
    nc = int(rng.integers(1, n + 1))
    graph = drawn_neighbours(seed, n=n, nc=nc, g=1, k=int(rng.integers(1, 5)), m=int(rng.integers(0, 4 * n)))
    assert_equal_tables(agreement_tables(graph), slow_tables(graph))
    scattered = drawn_layout(seed, m=30)                  # ranks from 0 on, hardly two shapes alike
    assert_equal_tables(agreement_tables(scattered), slow_tables(scattered))


def test_the_drawn_graphs_have_pairs_of_both_kinds():
    direct = passing = 0
    for seed in range(12):
        graph = drawn_neighbours(seed)
        pairs = set(map(tuple, graph.node_config_ids[agreement_tables(graph).pairs].tolist()))
        edges = {(v, u) for u, v in graph.edge_index.tolist()}
        direct, passing = direct + len(pairs & edges), passing + len(pairs - edges)
    assert direct > 50 and passing > 10


@pytest.mark.parametrize("graph", [
    drawn_layout(1, m=0), drawn_layout(2, nc=0, g=0, k=1), drawn_layout(3, nc=0, g=0, k=1, m=0),
    drawn_layout(4, n=1, nc=1, g=1, m=0), drawn_neighbours(5, k=1), drawn_neighbours(6, n=6)],
    ids=["no edge", "nothing configurable", "neither", "one node", "one code", "all configurable"])
def test_a_graph_may_lack_anything(graph):
    tables = agreement_tables(graph)
    assert_equal_tables(tables, slow_tables(graph))
    nc, k = graph.code_rows.shape[:2]
    assert tables.own.shape == (nc, k, 11) and tables.pair.shape[1:] == (k, k, 8) and tables.pairs.shape[1:] == (2,)


def test_nothing_given_disagrees_with_nothing():
    graph = drawn_neighbours(7)
    graph.code_rows[:, :, [0, 6, 12]] = -1                # whatever stands in the other places
    tables = agreement_tables(graph)
    assert len(tables.pairs) > 3 and not tables.own.any() and not tables.pair.any()


def test_the_defaults_agree_with_themselves():
    graph = drawn_neighbours(8, n=4, nc=4, m=0)
    graph = graph._replace(edge_index=np.array([[1, 0], [2, 1], [3, 2]]))
    graph.node_feat[:] = graph.node_feat[0]
    default = repad_layout(graph.node_feat)[0][0, 134:140]
    graph.code_rows[:] = np.tile(default, 3)
    tables = agreement_tables(graph)
    assert len(tables.pairs) == 3 and (tables.own[:, :, :3] == 1).all()
    assert not tables.own[:, :, 3:].any() and not tables.pair.any()


@pytest.mark.parametrize("change", [relabelled_nodes, reordered_edges, renamed_groups, every_node_its_own_group])
def test_numbering_of_nodes_groups_and_edges_changes_nothing(change):
    for seed in range(5):
        graph = drawn_neighbours(seed)
        for found, expected in zip(agreement_tables(change(graph, np.random.default_rng(seed))),
                                   agreement_tables(graph), strict=True):
            assert np.array_equal(found, expected)


def test_tables_follow_the_names_of_codes_and_the_order_of_configurable_nodes():
    graph = drawn_neighbours(9)
    tables, order = agreement_tables(graph), np.random.default_rng(0).permutation(4)
    renamed = agreement_tables(renamed_codes(graph, np.random.default_rng(0)))
    assert np.array_equal(renamed.own, tables.own[:, order])
    assert np.array_equal(renamed.pair, tables.pair[:, order][:, :, order])
    order = np.random.default_rng(1).permutation(6)
    moved = agreement_tables(reordered_configurable_nodes(graph, np.random.default_rng(1)))
    assert np.array_equal(moved.own, tables.own[order])
    into = {tuple(pair): table for pair, table in zip(tables.pairs.tolist(), tables.pair)}
    assert len(into) == len(moved.pairs)
    for (v, u), table in zip(moved.pairs, moved.pair, strict=True):
        assert np.array_equal(table, into[order[v], order[u]])


def test_configurations_and_runtimes_are_not_read():
    graph = drawn_neighbours(10)
    other = graph._replace(config_codes=graph.config_codes[:0], config_runtime=graph.config_runtime[:0])
    assert all(map(np.array_equal, agreement_tables(other), agreement_tables(graph)))


def test_too_many_pairs_of_codes_are_refused_by_name(monkeypatch):
    graph = drawn_neighbours(11)
    rows = len(agreement_tables(graph).pairs) * 4 * 4
    assert rows > 16
    monkeypatch.setattr("kit.agree.MAX_PAIR_ROWS", rows)
    agreement_tables(graph)
    monkeypatch.setattr("kit.agree.MAX_PAIR_ROWS", rows - 1)
    with pytest.raises(ValueError) as caught:
        agreement_tables(graph)
    assert str(caught.value) == (f"drawn: {rows // 16} pairs of neighbours with 4 codes each pass {rows - 1} table "
                                 "rows; use a model without agreement features")


def real_layouts(real_data):
    paths = [path for source in ("xla", "nlp") for search in ("default", "random") for split in ("train", "test")
             for path in npz_paths(real_data / "npz", f"layout:{source}:{search}", split)]
    assert len(paths) > 6
    return paths


def test_a_real_file_has_the_tables_of_explicit_loops(real_data):
    path, = [p for p in real_layouts(real_data) if "alexnet" in p.stem]
    graph = prune(read_layout(path))
    tables = agreement_tables(graph)
    assert len(tables.pairs) == 7 and tables.own.shape == (26, 9, 11)
    assert_equal_tables(tables, slow_tables(graph))


def test_pruning_keeps_what_agreement_reads(real_data):
    for path in real_layouts(real_data):
        graph = read_layout(path, configs=range(10))
        whole, pruned = agreement_tables(graph), agreement_tables(prune(graph))
        assert np.array_equal(whole.own, pruned.own) and np.array_equal(whole.pairs, pruned.pairs)
        assert np.array_equal(whole.pair, pruned.pair) and (whole.share <= pruned.share).all()


def test_the_largest_real_file_takes_little_more_memory_than_its_nodes(real_data):
    path, = npz_paths(real_data / "npz", "layout:nlp:default", "test")
    graph = read_layout(path)
    assert len(graph.node_feat) == 21_918
    tracemalloc.start()
    tables = agreement_tables(graph)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tables.pair.shape == (229, 9, 9, 8) and tables.own.shape == (848, 9, 11)
    assert peak < 3 * graph.node_feat.nbytes
