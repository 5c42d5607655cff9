"""The aggregates that rows of ``operators.json`` may write, beyond those that its rows happen to have."""

from __future__ import annotations

from typing import Any

import pytest
from cases.operator_builders_aggregates import sort_keys
from cases.operator_plans import NotUnderstood, plan_of
from cases.operator_runs import windows_of
from cases.operator_tables import rows_of

from penstock.engine.operators import SortKey

BATCHES = [
    {"k": [1, 1, 2], "v": [3, None, 5], "m": [True, True, None]},
    {"k": [2, 1, None], "v": [5, 4, 7], "m": [False] * 3},
]
WRITTEN: dict[str, list[Any]] = {
    "count(1)": [3, 2, 1],
    "count(*)": [3, 2, 1],
    "sum(1)": [3, 2, 1],
    "sum(cast(null as int))": [None, None, None],
    "sum(v + 1)": [9, 12, 8],
    "avg(v)": [3.5, 5.0, 7.0],
    "sum(v) where m": [3, None, None],
    "count(1) where v > 3": [1, 2, 1],
    "sum(v) filter (where v > 3)": [4, 10, 7],
    "count(distinct v)": [2, 1, 1],
    "array_agg(distinct v)": [[3, None, 4], [5], [7]],
    "array_agg(v order by v desc)": [[4, 3, None], [5, 5], [7]],
    "arbitrary(v)=first": [3, 5, 7],
    "arbitrary(v)": [3, 5, 7],
}


def outcome(row: dict[str, Any]) -> list[list[Any]]:
    plan = plan_of(row)
    (window,) = windows_of(plan, 2, barriers=False)
    return rows_of(window, plan.columns)


@pytest.mark.parametrize("step", ["single", "partial->final"])
@pytest.mark.parametrize("written", WRITTEN)
def test_an_aggregate_is_read_as_it_is_written(written: str, step: str) -> None:
    row = {
        "operator": "hash_aggregation", "step": step, "group_keys": ["k"], "aggregates": [written],
        "inputs": {"batches": BATCHES},
    }  # fmt: skip
    assert outcome(row) == [[key, value] for key, value in zip([1, 2, None], WRITTEN[written], strict=True)]


def test_null_keys_are_ignored_where_a_row_says_so() -> None:
    row = {
        "operator": "hash_aggregation", "step": "single", "group_keys": ["k"], "aggregates": ["sum(v)"],
        "inputs": {"batches": BATCHES}, "params": {"ignore_null_keys": True},
    }  # fmt: skip
    assert outcome(row) == [[1, 7], [2, 10]]


def test_rows_of_the_other_operators_are_read() -> None:
    rows = {"inputs": {"batches": BATCHES}}
    assert outcome({"operator": "order_by", "keys": ["v desc nulls first", "k"], "output": ["v"], **rows}) == [
        [None], [7], [5], [5], [4], [3]
    ]  # fmt: skip
    assert outcome({"operator": "topn", "keys": ["v"], "count": 2, "output": ["v"], **rows}) == [[3], [4]]
    assert outcome({"operator": "limit", "offset": 1, "limit": 2, "output": ["v"], **rows}) == [[None], [5]]
    assert outcome({"operator": "distinct", "keys": ["k"], "output": ["k"], **rows}) == [[1], [2], [None]]
    marked = outcome({"operator": "mark_distinct", "keys": ["k"], "masks": ["m"], **rows})
    assert marked == [[True, True], [False, False], [True, False], [False, False], [False, False], [True, False]]


def test_keys_have_a_direction_and_a_place_for_nulls() -> None:
    assert sort_keys(["a", "b desc", "c asc nulls first"]) == (
        SortKey("a"), SortKey("b", descending=True), SortKey("c", nulls_first=True)
    )  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"aggregates": ["mode(v)"]}, {"aggregates": ["sum v"]}, {"step": "merge"}, {"params": {"mode": 1}},
        {"inputs": {"tables": []}}, {"aggregates": ["array_agg(v order by v sideways)"]}, {"unheard_of": 1},
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_not_understood(change: dict[str, Any]) -> None:
    row = {"operator": "hash_aggregation", "step": "single", "group_keys": ["k"], "aggregates": ["sum(v)"],
           "inputs": {"batches": BATCHES}}  # fmt: skip
    with pytest.raises(NotUnderstood):
        plan_of({**row, **change})
