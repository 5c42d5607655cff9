"""Feeds of jobs on Ray: ranks in other processes, and processes that are killed under them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import ConfigurationError, UserCodeError
from penstock.engine.core.identity import TaskId
from penstock.engine.flow.flow import Flow
from support.feeds import batches_of, plain, read_group, tables, take
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
    return batches_of(feeding("expected"))


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
    replayed = partial(ps.replay, feeding("killed", room=100), checkpoints=job.folder)
    assert replayed(step=7).rows.to_pylist() == batches[7]  # while it runs
    for reader in readers:
        reader.close()
    assert job.wait(PATIENCE).audit().clean
    again = replayed(step=8, rank=1, world_size=2)
    assert (again.rows.to_pylist(), again.verified) == (batches[8][25:], True)
    rows = again.lineage.column("row").to_pylist()
    assert rows == [row["n"] % 100 for row in batches[8][25:]]


def test_processes_that_are_killed_in_the_second_epoch_and_ranks_of_another_number(jobs: Any) -> None:
    flow = feeding("epochs", room=100, keep=5000, shuffle=90, seed=2, epochs=3)
    whole = batches_of(flow)
    each = len(whole) // 3
    job = jobs(flow)
    readers = [job.feed().reader(rank, 2, timeout=PATIENCE) for rank in range(2)]
    found = []
    for epoch in range(2):
        slices = [reader.iter_batches() for reader in readers]
        for step in range(each if epoch == 0 else 6):
            found.append([row for batches in slices for row in next(batches).to_pylist()])
            if epoch == 1 and step == 1:
                job.kill_task(TaskId("gather-1", 0))
            if epoch == 1 and step == 3:
                readers[0].commit("model")
                job.kill_task(TaskId("rows", 1))
    assert found == whole[: each + 6]
    readers[0].flush(PATIENCE)
    assert [reader.epoch for reader in readers] == [1, 1]
    for reader in readers:
        reader.close(0.0)
    resumed = job.feed().resume("model")
    assert (resumed.start_epoch, resumed.start) == (1, each + 4)
    assert read_group(resumed, 3) == whole[each + 4 :]
    audit = job.wait(PATIENCE).audit_feed()
    assert audit.clean
    assert [epoch.same for epoch in audit.epochs] == [True] * 3


def test_model_is_committed_after_the_last_step_in_processes_outside_the_cluster(jobs: Any) -> None:
    """By ranks that commit at once, and by one that comes when the job is over."""
    job = jobs(feeding("last"))
    handle = pickle.dumps(job.feed())
    rank = RANK.replace("for records in reader]))", "for records in reader]))\n    reader.commit('last')")
    ranks = [
        subprocess.Popen([sys.executable, "-c", rank, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for number in range(2)
    ]
    for process in ranks:
        assert process.stdin is not None
        process.stdin.write(handle)
        process.stdin.close()
    steps = [len(json.loads(process.stdout.read())) for process in ranks if process.stdout is not None]
    assert [process.wait() for process in ranks] == [0, 0]
    assert job.wait(PATIENCE).audit().clean
    assert job.feed().resume("last").start == steps[0] == steps[1]
    with job.feed().resume("last").reader(timeout=PATIENCE) as late:
        assert list(late) == []
        late.commit("later")
    again = jobs(feeding("last"), resume_model="later")
    for model in ("last", "later"):
        assert read_group(again.feed().resume(model), 3) == []
    assert again.wait(PATIENCE).status().state == "finished"


def test_ranks_are_told_why_a_job_has_failed_or_that_it_was_shut_down(jobs: Any) -> None:
    flow = Flow("failing", lanes=4)
    rows = flow.from_tables(tables(), name="rows", rate=1000.0)
    rows.map_batches(fails_at(700), rows.schema).feed(50)
    job = jobs(flow)
    with pytest.raises(UserCodeError, match="cannot work on 700"):
        read_group(job.feed(), 2)
    other = jobs(feeding("ended", room=50))
    reader = other.feed().reader(prefetch_batches=2, timeout=PATIENCE)
    take(reader, 1)
    other.shutdown()
    with pytest.raises(ConfigurationError, match="'ended' was shut down"):
        take(reader, 100)
    reader.close()


def test_changed_weights_outlive_processes_that_are_killed(jobs: Any) -> None:
    """Before and behind the step that they are changed from."""

    def flow_of(weight: Any, rate: float) -> Flow:
        flow, mixed = Flow("reweighted", lanes=4), {}
        for name, each in (("a", 1), ("b", weight)):
            parts = [pa.table({"of": [name] * 50, "n": range(at, at + 50)}) for at in range(0, 12_000, 50)]
            mixed[flow.from_tables(parts, name=name, rate=rate)] = each
        flow.mix(mixed, seed=3).feed(25, room=100)
        return flow

    job = jobs(flow_of(1, 1_500.0))
    reader = job.feed().reader(0, 1, timeout=PATIENCE)
    slices, found, step = reader.iter_batches(), [], 0
    found.append(next(slices).to_pylist())
    while not step:
        try:
            job.feed().reweight({"b": 9.0}, from_step=len(found) + 120, timeout=PATIENCE)
            step = len(found) + 120
        except ConfigurationError:
            found.append(next(slices).to_pylist())
    mixing = next(task for task in job.status().tasks if task.vertex not in ("a", "b"))
    for kill in (partial(job.kill_task, mixing), job.kill_coordinator, partial(job.kill_task, mixing)):
        kill()
        found += [next(slices).to_pylist() for _ in range(60)]
    weight = ps.Schedule.steps({0: 1, step * 25: 9.0})
    with ps.run_local(flow_of(weight, 0.0)) as other, other.feed().reader(timeout=PATIENCE) as again:
        assert [records.to_pylist() for records, _ in zip(again, found, strict=False)] == found
    assert len(found) > step + 40
    reader.close(0.0)
