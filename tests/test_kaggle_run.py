"""`run.py --only 06 -p submit_to_kaggle=True` as a user types it: each fault has its sentence and loses nothing."""
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from kaggle_server import QUICK, TOKEN, hurried

PROJECT = Path(__file__).resolve().parents[1]
SUBMIT = ("--only", "06", "-p", "submit_to_kaggle=True")
PAGE = "https://www.kaggle.com/competitions/predict-ai-model-runtime"


def run(folder, root, *args):
    """notebooks/run.py in a child process -> (exit status, stdout, stderr)."""
    done = subprocess.run([QUICK["python"], PROJECT / "notebooks" / "run.py", "--data-root", root, "--out", "out",
                           "--size", "tiny", *args], cwd=folder, env=hurried(folder / "hurried"), text=True,
                          capture_output=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_sample):
    """(data of one collection that is not known to be sample data, the folder of a run on it)."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(tiny_sample / "npz" / "tile", folder / "data" / "npz" / "tile")
    status, said, errors = run(folder, folder / "data", "--only", "03,05,06", "-p", "steps=3", "-p", "seeds=1")
    assert (status, errors) == (0, ""), said
    return folder / "data", folder / "out"


@pytest.fixture
def submit(kaggle, trained, tmp_path):
    """() -> (exit status, stdout, stderr) of the command; whatever happens the CSV stays as it was."""
    data, out = trained
    shutil.copytree(out, tmp_path / "out")
    csv = (tmp_path / "out" / "submission.csv").read_bytes()

    def command(*args):
        done = run(tmp_path, data, *SUBMIT, *args)
        assert (tmp_path / "out" / "submission.csv").read_bytes() == csv
        assert json.loads((tmp_path / "out.json").read_text())["run"] == "out"
        return done
    return command


@pytest.mark.parametrize("call, answers, sentence", [
    (None, "no token", "there are no Kaggle credentials: make a token at https://www.kaggle.com/settings/api, then"),
    (None, "stale token", "Kaggle does not accept the credentials in KAGGLE_API_TOKEN: put a new token there"),
    (None, "dead host", 'no answer from Kaggle (ProxyError) at "list submissions": check the internet connection'),
    (None, "limit", "Kaggle takes no more submissions now (5 today, 9 in all); the count starts anew at 0:00 UTC"),
    (None, "scoring", "Kaggle could not score submission 1000: Evaluation Exception: row 7"),
    ("ListSubmissions", [(403, "Permission 'competitions.participate' was denied")],
     "Kaggle forbids access to predict-ai-model-runtime (HTTP 403: Permission 'competitions.participate' was denied): "
     f"check the name; for a competition accept its rules at {PAGE}/rules"),
    ("ListSubmissions", [(404, "no such competition")],
     "Kaggle has no predict-ai-model-runtime (HTTP 404: no such competition): check the name"),
    ("ListSubmissions", [(429, "", {"Retry-After": "600"})],
     "Kaggle asks for fewer requests (HTTP 429, Retry-After 600 s): wait some minutes, then run it again"),
    ("StartSubmissionUpload", [(503, "repairs")] * 9,
     'Kaggle has a fault of its own (HTTP 503: repairs) at "start upload": run it again later'),
    ("upload", ["cut"] * 9,
     "the upload did not get through (4 attempts); nothing was submitted: run it again"),
    ("CreateSubmission", [(400, "Your team has used its daily Submission allowance (5) today")],
     "Kaggle takes no more submissions now (HTTP 400: Your team has used its daily Submission allowance (5) today)"),
    ("CreateSubmission", [(400, f"Bad header {TOKEN}")], "Kaggle refuses (HTTP 400: Bad header ***)")])
def test_each_way_to_fail_ends_the_run_with_its_sentence_and_loses_nothing(kaggle, submit, monkeypatch, call, answers,
                                                                           sentence):
    if call:
        kaggle.answers[call] = list(answers)
    elif answers == "no token":
        monkeypatch.delenv("KAGGLE_API_TOKEN")
    elif answers == "stale token":
        monkeypatch.setenv("KAGGLE_API_TOKEN", "KGAT_stale")
    elif answers == "dead host":
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    elif answers == "limit":
        kaggle.limits = {"numToday": 5, "numTotal": 9, "numAllowedNow": 0}
    else:
        monkeypatch.setattr(kaggle, "on_CreateSubmission", lambda body: {"message": "", "ref": kaggle.submission(
            1000, "ERROR", description=body["submissionDescription"],
            errorDescription="Evaluation Exception: row 7")})
    status, said, errors = submit()
    lines = errors.splitlines()
    assert status == 1 and len(lines) == 3 and lines[0].startswith("run.py: 06_submit failed after ")
    assert lines[1].startswith(f"    KaggleError: {sentence}")
    assert lines[2] == "the partly executed notebook: out/notebooks/06_submit.partial.ipynb"
    assert [s["status"] for s in kaggle.submissions] == (["ERROR"] if answers == "scoring" else [])


def test_an_answer_that_is_lost_is_found_by_the_same_command_and_its_score_goes_into_the_ledger(kaggle, submit,
                                                                                               tmp_path, monkeypatch):
    kaggle.answers.update(CreateSubmission=["cut"], ListSubmissions=[None, (503, ""), (503, ""), (503, ""), (503, "")])
    status, _, errors = submit()
    assert status == 1 and 'at "list submissions": run it again later' in errors and len(kaggle.submissions) == 1
    status, _, errors = submit("-p", "score_within=0")
    assert status == 1 and ("    KaggleError: submission 1000 has no score after 0 s: run the same again; it is not "
                            "sent twice\n") in errors
    kaggle.submissions[0].update(status="COMPLETE", publicScore="0.75700", privateScore="0.73600")
    status, said, errors = submit()
    assert (status, errors, len(kaggle.submissions)) == (0, "", 1) and said.endswith("out/submission.csv\n")
    assert "done: submission 1000: public 0.757, private 0.736, now in the ledger" in said
    assert json.loads((tmp_path / "out.json").read_text())["leaderboard"] == {"public": 0.757, "private": 0.736}
    assert kaggle.asked.count("CreateSubmission") == 1


def test_what_cannot_be_submitted_is_never_sent(kaggle, submit, trained, tmp_path, tiny_sample):
    status, _, errors = run(tmp_path, tiny_sample, *SUBMIT)
    assert status == 1 and "    KaggleError: Kaggle cannot score sample data; nothing was sent: give the" in errors
    shutil.rmtree(tmp_path / "out" / "ensemble")
    status, _, errors = run(tmp_path, trained[0], *SUBMIT)
    assert status == 1 and "    KaggleError: no predictions in " in errors and "run 03, 04 and 05 first" in errors
    shutil.copytree(trained[1] / "ensemble", tmp_path / "out" / "ensemble")
    shutil.copytree(trained[0], tmp_path / "data")
    first = min((tmp_path / "data" / "npz" / "tile" / "xla" / "test").iterdir())
    shutil.copy(first, first.with_name("another.npz"))
    status, _, errors = run(tmp_path, tmp_path / "data", *SUBMIT)
    assert status == 1 and "submission.csv is not valid, nothing was sent: " in errors and "another" in errors
    assert kaggle.asked == []
