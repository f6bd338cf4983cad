"""The real Kaggle client against a local server: each way to fail has its sentence; none loses or tells anything."""
import ast
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest
import requests
from kaggle_server import KEY, PYTHON, QUICK, SIGNATURE, SLUG, TOKEN, USER, fails

from kit.kaggle import MACHINE, child, download, gpu_quota, push_notebook, quota_line, submit, wait_for_score
from kit.kaggle.downloads import FILES, fetch_file, unpack
from kit.kaggle.notebooks import notebook_output, notebook_status

MIRROR = "http://mirror.test/v0"
PAGE = f"https://www.kaggle.com/competitions/{SLUG}"
FEW = {name: (2, 1, 1) for name in FILES}
SPLITS = ("train", "valid", "test")


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "submission.csv"
    path.write_text("ID,TopConfigs\ntile:xla:aa,0;1;2;3;4\nlayout:xla:random:u,1;0\n")
    return path


def content(name):
    return hashlib.sha256(name.encode()).digest() * 2000       # 64 kB that do not compress to nothing


def names(collection, split):
    folder = f"npz/{collection.replace(':', '/')}/{split}"
    return [f"{folder}/{stem}.npz" for stem in ("aa", "b.4x4")[:FEW[collection][SPLITS.index(split)]]]


def tar_of(members):
    """Bytes of a tar with {name: bytes}."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def zip_of(members):
    """Bytes of a zip with {name or ZipInfo: bytes}."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def whole(prefix=""):
    """{name: bytes} of all splits and the sample."""
    found = {f"{prefix}{n}": content(n) for c in FILES for s in ("train", "valid", "test") for n in names(c, s)}
    return {**found, "sample_submission.csv": b"ID,TopConfigs\n"}


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def mirrored(server, collection, split):
    """Put a split's tar on the mirror -> its path there."""
    path = f"/v0/npz_{collection.replace(':', '_')}_{split}.tar"
    server.files[path] = tar_of({n: content(n) for n in names(collection, split)})
    return path


# --- download

def test_the_mirror_sends_only_what_is_asked_for_and_nothing_twice(kaggle, tmp_path):
    paths = [mirrored(kaggle, c, s) for c in ("tile:xla", "layout:nlp:random") for s in ("train", "valid", "test")]
    mirrored(kaggle, "layout:xla:random", "train")
    asked = dict(collections=["tile:xla", "layout:nlp:random"], source="mirror", mirror=MIRROR, files=FEW, client=QUICK)
    root = download(tmp_path / "data", **asked)
    assert kaggle.asked == [f"GET {p}" for p in paths]
    assert tree(tmp_path / "data") == {n: content(n) for c in asked["collections"] for s in ("train", "valid", "test")
                                       for n in names(c, s)}
    assert "npz_tile_xla_train.tar: 2 files unpacked" in kaggle.said()
    (root / "tile/xla/valid/aa.npz").unlink()
    assert download(tmp_path / "data", **asked) == root == tmp_path / "data/npz"
    assert kaggle.asked[len(paths):] == ["GET /v0/npz_tile_xla_valid.tar"]


def test_kaggles_archive_comes_through_the_client_and_only_what_is_asked_for_is_unpacked(kaggle, tmp_path):
    kaggle.files["/storage/all.zip"] = zip_of(whole("npz_all/"))
    root = download(tmp_path, ["layout:xla:default"], ["train", "valid"], files=FEW, client=QUICK)
    assert tree(root) == {**{n.removeprefix("npz/"): content(n) for s in ("train", "valid")
                             for n in names("layout:xla:default", s)}, "sample_submission.csv": b"ID,TopConfigs\n"}
    assert not (tmp_path / ".download").exists()


def test_an_npz_all_zip_inside_the_archive_is_unpacked_too(tmp_path):
    (tmp_path / "all.zip").write_bytes(zip_of({"npz_all.zip": zip_of(whole()), "sample_submission.csv": b"x"}))
    assert unpack(tmp_path / "all.zip", tmp_path / "npz", [("tile:xla", "train")]) == 2
    assert (tmp_path / "npz/tile/xla/train/b.4x4.npz").read_bytes() == content("npz/tile/xla/train/b.4x4.npz")


