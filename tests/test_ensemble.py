"""Combined costs against scipy and laws."""
import numpy as np
import pytest
from scipy import stats

from kit.ensemble import choose_weights, combine, mean_rank, mean_zscore
from kit.metrics import kendall_tau

HOW = pytest.mark.parametrize("how", [mean_rank, mean_zscore])


def drawn_costs(seed, values=5):
    return np.random.default_rng(seed).integers(0, values, (3, 12)).astype(float)


@pytest.mark.parametrize("weights", [None, [1, 2, 0.5]])
def test_combined_costs_are_those_of_scipy(weights):
    for seed in range(10):
        costs = drawn_costs(seed)
        assert mean_rank(costs, weights) == pytest.approx(
            np.average(stats.rankdata(costs, axis=1), axis=0, weights=weights), abs=1e-12)
        assert mean_zscore(costs, weights) == pytest.approx(
            np.average(stats.zscore(costs, axis=1), axis=0, weights=weights), abs=1e-12)


@HOW
def test_a_model_s_scale_and_offset_do_not_matter(how):
    costs = drawn_costs(0)
    assert how([costs[0] * 1e6 + 3, costs[1], costs[2] / 64]) == pytest.approx(how(costs), abs=1e-9)


def test_ties_share_their_mean_rank():
    assert mean_rank([[7, 7, 1, 9, 7]]).tolist() == [3, 3, 1, 5, 3]


def test_configurations_that_models_rank_alike_stay_tied():
    assert len(set(mean_rank([[0, 1, 2], [1, 2, 0], [2, 0, 1]]))) == 1


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e300, 1e-300])
def test_a_constant_prediction_has_no_say(constant):
    assert mean_zscore([[constant] * 10]).tolist() == [0.0] * 10
    cost = np.arange(10.0)
    assert mean_zscore([[constant] * 10, cost]) == pytest.approx(mean_zscore([cost]) / 2)
    assert np.argsort(mean_rank([[constant] * 10, cost])).tolist() == list(range(10))


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1e200])
def test_a_prediction_of_any_size_has_its_say(scale):
    cost = np.arange(10.0)
    assert mean_zscore([cost * scale]) == pytest.approx(mean_zscore([cost]))


def test_a_weight_of_zero_is_a_model_left_out():
    costs = drawn_costs(4)
    for how in (mean_rank, mean_zscore):
        assert how(costs, [1, 0, 1]) == pytest.approx(how(costs[[0, 2]]), abs=1e-12)


@HOW
def test_bad_costs_are_named(how):
    with pytest.raises(ValueError, match=r"costs have shapes \(2,\), \(3,\); expected numbers \(c,\), the same"):
        how([[1, 2], [1, 2, 3]])
    with pytest.raises(ValueError, match="costs have shapes of nothing"):
        how([])
    with pytest.raises(ValueError, match="costs of model 1 have 2 NaN among 3 values"):
        how([[1, 2, 3], [np.nan, 1, np.nan]])
    for weights in ([1], [1, -1], [0, 0], [1, np.nan], [1, np.inf]):
        with pytest.raises(ValueError, match="^weights .*; expected (finite|at least 0|a value above 0)"):
            how([[1, 2], [2, 1]], weights)


def test_a_zscore_of_infinity_is_refused():
    with pytest.raises(ValueError, match="costs have 1 infinite values; mean_rank takes them"):
        mean_zscore([[1, np.inf]])


def test_whole_predictions_combine_graph_by_graph():
    a, b = drawn_costs(5)[:2]
    first, second = {"x:b": a, "x:a": b[:4]}, {"x:a": a[:4], "x:b": b}
    for how in (mean_rank, mean_zscore):
        combined = combine(iter([first, second]), how, weights=[1, 3])
        assert list(combined) == ["x:b", "x:a"]
        assert (combined["x:b"] == how([a, b], [1, 3])).all()
        assert (combined["x:a"] == how([b[:4], a[:4]], [1, 3])).all()
    assert combine({"x:a": [3.0, 1.0]})["x:a"].tolist() == [2, 1]


