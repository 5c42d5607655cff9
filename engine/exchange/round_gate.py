"""The gate of a partitioned exchange: rounds in step, and within a round the producer that has something to say.

Rules:

1. A batch is delivered as soon as it has come, if its channel has not ended the round that is open: no channel waits
   for another one within a round (``outlets`` says why that matters). Whoever reads puts them in order (``Regroup``).
2. ``EndOfRound(r)`` is delivered once, when every live channel has ended round ``r``. A channel that has is not read.
3. A channel that has ended its data early may already send rows of ``FINAL_ROUND``: their order is the reader's, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..core.elements import Batch, EndOfRound
from .gate import REFUSED, Delivered, Feed, Gate, Refused, Starved


class RoundGate(Gate):
    """See the module's rules."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        super().__init__(feeds)
        #: the feed to look at first, so that a busy one does not keep the others waiting
        self._next = 0

    def poll(
        self, blocked: Collection[int], accepts: bool = True, controls: bool = True
    ) -> Delivered | Starved | Refused:
        """The next element, skipping feeds in ``blocked``; a batch only if ``accepts``, another one if ``controls``."""
        ended: dict[int, int] = {}
        silent: list[int] = []
        refused = False
        for turn in range(len(self.feeds)):
            position = (self._next + turn) % len(self.feeds)
            if position in blocked:
                continue
            head = self._head(position)
            if isinstance(head, EndOfRound):
                ended[position] = head.round
            elif head is None:
                if not self.feeds[position].data_ended:
                    silent.append(position)
            elif accepts if isinstance(head, Batch) else controls:
                self._next = position + 1
                return Delivered(position, self.feeds[position].pop())
            else:
                refused = True
        if refused:
            return REFUSED
        if silent or not ended:
            return Starved(tuple(sorted(silent)) or self._open_feeds(blocked))
        return self._end_round(ended, min(ended.values())) if controls else REFUSED

    def _end_round(self, ended: dict[int, int], round: int) -> Delivered:
        for position, at in ended.items():
            if at == round:
                self.feeds[position].pop()
        return Delivered(0, EndOfRound(round))
