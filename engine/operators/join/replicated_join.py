"""A hash join whose right side every subtask has a copy of: broadcast.

Rules:

1. The left side may be divided in any way, so its part travels through the join as a column (``MarkPart`` adds it,
   ``Regroup`` behind the join takes it away): left rows that wait for the right side come out under one lane.
2. The right side is the same in every subtask. Each stores all of it, under the lane ``EVERYWHERE``, which belongs to
   all subtasks of whatever parallelism, and with its number (``copy``). So whichever files a subtask is restored from,
   there is a whole copy among them; it takes the one with the smallest number. Of both sides a checkpoint writes the
   rows that have come since the last one, as any hash join's: but not behind parts of another subtask, whose number
   would stand in a part of its copy.
3. Only join types that give no right rows of their own: the others would give them once per subtask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...core.elements import Batch, Tag
from ...core.operator import EVERYWHERE, LANE, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_inputs
from ...core.traits import Columns, Multiplicity, Traits, all_kept
from ...plan.partitioning import PART, wire_schema
from ...state.change_log import Changes
from .hash_join import HashJoin, RunningHashJoin
from .join_shape import RIGHT


@dataclass(frozen=True)
class MarkPart:
    """Adds the part of each row, its lane, as the last column."""

    kind: str = "mark part"
    traits: ClassVar[Traits] = replace(
        Traits.row_wise(all_kept()),
        rows=Multiplicity.ONE_EACH,
        may_be_copied=False,
        may_miss_rows=lambda _: [True],
    )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's, and the part."""
        check_inputs(self.kind, inputs, 1)
        return wire_schema(inputs[0])

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningMarkPart:
        """A running operator."""
        return RunningMarkPart(self.output_schema(inputs))

    def describe(self) -> str:
        """What it adds."""
        return "in a column"


class RunningMarkPart(Stateless):
    """Marks batch by batch."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Emit the rows with their part."""
        parts = pa.array(np.full(batch.records.num_rows, batch.tag.lane, dtype=np.uint16))
        marked = pa.RecordBatch.from_arrays([*batch.records.columns, parts], schema=self._schema)
        out.emit(Batch(marked, batch.tag))


@dataclass(frozen=True)
class ReplicatedJoin:
    """``join`` with a right side that every subtask has a copy of, and a left side that is marked with its part."""

    join: HashJoin
    kind: str = "hash join"

    @property
    def traits(self) -> Traits:
        """The join's, but for the columns: it looks at all, and keeps all right rows, of which others have copies."""
        needs_match = tuple(port for port in self.join.needs_match if port != RIGHT)
        return replace(
            self.join.traits,
            columns=lambda inputs: [Columns.passed_on(inputs[0]), Columns()],
            key_filters={port: self.join.keys[port] for port in needs_match},
            needs_match=needs_match,
        )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The join's, with the part as the last column."""
        schema = self.join.output_schema(inputs)
        place = schema.get_field_index(PART)
        return schema.remove(place).append(schema.field(place))

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningReplicatedJoin:
        """A running join with the rows of ``restored``."""
        join = RunningHashJoin(self.join, inputs, context, partial(_everywhere, context.task.subtask))
        if restored is not None:
            mine = set(pc.unique(restored.column("copy")).to_pylist()) == {context.task.subtask}
            join.restore(_with_one_copy(restored, context.lanes.start), context.stored if mine else ())
        return RunningReplicatedJoin(self, join, inputs, context)

    def describe(self) -> str:
        """The join, and that its right side is there everywhere."""
        return f"{self.join.describe()}, right side in every subtask"


class RunningReplicatedJoin:
    """Passes everything on to the join."""

    def __init__(
        self, config: ReplicatedJoin, join: RunningHashJoin, inputs: Sequence[pa.Schema], context: OperatorContext
    ) -> None:
        self._join = join
        join.is_copied = True
        self.read_first = join.read_first
        self._schema = config.output_schema(inputs)
        self._lane = context.lanes.start

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Let the join take it; right rows under a lane of this subtask."""
        if port == RIGHT:
            batch = Batch(batch.records, Tag(batch.tag.round, self._lane, batch.tag.sequence))
        return self._join.process(port, batch, self._behind(out))

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """The join's."""
        return self._join.end_round(port, round, self._behind(out))

    def end_port(self, port: int, out: Output) -> Steps:
        """The join's."""
        return self._join.end_port(port, self._behind(out))

    def finish(self, out: Output) -> Steps:
        """The join's."""
        return self._join.finish(self._behind(out))

    def drain(self, out: Output) -> Steps:
        """The join's."""
        return self._join.drain(self._behind(out))

    def accepts(self, port: int) -> bool:
        """The join's."""
        return self._join.accepts(port)

    def past(self, port: int) -> int:
        """The join's."""
        return self._join.past(port)

    def end_window(self, port: int) -> None:
        """Tell the join."""
        self._join.end_window(port)

    def needs_no_more(self, port: int) -> bool:
        """The join's."""
        return self._join.needs_no_more(port)

    def snapshot(self) -> pa.Table | None:
        """The join's; the right rows belong to everybody."""
        return self._join.snapshot()

    def changes(self) -> pa.Table | Changes | None:
        """The same, where it may be in parts."""
        return self._join.changes()

    def close(self) -> None:
        """Close the join."""
        self._join.close()

    def _behind(self, out: Output) -> Output:
        return _PartLast(out, self._schema)


class _PartLast:
    """Moves the part behind the other columns."""

    def __init__(self, out: Output, schema: pa.Schema) -> None:
        self._out, self._schema = out, schema

    def emit(self, batch: Batch) -> None:
        self._out.emit(Batch(batch.records.select(self._schema.names), batch.tag))


def _everywhere(subtask: int, table: pa.Table) -> pa.Table:
    """Rows of a state, of which the right ones belong to everybody."""
    is_right = pc.equal(table.column("port"), RIGHT)
    lanes = pc.if_else(is_right, pa.scalar(EVERYWHERE, pa.int32()), table.column(LANE))
    copies = pa.array(np.full(table.num_rows, subtask, dtype=np.int32))
    return table.set_column(table.schema.get_field_index(LANE), LANE, lanes).append_column("copy", copies)


def _with_one_copy(table: pa.Table, lane: int) -> pa.Table:
    """The left rows and one copy of the right ones, these under ``lane``."""
    lanes, copies = table.column(LANE).to_numpy(), table.column("copy").to_numpy()
    is_right = lanes == EVERYWHERE
    first = copies[is_right].min(initial=np.iinfo(np.int32).max)
    kept = np.flatnonzero(~is_right | (copies == first))
    mine = table.take(pa.array(kept)).drop_columns("copy")
    own = np.where(is_right, lane, lanes)[kept].astype(np.int32)
    return mine.set_column(mine.schema.get_field_index(LANE), LANE, pa.array(own))
