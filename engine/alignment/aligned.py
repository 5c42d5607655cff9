"""Aligned barriers: a channel waits behind its barrier until all others have delivered theirs. Pure.

Rules:

1. Ids only grow. A barrier of a newer checkpoint aborts the pending one and begins its own; one of an older checkpoint,
   or of one that is over, is ignored, and its channel is not blocked.
2. A pending checkpoint waits for all channels that were open when it began. A channel is counted once: by its barrier,
   which blocks it, by an injected barrier, or by the end of its partition (FLIP-147). When all are counted the snapshot
   is taken, so nothing is in flight across the cut, the checkpoint is over here, and every channel is unblocked.
3. The end of a partition while nothing is pending only lowers what later checkpoints wait for.
4. A cancel marker acts on a newer checkpoint, or on the pending one. It is reported for that id only: an older pending
   checkpoint is dropped without a word, the coordinator knows of it already.
5. An abort by the coordinator voids the barriers to come. It is reported only where a barrier has been counted, because
   only then somebody downstream may wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic

from .protocol import Aborted, AbortReason, BarrierArrival, Id, Outcome
from .times import AlignmentTimes

UNCHANGED: Outcome[Any] = Outcome()


@dataclass(eq=False)
class AlignedHandler(Generic[Id]):
    """Counts the barriers of one driver's channels, numbered from 0 over all its inputs. See the module's rules.

    After the end of a channel nothing of it may be handed in. Every method may be called at any time otherwise; a
    barrier that comes twice counts once.
    """

    channels: int
    #: the newest checkpoint heard of, pending or not
    latest: Id | None = None
    #: what began the pending checkpoint, which is ``latest``; None: nothing is pending
    first: BarrierArrival[Id] | None = None
    #: channels counted for the pending checkpoint
    counted: set[int] = field(default_factory=set)
    #: channels that have not ended
    open: set[int] = field(default_factory=set)
    #: channels that must not be read now; all of them are counted
    blocked: set[int] = field(default_factory=set)
    times: AlignmentTimes = field(default_factory=AlignmentTimes)

    def __post_init__(self) -> None:
        self.open = set(range(self.channels))

    @property
    def pending(self) -> bool:
        """Whether a checkpoint waits for barriers."""
        return self.first is not None

    # ------------------------------------------------------------------ events

    def barrier(self, channel: int, barrier: BarrierArrival[Id], now: float, *, injected: bool = False) -> Outcome[Id]:
        """A barrier was read. ``injected``: by a trigger of the coordinator; it does not block its channel."""
        if self._is_over(barrier.checkpoint):
            return UNCHANGED
        aborted = self._begin(barrier)
        if not injected and self._blocks(barrier):
            self.blocked.add(channel)
        return self._count(channel, barrier, now, aborted)

    def cancel(self, channel: int, checkpoint: Id) -> Outcome[Id]:
        """A cancel marker was read."""
        if self._is_newer(checkpoint) or (checkpoint == self.latest and self.pending):
            return self._give_up(checkpoint, AbortReason.CANCEL_MARKER)
        return UNCHANGED

    def abort(self, checkpoint: Id) -> Outcome[Id]:
        """The coordinator gave the checkpoint up, here or anywhere: its barriers are void from now on."""
        if self._is_newer(checkpoint):
            self._give_up(checkpoint, AbortReason.NOTIFIED)
        elif checkpoint == self.latest and self.pending:
            return self._give_up(checkpoint, AbortReason.NOTIFIED)
        return UNCHANGED

    def end(self, channel: int, now: float) -> Outcome[Id]:
        """The channel's partition has ended."""
        self.open.discard(channel)
        if self.first is None:
            return UNCHANGED
        self.blocked.discard(channel)
        return self._count(channel, self.first, now)

    def read(self, size: int) -> None:
        """Bytes of data were read, from any channel."""
        self.times.read(size)

    # ------------------------------------------------------------------ steps

    def _blocks(self, barrier: BarrierArrival[Id]) -> bool:
        """Whether the barrier blocks its channel until all are counted."""
        return True

    def _is_newer(self, checkpoint: Id) -> bool:
        return self.latest is None or checkpoint > self.latest

    def _is_over(self, checkpoint: Id) -> bool:
        return not self._is_newer(checkpoint) and not (self.pending and checkpoint == self.latest)

    def _begin(self, barrier: BarrierArrival[Id]) -> tuple[Aborted[Id], ...]:
        """Begin the barrier's checkpoint, unless it is the pending one. What was given up for it."""
        if not self._is_newer(barrier.checkpoint):
            return ()
        aborted: tuple[Aborted[Id], ...] = ()
        if self.first is not None:
            aborted = self._give_up(self.first.checkpoint, AbortReason.SUBSUMED).aborted
        self.latest, self.first = barrier.checkpoint, barrier
        return aborted

    def _count(
        self, channel: int, barrier: BarrierArrival[Id], now: float, aborted: tuple[Aborted[Id], ...] = ()
    ) -> Outcome[Id]:
        if not self.counted:
            self.times.begin(barrier.created, now)
        self.counted.add(channel)
        if not self.open <= self.counted:
            return Outcome(aborted)
        self.times.end(now)
        self._release()
        return Outcome(aborted, self.latest)

    def _give_up(self, checkpoint: Id, reason: AbortReason) -> Outcome[Id]:
        self.latest = checkpoint
        self.times.reset()
        self._release()
        return Outcome((Aborted(checkpoint, reason),))

    def _release(self) -> None:
        self.first = None
        self.counted.clear()
        self.blocked.clear()

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        self.times.validate()
        assert self.blocked <= self.counted, "a blocked channel is counted"
        assert self.blocked <= self.open, "an ended channel is not blocked"
        if self.first is None:
            assert not self.counted, "nothing is counted unless a checkpoint is pending"
            assert self.times.began is None, "no alignment is under way unless a checkpoint is pending"
        else:
            assert self.first.checkpoint == self.latest, "only the latest checkpoint is pending"
            assert self.counted, "the first channel that is counted begins it"
            assert not self.open <= self.counted, "a pending checkpoint waits for somebody"
            assert self.times.began is not None, "alignment runs from the first counted channel"
