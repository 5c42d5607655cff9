"""Full shuffle: all rows of an epoch in a random order, each order as likely as any other.

Rules:

1. Each row gets a number that is drawn by (seed, epoch, its position in the stream) alone (``counter_random``), and
   rows leave in the order of these: an external sort. So no memory need hold them, and the order does not depend on
   batches, timing or parallelism. It stands behind a gather, so that a position is one of the whole stream.
2. They leave in steps when an epoch ends (in its last round), at a task barrier, or at the end.
3. State: the rows that have come and not left, with their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from ...buffers.sorted_runs import SortedRuns
from ...buffers.state_rows import row_type, rows_of_state
from ...buffers.stored_rows import concatenated, rebatched
from ...core.elements import Batch
from ...core.epochs import epoch_of
from ...core.operator import LANE, OperatorContext, Output
from ...core.schemas import check_inputs, check_movable
from ...core.traits import Cut, Emission, Lineage, Multiplicity, State, Traits
from ...kernels.counter_random import FULL, check_seed, words
from ...kernels.sorting import SortKey
from .by_epoch import GIVES_THE_REST, GivesTheRest

BLOCK = 64 * 1024
"""Numbers that are drawn together."""
NUMBER = "__number"


@dataclass(frozen=True)
class FullShuffle:
    """Shuffles all rows. ``epoch``: which of the orders of ``seed``."""

    seed: int = 0
    epoch: int = 0
    kind: str = "full shuffle"
    traits: ClassVar[Traits] = Traits(
        emission=Emission.PER_BLOCK,
        state=State.ROWS,
        rows=Multiplicity.SAME,
        lineage=Lineage(follows=0),
        beyond_budget="",
        deterministic=True,
        grouped_by=(),
        cut=dict.fromkeys(GIVES_THE_REST, Cut.BEFORE),
        ends_epochs=True,
    )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's."""
        check_inputs(self.kind, inputs, 1)
        check_movable(self.kind, inputs[0])
        check_seed(self.kind, self.seed, self.epoch)
        return inputs[0]

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningFullShuffle:
        """A running shuffle that holds the rows of ``restored``."""
        running = RunningFullShuffle(self, context, inputs[0])
        if restored is not None:
            running.restore(restored)
        return running

    def describe(self) -> str:
        """Seed and epoch."""
        return f"all rows, seed {self.seed}, epoch {self.epoch}"


class RunningFullShuffle(GivesTheRest):
    """See the module's rules."""

    def __init__(self, config: FullShuffle, context: OperatorContext, schema: pa.Schema) -> None:
        super().__init__(context)
        self._config, self._schema = config, schema
        self._bound = context.output_rows, context.output_bytes
        self._numbered = schema.append(pa.field(NUMBER, pa.int64()))
        self._runs = SortedRuns(self._numbered, [(len(schema), SortKey(NUMBER))], context.memory, context.output_rows)
        #: the rows of the epoch that are in no run, and their bytes
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        #: rows of the epoch so far
        self._position = 0
        self._drawn: tuple[int, int, pa.Array] = (-1, -1, pa.array([], pa.int64()))

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Number the rows, and hold them."""
        records, epoch = batch.records, self._config.epoch + epoch_of(self._epochs, batch.tag.round)
        while records.num_rows:
            block, start = divmod(self._position, BLOCK)
            part = records.slice(0, BLOCK - start)
            records = records.slice(part.num_rows)
            numbers = self._numbers(epoch, block).slice(start, part.num_rows)
            self._hold(pa.RecordBatch.from_arrays([*part.columns, numbers], schema=self._numbered))

    def close(self) -> None:
        """Remove the files."""
        self._forget()

    # ------------------------------------------------------------------ state

    def snapshot(self) -> pa.Table | None:
        """The rows with their numbers. How many they are is the position."""
        if not self._position:
            return None
        row = row_type(self._schema)
        parts = []
        for records in (*self._runs.stored(), *self._held):
            lanes = pa.array(np.full(records.num_rows, self._lane, dtype=np.int32))
            rows = pa.StructArray.from_arrays(records.columns[:-1], fields=list(row))
            parts.append(pa.table({LANE: lanes, "number": records.columns[-1], "row": rows}))
        return pa.concat_tables(parts).unify_dictionaries()

    def restore(self, table: pa.Table) -> None:
        """Hold the rows of an earlier snapshot."""
        for part in table.to_batches(BLOCK):
            rows = rows_of_state(part.column("row"), self._schema)
            self._hold(pa.RecordBatch.from_arrays([*rows.columns, part.column("number")], schema=self._numbered))

    # ------------------------------------------------------------------ parts

    def _numbers(self, epoch: int, block: int) -> pa.Array:
        if self._drawn[:2] != (epoch, block):
            drawn = words(self._config.seed, epoch, FULL, block, BLOCK).view(np.int64)
            self._drawn = epoch, block, pa.array(drawn)
        return self._drawn[2]

    def _hold(self, records: pa.RecordBatch) -> None:
        self._held.append(records)
        self._position += records.num_rows
        self._bytes += records.nbytes
        if self._memory.hold(self._bytes):
            held, self._held, self._bytes = self._held, [], 0
            self._runs.add(concatenated(self._numbered, held))
            self._memory.hold(0)

    def _end(self, round: int, out: Output, lane: int) -> Iterator[None]:
        youngest = self._runs.sorted_pieces(concatenated(self._numbered, self._held)) if self._held else iter(())
        rows = (
            pa.RecordBatch.from_arrays(records.columns[:-1], schema=self._schema)
            for records in self._runs.merged(youngest)
        )
        yield from self._emitter.emit_each(rebatched(rows, self._schema, *self._bound), round, lane, out)
        self._forget()

    def _forget(self) -> None:
        self._held, self._bytes, self._position = [], 0, 0
        self._runs.clear()
        self._memory.hold(0)
