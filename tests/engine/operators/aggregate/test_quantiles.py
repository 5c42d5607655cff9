"""Quantiles and sketches: exact ones as DuckDB has them, others within their bounds, all by the values alone."""

from __future__ import annotations

import datetime as dt
import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.engine.core.errors import FlowError
from penstock.engine.kernels import sketches
from penstock.engine.operators import Aggregate, HashAggregate, StreamAggregate
from penstock.engine.operators.aggregate.sketches import KEPT
from support.operator_harness import SIZES, rows_of, run
from support.oracle import query
from support.spilling import budget

ASKED = {
    "median(v)": "median",
    "quantile_cont(v, 0.25)": "quantile(0.25)",
    "quantile_cont(v, 0.875)": "quantile(0.875)",
    "quantile_cont(v, 1)": "quantile_cont(1)",
    "quantile_disc(v, 0)": "quantile_disc(0)",
    "quantile_disc(v, 0.3)": "quantile_disc(0.3)",
    "quantile_disc(v, 0.9)": "quantile_disc(0.9)",
    "count(distinct v)": "approx_count_distinct",
    "quantile_disc(v, 0.6)::double": "approx_quantile(0.6)",
}
"""The sketches are exact here: few distinct values, and small whole numbers. (0.9 differs in the last bit.)"""

AGGREGATES = tuple(Aggregate(f"a{place}", "v", each) for place, each in enumerate(ASKED.values()))

rows = st.lists(st.tuples(st.none() | st.integers(0, 3), st.none() | st.integers(-9, 9)), max_size=40)


def made_of(given: list[tuple[Any, Any]], type: pa.DataType | None = None) -> pa.Table:
    keys, values = zip(*given, strict=True) if given else ((), ())
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(values, type or pa.int64())})


