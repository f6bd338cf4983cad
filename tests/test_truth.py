"""What is measured of a program's configurations, scores that count each once, and the simplest rules."""
import shutil
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import kendalltau

from kit.data import LayoutGraph, npz_paths, read_layout
from kit.metrics import kendall_tau
from kit.noise import noise_ceiling
from kit.prune import config_ids
from lab.baselines import COUNT, DEFAULT_FIRST, OWN_HALF, RIDGE, add_simple_rules, default_first, own_half
from lab.data import (
    MEASURED,
    Data,
    default_codes,
    deviations,
    distinct_tau,
    each_once,
    equal_distance_tau,
    speed_up,
    tau_ceiling,
)
from lab.predictions import Predictions
from lab.scores import OTHERS, other_scores, score_table, scores_of_rank

COLLECTION = "layout:xla:default"


@pytest.fixture(scope="module")
def program():
    """A measured program: 216 rows, of which 40 are the default."""
    return read_layout(next(iter(npz_paths(MEASURED, COLLECTION, "valid"))))


def runtimes_of(graph):
    """{configuration: [runtime of each of its rows]}, in order of first appearance."""
    found = {}
    for code, runtime in zip(graph.config_codes.tolist(), graph.config_runtime.tolist()):
        found.setdefault(tuple(code), []).append(runtime)
    return found


def test_each_configuration_is_known_once_by_its_mean(program):
    known, seen = each_once(program), set()
    means = {code: np.mean(own) for code, own in runtimes_of(program).items()}
    for code, value in zip(map(tuple, program.config_codes.tolist()), known):
        assert np.isnan(value) if code in seen else value == pytest.approx(means[code], rel=1e-12)
        seen.add(code)
    assert len(known) == 216 and np.isfinite(known).sum() == 161


def test_long_runtimes_have_exact_means():
    graph = LayoutGraph(**dict.fromkeys(LayoutGraph._fields))._replace(
        config_codes=np.array([[0], [0], [1]], np.uint8), config_runtime=np.array([2 ** 52, 2 ** 52 + 2, 5]))
    np.testing.assert_array_equal(each_once(graph), [2 ** 52 + 1, np.nan, 5])


def test_tau_over_distinct_configurations_is_that_of_scipy(program):
    rng, own = np.random.default_rng(0), runtimes_of(program)
    costs = {code: rng.random() for code in own}
    cost = np.array([costs[tuple(code)] for code in program.config_codes.tolist()])
    slow = kendalltau([costs[code] for code in own], [np.mean(runtimes) for runtimes in own.values()]).statistic
    assert distinct_tau(cost, each_once(program)) == pytest.approx(slow)
    assert distinct_tau(np.zeros(216), each_once(program)) == 0          # ties are half right


def test_the_default_first_is_worth_little_where_it_counts_once(program):
    cost, default = default_first(program), default_codes(program)
    assert (cost == 0).sum() == 40 and {tuple(row) for row in program.config_codes[cost == 0]} == {tuple(default)}
    assert kendall_tau(cost, program.config_runtime) > 4 * abs(distinct_tau(cost, each_once(program)))


def test_deviations_count_groups_that_differ_from_the_default(program):
    default = max(runtimes_of(program).items(), key=lambda pair: len(pair[1]))[0]
    assert deviations(program).tolist() == [sum(a != b for a, b in zip(row, default))
                                            for row in program.config_codes.tolist()]
    few = program._replace(config_codes=program.config_codes[:1], config_runtime=program.config_runtime[:1])
    assert deviations(few).tolist() == [0] and default_first(few).tolist() == [0] and np.isnan(speed_up([0], few, 1))


def test_tau_at_equal_distance_counts_pairs_one_by_one():
    rng = np.random.default_rng(0)
    for _ in range(20):
        cost, runtime, distance = (rng.integers(4, size=12) for _ in range(3))
        signs = [np.sign(int(cost[i]) - int(cost[j])) * np.sign(int(runtime[i]) - int(runtime[j]))
                 for i, j in combinations(range(12), 2) if distance[i] == distance[j] and runtime[i] != runtime[j]]
        assert equal_distance_tau(cost, runtime, distance) == pytest.approx(sum(signs) / len(signs))
    assert np.isnan(equal_distance_tau(np.arange(3), np.arange(3), np.arange(3)))