@pytest.mark.parametrize("source", ["mirror", "kaggle"])
def test_a_download_that_is_cut_goes_on_where_it_was(kaggle, tmp_path, source):
    path = {"mirror": mirrored(kaggle, "tile:xla", "train"), "kaggle": "/storage/all.zip"}[source]
    kaggle.files.setdefault(path, zip_of(whole()))
    kaggle.answers[f"GET {path}"] = {"mirror": ["cut", "cut", (503, "")],     # the client reads the first bytes itself
                                     "kaggle": [None, "cut", None, "cut", None, (503, "")]}[source]
    asked = dict(collections=["tile:xla"], splits=["train"], source=source, mirror=MIRROR, files=FEW)
    half = len(kaggle.files[path]) // 2
    message = fails("server", download, tmp_path, **asked, client={**QUICK, "retries": 0})
    name = {"mirror": "npz_tile_xla_train.tar", "kaggle": SLUG + ".zip"}[source]
    assert message == (f"{name}: the server answers HTTP 503 Service Unavailable: run it again later, it resumes")
    assert (tmp_path / ".download" / f"{name}.part").stat().st_size == half + half // 2
    root = download(tmp_path, **asked, client=QUICK)
    assert kaggle.ranges == [f"bytes={half}-", f"bytes={half + half // 2}-"]
    assert len(tree(root / "tile")) == 2 and not (tmp_path / ".download").exists()


@pytest.mark.long
def test_a_second_download_of_the_same_names_the_first_and_goes_on_where_that_was_killed(kaggle, tmp_path, project):
    path = mirrored(kaggle, "tile:xla", "train")
    half, part = len(kaggle.files[path]) // 2, tmp_path / "data/.download/npz_tile_xla_train.tar.part"
    kaggle.answers[f"GET {path}"] = ["cut", "hang"]
    code = (f"from kit.kaggle import download\ndownload({str(tmp_path / 'data')!r}, ['tile:xla'], ['train'], "
            f"'mirror', {MIRROR!r}, files={FEW}, client={QUICK})")

    def start():
        return subprocess.Popen([sys.executable, "-c", code], cwd=project, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)
    with start() as first:
        while len(kaggle.asked) < 2:                                   # half is there, the rest does not come
            assert first.poll() is None, first.communicate()
            time.sleep(0.02)
        with start() as second:
            said, errors = second.communicate(timeout=120)
        assert (second.returncode, said) == (1, "") and errors.splitlines()[-1] == (
            f"kit.kaggle.client.KaggleError: {part.with_suffix('')}: another process (process {first.pid}) is "
            "downloading this file; wait for it, then run it again")
        assert len(kaggle.asked) == 2 and part.stat().st_size == half and first.poll() is None
        first.kill()
    kaggle.answers.clear()
    with start() as third:
        said, errors = third.communicate(timeout=120)
    assert (third.returncode, errors) == (0, "") and kaggle.ranges == [f"bytes={half}-"]
    assert tree(tmp_path / "data") == {n: content(n) for n in names("tile:xla", "train")}
    assert not part.parent.exists()


@pytest.mark.parametrize("etags", [('"1"', '"2"'), (None, None), ('W/"1"', 'W/"1"')])
def test_what_may_be_another_file_starts_over(kaggle, tmp_path, etags):
    kaggle.files["/v0/a"], kaggle.etag, kaggle.answers["GET /v0/a"] = b"old" * 1000, etags[0], ["cut", (503, "")]
    fails("server", fetch_file, lambda: f"{MIRROR}/a", tmp_path / "a", retries=0, pause=0)
    kaggle.files["/v0/a"], kaggle.etag = b"newer" * 1000, etags[1]
    assert fetch_file(lambda: f"{MIRROR}/a", tmp_path / "a").read_bytes() == b"newer" * 1000


def test_an_expired_address_is_asked_for_anew(kaggle, tmp_path):
    kaggle.files["/v0/a"] = b"data" * 1000
    kaggle.answers["GET /v0/a"] = ["cut", (403, "expired"), None]
    addresses = []
    fetch_file(lambda: addresses.append(1) or f"{MIRROR}/a?sig={SIGNATURE}", tmp_path / "a", pause=0)
    assert (tmp_path / "a").read_bytes() == b"data" * 1000 and len(addresses) == 3


@pytest.mark.parametrize("answers, kind, word, asked", [
    ([], "missing", "HTTP 404 Not Found: check the address", 1),
    ([(403, "")] * 9, "forbidden", "HTTP 403 Forbidden: check", 1),
    ([(401, "")] * 9, "refused", "HTTP 401 Unauthorized: check", 1),
    ([(429, "")] * 9, "busy", "HTTP 429 Too Many Requests: run it again later", 3),
    ([(503, "")] * 9, "server", "HTTP 503 Service Unavailable: run it again later", 3),
    ([(416, "")] * 9, "server", "HTTP 416", 3),
    (["hang"], "host", "timed out; check the internet connection", 3)])
def test_a_server_that_does_not_give_a_file_is_named_by_kind(kaggle, tmp_path, answers, kind, word, asked):
    kaggle.answers["GET /v0/a"] = answers
    assert word in fails(kind, fetch_file, lambda: f"{MIRROR}/a", tmp_path / "a", 0.1, 2, 0)
    assert len(kaggle.asked) == asked and not (tmp_path / "a").exists()


