"""Outputs that notebooks keep are those of the code beside them, small, and of no machine; nothing else reads them."""
import base64
import io
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from lab.run import Folder

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / ".ci"))
import outputs  # noqa: E402

BOOKS = outputs.notebooks()


def book(*more):
    return new_notebook(cells=[
        new_markdown_cell("# 00 Mine", id="a"), new_code_cell("steps = 1", id="b", metadata={"tags": ["parameters"]}),
        new_code_cell("print(steps)  # one", id="c"), *more])


def executed(*given, injected=True):
    """`book()` as papermill leaves it, with the outputs `given` in its last cell."""
    made = book()
    made.metadata["papermill"] = {"start_time": "2026-01-01T00:00:00", "parameters": {"steps": 2}}
    for count, cell in enumerate(made.cells[1:], 3):
        cell.metadata["papermill"], cell.execution_count = {"duration": 0.5}, count
    made.cells[-1].outputs = [*given]
    if injected:
        made.cells.insert(2, new_code_cell("steps = 2", id="d", metadata={"tags": ["injected-parameters"]}))
    return made


def test_the_outputs_of_committed_notebooks_are_of_the_code_beside_them():
    assert outputs.faults(BOOKS) == []


def test_an_edited_cell_is_named_with_the_command_and_an_edited_text_or_comment_is_not(tmp_path):
    path = tmp_path / "00_mine.ipynb"

    def said(found):
        path.write_text(outputs.text_of(found))
        return outputs.faults([path])
    made = outputs.with_outputs(book(), executed(new_output("stream", text="1\n")))
    assert said(made) == said(book()) == said(outputs.without_outputs(made)) == []
    made.cells[0].source, made.cells[2].source = "# 00 Ours", "print(steps)  # two"
    assert said(made) == []
    made.cells[2].source = "print(steps + 1)"
    assert said(made) == ["00_mine.ipynb: its code has changed since its outputs were made; run python "
                          ".ci/outputs.py --only 00"]
    made.metadata.pop(outputs.KEY)
    assert said(made) == ["00_mine.ipynb: has outputs of unknown code; run python .ci/outputs.py --only 00"]


def test_code_text_and_metadata_stay_and_nothing_of_the_run_is_kept():
    made = outputs.with_outputs(book(), executed(new_output("stream", text="1\n"), new_output("stream", text="2\n")))
    digest = made.metadata.pop(outputs.KEY)
    assert made.metadata == {} and digest == outputs.digest_of(book())
    assert [cell.source for cell in made.cells] == [cell.source for cell in book().cells]
    assert [cell.metadata for cell in made.cells] == [cell.metadata for cell in book().cells]
    assert [cell.execution_count for cell in made.cells[1:]] == [1, 2]
    first, second = (cell.outputs for cell in made.cells[1:])
    assert first == [] and [one.text for one in second] == ["1\n2\n"]
    assert outputs.text_of(outputs.without_outputs(made)) == outputs.text_of(book())


def colours_in(png):
    """The colours of a PNG, as sets of three whole numbers."""
    with Image.open(io.BytesIO(png)) as found:
        return {colour for _, colour in found.convert("RGB").getcolors(found.width * found.height)}


def test_committed_pictures_have_the_colours_that_they_were_drawn_with():
    found = [(path.name, output) for path in BOOKS for cell in nbformat.read(path, 4).cells
             for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    assert len(found) > 30
    for name, output in found:
        drawn = {tuple(bytes.fromhex(colour)) for colour in output.metadata[outputs.SHOWN].split()}
        assert len(drawn) > 2 and drawn <= colours_in(base64.b64decode(output.data["image/png"])), name


@pytest.mark.parametrize("text, words", [
    ("/home/someone/kit/out.csv", "the absolute path /home/someone"), ("a-secret-1234", "a token"),
    ("on machine-7 now", "the name of this machine, machine-7")])
def test_what_must_not_be_kept_is_refused(monkeypatch, text, words):
    monkeypatch.setenv("KAGGLE_API_TOKEN", "a-secret-1234")
    monkeypatch.setattr(outputs.socket, "gethostname", lambda: "machine-7")
    for output in (new_output("stream", text=text), new_output("display_data", {"text/html": f"<p>{text}</p>"})):
        with pytest.raises(outputs.OutputError) as fault:
            outputs.with_outputs(book(), executed(output))
        assert str(fault.value) == f"the output of cell 2 has {words}; print something else there"


def test_a_copy_of_other_code_or_with_an_error_is_refused():
    with pytest.raises(outputs.OutputError, match="^the executed copy has other code; run python .ci/outputs.py"):
        outputs.with_outputs(book(new_code_cell("print(1)", id="e")), executed())
    with pytest.raises(outputs.OutputError, match="^cell 2 ended with an error"):
        outputs.with_outputs(book(), executed(new_output("error", ename="E", evalue="", traceback=[])))


def test_a_bundle_and_the_key_of_a_step_do_not_know_of_outputs(tmp_path):
    make = runpy.run_path(str(PROJECT / "notebooks" / "bundle.py"))["bundle"]
    step = runpy.run_path(str(PROJECT / "notebooks" / "steps.py"))["Step"]
    path, plain = tmp_path / "a" / "06_submit.ipynb", PROJECT / "notebooks" / "06_submit.ipynb"
    bare = outputs.without_outputs(nbformat.read(plain, 4))
    shown = nbformat.from_dict(json.loads(json.dumps(bare)))
    for cell in [cell for cell in shown.cells if cell.cell_type == "code"]:
        cell.outputs, cell.execution_count = [new_output("stream", text="an old score\n")], 5
    found = []
    for one in (bare, outputs.with_outputs(bare, shown)):
        path.parent.mkdir(exist_ok=True)
        path.write_text(outputs.text_of(one))
        found.append((nbformat.writes(make({path: {"size": "tiny"}})), step(path, {}, Folder(tmp_path / "out")).code()))
    assert found[0] == found[1] and "an old score" not in found[1][0]


@pytest.mark.long
def test_the_command_keeps_outputs_of_a_tiny_run(tmp_path):
    """In a copy of the project, because the notebooks themselves change."""
    for part in ("kit", "notebooks", ".ci"):
        shutil.copytree(PROJECT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run([sys.executable, tmp_path / ".ci" / "outputs.py", "--size", "tiny", "--only", "00"],
                          cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]
    path = tmp_path / "notebooks" / "00_quickstart.ipynb"
    text = path.read_text()
    assert str(tmp_path) not in text and '"image/png"' in text and path.stat().st_size < outputs.MOST_BYTES
    assert outputs.faults([path]) == []
