"""Streaming aggregation: one row per group of input that is clustered by its keys (equal keys stand together).

Rules:

1. A group belongs to one lane and may span batches and rounds of it. Only the group in progress is held, as one row of
   partial values per lane. Keys that come back later form a new group: nothing is looked up.
2. A group ends when another key follows in its lane, and comes out in that round: as soon as those that have ended
   fill a piece, or at the end of the round. A lane is cut by its own groups, whatever others have. The groups still
   open when the input ends are emitted by ``finish``, in round ``FINAL_ROUND``, like those that ended in that round.
3. Groups come out in the order of their input. Null keys are equal to each other, and so are NaNs; a group shows the
   key of its first row. Dictionary columns come out as their values.
4. A barrier (``drain``) ends all groups: one whose rows lie on both sides of it comes out once for each.
5. What comes behind the last round (in ``FINAL_ROUND``, or between a round's end and the barrier at which this operator
   ends all groups) comes lane by lane: a lane has had its last row when one of a higher lane comes. Its open group
   leaves then, so that those of higher lanes can. Where the order is that of arrival (``ordered`` False) lanes do not
   come one after the other, and nobody minds in which order they leave. One that holds at the barrier has all groups go
   on; those that have ended leave with the rows that ended them.
6. The state has one row per lane, for the open group (column ``open``), and one for each group that has ended in a
   round not yet over (column ``done``): none of the latter at the end of a round. While those of a round, a barrier or
   the end leave it is that before the call. What a batch lets go of is less than a piece and the batch (rule 7): that
   leaves first.
7. What is held is told to the operator's account after each batch and each round: a group a lane, and less than a
   piece and a batch of groups that have ended. It is not spilled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...buffers.state_rows import children, row_type
from ...core.elements import FINAL_ROUND, Batch
from ...core.errors import FlowError
from ...core.operator import LANE, Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_columns, check_distinct, check_inputs, check_movable, unique_schema, value_type
from ...core.traits import Columns, Cut, Emission, Traits
from ...expressions.evaluator import single_array
from ...kernels.aggregate_protocol import Segments, State
from ...kernels.keys import check_key_types, decoded, differences
from ...kernels.pieces import Positions, cut
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
)

_Groups: TypeAlias = tuple[dict[int, pa.RecordBatch], dict[int, list[pa.RecordBatch]]]

_FIRST: Positions = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True)
class StreamAggregate:
    """Groups clustered rows ``by`` their keys. Output: the keys, then the aggregates (see ``aggregates`` for steps)."""

    by: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    step: Step = "single"
    #: of a final step: the types of the arguments that the partial step had
    arguments: Arguments | None = None
    kind: str = "stream aggregate"
    #: no field: jobs go on from checkpoints of before there was a choice, and fields are part of a flow's identity
    ordered: ClassVar[bool] = True

    @property
    def traits(self) -> Traits:
        """It looks at keys and arguments; the keys come out."""
        return Traits(
            columns=lambda _: [Columns(self.needed, {name: name for name in self.by})],
            unordered=lambda: _InAnyOrder(self.by, self.aggregates, self.step, self.arguments),
            emission=Emission.PER_GROUP,
            beyond_budget="one group of each lane",
            deterministic=True,
            cut=dict.fromkeys(("end_round", "drain", "finish"), Cut.BEFORE),
            state_of=lambda inputs: groups_in_words(
                self.by,
                self.aggregates,
                inputs[0],
                arguments_of(self.aggregates, inputs[0]) if self.arguments is None else self.arguments,
            ),
        )

    def final(self, schema: pa.Schema) -> StreamAggregate:
        """The final step over what this partial step gives for rows of ``schema``."""
        arguments = arguments_of(self.aggregates, schema)
        return replace(self, step="final", arguments=arguments, aggregates=final_of(self.aggregates))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The keys' fields, then one per aggregate."""
        check_inputs(self.kind, inputs, 1)
        if not self.by:
            raise FlowError("stream aggregate: no key is given", "name at least one column to group by")
        check_distinct(self.kind, "key", self.by)
        check_columns(self.kind, inputs[0], self.by)
        check_movable(self.kind, inputs[0], self.by)
        check_aggregates(self.kind, self.aggregates, inputs[0], self.step)
        keys = [inputs[0].field(name) for name in self.by]
        check_key_types(self.kind, keys)
        fields = [pa.field(key.name, value_type(key.type), key.nullable) for key in keys]
        fields += self.columns(inputs[0]).output_fields()
        return unique_schema(self.kind, fields, "give the aggregate another name")

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningStreamAggregate:
        """A running aggregation with the groups of ``restored``."""
        running = RunningStreamAggregate(self, inputs[0], context)
        if restored is not None:
            running.restore(restored)
        return running

    def describe(self) -> str:
        """Keys and aggregates."""
        step = "" if self.step == "single" else f"{self.step} "
        return (
            f"{step}by {', '.join(self.by)}: {', '.join(map(Aggregate.describe, self.aggregates)) or 'distinct keys'}"
        )

    @property
    def needed(self) -> list[str]:
        """The input columns that it reads."""
        return needed_columns(self.by, self.aggregates, self.step)

    def columns(self, schema: pa.Schema) -> AggregateColumns:
        """The aggregates over rows of ``schema``."""
        arguments = arguments_of(self.aggregates, schema) if self.arguments is None else self.arguments
        return AggregateColumns(self.kind, self.aggregates, arguments, self.step)


