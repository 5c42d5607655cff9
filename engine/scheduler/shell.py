"""What the three schedulers have in common: the way into the core and out of it, and the face of a query.

``change`` is the only way in, but for the turns themselves: under the lock it calls the core, takes what the core wants
done outside, and lets the shell see whether a thread must be unparked; after the lock it does what the core wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager
from functools import partial
from threading import local
from typing import Any, Self, TypeVar

from ..core.errors import InternalError
from .core import Core
from .entries import Effect, Entry, Halted, QueryEntry, Report, ShareEntry
from .observation import why
from .protocol import Failed, Handle, Outcome, Places, Quantum, Query, QueryOpener, QueryStatistics, Runnable, Share
from .threads import BackgroundPool

T = TypeVar("T")


class _Here(local):
    """The queries in whose code this thread is: a runnable's, background work's, their owners'. Outermost first."""

    queries: tuple[QueryEntry, ...] = ()


_here = _Here()


def is_inside() -> bool:
    """Whether this thread is in the code of any query. It must not wait for the end of one: it may be what holds it."""
    return bool(_here.queries)


def places() -> Places:
    """Where this thread is, for ``Query.was_entered``."""
    return _here.queries


class _Inside:
    """This thread is in the code of a query meanwhile."""

    __slots__ = ("_before", "_query")

    def __init__(self, query: QueryEntry) -> None:
        self._query = query

    def __enter__(self) -> None:
        self._before = _here.queries
        _here.queries = (*self._before, self._query)

    def __exit__(self, *error: object) -> None:
        _here.queries = self._before


OnFailure = Callable[[Handle | None, BaseException], None]


