"""The keys that have been seen: what distinct and mark distinct remember."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...buffers.held_rows import Lanes
from ...core.schemas import value_type
from ...kernels.growable_array import GrowableArray
from ...kernels.key_table import KeyTable
from ...kernels.keys import decoded
from ...kernels.pieces import Flags
from ...state.change_log import ChangeLog, StatePart


class SeenKeys:
    """The keys that have been seen, each with the lane of its first row."""

    def __init__(self, schema: pa.Schema, *, per_lane: bool = False) -> None:
        self.schema = pa.schema([pa.field(field.name, value_type(field.type)) for field in schema])
        self._per_lane = per_lane
        self.forget()

    def forget(self) -> None:
        """Start anew."""
        self._table = KeyTable()
        self._lanes = GrowableArray(np.int32)
        #: the keys, in the order in which they were seen
        self._parts: list[pa.RecordBatch] = []
        self._key_bytes = 0
        self.log_anew()

    def log_anew(self) -> None:
        """The next checkpoint gets all keys."""
        #: what was given to checkpoints, in so many of the parts
        self.log = ChangeLog(grows=True)
        self._logged = 0

    def first(self, columns: Sequence[pa.Array], lanes: Lanes) -> Flags:
        """Which of these rows have a key that no row before had; their keys are remembered."""
        _, new = self._table.number([*columns, pa.array(lanes)] if self._per_lane else columns, len(lanes))
        flags = np.zeros(len(lanes), dtype=bool)
        if len(new):
            flags[new] = True
            rows = pa.array(new)
            keys = pa.RecordBatch.from_arrays([decoded(column.take(rows)) for column in columns], schema=self.schema)
            self._parts.append(keys)
            self._key_bytes += int(keys.nbytes)
            self._lanes.put(lanes[new])
        return flags

    @property
    def keys(self) -> pa.Table:
        """The keys, in the order in which they were seen."""
        return pa.Table.from_batches(self._parts, schema=self.schema)

    def new(self) -> tuple[pa.Table, Lanes]:
        """The keys that have been seen since this was asked last, and their lanes."""
        parts, self._logged = self._parts[self._logged :], len(self._parts)
        return pa.Table.from_batches(parts, schema=self.schema), self.lanes[self.log.rows :]

    def go_on_with(self, stored: Sequence[StatePart]) -> None:
        """These parts have all keys, in the order in which they were seen."""
        self.log, self._logged = ChangeLog(grows=True, stored=stored), len(self._parts)

    @property
    def lanes(self) -> Lanes:
        """The lane of the first row of each key."""
        lanes: Lanes = self._lanes.given()
        return lanes

    @property
    def bytes(self) -> int:
        """What is remembered."""
        return self._key_bytes + self._table.bytes + self._lanes.bytes
