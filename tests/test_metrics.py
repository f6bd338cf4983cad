"""The competition's numbers against slow twins, scipy, laws and simulated truths."""
import math
from functools import partial
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from kit.data import COLLECTIONS
from kit.metrics import (
    collection_score,
    competition_score,
    default_tile_score,
    kendall_tau,
    opa,
    program_slowdown,
    score_for,
    slowdown,
    tile_score,
)
from kit.noise import bootstrap_interval, noise_ceiling

REAL = Path(__file__).resolve().parents[2] / "shared/tpugraphs/npz"


def slow_pairs(cost, runtime):
    """(concordant, discordant, cost differs, runtime differs, all), pair by pair."""
    counts = [0, 0, 0, 0, 0]
    for i, j in combinations(range(len(cost)), 2):
        a, b = (int(x[i] > x[j]) - int(x[i] < x[j]) for x in (cost, runtime))
        counts = [n + int(hit) for n, hit in zip(counts, (a * b > 0, a * b < 0, a != 0, b != 0, True))]
    return counts


def tied_draws():
    rng = np.random.default_rng(1)
    for size in (2, 3, 5, 12, 40):
        for values in (2, 4, 1000):
            for _ in range(8):
                yield rng.integers(0, values, size) - 0.5, rng.integers(1, values + 1, size)


def test_tau_is_that_of_scipy_and_of_counting_pairs():
    for cost, runtime in tied_draws():
        concordant, discordant, cost_differs, runtime_differs, pairs = slow_pairs(cost, runtime)
        if cost_differs and runtime_differs:
            slow = (concordant - discordant) / math.sqrt(cost_differs * runtime_differs)
            assert kendall_tau(cost, runtime) == pytest.approx(slow, abs=1e-12)
            assert slow == pytest.approx(stats.kendalltau(cost, runtime).statistic, abs=1e-12)
        else:
            assert math.isnan(kendall_tau(cost, runtime))
        if runtime_differs:
            strict = (concordant - discordant) / math.sqrt(pairs * runtime_differs)
            assert kendall_tau(cost, runtime, strict=True) == pytest.approx(strict, abs=1e-12)
            assert opa(cost, runtime) == pytest.approx(concordant / runtime_differs, abs=1e-12)
        else:
            assert math.isnan(opa(cost, runtime)) and math.isnan(kendall_tau(cost, runtime, strict=True))


def test_each_collection_has_its_score():
    assert score_for("tile:xla") is tile_score and score_for("tile:xla", strict=True) is tile_score
    assert {score_for(name) for name in COLLECTIONS[1:]} == {kendall_tau}
    cost, runtime = [1.0, 1.0, 2.0], [10, 20, 30]
    for name in COLLECTIONS[1:]:
        assert score_for(name, strict=True)(cost, runtime) == kendall_tau(cost, runtime, strict=True) < 0.7
    with pytest.raises(ValueError, match="no collection 'layout:xla'; there are tile:xla, layout:xla:random, "):
        score_for("layout:xla")


def test_strict_tau_is_the_mean_over_all_ways_to_break_the_ties():
    cost, runtime = np.array([1, 1, 2, 1, 2]), np.array([30, 10, 10, 20, 50])
    orders = [order for order in permutations(range(5)) if (np.diff(cost[list(order)]) >= 0).all()]
    taus = [kendall_tau(np.argsort(order), runtime) for order in orders]
    assert len(orders) == 12
    assert kendall_tau(cost, runtime, strict=True) == pytest.approx(np.mean(taus), abs=1e-12)


def test_a_constant_cost_has_no_tau_but_scores_zero_as_a_submission():
    assert math.isnan(kendall_tau([1, 1, 1], [1, 2, 3]))
    assert kendall_tau([1, 1, 1], [1, 2, 3], strict=True) == 0.0
    assert math.isnan(kendall_tau([1, 2, 3], [7, 7, 7], strict=True))
    assert math.isnan(kendall_tau([1], [1]))
    assert math.isnan(kendall_tau(np.zeros(0), np.zeros(0)))


@pytest.mark.parametrize("base", [2 ** 24, 2 ** 53, 2 ** 62])
def test_one_nanosecond_counts_at_any_size(base):
    runtime = np.int64(base) + np.arange(9)
    assert kendall_tau(np.arange(9), runtime) == 1.0 and opa(np.arange(9), runtime) == 1.0
    assert kendall_tau(-np.arange(9), runtime) == -1.0


