"""The states of a job and of a task, and which moves between them are legal.

Rules:

1. One enum and one table per machine; nothing else remembers "where we are".
2. A move that the table does not list is a bug of ours: the error (``engine.core.state_machine``) names both states;
   the coordinator adds its event log.
3. A change of a table changes the picture in ``docs/design/checkpoints.md`` (a test compares them).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class JobState(Enum):
    """Where a job is as a whole."""

    __hash__ = object.__hash__  # members are compared by identity; Enum hashes their names, in Python

    CREATED = "created"
    """Built; ``start`` was not called."""
    CLAIMING = "claiming"
    """Reading the log and taking the job over in it."""
    DEPLOYING = "deploying"
    """Tasks are built for the first time in this generation."""
    RUNNING = "running"
    """Every task runs or has finished; checkpoints are taken."""
    RESTARTING = "restarting"
    """Some region waits for its back-off, for the log, or for its tasks to be deployed."""
    FINISHING = "finishing"
    """Every task has finished; what is left is to commit and to close the log."""
    STOPPING = "stopping"
    """The savepoint that the job stops with is durable; what is left is to commit and to close the log."""
    FAILING = "failing"
    """Tasks are stopped; what completed checkpoints hold is being committed."""
    CANCELLING = "cancelling"
    """As failing, but a user asked for it."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """With a savepoint."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    """Another coordinator has taken the job over; this one says nothing more."""
    MOVED = "moved"
    """Its newest checkpoint holds nothing in flight, as was wanted: the next coordinator runs it in another shape."""


class TaskStatus(Enum):
    """Where the current attempt of a task is, as far as the coordinator has heard."""

    __hash__ = object.__hash__

    CREATED = "created"
    """Never deployed in this generation."""
    DEPLOYING = "deploying"
    DEPLOYED = "deployed"
    """Built and restored; it waits for the rest of its region."""
    RUNNING = "running"
    DATA_ENDED = "data ended"
    """Its operators have finished; it takes part in checkpoints until one covers its end."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """Failed, lost, or stopped because its region restarts or the job ends."""

    def __init__(self, word: str) -> None:
        #: The state as a small number, in the order above.
        self.code = len(type(self).__members__)
        #: Whether the task has reached the end of its data.
        self.has_ended = word in ("data ended", "finished")


_ENDINGS = {JobState.FAILING, JobState.CANCELLING, JobState.SUPERSEDED}
_STOPS = {JobState.STOPPING, *_ENDINGS}

LEGAL_JOB_MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.CREATED: frozenset({JobState.CLAIMING}),
    JobState.CLAIMING: frozenset({JobState.DEPLOYING, JobState.FINISHED, JobState.STOPPED, *_STOPS}),
    JobState.DEPLOYING: frozenset({JobState.RUNNING, JobState.RESTARTING, JobState.MOVED, *_ENDINGS}),
    JobState.RUNNING: frozenset({JobState.RESTARTING, JobState.FINISHING, JobState.MOVED, *_STOPS}),
    JobState.RESTARTING: frozenset({JobState.RUNNING, JobState.MOVED, *_STOPS}),
    JobState.FINISHING: frozenset({JobState.FINISHED, JobState.FAILING, JobState.SUPERSEDED}),
    JobState.STOPPING: frozenset({JobState.STOPPED, JobState.FAILING, JobState.SUPERSEDED}),
    JobState.FAILING: frozenset({JobState.FAILED, JobState.SUPERSEDED}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.SUPERSEDED}),
    JobState.FINISHED: frozenset(),
    JobState.STOPPED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.SUPERSEDED: frozenset(),
    JobState.MOVED: frozenset(),
}

LEGAL_TASK_MOVES: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.CREATED: frozenset({TaskStatus.DEPLOYING}),
    TaskStatus.DEPLOYING: frozenset({TaskStatus.DEPLOYED, TaskStatus.STOPPED}),
    TaskStatus.DEPLOYED: frozenset({TaskStatus.RUNNING, TaskStatus.STOPPED}),
    TaskStatus.RUNNING: frozenset({TaskStatus.DATA_ENDED, TaskStatus.STOPPED}),
    TaskStatus.DATA_ENDED: frozenset({TaskStatus.FINISHED, TaskStatus.STOPPED}),
    TaskStatus.FINISHED: frozenset({TaskStatus.STOPPED}),
    TaskStatus.STOPPED: frozenset({TaskStatus.DEPLOYING}),
}

FINAL_JOB_STATES = frozenset(state for state, moves in LEGAL_JOB_MOVES.items() if not moves)
STARTED = frozenset({TaskStatus.RUNNING, TaskStatus.DATA_ENDED})
LIVE = frozenset({TaskStatus.DEPLOYING, TaskStatus.DEPLOYED, *STARTED})
