"""Columns of Parquet files, flat or of lists of one length, decoded by ``pages.c``: page by page, at several times the
speed of pyarrow's reader.

In: the bytes of a file, and what pyarrow read of its footer. Out: arrays of the type that pyarrow gives, with the same
values, or in a compact form. Rules:

1. What is not handled here is None at once (``column_reader``), or raises ``DoubtfulPage`` when its page is met. Then
   the column is left to pyarrow, from the row on that the failed call began with.
2. A reader has no row group in memory: a page, a dictionary, a block of the file, and what it gives away.
3. Compact forms: a text or binary column as codes of the dictionary of its row group, where that is small and its words
   are all different; decimals of at most 18 digits as the digits, in 64 bits. A call gives them where it is asked to
   and all of its pages allow it.
4. Text is not checked to be UTF-8, as pyarrow does not check it.
5. What a skipped page holds is not looked at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from .native import BRIEF
from .page_library import PageLibrary, address, page_library
from .page_stream import (
    BLOCK,
    CODECS,
    DONE,
    ENCODINGS,
    NEEDS_TEXT_ROOM,
    NEEDS_WORDS,
    OTHER_FORM,
    DoubtfulPage,
    Fetch,
    PageStream,
    WholeLists,
)
from .pieces import Positions

MOST_WORDS = 32 * 1024
FEW_WORDS = 256
ROWS_PER_WORD = 8
"""A dictionary stays one up to so many words, if it has few or the row group has so many rows for each."""
_LONGEST_TEXT = (1 << 31) - 1 - 64
_WIDEST_DECIMAL = 16
_DIGITS_64 = 18
_SPARE = 1.125
"""So much more room is made than the rows before had needed."""

_PLAIN, _WORDS, _DELTA, _SPLIT, _BITS, _BOOLEANS, _LENGTHS, _PREFIXES = range(8)
"""Where the values of a page come from."""
_SAME, _TO_8, _TO_16, _TO_64, _TO_128, _BIG_TO_64, _BIG_TO_128, _AS_TEXT, _AS_CODES = range(9)
"""What is made of a value."""
_WORDS_MET, _WORDS_READ = 1, 2

_TEXT, _FIXED, _BOOLEAN = "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY", "BOOLEAN"
_WIDTHS = {_BOOLEAN: 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, _TEXT: 0}
_WHOLE = ("INT32", "INT64")
_SOURCES = {
    0: (_PLAIN, (*_WHOLE, "FLOAT", "DOUBLE", _FIXED, _TEXT, _BOOLEAN)),
    2: (_WORDS, (*_WHOLE, "FLOAT", "DOUBLE", _FIXED, _TEXT)),
    3: (_BOOLEANS, (_BOOLEAN,)),
    5: (_DELTA, _WHOLE),
    6: (_LENGTHS, (_TEXT,)),
    7: (_PREFIXES, (_TEXT, _FIXED)),
    8: (_WORDS, (*_WHOLE, "FLOAT", "DOUBLE", _FIXED, _TEXT)),
    9: (_SPLIT, (*_WHOLE, "FLOAT", "DOUBLE", _FIXED)),
}
"""By the encoding of a page: where values come from, and for which physical types."""

_NO_PICKS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Form:
    """How values lie in a file and become those of a type."""

    physical: str
    width: int
    """Of a value in the file; 0: it is a text."""
    type: pa.DataType
    kind: int
    out_width: int
    compact_type: pa.DataType | None = None
    compact_kind: int = _SAME

    @property
    def is_text(self) -> bool:
        """Whether it becomes text or binary values."""
        return self.kind == _AS_TEXT

    @property
    def sources(self) -> list[int]:
        """Where values come from, by the encoding of a page; -1: it has none of these."""
        found = [-1] * ENCODINGS
        for encoding, (source, physical) in _SOURCES.items():
            if self.physical in physical:
                found[encoding] = _BITS if source == _PLAIN and self.physical == _BOOLEAN else source
        return found


def column_reader(fetch: Fetch, metadata: Any, group: int, leaf: int, type: pa.DataType) -> ColumnReader | None:
    """A reader of a leaf column of a row group as values of ``type``; None: pyarrow has to read it.

    ``fetch``: as in ``page_stream``. ``metadata``: pyarrow's FileMetaData. ``type``: what its ``to_arrow_schema``
    says of the column, or the ``string`` or ``binary`` that is its plain type.
    """
    library = page_library()
    column = metadata.schema.column(leaf)
    if library is None or column.max_repetition_level or column.max_definition_level > 1 or "." in column.path:
        return None
    return _reader(library, fetch, metadata, group, leaf, type, None)


def list_reader(fetch: Fetch, metadata: Any, group: int, leaf: int, type: Any) -> ListReader | None:
    """The same for the leaf of a column of lists of one length (``is_whole_lists``), as rows of that type; None: it is
    read by pyarrow, as where a row is null."""
    library = page_library()
    column, stored = metadata.schema.column(leaf), _stored(type)
    if library is None or column.max_repetition_level != 1 or stored.list_size < 1:
        return None
    lists = WholeLists(stored.list_size, column.max_definition_level)
    values = _reader(library, fetch, metadata, group, leaf, stored.value_type, lists)
    return ListReader(values, type) if isinstance(values, NumberReader) else None


def is_whole_lists(type: pa.DataType) -> bool:
    """Whether it has lists of one length, or tensors of one shape, which are stored as such."""
    return bool(pa.types.is_fixed_size_list(_stored(type)))


def _stored(type: Any) -> Any:
    return type.storage_type if isinstance(type, pa.BaseExtensionType) else type


def _reader(
    library: PageLibrary,
    fetch: Fetch,
    metadata: Any,
    group: int,
    leaf: int,
    type: pa.DataType,
    lists: WholeLists | None,
) -> ColumnReader | None:
    column = metadata.schema.column(leaf)
    form = _form(column.physical_type, column.length, column.logical_type.to_json(), type)
    row_group = metadata.row_group(group)
    chunk = row_group.column(leaf)
    rows = row_group.num_rows * (1 if lists is None else lists.length)
    if form is None or chunk.compression not in CODECS or chunk.num_values != rows or chunk.file_path:
        return None
    begin, end = chunk_range(chunk)
    if not 0 <= begin <= end or rows < 0:
        return None
    nullable = lists is None and bool(column.max_definition_level)
    says = {"rows": rows, "nullable": nullable, "width": form.width, "sources": form.sources, "lists": lists}
    pages = PageStream(library, fetch, begin, end, chunk.compression, **says)
    return (TextReader if form.is_text else NumberReader)(library, pages, form, rows, nullable)


def chunk_range(chunk: Any) -> tuple[int, int]:
    """Where the pages of a column chunk (pyarrow's ColumnChunkMetaData) begin and end, as it says."""
    begin = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < begin:
        begin = chunk.dictionary_page_offset
    return begin, begin + chunk.total_compressed_size


def is_stored_as(column: Any, type: pa.DataType) -> bool:
    """Whether the values of a column (pyarrow's ColumnSchema) are those of ``type``, bit by bit or digit by digit."""
    return _form(column.physical_type, column.length, column.logical_type.to_json(), type) is not None


@lru_cache(maxsize=1024)
def _form(physical: str, length: int, logical: str, type: pa.DataType) -> _Form | None:
    width = length if physical == _FIXED else _WIDTHS.get(physical)
    if width is None or (physical == _FIXED and length < 1):
        return None
    says = json.loads(logical)
    name, types = says["Type"], pa.types
    if types.is_decimal128(type):
        fits = name == "Decimal" and (says["precision"], says["scale"]) == (type.precision, type.scale)
        return _decimals(physical, width, type) if fits else None
    if types.is_string(type) or types.is_binary(type) or types.is_large_string(type) or types.is_large_binary(type):
        fits = physical == _TEXT and name in ("None", "String", "JSON", "Enum", "BSON")
        return _Form(physical, width, type, _AS_TEXT, 0) if fits else None
    if _fits(physical, length, name, says, type):
        narrow = {8: _TO_8, 16: _TO_16}.get(type.bit_width, _SAME) if physical == "INT32" else _SAME
        return _Form(physical, width, type, narrow, max(type.bit_width // 8, 1))
    return None


def _decimals(physical: str, width: int, type: pa.DataType) -> _Form | None:
    compact = pa.decimal64(_DIGITS_64, type.scale) if type.precision <= _DIGITS_64 else None
    match physical:
        case "INT32":
            return _Form(physical, width, type, _TO_128, 16, compact, _TO_64)
        case "INT64":
            return _Form(physical, width, type, _TO_128, 16, compact, _SAME)
        case "FIXED_LEN_BYTE_ARRAY" if width <= _WIDEST_DECIMAL:
            return _Form(physical, width, type, _BIG_TO_128, 16, compact if width <= 8 else None, _BIG_TO_64)
        case "BYTE_ARRAY":
            return _Form(physical, width, type, _BIG_TO_128, 16)
        case _:
            return None


def _fits(physical: str, length: int, name: str, says: dict[str, Any], type: pa.DataType) -> bool:
    """Whether the bits of a value are those in the file, or the lower ones."""
    types = pa.types
    if types.is_boolean(type):
        return physical == _BOOLEAN
    if types.is_integer(type):
        bits, signed = (says["bitWidth"], says["isSigned"]) if name == "Int" else (8 * _WIDTHS.get(physical, 0), True)
        fits = (bits, signed) == (type.bit_width, types.is_signed_integer(type)) and name in ("Int", "None")
        return fits and physical == ("INT64" if bits == 64 else "INT32")
    if types.is_timestamp(type) or types.is_time(type):
        unit = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}.get(says.get("timeUnit", ""))
        kind = "Timestamp" if types.is_timestamp(type) else "Time"
        return name == kind and unit == type.unit and physical == ("INT32" if types.is_time32(type) else "INT64")
    if types.is_date32(type):
        return physical == "INT32" and name == "Date"
    if types.is_float16(type):
        return physical == _FIXED and length == 2 and name == "Float16"
    if types.is_float32(type) or types.is_float64(type):
        return physical == ("FLOAT" if types.is_float32(type) else "DOUBLE") and name == "None"
    return bool(types.is_fixed_size_binary(type) and physical == _FIXED and length == type.byte_width)


class ColumnReader:
    """The rows of a column chunk, from the first to the last. A reader that has raised is not asked again."""

    def __init__(self, library: PageLibrary, pages: PageStream, form: _Form, rows: int, nullable: bool) -> None:
        self._library = library
        self._pages = pages
        self._column = pages.column
        self._form = form
        self._rows = rows
        self._nullable = nullable
        self._left = rows
        """Rows that were neither taken nor skipped."""
        self._behind = 0
        """Rows that were skipped, and whose pages were not passed yet."""
        self._places = _NO_PICKS

    def has_word(self, content: bytes) -> bool:
        """Whether the dictionary has a word that lies so in the file. Not of a reader of which rows are taken."""
        column = self._column
        self._pages.begin()
        if column.words_state == _WORDS_MET:
            column.words_state = _WORDS_READ
            self._keep_words()
        return column.words_state != _WORDS_READ or self._is_word(content)

    def _keep_words(self) -> None:
        """Read the dictionary, to be looked at."""
        raise NotImplementedError

    def _is_word(self, content: bytes) -> bool:
        raise NotImplementedError

    def leap_by(self, places: Positions) -> None:
        """Where the file says that pages are, and with which rows they begin, two numbers of each
        and of the end. Ascending, in the column, from row 0 to the last; a page that is read is compared with them."""
        self._places = places
        self._column.places, self._column.place_count = address(places), len(places) // 2 - 1

    def skip(self, rows: int) -> None:
        """Leave the next rows out."""
        self._count_off(rows)
        self._behind += rows
        if not self._left:
            self._pages.release()

    def take(self, rows: int, picked: Positions | None = None, compact: bool = False) -> pa.Array:
        """The next rows, or of these the ones at ascending positions (int64, from 0 on)."""
        self._count_off(rows)
        if picked is not None and len(picked) and not 0 <= picked[0] <= picked[-1] < rows:
            raise ValueError(f"rows {picked[0]} to {picked[-1]} of {rows}")
        behind, self._behind = self._behind, 0
        if behind:
            self._pass(behind, compact)
        found = self._taken(rows, picked, compact)
        if not self._left:
            self._pages.release()
        return found

    def _count_off(self, rows: int) -> None:
        if not 0 <= rows <= self._left:
            raise ValueError(f"{rows} rows of {self._left}")
        self._left -= rows

    def _taken(self, rows: int, picked: Positions | None, compact: bool) -> pa.Array:
        raise NotImplementedError

    def _read_words(self) -> bool:
        """Read the dictionary, and say what its words are; False: not in the form that is read."""
        raise NotImplementedError

    def _pass(self, rows: int, compact: bool) -> None:
        """Leave rows out, before others are taken in such a form."""
        column = self._column
        column.base = column.first = column.done = column.nulls = column.size = 0
        self._read(rows, _NO_PICKS)

    def _read(self, rows: int, picked: Positions | None) -> int:
        """Read on: DONE, or why not."""
        at, count = (0, 0) if picked is None else (address(picked), len(picked))
        while (found := self._pages.read(rows, at, count)) == NEEDS_WORDS:
            self._column.words_state = _WORDS_READ
            if not self._read_words():
                return OTHER_FORM
        return found


class NumberReader(ColumnReader):
    """Values of fixed width, decimals that lie as texts among them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._words: tuple[Any, int] | None = None
        """The dictionary as it lies in the file, and how many words it has."""
        self._made: dict[int, Any] = {}
        """The words by what is made of them, until the pages are released."""

    def _taken(self, rows: int, picked: Positions | None, compact: bool) -> pa.Array:
        form, column = self._form, self._column
        type, width = self._become(compact)
        wanted = rows if picked is None else len(picked)
        out = pa.allocate_buffer(wanted * width)
        valid = np.empty(wanted if self._nullable else 0, dtype=np.uint8)
        column.to, column.valid = out.address, address(valid)
        column.base = column.first = column.done = column.nulls = 0
        self._read(rows, picked)
        if form.physical == _BOOLEAN:
            out = pa.py_buffer(np.packbits(np.frombuffer(out, dtype=np.uint8), bitorder="little"))
        nulls = column.nulls
        return pa.Array.from_buffers(type, wanted, [_bitmap(valid, nulls), out], nulls)

    def _become(self, compact: bool) -> tuple[pa.DataType, int]:
        """What is made of the next values: their type, and the bytes of one."""
        form, column = self._form, self._column
        type, kind, width = form.type, form.kind, form.out_width
        if compact and form.compact_type is not None:
            type, kind, width = form.compact_type, form.compact_kind, 8
        if (kind, width) != (column.kind, column.out_width):
            column.kind, column.out_width = kind, width
            self._give_words()
        return type, width

    def _pass(self, rows: int, compact: bool) -> None:
        self._become(compact)
        super()._pass(rows, compact)

    def _read_words(self) -> bool:
        self._keep_words()
        self._give_words()
        return True

    def _keep_words(self) -> None:
        values, known = self._words = self._pages.words()
        if known > len(values) // (self._form.width or 4):
            raise DoubtfulPage("a dictionary of fewer words than its header says")

    def _is_word(self, content: bytes) -> bool:
        assert self._words is not None
        values, known = self._words
        width = self._form.width
        if len(content) != width:
            return True
        words = values[: known * width].reshape(known, width)
        return bool((words == np.frombuffer(content, dtype=np.uint8)).all(axis=1).any())

    def _give_words(self) -> None:
        if self._words is None:
            return
        values, known = self._words
        column, kind = self._column, self._column.kind
        if kind not in self._made:
            made = self._pages.spare(known * column.out_width)
            wish = known, self._form.width, kind, column.out_width, address(made)
            if self._library.call("words_as", address(values), len(values), *wish, brief=known <= BRIEF) < 0:
                raise DoubtfulPage("a dictionary that does not fit its page")
            self._made[kind] = made
        column.words, column.known = address(self._made[kind]), known


class ListReader:
    """Lists of one length, by what reads their values."""

    def __init__(self, values: NumberReader, type: Any) -> None:
        self._values = values
        self._type, self._stored = type, _stored(type)

    def skip(self, rows: int) -> None:
        """Leave the next rows out."""
        self._values.skip(rows * self._stored.list_size)

    def take(self, rows: int, picked: Positions | None = None, compact: bool = False) -> pa.Array:
        """The next rows, or of these the ones at ascending positions. They have no compact form."""
        values = self._values.take(rows * self._stored.list_size)
        found = pa.FixedSizeListArray.from_arrays(values, type=self._stored)
        found = found if picked is None else found.take(pa.array(picked))
        return found if self._stored is self._type else self._type.wrap_array(found)


class TextReader(ColumnReader):
    """Text and binary values of any length."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._dictionary: pa.Array | None = None
        """The words, where their codes may be given."""
        self._bounds = np.zeros(1, dtype=np.int32)
        self._bytes: Any = np.empty(0, dtype=np.uint8)
        """The words of the dictionary, if it was read."""
        self._size = 0.0
        """Bytes of a text, as far as is known."""
        self._become_texts()

    def longest_word(self) -> int:
        """The bytes of the longest word of the dictionary; 0: there is none. Before the first row is taken."""
        self._pages.begin()
        if self._column.words_state == _WORDS_MET:
            self._column.words_state = _WORDS_READ
            self._read_words()
        return int(np.diff(self._bounds).max(initial=0))

    def _read_words(self) -> bool:
        values, known = self._pages.words()
        if known > len(values) // 4:
            raise DoubtfulPage("a dictionary of fewer words than its header says")
        bounds, content = np.zeros(known + 1, dtype=np.int32), pa.allocate_buffer(len(values), resizable=True)
        where = address(values), len(values), known, address(bounds[1:]), content.address
        if self._library.call("words_texts", *where) < 0:
            raise DoubtfulPage("a dictionary that does not fit its page")
        content.resize(int(bounds[-1]))
        self._bounds, self._bytes = bounds, np.frombuffer(content, dtype=np.uint8)
        self._column.known = known
        if known <= FEW_WORDS or (known <= MOST_WORDS and known * ROWS_PER_WORD <= self._rows):
            words = self._array(known, bounds, pa.py_buffer(self._bytes), None, 0)
            if len(compute.unique(words)) == known:
                self._dictionary = words
        if self._column.kind == _AS_TEXT:
            self._become_texts()
            return True
        return self._dictionary is not None

    def _keep_words(self) -> None:
        self._read_words()

    def _is_word(self, content: bytes) -> bool:
        words = self._array(len(self._bounds) - 1, self._bounds, pa.py_buffer(self._bytes), None, 0)
        return bool(compute.index(words.cast(pa.large_binary()), pa.scalar(content, pa.large_binary())).as_py() >= 0)

    def _become_texts(self) -> None:
        self._column.kind = _AS_TEXT
        self._column.bounds, self._column.words = address(self._bounds), address(self._bytes)

    def _pass(self, rows: int, compact: bool) -> None:
        self._become_texts()
        super()._pass(rows, compact)

    def _taken(self, rows: int, picked: Positions | None, compact: bool) -> pa.Array:
        column, wanted = self._column, rows if picked is None else len(picked)
        column.base = column.first = 0
        coded = None
        if compact and (self._dictionary is not None or column.words_state != _WORDS_READ):
            coded, is_all = self._coded(rows, picked, wanted)
            if is_all and coded is not None:
                return coded
        if coded is None:
            return self._texts(rows, picked, wanted)
        return pa.concat_arrays([coded.dictionary_decode(), self._texts(rows, picked, wanted - len(coded))])

    def _coded(self, rows: int, picked: Positions | None, wanted: int) -> tuple[pa.Array | None, bool]:
        """The next rows as codes, None if there are none, and whether these are all."""
        column = self._column
        codes, valid = np.empty(wanted, dtype=np.int32), np.empty(wanted if self._nullable else 0, dtype=np.uint8)
        column.kind, column.out_width, column.words = _AS_CODES, 4, 0
        column.to, column.valid = address(codes), address(valid)
        column.done = column.nulls = 0
        is_all = self._read(rows, picked) == DONE
        done, nulls = column.done, column.nulls
        if not done or self._dictionary is None:
            return None, is_all
        buffers = [_bitmap(valid[:done], nulls), pa.py_buffer(codes)]
        found = pa.Array.from_buffers(pa.int32(), done, buffers, nulls)
        return pa.DictionaryArray.from_arrays(found, self._dictionary, safe=False), is_all

    def _texts(self, rows: int, picked: Positions | None, wanted: int) -> pa.Array:
        """The next rows as texts."""
        column = self._column
        self._become_texts()
        texts = _Texts(wanted, int(wanted * self._size * _SPARE) + BLOCK)
        valid = np.empty(wanted if self._nullable else 0, dtype=np.uint8)
        column.ends, column.valid = address(texts.ends), address(valid)
        column.done = column.nulls = column.size = 0
        while True:
            column.to, column.to_size = texts.bytes.address, texts.bytes.size
            if self._read(rows, picked) != NEEDS_TEXT_ROOM:
                break
            texts.grow()
        self._size = column.size / wanted if wanted else self._size
        nulls = column.nulls
        return self._array(wanted, texts.bounds, texts.content(column.size), _bitmap(valid, nulls), nulls)

    def _array(self, rows: int, bounds: Any, content: Any, valid: Any, nulls: int) -> pa.Array:
        type = self._form.type
        if pa.types.is_large_string(type) or pa.types.is_large_binary(type):
            bounds = bounds.astype(np.int64)
        return pa.Array.from_buffers(type, rows, [valid, pa.py_buffer(bounds), content], nulls)


class _Texts:
    """Room for so many texts with so many bytes at first."""

    def __init__(self, count: int, size: int) -> None:
        self.bounds = np.empty(count + 1, dtype=np.int32)
        self.bounds[0] = 0
        self.ends = self.bounds[1:]
        self.bytes = pa.allocate_buffer(min(size, _LONGEST_TEXT), resizable=True)

    def grow(self) -> None:
        """Make room for more."""
        if self.bytes.size >= _LONGEST_TEXT:
            raise DoubtfulPage("more text than an array holds")
        self.bytes.resize(min(2 * self.bytes.size + BLOCK, _LONGEST_TEXT))

    def content(self, size: int) -> Any:
        """The bytes of all texts; no more come."""
        self.bytes.resize(size, shrink_to_fit=_SPARE * _SPARE * size < self.bytes.size)
        return self.bytes


def _bitmap(valid: Any, nulls: int) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
