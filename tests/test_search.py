"""Every strategy against brute force, laws that hold for all of them, and Droplet's rules on drawn landscapes."""
import itertools
import re
from functools import partial

import numpy as np
import pytest
from scipy import stats

from kit.search.budgets import Measured, SearchResult, is_confirmed, lowest_confirmed
from kit.search.droplet_search import _elsewhere, droplet, explore_then_droplet
from kit.search.gaussian_process import GaussianProcess
from kit.search.strategies import annealing, genetic, guided, random_search

STRATEGIES = {"random_search": random_search, "annealing": annealing, "genetic": genetic,
              "droplet": droplet, "droplet, ordered": partial(droplet, ordered=True, batch=4),
              "explore_then_droplet": explore_then_droplet,
              "explore_then_droplet, ordered": partial(explore_then_droplet, ordered=True)}
MODELLED = {"guided": guided, "explore_then_droplet": explore_then_droplet}
EVERY = {**STRATEGIES, **{f"{name}, with a model": partial(search, model=lambda points: (points * points).sum(axis=1),
                                                           queries=200) for name, search in MODELLED.items()}}
every = pytest.mark.parametrize("search", EVERY.values(), ids=EVERY)
SPACES = ([1, 5, 1, 3], [1, 1], [40], [9] * 26, [2] * 3 + [1] + [7] * 4)


class Landscape:
    """Random costs of coordinates and of pairs of neighbours; remembers what it was asked."""

    def __init__(self, dims, seed, noise=0.0, invalid=0.0):
        self.rng = np.random.default_rng(seed)
        self.alone = self.rng.normal(size=(len(dims), max(dims)))
        self.pairs = self.rng.normal(size=(max(len(dims) - 1, 1), max(dims), max(dims)))
        self.noise, self.invalid, self.asked = noise, invalid, []

    def truth(self, points):
        at = np.arange(points.shape[1])
        cost = self.alone[at, points].sum(axis=1) + self.pairs[at[:-1], points[:, :-1], points[:, 1:]].sum(axis=1)
        return np.where(points.sum(axis=1) % 100 < 100 * self.invalid, np.inf, cost)

    def __call__(self, points):
        assert points.dtype == np.int64 and len(points)
        self.asked += map(tuple, points.tolist())
        return self.truth(points) + self.noise * self.rng.normal(size=len(points))


def space(dims):
    return np.array(list(itertools.product(*map(range, dims))))


@every
@pytest.mark.parametrize("dims", SPACES, ids=str)
@pytest.mark.parametrize("budget", [1, 7, 40])
def test_what_is_measured_is_within_the_budget_and_the_space_and_asked_once(search, dims, budget):
    landscape = Landscape(dims, seed=budget)
    found = search(landscape, dims, budget, np.random.default_rng(0))
    assert found.measurements == len(found.trace) == len(landscape.asked) <= budget
    assert landscape.asked == list(map(tuple, found.points.tolist())) and len(set(landscape.asked)) == len(found.points)
    assert (found.points >= 0).all() and (found.points < dims).all()
    assert (found.costs == landscape.truth(found.points)).all()
    assert (found.best == found.points[found.costs.argmin()]).all() and found.best_cost == found.costs.min()
    assert (found.trace == np.minimum.accumulate(found.costs)).all()


