"""Jobs on a cluster that somebody else started: submitted to it, or joined by scripts.

The cluster is a real head node with a dashboard, on ports and in a folder of its own, started as a user starts one. It
shares the folder of no other cluster, so its traces mislead nobody (Ray notes the last cluster of a machine in a file).
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from support.processes import Household, Program
from support.ray_jobs import expected, written

ROOT = Path(__file__).parent.parent.parent
TESTS = ROOT / "tests"
BIN = Path(sys.executable).parent

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SCRIPT = """
import sys
import penstock as ps
from support.ray_jobs import gather_flow

if __name__ == "__main__":
    address, out, rate = sys.argv[1], sys.argv[2], float(sys.argv[3])
    flow = gather_flow(out, rate)
    try:
        job = ps.run(flow, address=address, checkpoints=ps.Checkpoints(out + "-state", every="200ms"))
        job.wait_until(lambda status: status.checkpoints_completed >= 2, 120)
        print("two checkpoints", flush=True)
        print(job.wait(120).audit())
        print("restored from", job.status().restored_from)
    except ps.errors.ConfigurationError as error:
        print("refused:", error)
        sys.exit(3)
"""


BEGINS = """
import sys
import time
from pathlib import Path
import penstock as ps
from support.ray_jobs import gather_flow

if __name__ == "__main__":
    out, way = sys.argv[1:]
    flow = gather_flow(out, rate=80)  # for two minutes, unless somebody ends it
    ps.run(flow, checkpoints=ps.Checkpoints(out + "-state", every="200ms"), detached=True)
    while not any(Path(out).glob("*.parquet")):
        time.sleep(0.1)
    print("rows are visible", flush=True)
    if way == "is stopped":
        time.sleep(3600)
"""

GOES_ON = """
import sys
import penstock as ps
from support import ray_jobs

if __name__ == "__main__":
    address, out, way = sys.argv[1:]
    job = ps.attach("gather", address=address)
    print("found", job.status().state)
    if way == "ends":
        job.kill_task(job.tasks()[0])
        job.wait_until(lambda status: status.restarts > 0 and status.state == "running", 120)
        options = {"checkpoints": out + "-other", "from_snapshot": job.stop(timeout=120).path}
    else:
        job.shutdown()
        options = {"checkpoints": out + "-state", "resume": "must"}
    print("committed", ray_jobs.written(out).num_rows)
    job = ps.run(ray_jobs.gather_flow(out), address=address, **options).wait(120)
    print("restored from", job.status().restored_from)
    print(job.audit())
