"""SIGTERM to a driver's process: a checkpoint first, then its task goes on from it in another process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import penstock as ps
from support.processes import wait_end
from support.ray_jobs import expected, gather_flow, written

pytestmark = [pytest.mark.ray, pytest.mark.chaos]
PATIENCE = 120.0


@pytest.mark.parametrize("spares", [0, 1])
def test_task_of_a_process_that_is_told_to_end_goes_on_from_a_checkpoint_that_follows_the_notice(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spares: int
) -> None:
    monkeypatch.setenv("PENSTOCK_VALIDATE", "1")
    checkpoints = ps.Checkpoints(tmp_path / "state", every=None)
    runtime = ps.Runtime(preemption="60s", spares=spares)
    flow = gather_flow(tmp_path / "out", rate=500.0)
    with ps.run(flow, parallelism=2, address=cluster, checkpoints=checkpoints, runtime=runtime) as job:
        job.wait_until(lambda status: status.state == "running", PATIENCE)
        before = job.identities()
        task, identity = next(iter(before.items()))
        os.kill(identity.pid, signal.SIGTERM)
        status = job.wait_until(lambda status: status.restarts > 0, PATIENCE)
        assert status.checkpoints_completed == 1, "the one that the notice asked for"
        wait_end(identity.pid, PATIENCE)
        done = job.wait_until(lambda status: status.state == "running", PATIENCE)
        after = job.identities()
        assert after[task].pid != identity.pid
        assert [each for each in before if after[each].pid != before[each].pid] == [task], "others stay"
        done = job.wait(PATIENCE)
        assert done.status().restarts == 1
        assert done.audit().clean
    assert written(tmp_path / "out").select(expected().column_names).equals(expected())
