"""What is always true of drivers and tasks, checked between any two steps. Simulations call it.

The numbers are those of the invariants in ``docs/design/scheduler.md``; those of the scheduler itself are checked by
``scheduler.validation``. An AssertionError says which one is broken, and where.
"""

from __future__ import annotations

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.runtime.driver import Driver
from penstock.engine.runtime.task import Task
from penstock.engine.scheduler.protocol import DriverState

_OVER = (DriverState.CLOSED, DriverState.RELEASED)


def validate_driver(driver: Driver) -> None:
    """Check a driver that no thread runs."""
    name = driver.name
    pending = list(driver.pending)
    tags = [element.tag for element in pending if isinstance(element, Batch)]
    assert tags == sorted(set(tags), key=_place), f"I13 {name}: batches are about to leave out of order: {tags}"
    if driver.handle is not None and driver.handle.state in _OVER:
        assert not pending, f"I12 {name}: closed, and it still holds {len(pending)} elements"
        return
    for outlet in driver.partitions:
        for channel in outlet.channels:
            assert not (channel.closed and pending), (
                f"I13 {name}: elements are left behind the end of {channel.channel}"
            )
    driver.validate()
    # The first operator may refuse some of its ports, but not all of them unless it has something under way.
    if driver.operators and not driver.partitions:
        return  # what a sink takes depends on who reads it
    if driver.operators and not driver.data_ended and not pending and not driver.busy:
        first = driver.operators[0].running
        open_ports = [port.number for port in driver.ports.all if not port.ended]
        willing = [port for port in open_ports if first.accepts(port)]
        assert willing or not open_ports or driver.chain.under_way, f"I9 {name}: wants no port and has nothing to give"


def _place(tag: Tag) -> tuple[int, int, int]:
    return (tag.round, tag.lane, tag.sequence)


def validate_task(task: Task) -> None:
    """Check a task of which no thread runs a driver."""
    task.validate()
    states = {driver.handle.state for driver in task.drivers if driver.handle is not None}
    if task.state == "finished":
        assert states <= set(_OVER), f"I11 {task.id}: finished, and a driver is {states}"
    for driver in task.drivers:
        if driver.handle is None or driver.handle.state is not DriverState.RUNNING:
            validate_driver(driver)
    if states and states <= set(_OVER):
        held = task.memory_held
        assert held == 0, f"I12 {task.id}: over, and it holds {held} bytes"
