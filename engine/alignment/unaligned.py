"""Unaligned barriers (FLIP-76): the snapshot is taken at the first barrier, and no channel waits. Pure.

The barrier overtakes queued data, here and downstream. What it overtakes, and what still comes on the other channels
ahead of their barriers, is processed *and* kept as channel state, until all channels are counted. An aborted
checkpoint drops what was kept. The common rules stand in ``single``.
"""

from __future__ import annotations

from .protocol import BarrierArrival, Id, Outcome, SnapshotMode
from .single import UNCHANGED, SingleCheckpointHandler


class UnalignedHandler(SingleCheckpointHandler[Id]):
    """Blocks nothing; every barrier is moved ahead of the data before it."""

    def _blocks(self, barrier: BarrierArrival[Id]) -> bool:
        return False

    def _announced(self, channel: int) -> tuple[int, ...]:
        return (channel,)

    def _decide(self, barrier: BarrierArrival[Id], now: float) -> Outcome[Id]:
        return UNCHANGED if self.taken else Outcome(triggered=self._trigger(SnapshotMode.UNALIGNED))

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        super().validate()
        assert not self.blocked, "no channel waits"
        assert self.taken or not self.counted, "the first channel counted takes the snapshot"
