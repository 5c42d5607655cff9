"""Row groups column by column: by the own decoder (``kernels.pages``) where it can, else by pyarrow (``parquet``).

Rules:

1. A column stands in one row group, and holds a page of it. Whatever the decoder does not take, or doubts when it meets
   it, pyarrow reads from that row on, or says what is wrong with it.
2. Where the footers and the dictionaries tell that ``CHUNK_ROWS`` rows have no more than ``OUTPUT_BYTES`` bytes, chunks
   are read one by one: the columns that filters look at first, of the others only the rows that are left
   (:class:`ChunkedColumns`). Else whole batches are read, and cut by what they weigh (:func:`weighed_batches`).
3. Columns come in their compact forms where that is asked for, and where chunks are read one by one.
4. A file is not opened of which the folders say that the first filter lets no row through, where rows have a fixed
   width: else only the file tells where chunks end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from ..arrow.compact import as_records, plain
from ..arrow.masks import set_bits
from ..arrow.plain_types import plain_batches
from ..core.operator import OUTPUT_BYTES
from ..expressions.bounds import bounded
from ..files.partitions import Constants
from ..files.paths import DataFile, is_local
from ..kernels.page_stream import BLOCK, DoubtfulPage
from ..kernels.pages import (
    ColumnReader,
    ListReader,
    TextReader,
    chunk_range,
    column_reader,
    is_whole_lists,
    list_reader,
)
from ..kernels.pieces import selected
from ..kernels.row_bits import fixed_bits
from ..plan.rounds import CHUNK_ROWS, RowStream
from .far_columns import FarBytes
from .parquet_files import Pace, bounded_batches, comparing_pages, footer_of, parquet_file
from .parquet_index import index_places, page_places
from .picking import Chunk, Chunked, Pick, PickedRows, PickingStream, Positions, rows_read
from .skipping import GroupRanges, Skipping, range_of

_BOUNDED = frozenset({"PLAIN", "RLE", "BIT_PACKED", "RLE_DICTIONARY", "PLAIN_DICTIONARY", "DELTA_LENGTH_BYTE_ARRAY"})
"""Encodings of which the values have no more bytes than the pages, or than a word of the dictionary for each."""
_ELEMENTS = ("element", "item")
"""What writers call the values of a list."""
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
        constants: Constants,
    ) -> None:
        self.file, self.opened, self.metadata, self.groups = file, opened, metadata, groups
        #: columns that the file does not have, but its folders tell
        self.constants = constants
        #: leaf columns by their names; that of a nested column is another one
        self.leaves: Mapping[str, int] = {name: place for place, name in enumerate(metadata.schema.names)}
        #: those of lists that are decoded here, by the names of their columns
        self._lists: dict[str, int] = {}
        #: row groups of which pages are left out that need not be passed one by one
        self.leaping: set[int] = set()
        #: what is fetched ahead; None: the file is near
        self._far = None if is_local(file.filesystem) else FarBytes(file, opened)

    def expect(self, group: int, names: Iterable[str], most: int | None = None) -> None:
        """These columns of a row group will be read. ``most``: so many bytes of each, behind its dictionary."""
        if self._far is None:
            return
        ranges: list[tuple[int, int]] = []
        found = self.metadata.row_group(group)
        for name in names:
            leaf = self.leaves.get(name, self._lists.get(name))
            if leaf is not None:
                chunk = found.column(leaf)
                begin, end = chunk_range(chunk)
                ranges.append((begin, end if most is None else min(end, max(begin, chunk.data_page_offset) + most)))
        self._far.expect(group, ranges)

    def forget(self, group: int) -> None:
        """A row group is over."""
        if self._far is not None:
            self._far.forget(group)

    def fetch(self, offset: int, memory: Any) -> int:
        """Read a part of the file into an array of bytes; how many there were."""
        if self._far is not None and self._far.copy(offset, memory):
            return len(memory)
        self.opened.seek(offset)
        found: int = self.opened.readinto(memory)
        return found

    def part(self, offset: int, size: int) -> bytes:
        """A part of the file; less, or none, where it ends before."""
        left = min(size, self.file.size - offset)
        return bytes(self.opened.read_at(left, offset)) if offset >= 0 and left > 0 else b""

    def places(self, group: int, name: str) -> Positions | None:
        """Where the pages of a column are, if pages of the row group are left out (``ColumnReader.leap_by``)."""
        if group not in self.leaping:
            return None
        leaf = self.leaves[name]
        chunk = self.metadata.row_group(group).column(leaf)
        found = (
            page_places(self.part, chunk, index_places(self.metadata, group, leaf)) if chunk.has_offset_index else None
        )
        return None if found is None else found.ravel()

    def column(self, field: pa.Field, start: int) -> AnyColumn:
        """A column, from row ``start`` of the first row group on."""
        value = self.constants.get(field.name)
        return Column(self, field, start) if value is None else ConstantColumn(value)

    def reader(self, group: int, field: pa.Field) -> ColumnReader | None:
        """The decoder of a flat column; None if it is pyarrow's."""
        leaf = self.leaves.get(field.name)
        if leaf is None or self.metadata.schema.column(leaf).path != field.name:
            return None
        return column_reader(self.fetch, self.metadata, group, leaf, field.type)

    def list_reader(self, group: int, field: pa.Field) -> ListReader | None:
        """The decoder of a column of lists of one length; None if it is pyarrow's."""
        for name in _ELEMENTS:
            leaf = self._paths.get(f"{field.name}.list.{name}")
            if leaf is not None:
                found = list_reader(self.fetch, self.metadata, group, leaf, field.type)
                if found is not None:
                    self._lists[field.name] = leaf
                return found
        return None

    @cached_property
    def _paths(self) -> Mapping[str, int]:
        return {self.metadata.schema.column(place).path: place for place in range(self.metadata.num_columns)}


