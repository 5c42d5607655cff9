"""The splits of a source in a drawn order, many of them read in turn: what a shuffle stands behind.

Rules:

1. A *pass* reads every split once. Its order is drawn by (seed, epoch), and so is the row that each split begins with:
   it is read from there to its end, and then from its first row on. So two passes begin with other rows, however many
   splits are read at once.
2. The splits of a pass, in that order, are one line of rows. It is cut into *segments* of equally many rows: as many as
   lanes times the *waves* that the splits need if at most ``interleave`` are read at once. So a split may be of two
   segments, and a segment has as many rows in every pass.
3. Every wave gets one of each few neighbouring splits, drawn: data that are sorted by time, or by class, are in all
   waves.
4. The rows of a segment come in *turns*: in each turn a share of each of its splits, in proportion to what the segment
   has of it, so that all of them end with the segment. Where a row stands is a function of the rows of the splits and
   of (seed, epoch): a cursor that says how many rows of a segment were read says where each of its splits stands.
5. All that needs the number of rows of every split. Where one is not known, splits are read whole, in a drawn order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..core.errors import DataError, StorageError
from ..core.source import Split
from ..core.traits import SplitDraws
from ..kernels.counter_random import SPLITS, words
from ..plan.rounds import RowStream
from .picking import Chunked, PickedRows, column_stream
from .repeated import again, id_again
from .split_queue import rows_of

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows of a split."""

    split: int
    first: int
    end: int


