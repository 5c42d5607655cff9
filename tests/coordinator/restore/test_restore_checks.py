"""What a restore makes of finished operators, beyond the rows of the table."""

from __future__ import annotations

import pytest

from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from penstock.coordinator.model.manifest import Manifest, OperatorEntry, TaskState
from penstock.coordinator.restore.finished_check import (
    FinishedState,
    OperatorName,
    check_restore,
    find_dropped_state,
    find_other_state,
)
from penstock.coordinator.restore.stored_state import finished_vertices
from penstock.engine.core.identity import CheckpointId, TaskId

PAIR = (Vertex("a", 1), Vertex("b", 1))
NAMES = {"a": [OperatorName("a1", "mine")], "b": [OperatorName("b1")]}


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


def test_state_of_an_operator_that_is_gone_is_refused_unless_allowed() -> None:
    refusal = find_dropped_state(NAMES, {"mine", "a1", "b1", "gone"})
    assert refusal is not None
    assert "'gone'" in refusal.message
    assert find_dropped_state(NAMES, {"mine", "gone"}, allow_left_behind=True) is None
    assert find_dropped_state(NAMES, {"mine", "b1"}) is None


@pytest.mark.parametrize(("had", "wants"), [("groups by a", "groups by b"), ("", "groups by b"), ("groups by a", "")])
def test_state_of_something_else_is_refused(had: str, wants: str) -> None:
    refusal = find_other_state({"mine": had, "b1": "groups by c"}, {"mine": wants, "b1": "groups by c", "new": "keys"})
    assert refusal is not None
    assert "'mine'" in refusal.message
    assert (had or "state of another kind") in refusal.message
    assert (wants or "an operator of another kind") in refusal.message


def test_state_of_the_same_is_taken_and_of_operators_that_are_gone_nothing_is_said() -> None:
    assert find_other_state({"a1": "groups by a", "gone": "keys"}, {"a1": "groups by a"}) is None


@pytest.mark.parametrize(
    ("said", "finished", "whole"),
    [
        ([FinishedState.FULLY_FINISHED, FinishedState.FULLY_FINISHED], False, True),
        ([FinishedState.FULLY_FINISHED, FinishedState.PARTIALLY_FINISHED], False, False),
        ([FinishedState.ALL_RUNNING], False, False),
        ([FinishedState.ALL_RUNNING], True, True),
    ],
)
def test_vertex_is_finished_if_all_its_operators_are_or_all_its_tasks(
    said: list[FinishedState], finished: bool, whole: bool
) -> None:
    entries = tuple(
        OperatorEntry(operator=f"a{n}", vertex="a", parallelism=1, finished=each.value) for n, each in enumerate(said)
    )
    task = TaskState(task=TaskId("a", 0), finished=finished)
    checkpoint = CheckpointId(1, 1)
    manifest = Manifest(
        number=1, checkpoint=checkpoint, fingerprint="f", parallelism={"a": 1}, tasks=(task,), operators=entries
    )
    assert (finished_vertices(manifest, ExecutionGraph((Vertex("a", 1),), ())) == {"a"}) is whole