class Column:
    """The rows of one column, from row ``start`` of the first row group on."""

    def __init__(self, groups: OpenGroups, field: pa.Field, start: int) -> None:
        self._groups = groups
        self._field = field
        #: the place of the row group at hand, rows that were passed in it, and rows that are left
        self._place = self._row = self._left = 0
        self._reader: ColumnReader | ListReader | _ByArrow | None = None
        #: the row group of which it is known where its pages are
        self._leaps = -1
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

    def none(self) -> pa.Array:
        """No rows."""
        return pa.nulls(0, self._field.type)

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
                    here = picked[first:end]
                    parts.append(self._taken(now, here - base if base else here, compact))
                else:
                    self._pass(now)
                first = end
            base += now
        if len(parts) == 1:
            return parts[0]
        type = self._field.type
        return pa.concat_arrays([plain(part, type) for part in parts]) if parts else pa.nulls(0, type)

    def _here(self, rows: int) -> int:
        while not self._left:
            self._place += 1
            self._begin()
        return min(rows, self._left)

    def _begin(self) -> None:
        group, self._left = self._groups.groups[self._place]
        read = self._groups.list_reader if is_whole_lists(self._field.type) else self._groups.reader
        self._row, self._reader = 0, read(group, self._field)
        if self._reader is None:
            self._leave_to_arrow()

    def _leave_to_arrow(self) -> _ByArrow:
        group, _ = self._groups.groups[self._place]
        reader = self._reader = _ByArrow(self._groups, group, self._field, self._row)
        return reader

    def _pass(self, rows: int) -> None:
        assert self._reader is not None
        self._leap()
        self._reader.skip(rows)
        self._row, self._left = self._row + rows, self._left - rows

    def _leap(self) -> None:
        """Pages may be left out now: go over them by what the file says of where they are."""
        group, _ = self._groups.groups[self._place]
        if self._leaps != group and group in self._groups.leaping and isinstance(self._reader, ColumnReader):
            self._leaps, places = group, self._groups.places(group, self._field.name)
            if places is not None:
                self._reader.leap_by(places)

    def _taken(self, rows: int, picked: Positions | None, compact: bool) -> pa.Array:
        assert self._reader is not None
        if picked is not None:
            self._leap()
        try:
            found = self._reader.take(rows, picked, compact)
        except DoubtfulPage:
            found = self._leave_to_arrow().take(rows, picked)
        self._row, self._left = self._row + rows, self._left - rows
        return found


class ConstantColumn:
    """A column with one value in all rows."""

    def __init__(self, value: pa.Scalar) -> None:
        self._value = value

    def most_bits(self) -> int:
        """What any ``CHUNK_ROWS`` rows take at most."""
        fixed = fixed_bits(self._value.type)
        if fixed is None:
            fixed = 8 * len(self._value.as_buffer() or b"") + _TEXT_BITS
        return fixed * CHUNK_ROWS

    def none(self) -> pa.Array:
        """No rows."""
        return pa.nulls(0, self._value.type)

    def skip(self, rows: int) -> None:
        """Leave the next rows out."""

    def take(self, rows: int, picked: Positions | None = None, compact: bool = False) -> pa.Array:
        """The next rows, or of these the ones at ascending positions."""
        return pa.repeat(self._value, rows if picked is None else len(picked))


AnyColumn: TypeAlias = Column | ConstantColumn


