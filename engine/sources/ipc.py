"""A source over Arrow IPC files, in the file or in the stream form: one split per file, in the order of the paths.

Rules:

1. A file in the *file* form knows its rows, and reading from row ``start`` loads of the record batches before it one
   column at most (the narrowest), to learn their lengths.
2. A file in the *stream* form is read from its beginning, and its length is unknown.
3. All files have the columns and types of the first one; this is checked when the job is planned.
4. Files are untrusted: pyarrow takes lengths and places as they stand there, and whoever looked at values outside of a
   damaged file would end the process. So each record batch is looked through before it is given (4 ms for a million
   short texts).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import pyarrow as pa
from pyarrow import ipc

from ..core.arguments import checked
from ..core.errors import ConfigurationError
from ..core.shown import hides_credentials
from ..files.object_store import storage_options
from ..files.paths import DataFile, absolute_paths, check_columns, check_same, from_row, list_files, with_names

_MAGIC = b"ARROW1"
"""The first bytes of the file form."""


@dataclass(frozen=True, slots=True)
class IpcSplit:
    """One file."""

    file: DataFile
    columns: tuple[str, ...]
    random_access: bool
    rows: int | None
    blocking: ClassVar[bool] = True
    trusted: ClassVar[bool] = False
    """Its bytes are known to be those that were written."""

    @property
    def id(self) -> str:
        return self.file.id

    def narrowed(self, columns: Sequence[str]) -> IpcSplit:
        """The same rows with these columns alone."""
        return replace(self, columns=tuple(columns))

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        return self._from_file(start) if self.random_access else from_row(self._from_stream(), start)

    def _from_stream(self) -> Iterator[pa.RecordBatch]:
        with self.file.reading(), self.file.open() as opened, ipc.open_stream(opened) as reader:
            for records in reader:
                yield self._given(records)

    def _from_file(self, start: int) -> Iterator[pa.RecordBatch]:
        with self.file.reading(), self.file.open() as opened:
            schema = ipc.open_file(opened).schema
            first, start = self._find(opened, schema, start)
            reader = _reader(opened, [schema.get_field_index(name) for name in self.columns])
            batches = (reader.get_batch(index) for index in range(first, reader.num_record_batches))
            yield from from_row((self._given(records) for records in batches), start)

    def _given(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are wanted (rule 4). Raises ArrowInvalid."""
        found = records.select(self.columns)
        if not self.trusted:
            found.validate(full=True)
        return found

    def _find(self, opened: pa.NativeFile, schema: pa.Schema, start: int) -> tuple[int, int]:
        """The record batch that holds row ``start``, and the row's position in it."""
        if not start:
            return 0, 0
        narrowest = sorted(range(len(schema)), key=lambda index: _width(schema.field(index).type))[:1]
        reader = _reader(opened, narrowest)  # of a file without columns all of them
        for index in range(reader.num_record_batches):
            rows = reader.get_batch(index).num_rows
            if start < rows:
                return index, start
            start -= rows
        return reader.num_record_batches, 0


def _width(kind: pa.DataType) -> int:
    """Bits per value; more than any fixed width for types that have none."""
    try:
        return int(kind.bit_width)
    except ValueError:
        return 1 << 30


def _reader(opened: pa.NativeFile, fields: list[int]) -> ipc.RecordBatchFileReader:
    return ipc.open_file(opened, options=ipc.IpcReadOptions(included_fields=fields))


@hides_credentials
@checked(ConfigurationError)
@dataclass(frozen=True)
class IpcSource:
    """Reads Arrow IPC files (Feather version 2 is the same).

    ``path``: a file, a folder (all files below it, hidden ones excepted), or a sequence of both. ``columns``: which
    ones, in which order; all by default.
    """

    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    columns: Sequence[str] | None = None
    files: Sequence[DataFile] | None = field(default=None, repr=False, compare=False)
    """Those to read, as they were recorded; None: those that are there."""
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    """Who asks the path's buckets, and where (``access_key_id``, ``endpoint``, …); else as the environment says."""
    prunable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute_paths(self.path))
        options = storage_options(absolute_paths(self.path), self.storage_options)
        object.__setattr__(self, "storage_options", options)

    @property
    def kind(self) -> str:
        return "arrow ipc"

    @cached_property
    def _files(self) -> tuple[DataFile, ...]:
        return self.listed() if self.files is None else tuple(self.files)

    def listed(self) -> tuple[DataFile, ...]:
        """The files that are there now."""
        return tuple(list_files(absolute_paths(self.path)))

    def over(self, files: Sequence[DataFile]) -> Self:
        """The same source, of these files."""
        return replace(self, files=tuple(files))

    @cached_property
    def schema(self) -> pa.Schema:
        first = self._files[0]
        _, found, _ = _look(first)
        wanted = found.names if self.columns is None else self.columns
        check_columns(wanted, found, first.path)
        return pa.schema([found.field(name) for name in wanted])

    def splits(self) -> Sequence[IpcSplit]:
        splits: list[IpcSplit] = []
        for file in self._files:
            random_access, found, rows = _look(file)
            check_same(self.schema, found, file, self._files[0], all_wanted=self.columns is None)
            splits.append(IpcSplit(file, tuple(self.schema.names), random_access, rows))
        return splits

    def describe(self) -> str:
        return ", ".join(self.schema.names)


def _look(file: DataFile) -> tuple[bool, pa.Schema, int | None]:
    """Whether the file has the file form, its schema, and its number of rows if it says so."""
    with file.planning(), file.peek() as opened:
        random_access = opened.read(len(_MAGIC)) == _MAGIC
        opened.seek(0)
        if not random_access:
            return False, with_names(ipc.open_stream(opened).schema), None
        reader = ipc.open_file(opened)
        return True, with_names(reader.schema), reader.count_rows()
