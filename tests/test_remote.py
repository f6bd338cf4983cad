"""Training on Kaggle's machines, with the real client against a local server that runs what is pushed."""
import functools
import io
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kaggle_server import PYTHON, QUICK, SIGNATURE, TOKEN, USER, fails, hurried
from test_run import HEARS_INTERRUPTS

import lab.jobs.jobs
import lab.jobs.results
from kit.data import COLLECTIONS, npz_paths
from lab.jobs.jobs import job_name, plan_jobs, read_jobs, renew, watch_jobs
from lab.jobs.results import collect_results, publish_jobs, tail
from lab.run import Folder, Prediction, Run, gather_predictions
from lab.run.folder import step_of
from lab.run.report import write_report
from lab.run.store import DIGEST, Store, content_of, read_kept

PROJECT = Path(__file__).resolve().parents[1]
TILE, LAYOUT = "tile:xla", "layout:xla:random"
TWO = ["--collections", f"{TILE},{LAYOUT}"]
LOG = [{"stream_name": "stdout", "time": 1.5, "data": "layout:xla:random: token, seed 0\n"},
       {"stream_name": "stderr", "time": 2, "data": "\x1b[31mCUDA out of\x1b[0m memory\n"}]
RECORD = {"model": "TileModel", "parameters": 9, "graphs": 3, "settings": {"steps": 3}, "configs_seen": 30,
          "seconds": 1.5, "peak_memory": None, "curve": {"loss": [0.5, None], "score": [0.5]}}
BROKEN = {"status": "ERROR", "failureMessage": "Your notebook threw an error", "files": [], "log": json.dumps(LOG)}


def command(root, *args):
    """What a user types; the interpreter may be another one, with another client."""
    return [PYTHON, "-c", HEARS_INTERRUPTS, str(PROJECT / "notebooks" / "run.py"), "--on", "kaggle",
            "--owner", USER, "--data-root", str(root), "--size", "tiny", "--out", "out", *args]


