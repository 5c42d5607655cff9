"""The first or the last value of each group, in place: a row is copied only if it is the first or the last one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .accumulators import GroupRows
from .aggregate_protocol import AggregateFunction, State
from .pieces import Positions


class EdgeValues:
    """The states of all groups: see ``Edge``."""

    def __init__(self, function: AggregateFunction, column: pa.DataType | None) -> None:
        self._first = function.name == "first"
        self._column = column
        self._values = pa.nulls(0, column)
        #: the groups that have had a row
        self._present = np.zeros(0, dtype=bool)

    @property
    def in_place(self) -> bool:
        """What is added to later is copied as a whole."""
        return False

    @property
    def bytes(self) -> int:
        return int(self._values.nbytes) + len(self._present)

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        self._take(values, rows.ids, np.arange(len(rows.ids)), rows.groups)

    def merge(self, state: State, rows: GroupRows) -> None:
        values, present = state
        used = np.flatnonzero(present.to_numpy(zero_copy_only=False))
        self._take(values, rows.ids[used], used, rows.groups)

    def state(self) -> State:
        return self._values, pa.array(self._present.copy())

    def _take(self, values: pa.Array, ids: Positions, places: Positions, groups: int) -> None:
        """Take over the values at these places, which belong to these groups."""
        known = len(self._present)
        self._present = np.append(self._present, np.zeros(groups - known, dtype=bool))
        if self._first and self._present.all():
            return
        place = np.full(groups, -1, dtype=np.int64)
        if self._first:
            place[ids[::-1]] = places[::-1]  # of all rows of a group the one that is written last counts
            place[self._present] = -1
        else:
            place[ids] = places
        taken = np.flatnonzero(place >= 0)
        rows = np.minimum(np.arange(groups), known)
        rows[taken] = known + 1 + np.arange(len(taken))
        parts = [self._values, pa.nulls(1, self._column), values.take(pa.array(place[taken]))]
        self._values = pa.concat_arrays(parts).take(pa.array(rows))
        self._present[taken] = True
