"""The joins against DuckDB: every join type, keys of every type, duplicates, nulls, a filter, any batch size.

Rows are compared without regard to order, which SQL does not tell (the operators' own tests do); but the order must be
the same for every batch size.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.engine.flow import index
from penstock.engine.operators import HashJoin, LookupJoin, MergeJoin
from penstock.engine.operators.join.join_shape import JOIN_TYPES, ONE_SIDED
from support.operator_harness import Units, run
from support.oracle_data import (
    ORDERED_TYPES,
    POOLS,
    Row,
    Shape,
    asked,
    one_huge_group,
    plain,
    shapes,
    sizes,
    unordered,
)

SOME = settings(max_examples=12, derandomize=True, deadline=None)
FILTER = "(p + q) % 3 <> 1"
WORDS = {"left": "left", "right": "right", "full": "full", "left semi": "semi", "anti": "anti", "inner": "inner"}

conditions = st.sampled_from([None, FILTER])
group = replace(one_huge_group(), rows=150)


def types(among: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(among), min_size=1, max_size=2)


def sides(shape: Shape, by: list[str], other_rows: int, *, is_sorted: bool) -> tuple[pa.Table, pa.Table]:
    """Two tables with keys from the same pools; the right one has its own seed and number of rows."""
    names = {f"k{number}": type for number, type in enumerate(by)}
    sorted_by = list(names) if is_sorted else []
    left = shape.table({**names, "v": "float64"}, clustered=sorted_by, nulls_anywhere=True)
    other = replace(shape, seed=shape.seed + 99, rows=other_rows)
    right = other.table({**names, "w": "string"}, clustered=sorted_by, nulls_anywhere=True)
    return left, right.rename_columns([*names, "w", "q"])


def expected(how: str, keys: int, condition: str | None, left: pa.Table, right: pa.Table) -> list[Row]:
    names = [f"k{number}" for number in range(keys)]
    where = " and ".join([*(f"l.{name} = r.{name}" for name in names), *([condition] if condition else [])])
    if how == "right semi":
        return unordered(asked(f"select r.* from r semi join l on {where}", l=left, r=right))
    if how in ONE_SIDED:
        return unordered(asked(f"select l.* from l {WORDS[how]} join r on {where}", l=left, r=right))
    using = (
        [f"coalesce(l.{name}, r.{name})" for name in names] if how in {"right", "full"} else [f"l.{n}" for n in names]
    )
    # a row without a left side shows the right side's key, even a null one; a coalesced null is null either way
    chosen = ", ".join([*using, "l.v", "l.p", "r.w", "r.q"])
    return unordered(asked(f"select {chosen} from l {WORDS[how]} join r on {where}", l=left, r=right))


def same_for_all_sizes(config: MergeJoin | HashJoin | LookupJoin, shape: Shape, *ports: Units) -> list[Row]:
    found = [plain(run(config, *ports, size=size, seed=size).table) for size in sizes(shape)]
    assert all(rows == found[0] for rows in found)
    return unordered(found[0])


@pytest.mark.parametrize("how", JOIN_TYPES)
@SOME
@given(
    shape=shapes,
    by=types(tuple(POOLS)),
    other_rows=st.sampled_from([0, 1, 30, 120]),
    condition=conditions,
)
@example(shape=group, by=["string"], other_rows=120, condition=FILTER)
def test_hash_join_equals_duckdb(how: str, shape: Shape, by: list[str], other_rows: int, condition: str | None) -> None:
    left, right = sides(shape, by, other_rows, is_sorted=False)
    config = HashJoin(tuple(left.column_names[: len(by)]), how, filter=condition)
    found = same_for_all_sizes(config, shape, shape.cut(left), shape.cut(right))
    assert found == expected(how, len(by), condition, left, right)


@pytest.mark.parametrize("how", JOIN_TYPES)
@SOME
@given(
    shape=shapes,
    by=types(ORDERED_TYPES),
    other_rows=st.sampled_from([0, 1, 30, 120]),
    condition=conditions,
)
@example(shape=group, by=["string"], other_rows=120, condition=FILTER)
def test_merge_join_equals_duckdb(
    how: str, shape: Shape, by: list[str], other_rows: int, condition: str | None
) -> None:
    left, right = sides(shape, by, other_rows, is_sorted=True)
    config = MergeJoin(tuple(left.column_names[: len(by)]), how, filter=condition)
    found = same_for_all_sizes(config, shape, {(0, 0): left}, {(0, 0): right})
    assert found == expected(how, len(by), condition, left, right)


@pytest.mark.parametrize("how", JOIN_TYPES)
@SOME
@given(shape=shapes, other_rows=st.sampled_from([0, 1, 30, 120]))
def test_merge_join_takes_nested_keys_in_the_order_in_which_duckdb_sorts_them(
    how: str, shape: Shape, other_rows: int
) -> None:
    left, right = sides(shape, ["struct", "list"], other_rows, is_sorted=False)
    left, right = in_order(left, "p"), in_order(right, "q")
    found = same_for_all_sizes(MergeJoin(("k0", "k1"), how), shape, {(0, 0): left}, {(0, 0): right})
    assert found == expected(how, 2, None, left, right)


def in_order(table: pa.Table, place: str) -> pa.Table:
    rows = asked(f"select {place} from t order by k0 nulls last, k1 nulls last, {place}", t=table)
    return table.take(pa.array([row for (row,) in rows], pa.int64()))


@pytest.mark.parametrize("how", ["inner", "left"])
@SOME
@given(shape=shapes, by=types(tuple(POOLS)), other_rows=st.sampled_from([0, 1, 30, 120]), condition=conditions)
@example(shape=group, by=["string"], other_rows=120, condition=FILTER)
def test_lookup_join_equals_duckdb(
    how: str, shape: Shape, by: list[str], other_rows: int, condition: str | None
) -> None:
    left, right = sides(shape, by, other_rows, is_sorted=False)
    names = tuple(left.column_names[: len(by)])
    config = LookupJoin(index.memory(right, names), names, how=how, filter=condition)
    found = same_for_all_sizes(config, shape, shape.cut(left))
    assert found == expected(how, len(by), condition, left, right)
