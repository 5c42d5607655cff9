"""Sources over lines of JSON, lines of text, and whole files.

Rules:

1. Types of JSON are settled once, when the job is planned: those given in ``types``, and for other fields what the
   beginning of the first file that has rows suggests (one that is null there becomes a string). A later field that is
   none of these is an error, unless ``columns`` says which are wanted: it would be lost silently. A field that is
   missing is null.
2. A row of text is a line, without what ends it, also an empty one. It is UTF-8.
3. A row of ``BinarySource`` is a file: its path within what the user named, and its bytes. Some files are one split, so
   that a task has more to read than to open.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import msgspec
import pyarrow as pa
from pyarrow import json

from ..arrow.plain_types import plain_type
from ..core.arguments import checked
from ..core.errors import ConfigurationError
from ..core.operator import OUTPUT_BYTES
from ..core.schemas import check_distinct
from ..core.shown import hides_credentials
from ..files.object_store import storage_options
from ..files.paths import DataFile, absolute_paths, check_columns, list_files
from .lines import BLOCK_BYTES, LineSplit, Quoting, beginning, last_end, line_splits, record_ends, with_error

_SAMPLE_BYTES = 16 * 1024 * 1024
"""Of the first file, looked at for types."""
_FEW_BYTES = 64 * 1024
"""Of it, if some of its lines cannot be read."""
_EXPANSION = 10
"""In blocks, what is taken to parse one, and what is made of it."""
FILES_PER_SPLIT = 64
_NULL = re.compile(rb"null(?<![:,\[]null)(?<![:,\[] null)")
"""Where there may be one that is no value of a field."""
_VALUES = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class JsonParser:
    """``is_strict``: a field that the schema does not have is an error."""

    schema: pa.Schema
    is_strict: bool
    quoting: ClassVar[Quoting | None] = None
    remedy: ClassVar[str] = "repair the line, give fields types that hold all values (types={…}), or say which to read"

    def parse(self, data: bytes) -> pa.Table:
        if not data.strip():
            return self.schema.empty_table()
        read = pa.schema([each.with_type(_read_as(each.type)) for each in self.schema])
        found = _read_json(data, read, "error" if self.is_strict else "ignore")
        if found.num_rows < data.count(b"\n") and found.num_rows < sum(map(bool, map(bytes.strip, data.split(b"\n")))):
            # blocks are cut between lines, so what is bad would depend on where
            raise pa.ArrowInvalid("JSON parse error: an object has more than one line")
        return found.cast(self.schema)

    def narrowed(self, columns: Sequence[str]) -> JsonParser:
        return JsonParser(pa.schema([self.schema.field(name) for name in columns]), False)


def _read_json(data: bytes, schema: pa.Schema | None, unexpected: str) -> pa.Table:
    _refuse_what_arrow_takes(data)
    read = json.ReadOptions(use_threads=False, block_size=max(len(data) + 1, 1024))
    parse = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    return json.read_json(pa.BufferReader(data), read, parse)


def _refuse_what_arrow_takes(data: bytes) -> None:
    """Raise ArrowInvalid for what Arrow's reader does not refuse: ``null`` in place of an object, which is a row, or
    ends the process; and texts that are no UTF-8."""
    for found in _NULL.finditer(data):
        begin = data.rfind(b"\n", 0, found.start()) + 1
        before = data[begin : found.start()].rstrip()
        if before and (not before.endswith(b"}") or _is_object(data[begin:].partition(b"\n")[0])):
            continue  # it is in a text, or the value of a field
        raise pa.ArrowInvalid("JSON parse error: null is no object")
    try:
        data.isascii() or data.decode()
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid("JSON parse error: invalid UTF8") from error


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(_VALUES.decode(line), dict)
    except msgspec.DecodeError:
        return False


@dataclass(frozen=True, slots=True)
class TextParser:
    """One column of lines."""

    schema: ClassVar[pa.Schema] = pa.schema([("text", pa.string())])
    quoting: ClassVar[Quoting | None] = None
    remedy: ClassVar[str] = "write the file as UTF-8, or leave it out of the source"

    def parse(self, data: bytes) -> pa.Table:
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        texts = pa.array([line.removesuffix(b"\r") for line in lines], pa.binary()).cast(pa.string())
        return pa.table([texts], schema=self.schema)

    def narrowed(self, columns: Sequence[str]) -> TextParser:
        return self


@dataclass(frozen=True)
class _Files:
    """What sources of files have in common. ``path``: a file, a folder (all files below it, hidden ones excepted), a
    glob, or a sequence of these."""

    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    files: Sequence[DataFile] | None = field(default=None, repr=False, compare=False, kw_only=True)
    """Those to read, as they were recorded; None: those that are there."""
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, compare=False, kw_only=True)
    """Who asks the path's buckets, and where (``access_key_id``, ``endpoint``, …); else as the environment says."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute_paths(self.path))
        options = storage_options(absolute_paths(self.path), self.storage_options)
        object.__setattr__(self, "storage_options", options)

    @cached_property
    def _files(self) -> tuple[DataFile, ...]:
        return self.listed() if self.files is None else tuple(self.files)

    def listed(self) -> tuple[DataFile, ...]:
        """The files that are there now."""
        return tuple(list_files(absolute_paths(self.path)))

    def over(self, files: Sequence[DataFile]) -> Self:
        """The same source, of these files."""
        return replace(self, files=tuple(files))


