"""Rows of several streams that wait for their turn: a queue for each, in memory or on disk.

Rules:

1. Rows of a stream leave in the order in which they came. Each piece knows its round: rows of a later round than is
   asked for do not count as available, nor does anything behind them.
2. Over the budget the longest queue is written to a file, from which it is read again when its turn comes: files are
   memory-mapped, and hold no memory until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ..core.operator import LANE, Memory, SpillFile
from ..kernels.pieces import Bound, Positions, picked
from .state_rows import row_type, rows_of_state
from .stored_rows import concatenated


class _Stored:
    """Pieces on disk, in one file."""

    def __init__(self, file: SpillFile, pieces: int) -> None:
        self._file = file
        self._batches: list[pa.RecordBatch] = []
        #: pieces that are not used up
        self._left = pieces

    def read(self, number: int) -> pa.RecordBatch:
        if not self._batches:
            self._batches = list(self._file.read())
        return self._batches[number]

    def use_up(self) -> None:
        """One piece is needed no longer; with the last one the file goes."""
        self._left -= 1
        if not self._left:
            self._batches = []
            self._file.delete()


@dataclass(slots=True)
class _Piece:
    """Rows of one round, in memory or in a file."""

    round: int
    rows: int
    #: of those in a file that have not been read: None
    records: pa.RecordBatch | None
    #: bytes in memory
    size: int
    stored: _Stored | None = None
    number: int = 0

    def load(self) -> pa.RecordBatch:
        if self.records is None:
            assert self.stored is not None, "a piece is in memory or in a file"
            self.records = self.stored.read(self.number)
        return self.records


class MixedRows:
    """See the module's rules."""

    def __init__(self, schema: pa.Schema, ports: int, memory: Memory) -> None:
        self._schema, self._memory = schema, memory
        self._queues: list[deque[_Piece]] = [deque() for _ in range(ports)]
        #: rows of each port
        self.counts = np.zeros(ports, dtype=np.int64)
        self._sizes = [0] * ports

    @property
    def total(self) -> int:
        """Rows of all ports."""
        return int(self.counts.sum())

    @property
    def row_type(self) -> pa.DataType:
        """A row as a state table holds it."""
        return row_type(self._schema)

    def add(self, port: int, round: int, records: pa.RecordBatch) -> None:
        """Hold rows of a port, behind those that it has."""
        records = pa.RecordBatch.from_arrays(records.columns, schema=self._schema)
        self._queues[port].append(_Piece(round, records.num_rows, records, records.nbytes))
        self.counts[port] += records.num_rows
        self._sizes[port] += records.nbytes
        if self._memory.hold(sum(self._sizes)):
            self._spill(int(np.argmax(self._sizes)))

    def fitting(self, bound: Bound, other: float = 0.0) -> int:
        """How many rows to take at once: as many as are within the bound, going by the mean size of the next ones;
        ``other``: that of rows which are still to be added."""
        sizes = [queue[0].load().nbytes / queue[0].rows for queue in self._queues if queue]
        return max(1, min(bound.rows, int(bound.bytes / max(1, other, *sizes))))

    def up_to(self, round: int) -> Positions:
        """How many rows each port has of rounds up to this one."""
        found = self.counts.copy()
        for port, queue in enumerate(self._queues):
            found[port] -= sum(piece.rows for piece in queue if piece.round > round)
        return found

    def take(self, ports: Positions) -> tuple[pa.RecordBatch, Positions]:
        """The next rows of these ports, in this order, which are held no longer; and how many of each."""
        taken: Positions = np.bincount(ports, minlength=len(self._queues))
        order = np.empty(len(ports), dtype=np.int64)
        parts: list[pa.RecordBatch] = []
        first = 0
        for port in np.flatnonzero(taken).tolist():
            count = int(taken[port])
            parts += self._first(port, count)
            order[ports == port] = np.arange(first, first + count)
            first += count
        whole = concatenated(self._schema, parts)
        self._memory.hold(sum(self._sizes))
        columns = [picked(column, pa.array(order)) for column in whole.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema), taken

    def state(self, lane: int) -> Iterator[pa.Table]:
        """The rows held as state tables, with port, round and place."""
        for port, queue in enumerate(self._queues):
            place = 0
            for piece in queue:
                rows = piece.rows
                row = pa.StructArray.from_arrays(piece.load().columns, fields=list(self.row_type))
                yield pa.table(
                    {
                        LANE: pa.array(np.full(rows, lane, dtype=np.int32)),
                        "port": pa.array(np.full(rows, port, dtype=np.int32)),
                        "round": pa.array(np.full(rows, piece.round, dtype=np.int64)),
                        "place": pa.array(np.arange(place, place + rows)),
                        "row": row,
                    }
                )
                place += rows

    def restore(self, table: pa.Table) -> None:
        """Hold the rows of earlier states."""
        ports, rounds = table.column("port").to_numpy(), table.column("round").to_numpy()
        order = np.lexsort([table.column("place").to_numpy(), ports])
        ports, rounds = ports[order], rounds[order]
        change = np.flatnonzero((np.diff(ports) != 0) | (np.diff(rounds) != 0)) + 1
        for part in np.split(order, change):
            if len(part):
                mine = table.take(pa.array(part)).combine_chunks()
                row = mine.column("row").combine_chunks()
                records = rows_of_state(row, self._schema)
                self.add(mine.column("port")[0].as_py(), mine.column("round")[0].as_py(), records)

    def clear(self) -> None:
        """Hold nothing any more."""
        for port in range(len(self._queues)):
            self._first(port, int(self.counts[port]))
        self._memory.hold(0)

    def _first(self, port: int, count: int) -> list[pa.RecordBatch]:
        """The next rows of a port, which are held no longer."""
        queue = self._queues[port]
        found: list[pa.RecordBatch] = []
        self.counts[port] -= count
        while count:
            piece = queue[0]
            records = piece.load()
            taken = min(count, piece.rows)
            found.append(records.slice(0, taken))
            count -= taken
            if taken < piece.rows:
                rest = records.slice(taken)
                size = 0 if piece.stored else rest.nbytes
                self._sizes[port] -= piece.size - size
                queue[0] = replace(piece, rows=rest.num_rows, records=rest, size=size)
            else:
                queue.popleft()
                self._sizes[port] -= piece.size
                if piece.stored:
                    piece.stored.use_up()
        return found

    def _spill(self, port: int) -> None:
        """Write what the port has in memory to one file."""
        pieces = [piece for piece in self._queues[port] if piece.size]
        if not pieces:
            return
        file = self._memory.spill(self._schema)
        stored = _Stored(file, len(pieces))
        for number, piece in enumerate(pieces):
            file.write(piece.load())
            piece.records, piece.size, piece.stored, piece.number = None, 0, stored, number
        self._sizes[port] = 0
        self._memory.hold(sum(self._sizes))
