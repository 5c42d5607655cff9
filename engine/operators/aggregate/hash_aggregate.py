"""Hash aggregation: one row per distinct key, wherever its rows stand.

Rules:

1. Null keys form a group of their own, NaN equals NaN; ``ignore_null_keys`` leaves out rows in which a key is null. A
   group shows the key of its first row. Dictionary columns come out as their values.
2. Groups are held until a barrier (``drain``) or the end. They are emitted in the order of their first rows, under the
   first lane of the subtask; the groups of a *partial* step are kept per lane and emitted lane by lane, so that what a
   final step makes of them does not depend on how lanes are spread over subtasks.
3. Without keys there is exactly one row, even of no input: the first subtask gives it. It comes once for each barrier,
   and not again for the empty stretch between the last barrier and the end.
4. Rows are held until they are worth a merge (``spilled_groups``, rule 3), which costs as much as it takes in. Rows of
   a group are merged in their order (see ``aggregate_protocol``, rule 1), so the result depends on neither batches nor
   the time of merging.
5. A single or final step merges what its own subtask receives: for one result per key, the input must be gathered into
   one subtask (``Stream.aggregate`` does). State goes with the lane of a group's first row; a subtask that is handed
   two states of one key merges them.
6. When too much is held, groups go to files (``spilled_groups``). At the end they are put together again and emitted a
   batch at a time. Rows, their order and every digit are the same. Values are computed of a piece of groups at a time.
7. Groups stay as they are until the last piece has left: so a cut that comes before that has the state before the
   call, most of which earlier checkpoints have (``changes``).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...buffers.held_rows import Lanes, pieces_of_state
from ...buffers.sorted_runs import SortedRuns
from ...buffers.stored_rows import StoredRows, rebatched
from ...core.elements import FINAL_ROUND, Batch
from ...core.operator import LANE, Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_columns, check_distinct, check_inputs, check_movable, unique_schema, value_type
from ...core.traits import Columns, Cut, Emission, Traits
from ...expressions.bounds import is_exact
from ...kernels.groups import check_group_types
from ...kernels.keys import valid_rows
from ...kernels.pieces import Bound, Positions, cut
from ...kernels.sorting import SortKey
from ...state.change_log import FEW, ROW, ChangeLog, Changes, StatePart, as_changes
from .aggregates import (
    Aggregate,
    AggregateColumns,
    Arguments,
    Step,
    arguments_of,
    check_aggregates,
    final_of,
    groups_in_words,
    needed_columns,
    never_overflow,
)
from .grouped_states import Grouping, Groups, GroupTable, plain_keys
from .groups_by_lane import LaneTables
from .spilled_groups import PIECE_BYTES, BoundedGroups
from .waiting_rows import WaitingRows


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

    @property
    def traits(self) -> Traits:
        """It looks at keys and arguments; the keys come out, plain."""
        return Traits(
            columns=lambda _: [Columns(self.needed, {name: name for name in self.by})],
            emission=Emission.AT_END,
            beyond_budget="",
            deterministic=True,
            grouped_by=None if self.step == "partial" else self.by,
            blocking=True,
            cut={"drain": Cut.BEFORE, "finish": Cut.BEFORE},
            takes_compact=True,
            lane_wise=self.step == "partial",
            may_miss_rows=self._may_miss_rows,
            early=self._early,
            state_of=self._state_of,
        )

    def _state_of(self, inputs: Sequence[pa.Schema]) -> str:
        words = groups_in_words(self.by, self.aggregates, inputs[0], self._arguments(inputs[0]))
        return f"{words}, without null keys" if self.ignore_null_keys else words

    def _may_miss_rows(self, inputs: Sequence[pa.Schema]) -> list[bool]:
        return [bool(self.by) and never_overflow(self.aggregates, self._arguments(inputs[0]))]

    def _early(self, inputs: Sequence[pa.Schema], names: Collection[str]) -> list[dict[str, pc.Expression]]:
        """By its keys; of those that are floats two that differ may be one."""
        (schema,), may = inputs, self._may_miss_rows(inputs)
        keys = [name for name in self.by if name in names and is_exact(schema.field(name).type)]
        return [{name: pc.field(name) for name in keys} if may[0] else {}]

    def _arguments(self, schema: pa.Schema) -> Arguments:
        return arguments_of(self.aggregates, schema) if self.arguments is None else self.arguments

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
            running.restore(restored, context.stored)
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
        return needed_columns(self.by, self.aggregates, self.step)

    def columns(self, schema: pa.Schema) -> AggregateColumns:
        """The aggregates over rows of ``schema``."""
        return AggregateColumns(self.kind, self.aggregates, self._arguments(schema), self.step)


class RunningHashAggregate(Stateless):
    """See the module's rules."""

    def __init__(self, config: HashAggregate, context: OperatorContext, source: pa.Schema) -> None:
        self._config = config
        self._schema = config.output_schema([source])
        self._aggregates = config.columns(source)
        self._bound = Bound(context.output_rows, context.output_bytes)
        self._memory = context.memory
        #: where groups are emitted, unless they are kept per lane
        self._lane = context.lanes.start
        self._partial = config.step == "partial"
        self._needed = config.needed
        self._takes_all = self._needed in ([], source.names)
        #: rows not merged into the groups; none once groups have left
        self._rows = WaitingRows(source, self._needed, per_lane=self._partial)
        self._keys = tuple(self._schema.field(place).type for place in range(len(config.by)))
        grouping = Grouping(self._aggregates, self._keys, self._partial)
        self._row_bytes = grouping.row_bytes
        self._groups = BoundedGroups(grouping, context.memory)
        #: what was given to checkpoints of the groups in which table
        self._log = ChangeLog()
        self._logged: GroupTable | LaneTables | None = None
        #: and of what has gone to files
        self._left = ChangeLog(grows=True)
        #: the position of the next row
        self._next = 0
        #: the last round that has ended
        self._round = max(context.ended_round, 0)
        #: a barrier or the end has come and no row since
        self._drained = False
        #: the emission of groups, while it is under way or after it
        self._steps: Iterator[None] = iter(())
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Hold the rows; merge them when they are as large as the groups."""
        records = batch.records if self._takes_all else batch.records.select(self._needed)
        if self._config.ignore_null_keys:
            valid = valid_rows([records.column(name) for name in self._config.by])
            records = records if valid is None else records.take(pa.array(valid))
        self._drained = False
        lane, position = batch.tag.lane, self._next
        self._next += records.num_rows
        if self._groups.spilled:
            self._groups.add(self._lifted(records, lane, position))
            return
        self._rows.put(records, lane)
        if self._needed:
            self._stay_within()
        else:
            self._merge()

    def end_round(self, port: int, round: int, out: Output) -> None:
        """Remember the round, for a barrier."""
        self._round = round if round < FINAL_ROUND else self._round

    def drain(self, out: Output) -> Steps:
        """Emit all groups and forget them."""
        return self._emit(self._round, out)

    def finish(self, out: Output) -> Steps:
        """Emit all groups. Once: after a restore the end may come again."""
        return None if self._drained else self._emit(FINAL_ROUND, out)

    def snapshot(self) -> pa.Table | None:
        """One row per group; one without group (``drained``) if a barrier or the end has come and no row since."""
        self._merge()
        parts = list(self._groups.stored())
        if not parts:
            if not self._drained or self._config.by:
                return None
            parts = [self._blank()]
        return pa.Table.from_batches([self._state(part, self._drained) for part in parts]).unify_dictionaries()

    def changes(self) -> pa.Table | Changes | None:
        """The same; of many groups in memory only those that have changed since it was asked last, and what has gone to
        files since."""
        self._merge()
        if not self._groups.spilled:
            return self._changes_in_memory() if self._are_many() else self.snapshot()
        new = self._groups.newly_left()
        if new:
            self._left.add(StatePart(partial(self._states, new), sum(map(len, new))))
        held = self._changes_in_memory() if self._are_many() else self._groups.groups
        if isinstance(held, Groups):
            held = as_changes(self._states([held]))
        return self._left.cut() if held is None else self._left.cut() + held

    def _are_many(self) -> bool:
        """Whether groups in memory are given in parts; if not, those that were go (``change_log``, rule 6)."""
        many = self._groups.held >= FEW
        self._logged = self._logged if many else None
        return many

    def _changes_in_memory(self) -> Changes:
        table = self._groups.in_memory
        assert table is not None
        if table is not self._logged:
            groups = table.later()
            self._log, self._logged = ChangeLog(), table
            self._log.add(StatePart(lambda: self._states([groups()]), len(table)))
            return self._log.cut()
        numbers, changed = table.changed()
        if len(numbers):
            rows = self._states([changed]).append_column(ROW, pa.array(numbers))
            self._log.add(StatePart(lambda: rows, len(numbers)))
        return self._log.cut()

    def restore(self, table: pa.Table, stored: Sequence[StatePart] = ()) -> None:
        """Take over the groups of earlier snapshots, in the order of their positions, merging those with equal keys.
        Each of several subtasks has counted its own rows: of equal positions that of the first lane comes first.
        ``stored``: those of the table, if they are known."""
        drained = table.column("drained")
        live = table.filter(pc.invert(drained)) if pc.any(drained).as_py() else table
        self._drained = live.num_rows == 0
        lanes, positions = live.column(LANE).to_numpy(), live.column("position").to_numpy()
        order = np.lexsort([lanes, positions])
        rows_of = StoredRows(live.schema, live.to_batches())
        for rows in pieces_of_state(live, order):
            self._groups.add(self._restored(rows_of.take(rows)))
        self._next = int(positions.max(initial=-1)) + 1
        self._groups.merge()
        groups = self._groups.in_memory
        if stored and groups is not None and len(groups) == table.num_rows and self._are_numbered(order, lanes):
            self._go_on_with(groups, lanes, stored)

    def _are_numbered(self, order: Positions, lanes: Lanes) -> bool:
        """Whether the rows of a state, or those of each lane, stand in the order in which they were merged."""
        if self._partial:
            in_lanes = order[np.argsort(lanes[order], kind="stable")]
            return bool((in_lanes == np.argsort(lanes, kind="stable")).all())
        return bool((np.diff(order) > 0).all())

    def _go_on_with(self, groups: GroupTable | LaneTables, lanes: Lanes, stored: Sequence[StatePart]) -> None:
        """Let the next checkpoint name these parts, if they are a base and its changes."""
        groups.mark(lanes)
        base = self._states([groups.changed()[1]]).schema
        change = base.append(pa.field(ROW, pa.int64()))
        schemas = [part.table.schema for part in stored if part.table is not None]
        if schemas == [base, *[change] * (len(stored) - 1)]:
            self._log, self._logged = ChangeLog(stored=stored), groups

    def close(self) -> None:
        """Remove the files."""
        if isinstance(self._steps, Generator):
            self._steps.close()
        self._rows.take_all(0)
        self._forget()

    # ------------------------------------------------------------------ parts

    def _stay_within(self) -> None:
        """Merge the rows that wait if there are enough, or too many; let groups go if these are too many."""
        if self._groups.enough(self._rows.bytes):
            self._merge_first()
        waiting = self._rows.bytes + self._rows.rows * self._row_bytes  # each may become a group
        if not self._memory.hold(waiting + self._groups.bytes):
            return
        few = self._groups.few(waiting)
        if few and not self._groups.can_leave:
            return
        self._merge()
        if self._memory.hold(self._groups.bytes) or few:
            self._groups.leave()

    def _forget(self) -> None:
        self._groups.clear()
        self._logged, self._left = None, ChangeLog(grows=True)
        self._memory.hold(0)

    def _merge_first(self) -> None:
        """Merge rows of one piece: more wait if those that have come had to. All of them where that costs as much."""
        if not self._groups.in_place:
            self._merge()
            return
        position = self._next - self._rows.rows
        self._groups.absorb(self._rows.take(len(self._config.by), PIECE_BYTES), position)

    def _merge(self) -> None:
        if self._rows.rows:
            position = self._next - self._rows.rows
            self._groups.absorb(self._rows.take_all(len(self._config.by)), position)

    def _lifted(self, records: pa.RecordBatch, lane: int, position: int) -> Groups:
        keys = plain_keys([records.column(name) for name in self._config.by], self._keys)
        rows = records.num_rows
        lanes = np.full(rows, lane, dtype=np.int32)
        return Groups(keys, self._aggregates.lift(records), lanes, np.arange(position, position + rows))

    def _blank(self) -> Groups:
        return Groups([], self._aggregates.blank(), np.array([self._lane], dtype=np.int32), np.zeros(1, dtype=np.int64))

    def _states(self, parts: Sequence[Groups]) -> pa.Table:
        return pa.Table.from_batches([self._state(groups, False) for groups in parts])

    def _state(self, groups: Groups, drained: bool) -> pa.RecordBatch:
        columns = {
            LANE: pa.array(groups.lanes),
            "drained": pa.array(np.full(len(groups), drained)),
            "position": pa.array(groups.positions),
        }
        columns |= {f"key.{place}": column for place, column in enumerate(groups.keys)}
        parts = [part for state in groups.states for part in state]
        return pa.record_batch(columns | {f"state.{place}": column for place, column in enumerate(parts)})

    def _restored(self, state: pa.RecordBatch) -> Groups:
        keys = [state.column(f"key.{place}") for place in range(len(self._config.by))]
        parts = [state.column(name) for name in state.schema.names if name.startswith("state.")]
        lanes = state.column(LANE).to_numpy().astype(np.int32)
        return Groups(keys, self._aggregates.split(parts), lanes, state.column("position").to_numpy())

    # ------------------------------------------------------------------ output

    def _emit(self, round: int, out: Output) -> Steps:
        self._steps = self._emit_all(round, out)
        return self._steps

    def _emit_all(self, round: int, out: Output) -> Iterator[None]:
        yield from self._emit_spilled(round, out) if self._groups.spilled else self._emit_held(round, out)
        self._forget()
        self._drained = True

    def _emit_held(self, round: int, out: Output) -> Iterator[None]:
        """Compute the values of a piece of groups at a time."""
        self._merge()
        none = not self._groups.held
        pieces = self._groups.pieces(self._bound)
        if none and not (self._config.by or self._partial or self._lane):
            pieces = iter([self._blank()])
        for groups in pieces:
            yield from self._put(self._records(groups), groups.lanes, round, out)

    def _emit_spilled(self, round: int, out: Output) -> Iterator[None]:
        """Put the groups of all partitions into the order of their first rows."""
        width = len(self._schema)
        places = [pa.field(LANE, pa.int32()), pa.field("position", pa.int64())]
        schema = pa.schema([*self._schema, *places])
        keys = [(width, SortKey(LANE)), (width + 1, SortKey("position"))]
        runs = SortedRuns(schema, keys if self._partial else keys[::-1], self._memory, self._bound.rows)
        try:
            for groups in self._groups.results():
                columns = [*self._records(groups).columns, pa.array(groups.lanes), pa.array(groups.positions)]
                runs.add(pa.RecordBatch.from_arrays(columns, schema=schema))
                yield
            self._memory.hold(0)
            for piece in rebatched(runs.merged(), schema, self._bound.rows, self._bound.bytes):
                records = pa.RecordBatch.from_arrays(piece.columns[:width], schema=self._schema)
                yield from self._put(records, piece.column(width).to_numpy(), round, out)
        finally:
            runs.clear()

    def _put(self, records: pa.RecordBatch, lanes: Lanes, round: int, out: Output) -> Iterator[None]:
        """Emit rows under the first lane, or, in a partial step, each under its own; they are sorted by it."""
        starts = np.flatnonzero(np.diff(lanes, prepend=-1)) if self._partial else np.zeros(1, dtype=np.int64)
        ends: Positions = np.append(starts[1:], len(lanes))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            lane = int(lanes[start]) if self._partial else self._lane
            pieces = cut(records.slice(start, end - start), self._bound.rows, self._bound.bytes)
            yield from self._emitter.emit_each(pieces, round, lane, out)

    def _records(self, groups: Groups) -> pa.RecordBatch:
        columns = [*groups.keys, *self._aggregates.columns(groups.states)]
        if columns:
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))  # one row of no column
