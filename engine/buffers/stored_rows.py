"""Rows that lie in many batches, memory-mapped files mostly, and are addressed by their position in all of them.

Rule: taking a few rows touches only the batches that they stand in. (``take`` of Arrow's chunked arrays first makes one
array of all chunks, which is what must not happen to what was too large for the memory.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.operator import OUTPUT_BYTES
from ..core.schemas import no_rows
from ..kernels.pieces import Bound, Positions, cut, picked
from ..kernels.row_bits import row_bits

MUCH, LARGE = 4, 128
"""Columns of more than so many pieces, of values of more than so many bytes, are not brought together to be picked."""


def concatenated(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The batches, of at least one column, as one."""
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return no_rows(schema)
    columns = [pa.concat_arrays([records.column(place) for records in batches]) for place in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def brought_together(schema: pa.Schema, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """As :func:`concatenated`. The list is emptied, and columns are let go of one by one: at no time there is more than
    one of them twice."""
    if len(batches) == 1:
        return batches.pop()
    parts = [[records.column(place) for records in batches] for place in range(len(schema) if batches else 0)]
    batches.clear()
    columns = []
    for place in range(len(parts)):
        columns.append(pa.concat_arrays(parts[place]))
        parts[place] = []
    return pa.RecordBatch.from_arrays(columns, schema=schema) if parts else no_rows(schema)


def rebatched(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int, bytes: int = OUTPUT_BYTES
) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly ``rows`` rows, or as many as have ``bytes`` bytes, but for the last one."""
    return rebatched_sized(((records, records.nbytes) for records in batches), schema, rows, bytes)


def rebatched_sized(
    batches: Iterable[tuple[pa.RecordBatch, int]], schema: pa.Schema, rows: int, bytes: int = OUTPUT_BYTES
) -> Iterator[pa.RecordBatch]:
    """The same, of batches with about so many bytes each: how many decides when they are brought together, not where
    the new ones end."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for records, more in batches:
        waiting.append(records)
        count += records.num_rows
        size += more
        if count < rows and size < bytes:
            continue
        pieces = cut(brought_together(schema, waiting), rows, bytes)
        last = next(pieces, None)
        for piece in pieces:
            assert last is not None
            yield last
            last = piece
        if last is not None and last.num_rows == rows:
            yield last
            last = None
        # the last one may take more
        waiting = [] if last is None else [last]
        count, size = (0, 0) if last is None else (last.num_rows, last.nbytes)
    if waiting:
        yield from cut(brought_together(schema, waiting), rows, bytes)


@dataclass(frozen=True)
class _Plan:
    """Where wanted rows stand: the batches that they are in with their places there; how to put them in order again."""

    parts: list[tuple[int, pa.Array]]
    back: pa.Array | None


class StoredRows:
    """See the module's rule. It offers what joins use of a record batch."""

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        self.schema = schema
        self.batches = [records for records in batches if records.num_rows]
        #: the position of each batch's first row; behind the last one the number of all rows
        self.starts = np.append(0, np.cumsum([records.num_rows for records in self.batches], dtype=np.int64))
        #: the rows that were picked last, and where they stand: columns are picked one after the other
        self._picked: tuple[pa.Array | Positions | None, _Plan] = (None, _Plan([], None))

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return int(self.starts[-1])

    def column(self, position: int) -> StoredColumn:
        """One column."""
        return StoredColumn(self, position)

    def slice(self, start: int, rows: int) -> pa.RecordBatch:
        """Consecutive rows."""
        return self.take(np.arange(start, start + rows))

    def take(self, rows: Positions) -> pa.RecordBatch:
        """Some of the rows."""
        wanted = pa.array(rows)
        columns = [self.column(position).picked(wanted) for position in range(len(self.schema))]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def plan(self, rows: pa.Array | Positions) -> _Plan:
        """How to pick these rows."""
        if self._picked[0] is not rows:
            self._picked = (rows, self._planned(pa.array(rows)))
        return self._picked[1]

    def _planned(self, rows: pa.Array) -> _Plan:
        missing = rows.is_null().to_numpy(zero_copy_only=False) if rows.null_count else None
        wanted = rows.fill_null(0).to_numpy() if rows.null_count else rows.to_numpy()
        back: pa.Array | None = None
        if missing is not None or not bool((wanted[1:] >= wanted[:-1]).all()):
            order = np.argsort(wanted)
            places = np.empty(len(order), dtype=np.int64)
            places[order] = np.arange(len(order))
            wanted, back = wanted[order], pa.array(places, mask=missing)
        first = int(np.searchsorted(self.starts, wanted[0], side="right")) - 1
        last = int(np.searchsorted(self.starts, wanted[-1], side="right"))
        borders = np.searchsorted(wanted, self.starts[first : last + 1])
        parts = []
        for place in np.flatnonzero(np.diff(borders)).tolist():
            local = wanted[int(borders[place]) : int(borders[place + 1])] - self.starts[first + place]
            parts.append((first + place, pa.array(local)))
        return _Plan(parts, back)


class StoredColumn:
    """A column of :class:`StoredRows`; what joins use of an array."""

    def __init__(self, rows: StoredRows, position: int) -> None:
        self._rows = rows
        self._position = position
        self._decoded = False

    @property
    def type(self) -> pa.DataType:
        """The type of the values taken."""
        type = self._rows.schema.field(self._position).type
        return type.value_type if self._decoded else type

    def __len__(self) -> int:
        return self._rows.num_rows

    def whole(self) -> pa.Array:
        """All values."""
        return pa.concat_arrays([records.column(self._position) for records in self._rows.batches])

    def dictionary_decode(self) -> StoredColumn:
        """The column with values in place of dictionary codes."""
        column = StoredColumn(self._rows, self._position)
        column._decoded = True
        return column

    def slice(self, start: int, rows: int) -> pa.Array:
        """Consecutive values."""
        return self.picked(pa.array(np.arange(start, start + rows)))

    def row_bits(self, rows: Positions) -> Positions:
        """What each of these rows takes."""
        if not len(rows):
            return np.zeros(0, dtype=np.int64)
        plan = self._rows.plan(rows)
        bits = np.empty(len(rows), dtype=np.int64)
        done = 0
        for number, local in plan.parts:
            bits[done : done + len(local)] = row_bits(
                [self._rows.batches[number].column(self._position)], local.to_numpy()
            )
            done += len(local)
        return bits if plan.back is None else bits[plan.back.to_numpy()]

    def picked(self, rows: pa.Array) -> pa.Array:
        """The values at these positions; null where the position is."""
        if not len(rows) or not len(self):
            return pa.nulls(len(rows), self.type)
        plan = self._rows.plan(rows)
        parts = [picked(self._rows.batches[number].column(self._position), local) for number, local in plan.parts]
        found = pa.concat_arrays([part.dictionary_decode() for part in parts] if self._decoded else parts)
        return found if plan.back is None else picked(found, plan.back)


class RowsApart:
    """Rows of many batches, to be picked by position. Columns of small values are brought together, one after the
    other. Those of large ones, if they are much, stay in their batches: no more of them is copied than is picked."""

    def __init__(self, schema: pa.Schema, batches: list[pa.RecordBatch], bound: Bound) -> None:
        """The list is emptied."""
        self.schema = schema
        self.num_rows = sum(records.num_rows for records in batches)
        parts = [[records.column(place) for records in batches] for place in range(len(schema))]
        batches.clear()
        large = [place for place, column in enumerate(parts) if self._is_large(column, bound)]
        apart_schema = pa.schema([schema.field(place) for place in large])
        rest = zip(*(parts[place] for place in large), strict=True)
        apart = StoredRows(
            apart_schema, [pa.RecordBatch.from_arrays(list(columns), schema=apart_schema) for columns in rest]
        )
        del rest
        self.columns: list[Any] = []
        for place, field in enumerate(schema):
            column, parts[place] = parts[place], []
            if place in large:
                self.columns.append(apart.column(large.index(place)))
            else:
                self.columns.append(pa.concat_arrays(column) if column else pa.nulls(0, field.type))

    def column(self, name: str) -> pa.Array:
        """A column, brought together."""
        found = self.columns[self.schema.get_field_index(name)]
        return found.whole() if isinstance(found, StoredColumn) else found

    def picked(self, rows: pa.Array) -> pa.RecordBatch:
        """The rows at these positions."""
        return pa.RecordBatch.from_arrays([picked(column, rows) for column in self.columns], schema=self.schema)

    def first(self, rows: int) -> pa.RecordBatch:
        """So many rows from the first one on."""
        return pa.RecordBatch.from_arrays([column.slice(0, rows) for column in self.columns], schema=self.schema)

    def _is_large(self, column: list[pa.Array], bound: Bound) -> bool:
        size = sum(part.nbytes for part in column) if len(column) > 1 else 0
        return size > MUCH * bound.bytes and size > LARGE * self.num_rows


def numbers_of(column: StoredColumn, rows: Positions) -> Positions:
    """Integers at these positions."""
    found: Positions = column.picked(pa.array(rows)).to_numpy()
    return found
