"""The config-token model against a slow loop, what its costs must not depend on, and what it can learn."""
import dataclasses
import itertools
import tracemalloc

import numpy as np
import pytest
import torch
from drawn import (
    NEAR,
    WRITTEN_OTHERWISE,
    costs,
    drawn_layout,
    drawn_neighbours,
    held,
    ready,
    slow_graph_blocks,
    some_configs,
)

from kit.agreement import agreement_tables
from kit.data import LayoutGraph, dense_configs, npz_paths, read_layout, teaches
from kit.models.config_token import ConfigTokenModel, ConfigTokenSettings
from kit.prune import prune
from kit.train import TrainSettings, predict, train

TINY = ConfigTokenSettings(width=8, token_width=4, opcode_width=3, digit_width=2)
FORMS = {"pool": {}, "none": {"mix": "none"}, "two blocks": {"graph_blocks": 2},
         "opcode and agreement alone": {"features": False, "digits": False}, "digits alone": {"agreement": False},
         "agreement alone": {"digits": False}, "no pairs": {"pairs": False}, "near pairs": {"reach": 1},
         "no bytes": {"bytes": False}, "digits alone, no bytes": {"agreement": False, "bytes": False}}
each_form = pytest.mark.parametrize("form", FORMS)


def in_form(form, **changes):
    return dataclasses.replace(TINY, **FORMS[form], **changes)


@torch.no_grad()
def slow_token_costs(model, graph, index, fitted_on):
    """Configuration by configuration: a term for each node and each pair, and a vector for each group."""
    s = model.settings
    nodes = slow_graph_blocks(model, graph, fitted_on)
    tables = agreement_tables(graph, s.reach if s.pairs else 0)
    alone, giving, taking = (model.context(nodes)[:, part * 8:part * 8 + 8] for part in range(3))
    assert s.width == 8
    out = []
    for one, rows in zip(index, dense_configs(graph, index), strict=True):
        codes = [graph.config_codes[one, group] for group in graph.node_group]
        total, tokens = 0.0, torch.zeros(graph.config_codes.shape[1], s.token_width)
        for place, node in enumerate(graph.node_config_ids):
            digits = model.digit(torch.tensor(rows[place]).long() + 2).flatten()
            own = torch.tensor(tables.own[place, codes[place], :21 if s.bytes else 14])
            given = model.unary(alone[node] + model.code.weight @ torch.cat([digits] * s.digits + [own] * s.agreement))
            term = given - model.unary(alone[node])
            units = tables.share[place], tables.reads[place], tables.work[place]
            total = total + term[0] + sum(unit * weight for unit, weight in zip(units, term[1:4]))
            moved = tables.bytes[place, codes[place]].tolist() if s.bytes and s.agreement else []
            total = total + sum(unit * weight for unit, weight in zip(moved, given[4:10]))
            tokens[graph.node_group[place]] += term[4 + len(moved):]
        for (v, u), cells in zip(tables.pairs, tables.pair, strict=True) if s.agreement and s.pairs else ():
            producer, consumer = graph.node_config_ids[[v, u]]
            row = cells[codes[v], codes[u]]
            agreement = model.agree.weight @ torch.tensor(tables.rows[row, :22 if s.bytes else 12])
            term = model.binary(giving[producer] + taking[consumer] + agreement)
            total = total + term[0] + tables.share[v] * term[1]
            total = total + sum(unit * weight for unit, weight in zip(tables.moved[row].tolist() * s.bytes, term[2:]))
        out.append(torch.as_tensor(total + (model.pool(tokens.sum(dim=0))[0] if s.mix != "none" else 0)))
    return torch.stack(out).float()


@each_form
def test_every_form_is_its_slow_loop(form):
    graphs = [drawn_neighbours(0), drawn_neighbours(1, n=20, nc=9, g=9, c=5), drawn_layout(2, m=0, c=3)]
    model = ready(ConfigTokenModel(in_form(form)), *graphs)
    for graph in graphs:
        slow = slow_token_costs(model, graph, [2, 0, 1], graphs)
        assert torch.allclose(costs(model, graph, [2, 0, 1]), slow, **NEAR)
        assert slow.std() > 1e-3


