"""The data set: download it over an unreliable line, resume, verify, and unpack only what is asked for.

A file gets its name NAME once it is complete. Until then, NAME.part holds the bytes so far. NAME.json holds the size
and the validator that the server gave, so that a later call resumes.
"""
import json
import os
import re
import shutil
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import requests
from tqdm import tqdm
from urllib3.exceptions import HTTPError

from kit.checks import as_path
from kit.data import COLLECTIONS, SPLITS
from kit.files import locked, remove_leftovers, whole_file
from kit.kaggle.client import BAR, COMPETITION, SECRET, KaggleError, ask_kaggle, retries_of, retrying
from kit.prepare import is_prepared, open_prepared, prepare
from kit.submit import TEST_GRAPHS

MIRROR = "https://download.tensorflow.org/data/tpu_graphs/v0"     # google-research-datasets/tpu_graphs, README
_LEARNED = {"tile:xla": (5709, 676), "layout:xla:random": (69, 7), "layout:xla:default": (61, 7),
            "layout:nlp:random": (207, 20), "layout:nlp:default": (198, 20)}   # counted in the published files
FILES = MappingProxyType({c: (*_LEARNED[c], TEST_GRAPHS[c]) for c in COLLECTIONS})                # train, valid, test
BLOCK = 1 << 20                  # bytes read at a time
_MEMBER = re.compile(r"(?:[^/]+/)*(tile/xla|layout/(?:xla|nlp)/(?:random|default))/(train|valid|test)/"
                     r"([^./\\:][^/\\:]*\.npz)")
SAMPLE = "sample_submission.csv"


def download(folder, collections=None, splits=SPLITS, source="kaggle", mirror=MIRROR, competition=COMPETITION,
             timeout=60.0, files=FILES, client=None):
    """Download the data set, or the parts of it that are asked for and still missing.

    After a stop, a cut connection or a failure, repeat the call: it resumes.

    Parameters
    ----------
    folder : str or Path
        Gets npz/tile and npz/layout, and .download/ until everything is unpacked.
    collections : sequence of str, optional
        None: all five. "kaggle" always sends one archive of about 6 GB, "mirror" one per collection and split.
    splits : sequence of str
        Any of "train", "valid" and "test".
    source : str
        "kaggle", with an account that has accepted the competition's rules, or "mirror", without an account.
    mirror : str
        Address of the folder with the mirror's tar files.
    competition : str
        Its name in Kaggle's URLs.
    timeout : float
        Seconds to wait for the next byte, or for one answer from Kaggle.
    files : dict of str to tuple of int
        How many files each split must have: {collection: (train, valid, test)}.
    client : dict, optional
        "python": an interpreter with the Kaggle client, by default this one. "retries": how many failures in a row
        are retried. "pause": seconds before the first retry; doubled for each further one.

    Returns
    -------
    Path
        The data root, `folder`/npz.

    Raises
    ------
    KaggleError
        "busy" if another process is downloading the same file to `folder`; "damaged" if files are missing in the end
        (the other files can be used); other failures have their own `kind`.
    ValueError
        If a collection, split or source is unknown.
    """
    collections = list(COLLECTIONS) if collections is None else collections
    named = [name for some in (collections, splits) for name in (some if isinstance(some, Iterable) else [some])]
    unknown = [str(name) for name in [*named, source] if str(name) not in (*COLLECTIONS, *SPLITS, "kaggle", "mirror")]
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}; collections: {', '.join(COLLECTIONS)}; splits: "
                         f"{', '.join(SPLITS)}; sources: kaggle, mirror")
    folder = as_path(folder, "folder").expanduser()
    root, store = folder / "npz", folder / ".download"
    root.mkdir(parents=True, exist_ok=True)
    expected = {(c, s): files[c][SPLITS.index(s)] for c in collections for s in splits}

    def locate(name):
        if source == "mirror":
            return f"{mirror.rstrip('/')}/{name}"
        return ask_kaggle("ask_for_the_data", competition, timeout, {"competition": competition}, client)

    lacking = list(_lacking(root, expected))
    parts = {f"npz_{c.replace(':', '_')}_{s}.tar": [(c, s)] for c, s in lacking}
    if source == "kaggle":
        parts = {f"{competition}.zip": lacking} if lacking else {}
    for name, wanted in parts.items():
        lock = store / f"{name}.lock"
        with locked(lock) as holder:
            if holder is not None:
                raise KaggleError("busy", f"{store / name}: another process{holder} is downloading this file; wait "
                                  "for it, then run it again")
            if _lacking(root, expected).keys() & {*wanted}:      # else another process has just fetched them
                archive = fetch_file(lambda name=name: locate(name), store / name, timeout, **retries_of(client))
                print(f"{name}: {unpack(archive, root, wanted)} files unpacked", flush=True)
                for path in (archive, archive.with_name(f"{name}.json")):
                    path.unlink()
            with suppress(OSError):                              # Windows removes no open file
                lock.unlink()
    with suppress(OSError):                                      # does not exist, or something is not finished
        store.rmdir()
    short = [f"{c} {s} has {count} of {expected[c, s]} files" for (c, s), count in _lacking(root, expected).items()]
    if short:
        raise KaggleError("damaged", f"{root}: {'; '.join(short)}. These files can be used; the missing ones may be "
                          f"at the other source ({'kaggle' if source == 'mirror' else 'mirror'})")
    return root


