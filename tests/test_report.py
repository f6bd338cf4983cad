"""The page about a run: well formed, self-contained, complete, and safe whatever a file is called."""
import base64
import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from lab.run import Folder
from lab.season import write_report

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
VOID = {"meta", "img"}


class Page(HTMLParser):
    """What a browser would make of a page; fails on tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.links = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text.append(data)

    @property
    def said(self):
        return re.sub(r"\s+", " ", " ".join(self.text))


def written(out, *args, **named):
    """The text of the page."""
    out.mkdir(exist_ok=True)
    write_report(out / "report.html", out, *args, **named)
    return (out / "report.html").read_text()


def page(*args, **named):
    return Page(written(*args, **named))


@pytest.fixture
def run(tmp_path):
    """A run's folder with two scores, a trained model and two executed notebooks."""
    out = tmp_path / "my <run>"
    (out / "store").mkdir(parents=True)
    (out / "notebooks").mkdir()
    (out / "submission.csv").write_text("ID,TopConfigs\na,0;1\nb,1;0\n")
    pd.DataFrame([
        {"collection": "layout:xla:random", "model": "ensemble", "score": 0.5, "low": 0.4, "high": 0.61,
         "lead": 0.0, "lead low": 0.0, "lead high": 0.0, "ceiling": 0.9, "graphs": 8, "seeds": 1, "split": "test"},
        {"collection": "layout:xla:random", "model": "ridge", "score": -0.25, "low": -0.3, "high": 0.1,
         "lead": 0.75, "lead low": 0.5, "lead high": 1.0, "ceiling": None, "graphs": 8, "seeds": 2, "split": "test"},
    ]).to_csv(out / "scores.csv", index=False)
    trained = "layout_xla_random-token-0-0123456789abcdef"
    Folder(out, out).write_record("04_train_layout", {"views": {}, "sections": {"layout:xla:random": {
        "settings": {}, "used": [trained, "mine"]}}})
    (out / "store" / "of-earlier-settings.json").write_text("{}")
    (out / "store" / f"{trained}.json").write_text(json.dumps({
        "model": "ConfigTokenModel", "parameters": 12345, "graphs": 20, "settings": {"steps": 1200},
        "configs_seen": 307200, "seconds": 12.4, "peak_memory": 500 << 20,
        "curve": {"step": [1, 2, 3], "loss": [0.9, 0.5, None], "score": [0.1, 0.2, 0.275]}}))
    for name, image in (("04_train", PNG), ("01_eda", "")):
        (out / "notebooks" / f"{name}.ipynb").write_text(json.dumps({"cells": [
            {"cell_type": "markdown", "source": ["# 04 Train\n", "## Curves & scores"]},
            {"cell_type": "code", "source": [], "outputs": [
                {"data": {"image/png": image, "text/html": "<script>alert(1)</script>"}}, {"name": "stdout"}]}]}))
    return out


def test_a_page_tells_scores_training_pictures_and_what_to_type_next(run):
    seen = page(run, "python notebooks/run.py --data-root <DIR>")
    for words in ("my <run>", "2 rows, checked", "No file was left out", "0.500", "0.400 to 0.610", "0.900",
                  "+0.750 (+0.500 to +1.000)", "-0.250", "8 graphs, 2 seeds, test", "layout_xla_random-token-0",
                  "12,345", "307,200", "500", "0.275", "Curves & scores", "python notebooks/run.py --data-root <DIR>"):
        assert words in seen.said, words
    assert "0123456789abcdef" not in seen.said
    assert seen.tags.count("polyline") == 1 and seen.tags.count("line") == 1 and seen.tags.count("img") == 1


def test_pictures_of_an_earlier_run_are_folded_and_said_to_be_so(run):
    said = ", of an earlier run: data, settings or code may have changed since"
    for now, words, opened in ((None, False, True), (["04_train"], False, True), (["03_train_tile"], True, False)):
        text = written(run, "next", now=now)
        assert (f"04_train{said}" in Page(text).said) == words and ("<details open>" in text) == opened


def test_a_page_needs_nothing_else_and_runs_nothing(run):
    text = written(run, "next")
    seen = Page(text)
    assert seen.links == [f"data:image/png;base64,{PNG}"]
    assert not re.search(r"https?:|@import|url\(|<script|<link|javascript", text)
    assert 'name="viewport"' in text


