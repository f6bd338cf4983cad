"""Graph Segment Training against a slow step with a table held by hand, and the laws of its draws and its table."""
import re
from dataclasses import asdict, fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from drawn import arrays_of, drawn_chains, drawn_layout, ready, segments
from test_prune import a_graph, random_graph
from torch import nn

from kit.agreement import find_meetings
from kit.data import dense_configs
from kit.losses import pairwise_hinge_loss
from kit.metrics import kendall_tau
from kit.models import LayoutGNN, LayoutGNNSettings
from kit.models.segments import (
    ROW_BYTES,
    HistoryTable,
    SegmentGNN,
    SegmentGNNSettings,
    SegmentSettings,
    SegmentTraining,
    graph_key,
    subgraph,
)
from kit.predict import predict
from kit.prune import k_hop_nodes
from kit.train import TrainSettings, train
from kit.training import make_tasks
from kit.training.checkpoints import load_checkpoint, save_checkpoint
from kit.training.sampling import saved_bytes
from lab.studies.published import LayoutSAGE, LayoutSAGESettings

TINY = LayoutGNNSettings(width=8, opcode_width=3, digit_width=2, squeeze=2, config_attention=False)
ATTENTION, REFERENCE = (replace(TINY, config_attention=kind) for kind in (True, "reference"))
GRAPH = drawn_layout(n=13, nc=7, m=30, c=9)                     # in segments of 4, 4, 4 and 1 nodes
CUT = SegmentSettings(segment_nodes=4)


def wrapped(settings=CUT, network=TINY, graphs=(GRAPH,)):
    return ready(SegmentTraining(LayoutGNN(network), settings), *graphs)


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def step(model, tensors, index, seed=0, runtime=GRAPH.config_runtime):
    """Costs, loss and gradients of one training step."""
    model.train().zero_grad()
    torch.manual_seed(seed)
    cost = model(tensors, index)
    loss = pairwise_hinge_loss(cost, torch.tensor(runtime)[index])
    loss.backward()
    return cost.detach(), loss.item(), gradients(model)


class Lookup(nn.Module):
    """What each configuration pools to is a number of its own in each segment: every term of a sum can be told."""
    def __init__(self, pool="mean", width=1):
        super().__init__()
        self.settings, self.head = SimpleNamespace(pool=pool), nn.Identity()
        self.transductive, self.fitted, self.width, self.shift = False, True, width, 0.0

    def prepare(self, graph):
        return torch.tensor(graph.node_feat[:, 37]).sum() + torch.arange(len(graph.config_codes)) ** 2.0

    def pooled(self, values, index):
        return (values[index] + self.shift)[:, None].repeat(1, self.width)


@pytest.mark.parametrize("network", [lambda: LayoutGNN(TINY), lambda: LayoutGNN(ATTENTION),
                                     lambda: LayoutGNN(REFERENCE),
                                     lambda: LayoutSAGE(LayoutSAGESettings(width=8, opcode_width=3))],
                         ids=["alone", "attention", "references", "published"])
def test_one_segment_that_covers_the_graph_is_the_wrapped_model_to_the_last_bit(network):
    index = torch.tensor([3, 0, 8, 5])
    whole, cut = (ready(model, GRAPH) for model in (network(), SegmentTraining(network(), SegmentSettings(13))))
    cost, loss, grads = step(whole, whole.prepare(GRAPH), index)
    same_cost, same_loss, same_grads = step(cut, cut.prepare(GRAPH), index)
    assert torch.equal(cost, same_cost) and loss == same_loss
    assert all(torch.equal(grad, same_grads[f"model.{name}"]) for name, grad in grads.items())
    assert (predict(whole, GRAPH) == predict(cut, GRAPH)).all()


def test_a_step_is_that_of_a_table_held_by_hand():
    model = wrapped(replace(CUT, keep=0.6), replace(TINY, dropout=0.0))
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


@pytest.mark.parametrize("count, keep", [(1, 0.5), (2, 0.5), (1, 0.0), (3, 0.9)])
def test_over_draws_a_step_pools_to_the_whole_graph_with_and_without_rows(count, keep):
    model = SegmentTraining(Lookup(), SegmentSettings(4, count, keep)).train()
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


