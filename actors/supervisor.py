"""Who is alive: the coordinator's view of the processes that host its tasks. Pure: no Ray, no threads.

Every driver actor is restarted by Ray when its process dies; what was in it is gone, and that is what the supervisor
finds out, from whichever sign comes first:

- the new process announces itself, or accepts an order to deploy, under another incarnation;
- the ``watch`` call, which ends only with the process, fails (Ray takes a second or two to say so); as it also fails
  when a connection does, the process is asked who it is;
- an order does not reach the process.

Rules:

1. An attempt is lost when the incarnation that accepted it is gone, and is reported lost once for that.
2. Nothing is reported about a process that had accepted nothing: the order to deploy waits for the next process.
3. No policy: what a loss means is for the coordinator to decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..coordinator.commands import DeployTask
from ..coordinator.events import Event, TaskLost
from ..engine.identity import Attempt, TaskId
from .messages import (
    UNKNOWN_TIME,
    AttemptAccepted,
    CallFailed,
    Identity,
    Order,
    ProcessAppeared,
    ProcessGone,
    ProcessMessage,
)


class DriverCalls(Protocol):
    """Calls to the processes; what comes of them is told to :meth:`Supervisor.handle`. None of them blocks."""

    def ready(self, task: TaskId) -> None:
        """Tell ``ProcessAppeared`` as soon as the task has a process, ``ProcessGone`` if it never will."""

    def watch(self, task: TaskId, incarnation: str) -> None:
        """Tell ``ProcessGone`` when the process, or the connection to it, ends."""

    def deploy(self, command: DeployTask) -> None:
        """Tell ``AttemptAccepted`` when a process has taken the order, ``CallFailed`` if none ever will."""

    def order(self, command: Order) -> None:
        """Tell ``CallFailed`` if the order does not arrive."""


class Supervisor:
    """See the module's rules."""

    def __init__(self, tasks: Iterable[TaskId], calls: DriverCalls) -> None:
        self._calls = calls
        #: the newest incarnation of each task's process
        self._known: dict[TaskId, str] = {}
        #: tasks whose newest incarnation is being watched; that of the others is being asked for
        self._watched: set[TaskId] = set()
        #: the newest attempt that a living process has taken, and which incarnation that is
        self._accepted: dict[TaskId, tuple[Attempt, str]] = {}
        #: incarnations known to have ended
        self._gone: set[str] = set()
        for task in tasks:
            calls.ready(task)

    def perform(self, command: DeployTask | Order) -> None:
        """Hand an order to the process of its task."""
        if isinstance(command, DeployTask):
            self._calls.deploy(command)
        else:
            self._calls.order(command)

    def handle(self, message: ProcessMessage) -> list[Event]:
        """Take note of what became of a process; the events that follow from it."""
        match message:
            case ProcessAppeared(identity):
                return self._appeared(identity)
            case AttemptAccepted(attempt, identity):
                return self._taken(attempt, identity)
            case ProcessGone(task, incarnation, reason):
                return self._ended(task, incarnation, reason)
            case CallFailed(task, attempt, reason):
                return [TaskLost(task, attempt, reason, UNKNOWN_TIME)]

    def _appeared(self, identity: Identity) -> list[Event]:
        task, incarnation = identity.task, identity.incarnation
        if incarnation in self._gone or (incarnation == self._known.get(task) and task in self._watched):
            return []
        before, self._known[task] = self._known.get(task), incarnation
        self._watched.add(task)
        self._calls.watch(task, incarnation)
        return [] if before in (None, incarnation) else self._lost(task, before, "it died and was restarted")

    def _taken(self, attempt: Attempt, identity: Identity) -> list[Event]:
        task = identity.task
        if identity.incarnation in self._gone:
            return [TaskLost(task, attempt, "it died right after deployment", UNKNOWN_TIME)]
        events = self._appeared(identity)
        before = self._accepted.get(task)
        if before is None or attempt > before[0]:
            self._accepted[task] = (attempt, identity.incarnation)
        return events

    def _ended(self, task: TaskId, incarnation: str | None, reason: str) -> list[Event]:
        known = self._known.get(task)
        if incarnation is None:
            return [] if known is None else self._lost(task, known, reason)
        if incarnation == known and task in self._watched:
            self._watched.remove(task)
            self._calls.ready(task)
        return []

    def _lost(self, task: TaskId, incarnation: str, reason: str) -> list[Event]:
        self._gone.add(incarnation)
        attempt, taken_by = self._accepted.get(task, (None, None))
        if attempt is None or taken_by != incarnation:
            return []
        del self._accepted[task]
        return [TaskLost(task, attempt, reason, UNKNOWN_TIME)]
