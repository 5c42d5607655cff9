"""Nodes that Ray drains: who is told to leave, when, and where nobody goes."""

from __future__ import annotations

import math

import pytest

from penstock.actors.hosting.supervisor import Supervisor, seconds_left
from penstock.actors.protocol.messages import Identity, NodesDraining, ProcessAppeared, WorkerSlot, spare_slot
from penstock.coordinator.model.events import NoticeGiven, ProcessReady
from penstock.engine.core.identity import TaskId
from support.recorded_calls import RecordedCalls

FIRST, SECOND = TaskId("source", 0), TaskId("source", 1)
SPARE = spare_slot(0)


def on(node: str, slot: WorkerSlot, incarnation: str) -> ProcessAppeared:
    return ProcessAppeared(Identity(slot, incarnation, 4711, "127.0.0.1", node))


@pytest.fixture
def calls() -> RecordedCalls:
    return RecordedCalls()


@pytest.fixture
def supervisor(calls: RecordedCalls) -> Supervisor:
    """Two tasks on two nodes, a spare process on the first; 30 s for whoever leaves."""
    made = Supervisor([FIRST, SECOND], calls, [SPARE], notice=30.0)
    for sign in (on("a", FIRST, "one"), on("b", SECOND, "two"), on("a", SPARE, "three")):
        made.handle(sign)
    calls.made.clear()
    return made


@pytest.mark.parametrize(("left", "budget"), [(math.inf, 30.0), (12.5, 12.5), (-1.0, 0.0)])
def test_tasks_of_the_node_are_told_once_and_have_no_longer_than_it(
    supervisor: Supervisor, left: float, budget: float
) -> None:
    assert supervisor.handle(NodesDraining({"b": left})) == [NoticeGiven(SECOND, "two", budget, 0.0)]
    assert supervisor.handle(NodesDraining({"b": left - 1})) == []


def test_spare_process_of_the_node_starts_anew_elsewhere(supervisor: Supervisor, calls: RecordedCalls) -> None:
    assert supervisor.handle(NodesDraining({"a": 10.0})) == [NoticeGiven(FIRST, "one", 10.0, 0.0)]
    supervisor.handle(NodesDraining({"a": 9.0}))
    assert calls.made == [("replace", SPARE)]


def test_no_task_moves_to_a_spare_process_on_the_node(supervisor: Supervisor, calls: RecordedCalls) -> None:
    supervisor.handle(NodesDraining({"a": 10.0}))
    calls.made.clear()
    supervisor.handle(on("b", FIRST, "four"))
    assert not [call for call in calls.made if call[0] == "move"]


def test_process_that_comes_up_on_the_node_all_the_same_is_told_too(supervisor: Supervisor) -> None:
    supervisor.handle(NodesDraining({"b": 10.0}))
    assert supervisor.handle(on("b", SECOND, "four"))[-1] == ProcessReady(SECOND, "four", 0.0)
    assert supervisor.handle(NodesDraining({"b": 9.0})) == [NoticeGiven(SECOND, "four", 9.0, 0.0)]


def test_node_that_is_not_drained_any_more_takes_spares_again(supervisor: Supervisor) -> None:
    supervisor.handle(NodesDraining({"a": 10.0}))
    assert supervisor.handle(NodesDraining({})) == []
    assert supervisor.handle(on("a", FIRST, "one")) == []


def test_seconds_left_follow_from_deadlines_of_nodes_that_live() -> None:
    deadlines = {"a": 5_000, "b": 0, "gone": 9_000}
    assert seconds_left(deadlines, {"a", "b", "c"}, 2.0) == {"a": 3.0, "b": math.inf}


def test_nobody_leaves_a_cluster_that_is_drained_as_a_whole() -> None:
    assert seconds_left({"a": 5_000, "b": 0}, {"a", "b"}, 2.0) == {}
