"""`run.py --only 06 -p submit_to_kaggle=True` as a user types it: each fault has its sentence and loses nothing."""
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kaggle_server import PYTHON, hurried
from run_folder import run_clone

from kit.data import npz_paths
from kit.submit import write_submission
from lab.data import Data
from lab.predictions import Prediction, Predictions
from lab.run import Run

PROJECT = Path(__file__).resolve().parents[1]
SUBMIT = ("--only", "06", "-p", "submit_to_kaggle=True")


def run(folder, root, *args):
    """notebooks/run.py in a child process -> (exit status, stdout, stderr)."""
    done = subprocess.run([PYTHON, PROJECT / "notebooks" / "run.py", "--data-root", root, "--out", "out",
                           "--size", "tiny", *args], cwd=folder, env=hurried(folder / "hurried"), text=True,
                          capture_output=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def combine(data, out, costs):
    """What notebook 05 leaves in the folder of a run."""
    run = Run("05_ensemble", data, out, collections="tile:xla")
    run.publish(Predictions(run.data(), [Prediction("tile:xla", "test", "ensemble", None, costs)]))
    run.save_table("scores.csv", pd.DataFrame({
        "collection": ["tile:xla"], "model": "ensemble", "score": 0.5, "low": 0.4, "high": 0.6, "graphs": 3, "seeds": 1,
        "split": "valid"}))
    run.save_table("graph_scores.csv", pd.DataFrame(columns=["collection", "graph", "score"]))


@pytest.fixture(scope="module")
def predicted(tmp_path_factory, tiny_hidden):
    """(data of one collection as the competition gives it, the folder of a run that has predicted it)."""
    folder = tmp_path_factory.mktemp("predicted")
    data, out, rng = folder / "data", folder / "out", np.random.default_rng(0)
    shutil.copytree(tiny_hidden / "npz" / "tile", data / "npz" / "tile")
    costs = {}
    for path in npz_paths(data, "tile:xla", "test"):
        with np.load(path) as npz:
            costs[f"tile:xla:{path.stem}"] = rng.random(len(npz["config_runtime"]))
    combine(data, out, costs)
    write_submission(costs, folder / "expected.csv")
    write_submission(costs, data / "sample_submission.csv")          # so the competition wants these rows alone
    return data, out


@pytest.fixture
def submit(kaggle, predicted, tmp_path):
    """() -> (exit status, stdout, stderr) of the command; whatever happens the CSV is there, and in the ledger.

    With `quick`, in this process and without Jupyter.
    """
    data, out = predicted
    shutil.copytree(out, tmp_path / "out")

    def command(*args, quick=False):
        done = run_clone(PROJECT, "--data-root", data, "--out", "out", "--size", "tiny", *SUBMIT, *args,
                         within=tmp_path) if quick else run(tmp_path, data, *SUBMIT, *args)
        assert (tmp_path / "out" / "submission.csv").read_bytes() == (out.parent / "expected.csv").read_bytes()
        assert json.loads((tmp_path / "out.json").read_text())["run"] == "out"
        return done
    return command


@pytest.mark.long
def test_an_answer_that_is_lost_is_found_by_the_same_command_and_its_score_goes_into_the_ledger(kaggle, submit,
                                                                                               tmp_path, monkeypatch):
    kaggle.answers.update(CreateSubmission=["cut"], ListSubmissions=[None, (503, ""), (503, ""), (503, ""), (503, "")])
    status, _, errors = submit()
    assert status == 1 and "so the submission may count. See" in errors and len(kaggle.submissions) == 1
    assert "run.py: 06_submit failed after " in errors and "the partly executed notebook: out/.run/06_submit" in errors
    status, _, errors = submit("-p", "score_within=0", quick=True)
    assert status == 1 and ("    KaggleError: submission 1000 has no score after 0 s: run the same again; it is not "
                            "sent twice\n") in errors
    kaggle.submissions[0].update(status="COMPLETE", publicScore="0.75700", privateScore="0.73600")
    status, said, errors = submit()
    assert (status, errors, len(kaggle.submissions)) == (0, "", 1) and said.endswith("out/submission.csv\n")
    assert "done: submission 1000: public 0.757, private 0.736, now in the ledger" in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(words in page for words in ("The season", "0.757", "0.736", 'alt="validation against leaderboard"'))
    assert json.loads((tmp_path / "out.json").read_text())["leaderboard"] == {"public": 0.757, "private": 0.736}
    assert kaggle.asked.count("CreateSubmission") == 1


def test_what_cannot_be_submitted_is_never_sent(kaggle, predicted, tmp_path, tiny_sample):
    def run(data, out="out"):
        return run_clone(PROJECT, "--data-root", data, "--out", tmp_path / out, "--size", "tiny", *SUBMIT)
    shutil.copytree(predicted[1], tmp_path / "out")
    combine(tiny_sample, tmp_path / "sample", Data(tiny_sample / "npz").runtimes("tile:xla", "test"))
    status, _, errors = run(tiny_sample, "sample")
    assert status == 1 and "    KaggleError: Kaggle cannot score measured programs; nothing was sent: give" in errors
    step = tmp_path / "out" / "steps" / "05_ensemble.json"
    step.unlink()
    status, _, errors = run(predicted[0])
    assert status == 1 and "    KaggleError: no predictions in " in errors and "run 03, 04 and 05 first" in errors
    shutil.copy(predicted[1] / "steps" / step.name, step)
    shutil.copytree(predicted[0], tmp_path / "data")
    (tmp_path / "data" / "sample_submission.csv").unlink()
    status, _, errors = run(tmp_path / "data")
    assert status == 1 and "submission.csv is not valid, nothing was sent: tile:xla: 841 missing ID" in errors
    assert "to submit an incomplete file all the same, pass partial=True" in errors
    assert kaggle.asked == []
