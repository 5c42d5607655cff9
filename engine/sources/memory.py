"""A source over tables that are already in memory: one table, one split.

The tables travel with the job to whoever reads them, so this is for tests, small lookup data and examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from ..errors import FlowError
from .files import from_row


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """One table. It is pickled as Arrow IPC, so that a slice does not drag its whole parent along."""

    id: str
    table: pa.Table = field(hash=False)

    @property
    def rows(self) -> int | None:
        return int(self.table.num_rows)

    def narrowed(self, columns: Sequence[str]) -> MemorySplit:
        """The same rows with these columns alone."""
        return MemorySplit(self.id, self.table.select(list(columns)))

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        return from_row(iter(self.table.to_batches()), start)

    def __reduce__(self) -> tuple[object, ...]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as writer:
            writer.write_table(self.table)
        return _unpickle, (self.id, sink.getvalue().to_pybytes())


def _unpickle(id: str, data: bytes) -> MemorySplit:
    with pa.ipc.open_stream(data) as reader:
        return MemorySplit(id, reader.read_all())


@dataclass(frozen=True)
class MemorySource:
    """Reads ``tables``, one split each, in the order given. All tables need the same schema."""

    tables: Sequence[pa.Table] = field(hash=False)
    name: str = "memory"
    prunable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        tables = (self.tables,) if isinstance(self.tables, pa.Table) else tuple(self.tables)
        if not tables:
            raise FlowError(f"source {self.name!r} has no tables", "give at least one table; it may have no rows")
        for position, table in enumerate(tables):
            if not table.schema.equals(tables[0].schema):
                raise FlowError(
                    f"table {position} of source {self.name!r} has another schema than table 0:\n{table.schema}",
                    f"give all tables of one source this schema:\n{tables[0].schema}",
                )
        object.__setattr__(self, "tables", tables)

    @property
    def kind(self) -> str:
        return "memory"

    @property
    def schema(self) -> pa.Schema:
        return self.tables[0].schema

    def splits(self) -> Sequence[MemorySplit]:
        return [MemorySplit(f"{self.name}/{position}", table) for position, table in enumerate(self.tables)]

    def describe(self) -> str:
        return f"{self.name}: {len(self.tables)} tables with {', '.join(self.schema.names)}"