def test_predictions_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="^prediction 1 differs from prediction 0: it lacks 2 ID, the first b; "
                                         "it alone has 1 ID, the first d$"):
        combine([{"a": [1], "b": [1], "c": [1]}, {"a": [1], "d": [1]}])
    with pytest.raises(ValueError, match=r"^b: costs have shapes \(1,\), \(2,\)"):
        combine([{"a": [1], "b": [1]}, {"a": [1], "b": [1, 2]}])
    with pytest.raises(ValueError, match="^no prediction to combine"):
        combine([])
    with pytest.raises(ValueError, match="^how is 'mean'; expected"):
        combine([{"a": [1]}], "mean")


def drawn_kinds(seed, names="abc", graphs=5, c=40):
    """Runtimes, and kinds of models that see them through noise of their own."""
    rng = np.random.default_rng(seed)
    runtimes = {f"g{i}": rng.random(c) for i in range(graphs)}
    noise = dict(zip(names, rng.uniform(0.1, 1.5, len(names))))
    kinds = {kind: {i: stats.zscore(t + noise[kind] * rng.standard_normal(c)) for i, t in runtimes.items()}
             for kind in names}
    return kinds, runtimes


def score_of(kinds, shares, runtimes):
    return np.mean([stats.kendalltau(sum(shares[k] * kinds[k][i] for k in kinds), t)[0] for i, t in runtimes.items()])


def slow_value(kinds, runtimes, shares, prior, strength):
    """Mean score minus the penalty for moved weight, counted as what the kinds above their prior gained."""
    gained = sum(max(shares[k] - prior[k], 0) for k in kinds)
    return score_of(kinds, shares, runtimes) - strength / len(runtimes) * gained


def slow_greedy(kinds, runtimes, rounds, prior, strength=0.0):
    """Ensembles as lists of names, "the prior" among them; each judged anew, the first best length kept."""
    prior = {k: prior[k] / sum(prior.values()) for k in kinds}

    def shares(names):
        return {k: (names.count(k) + names.count("the prior") * prior[k]) / len(names) for k in kinds}

    def value(names):
        return slow_value(kinds, runtimes, shares(names), prior, strength)
    lists = [[]]
    for _ in range(rounds):
        lists.append(max((lists[-1] + [name] for name in ("the prior", *kinds)),
                         key=lambda names: round(value(names), 12)))
    return shares(lists[1 + int(np.argmax([round(value(names), 12) for names in lists[1:]]))])


