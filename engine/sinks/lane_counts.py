"""How many rows a sink has taken, per order lane: the sink's whole state, and what the audit compares.

The counts are part of the snapshot, so after a restore they are those of the cut: exactly once, like the rows. So is
what the rows were (``lane_digests``), if that is wanted.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pyarrow as pa

from ..core.operator import LANE
from ..integrity.lane_digests import LaneDigests
from ..integrity.row_digests import RowDigest

_SCHEMA = pa.schema([(LANE, pa.int32()), ("rows", pa.int64())])


@runtime_checkable
class CountingSink(Protocol):
    """A sink whose state counts its rows; it prepares all of them."""

    @property
    def counts(self) -> LaneCounts: ...


class LaneCounts:
    """Rows per lane. ``restored``: the tables of earlier counts, as ``snapshot`` gave them. ``digest``: what digests
    the rows; None: they are only counted."""

    def __init__(self, restored: pa.Table | None = None, digest: RowDigest | None = None) -> None:
        #: lane to rows, for all and only the lanes that had rows since the job began
        self._rows: dict[int, int] = {}
        self._digests = None if digest is None else LaneDigests(digest, restored)
        if restored is not None:
            for lane, rows in zip(restored[LANE].to_pylist(), restored["rows"].to_pylist(), strict=True):
                self.add(lane, rows)
        #: rows that were counted before this attempt
        self.restored = self.total

    @staticmethod
    def empty_at(lane: int) -> pa.Table:
        """The counts of a sink that had no rows, for what else its state says."""
        return pa.table([[lane], [0]], schema=_SCHEMA)

    def take(self, lane: int, records: pa.RecordBatch) -> None:
        """Count these rows, and digest them if that is wanted."""
        self.add(lane, records.num_rows)
        if self._digests is not None:
            self._digests.take(lane, records)

    def add(self, lane: int, rows: int) -> None:
        """Count ``rows`` more."""
        self._rows[lane] = self._rows.get(lane, 0) + rows

    @property
    def total(self) -> int:
        """Rows of all lanes."""
        return sum(self._rows.values())

    def snapshot(self) -> pa.Table | None:
        """One row per lane; None before the first row."""
        if not self._rows:
            return None
        lanes = sorted(self._rows)
        table = pa.table([lanes, [self._rows[lane] for lane in lanes]], schema=_SCHEMA)
        return table if self._digests is None else self._digests.beside(table, lanes)
