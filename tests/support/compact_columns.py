"""Rows with columns in their compact forms, and a source that gives such, whoever stands behind it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.engine.arrow.compact import as_decimals, as_records, compact_type
from penstock.engine.plan.rounds import RowStream
from penstock.engine.sources.memory import MemorySource, MemorySplit
from penstock.engine.sources.picking import Pick


def compacted(records: pa.RecordBatch, chooser: random.Random | None = None) -> pa.RecordBatch:
    """The rows with every column in its compact form, if it has one; with a chooser some of the columns."""
    columns = [compact(column) if chooser is None or chooser.random() < 0.7 else column for column in records.columns]
    return as_records(columns, records.schema)


def compact(column: pa.Array) -> pa.Array:
    """The column in its compact form, or as it is."""
    form = compact_type(column.type)
    if form is None:
        return column
    if pa.types.is_dictionary(form):
        return column.dictionary_encode()
    values = [0 if value is None else int(value.scaleb(form.scale)) for value in column.to_pylist()]
    if any(not -(2**63) <= value < 2**63 for value in values):
        return column
    return as_decimals(np.array(values, np.int64), form, column.is_valid() if column.null_count else None)


@dataclass(frozen=True, slots=True)
class CompactSplit(MemorySplit):
    """One table, of which some columns of each batch are compact."""

    def narrowed(self, columns: list[str]) -> CompactSplit:
        return CompactSplit(self.id, self.table.select(list(columns)))

    def column_stream(self, start: int, pick: Pick | None, compact: bool) -> _CompactStream | None:
        return _CompactStream(MemorySplit.open(self, start), random.Random(start)) if compact else None


class _CompactStream:
    """Chunks of which nothing is picked."""

    def __init__(self, rows: Iterator[pa.RecordBatch], chooser: random.Random) -> None:
        self._rows = RowStream(rows)
        self._chooser = chooser

    def chunks(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        for records in self._rows.chunks(limit):
            yield compacted(records, self._chooser)


class CompactSource(MemorySource):
    """A memory source of such splits."""

    def splits(self) -> list[CompactSplit]:
        return [CompactSplit(split.id, split.table) for split in super().splits()]
