"""Why a checkpoint failed, and which of the reasons weigh on the job.

Rules:

1. A *pre-flight* reason comes before any task was involved: no id is used up, nothing is shown as in progress.
2. A *counted* reason says that the job itself may be unwell (its storage, its speed). The others are the ordinary
   course of things, a task that ends or restarts meanwhile, and a job may have as many of them as it likes.
3. Whoever adds a reason says in ``COUNTED`` whether it is counted; ``failure_manager`` does the counting.
"""

from __future__ import annotations

from enum import Enum


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
