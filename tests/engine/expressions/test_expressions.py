"""Expressions: types at build time, values at run time."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.expressions.evaluator import Evaluator, single_array, types_of
from penstock.engine.expressions.expressions import as_expression, plain_column

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("s", pa.struct([("i", pa.int32())]))])
ROWS = pa.record_batch([[1, None], ["x", "y"], [{"i": 5}, None]], schema=SCHEMA)


def test_types_of_expressions_are_those_of_the_kernels() -> None:
    columns = [("c", pc.field("a") + 1), ("d", pc.field("s", "i")), ("e", pc.field("b") == "x"), ("f", pc.scalar(1.5))]
    assert types_of("project", SCHEMA, columns) == [pa.int64(), pa.int32(), pa.bool_(), pa.float64()]


def test_expression_is_looked_at_once_for_the_columns_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[pa.Schema] = []
    types = Evaluator.types

    def counted(self: Evaluator, kind: str, schema: pa.Schema) -> list[pa.DataType]:
        asked.append(schema)
        return types(self, kind, schema)

    monkeypatch.setattr(Evaluator, "types", counted)
    counts = []
    for schema in (SCHEMA, pa.schema([*SCHEMA, ("further", pa.int8())])):
        assert types_of("project", schema, [("c", pc.field("a") * 41 + 17)]) == [pa.int64()]
        assert str(as_expression("project", "a * 43 + 17", schema)) == "add_checked(multiply_checked(a, 43), 17)"
        counts.append(len(asked))
    assert all(each.names == ["a"] for each in asked)
    assert counts[0] == counts[1] > 0


def test_evaluator_computes_one_array_per_expression() -> None:
    evaluator = Evaluator([("c", pc.field("a") + 1), ("d", pc.field("s", "i")), ("f", pc.scalar(7))])
    assert [array.to_pylist() for array in evaluator.evaluate(ROWS)] == [[2, None], [5, None], [7, 7]]


def test_evaluator_gives_single_arrays_for_batches_larger_than_acero_handles_at_once() -> None:
    rows = pa.record_batch({"a": pa.array(range(70_000))})
    (array,) = Evaluator([("c", pc.field("a") * 2)]).evaluate(rows)
    assert isinstance(array, pa.Array)
    assert array.to_pylist() == list(range(0, 140_000, 2))


def test_evaluator_works_on_slices_and_on_batches_without_columns() -> None:
    assert Evaluator([("c", pc.field("b"))]).evaluate(ROWS.slice(1))[0].to_pylist() == ["y"]
    assert Evaluator([("c", pc.scalar(1))]).evaluate(ROWS.select([]))[0].to_pylist() == [1, 1]


def test_missing_columns_are_named_with_those_there_are() -> None:
    for expression in (pc.field("nope") + 1, pc.field("s", "nope"), pc.field("a") + pc.field("nope")):
        with pytest.raises(FlowError, match=r"filter: its input has no column '.*nope.*'(.|\n)*a, b, s"):
            types_of("filter", SCHEMA, [("c", expression)])


def test_wrong_types_and_unknown_functions_give_the_kernels_message() -> None:
    with pytest.raises(FlowError, match=r"project: c: .*no kernel matching input types \(int64, string\)"):
        types_of("project", SCHEMA, [("ok", pc.field("a")), ("c", pc.field("a") + pc.field("b"))])


def test_values_that_a_kernel_refuses_are_an_error_of_the_data() -> None:
    with pytest.raises(DataError, match=r"cannot compute c: .*Failed to parse"):
        Evaluator([("c", pc.field("b").cast("int64"))]).evaluate(ROWS)


def test_plain_column_knows_a_bare_column_from_a_computed_one() -> None:
    assert plain_column(pc.field("b"), SCHEMA) == 1
    assert plain_column(pc.field("b") == "x", SCHEMA) is None
    assert plain_column(pc.field("s", "i"), SCHEMA) is None
    assert plain_column(pc.field("nope"), SCHEMA) is None


def test_as_expression_takes_expressions_and_text() -> None:
    assert as_expression("filter", pc.field("a"), SCHEMA).equals(pc.field("a"))
    assert as_expression("filter", "a", SCHEMA).equals(pc.field("a"))
    with pytest.raises(FlowError, match=r"filter: expected an expression, got 7 \(int\)"):
        as_expression("filter", 7, SCHEMA)


def test_single_array_joins_chunks_also_if_there_are_none() -> None:
    assert single_array(pa.chunked_array([], pa.int8())).to_pylist() == []
    assert single_array(pa.chunked_array([[1], [2]])).to_pylist() == [1, 2]
