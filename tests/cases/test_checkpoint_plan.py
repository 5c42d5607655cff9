"""Runs the scenario table of checkpoint plans: one test per row, named by its id.

``PENSTOCK_CASES`` names another folder of the same form, which may hold only some of the files.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cases.deviations import expected_plan

from penstock.coordinator.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex, pointwise_upstreams
from penstock.coordinator.plan_calculator import (
    CheckpointPlan,
    NotReady,
    Subtasks,
    VertexStates,
    compute_checkpoint_plan,
    task_ids,
)

TABLE = Path(os.environ.get("PENSTOCK_CASES") or Path(__file__).parent / "data") / "checkpoint_plan.json"
NOT_RUNNING = {"CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "CANCELING", "RECONCILING"}
ENDED = {"FINISHED", "CANCELED", "FAILED"}
Row = dict[str, Any]


def rows(section: str) -> list[Any]:
    found = json.loads(TABLE.read_text(encoding="utf-8")).get(section, []) if TABLE.exists() else []
    return [pytest.param(row, id=row["id"]) for row in found]


def states_of(row: Row) -> dict[str, VertexStates]:
    states = {}
    for vertex in row["vertices"]:
        unknown = set(vertex["states"]) - NOT_RUNNING - ENDED - {"RUNNING"}
        assert not unknown, f"states that the runner does not know: {unknown}"
        assert len(vertex["states"]) == vertex["parallelism"]
        states[vertex["name"]] = VertexStates.of(
            [state == "RUNNING" for state in vertex["states"]],
            [state in ENDED for state in vertex["states"]],
            [state == "FINISHED" for state in vertex["states"]],
        )
    return states


def pairs(tasks: list[list[Any]]) -> set[tuple[str, int]]:
    return {(vertex, subtask) for vertex, subtask in tasks}


def ids(subtasks: dict[str, Subtasks]) -> set[tuple[str, int]]:
    return {(task.vertex, task.subtask) for task in task_ids(subtasks)}


@pytest.mark.parametrize("row", rows("plan_cases"))
def test_plan(row: Row) -> None:
    graph = ExecutionGraph(
        tuple(Vertex(vertex["name"], vertex["parallelism"]) for vertex in row["vertices"]),
        tuple(JobEdge(edge["source"], edge["target"], Pattern(edge["pattern"])) for edge in row["edges"]),
    )
    plan = compute_checkpoint_plan(graph, states_of(row), row["allow_checkpoints_after_tasks_finished"])
    expect = expected_plan(row)
    if expect["outcome"] == "error":
        assert expect["error_reason"] == "NOT_ALL_REQUIRED_TASKS_RUNNING"
        assert isinstance(plan, NotReady)
        return
    assert expect["outcome"] == "plan"
    assert isinstance(plan, CheckpointPlan)
    assert ids(plan.to_trigger) == pairs(expect["tasks_to_trigger"])
    assert ids(plan.to_wait_for) == pairs(expect["tasks_to_wait_for"])
    assert ids(plan.to_commit_to) == pairs(expect["tasks_to_commit_to"])
    assert ids(plan.finished) == pairs(expect["finished_tasks"])
    assert set(plan.fully_finished) == set(expect["fully_finished_vertices"])


@pytest.mark.parametrize("row", rows("pointwise_mapping_cases"))
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
