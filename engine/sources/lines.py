"""Files in which each record ends with a line: parts of them, cut where records end and parsed block by block.

Rules:

1. A part is the records that begin at its bytes: the reader passes over the one that began before, and reads the last
   one to its end. So a large file is many splits (``PART_BYTES``), wherever they are cut. Not so a compressed file, nor
   one in which lines may end within quotes: these are one split.
2. A block that cannot be parsed is halved until the records are found that cannot. They are an error that names file
   and line; or, with ``keeps_bad``, rows of their own in their places: nothing but ``_error``, which says file, line,
   reason and text. What is bad does not depend on the columns that somebody reads.
3. Lines are counted from the file's beginning. For a part that does not begin there they are counted when one is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa

from ..core.errors import ConfigurationError, DataError, FlowError
from ..files.paths import DataFile, from_row

PART_BYTES = 64 * 1024 * 1024
"""Of a file, about as many as a row group of Parquet has."""
BLOCK_BYTES = 4 * 1024 * 1024
"""Parsed at once."""
RECORD_BYTES = 256 * 1024 * 1024
"""A longer record is an error: perhaps a quote is missing, and the rest of the file would be in memory."""
_COUNTED = 1024 * 1024
_LINE = ord("\n")
_MARK = b"\xef\xbb\xbf"
"""That some programs begin UTF-8 with."""
_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
"""By how such files begin."""
_ZIP = b"PK\x03\x04"
ERROR = "_error"
ERROR_FIELD = pa.field(
    ERROR, pa.struct([("file", pa.string()), ("line", pa.int64()), ("reason", pa.string()), ("text", pa.string())])
)


@dataclass(frozen=True, slots=True)
class Quoting:
    """Fields that begin with ``quote`` end with it; within them it is written twice. ``delimiter``: between fields."""

    quote: str
    delimiter: str

    def line_ends(self, data: bytes) -> np.ndarray:
        """Where records end, in data that begins with one."""
        values = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(values == ord(self.quote))
        # every other one begins a field, or is the second of two
        first = quotes[::2]
        before = values[first - 1]
        begins = (first == 0) | (before == ord(self.delimiter)) | (before == _LINE) | (before == ord(self.quote))
        if not begins.all():
            return self._one_by_one(data)
        ends = np.flatnonzero(values == _LINE)
        found: np.ndarray = ends[np.searchsorted(quotes, ends) % 2 == 0] + 1
        return found

    def _one_by_one(self, data: bytes) -> np.ndarray:
        """The same where quotes stand within fields that are in none."""
        quote, delimiter = re.escape(self.quote.encode()), re.escape(self.delimiter.encode())
        inside = rb"%s(?:[^%s]|%s%s)*(?:%s|\Z)" % (quote, quote, quote, quote, quote)
        field = re.compile(rb"(?:%s)?[^%s\n]*(%s|\n|\Z)" % (inside, delimiter, delimiter))
        found = [each.end() for each in field.finditer(data) if each[1] == b"\n"]
        return np.array(found, np.int64)


class RecordParser(Protocol):
    """Makes rows of records. Picklable."""

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""

    @property
    def quoting(self) -> Quoting | None:
        """In which quotes a line does not end the record; None: it always does."""

    @property
    def remedy(self) -> str:
        """What to do about a record that cannot be parsed."""

    def parse(self, data: bytes) -> pa.Table:
        """The rows of whole records. Raises ArrowInvalid."""

    def narrowed(self, columns: Sequence[str]) -> RecordParser:
        """The same rows, in these columns alone."""


@dataclass(frozen=True, slots=True)
class LineSplit:
    """The records that begin at the bytes from ``begin`` to ``end`` of a file. ``codec``: that it is compressed with;
    ``skips_first``: the first record has the names of the columns; ``columns``: those to give."""

    file: DataFile
    begin: int
    end: int
    codec: str | None
    parser: RecordParser
    columns: tuple[str, ...]
    skips_first: bool = False
    keeps_bad: bool = False
    blocking: ClassVar[bool] = True

    @property
    def id(self) -> str:
        return f"{self.file.id}#{self.begin}" if self.begin else self.file.id

    @property
    def rows(self) -> int | None:
        return None

    @property
    def open_bytes(self) -> int:
        """A block, and the next one."""
        return 3 * BLOCK_BYTES

    def narrowed(self, columns: Sequence[str]) -> LineSplit:
        """The same rows with these columns alone."""
        parser = self.parser if self.keeps_bad else self.parser.narrowed(columns)
        return replace(self, parser=parser, columns=tuple(columns))

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        return from_row(self._batches(), start)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        lines = 0
        with self.file.reading(), self.file.open() as opened:
            stream = opened if self.codec is None else pa.CompressedInputStream(opened, self.codec)
            skips, is_first = self.skips_first and not self.begin, not self.begin
            for data in blocks(stream, self.begin, self.end, self.parser.quoting):
                first = len(_MARK) if is_first and data.startswith(_MARK) else 0
                is_first = False
                if skips:
                    first, skips = int(record_ends(data, self.parser.quoting)[0]), False
                    lines += data[:first].count(b"\n")
                parts = self._parsed(data[first:], lines)
                lines += data.count(b"\n", first)
                for records in pa.concat_tables(parts).combine_chunks().to_batches() if parts else ():
                    yield records.select(list(self.columns))

    def _parsed(self, data: bytes, lines: int) -> list[pa.Table]:
        """The rows of whole records, which so many lines of the part are before."""
        try:
            found = self.parser.parse(data)
        except pa.ArrowInvalid as error:
            ends = record_ends(data, self.parser.quoting)
            if len(ends) > 1:
                middle = int(ends[len(ends) // 2 - 1])
                first = self._parsed(data[:middle], lines)
                return first + self._parsed(data[middle:], lines + data.count(b"\n", 0, middle))
            return [self._bad(data, lines, str(error))]
        if self.keeps_bad and found.num_columns:
            found = found.append_column(ERROR_FIELD, pa.nulls(found.num_rows, ERROR_FIELD.type))
        return [found] if found.num_rows else []

    def _bad(self, data: bytes, lines: int, reason: str) -> pa.Table:
        line, reason = 1 + lines + self._lines_before(), reason.partition("\n")[0]
        if not self.keeps_bad:
            raise DataError(f"line {line:,} of {self.file.path} cannot be read: {reason}", self.parser.remedy)
        text = data.rstrip(b"\r\n").decode("utf-8", "replace")
        told = {"file": self.file.id, "line": line, "reason": reason, "text": text}
        columns = [pa.nulls(1, type) for type in self.parser.schema.types]
        schema = with_error(self.parser.schema)
        return pa.Table.from_arrays([*columns, pa.array([told], ERROR_FIELD.type)], schema=schema)

    def _lines_before(self) -> int:
        """Rule 3."""
        if not self.begin:
            return 0
        # a record that began before the part ends in it
        found, left = 1, self.begin - 1
        with self.file.peek() as opened:
            while left:
                data = opened.read(min(left, _COUNTED))
                found, left = found + data.count(b"\n"), left - len(data)
        return found


def with_error(schema: pa.Schema) -> pa.Schema:
    """The schema of rows of which some cannot be read. Rule 2."""
    if ERROR in schema.names:
        remedy = "rename it in the files, or leave it out: columns=[…]"
        raise FlowError(f"the files have a column {ERROR!r}, which is to say what cannot be read", remedy)
    return pa.schema([*schema, ERROR_FIELD])


def line_splits(
    file: DataFile, parser: RecordParser, columns: Sequence[str], *, skips_first: bool = False, keeps_bad: bool = False
) -> list[LineSplit]:
    """A file in parts. Rule 1."""
    codec = codec_of(file)
    step = PART_BYTES if codec is None and parser.quoting is None else max(1, file.size)
    ends = [*range(step, file.size, step), file.size]
    begins = range(0, max(1, file.size), step)
    return [
        LineSplit(file, begin, end if codec is None else 1 << 62, codec, parser, tuple(columns), skips_first, keeps_bad)
        for begin, end in zip(begins, ends, strict=True)
    ]


def codec_of(file: DataFile) -> str | None:
    """What a file is compressed with, by its first bytes; None: it is not. Raises ConfigurationError."""
    with file.planning(), file.peek() as opened:
        begin = opened.read(4)
    if begin == _ZIP:
        raise ConfigurationError(f"{file.path} is a zip archive", "unpack it, or compress the file with gzip or zstd")
    return next((codec for magic, codec in _CODECS.items() if begin.startswith(magic)), None)


def beginning(file: DataFile, quoting: Quoting | None, bytes_wanted: int) -> bytes:
    """Whole records that a file begins with, of about so many bytes, for guesses; if none ends, what there is."""
    codec = codec_of(file)
    with file.planning(), file.peek() as opened:
        stream = opened if codec is None else pa.CompressedInputStream(opened, codec)
        data: bytes = stream.read(bytes_wanted)
        is_all = len(data) < bytes_wanted
    return (data if is_all else data[: last_end(data, quoting) or len(data)]).removeprefix(_MARK)


def blocks(stream: pa.NativeFile, begin: int, end: int, quoting: Quoting | None) -> Iterator[bytes]:
    """The records that begin at these bytes, in blocks of whole ones."""
    at, rest, is_ours = max(0, begin - 1), b"", not begin
    if begin:
        stream.seek(at)
    while piece := stream.read(BLOCK_BYTES):
        data = rest + piece
        if len(data) > RECORD_BYTES:
            raise pa.ArrowInvalid(f"a record has more than {RECORD_BYTES:,} bytes")
        if not is_ours:
            cut = data.find(b"\n") + 1
            is_ours = cut > 0
            at += cut or len(data)
            data = data[cut:] if cut else b""
            if at >= end:
                return
        if at + len(data) >= end:
            stop = data.find(b"\n", end - 1 - at) + 1
            if stop:
                yield data[:stop]
                return
            rest = data
            continue
        cut = last_end(data, quoting)
        if cut:
            yield data[:cut]
        at, rest = at + cut, data[cut:]
    if is_ours and rest:
        yield rest


def last_end(data: bytes, quoting: Quoting | None) -> int:
    """Where the last record ends that is whole; 0: none is."""
    if quoting is None:
        return data.rfind(b"\n") + 1
    ends = _line_ends(data, quoting)
    return int(ends[-1]) if len(ends) else 0


def record_ends(data: bytes, quoting: Quoting | None) -> np.ndarray:
    """Where records end; the last one does at the end."""
    ends = _line_ends(data, quoting)
    return ends if len(ends) and ends[-1] == len(data) else np.append(ends, len(data))


def _line_ends(data: bytes, quoting: Quoting | None) -> np.ndarray:
    if quoting is not None:
        return quoting.line_ends(data)
    return np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE) + 1
