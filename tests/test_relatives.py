"""Groups of relatives line up as a slow search over all matchings finds; a specialist learns from relatives alone."""
from fractions import Fraction
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from sample import write_sample
from scipy.stats import rankdata
from training import drawn_layout

from kit.data import COLLECTIONS, LayoutGraph, dense_configs, npz_paths, read_layout
from kit.ensemble import mean_zscore
from kit.factored import structure_of
from kit.metrics import kendall_tau
from kit.prepare import prepare
from kit.prune import drop_duplicate_configs, hold_out_configs
from kit.relatives import nearest as wing
from kit.relatives import specialists
from kit.relatives.nearest import (
    LEAST_ALIKE,
    NEAR,
    align_groups,
    group_similarity,
    groups_of,
    nearest_relatives,
    structural_relatives,
)
from kit.relatives.specialists import Rows, common_codes, fit_codes, fit_pairs, fit_trees, rank_by_relatives

CONV, DOT = 26, 34


def drawn_group(rng, opcodes, k):
    """Options (k, n, 18) that differ, with few digits so that groups are often a little alike."""
    rows = np.full((k, len(opcodes), 18), -1, np.int8)
    while len(np.unique(rows.reshape(k, -1), axis=0)) < k:
        rows[:, :, [0, 1, 6, 7]] = rng.integers(-1, 3, (k, len(opcodes), 4))
    return opcodes, rows


def drawn_network(rng, groups=4):
    """A list of (opcodes, options) and what each option costs, also together with an option of the next group."""
    drawn = [drawn_group(rng, rng.choice([CONV, DOT], rng.integers(1, 4)).tolist(), int(rng.integers(2, 5)))
             for _ in range(groups)]
    single = [rng.random(len(rows)) for _, rows in drawn]
    pair = [rng.random((len(a), len(b))) for (_, a), (_, b) in zip(drawn, drawn[1:])]
    return drawn, single, pair


def program_of(network, rng, c=150, batch=8, joint=1.0, name="drawn", group_order=None):
    """A program of a network; groups and options are numbered at random, nodes of a group stand together."""
    drawn, single, pair = network
    g = len(drawn)
    number = rng.permutation(g) if group_order is None else group_order
    opcodes = [op for ops, _ in drawn for op in ops]
    k, nc = max(len(rows) for _, rows in drawn) + 1, len(opcodes)
    table, node_group, node = np.full((nc, k, 18), -1, np.int8), np.empty(nc, np.int64), 0
    option, codes = np.stack([rng.integers(0, len(rows), c) for _, rows in drawn], axis=1), np.empty((c, g), np.uint8)
    for place, (ops, rows) in enumerate(drawn):
        renamed = rng.permutation(len(rows))
        table[node:node + len(ops), renamed] = rows.swapaxes(0, 1)
        node_group[node:node + len(ops)] = number[place]
        codes[:, number[place]] = renamed[option[:, place]]
        node += len(ops)
    cost = sum(s[option[:, i]] for i, s in enumerate(single))
    cost = cost + joint * sum(p[option[:, i], option[:, i + 1]] for i, p in enumerate(pair))
    feat = np.zeros((nc + 1, 140), np.float32)
    feat[:, 28] = batch * 100
    return LayoutGraph(name, feat, np.array([1, *opcodes]), np.stack([np.arange(1, nc + 1), np.arange(nc)], axis=1),
                       np.arange(1, nc + 1), np.array([0, nc + 1]), codes, node_group, table,
                       np.rint(1e5 * batch * (1 + cost)).astype(np.int64))


def renumbered(graph, rng):
    """The same program with other numbers of groups and options, and its configurable nodes in another order."""
    g, k, nodes = graph.config_codes.shape[1], graph.code_rows.shape[1], rng.permutation(len(graph.node_group))
    number, renamed = rng.permutation(g), np.stack([rng.permutation(k) for _ in range(g)])       # (g, k)
    codes, rows = np.empty_like(graph.config_codes), np.empty_like(graph.code_rows)
    for group in range(g):
        codes[:, number[group]] = renamed[group][graph.config_codes[:, group]]
    for node, group in enumerate(graph.node_group):
        rows[node, renamed[group]] = graph.code_rows[node]
    return graph._replace(config_codes=codes, node_group=number[graph.node_group][nodes], code_rows=rows[nodes],
                          node_config_ids=graph.node_config_ids[nodes])


