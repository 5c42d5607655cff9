"""When a task that is asked for a cut takes it: which of its drivers it waits for, and whether they go on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from penstock.engine.core.elements import Barrier
from penstock.engine.core.identity import BarrierKind, CheckpointId
from penstock.engine.runtime.driver import DriverPhase
from penstock.engine.runtime.statistics import CutStatistics
from penstock.engine.runtime.task_cut import CutPhase
from penstock.engine.runtime.task_cutting import TaskCutting


class Standing:
    """A driver that may have to be waited for. ``go_on``: its step, as far as cuts go."""

    def __init__(self) -> None:
        self.may_be_cut = True
        self.spilling = SimpleNamespace(idle=True)
        self.cut_waits: Callable[[], None] | None = None
        self.stops = False
        self.phase = SimpleNamespace(state=DriverPhase.RUNNING)
        self.ports = SimpleNamespace(feeds=())
        self.name = "sort"

    def take_orders(self) -> bool:
        return False

    def give_up(self, checkpoint: CheckpointId) -> None: ...

    def wake(self) -> None: ...

    def go_on(self) -> None:
        if self.cut_waits is not None and self.may_be_cut and self.spilling.idle:
            ask, self.cut_waits = self.cut_waits, None
            ask()


class Query:
    """Nobody is inside, or somebody for long."""

    def __init__(self) -> None:
        self.pauses = self.resumes = 0
        self.is_slow = False
        self.paused: Future[None]

    def pause(self) -> Future[None]:
        self.pauses += 1
        self.paused = Future()
        if not self.is_slow:
            self.paused.set_result(None)
        return self.paused

    def resume(self) -> None:
        self.resumes += 1


class Cutting(TaskCutting):
    def __init__(self, *drivers: Standing) -> None:
        self.taken: list[int] = []
        self.query = Query()
        super().__init__(drivers, (), self.query, None, None, self._raise, float, range(4))  # type: ignore[arg-type]

    def _raise(self, error: BaseException) -> None:
        raise error

    def _take(self, barrier: Barrier) -> None:
        self.taken.append(barrier.checkpoint.number)
        self._machine.take()


def barrier(number: int) -> Barrier:
    return Barrier(CheckpointId(1, number), BarrierKind.CHECKPOINT, 0.0, unaligned=True)


@pytest.mark.parametrize("late", ["spilling", "at a task barrier"])
def test_drivers_go_on_until_the_one_that_is_late_may_be_cut(late: str) -> None:
    one, other = Standing(), Standing()
    cutting = Cutting(one, other)
    one.may_be_cut, one.spilling.idle = late == "spilling", late != "spilling"
    cutting.order(barrier(1))
    assert cutting.taken == []
    assert cutting.query.resumes == cutting.query.pauses
    one.go_on()
    assert cutting.taken == []
    one.may_be_cut = one.spilling.idle = True
    one.go_on()
    assert cutting.taken == [1]


def test_a_cut_waits_for_disks_once() -> None:
    one, other = Standing(), Standing()
    cutting = Cutting(one, other)
    for number in (1, 2):
        one.spilling.idle = False
        cutting.order(barrier(number))
        assert number not in cutting.taken
        one.spilling.idle, other.spilling.idle = True, False
        one.go_on()
        assert cutting.taken[-1] == number
        other.spilling.idle = True


def test_no_driver_begins_anything_between_the_order_and_the_cut() -> None:
    drivers = Standing(), Standing()
    cutting = Cutting(*drivers)
    cutting.query.is_slow = True
    cutting.order(barrier(1))
    assert all(driver.stops for driver in drivers)
    cutting.query.paused.set_result(None)
    assert cutting.taken == [1]
    assert not any(driver.stops for driver in drivers)


def test_how_far_a_cut_is_can_be_asked() -> None:
    one, other = Standing(), Standing()
    cutting = Cutting(one, other)
    assert cutting.statistics() == CutStatistics(None, CutPhase.NONE)
    one.may_be_cut = False
    cutting.order(barrier(1))
    assert cutting.statistics() == CutStatistics(CheckpointId(1, 1), CutPhase.ASKED, late=("sort",))
    one.may_be_cut = True
    one.go_on()
    assert cutting.statistics() == CutStatistics(CheckpointId(1, 1), CutPhase.NONE)
    assert Cutting().statistics() is None


def test_task_of_which_a_driver_has_finished_passes_the_checkpoint_by() -> None:
    one, other = Standing(), Standing()
    cutting = Cutting(one, other)
    one.phase.state = DriverPhase.FINISHED
    cutting.order(barrier(1))
    assert (cutting.taken, cutting.last) == ([], None)
    assert cutting.statistics() == CutStatistics(CheckpointId(1, 1), CutPhase.NONE)
    assert cutting.is_late(CheckpointId(1, 0))
