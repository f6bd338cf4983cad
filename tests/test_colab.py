"""20_colab as Colab runs it: a fake `google.colab`, a folder as Google Drive, machines that end."""
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import nbformat
import psutil
import pytest
from kaggle_server import TOKEN

import kit.kaggle.downloads
from kit.data import DataError
from kit.kaggle import download_prepared
from kit.prepare import open_prepared, prepare

PROJECT = Path(__file__).resolve().parents[1]
CELLS = [cell for cell in nbformat.read(PROJECT / "notebooks" / "20_colab.ipynb", 4).cells if cell.cell_type == "code"]


@pytest.fixture
def colab(tmp_path, monkeypatch):
    """A machine of Colab in this process: `cells(words, **parameters)` runs the cells that hold one of the words."""
    (tmp_path / "content").mkdir()
    monkeypatch.chdir(tmp_path / "content")
    for name in list(os.environ):
        if name.startswith("KAGGLE"):
            monkeypatch.delenv(name)
    machine = SimpleNamespace(asked=0, secrets={}, refuses=False, drive=tmp_path / "drive")
    machine.drive.mkdir()

    def mount(path):
        machine.asked += 1
        if machine.refuses:
            raise ValueError("mount failed")
        os.makedirs(path, exist_ok=True)
        os.symlink(machine.drive, os.path.join(path, "MyDrive"))

    google, here = ModuleType("google"), ModuleType("google.colab")
    google.colab, here.drive = here, SimpleNamespace(mount=mount)
    here.userdata = SimpleNamespace(get=lambda name: machine.secrets[name])
    monkeypatch.setitem(sys.modules, "google", google)
    monkeypatch.setitem(sys.modules, "google.colab", here)

    def cells(*words, **parameters):
        names = {}
        for cell in CELLS:
            tags = cell.metadata.get("tags", [])
            if "import os" in cell.source or tags or any(word in cell.source for word in words):
                exec(cell.source, names)
                names |= parameters if tags else {}
        return names
    machine.cells = cells
    return machine


def test_colab_asks_for_drive_once_whether_the_user_allows_it_or_not(colab, capsys):
    for asked in (1, 1):
        assert colab.cells("google_drive.mount")["kept"] == Path.cwd() / "drive" / "MyDrive" / "tpugraphs-runs"
        assert colab.asked == asked
    assert capsys.readouterr().out.count("results are kept in") == 2
    shutil.rmtree(Path.cwd() / "drive")
    colab.refuses = True
    for _ in range(2):
        assert colab.cells("google_drive.mount")["kept"] is None and colab.asked == 2
    assert capsys.readouterr().out == (
        "Google Drive is not mounted (ValueError); delete the file no-drive to be asked again\n"
        + 2 * "results are on this machine alone, and end with it\n")
    Path("no-drive").unlink()
    assert colab.cells("google_drive.mount", use_drive=False)["kept"] is None and colab.asked == 2


@pytest.mark.parametrize("path, found", [
    ("fileId=https%3A%2F%2Fgithub.com%2Fsomeone%2Fa-kit%2Fblob%2Fmain%2Fnotebooks%2F20_colab.ipynb",
     ("https://github.com/someone/a-kit", "main")),
    ("fileId=https%3A//github.com/someone/a-kit/blob/v1.0/notebooks/20_colab.ipynb",
     ("https://github.com/someone/a-kit", "v1.0")),
    ("fileId=1a2B3c", (None, None)), (None, (None, None))])
def test_the_address_of_the_kit_is_that_of_the_page_from_which_colab_opened_the_notebook(colab, monkeypatch, path,
                                                                                         found):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.StringIO(json.dumps([{"path": path}])))
    Path("kit-clone", "kit").mkdir(parents=True)
    assert colab.cells("google_drive.mount", "def opened_from")["opened_from"]() == found
    if found[0] is None:
        shutil.rmtree("kit-clone")
        with pytest.raises(ValueError, match="address is None, and Colab did not open this notebook from GitHub; exp"):
            colab.cells("google_drive.mount", "def opened_from")


