"""Where layouts meet and how far they agree: drawn programs, slow walks, explicit loops, real programs."""
import math
import tracemalloc

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
    reordered_edges,
    slow_bytes,
    slow_meetings,
    slow_roles,
    some_configs,
)
from sample.architectures import convolutional_net, transformer
from sample.runtimes import PEAK_FLOPS, Tensors

from kit.agreement import REACH, TRANSPOSE, _depths, agreement_tables, find_meetings, operand_roles
from kit.data import OPCODE_NAMES, LayoutGraph, npz_paths, read_layout
from kit.prune import prune

#   0* ---> 1 ---> 2 ---> 3*          * configurable; all are (4, 8) but 2, which transposes, and what follows it
#           |      |                    7 has another shape
#   4* -----+      +----> 5 ---> 6*
#   |
#   +----> 7 ---> 8*
PASSED = np.array([[1, 0], [1, 4], [2, 1], [3, 2], [5, 2], [6, 5], [7, 4], [8, 7]])
SAME, TURNED = (0, 1, 2, 3, 4, 5), (1, 0, 2, 3, 4, 5)


def passing(edges=PASSED, ids=(0, 3, 4, 6, 8), turned=(2, 3, 5, 6), dimensions=(1, 0), others=((7, (4, 4)),)):
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
    """{(end, end, join): (hops, names, names, role, size)} of find_meetings; a pair that is there twice is an error."""
    found = find_meetings(graph, reach)
    keys = [(*ends, join) for ends, join in zip(found.ends.tolist(), found.joins.tolist())]
    assert len(set(keys)) == len(keys) == len(found.hops) == len(found.names)
    return {key: (hops, *map(tuple, named), *more)
            for key, hops, named, *more in zip(keys, *(part.tolist() for part in found[2:]))}


def nodes(graph, found):
    ids = graph.node_config_ids.tolist()
    return {(ids[one], ids[other], join): way[:3] for (one, other, join), way in found.items()}


def assert_same(found, expected):
    assert all(map(np.array_equal, found, expected))


def test_a_drawn_program_s_pairs_meet_under_the_names_of_their_dimensions():
    graph = passing()
    assert nodes(graph, ways(graph)) == {
        (0, 3, False): (3, TURNED, SAME), (0, 6, False): (4, TURNED, SAME),
        (4, 3, False): (3, TURNED, SAME), (4, 6, False): (4, TURNED, SAME),
        (0, 4, True): (2, SAME, SAME), (4, 0, True): (2, SAME, SAME)}            # in 1; 4 does not pass 7


@pytest.mark.parametrize("change", [dict(dimensions=(0, 0)), dict(dimensions=(0, 1)), dict(dimensions=(1, 2)),
                                    dict(turned=(3, 5, 6)), dict(others=((2, (8, 5)),))], ids=str)
def test_a_transpose_whose_dimensions_do_not_fit_its_shapes_ends_a_way(change):
    found = nodes(graph := passing(**change), ways(graph))
    assert (0, 3, False) not in found and (4, 6, False) not in found and (0, 4, True) in found


@pytest.mark.parametrize("opcode, passes", [(22, True), (62, True), (72, True), (84, True), (92, True), (71, False)])
def test_operations_that_resize_a_tensor_pass_its_layout_on(opcode, passes):
    graph = passing()                                     # 7 is (4, 4), and reads 4
    graph.node_opcode[7], graph.node_feat[8, 21:23] = opcode, (4, 4)
    found = ways(graph)
    assert nodes(graph, found).get((4, 8, False)) == ((2, SAME, SAME) if passes else None)
    if passes:
        assert found[2, 4, False][3:] == (3, 0.5)         # either role; half as large
        graph.node_feat[7, 21:24] = 4, 4, 4
        assert (2, 4, False) not in ways(graph), "the rank is another one"


def test_a_mask_does_not_pass_its_layout_on_to_what_it_selects():
    graph = passing()
    graph.node_feat[1, 3] = 1                             # 0 and 4 are compared
    assert nodes(graph, ways(graph)) == {(0, 4, True): (2, SAME, SAME), (4, 0, True): (2, SAME, SAME)}
    graph.node_feat[[2, 3, 5, 6], 3] = 1                  # masks among themselves do
    assert (0, 3, False) in nodes(graph, ways(graph))


