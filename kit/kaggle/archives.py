"""Large files over an unreliable line, and archives that are not trusted: resume, verify, unpack only what is asked.

A file is called by its name once it is whole; until then NAME.part holds what came, and NAME.json what the server
said of it (size, validator), so that a later call goes on where this one was cut.
"""
import errno
import http.client
import json
import os
import re
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path

from kit.files import remove_leftovers, whole_file
from kit.kaggle.client import KaggleError

BLOCK = 1 << 20                  # bytes read at a time
LINE_EVERY = 10.0                # s between lines of progress
MEMBER = re.compile(r"(?:[^/]+/)*(tile/xla|layout/(?:xla|nlp)/(?:random|default))/(train|valid|test)/"
                    r"([^./\\:][^/\\:]*\.npz)")
GROWTH = 10                      # npz is compressed already: what unpacks to ten times its size is no data set


def fetch_file(locate, target, timeout=60.0, retries=5, pause=2.0, most=None):
    """Download a file, going on where an earlier call or attempt was cut.

    Parameters
    ----------
    locate : callable
        () -> URL, asked anew for every attempt: signed ones expire.
    target : str or Path
        The file; folders above it are made.
    timeout : float
        Seconds without a byte after which an attempt is over.
    retries : int
        Attempts in a row that may bring nothing after the first.
    pause : float
        Seconds before the first of them, doubling.
    most : int, optional
        Bytes that it may have.

    Returns
    -------
    Path
        `target`, of the size that the server said.

    Raises
    ------
    KaggleError
        "missing", "forbidden", "refused", "busy", "server" or "host" by what the server answers, "disk" if it would
        not fit, "damaged" if it is larger than `most`. What came so far stays.
    """
    target, failed, furthest = Path(target), 0, 0
    part, about = target.with_name(target.name + ".part"), target.with_name(target.name + ".json")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and _said(about).get("size") == target.stat().st_size:
        return target
    while True:
        before = _size(part)
        try:
            _fetch_once(locate(), target.name, part, about, timeout, most)
            os.replace(part, target)
            return target
        except urllib.error.HTTPError as fault:
            fault.close()
            kind = {403: "forbidden", 404: "missing", 410: "missing", 416: "server", 429: "busy"}.get(
                fault.code, "server" if fault.code >= 500 else "refused")
            hopeless = kind in ("missing", "refused") or (kind == "forbidden" and not before)
            error = KaggleError(kind, f"{target.name}: the server answers HTTP {fault.code} {fault.reason}: " + (
                "check the address" if hopeless else "run it again later, it goes on where it stopped"))
            if hopeless:
                raise error from None
            if fault.code == 416:                                # more is here than there: not the same file
                part.unlink(missing_ok=True)
        except (OSError, EOFError, http.client.HTTPException) as fault:
            if getattr(fault, "errno", None) == errno.ENOSPC or getattr(fault, "filename", None):
                raise KaggleError("disk", f"{part} cannot be written ({fault.strerror}): make room, then run it "
                                  "again") from None
            why = getattr(fault, "reason", None) or str(fault) or type(fault).__name__       # reason: of a URLError
            error = KaggleError("host", f"{target.name}: {why}; check the internet connection (in a Kaggle notebook: "
                                f"Settings, Internet on), then run it again: it goes on after {_mb(_size(part))}")
        failed, furthest = 0 if _size(part) > furthest else failed + 1, max(furthest, _size(part))
        if failed > retries:
            raise error from None
        time.sleep(min(pause * 2 ** max(failed - 1, 0), 60))


def unpack(archive, root, wanted):
    """Write the npz files of some splits out of a zip or tar; every other member stays packed.

    Names are made from what they say of collection, split and stem, so nothing is written anywhere else; an archive
    that tries to, has links, or grows beyond reason is refused before anything is written. Files that are there
    with the right size are kept.

    Parameters
    ----------
    archive : str or Path
        npz_all.zip, a zip that holds it, or one of the mirror's tars.
    root : str or Path
        Gets tile/ and layout/, and sample_submission.csv where the archive has it.
    wanted : sequence of (str, str)
        (collection, split).

    Returns
    -------
    int
        Files that are there now.

    Raises
    ------
    KaggleError
        "damaged" if the archive cannot be read or is not trusted, "disk" if its files would not fit.
    """
    archive, root = Path(archive), Path(root)
    try:
        if tarfile.is_tarfile(archive):
            with tarfile.open(archive, "r:") as tar:
                members = [(m.name, m.size, m.type in (tarfile.REGTYPE, tarfile.AREGTYPE), m) for m in tar
                           if not m.isdir()]
                return _write(archive, members, tar.extractfile, root, wanted)
        with zipfile.ZipFile(archive) as outer:
            inner = [i for i in outer.infolist() if i.filename.rpartition("/")[2] == "npz_all.zip"]
            count = _write(archive, _zip_members(outer), outer.open, root, wanted)
            for info in inner:
                with outer.open(info) as file, zipfile.ZipFile(file) as nested:
                    count += _write(archive, _zip_members(nested), nested.open, root, wanted)
            return count
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError) as fault:
        if hasattr(fault, "kind"):                               # it is a KaggleError
            raise
        raise KaggleError("damaged", f"{archive}: not a readable archive ({fault}); delete it, then run it again"
                          ) from None
    except OSError as fault:
        if fault.errno == errno.ENAMETOOLONG:
            raise KaggleError("damaged", f"{archive}: has a member whose name is too long for a file; this is not the "
                              "data set, delete it") from None
        raise KaggleError("disk", f"{archive}: {root} cannot be written ({fault}): make room, then run it again"
                          ) from None


