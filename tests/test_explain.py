"""The terms of a cost: they add up, they belong to the groups that are named, and the words are the program's."""
import numpy as np
import pytest
from drawn import costs, drawn_layout, drawn_neighbours, every_node_its_own_group, ready
from test_config_token import FORMS, in_form

from kit.data import OPCODE_NAMES
from kit.models import ConfigTokenModel, explain, reasons
from kit.train import predict


def drawn(form, seed=1, **sizes):
    graph = drawn_neighbours(seed, **dict(n=20, nc=9, g=4, c=12) | sizes)
    return graph, ready(ConfigTokenModel(in_form(form)), graph)


@pytest.mark.parametrize("form", FORMS)
def test_the_terms_add_up_to_the_cost_and_to_differences_of_costs(form):
    graph, model = drawn(form)
    predicted = predict(model, graph)
    for one, other in ((0, 1), (3, 3), (5, 2)):
        alone = explain(model, graph, graph.config_codes[one])
        assert alone.cost == pytest.approx(predicted[one], rel=1e-4, abs=2e-5)
        apart = explain(model, graph, graph.config_codes[one], graph.config_codes[other])
        assert apart.cost == pytest.approx(predicted[one] - predicted[other], rel=1e-4, abs=4e-5)
        for found in (alone, apart):
            assert found.cost == pytest.approx(found.nodes.sum() + found.pairs.sum() + found.rest, abs=1e-9)
            assert found.by_group(graph).sum() == pytest.approx(found.nodes.sum() + found.pairs.sum(), abs=1e-9)
            assert (found.rest == 0) == (form == "none" or (one == other and found is apart))
    assert len(apart.ends) == len(apart.pairs) and (len(apart.pairs) > 0) == (form != "no pairs")


@pytest.mark.parametrize("own_groups", [False, True])
def test_a_term_of_two_groups_is_what_their_costs_do_not_share(own_groups):
    """The mixed difference of costs is that of the terms of both groups, whatever the other groups do."""
    graph, model = drawn("none", nc=6, g=3)
    graph = every_node_its_own_group(graph, np.random.default_rng(0)) if own_groups else graph
    rng, groups, compared = np.random.default_rng(0), graph.config_codes.shape[1], 0
    for one, other in [(i, j) for i in range(groups) for j in range(i + 1, groups)]:
        code, changed = rng.integers(0, 4, (2, groups))
        four = np.repeat(code[None], 4, axis=0)
        four[[1, 3], one], four[[2, 3], other] = changed[one], changed[other]
        cost = costs(model, graph._replace(config_codes=four.astype(np.uint8),
                                           config_runtime=np.arange(4))).double().numpy()
        term = np.array([explain(model, graph, row).by_group(graph)[one, other] for row in four])
        signs = np.array([1, -1, -1, 1])
        assert cost @ signs == pytest.approx(term @ signs, abs=2e-5)
        compared += abs(term @ signs) > 1e-4
    assert compared


def test_only_the_groups_that_changed_have_terms():
    graph, model = drawn("none")
    code = graph.config_codes[0].copy()
    code[2] = (code[2] + 1) % 4
    table = explain(model, graph, code, graph.config_codes[0]).by_group(graph)
    touched = np.zeros_like(table, dtype=bool)
    touched[2] = touched[:, 2] = True
    assert table[touched].any() and not table[~touched].any() and not np.tril(table, -1).any()


