"""Feeds of jobs on Ray: ranks in other processes, and processes that are killed under them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.engine.errors import ConfigurationError, UserCodeError
from penstock.engine.flow import Flow
from penstock.engine.identity import TaskId
from support.feeds import plain, read_world, tables, take
from support.ray_jobs import fails_at

pytestmark = pytest.mark.ray
PATIENCE = 60.0

RANK = """
import json, pickle, sys
feed = pickle.loads(sys.stdin.buffer.read())
with feed.reader(int(sys.argv[1]), 2, timeout=60) as reader:
    print(json.dumps([records.column("n").to_pylist() for records in reader]))
"""
"""A rank in a process that has nothing to do with Ray."""


@pytest.fixture
def jobs(tmp_path: Path, cluster: str) -> Iterator[Any]:
    """Starts jobs that checkpoint often, and ends those that are still there."""
    started = []

    def start(flow: Flow, **options: Any) -> Any:
        checkpoints = ps.Checkpoints(tmp_path / "state", every="200ms", restart_delay=0.05)
        started.append(ps.run(flow, **{"parallelism": 2, "checkpoints": checkpoints, **options}))
        return started[-1]

    yield start
    for job in started:
        job.shutdown()


def feeding(name: str, **options: Any) -> Flow:
    flow = Flow(name, lanes=4)
    plain(flow).feed(50, **options)
    return flow


def expected() -> list[list[Any]]:
    return read_world(ps.run_local(feeding("expected")).feed(), 1)


def test_processes_outside_the_cluster_read_the_same_batches(jobs: Any) -> None:
    job = jobs(feeding("outside"))
    handle = pickle.dumps(job.feed())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False
        )
        for rank in range(2)
    ]
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write(handle)
        rank.stdin.close()
    slices = [json.loads(rank.stdout.read()) for rank in ranks if rank.stdout is not None]
    assert [rank.wait() for rank in ranks] == [0, 0]
    found = [one + other for one, other in zip(*slices, strict=True)]
    assert found == [[row["n"] for row in batch] for batch in expected()]
    assert job.wait(PATIENCE).audit().clean


def test_ranks_notice_nothing_of_processes_that_are_killed(jobs: Any) -> None:
    job = jobs(feeding("killed", room=100))
    readers = [job.feed().reader(rank, 2, timeout=PATIENCE) for rank in range(2)]
    slices = [reader.iter_batches() for reader in readers]
    found = []
    for step, batch in enumerate(batches := expected()):
        found.append([row for each in slices for row in next(each).to_pylist()])
        assert found[-1] == batch
        if step == 1:
            readers[0].commit("model")
        if step == 3:
            job.kill_task(TaskId("gather-1", 0))
        if step == 6:
            job.kill_task(TaskId("rows", 1))
        if step == 9:
            job.kill_coordinator()
    assert [next(each, None) for each in slices] == [None, None]
    readers[0].flush(PATIENCE)
    assert job.feed().resume("model").start == 2
    assert len(found) == len(batches)
    for reader in readers:
        reader.close()
    assert job.wait(PATIENCE).audit().clean


def test_ranks_are_told_why_a_job_has_failed_or_that_it_was_shut_down(jobs: Any) -> None:
    flow = Flow("failing", lanes=4)
    rows = flow.from_tables(tables(), name="rows", rate=1000.0)
    rows.map_batches(fails_at(700), rows.schema).feed(50)
    job = jobs(flow)
    with pytest.raises(UserCodeError, match="cannot work on 700"):
        read_world(job.feed(), 2)
    other = jobs(feeding("ended", room=50))
    reader = other.feed().reader(timeout=PATIENCE)
    take(reader, 1)
    other.shutdown()
    with pytest.raises(ConfigurationError, match="'ended' was shut down"):
        take(reader, 100)
    reader.close()
