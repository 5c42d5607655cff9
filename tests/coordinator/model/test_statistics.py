"""The statistics of checkpoints: what they say, and that their memory is bounded."""

from __future__ import annotations

import pytest

from penstock.coordinator.checkpoint.history import PORTION, SLOWEST, CheckpointHistory, summarise
from penstock.coordinator.checkpoint.pending import PendingCheckpoint
from penstock.coordinator.model.commands import CopySavepoint
from penstock.coordinator.model.events import (
    SavepointRequested,
    SavepointStored,
    SnapshotTiming,
    TaskAcked,
    TaskCommitted,
    TaskDeclined,
    TaskLost,
)
from penstock.coordinator.model.manifest import Manifest
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.model.statistics import Spread
from penstock.coordinator.model.task_set import TaskSet
from penstock.engine.core.identity import Attempt, CheckpointId, StateHandle, TaskId
from support.coordinator_driver import (
    A1,
    A2,
    FIRST,
    FULL_DISK,
    SECOND,
    SINK,
    SOURCE,
    TOLERANT,
    committable,
    handle,
    running,
)

TASKS = tuple(TaskId("a", number) for number in range(20))


def acked(task: TaskId, checkpoint: CheckpointId, size: int, now: float, timing: SnapshotTiming) -> TaskAcked:
    files = (StateHandle("op", f"{task}/{checkpoint}", size, 1),)
    return TaskAcked(task, Attempt(1, 1), checkpoint, files, (), False, now, timing)


def test_checkpoint_shows_duration_sizes_alignment_and_start_delay_by_vertex_with_the_slowest_tasks() -> None:
    history = CheckpointHistory({"a": 20, "b": 3}, length=10)
    over = TaskSet.of([TaskId("b", 1)])
    pending = PendingCheckpoint(FIRST, TASKS[:1], TASKS, proposing=False, now=10.0, finished=over)
    history.started(pending)
    for number, task in enumerate(TASKS):
        timing = SnapshotTiming(start_delay=0.5, alignment=number / 10, new_bytes=5, processed_bytes=7)
        history.acknowledged(acked(task, FIRST, 100, 0.0, timing), 11.0 + number)
    history.completed(pending, 31.0)
    shown = history.overview().completed
    assert shown is not None
    assert (shown.status, shown.triggered_at, shown.latest_ack_at, shown.duration) == ("completed", 10.0, 30.0, 20.0)
    assert (shown.bytes, shown.new_bytes, shown.processed_bytes) == (2000, 100, 140)
    assert (shown.acknowledged, shown.total) == (21, 23)
    vertex = shown.vertices[0]
    assert (vertex.duration.least, vertex.duration.most) == (1.0, 20.0)
    assert vertex.duration.mean == pytest.approx(10.5)
    assert (vertex.alignment.most, vertex.start_delay.mean) == (1.9, 0.5)
    assert [one.task.subtask for one in vertex.slowest] == [19, 18, 17, 16, 15]
    assert shown.slowest is not None
    assert shown.slowest.task == TASKS[19]


def test_vertex_shows_the_spread_of_every_figure_however_many_tasks_acknowledge() -> None:
    many = tuple(TaskId("a", number) for number in range(2 * PORTION + 3))
    history = CheckpointHistory({"a": len(many)}, length=3)
    pending = PendingCheckpoint(FIRST, (), many, proposing=False, now=0.0)
    history.started(pending)
    for number, task in enumerate(many):
        timing = SnapshotTiming(number, 2.0, 3.0 + number, 4.0, None, 5 * number, 6, unaligned=number % 2 == 0)
        history.acknowledged(acked(task, FIRST, 7, 0.0, timing), 1.0)
        if number in (0, PORTION):
            history.overview()  # looking does not change what is counted
    (vertex,) = history.overview().history[0].vertices
    last = len(many) - 1
    assert vertex.start_delay == Spread(0, last / 2, last)
    assert vertex.synchronous == Spread(3.0, 3.0 + last / 2, 3.0 + last)
    assert (vertex.alignment, vertex.asynchronous, vertex.sizes) == (Spread(2, 2, 2), Spread(4, 4, 4), Spread(7, 7, 7))
    assert (vertex.processed, vertex.persisted) == (Spread(0, 5 * last / 2, 5 * last), Spread(6, 6, 6))
    assert vertex.unaligned == history.overview().history[0].unaligned == PORTION + 2
    assert (vertex.acknowledged, vertex.new_bytes) == (len(many), 7 * len(many))


def test_checkpoint_that_was_deleted_is_shown_as_discarded_and_settings_are_shown() -> None:
    settings = Settings(retained=1)
    driver = running(settings)
    for now in (1.0, 2.0):
        driver.pass_time(now)
        driver.complete()
    overview = driver.core.checkpoint_statistics()
    assert [(one.checkpoint, one.discarded) for one in overview.history] == [(SECOND, False), (FIRST, True)]
    assert overview.settings == settings
    assert overview.completed is not None
    assert not overview.completed.discarded
    assert overview.counts.restored == 0


def test_checkpoint_is_visible_when_all_that_its_sinks_had_prepared_is() -> None:
    driver = running()
    driver.pass_time(1.0)
    driver.complete(committable(1), committable(2))

    def shown() -> tuple[float | None, float | None, int]:
        one = driver.core.checkpoint_statistics().completed
        assert one is not None
        assert one == driver.core.checkpoint_statistics().history[-1]
        return one.commit, one.visible, one.rows

    assert shown() == (0.0, None, 2)
    driver.now = 3.5
    driver.tell(TaskCommitted(SOURCE, A1, FIRST, 3.5))
    assert shown() == (0.0, None, 2)
    driver.tell(TaskCommitted(SINK, A2, FIRST, 3.5))  # it has not been told
    assert shown() == (0.0, None, 2)
    driver.tell(TaskCommitted(SINK, A1, FIRST, 3.5))
    assert shown() == (0.0, 2.5, 2)


