"""A region that does not run is carried: other regions' checkpoints go on, and say of it what the one before did."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from penstock.coordinator.model import events
from penstock.coordinator.model.commands import (
    AbortCheckpoint,
    Command,
    CommitCheckpoint,
    CommitOrphans,
    DeployTask,
    DiscardState,
    StoreEntry,
    TriggerCheckpoint,
)
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from penstock.coordinator.model.manifest import Manifest
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.model.statistics import CheckpointStatistics
from penstock.engine.core.identity import Attempt, CheckpointId, TaskId
from support.coordinator_driver import A1, A2, FULL_DISK, SINK, SOURCE, CoordinatorDriver, committable, handle

OTHER = TaskId("other", 0)
LOST = events.Failure("the process is gone", retry=True)
SLOW = Settings(restart_delay=10.0, max_restart_delay=10.0, tolerable_failures=0)
CUTS = [CheckpointId(1, number) for number in range(9)]


def two_regions(other: Vertex | None = None) -> ExecutionGraph:
    """A source that feeds a sink, and beside them a task that is both."""
    edge = JobEdge("source", "sink", Pattern.ALL_TO_ALL)
    vertices = (Vertex("source", 1, ("source",)), Vertex("sink", 1, ("sink",)))
    return ExecutionGraph((*vertices, other or Vertex("other", 1, ("other",))), (edge,))


def running(graph: ExecutionGraph | None = None, settings: Settings = SLOW, *, whole: bool = True) -> CoordinatorDriver:
    """A job whose first checkpoint is complete, unless not ``whole``."""
    driver = CoordinatorDriver(graph or two_regions(), settings)
    driver.claim()
    driver.run()
    if whole:
        driver.pass_time(1.0)
        take(driver, CUTS[1], SOURCE, SINK, OTHER)
    return driver


def take(driver: CoordinatorDriver, checkpoint: CheckpointId, *tasks: TaskId, number: int = 1) -> Manifest:
    """These acknowledge, with something to commit each, and the checkpoint is stored."""
    orders: list[Command] = []
    for task in tasks:
        orders = driver.ack(task, checkpoint, committable(10 * checkpoint.number + tasks.index(task)), number=number)
    driver.stored(orders[-1])
    manifest = driver.log[-1]
    assert isinstance(manifest, Manifest)
    assert manifest.checkpoint == checkpoint
    return manifest


def lose(driver: CoordinatorDriver, task: TaskId, attempt: Attempt = A1) -> list[Command]:
    return driver.tell(events.TaskFailed(task, attempt, LOST, driver.now))


def states(manifest: Manifest) -> dict[TaskId, tuple[str, CheckpointId | None]]:
    """By task: its file, and of which checkpoint it is."""
    return {state.task: (state.state[0].location, state.cut) for state in manifest.tasks}


def file_of(task: TaskId, checkpoint: CheckpointId, attempt: Attempt = A1) -> str:
    return handle(task, checkpoint, attempt).location


def of_kind(orders: list[Command], kind: type) -> list[Command]:
    return [order for order in orders if isinstance(order, kind)]


def statistics(driver: CoordinatorDriver) -> CheckpointStatistics:
    return driver.core.checkpoint_statistics().history[0]


def test_checkpoint_goes_on_without_the_region_that_is_lost_meanwhile() -> None:
    driver = running()
    driver.pass_time(2.0)
    driver.ack(SOURCE, CUTS[2], committable(5))
    driver.ack(OTHER, CUTS[2], committable(6))
    orders = lose(driver, SINK)
    assert not of_kind(orders, AbortCheckpoint)
    (gone,) = of_kind(orders, DiscardState)
    assert gone == DiscardState((handle(SOURCE, CUTS[2], A1),)), "what it had acknowledged goes"
    (order,) = of_kind(orders, StoreEntry)
    driver.stored(order)
    manifest = driver.log[-1]
    assert isinstance(manifest, Manifest)
    assert states(manifest) == {
        OTHER: (file_of(OTHER, CUTS[2]), None),
        SOURCE: (file_of(SOURCE, CUTS[1]), CUTS[1]),
        SINK: (file_of(SINK, CUTS[1]), CUTS[1]),
    }
    status, shown = driver.core.status(), statistics(driver)
    assert (status.checkpoints_completed, status.checkpoints_failed) == (2, 0)
    assert (shown.status, shown.carried, shown.acknowledged, shown.total) == ("completed", 2, 1, 3)
    assert {each.vertex: (each.acknowledged, each.carried) for each in shown.vertices} == {
        "source": (0, 1),
        "sink": (0, 1),
        "other": (1, 0),
    }


def test_rows_of_other_regions_become_visible_while_one_restarts() -> None:
    driver = running()
    lose(driver, SINK)
    for number in (2, 3, 4):
        orders = driver.pass_time(float(number))
        assert [order.task for order in of_kind(orders, TriggerCheckpoint)] == [OTHER]
        manifest = take(driver, CUTS[number], OTHER)
        assert states(manifest)[SINK] == (file_of(SINK, CUTS[1]), CUTS[1])
    told = driver.tell(events.TaskCommitted(OTHER, A1, CUTS[4], driver.now))
    assert not told
    assert driver.core.status().state == "restarting"


def test_other_regions_are_told_to_commit_and_the_one_that_is_carried_is_not() -> None:
    driver = running()
    lose(driver, SINK)
    driver.pass_time(2.0)
    (order,) = driver.ack(OTHER, CUTS[2], committable(7))
    committed = of_kind(driver.stored(order), CommitCheckpoint)
    assert [(each.task, each.permit.committables) for each in committed] == [(OTHER, (committable(12), committable(7)))]


def test_what_a_carried_region_had_prepared_stays_listed_until_it_is_visible() -> None:
    driver = running()
    lose(driver, SINK)
    driver.pass_time(2.0)
    manifest = take(driver, CUTS[2], OTHER)
    assert {state.task: state.committables for state in manifest.tasks}[SINK] == ()
    assert {task for task, _ in manifest.uncommitted} >= {SOURCE, SINK}


def test_region_goes_on_from_its_own_cut_in_a_checkpoint_that_carries_it() -> None:
    driver = running()
    lose(driver, SINK)
    driver.pass_time(2.0)
    take(driver, CUTS[2], OTHER)
    deployed = {order.task: order for order in of_kind(driver.pass_time(11.0), DeployTask)}
    assert set(deployed) == {SOURCE, SINK}
    assert deployed[SINK].state == (handle(SINK, CUTS[1], A1),)
    for task in (SOURCE, SINK):
        driver.tell(events.TaskDeployed(task, A2, driver.now))
    assert driver.core.status().state == "running"
    take(driver, CUTS[3], OTHER)
    assert {order.task for order in of_kind(driver.pass_time(12.5), TriggerCheckpoint)} == {SOURCE, OTHER}
    driver.ack(OTHER, CUTS[4])
    manifest = take(driver, CUTS[4], SOURCE, SINK, number=2)
    assert {cut for _, cut in states(manifest).values()} == {None}


def test_successor_finds_what_a_checkpoint_carries() -> None:
    driver = running()
    lose(driver, SINK)
    driver.pass_time(2.0)
    take(driver, CUTS[2], OTHER)
    successor = CoordinatorDriver(two_regions(), SLOW, log=driver.log)
    deployed = {order.task: order for order in of_kind(successor.claim(), DeployTask)}
    assert deployed[SINK].state == (handle(SINK, CUTS[1], A1),)
    assert deployed[OTHER].state == (handle(OTHER, CUTS[2], A1),)


def test_nothing_is_taken_of_carried_regions_alone() -> None:
    driver = running()
    driver.pass_time(2.0)
    lose(driver, OTHER)
    orders = lose(driver, SINK)
    assert not of_kind(orders, StoreEntry)
    assert not of_kind(driver.pass_time(5.0), TriggerCheckpoint)
    assert driver.core.status().pending is None


def test_whole_cut_of_a_region_is_kept_until_the_region_is_deployed_again() -> None:
    driver = running(settings=replace(SLOW, restart_delay=0.2))
    driver.pass_time(2.0)
    driver.ack(SOURCE, CUTS[2])
    driver.ack(SINK, CUTS[2])
    lose(driver, SINK)
    assert driver.core.status().in_flight[0].carried == ()
    manifest = take(driver, CUTS[2], OTHER)
    assert {cut for _, cut in states(manifest).values()} == {None}
    assert of_kind(driver.pass_time(2.3), DeployTask)[0].restored_from == CUTS[2]


def test_region_that_is_deployed_again_gives_up_its_cut_that_is_not_stored_yet() -> None:
    driver = running(settings=replace(SLOW, restart_delay=0.2))
    driver.pass_time(2.0)
    driver.ack(SOURCE, CUTS[2])
    driver.ack(SINK, CUTS[2])
    lose(driver, SINK)
    orders = driver.pass_time(2.3)
    assert of_kind(orders, DeployTask)[0].restored_from == CUTS[1]
    assert driver.core.status().in_flight[0].carried == (SOURCE, SINK)
    manifest = take(driver, CUTS[2], OTHER)
    assert states(manifest)[SINK] == (file_of(SINK, CUTS[1]), CUTS[1])


def test_first_checkpoint_needs_every_region() -> None:
    driver = running(whole=False)
    driver.pass_time(1.0)
    assert [order.task for order in of_kind(lose(driver, SINK), AbortCheckpoint)][-1] == SOURCE
    assert not of_kind(driver.pass_time(5.0), TriggerCheckpoint)


def test_savepoint_that_the_job_stops_with_needs_every_region() -> None:
    driver = running()
    driver.tell(events.StopRequested("mine", "", events.StopMode.SUSPEND, driver.now))
    orders = lose(driver, SINK)
    assert OTHER in [order.task for order in of_kind(orders, AbortCheckpoint)]
    assert driver.core.status().savepoints[-1].failure is not None


def test_savepoint_needs_every_region() -> None:
    driver = running()
    driver.tell(events.SavepointRequested("mine", "", driver.now))
    orders = lose(driver, SINK)
    assert OTHER in [order.task for order in of_kind(orders, AbortCheckpoint)]
    assert driver.core.status().savepoints[-1].failure is not None
    driver.tell(events.SavepointRequested("another", "", driver.now))
    taken = of_kind(driver.pass_time(3.0), TriggerCheckpoint)
    assert {order.kind.value for order in taken} == {"checkpoint"}, "it waits until all of the job runs"


def test_user_gets_a_checkpoint_of_the_whole_job_when_it_runs_again() -> None:
    driver = running(settings=replace(SLOW, interval=None), whole=False)
    driver.tell(events.CheckpointRequested(driver.now))
    take(driver, CUTS[1], SOURCE, SINK, OTHER)
    driver.tell(events.CheckpointRequested(driver.now))
    lose(driver, SINK)
    take(driver, CUTS[2], OTHER)
    status = driver.core.status()
    assert (status.latest_completed, status.latest_whole) == (CUTS[2], CUTS[1])
    assert not of_kind(driver.pass_time(5.0), TriggerCheckpoint)
    driver.pass_time(10.0)
    orders: list[Command] = []
    for task in (SOURCE, SINK):
        orders = driver.tell(events.TaskDeployed(task, A2, driver.now))
    assert {order.task for order in of_kind(orders, TriggerCheckpoint)} == {SOURCE, OTHER}
    driver.ack(OTHER, CUTS[3])
    take(driver, CUTS[3], SOURCE, SINK, number=2)
    assert driver.core.status().latest_whole == CUTS[3]
    assert not of_kind(driver.pass_time(20.0), TriggerCheckpoint)


@pytest.mark.parametrize("other", [Vertex("other", 1, paced=True), Vertex("other", 1, takes_splits=True)])
def test_regions_that_others_depend_on_are_not_carried(other: Vertex) -> None:
    """Somebody outside reads its rows; or what it has read of the sets of splits is the job's, not its own."""
    driver = running(two_regions(other))
    driver.pass_time(2.0)
    orders = lose(driver, OTHER)
    assert SOURCE in [order.task for order in of_kind(orders, AbortCheckpoint)]
    assert not of_kind(driver.pass_time(5.0), TriggerCheckpoint)


