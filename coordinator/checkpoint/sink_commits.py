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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from ...engine.core.identity import Attempt, CheckpointId, CommitPermit, Committable, TaskId
from ..model.commands import CommitCheckpoint, CommitOrphans
from ..model.job_states import TaskStatus, check_move
from ..model.manifest import Manifest
from ..state.context import Context

_TOLD = frozenset({TaskStatus.DEPLOYED, TaskStatus.RUNNING, TaskStatus.DATA_ENDED})


class CommitState(Enum):
    """Where the commits of one task are."""

    __hash__ = object.__hash__

    OPEN = "open"
    """Something is not known to be visible, and nobody has been told to commit it."""
    NOTIFIED = "notified"
    """Somebody has been told and has not answered."""
    SETTLED = "settled"
    """Everything is visible, or left to whoever resumes the job: nothing is remembered."""


LEGAL_COMMIT_MOVES: Mapping[CommitState, frozenset[CommitState]] = {
    CommitState.OPEN: frozenset({CommitState.NOTIFIED, CommitState.SETTLED}),
    CommitState.NOTIFIED: frozenset({CommitState.OPEN, CommitState.NOTIFIED, CommitState.SETTLED}),
    CommitState.SETTLED: frozenset(),
}


@dataclass(slots=True, eq=False)
class _TaskCommits:
    """One task's open commits."""

    #: Not known to be visible, oldest first.
    entries: list[tuple[CheckpointId, Committable]] = field(default_factory=list)
    state: CommitState = CommitState.OPEN
    #: Who was told last, up to which checkpoint, and when; of no meaning unless NOTIFIED.
    attempt: Attempt | None = None
    checkpoint: CheckpointId | None = None
    sent_at: float = 0.0