class _ByArrow:
    """A column of a row group that pyarrow reads, from a row on."""

    def __init__(self, groups: OpenGroups, group: int, field: pa.Field, start: int) -> None:
        self._groups = groups
        self._group = group
        self._field = field
        self._skipped = start
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._rest = pa.nulls(0, field.type)

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
        self,
        groups: OpenGroups,
        columns: dict[str, AnyColumn],
        schema: pa.Schema,
        start: int,
        pick: Pick | None,
        compact: bool,
    ) -> None:
        self._groups = groups
        self._columns = columns
        self._schema = schema
        self._at, self._left = start, sum(count for _, count in groups.groups) - start
        #: where the row groups end, and how many of them are behind
        self._ends = list(accumulate(count for _, count in groups.groups))
        self._behind = 0
        self._pick = pick
        self._compact = compact
        #: what comes out of the filters
        self._kept = schema if pick is None else self._of(pick.columns)
        self._later = frozenset(self._kept.names if pick is None else (*self._kept.names, *pick.keys))
        self._skipping = (
            None
            if pick is None
            else Skipping(
                GroupRanges(groups.metadata, schema, groups, pick.skipped, groups.constants), groups.groups, pick
            )
        )

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        """As ``RowStream`` would cut them."""
        wanted = self._left if limit is None else min(limit, self._left)
        while wanted:
            rows = min(CHUNK_ROWS, wanted)
            while self._ends[self._behind] <= self._at:
                self._groups.forget(self._groups.groups[self._behind][0])
                self._behind += 1
            chunk = self._whole(rows) if self._skipping is None else self._picked(rows, self._skipping)
            self._at += rows
            self._left -= rows
            wanted -= rows
            yield chunk

    def _expect(self, rows: int, names: Iterable[str]) -> None:
        """The next rows of these columns will be read."""
        place = self._behind
        while place < len(self._ends) and (place == self._behind or self._ends[place - 1] < self._at + rows):
            self._groups.expect(self._groups.groups[place][0], names)
            place += 1

    def _whole(self, rows: int) -> pa.RecordBatch:
        self._expect(rows, self._columns)
        compact = self._compact and self._pick is None
        return as_records([column.take(rows, None, compact) for column in self._columns.values()], self._schema)

    def _picked(self, rows: int, skipping: Skipping) -> Chunk:
        """Filter by filter, and at last what joins need: each column is read where it is looked at first."""
        pick = skipping.pick
        taken = _Taken(self._columns, rows, self._compact)
        counts = [rows]
        for place, condition in enumerate(pick.conditions):
            left_out = taken.keep(skipping.passing(place, self._at, rows))
            pick.skipped.rows += left_out
            if not taken.left:
                counts += [0] * (len(pick.conditions) - place)
                break
            self._expect(rows, condition.columns)
            seen = as_records([taken.column(name) for name in condition.columns], self._of(condition.columns))
            try:
                passed = set_bits(condition.mask(seen))
            except Exception:
                return self._read_again(rows)
            taken.pick(passed)
            counts.append(taken.left)
            later = self._later.union(*(each.columns for each in pick.conditions[place + 1 :]))
            taken.forget(later)
        for place, each in enumerate(pick.early):
            if each.pays:
                left_out = taken.keep(skipping.passing_early(place, self._at, rows))
                pick.skipped.rows += left_out
                each.passed.add(left_out, 0)
                names = each.condition.columns
                passing = each.passing(as_records([taken.column(name) for name in names], self._of(names)))
                if passing is not None:
                    taken.pick(passing)
        for keys, met in zip(pick.joins, pick.met, strict=True):
            left_out = taken.keep(skipping.needed(keys, self._at, rows))
            pick.skipped.rows += left_out
            met.add(left_out, 0)
        if taken.left:
            self._expect(rows, pick.keys)
        needed = pick.needed([taken.column(name) for name in pick.keys], taken.left)
        if needed is not None:
            taken.pick(needed)
        if taken.left:
            self._expect(rows, self._kept.names)
        found = [taken.column(name) for name in self._kept.names]
        taken.skip_rest()
        return PickedRows(as_records(found, self._kept), tuple(counts))

    def _read_again(self, rows: int) -> pa.RecordBatch:
        """A filter has failed: the rows as they are, for the operator to fail on (``picking``, rule 3)."""
        self._columns = {field.name: self._groups.column(field, self._at) for field in self._schema}
        return as_records([column.take(rows) for column in self._columns.values()], self._schema)

    def _of(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self._schema.field(name) for name in names])


