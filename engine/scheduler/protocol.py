"""What users of a scheduler see: schedulers, queries and handles, whichever threads are behind them.

A *scheduler* runs many *queries*; a query is the set of runnables of one task, with one error, one deadline and one
end; a *handle* is one runnable in it. What belongs together (the tasks of a plan, or of a job in one process) has one
*share* of the scheduler: levels, weights and the bound on threads count by share, however many queries it has. The
three schedulers (``serial``, ``pool``, ``simulated``) keep the same promises, because all of them ask the same core:

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

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import msgspec

from ..core.errors import ConfigurationError, Domain, PenstockError
from ..core.identity import TaskId

# ------------------------------------------------------------------ states
#
# The states of a driver, the legal moves between them, and what a driver may wait for.
#
# One enum, one table, one way to move. The states join those of Velox (on thread, enqueued, blocked, terminated), Doris
# (runnable, blocked, pending finish, finalized), Fennel (sleeping, running, inhibited) and DuckDB (interrupted):
#
# - CREATED: built, not started. READY: may run. RUNNING: a thread is in it.
# - WAITING: cannot run before what it waits for happens; it always names that (:class:`Wait`).
# - PAUSED: kept from running by its task. FINISHING: its work is over; what it started elsewhere is not, or nobody has
#   closed it yet.
# - CLOSED: its operators are closed. RELEASED: the scheduler has forgotten it.
#
# One move deserves a word. CREATED → FINISHING: cancelled before it ran; its operators must be closed all the same, and
# by the thread that closes, not by the one that cancels.


class DriverState(Enum):
    """See above."""

    CREATED = "created"
    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    FINISHING = "finishing"
    CLOSED = "closed"
    RELEASED = "released"

    # Members are compared by identity, so they may be hashed by it: Enum's own hash is Python code on the hottest path.
    __hash__ = object.__hash__


MOVES: dict[tuple[DriverState, DriverState], str] = {
    (DriverState.CREATED, DriverState.READY): "started",
    (DriverState.CREATED, DriverState.FINISHING): "cancelled",
    (DriverState.CREATED, DriverState.CLOSED): "closed by its owner, no scheduler",
    (DriverState.READY, DriverState.RUNNING): "claimed",
    (DriverState.READY, DriverState.PAUSED): "pause",
    (DriverState.READY, DriverState.FINISHING): "cancelled",
    (DriverState.RUNNING, DriverState.READY): "progress, or woken meanwhile",
    (DriverState.RUNNING, DriverState.WAITING): "blocked",
    (DriverState.RUNNING, DriverState.PAUSED): "pause, seen at its end",
    (DriverState.RUNNING, DriverState.FINISHING): "finished, failed, or cancelled",
    (DriverState.WAITING, DriverState.READY): "woken",
    (DriverState.WAITING, DriverState.PAUSED): "pause",
    (DriverState.WAITING, DriverState.FINISHING): "cancelled",
    (DriverState.PAUSED, DriverState.READY): "resumed, woken meanwhile",
    (DriverState.PAUSED, DriverState.WAITING): "resumed",
    (DriverState.PAUSED, DriverState.FINISHING): "cancelled",
    (DriverState.FINISHING, DriverState.CLOSED): "nothing of it is under way, closed",
    (DriverState.CLOSED, DriverState.RELEASED): "its query is over",
}
"""Every legal move, and what makes it."""

LEGAL: dict[DriverState, frozenset[DriverState]] = {
    state: frozenset(to for start, to in MOVES if start is state) for state in DriverState
}


class WaitReason(Enum):
    """What a waiting driver waits for."""

    INPUT = "input"
    OUTPUT = "output"
    DEPENDENCY = "dependency"
    ALIGNMENT = "alignment"
    MEMORY = "memory"
    TIMER = "timer"
    COMMIT = "commit"
    CONSUMER = "consumer"


class Wait(msgspec.Struct, frozen=True):
    """Why a driver waits, and for whom, in words. ``tasks``: those among them, as far as tasks have to act."""

    reason: WaitReason
    whom: str
    tasks: tuple[TaskId, ...] = ()

    def __str__(self) -> str:
        return f"waits for {self.reason.value}: {self.whom}"


# ------------------------------------------------------------------ runnable
#
# What the scheduler runs, and what one run of it may answer.
#
# The contract between the scheduler and what it schedules (drivers, and anything else that works in quanta):
#
# 1. ``run`` is called by one thread at a time, never before ``open`` has returned and never after ``close``. It goes on
#    until it can do no more, or until ``quantum.expired()``, which it asks at every batch border. It never waits
#    inside: work that must wait goes through ``Query.background`` and comes back as a wake-up.
# 2. Whoever changes something that a runnable may wait for calls ``Handle.wake`` *after* the change. A wake-up that
#    arrives while the runnable runs is not lost: it runs again. Wake-ups at any other time do no harm.
# 3. ``close`` is called exactly once, whether it ran or not, also after an error, when no thread is inside.
#
# The outcome is one of four, all explicit (after DuckDB's operator results): "nothing now" cannot be taken for "nothing
# ever".


class Quantum(Protocol):
    """The turn that a runnable has been given."""

    @property
    def now(self) -> float:
        """The scheduler's clock when the turn began, in seconds; only differences mean anything."""

    def expired(self) -> bool:
        """Whether the turn is over: the time slice is used up, someone more urgent waits, or it was told to stop."""


