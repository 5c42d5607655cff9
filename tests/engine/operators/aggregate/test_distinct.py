"""Distinct and mark distinct: first rows by any key, against DuckDB and published tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import FlowError
from penstock.engine.core.operator import exhaust
from penstock.engine.operators import Aggregate, Distinct, HashAggregate, MarkDistinct
from support.operator_harness import SIZES, Collected, context, rows_of, run
from support.operator_windows import windows_of
from support.oracle import numbered, query

rows = st.lists(st.tuples(st.none() | st.integers(0, 4), st.sampled_from(["a", "b", None])), max_size=60)


def made_of(given: list[tuple[Any, ...]]) -> pa.Table:
    columns = [pa.array([row[0] for row in given], pa.int64()), pa.array([row[1] for row in given], pa.string())]
    return pa.table(columns, names=["k", "s"])


def by_units(table: pa.Table, lanes: int = 4, rounds: int = 3) -> dict[tuple[int, int], pa.Table]:
    share = -(-table.num_rows // (lanes * rounds)) or 1
    units = [(round, lane) for round in range(rounds) for lane in range(lanes)]
    return {unit: table.slice(number * share, share) for number, unit in enumerate(units)}


@settings(max_examples=40, deadline=None)
@given(
    given_rows=rows,
    by=st.sampled_from([("k",), ("s",), ("k", "s")]),
    size=st.sampled_from(SIZES),
    restore=st.booleans(),
)
def test_distinct_keeps_the_first_row_of_every_key(
    given_rows: list[Any], by: tuple[str, ...], size: int, restore: bool
) -> None:
    table = numbered(made_of(given_rows))
    found = run(Distinct(by), by_units(table), schemas=[table.schema], size=size, restore=restore)
    sql = f"select k, s, p from (select *, row_number() over (partition by {', '.join(by)} order by p) as n from t)"
    assert rows_of(found.table) == query(f"{sql} where n = 1 order by p", t=table)


@settings(max_examples=25, deadline=None)
@given(given_rows=rows, size=st.sampled_from(SIZES), parallelisms=st.sampled_from([(1,), (1, 4, 2), (3,)]))
def test_distinct_per_lane_then_over_all_lanes_is_distinct_at_any_parallelism(
    given_rows: list[Any], size: int, parallelisms: tuple[int, ...]
) -> None:
    table = made_of(given_rows)
    first = run(
        Distinct(("k",), per_lane=True),
        by_units(table), schemas=[table.schema], size=size, restore=True, parallelisms=parallelisms,
    )  # fmt: skip
    units = {unit: made_of(values) for unit, values in first.units.items()}
    second = run(Distinct(("k",)), units, schemas=[table.schema], size=size)
    straight = run(Distinct(("k",)), by_units(table), schemas=[table.schema])
    assert second.units == straight.units


def test_rows_of_a_round_that_has_not_ended_are_in_the_snapshot() -> None:
    for config in (Distinct(("k",)), MarkDistinct(("k",), "m")):
        table = made_of([(1, "a"), (None, "b"), (1, "c")])
        output = Collected(config.output_schema([table.schema]))
        running = config.build(context(), [table.schema], None)
        (first,), (second,) = table.slice(0, 2).to_batches(), table.slice(2).to_batches()
        exhaust(running.process(0, Batch(table.slice(0, 1).to_batches()[0], Tag(0, 1, 0)), output))
        exhaust(running.end_round(0, 0, output))
        exhaust(running.process(0, Batch(first, Tag(1, 1, 0)), output))
        state = running.snapshot()
        again = config.build(context(), [table.schema], state)
        exhaust(again.process(0, Batch(second, Tag(1, 1, 1)), output))
        exhaust(again.end_round(0, 1, output))
        exhaust(again.finish(output))
        found = [row for batch in output.batches for row in rows_of(batch.records)]
        if isinstance(config, Distinct):
            assert found == [(1, "a"), (None, "b")]
        else:
            assert found == [(1, "a", True), (1, "a", False), (None, "b", True), (1, "c", False)]


def test_every_key_is_new_behind_a_barrier() -> None:
    windows = [made_of([(1, "a"), (1, "b"), (2, "a")]), made_of([(1, "c"), (3, "a"), (3, "b")])]
    assert windows_of(Distinct(("k",)), windows, 1) == [[(1, "a"), (2, "a")], [(1, "c"), (3, "a")], []]
    marked = windows_of(MarkDistinct(("k",), "m"), windows, 2)
    assert [[row[-1] for row in window] for window in marked] == [[True, False, True], [True, True, False], []]


Y, N = True, False
TABLES: dict[str, tuple[dict[str, list[Any]], dict[str, list[bool]]]] = {
    "nulls": (
        {"c0": [1, None, 1, None, None], "m0": [Y, N, Y, Y, N], "m1": [N, Y, Y, N, Y]},
        {"all": [Y, Y, N, N, N], "m0": [Y, N, N, Y, N], "m1": [N, Y, Y, N, N]},
    ),
    "null masks": (
        {"c0": [1, 1, 1, 1], "m0": [None, Y, N, Y], "m1": [Y, None, None, N]},
        {"all": [Y, N, N, N], "m0": [N, Y, N, N], "m1": [Y, N, N, N]},
    ),
    "all false": (
        {"c0": [1, 2, 3], "m0": [N, N, N], "m1": [N, N, N]},
        {"all": [Y, Y, Y], "m0": [N, N, N], "m1": [N, N, N]},
    ),
    "some masks": (
        {"c0": [1, 1, 1, 2, 2], "m0": [Y, N, Y, Y, N], "m1": [Y, Y, Y, Y, Y]},
        {"all": [Y, N, N, Y, N], "m0": [Y, N, N, Y, N], "m1": [Y, N, N, Y, N]},
    ),
}
"""Columns, and the markers for the key and for each mask."""


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("size", SIZES)
def test_mark_distinct_marks_the_first_row_where_the_mask_is_true(name: str, size: int) -> None:
    given_columns, expected = TABLES[name]
    table = pa.table({column: pa.array(values) for column, values in given_columns.items()})
    config = MarkDistinct(("c0",), "all", (("m0", "first_m0"), ("m1", "first_m1")))
    found = run(config, {(0, 0): table}, size=size).table
    assert found.select(["all", "first_m0", "first_m1"]).to_pydict() == {
        "all": expected["all"], "first_m0": expected["m0"], "first_m1": expected["m1"]
    }  # fmt: skip
    assert found.select(table.column_names).equals(table)


def test_sums_of_distinct_values_by_markers() -> None:
    table = pa.table({"c0": [1, 1, 1, 2, 2, 2], "c1": [1, 1, 1, 1, 2, 3], "c2": [1, 2, 1, 2, 1, 2]})
    once = run(MarkDistinct(("c0", "c1"), "d1"), {(0, 0): table}, size=2).table
    twice = run(MarkDistinct(("c0", "c2"), "d2"), {(0, 0): once}, size=2).table
    sums = (Aggregate("s1", "c1", "sum", where="d1"), Aggregate("s2", "c2", "sum", where="d2"))
    assert rows_of(run(HashAggregate(("c0",), sums), {(0, 0): twice}).table) == [(1, 1, 3), (2, 6, 3)]


@settings(max_examples=20, deadline=None)
@given(given_rows=rows, size=st.sampled_from(SIZES), restore=st.booleans())
def test_mark_distinct_equals_duckdb(given_rows: list[Any], size: int, restore: bool) -> None:
    table = numbered(made_of(given_rows))
    found = run(MarkDistinct(("k", "s"), "m"), by_units(table), schemas=[table.schema], size=size, restore=restore)
    sql = "select *, row_number() over (partition by k, s order by p) = 1 from t order by p"
    assert rows_of(found.table) == query(sql, t=table)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Distinct(("z",)), "distinct: its input has no column 'z'"),
        (Distinct(("k", "k")), "'k' is given twice"),
        (MarkDistinct((), "m"), "mark distinct: no key is given"),
        (MarkDistinct(("k",), "m", (("s", "x"),)), "mask 's' is string"),
        (MarkDistinct(("k",), "s"), "two columns named 's'"),
    ],
)
def test_distinct_refuses_what_it_cannot_tell_apart(config: Distinct | MarkDistinct, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        config.output_schema([made_of([]).schema])
