"""What a task has in flight at a cut: elements in order, with whole tags, as marks and rows and back. Pure.

Rules:

1. Every element keeps its place: batches, ends of rounds (the final one, too), watermarks, the ends of the data and of
   the partition. So whoever goes on behind a cut hears what he would have heard, one element after the other.
2. An element is a :class:`Mark`, small and without rows. The rows of batches lie in tables, one for each schema; a mark
   says in which, where they begin, and how many they are.
3. Rows are stored plain: compact columns (``arrow.compact``) are of their declared types here. The part of a row
   (``PART``) is a column like others. Where rows have no columns there is no table, only their number.
4. A flight belongs to one subtask of one vertex, at one shape of the plan. ``place`` says where each mark stood; what
   lies in it is its writer's (``runtime.places``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa

from ..arrow.compact import plain_records
from ..core.elements import Batch, Element, EndOfData, EndOfPartition, EndOfRound, PickedBatch, Tag, Watermark
from ..core.errors import InternalError

NO_COLUMNS = -1
"""The table of rows without columns."""


class RowsMark(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A batch: so many rows of a table, from ``start`` on, under a tag. ``counts``: of a batch of which rows were
    picked where it was read."""

    table: int
    start: int
    rows: int
    round: int
    lane: int
    sequence: int
    counts: tuple[int, ...] = ()


class RoundMark(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """An end of a round."""

    round: int


class TimeMark(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A watermark."""

    time: int


class EndMark(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The end of the data."""

    drain: bool


class ClosedMark(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The end of the partition."""


Mark = RowsMark | RoundMark | TimeMark | EndMark | ClosedMark


class Flight(msgspec.Struct, frozen=True):
    """What one task had in flight at a cut: where each thing stood, and the rows, by schema."""

    place: bytes
    tables: tuple[pa.Table, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows were in flight, those without columns left aside."""
        return sum(table.num_rows for table in self.tables)

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return len(self.place) + sum(int(table.nbytes) for table in self.tables)


class FlightWriter:
    """Takes elements, gives marks, and in the end the tables."""

    def __init__(self) -> None:
        self._schemas: list[pa.Schema] = []
        self._batches: list[list[pa.RecordBatch]] = []
        self._rows: list[int] = []

    def put(self, elements: Iterable[Element], schema: pa.Schema | None = None) -> tuple[Mark, ...]:
        """The marks of elements, whose rows are declared to be of ``schema``; None: they are plain."""
        return tuple(self._mark(element, schema) for element in elements)

    def _mark(self, element: Element, schema: pa.Schema | None) -> Mark:
        match element:
            case Batch():
                return self._put(element, schema)
            case EndOfRound(round):
                return RoundMark(round)
            case Watermark(time):
                return TimeMark(time)
            case EndOfData(drain):
                return EndMark(drain)
            case EndOfPartition():
                return ClosedMark()
            case _:
                raise InternalError(f"{element} cannot be in flight at a cut")

    def _put(self, batch: Batch, schema: pa.Schema | None) -> RowsMark:
        records, tag = batch.records, batch.tag
        # behind a partitioned exchange a column follows those that are declared; such rows are plain
        if schema is not None and len(schema) == records.num_columns:
            records = plain_records(records, schema)
        table, start = self._place(records) if records.num_columns else (NO_COLUMNS, 0)
        counts = batch.counts if isinstance(batch, PickedBatch) else ()
        return RowsMark(table, start, records.num_rows, tag.round, tag.lane, tag.sequence, counts)

    def _place(self, records: pa.RecordBatch) -> tuple[int, int]:
        found = records.schema
        known = (at for at, schema in enumerate(self._schemas) if schema.equals(found, check_metadata=True))
        number = next(known, len(self._schemas))
        if number == len(self._schemas):
            self._schemas.append(found)
            self._batches.append([])
            self._rows.append(0)
        self._batches[number].append(records)
        self._rows[number] += records.num_rows
        return number, self._rows[number] - records.num_rows

    def tables(self) -> tuple[pa.Table, ...]:
        """The rows of all batches so far."""
        # one dictionary per column: a file of Arrow's IPC format takes no more
        return tuple(
            pa.Table.from_batches(batches, schema=schema).unify_dictionaries()
            for schema, batches in zip(self._schemas, self._batches, strict=True)
        )


class FlightReader:
    """Takes marks and gives the elements."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self._tables = tables
        #: rows given out, those without columns left aside
        self.rows = 0

    def take(self, marks: Iterable[Mark]) -> Iterator[Element]:
        """The elements of marks."""
        return map(self._element, marks)

    def _element(self, mark: Mark) -> Element:
        match mark:
            case RowsMark():
                return self._batch(mark)
            case RoundMark(round):
                return EndOfRound(round)
            case TimeMark(time):
                return Watermark(time)
            case EndMark(drain):
                return EndOfData(drain)
            case ClosedMark():
                return EndOfPartition()

    def _batch(self, mark: RowsMark) -> Batch:
        tag = Tag(mark.round, mark.lane, mark.sequence)
        records = self._records(mark)
        return PickedBatch(records, tag, counts=mark.counts) if mark.counts else Batch(records, tag)

    def _records(self, mark: RowsMark) -> pa.RecordBatch:
        if mark.table == NO_COLUMNS:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * mark.rows, pa.struct([])))
        table = self._tables[mark.table]
        found = table.slice(mark.start, mark.rows)
        if found.num_rows != mark.rows:
            raise InternalError(f"{mark.rows} rows in flight are to begin at row {mark.start} of {table.num_rows}")
        self.rows += mark.rows
        if not mark.rows:
            return _empty(table.schema)
        parts = found.to_batches()
        return parts[0] if len(parts) == 1 else found.combine_chunks().to_batches()[0]


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], type) for type in schema.types], schema=schema)
