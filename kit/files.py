"""Files that are whole or not there: written under another name beside their place, flushed to the disk, renamed.

A process that is killed while it writes leaves NAME as it was and a hidden .NAME.PID-THREAD.part beside it, which
`remove_leftovers` clears away once that process is gone. Where two must not even begin, `locked` lets in one.
"""
import errno
import json
import math
import os
import re
import shutil
import threading
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

LEFTOVER = re.compile(r"\.(.+)\.([0-9]+)(?:-[0-9]+)?\.part")
CURES = ((("ENOSPC", "EDQUOT", "EFBIG"), "make room, then run it again"),
         (("EROFS", "EACCES", "EPERM"), "give a folder that can be written to"),
         (("ENAMETOOLONG",), "give a shorter name"))


def part_name(path):
    """What `path` is called while this thread writes it."""
    return Path(path).with_name(f".{Path(path).name}.{os.getpid()}-{threading.get_native_id()}.part")


@contextmanager
def whole_file(path):
    """A temporary path that takes the place of `path` once it is written; folders above it are made.

    Parameters
    ----------
    path : str or Path

    Yields
    ------
    Path
        Write it and leave the context: until then `path` stays what it was, from then on it is the new file, also
        after a power cut. If the writing fails, nothing of it stays.

    Raises
    ------
    OSError
        If it cannot be written: names the file, the reason and what helps.
    """
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
    """Say of a disk that is full or must not be written to which file or folder met it, and what helps.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    OSError
        In place of such an error, of the same number.
    """
    try:
        yield
    except OSError as fault:
        cure = next((words for names, words in CURES if errno.errorcode.get(fault.errno) in names), None)
        if cure is None:
            raise
        raise OSError(fault.errno, f"cannot be written ({os.strerror(fault.errno)}); {cure}", str(path)) from fault


def replace_file(path, text):
    """Write a text so that `path` is at every moment the old file or the whole new one.

    Parameters
    ----------
    path : str or Path
        Folders above it are made.
    text : str
        Written as UTF-8, line ends as they are.

    Raises
    ------
    OSError
        As of `whole_file`.
    """
    with whole_file(path) as part:
        part.write_bytes(text.encode("utf-8"))


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
    """Keep other processes and threads from doing the same. The system holds the lock: it ends with this process.

    Parameters
    ----------
    path : str or Path
        A file for the lock alone, which says who has it; folders above it are made. Whoever has it may remove it.

    Yields
    ------
    str or None
        None: it is this one's until the context is left. Else who has it, for a message: " (process 4711)", or ""
        where that process is just starting.

    Raises
    ------
    OSError
        If it cannot be written: names the file, the reason and what helps.
    """
    path = Path(path)
    with unwritable_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+", errors="replace")
    with file:
        if _has_taken(file) and _is_called(file, path):
            with suppress(OSError):                      # a full disk: what is to be written there will tell
                file.truncate(0)
                os.write(file.fileno(), str(os.getpid()).encode())
            yield None
        else:
            file.seek(0)
            holder = file.read()                         # half-written, if that process is just starting
            yield f" (process {holder})" * holder.isdigit()


def _has_taken(file):
    """Lock an open file, until it is closed -> False where another has it."""
    try:
        import fcntl
    except ImportError:                                  # Windows
        import msvcrt
        file.seek(1 << 30)                               # what is locked cannot be read, so not where the text is
        lock_it = partial(msvcrt.locking, file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        lock_it = partial(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        lock_it()
    except OSError as fault:                             # ENOTSUP and the like: this file system has no locks
        return fault.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
    return True


def _is_called(file, path):
    """Whether an open file is still the one of that name: who had the lock may have removed it meanwhile."""
    try:                                                 # Windows removes no open file
        return os.name == "nt" or os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def remove_leftovers(folder, name=None):
    """Remove what processes that are gone left half-written; to be called before this one writes there.

    Parameters
    ----------
    folder : str or Path
    name : str, optional
        Only of what is called so in this folder. None: of everything in it and below.

    Returns
    -------
    list of Path
        What was being written; what stands there now, if anything, is the whole one before.
    """
    from psutil import pid_exists
    found = []
    for part in sorted(Path(folder).glob("**/.*.part" if name is None else ".*.part")):
        match = LEFTOVER.fullmatch(part.name)
        # this process has nothing open yet: its number was another's, as in a restarted container
        if match and name in (None, match[1]) and (int(match[2]) == os.getpid() or not pid_exists(int(match[2]))):
            with suppress(OSError):                      # another process was faster
                shutil.rmtree(part) if part.is_dir() else part.unlink()
                found.append(part.with_name(match[1]))
    return found


def put_in_place(part, path):
    """Rename a finished file, so that a power cut leaves the old one or all of the new one."""
    with open(part, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    with suppress(OSError):                              # of systems that cannot open a folder, as Windows
        folder = os.open(Path(path).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
