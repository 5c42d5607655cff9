"""Parquet files as pyarrow reads them: their footers, and row groups in batches of bounded size (``parquet``)."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TypeAlias

import pyarrow as pa
from pyarrow import parquet

from ..core.errors import DataError
from ..core.operator import OUTPUT_BYTES
from ..files.object_files import files_of
from ..files.paths import ROWS_PER_BATCH, DataFile, is_local
from ..kernels.row_bits import fixed_bits, total_bits
from .parquet_index import may_be_asked

BUFFER_BYTES = 64 * 1024
"""Read at once of a column of a local file. As fast as reading a column of 6 MB at once, with a third of the memory."""
PROBE_ROWS = 256
"""Read first of a row group whose footer does not tell how wide a row is."""
GROWTH = 16
"""So many times as many rows are read next as before, at most."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
"""Bytes of a value in memory, by its physical type."""

FOOTER_BYTES = 16 * 1024 * 1024
"""Of the footers that a process keeps, as they lie in their files."""
TICK_NS = 20_000_000
"""A clock of files may be so coarse."""

_MISMATCH = "CRC checksum verification failed"
"""What pyarrow says of a page that does not fit its checksum."""


_Version: TypeAlias = tuple[object, ...]


class _Footers:
    """Those that were read last, of local files and of objects with a version."""

    def __init__(self) -> None:
        self._found: OrderedDict[_Version, parquet.FileMetaData] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def of(self, file: DataFile, read: Callable[[], parquet.FileMetaData]) -> parquet.FileMetaData:
        """That of a file; it is read if it is not there."""
        version = _version_of(file)
        with self._lock:
            found = self._found.get(version) if version is not None else None
        if found is None:
            found = read()
            if not may_be_asked(found):
                raise DataError(
                    f"{file.path} is damaged: its footer says of a column what cannot be",
                    "restore that file from a copy, or leave it out of the source",
                )
            if version is not None:
                self._put(version, found)
        return found

    def _put(self, version: _Version, footer: parquet.FileMetaData) -> None:
        with self._lock:
            if self._found.setdefault(version, footer) is footer:
                self._bytes += footer.serialized_size
            while self._bytes > FOOTER_BYTES:
                self._bytes -= self._found.popitem(last=False)[1].serialized_size


def _version_of(file: DataFile) -> _Version | None:
    """All that tells one version of a file from another; None: something may not. The time of the last change may be
    set to that of a file of the same size, as programs do that copy it; that of the entry (``ctime``) may not, but two
    changes within a tick of the clock look the same."""
    objects = files_of(file.filesystem)
    if objects is not None and file.version:
        return objects.bucket, file.path, file.size, file.version
    if not is_local(file.filesystem):
        return None
    try:
        found = os.stat(file.path)
    except OSError:
        return None  # whoever reads it says so
    if time.time_ns() - found.st_ctime_ns < TICK_NS:
        return None
    at = found.st_dev, found.st_ino, found.st_ctime_ns
    return file.path, file.size, file.modified, file.content, found.st_size, found.st_mtime_ns, *at


_FOOTERS = _Footers()


def read_footer(file: DataFile) -> parquet.FileMetaData:
    """The footer of a file that was listed a moment ago."""

    def read() -> parquet.FileMetaData:
        with file.planning(), file.peek() as opened:
            return parquet.read_metadata(opened)

    return _FOOTERS.of(file, read)


def footer_of(file: DataFile, opened: pa.NativeFile) -> parquet.FileMetaData:
    """The footer of an open file."""
    return _FOOTERS.of(file, lambda: parquet.read_metadata(opened))


def parquet_file(
    file: DataFile, opened: pa.NativeFile, footer: parquet.FileMetaData | None = None
) -> parquet.ParquetFile:
    """The file, for pyarrow to read."""
    is_far = not is_local(file.filesystem)
    return parquet.ParquetFile(
        opened,
        metadata=footer,
        pre_buffer=is_far,
        buffer_size=0 if is_far else BUFFER_BYTES,
        page_checksum_verification=True,
    )


