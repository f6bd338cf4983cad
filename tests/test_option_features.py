"""Features of options are what loops over nodes, options and dimensions find in the node features."""
from itertools import product
from math import log2, prod

import numpy as np
import pytest
from drawn import TYPE_BYTES, drawn_layout, drawn_program, slow_bytes, slow_roles

from kit.agreement import OwnColumns, agreement_tables
from kit.data import OPCODE_NAMES, LayoutGraph
from kit.option_features import dot_roles, option_features
from kit.pad import whole_layouts

PARAMETER, TRANSPOSE, DOT, CONVOLUTION, RESHAPE = map(OPCODE_NAMES.index, (
    "parameter", "transpose", "dot", "convolution", "reshape"))
OTHERS = tuple(map(OPCODE_NAMES.index, ("add", "reduce", "reshape", "transpose", "constant", "copy")))
TENSORS = "output", "input", "kernel"


def drawn_products(seed, count=8, k=6):
    """Dots, convolutions and reshapes of parameters, of transposes and of each other, with sizes that may be equal."""
    rng, feats, opcodes, edges, ids = np.random.default_rng(seed), [], [], [], []

    def node(opcode, shape, dimensions=(), *operands):
        row = np.zeros(140, np.float32)
        row[[2 + rng.choice([3, 4, 10]), 28, 44, 107]] = 1
        row[21:21 + len(shape)] = shape
        row[31:31 + len(dimensions)] = dimensions
        row[134:134 + len(shape)] = np.arange(len(shape))[::-1]
        feats.append(row)
        opcodes.append(opcode)
        edges.extend((len(feats) - 1, operand) for operand in operands)
        return len(feats) - 1

    def operand(shape):
        if rng.random() < 0.4:
            source = rng.permutation(len(shape))
            before = np.empty(len(shape), int)
            before[source] = shape
            return node(TRANSPOSE, shape, source, node(PARAMETER, before))
        return node(rng.choice([PARAMETER, *OTHERS]), shape)
    for _ in range(count):
        kind = rng.choice([DOT, CONVOLUTION, RESHAPE], p=[0.6, 0.3, 0.1])
        if kind == DOT:
            shared, rows, columns, summed = ([int(rng.choice([1, 2, 3, 8, 40])) for _ in range(rng.integers(low, 3))]
                                             for low in (0, 0, 0, 1))
            left, right = rng.permutation([*shared, *summed, *rows]), rng.permutation([*shared, *summed, *columns])
            ids.append(node(DOT, [*shared, *rows, *columns], (), operand(left), operand(right)))
        elif kind == CONVOLUTION:
            ids.append(node(CONVOLUTION, rng.choice([2, 3, 8], 4), (), operand(rng.choice([2, 3, 8], 4)),
                            operand(rng.choice([2, 3, 8], 4))))
            for columns in ([93, 94, 95, 96], [99, 100, 101, 102], [105, 106]):
                feats[-1][columns] = rng.permutation(4)[:len(columns)]
            feats[-1][[44, 107]] = rng.integers(1, 9), rng.choice([1, 2])
        else:
            ids.append(node(RESHAPE, [4, 6], (), operand([24])))
        for _ in range(rng.integers(0, 3)):
            node(rng.choice([*OTHERS, DOT]), [1], (), ids[-1])
    rank = np.count_nonzero(np.array(feats)[:, 21:27], axis=1)
    graph = LayoutGraph("drawn", np.array(feats), np.array(opcodes), np.array(edges), np.array(ids), np.array([0]),
                        rng.integers(0, k, (5, count)).astype(np.uint8), np.arange(count),
                        np.full((count, k, 18), -1, np.int8), rng.integers(1, 99, 5))
    for place, nodes in enumerate(map(finder(graph), ids)):
        for code, (tensor, u) in product(range(k), enumerate(nodes[0])):
            named = rng.permutation(rank[u] if u is not None else 0)[:rng.choice([0, 1, 2, 6])]
            graph.code_rows[place, code, 6 * tensor:6 * tensor + len(named)] = named
    return graph


def slow_dot_roles(output, first, kernel):
    """All roles of all dimensions, R row, C column, S summed, B shared; of those that fit, the documented choice."""
    fits = []

    def sizes(shape, roles, role):
        return [size for size, own in zip(shape, roles) if own == role]

    def choices(shape, free):
        for roles in product(f"{free}SB", repeat=len(shape)):
            own, shared = sizes(shape, roles, free), roles.count("B")
            if own == (list(output[shared:shared + len(own)]) if free == "R" else
                       list(output[len(output) - len(own):])):
                yield roles
    for left in choices(first, "R"):
        for right in choices(kernel, "C"):
            shared = left.count("B")
            if (shared == right.count("B") and left.count("S") == right.count("S") > 0
                    and sorted(sizes(first, left, "B")) == sorted(sizes(kernel, right, "B")) == sorted(output[:shared])
                    and sorted(sizes(first, left, "S")) == sorted(sizes(kernel, right, "S"))
                    and [*output[shared:]] == sizes(first, left, "R") + sizes(kernel, right, "C")):
                def where(roles, role):
                    return sum(place for place, own in enumerate(roles) if own == role)
                fits.append((left.count("S"), where(left, "B"), -where(left, "S"), [" RSCB".index(r) for r in left],
                             where(right, "B"), where(right, "S"), [" RSCB".index(r) for r in right], left, right))
    return min(fits)[-2:] if fits else None


