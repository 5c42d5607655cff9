"""Rows that are held back: in the order in which they came, whoever looks at them in between."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.buffers.held_rows import HeldRows
from penstock.engine.core.elements import Batch, Tag

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])


@settings(deadline=None)
@given(steps=st.lists(st.sampled_from(["add", "records", "peek", "take"]), max_size=20))
def test_rows_and_where_they_came_from_are_the_same_whoever_looks(steps: list[str]) -> None:
    held = HeldRows(SCHEMA)
    expected: list[tuple[int, int, int]] = []
    for number, step in enumerate(steps):
        rows = number % 3
        if step == "add":
            records = pa.record_batch([[number] * rows, [str(number)] * rows], schema=SCHEMA)
            held.add(Batch(records, Tag(number, number % 2, 0)))
            expected += [(number, number, number % 2)] * rows
        elif step == "records":
            assert held.records().column("k").to_pylist() == [k for k, _, _ in expected]
            assert held.records() is held.records() or len(expected) == 0
        else:
            whole = held.peek() if step == "peek" else held.take_all()
            found = zip(
                *(each.tolist() for each in (whole.records["k"].to_numpy(), whole.rounds, whole.lanes)), strict=True
            )
            assert list(found) == expected
            expected = expected if step == "peek" else []
        assert held.rows == len(expected)


def test_what_is_let_go_of_is_not_brought_together_first() -> None:
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        held = HeldRows(SCHEMA)
        for number in range(10):
            held.add(Batch(pa.record_batch([[number] * 1000, ["text"] * 1000], schema=SCHEMA), Tag(number, 0, 0)))
        peak = pool.max_memory()
        held.clear()
        assert held.rows == held.bytes == pool.bytes_allocated() == 0
        assert pool.max_memory() == peak
    finally:
        pa.set_memory_pool(before)
