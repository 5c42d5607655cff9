"""Who waits at a feed: its ranks for data, or the data for a rank. Plain data, and the pace of one rank. Pure.

Rules:

1. A rank waits while its loop asks for a batch that is not there. How long it has waited it says itself, with its
   requests; that it waits now the feed server sees, which has given it nothing that it has not taken.
2. A rank's rate is that of the last ``SPAN`` seconds or so, by what it has acknowledged.
3. Bytes are the rows' mean, times their number.
"""

from __future__ import annotations

from collections import deque

import msgspec

from ..core.identity import Attempt

SPAN = 10.0
"""Seconds that a rate looks back."""
STEPS = 10
"""Times within them that are remembered."""


class RankStatus(msgspec.Struct, frozen=True):
    """One rank of the group of a ``generation``: it was ``given`` the batches before one and has ``taken`` those before
    one; those in between, with about ``bytes_ahead``, are fetched ahead. It has ``waited`` so many seconds, and
    takes ``rate`` batches a second. ``waits_for``: what it waits for now."""

    generation: int
    rank: int
    taken: int
    given: int
    waited: float
    rate: float
    bytes_ahead: int
    waits_for: str = ""

    @property
    def ahead(self) -> int:
        """Batches that are fetched and not taken."""
        return self.given - self.taken

    def __str__(self) -> str:
        now = f"; waits for data: {self.waits_for}" if self.waits_for else ""
        ahead = f"{self.ahead} ahead ({self.bytes_ahead:,} bytes)"
        place = f"rank {self.rank}: at batch {self.taken}, {self.rate:.1f} a second"
        return f"{place}, {ahead}, waited {self.waited:.1f} s{now}"


class FeedStatus(msgspec.Struct, frozen=True):
    """A feed now: ``rows`` have come, ``waiting_rows`` of them some rank has not taken, and ``kept_bytes`` are kept.
    ``batches``: how many there are, once known. ``missing``: ranks that have to come before batches are handed out.
    ``waits_for``: whom the data wait for, as the operators before the feed may give no more. ``attempt``: of the
    feed's task. ``unseen``: no rank has been given this batch or a later one, by this attempt or one before; None:
    that is not known yet. ``caught_up``: all batches that ranks may have from an attempt before have come again."""

    feed: str
    rows: int = 0
    waiting_rows: int = 0
    kept_bytes: int = 0
    batches: int | None = None
    missing: str = ""
    waits_for: str = ""
    ranks: tuple[RankStatus, ...] = ()
    attempt: Attempt | None = None
    unseen: int | None = None
    caught_up: bool = False

    @property
    def sentences(self) -> list[str]:
        """Who waits for whom; none if nobody does."""
        found = [f"feed {self.feed}: data wait for {self.waits_for}"] if self.waits_for else []
        found += [f"feed {self.feed}: ranks wait for {self.missing}"] if self.missing else []
        waiting = (each for each in self.ranks if each.waits_for)
        return [*found, *(f"feed {self.feed}: rank {each.rank} waits for data: {each.waits_for}" for each in waiting)]

    def __str__(self) -> str:
        head = (
            f"feed {self.feed}: {self.rows:,} rows, of which {self.waiting_rows:,} wait, {self.kept_bytes:,} bytes kept"
        )
        whom = [f"  data wait for {self.waits_for}"] if self.waits_for else []
        whom += [f"  ranks wait for {self.missing}"] if self.missing else []
        return "\n".join([head, *whom, *(f"  {each}" for each in self.ranks)])


class RankPace:
    """Of one rank of a group, from what it acknowledges."""

    def __init__(self) -> None:
        #: times, at least ``SPAN / STEPS`` apart, and what was taken then
        self._marks: deque[tuple[float, int]] = deque(maxlen=STEPS + 1)
        self._taken = 0
        self.waited = 0.0

    def note(self, now: float, taken: int, waited: float) -> None:
        """It has taken the batches before this one, and waited so long."""
        self._taken, self.waited = max(self._taken, taken), max(self.waited, waited)
        if not self._marks or now - self._marks[-1][0] >= SPAN / STEPS:
            self._marks.append((now, taken))

    def rate(self, now: float) -> float:
        """Batches a second."""
        while len(self._marks) > 1 and now - self._marks[1][0] >= SPAN:
            self._marks.popleft()
        since, taken = self._marks[0] if self._marks else (now, self._taken)
        return (self._taken - taken) / (now - since) if now > since else 0.0
