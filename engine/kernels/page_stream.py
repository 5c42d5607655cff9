"""The pages of one flat column of a row group, one after the other: their headers, and their values without the codec.

Rules:

1. The file is untrusted. What does not fit raises DoubtfulPage, before anything of the page is given away: who reads
   the column leaves it to pyarrow then, which reads it or says what is wrong.
2. Of the file a page and ``BLOCK`` bytes around it are held. The body of a page that nobody asks for is not read.
3. A checksum is compared with the page where there is one.
4. A codec gives exactly the bytes that the header says. pyarrow's codecs for GZIP and Brotli do not check that, so that
   other ways lead to them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from .page_library import PageLibrary, address

BLOCK = 64 * 1024
"""Bytes of the file that are read at least, where the column has them."""
LONGEST_BLOCK = 1024 * 1024
_HEADER_ROOM = 1024
_LONGEST_HEADER = 16 * 1024 * 1024
"""That of pyarrow."""
_MOST = {"SNAPPY": 24, "LZ4": 255}
"""What a byte may become at most: a header that says more lies, and gets no memory for it."""
_MOST_MORE = 64
CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "LZ4", "ZSTD", "GZIP", "BROTLI"})
"""Those that are read here. LZ4 is the raw one; pyarrow calls the old one unknown."""
_KERNELS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "LZ4": 2}
"""The codecs of ``pages.c``, by its numbers."""
_ANY_ZLIB = 32 + zlib.MAX_WBITS

DATA, INDEX, DICTIONARY, DATA_2 = range(4)
"""Types of pages."""
_PLAIN, _PLAIN_DICTIONARY, _RLE = 0, 2, 3

Fetch = Callable[[int, int], Any]
"""Of the file, from an offset on so many bytes, or fewer at its end: an object with a buffer."""


class DoubtfulPage(Exception):
    """A page that is read by pyarrow, or by nobody."""


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


class PageStream:
    """The pages between ``begin`` and ``end`` of a file."""

    def __init__(self, library: PageLibrary, fetch: Fetch, begin: int, end: int, codec: str) -> None:
        self._library = library
        self._fetch = fetch
        self._at, self._end = begin, end
        """Where the next header stands, and where the column ends."""
        self._codec = codec
        self._zstd = pa.Codec("zstd") if codec == "ZSTD" else None
        self._block, self._block_at = np.empty(0, dtype=np.uint8), begin
        """A part of the file."""
        self._ahead = BLOCK
        """As many bytes as the page before had, for the next one may be as large."""
        self._numbers = np.empty(len(PageHeader._fields), dtype=np.int64)
        self._numbers_at = address(self._numbers)
        self._header = self._numbers.copy()
        self._header_at = address(self._header)
        self._room = np.empty(0, dtype=np.uint8)
        self._room_at = address(self._room)

    def next(self) -> PageHeader:
        """The next page that holds values or words. ``body_at`` is where it begins."""
        while True:
            header = self._read_header()
            body_at = self._at
            if header.type not in (DATA, INDEX, DICTIONARY, DATA_2):
                raise DoubtfulPage(f"a page of type {header.type}")
            if not 0 <= header.compressed <= self._end - self._at or header.uncompressed < 0:
                raise DoubtfulPage("a page is larger than its column")
            self._at += header.compressed
            if header.type == INDEX:
                continue
            if header.values < 0 or max(header.values, header.uncompressed) >= 1 << 31:
                raise DoubtfulPage("a page without a number of values")
            self.body_at = body_at
            return header

    @property
    def has_kernel(self) -> bool:
        """Whether ``begin`` knows the codec."""
        return self._codec in _KERNELS

    def begin(self, header: PageHeader, at: int, nullable: bool, page: int, source: int, width: int) -> tuple[Any, ...]:
        """Begin a page of values, whose body is at ``at``, at the address ``page`` (``pages.c``); what it points to."""
        whole = self._whole(header, at)
        codec = _KERNELS[self._codec]
        if codec:
            self._make_room(header.uncompressed, header.compressed)
        self._header[:] = header
        where = self._header_at, address(whole), nullable, codec, source, width, self._room_at
        if self._library.call("page_begin", page, *where) < 0:
            raise DoubtfulPage("a page that does not fit its header")
        return whole, self._room

    def body(self, header: PageHeader, at: int, nullable: bool) -> tuple[Any, Any]:
        """The levels (None: there are none) and the values of a page that begins at ``at``: arrays of bytes, until the
        next one is asked for."""
        whole = self._whole(header, at)
        if header.type == DATA_2:
            return self._second_body(header, whole, nullable)
        values = self._decompressed(whole, header.uncompressed)
        if header.type == DICTIONARY or not nullable:
            return None, values
        if header.level_encoding != _RLE or len(values) < 4:
            raise DoubtfulPage("levels in another encoding")
        size = int.from_bytes(values[:4].tobytes(), "little")
        if size > len(values) - 4:
            raise DoubtfulPage("levels that are longer than their page")
        return values[4 : 4 + size], values[4 + size :]

    def _whole(self, header: PageHeader, at: int) -> Any:
        whole = self._bytes(at, header.compressed)
        self._ahead = min(max(BLOCK, header.compressed + _HEADER_ROOM), LONGEST_BLOCK)
        if header.has_checksum and zlib.crc32(whole) != header.checksum & 0xFFFFFFFF:
            raise DoubtfulPage("a page does not fit its checksum")
        return whole

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

    def _read_header(self) -> PageHeader:
        known = min(len(self._block) - (self._at - self._block_at), self._end - self._at)
        if known <= 0:
            known = self._load(self._at, min(self._ahead, self._end - self._at))
        while True:
            begin = self._at - self._block_at
            read = self._library.call("page_header", address(self._block) + begin, known, self._numbers_at)
            if read > 0:
                self._at += read
                return PageHeader(*self._numbers.tolist())
            if read < 0 or known == self._end - self._at or known >= _LONGEST_HEADER:
                raise DoubtfulPage("no header of a page where one should be")
            known = self._load(self._at, min(max(2 * known, self._ahead), self._end - self._at))

    def _bytes(self, at: int, size: int) -> Any:
        begin = at - self._block_at
        if begin < 0 or size > len(self._block) - begin:
            self._load(at, min(max(size + _HEADER_ROOM, BLOCK), self._end - at))
            begin = 0
            if size > len(self._block):
                raise DoubtfulPage("the file ends within a page")
        return self._block[begin : begin + size]

    def _load(self, at: int, size: int) -> int:
        """Read a block; how many bytes of it there are."""
        if size <= 0:
            raise DoubtfulPage("the column ends before its values do")
        self._block, self._block_at = np.frombuffer(self._fetch(at, size), dtype=np.uint8), at
        if len(self._block) != size:
            raise DoubtfulPage("the file ends before the column does")
        return len(self._block)

    def _decompressed(self, given: Any, size: int) -> Any:
        codec = self._codec
        if codec == "UNCOMPRESSED":
            made = given
        elif size == 0:
            return given[:0]
        elif codec in _MOST:
            made = self._by_kernel(given, size)
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

    def _by_kernel(self, given: Any, size: int) -> Any:
        self._make_room(size, len(given))
        if self._library.call(self._codec.lower(), address(given), len(given), self._room_at, size) < 0:
            raise DoubtfulPage(f"a page that {self._codec} cannot have made")
        return self._room[:size]

    def _make_room(self, size: int, given: int) -> None:
        """For so many bytes, which are made of those that are given."""
        if size > _MOST[self._codec] * given + _MOST_MORE:
            raise DoubtfulPage("a page cannot be as large as its header says")
        if size > len(self._room):
            self._room = np.frombuffer(pa.allocate_buffer(size), dtype=np.uint8)  # whose pages are there already
            self._room_at = address(self._room)


def _streamed(codec: str, given: Any, most: int) -> Any:
    """At most so many bytes of what was compressed."""
    try:
        if codec == "GZIP":
            return zlib.decompressobj(_ANY_ZLIB).decompress(given, most)
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(given)), codec.lower()) as stream:
            return stream.read(most)
    except (OSError, zlib.error, pa.ArrowException) as error:
        raise DoubtfulPage(str(error)) from error


def is_words(header: PageHeader) -> bool:
    """Whether a dictionary's words are encoded as they all are."""
    return header.encoding in (_PLAIN, _PLAIN_DICTIONARY)
