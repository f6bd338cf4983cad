"""The benchmark runner: a case in a process of its own, tables, and the page they are written to."""
import importlib.util
import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression
from training import drawn_layout

from kit.ensemble import choose_weights
from kit.metrics import kendall_tau
from kit.models import ConfigTokenModel, ConfigTokenSettings
from kit.models.explain import explain

RUN = Path(__file__).resolve().parent / "benchmarks" / "run.py"
REHEARSAL = RUN.with_name("rehearsal.py")


def loaded(path):
    spec = importlib.util.spec_from_file_location(f"benchmarks_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run():
    return loaded(RUN)


@pytest.fixture(scope="module")
def study():
    return loaded(RUN.with_name("weights_study.py"))


@pytest.fixture(scope="module")
def siblings_study():
    sys.path.insert(0, str(RUN.parent))
    try:
        return loaded(RUN.with_name("siblings_study.py"))
    finally:
        del sys.path[0]


@pytest.fixture(scope="module")
def rehearsal():
    sys.path.insert(0, str(RUN.parent))                  # as where it runs as a script
    try:
        return loaded(REHEARSAL)
    finally:
        del sys.path[0]


@pytest.mark.long
def test_a_case_runs_in_a_process_of_its_own():
    command = [sys.executable, str(RUN), "--case", "baselines", "TileModel (tile)", "--steps", "2", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["seconds"]) == 2 and min(found["seconds"]) > 0
    assert found["configs"] > 1 and found["peak"] > 0


def test_a_table_has_medians_and_ratios_to_the_first_case(run):
    found = {("gnn", "published"): [{"seconds": [4.0, 2.0, 9.0], "configs": 64, "peak": 3 << 20},
                                    {"seconds": [4.0, 4.0], "configs": 64, "peak": 1 << 20}],
             ("gnn", "ours"): [{"seconds": [0.5], "configs": 32, "peak": 5 << 19}]}
    assert run.table(found)[2:] == ["| published | 4.00 | 16 | 1.00 | 2 |", "| ours | 0.500 | 64 | 4.00 | 2 |"]


def test_both_commands_are_those_of_the_readme_and_the_table_has_their_medians(project):
    sys.path.insert(0, str(RUN.parent))
    try:
        page = loaded(RUN.with_name("commands.py"))
    finally:
        del sys.path[0]
    install, found = page.commands((project / "README.md").read_text())
    assert install == "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt"
    assert found == [".venv/bin/python notebooks/run.py", ".venv/bin/python -m pytest"]
    with pytest.raises(SystemExit, match="expected two commands"):
        page.commands("no commands")
    assert page.table({"a": [3.0, 1.4, 2.0]})[2:] == ["| a | 2 s | 3, 1, 2 s |"]


@pytest.mark.long
def test_segments_and_whole_graphs_are_compared_and_what_is_trained_is_kept(tmp_path):
    command = [sys.executable, str(RUN.with_name("gst_score.py")), "--collections", "layout:nlp:random", "--folder",
               str(tmp_path), *"--programs 2,3 --nodes 60,90 --least 70 --steps 6 --configs 4 --segments 20".split()]
    once, twice = (subprocess.run([*command, "--ratio", "1.5", "--seeds", "0,3"], capture_output=True, text=True)
                   for _ in range(2))
    assert once.returncode == twice.returncode == 0, once.stderr[-2000:]
    found = re.match(r"layout:nlp:random: (\d) training and (\d) test programs of (\d+) to (\d+) nodes", once.stdout)
    assert 70 <= int(found[3]) <= int(found[4]) and "0" not in found.groups()[:2]
    rows = [[[cell.strip() for cell in line.split("|")[1:-1]] for line in run.stdout.splitlines()[-2:]]
            for run in (once, twice)]
    for (name, way, steps, _, memory, saved, tau, apart), expected in zip(rows[0], (("whole graphs", "6"), (
            "segments with a margin", "9"))):
        assert name == "`layout:nlp:random`" and (way, steps) == expected and memory.endswith(" MiB") and saved
        costs = [json.loads(path.read_text())["result"] for path in (tmp_path / "gst-scores").glob(f"*{way} ?.json")]
        assert len(costs) == 2 and tau.startswith(f"{np.mean([taus for taus, _ in costs]):.3f} (")
        assert bool(apart) == (way != "whole graphs")
    assert [row[:4] + row[5:] for row in rows[0]] == [row[:4] + row[5:] for row in rows[1]], "seconds, too, are kept"


def test_a_table_replaces_the_one_between_its_marks(run, tmp_path, monkeypatch):
    page = tmp_path / "README.md"
    page.write_text("a\n<!-- gnn -->\nold\n<!-- end gnn -->\nb\n<!-- gst -->\nkept\n<!-- end gst -->\n")
    monkeypatch.setattr(run, "PAGE", page)
    run.write_page("gnn", ["new", "table"])
    assert page.read_text() == ("a\n<!-- gnn -->\nnew\ntable\n<!-- end gnn -->\nb\n<!-- gst -->\nkept\n"
                                "<!-- end gst -->\n")
    assert list(tmp_path.iterdir()) == [page]
    with pytest.raises(SystemExit, match="no lines <!-- tiles --> and <!-- end tiles -->"):
        run.write_page("tiles", [])


def test_the_page_has_a_place_for_every_bench_file(run):
    text = run.PAGE.read_text()
    for name in ["rehearsal", *(path.stem[6:] for path in RUN.parent.glob("bench_*.py"))]:
        assert f"<!-- {name} -->" in text and f"<!-- end {name} -->" in text


@pytest.mark.long
def test_an_unknown_case_is_an_error():
    done = subprocess.run([sys.executable, str(RUN), "--case", "baselines", "nothing"], capture_output=True, text=True)
    assert done.returncode != 0 and "nothing" in done.stderr


def test_the_rehearsal_has_the_official_counts_and_the_largest_sizes(rehearsal):
    files = rehearsal.plan(rehearsal.SIZES["full"])
    assert [sum(file["split"] == split for file in files) for split in ("train", "valid", "test")] == [69, 7, 8]
    most = {name: max(file[name] for file in files) for name in ("nodes", "configurable", "configs")}
    assert most == {"nodes": 43_615, "configurable": 3143, "configs": 100_040}
    assert max(72 * file["configurable"] * file["configs"] for file in files) <= 100_040 * 364 * 72
    assert {file["configs"] for file in files if file["split"] == "test"} == {1000}


@pytest.mark.long
def test_a_rehearsal_in_small_goes_through_every_step(rehearsal, tmp_path):
    command = [sys.executable, str(REHEARSAL), "--size", "tiny", "--folder", str(tmp_path), "--threads", "1"]
    done = subprocess.run([*command, "--print-only"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    steps = {row[0][2:]: row for row in rows if len(row) == 5}
    assert list(steps)[1:] == list(rehearsal.STEPS) and all(0 < float(row[4][:-2]) < 8 for row in rows[1:10])
    assert steps["generate the data"][1].startswith("6 files")
    assert steps["write and check the submission"][1] == "2 rows written and checked, no problem"
    assert "**Extrapolation, not measured**" in done.stdout and len(rows) - len(steps) == 18
    planned = rehearsal.plan(rehearsal.SIZES["tiny"])
    for number, path in enumerate(rehearsal.sources(tmp_path)):
        graph, file = rehearsal.read_layout(path), planned[number]
        assert (len(graph.node_feat), len(graph.node_config_ids), len(graph.config_runtime)) == (
            file["nodes"], file["configurable"], file["configs"])
        assert graph.config_runtime.any() == (file["split"] != "test") and path.parent.name == file["split"]


@pytest.mark.long
def test_a_step_that_takes_more_than_the_limit_ends_the_rehearsal(rehearsal, tmp_path):
    code = f"""import sys; sys.path.insert(0, {str(REHEARSAL.parent)!r}); import rehearsal
rehearsal.STEPS["greedy"] = lambda root, size: (len(bytearray(rehearsal.LIMIT)), {{}})
rehearsal.one_step("greedy", ".", "tiny", 1)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "MemoryError"


@pytest.fixture(scope="module")
def gpu():
    sys.path.insert(0, str(RUN.parent))
    try:
        return loaded(RUN.with_name("gpu.py"))
    finally:
        del sys.path[0]


def few_models(gpu, monkeypatch):
    """Only the two fastest models, without processes of their own."""
    monkeypatch.setattr(gpu, "MODELS", {name: gpu.MODELS[name] for name in ("token model", "tile model")})
    whole = gpu.planned
    monkeypatch.setattr(gpu, "planned", lambda programs, kernels, has_pair: whole(programs, kernels, False))


@pytest.mark.long
def test_the_gpu_script_trains_ranks_and_checks(gpu, tmp_path, monkeypatch, capsys):
    few_models(gpu, monkeypatch)
    assert gpu.main(["--device", "cpu", "--size", "tiny", "--out", str(tmp_path / "gpu.json")]) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["finished"] and not found["not_tried"] and found["card"] and found["versions"]["torch"]
    assert [(case["model"], case["precision"]) for case in found["cases"]] == [
        *product(("token model", "tile model"), ("float32",)), *product(("token model", "tile model"), ("bfloat16",)),
        *product(("token model", "tile model"), ("float16",))]
    for case in found["cases"]:
        assert not case["failures"] and case["steps"] == 40 and case["loss"][-1] < 0.8 * case["loss"][0]
        for row in case["programs"].values():
            assert row["step_seconds"] > 0 and row["ranked_per_second"] > 0 and row["tau"] > 0.3
            assert (row["cpu_difference"] == 0) == (case["precision"] == "float32")
    printed = capsys.readouterr().out
    assert "| token model | bfloat16 | 44 nodes |" in printed and "0 checks failed" in printed


@pytest.mark.long
def test_the_gpu_script_notices_a_broken_ranking_a_crash_and_the_end_of_its_time(gpu, tmp_path, monkeypatch, capsys):
    few_models(gpu, monkeypatch)
    right, whole, begun = gpu.predict, gpu.run_case, []

    def broken(model, graph, precision="float32", **options):
        cost = right(model, graph, precision=precision, **options)
        return cost if precision == "float32" else cost[::-1].copy()         # the CPU ranks in float32

    def tile_crashes(case, *rest):
        begun.append(case["model"])
        if begun[-1] == "tile model":
            raise RuntimeError("no kernel image")
        if len(begun) == 3:
            monkeypatch.setattr(gpu.Clock, "left", lambda clock: 0)
        return whole(case, *rest)
    monkeypatch.setattr(gpu, "predict", broken)
    monkeypatch.setattr(gpu, "run_case", tile_crashes)
    assert gpu.main(["--device", "cpu", "--size", "tiny", "--out", str(tmp_path / "gpu.json")]) == 1
    found = json.loads((tmp_path / "gpu.json").read_text())
    float32, crash, bfloat16 = found["cases"]
    assert float32["failures"] == [] and crash["failures"] == ["RuntimeError: no kernel image"]
    for words, times in (("differs from the CPU's", 2), ("tau with the CPU's order", 2), ("tau on held-out", 1)):
        assert sum(words in fault for fault in bfloat16["failures"]) == times
    assert len(found["not_tried"]) == 3
    assert "NOT TRIED: token model, float16: no time was left" in capsys.readouterr().out


def test_the_gpu_script_says_that_two_gpus_were_not_there(gpu, monkeypatch):
    found = {"cases": [], "not_tried": []}
    monkeypatch.setattr(gpu.torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(gpu, "planned", lambda programs, kernels, has_pair: [] if not has_pair else 1 / 0)
    gpu.run_all(found, gpu.SIZES["tiny"], "cuda", gpu.Clock(1), print)
    assert found["not_tried"] == ["two processes: there is one GPU here"]


@pytest.mark.long
def test_the_gpu_script_in_small_goes_through_every_model_and_two_processes(tmp_path):
    command = [sys.executable, str(RUN.with_name("gpu.py")), "--device", "cpu", "--size", "tiny", "--out",
               str(tmp_path / "gpu.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    cases = json.loads((tmp_path / "gpu.json").read_text())["cases"]
    assert [case["processes"] for case in cases] == [1] * 14 + [2] and not any("not_judged" in case for case in cases)


def drawn_scores(study, names):
    rng = np.random.default_rng(0)
    runtimes = {f"g{i}": rng.random(30) for i in range(6)}
    kinds = {kind: {i: t + noise * rng.standard_normal(30) for i, t in runtimes.items()}
             for kind, noise in zip(names, (0.3, 0.4, 2.0))}
    return kinds, runtimes, study.Scores(kinds, runtimes)


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_the_weights_study_chooses_by_look_up_what_the_costs_choose(study, names):
    kinds, runtimes, scores = drawn_scores(study, names)
    prior = np.arange(1.0, len(names) + 1)
    for drawn in ([0], [3, 1], [5, 0, 2, 4]):
        shares = choose_weights(kinds, {f"g{i}": runtimes[f"g{i}"] for i in drawn}, kendall_tau,
                                prior=dict(zip(names, prior)))
        assert study.greedy(scores, np.array(drawn), prior / prior.sum()) == pytest.approx([*shares.values()])
    assert study.greedy(scores, np.array([], int), prior / prior.sum()) == pytest.approx(prior / prior.sum())


@pytest.mark.parametrize("names, parts", [("ab", 20), ("abc", 10)])
def test_the_best_fixed_weights_are_the_best_of_all_multiples(study, names, parts):
    kinds, runtimes, scores = drawn_scores(study, names)
    grid = {tuple(np.array(p) / parts) for p in product(range(parts + 1), repeat=len(names)) if sum(p) == parts}
    assert {tuple(shares) for shares in scores.grid()} == grid
    tau = {shares: np.mean([kendall_tau(sum(s * kinds[k][i] for s, k in zip(shares, names)), t)
                            for i, t in runtimes.items()]) for shares in grid}
    case = study.Situation(scores, np.full(len(names), 1 / len(names)))
    assert tau[tuple(case.best())] == pytest.approx(max(tau.values()))
    # without a program, the loss is that of the prior on all programs; the best weights themselves lose nothing
    assert case.losses(study.greedy, 0, 5) == pytest.approx([case.loss_of_equal()])
    assert case.losses(lambda *_: case.best(), 2, 5) == pytest.approx(np.zeros(5), abs=1e-12)


@pytest.fixture(scope="module")
def folds_study():
    sys.path.insert(0, str(RUN.parent))
    try:
        return loaded(RUN.with_name("folds_study.py"))
    finally:
        del sys.path[0]


def test_the_siblings_study_reads_a_sample_that_it_ranked_before(siblings_study, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    rows = [siblings_study.Ranked(7, 2, "layout:xla:random", split, f"program {i}", {
        kind: rng.random(5) for kind in ("runtime", "token", "siblings")[:3 - i]}) for i, split in
        enumerate(("valid", "test"))]
    monkeypatch.setattr(siblings_study, "write_sample", lambda *args, **options: None)
    monkeypatch.setattr(siblings_study, "rank_sample", lambda *args: rows)
    first = siblings_study.ranked_sample(tmp_path, 7, 2, 1)
    monkeypatch.delattr(siblings_study, "rank_sample")           # nothing is ranked again
    for expected, *found in zip(rows, first, siblings_study.ranked_sample(tmp_path, 7, 2, 1)):
        for one in found:
            assert one[:-1] == expected[:-1] and one.costs.keys() == expected.costs.keys()
            assert all(np.array_equal(one.costs[kind], cost) for kind, cost in expected.costs.items())
    with pytest.raises(NameError, match="rank_sample"):
        siblings_study.ranked_sample(tmp_path, 8, 2, 1)          # another sample


def test_the_siblings_study_counts_a_program_of_both_searches_once(siblings_study):
    #   programs a and b in two searches, c in one; two seeds
    rows = [siblings_study.Ranked(1, seed, f"layout:xla:{search}", "test", name, {}) for seed in range(2)
            for search, names in (("random", "ab"), ("default", "abc")) for name in names]
    means = siblings_study.by_program(rows, np.arange(10.0))
    assert means.tolist() == [[1.0, 2.0, 4.0], [6.0, 7.0, 9.0]]


def test_the_folds_study_scores_a_program_with_weights_that_it_did_not_choose(folds_study):
    rng = np.random.default_rng(0)
    runtimes = {f"g{i}": rng.random(30) for i in range(6)}
    kinds = {kind: {i: t + noise * rng.standard_normal(30) for i, t in runtimes.items()}
             for kind, noise in (("token", 0.4), ("gnn", 0.3))}
    case, draws, count = folds_study.situations(kinds | {"ridge": kinds["gnn"]}, runtimes)["prior exchanged"], 4, 5
    taus, rng = [[] for _ in range(count)], np.random.default_rng(0)
    for _ in range(draws):
        order = rng.permutation(count)
        known = {f"g{i}": runtimes[f"g{i}"] for i in (*order[:2], 5)}
        shares = choose_weights(kinds, known, kendall_tau, prior={"token": folds_study.PRIOR["gnn"], "gnn": 10})
        for i in order[2:]:
            cost = sum(shares[kind] * kinds[kind][f"g{i}"] for kind in kinds)
            taus[i].append(kendall_tau(cost, runtimes[f"g{i}"]))
    expected = [np.mean(some) for some in taus]
    assert folds_study.chosen(case, count, 2, draws, [5]) == pytest.approx(expected)


@pytest.fixture(scope="module")
def explain_study():
    return loaded(RUN.with_name("explain_study.py"))


def test_the_share_of_a_group_in_the_file_is_the_adjusted_r2_of_a_regression(explain_study):
    rng = np.random.default_rng(0)
    codes = rng.integers(4, size=(200, 2))
    values = codes[:, 0] + (codes[:, 0] == codes[:, 1]) + rng.normal(size=200)
    for columns in ([0], [1], [0, 1]):
        one_hot = pd.get_dummies(["".join(map(str, row)) for row in codes[:, columns]]).to_numpy(float)
        plain = LinearRegression(fit_intercept=False).fit(one_hot, values).score(one_hot, values)
        expected = 1 - (1 - plain) * (len(values) - 1) / (len(values) - one_hot.shape[1])
        assert explain_study.between(codes[:, columns], values) == pytest.approx(expected)
    assert abs(explain_study.between(rng.integers(20, size=(5000, 1)), rng.random(5000))) < 0.01
    assert explain_study.between(np.arange(5)[:, None], np.arange(5)) == 0       # one value a label says nothing


@pytest.mark.parametrize("mix", ["pool", "none"])
def test_the_shares_of_the_terms_in_the_cost_add_up_to_one(explain_study, mix):
    graph = drawn_layout(3)
    model = ConfigTokenModel(ConfigTokenSettings(mix=mix))
    model.fit_scale([graph])
    shares = explain_study.shares_in_model(model, graph, range(len(graph.config_codes)), None)
    assert sum(shares.values()) == pytest.approx(1) and (shares[explain_study.REST] != 0) == (mix == "pool")
    # one more way: the shares of the diagonal, term by term, from the costs of all configurations
    cost = np.array([explain(model, graph, code).cost for code in graph.config_codes])
    for group in range(graph.config_codes.shape[1]):
        own = [explain(model, graph, code).by_group(graph)[group, group] for code in graph.config_codes]
        expected = np.cov(own, cost)[0, 1] / np.var(cost, ddof=1)
        assert shares.get((group, group), 0) == pytest.approx(expected)
