"""Operators that depend on order against DuckDB: sort, top-n, limit, window functions; union."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.engine.operators import Limit, Sort, SortKey, TopN, Union, Window, WindowFunction
from penstock.engine.operators.sequence import top_n
from support.operator_harness import run
from support.oracle_data import (
    ORDERED_TYPES,
    POOLS,
    Shape,
    asked,
    nearly,
    one_huge_group,
    plain,
    shapes,
    sizes,
)

SOME = settings(max_examples=30, derandomize=True, deadline=None)

sort_keys = st.lists(st.tuples(st.sampled_from(list(POOLS)), st.booleans(), st.booleans()), min_size=1, max_size=3)
counts = st.sampled_from([0, 1, 5, 1000, 2**40])

FUNCTIONS = {
    "row_number": (WindowFunction("a", "row_number"), "row_number() over (w order by {by}, p)"),
    "rank": (WindowFunction("b", "rank"), "rank() over (w order by {by})"),
    "dense_rank": (WindowFunction("c", "dense_rank"), "dense_rank() over (w order by {by})"),
    "lag": (WindowFunction("d", "lag", "o", 2), "lag(o, 2) over (w order by {by}, p)"),
    "lead": (WindowFunction("e", "lead", "o"), "lead(o) over (w order by {by}, p)"),
    "count": (WindowFunction("f", "count", "o"), "count(o) over (w order by {by}, p rows unbounded preceding)"),
    "sum": (WindowFunction("g", "sum", "v"), "sum(v) over (w order by {by}, p rows unbounded preceding)"),
    "min": (WindowFunction("h", "min", "o"), "min(o) over (w order by {by}, p rows unbounded preceding)"),
    "max": (WindowFunction("i", "max", "o"), "max(o) over (w order by {by}, p rows unbounded preceding)"),
    "sum of peers": (WindowFunction("j", "sum", "v", frame="range"), "sum(v) over (w order by {by})"),
    "max of peers": (WindowFunction("k", "max", "o", frame="range"), "max(o) over (w order by {by})"),
}


def order(keys: list[tuple[str, bool, bool]]) -> tuple[tuple[SortKey, ...], str, dict[str, str]]:
    """The keys for the operator, for DuckDB, and the columns."""
    columns = {f"k{number}": type for number, (type, _, _) in enumerate(keys)}
    ours = tuple(SortKey(name, down, first) for name, (_, down, first) in zip(columns, keys, strict=True))
    theirs = ", ".join(
        f"{key.column} {'desc' if key.descending else 'asc'} nulls {'first' if key.nulls_first else 'last'}"
        for key in ours
    )
    return ours, theirs, columns


@SOME
@given(shape=shapes, keys=sort_keys)
@example(shape=one_huge_group(), keys=[("string", False, False)])
def test_sort_equals_duckdb_and_leaves_equal_rows_in_place(shape: Shape, keys: list[tuple[str, bool, bool]]) -> None:
    ours, theirs, columns = order(keys)
    table = shape.table({**columns, "v": "list"})
    wanted = asked(f"select * from t order by {theirs}, p", t=table)
    for size in sizes(shape):
        assert plain(run(Sort(ours), shape.cut(table), size=size).table) == wanted


@SOME
@given(shape=shapes, keys=sort_keys, count=st.sampled_from([1, 5, 1000]))
@example(shape=one_huge_group(), keys=[("string", False, False)], count=70)
def test_top_n_equals_duckdb(shape: Shape, keys: list[tuple[str, bool, bool]], count: int) -> None:
    ours, theirs, columns = order(keys)
    table = shape.table({**columns, "v": "list"})
    wanted = asked(f"select * from t order by {theirs}, p limit {count}", t=table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_n, "SPARE_ROWS", 4)  # rows are dropped early
        for size in sizes(shape):
            assert plain(run(TopN(ours, count), shape.cut(table), size=size).table) == wanted


@SOME
@given(shape=shapes, offset=counts, count=counts)
@example(shape=one_huge_group(), offset=7, count=10_000)
def test_limit_equals_duckdb(shape: Shape, offset: int, count: int) -> None:
    table = shape.table({"v": "struct"})
    wanted = asked(f"select * from t order by p limit {count} offset {offset}", t=table)
    for size in sizes(shape):
        assert plain(run(Limit(count, offset), shape.cut(table), size=size).table) == wanted


@SOME
@given(
    shape=shapes,
    by=st.lists(st.sampled_from(list(POOLS)), max_size=2),
    key=st.tuples(st.sampled_from(ORDERED_TYPES), st.booleans(), st.booleans()),
    other=st.sampled_from(ORDERED_TYPES),
)
@example(shape=one_huge_group(), by=["date"], key=("string", False, False), other="float64")
def test_window_functions_over_sorted_partitions_equal_duckdb(
    shape: Shape, by: list[str], key: tuple[str, bool, bool], other: str
) -> None:
    (sort_key,), theirs, columns = order([key])
    names = [f"b{number}" for number in range(len(by))]
    drawn = shape.table({**dict(zip(names, by, strict=True)), **columns, "o": other, "v": "int32"})
    partitions = ", ".join(f"{name} nulls last" for name in names)
    places = asked(f"select p from t order by {partitions + ', ' if by else ''}{theirs}, p", t=drawn)
    table = drawn.take(pa.array([place for (place,) in places], pa.int64()))
    functions = tuple(function for function, _ in FUNCTIONS.values())
    chosen = ", ".join(sql.format(by=theirs) for _, sql in FUNCTIONS.values())
    window = f"partition by {', '.join(names)}" if by else ""
    in_order = f"order by {partitions + ', ' if by else ''}{theirs}, p"
    sql = f"select *, {chosen} from t window w as ({window}) {in_order}"
    wanted = nearly(asked(sql, t=table))
    config = Window(tuple(names), (sort_key,), functions)
    for size in sizes(shape):
        # one lane: a partition may span rounds
        units = {(number, 0): rows for number, rows in enumerate(shape.cut(table).values())}
        assert nearly(plain(run(config, units, size=size).table)) == wanted


@SOME
@given(shape=shapes, other_rows=st.sampled_from([0, 1, 30]), third_rows=st.sampled_from([0, 20]))
@example(shape=one_huge_group(), other_rows=5, third_rows=0)
def test_union_equals_duckdb_in_the_order_of_rounds_lanes_and_streams(
    shape: Shape, other_rows: int, third_rows: int
) -> None:
    columns = {"a": "dictionary", "b": "struct"}
    others = [replace(shape, seed=shape.seed + rows, rows=rows) for rows in (other_rows, third_rows)]
    ports = [each.cut(each.table(columns)) for each in (shape, *others)]
    tagged = [
        rows.append_column("tag", pa.array([[round, lane, port]] * rows.num_rows, pa.list_(pa.int64())))
        for port, units in enumerate(ports)
        for (round, lane), rows in units.items()
    ]
    tables = {f"t{number}": table for number, table in enumerate(tagged)}
    everything = " union all ".join(f"select * from {name}" for name in tables)
    wanted = asked(f"select a, b, p from ({everything}) order by tag, p", **tables)
    for size in sizes(shape):
        assert plain(run(Union(3), *ports, size=size, seed=size).table) == wanted