@pytest.mark.parametrize("network", [TINY, REFERENCE], ids=["alone", "references"])
@pytest.mark.parametrize("graph", [GRAPH, GRAPH._replace(node_config_ids=np.arange(7))], ids=["mixed", "some static"])
def test_scoring_is_the_mean_over_segments_weighted_by_nodes(network, graph):
    model = wrapped(network=network)
    expected = sum(len(part.node_feat) / 13 * model.model.pooled(model.model.prepare(part), torch.arange(9))
                   for part in segments(graph, 4))
    np.testing.assert_allclose(predict(model, graph), model.model.head(expected)[:, 0].detach(), rtol=1e-5, atol=1e-6)


def test_without_norms_and_edges_segments_score_as_the_whole_graph_does():
    network, graph = replace(TINY, node_norm=False), GRAPH._replace(edge_index=np.zeros((0, 2), np.int64))
    whole = ready(LayoutGNN(network), graph)
    np.testing.assert_allclose(predict(whole, graph), predict(wrapped(CUT, network, (graph,)), graph), rtol=1e-5)


def pooled(model, graph):
    with torch.no_grad():
        return model.eval().pooled(model.prepare(graph), torch.arange(len(graph.config_runtime)))


AGREES = replace(TINY, agreement=True, both_directions=True)


@pytest.mark.parametrize("margin, network", [
    (99, AGREES), (99, replace(AGREES, config_attention=True)), (99, replace(AGREES, config_attention="reference")),
    (2, replace(AGREES, agreement=False, node_norm=False)),          # as many hops as graph blocks
    (1, replace(AGREES, graph_blocks=0, node_norm=False)),           # operands and consumers; partners come along
    (1, replace(AGREES, graph_blocks=0, node_norm=False, pool="mean+max"))],
    ids=["all", "attention", "references", "messages", "agreement", "maximum"])
def test_with_all_that_its_nodes_see_a_segment_is_computed_as_in_the_whole_graph(margin, network):
    for seed in range(3):
        graph = drawn_chains(seed, n=30)
        chain = np.stack([np.arange(1, 30), np.arange(29)], axis=1)            # no node is out of reach
        graph = graph._replace(edge_index=np.concatenate([graph.edge_index, chain]))
        whole = ready(LayoutGNN(network), graph)
        cut, bare = (ready(SegmentTraining(LayoutGNN(network), SegmentSettings(7, margin=hops)), graph)
                     for hops in (margin, 0))
        torch.testing.assert_close(pooled(cut, graph), pooled(whole, graph), atol=1e-5, rtol=1e-4)
        assert not torch.allclose(pooled(bare, graph), pooled(whole, graph), atol=1e-5, rtol=1e-4)


def test_a_margin_is_the_neighbours_and_the_partners_of_own_nodes():
    partners = 0
    for seed in range(6):
        graph = drawn_chains(seed, n=40, nc=10)
        graph = graph._replace(meetings=find_meetings(graph))
        ends = [set(pair) for pair in graph.node_config_ids[graph.meetings.ends].tolist()]
        for margin in (0, 1, 2):
            model = SegmentTraining(Lookup(), SegmentSettings(8, margin=margin))
            for start in range(0, 40, 8):
                own = set(range(start, start + 8))
                near = set(k_hop_nodes(graph.edge_index, np.array(sorted(own)), margin).tolist())
                far = set().union(*(pair for pair in ends if pair & own)) if margin else set()
                assert model.with_margin(graph, np.array(sorted(own))).tolist() == sorted(near | far)
                partners += bool(far - near)
    assert partners > 5


def test_what_is_pooled_of_a_segment_are_its_own_nodes():
    graph = drawn_chains(1, n=30)
    model = ready(SegmentTraining(LayoutGNN(AGREES), SegmentSettings(7, margin=1)), graph)
    _, parts, share = model.prepare(graph)
    assert [len(part.counted) for part in parts] == [6] * 5 and share == (0.2,) * 5
    assert all(len(part.numeric) > 6 for part in parts)
    alone = ready(SegmentTraining(LayoutGNN(AGREES), SegmentSettings(30, margin=1)), graph).prepare(graph).parts
    assert [part.counted for part in alone] == [None], "all of them"


