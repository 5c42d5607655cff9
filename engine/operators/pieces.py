"""Rows that become several rows: the index arithmetic shared by unnest and the joins.

``pieces(counts)`` walks over the output in pieces of bounded size without ever building the whole index: a list of ten
million elements, or the product of two huge groups, costs the memory of one piece at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .protocol import OUTPUT_ROWS

PIECE_ROWS = OUTPUT_ROWS
"""The default size of a piece."""

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive output rows: the input ``rows`` they derive from, and their ``positions`` within its output."""

    rows: Positions
    positions: Positions
    #: every input row from the first to the last occurs exactly once
    contiguous: bool

    def repeat(self, records: Any) -> Any:
        """The input rows of ``records`` (a record batch, a table or an array), each as often as it occurs."""
        if self.contiguous:
            return records.slice(int(self.rows[0]), len(self.rows))
        return records.take(pa.array(self.rows))


def pieces(counts: Positions, limit: int = PIECE_ROWS) -> Iterator[Piece]:
    """The output of rows of which the n-th becomes ``counts[n]`` rows, in pieces of at most ``limit`` rows."""
    ends = np.cumsum(counts, dtype=np.int64)
    starts = ends - counts
    total = int(ends[-1]) if len(ends) else 0
    for low in range(0, total, limit):
        high = min(low + limit, total)
        first = int(np.searchsorted(ends, low, side="right"))
        last = int(np.searchsorted(ends, high, side="left")) + 1
        inside = np.minimum(ends[first:last], high) - np.maximum(starts[first:last], low)
        rows = np.repeat(np.arange(first, last), inside)
        yield Piece(rows, np.arange(low, high) - starts[rows], bool((inside == 1).all()))


def cut(records: pa.RecordBatch, limit: int = PIECE_ROWS) -> Iterator[pa.RecordBatch]:
    """``records`` in slices of at most ``limit`` rows."""
    for low in range(0, records.num_rows, limit):
        yield records.slice(low, limit)


def indices(rows: Positions, missing: Flags | None) -> pa.Array:
    """Row numbers to take; null where ``missing``."""
    return pa.array(rows, mask=missing)
