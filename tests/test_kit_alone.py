"""The first cells of notebooks 03 and 04 train and rank in an empty notebook where only the kit is installed."""
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

PROJECT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name, said", [
    ("03_train_tile", "the five to try of "), ("04_train_layout", " configurations")])
def test_cells_copied_into_an_empty_notebook_train_and_rank(tiny_sample, tmp_path, name, said):
    shutil.copytree(PROJECT / "kit", tmp_path / "kit", ignore=shutil.ignore_patterns("__pycache__"))
    cells = [cell.source for cell in nbformat.read(PROJECT / "notebooks" / f"{name}.ipynb", 4).cells
             if "kit-alone" in cell.metadata.get("tags", ())]
    lines = [*cells, "import sys\nassert not [name for name in sys.modules if name.partition('.')[0] == 'lab']"]
    assert sum(len(cell.splitlines()) for cell in cells) <= 60
    (tmp_path / "copied.py").write_text("\n".join(lines))
    done = subprocess.run([sys.executable, "copied.py"], cwd=tmp_path, text=True, capture_output=True, env={
        "PYTHONPATH": str(tmp_path), "PATH": "", "OMP_NUM_THREADS": "1", "TPUGRAPHS_ROOT": str(tiny_sample)})
    assert done.returncode == 0, done.stderr
    assert said in done.stdout and "step    100 of 100" in done.stdout, done.stdout
