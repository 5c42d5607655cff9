"""A job on Ray whose newest checkpoint holds what was in flight moves to another parallelism by itself."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.actors.job.launch import run
from penstock.actors.protocol.settings import Checkpoints
from penstock.actors.storage.log import read_log_in
from penstock.coordinator.model.manifest import Manifest
from penstock.coordinator.restore.stored_channels import flights
from penstock.engine.planner.graph import Order
from support.ray_jobs import expected, gather_flow, written

pytestmark = pytest.mark.ray

PATIENCE = 60.0


@pytest.mark.parametrize("order", ["deterministic", "arrival"])
def test_rows_in_flight_go_on_at_another_parallelism(
    order: Order, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PENSTOCK_VALIDATE", "1")
    state, out = tmp_path / "state", tmp_path / "out"
    kept = Checkpoints(state, every="200ms", alignment="unaligned", retained=99)
    job = run(gather_flow(out, order=order), parallelism=2, checkpoints=kept, rate=2000.0)
    job.checkpoint(PATIENCE)
    job.shutdown()
    with caplog.at_level(logging.WARNING):
        job = run(gather_flow(out, order=order), parallelism=3, checkpoints=kept, rate=8000.0)
    job.wait(PATIENCE)
    assert "parallelism 2; it goes on there" in caplog.text
    manifests = [entry for entry in read_log_in(str(state), job.name) if isinstance(entry, Manifest)]
    shapes = {one.checkpoint.generation: max(one.parallelism.values()) for one in manifests}
    assert shapes == {1: 2, 2: 2, 3: 3}
    moved = [one for one in manifests if one.checkpoint.generation == 2]
    assert not flights(moved[-1])
    assert written(out).select(expected().column_names).equals(expected())
