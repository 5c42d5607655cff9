"""What one rank of a machine has fetched and its neighbours there may take: which batches, and for how long. Pure.

Rules:

1. A batch that somebody wants is *here*; or *coming*, because it has been asked for; or *later*; or *gone*: it was
   fetched and is not kept, so who wants it fetches it.
2. Kept is a batch until every neighbour has it, or until its own rank has taken ``KEPT`` more: neighbours train in
   step, so one that lags behind further is not waited for.
3. Where nobody is there to take it nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Generic, TypeVar

KEPT = 4
"""So many batches that its own rank has taken are kept for neighbours."""

T = TypeVar("T")


class Offer(Enum):
    """Why a batch cannot be had (rule 1)."""

    COMING = "it has been asked for"
    LATER = "it has not been asked for"
    GONE = "it is not kept"


class Board(Generic[T]):
    """See the module's rules."""

    def __init__(self) -> None:
        self._kept: dict[int, T] = {}
        self._coming: frozenset[int] = frozenset()
        #: every batch before this one was fetched
        self._end = 0
        #: by neighbour, the batch that it wants next
        self._neighbours: dict[int, int] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether there are neighbours."""
        return bool(self._neighbours)

    def come(self, neighbour: int) -> None:
        """One has come."""
        self._neighbours[neighbour] = 0

    def leave(self, neighbour: int) -> list[T]:
        """One has gone. What nobody needs any more."""
        self._neighbours.pop(neighbour, None)
        return self._dropped()

    def ask(self, wanted: Iterable[int], taken: int) -> list[T]:
        """Its own rank asks for these, and has taken all before ``taken``. What nobody needs any more."""
        self._coming = frozenset(wanted)
        return self._drop(batch for batch in self._kept if batch < taken - KEPT)

    def arrive(self, batches: Iterable[int], kept: dict[int, T]) -> None:
        """These have come; ``kept``: what of them neighbours may take. The rest is asked for again when it is
        needed."""
        came = list(batches)
        if came:
            self._end, self._coming = max(self._end, max(came) + 1), frozenset()
        self._kept |= kept

    def find(self, batch: int) -> T | Offer:
        """What a neighbour gets."""
        if (found := self._kept.get(batch)) is not None:
            return found
        if batch in self._coming:
            return Offer.COMING
        return Offer.GONE if batch < self._end else Offer.LATER

    def give(self, neighbour: int, batch: int) -> list[T]:
        """A neighbour has it. What nobody needs any more."""
        self._neighbours[neighbour] = batch + 1
        return self._dropped()

    def clear(self) -> list[T]:
        """All that was kept."""
        return self._drop(list(self._kept))

    def _dropped(self) -> list[T]:
        needed = min(self._neighbours.values(), default=None)
        return self._drop(batch for batch in self._kept if needed is None or batch < needed)

    def _drop(self, batches: Iterable[int]) -> list[T]:
        return [self._kept.pop(batch) for batch in list(batches)]
