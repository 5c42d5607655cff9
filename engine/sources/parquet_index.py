"""The page indexes of Parquet files: within which bounds the values of each page of a column lie, and where pages are.

Rules:

1. What a file says of its pages is believed as what it says of its row groups is (``skipping``), where both agree: the
   bounds of the pages take in those of the row group, and pages follow each other from its first row to its last. An
   index of another kind tells nothing. A page that is read has the rows and the place that the index says
   (``kernels.pages``), or pyarrow reads the column.
2. Where indexes are pyarrow does not tell. It writes a footer as it has read it, which ``pages.c`` looks through, and
   with which it is found out, too, whether pyarrow may be asked what it says (``may_be_asked``).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from ..expressions.bounds import Range
from ..kernels.page_library import address, page_library
from ..kernels.pages import chunk_range
from .parquet_bloom import Part

_MOST_BYTES = 16 * 1024 * 1024
"""Of an index, at most."""
_KEPT = 16
"""Footers of which it is kept where their indexes are."""
_MAGIC = 4
_TRUE, _FALSE, _I32, _I64, _BINARY, _LIST, _STRUCT = 1, 2, 5, 6, 8, 9, 12
"""Of Thrift's compact protocol."""


class IndexPlaces(NamedTuple):
    """Where the indexes of a column of a row group are, and whether all of its pages have codes of words; -1: it is not
    said."""

    offsets_at: int
    offsets_size: int
    ranges_at: int
    ranges_size: int
    only_words: int


_NOWHERE = IndexPlaces(-1, -1, -1, -1, -1)


