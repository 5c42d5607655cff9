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

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from ..core.errors import InternalError
from ..core.state_machine import check_move
from .entries import Effect, Entry, Halted, Over, QueryEntry, Report, ShareEntry
from .observation import Trace
from .protocol import (
    LEGAL,
    Blocked,
    DriverState,
    Failed,
    Finished,
    Outcome,
    Progress,
    QueryTimeoutError,
    Runnable,
    Wait,
    WaitReason,
)
from .shares import LEVEL_THRESHOLDS, Shares

# ------------------------------------------------------------------ timers
#
# When something must happen by itself: wake-ups of waiting runnables, time limits of queries. Data, no clock.

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


# ------------------------------------------------------------------ moves
#
# Moving runnables between states, and all that must change in the same step.
#
# This is the only place where a state changes. With it go: the time booked for the state that is left, the share's
# count of ready ones and its place among the others, and requests to yield.


class Moves:
    """The entries in their queues. ``workers``: how many may run at once."""

    def __init__(self, workers: int, trace: Trace | None, levels: Sequence[float]) -> None:
        self.workers = workers
        self.trace = trace
        self.shares: Shares[ShareEntry] = Shares(levels)
        self.timers: Timers[Entry | QueryEntry] = Timers()
        # All and only entries that are RUNNING.
        self.running: list[Entry] = []
        # In whose queue the last ready one was put.
        self.last_home: int | None = None

    def move(self, entry: Entry, to: DriverState, now: float) -> None:
        """Change the state, if the table allows it, and book the time spent in the old one."""
        if to not in LEGAL[entry.state]:
            check_move(f"driver {entry.name}", LEGAL, entry.state, to)
        if self.trace is not None:
            self.trace.left(entry, now)
        if now != entry.since:
            entry.spend(now - entry.since)
            entry.since = now
        entry.state = to

    def make_ready(self, entry: Entry, now: float, worker: int | None) -> None:
        """It has something to do: queue it, at the worker that woke it or ran it last."""
        entry.notified = False
        self.move(entry, DriverState.READY, now)
        entry.waits = ()
        entry.home = self.last_home = worker
        entry.generation += 1
        share = entry.query.share
        share.ready.push(entry)
        share.ready.count += 1
        if not share.active:
            self.refresh(share)
        if len(self.running) >= self.workers:
            self._ask_to_yield(share)

    def leave_ready(self, entry: Entry) -> None:
        """Void its place in the queue; the caller moves it on."""
        entry.generation += 1
        share = entry.query.share
        share.ready.count -= 1
        if not share.ready.count:
            self.refresh(share)

    def refresh(self, share: ShareEntry) -> None:
        """Put the share among those that may run, or take it away."""
        active = share.ready.count > 0 and (share.limit is None or share.running < share.limit)
        if active and not share.active:
            self.shares.activate(share)
        elif share.active and not active:
            self.shares.deactivate(share)

    def make_waiting(self, entry: Entry, waits: tuple[Wait, ...], now: float) -> None:
        """It cannot run before a wake-up."""
        self.move(entry, DriverState.WAITING, now)
        entry.waits = waits

    def displace(self, entry: Entry) -> None:
        """Its query has ended, and a thread is in its turn, for ever maybe (a user's function): others get its place,
        on a worker and in its share, until the turn is over."""
        share = entry.query.share
        entry.yield_asked = entry.displaced = True
        self.workers += 1
        share.running -= 1
        self.refresh(share)

    # ------------------------------------------------------------------ yields

    def _ask_to_yield(self, share: ShareEntry) -> None:
        """No worker is free: ask the oldest running share of the group to make room, if it is older than this one."""
        best: Entry | None = None
        for entry in self.running:
            other = entry.query.share
            if (
                other.group is share.group
                and other.level.number > (best.query.share.level.number if best else share.level.number)
                and not entry.yield_asked
            ):
                best = entry
        if best is not None:
            best.yield_asked = True

    def make_room_for_closing(self) -> None:
        """Something must be closed: if no worker is free, ask one to make room."""
        if len(self.running) >= self.workers and not any(entry.yield_asked for entry in self.running):
            self.running[0].yield_asked = True


