"""A task on its own: what it leaves behind, what it tells of its time, and how it is paused."""

import pytest

from penstock.engine.core.errors import UserCodeError
from penstock.engine.core.identity import TaskId
from penstock.engine.flow.flow import Flow
from penstock.engine.planner.pipelines import plan_job
from support.task_owner import Owner, source_owner, tables


def test_operators_that_were_built_are_closed_when_another_one_cannot_be():
    events = []

    class Opened:
        def __init__(self):
            events.append("opened")

        def __call__(self, batch):
            return batch

        def close(self):
            events.append("closed")

    class Unbuildable:
        def __init__(self):
            raise RuntimeError("no model")

        def __call__(self, batch):
            return batch

    flow = Flow("half-built", lanes=2)
    numbers = flow.from_tables(tables(2, 2), name="numbers")
    opened = numbers.map_batches(Opened, numbers.schema, name="first")
    opened.map_batches(Unbuildable, numbers.schema, name="second").collect("out")
    plan = plan_job(flow, 1)
    with pytest.raises(UserCodeError, match="no model"):
        Owner(plan, TaskId("numbers", 0))
    assert events == ["opened", "closed"]


def test_statistics_tell_what_became_of_the_time_of_every_driver():
    owner = source_owner().run()
    [driver] = owner.task.statistics().drivers
    assert driver.turns > 0
    assert driver.cpu > 0
    assert set(driver.waiting) <= {"commit", "input", "output"}


def test_paused_task_keeps_what_it_gets_and_goes_on_when_it_is_resumed():
    owner = source_owner()
    assert owner.task.pause().done(), "no thread is inside"
    assert not owner.task.step(0.0).progressed
    assert owner.frames == []
    owner.trigger(1)
    owner.task.resume()
    owner.run()
    assert owner.elements()
    assert 1 in owner.snapshots


def test_task_that_was_cancelled_is_not_started_by_whoever_starts_the_others_of_its_plan():
    owner = source_owner()
    owner.task.cancel()
    owner.task.start()
    assert owner.run().task.state == "cancelled"
    assert owner.said == []