class Shell:
    """A core and the threads around it; see ``protocol.Scheduler`` for what is public."""

    def __init__(self, core: Core, lock: AbstractContextManager[Any], clock: Callable[[], float]) -> None:
        self._core = core
        self._lock = lock
        self._clock = clock
        self._pool = BackgroundPool()
        self._open: dict[int, OpenQuery] = {}
        self._shut = False

    def open(
        self,
        name: str,
        *,
        on_failure: OnFailure | None = None,
        on_closed: Callable[[], None] | None = None,
    ) -> Query:
        return self.share(Share()).open(name, on_failure=on_failure, on_closed=on_closed)

    def share(self, share: Share) -> QueryOpener:
        record = self.change(lambda now: self._core.open_share(share.group, share.weight, share.degree))
        return OpenShare(self, record, share.timeout)

    def open_in(
        self,
        share: ShareEntry,
        timeout: float | None,
        name: str,
        on_failure: OnFailure | None,
        on_closed: Callable[[], None] | None,
    ) -> Query:
        """A new query of a share."""

        def opened(now: float) -> OpenQuery:
            if self._shut:
                raise InternalError(f"query {name} was opened on a scheduler that is shut down")
            record = self._core.open(name, share, timeout)
            query = self._open[record.number] = OpenQuery(self, record, on_failure, on_closed)
            return query

        return self.change(opened)

    def set_group(self, name: str, *, weight: float = 1.0, cap: float | None = None) -> None:
        if weight <= 0 or (cap is not None and cap <= 0):
            raise ValueError(f"group {name}: weight {weight} and cap {cap} must be above 0")
        self.change(lambda now: self._core.shares.set_group(name, weight, cap, now))

    def change(self, action: Callable[[float], T]) -> T:
        """Call the core and do what it wants done afterwards."""
        with self._lock:
            result = action(self._clock())
            effects = self._core.take_effects()
            self.unpark()
        self.perform(effects)
        return result

    def unpark(self) -> None:
        """Under the lock, after a change: unpark threads that now have something to do."""

    def perform(self, effects: Sequence[Effect]) -> None:
        """Do what the core wants done, outside the lock."""
        for effect in effects:
            if isinstance(effect, Halted):
                for future in effect.futures:
                    resolve(future)
                continue
            query = self._open[effect.query.number]
            if isinstance(effect, Report):
                with _Inside(effect.query):
                    query.notify_failure(effect.entry, effect.error)
                self.change(partial(self._core.endings.reported, effect.query))
            else:
                with _Inside(effect.query):
                    query.notify_closed()
                with self._lock:
                    self.forget(query)
                resolve(query.closed)

    def forget(self, query: OpenQuery) -> None:
        """The query is over, and its owner knows; under the lock."""
        self._core.forget(query.record)
        del self._open[query.record.number]
        if not self._open:
            self._pool.release()

    def wake(self, entry: Entry) -> None:
        """``Handle.wake``."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """Cancel every query, and wait until nothing is left of them."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    # ------------------------------------------------------------------ work that waits

    def background(
        self, entry: Entry, work: Callable[[], Any], done: Callable[[Any], None], *, is_long: bool = False
    ) -> None:
        """``Query.background``."""
        self.change(lambda now: self._core.background_started(entry))
        self._pool.submit(partial(self._run_background, entry, work, done), is_extra=is_long)

    def _run_background(self, entry: Entry, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        with _Inside(entry.query):
            error = perform_background(entry, work, done)
        self.background_over(entry, error)

    def background_over(self, entry: Entry, error: BaseException | None) -> None:
        """On a background thread: the work and its callback are over."""
        self.change(lambda now: self._core.background_over(entry, error, now))


def perform_background(entry: Entry, work: Callable[[], Any], done: Callable[[Any], None]) -> BaseException | None:
    """Do the work and call back; what the callback raises is returned."""
    answer: Any
    if entry.query.ending:
        answer = CancelledError(f"query {entry.query.name} has ended")
    else:
        try:
            answer = work()
        except BaseException as error:
            answer = error
    try:
        done(answer)
    except BaseException as error:
        return error
    return None


def run(entry: Entry, quantum: Quantum) -> Outcome:
    """One turn of a claimed runnable."""
    try:
        with _Inside(entry.query):
            if not entry.opened:
                entry.opened = True
                entry.runnable.open()
            return entry.runnable.run(quantum)
    except BaseException as error:
        return Failed(error)


def close(entry: Entry) -> BaseException | None:
    """Close a runnable that was claimed for that; what it raises although it must not is returned."""
    try:
        with _Inside(entry.query):
            entry.runnable.close()
    except BaseException as error:
        return error
    return None


def resolve(future: object) -> None:
    """Tell who waits for it; a future that its holder has cancelled is left alone."""
    assert isinstance(future, Future)
    if future.set_running_or_notify_cancel():
        future.set_result(None)


class OpenShare:
    """``protocol.QueryOpener`` over a share's record in the core."""

    def __init__(self, shell: Shell, record: ShareEntry, timeout: float | None) -> None:
        self._shell, self._record, self._timeout = shell, record, timeout

    def open(
        self,
        name: str,
        *,
        on_failure: OnFailure | None = None,
        on_closed: Callable[[], None] | None = None,
    ) -> Query:
        return self._shell.open_in(self._record, self._timeout, name, on_failure, on_closed)


class OpenQuery:
    """``protocol.Query`` over a record of the core."""

    def __init__(
        self,
        shell: Shell,
        record: QueryEntry,
        on_failure: OnFailure | None,
        on_closed: Callable[[], None] | None,
    ) -> None:
        self._shell = shell
        self._core = shell._core
        self.record = record
        self._on_failure = on_failure
        self._on_closed = on_closed
        self.closed: Future[None] = Future()

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def error(self) -> BaseException | None:
        return self.record.error

    @property
    def degree(self) -> int:
        return self.record.share.limit or self._core.moves.workers

    @property
    def is_inside(self) -> bool:
        return self.was_entered(_here.queries)

    def was_entered(self, places: Places) -> bool:
        return self.record in places

    def add(self, runnable: Runnable, *, rank: int = 0) -> Handle:
        return self._shell.change(partial(self._core.add, self.record, runnable, rank, self._shell.wake))

    def start(self) -> None:
        self._shell.change(partial(self._core.start, self.record))

    def pause(self) -> Future[None]:
        future: Future[None] = Future()
        self._shell.change(partial(self._core.endings.pause, self.record, future))
        return future

    def resume(self) -> None:
        self._shell.change(partial(self._core.endings.resume, self.record))

    def cancel(self, error: BaseException | None = None) -> Future[None]:
        self._shell.change(lambda now: self._core.endings.cancel(self.record, error, now))
        return self.closed

    def background(
        self, work: Callable[[], T], done: Callable[[Any], None], handle: Handle, *, is_long: bool = False
    ) -> None:
        if not isinstance(handle, Entry) or handle.query is not self.record:
            raise InternalError(f"{handle.name} is not in query {self.name}")
        self._shell.background(handle, work, done, is_long=is_long)

    def why(self) -> list[str]:
        with self._shell._lock:
            return why(self.record)

    def statistics(self) -> QueryStatistics:
        with self._shell._lock:
            return self.record.statistics(self._shell._clock())

    # ------------------------------------------------------------------ for the shell

    def notify_failure(self, entry: Entry | None, error: BaseException) -> None:
        """The query has failed."""
        if self._on_failure is not None:
            try:
                self._on_failure(entry, error)
            except Exception as other:
                error.add_note(f"telling of it failed: {type(other).__name__}: {other}")

    def notify_closed(self) -> None:
        """Everything is closed; nobody else knows yet."""
        if self._on_closed is not None:
            try:
                self._on_closed()
            except Exception as other:
                self.record.error = self.record.error or other
        self._on_failure = self._on_closed = None
