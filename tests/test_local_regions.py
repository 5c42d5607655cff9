"""Two flows in one job share no exchange: while one restarts, again and again, the rows of the other become visible."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.coordinator.model.events import TaskLost
from penstock.engine.core.identity import TaskId

PATIENCE = 60.0
ROWS, SPLITS = 200, 60
RATE = 500.0
"""Of each flow, per second: enough for 24 seconds. The run that follows reads the rest at once."""
SCHEMA = pa.schema([("n", pa.int64())])
LEFT = TaskId("left", 0)


def two_flows(folder: Path, rate: float, order: str = "deterministic") -> ps.Flow:
    flow = ps.Flow("two", lanes=4, order=order)
    for name in ("left", "right"):
        tables = [pa.table({"n": range(split * ROWS, (split + 1) * ROWS)}) for split in range(SPLITS)]
        flow.from_tables(tables, rate=rate, name=name).gather().write_parquet(folder / name, name=f"{name}-out")
    return flow


def written(folder: Path) -> list[int]:
    return sorted(ds.dataset(folder, SCHEMA, format="parquet").to_table()["n"].to_pylist())


def lose(job: ps.Job) -> None:
    """As if the process of one that reads the left source had died."""
    restarts = job.status().restarts
    job._request(TaskLost(LEFT, job.statistics()[LEFT].attempt, "the test says so", 0.0))
    job.wait_until(lambda status: status.restarts > restarts, PATIENCE)


@pytest.mark.parametrize("order", ["deterministic", "arrival"])
def test_rows_of_one_flow_become_visible_while_the_other_restarts(tmp_path: Path, order: str) -> None:
    every = ps.Checkpoints(tmp_path / "state", every="50ms", restart_delay=2.0)
    with ps.run_local(two_flows(tmp_path, RATE, order), parallelism=2, checkpoints=every) as job:
        job.checkpoint(PATIENCE)
        for _ in range(2):
            seen = len(written(tmp_path / "right"))
            lose(job)
            grown = 0
            while job.status().state == "restarting":
                grown = max(grown, len(written(tmp_path / "right")) - seen)
                status = job.status()
            assert grown > 0, "rows became visible while the other flow did not run"
            assert status.latest_whole < status.latest_completed
            taken = job.checkpoint(PATIENCE)
            assert taken > status.latest_completed, "one of the whole job"
            shown = next(one for one in job.checkpoints().history if one.checkpoint == taken)
            assert shown.carried == 0
    assert_rest_is_read(tmp_path, order, every)


def test_run_that_follows_goes_on_from_a_checkpoint_that_one_flow_took_no_part_in(tmp_path: Path) -> None:
    every = ps.Checkpoints(tmp_path / "state", every="50ms", restart_delay=30.0)
    with ps.run_local(two_flows(tmp_path, RATE), parallelism=2, checkpoints=every) as job:
        job.checkpoint(PATIENCE)
        lose(job)
        completed = job.status().checkpoints_completed
        job.wait_until(lambda status: status.checkpoints_completed > completed + 2, PATIENCE)
        assert job.checkpoints().completed.carried == 3
    assert_rest_is_read(tmp_path, "deterministic", every)


def assert_rest_is_read(folder: Path, order: str, checkpoints: ps.Checkpoints) -> None:
    """By another run, which leaves no row out and repeats none."""
    rest = ps.run_local(two_flows(folder, 0.0, order), parallelism=2, checkpoints=checkpoints).wait(PATIENCE)
    assert rest.audit().clean
    for name in ("left", "right"):
        assert written(folder / name) == list(range(ROWS * SPLITS))