@pytest.mark.parametrize("seed", range(6))
def test_weights_are_those_of_a_slow_greedy_search_and_do_no_worse_than_the_prior_or_a_kind_alone(seed):
    names, strength = "abcd"[:2 + seed % 3], (0.0, 0.02, 0.3)[seed // 4]
    kinds, runtimes = drawn_kinds(seed, names, graphs=1 + seed % 5)
    prior = dict(zip(names, np.random.default_rng(seed).integers(1, 9, len(names)).tolist()))
    weights = choose_weights(kinds, runtimes, kendall_tau, 6, prior, strength)
    assert weights == pytest.approx(slow_greedy(kinds, runtimes, 6, prior, strength), abs=1e-12)
    assert sum(weights.values()) == pytest.approx(1)
    start = {k: prior[k] / sum(prior.values()) for k in kinds}
    for other in (start, *({k: float(k == kind) for k in kinds} for kind in kinds)):
        assert (slow_value(kinds, runtimes, weights, start, strength)
                >= slow_value(kinds, runtimes, other, start, strength) - 1e-12)


def test_without_a_graph_the_prior_decides_alone():
    kinds, _ = drawn_kinds(0, "abc")
    assert choose_weights(kinds, {}, kendall_tau, prior={"a": 6, "b": 1, "elsewhere": 50}) == {
        "a": 0.75, "b": 0.125, "c": 0.125}
    assert choose_weights({"a": {}, "b": {}}, {}, kendall_tau) == {"a": 0.5, "b": 0.5}
    assert choose_weights({"a": {}, "b": {}}, {}, kendall_tau, prior={"a": 0, "b": 0, "c": 1}) == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize("graphs", [1, 8])
def test_a_prior_that_is_wrong_gives_way_to_a_single_graph(graphs):
    """The prior trusts the poor kind nine times as much; with a graph, the good kind has nearly everything."""
    for seed in range(4):
        kinds, runtimes = drawn_kinds(seed, "ab", graphs, c=200)
        rng = np.random.default_rng(seed)
        kinds["b"] = {i: rng.standard_normal(len(t)) for i, t in runtimes.items()}
        kinds["a"] = {i: stats.zscore(t + 0.1 * rng.standard_normal(len(t))) for i, t in runtimes.items()}
        assert choose_weights(kinds, runtimes, kendall_tau, prior={"a": 1, "b": 9})["a"] > 0.9


def test_the_stronger_the_prior_the_less_weight_moves():
    moved = [np.mean([abs(choose_weights(*drawn_kinds(seed, "ab", 2), kendall_tau, prior={"b": 3},
                                         strength=strength)["b"] - 0.75) for seed in range(4)])
             for strength in (0, 0.05, 0.5, 10)]
    assert moved == sorted(moved, reverse=True) and moved[0] > moved[2] and moved[3] == 0


@pytest.mark.parametrize("copies", [5])
def test_several_copies_of_a_graph_weaken_the_prior_as_its_strength_does(copies):
    for seed in range(4):
        kinds, runtimes = drawn_kinds(seed, "abc", graphs=1)
        many = {f"{i} again {k}": t for i, t in runtimes.items() for k in range(copies)}
        again = {kind: {name: costs["g0"] for name in many} for kind, costs in kinds.items()}
        assert choose_weights(again, many, kendall_tau, prior={"c": 5}, strength=0.3) == pytest.approx(
            choose_weights(kinds, runtimes, kendall_tau, prior={"c": 5}, strength=0.3 / copies))


@pytest.mark.parametrize("change, words", [
    ({"kinds": {}}, "kinds is {}; expected a dict with at least one entry"),
    ({"kinds": {"a": {}}}, "costs of a is {}; expected a dict with at least one entry"),
    ({"kinds": {"a": [1]}}, r"costs of a is \[1\]; expected a dict with at least one entry"),
    ({"runtimes": []}, r"runtimes is \[\]; expected a dict"),
    ({"prior": [1, 2]}, r"prior is \[1, 2\]; expected a dict {kind: weight} or None"),
    ({"prior": {"a": -1}}, "prior holds -1; expected at least 0"),
    ({"strength": -1}, "strength is -1; expected a number of at least 0"),
    ({"rounds": 0}, "rounds is 0; expected a whole number of at least 1")])
def test_nothing_to_choose_from_is_an_error(change, words):
    kinds, runtimes = drawn_kinds(0)
    with pytest.raises(ValueError, match=f"^{words}$"):
        choose_weights(**{"kinds": kinds, "runtimes": runtimes, "score": kendall_tau, **change})
    kinds["b"].pop("g3")
    with pytest.raises(ValueError, match="b has no costs of 1 graphs, the first g3"):
        choose_weights(kinds, runtimes, kendall_tau)
    with pytest.raises(ValueError, match="^the score of {'a': 0.333, 'b': 0.333, 'c': 0.333} is nan; expected"):
        choose_weights(drawn_kinds(0)[0], runtimes, lambda *_: np.nan)
    kinds["b"] = {**kinds["a"], "g2": np.zeros(1)}
    with pytest.raises(ValueError,
                       match=r"g2: costs of b has shape \(1,\) and .* expected finite numbers of shape \(40,\)"):
        choose_weights(kinds, runtimes, kendall_tau)