@pytest.mark.parametrize("name, source", [("convolution", "xla"), ("dot", "nlp")])
def test_roles_and_arithmetic_are_those_of_the_simulator(name, source):
    kinds, known, found, exact = np.zeros(4, int), 0, 0, []
    for seed in range(12):
        program = {"xla": convolutional_net, "nlp": transformer}[source](np.random.default_rng(seed), 150)
        arrays = program.arrays()
        parts = {k: arrays[k] for k in ("node_feat", "node_opcode", "edge_index")}
        ids, tensors = arrays["node_config_ids"], Tensors(**parts)
        graph = LayoutGraph("drawn", **parts, node_config_ids=ids, node_splits=arrays["node_splits"],
                            config_codes=np.zeros((1, len(ids)), np.uint8), node_group=np.arange(len(ids)),
                            code_rows=np.full((len(ids), 1, 18), -1, np.int8), config_runtime=np.array([1]))
        bytes_of_unit = tensor_memory(tensors).max()
        work = agreement_tables(graph).bytes[:, 0, 5] * bytes_of_unit * 256
        for (u, v), role in zip(graph.edge_index.tolist(), operand_roles(graph, _depths(graph)).tolist()):
            if tensors.opcode[u] == OPCODE_NAMES.index(name) and u in ids:
                first, kernel = tensors.roles(u)
                kinds[role] += 1
                known += role in (1, 2)
                found += role == (1 if v == first else 2)
                if v == kernel:
                    exact.append(work[ids.tolist().index(u)] / (tensors.matrix_seconds(u) * PEAK_FLOPS / 2))
    # a dot of the sample may name as its first operand the one that HLO calls the second
    assert found == known if source == "xla" else found > 0.8 * known
    assert np.mean(np.isclose(exact, 1, rtol=1e-4)) > (0.999 if source == "xla" else 0.95)
    assert kinds[1] == kinds[2] > 100 and kinds[0] == 0


def tensor_memory(tensors):
    """Bytes of each tensor in memory, in its default layout."""
    return tensors.padded[np.arange(len(tensors.rank)), tensors.pair]


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
                      sum(one != other for _, one, other, *_ in expected.values()),
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
    assert [part.dtype for part in found] == [np.int64, bool, np.int64, np.int64, np.int64, np.float64]


@pytest.mark.parametrize("change", [relabelled_nodes, reordered_edges, renamed_groups, renamed_codes,
                                    every_node_its_own_group])
def test_numbering_of_nodes_edges_groups_and_codes_changes_nothing(change):
    for seed in range(8):
        graph = drawn_chains(seed)
        assert_same(find_meetings(change(graph, np.random.default_rng(seed))), find_meetings(graph))


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
        graph = some_configs(read_layout(path), [0])
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


#   0 ---v        /--> 5 ---> 6* ---> 7* ---> 8*           * configurable
#   1 ---> 2* ---+
#                 \--> 3 ---> 4*                           5 has another shape than 2, so no layout passes it
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
    assert tables.own[0, :, :11] == pytest.approx(expected)
    assert tables.own[4, 0, :11] == pytest.approx([1, 1, 0, 0, 0.5, 0, 0, 0, seven / 2, 0, 0])
    assert tables.own[4, 1, :11] == pytest.approx([1, 1, 1, 1, 0, 0, 0, size(8), 0, 0, 0])
    assert (tables.own[4, 2:, :14] == 0).all()                 # codes that its group does not have
    # 128 lanes hold 64 columns of 1, and 8 of 4; 2 ** 16 multiply-adds
    memory = np.array([8 * 128, 128 * 128, 8 * 128, 8 * 128, 128, 128 * 128])
    assert tables.share == pytest.approx(memory[:5] / (128 * 128))
    assert tables.reads == pytest.approx(memory[[5, 0, 0, 0, 0]] / (128 * 128))
    dot = graph._replace(node_opcode=np.where(np.arange(9) == 2, 34, 1))
    assert agreement_tables(dot).work == pytest.approx([8 * 64 * 128 / 256 / (128 * 128), 0, 0, 0, 0])
    assert not tables.work.any()
    assert tables.own.dtype == tables.rows.dtype == tables.share.dtype == tables.reads.dtype == np.float32