def test_what_does_not_fit_on_the_disk_is_not_begun(kaggle, tmp_path, monkeypatch):
    path = mirrored(kaggle, "tile:xla", "train")
    (tmp_path / "a.tar").write_bytes(kaggle.files[path])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
    assert "would not fit; make room" in fails("disk", fetch_file, lambda: "http://mirror.test" + path, tmp_path / "b")
    assert "0.1 MB of a.tar would not fit" in fails("disk", unpack, tmp_path / "a.tar", tmp_path / "npz",
                                                     [("tile:xla", "train")])
    assert not (tmp_path / "b").exists() and tree(tmp_path / "npz") == {}


def test_too_few_files_in_the_end_are_an_error_that_counts_them(kaggle, tmp_path):
    path = mirrored(kaggle, "tile:xla", "train")
    kaggle.files[path] = tar_of({"npz/tile/xla/train/aa.npz": b"x"})
    message = fails("damaged", download, tmp_path, ["tile:xla"], ["train"], "mirror", MIRROR, files=FEW, client=QUICK)
    assert "tile:xla train has 1 of 2 files. These files can be used; the missing ones" in message


def link(name, target):
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zip_of({info: target})


def special(kind):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        info = tarfile.TarInfo("npz/tile/xla/train/aa.npz")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    return file.getvalue()


@pytest.mark.parametrize("archive", [
    tar_of({"npz/tile/xla/train/.._evil": b"", "../evil": b"x", "/npz/tile/xla/train/aa.npz": b"x"}),
    zip_of({"npz/tile/xla/train/..\\evil.npz": b"x", "npz/tile/xla/train/../../../../evil.npz": b"x"}),
    special(tarfile.SYMTYPE), special(tarfile.FIFOTYPE), link("npz/tile/xla/train/aa.npz", b"/etc/passwd"),
    tar_of({"npz/tile/xla/train/._aa.npz": b"x", "npz/tile/xla/other/aa.npz": b"x", "README": b""})])
def test_whatever_is_in_an_archive_nothing_is_written_outside_and_no_link(tmp_path, archive):
    (tmp_path / "a").write_bytes(archive)
    unpack(tmp_path / "a", tmp_path / "x/npz", [("tile:xla", "train")])
    found = [path for path in tmp_path.rglob("*") if not path.is_dir()]
    assert {path.name for path in found} <= {"a", "aa.npz"} and not any(path.is_symlink() for path in found)


@pytest.mark.parametrize("archive", [
    b"<html>please log in</html>", b"", zip_of(whole())[:-300], tar_of(whole())[:70_000],
    zip_of(whole()).replace(content("npz/tile/xla/train/aa.npz")[:9], b"?" * 9)])
def test_an_archive_that_is_not_whole_is_one_sentence(tmp_path, archive):
    (tmp_path / "a").write_bytes(archive)
    wanted = [("tile:xla", "train")]
    assert "not a readable archive" in fails("damaged", unpack, tmp_path / "a", tmp_path / "npz", wanted)


def test_words_that_name_nothing_are_refused_before_anything_is_done(tmp_path):
    with pytest.raises(ValueError, match="unknown layout:xla, ftp; collections: tile:xla, .*; sources: kaggle, mirror"):
        download(tmp_path / "new", ["layout:xla"], source="ftp")
    assert not (tmp_path / "new").exists()


# --- submit

def test_an_incomplete_submission_is_sent_only_if_told(kaggle, tmp_path):
    csv = tmp_path / "s.csv"
    csv.write_text("ID,TopConfigs\n" + "".join(f"tile:xla:{i:032x},0;1;2;3;4\n" for i in range(16)))
    said = fails("invalid", submit, csv, "m", client=QUICK)
    assert "nothing was sent: tile:xla: 828 missing ID, of the competition's 844 test graphs; " in said
    assert said.endswith("; to submit an incomplete file all the same, pass partial=True") and kaggle.asked == []
    assert submit(csv, "m", client=QUICK, partial=True)["ref"] == 1000
    csv.write_text(csv.read_text() + "tile:xla:a,0;0\n")
    assert "partial" not in fails("invalid", submit, csv, "m", client=QUICK, partial=True)


def test_a_submission_arrives_byte_by_byte_and_is_sent_once(kaggle, csv):
    done = submit(csv, "first try", client=QUICK)
    assert done == {"ref": 1000, "remaining": 3, "repeated": False}
    assert kaggle.uploads == {"blob0": csv.read_bytes()}
    digest = hashlib.sha256(csv.read_bytes()).hexdigest()[:12]
    assert [s["description"] for s in kaggle.submissions] == [f"first try [{digest}]"]
    assert submit(csv, "second try", client=QUICK) == {"ref": 1000, "remaining": 3, "repeated": True}
    assert submit(csv, "on purpose", again=True, client=QUICK) == {"ref": 1001, "remaining": 2, "repeated": False}
    assert kaggle.said().splitlines() == ["submission.csv: submitted as 1000, 3 left today",
                                                    "submission.csv: was submitted before as 1000, 3 left today",
                                                    "submission.csv: submitted as 1001, 2 left today"]


