"""In which form a sink writes its files: Parquet, CSV, lines of JSON.

Rules:

1. What a format cannot hold is refused when the flow is built, by the column's name, and by the value where only that
   tells. It never becomes something else silently.
2. CSV is Arrow's: texts in quotes, a missing value is nothing, without quotes. JSON has a missing value as ``null``,
   decimals and whole numbers with all their digits; times and days are texts, as Arrow writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, fs, parquet

from ..core.errors import DataError, FlowError
from .parquet_encoding import dictionary_columns

TextCompression = Literal["none", "gzip", "zstd"]
_ENDINGS = {"none": "", "gzip": ".gz", "zstd": ".zst"}
_QUOTE, _LINE = ord('"'), ord("\n")
_PIECE = 1 << 20
_JSON_ROWS = 8 * 1024
"""Rows that are Python's objects at a time."""
_LINES = msgspec.json.Encoder(decimal_format="number")


class FileWriter(Protocol):
    """Writes one file."""

    def write_table(self, table: pa.Table) -> None:
        """These rows are the next ones; of Parquet a row group."""

    def close(self) -> None:
        """That were all."""


class FileFormat(Protocol):
    """A form of files."""

    @property
    def noun(self) -> str:
        """For people."""

    @property
    def ending(self) -> str:
        """Of the files' names: one of ``output_folder.ENDINGS``."""

    @property
    def told(self) -> str:
        """What of the options ``explain`` says."""

    def check(self, field: pa.Field) -> None:
        """Raise FlowError or ArrowException if it holds no values of the column's type."""

    def begin(self, stream: pa.NativeFile, schema: pa.Schema, first: pa.Table) -> FileWriter:
        """A file that begins with these rows, which are written after that."""

    def rows(self, filesystem: fs.FileSystem, folder: str, name: str) -> int:
        """How many rows a file has. OSError and ArrowException pass through."""


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """``compression``: a codec of Parquet's."""

    compression: str
    noun: ClassVar[str] = "Parquet"
    ending: ClassVar[str] = ".parquet"
    told: ClassVar[str] = ""

    def check(self, field: pa.Field) -> None:
        if _has_dates_within(field.type):
            raise FlowError(
                f"column {field.name!r} has type {field.type}: of dates in milliseconds within other types Parquet "
                "stores other days",
                f"cast {field.name!r} to hold date32 or timestamps before the sink",
            )
        if _holds_no_values(field.type):
            raise FlowError(
                f"column {field.name!r} has type {field.type}: lists of the fixed size 0 cannot be read back from "
                "Parquet by pyarrow if one of them is null",
                f"drop {field.name!r} before the sink, or make it a list of any size",
            )
        parquet.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())

    def rows(self, filesystem: fs.FileSystem, folder: str, name: str) -> int:
        return int(parquet.read_metadata(f"{folder}/{name}", filesystem=filesystem).num_rows)

    def begin(self, stream: pa.NativeFile, schema: pa.Schema, first: pa.Table) -> FileWriter:
        writer: FileWriter = parquet.ParquetWriter(
            stream,
            schema,
            compression=self.compression,
            use_dictionary=dictionary_columns(first),
            write_page_checksum=True,
        )
        return writer


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """``header``: the names stand in the first line."""

    delimiter: str = ","
    header: bool = True
    compression: TextCompression = "none"
    noun: ClassVar[str] = "CSV"

    @property
    def ending(self) -> str:
        return f".csv{_ENDINGS[self.compression]}"

    def check(self, field: pa.Field) -> None:
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            raise pa.ArrowNotImplementedError("bytes are no text")
        if not _is_quoted(field.type) and (self.delimiter.isalnum() or self.delimiter in _within(field.type)):
            raise FlowError(
                f"delimiter is {self.delimiter!r}, and values of column {field.name!r} ({field.type}), which stand "
                "without quotes, may have it within them",
                "give another one, or cast the column to text",
            )
        csv.write_csv(pa.table({field.name: pa.nulls(1, field.type)}), pa.BufferOutputStream())

    @property
    def told(self) -> str:
        return f", between {self.delimiter!r}" * (self.delimiter != ",") + ", without names" * (not self.header)

    def rows(self, filesystem: fs.FileSystem, folder: str, name: str) -> int:
        found, quotes, is_open = 0, 0, False
        with filesystem.open_input_stream(f"{folder}/{name}") as stream:
            while piece := stream.read(_PIECE):
                values = np.frombuffer(piece, np.uint8)
                places, ends = np.flatnonzero(values == _QUOTE), np.flatnonzero(values == _LINE)
                # a line ends a row where all quotes before it are closed
                found += int(np.count_nonzero((quotes + np.searchsorted(places, ends)) % 2 == 0))
                quotes, is_open = quotes + len(places), values[-1] != _LINE
        return max(0, found + is_open - self.header)

    def begin(self, stream: pa.NativeFile, schema: pa.Schema, first: pa.Table) -> FileWriter:
        options = csv.WriteOptions(include_header=self.header, delimiter=self.delimiter)
        return _CsvWriter(_compressed(stream, self.compression), schema, options)


