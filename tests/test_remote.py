"""Training on Kaggle's machines, with the real client against a local server that runs what is pushed."""
import functools
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from kaggle_server import PYTHON, QUICK, SIGNATURE, TOKEN, USER, fails, hurried
from run_folder import run_clone
from test_run import HEARS_INTERRUPTS

import lab.data.source
import lab.jobs.jobs
from kit.data import COLLECTIONS, find_data_root, npz_paths
from lab.jobs.jobs import job_name, plan_jobs, read_jobs, renew, watch_jobs
from lab.jobs.results import collect_results, publish_jobs, tail
from lab.predictions import Predictions
from lab.run import Folder, Run
from lab.run.folder import step_of
from lab.run.store import Store, read_kept

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


@pytest.fixture
def run(tmp_path, tiny_hidden, monkeypatch):
    """notebooks/run.py in this process, which asks Kaggle at once again -> (exit status, lines of stdout, stderr)."""
    monkeypatch.syspath_prepend(PROJECT / "notebooks")
    import on_kaggle
    monkeypatch.setattr(on_kaggle, "watch_jobs", functools.partial(watch_jobs, every=0.01, client=QUICK))
    return lambda *args: run_clone(PROJECT, *command(tiny_hidden, *args)[4:], within=tmp_path)


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
    run = Run(step, root, folder, [collection])
    made = Predictions(run.data())
    for seed in seeds:
        model = run.store.name(f"{collection.replace(':', '_')}-{kind}-{seed}", seed)
        run.store.path(model, ".json").parent.mkdir(parents=True, exist_ok=True)
        run.store.path(model, ".json").write_text(json.dumps(RECORD))
        costs = {split: costs_of(root, collection, split, seed + draw) for split in ("valid", "test")}
        made.put(collection, kind, seed, costs | instead, trains_on=(collection,), model=model)
    run.publish(made, seeds=len(seeds), first_seed=min(seeds), device="cpu")
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

def until(child, true):
    """Wait for something while a child process runs."""
    end = time.monotonic() + 120
    while not true():
        assert child.poll() is None and time.monotonic() < end, child.communicate()
        time.sleep(0.02)


