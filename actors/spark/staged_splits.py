"""What was staged, as splits: Arrow files as Spark's Python workers write them, Parquet files as its JVM does.

Rules:

1. A file is compared with the digest in the manifest before it is read.
2. The rows are the same by either way: a Parquet file's columns are called by their position, and what it says of
   nulls, and of names within lists and maps, is its writer's. The schema is the stage's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import msgspec
import pyarrow as pa

from ...engine.arrow.plain_types import plain_schema
from ...engine.core.errors import DamagedFileError
from ...engine.core.source import Split
from ...engine.files.paths import DataFile
from ...engine.integrity.checksums import running_digest
from ...engine.plan.sizes import leaf_bytes
from ...engine.sources.fed import PIECE_BYTES, NoRows
from ...engine.sources.ipc import IpcSplit
from ...engine.sources.parquet import PAGES_BYTES, ParquetSplit
from ...engine.sources.parquet_files import footer_of
from ..storage.damage import FROM_A_COPY

PARQUET = ".parquet"
"""What the names of Parquet files end with."""


class StagedPartition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One accepted file: its name within the run's folder, and the hash of its bytes; no name: there are no rows."""

    file: str
    rows: int
    bytes: int
    digest: str


def split_of(partition: StagedPartition, file: DataFile, schema: pa.Schema) -> Split:
    """The rows of a partition as they are read."""
    if not partition.file:
        return NoRows(file.id)
    names = tuple(schema.names)
    if partition.file.endswith(PARQUET):
        return StagedParquetSplit(file, schema, names, partition.rows, partition.digest)
    return StagedSplit(file, names, True, partition.rows, partition.digest)


def check_digest(file: DataFile, digest: str) -> None:
    """Rule 1. ``digest``: which kind, and the digest. Raises DamagedFileError."""
    kind, _, expected = digest.partition(":")
    found = running_digest() if kind == "xxh3" else hashlib.blake2b(digest_size=16)
    with file.reading(), file.open() as opened:
        while piece := opened.read(PIECE_BYTES):
            found.update(piece)
    if found.hexdigest() != expected:
        message = f"the staged partition {file.path} is damaged: its bytes are not those that were written"
        raise DamagedFileError(message, f"{FROM_A_COPY}, or start over with an empty checkpoint folder")


@dataclass(frozen=True, slots=True)
class StagedSplit(IpcSplit):
    """One accepted file. ``digest``: which kind, and the digest."""

    digest: str = ""
    trusted: ClassVar[bool] = True

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        check_digest(self.file, self.digest)
        return IpcSplit.open(self, start)


@dataclass(frozen=True, slots=True)
class StagedParquetSplit:
    """The same, for a file that Spark's JVM wrote. ``schema``: of all its columns, in their order."""

    file: DataFile
    schema: pa.Schema = field(hash=False)
    columns: tuple[str, ...]
    rows: int
    digest: str
    blocking: ClassVar[bool] = True

    @property
    def id(self) -> str:
        return self.file.id

    @property
    def open_bytes(self) -> int:
        """About what it takes to read this, without the batches that it gives: of each column some pages."""
        wanted = pa.schema([self.schema.field(name) for name in self.columns])
        return sum(min(PAGES_BYTES, 2 * self.rows * leaf) for leaf in leaf_bytes(wanted))

    def narrowed(self, columns: Sequence[str]) -> StagedParquetSplit:
        """The same rows with these columns alone."""
        return replace(self, columns=tuple(columns))

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        check_digest(self.file, self.digest)
        return rows_of(self.file, self.schema, self.columns, start)


def rows_of(file: DataFile, schema: pa.Schema, columns: Sequence[str], start: int) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file of Spark's from row ``start`` on. ``schema``: of all its columns; ``columns``: those
    that are wanted (rule 2)."""
    positions = [schema.get_field_index(name) for name in columns]
    wanted = pa.schema([schema.field(position) for position in positions])
    for records in _stored(file, positions or [0]).open(start):
        yield as_declared(records, wanted)


def _stored(file: DataFile, positions: Sequence[int]) -> ParquetSplit:
    """The file as a split with these of its columns."""
    with file.named(), file.open() as opened:
        footer = footer_of(file, opened)
    schema = plain_schema(footer.schema.to_arrow_schema().remove_metadata())
    groups = tuple((group, footer.row_group(group).num_rows) for group in range(footer.num_row_groups))
    return ParquetSplit(file, groups, file.id, schema, tuple(schema.names[at] for at in positions))


def as_declared(records: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The same values in the columns that the stage has (rule 2). Nothing is copied but what is in nested columns."""
    if not wanted.names:
        return records.select([])
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(records.columns, wanted, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
