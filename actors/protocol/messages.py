"""What the processes of a job send to each other, and what their threads post to each other. Plain data, no Ray.

Rules:

1. A handle of an actor is an ``Address`` here: nothing in this module calls it.
2. The coordinator's orders and events are those of ``coordinator.model.commands`` and
   ``coordinator.model.events``; this module adds what only processes know: who they are, how to reach each other, that
   one of them is gone.
3. A process is named by its *incarnation*, drawn when it starts: the same actor restarted is another incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from ...coordinator.model.commands import (
    AbortCheckpoint,
    AssignSplits,
    CommitCheckpoint,
    DeployTask,
    DescribeTask,
    ExpectBarrier,
    ProposeRound,
    ReplaceProcess,
    StartTask,
    SteerMixture,
    StopTask,
    TriggerCheckpoint,
)
from ...coordinator.model.events import Event, TaskFailed, TaskLost
from ...coordinator.model.settings import Settings
from ...coordinator.model.split_sets import SplitName
from ...coordinator.model.statistics import JobStatus, Overview, WindowReport
from ...engine.core.errors import PenstockError
from ...engine.core.identity import Attempt, CheckpointId, TaskId
from ...engine.core.shown import hides_credentials
from ...engine.exchange.channels import Frame, Upstream
from ...engine.plan.plan import JobPlan
from ...engine.runtime.restored import Restored
from ...engine.runtime.statistics import TaskStatistics

Message = TypeVar("Message")
Answer = TypeVar("Answer")


class Mailbox(Generic[Message]):
    """The one door into a thread that owns something: many post, one takes, and gets everything that is there at once.

    ``post`` never blocks. Messages are taken in the order in which they were posted; what they are about belongs to the
    thread that takes, and needs no locks.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Message] = SimpleQueue()

    def post(self, message: Message) -> None:
        """Put a message in."""
        self._queue.put(message)

    @property
    def is_empty(self) -> bool:
        """Whether everything that was posted has been taken."""
        return self._queue.empty()

    def take(self, timeout: float | None) -> list[Message]:
        """Everything that was posted; waits up to ``timeout`` seconds (None: for ever, 0: not at all) for the first."""
        taken: list[Message] = []
        try:
            taken.append(self._queue.get(block=timeout != 0, timeout=timeout))
            while True:
                taken.append(self._queue.get_nowait())
        except Empty:
            return taken


class Sign(IntEnum):
    """What a process has shown of itself."""

    NONE = 0
    ALIVE = 1
    """It has answered that it is there."""
    ANSWER = 2
    """It has answered an order."""


Address: TypeAlias = Any
"""How to reach a process: an actor's handle."""

Order: TypeAlias = (
    StartTask
    | StopTask
    | ProposeRound
    | TriggerCheckpoint
    | ExpectBarrier
    | DescribeTask
    | SteerMixture
    | AssignSplits
    | AbortCheckpoint
    | CommitCheckpoint
)
"""What the coordinator orders an attempt that is deployed."""

DriverCommand: TypeAlias = DeployTask | ReplaceProcess | Order
"""What the coordinator orders the processes."""

WorkerSlot: TypeAlias = TaskId
"""The place of a driver actor: the task that it was made for, or ``spare_slot``. Processes come and go in it."""

UNKNOWN_TIME = 0.0
"""The time in events on their way: the coordinator's shell puts its own clock's time into each one that it gets."""


def spare_slot(number: int) -> WorkerSlot:
    """The name of a slot that no task has from the start. No stage can have this name."""
    return TaskId("(spare)", number)


class Identity(msgspec.Struct, frozen=True):
    """One process of a driver actor. ``task``: its slot, and so the task that it was made for, if for any."""

    task: WorkerSlot
    incarnation: str
    pid: int
    node: str
    """The node's address."""
    node_id: str = ""
    """Ray's name for it."""


class Deployment(msgspec.Struct, frozen=True):
    """An order to deploy, with what its receiver needs to reach others."""

    command: DeployTask
    peers: Mapping[TaskId, Address]
    coordinator: Address
    cautious: bool = False
    """Whether the attempt reports which split it is about to read, each time."""


# ---- posted to the thread that owns a task


class Arrived(msgspec.Struct, frozen=True):
    """Messages of other tasks, in the order in which they came."""

    frames: tuple[Frame, ...]
    upstream: tuple[Upstream, ...]


