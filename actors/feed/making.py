"""What a training loop is given of each slice, made ahead of the loop by threads.

Rules:

1. A slice is made into a batch only when it has been fetched: nothing waits here for a feed server.
2. Batches are handed out in the order of the slices, however many threads make them. What was made ahead has not been
   taken: position, state and models count what was handed out.
3. The first step of making, in which a slice may take its shapes from the one before (``arrays``), is done in the order
   of the slices. The rest, in which a user's function may be called, is done by several threads at once.
4. What goes wrong on a thread is raised when the loop comes to that slice.
5. At most ``threads + 1`` batches are made and not handed out, none of them of the next epoch, and none that is
   skipped: what a slice takes from the one before does not depend on how much was there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Generic, TypeVar

import pyarrow as pa

from ...engine.feed.messages import Slice

F = TypeVar("F")
T = TypeVar("T")
Fetched = Slice[pa.RecordBatch]


class MadeAhead(Generic[F, T]):
    """See the module's rules. ``first``, then ``rest``, make a batch; ``fetched``: so many slices at most that are
    there and come next; ``skips``: whether a batch is not handed out."""

    def __init__(
        self,
        first: Callable[[Fetched], F],
        rest: Callable[[F], T],
        fetched: Callable[[int], Sequence[Fetched]],
        skips: Callable[[int], bool],
        threads: int,
    ) -> None:
        self._first, self._rest, self._fetched, self._skips = first, rest, fetched, skips
        self._most = threads + 1
        self._pool = ThreadPoolExecutor(threads, "penstock-feed-making") if threads else None
        self._begun: deque[tuple[Fetched, Future[T]]] = deque()
        #: the first step of the slice that was begun last is over
        self._over = Event()
        self._over.set()

    def of(self, found: Fetched) -> T:
        """What is made of the slice that comes next; those behind it are begun with."""
        pool = self._pool
        if pool is None:
            return self._rest(self._first(found))
        while self._begun and self._begun[0][0] is not found:
            self._begun.popleft()  # another iteration was given it
        if not self._begun:
            self._begin(pool, found)
        for slice in list(self._behind(found))[len(self._begun) - 1 :]:
            self._begin(pool, slice)
        return self._begun.popleft()[1].result()

    def _behind(self, found: Fetched) -> Iterator[Fetched]:
        """What is there and comes after it in its epoch."""
        if found.last:
            return
        for slice in self._fetched(self._most):
            if not self._skips(slice.batch):
                yield slice
            if slice.last:
                return

    def _begin(self, pool: ThreadPoolExecutor, slice: Fetched) -> None:
        before, self._over = self._over, Event()
        self._begun.append((slice, pool.submit(self._make, slice, before, self._over)))

    def _make(self, slice: Fetched, before: Event, over: Event) -> T:
        before.wait()  # it is begun before this one, and waits for none behind it
        try:
            found = self._first(slice)
        finally:
            over.set()
        return self._rest(found)

    def close(self) -> None:
        """Forget what was made ahead."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._begun.clear()
