"""Whole jobs on Ray: every row once, whoever dies; clear errors; nothing left behind."""

from __future__ import annotations

import os
import random
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
from pyarrow import csv

from penstock.actors.job.launch import run
from penstock.actors.job.shutdown import end_actors
from penstock.actors.protocol.messages import Identity
from penstock.actors.protocol.settings import Checkpoints
from penstock.engine.core.errors import (
    AuditError,
    ConfigurationError,
    SetupError,
    StorageError,
    TaskLostError,
    UserCodeError,
)
from penstock.engine.core.identity import TaskId
from penstock.engine.flow.flow import Flow
from penstock.jobs.local_run import run_local
from support.ray_jobs import expected, fails_at, gather_flow, tables, written
from support.sweeps import seeds, swept

pytestmark = pytest.mark.ray

PACE = 4000.0
"""Rows per second: the flow has 9 600, so a paced job runs for two and a half seconds and several checkpoints."""

SLOW = 200.0
"""For jobs that the fixture ends."""

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def validated(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_VALIDATE", "1")


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Any]:
    """Starts jobs that checkpoint often, and ends those that are still there."""
    started = []

    def start(flow: Flow, **options: Any) -> Any:
        checkpoints = Checkpoints(tmp_path / "state", every="200ms", restart_delay=0.05)
        started.append(run(flow, **{"parallelism": 2, "checkpoints": checkpoints, **options}))
        return started[-1]

    yield start
    for job in started:
        job.shutdown()


def assert_exactly_once(out: Path) -> None:
    assert written(out).select(expected().column_names).equals(expected())


def test_every_row_is_written_once_and_in_the_order_of_the_splits(jobs: Any, tmp_path: Path) -> None:
    jobs(gather_flow(tmp_path / "out")).wait(PATIENCE)
    assert_exactly_once(tmp_path / "out")


