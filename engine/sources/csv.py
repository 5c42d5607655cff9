"""A source over CSV files: one split per file, in the order of the paths.

Rules:

1. Types are settled once, when the job is planned: those given in ``types``, and for the other columns what the
   beginning of the first file suggests (a column that is empty there becomes a string). A later value that does not
   fit is an error that names the file and the row, never a silent change of type.
2. All files have the columns of the first one; this is checked when the job is planned.
3. CSV cannot be entered in the middle: reading from row ``start`` parses the rows before it and drops them.
4. With ``keeps_bad`` rows that cannot be read are rows of their own (``lines``); a file is parsed block by block then.
5. Whether a file is compressed, its first bytes tell.
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
from ..core.schemas import check_distinct
from ..core.shown import hides_credentials
from ..files.object_store import storage_options
from ..files.paths import (
    UNREADABLE,
    DataFile,
    absolute_paths,
    check_columns,
    check_same,
    from_row,
    list_files,
    with_names,
)
from .lines import LineSplit, Quoting, beginning, codec_of, line_splits, with_error

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

REMEDY = "give the column a type that holds all its values: types={'column': type}; or repair the file"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How files are written. ``quote``: "" if nothing is in quotes; ``names``: of the columns, if the first line does
    not tell them; ``null_values`` as in :class:`CsvSource`."""

    delimiter: str = ","
    quote: str = '"'
    names: tuple[str, ...] | None = None
    null_values: tuple[str, ...] | None = None

    @property
    def quoting(self) -> Quoting | None:
        """How lines are quoted (``lines``)."""
        return Quoting(self.quote, self.delimiter) if self.quote else None

    def parse(self) -> csv.ParseOptions:
        """For Arrow."""
        return csv.ParseOptions(delimiter=self.delimiter, quote_char=self.quote or False, newlines_in_values=True)

    def read(self, block_bytes: int) -> csv.ReadOptions:
        """For Arrow. One thread: only then does an error name its row."""
        return csv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=self.names)

    def convert(self, types: Mapping[str, pa.DataType] | None = None) -> csv.ConvertOptions:
        """For Arrow."""
        options = csv.ConvertOptions(column_types=dict(types or {}))
        if self.null_values is not None:
            options.null_values, options.strings_can_be_null = list(self.null_values), True
        return options


@dataclass(frozen=True, slots=True)
class CsvParser:
    """``dialect``: with the names of this file's columns."""

    schema: pa.Schema
    dialect: Dialect
    remedy: ClassVar[str] = REMEDY

    @property
    def quoting(self) -> Quoting | None:
        return self.dialect.quoting

    def parse(self, data: bytes) -> pa.Table:
        if not data.strip(b"\r\n"):
            return self.schema.empty_table()
        convert = self.dialect.convert()
        convert.column_types, convert.include_columns = self.schema, self.schema.names
        return csv.read_csv(pa.BufferReader(data), self.dialect.read(len(data) + 1), self.dialect.parse(), convert)

    def narrowed(self, columns: Sequence[str]) -> CsvParser:
        return replace(self, schema=pa.schema([self.schema.field(name) for name in columns]))


@dataclass(frozen=True, slots=True)
class CsvSplit:
    """One file."""

    file: DataFile
    schema: pa.Schema
    dialect: Dialect
    codec: str | None
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
        convert = self.dialect.convert()
        convert.column_types = self.schema
        convert.include_columns = self.schema.names
        try:
            with self.file.reading(), self.file.open() as opened:
                stream = _ended(self.file, opened, self.codec)
                yield from csv.open_csv(stream, self.dialect.read(_BLOCK_BYTES), self.dialect.parse(), convert)
        except DataError as error:
            if error.remedy != UNREADABLE:
                raise  # it was exchanged
            raise DataError(error.message, REMEDY) from error


