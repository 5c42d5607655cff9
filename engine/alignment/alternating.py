"""Aligned barriers with a timeout (FLIP-76 and its follow-up): aligned while it goes fast, unaligned when not. Pure.

Rules, on top of those in ``single``:

1. Every checkpoint begins aligned and turns unaligned, once, when its timer is due before all channels are counted;
   when a barrier or an end of partition that is not the last one finds the barrier older than its timeout; or when an
   unaligned barrier comes from an upstream that has turned itself. Each task decides for itself.
2. The last barrier wins over the timeout: with it the checkpoint is complete, so it stays aligned. Not so when it is
   unaligned itself: it has overtaken data that belong to the cut.
3. The timer runs from the first barrier or announcement: timeout less the age that the barrier has already.
4. Turning: barriers that are announced and still queued are moved to the front, later ones when they are announced.
   The snapshot is taken at once if a channel is counted, and else at the first one that is.
5. Channels that an aligned barrier has blocked stay blocked until the alignment ends, also after turning: what they
   hold lies behind the cut.
6. When the checkpoint is over, or given up, the next one begins aligned again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .protocol import BarrierArrival, Id, Outcome, SnapshotMode
from .single import UNCHANGED, SingleCheckpointHandler


@dataclass(eq=False)
class AlternatingHandler(SingleCheckpointHandler[Id]):
    """See the module's rules."""

    #: whether the pending checkpoint has turned unaligned
    turned: bool = False
    #: channels whose barrier of the pending checkpoint is announced and not counted; empty once it has turned
    announced: set[int] = field(default_factory=set)
    #: when the pending checkpoint turns; None: it has turned, has no timeout, or nothing is pending
    deadline: float | None = None

    @property
    def next_deadline(self) -> float | None:
        return self.deadline

    def fire(self, now: float) -> Outcome[Id]:
        if self.deadline is None or now < self.deadline:
            return UNCHANGED
        prioritised = self._turn()
        triggered = self._trigger(SnapshotMode.UNALIGNED) if self.counted else None
        return Outcome(prioritised=prioritised, triggered=triggered)

    def end(self, channel: int, now: float) -> Outcome[Id]:
        self.announced.discard(channel)
        return super().end(channel, now)

    def close(self) -> None:
        self.deadline = None

    def _began(self, barrier: BarrierArrival[Id], now: float) -> None:
        if barrier.timeout is not None and not barrier.unaligned:
            self.deadline = now + max(barrier.timeout - (now - barrier.created), 0)

    def _announced(self, channel: int) -> tuple[int, ...]:
        if self.turned:
            return (channel,)
        self.announced.add(channel)
        return ()

    def _blocks(self, barrier: BarrierArrival[Id]) -> bool:
        return not barrier.unaligned

    def _decide(self, barrier: BarrierArrival[Id], now: float) -> Outcome[Id]:
        self.announced -= self.counted
        prioritised: tuple[int, ...] = ()
        is_last = self._all_counted()
        if not self.turned and (barrier.unaligned or (barrier.is_timed_out(now) and not is_last)):
            prioritised = self._turn()
        if self.turned and self.taken is None:
            return Outcome(prioritised=prioritised, triggered=self._trigger(SnapshotMode.UNALIGNED))
        if is_last and not self.turned:
            return Outcome(triggered=self._trigger(SnapshotMode.ALIGNED))
        return UNCHANGED  # a barrier that was not the last one, or one that comes after turning

    def _turn(self) -> tuple[int, ...]:
        prioritised = tuple(sorted(self.announced))
        self.turned, self.deadline = True, None
        self.announced.clear()
        return prioritised

    def _forget(self) -> None:
        self.turned, self.deadline = False, None
        self.announced.clear()

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        super().validate()
        assert self.announced <= self.open - self.counted, "an announced barrier is still to come"
        assert self.pending or self.deadline is None, "a timer is of a pending checkpoint"
        assert self.pending or not (self.turned or self.announced), "only a pending checkpoint turns or is announced"
        assert not self.turned or (self.deadline is None and not self.announced), "a checkpoint turns once"
        assert (self.taken is not None) == (self.turned and bool(self.counted)), "unaligned snapshots do not wait"
