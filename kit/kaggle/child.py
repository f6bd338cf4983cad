"""The child process of `kit.kaggle.client`: a script that runs the real Kaggle client (kaggle 2.2.4 and 2.2.5).

It reads one JSON object from stdin and writes lines of JSON to stdout: {"step"} before each request, with "say" where
there is progress to show, and at the end {"result"}, or what went wrong: "words", and a "kind" or an HTTP "status".
Anything else that is printed is dropped.
Another Python than the kit's may run this file. So it imports nothing of the kit, and its retries use no tenacity.
"""
import json
import os
import re
import sys
import time

WAIT_MOST = 60                   # s that a server may ask for between two attempts
LINE_EVERY = 10                  # s between lines of progress
UPLOAD_LIVES = 6 * 24 * 3600     # s; the storage keeps an unfinished upload for a week


class Refused(Exception):
    """What ends a call, by its kind in `kit.kaggle.client.SENTENCES`."""

    def __init__(self, kind, words=""):
        super().__init__(words)
        self.told = {"kind": kind, "words": str(words)}


def describe(fault):
    """What went wrong, as it is told; the client hides some of the server's answers behind a ValueError."""
    import requests
    seen = fault
    while seen is not None:
        response = getattr(seen, "response", None)
        if response is not None:
            try:
                words = response.json()["message"]
            except Exception:                    # a proxy's page
                words = response.reason
            return {"status": response.status_code, "words": f"HTTP {response.status_code}: {words}",
                    "wait": response.headers.get("Retry-After")}
        if isinstance(seen, (requests.ConnectionError, requests.Timeout, ConnectionError, TimeoutError)):
            return {"status": 0, "words": type(seen).__name__}
        seen = seen.__cause__ or seen.__context__
    kind = "refused" if isinstance(fault, ValueError) else "client"
    return {"kind": kind, "words": f"{type(fault).__name__}: {fault}"}


def seconds_to_retry(told, number, pause, safe):
    """Seconds to wait after failed attempt `number` (from 0), or None: do not retry."""
    # what is not safe to repeat may have arrived; only 429 says that it was not taken
    status, asked = told.get("status", -1), told.get("wait") or ""
    seconds = int(asked) if asked.isdigit() else pause * 2 ** number
    again = status == 429 or (safe and (status == 0 or status >= 500))
    return seconds if again and seconds <= WAIT_MOST else None


def other_places(path, own):
    """An import path without the folder of this script and the working directory: a kaggle.py there is no client."""
    return [place for place in path if place and os.path.realpath(place) not in (own, os.path.realpath(os.getcwd()))]


class Rest:
    """The bytes of a file from `start` to its end, for a request of known length; `sent` is told each new position."""

    def __init__(self, path, start, sent):
        self.path, self.start, self.sent = path, start, sent

    def __len__(self):
        return os.path.getsize(self.path) - self.start

    def __iter__(self):
        with open(self.path, "rb") as file:
            file.seek(self.start)
            while block := file.read(1 << 20):
                yield block
                self.sent(file.tell())