@every
def test_equal_seeds_search_alike_and_others_do_not(search):
    dims = [5] * 8
    first, again, other = (search(Landscape(dims, seed=1), dims, 40, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert (first.points == again.points).all() and (first.trace == again.trace).all()
    assert first.queries == again.queries
    assert first.points.tolist() != other.points.tolist()


@pytest.mark.parametrize("search", [random_search, annealing, genetic, explore_then_droplet,
                                    partial(explore_then_droplet, ordered=True)])
@pytest.mark.parametrize("dims", [[3, 4, 2], [1, 5, 1, 3], [1, 1]], ids=str)
def test_a_space_smaller_than_the_budget_is_searched_whole(search, dims):
    landscape = Landscape(dims, seed=2)
    found = search(landscape, dims, 10 * len(space(dims)), np.random.default_rng(0))
    assert found.measurements == len(space(dims)) and found.best_cost == landscape.truth(space(dims)).min()


@pytest.mark.parametrize("search", [annealing, genetic, explore_then_droplet], ids=lambda search: search.__name__)
def test_a_third_of_a_small_space_is_enough_to_find_its_best_point(search):
    dims, hits = [4, 5, 3, 5], 0
    for seed in range(10):
        landscape = Landscape(dims, seed)
        found = search(landscape, dims, 100, np.random.default_rng(seed))
        hits += found.best_cost == landscape.truth(space(dims)).min()
    assert hits >= 8                               # a draw of 100 of 300 points hits 1 in 3


@pytest.mark.parametrize("ordered", [False, True, [True, False, True]])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_droplet_finds_the_best_point_of_a_convex_space_and_stops(ordered, batch):
    for seed in range(5):
        target = np.random.default_rng(seed).integers([9, 7, 12])
        found = droplet(lambda points, t=target: (abs(points - t) ** 1.5).sum(axis=1), [9, 7, 12], 756,
                        np.random.default_rng(seed), ordered=ordered, batch=batch)
        assert found.best.tolist() == target.tolist() and found.measurements < 200


@pytest.mark.parametrize("ordered", [False, True])
def test_droplet_ends_where_no_neighbour_is_better(ordered):
    dims = [4, 3, 5, 2, 4]
    for seed in range(10):
        landscape = Landscape(dims, seed)
        found = droplet(landscape, dims, 480, np.random.default_rng(seed), ordered=ordered)
        near = [point for i, n in enumerate(dims) for value in range(n) if value != found.best[i]
                and (not ordered or abs(value - found.best[i]) == 1)
                for point in [np.concatenate([found.best[:i], [value], found.best[i + 1:]])]]
        assert found.measurements < 480 and {tuple(p) for p in near} <= set(map(tuple, found.points.tolist()))
        assert (landscape.truth(np.array(near)) >= found.best_cost).all()


def test_speculation_steps_further_along_an_ordered_coordinate_that_helped():
    #  cost |x - 6| of x = 0..9, from 0 in batches of 4: up once; up again and by steps of 2, 3, 4; then 5 + 1 is best,
    #  beside 5 + 2, + 3, + 4; all of its neighbours are known then, and nothing that helped is left to try
    batches = []

    def objective(points):
        batches.append(sorted(points[:, 0].tolist()))
        return abs(points[:, 0] - 6)
    found = droplet(objective, [10], 99, np.random.default_rng(0), start=[0], ordered=True, batch=4)
    assert batches == [[0], [1], [2, 3, 4, 5], [6, 7, 8, 9]]
    assert (found.best.tolist(), found.best_cost, found.measurements) == ([6], 0, 10)


def test_speculation_makes_the_categorical_changes_that_helped_together():
    #  three coordinates, each of which saves 1, 2 or 4 with the code 1: all neighbours in one batch; then the best of
    #  them has two neighbours left, beside the other two changes at once; then the one neighbour left of the best
    batches = []

    def objective(points):
        batches.append(sorted(map(tuple, points.tolist())))
        return 7 - points @ np.array([1, 2, 4])
    found = droplet(objective, [2, 2, 2], 99, np.random.default_rng(0), start=[0, 0, 0], batch=4)
    assert batches == [[(0, 0, 0)], [(0, 0, 1), (0, 1, 0), (1, 0, 0)], [(0, 1, 1), (1, 0, 1), (1, 1, 1)], [(1, 1, 0)]]
    assert found.best.tolist() == [1, 1, 1]


def test_a_quarter_of_a_batch_is_kept_for_speculation():
    #  as above among 8 coordinates: in a batch of 4 one point is speculation, though neighbours would fill it
    batches = []

    def objective(points):
        batches.append(points)
        return -points @ np.arange(1, 9)
    droplet(objective, [2] * 8, 13, np.random.default_rng(0), start=[0] * 8, batch=4)
    changed = [sorted(points.sum(axis=1).tolist()) for points in batches[:3]]
    assert changed == [[0], [1, 1, 1, 1], [2, 2, 2, 3]]


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "droplet, ordered"])
def test_invalid_points_are_never_best_and_do_not_stop_a_search(name):
    #  alone, ordered Droplet may start where all neighbours are invalid: it ends there, as published
    dims = [4, 3, 5, 4]
    landscape = Landscape(dims, seed=5, invalid=0.08)         # those whose codes sum to less than 8: two of three
    assert 0.5 < np.isinf(landscape.truth(space(dims))).mean() < 0.9
    found = STRATEGIES[name](landscape, dims, 100, np.random.default_rng(2))
    assert np.isfinite(found.best_cost) and np.isinf(found.costs).any()


