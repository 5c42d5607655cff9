"""The ready runnables of one query, and which of them a worker takes.

1. Downstream first: a lower rank before a higher one. What is nearest to the sink frees memory.
2. Within a rank a worker prefers its own local queue (what it ran last, or woke: its data are in that core's cache),
   but at most ``LOCAL_IN_A_ROW`` times in a row while others wait; then the one that has waited longest.
3. Whoever has nothing of its own takes what has waited longest, also out of another worker's queue: it steals.
4. Every ``OLDEST_FIRST`` picks the one that has waited longest of all is taken, whatever its rank: nobody starves.

An item is (entry, generation). One whose entry is no longer ready, or was made ready anew, is void and dropped when it
is met: so taking an entry out of the middle costs nothing.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import Generic, TypeVar

from .states import DriverState

LOCAL_IN_A_ROW = 3
OLDEST_FIRST = 61


class Queued:
    """What the queue needs to know of an entry."""

    __slots__ = ("generation", "home", "rank", "state", "ticket")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.state = DriverState.CREATED
        # Raised by each move to and from READY; what a queue holds of an older generation is void.
        self.generation = 0
        # The worker in whose local queue it stands or would stand.
        self.home: int | None = None
        # Its place in the order of arrival, as long as it is READY.
        self.ticket = 0


E = TypeVar("E", bound=Queued)


class RankQueue(Generic[E]):
    """The entries of one rank: one queue per worker, and one of those that belong to none."""

    __slots__ = ("local_in_a_row", "queues")

    def __init__(self) -> None:
        self.queues: dict[int | None, deque[tuple[E, int]]] = {None: deque()}
        self.local_in_a_row = 0

    def push(self, entry: E) -> None:
        queue = self.queues.get(entry.home)
        if queue is None:
            queue = self.queues[entry.home] = deque()
        queue.append((entry, entry.generation))

    def take(self, worker: int | None) -> E | None:
        """The entry for this worker, out of the queue; None if there is none."""
        if len(self.queues) == 1:
            queue = self.queues[None]
            entry = head(queue)
        else:
            own = self.queues.get(worker)
            entry = head(own) if own and self.local_in_a_row < LOCAL_IN_A_ROW else None
            if entry is not None and own is not None:
                self.local_in_a_row += 1
                queue = own
            else:
                self.local_in_a_row = 0
                entry = self.oldest()
                queue = self.queues[entry.home] if entry is not None else self.queues[None]
        if entry is not None:
            queue.popleft()
        return entry

    def oldest(self) -> E | None:
        """The one that has waited longest; it stays in the queue."""
        heads = [entry for queue in self.queues.values() if (entry := head(queue)) is not None]
        return min(heads, key=lambda entry: entry.ticket, default=None)


def head(queue: deque[tuple[E, int]]) -> E | None:
    """The first valid entry; void ones before it are dropped."""
    while queue:
        entry, generation = queue[0]
        if entry.generation == generation and entry.state is DriverState.READY:
            return entry
        queue.popleft()
    return None


class ReadyQueue(Generic[E]):
    """See the module's docstring. ``count`` is the number of READY entries of the query; the core keeps it."""

    __slots__ = ("_order", "_picks", "_ranks", "_tickets", "count")

    def __init__(self) -> None:
        self._ranks: dict[int, RankQueue[E]] = {}
        self._order: list[int] = []
        self._picks = 0
        self._tickets = 0
        self.count = 0

    def push(self, entry: E) -> None:
        queue = self._ranks.get(entry.rank)
        if queue is None:
            queue = self._ranks[entry.rank] = RankQueue()
            insort(self._order, entry.rank)
        self._tickets += 1
        entry.ticket = self._tickets
        queue.push(entry)

    def take(self, worker: int | None) -> E | None:
        """The entry that the worker should run, out of the queue."""
        self._picks += 1
        if self._picks % OLDEST_FIRST == 0:
            return self._take_oldest()
        for rank in self._order:
            entry = self._ranks[rank].take(worker)
            if entry is not None:
                return entry
        return None

    def _take_oldest(self) -> E | None:
        found = [entry for queue in self._ranks.values() if (entry := queue.oldest()) is not None]
        entry = min(found, key=lambda entry: entry.ticket, default=None)
        if entry is not None:
            self._ranks[entry.rank].queues[entry.home].popleft()
        return entry

    def items(self) -> list[tuple[E, int]]:
        """All that it holds, void ones included (for ``validate``)."""
        queues = [queue for rank in self._ranks.values() for queue in rank.queues.values()]
        return [item for queue in queues for item in queue]
