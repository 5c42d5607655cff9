"""Groups within a memory budget: what is too much lies in files, parted by the hash of the keys.

Rules:

1. When too much is held, partitions leave the memory: their groups go to a file each, and so do, from then on, the rows
   with such keys, unmerged. Rows of the other partitions are merged as before.
2. At the end what is left leaves, too, and the partitions are taken one by one, each read from the first row to the
   last into groups of its own: so a group is merged in the order of its rows, whether it has left or not. A partition
   that is too large in its turn is parted by the next bits of the hash; when these are used up, it is held whatever it
   takes. The files stay until all groups have been given.
3. Some aggregates are merged at the cost of the groups (``Grouping.in_place``). They are merged when the rows that
   wait are as large as the groups, or, if the memory does not allow so many, at least half as large; with less,
   partitions leave. Other rows are merged whenever there are some, and before partitions leave.
4. Behind a checkpoint that was given all groups, another thread copies them. Rows wait for that, up to
   ``AHEAD_BYTES``, so that nobody stands still meanwhile.
5. What has gone to files is given back to the system at once: the allocator would keep several budgets' worth of it,
   in blocks that the thread which writes them has let go of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from ...core.operator import Memory, SpillFile
from ...kernels.hashing import hashes
from ...kernels.pieces import PIECE_ROWS, Bound, Flags, Positions, cut
from .grouped_states import GroupedRows, Grouping, Groups, GroupTable, followed
from .groups_by_lane import LaneTables, table_of

BITS = 4
PARTITIONS = 2**BITS
LEVELS = 12
"""Times that groups may be parted: 16¹² is more than there can be."""

MERGE_BYTES = 1024 * 1024
"""Rows that are merged are at least this large, if the memory allows it."""

AHEAD_BYTES = 32 * 1024 * 1024
"""Rows that wait for copies of groups are at most so many."""

PIECE_BYTES = 4 * 1024 * 1024
"""Rows that are merged at once, in some 20 ms, unless all have to be."""

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
        #: groups in memory, and rows not merged into them yet; none of a partition that has left
        self._made: GroupTable | LaneTables | None = None
        self.bytes = 0
        self._waiting: list[Groups] = []
        self._waiting_bytes = 0
        #: the partitions that have left
        self._left: Flags = np.zeros(PARTITIONS, dtype=bool)
        #: whether any partition has left
        self.spilled = False
        self._files: list[list[SpillFile]] = [[] for _ in range(PARTITIONS)]
        #: how many of them checkpoints know
        self._told = [0] * PARTITIONS
        #: partitions whose last file has been read, and takes no more
        self._sealed: Flags = np.zeros(PARTITIONS, dtype=bool)
        #: rows on their way to a file, with their partitions
        self._buffer: list[tuple[Groups, Positions]] = []
        self._buffer_bytes = 0

    @property
    def groups(self) -> Groups | None:
        """The groups in memory."""
        return followed(list(self._made.parts())) if self._made is not None and self.held else None

    @property
    def held(self) -> int:
        """The number of groups in memory."""
        return 0 if self._made is None else len(self._made)

    @property
    def in_memory(self) -> GroupTable | LaneTables | None:
        """The groups in memory, if there are any; rows that wait are merged into them."""
        self.merge()
        return self._made if self.held else None

    def pieces(self, bound: Bound) -> Iterator[Groups]:
        """The groups in memory in pieces within the bound, those of lanes that are kept apart lane by lane. Nothing may
        be added meanwhile."""
        return iter(()) if self._made is None else self._made.pieces(bound)

    @property
    def in_place(self) -> bool:
        """Whether merging rows costs no more the more groups there are (rule 3)."""
        return self._grouping.in_place

    @property
    def _table(self) -> GroupTable | LaneTables:
        if self._made is None:
            self._made = table_of(self._grouping)
        return self._made

    # ------------------------------------------------------------------ taking rows

    def absorb(self, rows: Iterable[GroupedRows], position: int) -> None:
        """Merge rows at once, of which the first one stands at ``position``. Nothing may have left."""
        for each in rows:
            self._table.add(each, position)
            position += len(each)
        self.bytes = self._table.bytes

    def few(self, waiting: int) -> bool:
        """Whether rows of so many bytes are too few to be merged (rule 3)."""
        return not self._grouping.in_place and 2 * waiting < self.bytes

    def enough(self, waiting: int) -> bool:
        """Whether rows of so many bytes should be merged (rules 3 and 4)."""
        if waiting < AHEAD_BYTES and self._made is not None and not self._made.is_copied:
            return False
        return waiting >= (MERGE_BYTES if self._grouping.in_place else max(MERGE_BYTES, self.bytes))

    def add(self, rows: Groups) -> None:
        """Take rows, and spill if that is too much."""
        if self.spilled:
            rows = self._parted(rows)
        if len(rows):
            self._waiting.append(rows)
            self._waiting_bytes += rows.bytes
        if self.enough(self._waiting_bytes):
            self.merge()
        if self._memory.hold(self.bytes + self._waiting_bytes + self._buffer_bytes):
            self._shrink()

    def merge(self) -> None:
        """Merge the rows that wait."""
        if self._waiting:
            rows, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._table.merge(followed(rows))
            self.bytes = self._table.bytes

    def clear(self) -> None:
        """Forget everything and remove the files."""
        for files in self._files:
            for file in files:
                file.delete()
        self._forget()

    # ------------------------------------------------------------------ leaving

    @property
    def can_leave(self) -> bool:
        """Whether letting partitions go would leave less."""
        return bool(self._grouping.keys) and self.held > 1 and self._level < LEVELS

    def _shrink(self) -> None:
        self._write_buffer()
        if not self._memory.hold(self.bytes + self._waiting_bytes):
            return
        few = self.few(self._waiting_bytes)
        if few and not self.can_leave:
            return
        self.merge()
        if self._memory.hold(self.bytes) or few:
            self.leave()

    def leave(self) -> None:
        """Let partitions go until half of the groups have, or all of them if that is not enough. No row may wait."""
        groups = self.groups
        if groups is None or not self.can_leave:
            return
        self._made, self.bytes = None, 0
        counts = np.bincount(self._partitions(groups), minlength=PARTITIONS)
        largest = np.argsort(-counts, kind="stable")
        half = int(np.searchsorted(np.cumsum(counts[largest]), (len(groups) + 1) // 2)) + 1
        groups = self._let_go(groups, largest[:half])
        if self._memory.hold(groups.bytes):
            groups = self._let_go(groups, largest[half:])
        self._table.merge(groups)
        self.bytes = self._table.bytes
        self._memory.hold(self.bytes)

    def _let_go(self, groups: Groups, partitions: Positions) -> Groups:
        """Write the groups of these partitions; the others come back."""
        self._left[partitions] = True
        self.spilled = True
        places = self._partitions(groups)
        leaves = self._left[places]
        if leaves.any():
            self._write(groups.take(np.flatnonzero(leaves)), places[leaves])
        return groups.take(np.flatnonzero(~leaves))

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
        del groups
        pa.default_memory_pool().release_unused()  # rule 5

    def _file(self, partition: int) -> SpillFile:
        if not self._files[partition] or self._sealed[partition]:
            self._files[partition].append(self._memory.spill(self._grouping.schema))
            self._sealed[partition] = False
        return self._files[partition][-1]

    # ------------------------------------------------------------------ reading

    def stored(self) -> Iterator[Groups]:
        """All groups, and rows of those that have left, as they lie: for a snapshot."""
        self._end_writing()
        groups = self.groups
        if groups is not None:
            yield groups
        for partition in range(PARTITIONS):
            yield from self._of(partition)

    def newly_left(self) -> list[Groups]:
        """What has gone to files since this was asked, as it lies there."""
        self._end_writing()
        new = [file for files, told in zip(self._files, self._told, strict=True) for file in files[told:]]
        self._told = [len(files) for files in self._files]
        return [self._grouping.read(records) for file in new for records in file.read()]

    def results(self) -> Iterator[Groups]:
        """All groups, partition by partition, each in the order of its first rows. They stay as they are, all in files:
        whoever has taken them all clears. Nothing may be added meanwhile."""
        self._end_writing()
        groups = self.groups
        if groups is not None:
            self._made, self.bytes = None, 0
            self._let_go(groups, np.arange(PARTITIONS))
            self._sealed[:] = True
        del groups
        for partition in np.flatnonzero(self._left).tolist():
            yield from self._results_of(partition)

    def _results_of(self, partition: int) -> Iterator[Groups]:
        inner = BoundedGroups(self._grouping, self._memory, self._level + 1)
        try:
            for rows in self._of(partition):
                inner.add(rows)
            yield from inner._last_results()
        finally:
            inner.clear()

    def _last_results(self) -> Iterator[Groups]:
        """The same, of which nothing stays."""
        self._end_writing()
        groups = self.groups
        self._made, self.bytes = None, 0
        if groups is not None:
            yield groups
        del groups
        for partition in np.flatnonzero(self._left).tolist():
            yield from self._results_of(partition)

    def _end_writing(self) -> None:
        self.merge()
        self._write_buffer()
        self._sealed[:] = True

    def _of(self, partition: int) -> Iterator[Groups]:
        for file in self._files[partition]:
            for records in file.read():
                yield self._grouping.read(records)