def test_an_invalid_file_is_refused_before_anything_is_started(kaggle, csv):
    csv.write_text(csv.read_text() + "tile:xla:bb,0;0\n")
    message = fails("invalid", submit, csv, "m", client={"python": "/nowhere/python"})
    assert message == f"{csv} is not valid, nothing was sent: line 4: tile:xla:bb names index 0 more than once"
    assert kaggle.asked == []


ALLOWANCE = "Your team has used its daily Submission allowance (5) today"


@pytest.mark.parametrize("call, answers, kind, word", [
    ("ListSubmissions", [(403, "Permission was denied")], "forbidden", f"accept its rules at {PAGE}/rules"),
    ("ListSubmissions", [(404, "no such competition")], "missing", "HTTP 404: no such competition"),
    ("ListSubmissions", [(429, "slow down")] * 2, "busy", "fewer requests"),
    ("StartSubmissionUpload", [(429, "", {"Retry-After": "600"})], "busy", "Retry-After 600 s"),
    ("StartSubmissionUpload", [(503, "repairs")] * 2, "server", '(HTTP 503: repairs) at "start upload"'),
    ("StartSubmissionUpload", ["cut"] * 2, "host", '(ProxyError) at "start upload": check the internet connection'),
    ("upload", [(403, "")] * 2, "upload", "submission.csv: HTTP 403"),
    ("CreateSubmission", [(400, ALLOWANCE)], "limit", ALLOWANCE),
    ("CreateSubmission", [(400, f"Bad header {TOKEN}")], "refused", "Kaggle refuses (HTTP 400: Bad header ***)"),
    ("CreateSubmission", [(502, "bad gateway")], "unsure", "bad gateway), so the submission may count. See")])
def test_each_way_to_fail_has_its_sentence_and_keeps_the_file(kaggle, csv, call, answers, kind, word):
    before = csv.read_bytes()
    kaggle.answers[call] = list(answers)
    message = fails(kind, submit, csv, "m", client=QUICK)
    assert word in message and message.endswith(f". The file is kept: {csv}")
    assert csv.read_bytes() == before and kaggle.submissions == []
    assert kaggle.asked.count(call) == len(answers)


@pytest.mark.parametrize("call, answer", [
    ("ListSubmissions", (503, "")), ("GetSubmissionLimits", (500, "")), ("StartSubmissionUpload", "cut"),
    ("upload", (503, "")), ("upload", "cut"), ("CreateSubmission", (429, "", {"Retry-After": "0"}))])
def test_what_is_safe_to_retry_is_retried(kaggle, csv, call, answer):
    kaggle.answers[call] = [answer]
    assert submit(csv, "m", client=QUICK)["ref"] == 1000 and len(kaggle.submissions) == 1


def test_a_submission_whose_answer_is_lost_is_found_and_not_sent_again(kaggle, csv):
    kaggle.submission(7, "ERROR", description=f"m [{hashlib.sha256(csv.read_bytes()).hexdigest()[:12]}]")
    kaggle.answers["CreateSubmission"] = ["cut"]
    assert submit(csv, "m", client=QUICK)["ref"] == 1001
    assert kaggle.asked.count("CreateSubmission") == 1 and len(kaggle.submissions) == 2
    kaggle.answers["CreateSubmission"] = [(502, "")]              # the one sent before is no answer to it
    fails("unsure", submit, csv, "m", again=True, client=QUICK)


def test_a_success_that_kaggle_did_not_count_is_no_success(kaggle, csv, monkeypatch):
    monkeypatch.setattr(kaggle, "on_CreateSubmission", lambda body: {"message": "Successfully submitted"})
    assert "Kaggle refuses (Successfully submitted)" in fails("refused", submit, csv, "m", client=QUICK)


def test_no_submission_left_is_told_before_the_upload(kaggle, csv):
    kaggle.limits = {"numToday": 5, "numTotal": 9, "numAllowedNow": 0}
    assert "(5 today, 9 in total)" in fails("limit", submit, csv, "m", client=QUICK)
    assert kaggle.uploads == {}
    kaggle.limits = {}                                                  # in no team yet: all are 0
    assert submit(csv, "m", client=QUICK) == {"ref": 1000, "remaining": None, "repeated": False}


@pytest.mark.parametrize("call, kind, timeout", [
    ("IntrospectToken", "host", 2), pytest.param("upload", "upload", 6, marks=pytest.mark.long),
    pytest.param("CreateSubmission", "unsure", 6, marks=pytest.mark.long)])
def test_a_host_that_does_not_answer_cannot_hang_it(kaggle, csv, call, kind, timeout):
    kaggle.answers[call] = ["hang"]
    fails(kind, submit, csv, "m", timeout=timeout, client=QUICK)


