"""Batches: the rows of a feed, cut into global batches by what they cost. The rules of the cut are ``cutting``'s.

Rules:

1. It stands behind a gather and in front of a feed. Rows leave in whole batches, each row as it is and with one more
   column that is true in the last one of a batch (``feed.marks``).
2. A batch leaves with the round and lane of the row that completed it; what is open at the end of an epoch (in its last
   round), at a task barrier or at the end leaves then, in short batches. Nothing is left out.
3. A row that costs more than its budget is an error of the data, unless it was made to fit before (``too_long``).
4. State: the rows of open batches, or of the open window, and two counters. While batches leave it is that before the
   call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...buffers.state_rows import as_rows, in_one, rows_of_state
from ...buffers.stored_rows import RowsApart, brought_together, concatenated
from ...core.elements import Batch
from ...core.epochs import epoch_of
from ...core.errors import DataError, FlowError
from ...core.operator import LANE, OperatorContext, Output
from ...core.schemas import check_inputs, duplicate_of
from ...core.traits import Cut, Emission, Lineage, Multiplicity, State, Traits
from ...expressions.expressions import same_expression
from ...feed.marks import END, marked
from ...feed.measures import LARGEST_COST, Given, Measure, check_measure
from ...kernels.counter_random import check_seed
from ...kernels.pieces import Bound, Flags, Positions, cut, taken
from .by_epoch import GIVES_THE_REST, GivesTheRest
from .cutting import Costs, Cutter, CuttingRules

MAX_WINDOW = 2**24


@dataclass(frozen=True, eq=False)
class Batches:
    """``budgets``: what a batch of each bucket may cost; ``cost``: of a row, None: each row costs one. ``padded``: all
    rows of a batch cost as much as its dearest one. ``window``: rows that are laid out together, 0: they stay in order.
    ``bucket_by`` and ``boundaries``: rows below the first one are in the first bucket, and so on."""

    budgets: tuple[int, ...]
    cost: Given | None = None
    padded: bool = False
    window: int = 0
    seed: int = 0
    bucket_by: Given | None = None
    boundaries: tuple[int, ...] = ()
    kind: str = "batches"

    @property
    def traits(self) -> Traits:
        """Rows come out in another order, and one more column tells where batches end."""
        return Traits(
            emission=Emission.PER_BLOCK,
            state=State.ROWS,
            rows=Multiplicity.SAME,
            lineage=Lineage(follows=0),
            beyond_budget="the rows of open batches, or of a window",
            deterministic=True,
            grouped_by=(),
            cut=dict.fromkeys(("process", *GIVES_THE_REST), Cut.BEFORE),
            ends_epochs=True,
        )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's, and the mark."""
        check_inputs(self.kind, inputs, 1)
        (schema,) = inputs
        if (twice := duplicate_of([*schema.names, END])) is not None:
            raise FlowError(f"batches of two columns named {twice!r}", "rename one of them before the feed (project)")
        self._check_numbers()
        for what, given in (("cost", self.cost), ("bucket_by", self.bucket_by)):
            if given is not None:
                check_measure(self.kind, what, given, schema)
        return marked(schema)

    def _check_numbers(self) -> None:
        if not all(1 <= budget <= LARGEST_COST for budget in self.budgets):
            raise FlowError(f"batches of {self.budgets}", f"give what a batch may cost, 1 to {LARGEST_COST:,}")
        if not 0 <= self.window <= MAX_WINDOW:
            raise FlowError(f"a window of {self.window} rows", f"give a number from 1 to {MAX_WINDOW:,}")
        if len(self.budgets) != len(self.boundaries) + 1 or (self.bucket_by is None) != (not self.boundaries):
            raise FlowError(
                f"{len(self.boundaries)} boundaries, and what a batch may have in {len(self.budgets)} buckets",
                "give bucket_by and its boundaries, and one number more than there are boundaries",
            )
        if any(low >= high for low, high in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise FlowError(f"boundaries {self.boundaries}", "give them in ascending order")
        if self.boundaries and self.window:
            raise FlowError("a window within buckets", "leave out window, or bucket_by")
        check_seed(self.kind, self.seed)

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningBatches:
        """A running operator that holds the rows of ``restored``."""
        running = RunningBatches(self, context, inputs[0])
        if restored is not None:
            running.restore(restored)
        return running

    @property
    def rows_a_batch(self) -> int | None:
        """Where batches are consecutive rows, so many each; None: how many depends on the rows."""
        is_counted = self.cost is None and self.bucket_by is None and not self.padded and not self.window
        return self.budgets[0] if is_counted else None

    def describe(self) -> str:
        """Everything that decides where batches end."""
        what = "rows" if self.cost is None else f"{self.cost}"
        most = ", ".join(f"{budget:,}" for budget in self.budgets)
        shape = ", padded to the dearest row" if self.padded else ""
        window = f", windows of {self.window:,} rows laid out, seed {self.seed}" if self.window else ""
        buckets = f", in buckets of {self.bucket_by} below {self.boundaries}" if self.boundaries else ""
        return f"at most {most} of {what}{shape}{window}{buckets}"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return False
        same = same_expression(self.cost, other.cost) and same_expression(self.bucket_by, other.bucket_by)
        return same and self._plain == other._plain

    def __hash__(self) -> int:
        return hash(self._plain)

    @property
    def _plain(self) -> tuple[object, ...]:
        return self.budgets, self.padded, self.window, self.seed, self.boundaries


@dataclass(frozen=True, slots=True)
class _Standing:
    """How many rows are held, and the cutter's counters."""

    rows: int
    carried: int
    windows: int


class RunningBatches(GivesTheRest):
    """See the module's rules."""

    def __init__(self, config: Batches, context: OperatorContext, schema: pa.Schema) -> None:
        super().__init__(context)
        self._config, self._schema, self._target = config, schema, marked(schema)
        self._bound = Bound(context.output_rows, context.output_bytes)
        self._cost, self._bucket = (
            None if given is None else Measure(config.kind, what, given, schema)
            for what, given in (("cost", config.cost), ("bucket_by", config.bucket_by))
        )
        self._boundaries = np.array(config.boundaries, np.int64)
        self._budgets = np.array(config.budgets, np.int64)
        self._cutter = Cutter(CuttingRules(config.budgets, config.padded, config.window, config.seed))
        #: the rows that the cutter holds, in order
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        #: while a call gives batches: how many rows were held before it and the counters then, and of these rows the
        #: first ones
        self._leaving: tuple[_Standing, Callable[[int], pa.RecordBatch]] | None = None

    def process(self, port: int, batch: Batch, out: Output) -> Iterator[None]:
        """Hold the rows, and emit the batches that they complete."""
        records = batch.records
        costs, buckets = self._measured(records)
        epoch = epoch_of(self._epochs, batch.tag.round)
        before = self._standing()
        self._held.append(records)
        self._bytes += records.nbytes
        yield from self._emit(self._cutter.add(costs, buckets, epoch), before, batch.tag.round, batch.tag.lane, out)

    def close(self) -> None:
        """Hold nothing any more."""
        self._held, self._leaving = [], None
        self._memory.hold(0)

    def snapshot(self) -> pa.Table | None:
        """A row without values that has the counters, then the rows held."""
        standing = self._standing() if self._leaving is None else self._leaving[0]
        if not standing.rows and not standing.windows:
            return None
        if self._leaving is None:
            self._held = [brought_together(self._schema, self._held)]
        rows = as_rows(self._held[0] if self._leaving is None else self._leaving[1](standing.rows))
        count = standing.rows
        return pa.table(
            {
                LANE: pa.array(np.full(count + 1, self._lane, np.int32)),
                "place": pa.array(np.arange(-1, count)),
                "carried": pa.array(np.full(count + 1, standing.carried)),
                "windows": pa.array(np.full(count + 1, standing.windows)),
                "row": pa.chunked_array([pa.nulls(1, rows.type), rows], rows.type),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Go on with the rows of an earlier snapshot."""
        mine = table.take(pa.array(np.argsort(table.column("place").to_numpy(), kind="stable")))
        carried, windows = (int(mine.column(name)[0].as_py()) for name in ("carried", "windows"))
        self._held = []
        costs, buckets = np.zeros(0, np.int64), np.zeros(0, np.int64)
        if mine.num_rows > 1:
            self._held = [rows_of_state(in_one(mine.slice(1), "row"), self._schema)]
            costs, buckets = self._measured(self._held[0])
        self._cutter = Cutter(self._cutter.rules, np.maximum(costs, 1), buckets, carried, windows)
        self._hold()

    # ------------------------------------------------------------------ parts

    def _measured(self, records: pa.RecordBatch) -> tuple[Costs, Positions]:
        """What each row costs, and its bucket. Raises DataError for one that fits into no batch."""
        rows = records.num_rows
        costs = np.ones(rows, np.int64) if self._cost is None else self._cost.of(records)
        buckets = np.zeros(rows, np.int64)
        if self._bucket is not None:
            buckets = np.searchsorted(self._boundaries, self._bucket.of(records), side="right").astype(np.int64)
        most = self._budgets[buckets]
        if (costs > most).any():
            row = int(np.argmax(costs > most))
            raise DataError(
                f"{self._config.kind}: a row costs {costs[row]:,}, more than the {most[row]:,} of a whole batch",
                'say what becomes of such rows, too_long="truncate", "drop" or "split"; or give batches more',
            )
        return costs, buckets

    def _hold(self) -> None:
        self._bytes = sum(records.nbytes for records in self._held)
        self._memory.hold(self._bytes)

    def _standing(self) -> _Standing:
        cutter = self._cutter
        return _Standing(len(cutter.costs), cutter.carried, cutter.windows)

    def _end(self, round: int, out: Output, lane: int) -> Iterator[None]:
        before = self._standing()
        yield from self._emit(self._cutter.end(epoch_of(self._epochs, round)), before, round, lane, out)

    def _emit(self, batches: list[Positions], before: _Standing, round: int, lane: int, out: Output) -> Iterator[None]:
        if not batches:
            self._memory.hold(self._bytes)
            return
        order = np.concatenate(batches)
        ends = np.zeros(len(order), np.bool_)
        ends[np.cumsum([len(rows) for rows in batches]) - 1] = True
        pieces, first = self._first(len(order)) if self._is_in_order else self._picked(order)
        self._leaving = before, first
        yield from self._emitter.emit_each(self._marked(pieces, ends), round, lane, out)
        self._leaving = None
        self._hold()

    @property
    def _is_in_order(self) -> bool:
        """Whether the rows that leave are the first ones of those held."""
        return not self._config.window and len(self._budgets) == 1

    def _first(self, rows: int) -> tuple[Iterator[pa.RecordBatch], Callable[[int], pa.RecordBatch]]:
        held, self._held = self._held, []
        leave: list[pa.RecordBatch] = []
        for records in held:
            mine = min(rows, records.num_rows)
            rows -= mine
            leave += cut(records.slice(0, mine), self._bound.rows, self._bound.bytes)
            self._held += [records.slice(mine)] if mine < records.num_rows else []
        return iter(leave), lambda count: concatenated(self._schema, held).slice(0, count)

    def _picked(self, rows: Positions) -> tuple[Iterator[pa.RecordBatch], Callable[[int], pa.RecordBatch]]:
        stays = np.ones(sum(records.num_rows for records in self._held), np.bool_)
        stays[rows] = False
        whole = RowsApart(self._schema, self._held, self._bound)
        self._held = list(taken(whole, np.flatnonzero(stays), self._bound))
        return taken(whole, rows, self._bound), whole.first

    def _marked(self, pieces: Iterator[pa.RecordBatch], ends: Flags) -> Iterator[pa.RecordBatch]:
        at = 0
        for records in pieces:
            mine = pa.array(ends[at : at + records.num_rows])
            at += records.num_rows
            yield pa.RecordBatch.from_arrays([*records.columns, mine], schema=self._target)
