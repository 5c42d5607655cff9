"""Aligned barriers: a channel waits behind its barrier until all others have delivered theirs. Pure.

The snapshot is taken when all open channels are counted, so nothing is in flight across the cut. The common rules
stand in ``single``; ``BarrierAligner`` is the handler as a driver uses it that knows this mode only.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..identity import CheckpointId
from .protocol import BarrierArrival, Id, Outcome, SnapshotMode
from .single import UNCHANGED, SingleCheckpointHandler


class AlignedHandler(SingleCheckpointHandler[Id]):
    """Blocks on every barrier that was not injected; the snapshot is taken at the last one."""

    def _blocks(self, barrier: BarrierArrival[Id]) -> bool:
        assert not barrier.unaligned, "an unaligned barrier has overtaken data that an aligned snapshot would lose"
        return True

    def _decide(self, barrier: BarrierArrival[Id], now: float) -> Outcome[Id]:
        return Outcome(triggered=self._trigger(SnapshotMode.ALIGNED)) if self._all_counted() else UNCHANGED

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        super().validate()
        assert self.taken is None, "a snapshot is taken when the checkpoint is over"


@dataclass(frozen=True, slots=True)
class Alignment:
    """What one input did: checkpoints given up, then the checkpoint that is aligned now, if any."""

    aborted: tuple[CheckpointId, ...] = ()
    aligned: CheckpointId | None = None


NOTHING = Alignment()


class BarrierAligner:
    """Aligns the barriers of ``channels`` channels, numbered from 0: an ``AlignedHandler`` without times and reasons,
    which a driver does not need as long as it knows this mode only."""

    def __init__(self, channels: int) -> None:
        self._handler = AlignedHandler[CheckpointId](channels)

    @property
    def channels(self) -> int:
        return self._handler.channels

    @property
    def latest(self) -> CheckpointId | None:
        """The newest checkpoint heard of, pending or not."""
        return self._handler.latest

    @property
    def pending(self) -> bool:
        """Whether ``latest`` waits for barriers."""
        return self._handler.pending

    @property
    def open(self) -> set[int]:
        """Channels that have not ended."""
        return self._handler.open

    @property
    def blocked(self) -> set[int]:
        """Channels that must not be read until the pending checkpoint is aligned or given up."""
        return self._handler.blocked

    def barrier(self, channel: int, checkpoint: CheckpointId, *, block: bool = True) -> Alignment:
        """A barrier came. ``block`` False: it was injected by a trigger, the channel need not wait."""
        return _plain(self._handler.barrier(channel, BarrierArrival(checkpoint, 0), 0, injected=not block))

    def cancel(self, checkpoint: CheckpointId) -> Alignment:
        """A cancel marker came. It acts on a newer checkpoint, or on the pending one once a channel is counted."""
        return _plain(self._handler.cancel(0, checkpoint))

    def abort(self, checkpoint: CheckpointId) -> Alignment:
        """The coordinator gave the checkpoint up, here or anywhere: its barriers are ignored from now on."""
        return _plain(self._handler.abort(checkpoint))

    def end(self, channel: int) -> Alignment:
        """The channel's partition has ended."""
        return _plain(self._handler.end(channel, 0))

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        self._handler.validate()


def _plain(outcome: Outcome[CheckpointId]) -> Alignment:
    aligned = outcome.triggered.checkpoint if outcome.triggered else None
    return Alignment(tuple(given_up.checkpoint for given_up in outcome.aborted), aligned)
