"""A few threads for work that waits for disks, networks or the log; their process may end at any moment.

Why not ``concurrent.futures.ThreadPoolExecutor``: when the main thread of a program ends, it refuses work with an error
and makes the end of the program wait for what was handed in, however long that takes. A script that does not wait for
its job, or is interrupted, should just end.

Rules:

1. Work is begun in the order in which it was submitted. What has not begun when the interpreter ends never will; what
   has begun gets ``EXIT_SECONDS`` to end, all together, so that it is not cut off amid a write.
2. What is submitted after ``close``, or when the interpreter ends, is dropped: nobody waits for it any more.
3. Threads are started when they are needed, and leave when nothing has come for a while.
"""

from __future__ import annotations

import atexit
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Condition, Lock, Thread, current_thread

EXIT_SECONDS = 1.0
IDLE_SECONDS = 30.0
"""A thread that has had nothing to do for so long leaves."""

_log = logging.getLogger(__name__)
_all: weakref.WeakSet[Threads] = weakref.WeakSet()
"""For the end of the process (rule 1)."""


class Threads:
    """See the module's rules. ``count``: how many there are at most; ``name``: the beginning of their names."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        #: guards the fields below; notified when there is work, and at the end
        self._changed = Condition()
        self._queue: deque[Callable[[], object]] = deque()
        self._threads: set[Thread] = set()
        #: those that have left and may not have ended yet
        self._left: set[Thread] = set()
        #: threads that wait for work
        self._idle = 0
        self._closed = False
        _all.add(self)

    def submit(self, work: Callable[[], object]) -> None:
        """Do it on one of the threads. An error that it raises is only logged."""
        with self._changed:
            if self._closed:
                return
            self._queue.append(work)
            if self._idle >= len(self._queue) or len(self._threads) >= self._count:
                self._changed.notify()
                return
            thread = Thread(target=self._serve, name=self._name, daemon=True)
            self._threads.add(thread)
            self._left = {each for each in self._left if each.is_alive()}
            thread.start()

    def allow(self, more: int) -> None:
        """So many more threads at most, or fewer."""
        with self._changed:
            self._count += more

    def close(self, *, wait: bool = True, drop: bool = False) -> None:
        """Take nothing more. ``drop``: forget what has not begun; ``wait``: until the threads have ended."""
        with self._changed:
            self._closed = True
            if drop:
                self._queue.clear()
            self._changed.notify_all()
        if wait:
            self.join(None)

    def join(self, timeout: float | None) -> None:
        """Wait until the threads have ended, for so many seconds at most. Only after ``close``."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            threads = [*self._threads, *self._left]
        for thread in threads:
            if thread is not current_thread():
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                _log.exception("what was handed to a thread of %s has failed", self._name)
            del work  # it may hold much, and the next one may be long in coming

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queue or self._closed, IDLE_SECONDS)
            self._idle -= 1
            if self._queue:
                return self._queue.popleft()
            self._threads.discard(current_thread())
            self._left.add(current_thread())
            return None


class InOrder:
    """Work of one kind for some threads: one piece at a time, in the order in which it was submitted."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._lock = Lock()
        self._queue: deque[Callable[[], object]] = deque()
        #: whether a piece has been given to the threads and has not ended
        self._busy = False

    def submit(self, work: Callable[[], object]) -> None:
        """Do it when all before it has ended."""
        with self._lock:
            self._queue.append(work)
            begins, self._busy = not self._busy, True
        if begins:
            self._threads.submit(self._next)

    def _next(self) -> None:
        with self._lock:
            work = self._queue.popleft()
        try:
            work()
        finally:
            with self._lock:
                goes_on = self._busy = bool(self._queue)
            if goes_on:
                self._threads.submit(self._next)


@atexit.register
def _end_all() -> None:
    """Rule 1. Registered before whatever uses these threads can register anything, so it comes after that."""
    found = list(_all)
    for threads in found:
        threads.close(wait=False, drop=True)
    deadline = time.monotonic() + EXIT_SECONDS
    for threads in found:
        threads.join(max(0.0, deadline - time.monotonic()))


# ------------------------------------------------------------------ background
#
# Threads for work that must wait: disk, network, lookups. They are started when needed and end with the scheduler.

BACKGROUND_THREADS = 16
"""They wait, they do not compute: more of them than cores are right."""


def _and_then(work: Callable[[], None], then: Callable[[], None]) -> None:
    try:
        work()
    finally:
        then()


class BackgroundPool:
    """A pool that exists as long as somebody needs it."""

    def __init__(self, threads: int = BACKGROUND_THREADS) -> None:
        self._threads = threads
        self._lock = Lock()
        self._pool: Threads | None = None
        #: those that were released last
        self._leaving: Threads | None = None

    def submit(self, work: Callable[[], None], *, is_extra: bool = False) -> None:
        """Run it on one of the threads; it must not raise. ``is_extra``: there may be one thread more meanwhile, as it
        may take long and may itself wait for others of the pool."""
        with self._lock:
            if self._pool is None:
                self._pool = Threads(self._threads, "penstock-background")
            if is_extra:
                self._pool.allow(1)
                work = partial(_and_then, work, partial(self._pool.allow, -1))
            self._pool.submit(work)

    def release(self) -> None:
        """Let the threads end when they have done what was submitted; another ``submit`` starts new ones."""
        with self._lock:
            if self._pool is not None:
                self._leaving, self._pool = self._pool, None
                self._leaving.close(wait=False)

    def join(self, timeout: float | None = None) -> None:
        """Wait until those that were released have ended, for so many seconds at most."""
        leaving = self._leaving
        if leaving is not None:
            leaving.join(timeout)
