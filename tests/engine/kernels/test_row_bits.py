"""Bits of rows: as many as a copy of the row takes, whatever the type, wherever the array begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.kernels.pieces import Bound, cut
from penstock.engine.kernels.row_bits import row_bits, total_bits

TEXT = st.one_of(st.none(), st.text("aé", max_size=20))
NUMBERS = st.one_of(st.none(), st.integers(-9, 9))
PAIRS = st.fixed_dictionaries({"t": TEXT, "n": st.lists(NUMBERS, max_size=3)})

TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int16(): NUMBERS,
    pa.bool_(): st.booleans(),
    pa.null(): st.none(),
    pa.dictionary(pa.int32(), pa.string()): TEXT,
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.binary(): st.binary(max_size=9),
    pa.large_binary(): st.binary(max_size=9),
    pa.string_view(): TEXT,
    pa.list_(pa.int8()): st.lists(NUMBERS, max_size=4),
    pa.large_list(pa.string()): st.lists(TEXT, max_size=4),
    pa.list_(pa.list_(pa.string())): st.lists(st.lists(TEXT, max_size=3), max_size=3),
    pa.list_(pa.int8(), 2): st.lists(NUMBERS, min_size=2, max_size=2),
    pa.list_(pa.string(), 2): st.lists(TEXT, min_size=2, max_size=2),
    pa.map_(pa.string(), pa.int32()): st.dictionaries(st.text("ab", max_size=5), NUMBERS, max_size=3),
    pa.struct([("t", pa.string()), ("n", pa.list_(pa.int64()))]): st.one_of(st.none(), PAIRS),
    pa.list_(pa.struct([("t", pa.string()), ("n", pa.list_(pa.int64()))])): st.lists(PAIRS, max_size=3),
}


@pytest.mark.parametrize("type", TYPES, ids=str)
@settings(deadline=None)
@given(data=st.data())
def test_rows_take_about_what_a_copy_of_them_takes(type: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(TYPES[type], min_size=1, max_size=8))
    start = data.draw(st.integers(0, len(values) - 1))
    array = pa.array(values, type).slice(start)
    rows = data.draw(st.lists(st.integers(0, len(array) - 1), min_size=1, max_size=8))
    bits = np.broadcast_to(row_bits([array], np.array(rows)), len(rows))
    one_by_one = [int(np.broadcast_to(row_bits([array], np.array([row])), 1)[0]) for row in rows]
    assert bits.tolist() == one_by_one
    every = np.broadcast_to(row_bits([array], np.arange(len(array))), len(array))
    assert total_bits(pa.record_batch([array, array], ["a", "b"])) == 2 * int(every.sum())
    copy = pa.array([array[row].as_py() for row in rows], type)
    held = copy.nbytes - (copy.dictionary.nbytes if pa.types.is_dictionary(type) else 0)
    # an offset more than rows in each buffer of offsets, bits in whole bytes; and validity where no null is
    slack = 8 * len(copy.buffers())
    elements = sum(len(str(value)) for value in values)
    assert held - slack <= bits.sum() / 8 <= held + (len(rows) + elements * 8) / 8 + slack


@given(
    texts=st.lists(st.text("ab", max_size=40), max_size=30),
    rows=st.integers(1, 9),
    most=st.integers(1, 120),
)
def test_a_cut_keeps_to_rows_and_bytes_and_takes_as_much_as_it_may(texts: list[str], rows: int, most: int) -> None:
    records = pa.record_batch({"t": pa.array(texts, pa.string()), "n": pa.array(range(len(texts)), pa.int64())})
    found = list(cut(records, rows, most))
    assert [row for piece in found for row in piece.to_pylist()] == records.to_pylist()

    def size(texts: list[str]) -> int:
        return sum(len(text) * 8 + 33 + 65 for text in texts)

    for number, piece in enumerate(found):
        mine = piece.column("t").to_pylist()
        assert 0 < len(mine) <= rows
        assert len(mine) == 1 or size(mine) <= most * 8 or piece.nbytes <= most
        after = found[number + 1].column("t").to_pylist()[:1] if number + 1 < len(found) else []
        assert not after or len(mine) == rows or size(mine + after) > most * 8


def test_one_wide_row_among_small_ones_stands_alone() -> None:
    """An average would put it with thousands of others."""
    texts = ["a"] * 5000 + ["b" * 1_000_000] + ["c"] * 5000
    found = list(cut(pa.record_batch({"t": texts}), bytes=100_000))
    assert max(piece.num_rows for piece in found if "b" in piece.column(0)[0].as_py()) == 1
    assert all(piece.nbytes <= 100_100 for piece in found if piece.num_rows > 1)
    assert len(found) <= 5


@given(rows=st.integers(0, 50), bits=st.integers(0, 100), most=st.integers(1, 9))
def test_rows_of_one_width_are_cut_as_those_that_are_measured(rows: int, bits: int, most: int) -> None:
    bound = Bound(most, 64)
    measured = np.full(rows, bits, dtype=np.int64)
    assert list(bound.parts(rows, bits)) == [part for part in bound.parts(rows, measured) if rows]
