"""SQL text as expressions, against DuckDB on the same rows."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.errors import ConfigurationError, DataError, FlowError
from penstock.engine.expressions.evaluator import Evaluator
from penstock.engine.expressions.expressions import as_expression
from penstock.engine.operators import Filter, Project
from support.operator_harness import run
from support.sql_values import by_duckdb, by_us

ROWS = pa.table({
    "a": pa.array([1, -7, None, 0, 3, 12], pa.int32()),
    "b": pa.array([2, 3, 5, None, -4, 7], pa.int64()),
    "x": pa.array([1.5, -2.5, None, 0.5, 3.0, 1e10]),
    "d": pa.array([0, 18262, 19000, None, -1, 20000], pa.date32()),
    "t": pa.array([0, 1_600_000_000_123_456, None, 1, -1, 86_399_999_999], pa.timestamp("us")),
    "s": pa.array(["apple", "Äpfel", None, "", " a b ", "banana"]),
    "f": pa.array([True, False, None, True, False, True]),
    "l": pa.array([[1, 2, 3], [], None, [None, 4], [7], [None]], pa.list_(pa.int64())),
    "w": pa.array([["x"], ["b", "a"], None, [], ["apple", None], ["z"]], pa.list_(pa.string())),
    "p": pa.array([{"q": 1}, {"q": 2}, {"q": None}, None, {"q": 5}, {"q": 6}], pa.struct([("q", pa.int64())])),
    "n": pa.array([2**53 + 1, -(2**62) - 1, None, 0, 2**63 - 1, 5], pa.int64()),
    "h": pa.array([0.5, -0.0, None, 1.0, 16777216.0, 2.5], pa.float32()),
    "c": pa.array([0, 1, None, 3_600_000_000, 43_200_000_000, 86_399_999_999], pa.time64("us")),
    "z": pa.array([-0.0, 0.0, None, 1.0, 2.0, -1.0]),
    "u": pa.array([1, 2**63, 2**64 - 1, None, 0, 7], pa.uint64()),
    "e": pa.array([None, None, "", None, "A_b", r"A\_b"]),
    "tz": pa.array([0, 1_583_105_400, None, 1, -1, 1_600_000_000], pa.timestamp("s", "UTC")),
    "two words": pa.array([1, 2, 3, 4, 5, 6], pa.int64()),
})  # fmt: skip

TEXTS = [
    "a + b * 2 - 1", "-a", "- 3", "a % 3", "(a + b) % 2 = 0", "b % 4", "a / 2", "a // 2", "x // 1", "x / 2.5", "2 ** 3",
    "a = 1", "a <> 1", "a != b", "a < b", "a <= 3", "x > 1", "x >= 3", "s = 'apple'", "s < 'b'",
    "a > 0 and b > 2", "a > 0 or b > 2", "not (a > 0)", "f and a > 0", "f or null", "f is true", "f is not false",
    "a is null", "s is not null", "a in (1, 3)", "a in (1, null)", "a not in (1, 3)", "a not in (1, null)",
    "a in (b, 3)",
    "s in ('apple', 'pear')", "b in l", "a in (null)", "a in (5)", "a in (1, 2.5)",
    "a between 0 and 3", "x not between 0 and 2", "d between '2019-01-01' and date '2022-01-07'",
    "s like '%a%'", "s like 'a_ple'", "s not like 'a%'", "s ilike 'ÄP%'", "s not ilike 'B%'",
    "case when a > 1 then 'big' when a < 0 then 'small' else s end", "case when a > 1 then b end",
    "case a when 1 then 10 when 3 then 30 else 0 end", "if(a > 0, x, 0)", "case when f then 1 else 2.5 end",
    "cast(a as bigint)", "x::float", "cast(a as double)", "cast(a as varchar)", "cast('12' as int) + a",
    "cast(f as int)",
    "cast(case when abs(x) < 100 then x end as int)", "cast(t as date)", "cast(d as timestamp)", "d > '2020-01-01'",
    "t < timestamp '2020-01-01 00:00:00'", "'2020-01-01' < d",
    "abs(a)", "ceil(x)", "floor(x)", "trunc(x)", "round(x)", "round(x, 0)", "sign(a)", "sqrt(abs(x))", "exp(a)",
    "power(a, 2)", "mod(b, 3)", "greatest(a, b)", "least(a, b, 2)", "coalesce(a, b, 0)", "nullif(a, 1)", "isnan(x)",
    "ln(b + 10)", "log10(b + 10)", "log2(b + 10)",
    "lower(s)", "upper(s)", "length(s)", "trim(s)", "ltrim(s)", "rtrim(s)", "trim(s, 'a')", "substring(s, 2)",
    "substr(s, 2, 3)", "left(s, 2)", "replace(s, 'a', 'o')", "strpos(s, 'a')", "s || '!'", "s || a", "reverse(s)",
    "concat(s, '-', a)", "starts_with(s, 'a')", "ends_with(s, 'a')", "contains(s, 'a')", "regexp_matches(s, '^[ab]')",
    "contains(l, b)", "contains(l, a)", "list_contains(w, s)", "list_contains(l, 4)", "not list_contains(l, 2)",
    "len(l)", "list_max(l)", "list_min(l)", "list_max(w)", "list_min(w)", "l[1]", "l[-1]", "w[2]", "list_extract(l, 2)",
    "year(d)", "quarter(d)", "month(d)", "day(t)", "week(d)", "dayofweek(d)", "dayofyear(d)", "hour(t)", "minute(t)",
    "second(t)", "extract(year from d)", "extract(hour from t)", "date_trunc('month', d)", "date_trunc('hour', t)",
    "concat(e, e)", "concat(e, w[1])", "strpos(s, 'p')", "strpos(s, 'fel')", "strpos(s, '')", "strpos(s, 'q')",
    "replace(s, '', 'x')", "l[0]", r"e like 'A\_b'", "e like 'A_b'", "substring(s, 1, 0)",
    "z in (0, 1)", "z not in (0, 5)", "z in (-0.0, 7)", "x in (1.5, 0.5, null)", "f in (true, null)",
    "u > 5", "u <> 1", "u % 2 = 1", "u in (-1, 1)", "u in (1, 2)", "u > a", "a < u",
    "u between 1 and 9223372036854775808",
    "coalesce(u, -1)", "greatest(u, b)", "case when f then u else 5 end", "nullif(u, 1)", "u + 0", "u - b", "u / 2",
    "coalesce(n, x)", "case when f then n else x end", "h > n", "n >= h", "ceil(n)", "floor(n)", "greatest(n, x)",
    "n + x", "h * n", "coalesce(h, 1)", "c > '00:30:00'", "c = cast('12:00:00' as time)",
    "c in ('12:00:00', '01:00:00')",
    "cast(tz as timestamp)", "hour(cast(tz as timestamp))",
    "p.q + 1", '"two words" * 2', "null", "true", "1", "'it''s'", "1.5", "a /* of any kind */ + 1",
]  # fmt: skip


def ours(text: str, table: pa.Table = ROWS) -> list[Any]:
    return by_us(text, table)


def theirs(text: str, table: pa.Table = ROWS) -> list[Any]:
    return by_duckdb(text, table)


@pytest.mark.parametrize("text", TEXTS)
def test_text_means_what_it_means_to_duckdb(text: str) -> None:
    assert ours(text) == theirs(text)


def test_a_time_without_its_zone_is_the_wall_clock_of_the_zone() -> None:
    berlin = pa.table({"at": pa.array([1_583_105_400], pa.timestamp("s", "Europe/Berlin"))})  # 2020-03-01 23:30 UTC
    assert ours("cast(at as timestamp)", berlin) == ["2020-03-02T00:30:00"]
    assert ours("hour(cast(at as timestamp))", berlin) == ours("hour(at)", berlin) == [0]


def test_whole_numbers_are_no_truth_values() -> None:
    with pytest.raises(FlowError, match="no kernel"):
        Filter("f in (2, 3)").output_schema([ROWS.schema])


def test_a_kernel_that_gives_fewer_values_than_rows_is_an_error() -> None:
    """Arrow's join of texts leaves out rows where all are null: one column of a projection lost these rows silently."""
    joined = pc.binary_join_element_wise(pc.field("e"), pc.field("e"), "", null_handling="skip")
    (records,) = ROWS.combine_chunks().to_batches()
    with pytest.raises(DataError, match="gave 3 values for 6 rows"):
        Evaluator([("joined", joined)]).evaluate(records)


