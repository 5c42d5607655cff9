"""Key columns as numbers: what grouping and joining need to compare rows without a loop over them.

Rules:

1. A dictionary column counts as its values. Floats are compared as SQL does: NaN equals NaN and is the largest value,
   −0.0 equals 0.0. Strings and binary are ordered by their bytes, as Arrow and Spark do.
2. A *comparable* form of a column keeps order and equality of its non-null values: an int64 array where the type
   allows it, else an Arrow array whose kernels compare; structs, lists and maps become bytes (``key_bytes``). What
   stands in the place of a null is arbitrary.
3. Codes of two sides share one scale, so that comparing codes is comparing keys, over any number of columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import FlowError
from ..core.schemas import value_type
from .key_bytes import key_bytes
from .native import kernels_for
from .pieces import Flags, Positions

Comparable: TypeAlias = Any
"""An int64 numpy array, or an Arrow array of a type with comparison kernels (see rule 2)."""

_SIGN = np.int64(-(2**63))
_CODE_LIMIT = 2**62
"""Codes stay below this, so that their sums and products fit into int64."""
_INT64 = pa.int64().id
_NUMBER_IDS = {type.id for type in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())}
"""The types that are looked at most often, so that they are recognized at once."""


def check_key_types(kind: str, fields: Iterable[pa.Field]) -> None:
    """The columns can be keys, of any operator: whatever has an order can be sorted by, grouped by and joined on."""
    for field in fields:
        if not _is_key(value_type(field.type)):
            raise FlowError(
                f"{kind}: column {field.name!r} of type {field.type} cannot be a key",
                "use a number, boolean, string, binary, decimal, date, time or timestamp column, or one nested of such",
            )


def _is_key(type: pa.DataType) -> bool:
    if pa.types.is_nested(type):
        children = [value_type(type.field(number).type) for number in range(type.num_fields)]
        return not pa.types.is_union(type) and all(map(_is_key, children))
    return _is_integral(type) or bool(pa.types.is_floating(type)) or _has_kernels(type)


def decoded(column: pa.Array) -> pa.Array:
    """The column with its values in place of dictionary codes."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def is_coded(type: pa.DataType) -> bool:
    """Whether the comparable form of such a column is integers, which mean the same in every batch."""
    plain = value_type(type)
    return _is_integral(plain) or bool(pa.types.is_floating(plain))


def comparable(given: pa.Array) -> Comparable:
    """The comparable form of a column (rule 2)."""
    column = decoded(given)
    type = column.type
    if type.id == _INT64:
        return numbers(column)
    if pa.types.is_null(type):
        return np.zeros(len(column), dtype=np.int64)
    if pa.types.is_floating(type):
        return _ordered_bits(column)
    if pa.types.is_uint64(type):
        return numbers(column).view(np.int64) ^ _SIGN
    if _is_integral(type):
        return numbers(column).astype(np.int64, copy=False)
    return key_bytes(column, comparable) if pa.types.is_nested(type) else column


def numbers(column: pa.Array) -> Any:
    """A column of an integral or floating type as numpy numbers; 0 in place of null."""
    type = column.type
    if type.id not in _NUMBER_IDS and (pa.types.is_temporal(type) or _is_small_decimal(type)):
        column = column.view(pa.int32() if type.bit_width == 32 else pa.int64())
    if not column.null_count:
        return column.to_numpy(zero_copy_only=False)
    valid = validity(column)
    plain = pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1]], 0, column.offset)
    values = plain.to_numpy(zero_copy_only=False)
    return np.where(valid, values, values.dtype.type(0))


def valid_rows(columns: Sequence[pa.Array]) -> Positions | None:
    """The rows in which no column is null; None if that is all of them."""
    flags = [validity(column) for column in columns if column.null_count]
    return np.flatnonzero(np.logical_and.reduce(flags)) if flags else None


