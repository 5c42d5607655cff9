"""Hash join: the right side is built into a lookup, the left side probes it. No input need be sorted.

Rules:

1. A subtask joins what it receives: for one answer in all, both inputs must be gathered into one subtask. Rows of any
   round and lane meet; they never meet across a task barrier.
2. Left rows are held until the right side has ended, or a barrier has come. From then on they pass through, batch by
   batch, under their own tags. Those held from earlier rounds come first, in their order, in the round that follows the
   right side's last one (at a barrier: in the last round that has ended), under the first lane of the subtask.
3. Order is that of the left side, the matches of a row in the order of the right side. Right rows that stay without
   match (right, full), and those of a right semi join, come behind all others: at a barrier or at the end.
4. Null keys match nothing. NaN equals NaN. Empty sides are sides.
5. State is the rows of both sides, and which right rows have matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..elements import FINAL_ROUND, Batch
from ..expressions import single_array
from .equi_join import NAMES, EquiJoin
from .held_rows import Held, HeldRows
from .join_output import JoinOutput
from .join_shape import LEFT, RIGHT
from .keys import valid_rows
from .matching import Matches, Step
from .pieces import Flags, Positions
from .protocol import LANE, Emitter, OperatorContext, Output, Stateless
from .sorted_lookup import SortedLookup

NO_ROWS: Positions = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class HashJoin(EquiJoin):
    """Joins inputs in any order; see ``EquiJoin`` for what can be asked."""

    kind: str = "hash join"

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningHashJoin:
        """A running join with the rows of ``restored``."""
        running = RunningHashJoin(self, inputs, context)
        if restored is not None:
            running.restore(restored)
        return running


@dataclass(slots=True)
class Built:
    """The right side, complete, and which of its rows have matched."""

    records: pa.RecordBatch
    lookup: SortedLookup
    matched: Flags


class RunningHashJoin(Stateless):
    """See the module's rules."""

    def __init__(self, config: HashJoin, inputs: Sequence[pa.Schema], context: OperatorContext) -> None:
        self._keys = config.keys
        self._inputs = inputs
        shape = config.shape(inputs)
        self._output = JoinOutput(config.how, shape, config.condition(shape), context.output_rows)
        self._held = (HeldRows(inputs[LEFT]), HeldRows(inputs[RIGHT]))
        #: for restored right rows and those that came later: which had matched; None: none of them
        self._matched: Flags | None = None
        self._built: Built | None = None
        self._right_ended = False
        #: the first round that has not ended on any port, and on the right one
        self._next, self._next_right = 0, 0
        self._first_lane = context.lanes.start
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Hold the rows, or join those of the left side if the right side is complete."""
        if port == RIGHT or not self._right_ended:
            self._held[port].add(batch)
        else:
            self._join(batch.records, batch.tag.round, batch.tag.lane, out)

    def end_round(self, port: int, round: int, out: Output) -> None:
        """Note how far the port is."""
        if round < FINAL_ROUND:
            self._next = max(self._next, round + 1)
            if port == RIGHT:
                self._next_right = max(self._next_right, round + 1)

    def end_port(self, port: int, out: Output) -> None:
        """With the right side ended, join the left rows that have waited for it."""
        if port == RIGHT:
            self._right_ended = True
            self._join_held(self._next_right, out)

    def finish(self, out: Output) -> None:
        """Emit the right rows that come last."""
        self._emit_rest(FINAL_ROUND, out)

    def drain(self, out: Output) -> None:
        """Join what has come, and begin anew."""
        last = max(self._next - 1, 0)
        self._join_held(last, out)
        self._emit_rest(last, out)

    def snapshot(self) -> pa.Table | None:
        """The rows of both sides, with ``port``, ``matched``, and ``next``: the right side's first open round."""
        tables = []
        for port, held in enumerate(self._held):
            table = held.snapshot()
            if table is not None:
                flags = self._flags() if port == RIGHT else np.zeros(held.rows, dtype=bool)
                tables.append(self._marked(table, port, flags))
        return pa.concat_tables(tables) if tables else None

    def restore(self, table: pa.Table) -> None:
        """Take over the rows of earlier snapshots."""
        self._next_right = self._next = int(pc.max(table.column("next")).as_py())
        for port, held in enumerate(self._held):
            mine = table.filter(pc.equal(table.column("port"), port))
            held.restore(mine.select([LANE, "round"]).append_column("row", mine.column(NAMES[port])))
            if port == RIGHT and mine.num_rows:
                order = np.lexsort([mine.column(LANE).to_numpy(), mine.column("round").to_numpy()])
                self._matched = single_array(mine.column("matched")).to_numpy(zero_copy_only=False)[order].copy()

    # ------------------------------------------------------------------ parts

    def _complete(self) -> Built:
        """The right side as a lookup. Its rows stay held, as state."""
        if self._built is None:
            records = self._held[RIGHT].peek().records
            columns = [records.column(name) for name in self._keys[RIGHT]]
            self._built = Built(records, SortedLookup(columns), self._flags())
        return self._built

    def _flags(self) -> Flags:
        rows = self._held[RIGHT].rows
        if self._matched is None or len(self._matched) < rows:
            known = self._matched if self._matched is not None else np.zeros(0, dtype=bool)
            self._matched = np.append(known, np.zeros(rows - len(known), dtype=bool))
        return self._matched

    def _join_held(self, round: int, out: Output) -> None:
        held = self._held[LEFT].take_all()
        late = int(np.searchsorted(held.rounds, round))  # rounds only grow
        if late:
            self._join(held.records.slice(0, late), round, self._first_lane, out)
        rest = Held(held.records.slice(late), held.rounds[late:], held.lanes[late:])
        for own_round, lane, start, rows in rest.units():
            self._join(rest.records.slice(start, rows), own_round, lane, out)

    def _join(self, left: pa.RecordBatch, round: int, lane: int, out: Output) -> None:
        built = self._complete()
        step = Step(left, built.records, self._matches(left, built), NO_ROWS, built.matched)
        self._emit(step, round, lane, out)

    def _matches(self, left: pa.RecordBatch, built: Built) -> Matches:
        keys = [left.column(name) for name in self._keys[LEFT]]
        valid = valid_rows(keys)
        if valid is None:
            return built.lookup.matches(keys)
        found = built.lookup.matches([column.take(pa.array(valid)) for column in keys])
        return found.spread(valid, left.num_rows)

    def _emit_rest(self, round: int, out: Output) -> None:
        """The right rows that have their place behind all others; then nothing is held."""
        built = self._complete()
        nothing = pa.RecordBatch.from_pylist([], self._inputs[LEFT])
        places = np.zeros(built.records.num_rows, dtype=np.int64)
        self._emit(Step(nothing, built.records, Matches.none(0), places, built.matched), round, self._first_lane, out)
        self._held[RIGHT].take_all()
        self._built = self._matched = None

    def _emit(self, step: Step, round: int, lane: int, out: Output) -> None:
        for records in self._output.rows(step):
            self._emitter.emit(records, round, lane, out)

    def _marked(self, table: pa.Table, port: int, matched: Flags) -> pa.Table:
        rows = table.num_rows
        columns = {name: table.column(name) for name in table.column_names if name != "row"}
        columns["port"] = pa.array(np.full(rows, port, dtype=np.int8))
        columns["matched"] = pa.array(matched)
        columns["next"] = pa.array(np.full(rows, self._next_right, dtype=np.int64))
        for number, schema in enumerate(self._inputs):
            type = pa.struct([field.with_nullable(True) for field in schema])
            columns[NAMES[number]] = table.column("row") if number == port else pa.nulls(rows, type)
        return pa.table(columns)
