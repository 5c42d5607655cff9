"""Groups within a memory budget: what is too much lies in files, parted by the hash of the keys.

Rules:

1. When too much is held, partitions leave the memory: their groups go to a file each, and so do, from then on, the rows
   with such keys, unmerged. Rows of the other partitions are merged as before.
2. At the end the partitions are taken one by one, each read from the first row to the last into groups of its own: so a
   group is merged in the order of its rows, whether it has left or not. A partition that is too large in its turn is
   parted by the next bits of the hash; when these are used up, it is held whatever it takes.
3. Merging costs as much as the groups. It happens when the rows that wait are as large as these, or, if the memory does
   not allow so many, at least half as large; with less, partitions leave.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..hashing import hashes
from .grouped_states import Grouping, Groups, followed
from .pieces import PIECE_ROWS, Flags, Positions, cut
from .protocol import Memory, SpillFile

BITS = 4
PARTITIONS = 2**BITS
LEVELS = 12
"""Times that groups may be parted: 16¹² is more than there can be."""

MERGE_BYTES = 1024 * 1024
"""Rows are merged into the groups when they are at least as large as these, and at least this large."""

BUFFER_BYTES = 4 * 1024 * 1024
"""Rows that go to files are collected up to this size: so that what is written to each file at once is not tiny."""


class BoundedGroups:
    """See the module's rules. ``level`` says which bits of the hash part these groups."""

    def __init__(self, grouping: Grouping, memory: Memory, level: int = 0) -> None:
        self._grouping = grouping
        self._memory = memory
        self._level = level
        self._forget()

    def _forget(self) -> None:
        #: groups in memory, their bytes, and rows not merged into them yet; none of a partition that has left
        self.groups: Groups | None = None
        self._bytes = 0
        self._waiting: list[Groups] = []
        self._waiting_bytes = 0
        #: the partitions that have left
        self._left: Flags = np.zeros(PARTITIONS, dtype=bool)
        self._files: list[list[SpillFile]] = [[] for _ in range(PARTITIONS)]
        #: partitions whose last file has been read, and takes no more
        self._sealed: Flags = np.zeros(PARTITIONS, dtype=bool)
        #: rows on their way to a file, with their partitions
        self._buffer: list[tuple[Groups, Positions]] = []
        self._buffer_bytes = 0

    @property
    def spilled(self) -> bool:
        """Whether any partition has left."""
        return bool(self._left.any())

    @property
    def bytes(self) -> int:
        """Those of the groups in memory."""
        return self._bytes

    # ------------------------------------------------------------------ taking rows

    def absorb(self, rows: Groups) -> None:
        """Merge rows at once. Nothing may have left."""
        self._set(self._grouping.merged([rows] if self.groups is None else [self.groups, rows]))

    def add(self, rows: Groups) -> None:
        """Take rows, and spill if that is too much."""
        if self.spilled:
            rows = self._parted(rows)
        if len(rows):
            self._waiting.append(rows)
            self._waiting_bytes += rows.bytes
        if self._waiting_bytes >= max(MERGE_BYTES, self._bytes):
            self.merge()
        if self._memory.hold(self._bytes + self._waiting_bytes + self._buffer_bytes):
            self._shrink()

    def merge(self) -> None:
        """Merge the rows that wait."""
        if self._waiting:
            rows, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._set(self._grouping.merged(rows if self.groups is None else [self.groups, *rows]))

    def clear(self) -> None:
        """Forget everything and remove the files."""
        for files in self._files:
            for file in files:
                file.delete()
        self._forget()

    def _set(self, groups: Groups) -> None:
        self.groups, self._bytes = groups, groups.bytes

    # ------------------------------------------------------------------ leaving

    @property
    def can_leave(self) -> bool:
        """Whether letting partitions go would leave less."""
        return bool(self._grouping.keys) and len(self.groups or ()) > 1 and self._level < LEVELS

    def _shrink(self) -> None:
        self._write_buffer()
        if not self._memory.hold(self._bytes + self._waiting_bytes):
            return
        few = 2 * self._waiting_bytes < self._bytes
        if few and not self.can_leave:
            return
        self.merge()
        if self._memory.hold(self._bytes) or few:
            self.leave()

    def leave(self) -> None:
        """Let partitions go until half of the groups have, or all of them if that is not enough. No row may wait."""
        if self.groups is None or not self.can_leave:
            return
        counts = np.bincount(self._partitions(self.groups), minlength=PARTITIONS)
        largest = np.argsort(-counts, kind="stable")
        half = int(np.searchsorted(np.cumsum(counts[largest]), (len(self.groups) + 1) // 2)) + 1
        self._let_go(largest[:half])
        if self._memory.hold(self._bytes):
            self._let_go(largest[half:])
            self._memory.hold(self._bytes)

    def _let_go(self, partitions: Positions) -> None:
        if self.groups is None:
            return
        self._left[partitions] = True
        places = self._partitions(self.groups)
        leaves = self._left[places]
        self._write(self.groups.take(np.flatnonzero(leaves)), places[leaves])
        stay = np.flatnonzero(~leaves)
        if len(stay):
            self._set(self.groups.take(stay))
        else:
            self.groups, self._bytes = None, 0

    def _parted(self, rows: Groups) -> Groups:
        """Put rows of partitions that have left on their way; the others come back."""
        places = self._partitions(rows)
        leaves = self._left[places]
        going = rows if leaves.all() else rows.take(np.flatnonzero(leaves))
        if len(going):
            self._buffer.append((going, places[leaves]))
            self._buffer_bytes += going.bytes
        if self._buffer_bytes >= BUFFER_BYTES:
            self._write_buffer()
        return rows.take(np.flatnonzero(~leaves))

    def _partitions(self, groups: Groups) -> Positions:
        """By the lower bits: of the upper ones, which part the rows of an exchange, a task's keys have the same."""
        shift = np.uint64(BITS * self._level)
        found: Positions = ((hashes(groups.keys) >> shift) % np.uint64(PARTITIONS)).astype(np.int64)
        return found

    def _write_buffer(self) -> None:
        if self._buffer:
            buffer, self._buffer, self._buffer_bytes = self._buffer, [], 0
            self._write(followed([rows for rows, _ in buffer]), np.concatenate([places for _, places in buffer]))

    def _write(self, groups: Groups, places: Positions) -> None:
        for partition in np.unique(places).tolist():
            rows = np.flatnonzero(places == partition)
            for piece in cut(self._grouping.stored(groups.take(rows)), PIECE_ROWS):
                self._file(partition).write(piece)

    def _file(self, partition: int) -> SpillFile:
        if not self._files[partition] or self._sealed[partition]:
            self._files[partition].append(self._memory.spill(self._grouping.schema))
            self._sealed[partition] = False
        return self._files[partition][-1]

    # ------------------------------------------------------------------ reading

    def stored(self) -> Iterator[Groups]:
        """All groups, and rows of those that have left, as they lie: for a snapshot."""
        self.merge()
        self._write_buffer()
        self._sealed[:] = True
        if self.groups is not None:
            yield self.groups
        for partition in range(PARTITIONS):
            yield from self._of(partition)

    def results(self) -> Iterator[Groups]:
        """All groups, partition by partition, each in the order of its first rows; then nothing is held."""
        self.merge()
        self._write_buffer()
        self._sealed[:] = True
        groups, self.groups, self._bytes = self.groups, None, 0
        if groups is not None:
            yield groups
        del groups
        for partition in np.flatnonzero(self._left).tolist():
            inner = BoundedGroups(self._grouping, self._memory, self._level + 1)
            try:
                for rows in self._of(partition):
                    inner.add(rows)
                for file in self._files[partition]:
                    file.delete()
                yield from inner.results()
            finally:
                inner.clear()
        self.clear()

    def _of(self, partition: int) -> Iterator[Groups]:
        for file in self._files[partition]:
            for records in file.read():
                yield self._grouping.read(records)
