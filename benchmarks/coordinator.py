"""The pure coordinator: events handled per second as the job grows, memory per task, and the start of a checkpoint.

Run it as ``python benchmarks/coordinator.py``; the result goes to ``benchmarks/results/coordinator.json``. Two stages
of equal parallelism joined by an ALL_TO_ALL edge, so the whole job is one region. The core is driven from deployment
through a few checkpoints with committables to the end of the job; every event is counted, and the processor's time in
``handle`` and ``next_deadline``:

1. *Rate* against the aim of 100,000 events/s, with 1 K, 10 K and 100 K tasks, for the whole life and for checkpoints
   alone; with ``--full`` for those of 1 M tasks, too, which takes a minute.
2. *Flat*: seconds per event at 100 K tasks against 1 K.
3. *Memory*: bytes per task that a coordinator holds when all tasks run, counted by the interpreter.
4. *Start*: from the states of 10 × 100,000 tasks to a pending checkpoint, without the order to each source: the aim is
   100 ms. Beside it what the same takes with those orders.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

from harness import Row, compare, report, results_folder, sized
from penstock.coordinator.checkpoint.checkpoints import BarrierOrders
from penstock.coordinator.checkpoint.pending import (
    CheckpointPlan,
    PendingCheckpoint,
    compute_checkpoint_plan,
    vertex_states,
)
from penstock.coordinator.machine import Coordinator
from penstock.coordinator.model import events
from penstock.coordinator.model.commands import Command, StoreEntry
from penstock.coordinator.model.events import Event
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from penstock.coordinator.model.settings import Settings
from penstock.engine.core.identity import Attempt, CheckpointId, Committable, StateHandle

AIM = 100_000.0
AIM_SECONDS = 0.1
SMALLEST, LARGEST = sized((1_000, 100_000), (20, 200))
SIZES = (SMALLEST, 10 * SMALLEST, LARGEST)[: sized(3, 2)]
CHECKPOINTS = 3


def two_stages(tasks: int) -> ExecutionGraph:
    vertices = (Vertex("source", tasks // 2), Vertex("sink", tasks - tasks // 2))
    return ExecutionGraph(vertices, (JobEdge("source", "sink", Pattern.ALL_TO_ALL),))


class Driven:
    """A coordinator with a log that always works. Counts events and the time in ``handle``."""

    def __init__(self, graph: ExecutionGraph) -> None:
        self.graph = graph
        self.core = Coordinator("job", "print", "a flow", graph, Settings(interval=1.0, resend=1e9, timeout=1e9))
        self.attempt = Attempt(1, 1)
        self.now, self.count, self.seconds = 0.0, 0, 0.0
        self.core.start(0.0)

    def tell(self, *happened: Event) -> list[Command]:
        """The orders of the last one."""
        handle, next_deadline, orders = self.core.handle, self.core.next_deadline, list[Command]()
        begin = time.process_time()
        for event in happened:
            orders = handle(event)
            next_deadline()
        self.seconds += time.process_time() - begin
        self.count += len(happened)
        return orders

    def store(self, orders: list[Command]) -> list[Command]:
        """The last order is for the log, which does it."""
        order = orders[-1]
        if not isinstance(order, StoreEntry):
            raise TypeError(f"not an entry: {order}")
        return self.tell(events.EntryStored(order.entry.number, self.now))

    def deploy(self) -> None:
        self.store(self.tell(events.LogRead((), 0.0)))
        self.tell(*(events.TaskDeployed(task, self.attempt, self.now) for task in self.graph.tasks))

    def checkpoint(self, number: int, ended: bool = False) -> None:
        """One checkpoint, from its trigger to the last answer of a commit."""
        self.now += 2.0
        checkpoint = CheckpointId(1, number)
        self.tell(events.DeadlinePassed(self.now))
        self.store(self.tell(*self.acks(checkpoint, ended)))
        self.tell(*(events.TaskCommitted(task, self.attempt, checkpoint, self.now) for task in self.graph.tasks))

    def acks(self, checkpoint: CheckpointId, ended: bool) -> Iterator[Event]:
        for task in self.graph.tasks:
            state = (StateHandle("operator", f"{task}/{checkpoint}", 100, 1),)
            made = (Committable("sink", 1, {"file": str(task)}),) if task.vertex == "sink" else ()
            yield events.TaskAcked(task, self.attempt, checkpoint, state, made, ended, self.now)

    def finish(self) -> None:
        """All data end, a final checkpoint covers that, every task finishes."""
        self.tell(*(events.DataEnded(task, self.attempt, self.now) for task in self.graph.tasks))
        self.checkpoint(CHECKPOINTS + 1, ended=True)
        finished = (events.TaskFinished(task, self.attempt, self.now) for task in self.graph.tasks)
        self.store(self.tell(*finished))
        if not self.core.status().is_over:
            raise RuntimeError(f"the job has not ended: {self.core.status().why}")


def life(tasks: int) -> Driven:
    driven = Driven(two_stages(tasks))
    driven.deploy()
    for number in range(1, CHECKPOINTS + 1):
        driven.checkpoint(number)
    driven.finish()
    return driven


def life_rate(tasks: int) -> float:
    gc.collect()
    driven = life(tasks)
    return driven.count / driven.seconds


def checkpoint_rate(tasks: int) -> float:
    gc.collect()
    driven = Driven(two_stages(tasks))
    driven.deploy()
    driven.checkpoint(1)
    driven.count, driven.seconds = 0, 0.0
    driven.checkpoint(2)
    return driven.count / driven.seconds


def bytes_per_task(tasks: int) -> float:
    graph = two_stages(tasks)
    _ = graph.tasks, graph.regions
    gc.collect()
    tracemalloc.start()
    driven = Driven(graph)
    driven.deploy()
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / tasks


def chain(size: int) -> ExecutionGraph:
    names = [f"v{number}" for number in range(10)]
    edges = tuple(JobEdge(first, second, Pattern.ALL_TO_ALL) for first, second in pairwise(names))
    return ExecutionGraph(tuple(Vertex(name, size) for name in names), edges)


def start_rows() -> list[Row]:
    """A running job of a million tasks; what happens when a checkpoint starts."""
    core = Coordinator("job", "print", "a flow", chain(LARGEST), Settings(interval=1.0))
    graph, table = core._context.graph, core._context.tasks
    for codes in table._codes.values():
        codes[:] = bytes([4]) * len(codes)

    for record in table._records["v0"]:
        record.attempt = Attempt(1, 1)
    orders = BarrierOrders(core._context)

    def begin(told: bool = False) -> PendingCheckpoint:
        plan = compute_checkpoint_plan(graph, vertex_states(table))
        if not isinstance(plan, CheckpointPlan):
            raise TypeError(plan.reason)
        wait_for, finished = plan.waiting_set(), plan.finished_set()
        triggers = table.ids(plan.to_trigger) if told else ()
        return PendingCheckpoint(CheckpointId(1, 1), triggers, wait_for, False, 0.0, finished=finished)

    def with_orders() -> None:
        core._context.out = []
        orders.begin(begin(told=True))
        if len(core._context.out) != LARGEST:
            raise ValueError(f"{len(core._context.out)} orders")

    def timed(action: object) -> float:
        begun = time.process_time()
        action()  # type: ignore[operator]
        return time.process_time() - begun

    return [
        compare("start, 10 × 100,000 tasks", "the aim", lambda: timed(begin), lambda: AIM_SECONDS),
        compare("start with 100,000 orders", "the aim", lambda: timed(with_orders), lambda: AIM_SECONDS),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help=f"{10 * LARGEST:,} tasks, too")
    full = parser.parse_args().full
    rows: list[Row] = []
    for tasks in (*SIZES, *(10 * LARGEST,) * full):
        rounds = 3 if tasks < LARGEST else 1
        rates = (("life", life_rate), ("checkpoint", checkpoint_rate))
        for name, rate in rates if tasks <= LARGEST else rates[1:]:
            rows.append(
                compare(
                    f"{name}, {tasks:,} tasks",
                    "the aim",
                    lambda rate=rate, tasks=tasks: rate(tasks),  # type: ignore[misc]
                    lambda: AIM,
                    unit="1/s",
                    higher_is_better=True,
                    rounds=rounds,
                    warmup=0 if tasks >= LARGEST else 1,
                )
            )
    rows.append(
        compare(
            f"per event at {LARGEST:,} tasks",
            f"at {SMALLEST:,} tasks",
            lambda: 1e6 / checkpoint_rate(LARGEST),
            lambda: 1e6 / checkpoint_rate(SMALLEST),
            unit="us",
            aim=0.5,
            rounds=1,
            warmup=0,
        )
    )
    rows.append(
        compare("memory per task", "1 KiB", lambda: bytes_per_task(10 * SMALLEST), lambda: 1024.0, unit="B", rounds=1)
    )
    report([*rows, *start_rows()], results_folder() / "coordinator.json")


if __name__ == "__main__":
    main()