def run(folder, root, *args, timeout=300):
    """notebooks/run.py in a child process -> (exit status, stdout, stderr)."""
    done = subprocess.run(command(root, *args), cwd=folder, env=hurried(folder / "hurried"), text=True,
                          capture_output=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


def costs_of(root, collection, split, seed=0):
    """Predictions as a notebook would leave them, by chance."""
    rng, costs = np.random.default_rng(seed), {}
    for path in npz_paths(root, collection, split):
        with np.load(path, allow_pickle=False) as npz:
            costs[f"{collection}:{path.stem}"] = rng.random(len(npz["config_runtime"]))
    return costs


def published(root, folder, collection, seeds=(0,), draw=0, **instead):
    """What a notebook leaves in the folder of its run, by chance -> {name: bytes}; `instead`: {split: other costs}."""
    step, kind = step_of(collection), "tile" if collection == TILE else "token"
    run = Run(step, root, folder, "tiny", [collection])
    for seed in seeds:
        model = run.store.name(f"{collection.replace(':', '_')}-{kind}-{seed}", seed)
        run.store.path(model, ".json").parent.mkdir(exist_ok=True)
        run.store.path(model, ".json").write_text(json.dumps(RECORD))
    run.publish([Prediction(collection, f"{kind}_seed{seed}", split,
                            instead.get(split, costs_of(root, collection, split, seed + draw)), model)
                 for seed in seeds for split in ("valid", "test")], seeds=len(seeds), first_seed=min(seeds), width=8)
    return {f"results/{path.relative_to(folder).as_posix()}": path.read_bytes()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def finished(server, root, collection, seeds=(0,), more=None, **instead):
    """A notebook that is complete, and left results; `more`: {name: bytes} of files that differ, or are added."""
    files = []
    with tempfile.TemporaryDirectory() as folder:
        left = published(root, Path(folder), collection, seeds, **instead)
    for name, data in {**left, **(more or {})}.items():
        path = f"/output/{len(server.files)}"
        server.files[path] = data
        files.append((name, path))
    return {"status": "COMPLETE", "files": files, "log": "[]"}


def planned(*collections, **more):
    jobs = {job_name(job, "text"): job for job in plan_jobs(collections, **more)}
    return jobs


@pytest.fixture
def notebook(tmp_path):
    """A notebook that is as good as any other."""
    folder = tmp_path / "book"
    folder.mkdir()
    (folder / "book.ipynb").write_text(json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    (folder / "kernel-metadata.json").write_text(json.dumps({"code_file": "book.ipynb"}))
    return folder


def watch(jobs, notebook, folder, root):
    """Go on with some jobs as run.py does -> what failed."""
    out, path = folder / "out", folder / "out" / ".run" / "kaggle.json"
    known = read_jobs(path)
    renew(jobs, known, USER, out, root)
    return watch_jobs(jobs, dict.fromkeys(jobs, notebook), out, root, path, known, every=0.01, client=QUICK)


def fetched(out, root, collection=TILE):
    """The costs of test programs that a run has of a collection."""
    return Folder(out, root).costs(step_of(collection), [collection])


def states(folder):
    return [job["state"] for job in json.loads((folder / "out" / ".run" / "kaggle.json").read_text()).values()]


# --- the whole way, in a child process

class Machine:
    """Kaggle's side: tile notebooks really run, layout notebooks fail."""

    def __init__(self, server, folder):
        self.server, self.folder, self.at_once, self.children = server, folder, 0, []
        server.machine = self.start

    def start(self, body):
        if TILE not in body["text"].replace('\\"', '"') or "layout-" in body["slug"]:
            return BROKEN
        place = self.folder / body["slug"].rpartition("/")[2]
        place.mkdir(parents=True)
        (place / "book.ipynb").write_text(body["text"])
        around = {k: v for k, v in os.environ.items() if not k.startswith("KAGGLE") and "proxy" not in k}
        with open(place / "said.txt", "w") as said:
            child = subprocess.Popen([sys.executable, "-m", "papermill", "book.ipynb", "done.ipynb", "-k", "python3"],
                                     cwd=place, env={**around, "OMP_NUM_THREADS": "1"}, stdout=said, stderr=said)
        self.children.append(child)
        self.at_once = max(self.at_once, sum(c.poll() is None for c in self.children))
        return lambda: self.look(place, child)

    def look(self, place, child):
        if child.poll() is None:
            return {"status": "RUNNING", "files": [], "log": ""}
        assert child.returncode == 0, (place / "said.txt").read_text()
        files = [path for path in sorted(place.rglob("*")) if path.is_file()]
        for path in files:
            self.server.files[f"/output/{path}"] = path.read_bytes()
        return {"status": "COMPLETE", "log": "[]",
                "files": [(path.relative_to(place).as_posix(), f"/output/{path}") for path in files]}


@pytest.mark.long
def test_notebooks_train_there_one_fails_and_the_others_are_combined_here(kaggle, tmp_path, tiny_sample):
    machine = Machine(kaggle, tmp_path / "machines")
    status, said, errors = run(tmp_path, tiny_sample, *TWO, "-p", "seeds=2", "--seed-groups", "2", "-p", "steps=3",
                               timeout=900)
    assert (status, errors) == (3, ""), said[-2000:] + errors
    assert len(kaggle.pushed) == 4 and len({body["slug"] for body in kaggle.pushed}) == 4 and machine.at_once <= 2
    for body in kaggle.pushed:
        assert re.fullmatch(rf"{USER}/tpugraphs-kit-(tile-xla|layout-xla-random)-[01]-[0-9a-f]{{8}}", body["slug"])
        assert (body["isPrivate"], body["enableGpu"], body["enableInternet"]) == (True, True, False)
        assert body["machineShape"] == "NvidiaTeslaT4"
        assert body["newTitle"].replace(" ", "-") == body["slug"].partition("/")[2] and len(body["newTitle"]) <= 50
    quota = "GPU quota: 12.3 of 30.0 hours used this week, 17.7 left, 1.5 reserved by running notebooks, renewed "
    assert said.count("GPU quota") == 1 and said.index(quota) < said.index(": running\n")
    out = tmp_path / "out"
    section = Folder(out, tiny_sample).section("03_train_tile", TILE)
    tiles = [(one["member"], one["split"]) for one in section["costs"]]
    assert tiles == [(f"tile_seed{seed}", split) for seed in (0, 1) for split in ("test", "valid")]
    first, second = (read_kept(out / "store" / f"{one['file']}.npz") for one in section["costs"][::2])
    assert first.keys() == second.keys() and all((first[name] != second[name]).any() for name in first)
    table = pd.read_csv(out / "scores.csv")
    assert set(table["collection"]) == {TILE} and table.set_index("model").loc["tile", "seeds"] == 2
    assert (out / "submission.csv").read_text().count("\ntile:xla:") == len(npz_paths(tiny_sample, TILE, "test"))
    failed = [line for line in said.splitlines() if line.startswith("left out: someone/tpugraphs-kit-layout-xla-")]
    assert len(failed) == 2 and all("failed on Kaggle: Your notebook threw an error" in line for line in failed)
    assert "    layout:xla:random: token, seed 0\n    CUDA out of memory\n" in said
    page = (out / "report.html").read_text()
    assert "CUDA out of memory" in page and "tile_xla-tile-0" in page and "tile_xla-tile-1" in page
    assert sorted(states(tmp_path)) == ["failed", "failed", "fetched", "fetched"]
    entry = json.loads((tmp_path / "out.json").read_text())
    settings = entry["parameters"]["03_train_tile"]
    assert (settings["seeds"], settings["steps"], settings["first_seed"]) == (2, 3, 0)
    assert {ref.rpartition("-")[0]: own["first_seed"] for ref, own in settings["on_kaggle"].items()} == {
        f"{USER}/tpugraphs-kit-tile-xla-{seed}": seed for seed in (0, 1)}


def until(child, true):
    """Wait for something while a child process runs."""
    end = time.monotonic() + 120
    while not true():
        assert child.poll() is None and time.monotonic() < end, child.communicate()
        time.sleep(0.02)


@pytest.mark.long
def test_an_interrupted_run_goes_on_and_pushes_nothing_twice(kaggle, tmp_path, tiny_sample):
    ready = []

    def start(body):
        collection = TILE if "tile" in body["slug"] else LAYOUT
        running = {"status": "RUNNING", "files": [], "log": ""}
        return lambda: finished(kaggle, tiny_sample, collection) if ready else running
    kaggle.machine = start
    kaggle.answers["SaveKernel"] = [None, "hang"]                # the second one arrives, its answer does not
    child = subprocess.Popen(command(tiny_sample, *TWO), cwd=tmp_path, env=hurried(tmp_path / "hurried"), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    until(child, lambda: len(kaggle.pushed) == 2)
    os.killpg(child.pid, signal.SIGINT)                          # as the terminal does it
    _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (130, "\ninterrupted; run the same command again to continue\n")
    assert states(tmp_path) == ["running", "pushing"]
    kaggle.answers.clear()
    ready.append(True)
    status, said, errors = run(tmp_path, tiny_sample, *TWO)
    assert (status, errors) == (0, ""), said
    assert states(tmp_path) == ["fetched", "fetched"] and len(kaggle.pushed) == 2
    assert kaggle.asked.count("SaveKernel") == 2
    assert said.splitlines()[-1] == "out/submission.csv" and (tmp_path / "out" / "submission.csv").is_file()


@pytest.mark.long
def test_the_same_plan_in_two_folders_has_its_own_notebooks_and_a_folder_that_moved_finds_them_again(
        kaggle, tmp_path, tiny_sample, monkeypatch):
    monkeypatch.syspath_prepend(PROJECT / "notebooks")
    import on_kaggle
    monkeypatch.setattr(on_kaggle, "watch_jobs", functools.partial(watch_jobs, every=0.01, client=QUICK))
    books = {PROJECT / "notebooks" / f"{name}.ipynb": {} for name in ("03_train_tile", "04_train_layout")}
    kaggle.machine = lambda body: finished(kaggle, tiny_sample, TILE, draw=len(kaggle.pushed))

    def train(out):
        jobs, failed = on_kaggle.train_on_kaggle(plan_jobs([TILE], seeds=1), books, USER, out, tiny_sample, True)
        assert failed == [] and [job["state"] for job in jobs.values()] == ["fetched"]
    train(tmp_path / "one")
    train(tmp_path / "two")
    slugs = [body["slug"] for body in kaggle.pushed]
    assert len(slugs) == len({*slugs}) == 2 and all(len(slug.partition("/")[2]) <= 50 for slug in slugs)
    shutil.move(tmp_path / "one", tmp_path / "moved")
    for path in (tmp_path / "moved" / "store").glob("*.npz"):
        path.unlink()                            # fetched once more
    train(tmp_path / "moved")
    assert len(kaggle.pushed) == 2
    for number, out in ((1, tmp_path / "moved"), (2, tmp_path / "two")):
        here, there = fetched(out, tiny_sample), costs_of(tiny_sample, TILE, "test", number)
        assert here.keys() == there.keys() and all((here[name] == there[name]).all() for name in here)


def dry_run(folder, monkeypatch, capfd, root, *args):
    """run.py --dry-run in this process -> (exit status, lines, stderr)."""
    monkeypatch.chdir(folder)
    status = runpy.run_path(PROJECT / "notebooks" / "run.py")["main"](command(root, "--dry-run", *args)[4:])
    said, errors = capfd.readouterr()
    return status, said.splitlines(), errors


def test_a_dry_run_says_what_would_be_pushed_and_neither_pushes_nor_writes_nor_needs_a_token(
        kaggle, tmp_path, tiny_sample, monkeypatch, capfd):
    monkeypatch.delenv("KAGGLE_API_TOKEN")
    before = {path: path.stat().st_mtime_ns for place in (tmp_path, tiny_sample) for path in place.rglob("*")}
    status, lines, errors = dry_run(tmp_path, monkeypatch, capfd, tiny_sample, *TWO, "-p", "recipe=full", "-p",
                                    "seeds=3", "--seed-groups", "2", "--dataset", "someone/more-data")
    assert (status, errors) == (0, ""), errors
    assert before == {path: path.stat().st_mtime_ns for place in (tmp_path, tiny_sample) for path in place.rglob("*")}
    assert lines[0] == "nothing is pushed now; notebooks without --dry-run: 4, at most 2 at a time"
    names = [line for line in lines if line.startswith(f"{USER}/")]
    assert names == [f"{USER}/tpugraphs-kit-{name}-{seed}-*" for name in ("tile-xla", "layout-xla-random")
                     for seed in (0, 2)]
    assert lines.count("    machine: NvidiaTeslaT4 (2 x T4), private, no internet") == 4
    assert lines.count("    data: sample data, made there") == 4
    assert [line for line in lines if "seed" in line] == [
        "    tile:xla: tile, seeds 0 to 1", "    tile:xla: tile, seed 2",
        "    layout:xla:random: token, gnn, seeds 0 to 1", "    layout:xla:random: token, gnn, seed 2"]
    assert sum(line.startswith("    training: ") for line in lines) == 4
    assert lines[-2].startswith("together: ") and lines[-1].startswith("GPU quota: not known, because there are no Kag")
    assert kaggle.asked == []


@pytest.mark.parametrize("budget, warns", [(None, False), (4, False), (2.5, False), (11, True)])
def test_a_dry_run_counts_the_sessions_of_each_notebook_and_of_all(kaggle, tmp_path, tiny_sample, monkeypatch, capfd,
                                                                   budget, warns):
    more = ["-p", f"time_budget={budget}"] if budget else []
    status, lines, errors = dry_run(tmp_path, monkeypatch, capfd, tiny_sample, *TWO, "-p", "recipe=full", "-p",
                                    "seeds=5", "--seed-groups", "2", "-p", "gnn_steps=50000", "-p", "steps=100",
                                    *more)
    assert (status, errors) == (0, "")
    count, long, hours = 0, [], []
    for line in [line for line in lines if line.startswith("    training: ")]:
        about = re.search(r"about (\d+\.\d) hours, ", line)
        rest, needed = float(about[1]) if about else 0.0, 1
        while rest > (budget or 8):                              # a session after another
            rest, needed = rest - (budget or 8), needed + 1
        words = f", at least {needed} sessions of {budget or 8} hours" if needed > 1 else ", 1 session"
        long.append(needed > 1)
        too_long = "; Kaggle ends a session after 9 to 12 hours" * (warns and about is not None)     # of one model
        assert line.endswith(words + too_long), line
        count, hours = count + needed, [*hours, float(about[1]) if about else 0.0]
    assert long == [False, False, True, not warns]               # tiles take minutes; two seeds fit into 11 hours
    total = re.match(rf"together: about (\d+\.\d) hours, at least {count} sessions \(calculated", lines[-2])
    assert float(total[1]) == pytest.approx(sum(hours), abs=0.21)
    assert lines[-1].startswith("GPU quota: 12.3 of 30.0 hours used this week, 17.7 left")
    assert lines[-1].endswith(f"; the plan takes more, about {total[1]}")


def test_a_dry_run_leaves_out_what_was_pushed_and_tells_the_quota(kaggle, tmp_path, tiny_sample, monkeypatch, capfd):
    monkeypatch.syspath_prepend(PROJECT / "notebooks")
    import on_kaggle
    monkeypatch.setattr(on_kaggle, "watch_jobs", functools.partial(watch_jobs, every=0.01, client=QUICK))
    kaggle.machine = lambda body: BROKEN if "layout" in body["slug"] else finished(kaggle, tiny_sample, TILE)
    args = [*TWO, "-p", "seeds=1", "--machine", "NvidiaTeslaA100"]
    books = {PROJECT / "notebooks" / f"{name}.ipynb": given for name, given in (
        ("03_train_tile", {"collections": [], "size": "tiny", "seeds": 1}),
        ("04_train_layout", {"collections": [], "size": "tiny", "seeds": 1}))}
    given = {path: {"data_root": "", "out_dir": "", **own} for path, own in books.items()}
    on_kaggle.train_on_kaggle(plan_jobs([TILE, LAYOUT], 1), given, USER, tmp_path / "out", tiny_sample, True,
                              machine="NvidiaTeslaA100")
    assert [body["machineShape"] for body in kaggle.pushed] == ["NvidiaTeslaA100"] * 2
    kaggle.said()
    status, lines, errors = dry_run(tmp_path, monkeypatch, capfd, tiny_sample, *args)
    assert (status, errors) == (0, "")
    done, again = (body["slug"] for body in kaggle.pushed)
    assert lines[:4] == [f"not pushed again: {done}: fetched",
                         "nothing is pushed now; notebooks without --dry-run: 1, at most 2 at a time",
                         f"{again}-2", "    machine: NvidiaTeslaA100 (1 x A100), private, no internet"]
    assert lines[-1].startswith("GPU quota: 12.3 of 30.0 hours used this week, 17.7 left") and len(kaggle.pushed) == 2


def test_a_token_that_is_missing_is_told_before_data_are_prepared(kaggle, tmp_path, tiny_sample, monkeypatch, capfd):
    monkeypatch.delenv("KAGGLE_API_TOKEN")
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(PROJECT / "notebooks" / "run.py")
    root = shutil.copytree(tiny_sample / "npz", tmp_path / "npz")
    monkeypatch.setitem(names["open_root"].__globals__, "PROJECT", tmp_path)
    assert names["main"](command(root, "--collections", TILE)[4:]) == 1
    said, errors = capfd.readouterr()
    assert errors.startswith("run.py: there are no Kaggle credentials: make a token at ") and errors.count("\n") == 1
    assert said == "" and not (tmp_path / "data").exists() and not (tmp_path / "out").exists() and kaggle.asked == []


def test_a_dry_run_without_data_plans_for_the_whole_data_set(tmp_path, monkeypatch, capfd):
    for name in [name for name in os.environ if name.startswith(("KAGGLE", "TPUGRAPHS"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(PROJECT / "notebooks" / "run.py")
    monkeypatch.setitem(names["dry_run"].__globals__, "locate_data", lambda *_: (None, tmp_path / "sample", True))
    status = names["main"](["--on", "kaggle", "--owner", USER, "--dry-run", "--machine", "NvidiaH100", "--dataset",
                            f"{USER}/prepared-data"])
    lines = capfd.readouterr().out.splitlines()
    assert status == 0 and lines[0] == ("the data set is not here; a run needs it for 05 and 06, or --data-root sample")
    assert lines.count(f"    data: competition predict-ai-model-runtime, Dataset {USER}/prepared-data") == 5
    assert lines.count("    machine: NvidiaH100, private, no internet") == 5
    assert lines.count("    training: no estimate for this machine or model") == 5
    assert not list(tmp_path.iterdir())


def test_a_machine_without_a_gpu_uses_no_quota(kaggle, tmp_path, tiny_sample, monkeypatch, capfd):
    args = ["--collections", TILE, "--machine", "cpu"]
    status, lines, errors = dry_run(tmp_path, monkeypatch, capfd, tiny_sample, *args)
    assert (status, errors) == (0, "") and "    machine: without a GPU, private, no internet" in lines
    assert not any("quota" in line for line in lines) and kaggle.asked == []


def test_what_failed_is_tried_once_more_under_another_name_and_nothing_else_is(kaggle, tmp_path, tiny_sample, notebook):
    kaggle.machine = lambda body: BROKEN if "layout" in body["slug"] else finished(kaggle, tiny_sample, TILE)
    for _ in range(2):
        (ref, why), = watch(planned(TILE, LAYOUT), notebook, tmp_path, tiny_sample)
        assert "layout" in ref and why.endswith("\n    CUDA out of memory")
    assert [body["slug"].count("-") for body in kaggle.pushed] == [5, 6, 7] and kaggle.pushed[2]["slug"].endswith("-2")


@pytest.mark.parametrize("arrived, asked", [(True, 1), (False, 2)])
def test_a_push_whose_answer_is_lost_is_asked_for_before_it_is_made_again(kaggle, tmp_path, tiny_sample, notebook,
                                                                          arrived, asked):
    kaggle.machine = lambda body: finished(kaggle, tiny_sample, TILE)
    kaggle.answers["SaveKernel"] = ["cut" if arrived else (502, "bad gateway")]
    jobs = planned(TILE)
    fails("host" if arrived else "server", watch, jobs, notebook, tmp_path, tiny_sample)
    assert states(tmp_path) == ["pushing"]
    assert watch(planned(TILE), notebook, tmp_path, tiny_sample) == []
    assert states(tmp_path) == ["fetched"] and kaggle.asked.count("SaveKernel") == asked and len(kaggle.pushed) == 1
    watch(planned(TILE), notebook, tmp_path, tiny_sample)
    assert kaggle.asked.count("SaveKernel") == asked             # and never again


@pytest.mark.parametrize("lose", [lambda path: path.write_bytes(b"half"), Path.unlink])
def test_results_that_are_gone_or_damaged_are_fetched_again(kaggle, tmp_path, tiny_sample, notebook, lose):
    kaggle.machine = lambda body: finished(kaggle, tiny_sample, TILE)
    jobs = planned(TILE)
    watch(jobs, notebook, tmp_path, tiny_sample)
    (job,), store = jobs.values(), tmp_path / "out" / "store"
    lost = store / f"{job['section']['costs'][0]['file']}.npz"
    whole = lost.read_bytes()
    lose(lost)
    watch(planned(TILE), notebook, tmp_path, tiny_sample)
    assert read_kept(lost) is not None and lost.read_bytes() == whole and len(kaggle.pushed) == 1


def test_results_of_data_that_have_changed_since_are_trained_again_by_the_second_command(kaggle, tmp_path, tiny_sample,
                                                                                        notebook):
    root = shutil.copytree(tiny_sample / "npz", tmp_path / "npz")
    kaggle.machine = lambda body: finished(kaggle, root, TILE)
    assert watch(planned(TILE), notebook, tmp_path, root) == []
    path = npz_paths(root, TILE, "train")[0]
    path.rename(path.with_name("another.npz"))
    (_, why), = watch(planned(TILE), notebook, tmp_path, root)
    assert why == ("failed on Kaggle: steps/03_train_tile.json: tile:xla: made from other data, tile:xla train has "
                   "changed since; run 03 again") and len(kaggle.pushed) == 1
    assert watch(planned(TILE), notebook, tmp_path, root) == [] and len(kaggle.pushed) == 2


def test_jobs_of_another_plan_are_remembered(kaggle, tmp_path, tiny_sample, notebook):
    kaggle.machine = lambda body: finished(kaggle, tiny_sample, TILE if "tile" in body["slug"] else LAYOUT)
    for collection in (TILE, LAYOUT, TILE):
        watch(planned(collection), notebook, tmp_path, tiny_sample)
    assert states(tmp_path) == ["fetched", "fetched"] and len(kaggle.pushed) == 2


# --- Kaggle's side

@pytest.mark.long
def test_no_more_run_at_once_than_kaggle_takes(kaggle, tmp_path, tiny_sample, notebook):
    looks, most = {}, []

    def start(body):
        slug = body["slug"]

        def look():
            looks[slug] = looks.get(slug, 0) + 1
            collection = next(c for c in COLLECTIONS if c.replace(":", "-") in slug)
            most.append(sum(0 < n < 3 for n in looks.values()))
            return finished(kaggle, tiny_sample, collection) if looks[slug] > 2 else {
                "status": "QUEUED", "files": [], "log": ""}
        return look
    kaggle.machine = start
    assert watch(planned(*COLLECTIONS[:3]), notebook, tmp_path, tiny_sample) == []
    assert max(most) == lab.jobs.jobs.AT_ONCE == 2 and len(kaggle.pushed) == 3


def test_where_kaggle_has_no_room_it_is_waited_for(kaggle, tmp_path, tiny_sample, notebook, monkeypatch):
    kaggle.push_answer = {"error": "Maximum batch GPU session count of 2 reached."}
    take, seen = kaggle.on_SaveKernel, []

    def room(body):
        seen.append(states(tmp_path))
        if len(seen) == 3:
            kaggle.push_answer, kaggle.machine = {}, lambda body: finished(kaggle, tiny_sample, TILE)
        return take(body)
    monkeypatch.setattr(kaggle, "on_SaveKernel", room)
    assert watch(planned(TILE), notebook, tmp_path, tiny_sample) == []
    assert seen == [["pushing"]] * 3 and states(tmp_path) == ["fetched"]
    assert kaggle.said().count("1 planned") == 2


def test_a_quota_that_is_used_up_is_told_once_and_the_same_command_goes_on_later(kaggle, tmp_path, tiny_sample,
                                                                               notebook, monkeypatch):
    kaggle.machine = lambda body: finished(kaggle, tiny_sample, TILE if "tile" in body["slug"] else LAYOUT)
    take = kaggle.on_SaveKernel
    monkeypatch.setattr(kaggle, "on_SaveKernel", lambda body: take(body) if not kaggle.pushed else {
        "error": "Maximum weekly GPU quota of 30.00 hours reached"})
    collections = (TILE, LAYOUT, "layout:nlp:random")
    (refs, why), = watch(planned(*collections), notebook, tmp_path, tiny_sample)
    assert states(tmp_path) == ["fetched", "planned", "planned"] and kaggle.asked.count("SaveKernel") == 2
    assert [ref.rpartition("-")[0] for ref in refs.split(", ")] == [
        f"{USER}/tpugraphs-kit-{name}-0" for name in ("layout-xla-random", "layout-nlp-random")]
    assert why == ("not pushed: Kaggle refuses (Maximum weekly GPU quota of 30.00 hours reached); when there are GPU "
                   "hours again, the same command goes on here")
    monkeypatch.setattr(kaggle, "on_SaveKernel", take)
    monkeypatch.setattr(kaggle, "machine", lambda body: finished(kaggle, tiny_sample, next(
        c for c in collections if c.replace(":", "-") in body["slug"])))
    assert watch(planned(*collections), notebook, tmp_path, tiny_sample) == []
    assert states(tmp_path) == ["fetched"] * 3 and [body["slug"] for body in kaggle.pushed][1:] == refs.split(", ")


def test_faults_of_kaggle_are_waited_out_but_not_for_ever(kaggle, tmp_path, tiny_sample, notebook, monkeypatch):
    monkeypatch.setattr(lab.jobs.jobs, "ROUNDS", 2)
    kaggle.machine = lambda body: finished(kaggle, tiny_sample, TILE)
    kaggle.answers["GetKernelSessionStatus"] = [(503, "")] * 4            # two attempts a round
    assert watch(planned(TILE), notebook, tmp_path, tiny_sample) == []
    assert kaggle.said().count("Kaggle has an internal error") == 2
    kaggle.answers["GetKernelSessionStatus"] = [(503, "")] * 6
    fails("server", watch, planned(LAYOUT), notebook, tmp_path, tiny_sample)
    assert states(tmp_path)[1] == "running"


def test_a_stale_token_is_told_at_once_and_what_runs_is_kept(kaggle, tmp_path, tiny_sample, notebook, monkeypatch):
    kaggle.machine = lambda body: finished(kaggle, tiny_sample, TILE)
    monkeypatch.setenv("KAGGLE_API_TOKEN", "KGAT_stale")
    fails("token", watch, planned(TILE), notebook, tmp_path, tiny_sample)
    assert states(tmp_path) == ["planned"]
    monkeypatch.setenv("KAGGLE_API_TOKEN", TOKEN)
    assert watch(planned(TILE), notebook, tmp_path, tiny_sample) == [] and len(kaggle.pushed) == 1


@pytest.mark.parametrize("kernel, why", [
    ({"status": "CANCEL_ACKNOWLEDGED", "files": [], "log": "[]"}, "failed on Kaggle: cancel_acknowledged"),
    ({"status": "ERROR", "failureMessage": "no \x1b[2Jluck", "files": [("../evil", "/a")], "log": "x"},
     "failed on Kaggle: no [2Jluck\n    x"),
    ({"status": "COMPLETE", "files": [], "log": json.dumps(LOG)},
     "failed on Kaggle: steps/03_train_tile.json: is not there, is damaged, or says nothing of tile:xla\n"
     "    layout:xla:random: token, seed 0\n    CUDA out of memory"),
    ({"status": "ERROR", "files": [], "log": '[{"data": "cut inside a letter \\ud83d"}]'},
     "failed on Kaggle: error\n    cut inside a letter ?"),
    ({"status": "ERROR", "files": [], "log": "[" * 100_000}, f"failed on Kaggle: error\n    {'[' * 200}"),
    ({"status": "PAUSED", "files": [], "log": "[]"}, "failed on Kaggle: its status is 'paused', which the kit does "
     "not know; see https://www.kaggle.com/code/someone/tpugraphs-kit-tile-xla-0-982d9e3e")])
def test_a_notebook_that_brings_nothing_has_failed_with_the_end_of_its_log(kaggle, tmp_path, tiny_sample, notebook,
                                                                           kernel, why):
    kaggle.machine = lambda body: kernel
    assert [reason for _, reason in watch(planned(TILE), notebook, tmp_path, tiny_sample)] == [why]
    assert not (tmp_path / "out" / "store").exists()


def test_results_reach_a_store_on_another_file_system(kaggle, tmp_path, tiny_sample, notebook):
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as other:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "store").symlink_to(other)
        kaggle.machine = lambda body: finished(kaggle, tiny_sample, TILE)
        assert watch(planned(TILE), notebook, tmp_path, tiny_sample) == []
        assert len(tree(Path(other))) == 3


def test_a_notebook_that_was_deleted_there_has_failed(kaggle, tmp_path, tiny_sample, notebook):
    (_, why), = watch(planned(TILE), notebook, tmp_path, tiny_sample)        # the server forgets it
    assert why.startswith(f"failed on Kaggle: the notebook is gone: Kaggle forbids access to {USER}/tpugraphs-kit-")


# --- what comes back is not trusted

STEP = "results/steps/03_train_tile.json"


def collected(kaggle, tmp_path, root, kernel, collection=TILE, **job):
    kaggle.kernels = {f"{USER}/a-notebook": kernel}
    job = {"ref": f"{USER}/a-notebook", "collection": collection, "first_seed": 0, "seeds": 1, **job}
    return collect_results(job, tmp_path / "out", root, QUICK)


def tree(folder):
    """Names of the files."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def refused(kaggle, tmp_path, root, kernel, word, **job):
    """The results of a notebook are refused with this word, and nothing is put in place."""
    done = collected(kaggle, tmp_path, root, kernel, **job)
    assert done["state"] == "failed" and word in done["reason"] and "\n" not in done["reason"], done
    assert tree(tmp_path / "out") == []


def test_only_what_a_job_should_leave_is_fetched(kaggle, tmp_path, tiny_sample):
    extra = ["../../evil", "/etc/evil", "results/store/../../../costs-0123456789abcdef.npz", "results/submission.csv",
             "results/steps/04_train_layout.json", "results/store/costs-0123456789abcdef.npz", "a\x00b",
             "results/store/tile_xla-tile-7-0123456789abcdef.json", "results/store/tile_xla-tile-0.pt",
             "other/results/steps/03_train_tile.json", "results/.run/kaggle.json", f"{STEP}\n"]
    kernel = finished(kaggle, tiny_sample, TILE, more=dict.fromkeys(extra, b"evil"))
    done = collected(kaggle, tmp_path, tiny_sample, kernel)
    names = {f"store/{one['file']}.npz" for one in done["section"]["costs"]}
    assert done["state"] == "fetched" and len(names) == 2
    assert {name for name in tree(tmp_path / "out") if not name.endswith(".json")} == names
    assert len(tree(tmp_path / "out")) == 3                      # with the record of the training
    assert sum(call.startswith("GET") for call in kaggle.asked) == 4             # and what its step published
    assert [p.name for p in tmp_path.parent.rglob("*evil*")] == []


def changed(**changes):
    """Costs of test programs, with those of one program changed."""
    def costs(root):
        found = costs_of(root, TILE, "test")
        return {**found, min(found): changes["cost"](found[min(found)])}
    return costs


@pytest.mark.parametrize("costs, word", [
    (lambda root: costs_of(root, LAYOUT, "test"), "which is no test program of tile:xla here"),
    (lambda root: {**costs_of(root, TILE, "test"), "tile:xla:elsewhere": np.ones(3)},
     "has costs of 'tile:xla:elsewhere', which is no test program of tile:xla here"),
    (lambda root: {**costs_of(root, TILE, "test"), "tile:xla:a\x1b[2J\n": np.ones(3)}, "which is no test program"),
    (changed(cost=lambda c: c * np.nan), "has something else than one axis of finite costs"),
    (changed(cost=lambda c: c[None]), "has something else than one axis of finite costs"),
    (changed(cost=lambda c: c.astype(str)), "has something else than one axis of finite costs"),
    (changed(cost=lambda c: c[:-1]), "costs, but")])
def test_costs_of_other_programs_or_with_odd_values_are_refused(kaggle, tmp_path, tiny_sample, costs, word):
    kernel = finished(kaggle, tiny_sample, TILE, test=costs(tiny_sample))
    refused(kaggle, tmp_path, tiny_sample, kernel, word)


def bomb():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tile:xla:a.npy", bytes(3 << 20))
    return file.getvalue()


def archive(name, arrays, **more):
    """Bytes of an npz that says it is the file `name` of a store."""
    file = io.BytesIO()
    np.savez(file, **arrays, **{DIGEST: np.array(f"{name} {content_of(arrays)}")}, **more)
    return file.getvalue()


@pytest.mark.parametrize("content, word", [
    (lambda name, root: b"no archive", "not a zip file"), (lambda name, root: b"", "not a zip file"),
    (lambda name, root: bomb(), "unpacks to 3 MiB, expected at most 1"),
    (lambda name, root: os.urandom(2 << 20), "has 2.1 MB; expected at most 1.0 MB"),
    (lambda name, root: archive(name, costs_of(root, TILE, "test", 9)), "does not hold what its name says"),
    (lambda name, root: archive("costs-0123456789abcdef", costs_of(root, TILE, "test")), "does not hold what its name"),
    (lambda name, root: archive(name, costs_of(root, TILE, "test"), more=np.array([print])), "does not hold what its")])
def test_a_file_that_does_not_hold_what_its_name_says_is_refused(kaggle, tmp_path, tiny_sample, monkeypatch, content,
                                                                 word):
    monkeypatch.setattr(lab.jobs.results, "FILE_MOST", 1_000_000 if "MB" in word else 1 << 20)
    name = Store(tmp_path / "store").keep("costs", costs_of(tiny_sample, TILE, "test"))
    kernel = finished(kaggle, tiny_sample, TILE, more={f"results/store/{name}.npz": content(name, tiny_sample)})
    refused(kaggle, tmp_path, tiny_sample, kernel, word)


def test_a_file_that_the_step_names_and_did_not_leave_is_told(kaggle, tmp_path, tiny_sample):
    kernel = finished(kaggle, tiny_sample, TILE)
    kernel["files"] = [pair for pair in kernel["files"] if not pair[0].endswith(".npz")]
    refused(kaggle, tmp_path, tiny_sample, kernel, "is named by the notebook, which did not leave it")


def rewritten(root, change):
    """What the step published, changed by somebody who also makes its digest anew."""
    with tempfile.TemporaryDirectory() as folder:
        data = json.loads(published(root, Path(folder), TILE)[STEP])
        section = data["sections"][TILE]
        change(section)
        run = Folder(folder, root)
        run.write_record("03_train_tile", {"sections": {TILE: section}, "views": {}})
        return Path(folder, "steps", "03_train_tile.json").read_bytes()


def first(**more):
    return lambda section: section["costs"][0].update(more)


IS_NONE = "is not there, is damaged, or says nothing of tile:xla"


@pytest.mark.parametrize("change, word", [
    (first(file="../costs-0123456789abcdef"), IS_NONE), (first(file="costs-../../../evil"), IS_NONE),
    (first(member="tile_seed7"), IS_NONE), (first(member="../tile_seed0"), IS_NONE), (first(split="all"), IS_NONE),
    (first(collection=LAYOUT), IS_NONE), (first(model="../../evil.pt"), IS_NONE), (first(specialists=[3]), IS_NONE),
    (first(more=1), IS_NONE), (first(baseline=1), IS_NONE), (lambda section: section.pop("used"), IS_NONE),
    (lambda section: section.update(costs=3), IS_NONE), (lambda section: section.update(settings=[]), IS_NONE),
    (lambda section: section.update(read={"05_ensemble": "x"}), IS_NONE),
    (lambda section: section.update(costs=section["costs"] * 300), IS_NONE),
    (lambda section: section["data"].pop("tile:xla train"), IS_NONE),
    (lambda section: section["data"].update({"../x y": "z"}), IS_NONE),
    (lambda section: section["data"].update({"tile:xla train": "other"}),
     "tile:xla: made from other data, tile:xla train has changed since"),
    (lambda section: section.update(code="other"), "tile:xla: made by other code of the kit"),
    (lambda section: section.update(costs=[]), "predictions of 0 seeds; expected 1, and no others")])
def test_a_step_that_published_something_else_is_refused(kaggle, tmp_path, tiny_sample, change, word):
    kernel = finished(kaggle, tiny_sample, TILE, more={STEP: rewritten(tiny_sample, change)})
    refused(kaggle, tmp_path, tiny_sample, kernel, word)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"digest": 3}', b"[" * 100_000, b"\xff"])
def test_what_no_step_published_is_refused(kaggle, tmp_path, tiny_sample, content):
    refused(kaggle, tmp_path, tiny_sample, finished(kaggle, tiny_sample, TILE, more={STEP: content}), IS_NONE)


@pytest.mark.parametrize("record, good", [
    (RECORD, True), ({**RECORD, "more": "words"}, True), ({**RECORD, "parameters": "<script>"}, False), ([], False),
    ({**RECORD, "curve": {"loss": ["1"], "score": []}}, False), ({**RECORD, "curve": {"loss": "", "score": []}}, False),
    ({**RECORD, "seconds": float("inf")}, False), ({**RECORD, "model": 3}, False), ({"model": "x"}, False),
    ({**RECORD, "peak_memory": []}, False), ({**RECORD, "peak_memory": 1 << 20}, True),
    ({**RECORD, "seconds": 10 ** 999}, False), ({**RECORD, "more": "x" * (1 << 20)}, False)])
def test_records_of_trainings_come_along_if_a_report_can_be_made_of_them(kaggle, tmp_path, tiny_sample, record, good):
    name = Store(tmp_path / "store").name("tile_xla-tile-0", 0)
    kernel = finished(kaggle, tiny_sample, TILE, more={f"results/store/{name}.json": json.dumps(record).encode()})
    if not good:
        refused(kaggle, tmp_path, tiny_sample, kernel, f"{name}.json: is no record of a training, or has more than 1 M")
        return
    done = collected(kaggle, tmp_path, tiny_sample, kernel)
    assert done["state"] == "fetched" and f"store/{name}.json" in tree(tmp_path / "out"), done
    job = {"ref": "a/b", "collection": TILE, "first_seed": 0, "seeds": 1, **done}
    publish_jobs({"b": job}, tmp_path / "out", tiny_sample, {})
    write_report(tmp_path / "page.html", tmp_path / "out", "next")
    assert "tile_xla-tile-0" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("job", [{"first_seed": 2, "seeds": 3}, {"first_seed": 2, "seeds": 1}, {"seeds": 2}])
def test_predictions_of_other_seeds_than_asked_for_are_no_result(kaggle, tmp_path, tiny_sample, job):
    kernel = finished(kaggle, tiny_sample, TILE, seeds=(2, 3))
    assert collected(kaggle, tmp_path, tiny_sample, kernel, **job)["state"] == "failed"
    assert tree(tmp_path / "out") == [] and not any("npz" in call for call in kaggle.asked)


def test_a_link_that_has_expired_fails_the_notebook_alone(kaggle, tmp_path, tiny_sample):
    kernel = finished(kaggle, tiny_sample, TILE)
    kaggle.files.clear()
    assert "HTTP 404" in collected(kaggle, tmp_path, tiny_sample, kernel)["reason"]


# --- several jobs, one step


def job_of(root, store, collection, seeds, member=None):
    """A job that was fetched, whose costs are in the store."""
    with tempfile.TemporaryDirectory() as folder:
        published(root, Path(folder), collection, seeds)
        section = Folder(folder, root).section(step_of(collection), collection)
        for path in Path(folder, "store").iterdir():
            shutil.copy(path, store)
    return {"ref": f"{USER}/{seeds[0]}", "collection": collection, "first_seed": seeds[0], "seeds": len(seeds),
            "section": section}


def test_jobs_of_a_collection_become_one_section_and_others_stay(tmp_path, tiny_sample):
    (tmp_path / "store").mkdir()
    folder = Folder(tmp_path, tiny_sample)

    def members(collection):
        return [(one["member"], one["split"]) for one in folder.section(step_of(collection), collection)["costs"]]
    for collection in (TILE, LAYOUT):
        publish_jobs({"old": job_of(tiny_sample, tmp_path / "store", collection, (8, 9))}, tmp_path, tiny_sample, {})
    jobs = {str(seeds): job_of(tiny_sample, tmp_path / "store", TILE, seeds) for seeds in ((2, 3), (0, 1))}
    jobs["failed"] = {"ref": "x", "collection": LAYOUT, "first_seed": 0, "seeds": 2, "section": None}
    publish_jobs(jobs, tmp_path, tiny_sample, {"03_train_tile": {"seeds": 4}})
    assert members(TILE) == [(f"tile_seed{seed}", split) for seed in range(4) for split in ("test", "valid")]
    assert members(LAYOUT) == [(f"token_seed{seed}", split) for seed in (8, 9) for split in ("test", "valid")]
    settings = folder.settings([TILE])["03_train_tile"]
    assert (settings["seeds"], settings["first_seed"], settings["width"]) == (4, 0, 8)
    assert settings["on_kaggle"] == {f"{USER}/{first}": {"first_seed": first, "seeds": 2} for first in (0, 2)}
    assert folder.fault("03_train_tile", [TILE]) is None
    assert len(tree(tmp_path / "store")) == 8 * 3                # those of the earlier plan are still there
    # 05 adds up in the same order, in whatever order models were trained
    run, record = Run("05_ensemble", tiny_sample, tmp_path, "tiny", [TILE]), folder.record("03_train_tile")
    before = [[*members] for members in gather_predictions(run).values()]
    record["sections"][TILE]["costs"].reverse()
    folder.write_record("03_train_tile", record)
    assert [[*members] for members in gather_predictions(run).values()] == before


def test_earlier_results_stay_where_a_job_failed_and_those_out_of_date_do_not_stop_the_others(tmp_path, tiny_sample,
                                                                                           monkeypatch):
    monkeypatch.syspath_prepend(PROJECT / "notebooks")
    from on_kaggle import earlier_results
    root = shutil.copytree(tiny_sample / "npz", tmp_path / "npz")
    (tmp_path / "out" / "store").mkdir(parents=True)
    jobs = {c: job_of(root, tmp_path / "out" / "store", c, (0, 1)) for c in (TILE, LAYOUT)}
    publish_jobs(jobs, tmp_path / "out", root, {})
    jobs[LAYOUT]["section"] = None
    folder = Folder(tmp_path / "out", root)
    assert earlier_results(jobs, folder) == {LAYOUT} and folder.fault("04_train_layout", [LAYOUT]) is None
    path = npz_paths(root, LAYOUT, "train")[0]
    path.rename(path.with_name("another.npz"))
    assert "made from other data" in folder.fault("04_train_layout", [LAYOUT])
    assert earlier_results(jobs, folder) == set() and folder.fault("04_train_layout", [LAYOUT]) is None
    assert fetched(tmp_path / "out", root, LAYOUT) == {} and fetched(tmp_path / "out", root) != {}


def test_the_end_of_a_log_shows_no_secret_and_moves_no_cursor():
    text = "\n".join(["begin", *map(str, range(50)), f"\x1b[2J\r\x08{'x' * 999}", f"https://h/a?sig={SIGNATURE}", ""])
    lines = tail(text)
    assert len(lines) == 12 and lines[-2] == "x" * 200 and lines[-1] == "https://h/a?***" and lines[0] == "40"
    assert tail("") == [] and all(line.isprintable() for line in lines)


# --- plans and notes

@pytest.mark.parametrize("seeds, groups, first", [(7, 3, 0), (3, 3, 5), (5, 1, 2)])
def test_groups_share_out_all_seeds_and_no_seed_twice(seeds, groups, first):
    jobs = plan_jobs(COLLECTIONS, seeds, groups, first)
    assert len(jobs) == 5 * groups
    for collection in COLLECTIONS:
        own = [job for job in jobs if job["collection"] == collection]
        trained = [job["first_seed"] + number for job in own for number in range(job["seeds"])]
        assert trained == list(range(first, first + seeds))
    assert len({job_name(job, "") for job in jobs}) == len(jobs)
    assert all(len(f"{job_name({**job, 'first_seed': 999}, '')}-99") <= 50 for job in jobs)


@pytest.mark.parametrize("seeds, groups", [(None, 2), (2, 3), (4, 0)])
def test_groups_without_a_seed_each_are_refused(seeds, groups):
    with pytest.raises(ValueError, match="at least one seed per group: set the number with -p seeds=N"):
        plan_jobs([TILE], seeds, groups)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 3}', '{"a": {"state": "lost", "ref": "x"}}', "\udcff",
                                  '{"a": {"state": "fetched", "ref": "x", "attempt": 1, "section": {}, "log": []}}',
                                  '{"a": {"state": "failed", "ref": "x", "attempt": 1, "log": [], "run": 3}}',
                                  '{"a": {"state": "failed", "ref": "x", "attempt": "1", "log": []}}'])
def test_a_note_that_is_damaged_is_named_before_anything_is_pushed_twice(tmp_path, text):
    (tmp_path / "kaggle.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert "does not say what was pushed" in fails("damaged", read_jobs, tmp_path / "kaggle.json")
    assert read_jobs(tmp_path / "none.json") == {}


@pytest.mark.parametrize("change, sentence", [
    (["--owner", ""], "--on kaggle needs --owner NAME: your Kaggle user name, as in kaggle.com/NAME"),
    (["--owner", "some one"], "--on kaggle needs --owner NAME"),
    (["--only", "03"], "--on kaggle runs 03, 04 on Kaggle and 05, 06 here: remove --only"),
    (["--seed-groups", "2"], "2 seed groups and no number of seeds"),
    (["-p", "seeds=0"], "-p seeds=0: expected a whole number of at least 1"),
    (["-p", "device=banana"], "-p device=banana: expected cpu or cuda"),
    (["--machine", "TpuV5E8"], "--machine TpuV5E8: expected cpu, or one of Kaggle's names for machines with GPUs"),
    (["--machine", "cpu", "-p", "device=cuda"], "--machine cpu and -p device=cuda do not fit"),
    (["-p", "stepz=3"], "no parameter stepz")])
def test_a_wrong_call_is_one_sentence_and_asks_nothing(tmp_path, tiny_sample, capfd, monkeypatch, change, sentence):
    monkeypatch.chdir(tmp_path)
    status = runpy.run_path(PROJECT / "notebooks" / "run.py")["main"](command(tiny_sample, *change)[4:])
    errors = capfd.readouterr().err
    assert status == 2 and sentence in errors and len(errors.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_where_kaggle_cannot_be_used_the_run_ends_with_its_sentence(kaggle, tmp_path, tiny_sample):
    kaggle.machine = lambda body: finished(kaggle, tiny_sample, TILE)
    kaggle.answers["SaveKernel"] = [(401, f"Unauthenticated {TOKEN}")]
    status, said, errors = run(tmp_path, tiny_sample, "--collections", TILE)
    assert status == 1 and errors.startswith("run.py: Kaggle does not accept the credentials in KAGGLE_API_TOKEN: ")
    assert errors.endswith("\npushed notebooks keep running; the same command resumes here\n")
    kaggle.machine = lambda body: BROKEN
    status, said, errors = run(tmp_path, tiny_sample, "--collections", TILE)
    assert status == 1 and "failed on Kaggle: Your notebook threw an error" in errors and "CUDA out of memory" in errors
    assert "of an earlier run" not in errors
    assert not (tmp_path / "out" / "submission.csv").exists()
