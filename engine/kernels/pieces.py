"""Rows that become several rows: the index arithmetic shared by unnest and the joins.

``pieces(counts)`` walks over the output in pieces of bounded size without ever building the whole index: a list of ten
million elements, or the product of two huge groups, costs the memory of one piece at a time.
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

PIECE_ROWS = OUTPUT_ROWS
"""The default size of a piece."""

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


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


def cut(records: pa.RecordBatch, limit: int = PIECE_ROWS, bytes: int = OUTPUT_BYTES) -> Iterator[pa.RecordBatch]:
    """``records`` in slices of at most ``limit`` rows, and of about ``bytes`` bytes where a row has less."""
    rows = records.num_rows
    if records.nbytes > bytes:
        limit = max(1, min(limit, rows * bytes // records.nbytes))
    for low in range(0, rows, limit):
        yield records.slice(low, limit)


def indices(rows: Positions, missing: Flags | None) -> pa.Array:
    """Row numbers to take; null where ``missing``."""
    return pa.array(rows, mask=missing)
