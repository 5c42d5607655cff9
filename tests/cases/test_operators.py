"""Runs the scenario table of operators: one test per row, named by its id.

Each row runs once for each output batch size that it gives, with its input cut to that size, and must give the same
rows each time. ``PENSTOCK_CASES`` names another folder of the same form, which may lack this table. A row that the
runner does not understand fails.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cases.deviations import expected_of_operator
from cases.operator_plans import NotUnderstood, Row, plan_of
from cases.operator_runs import windows_of
from cases.operator_tables import assert_same_rows, check_rows, rows_of

from penstock.engine.core.errors import PenstockError
from penstock.engine.kernels.pieces import PIECE_ROWS

TABLE = Path(os.environ.get("PENSTOCK_CASES") or Path(__file__).parent / "data") / "operators.json"


def rows() -> list[Any]:
    found = json.loads(TABLE.read_text(encoding="utf-8"))["cases"] if TABLE.exists() else []
    return [pytest.param(row, id=row["id"]) for row in found]


def check(row: Row, expect: Row, output_rows: int) -> list[list[Any]]:
    """Run the row with one batch size; the rows that came out."""
    barriers = row.get("barriers")
    if barriers not in {None, "after each split"}:
        raise NotUnderstood(f"barriers that the runner does not know: {barriers!r}")
    plan = plan_of(row)
    windows = [rows_of(window, plan.columns) for window in windows_of(plan, output_rows, barriers=barriers is not None)]
    found = [each for window in windows for each in window]
    if "rows_per_barrier" not in expect:
        check_rows(expect, found)
        return found
    if set(expect) - {"columns", "ordered", "rows_per_barrier"}:
        raise NotUnderstood(f"an expectation that the runner does not know: {sorted(expect)}")
    assert len(windows) == len(expect["rows_per_barrier"]) + 1
    for window, wanted in zip(windows, [*expect["rows_per_barrier"], []], strict=True):
        assert_same_rows(window, wanted, ordered=expect.get("ordered", False))
    return found


@pytest.mark.parametrize("row", rows())
def test_operator(row: Row) -> None:
    expect = expected_of_operator(row)
    sizes = row.get("output_batch_rows") or [PIECE_ROWS]
    if any(key.startswith("error") for key in expect):
        for size in sizes:
            with pytest.raises(PenstockError):
                windows_of(plan_of(row), size, barriers=row.get("barriers") is not None)
        return
    outcomes = [check(row, expect, size) for size in sizes]
    for other in outcomes[1:]:
        assert_same_rows(other, outcomes[0], ordered=True)


def test_a_row_of_an_unknown_operator_is_not_understood() -> None:
    with pytest.raises(NotUnderstood, match=r"no builder for operator 'sample'; there are: .*merge_join"):
        plan_of({"operator": "sample"})


def test_the_runner_tells_wrong_rows() -> None:
    row = {
        "operator": "merge_join", "join_type": "inner", "left_keys": ["a"], "right_keys": ["b"], "output": ["a"],
        "inputs": {"left": {"batches": [{"a": [1, 2]}]}, "right": {"batches": [{"b": [2]}]}},
    }  # fmt: skip
    assert check(row, {"columns": ["a"], "rows": [[2]]}, 1) == [[2]]
    with pytest.raises(AssertionError):
        check(row, {"columns": ["a"], "rows": [[1]]}, 1)
    with pytest.raises(NotUnderstood):
        check(row, {"columns": ["a"], "rows": [[2]], "windows": 1}, 1)
    with pytest.raises(NotUnderstood):
        check(row | {"unheard_of": 1}, {"columns": ["a"], "rows": [[2]]}, 1)


def test_an_unsorted_merge_join_is_a_deviation_and_refused() -> None:
    row = {
        "operator": "merge_join", "join_type": "full", "left_keys": ["a", "b"], "right_keys": ["c", "d"],
        "output": ["a", "c"], "expect": {"rows": []},
        "inputs": {"left": {"batches": [{"a": [2, None], "b": [1, 1]}, {"a": [1], "b": [5]}]},
                   "right": {"batches": [{"c": [7], "d": [7]}]}},
    }  # fmt: skip
    test_operator(row)
    in_splits = row | {"barriers": "after each split"}
    assert expected_of_operator(in_splits) == {"rows": []}, "each split is sorted"
