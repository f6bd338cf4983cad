"""Families stay together, and no program was in the training of a model that ranks it out of fold."""
import json
import zlib
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from run_folder import FULL, World, in_process
from sample import write_sample
from test_relatives import drawn_network, program_of, renumbered
from torch import nn
from training import GRAPHS, drawn_layout, drawn_tile, step_of_a_run

import kit.recipes
from kit.data import DataError, npz_paths, read_layout, read_tile, target
from kit.ensemble import mean_zscore
from kit.metrics import kendall_tau
from kit.prune import fewer_configs
from kit.recipes import Recipe
from kit.relatives import families, fold_numbers, nearest_relatives
from kit.relatives.specialists import Specialist
from kit.train import TrainSettings
from lab.data import runtimes_of
from lab.run import Folder, Prediction, Run
from lab.run.folder import step_of
from lab.run.gather import gather_predictions, read_weights
from lab.run.members import Material, Member, in_folds, train_members, without_fold


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
KEY = ("layout:xla:random",)


def material():
    """Ten programs to train on, also asked for out of fold, with one that is not trained on; two to validate on."""
    ranked = {"train": {f"x:{g.graph_id}": g for g in [*TEN, drawn_layout(99, name="stranger")]},
              "held out": {f"x {k}": g for k, g in enumerate(TEN)},
              **{split: {f"x:{g.graph_id}": g for g in VALID} for split in ("valid", "test")}}
    return Material(TEN, VALID, kendall_tau, ranked)


def trained(folder, number=None, ranks=("train", "held out", "valid", "test"), recipe=RECIPE, **more):
    """One member of the material -> its Trained, and the lines that were reported."""
    materials, lines = {KEY: material()}, []
    if number is not None:
        materials = in_folds(materials, {KEY: number}, lines.append)
    member = Member(KEY, "memory", 0, recipe, ranks, **more)
    return train_members([member], materials, step_of_a_run(folder), 1, report=lines.append)[0], lines


@pytest.mark.parametrize("folds", [3, 10])
def test_a_model_that_memorises_knows_no_program_that_it_ranks_out_of_fold(tmp_path, folds):
    number = fold_numbers(TEN, folds)
    one, lines = trained(tmp_path, number)
    assert lines[0] == f"layout:xla:random: {folds} folds of 10 training programs, families kept together"
    assert list(one.costs["train"]) == [f"x:{g.graph_id}" for g in TEN]
    assert np.allclose([tau(one.costs["train"][f"x:{g.graph_id}"], g) for g in TEN], -1)
    # other configurations of a program are ranked by the models of the other folds
    assert np.allclose([tau(cost, g) for cost, g in zip(one.costs["held out"].values(), TEN)], 1)
    assert np.allclose([tau(one.costs[split][f"x:{g.graph_id}"], g) for g in VALID for split in ("valid", "test")], -1)
    assert len([*tmp_path.glob("store/*.pt")]) == folds
    records = [json.loads(path.with_suffix(".json").read_text()) for path in tmp_path.glob("store/*.pt")]
    assert sorted(record["graphs"] for record in records) == sorted(
        10 - count for count in Counter(number.values()).values())


def test_without_folds_the_same_model_knows_every_program_and_ranks_none_out_of_fold(tmp_path):
    for number in (None, {}):
        one, lines = trained(tmp_path, number)
        assert one.costs["train"] == {}
        assert np.allclose([tau(c, g) for c, g in zip(one.costs["held out"].values(), TEN)], 1)
    assert lines[0] == ("layout:xla:random: all training programs are of one family, so they are not split into folds")
    number = fold_numbers(TEN, 2)
    baseline, _ = trained(tmp_path, number, ranks=("held out", "test"))                 # not asked for "train"
    assert baseline.costs.keys() == {"held out", "test"} and baseline.model
    assert np.allclose([tau(c, g) for c, g in zip(baseline.costs["held out"].values(), TEN)], 1)


