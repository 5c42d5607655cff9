"""Expressions over compact columns give what they give over plain ones: values, nulls, types, and errors."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.arrow.compact import as_decimals, is_compact, plain
from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.expressions.evaluator import Evaluator
from penstock.engine.expressions.expressions import as_expression
from support.compact_columns import compacted

SCHEMA = pa.schema(
    [
        ("p", pa.string()),
        ("r", pa.large_string()),
        ("e", pa.decimal128(15, 2)),
        ("d", pa.decimal128(9, 4)),
        ("w", pa.decimal128(24, 2)),
        ("n", pa.int32()),
        ("k", pa.int64()),
        ("u", pa.uint8()),
        ("s", pa.date32()),
        ("t", pa.timestamp("us")),
        ("x", pa.float64()),
    ]
)
WORDS = ["", "PROMO BRUSHED", "MAIL", "SHIP", "12", "7", "Brand#12", "ärger", " x "]


def rows(chooser: random.Random) -> pa.RecordBatch:
    count = chooser.choice([1, 5, 40, 300, 300])
    nulls = chooser.choice([0, 0, 0.3, 1])
    large = chooser.choice([False, False, True])
    first = datetime.date(1994, 1, 1)

    def column(type: pa.DataType, make: Any) -> pa.Array:
        share = chooser.choice([0, nulls])
        return pa.array([None if chooser.random() < share else make() for _ in range(count)], type)

    def number(precision: int, scale: int) -> Decimal:
        most = 10 ** (precision if large else min(precision, chooser.choice([2, 5])))
        return Decimal(chooser.randint(1 - most, most - 1)).scaleb(-scale)

    made = [
        column(pa.string(), lambda: chooser.choice(WORDS)),
        column(pa.large_string(), lambda: chooser.choice(WORDS[:3])),
        column(pa.decimal128(15, 2), lambda: number(15, 2)),
        column(pa.decimal128(9, 4), lambda: number(9, 4)),
        column(pa.decimal128(24, 2), lambda: number(20, 2)),
        column(pa.int32(), lambda: chooser.randint(-9, 9)),
        column(pa.int64(), lambda: chooser.choice([chooser.randint(-9, 9), 2**62, -(2**63)])),
        column(pa.uint8(), lambda: chooser.randint(0, 255)),
        column(pa.date32(), lambda: first + datetime.timedelta(chooser.randint(0, 900))),
        column(pa.timestamp("us"), lambda: 757_382_400_000_000 + chooser.randint(0, 10**14)),
        column(pa.float64(), lambda: chooser.choice([0.0, -0.0, 0.5, float("nan"), 7.25])),
    ]
    found = pa.RecordBatch.from_arrays(made, schema=SCHEMA)
    return found.slice(chooser.randint(0, count - 1)) if chooser.random() < 0.5 else found


class Texts:
    """Random SQL."""

    def __init__(self, chooser: random.Random) -> None:
        self._chooser = chooser

    def any(self) -> str:
        return self._chooser.choice([self.number, self.condition, self.text])(3)

    def number(self, depth: int) -> str:
        choice = self._chooser.choice
        if depth == 0 or self._chooser.random() < 0.2:
            return choice(["e", "e", "d", "w", "n", "k", "u", "1", "0.05", "2.5", "0", "-3"])
        one, other = self.number(depth - 1), self.number(depth - 1)
        return choice(
            [
                *[f"({one} {choice('+-*')} {other})"] * 5,
                f"cast({one} as decimal({choice([12, 18, 20, 38])}, {choice([0, 2, 4, 6])}))",
                f"abs({one})",
                f"-({one})",
                *[f"case when {self.condition(depth - 1)} then {one} else {choice([other, '0'])} end"] * 2,
                f"coalesce({one}, {other})",
                f"round({one}, 1)",
            ]
        )

    def text(self, depth: int) -> str:
        choice = self._chooser.choice
        if depth == 0 or self._chooser.random() < 0.2:
            return choice(["p", "p", "p", "'MAIL'"])
        one = self.text(depth - 1)
        return choice(
            [
                f"substring({one}, 1, {choice([0, 1, 2])})",
                f"upper({one})",
                f"replace({one}, 'A', 'x')",
                f"{one} || 'y'",
                f"coalesce({one}, 'none')",
                f"case when {self.condition(depth - 1)} then {one} else {self.text(depth - 1)} end",
                f"nullif({one}, 'MAIL')",
            ]
        )

    def condition(self, depth: int) -> str:
        choice, compared = self._chooser.choice, self._chooser.choice(["=", "<>", "<", "<=", ">", ">="])
        if depth == 0 or self._chooser.random() < 0.5:
            text = self.text(max(depth - 1, 0))
            return choice(
                [
                    f"{self.number(max(depth - 1, 0))} {compared} {self.number(max(depth - 1, 0))}",
                    f"{choice(['e', 'd', 'w'])} {compared} {choice(['24', '0.05', '24.001', '-1'])}",
                    f"e between {choice(['0.05', '-3'])} and 7",
                    f"{text} {compared} 'MAIL'",
                    f"{text} in ('MAIL', 'SHIP', '12')",
                    f"{text} like '{choice(['PROMO%', '%M%'])}'",
                    f"{text} = {self.text(0)}",
                    f"{choice(['p', 'r', 'e', 'w', 's'])} is {choice(['', 'not '])}null",
                    f"r {compared} 'MAIL'",
                    f"s {compared} date '1995-01-01'",
                    "s < cast(t as date)",
                    f"t {compared} timestamp '1995-03-01 10:00:00'",
                    f"year(s) {compared} 1995",
                    f"{choice('nku')} {compared} {choice(['5', '300', '-1'])}",
                    f"x {compared} 0.5::double",
                    f"length({text}) > 2",
                    f"n {compared} k",
                ]
            )
        one, other = self.condition(depth - 1), self.condition(depth - 1)
        return choice([f"({one} and {other})", f"({one} or {other})", f"not ({one})"])


def outcome(evaluator: Evaluator, records: pa.RecordBatch, types: list[pa.DataType] | None) -> list[Any] | str:
    try:
        found = evaluator.evaluate(records)
    except DataError as error:
        return str(error)
    if types is not None:
        pairs = zip(found, types, strict=True)
        found = [plain(array, type) if is_compact(array.type, type) else array for array, type in pairs]
    for array in found:
        array.validate(full=True)
    return [(array.type, repr(array.to_pylist())) for array in found]


@pytest.mark.parametrize("seed", range(40))
def test_any_expression_gives_the_same_over_compact_columns(seed: int) -> None:
    chooser = random.Random(seed)
    texts = Texts(chooser)
    for _ in range(6):
        given = []
        while len(given) < 2:
            text = texts.any()
            try:
                given.append((text, as_expression("project", text, SCHEMA)))
            except FlowError:
                continue  # too wide, or text beside a number
        shown = [text for text, _ in given]
        bare, compact = Evaluator(given, shown), Evaluator(given, shown, SCHEMA)
        types = bare.types("project", SCHEMA)
        for _ in range(3):
            records = rows(chooser)
            wanted = outcome(bare, records, None)
            for each in (compacted(records), compacted(records, chooser), records):
                assert outcome(compact, each, types) == wanted, shown


def evaluated(text: str, columns: dict[str, pa.Array], schema: pa.Schema) -> pa.Array:
    records = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    return Evaluator([("c", as_expression("project", text, schema))], [text], schema).evaluate(records)[0]


def test_products_that_do_not_fit_into_64_bits_are_of_128() -> None:
    schema = pa.schema([("a", pa.decimal128(18, 2)), ("b", pa.decimal128(18, 2))])
    small = as_decimals(np.array([10**6, -5]), pa.decimal64(18, 2))
    large = as_decimals(np.array([10**17, -(10**17)]), pa.decimal64(18, 2))
    fitting = evaluated("a * b", {"a": small, "b": small}, schema)
    assert fitting.type == pa.decimal64(18, 4)
    found = evaluated("a * b", {"a": large, "b": large}, schema)
    assert found.type == pa.decimal128(37, 4)
    assert found.to_pylist() == [Decimal(10**34).scaleb(-4)] * 2


def words(*values: str) -> pa.Array:
    return pa.array(values)


def test_a_value_that_no_row_has_makes_nothing_fail() -> None:
    schema = pa.schema([("p", pa.string())])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 2, 0, 2], pa.int32()), words("12", "no number", "7"))
    assert evaluated("cast(p as int)", {"p": column}, schema).to_pylist() == [12, 7, 12, 7]
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), words("12", "no number", "7"))
    with pytest.raises(DataError, match="no number"):
        evaluated("cast(p as int)", {"p": wrong}, schema)


def test_a_function_is_computed_once_for_the_values_of_a_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("p", pa.string())])
    evaluator = Evaluator([("c", pc.starts_with(pc.field("p"), "P"))], schema=schema)
    dictionary = words("PROMO", "MAIL", "SHIP")
    computed = []
    real = pa.concat_arrays
    monkeypatch.setattr(pa, "concat_arrays", lambda arrays: computed.append(len(arrays[0])) or real(arrays))
    for codes in ([0, 1], [2, 2], [0, None], [1, 0]):
        column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), dictionary)
        (found,) = evaluator.evaluate(pa.RecordBatch.from_arrays([column], ["p"]))
        assert found.to_pylist() == [None if code is None else code == 0 for code in codes]
    assert computed == [3], "the second batch completes as many rows as there are values"


def test_texts_that_become_equal_are_one_value() -> None:
    schema = pa.schema([("p", pa.string())])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 1], pa.int32()), words("ab", "ac", "b"))
    found = evaluated("substring(p, 1, 1)", {"p": column}, schema)
    assert found.dictionary.to_pylist() == ["a", "b"]
    assert found.to_pylist() == ["a", "a", "b", "a"]


def test_what_two_expressions_have_in_common_is_computed_once() -> None:
    evaluator = Evaluator(
        [(name, as_expression("project", text, SCHEMA)) for name, text in (("a", "e * (1 - d)"), ("b", "1 - d"))]
    )
    records = rows(random.Random(1))
    evaluator.evaluate(records)
    assert evaluator._program is not None
    assert len(evaluator._program.steps) == 5, "e, 1, d, their difference, and the product"
