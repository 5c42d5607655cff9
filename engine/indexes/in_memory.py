"""An index over a table in memory, which travels with the flow and is asked in place.

Rules:

1. It is built when it is first opened in a process, once, however many operators use it and however often its config
   was unpickled there.
2. NaN equals NaN; rows of the table with a null key match nothing. Matches of a key come in the order of the table.
"""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa

from ..arrow.dictionaries import PlainNulls
from ..arrow.plain_types import plain_table
from ..core.arguments import checked
from ..core.schemas import no_rows
from ..operators.join.index_protocol import Found
from ..operators.join.sorted_lookup import SortedLookup
from .checks import check_key


@checked()
def memory(table: pa.Table | pa.RecordBatch, key: str | Sequence[str]) -> MemoryIndex:
    """An index over ``table``, which travels with the flow. Keys may repeat: every row with the key matches."""
    whole = plain_table(pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table)
    names = check_key("memory index", whole.schema, key, "table")
    return MemoryIndex(whole, names)


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

    @property
    def blocks(self) -> bool:
        """Never."""
        return False

    def open(self) -> OpenMemoryIndex:
        """The index of this process, built if this is its first use."""
        with _building:
            found = _built.get(self.identity)
            if found is None:
                found = _built[self.identity] = OpenMemoryIndex(self.table, self.key)
            return found

    def fingerprint(self) -> str:
        """A hash of the table's rows, in their order."""
        hashing = _Hashing()
        with pa.ipc.new_stream(pa.PythonFile(hashing, mode="w"), self.table.schema) as writer:
            writer.write_table(self.table.combine_chunks())
        return hashing.digest.hexdigest()

    def describe(self) -> str:
        """The key and the columns."""
        return f"index in memory by {', '.join(self.key)} with {', '.join(self.table.schema.names)}"


class OpenMemoryIndex:
    """The index of one process. Immutable once built, so operators on several threads may share it."""

    def __init__(self, table: pa.Table, key: Sequence[str]) -> None:
        batches = table.combine_chunks().to_batches()
        records = pa.concat_batches(batches) if batches else no_rows(table.schema)
        self._records = PlainNulls(table.schema).of(records)
        self._lookup = SortedLookup([self._records.column(name) for name in key])

    def lookup(self, keys: pa.RecordBatch) -> Found:
        """The rows that match each key."""
        return Found(self._lookup.matches(keys.columns), self._records)

    def close(self) -> None:
        """Nothing is held for one operator alone."""


class _Hashing(io.RawIOBase):
    """A file that keeps the hash of what is written to it."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.digest.update(data)
        return memoryview(data).nbytes


_building = Lock()
"""Two tasks of a process may open one index at once; the second waits for the first to build it."""

_built: WeakValueDictionary[str, OpenMemoryIndex] = WeakValueDictionary()
"""The indexes of this process, as long as an operator uses them, by identity."""
