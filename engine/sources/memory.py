"""A source over tables that are already in memory: one table, one split.

The tables travel with the job to whoever reads them, so this is for tests, small lookup data and examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from ..arrow.plain_types import plain_batches
from ..core.errors import FlowError
from ..files.paths import from_row
from ..integrity.checksums import digest
from ..kernels.hashing import hashes

WHOLE_BYTES = 16 * 1024 * 1024
"""Tables with no more bytes than this are digested whole when a job begins: a tenth of a second."""
END_ROWS = 1024
"""Of larger ones, so many rows are digested at the beginning and at the end of each."""


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """One table. It is pickled as Arrow IPC, so that a slice does not drag its whole parent along."""

    id: str
    table: pa.Table = field(hash=False)

    @property
    def rows(self) -> int | None:
        return int(self.table.num_rows)

    @property
    def held_bytes(self) -> int:
        """All of it."""
        return int(self.table.nbytes)

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
    reads_at_once: ClassVar[int] = 0

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

    def content(self) -> str:
        """A digest of the rows: of few bytes all, else of the ends of each table."""
        whole = sum(table.nbytes for table in self.tables) <= WHOLE_BYTES
        return digest(*(part for table in self.tables for part in _rows_of(table, whole)))

    def describe(self) -> str:
        return f"{self.name}: {len(self.tables)} tables with {', '.join(self.schema.names)}"


def _rows_of(table: pa.Table, whole: bool) -> Iterator[bytes]:
    """The number of rows and their hashes; the same for equal rows, however they lie in memory."""
    yield table.num_rows.to_bytes(8, "little")
    few = whole or table.num_rows <= 2 * END_ROWS
    parts = (table,) if few else (table.slice(0, END_ROWS), table.slice(table.num_rows - END_ROWS))
    for part in parts:
        if part.num_rows:
            yield b"".join(hashes(records.columns).tobytes() for records in plain_batches(part.to_batches()))
