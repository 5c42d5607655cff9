"""What the scenario tests are written with: splits, tasks that are fed by the scenarios' protocol, odd operators.

The protocol: one split for each source, a barrier, read to it, and so on; then no more splits, and read to the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch
from penstock.engine.core.errors import PenstockError
from penstock.engine.core.operator import (
    OperatorConfig,
    OperatorContext,
    Output,
    RunningOperator,
    Stateless,
    Steps,
)
from penstock.engine.flow.flow import Flow, Stream
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.sources.memory import MemorySplit

WAIT = 30.0
"""Seconds after which something that should happen on another thread has not: a failure, never a measure of time."""

MODES = pytest.mark.parametrize("degree", [0, 2], ids=["serial", "parallel"])
WIDE_MODES = pytest.mark.parametrize("degree", [0, 3], ids=["serial", "parallel"])
BARRIERS = pytest.mark.parametrize("barriers", [True, False], ids=["barriers", "no barriers"])

_numbers = itertools.count()

# ---------------------------------------------------------------------- input


def table(**columns: Any) -> pa.Table:
    """Columns of int64 where nothing else fits better."""
    return pa.table(
        {
            name: pa.array(values, pa.int64()) if not any(values) else pa.array(values)
            for name, values in ((name, list(values)) for name, values in columns.items())
        }
    )


def split(given: pa.Table | None = None, **columns: Any) -> MemorySplit:
    """A split of these rows."""
    return MemorySplit(f"split-{next(_numbers)}", table(**columns) if given is None else given)


def scan(flow: Flow, name: str = "rows", like: pa.Table | None = None) -> Stream:
    """A source that gets its splits from the test; ``like`` gives the schema, by default a column c0 of integers."""
    return flow.from_tables([(table(c0=[]) if like is None else like).slice(0, 0)], name=name)


# ---------------------------------------------------------------------- running


def read(task: PlanTask) -> list[pa.RecordBatch]:
    """The batches up to the next barrier or the end."""
    batches = []
    while (batch := task.read(WAIT)) is not None:
        batches.append(batch)
    return batches


def rows(batches: Sequence[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Rows as tuples."""
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def values(batches: Sequence[pa.RecordBatch]) -> list[Any]:
    """The first column."""
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def feed(task: PlanTask, splits: Mapping[str, MemorySplit]) -> None:
    """One split for each source that has one."""
    for source, given in splits.items():
        task.add_split(source, given)


def window(task: PlanTask, **splits: MemorySplit) -> list[pa.RecordBatch]:
    """Feed, request a barrier, and read to it."""
    feed(task, splits)
    reached = task.request_barrier()
    batches = read(task)
    assert task.state == "barrier"
    assert reached.done()
    assert not task.under_barrier
    return batches


def finish(task: PlanTask) -> list[pa.RecordBatch]:
    """No more splits; the batches up to the end."""
    for source in sources_of(task):
        task.no_more_splits(source)
    batches = read(task)
    assert task.state == "finished"
    return batches


def run(task: PlanTask, sets: Sequence[Mapping[str, MemorySplit]], *, barriers: bool) -> list[list[pa.RecordBatch]]:
    """The scenarios' protocol: the batches of each window, and last those that come after the last barrier."""
    windows = []
    for splits in sets:
        if barriers:
            windows.append(window(task, **splits))
        else:
            feed(task, splits)
    return [*windows, finish(task)]


def joined(windows: Sequence[Sequence[pa.RecordBatch]]) -> list[pa.RecordBatch]:
    """All batches, whichever window they came in."""
    return [batch for each in windows for batch in each]


def sources_of(task: PlanTask) -> list[str]:
    return [reader.operator for each in task.tasks for reader in each.readers]


def rows_read(task: PlanTask) -> dict[str, int]:
    """Rows that each source has read."""
    return {each.operator: each.rows for task in task.statistics() for each in task.sources}


def batches_out(task: PlanTask, operator: str) -> int:
    """Batches that an operator has emitted so far."""
    [found] = [each for task in task.statistics() for each in task.operators if each.operator == operator]
    return found.batches_out


