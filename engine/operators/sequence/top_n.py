"""Top-n: the first ``count`` rows in the order of keys.

Rules:

1. Of rows with equal keys the earlier ones stay, in the order of their tags: the result is the head of what ``Sort``
   gives. It is emitted at a barrier (``drain``) or the end, under the subtask's first lane.
2. At most as many rows are held as are kept, and as many again (or ``SPARE_ROWS``, or ``SPARE_BYTES``) that wait to be
   compared. A row whose first key is worse than that of ``count`` rows before it is not held at all. They are counted
   as held, and not written to disk.
3. ``per_lane``: the first rows of every lane, under that lane. It is the step before the lanes are gathered.
4. A subtask sees the rows that it receives: for one result the input must be gathered (``Stream.top_n`` does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...buffers.held_rows import Held, HeldRows, Lanes, LeavingRows, state_table
from ...core.elements import FINAL_ROUND, Batch
from ...core.errors import FlowError
from ...core.operator import OUTPUT_BYTES, OUTPUT_ROWS, Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_inputs, check_movable
from ...core.traits import Cut, Emission, Lineage, Traits, all_kept
from ...kernels.keys import is_coded, validity
from ...kernels.pieces import Bound, Positions, taken
from ...kernels.sorting import SortKey, check_sort_keys, sort_codes, sorted_order

SPARE_ROWS, SPARE_BYTES = OUTPUT_ROWS, OUTPUT_BYTES


@dataclass(frozen=True)
class TopN:
    """The first ``count`` rows by ``keys``."""

    keys: tuple[SortKey, ...]
    count: int
    per_lane: bool = False
    kind: str = "top n"

    @property
    def traits(self) -> Traits:
        """It looks at the keys; all columns come out."""
        return Traits(
            columns=all_kept(key.column for key in self.keys),
            emission=Emission.AT_END,
            lineage=Lineage(follows=0),
            beyond_budget=f"{self.count:,} rows",
            deterministic=True,
            grouped_by=None if self.per_lane else (),
            lane_wise=self.per_lane,
            blocking=True,
            cut={"drain": Cut.BEFORE, "finish": Cut.BEFORE},
        )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's."""
        check_inputs(self.kind, inputs, 1)
        check_sort_keys(self.kind, self.keys, inputs[0])
        check_movable(self.kind, inputs[0])
        if self.count < 1:
            raise FlowError(f"top n: it cannot keep {self.count} rows", "keep at least one")
        return inputs[0]

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningTopN:
        """A running top-n that holds the rows of ``restored``."""
        running = RunningTopN(self, inputs[0], context)
        if restored is not None:
            running.held.restore(restored)
        return running

    def describe(self) -> str:
        """The keys and how many."""
        where = " of each lane" if self.per_lane else ""
        return f"{self.count} rows{where} by {', '.join(key.describe() for key in self.keys)}"


