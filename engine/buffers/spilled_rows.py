"""Rows on disk in the order in which they came, each with its round and lane: what ``HeldRows`` holds too much of."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ..core.operator import Memory, SpillFile
from ..kernels.pieces import PIECE_ROWS, cut
from .held_rows import Held, from_stored, stored, stored_schema
from .stored_rows import StoredRows


class SpilledRows:
    """A growing collection of rows of one schema, in files."""

    def __init__(self, schema: pa.Schema, memory: Memory) -> None:
        self._schema = schema
        self._memory = memory
        self._files: list[SpillFile] = []
        #: the last file has been read, and takes no more
        self._sealed = True
        #: the number of rows
        self.rows = 0

    def write(self, held: Held) -> None:
        """Add rows."""
        if self._sealed:
            self._files.append(self._memory.spill(stored_schema(self._schema)))
            self._sealed = False
        for piece in cut(stored(held), PIECE_ROWS):
            self._files[-1].write(piece)
        self.rows += held.records.num_rows

    def read(self, start: int = 0) -> Iterator[Held]:
        """All rows but for the first so many."""
        return (from_stored(records, self._schema) for records in self._batches(start))

    def by_position(self) -> StoredRows:
        """All rows, to be picked by position; behind their columns stand round and lane."""
        return StoredRows(stored_schema(self._schema), self._batches())

    def clear(self) -> None:
        """Remove everything."""
        for file in self._files:
            file.delete()
        self._files, self._sealed, self.rows = [], True, 0

    def _batches(self, start: int = 0) -> Iterator[pa.RecordBatch]:
        if start >= self.rows:
            return
        self._sealed = True
        for file in self._files:
            if start >= file.rows:
                start -= file.rows
                continue
            for records in file.read():
                if start < records.num_rows:
                    yield records.slice(start)
                start = max(0, start - records.num_rows)
