"""A checkpoint that fails for want of time says what the tasks that held it up were in the middle of."""

from __future__ import annotations

from penstock.coordinator.model.commands import AbortCheckpoint, DescribeTask
from penstock.coordinator.model.events import TaskDescribed
from penstock.coordinator.model.settings import Settings
from support.coordinator_driver import A1, A2, FIRST, SINK, SOURCE, in_checkpoint


def test_failed_checkpoint_says_what_the_tasks_that_held_it_up_were_at() -> None:
    """They are asked a second before its time is over."""
    driver = in_checkpoint(Settings(timeout=10.0, tolerable_failures=1))
    driver.ack(SOURCE, FIRST)
    assert driver.core.next_deadline() == 5.0, "orders are looked through"
    driver.pass_time(9.0)
    assert driver.core.next_deadline() == 10.0
    assert driver.pass_time(10.0) == [DescribeTask(SINK, A1, FIRST)]
    assert driver.tell(TaskDescribed(SINK, A1, FIRST, "score has been at a piece for 9.0 s", 10.1)) == []
    assert AbortCheckpoint(SINK, A1, FIRST, None) in driver.pass_time(11.0)
    failed = driver.core.checkpoint_statistics().failed
    assert failed is not None
    assert failed.failure == (
        "checkpoint 1.1 was not complete after 10 s; it waited for the snapshots of sink[0] (1 of 2 tasks). "
        "sink[0]: score has been at a piece for 9.0 s"
    )


def test_task_that_does_not_answer_what_it_is_at_is_said_to() -> None:
    driver = in_checkpoint(Settings(timeout=2.0, tolerable_failures=1))
    driver.ack(SOURCE, FIRST)
    assert driver.pass_time(2.5) == [DescribeTask(SINK, A1, FIRST)]
    assert driver.tell(TaskDescribed(SINK, A2, FIRST, "another attempt's", 2.6)) == []
    driver.pass_time(3.0)
    failed = driver.core.checkpoint_statistics().failed
    assert failed is not None
    assert failed.failure.endswith(
        "sink[0]: does not say what it is at: its process hangs, or it is in one call for long"
    )


def test_nobody_is_asked_for_a_checkpoint_that_gives_way_or_has_all_answers() -> None:
    driver = in_checkpoint(Settings(timeout=10.0))
    for task in (SOURCE, SINK):
        driver.ack(task, FIRST)
    assert not any(isinstance(order, DescribeTask) for order in driver.pass_time(10.0))
