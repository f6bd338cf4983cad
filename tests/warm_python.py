"""A Python in which what the Kaggle client imports is imported already, for tests that start many child processes.

`warm_python(folder, python)` starts a process of that Python, and makes an executable that is used like it. Each use
is a fork of that process, with arguments, folder, environment and standard files of its own; the client itself is
imported there anew, because it reads its settings at import. A use that is killed takes its fork along.
"""
import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

READY = "ready"


def warm_python(folder, python):
    """Start the process -> path of the executable."""
    folder = Path(folder)
    process = subprocess.Popen([python, __file__, "serve", folder], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    atexit.register(process.communicate)         # it ends when its stdin does
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{__file__}" use "{folder}" "$@"\n')
    script.chmod(0o755)
    while not (folder / READY).exists():
        assert process.poll() is None
        time.sleep(0.01)
    return str(script)


def serve(folder):
    """Fork for each use, until the starting process has gone."""
    os.environ.update(KAGGLE_USERNAME="nobody", KAGGLE_KEY="none")
    import kaggle  # noqa: F401
    for name in list(sys.modules):               # what reads its settings at import
        if name.split(".")[0] == "kaggle" or (name.startswith("kagglesdk") and name.count(".") < 2):
            del sys.modules[name]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.join(folder, "socket"))
        server.listen(8)
        Path(folder, READY).touch()
        while True:
            if sys.stdin in select.select([server, sys.stdin], [], [])[0]:
                return
            line, _ = server.accept()
            if not os.fork():
                server.close()
                watch(line)
                os._exit(0)
            line.close()


def watch(line):
    """Run what is asked for in a fork, until that or its user has gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(line, 4, 3)
    asked = json.loads(line.makefile("rb").read(int.from_bytes(size, "big")))
    pid = os.fork()
    if not pid:
        line.close()
        work(asked, files)
    for file in files:
        os.close(file)
    process = os.pidfd_open(pid)
    if line in select.select([line, process], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        line.sendall(bytes([status % 256]))
    except BrokenPipeError:
        pass


def work(asked, files):
    """Become what `python ARGUMENTS` would be."""
    status = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 64)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.argv = asked["arguments"]
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
        sys.stdin = open(0, closefd=False)
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def use(folder, arguments):
    """Ask for a fork, and end as it ends."""
    words = json.dumps({"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(os.path.join(folder, "socket"))
        socket.send_fds(line, [len(words).to_bytes(4, "big")], [0, 1, 2])
        line.sendall(words)
        return int.from_bytes(line.recv(1) or b"\1", "big")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(use(sys.argv[2], sys.argv[3:]))
