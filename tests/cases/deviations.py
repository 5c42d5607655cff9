"""Rows of the scenario tables where this project does otherwise, with the reason; the runner checks *our* outcome.

A deviation is a predicate on the row and what we expect instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
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


LEFT_OUT = {
    "fulfill_finished_status_cases": "they reject checkpoints with operator state that every subtask restores in full "
    "(UNION). No operator here has such state: state belongs to lanes or keys, so that part of the tasks may be over. "
    "What a checkpoint says of finished operators: tests/coordinator/restore/test_content_of_checkpoints.py",
    "key_group_cases": "state and rows belong to lanes, and rows by key to parts, which are mapped to subtasks: "
    "tests/coordinator/restore/test_stored_state.py, tests/engine/plan",
    "channel_state_rescale_cases": "what was in flight goes to the subtask that had it, and to no other; another "
    "parallelism is reached by way of a checkpoint with nothing in flight (tests/test_local_moving.py)",
    "default_max_parallelism_cases": "the number of parts is the flow's own, fixed when it is built; nothing "
    "derives it from a parallelism",
}
"""Sections of the table of checkpoint plans that have no runner, with the reason."""


@dataclass(frozen=True)
class LeftOut:
    """Rows that have no runner. ``applies``: which."""

    reason: str
    applies: Callable[[Row], bool]


BARRIERS_LEFT_OUT = (
    LeftOut(
        reason="at least once: rows that come twice are not offered",
        applies=lambda row: row["group"] == "tracker",
    ),
    LeftOut(
        reason="no task turns from aligned to unaligned by itself: the coordinator gives up a checkpoint whose "
        "barriers have not aligned in time, and a cut takes its place (tests/coordinator/checkpoint/test_cuts.py)",
        applies=lambda row: row["group"] == "alternating",
    ),
    LeftOut(
        reason="barriers that pass at once have no cancel markers: tasks hear of a checkpoint that was given up from "
        "the coordinator, or by a newer barrier",
        applies=lambda row: row["group"] == "unaligned" and any(step["event"] == "cancel" for step in row["steps"]),
    ),
    LeftOut(
        reason="the end of a partition counts as its barrier, always",
        applies=lambda row: row["group"] == "unaligned" and not row["config"]["checkpoints_after_tasks_finish"],
    ),
)


def barriers_left_out(row: Row) -> str:
    """Why a row of barrier handling is not run; "": it is."""
    return next((each.reason for each in BARRIERS_LEFT_OUT if each.applies(row)), "")


def expected_plan(row: Row) -> Row:
    """The outcome that our plan must have."""
    deviation = next((one for one in PLAN_DEVIATIONS if one.applies(row)), None)
    expect: Row = deviation.expect(row) if deviation is not None else row["expect"]
    return expect


def _is_unsorted(row: Row) -> bool:
    """Keys without null fall somewhere in an input of a merge join: in all its batches, or within a split."""
    if row.get("operator") != "merge_join" or not {"left", "right"} <= set(row["inputs"]):
        return False
    for side, keys in (("left", "left_keys"), ("right", "right_keys")):
        batches = [[batch[key] for key in row[keys]] for batch in row["inputs"][side]["batches"]]
        if not all(isinstance(column, list) for batch in batches for column in batch):
            continue  # generated columns: the tables generate sorted keys only
        splits = [list(zip(*batch, strict=True)) for batch in batches]
        runs = splits if row.get("barriers") else [[key for split in splits for key in split]]
        if any(_falls([key for key in run if None not in key]) for run in runs):
            return True
    return False


def _falls(keys: list[tuple[Any, ...]]) -> bool:
    """Whether some key is smaller than the one before; NaN is the largest number."""
    ranked = [tuple((value == "NaN", 0 if value == "NaN" else value) for value in key) for key in keys]
    return any(later < earlier for earlier, later in pairwise(ranked))


def _has_row_of_empty_end(row: Row) -> bool:
    """A global aggregation with barriers that is to give one row more than it has windows."""
    if not str(row.get("operator")).endswith("_aggregation") or row.get("group_keys") or not row.get("barriers"):
        return False
    given = row["expect"].get("rows", row["expect"].get("rows_per_barrier", []))
    return len(given) == len(row["inputs"].get("splits", [])) + 1


def _without_last_row(row: Row) -> Row:
    """The expectation without the row, or the window, of the empty end."""
    expect: Row = row["expect"]
    kept = {name: expect[name] for name in ("columns", "ordered") if name in expect}
    return kept | {name: expect[name][:-1] for name in ("rows", "rows_per_barrier") if name in expect}


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
