"""When training has to stop, because its session will end. Kaggle ends a session after 9 to 12 hours."""
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

KAGGLE_HOURS = 8.0               # of at least 9; the rest is for predictions, and for Kaggle to keep the files
now = time.time                  # () -> seconds since 1970; tests replace it
_BEGAN = psutil.Process().create_time()      # all notebooks of a bundle run in one process


class Deadline(NamedTuple):
    """A moment after which training stops."""
    at: float                    # seconds since 1970
    clock: Callable = time.time  # () -> seconds since 1970; processes that train get it, too

    def passed(self):
        """Whether the moment has come."""
        return self.clock() >= self.at


def find_deadline(time_budget=None):
    """When training of this process has to stop -> Deadline, or None: never.

    `time_budget`: hours from the start of this process; None: 8 hours on a machine of Kaggle, elsewhere no limit.
    """
    if time_budget is None and Path("/kaggle/working").is_dir():
        time_budget = KAGGLE_HOURS
    return None if time_budget is None else Deadline(_BEGAN + 3600 * time_budget, now)

