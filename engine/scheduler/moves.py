"""Moving runnables between states, and all that must change in the same step.

This is the only place where a state changes. With it go: the time booked for the state that is left, the query's count
of ready ones and its place among the others, the neighbours' inhibitions, and requests to yield.

*Neighbours* (Fennel's rule). ``inhibitions`` of an entry is the number of its neighbours that a thread is inside of. A
READY one whose neighbour becomes busy goes to WAITING for it, and one that would become READY meanwhile does too; it is
made READY by the neighbour that leaves last, and by nothing else. So what is READY may be claimed, and no completion
looks at anyone but the neighbours of the one that completed.
"""

from __future__ import annotations

from collections.abc import Sequence

from .entries import Entry, QueryEntry
from .shares import Shares
from .states import LEGAL, DriverState, Wait, WaitReason, check_move
from .timers import Timers
from .trace import Trace


class Moves:
    """The entries in their queues. ``workers``: how many may run at once."""

    def __init__(self, workers: int, trace: Trace | None, levels: Sequence[float]) -> None:
        self.workers = workers
        self.trace = trace
        self.shares: Shares[QueryEntry] = Shares(levels)
        self.timers: Timers[Entry | QueryEntry] = Timers()
        # All and only entries that are RUNNING.
        self.running: list[Entry] = []
        # In whose queue the last ready one was put.
        self.last_home: int | None = None

    def move(self, entry: Entry, to: DriverState, now: float) -> None:
        """Change the state, if the table allows it, and book the time spent in the old one."""
        if to not in LEGAL[entry.state]:
            check_move(entry.name, entry.state, to)
        if self.trace is not None:
            self.trace.left(entry, now)
        if now != entry.since:
            entry.spend(now - entry.since)
            entry.since = now
        entry.state = to

    def make_ready(self, entry: Entry, now: float, worker: int | None) -> None:
        """It has something to do: queue it, at the worker that woke it or ran it last, unless a neighbour is busy."""
        entry.notified = False
        if entry.inhibitions:
            self._inhibit(entry, now)
            return
        self.move(entry, DriverState.READY, now)
        entry.waits = ()
        entry.wanted = False
        entry.home = self.last_home = worker
        entry.generation += 1
        query = entry.query
        query.ready.push(entry)
        query.ready.count += 1
        if not query.active:
            self.refresh(query)
        if len(self.running) >= self.workers:
            self._hurry(query)

    def leave_ready(self, entry: Entry) -> None:
        """Void its place in the queue; the caller moves it on."""
        entry.generation += 1
        query = entry.query
        query.ready.count -= 1
        if not query.ready.count:
            self.refresh(query)

    def refresh(self, query: QueryEntry) -> None:
        """Put the query among those that may run, or take it away."""
        active = query.ready.count > 0 and (query.limit is None or query.running < query.limit)
        if active and not query.active:
            self.shares.activate(query)
        elif query.active and not active:
            self.shares.deactivate(query)

    def make_waiting(self, entry: Entry, waits: tuple[Wait, ...], now: float) -> None:
        """It cannot run before a wake-up."""
        self.move(entry, DriverState.WAITING, now)
        entry.waits = waits

    # ------------------------------------------------------------------ neighbours

    def enter(self, entry: Entry, now: float) -> None:
        """A thread goes into the entry: none of its neighbours may run."""
        for neighbour in entry.neighbours:
            neighbour.inhibitions += 1
            if neighbour.state is DriverState.READY:
                self._inhibit(neighbour, now)

    def leave(self, entry: Entry, now: float) -> list[Entry]:
        """The thread has left. Returns the neighbours that now wait to be closed."""
        closable = []
        for neighbour in entry.neighbours:
            neighbour.inhibitions -= 1
            if neighbour.state is DriverState.FINISHING:
                closable.append(neighbour)
            elif neighbour.wanted and neighbour.state is DriverState.WAITING:
                if neighbour.inhibitions:
                    self._wait_for_neighbour(neighbour, entry)
                else:
                    self.make_ready(neighbour, now, neighbour.last_worker)
        return closable

    def _inhibit(self, entry: Entry, now: float) -> None:
        """It would run if its neighbours let it."""
        if entry.state is DriverState.READY:
            self.leave_ready(entry)
        elif entry.state is DriverState.CREATED:
            self.move(entry, DriverState.READY, now)
        if entry.state is not DriverState.WAITING:
            self.move(entry, DriverState.WAITING, now)
        else:
            self.rebook(entry, now)
        entry.wanted = True
        self._wait_for_neighbour(entry, None)

    def rebook(self, entry: Entry, now: float) -> None:
        """Book the time so far, because what it waits for changes."""
        if self.trace is not None:
            self.trace.left(entry, now)
        entry.spend(now - entry.since)
        entry.since = now

    def _wait_for_neighbour(self, entry: Entry, left: Entry | None) -> None:
        busy = next(other for other in entry.neighbours if other.busy and other is not left)
        entry.waits = (Wait(WaitReason.NEIGHBOUR, busy.name),)

    # ------------------------------------------------------------------ yields

    def _hurry(self, query: QueryEntry) -> None:
        """No worker is free: ask the oldest running query of the group to make room, if it is older than this one."""
        best: Entry | None = None
        for entry in self.running:
            other = entry.query
            if (
                other.group is query.group
                and other.level.number > (best.query.level.number if best else query.level.number)
                and not entry.yield_asked
            ):
                best = entry
        if best is not None:
            best.yield_asked = True

    def hurry_for_closing(self) -> None:
        """Something must be closed: if no worker is free, ask one to make room."""
        if len(self.running) >= self.workers and not any(entry.yield_asked for entry in self.running):
            self.running[0].yield_asked = True
