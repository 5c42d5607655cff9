"""A process that is to go, by SIGTERM or with its node: a checkpoint first, then its task goes on elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
from support import drained_node
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


def test_tasks_of_a_node_that_ray_drains_go_on_elsewhere_from_a_checkpoint_that_follows(tmp_path: Path) -> None:
    environ = os.environ | {"PENSTOCK_VALIDATE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, drained_node.__file__, str(tmp_path)]
    made = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["saved"] == 1, "the checkpoint that the notice asked for"
    assert (facts["restarts"], facts["clean"]) == (1, True)
    assert (facts["left"] > 0, facts["stayed"], facts["moved"]) == (True, 0, facts["left"])
    assert written(tmp_path / "out").select(expected().column_names).equals(expected())
