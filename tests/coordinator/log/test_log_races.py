"""The coordinator and its log: writes that land late, endings that cannot be written, and what may be deleted when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from penstock.coordinator.log.recovery import Over, TakeOver, decide_recovery
from penstock.coordinator.model.commands import (
    Command,
    DeployTask,
    DiscardEntries,
    DiscardState,
    EndJob,
    ReadLog,
    StoreEntry,
)
from penstock.coordinator.model.events import (
    CancelRequested,
    DataEnded,
    EntryFailed,
    EntryRefused,
    EntryStored,
    LogFailed,
    LogRead,
    PinRequested,
    TaskCommitted,
    TaskFinished,
    TaskLost,
    UnpinRequested,
)
from penstock.coordinator.model.manifest import Claim, Dropped, Ended, Manifest, Pinned, Unpinned
from penstock.coordinator.model.retention import RetentionPolicy
from penstock.coordinator.model.settings import Settings
from support.coordinator_driver import (
    A1,
    FIRST,
    FULL_DISK,
    SECOND,
    SINK,
    SOURCE,
    TOLERANT,
    CoordinatorDriver,
    committable,
    handle,
    in_checkpoint,
    running,
)

KEEPS_NOTHING = Settings(interval=1.0, retention=RetentionPolicy.NEVER, max_restarts=0)


def stored_by(orders: list[Command]) -> StoreEntry:
    (order,) = [order for order in orders if isinstance(order, StoreEntry)]
    return order


def fails_and_lands_late(driver: CoordinatorDriver, order: StoreEntry, other: StoreEntry) -> list[Command]:
    """``order`` failed, ``other`` was ordered at its number and is refused: the first one had been under way."""
    assert order.entry.number == other.entry.number
    driver.log.append(order.entry)
    assert driver.tell(EntryRefused(other.entry.number, driver.now)) == [ReadLog()]
    return driver.read_log()


def completed_once(settings: Settings) -> CoordinatorDriver:
    driver = in_checkpoint(settings)
    driver.complete(committable(1))
    driver.tell(TaskCommitted(SINK, A1, FIRST, 1.0))
    driver.tell(TaskCommitted(SOURCE, A1, FIRST, 1.0))
    return driver


# --- late writes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given_up", [False, True])
def test_pin_that_lands_late_is_one_and_the_checkpoint_follows_it(given_up: bool) -> None:
    driver = completed_once(Settings(interval=1.0))
    pin = stored_by(driver.tell(PinRequested(FIRST, "model", 1.1)))
    if given_up:
        driver.stored(pin)
        pin = stored_by(driver.tell(UnpinRequested("model", 1.2)))
    driver.pass_time(2.5)
    driver.ack(SOURCE, SECOND)
    driver.ack(SINK, SECOND, committable(2))
    assert driver.tell(EntryFailed(pin.entry.number, FULL_DISK, 2.6)) == [ReadLog()]
    manifest = stored_by(driver.read_log())
    assert isinstance(manifest.entry, Manifest)
    again = stored_by(fails_and_lands_late(driver, pin, manifest))
    assert isinstance(again.entry, Manifest)
    assert again.entry.number == manifest.entry.number + 1
    assert driver.core.status().pins == ({} if given_up else {"model": FIRST})
    assert not [order for order in driver.stored(again) if isinstance(order, StoreEntry)], "it is not asked for twice"
    assert isinstance(driver.log[-2], Unpinned if given_up else Pinned)


def test_claim_of_ones_own_that_lands_late_is_no_successor() -> None:
    """A manifest failed; so did the claim that settles its number; the next entry finds that claim there."""
    driver = completed_once(replace(TOLERANT, interval=1.0, retention=RetentionPolicy.NEVER))
    driver.pass_time(2.5)
    driver.ack(SOURCE, SECOND)
    driver.ack(SINK, SECOND)
    driver.tell(EntryFailed(2, FULL_DISK, 2.6))
    driver.read_log()
    driver.tell(TaskLost(SINK, A1, "killed", 2.7))
    claim = stored_by(driver.pass_time(3.0))
    assert isinstance(claim.entry, Claim)
    assert driver.tell(EntryFailed(2, FULL_DISK, 3.1)) == [ReadLog()]
    assert driver.tell(CancelRequested(3.2)) == []
    dropped = stored_by(driver.read_log())
    assert isinstance(dropped.entry, Dropped)
    again = stored_by(fails_and_lands_late(driver, claim, dropped))
    assert again.entry == Dropped(number=3, generation=1, numbers=(1,))
    assert driver.stored(again)[-1] == EndJob("cancelled", None)


def test_first_claim_that_lands_late_in_a_hole_of_the_log_is_not_somebody_elses() -> None:
    """1. Our claim of 1 fails. 2. The old coordinator stores 1, 2, 3 and deletes 1. 3. We claim 4. 4. The first claim
    lands in the hole."""
    old = in_checkpoint(Settings(retained=1))
    heir = CoordinatorDriver(log=list(old.log), owner="heir")
    (first,) = heir.read_log()
    assert isinstance(first, StoreEntry)
    assert heir.tell(EntryFailed(1, FULL_DISK, 0.0)) == [ReadLog()]
    old.complete()
    old.pass_time(2.0)
    old.complete()
    heir.log[:] = [old.log[0], old.log[2]]
    (second,) = heir.read_log()
    assert isinstance(second, StoreEntry)
    assert second.entry.number == 3
    heir.log.insert(1, first.entry)
    assert heir.stored(second) == [ReadLog()]
    assert {type(order) for order in heir.read_log()} == {DeployTask}


# --- endings ---------------------------------------------------------------------------------------------------------


def finishing(settings: Settings) -> tuple[CoordinatorDriver, StoreEntry]:
    """All is committed; the order that closes the log."""
    driver = running(settings)
    for task in (SOURCE, SINK):
        driver.tell(DataEnded(task, A1, 0.1))
    driver.pass_time(1.0)
    driver.complete(ended=True)
    for task in (SOURCE, SINK):
        driver.tell(TaskCommitted(task, A1, FIRST, 1.2))
        orders = driver.tell(TaskFinished(task, A1, 1.3))
    return driver, stored_by(orders)


def test_job_whose_log_cannot_be_closed_has_failed_and_deletes_nothing() -> None:
    driver, order = finishing(KEEPS_NOTHING)
    for _ in range(3):
        assert isinstance(order.entry, Ended)
        driver.tell(EntryFailed(order.entry.number, FULL_DISK, 1.4))
        orders = driver.read_log()
        order = orders[0] if isinstance(orders[0], StoreEntry) else order
    (end,) = orders
    assert isinstance(end, EndJob)
    assert end.status == "failed"
    assert end.failure is not None
    assert "all work of job 'job' is done, but its log cannot be closed" in end.failure.message
    heir = CoordinatorDriver(settings=KEEPS_NOTHING, log=driver.log, owner="heir")
    assert {order.restored_from for order in heir.claim() if isinstance(order, DeployTask)} == {FIRST}


@pytest.mark.parametrize("how", ["a task is lost", "cancelled"])
def test_superseded_coordinator_deletes_nothing_when_it_ends(how: str) -> None:
    old = completed_once(KEEPS_NOTHING)
    heir = CoordinatorDriver(settings=KEEPS_NOTHING, log=old.log, owner="heir")
    heir.claim()
    orders = old.tell(TaskLost(SOURCE, A1, how, 2.0) if how == "a task is lost" else CancelRequested(2.0))
    order = stored_by(orders)
    assert order.entry == Dropped(number=2, generation=1, numbers=(1,))
    assert not [order for order in orders if isinstance(order, DiscardEntries | DiscardState | EndJob)]
    assert old.tell(EntryRefused(2, 2.1)) == [ReadLog()]
    (end,) = old.read_log()
    assert isinstance(end, EndJob)
    assert end.status == "superseded"


def test_checkpoints_that_are_not_kept_go_once_the_log_says_so() -> None:
    driver = completed_once(KEEPS_NOTHING)
    order = stored_by(driver.tell(CancelRequested(2.0)))
    files = (handle(SINK, FIRST, A1), handle(SOURCE, FIRST, A1))
    assert driver.stored(order) == [DiscardEntries((1,)), DiscardState(files), EndJob("cancelled", None)]


def test_ending_that_keeps_a_pinned_checkpoint_keeps_the_newest_so_that_nobody_goes_on_from_an_older_one() -> None:
    driver = completed_once(KEEPS_NOTHING)
    driver.stored(stored_by(driver.tell(PinRequested(FIRST, "model", 1.1))))
    driver.pass_time(2.5)
    driver.complete()
    for task in (SINK, SOURCE):
        driver.tell(TaskCommitted(task, A1, SECOND, 2.6))
    assert driver.tell(CancelRequested(3.0))[-1] == EndJob("cancelled", None)


def test_ending_that_cannot_say_what_it_deletes_deletes_nothing() -> None:
    driver = completed_once(KEEPS_NOTHING)
    order = stored_by(driver.tell(CancelRequested(2.0)))
    for _ in range(3):
        driver.tell(EntryFailed(order.entry.number, FULL_DISK, 2.1))
        orders = driver.read_log()
    assert orders == [EndJob("cancelled", None)]


def test_nobody_goes_on_from_what_an_ending_has_dropped_and_the_next_one_finishes_deleting_it() -> None:
    driver = completed_once(KEEPS_NOTHING)
    driver.log.append(stored_by(driver.tell(CancelRequested(2.0))).entry)  # and dies
    heir = CoordinatorDriver(settings=KEEPS_NOTHING, log=driver.log, owner="heir")
    orders = heir.claim()
    assert {order.restored_from for order in orders if isinstance(order, DeployTask)} == {None}
    assert DiscardEntries((1,)) in orders
    decision = decide_recovery(driver.log, "print", "job")
    assert isinstance(decision, TakeOver)
    assert (decision.manifests, decision.next_checkpoint) == ((), 2)


def test_nobody_goes_on_from_what_was_superfluous_when_the_newest_was_dropped() -> None:
    """The deletion of the first checkpoint is late, or has failed: it still stands when an ending drops the second."""
    driver = completed_once(replace(KEEPS_NOTHING, retained=1))
    driver.pass_time(2.5)
    driver.complete()
    for task in (SINK, SOURCE):
        driver.tell(TaskCommitted(task, A1, SECOND, 2.6))
    order = stored_by(driver.tell(CancelRequested(3.0)))
    assert order.entry == Dropped(number=3, generation=1, numbers=(2,))
    driver.log.append(order.entry)
    heir = CoordinatorDriver(settings=KEEPS_NOTHING, log=driver.log, owner="heir")
    orders = heir.claim()
    assert {order.restored_from for order in orders if isinstance(order, DeployTask)} == {None}
    assert DiscardEntries((1, 2)) in orders


def test_pinned_checkpoint_of_a_finished_job_stays_when_the_job_is_run_again() -> None:
    driver, _ = finishing(Settings(interval=1.0))
    driver.log += [Pinned(number=2, generation=1, checkpoint=FIRST, name="model")]
    driver.log += [Ended(number=3, generation=1, status="finished")]
    decision = decide_recovery(driver.log, "print", "job")
    assert isinstance(decision, Over)
    again = CoordinatorDriver(settings=KEEPS_NOTHING, log=driver.log)
    assert again.tell(LogRead(tuple(driver.log), 0.0)) == [EndJob("finished", None)]


def test_nothing_is_dropped_of_a_job_that_is_done_but_for_the_end_of_its_log() -> None:
    """Also if the log cannot be read: whoever began anew would repeat all of its rows."""
    driver, close = finishing(KEEPS_NOTHING)
    driver.tell(EntryFailed(close.entry.number, FULL_DISK, 1.4))
    (end,) = driver.tell(LogFailed(changed(FULL_DISK, retry=False), 1.5))
    assert isinstance(end, EndJob)
    assert end.status == "failed"


def test_entry_that_is_stored_at_last_forgives_the_failures_before_it() -> None:
    driver, order = finishing(Settings(interval=1.0))
    for _ in range(2):
        driver.tell(EntryFailed(order.entry.number, FULL_DISK, 1.4))
        driver.read_log()
    driver.log.append(order.entry)
    assert driver.tell(EntryStored(order.entry.number, 1.5))[-1] == EndJob("finished", None)
