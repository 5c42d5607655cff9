"""Task barriers and orders for checkpoints that have nothing to do with each other, in one plan."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock.engine.core.identity import BarrierKind, CheckpointId
from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def sums(parallelism: int = 2) -> PlanTask:
    rows = Flow("sums").from_split_sets(SCHEMA, name="rows")
    return PlanTask(rows.aggregate(["k"], total=("v", "sum"), exchange="key"), parallelism=parallelism)


def table(window: int) -> pa.Table:
    return pa.table([[1, 2, 3, 1], [window, window, window, 1]], schema=SCHEMA)


def drain(task: PlanTask) -> list[tuple[int, int]]:
    rows = []
    while (batch := task.read(30)) is not None:
        rows += [(row["k"], row["total"]) for row in batch.to_pylist()]
    return sorted(rows)


@pytest.mark.parametrize("seed", range(10))
def test_checkpoint_that_is_given_up_takes_no_task_barrier_along(seed: int) -> None:
    draw, task = random.Random(seed), sums()
    wanted = []
    for window in range(1, 6):
        for _ in range(2):
            task.add_split("rows", table(window))
        task.request_barrier()
        wanted.append([(1, 2 * window + 2), (2, 2 * window), (3, 2 * window)])
    found, rows = [], list[tuple[int, int]]()
    while len(found) < len(wanted):
        for each in task.tasks:
            if draw.random() < 0.5:
                each.abort(CheckpointId(1, draw.randrange(100)))
        batch, future = task.next()
        if batch is not None:
            rows += [(row["k"], row["total"]) for row in batch.to_pylist()]
        elif future is None:
            found.append(sorted(rows))
            rows = []
    assert found == wanted
    task.cancel()


def test_checkpoint_behind_a_task_barrier_finds_operators_that_hold_nothing() -> None:
    task = sums(parallelism=1)
    task.add_split("rows", table(1))
    task.request_barrier()
    taken = []
    for each in task.tasks:
        each._events.listener.snapshot_taken = lambda id, snapshot: taken.append((id, snapshot))  # type: ignore[method-assign]
        if each.readers:
            each.trigger(CheckpointId(0, 100), BarrierKind.CHECKPOINT, 0, 0.0)
    assert drain(task) == [(1, 2), (2, 1), (3, 1)]
    task.add_split("rows", table(5))
    task.no_more_splits("rows")
    assert drain(task) == [(1, 6), (2, 5), (3, 5)]
    assert {id for id, _ in taken} == {CheckpointId(0, 100)}
    [cursors] = [snapshot.tables["rows"] for _, snapshot in taken if "rows" in snapshot.tables]
    assert cursors.column("ordinal").to_pylist() == [1] * 8
    held = {name: found.num_rows for _, snapshot in taken for name, found in snapshot.tables.items() if name != "rows"}
    assert not any(held.values()), held
