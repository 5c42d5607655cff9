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


def _is_unsorted(row: Row) -> bool:
    """Keys without null fall somewhere in an input of a merge join, batch after batch."""
    if row.get("operator") != "merge_join" or not {"left", "right"} <= set(row["inputs"]):
        return False
    for side, keys in (("left", "left_keys"), ("right", "right_keys")):
        columns = [[batch[key] for batch in row["inputs"][side]["batches"]] for key in row[keys]]
        if any(not isinstance(part, list) for column in columns for part in column):
            continue  # generated columns: the tables generate sorted keys only
        rows = list(zip(*([value for part in column for value in part] for column in columns), strict=True))
        whole = [row for row in rows if None not in row]
        if whole != sorted(whole):
            return True
    return False


def _has_row_of_empty_end(row: Row) -> bool:
    """A global aggregation with barriers expects one row more than there are splits."""
    global_barriers = row.get("operator") == "hash_aggregation" and not row["group_keys"] and row.get("barriers")
    rows = row["expect"].get("rows")
    return bool(global_barriers) and rows is not None and len(rows) == len(row["inputs"].get("splits", ())) + 1


def _without_last_row(row: Row) -> Row:
    expect = {key: value for key, value in row["expect"].items() if key not in {"row_count", "null_counts"}}
    return expect | {"rows": expect["rows"][:-1]}


OPERATOR_DEVIATIONS = (
    Deviation(
        reason="nothing follows the last barrier: the empty stretch before the end is no window, and has no row",
        applies=_has_row_of_empty_end,
        expect=_without_last_row,
    ),
    Deviation(
        reason="a merge join of unsorted input is refused: rows that happen to be right there are wrong elsewhere",
        applies=_is_unsorted,
        expect=lambda row: {"error": "DataError: not sorted"},
    ),
)


def expected_of_operator(row: Row) -> Row:
    """The outcome that our operator must have."""
    deviation = next((one for one in OPERATOR_DEVIATIONS if one.applies(row)), None)
    expect: Row = deviation.expect(row) if deviation is not None else row["expect"]
    return expect
