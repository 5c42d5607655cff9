"""Threads for work that must wait: disk, network, lookups. They are started when needed and end with the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from .threads import Threads

BACKGROUND_THREADS = 16
"""They wait, they do not compute: more of them than cores are right."""


class BackgroundPool:
    """A pool that exists as long as somebody needs it."""

    def __init__(self, threads: int = BACKGROUND_THREADS) -> None:
        self._threads = threads
        self._lock = Lock()
        self._pool: Threads | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Run it on one of the threads; it must not raise."""
        with self._lock:
            if self._pool is None:
                self._pool = Threads(self._threads, "penstock-background")
            self._pool.submit(work)

    def release(self, *, wait: bool) -> None:
        """Let the threads end when they have done what was submitted; another ``submit`` starts new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(wait=wait)
