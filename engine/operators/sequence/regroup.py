"""Regroup: rows under the lanes of their parts. It stands behind every partitioned exchange.

Rules:

1. What comes in a round is held until it ends and then emitted part by part, under the lane of the part; within a part
   in the order of the tags under which the rows came. So the outcome depends neither on which producer was faster, nor
   on batches, nor on how parts are spread over subtasks. Rows of ``FINAL_ROUND`` come out with ``finish``.
2. Behind an exchange the part stands in the last column (``PART``), and takes no sorting. Pieces of one round may come
   in any order, and rows of ``FINAL_ROUND`` before other rounds have ended (``UnorderedInputGate``).
3. With a ``partitioning`` it stands behind an operator that emits rows of many parts under one lane, in the subtask
   that owns them (an aggregate, a sort, a join), and finds their parts anew.
4. Too much held is written to disk (``RoundRows``); it comes out a piece of a part at a time.
5. Nothing is held at a barrier that stands between rounds. What is held at any other one is its state: the rows, with
   their part as the lane, their round, and the tag under which they came, which orders them among those still to come.
6. ``ordered`` False: the order does not matter, and rows are passed on by the part whenever a few batches have come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ...buffers.held_rows import Held, state_table
from ...buffers.round_rows import PartPiece, RoundRows
from ...buffers.state_rows import rows_of_state
from ...core.elements import FINAL_ROUND, Batch
from ...core.errors import FlowError, InternalError
from ...core.operator import LANE, Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_inputs
from ...core.traits import Cut, Emission, Lineage, Multiplicity, Traits, all_kept
from ...expressions.evaluator import single_array
from ...kernels.hashing import Parts
from ...kernels.pieces import Bound
from ...plan.partitioning import PART, Partitioning, sorted_by_part

UNORDERED_BATCHES = 4
"""So many batches' rows are collected where the order does not matter."""


@dataclass(frozen=True)
class Regroup:
    """Puts rows under the lanes of their parts. ``partitioning``: that finds the parts; None: they are in the rows."""

    partitioning: Partitioning | None = None
    ordered: bool = True
    kind: str = "regroup"

    @property
    def traits(self) -> Traits:
        """It looks at the columns by which rows are divided; all come out."""
        return Traits(
            columns=all_kept(() if self.partitioning is None else self.partitioning.keys),
            unordered=lambda: replace(self, ordered=False),
            emission=Emission.PER_ROUND,
            rows=Multiplicity.SAME,
            lineage=Lineage(follows=0),
            beyond_budget="",
            deterministic=True,
            may_miss_rows=lambda _: [True],
            ends_epochs=True,
            cut={"end_round": Cut.BEFORE, "drain": Cut.BEFORE, "finish": Cut.BEFORE},
        )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's, without the parts."""
        check_inputs(self.kind, inputs, 1)
        (schema,) = inputs
        if self.partitioning is not None:
            self.partitioning.check(schema)
            return schema
        if not schema.names or schema.names[-1] != PART:
            raise FlowError("regroup: its input does not come from a partitioned exchange", "call partition_by() first")
        return schema.remove(len(schema) - 1)

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningRegroup:
        """A running operator that holds the rows of ``restored``."""
        running = RunningRegroup(self, context, inputs[0])
        if restored is not None:
            running.restore(restored)
        return running

    def describe(self) -> str:
        """What finds the parts."""
        return "by part" if self.partitioning is None else f"by {self.partitioning.describe()}"


