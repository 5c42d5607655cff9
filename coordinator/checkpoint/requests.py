"""Which checkpoint starts next and when, and how the savepoints that users asked for turned out.

Rules:

1. Savepoints come first, in the order in which they were asked for; then a user's checkpoint, then that of an ended
   branch, then the periodic one. The last three are conditions, not a queue: what comes due while a checkpoint is in
   flight is one request afterwards, however many asked, and any checkpoint answers every user.
2. One is in flight at a time, savepoints included: barriers never meet those of another one. So that of an ended branch
   waits for one that may cover the branch already, and a thousand tasks that end one by one make few checkpoints.
3. Periodic ones and those of ended branches keep the minimum pause after the end of the last one; a user's request does
   not. After a failed one everything waits ``retry_pause``, so that a broken disk is not asked in a hot loop.
4. Nothing starts unless the job runs, nor once the savepoint that it stops with is on its way. While it runs *in part*
   only checkpoints start, and those as ever: regions that do not run are carried. A user whose checkpoint carried some
   gets another one when the job runs as a whole. The periodic clock
   starts anew when the job runs; savepoints leave it alone. When the job *resumes* (tasks were lost, or another
   coordinator came before) the first periodic one follows after ``after_restart``, if that is less than the interval:
   rows that were made again, and those that waited meanwhile, become visible soon.
5. A checkpoint whose barriers did not align in time is followed by a cut, at once.
6. A user's checkpoint that fails is wanted again; a savepoint that fails is not: its caller is told.
7. A name of a savepoint is answered once.
8. A job that moves to another shape takes the one checkpoint that it moves with, and no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ...engine.core.identity import CheckpointId
from ..model.events import Failure
from ..model.kinds import FINAL, INSTEAD, MOVE, PERIODIC, USER, Cause, FailureReason, Request
from ..model.settings import Settings
from ..model.statistics import SavepointResult
from ..state.tasks import Region, TaskRecord, TaskTable

MOST_QUEUED = 1000
"""Savepoints that may wait: more is a mistake in somebody's loop."""

_NOW = float("-inf")


class RequestDecider:
    """Remembers who asked and when the last checkpoint started and ended; answers when which may start."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: When the next periodic one is due, if any; meaningless unless the job runs.
        self._periodic_at: float | None = None
        #: Whether the job runs as a whole, and whether some region does.
        self._running = self._in_part = False
        #: Whether a checkpoint or savepoint is in flight.
        self._in_flight = False
        #: Whether it is, or was, the savepoint that the job stops with.
        self._stopping = False
        #: Savepoints asked for and not started, oldest first.
        self._savepoints: deque[Request] = deque()
        #: Whether a user asked for a checkpoint since the last start of one, and since that of a whole one.
        self._requested = self._owed = False
        #: Whether a branch has ended that no checkpoint covers.
        self._final = False
        #: Whether a cut is to take the place of a checkpoint that was given up.
        self._instead = False
        #: Not before this time: minimum pause, and pause after a failure.
        self._pause_until = _NOW
        self._retry_at = _NOW

    def job_runs(self, now: float, resumed: bool = False) -> None:
        """Every task runs or has finished; ``resumed``: not for the first time."""
        if not self._running:
            self._running = self._in_part = True
            self._schedule(now, self._settings.after_restart if resumed else None)

    def part_runs(self, now: float) -> None:
        """Some region runs, and some does not."""
        self._running = False
        if not self._in_part:
            self._in_part = True
            self._schedule(now)

    def job_stops(self) -> None:
        """No checkpoint until ``job_runs`` or ``part_runs``. Requests are kept."""
        self._running = self._in_part = False

    def request(self) -> None:
        """A user asks for a checkpoint now."""
        self._requested = True

    def request_instead(self) -> None:
        """A checkpoint was given up whose barriers did not align in time."""
        self._instead = True

    def request_savepoint(self, request: Request) -> FailureReason | None:
        """A user asks for a savepoint; why it is refused, or None."""
        if len(self._savepoints) >= MOST_QUEUED:
            return FailureReason.TOO_MANY_CHECKPOINT_REQUESTS
        self._savepoints.append(request)
        return None

    @property
    def queued(self) -> tuple[Request, ...]:
        """Savepoints that have not started."""
        return tuple(self._savepoints)

    def drop_queued(self) -> tuple[Request, ...]:
        """The job is over: nobody will take these."""
        given_up = tuple(self._savepoints)
        self._savepoints.clear()
        return given_up

    def want_final(self, wanted: bool) -> bool:
        """Whether some ended branch still needs a checkpoint that covers it; the answer: whether that is new."""
        before, self._final = self._final, wanted
        return before is not wanted

    def started(self, request: Request, now: float, whole: bool = True) -> None:
        """The checkpoint that :meth:`choose` named starts; ``whole``: every region takes part."""
        self._in_flight = True
        if request.kind.is_savepoint:
            self._savepoints.remove(request)
            self._stopping |= request.cause is Cause.STOP
        else:
            self._owed = not whole and (self._owed or self._requested)
            self._requested = self._instead = False
            self._schedule(now)

    def carries(self, request: Request) -> None:
        """A region that took part in a checkpoint in flight does not any more."""
        self._owed |= request.cause is Cause.USER

    def completed(self, now: float) -> None:
        """The checkpoint in flight is complete. If the job stops with it, nothing starts any more."""
        self._in_flight = False
        self._pause_until = now + self._settings.min_pause

    def aborted(self, request: Request, now: float) -> None:
        """The checkpoint in flight was aborted."""
        self._in_flight = False
        self._requested |= request.cause is Cause.USER
        if request.cause is Cause.STOP:
            self._stopping = False
        self._pause_until = now + self._settings.min_pause
        self._retry_at = now + self._settings.retry_pause

    def next_at(self) -> float | None:
        """When a checkpoint is due (a past time: now); None if none is wanted or none may start."""
        return min((at for at, _ in self._wanted()), default=None)

    def choose(self, now: float) -> Request | None:
        """The checkpoint that should start now, the most urgent of those that may."""
        return next((request for at, request in self._wanted() if at <= now), None)

    def _wanted(self) -> list[tuple[float, Request]]:
        """What is wanted, with the earliest time; the most urgent first."""
        if not self._in_part or self._stopping or self._in_flight or (self._settings.moves and not self._running):
            return []
        if self._settings.moves:
            return [(self._retry_at, MOVE)]
        wanted: list[tuple[float, Request]] = []
        if self._savepoints and self._running:
            wanted.append((self._retry_at, self._savepoints[0]))
        paused = max(self._pause_until, self._retry_at)
        if self._instead:
            wanted.append((_NOW, INSTEAD))
        if self._requested or (self._owed and self._running):
            wanted.append((self._retry_at, USER))
        if self._final:
            wanted.append((paused, FINAL))
        if self._periodic_at is not None:
            wanted.append((max(self._periodic_at, paused), PERIODIC))
        return wanted

    def _schedule(self, now: float, at_most: float | None = None) -> None:
        interval = self._settings.interval
        if interval is not None and at_most is not None:
            interval = min(interval, at_most)
        self._periodic_at = None if interval is None else now + interval


REMEMBERED = 64
"""Results: callers look them up in the job's status soon."""


