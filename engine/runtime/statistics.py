"""Immutable counts that long-lived objects give out on request."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.identity import Attempt, TaskId
from ..scheduler.protocol import HandleStatistics
from ..scheduler.states import Wait
from ..state.memory import MemoryStatistics

NOTHING_HELD = MemoryStatistics()


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
class EdgeStatistics:
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


@dataclass(frozen=True, slots=True)
class DriverWait:
    """What one driver waits for."""

    driver: str
    wait: Wait


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
    edges: tuple[EdgeStatistics, ...] = ()
    memory: MemoryStatistics = NOTHING_HELD
    """What the operators hold and have spilled."""
    waits: tuple[DriverWait, ...] = ()
    """The same as ``why``, for programs."""
