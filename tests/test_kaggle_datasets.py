"""A folder becomes a private Kaggle Dataset through the real client, against a local server; nothing is sent twice."""
import functools
import hashlib
import json
import os
import re
import runpy
import stat
import subprocess
import sys
import time

import pytest
from kaggle_server import QUICK, TOKEN, USER, fails

from kit.data import COLLECTIONS, find_data_root, npz_paths
from kit.kaggle import push_dataset, push_notebook, wait_for_dataset
from kit.kaggle.datasets import LIST
from kit.prepare import open_prepared, prepare
from lab.jobs import plan_jobs, watch_jobs

SLUG = "tpugraphs-prepared"
REF = f"{USER}/{SLUG}"
SAID = re.compile(r"\[files [0-9a-f]{16}\]")


def content(name, size=2000):
    return hashlib.sha256(name.encode()).digest() * (size // 32)


FILES = {"catalogue.parquet": content("c"), "tile/xla/train/a.npz": content("a"), "tile/xla/valid/b.4x4.npz": b"",
         "layout/xla/random/test/u v+1.npz": content("u", 3_000_000), "layout/nlp/default/train/n.npz": content("n")}


@pytest.fixture
def folder(tmp_path):
    """A folder like a prepared one, with hidden files, which stay here."""
    for name, data in {**FILES, ".lock": b"", "tile/.half.part": b"x", ".run/state.json": b"{}"}.items():
        path = tmp_path / "prepared" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "prepared"


def push(folder, dataset=SLUG, **words):
    return push_dataset(folder, dataset, **{"every": 0.01, "client": QUICK, **words})


def there(kaggle, version=-1):
    """{path: bytes} of a version on Kaggle, without the list of files."""
    files = dict(kaggle.datasets[REF]["versions"][version]["files"])
    listed = json.loads(files.pop(LIST))
    assert listed == {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()}
    return files


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_becomes_a_private_dataset_with_the_same_paths(kaggle, folder):
    before = tree(folder)
    assert push(folder, title="TpuGraphs, prepared") == {
        "ref": REF, "url": f"https://www.kaggle.com/datasets/{REF}", "version": 1, "uploaded": True}
    assert there(kaggle) == FILES and tree(folder) == before
    made = kaggle.datasets[REF]
    assert (made["isPrivate"], made["title"], made["licenseName"]) == (True, "TpuGraphs, prepared", "other")
    assert SAID.search(made["description"])
    assert {blob["name"] for blob in kaggle.blobs.values()} == {"catalogue.parquet", "layout.zip", "tile.zip", LIST}
    said = kaggle.said()
    assert f"{REF}: 5 files, 3.0 MB, are uploaded as 4 files" in said
    assert said.endswith(f"{REF}: version 1 is ready; notebooks see it at /kaggle/input/datasets/{REF}\n")
    assert [path.name for path in (kaggle.home / ".cache/tpugraphs-kit").iterdir() if path.suffix == ".json"] == []


def test_another_content_is_another_version_and_the_same_is_not_uploaded_again(kaggle, folder):
    assert push(folder)["uploaded"]
    assert kaggle.datasets[REF]["title"] == "tpugraphs prepared"
    sent = len(kaggle.took)
    assert push(folder, REF) == {"ref": REF, "url": f"https://www.kaggle.com/datasets/{REF}", "version": 1,
                                 "uploaded": False}
    (folder / "tile/xla/train/a.npz").write_bytes(content("other"))
    os.utime(folder / "layout/nlp/default/train/n.npz", (0, 0))
    assert len(kaggle.took) == sent and push(folder)["version"] == 2
    assert there(kaggle) == {**FILES, "tile/xla/train/a.npz": content("other")} and there(kaggle, 0) == FILES
    assert push(folder)["uploaded"] is False                       # by the notes of version 2
    (folder / "tile/xla/train/a.npz").write_bytes(content("a"))
    assert push(folder) == {"ref": REF, "url": f"https://www.kaggle.com/datasets/{REF}", "version": 3, "uploaded": True}
    assert kaggle.asked.count("CreateDataset") == 1 and kaggle.asked.count("CreateDatasetVersion") == 2
    assert not any(version["versionNotes"] == "" for version in kaggle.datasets[REF]["versions"])


def test_a_lone_folder_keeps_its_name(kaggle, tmp_path):
    (tmp_path / "weights/checkpoints").mkdir(parents=True)
    (tmp_path / "weights/checkpoints/tile_seed0.pt").write_bytes(b"PK\x03\x04 as torch writes")
    push(tmp_path / "weights")
    assert there(kaggle) == {"checkpoints/tile_seed0.pt": b"PK\x03\x04 as torch writes"}


@pytest.mark.long
def test_a_dataset_that_is_processed_is_waited_for(kaggle, folder):
    kaggle.processing = ["BLOBS_RECEIVED", "BLOBS_DECOMPRESSED", "BLOBS_DECOMPRESSED", "A_NEWER_WORD"]
    kaggle.answers["GetDatasetStatus"] = [None, (503, ""), (503, ""), (404, "not yet"), None]
    push(folder)
    said = [line.partition(";")[0] for line in kaggle.said().splitlines() if "waiting" in line]
    assert said == [f"{REF}: {word}" for word in ("blobs_received", "not listed yet", "blobs_decompressed",
                                                  "a_newer_word")]
    # a second version is not taken while the first is processed
    kaggle.processing = ["REPROCESSING", "REPROCESSING", "READY", "NOT_YET_PERSISTED"]
    (folder / "more.txt").write_text("more")
    kaggle.asked.clear()
    assert push(folder)["version"] == 2
    assert kaggle.asked[:kaggle.asked.index("StartBlobUpload")].count("GetDatasetStatus") == 3


@pytest.mark.long
def test_what_kaggle_cannot_process_is_told_and_sent_again_by_the_next_call(kaggle, folder):
    kaggle.processing = ["BLOBS_RECEIVED", "FAILED"]
    message = fails("refused", push, folder)
    assert message == (f"Kaggle could not process {REF}: its status is 'failed'; see "
                       f"https://www.kaggle.com/datasets/{REF}")
    kaggle.processing = ["FAILED", "READY"]
    assert push(folder)["version"] == 2


# --- lines that are cut

def test_an_upload_that_is_cut_goes_on_where_it_was(kaggle, folder):
    kaggle.answers["upload"] = [None, None, "cut", "cut", (503, ""), "cut"]       # the layouts come second to last
    push(folder)
    assert there(kaggle) == FILES
    starts = [first for name, first in kaggle.took if name == "layout.zip"]
    assert starts == sorted(set(starts)) and len(starts) == 4 and starts[0] == 0 and starts[1] > 1_000_000
    assert len(kaggle.blobs) == 4 and kaggle.asked.count("status of upload") == 4


@pytest.mark.long
@pytest.mark.parametrize("spoil", ["expired", "old", "other files", "damaged"])
def test_what_cannot_be_gone_on_with_starts_over(kaggle, folder, spoil):
    kaggle.answers["upload"] = [None, None, "cut"] + [(503, "")] * 9
    fails("upload", push, folder)
    kaggle.answers.clear()
    kept, = (kaggle.home / ".cache/tpugraphs-kit").glob("*.json")
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700 and kaggle.datasets == {}
    known, sent = json.loads(kept.read_text()), len(kaggle.took)
    if spoil == "expired":
        kaggle.answers["status of upload"] = [(404, "gone")]
    elif spoil == "old":
        kept.write_text(json.dumps({**known, "begun": time.time() - 7 * 24 * 3600}))
    elif spoil == "other files":
        (folder / "catalogue.parquet").write_bytes(content("another"))
    else:
        kept.write_text("[]")
    push(folder)
    assert there(kaggle)["layout/xla/random/test/u v+1.npz"] == FILES["layout/xla/random/test/u v+1.npz"]
    again = [name for name, first in kaggle.took[sent:] if first == 0]
    assert len(again) == (2 if spoil == "expired" else 4)


@pytest.mark.long
def test_a_lost_answer_is_looked_up_and_nothing_is_made_twice(kaggle, folder):
    kaggle.answers["CreateDataset"] = ["cut"]
    assert push(folder)["uploaded"] and kaggle.asked.count("CreateDataset") == 1
    (folder / "more.txt").write_text("more")
    kaggle.answers["CreateDatasetVersion"] = ["cut"]
    assert push(folder)["version"] == 2 and len(kaggle.datasets[REF]["versions"]) == 2
    (folder / "more.txt").write_text("and more")
    kaggle.answers["CreateDatasetVersion"] = [(502, "bad gateway")]          # it did not arrive
    assert 'at "create the Dataset"' in fails("server", push, folder)
    sent = len(kaggle.took)
    assert push(folder)["version"] == 3 and len(kaggle.took) == sent


# --- each way to fail

@pytest.mark.long
@pytest.mark.parametrize("call, answers, kind, word", [
    ("GetDataset", [(500, "oops")] * 2, "server", 'HTTP 500: oops) at "look for the Dataset"'),
    ("StartBlobUpload", [(403, "Permission 'datasets.create' was denied")], "forbidden",
     f"Kaggle forbids access to {REF} (HTTP 403: Permission 'datasets.create' was denied)"),
    ("upload", [(403, "")] * 9, "upload", "the upload failed"),
    ("CreateDataset", [(400, f"private quota {TOKEN}")], "refused", "Kaggle refuses (HTTP 400: private quota ***)"),
    ("CreateDataset", [(429, "")] * 2, "busy", "Kaggle asks for fewer requests"),
    ("GetDatasetStatus", [(401, "")] * 9, "token", "Kaggle does not accept the credentials")])
def test_each_way_to_fail_has_its_kind_and_its_sentence(kaggle, folder, call, answers, kind, word):
    kaggle.answers[call] = answers
    assert word in fails(kind, push, folder)
    assert (REF in kaggle.datasets) == (call == "GetDatasetStatus")


@pytest.mark.long
@pytest.mark.parametrize("call, kind, within", [("GetDataset", "host", 2), ("upload", "upload", 5)])
def test_a_host_that_does_not_answer_cannot_hang_it(kaggle, folder, monkeypatch, call, kind, within):
    monkeypatch.setattr("kit.kaggle.datasets.ANSWER_WITHIN", within)
    kaggle.answers[call] = ["hang"]
    fails(kind, push, folder, timeout=6)


@pytest.mark.long
def test_a_public_dataset_gets_no_version_and_a_used_title_is_told(kaggle, folder, monkeypatch):
    push(folder)
    (folder / "more.txt").write_text("more")
    kaggle.datasets[REF]["isPrivate"], sent = False, len(kaggle.took)
    assert f"{REF} is public, and the kit publishes nothing" in fails("refused", push, folder)
    assert len(kaggle.took) == sent
    monkeypatch.setattr(kaggle, "on_CreateDataset", lambda body: {"status": "error", "error": "already in use"})
    assert "Kaggle refuses (already in use)" in fails("refused", push, folder, "another-name")
    assert list((kaggle.home / ".cache/tpugraphs-kit").glob("*.json")) == []       # the next call uploads anew


# --- before anything is sent

@pytest.mark.parametrize("dataset, title, word", [
    ("short", None, "the slug has 6 to 50"), ("../../etc/passwd", None, "small letters"),
    (SLUG, "x" * 51, "has 51 characters"), (SLUG, "two\nlines", "on one line")])
def test_a_name_that_kaggle_refuses_is_refused_here(kaggle, folder, dataset, title, word):
    assert word in fails("invalid", push, folder, dataset, title=title, client={"python": "/nowhere"})


@pytest.mark.parametrize("name, word", [
    ("tile/raw.zip", "Kaggle would unpack it"), ("tile/a&b.npz", "Kaggle refuses such a name"),
    ("tile/up\\down", "Kaggle refuses such a name"), ("two\nlines", "Kaggle refuses such a name")])
def test_a_file_that_kaggle_would_change_is_refused(kaggle, folder, name, word):
    (folder / name).write_bytes(b"x")
    assert f"{word}; " in fails("invalid", push, folder, client={"python": "/nowhere"})


def test_nothing_leaves_the_folder(kaggle, folder, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/file").write_text("mine")
    for name, target in (("tile/out", tmp_path / "secret"), ("tile/out.npz", tmp_path / "secret/file")):
        (folder / name).symlink_to(target)
        message = fails("invalid", push, folder, client={"python": "/nowhere"})
        assert message == f"{folder / name}: is a link or a special file; expected files and folders; nothing was sent"
        (folder / name).unlink()


def test_an_empty_a_crowded_and_a_missing_folder_are_told(kaggle, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    assert "has 0 files directly in it, and 0 in all" in fails("invalid", push, tmp_path / "empty")
    assert f"{tmp_path}/nowhere: no such folder" in fails("invalid", push, tmp_path / "nowhere")
    monkeypatch.setattr("kit.kaggle.datasets.FILES_MOST", 2)
    for name in "abc":
        (tmp_path / "empty" / name).write_text(name)
    assert "at most 2 directly in it: put them into a folder" in fails("invalid", push, tmp_path / "empty")
    assert kaggle.asked == []


# --- more than one process, and notebooks

@pytest.mark.long
def test_a_second_push_names_the_first_and_goes_on_where_that_was_killed(kaggle, folder, project):
    kaggle.answers["upload"] = [None, None, "cut", "hang"]
    code = f"from kit.kaggle import push_dataset\npush_dataset({str(folder)!r}, {SLUG!r}, client={QUICK})"
    with subprocess.Popen([sys.executable, "-c", code], cwd=project, stdout=subprocess.DEVNULL) as first:
        while kaggle.asked.count("upload") < 4:
            assert first.poll() is None
            time.sleep(0.02)
        assert f"another process (process {first.pid}) pushes to this Dataset" in fails("busy", push, folder)
        first.kill()
    kaggle.answers.clear()
    kaggle.ended.set()
    sent = len(kaggle.took)
    push(folder)
    assert there(kaggle) == FILES and len(kaggle.blobs) == 4 and kaggle.took[sent][1] > 1_000_000


def test_a_notebook_names_the_datasets_that_it_reads(kaggle, tmp_path):
    (tmp_path / "book.ipynb").write_text(json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    about = {"id": f"{USER}/reads-data", "title": "reads data", "dataset_sources": [REF]}
    push_notebook(tmp_path / "book.ipynb", about, client=QUICK)
    assert kaggle.pushed[0]["datasetDataSources"] == [REF]
    kaggle.push_answer = {"invalidDatasetSources": [REF]}
    assert f"pushed without its data: no access to ['{REF}']" in fails(
        "refused", push_notebook, tmp_path / "book.ipynb", about, client=QUICK)


@pytest.mark.long
def test_a_bundle_finds_prepared_data_of_its_dataset(kaggle, tmp_path, tiny_sample, monkeypatch, project):
    mount = f"datasets/{REF}"                # the other mount: test_data.py
    here = prepare(tiny_sample, tmp_path / "here", processes=1, progress=False)
    push(tmp_path / "here")
    for name, data in there(kaggle).items():
        path = tmp_path / "input" / mount / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    make = runpy.run_path(str(project / "notebooks" / "bundle.py"))["bundle"]
    step = project / "notebooks" / "03_train_tile.ipynb"
    with_data = make({step: {}}, datasets=[f"{USER}/weights", REF])
    cell, = {c.source for c in with_data.cells} - {c.source for c in make({step: {}}).cells}
    monkeypatch.setenv("TPUGRAPHS_ROOT", "")                       # set, so that it is put back at the end
    monkeypatch.delenv("TPUGRAPHS_ROOT")
    exec(cell.replace("/kaggle/input", f"{tmp_path}/input"), {})
    assert find_data_root() == tmp_path / "input" / mount
    mounted = open_prepared(find_data_root())
    assert mounted.catalogue.equals(here.catalogue) and len(here.catalogue)
    for collection in COLLECTIONS:
        paths = npz_paths(tmp_path / "here", collection, "train")
        assert paths and [path.read_bytes() for path in npz_paths(find_data_root(), collection, "train")] == [
            path.read_bytes() for path in paths]


@pytest.mark.long
def test_a_job_is_pushed_once_its_dataset_is_ready(kaggle, folder, tmp_path, tiny_sample, monkeypatch, project):
    monkeypatch.syspath_prepend(project / "notebooks")
    import on_kaggle
    monkeypatch.setattr(on_kaggle, "watch_jobs", functools.partial(watch_jobs, every=0.01, client=QUICK))
    kaggle.machine = lambda body: {"status": "ERROR", "failureMessage": "stop here", "files": [], "log": "[]"}
    books = {project / "notebooks" / f"{name}.ipynb": {} for name in ("03_train_tile", "04_train_layout")}
    push(folder)

    def train(**words):
        monkeypatch.setattr(on_kaggle, "wait_for_dataset", functools.partial(wait_for_dataset, **words, client=QUICK))
        return on_kaggle.train_on_kaggle(plan_jobs(["tile:xla"]), books, USER, tmp_path / "out", tiny_sample,
                                         datasets=[REF])
    kaggle.processing = ["BLOBS_RECEIVED"] * 99
    assert "Kaggle still processes it (blobs_received)" in fails("pending", train, timeout=0.5, every=0.1)
    assert kaggle.pushed == []
    kaggle.processing = ["BLOBS_RECEIVED"] * 2
    kaggle.asked.clear()
    train(every=0.01)
    assert kaggle.asked[:kaggle.asked.index("SaveKernel")].count("GetDatasetStatus") == 3
    assert [body["datasetDataSources"] for body in kaggle.pushed] == [[REF]]