def test_a_token_comes_from_the_secrets_or_an_upload_and_only_the_environment_of_a_child_has_it(colab, capsys):
    def own():
        names = colab.cells("environment = dict")
        return names["source"], {k: v for k, v in names["environment"].items() if k.startswith("KAGGLE_") and v}
    assert own() == ("mirror", {})
    Path("kaggle.json").write_text(json.dumps({"username": "someone", "key": TOKEN}))
    assert own() == ("kaggle", {"KAGGLE_USERNAME": "someone", "KAGGLE_KEY": TOKEN})
    Path("access_token").write_text(TOKEN + "\n")
    assert own() == ("kaggle", {"KAGGLE_API_TOKEN": TOKEN})
    colab.secrets["KAGGLE_API_TOKEN"] = "KGAT_secret"
    assert own() == ("kaggle", {"KAGGLE_API_TOKEN": "KGAT_secret"})
    colab.secrets.clear()
    Path("access_token").unlink()
    Path("kaggle.json").write_text('{"key": ' + TOKEN)
    with pytest.raises(ValueError, match="^kaggle.json holds no token; download it from Kaggle again$") as fault:
        own()
    assert TOKEN not in str(fault.getrepr())
    said = capsys.readouterr().out
    assert TOKEN not in said and "KGAT_secret" not in said and not any(name.startswith("KAGGLE") for name in os.environ)
    assert not list(colab.drive.iterdir())


@pytest.mark.parametrize("gpu, settings, device, token", [
    ("Tesla T4\n", [], ["-p", "device=cuda"], False), ("\n", [], ["-p", "device=cpu"], False),
    ("Tesla T4\n", ["--only", "04,05"], ["-p", "device=cuda"], False),
    ("Tesla T4\n", ["--only", "06", "-p", "submit_to_kaggle=True"], [], True)])
def test_a_run_gets_the_gpu_that_is_found_where_a_notebook_trains_and_the_token_where_one_submits(
        colab, capsys, monkeypatch, gpu, settings, device, token):
    shutil.copytree(PROJECT / "notebooks", Path("kit-clone", "notebooks"))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=gpu))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    called, here = [], {"run": lambda command, around: called.append((command[1:], around)), "kept": Path("runs"),
                        "root": "data", "environment": {"KAGGLE_API_TOKEN": TOKEN}, "settings": settings,
                        "collections": None}
    exec(CELLS[-1].source, colab.cells() | here)
    assert called == [(["notebooks/run.py", "--data-root", "data", "--out", "runs/data", *device, *settings],
                       here["environment"] if token else None)]
    assert capsys.readouterr().out.startswith("GPU: Tesla T4" if gpu.strip() else "no GPU: training takes far longer")


def test_only_collections_that_are_not_prepared_are_downloaded(tiny_sample, tmp_path, monkeypatch):
    asked = []

    def download(folder, collections, source):
        asked.append((collections, source))
        for collection in collections:
            place = Path("npz", *collection.split(":"))
            shutil.copytree(tiny_sample / place, folder / place)
        return folder / "npz"
    monkeypatch.setattr(kit.kaggle.downloads, "download", download)
    one, both = ["tile:xla"], ["tile:xla", "layout:nlp:random"]
    download_prepared(tmp_path / "first", tmp_path / "prepared", one, source="mirror")

    def cut(root, folder, collections):
        raise RuntimeError("the machine ends")
    with monkeypatch.context() as patch:
        patch.setattr(kit.kaggle.downloads, "prepare", cut)
        with pytest.raises(RuntimeError, match="the machine ends"):
            download_prepared(tmp_path / "second", tmp_path / "prepared", both, source="kaggle")
    for _ in range(2):
        found = download_prepared(tmp_path / "third", tmp_path / "prepared", both, source="kaggle")
    assert asked == [(one, "mirror"), (both[1:], "kaggle"), (both[1:], "kaggle")]
    whole = prepare(tiny_sample, tmp_path / "whole", both, progress=False).catalogue
    different = ["source_changed", "prepared_bytes"]
    assert found.catalogue.drop(different).equals(whole.drop(different))
    assert found.catalogue.equals(open_prepared(tmp_path / "prepared").catalogue)
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "mine.txt").touch()
    with pytest.raises(DataError):
        download_prepared(tmp_path / "third", tmp_path / "strange", one, source="kaggle")


# what is imported first in every process: Colab's server says which page the notebook was opened from
SITE = """import io, json, urllib.request
opened = urllib.request.urlopen
def urlopen(url, *args, **more):
    if str(url).endswith(":9000/api/sessions"):
        return io.StringIO(json.dumps([{"path": "fileId=https%3A%2F%2Fgithub.com%2Fa%2Fkit%2Fblob%2Fmain%2Fb.ipynb"}]))
    return opened(url, *args, **more)
urllib.request.urlopen = urlopen
"""
GOOGLE = """import os
class userdata:
    def get(name):
        return {{"KAGGLE_API_TOKEN": {token!r}}}[name]
class drive:
    def mount(path):
        os.makedirs(path)
        os.symlink({drive!r}, os.path.join(path, "MyDrive"))
        print("asked for Drive")
"""


