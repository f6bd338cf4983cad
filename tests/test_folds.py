"""Families stay together, and no program was in the training of a model that ranks it out of fold."""
import json
import shutil
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from run_folder import World, in_process
from sample import write_sample
from test_relatives import drawn_network, program_of, renumbered
from torch import nn
from training import GRAPHS, GivenData, drawn_layout, drawn_tile, step_of_a_run

import lab.training.plan
import lab.training.relatives
from kit.data import DataError, npz_paths, read_layout, read_tile, target
from kit.ensemble import PRIOR, mean_zscore
from kit.metrics import kendall_tau
from kit.models import ConfigTokenModel, ConfigTokenSettings
from kit.predict import predict
from kit.prune import fewer_configs
from kit.recipes import Recipe
from kit.relatives import families, fold_numbers, nearest_relatives
from kit.relatives.specialists import Specialist, rank_by_relatives
from kit.train import TrainSettings
from lab.predictions import Predictions, earlier_weights, read_predictions
from lab.run import Folder, Run, step_of
from lab.training import Member, correct_by_relatives, in_folds, load_model, train_recipes
from lab.training.members import read_model


@dataclass(frozen=True)
class MemorySettings:
    """A place per program."""
    places: int = 9973
    width: int = 8
    aggregation: str = ""
    seed: int = 0


class Memory(nn.Module):
    """Knows the runtimes of the programs it was trained on, and ranks all others in the opposite order.

    A program also counts as known if it helped to fit the scale of features.
    """
    transductive = False

    def __init__(self, settings=None):
        super().__init__()
        self.settings = settings or MemorySettings()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.register_buffer("known", torch.zeros(self.settings.places, dtype=torch.bool))
        self.register_buffer("fitted", torch.tensor(False))

    def fit_scale(self, graphs):
        for graph in graphs:
            self.known[self.place(graph)] = True
        self.fitted.fill_(True)

    def place(self, graph):
        return zlib.crc32(graph.graph_id.encode()) % self.settings.places

    def prepare(self, graph):
        return self.place(graph), torch.tensor(np.argsort(np.argsort(target(graph), kind="stable")) + 1.0)

    def configs_within(self, tensors, budget):
        return 1000

    def forward(self, tensors, index):
        place, ranks = tensors
        if self.training:
            self.known[place] = True
        return ranks[index] * self.weight * (1 if self.known[place] else -1)


RECIPE = Recipe(Memory, MemorySettings(), TrainSettings(20, 4, validate_every=10))


def tau(cost, graph):
    return kendall_tau(cost, target(graph), strict=True)


# second implementations, slow and obvious

def slow_families(graphs):
    """Grow a family from its first program until no graph outside is tied to one inside."""
    def tied(a, b):
        same = all(np.array_equal(getattr(a, n), getattr(b, n)) for n in (
            "node_opcode", "edge_index", "node_config_ids", "node_feat"))
        return a.graph_id == b.graph_id or same or bool(nearest_relatives(a, [b]) or nearest_relatives(b, [a]))
    left, found = list(graphs), []
    while left:
        family = [left.pop(0)]
        while more := [g for g in left if any(tied(g, member) for member in family)]:
            family += more
            left = [g for g in left if not any(g is one for one in more)]
        found.append({g.graph_id for g in family})
    return found