def test_warnings_are_listed_and_escaped(run):
    evil = "a<script>b</script>.npz"
    seen = page(run, "next", [(evil, "truncated"), (str(run / "submission.csv"), f"{run / 'submission.csv'}: 3 rows")])
    assert f"{evil}: truncated" in seen.said and "does not pass the check" in seen.said
    assert "script" not in seen.tags and "No file was left out" not in seen.said


def test_a_folder_may_lack_anything(run, tmp_path):
    assert "Next" in page(tmp_path / "empty", "go on").said
    for name in ("scores.csv", "submission.csv"):
        (run / name).unlink()
        page(run, "next")
    (run / "scores.csv").write_text("collection,model,score,low,high,graphs,seeds,split\n")
    assert "Scores" not in page(run, "next").said


# what may lie in a run's folder -> what the page and the console say of it
HEADER = "collection,model,score,low,high,graphs,seeds,split\n"
RECORD = {"model": "M", "parameters": 1, "graphs": 1, "settings": {"steps": 1}, "configs_seen": 1, "seconds": 1.0,
          "peak_memory": None, "curve": {"loss": [1.0], "score": [None]}}
UNREAD = [
    ("scores.csv", "", "is empty or no table (EmptyDataError); run notebook 05 again"),
    ("scores.csv", b"\xff\xfe\0", "is empty or no table (UnicodeDecodeError)"),
    ("scores.csv", "score\n0.5\n", "has the columns score; expected collection, model, score, low, high, graphs"),
    ("scores.csv", HEADER + "a,b,0.5,0,1,2,1,t\na,b,0,5,0,4,0,6,2,1,t\n", "is empty or no table (ParserError)"),
    ("scores.csv", HEADER + 'a,b,"0,5",0,1,2,1,t\n', "score is no number in each line; expected numbers, such as 0.5"),
    ("scores.csv", HEADER + "a,b,,0,1,2,1,t\n", "score is no number in each line"),
    ("scores.csv", HEADER + "a,b,0.5,nan,1,2,1,t\n", "low is no number in each line"),
    *(("store/mine.json", text, "is no record of a training; delete it") for text in (
        "", "{}", "[]", "[" * 10**5, json.dumps(RECORD | {"curve": {"loss": "12", "score": []}}))),
    *(("notebooks/05_mine.ipynb", text, "is no executed notebook (") for text in (
        '{"cells": [', "[]", '{"cells": [{"cell_type": "code", "outputs": [[]]}]}')),
]


@pytest.mark.parametrize("name, text, words", UNREAD)
def test_a_file_that_cannot_be_read_is_a_warning_on_the_page_and_on_the_console(run, capsys, name, text, words):
    (run / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    seen, said = page(run, "next"), capsys.readouterr().out
    assert f"{run / name}: {words}" in seen.said and "No file was left" not in seen.said
    assert said.startswith(f"not in the report: {run / name}: {words}") and said.count("\n") == 1
    # the other files are shown as before
    assert ("Scores" in seen.said) == (name != "scores.csv") and "12,345" in seen.said
    assert "Curves & scores" in seen.said and "Traceback" not in seen.said


def test_what_is_not_finished_is_not_shown_and_an_empty_table_is_no_fault(run, capsys):
    (run / "notebooks" / "03_train.partial.ipynb").write_text('{"cells": [')
    (run / "scores.csv").write_text(HEADER)
    seen = page(run, "next")
    assert "No file was left out" in seen.said and "03_train" not in seen.said and capsys.readouterr().out == ""
    (run / "submission.csv").write_bytes(b"ID,TopConfigs\n\xff,0\n")
    assert "1 rows" in page(run, "next").said                   # the check of the submission names the fault


def test_a_score_of_one_graph_has_no_interval(run):
    pd.DataFrame([{"collection": "tile:xla", "model": model, "score": 0.5, "low": None, "high": None, "lead": 0.25,
                   "lead low": None, "lead high": None, "ceiling": None, "graphs": 1, "seeds": 1, "split": "valid"}
                  for model in ("ensemble", "ridge")]).to_csv(run / "scores.csv", index=False)
    text = written(run, "next")
    seen = Page(text)
    assert "nan" not in text and seen.said.count("one graph: no interval") == 2 and "+0.250" in seen.said
    assert seen.said.count("+0.250 (") == 0 and text.count("#9cc3e6") == 0
