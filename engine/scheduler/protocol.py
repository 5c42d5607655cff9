"""What users of a scheduler see: schedulers, queries and handles, whichever threads are behind them.

A *scheduler* runs many *queries*; a query is the set of runnables of one plan (of one task), with one error, one
deadline and one end; a *handle* is one runnable in it. The three schedulers (``serial``, ``pool``, ``simulated``) keep
the same promises, because all of them ask the same core:

1. The first error of a query wins and ends it; later ones are attached to it as notes. ``on_failure`` is called once,
   by the thread that saw the error, outside all locks and before anything of the query is closed because of it. It is
   not called for ``cancel``: the canceller knows.
2. ``closed`` is resolved with None exactly once, when every runnable is closed; ``error`` then says how it went.
   ``on_closed`` is called just before, by the thread that closed the last one.
3. A query without runnables stays open until it is cancelled. One whose runnables have all closed is over, and takes no
   more.
4. While a query is paused, no thread is inside its runnables; a cancelled one is closed after ``resume``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from ..core.errors import Domain, PenstockError
from .dependency import Dependency
from .runnable import Runnable
from .states import DriverState, Wait

T = TypeVar("T")


class QueryTimeoutError(PenstockError):
    """A query was not done within its time limit."""

    domain: ClassVar[Domain] = Domain.USER


@dataclass(frozen=True, slots=True)
class HandleStatistics:
    """What became of one runnable's time, in seconds, and how often what happened.

    ``waiting`` is keyed by what it waited for (``WaitReason.value``). ``wakeups`` counts those that had an effect;
    ``steals`` the turns on another worker than the one whose queue it stood in; ``yields`` the turns that ended with
    more to do.
    """

    name: str
    state: str
    queued: float
    running: float
    paused: float
    waiting: dict[str, float]
    cpu: float
    turns: int
    wakeups: int
    steals: int
    yields: int


@dataclass(frozen=True, slots=True)
class QueryStatistics:
    """One query's place in the queue and its runnables. ``level`` 0 is that of the young."""

    name: str
    group: str
    level: int
    cpu: float
    handles: tuple[HandleStatistics, ...]
    suppressed: tuple[BaseException, ...]


class Handle(Protocol):
    """One scheduled runnable."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> DriverState: ...

    @property
    def waits(self) -> tuple[Wait, ...]:
        """Whom it waits for; empty if it does not wait."""

    def wake(self) -> None:
        """What it may wait for has happened. From any thread, at any time, cheap; call it after the change."""


class Query(Protocol):
    """The runnables of one plan. All methods from any thread, unless the scheduler is a serial one: then from its
    caller's, with the exception of wake-ups and background work."""

    @property
    def name(self) -> str: ...

    @property
    def closed(self) -> Future[None]: ...

    @property
    def error(self) -> BaseException | None:
        """The first error; None as long as there is none, and after a cancel without one."""

    def add(
        self,
        runnable: Runnable,
        *,
        rank: int = 0,
        excludes: Sequence[Handle] = (),
        after: Sequence[Dependency] = (),
    ) -> Handle:
        """Schedule a runnable, before or after ``start``. ``rank`` 0 is the most downstream one, which is preferred.
        It never runs, nor is it closed, at the same time as one that it ``excludes``, and the other way round. It is
        not opened before everything in ``after`` is ready."""

    def start(self) -> None:
        """Let them run; the time limit begins."""

    def pause(self) -> Future[None]:
        """Keep all from running; resolved when no thread is inside any of them."""

    def resume(self) -> None: ...

    def cancel(self, error: BaseException | None = None) -> Future[None]:
        """End it: nothing runs again, everything is closed. May be called again. Returns ``closed``."""

    def background(self, work: Callable[[], T], done: Callable[[Any], None], handle: Handle) -> None:
        """Run ``work``, which may wait, in the scheduler's pool for that, call ``done`` there with its result or its
        exception, and wake ``handle``, which is not closed before that. If the query has ended before the work began,
        ``done`` gets a ``concurrent.futures.CancelledError`` in its place."""

    def why(self) -> list[str]:
        """One sentence for each runnable that cannot run now: why, and whom it waits for."""

    def statistics(self) -> QueryStatistics: ...


class Scheduler(Protocol):
    """Runs queries."""

    def open(
        self,
        name: str,
        *,
        group: str = "default",
        weight: float = 1.0,
        timeout: float | None = None,
        parallelism: int | None = None,
        on_failure: Callable[[Handle | None, BaseException], None] | None = None,
        on_closed: Callable[[], None] | None = None,
    ) -> Query:
        """A new, empty query. ``weight``: its share within its group. ``timeout``: seconds from ``start`` until it is
        ended with a :class:`QueryTimeoutError`. ``parallelism``: how many of its runnables may run at once."""

    def set_group(self, name: str, *, weight: float = 1.0, cap: float | None = None) -> None:
        """The share of a group against others, and the most CPU seconds per second that it may use at all. Groups that
        are not named here have weight 1 and no cap."""

    def shutdown(self) -> None:
        """Cancel every query and wait until all is closed and no thread is left. No more queries can be opened."""
