"""Row groups column by column: by the own decoder (``kernels.pages``) where it can, else by pyarrow (``parquet``).

Rules:

1. A column stands in one row group, and holds a page of it. Whatever the decoder does not take, or doubts when it meets
   it, pyarrow reads from that row on, or says what is wrong with it.
2. Where the footers and the dictionaries tell that ``CHUNK_ROWS`` rows have no more than ``OUTPUT_BYTES`` bytes, chunks
   are read one by one: the columns that filters look at first, of the others only the rows that are left
   (:class:`ChunkedColumns`). Else whole batches are read, and cut by what they weigh (:func:`weighed_batches`).
3. Columns come in their compact forms where that is asked for, and where chunks are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from ..arrow.compact import as_records, plain
from ..arrow.plain_types import plain_batches
from ..core.operator import OUTPUT_BYTES
from ..files.paths import DataFile
from ..kernels.page_stream import DoubtfulPage
from ..kernels.pages import ColumnReader, TextReader, column_reader
from ..kernels.pieces import selected
from ..kernels.row_bits import fixed_bits
from ..plan.rounds import CHUNK_ROWS, RowStream
from .parquet_files import Pace, bounded_batches, comparing_pages, footer_of, parquet_file
from .picking import Chunk, Chunked, Pick, PickedRows, PickingStream, Positions, rows_read

_BOUNDED = frozenset({"PLAIN", "RLE", "BIT_PACKED", "RLE_DICTIONARY", "PLAIN_DICTIONARY", "DELTA_LENGTH_BYTE_ARRAY"})
"""Encodings of which the values have no more bytes than the pages, or than a word of the dictionary for each."""
_TEXT_BITS = 64 + 1
"""Of a text besides its characters, at most."""


class OpenGroups:
    """Row groups of a file that is open, with what its footer says: (row group, number of rows) of each."""

    def __init__(
        self,
        file: DataFile,
        opened: pa.NativeFile,
        metadata: parquet.FileMetaData,
        groups: Sequence[tuple[int, int]],
    ) -> None:
        self.file, self.opened, self.metadata, self.groups = file, opened, metadata, groups
        #: leaf columns by their names; that of a nested column is another one
        self.leaves: Mapping[str, int] = {name: place for place, name in enumerate(metadata.schema.names)}

    def fetch(self, offset: int, size: int) -> Any:
        """A part of the file."""
        return self.opened.read_at(size, offset)

    def reader(self, group: int, field: pa.Field) -> ColumnReader | None:
        """The decoder of a column; None if it is pyarrow's."""
        leaf = self.leaves.get(field.name)
        if leaf is None or self.metadata.schema.column(leaf).path != field.name:
            return None
        return column_reader(self.fetch, self.metadata, group, leaf, field.type)


