"""Conditions on bounds: what a row can be is never said to be impossible."""

import datetime
import random
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.expressions.bounds import Range, bounded, comparable_value
from penstock.engine.expressions.evaluator import Evaluator
from penstock.engine.expressions.expressions import as_expression

SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("u", pa.uint64()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("d", pa.decimal128(9, 2)),
        ("s", pa.string()),
        ("y", pa.binary()),
        ("t", pa.timestamp("us")),
        ("a", pa.date32()),
        ("b", pa.bool_()),
    ]
)
NUMBERS = [-3, 0, 1, 2, 7]
VALUES = {
    "i": NUMBERS,
    "l": [*NUMBERS, 2**40],
    "u": [0, 1, 7, 2**63 + 1],
    "f": [*map(float, NUMBERS), -0.0, float("nan"), float("inf"), 2.5],
    "g": [*map(float, NUMBERS), -0.0, float("nan"), 0.5],
    "d": [*map(Decimal, NUMBERS), Decimal("2.50"), Decimal("-0.01")],
    "s": ["", "a", "ab", "abc", "b", "ü", "\U0001f600", "\uffff"],
    "y": [b"", b"a", b"\xff", b"\x00"],
    "t": [datetime.datetime(2020, 1, day) for day in (1, 2, 5)],  # noqa: DTZ001 the type has no zone
    "a": [datetime.date(2020, 1, day) for day in (1, 2, 5)],
    "b": [True, False],
}
LITERALS = {
    "i": ["2", "0", "7", "-3", "2.5", "2.0"],
    "l": ["2", "1099511627776", "2.5"],
    "u": ["1", "7"],
    "f": ["2", "0.0", "cast('nan' as double)", "2.5"],
    "g": ["1", "0.5"],
    "d": ["2", "2.5", "2.500000", "-0.01", "0"],
    "s": ["'a'", "'ab'", "''", "'ü'"],
    "t": ["timestamp '2020-01-02 00:00:00'", "timestamp '2019-01-01 00:00:00'"],
    "a": ["date '2020-01-02'", "date '2021-01-01'"],
}


def condition(chance: random.Random, depth: int = 2) -> str:
    if depth and chance.random() < 0.7:
        one, other = condition(chance, depth - 1), condition(chance, depth - 1)
        return chance.choice([f"({one}) and ({other})", f"({one}) or ({other})", f"not ({one})"])
    name = chance.choice(list(LITERALS))
    given = LITERALS[name]
    match chance.randrange(8):
        case 0:
            return f"{name} is {chance.choice(['', 'not '])}null"
        case 1:
            return f"{name} {chance.choice(['', 'not '])}in ({', '.join(chance.sample(given, 2))})"
        case 2:
            return f"s {chance.choice(['', 'not '])}like '{chance.choice(['a%', 'ab', '%b', 'a_c', 'ü%', ''])}'"
        case 3:
            return f"{name} between {chance.choice(given)} and {chance.choice(given)}"
        case 4:
            return chance.choice(["b", "i + 1 > 2", "case when b then i > 2 end", "null", "i = l", "2 < i"])
        case _:
            return f"{name} {chance.choice(['=', '<>', '<', '<=', '>', '>='])} {chance.choice(given)}"


def rows(chance: random.Random) -> pa.RecordBatch:
    count = chance.randrange(1, 5)
    columns = []
    for name in SCHEMA.names:
        few = chance.sample(VALUES[name], min(len(VALUES[name]), chance.randrange(1, 3)))
        nulls = chance.choice([0.0, 0.0, 0.3, 1.0])
        found = [None if chance.random() < nulls else chance.choice(few) for _ in range(count)]
        columns.append(pa.array(found, SCHEMA.field(name).type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def range_of(column: pa.Array) -> Range:
    values = [comparable_value(each) for each in column if each.is_valid]
    known = [each for each in values if each is not None]
    low, high = (min(known), max(known)) if known else (None, None)
    return Range(low, high, bool(values), column.null_count > 0)


@pytest.mark.parametrize("seed", range(4))
def test_what_rows_are_is_possible(seed):
    chance = random.Random(seed)
    narrow = 0
    for _ in range(40):
        expression = as_expression("filter", condition(chance), SCHEMA)
        found = bounded(expression, SCHEMA)
        evaluator = Evaluator([("", expression)])
        for _ in range(8):
            records = rows(chance)
            ranges = {
                name: range_of(column) for name, column in zip(records.schema.names, records.columns, strict=True)
            }
            for name in chance.sample(SCHEMA.names, 3):
                del ranges[name]
            possible = found.possible(ranges)
            try:
                (mask,) = evaluator.evaluate(records)
            except Exception:
                assert not found.is_safe
                continue
            there = mask.to_pylist()
            assert (True in there) <= possible[0], (expression, ranges, there)
            assert (False in there) <= possible[1], (expression, ranges, there)
            narrow += not all(possible)
    assert narrow > 40


@pytest.mark.parametrize(
    ("text", "ranges", "holds"),
    [
        ("i > 5", {"i": Range(0, 5)}, False),
        ("i >= 5", {"i": Range(0, 5)}, True),
        ("i = 3", {"i": Range(has_values=False)}, False),
        ("i is null", {"i": Range(0, 5, has_nulls=False)}, False),
        ("f <> 0", {"f": Range(0.0, 0.0)}, True),
        ("d > 2.505", {"d": Range(Decimal("0.01"), Decimal("2.50"))}, False),
        ("s like 'b%'", {"s": Range(b"a", b"azz")}, False),
        ("s like 'b%'", {"s": Range(b"a", b"b")}, True),
        ("i in (1, 9)", {"i": Range(2, 8)}, False),
        ("not (i <> 3)", {"i": Range(4, 5)}, False),
        ("i > 5 and s like '%x'", {"i": Range(0, 5)}, False),
    ],
)
def test_bounds_decide(text, ranges, holds):
    found = bounded(as_expression("filter", text, SCHEMA), SCHEMA)
    assert found.may_hold(ranges) is holds
    assert found.is_safe


@pytest.mark.parametrize("text", ["i / l > 2", "u > 5 and l > u", "cast(s as int) > 2", "i > 1 and 10 / i > 2"])
def test_what_may_fail_is_not_safe(text):
    assert not bounded(as_expression("filter", text, SCHEMA), SCHEMA).is_safe


def test_is_in_with_null_may_take_nulls():
    found = bounded(pc.field("i").isin([5, None]), SCHEMA)
    assert found.may_hold({"i": Range(0, 1)})
    assert not found.may_hold({"i": Range(0, 1, has_nulls=False)})
