"""Filter: rows for which the predicate is true, under the tags of their batches."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.core.operator import exhaust
from penstock.engine.operators import Filter
from support.operator_harness import SIZES, Collected, context, run

ROWS = pa.table({"a": [1, None, 3, 4, 5], "b": ["x", "y", None, "x", "x"]})


@pytest.mark.parametrize("size", SIZES)
def test_filter_keeps_rows_where_the_predicate_is_true_and_drops_null(size: int) -> None:
    predicate = (pc.field("a") > 1) & (pc.field("b") == "x")
    outcome = run(Filter(predicate), {(0, 0): ROWS, (1, 2): ROWS}, size=size)
    assert outcome.units == {(0, 0): [(4, "x"), (5, "x")], (1, 2): [(4, "x"), (5, "x")]}


def test_filter_emits_nothing_when_no_row_passes() -> None:
    assert run(Filter(pc.field("a") > 9), {(0, 0): ROWS}).batches == []


def test_filter_passes_a_batch_on_untouched_when_all_rows_pass() -> None:
    operator = Filter(pc.field("a").is_valid() | pc.field("a").is_null())
    (records,) = ROWS.to_batches()
    given, out = Batch(records, Tag(0, 3, 0)), Collected(ROWS.schema)
    exhaust(operator.build(context(), [ROWS.schema], None).process(0, given, out))
    (batch,) = out.batches
    assert batch is given


def test_filter_by_a_null_literal_drops_everything() -> None:
    assert run(Filter(pc.scalar(None)), {(0, 0): ROWS}).batches == []


def test_filter_on_a_missing_column_names_it_and_the_columns_there_are() -> None:
    with pytest.raises(FlowError, match=r"filter: its input has no column 'nope'(.|\n)*a, b"):
        Filter(pc.field("nope") > 1).output_schema([ROWS.schema])


def test_filter_with_impossible_types_gives_the_kernels_message() -> None:
    with pytest.raises(FlowError, match=r"no kernel matching input types(.|\n)*a: int64, b: string"):
        Filter(pc.field("a") > pc.field("b")).output_schema([ROWS.schema])


def test_filter_that_is_no_condition_is_refused() -> None:
    with pytest.raises(FlowError, match="int64, not a condition"):
        Filter(pc.field("a") + 1).output_schema([ROWS.schema])


def test_filter_by_something_else_suggests_an_expression() -> None:
    with pytest.raises(FlowError, match=r"got 7 \(int\)(.|\n)*pc.field"):
        Filter(7).output_schema([ROWS.schema])


def test_filter_that_fails_on_a_value_is_an_error_of_the_data() -> None:
    with pytest.raises(DataError, match="divide by zero"):
        run(Filter(pc.scalar(1) / (pc.field("a") - 3) > 0), {(0, 0): ROWS})


def test_filters_are_equal_after_pickling_and_differ_by_predicate() -> None:
    config = Filter(pc.field("a") > 1)
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(pickle.loads(pickle.dumps(config))) == hash(config)
    assert config != Filter(pc.field("a") > 2)
    assert config.describe() == "(a > 1)"
