"""Predictions and rows of tables against plain loops: costs of one's own models, scores, leads, searches."""
import numpy as np
import pytest
from sklearn.linear_model import Ridge
from training import GRAPHS, VALID, GivenData, drawn_layout

from kit.data import npz_paths, read_layout, target
from kit.ensemble import mean_zscore
from kit.metrics import default_tile_score, kendall_tau, tile_score
from kit.noise import bootstrap_interval, noise_ceiling
from kit.prune import config_ids
from kit.relatives import fold_numbers
from lab.data import Data, distinct_tau, each_once, tau_ceiling
from lab.predictions import Prediction, Predictions
from lab.scores import (
    SCORE_COLUMNS,
    in_reverse,
    kind_scores,
    lead_row,
    mean_ceiling,
    rank_alikeness,
    score_row,
    score_table,
    scores_of,
    side_by_side,
)
from lab.studies.search_tables import row_speed_ups, speed_up_rows

TILE, LAYOUT, OTHER = "tile:xla", "layout:xla:random", "layout:nlp:default"


def test_scores_of_seeds_have_a_row_per_seed_and_a_column_per_graph():
    rng = np.random.default_rng(0)
    known = {name: rng.random(9) for name in "abc"}
    costs = [{name: rng.random(9) for name in "cbax"} for _ in range(2)]
    found = scores_of(costs, known, kendall_tau)
    assert found.shape == (2, 3)
    for seed in range(2):
        for place, name in enumerate("abc"):
            assert found[seed, place] == kendall_tau(costs[seed][name], known[name])


def test_a_row_has_the_mean_its_interval_and_the_numbers_of_graphs_and_seeds():
    scores = [[0.5, 0.25, 0.75], [0.5, 0.5, 1.0]]
    low, high = bootstrap_interval(np.array(scores))
    assert score_row(scores) == pytest.approx({"score": 3.5 / 6, "low": low, "high": high, "graphs": 3, "seeds": 2})
    assert list(score_row(scores, [0.75, 1.0, 1.25])) == ["score", "low", "high", "ceiling", "graphs", "seeds"]
    assert score_row(scores, [0.75, 1.0, 1.25])["ceiling"] == 1.0
    lead = lead_row(np.array([1.0, 1.0, 1.0]), scores)
    low, high = bootstrap_interval(1 - np.array(scores))
    assert lead == pytest.approx({"lead": 1 - 3.5 / 6, "lead low": low, "lead high": high})


@pytest.fixture(scope="module")
def graphs(tiny_sample):
    return [read_layout(path) for path in npz_paths(tiny_sample, LAYOUT, "train")[:2]]


def test_the_mean_ceiling_is_that_of_each_graph(graphs):
    slow = [noise_ceiling(g.config_runtime, config_ids(g)).mean for g in graphs]
    assert mean_ceiling(graphs) == sum(slow) / 2


def test_gains_over_the_default_are_means_of_quotients():
    rows = [{"collection": "a", "budget": 5, "default": default, "random": 0.5, "searched with model": 0.25}
            for default in (0.5, np.nan, 1.0)]
    ups = row_speed_ups(rows)
    assert ups.keys() == {("a", "rows", search, 5) for search in ("with model", "random")}
    assert ups["a", "rows", "with model", 5] == pytest.approx([1.2, 1.6])
    first, second = speed_up_rows(ups)
    assert first["speed-up"] == pytest.approx(1.4) and 1.2 <= first["low"] <= first["high"] <= 1.6
    assert second["search"] == "random" and second["programs"] == 2
    assert np.isnan(speed_up_rows({("a", "b", "c", 5): np.ones(1)})[0]["low"])


# --- models of one's own

def counts(graph):
    """How often a configuration has each code; what a model of one's own may read."""
    return np.array([[(row == code).mean() for code in range(4)] for row in graph.config_codes])


def fit_ridge(graphs):
    """As anyone writes it with scikit-learn: fit all configurations, then predict those of one graph."""
    fit_ridge.taught.append([g.graph_id for g in graphs])
    model = Ridge().fit(np.concatenate([counts(g) for g in graphs]), np.concatenate([
        np.log(g.config_runtime) - np.log(g.config_runtime).mean() for g in graphs]))
    return lambda graph: model.predict(counts(graph))