numbers = st.one_of(st.none(), st.integers(-5, 5))
terms = st.recursive(
    st.sampled_from(["a", "b", "1", "2", "-3"]),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda parts: f"({' '.join(parts)})"),
    max_leaves=4,
)
tests = st.recursive(
    st.one_of(
        st.tuples(terms, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), terms).map(" ".join),
        terms.map(lambda term: f"{term} is null"),
        st.tuples(terms, terms, terms).map(lambda three: f"{three[0]} between {three[1]} and {three[2]}"),
        st.tuples(terms, terms).map(lambda two: f"{two[0]} in ({two[1]}, 1, null)"),
        terms.map(lambda term: f"{term} % 3 = 1"),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: f"({' '.join(parts)})"),
        inner.map(lambda test: f"(not ({test}))"),
        st.tuples(inner, inner, inner).map(lambda three: f"(case when {three[0]} then {three[1]} else {three[2]} end)"),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(text=tests, rows=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6))
def test_conditions_have_three_values_as_in_duckdb(text: str, rows: list[tuple[int | None, int | None]]) -> None:
    table = pa.table({name: pa.array([row[n] for row in rows], pa.int64()) for n, name in enumerate("ab")})
    assert ours(text, table) == theirs(text, table)


def test_velox_names_of_list_functions_work() -> None:
    assert ours("cardinality(l)") == [3.0, 0.0, None, 2.0, 1.0, 1.0]
    assert ours("array_max(l) >= 3") == [True, None, None, True, True, None]
    assert ours("element_at(l, 2)") == [2.0, None, None, 4.0, None, None]