def test_meetings_that_a_graph_has_are_its_segments():
    graph = drawn_chains(2, n=30)
    found = find_meetings(graph)
    none = graph._replace(meetings=type(found)(*(part[:0] for part in found)))
    model = ready(SegmentTraining(LayoutGNN(AGREES), SegmentSettings(15)), graph)
    known = graph._replace(meetings=found)
    assert (predict(model, known) == predict(model, graph)).all()
    assert not np.allclose(predict(model, none), predict(model, graph))
    assert len({graph_key(g) for g in (graph, known, none)}) == 3 and graph_key(known) == graph_key(
        drawn_chains(2, n=30)._replace(meetings=find_meetings(graph)))


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


def test_a_maximum_is_taken_over_the_segments_that_count():
    model = SegmentTraining(Lookup("mean+max", width=2), replace(CUT, keep=1.0))
    tensors, index = model.prepare(GRAPH), torch.arange(3)
    every = torch.stack([model.model.pooled(part, index)[:, 0] for part in tensors.parts], dim=1)      # (k, j)
    torch.testing.assert_close(model.eval().pooled(tensors, index)[:, 1], every.amax(dim=1))
    torch.manual_seed(1)
    first = int(torch.randperm(4)[0])
    torch.manual_seed(1)
    torch.testing.assert_close(model.train().pooled(tensors, index)[:, 1], every[:, first])
    for seed in range(20):
        torch.manual_seed(seed)
        pooled = model.pooled(tensors, index)
    torch.testing.assert_close(pooled[:, 1], every.amax(dim=1))


