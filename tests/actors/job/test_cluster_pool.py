"""The cluster's pool of processes that wait: it outlives its script, and serves whoever comes."""

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

import pytest

from penstock.actors.job.cluster_pool import borrow, pool_key
from penstock.actors.job.launch import run, warm
from penstock.actors.job.runtime import Runtime
from penstock.actors.job.warming import idle_workers
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
    warm(0, detached=True)
    until = time.monotonic() + PATIENCE
    while idle():
        assert time.monotonic() < until
        threading.Event().wait(0.05)


def idle() -> set[int]:
    return {each.pid for each in idle_workers()}


def filled(processes: int = PROCESSES) -> set[int]:
    assert warm(processes, wait=PATIENCE, detached=True) >= processes
    return idle()


def processes_of(job: Any) -> set[int]:
    return {identity.pid for identity in job.identities().values()} | {job.coordinator_process()}


def finish(job: Any, out: Path) -> None:
    assert job.wait(PATIENCE).audit().clean
    assert written(out).select(expected().column_names).equals(expected())


SCRIPT = """
import sys
import penstock as ps
assert ps.warm(4, wait="120s", detached=True, address=sys.argv[1]) == 4
"""


def test_pool_outlives_its_script_and_serves_the_next_one_and_a_detached_job(cluster: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, cluster]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    waiting = idle()
    assert len(waiting) == PROCESSES
    assert all(f"for the cluster, as {pool_key()}" in line for line in show_workers(cluster))
    with run(gather_flow(tmp_path / "one", rate=20_000.0), parallelism=2) as job:
        assert processes_of(job) == waiting
        finish(job, tmp_path / "one")
    again = filled()
    assert not again & waiting, "what was used has come back"
    checkpoints = Checkpoints(tmp_path / "state")
    flow = gather_flow(tmp_path / "two", rate=20_000.0)
    with run(flow, parallelism=2, checkpoints=checkpoints, detached=True) as job:
        assert processes_of(job) == again
        finish(job, tmp_path / "two")


def test_job_that_wants_none_leaves_the_clusters_alone(tmp_path: Path) -> None:
    waiting = filled(2)
    with run(gather_flow(tmp_path / "out", rate=20_000.0), runtime=Runtime(warm=0)) as job:
        assert not processes_of(job) & waiting
        finish(job, tmp_path / "out")
    assert idle() == waiting


def test_scripts_own_come_first_and_the_clusters_make_up_what_is_missing(tmp_path: Path) -> None:
    shared = filled(3)
    try:
        warm(2, wait=PATIENCE)
        own = {each.pid for each in idle_workers(of_script=True)}
        with run(gather_flow(tmp_path / "out", rate=20_000.0), parallelism=2) as job:
            used = processes_of(job)
            assert own < used
            assert used - own < shared
            finish(job, tmp_path / "out")
    finally:
        warm(0)


def test_what_is_killed_while_it_waits_and_the_pools_own_actor_are_replaced(tmp_path: Path) -> None:
    import ray

    from penstock.actors.cluster.environment import NAMESPACE

    killed = filled(2).pop()
    os.kill(killed, signal.SIGKILL)
    until = time.monotonic() + PATIENCE
    while killed in idle():
        assert time.monotonic() < until
        threading.Event().wait(0.05)
    ray.kill(ray.get_actor(pool_key(), namespace=NAMESPACE), no_restart=False)
    assert killed not in filled(2)
    with run(gather_flow(tmp_path / "out", rate=20_000.0)) as job:
        finish(job, tmp_path / "out")


def test_where_there_is_no_pool_nothing_is_lent_and_turning_it_off_does_no_harm() -> None:
    assert borrow(3) == ("", 0)
    assert warm(0, detached=True) == 0
