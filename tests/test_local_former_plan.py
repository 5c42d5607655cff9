"""A job whose newest checkpoint is of another plan of the same flow, as another version of Penstock has made it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.actors.protocol import translate
from penstock.actors.storage.log import read_log_in
from penstock.coordinator.model.manifest import Manifest
from penstock.coordinator.restore.stored_channels import flights
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.runtime import driver_shape

PATIENCE = 60.0
ROWS = 1_500


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.02)
    return batch


def flow_into(out: Path) -> ps.Flow:
    flow = ps.Flow("plans", lanes=4)
    parts = [pa.table({"x": range(first, first + 10)}) for first in range(0, ROWS, 10)]
    rows = flow.from_tables(parts, name="rows").partition_by("x", name="by-x")
    rows.map_batches(slow, schema=pa.schema({"x": pa.int64()}), batch_size=10, name="slow").gather().write_parquet(out)
    return flow


def killed(folder: Path) -> None:
    """A job that was broken off with rows in flight, behind its exchange."""
    checkpoints = ps.Checkpoints(folder / "state", every=None)
    with ps.run_local(flow_into(folder / "out"), parallelism=2, checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.state == "running", PATIENCE)
        time.sleep(0.3)
        job.checkpoint(PATIENCE)
    entries = read_log_in(str(folder / "state"), "plans")
    newest = [entry for entry in entries if isinstance(entry, Manifest)][-1]
    assert flights(newest)


def go_on(folder: Path) -> Any:
    return ps.run_local(flow_into(folder / "out"), parallelism=2, checkpoints=ps.Checkpoints(folder / "state"))


def test_job_goes_on_in_its_own_folder_where_each_driver_has_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(translate, "_shape", lambda plan: "of another version")
        killed(tmp_path)
    with go_on(tmp_path) as job:
        job.wait(PATIENCE)
        assert job.status().restarts == 0
    assert sorted(pq.read_table(tmp_path / "out").column("x").to_pylist()) == list(range(ROWS))


def test_job_is_refused_where_rows_are_in_flight_that_have_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = driver_shape._port
    with monkeypatch.context() as patched:
        patched.setattr(driver_shape, "_port", lambda *given: driver_shape.PartShape(port(*given).name, "another"))
        killed(tmp_path)
    with pytest.raises(ConfigurationError, match="in flight where this version of Penstock plans") as raised:
        go_on(tmp_path)
    assert "'by-x'" in raised.value.message
    assert "with the version that it ran with" in raised.value.remedy
    assert "aligned=True" in raised.value.remedy
