"""The groups of a partial aggregation: a table for each lane, as rows of different lanes are of different groups.

A batch is of one lane, so its rows meet that lane's table alone, which is as small as it can be: rows that meet a small
table find it in the cache. Groups are given out lane by lane.

For checkpoints (``later``, ``changed``) the groups of all lanes are numbered together: first those that there are, lane
by lane, then new ones as they are told. So there is one state in parts, however many lanes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...buffers.held_rows import Lanes
from ...kernels.growable_array import GrowableArray
from ...kernels.pieces import Bound, Positions
from .grouped_states import GroupedRows, Grouping, Groups, GroupTable, followed


class LaneTables:
    """As a ``GroupTable``, with its groups in parts."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._tables: dict[int, GroupTable] = {}
        #: the numbers of the groups of each lane that checkpoints know; None: changes are not marked
        self._numbers: dict[int, GrowableArray] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))

    @property
    def bytes(self) -> int:
        """The size of all tables."""
        numbers = 0 if self._numbers is None else sum(each.bytes for each in self._numbers.values())
        return sum(table.bytes for table in self._tables.values()) + numbers

    def add(self, given: GroupedRows, position: int) -> None:
        """Merge rows of one lane, of which the first one stands at ``position``."""
        assert isinstance(given.lane, int)
        self._of(given.lane).add(given, position)

    def merge(self, groups: Groups) -> None:
        """Merge groups, or rows that have been lifted, of any lanes."""
        for lane in np.unique(groups.lanes).tolist():
            self._of(lane).merge(groups.take(np.flatnonzero(groups.lanes == lane)))

    def mark(self, lanes: Lanes) -> None:
        """Mark what changes from now on. The groups are numbered as the rows of a state with these lanes, in which
        those of a lane stand in the order in which they came."""
        self._numbers = {}
        for lane, table in self._tables.items():
            table.mark(lanes)
            self._numbers[lane] = _numbers(np.flatnonzero(lanes == lane))

    @property
    def is_copied(self) -> bool:
        """Whether rows of no lane wait for anything when they are merged now."""
        return all(table.is_copied for table in self._tables.values())

    def later(self) -> Callable[[], Groups]:
        """What gives the groups as they are now, on any thread. Changes are marked from now on."""
        self._numbers = {}
        parts, known = [], 0
        for lane in sorted(self._tables):
            table = self._tables[lane]
            parts.append(table.later())
            self._numbers[lane] = _numbers(np.arange(known, known + len(table)))
            known += len(table)
        return lambda: followed([part() for part in parts])

    def changed(self) -> tuple[Positions, Groups]:
        """The groups that are new or have changed since this was asked, or ``later`` was, and their numbers."""
        assert self._numbers is not None
        known = sum(len(numbers.values) for numbers in self._numbers.values())
        found, changed = [], []
        for lane in sorted(self._tables):
            places, groups = self._tables[lane].changed()
            numbers, count = self._numbers[lane], len(self._tables[lane])
            new = count - len(numbers.values)
            numbers.put(np.arange(known, known + new))
            known += new
            found.append(numbers.values[places])
            changed.append(groups)
        return np.concatenate(found), followed(changed)

    def parts(self) -> Iterator[Groups]:
        """The groups of each lane; they do not change with the tables."""
        return (self._tables[lane].groups() for lane in sorted(self._tables))

    def pieces(self, bound: Bound) -> Iterator[Groups]:
        """The same in pieces within the bound. Nothing may be added meanwhile."""
        for lane in sorted(self._tables):
            yield from self._tables[lane].pieces(bound)

    def _of(self, lane: int) -> GroupTable:
        if lane not in self._tables:
            table = self._tables[lane] = GroupTable(self._grouping)
            if self._numbers is not None:
                table.mark(np.zeros(0, dtype=np.int32))
                self._numbers[lane] = _numbers(np.zeros(0, dtype=np.int64))
        return self._tables[lane]


def table_of(grouping: Grouping) -> GroupTable | LaneTables:
    """A table for such groups."""
    return LaneTables(grouping) if grouping.per_lane else GroupTable(grouping)


def _numbers(numbers: Positions) -> GrowableArray:
    array = GrowableArray(np.int64)
    array.put(numbers)
    return array
