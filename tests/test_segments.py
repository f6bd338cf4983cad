"""Graph Segment Training against a slow step with a table held by hand, and the laws of its draws and its table."""
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from drawn import drawn_chains, drawn_layout, ready, segments
from test_prune import a_graph
from torch import nn

import kit.models.segments as segments_of_kit
from kit.agreement import find_meetings
from kit.data import dense_configs
from kit.losses import pairwise_hinge_loss
from kit.metrics import kendall_tau
from kit.models import LayoutGNN, LayoutGNNSettings
from kit.models.segments import ROW_BYTES, HistoryTable, SegmentGNN, SegmentGNNSettings, graph_key, subgraph
from kit.predict import predict
from kit.prune import k_hop_nodes
from kit.train import TrainSettings, train
from kit.train_parts import make_tasks
from kit.train_parts.sampling import saved_bytes

TINY = LayoutGNNSettings(width=8, opcode_width=3, digit_width=2, squeeze=2, config_attention=False)
AGREES = replace(TINY, agreement=True, both_directions=True)
GRAPH = drawn_layout(n=13, nc=7, m=30, c=9)                     # in segments of 4, 4, 4 and 1 nodes


def cut_into(nodes, margin=0, network=TINY):
    return SegmentGNN(SegmentGNNSettings(**asdict(network), segment_nodes=nodes, margin=margin))


def wrapped(**changes):
    return ready(cut_into(4, network=replace(TINY, **changes)), GRAPH)


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def step(model, tensors, index, seed=0):
    """Costs, loss and gradients of one training step."""
    model.train().zero_grad()
    torch.manual_seed(seed)
    cost = model(tensors, index)
    loss = pairwise_hinge_loss(cost, torch.tensor(GRAPH.config_runtime)[index])
    loss.backward()
    return cost.detach(), loss.item(), gradients(model)


class Lookup(nn.Module):
    """What each configuration pools to is a number of its own in each segment: every term of a sum can be told."""
    head, transductive, fitted = nn.Identity(), False, True

    def prepare(self, graph, counted=None):
        return torch.tensor(graph.node_feat[:, 37]).sum() + torch.arange(len(graph.config_codes)) ** 2.0

    def pooled(self, values, index):
        return values[index][:, None]


def lookup(nodes=4, margin=0):
    model = cut_into(nodes, margin)
    model.model = Lookup()
    return model


@pytest.mark.parametrize("attention", [False, True])
def test_one_segment_that_covers_the_graph_is_the_network_to_the_last_bit(attention):
    index, network = torch.tensor([3, 0, 8, 5]), replace(TINY, config_attention=attention)
    whole, cut = (ready(model, GRAPH) for model in (LayoutGNN(network), cut_into(13, 1, network)))
    cost, loss, grads = step(whole, whole.prepare(GRAPH), index)
    same_cost, same_loss, same_grads = step(cut, cut.prepare(GRAPH), index)
    assert torch.equal(cost, same_cost) and loss == same_loss and cut.transductive == attention
    assert all(torch.equal(grad, same_grads[f"model.{name}"]) for name, grad in grads.items())
    assert (predict(whole, GRAPH) == predict(cut, GRAPH)).all()