def test_checkpoint_with_nothing_to_show_is_visible_when_it_is_complete() -> None:
    driver = running()
    driver.pass_time(1.0)
    driver.complete()
    one = driver.core.checkpoint_statistics().completed
    assert one is not None
    assert (one.visible, one.rows) == (0.0, 0)


def test_checkpoint_tells_how_long_it_took_to_place_to_stand_still_and_to_write() -> None:
    history = CheckpointHistory({"a": 20}, length=3)
    history.started(PendingCheckpoint(FIRST, (), TASKS, proposing=False, now=1.0))
    whole = SnapshotTiming(alignment=0.5, synchronous=0.04, asynchronous=0.25, new_bytes=30, unaligned=True)
    aligned = SnapshotTiming(alignment=2.0, asynchronous=0.125, new_bytes=100)
    history.acknowledged(acked(TASKS[0], FIRST, 100, 0.0, whole), 2.0)
    history.acknowledged(acked(TASKS[1], FIRST, 100, 0.0, aligned), 4.0)
    (one,) = history.overview().history
    assert (one.place, one.pause, one.write) == (2.875, 0.04, 0.25)
    assert one.vertices[0].placed.least == 0.25  # recording what is in flight comes behind the cut, aligning before it
    assert (one.referenced_bytes, one.commit, one.visible) == (70, None, None)


def test_latest_of_a_kind_is_shown_as_discarded_when_it_was_deleted_and_restores_are_counted() -> None:
    history = CheckpointHistory({"a": 1}, length=3)
    pending = PendingCheckpoint(FIRST, (), TASKS, proposing=False, now=1.0)
    history.started(pending)
    history.completed(pending, 2.0)
    history.discarded([FIRST])
    completed = history.overview().completed
    assert completed is not None
    assert completed.discarded
    manifest = Manifest(number=1, checkpoint=FIRST, fingerprint="f", parallelism={"a": 1}, tasks=())
    for count in (1, 2):
        history.restored(manifest, float(count))
        assert history.overview().counts.restored == count


def test_history_forgets_but_the_latest_of_each_kind_stay() -> None:
    history = CheckpointHistory({"a": 20}, length=3)
    for number in range(1, 51):
        pending = PendingCheckpoint(CheckpointId(1, number), (), TASKS, proposing=False, now=float(number))
        history.started(pending)
        if number == 2:
            history.failed(pending, 2.5, "the disk is full")
        else:
            history.completed(pending, number + 0.5)
    overview = history.overview()
    assert [one.checkpoint.number for one in overview.history] == [50, 49, 48]
    assert overview.failed is not None
    assert (overview.failed.checkpoint.number, overview.failed.failure) == (2, "the disk is full")
    assert (overview.counts.triggered, overview.counts.completed, overview.counts.failed) == (50, 49, 1)
    assert overview.counts.in_progress == 0


def test_memory_per_checkpoint_does_not_grow_with_the_tasks() -> None:
    many = tuple(TaskId("a", number) for number in range(5000))
    history = CheckpointHistory({"a": len(many)}, length=3)
    pending = PendingCheckpoint(FIRST, (), many, proposing=False, now=0.0)
    history.started(pending)
    for task in many:
        history.acknowledged(acked(task, FIRST, 1, 0.0, SnapshotTiming()), 1.0)
    assert len(history.overview().history[0].vertices[0].slowest) == SLOWEST


@pytest.mark.parametrize(
    ("values", "median", "p90", "p99"), [([5.0], 5.0, 5.0, 5.0), ([float(n) for n in range(1, 101)], 50.0, 90.0, 99.0)]
)
def test_percentiles_are_values_that_occurred(values: list[float], median: float, p90: float, p99: float) -> None:
    found = summarise(values[::-1])
    assert (found.p50, found.p90, found.p99) == (median, p90, p99)
    assert (found.least, found.most) == (values[0], values[-1])


def test_coordinator_counts_what_it_triggered_completed_failed_and_restored() -> None:
    driver = running(TOLERANT)
    driver.pass_time(1.0)
    driver.complete()
    driver.pass_time(2.0)
    assert driver.core.checkpoint_statistics().counts.in_progress == 1
    driver.tell(TaskDeclined(SINK, A1, SECOND, FULL_DISK, 2.1))
    overview = driver.core.checkpoint_statistics()
    assert (overview.counts.triggered, overview.counts.completed, overview.counts.failed) == (2, 1, 1)
    assert overview.failed is not None
    assert overview.failed.failure == FULL_DISK.message
    driver.tell(TaskLost(SINK, A1, "killed", 2.2))
    driver.pass_time(3.0)
    restored = driver.core.checkpoint_statistics().restored
    assert restored is not None
    assert (restored.checkpoint, restored.at, restored.is_savepoint) == (FIRST, 3.0, False)


def test_savepoints_have_a_place_of_their_own() -> None:
    driver = running(Settings(interval=None))
    driver.tell(SavepointRequested("mine", "", 0.0))
    assert driver.core.checkpoint_statistics().history[0].cause == "a user asked for a savepoint"
    for task in (SOURCE, SINK):
        orders = driver.tell(TaskAcked(task, A1, FIRST, (handle(task, FIRST, A1),), (), False, 0.2))
    assert isinstance(orders[-1], CopySavepoint)
    driver.tell(SavepointStored(FIRST, "there", 0.4))
    shown = driver.core.checkpoint_statistics().savepoint
    assert shown is not None
    assert (shown.location, shown.kind, shown.bytes) == ("there", "savepoint", 20)
