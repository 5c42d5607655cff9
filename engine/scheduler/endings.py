"""How runnables and queries end: errors, cancels, time limits, the eager lane, pauses.

1. A runnable whose work is over is FINISHING until nothing holds it: background work, a neighbour that a thread is
   inside of, a pause of its query, an error that is just being told. Then it stands in the *eager lane*, which workers
   serve before anything else: what is to be closed frees memory and never queues behind work.
2. ``close`` is given to a thread exactly once, by ``claim_closing``; ``closed`` ends it.
3. The first error of a query is its error. Later ones become notes of it, or, after a cancel without an error, are
   only kept for the statistics.
4. A query is over when it has nothing left to close, and that is said once.
"""

from __future__ import annotations

from collections import deque

from .effects import Effect, Halted, Over, Report
from .entries import Entry, QueryEntry
from .moves import Moves
from .states import DriverState, Wait, WaitReason

UNFINISHED = frozenset({DriverState.CREATED, DriverState.READY, DriverState.WAITING, DriverState.PAUSED})
"""States that a runnable is in as long as its work is not over and no thread is inside."""


class Endings:
    """See the module's docstring."""

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
        entry.wanted = False
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
            self._moves.hurry_for_closing()

    def _closable(self, entry: Entry) -> bool:
        query = entry.query
        held = entry.outstanding or entry.inhibitions or query.paused or query.reporting
        return entry.state is DriverState.FINISHING and not entry.closing and not held

    def claim_closing(self, now: float) -> Entry | None:
        """An entry for the caller to close."""
        while self.eager:
            entry = self.eager.popleft()
            if self._closable(entry):
                entry.closing = True
                entry.query.inside += 1
                if entry.neighbours:
                    self._moves.enter(entry, now)
                return entry
        return None

    def closed(self, entry: Entry, error: BaseException | None, now: float) -> None:
        """It has been closed; ``error``: what ``close`` raised although it must not."""
        query = entry.query
        entry.closing = False
        query.inside -= 1
        self._moves.move(entry, DriverState.CLOSED, now)
        query.open_count -= 1
        if entry.neighbours:
            self.offer_all(self._moves.leave(entry, now))
        if error is not None:
            self.fail(query, entry, error, now)
        self.check_halted(query)
        self._check_over(query, now)

    def offer_all(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.offer(entry)

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
        self.offer_all([entry for entry in query.entries if entry.state is DriverState.FINISHING])
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
                entry.yield_asked = True

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
        """Let nothing of it run; ``future`` is for the shell to resolve when that is so. What was ready, or would be
        but for a neighbour, is marked to run again."""
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
                entry.notified = entry.notified or entry.wanted
                entry.wanted = False
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
