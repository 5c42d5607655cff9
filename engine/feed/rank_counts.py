"""A number of each rank that only grows, and the least of them at once: what is asked with every batch. Pure."""

from __future__ import annotations


class RankCounts:
    """``least``: the least of them. It is looked for anew when the last rank has left it, which is once for all ranks
    where they read in step."""

    def __init__(self, ranks: int, at: int) -> None:
        self.each = [at] * ranks
        self.least = at
        #: so many have the least
        self._slowest = ranks

    def grow(self, rank: int, to: int) -> None:
        """The number of this rank, if it is larger than before."""
        before = self.each[rank]
        if to <= before:
            return
        self.each[rank] = to
        if before == self.least:
            self._slowest -= 1
            if not self._slowest:
                self.least = min(self.each)
                self._slowest = self.each.count(self.least)