@pytest.mark.parametrize("dtype, top", [(np.float32, 3e7), (np.float64, 1e17)])
def test_floats_that_merge_nanoseconds_are_refused(dtype, top):
    with pytest.raises(ValueError, match=r"above .* distinct ns merge into ties: pass int64"):
        kendall_tau([1, 2], np.array([1, top], dtype=dtype))


@pytest.mark.parametrize("score", [kendall_tau, opa, slowdown, tile_score])
def test_bad_input_is_named(score):
    with pytest.raises(ValueError, match="cost has 1 NaN among 2 values"):
        score([1.0, np.nan], [1, 2])
    with pytest.raises(ValueError, match="runtime has 2 NaN among 2 values"):
        score([1.0, 2.0], [np.nan, np.nan])
    with pytest.raises(ValueError, match=r"cost has shape \(2,\), runtime \(3,\); expected \(c,\) for both"):
        score([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"cost has shape \(1, 2\)"):
        score([[1, 2]], [[1, 2]])
    with pytest.raises(ValueError, match="cost has dtype <U1; expected integers or floats"):
        score(["a", "b"], [1, 2])


@pytest.mark.parametrize("score", [kendall_tau, partial(kendall_tau, strict=True), opa, slowdown,
                                   partial(slowdown, k=1)])
def test_no_score_depends_on_the_order_of_the_rows(score):
    rng = np.random.default_rng(2)
    for _ in range(30):
        cost, runtime = rng.integers(0, 4, 20), rng.integers(1, 9, 20)
        order = rng.permutation(20)
        assert score(cost, runtime) == pytest.approx(score(cost[order], runtime[order]), abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
def test_slowdown_is_the_mean_over_all_ways_to_break_the_ties(k):
    rng = np.random.default_rng(3)
    for _ in range(15):
        cost, runtime = rng.integers(0, 3, 6), rng.integers(1, 20, 6).astype(float)
        best = [min(runtime[list(order)[:k]]) for order in permutations(range(6))
                if (np.diff(cost[list(order)]) >= 0).all()]
        assert slowdown(cost, runtime, k) == pytest.approx(np.mean(best) / runtime.min() - 1, abs=1e-12)


def test_more_tries_never_hurt():
    rng = np.random.default_rng(0)
    for cost in (rng.random(30), rng.integers(0, 5, 30)):
        runtime = rng.random(30) + 1
        by_k = [slowdown(cost, runtime, k) for k in range(1, 31)]
        assert all(b <= a + 1e-12 for a, b in zip(by_k, by_k[1:])) and by_k[-1] == 0.0


@pytest.mark.parametrize("runtime", [[0, 0], [1.0, -1.0]])
def test_placeholder_runtimes_are_not_scored(runtime):
    with pytest.raises(ValueError, match="expected finite values > 0"):
        slowdown([1, 2], runtime)


def test_slowdown_needs_a_configuration_and_a_try():
    with pytest.raises(ValueError, match="k = 0 of 2 configurations; expected k >= 1 and at least one"):
        slowdown([1, 2], [1, 2], k=0)
    with pytest.raises(ValueError, match="k = 5 of 0 configurations"):
        slowdown(np.zeros(0), np.zeros(0))


def test_a_program_counts_once_however_many_kernels_it_has():
    slowdowns = {"tile:xla:bert_b32_-69259acddcd0d88": 0.0, "bert_b32_65": 0.5, "tile:xla:vgg_1": 1.0,
                 "tile:xla:74ad3320ab63958148f283ae7528c265": 0.5}
    by_program = program_slowdown(slowdowns)
    assert by_program == {"74ad3320ab63958148f283ae7528c265": 0.5, "bert_b32": 0.25, "vgg": 1.0}
    assert collection_score(by_program) == pytest.approx(1.75 / 3) != collection_score(slowdowns)


def test_graphs_without_a_score_are_named_and_left_out():
    with pytest.warns(UserWarning, match="^1 of 3 graphs have no score and are left out: openai$"):
        assert collection_score({"a": 0.5, "openai": math.nan, "b": 1.0}) == 0.75
    with pytest.warns(UserWarning, match="left out: 0$"):
        assert math.isnan(collection_score([math.nan]))
    assert collection_score(np.array([0.5, 1.0])) == 0.75


@pytest.mark.parametrize("scores", [[], {}, [0.5, math.inf]])
def test_a_collection_needs_finite_scores(scores):
    with pytest.raises(ValueError, match="expected one finite score per graph, at least one"):
        collection_score(scores)


def test_the_competition_averages_exactly_its_five_collections():
    scores = dict(zip(COLLECTIONS, [0.9, 0.5, 0.25, 1.0, 0.35]))
    assert competition_score(scores) == pytest.approx(0.6)
    with pytest.raises(ValueError, match="^no score for layout:nlp:random; the competition averages all five"):
        competition_score({k: v for k, v in scores.items() if k != "layout:nlp:random"})
    with pytest.raises(ValueError, match="^no score for tile:xla; "):
        competition_score({**scores, "tile:xla": math.nan})
    with pytest.raises(ValueError, match="^unknown collection tile:nlp; the five are tile:xla, layout:xla:random"):
        competition_score({**scores, "tile:nlp": 1.0})


@pytest.mark.parametrize("confidence", [0.95, 0.5])
def test_an_interval_is_the_one_of_scipy(confidence):
    values = np.random.default_rng(0).normal(0.5, 0.2, 40)
    ours = bootstrap_interval(values, confidence=confidence, draws=20_000)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, confidence_level=confidence,
                             rng=np.random.default_rng(1)).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.002)
    assert bootstrap_interval(values) == bootstrap_interval(values, rng=np.random.default_rng(0))


