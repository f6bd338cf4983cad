"""Ctrl-C, which a terminal sends to all processes of a command: only the first process shall answer."""
import signal
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def deaf_children():
    """Processes that start in the block never notice Ctrl-C, not even while they start (not on Windows)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()        # multiprocessing's helper: starting it within would end the deafness
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})       # a new process inherits it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
