"""Kaggle's API, its storage and the mirror as one plain HTTP server on loopback, for the real client.

A file of a Dataset goes to storage as to Google's: "bytes */N" asks for the Range that has come, and this stays when a
line is cut. `unpacked` is what Kaggle then makes of the files.

The client is pointed here by `environment()`: its LOCALHOST setting makes it ask http://localhost/api/v1/..., and a
proxy variable sends every plain HTTP address here. `answers` holds, by the name of a call, what it gives instead of
the truth, one entry a call: (status, message), (status, message, headers), "cut" (ends in the middle), None (the
truth); "hang" holds for every later call too. What counts once it has arrived, a submission or a notebook, is taken
before the answer is cut or hangs. KIT_KAGGLE_PYTHON names another interpreter, with another version of the client.
`QUICK` are settings with few retries, and an interpreter that starts at once where forks can be watched.
"""
import base64
import io
import json
import os
import sys
import tempfile
import threading
import traceback
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from warm_python import warm_python

from kit.kaggle.client import KaggleError

TOKEN, KEY, SIGNATURE = "token-that-none-may-see", "key-that-none-may-see", "signature-that-none-may-see"
USER = "someone"
SLUG = "predict-ai-model-runtime"
COUNTS = ("CreateSubmission", "SaveKernel", "CreateDataset", "CreateDatasetVersion")
SECRETS = (TOKEN, KEY, SIGNATURE)
PYTHON = os.environ.get("KIT_KAGGLE_PYTHON", sys.executable)
QUICK = {"python": PYTHON, "retries": 1, "pause": 0.01}
HURRY = "import time\nsleep = time.sleep\ntime.sleep = lambda seconds: sleep(min(seconds, 0.02))\n"


