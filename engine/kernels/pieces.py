"""Rows that become several rows: the index arithmetic shared by unnest and the joins.

``pieces(counts)`` walks over the output in pieces of bounded size without ever building the whole index: a list of ten
million elements, or the product of two huge groups, costs the memory of one piece at a time. :class:`Bound` says how
large a piece may be, in rows and in bytes, and cuts what is larger; a single row may be larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..core.operator import OUTPUT_BYTES, OUTPUT_ROWS
from .row_bits import Bits, row_bits, total_bits

PIECE_ROWS = OUTPUT_ROWS
"""The default size of a piece."""

_NEARLY_ALL = 8
"""Where all but an eighth of the rows are picked, Arrow's filter copies runs of them. Else it looks at the mask for
each column, and positions that are found once are faster: 65 µs a column of 64 Ki int64, not 187, for half of them."""

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_ROW_NUMBER = pa.int64()


@dataclass(frozen=True, slots=True)
class Bound:
    """What a piece may have; at least it has one row."""

    rows: int = OUTPUT_ROWS
    bytes: int = OUTPUT_BYTES

    def parts(self, rows: int, bits: Bits) -> Iterator[slice]:
        """``rows`` rows of so many ``bits`` each as consecutive parts within the bound, each as large as it may be."""
        most = self.bytes * 8
        if isinstance(bits, int | np.integer):
            limit = max(1, min(self.rows, most // bits if bits else self.rows))
            yield from (slice(low, min(low + limit, rows)) for low in range(0, rows, limit))
            return
        if 0 < rows <= self.rows and int(bits.sum()) <= most:
            yield slice(0, rows)
            return
        ends = np.cumsum(bits)
        low, before = 0, 0
        while low < rows:
            high = int(np.searchsorted(ends, before + most, side="right"))
            high = min(max(high, low + 1), low + self.rows, rows)
            yield slice(low, high)
            low, before = high, int(ends[high - 1])


@dataclass(frozen=True)
class Piece:
    """Some consecutive output rows, from number ``low`` on: the input ``rows`` that they derive from. ``starts``: the
    number of the first output row of each input row."""

    rows: Positions
    starts: Positions
    low: int
    #: every input row from the first to the last occurs exactly once
    contiguous: bool

    @cached_property
    def positions(self) -> Positions:
        """The position of each row within the output of its input row."""
        positions: Positions = np.arange(self.low, self.low + len(self.rows)) - self.starts[self.rows]
        return positions

    def part(self, part: slice) -> Piece:
        """Some consecutive rows of the piece."""
        whole = part.start == 0 and part.stop == len(self.rows)
        return self if whole else Piece(self.rows[part], self.starts, self.low + int(part.start), self.contiguous)

    def repeat(self, records: Any) -> Any:
        """The input rows of ``records`` (a record batch, a table or an array), each as often as it occurs."""
        if self.contiguous:
            return records.slice(int(self.rows[0]), len(self.rows))
        return picked(records, pa.array(self.rows))


def pieces(counts: Positions, limit: int = PIECE_ROWS) -> Iterator[Piece]:
    """The output of rows of which the n-th becomes ``counts[n]`` rows, in pieces of at most ``limit`` rows."""
    ends = np.cumsum(counts, dtype=np.int64)
    starts = ends - counts
    total = int(ends[-1]) if len(ends) else 0
    for low in range(0, total, limit):
        high = min(low + limit, total)
        first = int(np.searchsorted(ends, low, side="right"))
        last = int(np.searchsorted(ends, high, side="left")) + 1
        contiguous = last - first == high - low and bool((np.diff(ends[first:last], prepend=low) == 1).all())
        rows = np.arange(first, last) if contiguous else _repeated(first, ends[first : last - 1] - low, high - low)
        yield Piece(rows, starts, low, contiguous)


def _repeated(first: int, borders: Positions, count: int) -> Positions:
    """``count`` numbers: ``first``, and one more from each border on. A third of what ``numpy.repeat`` takes."""
    rows: Positions = np.cumsum(np.bincount(borders, minlength=count), dtype=np.int64)
    rows += first
    return rows


def picked(records: Any, rows: pa.Array) -> Any:
    """``records.take(rows)`` for row numbers that the engine has computed: they are not checked a second time, which
    for columns of numbers is half of the work. Rows that lie on disk (``stored_rows``) pick by themselves."""
    own = getattr(records, "picked", None)
    return pc.take(records, rows, boundscheck=False) if own is None else own(rows)


def selected(records: pa.RecordBatch, rows: Positions) -> pa.RecordBatch:
    """Some rows of a batch, named in their order, each once."""
    count, every = len(rows), records.num_rows
    first, last = (int(rows[0]), int(rows[-1])) if count else (0, -1)
    # one run, which keeps no more than as many rows again in memory
    if last - first + 1 == count and 2 * count >= every:
        return records.slice(first, count)
    if count * _NEARLY_ALL <= every * (_NEARLY_ALL - 1):
        return picked(records, indices(rows))
    mask = np.zeros(every, np.bool_)
    mask[rows] = True
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return records.filter(pa.Array.from_buffers(pa.bool_(), every, [None, bits]))


def taken(records: Any, rows: Positions, bound: Bound) -> Iterator[pa.RecordBatch]:
    """Some rows of a record batch, or of what picks by itself (``stored_rows``), in pieces, each made when it is asked
    for."""
    low = 0
    while low < len(rows):
        mine = rows[low : low + bound.rows]
        parts = list(bound.parts(len(mine), row_bits(records.columns, mine)))
        if len(parts) > 1 and low + len(mine) < len(rows):
            parts.pop()  # what follows may have room there
        for part in parts:
            yield picked(records, pa.array(mine[part]))
        low += int(parts[-1].stop)


def cut(records: pa.RecordBatch, limit: int = PIECE_ROWS, bytes: int = OUTPUT_BYTES) -> Iterator[pa.RecordBatch]:
    """``records`` in slices of at most ``limit`` rows and ``bytes`` bytes, each as large as it may be."""
    rows = records.num_rows
    # far from the bound nobody counts; near it bits, not buffers, tell the same of any slices of the rows
    if rows <= limit and (records.nbytes * 4 <= bytes or total_bits(records) <= bytes * 8):
        if rows:
            yield records
        return
    for part in Bound(limit, bytes).parts(rows, row_bits(records.columns, np.arange(rows))):
        yield records.slice(part.start, part.stop - part.start)


def indices(rows: Positions, missing: Flags | None = None) -> pa.Array:
    """Row numbers to take; null where ``missing``."""
    if missing is None:  # a fourth of what Arrow takes to find out what it is given
        return pa.Array.from_buffers(_ROW_NUMBER, len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])
    return pa.array(rows, mask=missing)
