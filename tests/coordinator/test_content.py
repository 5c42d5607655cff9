"""The content of checkpoints with finished tasks beyond the rows of the table, and what a restore makes of it."""

from __future__ import annotations

import numpy as np
import pytest

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
from penstock.coordinator.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from penstock.coordinator.plan_calculator import CheckpointPlan
from penstock.coordinator.redistribution import StateMode
from penstock.coordinator.restore_check import (
    FinishedState,
    OperatorName,
    check_restore,
    find_left_behind,
    finished_on_restore,
    finished_state,
)
from penstock.engine.identity import StateHandle, TaskId

GRAPH = ExecutionGraph((Vertex("v", 2),))
UNION = SubtaskSnapshot({"offsets": StateMode.UNION})
PLAIN = SubtaskSnapshot({"offsets": StateMode.SPLIT_DISTRIBUTE})
COORDINATOR = (StateHandle("op", "coordinator", 1, 1),)
FIRST, SECOND = TaskId("v", 0), TaskId("v", 1)


def plan(*finished: int) -> CheckpointPlan:
    over = np.isin(np.arange(2), finished)
    ended = {"v": over} if finished else {}
    return CheckpointPlan({"v": ~over}, {"v": ~over}, ended, ("v",) if over.all() else ())


def said(report: OperatorReport, **flags: frozenset[TaskId]) -> Acknowledged:
    return Acknowledged(GRAPH, {"v": ("op", "sink")}, {"op": report}, **flags)


def test_union_state_of_any_operator_rejects_a_partly_finished_vertex() -> None:
    rejected = complete_content(said(OperatorReport({1: UNION})), plan(0))
    assert isinstance(rejected, Rejected)
    assert not rejected.reason.is_counted
    assert "'op' of 'v'" in rejected.message


def test_union_state_is_accepted_when_the_data_have_ended_in_all_tasks_or_in_none() -> None:
    report = OperatorReport({0: UNION, 1: UNION})
    for ended in (frozenset[TaskId](), frozenset({FIRST, SECOND})):
        assert complete_content(said(report, operators_finished=ended), plan()) == {
            "op": OperatorContent(2, {0: UNION, 1: UNION})
        }


def test_plain_state_is_accepted_when_the_data_have_ended_in_some_tasks() -> None:
    content = complete_content(
        said(OperatorReport({0: PLAIN, 1: PLAIN}), operators_finished=frozenset({FIRST})), plan()
    )
    assert content == {"op": OperatorContent(2, {0: PLAIN, 1: PLAIN})}


def test_every_operator_of_a_partly_finished_vertex_is_marked_and_keeps_its_coordinator_state() -> None:
    content = complete_content(said(OperatorReport({1: PLAIN}, COORDINATOR)), plan(0))
    assert content == {
        "op": OperatorContent(2, {0: FINISHED, 1: PLAIN}, COORDINATOR),
        "sink": OperatorContent(2, {0: FINISHED}),
    }


def test_one_task_deployed_as_finished_makes_its_vertex_fully_finished_though_others_finished_since() -> None:
    acknowledged = said(OperatorReport({}, COORDINATOR), finished_on_restore=frozenset({SECOND}))
    assert complete_content(acknowledged, plan(0)) == {"op": FullyFinished(2), "sink": FullyFinished(2)}


def test_state_of_a_vertex_deployed_as_finished_is_a_bug() -> None:
    with pytest.raises(ContentError, match=r"'op' has finished .* subtasks \[1\]"):
        complete_content(said(OperatorReport({1: PLAIN}), finished_on_restore=frozenset({FIRST})), plan())


def test_reports_stand_as_they_are_when_checkpoints_after_a_finish_are_off() -> None:
    acknowledged = said(OperatorReport({0: UNION}), operators_finished=frozenset({FIRST}))
    assert complete_content(acknowledged, plan(1), after_finish=False) == {"op": OperatorContent(2, {0: UNION})}


# --- restore ---------------------------------------------------------------------------------------------------------

PAIR = (Vertex("a", 1), Vertex("b", 1))
NAMES = {"a": [OperatorName("a1", "mine")], "b": [OperatorName("b1")]}


def test_content_says_how_much_of_an_operator_had_finished() -> None:
    assert finished_state(FullyFinished(2)) is FinishedState.FULLY_FINISHED
    assert finished_state(OperatorContent(2, {0: FINISHED, 1: PLAIN})) is FinishedState.PARTIALLY_FINISHED
    assert finished_state(OperatorContent(2, {1: PLAIN})) is FinishedState.ALL_RUNNING


@pytest.mark.parametrize("patterns", [(Pattern.POINTWISE, Pattern.ALL_TO_ALL), (Pattern.ALL_TO_ALL, Pattern.POINTWISE)])
def test_of_two_edges_between_the_same_vertices_the_wide_one_counts(patterns: tuple[Pattern, ...]) -> None:
    graph = ExecutionGraph(PAIR, tuple(JobEdge("a", "b", pattern) for pattern in patterns))
    partly = dict.fromkeys(("a1", "b1"), FinishedState.PARTIALLY_FINISHED)
    refusal = check_restore(graph, NAMES, partly)
    assert refusal is not None
    assert "'b' is partly finished" in refusal.message
    assert "(ALL_TO_ALL)" in refusal.message
    assert check_restore(ExecutionGraph(PAIR, (JobEdge("a", "b", Pattern.POINTWISE),)), NAMES, partly) is None


def test_state_under_the_users_id_wins_over_the_derived_one() -> None:
    graph = ExecutionGraph(PAIR, (JobEdge("a", "b", Pattern.ALL_TO_ALL),))
    stored = {"mine": FinishedState.FULLY_FINISHED, "a1": FinishedState.ALL_RUNNING, "b1": FinishedState.FULLY_FINISHED}
    assert check_restore(graph, NAMES, stored) is None
    assert finished_on_restore(NAMES, stored) == {"a", "b"}
    del stored["mine"]
    assert check_restore(graph, NAMES, stored) is not None


def test_new_operator_may_follow_finished_ones_but_not_join_their_chain() -> None:
    graph = ExecutionGraph(PAIR, (JobEdge("a", "b", Pattern.ALL_TO_ALL),))
    stored = {"a1": FinishedState.FULLY_FINISHED}
    assert check_restore(graph, NAMES, stored) is None
    chained = {**NAMES, "a": [OperatorName("a1"), OperatorName("new")]}
    refusal = check_restore(graph, chained, stored)
    assert refusal is not None
    assert "the checkpoint says all running and fully finished" in refusal.message
    assert finished_on_restore(chained, stored) == frozenset()


def test_state_of_an_operator_that_is_gone_is_refused_unless_allowed() -> None:
    refusal = find_left_behind(NAMES, {"mine", "a1", "b1", "gone"})
    assert refusal is not None
    assert "'gone'" in refusal.message
    assert find_left_behind(NAMES, {"mine", "gone"}, allow_left_behind=True) is None
    assert find_left_behind(NAMES, {"mine", "b1"}) is None
