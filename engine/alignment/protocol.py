"""What a barrier handler is told and what it answers.

Rules:

1. A handler is pure. Time is an argument (any clock and unit, the same for ``created`` and ``now``), and an id is any
   ordered value.
2. A handler decides; whoever owns it acts: reads no channel in ``blocked``, takes the snapshot that is ``triggered``,
   reports what is ``aborted`` and sends its cancel marker downstream.

Source: Flink's checkpoint barrier handlers, with FLIP-147 (checkpoints after tasks have finished).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar


class Ordered(Protocol):
    """An id: hashable, compared with its like, and growing from one checkpoint to the next."""

    def __hash__(self) -> int: ...

    def __lt__(self, other: Any, /) -> bool: ...

    def __le__(self, other: Any, /) -> bool: ...

    def __gt__(self, other: Any, /) -> bool: ...


Id = TypeVar("Id", bound=Ordered)


class AbortReason(Enum):
    """Why a handler gave a checkpoint up. The first two values are Flink's names, as users know them."""

    SUBSUMED = "CHECKPOINT_DECLINED_SUBSUMED"
    """A newer checkpoint began."""
    CANCEL_MARKER = "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER"
    """It was given up upstream."""
    NOTIFIED = "CHECKPOINT_ABORTED_BY_COORDINATOR"
    """The coordinator gave it up, and so knows already."""


@dataclass(frozen=True, slots=True)
class BarrierArrival(Generic[Id]):
    """A barrier as its handler sees it. ``created``: when the checkpoint was triggered."""

    checkpoint: Id
    created: float


@dataclass(frozen=True, slots=True)
class Aborted(Generic[Id]):
    """A checkpoint that the handler gave up: no snapshot of it may be kept."""

    checkpoint: Id
    reason: AbortReason


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Id]):
    """What one event did. The fields are in the order in which things happened."""

    aborted: tuple[Aborted[Id], ...] = ()
    #: the checkpoint whose barriers have all come: its snapshot is to be taken now
    triggered: Id | None = None