def given(**more):
    flat = drawn_layout(9, name="flat")._replace(config_runtime=np.full(20, 7))            # teaches nothing
    splits = {"train": [*GRAPHS, flat], "valid": VALID, "test": [drawn_layout(5, name="t")]}
    return GivenData({LAYOUT: splits, OTHER: splits}, **more)


@pytest.fixture(autouse=True)
def none_taught():
    fit_ridge.taught = []


def test_a_function_that_fits_a_model_ranks_the_validation_and_test_graphs_of_each_collection():
    data = given()
    made = Predictions(data)
    made.add("my ridge", fit_ridge, seed=3)
    assert fit_ridge.taught == [["a", "b", "c"]] * 2
    assert [(row.collection, row.split, row.kind, row.seed, row.member, row.trains_on, row.baseline)
            for row in made.rows] == [(c, split, "my ridge", 3, "my-ridge_seed3", (c,), False)
                                      for c in (LAYOUT, OTHER) for split in ("valid", "test")]
    rank = fit_ridge(data.train[LAYOUT])
    for row in made.rows:
        graphs = {f"{row.collection}:{g.graph_id}": g for g in data.given[row.collection][row.split]}
        assert row.costs.keys() == graphs.keys()
        assert all(np.array_equal(cost, rank(graphs[i])) for i, cost in row.costs.items())


def test_with_folds_a_training_graph_is_ranked_by_the_model_that_learned_from_the_other_folds():
    data = given()
    made, number = Predictions(data, folds=2), fold_numbers(data.train[LAYOUT], 2)
    made.add("mine", fit_ridge, search="random")
    assert number == {"a": 0, "b": 1, "c": 0} and fit_ridge.taught == [["b"], ["a", "c"]]
    assert [row.split for row in made.rows] == ["train", "valid", "test"] and made.collections == [LAYOUT]
    rank = [fit_ridge([g for g in data.train[LAYOUT] if number[g.graph_id] != fold]) for fold in (0, 1)]
    train, valid, test = [row.costs for row in made.rows]
    files = {g.graph_id: g for g in data.given[LAYOUT]["train"]}
    assert [*train] == [f"{LAYOUT}:{name}" for name in ("a", "c", "b")]                    # and not "flat"
    for name, fold in number.items():
        np.testing.assert_allclose(train[f"{LAYOUT}:{name}"], mean_zscore([rank[fold](files[name])]))
    for costs, some in ((valid, VALID), (test, data.given[LAYOUT]["test"])):
        assert [*costs] == [f"{LAYOUT}:{g.graph_id}" for g in some]
        assert all(np.allclose(costs[f"{LAYOUT}:{g.graph_id}"], mean_zscore([one(g) for one in rank])) for g in some)


def test_a_baseline_ranks_the_scored_split_alone_and_is_no_member():
    for source, split in (("measured programs", "test"), ("real files", "valid")):
        made = Predictions(given(source=source), folds=2)
        made.add("random", lambda graphs: lambda graph: np.arange(20), baseline=True)
        assert [(row.collection, row.split, row.baseline) for row in made.rows] == [
            (LAYOUT, split, True), (OTHER, split, True)]
        assert made.collections == [] and made.members(LAYOUT) == made.kinds(LAYOUT) == {}
        made.add("mine", fit_ridge)
        assert made.collections == [LAYOUT, OTHER] and made.kinds(LAYOUT) == {"mine": ["mine_seed0"]}
        assert [*made.seeds(LAYOUT, split)] == ["mine", "random"]                            # baselines come last


def test_a_model_may_say_that_it_reads_no_runtime_and_be_of_one_search_alone():
    made = Predictions(given())
    made.add("frequency", lambda graphs: lambda graph: counts(graph)[:, 0], search="default", learns=False)
    assert {(row.collection, row.trains_on) for row in made.rows} == {(OTHER, ())}
    assert made.table().to_dict("records") == [{"model": "frequency", "learns from": "no training graph", "graphs": 0,
                                                "ranks": OTHER, "seeds": 1, "steps": ""}]


