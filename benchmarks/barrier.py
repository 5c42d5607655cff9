"""The task barrier: a split set on a warm task against a new task for each split set.

Run it as ``python benchmarks/barrier.py``; the result goes to ``benchmarks/results/barrier.json``. The plan has three
pipelines (two sources, a merge join, a streaming aggregation behind it) and a user's class that takes a while to build,
as a model does. Three comparisons:

1. *Bare*: without the class. What a new task costs is planning, building and closing; a warm task pays one barrier.
2. *With a warm class*: the class takes 5 ms to build, once per task.
3. *Barrier alone*: an empty split set against the aim of 300 µs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness import Row, compare, report
from penstock.engine.flow import Flow
from penstock.engine.plan_task import PlanTask
from penstock.engine.sources.memory import MemorySource

SETS = 50
AIM_TIMES_CHEAPER = 10.0
AIM_BARRIER_SECONDS = 300e-6
BUILD_SECONDS = 0.005
RESULT = Path(__file__).parent / "results" / "barrier.json"

LEFT = pa.table({"k": pa.array(range(1_000), pa.int64()), "v": pa.array(range(1_000), pa.int64())})
RIGHT = pa.table({"k": pa.array(range(0, 1_000, 2), pa.int64()), "w": pa.array(range(500), pa.int64())})


class Model:
    """A function that takes a while to build."""

    def __init__(self) -> None:
        until = time.perf_counter() + BUILD_SECONDS
        while time.perf_counter() < until:
            pass

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


def split_of(table: pa.Table) -> Any:
    [split] = MemorySource((table,)).splits()
    return split


SPLITS = {"left": split_of(LEFT), "right": split_of(RIGHT)}


def make_task(model: bool) -> PlanTask:
    """A new task for the plan."""
    flow = Flow("barrier")
    left = flow.from_tables([LEFT.slice(0, 0)], name="left")
    right = flow.from_tables([RIGHT.slice(0, 0)], name="right")
    joined = left.merge_join(right, on=["k"], how="left")
    if model:
        joined = joined.map_batches(Model, joined.schema)
    return PlanTask(joined.stream_aggregate(by=["k"], total=("w", "sum")))


def run_set(task: PlanTask) -> None:
    rows = sum(batch.num_rows for batch in task.run(SPLITS))
    assert rows == LEFT.num_rows, rows


def on_warm_task(model: bool) -> float:
    """Seconds for a split set on a task that lives on, its making left out."""
    task = make_task(model)
    run_set(task)
    started = time.perf_counter()
    for _ in range(SETS):
        run_set(task)
    seconds = (time.perf_counter() - started) / SETS
    task.cancel()
    return seconds


def on_new_tasks(model: bool) -> float:
    """Seconds for a split set on a task of its own."""
    started = time.perf_counter()
    for _ in range(SETS):
        task = make_task(model)
        run_set(task)
        task.cancel()
    return (time.perf_counter() - started) / SETS


def barrier_alone() -> float:
    """Seconds for a barrier on an idle task."""
    task = make_task(model=False)
    run_set(task)
    started = time.perf_counter()
    for _ in range(SETS):
        task.request_barrier()
        assert task.next() == (None, None)
    seconds = (time.perf_counter() - started) / SETS
    task.cancel()
    return seconds


def main() -> None:
    rows: list[Row] = [
        compare(
            f"split set of 1,500 rows on a warm task, {'a model of 5 ms' if model else 'bare'}",
            "a new task per split set",
            lambda model=model: on_warm_task(model),
            lambda model=model: on_new_tasks(model),
            aim=AIM_TIMES_CHEAPER,
        )
        for model in (False, True)
    ]
    rows.append(compare("barrier alone", "the aim of 300 µs", barrier_alone, lambda: AIM_BARRIER_SECONDS))
    report(rows, RESULT)


if __name__ == "__main__":
    main()
