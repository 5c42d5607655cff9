"""What share of rows a condition passes, guessed from the bounds of columns."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from penstock.engine.expressions.expressions import as_expression
from penstock.engine.expressions.shares import LEAST, ONE_VALUE, UNKNOWN, as_number, share_of

SCHEMA = pa.schema(
    [("n", pa.int64()), ("day", pa.date32()), ("price", pa.decimal128(15, 2)), ("x", pa.float64()), ("s", pa.string())]
)
FIRST, LAST = datetime.date(2000, 1, 1), datetime.date(2000, 12, 31)
RANGES = {
    "n": (1.0, 50.0),
    "day": (float(FIRST.toordinal()), float(LAST.toordinal())),
    "price": (0.0, 10.0),
    "x": (0.0, 100.0),
}


@pytest.mark.parametrize(
    ("condition", "share"),
    [
        ("n = 15", 1 / 50),
        ("n = 51", LEAST),
        ("15 = n", 1 / 50),
        ("n <> 15", 49 / 50),
        ("n in (1, 2, 3)", 3 / 50),
        ("x < 25", 0.25),
        ("25 > x", 0.25),
        ("x >= 20 and x < 30", 0.1),
        ("x between 20 and 30 and n = 1", 0.1 / 50),
        ("x < -1", LEAST),
        ("x > 200 or x < 50", 0.5),
        ("not x < 25", 0.75),
        ("price between 2.50 and 5.00", 0.25),
        ("day >= date '2000-07-01'", 183 / 365),
        ("s = 'a'", ONE_VALUE),
        ("s in ('a', 'b')", 2 * ONE_VALUE),
        ("s like 'a%'", ONE_VALUE),
        ("s not like 'a%'", 1 - ONE_VALUE),
        ("s < 'a'", UNKNOWN),
        ("n < x", UNKNOWN),
        ("n + 1 = 2", UNKNOWN),
        ("n + 1 = 2 and x < 25", UNKNOWN * 0.25),
    ],
)
def test_values_lie_evenly_between_the_bounds(condition: str, share: float) -> None:
    assert share_of(as_expression("filter", condition, SCHEMA), RANGES) == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize(
    ("condition", "share"),
    [("n = 15", ONE_VALUE), ("x < 25", UNKNOWN), ("x >= 20 and x < 30", UNKNOWN**2), ("day is null", ONE_VALUE)],
)
def test_without_bounds_there_are_constants(condition: str, share: float) -> None:
    assert share_of(as_expression("filter", condition, SCHEMA), {}) == pytest.approx(share, rel=0.01)


def test_what_has_no_place_on_a_line_has_no_number() -> None:
    assert [as_number(each) for each in (None, True, "a", b"a", float("nan"), float("inf"))] == [None] * 6
    day = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    assert as_number(day) == as_number(day.replace(tzinfo=None))
