"""The rows of one round at the consumer of a partitioned exchange: pieces in memory, runs on disk, given out by part.

Rules:

1. A piece holds its rows by part. Rows of one part come out in the order of their pieces' keys, within a piece in
   their order: it does not matter in which order pieces came, or which of them are on disk.
2. ``spill`` writes all pieces in memory into one run: part by part, within a part by key. Its index (how many rows of
   each part each piece has) stays in memory, so a run is read from front to back once, beside the others.
3. Many tiny pieces would cost more than their rows: they are sorted into one before they are given out, if all of them
   are not much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..core.operator import Memory, SpillFile
from ..kernels.hashing import part_order
from ..kernels.pieces import Bound, Positions
from .stored_rows import concatenated, rebatched

Key = tuple[int, int]
"""Where a piece belongs among those of its round."""

_FEW_ROWS = 32
"""So many rows of a part and piece, or less, are not worth a slice of their own."""

_RUN_BATCH, _RUN_BYTES = 8 * 1024, 1024 * 1024
"""Rows and bytes of a batch on disk: of each run one is in memory."""


@dataclass(slots=True)
class PartPiece:
    """Rows sorted by part: those of the n-th of the subtask's parts stand from ``borders[n]`` to ``borders[n + 1]``."""

    key: Key
    records: pa.RecordBatch
    borders: Positions

    def slices(self, part: int) -> Iterator[tuple[Key, pa.RecordBatch]]:
        start, end = int(self.borders[part]), int(self.borders[part + 1])
        if start < end:
            yield self.key, self.records.slice(start, end - start)


class _Run:
    """Pieces on disk."""

    def __init__(self, pieces: Sequence[PartPiece], file: SpillFile) -> None:
        self._keys = [piece.key for piece in pieces]
        self.counts = np.stack([np.diff(piece.borders) for piece in pieces])
        self._file = file
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: pa.RecordBatch | None = None

    def open(self) -> None:
        """Begin to read, from the first part on."""
        self._batches, self._batch = iter(self._file.read()), None

    def close(self) -> None:
        self._batches, self._batch = iter(()), None
        self._file.delete()

    def slices(self, part: int) -> Iterator[tuple[Key, pa.RecordBatch]]:
        for number in np.flatnonzero(self.counts[:, part]).tolist():
            missing = int(self.counts[number, part])
            while missing:
                if self._batch is None:
                    self._batch = next(self._batches)
                found = self._batch.slice(0, missing)
                rest = self._batch.slice(found.num_rows)
                self._batch = rest if rest.num_rows else None
                missing -= found.num_rows
                yield self._keys[number], found


class RoundRows:
    """See the module's rules. ``parts``: how many the subtask owns."""

    def __init__(self, schema: pa.Schema, parts: int, memory: Memory) -> None:
        self._schema, self._parts, self._memory = schema, parts, memory
        self._pieces: list[PartPiece] = []
        self._runs: list[_Run] = []
        #: rows in all, and bytes in memory
        self.rows = 0
        self.bytes = 0

    def add(self, piece: PartPiece) -> None:
        """Hold one more piece."""
        self._pieces.append(piece)
        self.rows += piece.records.num_rows
        self.bytes += piece.records.nbytes

    def spill(self) -> None:
        """Write what is in memory to disk."""
        if not self._pieces:
            return
        pieces, self._pieces, self.bytes = sorted(self._pieces, key=lambda piece: piece.key), [], 0
        file = self._memory.spill(self._schema)
        run = _Run(pieces, file)
        slices = (found for part in range(self._parts) for piece in pieces for _, found in piece.slices(part))
        for records in rebatched(slices, self._schema, _RUN_BATCH, _RUN_BYTES):
            file.write(records)
        self._runs.append(run)

    def by_part(self, bound: Bound) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Every part that has rows, by number, and its rows in pieces. It may be called again."""
        pieces = self._dense() if self.bytes <= bound.bytes else self._pieces
        holders: Sequence[PartPiece | _Run] = [*pieces, *self._runs]
        for run in self._runs:
            run.open()
        for part in self._present().tolist():
            found = [each for holder in holders for each in holder.slices(part)]
            found.sort(key=lambda each: each[0])
            slices = (records for _, records in found)
            for piece in rebatched(slices, self._schema, bound.rows, bound.bytes):
                yield part, piece

    def clear(self) -> None:
        """Hold nothing any more."""
        for run in self._runs:
            run.close()
        self._pieces, self._runs, self.rows, self.bytes = [], [], 0, 0

    def _present(self) -> Positions:
        counts = np.zeros(self._parts, dtype=np.int64)
        for piece in self._pieces:
            counts += np.diff(piece.borders)
        for run in self._runs:
            counts += run.counts.sum(axis=0)
        return np.flatnonzero(counts)

    def _dense(self) -> list[PartPiece]:
        """The pieces, as one if they are tiny (rule 3) and no run has rows that belong between theirs."""
        pieces = self._pieces
        rows = sum(piece.records.num_rows for piece in pieces)
        if self._runs or len(pieces) < 2 or rows > _FEW_ROWS * len(pieces) * self._parts:
            return pieces
        pieces = sorted(pieces, key=lambda piece: piece.key)
        records = concatenated(self._schema, [piece.records for piece in pieces])
        numbers = np.arange(self._parts, dtype=np.uint16)
        parts = np.concatenate([np.repeat(numbers, np.diff(piece.borders)) for piece in pieces])
        order, _ = part_order(parts)
        borders = np.append(0, np.cumsum(np.bincount(parts, minlength=self._parts)))
        return [PartPiece(pieces[0].key, records.take(pa.array(order)), borders)]
