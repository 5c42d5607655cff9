"""Rows that can be looked up by key: what the index in memory and the build side of a hash join share.

Rules:

1. Rows are sorted by the code of their key. A code is found column by column: a value's number in the column's
   dictionary, and from the second column on the number of the pair (code so far, this value) in the dictionary of
   pairs.
2. NaN equals NaN; rows with a null key match nothing. Matches of a key come in the order of the rows.
3. It is immutable once built, so several threads may ask it at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...kernels.key_dictionary import KeyDictionary, numbered
from ...kernels.key_spans import in_order, is_ascending, spans_of, starts_of
from ...kernels.keys import comparable, taken, valid_rows
from ...kernels.pieces import Positions
from .matching import Matches


class SortedLookup:
    """See the module's rules."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        valid = valid_rows(columns)
        keys = [comparable(column) for column in columns]
        keys = keys if valid is None else [taken(column, valid) for column in keys]
        found = [numbered(column) for column in keys]
        self._dictionaries = [dictionary for dictionary, _ in found]
        self._pairs: list[KeyDictionary] = []
        codes = found[0][1]
        for words, places in found[1:]:
            pairs, codes = numbered(codes * len(words) + places)
            self._pairs.append(pairs)
        size = len(self._pairs[-1] if self._pairs else self._dictionaries[0])
        #: where the rows of each code begin in ``_rows``, and last their end; None: one each, in the order of the codes
        self._starts: Positions | None = None
        #: the rows in the order of their codes; None: in their own
        self._rows: Positions | None = valid
        if is_ascending(codes):
            self._starts = starts_of(codes, size) if size < len(codes) else None
            return
        if size < len(codes):
            self._starts, order = in_order(codes, size)
        else:
            order = np.empty(size, dtype=np.int64)
            order[codes] = np.arange(size)
        self._rows = order if valid is None else valid[order]

    @property
    def nbytes(self) -> int:
        """About how much memory it holds."""
        spans = 0 if self._starts is None else self._starts.nbytes
        rows = 0 if self._rows is None else self._rows.nbytes
        return sum(each.nbytes for each in (*self._dictionaries, *self._pairs)) + rows + spans

    def matches(self, keys: Sequence[pa.Array]) -> Matches:
        """The rows that match each of ``keys``, which hold no null."""
        columns = [comparable(column) for column in keys]
        codes = self._dictionaries[0].place(columns[0])
        for words, pairs, column in zip(self._dictionaries[1:], self._pairs, columns[1:], strict=True):
            place = words.place(column)
            pair = np.where((codes < 0) | (place < 0), -1, codes * len(words) + place)
            codes = pairs.place(pair)
        if self._starts is None:
            return Matches(codes, (codes >= 0).astype(np.int64), self._rows, once=True)
        return Matches(*spans_of(codes, self._starts), self._rows)
