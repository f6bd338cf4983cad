"""A whole season as notebooks/README.md prints it, with the real client and real notebooks against a local server.

From a token to a score in the ledger: the data set is pushed, trainings are pushed, cut, resumed, one fails and is
repeated, weights travel, a notebook predicts from them, its CSV is submitted. Home trains the same for comparison.
"""
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from kaggle_server import PYTHON, USER, hurried
from run_folder import SHOWN
from test_bundle import KERNEL
from test_kaggle_sessions import TIMED_OUT

from lab.run import Folder
from lab.run.folder import TRAINS

PROJECT = Path(__file__).resolve().parents[1]
PREPARED, WEIGHTS = f"{USER}/tpugraphs-prepared", f"{USER}/tpugraphs-weights"
STEPS = {"tile.steps": 4, "token.steps": 3, "gnn.steps": 2, "gnn.width": 8, "seeds": 2}
# the data have few of the competition's collections
TINY = ["--size", "tiny", "-p", "partial=True",
        *(word for name, value in STEPS.items() for word in ("-p", f"{name}={value}"))]
SUBMIT = ("--size", "tiny", "-p", "partial=True")
# steps of all trainings: two models of each kind
# steps of token, LightGBM, additive trees and the GNN, two seeds each; of tiles, two seeds
IN_ALL = {"tile-xla": 2 * 4, "layout-xla-default": 2 * 3 + 2 * 1 + 2 * 1 + 2 * 2}
# In front of a training there: folders of Kaggle; a clock of which each look takes a share of the 8 hours; a note for
# each step of an optimiser. At a drawn look, Kaggle ends the session, or the notebook fails.
THERE = """import itertools, os, signal
from types import SimpleNamespace
from torch.optim.optimizer import register_optimizer_step_post_hook
from lab.run.unfinished import earlier_stores
from kit.train_parts import deadlines

def one_more(*_):
    with open("steps.txt", "a") as file:
        file.write("step ")

def now(looks=itertools.count(1)):
    look = next(looks)
    if look == {killed}:
        os.kill(os.getpid(), signal.SIGKILL)
    if look == {fails}:
        raise MemoryError("too little of it")
    return look * 8 * 3600 / {budget}

register_optimizer_step_post_hook(one_more)
run.store.others = earlier_stores({inputs!r})
deadlines.Path = lambda path: SimpleNamespace(is_dir=lambda: True)
deadlines._BEGAN, deadlines.now = 0, now
"""
NEVER = {"killed": 0, "fails": 0, "budget": 10 ** 6}


class Machines:
    """Kaggle's side: each pushed notebook really runs, alone and without network, with what it asked for mounted."""

    def __init__(self, server, folder, competition, endings):
        # endings: {word of a notebook's name: how its sessions end, one after another}; then each ends by itself
        self.server, self.folder, self.competition = server, folder, competition
        self.endings = {word: iter(ends) for word, ends in endings.items()}
        self.children, self.odd = {}, []         # odd: what sessions said that did not end as they should
        spec = folder / "jupyter" / "kernels" / "alone"
        spec.mkdir(parents=True)
        (spec / "kernel.json").write_text(json.dumps({
            "argv": [sys.executable, "-c", KERNEL, "-f", "{connection_file}"], "display_name": "alone",
            "language": "python"}))
        server.machine = self.start

    def start(self, body):
        """Run a notebook that was pushed."""
        place = self.folder / "working" / body["slug"].partition("/")[2]
        place.mkdir(parents=True)
        inputs = self.mount(body, self.folder / "inputs" / place.name)
        ending = next((next(ends, {}) for word, ends in self.endings.items() if word in place.name), {})
        book = nbformat.reads(body["text"], 4)
        for cell in book.cells:
            cell.source = cell.source.replace("/kaggle/input/datasets", f"{inputs}/datasets")
            if "made = train_recipes(" in cell.source:
                cell.source = THERE.format(inputs=str(inputs), **NEVER | ending) + cell.source
        nbformat.write(book, place / "book.ipynb")
        hidden = ("PYTHONPATH", "TPUGRAPHS_ROOT")
        around = {k: v for k, v in os.environ.items() if not k.startswith("KAGGLE") and "proxy" not in k
                  and k not in hidden}
        around |= {"JUPYTER_PATH": str(self.folder / "jupyter"), "OMP_NUM_THREADS": "1"}
        if body.get("competitionDataSources") and PREPARED not in body.get("datasetDataSources", []):
            around["TPUGRAPHS_ROOT"] = str(self.competition)
        with open(place / "said.txt", "w") as said:
            child = subprocess.Popen([sys.executable, "-m", "papermill", "-k", "alone", "book.ipynb", "done.ipynb"],
                                     cwd=place, env=around, stdout=said, stderr=said)
        self.children[place.name] = child
        return lambda: self.look(place, child, ending)

    def mount(self, body, inputs):
        """The Datasets and outputs that a notebook asked for, where Kaggle shows them -> the folder."""
        for ref in body.get("datasetDataSources") or []:
            for name, data in self.server.datasets[ref]["versions"][-1]["files"].items():
                path = inputs / "datasets" / ref / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        for ref in body.get("kernelDataSources") or []:
            shutil.copytree(self.folder / "working" / ref.partition("/")[2] / "results",
                            inputs / "notebooks" / ref / "results")
        return inputs

    def look(self, place, child, ending):
        """What Kaggle says of a session; waits a while, because each question starts a process."""
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            return {"status": "RUNNING", "files": [], "log": ""}
        said = (place / "said.txt").read_text()
        files = [path for path in sorted(place.rglob("*")) if path.is_file()]
        for path in files:
            self.server.files[f"/output/{path}"] = path.read_bytes()
        if (child.returncode != 0) != bool({"killed", "fails"} & ending.keys()):
            self.odd.append(said[-3000:])
        why = TIMED_OUT if "killed" in ending else "Your notebook threw an error"
        ended = {"status": "ERROR", "failureMessage": why} if child.returncode else {"status": "COMPLETE"}
        return {**ended, "log": said, "files": [(path.relative_to(place).as_posix(), f"/output/{path}")
                                                for path in files]}

    def steps(self, word):
        """Steps of all optimisers, one number per session of the notebooks with this word in their names."""
        notes = [self.folder / "working" / name / "steps.txt" for name in self.children if word in name]
        return [len(path.read_text().split()) if path.is_file() else 0 for path in notes]


