"""What a task has read, written and committed for it, on threads of its own. No Ray.

Rules:

1. The task's thread never waits for storage. Results come back through callbacks, on one of these threads.
2. Storage that fails declines the checkpoint: the task goes on. A commit that fails ends the attempt: what the log
   promises must become visible, so the coordinator restarts and commits again.
3. Committing is idempotent (the committer's contract), so an order given twice is carried out twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from ..coordinator.commands import CommitCheckpoint, DeployTask
from ..coordinator.events import Event, TaskAcked, TaskCommitted, TaskDeclined
from ..engine.errors import PenstockError, StorageError
from ..engine.identity import Attempt, CheckpointId, CommitPermit, TaskId
from ..engine.plan import JobPlan
from ..engine.task_listener import TaskSnapshot
from .messages import UNKNOWN_TIME, CommitDone
from .snapshots import SnapshotFiles
from .translate import failure_of, unexpected

THREADS = 2
"""One snapshot may be written while another commit runs; more would only compete for the same disk."""


class TaskFiles:
    """See the module's rules. ``report`` sends an event to the coordinator, from any thread."""

    def __init__(self, plan: JobPlan, snapshots: SnapshotFiles, report: Callable[[Event], None]) -> None:
        self._plan = plan
        self._snapshots = snapshots
        self._report = report
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-files")

    def read(self, command: DeployTask, done: Callable[[Mapping[str, pa.Table] | PenstockError], None]) -> None:
        """Read an attempt's state and hand it, or the error, to ``done``."""

        def work() -> None:
            try:
                done(self._snapshots.read(command.state) if command.state else {})
            except Exception as error:
                done(as_penstock_error(error))

        self._threads.submit(work)

    def write(self, task: TaskId, attempt: Attempt, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None:
        """Store a snapshot and tell the coordinator that it is there, or why it is not."""

        def work() -> None:
            try:
                state = self._snapshots.write(task, checkpoint, attempt, snapshot.tables)
            except Exception as error:
                failure = failure_of(as_penstock_error(error))
                self._report(TaskDeclined(task, attempt, checkpoint, failure, UNKNOWN_TIME))
                return
            ended = snapshot.data_ended
            self._report(TaskAcked(task, attempt, checkpoint, state, snapshot.committables, ended, UNKNOWN_TIME))

        self._threads.submit(work)

    def commit(self, command: CommitCheckpoint, done: Callable[[CommitDone], None]) -> None:
        """Make a permit's committables visible, tell the coordinator, then ``done``."""

        def work() -> None:
            self._snapshots.completed(command.task, command.permit.checkpoint)
            error = commit_permit(self._plan, command.permit)
            if error is None:
                self._report(TaskCommitted(command.task, command.attempt, command.permit.checkpoint, UNKNOWN_TIME))
            done(CommitDone(command.attempt, command.permit.checkpoint, error))

        self._threads.submit(work)

    def close(self) -> None:
        """Let what runs end and start nothing new."""
        self._threads.shutdown(wait=True, cancel_futures=True)


def commit_permit(plan: JobPlan, permit: CommitPermit) -> PenstockError | None:
    """Make a permit's committables visible, operator by operator. The error, if one of them could not be."""
    operators = {committable.operator: None for committable in permit.committables}
    for operator in operators:
        own = tuple(committable for committable in permit.committables if committable.operator == operator)
        try:
            plan.committer(operator).commit(CommitPermit(permit.checkpoint, own))
        except Exception as error:
            return as_penstock_error(error).at(operator)
    return None


def as_penstock_error(error: Exception) -> PenstockError:
    """An error of storage as one of ours; anything unforeseen with its traceback."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, OSError):
        remedy = "check the folder's permissions and its disk's free space; the job can go on from its last checkpoint"
        return StorageError(f"storage failed: {error}", remedy)
    return unexpected(error)
