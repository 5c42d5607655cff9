"""The whole cluster is killed, head node and all: the same script, run again, goes on from the last checkpoint."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from support.processes import Household
from support.ray_jobs import expected, written

pytestmark = [pytest.mark.ray, pytest.mark.chaos]
TESTS = str(Path(__file__).parent.parent)
PATIENCE = 60.0

SCRIPT = """
import sys
import penstock as ps
from support.ray_jobs import gather_flow

if __name__ == "__main__":
    out, rate, resume = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    checkpoints = ps.Checkpoints(out + "-state", every="200ms")
    job = ps.run(gather_flow(out, rate), parallelism=2, checkpoints=checkpoints, resume=resume)
    job.wait_until(lambda status: status.checkpoints_completed >= 2, 120)
    print("two checkpoints", flush=True)
    print(job.wait(120).audit())
    print("restored from", job.status().restored_from)
"""


def test_script_that_is_run_again_after_the_loss_of_the_whole_cluster_goes_on(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "out"
    path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
    with Household(tmp_path) as household:
        first = household.python("script.py", str(out), "200", "auto", cwd=tmp_path, PYTHONPATH=path, RAY_ADDRESS=None)
        first.wait_line("two checkpoints")
        first.wait_for(lambda: any(out.glob("*.parquet")))
        while left := household.alive():  # the script, Ray's head and node, every actor
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            household.wait_gone(PATIENCE)
        assert 0 < written(out).num_rows < expected().num_rows

        second = household.python("script.py", str(out), "0", "must", cwd=tmp_path, PYTHONPATH=path, RAY_ADDRESS=None)
        done = second.wait()
        assert done.returncode == 0, str(done)
        assert "gaps 0, repeats 0" in done.stdout
        assert "restored from None" not in done.stdout
        assert written(out).select(expected().column_names).equals(expected())
