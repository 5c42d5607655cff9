"""A hash of key columns that is the same everywhere: in every process, on every platform, in every layout of a batch.

Checkpoints depend on it: it decides which part a key belongs to, and so whose state it is. ``HASH_VERSION`` changes
with every change of a hash value; values are pinned by tests. Rules:

1. Rows with equal keys have equal hashes, however the batch is cut, sliced or dictionary-encoded. Null is a key; a null
   hashes alike in every type. −0.0 equals 0.0, every NaN equals every other. Struct, list and map are hashed by what
   they hold, in order, unions by the value and the code of its type; what lies under a null is not looked at.
2. Integers, booleans and floats hash by value, dates and times by their number of units, decimals by their unscaled
   value, strings and binary by their bytes: keys of different types may differ even if SQL calls them equal.
3. Values are mixed as 64-bit numbers that wrap around: multiply, fold the upper half down, multiply. Bytes are taken
   eight at a time; the words of a string and the elements of a list are mixed with their position, then added up.
4. The upper bits are the best ones: ``part_numbers`` scales them to the number of parts, without a division.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.list_layouts import as_lists, elements
from .native import kernels_for

HASH_VERSION = 1

Hashes = npt.NDArray[np.uint64]
Parts = npt.NDArray[np.uint16]

_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_PLACE, _LENGTH, _JOIN = np.uint64(0xA0761D6478BD642F), np.uint64(0xE7037ED1A0B428DB), np.uint64(0x8EBC6AF09C88C6E3)
_NULL = np.uint64(0x589965CC75374CC3)
_HALF = np.uint64(32)
_IS_LITTLE = sys.byteorder == "little"

_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], dtype=np.uint64)
"""What is left of a word of which only so many bytes count."""

_BLOCK = 8 * 1024
"""Rows that are hashed together: so few that the many arrays in between stay in the cache and are cheap to allocate."""

_WORDS_AT_ONCE = 16
"""Words of a string that are handled one position after the other; those of longer strings all together."""


_PLACES = (np.arange(_WORDS_AT_ONCE, dtype=np.uint64) + np.uint64(1)) * _PLACE


def hashes(columns: Sequence[pa.Array]) -> Hashes:
    """The hash of each row of one or more columns."""
    rows = len(columns[0])
    found = np.empty(rows, dtype=np.uint64)
    for start in range(0, rows, _BLOCK):
        found[start : start + _BLOCK] = _hash_of_block([column.slice(start, _BLOCK) for column in columns])
    return found


def _hash_of_block(columns: Sequence[pa.Array]) -> Hashes:
    found = _hash(columns[0])
    for column in columns[1:]:
        found = _joined(found, _hash(column))
    return found


def part_numbers(found: Hashes, parts: int) -> Parts:
    """The part of each hash, out of ``parts`` (at most 2**15), each about equally likely."""
    return ((found >> _HALF) * np.uint64(parts) >> _HALF).astype(np.uint16)


def parts_of(columns: Sequence[pa.Array], parts: int) -> Parts:
    """The part of each row, by the hash of its key. Of one column of whole numbers, as keys mostly are, in one pass."""
    compiled = kernels_for(len(columns[0]))
    numbers = _whole_numbers(columns[0]) if compiled is not None and len(columns) == 1 else None
    if compiled is None or numbers is None:
        return part_numbers(hashes(columns), parts)
    return cast(Parts, compiled.parts_of(numbers, parts))


def _whole_numbers(column: pa.Array) -> npt.NDArray[np.int32 | np.int64] | None:
    """The numbers by which a column is hashed, where they lie in memory as they are."""
    type = column.type
    if _is_point_in_time(type):
        column = column.view(pa.int32() if type.bit_width == 32 else pa.int64())
    elif type not in (pa.int32(), pa.int64()):
        return None
    return None if column.null_count else column.to_numpy()


def part_order(parts: Parts) -> tuple[npt.NDArray[np.int32 | np.int64], Parts]:
    """The rows by their parts, within a part in their own order; and the parts in that order."""
    compiled = kernels_for(len(parts))
    if compiled is not None:
        parts = np.ascontiguousarray(parts)
        return compiled.part_order(parts)
    order = np.argsort(parts, kind="stable")  # two bytes are sorted by radix
    return order, parts[order]


def mixed(numbers: Hashes) -> Hashes:
    """The numbers, thoroughly mixed (rule 3). Equal ones stay equal, different ones different."""
    compiled = kernels_for(len(numbers))
    if compiled is not None:
        numbers = np.ascontiguousarray(numbers)
        return cast(Hashes, compiled.mixed(numbers))
    made = numbers * _FIRST
    made ^= made >> _HALF
    made *= _SECOND
    made ^= made >> _HALF
    return made


def _joined(one: Hashes, other: Hashes) -> Hashes:
    return mixed(one * _JOIN + other)


def _hash(column: pa.Array) -> Hashes:
    type = column.type
    if isinstance(type, pa.BaseExtensionType):
        return _hash(column.storage)
    if pa.types.is_run_end_encoded(type):
        return _hash(pc.run_end_decode(column))
    if pa.types.is_null(type):
        return np.full(len(column), _NULL)
    if pa.types.is_union(type):
        return _hash_of_union(column)
    found = _hash_of_values(column, type)
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return found


def _hash_of_values(column: pa.Array, type: pa.DataType) -> Hashes:
    """The hashes; those of nulls are arbitrary."""
    types = pa.types
    if types.is_dictionary(type):
        return _hash_of_dictionary(column)
    if types.is_floating(type):
        return mixed(_float_bits(column))
    if types.is_struct(type):
        found = np.full(len(column), _LENGTH)
        for number in range(type.num_fields):  # (``flatten`` gives children the struct's nulls, and ends with unions)
            found = _joined(found, _hash(column.field(number)))
        return found
    if types.is_nested(type):
        return _hash_of_lists(column)
    if types.is_boolean(type) or types.is_integer(type) or _is_point_in_time(type):
        return mixed(_integers(column))
    return _hash_of_bytes(column, type)


def _hash_of_dictionary(column: pa.Array) -> Hashes:
    if len(column.dictionary) > len(column):
        return _hash(column.dictionary_decode())
    values = _hash(column.dictionary)
    codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return values[codes] if len(values) else np.full(len(column), _NULL)


def _hash_of_union(column: pa.Array) -> Hashes:
    """The hash of each value, mixed with the code of its type. A union itself has no nulls, what it holds may."""
    type, buffers, mine = column.type, column.buffers(), slice(column.offset, column.offset + len(column))
    # (``type_codes`` and ``offsets`` of pyarrow are those of the whole, of which this may be a slice)
    codes = np.frombuffer(buffers[1] or b"", dtype=np.int8)[mine]
    # children of a sparse union are as long as it is, those of a dense one are picked by its offsets
    dense = type.mode == "dense"
    places = np.frombuffer(buffers[2] or b"", dtype=np.int32)[mine] if dense else np.arange(len(column))
    found = np.zeros(len(column), dtype=np.uint64)
    for number, code in enumerate(type.type_codes):
        rows = np.flatnonzero(codes == code)
        if len(rows):
            found[rows] = _joined(
                np.full(len(rows), np.uint64(code)), _hash(_picked(column.field(number), places[rows]))
            )
    return found


def _picked(values: pa.Array, places: npt.NDArray[np.int32 | np.int64]) -> pa.Array:
    return (
        values if len(places) == len(values) and bool((np.diff(places) == 1).all()) else values.take(pa.array(places))
    )


def _is_point_in_time(type: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(type) and not pa.types.is_interval(type))


def _integers(column: pa.Array) -> Hashes:
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64:
        return np.asarray(values, dtype=np.uint64)
    numbers: Hashes = values.astype(np.int64, copy=False).view(np.uint64)
    return numbers


def _float_bits(column: pa.Array) -> Hashes:
    values = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):  # a signalling NaN in the data is a NaN, not a warning
        doubles = values.astype(np.float64) + 0.0  # −0.0 + 0.0 is 0.0
    doubles[np.isnan(doubles)] = np.nan
    bits: Hashes = doubles.view(np.uint64)
    return bits


def _hash_of_bytes(column: pa.Array, type: pa.DataType) -> Hashes:
    types = pa.types
    if types.is_decimal(type) and type.bit_width < 128:
        column = column.cast(pa.decimal128(type.precision, type.scale))
    elif types.is_string_view(type) or types.is_binary_view(type):
        column = column.cast(pa.large_binary())
    rows, type = len(column), column.type
    if types.is_string(type) or types.is_binary(type) or types.is_large_string(type) or types.is_large_binary(type):
        wide = types.is_large_string(type) or types.is_large_binary(type)
        _, offsets, data = column.buffers()
        if offsets is None or not rows:
            return _hash_of_spans(np.zeros(0, dtype=np.uint8), *(np.zeros(rows, dtype=np.int64) for _ in "se"))
        bounds = np.frombuffer(offsets, dtype=np.int64 if wide else np.int32)[column.offset : column.offset + rows + 1]
        ends = bounds.astype(np.int64, copy=False) - int(bounds[0])
        content = np.frombuffer(b"" if data is None else data, dtype=np.uint8)[int(bounds[0]) : int(bounds[-1])]
        return _hash_of_spans(content, ends[:-1], ends[1:])
    width = type.bit_width // 8
    content = np.frombuffer(column.buffers()[1] or b"", dtype=np.uint8)[column.offset * width :][: rows * width]
    starts = np.arange(rows, dtype=np.int64) * width
    return _hash_of_spans(content, starts, starts + width)


def _hash_of_spans(
    content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Hashes:
    """The hash of the bytes from each start to its end."""
    compiled = kernels_for(max(len(starts), len(content)))
    if compiled is not None and _IS_LITTLE:
        starts, ends = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
        return cast(Hashes, compiled.hash_spans(content, starts, ends))
    padded = np.zeros(len(content) + 16, dtype=np.uint8)
    padded[: len(content)] = content
    # an overlapping view: the eight bytes from every position on, as one number
    words = np.ndarray((len(content) + 8,), dtype="<u8", buffer=padded, strides=(1,))
    lengths = ends - starts
    found = lengths.astype(np.uint64) * _LENGTH
    found += _mixed_words(words, starts, lengths, _PLACES[0])
    rows = np.flatnonzero(lengths > 8)
    for number in range(1, _WORDS_AT_ONCE):
        if not len(rows):
            break
        left = lengths[rows] - 8 * number
        found[rows] += _mixed_words(words, starts[rows] + 8 * number, left, _PLACES[number])
        rows = rows[left > 8]
    if len(rows):
        found[rows] += _long_tails(words, starts[rows], lengths[rows])
    return mixed(found)


def _mixed_words(
    words: npt.NDArray[np.uint64], starts: npt.NDArray[np.int64], left: npt.NDArray[np.int64], place: Hashes | np.uint64
) -> Hashes:
    """One word of each string, of which ``left`` bytes are left, mixed with the number of its ``place``."""
    taken = words[starts] & _MASKS[np.minimum(left, 8)]
    return mixed(taken + place)


def _long_tails(words: npt.NDArray[np.uint64], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Hashes:
    """The sum over the words behind the first ``_WORDS_AT_ONCE`` of each string."""
    counts = (lengths + 7) // 8 - _WORDS_AT_ONCE
    places = _positions(counts) + _WORDS_AT_ONCE
    rows = np.repeat(np.arange(len(counts)), counts)
    found = _mixed_words(words, starts[rows] + 8 * places, lengths[rows] - 8 * places, _places(places))
    return _sums(found, counts)


def _hash_of_lists(column: pa.Array) -> Hashes:
    column = as_lists(column)
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    values, places = elements(column, counts)
    if places is None and (found := _hash_of_number_lists(values, counts)) is not None:
        return found
    found = _hash(values) if places is None else _hash(values)[places]
    return mixed(_sums(mixed(found + _places(_positions(counts))), counts) + counts.astype(np.uint64) * _LENGTH)


def _hash_of_number_lists(values: pa.Array, counts: npt.NDArray[np.int64]) -> Hashes | None:
    """The same for lists of numbers one behind the other, at once; None: not for these."""
    compiled, type = kernels_for(len(values)), values.type
    if compiled is None or values.null_count:
        return None
    if _is_point_in_time(type):
        values = values.view(pa.int32() if type.bit_width == 32 else pa.int64())
    elif not (pa.types.is_integer(type) or pa.types.is_floating(type)):
        return None
    return cast("Hashes | None", compiled.hash_lists(values.to_numpy(), counts))


def _places(positions: npt.NDArray[np.int64]) -> Hashes:
    """Numbers that stand for positions."""
    return (positions.astype(np.uint64) + np.uint64(1)) * _PLACE


def _positions(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, 2, … for each run of ``counts``."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64) - np.repeat(ends - counts, counts)


def _sums(numbers: Hashes, counts: npt.NDArray[np.int64]) -> Hashes:
    """The sum of each run of ``counts`` numbers; runs may be empty."""
    sofar = np.zeros(len(numbers) + 1, dtype=np.uint64)
    np.cumsum(numbers, out=sofar[1:])
    ends = np.cumsum(counts)
    found: Hashes = sofar[ends] - sofar[ends - counts]
    return found