def test_reasons_are_in_the_words_of_the_program_and_the_largest_comes_first():
    graph, model = drawn("pool", k=3)
    opcode, feat = graph.node_opcode.copy(), graph.node_feat.copy()
    opcode[graph.node_config_ids] = OPCODE_NAMES.index("dot")
    feat[:, 2:21] = 0
    feat[:, 12] = 1                                                         # bfloat16
    graph = graph._replace(node_opcode=opcode, node_feat=feat)
    model = ready(ConfigTokenModel(in_form("pool")), graph)
    found = explain(model, graph, graph.config_codes[0], graph.config_codes[1])
    table = reasons(graph, found, most=100)
    amounts = table["term"].abs().to_numpy()
    assert len(table) > 3 and (np.diff(amounts) <= 0).all() and amounts[-1] > 0
    assert table["term"].sum() == pytest.approx(found.nodes.sum() + found.pairs.sum(), abs=1e-9)
    assert reasons(graph, found, most=2).equals(table.head(2))
    group = int(np.flatnonzero(graph.config_codes[0] != graph.config_codes[1])[0])
    nodes = graph.node_config_ids[graph.node_group == group]
    alone = table[table["where"].str.startswith(f"dot {', '.join(map(str, nodes[:3]))}")
                  & ~table["where"].str.contains("->")].iloc[0]
    place = graph.node_group.tolist().index(group)
    for number, code in enumerate(graph.config_codes[:2, group]):
        row = graph.code_rows[place, code].reshape(3, 6)
        words = " ".join(f"{name} {{{','.join(str(d) for d in digits if d >= 0)}}}"
                         for name, digits in zip(("output", "lhs", "rhs"), row) if (digits >= 0).any()) or "nothing"
        assert alone["layouts"].split(" instead of ")[number] == words
    sizes = [np.prod(feat[v, 21:27][feat[v, 21:27] > 0]) * 2 / 2**20 for v in nodes]
    assert alone["MiB"] == pytest.approx(max(sizes))
    both = table[table["where"].str.contains("->") & (table["copies"] != "")].iloc[0]
    count, of, total = both["copies"].split(", instead of ")[0].split(" ")
    assert of == "of" and 0 <= int(count) <= int(total) and int(total) > 0


def test_copies_count_the_pairs_that_disagree():
    graph, model = drawn("pool")
    tensors = model.prepare(graph)
    for code in graph.config_codes[:4]:
        found = explain(model, graph, code)
        for number, (v, u) in enumerate(found.ends):
            row = tensors.rows[tensors.pair[number, code[graph.node_group[v]], code[graph.node_group[u]]]]
            assert found.differ[number] == max(row[:5].tolist())
    assert found.differ.any()


@pytest.mark.parametrize("changes, said", [
    ({"model": None}, "model is None; expected a ConfigTokenModel or AdditiveTrees"),
    ({"graph": 3}, "graph is 3; expected a LayoutGraph"),
    ({"config": [0, 0]}, r"config is \[0, 0\]; expected 4 codes, each at least 0 and below \[4, 4, 4, 4\]"),
    ({"config": [0, 0, 0, 4]}, "config is"), ({"against": [0.5] * 4}, "against is")])
def test_what_cannot_be_explained_is_refused(changes, said):
    graph, model = drawn("pool")
    with pytest.raises(ValueError, match=said):
        explain(**dict(model=model, graph=graph, config=[0] * 4) | changes)


def test_a_code_that_a_group_does_not_have_is_refused():
    graph, model = drawn("pool")
    rows, codes = graph.code_rows.copy(), graph.config_codes.copy()
    rows[graph.node_group == 1, 2:], codes[:, 1] = -1, codes[:, 1] % 2
    graph = graph._replace(code_rows=rows, config_codes=codes)
    assert explain(model, graph, [0, 1, 0, 0]).config.tolist() == [0, 1, 0, 0]
    with pytest.raises(ValueError, match=r"config is \[0, 2, 0, 0\]; expected 4 codes, .* below \[4, 2, 4, 4\]"):
        explain(model, graph, [0, 2, 0, 0])


def test_reasons_want_an_explanation():
    graph = drawn_layout()
    with pytest.raises(ValueError, match="explanation is None; expected an Explanation"):
        reasons(graph, None)
    with pytest.raises(ValueError, match="most is 0"):
        reasons(graph, explain(ready(ConfigTokenModel(), graph), graph, [0, 0, 0]), most=0)


def test_a_program_without_pairs_is_explained():
    graph = drawn_layout(m=0)
    model = ready(ConfigTokenModel(in_form("pool")), graph)
    found = explain(model, graph, graph.config_codes[0])
    assert found.cost == pytest.approx(predict(model, graph)[0], rel=1e-4, abs=2e-5)