class SinkCommits:
    """See the module's rules."""

    def __init__(self, context: Context) -> None:
        self._context = context
        #: All and only the tasks whose commits are not settled.
        self._tasks: dict[TaskId, _TaskCommits] = {}
        #: Whether the job ends: no task is there to commit.
        self._ending = False

    # --- what happened -------------------------------------------------------------------------------------------

    def restore(self, manifest: Manifest) -> None:
        """Whatever the manifest holds may be invisible still: commit it again."""
        for state in manifest.tasks:
            self.add(manifest.checkpoint, state.task, state.committables)
        for task, committable in manifest.uncommitted:
            self.add(manifest.checkpoint, task, (committable,))
        for task in sorted(self._tasks):
            if self._context.tasks.get(task) is None:
                self._notify(task, manifest.checkpoint)

    def add(self, checkpoint: CheckpointId, task: TaskId, committables: Iterable[Committable]) -> None:
        """The checkpoint is durable and holds these of the task; one that is open already is not added twice."""
        for committable in committables:
            entries = self._tasks.setdefault(task, _TaskCommits()).entries
            if all(committable != known for _, known in entries):
                entries.append((checkpoint, committable))

    def completed(self, checkpoint: CheckpointId, task: TaskId, committables: tuple[Committable, ...]) -> None:
        """The checkpoint is durable: the task is told, with or without committables."""
        self.add(checkpoint, task, committables)
        self._notify(task, checkpoint)

    def confirm(self, task: TaskId, attempt: Attempt, checkpoint: CheckpointId) -> None:
        """Somebody has committed everything up to the checkpoint. An attempt that was not told last settles nothing."""
        commits = self._tasks.get(task)
        if commits is None or commits.state is not CommitState.NOTIFIED or commits.attempt != attempt:
            return
        if commits.entries:
            commits.entries = [entry for entry in commits.entries if entry[0] > checkpoint]
        answered = commits.checkpoint is not None and commits.checkpoint <= checkpoint
        # a task that is gone needs no notice, only its entries gone
        if answered or (attempt == self.orphan_attempt and not commits.entries):
            self._release(task, commits)

    def deployed(self, task: TaskId) -> None:
        """A new attempt is there: it commits what the one before may not have."""
        commits = self._tasks.get(task)
        if commits is not None and commits.entries:
            self._notify(task, commits.entries[-1][0])

    def stopped(self, task: TaskId) -> None:
        """The attempt is over and will not answer; what is open waits for the next one."""
        commits = self._tasks.get(task)
        if commits is not None and commits.state is CommitState.NOTIFIED:
            self._release(task, commits)

    def finished(self, task: TaskId) -> None:
        """The task is over; what it leaves open, the shell commits."""
        self.stopped(task)
        self.deployed(task)

    def job_ends(self) -> None:
        """No task will commit any more."""
        self._ending = True
        for task in sorted(self._tasks):
            self.finished(task)

    def abandon(self, task: TaskId) -> None:
        """Leave the task's commits to whoever resumes the job: the log lists them."""
        commits = self._tasks.get(task)
        if commits is not None:
            self._move(task, commits, CommitState.SETTLED)

    def resend(self, before: float) -> None:
        """Give every order again that had no answer since then."""
        for task, commits in sorted(self._tasks.items()):
            if commits.state is CommitState.NOTIFIED and commits.sent_at <= before and commits.checkpoint is not None:
                self._notify(task, commits.checkpoint)

    # --- queries -------------------------------------------------------------------------------------------------

    @property
    def orphan_attempt(self) -> Attempt:
        """The attempt under which the shell commits (rule 4)."""
        return Attempt(self._context.generation, 0)

    @property
    def has_entries(self) -> bool:
        """Whether some committable is not known to be visible."""
        return any(commits.entries for commits in self._tasks.values())

    @property
    def oldest_open(self) -> CheckpointId | None:
        """The oldest checkpoint some of whose committables are not known to be visible."""
        return min((commits.entries[0][0] for commits in self._tasks.values() if commits.entries), default=None)

    def unsettled(self) -> tuple[TaskId, ...]:
        """Tasks with anything open, sorted."""
        return tuple(sorted(self._tasks))

    def uncommitted(self) -> tuple[tuple[TaskId, Committable], ...]:
        """Everything not known to be visible, for the next manifest."""
        return tuple((task, known) for task, commits in sorted(self._tasks.items()) for _, known in commits.entries)

    def validate(self) -> None:
        """Nothing settled is remembered, and entries are in the order of their checkpoints."""
        for task, commits in self._tasks.items():
            ids = [checkpoint for checkpoint, _ in commits.entries]
            notified = commits.state is CommitState.NOTIFIED
            if ids != sorted(ids) or not (ids or notified) or commits.state is CommitState.SETTLED:
                raise AssertionError(f"commits of {task} are {commits.state.value} and out of order or empty: {ids}")
            if notified and (commits.attempt is None or commits.checkpoint is None):
                raise AssertionError(f"nobody was told to commit for {task}, and an answer is awaited")

    # --- the moves -----------------------------------------------------------------------------------------------

    def _notify(self, task: TaskId, checkpoint: CheckpointId) -> None:
        """Tell whoever can commit for the task; nobody can while it is between two attempts."""
        record, commits = self._context.tasks.get(task), self._tasks.get(task)
        if record is None or record.state is TaskStatus.FINISHED or self._ending:
            if commits is not None and commits.entries:
                permit = self._permit(task, commits, self.orphan_attempt, checkpoint)
                self._context.order(CommitOrphans(task, self.orphan_attempt, permit))
        elif record.state in _TOLD and record.attempt is not None:
            if commits is None:
                commits = self._tasks[task] = _TaskCommits()
            permit = self._permit(task, commits, record.attempt, checkpoint)
            self._context.order(CommitCheckpoint(task, record.attempt, permit))

    def _permit(self, task: TaskId, commits: _TaskCommits, attempt: Attempt, checkpoint: CheckpointId) -> CommitPermit:
        self._move(task, commits, CommitState.NOTIFIED)
        commits.attempt, commits.checkpoint, commits.sent_at = attempt, checkpoint, self._context.now
        listed = tuple(one for known, one in commits.entries if known is checkpoint or known <= checkpoint)
        permit, identity = CommitPermit(checkpoint, listed), self._context.identity
        return replace(permit, by=identity) if identity.uuid else permit

    def _release(self, task: TaskId, commits: _TaskCommits) -> None:
        """No answer is awaited any more."""
        commits.attempt = commits.checkpoint = None
        self._move(task, commits, CommitState.OPEN if commits.entries else CommitState.SETTLED)

    def _move(self, task: TaskId, commits: _TaskCommits, to: CommitState) -> None:
        commits.state = check_move(f"commits of {task}", LEGAL_COMMIT_MOVES, commits.state, to)
        if to is CommitState.SETTLED:
            del self._tasks[task]
