"""Rows picked by position from many batches, and batches cut to size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.buffers.stored_rows import StoredRows, concatenated, numbers_of, rebatched

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def batch(start: int, count: int) -> pa.RecordBatch:
    numbers = list(range(start, start + count))
    return pa.record_batch({"n": numbers, "s": [f"s{number}" for number in numbers]}, schema=SCHEMA)


def batches(sizes: list[int]) -> list[pa.RecordBatch]:
    return [batch(sum(sizes[:place]), size) for place, size in enumerate(sizes)]


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6), data=st.data())
def test_picking_rows_equals_taking_them_from_one_batch(sizes: list[int], data: st.DataObject) -> None:
    rows = StoredRows(SCHEMA, batches(sizes))
    total = sum(sizes)
    assert rows.num_rows == total
    wanted = data.draw(st.lists(st.none() | st.integers(0, total - 1) if total else st.none(), max_size=12))
    found = [rows.column(place).picked(pa.array(wanted, pa.int64())).to_pylist() for place in (0, 1)]
    assert found[0] == wanted
    assert found[1] == [None if number is None else f"s{number}" for number in wanted]
    start = data.draw(st.integers(0, total))
    assert rows.slice(start, total - start).column("n").to_pylist() == list(range(start, total))
    assert rows.column(1).slice(start, total - start).to_pylist() == [f"s{number}" for number in range(start, total)]


def test_only_the_batches_that_rows_stand_in_are_looked_at() -> None:
    rows = StoredRows(SCHEMA, batches([3, 3, 3]))
    rows.batches[1] = None
    assert rows.take(np.array([8, 0, 2, 8])).column("s").to_pylist() == ["s8", "s0", "s2", "s8"]
    assert numbers_of(rows.column(0), np.array([1, 7])).tolist() == [1, 7]


def test_dictionaries_of_several_batches_are_decoded_when_rows_are_picked() -> None:
    columns = [pa.array(values).dictionary_encode() for values in (["b", "a"], ["c", None])]
    schema = pa.schema([("k", columns[0].type)])
    rows = StoredRows(schema, [pa.record_batch([column], schema=schema) for column in columns])
    column = rows.column(0).dictionary_decode()
    assert (column.type, len(column)) == (pa.string(), 4)
    assert column.picked(pa.array([3, 2, 0])).equals(pa.array([None, "c", "b"]))
    assert rows.column(0).picked(pa.array([2, 1])).to_pylist() == ["c", "a"]


@pytest.mark.parametrize(
    ("sizes", "rows", "expected"),
    [([], 3, []), ([1], 3, [1]), ([2, 2, 2], 3, [3, 3]), ([7, 1], 3, [3, 3, 2]), ([1, 1, 1, 1], 2, [2, 2])],
)
def test_batches_are_cut_to_one_size(sizes: list[int], rows: int, expected: list[int]) -> None:
    found = list(rebatched(batches(sizes), SCHEMA, rows))
    assert [records.num_rows for records in found] == expected
    assert concatenated(SCHEMA, found).column("n").to_pylist() == list(range(sum(sizes)))


def test_cutting_reads_no_further_than_it_must() -> None:
    read: list[Any] = []
    given_batches = (read.append(records) or records for records in batches([2, 2, 2, 2]))
    assert next(rebatched(given_batches, SCHEMA, 3)).num_rows == 3
    assert len(read) == 2
