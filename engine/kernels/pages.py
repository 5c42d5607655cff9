"""Flat columns of Parquet files, decoded by ``pages.c``: page by page, at several times the speed of pyarrow's reader.

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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import compute

from .page_library import PageLibrary, address, page_library
from .page_stream import BLOCK, CODECS, DICTIONARY, DoubtfulPage, Fetch, PageHeader, PageStream, is_words
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
_SAME, _TO_8, _TO_16, _TO_64, _TO_128, _BIG_TO_64, _BIG_TO_128, _TEXT_TO_128 = range(8)
"""What is made of a value."""

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

_Part: TypeAlias = tuple[int, Positions | None, int, int]
"""So many of the next values of a page; positions of the picked ones (None: all), what these count from, how many."""

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
        return self.physical == _TEXT and self.kind == _SAME


def column_reader(fetch: Fetch, metadata: Any, group: int, leaf: int, type: pa.DataType) -> ColumnReader | None:
    """A reader of a leaf column of a row group as values of ``type``; None: pyarrow has to read it.

    ``fetch``: as in ``page_stream``. ``metadata``: pyarrow's FileMetaData. ``type``: what its ``to_arrow_schema``
    says of the column, or the ``string`` or ``binary`` that is its plain type.
    """
    library = page_library()
    column = metadata.schema.column(leaf)
    if library is None or column.max_repetition_level or column.max_definition_level > 1 or "." in column.path:
        return None
    form = _form(column.physical_type, column.length, column.logical_type.to_json(), type)
    row_group = metadata.row_group(group)
    chunk = row_group.column(leaf)
    if form is None or chunk.compression not in CODECS or chunk.num_values != row_group.num_rows or chunk.file_path:
        return None
    begin = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < begin:
        begin = chunk.dictionary_page_offset
    size = chunk.total_compressed_size
    if begin < 0 or size < 0 or chunk.num_values < 0:
        return None
    pages = PageStream(library, fetch, begin, begin + size, chunk.compression)
    reader = TextReader if form.is_text else NumberReader
    return reader(library, pages, form, chunk.num_values, bool(column.max_definition_level))


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
        return _Form(physical, width, type, _SAME, 0) if fits else None
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
            return _Form(physical, width, type, _TEXT_TO_128, 16)
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
        self._form = form
        self._rows = rows
        self._nullable = nullable
        self._left = rows
        """Rows that were neither taken nor skipped."""
        self._behind = 0
        """Rows that were skipped, and whose pages were not passed yet."""
        self._unmet = rows
        """Rows of the pages that are not met yet."""
        self._page_left = 0
        self._pending: tuple[PageHeader, int] | None = None
        """Header and place of the page at hand, while its body was not read."""
        self._source = _PLAIN
        self._page = np.zeros(library.call("page_bytes") // 8, dtype=np.int64)
        self._page_at = address(self._page)
        self._held: tuple[Any, ...] = ()
        """What the page at hand points to."""
        self._words: tuple[PageHeader, int] | None = None
        """Header and place of a dictionary that was not read."""
        self._known = 0
        """Words of the dictionary that was read; they are at ``_bounds`` and ``_bytes`` if they are texts."""
        self._bounds = np.zeros(1, dtype=np.int32)
        self._bytes: Any = np.empty(0, dtype=np.uint8)

    def skip(self, rows: int) -> None:
        """Leave the next rows out."""
        self._count_off(rows)
        self._behind += rows

    def take(self, rows: int, picked: Positions | None = None, compact: bool = False) -> pa.Array:
        """The next rows, or of these the ones at ascending positions (int64, from 0 on)."""
        self._count_off(rows)
        if picked is not None and len(picked) and not 0 <= picked[0] <= picked[-1] < rows:
            raise ValueError(f"rows {picked[0]} to {picked[-1]} of {rows}")
        behind, self._behind = self._behind, 0
        for part in self._parts(behind, _NO_PICKS):
            self._pass(self._placed(part, np.empty(0, dtype=np.uint8), 0))
        return self._taken(rows, picked, compact)

    def _count_off(self, rows: int) -> None:
        if not 0 <= rows <= self._left:
            raise ValueError(f"{rows} rows of {self._left}")
        self._left -= rows

    def _taken(self, rows: int, picked: Positions | None, compact: bool) -> pa.Array:
        raise NotImplementedError

    def _pass(self, part: _Part) -> None:
        """Leave these values out."""
        raise NotImplementedError

    def _keep_words(self) -> None:
        """The words that were read are those of the pages."""

    # ------------------------------------------------------------------ pages

    def _parts(self, rows: int, picked: Positions | None) -> Iterator[_Part]:
        """The rows page by page, each opened, for the caller to read. Pages of which nothing is picked are left out."""
        base = first = 0
        while base < rows:
            if not self._page_left:
                self._next_page()
            now = min(rows - base, self._page_left)
            behind = base + now if picked is None else int(np.searchsorted(picked, base + now))
            if behind > first or now < self._page_left:
                if self._pending is not None:
                    self._open_page(*self._pending)
                yield now, None if picked is None else picked[first:behind], base, behind - first
            self._page_left -= now
            base, first = base + now, behind

    def _next_page(self) -> None:
        header = self._pages.next()
        while header.type == DICTIONARY:
            if self._words is not None or self._unmet < self._rows or not is_words(header):
                raise DoubtfulPage("a dictionary where none is expected")
            self._words = header, self._pages.body_at
            header = self._pages.next()
        if header.values > self._unmet:
            raise DoubtfulPage("more values than the column has")
        self._pending = header, self._pages.body_at
        self._page_left = header.values
        self._unmet -= header.values

    def _open_page(self, header: PageHeader, at: int) -> None:
        self._pending = None
        form = self._form
        source, physical = _SOURCES.get(header.encoding, (_PLAIN, ()))
        if form.physical not in physical:
            raise DoubtfulPage(f"{form.physical} in encoding {header.encoding}")
        if source == _WORDS and self._words is not None and not self._known:
            self._read_words(*self._words)
        self._source = _BITS if source == _PLAIN and form.physical == _BOOLEAN else source
        if self._pages.has_kernel and source != _PREFIXES:
            where = self._page_at, self._source, form.width
            self._held = self._pages.begin(header, at, self._nullable, *where)
        else:
            levels, values = self._pages.body(header, at, self._nullable)
            last = np.empty(len(values) if source == _PREFIXES else 0, dtype=np.uint8)
            self._begin(values, self._source, levels, last)

    def _begin(self, values: Any, source: int, levels: Any = None, last: Any = _NO_PICKS) -> None:
        self._held = values, levels, last
        where = (0, 0) if levels is None else (address(levels), len(levels))
        width = self._form.width
        self._checked(
            self._library.call(
                "page_open",
                *(self._page_at, *where, address(values), len(values), source, width, address(last), len(last)),
            )
        )

    def _read_words(self, header: PageHeader, at: int) -> None:
        _, values = self._pages.body(header, at, nullable=False)
        self._begin(values, _PLAIN)
        if self._form.width:
            if header.values > len(values) // self._form.width:
                raise DoubtfulPage("a dictionary of fewer words than its header says")
            self._bytes = values[: header.values * self._form.width].copy()
        else:
            if header.values > len(values) // 4:
                raise DoubtfulPage("a dictionary of fewer words than its header says")
            texts = _Texts(header.values, len(values))
            self._source = _PLAIN
            self._read_texts((header.values, None, 0, header.values), texts, 0)
            self._bounds, self._bytes = texts.bounds, np.frombuffer(texts.content(), dtype=np.uint8)
        self._known = header.values
        self._keep_words()

    def _checked(self, found: int) -> int:
        if found < 0:
            raise DoubtfulPage("values that do not fit their page")
        return found

    # ------------------------------------------------------------------ values

    def _placed(self, part: _Part, valid: Any, done: int) -> _Part:
        """The valid ones of rows. Which these are goes to ``valid``, from ``done`` on."""
        if not self._nullable:
            return part
        rows, picks, base, count = part
        page = self._page_at
        if picks is None:
            found = self._checked(self._library.call("page_levels", page, rows, address(valid) + done))
            return found, None, 0, found
        levels, places = np.empty(rows, dtype=np.uint8), np.empty(count, dtype=np.int64)
        found = self._checked(self._library.call("page_levels", page, rows, address(levels)))
        chosen = self._library.call(
            "page_places", address(levels), address(picks), base, count, address(valid) + done, address(places)
        )
        return found, places[:chosen], 0, chosen

    def _read_numbers(self, part: _Part, kind: int, words: Any, width: int, to: int) -> None:
        values, picks, base, count = part
        self._checked(
            self._library.call(
                "page_numbers",
                *(self._page_at, values, _at(picks), base, count, kind, address(words), self._known, width, to),
            )
        )

    def _read_texts(self, part: _Part, texts: _Texts, done: int) -> None:
        """Their ends go to those of ``texts``, from ``done`` on."""
        values, picks, base, count = part
        while True:
            found = self._checked(
                self._library.call(
                    "page_texts",
                    *(self._page_at, values, _at(picks), base, count),
                    *(address(self._bounds), address(self._bytes), self._known),
                    *(address(texts.ends) + 4 * done, texts.bytes.address, texts.size, texts.bytes.size),
                )
            )
            taken, given = self._page[-2:].tolist()
            if given:
                texts.size = int(texts.ends[done + given - 1])
            if not found:
                return
            texts.grow()
            values, base, count, done = values - taken, base + taken, count - given, done + given
            picks = None if picks is None else picks[given:]


class NumberReader(ColumnReader):
    """Values of fixed width, decimals that lie as texts among them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._made: dict[int, Any] = {}
        """The words by what is made of them."""

    def _keep_words(self) -> None:
        self._made = {}

    def _pass(self, part: _Part) -> None:
        values, _, _, _ = part
        self._numbers((values, _NO_PICKS, 0, 0), self._form.kind, self._form.out_width, 0)

    def _taken(self, rows: int, picked: Positions | None, compact: bool) -> pa.Array:
        form = self._form
        type, kind, width = form.type, form.kind, form.out_width
        if compact and form.compact_type is not None:
            type, kind, width = form.compact_type, form.compact_kind, 8
        wanted = rows if picked is None else len(picked)
        out = pa.allocate_buffer(wanted * width)
        valid = np.empty(wanted if self._nullable else 0, dtype=np.uint8)
        done = nulls = 0
        for part in self._parts(rows, picked):
            to = out.address + done * width
            if part[1] is None and form.width and self._source != _PREFIXES:
                nulls += part[3] - self._whole(part[3], valid, done, kind, width, to)
                done += part[3]
                continue
            placed = self._placed(part, valid, done)
            self._numbers(placed, kind, width, to)
            if placed[3] < part[3]:
                self._library.call("page_spread", to, width, address(valid) + done, part[3], placed[3])
                nulls += part[3] - placed[3]
            done += part[3]
        if form.physical == _BOOLEAN:
            out = pa.py_buffer(np.packbits(np.frombuffer(out, dtype=np.uint8), bitorder="little"))
        return pa.Array.from_buffers(type, wanted, [_bitmap(valid, nulls), out], nulls)

    def _whole(self, rows: int, valid: Any, done: int, kind: int, width: int, to: int) -> int:
        """All of the next rows of a page, each with what says whether it is valid; how many are."""
        words = self._words_as(kind, width) if self._source == _WORDS else _NO_PICKS
        at = address(valid) + done if self._nullable else 0
        page = self._page_at, rows, at, kind, address(words), self._known, width, to
        return self._checked(self._library.call("page_rows", *page))

    def _numbers(self, part: _Part, kind: int, width: int, to: int) -> None:
        form = self._form
        if self._source == _WORDS:
            self._read_numbers(part, kind, self._words_as(kind, width), width, to)
        elif form.width and self._source != _PREFIXES:
            self._read_numbers(part, kind, _NO_PICKS, width, to)
        else:
            texts = _Texts(part[3], part[3] * max(form.width, 16))
            self._read_texts(part, texts, 0)
            self._numbers_of(texts, part[3], kind, width, to)

    def _numbers_of(self, texts: _Texts, count: int, kind: int, width: int, to: int) -> None:
        ends, content = address(texts.ends), np.frombuffer(texts.content(), dtype=np.uint8)
        if kind == _TEXT_TO_128:
            self._checked(self._library.call("page_decimals", ends, address(content), count, to))
            return
        self._checked(self._library.call("page_same_size", ends, count, self._form.width))
        self._convert(content, count, kind, width, to)

    def _convert(self, values: Any, count: int, kind: int, width: int, to: int) -> None:
        """What is made of values that lie one behind the other."""
        page, held = self._page.copy(), self._held
        self._begin(values, _PLAIN)
        self._read_numbers((count, None, 0, count), kind, _NO_PICKS, width, to)
        self._page[:], self._held = page, held

    def _words_as(self, kind: int, width: int) -> Any:
        made = self._bytes if kind == _SAME else self._made.get(kind)
        if made is None:
            made = np.empty(self._known * width, dtype=np.uint8)
            if kind == _TEXT_TO_128:
                ends = self._bounds[1:]
                at = address(ends), address(self._bytes)
                self._checked(self._library.call("page_decimals", *at, self._known, address(made)))
            else:
                self._convert(self._bytes, self._known, kind, width, address(made))
            self._made[kind] = made
        return made


