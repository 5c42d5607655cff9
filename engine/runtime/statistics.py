"""The counts that long-lived objects give out on request: of a task, of a stage, of a job, of one window between
barriers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ..core.identity import Attempt, TaskId
from ..scheduler.protocol import HandleStatistics, Wait
from ..state.memory import MemoryStatistics

NOTHING_HELD = MemoryStatistics()


class OperatorStatistics(msgspec.Struct, frozen=True):
    """Rows and batches that passed one operator of one attempt."""

    operator: str
    rows_in: int
    rows_out: int
    batches_out: int


class SourceStatistics(msgspec.Struct, frozen=True):
    """What one source of one attempt has read. ``rows`` counts from the beginning of the job, restores included."""

    operator: str
    rows: int
    batches: int
    split: str


class EdgeStatistics(msgspec.Struct, frozen=True):
    """One edge at one end of one attempt, all its channels there together.

    ``direction`` "out": what was sent, and ``queued`` bytes of it that nobody has consumed yet; "in": what was
    consumed, and ``queued`` bytes that wait here. ``channels``: how many there are.
    """

    edge: str
    direction: str
    channels: int
    rows: int
    batches: int
    bytes: int
    queued: int


class DriverWait(msgspec.Struct, frozen=True):
    """What one driver waits for."""

    driver: str
    wait: Wait


class TaskStatistics(msgspec.Struct, frozen=True):
    """A task's counts, and why its drivers wait."""

    task: TaskId
    attempt: Attempt
    state: str
    operators: tuple[OperatorStatistics, ...]
    sources: tuple[SourceStatistics, ...]
    why: tuple[str, ...]
    drivers: tuple[HandleStatistics, ...] = ()
    """What became of the drivers' time: running, queued, waiting by reason; wake-ups, steals, yields."""
    edges: tuple[EdgeStatistics, ...] = ()
    memory: MemoryStatistics = NOTHING_HELD
    """What the operators hold and have spilled."""
    waits: tuple[DriverWait, ...] = ()
    """The same as ``why``, for programs."""


# ------------------------------------------------------------------ job statistics
#
# The counts of a whole job: by task, and by stage, all its subtasks together.


class StageStatistics(msgspec.Struct, frozen=True):
    """One stage: sums over its subtasks since their attempts began.

    ``rows_read``: by its sources since the beginning of the job; ``rows_in``, ``rows_out`` and their bytes: what came
    from other stages and went to them. ``busy``: the part of their time in which the subtasks worked, on average;
    ``busiest``: the one that worked longest, and its part. ``held``, ``spilled``: bytes of its operators.
    """

    stage: str
    subtasks: int
    rows_read: int
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    busy: float
    busiest: tuple[TaskId, float]
    held: int
    spilled: int


class JobStatistics(dict[TaskId, TaskStatistics]):
    """The counts of every task that is there to tell, by task."""

    @property
    def stages(self) -> dict[str, StageStatistics]:
        """The same by stage."""
        names = dict.fromkeys(task.vertex for task in self)
        return {name: _stage(name, [found for task, found in self.items() if task.vertex == name]) for name in names}


def _stage(name: str, tasks: list[TaskStatistics]) -> StageStatistics:
    ins = [edge for found in tasks for edge in _edges(found, "in")]
    outs = [edge for found in tasks for edge in _edges(found, "out")]
    busy = {found.task: _busy(found) for found in tasks}
    busiest = max(busy, key=lambda task: (busy[task], -task.subtask))
    return StageStatistics(
        stage=name,
        subtasks=len(tasks),
        rows_read=sum(source.rows for found in tasks for source in found.sources),
        rows_in=sum(edge.rows for edge in ins),
        rows_out=sum(edge.rows for edge in outs),
        bytes_in=sum(edge.bytes for edge in ins),
        bytes_out=sum(edge.bytes for edge in outs),
        busy=sum(busy.values()) / len(busy),
        busiest=(busiest, busy[busiest]),
        held=sum(found.memory.held for found in tasks),
        spilled=sum(found.memory.spilled_bytes for found in tasks),
    )


def _edges(found: TaskStatistics, direction: str) -> Iterable[EdgeStatistics]:
    """Those that come from other tasks, or go there: an edge inside a task has both its ends there."""
    others = {edge.edge for edge in found.edges if edge.direction != direction}
    return (edge for edge in found.edges if edge.direction == direction and edge.edge not in others)


def _busy(found: TaskStatistics) -> float:
    """The part of its time in which a task has worked, whichever of its drivers did. Of a task that runs on its host's
    thread only ``cpu`` tells."""
    spans = [each.queued + each.running + each.paused + sum(each.waiting.values()) for each in found.drivers]
    worked = sum(max(each.running, each.cpu) for each in found.drivers)
    return min(1.0, worked / max(spans)) if spans and max(spans) > 0 else 0.0


class OperatorWindow(msgspec.Struct, frozen=True):
    """One operator in one window. ``drain_seconds``: time that it took to emit what it held at the barrier.

    ``first_at``: when its first row came, by ``time.perf_counter``; None: no row did. ``waits``: of the operator that a
    pipeline begins with, how long each input stood behind the barrier until the last one had come, in seconds.
    """

    operator: str
    rows_in: int
    rows_out: int
    bytes_out: int
    drain_seconds: float
    first_at: float | None = None
    waits: tuple[tuple[str, float], ...] = ()


class WindowStatistics(msgspec.Struct, frozen=True):
    """One window. ``seconds``: from the request to the barrier. ``operators``: of all pipelines, upstream first."""

    barrier: int
    operators: tuple[OperatorWindow, ...]
    seconds: float

    @property
    def rows(self) -> Mapping[str, int]:
        """Operator to rows emitted."""
        return {each.operator: each.rows_out for each in self.operators}

    @property
    def slowest(self) -> OperatorWindow | None:
        """The operator that took longest to drain."""
        return max(self.operators, key=lambda each: each.drain_seconds, default=None)