def test_folds_resume_and_other_folds_train_anew(tmp_path):
    number = fold_numbers(TEN, 3)
    first, lines = trained(tmp_path, number)
    again, silent = trained(tmp_path, number)
    assert len(lines) == 1 + 3 * 2 and len(silent) == 1
    assert lines[1].startswith("layout:xla:random, memory, seed 0 fold 0: step ")
    for name in first.costs:
        assert first.costs[name].keys() == again.costs[name].keys()
        assert all(np.array_equal(first.costs[name][i], again.costs[name][i]) for i in first.costs[name])
    assert first.history["loss"] == again.history["loss"]
    _, lines = trained(tmp_path, {name: (fold + 1) % 3 if name != "p0" else fold for name, fold in number.items()})
    assert len(lines) > 1
    assert len([*tmp_path.glob("store/*.pt")]) > 3


def as_codes(number):
    """A small model that learns."""
    from test_add_a_model import CodeTable, CodeTableSettings
    return Recipe(CodeTable, CodeTableSettings(), TrainSettings(number, 8, validate_every=10, learning_rate=1.0))


CODES = as_codes(20)


def half_known(graph, graphs, base):
    """Other configurations of `v` are known where p0 is trained on; a relative of `w` where p1 is."""
    names = [g.graph_id for g in graphs]
    assert graph.graph_id not in names
    if graph.graph_id == "v" and "p0" in names:
        return Specialist(-base(graph), ["p0"], True, {"codes": 1.0})
    if graph.graph_id == ("v" if "p0" not in names else "w") and "p1" in names:
        return Specialist(2 * base(graph) + 1, ["p1"], False, {"base": 0.5, "trees": 0.5})
    return None


def test_specialists_never_see_the_fold_and_are_combined(tmp_path):
    number = {g.graph_id: k % 3 for k, g in enumerate(TEN)}
    one, _ = trained(tmp_path, number, correct=half_known, recipe=CODES)
    assert one.corrected["train"] == {}
    parts = []
    for fold in range(3):
        part = without_fold(in_folds({KEY: material()}, {KEY: number}, str)[KEY], fold)
        member = Member(KEY, "memory", 0, CODES, ("valid",))
        costs = train_members([member], {KEY: part._replace(folds={})}, step_of_a_run(tmp_path / f"{fold}"), 1,
                              report=str)[0].costs["valid"]
        parts.append(costs)
    assert np.allclose(one.costs["valid"]["x:v"], mean_zscore([part["x:v"] for part in parts]), atol=1e-12)
    v, w = one.corrected["valid"]["x:v"], one.corrected["valid"]["x:w"]
    assert v.same
    assert np.allclose(v.cost, mean_zscore([-parts[1]["x:v"], -parts[2]["x:v"]]))         # p0 is in fold 0
    assert not w.same
    assert np.allclose(w.cost, one.costs["valid"]["x:w"])                # as the base, with other scales and shifts


# --- files of a run, and weights

def test_out_of_fold_predictions_are_read_beside_the_others(tmp_path, tiny_sample_prepared):
    root, collection = tiny_sample_prepared, KEY[0]
    graphs = {split: [read_layout(p) for p in npz_paths(root.parent / "npz", collection, split)]
              for split in ("train", "valid", "test")}
    run = Run("04_train_layout", root, tmp_path, collections=[collection])
    costs = {split: {f"{collection}:{g.graph_id}": np.arange(min(30, len(g.config_codes)) if split != "test"
                                                             else len(g.config_codes)) for g in some}
             for split, some in graphs.items()}
    run.publish([*(Prediction(collection, "mine_seed0", split, own) for split, own in costs.items()),
                 Prediction(collection, "late_seed0", "train", costs["train"])], use_valid=True)      # no other splits
    found = gather_predictions(run)
    assert {key[2]: [*members] for key, members in found.items() if key[0] == "predictions"} == {
        "valid": ["mine_seed0"], "test": ["mine_seed0"], "train": ["mine_seed0"]}
    known = runtimes_of(root, collection, ("valid", "train"), found["predictions", collection, "train"].values())
    expected = {f"{collection}:{g.graph_id}": fewer_configs(g, 30).config_runtime for g in graphs["train"]}
    assert known.keys() == expected.keys() and all(np.array_equal(known[i], t) for i, t in expected.items())
    assert runtimes_of(root, collection, ("train",), []) == {}
    few = {i: cost[:-1] for i, cost in found["predictions", collection, "train"]["mine_seed0"].items()}
    assert runtimes_of(root, collection, ("train",), [few, {i: few[i] for i in [*few][:2]}]).keys() == {*[*few][:2]}


