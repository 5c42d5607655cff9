"""The pages of one column of a row group, flat or of lists of one length, one after the other, as ``pages.c`` walks
through them.

It reads rows until it needs something that is made here: a part of the file, a checksum, what a codec gives, memory.

Rules:

1. The file is untrusted. What does not fit raises DoubtfulPage, before anything of the page is given away: who reads
   the column leaves it to pyarrow then, which reads it or says what is wrong.
2. Of the file a page and ``BLOCK`` bytes around it are held. The body of a page that nobody asks for is not read. The
   memory goes to the next column when the rows of this one have been given away (``release``).
3. A checksum is compared with the page where there is one.
4. A codec gives exactly the bytes that the header says. pyarrow's codecs for GZIP and Brotli do not check that, so that
   other ways lead to them.
5. Of lists the values are read, which lie as in a flat column where all lists have the same length and nothing is null.
   That this is so, the levels of each page tell.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from .native import BRIEF
from .page_library import PageLibrary, address

BLOCK = 64 * 1024
"""Bytes of the file that are read at least, where the column has them."""
LONGEST_BLOCK = 1024 * 1024
_HEADER_ROOM = 1024
_MOST = {"SNAPPY": 24, "LZ4": 255}
"""What a byte may become at most: a header that says more lies, and gets no memory for it."""
_MOST_MORE = 64
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "LZ4": 2, "ZSTD": 3, "GZIP": 3, "BROTLI": 3}
"""Those that are read here, by the numbers of ``pages.c``; 3: it has them from here. LZ4 is the raw one; pyarrow calls
the old one unknown."""
_ANY_ZLIB = 32 + zlib.MAX_WBITS

DONE, NEEDS_BYTES, NEEDS_CHECK, NEEDS_BODY, NEEDS_ROOM, NEEDS_WORDS, NEEDS_TEXT_ROOM, OTHER_FORM = range(8)
"""Why a call has come back."""
ENCODINGS = 10
_RLE, _DATA_2 = 3, 3
_OTHER_CODEC = 3
"""Bodies of pages are made here."""

Fetch = Callable[[int, Any], int]
"""Reads a part of the file, from an offset on, into an array of bytes; how many there were."""

_SPARE_SIZES = range(16, 21)
_SPARES = 8


class DoubtfulPage(Exception):
    """A page that is read by pyarrow, or by nobody."""


class WholeLists(NamedTuple):
    """A column of lists that all have ``length`` values, none of which is null (rule 5)."""

    length: int
    level: int
    """Of the definition of each value."""


class PageHeader(NamedTuple):
    """What stands before a page; -1: it does not say."""

    type: int
    uncompressed: int
    compressed: int
    checksum: int
    has_checksum: int
    values: int
    encoding: int
    level_encoding: int
    rows: int
    level_bytes: int
    repeat_bytes: int
    is_compressed: int


_Header = ctypes.c_int64 * len(PageHeader._fields)
_FIELDS: list[tuple[str, Any]] = [
    *((name, ctypes.c_int64) for name in ("rows", "nullable", "codec", "width")),
    ("sources", ctypes.c_int64 * ENCODINGS),
    *((name, ctypes.c_int64) for name in ("block", "block_size", "block_at", "next", "end", "needs_at", "needs_size")),
    *((name, ctypes.c_int64) for name in ("room", "room_size")),
    *((name, ctypes.c_int64) for name in ("page_left", "unmet", "pending", "checked", "body_at")),
    ("header", _Header),
    *((name, ctypes.c_int64) for name in ("words_state", "words_at")),
    ("words_header", _Header),
    *((name, ctypes.c_int64) for name in ("known", "kind", "out_width", "words", "bounds", "to", "ends", "valid")),
    *(
        (name, ctypes.c_int64)
        for name in ("to_size", "places", "place_count", "base", "first", "done", "nulls", "size")
    ),
]


class ColumnHead(ctypes.Structure):
    """The beginning of what ``pages.c`` calls so; addresses are numbers here."""

    _fields_ = _FIELDS


class _Spares:
    """Memory that columns had, of 64 KiB to 1 MiB: new one costs three times as much as to read a page into it, as the
    system clears it first. Threads share it: each step is one of a list."""

    def __init__(self) -> None:
        self._held: dict[int, list[Any]] = {size: [] for size in _SPARE_SIZES}

    def take(self, size: int) -> Any:
        """So many bytes, or more."""
        bits = max(_SPARE_SIZES[0], (size - 1).bit_length())
        try:
            return self._held[bits].pop()
        except (KeyError, IndexError):
            return np.empty(1 << bits if bits in _SPARE_SIZES else size, dtype=np.uint8)

    def give(self, array: Any) -> None:
        """Nobody uses it any more."""
        held = self._held.get(len(array).bit_length() - 1)
        if held is not None and len(held) < _SPARES and not len(array) & (len(array) - 1):
            held.append(array)


_spares = _Spares()


class PageStream:
    """The pages between ``begin`` and ``end`` of a file, with so many ``rows``: of ``lists`` these are their values.
    ``width``: bytes of a value, 0: it is a text. ``sources``: where values come from, by the encoding of a page."""

    def __init__(
        self,
        library: PageLibrary,
        fetch: Fetch,
        begin: int,
        end: int,
        codec: str,
        *,
        rows: int,
        nullable: bool,
        width: int,
        sources: Sequence[int],
        lists: WholeLists | None = None,
    ) -> None:
        self._library = library
        self._fetch = fetch
        self._codec = codec
        self._lists = lists
        self._zstd = pa.Codec("zstd") if codec == "ZSTD" else None
        memory: Any = np.zeros(library.call("column_bytes", brief=True), dtype=np.uint8)
        self._column_at = address(memory)
        self.column = ColumnHead.from_buffer(memory)
        """What is handed to ``pages.c``: who reads says what is made of values, and where it goes."""
        self.column.rows = self.column.unmet = rows
        self.column.nullable, self.column.width = nullable, width
        self.column.codec = CODECS[codec] if lists is None else _OTHER_CODEC
        self.column.sources[:] = sources
        self.column.next, self.column.end = begin, end
        self._block = np.empty(0, dtype=np.uint8)
        self._memory = self._room = self._block
        """What the block, which is a part of the file, lies in; and a page without the codec."""
        self._taken: list[Any] = []
        """Memory that whoever reads has of it."""
        self._held: tuple[Any, ...] = ()
        """What a page points to whose body was made here."""

    def read(self, rows: int, picks: int, count: int) -> int:
        """Read on: DONE, or what is needed of whoever reads."""
        return self._walk("column_read", rows, picks, count)

    def begin(self) -> None:
        """Go to the first page."""
        self._walk("column_next", brief=True)

    def release(self) -> None:
        """No page is read any more."""
        for memory in (self._memory, self._room, *self._taken):
            _spares.give(memory)
        self._memory = self._room = self._block = np.empty(0, dtype=np.uint8)
        self._taken.clear()
        self.column.block_size = self.column.room_size = 0

    def _walk(self, name: str, *arguments: int, brief: bool = False) -> int:
        while True:
            found: int = self._library.call(name, self._column_at, *arguments, brief=brief)
            if found == NEEDS_BYTES:
                self._load(self.column.needs_at, self.column.needs_size)
            elif found == NEEDS_CHECK:
                self._check(PageHeader(*self.column.header), self._body())
                self.column.checked = True
            elif found == NEEDS_BODY:
                self._open_page()
            elif found == NEEDS_ROOM:
                self._make_room(self.column.header[1])
            elif found < 0:
                raise DoubtfulPage("values that do not fit their page, or no page where one should be")
            else:
                return found

    def words(self) -> tuple[Any, int]:
        """The body of the dictionary, until ``release``, and how many words it has."""
        header = PageHeader(*self.column.words_header)
        whole = self._bytes(self.column.words_at, header.compressed)
        self._check(header, whole)
        size = header.uncompressed
        if self._codec in _MOST and size:
            self._bound(size, len(whole))
            return self._by_kernel(whole, size, self.spare(size)), header.values
        values = self._decompressed(whole, size)
        kept = self.spare(size)[:size]
        kept[:] = values
        return kept, header.values

    def spare(self, size: int) -> Any:
        """So many bytes of memory, or more, until ``release``."""
        found = _spares.take(size)
        self._taken.append(found)
        return found

    def _open_page(self) -> None:
        header = PageHeader(*self.column.header)
        levels, values = self._levels_and_values(header, self._body())
        last = np.empty(len(values), dtype=np.uint8)
        self._held = levels, values, last
        where = (0, 0) if levels is None else (address(levels), len(levels))
        page = *where, address(values), len(values), address(last), len(last)
        if self._library.call("column_open", self._column_at, *page) < 0:
            raise DoubtfulPage("a page that does not fit its header")

    def _levels_and_values(self, header: PageHeader, whole: Any) -> tuple[Any, Any]:
        if self._lists is not None:
            return None, self._values_of_lists(header, self._decompressed(whole, header.uncompressed), self._lists)
        nullable = self.column.nullable
        if header.type == _DATA_2:
            return self._second_body(header, whole, nullable)
        values = self._decompressed(whole, header.uncompressed)
        if not nullable:
            return None, values
        return _levels(header, values)

    def _values_of_lists(self, header: PageHeader, values: Any, lists: WholeLists) -> Any:
        """The values behind two kinds of levels that say what is expected."""
        if header.type == _DATA_2:
            raise DoubtfulPage("a page of the second kind, whose header counts lists")
        first = self.column.rows - self.column.unmet - header.values
        for level, length in ((1, lists.length), (lists.level, 0)):
            levels, values = _levels(header, values)
            wish = level.bit_length(), header.values, level, first, length
            if self._library.call("levels_fit", address(levels), len(levels), *wish) < 0:
                raise DoubtfulPage("lists of other lengths, or nulls")
        return values

    def _second_body(self, header: PageHeader, whole: Any, nullable: bool) -> tuple[Any, Any]:
        size = header.level_bytes
        if header.repeat_bytes != 0 or header.rows != header.values or not 0 <= size <= len(whole):
            raise DoubtfulPage("levels that do not fit a flat column")
        if size > header.uncompressed or (size and not nullable):
            raise DoubtfulPage("levels that do not fit their page")
        values, left = whole[size:], header.uncompressed - size
        if header.is_compressed:
            values = self._decompressed(values, left)
        elif len(values) != left:
            raise DoubtfulPage("a page of another size than its header says")
        return (whole[:size] if nullable else None), values

    # ------------------------------------------------------------------ bytes of the file

    def _body(self) -> Any:
        return self._bytes(self.column.body_at, self.column.header[2])

    def _check(self, header: PageHeader, whole: Any) -> None:
        if header.has_checksum and zlib.crc32(whole) != header.checksum & 0xFFFFFFFF:
            raise DoubtfulPage("a page does not fit its checksum")

    def _bytes(self, at: int, size: int) -> Any:
        begin = at - self.column.block_at
        if size and (begin < 0 or size > len(self._block) - begin):
            self._load(at, size)
            begin = 0
        return self._block[begin : begin + size] if size else self._block[:0]

    def _load(self, at: int, size: int) -> None:
        """Read a block, of so many bytes at least: a page, and one of this size behind it."""
        column = self.column
        ahead = min(max(BLOCK, size + _HEADER_ROOM), LONGEST_BLOCK)
        size = min(max(size, ahead), column.end - at)
        if size <= 0:
            raise DoubtfulPage("the column ends before its values do")
        if size > len(self._memory):
            _spares.give(self._memory)
            self._memory = _spares.take(size)
        self._block = self._memory[:size]
        if self._fetch(at, self._block) != size:
            raise DoubtfulPage("the file ends before the column does")
        column.block, column.block_size, column.block_at = address(self._block), size, at

    # ------------------------------------------------------------------ codecs

    def _decompressed(self, given: Any, size: int) -> Any:
        codec = self._codec
        if codec == "UNCOMPRESSED":
            made = given
        elif size == 0:
            return given[:0]
        elif codec in _MOST:
            self._bound(size, len(given))
            self._make_room(size)
            made = self._by_kernel(given, size, self._room)
        elif self._zstd is not None:
            try:
                made = np.frombuffer(self._zstd.decompress(given, decompressed_size=size), dtype=np.uint8)
            except (OSError, pa.ArrowException) as error:
                raise DoubtfulPage(str(error)) from error
        else:
            made = np.frombuffer(_streamed(codec, given, size + 1), dtype=np.uint8)
        if len(made) != size:
            raise DoubtfulPage("a page of another size than its header says")
        return made

    def _bound(self, size: int, given: int) -> None:
        if size > _MOST[self._codec] * given + _MOST_MORE:
            raise DoubtfulPage("a page cannot be as large as its header says")

    def _by_kernel(self, given: Any, size: int, room: Any) -> Any:
        where = address(given), len(given), address(room), size
        if self._library.call(self._codec.lower(), *where, brief=size <= 8 * BRIEF) < 0:
            raise DoubtfulPage(f"a page that {self._codec} cannot have made")
        return room[:size]

    def _make_room(self, size: int) -> None:
        if size > len(self._room):
            _spares.give(self._room)
            self._room = _spares.take(size)
            self.column.room, self.column.room_size = address(self._room), len(self._room)


def _levels(header: PageHeader, values: Any) -> tuple[Any, Any]:
    """What a page begins with, and what lies behind."""
    if header.level_encoding != _RLE or len(values) < 4:
        raise DoubtfulPage("levels in another encoding")
    size = int.from_bytes(values[:4].tobytes(), "little")
    if size > len(values) - 4:
        raise DoubtfulPage("levels that are longer than their page")
    return values[4 : 4 + size], values[4 + size :]


def _streamed(codec: str, given: Any, most: int) -> Any:
    """At most so many bytes of what was compressed."""
    try:
        if codec == "GZIP":
            return zlib.decompressobj(_ANY_ZLIB).decompress(given, most)
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(given)), codec.lower()) as stream:
            return stream.read(most)
    except (OSError, zlib.error, pa.ArrowException) as error:
        raise DoubtfulPage(str(error)) from error
