"""Immutable counts that long-lived objects give out on request."""

from __future__ import annotations

from dataclasses import dataclass

from .identity import Attempt, TaskId
from .scheduler.protocol import HandleStatistics


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """Rows and batches that passed one operator of one attempt."""

    operator: str
    rows_in: int
    rows_out: int
    batches_out: int


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """What one source of one attempt has read. ``rows`` counts from the beginning of the job, restores included."""

    operator: str
    rows: int
    batches: int
    split: str


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """A task's counts, and why its drivers wait."""

    task: TaskId
    attempt: Attempt
    state: str
    operators: tuple[OperatorStatistics, ...]
    sources: tuple[SourceStatistics, ...]
    why: tuple[str, ...]
    drivers: tuple[HandleStatistics, ...] = ()
    """What became of the drivers' time: running, queued, waiting by reason; wake-ups, steals, yields."""
