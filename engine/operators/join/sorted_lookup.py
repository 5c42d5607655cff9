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
from ...kernels.keys import comparable, taken, valid_rows
from ...kernels.pieces import Positions
from ...kernels.radix_order import Part, radix_order
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
        #: of each code the first row in ``_rows``, and how many there are; None: one each, in the order of the codes
        self._spans: tuple[Positions, Positions] | None = None
        #: the rows in the order of their codes; None: in their own
        self._rows: Positions | None = valid
        if size < len(codes):
            counts = np.bincount(codes, minlength=size)
            self._spans = np.cumsum(counts) - counts, counts
        if not bool((codes[1:] >= codes[:-1]).all()):
            if size == len(codes):
                order: Positions = np.empty(size, dtype=np.int64)
                order[codes] = np.arange(size)
            else:
                order = radix_order([Part(codes.view(np.uint64), size.bit_length())], len(codes))
            self._rows = order if valid is None else valid[order]

    @property
    def nbytes(self) -> int:
        """About how much memory it holds."""
        spans = sum(each.nbytes for each in self._spans or ())
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
        if self._spans is None:
            return Matches(codes, (codes >= 0).astype(np.int64), self._rows)
        first, counts = self._spans
        return Matches(first[codes], np.where(codes < 0, 0, counts[codes]), self._rows)