def test_a_collection_that_learns_from_a_counterpart_is_not_split_into_folds():
    splits = {"valid": VALID, "test": [drawn_layout(5, name="t")]}
    made = Predictions(GivenData({LAYOUT: splits | {"train": GRAPHS}, "layout:xla:default": splits}), folds=2)
    made.add("mine", fit_ridge)
    assert [(row.collection, row.split, row.trains_on) for row in made.rows] == [
        *((LAYOUT, split, (LAYOUT,)) for split in ("train", "valid", "test")),
        *(("layout:xla:default", split, (LAYOUT,)) for split in ("valid", "test"))]
    assert fit_ridge.taught == [["b"], ["a", "c"], ["a", "b", "c"]]


@pytest.mark.parametrize("cost, said", [
    (np.zeros(19), r"shape \(19,\)"), (np.zeros((20, 1)), r"shape \(20, 1\)"), (3.0, r"shape \(\)"),
    (np.r_[np.zeros(19), np.nan], r"shape \(20,\) that are not all finite"),
    (np.r_[np.zeros(19), np.inf], r"shape \(20,\) that are not all finite")])
def test_costs_of_another_shape_or_that_are_not_finite_are_refused(cost, said):
    made = Predictions(given())
    with pytest.raises(ValueError, match=f"^mine: {LAYOUT}:v got costs of {said}; expected one finite cost for each of "
                                         "20 configurations$"):
        made.add("mine", lambda graphs: lambda graph: cost)
    assert made.rows == []


@pytest.mark.parametrize("kind", ["", " ", "a/b", "a:b", "a|b", "a\\b", " a", 3, None])
def test_a_name_that_could_not_be_the_name_of_a_file_is_refused(kind):
    with pytest.raises(ValueError, match="^kind is .*; expected a name without "):
        Predictions(given()).add(kind, fit_ridge)
    with pytest.raises(ValueError, match="^fit is 3; expected a function$"):
        Predictions(given()).add("mine", 3)


# --- what may choose weights, and the ensemble

def costs_of(graphs, seed):
    rng = np.random.default_rng(seed)
    return {f"{LAYOUT}:{g.graph_id}": rng.random(len(g.config_runtime)) for g in graphs}


def test_only_graphs_that_every_member_ranked_without_knowing_them_may_choose_weights():
    data = given()
    files = {f"{LAYOUT}:{g.graph_id}": each_once(g) for g in [*GRAPHS, *VALID]}

    def known(made):
        found = made.known(LAYOUT)
        assert all(np.array_equal(runtime, files[i], equal_nan=True) for i, runtime in found.items())
        return [i.rpartition(":")[2] for i in found]
    made = Predictions(data)
    assert known(made) == []
    made.put(LAYOUT, "a", 0, {"valid": costs_of(VALID, 0), "test": {}, "train": costs_of(GRAPHS, 0)})
    made.put(LAYOUT, "a", 1, {"valid": costs_of(VALID, 1), "train": costs_of(GRAPHS, 1)})
    assert known(made) == ["v", "w", "a", "b", "c"] and [row.split for row in made.rows] == ["valid", "train"] * 2
    made.put(LAYOUT, "best", 0, {"test": {"t": np.zeros(20)}, "valid": costs_of(VALID, 2)}, baseline=True)
    assert known(made) == ["v", "w", "a", "b", "c"]                              # no member
    made.put(LAYOUT, "b", 0, {"valid": costs_of(VALID[1:], 2), "train": costs_of(GRAPHS[:1], 2)})
    assert known(made) == ["w", "a"]
    made.put(LAYOUT, "c", 0, {"valid": costs_of(VALID, 3)})                      # knew the training graphs
    assert known(made) == ["w"] and made.known(OTHER) == {}
    last = Predictions(given(use_valid=True))                                    # then only training graphs are left
    last.put(LAYOUT, "a", 0, {"train": costs_of([*GRAPHS, *VALID], 0)})
    assert known(last) == ["a", "b", "c", "v", "w"]


