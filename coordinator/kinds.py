"""What a checkpoint was taken for, which decides who owns it, whether its failure counts, and what it lets others do.

Rules:

1. A checkpoint belongs to the job, a savepoint to the user: the job never deletes a savepoint's files.
2. Only checkpoints and the savepoint that a job stops with make rows visible and older checkpoints superfluous; a
   savepoint in between has no effect on the job.
"""

from __future__ import annotations

from enum import Enum


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