@hides_credentials
@checked(ConfigurationError)
@dataclass(frozen=True)
class JsonSource(_Files):
    """Reads files with an object of JSON in each line. ``types``: of fields that should not be guessed; ``columns``:
    which ones, all by default; ``keeps_bad``: lines that cannot be read are rows (``lines``)."""

    types: Mapping[str, pa.DataType] | None = field(default=None, hash=False)
    columns: Sequence[str] | None = None
    keeps_bad: bool = False
    prunable: ClassVar[bool] = True
    reads_at_once: ClassVar[int] = _EXPANSION * BLOCK_BYTES

    def __post_init__(self) -> None:
        _Files.__post_init__(self)
        object.__setattr__(self, "types", {name: plain_type(type) for name, type in (self.types or {}).items()})
        for name, type in (self.types or {}).items():
            try:
                _read_json(b"{}", pa.schema([(name, _read_as(type))]), "error")
            except pa.ArrowNotImplementedError as error:
                remedy = "read it as text, or as what JSON has, and cast it behind"
                raise ConfigurationError(f"types: JSON has no values of type {type}, as {name!r} is", remedy) from error

    @property
    def kind(self) -> str:
        return "json"

    def over(self, files: Sequence[DataFile]) -> Self:
        """The same source, of these files. Types are guessed again only if the first file is another one now."""
        made = replace(self, files=tuple(files))
        known = self.__dict__.get("_rows")
        if known is not None and files and replace(files[0], content="") == replace(self._files[0], content=""):
            made.__dict__["_rows"] = known
        return made

    @cached_property
    def _rows(self) -> pa.Schema:
        first, given = self._files[0], dict(self.types or {})
        if self.columns is not None and set(self.columns) <= set(given):
            found = pa.schema(list(given.items()))
        else:
            first, found = self._telling(given)
        wanted = found.names if self.columns is None else self.columns
        check_distinct(self.kind, "column", wanted)
        check_columns(wanted, found, first.path)
        return pa.schema([pa.field(name, _known(found.field(name).type)) for name in wanted])

    def _telling(self, given: Mapping[str, pa.DataType]) -> tuple[DataFile, pa.Schema]:
        """The first file that tells fields, and these. One without rows tells none, nor does one of bad rows alone."""
        bad: ConfigurationError | None = None
        for file in self._files:
            data = beginning(file, None, _SAMPLE_BYTES)
            try:
                found = self._guessed(data, given, file.path) if data.strip() else pa.schema([])
            except ConfigurationError as error:
                if not self.keeps_bad:
                    raise
                bad = bad or error
                continue
            if len(found):
                return file, found
        first = self._files[0]
        if given:
            return first, pa.schema(list(given.items()))
        message = f"{first.path} has no rows that tell fields"
        raise bad or ConfigurationError(message, "say them: types={'field': type}")

    def _guessed(self, data: bytes, given: Mapping[str, pa.DataType], path: str) -> pa.Schema:
        """The fields of a sample, given ones first. Lines that do not fit tell nothing if others do: where they are
        read they are errors, or rows of their own."""
        types = pa.schema([(name, _read_as(type)) for name, type in given.items()])
        try:
            found = _read_json(data, types, "infer").schema
        except pa.ArrowInvalid as error:
            few = data[: last_end(data[:_FEW_BYTES], None) or len(data)]
            parts = list(_schemas(few, types))
            if not parts:
                reason = str(error).partition("\n")[0]
                message = f"{path} is no file of JSON objects in lines: {reason}"
                remedy = "write one object in each line" + ", or give types that hold the values" * bool(given)
                raise ConfigurationError(message, remedy) from error
            found = _merged(parts)
        return pa.schema([(each.name, given.get(each.name, each.type)) for each in found])

    @property
    def schema(self) -> pa.Schema:
        return with_error(self._rows) if self.keeps_bad else self._rows

    def splits(self) -> Sequence[LineSplit]:
        parser, names = JsonParser(self._rows, self.columns is None), self.schema.names
        return [split for file in self._files for split in line_splits(file, parser, names, keeps_bad=self.keeps_bad)]

    def describe(self) -> str:
        return ", ".join(f"{each.name} {each.type}" for each in self.schema)