# --- credentials, client

def test_no_credentials_are_told_with_the_way_to_get_them(kaggle, csv, monkeypatch):
    monkeypatch.delenv("KAGGLE_API_TOKEN")
    message = fails("credentials", submit, csv, "m", client=QUICK)
    assert message.startswith("there are no Kaggle credentials: make a token at https://www.kaggle.com/settings/api")
    monkeypatch.setenv("KAGGLE_USERNAME", USER)
    assert "KAGGLE_USERNAME is set alone" in fails("unreadable", submit, csv, "m", client=QUICK)
    assert kaggle.asked == []


def test_a_stale_token_is_named_although_there_is_a_good_key(kaggle, csv, monkeypatch):
    monkeypatch.setenv("KAGGLE_API_TOKEN", "KGAT_stale")
    monkeypatch.setenv("KAGGLE_USERNAME", USER)
    monkeypatch.setenv("KAGGLE_KEY", KEY)
    kaggle.answers["IntrospectToken"] = [(401, "")] * 9
    message = fails("token", submit, csv, "m", client=QUICK)
    assert "the credentials in KAGGLE_API_TOKEN: put a new token there" in message and "KGAT_stale" not in message


GOOD = json.dumps({"username": USER, "key": KEY})


def test_a_key_in_kaggle_json_is_enough_and_a_wrong_one_is_named(kaggle, csv, monkeypatch):
    file = kaggle.home / ".kaggle/kaggle.json"
    file.parent.mkdir()
    file.write_bytes(b"{")
    assert submit(csv, "m", client=QUICK)["ref"] == 1000                # a damaged one beside a good token is no fault
    monkeypatch.delenv("KAGGLE_API_TOKEN")
    file.write_text(GOOD)
    assert submit(csv, "m", client=QUICK)["ref"] == 1000
    file.write_text(json.dumps({"username": USER, "key": "revoked"}))
    assert "the credentials in kaggle.json:" in fails("token", submit, csv, "n", client=QUICK)


@pytest.mark.parametrize("name, data, fault", [
    ("kaggle.json", b"\xef\xbb\xbf" + GOOD.encode(), "starts with a byte order mark; save it as plain UTF-8"),
    ("kaggle.json", GOOD.encode("utf-16"), "is UTF-16; save it as plain UTF-8"),
    ("kaggle.json", GOOD.encode("utf-16-le"), "is UTF-16; save it as plain UTF-8"),
    ("kaggle.json", GOOD.encode()[:-9], "is not JSON; it may be cut short"), ("kaggle.json", b"", "is empty"),
    ("kaggle.json", b"[" * 100_000, "is not JSON"), ("kaggle.json", GOOD.encode() + b"\xff", "is not plain UTF-8"),
    ("kaggle.json", b'["name", "key"]', "has no username"), ("kaggle.json", b'{"username": "name"}', "has no key"),
    ("kaggle.json", b'{"username": null, "key": "x"}', "has no username"), ("kaggle.json", None, "cannot be opened ("),
    ("kaggle.json", b"[1]", "has no username"), ("kaggle.json", b'"me"', "has no username"),
    ("kaggle.json", b'{"username": "name", "key": ""}', "has no key"),
    ("kaggle.json.txt", GOOD.encode(), "is not looked for under this name; call it kaggle.json"),
    ("kaggle (1).json", GOOD.encode(), "is not looked for under this name; call it kaggle.json"),
    ("access_token", GOOD.encode(), "is JSON and no token"), ("access_token", None, "cannot be opened ("),
    ("access_token", f"{TOKEN}\n{TOKEN}".encode(), "is more than one word"),
    ("access_token", f"\u201c{TOKEN}\u201d".encode(), "is not plain ASCII text"),
    ("access_token", b"\xef\xbb\xbf" + TOKEN.encode(), "starts with a byte order mark"),
    ("access_token", TOKEN.encode("utf-16"), "is UTF-16"), ("access_token", b"\n", "is empty"),
    ("access_token.txt", TOKEN.encode() + b"\xff", "is not plain"), ("credentials.json", b"{", "is not JSON"),
    ("credentials.json", "{}".encode("utf-16"), "is UTF-16"), ("credentials.json", b"{}", "has no refresh_token")])
def test_a_file_of_credentials_that_cannot_be_used_is_named_with_its_fault(kaggle, csv, monkeypatch, name, data, fault):
    monkeypatch.delenv("KAGGLE_API_TOKEN")
    path = kaggle.home / ".kaggle" / name
    path.parent.mkdir()
    path.mkdir() if data is None else path.write_bytes(data)
    message = fails("unreadable", submit, csv, "m", client=QUICK)
    assert f"{name} {fault}" in message and "there are no" not in message and kaggle.asked == []


