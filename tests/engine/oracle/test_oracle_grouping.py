"""Grouping operators against DuckDB: aggregations in both forms and all steps, distinct, mark distinct."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.engine.operators import Aggregate, Distinct, HashAggregate, MarkDistinct, StreamAggregate
from support.operator_harness import Outcome, Units, run
from support.oracle_data import (
    ORDERED_TYPES,
    POOLS,
    Row,
    Shape,
    asked,
    nearly,
    one_huge_group,
    plain,
    shapes,
    sizes,
    unordered,
)

SOME = settings(max_examples=30, derandomize=True, deadline=None)
keys = st.lists(st.sampled_from(list(POOLS)), min_size=1, max_size=2)

AGGREGATES = {
    "n": (Aggregate("n", None, "count"), "count(*)"),
    "c": (Aggregate("c", "v", "count"), "count(v)"),
    "s": (Aggregate("s", "v", "sum"), "sum(v)::hugeint"),
    "d": (Aggregate("d", "d", "sum"), "sum(d)"),
    "m": (Aggregate("m", "v", "mean"), "avg(v)"),
    "low": (Aggregate("low", "o", "min"), "min(o)"),
    "high": (Aggregate("high", "o", "max"), "max(o)"),
    "var": (Aggregate("var", "v", "variance"), "var_samp(v)"),
    "dev": (Aggregate("dev", "v", "stddev"), "stddev_samp(v)"),
    "u": (Aggregate("u", "o", "count_distinct"), "count(distinct o)"),
    "w": (Aggregate("w", "v", "sum", where="b"), "sum(v) filter (where b)::hugeint"),
    "du": (Aggregate("du", "v", "sum", distinct=True), "sum(distinct v)::hugeint"),
}
ORDERED = {
    "f": (Aggregate("f", "o", "first"), "first(o order by p)"),
    "l": (Aggregate("l", "o", "last"), "last(o order by p)"),
    "a": (Aggregate("a", "o", "collect_list"), "list(o order by p)"),
    "ow": (Aggregate("ow", "v", "first", order_by=("v",)), "first(v order by v nulls last, p)"),
}


def columns(by: list[str], other: str) -> dict[str, str]:
    named = {f"k{number}": type for number, type in enumerate(by)}
    return {**named, "v": "int32", "d": "decimal", "o": other, "b": "bool"}


def in_one_lane(units: Units) -> Units:
    """A group spans rounds within its lane only."""
    return {(number, 0): rows for number, rows in enumerate(units.values())}


def expected(by: list[str], asks: dict[str, tuple[Aggregate, str]], table: pa.Table) -> list[Row]:
    names = [f"k{number}" for number in range(len(by))]
    chosen = ", ".join([*(f"first({name} order by p) {name}" for name in names), *(sql for _, sql in asks.values())])
    return nearly(asked(f"select {chosen} from t group by {', '.join(names)} order by min(p)", t=table))


@SOME
@given(shape=shapes, by=keys, other=st.sampled_from(ORDERED_TYPES))
@example(shape=one_huge_group(), by=["string"], other="float64")
def test_streaming_aggregation_of_clustered_keys_equals_duckdb(shape: Shape, by: list[str], other: str) -> None:
    asks = {**AGGREGATES, **ORDERED}
    names = [f"k{number}" for number in range(len(by))]
    table = shape.table(columns(by, other), clustered=names)
    config = StreamAggregate(tuple(names), tuple(aggregate for aggregate, _ in asks.values()))
    wanted = expected(by, asks, table)
    for size in sizes(shape):
        assert nearly(plain(run(config, in_one_lane(shape.cut(table)), size=size).table)) == wanted


@SOME
@given(shape=shapes, by=keys, other=st.sampled_from(ORDERED_TYPES))
@example(shape=one_huge_group(), by=["string"], other="float64")
def test_hash_aggregation_equals_duckdb(shape: Shape, by: list[str], other: str) -> None:
    asks = {**AGGREGATES, **ORDERED}
    table = shape.table(columns(by, other))
    names = tuple(f"k{number}" for number in range(len(by)))
    config = HashAggregate(names, tuple(aggregate for aggregate, _ in asks.values()))
    wanted = expected(by, asks, table)
    for size in sizes(shape):
        assert nearly(plain(run(config, shape.cut(table), size=size).table)) == wanted


@SOME
@given(shape=shapes, by=keys, other=st.sampled_from(ORDERED_TYPES))
def test_two_steps_of_hash_aggregation_equal_duckdb(shape: Shape, by: list[str], other: str) -> None:
    table = shape.table(columns(by, other))
    names = tuple(f"k{number}" for number in range(len(by)))
    partial = HashAggregate(names, tuple(aggregate for aggregate, _ in AGGREGATES.values()), step="partial")
    wanted = unordered(expected(by, AGGREGATES, table))
    for size in sizes(shape):
        made = run(partial, shape.cut(table), size=size)
        final = run(partial.final(table.schema), by_lane(made), size=size)
        assert unordered(nearly(plain(final.table))) == wanted


def by_lane(made: Outcome) -> Units:
    """What a partial step has given, as a final one receives it."""
    units: dict[tuple[int, int], pa.Table] = {(0, 0): made.table.slice(0, 0)}
    for batch in made.batches:
        rows = pa.Table.from_batches([batch.records])
        units[0, batch.tag.lane] = pa.concat_tables([units.get((0, batch.tag.lane), rows.slice(0, 0)), rows])
    return units


@SOME
@given(shape=shapes, by=keys)
@example(shape=one_huge_group(), by=["int32"])
def test_distinct_keeps_the_first_row_of_each_key_as_duckdb_does(shape: Shape, by: list[str]) -> None:
    table = shape.table(columns(by, "string"))
    names = tuple(f"k{number}" for number in range(len(by)))
    place = f"row_number() over (partition by {', '.join(names)} order by p)"
    wanted = asked(f"select * from t qualify {place} = 1 order by p", t=table)
    for size in sizes(shape):
        assert plain(run(Distinct(names), shape.cut(table), size=size).table) == wanted


@SOME
@given(shape=shapes, by=keys)
@example(shape=one_huge_group(), by=["int32"])
def test_mark_distinct_marks_the_rows_that_duckdb_numbers_first(shape: Shape, by: list[str]) -> None:
    table = shape.table(columns(by, "string"))
    names = [f"k{number}" for number in range(len(by))]
    by_key = f"partition by {', '.join(names)}"
    marks = f"""row_number() over ({by_key} order by p) = 1 as new,
        coalesce(b, false) and row_number() over ({by_key}, coalesce(b, false) order by p) = 1 as masked"""
    wanted = asked(f"select *, {marks} from t order by p", t=table)
    config = MarkDistinct(tuple(names), "new", (("b", "masked"),))
    for size in sizes(shape):
        assert plain(run(config, shape.cut(table), size=size).table) == wanted