class Pace:
    """How many rows of a row group to read next (``parquet``, rule 7): by its footer, then by the batch before. Where
    all rows have the same bits, as many as a chunk has, so that no chunk is put together of several batches."""

    def __init__(self, group: parquet.RowGroupMetaData, schema: pa.Schema) -> None:
        self._same = _rows_of_a_chunk(schema)
        self.rows = self._same or rows_at_once(group, schema.names)
        if not self._same and any(_may_be_wider(each) for each in leaves_of(group, schema.names)):
            self.rows = min(self.rows, PROBE_ROWS)
        self._has_words = any("dictionary<" in str(type) for type in schema.types)
        self._read = self._most = 0

    def read(self, records: pa.RecordBatch) -> None:
        """These were read."""
        if self._same:
            return
        self._read, self._most = self._read + records.num_rows, max(self._most, records.num_rows)
        # words count once, and bits cost a tenth
        bytes = total_bits(records) // 8 if self._has_words else records.nbytes
        fitting = records.num_rows * OUTPUT_BYTES // max(bytes, 1)
        to_chunk = ROWS_PER_BATCH - self._read % ROWS_PER_BATCH  # else chunks would be put together of two batches each
        self.rows = max(1, min(fitting, GROWTH * self._most, to_chunk))


def _rows_of_a_chunk(schema: pa.Schema) -> int | None:
    """As ``RowStream`` cuts them, if types tell that and they are fewer than ``ROWS_PER_BATCH``."""
    bits = [None if pa.types.is_dictionary(type) else fixed_bits(type) for type in schema.types]
    if None in bits:
        return None
    rows = 8 * OUTPUT_BYTES // max(1, sum(each or 0 for each in bits))
    return max(1, rows) if rows < ROWS_PER_BATCH else None


def bounded_batches(file: parquet.ParquetFile, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a row group."""
    wanted = set(columns)
    fields = [each for each in file.schema_arrow if each.name in wanted]
    pace = Pace(file.metadata.row_group(group), pa.schema(fields))
    for records in file.iter_batches(pace.rows, row_groups=[group], columns=list(columns), use_threads=False):
        pace.read(records)
        file.reader.set_batch_size(pace.rows)
        yield records


def rows_at_once(group: parquet.RowGroupMetaData, columns: Sequence[str]) -> int:
    """How many rows of a row group have about ``OUTPUT_BYTES`` bytes, as far as its footer tells."""
    bytes = sum(map(_value_bytes, leaves_of(group, columns)))
    return int(max(1, min(ROWS_PER_BATCH, group.num_rows * OUTPUT_BYTES // max(bytes, 1))))


def leaves_of(group: parquet.RowGroupMetaData, columns: Sequence[str]) -> Iterator[parquet.ColumnChunkMetaData]:
    """The leaf columns of these columns."""
    wanted = set(columns)
    leaves = map(group.column, range(group.num_columns))
    return (leaf for leaf in leaves if leaf.path_in_schema.partition(".")[0] in wanted)


def _value_bytes(leaf: parquet.ColumnChunkMetaData) -> int:
    """Of all values of a column, at least: with a dictionary a file has less than what is made of it."""
    return int(max(leaf.total_uncompressed_size, leaf.num_values * _WIDTHS.get(leaf.physical_type, 0)))


def _may_be_wider(leaf: parquet.ColumnChunkMetaData) -> bool:
    """Whether what is made of a column may be much more than the file has."""
    return leaf.has_dictionary_page and leaf.physical_type not in _WIDTHS


@contextmanager
def comparing_pages(file: DataFile, group: int, columns: Sequence[str]) -> Iterator[None]:
    """Rule 4, for whoever reads a row group."""
    try:
        yield
    except OSError as error:
        if _MISMATCH not in str(error):
            raise
        found = [name for name in columns if _is_damaged(file, group, name)]
        which = f"column {found[0]!r} of " if found else ""
        raise DataError(
            f"{file.path} is damaged: a page in {which}row group {group} does not fit its checksum",
            "restore that file from a copy, or leave it out of the source",
        ) from error


def _is_damaged(file: DataFile, group: int, column: str) -> bool:
    try:
        with file.open() as opened:
            parquet_file(file, opened).read_row_group(group, columns=[column], use_threads=False)
    except OSError as error:
        return _MISMATCH in str(error)
    return False