@pytest.mark.long
def test_an_interrupted_run_goes_on_and_pushes_nothing_twice(kaggle, tmp_path, tiny_hidden, run):
    ready = []

    def start(body):
        collection = TILE if "tile" in body["slug"] else LAYOUT
        running = {"status": "RUNNING", "files": [], "log": ""}
        return lambda: finished(kaggle, tiny_hidden, collection) if ready else running
    kaggle.machine = start
    kaggle.answers["SaveKernel"] = [None, "hang"]                # the second one arrives, its answer does not
    child = subprocess.Popen(command(tiny_hidden, *TWO), cwd=tmp_path, env=hurried(tmp_path / "hurried"), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    until(child, lambda: len(kaggle.pushed) == 2)
    os.killpg(child.pid, signal.SIGINT)                          # as the terminal does it
    _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (130, "\ninterrupted; run the same command again to continue\n")
    assert states(tmp_path) == ["running", "pushing"]
    kaggle.answers.clear()
    ready.append(True)
    status, lines, errors = run(*TWO, "-p", "partial=True")
    assert (status, errors) == (0, ""), lines
    assert states(tmp_path) == ["fetched", "fetched"] and len(kaggle.pushed) == 2
    assert kaggle.asked.count("SaveKernel") == 2
    assert lines[-1] == "out/submission.csv" and (tmp_path / "out" / "submission.csv").is_file()


@pytest.mark.long
def test_the_same_plan_in_two_folders_has_its_own_notebooks_and_a_folder_that_moved_finds_them_again(
        kaggle, tmp_path, tiny_hidden, monkeypatch):
    monkeypatch.syspath_prepend(PROJECT / "notebooks")
    import on_kaggle
    monkeypatch.setattr(on_kaggle, "watch_jobs", functools.partial(watch_jobs, every=0.01, client=QUICK))
    books = {PROJECT / "notebooks" / f"{name}.ipynb": {} for name in ("03_train_tile", "04_train_layout")}
    kaggle.machine = lambda body: finished(kaggle, tiny_hidden, TILE, draw=len(kaggle.pushed))

    def train(out):
        jobs, failed = on_kaggle.train_on_kaggle(plan_jobs([TILE], seeds=1), books, USER, out, tiny_hidden)
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
        here, there = fetched(out, tiny_hidden), costs_of(tiny_hidden, TILE, "test", number)
        assert here.keys() == there.keys() and all((here[name] == there[name]).all() for name in here)


def dry_run(folder, monkeypatch, capfd, root, *args):
    """run.py --dry-run in this process -> (exit status, lines, stderr)."""
    monkeypatch.chdir(folder)
    status = runpy.run_path(PROJECT / "notebooks" / "run.py")["main"](command(root, "--dry-run", *args)[4:])
    said, errors = capfd.readouterr()
    return status, said.splitlines(), errors


def test_a_dry_run_says_what_would_be_pushed_and_neither_pushes_nor_writes_nor_needs_a_token(
        kaggle, tmp_path, tiny_hidden, monkeypatch, capfd):
    monkeypatch.delenv("KAGGLE_API_TOKEN")
    before = {path: path.stat().st_mtime_ns for place in (tmp_path, tiny_hidden) for path in place.rglob("*")}
    status, lines, errors = dry_run(tmp_path, monkeypatch, capfd, tiny_hidden, *TWO, "-p", "recipe=full", "-p",
                                    "seeds=3", "--seed-groups", "2", "--dataset", "someone/more-data")
    assert (status, errors) == (0, ""), errors
    assert before == {path: path.stat().st_mtime_ns for place in (tmp_path, tiny_hidden) for path in place.rglob("*")}
    assert lines[0] == "nothing is pushed now; notebooks without --dry-run: 4, at most 2 at a time"
    names = [line for line in lines if line.startswith(f"{USER}/")]
    assert names == [f"{USER}/tpugraphs-kit-{name}-{seed}-*" for name in ("tile-xla", "layout-xla-random")
                     for seed in (0, 2)]
    assert lines.count("    machine: NvidiaTeslaT4 (2 x T4), private, no internet") == 4
    assert lines.count("    data: competition predict-ai-model-runtime, Dataset someone/more-data") == 4
    assert [line for line in lines if "seed" in line] == [
        "    tile:xla: tile, seeds 0 to 1", "    tile:xla: tile, seed 2",
        "    layout:xla:random: token, lightgbm, additive, gnn, seeds 0 to 1",
        "    layout:xla:random: token, lightgbm, additive, gnn, seed 2"]
    assert sum(line.startswith("    training: ") for line in lines) == 4
    assert lines[-2].startswith("together: ") and lines[-1].startswith("GPU quota: not known, because there are no Kag")
    assert kaggle.asked == []


@pytest.mark.parametrize("budget, warns", [(None, False), (11, True)])
def test_a_dry_run_counts_the_sessions_of_each_notebook_and_of_all(kaggle, tmp_path, tiny_hidden, monkeypatch, capfd,
                                                                   budget, warns):
    more = ["-p", f"hours={budget}"] if budget else []
    status, lines, errors = dry_run(tmp_path, monkeypatch, capfd, tiny_hidden, *TWO, "--size", "small", "-p",
                                    "recipe=full", "-p", "seeds=5", "--seed-groups", "2", "-p", "tile.steps=100", *more)
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


def test_a_token_that_is_missing_is_told_before_data_are_prepared(kaggle, tmp_path, tiny_hidden, monkeypatch, capfd):
    monkeypatch.delenv("KAGGLE_API_TOKEN")
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(PROJECT / "notebooks" / "run.py")
    root = shutil.copytree(tiny_hidden / "npz", tmp_path / "npz")
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
    monkeypatch.setattr(lab.data.source, "find_data_root", lambda root=None: root or find_data_root(tmp_path))
    status = names["main"](["--on", "kaggle", "--owner", USER, "--dry-run", "--machine", "NvidiaH100", "--dataset",
                            f"{USER}/prepared-data"])
    lines = capfd.readouterr().out.splitlines()
    said = "the data set is not here; without --dry-run this command needs it, for 05 and 06"
    assert status == 0 and lines[0] == said
    assert lines.count(f"    data: competition predict-ai-model-runtime, Dataset {USER}/prepared-data") == 5
    assert lines.count("    machine: NvidiaH100, private, no internet") == 5
    assert lines.count("    training: no estimate for this machine or model") == 5
    assert not list(tmp_path.iterdir())


def test_a_machine_without_a_gpu_uses_no_quota(kaggle, tmp_path, tiny_hidden, monkeypatch, capfd):
    args = ["--collections", TILE, "--machine", "cpu"]
    status, lines, errors = dry_run(tmp_path, monkeypatch, capfd, tiny_hidden, *args)
    assert (status, errors) == (0, "") and "    machine: without a GPU, private, no internet" in lines
    assert not any("quota" in line for line in lines) and kaggle.asked == []


def test_what_failed_is_tried_once_more_under_another_name_and_nothing_else_is(kaggle, tmp_path, tiny_hidden, notebook):
    kaggle.machine = lambda body: BROKEN if "layout" in body["slug"] else finished(kaggle, tiny_hidden, TILE)
    for _ in range(2):
        (ref, why), = watch(planned(TILE, LAYOUT), notebook, tmp_path, tiny_hidden)
        assert "layout" in ref and why.endswith("\n    CUDA out of memory")
    assert [body["slug"].count("-") for body in kaggle.pushed] == [5, 6, 7] and kaggle.pushed[2]["slug"].endswith("-2")


@pytest.mark.parametrize("arrived, asked", [(True, 1), (False, 2)])
def test_a_push_whose_answer_is_lost_is_asked_for_before_it_is_made_again(kaggle, tmp_path, tiny_hidden, notebook,
                                                                          arrived, asked):
    kaggle.machine = lambda body: finished(kaggle, tiny_hidden, TILE)
    kaggle.answers["SaveKernel"] = ["cut" if arrived else (502, "bad gateway")]
    jobs = planned(TILE)
    fails("host" if arrived else "server", watch, jobs, notebook, tmp_path, tiny_hidden)
    assert states(tmp_path) == ["pushing"]
    assert watch(planned(TILE), notebook, tmp_path, tiny_hidden) == []
    assert states(tmp_path) == ["fetched"] and kaggle.asked.count("SaveKernel") == asked and len(kaggle.pushed) == 1
    watch(planned(TILE), notebook, tmp_path, tiny_hidden)
    assert kaggle.asked.count("SaveKernel") == asked             # and never again


@pytest.mark.parametrize("lose", [lambda path: path.write_bytes(b"half"), Path.unlink])
def test_results_that_are_gone_or_damaged_are_fetched_again(kaggle, tmp_path, tiny_hidden, notebook, lose):
    kaggle.machine = lambda body: finished(kaggle, tiny_hidden, TILE)
    jobs = planned(TILE)
    watch(jobs, notebook, tmp_path, tiny_hidden)
    (job,), store = jobs.values(), tmp_path / "out" / "store"
    lost = store / f"{job['section']['costs'][0]['file']}.npz"
    whole = lost.read_bytes()
    lose(lost)
    watch(planned(TILE), notebook, tmp_path, tiny_hidden)
    assert read_kept(lost) is not None and lost.read_bytes() == whole and len(kaggle.pushed) == 1


def test_results_of_data_that_have_changed_since_are_trained_again_by_the_second_command(kaggle, tmp_path, tiny_hidden,
                                                                                        notebook):
    root = shutil.copytree(tiny_hidden / "npz", tmp_path / "npz")
    kaggle.machine = lambda body: finished(kaggle, root, TILE)
    assert watch(planned(TILE), notebook, tmp_path, root) == []
    path = npz_paths(root, TILE, "train")[0]
    path.rename(path.with_name("another.npz"))
    (_, why), = watch(planned(TILE), notebook, tmp_path, root)
    assert why == ("failed on Kaggle: steps/03_train_tile.json: tile:xla: made from other data, tile:xla train has "
                   "changed since; run 03 again") and len(kaggle.pushed) == 1
    assert watch(planned(TILE), notebook, tmp_path, root) == [] and len(kaggle.pushed) == 2


def test_jobs_of_another_plan_are_remembered(kaggle, tmp_path, tiny_hidden, notebook):
    kaggle.machine = lambda body: finished(kaggle, tiny_hidden, TILE if "tile" in body["slug"] else LAYOUT)
    for collection in (TILE, LAYOUT, TILE):
        watch(planned(collection), notebook, tmp_path, tiny_hidden)
    assert states(tmp_path) == ["fetched", "fetched"] and len(kaggle.pushed) == 2


# --- Kaggle's side

@pytest.mark.long
def test_no_more_run_at_once_than_kaggle_takes(kaggle, tmp_path, tiny_hidden, notebook):
    looks, most = {}, []

    def start(body):
        slug = body["slug"]

        def look():
            looks[slug] = looks.get(slug, 0) + 1
            collection = next(c for c in COLLECTIONS if c.replace(":", "-") in slug)
            most.append(sum(0 < n < 3 for n in looks.values()))
            return finished(kaggle, tiny_hidden, collection) if looks[slug] > 2 else {
                "status": "QUEUED", "files": [], "log": ""}
        return look
    kaggle.machine = start
    assert watch(planned(*COLLECTIONS[:3]), notebook, tmp_path, tiny_hidden) == []
    assert max(most) == lab.jobs.jobs.AT_ONCE == 2 and len(kaggle.pushed) == 3


def test_where_kaggle_has_no_room_it_is_waited_for(kaggle, tmp_path, tiny_hidden, notebook, monkeypatch):
    kaggle.push_answer = {"error": "Maximum batch GPU session count of 2 reached."}
    take, seen = kaggle.on_SaveKernel, []

    def room(body):
        seen.append(states(tmp_path))
        if len(seen) == 3:
            kaggle.push_answer, kaggle.machine = {}, lambda body: finished(kaggle, tiny_hidden, TILE)
        return take(body)
    monkeypatch.setattr(kaggle, "on_SaveKernel", room)
    assert watch(planned(TILE), notebook, tmp_path, tiny_hidden) == []
    assert seen == [["pushing"]] * 3 and states(tmp_path) == ["fetched"]
    assert kaggle.said().count("1 planned") == 2


def test_a_quota_that_is_used_up_is_told_once_and_the_same_command_goes_on_later(kaggle, tmp_path, tiny_hidden,
                                                                               notebook, monkeypatch):
    kaggle.machine = lambda body: finished(kaggle, tiny_hidden, TILE if "tile" in body["slug"] else LAYOUT)
    take = kaggle.on_SaveKernel
    monkeypatch.setattr(kaggle, "on_SaveKernel", lambda body: take(body) if not kaggle.pushed else {
        "error": "Maximum weekly GPU quota of 30.00 hours reached"})
    collections = (TILE, LAYOUT, "layout:nlp:random")
    (refs, why), = watch(planned(*collections), notebook, tmp_path, tiny_hidden)
    assert states(tmp_path) == ["fetched", "planned", "planned"] and kaggle.asked.count("SaveKernel") == 2
    assert [ref.rpartition("-")[0] for ref in refs.split(", ")] == [
        f"{USER}/tpugraphs-kit-{name}-0" for name in ("layout-xla-random", "layout-nlp-random")]
    assert why == ("not pushed: Kaggle refuses (Maximum weekly GPU quota of 30.00 hours reached); when there are GPU "
                   "hours again, the same command goes on here")
    monkeypatch.setattr(kaggle, "on_SaveKernel", take)
    monkeypatch.setattr(kaggle, "machine", lambda body: finished(kaggle, tiny_hidden, next(
        c for c in collections if c.replace(":", "-") in body["slug"])))
    assert watch(planned(*collections), notebook, tmp_path, tiny_hidden) == []
    assert states(tmp_path) == ["fetched"] * 3 and [body["slug"] for body in kaggle.pushed][1:] == refs.split(", ")


def test_faults_of_kaggle_are_waited_out_but_not_for_ever(kaggle, tmp_path, tiny_hidden, notebook, monkeypatch):
    monkeypatch.setattr(lab.jobs.jobs, "ROUNDS", 2)
    kaggle.machine = lambda body: finished(kaggle, tiny_hidden, TILE)
    kaggle.answers["GetKernelSessionStatus"] = [(503, "")] * 4            # two attempts a round
    assert watch(planned(TILE), notebook, tmp_path, tiny_hidden) == []
    assert kaggle.said().count("Kaggle has an internal error") == 2
    kaggle.answers["GetKernelSessionStatus"] = [(503, "")] * 6
    fails("server", watch, planned(LAYOUT), notebook, tmp_path, tiny_hidden)
    assert states(tmp_path)[1] == "running"


@pytest.mark.parametrize("kernel, why", [
    ({"status": "CANCEL_ACKNOWLEDGED", "files": [], "log": "[]"}, "failed on Kaggle: cancel_acknowledged"),
    ({"status": "COMPLETE", "files": [], "log": json.dumps(LOG)},
     "failed on Kaggle: steps/03_train_tile.json: is not there, is damaged, or has no predictions for tile:xla\n"
     "    layout:xla:random: token, seed 0\n    CUDA out of memory"),
    ({"status": "ERROR", "files": [], "log": '[{"data": "cut inside a letter \\ud83d"}]'},
     "failed on Kaggle: error\n    cut inside a letter ?"),
    ({"status": "PAUSED", "files": [], "log": "[]"}, "failed on Kaggle: its status is 'paused', which the kit does "
     "not know; see https://www.kaggle.com/code/someone/tpugraphs-kit-tile-xla-0-982d9e3e")])
def test_a_notebook_that_brings_nothing_has_failed_with_the_end_of_its_log(kaggle, tmp_path, tiny_hidden, notebook,
                                                                           kernel, why):
    kaggle.machine = lambda body: kernel
    assert [reason for _, reason in watch(planned(TILE), notebook, tmp_path, tiny_hidden)] == [why]
    assert not (tmp_path / "out" / "store").exists()


def test_a_notebook_that_was_deleted_there_has_failed(kaggle, tmp_path, tiny_hidden, notebook):
    (_, why), = watch(planned(TILE), notebook, tmp_path, tiny_hidden)        # the server forgets it
    assert why.startswith(f"failed on Kaggle: the notebook is gone: Kaggle forbids access to {USER}/tpugraphs-kit-")


# --- what comes back is checked

STEP = "results/steps/03_train_tile.json"


def collected(kaggle, tmp_path, root, kernel, **job):
    kaggle.kernels = {f"{USER}/a-notebook": kernel}
    job = {"ref": f"{USER}/a-notebook", "collection": TILE, "first_seed": 0, "seeds": 1, **job}
    return collect_results(job, tmp_path / "out", root, QUICK)


def tree(folder):
    """Names of the files."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def refused(kaggle, tmp_path, root, kernel, word, **job):
    """The results of a notebook are refused with this word, and nothing is put in place."""
    done = collected(kaggle, tmp_path, root, kernel, **job)
    assert done["state"] == "failed" and word in done["reason"] and "\n" not in done["reason"], done
    assert tree(tmp_path / "out") == []


def test_only_what_a_job_should_leave_is_fetched(kaggle, tmp_path, tiny_hidden):
    extra = ["../../evil", "/etc/evil", "results/store/../../../costs-0123456789abcdef.npz", "results/submission.csv",
             "results/steps/04_train_layout.json", "results/store/costs-0123456789abcdef.npz", f"{STEP}\n",
             "other/results/steps/03_train_tile.json"]
    kernel = finished(kaggle, tiny_hidden, TILE, more=dict.fromkeys(extra, b"evil"))
    done = collected(kaggle, tmp_path, tiny_hidden, kernel)
    names = {f"store/{one['file']}.npz" for one in done["section"]["costs"]}
    assert done["state"] == "fetched" and len(names) == 2
    assert {name for name in tree(tmp_path / "out") if not name.endswith(".json")} == names
    assert len(tree(tmp_path / "out")) == 3                      # with the record of the training
    assert [p.name for p in tmp_path.parent.rglob("*evil*")] == []


@pytest.mark.parametrize("content", [b"no archive", None, "of another name"])
def test_costs_that_are_damaged_or_missing_are_refused(kaggle, tmp_path, tiny_hidden, content):
    store = Store(tmp_path / "store")
    name, other = (store.keep("costs", costs_of(tiny_hidden, TILE, "test", seed)) for seed in (0, 9))
    content = (tmp_path / "store" / f"{other}.npz").read_bytes() if content == "of another name" else content
    kernel = finished(kaggle, tiny_hidden, TILE, more={f"results/store/{name}.npz": content or b""})
    if content is None:
        kernel["files"] = [pair for pair in kernel["files"] if not pair[0].endswith(f"{name}.npz")]
    refused(kaggle, tmp_path, tiny_hidden, kernel, f"{name}.npz: the notebook did not leave it, or it is damaged")


@pytest.mark.parametrize("change, word", [
    (lambda section: section["data"].update({"tile:xla train": "other"}),
     "tile:xla: made from other data, tile:xla train has changed since"),
    (lambda section: section.update(code="other"), "tile:xla: made by other code of the kit"),
    (lambda section: section.update(costs=[]), "has no predictions for tile:xla"), (None, "is damaged")])
def test_a_step_that_published_something_else_is_refused(kaggle, tmp_path, tiny_hidden, change, word):
    data = b"{}"
    if change:
        section = json.loads(published(tiny_hidden, tmp_path / "there", TILE)[STEP])["sections"][TILE]
        change(section)
        Folder(tmp_path / "there").write_record("03_train_tile", {"sections": {TILE: section}, "views": {}})
        data = (tmp_path / "there" / "steps" / "03_train_tile.json").read_bytes()
    refused(kaggle, tmp_path, tiny_hidden, finished(kaggle, tiny_hidden, TILE, more={STEP: data}), word)


def test_a_link_that_has_expired_fails_the_notebook_alone(kaggle, tmp_path, tiny_hidden):
    kernel = finished(kaggle, tiny_hidden, TILE)
    kaggle.files.clear()
    assert "HTTP 404" in collected(kaggle, tmp_path, tiny_hidden, kernel)["reason"]


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


def test_jobs_of_a_collection_become_one_section_and_others_stay(tmp_path, tiny_hidden):
    (tmp_path / "store").mkdir()
    folder = Folder(tmp_path, tiny_hidden)

    def members(collection):
        return [(one["member"], one["split"]) for one in folder.section(step_of(collection), collection)["costs"]]
    for collection in (TILE, LAYOUT):
        publish_jobs({"old": job_of(tiny_hidden, tmp_path / "store", collection, (8, 9))}, tmp_path, tiny_hidden, {})
    jobs = {str(seeds): job_of(tiny_hidden, tmp_path / "store", TILE, seeds) for seeds in ((2, 3), (0, 1))}
    jobs["failed"] = {"ref": "x", "collection": LAYOUT, "first_seed": 0, "seeds": 2, "section": None}
    publish_jobs(jobs, tmp_path, tiny_hidden, {"03_train_tile": {"seeds": 4}})
    assert members(TILE) == [(f"tile_seed{seed}", split) for seed in range(4) for split in ("test", "valid")]
    assert members(LAYOUT) == [(f"token_seed{seed}", split) for seed in (8, 9) for split in ("test", "valid")]
    settings = folder.settings([TILE])["03_train_tile"]
    assert (settings["seeds"], settings["first_seed"], settings["device"]) == (4, 0, "cpu")
    assert settings["on_kaggle"] == {f"{USER}/{first}": {"first_seed": first, "seeds": 2} for first in (0, 2)}
    assert folder.fault("03_train_tile", [TILE]) is None
    assert len(tree(tmp_path / "store")) == 8 * 3                # those of the earlier plan are still there


def test_earlier_results_stay_where_a_job_failed_and_those_out_of_date_do_not_stop_the_others(tmp_path, tiny_hidden,
                                                                                           monkeypatch):
    monkeypatch.syspath_prepend(PROJECT / "notebooks")
    from on_kaggle import earlier_results
    root = shutil.copytree(tiny_hidden / "npz", tmp_path / "npz")
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


@pytest.mark.parametrize("text", ["", "[]", '{"a": {"state": "lost", "ref": "x"}}'])
def test_a_note_that_is_damaged_is_named_before_anything_is_pushed_twice(tmp_path, text):
    (tmp_path / "kaggle.json").write_text(text)
    assert "does not say what was pushed" in fails("damaged", read_jobs, tmp_path / "kaggle.json")
    assert read_jobs(tmp_path / "none.json") == {}


def test_measured_programs_are_not_trained_on_kaggle_by_another_data_set(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(PROJECT / "notebooks" / "run.py")["main"]
    for more in ([], ["--dry-run"]):
        assert main(command("measured", *more)[4:]) == 2
        assert capfd.readouterr().err.startswith("run.py: --on kaggle trains on the data set, and 05 and 06 need it ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change, sentence", [
    (["--owner", ""], "--on kaggle needs --owner NAME: your Kaggle user name, as in kaggle.com/NAME"),
    (["--only", "03"], "--on kaggle runs 03, 04 on Kaggle and 05, 06 here: remove --only"),
    (["--seed-groups", "2"], "2 seed groups and no number of seeds"),
    (["--machine", "TpuV5E8"], "--machine TpuV5E8: expected cpu, or one of Kaggle's names for machines with GPUs"),
    (["-p", "stepz=3"], "no parameter stepz")])
def test_a_wrong_call_is_one_sentence_and_asks_nothing(tmp_path, tiny_hidden, capfd, monkeypatch, change, sentence):
    monkeypatch.chdir(tmp_path)
    status = runpy.run_path(PROJECT / "notebooks" / "run.py")["main"](command(tiny_hidden, *change)[4:])
    errors = capfd.readouterr().err
    assert status == 2 and sentence in errors and len(errors.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_where_kaggle_cannot_be_used_the_run_ends_with_its_sentence(kaggle, tmp_path, tiny_hidden, run):
    kaggle.machine = lambda body: finished(kaggle, tiny_hidden, TILE)
    kaggle.answers["SaveKernel"] = [(401, f"Unauthenticated {TOKEN}")]
    status, _, errors = run("--collections", TILE)
    assert status == 1 and errors.startswith("run.py: Kaggle does not accept the credentials in KAGGLE_API_TOKEN: ")
    assert errors.endswith("\npushed notebooks keep running; the same command resumes here\n")
    kaggle.machine = lambda body: BROKEN
    status, _, errors = run("--collections", TILE)
    assert status == 1 and "failed on Kaggle: Your notebook threw an error" in errors and "CUDA out of memory" in errors
    assert "of an earlier run" not in errors
    assert not (tmp_path / "out" / "submission.csv").exists()
