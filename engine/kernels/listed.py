"""The values of each group in the order of their rows, in place: they are kept as they come, and put to their groups
when they are asked for. ``distinct`` keeps a value only where it is the first of its kind in its group."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .accumulators import GroupRows
from .aggregate_protocol import State
from .groups import stable_order
from .key_table import KeyTable
from .pieces import Positions


class Listed:
    """The states of all groups: a list for each."""

    in_place = True

    def __init__(self, column: pa.DataType | None, *, distinct: bool = False) -> None:
        self._column = column
        self._values: list[pa.Array] = []
        self._ids: list[Positions] = []
        self._bytes = 0
        self._groups = 0
        self._seen = KeyTable() if distinct else None

    @property
    def bytes(self) -> int:
        return self._bytes + 8 * self._groups + (0 if self._seen is None else self._seen.bytes)

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        ids = rows.ids
        self._groups = rows.groups
        if self._seen is not None:
            _, first = self._seen.number([pa.array(ids), values], len(ids))
            values, ids = values.take(pa.array(first)), ids[first]
        if len(ids):
            self._values.append(values)
            self._ids.append(ids.astype(np.int32))
            self._bytes += int(values.nbytes) + 4 * len(ids)

    def merge(self, state: State, rows: GroupRows) -> None:
        lengths = pc.list_value_length(state[0]).to_numpy()
        self.add(state[0].flatten(), GroupRows(np.repeat(rows.ids, lengths), rows.groups, True))

    def state(self) -> State:
        values, ids = self._whole()
        offsets = np.append(0, np.cumsum(np.bincount(ids, minlength=self._groups))).astype(np.int64)
        picked = values.take(pa.array(stable_order(ids, self._groups)))
        return (pa.LargeListArray.from_arrays(pa.array(offsets), picked, type=pa.large_list(values.type)),)

    def _whole(self) -> tuple[pa.Array, Positions]:
        """All values and their groups in one piece."""
        if not self._values:
            return pa.nulls(0, self._column), np.zeros(0, dtype=np.int32)
        if len(self._values) > 1:
            self._values, self._ids = [pa.concat_arrays(self._values)], [np.concatenate(self._ids)]
        return self._values[0], self._ids[0]