def slow_layout(digits, rank):
    """The whole layout of a tensor, minor to major: in full as given, else the first digit and then the last ones."""
    named = [d for d in digits if d >= 0]
    if not named or len(named) == rank:
        return named
    return named[:1] + [d for d in reversed(range(rank)) if d != named[0]]


def slow_row(graph, place, code, total_work, total_bytes, largest, find):
    """The columns of one node and option that are not of `agreement_tables`; `find`: node -> its roles."""
    v = int(graph.node_config_ids[place])
    nodes, roles, sizes = find(v)
    feat, kind = graph.node_feat[v], OPCODE_NAMES[graph.node_opcode[v]]
    row = {f"is_{name}": name == kind for name in ("convolution", "dot", "reshape")}
    row |= {f"log_{name}": log2(1 + size) for name, size in zip(("rows", "columns", "summed", "shared"), sizes)}
    row["share_of_work"] = prod(sizes) / total_work if total_work else 0
    row["share_of_bytes"] = sum(slow_bytes(graph, u) for u in nodes if u is not None) / total_bytes
    row |= {"window": feat[44], "element_bytes": TYPE_BYTES[list(feat[2:21]).index(1)]}
    reading, read_by = ([b for a, b in graph.edge_index if a == v], [a for a, b in graph.edge_index if b == v])
    row |= {"producers": len(reading), "readers": len(read_by)}
    kinds = {"parameter": ("parameter", "constant"), "transpose": ("transpose",), "reduce": ("reduce",),
             "reshape": ("reshape", "bitcast", "copy"), "product": ("dot", "convolution")}
    for name, words in kinds.items():
        row |= {f"read_by_{name}": sum(OPCODE_NAMES[graph.node_opcode[a]] in words for a in read_by)}
        row |= {f"reads_{name}_{tensor}": u is not None and OPCODE_NAMES[graph.node_opcode[u]] in words
                for tensor, u in zip(TENSORS[1:], nodes[1:])}
    for i, (tensor, u) in enumerate(zip(TENSORS, nodes)):
        shape = [int(size) for size in graph.node_feat[u, 21:27] if size] if u is not None else []
        layout = slow_layout(graph.code_rows[place, code, 6 * i:6 * i + 6].tolist(), len(shape)) if shape else []
        minor = roles[i][layout[0]] if layout and roles else None
        row |= {f"minor_{tensor}_{word}": minor == letter
                for word, letter in (("row", "R"), ("column", "C"), ("summed", "S"))}
        plain = layout == sorted(layout, reverse=True)
        row |= {f"rank_{tensor}": len(shape), f"row_major_{tensor}": (1 if plain else -1) if layout else 0,
                f"log_minor_{tensor}": log2(1 + shape[layout[0]]) if layout else 0}
        row[f"row_major_{tensor}_bytes"] = row[f"row_major_{tensor}"] * (slow_bytes(graph, u) / largest if shape else 0)
        turned = layout and u != v and graph.node_opcode[u] == TRANSPOSE
        before = [int(graph.node_feat[u, 31 + d]) for d in layout] if turned else []
        row[f"undoes_transpose_{tensor}"] = (1 if before == [*range(len(shape))][::-1] else -1) if turned else 0
    return row


def finder(graph):
    """A function: node -> (output, first operand and kernel or None, roles of their dimensions, sizes)."""
    roles = slow_roles(graph, dict.fromkeys(range(len(graph.node_feat)), 0))

    def shape(u):
        return [int(size) for size in graph.node_feat[u, 21:27] if size]

    def find(v):
        operands = [next((int(b) for a, b in graph.edge_index[::-1] if a == v and roles[a, b] & role), None)
                    for role in (1, 2)]
        nodes, feat = [v, *operands], graph.node_feat[v]
        if None in nodes or graph.node_opcode[v] == RESHAPE:
            return nodes, None, (0, 0, 0, 0)
        if graph.node_opcode[v] == CONVOLUTION:
            letters = [["R"] * len(shape(u)) for u in nodes]
            for tensor, column, letter in ((0, 106, "C"), (1, 94, "S"), (2, 99, "S"), (2, 100, "C")):
                letters[tensor][int(feat[column])] = letter
            counts = {letter: prod(s for s, own in zip(shape(u), letters[i]) if own == letter)
                      for i, u, letter in ((0, v, "R"), (0, v, "C"), (2, nodes[2], "S"))}
            return nodes, letters, (counts["R"], counts["C"] / feat[107], counts["S"] * feat[44], feat[107])
        found = slow_dot_roles(*map(shape, nodes))
        if found is None:
            nodes = [v, operands[1], operands[0]]
            found = slow_dot_roles(*map(shape, nodes))
            if found is None:
                return [v, *operands], None, (0, 0, 0, 0)
        left, right = found
        letters = ["B" * left.count("B") + "R" * left.count("R") + "C" * right.count("C"), left, right]
        return nodes, letters, [prod(s for s, own in zip(shape(nodes[i]), letters[i]) if own == letter)
                                for i, letter in ((0, "R"), (0, "C"), (2, "S"), (0, "B"))]
    return find