def in_order(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """By the key."""
    return sorted(found, key=lambda row: (row[0] is None, row[0] or 0))


def of(table: pa.Table) -> list[tuple[Any, ...]]:
    return in_order(rows_of(table))


def by_duckdb(table: pa.Table) -> list[tuple[Any, ...]]:
    return in_order(query(f"select k, {', '.join(ASKED)} from t group by k", t=table))


@settings(max_examples=40, deadline=None)
@given(given_rows=rows, size=st.sampled_from(SIZES), type=st.sampled_from((pa.int64(), pa.float64(), pa.int8())))
def test_quantiles_equal_duckdb_in_every_aggregation(given_rows: list[Any], size: int, type: pa.DataType) -> None:
    table = made_of(given_rows, type)
    expected = by_duckdb(table)
    units = {(round, lane): table.slice(10 * round + 5 * lane, 5) for round in range(4) for lane in range(2)}
    single = HashAggregate(("k",), AGGREGATES)
    assert of(run(single, units, size=size).table) == expected
    assert of(run(single, units, size=size, restore=True).table) == expected
    first = run(HashAggregate(("k",), AGGREGATES, step="partial"), units, size=size, parallelisms=(2,))
    final = HashAggregate(("k",), AGGREGATES, step="partial").final(table.schema)
    assert of(run(final, {(0, 0): first.table}, schemas=[first.schema], size=size).table) == expected
    clustered = table.sort_by("k")
    assert of(run(StreamAggregate(("k",), AGGREGATES), {(0, 0): clustered}, size=size).table) == expected


def test_quantiles_of_other_types_are_what_duckdb_gives() -> None:
    days = [None, *(dt.date(2024, 1, 1) + dt.timedelta(days=n) for n in (3, 9, 1, 4))]
    table = pa.table(
        {"k": [1] * 5, "d": days, "s": ["b", None, "a", "c", "ab"], "x": [1.5, math.nan, -math.inf, 0.25, None]}
    )
    asked = {"d": "quantile_disc(0.5)", "s": "quantile_disc(0.7)", "x": "quantile_disc(1)", "median": "median"}
    found = run(
        HashAggregate(
            ("k",), tuple(Aggregate(name, "x" if name == "median" else name, each) for name, each in asked.items())
        ),
        {(0, 0): table},
    )
    sql = "select k, quantile_disc(d, 0.5), quantile_disc(s, 0.7), quantile_disc(x, 1), median(x) from t group by k"
    expected = query(sql, t=table)
    assert rows_of(found.table) == expected


@pytest.mark.parametrize("memory", [None, 0])
def test_groups_that_spill_and_sketches_that_settle_often_give_the_same(
    monkeypatch: pytest.MonkeyPatch, memory: int | None
) -> None:
    monkeypatch.setattr(sketches, "WAITING", 8)
    chance = random.Random(4)
    table = made_of([(chance.randrange(50), chance.randrange(-99, 99)) for _ in range(600)])
    units = {(round, 0): table.slice(200 * round, 200) for round in range(3)}
    config = HashAggregate(("k",), AGGREGATES)
    if memory is None:
        found = run(config, units, size=16).table
    else:
        with budget(memory) as task:
            found = run(config, units, size=16, memory=task).table
    assert of(found) == of(run(config, units, size=1024).table)
    assert of(found) == by_duckdb(table)


def approx(table: pa.Table, *functions: str, **how: Any) -> list[Any]:
    config = HashAggregate((), tuple(Aggregate(f"a{n}", "v", each) for n, each in enumerate(functions)))
    [row] = run(config, {(0, 0): table}, **how).table.to_pylist()
    return list(row.values())


@pytest.mark.parametrize("distinct", [1, KEPT - 1, KEPT, KEPT + 1, 50_000, 300_000])
def test_distinct_values_are_counted_to_two_percent_and_exactly_while_they_are_few(distinct: int) -> None:
    values = np.random.default_rng(7).permutation(np.arange(distinct).repeat(2))
    numbers = pa.table({"v": values})
    texts = pa.table({"v": pa.array(values.astype(str))})
    for table in (numbers, texts):
        [found] = approx(table, "approx_count_distinct", size=50_000)
        assert found == distinct if distinct < KEPT else abs(found / distinct - 1) < 0.05


def test_sketches_of_parts_are_those_of_the_whole() -> None:
    """Whatever the order of the rows is, however they are cut, and in how many steps they meet."""
    values = np.random.default_rng(1).lognormal(size=40_000)
    asked = ("approx_count_distinct", "approx_quantile(0.01)", "approx_quantile(0.5)", "approx_quantile(0.999)")
    whole = approx(pa.table({"v": values}), *asked, size=50_000)
    assert approx(pa.table({"v": values[::-1]}), *asked, size=997) == whole
    partial = HashAggregate((), tuple(Aggregate(f"a{n}", "v", each) for n, each in enumerate(asked)), step="partial")
    units = {(0, lane): pa.table({"v": values[lane * 10_000 :][:10_000]}) for lane in range(4)}
    first = run(partial, units, size=3000, parallelisms=(4,))
    final = partial.final(pa.schema([("v", pa.float64())]))
    assert list(run(final, {(0, 0): first.table}).table.to_pylist()[0].values()) == whole


@pytest.mark.parametrize("sign", [1, -1])
def test_an_approximate_quantile_is_less_than_one_128th_nearer_to_zero(sign: int) -> None:
    values = sign * np.random.default_rng(2).lognormal(sigma=20, size=20_000)
    shares = (0, 0.1, 0.5, 0.99, 1)
    found = approx(pa.table({"v": values}), *(f"approx_quantile({each})" for each in shares), size=5000)
    exact = approx(pa.table({"v": values}), *(f"quantile_disc({each})" for each in shares), size=5000)
    for one, other in zip(found, exact, strict=True):
        assert 127 / 128 * abs(other) < abs(one) <= abs(other)
        assert one * other > 0


def test_approximate_quantiles_of_zero_infinity_and_nan() -> None:
    table = pa.table({"v": [math.nan, -math.inf, 0.0, -0.0, None, math.inf]})
    found = approx(table, *(f"approx_quantile({each})" for each in (0, 0.5, 0.8, 1)))
    assert list(map(repr, found)) == ["-inf", "0.0", "inf", "nan"]
    assert approx(table.slice(4, 1), "approx_quantile(0.5)", "approx_count_distinct", "median") == [None, 0, None]


def test_expressions_and_flows_ask_for_them_by_name() -> None:
    table = pa.table({"k": ["a", "b"] * 50, "v": range(100)})
    found = (
        ps.Flow("quantiles")
        .from_tables([table, table])
        .group_by("k")
        .agg(
            (ps.col("v") * 2).median().alias("half"),
            ps.col("v").quantile(0.9).alias("most"),
            about=ps.col("v").approx_quantile(0.9),
            n=ps.col("v").approx_count_distinct(),
            one=("v", "quantile_disc(0.9)"),
        )
    )
    assert found.take(1) == [{"k": "a", "half": 98.0, "most": 88.20000000000002, "about": 88.0, "n": 50, "one": 88}]


@pytest.mark.parametrize(
    ("column", "function", "told"),
    [
        ("v", "quantile", "unknown function 'quantile'"),
        ("v", "quantile(2)", "unknown function 'quantile"),
        ("v", "quantile(x)", "unknown function 'quantile"),
        ("s", "median", "median cannot be computed of a column of type string"),
        ("s", "approx_quantile(0.5)", "cannot be computed of a column of type string"),
        (None, "median", "median cannot be computed of no column"),
        (None, "quantile_disc(0.1)", "cannot be computed of no column"),
        ("u", "approx_count_distinct", "of a column of type sparse_union"),
        ("u", "quantile_disc(0.1)", "of a column of type sparse_union"),
    ],
)
def test_what_has_no_quantile_is_refused(column: str | None, function: str, told: str) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    table = pa.table({"v": [1], "s": ["a"], "u": union})
    with pytest.raises(FlowError, match=told.replace("(", r"\(")):
        HashAggregate((), (Aggregate("a", column, function),)).output_schema([table.schema])