class _CsvWriter:
    def __init__(self, stream: pa.NativeFile, schema: pa.Schema, options: csv.WriteOptions) -> None:
        self._stream = stream
        self._writer = csv.CSVWriter(stream, schema, write_options=options)

    def write_table(self, table: pa.Table) -> None:
        if table.num_columns == 1 and table.column(0).null_count:
            message = f"a missing value of the only column {table.column_names[0]!r} would be an empty line of CSV"
            raise DataError(f"{message}, which readers pass over", "fill it, drop such rows, or add a column")
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()
        self._stream.close()


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """One object a line."""

    compression: TextCompression = "none"
    noun: ClassVar[str] = "JSON"
    told: ClassVar[str] = ""

    @property
    def ending(self) -> str:
        return f".jsonl{_ENDINGS[self.compression]}"

    def check(self, field: pa.Field) -> None:
        pa.nulls(0, field.type).cast(_json_type(field.type))

    def rows(self, filesystem: fs.FileSystem, folder: str, name: str) -> int:
        with filesystem.open_input_stream(f"{folder}/{name}") as stream:
            return sum(bytes(piece).count(b"\n") for piece in iter(lambda: stream.read(_PIECE), b""))

    def begin(self, stream: pa.NativeFile, schema: pa.Schema, first: pa.Table) -> FileWriter:
        types = pa.schema([each.with_type(_json_type(each.type)) for each in schema]).remove_metadata()
        return _JsonWriter(_compressed(stream, self.compression), types)


class _JsonWriter:
    def __init__(self, stream: pa.NativeFile, schema: pa.Schema) -> None:
        self._stream = stream
        self._schema = schema

    def write_table(self, table: pa.Table) -> None:
        for records in table.to_batches(max_chunksize=_JSON_ROWS):
            columns = [column.cast(each.type) for column, each in zip(records.columns, self._schema, strict=True)]
            for column, each in zip(columns, self._schema, strict=True):
                _refuse_no_numbers(column, each.name)
            rows = pa.RecordBatch.from_arrays(columns, schema=self._schema).to_pylist()
            self._stream.write(_LINES.encode_lines(rows))

    def close(self) -> None:
        self._stream.close()


def _within(type: pa.DataType) -> str:
    """Besides letters and digits, what values of the type may have."""
    kind = type.value_type if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type) else type
    return " +-.:" if pa.types.is_temporal(kind) else "+-."


def _is_quoted(type: pa.DataType) -> bool:
    """Whether values of the type stand in quotes in CSV."""
    kind = type.value_type if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type) else type
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _refuse_no_numbers(column: pa.Array, name: str) -> None:
    """Raise DataError where there are values that JSON has no word for."""
    type = column.type
    if pa.types.is_floating(type):
        if pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise DataError(
                f"JSON has no NaN and no infinity, and column {name!r} has", "fill or drop such values before"
            )
    elif pa.types.is_nested(type):
        for inner in column.flatten() if pa.types.is_struct(type) else [column.flatten()]:
            _refuse_no_numbers(inner, name)


def _json_type(type: pa.DataType) -> pa.DataType:
    """In which type values become the objects that are written."""
    types = pa.types
    if types.is_dictionary(type):
        return _json_type(type.value_type)
    if types.is_temporal(type) and not types.is_duration(type) and not types.is_interval(type):
        return pa.string()
    if types.is_struct(type):
        if len({each.name for each in type}) < type.num_fields:
            raise pa.ArrowNotImplementedError("an object has each name once")
        return pa.struct([each.with_type(_json_type(each.type)) for each in type])
    if types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type):
        return pa.list_(type.value_field.with_type(_json_type(type.value_type)))
    is_number = types.is_integer(type) or types.is_floating(type) or types.is_decimal(type)
    if is_number or types.is_boolean(type) or types.is_null(type):
        return type
    if types.is_string(type) or types.is_large_string(type):
        return type
    raise pa.ArrowNotImplementedError("JSON has no such values")


def _compressed(stream: pa.NativeFile, codec: TextCompression) -> pa.NativeFile:
    return stream if codec == "none" else pa.CompressedOutputStream(stream, codec)


def _holds_no_values(type: pa.DataType) -> bool:
    """Whether there are lists of the fixed size 0 in the type."""
    if pa.types.is_fixed_size_list(type) and not type.list_size:
        return True
    return any(_holds_no_values(type.field(number).type) for number in range(type.num_fields))


def _has_dates_within(type: pa.DataType) -> bool:
    """Whether there are dates in milliseconds below the type itself."""
    inner = [type.field(number).type for number in range(type.num_fields)]
    if pa.types.is_dictionary(type):
        inner.append(type.value_type)
    return any(pa.types.is_date64(each) or _has_dates_within(each) for each in inner)


def check_fields(format: FileFormat, schema: pa.Schema) -> None:
    """Raise FlowError, naming the column, unless files of this form hold rows of the schema."""
    for each in {each.type: each for each in reversed(list(schema))}.values():
        try:
            format.check(each)
        except (pa.ArrowException, OSError) as error:  # the latter from Parquet itself: nothing is stored here
            raise FlowError(
                f"column {each.name!r} has type {each.type}, which {format.noun} cannot hold: {error}",
                f"cast or drop {each.name!r} before the sink",
            ) from error
