"""The coordinator, event by event: savepoints, stopping with one, and starting from one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.coordinator.model.commands import (
    AbortCheckpoint,
    Command,
    CommitOrphans,
    CopySavepoint,
    DeployTask,
    DiscardCopies,
    DiscardState,
    EndJob,
    ProposeRound,
    StopTask,
    StoreEntry,
    StoreSavepoint,
    TriggerCheckpoint,
)
from penstock.coordinator.model.events import (
    CancelRequested,
    EntryFailed,
    SavepointCopied,
    SavepointFailed,
    SavepointRequested,
    SavepointStored,
    StopRequested,
    TaskCommitted,
    TaskDeclined,
    TaskLost,
)
from penstock.coordinator.model.kinds import StopMode
from penstock.coordinator.model.manifest import Ended, Manifest
from penstock.coordinator.model.retention import RetentionPolicy
from penstock.coordinator.model.settings import Settings
from penstock.engine.core.identity import Attempt, BarrierKind, CheckpointId, CommitPermit
from support.coordinator_driver import (
    A1,
    FIRST,
    FULL_DISK,
    SINK,
    SOURCE,
    TOLERANT,
    CoordinatorDriver,
    committable,
    handle,
    in_checkpoint,
    running,
)

QUIET = Settings(interval=None, tolerable_failures=5)


def ask(driver: CoordinatorDriver, name: str = "mine", target: str = "") -> list[TriggerCheckpoint]:
    orders = driver.tell(SavepointRequested(name, target, driver.now))
    return [order for order in orders if isinstance(order, TriggerCheckpoint)]


def acknowledged(driver: CoordinatorDriver, checkpoint: CheckpointId = FIRST, ended: bool = False) -> CopySavepoint:
    """Everybody has answered; the order that follows."""
    driver.ack(SOURCE, checkpoint, ended=ended)
    order = driver.ack(SINK, checkpoint, committable(1), ended=ended)[-1]
    assert isinstance(order, CopySavepoint)
    return order


def copied(driver: CoordinatorDriver, place: str = "there") -> StoreSavepoint:
    """The files are copied; the order that makes them a savepoint."""
    (order,) = driver.tell(SavepointCopied(FIRST, place, driver.now))
    assert isinstance(order, StoreSavepoint)
    return order


# --- savepoints ------------------------------------------------------------------------------------------------------


def test_savepoint_names_copies_in_its_own_folder_and_commits_nothing() -> None:
    driver = running(QUIET)
    (trigger,) = ask(driver, target="s3://keep")
    assert (trigger.kind, trigger.stop) == (BarrierKind.SAVEPOINT, None)
    copy = acknowledged(driver)
    files = {handle(task, FIRST, A1).location for task in (SOURCE, SINK)}
    assert (copy.target, copy.request) == ("s3://keep", "mine")
    order = copied(driver, "s3://keep")
    assert (order.location, order.copies) == ("s3://keep", copy.copies)
    assert {source for source, _ in order.copies} == files
    named = [one.location for state in order.manifest.tasks for one in state.state]
    assert sorted(named) == sorted(target for _, target in order.copies)
    assert all(name.startswith("state/1.1/") for name in named), "nobody else copies there"
    orders = driver.tell(SavepointStored(FIRST, "s3://keep", 0.5))
    assert [type(one) for one in orders] == [DiscardState]
    result = driver.core.status().savepoint("mine")
    assert result is not None
    assert (result.location, result.checkpoint, result.failure) == ("s3://keep", FIRST, None)
    assert driver.core.status().latest_completed is None


def test_savepoint_asked_for_twice_under_one_name_is_taken_once() -> None:
    driver = running(QUIET)
    assert len(ask(driver)) == 1
    assert ask(driver) == []
    acknowledged(driver)
    copied(driver)
    driver.tell(SavepointStored(FIRST, "here", 0.5))
    assert ask(driver) == []
    assert len(driver.core.status().savepoints) == 1


def test_savepoint_waits_for_the_checkpoint_in_flight_and_goes_ahead_of_the_next() -> None:
    driver = in_checkpoint()
    assert ask(driver) == []
    assert [one.kind for one in driver.core.status().in_flight] == ["checkpoint"]
    driver.ack(SOURCE, FIRST)
    driver.pass_time(9.0)
    driver.stored(driver.ack(SINK, FIRST)[-1])
    assert [one.kind for one in driver.core.status().in_flight] == ["savepoint"]


def test_savepoint_that_cannot_be_written_is_told_and_does_not_count() -> None:
    driver = running(Settings(interval=None, tolerable_failures=0))
    ask(driver)
    acknowledged(driver)
    orders = driver.tell(SavepointFailed(FIRST, FULL_DISK, 0.5))
    assert [type(order) for order in orders] == [DiscardState]
    result = driver.core.status().savepoint("mine")
    assert result is not None
    assert (result.location, result.failure) == (None, FULL_DISK)
    assert driver.core.status().state == "running"


def test_copies_for_a_savepoint_that_was_given_up_are_removed() -> None:
    driver = running(QUIET)
    ask(driver)
    acknowledged(driver)
    driver.pass_time(700.0)
    assert driver.tell(SavepointCopied(FIRST, "there", 700.0)) == [DiscardCopies(FIRST, "there")]
    result = driver.core.status().savepoint("mine")
    assert result is not None
    assert result.failure is not None


def test_savepoints_that_never_began_are_told_when_the_job_ends() -> None:
    driver = CoordinatorDriver(settings=QUIET)
    driver.claim()
    ask(driver)
    driver.tell(CancelRequested(0.5))
    result = driver.core.status().savepoint("mine")
    assert result is not None
    assert result.failure is not None
    assert "the job is over" in result.failure.message


def test_files_of_tasks_that_had_finished_stay_while_a_savepoint_copies_them() -> None:
    """The checkpoint that holds them may be the oldest one kept."""
    driver = running(Settings(interval=None, retained=1))
    ask(driver)
    order = acknowledged(driver)
    pending = driver.core._job.checkpoints.pendings[FIRST]
    assert set(pending.named) == {source for source, _ in order.copies}


# --- stopping --------------------------------------------------------------------------------------------------------


def stopping(mode: StopMode = StopMode.SUSPEND, settings: Settings = QUIET) -> CoordinatorDriver:
    driver = running(settings)
    orders = driver.tell(StopRequested("end", "", mode, 0.1))
    assert [order.stop for order in orders if isinstance(order, TriggerCheckpoint)] == [mode]
    return driver


def stopped(driver: CoordinatorDriver) -> StoreEntry:
    """The savepoint's files are copied; the order of its manifest."""
    assert acknowledged(driver, ended=True).request == "", "nobody else's savepoint is the one that the job stops with"
    (order,) = driver.tell(SavepointCopied(FIRST, "there", 0.4))
    assert isinstance(order, StoreEntry)
    return order