def test_segments_are_at_most_as_large_as_asked():
    graph = drawn_layout(n=50, nc=9)
    for most in (7, 10, 24, 26, 49, 50, 99):
        share = wrapped(SegmentSettings(most)).prepare(graph).share
        sizes = np.rint(np.array(share) * 50)
        assert sizes.max() <= most and sizes.sum() == 50 and len(sizes) == -(-50 // most)
        assert sum(share) == pytest.approx(1)


def values_of(table, tensors, configs=9):
    """What the table holds of a graph's configurations, NaN where it holds nothing; rows of width 1."""
    rows = table.find(tensors, torch.arange(configs))
    return np.array([[np.nan if row is None else row.item() for row in some] for some in rows])


def held_in(table, tensors):
    return ~np.isnan(values_of(table, tensors))


def test_rows_belong_to_a_graph_and_a_configuration_whatever_the_batch():
    graphs = [drawn_layout(seed, n=n, nc=5, c=c) for seed, n, c in ((1, 13, 9), (2, 22, 4))]
    model = SegmentTraining(Lookup(), CUT).train()
    prepared, expected = [model.prepare(graph) for graph in graphs], {}
    rng = np.random.default_rng(0)
    for seed in range(60):
        which = seed % 2
        tensors, index = prepared[which], torch.tensor(rng.integers(0, (9, 4)[which], 6))
        model.model.shift = float(seed)                 # the model has moved on, so that old rows can be told
        torch.manual_seed(seed)
        chosen = int(torch.randperm(len(tensors.parts))[0])
        torch.manual_seed(seed)
        model(tensors, index)
        for config in index.tolist():
            expected[which, config, chosen] = model.model.pooled(tensors.parts[chosen], torch.tensor([config])).item()
        for other, tensors in enumerate(prepared):
            values = values_of(model.table, tensors, (9, 4)[other])
            slow = [[expected.get((other, config, one), np.nan) for one in range(values.shape[1])]
                    for config in range(len(values))]
            np.testing.assert_array_equal(values, slow)
    assert len(expected) > 40 and len(model.table.rows) == len(expected), "a repeated configuration has one row"


def test_preparing_again_finds_the_rows_and_scoring_writes_none():
    model = wrapped()
    step(model, model.prepare(GRAPH), torch.tensor([1, 2, 3]))
    before, used = model.state_dict()["table._extra_state"], len(model.table.rows)
    predict(model, GRAPH)
    predict(model, drawn_layout(5, n=20, nc=4))
    assert used == 3 and torch.equal(model.state_dict()["table._extra_state"], before)
    rows = model.table.find(model.prepare(GRAPH), torch.arange(9))
    assert sum(row is not None for some in rows for row in some) == 3


@pytest.mark.parametrize("field", ["graph_id", "node_feat", "node_opcode", "edge_index", "node_config_ids",
                                   "config_codes", "node_group", "code_rows", "config_runtime"])
def test_graphs_of_the_same_name_and_size_have_rows_of_their_own(field):
    value = getattr(GRAPH, field)
    other = value + "'" if isinstance(value, str) else value.copy()
    if not isinstance(value, str):
        other.flat[-1] += 1
    assert graph_key(GRAPH) == graph_key(drawn_layout(n=13, nc=7, m=30, c=9))
    assert graph_key(GRAPH) != graph_key(GRAPH._replace(**{field: other}))


def test_the_table_is_bounded_and_drops_its_oldest_rows_first():
    model = SegmentTraining(Lookup(), replace(CUT, table_bytes=10 * (2 + ROW_BYTES)))       # ten rows of width 1
    tensors, table = model.prepare(GRAPH), model.table
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
    assert held_in(table, tensors).sum() == 10


def test_a_step_with_more_configurations_than_the_table_has_rows_keeps_as_many_as_fit():
    model = SegmentTraining(Lookup(), replace(CUT, table_bytes=3 * (2 + ROW_BYTES))).train()
    tensors = model.prepare(GRAPH)
    model(tensors, torch.arange(9))
    assert held_in(model.table, tensors).sum() == 3


def test_rows_that_overflow_are_not_kept():
    model = SegmentTraining(Lookup(), CUT)
    tensors = model.prepare(GRAPH)
    model.table.put(tensors, torch.arange(4), 2, torch.tensor([[1.0], [torch.inf], [torch.nan], [65504.0]]))
    assert held_in(model.table, tensors)[:, 2].tolist() == [True, False, False, True] + [False] * 5


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
    graphs = [drawn_layout(seed, n=n, nc=5, c=12) for seed, n in ((1, 13), (2, 22))]
    plan = TrainSettings(steps=12, configs_per_step=5, graphs_per_step=2, validate_every=4, keep="last")
    def run(path):
        model = SegmentTraining(LayoutGNN(ATTENTION), CUT)
        return model, train(model, graphs, plan, valid=graphs[:1], score=kendall_tau, checkpoint=path)
    model, history = run(tmp_path / "whole.pt")
    interrupted(SegmentTraining(LayoutGNN(ATTENTION), CUT), graphs, plan, tmp_path / "killed.pt", after=2)
    resumed, again = run(tmp_path / "killed.pt")
    assert history["step"] == again["step"] == [4, 8, 12]
    assert history["loss"] == again["loss"] and history["score"] == again["score"]
    for (name, value), other in zip(model.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    assert len(model.table.rows) > 20


def test_a_network_of_a_recipe_on_segments_is_the_wrapped_network_and_resumes_bit_for_bit(tmp_path):
    """A shape with the settings of both: the recipes change its seed, its width and how messages are added up."""
    graphs = [drawn_chains(seed, n=30, c=12) for seed in (1, 2)]
    shape = replace(SegmentGNNSettings(**asdict(AGREES), segment_nodes=8), seed=4)
    assert replace(SegmentSettings(8, margin=1), model=shape) == SegmentGNN(shape).settings
    plan = TrainSettings(steps=6, configs_per_step=5, validate_every=2, keep="last")

    def run(model, path):
        return model, train(model, graphs, plan, valid=graphs[:1], score=kendall_tau, checkpoint=path)
    network = replace(AGREES, seed=4)
    model, history = run(SegmentGNN(shape), tmp_path / "whole.pt")
    wrapper, same = run(SegmentTraining(LayoutGNN(network), SegmentSettings(8, margin=1)), tmp_path / "wrapped.pt")
    interrupted(SegmentGNN(shape), graphs, plan, tmp_path / "killed.pt", after=1)
    resumed, again = run(SegmentGNN(shape), tmp_path / "killed.pt")
    assert history["loss"] == same["loss"] == again["loss"] and history["score"] == again["score"]
    for name, value in model.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]) and torch.equal(value, wrapper.state_dict()[name]), name
    with pytest.raises(ValueError, match="expected SegmentGNNSettings"):
        SegmentGNN(network)


