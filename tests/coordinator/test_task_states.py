"""Tasks as arrays: sets of them, their states, and whom a finished one leaves without anybody that feeds it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.checkpoint.pending import (
    CheckpointPlan,
    compute_checkpoint_plan,
    orphaned_consumers,
    vertex_states,
)
from penstock.coordinator.model.commands import DeployTask, StopTask
from penstock.coordinator.model.events import ProcessReady, TaskDeployed
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex, lane_owner, owned_lanes
from penstock.coordinator.model.job_states import TaskStatus
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.model.task_set import TaskSet
from penstock.coordinator.state.tasks import TaskTable
from penstock.engine.core.identity import Attempt, TaskId
from support.coordinator_driver import A1, SINK, SOURCE, CoordinatorDriver
from support.plan_parts import task_ids
from support.sweeps import swept

SOME = st.sets(st.builds(TaskId, st.sampled_from("abc"), st.integers(0, 9)))
PATH = (TaskStatus.DEPLOYING, TaskStatus.DEPLOYED, TaskStatus.RUNNING)


@given(SOME, SOME)
def test_task_set_is_a_set(first: set[TaskId], second: set[TaskId]) -> None:
    tasks = TaskSet.of(first)
    assert list(tasks) == sorted(first)
    assert (len(tasks), bool(tasks)) == (len(first), bool(first))
    assert tasks & second == first & second
    assert tasks | second == first | second
    assert tasks == TaskSet.of(sorted(first, reverse=True))
    for task in second:
        assert tasks.discard(task) == (task in first)
    assert set(tasks) == first - second
    assert tasks.by_vertex() == {v: n for v in "abc" if (n := sum(t.vertex == v for t in first - second))}


def random_table(chance: random.Random) -> TaskTable:
    names = "abcde"[: chance.randint(2, 5)]
    edges = tuple(
        JobEdge(first, second, chance.choice(list(Pattern)))
        for number, second in enumerate(names)
        for first in names[:number]
        if chance.random() < 0.5
    )
    graph = ExecutionGraph(tuple(Vertex(name, chance.randint(1, 7)) for name in names), edges)
    table = TaskTable(graph)
    for record in table:
        for state in PATH:
            table.move(record, state)
    return table


@pytest.mark.parametrize("seeds", [range(100), swept(range(100, 300))])
def test_orphaned_consumers_are_those_that_a_new_plan_would_trigger(seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        table = random_table(chance)
        graph = table._graph
        triggered: set[TaskId] = set()
        order = list(graph.tasks)
        chance.shuffle(order)
        plan = compute_checkpoint_plan(graph, vertex_states(table))
        assert isinstance(plan, CheckpointPlan)
        triggered |= set(task_ids(plan.to_trigger))
        for task in order:
            for state in (TaskStatus.DATA_ENDED, TaskStatus.FINISHED):
                table.move(table[task], state)
            triggered.discard(task)
            triggered |= set(orphaned_consumers(graph, table, task))
            plan = compute_checkpoint_plan(graph, vertex_states(table))
            assert isinstance(plan, CheckpointPlan)
            assert triggered == set(task_ids(plan.to_trigger)), f"seed {seed} after {task}"
        table.validate()


@given(st.integers(1, 40), st.integers(1, 16))
def test_every_lane_has_the_owner_whose_range_it_lies_in(parallelism: int, lanes: int) -> None:
    owned = [lane for subtask in range(parallelism) for lane in owned_lanes(subtask, parallelism, lanes)]
    assert owned == list(range(lanes))
    for lane in owned:
        assert lane in owned_lanes(lane_owner(lane, parallelism, lanes), parallelism, lanes)


# --- processes -------------------------------------------------------------------------------------------------------


def test_order_names_the_process_that_is_there_and_follows_it_to_the_next_one() -> None:
    driver = CoordinatorDriver(settings=Settings(interval=None))
    driver.tell(ProcessReady(SOURCE, "one", 0.0))
    deployed = [order for order in driver.claim() if isinstance(order, DeployTask)]
    assert {order.task: order.incarnation for order in deployed} == {SOURCE: "one", SINK: ""}
    (again,) = driver.tell(ProcessReady(SOURCE, "two", 0.1))
    assert isinstance(again, DeployTask)
    assert (again.attempt, again.incarnation) == (A1, "two")


def test_process_that_takes_the_place_of_the_one_that_built_the_attempt_means_that_it_is_lost() -> None:
    driver = CoordinatorDriver(settings=Settings(interval=None))
    driver.claim()
    driver.tell(TaskDeployed(SOURCE, A1, 0.0, "one"))
    orders = driver.tell(TaskDeployed(SINK, A1, 0.0, "other"))
    assert [order.incarnation for order in orders] == ["one", "other"]  # type: ignore[union-attr]
    assert driver.tell(ProcessReady(SOURCE, "one", 0.1)) == []
    assert driver.tell(ProcessReady(SOURCE, "two", 0.2)) == [StopTask(SOURCE, A1), StopTask(SINK, A1)]
    orders = driver.pass_time(1.0)
    assert [(o.attempt, o.incarnation) for o in orders if isinstance(o, DeployTask)] == [
        (Attempt(1, 2), "two"),
        (Attempt(1, 2), ""),
    ]
