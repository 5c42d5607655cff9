"""Distinct: the first row of every key.

Rules:

1. Keys are equal as in grouping: null is a key, NaN equals NaN. The first row in the order of tags stays, whole.
2. Rows that stay keep their tags; they are emitted when their round ends. Keys are remembered until a barrier
   (``drain``), behind which every key is new, or the end.
   Both keys and rows that wait are counted as held; neither is written to disk.
3. ``per_lane``: the first row of every key in every lane. It is the step before the lanes are gathered.
4. A subtask knows the keys that it has received: for rows that are distinct in all the stream must be gathered into
   one subtask (``Stream.distinct`` does). A key goes with the lane of its first row; a subtask that is handed the same
   key twice knows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ...buffers.held_rows import HeldRows
from ...core.elements import FINAL_ROUND, Batch
from ...core.operator import Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_columns, check_distinct, check_inputs, check_movable
from ...core.traits import Cut, Emission, Lineage, Traits, all_kept
from ...kernels.groups import check_group_types
from ...kernels.pieces import Bound
from ...state.change_log import Changes
from .aggregates import keys_in_words
from .seen_keys import SeenKeys
from .seen_state import restore_seen, seen_changes, seen_state


@dataclass(frozen=True)
class Distinct:
    """One row for each value of ``by`` (none: of all columns)."""

    by: tuple[str, ...] = ()
    per_lane: bool = False
    kind: str = "distinct"

    @property
    def traits(self) -> Traits:
        """Carrying a further column, it compares those that it had."""
        return Traits(
            columns=all_kept(),
            emission=Emission.PER_ROUND,
            lineage=Lineage(0, lambda _, inputs: replace(self, by=self.keys(inputs[0]))),
            beyond_budget="new rows of a round, and the keys that it has seen",
            deterministic=True,
            cut={"end_round": Cut.WITHIN, "drain": Cut.WITHIN, "finish": Cut.WITHIN},
            grouped_by=None if self.per_lane else self.by,
            lane_wise=self.per_lane,
            state_of=lambda inputs: f"distinct {keys_in_words(self.keys(inputs[0]), inputs[0])}",
        )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's."""
        check_inputs(self.kind, inputs, 1)
        check_distinct(self.kind, "key", self.by)
        check_columns(self.kind, inputs[0], self.keys(inputs[0]))
        check_group_types(self.kind, [inputs[0].field(name) for name in self.keys(inputs[0])])
        check_movable(self.kind, inputs[0])
        return inputs[0]

    def keys(self, schema: pa.Schema) -> tuple[str, ...]:
        """The columns that must differ."""
        return self.by or tuple(schema.names)

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningDistinct:
        """A running operator that knows the keys of ``restored``."""
        return RunningDistinct(self, context, inputs[0], restored)

    def describe(self) -> str:
        """The keys."""
        return f"{'in each lane ' if self.per_lane else ''}by {', '.join(self.by) or 'all columns'}"


class RunningDistinct(Stateless):
    """See the module's rules."""

    def __init__(
        self, config: Distinct, context: OperatorContext, schema: pa.Schema, restored: pa.Table | None
    ) -> None:
        self._by = config.keys(schema)
        self._bound = Bound(context.output_rows, context.output_bytes)
        self._memory = context.memory
        self._seen = SeenKeys(pa.schema([schema.field(name) for name in self._by]), per_lane=config.per_lane)
        #: rows of rounds that have not ended
        self._held = HeldRows(schema)
        self._emitter = Emitter()
        if restored is not None:
            restore_seen(restored, [self._seen], self._held, context.stored)
        self._account()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Hold the rows until the round ends."""
        self._held.add(batch)
        self._account()

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """Emit the rows with keys that were not seen before."""
        return self._emit(out) if round < FINAL_ROUND and self._held.rows else None

    def drain(self, out: Output) -> Iterator[None]:
        """Emit what came since the round ended, and forget all keys."""
        yield from self._emit(out)
        self._seen.forget()
        self._account()

    def finish(self, out: Output) -> Steps:
        """Emit what came in the final round."""
        return self.drain(out)

    def snapshot(self) -> pa.Table | None:
        """One row for each key, and those held."""
        return seen_state([self._seen], self._held)

    def changes(self) -> pa.Table | Changes | None:
        """The same; of many keys only those that are new since it was asked last."""
        return seen_changes([self._seen], self._held)

    def close(self) -> None:
        """Give everything up."""
        self._held = HeldRows(self._held.schema)
        self._seen.forget()
        self._account()

    def _account(self) -> None:
        self._memory.hold(self._held.bytes + self._seen.bytes)

    def _emit(self, out: Output) -> Iterator[None]:
        """Look at the rows held a piece at a time, which is let go of then."""
        for held in self._held.take_pieces(self._bound):
            new = self._seen.first([held.records.column(name) for name in self._by], held.lanes)
            kept = held.take(np.flatnonzero(new))
            for round, lane, start, rows in kept.units():
                self._emitter.emit(kept.records.slice(start, rows), round, lane, out)
            yield
            self._account()
        self._account()