def test_another_region_than_the_feeds_is_carried() -> None:
    driver = running(two_regions(Vertex("other", 1, paced=True)))
    lose(driver, SINK)
    assert [order.task for order in of_kind(driver.pass_time(2.0), TriggerCheckpoint)] == [OTHER]


def test_manifest_is_made_again_when_one_that_had_failed_is_in_the_log_after_all() -> None:
    """The one that had failed has a newer cut of the region that the next one carries."""
    driver = running(settings=replace(SLOW, tolerable_failures=9))
    driver.pass_time(2.0)
    orders: list[Command] = []
    for task in (SOURCE, SINK, OTHER):
        orders = driver.ack(task, CUTS[2], committable(20))
    (order,) = of_kind(orders, StoreEntry)
    assert isinstance(order, StoreEntry)
    late = order.entry
    driver.tell(events.EntryFailed(late.number, FULL_DISK, driver.now))
    driver.read_log()
    lose(driver, SINK)
    driver.pass_time(3.0)
    (second,) = of_kind(driver.ack(OTHER, CUTS[3], committable(30)), StoreEntry)
    assert isinstance(second, StoreEntry)
    assert isinstance(second.entry, Manifest)
    assert states(second.entry)[SINK] == (file_of(SINK, CUTS[1]), CUTS[1])
    driver.tell(events.EntryRefused(late.number, driver.now))
    driver.log.append(late)
    (again,) = of_kind(driver.read_log(), StoreEntry)
    assert isinstance(again, StoreEntry)
    assert isinstance(again.entry, Manifest)
    assert states(again.entry)[SINK] == (file_of(SINK, CUTS[2]), CUTS[2])
    assert (SINK, committable(20)) in again.entry.uncommitted
    assert again.entry.number == late.number + 1


