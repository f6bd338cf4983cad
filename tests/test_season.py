"""The ledger as a season: its order, what changed, where each CSV came from, and who disagrees with whom."""
import hashlib
import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from test_report import Page

from kit.data import COLLECTIONS, SPLITS, DataError, npz_paths
from lab.predictions import Prediction, Predictions
from lab.run import Run
from lab.run.folder import data_digest
from lab.season import graph_scores, list_runs, read_season, record_run, write_report


@pytest.fixture
def entry(tmp_path):
    """(run, ...) -> writes an entry; the CSV differs from run to run, and the order is that of the calls."""
    (tmp_path / "ledger").mkdir()
    made = []

    def write(run, scores=None, public=None, private=None, **changes):
        made.append(run)
        record = {"run": run, "data": "npz of the competition", "sha256": hashlib.sha256(run.encode()).hexdigest(),
                  "recorded": f"2026-11-01T00:00:{len(made):02}Z", "commit": "a" * 40, "parameters": {},
                  "validation": {name: dict(zip(("score", "low", "high"), values), graphs=7, split="valid")
                                 for name, values in (scores or {}).items()},
                  "leaderboard": {"public": public, "private": private}}
        record = {key: value for key, value in (record | changes).items() if value is not ...}
        (tmp_path / "ledger" / f"{run}.json").write_text(json.dumps(record))
        return tmp_path / "ledger"
    return write


def disagreements(records, which):
    """Slowly: (pairs of runs with both scores, those whose order differs, those whose intervals lie apart)."""
    pairs = other = 0
    apart = set()
    for a, b in combinations(records, 2):
        if a[which] is None or b[which] is None:
            continue
        pairs += 1
        means = [[sum(values[i] for values in one["validation"].values()) / len(one["validation"]) for i in range(3)]
                 for one in (a, b)]
        by_validation = means[0][0] > means[1][0]
        if means[0][0] != means[1][0] and a[which] != b[which] and by_validation != (a[which] > b[which]):
            other += 1
            good, poor = (0, 1) if by_validation else (1, 0)
            if means[good][1] > means[poor][2]:
                apart.add(((a, b)[good]["run"], (a, b)[poor]["run"]))
    return pairs, other, apart


@pytest.mark.parametrize("seed", range(4))
def test_remarks_count_what_a_slow_count_finds_and_name_pairs_that_disagree_beyond_their_intervals(entry, seed):
    rng, records = np.random.default_rng(seed), []
    for number in range(7):
        scores = np.sort(rng.random((5, 3)) * 0.1, axis=1)[:, [1, 0, 2]] + rng.random()
        known = [round(float(rng.random()), 1) if rng.random() < 0.8 else None for _ in range(2)]
        records.append({"run": f"run{number}", "validation": dict(zip(COLLECTIONS, scores.tolist())),
                        "public": known[0], "private": known[1]})
        folder = entry(f"run{number}", records[-1]["validation"], *known)
    said, most = read_season(folder).remarks(), 3
    for name in ("public", "private"):
        pairs, other, apart = disagreements(records, name)
        assert (f"validation and the {name} score disagree on the order of {other} of {pairs} pairs of submissions, "
                f"{len(apart)} of them beyond the intervals of validation") in said
        named = [line for line in said if line.startswith("shake-up? validation puts") and f"the {name} score" in line]
        found = {(words[3], words[5]) for words in map(str.split, named)}
        assert found <= apart and len(found) == min(len(apart), most)
        assert (f"shake-up? {len(apart) - most} more pairs like this" in said) or len(apart) <= most
    best = {name: max((r for r in records if r[name] is not None), key=lambda r: r[name])["run"]
            for name in ("public", "private")}
    assert all(line.endswith((best["public"], best["private"])) for line in said if line.startswith("best by"))


