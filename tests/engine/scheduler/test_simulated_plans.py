"""Real operators under the simulated scheduler: a plan's result does not depend on the interleaving."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.sources.memory import MemorySource
from support.simulated_scheduler import SimulatedScheduler

LEFT = pa.table({"k": pa.array(range(60), pa.int64()), "v": pa.array(range(60), pa.int64())})
RIGHT = pa.table({"k": pa.array(range(0, 60, 2), pa.int64()), "w": pa.array(range(30), pa.int64())})
SETS = 6


def split_of(table: pa.Table):
    [split] = MemorySource((table,)).splits()
    return split


def merge_join(flow: Flow):
    left, right = sources(flow)
    return left.merge_join(right, on=["k"], how="left").stream_aggregate(by=["k"], total=("w", "sum"))


def hash_join(flow: Flow):
    left, right = sources(flow)
    return left.hash_join(right, on=["k"], how="inner").sort("k")


def union(flow: Flow):
    left, right = sources(flow)
    return left.project("k").union(right.project("k")).limit(40)


def sources(flow: Flow):
    return tuple(flow.from_tables([table.slice(0, 0)], name=name) for name, table in (("left", LEFT), ("right", RIGHT)))


def run(build, scheduler: SimulatedScheduler) -> list[pa.Table]:
    """Several split sets on one task, queued ahead, each with its barrier; the rows of each."""
    task = PlanTask(build(Flow("plan")), scheduler=scheduler)
    for start in range(SETS):
        for name, table in (("left", LEFT), ("right", RIGHT)):
            task.add_split(name, split_of(table.slice(start * 3)))
        task.request_barrier()
    results = []
    for _ in range(SETS):
        batches = []
        while (found := task.next())[0] is not None or found[1] is not None:
            batch, future = found
            if future is not None:
                scheduler.run(future.done)
            else:
                batches.append(batch)
        results.append(pa.Table.from_batches(batches, task.schema))
    scheduler.shutdown()
    return results


@pytest.mark.parametrize("build", [merge_join, hash_join, union])
def test_plan_gives_the_same_rows_in_every_interleaving(build) -> None:
    expected = run(build, SimulatedScheduler(0, workers=1, stray=0.0))
    assert expected[0].num_rows > 0
    for seed in range(1, 40):
        assert run(build, SimulatedScheduler(seed, workers=1 + seed % 4, stray=0.1 * (seed % 2))) == expected
