"""How the processes of one command start and end: the first one runs the script and answers Ctrl-C, the others do not.

A terminal sends Ctrl-C to all processes of a command. Start processes in `deaf_children`, and call `follow_parent` in
each of them. Start them in `without_script`, too, unless they need what the user's script defines.
"""
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from contextlib import contextmanager
from multiprocessing import resource_tracker, spawn

_STARTING = threading.Lock()     # what `without_script` changes belongs to all threads


def follow_parent():
    """In a new process: leave Ctrl-C to the process that started this one, and end when it ends, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)         # `deaf_children` is not enough on Windows
    parent = multiprocessing.parent_process().sentinel
    threading.Thread(target=lambda: (multiprocessing.connection.wait([parent]), os._exit(1)), daemon=True).start()


@contextmanager
def deaf_children():
    """Processes that start in the block never notice Ctrl-C, not even while they start (on Windows they do).

    For this process Ctrl-C waits for the end of the block: a process that is started halfway prints errors.
    """
    heard, usual = [], signal.getsignal(signal.SIGINT)                   # None: not Python's own
    here = usual is not None and threading.current_thread() is threading.main_thread()       # which Python interrupts
    if here:
        signal.signal(signal.SIGINT, lambda *_: heard.append(True))
    try:
        with _blocked():
            yield
    finally:
        if here:
            signal.signal(signal.SIGINT, usual)
        if heard:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def without_script():
    """Processes that start in the block do not run the script of this process once more, as Python lets them.

    A script without `if __name__ == "__main__"` would reach the place where it starts processes again and again.
    """
    with _STARTING:
        usual = spawn.get_preparation_data
        spawn.get_preparation_data = lambda name: {key: value for key, value in usual(name).items()
                                                   if not key.startswith("init_main_")}
        try:
            yield
        finally:
            spawn.get_preparation_data = usual


@contextmanager
def _blocked():
    """New processes inherit that SIGINT is blocked; it alone would still reach this process's other threads."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()        # multiprocessing's helper: starting it within would end the deafness
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
