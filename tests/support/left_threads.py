"""The threads that jobs in this process run on, and a look whether a test has left some of them.

A reader's thread is not among them: it ends with its reader, or hears within two seconds that its job is over. Nor are
those that an older job starts meanwhile: every thread knows when the first of its ancestors began. The workers of the
scheduler serve all jobs of a process, and stay while there is one.
"""

from __future__ import annotations

import threading
import time

NAMES = tuple(f"penstock-{name}" for name in ("coordinator", "task", "files", "log", "background"))
"""How their names begin."""
PATIENCE = 60.0
"""Seconds in which they end on the most loaded machine."""

_start = threading.Thread.start


def _start_and_tell(thread: threading.Thread) -> None:
    thread.family_began = getattr(threading.current_thread(), "family_began", time.monotonic())  # type: ignore[attr-defined]
    _start(thread)


threading.Thread.start = _start_and_tell  # type: ignore[method-assign]


def job_threads_since(moment: float) -> set[threading.Thread]:
    """Those that are alive and were started behind the moment (``time.monotonic``), not by older ones."""
    found = (thread for thread in threading.enumerate() if thread.name.startswith(NAMES))
    return {thread for thread in found if getattr(thread, "family_began", moment) > moment}


def left_since(moment: float, patience: float = PATIENCE) -> list[str]:
    """The names of those that were started behind the moment and do not end, though they are waited for."""
    until = time.monotonic() + patience
    while (left := job_threads_since(moment)) and time.monotonic() < until:
        time.sleep(0.005)
    return sorted(thread.name for thread in left)
