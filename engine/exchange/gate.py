"""The input side of a port: several channels merged into one sequence, ordered by tag.

Rules:

1. Batches are delivered in the order of their tags, whichever channel spoke first; a batch is delivered only when no
   channel can still send an earlier one. That is known from the channels' heads: tags on a channel only grow.
2. ``EndOfRound(r)`` is delivered once, when every live channel has ended round ``r``.
3. The end of ``FINAL_ROUND`` is taken in at once, if that is all that a channel still had to say while others go on: so
   its end, and a barrier behind that, need not wait for theirs. The last channel's is delivered.
4. A channel that alignment blocks is passed over: all it can still say comes after its barrier, and whatever the
   others say before theirs comes first.
5. Barriers, ends of data and ends of partitions are delivered as they reach the head of their channel. In a
   deterministic flow barriers stand at the same round in every channel, so they cannot hold up rule 1.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core.elements import FINAL_ROUND, Batch, Element, EndOfRound


class Feed(Protocol):
    """A channel's consumer end, or a source: what a gate reads from."""

    @property
    def data_ended(self) -> bool: ...

    @property
    def closed(self) -> bool: ...

    def peek(self) -> Element | None: ...

    def pop(self) -> Element: ...

    def say_all_processed(self) -> None: ...

    def say_settled(self) -> None:
        """Nothing that was emitted because of the feed's end is on its way any more."""

    def drop_input(self, for_good: bool) -> None:
        """No more rows are needed before the next task barrier, or ever."""

    def hold_rounds(self, hold: bool) -> None:
        """Whether no further round should begin."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """An element, and the feed it came from (by position in the gate). A merged ``EndOfRound`` comes from feed 0."""

    feed: int
    element: Element


@dataclass(frozen=True, slots=True)
class Starved:
    """Nothing can be delivered before the feeds in ``waits_for`` speak (or are unblocked)."""

    waits_for: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """There is an element, but it is not wanted now."""


@dataclass(frozen=True, slots=True)
class PutAside:
    """An element was put aside: something has happened, though there is nothing to deliver (``spooling``)."""


REFUSED = Refused()
PUT_ASIDE = PutAside()
_AFTER_ALL_LANES = float("inf")


class Gate:
    """Merges ``feeds`` by tag. See the module's rules."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self.feeds = feeds
        #: the feeds whose end of ``FINAL_ROUND`` was taken in ahead of the others
        self._final: set[int] = set()

    @property
    def data_ended(self) -> bool:
        """Whether every feed has ended its data."""
        return all(feed.data_ended for feed in self.feeds)

    def poll(
        self, blocked: Collection[int], accepts: bool = True, controls: bool = True
    ) -> Delivered | Starved | Refused | PutAside:
        """The next element, skipping feeds in ``blocked``; a batch only if ``accepts``, another one if ``controls``."""
        if len(self.feeds) == 1 and not blocked:
            return self._poll_only(accepts, controls)
        heads: list[tuple[tuple[int, float, int], int]] = []
        silent: list[int] = []
        for position, feed in enumerate(self.feeds):
            if position in blocked:
                continue
            head = self._head(position)
            if isinstance(head, Batch):
                heads.append(((head.tag.round, head.tag.lane, head.tag.sequence), position))
            elif isinstance(head, EndOfRound):
                heads.append(((head.round, _AFTER_ALL_LANES, 0), position))
            elif head is not None:
                return Delivered(position, feed.pop()) if controls else REFUSED
            elif not feed.data_ended:
                silent.append(position)
        if silent or not heads:
            return Starved(tuple(silent) or self._open_feeds(blocked))
        return self._deliver(heads, accepts, controls)

    def _head(self, position: int) -> Element | None:
        """The feed's next element, once rule 3 has been followed."""
        head = self.feeds[position].peek()
        if isinstance(head, EndOfRound) and head.round == FINAL_ROUND:
            others = (number for number in range(len(self.feeds)) if number != position and number not in self._final)
            if any(not self.feeds[number].data_ended for number in others):
                self._final.add(position)
                self.feeds[position].pop()
                return self.feeds[position].peek()
        return head

    def _poll_only(self, accepts: bool, controls: bool) -> Delivered | Starved | Refused:
        """The same for one feed, where nothing is to be compared."""
        feed = self.feeds[0]
        head = feed.peek()
        if head is None:
            return Starved(() if feed.closed else (0,))
        if not (accepts if isinstance(head, Batch) else controls):
            return REFUSED
        return Delivered(0, feed.pop())

    def _deliver(
        self, heads: list[tuple[tuple[int, float, int], int]], accepts: bool, controls: bool
    ) -> Delivered | Refused:
        key, position = min(heads)
        head = self.feeds[position].peek()
        if isinstance(head, Batch):
            return Delivered(position, self.feeds[position].pop()) if accepts else REFUSED
        if not controls:
            return REFUSED
        for other, feed in heads:
            if other == key:
                self.feeds[feed].pop()
        assert head is not None
        return Delivered(0, head)

    def at_end_of_round(self, blocked: Collection[int]) -> bool:
        """Whether the next element is the end of a round, which all feeds that are not blocked have reached."""
        live = [feed for position, feed in enumerate(self.feeds) if position not in blocked and not feed.data_ended]
        return bool(live) and all(isinstance(feed.peek(), EndOfRound) for feed in live)

    def _open_feeds(self, blocked: Collection[int]) -> tuple[int, ...]:
        """The feeds that may still say something, or those that must not yet."""
        left = tuple(position for position, feed in enumerate(self.feeds) if not feed.closed)
        return tuple(position for position in left if position not in blocked) or left