class _InAnyOrder(StreamAggregate):
    """One of a flow whose order is that of arrival."""

    ordered: ClassVar[bool] = False


class RunningStreamAggregate(Stateless):
    """See the module's rules."""

    def __init__(self, config: StreamAggregate, source: pa.Schema, context: OperatorContext) -> None:
        self._by = config.by
        self._ordered, self._holds = config.ordered, context.holds
        self._output_rows, self._output_bytes = context.output_rows, context.output_bytes
        self._memory = context.memory
        self._aggregates = config.columns(source)
        self._schema = config.output_schema([source])
        keys = [self._schema.field(name) for name in config.by]
        self._open_schema = pa.schema([*keys, *self._aggregates.state_fields()])
        #: the last round that has ended
        self._ended = context.ended_round
        #: lane -> its group in progress, one row of keys and states; only lanes that have had a row
        self._open: dict[int, pa.RecordBatch] = {}
        #: lane -> groups that have ended, as they are held, in order; they wait for others, or the end of the round
        self._done: dict[int, list[pa.RecordBatch]] = {}
        #: bytes of the group in progress of each lane, and rows and bytes of all groups that have ended
        self._open_bytes: dict[int, int] = {}
        self._done_rows = self._done_bytes = 0
        #: the open groups and those that have ended, before the call that emits all of the latter
        self._before: _Groups | None = None
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Continue the lane's open group, keep the last one open, emit those that have ended if they fill a piece."""
        lane, round = batch.tag.lane, batch.tag.round
        groups = self._continued(lane, batch.records)
        last = groups.num_rows - 1
        if last:
            self._complete(lane, groups.slice(0, last))
        # a copy: what is held must not keep the whole batch
        self._keep_open(lane, groups.take(pa.array([last])) if last else groups)
        self._account()
        late = round <= self._ended
        goes_on = late and self._holds
        if not goes_on and self._done_rows < self._output_rows and self._done_bytes < self._output_bytes:
            return None
        if self._ordered and not goes_on and (late or round == FINAL_ROUND):
            self._complete_all(below=lane)
        return self._emit_done(max(round, self._ended), out, None if goes_on else lane) if self._done else None

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """Emit the groups that ended in this round."""
        if round == FINAL_ROUND:
            return None
        self._ended = round
        return self._emit_all(self._standing, round, out) if self._done else None

    def close(self) -> None:
        """Let go of everything."""
        self._open, self._done, self._open_bytes, self._done_rows, self._done_bytes = {}, {}, {}, 0, 0
        self._before = None
        self._memory.hold(0)

    def finish(self, out: Output) -> Steps:
        """Emit all groups."""
        before = self._standing
        self._complete_all()
        return self._emit_all(before, FINAL_ROUND, out)

    def drain(self, out: Output) -> Steps:
        """Emit all groups; what follows begins new ones."""
        before = self._standing
        self._complete_all()
        return self._emit_all(before, max(self._ended, 0), out)

    def snapshot(self) -> pa.Table | None:
        """One row per open group, one per group that has not been emitted yet."""
        opened, ended = self._before or self._standing
        rows = [(lane, group, None) for lane, group in sorted(opened.items())]
        done = [(lane, None, group) for lane, groups in sorted(ended.items()) for group in groups]
        tables = [self._state_rows(*row) for row in (*rows, *done)]
        return pa.concat_tables(tables) if tables else None

    def restore(self, table: pa.Table) -> None:
        """Take over the groups of earlier snapshots."""
        for lane in pc.unique(table.column(LANE)).to_pylist():
            rows = table.filter(pc.equal(table.column(LANE), lane))
            opened, done = (self._groups_of(rows.column(name)) for name in ("open", "done"))
            if opened is not None:
                self._keep_open(lane, opened)
            if done is not None:
                self._complete(lane, done)
        self._account()

    # ------------------------------------------------------------------ parts

    @property
    def _standing(self) -> _Groups:
        """What is held, which may change then."""
        return dict(self._open), {lane: list(groups) for lane, groups in self._done.items()}

    def _continued(self, lane: int, records: pa.RecordBatch) -> pa.RecordBatch:
        """The lane's open group, which is held no longer, and those of the rows."""
        keys = [decoded(records.column(name)) for name in self._by]
        states = self._aggregates.lift(records)
        starts = _starts(keys)
        if len(starts) < records.num_rows:
            keys = [column.take(pa.array(starts)) for column in keys]
        segments = Segments(starts, records.num_rows)
        held = self._open.pop(lane, None)
        if held is not None:
            held_keys, held_states = self._split(held)
            if self._same(held_keys, keys):
                keys = [_replace_first(column, first) for column, first in zip(keys, held_keys, strict=True)]
                states = [_prepend(state, first) for state, first in zip(states, held_states, strict=True)]
                segments = Segments(np.append(0, starts[1:] + 1), records.num_rows + 1)
                held = None
        merged = self._aggregates.merge(states, segments)
        columns = [*keys, *(column for state in merged for column in state)]
        groups = pa.RecordBatch.from_arrays(columns, schema=self._open_schema)
        return groups if held is None else pa.concat_batches([held, groups])

    def _keep_open(self, lane: int, group: pa.RecordBatch) -> None:
        self._open[lane] = group
        self._open_bytes[lane] = group.nbytes

    def _complete_all(self, below: int | None = None) -> None:
        """All open groups have ended, or those of the lanes below this one."""
        for lane in sorted(self._open):
            if below is None or lane < below:
                self._complete(lane, self._open.pop(lane))
                del self._open_bytes[lane]

    def _complete(self, lane: int, groups: pa.RecordBatch) -> None:
        self._done.setdefault(lane, []).append(groups)
        self._done_rows += groups.num_rows
        self._done_bytes += groups.nbytes

    def _account(self) -> None:
        self._memory.hold(self._done_bytes + sum(self._open_bytes.values()))

    def _emit_all(self, before: _Groups, round: int, out: Output) -> Iterator[None]:
        """Emit all groups that have ended. Until the last piece has left the state is that ``before`` the call."""
        self._before = before
        return self._emit_done(round, out)

    def _emit_done(self, round: int, out: Output, growing: int | None = None) -> Iterator[None]:
        """Emit the groups that have ended, lane by lane; of a lane that has more to come full pieces only: where it is
        cut depends on its own rows."""
        left: dict[int, list[pa.RecordBatch]] = {}
        for lane in sorted(self._done):
            batches = self._done.pop(lane)
            groups = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            del batches
            pieces = list(cut(groups, self._output_rows, self._output_bytes))
            del groups
            if lane == growing:
                left[lane] = [pieces.pop()]
            while pieces:
                piece = pieces.pop(0)
                keys, states = self._split(piece)
                columns = [*keys, *self._aggregates.columns(states)]
                self._emitter.emit(pa.RecordBatch.from_arrays(columns, schema=self._schema), round, lane, out)
                yield
        self._done, self._before = left, None
        self._done_rows = sum(groups.num_rows for each in left.values() for groups in each)
        self._done_bytes = sum(groups.nbytes for each in left.values() for groups in each)
        self._account()

    def _split(self, groups: pa.RecordBatch) -> tuple[list[pa.Array], list[State]]:
        """The key columns and the state of each aggregate."""
        columns, keys = groups.columns, len(self._by)
        return columns[:keys], self._aggregates.split(columns[keys:])

    def _same(self, held: Sequence[pa.Array], keys: Sequence[pa.Array]) -> bool:
        both = [pa.concat_arrays([one, column.slice(0, 1)]) for one, column in zip(held, keys, strict=True)]
        return not differences(both)[0]

    def _state_rows(self, lane: int, opened: pa.RecordBatch | None, done: pa.RecordBatch | None) -> pa.Table:
        rows = sum(groups.num_rows for groups in (opened, done) if groups is not None)
        columns = {
            LANE: pa.array(np.full(rows, lane, dtype=np.int32)),
            "open": _as_structs(opened, self._open_schema, rows),
            "done": _as_structs(done, self._open_schema, rows),
        }
        return pa.table(columns)

    def _groups_of(self, structs: pa.ChunkedArray) -> pa.RecordBatch | None:
        if structs.null_count == len(structs):  # of which Arrow cannot drop all, for every type
            return None
        return pa.RecordBatch.from_arrays(children(single_array(structs).drop_null()), schema=self._open_schema)


def _starts(keys: Sequence[pa.Array]) -> Positions:
    """The first row of each group."""
    differ = differences(keys)
    starts: Positions = np.concatenate((_FIRST, differ.nonzero()[0] + 1))
    return starts


def _replace_first(column: pa.Array, first: pa.Array) -> pa.Array:
    return pa.concat_arrays([first, column.slice(1)])


def _prepend(state: State, first: State) -> State:
    return tuple(pa.concat_arrays([one, rest]) for one, rest in zip(first, state, strict=True))


def _as_structs(groups: pa.RecordBatch | None, schema: pa.Schema, rows: int) -> pa.Array:
    if groups is None:
        return pa.nulls(rows, row_type(schema))
    return pa.StructArray.from_arrays(groups.columns, fields=list(row_type(schema)))
