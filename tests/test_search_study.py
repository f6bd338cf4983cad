"""A study of searches: against plain loops, kept piece by piece, and the same after a kill as in one go."""
from pathlib import Path

import numpy as np
import pytest
import torch

import lab.studies.search_study
from kit.data import npz_paths, read_layout
from kit.models import ConfigTokenModel, ConfigTokenSettings, explain
from kit.prune import drop_duplicate_configs, prune
from kit.search.droplet_search import droplet, explore_then_droplet
from kit.search.gradient import gradient_search, on_codes, relaxed_token_cost
from kit.search.rows import search_rows
from kit.search.strategies import annealing, genetic, guided, random_search
from lab.run import Store
from lab.sample.write import write_sample
from lab.studies.search_spaces import best_known, default_codes, open_space, search_space, simulated_runtime
from lab.studies.search_study import WITH_MODEL, WITHOUT_MODEL, study_reasons, study_rows, study_searches

BUDGETS, QUERIES = [2, 7, 20], 60


def token_model(seed=0):
    return ConfigTokenModel(ConfigTokenSettings(width=4, token_width=4, seed=seed))


def open_spaces(root, seed=0):
    """The same program of two collections, with a model each, whose weights are far from equal costs."""
    spaces = []
    for place, collection in enumerate(("layout:xla:random", "layout:xla:default")):
        graph, model = read_layout(npz_paths(root, collection, "test")[0]), token_model(seed + place)
        model.fit_scale([graph])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(place))
        spaces.append(open_space(collection, graph, model))
    return spaces


def study(root, out, budgets=(2, 5), seeds=3, queries=40):
    """A small study."""
    torch.set_num_threads(1)
    return study_searches(open_spaces(root), budgets, seeds, queries, Store(Path(out, "store")))


def same(one, other):
    return list(one) == list(other) and all(one[name].tobytes() == other[name].tobytes() for name in one)


def kept_files(out):
    return {p.name: p.read_bytes() for p in Path(out, "store").glob("*")}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_sample(tmp_path_factory.mktemp("study") / "sample-tiny", size="tiny")


@pytest.fixture(scope="module")
def whole(root, tmp_path_factory):
    """(what an uninterrupted study found, its folder)."""
    out = tmp_path_factory.mktemp("whole")
    return study(root, out), out


