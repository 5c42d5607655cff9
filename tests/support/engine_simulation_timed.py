"""Simulated jobs in which everything takes its time: pieces, messages, what disks are asked for. Nothing goes wrong.

A process that has called its drivers once is busy until that piece is over; what comes meanwhile waits. How long pieces
are is drawn for each task: among tasks that take a millisecond may be a slow function, or a slow sink. Channels are
narrow, so whoever is slow holds up what is before it. Sources end early, and while checkpoints are under way.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from penstock.coordinator.machine import Coordinator
from penstock.coordinator.model.commands import Command
from penstock.coordinator.model.events import Event
from penstock.coordinator.model.statistics import CheckpointStatistics
from penstock.engine.core.identity import CheckpointId, TaskId
from penstock.engine.flow.flow import Flow
from penstock.engine.plan.plan import JobPlan
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.scheduler import serial
from support.engine_simulation import NO_FAULTS, SETTINGS, Sizes
from support.engine_simulation_cuts import CutSimulation
from support.engine_simulation_flows import JOB, LANES, DiskSink, numbers
from support.engine_simulation_processes import Host
from support.engine_simulation_runs import check
from support.engine_simulation_shapes import SHAPES, WIDEST

MESSAGE = 0.0005
"""Seconds that a message is on its way, at most."""
ON_THE_WAY = 24
"""Messages one after the other from a trigger to the manifest, at most: for each of the exchanges on the way a barrier,
which waits for those that are under way before it on its link."""
JOB_OVER = "every task has finished"
"""What becomes of a checkpoint that was under way then."""
WRITES = 3
"""What is written one after the other for a checkpoint, at most: what a sink flushed, a snapshot, the manifest."""


@dataclass(frozen=True)
class Times:
    """Seconds at most. ``slow``: of a piece of a task that is slow; others take a millisecond. ``write``: of whatever a
    disk is asked for. ``steady``: all tasks are slow, the more the further they are down, and each piece takes its
    time: all of them are busy, and have more to do than they can."""

    slow: float
    write: float
    steady: bool = False


class TimedSimulation(CutSimulation):
    """``completed``: the checkpoints; ``failed``: those that were given up. ``pieces``: how long the longest piece of
    each task took."""

    def __init__(self, seed: int, shape: int, parallelism: int, interval: float, times: Times, sizes: Sizes) -> None:
        settings = replace(SETTINGS, interval=interval, unaligned=True, history=10_000)
        super().__init__(seed, shape, (parallelism,), NO_FAULTS, settings, sizes)
        self._times = times
        #: what happens when, in the order in which it was posted
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        #: when the last entry of each queue happens
        self._last: dict[Hashable, float] = {}
        self._busy: dict[TaskId, float] = {}
        self._slow: dict[TaskId, bool] = {}
        self.pieces: dict[TaskId, float] = {}
        self.completed: dict[CheckpointId, CheckpointStatistics] = {}
        self.failed: dict[CheckpointId, CheckpointStatistics] = {}

    def handle(self, core: Coordinator, event: Event) -> list[Command]:
        orders = super().handle(core, event)
        for one in core.checkpoint_statistics().history:
            if one.status != "in progress":
                (self.completed if one.status == "completed" else self.failed)[one.checkpoint] = one
        return orders

    # --- time ----------------------------------------------------------------------------------------------------

    def post(self, action: Callable[[], None], queue: Hashable | None = None) -> None:
        self._plan_in(self.random.uniform(0, MESSAGE), action, queue)

    def work(self, action: Callable[[], None], queue: Hashable | None = None) -> None:
        self._plan_in(self.random.uniform(0, self._times.write), action, queue)

    def _plan_in(self, seconds: float, action: Callable[[], None], queue: Hashable | None) -> None:
        at = self.now + seconds
        if queue is not None:
            at = self._last[queue] = max(at, self._last.get(queue, 0.0))
        heapq.heappush(self._agenda, (at, self.next_number(), action))

    def _step(self) -> None:
        self.coordinator.look_at_clock()
        for process in self.processes.values():
            for link in process.wires.sendable():
                process.wires.carry(link)
        if self._agenda and self._agenda[0][0] <= self.now:
            heapq.heappop(self._agenda)[2]()
            return
        hosts = {task: process.host for task, process in self.processes.items() if process.alive}
        wakes = {task: 0.0 if host.awake else host.wake_at for task, host in hosts.items()}
        times = {task: max(self._busy.get(task, 0.0), at) for task, at in wakes.items() if at is not None}
        ready = [task for task, at in times.items() if at <= self.now]
        if ready:
            self._turn(self.random.choice(ready))
            return
        deadline = self.coordinator.core.next_deadline()
        sooner = [*times.values(), *([] if deadline is None else [deadline]), *(each[0] for each in self._agenda[:1])]
        assert sooner, "nothing will ever happen again"
        assert self.now < self._progress_at + 100, "nothing runs while work remains"
        self.now = max(self.now, min(sooner))

    def _turn(self, task: TaskId) -> None:
        serial.CALLS_PER_TURN = 1
        host = self.processes[task].host
        before = _worked(host)
        if host.turn(self.now):
            self._progress_at = self.now
        if _worked(host) != before:
            seconds = self._seconds(task)
            self.pieces[task] = max(seconds, self.pieces.get(task, 0.0))
            self._busy[task] = self.now + seconds

    def _seconds(self, task: TaskId) -> float:
        if self._times.steady:
            return self._times.slow * self._depth(task.vertex)
        slow = self._slow.setdefault(task, self.random.random() < 0.3)
        return self.random.uniform(0, self._times.slow if slow else 0.001)

    def _depth(self, stage: str) -> int:
        before = [each.source for each in self.plan.exchanges if each.target == stage]
        return 1 + max(map(self._depth, before), default=0)

    # --- what must hold ------------------------------------------------------------------------------------------

    def check_times(self) -> None:
        """Raises AssertionError unless every checkpoint was complete in time, and none was given up."""
        given_up = {str(id): one.failure for id, one in self.failed.items() if one.failure != JOB_OVER}
        assert not given_up, f"seed {self.seed}: {given_up}"
        may = self.bound()
        for one in self.completed.values():
            assert one.ended_at is not None
            took = one.ended_at - one.triggered_at
            assert took <= may, f"seed {self.seed}: checkpoint {one.checkpoint} took {took:.4f} s, not {may:.4f} s"

    def bound(self) -> float:
        """Seconds that a checkpoint may take from its trigger on: one piece, and another one where it has to be seen
        that what a sink flushed is written. A task's drivers share one thread here: each waits for all others."""
        pieces = [seconds * self._turns(task) for task, seconds in self.pieces.items()]
        return max(pieces, default=0.0) + WRITES * self._times.write + ON_THE_WAY * MESSAGE

    def _turns(self, task: TaskId) -> int:
        drivers = self.plan.stages[task.vertex].pipelines
        return len(drivers) + any(operator.is_sink for each in drivers for operator in each.operators)


