"""Processes that wait for a script's next job: what they do is what others do, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import ray

import penstock as ps
from penstock.actors.job.launch import run, warm
from penstock.actors.job.runtime import Runtime
from penstock.actors.job.warm_up import HOOK
from penstock.actors.job.warming import idle_workers, start_processes
from penstock.actors.protocol.settings import Checkpoints
from penstock.jobs.running import show_workers
from support.ray_jobs import expected, gather_flow, written

pytestmark = pytest.mark.ray

PATIENCE = 120.0
PROCESSES = 4
"""Of the flow: two readers, a writer, the coordinator."""


@pytest.fixture(autouse=True)
def pool(cluster: str) -> Iterator[None]:
    yield
    warm(0)
    wait_until_none_waits()


def filled(processes: int = PROCESSES) -> set[int]:
    assert warm(processes, wait=PATIENCE) >= processes
    return idle()


def idle() -> set[int]:
    return {each.pid for each in idle_workers()}


def wait_until_none_waits() -> None:
    """Those that were on their way when nobody wanted them any more come first, and are ended."""
    until = time.monotonic() + PATIENCE
    while idle():
        assert time.monotonic() < until
        threading.Event().wait(0.05)


def began(pid: int) -> float:
    """When a process was started, in seconds since the machine's start."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def is_of_pool(pid: int) -> bool:
    """Whether the process was started with the pool's environment."""
    return HOOK.encode() in Path(f"/proc/{pid}/environ").read_bytes()


def processes_of(job: Any) -> set[int]:
    return {identity.pid for identity in job.identities().values()} | {job.coordinator_process()}


def finish(job: Any, out: Path) -> None:
    assert job.wait(PATIENCE).audit().clean
    assert written(out).select(expected().column_names).equals(expected())


def test_job_runs_in_the_processes_that_wait_and_so_does_the_next(tmp_path: Path) -> None:
    for name in ("one", "two"):
        filled()
        start = uptime()
        with run(gather_flow(tmp_path / name, rate=20_000.0), parallelism=2) as job:
            assert all(is_of_pool(pid) and began(pid) < start for pid in processes_of(job))
            finish(job, tmp_path / name)


def test_job_that_wants_none_starts_cold_and_ends_those_that_wait(tmp_path: Path) -> None:
    waiting = filled(1)
    with run(gather_flow(tmp_path / "out", rate=20_000.0), runtime=Runtime(warm=0)) as job:
        assert not processes_of(job) & waiting
        finish(job, tmp_path / "out")
    wait_until_none_waits()


def test_job_takes_what_there_is_and_the_rest_starts_cold(tmp_path: Path) -> None:
    filled(2)
    with run(gather_flow(tmp_path / "out", rate=20_000.0), parallelism=2) as job:
        warm_ones = [pid for pid in processes_of(job) if is_of_pool(pid)]
        assert job.coordinator_process() in warm_ones
        assert 2 <= len(warm_ones) < PROCESSES
        finish(job, tmp_path / "out")


def seen_by_users(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What a user's function finds around it. Not Ray's id of its job: a process that Ray itself has started ahead, for
    whatever job comes, has none there."""
    around = {name: value for name, value in os.environ.items() if name != "RAY_JOB_ID"}
    found = [str(sorted(around.items())), os.getcwd(), str(sys.path), str("pandas" in sys.modules)]
    return pa.record_batch({"found": [*found, *[""] * (batch.num_rows - len(found))]})


def around(out: Path) -> list[str]:
    flow = ps.Flow(out.name)
    rows = flow.from_tables([pa.table({"n": list(range(8))})])
    rows.map_batches(seen_by_users, schema=pa.schema({"found": pa.string()})).write_parquet(out)
    with run(flow, parallelism=1) as job:
        job.wait(PATIENCE)
    return list(ds.dataset(out, format="parquet").to_table()["found"].to_pylist())


def test_users_function_finds_the_same_around_it_as_in_a_process_that_has_just_been_started(tmp_path: Path) -> None:
    cold = around(tmp_path / "cold")
    filled(2)
    assert around(tmp_path / "warm") == cold


def test_task_that_asks_for_cpus_gets_them_and_a_warm_process(tmp_path: Path) -> None:
    filled(2)
    start = uptime()
    flow = ps.Flow("asking")
    rows = flow.from_tables([pa.table({"n": list(range(8))})] * 9, rate=20.0)
    rows.resources(num_cpus=1).write_parquet(tmp_path / "out")
    with run(flow, parallelism=1) as job:
        assert all(is_of_pool(pid) and began(pid) < start for pid in processes_of(job))
        assert ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"] - 1


def test_process_that_is_killed_while_it_waits_is_replaced_and_no_job_notices(tmp_path: Path) -> None:
    waiting = filled()
    killed = waiting.pop()
    os.kill(killed, signal.SIGKILL)
    with run(gather_flow(tmp_path / "out", rate=20_000.0), parallelism=2) as job:
        assert killed not in processes_of(job)
        finish(job, tmp_path / "out")
    assert killed not in filled()


def test_process_of_a_job_that_dies_is_replaced_by_one_that_waits(tmp_path: Path) -> None:
    filled()
    checkpoints = Checkpoints(tmp_path / "state", every="200ms", restart_delay=0.05)
    with run(gather_flow(tmp_path / "out", rate=2000.0), parallelism=2, checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
        filled()
        start = uptime()
        task = job.tasks()[-1]
        job.kill_task(task)
        job.wait_until(lambda status: status.restarts > 0 and status.state == "running", PATIENCE)
        pid = job.identities()[task].pid
        assert is_of_pool(pid)
        assert began(pid) < start
        finish(job, tmp_path / "out")


def test_job_that_outlives_its_script_takes_none_of_the_scripts_processes(tmp_path: Path) -> None:
    waiting = filled(1)
    checkpoints = Checkpoints(tmp_path / "state")
    with run(gather_flow(tmp_path / "out", rate=5000.0), checkpoints=checkpoints, detached=True) as job:
        assert not processes_of(job) & waiting
        finish(job, tmp_path / "out")


def test_processes_that_wait_are_listed_with_their_memory(cluster: str) -> None:
    assert list(show_workers(cluster)) == []
    (waiting,) = filled(1)
    (line,) = show_workers(cluster)
    assert f"process {waiting} on " in line
    assert "MiB" in line


SCRIPT = """
import sys
import penstock as ps
assert ps.warm(2, wait="120s", address=sys.argv[1]) == 2
from penstock.actors.job.warming import idle_workers
print(*[each.pid for each in idle_workers(of_script=True)])
"""


def test_script_that_ends_leaves_no_process_and_no_entry(cluster: str) -> None:
    command = [sys.executable, "-c", SCRIPT, cluster]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    for pid in pids:
        wait_for_end(pid)
    assert not idle() & set(pids)


def wait_for_end(pid: int) -> None:
    try:
        file = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    try:
        assert select.select([file], [], [], 60.0)[0], f"process {pid} is still there"
    finally:
        os.close(file)


def test_what_ray_refuses_is_logged_and_the_job_starts_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(count: int) -> None:
        raise RuntimeError(f"no {count} today")

    monkeypatch.setattr(f"{start_processes.__module__}.start_processes", refused)
    assert warm(2, wait=1.0) == 0
    with run(gather_flow(tmp_path / "out"), parallelism=2) as job:
        finish(job, tmp_path / "out")
    assert "no process is started in advance: no 2 today" in caplog.text
