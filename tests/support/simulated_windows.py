"""A job whose sources are fed, simulated by seed: the real coordinator, readers and feeds; orders and reports get lost.

The model: two source tasks, each a region of its own, write down the rows that they read. At a task barrier these rows
belong to that window; at a checkpoint they are prepared, and with its commit visible. So a row that is lost, doubled or
in the wrong window shows. Orders to one task stay in order, as they do between two actors; what differs is when.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from penstock.actors.hosting.task_split_sets import TaskSplitSets
from penstock.coordinator.machine import Coordinator
from penstock.coordinator.model import commands, events
from penstock.coordinator.model.events import SplitSetsAdded, SplitSetsRead
from penstock.coordinator.model.execution_graph import ExecutionGraph, Vertex
from penstock.coordinator.model.manifest import LogEntry
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.model.split_sets import (
    NoMoreSets,
    SetAdded,
    SetPosition,
    SplitEntry,
    SplitRef,
    WindowEnded,
    following,
)
from penstock.engine.core.elements import Barrier, Batch, EndOfData
from penstock.engine.core.identity import BarrierKind, CheckpointId, Committable, StateHandle, TaskId
from penstock.engine.plan.split_places import rounds_of
from penstock.engine.runtime.checkpointing import DriverSnapshot, TaskCheckpoints
from penstock.engine.runtime.driver import Driver
from penstock.engine.runtime.orders import SplitSetOrder
from penstock.engine.sources.reader import SplitReader

LANES = 4
SCHEMA = pa.schema([("n", pa.int64())])
GRAPH = ExecutionGraph((Vertex("left", 2, ("left",), takes_splits=True),), (), True, LANES)
SETTINGS = Settings(interval=1.0, tolerable_failures=10**6, max_restarts=10**6, restart_delay=0.01, timeout=30.0)
PLAN: Any = SimpleNamespace(
    lanes=LANES,
    fed=("left",),
    sources={"left": SimpleNamespace(schema=SCHEMA)},
    stages={"left": SimpleNamespace(pipelines=[SimpleNamespace(ports=[SimpleNamespace(kind="source")])])},
)


class FedTask:
    """One attempt: a task, its only driver and that driver's host in one."""

    def __init__(self, world: World, command: commands.DeployTask) -> None:
        self.world, self.id, self.attempt = world, command.task, command.attempt
        first = command.task.subtask * LANES // 2
        state = world.files[command.state[0].location] if command.state else None
        self.reader = SplitReader(
            "left", SCHEMA, (), range(first, first + LANES // 2), LANES, restored=state, more=True
        )
        self.readers, self.drivers = [self.reader], [self]
        self.checkpoints = TaskCheckpoints(1)
        self.split_sets = TaskSplitSets(PLAN, "", world.report)
        self.started = self.told_end = self.told_finished = False
        #: read since the last task barrier, and drained since the last checkpoint with the number of its barrier
        self.held: list[int] = []
        self.drained: list[tuple[str, int]] = []
        self.last: CheckpointId | None = None

    def trigger(
        self, checkpoint: CheckpointId, kind: BarrierKind, at_round: Any, at: float, stop: Any, unaligned: bool
    ) -> None:
        barrier = self.checkpoints.order(checkpoint, kind, at, unaligned=unaligned)
        if barrier is not None:
            self.reader.trigger(barrier, at_round, stop)

    def take_split_sets(self, rounds: int, items: Sequence[SplitSetOrder]) -> None:
        Driver._take_split_sets(self, rounds, items)  # type: ignore[arg-type]

    def _drain_sources(self, barrier: CheckpointId) -> None:
        self.reader.trigger(Barrier(barrier, BarrierKind.DRAIN, 0.0), self.reader.last_round)

    def perform(self, order: Any) -> None:
        now = self.world.now
        match order:
            case commands.StartTask():
                self.started = True
                self.told_end = self.told_finished = False
            case commands.ProposeRound(checkpoint=checkpoint) if not self.checkpoints.is_late(checkpoint):
                self.checkpoints.propose(checkpoint)
                round = self.reader.propose(checkpoint)
                self.world.report(events.RoundProposed(self.id, self.attempt, checkpoint, round, now))
            case commands.TriggerCheckpoint():
                self.split_sets.trigger(self, order)  # type: ignore[arg-type]
            case commands.AssignSplits():
                self.split_sets.take(self, order)  # type: ignore[arg-type]
            case commands.AbortCheckpoint(checkpoint=checkpoint):
                self.checkpoints.abort(checkpoint)
                self.reader.abort(checkpoint)
            case commands.CommitCheckpoint(permit=permit):
                self.world.commit(permit)
                self.checkpoints.committed(permit.checkpoint)
                self.world.report(events.TaskCommitted(self.id, self.attempt, permit.checkpoint, now))

    def step(self) -> None:
        """Take one element from the reader."""
        element = self.reader.peek()
        if element is not None:
            self._take(self.reader.pop())
        now = self.world.now
        if self.reader.data_ended and not self.told_end:
            self.told_end = True
            self.world.report(events.DataEnded(self.id, self.attempt, now))
        if self.checkpoints.final_committed and not self.told_finished:
            self.told_finished = True
            self.world.report(events.TaskFinished(self.id, self.attempt, now))

    def _take(self, element: Any) -> None:
        if isinstance(element, Batch):
            self.held += element.records.column(0).to_pylist()
        elif isinstance(element, EndOfData):
            assert not self.held, "the end stands behind a task barrier"
            self.reader.acknowledge_drained()
        elif isinstance(element, Barrier):
            assert self.last is None or element.checkpoint > self.last, "barriers stand in the order of their ids"
            self.last = element.checkpoint
            if element.kind is BarrierKind.DRAIN:
                self.drained += [(str(element.checkpoint), row) for row in self.held]
                self.held = []
            else:
                self._cut(element)

    def _cut(self, barrier: Barrier) -> None:
        assert not self.held, "a checkpoint cuts between windows"
        location = f"{self.id}/{self.attempt}/{barrier.checkpoint}"
        made = [Committable("left", len(self.drained), {"id": location, "rows": self.drained})] if self.drained else []
        self.drained = []
        cut = DriverSnapshot(barrier, {"left": self.reader.snapshot()}, self.reader.data_ended)
        snapshot = self.checkpoints.add("left", cut, made)
        if snapshot is not None:
            self.world.files[location] = snapshot.tables["left"]
            state = (StateHandle("left", location, 1, 1),)
            acked = (state, snapshot.committables, snapshot.data_ended, self.world.now)
            self.world.report(events.TaskAcked(self.id, self.attempt, barrier.checkpoint, *acked))


class World:
    """The processes, what is on its way between them, and what lasts. ``run`` goes on until the job has finished."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.log: list[LogEntry] = []
        self.splits: list[SplitEntry] = []
        self.discarded: set[int] = set()
        self.files: dict[str, pa.Table] = {}
        self.tasks: dict[TaskId, FedTask] = {}
        self.orders: dict[TaskId, deque[Any]] = {task: deque() for task in GRAPH.tasks}
        self.reports: deque[Any] = deque()
        #: by the committable's id
        self.visible: dict[str, list[tuple[str, int]]] = {}
        #: row to window, of all that was fed
        self.fed: dict[int, int] = {}
        self.seen: Counter[str] = Counter()
        self.calls_left = self.random.randrange(10, 50)
        self.generation = 0
        self._begin()

    def _begin(self) -> None:
        self.generation += 1
        self.core = Coordinator("job", "print", "a flow", GRAPH, SETTINGS, f"owner {self.generation}")
        self.reports.clear()
        self._perform(self.core.start(self.now))

    # ------------------------------------------------------------------ what the shells do

    def report(self, event: Any) -> None:
        if self.random.random() > 0.03:
            self.reports.append(event)

    def commit(self, permit: Any) -> None:
        for one in permit.committables:
            self.visible[one.payload["id"]] = one.payload["rows"]

    def _perform(self, orders: list[Any]) -> None:
        for order in orders:
            match order:
                case commands.ReadLog():
                    self.reports.append(events.LogRead(tuple(self.log), self.now))
                case commands.StoreEntry(entry):
                    self.log.append(entry)
                    self.reports.append(events.EntryStored(entry.number, self.now))
                case commands.ReadSplitSets(start):
                    kept = [each for each in self.splits[start:] if each.at.number not in self.discarded]
                    oldest = min(set(range(len(self.splits))) - self.discarded, default=start)
                    failed = self.random.random() < 0.2
                    found = () if failed else tuple(kept)
                    self.reports.append(SplitSetsRead(found, oldest, self.now, failed))
                case commands.DiscardSplitSets(numbers):
                    assert len(self.splits) - 1 not in numbers, "the last entry stays"
                    self.discarded.update(numbers)
                case commands.CommitOrphans(task, attempt, permit):
                    self.commit(permit)
                    self.reports.append(events.TaskCommitted(task, attempt, permit.checkpoint, self.now))
                case commands.DiscardState() | commands.DiscardEntries() | commands.EndJob():
                    pass
                case _:
                    self.orders[order.task].append(order)

    def _tell(self, event: Any) -> None:
        self._perform(self.core.handle(event))
        self.core.validate()

    # ------------------------------------------------------------------ chance

    def run(self) -> None:
        """Until the job has finished; raises AssertionError if that takes too long."""
        for _ in range(60_000):
            if self.core.status().is_over:
                return
            self._something()
        raise AssertionError(f"the job does not end: {self.core.status()}\n{self.core.event_log()}")

    def _something(self) -> None:
        draw = self.random.random()
        if draw < 0.02 and self.calls_left:
            self._call()
        elif draw < 0.35:
            task = self.random.choice(GRAPH.tasks)
            if self.orders[task]:
                self._order(task, self.orders[task].popleft())
        elif draw < 0.65:
            task = self.random.choice(GRAPH.tasks)
            if task in self.tasks and self.tasks[task].started:
                self.tasks[task].step()
        elif draw < 0.95:
            if self.reports:
                self._tell(self.reports.popleft())
        elif draw < 0.9955:
            self.now += self.random.random() * 0.3
            deadline = self.core.next_deadline()
            if deadline is not None and deadline <= self.now:
                self._tell(events.DeadlinePassed(self.now))
        elif draw < 0.999:
            self._lose(self.random.choice(GRAPH.tasks))
        elif self.calls_left:  # a new one reads the log anew, and would mend what the last call was to tell this one
            self.seen["coordinators"] += 1
            self._begin()

    def _order(self, task: TaskId, order: Any) -> None:
        if isinstance(order, commands.DeployTask):
            known = self.tasks.get(task)
            if known is None or known.attempt < order.attempt:
                self.tasks[task] = FedTask(self, order)
            if self.tasks[task].attempt == order.attempt:
                self.report(events.TaskDeployed(task, order.attempt, self.now))
        elif task in self.tasks and self.tasks[task].attempt == order.attempt:
            kept = isinstance(order, commands.StopTask | commands.StartTask)
            if isinstance(order, commands.StopTask):
                del self.tasks[task]
            elif kept or self.random.random() > 0.05:
                self.tasks[task].perform(order)

    def _lose(self, task: TaskId) -> None:
        found = self.tasks.pop(task, None)
        if found is not None:
            self.seen["losses"] += 1
            self.reports.append(events.TaskLost(task, found.attempt, "the simulation says so", self.now))

    def _call(self) -> None:
        """A caller adds something; now and then the coordinator is not told, or before it hears what it has read."""
        at = following(self.splits[-1]) if self.splits else SetPosition()
        self.calls_left -= 1
        entry: SplitEntry
        if not self.calls_left:
            if self.splits and isinstance(self.splits[-1], SetAdded):
                self.splits.append(WindowEnded(at=at))
                at = following(self.splits[-1])
            entry = NoMoreSets(at=at)
        elif self.random.random() < 0.4:
            entry = WindowEnded(at=at)
        else:
            entry = self._set(at)
        self.splits.append(entry)
        if isinstance(entry, NoMoreSets) or self.random.random() < 0.8:
            place = self.random.randrange(len(self.reports) + 1)
            self.reports.insert(place, SplitSetsAdded((entry,), self.now))

    def _set(self, at: SetPosition) -> SetAdded:
        refs = []
        for number in range(self.random.choice((1, 1, 2, 4, 6))):
            rows = [len(self.fed) + each for each in range(self.random.choice((0, 1, 3)))]
            self.fed.update(dict.fromkeys(rows, at.windows + 1))
            table = pa.table([rows], schema=SCHEMA)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, SCHEMA) as writer:
                writer.write_table(table)
            refs.append(SplitRef(id=f"{at.number}/{number}", rows=len(rows), data=sink.getvalue().to_pybytes()))
        return SetAdded(at=at, splits={"left": tuple(refs)}, rounds=rounds_of(len(refs), LANES))
