"""Promises inside types: dropped at every depth, and files that are written without them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.arrow.nullability import loosely, loosened, loosened_type

STRICT = pa.struct([pa.field("x", pa.int64(), nullable=False)])
LOOSE = pa.struct([pa.field("x", pa.int64())])


def strict_item(type: pa.DataType) -> pa.Field:
    return pa.field("item", type, nullable=False)


@pytest.mark.parametrize(
    ("strict", "loose"),
    [
        (STRICT, LOOSE),
        (pa.struct([pa.field("s", STRICT, nullable=False)]), pa.struct([("s", LOOSE)])),
        (pa.list_(strict_item(STRICT)), pa.list_(LOOSE)),
        (pa.list_(strict_item(STRICT), 2), pa.list_(LOOSE, 2)),
        (pa.large_list(strict_item(STRICT)), pa.large_list(LOOSE)),
        (pa.list_view(strict_item(STRICT)), pa.list_view(LOOSE)),
        (pa.large_list_view(strict_item(STRICT)), pa.large_list_view(LOOSE)),
        (pa.map_(pa.string(), pa.field("value", STRICT, nullable=False)), pa.map_(pa.string(), LOOSE)),
        (pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int32(), pa.string())),
    ],
)
def test_promises_inside_a_type_are_dropped(strict: pa.DataType, loose: pa.DataType) -> None:
    assert loosened_type(strict) == loose
    assert loosened_type(loose) == loose


def test_columns_keep_what_they_say_of_themselves() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", STRICT, nullable=False)], {"k": "v"})
    found = loosened(schema)
    assert [field.nullable for field in found] == [False, False]
    assert found.metadata == {b"k": b"v"}
    assert found.field("s").type == LOOSE
    assert loosened(found) is found


def broken_promise() -> pa.RecordBatch:
    """A null struct, and below it a null where the type promises none: what joins and Spark leave."""
    column = pa.StructArray.from_arrays([pa.array([1, None])], fields=list(STRICT), mask=pa.array([False, True]))
    return pa.record_batch({"s": column})


def test_rows_are_taken_over_loosely() -> None:
    records = broken_promise()
    found = loosely(records, loosened(records.schema))
    assert found.schema.field("s").type == LOOSE
    assert found.to_pylist() == [{"s": {"x": 1}}, {"s": None}]
    assert loosely(found, found.schema) is found


def test_nulls_in_lists_beside_a_promise_are_taken_over_and_proven(tmp_path: Path) -> None:
    """Of which Arrow's casts make lists that are longer than their values."""
    nothing = pa.struct([("n", pa.null()), ("more", pa.list_(pa.null(), 2))])
    strict = pa.list_(strict_item(pa.struct([("y", pa.list_(pa.null())), pa.field("x", pa.int64(), nullable=False)])))
    table = pa.table(
        {
            "few": pa.array([[None] * 3, None, [], [None]], pa.list_(pa.null())),
            "structs": pa.array([[{"n": None, "more": [None, None]}] * 2, None, [None], []], pa.list_(nothing)),
            "strict": pa.array([[{"y": [None] * 5, "x": 1}] * 3, None, [], [{"y": None, "x": 2}]], strict),
        }
    ).slice(1)
    found = loosely(table.to_batches()[0], loosened(table.schema))
    found.validate(full=True)
    assert found.to_pylist() == table.to_pylist()
    flow = ps.Flow("nulls-in-lists")
    flow.from_tables(table).write_parquet(tmp_path / "out", name="write")
    with ps.run_local(flow, audit="content") as job:
        assert job.wait(60).audit().grades["write"] == "proven"
        assert job.output().to_table().to_pylist() == table.to_pylist()


def test_struct_that_is_null_is_written_and_proven(tmp_path: Path) -> None:
    flow = ps.Flow("null-structs")
    flow.from_tables(pa.Table.from_batches([broken_promise()])).write_parquet(tmp_path / "out", name="write")
    checkpoints = ps.Checkpoints(tmp_path / "state", retention="always")
    with ps.run_local(flow, checkpoints=checkpoints, audit="content") as job:
        job.wait(60)
        assert job.output().to_table().to_pylist() == [{"s": {"x": 1}}, {"s": None}]
        assert job.audit().grades["write"] == "proven"
