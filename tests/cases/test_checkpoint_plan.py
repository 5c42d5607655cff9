"""Runs the scenario table of checkpoint plans: one test per row, named by its id.

The other sections of the file have runners of their own beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from cases.deviations import LEFT_OUT, expected_plan
from cases.tables import Row, graph_of, refuse_unknown, rows, states_of, table

from penstock.coordinator.checkpoint.pending import CheckpointPlan, NotReady, Subtasks, compute_checkpoint_plan
from penstock.coordinator.model.execution_graph import pointwise_upstreams
from support.plan_parts import task_ids

FILE = "checkpoint_plan.json"
SECTIONS = {
    *("plan_cases", "pointwise_mapping_cases"),
    "restore_check_cases",  # test_restore_check.py
}
PARTS = {"tasks_to_trigger", "tasks_to_wait_for", "tasks_to_commit_to", "finished_tasks", "fully_finished_vertices"}


def pairs(tasks: list[list[Any]]) -> set[tuple[str, int]]:
    return {(vertex, subtask) for vertex, subtask in tasks}


def ids(subtasks: Mapping[str, Subtasks]) -> set[tuple[str, int]]:
    return {(task.vertex, task.subtask) for task in task_ids(subtasks)}


def test_every_section_of_the_table_has_a_runner() -> None:
    refuse_unknown(
        [name for name, part in table(FILE).items() if isinstance(part, list)], SECTIONS | set(LEFT_OUT), "sections"
    )


@pytest.mark.parametrize("row", rows(FILE, "plan_cases"))
def test_plan(row: Row) -> None:
    plan = compute_checkpoint_plan(graph_of(row), states_of(row), row["allow_checkpoints_after_tasks_finished"])
    expect = expected_plan(row)
    if expect["outcome"] == "error":
        assert isinstance(plan, NotReady)
        assert plan.kind.name == expect["error_reason"]
        return
    assert expect["outcome"] == "plan"
    refuse_unknown(expect, {"outcome", *PARTS}, "expectations")
    assert isinstance(plan, CheckpointPlan)
    assert ids(plan.to_trigger) == pairs(expect["tasks_to_trigger"])
    assert ids(plan.to_wait_for) == pairs(expect["tasks_to_wait_for"])
    assert ids(plan.to_wait_for) == pairs(expect["tasks_to_commit_to"]), "those who were waited for hear of the outcome"
    assert ids(plan.finished) == pairs(expect["finished_tasks"])
    assert set(plan.fully_finished) == set(expect["fully_finished_vertices"])


@pytest.mark.parametrize("row", rows(FILE, "pointwise_mapping_cases"))
def test_pointwise_mapping(row: Row) -> None:
    up, down = row["upstream_parallelism"], row["downstream_parallelism"]
    found = {str(subtask): list(pointwise_upstreams(up, down, subtask)) for subtask in range(down)}
    assert found == row["expect"]


def test_a_flink_artifact_gives_our_plan() -> None:
    row = {"vertices": [{"name": "a", "states": ["RUNNING"]}, {"name": "b", "states": ["FINISHED"]}]}
    expect = expected_plan({**row, "flink_artifact": True, "expect": {"outcome": "error"}})
    assert expect["tasks_to_trigger"] == [["a", 0]]
    assert expect["finished_tasks"] == [["b", 0]]
    assert expect["fully_finished_vertices"] == ["b"]