def test_settings_that_cannot_be_are_refused():
    for change, said in (({"mix": "sum"}, "mix is 'sum'; expected 'none' or 'pool'"),
                         ({"digits": False, "agreement": False},
                          "neither digits nor agreement: codes could not be told apart")):
        with pytest.raises(ValueError) as caught:
            ConfigTokenSettings(**change)
        assert str(caught.value) == said


def test_a_real_file_is_its_slow_loop(real_data):
    path, = [p for p in npz_paths(real_data / "npz", "layout:xla:default", "train") if "alexnet" in p.stem]
    graph = prune(some_configs(read_layout(path), [0, 7, 20_000]))
    model = ready(ConfigTokenModel(TINY), graph)
    assert len(model.prepare(graph).pairs) == 42
    assert torch.allclose(costs(model, graph), slow_token_costs(model, graph, range(3), [graph]), **NEAR)


@pytest.mark.parametrize("codes, k", [(np.uint8, 200), (np.uint16, 300)])
def test_codes_of_every_size_are_told_apart(codes, k):
    graph = drawn_neighbours(3, k=k, c=9, n=8, nc=3, m=24)
    graph = graph._replace(config_codes=graph.config_codes.astype(codes))
    graph.config_codes[0], graph.config_codes[1] = k - 1, (k - 1) % 256          # 43 = 299 - 256
    graph.config_codes[2] = 190                                                  # negative as a signed byte
    model = ready(ConfigTokenModel(TINY), graph)
    assert len(model.prepare(graph).pairs)
    assert torch.allclose(costs(model, graph), slow_token_costs(model, graph, range(9), [graph]), **NEAR)


@pytest.mark.parametrize("change", WRITTEN_OTHERWISE)
def test_costs_do_not_depend_on_how_a_graph_is_written(change):
    graph = drawn_neighbours(0)
    model = ready(ConfigTokenModel(TINY), graph)
    assert len(model.prepare(graph).pairs) and costs(model, graph).std() > 1e-3
    assert torch.allclose(costs(model, change(graph, np.random.default_rng(0))), costs(model, graph), **NEAR)


def test_costs_follow_the_configurations_and_not_their_company():
    graph, order = drawn_neighbours(5), [3, 0, 6, 5, 1, 2, 4]
    model = ready(ConfigTokenModel(TINY), graph)
    whole = costs(model, graph)
    shuffled = graph._replace(config_codes=graph.config_codes[order], config_runtime=graph.config_runtime[order])
    assert torch.allclose(costs(model, shuffled), whole[order], **NEAR)
    assert torch.allclose(costs(model, graph, order), whole[order], **NEAR)
    assert torch.allclose(costs(model, graph, [4]), whole[4], **NEAR) and not model.transductive
    assert torch.allclose(costs(model, graph, [1, 4, 4, 4]), whole[[1, 4, 4, 4]], **NEAR)


@pytest.mark.parametrize("without", [dict(m=0), dict(nc=0, g=0, k=1), dict(nc=0, g=0, k=1, m=0), dict(k=1),
                                     dict(n=1, nc=1, g=1, m=0), dict(n=6)],
                         ids=["edges", "configurable nodes", "both", "a second code", "neighbours", "other nodes"])
def test_a_graph_may_lack_anything(without):
    graph = drawn_neighbours(7, **without)
    model = ready(ConfigTokenModel(TINY), graph)
    found = costs(model, graph)
    assert torch.allclose(found, slow_token_costs(model, graph, range(7), [graph]), **NEAR)
    if graph.code_rows.shape[1] == 1:
        assert torch.allclose(found, found[:1].expand(7), **NEAR)
    if teaches(graph):
        train(model, [graph], TrainSettings(steps=2))
    assert np.isfinite(predict(model, graph)).all()


