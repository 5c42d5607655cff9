"""Filter: rows for which the predicate is true, under the tags of their batches."""

from __future__ import annotations

import pickle
import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.core.operator import exhaust
from penstock.engine.operators import Filter
from penstock.engine.operators.rowwise import filter as module
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
    with pytest.raises(FlowError, match=r"got 7 \(int\)(.|\n)*ps.col"):
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


@pytest.mark.parametrize("seed", range(30))
def test_rows_that_pass_are_those_of_arrow_however_they_lie(seed: int) -> None:
    chooser = random.Random(seed)
    rows, share = chooser.choice([1, 50, 3000]), chooser.choice([0.01, 0.5, 0.95, 1.0])
    first, last = sorted(chooser.choices(range(rows), k=2))
    by_run = chooser.random() < 0.3
    wanted = [first <= n <= last if by_run else chooser.random() < share for n in range(rows)]
    passes = [each if chooser.random() < 0.99 or by_run else None for each in wanted]
    table = pa.table({"p": passes, "a": range(rows), "t": [str(n % 7) for n in range(rows)]})
    outcome = run(Filter("p"), {(0, 0): table}, size=chooser.choice([rows, 700]), seed=seed)
    assert outcome.table.equals(table.filter(table["p"]))


def test_one_run_of_most_rows_is_not_copied() -> None:
    records = pa.record_batch({"a": range(100)})
    for most, shared in ((50, True), (49, False)):
        out = Collected(records.schema)
        predicate = pc.field("a") >= 100 - most
        exhaust(
            Filter(predicate).build(context(), [records.schema], None).process(0, Batch(records, Tag(0, 0, 0)), out)
        )
        (batch,) = out.batches
        assert (batch.records.column(0).buffers()[1].address == records.column(0).buffers()[1].address) is shared


def test_columns_of_a_condition_are_looked_for_once_however_many_columns_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(50)])
    running = module.RunningFilter(pc.field("c7") > 0, "c7 > 0", schema)
    looked = []
    read = module.columns_read
    monkeypatch.setattr(module, "columns_read", lambda *asked: looked.append(asked) or read(*asked))
    assert list(running.condition(schema).columns) == ["c7"]
    assert len(looked) == 1
