"""How many rows a sink has taken, per order lane: the sink's whole state, and what the audit compares.

The counts are part of the snapshot, so after a restore they are those of the cut: exactly once, like the rows. So is
what the rows were (``row_digests``), if that is wanted, and how many of the rows it says that of: the others were taken
by an attempt that did not look.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pyarrow as pa

from ..operators.protocol import LANE
from .row_digests import MODULUS, VERSION, RowDigest

_SCHEMA = pa.schema([(LANE, pa.int32()), ("rows", pa.int64())])
DIGESTED, DIGEST = f"digested_{VERSION}", f"digest_{VERSION}"


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
        self._digest = digest
        #: lane to the number of rows that were digested, and their digest
        self._digests: dict[int, tuple[int, int]] = {}
        if restored is not None:
            for lane, rows in zip(restored[LANE].to_pylist(), restored["rows"].to_pylist(), strict=True):
                self.add(lane, rows)
            for lane, rows, found in _digests(restored):
                self._add_digest(lane, rows, found)
        #: rows that were counted before this attempt
        self.restored = self.total

    @staticmethod
    def empty_at(lane: int) -> pa.Table:
        """The counts of a sink that had no rows, for what else its state says."""
        return pa.table([[lane], [0]], schema=_SCHEMA)

    def take(self, lane: int, records: pa.RecordBatch) -> None:
        """Count these rows, and digest them if that is wanted."""
        self.add(lane, records.num_rows)
        if self._digest is not None:
            self._add_digest(lane, records.num_rows, self._digest.of(records))

    def add(self, lane: int, rows: int) -> None:
        """Count ``rows`` more."""
        self._rows[lane] = self._rows.get(lane, 0) + rows

    def _add_digest(self, lane: int, rows: int, found: int) -> None:
        before, digest = self._digests.get(lane, (0, 0))
        self._digests[lane] = (before + rows, (digest + found) % MODULUS)

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
        if self._digest is None:
            return table
        rows, found = zip(*(self._digests.get(lane, (0, 0)) for lane in lanes), strict=True)
        return table.append_column(DIGESTED, pa.array(rows, pa.int64())).append_column(
            DIGEST, pa.array(found, pa.uint64())
        )


def digested(state: pa.Table | None) -> tuple[int, int]:
    """How many rows of a sink's state were digested, and their digest."""
    found = [] if state is None else _digests(state)
    return sum(rows for _, rows, _ in found), sum(digest for _, _, digest in found) % MODULUS


def _digests(state: pa.Table) -> list[tuple[int, int, int]]:
    """Lane, rows and their digest, for the lanes that have one: parts of a state may come from attempts without."""
    if DIGEST not in state.column_names:
        return []
    rows = zip(*(state[name].to_pylist() for name in (LANE, DIGESTED, DIGEST)), strict=True)
    return [(lane, count, digest) for lane, count, digest in rows if count]
