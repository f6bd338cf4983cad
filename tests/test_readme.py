"""Each number of README.md is the one that its linked page or notebook shows, or that the kit's own table gives.

Code on the pages imports what is there.
"""
import ast
import importlib
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest

import kit.kaggle
from kit.data import COLLECTIONS
from kit.prepare import open_prepared

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


def test_scores_are_those_of_the_notebooks():
    table = shown("05")
    head = next(row for row in table if row[1:] == [*COLLECTIONS])
    score, ceiling = ({name: cell.partition(" ")[0] for name, cell in zip(head, row)} for kind in (
        "ensemble", "noise ceiling") for row in table if row[0] == kind)
    said = re.search(r"a tau of (\S+) in `layout:xla:random` and (\S+) in `layout:nlp:random`, under noise ceilings of "
                     r"(\S+) and (\S+)\. In .*?, it has (\S+) and (\S+) under (\S+) and (\S+)\. ", README).groups()
    drawn, searched = ([f"layout:{source}:{search}" for source in ("xla", "nlp")] for search in ("random", "default"))
    assert [*said] == [one[name] for some in (drawn, searched) for one in (score, ceiling) for name in some]
    tiles = {(row[0], row[1]): row[2] for row in shown("03") if len(row) > 2}
    ours, random = re.search(r"first five tiles scores (\S+), .*? at random score (\S+) ", README).groups()
    assert (ours, random) == (score["tile:xla"], tiles["random order", "5"])
    better = {}
    for at, name in list(enumerate(head))[2:5]:
        cells = [row[at] for row in table if len(row) == len(head) and row[0] in (
            "additive", "gnn", "lightgbm", "token", "frequency")]
        better[name] = max(cell.partition(" ")[0] for cell in cells)
    said = re.search(r"one kind alone scores higher \((\S+), (\S+), (\S+)\)", README).groups()
    assert [*said] == [better[name] for name in (*drawn, searched[0])]


def test_the_real_program_is_that_of_the_studies():
    random, default, ceiling = re.search(r"tau of (\S+) on its `random` file, and (\S+) on its `default` file, whose "
                                         r"ceiling is (\S+)\.", README).groups()
    assert f"The ensemble has {random} on the `random` file and {default} on the `default` file." in STUDIES
    assert f"default (ceiling {ceiling}" in STUDIES
    long = re.search(r"The long form, which .+?, has (\S+ \(.+?\)) and (\S+ \(.+?\))\.", README).groups()
    assert f"| all (long form) | {' | '.join(long)} |" in STUDIES


def test_measured_programs_are_those_of_the_studies():
    rows = readme_rows("measured programs, each family left out")
    section = STUDIES[STUDIES.index("### Each family left out"):STUDIES.index("### The splits of the kit")]
    known = {name: cells for name, *cells in (line.strip("| ").split(" | ") for line in section.splitlines()
                                              if line.startswith("| "))}
    assert len(rows) >= 6
    for name, tau, unfamiliar, gain in rows:
        places = 0, 2, 5                                 # the first row has no difference to itself
        assert [tau, unfamiliar, gain] == [known[name][place] if place < len(known[name]) else "" for place in places]


def test_the_tuned_program_is_that_of_the_studies():
    speedup, interval = re.search(r"became (\S+) times (\(.+?\)) as fast as with XLA's default", README).groups()
    assert f"| `vgg_b1` | 30 | {speedup} {interval} | faster |" in STUDIES
    assert re.search(r"^\| `unet_b1` \| 30 \| .* \| not surely faster \|", STUDIES, re.M)


def test_the_evening_is_that_of_the_benchmarks():
    page = (PROJECT / "tests" / "benchmarks" / "README.md").read_text("utf-8")
    measured, = re.findall(r"checked submission of 894 rows \| (\d+) min \|", page)
    guide = (PROJECT / "notebooks" / "README.md").read_text("utf-8")
    said = re.findall(r"\[(\d+) minutes\]\(.*?evening|it took (\d+) minutes on", README + guide)
    assert len(said) == 3 and {one or other for one, other in said} == {measured}


def test_it_is_short():
    assert len(README.split()) <= 1500 and len(README.splitlines()) <= 120


def test_times_are_those_of_the_benchmarks():
    page = (PROJECT / "tests" / "benchmarks" / "README.md").read_text("utf-8").partition("<!-- end commands -->")[0]
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


def test_searches_are_those_of_the_studies():
    ours, random = re.search(
        r"30 measurements of `explore_then_droplet` make them (\S+) times .*? as fast as XLA's default, and 30 random "
        r"measurements (\S+) times", README).groups()
    table = STUDIES[STUDIES.index("| strategy | 5 measurements"):].split("\n\n")[0].splitlines()
    rows = {name: cells for name, *cells in (line.strip("| ").split(" | ") for line in table)}
    assert rows["explore-then-droplet, learned model"][2].startswith(f"{ours} (")
    assert rows["random"][2].startswith(f"{random} (")


PAGES = {path.relative_to(PROJECT).as_posix(): path.read_text("utf-8") for path in (
    PROJECT / "README.md", PROJECT / "submissions" / "README.md", *(PROJECT / "notebooks").glob("*.md"))}
COMMANDS = [code for text in PAGES.values() for code in re.findall(r'python -c "(.+?)"(?:`|\n)', text)]


@pytest.mark.parametrize("page", PAGES)
def test_code_on_the_pages_imports_what_is_there(page):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)
    blocks += [code for code in COMMANDS if code in PAGES[page]]
    for node in [node for code in blocks for node in ast.walk(ast.parse(code))]:
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in ("kit", "lab"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


def test_the_command_that_carries_prepared_data_sends_their_folder(tiny_hidden, tmp_path, monkeypatch):
    code, = (code for code in COMMANDS if "push_dataset" in code)
    sent = []
    monkeypatch.setattr(kit.kaggle, "push_dataset", lambda folder, name: sent.append((folder, name)))
    monkeypatch.chdir(tmp_path)
    exec(code.replace("path/to/npz_all", str(tiny_hidden / "npz")), {})
    (folder, name), = sent
    assert name == "tpugraphs-prepared" and len(open_prepared(folder).catalogue) == 40
