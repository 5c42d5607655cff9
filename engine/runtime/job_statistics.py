"""The counts of a whole job: by task, and by stage, all its subtasks together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..core.identity import TaskId
from .statistics import EdgeStatistics, TaskStatistics


@dataclass(frozen=True, slots=True)
class StageStatistics:
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
