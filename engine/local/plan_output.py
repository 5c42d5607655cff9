"""What leaves a plan: batches and barriers in their order, and whoever waits for the next one.

Rules:

1. ``put`` is called by the thread that runs the end of the plan, everything else from any thread.
2. Whoever ``waits`` is woken by everything that happens, and looks again: a wake-up promises nothing. What has happened
   between his look and his waiting wakes him at once: hence he says what he had ``seen`` before he looked.
3. A window that nobody reads to its end is *skipped*: what is left of it is dropped, here as soon as it comes.
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
        #: numbers of windows: of what is put next, of what is taken next, and the last one that is skipped
        self._coming = self._leaving = 1
        self._skipped = 0
        #: who waits for the next thing to happen
        self._waiting: list[Future[None]] = []
        #: grows with everything that happens
        self.seen = 0

    def __len__(self) -> int:
        return len(self._queue)

    def has_room(self) -> bool:
        """Whether another batch is welcome; of a window that is skipped always."""
        return len(self._queue) < self._room or self._coming <= self._skipped

    def put(self, found: pa.RecordBatch | WindowStatistics) -> None:
        """A batch or a barrier has left the plan."""
        with self._lock:
            is_skipped = self._coming <= self._skipped
            if isinstance(found, WindowStatistics):
                self._coming = found.barrier + 1
            if is_skipped:
                self._leaving = self._coming
            else:
                self._queue.append(found)
        self.wake()

    def take(self) -> tuple[pa.RecordBatch | WindowStatistics, bool]:
        """The oldest, and whether that has made room."""
        with self._lock:
            return self._pop(), len(self._queue) == self._room - 1

    def _pop(self) -> pa.RecordBatch | WindowStatistics:
        found = self._queue.popleft()
        if isinstance(found, WindowStatistics):
            self._leaving = found.barrier + 1
        return found

    def skip(self, window: int) -> bool:
        """Nobody reads what is left of the window and of those before it. Whether that has made room."""
        with self._lock:
            was_full = not self.has_room()
            self._skipped = max(self._skipped, window)
            while self._queue and self._leaving <= window:
                self._pop()
            return was_full and self.has_room()

    def is_gone(self, window: int) -> bool:
        """Whether the window has been read to its end, or what is left of it is dropped."""
        return window <= self._skipped or window < self._leaving

    def waits(self, seen: int) -> Future[None]:
        """A future that is resolved when something happens, or has happened since so much was ``seen``."""
        future: Future[None] = Future()
        with self._lock:
            if self.seen == seen:
                self._waiting.append(future)
                return future
        resolve(future)
        return future

    def wake(self) -> None:
        """Something has happened."""
        with self._lock:
            self.seen += 1
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            resolve(future)

    def clear(self) -> None:
        """Nobody will read what is left."""
        self._queue.clear()
