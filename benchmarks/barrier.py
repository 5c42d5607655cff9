"""The task barrier: a split set on a warm task against a new task for each split set.

Run it as ``python benchmarks/barrier.py``; the result goes to ``benchmarks/results/barrier.json``. The plan is of three
pipelines, each with a driver of its own: a filter over each of two sources, and behind them a merge join with a
streaming aggregation. What is compared:

1. *A split set on a warm task* against *a new task per split set*: all that a caller pays from handing over the splits
   to the last row and the barrier. A new task is planned, built and closed for each set, a warm one never in the time
   that is measured. The work on the rows itself is done by both and is part of both figures; so the smaller the set,
   the more is seen of the rest. With 15 rows and with 1,500, without threads and with two; and with a user's class in
   the plan that takes 5 ms to build, as a model does: once per task.
2. *Besides the work*: the same two figures less what the same operators take when they are called one after the other
   on the same batches, without any task, plan, channel or scheduler.
3. *The barrier alone* (a window without splits), and *a barrier with the next split set* of 15 rows, against the aim of
   300 µs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from harness import Row, compare, report, results_folder, sized
from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.core.operator import OperatorContext, RunningOperator, exhaust
from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.operators import Aggregate, Filter, MergeJoin, StreamAggregate
from penstock.engine.sources.memory import MemorySource, MemorySplit

SETS = sized(50, 3)
AIM_TIMES_CHEAPER = 10.0
AIM_SECONDS = 300e-6
BUILD_SECONDS = 0.005
PIPELINES = 3
"""One more with a model: functions begin one."""

LEFT_SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
RIGHT_SCHEMA = pa.schema([("k", pa.int64()), ("w", pa.int64())])
LEFT_KEPT, RIGHT_KEPT = pc.field("v") >= 0, pc.field("w") >= 0
TOTAL = Aggregate("total", "w", "sum")

Splits = Mapping[str, MemorySplit]


def split_set(rows: int) -> Splits:
    """So many left rows, and half as many right ones that match."""
    tables = {
        "left": pa.table([range(rows), range(rows)], schema=LEFT_SCHEMA),
        "right": pa.table([range(0, rows, 2), range(rows // 2)], schema=RIGHT_SCHEMA),
    }
    return {name: MemorySource((table,)).splits()[0] for name, table in tables.items()}


SMALL, LARGE = split_set(10), split_set(1_000)


class Model:
    """A function that takes a while to build."""

    def __init__(self) -> None:
        until = time.perf_counter() + BUILD_SECONDS
        while time.perf_counter() < until:
            pass

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


def make_task(*, model: bool = False, degree: int = 0) -> PlanTask:
    """A new task for the plan."""
    flow = Flow("barrier")
    left = flow.from_tables([LEFT_SCHEMA.empty_table()], name="left").filter(LEFT_KEPT)
    right = flow.from_tables([RIGHT_SCHEMA.empty_table()], name="right").filter(RIGHT_KEPT)
    joined = left.merge_join(right, on=["k"], how="left")
    if model:
        joined = joined.map_batches(Model, joined.schema)
    task = PlanTask(joined.stream_aggregate(by=["k"], total=("w", "sum")), degree=degree)
    assert sum(len(each.drivers) for each in task.tasks) == PIPELINES + model
    return task


def run_set(task: PlanTask, splits: Splits) -> None:
    rows = sum(batch.num_rows for batch in task.run(splits))
    assert rows == splits["left"].rows, rows


def on_warm_task(splits: Splits, **options: bool | int) -> float:
    """Seconds for a split set on a task that lives on, its making left out."""
    task = make_task(**options)
    run_set(task, splits)
    started = time.perf_counter()
    for _ in range(SETS):
        run_set(task, splits)
    seconds = (time.perf_counter() - started) / SETS
    task.cancel()
    return seconds


def on_new_tasks(splits: Splits, **options: bool | int) -> float:
    """Seconds for a split set on a task of its own."""
    started = time.perf_counter()
    for _ in range(SETS):
        task = make_task(**options)
        run_set(task, splits)
        task.cancel()
    return (time.perf_counter() - started) / SETS


def barrier_alone() -> float:
    """Seconds for a barrier on an idle task."""
    task = make_task()
    run_set(task, SMALL)
    started = time.perf_counter()
    for _ in range(SETS):
        task.request_barrier()
        assert task.next() == (None, None)
    seconds = (time.perf_counter() - started) / SETS
    task.cancel()
    return seconds


@dataclass
class Kept:
    """Where an operator puts its batches when nobody stands behind it."""

    batches: list[Batch] = field(default_factory=list)

    def emit(self, batch: Batch) -> None:
        self.batches.append(batch)


class BareOperators:
    """The plan's operators, called one after the other."""

    def __init__(self) -> None:
        context = OperatorContext("bare", TaskId("bare", 0), Attempt(0, 0), 1, range(1))
        join = MergeJoin(("k",), how="left")
        total = StreamAggregate(("k",), (TOTAL,))
        inputs = [LEFT_SCHEMA, RIGHT_SCHEMA]
        self._filters: list[RunningOperator] = [
            Filter(kept).build(context, [schema], None)
            for kept, schema in zip((LEFT_KEPT, RIGHT_KEPT), inputs, strict=True)
        ]
        self._join = join.build(context, inputs, None)
        self._total = total.build(context, [join.output_schema(inputs)], None)
        self._round = 0

    def run_set(self, splits: Splits) -> None:
        """The work on one split set."""
        joined, totals = Kept(), Kept()
        for port, name in enumerate(("left", "right")):
            for number, records in enumerate(splits[name].open(0)):
                kept = Kept()
                exhaust(self._filters[port].process(0, Batch(records, Tag(self._round, 0, number)), kept))
                for batch in kept.batches:
                    exhaust(self._join.process(port, batch, joined))
        for port in (0, 1):
            exhaust(self._join.end_round(port, self._round, joined))
        exhaust(self._join.drain(joined))
        for batch in joined.batches:
            exhaust(self._total.process(0, batch, totals))
        exhaust(self._total.end_round(0, self._round, totals))
        exhaust(self._total.drain(totals))
        self._round += 1
        assert sum(batch.records.num_rows for batch in totals.batches) == splits["left"].rows