class Column:
    """The rows of one column, from row ``start`` of the first row group on."""

    def __init__(self, groups: OpenGroups, field: pa.Field, start: int) -> None:
        self._groups = groups
        self._field = field
        #: the place of the row group at hand, rows that were passed in it, and rows that are left
        self._place = self._row = self._left = 0
        self._reader: ColumnReader | _ByArrow | None = None
        self._begin()
        if start:
            self.skip(start)

    def most_bits(self) -> int | None:
        """What any ``CHUNK_ROWS`` rows take at most (``row_bits``); None: that cannot be known before they are read."""
        type = self._field.type
        fixed = fixed_bits(type)
        if fixed is not None:
            return fixed * CHUNK_ROWS
        if len(self._groups.groups) > 1 or not isinstance(self._reader, TextReader):
            return None
        group, _ = self._groups.groups[self._place]
        chunk = self._groups.metadata.row_group(group).column(self._groups.leaves[self._field.name])
        if not _BOUNDED.issuperset(chunk.encodings):
            return None
        try:
            word = self._reader.longest_word()
        except DoubtfulPage:
            self._leave_to_arrow()
            return None
        return CHUNK_ROWS * (8 * word + _TEXT_BITS) + 8 * int(chunk.total_uncompressed_size)

    def skip(self, rows: int) -> None:
        """Leave the next rows out."""
        while rows:
            now = self._here(rows)
            self._pass(now)
            rows -= now

    def take(self, rows: int, picked: Positions | None = None, compact: bool = False) -> pa.Array:
        """The next rows, or of these the ones at ascending positions."""
        parts: list[pa.Array] = []
        base = first = 0
        while base < rows:
            now = self._here(rows - base)
            if picked is None:
                parts.append(self._taken(now, None, compact))
            else:
                end = int(np.searchsorted(picked, base + now))
                if end > first:
                    parts.append(self._taken(now, picked[first:end] - base, compact))
                else:
                    self._pass(now)
                first = end
            base += now
        if len(parts) == 1:
            return parts[0]
        type = self._field.type
        return pa.concat_arrays([plain(part, type) for part in parts]) if parts else pa.array([], type)

    def _here(self, rows: int) -> int:
        while not self._left:
            self._place += 1
            self._begin()
        return min(rows, self._left)

    def _begin(self) -> None:
        group, self._left = self._groups.groups[self._place]
        self._row, self._reader = 0, self._groups.reader(group, self._field)
        if self._reader is None:
            self._leave_to_arrow()

    def _leave_to_arrow(self) -> _ByArrow:
        group, _ = self._groups.groups[self._place]
        reader = self._reader = _ByArrow(self._groups, group, self._field, self._row)
        return reader

    def _pass(self, rows: int) -> None:
        assert self._reader is not None
        self._reader.skip(rows)
        self._row, self._left = self._row + rows, self._left - rows

    def _taken(self, rows: int, picked: Positions | None, compact: bool) -> pa.Array:
        assert self._reader is not None
        try:
            found = self._reader.take(rows, picked, compact)
        except DoubtfulPage:
            found = self._leave_to_arrow().take(rows, picked)
        self._row, self._left = self._row + rows, self._left - rows
        return found


class _ByArrow:
    """A column of a row group that pyarrow reads, from a row on."""

    def __init__(self, groups: OpenGroups, group: int, field: pa.Field, start: int) -> None:
        self._groups = groups
        self._group = group
        self._field = field
        self._skipped = start
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._rest = pa.array([], field.type)

    def skip(self, rows: int) -> None:
        """Leave the next rows out."""
        self._skipped += rows

    def take(self, rows: int, picked: Positions | None = None, compact: bool = False) -> pa.Array:
        """The next rows, or of these the ones at ascending positions."""
        with comparing_pages(self._groups.file, self._group, [self._field.name]):
            while self._skipped:
                now = self._some(self._skipped)
                self._skipped -= len(now)
            parts, missing = [], rows
            while missing:
                parts.append(self._some(missing))
                missing -= len(parts[-1])
        found = parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [self._rest[:0]])
        return found if picked is None else found.take(pa.array(picked))

    def _some(self, most: int) -> pa.Array:
        if not len(self._rest):
            if self._batches is None:
                file = parquet_file(self._groups.file, self._groups.opened, self._groups.metadata)
                self._batches = plain_batches(bounded_batches(file, self._group, [self._field.name]))
            found = next(self._batches, None)
            if found is None:
                raise pa.ArrowInvalid(f"column {self._field.name!r} has fewer rows than its row group")
            self._rest = found.column(0)
        part, self._rest = self._rest[:most], self._rest[most:]
        return part