def test_a_step_is_that_of_a_table_held_by_hand(monkeypatch):
    monkeypatch.setattr(segments_of_kit, "KEEP", 0.6)
    model = wrapped(dropout=0.0)
    tensors, parts = model.prepare(GRAPH), segments(GRAPH, 4)
    table, rng = {}, np.random.default_rng(0)
    seen = set()
    for seed in range(12):
        index = torch.tensor(rng.choice(9, 5, replace=False))
        cost, loss, grads = step(model, tensors, index, seed)

        torch.manual_seed(seed)
        chosen, uniform = int(torch.randperm(4)[0]), torch.rand(5, 4)
        model.zero_grad()
        fresh, expected = model.model.pooled(model.model.prepare(parts[chosen]), index), []
        for place, config in enumerate(index.tolist()):
            total = torch.zeros(8)
            for one, part in enumerate(parts):
                share, has_row = len(part.node_feat) / 13, (config, one) in table
                kept = uniform[place, one] < 0.6
                if one == chosen:
                    total = total + share * (0.6 + 0.4 * 4 if has_row else 4) * fresh[place]
                elif has_row and kept:
                    total = total + share * table[config, one]
                seen.add((one == chosen, has_row, bool(kept)))
            expected.append(model.model.head(total))
        expected = torch.cat(expected)
        slow = pairwise_hinge_loss(expected, torch.tensor(GRAPH.config_runtime)[index])
        slow.backward()
        torch.testing.assert_close(cost, expected.detach())
        assert loss == pytest.approx(slow.item(), rel=1e-5)
        for name, grad in gradients(model).items():
            torch.testing.assert_close(grads[name], grad, atol=1e-6, rtol=1e-4)
        table |= {(config, chosen): row.detach().half().float() for config, row in zip(index.tolist(), fresh)}
    assert len(seen) == 8, "every kind of term came up"


def test_over_draws_a_step_pools_to_the_whole_graph_with_and_without_rows():
    model = lookup().train()
    tensors, index = model.prepare(GRAPH), torch.arange(9)
    for one in range(4):                                # configuration c has rows in the segments below c
        some = torch.arange(one + 1, 9)
        model.table.put(tensors, some, one, model.model.pooled(tensors.parts[one], some))
    model.table.put = lambda *_: None                   # what a draw leaves behind must not help the next
    torch.manual_seed(0)
    draws = torch.stack([model(tensors, index) for _ in range(1000)]).double()
    error = draws.std(dim=0) / len(draws) ** 0.5
    assert (error > 0).all()
    assert ((draws.mean(dim=0) - model.eval()(tensors, index)).abs() < 4 * error).all()


def pooled(model, graph):
    with torch.no_grad():
        return model.eval().pooled(model.prepare(graph), torch.arange(len(graph.config_runtime)))


@pytest.mark.parametrize("margin, network", [
    (99, AGREES), (99, replace(AGREES, config_attention=True)),
    (2, replace(AGREES, agreement=False, node_norm=False)),          # as many hops as graph blocks
    (1, replace(AGREES, graph_blocks=0, node_norm=False))],          # operands and consumers; partners come along
    ids=["all", "attention", "messages", "agreement"])