@pytest.mark.parametrize("seed", range(6))
def test_a_row_is_what_slow_loops_find(seed):
    graph = drawn_products(seed)
    names, values = option_features(graph)
    found = [finder(graph)(v) for v in graph.node_config_ids]
    find = dict(zip(graph.node_config_ids.tolist(), found)).__getitem__
    work = sum(prod(sizes) for *_, sizes in found)
    total = sum(slow_bytes(graph, u) for nodes, *_ in found for u in nodes if u is not None)
    largest = max(slow_bytes(graph, u) for u in range(len(graph.node_feat)))
    for place, code in np.ndindex(values.shape[:2]):
        row = dict(zip(names, values[place, code].tolist()))
        slow = slow_row(graph, place, code, work, total, largest, find)
        slow = {name: float(value) for name, value in slow.items() if name in row}
        assert {name: row[name] for name in slow} == pytest.approx(slow, rel=1e-5), graph.node_config_ids[place]
    assert names[30:] == tuple(name for name in names if name in slow) and len(slow) == 45


def test_the_first_columns_are_those_of_agreement():
    graph = drawn_program(2)
    names, values = option_features(graph)
    tables, (nc, k, _) = agreement_tables(graph), values.shape
    assert values.dtype == np.float32 and len(names) == len(set(names)) == values.shape[2]
    assert np.array_equal(values[..., :21], tables.own) and np.array_equal(values[..., 21:27], tables.bytes)
    for name, column in (("share_output", tables.share), ("share_largest", tables.reads), ("work", tables.work),
                         ("roof", tables.own[..., OwnColumns.ROOF].T)):
        assert np.array_equal(values[..., names.index(name)], np.broadcast_to(column, (k, nc)).T)


def test_roles_of_a_dot_are_the_first_of_all_that_fit():
    rng, fitted = np.random.default_rng(0), 0
    for _ in range(150):
        shapes = [tuple(rng.choice([1, 2, 3], rng.integers(1, 5)).tolist()) for _ in range(3)]
        if rng.random() < 0.7:
            counts = rng.integers([0, 0, 0, 1], 3)
            shared, rows, columns, summed = (rng.choice([1, 2, 3, 5], count).tolist() for count in counts)
            shapes = [tuple([*shared, *rows, *columns]), *(tuple(rng.permutation([*shared, *summed, *free]).tolist())
                                                           for free in (rows, columns))]
        found, slow = dot_roles(*shapes), slow_dot_roles(*shapes)
        assert (found is None) == (slow is None)
        if found:
            assert ["".join("RCSB"[role] for role in own) for own in found[1:]] == ["".join(own) for own in slow]
            fitted += 1
    assert fitted > 80


@pytest.mark.parametrize("output, first, kernel, roles", [
    ((5, 7), (5, 3), (3, 7), ("RC", "RS", "SC")),
    ((4, 4), (4, 4), (4, 4), ("RC", "RS", "SC")),                                # the usual order of a matrix product
    ((2, 4, 5, 6), (2, 5, 4, 3), (2, 6, 4, 3), ("BBRC", "BRBS", "BCBS")),        # attention
    ((3, 7), (2, 5, 3), (2, 5, 7), ("RC", "SSR", "SSC")),                        # the gradient of a weight
    ((5,), (5, 3), (3,), ("R", "RS", "S")), ((5, 7), (5, 3), (4, 7), None)])
def test_roles_of_known_dots(output, first, kernel, roles):
    found = dot_roles(output, first, kernel)
    assert found == (None if roles is None else tuple(tuple("RCSB".index(r) for r in own) for own in roles))


def test_whole_layouts_are_those_of_a_slow_loop():
    rng = np.random.default_rng(0)
    for rank in range(7):
        for count in range(rank + 1):
            digits = np.full((20, 6), -1)
            for row in digits:
                row[:count] = rng.permutation(rank)[:count]
            whole = whole_layouts(digits, np.full(20, rank))
            assert [[d for d in row if d >= 0] for row in whole.tolist()] == [
                slow_layout(row, rank) for row in digits.tolist()]
            assert (whole == whole_layouts(whole, rank)).all()


@pytest.mark.parametrize("sizes", [dict(m=0), dict(nc=0, g=0, k=1), dict(k=1), dict()])
def test_programs_without_products_have_features(sizes):
    names, values = option_features(drawn_layout(1, **sizes))
    assert values.shape[2] == len(names) == 75 and np.isfinite(values).all()


def test_features_want_a_layout_graph():
    with pytest.raises(ValueError, match="expected a LayoutGraph"):
        option_features(None)
