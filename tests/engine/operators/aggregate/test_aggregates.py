"""Aggregates with masks, distinct and an order of their own, in both aggregations, against DuckDB."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.engine.core.errors import DataError, FlowError, PenstockError, UserCodeError
from penstock.engine.kernels.aggregate_protocol import AggregateFunction, Segments
from penstock.engine.operators import Aggregate, HashAggregate, SortKey, StreamAggregate
from penstock.engine.operators.aggregate.aggregate_functions import FUNCTIONS
from penstock.engine.operators.aggregate.aggregates import AggregateColumns, Step, arguments_of
from support.key_types import KEY_TYPES, key_column
from support.operator_harness import SIZES, rows_of, run
from support.operator_windows import windows_of
from support.oracle import numbered, query

DOWN = SortKey("o", descending=True, nulls_first=True)
ASKED: dict[str, Aggregate] = {
    "count(*) filter (where m)": Aggregate("a", None, "count", where="m"),
    "count(v) filter (where m)": Aggregate("b", "v", "count", where="m"),
    "(sum(v) filter (where m))::bigint": Aggregate("c", "v", "sum", where="m"),
    "min(v) filter (where m)": Aggregate("d", "v", "min", where="m"),
    "avg(v) filter (where m)": Aggregate("e", "v", "avg", where="m"),
    "first(v order by p) filter (where m)": Aggregate("f", "v", "first", where="m"),
    "last(v order by p) filter (where m)": Aggregate("g", "v", "last", where="m"),
    "list(v order by p) filter (where m)": Aggregate("h", "v", "array_agg", where="m"),
    "count(distinct v) filter (where m)": Aggregate("i", "v", "count_distinct", where="m"),
    "sum(distinct v)::bigint": Aggregate("j", "v", "sum", distinct=True),
    "max(distinct v)": Aggregate("k2", "v", "max", distinct=True),
    "list(v order by o nulls last, p)": Aggregate("l", "v", "collect_list", order_by=("o",)),
    "list(v order by o desc nulls first, p)": Aggregate("n", "v", "collect_list", order_by=(DOWN,)),
    "list(v order by o desc nulls first, v nulls last, p) filter (where m)": Aggregate(
        "q", "v", "collect_list", where="m", order_by=(DOWN, "v")
    ),
    "first(v order by o nulls last, p)": Aggregate("r", "v", "first", order_by=("o",)),
    "max(v order by o)": Aggregate("s", "v", "max", order_by=("o",)),
    "list(distinct v order by v nulls last)": Aggregate("t", "v", "collect_list", distinct=True, order_by=("v",)),
    "round(var_samp(v) filter (where m), 6)": Aggregate("u", "v", "variance", where="m"),
    "round(stddev_samp(v), 6)": Aggregate("w", "v", "stddev"),
}

rows = st.lists(
    st.tuples(
        *(st.none() | some for some in (st.integers(0, 3), st.integers(-5, 5), st.integers(0, 3), st.booleans()))
    ),
    max_size=40,
)


def made_of(given: list[tuple[Any, ...]]) -> pa.Table:
    types = {"k": pa.int64(), "v": pa.int64(), "o": pa.int8(), "m": pa.bool_()}
    columns = [pa.array([row[place] for row in given], type) for place, type in enumerate(types.values())]
    return pa.table(columns, names=list(types))


def digits(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The last two columns to six digits."""
    return [(*row[:-2], *(None if each is None else round(float(each), 6) for each in row[-2:])) for row in found]


@settings(max_examples=30, deadline=None)
@given(given_rows=rows, size=st.sampled_from(SIZES))
def test_masks_distinct_and_order_equal_duckdb_in_both_aggregations(given_rows: list[Any], size: int) -> None:
    table = made_of(given_rows)
    sql = f"select k, {', '.join(ASKED)} from t group by k order by min(p)"
    expected = digits(query(sql, t=numbered(table)))
    aggregates = tuple(ASKED.values())
    assert digits(rows_of(run(HashAggregate(("k",), aggregates), {(0, 0): table}, size=size).table)) == expected
    clustered = table.sort_by("k")
    expected = digits(query(sql, t=numbered(clustered)))
    assert digits(rows_of(run(StreamAggregate(("k",), aggregates), {(0, 0): clustered}, size=size).table)) == expected


