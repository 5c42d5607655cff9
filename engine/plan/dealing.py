"""How the splits of a source are dealt to the flow's order lanes.

Rules:

1. Splits go to the lanes in turns, one to each: lane ``l`` of ``L`` gets the splits ``l, l + L, l + 2L, …``.
2. A source that has fewer splits than lanes when it is first read has them dealt at even distances, in the same order:
   subtasks own neighbouring lanes, so the first few would all be one subtask's. Those that come later go by turns.
3. How it was dealt is part of a lane's cursor: a restored source goes on as it began, also with more splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


def few(splits: int, lanes: int) -> int:
    """How many splits are dealt at even distances (rule 2); 0: none, as each lane has one."""
    return splits if splits < lanes else 0


@dataclass(frozen=True, slots=True)
class Deal:
    """Positions in a source's list of splits, and the lanes that read them. ``first``: see :func:`few`."""

    lanes: int
    first: int = 0

    def lane_of(self, position: int) -> int:
        """The lane that reads a split."""
        if position < self.first:
            return position * self.lanes // self.first
        return (position - self.first) % self.lanes

    def position(self, lane: int, ordinal: int) -> int:
        """Of the ``ordinal``-th split of a lane."""
        own = self._own(lane)
        if own is not None:
            if not ordinal:
                return own
            ordinal -= 1
        return self.first + ordinal * self.lanes + lane

    def count(self, lane: int, splits: int) -> int:
        """How many of the source's splits a lane has."""
        own = self._own(lane)
        begun = int(own is not None and own < splits)
        return begun + max(0, -((lane - splits + self.first) // self.lanes))

    def positions(self, lane: int, ordinals: int) -> Iterator[int]:
        """Of the first so many splits of a lane."""
        return (self.position(lane, ordinal) for ordinal in range(ordinals))

    def _own(self, lane: int) -> int | None:
        """The split that the lane got at even distances."""
        position = -(-lane * self.first // self.lanes)
        return position if position < self.first and position * self.lanes // self.first == lane else None
