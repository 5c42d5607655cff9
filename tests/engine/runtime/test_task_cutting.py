"""When a task that is asked for a cut takes it: which of its drivers it waits for, and whether they go on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.engine.core.elements import Barrier
from penstock.engine.core.identity import BarrierKind, CheckpointId
from penstock.engine.exchange.flight import FlightWriter
from penstock.engine.runtime.driver import DriverPhase
from penstock.engine.runtime.orders import CallBack
from penstock.engine.runtime.statistics import CutStatistics
from penstock.engine.runtime.task_cut import CutPhase
from penstock.engine.runtime.task_cutting import TaskCutting, _OpenCut


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
        self.gate: TaskCutting | None = None
        self.continuations = SimpleNamespace(leave_out_barriers=lambda: None)
        self.told: list[Callable[[], object]] = []

    def send(self, order: CallBack) -> None:
        self.told.append(order.action)

    def take_orders(self) -> bool:
        """A driver that is between two pieces."""
        told, self.told = self.told, []
        for action in told:
            action()
        return bool(told)

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


class Output:
    """A partition to another task, and the barriers that have gone out there."""

    def __init__(self) -> None:
        self.channels = [SimpleNamespace(closed=False)]
        self.sent: list[int] = []

    def send(self, barrier: Barrier) -> None:
        self.sent.append(barrier.checkpoint.number)


class Cutting(TaskCutting):
    def __init__(self, *drivers: Standing, forwards: bool = False) -> None:
        self.taken: list[int] = []
        self.query = Query()
        self.output = Output()
        super().__init__(
            drivers,  # type: ignore[arg-type]
            [self.output],  # type: ignore[list-item]
            self.query,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            self._raise,
            float,
            range(4),
            forwards=forwards,
        )

    def _raise(self, error: BaseException) -> None:
        raise error

    def _take(self, barrier: Barrier) -> None:
        with self.lock:
            self._forward(barrier)
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


def test_a_barrier_goes_out_while_drivers_are_at_pieces_and_whoever_ends_one_first_cuts() -> None:
    one, other = Standing(), Standing()
    cutting = Cutting(one, other, forwards=True)
    cutting.come(barrier(1))
    assert (cutting.output.sent, cutting.taken, cutting.is_shut) == ([1], [], True)
    assert cutting.query.pauses == 0, "whoever brings messages stops nobody"
    one.spilling.idle = False
    other.take_orders()
    assert (cutting.output.sent, cutting.taken, cutting.is_shut) == ([1], [1], False), "what is spilled is waited for"
    one.take_orders()
    assert cutting.taken == [1]


@pytest.mark.parametrize("unsure", ["a driver spills", "a driver has finished", "task barriers"])
def test_a_barrier_stays_if_it_is_not_sure_that_a_cut_follows(unsure: str) -> None:
    one = Standing()
    cutting = Cutting(one, forwards=unsure != "task barriers")
    one.spilling.idle = unsure != "a driver spills"
    if unsure == "a driver has finished":
        one.phase.state = DriverPhase.FINISHED
    cutting.come(barrier(1), is_order=True)
    assert (cutting.output.sent, cutting.is_shut) == ([], False)
    one.spilling.idle = True
    one.take_orders()
    expected = [] if unsure == "a driver has finished" else [1]
    assert (cutting.output.sent, cutting.taken) == (expected, expected)


def test_the_way_out_opens_when_the_checkpoint_is_given_up_before_the_cut() -> None:
    one = Standing()
    cutting = Cutting(one, forwards=True)
    cutting.come(barrier(1))
    cutting.abort(CheckpointId(1, 1))
    assert not cutting.is_shut
    one.take_orders()
    assert (cutting.taken, cutting.query.pauses) == ([], 0)
    cutting.come(barrier(2))
    one.take_orders()
    assert (cutting.output.sent, cutting.taken) == ([1, 2], [2])


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


def test_a_cut_whose_sinks_write_is_taken() -> None:
    one = Standing()
    cutting = Cutting(one, forwards=True)
    cutting.order(barrier(1))
    written: Any = SimpleNamespace(driver=one, sinks=None)
    cutting._open = _OpenCut(barrier(1), FlightWriter(), {written.driver: written}, 0.0)
    assert cutting.statistics() == CutStatistics(CheckpointId(1, 1), CutPhase.OPEN, unwritten=("sort",))


def test_a_barrier_that_goes_out_while_a_driver_is_late_is_followed_by_the_cut() -> None:
    """The driver has to handle a barrier by agreement first, and never can once the way out is shut."""
    one, other = Standing(), Standing()
    cutting = Cutting(one, other, forwards=True)
    one.may_be_cut = other.spilling.idle = False
    cutting.order(barrier(1))
    assert (cutting.output.sent, cutting.taken) == ([], [])
    other.spilling.idle = True
    cutting.come(barrier(1))  # on another channel
    assert (cutting.output.sent, cutting.is_shut) == ([1], True)
    other.take_orders()
    assert (cutting.taken, cutting.is_shut) == ([1], False)


def test_a_barrier_that_goes_out_while_a_cut_is_prepared_leaves_no_barrier_to_be_handled() -> None:
    one, left_out = Standing(), list[bool]()
    cutting = Cutting(one, forwards=True)
    one.may_be_cut = one.spilling.idle = False

    def leave_out() -> None:
        left_out.append(True)
        one.may_be_cut = True

    def give_up(checkpoint: CheckpointId) -> None:
        if not left_out:
            one.spilling.idle = True

    def late() -> list[Any]:
        cutting.come(barrier(1))  # on a thread that brings messages
        return TaskCutting._late(cutting)

    one.continuations.leave_out_barriers, one.give_up = leave_out, give_up  # type: ignore[method-assign]
    cutting._late = late  # type: ignore[method-assign]
    cutting.order(barrier(1))
    one.take_orders()
    assert cutting.taken == [1]
    assert left_out, "a barrier that waits to be handled cannot be captured"


def test_task_of_which_a_driver_has_finished_passes_the_checkpoint_by() -> None:
    one, other = Standing(), Standing()
    cutting = Cutting(one, other)
    one.phase.state = DriverPhase.FINISHED
    cutting.order(barrier(1))
    assert (cutting.taken, cutting.last) == ([], None)
    assert cutting.statistics() == CutStatistics(CheckpointId(1, 1), CutPhase.NONE)
    assert cutting.is_late(CheckpointId(1, 0))
