"""How many bits each of some rows takes, from offsets alone: no value is looked at, and no row that is not asked for.

Rules:

1. A row's bits are its share of the buffers: values of a fixed width, offsets, characters, elements, and one bit of
   validity for each column, at every depth, whether there is a null or not.
2. Of a dictionary it is the code: the words are shared by all rows.
3. Of a column in its compact form (``arrow.compact``) it is what the row takes in the declared type.
4. Ranges of rows cost as much as single ones, since offsets of offsets are looked up in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bits: TypeAlias = "int | npt.NDArray[np.int64]"
"""Of each of some rows, or one number for all of them."""

_INLINE = 12
"""Characters that a view holds itself."""


def row_bits(columns: Iterable[Any], rows: npt.NDArray[np.int64], types: Sequence[pa.DataType] | None = None) -> Bits:
    """The bits that each of ``rows`` takes in ``columns``: arrays, or columns on disk (``stored_rows``). ``types``: the
    declared ones, where columns may be compact."""
    same, differing = 0, None
    for place, column in enumerate(columns):
        type = column.type if types is None else types[place]
        if (fixed := fixed_bits(type)) is not None:
            same += fixed
            continue
        own = getattr(column, "row_bits", None)
        if own is not None:
            bits = own(rows)
        else:
            bits = _bits(column, rows) if column.type == type else _coded_bits(column, rows)
        differing = bits if differing is None else np.add(differing, bits, out=differing)
    return same if differing is None else np.add(differing, same, out=differing)


def total_bits(records: pa.RecordBatch) -> int:
    """The bits of all rows together, at the cost of one (rule 4)."""
    start, end = np.zeros(1, np.int64), np.full(1, records.num_rows)
    found = 0
    for column in records.columns:
        fixed = fixed_bits(column.type)
        found += int(_range_bits(column, start, end)[0]) if fixed is None else fixed * records.num_rows
    return found


def row_bits_of_all(records: pa.RecordBatch) -> int | None:
    """The bits of any row, if all have the same."""
    found = 0
    for column in records.columns:
        fixed = fixed_bits(column.type)
        if fixed is None:
            return None
        found += fixed
    return found


def _bits(array: pa.Array, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of single rows. Those of text, the frequent case, without temporary arrays."""
    if not _is_text(array.type):
        return _range_bits(array, rows, rows + 1)
    offsets = _offsets(array)
    lengths = np.diff(offsets)[rows] if len(array) <= 2 * len(rows) else offsets[rows + 1] - offsets[rows]
    bits: npt.NDArray[np.int64] = lengths.astype(np.int64)
    bits *= 8
    bits += offsets.itemsize * 8 + 1
    return bits


def _coded_bits(array: pa.Array, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Those of the values that the codes of single rows stand for; of a null those of an empty value."""
    words = array.dictionary
    of_words = _bits(words, np.arange(len(words)))
    codes = np.frombuffer(array.indices.buffers()[1], np.int32, len(array), 4 * array.offset)[rows]
    if not array.null_count:
        return of_words[codes]
    of_null = _offsets(words).itemsize * 8 + 1
    valid = array.is_valid().to_numpy(zero_copy_only=False)[rows]
    return np.where(valid, of_words[np.where(valid, codes, 0)] if len(words) else of_null, of_null)


def fixed_bits(type: pa.DataType) -> int | None:
    """The bits of a row of this type, if all rows have the same."""
    if isinstance(type, pa.BaseExtensionType):
        return fixed_bits(type.storage_type)
    try:
        return int(type.bit_width) + 1
    except ValueError:
        pass
    types = pa.types
    if types.is_null(type):
        return 0
    if types.is_fixed_size_list(type):
        element = fixed_bits(type.value_type)
        return None if element is None else element * int(type.list_size) + 1
    if types.is_struct(type):
        total = 1
        for field in type.fields:
            if (bits := fixed_bits(field.type)) is None:
                return None
            total += bits
        return total
    return None


def _range_bits(array: pa.Array, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bits of the rows from ``starts[n]`` to ``ends[n]``."""
    types, type = pa.types, array.type
    count = ends - starts
    if isinstance(type, pa.BaseExtensionType):
        return _range_bits(array.storage, starts, ends)
    if (fixed := fixed_bits(type)) is not None:
        return count * fixed
    if types.is_struct(type):
        total = count.copy()
        for place in range(type.num_fields):
            total += _range_bits(array.field(place), starts, ends)
        return total
    if types.is_fixed_size_list(type):
        size = int(type.list_size)
        elements = array.values.slice(array.offset * size, len(array) * size)
        return count + _range_bits(elements, starts * size, ends * size)
    if types.is_string_view(type) or types.is_binary_view(type):
        return count * (128 + 1) + _summed(_beyond_views(array), starts, ends)
    if (is_text := _is_text(type)) or types.is_list(type) or types.is_large_list(type) or types.is_map(type):
        offsets = _offsets(array)
        low, high = offsets[starts].astype(np.int64), offsets[ends].astype(np.int64)
        inside = (high - low) * 8 if is_text else _range_bits(array.values, low, high)
        inside += count * (offsets.itemsize * 8 + 1)
        return inside
    average = int(array.nbytes) * 8 // max(len(array), 1) + 1
    return count * average  # unions, runs, views of lists


def _is_text(type: pa.DataType) -> bool:
    types = pa.types
    is_small = types.is_string(type) or types.is_binary(type)
    return bool(is_small or types.is_large_string(type) or types.is_large_binary(type))


def _offsets(array: pa.Array) -> npt.NDArray[Any]:
    """Where each row begins, and where the last one ends."""
    types, type = pa.types, array.type
    is_large = types.is_large_string(type) or types.is_large_binary(type) or types.is_large_list(type)
    number = np.dtype(np.int64 if is_large else np.int32)
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(1, dtype=number)
    return np.frombuffer(buffer, number, len(array) + 1, array.offset * number.itemsize)


def _beyond_views(array: pa.Array) -> npt.NDArray[np.int64]:
    """The bits of the characters that do not lie in the views themselves."""
    if not len(array):
        return np.zeros(0, dtype=np.int64)
    lengths = np.frombuffer(array.buffers()[1], np.int32, len(array) * 4, array.offset * 16)[::4]
    beyond: npt.NDArray[np.int64] = np.where(lengths > _INLINE, lengths, 0).astype(np.int64) * 8
    return beyond


def _summed(
    numbers: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    sums = np.append(0, np.cumsum(numbers))
    found: npt.NDArray[np.int64] = sums[ends] - sums[starts]
    return found