class RunningRegroup(Stateless):
    """See the module's rules."""

    def __init__(self, config: Regroup, context: OperatorContext, source: pa.Schema) -> None:
        self._schema = config.output_schema([source])
        partitioning = config.partitioning
        self._partitioner = None if partitioning is None else partitioning.partitioner(source)
        self._owned = context.lanes
        self._memory = context.memory
        self._bound = Bound(context.output_rows, context.output_bytes)
        self._most = None if config.ordered else UNORDERED_BATCHES * context.output_rows
        #: round -> its rows; between barriers only the open round and the final one
        self._rounds: dict[int, RoundRows] = {}
        #: pieces that have come, where their order is that of their coming
        self._count = 0
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Hold the rows until their round ends."""
        records, parts = self._parted(batch)
        key = (batch.tag.lane, batch.tag.sequence) if self._most is None else (0, self._count)
        self._count += 1
        rows = self._hold(batch.tag.round, key, records, parts, batch.size)
        if self._most is None or (rows.rows < self._most and rows.bytes < UNORDERED_BATCHES * self._bound.bytes):
            return None
        return self._emit([batch.tag.round], out)

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """Emit the rows of the round."""
        ended = [known for known in sorted(self._rounds) if known <= round and known < FINAL_ROUND]
        return self._emit(ended, out) if ended else None

    def drain(self, out: Output) -> Steps:
        """Emit what came since the round ended."""
        return self._emit(sorted(self._rounds), out) if self._rounds else None

    def finish(self, out: Output) -> Steps:
        """Emit what came in the final round."""
        return self._emit(sorted(self._rounds), out) if self._rounds else None

    def snapshot(self) -> pa.Table | None:
        """The rows held, and from where in the order each has come (``from``, ``sequence``); none between rounds."""
        held: list[Held] = []
        keys: list[tuple[int, int]] = []
        for round, rows in sorted(self._rounds.items()):
            for part, key, records in rows.by_key():
                rounds = np.full(records.num_rows, round, dtype=np.int64)
                held.append(Held(records, rounds, np.full(records.num_rows, self._owned.start + part, dtype=np.int32)))
                keys.append(key)
        if not held:
            return None
        lengths = [each.records.num_rows for each in held]
        table = state_table(held)
        for name, numbers in zip(("from", "sequence"), zip(*keys, strict=True), strict=True):
            table = table.append_column(name, pa.array(np.repeat(np.array(numbers, dtype=np.int64), lengths)))
        return table

    def restore(self, table: pa.Table) -> None:
        """Hold the rows of earlier snapshots. Those of an earlier release do not say from where they have come: within
        their part they come before all others."""
        if "from" not in table.column_names:
            for name, number in (("from", -1), ("sequence", 0)):
                table = table.append_column(name, pa.array(np.full(table.num_rows, number, dtype=np.int64)))
        places = [table.column(name).to_numpy() for name in (LANE, "sequence", "from", "round")]
        order = np.lexsort(places)
        parts, sequences, sources, rounds = (column[order] for column in places)
        rows = single_array(table.column("row").take(pa.array(order)))
        records = rows_of_state(rows, self._schema)
        changes = np.diff(rounds) | np.diff(sources) | np.diff(sequences)
        borders = [0, *(np.flatnonzero(changes) + 1).tolist(), len(order)]
        for start, end in pairwise(borders):
            mine = records.slice(start, end - start)
            key = int(sources[start]), int(sequences[start])
            self._hold(int(rounds[start]), key, mine, parts[start:end].astype(np.uint16), int(mine.nbytes))
        self._count = int(sequences.max(initial=-1)) + 1

    def close(self) -> None:
        """Let go of everything."""
        for rows in self._rounds.values():
            rows.clear()
        self._rounds = {}
        self._account()

    # ------------------------------------------------------------------ parts

    def _parted(self, batch: Batch) -> tuple[pa.RecordBatch, Parts]:
        """The rows by part, and the parts."""
        records = batch.records
        if self._partitioner is not None:
            return sorted_by_part(records, self._partitioner.parts(batch))
        parts = records.column(records.num_columns - 1).to_numpy()
        return sorted_by_part(pa.RecordBatch.from_arrays(records.columns[:-1], schema=self._schema), parts)

    def _hold(self, round: int, key: tuple[int, int], records: pa.RecordBatch, parts: Parts, size: int) -> RoundRows:
        if int(parts[0]) not in self._owned or int(parts[-1]) not in self._owned:
            raise InternalError(f"rows of parts {parts[0]} to {parts[-1]} came to the owner of {self._owned}")
        borders = np.searchsorted(parts, np.arange(self._owned.start, self._owned.stop + 1))
        if round not in self._rounds:
            self._rounds[round] = RoundRows(self._schema, len(self._owned), self._memory)
        rows = self._rounds[round]
        rows.add(PartPiece(key, records, borders, size))
        if self._account():
            for each in self._rounds.values():
                each.spill()
            self._account()
        return rows

    def _account(self) -> bool:
        return self._memory.hold(sum(rows.bytes for rows in self._rounds.values()))

    def _emit(self, rounds: Sequence[int], out: Output) -> Iterator[None]:
        """Emit the rows of these rounds, one part after the other."""
        for round in rounds:
            for part, records in self._rounds[round].by_part(self._bound):
                self._emitter.emit(records, round, self._owned.start + part, out)
                yield
        for round in rounds:  # not before the last piece: a cut on the way stands before the call
            self._rounds.pop(round).clear()
        self._account()