class RunningTopN(Stateless):
    """See the module's rules."""

    def __init__(self, config: TopN, schema: pa.Schema, context: OperatorContext) -> None:
        self._config = config
        self._lane = context.lanes.start
        self._bound, self._memory = Bound(context.output_rows, context.output_bytes), context.memory
        #: the best rows so far and those not compared yet, in the order of their tags
        self.held = HeldRows(schema)
        #: those rows while they leave, and until the last one has
        self._leaving: LeavingRows | None = None
        #: rows and bytes of the former
        self._kept = self._kept_bytes = 0
        #: lane (the subtask's first one if lanes do not matter) -> the code of the first key beyond which no row counts
        self._bounds: dict[int, int] = {}
        #: the last round that has ended
        self._round = max(context.ended_round, 0)
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Hold the rows that may be among the first; from time to time drop those that are not."""
        bound = self._bounds.get(batch.tag.lane if self._config.per_lane else self._lane)
        if bound is not None:
            codes = _first_codes(batch.records, self._config.keys[0])
            hopeful = np.flatnonzero(codes <= bound)
            if not len(hopeful):
                return
            if len(hopeful) < len(codes):
                batch = Batch(batch.records.take(pa.array(hopeful)), batch.tag)
        self.held.add(batch)
        if self._is_much:
            held = self.held.take_all()
            best = held.take(np.sort(self._best(held.records, held.lanes)))
            self._note_bounds(best)
            self.held.put(best)
            self._kept, self._kept_bytes = self.held.rows, self.held.bytes
        self._memory.hold(self.held.bytes)

    def end_round(self, port: int, round: int, out: Output) -> None:
        """Remember the round, for a barrier."""
        self._round = round if round < FINAL_ROUND else self._round

    def drain(self, out: Output) -> Steps:
        """Emit the first of the rows since the last barrier."""
        return self._emit(self._round, out)

    def finish(self, out: Output) -> Steps:
        """Emit the first of all rows."""
        return self._emit(FINAL_ROUND, out)

    def close(self) -> None:
        """Hold nothing any more."""
        self.held.clear()
        self._leaving = None
        self._memory.hold(0)

    def snapshot(self) -> pa.Table | None:
        """The rows held."""
        return self.held.snapshot() if self._leaving is None else state_table(self._leaving.held)

    @property
    def _is_much(self) -> bool:
        """Whether so much waits to be compared that it is worth it."""
        if self.held.rows <= self._config.count:
            return False
        rows, size = self.held.rows - self._kept, self.held.bytes - self._kept_bytes
        return rows >= max(self._kept, SPARE_ROWS) or size >= max(self._kept_bytes, SPARE_BYTES)

    def _best(self, records: Any, all_lanes: Lanes) -> Positions:
        """The rows to keep: in order, lane by lane if so configured."""
        keys, count = self._config.keys, self._config.count
        if self._config.per_lane:
            order = sorted_order([records.column(key.column) for key in keys], keys, [all_lanes])
            lanes = all_lanes[order]
            return order[np.arange(len(order)) - np.searchsorted(lanes, lanes) < count]
        if records.num_rows <= count:
            return sorted_order([records.column(key.column) for key in keys], keys)
        codes = _first_codes(records, keys[0])
        hopeful = np.flatnonzero(codes <= np.partition(codes, count - 1)[count - 1])
        columns = [records.column(key.column).take(pa.array(hopeful)) for key in keys]
        return hopeful[sorted_order(columns, keys)[:count]]

    def _note_bounds(self, best: Held) -> None:
        """Remember the worst first key of as many rows as are kept, by lane; not for keys without a lasting code."""
        if not is_coded(best.records.schema.field(self._config.keys[0].column).type):
            return
        codes = _first_codes(best.records, self._config.keys[0])
        lanes = best.lanes if self._config.per_lane else np.full(len(codes), self._lane)
        for lane in np.unique(lanes):
            mine = codes[lanes == lane]
            if len(mine) == self._config.count:
                self._bounds[int(lane)] = int(mine.max())

    def _emit(self, round: int, out: Output) -> Iterator[None]:
        lanes = self.held.lanes
        self._leaving = self.held.leave(self._bound)
        records = self._leaving.records
        self._kept, self._kept_bytes, self._bounds = 0, 0, {}
        best = self._best(records, lanes)
        lanes = lanes[best] if self._config.per_lane else np.full(len(best), self._lane)
        for lane in np.unique(lanes).tolist():
            pieces = taken(records, best[lanes == lane], self._bound)
            yield from self._emitter.emit_each(pieces, round, lane, out)
        self._leaving = None
        self._memory.hold(0)


def _first_codes(records: Any, key: SortKey) -> Positions:
    """Integers that are smaller only for rows that come first by ``key``; equal ones say nothing."""
    column = records.column(key.column)
    codes = sort_codes(column)
    codes = ~codes if key.descending else codes
    if column.null_count:
        bounds = np.iinfo(np.int64)
        codes = np.where(validity(column), codes, bounds.min if key.nulls_first else bounds.max)
    return codes
