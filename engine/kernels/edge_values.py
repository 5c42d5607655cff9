"""The first or the last value of each group, in place: a row is copied only if it is the first or the last one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .accumulators import GroupRows
from .aggregate_protocol import AggregateFunction, State
from .growable_array import GrowableArray
from .pieces import Positions, picked


class EdgeValues:
    """The states of all groups: the values as they were taken, and where that of each group is among them. Values that
    have been replaced go when they are as many as the others."""

    in_place = True
    takes_compact = False

    def __init__(self, function: AggregateFunction, column: pa.DataType | None) -> None:
        self._first = function.name == "first"
        self._column = column
        self._parts: list[pa.Array] = []
        self._bytes = 0
        #: values in all parts, and those of them that have been replaced
        self._count = self._replaced = 0
        #: the place of each group's value; below 0: the group has had no row
        self._places = GrowableArray(np.int64, -1)

    @property
    def bytes(self) -> int:
        return self._bytes + self._places.bytes

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        self._take(values, rows.ids, None, rows.groups)

    def merge(self, state: State, rows: GroupRows) -> None:
        values, present = state
        used = np.flatnonzero(present.to_numpy(zero_copy_only=False))
        self._take(values, rows.ids[used], used, rows.groups)

    def state(self) -> State:
        places = self._places.given()
        present = places >= 0
        values = self._whole()
        if len(values) != len(places) or bool((places != np.arange(len(places))).any()):
            values = picked(values, pa.array(places, mask=~present))
        return values, pa.array(present)

    def _take(self, values: pa.Array, ids: Positions, rows: Positions | None, groups: int) -> None:
        """Take over the values in these rows (None: in all), which belong to these groups."""
        places = self._places.to(groups)
        if self._first and self._count == groups:  # all have one
            return
        if self._first:
            fresh = np.flatnonzero(places[ids] < 0)
            ids, rows = ids[fresh], fresh if rows is None else rows[fresh]
        if not len(ids):
            return
        # of several writes to one place the last one counts: it tells which row of the group is taken
        numbers = -2 - np.arange(len(ids))
        known = np.zeros(0) if self._first else places[ids]
        if self._first:
            places[ids[::-1]] = numbers[::-1]
        else:
            places[ids] = numbers
        edges = np.flatnonzero(places[ids] == numbers)
        self._replaced += int((known[edges] >= 0).sum()) if len(known) else 0
        places[ids[edges]] = self._count + np.arange(len(edges))
        self._put(picked(values, pa.array(edges if rows is None else rows[edges])))
        if self._replaced > max(self._count - self._replaced, 1024):
            self._let_go(places)

    def _put(self, values: pa.Array) -> None:
        self._parts.append(values)
        self._count += len(values)
        self._bytes += int(values.nbytes)

    def _let_go(self, places: Positions) -> None:
        """Keep only the values that groups have."""
        present = np.flatnonzero(places >= 0)
        kept = picked(self._whole(), pa.array(places[present]))
        places[present] = np.arange(len(present))
        self._parts, self._count, self._replaced, self._bytes = [], 0, 0, 0
        self._put(kept)

    def _whole(self) -> pa.Array:
        if len(self._parts) != 1:
            self._parts = [pa.concat_arrays(self._parts) if self._parts else pa.nulls(0, self._column)]
        return self._parts[0]
