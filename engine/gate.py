"""The input side of a port: several channels merged into one sequence, ordered by tag.

Rules:

1. Batches are delivered in the order of their tags, whichever channel spoke first; a batch is delivered only when no
   channel can still send an earlier one. That is known from the channels' heads: tags on a channel only grow.
2. ``EndOfRound(r)`` is delivered once, when every live channel has ended round ``r``.
3. A channel that alignment blocks is passed over: all it can still say comes after its barrier, and whatever the
   others say before theirs comes first.
4. Barriers, ends of data and ends of partitions are delivered as they reach the head of their channel. In a
   deterministic flow barriers stand at the same round in every channel, so they cannot hold up rule 1.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from .elements import Batch, Element, EndOfRound


class Feed(Protocol):
    """A channel's consumer end, or a source: what a gate reads from."""

    @property
    def data_ended(self) -> bool: ...

    @property
    def closed(self) -> bool: ...

    def peek(self) -> Element | None: ...

    def pop(self) -> Element: ...

    def say_all_processed(self) -> None: ...


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
    """There is a batch, but the operator does not want one on this port now."""


_AFTER_ALL_LANES = float("inf")


class Gate:
    """Merges ``feeds`` by tag. See the module's rules."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self.feeds = feeds

    @property
    def data_ended(self) -> bool:
        """Whether every feed has ended its data."""
        return all(feed.data_ended for feed in self.feeds)

    def poll(self, blocked: Collection[int], accepts: bool) -> Delivered | Starved | Refused:
        """The next element, skipping feeds in ``blocked``; a batch only if ``accepts``."""
        heads: list[tuple[tuple[int, float, int], int]] = []
        silent: list[int] = []
        for position, feed in enumerate(self.feeds):
            if position in blocked:
                continue
            head = feed.peek()
            if isinstance(head, Batch):
                heads.append(((head.tag.round, head.tag.lane, head.tag.sequence), position))
            elif isinstance(head, EndOfRound):
                heads.append(((head.round, _AFTER_ALL_LANES, 0), position))
            elif head is not None:
                return Delivered(position, feed.pop())
            elif not feed.data_ended:
                silent.append(position)
        if silent or not heads:
            return Starved(tuple(silent) or self._open_feeds(blocked))
        return self._deliver(heads, accepts)

    def _deliver(self, heads: list[tuple[tuple[int, float, int], int]], accepts: bool) -> Delivered | Refused:
        key, position = min(heads)
        head = self.feeds[position].peek()
        if isinstance(head, Batch):
            return Delivered(position, self.feeds[position].pop()) if accepts else Refused()
        for other, feed in heads:
            if other == key:
                self.feeds[feed].pop()
        assert head is not None
        return Delivered(0, head)

    def _open_feeds(self, blocked: Collection[int]) -> tuple[int, ...]:
        """The feeds that may still say something, or those that must not yet."""
        left = tuple(position for position, feed in enumerate(self.feeds) if not feed.closed)
        return tuple(position for position in left if position not in blocked) or left