def _worked(host: Host) -> tuple[int, ...]:
    """Changes with every piece: orders and messages cost nothing."""
    drivers = () if host.task is None else host.task.drivers
    operators = [operator for driver in drivers for operator in driver.operators]
    rows = [count for each in operators for count in (each.rows_in, each.rows_out)]
    return (*rows, *(reader.batches for driver in drivers for reader in driver.readers))


def simulate(seed: int, shape: int | None = None) -> TimedSimulation:
    """One run, checked; of the seed's shape, unless another one is given."""
    draw = random.Random(seed)
    shape = seed % len(SHAPES) if shape is None else shape
    sizes = Sizes(draw.choice((1, 1, 100, 10_000)), draw.choice((1, 3, 3, 100)))
    times = Times(draw.choice((0.001, 0.05, 0.3)), draw.choice((0.0, 0.005, 0.05)))
    return _checked(seed, shape, draw.randrange(1, WIDEST + 1), draw.choice((0.02, 0.06, 0.3)), times, sizes)


def _checked(seed: int, shape: int, parallelism: int, interval: float, times: Times, sizes: Sizes) -> TimedSimulation:
    run = TimedSimulation(seed, shape, parallelism, interval, times, sizes)
    check(run.run(), shape)
    run.check_times()
    return run


class ChainSimulation(TimedSimulation):
    """Tasks in a row, each with one driver, all of them with more to do than they can: a barrier finds them busy."""

    LENGTH = 6

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 0, 1, 0.3, Times(0.02, 0.0, steady=True), Sizes(1_000, 1))

    def _plan_for(self, parallelism: int) -> JobPlan:
        flow = Flow(JOB, lanes=LANES)
        rows = flow.from_tables(numbers(), name="numbers")
        for number in range(self.LENGTH):
            rows = rows.filter(f"x > {number}").forward()
        flow.attach(DiskSink("rows", self.disk), rows, name="rows")
        return plan_job(flow, parallelism)


def simulate_chain(seed: int) -> TimedSimulation:
    """One run, checked."""
    run = ChainSimulation(seed)
    run.run()
    run.check_times()
    return run
