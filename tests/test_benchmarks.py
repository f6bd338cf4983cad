"""The benchmark runner: a case in a process of its own, tables, and the page they are written to."""
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parent / "benchmarks" / "run.py"


@pytest.fixture(scope="module")
def run():
    spec = importlib.util.spec_from_file_location("benchmarks_run", RUN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_case_runs_in_a_process_of_its_own():
    command = [sys.executable, str(RUN), "--case", "baselines", "TileModel (tile)", "--steps", "2", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["seconds"]) == 2 and min(found["seconds"]) > 0
    assert found["configs"] > 1 and found["peak"] > 0


def test_a_table_has_medians_and_ratios_to_the_first_case(run):
    found = {("gnn", "published"): [{"seconds": [4.0, 2.0, 9.0], "configs": 64, "peak": 3 << 20},
                                    {"seconds": [4.0, 4.0], "configs": 64, "peak": 1 << 20}],
             ("gnn", "ours"): [{"seconds": [0.5], "configs": 32, "peak": 5 << 19}]}
    assert run.table(found)[2:] == ["| published | 4.000 | 16 | 1.00 | 2 |", "| ours | 0.500 | 64 | 4.00 | 2 |"]


def test_a_table_replaces_the_one_between_its_marks(run, tmp_path, monkeypatch):
    page = tmp_path / "README.md"
    page.write_text("a\n<!-- gnn -->\nold\n<!-- end gnn -->\nb\n<!-- gst -->\nkept\n<!-- end gst -->\n")
    monkeypatch.setattr(run, "PAGE", page)
    run.write_page("gnn", ["new", "table"])
    assert page.read_text() == ("a\n<!-- gnn -->\nnew\ntable\n<!-- end gnn -->\nb\n<!-- gst -->\nkept\n"
                                "<!-- end gst -->\n")
    assert list(tmp_path.iterdir()) == [page]
    with pytest.raises(SystemExit, match="no lines <!-- tiles --> and <!-- end tiles -->"):
        run.write_page("tiles", [])


def test_the_page_has_a_place_for_every_bench_file(run):
    text = run.PAGE.read_text()
    for path in RUN.parent.glob("bench_*.py"):
        name = path.stem[6:]
        assert f"<!-- {name} -->" in text and f"<!-- end {name} -->" in text


def test_an_unknown_case_is_an_error():
    done = subprocess.run([sys.executable, str(RUN), "--case", "baselines", "nothing"], capture_output=True, text=True)
    assert done.returncode != 0 and "nothing" in done.stderr