def test_a_token_in_the_environment_is_stripped_and_one_that_no_header_can_hold_is_refused(kaggle, csv, monkeypatch):
    monkeypatch.setenv("KAGGLE_API_TOKEN", f" {TOKEN}\n")
    assert submit(csv, "m", client=QUICK)["ref"] == 1000
    asked = len(kaggle.asked)
    for token, fault in ((f"{TOKEN}\n{TOKEN}", "is more than one word"), (GOOD, "is JSON and no token"),
                         (f"\u201c{TOKEN}\u201d", "is not plain ASCII")):
        monkeypatch.setenv("KAGGLE_API_TOKEN", token)
        message = fails("unreadable", submit, csv, "m", client=QUICK)
        assert f"KAGGLE_API_TOKEN {fault}" in message and TOKEN not in message and KEY not in message
    assert len(kaggle.asked) == asked


def test_a_wrong_name_and_rules_not_accepted_answer_alike_and_are_told_together(kaggle, csv, tmp_path):
    word = "accept its rules at https://www.kaggle.com/competitions/predict/rules"
    assert word in fails("forbidden", submit, csv, "m", competition="predict", client=QUICK)
    assert word in fails("forbidden", download, tmp_path / "data", competition="predict", client=QUICK)


def script(path, *lines):
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return {**QUICK, "python": str(path)}


def test_a_client_that_is_missing_or_ends_the_interpreter_is_told(kaggle, csv, tmp_path):
    bare = script(tmp_path / "bare", f'exec "{PYTHON}" -S "$@"')
    message = fails("client", submit, csv, "m", client=bare)
    assert "No module named" in message and "pip install 'kaggle>=2.2.4' six" in message
    old = tmp_path / "old/kaggle"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("print('no credentials')\nexit(1)\n")
    fails("credentials", submit, csv, "m",
          client=script(tmp_path / "exits", f'export PYTHONPATH="{old.parent}"', f'exec "{PYTHON}" "$@"'))
    assert "exit status 7" in fails("client", submit, csv, "m", client=script(tmp_path / "dies", "exit 7"))


def test_a_kaggle_py_beside_the_notebook_is_not_the_client(kaggle, csv, tmp_path, monkeypatch):
    (tmp_path / "kaggle.py").write_text("raise SystemExit('not the client')\n")
    monkeypatch.chdir(tmp_path)
    assert submit(csv, "m", client={**QUICK, "python": PYTHON})["ref"] == 1000


def answered(status, body=b"", headers=()):
    """The fault that `requests` raises for an answer."""
    response = requests.Response()
    response.status_code, response._content, response.reason = status, body, "a reason"
    response.headers.update(headers)
    return requests.HTTPError("https://host/path?sig=secret", response=response)


def caused(fault, cause):
    fault.__cause__ = cause
    return fault


@pytest.mark.parametrize("fault, told", [
    (answered(502, b"<html>"), {"status": 502, "words": "HTTP 502: a reason", "wait": None}),
    (answered(429, b"{}", {"Retry-After": "7"}), {"status": 429, "words": "HTTP 429: a reason", "wait": "7"}),
    (caused(ValueError("hidden"), answered(404, b'{"message": "gone"}')),
     {"status": 404, "words": "HTTP 404: gone", "wait": None}),
    (requests.ReadTimeout("slow"), {"status": 0, "words": "ReadTimeout"}),
    (caused(RuntimeError("?"), ConnectionResetError()), {"status": 0, "words": "ConnectionResetError"}),
    (ValueError("no such file"), {"kind": "refused", "words": "ValueError: no such file"}),
    (KeyError("x"), {"kind": "client", "words": "KeyError: 'x'"})])
def test_what_went_wrong_is_found_behind_what_the_client_raises(fault, told):
    assert child.describe(fault) == told


