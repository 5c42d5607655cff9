"""Rows that have left and may come again, in any order: in memory or on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from ..core.operator import Memory, SpillFile
from ..kernels.pieces import PIECE_ROWS, Positions, cut
from .stored_rows import StoredRows, brought_together


class SharedAccount:
    """One operator's account for several collections, each of which says what it holds itself."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._held: list[int] = []

    def part(self) -> Memory:
        """The account of one more collection."""
        self._held.append(0)
        return _SharedPart(self._told, self._memory.spill, len(self._held) - 1)

    def _told(self, number: int, held: int) -> bool:
        self._held[number] = held
        return self._memory.hold(sum(self._held))


class _SharedPart:
    def __init__(self, told: Callable[[int, int], bool], spill: Callable[[pa.Schema], SpillFile], number: int) -> None:
        self._told, self._number = told, number
        self.spill = spill

    def hold(self, held: int) -> bool:
        return self._told(self._number, held)


class KeptRows:
    """A growing collection of rows of one schema, addressed by the order in which they came."""

    def __init__(self, schema: pa.Schema, memory: Memory) -> None:
        self._schema, self._memory = schema, memory
        self._files: list[SpillFile] = []
        #: behind those in files, and their bytes
        self._held: list[pa.RecordBatch] = []
        self._size = 0
        #: all of them, since nothing was added
        self._whole: StoredRows | None = None
        #: the number of rows, and of their bytes
        self.rows = self.bytes = 0

    def add(self, records: pa.RecordBatch) -> None:
        """Keep these as well."""
        self._whole = None
        self._held.append(records)
        self.rows += records.num_rows
        self.bytes += records.nbytes
        self._size += records.nbytes
        if self._memory.hold(self._size):
            file = self._memory.spill(self._schema)
            for piece in cut(brought_together(self._schema, self._held), PIECE_ROWS):
                file.write(piece)
            self._files.append(file)
            self._size = 0
            self._memory.hold(0)

    def take(self, places: Positions) -> pa.RecordBatch:
        """The rows at these places."""
        if self._whole is None:
            if len(self._held) > 1:
                self._held = [brought_together(self._schema, self._held)]
            self._whole = StoredRows(self._schema, self.batches())
        return self._whole.take(places)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in their order."""
        for file in self._files:
            yield from file.read()
        yield from self._held

    def clear(self) -> None:
        """Keep nothing."""
        for file in self._files:
            file.delete()
        self._files, self._held, self._whole = [], [], None
        self._size = self.rows = self.bytes = 0
        self._memory.hold(0)