def download_prepared(folder, prepared, collections=None, **more):
    """Download and prepare the collections that a prepared folder lacks, such as one on Google Drive.

    Parameters
    ----------
    folder : str or Path
        For the download; a disk that is lost afterwards is enough.
    prepared : str or Path
        The prepared folder, as for `kit.prepare.prepare`. A collection counts as prepared once all its files are. After
        a stop, collections that are prepared are not downloaded again.
    collections : sequence of str, optional
        None: all five.
    **more
        For `download`.

    Returns
    -------
    Prepared
        Nothing is downloaded if it has all collections.

    Raises
    ------
    DataError, KaggleError, OSError, RuntimeError, ValueError
        As `download` and `prepare` do.
    """
    there = {*open_prepared(prepared).catalogue["collection"]} if is_prepared(prepared) else set()
    lacking = [c for c in (COLLECTIONS if collections is None else collections) if c not in there]
    root = download(folder, lacking, **more) if lacking else None
    for collection in lacking:                                   # each is in the catalogue once it is complete
        prepare(root, prepared, [collection])
    return open_prepared(prepared)


def _lacking(root, expected):
    """{(collection, split): number of files there} of the splits with fewer files than expected."""
    there = {(c, s): len(list(root.joinpath(*c.split(":"), s).glob("[!.]*.npz"))) for c, s in expected}
    return {part: count for part, count in there.items() if count < expected[part]}


def fetch_file(locate, target, timeout=60.0, retries=5, pause=2.0):
    """Download a file to `target`, resuming where an earlier call or attempt was cut; a failure is a KaggleError."""
    # locate: () -> URL, called for each attempt because signed URLs expire; timeout: seconds without a byte;
    # retries: after attempts in a row that brought nothing; pause: seconds before the first, doubling
    target = Path(target)
    part, about = target.with_name(target.name + ".part"), target.with_name(target.name + ".json")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and _said(about).get("size") == target.stat().st_size:
        return target
    furthest = _size(part)

    def attempt():
        nonlocal furthest
        try:
            _fetch_once(locate(), part, about, timeout)
            return True
        except KaggleError as fault:
            if not fault.again or _size(part) <= furthest:
                raise
            furthest = _size(part)
            return False

    patiently = retrying(retries, pause)
    while not patiently(attempt):                # the attempt brought something, so retries are counted anew
        time.sleep(pause)
    os.replace(part, target)
    return target


def _fetch_once(url, part, about, timeout):
    """One attempt; if another attempt may help, its KaggleError has `again` set."""
    name, before = part.name.removesuffix(".part"), _size(part)
    try:
        return _append(url, name, part, about, timeout)
    except requests.HTTPError as fault:
        status, reason = fault.response.status_code, fault.response.reason
        kind = {403: "forbidden", 404: "missing", 410: "missing", 416: "server", 429: "busy"}.get(
            status, "server" if status >= 500 else "refused")
        again = kind in ("server", "busy") or (kind == "forbidden" and before > 0)       # 403: the URL has expired
        if status == 416:                                        # the file there is shorter: another file
            part.unlink(missing_ok=True)
        error = KaggleError(kind, f"{name}: the server answers HTTP {status} {reason}: " + (
            "run it again later, it resumes" if again else "check the address"))
        error.again = again
    except (requests.RequestException, HTTPError, EOFError) as fault:
        while fault.__context__ is not None:                     # the outer ones repeat the URL, which is signed
            fault = fault.__context__
        why = SECRET.sub("***", str(fault) or type(fault).__name__)
        error = KaggleError("host", f"{name}: {why}; check the internet connection (in a Kaggle notebook: Settings, "
                            f"Internet on), then run it again: it resumes after {mb(_size(part))}")
        error.again = True
    except OSError as fault:
        error = KaggleError("disk", f"{part} cannot be written ({fault.strerror}): make room, then run it again")
    raise error                                                  # here, without what it came from