@pytest.mark.parametrize("form", ["pool", "digits alone, no bytes"])
def test_a_form_trains_in_half_precision_and_ranks_as_in_whole(form):
    graphs = [drawn_neighbours(7, c=30), drawn_neighbours(7, nc=0, g=0, k=1), drawn_layout(2, m=0)]
    for precision in ("bfloat16", "float16"):
        model = ConfigTokenModel(in_form(form))
        history = train(model, graphs, TrainSettings(steps=8, precision=precision))
        assert np.isfinite(history["loss"]).all() and all(torch.isfinite(p).all() for p in model.parameters())
        whole, half = predict(model, graphs[0]), predict(model, graphs[0], precision=precision)
        assert half.dtype == whole.dtype and np.abs(half - whole).max() < 0.1 * whole.std()
        assert np.isfinite(predict(model, graphs[1], precision=precision)).all()


#   0* --> 1 --> 2*      runtime: 200 where the output layout of 0 is not the input layout of 2, else 100
LAYOUTS = list(itertools.permutations(range(3)))


def two_neighbours(shape=(8, 64, 128), seed=0):
    """36 configurations, shuffled: 6 output layouts of node 0 with 6 input layouts of node 2."""
    node_feat = np.zeros((3, 140), np.float32)
    node_feat[:, 21:24], node_feat[:, 134:137] = shape, (2, 1, 0)
    code_rows = np.full((2, 6, 18), -1, np.int8)
    code_rows[0, :, :3], code_rows[1, :, 6:9] = LAYOUTS, LAYOUTS
    codes = np.random.default_rng(seed).permutation(np.indices((6, 6)).reshape(2, 36).T).astype(np.uint8)
    return LayoutGraph("two", node_feat, np.array([75, 2, 75]), np.array([[1, 0], [2, 1]]), np.array([0, 2]),
                       np.array([0]), codes, np.arange(2), code_rows, np.where(codes[:, 0] == codes[:, 1], 100, 200))


def test_training_finds_that_a_pair_s_agreement_decides():
    graph = two_neighbours()
    seen = graph._replace(config_codes=graph.config_codes[:24], config_runtime=graph.config_runtime[:24])
    others = [graph._replace(config_codes=graph.config_codes[24:], config_runtime=graph.config_runtime[24:]),
              two_neighbours((4, 32, 256), seed=1)]
    model = ConfigTokenModel(ConfigTokenSettings(width=16, token_width=8))
    train(model, [seen], TrainSettings(steps=80, configs_per_step=24, learning_rate=1e-2))
    for part in (seen, *others):
        cost, agree = predict(model, part), part.config_runtime == 100
        assert 0 < agree.sum() < len(agree) and cost[agree].max() < cost[~agree].min()


@pytest.mark.parametrize("width, token_width", [(8, 64), (32, 32)])
def test_a_full_chunk_holds_what_its_budget_says(width, token_width):
    settings = dataclasses.replace(TINY, width=width, token_width=token_width)
    for graph in (drawn_neighbours(2, c=2000), drawn_neighbours(3, n=60, nc=50, g=50, c=2000, m=400),
                  drawn_layout(4, c=2000, m=0)):
        model = ready(ConfigTokenModel(settings), graph)
        tensors = model.prepare(graph)
        shared, budget = held(model, tensors, 1), 400_000
        j = model.configs_within(tensors, budget)
        assert 1 < j < 2000
        # the shared tables are gone or alive when most is held
        assert 0.2 * budget < held(model, tensors, j) <= budget + shared


def test_the_largest_real_file_is_prepared_and_scored_in_little_memory(real_data):
    path, = npz_paths(real_data / "npz", "layout:nlp:default", "test")
    graph = read_layout(path)
    assert len(graph.node_feat) == 21_918 and graph.config_codes.shape == (1001, 26)
    model = ready(ConfigTokenModel(), graph)
    tracemalloc.start()
    tensors = model.prepare(graph)
    peak = tracemalloc.get_traced_memory()[1]            # of NumPy
    tracemalloc.stop()
    kept = sum(t.nbytes for t in tensors if torch.is_tensor(t))
    assert peak < 10 * graph.node_feat.nbytes and kept < 3 * graph.node_feat.nbytes
    assert held(model, tensors, 1001) < 100 << 20
    alone = prune(graph)
    assert np.isfinite(predict(model, alone)).all() and len(model.prepare(alone).pairs) == len(tensors.pairs) > 2000
