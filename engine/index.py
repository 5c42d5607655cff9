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

import pyarrow as pa

from .errors import FlowError
from .operators.index_protocol import Found, Index, OpenIndex
from .operators.keys import check_key_types
from .operators.lookup_conditions import Between, InList
from .operators.sorted_lookup import SortedLookup
from .schemas import check_columns, check_distinct, check_movable


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


__all__ = ["Between", "Found", "InList", "Index", "MemoryIndex", "OpenIndex", "OpenMemoryIndex", "memory"]


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
    """The index of one process. Immutable once built, so operators on several threads may share it."""

    def __init__(self, table: pa.Table, key: Sequence[str]) -> None:
        batches = table.combine_chunks().to_batches()
        self._records = pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], table.schema)
        self._lookup = SortedLookup([self._records.column(name) for name in key])

    def lookup(self, keys: Sequence[pa.Array]) -> Found:
        """See :class:`OpenIndex`."""
        return Found(self._lookup.matches(keys), self._records)

    def close(self) -> None:
        """Nothing is held for one operator alone."""


_building = Lock()
"""Two tasks of a process may open one index at once; the second waits for the first to build it."""

_built: WeakValueDictionary[str, OpenMemoryIndex] = WeakValueDictionary()
"""The indexes of this process, as long as an operator uses them, by identity."""
