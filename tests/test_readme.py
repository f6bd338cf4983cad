"""Each number of README.md is the one that its linked page or notebook shows, or that the kit's own table gives."""
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import numpy as np

from kit.data import COLLECTIONS

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "notebooks"))
from hours import training_hours  # noqa: E402

README = (PROJECT / "README.md").read_text("utf-8")
BASELINES = "node alone", "ridge", "popularity", "compiler's default"
STUDIES = (PROJECT / "notebooks" / "studies.md").read_text("utf-8")


def spread_out(table):
    """Rows of an HTML table as lists of texts; a cell over several rows stands in each of them."""
    pending, rows = {}, []                       # pending: {column: (text, rows left)}
    for row in table.iter("tr"):
        cells, found = iter(row), []
        while True:
            text, left = pending.pop(len(found), (None, 0))
            if not left:
                cell = next(cells, None)
                if cell is None:
                    break
                text, left = "".join(cell.itertext()).strip(), int(cell.get("rowspan", 1))
            if left > 1:
                pending[len(found)] = text, left - 1
            found.append(text)
        rows.append(found)
    return rows


def shown(number):
    """All rows of all tables that a committed notebook shows."""
    path, = (PROJECT / "notebooks").glob(f"{number}_*.ipynb")
    rows = []
    for cell in nbformat.read(path, 4).cells:
        for output in cell.get("outputs", []):
            html = output.get("data", {}).get("text/html", "")
            if "<table" in html:
                html = html[html.index("<table"):html.index("</table>") + 8].replace("&nbsp;", " ")
                rows += spread_out(ElementTree.fromstring(html.replace("<br>", "")))
    return rows


def readme_rows(head):
    """The cells of the rows of the table of README.md whose first line starts with `head`."""
    table = README[README.index(f"| {head}"):].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("*").replace("**", "") for cell in row.strip("|").split("|")] for row in table]


def test_scores_are_those_of_notebook_05():
    rows = [row for row in shown("05") if len(row) > 8 and row[0] in COLLECTIONS]
    ensemble = {row[0]: row for row in rows if row[1] == "ensemble"}
    best = {name: max(row[2] for row in rows if row[0] == name and row[1] in BASELINES) for name in COLLECTIONS}
    tile, layouts = COLLECTIONS[0], COLLECTIONS[1:]
    scores, ceilings = (sorted(ensemble[name][column] for name in layouts) for column in (2, 8))
    behind = sorted(best[name] for name in layouts)
    assert f"tau {scores[0]} to {scores[-1]} in the four layout collections, under ceilings of {ceilings[0]} to " \
           f"{ceilings[-1]}; the best baselines have {behind[0]} to {behind[-1]}." in README
    assert f"On tiles it has {ensemble[tile][2]} (1 - slowdown), and the compiler's own tiles {best[tile]} " in README


def test_the_real_program_is_that_of_the_studies():
    random, default, ceiling = re.search(r"tau of (\S+) on its `random` file, and (\S+) on its `default` file, whose "
                                         r"ceiling is (\S+)\.", README).groups()
    assert f"The ensemble has {random} on the `random` file and {default} on the `default` file." in STUDIES
    assert f"default (ceiling {ceiling}" in STUDIES
    long = re.search(r"whole data set gets has (\S+ \(.+?\)) and (\S+ \(.+?\))\.", README).groups()
    assert f"| all (long form) | real programs | {' | '.join(long)} |" in STUDIES


def test_measured_programs_are_those_of_the_studies():
    rows = readme_rows("measured programs of families that no model has seen")
    assert len(rows) >= 6
    for name, *scores in rows:
        assert f"| {name} | {' | '.join(scores)} |" in STUDIES, name


def test_the_tuned_program_is_that_of_the_studies():
    speedup, interval = re.search(r"became (\S+) times (\(.+?\)) as fast as with XLA's default", README).groups()
    assert f"| `vgg_b1` | 30 | {speedup} {interval} | faster |" in STUDIES
    assert re.search(r"^\| `unet_b1` \| 30 \| .* \| not surely faster \|", STUDIES, re.M)


def test_the_example_of_the_idea_adds_up():
    own, other, copy = (float(re.search(words, README)[1]) for words in (
        r"A costs (\S+) more", r"B (\S+) more with code 0", r"a copy (\S+) where"))
    cells = [[float(cell.rpartition("=")[2]) for cell in row[1:]] for row in readme_rows("cost |")]
    assert np.allclose(cells, [[other, copy], [own + other + copy, own]])


def test_it_is_short():
    assert len(README.split()) <= 1500 and len(README.splitlines()) <= 120


def test_times_are_those_of_the_benchmarks():
    page = (PROJECT / "tests" / "benchmarks" / "README.md").read_text("utf-8")
    for what, words in (("its first submission", "is there after {} s"),
                        ("the first command", "the whole run takes {} s"),
                        ("the second command", "runs the tests in {} s")):
        seconds, = re.findall(rf"^\| {what} \| (\d+) s \|", page, re.MULTILINE)
        assert words.format(seconds) in README, what


def test_hours_of_a_season_are_calculated():
    one, two = (sum(training_hours([c], {"recipe": "full", "seeds": 4 // groups}, "T4", groups) for c in COLLECTIONS)
                * groups for groups in (1, 2))
    guide = (PROJECT / "notebooks" / "README.md").read_text("utf-8")
    assert f"about {one:.0f} hours of one T4, or {two:.0f} hours of Kaggle's machine with two T4" in guide
