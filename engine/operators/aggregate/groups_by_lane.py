"""The groups of a partial aggregation: a table for each lane, as rows of different lanes are of different groups.

A batch is of one lane, so its rows meet that lane's table alone, which is as small as it can be: rows that meet a small
table find it in the cache. Groups are given out lane by lane.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...kernels.pieces import Bound
from .grouped_states import GroupedRows, Grouping, Groups, GroupTable


class LaneTables:
    """As a ``GroupTable``, with its groups in parts."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._tables: dict[int, GroupTable] = {}

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))

    @property
    def bytes(self) -> int:
        """The size of all tables."""
        return sum(table.bytes for table in self._tables.values())

    def add(self, given: GroupedRows, position: int) -> None:
        """Merge rows of one lane, of which the first one stands at ``position``."""
        assert isinstance(given.lane, int)
        self._of(given.lane).add(given, position)

    def merge(self, groups: Groups) -> None:
        """Merge groups, or rows that have been lifted, of any lanes."""
        for lane in np.unique(groups.lanes).tolist():
            self._of(lane).merge(groups.take(np.flatnonzero(groups.lanes == lane)))

    def parts(self) -> Iterator[Groups]:
        """The groups of each lane; they do not change with the tables."""
        return (self._tables[lane].groups() for lane in sorted(self._tables))

    def pieces(self, bound: Bound) -> Iterator[Groups]:
        """The same in pieces within the bound. Nothing may be added meanwhile."""
        for lane in sorted(self._tables):
            yield from self._tables[lane].pieces(bound)

    def _of(self, lane: int) -> GroupTable:
        if lane not in self._tables:
            self._tables[lane] = GroupTable(self._grouping)
        return self._tables[lane]


def table_of(grouping: Grouping) -> GroupTable | LaneTables:
    """A table for such groups."""
    return LaneTables(grouping) if grouping.per_lane else GroupTable(grouping)
