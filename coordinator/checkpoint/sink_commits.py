"""What completed checkpoints hold that is not yet known to be visible, who was told to commit it, and who commits it
where no task can.

Rules:

1. A committable enters when its checkpoint is durable, and leaves only when somebody answered that a permit with it has
   been committed. Until then every later manifest lists it, so a crash of anybody loses nothing.
2. A permit for checkpoint n lists everything of the task up to n, so one answer settles all of it.
3. Every task of a checkpoint is told, with or without committables: the notice is what lets it end.
4. A started or deployed task gets ``CommitCheckpoint``; for a task that has finished, is gone from the graph, or whose
   job is ending, the shell commits (``CommitOrphans``) under attempt number 0, which no real attempt has.
5. A task between two attempts waits: its next attempt is told as soon as it is deployed, before it starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ...engine.core.identity import Attempt, CheckpointId, CommitPermit, Committable, TaskId
from ..model.commands import CommitCheckpoint, CommitOrphans
from ..model.job_states import TaskStatus
from ..model.manifest import Manifest
from ..state.context import Context


@dataclass(slots=True, eq=False)
class Outstanding:
    """One task's open commits."""

    #: Not known to be visible, oldest first.
    entries: list[tuple[CheckpointId, Committable]] = field(default_factory=list)
    #: The newest notice without an answer: to whom, for which checkpoint, when.
    attempt: Attempt | None = None
    checkpoint: CheckpointId | None = None
    sent_at: float = 0.0