def _schemas(data: bytes, types: pa.Schema) -> Iterator[pa.Schema]:
    """Those of the lines that can be read, of as many together as fit each other."""
    try:
        if data.strip():
            yield _read_json(data, types, "infer").schema
    except pa.ArrowInvalid:
        ends = record_ends(data, None)
        if len(ends) > 1:
            middle = int(ends[len(ends) // 2 - 1])
            yield from _schemas(data[:middle], types)
            yield from _schemas(data[middle:], types)


def _merged(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """All fields. Where types do not fit each other the first one counts."""
    found = schemas[0]
    for each in schemas[1:]:
        for one in each:
            with suppress(pa.ArrowInvalid, pa.ArrowTypeError):
                found = pa.unify_schemas([found, pa.schema([one])], promote_options="permissive")
    return found


def _read_as(type: pa.DataType) -> pa.DataType:
    """In which type Arrow's reader takes values that become this one: days are texts, which it takes for numbers."""
    return pa.string() if pa.types.is_date(type) or pa.types.is_time(type) else type


def _known(type: pa.DataType) -> pa.DataType:
    """The type, with text where nothing is known."""
    if pa.types.is_null(type):
        return pa.string()
    if pa.types.is_struct(type):
        return pa.struct([pa.field(each.name, _known(each.type)) for each in type])
    return pa.list_(_known(type.value_type)) if pa.types.is_list(type) else type


@hides_credentials
@checked(ConfigurationError)
@dataclass(frozen=True)
class TextSource(_Files):
    """Reads lines of text."""

    reads_at_once: ClassVar[int] = _EXPANSION * BLOCK_BYTES

    @property
    def kind(self) -> str:
        return "text"

    @property
    def schema(self) -> pa.Schema:
        return TextParser.schema

    def splits(self) -> Sequence[LineSplit]:
        return [split for file in self._files for split in line_splits(file, TextParser(), ["text"])]

    def describe(self) -> str:
        return "lines"


@dataclass(frozen=True, slots=True)
class FilesSplit:
    """Some files, each a row."""

    files: tuple[DataFile, ...]
    columns: tuple[str, ...]
    blocking: ClassVar[bool] = True

    @property
    def id(self) -> str:
        return self.files[0].id

    @property
    def rows(self) -> int | None:
        return len(self.files)

    @property
    def open_bytes(self) -> int:
        """Those of a batch, and the largest file."""
        return OUTPUT_BYTES + max(file.size for file in self.files)

    def narrowed(self, columns: Sequence[str]) -> FilesSplit:
        """The same rows with these columns alone."""
        return replace(self, columns=tuple(columns))

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([BINARY.field(name) for name in self.columns])
        waiting: list[dict[str, object]] = []
        held = 0
        for file in self.files[start:]:
            waiting.append({"path": file.id, "bytes": self._bytes(file)})
            held += file.size
            if held >= OUTPUT_BYTES:
                yield pa.RecordBatch.from_pylist(waiting, schema)
                waiting, held = [], 0
        if waiting:
            yield pa.RecordBatch.from_pylist(waiting, schema)

    def _bytes(self, file: DataFile) -> bytes | None:
        if "bytes" not in self.columns:
            return None
        with file.reading(), file.open() as opened:
            data: bytes = opened.read()
        return data


BINARY = pa.schema([("path", pa.string()), ("bytes", pa.large_binary())])


@hides_credentials
@checked(ConfigurationError)
@dataclass(frozen=True)
class BinarySource(_Files):
    """Reads whole files."""

    prunable: ClassVar[bool] = True

    @property
    def kind(self) -> str:
        return "binary"

    @property
    def reads_at_once(self) -> int:
        """A batch, and the file that made it full."""
        return 2 * (OUTPUT_BYTES + max((file.size for file in self._files), default=0))

    @property
    def schema(self) -> pa.Schema:
        return BINARY

    def splits(self) -> Sequence[FilesSplit]:
        found = self._files
        parts = [found[at : at + FILES_PER_SPLIT] for at in range(0, len(found), FILES_PER_SPLIT)]
        return [FilesSplit(part, tuple(BINARY.names)) for part in parts]

    def describe(self) -> str:
        return "files"