def test_what_a_pair_is_given_on_a_drawn_program():
    graph = program({2: [((), (1, 0), (1, 0)), ((0, 1), (), ())],
                     4: [((1, 0), (1, 0), ()), ((0, 1), (1, 2), (0, 1))],
                     7: [((0, 1), (), ()), ((0, 1), (0, 1), (0, 1))], 8: [((1, 0), (), (1, 0)), ((), (), ())]})
    tables, wide, narrow = agreement_tables(graph), size(8, 128), size(8, 32)
    pair = tables.rows[tables.pair]
    for found, expected, times in (
            (pair[0, 0, 0], [0, 0, 0, 0], wide),          # 2 delivers its default (1, 0)
            (pair[0, 1, 0], [1, 0, 1, 1], wide),          # no kernel is given, so the better of two is the input
            (pair[0, 0, 1], [0.5, 1, 0.5, 1], wide),
            (pair[0, 1, 1], [1, 0, 0, 0], wide),
            (pair[1, 0, 1], [1, 1, 1, 1], narrow),        # 6 is never given anything
            (pair[1, 1, 0], [0, 0, 0, 1], narrow),
            (pair[2, 1, 0], [0, 1, 1, 0], narrow),        # outputs of different shapes are not compared
            (pair[2, 0, 1], [0, 0, 0, 0], narrow)):
        assert found[:10] == pytest.approx(np.array([*expected, 0, *(times * x for x in expected), 0]))
    assert pair[0, ..., 10:12].reshape(-1, 2).tolist() == [[0.5, 0]] * 4 and (pair[1:, ..., 10] == 1).all()
    assert len(tables.rows) < pair[..., 0].size and len(np.unique(tables.pair)) == len(tables.rows)


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

    def growth(node, layout):
        return grown_shape(shape[node], layout)

    def grown_shape(shape, layout):
        """log2 of what padding the first two dimensions of `layout` to 128 and 8 makes of a tensor."""
        factor = 1
        for digit, tile in zip(layout or (), (128, 8)):
            many = max(shape[int(digit)], 1) if digit >= 0 else tile
            factor *= math.ceil(many / tile) * tile / many
        return math.log2(factor)

    def order(node):                                      # of operands of one size
        return elements(node), shape[node][::-1], default[node][::-1]
    codes = range(graph.code_rows.shape[1])
    own, reads, moved_by_code = np.zeros((len(ids), len(codes), 21)), [], np.zeros((len(ids), len(codes), 6))
    met, roles = sorted(slow_meetings(graph).items()), slow_roles(graph, dict.fromkeys(range(len(shape)), 0))
    most = max(memory(graph, node, growth(node, default[node])) for node in range(len(shape)))

    def share(node):
        return memory(graph, node, growth(node, default[node])) / most
    for place, node in enumerate(ids):
        operands = sorted((v for u, v in edges if u == node), key=order)
        consumers = [u for u, v in edges if v == node and shape[u] == shape[node]]
        reads.append(operands)
        for code in codes:
            output, *wanted = layouts(place, code)
            terms = [(differ(output, default[node]) if output else 0, elements(node))]
            for layout, choice in zip(wanted, (max, min)):
                fits = [differ(layout, default[v]) for v in operands] if layout else []
                best = [elements(v) for v, fit in zip(operands, fits) if fit == min(fits)]
                terms.append((min(fits, default=0), choice(best, default=0)))
            terms.append((np.mean([differ(output, default[u]) for u in consumers]) if output and consumers else 0,
                          elements(node)))
            grown = [growth(v, layout) - growth(v, default[v]) if layout else 0
                     for v, layout in zip((node, *operands[-1:], *operands[:1]), (output, *wanted))]
            found = [next((v for v in operands if roles[node, v] & role), None) for role in (1, 2)]
            delivered = [any(u == place and way[3] & role for (_, u, _), way in met) for role in (1, 2)]
            disagree = [differ(layout, default[v]) if layout and v is not None else 0
                        for v, layout in zip(found, wanted)]
            shares = [0 if v is None else share(v) for v in (node, *found)]
            more = [growth(v, layout) - growth(v, default[v]) if layout and v is not None else 0
                    for v, layout in zip((node, *found), (output, *wanted))]
            traffic = [one * 2 ** more for one, more in zip(shares, more)]
            work = multiply_adds(graph, node, *found) / 256 / most
            roof = min(max(math.log2(work + 1e-12) - math.log2(sum(traffic) + 1e-12), -8), 8) if work else 0
            copied = [(one + moved) * (far > 0 and not by) for one, moved, far, by in
                      zip(shares[1:], traffic[1:], disagree, delivered)]
            own[place, code, 14:] = [*disagree, *more[1:], roof, *delivered]
            moved_by_code[place, code] = [*traffic, *copied, work]
            own[place, code, :14] = [*(layout is not None for layout in (output, *wanted)), *(d for d, _ in terms),
                                *(d * math.log(1 + many) / 10 for d, many in terms), *grown, *[0] * (3 - len(grown))]
    pair, moved = np.zeros((len(met), len(codes), len(codes), 22)), np.zeros((len(met), len(codes), len(codes), 3))
    for ((v, u, join), (hops, names, other, role, size)), table, moves in zip(met, pair, moved):
        rivals = [way[0] for (_, reader, _), way in met if reader == u and way[3] == role]
        rank = 1 / sum(one <= hops for one in rivals), (hops - min(rivals)) / 10
        def called(layout, names):
            return [digit if digit < 0 else names[int(digit)] for digit in layout]
        for a in codes:
            for b in codes:
                delivered = called(layouts(v, a)[0] or default[ids[v]], names)
                output, *wanted = [layout and differ(delivered, layout) for layout in layouts(u, b)]
                fits = [fit for fit in wanted if fit is not None]
                read = [dict(zip(names, shape[ids[v]]))[dimension] for dimension in range(6)]
                five = [wanted[0] or 0, wanted[1] or 0, min(fits, default=0),
                        output or 0 if tuple(read) == shape[ids[u]] else 0, 0]
                if join:
                    five = [0] * 4 + [differ(delivered, called(layouts(u, b)[0] or default[ids[u]], other))]
                near = (0, 1 / hops) if join else (1 / hops, 0)
                usual = growth(ids[v], default[ids[v]])
                turned = differ(layouts(v, a)[0] or default[ids[v]], default[ids[v]])
                unset = [turned if role & bit and layout is None else 0
                         for bit, layout in zip((1, 2), layouts(u, b)[1:])]
                before = growth(ids[v], layouts(v, a)[0] or default[ids[v]]) - usual if any([*five, *unset]) else 0
                after = [grown_shape(read, layout) - usual if differs else 0
                         for differs, layout in zip(five, layouts(u, b)[1:])]
                grown = [round(one, 3) for one in (before, *after)]
                table[a, b] = [*five, *(x * math.log(1 + elements(ids[v])) / 10 for x in five), *near, *grown,
                               role in (1, 3), role in (2, 3), math.log2(size), *rank, *unset]
                before, *after = (2 ** one for one in grown)
                moves[a, b] = [share(ids[v]) * size * one for one in (
                    *((before + one) * (differs > 0) + (before + 1) * (kept > 0)
                      for differs, one, kept in zip(five, after, unset)), before * any(five[3:]))]
    return (own, [share(node) for node in ids],
            [share(max(operands, key=order)) if operands else 0 for operands in reads],
            [math.sqrt(elements(node) * elements(max(operands, key=order)) * elements(min(operands, key=order))) / 256
             / most if operands and graph.node_opcode[node] in (26, 34) else 0 for node, operands in zip(ids, reads)],
            moved_by_code, np.array([ends[:2] for ends, _ in met], np.int64).reshape(-1, 2), pair, moved)


