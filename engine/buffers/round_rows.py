"""The rows of one round at the consumer of a partitioned exchange: pieces in memory, runs on disk, given out by part.

Rules:

1. A piece holds its rows by part. Rows of one part come out in the order of their pieces' keys, within a piece in
   their order: it does not matter in which order pieces came, or which of them are on disk.
2. ``spill`` writes all pieces in memory into one run: part by part, within a part by key. Its index (how many rows of
   each part each piece has) stays in memory, so a run is read from front to back once, beside the others.
3. Many small pieces would cost more than their rows: they are sorted into one before they are given out, if all of
   them are not much.
4. Of a piece in memory the size is measured once, and its slices are taken to have their share of it: that decides when
   slices are brought together, not where batches end, which ``cut`` measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..core.operator import Memory, SpillFile
from ..kernels.hashing import part_order
from ..kernels.pieces import Bound, Positions, picked
from .stored_rows import concatenated, rebatched, rebatched_sized

Key = tuple[int, int]
"""Where a piece belongs among those of its round."""

_FEW_ROWS = 256
"""So many rows of a part and piece, or less, are not worth a slice of their own: it costs as much as copying them."""

_RUN_BATCH, _RUN_BYTES = 8 * 1024, 1024 * 1024
"""Rows and bytes of a batch on disk: of each run one is in memory."""


@dataclass(slots=True)
class PartPiece:
    """Rows sorted by part: those of the n-th of the subtask's parts stand from ``borders[n]`` to ``borders[n + 1]``."""

    key: Key
    records: pa.RecordBatch
    borders: Positions
    bytes: int

    def slices(self, part: int) -> Iterator[_Slice]:
        start, end = int(self.borders[part]), int(self.borders[part + 1])
        rows = end - start
        if rows:
            yield self.key, self.records.slice(start, rows), self.bytes * rows // self.records.num_rows


_Slice = tuple[Key, pa.RecordBatch, int]
"""Rows of a part, where they belong, and their bytes, or about so many."""


class _Run:
    """Pieces on disk."""

    def __init__(self, pieces: Sequence[PartPiece], file: SpillFile) -> None:
        self._keys = [piece.key for piece in pieces]
        self.counts = np.stack([np.diff(piece.borders) for piece in pieces])
        self._file = file

    def read(self) -> _RunReader:
        """From the first part on. Several may read at once."""
        return _RunReader(self._keys, self.counts, self._file.read())

    def delete(self) -> None:
        self._file.delete()


class _RunReader:
    """How far a run has been read."""

    def __init__(self, keys: Sequence[Key], counts: Positions, batches: Iterator[pa.RecordBatch]) -> None:
        self._keys, self._counts, self._batches = keys, counts, batches
        self._batch: pa.RecordBatch | None = None

    def slices(self, part: int) -> Iterator[_Slice]:
        for number in np.flatnonzero(self._counts[:, part]).tolist():
            missing = int(self._counts[number, part])
            while missing:
                if self._batch is None:
                    self._batch = next(self._batches)
                found = self._batch.slice(0, missing)
                rest = self._batch.slice(found.num_rows)
                self._batch = rest if rest.num_rows else None
                missing -= found.num_rows
                yield self._keys[number], found, found.nbytes


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
        self.bytes += piece.bytes

    def spill(self) -> None:
        """Write what is in memory to disk."""
        if not self._pieces:
            return
        pieces, self._pieces, self.bytes = sorted(self._pieces, key=lambda piece: piece.key), [], 0
        file = self._memory.spill(self._schema)
        run = _Run(pieces, file)
        slices = (found for part in range(self._parts) for piece in pieces for _, found, _ in piece.slices(part))
        for records in rebatched(slices, self._schema, _RUN_BATCH, _RUN_BYTES):
            file.write(records)
        self._runs.append(run)

    def by_part(self, bound: Bound) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Every part that has rows, by number, and its rows in pieces. It may be called again, also meanwhile."""
        pieces = self._dense() if self.bytes <= bound.bytes else self._pieces
        for part, found in self._slices(pieces):
            sized = ((records, size) for _, records, size in found)
            for piece in rebatched_sized(sized, self._schema, bound.rows, bound.bytes):
                yield part, piece

    def by_key(self) -> Iterator[tuple[int, Key, pa.RecordBatch]]:
        """Every part that has rows, by number, the key of a piece, and its rows of the part."""
        for part, found in self._slices(self._pieces):
            for key, records, _ in found:
                yield part, key, records

    def _slices(self, pieces: Sequence[PartPiece]) -> Iterator[tuple[int, list[_Slice]]]:
        runs = [run.read() for run in self._runs]
        holders: Sequence[PartPiece | _RunReader] = [*sorted(pieces, key=lambda piece: piece.key), *runs]
        for part in self._present().tolist():
            found = [each for holder in holders for each in holder.slices(part)]
            if self._runs:
                found.sort(key=lambda each: each[0])
            yield part, found

    def clear(self) -> None:
        """Hold nothing any more."""
        for run in self._runs:
            run.delete()
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
        records = picked(records, pa.array(order))
        return [PartPiece(pieces[0].key, records, borders, self.bytes)]