def test_a_study_finds_what_each_search_called_by_itself_finds(root, tmp_path, monkeypatch):
    assert lab.studies.search_study.MOST_REMEMBERED == 300
    monkeypatch.setattr(lab.studies.search_study, "MOST_REMEMBERED", 19)
    spaces = open_spaces(root)
    found = study_searches(spaces, BUDGETS, 2, QUERIES, Store(tmp_path / "store"))
    assert list(found) == [*WITHOUT_MODEL, *WITH_MODEL]
    for place, collection in enumerate(("layout:xla:random", "layout:xla:default")):
        graph, space = read_layout(npz_paths(root, collection, "test")[0]), spaces[place]
        truth, dims, cost = simulated_runtime(graph), search_space(graph), on_codes(space.relaxed, space.dims)
        rows = np.array(list(dict.fromkeys(map(tuple, graph.config_codes.tolist()))))
        by_model = truth(rows[np.argsort(cost(rows), kind="stable")])
        assert space.default == truth(default_codes(graph)[None])[0]
        for seed in range(2):
            proposed = genetic(cost, dims, QUERIES, np.random.default_rng([seed, 1]))
            walked = gradient_search(cost, dims, QUERIES, np.random.default_rng([seed, 2]), relaxed=space.relaxed,
                                     queries=2 * QUERIES // 3)
            assert walked.queries + walked.measurements <= QUERIES
            once, walks = ({"model": cost, "queries": QUERIES, "strategy": lambda *_, found=one: found}
                           for one in (proposed, walked))
            for b, budget in enumerate(BUDGETS):
                def run(search, stream=0, budget=budget, seed=seed, truth=truth, dims=dims, **options):
                    return search(truth, dims, budget, np.random.default_rng([seed, stream]), **options)
                alone = {"random": run(random_search), "annealing": run(annealing), "genetic": run(genetic),
                         "droplet": run(droplet), "explore then droplet": run(explore_then_droplet),
                         "model, genetic": run(guided, **once),
                         "model, gradient": run(gradient_search, 2, relaxed=space.relaxed, queries=2 * QUERIES // 3),
                         "model, explore then droplet": run(explore_then_droplet, **walks)}
                expected = {name: [r.best_cost, r.measurements, r.queries] for name, r in alone.items()}
                expected["model, gradient"][2] += walked.measurements       # of the model, as a strategy
                expected["model's best rows"] = [by_model[:budget].min(), min(budget, len(rows)), len(rows)]
                for name, numbers in expected.items():
                    if budget > 19 and name.endswith("explore then droplet"):
                        numbers = [np.nan] * 3
                    assert found[name][:, seed, place, b].tolist() == pytest.approx(numbers, rel=0, nan_ok=True), name


def test_the_relaxed_cost_of_a_space_is_that_of_the_pruned_graph(root):
    graph, model = read_layout(npz_paths(root, "layout:xla:random", "test")[0]), token_model()
    model.fit_scale([graph])
    space, points = open_space("layout:xla:random", graph, model, k_hops=0), graph.config_codes[:9].astype(np.int64)
    relaxed = relaxed_token_cost(model, model.prepare(prune(graph, 0)))
    assert (on_codes(space.relaxed, space.dims)(points) == on_codes(relaxed, space.dims)(points)).all()


def test_the_best_known_is_the_best_of_all_of_a_small_space(root):
    space = open_spaces(root)[0]
    shape = [int(n) for n in space.dims]
    every = np.stack(np.unravel_index(np.arange(np.prod(shape)), shape), axis=1)
    runtime = space.truth(every)
    assert best_known(space, 100) == runtime.min()
    larger = space._replace(dims=np.array([*shape, *[9] * 6]), truth=lambda points: space.truth(points[:, :len(shape)]))
    assert runtime.min() <= best_known(larger, 300) < np.quantile(runtime, 0.05)


@pytest.mark.parametrize("stop_at", [1, 4])
def test_a_study_that_broke_off_goes_on_to_the_same_result(whole, root, tmp_path, monkeypatch, stop_at):
    found, folder = whole
    searched, stop = [], stop_at

    def counted(*args, make=lab.studies.search_study._search_guided):
        searched.append((args[0].collection, args[2]))
        if len(searched) == stop:
            raise KeyboardInterrupt
        return make(*args)
    monkeypatch.setattr(lab.studies.search_study, "_search_guided", counted)
    with pytest.raises(KeyboardInterrupt):
        study(root, tmp_path)
    stop = None
    assert same(study(root, tmp_path), found)
    assert len(searched) == 2 * 3 + 1 and len(set(searched)) == 2 * 3, "only what broke off was searched twice"
    assert kept_files(tmp_path) == kept_files(folder)
    assert same(study(root, tmp_path), found) and len(searched) == 2 * 3 + 1, "nothing was left to search"


def test_more_seeds_and_a_second_collection_add_to_what_is_there(whole, root, tmp_path, monkeypatch):
    found, folder = whole
    assert len(kept_files(folder)) == 3 * 3            # searches without a model are those of both collections
    first = study(root, tmp_path, seeds=1)
    assert all((first[name] == found[name][:, :1]).all() for name in found)
    seeds = []
    monkeypatch.setattr(lab.studies.search_study, "_search_free",
                        lambda *args, make=lab.studies.search_study._search_free: seeds.append(args[2]) or make(*args))
    assert same(study(root, tmp_path), found) and seeds == [1, 2]


def test_whatever_decides_over_a_result_gives_another_file(root, tmp_path):
    graph, model = read_layout(npz_paths(root, "layout:xla:random", "test")[0]), token_model()
    model.fit_scale([graph])

    def files(graph=graph, model=model, k_hops=1, **change):
        space = open_space("layout:xla:random", graph, model, k_hops)
        before = set(kept_files(tmp_path))
        more = {"budgets": [2], "seeds": 1, "queries": 4} | change
        study_searches([space], store=Store(tmp_path / "store"), **more)
        return sorted(name.split("-")[0] for name in set(kept_files(tmp_path)) - before)
    assert files() == ["free", "guided"] and files() == []
    assert files(budgets=[3]) == files(budgets=[2, 3]) == files(seeds=2) == ["free", "guided"]
    assert files(queries=5) == files(k_hops=2) == ["guided"]
    slower = graph.node_feat.copy()
    slower[:, 0] += 1
    assert files(graph=graph._replace(node_feat=slower)) == ["free", "guided"]
    assert files(graph=graph._replace(config_codes=graph.config_codes[::-1].copy())) == ["guided"]
    other = token_model(1)
    other.load_state_dict(model.state_dict())
    assert files(model=other) == ["guided"], "other settings"
    with torch.no_grad():
        next(iter(model.parameters())).view(-1)[0] += 1e-6
    assert files() == ["guided"], "another weight"
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert files() == ["guided"], "other sums"
    finally:
        torch.set_num_threads(threads)


def test_rows_are_searched_as_by_a_plain_loop_and_each_seed_once(root, tmp_path, monkeypatch):
    graph = drop_duplicate_configs(read_layout(npz_paths(root, "layout:nlp:random", "train")[0]))[0]
    cost = np.random.default_rng(0).normal(size=len(graph.config_codes))
    expected = {name: [[search_rows(graph.config_runtime, graph.config_codes, budget, np.random.default_rng(seed),
                                    cost=by).best_cost for budget in (3, 8)] for seed in range(3)]
                for name, by in (("searched", None), ("searched with model", cost))}
    store = Store(tmp_path / "store")
    first = study_rows(graph, cost, [3, 8], 2, store)
    calls = []
    monkeypatch.setattr(lab.studies.search_study, "search_rows",
                        lambda *args, **more: calls.append(args) or search_rows(*args, **more))
    found = study_rows(graph, cost, [3, 8], 3, store)
    assert {name: costs.tolist() for name, costs in found.items()} == expected and len(calls) == 2 * 2
    assert {name: costs[:2].tolist() for name, costs in found.items()} == {n: c.tolist() for n, c in first.items()}
    study_rows(graph, -cost, [3, 8], 1, store)
    study_rows(graph._replace(config_runtime=graph.config_runtime + 1), cost, [3, 8], 1, store)
    assert len(calls) == 4 * 2 + 4


def test_undoing_the_largest_term_is_a_plain_loop_and_a_row_like_the_default_has_no_term(tiny_sample):
    graph, model = read_layout(npz_paths(tiny_sample, "layout:nlp:random", "test")[0]), token_model()
    model.fit_scale([graph])
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    against, truth, pruned = graph.config_codes[0].astype(np.int64), simulated_runtime(graph), prune(graph)
    found = study_reasons(graph, model, against, np.random.default_rng(3), draws=6)
    rng, shares, drawn, pairs = np.random.default_rng(3), [], [], []
    for row in rng.choice(len(graph.config_codes), 6, replace=False):
        code = graph.config_codes[row].astype(np.int64)
        table = explain(model, pruned, code, against).by_group(pruned)
        best = max((table[i, j], -i, -j) for i in range(len(table)) for j in range(i, len(table)))
        if best[0] <= 0:
            continue
        named = sorted({-best[1], -best[2]})
        others = rng.choice([g for g in range(len(code)) if code[g] != against[g]],
                            min(len(named), int((code != against).sum())), replace=False)
        for groups, kept in ((named, shares), (others, drawn)):
            after = code.copy()
            for group in groups:
                after[group] = against[group]
            kept.append(truth(after[None])[0] / truth(code[None])[0] - 1)
            pairs.append((explain(model, pruned, after, code).cost, np.log(kept[-1] + 1)))
    assert len(shares) > 2 and found["named"] == pytest.approx(np.mean(shares))
    assert found["at random"] == pytest.approx(np.mean(drawn))
    assert found["correlation"] == pytest.approx(np.corrcoef(np.array(pairs).T)[0, 1])
    alike = graph._replace(config_codes=np.repeat(graph.config_codes[:1], 3, axis=0), config_runtime=np.arange(3))
    assert all(np.isnan(value) for value in study_reasons(alike, model, against, rng, draws=3).values())
