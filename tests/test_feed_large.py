"""A global batch of 2.25 GiB in one column, from the source to a rank: all of it, or an error that names the column."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import DataError

ROWS, PIECE, SIZE = 2304, 64, 1 << 20


def pieces() -> Iterator[pa.Table]:
    large = pa.array([b"x" * SIZE] * PIECE)
    for start in range(0, ROWS, PIECE):
        yield pa.table({"n": pa.array(range(start, start + PIECE), pa.int64()), "b": large})


@pytest.mark.large
@pytest.mark.timeout(600)
def test_batch_that_one_array_cannot_hold_loses_no_row() -> None:
    flow = ps.Flow("large")
    flow.from_tables(list(pieces())).feed(ROWS)
    job = ps.run_local(flow)
    with job.feed().reader(timeout=300) as reader:
        with pytest.raises(DataError, match="column 'b' has more in 2,304 rows than one array of type binary can hold"):
            next(reader.iter_batches())
        assert reader.step == 0
        numbers = count()
        for row in reader.iter_rows():
            assert (row["n"], len(row["b"])) == (next(numbers), SIZE)
        assert next(numbers) == ROWS
    assert job.wait(120).audit().clean
    job.shutdown()