"""


@dataclass(frozen=True)
class Head:
    """A running head node. ``environment``: what programs need to find it and nothing else."""

    household: Household
    address: str
    dashboard: str
    environment: dict[str, str]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; all are taken at once, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    # below /tmp itself: the names of Ray's sockets must be short
    with tempfile.TemporaryDirectory(prefix="ps-", dir="/tmp") as folder:
        environment = {
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "disabled",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
        }
        port, dashboard, agent, client = free_ports(4)
        options = (
            *("--head", "--block", "--disable-usage-stats", "--num-cpus=4", "--node-ip-address=127.0.0.1"),
            *("--object-store-memory=300000000", f"--port={port}", f"--ray-client-server-port={client}"),
            *("--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"),
        )
        with Household(tmp_path_factory.mktemp("head")) as household:
            ray = household.start(str(BIN / "ray"), "start", *options, **environment)
            ray.wait_line("Ray runtime started")
            yield Head(household, f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", environment)
            ray.popen.terminate()
            ray.wait(30.0)
            left = household.wait_gone(10.0)
        assert left == []


def upload(target: Path) -> Path:
    """A copy of the checkout as a user submits it: without what .gitignore and .rayignore name."""
    lines = [line for name in (".gitignore", ".rayignore") for line in (ROOT / name).read_text().splitlines()]
    patterns = [line.strip("/") for line in lines if line.strip() and not line.startswith("#")]
    return Path(shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*patterns)))


@pytest.mark.spark
def test_submitted_flights_job_joins_the_cluster_and_its_outputs_equal_what_spark_sql_computes(head, tmp_path):
    output = tmp_path / "out"
    copy = upload(tmp_path / "checkout")
    job = ("python", "-m", "penstock.jobs", "run", "flights", "--output", str(output))
    command = ("job", "submit", "--address", head.dashboard, "--working-dir", str(copy), "--", *job)
    done = head.household.start(str(BIN / "ray"), *command, cwd=tmp_path, **head.environment).wait(280)
    print(done)
    assert done.returncode == 0, str(done)
    for line in (
        f"using the Ray cluster at {head.address}",
        "features: 655,867 rows, equal to the reference",
        "daily: 1,095 rows, equal to the reference",
        "gaps 0, repeats 0",
    ):
        assert line in done.stdout, str(done)
    assert "Traceback" not in done.stdout + done.stderr, str(done)
    assert ds.dataset(output / "features").count_rows() == 655_867


def test_script_joins_a_cluster_and_a_second_one_with_its_job_name_is_refused_until_it_has_ended(head, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(name: str, rate: str) -> Program:
        command = (str(tmp_path / "script.py"), head.address, str(tmp_path / name), rate)
        return head.household.python(*command, cwd=tmp_path, **head.environment)

    first = start("first", "100")
    first.wait_line("two checkpoints")
    refused = start("second", "0").wait()
    assert refused.returncode == 3, str(refused)
    assert "a job named 'gather' is running on this cluster" in refused.stdout
    assert refused.stderr == ""
    assert not list((tmp_path / "second").glob("*")), "the refused job has left something in its output folder"

    first.interrupt()
    assert first.wait().returncode == 130
    done = start("first", "0").wait()
    assert done.returncode == 0, str(done)
    assert "restored from 1." in done.stdout
    assert "gaps 0, repeats 0" in done.stdout
    assert done.stderr == ""
    assert written(tmp_path / "first").select(expected().column_names).equals(expected())


@pytest.mark.parametrize("way", ["ends", "is stopped"])
def test_detached_job_of_a_submitted_script_is_gone_on_with_by_another_script(head, tmp_path, way):
    """The first script ends or is stopped. Its job loses a process, which is replaced, and goes on from a savepoint; or
    it is ended and goes on from its own checkpoints."""
    (submitted := tmp_path / "submitted").mkdir()
    (submitted / "begins.py").write_text(BEGINS)
    (tmp_path / "goes_on.py").write_text(GOES_ON)

    def ray_job(*arguments: str) -> Program:
        command = (str(BIN / "ray"), "job", arguments[0], "--address", head.dashboard, *arguments[1:])
        return head.household.start(*command, cwd=tmp_path, **head.environment)

    out, name = str(tmp_path / "out"), f"first-{way.replace(' ', '-')}"
    job = ("--working-dir", str(submitted), "--submission-id", name, "--", "python", "begins.py", out, way)
    first = ray_job("submit", *job)
    first.wait_line("rows are visible")
    if way == "is stopped":
        stopped = ray_job("stop", name).wait()
        assert stopped.returncode == 0, str(stopped)
    said = first.wait()
    assert f"Job '{name}' {'succeeded' if way == 'ends' else 'was stopped'}" in said.stdout, str(said)

    command = (str(tmp_path / "goes_on.py"), head.address, out, way)
    done = head.household.python(*command, cwd=tmp_path, **head.environment).wait()
    assert done.returncode == 0, str(done)
    generation = 2 if way == "ends" else 1  # a job that goes on from a savepoint counts on from its generation
    for line in ("found running", f"restored from {generation}.", "gaps 0, repeats 0"):
        assert line in done.stdout, str(done)
    assert 0 < int(done.stdout.partition("committed ")[2].split()[0]) < expected().num_rows, str(done)
    assert written(tmp_path / "out").select(expected().column_names).equals(expected())
