"""Task barriers over whole jobs on Ray: windows that pipeline through warm actors, some of which die meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.job.launch import run
from penstock.actors.protocol.settings import Checkpoints
from penstock.engine.core.identity import TaskId
from support.split_jobs import draw_windows, expected, flat, forked, job_flow, joined, sums, written

pytestmark = pytest.mark.ray

PATIENCE = 120.0


@pytest.fixture(autouse=True)
def validated(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_VALIDATE", "1")


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Any]:
    """Starts jobs, and ends those that are still there."""
    started = []

    def start(build: Any, **options: Any) -> Any:
        checkpoints = Checkpoints(tmp_path / "state", every="200ms", restart_delay=0.05)
        flow = job_flow(build, tmp_path / "out", name=build.__name__)
        started.append(run(flow, **{"parallelism": 2, "checkpoints": checkpoints, **options}))
        return started[-1]

    yield start
    for job in started:
        job.shutdown()


def feed(job: Any, window: Any) -> Any:
    for split_set in window:
        job.add_splits(split_set)
    return job.request_barrier()


def assert_rows(build: Any, out: Path, windows: Any) -> None:
    for output, found in expected(build, windows).items():
        assert written(out / output) == flat(found)


def test_windows_pipeline_through_warm_actors_and_each_is_visible_when_it_is_reached(jobs: Any, tmp_path: Path) -> None:
    windows = draw_windows(5, forked, windows=8)
    job = jobs(forked)
    before = {task: found.pid for task, found in job.identities().items()}
    assert feed(job, windows[0]).wait(PATIENCE).reached
    assert_rows(forked, tmp_path / "out", windows[:1])
    barriers = [feed(job, window) for window in windows[1:]]
    reports = [barrier.wait(PATIENCE) for barrier in barriers]
    assert [report.sets for report in reports] == [len(window) for window in windows[1:]]
    assert all(set(report.tasks) == set(job.tasks()) for report in reports)
    assert {task: found.pid for task, found in job.identities().items()} == before, "the same actors took all windows"
    job.no_more_splits()
    assert job.wait(PATIENCE).status().splits.published == len(windows)
    assert_rows(forked, tmp_path / "out", windows)


@pytest.mark.chaos
@pytest.mark.parametrize("vertex", ["left", "hash-aggregate-2"])
def test_driver_that_is_killed_in_the_middle_of_windows_loses_and_doubles_nothing(
    jobs: Any, tmp_path: Path, vertex: str
) -> None:
    windows = draw_windows(9, sums, windows=12)
    job = jobs(sums)
    feed(job, windows[0]).wait(PATIENCE)
    victim = next((task for task in job.tasks() if task.vertex == vertex), TaskId(job.tasks()[-1].vertex, 0))
    for window in windows[1:6]:
        feed(job, window)
    job.kill_task(victim)
    last = [feed(job, window) for window in windows[6:]][-1]
    assert last.wait(PATIENCE).number == len(windows)
    assert job.status().restarts == 1
    assert_rows(sums, tmp_path / "out", windows)


@pytest.mark.chaos
def test_coordinator_that_is_killed_reads_again_what_was_fed(jobs: Any, tmp_path: Path) -> None:
    windows = draw_windows(4, joined, windows=6)
    job = jobs(joined)
    for window in windows[:3]:
        feed(job, window)
    job.kill_coordinator()
    last = [feed(job, window) for window in windows[3:]][-1]
    last.wait(PATIENCE)
    job.no_more_splits()
    job.wait(PATIENCE)
    assert_rows(joined, tmp_path / "out", windows)
