"""Processes that were told to end: a checkpoint at once, then a restart from that very checkpoint, elsewhere."""

from __future__ import annotations

from penstock.coordinator.model import events
from penstock.coordinator.model.commands import Command, DeployTask, ReplaceProcess, StopTask
from penstock.coordinator.model.events import NoticeGiven
from penstock.coordinator.model.settings import Settings
from support.coordinator_driver import (
    A1,
    FIRST,
    SECOND,
    SINK,
    SOURCE,
    CoordinatorDriver,
    in_checkpoint,
    running,
    trigger,
)

BUDGET = 10.0
ONLY_ON_REQUEST = Settings(interval=None, restart_delay=0.2)


def notice(driver: CoordinatorDriver, task: object = SOURCE) -> list[Command]:
    return driver.tell(NoticeGiven(task, "", BUDGET, driver.now))


def restored(orders: list[Command]) -> dict[object, object]:
    return {order.task: order.restored_from for order in orders if isinstance(order, DeployTask)}


def test_notice_takes_a_checkpoint_and_the_region_restarts_from_it_in_another_process() -> None:
    driver = running(ONLY_ON_REQUEST)
    driver.now = 1.0
    assert notice(driver) == [trigger(FIRST, 1.0)]
    orders = driver.complete()
    assert orders[-3:] == [StopTask(SOURCE, A1), StopTask(SINK, A1), ReplaceProcess(SOURCE)]
    assert restored(driver.pass_time(6.0)) == {SOURCE: FIRST, SINK: FIRST}
    driver.run(2)
    assert driver.core.status().state == "running"
    assert driver.core.status().restarts == 1


def test_checkpoint_that_had_begun_before_the_notice_is_not_enough() -> None:
    driver = in_checkpoint(Settings(interval=1.0, restart_delay=0.2))
    assert notice(driver) == []
    orders = driver.complete()
    assert ReplaceProcess(SOURCE) not in orders
    assert trigger(SECOND, driver.now) in orders
    assert driver.complete()[-1] == ReplaceProcess(SOURCE)


def test_whole_region_that_is_told_restarts_once() -> None:
    driver = running(ONLY_ON_REQUEST)
    notice(driver, SOURCE)
    notice(driver, SINK)
    notice(driver, SOURCE)
    replaced = [order for order in driver.complete() if isinstance(order, ReplaceProcess)]
    assert replaced == [ReplaceProcess(SOURCE), ReplaceProcess(SINK)]
    assert driver.core.status().restarts == 1


def test_budget_that_runs_out_is_a_loss_like_any_other() -> None:
    driver = running(ONLY_ON_REQUEST)
    notice(driver)
    assert driver.core.next_deadline() <= BUDGET
    orders = driver.pass_time(BUDGET)
    assert ReplaceProcess(SOURCE) in orders
    assert restored(driver.pass_time(BUDGET + 1.0)) == {SOURCE: None, SINK: None}


def test_loss_before_the_checkpoint_is_complete_leaves_only_the_process_to_replace() -> None:
    driver = running(ONLY_ON_REQUEST)
    notice(driver)
    orders = driver.tell(events.TaskLost(SINK, A1, "killed", 0.0))
    assert ReplaceProcess(SOURCE) in orders
    assert driver.core.status().restarts == 1


def test_notice_of_an_earlier_process_is_not_heard() -> None:
    driver = running(ONLY_ON_REQUEST)
    driver.tell(events.ProcessReady(SOURCE, "new", 0.0))
    assert driver.tell(NoticeGiven(SOURCE, "old", BUDGET, 0.0)) == []
    assert driver.tell(NoticeGiven(SOURCE, "new", BUDGET, 0.0)) != []
