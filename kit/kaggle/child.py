"""The child process of `kit.kaggle.client`: one call of the real Kaggle client (kaggle 2.2.4 and 2.2.5).

It reads one JSON object from stdin and writes one to stdout: {"result"}, or what went wrong: "words", and a "kind" or
an HTTP "status". Anything else that is printed is dropped.
Another Python than the kit's may run this file, so it imports nothing of the kit.
"""
import json
import os
import sys

CREDENTIALS = os.path.join("~", ".kaggle", "credentials.json")
TOKENS = [os.path.join("~", ".kaggle", name) for name in ("access_token", "access_token.txt")]


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


# --- the calls; `ask` is the request, `api` the client, `kaggle` its connection

def list_submissions(ask, api, kaggle):
    """The latest 50 submissions, newest first."""
    return [{"ref": int(s.ref), "status": s.status.name.lower(), "public": s.public_score, "private": s.private_score,
             "reason": s.error_description, "description": s.description or ""}
            for s in api.competition_submissions(ask["competition"], page_size=50) or []]


def ask_for_limits(ask, api, kaggle):
    """How many submissions were made, and how many are left."""
    found = api.competition_get_submission_limits(ask["competition"])
    return {"today": found.num_today, "total": found.num_total, "left": found.num_allowed_now}


def start_upload(ask, api, kaggle):
    """The token and the address of a new upload, of a submission or of a file of a Dataset."""
    from kagglesdk.blobs.types.blob_api_service import ApiBlobType, ApiStartBlobUploadRequest
    from kagglesdk.competitions.types.competition_api_service import ApiStartSubmissionUploadRequest
    if "competition" in ask:
        request = ApiStartSubmissionUploadRequest()
        send = kaggle.competitions.competition_api_client.start_submission_upload
        request.competition_name, request.file_name = ask["competition"], os.path.basename(ask["path"])
        request.last_modified_epoch_seconds = int(os.path.getmtime(ask["path"]))
    else:
        request, send = ApiStartBlobUploadRequest(), kaggle.blobs.blob_api_client.start_blob_upload
        request.type, request.name = ApiBlobType.DATASET, os.path.basename(ask["path"])
    request.content_length = os.path.getsize(ask["path"])
    slot = send(request)
    return {"token": slot.token, "url": slot.create_url}


def create_submission(ask, api, kaggle):
    """Make a submission of an uploaded file -> its ref, 0 if Kaggle gives none, and Kaggle's words."""
    from kagglesdk.competitions.types.competition_api_service import ApiCreateSubmissionRequest
    request = ApiCreateSubmissionRequest()
    request.competition_name, request.blob_file_tokens = ask["competition"], ask["token"]
    request.submission_description = ask["message"]
    done = kaggle.competitions.competition_api_client.create_submission(request)
    return {"ref": done.ref, "words": done.message}


def ask_for_the_data(ask, api, kaggle):
    """The signed address of the data set, which the parent downloads."""
    from kagglesdk.competitions.types.competition_api_service import ApiDownloadDataFilesRequest
    request = ApiDownloadDataFilesRequest()
    request.competition_name = ask["competition"]
    with kaggle.competitions.competition_api_client.download_data_files(request) as response:
        return response.url


def look_for_the_Dataset(ask, api, kaggle):
    """A Dataset's name with its owner, its latest version (0 if there is no such Dataset), and its status."""
    from kagglesdk.datasets.types.dataset_api_service import ApiGetDatasetRequest, ApiGetDatasetStatusRequest
    owner, _, slug = ask["dataset"].rpartition("/")
    about, status = ApiGetDatasetRequest(), ApiGetDatasetStatusRequest()
    about.owner_slug = status.owner_slug = owner or api.config_values.get("username") or ""
    about.dataset_slug = status.dataset_slug = slug
    calls, ref = kaggle.datasets.dataset_api_client, f"{about.owner_slug}/{slug}"
    try:
        found = calls.get_dataset(about)
        now = calls.get_dataset_status(status).status.name.lower()
    except KeyError as fault:                    # a status that is newer than this client
        now = str(fault.args[0]).lower()
    except Exception as fault:
        if describe(fault).get("status") not in (403, 404):          # Kaggle answers 403 for unknown names, too
            raise
        return {"ref": ref, "version": 0, "current": 0, "private": True, "about": "", "status": ""}
    last = max(found.versions or [], key=lambda version: version.version_number, default=None)
    number = max(found.current_version_number, last.version_number if last else 0)
    # nobody can give notes to a first version
    noted = found.description if number == 1 else last.version_notes if last else ""
    return {"ref": ref, "version": number, "current": found.current_version_number, "private": found.is_private,
            "about": noted or "", "status": now}


