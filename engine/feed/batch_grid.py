"""Which rows of a feed are in which global batch. Pure.

Rules:

1. Rows have positions from 0 on, over all epochs; batches are numbered from 0 on, over all epochs. An epoch begins a
   batch: its batch *k* has the rows k·B to (k+1)·B − 1 of the epoch, and the last one may be short, or is left out
   (``drop_last``): then its rows have positions, and are in no batch.
2. Of the epoch that is open it is not known where it ends, so a batch after it is counted as if it never ended. Nothing
   is lost by that: none of the rows that have come is in such a batch, wherever it will be.
3. Without epochs there is one, which ends with the feed.
4. Where batches have different numbers of rows (``CutGrid``) it is known of a batch where it ends when its last row has
   come. One that is not known is counted as if it began behind those that are, and never ended.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class BatchGrid:
    """See the module's rules."""

    size: int
    drop_last: bool = False
    #: the position behind each epoch that has ended
    _ends: list[int] = field(default_factory=list)
    #: the first row, and the first batch, of each epoch that has ended, and of the open one
    _begins: list[int] = field(default_factory=lambda: [0])
    _firsts: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def of(cls, size: int, drop_last: bool, ends: Sequence[int]) -> BatchGrid:
        """With the epochs that have ended at these positions."""
        grid = cls(size, drop_last)
        for end in ends:
            grid.close(end)
        return grid

    def close(self, position: int) -> None:
        """The open epoch ends before this position."""
        whole, rest = divmod(position - self._begins[-1], self.size)
        self._firsts.append(self._firsts[-1] + whole + (rest > 0 and not self.drop_last))
        self._ends.append(position)
        self._begins.append(position)

    @property
    def closed(self) -> int:
        """How many epochs have ended."""
        return len(self._ends)

    @property
    def begin(self) -> int:
        """The position of the first row of the open epoch."""
        return self._begins[-1]

    @property
    def first(self) -> int:
        """The first batch of the open epoch: so many there are in those that have ended."""
        return self._firsts[-1]

    def epoch_of(self, batch: int) -> int:
        """The epoch of a batch, as far as is known."""
        return bisect_right(self._firsts, batch) - 1

    def is_known(self, batch: int) -> bool:
        """Whether the batch is in an epoch that has ended."""
        return batch < self.first

    def is_last(self, batch: int) -> bool:
        """Whether it is known to be the last one of its epoch."""
        return self.is_known(batch) and batch + 1 == self._firsts[self.epoch_of(batch) + 1]

    def first_row(self, batch: int) -> int:
        """The position of its first row."""
        epoch = self.epoch_of(batch)
        return self._begins[epoch] + (batch - self._firsts[epoch]) * self.size

    def end_row(self, batch: int) -> int:
        """The position behind its last row."""
        epoch = self.epoch_of(batch)
        end = self._begins[epoch] + (batch - self._firsts[epoch] + 1) * self.size
        return min(end, self._ends[epoch]) if epoch < len(self._ends) else end

    def batch_from(self, position: int) -> int:
        """The first batch that begins at this position or behind it."""
        epoch = bisect_right(self._ends, position)
        batch = self._firsts[epoch] - (self._begins[epoch] - position) // self.size
        return min(batch, self._firsts[epoch + 1]) if epoch < len(self._ends) else batch


UNKNOWN = 2**62
"""The end of a batch of which it is not known."""


@dataclass(slots=True)
class CutGrid(BatchGrid):
    """Rule 4. ``base``: the first batch that it knows of."""

    base: int = 0
    #: where the batches from ``base`` on begin, and behind the last one that is known
    _borders: array[int] = field(default_factory=lambda: array("q", [0]))

    @classmethod
    def going_on(cls, base: int, begin: int, ends: Sequence[int], firsts: Sequence[int]) -> CutGrid:
        """With the epochs that have ended at these positions, with so many batches before and in them; batch ``base``
        begins at ``begin``."""
        grid = cls(1, base=base)
        grid._ends, grid._begins, grid._firsts = list(ends), [0, *ends], [0, *firsts]
        grid._borders[0] = begin
        return grid

    def cut(self, position: int) -> None:
        """A batch ends before this position."""
        self._borders.append(position)

    @property
    def next(self) -> int:
        """The batch that comes next."""
        return self.base + len(self._borders) - 1

    @property
    def firsts(self) -> list[int]:
        """How many batches there are up to the end of each epoch that has ended."""
        return self._firsts[1:]

    def close(self, position: int) -> None:
        """The open epoch ends before this position, where a batch ends."""
        if self._borders[-1] != position:
            raise AssertionError(f"an epoch ends at {position}, and the last batch at {self._borders[-1]}")
        self._firsts.append(self.next)
        self._ends.append(position)
        self._begins.append(position)

    def first_row(self, batch: int) -> int:
        """The position of its first row."""
        return self._borders[min(max(0, batch - self.base), len(self._borders) - 1)]

    def end_row(self, batch: int) -> int:
        """The position behind its last row."""
        at = batch + 1 - self.base
        return self._borders[max(0, at)] if at < len(self._borders) else UNKNOWN

    def batch_from(self, position: int) -> int:
        """The first batch that begins at this position or behind it."""
        return self.base + bisect_left(self._borders, position)
