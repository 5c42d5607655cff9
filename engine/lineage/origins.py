"""Where rows come from: a column that names the split and the row that each row was read as.

Rules:

1. An *origin* is one number: the split's, counted over all sources, and the row's within the split as its file holds it
   (also where a filter is applied while the file is read). A *span* is two origins of one split, first and last: the
   row is one of these. Equal ones: exactly this row. ``NOWHERE`` stands for a row of which nothing is known.
2. In a flow in which all operators work row by row the column holds one origin (``ONE``). Where rows are made of
   several rows, or it is only known of which chunk, it holds a list of spans (``SPANS``), from the source on. Null:
   nothing is known.
3. The column changes neither rows nor their order: those depend on tags, positions and the columns that are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrow.plain_types import plain_batches
from ..core.source import SourceConfig, Split
from ..sources.parquet import ParquetSplit

ORIGIN = "__penstock_origin"
ONE = pa.int64()
SPANS = pa.list_(pa.int64())
"""First and last origin of each span, one span behind the other."""

NOWHERE = -1
_ROW_BITS = 40
_ROWS = (1 << _ROW_BITS) - 1

Numbers = npt.NDArray[np.int64]


def origins_of(split: int, rows: Numbers) -> Numbers:
    """The origins of rows of the split with this number."""
    return (np.int64(split) << np.int64(_ROW_BITS)) | rows


def split_numbers(origins: Numbers) -> Numbers:
    """The number of each one's split; negative for NOWHERE."""
    return origins >> _ROW_BITS


def rows_within(origins: Numbers) -> Numbers:
    """The row of each one within its split."""
    return origins & _ROWS


def exact_spans(origins: Numbers) -> pa.Array:
    """A list of one span for each origin."""
    offsets = np.arange(0, 2 * len(origins) + 1, 2, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.repeat(origins, 2)))


def spans_of(column: pa.Array) -> tuple[Numbers, Numbers]:
    """How many spans each row of an origin column has, and all spans, as pairs, one behind the other. A row of which
    nothing is known has one, of NOWHERE."""
    if column.type == ONE:
        found = np.repeat(column.fill_null(NOWHERE).to_numpy(zero_copy_only=False), 2)
        return np.ones(len(column), dtype=np.int64), found.reshape(-1, 2)
    filled = column.fill_null(pa.scalar([NOWHERE, NOWHERE], SPANS))
    counts = filled.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64) // 2
    return counts, filled.flatten().to_numpy(zero_copy_only=False).reshape(-1, 2)


def united_spans(spans: Numbers) -> Numbers:
    """One span for each split that the spans are of: from the first row to the last."""
    splits = split_numbers(spans[:, 0])
    found = [(spans[splits == each, 0].min(), spans[splits == each, 1].max()) for each in np.unique(splits).tolist()]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class EmptySplit:
    """In place of a split that is not read."""

    id: str
    rows: int | None = None

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        return iter(())


@dataclass(frozen=True, slots=True)
class TracedSplit:
    """A split whose rows say where they are from. ``number``: its own, in every epoch; ``schema``: with the origin."""

    split: Split
    number: int
    schema: pa.Schema

    @property
    def id(self) -> str:
        return self.split.id

    @property
    def rows(self) -> int | None:
        return self.split.rows

    @property
    def blocking(self) -> bool:
        return bool(getattr(self.split, "blocking", False))

    @property
    def may_be_poison(self) -> bool:
        return bool(getattr(self.split, "may_be_poison", True))

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        for records, rows in numbered(self.split, start):
            origins = origins_of(self.number, rows)
            column = pa.array(origins) if self.schema.field(ORIGIN).type == ONE else exact_spans(origins)
            yield pa.RecordBatch.from_arrays([*records.columns, column], schema=self.schema)


def numbered(split: Split, start: int) -> Iterator[tuple[pa.RecordBatch, Numbers]]:
    """The rows of a split from row ``start`` on, and the number of each as the file counts them."""
    if isinstance(split, ParquetSplit) and split.filter is not None:
        yield from _filtered(split, start)
        return
    for records in plain_batches(split.open(start)):
        yield records, np.arange(start, start + records.num_rows)
        start += records.num_rows


def _filtered(split: ParquetSplit, start: int) -> Iterator[tuple[pa.RecordBatch, Numbers]]:
    """Read without the filter, which is then applied to numbered rows; ``start`` counts those that pass."""
    whole = replace(split, filter=None, columns=tuple(split.file_schema.names))
    schema = pa.schema([split.file_schema.field(name) for name in split.columns])
    row = 0
    for records in plain_batches(whole.open(0)):
        rows = pa.array(np.arange(row, row + records.num_rows))
        row += records.num_rows
        passing = pa.Table.from_batches([records]).append_column(ORIGIN, rows).filter(split.filter)
        skipped = min(start, passing.num_rows)
        start -= skipped
        for found in passing.slice(skipped).combine_chunks().to_batches():
            columns = [found.column(name) for name in split.columns]
            yield pa.RecordBatch.from_arrays(columns, schema=schema), found.column(ORIGIN).to_numpy()


@dataclass(frozen=True, eq=False)
class TracedSource:
    """A source whose rows say where they are from. ``given``: its splits, the first of which has number ``first``;
    those in ``skipped`` have no rows."""

    source: SourceConfig
    given: tuple[Split, ...]
    rows: pa.Schema
    """Of the splits."""
    first: int
    type: pa.DataType | None
    """Of the origins; None: they are not wanted."""
    skipped: frozenset[str] = field(default=frozenset())

    @property
    def kind(self) -> str:
        return self.source.kind

    @property
    def schema(self) -> pa.Schema:
        schema = self.rows
        return schema if self.type is None else schema.append(pa.field(ORIGIN, self.type))

    def splits(self) -> Sequence[Split]:
        return [self._traced(split, self.first + at) for at, split in enumerate(self.given)]

    def describe(self) -> str:
        return self.source.describe()

    def _traced(self, split: Split, number: int) -> Split:
        if split.id in self.skipped:
            return EmptySplit(split.id)
        return split if self.type is None else TracedSplit(split, number, self.schema)