# ---------------------------------------------------------------------- operators


@dataclass(frozen=True)
class Own:
    """An operator of the test's own, of one input; ``make`` gives the running one. Rows keep their schema."""

    make: Callable[[OperatorContext], RunningOperator]
    kind: str = "own"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningOperator:
        return self.make(context)

    def describe(self) -> str:
        return "the test's own"


@dataclass(frozen=True)
class In:
    """``config`` in another context: ``output_rows`` or ``memory``."""

    config: OperatorConfig
    changes: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return self.config.kind

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return self.config.output_schema(inputs)

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningOperator:
        return self.config.build(replace(context, **self.changes), inputs, restored)

    def describe(self) -> str:
        return self.config.describe()


def cut_at(stream: Stream, config: OperatorConfig, output_rows: int, name: str) -> Stream:
    """``config`` over ``stream``, with batches of at most ``output_rows`` rows of its own."""
    return stream.flow.apply(In(config, {"output_rows": output_rows}), [stream], name=name)


def own(stream: Stream, make: Callable[[OperatorContext], RunningOperator], name: str = "own") -> Stream:
    """An operator of the test's own over ``stream``."""
    return stream.flow.apply(Own(make), [stream], name=name)


class Buffering(Stateless):
    """Keeps every batch until a barrier or the end, then emits one per step. ``releasing`` is told how many are left,
    before each of them."""

    def __init__(self, releasing: Callable[[int], None] = lambda left: None) -> None:
        self._releasing = releasing
        self._held: list[Batch] = []

    def process(self, port: int, batch: Batch, out: Output) -> None:
        self._held.append(batch)

    def drain(self, out: Output) -> Steps:
        return self._release(out)

    def finish(self, out: Output) -> Steps:
        return self._release(out)

    def _release(self, out: Output) -> Iterator[None]:
        while self._held:
            self._releasing(len(self._held))
            out.emit(self._held.pop(0))
            yield


class Passing(Stateless):
    """Passes every batch on; ``seen`` is called with its rows."""

    def __init__(self, seen: Callable[[pa.RecordBatch], None] = lambda records: None) -> None:
        self._seen = seen

    def process(self, port: int, batch: Batch, out: Output) -> None:
        self._seen(batch.records)
        out.emit(batch)


class Sluggish(Stateless):
    """Passes every batch on after ``cycles`` trips to another thread, one batch at a time: a consumer that holds its
    producers up."""

    def __init__(self, context: OperatorContext, cycles: int) -> None:
        self._background = context.background
        self._cycles = cycles
        self._batch: Batch | None = None
        self._left = 0
        self._back = False

    def accepts(self, port: int) -> bool:
        return self._batch is None

    def process(self, port: int, batch: Batch, out: Output) -> None:
        assert self._batch is None, "a batch came that was not welcome"
        self._batch, self._left = batch, self._cycles
        self._go()

    @property
    def waits_for(self) -> str:
        return "a trip" if self._batch is not None else ""

    def poll(self, out: Output) -> bool:
        if self._batch is None or not self._back:
            return False
        self._left -= 1
        if self._left:
            self._go()
        else:
            batch, self._batch = self._batch, None
            out.emit(batch)
        return True

    def unanswered(self, out: Output) -> list[Batch]:
        return [] if self._batch is None else [self._batch]

    def _go(self) -> None:
        self._back = False
        self._background(lambda: None, self._came_back)

    def _came_back(self, answer: object) -> None:
        self._back = True


def raising(message: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A user's function that fails."""

    def fail(records: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError(message)

    return fail


def read_to_error(task: PlanTask) -> tuple[list[pa.RecordBatch], PenstockError]:
    """The batches that come before the task's error, and the error."""
    batches: list[pa.RecordBatch] = []
    try:
        while (batch := task.read(WAIT)) is not None:
            batches.append(batch)
    except PenstockError as error:
        return batches, error
    raise AssertionError(f"the task is {task.state} instead of failed")