class Progress(msgspec.Struct, frozen=True):
    """The turn is over and there is more to do."""


class Blocked(msgspec.Struct, frozen=True):
    """Nothing can be done before a wake-up, or before ``wake_at`` (on the scheduler's clock). ``waits``: for whom."""

    waits: tuple[Wait, ...]
    wake_at: float | None = None


class Finished(msgspec.Struct, frozen=True):
    """All work is done. What was started elsewhere may still be under way: see ``Query.background``."""


class Failed(msgspec.Struct, frozen=True):
    """It cannot go on. Raising from ``run`` means the same."""

    error: BaseException


Outcome: TypeAlias = Progress | Blocked | Finished | Failed


class Runnable(Protocol):
    """Something that works in quanta. See the rules above."""

    @property
    def name(self) -> str:
        """For messages, traces and statistics."""

    def open(self) -> None:
        """Called once, by the thread of the first run and just before it."""

    def run(self, quantum: Quantum) -> Outcome:
        """Work for a turn."""

    def close(self) -> None:
        """Release everything. Must not raise, must not wait."""


T = TypeVar("T")


class QueryTimeoutError(PenstockError):
    """A query was not done within its time limit."""

    domain: ClassVar[Domain] = Domain.USER


class HandleStatistics(msgspec.Struct, frozen=True):
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
    present: float = 0.0
    """How long it has been in its state."""


class QueryStatistics(msgspec.Struct, frozen=True):
    """One query's runnables, and its share's place among the others. ``level`` 0 is that of the young; ``cpu`` is what
    all queries of the share have used."""

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


Places: TypeAlias = tuple[object, ...]
"""The queries in whose code a thread is."""


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

    @property
    def degree(self) -> int:
        """How many of its runnables may run at once, at most."""

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in code of the query: a runnable, its background work, or what its owner is told."""

    def was_entered(self, places: Places) -> bool:
        """The same of whichever thread had these ``shell.places``."""

    def add(self, runnable: Runnable, *, rank: int = 0) -> Handle:
        """Schedule a runnable, before or after ``start``. ``rank`` 0 is the most downstream one, which is preferred."""

    def start(self) -> None:
        """Let them run; the time limit begins."""

    def pause(self) -> Future[None]:
        """Keep all from running; resolved when no thread is inside any of them."""

    def resume(self) -> None: ...

    def cancel(self, error: BaseException | None = None) -> Future[None]:
        """End it: nothing runs again, everything is closed. May be called again. Returns ``closed``."""

    def background(
        self, work: Callable[[], T], done: Callable[[Any], None], handle: Handle, *, is_long: bool = False
    ) -> None:
        """Run ``work``, which may wait, in the scheduler's pool for that, call ``done`` there with its result or its
        exception, and wake ``handle``, which is not closed before that. If the query has ended before the work began,
        ``done`` gets a ``concurrent.futures.CancelledError`` in its place. ``is_long``: it may take long, or wait for
        other such work: it takes no other's thread."""

    def why(self) -> list[str]:
        """One sentence for each runnable that cannot run now: why, and whom it waits for."""

    def statistics(self) -> QueryStatistics: ...


HEAVIEST = 1e9
"""The largest weight; its inverse is the smallest. Times that are divided by one stay finite, and grow."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one user of a scheduler may take, with all its queries together. ``weight``: against others of its group;
    ``timeout``: seconds from the start of a query until it is ended with a :class:`QueryTimeoutError`; ``degree``: how
    many of its runnables may run at once."""

    group: str = "default"
    weight: float = 1.0
    timeout: float | None = None
    degree: int | None = None

    def __post_init__(self) -> None:
        if not 1 / HEAVIEST <= self.weight <= HEAVIEST:
            remedy = f"give a number from {1 / HEAVIEST:g} to {HEAVIEST:g}; 1 is everybody's"
            raise ConfigurationError(f"a weight of {self.weight}", remedy)
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigurationError(f"a timeout of {self.timeout} s", "give seconds above 0, or None for no limit")
        if self.degree is not None and self.degree < 1:
            raise ConfigurationError(f"a degree of {self.degree}", "give a number from 1 on, or None for no bound")


class QueryOpener(Protocol):
    """A scheduler as one of its users sees it."""

    def open(
        self,
        name: str,
        *,
        on_failure: Callable[[Handle | None, BaseException], None] | None = None,
        on_closed: Callable[[], None] | None = None,
    ) -> Query:
        """A new, empty query."""


class Scheduler(QueryOpener, Protocol):
    """Runs queries. What is opened here has a share of its own."""

    def share(self, share: Share) -> QueryOpener:
        """What is opened there has this share in common."""

    def set_group(self, name: str, *, weight: float = 1.0, cap: float | None = None) -> None:
        """The share of a group against others, and the most CPU seconds per second that it may use at all. Groups that
        are not named here have weight 1 and no cap."""

    def shutdown(self) -> None:
        """Cancel every query and wait until all is closed and no thread is left. No more queries can be opened."""
