"""Key columns as int64 codes that mean the same in every batch: what a table of keys compares.

Rules:

1. Keys are equal as in grouping: null is a key, NaN equals NaN, −0.0 equals 0.0, a dictionary counts as its values.
2. Numbers, dates and times are their own codes, decimals are as many as they have words. Strings and what is nested (as
   bytes, see ``key_bytes``) are numbered as they come (``short_strings``); the strings are kept.
3. A column that had a null has one more column of codes, which tells the nulls. In the column itself a null is the
   value that came first, so that it does not widen the range of the codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .growable_array import GrowableBytes
from .hashing import hashes
from .keys import comparable, decoded, validity
from .native import kernels, kernels_for
from .pieces import Flags, Positions
from .short_strings import FEW, ShortStrings, places_of
from .slots import Slots
from .string_table import StringTable

Codes: TypeAlias = list[Positions]


class KeyCodes:
    """The codes of the columns of one key."""

    def __init__(self) -> None:
        self._columns: list[_Column] = []
        #: the columns that had a null, in the order in which the first one came
        self._nullable: list[int] = []

    def of(self, columns: Sequence[pa.Array]) -> Codes:
        """The codes of these columns; columns that tell nulls come last, and further ones may come behind them."""
        columns = [decoded(column) if _hides_nulls(column) else column for column in columns]
        self._columns = self._columns or [_Column() for _ in columns]
        self._nullable += [n for n, column in enumerate(columns) if column.null_count and n not in self._nullable]
        made = [code for known, column in zip(self._columns, columns, strict=True) for code in known.codes(column)]
        return made + [_nulls(columns[place]) for place in self._nullable]

    @property
    def bytes(self) -> int:
        """The size of the strings."""
        return sum(column.strings.nbytes for column in self._columns)


class _Column:
    """One column: the numbers of its strings, and what stands for null."""

    def __init__(self) -> None:
        compiled = kernels()
        self.strings = _Strings() if compiled is None else StringTable(compiled)
        self._filler: list[np.int64] | None = None
        #: the last dictionary, and the codes of its values
        self._dictionary: tuple[pa.Array, Codes] | None = None

    def codes(self, column: pa.Array) -> Codes:
        codes = self._plain(column)
        valid = validity(column) if column.null_count else None
        if self._filler is None and len(column):
            first = 0 if valid is None else int(np.argmax(valid))
            self._filler = [code[first] for code in codes]
        if valid is None:
            return codes
        return [np.where(valid, code, filler) for code, filler in zip(codes, self._filler or (), strict=True)]

    def _plain(self, column: pa.Array) -> Codes:
        if pa.types.is_dictionary(column.type):
            return self._looked_up(column)
        if pa.types.is_decimal(column.type):
            return _words(column)
        keys = comparable(column)
        return [keys] if isinstance(keys, np.ndarray) else [self.strings.numbers(keys)]

    def _looked_up(self, column: pa.Array) -> Codes:
        """The codes of a dictionary column. One dictionary often serves many batches."""
        if self._dictionary is None or not _same_memory(column.dictionary, self._dictionary[0]):
            self._dictionary = column.dictionary, self._plain(column.dictionary)
        places = column.indices.fill_null(0) if column.null_count else column.indices
        return [_picked(code, places.to_numpy()) if len(code) else _zeros(column) for code in self._dictionary[1]]


class _Strings:
    """Strings, numbered as they come: as words while all are short, by Arrow from the first long one on."""

    def __init__(self) -> None:
        self._short: ShortStrings | None = ShortStrings()
        #: the strings once there is a long one
        self._held = GrowableBytes()
        #: finds those of the strings that have been added to it
        self._slots = Slots()

    @property
    def nbytes(self) -> int:
        return self._slots.bytes + self._held.bytes + (0 if self._short is None else self._short.bytes)

    def numbers(self, column: pa.Array) -> Positions:
        """The number of each; arbitrary where it is null."""
        if not len(column):
            return _zeros(column)
        if self._short is not None:
            found = self._short.numbers(column)
            if found is not None:
                return found
            self._held.put(self._short.all())
            self._short = None
        return self._encoded(column.cast(pa.large_binary()))

    def _encoded(self, strings: pa.Array) -> Positions:
        known = len(self._held)
        if known * FEW < len(strings):
            # Arrow numbers what comes first first: those that are known keep their numbers
            found = pa.chunked_array([self._held.all(), strings]).dictionary_encode().chunks[-1]
            self._held.put(found.dictionary.slice(known))
            return places_of(found)
        found = strings.dictionary_encode()
        numbers = self._found(found.dictionary)
        return numbers.take(places_of(found)) if len(numbers) else _zeros(strings)

    def _found(self, strings: pa.Array) -> Positions:
        """The numbers of strings that differ from each other."""
        if self._slots.count < len(self._held):
            self._slots.add(hashes([self._held.all().slice(self._slots.count)]))
        numbers, new = self._slots.number(hashes([strings]), _Lookup(self._held, strings))
        self._held.put(strings.take(pa.array(new)))
        return numbers


class _Lookup:
    """Different strings that are looked up."""

    def __init__(self, held: GrowableBytes, strings: pa.Array) -> None:
        self._held = held
        self._strings = strings

    def known(self, rows: Positions | slice, numbers: Positions) -> Flags:
        strings = self._strings if isinstance(rows, slice) else self._strings.take(pa.array(rows))
        flags: Flags = pc.equal(strings, self._held.take(numbers)).to_numpy(zero_copy_only=False)
        return flags

    def same(self, rows: Positions, others: Positions) -> Flags:
        flags: Flags = rows == others
        return flags


def _picked(codes: Positions, places: Any) -> Positions:
    compiled = kernels_for(len(places)) if places.dtype == np.int32 else None
    found = None if compiled is None else compiled.pick_codes(codes, places)
    return codes.take(places) if found is None else found


def _zeros(column: pa.Array) -> Positions:
    return np.zeros(len(column), dtype=np.int64)


def _same_memory(one: pa.Array, other: pa.Array) -> bool:
    """Whether two arrays are one; as long as it is held, no other can lie where it lies."""
    if one.type != other.type or len(one) != len(other) or one.offset != other.offset:
        return False
    pairs = zip(one.buffers(), other.buffers(), strict=True)
    return all(a is b if a is None or b is None else a.address == b.address for a, b in pairs)


def _hides_nulls(column: pa.Array) -> bool:
    """A null in the dictionary is not counted among the nulls of the column; and a long dictionary is not worth it."""
    if not pa.types.is_dictionary(column.type):
        return False
    return bool(column.dictionary.null_count) or len(column.dictionary) > len(column)


def _nulls(column: pa.Array) -> Positions:
    if not column.null_count:
        return _zeros(column)
    return (~validity(column)).astype(np.int64)


def _words(column: pa.Array) -> Codes:
    """A decimal as its words of 64 bits, or of 32."""
    width = column.type.bit_width
    rows = len(column)
    dtype = np.int32 if width == 32 else np.int64
    words = max(width // 64, 1)
    start = column.offset * words
    content = np.frombuffer(column.buffers()[1] or b"", dtype=dtype)[start : start + rows * words].reshape(rows, words)
    return [content[:, word].astype(np.int64) for word in range(words)]
