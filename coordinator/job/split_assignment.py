"""Feeds the source tasks what a caller adds, and knows how far every window has come.

Rules:

1. ``released_splits`` says what may be released. A task gets it in order; it confirms, and what is not is sent
   again. A new attempt begins behind the newest completed checkpoint, which is what it was restored from.
2. A task barrier takes its id from the sequence of checkpoints' ids when it is released, and each wants a checkpoint at
   once: the rows of a window are visible when a checkpoint behind it is complete and committed (*published*).
3. A window is *reached* when every task that runs has drained. That is only told: who waits for a window waits until
   it is published, and that implies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...engine.core.identity import Attempt, CheckpointId, TaskId
from ..checkpoint.checkpoints import Checkpoints
from ..checkpoint.finalizer import SinkCommits
from ..checkpoint.pending import Phase
from ..model.commands import AssignSplits, DiscardSplitSets, ReadSplitSets
from ..model.events import SplitsAssigned, SplitSetEvent, SplitSetsRead, TaskReport, WindowEvent
from ..model.job_states import JobState, TaskStatus
from ..model.split_sets import SetPosition, SplitEntry, WindowEnded
from ..model.statistics import SplitStatus, WindowReport
from ..state.context import Context
from ..state.tasks import TaskRecord

REMEMBERED = 64
"""Windows whose statistics are kept."""


@dataclass(slots=True, eq=False)
class _Assigned:
    """One attempt of a source task. ``base``: where it began."""

    attempt: Attempt
    base: int
    sent: int
    confirmed: int = -1
    sent_at: float = 0.0


@dataclass(slots=True, eq=False)
class _Window:
    """A window whose barrier is known."""

    entry: WindowEnded
    sets: int
    barrier: CheckpointId | None = None
    tasks: dict[TaskId, tuple[Attempt, TaskReport]] = field(default_factory=dict)


class SplitAssignment:
    """See the module's rules. ``commits``: knows what is visible."""

    def __init__(self, context: Context, checkpoints: Checkpoints, commits: SinkCommits) -> None:
        self._context = context
        self._feed = context.splits
        self._checkpoints = checkpoints
        self._commits = commits
        #: By task: what its attempt has got.
        self._assigned: dict[TaskId, _Assigned] = {}
        #: By number, the newest ones.
        self._windows: dict[int, _Window] = {}
        #: Split sets before the window that is open, as far as is known.
        self._sets_closed = 0
        #: The log is being read from here on.
        self._reading: int | None = None
        #: It could not be read.
        self._read_again = False
        #: Entries up to here have been discarded.
        self._discarded = 0
        self._reached = self._published = 0

    # --- what is told --------------------------------------------------------------------------------------------

    def note(self, event: SplitSetEvent) -> None:
        """Entries of the log: an unread gap before them is read."""
        if isinstance(event, SplitSetsRead):
            self._reading = None
            self._discarded = max(self._discarded, event.oldest)
            self._read_again = event.failed
        if self._feed.begun:
            before = self._feed.known.number
            complete = self._feed.note(event.entries)
            self._look_at(event.entries, before)
            if not complete and not self._read_again:
                self._read()

    def _look_at(self, entries: Sequence[SplitEntry], before: int) -> None:
        for entry in entries:
            if before <= entry.at.number < self._feed.known.number and isinstance(entry, WindowEnded):
                sets, self._sets_closed = entry.at.sets - self._sets_closed, entry.at.sets
                self._windows[entry.at.windows + 1] = _Window(entry, sets)
        while len(self._windows) > REMEMBERED and min(self._windows) <= self._feed.covered.windows:
            del self._windows[min(self._windows)]

    def note_report(self, event: WindowEvent, record: TaskRecord) -> None:
        """A task has got what comes before a number, or has drained for a window."""
        if isinstance(event, SplitsAssigned):
            assigned = self._assigned.get(record.id)
            if assigned is not None and assigned.attempt == event.attempt:
                assigned.confirmed = max(assigned.confirmed, event.number)
        else:
            found = (window for window in self._windows.values() if window.barrier == event.barrier)
            for window in found:
                window.tasks[record.id] = (event.attempt, event.report)

    # --- what has become possible --------------------------------------------------------------------------------

    def advance(self, state: JobState) -> None:
        """Release what may go, and send it."""
        context, feed = self._context, self._feed
        sources = [context.tasks[task] for task in context.graph.split_tasks]
        if not sources or any(record.attempt is None for record in sources):
            return
        latest = self._context.retained.latest
        position = latest.splits if latest is not None and latest.splits is not None else SetPosition()
        if not feed.begun:
            feed.begin(position)
            self._sets_closed, self._discarded = position.sets, position.number
            self._read()
        elif position.number > feed.covered.number:
            feed.cover(position)
        self._discard()
        proposing = any(one.phase is Phase.PROPOSING for one in self._checkpoints.pendings.values())
        if state is JobState.RUNNING and not proposing:
            self._release()
        for record in sources:
            if record.is_started:
                self._send(record)

    def _release(self) -> None:
        feed, checkpoints = self._feed, self._checkpoints
        uncovered = feed.boundary.number > feed.covered.number
        wanted = uncovered or checkpoints.is_wanted
        for barrier in feed.release(whole_windows=wanted):
            window = self._windows.get(barrier.at.windows + 1)
            if window is not None:
                window.barrier = checkpoints.draw_id()
            checkpoints.request()

    def _send(self, record: TaskRecord, *, again: bool = False) -> None:
        feed, attempt = self._feed, record.attempt
        assert attempt is not None
        assigned = self._assigned.get(record.id)
        if assigned is None or assigned.attempt != attempt:
            assigned = self._assigned[record.id] = _Assigned(attempt, feed.covered.number, -1)
        if assigned.sent < feed.released or again:
            start = max(assigned.base, assigned.confirmed if again else assigned.sent)
            entries = feed.since(start)
            order = AssignSplits(record.id, attempt, assigned.base, start, entries, self._barriers(entries))
            assigned.sent, assigned.sent_at = feed.released, self._context.now
            self._context.order(order)

    def _barriers(self, entries: Sequence[SplitEntry]) -> tuple[CheckpointId, ...]:
        found = [self._windows[each.at.windows + 1].barrier for each in entries if isinstance(each, WindowEnded)]
        return tuple(each for each in found if each is not None)

    def _read(self) -> None:
        if self._reading is None:
            self._reading = self._feed.known.number
            self._context.order(ReadSplitSets(self._reading))

    def _discard(self) -> None:
        until = min(self._feed.covered.number, self._feed.known.number - 1)
        if until > self._discarded:
            self._context.order(DiscardSplitSets(tuple(range(self._discarded, until))))
            self._discarded = until

    def resend(self, before: float) -> None:
        """Give orders again that had no answer since then."""
        for task, assigned in self._assigned.items():
            record = self._context.tasks[task]
            silent = assigned.confirmed < assigned.sent and assigned.sent_at <= before
            if silent and record.is_started and record.attempt == assigned.attempt:
                self._send(record, again=True)
        if self._read_again:
            self._read()

    # --- what people see -----------------------------------------------------------------------------------------

    def status(self, state: JobState) -> SplitStatus | None:
        """How far it has come; None if the job takes no split sets, or that is not known yet."""
        feed = self._feed
        if not feed.begun:
            return None
        known = feed.known
        self._published = known.windows if state is JobState.FINISHED else max(self._published, self._visible())
        self._reached = max(self._reached, self._published)
        while self._is_reached(self._reached + 1):
            self._reached += 1
        return SplitStatus(
            entries=known.number,
            sets=known.sets,
            rounds=known.rounds,
            requested=known.windows,
            reached=self._reached,
            published=self._published,
            open_sets=known.sets - self._sets_closed,
            ended=feed.ended,
        )

    def _visible(self) -> int:
        """Windows up to here are covered by a completed checkpoint whose rows have all been committed."""
        oldest, kept = self._commits.oldest_open, self._context.retained.kept
        return max(
            (each.splits.windows for each in kept if each.splits and (oldest is None or each.checkpoint < oldest)),
            default=0,
        )

    def _is_reached(self, number: int) -> bool:
        """Whether every task that runs has drained for it; also if it was known to be so before a restart."""
        window = self._windows.get(number)
        if number <= max(self._reached, self._feed.covered.windows):
            return True
        if window is None or window.barrier is None:
            return False
        running = (record for record in self._context.tasks if record.state is not TaskStatus.FINISHED)
        told = ((window.tasks.get(record.id), record.attempt) for record in running)
        return all(found is not None and found[0] == attempt for found, attempt in told)

    def reports(self) -> tuple[WindowReport, ...]:
        """The windows that are remembered, oldest first."""
        return tuple(
            WindowReport(
                number=number,
                sets=window.sets,
                requested_at=window.entry.requested_at,
                tasks={task: report for task, (_, report) in sorted(window.tasks.items())},
                reached=self._is_reached(number),
            )
            for number, window in sorted(self._windows.items())
        )

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        if self._feed.begun:
            self._feed.validate()
