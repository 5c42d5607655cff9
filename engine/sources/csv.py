"""A source over CSV files with a header line: one split per file, in the order of the paths.

Rules:

1. Types are settled once, when the job is planned: those given in ``types``, and for the other columns what the
   beginning of the first file suggests (a column that is empty there becomes a string). A later value that does not
   fit is an error that names the file and the row, never a silent change of type.
2. All files have the columns of the first one; this is checked when the job is planned.
3. CSV cannot be entered in the middle: reading from row ``start`` parses the rows before it and drops them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import pyarrow as pa
from pyarrow import csv

from ..arrow.plain_types import plain_type
from ..core.arguments import checked
from ..core.errors import ConfigurationError, DataError
from ..core.shown import hides_credentials
from ..files.object_store import storage_options
from ..files.paths import UNREADABLE, DataFile, absolute_paths, check_columns, check_same, from_row, list_files

_BLOCK_BYTES = 4 * 1024 * 1024
"""Parsed at once: some tens of thousands of ordinary rows, so that batches are neither tiny nor too long."""
_EXPANSION = 10
"""In blocks, what is taken to parse one, and what is made of it: of fields of one digit, which become eight bytes."""
_AHEAD = 33
"""Blocks that Arrow reads ahead, and the one that is parsed."""
_INFERENCE_BYTES = 16 * 1024 * 1024
"""Of the first file, looked at for types."""
_HEADER_BYTES = 64 * 1024
"""Of every file, looked at for the names of its columns."""
_COMPRESSED = (b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh")
"""How zip, gzip, zstd and bzip2 files begin."""


@dataclass(frozen=True, slots=True)
class CsvSplit:
    """One file."""

    file: DataFile
    schema: pa.Schema
    delimiter: str
    null_values: tuple[str, ...] | None
    blocking: ClassVar[bool] = True

    @property
    def id(self) -> str:
        return self.file.id

    @property
    def rows(self) -> int | None:
        return None

    @property
    def open_bytes(self) -> int:
        """What is read of the file ahead."""
        return min(self.file.size, _AHEAD * _BLOCK_BYTES)

    def narrowed(self, columns: Sequence[str]) -> CsvSplit:
        """The same rows with these columns alone."""
        return replace(self, schema=pa.schema([self.schema.field(name) for name in columns]))

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        return from_row(self._batches(), start)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        convert = _convert_options(self.null_values)
        convert.column_types = self.schema
        convert.include_columns = self.schema.names
        try:
            with self.file.reading(), self.file.open() as opened:
                # one thread: only then does an error name its row
                yield from csv.open_csv(
                    opened, csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES), _parse(self.delimiter), convert
                )
        except DataError as error:
            if error.remedy != UNREADABLE:
                raise  # it was exchanged
            remedy = "give the column a type that holds all its values: types={'column': type}; or repair the file"
            raise DataError(error.message, remedy) from error


@hides_credentials
@checked(ConfigurationError)
@dataclass(frozen=True)
class CsvSource:
    """Reads CSV files.

    ``path``: a file, a folder (all files below it, hidden ones excepted), or a sequence of both. ``types``: column to
    type, for those that should not be guessed. ``columns``: which ones, in which order; all by default.
    ``null_values``: what means "missing", in every column; by default an empty field and the usual words (NA, null)
    in columns that are not text, and nothing in text.
    """

    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    types: Mapping[str, pa.DataType] | None = field(default=None, hash=False)
    columns: Sequence[str] | None = None
    delimiter: str = ","
    null_values: Sequence[str] | None = None
    files: Sequence[DataFile] | None = field(default=None, repr=False, compare=False)
    """Those to read, as they were recorded; None: those that are there."""
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    """Who asks the path's buckets, and where (``access_key_id``, ``endpoint``, …); else as the environment says."""
    prunable: ClassVar[bool] = True
    reads_at_once: ClassVar[int] = _EXPANSION * _BLOCK_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute_paths(self.path))
        options = storage_options(absolute_paths(self.path), self.storage_options)
        object.__setattr__(self, "storage_options", options)
        object.__setattr__(self, "types", {name: plain_type(type) for name, type in (self.types or {}).items()})

    @property
    def kind(self) -> str:
        return "csv"

    @cached_property
    def _files(self) -> tuple[DataFile, ...]:
        return self.listed() if self.files is None else tuple(self.files)

    def listed(self) -> tuple[DataFile, ...]:
        """The files that are there now."""
        return tuple(list_files(absolute_paths(self.path)))

    def over(self, files: Sequence[DataFile]) -> Self:
        """The same source, of these files. Types are inferred again only if the first file is another one now."""
        made = replace(self, files=tuple(files))
        known: pa.Schema | None = self.__dict__.get("schema")
        if known is not None and files and replace(files[0], content="") == replace(self._files[0], content=""):
            made.__dict__["schema"] = known
        return made

    @cached_property
    def schema(self) -> pa.Schema:
        first, types = self._files[0], dict(self.types or {})
        found = _infer(first, self.delimiter, _convert_options(self.null_values, types), _INFERENCE_BYTES)
        wanted = found.names if self.columns is None else self.columns
        check_columns([*wanted, *types], found, first.path)
        fields = [found.field(name) for name in wanted]
        return pa.schema([each.with_type(pa.string()) if pa.types.is_null(each.type) else each for each in fields])

    def splits(self) -> Sequence[CsvSplit]:
        schema = self.schema
        nulls = None if self.null_values is None else tuple(self.null_values)
        for file in self._files:
            header = _header(file, self.delimiter)
            # only the names count here: a type that does not fit is found, with its row, when the file is read
            fields = [
                each.with_type(schema.field(each.name).type) if each.name in schema.names else each for each in header
            ]
            check_same(schema, pa.schema(fields), file, self._files[0], all_wanted=self.columns is None)
        return [CsvSplit(file, schema, self.delimiter, nulls) for file in self._files]

    def describe(self) -> str:
        nulls = "" if self.null_values is None else f"; null for {', '.join(map(repr, self.null_values))}"
        delimiter = "" if self.delimiter == "," else f"; between {self.delimiter!r}"
        return ", ".join(f"{each.name} {each.type}" for each in self.schema) + nulls + delimiter


