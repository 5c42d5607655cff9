"""The scheduler's decisions: what runs next, who is woken, how a query ends. No thread, no clock, no lock, no I/O.

A shell (``serial``, ``pool``, ``simulated``) enters the core one thread at a time and brings the time and the CPU
seconds with it. Its loop:

1. ``tick``; then ``claim_closing``: close that one and say ``closed``; else ``claim``: run that one, outside the core,
   and say ``complete`` with the outcome; else sleep until a call makes work, or until ``next_deadline``.
2. After every call take ``effects`` and perform them outside the core.

What makes wake-ups safe: a runnable that is woken while a thread is in it gets the *notified* mark and runs again,
whatever its turn returns, instead of a second place in the queue. A wake-up that comes when there is nothing to wake
(before the start, after the end, when it is ready anyhow) changes nothing. A place in the queue is worth something only
for the generation and the state it was given for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.errors import InternalError
from .dependency import Dependency
from .effects import Effect
from .endings import Endings
from .entries import Entry, QueryEntry
from .moves import Moves
from .protocol import Handle, QueryTimeoutError
from .runnable import Blocked, Failed, Finished, Outcome, Progress, Runnable
from .shares import LEVEL_THRESHOLDS
from .states import DriverState
from .trace import Trace


class Core:
    """See the module's docstring. ``workers``: how many threads may be in runnables at once; ``levels``: the CPU
    seconds at which a query sinks from one to the next."""

    def __init__(self, workers: int, trace: Trace | None = None, levels: Sequence[float] = LEVEL_THRESHOLDS) -> None:
        self.moves = Moves(workers, trace, levels)
        self.endings = Endings(self.moves)
        self.shares = self.moves.shares
        self.timers = self.moves.timers
        self.effects = self.endings.effects
        # All and only queries that are not over.
        self.queries: dict[int, QueryEntry] = {}
        self._count = 0

    # ------------------------------------------------------------------ queries and runnables

    def open(self, name: str, group: str, weight: float, timeout: float | None, limit: int | None) -> QueryEntry:
        """A new query."""
        self._count += 1
        query = QueryEntry(name, self._count, self.shares.group(group), weight, timeout, limit)
        self.queries[query.number] = query
        return query

    def add(
        self,
        query: QueryEntry,
        runnable: Runnable,
        rank: int,
        excludes: Sequence[Handle],
        after: Sequence[Dependency],
        wake_call: Callable[[Entry], None],
        now: float,
    ) -> Entry:
        """A new runnable of the query."""
        if query.over:
            raise InternalError(f"{runnable.name} was added to query {query.name}, which is over")
        self._count += 1
        entry = Entry(runnable, query, self._count, rank, tuple(after), wake_call, now)
        for other in excludes:
            if not isinstance(other, Entry) or other.query is not query:
                raise InternalError(f"{entry.name} excludes {other.name}, which is not in query {query.name}")
            other.neighbours.append(entry)
            entry.neighbours.append(other)
            entry.inhibitions += other.busy
        query.entries.append(entry)
        query.open_count += 1
        if query.ending:
            self.endings.finish(entry, now)
        else:
            entry.waits = tuple(dependency.wait for dependency in after if dependency.blocks(entry))
            self._try_start(entry, now)
        return entry

    def start(self, query: QueryEntry, now: float) -> None:
        """Let its runnables run, as far as nothing holds them."""
        if query.started or query.ending:
            return
        query.started = True
        if query.timeout is not None:
            query.deadline = now + query.timeout
            self.timers.set(query, query.deadline)
        for entry in query.entries:
            self._try_start(entry, now)

    def _try_start(self, entry: Entry, now: float) -> None:
        query = entry.query
        entry.waits = tuple(dependency.wait for dependency in entry.after if not dependency.ready)
        if not query.started or entry.waits:
            return
        if query.paused:
            self.moves.move(entry, DriverState.READY, now)
            self.moves.move(entry, DriverState.PAUSED, now)
            entry.notified = True
        else:
            self.moves.make_ready(entry, now, None)

    # ------------------------------------------------------------------ turns

    def claim(self, worker: int | None, now: float) -> Entry | None:
        """The runnable that the worker is to run, if any may run."""
        query = self.shares.pick(now)
        if query is None:
            return None
        entry = query.ready.take(worker)
        if entry is None:
            raise InternalError(f"query {query.name} has {query.ready.count} ready runnables, but none in its queue")
        if entry.home is not None and entry.home != worker:
            entry.steals += 1
        self.moves.move(entry, DriverState.RUNNING, now)
        entry.last_worker = worker
        entry.yield_asked = False
        entry.turns += 1
        self.moves.running.append(entry)
        query.running += 1
        query.inside += 1
        query.ready.count -= 1
        if not query.ready.count or query.limit is not None:
            self.moves.refresh(query)
        if entry.neighbours:
            self.moves.enter(entry, now)
        return entry

    def complete(self, entry: Entry, outcome: Outcome, cost: float, now: float) -> None:
        """The thread has left the runnable, having used ``cost`` CPU seconds."""
        query = entry.query
        self.moves.running.remove(entry)
        query.running -= 1
        query.inside -= 1
        self.shares.charge(query, cost)
        self._settle(entry, query, outcome, now)
        if entry.neighbours:
            self.endings.offer_all(self.moves.leave(entry, now))
        if query.limit is not None:
            self.moves.refresh(query)
        if query.paused:
            self.endings.check_halted(query)

    def _settle(self, entry: Entry, query: QueryEntry, outcome: Outcome, now: float) -> None:
        """Where the runnable goes after its turn."""
        kind = type(outcome)
        if kind is Failed or kind not in (Progress, Blocked, Finished):
            self.endings.finish(entry, now)
            self.endings.fail(query, entry, error_of(entry, outcome), now)
        elif kind is Finished or query.ending:
            self.endings.finish(entry, now)
        elif kind is Progress:
            entry.yields += 1
            self._requeue(entry, query, now)
        elif isinstance(outcome, Blocked):
            self._block(entry, query, outcome, now)

    def _requeue(self, entry: Entry, query: QueryEntry, now: float) -> None:
        if query.paused:
            self.moves.move(entry, DriverState.PAUSED, now)
            entry.notified = True
        else:
            self.moves.make_ready(entry, now, entry.last_worker)

    def _block(self, entry: Entry, query: QueryEntry, outcome: Blocked, now: float) -> None:
        at = outcome.wake_at
        if not outcome.waits:
            self.endings.finish(entry, now)
            text = f"{entry.name} is blocked and does not say by whom"
            self.endings.fail(query, entry, InternalError(text, "name in Blocked.waits whoever will wake it"), now)
        elif self.must_run_again(entry) or (at is not None and at <= now):
            self._requeue(entry, query, now)
        else:
            if query.paused:
                self.moves.move(entry, DriverState.PAUSED, now)
                entry.waits = outcome.waits
            else:
                self.moves.make_waiting(entry, outcome.waits, now)
            if at is not None:
                self.timers.set(entry, at)

    def must_run_again(self, entry: Entry) -> bool:
        """Whether it has been woken since its turn began: what it saw may be out of date."""
        return entry.notified

    # ------------------------------------------------------------------ wake-ups

    def wake(self, entry: Entry, now: float, worker: int | None = None) -> None:
        """Something that the runnable may wait for has happened; ``worker``: who did it."""
        state = entry.state
        if state is DriverState.WAITING:
            if not entry.wanted:
                entry.wakeups += 1
                self.timers.cancel(entry)
                self.moves.make_ready(entry, now, worker if worker is not None else entry.last_worker)
        elif state is DriverState.RUNNING or state is DriverState.PAUSED:
            if not entry.notified:
                entry.wakeups += 1
                entry.notified = True
        elif state is DriverState.CREATED:
            self._try_start(entry, now)

    def tick(self, now: float) -> None:
        """Do what was to happen until now."""
        for target in self.timers.due(now):
            if isinstance(target, Entry):
                self.wake(target, now)
            else:
                text = f"query {target.name} was not done within {target.timeout} s"
                error = QueryTimeoutError(text, "give it a longer timeout, or find out with why() whom it waits for")
                self.endings.fail(target, None, error, now)

    def next_deadline(self) -> float | None:
        """When ``tick`` or ``claim`` has something to do even if nothing happens until then."""
        timer, throttled = self.timers.next(), self.shares.throttled_until
        if timer is None or throttled is None:
            return throttled if timer is None else timer
        return min(timer, throttled)

    # ------------------------------------------------------------------ background work

    def background_started(self, entry: Entry) -> None:
        """Work for the runnable is given to other threads: it is not closed before that is over."""
        state = entry.state
        if entry.closing or state is DriverState.CLOSED or state is DriverState.RELEASED:
            raise InternalError(f"{entry.name} wants work in the background, but is closed")
        entry.outstanding += 1

    def background_over(self, entry: Entry, error: BaseException | None, now: float) -> None:
        """That work is over; ``error``: what the callback raised."""
        entry.outstanding -= 1
        if error is not None:
            self.endings.fail(entry.query, entry, error, now)
        if entry.state is DriverState.FINISHING:
            self.endings.offer(entry)
        else:
            self.wake(entry, now)

    # ------------------------------------------------------------------ for the shell

    def take_effects(self) -> list[Effect]:
        """What the shell has to perform now; nobody else will."""
        taken = list(self.effects)
        self.effects.clear()
        return taken

    def forget(self, query: QueryEntry) -> None:
        """The query is over, and its owner knows."""
        self.queries.pop(query.number, None)


def error_of(entry: Entry, outcome: object) -> BaseException:
    """The error of an outcome that is none of the good ones."""
    if isinstance(outcome, Failed):
        return outcome.error
    return InternalError(f"{entry.name} returned {outcome!r}", "return Progress, Blocked, Finished or Failed")
