"""Processes of a job that hang, are lost while spares wait, or are nobody's any more: on Ray, with real signals."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray

from penstock.actors.cluster.calls import sealed
from penstock.actors.job.driver_actor import driver_actor_class
from penstock.actors.job.launch import run
from penstock.actors.job.options import DriverOptions, share_plan
from penstock.actors.job.runtime import Runtime
from penstock.actors.protocol.messages import spare_slot
from penstock.actors.protocol.settings import Checkpoints
from penstock.engine.planner.pipelines import plan_job
from support.ray_jobs import expected, gather_flow, written

pytestmark = [pytest.mark.ray, pytest.mark.chaos]

PACE = 2000.0
"""Rows per second: the flow has 9 600."""
PATIENCE = 90.0


@pytest.fixture(autouse=True)
def validated(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_VALIDATE", "1")


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Any]:
    """Starts the flow and ends it if it is still there."""
    started = []

    def start(runtime: Runtime) -> Any:
        checkpoints = Checkpoints(tmp_path / "state", every="200ms", restart_delay=0.05)
        flow = gather_flow(tmp_path / "out", rate=PACE)
        job = run(flow, parallelism=2, checkpoints=checkpoints, runtime=runtime)
        started.append(job)
        job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
        return job

    yield start
    for job in started:
        job.shutdown()


def finish(job: Any, tmp_path: Path) -> None:
    assert job.wait(PATIENCE).status().state == "finished"
    assert written(tmp_path / "out").select(expected().column_names).equals(expected())


@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("victim", [0, -1])
def test_stopped_process_is_replaced_and_no_row_is_lost(jobs: Any, tmp_path: Path, victim: int, spares: int) -> None:
    job = jobs(Runtime(heartbeat="3s", spares=spares))
    task = job.tasks()[victim]
    stopped = job.identities()[task].pid
    os.kill(stopped, signal.SIGSTOP)
    job.wait_until(lambda status: status.restarts > 0 and status.state == "running", PATIENCE)
    assert job.identities()[task].pid != stopped
    with suppress(ProcessLookupError):
        os.kill(stopped, signal.SIGCONT)
    finish(job, tmp_path)


def test_process_that_is_stopped_for_less_than_the_heartbeat_loses_nothing(jobs: Any, tmp_path: Path) -> None:
    job = jobs(Runtime(heartbeat="30s"))
    before = job.identities()
    stopped = before[job.tasks()[0]].pid
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        job.wait_until(lambda status: status.restarts > 0, 1.0)
    os.kill(stopped, signal.SIGCONT)
    finish(job, tmp_path)
    assert job.status().restarts == 0


def test_coordinator_that_was_stopped_takes_nobody_for_dead(jobs: Any, tmp_path: Path) -> None:
    job = jobs(Runtime(heartbeat="3s"))
    pid = job.coordinator_process()
    os.kill(pid, signal.SIGSTOP)
    signal.sigtimedwait([], 4.0)  # what is looked for is that nothing happens in this time
    os.kill(pid, signal.SIGCONT)
    finish(job, tmp_path)
    assert job.status().restarts == 0


def test_task_of_a_killed_process_goes_on_in_the_spare_and_somewhere_when_that_is_killed_too(
    jobs: Any, tmp_path: Path
) -> None:
    job = jobs(Runtime(spares=1))
    task = job.tasks()[-1]
    for restarts, slots in ((1, {spare_slot(0)}), (2, {spare_slot(0), task})):
        before = job.identities()
        killed = job.kill_task(task)
        job.wait_until(lambda status, n=restarts: status.restarts >= n and status.state == "running", PATIENCE)
        after = job.identities()
        assert after[task].pid != killed
        assert after[task].task in slots
        assert {each: after[each] for each in job.tasks()[:-1]} == {each: before[each] for each in job.tasks()[:-1]}
    finish(job, tmp_path)


def test_spare_that_has_a_task_lets_it_go_when_the_coordinator_dies(jobs: Any, tmp_path: Path) -> None:
    job = jobs(Runtime(spares=1))
    task = job.tasks()[0]
    job.kill_task(task)
    job.wait_until(lambda status: status.restarts >= 1 and status.state == "running", PATIENCE)
    spare = job.identities()[task]
    assert spare.task == spare_slot(0)
    job.kill_coordinator()
    job.wait_until(lambda status: status.generation > 1 and status.state == "running", PATIENCE)
    own = job.identities()[task]
    assert own.task == task, "the next coordinator has every task on its own seat"
    assert own.pid != spare.pid
    os.kill(spare.pid, 0)  # the process is there, and a spare one
    finish(job, tmp_path)


def test_process_that_nobody_asks_for_leaves_by_itself(cluster: str, tmp_path: Path) -> None:
    plan = plan_job(gather_flow(tmp_path / "out"), 1)
    runtime = Runtime(heartbeat="300ms", lease="1s")
    options = DriverOptions(plan.tasks()[0], str(tmp_path), share_plan(plan, detached=False), bytes(32), runtime)
    driver = driver_actor_class().remote(sealed(options))
    first = ray.get(driver.ready.remote())
    assert ray.get(driver.__ray_call__.remote(repr)) == f"{plan.name} {plan.tasks()[0]}", (
        "what Ray writes before prints"
    )
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(first.pid)
        assert select.select([handle], [], [], PATIENCE)[0], "nobody has asked for it, and it is still there"
        os.close(handle)
    second = ray.get(driver.ready.options(max_task_retries=-1).remote())
    assert second.incarnation != first.incarnation
    ray.kill(driver)