def memory(graph, node, growth):
    """Bytes in memory of a tensor that padding enlarges by 2 ** growth."""
    return slow_bytes(graph, node) * 2 ** growth


def multiply_adds(graph, node, first, kernel):
    """Of one convolution or dot; sums and features are padded to 128."""
    if graph.node_opcode[node] not in (26, 34) or first is None:
        return 0

    def sizes(v):
        return [max(size, 1) for size in graph.node_feat[v, 21:27].tolist()]

    def rank(v):
        return np.count_nonzero(graph.node_feat[v, 21:27])
    output, row = sizes(node), graph.node_feat[node].tolist()
    if graph.node_opcode[node] == 26:
        summed = row[44] * graph.node_feat[kernel, 21 + min(max(int(row[99]), 0), 5)]
        features = graph.node_feat[node, 21 + min(max(int(row[106]), 0), 5)]
    else:
        batched = range(min(max(rank(first) + rank(kernel) - rank(node) - 2, 0), 6))
        shared = all(graph.node_feat[node, 21 + d] in graph.node_feat[v, 21:27] for d in batched
                     for v in (first, kernel))
        batch = math.prod(output[d] for d in batched) if shared else 1
        summed = math.sqrt(math.prod(sizes(first)) * math.prod(sizes(kernel)) / math.prod(output) / batch)
        features = output[max(rank(node) - 1, 0)]
    summed, features = max(summed, 1), max(features, 1)
    return math.prod(output) / features * math.ceil(summed / 128) * 128 * math.ceil(features / 128) * 128


