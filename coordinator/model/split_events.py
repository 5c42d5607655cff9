"""Facts about what a caller feeds to a job (see ``events``, whose rules hold here, too)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ...engine.core.identity import Attempt, CheckpointId, TaskId
from .split_sets import SplitEntry
from .window_reports import TaskReport


@dataclass(frozen=True, slots=True)
class SplitSetsAdded:
    """These entries stand in the log of split sets: somebody has just written them."""

    entries: tuple[SplitEntry, ...]
    now: float


@dataclass(frozen=True, slots=True)
class SplitSetsRead:
    """Answer to ``ReadSplitSets``: the entries from there on. ``oldest``: the number of the oldest entry that there is.
    ``failed``: it could not be read."""

    entries: tuple[SplitEntry, ...]
    oldest: int
    now: float
    failed: bool = False


@dataclass(frozen=True, slots=True)
class TaskFed:
    """The sources of the attempt have got everything before that number of the log of split sets."""

    task: TaskId
    attempt: Attempt
    number: int
    now: float


@dataclass(frozen=True, slots=True)
class WindowDrained:
    """Every pipeline of the task has drained for that task barrier."""

    task: TaskId
    attempt: Attempt
    barrier: CheckpointId
    report: TaskReport
    now: float


SplitsTold: TypeAlias = SplitSetsAdded | SplitSetsRead
WindowTold: TypeAlias = TaskFed | WindowDrained
"""What a task says of its windows."""
SplitEvent: TypeAlias = SplitsTold | WindowTold