def drawn_programs(seed, networks=4, each=3):
    """Programs of some networks, in a random order: other batch sizes, names, and numbers of groups and options."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(networks):
        network = drawn_network(rng, groups=int(rng.integers(1, 5)))
        found += [renumbered(program_of(network, rng, c=40, batch=8 << k, name=f"net{number}_{k}"), rng)
                  for k in range(int(rng.integers(1, each + 1)))]
    return [found[i] for i in rng.permutation(len(found))]


@pytest.mark.parametrize("seed", range(3))
def test_families_are_those_of_a_slow_search(seed):
    graphs = drawn_programs(seed)
    found = families(graphs)
    assert sorted(sorted(names) for names in found) == sorted(sorted(names) for names in slow_families(graphs))
    assert sorted(name for names in found for name in names) == sorted(g.graph_id for g in graphs)


def test_a_chain_of_relatives_and_a_program_of_two_collections_are_one_family():
    rng = np.random.default_rng(0)
    network, other = drawn_network(rng, 8), drawn_network(rng, 8)
    # one group in eight is another one: 7 / 8 alike; the ends of the chain are 6 / 8 alike, and less
    chain = [program_of(tuple(kind[:8 - k] + new[8 - k:] for kind, new in zip(network, other)), rng, c=40,
                        name=f"chain{k}") for k in range(4)]
    copy = drawn_layout(7, name="other search")._replace(graph_id="chain3")
    assert families([chain[0], chain[2]]) == [["chain0", "chain2"]] or families([chain[0], chain[3]]) == [
        ["chain0"], ["chain3"]]
    assert [sorted(names) for names in families([*chain, copy, GRAPHS[0]])] == [[g.graph_id for g in chain], ["a"]]
    again = GRAPHS[0]._replace(graph_id="of another name", config_codes=GRAPHS[0].config_codes[::2],
                               config_runtime=GRAPHS[0].config_runtime[::2])
    assert families([GRAPHS[0], GRAPHS[1], again]) == [["a", "of another name"], ["b"]]


def test_kernels_of_a_program_are_one_family():
    kernels = [drawn_tile(k)._replace(graph_id=name) for k, name in enumerate(("bert_32_a1", "bert_32_-b2", "net_a1"))]
    assert families(kernels) == [["bert_32_a1", "bert_32_-b2"], ["net_a1"]]
    assert families([]) == [] and fold_numbers(kernels[:2], 2) == {} and fold_numbers([], 3) == {}


@pytest.mark.parametrize("seed, folds", [(0, 2), (1, 3), (2, 5)])
def test_folds_keep_families_whole_and_are_about_equal(seed, folds):
    graphs = drawn_programs(seed, networks=7)
    graphs += [graphs[0]._replace(config_runtime=graphs[0].config_runtime + 1)]          # in a second collection
    own, number = families(graphs), fold_numbers(graphs, folds)
    assert number.keys() == {g.graph_id for g in graphs}
    assert all(len({number[name] for name in family}) == 1 for family in own)
    sizes = Counter(number[g.graph_id] for g in graphs)
    largest = max(sum(g.graph_id in family for g in graphs) for family in own)
    assert len(sizes) == min(folds, len(own)) and max(sizes.values()) - min(sizes.values()) <= largest
    for graph in graphs:
        others = [g for g in graphs if number[g.graph_id] != number[graph.graph_id]]
        assert others and nearest_relatives(graph, others) == []
    assert number == fold_numbers(graphs, folds)


@pytest.mark.parametrize("folds", [1, 2.0])
def test_a_wrong_number_of_folds_is_an_error(folds):
    with pytest.raises(ValueError, match="folds is .*expected a whole number of at least 2"):
        fold_numbers(GRAPHS, folds)


# --- training in folds

def without_ties(graph):
    """The same program with runtimes that all differ."""
    return graph._replace(config_runtime=100 * graph.config_runtime + np.arange(len(graph.config_runtime)))


TEN = [without_ties(drawn_layout(seed, n=8 + seed, name=f"p{seed}")) for seed in range(10)]
VALID = [without_ties(drawn_layout(seed, name=name)) for seed, name in ((23, "v"), (24, "w"))]
KEY, OTHER = "layout:xla:random", "layout:nlp:random"
STRANGER = drawn_layout(99, name="stranger")._replace(config_runtime=np.full(20, 7))        # nothing to learn from it


def given(valid=VALID, train=(*TEN, STRANGER), **more):
    """Ten programs to train on, and one with nothing to learn from; two to validate and to test on."""
    return GivenData({KEY: {"train": train, "valid": valid, "test": VALID}}, **more)


def trained(folder, folds=None, recipe=RECIPE, data=None, seeds=1):
    """Models of one kind -> Predictions, and the lines that were reported."""
    lines = []
    made = train_recipes(step_of_a_run(folder), data or given(), {KEY: {"memory": recipe}}, seeds, folds=folds,
                         workers=1, report=lines.append)
    return made, lines


def by_split(made, kind="memory", seed=0):
    """{split: {graph_id: cost}} of one model."""
    return {row.split: {i.rpartition(":")[2]: cost for i, cost in row.costs.items()} for row in made.rows
            if (row.kind, row.seed) == (kind, seed)}


@pytest.mark.parametrize("folds", [3, 10])
def test_a_model_that_memorises_knows_no_program_that_it_ranks_out_of_fold(tmp_path, folds):
    number = fold_numbers(TEN, folds)
    made, lines = trained(tmp_path, folds)
    assert lines[0] == f"layout:xla:random: {folds} folds of 10 training programs, families kept together"
    costs = by_split(made)
    assert costs.keys() == {"train", "valid", "test"} and costs["train"].keys() == {g.graph_id for g in TEN}
    assert np.allclose([tau(costs["train"][g.graph_id], g) for g in TEN], -1)
    assert np.allclose([tau(costs[split][g.graph_id], g) for g in VALID for split in ("valid", "test")], -1)
    assert len([*tmp_path.glob("store/*.pt")]) == len(made.trained) == folds
    assert {row.model for row in made.rows} == {""}                      # no single checkpoint gives these costs
    records = [json.loads(path.with_suffix(".json").read_text()) for path in tmp_path.glob("store/*.pt")]
    assert sorted(record["graphs"] for record in records) == sorted(
        10 - count for count in Counter(number.values()).values())
    every = {g.graph_id for g in TEN}
    for member, _ in made.trained:
        assert {*member.left_out} == {name for name in every if number[name] == member.fold}
        assert {g.graph_id for g in member.taught(made.data)} == every - {*member.left_out}
        assert {*member.asked(made.data)[KEY, "train"]} == {f"{KEY}:{name}" for name in member.left_out}


def test_costs_are_means_of_the_models_of_all_folds_and_out_of_fold_of_the_one_that_did_not_see_the_program(tmp_path):
    made, _ = trained(tmp_path, 3, CODES)
    number, costs, store = fold_numbers(TEN, 3), by_split(made), step_of_a_run(tmp_path).store
    models = {member.fold: read_model(store, member, name) for member, name in made.trained}
    for split, graphs in (("train", TEN), ("valid", VALID), ("test", VALID)):
        for graph in graphs:
            parts = [predict(model, graph) for fold, model in models.items()
                     if split != "train" or number[graph.graph_id] == fold]
            assert len(parts) == (1 if split == "train" else 3)
            assert np.allclose(costs[split][graph.graph_id], mean_zscore(parts))


def test_a_last_run_also_ranks_validation_programs_out_of_fold_and_no_other_split_has_them(tmp_path):
    made, lines = trained(tmp_path, 3, data=given(use_valid=True))
    assert lines[0] == "layout:xla:random: 3 folds of 12 training programs, families kept together"
    costs = by_split(made)
    assert costs.keys() == {"train", "test"} and costs["train"].keys() == {g.graph_id for g in [*TEN, *VALID]}
    assert np.allclose([tau(costs["train"][g.graph_id], g) for g in [*TEN, *VALID]], -1)
    assert made.known(KEY).keys() == {f"{KEY}:{g.graph_id}" for g in [*TEN, *VALID]}


def test_without_folds_the_same_model_knows_every_program_and_ranks_none_out_of_fold(tmp_path):
    data = given(valid=[*VALID, *TEN])           # the same programs to rank
    made, lines = trained(tmp_path, data=data)
    family = [TEN[0], *(TEN[0]._replace(graph_id=f"again{k}", config_runtime=TEN[k].config_runtime) for k in (1, 2))]
    one, said = trained(tmp_path, 3, data=given(valid=[*VALID, *family], train=family))
    assert said[0] == "layout:xla:random: all training programs are of one family, so they are not split into folds"
    for found, known in ((made, TEN), (one, family)):
        costs = by_split(found)
        assert costs.keys() == {"valid", "test"} and len(found.trained) == 1
        assert {row.model for row in found.rows} == {found.trained[0][1]}
        assert np.allclose([tau(costs["valid"][g.graph_id], g) for g in known], 1)
        assert np.allclose([tau(costs["valid"][g.graph_id], g) for g in VALID], -1)


def test_one_model_of_two_collections_is_split_by_families_of_both_and_ranks_the_fold_in_both(tmp_path):
    programs = {KEY: TEN[:5], OTHER: [*TEN[5:8], TEN[0]]}               # one program is in both
    data = GivenData({c: {"train": own, "test": VALID} for c, own in programs.items()})
    recipes = {c: {"memory": RECIPE._replace(together=True)} for c in programs}
    made = train_recipes(step_of_a_run(tmp_path), data, recipes, 1, folds=3, workers=1, report=str)
    assert {(row.collection, row.split, row.trains_on) for row in made.rows} == {
        (c, split, (KEY, OTHER)) for c in programs for split in ("train", "test")}
    for row in made.rows:
        graphs = {f"{row.collection}:{g.graph_id}": g
                  for g in (VALID if row.split == "test" else programs[row.collection])}
        assert row.costs.keys() == graphs.keys()
        assert np.allclose([tau(row.costs[i], g) for i, g in graphs.items()], -1)


def test_folds_resume_and_other_folds_train_anew(tmp_path):
    first, lines = trained(tmp_path, 3)
    again, silent = trained(tmp_path, 3)
    assert len(lines) == 1 + 3 * 4 and len(silent) == 1
    assert lines[1].startswith("layout:xla:random, memory, seed 0 fold 0: step ")
    assert [row.split for row in first.rows] == [row.split for row in again.rows] == ["valid", "test", "train"]
    for one, other in zip(first.rows, again.rows):
        assert one.costs.keys() == other.costs.keys()
        assert all(np.array_equal(one.costs[i], other.costs[i]) for i in one.costs)
    assert [h["loss"] for h in first.histories[KEY]["memory"]] == [h["loss"] for h in again.histories[KEY]["memory"]]
    _, lines = trained(tmp_path, 2)
    assert len(lines) == 1 + 2 * 4 and len([*tmp_path.glob("store/*.pt")]) == 3 + 2


def test_members_whose_programs_are_the_same_are_split_alike():
    """The folds of each member, by loops: each program is left out once, with its family."""
    data, lines = given(), []
    members = [Member(kind, seed, RECIPE, (KEY,), (KEY,)) for kind in ("a", "b") for seed in (0, 1)]
    found, number = in_folds(members, data, 3, lines.append), fold_numbers(TEN, 3)
    assert len(lines) == 1 and [one._replace(fold=None, left_out=()) for one in found] == [
        member for member in members for _ in range(3)]
    assert [(one.fold, {*one.left_out}) for one in found] == 4 * [
        (fold, {name for name in number if number[name] == fold}) for fold in range(3)]
    assert found[1].name == "layout:xla:random, a, seed 0 fold 1"


def as_codes(number):
    """A small model that learns."""
    from test_add_a_model import CodeTable, CodeTableSettings
    return Recipe(CodeTable, CodeTableSettings(), TrainSettings(number, 8, learning_rate=1.0))


CODES = as_codes(20)


# --- relatives

def half_known(graph, graphs, base):
    """Other configurations of `v` are known where p0 is trained on; a relative of `w` where p1 is."""
    names = [g.graph_id for g in graphs]
    assert graph.graph_id not in names
    if graph.graph_id == "v" and "p0" in names:
        return Specialist(-base(graph), ["p0"], True, {"codes": 1.0})
    if graph.graph_id == ("v" if "p0" not in names else "w") and "p1" in names:
        return Specialist(2 * base(graph) + 1, ["p1"], False, {"base": 0.5, "trees": 0.5})
    return None


def test_specialists_never_see_the_fold_and_are_combined(tmp_path, monkeypatch):
    monkeypatch.setattr(lab.training.relatives, "rank_by_relatives", half_known)
    made, _ = trained(tmp_path, 3, CODES)
    before = by_split(made)
    made.add("other", lambda graphs: lambda graph: np.arange(20.0))
    correct_by_relatives(step_of_a_run(tmp_path), made, "memory", 1, str)
    number, parts = fold_numbers(TEN, 3), []
    assert (number["p0"], number["p1"]) == (0, 1)
    for fold in range(3):                        # the same models, without a word of folds
        part = given(train=[g for g in TEN if number[g.graph_id] != fold])
        parts.append(by_split(trained(tmp_path / f"{fold}", None, CODES, part)[0]))
    found, other = (by_split(made, kind) for kind in ("memory", "other"))
    for split in ("valid", "test"):
        v, w = ([part[split][name] for part in parts] for name in "vw")
        assert np.allclose(before[split]["v"], mean_zscore(v), atol=1e-12)
        known = mean_zscore([-v[1], -v[2]])                              # p0 is in fold 0
        assert all(np.allclose(one[split]["v"], known) for one in (found, other))
        # fold 2 alone has a relative of it, and the other two say what their base says
        assert np.allclose(found[split]["w"], mean_zscore([w[0], w[1], 2 * w[2] + 1]))
        assert np.allclose(other[split]["w"], mean_zscore([np.arange(20)]))
    assert all(np.array_equal(found["train"][i], cost) for i, cost in before["train"].items())
    for row in made.rows:
        assert [i.rpartition(":")[2] for i in row.specialists] == (
            [] if row.split == "train" else ["v", "w"] if row.kind == "memory" else ["v"])


def correct(folder, made, workers=1):
    """The same Predictions with relatives, from the store in `folder`."""
    found = Predictions(made.data, made.rows, made.folds)
    found.trained = made.trained
    correct_by_relatives(step_of_a_run(folder), found, "memory", workers, str)
    return found


def related_data(rng):
    """Two networks to learn from. To test on: one with another batch size, one with other configurations, another."""
    one, two, three = (drawn_network(rng) for _ in range(3))
    train = [program_of(network, rng, c=40, name=name) for network, name in ((one, "one"), (two, "two"))]
    near, far = (program_of(network, rng, c=30, batch=64, name=name)
                 for network, name in ((one, "near"), (three, "far")))
    pick = rng.permutation(40)
    parts = [train[1]._replace(config_codes=train[1].config_codes[rows], config_runtime=train[1].config_runtime[rows])
             for rows in (pick[:25], pick[25:])]
    return GivenData({KEY: {"train": [train[0], parts[0]],
                            "test": [near, far, parts[1]._replace(graph_id="same")]}})


TOKEN = Recipe(ConfigTokenModel, ConfigTokenSettings(width=4, token_width=4, graph_blocks=0), TrainSettings(4, 8))


def test_relatives_are_what_the_nearest_programs_of_the_same_member_say(tmp_path, monkeypatch):
    data, run = related_data(np.random.default_rng(0)), step_of_a_run(tmp_path)
    plain, _ = trained(tmp_path, None, TOKEN, data, seeds=2)
    plain.add("other", lambda graphs: lambda graph: np.arange(len(graph.config_runtime)))
    made = correct(tmp_path, plain)
    assert [(row.kind, row.seed, row.split) for row in made.rows] == [
        ("memory", 0, "test"), ("memory", 1, "test"), ("other", 0, "test")]
    graphs = {g.graph_id: g for g in data.test[KEY]}
    for seed in (0, 1):
        model = load_model(run, plain, "memory", KEY, seed)
        slow = {name: rank_by_relatives(g, data.train[KEY], partial(predict, model)) for name, g in graphs.items()}
        assert {name: one and one.same for name, one in slow.items()} == {"near": False, "far": None, "same": True}
        found, was = (by_split(one, "memory", seed)["test"] for one in (made, plain))
        assert np.array_equal(found["near"], slow["near"].cost)
        assert np.array_equal(found["far"], was["far"]) and not np.array_equal(found["near"], was["near"])
    # of the same program, all models of all seeds say what one specialist says, here the last
    assert all(np.array_equal(row.costs[f"{KEY}:same"], slow["same"].cost) for row in made.rows)
    assert np.array_equal(by_split(made, "other")["test"]["near"], np.arange(30))
    assert {(row.kind, *(i.rpartition(":")[2] for i in row.specialists)) for row in made.rows} == {
        ("memory", "near", "same"), ("other", "same")}
    monkeypatch.setattr(lab.training.relatives, "rank_by_relatives", None)
    again = correct(tmp_path, plain)                                     # from the store
    assert all(np.array_equal(one.costs[i], other.costs[i])
               for one, other in zip(made.rows, again.rows, strict=True) for i in one.costs)


@pytest.mark.long
def test_relatives_are_the_same_whatever_the_number_of_processes(tmp_path):
    plain, _ = trained(tmp_path / "1", None, TOKEN, related_data(np.random.default_rng(0)), seeds=2)
    shutil.copytree(tmp_path / "1", tmp_path / "2")
    one, two = (correct(tmp_path / str(workers), plain, workers) for workers in (1, 2))
    assert [row.kind for row in two.rows] == ["memory", "memory"]
    assert all(row.costs[i].tobytes() == other.costs[i].tobytes()
               for row, other in zip(one.rows, two.rows, strict=True) for i in row.costs)


def test_without_a_relative_nothing_changes(tmp_path):
    plain, _ = trained(tmp_path, None, CODES)
    made = correct(tmp_path, plain)
    assert made.rows == plain.rows and [row.kind for row in made.rows] == ["memory"] * 2
    correct_by_relatives(step_of_a_run(tmp_path), made, "token", 1, str)                   # there is no such model
    assert made.rows == plain.rows


# --- files of a run, and weights

def test_out_of_fold_predictions_are_read_beside_the_others(tmp_path, tiny_sample_prepared):
    run = Run("04_train_layout", tiny_sample_prepared, tmp_path, collections=[KEY])
    data, rng = run.data(k_hops=1), np.random.default_rng(0)
    costs = {split: {i: rng.random(len(g.config_runtime)) for i, g in data.named(KEY, split).items()}
             for split in ("valid", "test", "train")}
    costs["train"] = {i: cost for i, cost in costs["train"].items() if i not in costs["valid"]}
    made = Predictions(data)
    made.put(KEY, "mine", 0, costs, trains_on=(KEY,))
    made.put(KEY, "late", 0, {"train": costs["train"]})                                    # no other splits
    run.publish(made, use_valid=False)
    found = read_predictions(run, run.data())
    assert [(row.member, row.split, row.trains_on) for row in found.rows] == [
        ("mine_seed0", split, (KEY,)) for split in ("valid", "test", "train")]
    for row in found.rows:
        assert row.costs.keys() == costs[row.split].keys()
        assert all(np.array_equal(cost, costs[row.split][i]) for i, cost in row.costs.items())
    known, source = found.known(KEY), tiny_sample_prepared.parent / "data" / "npz"
    files = {f"{KEY}:{path.stem}": path for split in ("train", "valid") for path in npz_paths(source, KEY, split)}
    assert known.keys() == files.keys() and all(
        np.array_equal(read_layout(path).config_runtime, known[i]) for i, path in files.items())
    first = [*costs["train"]][0]
    made.rows = [row._replace(costs={first: row.costs[first]}) if row.split == "train" else row for row in made.rows]
    assert made.known(KEY).keys() == {first}                             # "late" has ranked no validation graph


@pytest.fixture(scope="module")
def tiny_sample_prepared(tmp_path_factory):
    """The prepared tiny sample; the files are beside it, in data/npz."""
    from kit.prepare import prepare
    root = write_sample(tmp_path_factory.mktemp("folds") / "data")
    return prepare(root, root.parents[1] / "prepared", [KEY]).folder


def test_weights_of_an_earlier_run_are_read_for_the_kinds_that_are_there(tmp_path, monkeypatch):
    path = tmp_path / "weights.json"
    path.write_text(json.dumps({KEY: {"token": 0.6, "gnn": 0.2, "relatives": 0.2}}))
    assert earlier_weights(path, KEY, ["gnn", "token", "mine"]) == pytest.approx({"gnn": .25, "token": .75, "mine": 0})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert earlier_weights("~/weights.json", KEY, ["gnn"]) == {"gnn": 1}
    for text in ("", "[1]", json.dumps({KEY: {"token": -1}}), json.dumps({KEY: {"other": 1}})):
        path.write_text(text)
        with pytest.raises(DataError, match="has no weights of token, gnn for layout:xla:random; expected the weights"):
            earlier_weights(path, KEY, ["token", "gnn"])
    with pytest.raises(DataError, match="no weights of token for layout:xla:random"):
        earlier_weights(tmp_path / "none", KEY, ["token"])


# --- the notebooks

class Folded(World):
    """A run whose predictions and graphs can be asked for."""

    def costs(self, collection, member, split="train", out="out"):
        """What a member says of a split; {} if it was not asked."""
        folder, found = Folder(self.place / out, self.place / out), {}
        for one in folder.record(step_of(collection))["sections"][collection]["costs"]:
            found |= folder.store.read(one["file"]) if (one["member"], one["split"]) == (member, split) else {}
        return found

    def graph(self, about):
        """The graph of an ID, whatever its split, with as many configurations as it has."""
        collection, _, stem = about.rpartition(":")
        (path,) = [path for path in self.sources(collection) if path.stem == stem]
        return (read_tile if collection == "tile:xla" else read_layout)(path)


@pytest.fixture
def memory_world(tmp_path, monkeypatch):
    """A data set with two programs of kernels, and notebooks whose every model memorises."""
    monkeypatch.setattr(lab.training.plan, "recipes_for", lambda collection, *_: dict.fromkeys(
        ("tile",) if collection == TILE else ("token", "gnn"), RECIPE._replace(seeds=1)))
    with in_process():
        world = Folded(tmp_path / "folds")
        for k, path in enumerate(world.sources("tile:xla")):
            if path.parent.name != "test":                       # their names are the data set's
                path.rename(path.with_name(f"program{k % 2}_{path.name}"))
        yield world


LONG = {"tile.steps": 20, "token.steps": 20, "gnn.steps": 20}
TILE, LAYOUT = "tile:xla", "layout:nlp:random"


@pytest.mark.long
@pytest.mark.parametrize("use_valid", [False, True])
def test_notebooks_rank_out_of_fold_what_no_model_was_trained_on(memory_world, use_valid):
    world, out = memory_world, f"out{use_valid}"
    assert world.run(folds=2, use_valid=use_valid, out=out, **LONG) == 0, world.said
    for collection, name in ((TILE, "tile_seed0"), (LAYOUT, "token_seed0")):
        splits = ("train", "valid") if use_valid else ("train",)
        costs = world.costs(collection, name, out=out)
        assert costs.keys() == {f"{collection}:{p.stem}" for s in splits for p in world.sources(collection, s)}
        for about, cost in costs.items():
            graph = world.graph(about)
            graph = graph if collection == TILE else fewer_configs(graph, len(cost))
            assert kendall_tau(cost, target(graph)) < -0.99, about
        assert bool(world.costs(collection, name, "valid", out)) != use_valid
        known = len(costs) + len(world.costs(collection, name, "valid", out))
        assert f"{collection}: {known} graphs with known runtimes" in world.said
    entry = json.loads((world.place / f"{out}.json").read_text())
    assert entry["parameters"]["04_train_layout"]["folds"] == 2
    assert bool(entry["validation"]) != use_valid
    page = (world.place / out / "report.html").read_text()
    assert ("trained on the validation graphs, too" in page) == use_valid


@pytest.mark.long
def test_the_last_run_trains_on_validation_graphs_and_takes_the_weights_of_an_earlier_run(tmp_path):
    with in_process():
        world = Folded(tmp_path / "world")
        assert world.run() == 0, world.said
        weights = world.place / "out" / "weights.json"
        kept = json.loads(weights.read_text())
        assert world.run(use_valid=True, out="last") == 0, world.said
        assert world.said.count(": 0 graphs with known runtimes") == 2
        prior = json.loads((world.place / "last" / "weights.json").read_text())[LAYOUT]
        assert prior == pytest.approx({kind: PRIOR[kind] / sum(PRIOR[one] for one in prior) for kind in prior})
        records = [json.loads(path.with_suffix(".json").read_text())
                   for path in (world.place / "last" / "store").glob("*.pt")]
        splits = {c: sum(len(world.sources(c, s)) for s in ("train", "valid")) for c in (TILE, LAYOUT)}
        assert {record["graphs"] for record in records} == {*splits.values()}
        assert all(np.isnan([np.nan if s is None else s for s in record["curve"]["score"]]).all() for record in records)
        assert world.costs(TILE, "tile_seed0", "valid", "last") == {}
        kept[LAYOUT] = {"gnn": 0.75, "token": 0.25}
        weights.write_text(json.dumps(kept))
        assert world.run(use_valid=True, out="last", weights_from=str(weights)) == 0, world.said
        assert " 75.0% gnn, alone nan" in world.said and " 25.0% token" in world.said, world.said
        assert json.loads((world.place / "last" / "weights.json").read_text())[TILE] == kept[TILE]
        entry = json.loads((world.place / "last.json").read_text())
        assert entry["validation"] == {} and entry["parameters"]["04_train_layout"]["use_valid"] is True
