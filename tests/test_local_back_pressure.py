"""Checkpoints of jobs that are slow, paced, or over in part: one each interval, with the settings that users get."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.coordinator.model.statistics import JobStatus

INTERVAL = 0.2
ENOUGH = 8
"""Checkpoints in a row. A round of these flows takes longer than all the patience."""
PATIENCE = 60.0
ROUND = 262_144
"""Rows of a lane that stand together, as in a flow that nobody paces."""
NUMBERS = pa.schema({"v": pa.int64()})


def settings(folder: Path) -> ps.Checkpoints:
    return ps.Checkpoints(folder / "state", every=INTERVAL, timeout="20s")


def numbers(rows: int, first: int = 0) -> pa.Table:
    return pa.table({"v": pa.array(range(first, first + rows), pa.int64())})


def keyed(rows: int, first: int = 0) -> pa.Table:
    """Fifty rows of each key."""
    return numbers(rows).append_column("k", pa.array([first + row // 50 for row in range(rows)], pa.int64()))


class Slow:
    """A function of a user's that takes 0.1 ms for a row."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(batch.num_rows * 0.0001)
        return batch


def check_that_they_go_on(job: ps.Job) -> None:
    """So many checkpoints more complete, and none fails."""
    enough = job.checkpoints().counts.completed + ENOUGH
    job.wait_until(lambda status: status.is_over or status.checkpoints_completed >= enough, PATIENCE)
    counts = job.checkpoints().counts
    assert job.status().state == "running"
    assert counts.completed >= enough, job.why()
    failed = [each.failure for each in job.checkpoints().history if each.status == "failed"]
    assert (counts.failed, failed) == (0, [])


def some_ended(status: JobStatus) -> bool:
    """Whether the data of some task have ended."""
    return any(state in ("data ended", "finished") for state in status.tasks.values())


def paced(flow: ps.Flow) -> ps.Stream:
    """A round takes 105 s."""
    return flow.from_tables([numbers(300_000)] * 8, name="rows", rate=20_000)


def slow(flow: ps.Flow) -> ps.Stream:
    """All rows wait for the function, for 0.1 s a call and 100 s in all."""
    return flow.from_tables([numbers(1000)] * 1000, name="rows").map_batches(Slow, NUMBERS)


def slow_behind(flow: ps.Flow) -> ps.Stream:
    """The same behind an exchange, whose credit is used up."""
    return flow.from_tables([numbers(1000)] * 1000, name="rows").gather().map_batches(Slow, NUMBERS)


@pytest.mark.parametrize("shape", [paced, slow, slow_behind])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_checkpoint_each_interval_whatever_the_rates(tmp_path, shape, parallelism):
    flow = ps.Flow("pressed", round_rows=ROUND)
    shape(flow).gather().write_parquet(tmp_path / "out")
    with ps.run_local(flow, parallelism=parallelism, checkpoints=settings(tmp_path)) as job:
        check_that_they_go_on(job)


def test_a_savepoint_does_not_wait_for_a_round(tmp_path):
    flow = ps.Flow("pressed", round_rows=ROUND)
    paced(flow).gather().write_parquet(tmp_path / "out")
    with ps.run_local(flow, parallelism=2, checkpoints=ps.Checkpoints(tmp_path / "state", every=None)) as job:
        job.savepoint(tmp_path / "mine", timeout=PATIENCE)
        job.stop(timeout=PATIENCE)
        assert job.status().state == "stopped"


LONG = 2_000_000
SHAPES = {
    "plain": lambda rows: rows.filter(ps.field("v") >= 0),
    "aggregate": lambda rows: rows.aggregate(["k"], n=("v", "count")),
    "stream_aggregate": lambda rows: rows.stream_aggregate(by=["k"], n=("v", "count")),
}


def uneven(folder: Path, shape: str, rate: float, lane: int = LONG) -> ps.Flow:
    """One of two subtasks ends at once; an ordered merge follows."""
    flow = ps.Flow("uneven", round_rows=ROUND)
    rows = flow.from_tables([keyed(1000), keyed(lane, 10_000_000)], name="rows", rate=rate)
    SHAPES[shape](rows).gather().write_parquet(folder)
    return flow


def united(folder: Path, rate: float) -> ps.Flow:
    """A short input whose rows leave at its end, beside a long one."""
    flow = ps.Flow("uneven", round_rows=ROUND)
    short = flow.from_tables([keyed(1000)], name="short").aggregate(["k"], n=("v", "count"))
    long = flow.from_tables([keyed(LONG, 10_000_000)] * 2, name="long", rate=rate).project("k", n=ps.field("v"))
    short.gather().union(long.gather()).write_parquet(folder)
    return flow


@pytest.mark.parametrize("shape", [*SHAPES, "united"])
def test_an_early_end_of_one_subtask_gives_up_no_checkpoint_of_the_others(tmp_path, shape):
    out = tmp_path / "out"
    flow = united(out, 20_000) if shape == "united" else uneven(out, shape, 20_000)
    with ps.run_local(flow, parallelism=2, checkpoints=settings(tmp_path)) as job:
        assert some_ended(job.wait_until(some_ended, PATIENCE))
        check_that_they_go_on(job)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_job_of_which_one_subtask_has_ended_stops_behind_a_gather_and_goes_on(tmp_path, shape):
    lane = 100_000
    with ps.run_local(uneven(tmp_path / "whole", shape, 0.0, lane)) as job:
        job.wait(PATIENCE)
    flow = uneven(tmp_path / "out", shape, 20_000, lane)
    job = ps.run_local(flow, parallelism=2, checkpoints=settings(tmp_path))
    job.wait_until(some_ended, PATIENCE)
    saved = job.stop(timeout=PATIENCE)
    assert job.status().state == "stopped"
    again = uneven(tmp_path / "out", shape, 0.0, lane)
    with ps.run_local(again, parallelism=2, checkpoints=tmp_path / "more", from_snapshot=saved.path) as job:
        assert job.wait(PATIENCE).audit().clean
    found, whole = (ds.dataset(tmp_path / each).to_table().sort_by([("k", "ascending")]) for each in ("out", "whole"))
    assert found.equals(whole)