@settings(max_examples=15, deadline=None)
@given(given_rows=rows, size=st.sampled_from(SIZES))
def test_two_steps_in_one_lane_equal_one_in_both_aggregations(given_rows: list[Any], size: int) -> None:
    """The lane keeps the order of the rows, so that functions that depend on it can be compared as well."""
    table = made_of(given_rows).sort_by("k")
    for make in (HashAggregate, StreamAggregate):
        single = make(("k",), tuple(ASKED.values()))
        partial = make(("k",), tuple(ASKED.values()), step="partial")
        first = run(partial, {(0, 0): table}, size=size)
        second = run(partial.final(table.schema), {(0, 0): first.table}, schemas=[first.schema], size=size)
        straight = run(single, {(0, 0): table})
        assert second.schema == straight.schema
        assert digits(rows_of(second.table)) == digits(rows_of(straight.table))


@settings(max_examples=10, deadline=None)
@given(given_rows=rows, size=st.sampled_from(SIZES))
def test_states_of_masks_distinct_and_order_are_restored(given_rows: list[Any], size: int) -> None:
    table = made_of(given_rows)
    units = {(round, 0): table.slice(round * 14, 14) for round in range(3)}
    config = HashAggregate(("k",), tuple(ASKED.values()))
    restored = run(config, units, size=size, restore=True)
    assert digits(rows_of(restored.table)) == digits(rows_of(run(config, units).table))


@pytest.mark.parametrize("kind", [name for name in KEY_TYPES if name != "null"])
def test_lists_and_distinct_values_of_any_type(kind: str) -> None:
    numbers = [3, None, 1, 3, 1, None, 4]
    values = key_column(kind, numbers)
    table = pa.table({"k": [1] * len(numbers), "v": values})
    aggregates = (
        Aggregate("all", "v", "collect_list"),
        Aggregate("distinct", "v", "collect_list", distinct=True),
        Aggregate("sorted", "v", "collect_list", distinct=True, order_by=("v",)),
        Aggregate("n", "v", "count_distinct"),
    )
    for size in (1, 2, 16):
        ((key, everything, distinct, in_order, count),) = rows_of(
            run(HashAggregate(("k",), aggregates), {(0, 0): table}, size=size).table
        )
        texts = [str(value) for value in values.to_pylist()]
        assert (key, [str(value) for value in everything]) == (1, texts)
        assert [str(value) for value in distinct] == list(dict.fromkeys(texts))
        assert count == len(set(texts)) - 1
        by_number = dict(
            sorted((number, text) for number, text in zip(numbers, texts, strict=True) if number is not None)
        )
        assert [str(value) for value in in_order] == [*dict.fromkeys(by_number.values()), "None"]


def test_a_masked_group_is_still_a_group() -> None:
    table = pa.table({"k": [1, 2], "v": [5, 6], "m": [False, None]})
    aggregates = tuple(Aggregate(name, "v", name, where="m") for name in FUNCTIONS)
    blank = [0 if name in {"count", "count_distinct", "approx_count_distinct"} else None for name in FUNCTIONS]
    for make in (HashAggregate, StreamAggregate):
        assert rows_of(run(make(("k",), aggregates), {(0, 0): table}).table) == [(1, *blank), (2, *blank)]


def test_a_streamed_group_on_both_sides_of_a_barrier_comes_once_for_each() -> None:
    config = StreamAggregate(("k",), (Aggregate("n", None, "count"), Aggregate("s", "v", "sum")))
    keys, values = [[1, 1, 2], [2, 2, 3], [3]], [[0, 1, 2], [3, 4, 5], [6]]
    windows = [pa.table({"k": key, "v": value}) for key, value in zip(keys, values, strict=True)]
    for size in (1, 2, 16):
        assert windows_of(config, windows, size) == [[(1, 2, 1), (2, 1, 2)], [(2, 2, 7), (3, 1, 5)], [(3, 1, 6)], []]


def test_variance_of_large_numbers_does_not_cancel() -> None:
    values = [1e9 + each for each in (4.0, 7.0, 13.0, 16.0)]
    table = pa.table({"k": [1] * 4, "v": values})
    for size in (1, 3, 16):
        (row,) = rows_of(
            run(HashAggregate(("k",), (Aggregate("x", "v", "variance"),)), {(0, 0): table}, size=size).table
        )
        assert row == (1, "30.0")


