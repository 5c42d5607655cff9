"""A cache of bounded size for what is read from files, used by several threads.

Rules:

1. What has not been used for longest leaves first. The last one that came stays, however large it is.
2. What two threads want at once is read once; the second waits for the first. If reading fails, whoever waited tries
   by itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Event, Lock
from typing import Any


class Cache:
    """Holds about ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        #: key -> (value, bytes), the one used last at the end
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        #: what is being read now, and the events of those who wait for it
        self._reading: dict[Hashable, Event] = {}

    @property
    def nbytes(self) -> int:
        """The bytes held now."""
        return self._bytes

    def get(self, key: Hashable, read: Callable[[], tuple[Any, int]]) -> Any:
        """The value of ``key``; ``read`` gives it, and its size, if it is not held."""
        while True:
            with self._lock:
                if key in self._held:
                    self._held.move_to_end(key)
                    return self._held[key][0]
                waiting = self._reading.get(key)
                if waiting is None:
                    self._reading[key] = Event()
                    break
            waiting.wait()
        return self._read(key, read)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._held.clear()
            self._bytes = 0

    def _read(self, key: Hashable, read: Callable[[], tuple[Any, int]]) -> Any:
        try:
            value, size = read()
            with self._lock:
                self._held[key] = (value, size)
                self._bytes += size
                while self._bytes > self._limit and len(self._held) > 1:
                    _, (_, dropped) = self._held.popitem(last=False)
                    self._bytes -= dropped
            return value
        finally:
            with self._lock:
                self._reading.pop(key).set()