def assert_equal_tables(tables, expected):
    """Rows of a table, each in use and belonging to one pair, in place of the table of every pair of codes."""
    assert tables.pairs.tolist() == expected[5].tolist()
    dense = tables.rows[tables.pair], tables.moved[tables.pair]
    for a, b in zip((*tables[:6], *dense), expected, strict=True):
        assert a.shape == np.shape(b) and np.allclose(a, b, rtol=1e-5, atol=1e-5)
    assert (tables.row_pair[tables.pair] == np.arange(len(tables.pairs))[:, None, None]).all()
    assert len(tables.row_pair) == len(tables.rows) == len(np.unique(tables.pair))


@pytest.mark.parametrize("seed", range(6))
def test_tables_are_those_of_explicit_loops(seed):
    rng = np.random.default_rng([7, seed])
    n = int(rng.integers(2, 25))
    nc = int(rng.integers(1, n + 1))
    graph = drawn_neighbours(seed, n=n, nc=nc, g=1, k=int(rng.integers(1, 5)), m=int(rng.integers(0, 4 * n)))
    assert_equal_tables(agreement_tables(graph), slow_tables(graph))
    for other in (drawn_layout(seed, m=30), drawn_chains(seed, nc=5, k=3)):       # hardly two shapes alike; far apart
        assert_equal_tables(agreement_tables(other), slow_tables(other))


def test_the_drawn_graphs_have_pairs_of_all_kinds():
    rows = np.concatenate([agreement_tables(draw(seed, nc=5)).rows for seed in range(12)
                           for draw in (drawn_chains, drawn_neighbours)])
    assert (np.delete((rows > 0).sum(axis=0), 17) > 20).all(), "all but the size of what arrives: nothing resizes"
    assert {1, 1 / 2} <= set(rows[:, 10].tolist()) and (0 < rows[:, 10][rows[:, 10] > 0].min() < 0.3)
    assert (rows[:, 10] * rows[:, 11] == 0).all(), "a pair is of one kind"


@pytest.mark.parametrize("graph", [
    drawn_layout(1, m=0), drawn_layout(2, nc=0, g=0, k=1), drawn_layout(3, nc=0, g=0, k=1, m=0),
    drawn_layout(4, n=1, nc=1, g=1, m=0), drawn_neighbours(5, k=1), drawn_neighbours(6, n=6)],
    ids=["no edge", "nothing configurable", "neither", "one node", "one code", "all configurable"])
def test_a_graph_whose_tables_are_wanted_may_lack_anything(graph):
    tables = agreement_tables(graph)
    assert_equal_tables(tables, slow_tables(graph))
    nc, k = graph.code_rows.shape[:2]
    assert tables.own.shape == (nc, k, 21) and tables.pair.shape[1:] == (k, k)
    assert tables.pairs.shape[1:] == (2,) and tables.rows.shape[1:] == (22,)


