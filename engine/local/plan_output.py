"""What leaves a plan: batches and barriers in their order, and whoever waits for the next one.

Rules:

1. ``put`` is called by the thread that runs the end of the plan, everything else from any thread.
2. Whoever ``waits`` is woken by everything that happens, and looks again: a wake-up promises nothing.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from threading import Lock

import pyarrow as pa

from ..core.futures import resolve
from ..runtime.statistics import WindowStatistics

OUTPUT_BATCHES = 8
"""Batches that a plan with threads of its own may be ahead of its reader."""

SERIAL_BATCHES = 4
"""The same for one that runs on its reader's thread: a turn costs more than a small batch."""


class PlanOutput:
    """See the rules above. ``room``: how many batches may be there before the reader takes one."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._lock = Lock()
        self._queue: deque[pa.RecordBatch | WindowStatistics] = deque()
        #: who waits for the next thing to happen
        self._waiting: list[Future[None]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def has_room(self) -> bool:
        """Whether another batch is welcome."""
        return len(self._queue) < self._room

    def put(self, found: pa.RecordBatch | WindowStatistics) -> None:
        """A batch or a barrier has left the plan."""
        self._queue.append(found)
        self.wake()

    def take(self) -> tuple[pa.RecordBatch | WindowStatistics, bool]:
        """The oldest, and whether that has made room."""
        found = self._queue.popleft()
        return found, len(self._queue) == self._room - 1

    def waits(self) -> Future[None]:
        """A future that is resolved when something happens."""
        future: Future[None] = Future()
        with self._lock:
            self._waiting.append(future)
        return future

    def wake(self) -> None:
        """Something has happened."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            resolve(future)

    def clear(self) -> None:
        """Nobody will read what is left."""
        self._queue.clear()
