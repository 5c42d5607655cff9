"""Sort: the rows so far, in the order of keys.

Rules:

1. Rows are held until a barrier (``drain``) or the end, then emitted in order, under the subtask's first lane.
2. The sort is stable: rows with equal keys come in the order of their tags, whatever the batches.
3. A subtask sorts what it receives: for one sorted sequence the input must be gathered into one subtask
   (``Stream.sort`` does). State is the rows held, each with its lane.
4. When too much is held it is sorted and written to a file (``sorted_runs``); at the end the files are merged and
   emitted a batch at a time. Rows and their order are the same. What is held in memory is emitted in pieces that are
   picked from it one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...buffers.held_rows import HeldRows, LeavingRows, from_stored, restored_rows, state_table, stored, stored_schema
from ...buffers.sorted_runs import SortedRuns
from ...buffers.stored_rows import rebatched
from ...core.elements import FINAL_ROUND, Batch
from ...core.operator import Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_inputs, check_movable
from ...core.traits import Cut, Emission, Lineage, Multiplicity, Traits, all_kept
from ...kernels.pieces import Bound, taken
from ...kernels.sorting import SortKey, check_sort_keys, sorted_order


@dataclass(frozen=True)
class Sort:
    """Sorts by ``keys``, the first one first."""

    keys: tuple[SortKey, ...]
    kind: str = "sort"

    @property
    def traits(self) -> Traits:
        """It looks at the keys; all columns come out."""
        return Traits(
            columns=all_kept(key.column for key in self.keys),
            emission=Emission.AT_END,
            rows=Multiplicity.SAME,
            lineage=Lineage(follows=0),
            beyond_budget="",
            deterministic=True,
            grouped_by=(),
            blocking=True,
            cut={"drain": Cut.BEFORE, "finish": Cut.BEFORE},
        )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's."""
        check_inputs(self.kind, inputs, 1)
        check_sort_keys(self.kind, self.keys, inputs[0])
        check_movable(self.kind, inputs[0])
        return inputs[0]

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningSort:
        """A running sort that holds the rows of ``restored``."""
        running = RunningSort(self.keys, inputs[0], context)
        if restored is not None:
            running.restore(restored)
        return running

    def describe(self) -> str:
        """The keys."""
        return f"by {', '.join(key.describe() for key in self.keys)}"


class RunningSort(Stateless):
    """See the module's rules."""

    def __init__(self, keys: tuple[SortKey, ...], schema: pa.Schema, context: OperatorContext) -> None:
        self._keys = keys
        self._schema = schema
        self._lane = context.lanes.start
        self._bound = Bound(context.output_rows, context.output_bytes)
        self._memory = context.memory
        #: the rows since the last barrier, or since the last run was written
        self._held = HeldRows(schema)
        #: those rows while they leave, and until the last one has
        self._leaving: LeavingRows | None = None
        #: the rows before those, since the last barrier, and where each came from
        self._runs = SortedRuns(stored_schema(schema), self._by_position(), context.memory, context.output_rows)
        #: the last round that has ended
        self._round = max(context.ended_round, 0)
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Hold the rows."""
        self._held.add(batch)
        self._spill_if_too_much()

    def end_round(self, port: int, round: int, out: Output) -> None:
        """Remember the round, for a barrier."""
        self._round = round if round < FINAL_ROUND else self._round

    def drain(self, out: Output) -> Steps:
        """Emit what has come since the last barrier."""
        return self._emit(self._round, out)

    def finish(self, out: Output) -> Steps:
        """Emit what is held."""
        return self._emit(FINAL_ROUND, out)

    def snapshot(self) -> pa.Table | None:
        """The rows held; those in files stay there."""
        parts = [from_stored(records, self._schema) for records in self._runs.stored()]
        if self._leaving is not None:
            parts += self._leaving.held
        if self._held.rows:
            parts.append(self._held.peek())
        return state_table(parts) if parts else None

    def restore(self, table: pa.Table) -> None:
        """Hold the rows of earlier snapshots."""
        for held in restored_rows(table, self._schema):
            self._held.put(held)
            self._spill_if_too_much()

    def close(self) -> None:
        """Remove the files."""
        self._forget()

    # ------------------------------------------------------------------ parts

    def _spill_if_too_much(self) -> None:
        if self._memory.hold(self._held.bytes):
            self._runs.add(stored(self._held.take_all()))
            self._memory.hold(0)

    def _emit(self, round: int, out: Output) -> Steps:
        if self._runs.rows:
            return self._merge(round, out)
        return self._take(round, out) if self._held.rows else None

    def _take(self, round: int, out: Output) -> Iterator[None]:
        """Emit what is held in memory: no more of it is copied at once than a column of small values, or a piece."""
        held = self._held.bytes
        self._leaving = self._held.leave(self._bound)
        records = self._leaving.records
        self._memory.hold(held)
        order = sorted_order([records.column(key.column) for key in self._keys], self._keys)
        yield from self._emitter.emit_each(taken(records, order, self._bound), round, self._lane, out)
        self._forget()

    def _merge(self, round: int, out: Output) -> Iterator[None]:
        youngest = self._runs.sorted_pieces(stored(self._held.peek()))
        merged = (from_stored(records, self._schema).records for records in self._runs.merged(youngest))
        pieces = rebatched(merged, self._schema, self._bound.rows, self._bound.bytes)
        yield from self._emitter.emit_each(pieces, round, self._lane, out)
        self._forget()

    def _forget(self) -> None:
        self._leaving = None
        self._held.clear()
        self._runs.clear()
        self._memory.hold(0)

    def _by_position(self) -> list[tuple[int, SortKey]]:
        return [(self._schema.get_field_index(key.column), key) for key in self._keys]