def test_a_speed_up_is_over_the_mean_of_the_default(program):
    own = runtimes_of(program)
    default = np.mean(max(own.values(), key=len))
    cost = np.array([np.mean(own[tuple(code)]) for code in program.config_codes.tolist()])
    assert speed_up(cost, program, 1) == speed_up(cost, program, 5) == pytest.approx(
        default / min(map(np.mean, own.values())))
    worst = sorted(map(np.mean, own.values()))[-5:]
    assert speed_up(-cost, program, 5) == pytest.approx(default / worst[0])
    assert speed_up(default_first(program), program, 1) == 1


def test_the_ceiling_over_distinct_configurations_is_that_of_their_means(program):
    ids = config_ids(program)

    def slow(cost, runtime):
        own = [(cost[ids == i][0], runtime[ids == i].mean()) for i in range(ids.max() + 1)]
        return kendall_tau(*map(np.array, zip(*own)), strict=True)
    assert tau_ceiling(program, once=True, draws=5) == pytest.approx(
        noise_ceiling(program.config_runtime, ids, slow, draws=5).mean)
    assert tau_ceiling(program, once=False) == noise_ceiling(program.config_runtime, ids, draws=20).mean


def test_ridge_on_its_own_half_finds_a_runtime_that_adds_up(program):
    rng = np.random.default_rng(0)
    terms = rng.normal(size=(program.config_codes.shape[1], program.config_codes.max() + 1))
    runtime = np.exp(10 + terms[np.arange(len(terms)), program.config_codes].sum(axis=1))
    cost = own_half(program._replace(config_runtime=runtime.astype(np.int64)))
    assert np.corrcoef(cost, np.log(runtime))[0, 1] > 0.9
    assert len({(code, one) for code, one in zip(map(tuple, program.config_codes.tolist()), cost)}) == 161


def test_scores_of_measured_programs_count_each_configuration_once():
    data = Data(MEASURED, [COLLECTION], k_hops=1)
    made = Predictions(data)
    made.add("mine", lambda graphs: deviations)
    add_simple_rules(made)
    table = score_table(made, data)[0].set_index("model")
    assert {*table.index} == {"mine", DEFAULT_FIRST, COUNT, RIDGE, OWN_HALF} and (table["families"] == 2).all()
    graphs = data.named(COLLECTION, "test")
    each = [scores_of_rank(deviations(g), g) for g in graphs.values()]
    assert table["score"][COUNT] == pytest.approx(np.mean([one["tau"] for one in each]))
    assert table["at equal distance"][COUNT] == 0 and table["tau of the file"][COUNT] == pytest.approx(
        np.mean([kendall_tau(deviations(g), g.config_runtime, strict=True) for g in graphs.values()]))
    for name in OTHERS[2:]:
        assert table[name][COUNT] == pytest.approx(np.exp(np.mean([np.log(one[name]) for one in each])))
    assert {*other_scores([{i: deviations(g) for i, g in graphs.items()}], graphs)} == {*OTHERS}
    assert data.ceilings(COLLECTION) == {i: tau_ceiling(g, once=True) for i, g in graphs.items()}


def test_files_of_the_competition_count_each_row(tiny_sample, tmp_path):
    shutil.copytree(tiny_sample / "npz", tmp_path / "npz")               # without the table of what was measured
    data = Data(tmp_path / "npz", ["layout:xla:random", "tile:xla"])
    for c in data.collections:
        assert all((runtime == data.runtimes(c, "valid")[i]).all() for i, runtime in data.truth(c).items())
        assert data.families(c) == {i: i for i in data.named(c, "valid")} and not data.counts_once(c)
    made = Predictions(data)
    made.add("mine", lambda graphs: lambda graph: np.arange(len(graph.config_runtime)))
    add_simple_rules(made)
    assert {row.kind for row in made.rows if row.baseline} == {RIDGE}
    assert not {*OTHERS} & {*score_table(made, data)[0]}
