"""Jobs that outlive their script, hands on jobs of other scripts, savepoints and stops on Ray, the command line."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.actors.job.launch import attach, list_jobs, run
from penstock.engine.core.errors import ConfigurationError
from penstock.jobs.cli import app
from support.processes import Household
from support.ray_jobs import expected, gather_flow, written

pytestmark = pytest.mark.ray

PACE = 900.0
"""Rows per second: the job lasts for ten seconds, in which another script has to come and go."""
SLOW = 200.0
"""For jobs that the test ends itself."""
"""Rows per second: the flow has 9 600, so a paced job runs for four seconds."""

PATIENCE = 60.0
TESTS = str(Path(__file__).parents[2])
SHORT = ps.Runtime(heartbeat="1500ms", lease="3s")

SCRIPT = """
import sys
import penstock as ps
from support.ray_jobs import gather_flow

if __name__ == "__main__":
    address, out, rate, how = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
    checkpoints = ps.Checkpoints(out + "-state", every="200ms")
    job = ps.run(gather_flow(out, rate), address=address, checkpoints=checkpoints, detached=how != "attached")
    job.wait_until(lambda status: status.checkpoints_completed >= 2, 60)
    print("on its way", flush=True)
    if how != "detached":
        print(job.wait(60).status().state)
"""


@pytest.fixture
def household(tmp_path: Path) -> Iterator[Household]:
    with Household(tmp_path) as household:
        yield household


@pytest.fixture(autouse=True)
def nothing_left(cluster: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No job of a test is there for the next one."""
    monkeypatch.setenv("PENSTOCK_VALIDATE", "1")
    yield
    for entry in list_jobs(address=cluster):
        attach(entry.name, address=cluster).shutdown()


def other_script(household: Household, tmp_path: Path, cluster: str, how: str, rate: float = PACE) -> Any:
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
    out = str(tmp_path / "out")
    program = household.python("script.py", cluster, out, str(rate), how, cwd=tmp_path, PYTHONPATH=path)
    program.wait_line("on its way")
    return program


def detached(tmp_path: Path, rate: float = PACE, **options: Any) -> ps.Job:
    checkpoints = ps.Checkpoints(tmp_path / "state", every="200ms")
    flow = gather_flow(tmp_path / "out", rate)
    return run(flow, **{"checkpoints": checkpoints, "detached": True, "runtime": SHORT, **options})


def assert_exactly_once(out: Path) -> None:
    assert written(out).select(expected().column_names).equals(expected())


