"""Fluent expressions beside the SQL text that means the same: both build one tree."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.engine.core.errors import FlowError
from penstock.engine.expressions import literals
from penstock.engine.expressions.evaluator import Evaluator
from penstock.engine.expressions.expressions import as_expression
from penstock.engine.expressions.tree import serialized


def at(*parts: int) -> datetime.datetime:
    """A time without a zone."""
    return datetime.datetime(*parts, tzinfo=datetime.UTC).replace(tzinfo=None)  # type: ignore[arg-type, misc]


ROWS = pa.record_batch(
    {
        "i": pa.array([1, -7, None]),
        "j": pa.array([2, 3, 4]),
        "x": pa.array([0.5, None, -2.5]),
        "d": pa.array([Decimal("1.10"), Decimal("2.25"), None], pa.decimal128(10, 2)),
        "s": pa.array(["ab", "it's", None]),
        "b": pa.array([True, False, None]),
        "t": pa.array([at(2024, 1, 31, 10, 20, 30), None, at(2023, 5, 1)]),
        "day": pa.array([datetime.date(2024, 1, 31), None, datetime.date(2023, 5, 1)]),
        "l": pa.array([[3, 1, 1], [], None], pa.list_(pa.int64())),
        "w": pa.array([{"a": 1, "my b": "x"}, None, {"a": 3, "my b": "z"}]),
        "my column": pa.array([1, 2, 3]),
        'a"b': pa.array([1, 2, 3]),
    }
)
i, j, x, d, s, b, t, day, rows, w = map(ps.col, ("i", "j", "x", "d", "s", "b", "t", "day", "l", "w"))
fn = ps.fn

SAME: list[tuple[Any, str]] = [
    (i, "i"),
    (ps.col("my column"), '"my column"'),
    (ps.col('a"b'), '"a""b"'),
    (i + 1, "i + 1"),
    (1 + i, "1 + i"),
    (i - (j - 1), "i - (j - 1)"),
    ((i - j) - 1, "i - j - 1"),
    (i - -1, "i - (-1)"),
    (-(0 - i), "-(0 - i)"),
    (-ps.lit(-3), "-(-3)"),
    (10 - i, "10 - i"),
    ((i + j) * 2, "(i + j) * 2"),
    (i + j * 2, "i + j * 2"),
    (3 * i, "3 * i"),
    (i / j, "i / j"),
    (1 / j, "1 / j"),
    (i // j, "i // j"),
    (7 // j, "7 // j"),
    (i % j, "i % j"),
    (7 % j, "7 % j"),
    (i**2, "i ** 2"),
    (2**j, "2 ** j"),
    ((-i) ** 2, "(-i) ** 2"),
    (-(i**2), "-(i ** 2)"),
    (x * 1.5, "x * 1.5e0"),
    (x * 1e30, "x * 1e30"),
    (d * Decimal("1.5"), "d * 1.5"),
    (d + Decimal(2), "d + cast(2 as decimal(1, 0))"),
    (x == float("inf"), "x = cast('inf' as double)"),
    (i == 1, "i = 1"),
    (i != 1, "i <> 1"),
    (i < j, "i < j"),
    (i <= j, "i <= j"),
    (i > j, "i > j"),
    (i >= j, "i >= j"),
    ((i > 1) == b, "(i > 1) = b"),
    ((i > 1) & b | (j < 3), "i > 1 and b or j < 3"),
    ((i > 1) & (b | (j < 3)), "i > 1 and (b or j < 3)"),
    (True & b, "true and b"),
    (False | b, "false or b"),
    (~b, "not b"),
    (~(b & (i > 1)), "not (b and i > 1)"),
    (~(i == 1), "not i = 1"),
    (i.is_null(), "i is null"),
    ((i + 1).is_not_null(), "i + 1 is not null"),
    (i.is_null() == b, "(i is null) = b"),
    (i.is_in([1, 2, None]), "i in (1, 2, null)"),
    (~s.is_in(["ab", "it's"]), "s not in ('ab', 'it''s')"),
    (i.is_in([j, 7]), "i in (j, 7)"),
    (i.is_between(1, j + 1), "i between 1 and j + 1"),
    (i.is_distinct_from(j), "i is distinct from j"),
    (x.is_nan(), "isnan(x)"),
    (s.cast(int, strict=False), "try_cast(s as bigint)"),
    (i.cast(pa.float32()), "cast(i as float)"),
    (i.cast("smallint"), "i::smallint"),
    (x.cast(pa.decimal128(9, 2)), "cast(x as decimal(9, 2))"),
    (i.fill_null(0), "coalesce(i, 0)"),
    (i.abs(), "abs(i)"),
    (x.round(1), "round(x, 1)"),
    (x.floor(), "floor(x)"),
    (x.ceil(), "ceil(x)"),
    (x.sqrt(), "sqrt(x)"),
    (ps.when(i > 1).then("big").otherwise("small"), "case when i > 1 then 'big' else 'small' end"),
    (ps.when(i > 1).then(j), "case when i > 1 then j end"),
    (
        ps.when(i != 0).then(10 // i).when(b).then(1).otherwise(None),
        "case when i <> 0 then 10 // i when b then 1 else null end",
    ),
    (s.str.len(), "length(s)"),
    (s.str.upper(), "upper(s)"),
    (s.str.lower(), "lower(s)"),
    (s.str.reverse(), "reverse(s)"),
    (s.str.strip(), "trim(s)"),
    (s.str.strip("a"), "trim(s, 'a')"),
    (s.str.lstrip("a"), "ltrim(s, 'a')"),
    (s.str.rstrip(), "rtrim(s)"),
    (s.str.starts_with("a"), "starts_with(s, 'a')"),
    (s.str.ends_with("a"), "ends_with(s, 'a')"),
    (s.str.contains("a"), "contains(s, 'a')"),
    (s.str.matches("^a"), "regexp_matches(s, '^a')"),
    (s.str.replace("a", "b"), "replace(s, 'a', 'b')"),
    (s.str.replace_regex("(a)", r"\1\1"), r"regexp_replace(s, '(a)', '\1\1', 'g')"),
    (s.str.extract("(a)(b)", 2), "regexp_extract(s, '(a)(b)', 2)"),
    (s.str.split("'"), "string_split(s, '''')"),
    (s.str.slice(1), "substring(s, 2)"),
    (s.str.slice(-1), "right(s, 1)"),
    (s.str.slice(0, 1), "substring(s, 1, 1)"),
    (s.str.lpad(5, "*"), "lpad(s, 5, '*')"),
    (s.str.rpad(5), "rpad(s, 5, ' ')"),
    (s.str.repeat(2), "repeat(s, 2)"),
    (t.dt.strftime("%Y").str.strptime("%Y"), "strptime(strftime(t, '%Y'), '%Y')"),
    (ps.lit('{"a": [1]}').str.json_path_match("$.a[0]"), """json_extract_string('{"a": [1]}', '$.a[0]')"""),
    (t.dt.year(), "year(t)"),
    (t.dt.quarter(), "quarter(t)"),
    (t.dt.month(), "month(t)"),
    (t.dt.week(), "week(t)"),
    (t.dt.day(), "day(t)"),
    (t.dt.weekday(), "isodow(t)"),
    (t.dt.ordinal_day(), "dayofyear(t)"),
    (t.dt.hour(), "hour(t)"),
    (t.dt.minute(), "minute(t)"),
    (t.dt.second(), "second(t)"),
    (t.dt.truncate("hour"), "date_trunc('hour', t)"),
    (t.dt.epoch(), "epoch(t)"),
    (day == datetime.date(2024, 1, 31), "day = date '2024-01-31'"),
    (t < at(2024, 1, 31, 11), "t < cast('2024-01-31 11:00:00' as timestamp)"),
    (t + datetime.timedelta(seconds=1.5), "t + to_microseconds(1500000)"),
    (t.cast(pa.time64("us")) > datetime.time(9), "cast(t as time) > cast('09:00:00' as time)"),
    (rows.list.len(), "len(l)"),
    (rows.list.get(0), "list_extract(l, 1)"),
    (rows.list[-2], "list_extract(l, -2)"),
    (rows.list.first(), "list_extract(l, 1)"),
    (rows.list.last(), "list_extract(l, -1)"),
    (rows.list.contains(j), "list_contains(l, j)"),
    (rows.list.sum(), "list_sum(l)"),
    (rows.list.mean(), "list_avg(l)"),
    (rows.list.min(), "list_min(l)"),
    (rows.list.max(), "list_max(l)"),
    (rows.list.sort(), "list_sort(l)"),
    (rows.list.sort(descending=True), "list_reverse_sort(l)"),
    (rows.list.unique(), "list_distinct(l)"),
    (rows.list.join("-"), "array_to_string(l, '-')"),
    (ps.lit([1, 2]), "[1, 2]"),
    (ps.lit({"a": 1, "b": "x"}), "{'a': 1, 'b': 'x'}"),
    (w.struct.field("my b"), 'w."my b"'),
    (w.struct["a"] + 1, "w.a + 1"),
    (fn.concat_ws("-", s, j), "concat_ws('-', s, j)"),
    (fn.utf8_center(s, width=9, padding="*"), "utf8_center(s, width := 9, padding := '*')"),
    (fn.struct_pack(a=i, b=s), "struct_pack(a := i, b := s)"),
    (fn.pi() * x, "pi() * x"),
    (i == np.int64(1), "i = 1"),
    (i == pa.scalar(1), "i = 1"),
    (reduce(lambda one, other: one | other, [i == n for n in range(90)]), " or ".join(f"i = {n}" for n in range(90))),
]


def tree(given: Any) -> bytes:
    return serialized(as_expression("test", given, ROWS.schema))


@pytest.mark.parametrize(("fluent", "text"), SAME, ids=[text[:60] for _, text in SAME])
def test_fluent_expression_is_the_tree_of_its_sql_text(fluent: ps.Expression, text: str) -> None:
    assert tree(fluent) == tree(text)
    assert tree(pickle.loads(pickle.dumps(fluent))) == tree(text)
    Evaluator([("value", as_expression("test", fluent, ROWS.schema))]).evaluate(ROWS)


def test_trees_of_others_differ() -> None:
    trees = {tree(fluent) for fluent, _ in SAME}
    assert len(trees) > 0.9 * len(SAME)  # a few are written in two ways


def test_membership_in_nothing_is_false() -> None:
    (found,) = Evaluator([("value", as_expression("test", i.is_in([]), ROWS.schema))]).evaluate(ROWS)
    assert found.to_pylist() == [False] * 3


def test_names_of_columns_follow_the_first_column() -> None:
    assert (i + j).name == "i"
    assert (1 + j).name == "j"
    assert i.cast(float).str.upper().name == "i"
    assert ps.when(b).then(j).otherwise(i).name == "j"
    assert fn.coalesce(1, j).name == "j"
    assert w.struct["a"].name == "a"
    assert (i + j).alias("k").name == "k"
    assert ps.lit(1).name is None


@pytest.mark.parametrize("type", [each for each in literals._TYPES if isinstance(each, pa.DataType)], ids=str)
def test_casts_name_the_type_that_they_are_asked_for(type: pa.DataType) -> None:
    if pa.types.is_time(type) or pa.types.is_date(type) or pa.types.is_timestamp(type):
        given = t
    else:
        given = s if pa.types.is_binary(type) else j
    cast = as_expression("test", given.cast(type), ROWS.schema)
    (found,) = Evaluator([("value", cast)]).evaluate(ROWS)
    assert found.type == type


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: bool(i > 1), "known for each row alone"),
        (lambda: 1 < i < 3, "is_between"),
        (lambda: i == b"bytes", "no value that an expression can hold"),
        (lambda: i + pc.field("j"), "no value that an expression can hold"),
        (lambda: t > datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "time zone"),
        (lambda: i.cast(pa.large_string()), "has no name in SQL"),
        (lambda: d + Decimal("NaN"), "no decimal"),
        (lambda: fn.concat_w(s), "did you mean concat"),
        (lambda: fn.random(1), "other values each time"),
        (lambda: tree(ps.col("ii") + ps.col("z")), "has no column 'ii'"),
        (lambda: tree(ps.col("my colum") + 1), "did you mean 'my column'"),
        (lambda: tree((i + 1).struct["a"]), "does not know"),
    ],
)
def test_what_is_wrong_is_said(wrong: Any, message: str) -> None:
    with pytest.raises(FlowError) as caught:
        wrong()
    assert message in f"{caught.value}"


def test_functions_are_listed_and_told() -> None:
    assert {"concat_ws", "date_trunc", "md5"} <= set(dir(fn))
    assert "docs/sql.md" in str(fn.md5.__doc__)
