"""A bundled notebook runs alone: no kit to import, no network, Kaggle's folders; and gives what the kit gives."""
import base64
import errno
import importlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import nbformat
import pytest
import torch
from kaggle_server import PYTHON, USER
from run_folder import FULL, SHOWN, run_clone
from sample import write_sample

from kit.kaggle import notebooks

PROJECT = Path(__file__).resolve().parents[1]
COLLECTIONS = "tile:xla,layout:xla:random"
TINY = ("--size", "tiny", "--collections", COLLECTIONS, "-p", "partial=True", "-p", "tile.steps=5",
        "-p", "token.steps=5", "-p", "gnn.steps=3")
TOKEN = "KGAT_" + "0123456789abcdef" * 2           # of the form alone; put together, so that no scan takes it for one
KERNEL = f"""
import sys
sys.path[:] = [p for p in sys.path if p != {str(PROJECT)!r}]
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
try:
    import kit
    sys.exit("kit can be imported without the bundle")
except ModuleNotFoundError:
    pass


def refuse(event, args):
    if event == "socket.connect" and isinstance(args[1], tuple) and not str(args[1][0]).startswith("127."):
        raise OSError("there is no network")


sys.addaudithook(refuse)
from ipykernel.kernelapp import launch_new_instance
launch_new_instance()
"""


