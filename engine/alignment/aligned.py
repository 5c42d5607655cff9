"""Aligned barriers: a channel waits behind its barrier until all others have delivered theirs. Pure.

The snapshot is taken when all open channels are counted, so nothing is in flight across the cut. The common rules
stand in ``single``.
"""

from __future__ import annotations

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
