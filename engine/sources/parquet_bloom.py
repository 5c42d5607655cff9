"""Bloom filters of Parquet files: which values a column of a row group certainly has not.

Rules:

1. Split-block filters of XXH64, uncompressed, are understood, the only ones that the format knows. A header that says
   anything else, or does not fit its file, tells nothing.
2. A value is hashed as it lies in the file. Whose bytes are not certain (both zeros, NaN) may always be there.
3. Of a filter the header is read, and for each value that is asked for the block of 32 bytes that it falls into.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from ..expressions.bounds import kind_of
from ..integrity.checksums import parquet_hash

Part = Callable[[int, int], bytes]
"""Of a file, from an offset on so many bytes, or fewer at its end."""
_BLOCK = 32
_MOST_BYTES = 128 * 1024 * 1024
_LONGEST_HEADER = 32
_SIZE, _REST = 0x15, bytes.fromhex("1c1c00001c1c00001c1c000000")
"""How a header begins, with its number of bytes, and how it goes on: by block, XXH64, uncompressed."""
_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)

_32 = (1 << 32) - 1

Lacks = Callable[[Any], bool]


def lacks_of(
    read: Part, chunk: parquet.ColumnChunkMetaData, column: parquet.ColumnSchema, type: pa.DataType
) -> Lacks | None:
    """What tells of a value (``expressions.bounds``) whether the column certainly has it not; None: nothing does."""
    at = chunk.bloom_filter_offset
    blocks = None if at is None else _header(read(at, _LONGEST_HEADER))
    if blocks is None:
        return None
    begin, count = at + blocks[0], blocks[1]

    def lacks(value: Any) -> bool:
        content = stored_bytes(value, column.physical_type, column.length, type)
        if content is None:
            return False
        hash = parquet_hash(content)
        block = read(begin + _BLOCK * (((hash >> 32) * count) >> 32), _BLOCK)
        if len(block) != _BLOCK:
            return False
        words = struct.unpack("<8I", block)
        return not all(word >> ((hash * salt & _32) >> 27) & 1 for word, salt in zip(words, _SALTS, strict=True))

    return lacks


def _header(found: bytes) -> tuple[int, int] | None:
    """Its length, and how many blocks follow."""
    if len(found) < 2 or found[0] != _SIZE:
        return None
    size = shift = 0
    for place in range(1, min(len(found), 6)):
        size |= (found[place] & 0x7F) << shift
        shift += 7
        if found[place] < 0x80:
            break
    else:
        return None
    size >>= 1  # zigzag
    end = place + 1 + len(_REST)
    if found[place + 1 : end] != _REST or size % _BLOCK or not _BLOCK <= size <= _MOST_BYTES:
        return None
    return end, size // _BLOCK


def stored_bytes(value: Any, physical: str, length: int, type: pa.DataType) -> bytes | None:
    """How a value lies in a file; None: that is not certain."""
    kind = kind_of(type)
    if kind in ("text", "binary"):
        return value if isinstance(value, bytes) and physical == "BYTE_ARRAY" else None
    if kind == "real":
        form = {"FLOAT": "<f", "DOUBLE": "<d"}.get(physical)
        return None if form is None or not value or math.isnan(value) else _float(form, float(value))
    if kind == "decimal":
        value = _digits(Decimal(value), type.scale)
    if not isinstance(value, int):
        return None
    size = {"INT32": 4, "INT64": 8, "FIXED_LEN_BYTE_ARRAY": length if kind == "decimal" else 0}.get(physical, 0)
    if not size or not -(1 << (8 * size - 1)) <= value < 1 << (8 * size - (kind != "whole")):  # some have no sign
        return None
    return (value & ((1 << (8 * size)) - 1)).to_bytes(size, "big" if physical == "FIXED_LEN_BYTE_ARRAY" else "little")


def _digits(value: Decimal, scale: int) -> int | None:
    """A value as digits, so many of them behind the point; None: it has more. Contexts of decimals would round it."""
    sign, digits, exponent = value.as_tuple()
    found, more = int("".join(map(str, digits))), int(exponent) + scale
    power = int(10 ** abs(more))
    if more < 0 and found % power:
        return None
    found = found * power if more >= 0 else found // power
    return -found if sign else found


def _float(form: str, value: float) -> bytes | None:
    try:
        found = struct.pack(form, value)
    except OverflowError:  # in 32 bits
        return None
    return found if struct.unpack(form, found) == (value,) else None
