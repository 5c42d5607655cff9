"""Hash aggregation: one row per distinct key, wherever its rows stand.

Rules:

1. Null keys form a group of their own, NaN equals NaN; ``ignore_null_keys`` leaves out rows in which a key is null. A
   group shows the key of its first row. Dictionary columns come out as their values.
2. Groups are held until a barrier (``drain``) or the end. They are emitted in the order of their first rows, under the
   first lane of the subtask; the groups of a *partial* step are kept per lane and emitted lane by lane, so that what a
   final step makes of them does not depend on how lanes are spread over subtasks.
3. Without keys there is exactly one row, even of no input: the first subtask gives it. It comes once for each barrier,
   and not again for the empty stretch between the last barrier and the end.
4. Rows are held until they are as large as the groups, then merged into them: every merge costs as much as it takes
   in. Rows of a group are merged in their order (see ``aggregate_protocol``, rule 1), so the result depends on
   neither batches nor the time of merging.
5. A single or final step merges what its own subtask receives: for one result per key, the input must be gathered into
   one subtask (``Stream.aggregate`` does). State goes with the lane of a group's first row; a subtask that is handed
   two states of one key merges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..elements import FINAL_ROUND, Batch
from ..expressions import single_array
from ..schemas import check_columns, check_distinct, check_inputs, check_movable, unique_schema, value_type
from .aggregate_protocol import State
from .aggregates import Aggregate, AggregateColumns, Arguments, Step, arguments_of, check_aggregates, final_of
from .groups import check_group_types, first_rows, group_ids
from .held_rows import HeldRows, Lanes
from .keys import decoded, valid_rows
from .pieces import cut
from .protocol import LANE, Emitter, OperatorContext, Output, Stateless

MERGE_BYTES = 1024 * 1024
"""Rows are merged into the groups when they are at least as large as these, and at least this large."""


@dataclass(frozen=True)
class HashAggregate:
    """Groups rows ``by`` their keys (none: all rows are one group). Output: the keys, then the aggregates."""

    by: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    step: Step = "single"
    #: of a final step: the types of the arguments that the partial step had
    arguments: Arguments | None = None
    ignore_null_keys: bool = False
    kind: str = "hash aggregate"

    def final(self, schema: pa.Schema) -> HashAggregate:
        """The final step over what this partial step gives for rows of ``schema``."""
        arguments = arguments_of(self.aggregates, schema)
        return replace(self, step="final", arguments=arguments, aggregates=final_of(self.aggregates))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The keys' fields, then one per aggregate."""
        check_inputs(self.kind, inputs, 1)
        check_distinct(self.kind, "key", self.by)
        check_columns(self.kind, inputs[0], self.by)
        check_movable(self.kind, inputs[0], self.by)
        check_aggregates(self.kind, self.aggregates, inputs[0], self.step)
        keys = [inputs[0].field(name) for name in self.by]
        check_group_types(self.kind, keys)
        fields = [pa.field(key.name, value_type(key.type), key.nullable) for key in keys]
        fields += self.columns(inputs[0]).output_fields()
        return unique_schema(self.kind, fields, "give the aggregate another name")

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningHashAggregate:
        """A running aggregation with the groups of ``restored``."""
        running = RunningHashAggregate(self, context, inputs[0])
        if restored is not None:
            running.restore(restored)
        return running

    def describe(self) -> str:
        """Keys and aggregates."""
        step = "" if self.step == "single" else f"{self.step} "
        keys = f"by {', '.join(self.by)}" if self.by else "all rows"
        ignoring = " without null keys" if self.ignore_null_keys else ""
        return f"{step}{keys}{ignoring}: {', '.join(map(Aggregate.describe, self.aggregates)) or 'distinct keys'}"

    @property
    def needed(self) -> list[str]:
        """The input columns that it reads."""
        read = [each.name for each in self.aggregates] if self.step == "final" else []
        if self.step != "final":
            read = [name for each in self.aggregates for name in each.columns]
        return list(dict.fromkeys([*self.by, *read]))

    def columns(self, schema: pa.Schema) -> AggregateColumns:
        """The aggregates over rows of ``schema``."""
        arguments = arguments_of(self.aggregates, schema) if self.arguments is None else self.arguments
        return AggregateColumns(self.kind, self.aggregates, arguments, self.step)


@dataclass
class Groups:
    """Groups in the order of their first rows: keys, states, and the lane of the first row. Also rows not merged."""

    keys: list[pa.Array]
    states: list[State]
    lanes: Lanes

    def followed_by(self, other: Groups) -> Groups:
        """These, then the others."""
        keys = [pa.concat_arrays(pair) for pair in zip(self.keys, other.keys, strict=True)]
        states = [
            tuple(pa.concat_arrays(pair) for pair in zip(one, two, strict=True))
            for one, two in zip(self.states, other.states, strict=True)
        ]
        return Groups(keys, states, np.concatenate([self.lanes, other.lanes]))

    @property
    def bytes(self) -> int:
        """Their size."""
        columns = [*self.keys, *(part for state in self.states for part in state)]
        return sum(column.nbytes for column in columns)