class KaggleServer(ThreadingHTTPServer):
    """What Kaggle knows, and what was asked of it (`asked`: names of calls, and method and path of files)."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked, self.answers, self.ended = [], {}, threading.Event()
        self.files = {}                      # path of storage or mirror -> bytes
        self.etag = '"1"'                    # None: the files have no validator
        self.ranges = []                     # what Range headers asked for
        self.uploads, self.submissions = {}, []
        self.limits = {"numToday": 1, "numTotal": 3, "numAllowedNow": 4}
        self.kernels = {}                    # "owner/name" -> {"status", "failureMessage", "files", "log"}, or () -> it
        self.machine = lambda body: None     # what a pushed notebook becomes there, if anything
        self.pushed, self.push_answer = [], {}
        self.quota = {"quotaRefreshTime": "2026-11-28T00:00:00Z", "gpuQuota": {
            "timeUsed": "44280s", "timeReserved": "5400s", "totalTimeAllowed": "108000s", "hasEverRun": True}}
        self.blobs, self.took = {}, []       # token -> {"name", "length", "data"}; (file, first byte) of each upload
        self.datasets = {}                   # "owner/slug" -> {"isPrivate", "versions": [{"files": {path: bytes}}]}
        self.processing = []                 # what the next requests for a status get; then READY

    def handle_error(self, request, client_address):
        """A client that was ended is no fault of the server."""

    def environment(self, home, **more):
        """The environment of a machine with a home folder of its own, and this server as its internet."""
        proxy = f"http://127.0.0.1:{self.server_address[1]}"
        return {"HOME": str(home), "KAGGLE_API_ENVIRONMENT": "LOCALHOST", "http_proxy": proxy, **more}

    def submission(self, ref, status="PENDING", **more):
        """Make one that is listed, newest first."""
        self.submissions.insert(0, {"ref": ref, "status": status, "fileName": "submission.csv", **more})
        return ref

    def answer(self, call, body, signed_in):
        """What the API gives: a dict, or (status, message)."""
        if call == "IntrospectToken":
            return {"active": True, "username": USER} if body["token"] == TOKEN else (404, "no such token")
        if not signed_in:
            return 401, f"Unauthenticated {TOKEN} {KEY}"             # as unkind as a server can be
        if body.get("competitionName", SLUG) != SLUG:
            return 403, "Permission 'competitions.participate' was denied"
        name = f"{body.get('userName')}/{body.get('kernelSlug')}"
        if call in ("GetKernelSessionStatus", "ListKernelSessionOutput") and name not in self.kernels:
            return 403, "Permission 'kernels.get' was denied"
        if call.startswith("GetDataset") and f"{body['ownerSlug']}/{body['datasetSlug']}" not in self.datasets:
            return 403, "Permission 'datasets.get' was denied"
        return getattr(self, f"on_{call}")(body)

    def on_ListSubmissions(self, body):
        return {"submissions": self.submissions}

    def on_GetSubmissionLimits(self, body):
        return self.limits

    def on_StartSubmissionUpload(self, body):
        token = f"blob{len(self.uploads)}"
        self.uploads[token] = None
        return {"token": token, "createUrl": f"http://localhost/upload/{token}?sig={SIGNATURE}"}

    def on_CreateSubmission(self, body):
        if self.uploads.get(body["blobFileTokens"]) is None:
            return 400, "no such upload"
        if self.limits:                      # none: in no team yet
            self.limits["numAllowedNow"] -= 1
            self.limits["numToday"] += 1
        return {"message": "Successfully submitted",
                "ref": self.submission(1000 + len(self.submissions), description=body["submissionDescription"])}

    def on_StartBlobUpload(self, body):
        token = f"blob{len(self.blobs)}"
        self.blobs[token] = {"name": body["name"], "length": int(body["contentLength"]), "data": b"",
                             "type": body["type"]}
        return {"token": token, "createUrl": f"http://localhost/blob/{token}?upload_id={SIGNATURE}"}

    def version(self, name, files, notes):
        """Add a version to a Dataset, of blobs that have all come."""
        blobs = [self.blobs[file["token"]] for file in files]
        if any(blob["length"] != len(blob["data"]) or blob["type"] != "DATASET" for blob in blobs):
            return 400, "a blob is not whole"
        versions = self.datasets[name]["versions"]
        versions.append({"files": unpacked({blob["name"]: blob["data"] for blob in blobs}), "versionNotes": notes,
                         "versionNumber": len(versions) + 1})
        return {"ref": f"/datasets/{name}", "url": f"https://www.kaggle.com/datasets/{name}", "status": "ok"}

    def on_CreateDataset(self, body):
        name = f"{body['ownerSlug']}/{body['slug']}"
        if body["ownerSlug"] != USER:
            return 403, "Permission 'datasets.create' was denied"
        if name in self.datasets:            # as the client hears of it
            return {"status": "error", "error": f"The requested title {body['title']!r} is already in use"}
        self.datasets[name] = {"versions": [], **{key: body.get(key) for key in (
            "isPrivate", "title", "description", "licenseName")}}
        return self.version(name, body["files"], "Initial release")

    def on_CreateDatasetVersion(self, body):
        return self.version(f"{body['ownerSlug']}/{body['datasetSlug']}", body["body"]["files"],
                            body["body"]["versionNotes"])

    def on_GetDataset(self, body):
        found = self.datasets[f"{body['ownerSlug']}/{body['datasetSlug']}"]
        versions = [{key: version[key] for key in ("versionNumber", "versionNotes")} for version in found["versions"]]
        return {"isPrivate": found["isPrivate"], "title": found["title"], "description": found["description"],
                "currentVersionNumber": len(versions), "versions": versions}

    def on_GetDatasetStatus(self, body):
        return {"status": self.processing.pop(0) if self.processing else "READY"}

    def on_SaveKernel(self, body):
        self.pushed.append(body)
        unknown = [name for name in body.get("kernelDataSources") or [] if name not in self.kernels]
        kernel = self.machine(body)
        if kernel is not None:
            self.kernels[body["slug"]] = kernel
        return {"ref": f"/code/{body['slug']}", "url": f"https://www.kaggle.com/code/{body['slug']}",
                "versionNumber": len(self.pushed), "invalidKernelSources": unknown, **self.push_answer}

    def on_GetAcceleratorQuotaStatistics(self, body):
        return self.quota

    def kernel(self, body):
        found = self.kernels[f"{body['userName']}/{body['kernelSlug']}"]
        return found() if callable(found) else found

    def on_GetKernelSessionStatus(self, body):
        kernel = self.kernel(body)
        return {name: kernel[name] for name in ("status", "failureMessage") if name in kernel}

    def on_ListKernelSessionOutput(self, body):
        kernel, start = self.kernel(body), int(body.get("pageToken") or 0)
        files = [{"fileName": name, "url": f"http://localhost{path}?sig={SIGNATURE}"} for name, path in kernel["files"]]
        more = {"nextPageToken": str(start + 1)} if start + 1 < len(files) else {}       # a file a page
        return {"files": files[start:start + 1], "log": kernel["log"], **more}


class Handler(BaseHTTPRequestHandler):
    """One request, given as to a proxy: with the whole address."""

    def log_message(self, *_):
        """Say nothing."""

    def give(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def instead(self, call):
        """Give what `answers` holds for this call; return it, None where that is nothing."""
        self.server.asked.append(call)
        later = self.server.answers.get(call) or [None]
        planned = later[0] if later[0] == "hang" else later.pop(0)
        if planned == "hang" and call not in COUNTS:
            self.server.ended.wait(60)
        elif isinstance(planned, tuple):
            status, message, headers = (*planned, {})[:3]
            text = json.dumps({"code": status, "message": message}).encode()
            self.give(status, text, {"Content-Type": "application/json", **headers})
        return planned

    def path_only(self):
        return self.path.removeprefix("http://").partition("/")[2].partition("?")[0]

    def do_POST(self):
        call = self.path.rpartition("/")[2]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        planned = self.instead(call)
        if planned is not None and (call not in COUNTS or isinstance(planned, tuple)):
            return
        basic = "Basic " + base64.b64encode(f"{USER}:{KEY}".encode()).decode()
        signed_in = self.headers.get("Authorization") in (f"Bearer {TOKEN}", basic)
        if call == "DownloadDataFiles" and signed_in and body["competitionName"] == SLUG:
            self.give(302, b"", {"Location": f"http://localhost/storage/all.zip?sig={SIGNATURE}"})
            return
        found = self.server.answer(call, body, signed_in)
        if planned == "hang":
            self.server.ended.wait(60)
        if planned is not None:
            return
        status = 200
        if isinstance(found, tuple):
            status, found = found[0], {"code": found[0], "message": found[1]}
        self.give(status, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def put_blob(self):
        """Take what comes of a blob, also of a line that is cut; or tell how much has come."""
        blob, about = self.server.blobs.get(self.path_only().rpartition("/")[2]), self.headers.get("Content-Range", "")
        length = int(self.headers["Content-Length"])
        planned = self.instead("status of upload" if about.startswith("bytes */") else "upload")
        if planned not in (None, "cut"):
            return
        if blob is None:
            self.give(404)
            return
        if not about.startswith("bytes */"):
            first = int(about.removeprefix("bytes ").partition("-")[0] or 0)
            self.server.took.append((blob["name"], first))
            blob["data"] = blob["data"][:first] + self.rfile.read(length // 2 if planned == "cut" else length)
        if planned == "cut":
            self.close_connection = True
        elif len(blob["data"]) == blob["length"]:
            self.give(200)
        else:
            self.give(308, b"", {"Range": f"bytes=0-{len(blob['data']) - 1}"} if blob["data"] else {})

    def do_PUT(self):
        if self.path_only().startswith("blob/"):
            self.put_blob()
            return
        planned = self.instead("upload")
        if planned == "cut":
            self.rfile.read(10)
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if planned is None:
            self.server.uploads[self.path_only().rpartition("/")[2]] = body
            self.give(200)

    def do_GET(self):
        path = "/" + self.path_only()
        planned = self.instead(f"GET {path}")
        if planned not in (None, "cut"):
            return
        if path not in self.server.files:
            self.give(404)
            return
        content, etag, first = self.server.files[path], self.server.etag, 0
        asked = self.headers.get("Range")
        if asked:
            self.server.ranges.append(asked)
        if asked and etag and self.headers.get("If-Range") == etag:
            first = int(asked.removeprefix("bytes=").removesuffix("-"))
        headers = {"Accept-Ranges": "bytes", **({"ETag": etag} if etag else {})}
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        rest = content[first:]
        self.send_response(206 if first else 200)
        for name, value in {"Content-Length": len(rest), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(rest[:len(rest) // 2] if planned == "cut" else rest)


def unpacked(files):
    """What Kaggle makes of the files of a Dataset: a zip becomes a folder, but a zip that is alone goes to the top."""
    found = {}
    for name, data in files.items():
        if not name.endswith(".zip"):
            found[name] = data
            continue
        folder = name.removesuffix(".zip") + "/" if len(files) > 1 else ""
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found.update({folder + member: archive.read(member) for member in archive.namelist()})
    return found


def fails(kind, function, *args, **words):
    """The message of the KaggleError of this kind, without a secret anywhere in its traceback."""
    with pytest.raises(KaggleError) as caught:
        function(*args, **words)
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(secret in shown for secret in SECRETS)
    assert caught.value.kind == kind, caught.value
    return str(caught.value)


def hurried(folder, **more):
    """The environment of a Python that sleeps but moments; the client and the kit are left as they are."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(HURRY)
    hidden = ("TPUGRAPHS_ROOT", "JUPYTER_PATH", "PYTHONWARNINGS")
    return {**{k: v for k, v in os.environ.items() if k not in hidden}, "PYTHONPATH": str(folder),
            "OMP_NUM_THREADS": "1", **more}


@contextmanager
def running():
    """The server, while it is needed."""
    if QUICK["python"] == PYTHON and hasattr(os, "pidfd_open"):
        QUICK["python"] = warm_python(tempfile.mkdtemp(), PYTHON)
    server = KaggleServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
