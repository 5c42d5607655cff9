"""Nested keys as bytes: of two structs, lists or maps the smaller one has smaller bytes, and equal ones have the same.

Rules:

1. A struct is its fields one after the other, a list its elements and an end, a map the list of its entries. Within
   them a null is a value like any other, the largest one, as in SQL. A list is larger than one that it begins with.
2. Every value begins with a mark (null or not) and tells where it ends, so that no two keys run into each other:
   numbers have a fixed width, a text ends with two zeros, and a zero within it is followed by a one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.list_layouts import as_lists

_VALUE, _NULL, _END, _TEXT_END = (pa.scalar(mark, pa.binary()) for mark in (b"\1", b"\2", b"\0", b"\0\0"))


def key_bytes(column: pa.Array, comparable: Callable[[pa.Array], Any]) -> pa.Array:
    """The bytes of each row of a nested column; arbitrary in place of null. ``comparable``: of a column of numbers."""
    type = column.type
    if pa.types.is_struct(type):
        return _joined([_marked(child, comparable) for child in column.flatten()], len(column))
    if pa.types.is_nested(type):
        column = as_lists(column)
        lengths = column.value_lengths().fill_null(0).to_numpy()
        offsets = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
        elements = pa.ListArray.from_arrays(offsets, _marked(column.flatten(), comparable))
        return _joined([pc.binary_join(elements, b""), _END], len(column))
    return _leaf_bytes(column, comparable)


def _marked(column: pa.Array, comparable: Callable[[pa.Array], Any]) -> pa.Array:
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if pa.types.is_null(plain.type):
        return pa.repeat(_NULL, len(plain))
    marked = _joined([_VALUE, key_bytes(plain, comparable)], len(plain))
    return marked if not plain.null_count else pc.if_else(plain.is_valid(), marked, _NULL)


def _leaf_bytes(column: pa.Array, comparable: Callable[[pa.Array], Any]) -> pa.Array:
    if pa.types.is_decimal(column.type):
        width = column.type.bit_width // 8
        numbers = np.frombuffer(column.buffers()[1], dtype=np.uint8).reshape(-1, width)
        backwards = numbers[column.offset : column.offset + len(column), ::-1]
        return _fixed(backwards)
    keys = comparable(column)
    if isinstance(keys, np.ndarray):
        return _fixed(keys.astype(">i8").view(np.uint8).reshape(-1, 8))
    escaped = pc.replace_substring(keys.cast(pa.binary()), b"\0", b"\0\1")
    return _joined([escaped, _TEXT_END], len(column))


def _fixed(numbers: Any) -> pa.Array:
    """Two's complement, highest byte first; with its sign turned over it is ordered as unsigned bytes are."""
    width = numbers.shape[1]
    unsigned = np.ascontiguousarray(numbers).copy()
    unsigned[:, 0] ^= 0x80
    buffers = [None, pa.py_buffer(unsigned)]
    return pa.Array.from_buffers(pa.binary(width), len(unsigned), buffers).cast(pa.binary())


def _joined(parts: list[Any], rows: int) -> pa.Array:
    if not parts:
        return pa.repeat(pa.scalar(b"", pa.binary()), rows)
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