@pytest.fixture(scope="module")
def tiny_sample_prepared(tmp_path_factory):
    """The prepared tiny sample; the files are beside it."""
    from kit.prepare import prepare
    root = write_sample(tmp_path_factory.mktemp("folds") / "data")
    return prepare(root, root.parent / "prepared", [KEY[0]]).folder


def test_weights_of_an_earlier_run_are_read_for_the_kinds_that_are_there(tmp_path, monkeypatch):
    path = tmp_path / "weights.json"
    path.write_text(json.dumps({KEY[0]: {"token": 0.6, "gnn": 0.2, "relatives": 0.2}}))
    assert read_weights(path, KEY[0], ["gnn", "token", "mine"]) == pytest.approx({"gnn": .25, "token": .75, "mine": 0})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_weights("~/weights.json", KEY[0], ["gnn"]) == {"gnn": 1}
    for text in ("", "[1]", json.dumps({KEY[0]: {"token": -1}}), json.dumps({KEY[0]: {"other": 1}})):
        path.write_text(text)
        with pytest.raises(DataError, match="has no weights of token, gnn for layout:xla:random; expected the weights"):
            read_weights(path, KEY[0], ["token", "gnn"])
    with pytest.raises(DataError, match="no weights of token for layout:xla:random"):
        read_weights(tmp_path / "none", KEY[0], ["token"])


# --- the notebooks

class Folded(World):
    """A run whose notebooks also take the settings of this file."""

    def _declared(self, args):
        only = args[args.index("--only") + 1] if "--only" in args else FULL[1]
        own = {"03": ("folds", "use_valid"), "04": ("folds", "use_valid"), "05": ("weights_from", "choose")}
        return super()._declared(args) | {name for number in only.split(",") for name in own.get(number, ())}

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
    monkeypatch.setattr(kit.recipes, "recipes_for", lambda collection, *_: {
        "tile" if collection == "tile:xla" else "token": replaced(RECIPE)})
    with in_process():
        world = Folded(tmp_path / "folds")
        for k, path in enumerate(world.sources("tile:xla")):
            if path.parent.name != "test":                       # their names are the data set's
                path.rename(path.with_name(f"program{k % 2}_{path.name}"))
        yield world


def replaced(recipe):
    return recipe._replace(settings=replace(recipe.settings, steps=20), seeds=1)


LONG = {"steps": 20, "token_steps": 20}
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
        assert (f"{collection}: chosen by {len(costs)} out-of-fold training graphs" in world.said) == use_valid
        assert (f"validation graphs and {len(costs)} out-of-fold training graphs" in world.said) != use_valid
    entry = json.loads((world.place / f"{out}.json").read_text())
    assert entry["parameters"]["04_train_layout"]["folds"] == 2
    assert bool(entry["validation"]) != use_valid
    page = (world.place / out / "report.html").read_text()
    assert ("trained on the validation graphs, too" in page) == use_valid
    assert ("their scores would mean nothing" in world.said) == use_valid


@pytest.mark.long
def test_the_last_run_trains_on_validation_graphs_and_takes_the_weights_of_an_earlier_run(tmp_path):
    with in_process():
        world = Folded(tmp_path / "world")
        assert world.run() == 0, world.said
        weights = world.place / "out" / "weights.json"
        kept = json.loads(weights.read_text())
        assert world.run(use_valid=True, out="last") == 0, world.said
        assert world.said.count("prior weights") == 2 and "validation graphs\n" not in world.said
        records = [json.loads(path.with_suffix(".json").read_text())
                   for path in (world.place / "last" / "store").glob("*.pt")]
        splits = {c: sum(len(world.sources(c, s)) for s in ("train", "valid")) for c in (TILE, LAYOUT)}
        assert {record["graphs"] for record in records} == {*splits.values()}
        assert all(np.isnan([np.nan if s is None else s for s in record["curve"]["score"]]).all() for record in records)
        assert world.costs(TILE, "tile_seed0", "valid", "last") == {}
        kept[LAYOUT] = {"gnn": 0.75, "token": 0.25}
        weights.write_text(json.dumps(kept))
        assert world.run(use_valid=True, out="last", weights_from=str(weights)) == 0, world.said
        assert world.said.count(f"weights of {weights}") == 2 and "75.0% gnn" in world.said, world.said
        entry = json.loads((world.place / "last.json").read_text())
        assert entry["validation"] == {} and entry["parameters"]["04_train_layout"]["use_valid"] is True