class Longest:
    """A function of one's own: the length of the longest text."""

    name = "longest"
    ordered = False

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        return (pa.int64(),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        return pa.int64()

    def lift(self, values: pa.Array | None, rows: int) -> tuple[pa.Array, ...]:
        assert values is not None
        return (pa.array([len(value or "") for value in values.to_pylist()], pa.int64()),)

    def blank(self, column: pa.DataType | None, rows: int) -> tuple[pa.Array, ...]:
        return (pa.array([0] * rows, pa.int64()),)

    def merge(self, state: tuple[pa.Array, ...], segments: Segments) -> tuple[pa.Array, ...]:
        return FUNCTIONS["max"].merge(state, segments)

    def final(self, state: tuple[pa.Array, ...], column: pa.DataType | None) -> pa.Array:
        return state[0]


def test_a_function_of_ones_own_works_in_both_aggregations() -> None:
    assert isinstance(Longest(), AggregateFunction)
    table = pa.table({"k": [1, 1, 2], "v": ["ab", "abcd", None]})
    for make in (HashAggregate, StreamAggregate):
        config = make(("k",), (Aggregate("n", "v", Longest()),))
        assert rows_of(run(config, {(0, 0): table}, size=1).table) == [(1, 4), (2, 0)]


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("exchange", ["gather", "key"])
def test_a_function_of_ones_own_stands_where_a_name_stands(
    exchange: Literal["gather", "key"], parallelism: int
) -> None:
    texts = pa.table({"k": [n % 5 for n in range(200)], "v": ["x" * (n * 37 % 101) for n in range(200)]})
    rows = ps.Flow("own").from_tables([texts.slice(at, 20) for at in range(0, 200, 20)])
    found = rows.group_by("k", exchange=exchange).agg(longest=("v", Longest()), n="count")
    expected = {k: max(len(v) for v in texts["v"].to_pylist()[k::5]) for k in range(5)}
    assert {row["k"]: row["longest"] for row in found.to_arrow().to_pylist()} == expected
    found.collect("rows")
    with ps.run_local(found.flow, parallelism=parallelism) as job:
        assert job.wait(60).result("rows").to_pylist() == found.to_arrow().to_pylist()


def test_distinct_values_need_a_type_that_can_be_grouped() -> None:
    type = pa.dense_union([pa.field("a", pa.int8())])
    with pytest.raises(FlowError, match="count_distinct cannot be computed"):
        HashAggregate((), (Aggregate("n", "v", "count_distinct"),)).output_schema([pa.schema([("v", type)])])


def test_aggregates_of_one_argument_share_what_they_count() -> None:
    """A sum, a mean and a count of one column are two states; others have their own."""
    schema = pa.schema({"v": pa.int64(), "w": pa.int64(), "b": pa.bool_()})
    asked = [Aggregate("s", "v", "sum"), Aggregate("m", "v", "mean"), Aggregate("n", "v", "count")]
    others = [Aggregate("t", "w", "sum"), Aggregate("u", "v", "sum", where="b")]
    counts: dict[Step, int] = {"single": 4, "partial": 4, "final": 6}
    for step, count in counts.items():
        columns = AggregateColumns("test", (*asked, *others), arguments_of((*asked, *others), schema), step)
        assert len(columns.accumulators()) == count


def own(**aggregates: Any) -> ps.Stream:
    table = pa.table({"k": [1, 1, 2, 2, 2, 3], "v": [1.0, 5.0, 2.0, None, 9.0, None], "t": [*"abcdef"]})
    return ps.Flow("own").from_tables([table] * 3).aggregate(["k"], **aggregates)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_plain_function_gets_the_values_of_its_group_in_order_and_no_nulls(parallelism: int) -> None:
    text = ps.aggregate_function(lambda values: ",".join(map(str, values)) or None, pa.string(), name="text")
    found = own(text=("v", text), n="count")
    assert [(row["text"], row["n"]) for row in found.to_arrow().to_pylist()] == [
        ("1.0,5.0,1.0,5.0,1.0,5.0", 6),
        ("2.0,9.0,2.0,9.0,2.0,9.0", 9),
        (None, 3),
    ]
    found.collect("rows")
    with ps.run_local(found.flow, parallelism=parallelism) as job:
        assert job.wait(60).result("rows").equals(found.to_arrow())


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda values: 1 / 0, "aggregate function bad raised ZeroDivisionError"),
        (lambda values: math.exp(1000.0), "aggregate function bad raised OverflowError: math range error"),
    ],
)
def test_what_a_plain_function_raises_names_it(function: Any, said: str) -> None:
    with pytest.raises(UserCodeError, match=said):
        own(n=("v", ps.aggregate_function(function, pa.float64(), name="bad"))).to_arrow()
    with pytest.raises(FlowError, match="bad cannot be computed of rows"):
        own(n=Aggregate("n", None, ps.aggregate_function(function, pa.float64(), name="bad")))


