"""A plan in this process has the lanes of its flow: its rows and their order are those of a job, at any parallelism."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import FlowError
from penstock.engine.local.plan_task import PlanTask

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def table(keys, values) -> pa.Table:
    return pa.table([keys, values], schema=SCHEMA)


SETS = [
    (table([9, 1], [1, 2]), table([9], [10])),
    (table([1, 3], [3, 4]), table([3], [20])),
    (table([5, 9], [5, 6]), table([5], [6])),
]
SHAPES = {
    "groups by neighbours": lambda left, right: left.stream_aggregate(["k"], n=("v", "sum")),
    "groups": lambda left, right: left.aggregate(["k"], mean=("v", "mean")),
    "parts": lambda left, right: left.partition_by("k"),
    "join by part": lambda left, right: left.partition_by("k").merge_join(right.partition_by("k"), on=["k"]),
    "join by split": lambda left, right: left.sort("k").merge_join(right.sort("k"), on=["k"], how="left"),
    "union": lambda left, right: left.union(right),
    "shuffled": lambda left, right: left.shuffle(4, seed=1),
}


def fed(build) -> tuple[ps.Flow, ps.Stream, list[dict[str, pa.Table]]]:
    """The flow, the end of it, and what the sources that lead there get."""
    flow = ps.Flow("fed")
    stream = build(*(flow.from_split_sets(SCHEMA, name=name) for name in ("left", "right")))
    read = {source for node in flow.nodes for source in node.inputs}
    sets = ({"left": left, "right": right} for left, right in SETS)
    return flow, stream, [{name: split for name, split in each.items() if name in read} for each in sets]


def in_a_plan(build, **options) -> list[tuple[int, ...]]:
    _, stream, sets = fed(build)
    task = PlanTask(stream, **options)
    for split_set in sets:
        for source, split in split_set.items():
            task.add_split(source, split)
    task.request_barrier()
    rows = []
    while (batch := task.read(30)) is not None:
        rows += [tuple(row.values()) for row in batch.to_pylist()]
    task.cancel()
    return rows


def in_a_job(build) -> list[tuple[int, ...]]:
    flow, stream, sets = fed(build)
    stream.collect("rows")
    with ps.run_local(flow) as job:
        for split_set in sets:
            job.add_splits(split_set)
        job.no_more_splits()
        job.wait(30)
        return [tuple(row.values()) for row in job.result("rows").to_pylist()]


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_and_their_order_are_those_of_a_job_at_any_parallelism(shape):
    build = SHAPES[shape]
    wanted = in_a_job(build)
    for parallelism in (1, 2, 3):
        assert in_a_plan(build, parallelism=parallelism) == wanted, f"parallelism {parallelism}"
    assert in_a_plan(build, parallelism=3, degree=2) == wanted


def test_plan_has_no_more_subtasks_than_its_flow_has_lanes():
    rows = ps.Flow("narrow", lanes=2).from_split_sets(SCHEMA, name="rows")
    with pytest.raises(FlowError, match="the flow's 2 lanes"):
        PlanTask(rows, parallelism=3)
