"""The script of the Kaggle client's child process, function by function; test_kaggle_io.py runs it as a whole."""
import ast
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import requests

from kit.kaggle import child


def answered(status, body=b"", headers=(), reason="a reason"):
    """The fault that `requests` raises for an answer."""
    response = requests.Response()
    response.status_code, response._content, response.reason = status, body, reason
    response.headers.update(headers)
    return requests.HTTPError("https://host/path?sig=secret", response=response)


def caused(fault, cause):
    fault.__cause__ = cause
    return fault


@pytest.mark.parametrize("fault, told", [
    (answered(403, b'{"message": "rules"}'), {"status": 403, "words": "HTTP 403: rules", "wait": None}),
    (answered(502, b"<html>"), {"status": 502, "words": "HTTP 502: a reason", "wait": None}),
    (answered(429, b"{}", {"Retry-After": "7"}), {"status": 429, "words": "HTTP 429: a reason", "wait": "7"}),
    (caused(ValueError("hidden"), answered(404, b'{"message": "gone"}')),
     {"status": 404, "words": "HTTP 404: gone", "wait": None}),
    (requests.ReadTimeout("slow"), {"status": 0, "words": "ReadTimeout"}),
    (caused(RuntimeError("?"), ConnectionResetError()), {"status": 0, "words": "ConnectionResetError"}),
    (ValueError("no such file"), {"kind": "refused", "words": "ValueError: no such file"}),
    (KeyError("x"), {"kind": "client", "words": "KeyError: 'x'"})])
def test_what_went_wrong_is_found_behind_what_the_client_raises(fault, told):
    assert child.describe(fault) == told


@pytest.mark.parametrize("told, safe, seconds", [
    ({"status": 503}, True, 8), ({"status": 503}, False, None), ({"status": 0}, True, 8), ({"status": 0}, False, None),
    ({"status": 429}, False, 8), ({"status": 429, "wait": "5"}, False, 5), ({"status": 429, "wait": "61"}, True, None),
    ({"status": 503, "wait": "Wed, 21 Oct 2026"}, True, 8), ({"status": 404}, True, None),
    ({"kind": "client"}, True, None)])
def test_only_what_is_safe_is_retried_and_not_after_long(told, safe, seconds):
    assert child.seconds_to_retry(told, number=2, pause=2, safe=safe) == seconds


def test_the_folder_of_the_script_and_the_working_directory_are_not_imported_from(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    path = ["", str(tmp_path), str(tmp_path / "link"), "/usr/lib/python3"]
    assert child.other_places(path, os.path.realpath(tmp_path)) == ["/usr/lib/python3"]


@pytest.mark.parametrize("there", [None, ".kaggle", ".config/kaggle", "xdg/kaggle"])
def test_the_client_makes_no_folder_and_finds_the_one_that_is_there(tmp_path, monkeypatch, there):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg") if there == "xdg/kaggle" else "")
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", "restored afterwards")
    monkeypatch.delenv("KAGGLE_CONFIG_DIR")
    if there:
        (tmp_path / there).mkdir(parents=True)
    child.make_no_folder()
    assert os.environ.get("KAGGLE_CONFIG_DIR") == (None if there else os.path.dirname(os.path.realpath(child.__file__)))
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", "mine")
    child.make_no_folder()
    assert os.environ["KAGGLE_CONFIG_DIR"] == "mine"


def calls(**words):
    """Calls that ask nobody, and what they tell."""
    steps = []
    return child.Calls({"retries": 2, "pause": 0, **words}, lambda step: steps.append(step), None, None), steps


def test_an_attempt_is_repeated_as_often_as_it_may_and_tells_each_time():
    own, steps = calls()

    def fail():
        raise answered(503)

    def succeed_at_last():
        return "done" if len(steps) == 3 else fail()
    assert own.attempt("ask", succeed_at_last) == "done" and steps == ["ask"] * 3
    with pytest.raises(requests.HTTPError):
        own.attempt("ask", fail)
    assert steps == ["ask"] * 6
    with pytest.raises(requests.HTTPError):
        own.attempt("push", fail, safe=False)
    assert steps[6:] == ["push"]


def test_a_submission_is_known_by_its_mark_unless_kaggle_rejected_it():
    own, _ = calls(mark="[0123456789ab]")
    listed = [{"ref": 3, "description": "m [0123456789ab]", "status": "pending"},
              {"ref": 2, "description": "m [0123456789ab]", "status": "error"},
              {"ref": 1, "description": "", "status": "complete"}]
    assert own.marked(listed) == [3]


@pytest.mark.parametrize("created, after, words", [
    (lambda: SimpleNamespace(ref=9, message="ok"), [], 9),                          # no list is needed
    (lambda: SimpleNamespace(ref=0, message="ok"), [9, 4], 9),
    (lambda: SimpleNamespace(ref=0, message="Successfully submitted"), [4], ("refused", "Successfully submitted"))])
def test_a_success_without_a_number_counts_only_if_the_submission_is_listed(monkeypatch, created, after, words):
    own, _ = calls(mark="[m]", competition="c", message="m")
    own.kaggle = SimpleNamespace(competitions=SimpleNamespace(competition_api_client=SimpleNamespace(
        create_submission=lambda request: created())))
    own.listed = lambda: [{"ref": ref, "description": "[m]", "status": "pending"} for ref in after]
    if isinstance(words, int):
        assert own.create("token", {4}) == words
    else:
        with pytest.raises(child.Refused) as caught:
            own.create("token", {4})
        assert caught.value.told == dict(zip(("kind", "words"), words))


def test_the_script_imports_nothing_of_the_kit_and_the_client_only_inside_functions():
    with open(child.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    top = {alias.name for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}
    assert top <= sys.stdlib_module_names
    every = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith("kit") for name in every)


def test_the_script_answers_in_lines_of_json_and_prints_nothing_else(tmp_path):
    (tmp_path / "requests.py").write_text("print('noise')\nraise ImportError('none here')\n")
    done = subprocess.run([sys.executable, child.__file__], input=b'{"call": "score"}', capture_output=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    line, = done.stdout.splitlines()
    assert json.loads(line) == {"source": None, "kind": "client", "words": "ImportError: none here"}
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_client_that_cannot_ask_for_the_quota_says_nothing_about_it():
    own, steps = calls()
    own.api = SimpleNamespace()
    assert own.quota() is None and steps == []
