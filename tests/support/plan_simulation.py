"""Real plans with real operators on the simulated scheduler: every interleaving that a seed can choose.

Rules:

1. Between any two steps the invariants of drivers and tasks are checked; those of the scheduler it checks itself.
2. The reader pulls, adds split sets and requests barriers as actions between steps, as another thread would.
3. What is read must equal, row for row and window for window, what the same flow gives in serial mode.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.engine.flow.flow import Stream
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.sources.memory import MemorySource
from support.invariants import validate_task
from support.simulated_scheduler import SimulatedScheduler

SplitSet = Mapping[str, pa.Table]
Rows = list[tuple[object, ...]]


def split_of(table: pa.Table) -> object:
    [found] = MemorySource((table,)).splits()
    return found


def rows_of(batch: pa.RecordBatch) -> Rows:
    return [tuple(row.values()) for row in batch.to_pylist()]


def run_serially(build: Callable[[], Stream], sets: Sequence[SplitSet], last: SplitSet) -> list[Rows]:
    """The rows of each window, and behind them those of the end."""
    task = PlanTask(build())
    windows = []
    for split_set in sets:
        windows.append(
            [
                row
                for batch in task.run({name: split_of(table) for name, table in split_set.items()})
                for row in rows_of(batch)
            ]
        )
    for name, table in last.items():
        task.add_split(name, split_of(table))
        task.no_more_splits(name)
    end: Rows = []
    while (batch := task.read()) is not None:
        end += rows_of(batch)
    return [*windows, end]


@dataclass
class Simulation:
    """One run; ``windows`` is what has been read."""

    build: Callable[[], Stream]
    sets: Sequence[SplitSet]
    last: SplitSet
    seed: int
    windows: list[Rows] = field(default_factory=lambda: [[]])

    def run(self) -> list[Rows]:
        """Run to the end; whatever goes wrong is raised with its seed."""
        chance = random.Random(self.seed)
        self.scheduler = SimulatedScheduler(self.seed, workers=chance.choice((1, 2, 3, 5)))
        self.task = PlanTask(self.build(), scheduler=self.scheduler, eager=chance.random() < 0.5)
        actions = self._actions()
        while self.task.state not in ("finished", "failed"):
            if actions and chance.random() < 0.2:
                actions.pop(0)()
            progressed = self.scheduler.step()
            for task in self.task.tasks:
                validate_task(task)
            if chance.random() < 0.3 or not progressed:
                self._pull(progressed or bool(actions))
            if not progressed and actions:
                actions.pop(0)()
        return self.windows

    def _actions(self) -> list[Callable[[], object]]:
        actions: list[Callable[[], object]] = []
        for split_set in self.sets:
            actions += [
                lambda n=name, t=table: self.task.add_split(n, split_of(t)) for name, table in split_set.items()
            ]
            actions.append(self.task.request_barrier)
        for name, table in self.last.items():
            actions.append(lambda n=name, t=table: self.task.add_split(n, split_of(t)))
        for name in self.last:
            actions.append(lambda n=name: self.task.no_more_splits(n))
        return actions

    def _pull(self, more: bool) -> None:
        while True:
            batch, future = self.task.next()
            if future is not None:
                assert more or self.scheduler.step(), f"nothing can run: {self.task.why()}"
                return
            if batch is None:
                if self.task.state == "barrier":
                    self.windows.append([])
                    continue
                return
            self.windows[-1] += rows_of(batch)
