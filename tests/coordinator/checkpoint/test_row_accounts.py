"""What does not balance is not stored, and what was not restored whole is not started."""

from __future__ import annotations

import pytest

from penstock.coordinator.checkpoint.row_accounts import imbalance, opening_failure
from penstock.coordinator.model.commands import Command, EndJob, StartTask, StoreEntry
from penstock.coordinator.model.events import TaskAcked, TaskDeployed, TaskLost
from penstock.engine.core.identity import Account, Holds, StateHandle, Tally
from support.coordinator_driver import A1, A2, FIRST, SINK, SOURCE, handle, in_checkpoint

TEN = Tally(10, 2, 77)


def account(**changed: Tally | None) -> Account:
    parts = {"given": TEN, "taken": Tally(7, 1, 2**64 - 3), "in_flight": Tally(3, 1, 80), **changed}
    return Account("exchange", "gather-1", **parts)  # type: ignore[arg-type]


FLIGHT = StateHandle("sink", "x", 1, 4, Holds.FLIGHT)
"""Three rows, and one that says where they stood."""


def said(account: Account, *flights: StateHandle) -> str:
    files = (*flights, StateHandle("sum", "y", 1, 99))
    failure = imbalance(FIRST, SINK, (account,), files)
    return "" if failure is None else failure.message


def test_sums_of_checksums_wrap_around() -> None:
    assert said(account(), FLIGHT) == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"given": Tally(11, 2, 77)},
        {"given": Tally(10, 3, 77)},
        {"given": Tally(10, 2, 78)},
        {"restored": Tally(1, 1, 5)},
        {"dropped": Tally(1, 1, 5)},
        {"given": None},
    ],
)
def test_rows_batches_and_checksums_must_agree(changed: dict[str, Tally | None]) -> None:
    assert "'gather-1' at sink[0] do not balance" in said(account(**changed), FLIGHT)


def test_rows_are_in_flight_only_at_a_task_that_wrote_them() -> None:
    assert "3 rows of exchange 'gather-1' in flight, and wrote none" in said(account())


def test_rows_in_flight_are_restored_once_each() -> None:
    files = [FLIGHT, StateHandle("sink", "x", 1, 6, Holds.FLIGHT), StateHandle("sum", "y", 1, 99)]
    assert opening_failure(SINK, files, 10) is None
    assert opening_failure(SINK, [], 0) is None
    for wrong in (4, 20, 0):
        assert opening_failure(SINK, files, wrong) is not None


def acknowledged(*ledger: Account) -> list[Command]:
    """The orders when the last task has acknowledged a checkpoint, with this ledger."""
    driver = in_checkpoint()
    driver.ack(SOURCE, FIRST)
    files = (handle(SINK, FIRST, A1),)
    return driver.tell(TaskAcked(SINK, A1, FIRST, files, (), False, driver.now, ledger=ledger))


def test_checkpoint_that_does_not_balance_ends_the_job_instead_of_being_stored() -> None:
    whole = account(taken=TEN, in_flight=Tally())
    assert any(isinstance(order, StoreEntry) for order in acknowledged(whole))
    orders = acknowledged(whole, account(taken=TEN, in_flight=Tally(), given=Tally(11, 2, 77)))
    assert not any(isinstance(order, StoreEntry) for order in orders)
    (end,) = [order for order in orders if isinstance(order, EndJob)]
    assert end.status == "failed"
    assert end.failure is not None
    assert "gather-1" in end.failure.message
    assert not end.failure.retry


def test_region_that_was_not_restored_with_what_was_in_flight_is_not_started() -> None:
    for rows, starts in ((4, True), (3, False)):
        driver = in_checkpoint()
        driver.ack(SOURCE, FIRST)
        driver.stored(driver.tell(TaskAcked(SINK, A1, FIRST, (FLIGHT,), (), False, driver.now))[-1])
        driver.tell(TaskLost(SINK, A1, "gone", driver.now))
        driver.pass_time(1000.0)
        driver.tell(TaskDeployed(SOURCE, A2, driver.now))
        orders = driver.tell(TaskDeployed(SINK, A2, driver.now, opening=rows))
        assert any(isinstance(order, StartTask) for order in orders) == starts
        assert any(isinstance(order, EndJob) for order in orders) != starts
