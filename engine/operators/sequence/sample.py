"""Sample: each row with equal probability, by its place in the stream.

Rules:

1. A row is taken if the number that is drawn for its place is below ``fraction``. The number depends on (seed, lane,
   rows of the lane before it) alone (``counter_random``): so the rows are the same ones however they are cut into
   batches, at any parallelism, and behind any restart. What they hold does not matter: equal rows are drawn one by one.
2. Rows keep their tags and their order. Of two fractions with one seed the larger takes all that the smaller takes.
3. Each epoch counts anew: its sample is drawn by the same numbers. A task barrier changes nothing.
4. State: how many rows of each lane have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from ...core.elements import Batch
from ...core.epochs import ends_epoch
from ...core.errors import FlowError
from ...core.operator import LANE, Emitter, OperatorContext, Output, Stateless
from ...core.schemas import check_inputs
from ...core.traits import Emission, Lineage, State, Traits, all_kept
from ...kernels.counter_random import SAMPLE, Mask, check_seed, words

BLOCK = 8 * 1024
"""Numbers that are drawn together."""
_BITS = 53
"""Of a number: as many as a fraction has."""
_DROPPED = np.uint64(64 - _BITS)


@dataclass(frozen=True)
class Sample:
    """About ``fraction`` of the rows."""

    fraction: float
    seed: int = 0
    kind: str = "sample"
    traits: ClassVar[Traits] = Traits(
        columns=all_kept(reads=()),
        emission=Emission.PER_BATCH,
        state=State.COUNTERS,
        lineage=Lineage(follows=0),
        beyond_budget="",
        deterministic=True,
        lane_wise=True,
        ends_epochs=True,
        counts_rows=True,
    )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's."""
        check_inputs(self.kind, inputs, 1)
        if not 0 <= self.fraction <= 1:
            raise FlowError(f"sample: fraction {self.fraction!r} is impossible", "give a number from 0 to 1")
        check_seed(self.kind, self.seed)
        return inputs[0]

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningSample:
        """A running sample that goes on counting."""
        running = RunningSample(self, context)
        if restored is not None:
            lanes, seen = (restored.column(name).to_pylist() for name in (LANE, "seen"))
            running.seen.update(zip(lanes, seen, strict=True))
        return running

    def describe(self) -> str:
        """Fraction and seed."""
        return f"{self.fraction!r} of the rows, seed {self.seed}"


class RunningSample(Stateless):
    """See the module's rules."""

    def __init__(self, config: Sample, context: OperatorContext) -> None:
        self._seed, self._epochs = config.seed, context.epochs
        self._below = np.uint64(config.fraction * 2**_BITS)
        #: lane -> its rows so far, in this epoch
        self.seen: dict[int, int] = {}
        #: lane -> the block that was drawn for it last, and which of its rows are taken
        self._drawn: dict[int, tuple[int, Mask]] = {}
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Pass on what is taken."""
        lane, rows = batch.tag.lane, batch.records.num_rows
        first = self.seen.get(lane, 0)
        self.seen[lane] = last = first + rows
        blocks = range(first // BLOCK, (last - 1) // BLOCK + 1)
        taken = np.concatenate([self._block(lane, block) for block in blocks])[first % BLOCK :][:rows]
        kept = batch.records if taken.all() else batch.records.take(pa.array(np.flatnonzero(taken)))
        self._emitter.emit(kept, batch.tag.round, lane, out)

    def end_round(self, port: int, round: int, out: Output) -> None:
        """Begin to count anew with an epoch."""
        if ends_epoch(self._epochs, round):
            self.seen = {}

    def finish(self, out: Output) -> None:
        """Forget the counts."""
        self.seen = {}

    def snapshot(self) -> pa.Table | None:
        """The rows of each lane."""
        if not self.seen:
            return None
        lanes, seen = pa.array(self.seen.keys(), pa.int32()), pa.array(self.seen.values(), pa.int64())
        return pa.table({LANE: lanes, "seen": seen})

    def _block(self, lane: int, block: int) -> Mask:
        known = self._drawn.get(lane)
        if known is not None and known[0] == block:
            return known[1]
        # the lane stands where others have the epoch: a sample is the same in each
        taken: Mask = words(self._seed, lane, SAMPLE, block, BLOCK) >> _DROPPED < self._below
        self._drawn[lane] = block, taken
        return taken
