"""Opening Arrow blocks as Spark's executors write them; without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.actors.blocks import nullable, to_table
from penstock.engine.errors import InternalError

TABLE = pa.table({"n": pa.array([1, 2]), "words": pa.array([["a", "b"], []], pa.list_(pa.string()))})


def block(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def without_offsets() -> pa.Table:
    """One row with an empty list of strings, whose string array lacks its only offset, as Arrow for Java writes it."""
    strings = pa.Array.from_buffers(pa.string(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    lists = pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), strings)
    inside = pa.StructArray.from_arrays([lists, pa.array([7])], ["words", "n"])
    return pa.table({"n": [1], "words": lists, "inside": inside})


def test_block_gives_its_rows_back_in_the_schema_asked_for() -> None:
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False), TABLE.schema.field("words")])
    table = to_table(block(TABLE.cast(strict)), nullable(strict))
    assert table.equals(TABLE)
    assert table.schema.field("n").nullable


def test_block_without_rows_is_an_empty_table_of_the_schema_asked_for() -> None:
    assert to_table(block(TABLE.slice(0, 0)), TABLE.schema).equals(TABLE.schema.empty_table())


def test_arrays_that_lack_their_offset_are_made_anew_at_any_depth() -> None:
    data = block(without_offsets())
    raw = pa.ipc.open_stream(data).read_all()
    assert raw["words"].chunk(0).values.buffers()[1].size == 0, "the block does not show what this test is about"
    table = to_table(data)
    assert table.to_pylist() == [{"n": 1, "words": [], "inside": {"words": [], "n": 7}}]
    for lists in (table["words"].chunk(0), table["inside"].chunk(0).field("words")):
        assert lists.values.buffers()[1].size >= 4


def test_block_with_other_columns_than_declared_is_refused() -> None:
    with pytest.raises(InternalError, match=r"has the columns \['n', 'words'\]"):
        to_table(block(TABLE), pa.schema([("m", pa.int64()), ("words", pa.list_(pa.string()))]))
