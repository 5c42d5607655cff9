"""Keys to numbers, over many batches: what grouping, distinct and their like share.

Rules:

1. Keys are numbered 0, 1, 2, … in the order of their first rows, and keep their numbers. ``key_codes`` says when two
   are equal.
2. Codes whose ranges are narrow are an address: a table with a place for every combination tells the number. The table
   has at most ``PLACES_PER_KEY`` places for each key or row at hand, and is made anew when a code lies outside of it.
3. Other codes are looked up by their hash (``slots``). In both forms the cost is that of the rows; only making a table
   anew costs as much as the keys, which happens as their number or their ranges double.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .growable_array import GrowableArray
from .hashing import mixed
from .key_codes import Codes, KeyCodes
from .native import Kernels, kernels_for
from .pieces import Positions
from .slots import Hashes, Numbered, NumberKeys, Slots

PIECE_ROWS = 128 * 1024
"""Rows that are numbered at once: so few that what is computed of them stays in the cache."""

PLACES_PER_KEY = 8
FEWEST_PLACES = 8 * 1024

KEY_BYTES = 48
"""What a key of one column takes at most: its code, its hash, and eight places."""

Ranges: TypeAlias = list[tuple[int, int]]
"""The smallest and the largest code in each column."""

_JOIN = np.uint64(0x8EBC6AF09C88C6E3)
_NONE, _FIRST_ROW = -1, -2


class KeyTable:
    """See the module's rules."""

    def __init__(self) -> None:
        self._codes = KeyCodes()
        self.count = 0
        #: the codes of the keys
        self._known: list[GrowableArray] = []
        #: the smallest and the largest code in each column
        self._ranges: Ranges = []
        #: exactly one of the two once there are rows
        self._places: _Places | None = None
        self._slots: Slots | None = None
        #: whether the only code of each key is its number, as that of a string is if there are no other columns
        self._are_numbers = True

    def number(self, columns: Sequence[pa.Array], rows: int) -> Numbered:
        """The number of the key of each row, and the first rows of the keys that are new, in order. No columns: one
        key."""
        if not columns:
            new = np.zeros(min(rows, 1) if not self.count else 0, dtype=np.int64)
            self.count += len(new)
            return np.zeros(rows, dtype=np.int64), new
        if rows <= PIECE_ROWS:
            return self._number(columns, rows)
        parts = []
        for start in range(0, rows, PIECE_ROWS):
            piece = [column.slice(start, PIECE_ROWS) for column in columns]
            numbers, new = self._number(piece, len(piece[0]))
            parts.append((numbers, new + start))
        return np.concatenate([numbers for numbers, _ in parts]), np.concatenate([new for _, new in parts])

    @property
    def bytes(self) -> int:
        """What the table takes."""
        parts = [self._codes, *self._known, self._places, self._slots]
        return sum(part.bytes for part in parts if part is not None)

    # ------------------------------------------------------------------ parts

    def _number(self, columns: Sequence[pa.Array], rows: int) -> Numbered:
        codes = self._codes.of(columns)
        if not rows:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        if self._known_numbers(codes):
            return codes[0], np.zeros(0, dtype=np.int64)
        compiled = kernels_for(rows)
        if compiled is None or self._places is None or len(codes) != len(self._known):
            return self._fitted(codes, rows)
        numbers, new = self._add(codes, self._places.number_first(compiled, codes, self.count))
        done = len(numbers)
        if done == rows:
            return numbers, new
        others, further = self._fitted([column[done:] for column in codes], rows - len(new))
        return np.concatenate([numbers, others]), np.concatenate([new, further + done])

    def _fitted(self, codes: Codes, rows: int) -> Numbered:
        """The numbers of codes that there may be no place for; there may be as many new keys as ``rows``."""
        ranges = _ranges(codes)
        self._adopt(codes, ranges)
        self._fit(ranges, rows)
        compiled = kernels_for(len(codes[0]))
        if self._slots is not None and compiled is not None:
            found = self._slots.number_codes(compiled, [*map(np.ascontiguousarray, codes)], self._known)
            return self._counted(codes, found)
        if self._slots is not None:
            return self._add(codes, self._slots.number(_hashes(codes), NumberKeys(codes, self._known)))
        assert self._places is not None
        return self._add(codes, self._places.number(codes, self.count))

    def _add(self, codes: Codes, found: Numbered) -> Numbered:
        """The same; the codes of new keys are known from now on."""
        if len(found[1]):
            for known, column in zip(self._known, codes, strict=True):
                known.put(column[found[1]])
        return self._counted(codes, found)

    def _counted(self, codes: Codes, found: Numbered) -> Numbered:
        new = found[1]
        if len(new) and self._are_numbers:
            following = np.arange(self.count, self.count + len(new))
            self._are_numbers = len(codes) == 1 and bool((codes[0][new] == following).all())
        self.count += len(new)
        return found

    def _known_numbers(self, codes: Codes) -> bool:
        """Whether these codes are the numbers of known keys, and nobody else's."""
        if not (self._are_numbers and len(codes) == 1 and self.count and codes[0].flags.writeable):
            return False
        return bool(codes[0].view(np.uint64).max() < self.count)

    def _adopt(self, codes: Codes, ranges: Ranges) -> None:
        """Columns that tell nulls may be new; no key so far had one."""
        if len(codes) == len(self._known):
            return
        for _ in codes[len(self._known) :]:
            known = GrowableArray(np.int64)
            known.to(self.count)
            self._known.append(known)
        self._ranges = _ranges(self._all_known()) if self.count else ranges
        self._places = self._slots = None

    def _fit(self, ranges: Ranges, rows: int) -> None:
        """Make the table, or the slots, that codes of these ranges need."""
        if self._places is not None and self._places.cover(ranges):
            return
        if self._places is not None:
            self._ranges = _ranges(self._all_known())
        self._ranges = [
            (min(low, first), max(high, last)) for (low, high), (first, last) in zip(self._ranges, ranges, strict=True)
        ]
        limit = max(FEWEST_PLACES, PLACES_PER_KEY * (self.count + rows))
        spare = 0 if self._slots is None else limit // 5  # so that it does not go to and fro
        if _places_in(self._ranges) <= limit - spare:
            wider = _wider(self._ranges, self._places, self._slots is not None, limit)
            self._places, self._slots = _Places(wider), None
            self._places.put(self._all_known())
        elif self._slots is None:
            self._places, self._slots = None, Slots()
            if self.count:
                self._slots.add(_hashes(self._all_known()))

    def _all_known(self) -> Codes:
        return [known.values for known in self._known]