def test_only_what_was_judged_by_the_same_graphs_is_compared(entry):
    high, low = {"tile:xla": (0.9, 0.88, 0.92)}, {"tile:xla": (0.5, 0.48, 0.52)}
    entry("a", high, public=0.1)
    entry("sample", low, public=0.2, data="sample data")
    entry("other-collections", low | {"layout:xla:random": (0.5, 0.48, 0.52)}, public=0.2)
    entry("other-graphs", public=0.2, validation={
        "tile:xla": {"score": 0.5, "low": 0.48, "high": 0.52, "graphs": 3, "split": "valid"}})
    folder = entry("same-csv", low, public=0.2, sha256=hashlib.sha256(b"a").hexdigest())
    assert read_season(folder).remarks() == []
    entry("b", low, public=0.2)
    said = read_season(folder).remarks()
    assert said == [
        "validation and the public score disagree on the order of 1 of 2 pairs of submissions, 1 of them beyond the "
        "intervals of validation",
        "shake-up? validation puts a above b (0.880 to 0.920 against 0.480 to 0.520), but the public score puts it "
        "below (0.100 against 0.200)",
        "best by validation: a; best by the public score: same-csv"]


def test_two_entries_with_the_scores_of_each_graph_are_compared_graph_by_graph(entry):
    """The graphs differ by 0.4, the two submissions by 0.01 on every graph: only the differences show who is better."""
    better, names = np.linspace(0.3, 0.7, 9), {"tile:xla": "a", "layout:nlp:random": "b"}

    def ledger(lower, **changed):
        for run, public, each in (("a", 0.1, better), ("b", 0.2, lower)):
            folder = entry(run, public=public, validation={
                name: {"score": each.mean(), "low": 0.4, "high": 0.6, "graphs": 9, "split": "valid",
                       "each": " ".join(f"{score:.4f}" for score in each),
                       "names": changed.get("names", digest) if run == "b" else digest}
                for name, digest in names.items()})
        return read_season(folder).remarks()
    steady, mixed = better - 0.01, better - np.array([-0.2, 0.2, 0.1, -0.1, 0.1, 0, 0.1, -0.1, 0.09])
    assert ledger(steady)[1] == ("shake-up? validation puts a above b (by 0.010, 0.010 to 0.010), but the public score "
                                 "puts it below (0.100 against 0.200)")
    assert ledger(steady)[0].endswith("1 of 1 pairs of submissions, 1 of them beyond the intervals of validation")
    for said in (ledger(mixed), ledger(steady, names="of other graphs")):
        assert said == ["validation and the public score disagree on the order of 1 of 1 pairs of submissions, 0 of "
                        "them beyond the intervals of validation",
                        "best by validation: a; best by the public score: b"]
    # against all ways to draw the graphs: half of the draws of `mixed` are no lead, none of `steady`
    draws = np.random.default_rng(1).integers(9, size=(10 ** 5, 9))
    leads = [np.quantile((better - other)[draws].mean(axis=1), 0.025) for other in (steady, mixed)]
    assert leads[0] > 0 > leads[1]


def test_the_scores_of_each_graph_are_taken_if_they_fit_the_table(tmp_path):
    path, rows = tmp_path / "graph_scores.csv", {"tile:xla": {"score": 0.5, "graphs": 2}}
    assert graph_scores(path, rows) is rows
    path.write_text("collection,graph,score\ntile:xla,b,0.75\nlayout:nlp:random,x,1\ntile:xla,a,0.25\n")
    assert graph_scores(path, rows) == {"tile:xla": {"score": 0.5, "graphs": 2, "each": "0.2500 0.7500",
                                                     "names": hashlib.sha256(b"a\nb").hexdigest()[:16]}}
    for other in ({"score": 0.5, "graphs": 3}, {"score": 0.6, "graphs": 2}, {"score": None, "graphs": 2}):
        assert graph_scores(path, {"tile:xla": other}) == {"tile:xla": other}
    for text in ("collection,graph\ntile:xla,a\n", "collection,graph,score\ntile:xla,a,high\n",
                 "collection,graph,score\ntile:xla,a\n", b"\xff", 'collection,graph,score\n"'):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(DataError, match="is no table of scores per graph .*; run notebook 05 again"):
            graph_scores(path, rows)