def bare_work(splits: Splits) -> float:
    """Seconds for the operators' own work on a split set."""
    operators = BareOperators()
    operators.run_set(splits)
    started = time.perf_counter()
    for _ in range(SETS):
        operators.run_set(splits)
    return (time.perf_counter() - started) / SETS


def besides_the_work(measured: Callable[[Splits], float], splits: Splits) -> float:
    """Seconds for a split set less the operators' own."""
    return max(measured(splits) - bare_work(splits), 1e-9)


def warm_against_new(work: str, splits: Splits, **options: bool | int) -> Row:
    return compare(
        f"{work} on a warm task",
        "a new task per split set",
        partial(on_warm_task, splits, **options),
        partial(on_new_tasks, splits, **options),
        aim=AIM_TIMES_CHEAPER,
    )


def rest_against_rest(rows: str, splits: Splits) -> Row:
    return compare(
        f"split set of {rows} on a warm task, besides the operators' work",
        "a new task per split set, besides the same work",
        partial(besides_the_work, on_warm_task, splits),
        partial(besides_the_work, on_new_tasks, splits),
        aim=AIM_TIMES_CHEAPER,
    )


def main() -> None:
    aim = "the aim of 300 µs"
    rows = [
        warm_against_new("split set of 15 rows", SMALL),
        warm_against_new("split set of 1,500 rows", LARGE),
        warm_against_new("split set of 15 rows, with a model of 5 ms", SMALL, model=True),
        warm_against_new("split set of 1,500 rows, with a model of 5 ms", LARGE, model=True),
        warm_against_new("split set of 15 rows, two threads", SMALL, degree=2),
        rest_against_rest("15 rows", SMALL),
        rest_against_rest("1,500 rows", LARGE),
        compare("barrier alone", aim, barrier_alone, lambda: AIM_SECONDS),
        compare("barrier and next split set of 15 rows", aim, partial(on_warm_task, SMALL), lambda: AIM_SECONDS),
        compare("the operators' own work on 15 rows", aim, partial(bare_work, SMALL), lambda: AIM_SECONDS),
    ]
    report(rows, results_folder() / "barrier.json")


if __name__ == "__main__":
    main()
