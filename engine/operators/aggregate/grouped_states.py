"""The groups of a hash aggregation: keys and states side by side, and the merging of rows into them.

Rules:

1. A row may be merged as it is, or as a group of one, lifted to a state: the outcome is the same
   (``aggregate_protocol``, ``accumulators``).
2. Groups of a table stand in the order of their first rows. ``positions`` number the rows that a subtask has taken, so
   that groups that were parted can be put into that order again.
3. What comes later is merged behind what came earlier, always: so results do not depend on when rows were merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from ...arrow.compact import plain
from ...buffers.held_rows import Lanes
from ...kernels.accumulators import GroupRows, Sized, makes_parts
from ...kernels.aggregate_protocol import State
from ...kernels.growable_array import AheadCopy, GrowableArray, arrays_in
from ...kernels.key_table import KEY_BYTES, KeyTable
from ...kernels.keys import decoded
from ...kernels.pieces import Bound, Positions
from ...kernels.row_bits import row_bits
from .aggregates import AggregateColumns


@dataclass(frozen=True)
class Groups:
    """Groups, or rows: keys, states, and the lane and the position of the first row of each."""

    keys: list[pa.Array]
    states: list[State]
    lanes: Lanes
    positions: Positions

    def __len__(self) -> int:
        return len(self.lanes)

    @property
    def bytes(self) -> int:
        """Their size."""
        return int(sum(column.nbytes for column in self.columns)) + self.lanes.nbytes + self.positions.nbytes

    @property
    def columns(self) -> list[pa.Array]:
        """Keys, then the parts of all states."""
        return [*self.keys, *(part for state in self.states for part in state)]

    def take(self, rows: Positions) -> Groups:
        """Some of them."""
        picked = pa.array(rows)
        states = [tuple(part.take(picked) for part in state) for state in self.states]
        return Groups([key.take(picked) for key in self.keys], states, self.lanes[rows], self.positions[rows])

    def pieces(self, bound: Bound) -> Iterator[Groups]:
        """Consecutive ones, within the bound; nothing is copied."""
        for low in range(0, len(self), bound.rows):
            rows = np.arange(low, min(low + bound.rows, len(self)))
            for part in bound.parts(len(rows), row_bits(self.columns, rows)):
                yield self._part(slice(low + part.start, low + part.stop))

    def _part(self, part: slice) -> Groups:
        start, rows = part.start, part.stop - part.start
        states = [tuple(column.slice(start, rows) for column in state) for state in self.states]
        return Groups([key.slice(start, rows) for key in self.keys], states, self.lanes[part], self.positions[part])


@dataclass(frozen=True)
class GroupedRows:
    """Rows as they came, in whatever form: with the columns of the key, and the lane of each, or of all."""

    keys: list[pa.Array]
    records: pa.RecordBatch
    lane: Lanes | int

    def lanes(self, rows: Positions) -> Lanes:
        """The lanes of some of them."""
        return np.full(len(rows), self.lane, dtype=np.int32) if isinstance(self.lane, int) else self.lane[rows]

    def __len__(self) -> int:
        return int(self.records.num_rows)


def plain_keys(columns: Sequence[pa.Array], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Columns of keys as values of these types."""
    return [plain(decoded(column), type) for column, type in zip(columns, types, strict=True)]


def followed(parts: Sequence[Groups]) -> Groups:
    """The first ones, then the others."""
    if len(parts) == 1:
        return parts[0]
    keys = [pa.concat_arrays(column) for column in zip(*(part.keys for part in parts), strict=True)]
    states = [
        tuple(pa.concat_arrays(column) for column in zip(*state, strict=True))
        for state in zip(*(part.states for part in parts), strict=True)
    ]
    lanes = np.concatenate([part.lanes for part in parts])
    return Groups(keys, states, lanes, np.concatenate([part.positions for part in parts]))