def test_the_order_is_that_of_the_records_and_entries_without_a_time_come_first(entry):
    for run in "cadb":
        folder = entry(run, {"tile:xla": (0.9, None, None)})
    for run in "zy":
        folder = entry(run, {}, recorded=..., commit=None)
    season = read_season(folder)
    assert [one.run for one in season.entries] == list("yzcadb") and season.problem is None
    assert season.entries[0].score is None and season.entries[2].score == 0.9 and season.entries[2].interval is None
    assert [row["own score"] for row in season.rows()] == ["", "", *["0.900"] * 4] and season.points() == []


def test_what_changed_is_said_setting_by_setting_and_source_by_source(entry):
    both = {"tile:xla": (0.9, 0.8, 0.95), "layout:xla:random": (0.5, 0.4, 0.6)}
    made = {"data": {"tile:xla train": "1", "tile:xla valid": "1"}, "code": {"kit.train": "1"},
            "predictions": {f"tile_xla/tile_seed{i}": "1" for i in range(3)},
            "weights": {f"tile_xla/tile_seed{i}": f"{i}" for i in range(3)}}
    settings = {"03_train_tile": {"steps": 100}, "04_train_layout": {"recipe": "quick", "folds": None}}
    entry("old", both, parameters=settings)
    entry("first", both, parameters=settings, made_from=made)
    entry("again", both, parameters=settings, made_from=made)
    entry("settings", both, parameters={"03_train_tile": {"steps": 200}, "04_train_layout": {"recipe": "full", "x": 1}},
          made_from=made, commit="b" * 40)
    entry("sample", both, data="sample data", made_from=made)
    other = {"data": {"tile:xla train": "2", "tile:xla valid": "1", "layout:xla:random train": "1"},
             "code": {"kit.train": "2", "kit.predict": "1"},
             "predictions": {"tile_xla/tile_seed1": "2", "tile_xla/tile_seed2": "1", "tile_xla/tile_seed3": "1"},
             "weights": {"tile_xla/tile_seed1": "other", "tile_xla/tile_seed2": "2", "tile_xla/tile_seed3": "3"}}
    entry("sources", {"tile:xla": both["tile:xla"]}, parameters=settings, made_from=other, commit="c" * 40)
    folder = entry("graphs", both, parameters={"flat": 1}, commit="c" * 40,
                   sha256=hashlib.sha256(b"sources").hexdigest())
    path = folder / "graphs.json"
    path.write_text(path.read_text().replace('"graphs": 7', '"graphs": 8', 1))
    assert {row["run"]: row["changed since the last"] for row in read_season(folder).rows()} == {
        "old": "the first on these data", "first": "nothing that the ledger knows of",
        "again": "nothing that the ledger knows of",
        "settings": '03 steps: 100 to 200; 04 folds: null to unset; 04 recipe: "quick" to "full"; 04 x: unset to 1',
        "sample": "the first on these data",
        "sources": '03 steps: 200 to 100; 04 folds: unset to null; 04 recipe: "full" to "quick"; 04 x: 1 to unset; '
                   "without layout:xla:random; other data: tile:xla train; other code (commit bbbbbbb to ccccccc); "
                   "new models: tile_xla/tile_seed3; models gone: tile_xla/tile_seed0; "
                   "models with other weights: tile_xla/tile_seed1",
        "graphs": "the same CSV as sources; 03 steps: 100 to unset; 04 folds: null to unset; "
                  '04 recipe: "quick" to unset; flat: unset to 1; with layout:xla:random; '
                  "other validation graphs of tile:xla"}


@pytest.mark.parametrize("changes", [
    {"leaderboard": {"public": "0.7", "private": None}}, {"validation": {"tile:xla": {"score": "high"}}},
    {"validation": {"tile:xla": {"score": 0.5, "each": "0.5 high"}}}, {"parameters": [1]}, {"made_from": {"data": 1}}])
def test_an_odd_entry_is_one_sentence_and_the_others_are_shown(entry, changes):
    entry("good", {"tile:xla": (0.9, 0.8, 1)}, public=0.7)
    folder = entry("odd", {}, **changes)
    season = read_season(folder)
    assert [one.run for one in season.entries] == ["good"] and len(season.rows()) == len(season.points()) == 1
    assert season.problem.startswith(f"left out of the ledger's table: {folder / 'odd.json'} is an odd ledger entry (")


