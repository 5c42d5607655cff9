"""A task cuts as a whole, wherever it stands (Chandy and Lamport's snapshot, on tasks). Pure.

The machine knows the channels of exchanges that lead to the task, and what has come on each. Rules:

1. The first unaligned barrier of a checkpoint, on whichever channel, or the trigger, asks for a cut. What comes behind
   a barrier waits until the task has cut.
2. The cut is taken while no thread is in a driver. From then on what comes on a channel whose barrier has not come is
   in flight across the cut, and is recorded; what stood in its queue is, too.
3. A cut is complete when the barrier, or the end of the partition, has come on every channel.
4. The newest checkpoint wins: it gives an older one up. Barriers of older checkpoints, and of those that were given up,
   mean nothing.
5. Barriers of cuts exist between tasks alone: a driver aligns for none.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum

from ..core.elements import Barrier
from ..core.errors import InternalError
from ..core.identity import CheckpointId


class CutPhase(Enum):
    """How far the newest cut has come."""

    __hash__ = object.__hash__  # members are compared by identity; Enum hashes their names, in Python

    NONE = "none"
    ASKED = "asked for"
    """The task is to stop between two pieces."""
    OPEN = "open"
    """It is taken; barriers are waited for."""


@dataclass(frozen=True, slots=True)
class BarrierMeaning:
    """What follows from a barrier. ``holds``: what comes behind it waits; ``asks``: the task is to stop and cut;
    ``records_no_more``: its channel has said what is in flight; ``completes``: so have all; ``gives_up``: that
    checkpoint."""

    holds: bool = False
    asks: bool = False
    records_no_more: bool = False
    completes: bool = False
    gives_up: CheckpointId | None = None


MEANINGLESS = BarrierMeaning()


class TaskCut:
    """See the module's rules. ``channels``: those from other tasks."""

    def __init__(self, channels: Iterable[Hashable]) -> None:
        self.phase = CutPhase.NONE
        #: of the newest checkpoint that is not over
        self.barrier: Barrier | None = None
        #: the newest one that is known, over or not
        self._newest: CheckpointId | None = None
        #: channels whose partition has not ended; of these, those whose barrier has come
        self._live = set(channels)
        self._came: set[Hashable] = set()

    @property
    def waits_for(self) -> frozenset[Hashable]:
        """The channels whose barrier has not come."""
        return frozenset(self._live - self._came) if self.phase is not CutPhase.NONE else frozenset()

    @property
    def newest(self) -> CheckpointId | None:
        """The newest checkpoint that is known, over or not."""
        return self._newest

    @property
    def live(self) -> frozenset[Hashable]:
        """The channels whose partition has not ended."""
        return frozenset(self._live)

    def is_late(self, checkpoint: CheckpointId) -> bool:
        """Whether a newer one is known."""
        return self._newest is not None and checkpoint < self._newest

    def order(self, barrier: Barrier) -> BarrierMeaning:
        """The trigger."""
        if self._newest is not None and barrier.checkpoint <= self._newest:
            return MEANINGLESS
        gives_up = None if self.barrier is None else self.barrier.checkpoint
        self.phase, self.barrier, self._newest = CutPhase.ASKED, barrier, barrier.checkpoint
        self._came = set()
        return BarrierMeaning(asks=True, gives_up=gives_up)

    def arrive(self, channel: Hashable, barrier: Barrier) -> BarrierMeaning:
        """A barrier has come on a channel."""
        ordered = self.order(barrier)
        if self.barrier is None or barrier.checkpoint != self.barrier.checkpoint:
            return MEANINGLESS
        if channel in self._came:
            raise InternalError(f"{channel}: the barrier of {barrier.checkpoint} has come twice")
        self._came.add(channel)
        if self.phase is CutPhase.ASKED:
            return BarrierMeaning(holds=True, asks=ordered.asks, gives_up=ordered.gives_up)
        return BarrierMeaning(records_no_more=True, completes=self._completes())

    def end(self, channel: Hashable) -> bool:
        """The partition of a channel has ended; whether that completes the cut."""
        self._live.discard(channel)
        return self._completes()

    def take(self) -> bool:
        """The cut is taken; whether it is complete."""
        assert self.phase is CutPhase.ASKED, "nobody has asked"
        self.phase = CutPhase.OPEN
        return self._completes()

    def abort(self, checkpoint: CheckpointId) -> CheckpointId | None:
        """The coordinator gave this checkpoint up, and all older ones; the one that was under way, if it was among
        them."""
        if self._newest is None or checkpoint > self._newest:
            self._newest = checkpoint
        if self.barrier is None or self.barrier.checkpoint > checkpoint:
            return None
        given_up = self.barrier.checkpoint
        self._over()
        return given_up

    def _completes(self) -> bool:
        completes = self.phase is CutPhase.OPEN and self._live <= self._came
        if completes:
            self._over()
        return completes

    def _over(self) -> None:
        self.phase, self.barrier = CutPhase.NONE, None
        self._came = set()

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        assert (self.barrier is None) == (self.phase is CutPhase.NONE), "a cut is that of a checkpoint"
        assert self.barrier is None or self.barrier.checkpoint == self._newest, "only the newest is under way"
        assert self.phase is not CutPhase.OPEN or not self._live <= self._came, "an open cut waits for somebody"