@every
def test_a_space_without_a_valid_point_says_so(search):
    found = search(lambda points: np.full(len(points), np.inf), [3, 3], 9, np.random.default_rng(0))
    assert found.best_cost == np.inf and np.isinf(found.trace).all()


def test_a_model_may_call_points_invalid():
    dims = [4] * 6
    landscape = Landscape(dims, seed=9)
    found = explore_then_droplet(landscape, dims, 40, np.random.default_rng(0), queries=300, model=lambda points:
                                 np.where(points[:, 0] == 1, landscape.truth(points), np.inf))
    assert found.measurements == 40 and (found.points[:8, 0] == 1).all()
    found = explore_then_droplet(landscape, dims, 40, np.random.default_rng(0), queries=300,
                                 model=lambda points: np.full(len(points), np.inf))
    assert found.measurements == 40


@pytest.mark.parametrize("search", MODELLED.values(), ids=MODELLED)
def test_queries_are_what_the_model_was_asked_and_not_measurements(search):
    dims, asked = [5] * 10, []
    landscape = Landscape(dims, seed=3)

    def model(points):
        asked.append(len(points))
        return landscape.truth(points)
    found = search(landscape, dims, 30, np.random.default_rng(0), model=model, queries=500)
    assert found.queries == sum(asked) >= 500 and found.measurements == len(landscape.asked) <= 30


def test_guided_measures_the_best_that_the_strategy_found_in_order():
    dims = [5] * 10
    landscape, other = Landscape(dims, seed=3), Landscape(dims, seed=4)
    found = guided(other, dims, 20, np.random.default_rng(0), model=landscape, queries=300, strategy=random_search)
    queried = sorted(landscape.truth(np.array(landscape.asked)))
    assert len(landscape.asked) == found.queries == 300
    assert landscape.truth(found.points) == pytest.approx(queried[:20])


def test_a_model_of_the_truth_makes_a_few_measurements_enough():
    for seed in range(5):
        dims = [6] * 12
        landscape = Landscape(dims, seed)
        with_model = explore_then_droplet(landscape, dims, 5, np.random.default_rng(0), model=landscape.truth)
        without = random_search(landscape, dims, 1000, np.random.default_rng(0))
        assert with_model.best_cost < without.best_cost


def test_proposals_that_were_not_among_the_first_are_weighed_later(monkeypatch):
    """Two basins, of which the model prefers the wrong one: its 15th proposal is the first in the other."""
    dims = [6] * 12

    def changed(points):                               # coordinates that differ from the bottom of each basin
        return (points != 0).sum(axis=1), (points != 5).sum(axis=1)

    def objective(points):
        return np.minimum(changed(points)[0] + 3, changed(points)[1])

    def model(points):
        return np.minimum(changed(points)[0], changed(points)[1] + 1.5)
    wrong, right = np.zeros((14, 12), int), np.full((14, 12), 5)
    wrong[range(1, 14), np.arange(1, 14) % 12] = right[range(1, 14), np.arange(1, 14) % 12] = 2
    wrong[13, 5] = right[13, 5] = 3
    proposed = np.concatenate([wrong, right])
    fixed = SearchResult(proposed[0], 0.0, np.zeros(28), 28, 0, proposed, np.arange(28.0))
    found = {}
    for weighed in (0, 16):
        monkeypatch.setattr("kit.search.droplet_search.PROPOSALS_WEIGHED", weighed)
        found[weighed] = explore_then_droplet(objective, dims, 30, np.random.default_rng(0), model=model,
                                              strategy=lambda *_: fixed)
    assert (found[0].best_cost, found[16].best_cost, found[16].best.tolist()) == (3, 0, [5] * 12)
    assert (found[16].points[:8] == proposed[:8]).all()


@pytest.mark.parametrize("model", [None, lambda points: abs(points - 1).sum(axis=1)], ids=["no model", "poor model"])
def test_choices_that_pay_only_together_are_found_sooner_with_jumps(monkeypatch, model):
    """Trap: a coordinate of a pair costs more if it alone leaves 0, less if both are 3; the model knows neither."""
    dims, found = [4] * 10, {}

    def objective(points):
        pairs = points.reshape(len(points), 5, 2)
        return np.where((pairs == 3).all(axis=2), -1, (pairs != 0).sum(axis=2)).sum(axis=1)
    for jumps in (0, 64):
        monkeypatch.setattr("kit.search.droplet_search.JUMPS", jumps)
        found[jumps] = [explore_then_droplet(objective, dims, 100, np.random.default_rng(seed), model=model,
                                             queries=500).best_cost for seed in range(6)]
    assert np.mean(found[64]) < np.mean(found[0]) - 0.5, found


