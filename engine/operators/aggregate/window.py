"""Window functions over input that is sorted by partition keys, then by order keys.

Rules:

1. A partition belongs to one lane and may span batches and rounds of it. Its rows are held until it ends: when another
   partition follows in its lane, at a barrier (``drain``), or at the end. Without partition keys a lane is one.
2. All input rows come out, in their order, with the functions' columns behind theirs: the partitions that ended in a
   round at its end, the last ones with ``finish`` in round ``FINAL_ROUND``.
3. Input that is not sorted within its partition is an error of the data, not a wrong result.
4. State is the rows of open partitions; they are accounted for and not spilled, since a function may look at all. When
   they leave, what the functions look at and give is in memory beside them. They are held until the last of them has
   left: a cut that comes before that stands before the call.
   ``Stream.window`` gathers and sorts first, unless it is told that rows are sorted already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
import pyarrow as pa

from ...buffers.held_rows import HeldRows
from ...buffers.stored_rows import rebatched
from ...core.elements import FINAL_ROUND, Batch, Tag
from ...core.errors import DataError
from ...core.operator import Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_columns, check_distinct, check_inputs, check_movable, unique_schema, value_type
from ...core.traits import Cut, Emission, Lineage, Traits, all_kept
from ...kernels.keys import check_key_types, differences
from ...kernels.pieces import Bound, Positions
from ...kernels.sorting import SortKey, check_sort_keys, sorted_order
from .window_functions import Partitions, WindowFunction, computed


@dataclass(frozen=True)
class Window:
    """The input's columns, then one per function."""

    by: tuple[str, ...]
    order_by: tuple[SortKey, ...]
    functions: tuple[WindowFunction, ...]
    kind: str = "window"

    @property
    def traits(self) -> Traits:
        """All columns come out."""
        return Traits(
            columns=all_kept(),
            emission=Emission.PER_GROUP,
            lineage=Lineage(follows=0),
            beyond_budget="the rows of one partition, and of a round",
            deterministic=True,
            grouped_by=self.by,
            cut=dict.fromkeys(("end_round", "drain", "finish"), Cut.BEFORE),
        )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's fields, then one per function."""
        check_inputs(self.kind, inputs, 1)
        (schema,) = inputs
        check_distinct(self.kind, "partition key", self.by)
        check_columns(self.kind, schema, self.by)
        check_key_types(self.kind, [schema.field(name) for name in self.by])
        if self.order_by:
            check_sort_keys(self.kind, self.order_by, schema)
        check_movable(self.kind, schema)
        fields = [*schema, *(pa.field(each.name, self._type(each, schema)) for each in self.functions)]
        return unique_schema(self.kind, fields, "give the function's column another name")

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningWindow:
        """A running window with the open partitions of ``restored``."""
        running = RunningWindow(self, context, inputs[0])
        if restored is not None:
            running.restore(restored)
        return running

    def describe(self) -> str:
        """Partitions, order and functions."""
        by = f"by {', '.join(self.by)} " if self.by else ""
        order = f"order by {', '.join(key.describe() for key in self.order_by)}" if self.order_by else ""
        return f"{by}{order}: {', '.join(each.describe() for each in self.functions)}"

    def _type(self, each: WindowFunction, schema: pa.Schema) -> pa.DataType:
        if each.column is None:
            return each.result_type(None)
        check_columns(self.kind, schema, [each.column])
        return each.result_type(value_type(schema.field(each.column).type))


@dataclass(frozen=True, slots=True)
class _Ended:
    """Rows of whole partitions, and the first row of each."""

    batches: list[pa.RecordBatch]
    starts: Positions
    rows: int

    @classmethod
    def of(cls, held: list[pa.RecordBatch], records: pa.RecordBatch, changes: Positions) -> Self:
        """The partition that is ``held`` and those in ``records`` that end at one of the ``changes``."""
        before = sum(each.num_rows for each in held)
        border = int(changes[-1])
        batches = [*held, records.slice(0, border)] if border else held
        return cls(batches, np.append(0, changes[:-1] + before), before + border)


