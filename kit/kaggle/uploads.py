"""Upload a file to the storage of Kaggle, and resume where the line was cut."""
import os
import re
import time
from pathlib import Path

import requests
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential
from tqdm import tqdm

from kit.kaggle.client import BAR, WAIT_MOST, failure

ANSWER_WITHIN = 300.0            # s; the storage may need a while for a large file


def upload_file(path, start, about, end, slot=None, keep=None, retries=3, pause=2.0):
    """Upload a file, or the rest of it -> the token that names it for Kaggle; a failure is a KaggleError "upload"."""
    # start: () -> {"token", "url"} of a new upload; about: for messages; end: on the clock `time.monotonic`; retries:
    # after attempts in a row that brought nothing; slot: the upload that an earlier call began, {} if there is none,
    # and keep: called when it has changed; without them, each attempt is a new upload
    path, size, furthest = Path(path), os.path.getsize(path), 0
    resumes, slot = slot is not None, {} if slot is None else slot

    def attempt():
        nonlocal furthest
        within = max(min(ANSWER_WITHIN, end - time.monotonic()), 0.1)
        there = _arrived(slot["url"], size, within) if slot and resumes else None
        new = there is None
        if new:
            slot.update(start())
            if keep:
                keep()
        try:
            if new or there < size:
                _send(path, slot["url"], there or 0, within)
            return True
        except requests.RequestException:
            if new or there <= furthest:
                raise
            furthest = there
            return False

    patiently = Retrying(retry=retry_if_exception_type(requests.RequestException), reraise=True,
                         stop=lambda state: stop_after_attempt(retries + 1)(state) or time.monotonic() > end,
                         wait=wait_exponential(pause, max=WAIT_MOST))
    try:
        while not patiently(attempt):            # the attempt brought something, so retries are counted anew
            time.sleep(pause)
    except requests.RequestException as fault:
        said = f"HTTP {fault.response.status_code}" if fault.response is not None else type(fault).__name__
    else:
        return slot["token"]
    raise failure("upload", f"{path.name}: {said}", about)       # here, without what it came from: the URL is signed


def _arrived(url, size, within):
    """How many bytes have arrived, `size` if the file is complete; None if the storage does not know the upload."""
    answer = requests.put(url, headers={"Content-Range": f"bytes */{size}"}, timeout=within, allow_redirects=False)
    if answer.status_code in (404, 410):
        return None
    answer.raise_for_status()
    come = re.fullmatch(r"bytes=0-(\d+)", answer.headers.get("Range", ""))
    return size if answer.status_code != 308 else int(come[1]) + 1 if come else 0        # 308: incomplete


def _send(path, url, start, within):
    """Send the bytes of a file from `start` to its end."""
    size = os.path.getsize(path)
    part = {"Content-Range": f"bytes {start}-{size - 1}/{size}"} if start else {}
    with open(path, "rb") as file, tqdm.wrapattr(file, "read", size, initial=start, desc=path.name, **BAR) as rest:
        file.seek(start)
        answer = requests.put(url, data=rest if start < size else b"", headers=part, timeout=within,
                              allow_redirects=False)
    if answer.status_code not in (200, 201):
        raise requests.HTTPError(response=answer)