@hides_credentials
@checked(ConfigurationError)
@dataclass(frozen=True)
class CsvSource:
    """Reads CSV files.

    ``path``: a file, a folder (all files below it, hidden ones excepted), a glob, or a sequence of these. ``types``:
    column to type, for those that should not be guessed. ``columns``: which ones, in which order; all by default.
    ``null_values``: what means "missing", in every column; by default an empty field and the usual words (NA, null)
    in columns that are not text, and nothing in text. ``quote``: "" if nothing is in quotes. ``column_names``: those of
    files whose first line does not tell them.
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
    quote: str = '"'
    column_names: Sequence[str] | None = None
    keeps_bad: bool = False
    prunable: ClassVar[bool] = True
    reads_at_once: ClassVar[int] = _EXPANSION * _BLOCK_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute_paths(self.path))
        options = storage_options(absolute_paths(self.path), self.storage_options)
        object.__setattr__(self, "storage_options", options)
        object.__setattr__(self, "types", {name: plain_type(type) for name, type in (self.types or {}).items()})
        for name, given, least in (("delimiter", self.delimiter, 1), ("quote", self.quote, 0)):
            if not least <= len(given.encode()) <= 1 or given in ("\n", "\r"):
                raise ConfigurationError(f"{name} is {given!r}", "give one character of ASCII")
        if self.column_names is not None and not self.column_names:
            raise ConfigurationError(
                "column_names is empty", "name the columns, or leave it out: the first line has them"
            )

    @cached_property
    def _dialect(self) -> Dialect:
        names = None if self.column_names is None else tuple(self.column_names)
        nulls = None if self.null_values is None else tuple(self.null_values)
        return Dialect(self.delimiter, self.quote, names, nulls)

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
        known: pa.Schema | None = self.__dict__.get("_rows")
        if known is not None and files and replace(files[0], content="") == replace(self._files[0], content=""):
            made.__dict__["_rows"] = known
        return made

    @property
    def schema(self) -> pa.Schema:
        return with_error(self._rows) if self.keeps_bad else self._rows

    @cached_property
    def _rows(self) -> pa.Schema:
        first, types = self._files[0], dict(self.types or {})
        # values that do not fit the types given are rows of their own then, in the sample too
        guessed = {} if self.keeps_bad else types
        found = _infer(first, self._dialect, guessed, _INFERENCE_BYTES, self.keeps_bad)
        wanted = found.names if self.columns is None else self.columns
        check_distinct(self.kind, "column", wanted)
        check_columns([*wanted, *types], found, first.path)
        fields = [pa.field(name, types.get(name, found.field(name).type)) for name in wanted]
        return pa.schema([each.with_type(pa.string()) if pa.types.is_null(each.type) else each for each in fields])

    def splits(self) -> Sequence[CsvSplit | LineSplit]:
        schema = self._rows
        found: list[CsvSplit | LineSplit] = []
        for file in self._files:
            header = _header(file, self._dialect, self.keeps_bad)
            # only the names count here: a type that does not fit is found, with its row, when the file is read
            fields = [
                each.with_type(schema.field(each.name).type) if each.name in schema.names else each for each in header
            ]
            check_same(schema, pa.schema(fields), file, self._files[0], all_wanted=self.columns is None)
            if self.keeps_bad:
                parser = CsvParser(schema, replace(self._dialect, names=tuple(header.names)))
                skips = self.column_names is None
                found += line_splits(file, parser, self.schema.names, skips_first=skips, keeps_bad=True)
            else:
                found.append(CsvSplit(file, schema, self._dialect, codec_of(file)))
        return found

    def describe(self) -> str:
        nulls = "" if self.null_values is None else f"; null for {', '.join(map(repr, self.null_values))}"
        delimiter = "" if self.delimiter == "," else f"; between {self.delimiter!r}"
        quote = "" if self.quote == '"' else f"; in {self.quote!r}"
        names = "" if self.column_names is None else "; without names"
        columns = ", ".join(f"{each.name} {each.type}" for each in self.schema)
        return f"{columns}{nulls}{delimiter}{quote}{names}"


def _header(file: DataFile, dialect: Dialect, passes_bad: bool) -> pa.Schema:
    """The columns of the file, of some types."""
    lines = beginning(file, dialect.quoting, _HEADER_BYTES) if file.size else b""
    if lines:
        # else the cut went through a value, or something is wrong with the file
        with (
            file.planning(),
            suppress(pa.ArrowInvalid),
            csv.open_csv(
                pa.BufferReader(lines), dialect.read(_HEADER_BYTES), _parse(dialect, passes_bad), dialect.convert()
            ) as reader,
        ):
            return with_names(reader.schema)
    return _infer(file, dialect, {}, _BLOCK_BYTES, passes_bad)


def _ended(file: DataFile, opened: pa.NativeFile, codec: str | None) -> pa.NativeFile:
    """The content of an opened file. One line that nothing ends gets an end: Arrow would see nothing in it."""

    def content(of: pa.NativeFile) -> pa.NativeFile:
        return of if codec is None else pa.CompressedInputStream(of, codec)

    if file.size > _HEADER_BYTES:
        return content(opened)
    all_of_it = opened.read()
    data: bytes = content(pa.BufferReader(all_of_it)).read(_HEADER_BYTES)
    if len(data) == _HEADER_BYTES or b"\n" in data or b"\r" in data:
        return content(pa.BufferReader(all_of_it))
    return pa.BufferReader(data + b"\n")


def _parse(dialect: Dialect, passes_bad: bool) -> csv.ParseOptions:
    options = dialect.parse()
    if passes_bad:
        options.invalid_row_handler = lambda row: "skip"
    return options


def _infer(
    file: DataFile, dialect: Dialect, types: Mapping[str, pa.DataType], block_bytes: int, passes_bad: bool
) -> pa.Schema:
    """The columns of the file, with types that fit its first ``block_bytes``. ``passes_bad``: rows of another number of
    fields tell nothing."""
    if not file.size:
        raise ConfigurationError(f"{file.path} is empty", "a CSV file needs at least a line with the column names")
    codec = codec_of(file)
    with file.planning(), file.peek() as opened:
        stream = _ended(file, opened, codec)
        parse = _parse(dialect, passes_bad)
        with csv.open_csv(stream, dialect.read(block_bytes), parse, dialect.convert(types)) as reader:
            return with_names(reader.schema)
