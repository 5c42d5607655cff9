"""What a task has read, written and committed for it, on threads of its own. No Ray.

Rules:

1. The task's thread never waits for storage. Results come back through callbacks, on one of these threads.
2. Storage that fails declines the checkpoint: the task goes on. A commit that fails ends the attempt: what the log
   promises must become visible, so the coordinator restarts and commits again.
3. Committing is idempotent (the committer's contract), so an order given twice is carried out twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from ...coordinator.model.commands import CommitCheckpoint, DeployTask
from ...coordinator.model.events import Event, SnapshotTiming, TaskAcked, TaskCommitted, TaskDeclined
from ...engine.core.errors import PenstockError, StorageError
from ...engine.core.identity import Attempt, CheckpointId, CommitPermit, TaskId
from ...engine.exchange.channel_state import NOTHING_RESTORED, Restored
from ...engine.plan.plan import JobPlan
from ...engine.runtime.task_checkpoints import TaskSnapshot
from ...engine.scheduler.threads import Threads
from ..protocol.messages import UNKNOWN_TIME, CommitDone
from ..protocol.translate import failure_of, unexpected
from ..storage.snapshots import SnapshotFiles

_log = logging.getLogger(__name__)

THREADS = 2
"""One snapshot may be written while another commit runs; more would only compete for the same disk."""


class TaskFiles:
    """See the module's rules. ``report`` sends an event to the coordinator, from any thread."""

    def __init__(self, plan: JobPlan, snapshots: SnapshotFiles, report: Callable[[Event], None]) -> None:
        self._plan = plan
        self._snapshots = snapshots
        self._report = report
        self._threads = Threads(THREADS, "penstock-files")
        #: the files of the last snapshot: those that are named again were not written again
        self._named: frozenset[str] = frozenset()

    @property
    def folder(self) -> str:
        """The checkpoint folder."""
        return self._snapshots.url

    def read(self, command: DeployTask, done: Callable[[Restored | PenstockError], None]) -> None:
        """Read what an attempt is restored from and hand it, or the error, to ``done``."""

        def work() -> None:
            snapshots = SnapshotFiles(command.root, self._plan.name) if command.root else self._snapshots
            try:
                done(self._restored(command, snapshots))
            except Exception as error:
                done(as_penstock_error(error))

        self._threads.submit(work)

    def _restored(self, command: DeployTask, snapshots: SnapshotFiles) -> Restored:
        """What the attempt is restored from: of a task that had finished only how far its sources had come."""
        state = command.state
        if command.finished:
            state = tuple(each for each in state if each.operator in self._plan.sources)
        if not (state or command.ended or command.finished):
            return NOTHING_RESTORED
        return Restored(snapshots.read(state), snapshots.read_channels(state), command.ended, command.finished)

    def write(self, task: TaskId, attempt: Attempt, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None:
        """Store a snapshot and tell the coordinator that it is there, or why it is not."""

        def work() -> None:
            started = time.perf_counter()
            try:
                tables, channels = snapshot.tables, snapshot.channels
                # the files of a task that was deployed as finished are carried on by the coordinator
                carried = snapshot.finished_on_restore
                state = () if carried else self._snapshots.write(task, checkpoint, attempt, tables, channels)
            except Exception as error:
                failure = failure_of(as_penstock_error(error))
                self._report(TaskDeclined(task, attempt, checkpoint, failure, UNKNOWN_TIME))
                return
            ended, named = snapshot.data_ended, self._named
            self._named = frozenset(handle.location for handle in state)
            written = sum(handle.bytes for handle in state if handle.location not in named)
            timing = SnapshotTiming(
                alignment=snapshot.alignment,
                asynchronous=time.perf_counter() - started,
                new_bytes=written,
                processed_bytes=snapshot.processed_bytes,
                persisted_bytes=sum(handle.bytes for handle in state if handle.is_channel_file),
                unaligned=snapshot.unaligned,
            )
            self._report(
                TaskAcked(
                    task,
                    attempt,
                    checkpoint,
                    state,
                    snapshot.committables,
                    ended,
                    UNKNOWN_TIME,
                    timing,
                    finished_on_restore=carried,
                    ended=snapshot.ended,
                    ledger=snapshot.ledger,
                )
            )

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
        self._threads.close(drop=True)


def commit_permit(plan: JobPlan, permit: CommitPermit) -> PenstockError | None:
    """Make a permit's committables visible, operator by operator. The error, if one of them could not be."""
    operators = {committable.operator: None for committable in permit.committables}
    for operator in operators:
        if operator not in plan.sinks:  # of a snapshot whose flow had it; the user has allowed to leave it behind
            _log.warning("what sink %s had prepared stays where it is: the flow does not have it any more", operator)
            continue
        own = tuple(committable for committable in permit.committables if committable.operator == operator)
        try:
            plan.committer(operator).commit(replace(permit, committables=own))
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