class RunningWindow(Stateless):
    """See the module's rules."""

    def __init__(self, config: Window, context: OperatorContext, source: pa.Schema) -> None:
        self._config = config
        self._source, self._target = source, config.output_schema([source])
        self._bound = Bound(context.output_rows, context.output_bytes)
        self._memory = context.memory
        #: bytes of the rows held
        self._bytes = 0
        #: lane -> rows of its open partition, in order; only lanes that have had a row
        self._open: dict[int, list[pa.RecordBatch]] = {}
        #: lane -> partitions that have ended and wait for the end of the round
        self._closed: dict[int, list[_Ended]] = {}
        #: the last round that has ended
        self._round = max(context.ended_round, 0)
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Close the partitions that end in the batch, keep the last one open."""
        lane, records = batch.tag.lane, batch.records
        self._bytes += records.nbytes
        self._memory.hold(self._bytes)
        held = self._open.setdefault(lane, [])
        last = held[-1].slice(held[-1].num_rows - 1) if held else None
        changes = self._changes(records, last)
        if len(changes):
            self._closed.setdefault(lane, []).append(_Ended.of(held, records, changes))
            self._open[lane] = [records.slice(int(changes[-1]))]
        else:
            held.append(records)

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """Emit the partitions that ended in this round."""
        if round == FINAL_ROUND:
            return None
        self._round = round
        return self._emit(round, out) if self._closed else None

    def drain(self, out: Output) -> Steps:
        """Close and emit all partitions; what follows begins new ones."""
        self._close_all()
        return self._emit(self._round, out)

    def finish(self, out: Output) -> Steps:
        """Close and emit all partitions."""
        self._close_all()
        return self._emit(FINAL_ROUND, out)

    def close(self) -> None:
        """Hold nothing any more."""
        self._memory.hold(0)

    def snapshot(self) -> pa.Table | None:
        """The rows held."""
        held = HeldRows(self._source)
        for lane in sorted({*self._open, *self._closed}):
            closed = chain.from_iterable(ended.batches for ended in self._closed.get(lane, []))
            for records in chain(closed, self._open.get(lane, [])):
                held.add(Batch(records, Tag(self._round, lane, 0)))
        return held.snapshot()

    def restore(self, table: pa.Table) -> None:
        """Take over the rows of earlier snapshots."""
        held = HeldRows(self._source)
        held.restore(table)
        whole = held.peek()
        for round, lane, start, rows in whole.units():
            records = whole.records.slice(start, rows)
            changes = self._changes(records, None)
            if len(changes):
                self._closed.setdefault(lane, []).append(_Ended.of([], records, changes))
                records = records.slice(int(changes[-1]))
            self._open[lane] = [records]
            self._round = round
        self._bytes = whole.records.nbytes
        self._memory.hold(self._bytes)

    # ------------------------------------------------------------------ parts

    def _changes(self, records: pa.RecordBatch, last: pa.RecordBatch | None) -> Positions:
        """The rows that begin another partition than the row before, which is ``last`` for the first one."""
        if not self._config.by:
            return np.zeros(0, dtype=np.int64)
        by = self._config.by
        changes = np.flatnonzero(differences([records.column(name) for name in by])) + 1
        if last is None:
            return changes
        ends = [pa.concat_arrays([last.column(name), records.column(name).slice(0, 1)]) for name in by]
        return np.append(np.flatnonzero(differences(ends)), changes)

    def _close_all(self) -> None:
        for lane, batches in self._open.items():
            rows = sum(records.num_rows for records in batches)
            self._closed.setdefault(lane, []).append(_Ended(batches, np.zeros(1, dtype=np.int64), rows))
        self._open = {}

    def _emit(self, round: int, out: Output) -> Iterator[None]:
        for lane in sorted(self._closed):
            for ended in _gathered(self._closed[lane], self._bound):
                pieces = rebatched(self._computed(ended), self._target, self._bound.rows, self._bound.bytes)
                yield from self._emitter.emit_each(pieces, round, lane, out)
        self._closed = {}
        self._bytes = sum(records.nbytes for batches in self._open.values() for records in batches)
        self._memory.hold(self._bytes)

    def _computed(self, ended: _Ended) -> Iterator[pa.RecordBatch]:
        """The rows with the functions' columns, batch by batch. Only what the functions look at is brought together:
        the other columns stay where they are."""
        wanted = {each.column for each in self._config.functions} | {key.column for key in self._config.order_by}
        columns = {
            name: pa.concat_arrays([records.column(name) for records in ended.batches])
            for name in wanted
            if name is not None
        }
        parts = self._partitions(columns, ended.starts, ended.rows)
        found = [
            computed(each, None if each.column is None else columns[each.column], parts)
            for each in self._config.functions
        ]
        del columns, parts
        low = 0
        for records in ended.batches:
            added = [column.slice(low, records.num_rows) for column in found]
            yield pa.RecordBatch.from_arrays([*records.columns, *added], schema=self._target)
            low += records.num_rows

    def _partitions(self, given: Mapping[str, pa.Array], starts: Positions, rows: int) -> Partitions:
        keys = self._config.order_by
        parts = Partitions(starts, starts, rows)
        if not keys:
            return parts
        columns = [given[key.column] for key in keys]
        order = sorted_order(columns, keys, [parts.ids])
        if (order != np.arange(rows)).any():
            raise DataError(
                f"window: its input is not sorted by {', '.join(key.describe() for key in keys)} within a partition",
                "leave out sorted=True, or sort the stream before it",
            )
        peers = np.union1d(starts, np.flatnonzero(differences(columns)) + 1)
        return Partitions(starts, peers, rows)


def _gathered(parts: list[_Ended], bound: Bound) -> Iterator[_Ended]:
    """Parts together, as many as fill a piece: few enough for a core's cache, enough for kernels to pay."""
    left = deque(parts)
    while left:
        batches: list[pa.RecordBatch] = []
        starts: list[Positions] = []
        count = size = 0
        while left and (not batches or (count + left[0].rows <= bound.rows and size < bound.bytes)):
            part = left.popleft()
            batches += part.batches
            starts.append(part.starts + count)
            count += part.rows
            size += sum(records.nbytes for records in part.batches)
        yield _Ended(batches, np.concatenate(starts), count)