class Machines:
    """Machines of Colab, one after another: `session` runs all cells, and ends early once `until` is true."""

    def __init__(self, place):
        self.place, self.drive, self.repository = place, place / "drive", place / "repository"
        fake = place / "fake"
        for folder in (self.drive, fake / "google" / "colab"):
            folder.mkdir(parents=True)
        (fake / "google" / "colab" / "__init__.py").write_text(GOOGLE.format(token=TOKEN, drive=str(self.drive)))
        (fake / "sitecustomize.py").write_text(SITE)
        for part in ("kit", "notebooks"):
            shutil.copytree(PROJECT / part, self.repository / part, ignore=shutil.ignore_patterns("__pycache__"))
        self.around = {k: v for k, v in os.environ.items() if k != "TPUGRAPHS_ROOT" and not k.startswith("KAGGLE")}
        self.around |= {"PYTHONPATH": str(fake), "OMP_NUM_THREADS": "1", "GIT_CONFIG_COUNT": "1",
                        "GIT_CONFIG_KEY_0": f"url.file://{self.repository}.insteadOf",
                        "GIT_CONFIG_VALUE_0": "https://github.com/a/kit", "GIT_CONFIG_GLOBAL": os.devnull}
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commit("first")

    def git(self, *words):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=self.repository,
                              check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, message):
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", message)
        return self.git("rev-parse", "HEAD")

    def session(self, until=lambda: False, **parameters):
        """(exit status, what is printed); /content is a new folder, as a new machine has it."""
        shutil.rmtree(self.place / "content", ignore_errors=True)
        (self.place / "content").mkdir()
        text = "\n".join(cell.source + "".join(f"\n{k} = {v!r}" for k, v in parameters.items())
                         * ("parameters" in cell.metadata.get("tags", [])) for cell in CELLS)
        (self.place / "cells.py").write_text(text)
        with open(self.place / "said.txt", "w+") as said:
            child = psutil.Popen([sys.executable, self.place / "cells.py"], cwd=self.place / "content", env=self.around,
                                 stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
            while child.poll() is None and not until():
                time.sleep(0.05)
            for one in [child, *child.children(recursive=True)] if child.poll() is None else ():
                one.send_signal(signal.SIGKILL)
            child.wait()
            said.seek(0)
            return child.returncode, said.read()


@pytest.mark.long
def test_a_session_that_was_cut_goes_on_with_what_is_on_drive_and_trains_nothing_twice(tiny_sample, tmp_path):
    machines = Machines(tmp_path)
    prepare(tiny_sample, machines.drive / "tpugraphs-prepared", ["tile:xla"], progress=False)      # of a session before
    chosen = {"collections": "tile:xla", "settings": [
        "--only", "03,05,06", "--size", "tiny", "-p", "tile.steps=3", "-p", "seeds=2", "-p", "workers=1", "-p",
        "partial=True"]}
    out = machines.drive / "tpugraphs-runs" / "data"
    finished = out / ".run" / "03_train_tile.json"

    def trained():
        return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.glob("store/*.pt")}
    status, said = machines.session(lambda: finished.is_file() and '"unfinished"' not in finished.read_text(), **chosen)
    assert status == -signal.SIGKILL and said.count("asked for Drive") == 1, said
    before, first = trained(), machines.git("rev-parse", "HEAD")
    assert len(before) == 2 and not (out / "submission.csv").exists()
    assert (machines.drive / "tpugraphs-runs" / "kit-version").read_text() == first
    loop = machines.repository / "kit" / "train.py"              # another version would train everything again
    loop.write_text(loop.read_text() + "\n\nLATER = 1\n")
    second = machines.commit("second")
    status, said = machines.session(**chosen)
    assert status == 0 and "[1/3] 03_train_tile      finished before" in said, said
    assert trained() == before and said.rstrip().endswith("/tpugraphs-runs/data/submission.csv")
    assert (out / "report.html").is_file() and (out.parent / "data.json").is_file()
    # a submission needs no parameter of a training, and the newest kit is taken if it is asked for
    status, said = machines.session(collections="tile:xla", version="main", settings=["--only", "06", "--size", "tiny"])
    assert (out.parent / "kit-version").read_text() == second and "no parameter device" not in said, said
    assert status == 1 and "run.py: 06_submit needs the results of 05_ensemble, which do not fit: " in said, said
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "fake" not in path.parts
                and TOKEN.encode() in path.read_bytes()]
    assert not list(machines.drive.rglob("*.part"))