@pytest.mark.chaos
@pytest.mark.parametrize("seed", seeds(2, of=4))
def test_outputs_are_equal_when_a_driver_is_killed_at_some_point(jobs: Any, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    job = jobs(gather_flow(tmp_path / "out", rate=PACE))
    completed = draw.randrange(4)
    job.wait_until(lambda status: status.state == "running" and status.checkpoints_completed >= completed, PATIENCE)
    victim = job.tasks()[seed % len(job.tasks())]
    before = job.kill_task(victim)
    assert wait_for_restart(job, victim).pid != before
    assert job.wait(PATIENCE).status().restarts <= 1
    assert_exactly_once(tmp_path / "out")


def wait_for_restart(job: Any, victim: TaskId) -> Identity:
    """The process that took the victim's place."""
    job.wait_until(lambda status: status.restarts > 0, PATIENCE)
    return job.identities()[victim]


@pytest.mark.chaos
def test_surviving_processes_are_kept_when_another_is_killed(jobs: Any, tmp_path: Path) -> None:
    job = jobs(gather_flow(tmp_path / "out", rate=PACE))
    job.wait_until(lambda status: status.state == "running", PATIENCE)
    before = job.identities()
    victim = job.tasks()[0]
    job.kill_task(victim)
    job.wait_until(lambda status: status.restarts > 0, PATIENCE)
    job.wait_until(lambda status: status.state == "running", PATIENCE)
    after = job.identities()
    assert [task for task in job.tasks() if after[task].pid != before[task].pid] == [victim]
    job.wait(PATIENCE)
    assert_exactly_once(tmp_path / "out")


@pytest.mark.chaos
@pytest.mark.parametrize("completed", [0, swept(1), 4])
def test_outputs_are_equal_when_the_coordinator_is_killed(jobs: Any, tmp_path: Path, completed: int) -> None:
    job = jobs(gather_flow(tmp_path / "out", rate=PACE))
    job.wait_until(lambda status: status.state == "running" and status.checkpoints_completed >= completed, PATIENCE)
    drivers = job.identities()
    job.kill_coordinator()
    status = job.wait_until(lambda status: status.generation > 1 and status.state == "running", PATIENCE)
    assert status.generation == 2
    assert job.identities() == drivers
    assert job.wait(PATIENCE).status().state == "finished"
    assert_exactly_once(tmp_path / "out")


@pytest.mark.chaos
def test_outputs_are_equal_when_coordinator_and_driver_are_killed_together(jobs: Any, tmp_path: Path) -> None:
    job = jobs(gather_flow(tmp_path / "out", rate=PACE))
    job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
    job.kill_task(job.tasks()[-1])
    job.kill_coordinator()
    assert job.wait(PATIENCE).status().state == "finished"
    assert_exactly_once(tmp_path / "out")


@pytest.mark.chaos
def test_job_has_finished_when_its_coordinator_is_killed_right_after_the_end(jobs: Any, tmp_path: Path) -> None:
    job = jobs(gather_flow(tmp_path / "out"))
    job.wait_until(lambda status: status.state == "finished", PATIENCE)
    before = job.kill_coordinator()
    assert job.coordinator_process() != before
    assert job.wait(PATIENCE).status().state == "finished"
    assert_exactly_once(tmp_path / "out")


def test_job_that_was_shut_down_goes_on_from_its_last_checkpoint(jobs: Any, tmp_path: Path) -> None:
    flow = gather_flow(tmp_path / "out", rate=PACE)
    first = jobs(flow)
    taken = first.wait_until(lambda status: status.checkpoints_completed >= 3, PATIENCE).latest_completed
    first.shutdown()
    second = jobs(flow)
    status = second.wait(PATIENCE).status()
    assert status.restored_from is not None
    assert status.restored_from >= taken
    assert_exactly_once(tmp_path / "out")


def test_job_goes_on_over_the_files_that_it_began_with_or_not_at_all(jobs: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()

    def write(name: str, rows: range) -> None:
        csv.write_csv(pa.table({"n": pa.array(rows)}), folder / name)

    def flow(rate: float = 0.0) -> Flow:
        made = Flow("files", lanes=4)
        made.read_csv(folder, rate=rate, name="rows").write_parquet(tmp_path / "out")
        return made

    for number in range(24):
        write(f"{number:02d}.csv", range(number * 100, number * 100 + 100))
    first = jobs(flow(rate=800.0))
    first.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
    first.shutdown()
    write("23.csv", range(50))
    with pytest.raises(ConfigurationError, match=r"23\.csv had \d+ bytes"):
        jobs(flow())
    write("23.csv", range(2300, 2400))
    write("00-new.csv", range(9000, 9100))
    assert jobs(flow()).wait(PATIENCE).audit().ignored == ("rows: 00-new.csv",)
    assert written(tmp_path / "out")["n"].to_pylist() == list(range(2400))


def test_second_job_of_the_same_name_is_refused_and_the_first_goes_on(jobs: Any, tmp_path: Path) -> None:
    first = jobs(gather_flow(tmp_path / "out", rate=SLOW))
    before = first.wait_until(lambda status: status.state == "running", PATIENCE)
    named = f"a job named 'gather' is running on this cluster: a run that began at .* in process {os.getpid()} on host"
    with pytest.raises(ConfigurationError, match=named):
        jobs(gather_flow(tmp_path / "other"), checkpoints=None)
    with pytest.raises(ConfigurationError, match=f"is in use: a run that began at .* in process {os.getpid()} on host"):
        run_local(gather_flow(tmp_path / "out"), checkpoints=first.folder, resume="never")
    completed = before.checkpoints_completed + 2
    after = first.wait_until(lambda status: status.checkpoints_completed >= completed, PATIENCE)
    assert (after.state, after.restarts, after.generation) == ("running", before.restarts, before.generation)


def test_error_of_a_user_function_reaches_the_script_with_operator_and_traceback(jobs: Any, tmp_path: Path) -> None:
    flow = Flow("explodes", lanes=4)
    numbers = flow.from_tables(tables())
    numbers.map_batches(fails_at(5000), numbers.schema, name="my-step").gather().write_parquet(tmp_path / "out")
    with pytest.raises(UserCodeError, match="cannot work on 5000") as caught:
        jobs(flow).wait(PATIENCE)
    assert caught.value.operator == "my-step"
    assert "in explode" in caught.value.detail


def test_checkpoint_folder_of_another_flow_is_refused(jobs: Any, tmp_path: Path) -> None:
    jobs(gather_flow(tmp_path / "out", rate=PACE)).shutdown()
    first = jobs(gather_flow(tmp_path / "out", rate=PACE))
    first.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
    first.shutdown()
    other = Flow("gather", lanes=4)
    other.from_tables(tables()).write_parquet(tmp_path / "other")
    with pytest.raises(ConfigurationError, match="belongs to another flow"):
        jobs(other).wait(PATIENCE)


def test_resume_never_refuses_a_folder_with_checkpoints(jobs: Any, tmp_path: Path) -> None:
    flow = gather_flow(tmp_path / "out")
    jobs(flow).wait(PATIENCE)
    with pytest.raises(ConfigurationError, match="holds checkpoints of job 'gather'"):
        jobs(flow, resume="never")


def test_output_that_cannot_be_read_fails_a_job_that_keeps_no_checkpoints(jobs: Any, tmp_path: Path) -> None:
    job = jobs(gather_flow(tmp_path / "out"), checkpoints=None)
    job.wait_until(lambda status: status.is_over, PATIENCE)
    file = sorted((tmp_path / "out").glob("part-*"))[0]
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(StorageError, match=f"the committed file .*{file.name} cannot be read"):
        job.wait(PATIENCE)


def test_cancelled_job_ends_as_cancelled_and_keeps_what_is_committed(jobs: Any, tmp_path: Path) -> None:
    job = jobs(gather_flow(tmp_path / "out", rate=PACE))
    job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
    job.cancel()
    assert job.wait(PATIENCE).status().state == "cancelled"
    rows = written(tmp_path / "out")
    assert len(set(rows["n"].to_pylist())) == rows.num_rows < expected().num_rows


def test_checkpoint_on_request_is_taken_without_an_interval(jobs: Any, tmp_path: Path) -> None:
    job = jobs(gather_flow(tmp_path / "out", rate=PACE), checkpoints=Checkpoints(tmp_path / "state", every=None))
    job.wait_until(lambda status: status.state == "running", PATIENCE)
    first, second = job.checkpoint(PATIENCE), job.checkpoint(PATIENCE)
    assert first < second
    assert job.status().checkpoints_completed == 2
    job.wait(PATIENCE)
    assert_exactly_once(tmp_path / "out")


def test_job_that_ended_without_a_word_is_an_error_and_no_wait(jobs: Any, tmp_path: Path) -> None:
    job = jobs(gather_flow(tmp_path / "out", rate=PACE))
    ray.kill(job._backend._coordinator)
    with pytest.raises(TaskLostError, match="its coordinator is gone"):
        job.status()
    job.shutdown()
    for question in (job.status, job.wait):
        with pytest.raises(TaskLostError, match="it was shut down") as caught:
            question()
        assert "goes on from the last checkpoint" in caught.value.remedy


def test_statistics_and_reasons_tell_of_every_task(jobs: Any, tmp_path: Path) -> None:
    job = jobs(gather_flow(tmp_path / "out", rate=PACE))
    job.wait_until(lambda status: status.state == "running", PATIENCE)
    assert set(job.statistics()) == set(job.tasks())
    assert job.why()
    job.wait(PATIENCE)
    written_rows = [
        each.rows_in
        for found in job.statistics().values()
        for each in found.operators
        if each.operator.startswith("parquet-sink")
    ]
    assert written_rows == [expected().num_rows]


def test_rank_that_comes_after_the_end_of_a_job_without_a_checkpoint_folder_has_no_batch(jobs: Any) -> None:
    made = Flow("read")
    made.from_tables(tables()).feed(100)
    job = jobs(made, checkpoints=None)
    feed = job.feed()
    with feed.reader(timeout=PATIENCE) as reader:
        assert list(reader)
        state = reader.state_dict()
    job.wait(PATIENCE)
    assert not Path(job.folder).exists()
    late = feed.reader(timeout=PATIENCE)
    late.load_state_dict(state)
    with late:
        assert not list(late)
    with (
        pytest.raises(ConfigurationError, match=r"its temporary folder .* gone"),
        feed.reader(timeout=PATIENCE) as anew,
    ):
        next(iter(anew))


def test_wait_that_takes_too_long_says_what_the_job_waits_for(jobs: Any, tmp_path: Path) -> None:
    job = jobs(gather_flow(tmp_path / "out", rate=PACE))
    with pytest.raises(TimeoutError, match="job 'gather' is"):
        job.wait(0.01)


def test_nothing_is_left_after_the_end(jobs: Any, tmp_path: Path) -> None:
    job = jobs(gather_flow(tmp_path / "out"), checkpoints=None)
    pids = [identity.pid for identity in job.identities().values()]
    folder = Path(job.folder)
    assert folder.exists()
    with job:
        job.wait(PATIENCE)
    assert not folder.exists()
    for pid in pids:
        wait_gone(pid)
    again = jobs(gather_flow(tmp_path / "again"), checkpoints=None)
    assert again.wait(PATIENCE).status().state == "finished"


def wait_gone(pid: int) -> None:
    """Wait until a process has ended; its end wakes us."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 20)[0], f"process {pid} is still there"
    finally:
        os.close(handle)


@pytest.mark.parametrize("address", ["192.0.2.7:6379", "127.0.0.1:1"])
def test_address_of_another_cluster_than_the_connected_one_is_refused(jobs: Any, tmp_path: Path, address: str) -> None:
    here = ray.get_runtime_context().gcs_address
    with pytest.raises(SetupError, match=f"asks for the Ray cluster at {address} .*is connected to the one at {here}"):
        jobs(gather_flow(tmp_path / "out"), address=address)
    jobs(gather_flow(tmp_path / "out"), address=here).wait(PATIENCE)


def test_job_whose_cluster_was_left_asks_nobody_and_is_let_go(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs(gather_flow(tmp_path / "out", PACE))
    job.status()
    asked = []
    with monkeypatch.context() as elsewhere:
        for connected in (None, ("192.0.2.7:6379", "01000000")):
            elsewhere.setattr("penstock.actors.job.ray_backend.connection", lambda connected=connected: connected)
            elsewhere.setattr("penstock.actors.job.ray_backend.end_actors", asked.append)
            for question in (job.statistics, job.identities, job.why, lambda: job.wait(1)):
                with pytest.raises(TaskLostError, match="is not connected to its cluster any more"):
                    question()
        job.shutdown()
    assert asked == []
    end_actors([job._backend._address])
    end_actors(job._backend._actors.values())


def test_job_ends_whatever_its_outputs_have_become(jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("the sink of a user cannot tell")

    job = jobs(gather_flow(tmp_path / "out", PACE))
    job.checkpoint(PATIENCE)
    monkeypatch.setattr("penstock.actors.client.job.audit_job", broken)
    monkeypatch.setattr("penstock.actors.client.job.clean_outputs", broken)
    job.shutdown()
    monkeypatch.undo()
    jobs(gather_flow(tmp_path / "out", PACE)).wait(PATIENCE)  # the name is free, and nothing else wrote
    assert_exactly_once(tmp_path / "out")


def test_job_that_keeps_nothing_is_audited_before_its_checkpoints_go(jobs: Any, tmp_path: Path) -> None:
    settings = Checkpoints(tmp_path / "kept", every="50ms", retention="never")
    job = jobs(gather_flow(tmp_path / "out"), checkpoints=settings)
    job.wait_until(lambda status: status.is_over, PATIENCE)
    for file in (tmp_path / "out").glob("*.parquet"):
        file.unlink()
    with pytest.raises(AuditError, match="rows are missing"):
        job.wait(PATIENCE)
    assert not list((tmp_path / "kept").rglob("state/**/*.arrow"))
