"""When something must happen by itself: wake-ups of waiting runnables, time limits of queries. Data, no clock."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
SLACK = 64


class Timers(Generic[T]):
    """At most one time per target. Those that were replaced or cancelled stay in the heap until they come up, or
    until there are more of them than of the others."""

    def __init__(self) -> None:
        self._at: dict[T, float] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._count = 0

    def set(self, target: T, at: float) -> None:
        if self._at.get(target) == at:
            return
        self._at[target] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, target))
        if len(self._heap) > 2 * len(self._at) + SLACK:
            self._heap = [item for item in self._heap if self._at.get(item[2]) == item[0]]
            heapq.heapify(self._heap)

    def cancel(self, target: T) -> None:
        self._at.pop(target, None)

    def __contains__(self, target: object) -> bool:
        return target in self._at

    def next(self) -> float | None:
        """The earliest time."""
        while self._heap:
            at, _, target = self._heap[0]
            if self._at.get(target) == at:
                return at
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> Iterator[T]:
        """Take out the targets whose time has come."""
        while (at := self.next()) is not None and at <= now:
            _, _, target = heapq.heappop(self._heap)
            del self._at[target]
            yield target