class _Known:
    """The places in footers that were asked last."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, tuple[parquet.FileMetaData, npt.NDArray[np.int64] | None]] = OrderedDict()
        self._lock = Lock()

    def of(self, footer: parquet.FileMetaData) -> npt.NDArray[np.int64] | None:
        """By row group, column, and field of ``IndexPlaces``; None: the footer is not understood."""
        with self._lock:
            known = self._found.get(id(footer))  # which is that of no other one while it is kept
        if known is None:
            known = footer, _places(footer)
            with self._lock:
                self._found[id(footer)] = known
                while len(self._found) > _KEPT:
                    self._found.popitem(last=False)
        return known[1]


def _places(footer: parquet.FileMetaData) -> npt.NDArray[np.int64] | None:
    library = page_library()
    if library is None:
        return None
    content = _written(footer)
    found = np.empty((footer.num_row_groups, footer.num_columns, len(IndexPlaces._fields)), dtype=np.int64)
    where = content.address + _MAGIC, content.size - 3 * _MAGIC
    failed = library.call("index_places", *where, footer.num_row_groups, footer.num_columns, address(found))
    return None if failed else found


def _written(footer: parquet.FileMetaData) -> pa.Buffer:
    """It, between what stands around a footer."""
    sink = pa.BufferOutputStream()
    footer.write_metadata_file(sink)
    return sink.getvalue()


def may_be_asked(footer: parquet.FileMetaData) -> bool:
    """Whether its columns are of the types that its schema says, and their codecs those that there are: pyarrow ends
    the process where it is asked for a column that is not so, instead of raising anything."""
    library = page_library()
    if library is None:
        return True
    content, room = _written(footer), np.empty((footer.num_columns, 3), dtype=np.int64)
    where = content.address + _MAGIC, content.size - 3 * _MAGIC
    return bool(library.call("footer_fits", *where, footer.num_columns, address(room)))


_KNOWN = _Known()


def index_places(footer: parquet.FileMetaData, group: int, leaf: int) -> IndexPlaces:
    """Of a leaf column of a row group."""
    found = _KNOWN.of(footer)
    return _NOWHERE if found is None else IndexPlaces(*found[group, leaf].tolist())


# ------------------------------------------------------------------ where pages are


def page_places(read: Part, chunk: parquet.ColumnChunkMetaData, places: IndexPlaces) -> npt.NDArray[np.int64] | None:
    """Where each page of a column begins, and with which row: (offset, row) of each, and of the end; None: it is not
    said, or not so that it can be right."""
    try:
        fields = _Thrift(_bytes(read, places.offsets_at, places.offsets_size)).struct()
        pages = [(each[1], each[3], each[2]) for each in fields[1]]
        ends = np.array([*pages, (chunk.data_page_offset, 0, 0)], dtype=np.int64)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError):
        return None
    ends[-1] = chunk_range(chunk)[1], chunk.num_values, 0
    follow = (
        len(pages) > 0 and ends[0, 0] == chunk.data_page_offset and not ends[0, 1] and bool((ends[:, 2] >= 0).all())
    )
    if not follow or (np.diff(ends[:, 1]) <= 0).any() or (np.diff(ends[:, 0]) < ends[:-1, 2]).any():
        return None
    return np.ascontiguousarray(ends[:, :2])


# ------------------------------------------------------------------ bounds of pages


@dataclass(frozen=True, slots=True)
class PageRanges:
    """``starts``: the first row of each page; ``ranges``: what is told of it."""

    starts: Sequence[int]
    ranges: Sequence[Range]

    def at(self, row: int) -> Range:
        """Of the page that has a row."""
        return self.ranges[bisect_right(self.starts, row) - 1]


def page_ranges(
    read: Part, places: IndexPlaces, starts: Sequence[int], whole: Range, to_value: Callable[[bytes], Any]
) -> PageRanges | None:
    """Of pages that begin with these rows, in a row group of which ``whole`` is known. ``to_value``: of the bytes of a
    bound; None: it is none. None: nothing is told."""
    try:
        fields = _Thrift(_bytes(read, places.ranges_at, places.ranges_size)).struct()
        empty, lows, highs = fields[1], fields[2], fields[3]
        nulls = fields.get(5) or [None] * len(empty)
        if not len(empty) == len(lows) == len(highs) == len(nulls) == len(starts):
            return None
        ranges = [
            Range(has_values=False) if none else _range(to_value(low), to_value(high), count)
            for none, low, high, count in zip(empty, lows, highs, nulls, strict=True)
        ]
    except (KeyError, TypeError, ValueError, IndexError, struct.error, RecursionError):
        return None
    return PageRanges(starts, ranges) if _agrees(ranges, whole) else None


def _range(low: Any, high: Any, nulls: int | None) -> Range:
    is_told = low is not None and high is not None and low <= high
    return Range(low if is_told else None, high if is_told else None, has_nulls=nulls != 0)


def _agrees(ranges: Sequence[Range], whole: Range) -> bool:
    """Rule 1. Bounds of texts may be cut short, each at another length."""
    own = [each for each in ranges if each.has_values]
    if not own:
        return not whole.has_values
    if any(each.low is None for each in own) or whole.low is None or isinstance(whole.low, bytes):
        return True
    return bool(min(each.low for each in own) <= whole.low and max(each.high for each in own) >= whole.high)


# ------------------------------------------------------------------ bytes


def _bytes(read: Part, at: int, size: int) -> bytes:
    if at < 0 or not 0 < size <= _MOST_BYTES:
        raise ValueError("no index")
    found = read(at, size)
    if len(found) != size:
        raise ValueError("an index beyond its file")
    return found


class _Thrift:
    """A struct of Thrift's compact protocol. Raises ValueError and IndexError where it is none."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def struct(self) -> dict[int, Any]:
        """Its fields by their numbers."""
        found: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._whole()
            kind = head & 15
            found[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind)
        return found

    def _value(self, kind: int) -> Any:
        if kind in (_I32, _I64):
            return self._whole()
        if kind == _BINARY:
            return self._part(self._varint())
        if kind == _LIST:
            return self._list()
        if kind == _STRUCT:
            return self.struct()
        if kind in (_TRUE, _FALSE):
            return self._byte() == _TRUE
        raise ValueError(f"a field of type {kind}")

    def _list(self) -> list[Any]:
        head = self._byte()
        count = head >> 4
        if count == 15:
            count = self._varint()
        if count > len(self._content):
            raise ValueError("a list of more than there is")
        return [self._value(head & 15) for _ in range(count)]

    def _byte(self) -> int:
        found = self._content[self._at]
        self._at += 1
        return found

    def _varint(self) -> int:
        found = shift = 0
        while (byte := self._byte()) > 127:
            found |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")
        return found | byte << shift

    def _whole(self) -> int:
        found = self._varint()
        return found >> 1 ^ -(found & 1)

    def _part(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._content):
            raise ValueError("bytes beyond the end")
        found, self._at = self._content[self._at : end], end
        return found
