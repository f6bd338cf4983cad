"""Each number of README.md is the one that its linked page or notebook shows, or that the kit's own table gives."""
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest

from kit.data import COLLECTIONS

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "notebooks"))
from hours import training_hours  # noqa: E402

README = (PROJECT / "README.md").read_text("utf-8")
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


def test_spread_out_repeats_a_cell_in_each_of_its_rows():
    table = ElementTree.fromstring('<table><tr><th rowspan="2">a</th><th>b</th></tr><tr><td>c</td></tr></table>')
    assert spread_out(table) == [["a", "b"], ["a", "c"]]


def test_scores_are_those_of_notebook_05():
    rows = [row for row in shown("05") if len(row) > 5 and row[0] in COLLECTIONS]
    known = {(row[0], row[1]): row for row in rows}
    table = readme_rows("collection (sample data)")
    assert [row[0].strip("`") for row in table] == [*COLLECTIONS[1:], COLLECTIONS[0]]
    for name, ensemble, baseline, ceiling in table:
        name = name.strip("`")
        own = known[name, "ensemble"]
        assert ensemble == f"{own[2]} ({own[3]} to {own[4]})"
        assert baseline == known[name, "node alone" if name != "tile:xla" else "compiler's default"][2]
        assert ceiling == own[8]


def test_searches_are_those_of_notebook_07():
    rows, searches = shown("07"), {}
    for row in rows:
        if len(row) == 8 and row[0] in COLLECTIONS:
            searches[row[0], row[1]] = dict(zip((5, 10, 30, 100, 300, 1000), row[2:]))
    table = readme_rows("slower than the best known")
    lines = [("model, explore then droplet", 30), ("explore then droplet", 30), ("random", 1000)]
    assert len(table) == len(lines)
    for (_, *cells), (search, budget) in zip(table, lines):
        for source, cell in zip(("xla", "nlp"), cells):
            for kind in ("random", "default"):
                mean, ends = searches[f"layout:{source}:{kind}", search][budget].split(" ", 1)
                assert cell == f"{mean}% {ends}"


def test_gains_and_reasons_are_those_of_notebook_07():
    rows = shown("07")
    for source in ("xla", "nlp"):
        for kind in ("random", "default"):
            gain, = {row[5] for row in rows if row[:3] == [f"layout:{source}:{kind}", "whole space", "with model"]}
            mean, ends = re.fullmatch(r"(\S+) \((.+)\)", gain).groups()
            assert re.search(rf"{mean} times \({ends}\) (as fast as the compiler's default )?in `{source}`", README)
    for undone, words in (("named", "the true runtime falls by"), ("at random", "drawn at random, by")):
        falls = sorted(-float(row[2].strip("%")) for row in rows if len(row) > 2 and row[1] == undone)
        assert len(falls) == 4 and f"{words} {falls[0]:.1f} to {falls[-1]:.1f}%" in README
    low, high = next(row[3:5] for row in rows if row[:2] == ["layout:nlp:default", "difference"])
    assert float(low.strip("%")) <= 0 <= float(high.strip("%"))          # README: no difference there


@pytest.mark.parametrize("line, row", [
    ("config-token model, long form", "all (long form) | real programs"), ("the kit's own GNN", "gnn"),
    ("config-token model, short form",
     "opcode and agreement alone (short form) | real programs"), ("GNN of the first place", "first place's network"),
    ("boosted trees on agreement features, monotonic", "boosted trees, monotonic")])
def test_the_real_program_is_that_of_the_studies(line, row):
    mine, = (cells[1:] for cells in readme_rows("model, trained on two real programs") if cells[0].startswith(line))
    assert f"| {row} | {' | '.join(mine)} |" in STUDIES


def test_what_the_default_run_submits_for_the_real_program_stands_in_the_studies():
    random, default = readme_rows("model, trained on two real programs")[-1][1:]
    assert f"The ensemble has {random} on the `random` file and {default} on the `default` file." in STUDIES
    simulated = re.search(r"\| all \(long form\) \| sample data alone \| (.*?) \|", STUDIES)[1]
    assert f"ranks this program at {simulated}." in README


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
    assert f"about {one:.0f} hours of one T4, or {two:.0f} hours of Kaggle's machine with two T4" in README
