"""Indexes for lookup joins: so far one over a table in memory. The protocol is in ``operators.index_protocol``.

Rules:

1. The index in memory is built when it is first opened in a process, once, however many operators use it and however
   often its config was unpickled there.
2. NaN equals NaN; rows of the table with a null key match nothing. Matches of a key come in the order of the table.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .errors import FlowError
from .operators.index_protocol import Found, Index, OpenIndex
from .operators.keys import Comparable, check_key_types, comparable, compared, taken, valid_rows
from .operators.matching import Matches
from .operators.pieces import Positions
from .schemas import check_columns, check_distinct, check_movable

SEARCH_FROM_RATIO = 4
"""A sorted vocabulary this many times longer than the keys is searched; hashing all of it per batch would cost more
(64 Ki strings in 1 M: 28 ms against 203 ms; in 3 k: 1.1 ms against 0.8 ms)."""


def memory(table: pa.Table | pa.RecordBatch, key: str | Sequence[str]) -> MemoryIndex:
    """An index over ``table``, which travels with the flow. Keys may repeat: every row with the key matches."""
    names = (key,) if isinstance(key, str) else tuple(key)
    if not names:
        raise FlowError("memory index: no key is given", "name at least one key column")
    check_distinct("memory index", "key", names)
    check_columns("memory index", table.schema, (*names, *table.schema.names), "table")
    check_movable("memory index", table.schema, side="table")
    check_key_types("memory index", [table.schema.field(name) for name in names], ordered=True)
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    return MemoryIndex(whole, names)


__all__ = ["Found", "Index", "MemoryIndex", "OpenIndex", "OpenMemoryIndex", "memory"]


@dataclass(frozen=True)
class MemoryIndex:
    """See :func:`memory`."""

    table: pa.Table = field(repr=False, compare=False)
    key: tuple[str, ...]
    #: what tells that two configs in one process are copies of one index
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def schema(self) -> pa.Schema:
        """The table's schema."""
        return self.table.schema

    def open(self) -> OpenMemoryIndex:
        """The index of this process, built if this is its first use."""
        with _building:
            found = _built.get(self.identity)
            if found is None:
                found = _built[self.identity] = OpenMemoryIndex(self.table, self.key)
            return found

    def describe(self) -> str:
        """The key and the columns."""
        return f"index in memory by {', '.join(self.key)} with {', '.join(self.table.schema.names)}"


class OpenMemoryIndex:
    """Rows sorted by the code of their key. Immutable once built, so operators on several threads may share it.

    A code is found column by column: a value's place in the column's vocabulary (its distinct values, sorted), and from
    the second column on the place of the pair (code so far, this value) in the vocabulary of pairs.
    """

    def __init__(self, table: pa.Table, key: Sequence[str]) -> None:
        batches = table.combine_chunks().to_batches()
        self._records = pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], table.schema)
        columns = [self._records.column(name) for name in key]
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

    def lookup(self, keys: Sequence[pa.Array]) -> Found:
        """See :class:`OpenIndex`."""
        columns = [comparable(column) for column in keys]
        codes = _place(self._vocabularies[0], columns[0])
        for vocabulary, pairs, column in zip(self._vocabularies[1:], self._pairs, columns[1:], strict=True):
            place = _place(vocabulary, column)
            pair = np.where((codes < 0) | (place < 0), -1, codes * len(vocabulary) + place)
            codes = _place(pairs, pair)
        if not len(self._counts):
            nothing = np.zeros(len(codes), dtype=np.int64)
            return Found(Matches(nothing, nothing, self._rows), self._records)
        matches = Matches(self._first[codes], np.where(codes < 0, 0, self._counts[codes]), self._rows)
        return Found(matches, self._records)

    def close(self) -> None:
        """Nothing is held for one operator alone."""


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


_building = Lock()
"""Two tasks of a process may open one index at once; the second waits for the first to build it."""

_built: WeakValueDictionary[str, OpenMemoryIndex] = WeakValueDictionary()
"""The indexes of this process, as long as an operator uses them, by identity."""