def test_a_checkpoint_is_plain_tensors_and_fits_only_the_same_network(tmp_path):
    model = wrapped()
    step(model, model.prepare(GRAPH), torch.tensor([1, 2, 3]))
    save_checkpoint(tmp_path / "one.pt", model)
    other = SegmentTraining(LayoutGNN(TINY), CUT)
    load_checkpoint(tmp_path / "one.pt", other)
    assert (predict(model, GRAPH) == predict(other, GRAPH)).all() and len(other.table.rows) == 3
    assert all(isinstance(value, torch.Tensor) for value in model.state_dict().values())
    with pytest.raises(ValueError, match="holds the weights of another model"):
        load_checkpoint(tmp_path / "one.pt", SegmentTraining(LayoutGNN(replace(TINY, width=16)), CUT))
    assert asdict(model.settings)["model"] == asdict(TINY), "a checkpoint says which network was wrapped"


def test_finetuning_changes_the_head_only_and_sees_every_segment_fresh(tmp_path):
    model = SegmentTraining(LayoutGNN(TINY), CUT)
    plan = TrainSettings(steps=6, configs_per_step=5, keep="last")
    train(model, [GRAPH], plan)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.finetune_head()
    cost, _, grads = step(model, model.prepare(GRAPH), torch.arange(5))
    assert torch.equal(cost, model.eval()(model.prepare(GRAPH), torch.arange(5))), "no dropout, nothing stale"
    assert set(grads) == {"model.head.weight", "model.head.bias"}
    train(model, [GRAPH], plan)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed <= {"model.head.weight", "model.head.bias", "model.set_size"} and "model.head.weight" in changed
    again = SegmentTraining(LayoutGNN(TINY), model.settings)
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in model.parameters()]
    assert all(p.requires_grad for p in SegmentTraining(again.model, CUT).parameters()), "wrapped anew, all learn"


def test_only_the_largest_segment_bounds_how_many_configurations_fit():
    model = wrapped()
    whole = ready(LayoutGNN(TINY), GRAPH)
    assert model.configs_within(model.prepare(GRAPH), 1 << 20) == whole.configs_within(
        whole.prepare(segments(GRAPH, 4)[0]), 1 << 20)


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


def test_what_the_loop_asks_of_a_model_is_answered_by_the_wrapped_one():
    model = SegmentTraining(LayoutGNN(ATTENTION), CUT)
    assert not model.fitted and model.transductive and model.set_size is model.model.set_size
    assert not hasattr(SegmentTraining(Lookup(), CUT), "set_size")


@pytest.mark.parametrize("change, message", [
    (dict(segment_nodes=0), "segment_nodes is 0; expected a whole number of at least 1"),
    (dict(gradient_segments=1.5), "gradient_segments is 1.5; expected a whole number of at least 1"),
    (dict(table_bytes=0), "table_bytes is 0; expected a whole number of at least 1"),
    (dict(margin=-1), "margin is -1; expected a whole number of at least 0"),
    (dict(keep=1.5), "keep is 1.5; expected a share, 0 to 1")])
def test_settings_that_mean_nothing_are_refused(change, message):
    for kind in (SegmentSettings, SegmentGNNSettings):
        if set(change) <= {field.name for field in fields(kind)}:
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                kind(**change)


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


def test_one_segment_of_all_nodes_is_the_graph():
    graph = random_graph(np.random.default_rng(7))
    graph = graph._replace(node_splits=np.unique(graph.node_splits))
    (whole,) = segments(graph, 100)
    used = np.unique(graph.node_group)
    graph = graph._replace(config_codes=graph.config_codes[:, used], meetings=find_meetings(graph))
    assert all(np.array_equal(a, b) for a, b in zip(arrays_of(whole), arrays_of(graph), strict=True))