def test_an_ensemble_is_the_mean_of_kinds_whose_seeds_share_a_weight():
    made, some = Predictions(given()), {}
    for kind, seed in (("a", 0), ("a", 1), ("b", 0), ("c", 0)):
        some[kind, seed] = {split: costs_of(VALID, len(some) + 9 * (split == "test")) for split in ("valid", "test")}
        made.put(LAYOUT, kind, seed, some[kind, seed])
    assert made.kinds(LAYOUT) == {"a": ["a_seed0", "a_seed1"], "b": ["b_seed0"], "c": ["c_seed0"]}
    name, rows = f"{LAYOUT}:v", made.rows
    alone = made.by_kind(LAYOUT, [name])
    assert np.allclose(alone["a"][name], mean_zscore([some["a", seed]["valid"][name] for seed in (0, 1)]))
    assert np.allclose(alone["b"][name], mean_zscore([some["b", 0]["valid"][name]]))
    made.ensemble({LAYOUT: {"a": 0.6, "b": 0.4, "c": 0.0}})
    assert [(row.kind, row.split, row.seed, row.member) for row in made.rows] == [
        ("ensemble", "valid", None, "ensemble"), ("ensemble", "test", None, "ensemble"),
        *((row.kind, row.split, row.seed, row.member) for row in rows)]
    for row in made.only("ensemble").rows:
        slow = mean_zscore([some[key][row.split][name] for key in (("a", 0), ("a", 1), ("b", 0))], [0.3, 0.3, 0.4])
        assert np.allclose(row.costs[name], slow)


def test_a_member_that_orders_a_graph_against_the_others_is_named():
    made, costs = Predictions(given()), costs_of([*VALID, *GRAPHS], 0)
    name = [*costs][1]
    for seed in range(3):
        made.put(LAYOUT, "a", seed, {"test": costs}, trains_on=(LAYOUT,))
    assert in_reverse(made) == []
    made.put(LAYOUT, "b", 0, {"test": costs | {name: -costs[name]}}, trains_on=(LAYOUT,))
    made.put(LAYOUT, "frequency", 0, {"test": {i: -cost for i, cost in costs.items()}})
    assert in_reverse(made) == [f"{name}: b_seed0 orders it against the other members (tau -1.00)"]
    assert in_reverse(made, "valid") == in_reverse(made.only("b")) == []


# --- tables of scores

@pytest.fixture(params=["measured programs", "real files"])
def scored(request, tiny_sample, tiny_hidden):
    """Real files, and models that draw their costs: two seeds of one, one of another, a baseline."""
    data = Data((tiny_sample if request.param == "measured programs" else tiny_hidden) / "prepared",
                [TILE, LAYOUT, OTHER])
    made, rng = Predictions(data), np.random.default_rng(0)
    for kind, seed, baseline in (("a", 0, False), ("best", 0, True), ("a", 1, False), ("b", 0, False)):
        made.add(kind, lambda graphs: lambda graph: rng.random(len(graph.config_runtime)), seed, baseline=baseline)
    assert data.source == request.param
    return data, made


def slow_scores(data, made, c, rule):
    """{kind: [[score of each graph] of each seed]}, and the graphs, one after another."""
    graphs, found = {i: g for i, g in data.named(c, data.scored).items() if len({*target(g).tolist()}) > 1}, {}
    for kind in ("a", "b", "best"):
        rows = [row for row in made.rows if (row.collection, row.split, row.kind) == (c, data.scored, kind)]
        found[kind] = [[rule(row.costs[i], each_once(g) if data.counts_once(c) else target(g))
                        for i, g in graphs.items()] for row in rows]
    return found, graphs


def test_a_table_of_scores_is_that_of_plain_loops(scored):
    data, made = scored
    table, by_graph = score_table(made, data, against="a")
    rows = table.to_dict("records")
    assert [*by_graph] == [TILE, LAYOUT, OTHER] and len(rows) == 9 + (data.source == "real files")
    tau = distinct_tau if data.source == "measured programs" else kendall_tau
    for c, rule in ((TILE, tile_score), (LAYOUT, tau), (OTHER, tau)):
        slow, graphs = slow_scores(data, made, c, rule)
        families = [data.families(c)[i] for i in graphs]
        if c == TILE and data.source == "real files":
            slow["compiler's default"] = [[default_tile_score(target(g)) for g in graphs.values()]]
        ceiling = np.nan if c == TILE else np.mean([
            tau_ceiling(g, data.counts_once(c)) for g in graphs.values()])
        assert [row["model"] for row in rows if row["collection"] == c] == [*slow]
        for row in [row for row in rows if row["collection"] == c]:
            own = np.array(slow[row["model"]])
            lead = np.mean(slow["a"], axis=0) - own
            assert [row[name] for name in ("score", "low", "high")] == pytest.approx(
                [own.mean(), *bootstrap_interval(own, families=families)], nan_ok=True)
            assert [row[name] for name in ("lead", "lead low", "lead high")] == pytest.approx(
                [lead.mean(), *bootstrap_interval(lead, families=families)], nan_ok=True)
            assert row["ceiling"] == pytest.approx(ceiling, nan_ok=True)
            assert (row["seeds"], row["graphs"]) == own.shape and len(graphs) > 1
            assert row["families"] == len({*families})
            assert row["split"] == f"{data.scored}, {data.source}"
            assert [*by_graph[c][row["model"]]] == [*graphs]
            assert np.array_equal(np.transpose([*by_graph[c][row["model"]].values()]), own)
    other, _ = score_table(made, data, score=lambda cost, runtime: cost[0] - runtime[0])
    slow, _ = slow_scores(data, made, LAYOUT, lambda cost, runtime: cost[0] - runtime[0])
    assert "lead" not in other and other[other["collection"] == LAYOUT]["score"].tolist() == pytest.approx(
        [np.mean(own) for own in slow.values()])


