"""The gate of a flow whose order is that of arrival: within a round whoever has rows goes first.

Rules:

1. A batch of the open round is delivered as soon as it has come, from each channel in turn: none waits for another one.
2. Rounds stay in step, as in every flow: ``EndOfRound(r)`` is delivered when every live channel has ended round ``r``,
   and rows of ``FINAL_ROUND`` when nobody has others. So operators, barriers and recovery are the same as with a
   deterministic order; what is given up is the order of lanes within a round.
"""

from __future__ import annotations

from collections.abc import Collection

from ..core.elements import FINAL_ROUND, Batch, EndOfRound
from .gate import Delivered, Refused, Starved
from .round_gate import RoundGate


class ArrivalGate(RoundGate):
    """See the module's rules."""

    def poll(
        self, blocked: Collection[int], accepts: bool = True, controls: bool = True
    ) -> Delivered | Starved | Refused:
        """The next element, skipping feeds in ``blocked``; a batch only if ``accepts``, another one if ``controls``."""
        if self._is_final(blocked):
            return super().poll(blocked, accepts, controls)
        return super().poll({*blocked, *self._early(blocked)}, accepts, controls)

    def _early(self, blocked: Collection[int]) -> set[int]:
        """The feeds that are at their final rows already."""
        return {position for position in self._live(blocked) if self._at(position) == FINAL_ROUND}

    def _is_final(self, blocked: Collection[int]) -> bool:
        return len(self._early(blocked)) == len(self._live(blocked))

    def _live(self, blocked: Collection[int]) -> list[int]:
        found = [position for position, feed in enumerate(self.feeds) if not feed.data_ended]
        return [position for position in found if position not in blocked]

    def _at(self, position: int) -> int:
        """The round of the feed's next batch or end of a round; -1 if neither is known."""
        head = self._head(position)
        if isinstance(head, Batch):
            return head.tag.round
        return head.round if isinstance(head, EndOfRound) else -1