# ------------------------------------------------------------------ endings
#
# How runnables and queries end: errors, cancels, time limits, the eager lane, pauses.
#
# 1. A runnable whose work is over is FINISHING until nothing holds it: background work, a pause of its query, an error
#    that is just being told. Then it stands in the *eager lane*, which workers serve before anything else: what is to
#    be closed frees memory and never queues behind work.
# 2. ``close`` is given to a thread exactly once, by ``claim_closing``; ``closed`` ends it.
# 3. The first error of a query is its error. Later ones become notes of it, or, after a cancel without an error, are
#    only kept for the statistics.
# 4. A query is over when it has nothing left to close, and that is said once.

UNFINISHED = frozenset({DriverState.CREATED, DriverState.READY, DriverState.WAITING, DriverState.PAUSED})
"""States that a runnable is in as long as its work is not over and no thread is inside."""


class Endings:
    """See above."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        # What the shell has to do; it takes them in the same step in which they were made.
        self.effects: list[Effect] = []
        # Entries that may be closed. One may stand here twice, or no longer be closable: `claim_closing` looks again.
        self.eager: deque[Entry] = deque()

    # ------------------------------------------------------------------ runnables

    def finish(self, entry: Entry, now: float) -> None:
        """Its work is over."""
        if entry.state is DriverState.READY:
            self._moves.leave_ready(entry)
        self._moves.timers.cancel(entry)
        self._moves.move(entry, DriverState.FINISHING, now)
        entry.waits = ()
        self.offer(entry)

    def offer(self, entry: Entry) -> None:
        """Something that may have held a FINISHING entry is gone: put it into the eager lane if nothing else does."""
        if entry.outstanding:
            whom = "background work" if entry.outstanding == 1 else f"{entry.outstanding} pieces of background work"
            entry.waits = (Wait(WaitReason.DEPENDENCY, whom),)
            return
        entry.waits = ()
        if self._closable(entry):
            self.eager.append(entry)
            self._moves.make_room_for_closing()

    def _closable(self, entry: Entry) -> bool:
        query = entry.query
        held = entry.outstanding or query.paused or query.reporting
        return entry.state is DriverState.FINISHING and not entry.closing and not held

    def claim_closing(self, now: float) -> Entry | None:
        """An entry for the caller to close."""
        while self.eager:
            entry = self.eager.popleft()
            if self._closable(entry):
                entry.closing = True
                entry.query.inside += 1
                return entry
        return None

    def closed(self, entry: Entry, error: BaseException | None, now: float) -> None:
        """It has been closed; ``error``: what ``close`` raised although it must not."""
        query = entry.query
        entry.closing = False
        query.inside -= 1
        self._moves.move(entry, DriverState.CLOSED, now)
        query.open_count -= 1
        if error is not None:
            self.fail(query, entry, error, now)
        self.check_halted(query)
        self._check_over(query, now)

    # ------------------------------------------------------------------ queries

    def fail(self, query: QueryEntry, entry: Entry | None, error: BaseException, now: float) -> None:
        """An error of the query, met in ``entry`` if in any."""
        if query.ending:
            self._attach(query, error)
        else:
            query.error = error
            query.ending = query.reporting = True
            self.effects.append(Report(query, entry, error))
            self._end_all(query, now)

    def reported(self, query: QueryEntry, now: float) -> None:
        """The owner knows of the error: what was held back may be closed."""
        query.reporting = False
        for entry in query.entries:
            if entry.state is DriverState.FINISHING:
                self.offer(entry)
        self._check_over(query, now)

    def cancel(self, query: QueryEntry, error: BaseException | None, now: float) -> None:
        """The owner wants it to end."""
        if query.over:
            return
        if query.ending:
            if error is not None and error is not query.error:
                self._attach(query, error)
            return
        query.error = error
        query.cancelled = query.ending = True
        self._end_all(query, now)
        self._check_over(query, now)

    def _attach(self, query: QueryEntry, error: BaseException) -> None:
        query.suppressed.append(error)
        if query.error is not None:
            query.error.add_note(f"another error followed: {type(error).__name__}: {error}")

    def _end_all(self, query: QueryEntry, now: float) -> None:
        self._moves.timers.cancel(query)
        for entry in query.entries:
            if entry.state in UNFINISHED:
                self.finish(entry, now)
            elif entry.state is DriverState.RUNNING:
                self._moves.displace(entry)

    def _check_over(self, query: QueryEntry, now: float) -> None:
        """The last one has been closed, or there was none."""
        if query.open_count or query.reporting or query.over or not (query.entries or query.ending):
            return
        query.ending = query.over = True
        self._moves.timers.cancel(query)
        for entry in query.entries:
            self._moves.move(entry, DriverState.RELEASED, now)
        self._halted(query)
        self.effects.append(Over(query))

    # ------------------------------------------------------------------ pauses

    def pause(self, query: QueryEntry, future: object, now: float) -> None:
        """Let nothing of it run; ``future`` is for the shell to resolve when that is so. What was ready is marked to
        run again."""
        query.pauses.append(future)
        if query.over:
            self._halted(query)
            return
        query.paused = True
        for entry in query.entries:
            if entry.state is DriverState.READY:
                self._moves.leave_ready(entry)
                self._moves.move(entry, DriverState.PAUSED, now)
                entry.notified = True
            elif entry.state is DriverState.WAITING:
                self._moves.move(entry, DriverState.PAUSED, now)
            elif entry.state is DriverState.RUNNING:
                entry.yield_asked = True
        self.check_halted(query)

    def check_halted(self, query: QueryEntry) -> None:
        """Whether the pause is complete: no thread is inside."""
        if query.paused and not query.inside:
            self._halted(query)

    def _halted(self, query: QueryEntry) -> None:
        if query.pauses:
            self.effects.append(Halted(query, tuple(query.pauses)))
            query.pauses.clear()

    def resume(self, query: QueryEntry, now: float) -> None:
        """Go on: those that were ready or have been woken meanwhile are ready, the others wait as before."""
        if not query.paused or query.over:
            return
        query.paused = False
        self._halted(query)
        for entry in query.entries:
            if entry.state is DriverState.FINISHING:
                self.offer(entry)
            elif entry.state is DriverState.PAUSED:
                self._moves.move(entry, DriverState.WAITING, now)
                if entry.notified:
                    self._moves.timers.cancel(entry)
                    self._moves.make_ready(entry, now, entry.last_worker)


class Core:
    """See the module's docstring. ``workers``: how many threads may be in runnables at once; ``grows``: more if a share
    asks for more; ``levels``: the CPU seconds at which a share sinks from one to the next."""

    def __init__(
        self,
        workers: int,
        trace: Trace | None = None,
        levels: Sequence[float] = LEVEL_THRESHOLDS,
        *,
        grows: bool = False,
    ) -> None:
        self._workers, self._grows, self._grown = workers, grows, 0
        self.moves = Moves(workers, trace, levels)
        self.endings = Endings(self.moves)
        self.shares = self.moves.shares
        self.timers = self.moves.timers
        self.effects = self.endings.effects
        # All and only queries that are not over.
        self.queries: dict[int, QueryEntry] = {}
        self._count = 0

    # ------------------------------------------------------------------ queries and runnables

    def open_share(self, group: str, weight: float, limit: int | None) -> ShareEntry:
        """A new share, for any number of queries."""
        self._count += 1
        return ShareEntry(self._count, self.shares.group(group), weight, limit)

    def open(self, name: str, share: ShareEntry, timeout: float | None) -> QueryEntry:
        """A new query of the share."""
        self._count += 1
        query = QueryEntry(name, self._count, share, timeout)
        self.queries[query.number] = query
        share.queries += 1
        self._resize(share)
        return query

    def _resize(self, share: ShareEntry) -> None:
        """Let as many threads in as any share asks for, if that is more; ``share``: one that has come or gone."""
        if self._grows and share.limit is not None:
            asked = max((query.share.limit or 0 for query in self.queries.values()), default=0)
            grown = max(0, asked - self._workers)
            self.moves.workers += grown - self._grown
            self._grown = grown

    def add(
        self,
        query: QueryEntry,
        runnable: Runnable,
        rank: int,
        wake_call: Callable[[Entry], None],
        now: float,
    ) -> Entry:
        """A new runnable of the query."""
        if query.over:
            raise InternalError(f"{runnable.name} was added to query {query.name}, which is over")
        self._count += 1
        entry = Entry(runnable, query, self._count, rank, wake_call, now)
        query.entries.append(entry)
        query.open_count += 1
        if query.ending:
            self.endings.finish(entry, now)
        elif query.started:
            self._start(entry, now)
        return entry

    def start(self, query: QueryEntry, now: float) -> None:
        """Let its runnables run."""
        if query.started or query.ending:
            return
        query.started = True
        if query.timeout is not None:
            query.deadline = now + query.timeout
            self.timers.set(query, query.deadline)
        for entry in query.entries:
            self._start(entry, now)

    def _start(self, entry: Entry, now: float) -> None:
        if entry.query.paused:
            self.moves.move(entry, DriverState.READY, now)
            self.moves.move(entry, DriverState.PAUSED, now)
            entry.notified = True
        else:
            self.moves.make_ready(entry, now, None)

    # ------------------------------------------------------------------ turns

    def claim(self, worker: int | None, now: float) -> Entry | None:
        """The runnable that the worker is to run, if any may run."""
        share = self.shares.pick(now)
        if share is None:
            return None
        entry = share.ready.take(worker, now)
        if entry is None:
            raise InternalError(f"share {share.number} has {share.ready.count} ready runnables, but none in its queue")
        if entry.home is not None and entry.home != worker:
            entry.steals += 1
        self.moves.move(entry, DriverState.RUNNING, now)
        entry.last_worker = worker
        entry.yield_asked = False
        entry.turns += 1
        self.moves.running.append(entry)
        entry.query.inside += 1
        share.running += 1
        share.ready.count -= 1
        if not share.ready.count or share.limit is not None:
            self.moves.refresh(share)
        return entry

    def complete(self, entry: Entry, outcome: Outcome, cost: float, now: float) -> None:
        """The thread has left the runnable, having used ``cost`` CPU seconds."""
        query, share = entry.query, entry.query.share
        self.moves.running.remove(entry)
        if entry.displaced:
            entry.displaced = False
            self.moves.workers -= 1
        else:
            share.running -= 1
        query.inside -= 1
        self.shares.charge(share, cost)
        self._settle(entry, query, outcome, now)
        if share.limit is not None:
            self.moves.refresh(share)
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
            entry.wakeups += 1
            self.timers.cancel(entry)
            self.moves.make_ready(entry, now, worker if worker is not None else entry.last_worker)
        elif (state is DriverState.RUNNING or state is DriverState.PAUSED) and not entry.notified:
            entry.wakeups += 1
            entry.notified = True

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
        """The query is over, and its owner knows. Its records stay with the owner; they hold nothing of his."""
        for entry in query.entries:
            entry.release()
        if self.queries.pop(query.number, None) is not None:
            query.share.queries -= 1
            if not query.share.queries:
                self.shares.forget(query.share)
            self._resize(query.share)


def error_of(entry: Entry, outcome: object) -> BaseException:
    """The error of an outcome that is none of the good ones."""
    if isinstance(outcome, Failed):
        return outcome.error
    return InternalError(f"{entry.name} returned {outcome!r}", "return Progress, Blocked, Finished or Failed")