class SavepointResults:
    """The newest results, oldest first. A name is answered once."""

    def __init__(self) -> None:
        self._results: deque[SavepointResult] = deque(maxlen=REMEMBERED)

    @property
    def results(self) -> tuple[SavepointResult, ...]:
        return tuple(self._results)

    def asked(self, request: Request, in_flight: Iterable[Request], decider: RequestDecider) -> None:
        """A user asks, perhaps again: a name that has been answered or is about to be is not heard."""
        known = {one.name for one in (*in_flight, *decider.queued)} | {one.request for one in self._results}
        if request.name not in known:
            refusal = decider.request_savepoint(request)
            if refusal is not None:
                self.refused(request, refusal.value)

    def taken(self, request: Request, checkpoint: CheckpointId, location: str) -> None:
        """The savepoint is complete."""
        self._note(request, checkpoint, location, None)

    def failed(self, request: Request, checkpoint: CheckpointId, failure: Failure) -> None:
        """It was aborted."""
        self._note(request, checkpoint, None, failure)

    def refused(self, request: Request, why: str) -> None:
        """It was never begun."""
        failure = Failure(f"the savepoint was not taken: {why}", retry=True, kind="StorageError")
        self._note(request, None, None, failure)

    def _note(
        self, request: Request, checkpoint: CheckpointId | None, location: str | None, failure: Failure | None
    ) -> None:
        self._results.append(SavepointResult(request.name, request.kind.value, checkpoint, location, failure))


class EndedBranches:
    """Keeps the decider informed."""

    def __init__(self, tasks: TaskTable, decider: RequestDecider, *, each: bool) -> None:
        self._tasks = tasks
        self._decider = decider
        #: Whether each branch gets one, and not all together.
        self._each = each
        #: Regions with such a branch.
        self._regions: set[int] = set()

    def data_ended(self, record: TaskRecord) -> bool:
        """The task's data have ended; whether a checkpoint is wanted now that was not before."""
        if not self._tasks.branch_ended(self._tasks.region_of(record)):
            return False
        self._regions.add(record.region)
        return self._decider.want_final(self._wanted())

    def region_stopped(self, region: Region) -> None:
        """Its tasks will reach their end again."""
        self._regions.discard(region.index)
        self._decider.want_final(self._wanted())

    def look_again(self) -> None:
        """A checkpoint completed: which ended branches does none cover?"""
        regions = self._tasks.regions
        self._regions = {index for index in self._regions if self._tasks.branch_ended(regions[index])}
        self._decider.want_final(self._wanted())

    def _wanted(self) -> bool:
        over = self._each or not any(any(region.unended.values()) for region in self._tasks.regions)
        return over and bool(self._regions)