class TextReader(ColumnReader):
    """Text and binary values of any length."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._dictionary: pa.Array | None = None
        """The words, where their codes may be given."""
        self._codes = _NO_PICKS
        """0, 1, 2, …: the code of each word."""
        self._size = 0.0
        """Bytes of a text, as far as is known."""

    def longest_word(self) -> int:
        """The bytes of the longest word of the dictionary; 0: there is none. Before the first row is taken."""
        if self._unmet == self._rows and self._rows:
            self._next_page()
        if self._words is not None and not self._known:
            self._read_words(*self._words)
        return int(np.diff(self._bounds).max(initial=0))

    def _keep_words(self) -> None:
        known = self._known
        if known <= FEW_WORDS or (known <= MOST_WORDS and known * ROWS_PER_WORD <= self._rows):
            words = self._array(known, self._bounds, pa.py_buffer(self._bytes), None, 0)
            if len(compute.unique(words)) == known:
                self._dictionary = words
                self._codes = np.arange(known, dtype=np.int32)

    def _pass(self, part: _Part) -> None:
        self._read_texts((part[0], _NO_PICKS, 0, 0), _Texts(0, 0), 0)

    def _taken(self, rows: int, picked: Positions | None, compact: bool) -> pa.Array:
        left = rows if picked is None else len(picked)
        pieces: list[_CodedRows | _PlainRows] = []
        for part in self._parts(rows, picked):
            is_coded = compact and self._source == _WORDS and self._dictionary is not None
            if not pieces or isinstance(pieces[-1], _CodedRows) != is_coded:
                pieces.append(_CodedRows(left, self._nullable) if is_coded else self._piece(left))
            piece = pieces[-1]
            done, count = piece.rows, part[3]
            placed = self._placed(part, piece.valid, done)
            at = address(piece.valid) + done, count, placed[3]
            if isinstance(piece, _CodedRows):
                to = address(piece.codes) + 4 * done
                self._read_numbers(placed, _SAME, self._codes, 4, to)
                if placed[3] < count:
                    self._library.call("page_spread", to, 4, *at)
            else:
                begin = piece.texts.size
                self._read_texts(placed, piece.texts, done)
                if placed[3] < count:
                    self._library.call("page_spread_ends", address(piece.texts.ends) + 4 * done, begin, *at)
            piece.rows, piece.nulls = done + count, piece.nulls + count - placed[3]
            left -= count
        return self._whole(pieces)

    def _piece(self, rows: int) -> _PlainRows:
        if not self._size and self._source == _WORDS:
            self._size = len(self._bytes) / max(self._known, 1)
        elif not self._size:
            begin, end = self._page[2:4].tolist()
            self._size = (end - begin) / max(self._page_left, 1)
        return _PlainRows(rows, self._nullable, int(rows * self._size * _SPARE) + BLOCK)

    def _whole(self, pieces: list[_CodedRows | _PlainRows]) -> pa.Array:
        made = []
        for piece in pieces:
            valid = _bitmap(piece.valid[: piece.rows], piece.nulls)
            if isinstance(piece, _CodedRows):
                codes = pa.Array.from_buffers(pa.int32(), piece.rows, [valid, pa.py_buffer(piece.codes)], piece.nulls)
                words = pa.DictionaryArray.from_arrays(codes, self._dictionary, safe=False)
                made.append(words if len(pieces) == 1 else words.dictionary_decode())
            else:
                self._size = piece.texts.size / max(piece.rows, 1)
                made.append(self._array(piece.rows, piece.texts.bounds, piece.texts.content(), valid, piece.nulls))
        return made[0] if len(made) == 1 else pa.concat_arrays(made or [pa.array([], self._form.type)])

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
        self.size = 0
        """Bytes that are taken."""

    def grow(self) -> None:
        """Make room for more."""
        if self.bytes.size >= _LONGEST_TEXT:
            raise DoubtfulPage("more text than an array holds")
        self.bytes.resize(min(2 * self.bytes.size + BLOCK, _LONGEST_TEXT))

    def content(self) -> Any:
        """The bytes of all texts; no more come."""
        self.bytes.resize(self.size, shrink_to_fit=_SPARE * _SPARE * self.size < self.bytes.size)
        return self.bytes


class _CodedRows:
    """Rows as codes of a dictionary."""

    def __init__(self, rows: int, nullable: bool) -> None:
        self.codes = np.empty(rows, dtype=np.int32)
        self.valid = np.empty(rows if nullable else 0, dtype=np.uint8)
        self.rows = self.nulls = 0


class _PlainRows:
    """Rows as texts."""

    def __init__(self, rows: int, nullable: bool, size: int) -> None:
        self.texts = _Texts(rows, size)
        self.valid = np.empty(rows if nullable else 0, dtype=np.uint8)
        self.rows = self.nulls = 0


def _at(picks: Positions | None) -> int:
    return 0 if picks is None else address(picks)


def _bitmap(valid: Any, nulls: int) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