def printed(page, start):
    """The first block of commands below a sentence in a page, one per line."""
    block = re.search(rf"{start}.*?```\n(.*?)```", (PROJECT / page).read_text("utf-8"), re.S)[1]
    return block.strip().splitlines()


@pytest.fixture
def home(kaggle, tmp_path, tiny_sample):
    """A function that runs a printed line in a clone, whose data look real -> what it prints; and the clone."""
    clone, data = tmp_path / "clone", tmp_path / "npz_all"
    for name in ("kit", "notebooks"):
        shutil.copytree(PROJECT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__", "submissions"))
    shutil.copy(PROJECT / "pyproject.toml", clone)
    for book in (clone / "notebooks").glob("0[34]*.ipynb"):
        assert book.read_text().count(SHOWN[0]) == 1
        book.write_text(book.read_text().replace(*SHOWN))
    for name in ("tile/xla", "layout/xla/default"):
        shutil.copytree(tiny_sample / "npz" / name, data / "npz" / name)
    environment = hurried(tmp_path / "hurried")

    def command(line, *more, status=0):
        for old, new in ((".venv/bin/python", PYTHON), (".venv/bin/kaggle", Path(PYTHON).with_name("kaggle")),
                         ("path/to/npz_all", data), ("YOUR-NAME", USER), ("NAME", USER)):
            line = line.replace(old, str(new))
        said = ""
        for part in line.split(" && "):
            done = subprocess.run([*shlex.split(part), *more], cwd=clone, env=environment, text=True,
                                  capture_output=True, timeout=3600)
            said += done.stdout
            assert done.returncode == status, f"{part}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            more = ()                            # of the first part alone
        return said
    command.folder = clone
    return command


def drawn_endings(seed):
    """How sessions end. A look at the clock stands before each model, and before each of its steps."""
    rng = np.random.default_rng(seed)
    return {"tile-xla": [{"budget": int(rng.integers(3, 6))},                # after 1 to 3 of 8 steps
                         {"killed": int(rng.integers(3, 5))}],               # after 1 or 2 more
            "layout-xla-default": [{"fails": int(rng.integers(3, 12))}]}


@pytest.mark.long
def test_a_season_from_a_token_to_a_score_trains_and_pushes_nothing_twice(kaggle, home, tmp_path, monkeypatch):
    competition = tmp_path / "competition"
    shutil.copytree(tmp_path / "npz_all", competition, ignore=shutil.ignore_patterns("train"))
    machine = Machines(kaggle, tmp_path / "machines", competition, drawn_endings(seed=0))
    kaggle.processing = ["BLOBS_RECEIVED", "BLOBS_DECOMPRESSED"]
    train, publish, predict, submit = printed("notebooks/README.md", "A season on Kaggle")

    # 0. the data set, prepared once
    guide = (PROJECT / "notebooks" / "README.md").read_text("utf-8")
    carry = re.search(r"^\| carry prepared data to Kaggle \| `(.*?)`", guide, re.M)[1]
    home(carry)
    assert [*kaggle.datasets] == [PREPARED] and kaggle.datasets[PREPARED]["isPrivate"]

    # 1. training: sessions are cut, and one notebook fails
    train_tiny = [*TINY, "--seed-groups", "1", "--dataset", PREPARED]
    said = home(train, *train_tiny, status=3)
    assert machine.odd == []
    tile, layout = (sorted(name for name in machine.children if word in name) for word in IN_ALL)
    assert len(tile) == 3 and len(layout) == 1 and sum(machine.steps("tile-xla")) == IN_ALL["tile-xla"], said
    assert f"{USER}/{tile[0]}: to be continued; the next session goes on from its checkpoints, 1 model with" in said
    assert f"{USER}/{tile[1]}: was cut ({TIMED_OUT}); the next session goes on from its checkpoints" in said
    assert (f"left out: {USER}/{layout[0]} failed on Kaggle: Your notebook threw an error; the same command goes on "
            "from its checkpoints") in said
    assert "MemoryError: too little of it" in said
    said = home(train, *train_tiny)
    assert machine.odd == [] and len(machine.children) == len(kaggle.pushed) == 5
    sources = {body["slug"]: body.get("kernelDataSources") or [] for body in kaggle.pushed}
    assert sources == {f"{USER}/{name}": [f"{USER}/{before}"] if before else [] for name, before in (
        (tile[0], None), (tile[1], tile[0]), (tile[2], tile[1]), (layout[0], None), (f"{layout[0]}-2", layout[0]))}
    for word, steps in IN_ALL.items():
        assert sum(machine.steps(word)) == steps and 0 not in machine.steps(word), machine.steps(word)
    assert all(body["datasetDataSources"] == [PREPARED] and body["isPrivate"] and not body["enableInternet"]
               and body["machineShape"] == "NvidiaTeslaT4" for body in kaggle.pushed)

    # at home, without a break
    season, alone = (home.folder / "submissions" / name for name in ("season", "alone"))
    home(".venv/bin/python notebooks/run.py --data-root path/to/npz_all --out submissions/alone --only 03,04,05,06",
         *TINY)
    there, here = ({(c, one["member"], one["split"]): one["file"] for step in TRAINS.values()
                    for c, section in Folder(out, out).record(step)["sections"].items()
                    for one in section["costs"] if not one["baseline"]} for out in (season, alone))
    assert there == here and len(here) == 22     # a file is named after the costs in it
    csv = (alone / "submission.csv").read_bytes()
    assert (season / "submission.csv").read_bytes() == csv and len(csv.splitlines()) > 5

    # 2. and 3. the weights, and the notebook that predicts from them
    said = home(publish)
    assert f"{USER}/tpugraphs-weights: version 1 is ready" in said and [*kaggle.datasets] == [PREPARED, WEIGHTS]
    home(predict, "--size", "tiny")
    last, = kaggle.pushed[5:]
    assert (last["slug"], last["datasetDataSources"]) == (f"{USER}/tpugraphs-kit-05-06", [WEIGHTS])
    place = machine.folder / "working" / "tpugraphs-kit-05-06"
    assert machine.children[place.name].wait(600) == 0, (place / "said.txt").read_text()[-3000:]
    assert machine.steps("05-06") == [0] and (place / "submission.csv").read_bytes() == csv

    # 4. the submission and its scores
    take = kaggle.on_CreateSubmission

    def score(body):
        told = take(body)
        kaggle.submissions[0].update(status="COMPLETE", publicScore="0.65700", privateScore="0.63600")
        return told
    monkeypatch.setattr(kaggle, "on_CreateSubmission", score)
    said = home(submit, *SUBMIT)
    assert [*kaggle.uploads.values()] == [csv] and "public 0.657, private 0.636, now in the ledger" in said
    entry = json.loads((season.parent / "season.json").read_text())
    assert entry["leaderboard"] == {"public": 0.657, "private": 0.636}
    assert entry["sha256"] == hashlib.sha256(csv).hexdigest()
    weights = {Path(name).stem for name in kaggle.datasets[WEIGHTS]["versions"][0]["files"] if name.endswith(".pt")}
    assert {*entry["made_from"]["weights"].values()} <= weights and len(entry["made_from"]["predictions"]) == 11
    assert "0.657" in (season / "report.html").read_text()

    # the same once more: nothing happens twice
    asked = len(kaggle.asked)
    for line, more in ((carry, ()), (train, train_tiny), (publish, ()), (submit, SUBMIT)):
        home(line, *more)
    assert not {"SaveKernel", "CreateDataset", "CreateDatasetVersion", "CreateSubmission"} & {*kaggle.asked[asked:]}
    counts = ("SaveKernel", "CreateDataset", "CreateDatasetVersion", "CreateSubmission")
    assert [kaggle.asked.count(call) for call in counts] == [6, 2, 0, 1]
    assert len(machine.children) == 6 and (season / "submission.csv").read_bytes() == csv