class Calls:
    """What the kit asks of Kaggle; `ask` is the whole request, `tell` writes one line of the answer."""

    def __init__(self, ask, tell, api, kaggle):
        self.ask, self.tell, self.api, self.kaggle = ask, tell, api, kaggle

    def attempt(self, step, work, safe=True):
        """Do `work`, and repeat it where that is safe."""
        for number in range(self.ask["retries"] + 1):
            self.tell(step=step)
            try:
                return work()
            except Exception as fault:
                seconds = seconds_to_retry(describe(fault), number, self.ask["pause"], safe)
                if number == self.ask["retries"] or seconds is None:
                    raise
                time.sleep(seconds)

    def listed(self):
        """The latest 50 submissions, newest first."""
        found = self.attempt("list submissions",
                             lambda: self.api.competition_submissions(self.ask["competition"], page_size=50)) or []
        return [{"ref": int(s.ref), "status": s.status.name.lower(), "public": s.public_score,
                 "private": s.private_score, "reason": s.error_description, "description": s.description or ""}
                for s in found]

    def marked(self, submissions):
        """Refs of the submissions of this file that Kaggle did not reject."""
        return [s["ref"] for s in submissions if self.ask["mark"] in s["description"] and s["status"] != "error"]

    def limits(self):
        """How many submissions are left, None where Kaggle does not say."""
        try:
            return self.attempt("ask for limits",
                                lambda: self.api.competition_get_submission_limits(self.ask["competition"]))
        except Exception as fault:
            if describe(fault).get("status") in (0, 401, 403, 404):
                raise
            return None

    def submit(self):
        """Submit the file, unless it was submitted before."""
        before = self.listed()
        earlier, limits = self.marked(before), self.limits()
        if earlier and not self.ask["again"]:
            return {"ref": earlier[0], "remaining": limits and limits.num_allowed_now, "repeated": True}
        if limits and limits.num_allowed_now < 1 and limits.num_today + limits.num_total:    # all 0: in no team yet
            raise Refused("limit", f"{limits.num_today} today, {limits.num_total} in total")
        ref = self.create(self.upload(), {s["ref"] for s in before})
        try:
            limits = self.limits()
        except Exception:                        # the submission counts already
            limits = None
        return {"ref": ref, "remaining": limits and limits.num_allowed_now, "repeated": False}

    def upload(self):
        """Upload the file, from the start for each attempt -> the token that names it."""
        from kagglesdk.competitions.types.competition_api_service import ApiStartSubmissionUploadRequest
        start, path = ApiStartSubmissionUploadRequest(), self.ask["path"]
        start.competition_name, start.file_name = self.ask["competition"], os.path.basename(path)
        start.content_length, start.last_modified_epoch_seconds = os.path.getsize(path), int(os.path.getmtime(path))
        calls = self.kaggle.competitions.competition_api_client
        for number in range(self.ask["retries"] + 1):
            slot = self.attempt("start upload", lambda: calls.start_submission_upload(start))
            self.tell(step="upload")
            if self.has_put(slot.create_url):
                return slot.token
            if number < self.ask["retries"]:
                time.sleep(self.ask["pause"] * 2 ** number)
        raise Refused("upload", f"{self.ask['retries'] + 1} attempts")

    def has_put(self, url):
        """Whether the file arrived; the client's own upload waits for minutes, or for ever, on a broken line."""
        import requests
        try:
            with open(self.ask["path"], "rb") as file:
                return requests.put(url, data=file, timeout=60).status_code in (200, 201)
        except requests.RequestException:
            return False

    def create(self, token, before):
        """Make a submission of the uploaded file -> its ref; what may have counted is looked up, never repeated."""
        from kagglesdk.competitions.types.competition_api_service import ApiCreateSubmissionRequest
        request = ApiCreateSubmissionRequest()
        request.competition_name, request.blob_file_tokens = self.ask["competition"], token
        request.submission_description = self.ask["message"]
        calls = self.kaggle.competitions.competition_api_client
        ref, kind = 0, "refused"
        try:
            answer = self.attempt("create submission", lambda: calls.create_submission(request), safe=False)
            ref, words = answer.ref, answer.message
        except Exception as fault:
            told = describe(fault)
            if 400 <= told.get("status", 0) < 500:
                raise
            kind, words = "unsure", told["words"]
        if not ref:                              # Kaggle says "success" of submissions that it does not count, too
            new = [found for found in self.marked(self.listed()) if found not in before]
            if not new:
                raise Refused(kind, words)
            ref = new[0]
        return ref

    def score(self):
        """The submission that is asked for, in a list."""
        return [s for s in self.listed() if s["ref"] == self.ask["ref"]]

    def locate(self):
        """The signed address of the data set, which the parent downloads."""
        from kagglesdk.competitions.types.competition_api_service import ApiDownloadDataFilesRequest
        calls, request = self.kaggle.competitions.competition_api_client, ApiDownloadDataFilesRequest()
        request.competition_name = self.ask["competition"]
        with self.attempt("ask for the data", lambda: calls.download_data_files(request)) as response:
            return response.url

    def dataset(self):
        """A Dataset's name with its owner, its latest version (0 if there is no such Dataset), and its status."""
        from kagglesdk.datasets.types.dataset_api_service import ApiGetDatasetRequest, ApiGetDatasetStatusRequest
        owner, _, slug = self.ask["dataset"].rpartition("/")
        about, status = ApiGetDatasetRequest(), ApiGetDatasetStatusRequest()
        about.owner_slug = status.owner_slug = owner or self.api.config_values.get("username") or ""
        about.dataset_slug = status.dataset_slug = slug
        calls, none = self.kaggle.datasets.dataset_api_client, {
            "ref": f"{about.owner_slug}/{slug}", "version": 0, "current": 0, "private": True, "about": "", "status": ""}
        try:
            found = self.attempt("look for the Dataset", lambda: calls.get_dataset(about))
            now = self.attempt("ask for the status", lambda: calls.get_dataset_status(status)).status.name.lower()
        except KeyError as fault:                # a status that is newer than this client
            now = str(fault.args[0]).lower()
        except Exception as fault:
            if describe(fault).get("status") not in (403, 404):      # Kaggle answers 403 for unknown names, too
                raise
            return none
        last = max(found.versions or [], key=lambda version: version.version_number, default=None)
        number = max(found.current_version_number, last.version_number if last else 0)
        noted = last.version_notes if last else ""
        if number == 1:                          # nobody can give notes to a first version
            noted = found.description
        return {**none, "version": number, "current": found.current_version_number, "private": found.is_private,
                "about": noted or "", "status": now}

    def push_dataset(self):
        """Upload files, then make a private Dataset or a new version of it from them, once."""
        from kagglesdk.datasets.types import dataset_api_service as types
        tokens, files = self.blobs(), []
        for token in tokens:
            files.append(types.ApiDatasetNewFile())
            files[-1].token = token
        calls, (owner, slug) = self.kaggle.datasets.dataset_api_client, self.ask["dataset"].split("/")
        if self.ask["version"]:
            request, body = types.ApiCreateDatasetVersionRequest(), types.ApiCreateDatasetVersionRequestBody()
            request.owner_slug, request.dataset_slug, body.version_notes = owner, slug, self.ask["mark"]
            body.files, request.body, send = files, body, calls.create_dataset_version
        else:
            request, send = types.ApiCreateDatasetRequest(), calls.create_dataset
            request.owner_slug, request.slug, request.title = owner, slug, self.ask["title"]
            request.description, request.files = f"Uploaded by tpugraphs-kit {self.ask['mark']}", files
            request.license_name, request.is_private = "other", True
        try:
            done = self.attempt("create the Dataset", lambda: send(request), safe=False)
        except Exception as fault:               # it may have arrived
            if 400 <= describe(fault).get("status", 400) < 500 or self.ask["mark"] not in self.dataset()["about"]:
                self.tell(step="create the Dataset")     # this step failed, not the later look
                raise
            return
        if done.error:
            raise Refused("refused", done.error)

    def blobs(self):
        """Upload the files, or the rest of an earlier upload -> one token per file."""
        try:
            with open(self.ask["known"], encoding="utf-8") as file:
                known = json.load(file)
            known = known if known["mark"] == self.ask["mark"] and time.time() - known["begun"] < UPLOAD_LIVES else {}
        except (OSError, ValueError, TypeError, KeyError):
            known = {}
        known = known or {"mark": self.ask["mark"], "begun": time.time(), "slots": {}}

        def keep():
            part = self.ask["known"] + ".part"           # private: who knows an address can upload to it
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump(known, file)
            os.replace(part, self.ask["known"])
        return [self.blob(path, known["slots"], keep) for path in self.ask["files"]]

    def blob(self, path, slots, keep):
        """Upload one file -> its token. `slots` has the address of each file, and `keep` writes `slots` to the disk."""
        from kagglesdk.blobs.types.blob_api_service import ApiBlobType, ApiStartBlobUploadRequest
        name, size, failures, furthest = os.path.basename(path), os.path.getsize(path), 0, 0
        start, calls = ApiStartBlobUploadRequest(), self.kaggle.blobs.blob_api_client
        start.type, start.name, start.content_length = ApiBlobType.DATASET, name, size
        start.last_modified_epoch_seconds = int(os.path.getmtime(path))
        while not slots.get(name, {}).get("done"):
            if failures > self.ask["retries"]:
                raise Refused("upload", f"{name}: {failures} attempts")
            new = name not in slots
            if new:
                slot = self.attempt("start upload", lambda: calls.start_blob_upload(start))
                slots[name] = {"token": slot.token, "url": slot.create_url, "done": False}
                keep()
            self.tell(step="upload")
            slots[name]["done"], there = self.send_rest(path, slots[name]["url"], new)
            if slots[name]["done"]:
                self.tell(step="upload", say=f"{name}: {size / 1e6:.1f} MB uploaded")
            else:
                if there is None:                # the storage does not know this upload any more
                    del slots[name]
                failures = 0 if (there or 0) > furthest else failures + 1
                furthest = max(furthest, there or 0)
                time.sleep(self.ask["pause"] * 2 ** failures)
            keep()
        return slots[name]["token"]

    def send_rest(self, path, url, new):
        """Send the missing bytes -> (whether the file is complete, bytes that were there; None: invalid address)."""
        import requests
        name, size, start, shown = os.path.basename(path), os.path.getsize(path), 0, time.monotonic()

        def sent(count):
            nonlocal shown
            if time.monotonic() - shown > LINE_EVERY:
                shown = time.monotonic()
                self.tell(step="upload", say=f"{name}: {count / 1e6:.1f} MB of {size / 1e6:.1f} MB")
        try:
            if not new:                          # ask how many bytes have arrived
                seen = requests.put(url, headers={"Content-Range": f"bytes */{size}"}, timeout=60,
                                    allow_redirects=False)
                come = re.fullmatch(r"bytes=0-(\d+)", seen.headers.get("Range", ""))
                if seen.status_code != 308:      # 308: the upload is incomplete
                    lost = 400 <= seen.status_code < 500 and seen.status_code != 429
                    return seen.status_code in (200, 201), None if lost else 0
                start = int(come[1]) + 1 if come else 0
            part = {"Content-Range": f"bytes {start}-{size - 1}/{size}"} if start else {}
            rest = Rest(path, start, sent) if start < size else b""
            done = requests.put(url, data=rest, headers=part, timeout=(60, 300), allow_redirects=False)
            return done.status_code in (200, 201), start
        except requests.RequestException:
            return False, start

    def push(self):
        """Save the notebook of a folder on Kaggle, where it runs."""
        path = os.path.join(self.ask["folder"], "kernel-metadata.json")
        with open(path, encoding="utf-8") as file:
            about = json.load(file)
        if "/" not in about.get("id", "/"):
            about["id"] = f"{self.api.config_values.get('username')}/{about['id']}"
            with open(path, "w", encoding="utf-8") as file:
                json.dump(about, file)
        done = self.attempt("push notebook", lambda: self.api.kernels_push(self.ask["folder"]), safe=False)
        unknown = [*done.invalid_dataset_sources, *done.invalid_competition_sources]
        if done.error or unknown:
            raise Refused("refused", done.error or f"the notebook was pushed without its data: no access to {unknown}")
        return {"ref": "/".join((done.ref or done.url).split("/")[-2:]), "url": done.url,
                "version": done.version_number, "without": [*done.invalid_kernel_sources]}

    def status(self):
        """How the latest run of a notebook stands."""
        try:
            now = self.attempt("ask for the status", lambda: self.api.kernels_status(self.ask["notebook"]))
        except KeyError as fault:                # a status that is newer than this client
            return {"status": str(fault.args[0]).lower(), "reason": None}
        return {"status": now.status.name.lower(), "reason": now.failure_message or None}

    def quota(self):
        """Hours of GPU time in this week, {} if Kaggle does not say, None if this client cannot ask."""
        if not hasattr(self.api, "quota_view"):
            return None
        found = self.attempt("ask for the GPU quota", self.api.quota_view)
        gpu, renewed = found.gpu_quota, found.quota_refresh_time
        if gpu is None or gpu.total_time_allowed is None:
            return {}
        times = {"used": gpu.time_used, "reserved": gpu.time_reserved, "allowed": gpu.total_time_allowed}
        return {**{name: time.total_seconds() / 3600 if time else 0.0 for name, time in times.items()},
                "renewed": renewed.isoformat(" ", "minutes") if renewed else None}

    def output(self):
        """Names and addresses of the files that the latest run of a notebook left, and its log."""
        from kagglesdk.kernels.types.kernels_api_service import ApiListKernelSessionOutputRequest
        request, files = ApiListKernelSessionOutputRequest(), []
        request.user_name, request.kernel_slug = self.ask["notebook"].split("/")[:2]
        request.page_size, token = 100, True
        calls = self.kaggle.kernels.kernels_api_client
        while token:
            page = self.attempt("list output", lambda: calls.list_kernel_session_output(request))
            files += [[f.file_name, f.url] for f in page.files or []]
            log, token = page.log or "", page.next_page_token
            request.page_token = token or ""
        return {"files": files, "log": log}


