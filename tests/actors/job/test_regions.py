"""On Ray: a process of one flow dies and comes back late; rows of another flow of the job become visible meanwhile."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from penstock.actors.job.launch import run
from penstock.actors.protocol.settings import Checkpoints
from penstock.engine.core.identity import TaskId
from penstock.engine.flow.flow import Flow
from support.ray_jobs import ROWS_PER_SPLIT, SPLITS, tables

pytestmark = pytest.mark.ray

PATIENCE = 90.0


def two_flows(folder: Path, rate: float) -> Flow:
    flow = Flow("two", lanes=4)
    for name in ("left", "right"):
        flow.from_tables(tables(), rate=rate, name=name).gather().write_parquet(folder / name, name=f"{name}-out")
    return flow


def written(folder: Path) -> list[int]:
    schema = pa.schema([("n", pa.int64())])
    return sorted(ds.dataset(folder, schema, format="parquet").to_table()["n"].to_pylist())


@pytest.mark.chaos
def test_rows_of_one_flow_become_visible_while_a_process_of_the_other_is_replaced(cluster: str, tmp_path: Path) -> None:
    every = Checkpoints(tmp_path / "state", every="100ms", restart_delay=3.0)
    job = run(two_flows(tmp_path, 400.0), parallelism=2, checkpoints=every)
    try:
        job.checkpoint(PATIENCE)
        seen, victim = len(written(tmp_path / "right")), TaskId("left", 0)
        job.kill_task(victim)
        status = job.wait_until(lambda status: status.restarts > 0, PATIENCE)
        grown = 0
        while job.status().state == "restarting":
            grown = max(grown, len(written(tmp_path / "right")) - seen)
            status = job.status()
        assert grown > 0
        assert status.latest_whole < status.latest_completed
        assert job.checkpoint(PATIENCE) > status.latest_completed
    finally:
        job.shutdown()
    rest = run(two_flows(tmp_path, 0.0), parallelism=2, checkpoints=every)
    assert rest.wait(PATIENCE).audit().clean
    rest.shutdown()
    for name in ("left", "right"):
        assert written(tmp_path / name) == list(range(SPLITS * ROWS_PER_SPLIT))
