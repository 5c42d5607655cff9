"""Shuffle: rows in a random order within windows of the stream, the same order in every run.

Rules:

1. The stream is cut into blocks of ``window`` rows, by position. The rows of a block leave in an order that is a
   function of (seed, epoch, number of the block) alone: not of batches, timing or parallelism. The last block may be
   short.
2. It stands behind a gather (``Stream.shuffle`` sees to that), so that a position is one of the whole stream.
3. A block leaves as soon as its last row has come, with the round and lane of that row; an open block at a barrier, at
   the end of an epoch (in its last round), or at the end. Behind that blocks are counted anew, as they are in an
   operator that is new; in a further epoch the order is that of the next ``epoch``.
4. State: the rows of the open block and the position; no generator, because numbers are drawn by position
   (``counter_random``). So nothing is lost or repeated when a job goes on, and nothing has to be filled again. While a
   block leaves it is that before the call: the block stays whole until its last piece has left.

Blocks, and no buffer that rows leave one by one as others come in: no row moves by more than a window, in either
direction; which rows may stand at a position can be told without having read the others; on average half a window is
held, and none where a checkpoint meets the end of a block; and a block is one take of a kernel. What blocks lack, a
way across their ends, two shuffles with different windows, one behind the other, give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...buffers.state_rows import as_rows, in_one, rows_of_state
from ...buffers.stored_rows import RowsApart, brought_together
from ...core.elements import Batch
from ...core.epochs import epoch_of
from ...core.errors import FlowError
from ...core.operator import LANE, OperatorContext, Output
from ...core.schemas import check_inputs
from ...core.traits import Cut, Emission, Lineage, Multiplicity, SplitDraws, State, Traits
from ...kernels.counter_random import check_seed, permutation
from ...kernels.pieces import Bound, taken
from .by_epoch import GIVES_THE_REST, GivesTheRest

MAX_WINDOW = 2**31 - 1

_TRAITS = Traits(
    emission=Emission.PER_BLOCK,
    state=State.ROWS,
    rows=Multiplicity.SAME,
    lineage=Lineage(follows=0),
    beyond_budget="the rows of a window",
    deterministic=True,
    grouped_by=(),
    cut=dict.fromkeys(("process", *GIVES_THE_REST), Cut.BEFORE),
    ends_epochs=True,
)


@dataclass(frozen=True)
class Shuffle:
    """Shuffles blocks of ``window`` rows. ``epoch``: which of the orders of ``seed``."""

    window: int
    seed: int = 0
    epoch: int = 0
    kind: str = "shuffle"

    @property
    def traits(self) -> Traits:
        """It gives every row."""
        return _TRAITS

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's."""
        check_inputs(self.kind, inputs, 1)
        if not 1 <= self.window <= MAX_WINDOW:
            raise FlowError(f"shuffle: a window of {self.window} rows", f"give a number from 1 to {MAX_WINDOW}")
        check_seed(self.kind, self.seed, self.epoch)
        return inputs[0]

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningShuffle:
        """A running shuffle that holds the rows of ``restored``."""
        running = RunningShuffle(self, context, inputs[0])
        if restored is not None:
            running.restore(restored)
        return running

    def describe(self) -> str:
        """Window, seed and epoch."""
        return f"windows of {self.window} rows, seed {self.seed}, epoch {self.epoch}"


@dataclass(frozen=True)
class DrawnShuffle(Shuffle):
    """The same, of rows whose splits are read in a drawn order, at most ``interleave`` of them at once."""

    interleave: int = 1

    @property
    def traits(self) -> Traits:
        """It says in which order it wants the splits."""
        return replace(_TRAITS, draws_splits=SplitDraws(self.seed, self.epoch, self.interleave, self.window))

    def describe(self) -> str:
        """And how many splits are read at once."""
        return f"{super().describe()}, asks for drawn splits, {self.interleave} at once"


class RunningShuffle(GivesTheRest):
    """See the module's rules."""

    def __init__(self, config: Shuffle, context: OperatorContext, schema: pa.Schema) -> None:
        super().__init__(context)
        self._config, self._schema = config, schema
        self._bound = Bound(context.output_rows, context.output_bytes)
        #: the rows of the open block, in order
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        #: rows that have come since the beginning, or the last barrier
        self._position = 0
        #: while a call gives blocks: the first of them, and the position before the call
        self._leaving: tuple[RowsApart, int] | None = None

    def process(self, port: int, batch: Batch, out: Output) -> Iterator[None]:
        """Hold the rows, and emit the blocks that they complete."""
        records, window, before = batch.records, self._config.window, self._position
        while records.num_rows:
            part = records.slice(0, window - self._position % window)
            records = records.slice(part.num_rows)
            self._hold(part)
            if self._position % window == 0:
                yield from self._emit(self._position // window - 1, before, batch.tag.round, batch.tag.lane, out)
        self._leaving = None

    def close(self) -> None:
        """Hold nothing any more."""
        self._held, self._leaving = [], None
        self._memory.hold(0)

    def snapshot(self) -> pa.Table | None:
        """A row without values that tells the position, then the rows held."""
        position, whole = self._standing()
        if not position:
            return None
        count = whole.num_rows
        rows = as_rows(whole)
        none = pa.nulls(1, rows.type)
        positions = np.arange(position - count, position + 1)
        return pa.table(
            {
                LANE: pa.array(np.full(count + 1, self._lane, dtype=np.int32)),
                "position": pa.array(positions),
                "row": pa.chunked_array([rows, none], rows.type),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Go on at the position of an earlier snapshot, with the rows that it held."""
        order = np.argsort(table.column("position").to_numpy(), kind="stable")
        self._position = int(pc.max(table.column("position")).as_py())
        mine = table.take(pa.array(order[:-1]))
        if mine.num_rows:
            self._held = [rows_of_state(in_one(mine, "row"), self._schema)]
            self._bytes = self._held[0].nbytes
            self._memory.hold(self._bytes)

    # ------------------------------------------------------------------ parts

    def _hold(self, records: pa.RecordBatch) -> None:
        self._held.append(records)
        self._position += records.num_rows
        self._bytes += records.nbytes
        self._memory.hold(self._bytes)

    def _standing(self) -> tuple[int, pa.RecordBatch]:
        """The position, and the rows of the open block; before the call that is under way, if it has begun to give."""
        if self._leaving is not None:
            block, before = self._leaving
            return before, block.first(before % self._config.window)
        whole = brought_together(self._schema, self._held)
        self._held = [whole]
        return self._position, whole

    def _end(self, round: int, out: Output, lane: int) -> Iterator[None]:
        if self._held:
            yield from self._emit(self._position // self._config.window, self._position, round, lane, out)
        self._position, self._leaving = 0, None

    def _emit(self, block: int, before: int, round: int, lane: int, out: Output) -> Iterator[None]:
        """Emit the rows held, which are those of ``block``, in a call ``before`` which that was the position."""
        whole, self._bytes = RowsApart(self._schema, self._held, self._bound), 0
        self._leaving = self._leaving or (whole, before)
        epoch = self._config.epoch + epoch_of(self._epochs, round)
        order = permutation(self._config.seed, epoch, block, whole.num_rows)
        yield from self._emitter.emit_each(taken(whole, order, self._bound), round, lane, out)
        self._memory.hold(0)