def test_the_child_process_imports_nothing_of_the_kit_and_prints_nothing_but_its_answer(tmp_path):
    with open(child.__file__, encoding="utf-8") as file:
        every = [node for node in ast.walk(ast.parse(file.read())) if isinstance(node, ast.ImportFrom)]
    assert not any(node.module.startswith("kit") for node in every)
    (tmp_path / "requests.py").write_text("print('noise')\nraise ImportError('none here')\n")
    done = subprocess.run([sys.executable, child.__file__], input=b'{"call": "list_submissions"}', capture_output=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert json.loads(done.stdout) == {"source": None, "kind": "client", "words": "ImportError: none here"}
    assert (done.returncode, done.stderr) == (0, b"")


# --- scores

def test_a_score_is_waited_for_through_a_fault_and_comes_with_both_parts(kaggle):
    ref = kaggle.submission(42)
    kaggle.submission(43, "ERROR", errorDescription="another one")
    kaggle.answers["ListSubmissions"] = [None, (503, ""), (503, ""), None]
    listed, kaggle.on_ListSubmissions = iter(["PENDING", "COMPLETE"]), None

    def on_list(body):
        kaggle.submissions[1]["status"] = next(listed)
        kaggle.submissions[1].update(publicScore="0.75700", privateScore="0.73600")
        return {"submissions": kaggle.submissions}
    kaggle.on_ListSubmissions = on_list
    assert wait_for_score(ref, every=0.01, client=QUICK) == {"ref": 42, "status": "complete", "public": .757,
                                                            "private": .736}
    assert kaggle.said() == "submission 42: pending; waiting for at most 900 s\n"


def test_a_submission_that_stays_pending_is_no_error_and_a_hidden_score_is_none(kaggle):
    kaggle.submission(42)
    kaggle.submission(43, "COMPLETE", publicScore="0.5")
    for ref, status, public in ((42, "pending", None), (43, "complete", .5)):
        assert wait_for_score(ref, timeout=0, client=QUICK) == {"ref": ref, "status": status, "public": public,
                                                                "private": None}


def test_a_rejected_submission_gives_kaggles_reason(kaggle):
    kaggle.submission(42, "ERROR", errorDescription="ERROR: Missing values in TopConfigs")
    message = fails("scoring", wait_for_score, 42, client=QUICK)
    assert message == "Kaggle could not score submission 42: ERROR: Missing values in TopConfigs"
    assert "submission 5 is not among the latest 50" in fails("missing", wait_for_score, 5, client=QUICK)


# --- notebooks

@pytest.fixture
def notebook(tmp_path):
    path = tmp_path / "all.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["a\n", "b"], "outputs": ["long"]}],
                                "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


ABOUT = {"id": f"{USER}/tpu-kit-tile", "title": "TPU kit: tile", "enable_gpu": True, "machine_shape": MACHINE,
         "enable_internet": False, "competition_sources": [SLUG]}


def test_a_notebook_is_pushed_with_its_data_and_machine(kaggle, notebook, tmp_path):
    expected = {"ref": f"{USER}/tpu-kit-tile", "url": f"https://www.kaggle.com/code/{USER}/tpu-kit-tile", "version": 1,
                "without": []}
    assert push_notebook(notebook, {**ABOUT, "id": "tpu-kit-tile"}, client=QUICK) == expected
    sent = kaggle.pushed[0]
    assert (sent["slug"], sent["language"], sent["kernelType"]) == (f"{USER}/tpu-kit-tile", "python", "notebook")
    assert (sent["isPrivate"], sent["enableGpu"], sent["enableInternet"]) == (True, True, False)
    assert sent["machineShape"] == MACHINE == "NvidiaTeslaT4"
    assert sent["competitionDataSources"] == [SLUG]
    assert json.loads(sent["text"])["cells"][0] == {"cell_type": "code", "source": "a\nb", "outputs": []}
    (tmp_path / "kernel-metadata.json").write_text(json.dumps({**ABOUT, "code_file": "all.ipynb"}))
    assert push_notebook(tmp_path, client=QUICK)["version"] == 2
    push_notebook(notebook, {**ABOUT, "enable_gpu": False, "machine_shape": None}, client=QUICK)
    assert kaggle.pushed[2]["enableGpu"] is False and "machineShape" not in kaggle.pushed[2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all.ipynb", "home", "kernel-metadata.json"]


@pytest.mark.parametrize("answers, push_answer, kind, word", [
    ([(503, "")], {}, "server", 'at "push the notebook"'),
    ([], {"error": "Maximum weekly GPU quota of 30.00 hours reached"}, "refused", "weekly GPU quota"),
    ([], {"invalidCompetitionSources": [SLUG]}, "refused", f"pushed without its data: no access to ['{SLUG}']")])
def test_a_push_that_failed_says_so_and_is_not_repeated(kaggle, notebook, answers, push_answer, kind, word):
    kaggle.answers["SaveKernel"], kaggle.push_answer = answers, push_answer
    assert word in fails(kind, push_notebook, notebook, ABOUT, client=QUICK)
    assert kaggle.asked.count("SaveKernel") == 1


@pytest.mark.parametrize("about, word", [
    ({**ABOUT, "title": "Another"}, "expected a title that gives the name in the id (this one gives 'another')"),
    ({**ABOUT, "id": "me/kit", "title": "kit"}, "at least five letters"), ({}, "id None and title ''"),
    ({**ABOUT, "id": "me/" + "kit-" * 12 + "long", "title": "kit " * 12 + "long"}, "has 52 characters; Kaggle takes 5"),
    ({**ABOUT, "code_file": "all.py"}, None)])
def test_metadata_that_would_surprise_is_refused_before_anything_is_sent(kaggle, notebook, about, word):
    folder = notebook if word else notebook.parent
    message = fails("invalid", push_notebook, folder, about, client={"python": "/nowhere"})
    assert (word or "all.py: no such file") in message and kaggle.asked == []


@pytest.mark.parametrize("name, text", [
    ("all.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": "x" * 999_990, "outputs": []}]})),
    ("all.ipynb", "{"), ("all.py", "x" * 1_000_001)])
