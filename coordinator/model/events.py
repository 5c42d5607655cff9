"""Facts that the coordinator receives, in the past tense: of the log, of tasks and processes, of users, of split sets.

Rules:

1. An event is true when it is sent and may be late, doubled or lost on the way; the machine copes with all three.
2. Whatever a task reports carries (task, attempt). Facts of a stale attempt change nothing.
3. ``now`` is the shell's monotonic clock in seconds; the core has no clock of its own. Points in time of window reports
   are seconds since the epoch, each by the clock of the machine that it was read on.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ...engine.core.identity import (
    Account,
    Attempt,
    CheckpointId,
    Committable,
    EndedLanes,
    Reweight,
    StateHandle,
    TaskId,
)
from .kinds import FailureReason, StopMode
from .manifest import LogEntry
from .split_sets import Skipped, SplitEntry


class Failure(msgspec.Struct, frozen=True):
    """What went wrong, as plain data. ``retry``: whether starting again may help (a user's error never does)."""

    message: str
    retry: bool
    operator: str = ""
    remedy: str = ""
    detail: str = ""
    kind: str = "PenstockError"
    """Name of the error class, so that the shell can raise the same one at the user."""


class LogRead(msgspec.Struct, frozen=True):
    """Answer to ``ReadLog``: every entry of the log, in order. ``running``: the owner of the newest claim if its run is
    known to be going on; else empty."""

    entries: tuple[LogEntry, ...]
    now: float
    running: str = ""


class LogFailed(msgspec.Struct, frozen=True):
    """The log could not be read, or holds what is no entry."""

    failure: Failure
    now: float


class EntryStored(msgspec.Struct, frozen=True):
    """Entry ``number`` was created by us."""

    number: int
    now: float


class EntryRefused(msgspec.Struct, frozen=True):
    """Entry ``number`` exists already with other content: somebody else wrote it. We are stale, or lost the race."""

    number: int
    now: float


class EntryFailed(msgspec.Struct, frozen=True):
    """The store failed (a full disk, no permission). It is unknown whether entry ``number`` was written."""

    number: int
    failure: Failure
    now: float


class ProcessReady(msgspec.Struct, frozen=True):
    """A process that can host the task is there. ``incarnation`` names it; a process restarted has another name.

    Shells whose processes cannot be confused need not tell it.
    """

    task: TaskId
    incarnation: str
    now: float


class TaskDeployed(msgspec.Struct, frozen=True):
    """The attempt is built, restored and connected; it waits for ``StartTask``.

    ``incarnation``: the process that built it. An order that is carried out twice may build one attempt in two
    processes; the first that reports is started, any other means that one of them is lost.
    """

    task: TaskId
    attempt: Attempt
    now: float
    incarnation: str = ""
    opening: int = 0
    """The rows of its flight that it was restored with, the one that says where each stood among them."""


class RoundProposed(msgspec.Struct, frozen=True):
    """The task's sources are in ``round`` and will not pass its end before a trigger or an abort.

    -1 if no round has begun. ``FINAL_ROUND`` if the task has no sources, or they have ended and what was emitted
    because of that has been processed: any round of the others suits it. ``CLOSING_ROUND`` if it has not been.
    """

    task: TaskId
    attempt: Attempt
    checkpoint: CheckpointId
    round: int
    now: float


class SnapshotTiming(msgspec.Struct, frozen=True):
    """How a task's snapshot went, in seconds and bytes, for the statistics."""

    start_delay: float = 0.0
    """From the checkpoint's trigger to the first barrier at the task."""
    alignment: float = 0.0
    """From the first barrier to the last."""
    synchronous: float = 0.0
    """While the task did nothing else."""
    asynchronous: float = 0.0
    new_bytes: int | None = None
    """Bytes written for this checkpoint; None: all of its state."""
    processed_bytes: int = 0
    """Read during the alignment."""
    persisted_bytes: int = 0
    """In-flight data that the checkpoint holds."""
    unaligned: bool = False

    @property
    def after_cut(self) -> float:
        """From the cut to the acknowledgement: of an unaligned one the last barrier may come behind it."""
        return self.asynchronous + (self.alignment if self.unaligned else 0.0)


NO_TIMING = SnapshotTiming()


class TaskAcked(msgspec.Struct, frozen=True):
    """The task's snapshot for the checkpoint is on storage.

    ``committables``: all that the task's sinks have prepared and no ``CommitCheckpoint`` has told them to commit. What
    was prepared for a checkpoint that was aborted, or that the task has not heard of again, is listed again: a row
    is never prepared twice, so otherwise nobody would commit it. Files have names of their own per attempt.
    ``data_ended``: the snapshot was taken after all operators of the task had finished (its final one).
    ``finished_on_restore``: it was deployed as finished, and reports no state: what it had is carried on.
    ``ended``: for which lanes its operators had finished at the snapshot.
    ``ledger``: what it was given and what became of that, at each exchange, source and sink.
    """

    task: TaskId
    attempt: Attempt
    checkpoint: CheckpointId
    state: tuple[StateHandle, ...]
    committables: tuple[Committable, ...]
    data_ended: bool
    now: float
    timing: SnapshotTiming = NO_TIMING
    finished_on_restore: bool = False
    ended: tuple[EndedLanes, ...] = ()
    ledger: tuple[Account, ...] = ()


class TaskDeclined(msgspec.Struct, frozen=True):
    """The task could not take the snapshot (its storage failed, say), but it goes on running. ``closing``: because it
    is about to end, which says nothing against the job."""

    task: TaskId
    attempt: Attempt
    checkpoint: CheckpointId
    failure: Failure
    now: float
    closing: bool = False

    @property
    def reason(self) -> FailureReason:
        """What the checkpoint fails for."""
        return FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING if self.closing else FailureReason.CHECKPOINT_DECLINED


class TaskDescribed(msgspec.Struct, frozen=True):
    """What the task was in the middle of when it was asked, in words: for people."""

    task: TaskId
    attempt: Attempt
    checkpoint: CheckpointId
    words: str
    now: float


class TaskCommitted(msgspec.Struct, frozen=True):
    """The committables of the permit are visible."""

    task: TaskId
    attempt: Attempt
    checkpoint: CheckpointId
    now: float


class DataEnded(msgspec.Struct, frozen=True):
    """The task has seen the end of its data, finished its operators and waits for a final checkpoint."""

    task: TaskId
    attempt: Attempt
    now: float


class TaskFinished(msgspec.Struct, frozen=True):
    """The task is over: final checkpoint committed, every consumer has processed everything, channels closed.

    ``cut``: the newest checkpoint that it was cut for as a whole. Its acknowledgement is on its way, or has been
    declined; for later ones it gives none, and nothing of it is in flight.
    """

    task: TaskId
    attempt: Attempt
    now: float
    cut: CheckpointId | None = None


class TaskFailed(msgspec.Struct, frozen=True):
    """The task reports an error; it has stopped."""

    task: TaskId
    attempt: Attempt
    failure: Failure
    now: float


class TaskLost(msgspec.Struct, frozen=True):
    """The process of the task is gone. ``attempt`` None: whatever attempt ran there."""

    task: TaskId
    attempt: Attempt | None
    reason: str
    now: float


class CancelRequested(msgspec.Struct, frozen=True):
    """A user cancels the job. What was committed stays."""

    now: float


class CheckpointRequested(msgspec.Struct, frozen=True):
    """A user asks for a checkpoint now."""

    now: float


class SavepointRequested(msgspec.Struct, frozen=True):
    """A user asks for a savepoint. ``request``: the asker's own name for it; asked twice, it is one request.

    ``target``: the folder, as the shell understands it; empty: where the job's savepoints usually go. ``aligned``: with
    nothing in flight. The result is in the job's status.
    """

    request: str
    target: str
    now: float
    aligned: bool = False


class StopRequested(msgspec.Struct, frozen=True):
    """A user stops the job with a savepoint; otherwise as :class:`SavepointRequested`."""

    request: str
    target: str
    mode: StopMode
    now: float
    aligned: bool = False


class SavepointCopied(msgspec.Struct, frozen=True):
    """The savepoint's files lie at ``location``; the folder holds no savepoint yet."""

    checkpoint: CheckpointId
    location: str
    now: float


class SavepointStored(msgspec.Struct, frozen=True):
    """The savepoint is complete at ``location``, and needs nothing outside it.

    ``holds``: not None if it is that of another checkpoint, taken for the same request by a coordinator before.
    """

    checkpoint: CheckpointId
    location: str
    now: float
    holds: CheckpointId | None = None


class SavepointFailed(msgspec.Struct, frozen=True):
    """The savepoint could not be copied, or its manifest not be created."""

    checkpoint: CheckpointId
    failure: Failure
    now: float


class PinRequested(msgspec.Struct, frozen=True):
    """Somebody depends on a completed checkpoint (a model's): keep it until ``name`` is unpinned."""

    checkpoint: CheckpointId
    name: str
    now: float


class UnpinRequested(msgspec.Struct, frozen=True):
    """``name`` does not need its checkpoint any more."""

    name: str
    now: float


class ReweightRequested(msgspec.Struct, frozen=True):
    """A user changes the weights of a mixture. Asked twice, it is one request. The result is in the job's status.
    ``attempt``: of the tasks while which it was found that nobody outside has rows from there on."""

    reweight: Reweight
    attempt: Attempt
    now: float


class MixtureSteered(msgspec.Struct, frozen=True):
    """``SteerMixture`` is carried out: the mixture knows so many changes, and is held at ``limit`` unless it has come
    further than that. ``possible``: the first position that can still be a limit; None: none can."""

    task: TaskId
    attempt: Attempt
    operator: str
    known: int
    limit: int | None
    possible: int | None
    now: float


class OutputsTaken(msgspec.Struct, frozen=True):
    """Every output is ours, and holds what the log says."""

    now: float


class OutputsRefused(msgspec.Struct, frozen=True):
    """An output belongs to somebody else, or does not hold what the log says."""

    failure: Failure
    now: float


class DeadlinePassed(msgspec.Struct, frozen=True):
    """The time that ``next_deadline`` named has come."""

    now: float


class OperatorReport(msgspec.Struct, frozen=True):
    """One operator of a task in one window. ``drain``: what it took to emit what it held at the barrier. ``waits``: how
    long each input of the pipeline that begins with it stood behind the barrier until the last one had come."""

    operator: str
    rows_in: int
    rows_out: int
    bytes_out: int
    drain: float
    waits: tuple[tuple[str, float], ...] = ()


class TaskReport(msgspec.Struct, frozen=True):
    """One task in one window, upstream operators first. ``first_at``: when its first row came; None: none did.
    ``drained_at``: when the last of its pipelines had drained."""

    operators: tuple[OperatorReport, ...]
    first_at: float | None
    drained_at: float

    @property
    def drain(self) -> float:
        """What its operators took to emit what they held."""
        return sum(each.drain for each in self.operators)


class NoticeGiven(msgspec.Struct, frozen=True):
    """The process of a task was told that it will be ended, in no less than ``budget`` seconds."""

    task: TaskId
    incarnation: str
    budget: float
    now: float


class SplitSkipped(msgspec.Struct, frozen=True):
    """A split has ended its task too often, and is not to be read any more; told before the loss that it is for."""

    skipped: Skipped
    now: float


class SplitSetsAdded(msgspec.Struct, frozen=True):
    """These entries are durable in the log of split sets: somebody has just written them."""

    entries: tuple[SplitEntry, ...]
    now: float


class SplitSetsRead(msgspec.Struct, frozen=True):
    """Answer to ``ReadSplitSets``: the entries from there on. ``oldest``: the number of the oldest entry that there is.
    ``failed``: it could not be read."""

    entries: tuple[SplitEntry, ...]
    oldest: int
    now: float
    failed: bool = False


class SplitsAssigned(msgspec.Struct, frozen=True):
    """The sources of the attempt have got everything before that number of the log of split sets."""

    task: TaskId
    attempt: Attempt
    number: int
    now: float


class WindowDrained(msgspec.Struct, frozen=True):
    """Every pipeline of the task has drained for that task barrier."""

    task: TaskId
    attempt: Attempt
    barrier: CheckpointId
    report: TaskReport
    now: float


SplitSetEvent: TypeAlias = SplitSetsAdded | SplitSetsRead
WindowEvent: TypeAlias = SplitsAssigned | WindowDrained
"""What a task says of its windows."""
SplitEvent: TypeAlias = SplitSetEvent | WindowEvent

Event: TypeAlias = (
    OutputsTaken
    | OutputsRefused
    | LogRead
    | LogFailed
    | EntryStored
    | EntryRefused
    | EntryFailed
    | ProcessReady
    | TaskDeployed
    | RoundProposed
    | TaskAcked
    | TaskDeclined
    | TaskDescribed
    | TaskCommitted
    | DataEnded
    | TaskFinished
    | TaskFailed
    | TaskLost
    | SplitEvent
    | CancelRequested
    | CheckpointRequested
    | SavepointRequested
    | StopRequested
    | SavepointCopied
    | SavepointStored
    | SavepointFailed
    | PinRequested
    | ReweightRequested
    | MixtureSteered
    | UnpinRequested
    | NoticeGiven
    | SplitSkipped
    | DeadlinePassed
)
