"""Files that are whole or not there: written under another name in the same folder, flushed to the disk, renamed.

A process that is killed while it writes leaves NAME as it was, and a hidden .NAME.PID-THREAD.part beside it, which
`remove_leftovers` removes once that process is gone. `locked` lets one process at a time begin.
"""
import errno
import hashlib
import json
import math
import os
import re
import shutil
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

_LEFTOVER = re.compile(r"\.(.+)\.([0-9]+)-[0-9]+\.part")
_CURES = ((("ENOSPC", "EDQUOT", "EFBIG"), "make room, then run it again"),
          (("EROFS", "EACCES", "EPERM"), "give a folder that can be written to"),
          (("ENOTDIR", "EEXIST", "EISDIR"), "move away the file or folder that is in its place"),
          (("ENAMETOOLONG",), "give a shorter name"))
_NO_LOCKS = ("ENOTSUP", "EOPNOTSUPP", "ENOLCK", "EINVAL")       # of file systems without locks


def as_text(path):
    """A path as text that can be printed: bytes that are not UTF-8 are written as escapes."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def part_name(path):
    """What `path` is called while this thread writes it."""
    return Path(path).with_name(f".{Path(path).name}.{os.getpid()}-{threading.get_native_id()}.part")


@contextmanager
def whole_file(path):
    """A temporary path that replaces `path` at the end, safely against a power cut; on failure it is removed."""
    path, part = Path(path), part_name(path)
    try:
        with unwritable_named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            put_in_place(part, path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def unwritable_named(path):
    """If a disk is full or must not be written to, raise an OSError that names `path`, the reason and what helps."""
    try:
        yield
    except OSError as fault:
        cure = next((words for names, words in _CURES if errno.errorcode.get(fault.errno) in names), None)
        if cure is None:
            raise
        raise OSError(fault.errno, f"cannot be written ({os.strerror(fault.errno)}); {cure}", str(path)) from fault


def replace_file(path, text):
    """Write a text as UTF-8, so that `path` is at every moment the old file or the whole new one."""
    with whole_file(path) as part:
        part.write_bytes(text.encode("utf-8"))


def copy_whole(source, place):
    """Copy a file, all or nothing; the two may lie on two disks."""
    with whole_file(place) as part:
        shutil.copyfile(source, part)


def write_json(path, value, indent=1):
    """Write a value as JSON, all or nothing; see `plain`."""
    replace_file(path, json.dumps(plain(value), indent=indent, allow_nan=False) + "\n")


def plain(value):
    """The same value in JSON's types: NumPy numbers as Python's, NaN and infinities as None, other things as text."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "tolist"):                         # a NumPy number or array
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (bool, int, float, type(None))) else str(value)


@contextmanager
def locked(path):
    """Keep other processes and threads out -> None if the lock was taken; else its holder, " (process 4711)" or ""."""
    # The operating system holds the lock, so it ends with its process. PATH.pid names the holder, because Windows
    # lets no other process read a locked file. The holder may remove `path`.
    path, lock = Path(path), FileLock(path, timeout=0)
    note, taken = path.with_name(f"{path.name}.pid"), True
    with unwritable_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            taken = False
        except OSError as fault:
            if errno.errorcode.get(fault.errno) not in _NO_LOCKS:
                raise
    if not taken:
        holder = note.read_text(errors="replace") if note.is_file() else ""
        yield f" (process {holder})" * holder.isdigit()
        return
    try:
        with suppress(OSError):                          # if the disk is full, the next write there reports it
            note.write_text(str(os.getpid()))
        yield None
    finally:
        with suppress(OSError):
            note.unlink()
        lock.release()


def remove_leftovers(folder, name=None):
    """Remove half-written files of processes that are gone, before this process writes there -> their final paths."""
    # name: remove only half-written versions of this file in the folder; None: of all files in the folder and below
    from psutil import pid_exists
    found = []
    for part in sorted(Path(folder).glob("**/.*.part" if name is None else ".*.part")):
        match = _LEFTOVER.fullmatch(part.name)
        # this process has written nothing yet: an earlier process had the same PID, as in a restarted container
        if match and name in (None, match[1]) and (int(match[2]) == os.getpid() or not pid_exists(int(match[2]))):
            with suppress(OSError):                      # another process was faster
                shutil.rmtree(part) if part.is_dir() else part.unlink()
                found.append(part.with_name(match[1]))
    return found


def file_sha256(path):
    """SHA-256 of the bytes of a file, as hex digits."""
    with open(path, "rb") as file:
        return sha256_of(file)


def sha256_of(file):
    """SHA-256 of an open file from its position on, as hex digits; `hashlib.file_digest` needs Python 3.11."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def put_in_place(part, path):
    """Rename a finished file, so that a power cut leaves the old one or all of the new one."""
    with open(part, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    with suppress(OSError):                              # systems that cannot open a folder, such as Windows
        folder = os.open(Path(path).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
