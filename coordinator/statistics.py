"""What a coordinator shows of itself: one immutable snapshot, for progress lines, the UI and error messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..engine.identity import CheckpointId, TaskId
from .events import Failure
from .job_states import FINAL_JOB_STATES, JobState


@dataclass(frozen=True)
class PendingStatus:
    """The checkpoint in flight. Finished tasks count as acknowledged."""

    checkpoint: CheckpointId
    phase: str
    started_at: float
    acknowledged: int
    total: int


@dataclass(frozen=True)
class JobStatus:
    """A job at one moment. ``why`` is one sentence: what it waits for, and for whom."""

    job: str
    state: str
    generation: int
    restarts: int
    checkpoints_completed: int
    checkpoints_failed: int
    latest_completed: CheckpointId | None
    pending: PendingStatus | None
    tasks: Mapping[TaskId, str]
    failure: Failure | None
    restored_from: CheckpointId | None
    why: str

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, in whatever way."""
        return JobState(self.state) in FINAL_JOB_STATES
