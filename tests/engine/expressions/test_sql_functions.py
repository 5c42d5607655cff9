"""Functions and syntax of SQL that users reach for, against DuckDB on the same rows."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.expressions.evaluator import Evaluator
from penstock.engine.expressions.expressions import as_expression
from penstock.engine.expressions.sql_functions import FUNCTIONS
from support.sql_values import by_duckdb, by_us

AT = datetime.datetime
ROWS = pa.table({
    "a": pa.array([1, 2, 3, -4, 7, 0, 100], pa.int64()),
    "b": pa.array([None, 2, 5, -1, None, 3, 0], pa.int64()),
    "i": pa.array([3, -1, None, 0, 5, 2, 1], pa.int32()),
    "x": pa.array([0.5, 1.5, -2.25, 3.0, 1e3, 0.0, 9.75]),
    "s": ["abc", "12", "xyz-1-z", "a-b", "4.5", "ääz", ""],
    "t": pa.array(["q", None, "t", None, "", "abc", "z"]),
    "n": pa.array(["1", " 12 ", "1e3", "300", "x", None, "-7.5"]),
    "day": pa.array(["2024-02-29", "2024-02-30", "x", "1969-12-31", None, "2000-01-01", ""]),
    "ts": pa.array([
        AT(2024, 2, 29, 10, 11, 12, 345678), AT(1969, 12, 31, 23, 59, 59, 999999), AT(2000, 1, 1),
        AT(2023, 3, 5, 1, 2, 3), AT(2021, 7, 4, 12), AT(1900, 1, 1), AT(2038, 1, 19, 3, 14, 8),
    ], pa.timestamp("us")),
    "ts2": pa.array([
        None, AT(1970, 1, 1), AT(2001, 1, 1), AT(2023, 3, 5, 1, 1, 3), None, AT(1900, 1, 2), AT(2038, 1, 19),
    ], pa.timestamp("us")),
    "d": pa.array([datetime.date.fromisoformat(each) for each in (
        "2024-01-31", "2024-02-29", "1999-12-31", "1970-01-01", "1969-05-05", "2023-02-28", "2024-01-01",
    )], pa.date32()),
    "l": pa.array([[1, 2, 3], [], None, [3, None, 1], [7], [5, 5, 4], [None]], pa.list_(pa.int64())),
    "w": pa.array([["b", "a"], [], None, ["z", None], ["a"], ["x", "x"], [None]], pa.list_(pa.string())),
    "ok": pa.array([True, False, None, True, None, False, True]),
    "dec": pa.array([Decimal(each) for each in ("1.25", "-3.50", "0.00", "99.99", "1234567890.12", "0.01", "5.00")],
                    pa.decimal128(12, 2)),
    "j": ['{"n":1,"k":"v","l":[1,{"m":"x"}]}', '{"n":"5"}', '{"m":1}', '{"n":null}', '{"n":12,"a b":2}', '{"n":-3}',
          '{"n":2.5}'],
})  # fmt: skip
TEXTS = [
    # what users write first
    "a + b", "a - 2 * b", "a % 7", "-a", "x / a", "sqrt(abs(x))", "greatest(a, b)", "ifnull(b, -1)", "nullif(a, 3)",
    "b IS NULL", "a IN (1, 2, 3)", "NOT ok", "ok OR b > 2", "CASE a WHEN 1 THEN 'one' ELSE 'other' END",
    "CASE WHEN a <> 0 THEN 10 / a ELSE NULL END", "CAST(a AS VARCHAR)", "CAST(a AS DOUBLE)",
    "TRY_CAST(s AS BIGINT)", "TRY_CAST(s AS DOUBLE)", "trim(s)", "ltrim(s)", "rtrim(s)", "s || '-' || t",
    "concat(s, t)", "concat_ws('/', s, t, 'z')", "left(s, 2)", "right(s, 2)", "reverse(s)", "repeat(s, 2)",
    "starts_with(s, 'a')", "ends_with(s, 'z')", "contains(s, 'b')", "s LIKE 'a%'", "s NOT LIKE '%z'",
    "regexp_matches(s, '^[a-c]+')", "regexp_replace(s, '[0-9]+', '#')", "string_split(s, '-')",
    "split_part(s, '-', 1)", "strpos(s, 'a')", "ascii(s)", "second(ts)", "dayofweek(ts)", "dayofyear(ts)", "quarter(d)",
    "epoch(ts)", "date_diff('minute', ts, ts2)", "date_diff('day', d, CAST(ts AS DATE))", "ts + INTERVAL 1 HOUR",
    "d + INTERVAL 3 DAY", "ts2 - ts", "strftime(ts, '%Y-%m-%d')",
    "strptime('2024-02-29 10:11:12', '%Y-%m-%d %H:%M:%S')", "CAST(ts AS DATE)", "last_day(d)", "len(l)",
    "list_contains(l, 3)", "list_sum(l)", "list_sort(l)", "l[1]", "list_value(a, b)", "struct_pack(p := a, q := s)",
    "dec * 2", "CAST(json_extract(j, '$.n') AS DOUBLE)", "a & 3", "a | 8", "translate(s, 'abc', 'xyz')",
    "CAST('2024-01-01' AS DATE) < d", "DATE '2024-01-01' <= d", "a IS DISTINCT FROM b", "(a, s) = (1, 'abc')",
    "cot(x + 1)", "degrees(x)", "atan2(x, a + 1)", "extract(dow FROM ts)", "CAST(ts AS TIME)",
    "coalesce(t, s, 'none')",
    # numbers
    "radians(x)", "sin(x)", "cos(x)", "tan(x)", "atan(x)", "asin(x / 1000)", "acos(x / 1000)", "pi() * x", "cbrt(x)",
    "log(a * a + 1)", "log(2, a * a + 1)", "pow(x, 2)", "ceiling(x)", "isinf(x)", "isfinite(x)", "xor(a, 3)", "~a",
    "abs(a) << 2", "(a + 4) >> 1", "i & a", "nullif(a, b) is null", "a ^ 2",
    # text
    "right(s, -1)", "right(s, 0)", "left(s, -1)", "lpad(s, 5, '-')", "rpad(s, 2, '-')", "lpad(s, 6, 'xy')",
    "repeat(s, i)", "concat_ws(', ', t, a)", "concat_ws('', t, t)", "instr(s, 'z')", "position('z' in s)",
    "prefix(s, 'a')", "suffix(s, 'z')", "ucase(s)", "lcase(s)", "unicode(s)", "chr(97)", "md5(s)", "sha1(s)",
    "sha256(s)", "md5(t)", "translate(s, 'az', 'b')", "split_part(s, '-', 2)", "split_part(s, '-', -1)",
    "split_part(s, '-', 9)", "split_part(t, '-', 1)", "regexp_replace(s, '[a-z]', '#', 'g')",
    "regexp_replace(s, '([a-z])-', '[\\1]')", "regexp_replace(s, 'Z', '#', 'gi')", "regexp_extract(s, '[a-z]+')",
    "regexp_extract(s, '([a-z]+)-([0-9]+)', 2)", "regexp_extract(s, '(?:x)(y)(z)?', 2)", "regexp_extract(t, 'q')",
    "regexp_extract(s, '[(](a)', 1)", "regexp_full_match(s, '[a-c]+')", "regexp_matches(s, 'Z', 'i')",
    "char_length(s)",
    # times
    "d + 3", "d - 3", "d - date '2024-01-01'", "d + interval 1 month", "d - interval '2' month", "interval 1 year + d",
    "ts - interval 1 month", "ts + interval (a) day", "ts + interval '90 minutes'", "ts - interval 1 week",
    "ts2 - ts > interval 1 hour", "d + to_days(2)", "date_add(d, interval 1 month)", "epoch(d)", "epoch_ms(ts)",
    "epoch_us(ts)", "epoch_ms(86400000)", "date_diff('second', ts, ts2)", "date_diff('hour', ts, ts2)",
    "date_diff('day', ts, ts2)", "date_diff('week', d, date '2024-01-08')", "date_diff('month', ts, ts2)",
    "date_diff('quarter', d, ts)", "date_diff('year', ts, ts2)", "date_diff('decade', d, date '2020-01-01')",
    "datediff('day', d, '2024-03-01')", "extract(isodow from ts)", "extract(epoch from ts)", "extract(doy from d)",
    "extract(millisecond from ts)", "extract(microseconds from ts)", "extract(decade from d)",
    "extract(century from d)", "extract(isoyear from d)", "date_part('hour', ts)", "datetrunc('day', ts)",
    "strftime(ts, '%d.%m.%y %H:%M:%S')", "strftime(ts, '%S.%f %j')", "strftime(d, '%A %B')", "strftime(ts, '%%%f%%')",
    "dayname(d)", "monthname(ts)", "make_date(2024, 2, 29)", "make_date(2000 + abs(a), 3, 1)", "last_day(ts)",
    "try_strptime(day, '%Y-%m-%d')",
    # casts that may fail
    "try_cast(n as int)", "try_cast(n as double)", "try_cast(n as tinyint)", "try_cast(day as date)",
    "try_cast(a as tinyint)", "try_cast(x as int)", "try_cast(n as decimal(6, 2))", "try_cast(ok as int)",
    # lists, structs, JSON
    "list_sum(list_value(x, 1.5))", "list_avg(l)", "list_reverse_sort(l)", "list_sort(w)",
    "list_sort(list_distinct(l))",
    "list_sort(list_distinct(w))", "[a, b, 1]", "[s, t]", "list_append(l, a)", "list_concat(l, [a])",
    "array_to_string(l, '-')", "array_to_string(w, '')", "{'p': a, 'q': s}", "json_extract(j, '$.l[1].m')",
    "json_extract(j, '/l/1/m')", "json_extract_string(j, 'n')", "json_extract_string(j, '$.l')",
    "json_extract(j, '$.\"a b\"')", "json_extract_string(j, '$.l[-1].m')", "j->>'n'", "j->>'$.l[0]'",
    "json_array_length(j->>'l')", "json_valid(s)", "cast(j->'n' as double)",
    # comparisons
    "a is not distinct from b", "s is distinct from t", "(a, b) <> (2, 2)",
    # nulls without a type
    "coalesce(b, null)", "coalesce(null, 7)", "greatest(null, i)", "least(dec, null)", "[null, a]",
    # branches are computed for the rows that reach them
    "case when a <> 0 then 10 // a end", "case when a = 0 then 0 when 10 % a = 1 then 1 else 100 // a end",
    "case when s = '12' then cast(s as int) else -1 end", "if(a = 0, -1, 7 % a)",
    "case when a <> 0 then case when 10 // a > 2 then 20 // a else a end else 5 end",
    "case when ok then cast(null as int) else 9 // nullif(a, 0) end",
]  # fmt: skip


def ours(text: str, table: pa.Table = ROWS) -> list[Any]:
    return by_us(text, table)


def theirs(text: str, table: pa.Table = ROWS) -> list[Any]:
    return by_duckdb(text, table)


@pytest.mark.parametrize("text", TEXTS)
def test_text_means_what_it_means_to_duckdb(text: str) -> None:
    assert ours(text) == theirs(text)


@pytest.mark.parametrize("text", TEXTS)
def test_no_rows_have_the_same_type(text: str) -> None:
    expression = as_expression("project", text, ROWS.schema)
    (records,) = ROWS.combine_chunks().to_batches()
    (found,) = Evaluator([("found", expression)]).evaluate(records)
    (nothing,) = Evaluator([("found", expression)]).evaluate(records.slice(0, 0))
    assert (len(nothing), nothing.type) == (0, found.type)


FORMS = {
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "text",
    [
        *("try_cast(n as int)", "try_cast(n as double)", "try_cast(day as date)", "try_cast(n as decimal(6, 2))"),
        *("trim(s)", "right(s, 2)", "split_part(s, '-', 2)", "strpos(s, 'a')", "concat(s, a)", "concat_ws('/', s, t)"),
        *("s like 'a%'", "starts_with(s, 'a')", "contains(s, 'b')", "len(s)", "regexp_extract(t, 'q')", "upper(s)"),
    ],
)
def test_text_in_other_forms_is_read_alike(text: str, form: str) -> None:
    columns = [
        column.dictionary_encode() if FORMS[form] is None else column.cast(FORMS[form])
        for column in ROWS.select(["s", "t", "n", "day"]).columns
    ]
    assert ours(text, pa.table([*columns, ROWS["a"]], ["s", "t", "n", "day", "a"])) == theirs(text)


def test_a_case_is_told_from_one_whose_parts_read_alike_in_a_row() -> None:
    assert ours("case when a <> 0 then 10 // nullif(b, 0) | a end")[1:3] == [7, 3]
    assert ours("case when a <> 0 then 10 // nullif(b, 0) else a end")[1:3] == [5, 2]


def test_times_of_two_types_differ_by_their_wall_clocks() -> None:
    for kind in (pa.timestamp("ns"), pa.timestamp("us", "UTC")):
        place = ROWS.column_names.index("ts")
        table = ROWS.set_column(place, "ts", ROWS["ts"].cast(kind))
        for unit in ("day", "hour", "week", "month", "quarter", "year"):
            text = f"date_diff('{unit}', d, ts)"
            assert ours(text, table) == theirs(text)


def test_json_null_is_a_value_of_json_and_none_of_text() -> None:
    assert ours("json_extract(j, 'n')") == ["1", '"5"', None, "null", "12", "-3", "2.5"]
    with pytest.raises(DataError, match=r"'abc' is no JSON"):
        ours("json_extract(s, 'n')")


def test_functions_of_arrow_can_be_called_by_name_with_their_options() -> None:
    assert ours("utf8_center(s, width := 5, padding := '*')")[0] == "*abc*"
    assert ours("binary_length(s)")[5] == 5.0
    assert ours("utf8_capitalize(s)")[:2] == ["Abc", "12"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lowr(s)", "does not know the function lowr(.|\n)*did you mean lower"),
        ("random() > 0.5", "random gives other values each time"),
        ("now()", "now gives other values each time"),
        ("ts + interval 1 fortnight", "FORTNIGHT|fortnight"),
        ("ts + interval (a) month", "a constant"),
        ("date_diff('eon', ts, ts2)", "there is no unit 'eon'"),
        ("split_part(s, '', 1)", "the separator is not empty"),
        ("regexp_extract(s, '(a)', 2)", "has 1 groups, not 2"),
        ("regexp_replace(s, 'a', 'b', 'q')", "options of a pattern"),
        ("json_extract(j, '$.*')", "is no path"),
        ("list_sum(w)", "elements of type string have no sum"),
        ("[a, s]", "values of one type"),
        ("(a, b) = (1)", "compares"),
        ("struct_pack(a)", "values with names"),
        ("lower(s, width := 3)", "takes no options by name"),
        ("sum(a)", "does not know the function sum"),
    ],
)
def test_what_cannot_be_computed_fails_when_the_flow_is_built(text: str, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        as_expression("project", text, ROWS.schema)


def test_months_on_a_time_with_a_zone_are_refused_with_a_remedy() -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC"))])
    with pytest.raises(FlowError, match="wall clock: cast it to timestamp"):
        as_expression("project", "ts - interval 1 month", schema)
    as_expression("project", "ts::timestamp - interval 1 month", schema)


def test_a_sum_beyond_int64_is_an_error_of_the_data() -> None:
    large = pa.table({"l": pa.array([[2**62, 2**62], [1]])})
    with pytest.raises(DataError, match="overflow"):
        ours("list_sum(l)", large)


def test_branches_that_fail_for_rows_that_reach_them_are_an_error_of_the_data() -> None:
    with pytest.raises(DataError, match="divide by zero"):
        ours("case when a = 0 then 1 // a else 1 end")


def test_a_branch_sees_the_rows_of_any_batch() -> None:
    rows = 100_000
    table = pa.table({"n": pa.array([k % 5 for k in range(rows)], pa.int64())})
    found = ours("case when n > 0 then 12 // n when n = 0 then -1 end", table.slice(3))
    assert found == [float(12 // (k % 5)) if k % 5 else -1.0 for k in range(3, rows)]


def test_many_texts_that_are_no_numbers_are_cast_together() -> None:
    table = pa.table({"v": [str(k) if k % 2 else f"x{k % 50}" for k in range(20_000)]})
    assert ours("try_cast(v as bigint)", table) == [float(k) if k % 2 else None for k in range(20_000)]


def test_page_of_the_docs_names_every_function() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sql.md").read_text()
    missing = [name for name in FUNCTIONS if f"`{name}" not in page]
    assert not missing


def test_expression_is_kept_as_json_where_plans_are_compared() -> None:
    """Own functions are told apart by all that they were made with."""
    one, other = (as_expression("project", f"translate(s, 'a', '{letter}')", ROWS.schema) for letter in "bc")
    assert not one.equals(other)
    assert json.dumps(str(one)) != json.dumps(str(other))
    assert isinstance(one, pc.Expression)
