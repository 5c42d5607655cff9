"""Rows on disk that can be looked up by key: the build side of a hash join that does not fit into memory.

Rules:

1. Rows stay in the order in which they came. Beside them lies an index, in files as well: the *places* of the rows,
   sorted by the hash of their key, then by the key, then by the place; and the *directory*, one entry for each distinct
   key in the same order: its hash, its columns, the first of its places, and their number.
2. A key is looked up by searching its hash in the directory; as long as the entry's key is another one with the same
   hash, the next entry is tried. So no key, however frequent, costs more than another one, and nothing is parted.
3. Files are memory-mapped: what a probe looks at stays in memory as long as the system has room. The heap holds a few
   numbers for each piece of a file, besides what the probed batch needs.
4. Null, NaN and the order of matches are those of ``sorted_lookup``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...buffers.sorted_runs import SortedRuns
from ...buffers.stored_rows import StoredRows, concatenated, numbers_of, rebatched
from ...core.operator import Memory
from ...core.schemas import no_rows
from ...kernels.hashing import Hashes, hashes
from ...kernels.keys import comparable, compared, decoded, differences, valid_rows
from ...kernels.pieces import PIECE_ROWS, Flags, Positions
from ...kernels.sorting import SortKey
from .matching import Matches

_PLACES = pa.schema([pa.field("place", pa.int64())])


@dataclass(frozen=True, slots=True)
class PlacesOnDisk:
    """The places, as ``Matches.rows``: numbers picked by number."""

    rows: StoredRows

    def __len__(self) -> int:
        return self.rows.num_rows

    def __getitem__(self, wanted: Positions) -> Positions:
        return numbers_of(self.rows.column(0), wanted)


class SpilledLookup:
    """See the module's rules. ``keys``: the positions of the key columns in the rows. ``besides``: the bytes that the
    operator holds while the index is built."""

    def __init__(self, rows: StoredRows, keys: Sequence[int], memory: Memory, besides: int = 0) -> None:
        types = [decoded(pa.nulls(0, rows.schema.field(place).type)).type for place in keys]
        named = [pa.field("hash", pa.uint64()), *(pa.field(f"key {number}", type) for number, type in enumerate(types))]
        self._key_schema = pa.schema(named)
        directory = pa.schema([*named, pa.field("first", pa.int64()), pa.field("count", pa.int64())])
        self._places_file, self._directory_file = memory.spill(_PLACES), memory.spill(directory)
        try:
            self._build(rows, keys, memory, besides)
        except BaseException:
            self.delete()
            raise
        self._places = PlacesOnDisk(StoredRows(_PLACES, self._places_file.read()))
        self._directory = StoredRows(directory, self._directory_file.read())
        #: the last hash of each piece of the directory
        self._last = np.array([records.column(0)[-1].as_py() for records in self._directory.batches], dtype=np.uint64)

    def delete(self) -> None:
        """Remove the files."""
        self._places_file.delete()
        self._directory_file.delete()

    # ------------------------------------------------------------------ looking up

    def matches(self, keys: Sequence[pa.Array]) -> Matches:
        """The rows that match each of ``keys``, which hold no null."""
        columns = [decoded(column) for column in keys]
        wanted = hashes(columns)
        by_hash = np.argsort(wanted)  # so that directory and places are walked through in one direction
        wanted = wanted[by_hash]
        first, counts = np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.int64)
        entries = self._search(wanted)
        rows = np.flatnonzero(entries < self._directory.num_rows)
        while len(rows):
            found = self._directory.take(entries[rows])
            near = found.column(0).to_numpy() == wanted[rows]
            hits = near & _equal(found.columns[1:-2], columns, by_hash[rows])
            first[by_hash[rows[hits]]] = found.column("first").to_numpy()[hits]
            counts[by_hash[rows[hits]]] = found.column("count").to_numpy()[hits]
            rows = rows[near & ~hits]
            entries[rows] += 1
            rows = rows[entries[rows] < self._directory.num_rows]
        return Matches(first, counts, self._places)

    def _search(self, ascending: Hashes) -> Positions:
        """The first entry of the directory whose hash is not smaller."""
        # those above the last hash of each piece begin the next piece's share
        borders = np.append(0, np.searchsorted(ascending, self._last, side="right"))
        found = np.full(len(ascending), self._directory.num_rows, dtype=np.int64)
        for piece in np.flatnonzero(np.diff(borders)).tolist():
            share = slice(int(borders[piece]), int(borders[piece + 1]))
            there = self._directory.batches[piece].column(0).to_numpy()
            found[share] = np.searchsorted(there, ascending[share]) + self._directory.starts[piece]
        return found

    # ------------------------------------------------------------------ building

    def _build(self, rows: StoredRows, keys: Sequence[int], memory: Memory, besides: int) -> None:
        schema = pa.schema([*self._key_schema, *_PLACES])
        order = [(number, SortKey(field.name)) for number, field in enumerate(self._key_schema)]
        runs = SortedRuns(schema, order, memory, PIECE_ROWS)
        waiting: list[pa.RecordBatch] = []
        size = 0
        try:
            for entries in _entries(rows, keys, schema):
                waiting.append(entries)
                size += entries.nbytes
                if memory.hold(besides + size):
                    runs.add(concatenated(schema, waiting))
                    waiting, size = [], 0
            youngest = runs.sorted_pieces(concatenated(schema, waiting))
            self._write(rebatched(runs.merged(youngest), schema, PIECE_ROWS))
        finally:
            runs.clear()
            memory.hold(besides)

    def _write(self, entries: Iterator[pa.RecordBatch]) -> None:
        """Places as they come; directory entries as soon as it is known how many places they have."""
        done = 0
        open_key, open_first = no_rows(self._key_schema), np.zeros(0, dtype=np.int64)
        for records in entries:
            *columns, place = records.columns
            self._places_file.write(pa.record_batch([place], schema=_PLACES))
            keys = pa.RecordBatch.from_arrays(columns, schema=self._key_schema)
            starts = np.flatnonzero(_begins(open_key, keys))
            begun = concatenated(self._key_schema, [open_key, keys.take(pa.array(starts))])
            firsts = np.append(open_first, starts + done)
            done += records.num_rows
            self._write_directory(begun.slice(0, max(len(firsts) - 1, 0)), firsts)
            open_key, open_first = begun.slice(max(len(firsts) - 1, 0)), firsts[-1:]
        self._write_directory(open_key, np.append(open_first, done))

    def _write_directory(self, keys: pa.RecordBatch, firsts: Positions) -> None:
        """Complete entries; ``firsts`` names the first place behind the last one, too."""
        if keys.num_rows:
            columns = [*keys.columns, pa.array(firsts[:-1]), pa.array(np.diff(firsts))]
            self._directory_file.write(pa.RecordBatch.from_arrays(columns, names=self._directory_names))

    @property
    def _directory_names(self) -> list[str]:
        return [*self._key_schema.names, "first", "count"]


def _equal(entries: Sequence[pa.Array], keys: Sequence[pa.Array], rows: Positions) -> Flags:
    """For each entry: is it the key in this row?"""
    equal = np.ones(len(rows), dtype=bool)
    picked = pa.array(rows)
    for entry, key in zip(entries, keys, strict=True):
        equal &= compared("equal", comparable(entry), comparable(key.take(picked)))
    return equal


def _begins(before: pa.RecordBatch, keys: pa.RecordBatch) -> Flags:
    """Which rows have another key than the row before; ``before`` holds that of the first one, if there is one."""
    if not before.num_rows:
        return np.append(True, differences(keys.columns))
    return differences(concatenated(keys.schema, [before, keys]).columns)


def _entries(rows: StoredRows, keys: Sequence[int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Hash, key and place of the rows whose key is not null."""
    for number, records in enumerate(rows.batches):
        columns = [decoded(records.column(place)) for place in keys]
        valid = valid_rows(columns)
        places = np.arange(rows.starts[number], rows.starts[number + 1])
        if valid is not None:
            columns, places = [column.take(pa.array(valid)) for column in columns], places[valid]
        arrays = [pa.array(hashes(columns)), *columns, pa.array(places)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