def poor_model(points):
    """A model that knows the poor region of the next test alone, where fewer ones are better."""
    return points.sum(axis=1)


@pytest.mark.parametrize("model", [None, poor_model], ids=["no model", "poor model"])
def test_a_search_whose_first_points_are_all_poor_finds_another_region_by_random_points(monkeypatch, model):
    """Trap: schedules are good if four coordinates are 1, and the fewer of them are 1 the better the others are."""
    dims, found = [2] * 4 + [4] * 4, {}

    def objective(points):
        ones = points[:, :4].sum(axis=1)
        return np.where(ones == 4, -50, 5 * ones) + points[:, 4:].sum(axis=1)
    for wander in (8, 10**9):                          # the other one: never
        monkeypatch.setattr("kit.search.droplet_search.WANDER", wander)
        found[wander] = [explore_then_droplet(objective, dims, 160, np.random.default_rng(seed), model=model,
                                              queries=500, doubt_model=True).best_cost for seed in range(5)]
    assert np.mean(found[8]) <= np.mean(found[10**9]) - 10, found


def test_the_first_points_of_a_search_with_a_model_are_the_different_ones():
    proposed = np.array([[0] * 6, [1, *[0] * 5], [1, 1, *[0] * 4], [1, 1, 1, *[0] * 3], [2] * 6])
    fixed = SearchResult(proposed[0], 0.0, np.zeros(5), 5, 0, proposed, np.arange(5.0))
    found = explore_then_droplet(lambda points: points.sum(axis=1), [3] * 6, 12, np.random.default_rng(0),
                                 model=lambda points: points.sum(axis=1), strategy=lambda *_: fixed, doubt_model=True)
    assert found.points[:3].tolist() == proposed[[0, 3, 4]].tolist()


def test_a_model_that_is_not_doubted_brings_no_random_points(monkeypatch):
    found = {}
    for wander in (8, 10**9):
        monkeypatch.setattr("kit.search.droplet_search.WANDER", wander)
        found[wander] = explore_then_droplet(lambda points: points.sum(axis=1) % 7, [4] * 8, 60,
                                             np.random.default_rng(0), model=poor_model)
    assert (found[8].points == found[10**9].points).all()


@pytest.mark.parametrize("noise", [0.001, 1.0])
@pytest.mark.parametrize("confirm", [1, 2, 5])
def test_the_best_point_is_measured_again_until_it_is_confirmed(confirm, noise):
    asked, rng = [], np.random.default_rng(3)

    def objective(points):
        asked.extend((tuple(point), 1 + sum(point) + noise * rng.normal()) for point in points.tolist())
        return np.array([cost for _, cost in asked[-len(points):]])
    measured, seen = Measured(objective, [4] * 4, 200, confirm), {}
    draws = np.random.default_rng(0)
    while measured.left >= 60:
        measured(measured.unseen(draws, 3))
        for point, cost in asked[sum(map(len, seen.values())):]:
            seen.setdefault(point, []).append(cost)
        means = {point: np.mean(costs) for point, costs in seen.items()}
        best = min(means, key=means.get)
        alike = len(seen[best]) > 1 and max(seen[best]) - min(seen[best]) < 0.01 * means[best]
        assert (alike or len(seen[best]) >= confirm) and measured.trace[-1] == pytest.approx(means[best])
        assert len(measured.trace) == len(asked) and max(map(len, seen.values())) <= confirm
    found = measured.result()
    assert found.costs.tolist() == pytest.approx([means[tuple(point)] for point in found.points.tolist()])
    assert tuple(found.best) == best and found.best_cost == pytest.approx(means[best])
    assert max(map(len, seen.values())) == min(confirm, 2 if noise < 0.01 else 5)


def test_which_points_are_confirmed():
    def confirmed(*samples, confirm=3):
        return [is_confirmed(costs, confirm) for costs in samples]
    assert confirmed([5], [5, 5.04], [5, 5.06], [5, 6, 7]) == [False, True, False, True]
    assert confirmed([5], [-5, -6], [-5, -5.01], [5, np.inf]) == [False, False, True, False]
    assert confirmed([0, 0], [0, 1e-9]) == [True, False]
    assert confirmed([5], [np.inf], confirm=1) == [True, True]


