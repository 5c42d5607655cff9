"""Expressions as calls of kernels: the same values and types as Acero's, and Acero where that cannot be promised."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import acero

from penstock.engine.core.errors import DataError
from penstock.engine.expressions.bounds import has_answers
from penstock.engine.expressions.evaluator import Evaluator, types_of
from penstock.engine.expressions.kernel_calls import program_of

ROWS = 100
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("j", pa.int32()),
        ("u", pa.uint8()),
        ("x", pa.float64()),
        ("y", pa.float32()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.decimal128(12, 2)),
        ("t", pa.timestamp("us", "UTC")),
        ("e", pa.dictionary(pa.int32(), pa.string())),
        ("r", pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])),
        ("l", pa.list_(pa.int64())),
    ]
)


def made(rows: int) -> pa.RecordBatch:
    chance = np.random.default_rng(1)
    missing = chance.random(rows) < 0.2
    numbers = chance.integers(0, 100, rows)
    texts = [f"t{number % 7}" for number in numbers]
    columns = [
        pa.array(numbers * 2**17, mask=missing),
        pa.array(numbers.astype(np.int32) - 50),
        pa.array(numbers.astype(np.uint8), mask=missing),
        pa.array(np.where(numbers % 5, numbers / 8, np.nan)),
        pa.array((numbers / 8).astype(np.float32), mask=missing),
        pa.array(texts, mask=missing),
        pa.array(numbers % 2 == 0, mask=missing),
        pa.array([Decimal(int(number)) / 4 for number in numbers], pa.decimal128(12, 2)),
        pa.array(
            [datetime(2020, 1, 1 + int(number) % 28, tzinfo=UTC) for number in numbers], pa.timestamp("us", "UTC")
        ),
        pa.array(texts).dictionary_encode(),
        pa.array(
            [None if no else {"a": int(n), "b": {"c": f"c{n}"}} for n, no in zip(numbers, missing, strict=True)],
            SCHEMA.field("r").type,
        ),
        pa.array([[int(number)] * (number % 4) for number in numbers], pa.list_(pa.int64())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


i, j, x, s, b = (pc.field(name) for name in "ijxsb")
PLAIN = [
    i + 1,
    j + 1,
    j + pc.scalar(2**40),
    pc.field("u") + 1,
    pc.field("u") + 300,
    i * 2.5,
    i * 2.1,
    pc.field("y") * 2.5,
    pc.field("y") * 0.1,
    x * 2.0 + i,
    (i > 3) & (x <= 2.5) | ~b,
    i == 2**24 + 1.0,
    s == "t3",
    s.isin(["t1", "t2"]),
    i.is_null(),
    x.is_nan(),
    i.cast(pa.float32(), safe=False),
    pc.if_else(b, i, pc.scalar(7)),
    pc.if_else(b, pc.scalar(1), pc.scalar(0)),
    pc.if_else(b, pc.scalar("yes"), s),
    pc.coalesce(s, pc.scalar("none")),
    pc.utf8_upper(s),
    pc.utf8_slice_codeunits(s, 0, 1),
    pc.match_substring_regex(s, "[12]$"),
    pc.round(x, ndigits=1),
    pc.year(pc.field("t")),
    pc.field("t") > pc.scalar(datetime(2020, 1, 15, tzinfo=UTC)),
    pc.field("e") == "t1",
    pc.field("d") * pc.field("d"),
    pc.field("r", "a") + 1,
    pc.field("r", "b", "c"),
    pc.list_value_length(pc.field("l")),
    pc.max_element_wise(i, pc.field("u")),
    pc.case_when(pc.make_struct(b, i > 5), s, pc.scalar("five"), pc.scalar("rest")),
    pc.negate(j),
    i,
    pc.scalar(5),
    pc.scalar(pa.scalar(None, pa.string())),
]
ONE, UPPER = pc.scalar(1), pc.utf8_upper(pc.scalar("t3"))
CONSTANT = [
    ONE + 2,
    pc.scalar(1.5) + 2,
    pc.scalar(100) + 100,
    i + (ONE + pc.scalar(2)),
    j + (ONE + pc.scalar(2)),
    # a call is no literal, whose type would give way to the column's
    j + ONE.cast(pa.int64()),
    pc.field("u") + ONE.cast(pa.int16()),
    pc.field("y") * pc.scalar(0.5).cast(pa.float64()),
    pc.field("d") * pc.scalar(2).cast(pa.decimal128(21, 1)),
    UPPER,
    pc.utf8_upper(s) == UPPER,
    pc.field("e") == pc.utf8_lower(pc.scalar("T1")),
    pc.if_else(pc.scalar("a") == pc.scalar("a"), i, pc.scalar(7)),
    pc.if_else(b, UPPER, pc.utf8_lower(UPPER)),
    pc.coalesce(s, UPPER),
    pc.coalesce(pc.scalar(pa.scalar(None, pa.string())), UPPER),
    pc.make_struct(ONE + 1, s),
]
FAILING = pc.divide(ONE, pc.scalar(0))
LEFT_TO_ACERO = [FAILING, i + FAILING, pc.if_else(b, i, FAILING)]


def type_of(expression: pc.Expression, schema: pa.Schema) -> pa.DataType:
    return types_of("test", schema, [("", expression)])[0]


def by_acero(expression: pc.Expression, records: pa.RecordBatch) -> pa.Array:
    source = acero.TableSourceNodeOptions(pa.Table.from_batches([records]))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["found"]))
    table = acero.Declaration.from_sequence([acero.Declaration("table_source", source), project]).to_table()
    return pa.concat_arrays(table.column(0).chunks) if table.num_rows else pa.array([], table.schema.field(0).type)


@pytest.mark.parametrize("expression", [*PLAIN, *CONSTANT], ids=str)
def test_calls_give_the_values_and_types_that_acero_gives(expression: pc.Expression) -> None:
    assert program_of([expression], SCHEMA, type_of) is not None, "it could have been taken apart"
    for records in (made(ROWS), made(ROWS).slice(13, 41), made(1), made(0)):
        [found] = Evaluator([("found", expression)]).evaluate(records)
        wanted = by_acero(expression, records)
        assert found.type == wanted.type
        assert repr(found.to_pylist()) == repr(wanted.to_pylist())


@pytest.mark.parametrize("expression", LEFT_TO_ACERO, ids=str)
def test_what_calls_cannot_promise_is_left_to_acero(expression: pc.Expression) -> None:
    """A call of constants that fails fails as before: of each batch, with what Acero says."""
    assert program_of([expression], SCHEMA, type_of) is None
    with pytest.raises(DataError, match="cannot compute found: divide by zero"):
        Evaluator([("found", expression)]).evaluate(made(ROWS))


def test_literals_keep_their_width_where_a_column_has_it() -> None:
    """2**24 + 1 does not fit into float32: beside a float64 column the constant must not become one."""
    records = pa.record_batch({"x": [2.0**24, 2.0**24 + 1]})
    [found] = Evaluator([("found", pc.field("x") == 2.0**24)]).evaluate(records)
    assert found.to_pylist() == [True, False]


@pytest.mark.parametrize("type", [pa.time64("ns"), pa.timestamp("ns"), pa.duration("ns"), pa.float64()], ids=str)
def test_literals_that_python_cannot_tell_apart_are_two(type: pa.DataType) -> None:
    """A time of Python has no nanoseconds; the two zeros are equal."""
    floating = pa.types.is_floating(type)
    given = [pa.array([value], type)[0] for value in ((0.0, -0.0) if floating else (1, 2))]
    column = pa.field("x", type)
    records = pa.RecordBatch.from_arrays([pa.array([None], type)], schema=pa.schema([column]))
    found = Evaluator([(str(n), pc.coalesce(pc.field("x"), each)) for n, each in enumerate(given)]).evaluate(records)
    assert [array.buffers()[1].to_pybytes()[:8] for array in found] == [
        pa.repeat(each, 1).buffers()[1].to_pybytes()[:8] for each in given
    ]


def test_each_call_is_tried_alone_however_deep_the_expression_is() -> None:
    deep, asked = pc.field("i"), []

    def alone(expression: pc.Expression, schema: pa.Schema) -> pa.DataType:
        asked.append(str(expression).count("("))
        return type_of(expression, schema)

    for _ in range(30):
        deep = pc.add(deep, pc.field("j"))
    assert program_of([deep], SCHEMA, alone) is not None
    assert asked == [1] * 30


TIMES = pa.schema(
    {
        "s": pa.timestamp("s"),
        "d": pa.date32(),
        "i": pa.int64(),
        "u": pa.uint64(),
        "f": pa.float32(),
        "t": pa.string(),
        "x": pa.struct({"i": pa.int64(), "f": pa.float64()}),
    }
)


@pytest.mark.parametrize(
    "expression",
    [
        pc.field("s") < pa.scalar(5, pa.timestamp("ns")),
        pc.field("d") < pa.scalar(5, pa.timestamp("us")),
        pc.field("d") < pc.field("s"),
        pc.field("u") < pc.field("i"),
        pc.field("u") < pc.year(pc.field("d")),
        pc.field("f") < pc.utf8_length(pc.field("t")),
        pc.coalesce(pc.field("u"), pc.field("i")) > 0,
        pc.field("x", "i") < pc.field("x", "f"),
        pc.field("s").isin(pa.array([5], pa.timestamp("ns"))),
        pc.field("i").isin(pa.array([1.5])),
        pc.field("i") / 2 > 1,
    ],
)
def test_what_may_not_fit_where_values_of_two_types_meet_may_raise(expression: pc.Expression) -> None:
    assert not has_answers(expression, TIMES)


@pytest.mark.parametrize(
    "expression",
    [
        pc.field("s") < pa.scalar(5, pa.timestamp("s")),
        pc.field("d").isin(pa.array([5], pa.date32())),
        pc.field("i") < pa.scalar(5, pa.int8()),
        pc.year(pc.field("d")) == 1995,
        pc.match_like(pc.field("t"), "a%") | (pc.utf8_length(pc.field("t")) > 3),
    ],
)
def test_what_fits_whatever_the_values_has_answers(expression: pc.Expression) -> None:
    assert has_answers(expression, TIMES)
