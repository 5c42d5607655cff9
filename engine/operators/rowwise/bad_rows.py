"""Bad rows: how many there are of the rows that say in a column ``_error`` why they are, and perhaps leaves them out.

The counts are per order lane and part of the snapshot, so after a restore they are those of the cut: exactly once, like
the rows. They are never forgotten: the audit wants those of the whole job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...core.elements import Batch
from ...core.operator import LANE, OperatorContext, Output, Stateless
from ...core.schemas import check_columns, check_inputs
from ...core.traits import Columns, Emission, Lineage, Multiplicity, State, Traits

ERROR = "_error"
"""The column that is null in good rows."""


@dataclass(frozen=True)
class BadRows:
    """Counts the bad rows ``of`` an operator or a source: those that have something in ``column``. ``drops``: they are
    left out, and so is the column."""

    of: str
    drops: bool = False
    column: str = ERROR
    kind: str = "bad_rows"

    @property
    def traits(self) -> Traits:
        """It looks at one column."""
        return Traits(
            columns=self._columns,
            emission=Emission.PER_BATCH,
            state=State.COUNTERS,
            rows=Multiplicity.OTHER if self.drops else Multiplicity.SAME,
            lineage=Lineage(follows=0),
            deterministic=True,
            lane_wise=True,
            ends_epochs=True,
            beyond_budget="",
        )

    def _columns(self, inputs: Sequence[pa.Schema]) -> list[Columns]:
        names = self._kept(inputs[0])
        return [Columns(frozenset({self.column}), {name: name for name in names})]

    def _kept(self, schema: pa.Schema) -> list[str]:
        return [name for name in schema.names if name != self.column or not self.drops]

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's, perhaps without the column."""
        check_inputs(self.kind, inputs, 1)
        check_columns(self.kind, inputs[0], [self.column])
        return pa.schema([inputs[0].field(name) for name in self._kept(inputs[0])], inputs[0].metadata)

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningBadRows:
        """A running operator that goes on counting."""
        return RunningBadRows(self.column, self._kept(inputs[0]) if self.drops else None, restored)

    def describe(self) -> str:
        """What becomes of them."""
        return f"those of {self.of} are counted{' and left out' if self.drops else ''}"

    @staticmethod
    def counted(state: pa.Table | None) -> int:
        """How many there were by its state."""
        return 0 if state is None else sum(state["bad"].to_pylist())


class RunningBadRows(Stateless):
    """Counts batch by batch. ``keeps``: the columns of good rows, which alone come out; None: all comes out."""

    def __init__(self, column: str, keeps: Sequence[str] | None, restored: pa.Table | None) -> None:
        self._column = column
        self._keeps = None if keeps is None else list(keeps)
        #: lane -> its bad rows so far
        self._bad: dict[int, int] = {}
        if restored is not None:
            for lane, bad in zip(restored[LANE].to_pylist(), restored["bad"].to_pylist(), strict=True):
                self._bad[lane] = self._bad.get(lane, 0) + bad

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Count, and emit what is to come out under the batch's own tag."""
        errors = batch.records.column(self._column)
        bad = len(errors) - errors.null_count
        if bad:
            self._bad[batch.tag.lane] = self._bad.get(batch.tag.lane, 0) + bad
        if self._keeps is None:
            out.emit(batch)
            return
        if bad == len(errors):
            return
        rows = batch.records.select(self._keeps)
        out.emit(Batch(rows.filter(errors.is_null()) if bad else rows, batch.tag))

    def snapshot(self) -> pa.Table | None:
        """The bad rows of each lane."""
        if not self._bad:
            return None
        lanes, bad = pa.array(self._bad.keys(), pa.int32()), pa.array(self._bad.values(), pa.int64())
        return pa.table({LANE: lanes, "bad": bad})