def wait_gone(pids: list[int], seconds: float) -> None:
    """Wait until processes have ended; the end of each wakes us."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([handle], [], [], seconds)[0], f"process {pid} is still there"
        finally:
            os.close(handle)


def test_detached_job_goes_on_when_its_script_has_ended_and_another_waits_for_it(
    cluster: str, household: Household, tmp_path: Path
) -> None:
    assert other_script(household, tmp_path, cluster, "detached").wait().returncode == 0
    job = attach("gather", address=cluster)
    assert [(entry.name, entry.detached) for entry in list_jobs(address=cluster)] == [("gather", True)]
    pids = [identity.pid for identity in job.identities().values()]
    assert job.wait(PATIENCE).status().state == "finished"
    assert_exactly_once(tmp_path / "out")
    assert job.audit().clean
    assert set(job.statistics()) == set(job.tasks())
    assert job.checkpoints().counts.completed >= 2
    wait_gone(pids, 20)


@pytest.mark.chaos
def test_detached_job_survives_an_interrupt_and_recovers_without_anybody(
    cluster: str, household: Household, tmp_path: Path
) -> None:
    script = other_script(household, tmp_path, cluster, "detached and waiting", rate=600)
    script.interrupt()
    assert script.wait().stderr.splitlines() == ["penstock: interrupted"]
    job = attach("gather", address=cluster)
    job.kill_task(job.tasks()[0])
    job.kill_coordinator()
    assert job.wait(PATIENCE).status().state == "finished"
    assert_exactly_once(tmp_path / "out")


def test_guest_takes_a_savepoint_and_leaves_the_job_to_its_owner(
    cluster: str, household: Household, tmp_path: Path
) -> None:
    owner = other_script(household, tmp_path, cluster, "attached")
    with attach("gather", address=cluster) as job:
        saved = job.savepoint(tmp_path / "mine", PATIENCE)
        job.shutdown()
    assert Path(saved.path) == tmp_path / "mine"
    done = owner.wait()
    assert "finished" in done.stdout, str(done)
    assert_exactly_once(tmp_path / "out")


def test_guest_learns_how_a_job_has_ended_that_its_owner_put_away(
    cluster: str, household: Household, tmp_path: Path
) -> None:
    owner = other_script(household, tmp_path, cluster, "attached")
    job = attach("gather", address=cluster)
    assert job.wait(PATIENCE).status().state == "finished"
    assert owner.wait().returncode == 0


def test_suspended_job_goes_on_from_its_savepoint_in_another_folder(cluster: str, tmp_path: Path) -> None:
    flow = gather_flow(tmp_path / "out", SLOW)
    with run(flow, checkpoints=ps.Checkpoints(tmp_path / "state", every="200ms")) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
        saved = job.stop(savepoint=tmp_path / "mine", timeout=PATIENCE)
    assert job.status().state == "stopped"
    assert 0 < written(tmp_path / "out").num_rows < expected().num_rows
    options = {"checkpoints": tmp_path / "again", "from_snapshot": saved.path, "parallelism": 3}
    with run(gather_flow(tmp_path / "out"), **options) as again:
        assert again.wait(PATIENCE).audit().clean
    assert_exactly_once(tmp_path / "out")


@pytest.mark.chaos
def test_stop_is_asked_for_again_when_the_coordinator_dies(cluster: str, tmp_path: Path) -> None:
    job = detached(tmp_path, rate=SLOW, runtime=ps.Runtime())
    job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
    job.kill_coordinator()
    saved = job.stop(drain=True, timeout=PATIENCE)
    assert job.status().state == "stopped"
    assert saved.id.generation == 2
    assert job.audit().clean


def test_processes_leave_when_their_coordinator_is_not_heard_of(cluster: str, tmp_path: Path) -> None:
    import ray

    job = detached(tmp_path, rate=SLOW)
    job.wait_until(lambda status: status.state == "running", PATIENCE)
    pids = [identity.pid for identity in job.identities().values()]
    ray.kill(job._backend._coordinator)
    wait_gone(pids, 30)
    actors = list(job._backend._actors.values())
    for actor in actors:
        with pytest.raises(ray.exceptions.ActorDiedError):
            ray.get(actor.ready.options(max_task_retries=-1).remote(), timeout=30)
    assert list_jobs(address=cluster) == []


def test_coordinator_of_a_job_that_is_over_leaves_after_its_lease(cluster: str, tmp_path: Path) -> None:
    job = detached(tmp_path, rate=0)
    pid = job.coordinator_process()
    job.wait(PATIENCE)
    assert [entry.status.state for entry in list_jobs(address=cluster)] == ["finished"]
    wait_gone([pid], 30)
    with pytest.raises(ConfigurationError, match="no job named 'gather' runs on this cluster"):
        attach("gather", address=cluster)


def test_name_of_a_detached_job_is_free_when_it_is_over(cluster: str, tmp_path: Path) -> None:
    job = detached(tmp_path, rate=SLOW)
    job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
    with pytest.raises(ConfigurationError, match="a job named 'gather' is running"):
        detached(tmp_path)
    job.cancel()
    assert job.wait(PATIENCE).status().state == "cancelled"
    assert detached(tmp_path, rate=0).wait(PATIENCE).status().state == "finished"
    assert_exactly_once(tmp_path / "out")


def test_detached_job_needs_a_folder(cluster: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs a checkpoint folder"):
        detached(tmp_path, checkpoints=None)


def test_command_line_lists_explains_saves_and_stops_a_running_job(cluster: str, tmp_path: Path) -> None:
    def penstock(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*arguments, "--address", cluster])
        assert done.exit_code == code, done.output
        return done.output

    assert "no job runs on this cluster" in penstock("list")
    job = detached(tmp_path, rate=SLOW, runtime=ps.Runtime())
    job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
    assert re.search(r"gather: running, checkpoint 1\.\d+ \(of \d+\), restarts 0, detached", penstock("list"))
    shown = penstock("status", "gather")
    assert re.search(r"tasks: 3 running", shown), shown
    assert re.search(r"latest 1\.\d+: \d\.\d{3} s, .* KiB, slowest (gather|memory)-1", shown), shown
    assert "[0]: " in penstock("why", "gather")
    times = penstock("checkpoints", "gather")
    assert re.search(r"checkpoint 1\.\d+: completed, [\d,]+ rows visible after \d+\.\d{3} s", times), times
    assert re.search(r"place \d.* s, pause \d.* s, write \d.* s, commit \d.* s; slowest gather", times), times
    assert f"is in {tmp_path / 'mine'}" in penstock("savepoint", "gather", "--to", str(tmp_path / "mine"))
    assert "savepoint 1." in penstock("status", "gather")
    assert re.search(r"job gather is stopped; savepoint 1\.\d+ is in ", penstock("stop", "gather", "--drain"))
    assert re.search(r"gather: stopped", penstock("list"))
    told = penstock("cancel", "nobody", code=2)
    assert "no job named 'nobody' runs on this cluster" in told
    assert "running here: gather" in told


def test_command_line_cancels_a_job(cluster: str, tmp_path: Path) -> None:
    job = detached(tmp_path, rate=SLOW, runtime=ps.Runtime())
    job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
    done = CliRunner().invoke(app, ["cancel", "gather", "--address", cluster])
    assert done.exit_code == 0, done.output
    assert f"job gather is cancelled; its checkpoints are in {tmp_path / 'state'}" in done.output