def test_only_graphs_that_every_model_ranked_are_scored(scored):
    data, made = scored
    for row in made.rows:
        if (row.collection, row.split, row.kind, row.seed) == (LAYOUT, data.scored, "a", 1):
            del row.costs[[*row.costs][0]]
    table, by_graph = score_table(made.only("a", "best"), data)
    graphs = dict(zip(table["collection"] + " " + table["model"], table["graphs"]))
    assert graphs[f"{LAYOUT} a"] == graphs[f"{LAYOUT} best"] == len(by_graph[LAYOUT]["a"]) == 1
    assert graphs[f"{OTHER} a"] == 2


def test_without_a_runtime_or_a_prediction_a_table_is_empty_and_has_its_columns():
    for made in (Predictions(given()), Predictions(given(use_valid=True, source="real files"))):
        made.rows = [Prediction(LAYOUT, "valid", "a", 0, costs_of(VALID, 0))]
        table, by_graph = score_table(made, made.data)
        assert len(table) == 0 and tuple(table.columns) == SCORE_COLUMNS and by_graph == {}
        assert side_by_side(table) is table


def test_the_table_for_readers_has_a_row_per_kind_and_a_column_per_collection(scored):
    data, made = scored
    table, _ = score_table(made, data)
    shown = side_by_side(table)
    assert [*shown.columns] == [TILE, LAYOUT, OTHER]
    assert [*shown.index] == ["a", "b", "best", *["compiler's default"] * (data.source == "real files"),
                              "noise ceiling"]
    for _, row in table.iterrows():
        assert shown.loc[row["model"], row["collection"]] == (
            f"{row['score']:.3f}" + f" ({row['low']:.3f} to {row['high']:.3f})" * (row["families"] > 1))
        assert shown.loc["noise ceiling", row["collection"]] == (
            "" if row["collection"] == TILE else f"{row['ceiling']:.3f}")


def test_scores_of_kinds_are_means_over_graphs():
    known = {f"{LAYOUT}:{g.graph_id}": g.config_runtime for g in VALID}
    kinds = {"a": costs_of(VALID, 0), "b": costs_of(VALID, 1)}
    assert kind_scores(kinds, known, kendall_tau) == {kind: pytest.approx(np.mean([
        kendall_tau(own[i], known[i]) for i in known])) for kind, own in kinds.items()}
    assert all(np.isnan(score) for score in kind_scores(kinds, {}, kendall_tau).values())


def test_how_alike_kinds_order_is_the_mean_tau_between_their_members():
    made, costs = Predictions(given()), {name: costs_of(VALID, seed) for seed, name in enumerate(("a0", "a1", "b0"))}
    for name, own in costs.items():
        made.put(LAYOUT, name[0], int(name[1]), {"valid": own, "test": own})
    ((kinds, found),) = rank_alikeness(made, made.data).values()

    def tau(*pairs):
        return np.mean([kendall_tau(costs[one][i], costs[other][i]) for one, other in pairs for i in costs[one]])
    assert kinds == ["a", "b"] and np.isnan(found[1, 1])
    assert [found[0, 0], found[0, 1], found[1, 0]] == pytest.approx(
        [tau(("a0", "a1")), *[tau(("a0", "b0"), ("a1", "b0"))] * 2])