@dataclass(frozen=True)
class Grouping:
    """How rows become groups. ``per_lane``: rows of different lanes are of different groups (``groups_by_lane``)."""

    aggregates: AggregateColumns
    keys: tuple[pa.DataType, ...]
    per_lane: bool

    @cached_property
    def in_place(self) -> bool:
        """Whether adding rows costs no more the more groups there are."""
        return all(each.in_place for each in self.aggregates.accumulators())

    def keys_of(self, rows: GroupedRows) -> list[pa.Array]:
        """Their keys: text may be codes, decimals are of the declared type, as their words make the codes of a key."""
        pairs = zip(rows.keys, self.keys, strict=True)
        return [plain(decoded(key), type) if pa.types.is_decimal(type) else key for key, type in pairs]

    @property
    def row_bytes(self) -> int:
        """What a row takes as a group, besides what it takes as a row."""
        types = [field.type for field in self.aggregates.state_fields()]
        return sum(type.bit_width // 8 if pa.types.is_primitive(type) else 8 for type in types) + 12 + KEY_BYTES

    @property
    def schema(self) -> pa.Schema:
        """Of groups as a record batch: keys, states, lane, position. Columns go by position."""
        keys = [pa.field("key", type) for type in self.keys]
        places = [pa.field("lane", pa.int32()), pa.field("position", pa.int64())]
        return pa.schema([*keys, *self.aggregates.state_fields(), *places])

    def stored(self, groups: Groups) -> pa.RecordBatch:
        """Groups as a record batch."""
        columns = [*groups.columns, pa.array(groups.lanes), pa.array(groups.positions)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def read(self, stored: pa.RecordBatch) -> Groups:
        """Groups from a record batch."""
        *columns, lanes, positions = stored.columns
        width = len(self.keys)
        states = self.aggregates.split(columns[width:])
        return Groups(columns[:width], states, lanes.to_numpy(), positions.to_numpy())


class GroupTable:
    """Groups that rows are merged into, in place."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._table = KeyTable()
        self._accumulators = grouping.aggregates.accumulators()
        #: in place of the accumulators, when no more rows come: the states of any slice of the groups
        self._final: Callable[[slice], list[State]] | None = None
        #: the keys of the groups, in parts, and their size
        self._keys: list[list[pa.Array]] = [[] for _ in grouping.keys]
        self._key_bytes = 0
        self._lanes, self._positions = GrowableArray(np.int32), GrowableArray(np.int64)
        #: the size of all, once it has been asked for since the last rows came: there is a table for each lane, and a
        #: batch changes one of them
        self._bytes: int | None = None
        #: which groups are new or have changed since that was asked; None: nobody has asked
        self._marks: GrowableArray | None = None
        #: what is being copied so that groups may change that have been given
        self._copies: list[AheadCopy] = []

    def __len__(self) -> int:
        return self._table.count

    @property
    def bytes(self) -> int:
        """The size of keys, states, and what finds them."""
        if self._bytes is None:
            parts: list[Sized] = [*self._accumulators, self._table, self._lanes, self._positions]
            self._bytes = sum(part.bytes for part in parts) + self._key_bytes
        return self._bytes

    def add(self, given: GroupedRows, position: int) -> None:
        """Merge rows, of which the first one stands at ``position``."""
        ids, new = self._numbered(self._grouping.keys_of(given), len(given))
        if len(new):
            self._lanes.put(given.lanes(new))
            self._positions.put(new + position)
        self._grouping.aggregates.add(self._accumulators, given.records, GroupRows(ids, len(self)))

    def merge(self, groups: Groups) -> None:
        """Merge groups, or rows that have been lifted."""
        ids, new = self._numbered(groups.keys, len(groups))
        self._lanes.put(groups.lanes[new])
        self._positions.put(groups.positions[new])
        self._grouping.aggregates.add_states(self._accumulators, groups.states, GroupRows(ids, len(self)))

    def groups(self) -> Groups:
        """The groups; they do not change with the table."""
        return Groups(self._whole_keys(), self._states(), self._lanes.given(), self._positions.given())

    def _states(self) -> list[State]:
        if self._final is not None:
            return self._final(slice(0, len(self)))
        return self._grouping.aggregates.states(self._accumulators)

    def mark(self, lanes: Lanes) -> None:
        """Mark what changes from now on. The groups are the rows of a state with these lanes."""
        self._marks = GrowableArray(np.bool_)
        self._marks.to(len(self))

    @property
    def is_copied(self) -> bool:
        """Whether rows that are merged now wait for nothing."""
        self._copies = [each for each in self._copies if not each.is_made]
        return not self._copies

    def later(self) -> Callable[[], Groups]:
        """What gives the groups as they are now, on any thread; before that, it copies what rows may change then.
        Changes are marked from now on."""
        self.mark(self._lanes.values)
        final = self._final
        states = self._grouping.aggregates.states_later(self._accumulators) if final is None else self._states
        keys, lanes, positions = [*map(list, self._keys)], self._lanes.given(), self._positions.given()
        types = self._grouping.keys
        given = [array.copy_ahead() for each in self._accumulators for array in arrays_in(each)]
        copies = self._copies = [each for each in given if each is not None]

        def groups() -> Groups:
            for each in copies:
                each.make()
            whole = [_one(parts, type) for parts, type in zip(keys, types, strict=True)]
            return Groups(whole, states(), lanes, positions)

        return groups

    def changed(self) -> tuple[Positions, Groups]:
        """The groups that are new or have changed since this was asked, or ``later`` was, and their numbers."""
        assert self._marks is not None
        marks = self._marks.to(len(self))
        numbers = np.flatnonzero(marks)
        marks[numbers] = False
        if self._final is None:
            states = self._grouping.aggregates.states_at(self._accumulators, numbers)
        else:
            picked = pa.array(numbers)
            states = [tuple(column.take(picked) for column in state) for state in self._states()]
        keys = [_at(parts, numbers) for parts in self._keys]
        return numbers, Groups(keys, states, self._lanes.values[numbers], self._positions.values[numbers])

    def parts(self) -> Iterator[Groups]:
        """The groups, here in one part."""
        yield self.groups()

    def pieces(self, bound: Bound) -> Iterator[Groups]:
        """The groups in pieces within the bound, the states of each made when it is asked for: those of all groups
        would be written to memory and read from it again. Nothing may be added meanwhile."""
        keys, lanes, positions = self._whole_keys(), self._lanes.values, self._positions.values
        states = self._final or self._grouping.aggregates.states_of_parts(self._accumulators)
        if not all(map(makes_parts, self._accumulators)):
            self._final, self._accumulators = states, []  # of lists, say, the states hold all that they held
        for low in range(0, len(self), bound.rows):
            part = slice(low, min(low + bound.rows, len(self)))
            mine = [key.slice(low, part.stop - low) for key in keys]
            yield from Groups(mine, states(part), lanes[part], positions[part]).pieces(bound)

    def _whole_keys(self) -> list[pa.Array]:
        self._keys = [[_one(parts, type)] for parts, type in zip(self._keys, self._grouping.keys, strict=True)]
        return [parts[0] for parts in self._keys]

    def _numbered(self, keys: Sequence[pa.Array], rows: int) -> tuple[Positions, Positions]:
        """The group of each row, and the first rows of new groups."""
        self._bytes = None
        ids, new = self._table.number(keys, rows)
        if len(new):
            picked = pa.array(new)
            found = plain_keys([key.take(picked) for key in keys], self._grouping.keys)
            for parts, part in zip(self._keys, found, strict=True):
                parts.append(part)
                self._key_bytes += int(part.nbytes)
        if self._marks is not None:
            self._marks.to(len(self))[ids] = True
        return ids, new


def _one(parts: Sequence[pa.Array], type: pa.DataType) -> pa.Array:
    return pa.concat_arrays(parts) if parts else pa.nulls(0, type)


def _at(parts: list[pa.Array], numbers: Positions) -> pa.Array:
    """Some values, in order, of an array in parts. Parts that are small beside those behind them are put together, so
    that there are few: but not the large ones, each time."""
    while len(parts) > 1 and len(parts[-2]) <= 2 * len(parts[-1]):
        small = 2
        while small < len(parts) and len(parts[-small - 1]) <= 2 * sum(map(len, parts[-small:])):
            small += 1
        parts[-small:] = [pa.concat_arrays(parts[-small:])]
    ends = np.cumsum([0, *map(len, parts)])
    cuts = np.searchsorted(numbers, ends)
    pieces = zip(parts, ends, cuts, cuts[1:], strict=False)
    return pa.concat_arrays([part.take(pa.array(numbers[low:high] - start)) for part, start, low, high in pieces])