def test_with_all_that_its_nodes_see_a_segment_is_computed_as_in_the_whole_graph(margin, network):
    graph = drawn_chains(0, n=30)
    chain = np.stack([np.arange(1, 30), np.arange(29)], axis=1)            # no node is out of reach
    graph = graph._replace(edge_index=np.concatenate([graph.edge_index, chain]))
    whole = ready(LayoutGNN(network), graph)
    cut, bare = (ready(cut_into(7, hops, network), graph) for hops in (margin, 0))
    torch.testing.assert_close(pooled(cut, graph), pooled(whole, graph), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(pooled(bare, graph), pooled(whole, graph), atol=1e-5, rtol=1e-4)
    assert cut.prepare(graph).share == (0.2,) * 5                          # 30 nodes in five of 6, not 7, 7, 7, 7, 2


def test_a_margin_is_the_neighbours_and_the_partners_of_own_nodes():
    partners = 0
    for seed in range(6):
        graph = drawn_chains(seed, n=40, nc=10)
        graph = graph._replace(meetings=find_meetings(graph))
        ends = [set(pair) for pair in graph.node_config_ids[graph.meetings.ends].tolist()]
        for margin in (0, 1, 2):
            model = lookup(8, margin)
            for start in range(0, 40, 8):
                own = set(range(start, start + 8))
                near = set(k_hop_nodes(graph.edge_index, np.array(sorted(own)), margin).tolist())
                far = set().union(*(pair for pair in ends if pair & own)) if margin else set()
                assert model.with_margin(graph, np.array(sorted(own))).tolist() == sorted(near | far)
                partners += bool(far - near)
    assert partners > 5


def test_half_precision_trains_on_segments_and_keeps_costs_whole():
    model = wrapped().train()
    tensors, index = model.prepare(GRAPH), torch.arange(6)
    for seed in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            torch.manual_seed(seed)
            cost = model(tensors, index)
        pairwise_hinge_loss(cost, torch.tensor(GRAPH.config_runtime)[index]).backward()
        assert cost.dtype == torch.float32
    assert len(model.table.rows) > 6 and all(p.grad.isfinite().all() for p in model.parameters())


def values_of(table, tensors, configs=9):
    """What the table holds of a graph's configurations, NaN where it holds nothing; rows of width 1."""
    rows = table.find(tensors, torch.arange(configs))
    return np.array([[np.nan if row is None else row.item() for row in some] for some in rows])


def test_preparing_again_finds_the_rows_and_scoring_writes_none():
    model = wrapped()
    step(model, model.prepare(GRAPH), torch.tensor([1, 2, 3, 3]))
    predict(model, GRAPH)
    predict(model, drawn_layout(5, n=20, nc=4))
    rows = model.table.find(model.prepare(GRAPH), torch.arange(9))
    assert sum(row is not None for some in rows for row in some) == len(model.table.rows) == 3


@pytest.mark.parametrize("field", ["graph_id", "node_feat", "edge_index", "config_codes", "config_runtime"])
def test_graphs_of_the_same_name_and_size_have_rows_of_their_own(field):
    value = getattr(GRAPH, field)
    other = value + "'" if isinstance(value, str) else value.copy()
    if not isinstance(value, str):
        other.flat[-1] += 1
    assert graph_key(GRAPH) == graph_key(drawn_layout(n=13, nc=7, m=30, c=9))
    assert graph_key(GRAPH) != graph_key(GRAPH._replace(**{field: other}))


def test_the_table_is_bounded_and_drops_its_oldest_rows_first():
    tensors, table = lookup().prepare(GRAPH), HistoryTable(10 * (2 + ROW_BYTES))               # ten rows of width 1
    for one in range(4):
        table.put(tensors, torch.arange(4), one, torch.full((4, 1), float(one)))
    assert len(table.rows) == 10
    nan = np.nan
    np.testing.assert_array_equal(values_of(table, tensors),
                                  [[nan, nan, 2, 3]] * 2 + [[nan, 1, 2, 3]] * 2 + [[nan] * 4] * 5)
    table.put(tensors, torch.arange(9), 0, torch.zeros(9, 1))
    again = HistoryTable(table.size)
    again.set_extra_state(table.get_extra_state())
    for one in (table, again):                      # both go on in the same order
        one.put(tensors, torch.arange(5, 9), 3, torch.ones(4, 1))
    np.testing.assert_array_equal(values_of(table, tensors), values_of(again, tensors))
    table.put(tensors, torch.arange(2), 2, torch.tensor([[torch.inf], [65504.0]]))       # the first overflows
    assert np.isnan(values_of(table, tensors)[:2, 2]).tolist() == [True, False]


def interrupted(model, graphs, settings, path, after):
    """Train until the checkpoint has been written `after` times."""
    def report(line):
        reports.append(line)
        if len(reports) == after:
            raise KeyboardInterrupt
    reports = []
    with pytest.raises(KeyboardInterrupt):
        train(model, graphs, settings, valid=graphs[:1], score=kendall_tau, checkpoint=path, report=report)


def test_a_killed_run_ends_like_one_that_was_not(tmp_path):
    graphs = [drawn_chains(seed, n=30, c=12) for seed in (1, 2)]
    plan = TrainSettings(steps=6, configs_per_step=5, graphs_per_step=2, validate_every=2, keep="last")

    def run(path):
        model = cut_into(8, 1, AGREES)
        return model, train(model, graphs, plan, valid=graphs[:1], score=kendall_tau, checkpoint=path)
    model, history = run(tmp_path / "whole.pt")
    interrupted(cut_into(8, 1, AGREES), graphs, plan, tmp_path / "killed.pt", after=1)
    resumed, again = run(tmp_path / "killed.pt")
    assert history["loss"] == again["loss"] and history["score"] == again["score"]
    for name, value in model.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert len(model.table.rows) > 20


def test_a_step_on_any_segment_keeps_to_the_memory_budget():
    graph = drawn_chains(3, n=40, nc=10)
    model = ready(SegmentGNN(SegmentGNNSettings(**asdict(AGREES), segment_nodes=10)), graph)
    budget, plan = 60_000, TrainSettings(configs_per_step=12)
    (task,) = make_tasks(model, [graph], pairwise_hinge_loss, replace(plan, memory_budget=budget), torch.device("cpu"))
    needed = {count: [saved_bytes(model.train(), task._replace(tensors=task.tensors._replace(parts=(part,) * 4)), count,
                                  pairwise_hinge_loss, plan) for part in task.tensors.parts]
              for count in (task.most, task.most + 1)}
    assert 2 < task.most < 12 and max(needed[task.most]) <= budget < max(needed[task.most + 1])
    assert len({len(part.numeric) for part in task.tensors.parts}) > 1 and min(needed[task.most + 1]) < budget


def test_settings_that_mean_nothing_are_refused():
    for change in (dict(segment_nodes=0), dict(margin=-1)):
        with pytest.raises(ValueError, match="expected a whole number"):
            SegmentGNNSettings(**change)
    with pytest.raises(ValueError, match="expected SegmentGNNSettings"):
        SegmentGNN(TINY)


def slow_subgraph(graph, nodes):
    """Edges, configurable nodes, meetings and each configuration's digits, in the numbers of the whole graph."""
    edges = [edge for edge in graph.edge_index.tolist() if set(edge) <= set(nodes)]
    places = [place for place, node in enumerate(graph.node_config_ids.tolist()) if node in nodes]
    found = find_meetings(graph)
    kept = [i for i, ends in enumerate(found.ends.tolist()) if set(ends) <= set(places)]
    return edges, places, [part[kept] for part in found], dense_configs(graph, np.arange(7))[:, places]


def test_a_subgraph_is_its_edges_its_configurable_nodes_its_groups_and_the_meetings_among_them():
    met = 0
    for seed in range(20):
        rng, graph = np.random.default_rng([8, seed]), drawn_chains(seed)
        nodes = np.sort(rng.choice(24, rng.integers(1, 25), replace=False))
        for whole in (graph, graph._replace(meetings=find_meetings(graph))):
            part = subgraph(whole, nodes)
            edges, places, (ends, *others), rows = slow_subgraph(graph, nodes.tolist())
            assert nodes[part.edge_index].reshape(-1, 2).tolist() == edges
            assert nodes[part.node_config_ids].tolist() == graph.node_config_ids[places].tolist()
            assert np.array_equal(np.array(places, int)[part.meetings.ends], ends)
            assert all(map(np.array_equal, part.meetings[1:], others))
            assert (dense_configs(part, np.arange(7)) == rows).all()
            assert part.config_codes.shape[1] == len(set(graph.node_group[places].tolist()))
            assert (part.node_feat == graph.node_feat[nodes]).all() and part.node_opcode.shape == nodes.shape
        met += 0 < len(ends) < len(find_meetings(graph).hops)
    assert met > 3


def test_segments_of_a_drawn_graph():
    #   segments of 3: [0 1 2] [3 4 5] [6]; the edges 2 -> 3 and 5 -> 6 are cut
    graph = a_graph([[0, 2], [2, 3], [4, 5], [5, 6], [6, 6]], [5, 1, 4], 7, splits=[0, 2, 3, 7])
    first, second, third = segments(graph, 3)
    assert [s.edge_index.tolist() for s in (first, second, third)] == [[[0, 2]], [[1, 2]], [[0, 0]]]
    assert [s.node_config_ids.tolist() for s in (first, second, third)] == [[1], [2, 1], []]
    assert [s.node_group.tolist() for s in (first, second, third)] == [[0], [0, 0], []]      # 5, 4: group 0; 1: 1
    assert [s.node_splits.tolist() for s in (first, second, third)] == [[0, 2, 3], [0, 3], [0, 1]]
    assert [s.config_codes.shape for s in (first, second, third)] == [(3, 1), (3, 1), (3, 0)]
