"""Decimals in SQL text: against a model of the rule in Python's ``decimal``, and against DuckDB where rules agree."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal, localcontext
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow.dataset import dataset

from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.expressions import sql_decimals
from penstock.engine.expressions.evaluator import Evaluator, types_of
from penstock.engine.expressions.expressions import as_expression
from penstock.engine.expressions.sql_decimals import Exact
from support.oracle import connect
from support.sweeps import seeds

# ---------------------------------------------------------------------- the model: a number, its precision, its scale


class NoResult(Exception):
    """Overflow, or division by zero."""


@dataclass(frozen=True)
class Number:
    value: Decimal | None
    precision: int
    scale: int
    as_in_duckdb: bool = True
    failed: bool = False

    @property
    def null(self) -> Number:
        return replace(self, value=None, failed=False)


def fitted(value: Decimal | None, precision: int, scale: int, *given: Number, as_in_duckdb: bool = True) -> Number:
    kept = scale if precision <= 38 else max(38 - (precision - scale), min(scale, 6))
    if value is not None:
        value = value.quantize(Decimal(1).scaleb(-kept), ROUND_HALF_UP)
        if abs(value.scaleb(kept)) >= 10 ** min(precision, 38):
            raise NoResult
    same = as_in_duckdb and precision <= 38 and all(each.as_in_duckdb for each in given)
    return Number(value, min(precision, 38), kept, same)


def calculated(sign: str, a: Number, b: Number) -> Number:
    whole = (a.precision - a.scale, b.precision - b.scale)
    scale, null = max(a.scale, b.scale), a.value is None or b.value is None
    if sign in "/%" and b.value == 0 and not null:
        raise NoResult
    if sign == "+":
        return fitted(None if null else a.value + b.value, max(whole) + scale + 1, scale, a, b)
    if sign == "-":
        return fitted(None if null else a.value - b.value, max(whole) + scale + 1, scale, a, b)
    if sign == "*":
        return fitted(None if null else a.value * b.value, a.precision + b.precision + 1, a.scale + b.scale, a, b)
    if sign == "%":
        rest = None if null else a.value % b.value
        return fitted(rest, min(whole) + scale, scale, a, b, as_in_duckdb=False)  # there it may be a double
    scale = max(6, a.scale + b.precision + 1)
    quotient = None if null else a.value / b.value
    return fitted(quotient, whole[0] + b.scale + scale, scale, a, b, as_in_duckdb=False)


def alike(chosen: Number, *others: Number) -> Number:
    scale = max(each.scale for each in others)
    whole = max(each.precision - each.scale for each in others)
    kept = min(scale, 38 - whole)
    value = None if chosen.value is None else chosen.value.quantize(Decimal(1).scaleb(-kept), ROUND_HALF_UP)
    if value is not None and abs(value.scaleb(kept)) >= 10**38:
        raise NoResult
    same = whole + scale <= 38 and all(each.as_in_duckdb for each in others)
    return Number(value, min(whole + scale, 38), kept, same)


# ---------------------------------------------------------------------- random expressions


COLUMNS = {"p": (15, 2), "d": (12, 2), "t": (4, 4), "w": (38, 10), "k": (38, 0), "f": (38, 38), "h": (20, 9)}
INTEGERS = {"n": 20, "m": 10}  # columns of integers, and the digits they count as


class Expression:
    """A random expression: its text, and its value in each row."""

    def __init__(self, rng: random.Random, columns: dict[str, list[Any]], depth: int) -> None:
        self._rng, self._columns = rng, columns
        self._rows = len(columns["p"])
        self.text, self.numbers = self._made(depth)

    def _made(self, depth: int) -> tuple[str, list[Number]]:
        rng = self._rng
        if depth == 0 or rng.random() < 0.15:
            return self._leaf()
        (left, ours), (right, theirs) = self._made(depth - 1), self._made(depth - 1)
        kind = rng.choice("+-*/%+-*ccgl")
        if rng.random() < 0.1:
            right = str(rng.choice([1, 7, 0, 100, 2**40]))
            theirs = [Number(Decimal(right), len(right), 0)] * self._rows
        if kind in "+-*/%":
            return f"({left} {kind} {right})", self._each(lambda a, b: calculated(kind, a, b), ours, theirs)
        if kind == "c":
            return f"coalesce({left}, {right})", self._each(
                lambda a, b: alike(b if a.value is None else a, a, b), ours, theirs
            )
        if kind == "g":
            return f"greatest({left}, {right})", self._each(
                lambda a, b: alike(max((a, b), key=lambda x: (x.value is not None, x.value or 0)), a, b), ours, theirs
            )
        test = f"case when n > 0 then {left} else {right} end"
        positive = [n is not None and n > 0 for n in self._columns["n"]]
        chosen = [
            self._one(lambda a, b, take=take: alike(a if take else b, a, b), *((a, b.null) if take else (a.null, b)))
            for take, a, b in zip(positive, ours, theirs, strict=True)  # the other branch is not computed
        ]
        return test, chosen

    def _each(self, make: Any, ours: list[Any], theirs: list[Any]) -> list[Number]:
        return [self._one(make, a, b) for a, b in zip(ours, theirs, strict=True)]

    def _one(self, make: Any, a: Number, b: Number) -> Number:
        try:
            if not (a.failed or b.failed):
                return make(a, b)
        except NoResult:
            pass
        return replace(make(a.null, b.null), failed=True)

    def _leaf(self) -> tuple[str, list[Number]]:
        rng = self._rng
        if rng.random() < 0.25:
            text = rng.choice(["1.0", "0.05", "1.10", "0.0", "3.", ".5", "12345678.123456789", "2.50"])
            value = Decimal(text)
            scale = len(text.partition(".")[2])
            digits = max(len(value.as_tuple().digits), scale)
            return text, [Number(value, digits, scale)] * self._rows
        if rng.random() < 0.2:
            name = rng.choice(list(INTEGERS))
            values = [None if value is None else Decimal(value) for value in self._columns[name]]
            return f"({name} * 1.0)", [
                self._one(lambda a, b: calculated("*", a, b), Number(v, INTEGERS[name], 0), Number(Decimal(1), 2, 1))
                for v in values
            ]
        name = rng.choice(list(COLUMNS))
        return name, [Number(value, *COLUMNS[name]) for value in self._columns[name]]


def random_columns(rng: random.Random, rows: int) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for name, (precision, scale) in COLUMNS.items():
        digits = [rng.choice([precision, rng.randint(1, precision)]) for _ in range(rows)]
        numbers = [Decimal(rng.choice([rng.randrange(10**n), 10**n - 1, 5 * 10 ** (n - 1)])) for n in digits]
        columns[name] = [
            rng.choice([number, -number, number, None]) if rng.random() < 0.5 else number for number in numbers
        ]
        columns[name] = [None if each is None else each.scaleb(-scale) for each in columns[name]]
    columns["n"] = [rng.choice([None, 3, -4, rng.randrange(-(2**63), 2**63)]) for _ in range(rows)]
    columns["m"] = [rng.choice([None, 0, 5, rng.randrange(-(2**31), 2**31)]) for _ in range(rows)]
    return columns


def table_of(columns: dict[str, list[Any]]) -> pa.RecordBatch:
    types = {name: pa.decimal128(*shape) for name, shape in COLUMNS.items()} | {"n": pa.int64(), "m": pa.int32()}
    return pa.record_batch({name: pa.array(columns[name], type) for name, type in types.items()})


def computed(text: str, records: pa.RecordBatch) -> pa.Array | None:
    """None: an error, when the flow is built or when it runs."""
    try:
        expression = as_expression("project", text, records.schema)
        (found,) = Evaluator([("x", expression)], [text]).evaluate(records)
    except (DataError, FlowError):
        return None
    assert found.type == types_of("project", records.schema, [("x", expression)])[0]
    return found


@pytest.mark.parametrize("seed", seeds(2, of=20))
def test_decimals_are_those_of_the_model_and_of_duckdb(seed: int) -> None:
    rng = random.Random(seed)
    agreed = compared = failed = 0
    with localcontext(Context(prec=400)) as context, connect() as connection:
        context.rounding = ROUND_DOWN
        for _ in range(100):
            columns = random_columns(rng, 2)
            records = table_of(columns)
            made = Expression(rng, columns, rng.choice([1, 1, 1, 2, 2, 3]))
            found = computed(made.text, records)
            wanted = made.numbers
            if any(each.failed for each in wanted):
                assert found is None, made.text
                failed += 1
                continue
            assert found is not None, made.text
            assert found.to_pylist() == [each.value for each in wanted], made.text
            assert (found.type.precision, found.type.scale) == (wanted[0].precision, wanted[0].scale), made.text
            agreed += 1
            if all(each.as_in_duckdb for each in wanted):
                other = theirs(connection, made.text, records)
                assert other is None or other == found.to_pylist(), made.text
                compared += other is not None
    assert (agreed > 40, failed > 0, compared > 10) == (True, True, True)


def theirs(connection: Any, text: str, records: pa.RecordBatch) -> list[Any] | None:
    """None: it overflows in DuckDB, which has types of fewer digits on the way."""
    connection.register("given", records)
    try:
        return [value for (value,) in connection.execute(f"select {text} from given").fetchall()]
    except duckdb.Error:
        return None


# ---------------------------------------------------------------------- by hand

PRICES = pa.record_batch({
    "p": pa.array([Decimal("100.00"), Decimal("7.50"), None], pa.decimal128(15, 2)),
    "d": pa.array([Decimal("0.10"), Decimal("0.04"), Decimal("0.07")], pa.decimal128(12, 2)),
    "k": pa.array([Decimal(9) * 10**37, Decimal(1), Decimal(0)], pa.decimal128(38, 0)),
    "f": pa.array([Decimal("0.5"), Decimal("1E-38"), Decimal(0)], pa.decimal128(38, 38)),
    "b": pa.array([Decimal("1.5"), Decimal("-2.5"), None], pa.decimal256(40, 1)),
    "s": pa.array([Decimal("1.5"), Decimal("-2.5"), None], pa.decimal64(5, 1)),
    "n": pa.array([1, -3, None], pa.int64()),
    "x": pa.array([0.07, 2.5, None], pa.float64()),
    "l": pa.array([[0.07], [1.0], None], pa.list_(pa.float64())),
})  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("p in (100, 7)", [True, False, None]),
        ("p in (7.5, null)", [None, True, None]),
        ("p in (7.5, n)", [False, True, None]),
        ("k in (1, 0.5)", [False, True, False]),
        ("d between 0.06 - 0.01 and 0.06 + 0.01", [False, False, True]),
        ("d = 0.1 * 0.7", [False, False, True]),
        ("x = 0.07", [True, False, None]),
        ("x in (0.07, 1)", [True, False, None]),
        ("contains(l, 0.07)", [True, False, None]),
        ("0.07 in l", [True, False, None]),
        ("d = 7e-2", [False, False, True]),
        ("n > 0.5", [True, False, None]),
        ("n in (1.0, 2)", [True, False, None]),
        ("f < k", [True, True, False]),
        ("f = 0.00000000000000000000000000000000000001", [False, True, False]),
        ("b > -2", [True, False, None]),
        ("nullif(d, 0.1) is null", [True, False, False]),
        ("case when n = 1 then p else d end > 0.05", [True, False, True]),
        ("cast(k as decimal(38, 2)) > p * d", "does not fit"),
        ("cast(p as bigint)", [100, 8, None]),
        ("cast(-2.5 as int)", [-3, -3, -3]),
        ("cast(d as double)", [0.1, 0.04, 0.07]),
        ("d * 1e0", [0.1, 0.04, 0.07]),
        ("k // p", "out of bounds"),
        ("p // 8", [12, 0, None]),
        ("p / 0", "divide by zero"),
        ("p / nullif(d - 0.1, 0)", [None, Decimal("-125"), None]),
        ("b + 1", "more than 38 digits"),
        ("0.123456789012345678901234567890123456789", "more than 38 digits"),
        ("k * 10", "does not fit"),
        ("9223372036854775808 > n", [True, True, None]),
        ("-9223372036854775808 < n", [True, True, None]),
    ],
)
def test_decimals_by_hand(text: str, wanted: Any) -> None:
    if isinstance(wanted, str):
        with pytest.raises((DataError, FlowError), match=f"(?i){re.escape(text)}.*{wanted}"):
            evaluated(text)
    else:
        assert evaluated(text).to_pylist() == wanted


@pytest.mark.parametrize(
    ("text", "type", "wanted"),
    [
        ("coalesce(p, 0)", (15, 2), ["100.00", "7.50", "0.00"]),
        ("greatest(p, 8)", (15, 2), ["100.00", "8.00", "8.00"]),
        ("p * (1 - d) * (1 + d)", (38, 6), ["99.000000", "7.488000", None]),
        ("p / d", (30, 15), ["1000.000000000000000", "187.500000000000000", None]),
        ("case when n = 1 then p else d end", (15, 2), ["100.00", "0.04", "0.07"]),
        ("case when n = 1 then 1 else 2.5 end", (2, 1), ["1.0", "2.5", "2.5"]),
        ("if(n > 0, d)", (12, 2), ["0.10", None, None]),
        ("s + 0.25", (7, 2), ["1.75", "-2.25", None]),
        ("n * 0.5", (22, 1), ["0.5", "-1.5", None]),
        ("1 - 0.06", (4, 2), ["0.94", "0.94", "0.94"]),
        ("-0.50", (2, 2), ["-0.50", "-0.50", "-0.50"]),
        ("cast(n as decimal(15, 2))", (15, 2), ["1.00", "-3.00", None]),
        ("cast(p * d as decimal(10, 1))", (10, 1), ["10.0", "0.3", None]),
        ("cast(b as decimal(20, 0))", (20, 0), ["2", "-3", None]),
        ("coalesce(f, k)", (38, 0), ["1", "0", "0"]),
        ("round(p * d)", (25, 0), ["10", "0", None]),
        ("round(d, 1)", (12, 1), ["0.1", "0.0", "0.1"]),
        ("round(p, -1)", (14, 0), ["100", "10", None]),
        ("ceil(9.9)", (2, 0), ["10", "10", "10"]),
        ("ceil(-1 * d)", (13, 0), ["0", "0", "0"]),
        ("floor(-1 * d)", (13, 0), ["-1", "-1", "-1"]),
        ("trunc(-1 * p)", (16, 0), ["-100", "-7", None]),
        ("mod(p, 3)", (3, 2), ["1.00", "1.50", None]),
        ("-s", (5, 1), ["-1.5", "2.5", None]),
        ("abs(s)", (5, 1), ["1.5", "2.5", None]),
    ],
)
def test_types_of_decimals(text: str, type: tuple[int, int], wanted: list[str | None]) -> None:
    found = evaluated(text)
    assert found.type == pa.decimal128(*type)
    assert [None if each is None else str(each) for each in found.to_pylist()] == wanted


def evaluated(text: str) -> pa.Array:
    expression = as_expression("project", text, PRICES.schema)
    return Evaluator([("x", expression)], [text]).evaluate(PRICES)[0]


def test_literals_with_two_digits_find_what_they_name() -> None:
    rows = pa.record_batch({"d": pa.array([Decimal(n) / 100 for n in range(1000)], pa.decimal128(15, 2))})
    for n in range(0, 1000, 7):
        text = f"d = {n // 100}.{n % 100:02d}"
        (found,) = Evaluator([("x", as_expression("filter", text, rows.schema))]).evaluate(rows)
        assert found.index(pa.scalar(True)).as_py() == n, text


EDGES = [10**38 - 1, 10**37, 5 * 10**37, 5 * 10**37 - 1, 149 * 10**35, 45, 50, 49, 5, 1, 0]


@pytest.mark.parametrize(("precision", "scale"), [(38, 0), (37, 2), (36, 35), (38, 38), (36, 0), (20, 3), (5, 0)])
@pytest.mark.parametrize("zeros", [1, 2, 3, 17, 37, 38, 60])
def test_decimals_of_all_digits_are_rounded_before_the_point(precision: int, scale: int, zeros: int) -> None:
    rng = random.Random(zeros)
    digits = [each % 10**precision for each in (*EDGES, *(rng.randrange(10 ** rng.randrange(39)) for _ in range(60)))]
    numbers = [*digits, *(-each for each in digits)]
    step = 10 ** (zeros + scale)
    wanted = [(abs(each) + step // 2) // step * 10**zeros * (1 if each > 0 else -1) for each in numbers]
    text, type = f"round(d, -{zeros})", pa.decimal128(precision, scale)

    def rounded(numbers: list[int]) -> list[Any]:
        column = pa.array([Decimal(each).scaleb(-scale, Context(prec=40)) for each in numbers], type)
        rows = pa.record_batch({"d": column})
        return Evaluator([("x", as_expression("project", text, rows.schema))]).evaluate(rows)[0].to_pylist()

    fits = [abs(each) < 10**38 for each in wanted]
    assert rounded([each for each, fit in zip(numbers, fits, strict=True) if fit]) == [
        each for each, fit in zip(wanted, fits, strict=True) if fit
    ]
    for number in {each for each, fit in zip(numbers, fits, strict=True) if not fit}:
        with pytest.raises(DataError, match="does not fit"):
            rounded([number])


def hard_number(rng: random.Random, digits: int) -> int:
    """Of at most so many digits, often near a power of ten or at the edge of a machine word."""
    kind, power = rng.random(), rng.randrange(digits + 1)
    if kind < 0.3:
        found = rng.randrange(10**digits)
    elif kind < 0.5:
        found = rng.randrange(10 ** max(power, 1))
    elif kind < 0.7:
        found = 10**power - rng.choice([0, 1, 2, 5, 10 ** rng.randrange(10)])
    else:
        found = rng.randrange(1, 4) * 2 ** rng.choice([32, 63, 64, 65, 95, 96, 126]) + rng.choice([-1, 0, 1])
    return rng.choice([-1, 1]) * (abs(found) % 10**digits)


@pytest.mark.parametrize("seed", seeds(3, of=10))
def test_quotients_and_remainders_are_those_of_integers(seed: int) -> None:
    """Arrow divides wrongly where a word of the dividend equals the divisor's first: mostly near powers."""
    rng, exactly = random.Random(seed), Context(prec=200)
    for _ in range(10):
        p1, p2 = rng.choice([38, rng.randrange(2, 39)]), rng.choice([38, rng.randrange(2, 39)])
        s1, s2 = rng.randrange(p1), rng.randrange(p2)
        ours = [hard_number(rng, p1) for _ in range(200)]
        theirs = [hard_number(rng, p2) or 1 for _ in ours]
        given = {
            "a": pa.array([Decimal(each).scaleb(-s1, exactly) for each in ours], pa.decimal128(p1, s1)),
            "b": pa.array([Decimal(each).scaleb(-s2, exactly) for each in theirs], pa.decimal128(p2, s2)),
        }
        a, b = Exact(pc.field("a"), p1, s1), Exact(pc.field("b"), p2, s2)
        digits = rng.randrange(max(36 - s2, 1))
        quotient, _, kept = sql_decimals._quotient(a, b, digits)
        both = {"q": quotient, "r": sql_decimals.remaining(a, b)}
        found = dataset(pa.table(given)).to_table(columns=both).to_pydict()
        scale = max(s1, s2)
        for one, other, q, r in zip(ours, theirs, found["q"], found["r"], strict=True):
            sign = 1 if (one < 0) == (other < 0) else -1
            wanted = sign * (abs(one) * 10 ** (kept + s2) // (abs(other) * 10**s1))
            assert q == Decimal(wanted).scaleb(-kept, exactly), (p1, s1, one, p2, s2, other)
            x, y = one * 10 ** (scale - s1), other * 10 ** (scale - s2)
            left = Decimal(x - sign * (abs(x) // abs(y)) * y).scaleb(-scale, exactly)
            assert r == left, (p1, s1, one, p2, s2, other)


@pytest.mark.parametrize("digits", [25, 27, 30, 33])
def test_no_digit_in_the_middle_of_a_wide_result_is_wrong(digits: int) -> None:
    """Arrow's division of 256 bits by more than 32 has a carry that gets lost, mostly between nines."""
    integers = [-(2**63), 2**63 - 1, 10**18 - 1, 99 * 10**16]
    with localcontext(Context(prec=100)):
        wide = [Decimal(10**37 - number).scaleb(-digits) for number in (1, 2, 5, 10**9)]
        pairs = [(k, p) for k in integers for p in wide]
        left, right = pa.array([k for k, _ in pairs]), pa.array([p for _, p in pairs], pa.decimal128(37, digits))
        rows = pa.record_batch({"k": left, "p": right})
        (found,) = Evaluator([("x", as_expression("project", "k * p", rows.schema))]).evaluate(rows)
        kept = Decimal(1).scaleb(-found.type.scale)
        assert found.to_pylist() == [(k * p).quantize(kept, ROUND_HALF_UP) for k, p in pairs]


def test_a_negative_literal_keeps_all_its_digits() -> None:
    """Python's minus rounds a decimal to 28 digits."""
    number = Decimal("-5040.000636886180983434331200759460704")
    rows = pa.record_batch({"d": pa.array([number, number.copy_negate()], pa.decimal128(37, 33))})
    for text in (f"d = {number}", f"d in ({number}, 7)", f"d + 1 < 0 and d - ({number}) = 0"):
        (found,) = Evaluator([("x", as_expression("filter", text, rows.schema))]).evaluate(rows)
        assert found.to_pylist() == [True, False], text


@pytest.mark.parametrize(("precision", "scale"), [(9, 2), (15, 2), (15, 15), (16, 1), (38, 2), (38, 20)])
def test_a_decimal_becomes_the_nearest_double(precision: int, scale: int) -> None:
    rng = random.Random(precision)
    numbers = [Decimal(rng.randrange(-(10**precision) + 1, 10**precision)).scaleb(-scale) for _ in range(2000)]
    rows = pa.record_batch({"d": pa.array(numbers, pa.decimal128(precision, scale))})
    (found,) = Evaluator([("x", as_expression("project", "cast(d as double)", rows.schema))]).evaluate(rows)
    assert found.to_pylist() == [float(number) for number in numbers]