# second implementations, slow and obvious


def slow_options_alike(a, b, n):
    """Share of equal digits of two options, each a list of rows, for a group of n nodes."""
    given = equal = 0
    for node in range(n):
        for x, y in zip(a[node * len(a) // n], b[node * len(b) // n]):
            given += x >= 0 or y >= 0
            equal += x == y and x >= 0
    return equal / given if given else 1.0


def slow_group_similarity(a, b):
    """Count operations and options that have a partner, one by one."""
    shared = sum(min((a.opcodes == o).mean(), (b.opcodes == o).mean()) for o in {*a.opcodes, *b.opcodes})
    n = max(len(a.opcodes), len(b.opcodes))
    mine, other = ([[option[i * len(option) // n] for i in range(n)] for option in group.rows.tolist()]
                   for group in (a, b))
    both = sum(option in other for option in mine)
    return shared * both / (len(mine) + len(other) - both)


def slow_structure(group):
    """The options of a group: sets of (operation, digits, where its run of nodes starts and ends, as shares)."""
    n, options = len(group.opcodes), []
    for rows in group.rows.tolist():
        nodes = [(int(op), tuple(row)) for op, row in zip(group.opcodes, rows)]
        starts = [i for i in range(n) if i == 0 or nodes[i] != nodes[i - 1]]
        options.append(tuple((nodes[i], Fraction(i, n), Fraction(end, n)) for i, end in zip(starts, [*starts[1:], n])))
    return frozenset(options)


def slow_structural_similarity(first, second):
    """The similarity of two lists of Group by their slow structures alone, over all matchings in order."""
    def alike(a, b):
        shares = [{op: Fraction(int((g.opcodes == op).sum()), len(g.opcodes)) for op in g.opcodes} for g in (a, b)]
        mine, other = slow_structure(a), slow_structure(b)
        return len(mine & other) / len(mine | other) if shares[0] == shares[1] else 0
    score = [[alike(a, b) for b in second] for a in first]
    best = max(sum(score[i][j] if score[i][j] >= LEAST_ALIKE else 0 for i, j in matching)
               for matching in all_matchings(first, second))
    return 2 * best / (len(first) + len(second))


def all_matchings(first, second):
    """Every matching in order of two lists, as lists of pairs of places."""
    for p in range(min(len(first), len(second)) + 1):
        for left in combinations(range(len(first)), p):
            for right in combinations(range(len(second)), p):
                yield list(zip(left, right))


def slow_similarity(first, second):
    """The best sum over all matchings in order, on the scale of Alignment.similarity."""
    alike = [[slow_group_similarity(a, b) for b in second] for a in first]
    best = max(sum(alike[i][j] if alike[i][j] >= LEAST_ALIKE else 0 for i, j in matching)
               for matching in all_matchings(first, second))
    return 2 * best / (len(first) + len(second))


def slow_common(graph, relatives):
    """The numbers of `common_codes` as digits: per configuration and aligned group, what the relative's nodes have."""
    found = []
    own = groups_of(graph)
    for relative in relatives:
        others, rows = groups_of(relative.graph), []
        for config in dense_configs(relative.graph, np.arange(len(relative.graph.config_codes))):
            row = [None] * len(own)
            for mine, other in relative.alignment.pairs:
                group, n = others[other], len(own[mine].opcodes)
                nodes = sorted((v for v in range(len(relative.graph.node_group))
                                if relative.graph.node_group[v] == group.number),
                               key=lambda v: (relative.graph.node_opcode[relative.graph.node_config_ids[v]],
                                              relative.graph.node_config_ids[v]))
                row[mine] = tuple(tuple(config[nodes[i * len(nodes) // n]].tolist()) for i in range(n))
            rows.append(row)
        found.append(rows)
    return found


# groups and their alignment


@pytest.mark.parametrize("seed", range(3))
def test_the_similarity_of_two_groups_is_the_share_of_operations_and_options_that_they_share(seed):
    rng = np.random.default_rng(seed)
    first, second = (groups_of(program_of(drawn_network(rng), rng)) for _ in range(2))
    for a in first:
        assert group_similarity(a, a) == 1
        for b in second:
            assert group_similarity(a, b) == pytest.approx(slow_group_similarity(a, b), abs=1e-12)
            assert group_similarity(a, b) == pytest.approx(group_similarity(b, a), abs=1e-12)
            assert 0 <= group_similarity(a, b) <= 1


@pytest.mark.parametrize("seed", range(6))
def test_the_alignment_is_the_best_of_all_matchings_in_order(seed):
    rng = np.random.default_rng(seed)
    drawn, single, pair = drawn_network(rng, groups=6)
    kept = np.sort(rng.permutation(6)[:rng.integers(1, 6)])
    sub = [drawn[i] for i in kept], [single[i] for i in kept], [np.zeros((9, 9))] * (len(kept) - 1)
    first, other = (groups_of(program_of(net, rng)) for net in ((drawn, single, pair), sub))
    for second in (other, groups_of(program_of(drawn_network(rng, groups=3), rng)), []):
        found = align_groups(first, second)
        assert found.similarity == pytest.approx(slow_similarity(first, second), abs=1e-12)
        assert found.similarity == pytest.approx(align_groups(second, first).similarity, abs=1e-12)
        assert (np.diff(found.pairs, axis=0) > 0).all() and (found.alike >= LEAST_ALIKE).all()
        assert found.alike == pytest.approx([group_similarity(first[i], second[j]) for i, j in found.pairs])
    assert align_groups(first, first).similarity == 1
    assert align_groups(first, first).pairs.tolist() == [[i, i] for i in range(6)]
    assert align_groups([], []).similarity == 0


@pytest.mark.parametrize("seed", range(2))
def test_numbers_of_groups_and_options_and_sizes_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    network = drawn_network(rng)
    graph, other = program_of(network, rng), program_of(network, rng, batch=64)
    again = renumbered(graph, rng)
    # configurations are the same in the order of nodes
    order = np.argsort(again.node_config_ids)
    assert (dense_configs(again, range(9))[:, order] == dense_configs(graph, range(9))).all()
    for one in (graph, again):
        found = nearest_relatives(one, [renumbered(other, rng)])[0].alignment
        assert found.similarity == pytest.approx(1) and found.pairs.tolist() == [[i, i] for i in range(4)]


# relatives

def test_the_nearest_relative_comes_first_and_strangers_are_left_out():
    rng = np.random.default_rng(5)
    network, stranger = drawn_network(rng, 5), drawn_network(rng, 5)
    shorter = tuple(part[:4] if i < 2 else part[:3] for i, part in enumerate(network))
    target = program_of(network, rng, batch=16)
    graphs = [program_of(net, rng, batch=batch, name=name) for name, net, batch in (
        ("stranger", stranger, 16), ("shorter", shorter, 16), ("large", network, 128), ("near", network, 32))]
    found = nearest_relatives(target, graphs, least=0.8)
    assert [r.graph.graph_id for r in found] == ["near", "large", "shorter"] and not any(r.same for r in found)
    assert [r.graph.graph_id for r in nearest_relatives(target, graphs, most=2, least=0.8)] == ["near", "large"]
    assert found[2].alignment.similarity == pytest.approx(8 / 9)
    assert nearest_relatives(target, graphs[:1], least=0.8) == []


@pytest.mark.parametrize("least", [0, 2 / 3, 0.75])
def test_relatives_are_all_programs_whose_best_matching_is_similar_enough(least):
    """Parts of a network of six groups: with all groups equal, the similarity of 4 and 2 of them is 2/3, and so on."""
    rng, found = np.random.default_rng(8), set()
    drawn, single, pair = drawn_network(rng, 6)
    parts = {f"{low} to {high}": (drawn[low:high], single[low:high], pair[low:high - 1])
             for low, high in combinations(range(7), 2)}
    graphs = [program_of(part, rng, name=name) for name, part in parts.items()]
    for graph in graphs[2:20:3]:
        others = [g for g in graphs if g is not graph]
        near = {r.graph.graph_id for r in nearest_relatives(graph, others, 99, least)}
        similarity = {g.graph_id: slow_similarity(groups_of(graph), groups_of(g)) for g in others}
        possible = {name for name, value in similarity.items() if value and value >= least - 1e-9}
        assert {name for name in possible if similarity[name] >= least + 1e-9} <= near <= possible
        found |= near
    assert found or least == 1


def test_a_program_is_its_own_and_only_relative():
    rng = np.random.default_rng(6)
    network = drawn_network(rng)
    held, seen = hold_out_configs(program_of(network, rng, batch=16), 0.5, rng)
    found = nearest_relatives(held, [program_of(network, rng, batch=32, name="other"), seen])
    assert [r.graph.graph_id for r in found] == ["drawn"] and found[0].same
    assert found[0].alignment.similarity == 1


# structures

@pytest.mark.parametrize("seed", range(3))
def test_groups_have_one_digest_where_they_are_the_same_in_a_slow_comparison(seed):
    rng = np.random.default_rng(seed)
    network = drawn_network(rng, 5)
    deeper = [(np.repeat(ops, 2).tolist(), rows.repeat(2, axis=1)) if i % 2 else (ops, rows)
              for i, (ops, rows) in enumerate(network[0])]
    fewer = [(ops, rows[1:]) if i == 2 else (ops, rows) for i, (ops, rows) in enumerate(network[0])]
    programs = [program_of(net, rng, batch=batch) for batch, net in (
        (8, network), (64, network), (8, (deeper, *network[1:])), (8, (fewer, *network[1:])),
        (8, drawn_network(rng, 4)))]
    programs += [renumbered(programs[0], rng)]
    digests, groups = [structure_of(g) for g in programs], [groups_of(g) for g in programs]
    pairs = [(d, group) for each, own in zip(digests, groups) for d, group in zip(each, own, strict=True)]
    for (d, a), (e, b) in combinations(pairs, 2):
        assert (d == e) == (slow_structure(a) == slow_structure(b))
        if d == e:
            assert group_similarity(a, b) == 1
        elif len(a.opcodes) == len(b.opcodes):
            assert group_similarity(a, b) < 1
    assert digests[0] == digests[1] == digests[5]
    same = [a == b for a, b in zip(digests[0], digests[3])]
    assert same == [True, True, False, True, True]


@pytest.mark.parametrize("seed", range(3))
def test_the_similarity_by_structures_is_that_of_all_matchings_and_never_above_that_of_the_graphs(seed):
    rng = np.random.default_rng(seed)
    network = drawn_network(rng, 5)
    changed = [(ops, rows[1:]) if i == 1 else (ops * 2, rows.repeat(2, axis=1)) if i == 3 else (ops, rows)
               for i, (ops, rows) in enumerate(network[0])]
    several = [program_of(net, rng) for net in (network, (changed, *network[1:]), drawn_network(rng, 4))]
    for first, second in combinations(several, 2):
        groups = groups_of(first), groups_of(second)
        found = wing._structures_alike(*(tuple(structure_of(g)) for g in (first, second)))
        assert found == pytest.approx(slow_structural_similarity(*groups), abs=1e-12)
        assert found <= align_groups(*groups).similarity + 1e-12
    assert wing._structures_alike((), ()) == wing._structures_alike(("a b",), ()) == 0


def test_the_catalogue_finds_the_relatives_that_pairwise_alignment_finds(tmp_path):
    """Tiny sample data: options are missing in some files, so that relatives are not quite the same."""
    root = write_sample(tmp_path / "sample", relatives=2)
    for path in root.rglob("*_0_relative_*.npz"):                # so half of the programs have none
        path.unlink()
    catalogue = prepare(root, tmp_path / "prepared", progress=False).catalogue
    found = structural_relatives(catalogue)
    assert found.select("collection", "split", "name").rows() == [
        row for row in catalogue.select("collection", "split", "name").rows() if row[1] != "train" and
        row[0] != "tile:xla"]
    for collection in COLLECTIONS[1:]:
        taught = [read_layout(path) for path in npz_paths(root, collection, "train")]
        for path in (*npz_paths(root, collection, "valid"), *npz_paths(root, collection, "test")):
            graph, row = read_layout(path), found.filter(collection=collection, name=path.stem).row(0, named=True)
            near = {r.graph.graph_id: r.alignment.similarity for r in nearest_relatives(graph, taught, 99, least=0)}
            assert (row["relative"] is None) == (row["similarity"] < NEAR) == (max(near.values(), default=0) < NEAR)
            if row["relative"]:
                assert row["similarity"] == pytest.approx(near[row["relative"]]) == pytest.approx(max(near.values()))
    assert 8 <= found["relative"].count() < len(found)
    # nothing to look for, and nothing to find
    assert structural_relatives(catalogue.filter(pl.col("collection") == "tile:xla")).is_empty()
    alone = structural_relatives(catalogue.filter(pl.col("split") != "train"))
    assert alone["relative"].null_count() == len(alone) == len(found) and alone["similarity"].sum() == 0
    with pytest.raises(ValueError, match="least is 2; expected a share"):
        structural_relatives(catalogue, least=2)


def test_the_catalogue_finds_the_relatives_of_real_files(real_data, tmp_path):
    """unet_3d is a relative of unet3d, and alexnet's test file is alexnet."""
    catalogue = prepare(real_data / "npz", tmp_path / "prepared", COLLECTIONS[1:], progress=False).catalogue
    found = structural_relatives(catalogue).filter(pl.col("relative").is_not_null())
    assert [(row["name"][:7], row["relative"], round(row["similarity"], 2)) for row in found.to_dicts()] == [
        ("unet_3d", "unet3d", 0.8), ("94fb710", "alexnet_train_batch_32", 1.0)]


# specialists

def test_common_codes_are_equal_exactly_where_digits_are():
    rng = np.random.default_rng(7)
    network = drawn_network(rng)
    longer = [(ops * 2, rows.repeat(2, axis=1)) if i == 1 else (ops, rows) for i, (ops, rows) in enumerate(network[0])]
    target = program_of(network, rng, c=40)
    graphs = [program_of(network, rng, c=30, batch=16), program_of((longer, *network[1:]), rng, c=20, batch=32)]
    relatives = nearest_relatives(target, graphs)
    assert len(relatives) == 2
    own, codes, sizes = common_codes(target, relatives)
    same = nearest_relatives(target, [target])
    digits = [*slow_common(target, same), *slow_common(target, relatives)]
    rows = [(tuple(code), row) for code, row in zip(np.concatenate([own, *codes]), sum(digits, []))]
    for g, size in enumerate(sizes):
        pairs = {(code[g], row[g]) for code, row in rows}
        assert len(pairs) == len({code for code, _ in pairs}) == len({row for _, row in pairs}) <= size


def test_an_option_that_no_relative_has_is_read_as_the_nearest_one():
    rng = np.random.default_rng(8)
    rows = np.full((3, 1, 18), -1, np.int8)
    rows[:, 0, :4] = [[0, 1, 2, 3], [0, 1, 2, 4], [5, 5, 5, 5]]
    rest = drawn_group(rng, [DOT], 3)
    whole, part = [([CONV], rows), rest], [([CONV], rows[:1]), rest]
    single = [np.arange(3.0), np.arange(3.0)]
    target = program_of((whole, single, [np.zeros((3, 3))]), rng, batch=16)
    other = program_of((part, single, [np.zeros((3, 3))]), rng)
    own, codes, sizes = common_codes(target, nearest_relatives(target, [other], least=0))
    digits = dense_configs(target, range(150))[:, 0, 3]
    assert {d: set(own[digits == d, 0]) for d in (3, 4, 5)} == {3: {codes[0][0, 0]}, 4: {codes[0][0, 0]}, 5: {-1}}
    assert sizes.tolist() == [3, 3]


def test_options_are_alike_as_far_as_their_given_digits_are_equal():
    rng = np.random.default_rng(14)
    first, second = (rng.integers(-1, 2, (k, 3, 18)) for k in (4, 5))
    first[0] = second[0] = -1
    slow = [[slow_options_alike(a, b, 3) for b in second.tolist()] for a in first.tolist()]
    assert specialists.options_alike(first, second) == pytest.approx(np.array(slow)) and slow[0][:2] == [1, 0]


@pytest.mark.parametrize("fit", [fit_codes, fit_pairs, fit_trees])
def test_each_learner_ranks_new_configurations_and_only_pairs_and_trees_see_pairs(fit):
    rng, sizes = np.random.default_rng(10), np.array([4, 4, 3])
    single, pair = [rng.random(s) for s in sizes], 5 * rng.permutation(16).reshape(4, 4)

    def cost(codes, joint):
        return sum(s[codes[:, g]] for g, s in enumerate(single)) + joint * pair[codes[:, 0], codes[:, 1]] * 0.1
    known = [rng.integers(0, sizes, (c, 3)) for c in (300, 40)]
    new = rng.integers(0, sizes, (200, 3))
    for joint, low, high in ((0, 0.85, 1), (10, *((0.3, 0.85) if fit is fit_codes else (0.9, 1)))):
        # the second program takes 50 times as long; ranks make the two comparable
        runtimes = [np.rint(1e6 * f * (1 + cost(codes, joint))).astype(np.int64) for f, codes in zip((1, 50), known)]
        rows = [Rows(codes, np.zeros(len(codes))) for codes in (*known, new)]
        tau = kendall_tau(fit(rows[:2], runtimes, sizes)(rows[2]), cost(new, joint), strict=True)
        assert low <= tau <= high, tau


def test_a_specialist_ranks_a_program_by_its_relatives():
    rng = np.random.default_rng(11)
    network, stranger = drawn_network(rng), drawn_network(rng)
    target = drop_duplicate_configs(program_of(network, rng, batch=64))[0]
    graphs = [program_of(net, rng, 400, batch) for net, batch in ((stranger, 8), (network, 16), (network, 32))]
    for several in (graphs, graphs[1:2]):
        found = rank_by_relatives(target, several)
        assert found.cost.shape == target.config_runtime.shape and sum(found.weights.values()) == pytest.approx(1)
        assert found.relatives == ["drawn"] * (len(several) // 2 + 1) and not found.same
        assert kendall_tau(found.cost, target.config_runtime) > 0.85
    assert rank_by_relatives(target, graphs[:1], least=0.9) is None and rank_by_relatives(target, []) is None


def test_the_runtimes_of_the_target_are_not_read_and_numbers_do_not_matter():
    rng = np.random.default_rng(12)
    network = drawn_network(rng)
    target, other = program_of(network, rng, batch=64), program_of(network, rng, c=200)
    cost = rank_by_relatives(target, [other]).cost
    for runtime in (np.zeros_like(target.config_runtime), target.config_runtime[::-1]):
        assert (rank_by_relatives(target._replace(config_runtime=runtime), [other]).cost == cost).all()
    for one, relative in ((renumbered(target, rng), other), (target, renumbered(other, rng))):
        assert rank_by_relatives(one, [relative]).cost == pytest.approx(cost, abs=1e-9)
    order = rng.permutation(len(cost))
    shuffled = target._replace(config_codes=target.config_codes[order], config_runtime=target.config_runtime[order])
    assert rank_by_relatives(shuffled, [other]).cost == pytest.approx(cost[order], abs=1e-9)


def test_a_specialist_corrects_what_its_base_gets_wrong_on_a_relative():
    """The base knows the pairs of options, but has the first group upside down."""
    rng = np.random.default_rng(15)
    network = drawn_network(rng)
    single, pair = network[1:]
    wrong = network[0], [-3 * single[0], *single[1:]], pair
    target = program_of(network, np.random.default_rng(1), batch=64)
    other = program_of(network, np.random.default_rng(2), c=60)
    fooled = {"target": program_of(wrong, np.random.default_rng(1), batch=64).config_runtime,
              "other": program_of(wrong, np.random.default_rng(2), c=60).config_runtime}
    target, other = target._replace(graph_id="target"), other._replace(graph_id="other")
    asked = []

    def base(graph):
        asked.append(graph.graph_id)
        rows = {row.tobytes(): cost for row, cost in
                zip(named[graph.graph_id].config_codes, fooled[graph.graph_id])}
        return np.array([rows[row.tobytes()] for row in graph.config_codes])
    named = {"target": target, "other": other}
    corrected = rank_by_relatives(target, [other], base)
    assert corrected.weights == {"pairs": 0.5, "base": 0.5} and set(asked) == {"target", "other"}
    parts = 2 * corrected.cost - mean_zscore([rankdata(base(target))])
    tau = {name: kendall_tau(cost, target.config_runtime) for name, cost in (
        ("base", base(target)), ("alone", rank_by_relatives(target, [other]).cost), ("half", corrected.cost),
        ("corrected", parts))}
    assert tau["corrected"] > max(tau["base"], tau["alone"]) + 0.02 and tau["half"] > tau["base"] + 0.05, tau
    # a base that knows nothing says nothing
    nothing = rank_by_relatives(target, [other], lambda graph: np.zeros(len(graph.config_codes))).cost
    assert 2 * nothing == pytest.approx(rank_by_relatives(target, [other]).cost, abs=1e-9)


def test_for_the_same_program_the_base_has_the_share_that_it_deserves():
    """The base knows the configurations that were trained on by heart, so the others must not learn from it."""
    rng = np.random.default_rng(16)
    held, seen = hold_out_configs(drop_duplicate_configs(program_of(drawn_network(rng, 6), rng, c=400))[0], 0.4, rng)
    random = rank_by_relatives(held, [seen], lambda graph: np.random.default_rng(0).random(len(graph.config_codes)))
    alone = rank_by_relatives(held, [seen])
    assert random.weights == alone.weights and random.cost == pytest.approx(alone.cost, abs=1e-9)
    perfect = rank_by_relatives(held, [seen], lambda graph: graph.config_runtime)
    assert perfect.weights == {"base": 1.0} and perfect.same and kendall_tau(perfect.cost, held.config_runtime) == 1


def test_a_relative_without_an_order_teaches_nothing():
    rng = np.random.default_rng(13)
    network = drawn_network(rng)
    target, flat = program_of(network, rng, batch=64), program_of(network, rng)
    assert rank_by_relatives(target, [flat._replace(config_runtime=flat.config_runtime * 0 + 5)]) is None
    few = flat._replace(config_codes=flat.config_codes[:2], config_runtime=np.array([1, 2]))
    found = rank_by_relatives(target, [few, few])
    assert np.isfinite(found.cost).all() and found.weights == {"codes": 1.0}


def test_programs_without_groups_have_no_relatives():
    graph = drawn_layout()
    bare = graph._replace(node_config_ids=np.zeros(0, np.int64), node_group=np.zeros(0, np.int64),
                          code_rows=np.zeros((0, 1, 18), np.int8), config_codes=np.zeros((20, 0), np.uint8))
    assert groups_of(bare) == [] and nearest_relatives(bare, [graph, bare], least=0.0) == []
    assert rank_by_relatives(bare, [graph, bare]) is None


@pytest.mark.parametrize("arguments, says", [
    (dict(graph=3), "graph is 3; expected a LayoutGraph"), (dict(graphs=[None]), r"graphs\[0\] is None"),
    (dict(base=3), "base is 3; expected a function"),
    (dict(most=0), "most is 0"), (dict(least=2), "least is 2; expected a share"), (dict(seed=-1), "seed is -1")])
def test_arguments_are_checked(arguments, says):
    with pytest.raises(ValueError, match=says):
        rank_by_relatives(**{"graph": drawn_layout(), "graphs": [drawn_layout()], **arguments})
