"""Drives one coordinator through the ordinary parts of its life, so that a test can begin where it gets interesting."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.coordinator.machine import Coordinator
from penstock.coordinator.model import events
from penstock.coordinator.model.commands import Command, StoreEntry, TriggerCheckpoint
from penstock.coordinator.model.events import Event
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from penstock.coordinator.model.manifest import LogEntry
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.restore.stored_state import Snapshot
from penstock.engine.core.identity import Attempt, BarrierKind, CheckpointId, Committable, StateHandle, TaskId

SOURCE, SINK = TaskId("source", 0), TaskId("sink", 0)


def two_stages(deterministic: bool = False) -> ExecutionGraph:
    """One source that feeds one sink."""
    edge = JobEdge("source", "sink", Pattern.ALL_TO_ALL)
    return ExecutionGraph((Vertex("source", 1), Vertex("sink", 1)), (edge,), deterministic)


def handle(task: TaskId, checkpoint: CheckpointId, attempt: Attempt) -> StateHandle:
    """The file of a task's snapshot."""
    return StateHandle("operator", f"{task}/{attempt}/{checkpoint}", 10, 1)


def committable(number: int) -> Committable:
    return Committable("sink", 1, {"file": number})


@dataclass
class CoordinatorDriver:
    """A coordinator with a log that works. ``now`` is 0 until a test says otherwise."""

    graph: ExecutionGraph = field(default_factory=two_stages)
    settings: Settings = field(default_factory=Settings)
    log: list[LogEntry] = field(default_factory=list)
    owner: str = "me"
    snapshot: Snapshot | None = None
    inputs: tuple[str, ...] = ()
    now: float = 0.0
    #: Costs as much as there are tasks, at every event.
    validate: bool = True

    def __post_init__(self) -> None:
        self.core = Coordinator(
            "job", "print", "a flow", self.graph, self.settings, self.owner, self.snapshot, inputs=self.inputs
        )
        self.started = self.core.start(self.now)

    def tell(self, event: Event) -> list[Command]:
        orders = self.core.handle(event)
        if self.validate:
            self.core.validate()
        return orders

    def read_log(self) -> list[Command]:
        return self.tell(events.LogRead(tuple(self.log), self.now))

    def stored(self, order: Command) -> list[Command]:
        """The entry was stored."""
        assert isinstance(order, StoreEntry)
        self.log.append(order.entry)
        return self.tell(events.EntryStored(order.entry.number, self.now))

    def claim(self) -> list[Command]:
        """Until the job is claimed; the orders that follow."""
        (order,) = self.read_log()
        orders = self.stored(order)
        return self.read_log() if self.log[-1].number else orders

    def attempt(self, number: int = 1) -> Attempt:
        return Attempt(self.core._context.generation, number)

    def run(self, number: int = 1) -> list[Command]:
        """Until every task runs; the last orders."""
        orders: list[Command] = []
        for task in self.graph.tasks:
            orders = self.tell(events.TaskDeployed(task, self.attempt(number), self.now))
        return orders

    def pass_time(self, now: float) -> list[Command]:
        self.now = now
        return self.tell(events.DeadlinePassed(now))

    def ack(
        self, task: TaskId, checkpoint: CheckpointId, *made: Committable, number: int = 1, ended: bool = False
    ) -> list[Command]:
        files = (handle(task, checkpoint, self.attempt(number)),)
        return self.tell(events.TaskAcked(task, self.attempt(number), checkpoint, files, made, ended, self.now))

    def complete(self, *made: Committable, number: int = 1, ended: bool = False) -> list[Command]:
        """Acknowledge the pending checkpoint everywhere (the sink makes committables) and store it."""
        pending = self.core.status().pending
        assert pending is not None
        orders: list[Command] = []
        for task in self.graph.tasks:
            mine = made if task.vertex == "sink" else ()
            orders = self.ack(task, pending.checkpoint, *mine, number=number, ended=ended)
        return self.stored(orders[-1])


FIRST = CheckpointId(1, 1)
SECOND = CheckpointId(1, 2)
A1, A2 = Attempt(1, 1), Attempt(1, 2)
FULL_DISK = events.Failure(
    "the disk of the checkpoint folder is full", retry=True, remedy="free space", kind="StorageError"
)
TOLERANT = Settings(tolerable_failures=5, max_restarts=1, restart_delay=0.2)


def trigger(checkpoint: CheckpointId, at: float, attempt: Attempt = A1, round: int | None = None) -> TriggerCheckpoint:
    return TriggerCheckpoint(SOURCE, attempt, checkpoint, BarrierKind.CHECKPOINT, round, at)


def running(settings: Settings | None = None, deterministic: bool = False) -> CoordinatorDriver:
    driver = CoordinatorDriver(two_stages(deterministic), settings or Settings())
    driver.claim()
    driver.run()
    return driver


def in_checkpoint(settings: Settings | None = None) -> CoordinatorDriver:
    driver = running(settings)
    assert driver.pass_time(1.0) == [trigger(FIRST, 1.0)]
    return driver
