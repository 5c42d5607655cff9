"""Who hears of a checkpoint that begins: sources, and those that somebody outside sets the pace of."""

from __future__ import annotations

from dataclasses import replace

from penstock.coordinator.model.commands import AbortCheckpoint, ExpectBarrier, ProposeRound, TriggerCheckpoint
from penstock.coordinator.model.events import DataEnded, TaskCommitted, TaskFinished
from penstock.coordinator.model.execution_graph import ExecutionGraph
from penstock.coordinator.model.settings import Settings
from support.coordinator_driver import A1, FIRST, SECOND, SINK, SOURCE, CoordinatorDriver, trigger, two_stages


def paced(deterministic: bool = False) -> CoordinatorDriver:
    """The sink takes no more than somebody outside reads."""
    plain = two_stages(deterministic)
    source, sink = plain.vertices
    graph = ExecutionGraph((source, replace(sink, paced=True)), plain.edges, deterministic)
    driver = CoordinatorDriver(graph, Settings(interval=1.0, resend=2.0))
    driver.claim()
    driver.run()
    return driver


def test_throttled_task_hears_of_a_checkpoint_before_its_sources_are_told() -> None:
    assert paced().pass_time(1.0) == [ExpectBarrier(SINK, A1, FIRST), trigger(FIRST, 1.0)]
    assert paced(deterministic=True).pass_time(1.0) == [ExpectBarrier(SINK, A1, FIRST), ProposeRound(SOURCE, A1, FIRST)]


def test_throttled_task_is_told_again_until_it_has_acknowledged() -> None:
    driver = paced()
    driver.pass_time(1.0)
    assert ExpectBarrier(SINK, A1, FIRST) in driver.pass_time(3.2)
    driver.ack(SINK, FIRST)
    again = driver.pass_time(5.4)
    assert not any(isinstance(order, ExpectBarrier) for order in again)
    assert any(isinstance(order, TriggerCheckpoint) for order in again)


def test_throttled_task_that_has_finished_hears_nothing() -> None:
    driver = paced()
    for task in (SOURCE, SINK):
        driver.tell(DataEnded(task, A1, 0.1))
    driver.complete(ended=True)
    for event in (TaskCommitted(SINK, A1, FIRST, 0.2), TaskFinished(SINK, A1, 0.2)):
        driver.tell(event)
    orders = driver.pass_time(1.5)
    assert any(isinstance(order, TriggerCheckpoint) and order.checkpoint == SECOND for order in orders)
    assert not any(isinstance(order, ExpectBarrier | AbortCheckpoint) for order in orders)