def create_the_Dataset(ask, api, kaggle):
    """Make a private Dataset, or a new version of it, from uploaded files."""
    from kagglesdk.datasets.types import dataset_api_service as types
    files, (owner, slug) = [], ask["dataset"].split("/")
    for token in ask["tokens"]:
        files.append(types.ApiDatasetNewFile())
        files[-1].token = token
    calls = kaggle.datasets.dataset_api_client
    if ask["version"]:
        request, body = types.ApiCreateDatasetVersionRequest(), types.ApiCreateDatasetVersionRequestBody()
        request.owner_slug, request.dataset_slug, body.version_notes = owner, slug, ask["mark"]
        body.files, request.body = files, body
        done = calls.create_dataset_version(request)
    else:
        request = types.ApiCreateDatasetRequest()
        request.owner_slug, request.slug, request.title = owner, slug, ask["title"]
        request.description, request.files = f"Uploaded by tpugraphs-kit {ask['mark']}", files
        request.license_name, request.is_private = "other", True
        done = calls.create_dataset(request)
    if done.error:
        raise Refused("refused", done.error)


def push_the_notebook(ask, api, kaggle):
    """Save a notebook on Kaggle, where it runs; its kernel-metadata.json is written to its folder."""
    about = dict(ask["about"])
    if "/" not in about["id"]:
        about["id"] = f"{api.config_values.get('username')}/{about['id']}"
    with open(os.path.join(ask["folder"], "kernel-metadata.json"), "w", encoding="utf-8") as file:
        json.dump(about, file)
    done = api.kernels_push(ask["folder"])
    unknown = [*done.invalid_dataset_sources, *done.invalid_competition_sources]
    if done.error or unknown:
        raise Refused("refused", done.error or f"the notebook was pushed without its data: no access to {unknown}")
    return {"ref": "/".join((done.ref or done.url).split("/")[-2:]), "url": done.url,
            "version": done.version_number, "without": [*done.invalid_kernel_sources]}


def ask_for_the_status(ask, api, kaggle):
    """How the latest run of a notebook stands."""
    try:
        now = api.kernels_status(ask["notebook"])
    except KeyError as fault:                    # a status that is newer than this client
        return {"status": str(fault.args[0]).lower(), "reason": None}
    return {"status": now.status.name.lower(), "reason": now.failure_message or None}


def ask_for_the_GPU_quota(ask, api, kaggle):
    """Hours of GPU time in this week, None if Kaggle does not say."""
    found = api.quota_view()
    gpu, renewed = found.gpu_quota, found.quota_refresh_time
    if gpu is None or gpu.total_time_allowed is None:
        return None
    times = {"used": gpu.time_used, "reserved": gpu.time_reserved, "allowed": gpu.total_time_allowed}
    return {**{name: time.total_seconds() / 3600 if time else 0.0 for name, time in times.items()},
            "renewed": renewed.isoformat(" ", "minutes") if renewed else None}


def list_output(ask, api, kaggle):
    """Names and addresses of the files that the latest run of a notebook left, and its log."""
    from kagglesdk.kernels.types.kernels_api_service import ApiListKernelSessionOutputRequest
    request, files = ApiListKernelSessionOutputRequest(), []
    request.user_name, request.kernel_slug = ask["notebook"].split("/")[:2]
    request.page_size, token = 100, True
    while token:
        page = kaggle.kernels.kernels_api_client.list_kernel_session_output(request)
        files += [[f.file_name, f.url] for f in page.files or []]
        log, token = page.log or "", page.next_page_token
        request.page_token = token or ""
    return {"files": files, "log": log}


# --- credentials