def test_carried_end_of_data_lets_no_attempt_end() -> None:
    """It was the end of another attempt: this one comes there again, and wants a checkpoint then."""
    driver = running(settings=replace(SLOW, restart_delay=0.2), whole=False)
    driver.pass_time(1.0)
    orders: list[Command] = []
    for task in (SOURCE, SINK, OTHER):
        orders = driver.ack(task, CUTS[1], ended=task != OTHER)
    driver.stored(orders[-1])
    lose(driver, SINK)
    driver.pass_time(1.3)
    driver.pass_time(2.0)
    assert driver.core.status().in_flight[0].carried == (SOURCE, SINK)
    driver.tell(events.TaskDeployed(SOURCE, A2, driver.now))
    driver.tell(events.TaskDeployed(SINK, A2, driver.now))
    take(driver, driver.core.status().in_flight[0].checkpoint, OTHER)
    assert not driver.core._context.tasks[SOURCE].covered


def test_operators_of_a_carried_region_have_finished_as_far_as_they_had() -> None:
    driver = running(settings=SLOW, whole=False)
    driver.pass_time(1.0)
    orders: list[Command] = []
    for task in (SOURCE, SINK, OTHER):
        orders = driver.ack(task, CUTS[1], ended=task == SOURCE)
    driver.stored(orders[-1])
    driver.tell(events.TaskFinished(SOURCE, A1, driver.now))
    driver.pass_time(2.0)
    driver.ack(SINK, CUTS[2])
    driver.stored(driver.ack(OTHER, CUTS[2])[-1])
    lose(driver, SINK)
    driver.pass_time(3.0)
    manifest = take(driver, CUTS[3], OTHER)
    said = {entry.operator: entry.finished for entry in manifest.operators}
    assert said == {"source": "fully finished", "sink": "all running", "other": "all running"}
    source = next(state for state in manifest.tasks if state.task == SOURCE)
    assert (source.finished, source.cut) == (True, CUTS[2])


