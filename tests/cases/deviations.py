"""Rows of the scenario tables where this project does otherwise, with the reason; the runner checks *our* outcome.

A deviation is a predicate on the row and what we expect instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Deviation:
    """``applies``: which rows. ``expect``: our outcome for them."""

    reason: str
    applies: Callable[[Row], bool]
    expect: Callable[[Row], Row]


def _plan_around_finished(row: Row) -> Row:
    """One task runs, the other has finished: a plan around it, as for a task that really finished."""
    running, finished = (
        [[v["name"], subtask] for v in row["vertices"] for subtask, state in enumerate(v["states"]) if state == wanted]
        for wanted in ("RUNNING", "FINISHED")
    )
    return {
        "outcome": "plan",
        "tasks_to_trigger": running,
        "tasks_to_wait_for": running,
        "tasks_to_commit_to": running,
        "finished_tasks": finished,
        "fully_finished_vertices": [v["name"] for v in row["vertices"] if "RUNNING" not in v["states"]],
    }


PLAN_DEVIATIONS = (
    Deviation(
        reason="true of Flink's test fixture only, which sets the state without counting the task as finished; "
        "a task that has finished gives a plan",
        applies=lambda row: bool(row.get("flink_artifact")),
        expect=_plan_around_finished,
    ),
)


def expected_plan(row: Row) -> Row:
    """The outcome that our plan must have."""
    deviation = next((one for one in PLAN_DEVIATIONS if one.applies(row)), None)
    expect: Row = deviation.expect(row) if deviation is not None else row["expect"]
    return expect