def test_an_interval_widens_with_confidence_and_with_seeds_that_disagree():
    rng = np.random.default_rng(0)
    graphs, seeds = rng.normal(0, 0.1, 20), rng.normal(0, 0.3, (3, 1))
    def width(ends):
        return ends[1] - ends[0]
    one = bootstrap_interval(graphs)
    assert width(bootstrap_interval(graphs, confidence=0.5)) < width(one)
    assert width(bootstrap_interval(graphs + seeds)) > 3 * width(one)
    assert width(bootstrap_interval(np.stack([graphs] * 3))) == pytest.approx(width(one), rel=0.1)


def test_graphs_of_a_family_are_drawn_together():
    rng = np.random.default_rng(0)
    values, families = rng.normal(size=(2, 9)), list("aabbbcdde")
    slow, drawing = [], np.random.default_rng(7)
    seeds, blocks = (drawing.integers(n, size=(500, n)) for n in (2, 5))
    for own, drawn in zip(seeds, blocks):
        columns = [i for block in drawn for i in range(9) if families[i] == "abcde"[block]]
        slow.append(np.mean([values[seed, i] for seed in own for i in columns]))
    found = bootstrap_interval(values, draws=500, rng=np.random.default_rng(7), families=families)
    assert found == pytest.approx(np.quantile(slow, [0.025, 0.975]))
    assert bootstrap_interval(values, families=range(9)) == bootstrap_interval(values)
    assert all(map(math.isnan, bootstrap_interval(values, families=["a"] * 9)))
    with pytest.raises(ValueError, match="^families is .*; expected one of each of 9 graphs"):
        bootstrap_interval(values, families="ab")


def test_one_graph_says_nothing_about_others():
    assert all(map(math.isnan, bootstrap_interval([0.5])))
    assert all(map(math.isnan, bootstrap_interval([[0.5], [0.6]])))
    for values in ([], [0.5, math.nan], np.zeros((1, 1, 2))):
        with pytest.raises(ValueError, match="^values .*; expected (finite numbers|at least one score)"):
            bootstrap_interval(values)


def measured_graph(rng, truth, sigma):
    """Rows of a graph whose true log runtimes are known: (runtime, config_id, tau of the truth)."""
    count = rng.choice([1, 1, 1, 1, 2, 2, 3, 20], size=len(truth), p=[.15, .15, .2, .2, .15, .1, .04, .01])
    config = rng.permutation(np.repeat(np.arange(len(truth)), count))
    def rows():
        return np.exp(20 + truth[config] + rng.normal(0, sigma, len(config)))
    tau = [stats.kendalltau(truth[config], rows()).statistic for _ in range(10)]
    return rows().round().astype(np.int64), config, np.mean(tau)


@pytest.mark.parametrize("name, spread, off", [("one mode", 1.0, 0.04), ("one mode", 3.0, 0.02),
                                               ("one mode", 30.0, 0.01), ("two modes", 1.0, 0.03),
                                               ("two modes", 0.3, 0.06)])
