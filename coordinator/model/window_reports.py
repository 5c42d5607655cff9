"""What is told of windows: plain data, for whoever waits for a barrier and for people.

Times are seconds. Points in time are seconds since the epoch, each by the clock of the machine that it was read on:
what lies between two of them is only as exact as these clocks agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...engine.core.identity import TaskId


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """One operator of a task in one window. ``drain``: what it took to emit what it held at the barrier. ``waits``: how
    long each input of the pipeline that begins with it stood behind the barrier until the last one had come."""

    operator: str
    rows_in: int
    rows_out: int
    bytes_out: int
    drain: float
    waits: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One task in one window, upstream operators first. ``first_at``: when its first row came; None: none did.
    ``drained_at``: when the last of its pipelines had drained."""

    operators: tuple[OperatorReport, ...]
    first_at: float | None
    drained_at: float

    @property
    def drain(self) -> float:
        """What its operators took to emit what they held."""
        return sum(each.drain for each in self.operators)


@dataclass(frozen=True, slots=True)
class WindowReport:
    """One window of a job. ``sets``: split sets in it. ``tasks``: those that have drained; a coordinator that takes
    over knows nothing of windows that were complete before."""

    number: int
    sets: int
    requested_at: float
    tasks: Mapping[TaskId, TaskReport]
    reached: bool
    """Whether every task that runs has drained."""

    @property
    def seconds(self) -> float | None:
        """From the request to when the last task had drained; negative for what was fed and drained before it."""
        ends = [task.drained_at for task in self.tasks.values()]
        return max(ends) - self.requested_at if ends and self.reached else None

    @property
    def first_token(self) -> Mapping[TaskId, float]:
        """Task to the time from the request to its first row; negative if that had come before."""
        return {
            task: found.first_at - self.requested_at for task, found in self.tasks.items() if found.first_at is not None
        }

    @property
    def rows(self) -> Mapping[str, int]:
        """Operator to rows emitted, by all tasks together."""
        found: dict[str, int] = {}
        for task in self.tasks.values():
            for each in task.operators:
                found[each.operator] = found.get(each.operator, 0) + each.rows_out
        return found

    @property
    def slowest(self) -> TaskId | None:
        """The task that had drained last."""
        return max(self.tasks, key=lambda task: self.tasks[task].drained_at, default=None)


@dataclass(frozen=True, slots=True)
class SplitStatus:
    """How far a job has been fed, and its windows have come. Windows count from 1; the counts are of all that was ever
    fed to the job, also before a restart."""

    entries: int
    """Where the next entry of the log of split sets goes."""
    sets: int
    rounds: int
    requested: int
    """Barriers that the coordinator knows of."""
    reached: int
    """Windows that every task has drained."""
    published: int
    """Windows whose rows are visible in every sink."""
    open_sets: int
    """Split sets since the last barrier."""
    ended: bool
    """Whether nothing more will be added."""
