"""Rows that can be looked up by key: what the index in memory and the build side of a hash join share.

Rules:

1. Rows are sorted by the code of their key. A code is found column by column: a value's place in the column's
   vocabulary (its distinct values, sorted), and from the second column on the place of the pair (code so far, this
   value) in the vocabulary of pairs.
2. NaN equals NaN; rows with a null key match nothing. Matches of a key come in the order of the rows.
3. It is immutable once built, so several threads may ask it at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .keys import Comparable, comparable, compared, taken, valid_rows
from .matching import Matches
from .pieces import Positions

SEARCH_FROM_RATIO = 4
"""A sorted vocabulary this many times longer than the keys is searched; hashing all of it per batch would cost more
(64 Ki strings in 1 M: 23 ms against 191 ms; in 3 k: 1.1 ms against 0.8 ms)."""

SORT_FROM = 64 * 1024
"""Keys are sorted before they are searched for in a vocabulary of at least this length, so that the search walks
through it in one direction (64 Ki numbers in 1 M: 6 ms against 13 ms)."""

DENSE_SPAN = 4
"""Numbers whose range is at most this many times their count are found in a table by their value (0.2 ms)."""


class SortedLookup:
    """See the module's rules."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        valid = valid_rows(columns)
        keys = [comparable(column) for column in columns]
        keys = keys if valid is None else [taken(column, valid) for column in keys]
        self._vocabularies = [_vocabulary(column) for column in keys]
        self._pairs: list[_Numbers] = []
        codes = self._vocabularies[0].place(keys[0])
        for vocabulary, column in zip(self._vocabularies[1:], keys[1:], strict=True):
            pair = codes * len(vocabulary) + vocabulary.place(column)
            self._pairs.append(_Numbers(pair))
            codes = self._pairs[-1].place(pair)
        order = np.argsort(codes, kind="stable")
        self._rows = order if valid is None else valid[order]
        size = len(self._pairs[-1] if self._pairs else self._vocabularies[0])
        self._counts = np.bincount(codes, minlength=size)
        self._first = np.cumsum(self._counts) - self._counts

    @property
    def nbytes(self) -> int:
        """About how much memory it holds."""
        held = [each.nbytes for each in (*self._vocabularies, *self._pairs)]
        return sum(held) + self._rows.nbytes + self._counts.nbytes + self._first.nbytes

    def matches(self, keys: Sequence[pa.Array]) -> Matches:
        """The rows that match each of ``keys``, which hold no null."""
        columns = [comparable(column) for column in keys]
        codes = self._vocabularies[0].place(columns[0])
        for vocabulary, pairs, column in zip(self._vocabularies[1:], self._pairs, columns[1:], strict=True):
            place = vocabulary.place(column)
            pair = np.where((codes < 0) | (place < 0), -1, codes * len(vocabulary) + place)
            codes = pairs.place(pair)
        if not len(self._counts):
            nothing = np.zeros(len(codes), dtype=np.int64)
            return Matches(nothing, nothing, self._rows)
        return Matches(self._first[codes], np.where(codes < 0, 0, self._counts[codes]), self._rows)


class _Numbers:
    """The distinct values of a column of numbers, sorted."""

    def __init__(self, column: Positions) -> None:
        ordered = np.sort(column)
        self._values = ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]
        self._low = int(ordered[0]) if len(ordered) else 0
        span = int(ordered[-1]) - self._low + 1 if len(ordered) else 0
        self._table: Positions | None = None
        if 0 < span <= DENSE_SPAN * len(column):
            self._table = np.full(span, -1, dtype=np.int64)
            self._table[self._values - self._low] = np.arange(len(self._values))

    def __len__(self) -> int:
        return len(self._values)

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + (0 if self._table is None else self._table.nbytes)

    def place(self, keys: Positions) -> Positions:
        """The place of each key, or -1."""
        if not len(self._values) or not len(keys):
            return np.full(len(keys), -1, dtype=np.int64)
        if self._table is not None:
            known = (keys >= self._low) & (keys < self._low + len(self._table))
            places: Positions = self._table[np.where(known, keys, self._low) - self._low]
            return np.where(known, places, -1)
        if len(self._values) < SORT_FROM:
            return self._checked(np.searchsorted(self._values, keys), keys)
        order = np.argsort(keys)
        near = np.empty(len(keys), dtype=np.int64)
        near[order] = np.searchsorted(self._values, keys[order])
        return self._checked(near, keys)

    def _checked(self, near: Positions, keys: Positions) -> Positions:
        near = np.minimum(near, len(self._values) - 1)
        return np.where(self._values[near] == keys, near, -1)


class _Words:
    """The distinct values of a column of another type, sorted."""

    def __init__(self, column: pa.Array) -> None:
        values = column.unique()
        self._values = values.take(pc.sort_indices(values))

    def __len__(self) -> int:
        return len(self._values)

    @property
    def nbytes(self) -> int:
        return int(self._values.nbytes)

    def place(self, keys: pa.Array) -> Positions:
        """The place of each key, or -1."""
        if not len(self._values) or not len(keys):
            return np.full(len(keys), -1, dtype=np.int64)
        if not _is_searchable(self._values.type) or len(self._values) < SEARCH_FROM_RATIO * len(keys):
            hashed = pc.index_in(keys, value_set=self._values).fill_null(-1)
            return np.asarray(hashed.to_numpy(zero_copy_only=False), dtype=np.int64)
        near = np.minimum(self._searched(keys), len(self._values) - 1)
        places: Positions = np.where(compared("equal", taken(self._values, near), keys), near, -1)
        return places

    def _searched(self, keys: pa.Array) -> Positions:
        if len(self._values) < SORT_FROM:
            return np.asarray(pc.search_sorted(self._values, keys).to_numpy(), dtype=np.int64)
        order = pc.sort_indices(keys)
        near = np.empty(len(keys), dtype=np.int64)
        near[order.to_numpy()] = pc.search_sorted(self._values, keys.take(order)).to_numpy()
        return near


def _vocabulary(column: Comparable) -> _Numbers | _Words:
    """The distinct values, sorted."""
    return _Numbers(column) if isinstance(column, np.ndarray) else _Words(column)


def _is_searchable(type: pa.DataType) -> bool:
    types = pa.types
    searchable = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(check(type) for check in searchable)
