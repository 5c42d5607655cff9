"""What a barrier handler is told and what it answers: the words that all modes share.

Rules:

1. A handler is pure. Time is an argument (any clock and unit, the same for ``created``, ``timeout`` and ``now``), a
   timer is an answer (``next_deadline``), and an id is any ordered value.
2. A handler decides; whoever owns it acts: reads no channel in ``blocked``, takes the snapshot that is ``triggered``,
   reports what is ``aborted`` and sends its cancel marker downstream, moves the barriers of the channels in
   ``prioritised`` ahead of the data queued before them, and keeps as channel state what an unaligned cut overtakes.
3. What an unaligned snapshot keeps of a channel are the batches between the snapshot and the channel's barrier: those
   queued when it is triggered, and those that arrive later while ``persists(channel)``. The owner knows where in the
   queue the barrier stands, the handler does not: behind it nothing is kept.

Source: Flink's checkpoint barrier handlers, with FLIP-76 (unaligned checkpoints) and FLIP-147 (checkpoints after
tasks have finished).
"""

from __future__ import annotations

from collections.abc import Set
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


class SnapshotMode(Enum):
    """How a snapshot cuts the channels."""

    ALIGNED = "aligned"
    """Behind the barriers: nothing is in flight across the cut."""
    UNALIGNED = "unaligned"
    """Before the data that the barriers have yet to pass: those belong to the checkpoint as channel state."""


class AbortReason(Enum):
    """Why a handler gave a checkpoint up. The first three values are Flink's names, as users know them."""

    SUBSUMED = "CHECKPOINT_DECLINED_SUBSUMED"
    """A newer checkpoint began."""
    CANCEL_MARKER = "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER"
    """It was given up upstream."""
    INPUT_ENDED = "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM"
    """An input ended, and the ends of inputs do not count as barriers here."""
    NOTIFIED = "CHECKPOINT_ABORTED_BY_COORDINATOR"
    """The coordinator gave it up, and so knows already."""


@dataclass(frozen=True, slots=True)
class BarrierArrival(Generic[Id]):
    """A barrier as its handler sees it. ``created``: when the checkpoint was triggered."""

    checkpoint: Id
    created: float
    #: upstream has taken its snapshot unaligned: the barrier overtook data
    unaligned: bool = False
    #: age at which an aligned checkpoint turns unaligned; None: never
    timeout: float | None = None

    def is_timed_out(self, now: float) -> bool:
        """Whether it is older than its timeout. At exactly the timeout the timer is due, but no barrier finds it."""
        return self.timeout is not None and now - self.created > self.timeout


@dataclass(frozen=True, slots=True)
class Aborted(Generic[Id]):
    """A checkpoint that the handler gave up: no snapshot of it may be kept, nor any channel state."""

    checkpoint: Id
    reason: AbortReason


@dataclass(frozen=True, slots=True)
class Triggered(Generic[Id]):
    """A checkpoint whose snapshot is to be taken now."""

    checkpoint: Id
    mode: SnapshotMode


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Id]):
    """What one event did. The fields are in the order in which things happened."""

    aborted: tuple[Aborted[Id], ...] = ()
    #: channels whose queued barrier must be moved to the front
    prioritised: tuple[int, ...] = ()
    triggered: Triggered[Id] | None = None
    #: the checkpoint whose barriers have all come: its channel state is complete
    completed: Id | None = None


class BarrierHandler(Protocol[Id]):
    """Counts the barriers of one task's channels, numbered from 0 over all its inputs.

    After the end of a channel nothing of it may be handed in. Every method may be called at any time otherwise; a
    barrier that comes twice counts once.
    """

    @property
    def latest(self) -> Id | None:
        """The newest checkpoint heard of (at least once: the newest pending one); None at the start."""

    @property
    def pending(self) -> bool:
        """Whether a checkpoint waits for barriers."""

    @property
    def open(self) -> Set[int]:
        """The channels that have not ended."""

    @property
    def blocked(self) -> Set[int]:
        """The channels that must not be read now."""

    @property
    def next_deadline(self) -> float | None:
        """When to call ``fire``; None: nothing to wait for."""

    def barrier(self, channel: int, barrier: BarrierArrival[Id], now: float, *, injected: bool = False) -> Outcome[Id]:
        """A barrier was read. ``injected``: by a trigger of the coordinator; it does not block its channel."""

    def announcement(self, channel: int, barrier: BarrierArrival[Id], now: float) -> Outcome[Id]:
        """A barrier has arrived on the channel and waits behind data."""

    def cancel(self, channel: int, checkpoint: Id) -> Outcome[Id]:
        """A cancel marker was read."""

    def abort(self, checkpoint: Id) -> Outcome[Id]:
        """The coordinator gave the checkpoint up, here or anywhere: its barriers are void from now on."""

    def end(self, channel: int, now: float) -> Outcome[Id]:
        """The channel's partition has ended."""

    def fire(self, now: float) -> Outcome[Id]:
        """Time has passed. Does nothing before ``next_deadline``."""

    def read(self, size: int) -> None:
        """Bytes of data were read, from any channel."""

    def persists(self, channel: int) -> Id | None:
        """The checkpoint whose channel state takes what arrives on the channel now, ahead of its barrier."""

    def close(self) -> None:
        """The task is over: no timer is due any more."""

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
