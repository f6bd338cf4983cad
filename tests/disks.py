"""File systems of a test's own: small ones that fill up, and ones that must not be written to."""
import contextlib
import shutil
import subprocess

import pytest


@contextlib.contextmanager
def mounted(kind, folder, *options):
    """A mount that is there for a while; skips where this process must not mount."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, kind, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this process must not mount ({done.stderr.strip()}); the other form of this fault is tested")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder, but=4096):
    """Take what a file system has left, but for some bytes -> the file that holds it."""
    (folder / ".filler").write_bytes(bytes(max(shutil.disk_usage(folder).free - but, 0)))
    return folder / ".filler"
