"""Limit: some rows of the stream, counted in the order of their tags.

Rules:

1. The first ``offset`` rows are skipped, the next ``count`` pass, with their tags; the others are dropped. Both
   numbers are 64-bit.
2. They count over the whole task, or anew behind every barrier (``per="window"``).
3. A subtask counts what it receives: to limit a stream as a whole it must be gathered into one subtask
   (``Stream.limit`` does). State is the number of rows seen, under the subtask's first lane.
4. Once all its rows have come a limit needs no more: for good, or until the next barrier if it counts
   by windows. Rows that come nevertheless are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...core.elements import Batch
from ...core.errors import FlowError
from ...core.operator import LANE, Emitter, OperatorContext, Output, Stateless
from ...core.schemas import check_inputs
from ...core.traits import Emission, Lineage, State, Traits, all_kept

Per: TypeAlias = Literal["task", "window"]


@dataclass(frozen=True)
class Limit:
    """``count`` rows after the first ``offset``."""

    count: int
    offset: int = 0
    per: Per = "task"
    kind: str = "limit"
    traits: ClassVar[Traits] = Traits(
        columns=all_kept(reads=()),
        emission=Emission.PER_BATCH,
        state=State.COUNTERS,
        lineage=Lineage(follows=0),
        beyond_budget="",
        deterministic=True,
        grouped_by=(),
        counts_rows=True,
    )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's."""
        check_inputs(self.kind, inputs, 1)
        for name, value in (("count", self.count), ("offset", self.offset)):
            if not 0 <= value < 2**63:
                raise FlowError(f"limit: {name} {value} is impossible", "give a number from 0 to 2**63 - 1")
        if self.per not in {"task", "window"}:
            raise FlowError(f"limit: it cannot count per {self.per!r}", "count per 'task' or per 'window'")
        return inputs[0]

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningLimit:
        """A running limit that goes on counting."""
        seen = 0 if restored is None else pc.sum(restored.column("seen")).as_py()
        return RunningLimit(self, context.lanes.start, seen)

    def describe(self) -> str:
        """The numbers."""
        after = f" after {self.offset}" if self.offset else ""
        return f"{self.count} rows{after}{' of each window' if self.per == 'window' else ''}"


class RunningLimit(Stateless):
    """See the module's rules."""

    def __init__(self, config: Limit, lane: int, seen: int) -> None:
        self._offset, self._end = config.offset, config.offset + config.count
        self._per_window = config.per == "window"
        self.for_good = not self._per_window
        self._lane = lane
        #: rows that have come since the beginning, or the last barrier
        self._seen = seen
        #: the input has ended, and the count is forgotten
        self._over = False
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Pass on what lies between offset and end."""
        rows = batch.records.num_rows
        first = min(max(self._offset - self._seen, 0), rows)
        last = min(max(self._end - self._seen, first), rows)
        self._emitter.emit(batch.records.slice(first, last - first), batch.tag.round, batch.tag.lane, out)
        self._seen += rows

    def drain(self, out: Output) -> None:
        """Begin to count anew, if that was asked for."""
        if self._per_window:
            self._seen = 0

    def needs_no_more(self, port: int) -> bool:
        """Whether the last row has passed."""
        return self._over or self._seen >= self._end

    def finish(self, out: Output) -> None:
        """Forget the count."""
        self._seen, self._over = 0, True

    def snapshot(self) -> pa.Table | None:
        """The number of rows so far."""
        if not self._seen:
            return None
        return pa.table({LANE: pa.array([self._lane], pa.int32()), "seen": pa.array([self._seen], pa.int64())})
