"""Sort: the rows so far, in the order of keys.

Rules:

1. Rows are held until a barrier (``drain``) or the end, then emitted in order, under the subtask's first lane.
2. The sort is stable: rows with equal keys come in the order of their tags, whatever the batches.
3. A subtask sorts what it receives: for one sorted sequence the input must be gathered into one subtask
   (``Stream.sort`` does). State is the rows held, each with its lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..elements import FINAL_ROUND, Batch
from ..schemas import check_inputs, check_movable
from .held_rows import HeldRows
from .pieces import cut
from .protocol import Emitter, OperatorContext, Output, Stateless
from .sorting import SortKey, check_sort_keys, sorted_order


@dataclass(frozen=True)
class Sort:
    """Sorts by ``keys``, the first one first."""

    keys: tuple[SortKey, ...]
    kind: str = "sort"

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
            running.held.restore(restored)
        return running

    def describe(self) -> str:
        """The keys."""
        return f"by {', '.join(key.describe() for key in self.keys)}"


class RunningSort(Stateless):
    """See the module's rules."""

    def __init__(self, keys: tuple[SortKey, ...], schema: pa.Schema, context: OperatorContext) -> None:
        self._keys = keys
        self._lane = context.lanes.start
        self._output_rows = context.output_rows
        #: the rows since the last barrier
        self.held = HeldRows(schema)
        #: the last round that has ended
        self._round = 0
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Hold the rows."""
        self.held.add(batch)

    def end_round(self, port: int, round: int, out: Output) -> None:
        """Remember the round, for a barrier."""
        self._round = round if round < FINAL_ROUND else self._round

    def drain(self, out: Output) -> None:
        """Emit what has come since the last barrier."""
        self._emit(self._round, out)

    def finish(self, out: Output) -> None:
        """Emit what is held."""
        self._emit(FINAL_ROUND, out)

    def snapshot(self) -> pa.Table | None:
        """The rows held."""
        return self.held.snapshot()

    def _emit(self, round: int, out: Output) -> None:
        records = self.held.take_all().records
        order = sorted_order([records.column(key.column) for key in self._keys], self._keys)
        for piece in cut(records.take(pa.array(order)), self._output_rows):
            self._emitter.emit(piece, round, self._lane, out)
