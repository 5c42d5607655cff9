"""Barriers at least once: nothing waits, several checkpoints may be under way at a time. Pure.

Rules (Flink's barrier tracker):

1. No channel is ever blocked: data behind a barrier may be processed before the snapshot, and once more after a
   restore.
2. Barriers are counted per id. When all channels are counted the snapshot is taken, and older pending ids are dropped
   silently; newer ones stay, and a newer barrier does not drop an older id. With one open channel a new id is complete
   at once, and leaves older ones alone.
3. At most 50 ids are pending; the oldest makes room, silently. An unknown id that is not above all seen is ignored.
4. A cancel marker aborts every older pending id, then its own, each reported once. The entry stays until its other
   barriers have come, so that they start nothing; an unknown newer id is remembered as aborted.
5. The end of a partition counts for the pending ids, newest first, up to the first one that is complete with it
   (FLIP-147). With ``ends_count`` off it aborts all of them.
6. An abort by the coordinator is about its id alone; of an id not yet seen, the first barrier reports it.
7. Only the newest id is timed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic

from .protocol import Aborted, AbortReason, BarrierArrival, Id, Outcome, SnapshotMode, Triggered
from .single import UNCHANGED
from .times import AlignmentTimes

MAXIMUM_PENDING = 50


@dataclass(slots=True)
class _Count:
    """Which channels have delivered the barrier of one id, and whether the id was given up."""

    counted: set[int]
    aborted: bool = False


@dataclass(eq=False)
class BarrierTracker(Generic[Id]):
    """See the module's rules, and ``BarrierHandler`` for the methods."""

    channels: int
    #: whether the end of a channel counts as its barrier; if not, it aborts the pending checkpoints
    ends_count: bool = True
    #: ids that wait for barriers, growing; those given up are kept until their barriers have come
    counts: dict[Id, _Count] = field(default_factory=dict)
    #: the largest id seen on a channel
    highest: Id | None = None
    #: the largest id triggered
    done: Id | None = None
    #: the id whose alignment is under way; None: none is
    timed: Id | None = None
    #: ids that the coordinator gave up before their first barrier; all of them above ``highest``
    void: set[Id] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    times: AlignmentTimes = field(default_factory=AlignmentTimes)

    def __post_init__(self) -> None:
        self.open = set(range(self.channels))

    @property
    def latest(self) -> Id | None:
        return next(reversed(self.counts), None)

    @property
    def pending(self) -> bool:
        return bool(self.counts)

    @property
    def pending_checkpoints(self) -> tuple[Id, ...]:
        """The pending ids, growing, with those that are only remembered as aborted."""
        return tuple(self.counts)

    @property
    def blocked(self) -> frozenset[int]:
        return frozenset()

    @property
    def next_deadline(self) -> float | None:
        return None

    # ------------------------------------------------------------------ events

    def barrier(self, channel: int, barrier: BarrierArrival[Id], now: float, *, injected: bool = False) -> Outcome[Id]:
        checkpoint = barrier.checkpoint
        aborted: tuple[Aborted[Id], ...] = ()
        if checkpoint not in self.counts:
            if not self._is_newer(checkpoint):
                return UNCHANGED
            is_void = checkpoint in self.void
            self._see(checkpoint)
            if is_void:
                aborted = (Aborted(checkpoint, AbortReason.NOTIFIED),)
            else:
                self._time(barrier, now)
            if len(self.open) == 1:
                return _triggering(None if is_void else self._trigger(checkpoint, now), aborted)
            self._remember(checkpoint, _Count(set(), is_void))
        return _triggering(self._count(checkpoint, channel, now), aborted)

    def announcement(self, channel: int, barrier: BarrierArrival[Id], now: float) -> Outcome[Id]:
        return UNCHANGED

    def cancel(self, channel: int, checkpoint: Id) -> Outcome[Id]:
        if self._is_newer(checkpoint) and len(self.open) == 1:
            self._see(checkpoint)
            return Outcome((Aborted(checkpoint, AbortReason.CANCEL_MARKER),))
        given_up = [older for older in self.counts if older < checkpoint]
        aborted = [one for older in given_up for one in self._give_up(older, AbortReason.CANCEL_MARKER)]
        for older in given_up:
            del self.counts[older]
        if self._is_newer(checkpoint):
            self._see(checkpoint)
            self._remember(checkpoint, _Count(set()))
        if checkpoint in self.counts:
            aborted += self._give_up(checkpoint, AbortReason.CANCEL_MARKER)
            self._add(checkpoint, channel)
        return Outcome(tuple(aborted))

    def abort(self, checkpoint: Id) -> Outcome[Id]:
        if checkpoint in self.counts:
            return Outcome(self._give_up(checkpoint, AbortReason.NOTIFIED))
        if self._is_newer(checkpoint):
            self.void.add(checkpoint)
        return UNCHANGED

    def end(self, channel: int, now: float) -> Outcome[Id]:
        self.open.discard(channel)
        if not self.ends_count:
            return self._give_all_up()
        for checkpoint in reversed(self.counts):
            self.counts[checkpoint].counted.add(channel)
            if self.open <= self.counts[checkpoint].counted:
                return _triggering(self._count(checkpoint, channel, now))
        return UNCHANGED

    def fire(self, now: float) -> Outcome[Id]:
        return UNCHANGED

    def read(self, size: int) -> None:
        self.times.read(size)

    def persists(self, channel: int) -> Id | None:
        return None

    def close(self) -> None:
        """Nothing is armed."""

    # ------------------------------------------------------------------ steps

    def _is_newer(self, checkpoint: Id) -> bool:
        return self.highest is None or checkpoint > self.highest

    def _see(self, checkpoint: Id) -> None:
        """An id above all others has come on a channel: the alignment of an older one is no longer timed."""
        self.highest, self.timed = checkpoint, None
        self.times.reset()
        self.void = {later for later in self.void if later > checkpoint}

    def _remember(self, checkpoint: Id, count: _Count) -> None:
        self.counts[checkpoint] = count
        if len(self.counts) > MAXIMUM_PENDING:
            del self.counts[next(iter(self.counts))]

    def _time(self, barrier: BarrierArrival[Id], now: float) -> None:
        self.timed = barrier.checkpoint
        self.times.begin(barrier.created, now)

    def _count(self, checkpoint: Id, channel: int, now: float) -> Triggered[Id] | None:
        """Count the channel; when all are, drop the id with all older ones, and trigger it unless it was given up."""
        count = self.counts[checkpoint]
        if not self._add(checkpoint, channel):
            return None
        for older in [other for other in self.counts if other < checkpoint]:
            del self.counts[older]
        return None if count.aborted else self._trigger(checkpoint, now)

    def _add(self, checkpoint: Id, channel: int) -> bool:
        """Count the channel and forget the id when all are counted. Whether they are."""
        self.counts[checkpoint].counted.add(channel)
        is_complete = self.open <= self.counts[checkpoint].counted
        if is_complete:
            del self.counts[checkpoint]
        return is_complete

    def _trigger(self, checkpoint: Id, now: float) -> Triggered[Id] | None:
        if checkpoint == self.timed:
            self.times.end(now)
            self.timed = None
        if self.done is not None and checkpoint < self.done:
            return None  # its last channel ended after a newer id was complete on it alone
        self.done = checkpoint
        return Triggered(checkpoint, SnapshotMode.ALIGNED)

    def _give_up(self, checkpoint: Id, reason: AbortReason) -> tuple[Aborted[Id], ...]:
        """Mark the id as aborted; empty if it was."""
        if checkpoint == self.timed:
            self.times.reset()
            self.timed = None
        if self.counts[checkpoint].aborted:
            return ()
        self.counts[checkpoint].aborted = True
        return (Aborted(checkpoint, reason),)

    def _give_all_up(self) -> Outcome[Id]:
        aborted = [one for pending in self.counts for one in self._give_up(pending, AbortReason.INPUT_ENDED)]
        self.counts.clear()
        return Outcome(tuple(aborted))

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        self.times.validate()
        assert len(self.counts) <= MAXIMUM_PENDING, "the oldest makes room"
        assert list(self.counts) == sorted(self.counts), "pending ids grow"
        assert all(not self.open <= count.counted for count in self.counts.values()), "a pending id waits for somebody"
        assert all(self.highest is not None and one <= self.highest for one in self.counts), "pending ids were seen"
        assert all(self.highest is None or one > self.highest for one in self.void), "a void id was not seen yet"
        assert (self.timed is None) == (self.times.began is None), "an alignment is of an id"
        assert self.timed is None or self.timed in self.counts, "the timed id is pending"


def _triggering(triggered: Triggered[Id] | None, aborted: tuple[Aborted[Id], ...] = ()) -> Outcome[Id]:
    """A snapshot is taken when all barriers have come, so what is triggered is complete."""
    return Outcome(aborted, triggered=triggered, completed=triggered.checkpoint if triggered else None)
