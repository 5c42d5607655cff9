"""Limit: counted over batches, rounds, restores and barriers, with 64-bit numbers."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.errors import FlowError
from penstock.engine.operators import Limit
from support.operator_harness import SIZES, run
from support.operator_windows import windows_of

BATCHES = {(round, 0): pa.table({"p": range(round * 1000, round * 1000 + 1000)}) for round in range(3)}


@pytest.mark.parametrize(
    ("offset", "count", "rows"),
    [
        (0, 10, 10), (0, 2148483647, 3000), (0, 1234, 1234), (17, 10, 10), (17, 983, 983), (17, 2000, 2000),
        (2147484647, 2148483647, 0), (2147484647, 2000, 0), (1000, 145, 145), (1000, 1000, 1000), (1000, 1234, 1234),
        (1234, 10, 10), (1234, 983, 983), (1234, 1000, 1000), (1234, 2000, 1766), (12345, 10, 0), (0, 0, 0),
        (2**63 - 1, 2**63 - 1, 0),
    ],
)  # fmt: skip
def test_limit_gives_the_rows_behind_the_offset(offset: int, count: int, rows: int) -> None:
    found = run(Limit(count, offset), BATCHES, size=1000)
    assert found.table.column("p").to_pylist() == list(range(offset, offset + rows))


@settings(max_examples=40, deadline=None)
@given(
    offset=st.integers(0, 50),
    count=st.integers(0, 50),
    size=st.sampled_from(SIZES),
    lengths=st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 3)), st.integers(0, 15), max_size=8),
    restore=st.booleans(),
)
def test_limit_counts_in_the_order_of_tags_whatever_the_batches(
    offset: int, count: int, size: int, lengths: dict[tuple[int, int], int], restore: bool
) -> None:
    units = {unit: pa.table({"p": pa.array([[*unit, row] for row in range(length)], pa.list_(pa.int64()))})
             for unit, length in lengths.items()}  # fmt: skip
    schema = pa.schema([("p", pa.list_(pa.int64()))])
    found = run(Limit(count, offset), units, schemas=[schema], size=size, restore=restore)
    everything = [[*unit, row] for unit in sorted(lengths) for row in range(lengths[unit])]
    assert found.table.column("p").to_pylist() == everything[offset : offset + count]


@pytest.mark.parametrize(
    ("offset", "count", "rows"),
    [
        (0, 5000, [1000] * 5), (0, 1000, [1000, 0, 0, 0, 0]), (0, 1500, [1000, 500, 0, 0, 0]),
        (0, 6000, [1000] * 5), (1000, 1999, [0, 1000, 999, 0, 0]), (1000, 500, [0, 500, 0, 0, 0]),
        (500, 5000, [500, 1000, 1000, 1000, 1000]),
    ],
)  # fmt: skip
def test_limit_counts_over_the_whole_task_and_not_by_barrier(offset: int, count: int, rows: list[int]) -> None:
    windows = [pa.table({"p": range(1000)})] * 5
    assert [len(window) for window in windows_of(Limit(count, offset), windows, 300)] == [*rows, 0]


def test_limit_per_window_counts_anew_behind_every_barrier() -> None:
    windows = [pa.table({"p": range(start, start + 4)}) for start in (0, 10)]
    assert windows_of(Limit(2, 1, per="window"), windows, 1) == [[(1,), (2,)], [(11,), (12,)], []]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Limit(-1), "count -1"),
        (Limit(1, -1), "offset -1"),
        (Limit(2**63), "impossible"),
        (Limit(1, 0, "year"), "per 'year'"),
    ],  # type: ignore[arg-type]
)
def test_limit_refuses_impossible_numbers(config: Limit, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        config.output_schema([pa.schema([])])