def test_the_last_points_that_could_not_be_confirmed_do_not_win():
    costs = iter([3.0, 3.0, 1.0])                      # the first point is confirmed, and the budget ends at the second
    measured = Measured(lambda points: np.array([next(costs) for _ in points]), [2, 2], 3, confirm=3)
    measured([[0, 0]])
    measured([[1, 1]])
    assert measured.result().best.tolist() == [0, 0] and measured.left == 0 and measured.trace == [3, 3, 1]


def test_a_point_that_fails_when_it_is_measured_again_does_not_win():
    costs = iter([3.0, np.inf, 4.0])
    measured = Measured(lambda points: np.array([next(costs) for _ in points]), [2, 2], 3, confirm=3)
    measured([[0, 0]])
    measured([[1, 1]])
    assert measured.result().best.tolist() == [1, 1] and measured.result().best_cost == 4
    assert lowest_confirmed([[3.0, 3.5, np.inf], [4.0]], confirm=9) == 1


def test_points_that_fail_are_not_confirmed():
    asked = []
    measured = Measured(lambda points: (asked.append(len(points)), np.full(len(points), np.inf))[1], [3, 3], 9,
                        confirm=3)
    measured([[0, 0], [1, 1]])
    assert asked == [2]


def test_on_noisy_costs_confirmed_winners_are_truly_faster():
    """Trap: one point in five is slow on average and seems fast on a few measurements; its luck must not win."""
    truth, dims = np.random.default_rng(0).normal(size=(6, 4)), [4] * 6

    def loss(seed, confirm):
        noise = np.random.default_rng(seed)

        def true(points):
            return truth[np.arange(6), points].sum(axis=1)

        def objective(points):
            risky = points.sum(axis=1) % 5 == 0
            return true(points) + risky * noise.normal(0.8, 2, len(points))
        found = explore_then_droplet(objective, dims, 100, np.random.default_rng(seed), confirm=confirm)
        return true(found.best[None])[0] + (found.best.sum() % 5 == 0) * 0.8 - truth.min(axis=1).sum()
    lost = {confirm: np.mean([loss(seed, confirm) for seed in range(12)]) for confirm in (1, 3)}
    assert lost[3] < lost[1] - 0.5, lost


def test_a_new_descent_begins_at_the_best_point_far_from_the_ends_of_the_others():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        dims, costs = np.array([3, 1, 3, 2, 3]), iter(rng.normal(size=20))       # four vary, so two must differ
        measured = Measured(lambda points, costs=costs: np.array([next(costs) for _ in points]), dims, 20)
        measured(measured.unseen(rng, 20))
        left = [measured.points[i] for i in rng.permutation(20)[:rng.integers(1, 4)]]
        known = [(c, p.tolist()) for p, c in zip(measured.points, measured.costs)
                 if all(sum(a != b for a, b in zip(p, end)) >= 2 for end in left)]
        found = _elsewhere(measured, left, rng).tolist()
        assert found == min(known)[1] if known else found in [p.tolist() for p in left]
    few = Measured(lambda points: points.sum(axis=1), [2, 2], 4)
    few([[0, 0]])
    assert _elsewhere(few, [np.array([0, 0])], np.random.default_rng(0)).tolist() != [0, 0]


def test_a_search_that_starts_anew_leaves_a_good_region_for_a_better_one():
    """Trap: five regions, each with its best point; the descent of one region never sees the others' best."""
    def loss(seed, stamina):
        ends = np.random.default_rng(100 + seed).integers(4, size=(5, 10))

        def objective(points):
            return ((points[:, None] != ends).sum(axis=2) - np.arange(5.0)).min(axis=1)
        return explore_then_droplet(objective, [4] * 10, 280, np.random.default_rng(seed),
                                    stamina=stamina).best_cost + 4
    found = {stamina: np.mean([loss(seed, stamina) for seed in range(4)]) for stamina in (None, 64)}
    assert 2 * found[64] < found[None], found


def test_proposals_do_not_keep_a_search_from_starting_anew():
    """A list of poor points is left where a neighbourhood is spent, not measured to its end."""
    dims, poor = [3] * 8, np.array([[2, 2, 2, 2, *tail] for tail in space([3] * 4)])
    fixed = SearchResult(poor[0], 0.0, np.zeros(81), 81, 0, poor, np.arange(81.0))
    found = explore_then_droplet(lambda points: points.sum(axis=1), dims, 80, np.random.default_rng(0),
                                 model=lambda points: -points.sum(axis=1), strategy=lambda *_: fixed)
    assert found.best_cost == 0


