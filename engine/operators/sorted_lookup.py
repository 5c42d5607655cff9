"""Rows that can be looked up by key: what the index in memory and the build side of a hash join share.

Rules:

1. Rows are sorted by the code of their key. A code is found column by column: a value's place in the column's
   vocabulary (its distinct values, sorted), and from the second column on the place of the pair (code so far, this
   value) in the vocabulary of pairs.
2. NaN equals NaN; rows with a null key match nothing. Matches of a key come in the order of the rows.
3. It is immutable once built.
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
(64 Ki strings in 1 M: 28 ms against 203 ms; in 3 k: 1.1 ms against 0.8 ms)."""


class SortedLookup:
    """See the module's rules."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        valid = valid_rows(columns)
        keys = [comparable(column) for column in columns]
        keys = keys if valid is None else [taken(column, valid) for column in keys]
        self._vocabularies = [_vocabulary(column) for column in keys]
        self._pairs: list[Positions] = []
        codes = _place(self._vocabularies[0], keys[0])
        for vocabulary, column in zip(self._vocabularies[1:], keys[1:], strict=True):
            pair = codes * len(vocabulary) + _place(vocabulary, column)
            self._pairs.append(np.unique(pair))
            codes = _place(self._pairs[-1], pair)
        order = np.argsort(codes, kind="stable")
        self._rows = order if valid is None else valid[order]
        size = len(self._pairs[-1] if self._pairs else self._vocabularies[0])
        self._counts = np.bincount(codes, minlength=size)
        self._first = np.cumsum(self._counts) - self._counts

    def matches(self, keys: Sequence[pa.Array]) -> Matches:
        """The rows that match each of ``keys``, which hold no null."""
        columns = [comparable(column) for column in keys]
        codes = _place(self._vocabularies[0], columns[0])
        for vocabulary, pairs, column in zip(self._vocabularies[1:], self._pairs, columns[1:], strict=True):
            place = _place(vocabulary, column)
            pair = np.where((codes < 0) | (place < 0), -1, codes * len(vocabulary) + place)
            codes = _place(pairs, pair)
        if not len(self._counts):
            nothing = np.zeros(len(codes), dtype=np.int64)
            return Matches(nothing, nothing, self._rows)
        return Matches(self._first[codes], np.where(codes < 0, 0, self._counts[codes]), self._rows)


def _vocabulary(column: Comparable) -> Comparable:
    """The distinct values, sorted."""
    if isinstance(column, np.ndarray):
        return np.unique(column)
    values = column.unique()
    return values.take(pc.sort_indices(values))


def _place(vocabulary: Comparable, keys: Comparable) -> Positions:
    """The place of each key in the vocabulary, or -1."""
    if not len(vocabulary) or not len(keys):
        return np.full(len(keys), -1, dtype=np.int64)
    if isinstance(vocabulary, np.ndarray):
        near = np.searchsorted(vocabulary, keys)
    elif _is_searchable(vocabulary.type) and len(vocabulary) >= SEARCH_FROM_RATIO * len(keys):
        near = pc.search_sorted(vocabulary, keys).to_numpy().astype(np.int64)
    else:
        hashed = pc.index_in(keys, value_set=vocabulary).fill_null(-1)
        return np.asarray(hashed.to_numpy(zero_copy_only=False), dtype=np.int64)
    near = np.minimum(near, len(vocabulary) - 1)
    places: Positions = np.where(compared("equal", taken(vocabulary, near), keys), near, -1)
    return places


def _is_searchable(type: pa.DataType) -> bool:
    types = pa.types
    searchable = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(check(type) for check in searchable)