def bundled(folder, *args):
    """Run bundle.py -> the folders that it names."""
    command = PROJECT / "notebooks" / "bundle.py", "--out", "bundle", "--owner", "me"
    done = subprocess.run([sys.executable, *command, *args], cwd=folder, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    return [folder / line for line in done.stdout.splitlines()]


def unpacked(cells):
    """The files that the cells of a bundle hold: {name: content}."""
    text, = (cell.source.split('"""')[1] for cell in cells if cell.source.startswith("import base64\n"))
    with tarfile.open(fileobj=io.BytesIO(base64.b85decode(text.replace("\n", "")))) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def main(monkeypatch, folder, *args):
    """Run bundle.py in this process, in a folder -> exit status."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(PROJECT / "notebooks")
    return importlib.import_module("bundle").main(args)


def executed_alone(place, empty, **more):
    """Execute the notebook of a bundle in a new folder, where no kit can be imported -> the cells."""
    spec = empty.with_name(f"{empty.name}-jupyter") / "kernels" / "alone"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps({
        "argv": [sys.executable, "-c", KERNEL, "-f", "{connection_file}"], "display_name": "alone",
        "language": "python"}))
    empty.mkdir()
    book = place / f"{place.name}.ipynb"
    book.write_text(book.read_text().replace(*SHOWN))
    around = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("KAGGLE")}
    around |= {"OMP_NUM_THREADS": "1", "JUPYTER_PATH": str(spec.parents[1]), "HOME": str(empty), **more}
    done = subprocess.run([sys.executable, "-m", "papermill", "-k", "alone", book, "out.ipynb"], cwd=empty, env=around,
                          text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return nbformat.read(empty / "out.ipynb", 4).cells


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(an empty folder in which the bundle ran, the executed notebook, what run.py made of the same data)."""
    folder = tmp_path_factory.mktemp("bundle")
    root = write_sample(folder / "kaggle/input/competitions/predict-ai-model-runtime/npz_all", hidden=True)
    place, = bundled(folder, *TINY)
    empty = folder / "empty"
    executed_alone(place, empty, TPUGRAPHS_ROOT=str(root.parents[1]), KAGGLE_API_TOKEN=TOKEN)
    status, lines, errors = run_clone(PROJECT, "--data-root", root, "--out", folder / "kit", *FULL, *TINY, "-p",
                                      "workers=2")
    assert status == 0, (lines[-20:], errors)
    return empty, empty / "out.ipynb", folder / "kit"


@pytest.mark.long
def test_a_bundle_gives_the_submission_that_the_kit_gives_with_models_trained_side_by_side(made):
    empty, _, kit = made
    found, = empty.rglob("submission.csv")
    assert found.read_bytes() == (kit / "submission.csv").read_bytes()
    assert len(found.read_text().splitlines()) > 5


@pytest.mark.long
def test_a_bundle_of_the_kernels_has_their_stored_tables_with_it(tmp_path):
    place, = bundled(tmp_path, "--only", "08", "--size", "tiny", "--machine", "cpu")
    cells = executed_alone(place, tmp_path / "empty")
    assert sum("image/png" in output.get("data", ()) for cell in cells for output in cell.get("outputs", ())) >= 3
    name = "kernels_networks.csv"
    assert unpacked(cells)[name] == (PROJECT / "notebooks" / name).read_bytes()
    put = {name for name in unpacked(cells) if ".csv" in name}
    assert {"lab/kernels/networks.csv", "lab/kernels/measured.csv.gz"} == {
        name for name in put if "/" in name}


@pytest.mark.long
def test_the_evening_without_a_gpu_is_pushed_by_the_real_client_and_gives_what_runs_here(kaggle, tmp_path):
    root = write_sample(tmp_path / "competition", hidden=True)
    chosen = (*TINY, "-p", "models=token,lightgbm")
    place, = bundled(tmp_path, "--machine", "cpu", "--owner", USER, *chosen)
    subprocess.run([PYTHON, "-m", "kaggle", "kernels", "push", "-p", place], check=True, capture_output=True)
    pushed, = kaggle.pushed
    assert (pushed["slug"], pushed["isPrivate"], pushed["enableGpu"], pushed["enableInternet"]) == (
        f"{USER}/{place.name}", True, False, False)
    assert len(pushed["text"]) < 1 << 20         # Kaggle refuses larger notebooks
    there = tmp_path / "there" / place.name
    there.mkdir(parents=True)
    (there / f"{place.name}.ipynb").write_text(pushed["text"])
    executed_alone(there, tmp_path / "empty", TPUGRAPHS_ROOT=str(root.parent))
    status, lines, errors = run_clone(PROJECT, "--data-root", root, "--out", tmp_path / "kit", "--only", "03,04,05,06",
                                      *chosen, "-p", "workers=2")
    assert status == 0, (lines[-20:], errors)
    found, = (tmp_path / "empty").rglob("submission.csv")
    assert found.read_bytes() == (tmp_path / "kit" / "submission.csv").read_bytes()


@pytest.mark.long
def test_no_token_is_left_anywhere(made):
    for folder in (made[0], made[2]):
        for path in folder.rglob("*"):
            if path.is_file():
                assert TOKEN.encode() not in path.read_bytes(), path


@pytest.mark.long
def test_a_bundle_holds_the_kit_as_it_is_and_no_more(made):
    cells = nbformat.read(made[1], 4).cells
    written = unpacked(cells)
    assert {"kit/data.py", "kit/models/config_token.py", "kit/submit.py", "lab/data/graphs.py"} <= set(written)
    assert not {"kit/search/droplet.py", "lab/kernels/study.py"} & set(written)
    place = runpy.run_path(str(PROJECT / "notebooks" / "bundle.py"))["place"]
    for name, source in written.items():
        assert source == place(name).read_bytes(), name
    assert not any("Error" in json.dumps(c.get("outputs", [])) for c in cells)


def test_metadata_is_ready_to_push(tmp_path, monkeypatch, capsys):
    assert main(monkeypatch, tmp_path, "--only", "03,06", "--owner", "someone", "--size", "tiny") == 0
    said = capsys.readouterr()
    place = tmp_path / said.out.strip()
    about = json.loads((place / "kernel-metadata.json").read_text())
    assert not said.err and about["id"] == "someone/tpugraphs-kit-03-06" and (place / about["code_file"]).is_file()
    assert about["title"].replace(" ", "-") == place.name
    assert (about["is_private"], about["enable_gpu"], about["enable_internet"]) == (True, True, False)
    assert about["machine_shape"] == "NvidiaTeslaT4"                             # Kaggle's name for two T4
    assert about["competition_sources"] == ["predict-ai-model-runtime"]


def test_settings_of_models_reach_the_notebooks_of_a_bundle(tmp_path, monkeypatch, capsys):
    assert main(monkeypatch, tmp_path, "--only", "03,04,05", "--owner", "me", "-p", "token.steps=3", "-p",
                "tile.width=8") == 0
    place, found = tmp_path / capsys.readouterr().out.strip(), []
    for cell in nbformat.read(place / f"{place.name}.ipynb", 4).cells:
        if re.search(r"^changes = ", cell.source, re.MULTILINE):
            names = {}
            exec(cell.source, names)
            found.append(names["changes"])
    assert found == [{"token": {"steps": 3}, "tile": {"width": 8}}] * 2
    assert main(monkeypatch, tmp_path, "--only", "03", "-p", "token.stepz=3") == 2
    said = capsys.readouterr().err
    assert "ConfigTokenModel has no setting stepz" in said and said.count("\n") == 1


@pytest.mark.parametrize("args, shape", [(("--machine", "NvidiaTeslaA100"), "NvidiaTeslaA100"),
                                         (("--machine", "cpu"), None), (("-p", "device=cpu"), None)])
def test_another_machine_or_none_with_a_gpu(tmp_path, monkeypatch, capsys, args, shape):
    assert main(monkeypatch, tmp_path, "--only", "03", *args) == 0
    assert "--owner NAME" in capsys.readouterr().err
    about = json.loads((tmp_path / "bundle" / "tpugraphs-kit-03" / "kernel-metadata.json").read_text())
    assert (about["enable_gpu"], about.get("machine_shape")) == (shape is not None, shape)
    source = (tmp_path / "bundle" / "tpugraphs-kit-03" / "tpugraphs-kit-03.ipynb").read_text()
    assert ("needs_gpu=Path" in source) == (shape is not None)


def test_a_dry_run_prints_the_notebook_and_writes_nothing(tmp_path, monkeypatch, capsys):
    for name in [name for name in os.environ if name.startswith("KAGGLE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ("--dry-run", "--owner", "someone", "--dataset", "a/prepared-data", "-p", "recipe=full", "-p", "seeds=2")
    assert main(monkeypatch, tmp_path, *words, "--collections", COLLECTIONS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "someone/tpugraphs-kit-03-04-05-06", "    machine: NvidiaTeslaT4 (2 x T4), private, no internet",
        "    data: competition predict-ai-model-runtime, Dataset a/prepared-data",
        "    tile:xla: tile, seeds 0 to 1", "    layout:xla:random: token, lightgbm, additive, gnn, seeds 0 to 1"]
    hours, sessions = re.fullmatch(r"    training: about (\d+\.\d) hours, at least (\d+) sessions of 8 hours",
                                   lines[5]).groups()
    assert 8 * (int(sessions) - 1) < float(hours) <= 8 * int(sessions)
    assert lines[6] == (f"together: about {hours} hours, at least {sessions} sessions (calculated for training alone, "
                        "not measured; see notebooks/recipes.md)")
    assert lines[7].startswith("GPU quota: not known, because there are no Kaggle credentials") and len(lines) == 8
    assert not list(tmp_path.iterdir())


def test_a_notebook_without_its_gpu_ends_in_its_parameters_cell(monkeypatch):
    step = PROJECT / "notebooks" / "03_train_tile.ipynb"
    make = runpy.run_path(str(PROJECT / "notebooks" / "bundle.py"))["bundle"]

    def settings(**more):
        return next(c.source for c in make({step: more.pop("given", {})}, **more).cells
                    if "parameters" in c.metadata.get("tags", []))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for source in (settings(), settings(machine=None), settings(given={"device": "cpu"})):
        found = {}
        exec(source, found)                      # not on Kaggle: any machine will do
        assert found["device"] == "cpu"
    monkeypatch.setattr(Path, "is_dir", lambda path: str(path) == "/kaggle/working")
    exec(settings(machine=None), {})
    with pytest.raises(ValueError, match="^a GPU was asked for, but PyTorch .* sees none here: on Kaggle choose"):
        exec(settings(), {})
    with pytest.raises(ValueError, match="^device is 'cuda', and PyTorch .* cannot compute on it here"):
        exec(settings(given={"device": "cuda"}), {})


@pytest.mark.long
def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "bundle").touch()
    done = subprocess.run([sys.executable, PROJECT / "notebooks" / "bundle.py", "--size", "tiny"], cwd=tmp_path,
                          text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (2, "bundle.py: bundle: is a file; --out names a folder\n")


def test_a_folder_that_cannot_be_written_to_is_named_with_the_option(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")
    main = runpy.run_path(str(PROJECT / "notebooks" / "bundle.py"))["main"]
    monkeypatch.setattr(nbformat, "write", refuse)
    assert main(["--only", "13", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"'{tmp_path / 'tpugraphs-kit-13'}'; --out DIR names another folder\n" in said


@pytest.mark.parametrize("only", ["03,04,05,06", "08", "00,01,02,03,04,05,06,07,09,1"])
def test_kaggle_takes_every_bundle(tmp_path, monkeypatch, capsys, only):
    """Kaggle is reported to refuse sources above 1 MB and titles above 50 characters."""
    assert main(monkeypatch, tmp_path, "--only", only) == 0
    place = tmp_path / capsys.readouterr().out.strip()
    about = json.loads((place / "kernel-metadata.json").read_text())
    book = json.loads((place / about["code_file"]).read_text())
    for cell in book["cells"]:
        cell["source"] = "".join(cell["source"])
    assert len(json.dumps(book).encode()) <= 1_000_000 and 5 <= len(about["title"]) <= 50


def test_a_bundle_is_the_same_each_time_and_unpacks_what_was_packed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(PROJECT / "notebooks")
    bundle = importlib.import_module("bundle")
    files = {"kit/a.py": b'x = """%s{}"""' * 99, "lab/ä/b.csv.gz": bytes(range(256)), "c.csv": b""}
    assert bundle.packed(files) == bundle.packed(dict(files))
    cell = bundle.UNPACK.format(packed=bundle.packed(files))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = {}
    exec(cell, found)
    assert sys.path[0] == found["kit_folder"]
    for name, content in files.items():
        assert Path(found["kit_folder"], name).read_bytes() == content


def test_a_bundle_that_kaggle_would_refuse_is_one_sentence_and_not_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(notebooks, "SOURCE_MOST", 100_000)
    assert main(monkeypatch, tmp_path, "--only", "03") == 2
    said = capsys.readouterr().err
    assert "tpugraphs-kit-03.ipynb: has 0." in said and "Kaggle takes at most" in said and said.count("\n") == 1
    assert not [*tmp_path.rglob("*.ipynb")]
