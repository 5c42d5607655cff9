"""What an operator holds at task barriers comes at the end of the data, and where that is the caller says."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask

SCHEMA = pa.schema([("k", pa.int64())])
WINDOWS = [[1], [5, 6, 7, 8, 9], [1, 2]]


def rows_until(task: PlanTask) -> list[int]:
    """The keys up to the next barrier, or the end."""
    rows = []
    while (batch := task.read(30)) is not None:
        rows += batch.column("k").to_pylist()
    return rows


HOLDING = {
    "aggregate": lambda first: first.aggregate(["k"], n="count", at_barrier="hold"),
    "sort": lambda first: first.sort("k", at_barrier="hold"),
    "top": lambda first: first.top_n(3, "k", at_barrier="hold"),
    "shuffle": lambda first: first.shuffle(10, seed=1, at_barrier="hold").sort("k", at_barrier="hold"),
}


@pytest.mark.parametrize("ahead", [False, True], ids=["one by one", "queued ahead"])
@pytest.mark.parametrize("degree", [0, 2])
@pytest.mark.parametrize("holding", HOLDING)
def test_what_is_held_comes_behind_all_windows_also_if_no_row_is_needed_before(holding, degree, ahead):
    stream = HOLDING[holding](Flow("held").from_split_sets(SCHEMA, name="rows").limit(4))
    task = PlanTask(stream, degree=degree, parallelism=2)
    found = []
    for keys in WINDOWS:
        task.add_split("rows", pa.table([keys], schema=SCHEMA))
        task.request_barrier()
        if not ahead:
            found.append(rows_until(task))
    found += [rows_until(task) for _ in WINDOWS[len(found) :]]
    assert task.state == "barrier"
    task.no_more_splits("rows")
    assert found == [[], [], []]
    assert rows_until(task) == [1, 5, 6, 7][: 3 if holding == "top" else 4]
    assert task.state == "finished"
