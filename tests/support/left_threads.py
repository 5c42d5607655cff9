"""The threads that jobs in this process run on, and a look whether a test has left some of them.

A reader's thread is not among them: it ends with its reader, or hears within two seconds that its job is over.
"""

from __future__ import annotations

import threading
import time

NAMES = tuple(f"penstock-{name}" for name in ("coordinator", "task", "files", "log", "worker", "background"))
"""How their names begin."""
PATIENCE = 60.0
"""Seconds in which they end on the most loaded machine."""


def job_threads() -> set[threading.Thread]:
    """Those that are alive."""
    return {thread for thread in threading.enumerate() if thread.name.startswith(NAMES)}


def left_since(before: set[threading.Thread], patience: float = PATIENCE) -> list[str]:
    """The names of those that were not there ``before`` and do not end, though they are waited for."""
    until = time.monotonic() + patience
    while (left := job_threads() - before) and time.monotonic() < until:
        time.sleep(0.005)
    return sorted(thread.name for thread in left)
