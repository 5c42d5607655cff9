"""The common part of the exactly-once handlers: one checkpoint at a time. Pure.

Rules:

1. Ids only grow. A barrier (or announcement) of a newer checkpoint aborts the pending one and begins its own; one of
   an older checkpoint, or of one that is over, is ignored, and its channel is not blocked.
2. A pending checkpoint waits for all channels that were open when it began. A channel is counted once: by its barrier,
   by an injected barrier, or by the end of its partition (FLIP-147). When all are counted the checkpoint is over here,
   and every channel is unblocked.
3. The end of a partition while nothing is pending only lowers what later checkpoints wait for. With ``ends_count`` off
   (Flink before FLIP-147) it aborts the pending checkpoint.
4. A cancel marker acts on a newer checkpoint, or on the pending one once a channel is counted. It is reported for that
   id only: an older pending checkpoint is dropped without a word, the coordinator knows of it already.
5. An abort by the coordinator voids the barriers to come. It is reported only where a barrier has been counted or
   announced, because only then somebody downstream may wait.

What differs from mode to mode: which barriers block their channel, and when the snapshot is taken (``_decide``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Generic

from .protocol import Aborted, AbortReason, BarrierArrival, Id, Outcome, SnapshotMode, Triggered
from .times import AlignmentTimes

UNCHANGED: Outcome[Any] = Outcome()


@dataclass(eq=False)
class SingleCheckpointHandler(ABC, Generic[Id]):
    """See the module's rules, and ``BarrierHandler`` for the methods."""

    channels: int
    #: whether the end of a channel counts as its barrier; if not, it aborts the pending checkpoint
    ends_count: bool = True
    #: the newest checkpoint heard of, pending or not
    latest: Id | None = None
    #: what began the pending checkpoint, which is ``latest``; None: nothing is pending
    first: BarrierArrival[Id] | None = None
    #: how the snapshot of the pending checkpoint was taken; None: not yet, or nothing is pending
    taken: SnapshotMode | None = None
    #: channels counted for the pending checkpoint
    counted: set[int] = field(default_factory=set)
    #: channels that have not ended
    open: set[int] = field(default_factory=set)
    #: channels that must wait for the others; all of them are counted
    blocked: set[int] = field(default_factory=set)
    times: AlignmentTimes = field(default_factory=AlignmentTimes)

    def __post_init__(self) -> None:
        self.open = set(range(self.channels))

    @property
    def pending(self) -> bool:
        return self.first is not None

    @property
    def next_deadline(self) -> float | None:
        return None

    # ------------------------------------------------------------------ events

    def barrier(self, channel: int, barrier: BarrierArrival[Id], now: float, *, injected: bool = False) -> Outcome[Id]:
        if self._is_over(barrier.checkpoint):
            return UNCHANGED
        aborted = self._begin(barrier, now)
        if not injected and self._blocks(barrier):
            self.blocked.add(channel)
        outcome = self._count(channel, barrier, now)
        return replace(outcome, aborted=aborted) if aborted else outcome

    def announcement(self, channel: int, barrier: BarrierArrival[Id], now: float) -> Outcome[Id]:
        if self._is_over(barrier.checkpoint):
            return UNCHANGED
        aborted = self._begin(barrier, now)
        return Outcome(aborted, prioritised=() if channel in self.counted else self._announced(channel))

    def cancel(self, channel: int, checkpoint: Id) -> Outcome[Id]:
        if self._is_newer(checkpoint) or (checkpoint == self.latest and self.counted):
            return self._give_up(checkpoint, AbortReason.CANCEL_MARKER)
        return UNCHANGED

    def abort(self, checkpoint: Id) -> Outcome[Id]:
        if self._is_newer(checkpoint):
            self._give_up(checkpoint, AbortReason.NOTIFIED)
        elif checkpoint == self.latest and self.pending:
            return self._give_up(checkpoint, AbortReason.NOTIFIED)
        return UNCHANGED

    def end(self, channel: int, now: float) -> Outcome[Id]:
        self.open.discard(channel)
        if self.first is None:
            return UNCHANGED
        if not self.ends_count:
            return self._give_up(self.first.checkpoint, AbortReason.INPUT_ENDED)
        self.blocked.discard(channel)
        return self._count(channel, self.first, now)

    def fire(self, now: float) -> Outcome[Id]:
        return UNCHANGED

    def read(self, size: int) -> None:
        self.times.read(size)

    def persists(self, channel: int) -> Id | None:
        keeps = self.taken is SnapshotMode.UNALIGNED and channel not in self.counted
        return self.latest if keeps else None

    def close(self) -> None:
        """Nothing is armed unless a mode has a timer."""

    # ------------------------------------------------------------------ what the modes decide

    @abstractmethod
    def _blocks(self, barrier: BarrierArrival[Id]) -> bool:
        """Whether the barrier blocks its channel until all are counted."""

    @abstractmethod
    def _decide(self, barrier: BarrierArrival[Id], now: float) -> Outcome[Id]:
        """A channel was counted: the snapshot to take now, if any, and barriers to be moved ahead."""

    def _announced(self, channel: int) -> tuple[int, ...]:
        """A barrier of the pending checkpoint waits in the channel: the channels to be prioritised."""
        return ()

    def _began(self, barrier: BarrierArrival[Id], now: float) -> None:
        """A checkpoint is pending that was not before."""

    def _forget(self) -> None:
        """Nothing is pending any more."""

    # ------------------------------------------------------------------ common steps

    def _is_newer(self, checkpoint: Id) -> bool:
        return self.latest is None or checkpoint > self.latest

    def _is_over(self, checkpoint: Id) -> bool:
        return not self._is_newer(checkpoint) and not (self.pending and checkpoint == self.latest)

    def _begin(self, barrier: BarrierArrival[Id], now: float) -> tuple[Aborted[Id], ...]:
        """Begin the barrier's checkpoint, unless it is the pending one. What was given up for it."""
        if not self._is_newer(barrier.checkpoint):
            return ()
        aborted: tuple[Aborted[Id], ...] = ()
        if self.first is not None:
            aborted = self._give_up(self.first.checkpoint, AbortReason.SUBSUMED).aborted
        self.latest, self.first = barrier.checkpoint, barrier
        self._began(barrier, now)
        return aborted

    def _count(self, channel: int, barrier: BarrierArrival[Id], now: float) -> Outcome[Id]:
        if channel not in self.counted:
            self.counted.add(channel)
            if len(self.counted) == 1:
                self.times.begin(barrier.created, now)
        if self._all_counted():
            self.times.end(now)
        outcome = self._decide(barrier, now)
        if self._all_counted():
            outcome = Outcome(outcome.aborted, outcome.prioritised, outcome.triggered, self.latest)
            self._release()
        return outcome

    def _all_counted(self) -> bool:
        return self.open <= self.counted

    def _trigger(self, mode: SnapshotMode) -> Triggered[Id]:
        assert self.latest is not None
        self.taken = mode
        return Triggered(self.latest, mode)

    def _give_up(self, checkpoint: Id, reason: AbortReason) -> Outcome[Id]:
        self.latest = checkpoint
        self.times.reset()
        self._release()
        return Outcome((Aborted(checkpoint, reason),))

    def _release(self) -> None:
        self.first = self.taken = None
        self.counted.clear()
        self.blocked.clear()
        self._forget()

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        self.times.validate()
        assert self.blocked <= self.counted, "a blocked channel is counted"
        assert self.blocked <= self.open, "an ended channel is not blocked"
        if self.first is None:
            assert not self.counted, "nothing is counted unless a checkpoint is pending"
            assert self.taken is None, "no snapshot is open unless a checkpoint is pending"
            assert self.times.began is None, "no alignment is under way unless a checkpoint is pending"
        else:
            assert self.first.checkpoint == self.latest, "only the latest checkpoint is pending"
            assert not self.open <= self.counted, "a pending checkpoint waits for somebody"
            assert (self.times.began is None) == (not self.counted), "alignment runs from the first counted channel"
            assert self.taken is None or self.counted, "a snapshot is taken at a counted channel"