def test_a_model_that_is_wrong_is_outvoted_by_measurements():
    dims, regrets = [4] * 6, []
    for seed in range(5):
        landscape = Landscape(dims, seed)
        found = explore_then_droplet(landscape, dims, 250, np.random.default_rng(0), queries=500,
                                     model=lambda points, truth=landscape.truth: -truth(points))
        regrets.append(found.best_cost - landscape.truth(space(dims)).min())
    assert np.median(regrets) == 0


def test_only_the_order_of_costs_guides_a_search():
    dims = [5] * 8
    for search in (random_search, genetic, explore_then_droplet):
        landscape = Landscape(dims, seed=6)
        found, bent = (search(objective, dims, 60, np.random.default_rng(0))
                       for objective in (landscape.truth, lambda points, at=landscape: np.exp(at.truth(points))))
        assert found.points.tolist() == bent.points.tolist()


def test_the_process_is_that_of_a_second_implementation():
    dims, rng = np.array([4, 3, 5]), np.random.default_rng(1)
    ordered = np.array([True, False, True])
    landscape = Landscape(dims, seed=8)
    measured = Measured(landscape, dims, 20)
    points = measured.unseen(rng, 30)
    measured(points[:20])
    process = GaussianProcess(dims, ordered, landscape.truth, rng)

    def kernel(a, b):
        alike = np.mean([1 - abs(int(x) - int(y)) / (n - 1) if o else float(x == y)
                         for x, y, n, o in zip(a, b, dims, ordered)])
        opinion = [(landscape.truth(p[None])[0] - process.centre) / process.scale for p in (a, b)]
        return alike + np.exp(4 * (alike - 1)) + 2 * opinion[0] * opinion[1]
    gram = np.array([[kernel(a, b) for b in points] for a in points])
    within = np.linalg.inv(gram[:20, :20] + 0.05 * np.eye(20))
    y = stats.norm.ppf(stats.rankdata(landscape.truth(points[:20])) / 21)
    mean = gram[20:, :20] @ within @ y
    variance = np.diag(gram[20:, 20:] - gram[20:, :20] @ within @ gram[:20, 20:])
    assert process.lower_bound(points[20:], measured) == pytest.approx(mean - np.sqrt(variance), abs=1e-9)


def test_unseen_points_are_all_different_and_uniform():
    measured = Measured(lambda points: points.sum(axis=1), [3, 2, 2], 12)
    counts = np.zeros(12, int)
    for seed in range(600):
        drawn = measured.unseen(np.random.default_rng(seed), 4)
        numbers = np.ravel_multi_index(drawn.T, (3, 2, 2))
        assert len(set(numbers)) == 4
        counts[numbers] += 1
    assert stats.chisquare(counts).pvalue > 0.001
    measured(drawn)
    assert measured.unseen(np.random.default_rng(0), 99).shape == (8, 3)


def test_bad_input_is_named():
    def objective(points):
        return points.sum(axis=1)
    rng = np.random.default_rng(0)
    for dims in ([], [3, 0], [2.0], [[2]]):
        with pytest.raises(ValueError, match="^dims .*; expected (integers of shape|at least 1 and at most 4096)"):
            random_search(objective, dims, 5, rng)
    with pytest.raises(ValueError, match="^budget is 0; expected a whole number of at least 1$"):
        genetic(objective, [3], 0, rng)
    for wrong, told in ((np.full(3, np.nan), "(3,), 3 NaN and 0"), (np.zeros(2), "(2,), 0 NaN and 0"),
                        (np.full(3, -np.inf), "(3,), 0 NaN and 3")):
        told = re.escape(f"the objective gave shape {told} -inf for 3 points; expected one cost per")
        with pytest.raises(ValueError, match=told):
            random_search(lambda points, w=wrong: w, [3], 5, rng)
    with pytest.raises(ValueError, match=r"^the objective gave array\(.*; expected one number per point"):
        random_search(lambda points: ["fast"] * len(points), [3], 5, rng)
    with pytest.raises(ValueError, match=r"^start is \[3\]; expected one code per coordinate, below \[3\]$"):
        droplet(objective, [3], 5, rng, start=[3])
    with pytest.raises(ValueError, match=r"^ordered is \[True\]; expected True or False, or one of them for each of 2"):
        explore_then_droplet(objective, [3, 3], 5, rng, ordered=[True])
