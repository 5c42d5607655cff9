"""Rows that an operator holds back, with the round and the lane that each of them came in.

Rule: rows are held in the order in which they came, that of their tags. What is restored from several subtasks is put
into that order again, by round and lane; rows of one round and lane always come from one subtask, in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..elements import Batch
from ..expressions import single_array
from .pieces import Positions
from .protocol import LANE

Lanes = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Held:
    """Rows, and where they came from."""

    records: pa.RecordBatch
    rounds: Positions
    lanes: Lanes

    def take(self, rows: Positions) -> Held:
        """Some of the rows."""
        return Held(self.records.take(pa.array(rows)), self.rounds[rows], self.lanes[rows])

    def units(self) -> list[tuple[int, int, int, int]]:
        """Runs of one round and lane: the two, the first row, the number of rows."""
        change = (np.diff(self.rounds) != 0) | (np.diff(self.lanes) != 0)
        starts = np.append(0, np.flatnonzero(change) + 1)
        ends = np.append(starts[1:], len(self.lanes))
        return [
            (int(self.rounds[start]), int(self.lanes[start]), int(start), int(end - start))
            for start, end in zip(starts, ends, strict=True)
            if end > start
        ]


class HeldRows:
    """A growing collection of rows of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._parts: list[Held] = []
        #: the number of rows, and of their bytes
        self.rows = 0
        self.bytes = 0

    def add(self, batch: Batch) -> None:
        """Hold the rows of a batch."""
        rows = batch.records.num_rows
        rounds = np.full(rows, batch.tag.round, dtype=np.int64)
        self.put(Held(batch.records, rounds, np.full(rows, batch.tag.lane, dtype=np.int32)))

    def put(self, held: Held) -> None:
        """Hold these rows as well."""
        if held.records.num_rows:
            self._parts.append(held)
            self.rows += held.records.num_rows
            self.bytes += held.records.nbytes

    def take_all(self) -> Held:
        """All rows, which are held no longer."""
        whole = self.peek()
        self._parts, self.rows, self.bytes = [], 0, 0
        return whole

    def peek(self) -> Held:
        """All rows as one batch."""
        if not self._parts:
            empty = pa.RecordBatch.from_pylist([], self.schema)
            return Held(empty, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))
        if len(self._parts) > 1:
            columns = [
                pa.concat_arrays([part.records.column(place) for part in self._parts])
                for place in range(len(self.schema))
            ]
            rounds = np.concatenate([part.rounds for part in self._parts])
            lanes = np.concatenate([part.lanes for part in self._parts])
            self._parts = [Held(pa.RecordBatch.from_arrays(columns, schema=self.schema), rounds, lanes)]
        return self._parts[0]

    def snapshot(self) -> pa.Table | None:
        """The rows as a state table."""
        if not self.rows:
            return None
        held = self.peek()
        fields = [field.with_nullable(True) for field in self.schema]
        rows = pa.StructArray.from_arrays(held.records.columns, fields=fields)
        return pa.table({LANE: pa.array(held.lanes), "round": pa.array(held.rounds), "row": rows})

    def restore(self, table: pa.Table) -> None:
        """Hold the rows of state tables, in the order of their tags."""
        if not table.num_rows:
            return
        rounds, lanes = table.column("round").to_numpy(), table.column(LANE).to_numpy()
        order = np.lexsort([lanes, rounds])
        rows = single_array(table.column("row").take(pa.array(order)))
        records = pa.RecordBatch.from_arrays(rows.flatten(), schema=self.schema)
        self.put(Held(records, rounds[order].astype(np.int64), lanes[order].astype(np.int32)))