def validity(column: pa.Array) -> Flags:
    """Which rows are not null."""
    bits = None if pa.types.is_union(column.type) or pa.types.is_null(column.type) else column.buffers()[0]
    if bits is None:
        flags: Flags = column.is_valid().to_numpy(zero_copy_only=False)
        return flags
    # much faster than to have Arrow make bytes of bits
    first, end = column.offset, column.offset + len(column)
    some = np.frombuffer(bits, dtype=np.uint8)[first // 8 : -(-end // 8)]
    flags = np.unpackbits(some, bitorder="little").view(np.bool_)[first % 8 : first % 8 + len(column)]
    return flags


def taken(keys: Comparable, rows: Positions) -> Comparable:
    """Some rows of a comparable column."""
    return keys[rows] if isinstance(keys, np.ndarray) else keys.take(pa.array(rows))


def joined(parts: Sequence[Comparable]) -> Comparable:
    """Comparable columns one after the other."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts)


def differences(columns: Sequence[pa.Array]) -> Flags:
    """For each row but the first: does its key differ from that of the row before? Null is a key like any other."""
    flags = [_differences(column) for column in columns]
    return reduce(np.logical_or, flags)


def _differences(given: pa.Array) -> Flags:
    column = decoded(given)
    keys = comparable(column)
    differ: Flags = ~compared("equal", keys[1:], keys[:-1])
    if column.null_count:
        valid = validity(column)
        differ = (differ & valid[1:] & valid[:-1]) | (valid[1:] != valid[:-1])
    return differ


def first_descent(keys: Sequence[Comparable]) -> int | None:
    """The first row whose key is smaller than that of the row before; None if the rows are sorted."""
    rows = len(keys[0])
    tied, down = np.ones(max(rows - 1, 0), dtype=bool), np.zeros(max(rows - 1, 0), dtype=bool)
    for column in keys:
        down |= tied & compared("less", column[1:], column[:-1])
        tied &= compared("equal", column[1:], column[:-1])
    return int(np.argmax(down)) + 1 if down.any() else None


def compared(relation: str, one: Comparable, other: Comparable) -> Flags:
    """``equal`` or ``less``, row by row; false where an Arrow array holds null."""
    if isinstance(one, np.ndarray):
        flags: Flags = one == other if relation == "equal" else one < other
        return flags
    flags = pc.call_function(relation, [one, other]).fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def shared_codes(left: Sequence[Comparable], right: Sequence[Comparable]) -> tuple[Positions, Positions]:
    """Codes for the keys of two sides, on one scale: ordered and equal exactly as the keys are."""
    one, other, width = _column_codes(left[0], right[0])
    for next_left, next_right in zip(left[1:], right[1:], strict=True):
        next_one, next_other, next_width = _column_codes(next_left, next_right)
        if width * next_width > _CODE_LIMIT:
            one, other, width = _dense(one, other)
        if width * next_width > _CODE_LIMIT:
            next_one, next_other, next_width = _dense(next_one, next_other)
        one, other = one * next_width + next_one, other * next_width + next_other
        width *= next_width
    return one, other


def _column_codes(left: Comparable, right: Comparable) -> tuple[Positions, Positions, int]:
    if not isinstance(left, np.ndarray):
        return _ranks(left, right)
    ends = [value for side in (left, right) if len(side) for value in (side.min(), side.max())]
    low, high = (int(min(ends)), int(max(ends))) if ends else (0, 0)
    if high - low >= _CODE_LIMIT:
        return _dense(left, right)
    return left - low, right - low, high - low + 1


def _dense(left: Positions, right: Positions) -> tuple[Positions, Positions, int]:
    values, codes = np.unique(np.concatenate([left, right]), return_inverse=True)
    return codes[: len(left)], codes[len(left) :], max(len(values), 1)


def _ranks(left: pa.Array, right: pa.Array) -> tuple[Positions, Positions, int]:
    encoded = pa.concat_arrays([left, right]).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    codes = rank[encoded.indices.to_numpy()]
    return codes[: len(left)], codes[len(left) :], max(len(order), 1)


def _ordered_bits(column: pa.Array) -> Positions:
    """Floats as integers in the same order: the bits of negative numbers count downwards."""
    kernels = kernels_for(len(column))
    if kernels is not None:
        doubles = numbers(column)
        with np.errstate(invalid="ignore"):
            return kernels.ordered_bits(np.ascontiguousarray(doubles, dtype=np.float64))
    with np.errstate(invalid="ignore"):  # a signalling NaN in the data is a NaN, not a warning
        values = numbers(column).astype(np.float64) + 0.0
    bits = values.view(np.int64)
    ordered: Positions = np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)
    ordered[np.isnan(values)] = 2**63 - 1
    return ordered


def _is_integral(type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(type) or types.is_boolean(type) or is_point_in_time(type) or _is_small_decimal(type))


def _is_small_decimal(type: pa.DataType) -> bool:
    """Decimals of 32 and 64 bits: integers with a scale. Arrow has few kernels for them."""
    return bool(pa.types.is_decimal(type) and type.bit_width < 128)


def is_point_in_time(type: pa.DataType) -> bool:
    """Dates, times, timestamps and durations: integers with a unit."""
    return bool(pa.types.is_temporal(type) and not pa.types.is_interval(type))


def _has_kernels(type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(type)
        or types.is_large_string(type)
        or types.is_binary(type)
        or types.is_large_binary(type)
        or types.is_fixed_size_binary(type)
        or types.is_decimal(type)
        or types.is_null(type)
    )