def test_a_source_that_is_too_large_or_no_notebook_is_refused_before_anything_is_sent(kaggle, tmp_path, name, text):
    (tmp_path / name).write_text(text, "utf-8")
    message = fails("invalid", push_notebook, tmp_path / name, ABOUT, client={"python": "/nowhere"})
    assert message.startswith(f"{name}: ") and "nothing was sent" in message and kaggle.asked == []


def test_outputs_do_not_count_because_the_client_leaves_them_out(kaggle, notebook):
    book = json.loads(notebook.read_text())
    book["cells"][0]["outputs"] = ["x" * 2_000_000]
    notebook.write_text(json.dumps(book))
    assert push_notebook(notebook, ABOUT, client=QUICK)["version"] == 1


def test_the_gpu_quota_is_told_in_hours_and_one_that_kaggle_does_not_tell_stops_nothing(kaggle, monkeypatch):
    found = gpu_quota(client=QUICK)
    assert found == {"used": 12.3, "reserved": 1.5, "allowed": 30.0, "left": pytest.approx(17.7),
                     "renewed": "2026-11-28 00:00"}
    line = ("GPU quota: 12.3 of 30.0 hours used this week, 17.7 left, 1.5 reserved by running notebooks, renewed "
            "2026-11-28 00:00 UTC")
    assert quota_line(17, QUICK) == line
    assert quota_line(18.04, QUICK) == line + "; the plan takes more, about 18.0"
    kaggle.quota["gpuQuota"]["timeUsed"] = "111600.500s"                    # of a session that may end its hour
    assert gpu_quota(client=QUICK)["left"] == 0.0
    kaggle.quota = {}
    assert gpu_quota(client=QUICK) is None and quota_line(3, QUICK) == "GPU quota: not known; Kaggle does not say"
    monkeypatch.delenv("KAGGLE_API_TOKEN")
    assert quota_line(3, QUICK).startswith("GPU quota: not known, because there are no Kaggle credentials: make a ")


def test_a_running_a_finished_and_a_failed_notebook_are_told_apart(kaggle, tmp_path):
    log = [{"stream_name": "stdout", "time": 1.5, "data": "tile:xla\n"},
           {"stream_name": "stderr", "time": 2, "data": "CUDA out of memory\n"}]
    kaggle.files = {"/out/a": b"one", "/out/b": b"two" * 9999}
    kaggle.kernels = {f"{USER}/tile-kit": {"status": "RUNNING", "files": [], "log": ""},
                      f"{USER}/layout-kit": {"status": "ERROR", "failureMessage": "exit 1", "log": json.dumps(log),
                                             "files": [("ensemble/a.npz", "/out/a"), ("b.csv", "/out/b")]}}
    assert notebook_status(f"{USER}/tile-kit", client=QUICK) == {"status": "running", "reason": None}
    assert notebook_status(f"{USER}/layout-kit", client=QUICK) == {"status": "error", "reason": "exit 1"}
    kaggle.answers["GET /out/b"] = ["cut", None]
    done = notebook_output(f"{USER}/layout-kit", tmp_path / "got", client=QUICK)
    assert done == {"files": [tmp_path / "got/ensemble/a.npz", tmp_path / "got/b.csv"],
                    "log": tmp_path / "got/layout-kit.log", "names": ["ensemble/a.npz", "b.csv"]}
    assert tree(tmp_path / "got") == {"b.csv": b"two" * 9999, "ensemble/a.npz": b"one",
                                      "layout-kit.log": b"tile:xla\nCUDA out of memory\n"}
    assert notebook_output(f"{USER}/layout-kit", tmp_path / "one", r"\.npz$", client=QUICK)["files"] == [
        tmp_path / "one/ensemble/a.npz"]


def test_output_that_is_not_to_be_had_or_not_trusted_is_told(kaggle, tmp_path):
    message = fails("forbidden", notebook_status, f"{USER}/wrong-kit", client=QUICK)
    assert "for a notebook or a Dataset log in as its owner" in message
    kaggle.kernels = {f"{USER}/tile-kit": {"status": "COMPLETE", "files": [("../../evil", "/out/a")], "log": "plain"}}
    kaggle.files = {"/out/a": b"x"}
    message = fails("damaged", notebook_output, f"{USER}/tile-kit", tmp_path / "got", client=QUICK)
    assert "output '../../evil' would leave the folder" in message and not (tmp_path / "got").exists()
    kaggle.kernels[f"{USER}/tile-kit"]["files"] = [("a", "/out/gone")]
    fails("missing", notebook_output, f"{USER}/tile-kit", tmp_path / "got", client=QUICK)
    assert tree(tmp_path / "got") == {}
