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


class StopMode(Enum):
    """How the data end when a job stops with a savepoint."""

    DRAIN = "drain"
    """For good: operators finish, so that windows and groups that are open are emitted. Not to be resumed from."""
    SUSPEND = "suspend"
    """For now: operators keep what they hold, and whoever restores the savepoint goes on with it."""


class ClaimMode(Enum):
    """Who owns a snapshot that a job starts from."""

    NO_CLAIM = "no claim"
    """The user: the job reads it, never deletes it, and depends on it until its own first checkpoint."""
    CLAIM = "claim"
    """The job: it counts as one of its checkpoints and is deleted when a newer one takes its place."""