class ChunkedColumns:
    """Chunks of ``CHUNK_ROWS`` rows of all columns, or of what is picked of them."""

    def __init__(
        self, columns: Mapping[str, Column], schema: pa.Schema, rows: int, pick: Pick | None, compact: bool
    ) -> None:
        self._columns = columns
        self._schema = schema
        self._left = rows
        self._pick = pick
        self._compact = compact
        #: what comes out of the filters, and the schema of what they look at
        self._kept = schema if pick is None else self._of(pick.columns)
        self._seen = schema if pick is None else self._of(pick.looks_at)
        self._wanted = frozenset(self._kept.names)
        self._later = self._wanted if pick is None else self._wanted.union(pick.keys)

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        """As ``RowStream`` would cut them."""
        wanted = self._left if limit is None else min(limit, self._left)
        while wanted:
            rows = min(CHUNK_ROWS, wanted)
            chunk = self._whole(rows, {}) if self._pick is None else self._picked(rows, self._pick)
            self._left -= rows
            wanted -= rows
            yield chunk

    def _whole(self, rows: int, taken: Mapping[str, pa.Array]) -> pa.RecordBatch:
        compact = self._compact and self._pick is None
        found = [
            plain(taken[name], self._schema.field(name).type) if name in taken else column.take(rows, None, compact)
            for name, column in self._columns.items()
        ]
        return as_records(found, self._schema)

    def _picked(self, rows: int, pick: Pick) -> Chunk:
        at = {name: self._columns[name].take(rows, None, self._compact) for name in pick.looks_at}
        found = pick.passing(as_records(list(at.values()), self._seen)) if at else ((rows,), None)
        if found is None:
            return self._whole(rows, at)
        counts, positions = found
        left = {name for name in self._columns if name not in at}
        at = _selected({name: column for name, column in at.items() if name in self._later}, positions)
        for name in pick.keys:
            if name in left:
                at[name] = self._columns[name].take(rows, positions, self._compact)
                left.remove(name)
        needed = pick.needed([at[name] for name in pick.keys], counts[-1])
        if needed is not None:
            at = _selected(at, needed)
            positions = needed if positions is None else positions[needed]
        for name in left:
            if name in self._wanted:
                at[name] = self._columns[name].take(rows, positions, self._compact)
            else:
                self._columns[name].skip(rows)
        return PickedRows(as_records([at[name] for name in self._kept.names], self._kept), counts)

    def _of(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self._schema.field(name) for name in names])


def _selected(columns: Mapping[str, pa.Array], positions: Positions | None) -> dict[str, pa.Array]:
    """These rows of them; None: all."""
    if positions is None or not columns:
        return dict(columns)
    records = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    return dict(zip(columns, selected(records, positions).columns, strict=True))


class ColumnStream:
    """The rows of a split from some row on, chunk by chunk. The file is opened when the first is wanted, on the thread
    that wants it, and closed behind the last one."""

    def __init__(
        self,
        file: DataFile,
        groups: Sequence[tuple[int, int]],
        schema: pa.Schema,
        start: int,
        pick: Pick | None,
        compact: bool,
    ) -> None:
        self._file = file
        self._groups = groups
        self._schema = schema
        self._start = start
        self._left = sum(count for _, count in groups) - start
        self._pick = pick
        self._compact = compact
        self._opened: pa.NativeFile | None = None
        self._chunks: Chunked | None = None

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        """As ``RowStream`` would cut them."""
        with self._file.named():
            if self._left and self._chunks is None:
                self._chunks = self._begin()
            if self._chunks is not None:
                for chunk in self._chunks.chunks(limit):
                    self._left -= rows_read(chunk)
                    if not self._left:
                        self._end()
                    yield chunk

    def _begin(self) -> Chunked:
        self._opened = self._file.open()
        footer = footer_of(self._file, self._opened)
        groups = OpenGroups(self._file, self._opened, footer, self._groups)
        columns = {field.name: Column(groups, field, self._start) for field in self._schema}
        if is_bounded(columns.values()):
            return ChunkedColumns(columns, self._schema, self._left, self._pick, self._compact)
        rows = RowStream(weighed_batches(groups, columns, self._schema, self._start))
        return rows if self._pick is None else PickingStream(rows, self._pick)

    def _end(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._file.check()


def is_bounded(columns: Iterable[Column]) -> bool:
    """Whether any ``CHUNK_ROWS`` rows have at most ``OUTPUT_BYTES`` bytes for certain."""
    bits = 0
    for column in columns:
        most = column.most_bits()
        if most is None:
            return False
        bits += most
    return bits <= 8 * OUTPUT_BYTES


def weighed_batches(
    groups: OpenGroups, columns: Mapping[str, Column], schema: pa.Schema, start: int
) -> Iterator[pa.RecordBatch]:
    """The rows from row ``start`` of the first row group on, in batches of bounded size (``parquet``, rule 7)."""
    for group, count in groups.groups:
        left, start = count - start, 0
        pace = Pace(groups.metadata.row_group(group), schema)
        while left:
            now = min(pace.rows, left)
            records = as_records([column.take(now) for column in columns.values()], schema)
            pace.read(records)
            left -= now
            yield records
