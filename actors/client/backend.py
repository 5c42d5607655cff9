"""``Backend``: how a :class:`Job` reaches its coordinator and its tasks. On Ray these are actors, embedded they are
threads of this process.

Rules:

1. Every call raises TaskLostError if nobody is there to answer. No error of Ray's comes through.
2. A restart of the coordinator is a pause: a call waits until it is back.
3. ``Job`` makes no call after ``end``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ...coordinator.model.events import Event
from ...coordinator.model.statistics import JobStatus, Overview, WindowReport
from ...engine.core.errors import TaskLostError
from ...engine.core.identity import TaskId
from ...engine.runtime.statistics import TaskStatistics
from ..feed.link import FeedRoute
from ..hosting.waiting_chain import Standing
from ..process.waiting import Deadline
from ..protocol.messages import Identity, Versioned


class Ownership(Enum):
    """What a script is to a job."""

    OWNER = "owner"
    """It has started the job, whose processes end with it."""
    GUEST = "guest"
    """Another script has."""
    DETACHED = "detached"
    """Nobody owns the job."""


@dataclass(slots=True)
class FinalStatistics:
    """What a job's processes have answered last, kept for when they have ended."""

    statistics: dict[TaskId, TaskStatistics] = field(default_factory=dict)
    checkpoints: Overview = field(default_factory=Overview)
    windows: tuple[WindowReport, ...] = ()


class Processes(Protocol):
    """The processes of a job, for tests of how it recovers."""

    def identities(self) -> dict[TaskId, Identity]:
        """The process of each task; waits for those that are being restarted."""

    def kill_task(self, task: TaskId) -> int:
        """SIGKILL to the process of a task; its process id."""

    def cut_task(self, task: TaskId) -> None:
        """Lose all streams of a task."""

    def coordinator_process(self) -> int:
        """The coordinator's process id; waits for it if it is being restarted."""

    def kill_coordinator(self) -> int:
        """SIGKILL to the coordinator's process; its process id."""


class Backend(Protocol):
    """See the module's rules."""

    @property
    def ownership(self) -> Ownership: ...

    @property
    def exit_seconds(self) -> float:
        """How long the end of a script waits for a job that it has not waited for."""

    @property
    def processes(self) -> Processes | None:
        """None: the job has none of its own."""

    def wait_status(self, version: tuple[str, int] | None, timeout: float) -> Versioned:
        """The status, as soon as its version is another than the one given, or after ``timeout`` seconds."""

    def peek_status(self) -> JobStatus | None:
        """The newest status, if it is known within a second."""

    def request(self, event: Event) -> None:
        """Send the coordinator an event."""

    def fetch_checkpoints(self) -> Overview: ...

    def fetch_windows(self) -> tuple[WindowReport, ...]: ...

    def fetch_tasks(self) -> Mapping[TaskId, Standing]:
        """What every task says of itself that has a process to ask."""

    def feed_route(self, job: str, feed: str) -> FeedRoute:
        """How readers reach a feed."""

    def wait_ended(self, deadline: Deadline) -> FinalStatistics | None:
        """The job is over: wait for its processes, if they end by themselves. What these have answered last;
        None: they can still be asked. Raises TimeoutError."""

    def stop(self) -> FinalStatistics | None:
        """Its script ends a job that is not over. What its processes have answered last; None: they can still be
        asked. Raises TaskLostError if the job goes on."""

    def end(self) -> bool:
        """End the processes that are the script's. Whether it is known how they have ended."""


def cannot_be_asked(job: str, why: str) -> TaskLostError:
    """The error for a question to a job whose processes are gone."""
    remedy = "run the flow again with the same checkpoint folder: it goes on from the last checkpoint"
    return TaskLostError(f"job {job!r} cannot be asked: {why}", remedy)
