"""Sorting more than fits into memory: sorted runs on disk, merged when they are read.

Rules:

1. The order is that of ``sorting``: stable, the rows of an older run before equal rows of a younger one.
2. A run is a file of small pieces. The merge holds one piece of each run and never looks at single rows: in each step
   it takes, of every run, the rows up to the smallest last row among the pieces (found by bisection), and sorts them
   together. So a step costs about the rows that it gives, and uses up at least one piece.
3. ``FAN_IN`` runs of one level become one run of the next level as soon as they are there: there are never many files,
   and a row is written again only once per level.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.operator import Memory, SpillFile
from ..kernels.keys import comparable, decoded, validity
from ..kernels.pieces import Bound, cut, taken
from ..kernels.sorting import SortKey, sorted_order
from .stored_rows import concatenated

FAN_IN = 16
"""Runs merged at once. Their pieces are in memory together."""

PIECE_BYTES = 512 * 1024
"""Pieces are cut to this size: all that a merge holds stays below ``FAN_IN`` times as much, or as many single rows."""


class SortedRuns:
    """See the module's rules. ``keys``: columns by position, and how each is ordered."""

    def __init__(self, schema: pa.Schema, keys: Sequence[tuple[int, SortKey]], memory: Memory, piece_rows: int) -> None:
        self._schema = schema
        self._keys = keys
        self._memory = memory
        self._bound = Bound(piece_rows, PIECE_BYTES)
        #: files by level; runs of a higher level are older, and in a level the first one is the oldest
        self._levels: list[list[SpillFile]] = []
        #: how many rows there are
        self.rows = 0

    def add(self, records: pa.RecordBatch) -> None:
        """Rows in any order: a new run, the youngest one."""
        self.add_sorted(self.sorted_pieces(records))

    def sorted_pieces(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows in order, a piece at a time."""
        return taken(records, _order(records, self._keys), self._bound)

    def add_sorted(self, pieces: Iterable[pa.RecordBatch]) -> None:
        """The pieces of a run, the youngest one."""
        file = self._write(pieces)
        if not file.rows:
            file.delete()
            return
        self.rows += file.rows
        self._put(file, 0)

    def merged(self, youngest: Iterable[pa.RecordBatch] = ()) -> Iterator[pa.RecordBatch]:
        """All rows in order, and with them a run that needs no file. Everything stays where it is."""
        runs = [file.read() for file in self._oldest_first()]
        return merge([*runs, iter(youngest)], self._schema, self._keys)

    def stored(self) -> Iterator[pa.RecordBatch]:
        """All rows, run by run, the oldest one first."""
        for file in self._oldest_first():
            yield from file.read()

    def clear(self) -> None:
        """Remove everything."""
        for file in self._oldest_first():
            file.delete()
        self._levels, self.rows = [], 0

    def _oldest_first(self) -> list[SpillFile]:
        return [file for level in reversed(self._levels) for file in level]

    def _put(self, file: SpillFile, level: int) -> None:
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(file)
        if len(self._levels[level]) == FAN_IN:
            files = self._levels[level]
            merged = self._write(merge([each.read() for each in files], self._schema, self._keys))
            self._levels[level] = []
            for each in files:
                each.delete()
            self._put(merged, level + 1)

    def _write(self, pieces: Iterable[pa.RecordBatch]) -> SpillFile:
        file = self._memory.spill(self._schema)
        try:
            for piece in pieces:
                for part in cut(piece, self._bound.rows, self._bound.bytes):
                    file.write(part)
        except BaseException:
            file.delete()
            raise
        return file


def merge(
    runs: Sequence[Iterator[pa.RecordBatch]], schema: pa.Schema, keys: Sequence[tuple[int, SortKey]]
) -> Iterator[pa.RecordBatch]:
    """The rows of sorted runs in order; equal rows in the order of the runs."""
    heads = [head for head in (_Head(run, keys) for run in runs) if head.fill()]
    while len(heads) > 1:
        bounds = [head.last for head in heads]
        lowest = bounds.index(min(bounds))
        # what is equal to the bound may follow in the lowest run, so younger runs must wait with it
        taken = [head.take(bounds[lowest], place <= lowest) for place, head in enumerate(heads)]
        filled = [records for records in taken if records.num_rows]
        together = concatenated(schema, filled)
        yield together if len(filled) == 1 else together.take(pa.array(_order(together, keys)))
        heads = [head for head in heads if head.fill()]
    for head in heads:
        yield from head.rest()


def _order(records: pa.RecordBatch, keys: Sequence[tuple[int, SortKey]]) -> Any:
    return sorted_order([records.column(place) for place, _ in keys], [key for _, key in keys])


class _Head:
    """The piece of a run that the merge has come to, and from which row on it is not merged."""

    def __init__(self, pieces: Iterator[pa.RecordBatch], keys: Sequence[tuple[int, SortKey]]) -> None:
        self._pieces = pieces
        self._keys = keys
        self._records: pa.RecordBatch | None = None
        self._start = 0
        self._columns: list[_KeyColumn] = []

    def fill(self) -> bool:
        """Have a row; False: the run has no more."""
        while self._records is None or self._start == self._records.num_rows:
            self._records = next(self._pieces, None)
            self._start = 0
            if self._records is None:
                return False
            self._columns = [_KeyColumn(self._records.column(place), key) for place, key in self._keys]
        return True

    @property
    def last(self) -> tuple[Any, ...]:
        """The key of the last row of the piece."""
        assert self._records is not None
        return self._key(self._records.num_rows - 1)

    def take(self, bound: tuple[Any, ...], inclusive: bool) -> pa.RecordBatch:
        """The rows below the bound, and those equal to it if ``inclusive``."""
        assert self._records is not None
        search = bisect_right if inclusive else bisect_left
        end = search(range(self._records.num_rows), bound, lo=self._start, key=self._key)
        found = self._records.slice(self._start, end - self._start)
        self._start = end
        return found

    def rest(self) -> Iterator[pa.RecordBatch]:
        """All that is left of the run."""
        assert self._records is not None
        yield self._records.slice(self._start)
        yield from self._pieces

    def _key(self, row: int) -> tuple[Any, ...]:
        return tuple(part for column in self._columns for part in column.at(row))


class _KeyColumn:
    """A key's values as Python compares them, in the order that is asked for."""

    def __init__(self, column: pa.Array, key: SortKey) -> None:
        self._descending = key.descending
        self._values = comparable(decoded(column))
        self._valid = validity(column) if column.null_count else None
        self._null = -1 if key.nulls_first else 1

    def at(self, row: int) -> tuple[Any, ...]:
        """Null or not, then the value."""
        if self._valid is not None and not self._valid[row]:
            return (self._null, 0)
        if isinstance(self._values, np.ndarray):
            value = int(self._values[row])
            return (0, ~value if self._descending else value)
        value = self._values[row].as_py()
        return (0, _Descending(value) if self._descending else value)


class _Descending:
    """A value that is smaller where the other one is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)