def published(driver: CoordinatorDriver, orders: list[Command]) -> list[Command]:
    """The savepoint is created in its folder; what follows."""
    (order,) = [order for order in orders if isinstance(order, StoreSavepoint)]
    assert (order.checkpoint, order.location, order.manifest.number) == (FIRST, "there", 0)
    return driver.tell(SavepointStored(FIRST, "there", 0.5))


@pytest.mark.parametrize("mode", StopMode)
def test_job_stops_once_its_savepoint_is_in_the_log_and_commits_what_that_holds(mode: StopMode) -> None:
    driver = stopping(mode)
    order = stopped(driver)
    assert isinstance(order.entry, Manifest)
    assert (order.entry.kind, order.entry.savepoint, order.entry.request) == ("stop with savepoint", "there", "end")
    orphans, permit = Attempt(1, 0), CommitPermit(FIRST, (committable(1),))
    orders = driver.stored(order)
    assert orders[:-1] == [StopTask(SOURCE, A1), StopTask(SINK, A1), CommitOrphans(SINK, orphans, permit)]
    assert driver.core.status().state == "stopping"
    assert driver.core.status().savepoint("end") is None
    assert published(driver, orders) == []
    (close,) = driver.tell(TaskCommitted(SINK, orphans, FIRST, 0.6))
    assert close == StoreEntry(Ended(number=2, generation=1, status="stopped", reason="there"))
    assert driver.stored(close) == [EndJob("stopped", None)]
    result = driver.core.status().savepoint("end")
    assert result is not None
    assert result.location == "there"


def test_coordinator_that_finds_such_a_savepoint_commits_and_closes_without_deploying_anything() -> None:
    driver = stopping()
    driver.stored(stopped(driver))
    heir = CoordinatorDriver(log=driver.log, owner="heir", settings=QUIET)
    orders = heir.claim()
    assert [type(order) for order in orders] == [CommitOrphans, StoreSavepoint]
    assert heir.tell(TaskCommitted(SINK, Attempt(2, 0), FIRST, 0.6)) == []
    (close,) = published(heir, orders)
    assert isinstance(close, StoreEntry)
    assert heir.stored(close) == [EndJob("stopped", None)]
    result = heir.core.status().savepoint("end")
    assert result is not None
    assert (result.location, result.checkpoint) == ("there", FIRST)


