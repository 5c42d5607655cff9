"""Checkpoints while some sources have ended and others have not: they must neither hang nor change the order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.engine.core.errors import PenstockError
from penstock.engine.core.identity import Attempt, BarrierKind, CheckpointId, CommitPermit, TaskId
from penstock.engine.exchange.channels import Frame, Upstream
from penstock.engine.flow.flow import Flow
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.runtime.checkpointing import TaskSnapshot
from penstock.engine.runtime.task import Task
from support.engine_simulation_flows import Disk, DiskSink

ATTEMPT, CHECKPOINT = Attempt(1, 1), CheckpointId(1, 1)
SHORT, LONG, SINK = TaskId("numbers", 1), TaskId("numbers", 0), TaskId("all", 0)
IN_ORDER = [0, 10, 1, 2, 3, 4, 5, 11]
"""A row a round, each a group of its own: it is given out once the next one has come, the last ones at the end."""


class Job:
    """All tasks of a plan, joined by plain calls."""

    def __init__(self) -> None:
        flow = Flow("ends", lanes=2)
        tables = [pa.table({"x": pa.array(rows)}) for rows in ([0, 1, 2, 3, 4, 5], [10, 11])]
        self.disk = Disk()
        groups = flow.from_tables(tables, name="numbers").stream_aggregate(by=["x"], n="count")
        flow.attach(DiskSink("out", self.disk), groups.gather(name="all"), name="out")
        plan = plan_job(flow, 2)
        self.plan = replace(plan, sources={id: replace(each, quota=1) for id, each in plan.sources.items()})
        self.snapshots: dict[TaskId, TaskSnapshot] = {}
        self.rounds: list[int] = []
        self.declined: list[CheckpointId] = []
        attempts = dict.fromkeys(self.plan.tasks(), ATTEMPT)
        self.tasks = {
            task: Task(self.plan, task, ATTEMPT, attempts, {}, self, Listener(self, task)) for task in attempts
        }
        for task in self.tasks.values():
            task._serial_scheduler._pool = InPlace()  # type: ignore[assignment]
            task.start()

    def send(self, frame: Frame) -> None:
        self.tasks[frame.channel.consumer].receive(frame)

    def reply(self, message: Upstream) -> None:
        self.tasks[message.channel.producer].deliver(message)

    def run(self, *tasks: TaskId) -> None:
        progressed = True
        while progressed:
            progressed = max([self.tasks[task].step(0.0).progressed for task in tasks])

    def checkpoint(self, number: int = 1) -> None:
        """Propose, trigger, and run as far as the checkpoint lets the tasks."""
        checkpoint = CheckpointId(1, number)
        self.rounds.clear()
        for source in (SHORT, LONG):
            self.tasks[source].propose_round(checkpoint)
        self.run(*self.tasks)
        for source in (SHORT, LONG):
            self.tasks[source].trigger(checkpoint, BarrierKind.CHECKPOINT, max(self.rounds), 0.0)
        self.run(*self.tasks)
        for declined in self.declined:
            for task in self.tasks.values():
                task.abort(declined)
        self.run(*self.tasks)

    def rows(self, number: int = 1) -> list[object]:
        """The rows that the checkpoint makes visible, in the order in which they reached the sink."""
        self.plan.committer("out").commit(CommitPermit(CheckpointId(1, number), self.snapshots[SINK].committables))
        return [row[0] for _, row in self.disk.written("out")]


class InPlace:
    """What the sink writes is written at once."""

    def submit(self, work: Callable[[], None], *, is_extra: bool = False) -> None:
        work()

    def release(self, *, wait: bool) -> None: ...


class Listener:
    """What one task says."""

    def __init__(self, job: Job, task: TaskId) -> None:
        self._job, self._task = job, task

    def round_proposed(self, checkpoint: CheckpointId, round: int) -> None:
        self._job.rounds.append(round)

    def snapshot_taken(self, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None:
        self._job.snapshots[self._task] = snapshot

    def declined(self, checkpoint: CheckpointId) -> None:
        self._job.declined.append(checkpoint)

    def drained(self, barrier: CheckpointId, window: object) -> None: ...

    def data_ended(self) -> None: ...

    def finished(self, cut: CheckpointId | None) -> None: ...

    def failed(self, error: PenstockError) -> None:
        raise error


def test_checkpoint_of_a_source_that_has_ended_and_one_that_has_not_is_behind_the_data_of_both() -> None:
    """The first one's barrier stands behind rounds that the merge must not deliver before the other's."""
    job = Job()
    job.run(SHORT)
    job.checkpoint()
    assert set(job.snapshots) == {SHORT, LONG, SINK}
    assert all(snapshot.data_ended for snapshot in job.snapshots.values())
    assert job.rows() == IN_ORDER


@pytest.mark.parametrize("steps", range(1, 13))
def test_source_that_runs_out_of_rows_on_its_way_to_the_round_holds_nobody_up(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot place a barrier after that round: it gives the checkpoint up, and the next one is behind all data."""
    monkeypatch.setattr("penstock.engine.scheduler.serial.CALLS_PER_TURN", 1)
    job = Job()
    for _ in range(steps):
        job.tasks[LONG].step(0.0)
    monkeypatch.undo()
    job.checkpoint()
    number = 1
    if job.declined:
        assert SINK not in job.snapshots
        number = 2
        job.checkpoint(number)
    assert set(job.snapshots) == {SHORT, LONG, SINK}
    rows = job.rows(number)
    assert rows == IN_ORDER[: len(rows)]
    assert rows == IN_ORDER or not job.declined
