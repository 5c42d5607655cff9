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
6. The barrier of a cut goes out once, before it is taken: at the latest when no thread is in a driver any more.
   Between the barrier and the cut, or the end of its checkpoint, the way out is shut: nothing is sent to other tasks.
   So what is made and not sent is the task's own state, whenever the cut is taken.
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
    FORWARDED = "forwarded"
    """The barrier has gone out, and no driver has heard of it."""
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
        #: that one has gone out
        self._is_sent = False
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

    @property
    def is_shut(self) -> bool:
        """Whether nothing is sent to other tasks (rule 6)."""
        return self._is_sent and self.phase is not CutPhase.OPEN

    def is_late(self, checkpoint: CheckpointId) -> bool:
        """Whether a newer one is known."""
        return self._newest is not None and checkpoint < self._newest

    def order(self, barrier: Barrier) -> BarrierMeaning:
        """The trigger, or the first barrier, has come to a driver."""
        if self.phase is CutPhase.FORWARDED and self._is_of_this(barrier):
            self.phase = CutPhase.ASKED
            return BarrierMeaning(asks=True)
        if self._newest is not None and barrier.checkpoint <= self._newest:
            return MEANINGLESS
        return BarrierMeaning(asks=True, gives_up=self._begin(CutPhase.ASKED, barrier))

    def forward(self, barrier: Barrier) -> bool:
        """It may go out now: the cut is sure to follow. Whether it has yet to, and means anything."""
        if self._newest is None or barrier.checkpoint > self._newest:
            self._begin(CutPhase.FORWARDED, barrier)
        elif self.phase is not CutPhase.ASKED or self._is_sent or not self._is_of_this(barrier):
            return False
        self._is_sent = True
        return True

    def arrive(self, channel: Hashable, barrier: Barrier) -> BarrierMeaning:
        """A barrier has come on a channel."""
        ordered = self.order(barrier)
        if not self._is_of_this(barrier):
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

    def _begin(self, phase: CutPhase, barrier: Barrier) -> CheckpointId | None:
        """The cut of a newer checkpoint begins. The one that was under way."""
        gives_up = None if self.barrier is None else self.barrier.checkpoint
        self.phase, self.barrier, self._newest = phase, barrier, barrier.checkpoint
        self._came, self._is_sent = set(), False
        return gives_up

    def _is_of_this(self, barrier: Barrier) -> bool:
        return self.barrier is not None and barrier.checkpoint == self.barrier.checkpoint

    def _completes(self) -> bool:
        completes = self.phase is CutPhase.OPEN and self._live <= self._came
        if completes:
            self._over()
        return completes

    def _over(self) -> None:
        self.phase, self.barrier = CutPhase.NONE, None
        self._came, self._is_sent = set(), False

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        assert (self.barrier is None) == (self.phase is CutPhase.NONE), "a cut is that of a checkpoint"
        assert self.barrier is None or self.barrier.checkpoint == self._newest, "only the newest is under way"
        assert self._is_sent or self.phase is not CutPhase.FORWARDED, "what is forwarded has gone out"
        assert not self._is_sent or self.barrier is not None, "a barrier that has gone out is that of a cut"
        assert not self._came or self.phase is not CutPhase.FORWARDED, "who brings a barrier to a driver asks it"
        assert self.phase is not CutPhase.OPEN or not self._live <= self._came, "an open cut waits for somebody"