def _append(url, name, part, about, timeout):
    """Ask for the missing bytes, and append them if they are provably of the same file."""
    known = _said(about)
    have = _size(part) if known.get("validator") else 0
    if have and have == known.get("size"):
        return
    headers = {"Range": f"bytes={have}-", "If-Range": known["validator"]} if have else {}
    with requests.get(url, headers={"Accept-Encoding": "identity", **headers}, stream=True, timeout=timeout) as answer:
        answer.raise_for_status()
        length = answer.headers.get("Content-Length")
        if answer.status_code != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0
        size = have + int(length) if length else None
        tag = answer.headers.get("ETag") or ""                   # a weak tag does not promise equal bytes
        if not have:
            validator = tag if tag.startswith('"') else answer.headers.get("Last-Modified")
            about.write_text(json.dumps({"size": size, "validator": validator}))
        if size and size - have > shutil.disk_usage(part.parent).free:
            raise KaggleError("disk", f"{part.parent}: {mb(size - have)} of {name} would not fit; make room")
        answer.raw.enforce_content_length = False                # the length is checked below, in plain words
        with open(part, "ab" if have else "wb") as file, tqdm(total=size, initial=have, desc=name, **BAR) as bar:
            for block in answer.raw.stream(BLOCK, decode_content=False):
                file.write(block)
                bar.update(len(block))
    if size not in (None, _size(part)):
        raise EOFError(f"cut at {_size(part)} of {size} bytes")
    print(f"{name}: {mb(_size(part))} complete", flush=True)


def unpack(archive, root, wanted):
    """Write the npz files of the `wanted` (collection, split) out of a zip or tar -> how many are there now."""
    archive, root = Path(archive), Path(root)
    try:
        if tarfile.is_tarfile(archive):
            with tarfile.open(archive, "r:") as tar:
                members = [(member.name, member.size, member) for member in tar
                           if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)]
                return _write(archive, members, tar.extractfile, root, wanted)
        with zipfile.ZipFile(archive) as outer:
            count = _unzip(archive, outer, root, wanted)
            for info in outer.infolist():
                if info.filename.rpartition("/")[2] == "npz_all.zip":
                    with outer.open(info) as file, zipfile.ZipFile(file) as nested:
                        count += _unzip(archive, nested, root, wanted)
            return count
    except KaggleError:
        raise
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError) as fault:
        raise KaggleError("damaged", f"{archive}: not a readable archive ({fault}); delete it, then run it again"
                          ) from None
    except OSError as fault:
        raise KaggleError("disk", f"{archive}: {root} cannot be written ({fault}): make room, then run it again"
                          ) from None


def _unzip(archive, members, root, wanted):
    """As `_write`, of an open zip."""
    return _write(archive, [(one.filename, one.file_size, one) for one in members.infolist()], members.open, root,
                  wanted)


def _write(archive, members, opened, root, wanted):
    """Write the wanted members, (name, size, handle), that are not there -> how many npz files are there now."""
    # a path is made of the collection, split and stem in a member's name, so nothing is written anywhere else
    found = [(_MEMBER.fullmatch(name), length, handle) for name, length, handle in members]
    chosen = [(root.joinpath(*name[1].split("/"), name[2], name[3]), length, handle) for name, length, handle in found
              if name and (name[1].replace("/", ":"), name[2]) in wanted]
    left = [(path, length, handle) for path, length, handle in chosen if _size(path) != length]
    left += [(root / SAMPLE, length, handle) for name, length, handle in members if name.rpartition("/")[2] == SAMPLE]
    root.mkdir(parents=True, exist_ok=True)
    for path in remove_leftovers(root):
        print(f"note  {path} was half-written; made again", flush=True)
    size = sum(length for _, length, _ in left)
    if size > shutil.disk_usage(root).free:
        raise KaggleError("disk", f"{root}: {mb(size)} of {archive.name} would not fit; make room")
    for path, length, handle in tqdm(left, desc=archive.name, delay=2, mininterval=10):
        with whole_file(path) as part:
            with opened(handle) as source, open(part, "wb") as file:
                shutil.copyfileobj(source, file, BLOCK)          # zipfile checks the checksum at the end
            if part.stat().st_size != length:
                raise EOFError(f"{path.name} is cut")
    return len(chosen)


def _said(about):
    """What the server said of a file; nothing if that note is missing or not whole."""
    try:
        return dict(json.loads(about.read_text()).items())
    except (FileNotFoundError, ValueError, AttributeError, RecursionError):
        return {}


def _size(path):
    """Bytes of a file, 0 where there is none."""
    return path.stat().st_size if path.is_file() else 0


def mb(size):
    """Bytes in words."""
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"