def make_no_folder():
    """Let the client not make an empty folder ~/.config/kaggle, as it does at import where it finds no folder."""
    home = os.path.expanduser("~")
    places = [os.path.join(home, ".kaggle"),
              os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "kaggle")]
    if not any(map(os.path.exists, places)):     # there is no kaggle.json to miss
        os.environ.setdefault("KAGGLE_CONFIG_DIR", os.path.dirname(os.path.realpath(__file__)))


def fault_of(path, names=()):
    """Why a file does not hold text, or JSON with these names, as the client reads it; None if it does."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:4]:
            return "is UTF-16; save it as plain UTF-8"
        if data.startswith(b"\xef\xbb\xbf"):
            return "starts with a byte order mark; save it as plain UTF-8 without one"
        if not data.strip():
            return "is empty"
        found = json.loads(data.decode("utf-8")) if names else dict.fromkeys([data.decode("ascii")])
    except OSError as fault:
        return f"cannot be opened ({fault.strerror})"
    except UnicodeDecodeError:
        return f"is not plain {'UTF-8' if names else 'ASCII'} text"
    except (ValueError, RecursionError):
        return "is not JSON; it may be cut short"
    missing = [name for name in names if not (isinstance(found, dict) and isinstance(found.get(name), str))]
    return f"has no {missing[0]}" if missing else None


def refuse_damaged_token():
    """Refuse a file with a token that the client would send as it stands, although no header can hold it."""
    given = os.environ.get("KAGGLE_API_TOKEN")
    paths = [given] if given else [os.path.join("~", ".kaggle", name) for name in ("access_token", "access_token.txt")]
    for path in paths:
        full = os.path.expanduser(path)
        if os.path.isfile(full) and os.path.getsize(full) and (fault := fault_of(full)):
            raise Refused("unreadable", f"{path} {fault}")


def refuse_none():
    """No credentials were found: name the file that was meant to hold them, if there is one, and what is wrong."""
    home = os.path.expanduser("~")
    folders = [os.environ.get("KAGGLE_CONFIG_DIR"), os.path.join(home, ".kaggle"),
               os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "kaggle")]
    files = [(os.path.join(folder, "kaggle.json"), ("username", "key")) for folder in folders if folder]
    files += [(os.path.join(home, ".kaggle", "credentials.json"), ("refresh_token",)),
              *((os.path.join(home, ".kaggle", name), ()) for name in ("access_token", "access_token.txt"))]
    for path, names in files:
        if os.path.exists(path) and (fault := fault_of(path, names)):
            raise Refused("unreadable", f"{path} {fault}")
    half = [name for name in ("KAGGLE_USERNAME", "KAGGLE_KEY") if os.environ.get(name)]
    if len(half) == 1:
        raise Refused("unreadable", f"{half[0]} is set alone; set KAGGLE_USERNAME and KAGGLE_KEY")
    raise Refused("credentials")


def sign_in(known):
    """The client's API; `known` gets the source of the credentials and the secrets as soon as they are known."""
    from kagglesdk.kaggle_env import get_access_token_from_env
    refuse_damaged_token()
    token, place = get_access_token_from_env()
    known["secrets"] += [token] if token else []
    known["source"] = "~/.kaggle/access_token" if place == "access_token" else place
    make_no_folder()
    try:
        import kaggle
    except (SystemExit, NameError, UnicodeDecodeError):      # without credentials, versions up to 2.2.3 end here
        refuse_none()
    values = kaggle.api.config_values
    known["secrets"] += [str(values[name]) for name in ("key", "token") if values.get(name)]
    if not known["source"] and values.get("key") and values.get("username"):
        known["source"] = "KAGGLE_KEY" if os.environ.get("KAGGLE_KEY") else "kaggle.json"
    elif not known["source"] and not fault_of(os.path.expanduser("~/.kaggle/credentials.json"), ("refresh_token",)):
        known["source"] = "~/.kaggle/credentials.json"
    if not known["source"]:
        refuse_none()
    return kaggle.api


def answer(ask, tell):
    """The last line of the answer, without secrets."""
    known = {"source": None, "secrets": []}
    try:
        import requests  # noqa: F401  (`describe` needs it for whatever fails from here on)
        api = sign_in(known)
        with api.build_kaggle_client() as kaggle:
            return {"source": known["source"], "result": getattr(Calls(ask, tell, api, kaggle), ask["call"])()}
    except Refused as fault:
        told = fault.told
    except (ImportError, AttributeError) as fault:           # the client is missing, or too old for this call
        told = {"kind": "client", "words": f"{type(fault).__name__}: {fault}"}
    except (Exception, SystemExit) as fault:
        told = describe(fault)
    for secret in known["secrets"]:
        told["words"] = told["words"].replace(secret, "***")
    return {"source": known["source"], **told}


def main():
    """Answer the request on stdin."""
    sys.path[:] = other_places(sys.path, os.path.dirname(os.path.realpath(__file__)))
    ask = json.loads(sys.stdin.buffer.read())
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def tell(**words):
        out.write(json.dumps(words) + "\n")
        out.flush()

    tell(**answer(ask, tell))


if __name__ == "__main__":
    main()