def test_nothing_given_disagrees_with_nothing():
    graph = drawn_neighbours(7)
    graph.code_rows[:, :, [0, 6, 12]] = -1                # whatever stands in the other places
    tables = agreement_tables(graph)
    assert len(tables.pairs) > 3 and not tables.own[..., :14].any()
    assert not np.delete(tables.rows[:, :12], [4, 9, 10, 11], axis=1).any(), "but defaults may, where they meet"


@pytest.mark.parametrize("change", [relabelled_nodes, reordered_edges, renamed_groups, every_node_its_own_group])
def test_numbering_of_nodes_groups_and_edges_changes_nothing(change):
    for graph in (*map(drawn_neighbours, range(5)), *map(drawn_chains, range(5))):
        for found, expected in zip(agreement_tables(change(graph, np.random.default_rng(0))),
                                   agreement_tables(graph), strict=True):
            assert np.array_equal(found, expected)


def test_configurations_and_runtimes_are_not_read():
    graph = drawn_neighbours(10)
    other = graph._replace(config_codes=graph.config_codes[:0], config_runtime=graph.config_runtime[:0])
    assert all(map(np.array_equal, agreement_tables(other), agreement_tables(graph)))


def dense(graph):
    """Tables with the features of every pair of codes."""
    tables = agreement_tables(graph)
    return tables._replace(pair=tables.rows[tables.pair])


def test_of_too_many_pairs_the_nearer_ones_stay(monkeypatch):
    graph = drawn_chains(4, n=60, nc=12)
    whole, found, counts = dense(graph), find_meetings(graph), []
    for most in range(0, 16 * len(found.hops) + 1, 8):
        monkeypatch.setattr("kit.agreement.MAX_PAIR_ROWS", most)
        some = dense(graph)
        farthest = max([h for h in range(20) if 16 * (found.hops <= h).sum() <= most])
        assert some.pairs.tolist() == whole.pairs[found.hops <= farthest].tolist()
        assert np.array_equal(some.pair, whole.pair[found.hops <= farthest])
        assert np.array_equal(some.own[..., :19], whole.own[..., :19])         # the others say who delivers
        counts.append(len(some.pairs))
    assert counts[0] == 0 and counts[-1] == len(whole.pairs) and len(set(counts)) > 4


def test_layout_digits_that_are_no_dimension_harm_nothing():
    graph = drawn_chains(5)
    graph.node_feat[:, 134:136] = 1e9, -7
    assert_equal_tables(agreement_tables(graph), agreement_of_clipped(graph))


def agreement_of_clipped(graph):
    graph.node_feat[:, 134:140] = graph.node_feat[:, 134:140].clip(-1, 5)
    return slow_tables(graph)


def real_layouts(real_data):
    paths = [path for source in ("xla", "nlp") for search in ("default", "random") for split in ("train", "test")
             for path in npz_paths(real_data / "npz", f"layout:{source}:{search}", split)]
    assert len(paths) > 6
    return paths


def test_a_real_file_has_the_tables_of_explicit_loops(real_data):
    path, = [p for p in real_layouts(real_data) if "alexnet" in p.stem]
    graph = read_layout(path)
    tables = agreement_tables(graph)
    assert len(tables.pairs) == 34 + 8 and tables.own.shape == (26, 9, 21)
    assert_equal_tables(tables, slow_tables(graph))


def test_pruning_keeps_what_agreement_reads(real_data):
    for path in real_layouts(real_data):
        graph = some_configs(read_layout(path), np.arange(10))
        whole, pruned = agreement_tables(graph), agreement_tables(prune(graph))
        for name in ("own", "pairs", "pair", "row_pair", "rows"):
            assert np.array_equal(getattr(whole, name), getattr(pruned, name)), name
        assert (whole.share <= pruned.share).all() and (whole.reads <= pruned.reads).all()


def test_the_largest_real_file_takes_little_more_memory_than_its_nodes(real_data):
    path, = npz_paths(real_data / "npz", "layout:nlp:default", "test")
    graph = read_layout(path)
    assert len(graph.node_feat) == 21_918
    tracemalloc.start()
    tables = agreement_tables(graph)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tables.pair.shape == (3965, 9, 9) and tables.own.shape == (848, 9, 21)
    assert len(tables.rows) < tables.pair.size / 5 and peak < 4 * graph.node_feat.nbytes
