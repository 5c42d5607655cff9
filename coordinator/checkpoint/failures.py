"""How many checkpoints may fail before the job does.

Rules:

1. Only counted reasons count (``model.kinds``), and each checkpoint once. Failures from before there was an id count
   one by one.
2. More than the tolerable number *in a row* fails the job, and the count begins anew: what comes then is the restart
   policy's decision.
3. A checkpoint that completes ends the row, unless a newer one had completed before. What is heard of a checkpoint
   older than the newest completed one changes nothing and does not count.
4. A savepoint that fails on the coordinator's side never counts: the user who asked is told. On a task's side it
   counts, and at once fails the job if the job was to stop with it: its sources have stopped already.
"""

from __future__ import annotations

from enum import Enum

from ...engine.core.identity import CheckpointId
from ..model.kinds import CheckpointKind, FailureReason


class Origin(Enum):
    """On whose side the failure arose."""

    COORDINATOR = "coordinator"
    TASK = "task"


class Verdict(Enum):
    """What a failure means for the job."""

    IGNORED = "ignored"
    TOLERATED = "tolerated"
    """Heard and within the limit."""
    FAIL_JOB = "fail the job"


class FailureTolerance:
    """Counts the failures since the newest completed checkpoint."""

    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        #: Failures that counted since the newest completed checkpoint, or since the job was failed for them.
        self._in_row = 0
        #: Checkpoints newer than ``_completed`` that have counted.
        self._counted: set[CheckpointId] = set()
        #: The newest completed checkpoint.
        self._completed: CheckpointId | None = None

    def completed(self, checkpoint: CheckpointId) -> None:
        """A checkpoint completed."""
        if self._completed is None or checkpoint > self._completed:
            self._completed = checkpoint
            self._in_row = 0
            self._counted = {known for known in self._counted if known > checkpoint}

    def failed(
        self,
        reason: FailureReason,
        checkpoint: CheckpointId | None,
        kind: CheckpointKind = CheckpointKind.CHECKPOINT,
        origin: Origin = Origin.COORDINATOR,
    ) -> Verdict:
        """A checkpoint failed. ``checkpoint`` None: before it had an id."""
        if origin is Origin.TASK and kind is CheckpointKind.STOP_WITH_SAVEPOINT:
            return Verdict.FAIL_JOB
        if origin is Origin.COORDINATOR and kind.is_savepoint:
            return Verdict.IGNORED
        if not reason.is_counted or not self._counts(checkpoint):
            return Verdict.IGNORED
        if checkpoint is not None:
            self._counted.add(checkpoint)
        self._in_row += 1
        if self._in_row <= self._tolerable:
            return Verdict.TOLERATED
        self._in_row = 0
        return Verdict.FAIL_JOB

    def _counts(self, checkpoint: CheckpointId | None) -> bool:
        if checkpoint is None:
            return True
        return checkpoint not in self._counted and (self._completed is None or checkpoint >= self._completed)

    def validate(self) -> None:
        """Rules 2 and 3."""
        if self._in_row > self._tolerable:
            raise AssertionError(f"{self._in_row} failures in a row are tolerated, but only {self._tolerable} may be")
        if self._completed is not None and any(known < self._completed for known in self._counted):
            raise AssertionError(f"failures from before {self._completed} are remembered: {sorted(self._counted)}")