UNFIT: list[tuple[Any, pa.DataType, str]] = [
    (1.5, pa.int64(), "gave 1.5, which does not fit int64: .*truncated"),
    (10**30, pa.int64(), "gave 1000000000000000000000000000000, which does not fit int64: "),
    (float("nan"), pa.int64(), "gave nan, which does not fit int64: "),
    ("x", pa.float64(), "gave 'x', which does not fit double: "),
    (datetime(2026, 1, 1, microsecond=5, tzinfo=UTC), pa.timestamp("s", tz="UTC"), "which does not fit .*lose data"),
    (timedelta(microseconds=5), pa.duration("s"), "which does not fit .*lose data"),
    ([1, 2.5], pa.list_(pa.int64()), r"gave \[1, 2.5\], which does not fit list<item: int64>: .*truncated"),
    ({"b": 1, "a": 1.5}, pa.struct([("a", pa.int64()), ("b", pa.int64())]), "which does not fit struct.*truncated"),
]


@pytest.mark.parametrize(("value", "type", "said"), UNFIT)
def test_a_value_that_its_type_would_cut_is_an_error_that_shows_it(value: Any, type: pa.DataType, said: str) -> None:
    bad = ps.aggregate_function(lambda values: value if 9.0 in values else None, type, name="bad")
    with pytest.raises(DataError, match=f"aggregate function bad .*{said}"):
        own(n=("v", bad)).to_arrow()


def test_values_that_would_be_cut_are_found_among_values_of_other_types() -> None:
    given: dict[float, Any] = {5.0: 2**60 + 1, 9.0: 1.5}
    bad = ps.aggregate_function(lambda values: given.get(max(values, default=0.0)), pa.int64(), name="bad")
    with pytest.raises(DataError, match=r"bad gave 1\.5, which does not fit int64"):
        own(n=("v", bad)).to_arrow()


FITTING: list[tuple[Any, pa.DataType]] = [
    (2.0, pa.int64()),
    (10**30, pa.decimal128(38)),
    (0.1, pa.float32()),
    (5, pa.float64()),
    (Decimal("1.50"), pa.decimal128(5, 2)),
    (datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("s", tz="UTC")),
    ([], pa.list_(pa.int64())),
    ([1, 2], pa.large_list(pa.int16())),
    ([("k", 1)], pa.map_(pa.string(), pa.int64())),
    ({"b": 1}, pa.struct([("a", pa.int64()), ("b", pa.float64())])),
    (b"ab", pa.binary(2)),
]


@pytest.mark.parametrize(("value", "type"), FITTING)
def test_a_value_that_its_type_can_hold_is_taken_as_pyarrow_takes_it(value: Any, type: pa.DataType) -> None:
    good = ps.aggregate_function(lambda values: value if 9.0 in values else None, type, name="good")
    assert own(n=("v", good)).to_arrow()["n"].to_pylist() == pa.array([None, value, None], type).to_pylist()


PROMISES: dict[str, tuple[Any, type[PenstockError], str]] = {
    "state_types": (lambda self, column: None, FlowError, "state_types gave None"),
    "result_type": (lambda self, column: "int64", FlowError, "result_type gave 'int64'"),
    "lift": (lambda self, values, rows: pa.array([1] * rows), DataError, "lift gave no tuple of 1 arrays"),
    "blank": (lambda self, column, rows: (pa.nulls(rows, pa.int32()),), DataError, "blank gave . values of int32"),
    "merge": (lambda self, state, segments: (pa.array([0] * 99),), DataError, "merge gave 99 values of int64, not 3"),
    "final": (lambda self, state, column: [1], DataError, "final gave a list"),
}


@pytest.mark.parametrize("method", PROMISES)
def test_a_function_that_breaks_its_promise_is_named(method: str) -> None:
    broken, kind, said = PROMISES[method]
    with pytest.raises(kind, match=f"aggregate function longest: {said}"):
        own(n=("t", type("Broken", (Longest,), {method: broken})())).to_arrow()


def test_what_a_function_raises_names_it_and_the_method() -> None:
    with pytest.raises(UserCodeError, match="lift of aggregate function longest raised TypeError"):
        own(n=("v", Longest())).to_arrow()