def test_what_the_job_waits_for_says_who_takes_no_part() -> None:
    driver = running()
    lose(driver, SINK)
    driver.pass_time(2.0)
    assert driver.core.status().why == (
        "a region restarts in 9.0 s; meanwhile checkpoint 1.2 waits for the snapshots of other[0], and goes on without "
        "source[0], sink[0], which did not run"
    )


def test_late_acknowledgement_of_the_attempt_that_was_lost_changes_nothing() -> None:
    driver = running()
    driver.pass_time(2.0)
    lose(driver, SINK)
    late = events.TaskAcked(SOURCE, A1, CUTS[2], (handle(SOURCE, CUTS[2], A1),), (committable(9),), False, driver.now)
    assert driver.tell(late) == [DiscardState((handle(SOURCE, CUTS[2], A1),))]
    assert states(take(driver, CUTS[2], OTHER))[SOURCE] == (file_of(SOURCE, CUTS[1]), CUTS[1])


def test_process_that_will_end_waits_for_a_checkpoint_that_its_task_takes_part_in() -> None:
    driver = running(settings=replace(SLOW, interval=None), whole=False)
    driver.tell(events.CheckpointRequested(driver.now))
    take(driver, CUTS[1], SOURCE, SINK, OTHER)
    lose(driver, SINK)
    driver.pass_time(0.0)
    driver.tell(events.NoticeGiven(OTHER, "", 100.0, driver.now))
    assert not of_kind(driver.pass_time(1.0), CommitOrphans)
    take_part = driver.core.status().in_flight[0]
    (order,) = of_kind(driver.ack(OTHER, take_part.checkpoint), StoreEntry)
    driver.stored(order)
    assert driver.core._context.tasks[OTHER].state.value == "stopped", "it took part, so it goes"
    assert changed(driver.core.status(), why="").latest_whole == CUTS[1]