def test_the_ceiling_is_the_tau_of_the_true_means(name, spread, off):
    rng, sigma = np.random.default_rng(7), 1e-4
    truth = rng.normal(0, spread * sigma, 1000) + (name == "two modes") * rng.integers(0, 2, 1000) * 0.01
    runtime, config, tau = measured_graph(rng, truth, sigma)
    ceiling = noise_ceiling(runtime, config, kendall_tau, rng=rng)
    assert ceiling.mean == pytest.approx(tau, abs=off)
    assert ceiling.low <= ceiling.mean <= ceiling.high and ceiling.reason == ""
    assert ceiling.sigma == pytest.approx(sigma, rel=0.06)
    assert ceiling.repeats == len(runtime) - len(truth)


def test_the_score_of_the_default_tile_is_that_of_choosing_it():
    runtime = np.array([1.3, 1.0, 0.8, 2.0])                      # the default's ratio is 1
    assert default_tile_score(runtime) == pytest.approx(tile_score([1, 0, 1, 1], runtime, k=1)) == 0.75


def test_a_tile_ceiling_takes_its_noise_from_the_caller():
    rng, sigma = np.random.default_rng(0), 0.03
    truth = rng.exponential(0.3, 200)
    score = partial(tile_score, k=1)
    true = np.mean([score(truth, np.exp(truth + rng.normal(0, sigma, 200))) for _ in range(300)])
    ratio = np.exp(truth + rng.normal(0, sigma, 200))
    ceiling = noise_ceiling(ratio, np.arange(200), score, draws=300, sigma=sigma)
    assert true < 0.97 and ceiling.mean == pytest.approx(true, abs=0.02)
    assert ceiling.sigma == sigma and ceiling.repeats == 0


def test_without_noise_the_ceiling_is_one():
    ceiling = noise_ceiling([5, 5, 7, 9, 9], [0, 0, 1, 2, 2], kendall_tau)
    assert (ceiling.mean, ceiling.low, ceiling.high) == (1.0, 1.0, 1.0)


def test_a_ceiling_that_cannot_be_known_says_why():
    nothing = noise_ceiling([3, 1, 2], [0, 1, 2])
    assert all(map(math.isnan, nothing[:4])) and nothing.repeats == 0
    assert nothing.reason == "no configuration is measured twice: pass sigma"
    one = noise_ceiling([3, 1, 2], [0, 0, 0], kendall_tau)
    assert math.isnan(one.mean) and one.repeats == 2 and "nan: too few different configurations" in one.reason


def test_configurations_measured_very_often_are_no_obstacle():
    rng = np.random.default_rng(0)
    config = np.r_[np.arange(40), np.repeat([0, 1, 2], 300_000)]     # e^-2000 underflows
    runtime = (1e9 * np.exp(rng.normal(0, 1e-3, len(config)) + 1.11e-2 * config)).astype(np.int64)
    tied = sum(math.comb(int(count), 2) for count in np.bincount(config))
    untied = 1 - tied / math.comb(len(config), 2)           # configurations lie 11 sigma apart: only ties cost
    assert noise_ceiling(runtime, config, kendall_tau, draws=1).mean == pytest.approx(math.sqrt(untied))


def test_a_ceiling_needs_runtimes():
    with pytest.raises(ValueError,
                       match=r"config_id has shape \(3,\) and dtype int64; expected integers of shape \(2,\)"):
        noise_ceiling([1, 2], [0, 0, 1])
    with pytest.raises(ValueError, match="runtime goes down to 0; expected finite values > 0"):
        noise_ceiling([1, 0], [0, 0])


@pytest.mark.parametrize("stem, low, high, sigma", [("default/train/alexnet_train_batch_32", 0.80, 0.82, 3.6e-4),
                                                    ("default/valid/unet_3d.4x4.bf16", 0.38, 0.48, 1.6e-5)])
def test_the_ceiling_of_a_real_graph(stem, low, high, sigma):
    path = REAL / "layout/xla" / f"{stem}.npz"
    if not path.exists():
        pytest.skip("the real TpuGraphs files are not at ../shared/tpugraphs")
    with np.load(path) as file:
        config, runtime = file["node_config_feat"].astype(np.int8), file["config_runtime"]
    rows = np.ascontiguousarray(config.reshape(len(config), -1)).view(f"V{config[0].size}").ravel()
    ceiling = noise_ceiling(runtime, np.unique(rows, return_inverse=True)[1], kendall_tau, draws=10)
    assert low < ceiling.mean < high and ceiling.sigma == pytest.approx(sigma, rel=0.02)