class RunningHashAggregate(Stateless):
    """See the module's rules."""

    def __init__(self, config: HashAggregate, context: OperatorContext, source: pa.Schema) -> None:
        self._config = config
        self._schema = config.output_schema([source])
        self._aggregates = config.columns(source)
        self._output_rows = context.output_rows
        #: where groups are emitted, unless they are kept per lane
        self._lane = context.lanes.start
        self._needed = config.needed
        self._rows = HeldRows(pa.schema([source.field(name) for name in self._needed]))
        self._groups: Groups | None = None
        #: the last round that has ended
        self._round = 0
        #: a barrier has come and no row since
        self._drained = False
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Hold the rows; merge them when they are as large as the groups."""
        records = batch.records.select(self._needed)
        if self._config.ignore_null_keys:
            valid = valid_rows([records.column(name) for name in self._config.by])
            records = records if valid is None else records.take(pa.array(valid))
        self._drained = False
        if self._needed:
            self._rows.add(Batch(records, batch.tag))
        else:
            self._absorb(self._lifted(batch.records, np.full(batch.records.num_rows, batch.tag.lane, dtype=np.int32)))
        if self._rows.bytes >= max(MERGE_BYTES, self._groups.bytes if self._groups else 0):
            self._merge()

    def end_round(self, port: int, round: int, out: Output) -> None:
        """Remember the round, for a barrier."""
        self._round = round if round < FINAL_ROUND else self._round

    def drain(self, out: Output) -> None:
        """Emit all groups and forget them."""
        self._emit(self._round, out)
        self._drained = True

    def finish(self, out: Output) -> None:
        """Emit all groups."""
        if not self._drained:
            self._emit(FINAL_ROUND, out)
        self._drained = False

    def snapshot(self) -> pa.Table | None:
        """One row per group; one without group (``drained``) if a barrier has come and no row since."""
        self._merge()
        if self._groups is None:
            if not self._drained or self._config.by:
                return None
            groups, lanes = self._blank(), np.array([self._lane], dtype=np.int32)
        else:
            groups, lanes = self._groups, self._groups.lanes
        columns = {LANE: pa.array(lanes), "drained": pa.array(np.full(len(lanes), self._drained))}
        columns |= {f"key.{place}": column for place, column in enumerate(groups.keys)}
        parts = [part for state in groups.states for part in state]
        return pa.table(columns | {f"state.{place}": column for place, column in enumerate(parts)})

    def restore(self, table: pa.Table) -> None:
        """Take over the groups of earlier snapshots, merging those with equal keys."""
        live = table.filter(pc.invert(table.column("drained")))
        self._drained = live.num_rows == 0
        if self._drained:
            return
        keys = [single_array(live.column(f"key.{place}")) for place in range(len(self._config.by))]
        parts = [single_array(live.column(name)) for name in live.column_names if name.startswith("state.")]
        lanes = live.column(LANE).to_numpy().astype(np.int32)
        self._absorb(Groups(keys, self._aggregates.split(parts), lanes))

    # ------------------------------------------------------------------ parts

    def _merge(self) -> None:
        if self._rows.rows:
            held = self._rows.take_all()
            self._absorb(self._lifted(held.records, held.lanes))

    def _lifted(self, records: pa.RecordBatch, lanes: Lanes) -> Groups:
        keys = [decoded(records.column(name)) for name in self._config.by]
        return Groups(keys, self._aggregates.lift(records), lanes)

    def _absorb(self, rows: Groups) -> None:
        """Merge rows, or groups, into the groups: those come first, so every group keeps its number."""
        whole = rows if self._groups is None else self._groups.followed_by(rows)
        keys = [*whole.keys, pa.array(whole.lanes)] if self._config.step == "partial" else whole.keys
        ids, count = group_ids(keys, len(whole.lanes))
        merged = self._aggregates.merge_groups(whole.states, ids, count)
        firsts = np.flatnonzero(first_rows(ids))
        self._groups = Groups([key.take(pa.array(firsts)) for key in whole.keys], merged, whole.lanes[firsts])

    def _blank(self) -> Groups:
        keys: list[pa.Array] = []
        return Groups(keys, self._aggregates.blank(), np.array([self._lane], dtype=np.int32))

    def _emit(self, round: int, out: Output) -> None:
        self._merge()
        groups, self._groups = self._groups, None
        partial = self._config.step == "partial"
        if groups is None:
            if self._config.by or partial or self._lane:
                return
            groups = self._blank()
        records = self._records(groups)
        if not partial:
            for piece in cut(records, self._output_rows):
                self._emitter.emit(piece, round, self._lane, out)
            return
        order = np.argsort(groups.lanes, kind="stable")
        sorted_records, sorted_lanes = records.take(pa.array(order)), groups.lanes[order]
        lanes, starts = np.unique(sorted_lanes, return_index=True)
        ends = np.append(starts[1:], len(order))
        for lane, start, end in zip(lanes.tolist(), starts.tolist(), ends.tolist(), strict=True):
            for piece in cut(sorted_records.slice(start, end - start), self._output_rows):
                self._emitter.emit(piece, round, lane, out)

    def _records(self, groups: Groups) -> pa.RecordBatch:
        columns = [*groups.keys, *self._aggregates.columns(groups.states)]
        if columns:
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))  # one row of no column
