"""A slice holds: a plan that makes much of little gives the thread back within one, so that others have their turns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.scheduler.serial import SerialScheduler

ROWS = 6_000
"""Of one key on either side of a join: 36 M rows, or some five hundred pieces."""
TURNS = 12
"""In which a tiny plan beside a busy one is done: half of them are the other's."""


def much_of_little(kind: str):
    """A stream that emits no row of the many that it makes, and its splits."""
    flow = Flow("much")
    if kind == "unnest":
        offsets = pa.array(np.arange(ROWS + 1, dtype=np.int32) * ROWS)
        lists = pa.ListArray.from_arrays(offsets, pa.array(np.zeros(ROWS * ROWS, dtype=np.int8)))
        table = pa.table({"k": np.zeros(ROWS, dtype=np.int64), "l": lists})
        return flow.from_split_sets(table.schema, name="left").unnest("l").filter("k < 0"), {"left": table}
    table = pa.table({"k": np.zeros(ROWS, dtype=np.int64), "v": np.arange(ROWS)})
    left, right = (flow.from_split_sets(table.schema, name=name) for name in ("left", "right"))
    join = left.merge_join if kind == "merge join" else left.hash_join
    # a condition on both sides: of one alone the readers would leave the rows out
    return join(right, on=["k"]).filter("v + v_right < 0"), {"left": table, "right": table}


def filtered(task: PlanTask) -> int:
    """Rows that have come to the filter at the end."""
    return sum(each.rows_in for found in task.statistics() for each in found.operators if "filter" in each.operator)


@pytest.mark.parametrize("kind", ["unnest", "merge join", "hash join"])
def test_tiny_plan_has_its_turns_beside_one_that_makes_much_of_little(kind: str) -> None:
    """It waited for nine seconds. Here no clock is asked: the turns of a serial scheduler are counted."""
    scheduler = SerialScheduler()
    stream, splits = much_of_little(kind)
    busy = PlanTask(stream, scheduler=scheduler, eager=True)
    for source, table in splits.items():
        busy.add_split(source, table)
    drained = busy.request_barrier()
    while not filtered(busy):
        scheduler.turn(quanta=1)
    schema = pa.schema([("k", pa.int64())])
    tiny = PlanTask(Flow("tiny").from_split_sets(schema, name="rows").filter("k > 0"), scheduler=scheduler, eager=True)
    for _ in range(5):
        tiny.add_split("rows", pa.table({"k": [1]}))
        reached = tiny.request_barrier()
        turns = 0
        while not reached.done():
            scheduler.turn(quanta=1)
            turns += 1
        assert turns <= TURNS
        assert tiny.read().num_rows == 1
        assert tiny.read() is None
    assert 0 < filtered(busy) < ROWS * ROWS, "it is in the middle of its work"
    assert not drained.done()
    busy.cancel()
    tiny.cancel()
    scheduler.shutdown()