class CommitLedger:
    """Open commits by task."""

    def __init__(self) -> None:
        #: All and only the tasks with entries or with an unanswered notice.
        self._tasks: dict[TaskId, Outstanding] = {}

    def add(self, checkpoint: CheckpointId, task: TaskId, committables: Iterable[Committable]) -> None:
        """The checkpoint is complete and holds these of the task; one that is open already is not added twice."""
        for committable in committables:
            entries = self._tasks.setdefault(task, Outstanding()).entries
            if all(committable != known for _, known in entries):
                entries.append((checkpoint, committable))

    def notice(self, task: TaskId, attempt: Attempt, checkpoint: CheckpointId, now: float) -> CommitPermit:
        """The attempt is told now; the permit to tell it."""
        outstanding = self._tasks.get(task)
        if outstanding is None:
            outstanding = self._tasks[task] = Outstanding()
        outstanding.attempt, outstanding.checkpoint, outstanding.sent_at = attempt, checkpoint, now
        listed = [one for known, one in outstanding.entries if known is checkpoint or known <= checkpoint]
        return CommitPermit(checkpoint, tuple(listed))

    def confirm(self, task: TaskId, attempt: Attempt, checkpoint: CheckpointId) -> bool:
        """The attempt has committed everything up to the checkpoint; whether anything was open."""
        outstanding = self._tasks.get(task)
        if outstanding is None or outstanding.attempt != attempt:
            return False
        if outstanding.entries:
            outstanding.entries = [entry for entry in outstanding.entries if entry[0] > checkpoint]
        if outstanding.checkpoint is not None and outstanding.checkpoint <= checkpoint:
            outstanding.attempt = outstanding.checkpoint = None
            if not outstanding.entries:
                del self._tasks[task]
        return True

    def forget_notice(self, task: TaskId) -> None:
        """Nobody is going to answer: the attempt has stopped or finished."""
        outstanding = self._tasks.get(task)
        if outstanding is not None:
            outstanding.attempt = outstanding.checkpoint = None
            if not outstanding.entries:
                del self._tasks[task]

    def give_up(self, task: TaskId) -> None:
        """Leave the task's commits to whoever resumes the job: the log lists them."""
        self._tasks.pop(task, None)

    def newest(self, task: TaskId) -> CheckpointId | None:
        """The newest checkpoint of which the task has entries; None if there are none."""
        outstanding = self._tasks.get(task)
        return outstanding.entries[-1][0] if outstanding is not None and outstanding.entries else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is open."""
        return not self._tasks

    @property
    def has_entries(self) -> bool:
        """Whether some committable is not known to be visible."""
        return any(outstanding.entries for outstanding in self._tasks.values())

    @property
    def oldest_open(self) -> CheckpointId | None:
        """The oldest checkpoint some of whose committables are not known to be visible."""
        return min((known.entries[0][0] for known in self._tasks.values() if known.entries), default=None)

    def tasks(self) -> tuple[TaskId, ...]:
        """Tasks with anything open, sorted."""
        return tuple(sorted(self._tasks))

    def with_entries(self) -> tuple[TaskId, ...]:
        """Tasks with committables that are not known to be visible, sorted."""
        return tuple(sorted(task for task, outstanding in self._tasks.items() if outstanding.entries))

    def overdue(self, before: float) -> tuple[tuple[TaskId, CheckpointId], ...]:
        """Notices sent at or before that time and not answered."""
        return tuple(
            (task, outstanding.checkpoint)
            for task, outstanding in sorted(self._tasks.items())
            if outstanding.checkpoint is not None and outstanding.sent_at <= before
        )

    def uncommitted(self) -> tuple[tuple[TaskId, Committable], ...]:
        """Everything not known to be visible, for the next manifest."""
        return tuple((task, known) for task, open in sorted(self._tasks.items()) for _, known in open.entries)

    def validate(self) -> None:
        """No empty records, and entries in the order of their checkpoints."""
        for task, outstanding in self._tasks.items():
            ids = [checkpoint for checkpoint, _ in outstanding.entries]
            if ids != sorted(ids) or not (ids or outstanding.checkpoint):
                raise AssertionError(f"commits of {task} are out of order or empty: {ids}")


_TOLD = frozenset({TaskStatus.DEPLOYED, TaskStatus.RUNNING, TaskStatus.DATA_ENDED})


class SinkCommits:
    """The ledger and the orders that empty it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.ledger = CommitLedger()
        #: Whether the job ends: no task is there to commit.
        self._ending = False

    @property
    def orphan_attempt(self) -> Attempt:
        return Attempt(self._context.generation, 0)

    def restore(self, manifest: Manifest) -> None:
        """Whatever the manifest holds may be invisible still: commit it again."""
        for state in manifest.tasks:
            self.ledger.add(manifest.checkpoint, state.task, state.committables)
        for task, committable in manifest.uncommitted:
            self.ledger.add(manifest.checkpoint, task, (committable,))
        for task in self.ledger.with_entries():
            if self._context.tasks.get(task) is None:
                self._tell(task, manifest.checkpoint)

    def completed(self, checkpoint: CheckpointId, task: TaskId, committables: tuple[Committable, ...]) -> None:
        """The checkpoint stands in the log: the task is told, with or without committables."""
        self.ledger.add(checkpoint, task, committables)
        self._tell(task, checkpoint)

    def confirm(self, task: TaskId, attempt: Attempt, checkpoint: CheckpointId) -> None:
        """Somebody has committed. A task that is gone needs no notice, only its entries gone."""
        self.ledger.confirm(task, attempt, checkpoint)
        if attempt.number == 0 and attempt == self.orphan_attempt and self.ledger.newest(task) is None:
            self.ledger.forget_notice(task)

    def deployed(self, task: TaskId) -> None:
        """A new attempt is there: it commits what the one before may not have."""
        newest = self.ledger.newest(task)
        if newest is not None:
            self._tell(task, newest)

    def stopped(self, task: TaskId) -> None:
        """The attempt is over; what is open waits for the next one."""
        self.ledger.forget_notice(task)

    def finished(self, task: TaskId) -> None:
        """The task is over; what it leaves open, the shell commits."""
        self.ledger.forget_notice(task)
        self.deployed(task)

    def job_ends(self) -> None:
        """No task will commit any more."""
        self._ending = True
        for task in self.ledger.tasks():
            self.finished(task)

    def resend(self, before: float) -> None:
        """Give every order again that had no answer since then."""
        for task, checkpoint in self.ledger.overdue(before):
            self._tell(task, checkpoint)

    def _permit(self, task: TaskId, attempt: Attempt, checkpoint: CheckpointId) -> CommitPermit:
        permit = self.ledger.notice(task, attempt, checkpoint, self._context.now)
        identity = self._context.identity
        return replace(permit, by=identity) if identity.uuid else permit

    def _tell(self, task: TaskId, checkpoint: CheckpointId) -> None:
        record = self._context.tasks.get(task)
        if record is None or record.state is TaskStatus.FINISHED or self._ending:
            if self.ledger.newest(task) is not None:
                permit = self._permit(task, self.orphan_attempt, checkpoint)
                self._context.order(CommitOrphans(task, self.orphan_attempt, permit))
        elif record.state in _TOLD and record.attempt is not None:
            permit = self._permit(task, record.attempt, checkpoint)
            self._context.order(CommitCheckpoint(task, record.attempt, permit))