def test_coordinator_that_dies_before_the_log_knows_the_savepoint_leaves_none_and_its_heir_takes_its_own() -> None:
    """The request is sent again under its name: what stands in the folder is what the job stops with."""
    driver = stopping()
    stopped(driver)
    heir = CoordinatorDriver(log=driver.log, owner="heir", settings=QUIET)
    heir.claim()
    heir.run()
    heir.tell(StopRequested("end", "", StopMode.SUSPEND, 0.6))
    second = CheckpointId(2, 1)
    copy = acknowledged(heir, second, ended=True)
    assert all(target.startswith("state/2.1/") for _, target in copy.copies)
    (order,) = heir.tell(SavepointCopied(second, "there", 0.7))
    (create,) = [order for order in heir.stored(order) if isinstance(order, StoreSavepoint)]
    assert (create.manifest.checkpoint, create.copies) == (second, copy.copies)


def test_savepoint_that_the_job_stops_with_is_tried_again_and_then_fails_the_job_which_stays_stopped_in_the_log() -> (
    None
):
    driver = stopping(settings=replace(QUIET, retention=RetentionPolicy.NEVER))
    orders = driver.stored(stopped(driver))
    driver.tell(TaskCommitted(SINK, Attempt(1, 0), FIRST, 0.6))
    for _ in range(3):
        assert isinstance(orders[-1], StoreSavepoint)
        orders = driver.tell(SavepointFailed(FIRST, FULL_DISK, 0.7))
    (end,) = orders
    assert isinstance(end, EndJob)
    assert end.failure is not None
    assert "the savepoint that it has stopped with cannot be written" in end.failure.message
    heir = CoordinatorDriver(log=driver.log, owner="heir", settings=QUIET)
    assert isinstance(heir.claim()[-1], StoreSavepoint)


def test_savepoint_of_the_same_request_that_is_there_already_is_the_result() -> None:
    driver = running(QUIET)
    ask(driver)
    acknowledged(driver)
    driver.tell(SavepointStored(FIRST, "there", 0.5, holds=CheckpointId(0, 9)))
    result = driver.core.status().savepoint("mine")
    assert result is not None
    assert (result.location, result.checkpoint) == ("there", CheckpointId(0, 9))


def test_stop_that_fails_after_its_trigger_restarts_the_job_because_its_sources_have_stopped() -> None:
    driver = stopping()
    orders = driver.tell(TaskDeclined(SINK, A1, FIRST, FULL_DISK, 0.5))
    assert [type(order) for order in orders] == [AbortCheckpoint, AbortCheckpoint, StopTask, StopTask]
    assert driver.core.status().state == "restarting"
    result = driver.core.status().savepoint("end")
    assert result is not None
    assert result.failure == FULL_DISK
    assert [type(order) for order in driver.pass_time(1.0)] == [DeployTask, DeployTask]


def test_stop_that_is_given_up_before_its_trigger_leaves_the_job_alone() -> None:
    driver = running(QUIET, deterministic=True)
    assert driver.tell(StopRequested("end", "", StopMode.DRAIN, 0.1)) == [ProposeRound(SOURCE, A1, FIRST)]
    driver.pass_time(601.0)
    assert driver.core.status().state == "running"


def test_nothing_else_starts_while_the_job_stops() -> None:
    driver = stopping(settings=Settings(interval=1.0))
    assert driver.pass_time(2.0) == []
    assert ask(driver) == []


def test_task_that_is_lost_while_the_manifest_of_a_stop_is_being_stored_is_not_missed_once_it_is_durable() -> None:
    driver = stopping(settings=replace(TOLERANT, interval=None))
    order = stopped(driver)
    driver.tell(TaskLost(SOURCE, A1, "killed", 0.5))
    assert driver.pass_time(2.0) == []
    orders = driver.stored(order)
    assert [type(one) for one in orders] == [CommitOrphans, StoreSavepoint]
    assert driver.core.status().state == "stopping"


def test_stop_whose_manifest_turns_out_to_stand_stops_the_job_after_all() -> None:
    """It was given up, the job restarts; before anything is deployed the log is asked."""
    driver = stopping(settings=replace(TOLERANT, interval=None))
    order = stopped(driver)
    driver.tell(EntryFailed(1, FULL_DISK, 0.5))
    driver.read_log()
    assert driver.core.status().state == "restarting"
    (claim,) = driver.pass_time(2.0)
    assert isinstance(claim, StoreEntry)
    driver.log.append(order.entry)
    driver.tell(EntryFailed(1, FULL_DISK, 2.0))
    driver.read_log()
    assert driver.core.status().state == "stopping"