class DrawnSplits:
    """The splits of a source, and how they are drawn. See the module's rules. ``turn``: rows of a turn of a segment."""

    def __init__(self, source: str, splits: Sequence[Split], asked: SplitDraws, lanes: int, turn: int) -> None:
        self.splits = tuple(splits)
        self.turn = turn
        self.blocking = any(getattr(split, "blocking", False) for split in splits)
        self.open_bytes = max((int(getattr(split, "open_bytes", 0)) for split in splits), default=0)
        self._asked = asked
        #: sources of one flow draw other numbers
        self._block = 4 * crc32(source.encode())
        known = [split.rows for split in splits]
        #: the rows of each split; None: of some they are not known
        self._rows = None if None in known else np.array(known, dtype=np.int64)
        count = len(known) if self._rows is None else int(np.count_nonzero(self._rows))
        self._waves = max(1, -(-count // asked.interleave))
        self._segments = self._waves * min(lanes, -(-count // self._waves))
        #: the order and the beginnings of the pass that was looked at last
        self._last: tuple[int, Numbers, Numbers] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_last": None}

    def over(self, splits: Sequence[Split]) -> DrawnSplits:
        """Other splits of the same rows, drawn alike."""
        other = copy(self)
        other.splits = tuple(splits)
        return other

    @cached_property
    def at_once(self) -> int:
        """How many splits a segment has open at most."""
        if self._rows is None or not self._segments:
            return 1
        per_segment = int(self._rows.sum()) / self._segments
        # as many of the smallest ones as a segment has room for, and a part of one at either end
        smallest = np.cumsum(np.sort(self._rows[self._rows > 0]))
        return int(np.searchsorted(smallest, per_segment, "right")) + 2

    def segments(self) -> tuple[Split, ...]:
        """What takes the place of the source's splits."""
        if self._rows is None:
            return tuple(DrawnSplit(self, number) for number in range(len(self.splits)))
        total = int(self._rows.sum())
        borders = [number * total // self._segments for number in range(self._segments + 1)] if total else []
        return tuple(Segment(self, number, *each) for number, each in enumerate(pairwise(borders)))

    def order(self, epoch: int) -> Numbers:
        """Of the splits in a pass."""
        return self._drawn(epoch)[0]

    def runs(self, epoch: int, begin: int, end: int) -> list[list[Run]]:
        """What the rows from ``begin`` to ``end`` of the line of a pass are: for each split in it one run, or two."""
        assert self._rows is not None
        order, starts = self._drawn(epoch)
        rows = self._rows[order]
        borders = np.append(0, np.cumsum(rows))
        first, last = np.searchsorted(borders, begin, "right") - 1, np.searchsorted(borders, end, "left")
        found = []
        for place in range(int(first), int(last)):
            low, high = max(0, begin - int(borders[place])), min(int(rows[place]), end - int(borders[place]))
            if low < high:
                found.append(_turned(int(order[place]), int(rows[place]), int(starts[place]), low, high))
        return found

    def _drawn(self, epoch: int) -> tuple[Numbers, Numbers]:
        last = self._last
        if last is None or last[0] != epoch:
            last = self._last = (epoch, *self._draw(self._asked.epoch + epoch))
        return last[1:]

    def _draw(self, epoch: int) -> tuple[Numbers, Numbers]:
        """Rules 1 and 3. Empty splits are anywhere."""
        count, waves = len(self.splits), self._waves
        padded = -(-count // waves) * waves
        which, within, start = (words(self._asked.seed, epoch, SPLITS, self._block + each, padded) for each in range(3))
        neighbours = np.arange(padded) // waves
        wave = np.empty(padded, dtype=np.int64)
        wave[np.lexsort((which, neighbours))] = np.arange(padded) % waves
        order = np.lexsort((within[:count], wave[:count]))
        rows = np.zeros(count, dtype=np.int64) if self._rows is None else self._rows
        starts = (start[:count] % np.maximum(rows, 1).astype(np.uint64)).astype(np.int64)
        return order, starts[order]


def _turned(split: int, rows: int, start: int, low: int, high: int) -> list[Run]:
    """The rows ``low`` to ``high`` of a split that begins with row ``start``."""
    low, high = low + start, high + start
    if low >= rows:
        return [Run(split, low - rows, high - rows)]
    return [Run(split, low, high)] if high <= rows else [Run(split, low, rows), Run(split, 0, high - rows)]


class DrawnSplit:
    """A split whose place is drawn anew in each pass (rule 5)."""

    may_be_poison = False
    rows = None

    def __init__(self, drawn: DrawnSplits, number: int, epoch: int = 0) -> None:
        self.drawn, self._number, self._epoch = drawn, number, epoch
        self.id = id_again(f"drawn-{number}", epoch)

    @property
    def blocking(self) -> bool:
        """As the splits are."""
        return self.drawn.blocking

    @property
    def open_bytes(self) -> int:
        """Of the largest one."""
        return self.drawn.open_bytes

    def again(self, epoch: int) -> DrawnSplit:
        """As it is read in another pass."""
        return DrawnSplit(self.drawn, self._number, epoch)

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        """The rows of the split that is drawn for this place."""
        split = self.drawn.splits[self.drawn.order(self._epoch)[self._number]]
        return rows_of(again(split, self._epoch), start)


class Segment:
    """A part of a pass, as a split. See the module's rules."""

    may_be_poison = False
    """It is of many splits: that one of them is broken is no reason to leave them all out."""

    def __init__(self, drawn: DrawnSplits, number: int, begin: int, end: int, epoch: int = 0) -> None:
        self.drawn, self._number, self._begin, self._end, self._epoch = drawn, number, begin, end, epoch
        self.id = id_again(f"drawn-{number}", epoch)

    @property
    def rows(self) -> int:
        """As many in each pass."""
        return self._end - self._begin

    @property
    def blocking(self) -> bool:
        """As the splits are."""
        return self.drawn.blocking

    @property
    def open_bytes(self) -> int:
        """Those of all splits that are open at once."""
        return self.open_at_once * self.drawn.open_bytes

    @property
    def open_at_once(self) -> int:
        """How many splits are read in turn, at most: each may have a batch in hand."""
        return self.drawn.at_once

    def again(self, epoch: int) -> Segment:
        """As it is read in another pass."""
        return Segment(self.drawn, self._number, self._begin, self._end, epoch)

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        """Turn after turn (rule 4)."""
        parts = [
            _SplitPart(self.drawn.splits, runs, self._epoch)
            for runs in self.drawn.runs(self._epoch, self._begin, self._end)
        ]
        turns = -(-self.rows // self.drawn.turn)

        def before(turn: int) -> list[int]:
            """Rows of each part that come before a turn."""
            reached = min(turn * self.drawn.turn, self.rows)
            return [part.rows * reached // self.rows for part in parts]

        first = bisect_right(range(turns), start, key=lambda turn: sum(before(turn))) - 1
        left_out = start - sum(before(first)) if turns else 0
        for turn in range(first, turns):
            for part, begin, end in zip(parts, before(turn), before(turn + 1), strict=True):
                here = min(left_out, end - begin)
                left_out -= here
                yield from part.read(begin + here, end)


class _SplitPart:
    """What a segment has of one split, read in order; it is opened when the first row is wanted."""

    def __init__(self, splits: Sequence[Split], runs: Sequence[Run], epoch: int) -> None:
        self._splits, self._runs, self._epoch = splits, runs, epoch
        self.rows = sum(run.end - run.first for run in runs)
        #: the run that is being read
        self._open: tuple[Run, Chunked] | None = None

    def read(self, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows from ``begin`` to ``end``; those before were read, or are left out for good."""
        while begin < end:
            run, stream, left = self._here(begin)
            wanted = min(left, end - begin)
            found = 0
            for records in self._chunks(run, stream, wanted):
                found += records.num_rows
                yield records
            if found != wanted:
                raise self._changed(run)
            begin += wanted
            if wanted == left:
                if run.end == self._splits[run.split].rows and next(self._chunks(run, stream, 1), None) is not None:
                    raise self._changed(run)
                self._open = None

    def _here(self, row: int) -> tuple[Run, Chunked, int]:
        """The run in which a row stands, open at that row, and how many rows are left of it."""
        before = 0
        for run in self._runs:
            behind = before + run.end - run.first
            if row < behind:
                break
            before = behind
        if self._open is None or self._open[0] is not run:
            self._open = run, _stream(self._splits[run.split], run.first + row - before)
        return run, self._open[1], behind - row

    def _chunks(self, run: Run, stream: Chunked, rows: int) -> Iterator[pa.RecordBatch]:
        try:
            for records in stream.chunks(rows):
                assert not isinstance(records, PickedRows)
                yield records
        except (OSError, pa.ArrowException) as error:
            message = f"reading split {self._id(run)} failed: {error}"
            raise StorageError(message, "check that the input can still be read") from error

    def _changed(self, run: Run) -> DataError:
        message = f"split {self._id(run)} has not the rows that it had when the job was planned"
        return DataError(message, "keep the inputs unchanged while a job runs, or start a new job")

    def _id(self, run: Run) -> str:
        return id_again(self._splits[run.split].id, self._epoch)


def _stream(split: Split, start: int) -> Chunked:
    found = column_stream(split, start, None, False)
    return RowStream(rows_of(split, start)) if found is None else found