def fault_of(path, names=()):
    """Why a file does not hold a token, or JSON with these names, as the client reads it; None if it does."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:4]:
            return "is UTF-16; save it as plain UTF-8"
        if data.startswith(b"\xef\xbb\xbf"):
            return "starts with a byte order mark; save it as plain UTF-8 without one"
        if not data.strip():
            return "is empty"
        if not names:
            return fault_of_token(data.decode("utf-8"))
        found = json.loads(data.decode("utf-8"))
    except OSError as fault:
        return f"cannot be opened ({fault.strerror})"
    except UnicodeDecodeError:
        return "is not plain UTF-8 text"
    except (ValueError, RecursionError):
        return "is not JSON; it may be cut short"
    given = found if isinstance(found, dict) else {}
    missing = [name for name in names if not given.get(name)]
    return f"has no {missing[0]}" if missing else None


def fault_of_token(text):
    """Why a text is no token that a header can hold; None if it may be one."""
    if text.lstrip().startswith(("{", "[")):
        return "is JSON and no token; call a file with a username and a key kaggle.json"
    if len(text.split()) > 1:
        return "is more than one word; expected the token alone"
    return None if text.isascii() else "is not plain ASCII text"


def usual_folders():
    """Where the client looks for kaggle.json, unless KAGGLE_CONFIG_DIR names another folder."""
    home = os.path.expanduser("~")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    return [os.path.join(home, ".kaggle"), os.path.join(config, "kaggle")]


def refuse():
    """No credentials can be used: name the file that should hold them, if there is one, and its fault."""
    folders = [os.environ.get("KAGGLE_CONFIG_DIR"), *usual_folders()]
    files = [(os.path.join(folder, "kaggle.json"), ("username", "key")) for folder in folders if folder]
    for path, names in [*files, (CREDENTIALS, ("refresh_token",)), *((token, ()) for token in TOKENS)]:
        path = os.path.expanduser(path)
        if os.path.exists(path) and (fault := fault_of(path, names)):
            raise Refused("unreadable", f"{path} {fault}")
    # a browser and Windows give such names: "kaggle (1).json", "kaggle.json.txt"
    found = [os.path.join(folder, name) for folder in folders if folder and os.path.isdir(folder)
             for name in sorted(os.listdir(folder)) if name.startswith("kaggle") and ".json" in name]
    if found and not any(os.path.exists(path) for path, _ in files):
        raise Refused("unreadable", f"{found[0]} is not looked for under this name; call it kaggle.json")
    half = [name for name in ("KAGGLE_USERNAME", "KAGGLE_KEY") if os.environ.get(name)]
    if len(half) == 1:
        raise Refused("unreadable", f"{half[0]} is set alone; set KAGGLE_USERNAME and KAGGLE_KEY")
    raise Refused("credentials")


def refuse_damaged_token():
    """Refuse a file with a token that the client would send as it stands, although no header can hold it."""
    given = os.environ.get("KAGGLE_API_TOKEN")
    if given and not os.path.exists(given) and (fault := fault_of_token(given)):
        raise Refused("unreadable", f"KAGGLE_API_TOKEN {fault}")
    for path in map(os.path.expanduser, [given] if given else TOKENS):
        if os.path.exists(path) and os.path.getsize(path) and (fault := fault_of(path)):
            raise Refused("unreadable", f"{path} {fault}")


def make_no_folder():
    """Let the client not make an empty folder ~/.config/kaggle, as it does at import where it finds no folder."""
    if not any(map(os.path.exists, usual_folders())):        # there is no kaggle.json to miss
        os.environ.setdefault("KAGGLE_CONFIG_DIR", os.path.dirname(os.path.realpath(__file__)))


def sign_in(known):
    """The client's API; `known` gets the source of the credentials and the secrets as soon as they are known."""
    from kagglesdk.kaggle_env import get_access_token_from_env
    for name in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY"):
        if os.environ.get(name):
            os.environ[name] = os.environ[name].strip()      # read from a file, it ends with a line feed
    refuse_damaged_token()
    try:
        token, place = get_access_token_from_env()
        known["secrets"] += [token] if token else []
        known["source"] = "~/.kaggle/access_token" if place == "access_token" else place
        make_no_folder()
        import kaggle
    except (SystemExit, NameError, UnicodeDecodeError):      # without credentials, versions up to 2.2.3 end here
        refuse()
    values = kaggle.api.config_values
    if not isinstance(values, dict):             # JSON of another form, which the client takes as it is
        refuse()
    known["secrets"] += [str(values[name]) for name in ("key", "token") if values.get(name)]
    if not known["source"] and values.get("key") and values.get("username"):
        known["source"] = "KAGGLE_KEY" if os.environ.get("KAGGLE_KEY") else "kaggle.json"
    elif not known["source"] and not fault_of(os.path.expanduser(CREDENTIALS), ("refresh_token",)):
        known["source"] = "~/.kaggle/credentials.json"
    if not known["source"]:
        refuse()
    return kaggle.api


def answer(ask):
    """What is written to stdout, without secrets."""
    known = {"source": None, "secrets": []}
    try:
        import requests  # noqa: F401  (`describe` needs it for whatever fails from here on)
        api = sign_in(known)
        with api.build_kaggle_client() as kaggle:
            return {"result": globals()[ask["call"]](ask, api, kaggle)}
    except Refused as fault:
        told = fault.told
    except (ImportError, AttributeError) as fault:           # the client is missing, or too old for this call
        told = {"kind": "client", "words": f"{type(fault).__name__}: {fault}"}
    except (Exception, SystemExit) as fault:
        told = describe(fault)
    for part in " ".join(known["secrets"]).split():          # a message may show white space in it as escapes
        told["words"] = told["words"].replace(part, "***")
    return {"source": known["source"], **told}


def main():
    """Answer the request on stdin."""
    del sys.path[0]                              # this folder, whose modules would be taken for others
    ask = json.loads(sys.stdin.buffer.read())
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        json.dump(answer(ask), out)


if __name__ == "__main__":
    main()
