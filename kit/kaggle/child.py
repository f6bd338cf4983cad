"""What the child process of `kit.kaggle.client` runs: the real Kaggle client, for kaggle 2.2.4 and 2.2.5.

It gets one JSON object on stdin and answers with lines of JSON: {"step"} before each thing that it tries, and at the
end {"result"}, or the fault as {"kind"} or {"status"} with "words". Whatever else it prints goes nowhere.
"""


CLIENT = r'''
import json, os, sys, time
sys.path[:] = [place for place in sys.path if place]    # a kaggle.py in the working directory is not the client
ask = json.loads(sys.stdin.buffer.read())
out = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def tell(**words):
    out.write(json.dumps(words) + "\n")
    out.flush()


class Refused(Exception):
    def __init__(self, kind, words=""):
        self.told = {"kind": kind, "words": str(words)}


def describe(fault):
    """What went wrong; the client hides some of the server's answers behind a ValueError."""
    seen = fault
    while seen is not None:
        response = getattr(seen, "response", None)
        if response is not None:
            try:
                words = response.json()["message"]
            except Exception:
                words = response.reason
            return {"status": response.status_code, "words": f"HTTP {response.status_code}: {words}",
                    "wait": response.headers.get("Retry-After")}
        if isinstance(seen, (requests.ConnectionError, requests.Timeout, ConnectionError, TimeoutError)):
            return {"status": 0, "words": type(seen).__name__}
        seen = seen.__cause__ or seen.__context__
    kind = "refused" if isinstance(fault, ValueError) else "client"
    return {"kind": kind, "words": f"{type(fault).__name__}: {fault}"}


def attempt(step, work, safe=True):
    """Repeat what fails where that is safe: always after 429."""
    for number in range(ask["retries"] + 1):
        tell(step=step)
        try:
            return work()
        except Exception as fault:
            told = describe(fault)
            status, wait = told.get("status", -1), told.get("wait") or ""
            wait = int(wait) if wait.isdigit() else ask["pause"] * 2 ** number
            if number == ask["retries"] or wait > 60 or not (status == 429 or safe and (status == 0 or status >= 500)):
                raise
            time.sleep(wait)


def listed():
    found = attempt("list submissions", lambda: api.competition_submissions(ask["competition"], page_size=50)) or []
    return [{"ref": int(s.ref), "status": s.status.name.lower(), "public": s.public_score, "private": s.private_score,
             "reason": s.error_description, "description": s.description or ""} for s in found]


def allowance():
    """The limits, or None where there is nothing to learn of them."""
    try:
        return attempt("ask for limits", lambda: api.competition_get_submission_limits(ask["competition"]))
    except Exception as fault:
        if describe(fault).get("status") in (0, 401, 403, 404):
            raise
        return None


def uploaded(url):
    """Whether the file got there. The client's own upload waits for minutes, or for ever, where the line is cut."""
    try:
        with open(ask["path"], "rb") as file:
            return requests.put(url, data=file, timeout=60).status_code in (200, 201)
    except requests.RequestException:
        return False


def do_submit(kaggle):
    calls, before = kaggle.competitions.competition_api_client, listed()
    refs = {s["ref"] for s in before}

    def same(s):
        return ask["mark"] in s["description"] and s["status"] != "error"
    earlier = [s for s in before if same(s)]
    limits = allowance()
    if earlier and not ask["again"]:
        return {"ref": earlier[0]["ref"], "remaining": limits and limits.num_allowed_now, "repeated": True}
    if limits and limits.num_allowed_now < 1 and limits.num_today + limits.num_total:    # all 0: in no team yet
        raise Refused("limit", f"{limits.num_today} today, {limits.num_total} in all")
    start = ApiStartSubmissionUploadRequest()
    start.competition_name, start.file_name = ask["competition"], os.path.basename(ask["path"])
    start.content_length = os.path.getsize(ask["path"])
    start.last_modified_epoch_seconds = int(os.path.getmtime(ask["path"]))
    for number in range(ask["retries"] + 1):
        slot = attempt("start upload", lambda: calls.start_submission_upload(start))
        tell(step="upload")
        if uploaded(slot.create_url):
            break
        if number < ask["retries"]:
            time.sleep(ask["pause"] * 2 ** number)
    else:
        raise Refused("upload", f"{ask['retries'] + 1} attempts")
    create = ApiCreateSubmissionRequest()
    create.competition_name, create.blob_file_tokens = ask["competition"], slot.token
    create.submission_description = ask["message"]
    ref, lost, words = 0, False, ""
    try:
        answer = attempt("create submission", lambda: calls.create_submission(create), safe=False)
        ref, words = answer.ref, answer.message
    except Exception as fault:
        told = describe(fault)
        if 400 <= told.get("status", 0) < 500:
            raise
        lost, words = True, told["words"]
    if not ref:                                  # "success" has been said of what was not counted
        new = [s["ref"] for s in listed() if same(s) and s["ref"] not in refs]
        if not new:
            raise Refused("unsure" if lost else "refused", words)
        ref = new[0]
    try:
        limits = allowance()
    except Exception:
        limits = None
    return {"ref": ref, "remaining": limits and limits.num_allowed_now, "repeated": False}


def do_score(kaggle):
    return [s for s in listed() if s["ref"] == ask["ref"]]


def do_locate(kaggle):
    calls = kaggle.competitions.competition_api_client
    request = ApiDownloadDataFilesRequest()
    request.competition_name = ask["competition"]
    with attempt("ask for the data", lambda: calls.download_data_files(request)) as response:
        return response.url                      # redirected; read by the parent


def do_push(kaggle):
    path = os.path.join(ask["folder"], "kernel-metadata.json")
    with open(path, encoding="utf-8") as file:
        about = json.load(file)
    if "/" not in about.get("id", "/"):
        about["id"] = f"{api.config_values.get('username')}/{about['id']}"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(about, file)
    done = attempt("push notebook", lambda: api.kernels_push(ask["folder"]), safe=False)
    unknown = [*done.invalid_dataset_sources, *done.invalid_competition_sources, *done.invalid_kernel_sources]
    if done.error or unknown:
        raise Refused("refused", done.error or f"the notebook was pushed without its data: no access to {unknown}")
    return {"ref": "/".join((done.ref or done.url).split("/")[-2:]), "url": done.url, "version": done.version_number}


def do_status(kaggle):
    try:
        now = attempt("ask for the status", lambda: api.kernels_status(ask["notebook"]))
    except KeyError as fault:                    # a word that is newer than this client
        return {"status": str(fault.args[0]).lower(), "reason": None}
    return {"status": now.status.name.lower(), "reason": now.failure_message or None}


def do_output(kaggle):
    request, files = ApiListKernelSessionOutputRequest(), []
    request.user_name, request.kernel_slug = ask["notebook"].split("/")[:2]
    request.page_size, token = 100, True
    while token:
        page = attempt("list output", lambda: kaggle.kernels.kernels_api_client.list_kernel_session_output(request))
        files += [[f.file_name, f.url] for f in page.files or []]
        log, token = page.log or "", page.next_page_token
        request.page_token = token or ""
    return {"files": files, "log": log}


source, secrets, told = None, [], None
try:
    import requests
    from kagglesdk.kaggle_env import get_access_token_from_env
    token, place = get_access_token_from_env()
    secrets = [token] if token else []
    source = "~/.kaggle/access_token" if place == "access_token" else place
    try:
        import kaggle
    except (SystemExit, NameError):              # up to 2.2.3 it ends here without credentials
        raise Refused("credentials") from None
    from kagglesdk.competitions.types.competition_api_service import (
        ApiCreateSubmissionRequest, ApiDownloadDataFilesRequest, ApiStartSubmissionUploadRequest)
    from kagglesdk.kernels.types.kernels_api_service import ApiListKernelSessionOutputRequest
    api = kaggle.api
    secrets += [str(s) for s in (api.config_values.get("key"), api.config_values.get("token")) if s]
    if not source and api.config_values.get("key"):
        source = "KAGGLE_KEY" if os.environ.get("KAGGLE_KEY") else "kaggle.json"
    elif not source and os.path.exists(os.path.expanduser("~/.kaggle/credentials.json")):
        source = "~/.kaggle/credentials.json"
    if not source:
        raise Refused("credentials")
    with api.build_kaggle_client() as client:
        told = {"result": globals()["do_" + ask["call"]](client)}
except Refused as fault:
    told = fault.told
except (ImportError, AttributeError) as fault:   # missing, or so old that it lacks a call
    told = {"kind": "client", "words": f"{type(fault).__name__}: {fault}"}
except (Exception, SystemExit) as fault:
    told = describe(fault)
if "result" not in told:
    for secret in secrets:
        told["words"] = told["words"].replace(secret, "***")
tell(source=source, **told)
'''
