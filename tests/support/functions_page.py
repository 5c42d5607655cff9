"""Writes docs/functions.md: every function that expressions, aggregates and windows know, what it is, and an example.

    PYTHONPATH=tests python -m support.functions_page

What an example gives is computed; tests/test_functions_page.py compares it with DuckDB, and the page with this.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa

from penstock.engine.expressions.evaluator import Evaluator
from penstock.engine.expressions.expressions import as_expression
from penstock.engine.operators.aggregate.aggregate_functions import FUNCTIONS as AGGREGATES
from penstock.engine.operators.aggregate.aggregate_functions import OF_SHARES
from penstock.engine.operators.aggregate.window_functions import RANKS, RUNNING, SHARES, SHIFTS

PAGE = Path(__file__).parents[2] / "docs" / "functions.md"

ROW = pa.table(
    {
        "n": pa.array([7], pa.int64()),
        "x": [2.25],
        "s": ["abc-1"],
        "d": pa.array([datetime.date(2024, 2, 29)]),
        "t": pa.array(["2024-02-29 10:11:12.345678"]).cast(pa.timestamp("us")),
        "l": pa.array([[3, 1, 2, 1]], pa.list_(pa.int64())),
        "w": pa.array([["b", "a"]], pa.list_(pa.string())),
        "j": ['{"a": {"b": [10, 20]}, "c": "text"}'],
        "none": pa.array([None], pa.int64()),
    }
)

SCALAR: dict[str, dict[str, tuple[str, str]]] = {
    "Numbers": {
        "abs": ("abs(-n)", "the distance from zero"),
        "ceil ceiling": ("ceil(x)", "the next whole number above"),
        "floor": ("floor(x)", "the next whole number below"),
        "trunc": ("trunc(-x)", "without what is behind the point"),
        "round": ("round(x, 1)", "to so many digits, halves away from zero"),
        "sign": ("sign(-n)", "-1, 0 or 1"),
        "mod": ("mod(-n, 4)", "what a division leaves, with the sign of the dividend"),
        "sqrt": ("sqrt(x)", "the square root"),
        "cbrt": ("cbrt(x)", "the cube root"),
        "power pow": ("power(x, 2)", "raised to a power"),
        "exp": ("exp(x)", "e raised to it"),
        "ln": ("ln(x)", "the natural logarithm"),
        "log": ("log(2, x)", "the logarithm to a base, by default 10"),
        "log10": ("log10(x)", "the logarithm to base 10"),
        "log2": ("log2(x)", "the logarithm to base 2"),
        "pi": ("pi()", "π"),
        "degrees": ("degrees(x)", "radians as degrees"),
        "radians": ("radians(x)", "degrees as radians"),
        "sin": ("sin(x)", "the sine"),
        "cos": ("cos(x)", "the cosine"),
        "tan": ("tan(x)", "the tangent"),
        "cot": ("cot(x)", "the cotangent"),
        "asin": ("asin(x / 3)", "the angle with this sine"),
        "acos": ("acos(x / 3)", "the angle with this cosine"),
        "atan": ("atan(x)", "the angle with this tangent"),
        "atan2": ("atan2(x, n)", "the angle of a point (y, x)"),
        "xor": ("xor(n, 2)", "bits that are set in one of both"),
        "isnan": ("isnan(x)", "whether it is NaN"),
        "isinf": ("isinf(x)", "whether it is infinite"),
        "isfinite": ("isfinite(x)", "whether it is neither"),
    },
    "Choice": {
        "coalesce": ("coalesce(none, n)", "the first one that is not null"),
        "ifnull nvl": ("ifnull(none, n)", "the second one where the first is null"),
        "nullif": ("nullif(n, 7)", "null where both are equal"),
        "greatest": ("greatest(n, x)", "the largest, nulls left out"),
        "least": ("least(n, x)", "the least, nulls left out"),
    },
    "Text": {
        "lower lcase": ("lower('ABC')", "in small letters"),
        "upper ucase": ("upper(s)", "in capital letters"),
        "reverse": ("reverse(s)", "backwards"),
        "length len char_length character_length": ("length(s)", "the number of characters, or elements"),
        "trim": ("trim('  a ')", "without blanks, or given characters, at both ends"),
        "ltrim": ("ltrim('xxa', 'x')", "the same at the left end"),
        "rtrim": ("rtrim('a  ')", "the same at the right end"),
        "substring substr": ("substring(s, 2, 3)", "characters from a position on, so many of them"),
        "left": ("left(s, 2)", "the first characters"),
        "right": ("right(s, 2)", "the last characters"),
        "lpad": ("lpad(s, 7, '.')", "filled up at the left, or cut, to a length"),
        "rpad": ("rpad(s, 7, '.')", "filled up at the right, or cut"),
        "repeat": ("repeat(s, 2)", "so many times"),
        "replace": ("replace(s, 'b', 'xx')", "with every occurrence replaced"),
        "translate": ("translate(s, 'ab', 'xy')", "with characters replaced one by one"),
        "strpos instr": ("strpos(s, 'c')", "the position of a part, 0 if there is none"),
        "concat": ("concat(s, n)", "put together, nulls left out"),
        "concat_ws": ("concat_ws('/', s, n)", "put together with something between"),
        "starts_with prefix": ("starts_with(s, 'ab')", "whether it begins so"),
        "ends_with suffix": ("ends_with(s, '1')", "whether it ends so"),
        "contains": ("contains(s, 'c-')", "whether it has the part, or a list the element"),
        "string_split str_split split": ("string_split(s, '-')", "the parts between separators"),
        "split_part": ("split_part(s, '-', 2)", "one of them, counted from 1, from the end with a minus"),
        "regexp_matches": ("regexp_matches(s, 'B', 'i')", "whether a pattern is found"),
        "regexp_full_match": ("regexp_full_match(s, '[a-z]+')", "whether a pattern is all of it"),
        "regexp_replace": ("regexp_replace(s, '[0-9]', '#')", "with the first match replaced, all with `'g'`"),
        "regexp_extract": ("regexp_extract(s, '([a-z]+)-', 1)", "the first match, or a group of it"),
        "ascii unicode ord": ("ascii(s)", "the number of the first character"),
        "chr": ("chr(97)", "the character of a number"),
        "md5": ("md5(s)", "MD5 in hexadecimal"),
        "sha1": ("sha1(s)", "SHA-1 in hexadecimal"),
        "sha256": ("sha256(s)", "SHA-256 in hexadecimal"),
    },
    "Dates and times": {
        "century": ("century(t)", "the century"),
        "decade": ("decade(t)", "the year by ten"),
        "year": ("year(t)", "the year"),
        "isoyear": ("isoyear(t)", "the year of the ISO week"),
        "quarter": ("quarter(t)", "1 to 4"),
        "month": ("month(t)", "1 to 12"),
        "week": ("week(t)", "the ISO week"),
        "day dayofmonth": ("day(t)", "of the month"),
        "dayofweek weekday": ("dayofweek(t)", "Sunday is 0"),
        "isodow": ("isodow(t)", "Monday is 1, Sunday 7"),
        "dayofyear": ("dayofyear(t)", "1 to 366"),
        "hour": ("hour(t)", "0 to 23"),
        "minute": ("minute(t)", "0 to 59"),
        "second": ("second(t)", "0 to 59"),
        "millisecond": ("millisecond(t)", "of the minute"),
        "microsecond": ("microsecond(t)", "of the minute"),
        "epoch": ("epoch(t)", "seconds since 1970"),
        "epoch_ms": ("epoch_ms(t)", "milliseconds since 1970"),
        "epoch_us": ("epoch_us(t)", "microseconds since 1970"),
        "epoch_ns": ("epoch_ns(t)", "nanoseconds since 1970"),
        "date_part datepart": ("date_part('hour', t)", "any of these by name"),
        "date_trunc datetrunc": ("date_trunc('month', t)", "the beginning of a unit"),
        "date_diff datediff": ("date_diff('day', date '2024-01-01', d)", "borders of a unit from one to the other"),
        "date_add": ("date_add(d, interval 1 month)", "later by an interval"),
        "last_day": ("last_day(d)", "the last day of its month"),
        "make_date": ("make_date(2024, 2, n)", "of year, month and day"),
        "dayname": ("dayname(d)", "the English name of the day"),
        "monthname": ("monthname(d)", "the English name of the month"),
        "strftime": ("strftime(t, '%d.%m.%Y')", "as text, by a format"),
        "strptime": ("strptime('29/02/2024', '%d/%m/%Y')", "of a text, by a format"),
        "try_strptime": ("try_strptime(s, '%Y')", "the same, null for what is none"),
    },
    "Intervals": {
        "to_microseconds": ("t + to_microseconds(1)", "so many microseconds"),
        "to_milliseconds": ("t + to_milliseconds(1)", "so many milliseconds"),
        "to_seconds": ("t + to_seconds(n)", "so many seconds"),
        "to_minutes": ("t + to_minutes(n)", "so many minutes"),
        "to_hours": ("t + to_hours(n)", "so many hours"),
        "to_days": ("t + to_days(n)", "so many days"),
        "to_weeks": ("t + to_weeks(n)", "so many weeks"),
        "to_months": ("t + to_months(1)", "so many months, a constant"),
        "to_quarters": ("t + to_quarters(1)", "so many quarters, a constant"),
        "to_years": ("t + to_years(1)", "so many years, a constant"),
    },
    "Lists": {
        "cardinality array_length": ("cardinality(l)", "the number of elements"),
        "list_contains list_has array_contains": ("list_contains(l, 3)", "whether it has the element"),
        "list_max array_max": ("list_max(l)", "the largest element"),
        "list_min array_min": ("list_min(l)", "the least element"),
        "list_sum": ("list_sum(l)", "the sum"),
        "list_avg list_mean": ("list_avg(l)", "the mean"),
        "list_sort array_sort": ("list_sort(l)", "in ascending order"),
        "list_reverse_sort": ("list_reverse_sort(l)", "in descending order"),
        "list_distinct": ("list_distinct(l)", "each element once; here in the order of the list"),
        "list_value": ("list_value(n, 8)", "a list of these"),
        "list_append": ("list_append(l, 9)", "with one element more"),
        "list_concat": ("list_concat(l, l)", "one list behind the other"),
        "list_extract element_at": ("list_extract(l, 1)", "an element, counted from 1"),
        "array_to_string": ("array_to_string(w, '+')", "the elements as one text"),
    },
    "JSON": {
        "json_extract json_extract_path": ("json_extract(j, '$.a.b')", "what is at a path, as JSON"),
        "json_extract_string json_extract_path_text": ("json_extract_string(j, '$.c')", "the same as plain text"),
        "json_array_length": ("json_array_length(json_extract(j, '$.a.b'))", "the number of elements"),
        "json_valid": ("json_valid(j)", "whether it is JSON"),
    },
}
"""By kind: names of a function, an example over ``ROW``, what it is."""

OTHERS: dict[str, dict[str, str]] = {
    "Aggregates": {
        "count": "rows, or values that are not null",
        "sum": "the sum, exact for whole numbers and decimals",
        "min": "the least value",
        "max": "the largest value",
        "mean avg": "the mean, a double",
        "variance": "of a sample",
        "stddev": "of a sample",
        "median": "the value in the middle, or the mean of the two that are",
        "quantile quantile_cont": "`quantile(0.9)`: at this share of the way, between two values if it is there",
        "quantile_disc": "`quantile_disc(0.9)`: the first value that this share are not above",
        "count_distinct": "distinct values that are not null",
        "approx_count_distinct": "about as many: exact below 4,096, then to 1.6 % (one sigma); DuckDB's differs",
        "approx_quantile": "`approx_quantile(0.9)`: `quantile_disc`, less than 0.8 % nearer to zero; DuckDB's differs",
        "first arbitrary": "the value of the first row, null included",
        "last": "the value of the last row, null included",
        "collect_list array_agg": "all values in order, nulls included",
    },
    "Windows": {
        "row_number": "the place of the row, from 1",
        "rank": "the same, equal rows alike",
        "dense_rank": "the same without gaps",
        "ntile": "`ntile(4)`: which of so many parts the row is in, from 1",
        "percent_rank": "rank as a share of the others, from 0 to 1",
        "cume_dist": "the share of rows that are not behind it",
        "lag": "the value so many rows before",
        "lead": "the value so many rows behind",
        **dict.fromkeys(RUNNING, "as the aggregate, over a frame of rows"),
    },
}


def page() -> str:
    """The text of the page."""
    lines = [
        "<!-- Written by tests/support/functions_page.py: change that, not this. -->",
        "# All functions",
        "",
        "What [SQL text](sql.md), `ps.fn` and [streams](streams.md) know by name. Each gives what DuckDB gives, unless",
        "it says otherwise: the examples are tests, and so are many more. Names in one row are one function. Examples",
        "are of this row:",
        "",
        "| | |",
        "|---|---|",
        *(f"| `{name}` | `{_shown(values[0].as_py())}` |" for name, values in _columns()),
    ]
    for kind, functions in SCALAR.items():
        lines += ["", f"## {kind}", "", "| | what it is | example | gives |", "|---|---|---|---|"]
        for names, (example, what) in functions.items():
            code = example.replace("|", "\\|")
            lines.append(f"| {_named(names)} | {what} | `{code}` | `{_given(example)}` |")
    for kind, others in OTHERS.items():
        lines += ["", f"## {kind}", "", "| | what it is |", "|---|---|"]
        lines += [f"| {_named(names)} | {what} |" for names, what in others.items()]
    return "\n".join(lines) + "\n"


def named(functions: dict[str, object]) -> list[str]:
    """All names in a part of the page."""
    return [name for names in functions for name in names.split()]


def registered() -> dict[str, set[str]]:
    """What the engine knows besides scalar functions, by kind."""
    windows = {*RANKS, "ntile", *SHARES, *SHIFTS, *RUNNING}
    return {"Aggregates": {*AGGREGATES, *OF_SHARES}, "Windows": windows}


def _named(names: str) -> str:
    return " ".join(f"`{name}`" for name in names.split())


def _columns() -> list[tuple[str, pa.ChunkedArray]]:
    return list(zip(ROW.column_names, ROW.columns, strict=True))


def _given(example: str) -> str:
    (records,) = ROW.to_batches()
    (found,) = Evaluator([("found", as_expression("project", example, ROW.schema))]).evaluate(records)
    return _shown(found.to_pylist()[0])


def _shown(value: object) -> str:
    """A value as one would read it, floats to ten digits."""
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
