"""Streams of a mixture that begin again: what they have given, and which of it comes next.

Rules:

1. The rows of a stream are kept as they leave, on disk if they are much, until it is known not to begin again.
2. When it is out they come in endless turns, each in an order that is drawn by (seed, epoch, stream, turn). How many
   rows it has given since then tells the turn and the place in it: that is all there is of them in the state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...buffers.kept_rows import KeptRows
from ...buffers.state_rows import as_rows, in_one, rows_of_state
from ...core.operator import LANE, Memory
from ...kernels.counter_random import places_again
from ...kernels.pieces import Positions, picked

TURNS, AGAIN = "turns", "again"
"""Columns of a mixture's state: how many turns each stream has begun, over all epochs; how many rows it has given since
it was out, in this epoch."""

KEPT = -2
"""The round of kept rows in the state."""


class Turns:
    """See the module's rules. ``ports``: the streams that begin again, each with the account of what it keeps."""

    def __init__(self, seed: int, schema: pa.Schema, ports: dict[int, Memory], streams: int) -> None:
        self._seed, self._schema = seed, schema
        self._kept = {port: KeptRows(schema, memory) for port, memory in ports.items()}
        #: streams whose rows come again, and those that keep theirs
        self.coming: set[int] = set()
        self._keeping = set(ports)
        #: turns that each stream has begun in all, and its rows in them in this epoch
        self.begun, self._given = np.zeros(streams, dtype=np.int64), np.zeros(streams, dtype=np.int64)

    def keep(self, records: pa.RecordBatch, ports: Positions) -> None:
        """These rows leave, of these streams."""
        for port in self._keeping - self.coming:
            mine = np.flatnonzero(ports == port)
            if len(mine):
                columns = [picked(column, pa.array(mine)) for column in records.columns]
                self._kept[port].add(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def begin(self, port: int) -> None:
        """The stream is out: its rows come again, if there are some."""
        if port in self._keeping and self._kept[port].rows:
            self.coming.add(port)

    def keep_only(self, ports: Collection[int]) -> None:
        """No other streams begin again any more."""
        for port in self._keeping.difference(ports):
            self._kept[port].clear()
        self._keeping.intersection_update(ports)

    def give(self, port: int, count: int, epoch: int) -> pa.RecordBatch:
        """The next rows of a stream that comes again."""
        rows, first = self._kept[port].rows, int(self._given[port])
        turns = -(-(first + count) // rows) - -(-first // rows)
        self.begun, self._given = self.begun.copy(), self._given.copy()  # snapshots that are being written have them
        self.begun[port] += turns
        self._given[port] += count
        return self._kept[port].take(places_again(self._seed, epoch, port, rows, first, count))

    def row_bytes(self) -> float:
        """The mean size of the rows that come again, of the stream with the largest."""
        return max((self._kept[port].bytes / self._kept[port].rows for port in self.coming), default=0.0)

    def begin_anew(self) -> None:
        """The epoch has ended."""
        self.clear()
        self.coming, self._keeping = set(), set(self._kept)
        self._given = np.zeros_like(self._given)

    def clear(self) -> None:
        """Keep nothing."""
        for kept in self._kept.values():
            kept.clear()

    @property
    def heads(self) -> dict[str, pa.Array]:
        """Of each stream, for the state; nothing where none begins again."""
        return {TURNS: pa.array(self.begun), AGAIN: pa.array(self._given)} if self._kept else {}

    def state(self, lane: int) -> Iterator[pa.Table]:
        """The rows that are kept as state tables."""
        for port, kept in self._kept.items():
            place = 0
            for records in kept.batches():
                rows = records.num_rows
                yield pa.table(
                    {
                        LANE: pa.array(np.full(rows, lane, dtype=np.int32)),
                        "port": pa.array(np.full(rows, port, dtype=np.int32)),
                        "round": pa.array(np.full(rows, KEPT, dtype=np.int64)),
                        "place": pa.array(np.arange(place, place + rows)),
                        "row": as_rows(records),
                    }
                )
                place += rows

    def restore(self, heads: pa.Table, rows: pa.Table, been_out: Collection[int]) -> None:
        """Go on where an earlier mixture was."""
        if TURNS in heads.column_names:
            self.begun = np.array(heads.column(TURNS).to_pylist(), dtype=np.int64)
            self._given = np.array(heads.column(AGAIN).to_pylist(), dtype=np.int64)
        for port, kept in self._kept.items():
            mine = rows.filter(pc.equal(rows.column("port"), port)).sort_by("place")
            if len(mine):
                kept.add(rows_of_state(in_one(mine, "row"), self._schema))
            if port in been_out:
                self.begin(port)
