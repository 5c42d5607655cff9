"""Project: kept, renamed and computed columns."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.operators import Project
from support.operator_harness import SIZES, rows_of, run

ROWS = pa.table({"a": [1, None, 3], "b": ["x", "y", None], "s": [{"i": 1}, {"i": 2}, None]})


@pytest.mark.parametrize("size", SIZES)
def test_project_keeps_renames_and_computes_in_the_order_asked_for(size: int) -> None:
    config = Project((("c", pc.field("b")), ("twice", pc.field("a") * 2), ("a", pc.field("a")), ("one", pc.scalar(1))))
    outcome = run(config, {(0, 1): ROWS}, size=size)
    assert outcome.schema.names == ["c", "twice", "a", "one"]
    assert outcome.units == {(0, 1): [("x", 2, 1, 1), ("y", None, None, 1), (None, 6, 3, 1)]}


def test_project_reads_nested_fields() -> None:
    outcome = run(Project((("i", pc.field("s", "i")),)), {(0, 0): ROWS})
    assert outcome.table.to_pydict() == {"i": [1, 2, None]}


def test_project_keeps_a_fields_metadata_and_nullability_when_the_column_passes_through() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={"unit": "min"})])
    made = Project((("b", pc.field("a")),)).output_schema([schema])
    assert made.equals(pa.schema([schema.field("a").with_name("b")]), check_metadata=True)


def test_project_computes_large_batches_in_one_piece() -> None:
    """Acero cuts at 32 Ki rows; the batch and its tag stay whole."""
    rows = pa.table({"a": range(100_000)})
    (batch,) = run(Project((("b", pc.field("a") + 1),)), {(0, 0): rows}, size=100_000).batches
    assert batch.records.column(0).to_pylist() == list(range(1, 100_001))


def test_with_columns_replaces_a_column_in_its_place_and_adds_others_last() -> None:
    config = Project.with_columns(ROWS.schema, {"b": pc.field("a"), "new": pc.field("a") + 1})
    outcome = run(config, {(0, 0): ROWS})
    assert outcome.schema.names == ["a", "b", "s", "new"]
    assert outcome.table.column("b").to_pylist() == [1, None, 3]


def test_keeping_takes_names_and_derived_columns() -> None:
    outcome = run(Project.keeping(["b"], {"n": pc.field("a") + 1}), {(0, 0): ROWS})
    assert rows_of(outcome.table) == [("x", 2), ("y", None), (None, 4)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((("x", pc.field("nope")),), "project: its input has no column 'nope'"),
        ((("x", pc.field("a") + pc.field("nope")),), "project: its input has no column 'nope'"),
        ((("x", pc.field("a") + pc.field("b")),), "project: x: .*no kernel matching"),
        ((("x", pc.field("a")), ("x", pc.field("b"))), "project: column 'x' is given twice"),
        ((("x", 3),), "project 'x': expected an expression, got 3"),
        ((), "no column is left"),
    ],
)
def test_project_refuses_what_cannot_be_computed(columns: tuple[tuple[str, pc.Expression], ...], message: str) -> None:
    with pytest.raises(FlowError, match=message):
        Project(columns).output_schema([ROWS.schema])


def test_project_of_an_ambiguous_name_is_refused() -> None:
    with pytest.raises(FlowError, match="column 'a' stands 2 times"):
        Project((("a", pc.field("a")),)).output_schema([pa.schema([("a", pa.int64()), ("a", pa.int64())])])


def test_project_that_fails_on_a_value_names_the_column() -> None:
    with pytest.raises(DataError, match=r"cannot compute n: .*divide by zero"):
        run(Project((("n", pc.scalar(1) / (pc.field("a") - 1)),)), {(0, 0): ROWS})


def test_projects_are_equal_after_pickling() -> None:
    config = Project.keeping(["a"], {"n": pc.field("a") + 1})
    assert pickle.loads(pickle.dumps(config)) == config
    assert config != Project.keeping(["a"], {"n": pc.field("a") + 2})
    assert config != Project.keeping(["a"])
    assert config.describe() == "a, n = add_checked(a, 1)"
