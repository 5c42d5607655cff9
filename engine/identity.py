"""The ids and rights that every layer shares: what a message can name.

This is the only engine module that ``coordinator`` imports, so it knows nothing but the standard library's
``dataclasses``, ``enum`` and ``typing``. Rules:

1. An id is a value: immutable, ordered, hashable, and never reused. Checkpoint ids and attempts carry the
   generation of the coordinator that drew them, so two coordinators never draw the same one.
2. A right is an object: a sink commits only what a :class:`CommitPermit` lists, and only the coordinator makes one,
   after the checkpoint's entry stands in the log.
3. Whatever the coordinator stores but does not understand (state files, committables) is opaque here as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

FINAL_ROUND = 2**62
"""The round of the rows that operators emit when they finish. It is the same for every lane and subtask, so that the
place of those rows in the order does not depend on which subtask saw how many rounds."""


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One subtask of one vertex (stage): ``vertex`` is the stage's name, ``subtask`` counts from 0."""

    vertex: str
    subtask: int

    def __str__(self) -> str:
        return f"{self.vertex}[{self.subtask}]"


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One execution of a task. ``generation`` is the coordinator's; ``number`` counts deployments within it."""

    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.number}"


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """One checkpoint. Ordered by generation first: a later coordinator's ids are all larger than an earlier one's."""

    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.number}"


class BarrierKind(Enum):
    """What a barrier asks for."""

    CHECKPOINT = "checkpoint"
    """Snapshot in place and go on."""
    SAVEPOINT = "savepoint"
    """As a checkpoint, self-contained and owned by the user."""
    DRAIN = "drain"
    """Emit what depends on the input so far and forget it (the task barrier)."""


@dataclass(frozen=True, slots=True)
class StateHandle:
    """An immutable state file of one operator of one task. ``location`` is relative to the checkpoint folder."""

    operator: str
    location: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Committable:
    """What one sink operator prepared for one checkpoint and will make visible on commit.

    ``payload`` is plain JSON data that only the sink's committer understands. Committing it twice is harmless:
    that is the committer's contract.
    """

    operator: str
    rows: int
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """The right to commit: made by the coordinator once the entry of ``checkpoint`` stands in the log."""

    checkpoint: CheckpointId
    committables: tuple[Committable, ...]