def _parse(delimiter: str) -> csv.ParseOptions:
    return csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)


def _convert_options(
    null_values: Sequence[str] | None, types: Mapping[str, pa.DataType] | None = None
) -> csv.ConvertOptions:
    options = csv.ConvertOptions(column_types=dict(types or {}))
    if null_values is not None:
        options.null_values, options.strings_can_be_null = list(null_values), True
    return options


def _header(file: DataFile, delimiter: str) -> pa.Schema:
    """The columns of the file, of some types."""
    with file.planning(), file.peek() as opened:
        begin = opened.read(_HEADER_BYTES)
    lines = begin[: begin.rfind(b"\n") + 1] if len(begin) < file.size else begin
    if lines and lines.count(b'"') % 2 == 0 and not lines.startswith(_COMPRESSED):
        read = csv.ReadOptions(use_threads=False, block_size=_HEADER_BYTES)
        # else the cut went through a value, or something is wrong with the file
        with suppress(pa.ArrowInvalid), csv.open_csv(pa.BufferReader(lines), read, _parse(delimiter)) as reader:
            return reader.schema
    return _infer(file, delimiter, csv.ConvertOptions(), _BLOCK_BYTES)


def _infer(file: DataFile, delimiter: str, convert: csv.ConvertOptions, block_bytes: int) -> pa.Schema:
    """The columns of the file, with types that fit its first ``block_bytes``."""
    if not file.size:
        raise ConfigurationError(f"{file.path} is empty", "a CSV file needs at least a line with the column names")
    with file.planning(), file.peek() as opened:
        if opened.read(4).startswith(_COMPRESSED):
            raise ConfigurationError(f"{file.path} is compressed", "unpack it: this source reads plain text")
    read = csv.ReadOptions(use_threads=False, block_size=block_bytes)
    with file.planning(), file.peek() as opened, csv.open_csv(opened, read, _parse(delimiter), convert) as reader:
        return reader.schema
