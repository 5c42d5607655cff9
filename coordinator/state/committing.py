"""Tells tasks to commit, and commits for those that no longer can.

Rules:

1. A started or deployed task gets ``CommitCheckpoint``; for a task that has finished, is gone from the graph, or whose
   job is ending, the shell commits (``CommitOrphans``) under attempt number 0, which no real attempt has.
2. A task between two attempts waits: its next attempt is told as soon as it is deployed, before it starts.
"""

from __future__ import annotations

from dataclasses import replace

from ...engine.core.identity import Attempt, CheckpointId, CommitPermit, Committable, TaskId
from ..model.commands import CommitCheckpoint, CommitOrphans
from ..model.job_states import TaskStatus
from ..model.manifest import Manifest
from .commits import CommitLedger
from .context import Context

_TOLD = frozenset({TaskStatus.DEPLOYED, TaskStatus.RUNNING, TaskStatus.DATA_ENDED})


class Committing:
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
