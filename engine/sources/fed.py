"""Sources that the caller feeds: they have no splits when the flow is planned, and get them while it runs.

Rules:

1. A split is a table, or one file (Parquet, Arrow IPC), which is read as a whole. It carries the source's columns.
2. A file is looked at when it is added, by whoever adds it, so that a wrong one is refused there; it is then read by
   the task, and must not change meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from ..errors import ConfigurationError, FlowError
from ..shown import hides_credentials
from .files import absolute, from_row
from .ipc import IpcSource
from .parquet import ParquetSource

PARQUET, IPC = "parquet", "ipc"
"""Formats of files."""


@dataclass(frozen=True)
class FedSource:
    """A source of rows with this schema. ``name``: for the errors."""

    schema: pa.Schema
    name: str = "fed"
    fed: ClassVar[bool] = True

    @property
    def kind(self) -> str:
        return "fed"

    def splits(self) -> tuple[()]:
        return ()

    def describe(self) -> str:
        return f"split sets with {', '.join(f'{each.name} ({each.type})' for each in self.schema)}"


@dataclass(frozen=True, slots=True)
class NoRows:
    """Stands in a lane for a split that there is none of, or that is known to be empty."""

    id: str = "no split"
    rows: int = 0

    def narrowed(self, columns: Sequence[str]) -> NoRows:
        """The same."""
        return self

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        return iter(())


@dataclass(frozen=True, slots=True)
class InlineSplit:
    """Rows that travel with the order to read them, as an Arrow IPC stream."""

    id: str
    data: bytes
    rows: int | None

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(self.data) as reader:
            yield from from_row(iter(reader), start)


@hides_credentials
@dataclass(frozen=True, slots=True)
class FileSplit:
    """One file as one split. ``rows``: what it held when it was added; None: unknown."""

    id: str
    path: str
    format: str
    schema: pa.Schema
    rows: int | None
    blocking: ClassVar[bool] = True

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        splits = _source_of(self.format, self.path, self.schema.names).splits()
        return from_row((self._typed(records) for split in splits for records in split.open(0)), start)

    def _typed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the source's schema: the file's may say more, which columns are never null, say."""
        return pa.RecordBatch.from_arrays(records.columns, schema=self.schema)


def _source_of(format: str, path: str, columns: Sequence[str]) -> ParquetSource | IpcSource:
    if format == PARQUET:
        return ParquetSource(path, columns=columns, split_by="file")
    return IpcSource(path, columns=columns)


def file_split(id: str, path: str, schema: pa.Schema) -> FileSplit:
    """A file or folder that somebody adds to a source of this schema. Raises ConfigurationError or FlowError if it is
    not there or holds something else."""
    where = absolute(path)
    format = PARQUET if where.rstrip("/").endswith((".parquet", ".pq")) else IPC
    if format == IPC and not where.endswith((".arrow", ".ipc", ".feather")):
        raise ConfigurationError(
            f"the form of {path} is unknown", "give files named .parquet, .arrow, .ipc or .feather, or a table"
        )
    source = _source_of(format, where, schema.names)
    check_schema(path, source.schema, schema)
    counts = [split.rows for split in source.splits()]
    rows = None if None in counts else sum(count or 0 for count in counts)
    return FileSplit(id, where, format, schema, rows)


def check_schema(what: str, found: pa.Schema, wanted: pa.Schema) -> None:
    """Raise FlowError unless the rows have the source's columns, with their types and in their order."""
    if [(each.name, each.type) for each in found] != [(each.name, each.type) for each in wanted]:
        raise FlowError(
            f"{what} has the columns {_columns(found)}, the source takes {_columns(wanted)}",
            "select and cast them before adding the split",
        )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} ({each.type})" for each in schema)