class StateRead(msgspec.Struct, frozen=True):
    """What an attempt is restored from has been read, or could not be."""

    attempt: Attempt
    state: Restored | PenstockError


class CommitDone(msgspec.Struct, frozen=True):
    """The committables of ``checkpoint`` are visible, or could not be made so."""

    attempt: Attempt
    checkpoint: CheckpointId
    error: PenstockError | None


class StatisticsAsked(msgspec.Struct, frozen=True):
    """What has the task counted, and what does it wait for? ``found`` gets None when there is no task."""

    found: Future[TaskStatistics | None]


class SignAsked(msgspec.Struct, frozen=True):
    """Does the thread still take what is posted? ``answer`` is called by it."""

    answer: Callable[[], None]


class Woken(msgspec.Struct, frozen=True):
    """Something that the task waits for has happened on another thread: let it go on."""


class CoordinatorGone(msgspec.Struct, frozen=True):
    """Nobody will give orders any more: stop the task."""


class Closed(msgspec.Struct, frozen=True):
    """Stop what is done and end the thread."""


TaskMessage: TypeAlias = (
    Deployment
    | Order
    | Arrived
    | StateRead
    | CommitDone
    | StatisticsAsked
    | SignAsked
    | Woken
    | CoordinatorGone
    | Closed
)
"""All that is posted to the thread that owns a task (``hosting.task_host``)."""


# ---- posted to the thread that owns the coordinator


class ProcessAppeared(msgspec.Struct, frozen=True):
    """A driver's process is there: for the first time, again, or still."""

    identity: Identity


class ProcessGone(msgspec.Struct, frozen=True):
    """The watch over a process has ended, and probably the process. ``incarnation`` None: there will be no other."""

    slot: WorkerSlot
    incarnation: str | None
    reason: str


class AttemptAccepted(msgspec.Struct, frozen=True):
    """A process has taken an order to deploy."""

    attempt: Attempt
    identity: Identity


class CallFailed(msgspec.Struct, frozen=True):
    """An order did not reach the process of ``attempt``."""

    task: TaskId
    attempt: Attempt
    reason: str


class SplitBegun(msgspec.Struct, frozen=True):
    """A cautious attempt is about to read a split; with ``raised``, reading it has raised the error that follows. None:
    a split that is never to blame."""

    task: TaskId
    attempt: Attempt
    name: SplitName | None
    raised: bool = False


class HeartbeatDue(msgspec.Struct, frozen=True):
    """Time to see who is still there."""


class NodesDraining(msgspec.Struct, frozen=True):
    """Ray takes nodes away. ``left``: seconds by node, of all that are on their way out now."""

    left: Mapping[str, float]


ProcessMessage: TypeAlias = (
    ProcessAppeared
    | ProcessGone
    | AttemptAccepted
    | CallFailed
    | TaskLost
    | TaskFailed
    | SplitBegun
    | HeartbeatDue
    | NodesDraining
)
"""What becomes of the processes: for the supervisor, which makes events of it."""


class CheckpointsAsked(msgspec.Struct, frozen=True):
    """What do the statistics of the checkpoints say?"""

    found: Future[Overview]


class WindowsAsked(msgspec.Struct, frozen=True):
    """What do the statistics of the windows between task barriers say?"""

    found: Future[tuple[WindowReport, ...]]


CoordinatorMessage: TypeAlias = Event | ProcessMessage | CheckpointsAsked | WindowsAsked | Closed
"""All that is posted to the thread that owns a coordinator (``hosting.coordinator_host``)."""


def answer(found: Future[Answer], question: Callable[[], Answer]) -> None:
    """Answer a question, on the thread that owns what it is about."""
    try:
        found.set_result(question())
    except Exception as error:
        found.set_exception(error)


@hides_credentials
@dataclass(frozen=True, slots=True)
class JobDescriptor:
    """What somebody needs to attach to a job. ``folder_stays``: whether the checkpoint folder outlives it."""

    plan: JobPlan
    folder: str
    settings: Settings
    drivers: Mapping[WorkerSlot, Address]
    detached: bool
    folder_stays: bool
    secrets: Any = field(default=None, repr=False)
    """What a reader of the job's feeds must know (``dialling.Secrets``)."""


class Versioned(msgspec.Struct, frozen=True):
    """A job's status with the version that a long poll names next. Versions of other incarnations never match."""

    version: tuple[str, int]
    status: JobStatus
