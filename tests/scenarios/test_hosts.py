"""A job across two hosts, encrypted, whose cable is cut for a while and healed: every row once, in the same order."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.hosts import two_hosts
from support.processes import Household
from support.ray_jobs import expected, written

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(600)]
TESTS = str(Path(__file__).parent.parent)
PORT = 6379

SCRIPT = """
import sys
import penstock as ps
from support.ray_jobs import gather_flow

if __name__ == "__main__":
    address, out = sys.argv[1:]
    checkpoints = ps.Checkpoints(out + "-state", every="500ms", max_restarts=100)
    runtime = ps.Runtime(heartbeat="5s", lease="1m", reconnect="5s", tls=True, spread=True)
    job = ps.run(gather_flow(out, 200.0), parallelism=3, address=address, checkpoints=checkpoints, runtime=runtime)
    job.wait_until(lambda status: status.checkpoints_completed >= 2, 120)
    print("hosts", *sorted({each.node for each in job.identities().values()}), flush=True)
    job.wait_until(lambda status: status.restarts > 0, 120)
    print("noticed", flush=True)
    print(job.wait(240).audit(), flush=True)
"""


def test_job_across_two_hosts_survives_a_cable_that_is_cut_for_a_while(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "out"
    path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": path, "RAY_ADDRESS": None, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": None}
    with two_hosts() as (first, second), Household(tmp_path) as household:
        ray = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", "--num-cpus=2")
        memory = "--object-store-memory=100000000"
        head = (f"--node-ip-address={first.address}", "--head", f"--port={PORT}", "--include-dashboard=false", memory)
        address = f"{first.address}:{PORT}"
        started = household.start(*first.command(*ray, *head), cwd=tmp_path, **environment)
        started.wait_line("Ray runtime started")
        worker = (f"--node-ip-address={second.address}", f"--address={address}", memory)
        household.start(*second.command(*ray, *worker), cwd=tmp_path, **environment).wait_line("Ray runtime started")

        script = household.start(
            *first.command(sys.executable, "script.py", address, str(out)), cwd=tmp_path, **environment
        )
        assert script.wait_line("^hosts").split()[1:] == [first.address, second.address]
        second.plug(False)
        script.wait_line("noticed")
        second.plug(True)
        done = script.wait(270)
        assert done.returncode == 0, str(done)
        assert "gaps 0, repeats 0" in done.stdout
        assert written(out).select(expected().column_names).equals(expected())