class _Taken:
    """What is read of a chunk so far: the rows that are left of it, in the columns that were looked at."""

    def __init__(self, columns: Mapping[str, AnyColumn], rows: int, compact: bool) -> None:
        self._columns = columns
        self._rows = rows
        self._compact = compact
        self._unread = set(columns)
        self._found: dict[str, pa.Array] = {}
        #: the positions of the rows that are left; None: all are
        self._positions: Positions | None = None
        #: how many these are
        self.left = rows

    def column(self, name: str) -> pa.Array:
        """The rows that are left of a column."""
        if name in self._unread and not self.left:
            return self._columns[name].none()
        if name in self._unread:
            self._unread.remove(name)
            self._found[name] = self._columns[name].take(self._rows, self._positions, self._compact)
        return self._found[name]

    def pick(self, rows: Positions) -> None:
        """Of the rows that are left only these are."""
        if len(rows) == self.left:
            return
        self._positions = rows if self._positions is None else self._positions[rows]
        self.left = len(rows)
        if self._found:
            records = pa.RecordBatch.from_arrays(list(self._found.values()), list(self._found))
            self._found = dict(zip(self._found, selected(records, rows).columns, strict=True))

    def keep(self, positions: Positions | None) -> int:
        """Of the rows that are left only those at these positions of the chunk are; None: all. How many are not."""
        before = self.left
        if positions is None:
            return 0
        if self._positions is None:
            self.pick(positions)
        else:
            wanted = np.zeros(self._rows, dtype=bool)
            wanted[positions] = True
            self.pick(np.flatnonzero(wanted[self._positions]))
        return before - self.left

    def forget(self, later: Collection[str]) -> None:
        """Only these columns are looked at from now on."""
        self._found = {name: column for name, column in self._found.items() if name in later}

    def skip_rest(self) -> None:
        """Nobody looks at the columns that were not read."""
        for name in self._unread:
            self._columns[name].skip(self._rows)


class _LeftOut:
    """Chunks of so many rows of which the first filter lets none through."""

    def __init__(self, rows: int, pick: Pick) -> None:
        self._left = rows
        self._counts = (0,) * len(pick.conditions)
        kept = pa.schema([pick.schema.field(name) for name in pick.columns])
        self._records = pa.RecordBatch.from_arrays([pa.nulls(0, type) for type in kept.types], schema=kept)
        pick.skipped.groups += 1
        pick.skipped.groups_left_out += 1
        pick.skipped.rows += rows

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        """As ``RowStream`` would cut them."""
        wanted = self._left if limit is None else min(limit, self._left)
        while wanted:
            rows = min(CHUNK_ROWS, wanted)
            self._left, wanted = self._left - rows, wanted - rows
            yield PickedRows(self._records, (rows, *self._counts))


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
        constants: Constants,
    ) -> None:
        self._file = file
        self._constants = constants
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
        if self._pick is not None and self._is_left_out(self._pick):
            return _LeftOut(self._left, self._pick)
        self._opened = self._file.open()
        footer = footer_of(self._file, self._opened)
        groups = OpenGroups(self._file, self._opened, footer, self._groups, self._constants)
        columns = {field.name: groups.column(field, self._start) for field in self._schema}
        texts = [field.name for field in self._schema if fixed_bits(field.type) is None]
        if len(self._groups) == 1:
            groups.expect(self._groups[0][0], texts, 2 * BLOCK)
        if is_bounded(columns.values()):
            return ChunkedColumns(groups, columns, self._schema, self._start, self._pick, self._compact)
        rows = RowStream(weighed_batches(groups, columns, self._schema, self._start))
        return rows if self._pick is None else PickingStream(rows, self._pick)

    def _is_left_out(self, pick: Pick) -> bool:
        """Whether it is known without the file that the first filter lets no row through, and where chunks end."""
        if not self._constants or not pick.conditions:
            return False
        widths = [fixed_bits(each.type) for each in self._schema]
        if None in widths or CHUNK_ROWS * sum(bits or 0 for bits in widths) > 8 * OUTPUT_BYTES:
            return False
        first = bounded(pick.conditions[0].expression, pick.schema)
        return first.is_safe and not first.may_hold({name: range_of(each) for name, each in self._constants.items()})

    def _end(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._file.check()


def is_bounded(columns: Iterable[AnyColumn]) -> bool:
    """Whether any ``CHUNK_ROWS`` rows have at most ``OUTPUT_BYTES`` bytes for certain."""
    bits = 0
    for column in columns:
        most = column.most_bits()
        if most is None:
            return False
        bits += most
    return bits <= 8 * OUTPUT_BYTES


def weighed_batches(
    groups: OpenGroups, columns: Mapping[str, AnyColumn], schema: pa.Schema, start: int
) -> Iterator[pa.RecordBatch]:
    """The rows from row ``start`` of the first row group on, in batches of bounded size (``parquet``, rule 7)."""
    for group, count in groups.groups:
        left, start = count - start, 0
        groups.expect(group, columns)
        pace = Pace(groups.metadata.row_group(group), schema)
        while left:
            now = min(pace.rows, left)
            records = as_records([column.take(now) for column in columns.values()], schema)
            pace.read(records)
            left -= now
            yield records
        groups.forget(group)
