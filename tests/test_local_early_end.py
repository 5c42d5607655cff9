"""Sources that end long before others: checkpoints go on, and what is restored neither ends again nor is misplaced."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps

SPLITS, ROWS = 40, 25
RATE, FAST = 400.0, 1e9
"""Rows per second of the long source: in the run that is stopped, and elsewhere."""
LONG = [
    pa.table({"key": pa.array([row % 7 for row in range(ROWS)], pa.int64()), "x": pa.array(range(s, s + ROWS))})
    for s in range(0, SPLITS * ROWS, ROWS)
]
SHORT = [pa.table({"key": pa.array(range(5), pa.int64()), "name": [f"name {key}" for key in range(5)]})]


def joined(flow: ps.Flow) -> ps.Stream:
    """A build side that has ended when the first row is probed."""
    short = flow.from_tables(SHORT, name="short").gather()
    return flow.from_tables(LONG, name="long", rate=RATE).gather().hash_join(short, on=["key"], how="left")


def grouped_build(flow: ps.Flow) -> ps.Stream:
    """What the short source gives at its end must not be given again."""
    short = flow.from_tables(SHORT, name="short").gather().aggregate(by=["key"], n="count", most=("name", "max"))
    return flow.from_tables(LONG, name="long", rate=RATE).gather().hash_join(short, on=["key"], how="left")


def united(flow: ps.Flow) -> ps.Stream:
    short = flow.from_tables([table.select(["key", "x"]) for table in LONG[:2]], name="short")
    return flow.from_tables(LONG, name="long", rate=RATE).union(short).gather()


def uneven(flow: ps.Flow) -> ps.Stream:
    """One lane has nearly all rows: the subtasks of one source end at very different times."""
    tables = [pa.concat_tables(LONG)] + [LONG[number] for number in range(3)]
    return flow.from_tables(tables, name="long", rate=RATE).gather()


SHAPES = (joined, grouped_build, united, uneven)


def flow_of(shape, name: str) -> ps.Flow:
    flow = ps.Flow(name, lanes=4)
    shape(flow).collect("out")
    return flow


@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_checkpoints_complete_after_one_source_has_ended_and_a_restart_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape, again: int
) -> None:
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 5)
    expected = ps.run_local(flow_of(shape, f"{shape.__name__}-whole"), parallelism=1, rate=FAST).result("out")
    name = f"{shape.__name__}-stopped-{again}"
    checkpoints = ps.Checkpoints(tmp_path / "state", every=0.05)
    with ps.run_local(flow_of(shape, name), parallelism=2, checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 3, timeout=60)
        read = {source.operator: source.rows for task in job.statistics().values() for source in task.sources}
    assert job.status().state != "finished", read
    rest = ps.run_local(flow_of(shape, name), parallelism=again, rate=FAST, checkpoints=checkpoints).wait(60)
    assert rest.status().restored_from is not None
    assert rest.result("out").equals(expected)
    assert rest.audit().clean