def test_list_functions_work_on_slices_and_on_batches_larger_than_acero_handles_at_once() -> None:
    rows = 100_000
    table = pa.table({"l": pa.array([[n, n + 1] if n % 3 else None for n in range(rows)]), "n": range(rows)})
    assert ours("list_contains(l, n)", table.slice(50_001)) == [True if n % 3 else None for n in range(50_001, rows)]
    assert ours("list_max(l) - n", table.slice(7)) == [1.0 if n % 3 else None for n in range(7, rows)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a >", "filter: cannot read 'a >': Required keyword"),
        ("nope > 1", "filter: its input has no column 'nope'(.|\n)*a, b, x"),
        ("levenshtein(s, 'a') = 1", "does not know the function levenshtein(.|\n)*docs/sql.md"),
        ("sum(a) over () > 1", "does not know 'SUM"),
        ("(select true)", "does not know"),
        ("a; b", "does not know"),
        ("current_date > d", "no column 'current_date'"),
        ("s like s", "takes a text as the pattern"),
        ("substring(s, a) = ''", "argument 2 must be a constant"),
        ("length() > 1", "takes 1 arguments, not 0"),
        ("list_max(a) > 1", "takes a list, not int32"),
        ("list_contains(l, s)", "cannot contain a value of type string"),
        ("cast(a as json) is null", "cannot cast to JSON"),
        ("try_cast(s as json) = 1", "cannot cast to JSON"),
        ("s + 1 > 2", "no kernel matching"),
        ("d > 'tomorrow'", "tomorrow"),
        ("a + b", "is int64, not a condition"),
    ],
)
def test_what_cannot_be_computed_fails_when_the_flow_is_built(text: str, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        Filter(text).output_schema([ROWS.schema])


def test_division_by_zero_is_an_error_of_the_data() -> None:
    with pytest.raises(DataError, match="divide by zero"):
        ours("b % (a - a)")


def test_text_without_sqlglot_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    monkeypatch.delitem(sys.modules, "penstock.engine.expressions.sql", raising=False)
    with pytest.raises(ConfigurationError, match=r"filter: SQL text needs sqlglot(.|\n)*penstock\[sql\]"):
        as_expression("filter", "a > 1", ROWS.schema)


def test_filter_and_project_take_text() -> None:
    table = ROWS.select(["a", "b"])
    assert run(Filter("a > 0 and b > 0"), {(0, 0): table}).table["a"].to_pylist() == [1, 12]
    made = run(Project.keeping(["a"], {"c": "a + b"}), {(0, 0): table}).table
    assert made["c"].to_pylist() == [3, -4, None, None, -1, 19]
    assert Filter("a > 0") == Filter("a > 0")
    assert Filter("a > 0") != Filter("a > 1")