class _Places:
    """A table with a place for every combination of codes within their ranges."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._lows: Positions = np.array([low for low, _ in ranges], dtype=np.int64)
        self._spans: Positions = np.array([high - low + 1 for low, high in ranges], dtype=np.int64)
        self._table: npt.NDArray[np.int32] = np.full(_places_in(ranges), _NONE, dtype=np.int32)
        #: the places of the rows at hand: fresh memory for every batch would cost more than what is computed in it
        self._scratch: Positions = np.empty(0, dtype=np.int64)

    @property
    def bytes(self) -> int:
        return self._table.nbytes

    @property
    def ranges(self) -> Ranges:
        return self._ranges

    def cover(self, ranges: Ranges) -> bool:
        """Whether all codes of these ranges have a place."""
        pairs = zip(self._ranges, ranges, strict=True)
        return all(low <= first and last <= high for (low, high), (first, last) in pairs)

    def put(self, codes: Codes) -> None:
        """Number keys, all different, 0, 1, 2, …"""
        self._table[self._places(codes)] = np.arange(len(codes[0]))

    def number_first(self, kernels: Kernels, codes: Codes, count: int) -> Numbered:
        """The same for the rows before the first one with a code that has no place."""
        return kernels.number_places([*map(np.ascontiguousarray, codes)], self._lows, self._spans, self._table, count)

    def number(self, codes: Codes, count: int) -> Numbered:
        """The number of each row's key, and the first rows of new keys, which are numbered from ``count`` on."""
        kernels = kernels_for(len(codes[0]))
        if kernels is not None:
            return self.number_first(kernels, codes, count)
        places = self._places(codes)
        numbers = self._table.take(places).astype(np.int64)
        if count and numbers.min() >= 0:
            return numbers, np.zeros(0, dtype=np.int64)
        rows = np.flatnonzero(numbers < 0)
        wanted, marks = places[rows], np.arange(_FIRST_ROW, _FIRST_ROW - len(rows), -1)
        self._table[wanted[::-1]] = marks[::-1]  # of all rows of a key the first one is written last
        first = np.flatnonzero(self._table.take(wanted) == marks)
        self._table[wanted[first]] = np.arange(count, count + len(first))
        numbers[rows] = self._table.take(wanted)
        return numbers, rows[first]

    def _places(self, codes: Codes) -> Positions:
        """The place of each row, until the next call."""
        rows = len(codes[0])
        if rows > len(self._scratch):
            self._scratch = np.empty(rows, dtype=np.int64)
        places = np.subtract(codes[0], self._ranges[0][0], out=self._scratch[:rows])
        for column, (low, high) in zip(codes[1:], self._ranges[1:], strict=True):
            places *= high - low + 1
            places += column
            places -= low
        return places


def _hashes(codes: Codes) -> Hashes:
    found = mixed(codes[0].view(np.uint64))
    for column in codes[1:]:
        found = mixed(found * _JOIN + column.view(np.uint64))
    return found


def _ranges(codes: Codes) -> Ranges:
    return [(int(column.min()), int(column.max())) for column in codes]


def _places_in(ranges: Ranges) -> int:
    places = 1
    for low, high in ranges:
        places *= high - low + 1
    return places


def _wider(ranges: Ranges, before: _Places | None, hashed: bool, limit: int) -> Ranges:
    """The ranges, where they have grown by half as much again, if there is room: those of numbers that count up grow
    with every batch. Those of keys that were ``hashed`` by an eighth: there are more to come."""
    if before is None and not hashed:
        return ranges
    wider = []
    for place, (low, high) in enumerate(ranges):
        share = (high - low) // (8 if before is None else 2)
        first, last = (high, low) if before is None else before.ranges[place]
        wider.append((low - share if low < first else low, high + share if high > last else high))
    inside = all(low >= -(2**63) and high < 2**63 for low, high in wider)
    return wider if inside and _places_in(wider) <= limit else ranges
