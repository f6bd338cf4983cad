"""Ctrl-C while processes are started: a terminal sends it to all of them, and only the first one shall answer."""
import signal
from contextlib import contextmanager


@contextmanager
def ctrl_c_later():
    """Ctrl-C takes effect at the end of the block; processes that start within never notice it (not on Windows)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})       # a new process inherits it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