def test_damaged_entries_are_one_sentence_and_files_of_others_are_none(entry):
    folder = entry("good")
    whole = (folder / "good.json").read_text()
    for number in range(30):
        (folder / f"stranger{number}.json").write_text("{}")
    (folder / "folder.json").mkdir()
    assert read_season(folder).problem is None and len(list_runs(folder)) == 1
    for number in range(4):
        (folder / f"x{number}.json").write_text(whole[:-50])
    problem = read_season(folder).problem
    assert problem.count(" is not a ledger entry (") == 2 and problem.endswith("; and 2 more")
    assert read_season(folder / "nowhere") == ([], None)


def test_an_entry_names_the_data_code_weights_and_predictions_of_its_csv(tiny_sample, tmp_path):
    out, name = tmp_path / "run", "tile:xla"
    costs = {split: {f"{name}:{path.stem}": np.arange(3.0) for path in npz_paths(tiny_sample, name, split)}
             for split in ("valid", "test")}
    train = Run("03_train_tile", tiny_sample, out, collections=name)
    train.publish(Predictions(train.data(), [
        Prediction(name, split, "tile", seed, {i: cost + seed for i, cost in own.items()},
                   (name, "layout:nlp:random"), f"tile_xla-tile-{seed}-0123")
        for seed in range(2) for split, own in costs.items()]), steps=3)
    combine = Run("05_ensemble", tiny_sample, out, collections=name)
    combine.section("03_train_tile", name)
    combine.publish(Predictions(combine.data(), [Prediction(name, "test", "ensemble", None, costs["test"])]),
                    how="mean_rank")
    last = Run("06_submit", tiny_sample, out, collections=name)
    csv = last.save_submission(last.costs("05_ensemble", [name]))
    files = {one["member"]: one["file"] for one in train.record(train.step)["sections"][name]["costs"]
             if one["split"] == "test"}
    entry = record_run(tmp_path, "run", csv, "sample data", last.settings([name]), {}, last.origin([name]))
    made_from = json.loads(entry.read_text())["made_from"]
    assert made_from["data"] == {f"{c} {split}": data_digest(last.root, c, split)[:16]
                                 for c in (name, "layout:nlp:random") for split in SPLITS}
    assert made_from["code"].keys() == {"03_train_tile", "05_ensemble"}
    assert made_from["predictions"] == {f"tile_xla/{one}": file.removeprefix("costs-") for one, file in files.items()}
    assert made_from["weights"] == {f"tile_xla/tile_seed{seed}": f"tile_xla-tile-{seed}-0123" for seed in range(2)}
    assert json.loads(entry.read_text())["parameters"] == {
        "03_train_tile": {"steps": 3, "k_hops": None}, "05_ensemble": {"how": "mean_rank", "k_hops": None}}


def reported(folder, run="b", **more):
    out = Path(folder, run)
    out.mkdir(exist_ok=True)
    write_report(out / "report.html", out, "next", **more)
    return Page((out / "report.html").read_text())


def test_the_report_shows_the_season_of_a_run_that_is_in_the_ledger(entry, capsys):
    for run, score, public in (("a", 0.6, 0.61), ("b", 0.7, 0.5), ("<i>", 0.5, None)):
        folder = entry(run, {"tile:xla": (score, score - 0.02, score + 0.02)}, public=public,
                       parameters={"03_train_tile": {"steps": score}})
    seen = reported(folder)
    for words in ("The season", "0.700 (0.680 to 0.720)", "03 steps: 0.6 to 0.7", "<i>", "No file was left out",
                  "shake-up? validation puts b above a (0.680 to 0.720 against 0.580 to 0.620), but the public score "
                  "puts it below (0.500 against 0.610)"):
        assert words in seen.said, words
    assert seen.tags.count("img") == 1 and "i" not in seen.tags and capsys.readouterr().out == ""
    assert "The season" not in reported(folder, "c").said
    assert "The season" in reported(folder.parent, ledger=folder).said
    (folder / "damaged.json").write_text('{"sha256": ')
    seen = reported(folder)
    assert seen.said.count("left out of the ledger's table") == 1 and "The season" in seen.said
    assert capsys.readouterr().out.count("\n") == 1
