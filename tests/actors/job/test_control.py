"""Connections for orders and reports that are lost while a job runs on Ray: nobody notices but the log."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray

from penstock.actors.job.launch import run
from penstock.actors.protocol.settings import Checkpoints
from support.ray_jobs import expected, gather_flow, written

pytestmark = [pytest.mark.ray, pytest.mark.chaos]

PATIENCE = 120.0
CUTS = 6


def test_checkpoints_go_on_and_no_task_is_lost_when_connections_for_orders_are_cut(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_VALIDATE", "1")
    flow = gather_flow(tmp_path / "out", rate=1500.0)
    with run(flow, parallelism=2, checkpoints=Checkpoints(tmp_path / "state", every="50ms")) as job:
        drivers = job._backend._drivers
        for _ in range(CUTS):
            before = job.status().checkpoints_completed
            ray.get([driver.cut.remote(streams=False) for driver in drivers.values()])
            job.wait_until(lambda status, before=before: status.checkpoints_completed >= before + 2, PATIENCE)
        status = job.wait(PATIENCE).status()
        assert status.state == "finished"
        assert status.restarts == 0
    assert written(tmp_path / "out").select(expected().column_names).equals(expected())
