"""What a checkpoint was taken for, who asked for it, and why it failed.

Rules:

1. A checkpoint belongs to the job, a savepoint to the user: the job never deletes a savepoint's files.
2. Only checkpoints and the savepoint that a job stops with make rows visible and older checkpoints superfluous; a
   savepoint in between has no effect on the job.
3. A *counted* reason of a failure says that the job itself may be unwell (its storage, its speed). The others are the
   ordinary course of things, a task that ends or restarts meanwhile, and a job may have as many of them as it likes.
   ``checkpoint.failures`` does the counting.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class CheckpointKind(Enum):
    """What was asked for."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    STOP_WITH_SAVEPOINT = "stop with savepoint"
    """The job ends with it: taken after the end of data, by every task, and told to every task."""

    @property
    def is_savepoint(self) -> bool:
        """Whether its files are the user's."""
        return self is not CheckpointKind.CHECKPOINT

    @property
    def commits(self) -> bool:
        """Whether its completion is told to the tasks, so that sinks commit, and ends older checkpoints."""
        return self is not CheckpointKind.SAVEPOINT


class StopMode(Enum):
    """How the data end when a job stops with a savepoint."""

    DRAIN = "drain"
    """For good: operators finish, so that windows and groups that are open are emitted. Not to be resumed from."""
    SUSPEND = "suspend"
    """For now: operators keep what they hold, and a job restored from the savepoint goes on with it."""


class ClaimMode(Enum):
    """Who owns a snapshot that a job starts from."""

    NO_CLAIM = "no claim"
    """The user: the job reads it, never deletes it, and depends on it until its own first checkpoint."""
    CLAIM = "claim"
    """The job: it counts as one of its checkpoints and is deleted when a newer one takes its place."""


class Cause(Enum):
    """Why a checkpoint starts."""

    PERIODIC = "the interval is over"
    FINAL = "a branch has ended"
    USER = "a user asked for a checkpoint"
    SAVEPOINT = "a user asked for a savepoint"
    STOP = "a user stops the job with a savepoint"
    INSTEAD = "the barriers of the one before did not align in time"
    MOVE = "the job is to go on in another shape"


_KINDS = {Cause.SAVEPOINT: CheckpointKind.SAVEPOINT, Cause.STOP: CheckpointKind.STOP_WITH_SAVEPOINT}


class Request(msgspec.Struct, frozen=True):
    """One wish. ``name``, ``target`` and ``stop`` belong to savepoints: the asker's name, the folder, how to stop.

    ``aligned``: its barriers stand at a round that all sources agree on, so that nothing is in flight.
    """

    cause: Cause
    name: str = ""
    target: str = ""
    stop: StopMode | None = None
    aligned: bool = False

    @property
    def kind(self) -> CheckpointKind:
        return _KINDS.get(self.cause, CheckpointKind.CHECKPOINT)


PERIODIC = Request(Cause.PERIODIC)


FINAL = Request(Cause.FINAL)


USER = Request(Cause.USER)


INSTEAD = Request(Cause.INSTEAD)


MOVE = Request(Cause.MOVE, aligned=True)


class FailureReason(Enum):
    """The value says it to people."""

    PERIODIC_SCHEDULER_SHUTDOWN = "periodic checkpoints are switched off"
    TOO_MANY_CHECKPOINT_REQUESTS = "too many requests are waiting"
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "the minimum pause is not over"
    NOT_ALL_REQUIRED_TASKS_RUNNING = "some task that must take part does not run"
    IO_EXCEPTION = "the storage failed before the checkpoint began"
    BLOCKING_OUTPUT_EXIST = "an output is handed over only when it is complete"
    CHECKPOINT_ASYNC_EXCEPTION = "writing a snapshot failed"
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = "another task failed to write into the same file of channel state"
    CHECKPOINT_EXPIRED = "it was not complete in time"
    CHECKPOINT_SUBSUMED = "a newer checkpoint completed first"
    CHECKPOINT_DECLINED = "a task could not take its snapshot"
    CHECKPOINT_DECLINED_TASK_NOT_READY = "a task did not run yet"
    CHECKPOINT_DECLINED_TASK_CLOSING = "a task was about to end"
    CHECKPOINT_DECLINED_SUBSUMED = "a task saw the barrier of a newer checkpoint"
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = "a task received a cancel marker"
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = "an input of a task ended"
    CHECKPOINT_COORDINATOR_SHUTDOWN = "the job is over"
    CHECKPOINT_COORDINATOR_SUSPEND = "the job does not run"
    JOB_FAILOVER_REGION = "a region restarts"
    TASK_FAILURE = "a task failed"
    TASK_CHECKPOINT_FAILURE = "a task could not be told about the checkpoint"
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = "an unknown task was told about a checkpoint"
    FINALIZE_CHECKPOINT_FAILURE = "the manifest could not be stored"
    LEDGER_DOES_NOT_BALANCE = "rows were lost or repeated on the way"
    TRIGGER_CHECKPOINT_FAILURE = "a task could not be triggered"

    @property
    def is_counted(self) -> bool:
        """Whether it counts against the tolerable failures."""
        return self in COUNTED


COUNTED = frozenset(
    {
        FailureReason.IO_EXCEPTION,
        FailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        FailureReason.CHECKPOINT_DECLINED,
        FailureReason.CHECKPOINT_EXPIRED,
        FailureReason.FINALIZE_CHECKPOINT_FAILURE,
    }
)
