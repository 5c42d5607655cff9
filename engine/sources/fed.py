"""Sources that the caller feeds: they have no splits when the flow is planned, and get them while it runs.

Rules:

1. A split is a table, or one file (Parquet, Arrow IPC, CSV), which is read as a whole. It carries the source's columns.
2. Rows that the caller gave as a table may stand in a file of ours, whose digest is compared before it is read.
3. A file is looked at when it is added, by whoever adds it, so that a wrong one is refused there; it is then read by
   the task, and must not change meanwhile: names, sizes and, as far as they are digested (``files``), contents are
   compared then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from posixpath import splitext
from typing import ClassVar

import pyarrow as pa

from ..arrow.plain_types import plain_batches, plain_schema
from ..core.errors import ConfigurationError, DamagedFileError, DataError, FlowError, StorageError
from ..core.shown import hides_credentials
from ..files.listing import NEW_FILES
from ..files.paths import absolute, from_row, list_files, resolve, storage_error, with_content
from ..integrity.checksums import digest_of
from .csv import CsvSource
from .ipc import IpcSource
from .parquet import ParquetSource

PARQUET, IPC, CSV = "parquet", "ipc", "csv"
"""Formats of files."""

_ENDINGS = {".parquet": PARQUET, ".pq": PARQUET, ".arrow": IPC, ".ipc": IPC, ".feather": IPC, ".csv": CSV}
"""How a file's name tells its format."""

PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class FedSource:
    """A source of rows with this schema. ``name``: for the errors."""

    schema: pa.Schema
    name: str = "fed"
    fed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", plain_schema(self.schema))

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
    digest: str = ""
    """Of its bytes; empty: it is the caller's file."""
    listing: str = ""
    """What the caller's file was when it was added (``listing_of``); empty: unknown."""
    blocking: ClassVar[bool] = True

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        if self.digest:
            self._compare()
        if self.listing and self.listing != listing_of(self.path):
            raise DataError(f"{self.path} is another one than when it was added as split {self.id}", NEW_FILES)
        splits = _source_of(self.format, self.path, self.schema).splits()
        return from_row((self._typed(records) for split in splits for records in plain_batches(split.open(0))), start)

    def _compare(self) -> None:
        filesystem, path = resolve(self.path)
        remedy = "restore that file from a copy of the checkpoint folder"
        try:
            with filesystem.open_input_stream(path) as stream:
                found = digest_of(iter(lambda: stream.read(PIECE_BYTES), b""))
        except FileNotFoundError as error:
            raise StorageError(f"{self.path}, which holds split {self.id}, is gone", remedy) from error
        except OSError as error:
            raise storage_error("read", self.path, error) from error
        if found != self.digest:
            message = f"{self.path}, which holds split {self.id}, cannot be read: its bytes are not those written"
            raise DamagedFileError(message, remedy)

    def _typed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the source's schema: the file's may say more, which columns are never null, say."""
        return pa.RecordBatch.from_arrays(records.columns, schema=self.schema)


def _source_of(format: str, path: str, schema: pa.Schema) -> ParquetSource | IpcSource | CsvSource:
    columns = schema.names
    if format == PARQUET:
        return ParquetSource(path, columns=columns, split_by="file")
    if format == CSV:
        return CsvSource(path, columns=columns, types={field.name: field.type for field in schema})
    return IpcSource(path, columns=columns)


def file_split(id: str, path: str, schema: pa.Schema) -> FileSplit:
    """A file or folder that somebody adds to a source of this schema. Raises ConfigurationError or FlowError if it is
    not there or holds something else."""
    where = absolute(path)
    format = _ENDINGS.get(splitext(where.rstrip("/"))[1])
    if format is None:
        raise ConfigurationError(
            f"the form of {path} is unknown", f"give files named {', '.join(_ENDINGS)}, or a table"
        )
    source = _source_of(format, where, schema)
    check_schema(path, source.schema, schema)
    counts = [split.rows for split in source.splits()]
    rows = None if None in counts else sum(count or 0 for count in counts)
    return FileSplit(id, where, format, schema, rows, listing=listing_of(where))


def listing_of(path: str) -> str:
    """A digest of the files that the path names: their names, sizes, and their ETags or what is known cheaply of their
    content; where nothing is, their times."""
    files = with_content(list_files((path,)))
    found = [(file.id, file.size, file.version or file.content or file.modified) for file in files]
    return digest_of([repr(found).encode()])


def check_schema(what: str, found: pa.Schema, wanted: pa.Schema) -> None:
    """Raise FlowError unless the rows have the source's columns, with their types and in their order. Views count as
    what they become (``plain_types``)."""
    if [(each.name, each.type) for each in plain_schema(found)] != [(each.name, each.type) for each in wanted]:
        raise FlowError(
            f"{what} has the columns {_columns(found)}, the source takes {_columns(wanted)}",
            "select and cast them before adding the split",
        )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} ({each.type})" for each in schema)
