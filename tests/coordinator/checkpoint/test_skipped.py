"""Splits that are skipped: checkpoints say so, and whoever comes later knows it."""

from __future__ import annotations

from penstock.coordinator.model import events
from penstock.coordinator.model.commands import DeployTask
from penstock.coordinator.model.events import SplitSkipped
from penstock.coordinator.model.manifest import Manifest, decode, encode
from penstock.coordinator.model.split_sets import Skipped, SplitName
from support.coordinator_driver import A1, SINK, SOURCE, CoordinatorDriver, running

BAD = Skipped(SplitName("numbers", "7"), "it has ended source[0] 3 times: killed")
WORSE = Skipped(SplitName("numbers", "9"), "it has ended source[0]: no rows")


def skip(driver: CoordinatorDriver, *skipped: Skipped) -> None:
    for each in skipped:
        assert driver.tell(SplitSkipped(each, driver.now)) == []


def deployments(orders: list[object]) -> dict[object, tuple[Skipped, ...]]:
    return {order.task: order.skipped for order in orders if isinstance(order, DeployTask)}


def completed() -> CoordinatorDriver:
    """With one checkpoint that knows of a skipped split."""
    driver = running()
    skip(driver, BAD)
    driver.pass_time(1.0)
    driver.complete()
    return driver


def successor(driver: CoordinatorDriver) -> tuple[CoordinatorDriver, list[object]]:
    another = CoordinatorDriver(log=[decode(encode(entry)) for entry in driver.log], owner="another")
    return another, another.claim()


def test_next_attempts_are_told_what_to_skip_and_the_status_says_so() -> None:
    driver = running()
    skip(driver, BAD, WORSE, BAD)
    driver.tell(events.TaskLost(SOURCE, A1, "killed", 0.0))
    assert deployments(driver.pass_time(10.0)) == {SOURCE: (BAD, WORSE), SINK: (BAD, WORSE)}
    assert driver.core.status().skipped == (
        "split 7 of numbers was skipped: it has ended source[0] 3 times: killed",
        "split 9 of numbers was skipped: it has ended source[0]: no rows",
    )


def test_coordinator_that_takes_over_knows_what_was_skipped_and_says_it_again() -> None:
    driver, orders = successor(completed())
    assert deployments(orders) == {SOURCE: (BAD,), SINK: (BAD,)}
    assert driver.core.status().skipped == (str(BAD),)
    skip(driver, WORSE)
    driver.run()
    driver.pass_time(1.0)
    driver.complete()
    assert isinstance(driver.log[-1], Manifest)
    assert driver.log[-1].skipped == (BAD, WORSE)


def test_split_that_was_skipped_after_the_last_checkpoint_is_found_out_again() -> None:
    """The cut is before it, so nothing is missing from what was committed."""
    before = completed()
    skip(before, WORSE)
    driver, orders = successor(before)
    assert deployments(orders) == {SOURCE: (BAD,), SINK: (BAD,)}
    assert driver.core.status().skipped == (str(BAD),)
