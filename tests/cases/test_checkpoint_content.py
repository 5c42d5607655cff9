"""Runs the rows about a checkpoint's content after tasks have finished, and about restoring it into another graph."""

from __future__ import annotations

from typing import Any

import pytest
from cases.tables import HINTS, Row, by_subtask, graph_of, refuse_unknown, rows, states_of

from penstock.coordinator.content import (
    FINISHED,
    Acknowledged,
    ContentError,
    FullyFinished,
    OperatorContent,
    OperatorReport,
    Rejected,
    SubtaskSnapshot,
    complete_content,
)
from penstock.coordinator.plan_calculator import CheckpointPlan, compute_checkpoint_plan
from penstock.coordinator.reasons import FailureReason
from penstock.coordinator.redistribution import StateMode
from penstock.coordinator.restore_check import FinishedState, OperatorName, check_restore
from penstock.engine.identity import StateHandle, TaskId

FILE = "checkpoint_plan.json"


def snapshot(reported: Row) -> SubtaskSnapshot:
    refuse_unknown(reported, {"operator_state"}, "state")
    for state in reported["operator_state"]:
        refuse_unknown(state, {"name", "mode"}, "properties of state")
    return SubtaskSnapshot({state["name"]: StateMode[state["mode"]] for state in reported["operator_state"]})


def report(operator: str, reported: Row) -> OperatorReport:
    refuse_unknown(reported, {"subtasks", "coordinator_state"}, "reports")
    coordinator = (StateHandle(operator, "coordinator", 1, 1),) if reported.get("coordinator_state") else ()
    subtasks = {int(subtask): snapshot(state) for subtask, state in reported.get("subtasks", {}).items()}
    return OperatorReport(subtasks, coordinator)


def tasks(listed: list[list[Any]]) -> frozenset[TaskId]:
    return frozenset(TaskId(vertex, subtask) for vertex, subtask in listed)


def acknowledged(row: Row) -> Acknowledged:
    return Acknowledged(
        graph_of(row),
        {vertex["name"]: vertex["operators"] for vertex in row["vertices"]},
        {operator: report(operator, reported) for operator, reported in row["reported"].items()},
        tasks(row["reported_operators_finished"]),
        tasks(row["reported_finished_on_restore"]),
    )


def described(content: FullyFinished | OperatorContent) -> Any:
    if isinstance(content, FullyFinished):
        return "FULLY_FINISHED"
    marks = {subtask: "FINISHED" if state is FINISHED else "STATE" for subtask, state in content.subtasks.items()}
    return {"subtasks": by_subtask(marks)}


@pytest.mark.parametrize("row", rows(FILE, "fulfill_finished_status_cases"))
def test_content(row: Row) -> None:
    said, expect = acknowledged(row), row["expect"]
    plan = compute_checkpoint_plan(said.graph, states_of(row))
    assert isinstance(plan, CheckpointPlan)
    if expect["outcome"] == "error" and expect["error"] == "IllegalState":
        with pytest.raises(ContentError):
            complete_content(said, plan)
        return
    content = complete_content(said, plan)
    if expect["outcome"] == "error":
        refuse_unknown(expect, {"outcome", "error", *HINTS}, "expectations")
        assert expect["error"] == "PartialFinishingNotSupportedByState"
        assert isinstance(content, Rejected)
        assert content.reason is FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING
        return
    assert expect["outcome"] == "ok"
    refuse_unknown(expect, {"outcome", "operator_states", "operator_count"}, "expectations")
    assert not isinstance(content, Rejected)
    assert {operator: described(held) for operator, held in content.items()} == expect["operator_states"]
    assert len(content) == expect["operator_count"]


def stored_under(prefix: str, row: Row) -> dict[str, FinishedState]:
    """A state of null: the checkpoint does not know the operator."""
    states = {name: state for vertex in row["vertices"] for name, state in vertex["operators"].items()}
    return {f"{prefix} {name}": FinishedState[state] for name, state in states.items() if state is not None}


@pytest.mark.parametrize("row", rows(FILE, "restore_check_cases"))
def test_restore_check(row: Row) -> None:
    """Every row with the state stored under the derived ids, then under the user's."""
    expect = row["expect"]
    refuse_unknown(expect, {"outcome", *HINTS}, "expectations")
    assert expect["outcome"] in {"ok", "error"}
    operators = {
        vertex["name"]: [OperatorName(f"derived {name}", f"given {name}") for name in vertex["operators"]]
        for vertex in row["vertices"]
    }
    for prefix in ("derived", "given"):
        refusal = check_restore(graph_of(row), operators, stored_under(prefix, row))
        assert (refusal is not None) == (expect["outcome"] == "error"), prefix