def _fetch_once(url, name, part, about, timeout, most):
    """One attempt: ask for what is missing, append only to what is provably the same file."""
    known = _said(about)
    have = _size(part) if known.get("validator") else 0
    if have and have == known.get("size"):
        return
    headers = {"Range": f"bytes={have}-", "If-Range": known["validator"]} if have else {}
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **headers})
    opener = urllib.request.build_opener()                       # urlopen's own keeps the proxies of its first call
    with opener.open(request, timeout=timeout) as answer:
        length = answer.headers.get("Content-Length")
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0
        size = have + int(length) if length else None
        tag = answer.headers.get("ETag") or ""                   # a weak one says nothing of bytes
        validator = tag if tag.startswith('"') else answer.headers.get("Last-Modified")
        if not have:
            about.write_text(json.dumps({"size": size, "validator": validator}))
        if most is not None and max(size or 0, have) > most:
            raise KaggleError("damaged", f"{name}: has {_mb(size)}; expected at most {_mb(most)}")
        if size and size - have > shutil.disk_usage(part.parent).free:
            raise KaggleError("disk", f"{part.parent}: {_mb(size - have)} of {name} would not fit; make room")
        start, shown, first = time.monotonic(), time.monotonic(), have
        with open(part, "ab" if have else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                have += len(block)
                if most is not None and have > most:             # the server had not said how much it is
                    raise KaggleError("damaged", f"{name}: has more than {_mb(most)}, at most that was expected")
                if time.monotonic() - shown > LINE_EVERY:
                    shown = time.monotonic()
                    rate = (have - first) / (shown - start)
                    left = f", {(size - have) / rate:.0f} s left" if size else ""
                    print(f"{name}: {_mb(have)}{f' of {_mb(size)}' if size else ''}, {_mb(rate)}/s{left}", flush=True)
    if size is not None and have != size:
        raise EOFError(f"cut at {have} of {size} bytes")
    print(f"{name}: {_mb(have)} complete", flush=True)


def _zip_members(archive):
    """[(name, size, whether it is a plain file, handle)] of a zip."""
    return [(i.filename, i.file_size, (i.external_attr >> 28) in (0, 8), i) for i in archive.infolist()   # 8: S_IFREG
            if not i.is_dir()]


def _write(archive, members, opened, root, wanted):
    """Check all members, then write the wanted ones -> how many npz files there are."""
    chosen, size = [], 0
    for name, length, plain, handle in members:
        if not plain or name.startswith("/") or "\\" in name or ".." in name.split("/"):
            raise KaggleError("damaged", f"{archive}: member {name[:120]!r} is a link or leaves the folder; this "
                              "is not the data set, delete it")
        found = MEMBER.fullmatch(name)
        if found and (found[1].replace("/", ":"), found[2]) in wanted:
            chosen.append((root.joinpath(*found[1].split("/"), found[2], found[3]), length, handle))
        elif name.rpartition("/")[2] == "sample_submission.csv":
            chosen.append((root / "sample_submission.csv", length, handle))
        else:
            continue
        size += length
    if size > GROWTH * archive.stat().st_size + BLOCK:
        raise KaggleError("damaged", f"{archive}: {_mb(archive.stat().st_size)} would become {_mb(size)}; this is not "
                          "the data set, delete it")
    left = [c for c in chosen if not (c[0].is_file() and c[0].stat().st_size == c[1])]
    root.mkdir(parents=True, exist_ok=True)
    for path in remove_leftovers(root):
        print(f"note  {path} was half-written; made again", flush=True)
    if sum(c[1] for c in left) > shutil.disk_usage(root).free:
        raise KaggleError("disk", f"{root}: {_mb(sum(c[1] for c in left))} of {archive.name} would not fit; make room")
    shown = time.monotonic()
    for number, (path, length, handle) in enumerate(left, 1):
        with whole_file(path) as part:
            with opened(handle) as source, open(part, "wb") as file:
                shutil.copyfileobj(source, file, BLOCK)      # zipfile checks the checksum at the end
            if part.stat().st_size != length:
                raise EOFError(f"{path.name} is cut")
        if time.monotonic() - shown > LINE_EVERY:
            shown = time.monotonic()
            print(f"{archive.name}: {number} of {len(left)} files unpacked", flush=True)
    return sum(c[0].suffix == ".npz" for c in chosen)


def _said(about):
    """What the server said of a file; nothing where that was not written to its end."""
    try:
        return dict(json.loads(about.read_text()).items())
    except (FileNotFoundError, ValueError, AttributeError, RecursionError):
        return {}


def _size(path):
    """Bytes of a file, 0 where there is none."""
    return path.stat().st_size if path.is_file() else 0


def _mb(size):
    """Bytes in words."""
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"
