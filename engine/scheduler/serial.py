"""Degree 0: everything runs on the thread of whoever calls ``turn``, one caller at a time. The same core, no thread.

Other threads may wake, cancel, pause and add at any time. Wake-ups go through a deque that the turn empties, so they
never wait for anything; the rest takes the lock, which a turn does not hold while a runnable runs. ``notify`` is called
after a wake-up that came while no turn was under way, or from another thread: it asks for another ``turn``. What a
cancel has ended is closed by the turn that is under way, or, if there is none, by the canceller.

A quantum lasts ``CALLS_PER_TURN`` questions and costs a nominal ``TURN_COST``, both independent of any clock: given the
same wake-ups, a serial run takes the same steps in the same order. A caller with a mailbox to look after sets a
*slice*: then a turn is over, too, when so many seconds have passed by the scheduler's clock. What is ready stays ready.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from threading import Event, Lock, get_ident
from typing import NamedTuple, TypeVar

from ..core.errors import InternalError
from .core import Core
from .entries import Entry
from .observation import Trace
from .protocol import Failed
from .shell import Shell, close, run

T = TypeVar("T")
CALLS_PER_TURN = 16
"""How often a runnable may ask before its turn is over: a task must get to look at its others."""
TURN_COST = 0.001
"""CPU seconds that a turn is taken to have cost, when several queries share a serial scheduler."""


class Turn(NamedTuple):
    """What a call of ``turn`` did: whether anything ran or was closed, when to call again if nothing happens until then
    (None: never), and whether something is still ready because the quanta or the slice were used up: then the caller
    must come again by itself."""

    progressed: bool
    wake_at: float | None
    more: bool = False


class SerialQuantum:
    """A turn that lasts a number of questions. ``over``: says that the slice is used up."""

    __slots__ = ("_entry", "_left", "_over", "now")

    def __init__(self, entry: Entry, now: float, over: Callable[[], bool]) -> None:
        self._entry = entry
        self._left = CALLS_PER_TURN
        self._over = over
        self.now = now

    def expired(self) -> bool:
        self._left -= 1
        return self._left <= 0 or self._entry.yield_asked or self._over()


class SerialScheduler(Shell):
    """See the module's docstring. ``clock`` is asked where no time is given: it must be the clock of those times."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        notify: Callable[[], None] | None = None,
        trace: Trace | None = None,
    ) -> None:
        super().__init__(Core(1, trace), Lock(), clock)
        self._notify = notify
        # Who has been woken and whose background work is over, since the last look.
        self._woken: deque[Entry] = deque()
        self._over: deque[tuple[Entry, BaseException | None]] = deque()
        # The thread that is in `turn`, if any. It leaves in the same step in which it finds nothing to do: so who comes
        # after knows whether there is somebody to do it.
        self._owner: int | None = None
        # Set by whoever else has woken something.
        self._arrived = Event()

    def turn(self, now: float | None = None, quanta: int | None = None, slice: float | None = None) -> Turn:
        """Run what is ready until nothing is, or until ``quanta`` turns have been given, or until a runnable asks after
        ``slice`` seconds; one gets its turn in any case. ``now``: the time to take for all of it, instead of the
        clock's."""
        with self._lock:
            if self._owner is not None:
                raise InternalError("a serial scheduler was asked for a turn inside of a turn")
            self._owner = get_ident()
        at = self._clock() if now is None else now
        over = _never if slice is None else _after(slice, self._clock)
        given, closings, stopped = 0, 0, quanta == 0
        try:
            while (entry := self._next(at, may_run=not stopped)) is not None:
                if entry.closing:
                    closings += 1
                    self._close(entry, at)
                else:
                    given += 1
                    at = self._run(entry, at, now, over)
                    stopped = given == quanta or over()
        finally:
            if self._owner == get_ident():
                self._owner = None
        with self._lock:
            more = stopped and self._core.shares.active > 0
            return Turn(given + closings > 0, self._core.next_deadline(), more)

    def _next(self, now: float, *, may_run: bool) -> Entry | None:
        """The next to close or to run. None: there is nothing, and this thread is no longer the owner."""
        core = self._core
        while True:
            with self._lock:
                self._take_over(now)
                effects = core.take_effects() if core.effects else None
                if effects is None:
                    entry = core.endings.claim_closing(now) if core.endings.eager else None
                    if entry is None and may_run:
                        entry = core.claim(None, now)
                    if entry is None:
                        self._owner = None
                    return entry
            self.perform(effects)

    def _take_over(self, now: float) -> None:
        """Let the core know what other threads, callbacks and time have brought."""
        core = self._core
        while self._woken:
            core.wake(self._woken.popleft(), now)
        while self._over:
            entry, error = self._over.popleft()
            core.background_over(entry, error, now)
        deadline = core.timers.next()
        if deadline is not None and deadline <= now:
            core.tick(now)

    def _run(self, entry: Entry, at: float, now: float | None, over: Callable[[], bool]) -> float:
        """One turn; returns the time after it."""
        started = time.perf_counter()
        outcome = run(entry, SerialQuantum(entry, at, over))
        entry.cpu += time.perf_counter() - started
        if now is None:
            at = self._clock()
        interrupt = outcome.error if type(outcome) is Failed and not isinstance(outcome.error, Exception) else None
        if interrupt is not None:  # it is the caller's; what the query keeps must not hold its frames
            outcome = Failed(CancelledError(f"{entry.name} was interrupted: {type(interrupt).__name__}"))
        with self._lock:
            self._core.complete(entry, outcome, TURN_COST, at)
        if interrupt is not None:
            raise interrupt
        return at

    def _close(self, entry: Entry, now: float) -> None:
        error = close(entry)
        with self._lock:
            self._core.endings.closed(entry, error, now)
            effects = self._core.take_effects()
        self.perform(effects)

    def change(self, action: Callable[[float], T]) -> T:
        """Outside of a turn there is nobody else to close what a cancel has ended."""
        result = super().change(action)
        while (entry := self._claim_closing()) is not None:
            self._close(entry, self._clock())
        return result

    def _claim_closing(self) -> Entry | None:
        with self._lock:
            if self._owner is not None or not self._core.endings.eager:
                return None
            return self._core.endings.claim_closing(self._clock())

    def wake(self, entry: Entry) -> None:
        self._woken.append(entry)
        self._tell()

    def background_over(self, entry: Entry, error: BaseException | None) -> None:
        self._over.append((entry, error))
        self._tell()

    def _tell(self) -> None:
        if self._owner != get_ident():
            self._arrived.set()
            if self._notify is not None:
                self._notify()

    @property
    def is_awaiting(self) -> bool:
        """Whether background work is under way, or over and not yet told to whoever asked for it."""
        with self._lock:
            return any(entry.outstanding for query in self._core.queries.values() for entry in query.entries)

    def finish(self, future: Future[None], timeout: float) -> bool:
        """Take turns on this thread until ``future`` is resolved; False if it is not within ``timeout`` seconds. If
        nothing is open any more, no thread is left either."""
        until = self._clock() + timeout
        while not future.done() and (left := until - self._clock()) > 0:
            self._arrived.clear()
            if not self.turn().progressed and not future.done() and not self._woken and not self._over:
                self._arrived.wait(left)
        if not self._open:
            self._pool.join(max(0.0, until - self._clock()))
        return future.done()

    def shutdown(self) -> None:
        """Cancel every query, and wait for their background work."""
        self._shut = True
        while self._open:
            for query in list(self._open.values()):
                query.resume()
                query.cancel()
            self._pool.release()
            self._pool.join()
            if self._owner is None:
                self.turn()
        self._pool.release()
        self._pool.join()


def _never() -> bool:
    return False


def _after(slice: float, clock: Callable[[], float]) -> Callable[[], bool]:
    until = clock() + slice
    return lambda: clock() >= until
